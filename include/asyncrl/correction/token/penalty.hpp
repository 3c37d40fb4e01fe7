// SPDX-License-Identifier: Apache-2.0
/// @file Penalties: added for every active token, whatever weights and masks say of it.
///
/// d = new - reference, as log-probs. Estimators of KL(new || reference) after Schulman (2020): k1 = d, k2 = d^2 / 2,
/// k3 = exp(-d) - 1 + d. Where a penalty has a `clamp`, its value stops there and the gradient is gone beyond.
#pragma once

#include <asyncrl/correction/token/token.hpp>
#include <asyncrl/error.hpp>

#include <cmath>
#include <limits>

ASYNCRL_BEGIN_NAMESPACE

namespace detail {

/// Value and slope, times the coefficient, clamped.
template <typename Number>
struct penalty_scale {
    Number coefficient, clamp;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE term<Real> of(Real value, Real slope) const {
        mask_of<Real> const over = absolute(value) > Real(clamp);
        Real const bound = select(value < Real(0), -Real(clamp), Real(clamp));
        return {Real(coefficient) * select(over, bound, value), select(over, Real(0), Real(coefficient) * slope),
                mark(over, clamped)};
    }
};

template <typename Number>
struct k1_op : penalty_scale<Number> {
    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE term<Real> operator()(token<Real> const& t) const {
        return this->of(t.log_reference, Real(1));
    }
};

template <typename Number>
struct k2_op : penalty_scale<Number> {
    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE term<Real> operator()(token<Real> const& t) const {
        return this->of(Real(0.5) * t.log_reference * t.log_reference, t.log_reference);
    }
};

template <typename Number>
struct k3_op : penalty_scale<Number> {
    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE term<Real> operator()(token<Real> const& t) const {
        return this->of(k3(-t.log_reference, t.reference_ratio), Real(1) - t.reference_ratio);
    }
};

template <typename Number>
struct straight_through_k3_op : penalty_scale<Number> {
    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE term<Real> operator()(token<Real> const& t) const {
        return this->of(k3(-t.log_reference, t.reference_ratio), t.log_reference);
    }
};

template <typename Number>
struct unbiased_k3_op : penalty_scale<Number> {
    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE term<Real> operator()(token<Real> const& t) const {
        return this->of(t.own_ratio * k3(-t.log_reference, t.reference_ratio), t.own_ratio * t.log_reference);
    }
};

template <typename Number>
struct weighted_k3_op : penalty_scale<Number> {
    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE term<Real> operator()(token<Real> const& t) const {
        return this->of(t.own_ratio * k3(-t.log_reference, t.reference_ratio), t.own_ratio * (Real(1) - t.reference_ratio));
    }
};

template <typename Number>
struct squared_log_ratio_op : penalty_scale<Number> {
    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE term<Real> operator()(token<Real> const& t) const {
        return this->of(t.own_log_ratio * t.own_log_ratio, Real(2) * t.own_log_ratio);
    }
};

inline constexpr double no_clamp = std::numeric_limits<double>::infinity();

}  // namespace detail

#define ASYNCRL_PENALTY(name, op, what_it_needs)                                                               \
    struct name {                                                                                              \
        double coefficient;              /* finite and >= 0 */                                                 \
        double clamp = detail::no_clamp; /* of |value| before the coefficient, > 0 */                          \
                                                                                                               \
        static constexpr role kind = role::penalty;                                                            \
        static constexpr std::uint32_t needs = what_it_needs;                                                  \
                                                                                                               \
        void check() const {                                                                                   \
            detail::require(coefficient >= 0 && std::isfinite(coefficient), #name ".coefficient", coefficient, \
                            "finite and >= 0");                                                                \
            detail::require(clamp > 0, #name ".clamp", clamp, "> 0");                                          \
        }                                                                                                      \
        template <typename Number>                                                                             \
        [[nodiscard]] detail::op<Number> bind() const {                                                        \
            return {{static_cast<Number>(coefficient), static_cast<Number>(clamp)}};                           \
        }                                                                                                      \
    }

/// coefficient * k1; slope 1. A constant push: its mean gradient is zero on the new policy's own samples.
ASYNCRL_PENALTY(k1_penalty, k1_op, reads_reference);

/// coefficient * k2; slope d. The gradient of the exact KL on the new policy's own samples.
ASYNCRL_PENALTY(k2_penalty, k2_op, reads_reference);

/// coefficient * k3; slope 1 - exp(-d). GRPO (arXiv 2402.03300).
ASYNCRL_PENALTY(k3_penalty, k3_op, reads_reference);

/// The value of k3 with the slope of k2 (verl's k3+).
ASYNCRL_PENALTY(straight_through_k3_penalty, straight_through_k3_op, reads_reference);

/// r k3 with r = new / anchor of the token, differentiated through r too: slope r d. The unbiased estimate of DeepSeek-V3.2
/// (arXiv 2512.02556).
ASYNCRL_PENALTY(unbiased_k3_penalty, unbiased_k3_op, reads_reference | uses_ratio);

/// The same with r detached: slope r (1 - exp(-d)).
ASYNCRL_PENALTY(weighted_k3_penalty, weighted_k3_op, reads_reference | uses_ratio);

/// coefficient * (log r)^2 with r = new / anchor of the token; slope 2 log r. Kimi K2.5 (arXiv 2602.02276), IPO and DPPO of
/// prime-rl; with policy_gradient and half of Kimi k1.5's beta it is that method (arXiv 2501.12599).
ASYNCRL_PENALTY(squared_log_ratio_penalty, squared_log_ratio_op, uses_ratio);

#undef ASYNCRL_PENALTY

ASYNCRL_END_NAMESPACE
