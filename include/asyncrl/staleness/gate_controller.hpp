// SPDX-License-Identifier: Apache-2.0
/// @file The thread-safe shell over a rollout gate: rollout threads stop between two tokens while the trainer replaces weights.
#pragma once

#include <asyncrl/config.hpp>
#include <asyncrl/fwd.hpp>
#include <asyncrl/staleness/controller.hpp>
#include <asyncrl/staleness/policy_version.hpp>
#include <asyncrl/staleness/rollout_gate.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <mutex>
#include <stop_token>
#include <utility>

ASYNCRL_BEGIN_NAMESPACE

/// One mutex around a `rollout_gate`, with waits for the gate to open and for it to be quiet.
///
/// Thread safety: every member may be called from any thread, except construction and destruction; its generations must be gone
/// before it. Nobody polls. `at_boundary` costs one atomic load while no pause is on, so it can stand between any two tokens.
class gate_controller {
  public:
    using clock = std::chrono::steady_clock;

    /// One generation that may read the weights. Move-only; destroyed without `finish`, as when its worker throws, it counts as
    /// ended, so that no pause waits for it. Not thread-safe itself; the gate must outlive it.
    class generation {
      public:
        generation() = default;
        generation(generation&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)), pass_(other.pass_) {}
        generation& operator=(generation&& other) noexcept {
            if (this != &other) {
                finish();
                owner_ = std::exchange(other.owner_, nullptr);
                pass_ = other.pass_;
            }
            return *this;
        }
        generation(generation const&) = delete;
        generation& operator=(generation const&) = delete;
        ~generation() { finish(); }

        [[nodiscard]] explicit operator bool() const noexcept { return owner_ != nullptr; }

        /// The version that makes the tokens up to the next boundary.
        [[nodiscard]] policy_version version() const noexcept { return pass_.version; }

        /// To be called between two tokens. In boundary mode it waits while a pause is on; then `version()` may be newer.
        /// Unless ok the generation must make no more tokens: stopped (the stop token), closed, or timed_out (a pause has given
        /// it up).
        wait_status at_boundary(std::stop_token const& stop = {}) {
            return owner_ == nullptr ? wait_status::closed : owner_->stop_between_tokens(pass_, stop);
        }

        /// The generation has ended. stale_epoch: a pause has given it up, its result must not be used.
        gate_status finish() noexcept {
            gate_controller* const owner = std::exchange(owner_, nullptr);
            return owner == nullptr ? gate_status::ok : owner->leave(pass_);
        }

      private:
        friend gate_controller;
        generation(gate_controller* owner, gate_pass const& pass) noexcept : owner_(owner), pass_(pass) {}

