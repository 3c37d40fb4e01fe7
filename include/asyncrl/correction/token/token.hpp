// SPDX-License-Identifier: Apache-2.0
/// @file What a part of an objective sees of one token, what it answers, and how it declares what it needs.
#pragma once

#include <asyncrl/correction/token/real.hpp>

ASYNCRL_BEGIN_NAMESPACE

/// One token, with every exponential taken already. Fields that no part of the objective needs are not set.
/// Log-probabilities are in nats.
template <typename Real>
struct token {
    Real log_prob;      ///< of the sampled token under the new policy
    Real log_ratio;     ///< new - anchor; the anchor is the old policy unless the objective names another
    Real ratio;         ///< exp(log_ratio)
    Real log_mismatch;  ///< old - rollout
    Real mismatch;      ///< exp(log_mismatch)
    Real advantage;
};

/// What happened to a token. Set for active tokens only; all but `unscored` and `nonfinite_input` only where the advantage
/// is not zero.
enum token_flag : std::uint32_t {
    clipped_high = 1U << 0,     ///< the upper bound removed the gradient
    clipped_low = 1U << 1,      ///< the lower bound removed the gradient
    capped = 1U << 2,           ///< a weight was truncated
    gated = 1U << 3,            ///< a mask rejected the token
    tail = 1U << 5,             ///< SAT narrowed this token's interval
    nonfinite_input = 1U << 7,  ///< a needed input or the result is NaN or infinite
    unscored = 1U << 8,         ///< the rollout engine gave no log-prob
};

/// A loss and its derivative with respect to the new log-prob.
template <typename Real>
struct term {
    Real value;
    Real slope;
    bits_of<Real> flags;
};

/// A detached weight: `value` multiplies the surrogate where `keep` holds, and the token is rejected elsewhere.
template <typename Real>
struct factor {
    Real value;
    mask_of<Real> keep;
    bits_of<Real> flags;
};

/// The role of a part within an objective.
enum class role : std::uint8_t { anchor, surrogate, weight, reduction };

/// What a part reads or asks for. The union over the parts decides, at compile time, which columns are loaded, which
/// exponentials are taken and which passes run.
enum need : std::uint32_t {
    reads_old = 1U << 0,
    reads_rollout = 1U << 1,
    uses_ratio = 1U << 2,       ///< log_ratio and ratio
    uses_mismatch = 1U << 3,    ///< log_mismatch and mismatch
    may_reject = 1U << 4,       ///< `keep` can be false
    weighs_mismatch = 1U << 5,  ///< counts old / rollout once
    anchors_rollout = 1U << 6,  ///< the ratio is new / rollout
    batch_quantile = 1U << 7,   ///< an order statistic of |log_ratio| over the whole batch
};

ASYNCRL_END_NAMESPACE
