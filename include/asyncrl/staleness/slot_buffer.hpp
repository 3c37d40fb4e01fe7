// SPDX-License-Identifier: Apache-2.0
/// @file Reserve-Occupy: bounded staleness without drops, as a table of slots that one can watch.
#pragma once

#include <asyncrl/config.hpp>
#include <asyncrl/error.hpp>
#include <asyncrl/fwd.hpp>
#include <asyncrl/staleness/detail/batch_clock.hpp>
#include <asyncrl/staleness/detail/bit_trees.hpp>
#include <asyncrl/staleness/policy_version.hpp>
#include <asyncrl/staleness/unit.hpp>

#include <algorithm>
#include <bit>
#include <chrono>
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
    ready,    ///< holds a batch of completed units
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
    reserved,       ///< a unit was admitted, or one that had been displaced got a slot again: `to`
    occupied,       ///< a unit completed: its reservation `from` became a result at `to`
    moved_back,     ///< a reservation gave its place to results and went into a gap behind: `from`, `to`
    moved_forward,  ///< a completed unit filled the hole of a dropped one: `from`, `to`
    dropped,        ///< a unit left `from` for `reason`
    taken,          ///< a unit left `from` for training
    published,      ///< `version` became current; all other members are empty
    displaced,      ///< a unit in flight lost its slot `from` to a result, to the end of its buffer or to a retag
};

