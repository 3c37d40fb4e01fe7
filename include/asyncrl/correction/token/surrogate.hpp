// SPDX-License-Identifier: Apache-2.0
/// @file Surrogates that clip: the loss of one token as a function of its ratio r = new / anchor, with the derivative in closed
/// form. A is the advantage, x the new log-prob.
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

struct importance_gradient_op {
    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE term<Real> operator()(token<Real> const& t) const {
        Real const loss = (Real(0) - t.advantage) * t.ratio;
        return {loss, loss, no_bits<Real>()};
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

template <typename Number>
struct dual_clip_op {
    ppo_clip_op<Number> clip;
    Number log_cap, cap;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE term<Real> operator()(token<Real> const& t) const {
        term<Real> const inner = clip(t);
        mask_of<Real> const over = (t.advantage < Real(0)) & (t.log_ratio > Real(log_cap));
        return {select(over, (Real(0) - t.advantage) * Real(cap), inner.value), select(over, Real(0), inner.slope),
                inner.flags | mark(over, capped)};
    }
};

/// What all clips with bounds around 1 check.
inline void check_clip(double low, double high, char const* low_name, char const* high_name) {
    require(low >= 0 && low < 1, low_name, low, "in [0, 1)");
    require(high >= 0 && std::isfinite(high), high_name, high, "finite and >= 0");
}

}  // namespace detail

/// -A x: REINFORCE. Needs no old policy; combine with a weight for off-policy data.
struct policy_gradient {
    static constexpr role kind = role::surrogate;
    static constexpr std::uint32_t needs = scores;

    template <typename Number>
    [[nodiscard]] detail::policy_gradient_op bind() const {
        return {};
    }
};

/// -A r, bounded by nothing. The surrogate of conservative policy iteration (Kakade and Langford, 2002); with masks, of DPPO.
struct importance_gradient {
    static constexpr role kind = role::surrogate;
    static constexpr std::uint32_t needs = uses_ratio;

    template <typename Number>
    [[nodiscard]] detail::importance_gradient_op bind() const {
        return {};
    }
};

/// max(-A r, -A clip(r, 1 - low, 1 + high)). The interval is closed: at a bound the gradient flows.
/// PPO (arXiv 1707.06347); unequal bounds as in DAPO's clip-higher (arXiv 2503.14476).
struct ppo_clip {
    double low = 0.2;   ///< distance of the lower bound from 1, in [0, 1)
    double high = 0.2;  ///< distance of the upper bound from 1, finite and >= 0

    static constexpr role kind = role::surrogate;
    static constexpr std::uint32_t needs = uses_ratio;

    void check() const { detail::check_clip(low, high, "ppo_clip.low", "ppo_clip.high"); }
    template <typename Number>
    [[nodiscard]] detail::ppo_clip_op<Number> bind() const {
        return {detail::clip_interval<Number>::around_one(low, high)};
    }
};

/// PPO's clip that for A < 0 also stops at `cap`: min(clip, -A cap). Dual clip (arXiv 1912.09729).
struct dual_clip {
    double low = 0.2;   ///< as in ppo_clip
    double high = 0.2;  ///< as in ppo_clip
    double cap = 3;     ///< a ratio, finite and > 1

    static constexpr role kind = role::surrogate;
    static constexpr std::uint32_t needs = uses_ratio;

    void check() const {
        detail::check_clip(low, high, "dual_clip.low", "dual_clip.high");
        detail::require(cap > 1 && std::isfinite(cap), "dual_clip.cap", cap, "finite and > 1");
    }
    template <typename Number>
    [[nodiscard]] detail::dual_clip_op<Number> bind() const {
        return {ppo_clip{low, high}.bind<Number>(), static_cast<Number>(std::log(cap)), static_cast<Number>(cap)};
    }
};

/// PPO's clip whose unclipped branch stops at `delta`: max(-A min(r, delta), -A clip(r)). Two-sided clipping of INTELLECT-2
/// (arXiv 2505.07291). A dual clip whose cap is not inside the interval.
struct delta_clip {
    double low = 0.2;   ///< as in ppo_clip
    double high = 0.2;  ///< as in ppo_clip
    double delta = 4;   ///< a ratio, finite and >= 1 + high: below, it would take the gradient of A > 0 inside the interval

    static constexpr role kind = role::surrogate;
    static constexpr std::uint32_t needs = uses_ratio;

    void check() const {
        detail::check_clip(low, high, "delta_clip.low", "delta_clip.high");
        detail::require(delta >= 1 + high && std::isfinite(delta), "delta_clip.delta", delta,
                        "finite and at least 1 + delta_clip.high = " + detail::text(1 + high));
    }
    template <typename Number>
    [[nodiscard]] detail::dual_clip_op<Number> bind() const {
        return dual_clip{low, high, delta}.bind<Number>();
    }
};

ASYNCRL_END_NAMESPACE
