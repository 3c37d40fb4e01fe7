// SPDX-License-Identifier: Apache-2.0
/// @file What `mismatch` is told and what it reports, on the host and on the GPU.
#pragma once

#include <asyncrl/config.hpp>
#include <asyncrl/correction/loss_report.hpp>
#include <asyncrl/correction/magnitude_histogram.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>

ASYNCRL_BEGIN_NAMESPACE

/// The two policies of a log ratio, numerator first.
enum class policy_pair : std::uint8_t { old_rollout, new_rollout, new_old };

struct mismatch_options {
    policy_pair pair = policy_pair::old_rollout;
    double cap = 2;    ///< of the truncated weights
    double low = 0.5;  ///< of the masked weights: kept inside the closed band
    double high = 5;
};

/// Statistics of e = the log ratio of the pair and w = exp(e) over active, scored, finite tokens. Merge by `+=`.
///
/// Weights beyond 2^30 enter the sums as 2^30 and are counted in `overflow`.
struct mismatch_report {
    struct sum_range {
        double log_ratio;
        double absolute_log_ratio;
        double k3;               ///< w - 1 - e
        double total_variation;  ///< |w - 1| / 2
        double raw;              ///< w
        double raw_squared;
        double truncated;  ///< min(w, cap)
        double truncated_squared;
        double masked;  ///< w inside the band, 0 outside
        double masked_squared;
    };
    struct count_range {
        std::int64_t tokens;     ///< active, scored and finite: what the sums are over
        std::int64_t sequences;  ///< rows with at least one such token
        std::int64_t below_one;
        std::int64_t at_cap;       ///< w > cap
        std::int64_t out_of_band;  ///< w < low or w > high
        std::int64_t unscored;
        std::int64_t nonfinite;
        std::int64_t overflow;
    };
    /// Extremes as maxima, so that one rule merges all; the accessors below turn them round. -infinity where there is none.
    struct maximum_range {
        double log_ratio = -INFINITY;
        double negated_log_ratio = -INFINITY;
        double sequence_log_ratio = -INFINITY;
        double negated_sequence_log_ratio = -INFINITY;
    };

    sum_range sums{};
    count_range counts{};
    maximum_range maxima{};
    magnitude_histogram histogram{};  ///< of |e|

    /// Mean over the counted tokens; 0 where there is none.
    [[nodiscard]] double mean(double sum_range::*sum) const {
        return counts.tokens > 0 ? sums.*sum / static_cast<double>(counts.tokens) : 0;
    }
    [[nodiscard]] double share(std::int64_t count_range::*count) const {
        return counts.tokens > 0 ? static_cast<double>(counts.*count) / static_cast<double>(counts.tokens) : 0;
    }
    /// Effective sample size as a share of the tokens: (sum)^2 / (n * sum of squares); 0 where all weights are 0.
    [[nodiscard]] double effective_sample_share(double sum_range::*sum, double sum_range::*squares) const {
        double const n = static_cast<double>(counts.tokens);
        return n > 0 && sums.*squares > 0 ? sums.*sum * sums.*sum / (n * sums.*squares) : 0;
    }
    /// Minus the mean of e: the k1 estimate of KL(denominator || numerator).
    [[nodiscard]] double k1() const { return -mean(&sum_range::log_ratio); }
    [[nodiscard]] double largest_ratio() const { return std::exp(maxima.log_ratio); }
    [[nodiscard]] double smallest_ratio() const { return std::exp(-maxima.negated_log_ratio); }
    [[nodiscard]] double largest_absolute_log_ratio() const {
        return std::max({0.0, maxima.log_ratio, maxima.negated_log_ratio});
    }
    /// Ratios of whole sequences: products over their counted tokens.
    [[nodiscard]] double largest_sequence_ratio() const { return std::exp(maxima.sequence_log_ratio); }
    [[nodiscard]] double smallest_sequence_ratio() const { return std::exp(-maxima.negated_sequence_log_ratio); }
    [[nodiscard]] double largest_absolute_sequence_log_ratio() const {
        return std::max({0.0, maxima.sequence_log_ratio, maxima.negated_sequence_log_ratio});
    }
    /// The quantile of |e| at `share` in [0, 1], at most 1/16 too large and never too small; 0 without tokens.
    [[nodiscard]] double absolute_log_ratio_quantile(double share) const { return histogram.quantile(share); }

    mismatch_report& operator+=(mismatch_report const& other) {
        auto const add = [](auto a, auto b) { return a + b; };
        sums = detail::merged<double>(sums, other.sums, add);
        counts = detail::merged<std::int64_t>(counts, other.counts, add);
        maxima = detail::merged<double>(maxima, other.maxima, [](double a, double b) { return std::max(a, b); });
        histogram += other.histogram;
        return *this;
    }
};

ASYNCRL_END_NAMESPACE
