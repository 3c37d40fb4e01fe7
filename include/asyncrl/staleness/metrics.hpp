// SPDX-License-Identifier: Apache-2.0
/// @file What staleness control did in a stretch of time: one plain struct that workers and ranks merge.
#pragma once

#include <asyncrl/config.hpp>
#include <asyncrl/error.hpp>
#include <asyncrl/fwd.hpp>
#include <asyncrl/staleness/batch_window.hpp>
#include <asyncrl/staleness/policy_version.hpp>
#include <asyncrl/staleness/span_limit.hpp>
#include <asyncrl/staleness/unit.hpp>
#include <asyncrl/staleness/version_runs.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

ASYNCRL_BEGIN_NAMESPACE

/// Counts by staleness in batches. Adds up; means are exact, the extremes up to 63.
struct staleness_histogram {
    static constexpr std::int64_t largest = 64;  ///< this bucket also holds all above

    std::array<std::int64_t, largest + 1> counts{};  ///< by staleness; samples from the future stand under 0
    std::int64_t future = 0;                         ///< how many of those
    std::int64_t sum = 0;                            ///< of staleness, the negative ones included

    void add(std::int64_t staleness, std::int64_t count = 1) noexcept {
        counts[static_cast<std::size_t>(std::clamp<std::int64_t>(staleness, 0, largest))] += count;
        future += staleness < 0 ? count : 0;
        sum += staleness * count;
    }

    [[nodiscard]] std::int64_t total() const noexcept {
        std::int64_t all = 0;
        for (std::int64_t const count : counts) {
            all += count;
        }
        return all;
    }
    /// 0 for an empty histogram, as are the extremes.
    [[nodiscard]] double mean() const noexcept {
        std::int64_t const n = total();
        return n == 0 ? 0 : static_cast<double>(sum) / static_cast<double>(n);
    }
    [[nodiscard]] std::int64_t min() const noexcept {
        auto const first = std::find_if(counts.begin(), counts.end(), [](std::int64_t count) { return count != 0; });
        return first == counts.end() ? 0 : first - counts.begin();
    }
    [[nodiscard]] std::int64_t max() const noexcept {
        auto const last = std::find_if(counts.rbegin(), counts.rend(), [](std::int64_t count) { return count != 0; });
        return last == counts.rend() ? 0 : counts.rend() - last - 1;
    }
};

/// How far a unit had come when it was dropped.
enum class drop_stage : std::uint8_t {
    in_flight,    ///< being generated
    in_queue,     ///< completed, waiting for its batch
    at_training,  ///< taken, then refused by the trainer
};
inline constexpr std::size_t drop_stage_count = 3;
inline constexpr std::size_t admission_status_count = static_cast<std::size_t>(admission_status::max_in_flight) + 1;

/// What a trainer without a batch waits for.
enum class wait_cause : std::uint8_t {
    filling,  ///< more completions; any will do
    /// Certain units in flight, and no other completion helps: `batch_readiness` is blocked, or all reservations of a stuck
    /// buffer are at their bound and cannot move back.
    blocked,
};

/// Numbers of one stretch of time. `+=` merges what several workers or ranks saw of the same stretch; three all-reduces do it
/// too: add `counts` and `seconds`, take the larger of `maxima`.
///
/// Staleness is told three ways, since they disagree on partial rollouts: by a unit's oldest token, which is what the bound
/// limits; by the last token of each trajectory; and token by token.
struct staleness_metrics {
    using by_reason = std::array<std::int64_t, drop_reason_count>;

    struct count_range {
        staleness_histogram staleness;       ///< trained units: batch - oldest version
        staleness_histogram in_flight;       ///< the part of it that passed until the unit was completed
        staleness_histogram in_queue;        ///< the part that passed after that
        staleness_histogram last_version;    ///< trained trajectories: batch - version of the last token
        staleness_histogram token_weighted;  ///< trained tokens: batch - their version

