// SPDX-License-Identifier: Apache-2.0
/// @file The order in which new weights reach engines that are generating: pause, quiet, apply, commit, resume.
#pragma once

#include <asyncrl/config.hpp>
#include <asyncrl/error.hpp>
#include <asyncrl/fwd.hpp>
#include <asyncrl/staleness/policy_version.hpp>

#include <cstdint>
#include <optional>

ASYNCRL_BEGIN_NAMESPACE

/// What a generation under way does when a pause begins.
enum class gate_mode : std::uint8_t {
    boundary,  ///< stops after its current token (or chunk) and goes on under the new weights: partial rollout
    drain,     ///< runs to its end; its tokens are all of one version
};

enum class gate_state : std::uint8_t {
    open,     ///< generations start and go on
    pausing,  ///< none starts; some have not stopped yet
    quiet,    ///< none reads the weights: they may be replaced
};

enum class gate_status : std::uint8_t {
    ok,
    not_open,     ///< a pause is on: nothing has changed
    stale_epoch,  ///< a pause gave this generation up: its result is refused
};

/// A generation's permission to read the weights. A plain value of the worker; the gate brings it up to date.
struct gate_pass {
    std::uint64_t epoch = 0;      ///< pauses begun before this permission was given
    policy_version version = {};  ///< of the weights that it reads until its next boundary
    bool is_parked = false;       ///< stopped at a boundary, reads nothing
};

/// Who may read the rollout weights, and when they may be replaced. Only counts: who waits, and how, is the caller's matter
/// (`gate_controller` does it with threads).
///
/// Rollout side: `enter`, then tokens; in boundary mode, between two tokens, `park` when `must_park()` and `unpark` once it is
/// open again; `leave` at the end. Training side, in this order: `pause`, wait for `state() == quiet`, `begin`, replace the
/// weights, `commit`, `resume`. Every pause opens an epoch.
///
/// No worker sees half of a swap: `begin` is refused until all have stopped, and none goes on before `resume`.
///
/// Not thread-safe. Misuse of the training side throws std::invalid_argument and changes nothing.
class rollout_gate {
  public:
    /// @pre `first` is not negative.
    explicit rollout_gate(gate_mode mode, policy_version first = {}) : mode_(mode), clock_(first) {}

    // --- rollout side --------------------------------------------------------------------------------------------------

    /// Starts a generation; nothing while a pause is on.
    [[nodiscard]] std::optional<gate_pass> enter() noexcept {
        if (is_paused_) {
            return std::nullopt;
        }
        ++running_;
        return gate_pass{.epoch = epoch_, .version = clock_.current()};
    }

    /// Whether generations under way must stop at their next boundary.
    [[nodiscard]] bool must_park() const noexcept { return is_paused_ && mode_ == gate_mode::boundary; }

    /// The generation has stopped between two tokens. Statuses: ok, stale_epoch.
    gate_status park(gate_pass& pass) noexcept {
        if (is_given_up(pass)) {
            return gate_status::stale_epoch;
        }
        if (!pass.is_parked) {
            pass.is_parked = true;
            --running_;
            ++parked_;
        }
        return gate_status::ok;
    }

    /// The generation wants to go on; if ok, `pass` names the version that makes its next token. Statuses: ok, not_open,
    /// stale_epoch.
    gate_status unpark(gate_pass& pass) noexcept {
        if (is_given_up(pass)) {
            return gate_status::stale_epoch;
        }
        if (is_paused_) {
            return gate_status::not_open;
        }
        if (pass.is_parked) {
            --parked_;
            ++running_;
        }
        pass = {.epoch = epoch_, .version = clock_.current()};
        return gate_status::ok;
    }

    /// The generation has ended, or been broken off. Once for each `enter`. Statuses: ok, stale_epoch.
    gate_status leave(gate_pass const& pass) noexcept {
        if (is_given_up(pass)) {
            return gate_status::stale_epoch;
        }
        --(pass.is_parked ? parked_ : running_);
        return gate_status::ok;
    }

    // --- training side -------------------------------------------------------------------------------------------------

    /// Opens an epoch, in which nothing starts until `resume`. Returns its number.
    ///
    /// @pre No pause is on.
    std::uint64_t pause() {
        detail::require(!is_paused_, "epoch of pause", epoch_, "ended by resume before the next");
        is_paused_ = true;
        return ++epoch_;
    }

    /// Gives up the generations that have not stopped, as after a timeout: they count as gone, and what they bring later is
    /// refused as stale_epoch. The engines must have aborted them: they must not read the weights again. Returns how many.
    ///
    /// @pre A pause is on.
    std::int64_t abandon() {
        require_paused("abandon");
        std::int64_t const given_up = running_;
        if (given_up > 0) {
            valid_from_ = epoch_;
            running_ = 0;
        }
        return given_up;
    }

    /// The weights of `next` are about to replace those in place.
    ///
    /// @pre The gate is quiet, nothing is pending, `next` is newer.
    void begin(policy_version next) {
        require_paused("begin");
        detail::require(running_ == 0, "generations under way", running_, "0 before weights are replaced");
        clock_.begin(next);
    }

    /// The new weights are in place. Returns the version that they are. @pre Follows `begin`.
    policy_version commit() { return clock_.commit(); }

    /// The old weights are in place again. @pre Follows `begin`.
    void abort() { clock_.abort(); }

    /// Lets generations start and go on.
    ///
    /// @pre A pause is on, and no version is between `begin` and its `commit` or `abort`. With or without a swap; also before
    /// all have stopped.
    void resume() {
        require_paused("resume");
        detail::require(!clock_.pending(), "pending version", clock_.pending().value_or(policy_version{}).value,
                        "committed or aborted before resume");
        is_paused_ = false;
    }

    // --- watching ------------------------------------------------------------------------------------------------------

    [[nodiscard]] gate_mode mode() const noexcept { return mode_; }
    [[nodiscard]] gate_state state() const noexcept {
        return !is_paused_ ? gate_state::open : running_ > 0 ? gate_state::pausing : gate_state::quiet;
    }
    [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }
    [[nodiscard]] policy_version version() const noexcept { return clock_.current(); }

    /// Generations that read the weights now, and those stopped at a boundary.
    [[nodiscard]] std::int64_t running() const noexcept { return running_; }
    [[nodiscard]] std::int64_t parked() const noexcept { return parked_; }

    /// Permissions of earlier epochs have been given up, unless parked: a parked generation reads nothing, so no pause gives it
    /// up.
    [[nodiscard]] std::uint64_t valid_from() const noexcept { return valid_from_; }
    [[nodiscard]] bool is_given_up(gate_pass const& pass) const noexcept { return !pass.is_parked && pass.epoch < valid_from_; }

  private:
    void require_paused(char const* call) const {
        detail::require(is_paused_, call, epoch_, "preceded by pause (the value is the epoch)");
    }

    gate_mode mode_;
    version_clock clock_;
    std::uint64_t epoch_ = 0;
    std::uint64_t valid_from_ = 0;
    std::int64_t running_ = 0;
    std::int64_t parked_ = 0;
    bool is_paused_ = false;
};

ASYNCRL_END_NAMESPACE
