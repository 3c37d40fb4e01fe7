// SPDX-License-Identifier: Apache-2.0
/// @file Bounded staleness without slots: deadlines are counted, and which units make a batch is decided when it is taken.
#pragma once

#include <asyncrl/config.hpp>
#include <asyncrl/error.hpp>
#include <asyncrl/fwd.hpp>
#include <asyncrl/staleness/detail/batch_clock.hpp>
#include <asyncrl/staleness/policy_version.hpp>
#include <asyncrl/staleness/unit.hpp>

#include <algorithm>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

ASYNCRL_BEGIN_NAMESPACE

struct deadline_ledger_options {
    std::int64_t batch_size = 1;     ///< units per batch, at least 1
    std::int64_t max_staleness = 1;  ///< batches, 0 (synchronous) to 1023
    /// Units generated at the same time, at least 1; without a value only the batches limit them.
    std::optional<std::int64_t> max_in_flight = std::nullopt;
    /// Batches beyond the one that starts from the current version for which units are admitted; without a value as many as
    /// max_staleness. A smaller one keeps the usual staleness below the bound, and a straggler may still use all of it.
    std::optional<std::int64_t> pipeline_depth = std::nullopt;
    /// A publish may be left out until that many batches have been trained since the last one. Longer than
    /// max_staleness + 1, or than pipeline_depth + 1, would stall and is refused.
    std::int64_t publish_interval = 1;
    /// Units per batch that are admitted beyond batch_size so that the slowest can be left out (they are dropped as
    /// drop_reason::oversampled). 0: no unit is ever dropped for being slow.
    std::int64_t surplus = 0;
    std::optional<std::int64_t> batch_size_limit = std::nullopt;     ///< for set_batch_size; default batch_size
    std::optional<std::int64_t> max_staleness_limit = std::nullopt;  ///< for set_max_staleness; default max_staleness
    policy_version first_version = {};  ///< version and batch to start from: of a resumed run, the version it restored
};

enum class readiness_state : std::uint8_t {
    pending,  ///< too few units are completed
    blocked,  ///< enough are completed, but training them now would leave too few batches for some unit in flight
    ready,
};

/// Whether the next batch can be made, and if not, what it really waits for.
struct batch_readiness {
    readiness_state state = readiness_state::pending;
    std::int64_t missing = 0;  ///< if pending: completions that are missing
    /// If blocked, the blocking certificate: of the `blockers` units in flight that must be trained in batch `deadline` or
    /// before, `excess` must complete (or leave). No other unit in flight holds the batch up at this moment.
    policy_version deadline = {};
    std::int64_t excess = 0;
    std::int64_t blockers = 0;
};

/// What a unit in flight is worth when some must be given up. Those rejected before come first, whatever their value, so that
/// the same long prompt is not given up again and again.
struct unit_worth {
    std::int64_t rejections = 0;  ///< how often its prompt was given up before
    double value = 0;             ///< such as the tokens generated; not a NaN

    friend constexpr auto operator<=>(unit_worth const&, unit_worth const&) = default;
};

enum class sacrifice_mode : std::uint8_t {
    wait,  ///< only name the units
    drop,
    /// Keep them, but without the tokens that older versions made: `retag` to the current version. The caller masks those
    /// tokens, and the engine must have the current version for the rest.
    mask,
};

struct sacrifice_options {
    sacrifice_mode mode = sacrifice_mode::drop;
    std::int64_t budget = std::numeric_limits<std::int64_t>::max();  ///< more than that are not given up: nothing happens
    drop_reason reason = drop_reason::stale;
};

struct sacrifice_result {
    std::int64_t needed = 0;  ///< units that must go before the batch is ready; 0 if it is not blocked
    std::int64_t done = 0;    ///< units dropped or masked: `needed` or 0
};

