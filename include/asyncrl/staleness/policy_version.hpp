// SPDX-License-Identifier: Apache-2.0
/// @file The version of a policy as a number of its own type, how stale a sample is, and the clock that publishes versions.
#pragma once

#include <asyncrl/config.hpp>
#include <asyncrl/error.hpp>
#include <asyncrl/fwd.hpp>

#include <compare>
#include <cstdint>
#include <limits>
#include <optional>

ASYNCRL_BEGIN_NAMESPACE

/// Number of a policy's weights. Training batch b turns version b into version b + 1, so a batch is named by the version that
/// it starts from.
struct policy_version {
    std::int64_t value = 0;

    friend constexpr auto operator<=>(policy_version, policy_version) = default;
};

/// Batches between a sample and the policy that trains on it: `current - sample`.
///
/// Negative for a sample from the future (after a rollback or a restart, or with the wrong clock). Saturates instead of
/// wrapping.
[[nodiscard]] constexpr std::int64_t staleness(policy_version current, policy_version sample) noexcept {
    using limits = std::numeric_limits<std::int64_t>;
    if (sample.value < 0 && current.value > limits::max() + sample.value) {
        return limits::max();
    }
    if (sample.value > 0 && current.value < limits::min() + sample.value) {
        return limits::min();
    }
    return current.value - sample.value;
}

enum class freshness : std::uint8_t {
    fresh,   ///< 0 <= staleness <= bound: equal to the bound is kept
    stale,   ///< staleness > bound
    future,  ///< the sample's version has not been published
};

/// Compares a sample's staleness with a bound in batches.
[[nodiscard]] constexpr freshness freshness_of(policy_version current, policy_version sample,
                                               std::int64_t max_staleness) noexcept {
    if (sample > current) {
        return freshness::future;
    }
    return staleness(current, sample) > max_staleness ? freshness::stale : freshness::fresh;
}

/// The oldest version that is fresh at `current`; never below version 0.
[[nodiscard]] constexpr policy_version oldest_fresh(policy_version current, std::int64_t max_staleness) noexcept {
    return {.value = current.value > max_staleness ? current.value - max_staleness : 0};
}

/// Which version the rollout engines serve, advanced in two phases.
///
/// `begin` announces a version whose weights are on their way, `commit` makes it current once they are in place, `abort`
/// forgets it. Until the commit everything is stamped with the version before, so no sample carries weights that never
/// arrived. A clock that follows an engine outside uses `observe` instead.
///
/// Not thread-safe. Misuse throws std::invalid_argument and changes nothing.
class version_clock {
  public:
    /// @pre `first` is not negative.
    explicit version_clock(policy_version first = {}) : current_(first) {
        detail::require(first.value >= 0, "first version", first.value, "at least 0");
    }

    [[nodiscard]] policy_version current() const noexcept { return current_; }

    /// The version between `begin` and its `commit` or `abort`.
    [[nodiscard]] std::optional<policy_version> pending() const noexcept { return pending_; }

    /// @pre Nothing is pending and `next` is newer than the current version.
    void begin(policy_version next) {
        require_nothing_pending();
        detail::require(next > current_, "next version", next.value, "newer than the current one");
        pending_ = next;
    }

    /// @pre A version is pending. Returns the version that is now current.
    policy_version commit() {
        require_pending("commit");
        current_ = *pending_;
        pending_.reset();
        return current_;
    }

    /// @pre A version is pending. The current version stays.
    void abort() {
        require_pending("abort");
        pending_.reset();
    }

    /// Reports the version that an engine outside serves now. Returns how many versions the clock advanced; 0 and negative
    /// results (an engine that lags) leave it where it was.
    ///
    /// @pre Nothing is pending: one clock either publishes or follows.
    std::int64_t observe(policy_version served) {
        require_nothing_pending();
        std::int64_t const advance = staleness(served, current_);
        if (advance > 0) {
            current_ = served;
        }
        return advance;
    }

  private:
    void require_nothing_pending() const {
        detail::require(!pending_, "pending version", pending_.value_or(policy_version{}).value, "committed or aborted first");
    }
    void require_pending(char const* call) const {
        detail::require(pending_.has_value(), call, current_.value, "preceded by begin (the value is the current version)");
    }

    policy_version current_;
    std::optional<policy_version> pending_;
};

ASYNCRL_END_NAMESPACE
