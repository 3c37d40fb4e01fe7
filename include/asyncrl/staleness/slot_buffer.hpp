// SPDX-License-Identifier: Apache-2.0
/// @file Reserve-Occupy: bounded staleness without drops, as a table of slots that one can watch.
#pragma once

#include <asyncrl/config.hpp>
#include <asyncrl/error.hpp>
#include <asyncrl/fwd.hpp>
#include <asyncrl/staleness/detail/bit_trees.hpp>
#include <asyncrl/staleness/policy_version.hpp>
#include <asyncrl/staleness/unit.hpp>

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

ASYNCRL_BEGIN_NAMESPACE

enum class slot_state : std::uint8_t {
    empty,
    reserved,  ///< holds the place of a unit in flight
    occupied,  ///< holds a completed unit
};

enum class buffer_state : std::uint8_t {
    pending,  ///< has an empty slot
    stuck,    ///< has no empty slot, and waits for at least one unit in flight
    ready,    ///< all slots are occupied
};

/// A place in the table. Buffer b feeds batch b, which turns version b into b + 1; slots count from 0.
struct slot_place {
    policy_version buffer = {};
    std::int64_t slot = 0;

    friend constexpr bool operator==(slot_place, slot_place) = default;
};

/// What one slot holds; the other members mean nothing where it is empty.
template <typename Handle>
struct slot_view {
    slot_state state = slot_state::empty;
    Handle handle{};
    std::uint64_t id = 0;
    policy_version version = {};
};

enum class slot_event_kind : std::uint8_t {
    reserved,       ///< a unit was admitted: `to`
    occupied,       ///< a unit completed: its reservation `from` became a result at `to`
    moved_back,     ///< a reservation gave its place to results and went into a gap behind: `from`, `to`
    moved_forward,  ///< a completed unit filled the hole of a dropped one: `from`, `to`
    dropped,        ///< a unit left `from` for `reason`
    taken,          ///< a unit left `from` for training
    published,      ///< `version` became current; all other members are empty
};

/// One move. `handle` points into the buffer and is valid during the call only; `from`, `to` and `reason` mean something where
/// the kind names them.
template <typename Handle>
struct slot_event {
    slot_event_kind kind{};
    Handle const* handle = nullptr;
    std::uint64_t id = 0;
    policy_version version = {};  ///< of the unit
    slot_place from = {};
    slot_place to = {};
    drop_reason reason{};
};

/// The default listener: hears nothing and costs nothing.
struct no_listener {};

struct slot_buffer_options {
    std::int64_t batch_size = 1;     ///< units per batch, 1 to 262,144
    std::int64_t max_staleness = 1;  ///< batches, 0 (synchronous) to 63
    /// Units generated at the same time, at least 1; without a value only the slots limit them. A matter of speed, not of
    /// staleness: (max_staleness + 1) * batch_size units fit in any case.
    std::optional<std::int64_t> max_in_flight = std::nullopt;
    policy_version first_version = {};  ///< version and batch to start from: of a resumed run, the version it restored
};

/// The Reserve-Occupy protocol (PSRL): where each unit will be trained is planned before it is generated.
///
/// Buffer b collects the N units of batch b. A unit admitted under version v may be trained in batches b <= v + max_staleness.
/// `reserve` admits it only if a slot of those buffers is free, takes the last one and stamps the version in the same step, so
/// that the unit has a legal place however long it takes. When it completes, `occupy` frees that slot, moves the first
/// reservation in front of the gap that may go there into it, and puts the result into the first empty slot. When a unit is
/// dropped, completed units from later buffers move forward into the hole, and then the first legal reservation in front of the
/// last hole moves back into it.
///
/// One batch is in training at a time: `take` hands out batch b while version b is current, and publishing version b + 1 ends
/// its training. max_staleness = 0 is synchronous training.
///
/// A slot holds the caller's handle (an index, a pointer, an id), never the payload; a group of rollouts that trains together
/// is one unit with one handle. `Handle` is moved from caller to buffer to caller, not copied.
///
/// Promises: a taken unit has staleness <= max_staleness; `occupy` always finds a place; every unit leaves once, taken or
/// dropped for a reason that is counted; a ticket whose unit has left changes nothing; if admission goes on and every unit in
/// flight completes, the next batch becomes ready.
/// Order within a buffer is not one of them: after a publish with slots to spare, reservations and results may alternate.
///
/// Cost: reserve, occupy, discard and filter O(max_staleness + log batch_size), take O(batch_size). All memory is allocated by
/// the constructor: about 32 + max_staleness / 8 bytes per slot, and the handle.
///
/// Not thread-safe: see `controller`. `Listener` is called with a `slot_event<Handle> const&` for every move, during the move;
/// it must be noexcept and must not call the buffer.
template <typename Handle, typename Listener>
class slot_buffer {
    static_assert(std::is_nothrow_default_constructible_v<Handle> && std::is_nothrow_move_assignable_v<Handle>,
                  "a handle is default constructible and moves without exceptions");
    static constexpr bool is_watched = !std::same_as<Listener, no_listener>;
    static_assert(!is_watched || std::is_nothrow_invocable_v<Listener&, slot_event<Handle> const&>,
                  "a listener is noexcept and takes slot_event<Handle> const&");