/// The contract of `slot_buffer` without slots. What is counted is the deadline of each unit: the last batch in which it may be
/// trained, its version plus max_staleness.
///
/// A unit is admitted if afterwards, for every batch w, the units with a deadline up to w fit into the batches up to w (Hall's
/// condition; all units can be trained as soon as they are there, so it is exact). A batch is ready if enough units are
/// completed and taking those with the earliest deadlines leaves the condition true for all others, however long the ones in
/// flight take. Nothing is placed before a batch is taken, so nothing has to move when a unit is dropped, and the ledger is
/// ready whenever any choice of units would be safe; `slot_buffer` may be later (see docs/slots_and_ledger.md).
///
/// Beyond `slot_buffer`: an engine that serves an older version (`reserve_under`), batch sizes that change, a pipeline
/// shallower than the bound, a certificate of what blocks (`readiness`) and the least sacrifice that unblocks.
///
/// Promises: those of `slot_buffer`; among completed units with equal deadlines the first completed is taken first. With
/// surplus > 0 units that came too late are dropped, and nothing else changes: what is taken is within the bound.
///
/// Cost: reserve and discard O(1), occupy and filter O(1), as long as versions do not go back and the bound is not lowered, and
/// O(max_staleness) otherwise (occupy also with a surplus); can_take and readiness O(max_staleness), take O(batch_size +
/// max_staleness). All memory is allocated by the constructor: about 52 bytes per unit, and the handle.
///
/// Not thread-safe: see `controller`.
template <typename Handle>
class deadline_ledger {
    static_assert(std::is_nothrow_default_constructible_v<Handle> && std::is_nothrow_move_assignable_v<Handle>,
                  "a handle is default constructible and moves without exceptions");

  public:
    using handle_type = Handle;

    static constexpr std::int64_t max_max_staleness = 1023;
    static constexpr std::int64_t max_units = std::int64_t{1} << 31;

    /// Throws std::invalid_argument for an option outside its limits.
    explicit deadline_ledger(deadline_ledger_options const& options)
        : options_(checked(options)),
          clock_(options.first_version, options.publish_interval),
          horizon_(options.first_version.value - 1),
          newest_(horizon_),
          buckets_(std::bit_ceil(static_cast<std::size_t>(max_staleness_limit(options)) + 2)),
          ring_mask_(buckets_.size() - 1),
          units_(static_cast<std::size_t>(capacity(options))),
          candidates_(units_.size()),
          caps_(buckets_.size()) {
        options_.batch_size_limit = batch_size_limit(options);
        options_.max_staleness_limit = max_staleness_limit(options);
        for (std::size_t i = 0; i < units_.size(); ++i) {
            units_[i].next = i + 1 < units_.size() ? static_cast<std::uint32_t>(i + 1) : none;
        }
        open_batches();
    }

    deadline_ledger(deadline_ledger&&) = default;
    deadline_ledger(deadline_ledger const&) = delete;
    deadline_ledger& operator=(deadline_ledger&&) = delete;
    deadline_ledger& operator=(deadline_ledger const&) = delete;
    ~deadline_ledger() = default;

    // --- admission and results -----------------------------------------------------------------------------------------

    /// How many units of the current version could be admitted now, one after the other.
    [[nodiscard]] std::int64_t admissible() const noexcept {
        std::int64_t free = places_free_for(last_batch().value);
        if (options_.pipeline_depth) {
            free = std::min(free, pipeline_room());
        }
        if (options_.max_in_flight) {
            free = std::min(free, *options_.max_in_flight - counters_.in_flight);
        }
        return std::max<std::int64_t>(free, 0);
    }

    /// Whether a unit made by `served` would be admitted now.
    [[nodiscard]] admission_status admission_under(policy_version served) const noexcept {
        if (served > version()) {
            return admission_status::future_version;
        }
        std::int64_t const deadline = served.value + options_.max_staleness;
        if (served.value < 0 || (served < version() && deadline < next_batch().value)) {
            return admission_status::stale_version;
        }
        if (places_free_for(deadline) <= 0) {
            return admission_status::no_place;
        }
        if (options_.pipeline_depth && pipeline_room() <= 0) {
            return admission_status::pipeline_full;
        }
        if (options_.max_in_flight && counters_.in_flight >= *options_.max_in_flight) {
            return admission_status::max_in_flight;
        }
        return admission_status::open;
    }

    /// Admits a unit under the current version, or answers nothing if `admissible()` is 0; then `handle` is destroyed.
    [[nodiscard]] std::optional<unit_ticket> reserve(Handle handle = {}) noexcept {
        if (admissible() <= 0) {
            return std::nullopt;
        }
        return admit(std::move(handle), version());
    }

