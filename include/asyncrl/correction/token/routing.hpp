// SPDX-License-Identifier: Apache-2.0
/// @file The gates of chosen experts, weight / total, and their gradient back to a router's logit. Exponentials are the
/// caller's.
#pragma once

#include <asyncrl/correction/token/real.hpp>

ASYNCRL_BEGIN_NAMESPACE

/// 1 / (1 + exp(-z)); sigmoid(-z) is 1 less it without cancellation.
template <typename Real, typename Exponential>
[[nodiscard]] ASYNCRL_HOST_DEVICE Real sigmoid(Real z, Exponential const& exponential) {
    Real const e = exponential(-absolute(z));
    return select(z < Real(0), e, Real(1)) / (Real(1) + e);
}

/// d loss / d z of an expert with weight w(z) and gate w / (total of the chosen): gate (log w)' (u - mean), where u is
/// d loss / d gate, 0 if the expert is not chosen, and mean the sum of gate u over the chosen. (log w)' is 1 for a softmax and
/// sigmoid(-z) for a sigmoid.
template <typename Real>
[[nodiscard]] ASYNCRL_HOST_DEVICE Real gate_gradient(Real gate, Real log_weight_slope, Real u, Real mean) {
    return gate * log_weight_slope * (u - mean);
}

ASYNCRL_END_NAMESPACE
