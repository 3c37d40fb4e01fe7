// SPDX-License-Identifier: Apache-2.0
/// @file Detached weights of one token. Most are functions of w = old / rollout and correct for who sampled the data.
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

template <typename Number>
struct two_sided_tis_op {
    Number log_low, log_high, low, high;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE factor<Real> operator()(token<Real> const& t) const {
        mask_of<Real> const over = t.log_mismatch > Real(log_high);
        mask_of<Real> const under = t.log_mismatch < Real(log_low);
        return {select(over, Real(high), select(under, Real(low), t.mismatch)), always<Real>(), mark(over | under, capped)};
    }
};

struct given_weight_op {
    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE factor<Real> operator()(token<Real> const& t) const {
        return {t.given_weight, always<Real>(), no_bits<Real>()};
    }
};

template <typename Number>
struct staleness_power_op {
    Number exponent;

    template <typename Real, typename Math>
    [[nodiscard]] ASYNCRL_HOST_DEVICE factor<Real> operator()(token<Real> const& t, Math const& math) const {
        return {math.exp(Real(-exponent) * math.log1p(t.staleness)), always<Real>(), no_bits<Real>()};
    }
};

template <typename Number>
struct staleness_exponential_op {
    Number rate;

    template <typename Real, typename Math>
    [[nodiscard]] ASYNCRL_HOST_DEVICE factor<Real> operator()(token<Real> const& t, Math const& math) const {
        return {math.exp(Real(-rate) * t.staleness), always<Real>(), no_bits<Real>()};
    }
};

template <typename Number>
struct staleness_hinge_op {
    Number slope, flat;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE factor<Real> operator()(token<Real> const& t) const {
        Real const beyond = larger(t.staleness - Real(flat), Real(0));
        return {Real(1) / (Real(slope) * beyond + Real(1)), always<Real>(), no_bits<Real>()};
    }
};

template <typename Number>
struct normalised_op {
    Number inverse_mean;

    ASYNCRL_HOST_DEVICE void prepare(batch_numbers const& batch) {
        inverse_mean = static_cast<Number>(batch.mean_weight > 0 ? 1 / batch.mean_weight : 1);
    }
    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE factor<Real> operator()(token<Real> const&) const {
        return {Real(inverse_mean), always<Real>(), no_bits<Real>()};
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

/// w held inside the closed interval [low, high]: bounded both ways, so that no token is forgotten.
struct two_sided_tis {
    double low = 0.5;  ///< finite and > 0
    double high = 5;   ///< finite and >= low

    static constexpr role kind = role::weight;
    static constexpr std::uint32_t needs = uses_mismatch | weighs_mismatch;

    void check() const {
        detail::require(low > 0 && std::isfinite(low), "two_sided_tis.low", low, "finite and > 0");
        detail::require(high >= low && std::isfinite(high), "two_sided_tis.high", high,
                        "finite and at least two_sided_tis.low = " + detail::text(low));
    }
    template <typename Number>
    [[nodiscard]] detail::two_sided_tis_op<Number> bind() const {
        return {static_cast<Number>(std::log(low)), static_cast<Number>(std::log(high)), static_cast<Number>(low),
                static_cast<Number>(high)};
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

/// The column token_batch::weight: any weight that the caller computed.
struct given_weight {
    static constexpr role kind = role::weight;
    static constexpr std::uint32_t needs = reads_weight;

    template <typename Number>
    [[nodiscard]] detail::given_weight_op bind() const {
        return {};
    }
};

/// (1 + s)^-exponent with s the token's staleness in versions. FedAsync (arXiv 1903.03934).
struct staleness_power {
    double exponent = 0.5;  ///< finite and >= 0

    static constexpr role kind = role::weight;
    static constexpr std::uint32_t needs = reads_version;

    void check() const {
        detail::require(exponent >= 0 && std::isfinite(exponent), "staleness_power.exponent", exponent, "finite and >= 0");
    }
    template <typename Number>
    [[nodiscard]] detail::staleness_power_op<Number> bind() const {
        return {static_cast<Number>(exponent)};
    }
};

/// exp(-rate s) with s the token's staleness in versions.
struct staleness_exponential {
    double rate = 0.25;  ///< per version; finite and >= 0

    static constexpr role kind = role::weight;
    static constexpr std::uint32_t needs = reads_version;

    void check() const {
        detail::require(rate >= 0 && std::isfinite(rate), "staleness_exponential.rate", rate, "finite and >= 0");
    }
    template <typename Number>
    [[nodiscard]] detail::staleness_exponential_op<Number> bind() const {
        return {static_cast<Number>(rate)};
    }
};

/// 1 up to a staleness of `flat` versions, 1 / (slope (s - flat) + 1) beyond. FedAsync (arXiv 1903.03934).
struct staleness_hinge {
    double slope = 10;  ///< per version; finite and >= 0
    double flat = 2;    ///< versions; finite and >= 0

    static constexpr role kind = role::weight;
    static constexpr std::uint32_t needs = reads_version;

    void check() const {
        detail::require(slope >= 0 && std::isfinite(slope), "staleness_hinge.slope", slope, "finite and >= 0");
        detail::require(flat >= 0 && std::isfinite(flat), "staleness_hinge.flat", flat, "finite and >= 0");
    }
    template <typename Number>
    [[nodiscard]] detail::staleness_hinge_op<Number> bind() const {
        return {static_cast<Number>(slope), static_cast<Number>(flat)};
    }
};

/// Divides the product of all other weights by its mean over the kept tokens of the batch, or of whatever `totals` cover, so
/// that weights average 1. Masks act first.
struct normalised_weights {
    static constexpr role kind = role::weight;
    static constexpr std::uint32_t needs = batch_weight;

    template <typename Number>
    [[nodiscard]] detail::normalised_op<Number> bind() const {
        return {1};
    }
};

ASYNCRL_END_NAMESPACE
