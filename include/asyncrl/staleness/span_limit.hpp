// SPDX-License-Identifier: Apache-2.0
/// @file How many versions one trajectory may cross, asked before each further piece is added to it; and what becomes of a
/// group of which a trajectory was rejected.
#pragma once

#include <asyncrl/config.hpp>
#include <asyncrl/error.hpp>
#include <asyncrl/fwd.hpp>
#include <asyncrl/staleness/policy_version.hpp>
#include <asyncrl/staleness/version_labels.hpp>
#include <asyncrl/staleness/version_runs.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

ASYNCRL_BEGIN_NAMESPACE

enum class span_verdict : std::uint8_t {
    proceed,  ///< the piece may be added
    reject,   ///< it may not: the trajectory ends here, without a result
    mask,     ///< it may, but tokens of the older versions must leave the loss mask
};

/// What is said of one trajectory; the names are those under which a proxy reports a rejection to its client.
struct span_decision {
    span_verdict verdict = span_verdict::proceed;
    std::string_view error = {};        ///< empty for proceed
    std::int64_t version_span = 0;      ///< distinct real versions, the candidate's included
    std::int64_t version_switches = 0;  ///< version_span - 1, at least 0
    std::optional<std::int64_t> max_switches = std::nullopt;
    std::optional<std::int64_t> max_version_span = std::nullopt;  ///< max_switches + 1

    [[nodiscard]] explicit operator bool() const noexcept { return verdict == span_verdict::proceed; }
};

struct span_limit_options {
    std::optional<std::int64_t> max_switches = std::nullopt;  ///< 0: one version only; without a value there is no limit
    span_verdict on_excess = span_verdict::reject;            ///< reject or mask
    /// Whether a trajectory may go on under new weights at all. If not, any second version is an error, whatever the limit.
    bool partial_rollout = true;
};

/// Limits the distinct versions of one trajectory, which bounds how far its beginning lies from its end.
///
/// A mask of the loss alone does not: the context that the tokens continue was still made by old policies. Stateless, so one
/// object serves all threads.
class span_limit {
  public:
    static constexpr std::string_view exceeded = "partial_rollout_staleness_exceeded";
    static constexpr std::string_view changed = "trajectory_version_changed";

    /// Throws std::invalid_argument for negative max_switches, or on_excess == proceed.
    explicit span_limit(span_limit_options const& options) : options_(options) {
        detail::require(options.max_switches.value_or(0) >= 0, "max_switches", options.max_switches.value_or(0),
                        "at least 0, or absent");
        detail::require(options.on_excess != span_verdict::proceed, "on_excess", static_cast<int>(options.on_excess),
                        "reject or mask");
    }

    [[nodiscard]] span_limit_options const& options() const noexcept { return options_; }

    /// Judges a trajectory of `span` distinct versions.
    [[nodiscard]] span_decision judge(std::int64_t span) const noexcept {
        span_decision decision{.version_span = span,
                               .version_switches = std::max<std::int64_t>(span - 1, 0),
                               .max_switches = options_.max_switches};
        if (options_.max_switches) {
            decision.max_version_span = *options_.max_switches + 1;
        }
        if (!options_.partial_rollout && span > 1) {
            decision.verdict = span_verdict::reject;
            decision.error = changed;
        } else if (options_.max_switches && decision.version_switches > *options_.max_switches) {
            decision.verdict = options_.on_excess;
            decision.error = exceeded;
        }
        return decision;
    }

    /// Judges a trajectory after one more piece made by `candidate`.
    [[nodiscard]] span_decision check(version_runs const& history, policy_version candidate) const noexcept {
        return judge(history.span() + (history.last() == candidate ? 0 : 1));
    }

    /// The same for versions that may repeat, come in any order, or be unknown (labels that are not real, absent numbers): what
    /// the trajectory has so far, and what the piece would add. `versions` becomes the distinct real ones in order of
    /// appearance; labels in it point into the arguments. Allocates only where it must grow.
    [[nodiscard]] span_decision check(std::span<std::string_view const> history, std::span<std::string_view const> candidates,
                                      std::vector<std::string_view>& versions) const {
        return check_distinct(history, candidates, versions, real_label);
    }
    [[nodiscard]] span_decision check(std::span<std::optional<policy_version> const> history,
                                      std::span<std::optional<policy_version> const> candidates,
                                      std::vector<policy_version>& versions) const {
        return check_distinct(history, candidates, versions, [](std::optional<policy_version> version) {
            return version && version->value >= 0 ? version : std::nullopt;
        });
    }

  private:
    template <typename Version, typename Name, typename Real>
    span_decision check_distinct(std::span<Version const> history, std::span<Version const> candidates,
                                 std::vector<Name>& versions, Real real) const {
        versions.clear();
        for (std::span<Version const> const part : {history, candidates}) {
            for (Version const& version : part) {
                auto const name = real(version);
                if (name && std::find(versions.begin(), versions.end(), *name) == versions.end()) {
                    versions.push_back(*name);
                }
            }
        }
        return judge(static_cast<std::int64_t>(versions.size()));
    }

    span_limit_options options_;
};

enum class retry_verdict : std::uint8_t {
    completed,  ///< no member was rejected
    retry,      ///< generate the group again: a new reservation, with the version of then
    drop,       ///< retried often enough
};

/// The attempts of one group, of which a rejected member fails the whole attempt. A small value that lives with the group.
///
/// The worker of a rejected trajectory may answer its agent with an empty result, so that the agent ends by itself; tokens that
/// come after are waste, and counted. Not thread-safe.
class retry_budget {
  public:
    /// Throws std::invalid_argument if `max_retries` is negative.
    explicit retry_budget(std::int64_t max_retries = 2) : max_retries_(max_retries) {
        detail::require(max_retries >= 0, "max_retries", max_retries, "at least 0");
    }

    /// A member was rejected. Returns whether it is the first of this attempt: the time to stop the others.
    bool reject() noexcept {
        ++rejected_members_;
        return !std::exchange(has_failed_, true);
    }

    /// Whether this attempt has failed.
    [[nodiscard]] bool has_failed() const noexcept { return has_failed_; }

    /// Tokens were generated for this group.
    void add_tokens(std::int64_t tokens) noexcept { (has_failed_ ? waste_ : tokens_) += tokens; }

    /// All members of this attempt have stopped. After `retry` the next attempt begins.
    retry_verdict settle() noexcept {
        if (!has_failed_) {
            return retry_verdict::completed;
        }
        lost_tokens_ += std::exchange(tokens_, 0);
        if (retries_ == max_retries_) {
            return retry_verdict::drop;
        }
        ++retries_;
        has_failed_ = false;
        return retry_verdict::retry;
    }

    [[nodiscard]] std::int64_t retries() const noexcept { return retries_; }
    [[nodiscard]] std::int64_t rejected_members() const noexcept { return rejected_members_; }

    /// Tokens generated for an attempt that had failed already.
    [[nodiscard]] std::int64_t waste_after_reject() const noexcept { return waste_; }

    /// Tokens that attempts had generated before they failed; those of a failed attempt count once it is settled.
    [[nodiscard]] std::int64_t lost_tokens() const noexcept { return lost_tokens_; }

  private:
    std::int64_t max_retries_;
    std::int64_t retries_ = 0;
    std::int64_t rejected_members_ = 0;
    std::int64_t tokens_ = 0;
    std::int64_t lost_tokens_ = 0;
    std::int64_t waste_ = 0;
    bool has_failed_ = false;
};

ASYNCRL_END_NAMESPACE