  public:
    using handle_type = Handle;

    static constexpr std::int64_t max_batch_size = detail::bit_trees::max_bits;
    static constexpr std::int64_t max_max_staleness = 63;

    /// Throws std::invalid_argument for an option outside its limits.
    explicit slot_buffer(slot_buffer_options const& options, Listener listener = {})
        : options_(checked(options)),
          listener_(std::move(listener)),
          clock_(options.first_version),
          next_batch_(options.first_version),
          buffers_(static_cast<std::uint32_t>(options.max_staleness) + 1),
          slots_(static_cast<std::uint32_t>(options.batch_size)),
          legal_(~std::uint64_t{0} >> (64 - buffers_)),
          has_empty_(legal_),
          reserved_deadlines_(buffers_),
          empty_(buffers_, slots_),
          occupied_(buffers_, slots_),
          reserved_(std::size_t{buffers_} * buffers_, slots_),
          unit_in_(std::size_t{buffers_} * slots_),
          units_(unit_in_.size()),
          contents_(unit_in_.size()),
          free_units_(unit_in_.size()) {
        for (std::uint32_t ring = 0; ring < buffers_; ++ring) {
            empty_.set_all(ring);
        }
        for (std::size_t i = 0; i < free_units_.size(); ++i) {
            free_units_[i] = static_cast<std::uint32_t>(free_units_.size() - 1 - i);
        }
    }

    slot_buffer(slot_buffer&&) = default;
    slot_buffer(slot_buffer const&) = delete;
    slot_buffer& operator=(slot_buffer&&) = delete;
    slot_buffer& operator=(slot_buffer const&) = delete;
    ~slot_buffer() = default;

    // --- admission and results -----------------------------------------------------------------------------------------

    /// How many units could be admitted now, one after the other.
    [[nodiscard]] std::int64_t admissible() const noexcept {
        std::int64_t const legal_slots = std::popcount(legal_) * options_.batch_size;
        std::int64_t const places = legal_slots - counters_.in_flight - counters_.completed;
        return options_.max_in_flight ? std::min(places, *options_.max_in_flight - counters_.in_flight) : places;
    }

    /// Admits a unit under the current version, or answers nothing if `admissible()` is 0; then `handle` is destroyed.
    [[nodiscard]] std::optional<unit_ticket> reserve(Handle handle = {}) noexcept {
        if (admissible() <= 0) {
            return std::nullopt;
        }
        std::uint32_t const buffer = highest(has_empty_ & legal_);
        std::uint32_t const slot = empty_.last(ring(buffer));
        std::uint32_t const unit = free_units_.back();
        free_units_.pop_back();
        policy_version const version = clock_.current();
        std::uint32_t const deadline = offset_of(last_buffer());
        contents_[unit].handle = std::move(handle);
        contents_[unit].version = version;
        units_[unit].id = next_id_++;
        units_[unit].deadline = static_cast<std::uint8_t>(ring(deadline));
        units_[unit].state = slot_state::reserved;
        close({buffer, slot});
        put_reservation({buffer, slot}, unit, deadline);
        ++counters_.admitted;
        ++counters_.in_flight;
        tell(slot_event_kind::reserved, unit, {}, {buffer, slot});
        return unit_ticket{.id = units_[unit].id, .version = version, .origin = units_.data(), .index = unit};
    }

