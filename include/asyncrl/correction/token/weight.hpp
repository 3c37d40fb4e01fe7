// SPDX-License-Identifier: Apache-2.0
/// @file Detached weights of one token, functions of w = old / rollout. They correct for who sampled the data.
#pragma once

#include <asyncrl/correction/token/token.hpp>
#include <asyncrl/error.hpp>

#include <cmath>

ASYNCRL_BEGIN_NAMESPACE

namespace detail {

struct importance_weight_op {
    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE factor<Real> operator()(token<Real> const& t) const {
        return {t.mismatch, always<Real>(), no_bits<Real>()};
    }
};

template <typename Number>
struct tis_op {
    Number log_cap, cap;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE factor<Real> operator()(token<Real> const& t) const {
        mask_of<Real> const over = t.log_mismatch > Real(log_cap);
        return {select(over, Real(cap), t.mismatch), always<Real>(), mark(over, capped)};
    }
};

template <typename Number>
struct mis_op {
    Number log_low, log_high;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE factor<Real> operator()(token<Real> const& t) const {
        mask_of<Real> const inside = (t.log_mismatch >= Real(log_low)) & (t.log_mismatch <= Real(log_high));
        return {t.mismatch, inside, no_bits<Real>()};
    }
};

}  // namespace detail

/// w itself: unbiased, with unbounded variance.
struct importance_weight {
    static constexpr role kind = role::weight;
    static constexpr std::uint32_t needs = uses_mismatch | weighs_mismatch;

    template <typename Number>
    [[nodiscard]] detail::importance_weight_op bind() const {
        return {};
    }
};

/// Truncated importance sampling: min(w, cap). Yao et al., 2025.
struct tis {
    double cap = 2;  ///< largest weight, finite and > 0

    static constexpr role kind = role::weight;
    static constexpr std::uint32_t needs = uses_mismatch | weighs_mismatch;

    void check() const { detail::require(cap > 0 && std::isfinite(cap), "tis.cap", cap, "finite and > 0"); }
    template <typename Number>
    [[nodiscard]] detail::tis_op<Number> bind() const {
        return {static_cast<Number>(std::log(cap)), static_cast<Number>(cap)};
    }
};

/// Masked importance sampling: w inside the closed interval [low, high]; outside, the token is rejected.
/// IcePop (Ring-1T, arXiv 2510.18855), whose interval is the default.
struct mis {
    double low = 0.5;  ///< >= 0; 0 leaves that side open
    double high = 5;   ///< > low; infinity leaves that side open

    static constexpr role kind = role::weight;
    static constexpr std::uint32_t needs = uses_mismatch | weighs_mismatch | may_reject;

    void check() const {
        detail::require(low >= 0 && std::isfinite(low), "mis.low", low, "finite and >= 0");
        detail::require(high > low, "mis.high", high, "greater than mis.low = " + detail::text(low));
    }
    template <typename Number>
    [[nodiscard]] detail::mis_op<Number> bind() const {
        return {static_cast<Number>(std::log(low)), static_cast<Number>(std::log(high))};
    }
};

ASYNCRL_END_NAMESPACE
