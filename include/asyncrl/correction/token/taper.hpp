// SPDX-License-Identifier: Apache-2.0
/// @file Surrogates without a clip, whose gradient fades or turns as the ratio r = new / anchor leaves 1. A is the advantage.
#pragma once

#include <asyncrl/correction/token/surrogate.hpp>

ASYNCRL_BEGIN_NAMESPACE

namespace detail {

/// -A r + |A| strength (r - 1)^2 / 2, whose derivative vanishes at |r - 1| = 1 / strength on the side to which A pushes.
template <typename Real>
[[nodiscard]] ASYNCRL_HOST_DEVICE term<Real> quadratic_penalty(token<Real> const& t, Real strength) {
    Real const off = t.ratio - Real(1);
    Real const pull = absolute(t.advantage) * strength * off;
    Real const cost = Real(0) - t.advantage;
    mask_of<Real> const turned = off * strength * select(t.advantage > Real(0), Real(1), Real(-1)) > Real(1);
    return {cost * t.ratio + Real(0.5) * pull * off, cost * t.ratio + pull * t.ratio,
            mark(turned & (t.advantage > Real(0)), clipped_high) | mark(turned & (t.advantage < Real(0)), clipped_low)};
}

template <typename Number>
struct spo_op {
    Number strength;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE term<Real> operator()(token<Real> const& t) const {
        return quadratic_penalty(t, Real(strength));
    }
};

template <typename Number>
struct drpo_op {
    Number inverse_delta;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE term<Real> operator()(token<Real> const& t) const {
        return quadratic_penalty(t, t.anchor_probability * Real(inverse_delta));
    }
};

template <typename Number>
struct sapo_op {
    Number tau_positive, tau_negative;

    template <typename Real, typename Math>
    [[nodiscard]] ASYNCRL_HOST_DEVICE term<Real> operator()(token<Real> const& t, Math const& math) const {
        Real const tau = select(t.advantage > Real(0), Real(tau_positive), Real(tau_negative));
        Real const e = math.exp(smaller(tau * (Real(1) - t.ratio), Real(real_traits<Real>::largest_exponent)));
        Real const sigmoid = Real(1) / (Real(1) + e);
        Real const cost = Real(4) * (Real(0) - t.advantage);
        return {cost * sigmoid / tau, cost * t.ratio * (e * sigmoid) * sigmoid, no_bits<Real>()};
    }
};

}  // namespace detail

/// -A r + |A| (r - 1)^2 / (2 epsilon): the gradient is 0 where PPO's would be clipped and turns back beyond. Simple policy
/// optimization, SPO (arXiv 2401.16025). It squares r: in float a log-ratio beyond 44 gives no finite loss; log_ratio_clamp
/// bounds it.
struct spo {
    double epsilon = 0.2;  ///< finite and > 0

    static constexpr role kind = role::surrogate;
    static constexpr std::uint32_t needs = uses_ratio;

    void check() const { detail::require(epsilon > 0 && std::isfinite(epsilon), "spo.epsilon", epsilon, "finite and > 0"); }
    template <typename Number>
    [[nodiscard]] detail::spo_op<Number> bind() const {
        return {static_cast<Number>(1 / epsilon)};
    }
};

/// spo with epsilon = delta / anchor probability: the gradient is 0 where |p - anchor p| = delta. DRPO (arXiv 2606.09821). It
/// squares r as spo does.
struct drpo {
    double delta = 12.5;  ///< a difference of probabilities, finite and > 0

    static constexpr role kind = role::surrogate;
    static constexpr std::uint32_t needs = uses_ratio | uses_probability | of_one_token;

    void check() const { detail::require(delta > 0 && std::isfinite(delta), "drpo.delta", delta, "finite and > 0"); }
    template <typename Number>
    [[nodiscard]] detail::drpo_op<Number> bind() const {
        return {static_cast<Number>(1 / delta)};
    }
};

/// -A (4 / tau) sigmoid(tau (r - 1)): the gradient is that of -A r at r = 1 and fades on both sides. SAPO (arXiv 2511.20347).
struct sapo {
    double tau_positive = 1;     ///< for A > 0; finite and > 0
    double tau_negative = 1.05;  ///< for A <= 0; finite and > 0

    static constexpr role kind = role::surrogate;
    static constexpr std::uint32_t needs = uses_ratio;

    void check() const {
        detail::require(tau_positive > 0 && std::isfinite(tau_positive), "sapo.tau_positive", tau_positive, "finite and > 0");
        detail::require(tau_negative > 0 && std::isfinite(tau_negative), "sapo.tau_negative", tau_negative, "finite and > 0");
    }
    template <typename Number>
    [[nodiscard]] detail::sapo_op<Number> bind() const {
        return {static_cast<Number>(tau_positive), static_cast<Number>(tau_negative)};
    }
};

ASYNCRL_END_NAMESPACE