    /// The unit's result is there. Statuses: ok, duplicate, gone, foreign.
    ticket_status occupy(unit_ticket const& ticket) noexcept {
        ticket_status const status = status_of(ticket);
        if (status != ticket_status::in_flight) {
            return status;
        }
        complete(ticket.index);
        return ticket_status::ok;
    }

    /// The same, and `result` replaces the handle that was given to `reserve`; unless ok, `result` is destroyed.
    ticket_status occupy(unit_ticket const& ticket, Handle result) noexcept {
        ticket_status const status = status_of(ticket);
        if (status != ticket_status::in_flight) {
            return status;
        }
        contents_[ticket.index].handle = std::move(result);
        complete(ticket.index);
        return ticket_status::ok;
    }

    /// Gives up a unit in flight. Statuses: ok, duplicate, gone, foreign.
    ticket_status discard(unit_ticket const& ticket, drop_reason reason = drop_reason::discarded) noexcept {
        ticket_status const status = status_of(ticket);
        if (status != ticket_status::in_flight) {
            return status;
        }
        drop(ticket.index, reason);
        return ticket_status::ok;
    }

    /// Drops a completed unit that no batch has taken. Statuses: ok, in_flight, gone, foreign.
    ticket_status filter(unit_ticket const& ticket, drop_reason reason = drop_reason::filtered) noexcept {
        ticket_status const status = status_of(ticket);
        if (status != ticket_status::duplicate) {
            return status;
        }
        drop(ticket.index, reason);
        return ticket_status::ok;
    }

    // --- training ------------------------------------------------------------------------------------------------------

    /// Whether the next batch is ready and none is in training.
    [[nodiscard]] bool can_take() const noexcept { return !in_training() && front_is_ready(); }

    /// Takes the next batch into `batch`, in slot order, and returns its number; nothing, if `can_take()` is false.
    ///
    /// @pre `batch` holds exactly `batch_size()` elements; throws std::invalid_argument otherwise.
    std::optional<policy_version> take(std::span<taken_unit<Handle>> batch) {
        detail::require(batch.size() == slots_, "size of the span for a batch", batch.size(), "the batch size");
        if (!can_take()) {
            return std::nullopt;
        }
        policy_version const number = next_batch_;
        for (std::uint32_t slot = 0; slot < slots_; ++slot) {
            std::uint32_t const unit = unit_in({0, slot});
            content& held = contents_[unit];
            tell(slot_event_kind::taken, unit, {0, slot}, {});
            batch[slot] = {.handle = std::move(held.handle),
                           .id = units_[unit].id,
                           .version = held.version,
                           .staleness = staleness(number, held.version)};
            units_[unit].state = slot_state::empty;
            free_units_.push_back(unit);
        }
        counters_.completed -= options_.batch_size;
        counters_.taken += options_.batch_size;
        rotate();
        return number;
    }

    /// Whether a batch was taken whose training has not ended with a publish.
    [[nodiscard]] bool in_training() const noexcept { return next_batch_ > clock_.current(); }

    /// Announces the version that the batch in training makes, and returns it. Until the commit units are stamped with the
    /// version before. Throws std::invalid_argument if no batch is in training or a version is pending.
    policy_version begin_publish() {
        detail::require(in_training(), "published version", next_batch_.value + 1,
                        "preceded by taking the batch that makes it");
        clock_.begin(next_batch_);
        return next_batch_;
    }

    /// The weights are in place: the pending version becomes current, and its units may use one more buffer.
    policy_version commit_publish() {
        policy_version const version = clock_.commit();
        legal_ = (legal_ << 1) | 1;
        if constexpr (is_watched) {
            listener_(slot_event<Handle>{.kind = slot_event_kind::published, .version = version});
        }
        return version;
    }

    /// The weights did not arrive: the batch stays in training and its version can be announced again.
    void abort_publish() { clock_.abort(); }

    /// Both phases at once, where nothing is admitted while weights are swapped. Returns the version now current.
    policy_version publish() {
        begin_publish();
        return commit_publish();
    }

    // --- watching ------------------------------------------------------------------------------------------------------

    [[nodiscard]] std::int64_t batch_size() const noexcept { return options_.batch_size; }
    [[nodiscard]] std::int64_t max_staleness() const noexcept { return options_.max_staleness; }
    [[nodiscard]] slot_buffer_options const& options() const noexcept { return options_; }
    [[nodiscard]] version_clock const& clock() const noexcept { return clock_; }

    /// The version that units are stamped with now.
    [[nodiscard]] policy_version version() const noexcept { return clock_.current(); }

