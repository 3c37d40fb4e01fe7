// SPDX-License-Identifier: Apache-2.0
/// @file Softmax of one row of logits: sums that parts of the row yield and that merge, log-prob and entropy from them, and the
/// gradient back to a logit. Exponentials are the caller's.
///
/// z = logit / temperature, p = exp(z - log-sum-exp). A logit of -infinity has probability 0; a finite one whose p is below the
/// smallest normal number counts as one.
#pragma once

#include <asyncrl/correction/token/real.hpp>

#include <cmath>
#include <concepts>

ASYNCRL_BEGIN_NAMESPACE

/// NaN or +infinity: a row with such a logit has no softmax.
template <typename Real>
[[nodiscard]] ASYNCRL_HOST_DEVICE mask_of<Real> is_unusable(Real logit) {
    mask_of<Real> const nan = is_nan(logit);
    mask_of<Real> const infinite = is_nonfinite(logit);
    mask_of<Real> const positive = logit > Real(0);
    return nan | (infinite & positive);
}

/// A logarithm that is bounded below, so that its product with a probability of 0 is 0, and its exponential. An Exponential
/// that is 0 from some bound on down names it as `zero_from`, and saves the comparison.
template <typename Real>
struct bounded_log {
    Real log;
    Real value;

    template <typename Exponential>
    ASYNCRL_HOST_DEVICE bounded_log(Real x, Exponential const& exponential) {
        if constexpr (requires { Exponential::zero_from; }) {
            log = larger(x, Real(Exponential::zero_from));
            value = exponential(log);
        } else {
            Real const lowest(1 - real_traits<Real>::largest_exponent);
            log = larger(x, lowest);
            value = select(log > lowest, exponential(log), Real(0));
        }
    }
};

/// Sums over some logits of a row, relative to a logit `largest` that none of them exceeds. Empty by default.
///
/// Logits equal to the largest are counted and not added, so that what is left of a probability near 1 keeps its digits.
template <typename Real>
struct softmax_sums {
    Real largest{-INFINITY};  ///< not divided by the temperature: the difference of two logits is near exact
    Real ties{};              ///< logits equal to it
    Real below{};             ///< sum of exp(z - z_largest) over the others
    Real weighted{};          ///< sum of exp(z - z_largest) (z - z_largest)

    /// Adds one logit, which must not exceed the largest.
    template <typename Exponential>
    ASYNCRL_HOST_DEVICE void add(Real logit, Real inverse_temperature, Exponential const& exponential) {
        bounded_log<Real> const relative((logit - largest) * inverse_temperature, exponential);
        mask_of<Real> const tie = logit == largest;
        Real const e = select(tie, Real(0), relative.value);
        ties = ties + select(tie, Real(1), Real(0));
        below = below + e;
        weighted = weighted + e * relative.log;
    }
    /// Adds sums relative to the same largest logit.
    ASYNCRL_HOST_DEVICE void add(softmax_sums const& other) {
        ties = ties + other.ties;
        below = below + other.below;
        weighted = weighted + other.weighted;
    }
    /// Makes the sums relative to a larger logit: the step of the online softmax (Milakov and Gimelshein, 2018). For scalars.
    template <typename Exponential>
    ASYNCRL_HOST_DEVICE void raise(Real to, Real inverse_temperature, Exponential const& exponential) {
        if (!(to > largest)) {
            return;
        }
        bounded_log<Real> const factor((largest - to) * inverse_temperature, exponential);
        Real const all = ties + below;
        weighted = factor.value * (weighted + factor.log * all);
        below = factor.value * all;
        ties = Real(0);
        largest = to;
    }

    /// sum of exp(z - z_largest), less 1. The log-sum-exp is z_largest + log1p of it.
    [[nodiscard]] ASYNCRL_HOST_DEVICE Real excess() const { return ties - Real(1) + below; }
    /// In nats: log-sum-exp - sum of p z. `log_total` is log1p(excess()).
    [[nodiscard]] ASYNCRL_HOST_DEVICE Real entropy(Real log_total) const { return log_total - weighted / (Real(1) + excess()); }
};

/// The sums over two parts of a row. For scalars.
template <std::floating_point Real, typename Exponential>
[[nodiscard]] ASYNCRL_HOST_DEVICE softmax_sums<Real> combined(softmax_sums<Real> a, softmax_sums<Real> b,
                                                              Real inverse_temperature, Exponential const& exponential) {
    a.raise(b.largest, inverse_temperature, exponential);
    b.raise(a.largest, inverse_temperature, exponential);
    a.add(b);
    return a;
}

/// log p of a logit from its row's log-sum-exp. Split in two, so that large logits of floats lose nothing: the difference to
/// `centre` is near exact, `offset` is what the rounding of the centre left.
template <typename Real>
struct log_softmax {
    Real centre;
    Real inverse_temperature;
    Real offset;

    [[nodiscard]] ASYNCRL_HOST_DEVICE Real operator()(Real logit) const {
        return (logit - centre) * inverse_temperature - offset;
    }
    /// The same for another Real: a SIMD register of copies.
    template <typename Other>
    [[nodiscard]] ASYNCRL_HOST_DEVICE log_softmax<Other> as() const {
        return {Other(centre), Other(inverse_temperature), Other(offset)};
    }
};

template <std::floating_point Real>
[[nodiscard]] ASYNCRL_HOST_DEVICE log_softmax<Real> make_log_softmax(double log_sum_exp, double temperature) {
    Real const centre = static_cast<Real>(log_sum_exp * temperature);
    return {centre, static_cast<Real>(1 / temperature),
            static_cast<Real>(log_sum_exp - static_cast<double>(centre) / temperature)};
}

/// The gradient of g log p_target + h entropy, from a probability back to its logit:
/// (g (1{target} - p) - h p (log p + entropy)) / temperature.
template <typename Real>
struct logit_slope {
    Real log_prob;       ///< g / temperature
    Real entropy_slope;  ///< h / temperature
    Real entropy;

    /// `rest` is 1{target} - p, as a number that has not cancelled.
    [[nodiscard]] ASYNCRL_HOST_DEVICE Real operator()(bounded_log<Real> p, Real rest) const {
        return log_prob * rest - entropy_slope * p.value * (p.log + entropy);
    }
    template <typename Other>
    [[nodiscard]] ASYNCRL_HOST_DEVICE logit_slope<Other> as() const {
        return {Other(log_prob), Other(entropy_slope), Other(entropy)};
    }
};

ASYNCRL_END_NAMESPACE