/// One move. `handle` points into the buffer and is valid during the call only; `from`, `to` and `reason` mean something where
/// the kind names them. A unit that was displaced leaves from slot -1, that is from none.
///
/// To draw: put the unit at `to`, and empty `from` if it still holds the same unit; a move told before may have filled it.
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
    std::int64_t batch_size = 1;     ///< units per batch, at least 1; with the surplus at most 262,144
    std::int64_t max_staleness = 1;  ///< batches, 0 (synchronous) to 63
    /// Units generated at the same time, at least 1; without a value only the slots limit them. A matter of speed, not of
    /// staleness: (max_staleness + 1) * batch_size units fit in any case.
    std::optional<std::int64_t> max_in_flight = std::nullopt;
    /// A publish may be left out until that many batches have been trained since the last one. Longer than max_staleness + 1
    /// would stall and is refused.
    std::int64_t publish_interval = 1;
    /// Slots per buffer beyond batch_size, so that the slowest units can be left out (they are dropped as
    /// drop_reason::oversampled). 0: no unit is ever dropped for being slow.
    std::int64_t surplus = 0;
    std::optional<std::int64_t> max_staleness_limit = std::nullopt;  ///< for set_max_staleness; default max_staleness
    /// For `expire_stuck`: how long the trainer waits for a stuck buffer before it goes on without the units in flight.
    std::optional<std::chrono::duration<double>> stuck_timeout = std::nullopt;
    bool stuck_restarts = false;        ///< whether each result in that buffer starts the wait anew
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
/// its training. max_staleness = 0 is synchronous training. With a publish_interval u up to u batches are taken per version.
///
/// With a surplus a buffer is ready as soon as batch_size of its slots are occupied. From then on it takes part in no move of
/// reservations; its units in flight may still complete into earlier or later buffers, where they find an empty slot or else
/// displace a reservation, which stays in flight without a slot; so does one whose buffer is taken.
///
/// A slot holds the caller's handle (an index, a pointer, an id), never the payload; a group of rollouts that trains together
/// is one unit with one handle. `Handle` is moved from caller to buffer to caller, not copied.
///
/// Promises: a taken unit has staleness <= max_staleness; without a surplus `occupy` always finds a place; every unit leaves
/// once, taken or dropped for a reason that is counted; a ticket whose unit has left changes nothing; if admission goes on and
/// every unit in flight completes, the next batch becomes ready. Order within a buffer is not one of them: after a publish with
/// slots to spare, reservations and results may alternate.
///
/// Cost: reserve, occupy, discard and filter O(max_staleness + log batch_size), take O(slots per buffer + displaced units),
/// publish O(max_staleness). All memory is allocated by the constructor: about 36 + max_staleness / 8 bytes per slot, and the
/// handle.
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
          clock_(options.first_version, options.publish_interval),
          buffers_(static_cast<std::uint32_t>(max_staleness_limit(options)) + 1),
          slots_(static_cast<std::uint32_t>(options.batch_size + options.surplus)),
          has_empty_(~std::uint64_t{0} >> (64 - buffers_)),
          reserved_deadlines_(buffers_),
          fill_(buffers_, fill{.empty = slots_}),
          empty_(buffers_, slots_),
          occupied_(buffers_, slots_),
          reserved_(std::size_t{buffers_} * buffers_, slots_),
          unit_in_(std::size_t{buffers_} * slots_),
          units_(unit_in_.size()),
          contents_(unit_in_.size()),
          free_units_(unit_in_.size()),
          scratch_(slots_) {
        for (std::uint32_t ring = 0; ring < buffers_; ++ring) {
            empty_.set_all(ring);
        }
        for (std::size_t i = 0; i < free_units_.size(); ++i) {
            free_units_[i] = static_cast<std::uint32_t>(free_units_.size() - 1 - i);
        }
        unslotted_.reserve(options.surplus > 0 ? units_.size() : 0);
        update_legal();
    }

    slot_buffer(slot_buffer&&) = default;
    slot_buffer(slot_buffer const&) = delete;
    slot_buffer& operator=(slot_buffer&&) = delete;
    slot_buffer& operator=(slot_buffer const&) = delete;
    ~slot_buffer() = default;

    // --- admission and results -----------------------------------------------------------------------------------------

    /// How many units could be admitted now, one after the other.
    [[nodiscard]] std::int64_t admissible() const noexcept {
        std::int64_t places = free_places();
        if (options_.max_in_flight) {
            places = std::min(places, *options_.max_in_flight - counters_.in_flight);
        }
        return std::max<std::int64_t>(places, 0);
    }

    /// Whether a unit would be admitted now: open, no_place or max_in_flight.
    [[nodiscard]] admission_status admission() const noexcept {
        return admissible() > 0    ? admission_status::open
               : free_places() > 0 ? admission_status::max_in_flight
                                   : admission_status::no_place;
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
        close({buffer, slot});
        put_reservation({buffer, slot}, unit, deadline);
        ++counters_.admitted;
        ++counters_.in_flight;
        tell(slot_event_kind::reserved, unit, {}, {buffer, slot});
        return ticket_of(unit);
    }

    /// The unit's result is there. Statuses: ok, oversampled, duplicate, gone, foreign.
    ticket_status occupy(unit_ticket const& ticket) noexcept {
        ticket_status const status = status_of(ticket);
        return status == ticket_status::in_flight ? complete(ticket.index) : status;
    }

    /// The same, and `result` replaces the handle that was given to `reserve`; unless ok, `result` is destroyed.
    ticket_status occupy(unit_ticket const& ticket, Handle result) noexcept {
        ticket_status const status = status_of(ticket);
        if (status != ticket_status::in_flight) {
            return status;
        }
        contents_[ticket.index].handle = std::move(result);
        return complete(ticket.index);
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

    /// Counts the unit's staleness from `oldest` on, a newer version than its own; that gives others more room. Legal when no
    /// token of an older version will be trained: none was generated before the engine swapped, all of them are masked out,
    /// or the members of a group that had them were not selected. The ticket stays valid, though it names the old version.
    ///
    /// A reservation gives its slot up as a dropped one does, to results from buffers that it may use itself, and takes the
    /// last slot that it may use now. Statuses: ok, gone, foreign. Throws std::invalid_argument for a version older than the
    /// unit's, or not published yet.
    ticket_status retag(unit_ticket const& ticket, policy_version oldest) {
        ticket_status const status = status_of(ticket);
        if (status == ticket_status::gone || status == ticket_status::foreign) {
            return status;
        }
        detail::require(oldest >= contents_[ticket.index].version && oldest <= version(), "retagged version", oldest.value,
                        "from the unit's own to the current one");
        contents_[ticket.index].version = oldest;
        postpone(ticket.index, oldest.value + options_.max_staleness - next_batch().value);
        return ticket_status::ok;
    }

    /// Units in flight that can no longer be trained, unless a completed unit is dropped: every buffer that they may use is
    /// ready. Ask after each completion, and abort them. Calls visit(unit_ticket const&, Handle const&), which must not call
    /// the buffer; only with a surplus are there any. O(slots of these buffers + displaced units).
    template <typename Visit>
    void for_each_doomed(Visit visit) const {
        if (options_.surplus == 0) {
            return;
        }
        auto const ready = static_cast<std::uint32_t>(std::countr_one(ready_));
        auto const tell_of = [&](std::uint32_t unit) { visit(ticket_of(unit), std::as_const(contents_[unit].handle)); };
        for (std::uint32_t buffer = 0; buffer < ready; ++buffer) {
            for (std::uint32_t slot = 0; slot < slots_ && reserved_deadlines_[ring(buffer)] != 0; ++slot) {
                std::uint32_t const unit = unit_in({buffer, slot});
                if (holds({buffer, slot}, unit_state::reserved) && deadline_of(unit) < ready) {
                    tell_of(unit);
                }
            }
        }
        for (std::uint32_t const unit : unslotted_) {
            if (units_[unit].state == unit_state::expired || deadline_of(unit) < ready) {
                tell_of(unit);
            }
        }
    }

    // --- training ------------------------------------------------------------------------------------------------------

    /// Whether the next batch is ready and none is in training.
    [[nodiscard]] bool can_take() const noexcept { return clock_.may_take() && (ready_ & 1) != 0; }

    /// Takes the next batch into `batch`, in slot order, and returns its number; nothing, if `can_take()` is false.
    ///
    /// @pre `batch` holds exactly `batch_size()` elements; throws std::invalid_argument otherwise.
    std::optional<policy_version> take(std::span<taken_unit<Handle>> batch) {
        detail::require(static_cast<std::int64_t>(batch.size()) == batch_size(), "size of the span for a batch", batch.size(),
                        "the batch size");
        if (!can_take()) {
            return std::nullopt;
        }
        policy_version const number = next_batch();
        auto place = batch.begin();
        for (std::uint32_t slot = 0; slot < slots_; ++slot) {
            std::uint32_t const unit = unit_in({0, slot});
            if (options_.surplus > 0 && !holds({0, slot}, unit_state::occupied)) {
                if (holds({0, slot}, unit_state::reserved)) {
                    displace({0, slot});
                }
                continue;
            }
            content& held = contents_[unit];
            tell(slot_event_kind::taken, unit, {0, slot}, {});
            *place++ = {.handle = std::move(held.handle),
                        .id = units_[unit].id,
                        .version = held.version,
                        .staleness = staleness(number, held.version)};
            units_[unit].state = unit_state::free;
            free_units_.push_back(unit);
        }
        counters_.completed -= options_.batch_size;
        counters_.taken += options_.batch_size;
        rotate();
        return number;
    }

    /// When `take` finds the next buffer stuck, ask this: it starts the clock of that wait, and once the buffer has been stuck
    /// for stuck_timeout it drops every unit in flight of that buffer, and of no other, as drop_reason::stuck_timeout. Returns
    /// how many; visit(unit_ticket const&, Handle const&), which must not call the buffer, is called before each.
    ///
    /// `now` is any steady time; it must not go back. The clock stops when the buffer is not stuck any more.
    template <typename Visit>
    std::int64_t expire_stuck(std::chrono::duration<double> now, Visit visit) {
        if (!options_.stuck_timeout || !clock_.may_take() || !is_stuck(0)) {
            stuck_since_.reset();
            return 0;
        }
        stuck_since_ = stuck_since_.value_or(now);
        if (now - *stuck_since_ < *options_.stuck_timeout) {
            return 0;
        }
        std::uint32_t count = 0;
        for (std::uint32_t slot = 0; slot < slots_; ++slot) {
            if (holds({0, slot}, unit_state::reserved)) {
                scratch_[count++] = unit_in({0, slot});
            }
        }
        for (std::uint32_t i = 0; i < count; ++i) {
            visit(ticket_of(scratch_[i]), std::as_const(contents_[scratch_[i]].handle));
            drop(scratch_[i], drop_reason::stuck_timeout);
        }
        return count;
    }
    std::int64_t expire_stuck(std::chrono::duration<double> now) {
        return expire_stuck(now, [](unit_ticket const&, Handle const&) {});
    }

    /// Whether a batch was taken whose training has not ended with a publish.
    [[nodiscard]] bool in_training() const noexcept { return clock_.in_training(); }

    /// Announces the version that the batches in training make, and returns it. Until the commit units are stamped with the
    /// version before. Throws std::invalid_argument if no batch is in training or a version is pending.
    policy_version begin_publish() { return clock_.begin(); }

    /// The weights are in place: the pending version becomes current, and its units may use one more buffer (as many more as
    /// batches made it).
    policy_version commit_publish() {
        policy_version const version = clock_.commit();
        update_legal();
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

    /// Sets the bound for units admitted from now on; those admitted before keep theirs. Throws std::invalid_argument outside 0
    /// to max_staleness_limit, and for a bound below publish_interval - 1.
    void set_max_staleness(std::int64_t max_staleness) {
        detail::require(max_staleness >= 0 && max_staleness < buffers_, "max_staleness", max_staleness,
                        "0 to max_staleness_limit");
        detail::require(max_staleness >= options_.publish_interval - 1, "max_staleness", max_staleness,
                        "at least publish_interval - 1");
        options_.max_staleness = max_staleness;
        update_legal();
    }

    // --- watching ------------------------------------------------------------------------------------------------------

    [[nodiscard]] std::int64_t batch_size() const noexcept { return options_.batch_size; }
    [[nodiscard]] std::int64_t slots_per_buffer() const noexcept { return slots_; }
    [[nodiscard]] std::int64_t max_staleness() const noexcept { return options_.max_staleness; }

    /// With the bound as it was set last.
    [[nodiscard]] slot_buffer_options const& options() const noexcept { return options_; }
    [[nodiscard]] version_clock const& clock() const noexcept { return clock_.versions(); }

    /// The version that units are stamped with now.
    [[nodiscard]] policy_version version() const noexcept { return clock_.current(); }

    /// The first buffer not taken.
    [[nodiscard]] policy_version next_batch() const noexcept { return clock_.next_batch(); }

    /// The last buffer that a unit admitted now may use; next_batch() - 1 if there is none.
    [[nodiscard]] policy_version last_buffer() const noexcept {
        return {.value = clock_.current().value + options_.max_staleness};
    }

    [[nodiscard]] unit_counters const& counters() const noexcept { return counters_; }

    /// Units in flight that have lost their slot; only with a surplus are there any.
    [[nodiscard]] std::int64_t displaced() const noexcept { return static_cast<std::int64_t>(unslotted_.size()); }

    /// @pre next_batch() <= buffer <= next_batch() + max_staleness (its limit, if one was given); throws
    /// std::invalid_argument otherwise.
    [[nodiscard]] buffer_state state(policy_version buffer) const {
        std::uint32_t const offset = checked_offset(buffer);
        return is_ready(offset) ? buffer_state::ready : is_stuck(offset) ? buffer_state::stuck : buffer_state::pending;
    }

    /// @pre As for `state`, and 0 <= place.slot < slots_per_buffer().
    [[nodiscard]] slot_view<Handle> at(slot_place place) const requires std::copyable<Handle> {
        std::uint32_t const offset = checked_offset(place.buffer);
        detail::require(place.slot >= 0 && place.slot < slots_, "slot", place.slot, "below the slots per buffer");
        return view({offset, static_cast<std::uint32_t>(place.slot)});
    }

    /// A copy of all slots from next_batch() to last_buffer() (farther if the bound was lowered and units have reached there),
    /// slots_per_buffer() per buffer, front to back. Allocates.
    [[nodiscard]] std::vector<slot_view<Handle>> table() const requires std::copyable<Handle> {
        std::vector<slot_view<Handle>> copy;
        auto const buffers = static_cast<std::uint32_t>(std::popcount(open_));
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
    // Inside, a buffer is its offset from next_batch(), and so is a unit's deadline, the last buffer that it may use: it may go
    // to buffer g iff deadline >= g. All of these lie in 0..max_staleness_limit. A set of buffers or deadlines is one 64-bit
    // mask, shifted when a batch is taken; what is stored per buffer or deadline sits in a ring.
    static constexpr std::uint32_t no_slot = 0xffffffff;
    struct position {
        std::uint32_t buffer = 0;
        std::uint32_t slot = no_slot;
    };
    // What every move needs, apart from what only reserve and take touch: with many units each is a cache miss.
    enum class unit_state : std::uint8_t {
        free,
        reserved,
        unslotted,  // in flight without a slot
        expired,    // the same, and the last buffer that it may use is taken
        occupied,
    };
    struct unit_record {
        std::uint64_t id = 0;
        std::uint32_t slot = 0;  // of an unslotted or expired unit its index in unslotted_
        std::uint8_t ring = 0;
        std::uint8_t deadline = 0;  // ring index of the last buffer that the unit may use; nothing if it is expired
        unit_state state = unit_state::free;
    };
    struct fill {
        std::uint32_t empty = 0;
        std::uint32_t occupied = 0;
    };
    struct content {
        Handle handle{};
        policy_version version;
    };

    static std::int64_t max_staleness_limit(slot_buffer_options const& options) {
        return options.max_staleness_limit.value_or(options.max_staleness);
    }

    static slot_buffer_options const& checked(slot_buffer_options const& options) {
        detail::require(options.batch_size >= 1 && options.batch_size <= max_batch_size, "batch_size", options.batch_size,
                        "1 to 262144");
        detail::require(options.max_staleness >= 0 && options.max_staleness <= max_max_staleness, "max_staleness",
                        options.max_staleness, "0 to 63");
        std::int64_t const limit = max_staleness_limit(options);
        detail::require(limit >= options.max_staleness && limit <= max_max_staleness, "max_staleness_limit", limit,
                        "max_staleness to 63");
        detail::require(options.max_in_flight.value_or(1) >= 1, "max_in_flight", options.max_in_flight.value_or(1),
                        "at least 1, or absent");
        detail::require(options.publish_interval >= 1 && options.publish_interval <= options.max_staleness + 1,
                        "publish_interval", options.publish_interval, "1 to max_staleness + 1");
        detail::require(options.surplus >= 0 && options.surplus <= max_batch_size - options.batch_size, "surplus",
                        options.surplus, "0 to 262144 - batch_size");
        double const timeout = options.stuck_timeout.value_or(std::chrono::duration<double>(0)).count();
        detail::require(timeout >= 0, "stuck_timeout", timeout, "at least 0 seconds, or absent");
        return options;
    }

    static std::uint32_t lowest(std::uint64_t mask) noexcept { return static_cast<std::uint32_t>(std::countr_zero(mask)); }
    static std::uint32_t highest(std::uint64_t mask) noexcept {
        return 63 - static_cast<std::uint32_t>(std::countl_zero(mask));
    }
    static std::uint64_t bit(std::uint32_t offset) noexcept { return std::uint64_t{1} << offset; }
    static std::uint64_t from_on(std::uint32_t offset) noexcept { return ~std::uint64_t{0} << offset; }
    static std::uint64_t up_to(std::uint32_t offset) noexcept { return ~std::uint64_t{0} >> (63 - offset); }

    std::uint32_t ring(std::uint32_t offset) const noexcept {
        std::uint32_t const index = head_ + offset;
        return index < buffers_ ? index : index - buffers_;
    }
    std::uint32_t offset_of_ring(std::uint32_t index) const noexcept {
        return index >= head_ ? index - head_ : index + buffers_ - head_;
    }
    std::uint32_t offset_of(policy_version buffer) const noexcept {
        return static_cast<std::uint32_t>(buffer.value - next_batch().value);
    }
    std::uint32_t deadline_of(std::uint32_t unit) const noexcept { return offset_of_ring(units_[unit].deadline); }
    std::size_t reserved_tree(std::uint32_t buffer, std::uint32_t deadline) const noexcept {
        return std::size_t{ring(buffer)} * buffers_ + ring(deadline);
    }
    position position_of(std::uint32_t unit) const noexcept { return {offset_of_ring(units_[unit].ring), units_[unit].slot}; }
    std::uint32_t unit_in(position place) const noexcept {
        return unit_in_[std::size_t{ring(place.buffer)} * slots_ + place.slot];
    }
    bool holds(position place, unit_state state) const noexcept {
        unit_record const& unit = units_[unit_in(place)];
        return unit.state == state && unit.ring == ring(place.buffer) && unit.slot == place.slot;
    }
    bool is_ready(std::uint32_t buffer) const noexcept { return (ready_ & bit(buffer)) != 0; }
    bool is_stuck(std::uint32_t buffer) const noexcept { return ((ready_ | has_empty_) & bit(buffer)) == 0; }

    unit_ticket ticket_of(std::uint32_t unit) const noexcept {
        return {.id = units_[unit].id, .version = contents_[unit].version, .origin = units_.data(), .index = unit};
    }

    /// Slots for units admitted now. Where completed units fill every buffer, a further one could never be trained.
    std::int64_t free_places() const noexcept {
        return (legal_ & ~ready_) == 0 ? 0 : legal_empty_ - static_cast<std::int64_t>(unslotted_.size());
    }

    void update_legal() noexcept {
        std::int64_t const buffers = last_buffer().value - next_batch().value + 1;
        legal_ = buffers > 0 ? up_to(static_cast<std::uint32_t>(buffers - 1)) : 0;
        open_ |= legal_;
        legal_empty_ = 0;
        for (std::uint32_t buffer = 0; buffer < buffers; ++buffer) {
            legal_empty_ += fill_[ring(buffer)].empty;
        }
    }

    void open(position place) noexcept {
        empty_.set(ring(place.buffer), place.slot);
        ++fill_[ring(place.buffer)].empty;
        legal_empty_ += static_cast<std::int64_t>(legal_ >> place.buffer & 1);
        has_empty_ |= bit(place.buffer);
    }
    void close(position place) noexcept {
        empty_.clear(ring(place.buffer), place.slot);
        legal_empty_ -= static_cast<std::int64_t>(legal_ >> place.buffer & 1);
        if (--fill_[ring(place.buffer)].empty == 0) {
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
        units_[unit].state = unit_state::reserved;
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
        units_[unit].state = unit_state::occupied;
        occupied_.set(ring(place.buffer), place.slot);
        has_occupied_ |= bit(place.buffer);
        if (++fill_[ring(place.buffer)].occupied == options_.batch_size) {
            ready_ |= bit(place.buffer);
        }
    }
    void lift_result(position place) noexcept {
        occupied_.clear(ring(place.buffer), place.slot);
        ready_ &= ~bit(place.buffer);
        if (--fill_[ring(place.buffer)].occupied == 0) {
            has_occupied_ &= ~bit(place.buffer);
        }
    }

    /// The reservation in `place` stays in flight without a slot.
    void displace(position place) noexcept {
        std::uint32_t const unit = unit_in(place);
        lift_reservation(place, deadline_of(unit));
        units_[unit].state = unit_state::unslotted;
        units_[unit].slot = static_cast<std::uint32_t>(unslotted_.size());
        unslotted_.push_back(unit);
        tell(slot_event_kind::displaced, unit, place, {});
    }
    void forget_unslotted(std::uint32_t unit) noexcept {
        unslotted_[units_[unit].slot] = unslotted_.back();
        units_[unslotted_.back()].slot = units_[unit].slot;
        unslotted_.pop_back();
    }

    /// The first reservation in front of `gap` that may go there moves into it. Returns the place that is now empty.
    position fill_gap_from_front(position gap) noexcept {
        std::uint64_t const may_go_there = from_on(gap.buffer);
        for (std::uint32_t buffer = 0; buffer <= gap.buffer; ++buffer) {
            std::uint64_t deadlines = reserved_deadlines_[ring(buffer)] & may_go_there;
            if (deadlines == 0 || is_ready(buffer)) {
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

    ticket_status complete(std::uint32_t unit) noexcept {
        bool const has_slot = units_[unit].state == unit_state::reserved;
        std::uint64_t const usable = units_[unit].state == unit_state::expired ? 0 : up_to(deadline_of(unit)) & ~ready_;
        if (usable == 0) {
            drop(unit, drop_reason::oversampled);
            return ticket_status::oversampled;
        }
        position own;
        if (has_slot) {
            own = position_of(unit);
            lift_reservation(own, deadline_of(unit));
            open(is_ready(own.buffer) ? own : fill_gap_from_front(own));
        } else {
            forget_unslotted(unit);
        }
        position place;
        if (std::uint64_t const with_empty = has_empty_ & usable; with_empty != 0) {
            place.buffer = lowest(with_empty);
            place.slot = empty_.first(ring(place.buffer));
            close(place);
        } else {  // only with a surplus: without one its own slot is there
            place.buffer = lowest(usable);
            std::uint32_t const deadline = highest(reserved_deadlines_[ring(place.buffer)]);
            place.slot = reserved_.last(reserved_tree(place.buffer, deadline));
            displace(place);
        }
        put_result(place, unit);
        --counters_.in_flight;
        ++counters_.completed;
        tell(slot_event_kind::occupied, unit, own, place);
        watch_front(place.buffer == 0 && options_.stuck_restarts);
        return ticket_status::ok;
    }

    /// Completed units from later buffers, up to buffer `last`, move forward into the hole. Returns where the hole is then.
    position fill_hole_from_behind(position hole, std::uint32_t last) noexcept {
        while (std::uint64_t const later = has_occupied_ & from_on(hole.buffer) << 1 & up_to(last)) {
            std::uint32_t const buffer = lowest(later);
            position const from{buffer, occupied_.last(ring(buffer))};
            std::uint32_t const moved = unit_in(from);
            lift_result(from);
            put_result(hole, moved);
            tell(slot_event_kind::moved_forward, moved, from, hole);
            hole = from;
        }
        return hole;
    }

    void drop(std::uint32_t unit, drop_reason reason) noexcept {
        unit_state const state = units_[unit].state;
        bool const has_slot = state == unit_state::reserved || state == unit_state::occupied;
        position const own = has_slot ? position_of(unit) : position{};
        if (state == unit_state::reserved) {
            lift_reservation(own, deadline_of(unit));
        } else if (state == unit_state::occupied) {
            lift_result(own);
        } else {
            forget_unslotted(unit);
        }
        --(state == unit_state::occupied ? counters_.completed : counters_.in_flight);
        ++counters_.dropped[static_cast<std::size_t>(reason)];
        tell(slot_event_kind::dropped, unit, own, {}, reason);
        units_[unit].state = unit_state::free;
        contents_[unit].handle = Handle{};
        free_units_.push_back(unit);
        if (has_slot) {
            open(is_ready(own.buffer) ? own : fill_gap_from_front(fill_hole_from_behind(own, 63)));
        }
        watch_front(false);
    }

    /// Moves a unit's deadline to offset `to`, unless it is as late already.
    void postpone(std::uint32_t unit, std::int64_t to) noexcept {
        unit_record& record = units_[unit];
        std::int64_t const from = record.state == unit_state::expired ? -1 : std::int64_t{deadline_of(unit)};
        if (to <= from) {
            return;
        }
        auto const deadline = static_cast<std::uint32_t>(to);
        if (record.state != unit_state::reserved) {
            record.deadline = static_cast<std::uint8_t>(ring(deadline));
            record.state = record.state == unit_state::occupied ? unit_state::occupied : unit_state::unslotted;
            return;
        }
        position const own = position_of(unit);
        lift_reservation(own, static_cast<std::uint32_t>(from));
        record.deadline = static_cast<std::uint8_t>(ring(deadline));
        std::uint64_t const behind = up_to(deadline) & ~up_to(own.buffer);
        if (is_ready(own.buffer) || ((has_occupied_ | (has_empty_ & ~ready_)) & behind) == 0) {
            put_reservation(own, unit, deadline);
            return;
        }
        tell(slot_event_kind::displaced, unit, own, {});
        position const hole = fill_hole_from_behind(own, deadline);
        open(hole);
        std::uint32_t const buffer = highest(has_empty_ & up_to(deadline) & ~ready_);
        position const place{buffer, empty_.last(ring(buffer))};
        close(place);
        put_reservation(place, unit, deadline);
        tell(slot_event_kind::reserved, unit, {}, place);
        if (place.buffer != hole.buffer || place.slot != hole.slot) {
            close(hole);
            open(fill_gap_from_front(hole));
        }
        watch_front(false);
    }

    /// Stops the clock of the stuck front buffer if it is not stuck any more, or should start anew.
    void watch_front(bool restart) noexcept {
        if (stuck_since_ && (restart || !is_stuck(0))) {
            stuck_since_.reset();
        }
    }

    /// The front buffer, from which all units have gone, becomes the empty last one.
    void rotate() noexcept {
        for (std::uint32_t const unit : unslotted_) {
            if (units_[unit].state == unit_state::unslotted && deadline_of(unit) == 0) {
                units_[unit].state = unit_state::expired;
            }
        }
        empty_.set_all(head_);
        occupied_.clear_all(head_);
        fill_[head_] = {.empty = slots_};
        has_empty_ = has_empty_ >> 1 | bit(buffers_ - 1);
        has_occupied_ >>= 1;
        ready_ >>= 1;
        open_ >>= 1;
        for (std::uint64_t& deadlines : reserved_deadlines_) {
            deadlines >>= 1;
        }
        head_ = ring(1);
        clock_.take();
        update_legal();
    }

    ticket_status status_of(unit_ticket const& ticket) const noexcept {
        if (ticket.origin != units_.data() || ticket.index >= units_.size() || ticket.id >= next_id_) {
            return ticket_status::foreign;
        }
        unit_record const& record = units_[ticket.index];
        if (record.id != ticket.id || record.state == unit_state::free) {
            return ticket_status::gone;
        }
        return record.state == unit_state::occupied ? ticket_status::duplicate : ticket_status::in_flight;
    }

    std::uint32_t checked_offset(policy_version buffer) const {
        std::int64_t const offset = staleness(buffer, next_batch());
        detail::require(offset >= 0 && offset < buffers_, "buffer", buffer.value,
                        "one of the max_staleness + 1 from next_batch() on");
        return static_cast<std::uint32_t>(offset);
    }

    slot_view<Handle> view(position place) const {
        std::uint32_t const unit = unit_in(place);
        bool const is_occupied = holds(place, unit_state::occupied);
        if (!is_occupied && !holds(place, unit_state::reserved)) {
            return {};
        }
        return {is_occupied ? slot_state::occupied : slot_state::reserved, contents_[unit].handle, units_[unit].id,
                contents_[unit].version};
    }

    void tell(slot_event_kind kind, std::uint32_t unit, position from, position to, drop_reason reason = {}) noexcept {
        if constexpr (is_watched) {
            auto const outside = [&](position place) {
                return slot_place{{next_batch().value + place.buffer}, place.slot == no_slot ? -1 : std::int64_t{place.slot}};
            };
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
    detail::batch_clock clock_;
    unit_counters counters_;
    std::uint64_t next_id_ = 0;
    std::uint32_t buffers_;
    std::uint32_t slots_;
    std::uint32_t head_ = 0;   // ring index of next_batch()
    std::uint64_t legal_ = 0;  // buffers for units admitted now
    std::uint64_t open_ = 0;   // buffers that have ever been legal
    std::int64_t legal_empty_ = 0;
    std::uint64_t has_empty_;
    std::uint64_t has_occupied_ = 0;
    std::uint64_t ready_ = 0;
    std::optional<std::chrono::duration<double>> stuck_since_;
    std::vector<std::uint64_t> reserved_deadlines_;  // per ring buffer: deadlines of its reservations
    std::vector<fill> fill_;                         // per ring buffer
    detail::bit_trees empty_;
    detail::bit_trees occupied_;
    detail::bit_trees reserved_;  // per ring buffer and deadline
    std::vector<std::uint32_t> unit_in_;
    std::vector<unit_record> units_;
    std::vector<content> contents_;
    std::vector<std::uint32_t> free_units_;
    std::vector<std::uint32_t> unslotted_;
    std::vector<std::uint32_t> scratch_;
};

static_assert(staleness_control<slot_buffer<int>>);

ASYNCRL_END_NAMESPACE
