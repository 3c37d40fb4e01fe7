// SPDX-License-Identifier: Apache-2.0
/// @file The thread-safe shell over a staleness control: rollout threads and a trainer wait for each other here.
#pragma once

#include <asyncrl/config.hpp>
#include <asyncrl/fwd.hpp>
#include <asyncrl/staleness/policy_version.hpp>
#include <asyncrl/staleness/unit.hpp>

#include <algorithm>
#include <chrono>
#include <concepts>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>

ASYNCRL_BEGIN_NAMESPACE

/// How a wait ended.
enum class wait_status : std::uint8_t {
    ok,
    timed_out,  ///< not possible within the time given; for try_..., not possible now
    stopped,    ///< the caller's stop token asked for it
    closed,     ///< orderly end: nothing more is admitted, and no batch is ready
    failed,     ///< somebody called fail: see `failure()`
};

/// One mutex around a staleness control, with waits for admission and for the next batch.
///
/// Thread safety: every member may be called from any thread, except construction and destruction; the leases that it has
/// issued must be gone before it. Calls to the control happen one at a time, so its promises hold as they stand.
///
/// No call waits longer than its time, its stop token, `close` or `fail` allow. Nobody polls: a waiter sleeps until the control
/// can admit or hand out a batch, and is asked that very question again when it wakes. Waiters are not served in order: a
/// thread that comes at the right moment may pass one that is waking up.
///
/// `close` is the orderly end: waiting and later reserves end with `closed`, results that come later are dropped and counted
/// under drop_reason::closed, batches that are ready can still be taken (publish in between). `fail` is told apart from it: it
/// also ends taking at once, and it overrides a close.
template <typename Control>
class controller {
    static_assert(staleness_control<Control>, "a controller wraps a staleness_control such as slot_buffer<Handle>");

  public:
    using control_type = Control;
    using handle_type = typename Control::handle_type;
    using clock = std::chrono::steady_clock;

    /// The right and the duty to deliver one unit's result. Move-only; a lease that is destroyed without having delivered, as
    /// when its worker throws, discards the unit and so frees its place.
    ///
    /// Not thread-safe itself. It points to the controller, which must outlive it.
    class lease {
      public:
        lease() = default;
        lease(lease&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)), ticket_(other.ticket_) {}
        lease& operator=(lease&& other) noexcept {
            if (this != &other) {
                discard();
                owner_ = std::exchange(other.owner_, nullptr);
                ticket_ = other.ticket_;
            }
            return *this;
        }
        lease(lease const&) = delete;
        lease& operator=(lease const&) = delete;
        ~lease() { discard(); }

        /// Whether a result is still owed.
        [[nodiscard]] explicit operator bool() const noexcept { return owner_ != nullptr; }

        /// For `cancel`, `filter` and logs; stays valid as a name after the result was delivered.
        [[nodiscard]] unit_ticket const& ticket() const noexcept { return ticket_; }
        [[nodiscard]] policy_version version() const noexcept { return ticket_.version; }
        [[nodiscard]] std::uint64_t id() const noexcept { return ticket_.id; }

        /// Delivers the result; the lease is spent whatever the status. Statuses: ok, oversampled, gone (cancelled meanwhile),
        /// closed, failed; duplicate for a lease that is spent or empty.
        ticket_status occupy() noexcept {
            controller* const owner = std::exchange(owner_, nullptr);
            return owner == nullptr ? ticket_status::duplicate : owner->occupy(ticket_);
        }

        /// The same, and `result` replaces the handle given to `reserve`.
        ticket_status occupy(handle_type result) noexcept {
            controller* const owner = std::exchange(owner_, nullptr);
            return owner == nullptr ? ticket_status::duplicate : owner->occupy(ticket_, std::move(result));
        }

        /// Gives the unit up; the lease is spent. Statuses as for `occupy`, without closed and failed.
        ticket_status discard(drop_reason reason = drop_reason::discarded) noexcept {
            controller* const owner = std::exchange(owner_, nullptr);
            return owner == nullptr ? ticket_status::duplicate : owner->cancel(ticket_, reason);
        }