    /// Admits a unit that an engine behind the current version generates: it is stamped with the version which that engine
    /// serves. Nothing, unless `admission_under(served)` is open.
    [[nodiscard]] std::optional<unit_ticket> reserve_under(policy_version served, Handle handle = {}) noexcept {
        if (admission_under(served) != admission_status::open) {
            return std::nullopt;
        }
        return admit(std::move(handle), served);
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
        units_[ticket.index].handle = std::move(result);
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
    /// Statuses: ok, gone, foreign. Throws std::invalid_argument for a version older than the unit's, or not published yet.
    ticket_status retag(unit_ticket const& ticket, policy_version oldest) {
        ticket_status const status = status_of(ticket);
        if (status == ticket_status::gone || status == ticket_status::foreign) {
            return status;
        }
        record& unit = units_[ticket.index];
        detail::require(oldest >= unit.version && oldest <= version(), "retagged version", oldest.value,
                        "from the unit's own to the current one");
        move_deadline(ticket.index, oldest);
        return ticket_status::ok;
    }

    // --- training ------------------------------------------------------------------------------------------------------

    /// Whether the next batch is ready and training may start on it.
    [[nodiscard]] bool can_take() const noexcept {
        return clock_.may_take() && has_enough() && violated_deadline(true) < next_batch().value;
    }

    /// Whether the next batch can be made, training apart; if not, why.
    [[nodiscard]] batch_readiness readiness() const noexcept {
        if (!has_enough()) {
            return {.state = readiness_state::pending, .missing = batch_size() - counters_.completed};
        }
        std::int64_t const violated = violated_deadline(true);
        if (violated < next_batch().value) {
            return {.state = readiness_state::ready};
        }
        batch_readiness blocked{.state = readiness_state::blocked, .deadline = {violated}};
        std::int64_t completed = 0;
        for (std::int64_t w = next_batch().value; w <= violated; ++w) {
            blocked.blockers += bucket_of(w).in_flight;
            completed += bucket_of(w).completed;
        }
        blocked.excess = excess_after(blocked.blockers, completed, violated);
        return blocked;
    }

    /// Calls visit(unit_ticket const&, Handle const&) for the units in flight whose deadline is `deadline` or before: for
    /// readiness().deadline those that block. O(units).
    template <typename Visit>
    void for_each_in_flight(policy_version deadline, Visit visit) const {
        for (std::uint32_t i = 0; i < units_.size(); ++i) {
            if (units_[i].state == unit_state::in_flight && deadline_of(units_[i]) <= deadline.value) {
                visit(ticket_of(i), std::as_const(units_[i].handle));
            }
        }
    }

    /// Units in flight that can no longer be trained, whatever happens, unless a completed unit is dropped or retagged: ask
    /// after each completion, and abort them. Calls visit(unit_ticket const&, Handle const&); only with a surplus are there
    /// any. O(units) if there are, O(max_staleness) otherwise.
    template <typename Visit>
    void for_each_doomed(Visit visit) const {
        std::int64_t const last = last_doomed();
        if (expired_ > 0 || last >= next_batch().value) {
            for_each_in_flight({last}, visit);
        }
    }

    /// The least sacrifice that makes a blocked batch ready: of all sets of units in flight whose leaving unblocks it, one
    /// that keeps the most worth (the sets that may stay are a laminar matroid, so greedy by worth is exact).
    ///
    /// worth(unit_ticket const&, Handle const&) returns a unit_worth; victim(unit_ticket const&, Handle const&) is called for
    /// each unit given up, before it is dropped or after it is retagged, and in mode `wait` for each that would be. Neither may
    /// call the ledger. With a lowered bound, masking may not be enough; then it does nothing. O(f log f + f max_staleness) for
    /// f units in flight, and O(units).
    template <typename Worth, typename Victim>
    sacrifice_result sacrifice(sacrifice_options const& options, Worth worth, Victim victim) {
        std::int64_t const last = has_enough() ? violated_deadline(false) : next_batch().value - 1;
        if (last < next_batch().value) {
            return {};
        }
        std::size_t const victims = choose_victims(last, worth);
        sacrifice_result result{.needed = static_cast<std::int64_t>(victims)};
        bool const is_enough = options.mode != sacrifice_mode::mask || last_batch().value > last;
        if (options.mode != sacrifice_mode::wait && (result.needed > options.budget || !is_enough)) {
            return result;
        }
        for (std::size_t i = 0; i < victims; ++i) {
            std::uint32_t const unit = candidates_[i].unit;
            if (options.mode == sacrifice_mode::mask) {
                move_deadline(unit, version());
            }
            victim(ticket_of(unit), std::as_const(units_[unit].handle));
            if (options.mode == sacrifice_mode::drop) {
                drop(unit, options.reason);
            }
        }
        result.done = options.mode == sacrifice_mode::wait ? 0 : result.needed;
        return result;
    }

    /// Takes the next batch into `batch`, earliest deadline first, and returns its number; nothing, if `can_take()` is false.
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
        for (std::int64_t deadline = number.value; place != batch.end(); ++deadline) {
            bucket& from = bucket_of(deadline);
            std::uint32_t unit = from.first;
            std::uint32_t last = none;
            std::int64_t taken = 0;
            for (; unit != none && place != batch.end(); ++place, ++taken) {
                record& held = units_[unit];
                *place = {.handle = std::move(held.handle),
                          .id = held.id,
                          .version = held.version,
                          .staleness = staleness(number, held.version)};
                held.state = unit_state::free;
                last = std::exchange(unit, held.next);
            }
            if (taken > 0) {
                units_[last].next = std::exchange(free_, from.first);
                from.first = unit;
                (unit == none ? from.last : units_[unit].previous) = none;
                from.completed -= taken;
            }
        }
        auto const size = static_cast<std::int64_t>(batch.size());
        counters_.completed -= size;
        counters_.taken += size;
        expired_ += std::exchange(bucket_of(number.value).in_flight, 0);
        clock_.take();
        return number;
    }

