// SPDX-License-Identifier: Apache-2.0
/// @file What a loss call says about its batch: three ranges of plain numbers that micro-batches and ranks merge.
#pragma once

#include <asyncrl/config.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

ASYNCRL_BEGIN_NAMESPACE

/// Numbers of one `policy_loss` call over its active tokens. Add `sums` and `counts`, take the larger of `maxima`: by `+=`,
/// or by one all-reduce for each range. Fields of a ratio that the objective does not use stay 0.
///
/// Mismatch ratios w = old / rollout beyond 2^30 enter the sums as 2^30; `mismatch` counts them.
struct loss_report {
    struct sum_range {
        double loss;           ///< this batch's share of the reduced loss: shares add up to the whole
        double absolute_loss;  ///< the same over |L_t|, the scale for comparing two implementations
        double weight;         ///< effective weights: the product of the weights, 0 where rejected
        double weight_squared;
        double mismatch;          ///< w
        double mismatch_squared;  ///< w^2
        double log_mismatch;      ///< log w = old - rollout; its mean is minus the k1 estimate of KL(rollout || old)
        double absolute_log_mismatch;
        double k3_mismatch;         ///< w - 1 - log w; its mean is the k3 estimate of KL(rollout || old)
        double absolute_log_ratio;  ///< |log_ratio| of single tokens
        double penalty;             ///< penalties, coefficients included, before the reduction
    };
    struct count_range {
        std::int64_t tokens;     ///< active
        std::int64_t sequences;  ///< rows of the batch
        std::int64_t kept;       ///< active and not rejected
        std::int64_t clipped_high;
        std::int64_t clipped_low;
        std::int64_t capped;
        std::int64_t gated;
        std::int64_t tail;       ///< narrowed by SAT
        std::int64_t nonfinite;  ///< a needed input or the result is NaN or infinite
        std::int64_t unscored;
        std::int64_t clamped;
    };
    struct maximum_range {
        double absolute_log_mismatch;
        double absolute_log_ratio;
    };

    sum_range sums{};
    count_range counts{};
    maximum_range maxima{};
    std::int64_t first_nonfinite = -1;  ///< position in the batch, counted row after row; -1: none. Not merged across batches

    /// Effective sample size of the effective weights as a share of the active tokens: (sum w)^2 / (n sum w^2), in (0, 1].
    [[nodiscard]] double effective_sample_share() const {
        double const n = static_cast<double>(counts.tokens);
        return n > 0 && sums.weight_squared > 0 ? sums.weight * sums.weight / (n * sums.weight_squared) : 0;
    }
    /// Share of active tokens for which `count` was counted; 0 where there is none.
    [[nodiscard]] double share(std::int64_t count_range::*count) const {
        return counts.tokens > 0 ? static_cast<double>(counts.*count) / static_cast<double>(counts.tokens) : 0;
    }
    /// Mean over active tokens; 0 where there is none.
    [[nodiscard]] double mean(double sum_range::*sum) const {
        return counts.tokens > 0 ? sums.*sum / static_cast<double>(counts.tokens) : 0;
    }

    loss_report& operator+=(loss_report const& other);
    [[nodiscard]] friend loss_report operator+(loss_report left, loss_report const& right) { return left += right; }
};
static_assert(sizeof(loss_report) == (11 + 11 + 2 + 1) * 8, "three contiguous ranges of 8-byte numbers");

namespace detail {

template <typename Number, typename Range, typename Merge>
[[nodiscard]] Range merged(Range const& left, Range const& right, Merge merge) {
    using numbers = std::array<Number, sizeof(Range) / sizeof(Number)>;
    auto const a = std::bit_cast<numbers>(left);
    auto const b = std::bit_cast<numbers>(right);
    numbers out{};
    std::transform(a.begin(), a.end(), b.begin(), out.begin(), merge);
    return std::bit_cast<Range>(out);
}

}  // namespace detail

inline loss_report& loss_report::operator+=(loss_report const& other) {
    auto const add = [](auto a, auto b) { return a + b; };
    sums = detail::merged<double>(sums, other.sums, add);
    counts = detail::merged<std::int64_t>(counts, other.counts, add);
    maxima = detail::merged<double>(maxima, other.maxima, [](double a, double b) { return std::max(a, b); });
    first_nonfinite = first_nonfinite >= 0 ? first_nonfinite : other.first_nonfinite;
    return *this;
}

ASYNCRL_END_NAMESPACE