    /// The first buffer not taken.
    [[nodiscard]] policy_version next_batch() const noexcept { return next_batch_; }

    /// The last buffer that a unit admitted now may use; next_batch() - 1 if there is none.
    [[nodiscard]] policy_version last_buffer() const noexcept {
        return {.value = clock_.current().value + options_.max_staleness};
    }

    [[nodiscard]] unit_counters const& counters() const noexcept { return counters_; }

    /// @pre next_batch() <= buffer <= next_batch() + max_staleness(); throws std::invalid_argument otherwise.
    [[nodiscard]] buffer_state state(policy_version buffer) const {
        std::uint32_t const offset = checked_offset(buffer);
        if ((has_empty_ >> offset & 1) != 0) {
            return buffer_state::pending;
        }
        return reserved_deadlines_[ring(offset)] == 0 ? buffer_state::ready : buffer_state::stuck;
    }

    /// @pre As for `state`, and 0 <= place.slot < batch_size().
    [[nodiscard]] slot_view<Handle> at(slot_place place) const requires std::copyable<Handle> {
        std::uint32_t const offset = checked_offset(place.buffer);
        detail::require(place.slot >= 0 && place.slot < options_.batch_size, "slot", place.slot, "below the batch size");
        return view({offset, static_cast<std::uint32_t>(place.slot)});
    }

    /// A copy of all slots from next_batch() to last_buffer(), batch_size() per buffer, front to back. Allocates.
    [[nodiscard]] std::vector<slot_view<Handle>> table() const requires std::copyable<Handle> {
        std::vector<slot_view<Handle>> copy;
        auto const buffers = static_cast<std::uint32_t>(std::popcount(legal_));
        copy.reserve(std::size_t{buffers} * slots_);
        for (std::uint32_t buffer = 0; buffer < buffers; ++buffer) {
            for (std::uint32_t slot = 0; slot < slots_; ++slot) {
                copy.push_back(view({buffer, slot}));
            }
        }
        return copy;
    }

    [[nodiscard]] Listener const& listener() const noexcept { return listener_; }

  private:
    // Inside, a buffer is its offset from next_batch_, and so is a unit's deadline, the last buffer that it may use: it may go
    // to buffer g iff deadline >= g. All of these lie in 0..max_staleness. A set of buffers or deadlines is one 64-bit mask,
    // shifted when a batch is taken; what is stored per buffer or deadline sits in a ring.
    struct position {
        std::uint32_t buffer = 0;
        std::uint32_t slot = 0;
    };
    // What every move needs, apart from what only reserve and take touch: with many units each is a cache miss.
    struct unit_record {
        std::uint64_t id = 0;
        std::uint32_t slot = 0;
        std::uint8_t ring = 0;
        std::uint8_t deadline = 0;             // ring index of the last buffer that the unit may use
        slot_state state = slot_state::empty;  // empty: the record is free
    };
    struct content {
        Handle handle{};
        policy_version version;
    };

    static slot_buffer_options const& checked(slot_buffer_options const& options) {
        detail::require(options.batch_size >= 1 && options.batch_size <= max_batch_size, "batch_size", options.batch_size,
                        "1 to 262144");
        detail::require(options.max_staleness >= 0 && options.max_staleness <= max_max_staleness, "max_staleness",
                        options.max_staleness, "0 to 63");
        detail::require(options.max_in_flight.value_or(1) >= 1, "max_in_flight", options.max_in_flight.value_or(1),
                        "at least 1, or absent");
        return options;
    }

    static std::uint32_t lowest(std::uint64_t mask) noexcept { return static_cast<std::uint32_t>(std::countr_zero(mask)); }
    static std::uint32_t highest(std::uint64_t mask) noexcept {
        return 63 - static_cast<std::uint32_t>(std::countl_zero(mask));
    }
    static std::uint64_t bit(std::uint32_t offset) noexcept { return std::uint64_t{1} << offset; }
    static std::uint64_t from_on(std::uint32_t offset) noexcept { return ~std::uint64_t{0} << offset; }