        /// Turns the lease into its bare ticket, whose result somebody else delivers with controller::occupy.
        unit_ticket release() noexcept {
            owner_ = nullptr;
            return ticket_;
        }

      private:
        friend controller;
        lease(controller* owner, unit_ticket const& ticket) noexcept : owner_(owner), ticket_(ticket) {}

        controller* owner_ = nullptr;
        unit_ticket ticket_;
    };

    struct reserve_result {
        wait_status status = wait_status::timed_out;
        lease unit = {};  ///< holds a unit iff status is ok

        [[nodiscard]] explicit operator bool() const noexcept { return status == wait_status::ok; }
    };

    struct take_result {
        wait_status status = wait_status::timed_out;
        policy_version batch = {};  ///< number of the batch, if status is ok

        [[nodiscard]] explicit operator bool() const noexcept { return status == wait_status::ok; }
    };

    explicit controller(Control control) : control_(std::move(control)) {}

    controller(controller const&) = delete;
    controller& operator=(controller const&) = delete;
    ~controller() = default;

    // --- rollout side --------------------------------------------------------------------------------------------------

    /// Waits until a unit can be admitted and admits it. Without a place `handle` is destroyed.
    ///
    /// A stop token that has been asked to stop ends the call even if a place is free.
    [[nodiscard]] reserve_result reserve(handle_type handle = {}, std::stop_token const& stop = {}) {
        return reserve_within(std::move(handle), stop, for_ever{});
    }
    template <typename Rep, typename Period>
    [[nodiscard]] reserve_result reserve_for(std::chrono::duration<Rep, Period> const& time, handle_type handle = {},
                                             std::stop_token const& stop = {}) {
        return reserve_within(std::move(handle), stop, after(time));
    }
    [[nodiscard]] reserve_result reserve_until(clock::time_point deadline, handle_type handle = {},
                                               std::stop_token const& stop = {}) {
        return reserve_within(std::move(handle), stop, deadline);
    }
    [[nodiscard]] reserve_result try_reserve(handle_type handle = {}) {
        return reserve_within(std::move(handle), {}, not_at_all{});
    }

    /// Delivers the result of a released ticket. Never blocks. Statuses: ok, oversampled, duplicate, gone, foreign, closed,
    /// failed.
    ticket_status occupy(unit_ticket const& ticket) noexcept {
        return deliver(ticket, [&] { return control_.occupy(ticket); });
    }
    ticket_status occupy(unit_ticket const& ticket, handle_type result) noexcept {
        return deliver(ticket, [&] { return control_.occupy(ticket, std::move(result)); });
    }

    /// Gives up a unit in flight from any thread. If its worker delivers at the same time, exactly one of the two gets `ok`.
    ticket_status cancel(unit_ticket const& ticket, drop_reason reason = drop_reason::discarded) noexcept {
        return change([&] { return control_.discard(ticket, reason); });
    }

    /// Drops a completed unit that no batch has taken.
    ticket_status filter(unit_ticket const& ticket, drop_reason reason = drop_reason::filtered) noexcept {
        return change([&] { return control_.filter(ticket, reason); });
    }

    // --- training side -------------------------------------------------------------------------------------------------

    /// Waits until the next batch is ready and none is in training, and takes it into `batch`.
    ///
    /// After `close` it never waits: it takes what is ready, then answers `closed`.
    /// @pre `batch` holds exactly batch_size() elements; throws std::invalid_argument otherwise.
    [[nodiscard]] take_result take(std::span<taken_unit<handle_type>> batch, std::stop_token const& stop = {}) {
        return take_within(batch, stop, for_ever{});
    }
    template <typename Rep, typename Period>
    [[nodiscard]] take_result take_for(std::chrono::duration<Rep, Period> const& time, std::span<taken_unit<handle_type>> batch,
                                       std::stop_token const& stop = {}) {
        return take_within(batch, stop, after(time));
    }
    [[nodiscard]] take_result take_until(clock::time_point deadline, std::span<taken_unit<handle_type>> batch,
                                         std::stop_token const& stop = {}) {
        return take_within(batch, stop, deadline);
    }
    [[nodiscard]] take_result try_take(std::span<taken_unit<handle_type>> batch) {
        return take_within(batch, {}, not_at_all{});
    }

    /// The two phases of a publish, as of the control; weights travel in between, without a lock. Misuse throws
    /// std::invalid_argument.
    policy_version begin_publish() {
        return change([&] { return control_.begin_publish(); });
    }
    policy_version commit_publish() {
        return change([&] { return control_.commit_publish(); });
    }
    void abort_publish() {
        change([&] {
            control_.abort_publish();
            return 0;
        });
    }
    policy_version publish() {
        return change([&] {
            control_.begin_publish();
            return control_.commit_publish();
        });
    }

    /// Returns update(control), called under the lock, and wakes those whom the change serves: for calls that only some
    /// controls have, such as retag, expire_stuck, sacrifice and set_max_staleness. Keep it short, call nothing of this
    /// controller in it, and change nothing else than the control. What it throws comes out.
    template <typename Update>
    decltype(auto) update(Update&& update) {
        std::unique_lock lock(mutex_);
        settle_at_end const settled{*this, lock};
        return std::invoke(std::forward<Update>(update), control_);
    }

    // --- end -----------------------------------------------------------------------------------------------------------

    /// Orderly end; wakes everyone. May be called again, and after `fail`, without effect.
    void close() noexcept { end(end_state::closed, {}); }

    /// End because of an error; wakes everyone. The first reason stays.
    void fail(std::string reason) noexcept { end(end_state::failed, std::move(reason)); }

    /// Whether `close` or `fail` has been called.
    [[nodiscard]] bool is_closed() const noexcept {
        std::lock_guard const lock(mutex_);
        return end_ != end_state::running;
    }

    /// The reason given to `fail`; none if nobody has called it.
    [[nodiscard]] std::optional<std::string> failure() const {
        std::lock_guard const lock(mutex_);
        return end_ == end_state::failed ? std::optional(failure_) : std::nullopt;
    }

    // --- watching ------------------------------------------------------------------------------------------------------

    [[nodiscard]] policy_version version() const noexcept {
        std::lock_guard const lock(mutex_);
        return control_.version();
    }

    [[nodiscard]] unit_counters counters() const noexcept {
        std::lock_guard const lock(mutex_);
        return control_.counters();
    }

    /// Threads asleep in a reserve now, and in a take: which side the other one holds up.
    [[nodiscard]] std::int64_t waiting_reserves() const noexcept {
        std::lock_guard const lock(mutex_);
        return reservers_.asleep;
    }
    [[nodiscard]] std::int64_t waiting_takes() const noexcept {
        std::lock_guard const lock(mutex_);
        return takers_.asleep;
    }

    /// Returns look(control), called under the lock: keep it short, and call nothing of this controller in it.
    template <typename Look>
    decltype(auto) inspect(Look&& look) const {
        std::lock_guard const lock(mutex_);
        return std::invoke(std::forward<Look>(look), std::as_const(control_));
    }

  private:
    enum class end_state : std::uint8_t { running, closed, failed };
    struct for_ever {};
    struct not_at_all {};

    // Who sleeps for one kind of event. `called` counts the sleepers that have been notified and have not looked yet: a
    // notify for which a sleeper is already on its way would only be a system call. Each look takes one off, also one that a
    // timeout or a stop caused; that errs to the side of one notify too many, never of one too few.
    struct waiting_room {
        std::condition_variable_any bell;
        std::int64_t asleep = 0;
        std::int64_t called = 0;

        std::int64_t call(std::int64_t wanted) noexcept {
            std::int64_t const calls = std::max<std::int64_t>(std::min(wanted, asleep) - called, 0);
            called += calls;
            return calls;
        }
        void ring(std::int64_t calls) noexcept {
            for (; calls > 0; --calls) {
                bell.notify_one();
            }
        }
    };

    template <typename Rep, typename Period>
    static clock::time_point after(std::chrono::duration<Rep, Period> const& time) {
        auto const now = clock::now();
        if (time <= time.zero()) {
            return now;
        }
        std::chrono::duration<double> const longest = clock::time_point::max() - now;
        return std::chrono::duration<double>(time) < longest ? now + std::chrono::ceil<clock::duration>(time)
                                                             : clock::time_point::max();
    }

    template <typename Deadline>
    reserve_result reserve_within(handle_type&& handle, std::stop_token const& stop, Deadline const& deadline) {
        std::unique_lock lock(mutex_);
        wait_status const status = await(lock, reservers_, stop, deadline, false, [&] { return control_.admissible() > 0; });
        lease unit;
        if (status == wait_status::ok) {
            unit = lease(this, *control_.reserve(std::move(handle)));
        }
        settle(lock);
        return {.status = status, .unit = std::move(unit)};
    }

    template <typename Deadline>
    take_result take_within(std::span<taken_unit<handle_type>> batch, std::stop_token const& stop, Deadline const& deadline) {
        std::unique_lock lock(mutex_);
        wait_status const status = await(lock, takers_, stop, deadline, true, [&] { return control_.can_take(); });
        policy_version number;
        if (status == wait_status::ok) {
            number = *control_.take(batch);
        }
        settle(lock);
        return {.status = status, .batch = number};
    }

    /// Waits until `possible`, or for the reason that it is not. `drains`: possible counts even when closed.
    template <typename Deadline, typename Possible>
    wait_status await(std::unique_lock<std::mutex>& lock, waiting_room& room, std::stop_token const& stop,
                      Deadline const& deadline, bool drains, Possible possible) {
        auto const verdict = [&]() -> std::optional<wait_status> {
            if (end_ == end_state::failed) {
                return wait_status::failed;
            }
            if (stop.stop_requested()) {
                return wait_status::stopped;
            }
            if (end_ == end_state::closed && !(drains && possible())) {
                return wait_status::closed;
            }
            return possible() ? std::optional(wait_status::ok) : std::nullopt;
        };
        if (auto const now = verdict()) {
            return *now;
        }
        if constexpr (!std::same_as<Deadline, not_at_all>) {
            bool has_slept = false;
            auto const awake = [&] {
                if (std::exchange(has_slept, true) && room.called > 0) {
                    --room.called;
                }
                return end_ != end_state::running || possible();
            };
            ++room.asleep;
            if constexpr (std::same_as<Deadline, for_ever>) {
                room.bell.wait(lock, stop, awake);
            } else {
                room.bell.wait_until(lock, stop, deadline, awake);
            }
            --room.asleep;
        }
        return verdict().value_or(wait_status::timed_out);
    }

    template <typename Deliver>
    ticket_status deliver(unit_ticket const& ticket, Deliver put) noexcept {
        return change([&] {
            if (end_ == end_state::running) {
                return put();
            }
            ticket_status const status = control_.discard(ticket, drop_reason::closed);
            if (status != ticket_status::ok) {
                return status;
            }
            return end_ == end_state::closed ? ticket_status::closed : ticket_status::failed;
        });
    }

    template <typename Change>
    auto change(Change&& make) {
        std::unique_lock lock(mutex_);
        auto const result = make();
        settle(lock);
        return result;
    }

    /// Unlocks, then wakes as many sleepers as the control can serve. Every call that held the lock ends here, also one that
    /// waited in vain: it may have been woken for a place that it leaves.
    void settle(std::unique_lock<std::mutex>& lock) noexcept {
        std::int64_t const reservers = reservers_.asleep > reservers_.called ? reservers_.call(control_.admissible()) : 0;
        std::int64_t const takers = takers_.asleep > takers_.called ? takers_.call(control_.can_take() ? 1 : 0) : 0;
        lock.unlock();
        reservers_.ring(reservers);
        takers_.ring(takers);
    }

    struct settle_at_end {
        controller& owner;
        std::unique_lock<std::mutex>& lock;
        ~settle_at_end() { owner.settle(lock); }
    };

    void end(end_state state, std::string&& reason) noexcept {
        {
            std::lock_guard const lock(mutex_);
            if (state <= end_) {
                return;
            }
            end_ = state;
            failure_ = std::move(reason);
        }
        reservers_.bell.notify_all();
        takers_.bell.notify_all();
    }

    mutable std::mutex mutex_;
    waiting_room reservers_;
    waiting_room takers_;
    end_state end_ = end_state::running;
    std::string failure_;
    Control control_;
};

ASYNCRL_END_NAMESPACE
