// SPDX-License-Identifier: Apache-2.0
/// @file Surrogates: the loss of one token as a function of the new log-prob, with its derivative in closed form.
#pragma once

#include <asyncrl/correction/token/token.hpp>
#include <asyncrl/error.hpp>

#include <cmath>

ASYNCRL_BEGIN_NAMESPACE

namespace detail {

struct policy_gradient_op {
    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE term<Real> operator()(token<Real> const& t) const {
        Real const cost = Real(0) - t.advantage;  // +0 for an advantage of either zero
        return {cost * t.log_prob, cost, no_bits<Real>()};
    }
};

/// An interval of the ratio, decided in log space: bounds are computed in double and rounded once.
template <typename Number>
struct clip_interval {
    Number log_low, log_high, low, high;

    [[nodiscard]] static clip_interval around_one(double below, double above) {
        return {static_cast<Number>(std::log1p(-below)), static_cast<Number>(std::log1p(above)), static_cast<Number>(1 - below),
                static_cast<Number>(1 + above)};
    }
};

template <typename Number>
struct ppo_clip_op {
    clip_interval<Number> interval;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE term<Real> operator()(token<Real> const& t) const {
        mask_of<Real> const above = (t.advantage > Real(0)) & (t.log_ratio > Real(interval.log_high));
        mask_of<Real> const below = (t.advantage < Real(0)) & (t.log_ratio < Real(interval.log_low));
        Real const cost = Real(0) - t.advantage;  // +0 for an advantage of either zero
        Real const inside = cost * t.ratio;
        Real const at_bound = cost * select(above, Real(interval.high), Real(interval.low));
        return {select(above | below, at_bound, inside), select(above | below, Real(0), inside),
                mark(above, clipped_high) | mark(below, clipped_low)};
    }
};

}  // namespace detail

/// -A x with x the new log-prob: REINFORCE. Needs no old policy; combine with a weight for off-policy data.
struct policy_gradient {
    static constexpr role kind = role::surrogate;
    static constexpr std::uint32_t needs = 0;

    template <typename Number>
    [[nodiscard]] detail::policy_gradient_op bind() const {
        return {};
    }
};

/// max(-A r, -A clip(r, 1 - low, 1 + high)) with r = new / anchor. The interval is closed: at a bound the gradient flows.
/// PPO (arXiv 1707.06347); unequal bounds as in DAPO's clip-higher (arXiv 2503.14476).
struct ppo_clip {
    double low = 0.2;   ///< distance of the lower bound from 1, in [0, 1)
    double high = 0.2;  ///< distance of the upper bound from 1, finite and >= 0

    static constexpr role kind = role::surrogate;
    static constexpr std::uint32_t needs = uses_ratio;

    void check() const {
        detail::require(low >= 0 && low < 1, "ppo_clip.low", low, "in [0, 1)");
        detail::require(high >= 0 && std::isfinite(high), "ppo_clip.high", high, "finite and >= 0");
    }
    template <typename Number>
    [[nodiscard]] detail::ppo_clip_op<Number> bind() const {
        return {detail::clip_interval<Number>::around_one(low, high)};
    }
};

ASYNCRL_END_NAMESPACE
