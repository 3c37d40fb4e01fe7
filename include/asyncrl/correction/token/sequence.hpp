// SPDX-License-Identifier: Apache-2.0
/// @file What parts of an objective see and decide of whole sequences, and what a token then learns of its own.
///
/// A first pass adds up one number a part over the live tokens of each sequence; the part decides once a sequence, in double;
/// the second pass is the loss. A sequence is a row of the batch or, where token_batch::segments cuts it finer, a segment.
#pragma once

#include <asyncrl/correction/token/token.hpp>

ASYNCRL_BEGIN_NAMESPACE

/// How the ratios of a sequence's tokens become one.
enum class level : std::uint8_t {
    product,    ///< exp(sum of log-ratios): the ratio of the sequences' probabilities
    geometric,  ///< exp(mean of log-ratios): that, normalised by length
};

/// A sequence as a part decides on it.
struct sequence_sums {
    double tokens;     ///< live: active and finite
    double advantage;  ///< sum over them
    double statistic;  ///< sum, or maximum, of what the part's `statistic` gave for them

    [[nodiscard]] ASYNCRL_HOST_DEVICE double mean() const { return tokens > 0 ? statistic / tokens : 0; }
    [[nodiscard]] ASYNCRL_HOST_DEVICE double at(level which) const { return which == level::product ? statistic : mean(); }
};

/// What a part of role sequence_weight decides.
struct sequence_factor {
    double value = 1;
    bool keep = true;
    bool capped = false;
};

namespace detail {

/// All that was decided of one sequence.
struct sequence_values {
    double tokens = 0;
    double weight = 1;
    double log_ratio = 0;
    double ratio = 1;
    double spread = 1;     ///< d(log_ratio) / d(own log_prob), times the number of tokens
    double advantage = 0;  ///< mean
    double slope = 0;      ///< mean over the tokens of what the surrogate's slope is by itself
    bool keep = true;
    bool capped = false;
};

/// The same as tokens see it.
template <typename Real>
struct sequence_context {
    Real weight, log_ratio, ratio, spread, advantage, slope;
    mask_of<Real> keep, capped;
};

}  // namespace detail
ASYNCRL_END_NAMESPACE