        std::array<std::int64_t, admission_status_count> refused{};  ///< by what forbade the admission
        std::array<by_reason, drop_stage_count> dropped{};           ///< units
        std::array<by_reason, drop_stage_count> dropped_tokens{};    ///< the tokens that they had cost

        std::int64_t batches = 0;
        std::int64_t trained_units = 0;
        std::int64_t trained_trajectories = 0;
        std::int64_t trained_tokens = 0;
        std::int64_t generated_trajectories = 0;
        std::int64_t generated_tokens = 0;
        std::int64_t version_span = 0;  ///< sum over trained trajectories; 1 each if on-policy
        std::int64_t rejected_groups = 0;
        std::int64_t rejected_samples = 0;
        std::int64_t retries = 0;
        std::int64_t waste_after_reject = 0;  ///< tokens
        std::int64_t unversioned = 0;         ///< samples without a real version
    };
    struct second_range {
        double blocked = 0;  ///< the trainer waited, by cause
        double filling = 0;
        double training = 0;
    };
    struct maximum_range {
        double seconds = 0;                 ///< length of the stretch
        double current_version_index = -1;  ///< of the window; -1: none
        double cutoff_version_index = -1;
        double version_span = 0;
        double negative_version_span = -std::numeric_limits<double>::infinity();  ///< minus the smallest span
    };

    count_range counts;
    second_range seconds;
    maximum_range maxima;

    // --- telling -------------------------------------------------------------------------------------------------------

    /// An admission was not possible. `open` is none, and counts nothing.
    void refuse(admission_status reason) noexcept {
        counts.refused[static_cast<std::size_t>(reason)] += reason == admission_status::open ? 0 : 1;
    }

    /// A trajectory was generated to its end, whatever becomes of it.
    void generate(std::int64_t tokens) noexcept {
        ++counts.generated_trajectories;
        counts.generated_tokens += tokens;
    }

    /// A batch was taken.
    void train_batch() noexcept { ++counts.batches; }

    /// A unit of batch `batch`: its oldest version, and the version that was current when it was completed.
    void train_unit(policy_version batch, policy_version oldest, policy_version completed) noexcept {
        ++counts.trained_units;
        counts.staleness.add(staleness(batch, oldest));
        counts.in_flight.add(staleness(completed, oldest));
        counts.in_queue.add(staleness(batch, completed));
    }

    /// A trajectory of batch `batch`. One without tokens counts as nothing.
    void train_trajectory(policy_version batch, version_runs const& runs) noexcept {
        if (runs.tokens() == 0) {
            return;
        }
        ++counts.trained_trajectories;
        counts.trained_tokens += runs.tokens();
        counts.last_version.add(staleness(batch, *runs.last()));
        for (version_run const& run : runs.runs()) {
            counts.token_weighted.add(staleness(batch, run.version), run.tokens);
        }
        counts.version_span += runs.span();
        maxima.version_span = std::max(maxima.version_span, static_cast<double>(runs.span()));
        maxima.negative_version_span = std::max(maxima.negative_version_span, -static_cast<double>(runs.span()));
    }

    /// A unit was dropped, after `tokens` had been generated for it.
    void drop(drop_reason reason, drop_stage stage, std::int64_t tokens) noexcept {
        counts.dropped[static_cast<std::size_t>(stage)][static_cast<std::size_t>(reason)] += 1;
        counts.dropped_tokens[static_cast<std::size_t>(stage)][static_cast<std::size_t>(reason)] += tokens;
    }

    /// A group has had its last attempt.
    void settle(retry_budget const& group) noexcept {
        counts.rejected_groups += group.rejected_members() > 0 ? 1 : 0;
        counts.rejected_samples += group.rejected_members();
        counts.retries += group.retries();
        counts.waste_after_reject += group.waste_after_reject();
    }