    /// Whether a batch was taken whose weights have not been published.
    [[nodiscard]] bool in_training() const noexcept { return clock_.in_training(); }

    /// The two phases of a publish, as in `slot_buffer`.
    policy_version begin_publish() { return clock_.begin(); }
    policy_version commit_publish() {
        policy_version const now = clock_.commit();
        open_batches();
        return now;
    }
    void abort_publish() { clock_.abort(); }
    policy_version publish() {
        begin_publish();
        return commit_publish();
    }

    // --- changes while it runs -----------------------------------------------------------------------------------------

    /// Sets the bound for units admitted from now on; those admitted before keep their deadline. Throws
    /// std::invalid_argument outside 0 to max_staleness_limit, and for a bound below publish_interval - 1.
    void set_max_staleness(std::int64_t max_staleness) {
        detail::require(max_staleness >= 0 && max_staleness <= max_staleness_limit(options_), "max_staleness", max_staleness,
                        "0 to max_staleness_limit");
        detail::require(max_staleness >= options_.publish_interval - 1, "max_staleness", max_staleness,
                        "at least publish_interval - 1");
        options_.max_staleness = max_staleness;
        open_batches();
    }

    /// Sets the size of batches that nothing has been promised for yet, and returns the first of them. Throws
    /// std::invalid_argument outside 1 to batch_size_limit.
    policy_version set_batch_size(std::int64_t batch_size) {
        detail::require(batch_size >= 1 && batch_size <= batch_size_limit(options_), "batch_size", batch_size,
                        "1 to batch_size_limit");
        options_.batch_size = batch_size;
        return {horizon_ + 1};
    }

    // --- watching ------------------------------------------------------------------------------------------------------

    /// Units in the next batch.
    [[nodiscard]] std::int64_t batch_size() const noexcept {
        std::int64_t const batch = next_batch().value;
        return batch > horizon_ ? options_.batch_size : bucket_of(batch).places - counters_.taken;
    }
    [[nodiscard]] std::int64_t max_staleness() const noexcept { return options_.max_staleness; }

    /// With the bound and the batch size as they were set last, and their limits.
    [[nodiscard]] deadline_ledger_options const& options() const noexcept { return options_; }
    [[nodiscard]] version_clock const& clock() const noexcept { return clock_.versions(); }

    /// The version that units are stamped with now.
    [[nodiscard]] policy_version version() const noexcept { return clock_.current(); }

    /// The first batch not taken.
    [[nodiscard]] policy_version next_batch() const noexcept { return clock_.next_batch(); }

    /// The last batch that a unit admitted now may be trained in; next_batch() - 1 if there is none.
    [[nodiscard]] policy_version last_batch() const noexcept { return {version().value + options_.max_staleness}; }

    [[nodiscard]] unit_counters const& counters() const noexcept { return counters_; }

    /// The last batch that a unit in flight or completed may be trained in; none for a ticket whose unit has left.
    [[nodiscard]] std::optional<policy_version> deadline(unit_ticket const& ticket) const noexcept {
        ticket_status const status = status_of(ticket);
        bool const is_here = status == ticket_status::in_flight || status == ticket_status::duplicate;
        return is_here ? std::optional(policy_version{deadline_of(units_[ticket.index])}) : std::nullopt;
    }