    std::uint32_t ring(std::uint32_t offset) const noexcept {
        std::uint32_t const index = head_ + offset;
        return index < buffers_ ? index : index - buffers_;
    }
    std::uint32_t offset_of_ring(std::uint32_t index) const noexcept {
        return index >= head_ ? index - head_ : index + buffers_ - head_;
    }
    std::uint32_t offset_of(policy_version buffer) const noexcept {
        return static_cast<std::uint32_t>(buffer.value - next_batch_.value);
    }
    std::uint32_t deadline_of(std::uint32_t unit) const noexcept { return offset_of_ring(units_[unit].deadline); }
    std::size_t reserved_tree(std::uint32_t buffer, std::uint32_t deadline) const noexcept {
        return std::size_t{ring(buffer)} * buffers_ + ring(deadline);
    }
    position position_of(std::uint32_t unit) const noexcept { return {offset_of_ring(units_[unit].ring), units_[unit].slot}; }
    std::uint32_t unit_in(position place) const noexcept {
        return unit_in_[std::size_t{ring(place.buffer)} * slots_ + place.slot];
    }
    bool front_is_ready() const noexcept { return (has_empty_ & 1) == 0 && reserved_deadlines_[head_] == 0; }

    void open(position place) noexcept {
        empty_.set(ring(place.buffer), place.slot);
        has_empty_ |= bit(place.buffer);
    }
    void close(position place) noexcept {
        empty_.clear(ring(place.buffer), place.slot);
        if (!empty_.any(ring(place.buffer))) {
            has_empty_ &= ~bit(place.buffer);
        }
    }
    void put(position place, std::uint32_t unit) noexcept {
        unit_in_[std::size_t{ring(place.buffer)} * slots_ + place.slot] = unit;
        units_[unit].ring = static_cast<std::uint8_t>(ring(place.buffer));
        units_[unit].slot = place.slot;
    }
    void put_reservation(position place, std::uint32_t unit, std::uint32_t deadline) noexcept {
        put(place, unit);
        reserved_.set(reserved_tree(place.buffer, deadline), place.slot);
        reserved_deadlines_[ring(place.buffer)] |= bit(deadline);
    }
    void lift_reservation(position place, std::uint32_t deadline) noexcept {
        std::size_t const tree = reserved_tree(place.buffer, deadline);
        reserved_.clear(tree, place.slot);
        if (!reserved_.any(tree)) {
            reserved_deadlines_[ring(place.buffer)] &= ~bit(deadline);
        }
    }
    void put_result(position place, std::uint32_t unit) noexcept {
        put(place, unit);
        occupied_.set(ring(place.buffer), place.slot);
        has_occupied_ |= bit(place.buffer);
    }
    void lift_result(position place) noexcept {
        occupied_.clear(ring(place.buffer), place.slot);
        if (!occupied_.any(ring(place.buffer))) {
            has_occupied_ &= ~bit(place.buffer);
        }
    }

    /// The first reservation in front of `gap` that may go there moves into it. Returns the place that is now empty.
    position fill_gap_from_front(position gap) noexcept {
        std::uint64_t const may_go_there = from_on(gap.buffer);
        for (std::uint32_t buffer = 0; buffer <= gap.buffer; ++buffer) {
            std::uint64_t deadlines = reserved_deadlines_[ring(buffer)] & may_go_there;
            if (deadlines == 0) {
                continue;
            }
            position from{buffer, slots_};
            std::uint32_t deadline = 0;  // known from the set: the unit's record, far away in memory, need not be read
            for (; deadlines != 0; deadlines &= deadlines - 1) {
                std::uint32_t const slot = reserved_.first(reserved_tree(buffer, lowest(deadlines)));
                if (slot < from.slot) {
                    from.slot = slot;
                    deadline = lowest(deadlines);
                }
            }
            if (buffer == gap.buffer && from.slot > gap.slot) {
                break;
            }
            std::uint32_t const unit = unit_in(from);
            lift_reservation(from, deadline);
            put_reservation(gap, unit, deadline);
            tell(slot_event_kind::moved_back, unit, from, gap);
            return from;
        }
        return gap;
    }

    void complete(std::uint32_t unit) noexcept {
        position const own = position_of(unit);
        lift_reservation(own, deadline_of(unit));
        open(fill_gap_from_front(own));
        std::uint32_t const buffer = lowest(has_empty_);  // legal: own was, and no empty place behind it comes first
        position const place{buffer, empty_.first(ring(buffer))};
        close(place);
        put_result(place, unit);
        units_[unit].state = slot_state::occupied;
        --counters_.in_flight;
        ++counters_.completed;
        tell(slot_event_kind::occupied, unit, own, place);
    }