    /// The trainer waited. @pre time >= 0; throws std::invalid_argument otherwise, as do the next two.
    void wait(wait_cause cause, double time) {
        detail::require(time >= 0, "time", time, "at least 0");
        (cause == wait_cause::blocked ? seconds.blocked : seconds.filling) += time;
    }
    void train_for(double time) {
        detail::require(time >= 0, "time", time, "at least 0");
        seconds.training += time;
    }
    /// The stretch grows: rates divide by it.
    void elapse(double time) {
        detail::require(time >= 0, "time", time, "at least 0");
        maxima.seconds += time;
    }

    /// Where the window stands now.
    void look_at(batch_window const& window) noexcept {
        if (auto const newest = window.newest()) {
            maxima.current_version_index = static_cast<double>(newest->value);
            maxima.cutoff_version_index = static_cast<double>(window.cutoff().value);
        }
    }

    // --- reading -------------------------------------------------------------------------------------------------------

    [[nodiscard]] std::int64_t dropped(drop_reason reason) const noexcept {
        std::int64_t sum = 0;
        for (by_reason const& stage : counts.dropped) {
            sum += stage[static_cast<std::size_t>(reason)];
        }
        return sum;
    }
    [[nodiscard]] std::int64_t dropped_tokens(drop_reason reason) const noexcept {
        std::int64_t sum = 0;
        for (by_reason const& stage : counts.dropped_tokens) {
            sum += stage[static_cast<std::size_t>(reason)];
        }
        return sum;
    }
    [[nodiscard]] double version_span_mean() const noexcept { return per(counts.version_span, counts.trained_trajectories); }
    [[nodiscard]] std::int64_t version_span_max() const noexcept { return static_cast<std::int64_t>(maxima.version_span); }
    /// 0 where nothing was trained.
    [[nodiscard]] std::int64_t version_span_min() const noexcept {
        return counts.trained_trajectories == 0 ? 0 : -static_cast<std::int64_t>(maxima.negative_version_span);
    }
    [[nodiscard]] double units_per_second() const noexcept { return rate(counts.trained_units); }
    [[nodiscard]] double tokens_per_second() const noexcept { return rate(counts.trained_tokens); }

    /// In tokens. A trained mean below the generated one says that long trajectories are lost.
    [[nodiscard]] double mean_trained_length() const noexcept {
        return per(counts.trained_tokens, counts.trained_trajectories);
    }
    [[nodiscard]] double mean_generated_length() const noexcept {
        return per(counts.generated_tokens, counts.generated_trajectories);
    }

    staleness_metrics& operator+=(staleness_metrics const& other) noexcept {
        auto const add = [](auto a, auto b) { return a + b; };
        counts = merged<std::int64_t>(counts, other.counts, add);
        seconds = merged<double>(seconds, other.seconds, add);
        maxima = merged<double>(maxima, other.maxima, [](double a, double b) { return std::max(a, b); });
        return *this;
    }
    [[nodiscard]] friend staleness_metrics operator+(staleness_metrics left, staleness_metrics const& right) noexcept {
        return left += right;
    }

  private:
    template <typename Number, typename Range, typename Merge>
    static Range merged(Range const& left, Range const& right, Merge merge) noexcept {
        using numbers = std::array<Number, sizeof(Range) / sizeof(Number)>;
        auto const a = std::bit_cast<numbers>(left);
        auto const b = std::bit_cast<numbers>(right);
        numbers out{};
        std::transform(a.begin(), a.end(), b.begin(), out.begin(), merge);
        return std::bit_cast<Range>(out);
    }
    static double per(std::int64_t sum, std::int64_t count) noexcept {
        return count == 0 ? 0 : static_cast<double>(sum) / static_cast<double>(count);
    }
    double rate(std::int64_t count) const noexcept {
        return maxima.seconds > 0 ? static_cast<double>(count) / maxima.seconds : 0;
    }
};

ASYNCRL_END_NAMESPACE