  private:
    static constexpr std::uint32_t none = 0xffffffff;

    enum class unit_state : std::uint8_t { free, in_flight, completed };

    struct record {
        std::uint64_t id = 0;
        policy_version version = {};
        std::uint32_t next = none;  // of the free records, or of the completed units with the same deadline
        std::uint32_t previous = none;
        Handle handle{};
        std::uint16_t allowance = 0;  // batches from its version to its deadline
        unit_state state = unit_state::free;
    };
    // One per deadline, in a ring from next_batch() to horizon_.
    struct bucket {
        std::int64_t places = 0;  // of all batches up to this one, those taken included
        std::int64_t in_flight = 0;
        std::int64_t completed = 0;
        std::uint32_t first = none;  // completed units, in the order of their completion
        std::uint32_t last = none;
    };
    struct candidate {
        unit_worth worth;
        std::uint32_t unit = 0;
    };

    static std::int64_t max_staleness_limit(deadline_ledger_options const& options) {
        return options.max_staleness_limit.value_or(options.max_staleness);
    }
    static std::int64_t batch_size_limit(deadline_ledger_options const& options) {
        return options.batch_size_limit.value_or(options.batch_size);
    }
    static std::int64_t capacity(deadline_ledger_options const& options) {
        return (batch_size_limit(options) + options.surplus) * (max_staleness_limit(options) + 1);
    }

    static deadline_ledger_options const& checked(deadline_ledger_options const& options) {
        detail::require(options.max_staleness >= 0 && options.max_staleness <= max_max_staleness, "max_staleness",
                        options.max_staleness, "0 to 1023");
        std::int64_t const bound_limit = max_staleness_limit(options);
        detail::require(bound_limit >= options.max_staleness && bound_limit <= max_max_staleness, "max_staleness_limit",
                        bound_limit, "max_staleness to 1023");
        detail::require(options.batch_size >= 1 && options.batch_size < max_units, "batch_size", options.batch_size,
                        "1 to 2147483647");
        std::int64_t const size_limit = batch_size_limit(options);
        detail::require(size_limit >= options.batch_size && size_limit < max_units, "batch_size_limit", size_limit,
                        "batch_size to 2147483647");
        detail::require(options.surplus >= 0 && options.surplus < max_units, "surplus", options.surplus, "0 to 2147483647");
        detail::require(capacity(options) < max_units, "batch_size and max_staleness together", capacity(options),
                        "at most 2147483647 units");
        detail::require(options.max_in_flight.value_or(1) >= 1, "max_in_flight", options.max_in_flight.value_or(1),
                        "at least 1, or absent");
        detail::require(options.publish_interval >= 1 && options.publish_interval <= options.max_staleness + 1,
                        "publish_interval", options.publish_interval, "1 to max_staleness + 1");
        std::int64_t const depth = options.pipeline_depth.value_or(options.max_staleness);
        detail::require(depth >= options.publish_interval - 1, "pipeline_depth", depth,
                        "at least publish_interval - 1, or absent");
        return options;
    }

    bucket& bucket_of(std::int64_t deadline) noexcept { return buckets_[static_cast<std::uint64_t>(deadline) & ring_mask_]; }
    bucket const& bucket_of(std::int64_t deadline) const noexcept {
        return buckets_[static_cast<std::uint64_t>(deadline) & ring_mask_];
    }
    static std::int64_t deadline_of(record const& unit) noexcept { return unit.version.value + unit.allowance; }

    std::int64_t outstanding() const noexcept { return counters_.in_flight + counters_.completed; }

    /// Units that the batches from the next one to `batch` train. @pre batch <= horizon_
    std::int64_t places_until(std::int64_t batch) const noexcept {
        return batch < next_batch().value ? 0 : bucket_of(batch).places - counters_.taken;
    }
    /// Units that may be promised to them: those and the surplus.
    std::int64_t promises_until(std::int64_t batch) const noexcept {
        return places_until(batch) + options_.surplus * (batch - next_batch().value + 1);
    }

    /// Gives every batch up to the last that is legal now its size.
    void open_batches() noexcept {
        while (horizon_ < last_batch().value) {
            std::int64_t const before = horizon_ < next_batch().value ? counters_.taken : bucket_of(horizon_).places;
            ++horizon_;
            bucket_of(horizon_) = {.places = before + options_.batch_size};
        }
    }