    void drop(std::uint32_t unit, drop_reason reason) noexcept {
        position hole = position_of(unit);
        if (units_[unit].state == slot_state::reserved) {
            lift_reservation(hole, deadline_of(unit));
            --counters_.in_flight;
        } else {
            lift_result(hole);
            --counters_.completed;
        }
        ++counters_.dropped[static_cast<std::size_t>(reason)];
        tell(slot_event_kind::dropped, unit, hole, {}, reason);
        units_[unit].state = slot_state::empty;
        contents_[unit].handle = Handle{};
        free_units_.push_back(unit);

        while (std::uint64_t const later = has_occupied_ & from_on(hole.buffer) << 1) {
            std::uint32_t const buffer = lowest(later);
            position const from{buffer, occupied_.last(ring(buffer))};
            std::uint32_t const moved = unit_in(from);
            lift_result(from);
            put_result(hole, moved);
            tell(slot_event_kind::moved_forward, moved, from, hole);
            hole = from;
        }
        open(fill_gap_from_front(hole));
    }

    /// The front buffer, all of it occupied, becomes the empty last one.
    void rotate() noexcept {
        empty_.set_all(head_);
        occupied_.clear_all(head_);
        has_empty_ = has_empty_ >> 1 | bit(buffers_ - 1);
        has_occupied_ >>= 1;
        legal_ >>= 1;
        for (std::uint64_t& deadlines : reserved_deadlines_) {
            deadlines >>= 1;
        }
        head_ = ring(1);
        ++next_batch_.value;
    }

    ticket_status status_of(unit_ticket const& ticket) const noexcept {
        if (ticket.origin != units_.data() || ticket.index >= units_.size() || ticket.id >= next_id_) {
            return ticket_status::foreign;
        }
        unit_record const& record = units_[ticket.index];
        if (record.id != ticket.id || record.state == slot_state::empty) {
            return ticket_status::gone;
        }
        return record.state == slot_state::reserved ? ticket_status::in_flight : ticket_status::duplicate;
    }

    std::uint32_t checked_offset(policy_version buffer) const {
        std::int64_t const offset = staleness(buffer, next_batch_);
        detail::require(offset >= 0 && offset <= options_.max_staleness, "buffer", buffer.value,
                        "one of the max_staleness + 1 from next_batch() on");
        return static_cast<std::uint32_t>(offset);
    }

    slot_view<Handle> view(position place) const {
        std::uint32_t const unit = unit_in(place);
        unit_record const& record = units_[unit];
        bool const is_here =
            record.state != slot_state::empty && record.ring == ring(place.buffer) && record.slot == place.slot;
        return is_here ? slot_view<Handle>{record.state, contents_[unit].handle, record.id, contents_[unit].version}
                       : slot_view<Handle>{};
    }

    void tell(slot_event_kind kind, std::uint32_t unit, position from, position to, drop_reason reason = {}) noexcept {
        if constexpr (is_watched) {
            auto const outside = [&](position place) { return slot_place{{next_batch_.value + place.buffer}, place.slot}; };
            listener_(slot_event<Handle>{.kind = kind,
                                         .handle = &contents_[unit].handle,
                                         .id = units_[unit].id,
                                         .version = contents_[unit].version,
                                         .from = outside(from),
                                         .to = outside(to),
                                         .reason = reason});
        }
    }

    slot_buffer_options options_;
    [[no_unique_address]] Listener listener_;
    version_clock clock_;
    policy_version next_batch_;
    unit_counters counters_;
    std::uint64_t next_id_ = 0;
    std::uint32_t buffers_;
    std::uint32_t slots_;
    std::uint32_t head_ = 0;  // ring index of next_batch_
    std::uint64_t legal_;
    std::uint64_t has_empty_;
    std::uint64_t has_occupied_ = 0;
    std::vector<std::uint64_t> reserved_deadlines_;  // per ring buffer: deadlines of its reservations
    detail::bit_trees empty_;
    detail::bit_trees occupied_;
    detail::bit_trees reserved_;  // per ring buffer and deadline
    std::vector<std::uint32_t> unit_in_;
    std::vector<unit_record> units_;
    std::vector<content> contents_;
    std::vector<std::uint32_t> free_units_;
};

static_assert(staleness_control<slot_buffer<int>>);

ASYNCRL_END_NAMESPACE