        gate_controller* owner_ = nullptr;
        gate_pass pass_;
    };

    explicit gate_controller(gate_mode mode, policy_version first = {}) : gate_(mode, first) {}

    gate_controller(gate_controller const&) = delete;
    gate_controller& operator=(gate_controller const&) = delete;
    ~gate_controller() = default;

    // --- rollout side --------------------------------------------------------------------------------------------------

    /// Starts a generation, after waiting for a pause to end. Empty if stopped or closed.
    [[nodiscard]] generation enter(std::stop_token const& stop = {}) {
        std::unique_lock lock(mutex_);
        opened_.wait(lock, stop, [&] { return is_closed_ || gate_.state() == gate_state::open; });
        if (is_closed_ || stop.stop_requested()) {
            return {};
        }
        return {this, *gate_.enter()};
    }

    // --- training side -------------------------------------------------------------------------------------------------

    /// Begins a pause and waits until no generation reads the weights: ok. Otherwise the pause stays on: wait again with
    /// `await_quiet`, `abandon` those that have not stopped, or `resume`.
    ///
    /// @pre No pause is on; throws std::invalid_argument otherwise.
    [[nodiscard]] wait_status pause(std::stop_token const& stop = {}) {
        begin_pause();
        return await_quiet(stop);
    }
    template <typename Rep, typename Period>
    [[nodiscard]] wait_status pause_for(std::chrono::duration<Rep, Period> const& time, std::stop_token const& stop = {}) {
        begin_pause();
        return await_quiet_for(time, stop);
    }
    [[nodiscard]] wait_status await_quiet(std::stop_token const& stop = {}) {
        std::unique_lock lock(mutex_);
        stopped_.wait(lock, stop, [this] { return may_stop_waiting(); });
        return verdict(stop);
    }
    template <typename Rep, typename Period>
    [[nodiscard]] wait_status await_quiet_for(std::chrono::duration<Rep, Period> const& time,
                                              std::stop_token const& stop = {}) {
        std::unique_lock lock(mutex_);
        std::chrono::duration<double> const at_most(1e8);  // years, so that no sum of times overflows
        stopped_.wait_for(lock, stop, std::min(std::chrono::duration<double>(time), at_most),
                          [this] { return may_stop_waiting(); });
        return verdict(stop);
    }

    /// As of `rollout_gate`, which see. Weights are replaced between `begin` and `commit`, without a lock.
    std::int64_t abandon() {
        std::lock_guard const lock(mutex_);
        std::int64_t const given_up = gate_.abandon();
        stopped_.notify_all();
        return given_up;
    }
    void begin(policy_version next) {
        std::lock_guard const lock(mutex_);
        gate_.begin(next);
    }
    policy_version commit() {
        std::lock_guard const lock(mutex_);
        return gate_.commit();
    }
    void abort() {
        std::lock_guard const lock(mutex_);
        gate_.abort();
    }
    void resume() {
        {
            std::lock_guard const lock(mutex_);
            gate_.resume();
            raise_fence();
        }
        opened_.notify_all();
    }

    /// Orderly end: wakes everyone, nothing starts or goes on. May be called again.
    void close() noexcept {
        {
            std::lock_guard const lock(mutex_);
            is_closed_ = true;
            raise_fence();
        }
        opened_.notify_all();
        stopped_.notify_all();
    }

    /// Returns look(gate), called under the lock: keep it short.
    template <typename Look>
    decltype(auto) inspect(Look&& look) const {
        std::lock_guard const lock(mutex_);
        return std::forward<Look>(look)(gate_);
    }

  private:
    void begin_pause() {
        std::lock_guard const lock(mutex_);
        gate_.pause();
        raise_fence();
    }
    void raise_fence() noexcept {
        std::uint64_t const fence = is_closed_                          ? std::numeric_limits<std::uint64_t>::max()
                                    : gate_.state() == gate_state::open ? gate_.valid_from()
                                                                        : gate_.epoch();
        fence_.store(fence, std::memory_order_release);
    }
    bool may_stop_waiting() const noexcept { return is_closed_ || gate_.state() != gate_state::pausing; }
    wait_status verdict(std::stop_token const& stop) const noexcept {
        if (gate_.state() == gate_state::quiet) {
            return wait_status::ok;
        }
        return is_closed_ ? wait_status::closed : stop.stop_requested() ? wait_status::stopped : wait_status::timed_out;
    }

    // A look at an old fence lets a generation make one token more: the pause waits for it, since it counts as running.
    wait_status stop_between_tokens(gate_pass& pass, std::stop_token const& stop) {
        if (pass.epoch >= fence_.load(std::memory_order_acquire) && !stop.stop_requested()) {
            return wait_status::ok;
        }
        std::unique_lock lock(mutex_);
        if (gate_.is_given_up(pass)) {
            return wait_status::timed_out;
        }
        if (gate_.must_park() && !is_closed_) {
            gate_.park(pass);
            if (gate_.state() == gate_state::quiet) {
                stopped_.notify_all();
            }
            opened_.wait(lock, stop, [&] { return is_closed_ || gate_.state() == gate_state::open; });
        }
        if (is_closed_) {
            return wait_status::closed;
        }
        if (stop.stop_requested()) {
            return wait_status::stopped;
        }
        if (pass.is_parked) {
            gate_.unpark(pass);
        }
        return wait_status::ok;
    }

    gate_status leave(gate_pass const& pass) noexcept {
        std::lock_guard const lock(mutex_);
        gate_status const status = gate_.leave(pass);
        if (gate_.state() == gate_state::quiet) {
            stopped_.notify_all();
        }
        return status;
    }

    mutable std::mutex mutex_;
    std::condition_variable_any opened_;
    std::condition_variable_any stopped_;
    std::atomic<std::uint64_t> fence_ = 0;  // at_boundary needs no lock from this epoch on
    bool is_closed_ = false;
    rollout_gate gate_;
};

ASYNCRL_END_NAMESPACE