    /// Units with this deadline that can be admitted: Hall's condition for this deadline and all later ones.
    std::int64_t places_free_for(std::int64_t deadline) const noexcept {
        if (deadline < next_batch().value || (options_.surplus > 0 && deadline <= last_doomed())) {
            return 0;
        }
        std::int64_t batch = std::max(newest_, deadline);  // behind the newest deadline there only come places
        std::int64_t demand = outstanding();
        std::int64_t free = promises_until(batch) - demand;
        while (batch > deadline) {
            demand -= bucket_of(batch).in_flight + bucket_of(batch).completed;
            --batch;
            free = std::min(free, promises_until(batch) - demand);
        }
        return free;
    }

    std::int64_t pipeline_room() const noexcept {
        std::int64_t const last = std::min(version().value + *options_.pipeline_depth, horizon_);
        return last < next_batch().value ? 0 : promises_until(last) - outstanding();
    }

    unit_ticket admit(Handle&& handle, policy_version served) noexcept {
        std::uint32_t const index = free_;
        record& unit = units_[index];
        free_ = unit.next;
        unit.id = next_id_++;
        unit.version = served;
        unit.allowance = static_cast<std::uint16_t>(options_.max_staleness);
        unit.handle = std::move(handle);
        unit.state = unit_state::in_flight;
        newest_ = std::max(newest_, deadline_of(unit));
        ++bucket_of(deadline_of(unit)).in_flight;
        ++counters_.admitted;
        ++counters_.in_flight;
        return ticket_of(index);
    }

    ticket_status complete(std::uint32_t index) noexcept {
        record& unit = units_[index];
        std::int64_t const deadline = deadline_of(unit);
        if (options_.surplus > 0 && deadline <= last_doomed()) {
            drop(index, drop_reason::oversampled);
            return ticket_status::oversampled;
        }
        --bucket_of(deadline).in_flight;
        --counters_.in_flight;
        ++counters_.completed;
        unit.state = unit_state::completed;
        link(index);
        return ticket_status::ok;
    }

    void link(std::uint32_t index) noexcept {
        record& unit = units_[index];
        bucket& to = bucket_of(deadline_of(unit));
        unit.next = none;
        unit.previous = std::exchange(to.last, index);
        (unit.previous == none ? to.first : units_[unit.previous].next) = index;
        ++to.completed;
    }
    void unlink(std::uint32_t index) noexcept {
        record const& unit = units_[index];
        bucket& from = bucket_of(deadline_of(unit));
        (unit.previous == none ? from.first : units_[unit.previous].next) = unit.next;
        (unit.next == none ? from.last : units_[unit.next].previous) = unit.previous;
        --from.completed;
    }
    void leave_flight(record const& unit) noexcept {
        if (deadline_of(unit) < next_batch().value) {
            --expired_;
        } else {
            --bucket_of(deadline_of(unit)).in_flight;
        }
    }

    void drop(std::uint32_t index, drop_reason reason) noexcept {
        record& unit = units_[index];
        if (unit.state == unit_state::in_flight) {
            leave_flight(unit);
            --counters_.in_flight;
        } else {
            unlink(index);
            --counters_.completed;
        }
        ++counters_.dropped[static_cast<std::size_t>(reason)];
        unit.state = unit_state::free;
        unit.handle = Handle{};
        unit.next = std::exchange(free_, index);
    }

    void move_deadline(std::uint32_t index, policy_version oldest) noexcept {
        record& unit = units_[index];
        std::int64_t const deadline = std::max(deadline_of(unit), oldest.value + options_.max_staleness);
        bool const is_in_flight = unit.state == unit_state::in_flight;
        if (is_in_flight) {
            leave_flight(unit);
        } else {
            unlink(index);
        }
        unit.version = oldest;
        unit.allowance = static_cast<std::uint16_t>(deadline - oldest.value);
        newest_ = std::max(newest_, deadline);
        if (!is_in_flight) {
            link(index);
        } else if (deadline < next_batch().value) {
            ++expired_;
        } else {
            ++bucket_of(deadline).in_flight;
        }
    }

    /// How far the units that would be left exceed the places that would be left for deadlines up to `batch`.
    std::int64_t excess_after(std::int64_t in_flight, std::int64_t completed, std::int64_t batch) const noexcept {
        std::int64_t const size = batch_size();
        return in_flight + std::max<std::int64_t>(completed - size, 0) - (places_until(batch) - size);
    }

