// SPDX-License-Identifier: Apache-2.0
/// @file What micro-batches and ranks must add up before the loss: plain numbers, merged by `+=` or by one all-reduce.
#pragma once

#include <asyncrl/config.hpp>

#include <cstdint>
#include <limits>

ASYNCRL_BEGIN_NAMESPACE

/// Counts of one optimizer step. `measure` fills them for one batch; add up those of every micro-batch and rank.
///
/// A caller who knows a count better may write it: the reductions divide by whatever stands here.
struct totals {
    struct count_range {
        std::int64_t batches;         ///< how many batches were added up
        std::int64_t tokens;          ///< active tokens
        std::int64_t sequences;       ///< rows with at least one active token
        std::int64_t kept_tokens;     ///< active tokens that no mask rejected
        std::int64_t kept_sequences;  ///< rows with at least one kept token
    };

    count_range counts{};

    /// The order statistic of |log_ratio| that SAT asks for, over the batch or over whatever the caller puts here: its own
    /// micro-batch's, or that of the whole step from a `quantile_search`. NaN: not known. Adding unequal ones forgets both.
    double quantile = std::numeric_limits<double>::quiet_NaN();

    /// Sum of the effective weights of kept tokens, where normalised_weights ask for it; else NaN.
    double weight = std::numeric_limits<double>::quiet_NaN();

    totals& operator+=(totals const& other) {
        if (counts.batches == 0) {
            quantile = other.quantile;
            weight = 0;
        } else if (quantile != other.quantile) {
            quantile = std::numeric_limits<double>::quiet_NaN();
        }
        weight += other.weight;
        counts.batches += other.counts.batches;
        counts.tokens += other.counts.tokens;
        counts.sequences += other.counts.sequences;
        counts.kept_tokens += other.counts.kept_tokens;
        counts.kept_sequences += other.counts.kept_sequences;
        return *this;
    }
    [[nodiscard]] friend totals operator+(totals left, totals const& right) { return left += right; }
};
static_assert(sizeof(totals::count_range) == 5 * sizeof(std::int64_t), "the counts are one contiguous range");

ASYNCRL_END_NAMESPACE