    bool has_enough() const noexcept { return counters_.completed >= batch_size(); }

    /// The first or the last deadline that forbids to take the next batch now; before next_batch() if there is none.
    /// @pre has_enough(), so that Hall's condition itself says that nothing is violated from newest_ on.
    std::int64_t violated_deadline(bool first) const noexcept {
        std::int64_t violated = next_batch().value - 1;
        if (options_.surplus > 0) {
            return violated;
        }
        std::int64_t in_flight = 0;
        std::int64_t completed = 0;
        for (std::int64_t w = next_batch().value; w < newest_; ++w) {
            in_flight += bucket_of(w).in_flight;
            completed += bucket_of(w).completed;
            if (excess_after(in_flight, completed, w) > 0) {
                violated = w;
                if (first) {
                    break;
                }
            }
        }
        return violated;
    }

    /// The last deadline up to which completed units fill every batch; before next_batch() if there is none.
    std::int64_t last_doomed() const noexcept {
        std::int64_t last = next_batch().value - 1;
        std::int64_t completed = 0;
        for (std::int64_t w = next_batch().value; w <= horizon_; ++w) {
            completed += bucket_of(w).completed;
            if (completed >= places_until(w)) {
                last = w;
            }
        }
        return last;
    }

    /// Puts the victims first in candidates_ and returns their number.
    template <typename Worth>
    std::size_t choose_victims(std::int64_t last, Worth& worth) {
        std::size_t count = 0;
        for_each_in_flight({last}, [&](unit_ticket const& ticket, Handle const& handle) {
            candidates_[count++] = {.worth = worth(ticket, handle), .unit = ticket.index};
        });
        std::int64_t const first = next_batch().value;
        std::int64_t completed = 0;
        for (std::int64_t w = first; w <= last; ++w) {
            completed += bucket_of(w).completed;
            caps_[static_cast<std::size_t>(w - first)] = -excess_after(0, completed, w);
        }
        auto const end = candidates_.begin() + static_cast<std::ptrdiff_t>(count);
        std::sort(candidates_.begin(), end, [this](candidate const& a, candidate const& b) {
            auto const order = a.worth <=> b.worth;
            return order == 0 ? units_[a.unit].id < units_[b.unit].id : order > 0;
        });
        std::size_t victims = 0;
        for (auto each = candidates_.begin(); each != end; ++each) {
            auto const caps_of_unit =
                std::span(caps_).subspan(static_cast<std::size_t>(deadline_of(units_[each->unit]) - first),
                                         static_cast<std::size_t>(last - deadline_of(units_[each->unit]) + 1));
            if (std::all_of(caps_of_unit.begin(), caps_of_unit.end(), [](std::int64_t cap) { return cap > 0; })) {
                std::for_each(caps_of_unit.begin(), caps_of_unit.end(), [](std::int64_t& cap) { --cap; });
            } else {
                candidates_[victims++] = *each;
            }
        }
        return victims;
    }

    ticket_status status_of(unit_ticket const& ticket) const noexcept {
        if (ticket.origin != units_.data() || ticket.index >= units_.size() || ticket.id >= next_id_) {
            return ticket_status::foreign;
        }
        record const& unit = units_[ticket.index];
        if (unit.id != ticket.id || unit.state == unit_state::free) {
            return ticket_status::gone;
        }
        return unit.state == unit_state::in_flight ? ticket_status::in_flight : ticket_status::duplicate;
    }
    unit_ticket ticket_of(std::uint32_t index) const noexcept {
        return {.id = units_[index].id, .version = units_[index].version, .origin = units_.data(), .index = index};
    }

    deadline_ledger_options options_;
    detail::batch_clock clock_;
    unit_counters counters_;
    std::uint64_t next_id_ = 0;
    std::uint32_t free_ = 0;
    std::int64_t horizon_;      // the last batch whose size is fixed
    std::int64_t newest_;       // no unit has a later deadline
    std::int64_t expired_ = 0;  // units in flight whose deadline has passed; only with a surplus
    std::vector<bucket> buckets_;
    std::uint64_t ring_mask_;
    std::vector<record> units_;
    std::vector<candidate> candidates_;
    std::vector<std::int64_t> caps_;
};

static_assert(staleness_control<deadline_ledger<int>>);

ASYNCRL_END_NAMESPACE
