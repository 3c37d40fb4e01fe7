// SPDX-License-Identifier: Apache-2.0
/// @file Masks of one token: it trains with weight 1, or is rejected. Intervals are closed: at a bound the token is kept.
///
/// e = log(old / rollout), p and q the probabilities of the token under the new policy and under the anchor.
#pragma once

#include <asyncrl/correction/token/token.hpp>
#include <asyncrl/error.hpp>

#include <cmath>

ASYNCRL_BEGIN_NAMESPACE

namespace detail {

template <typename Real>
[[nodiscard]] ASYNCRL_HOST_DEVICE factor<Real> kept_where(mask_of<Real> keep) {
    return {Real(1), keep, no_bits<Real>()};
}

/// Keeps where a log-ratio of the token lies inside an interval.
template <typename Number, typename Which>
struct log_band_op {
    Number log_low, log_high;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE factor<Real> operator()(token<Real> const& t) const {
        Real const x = Which::of(t);
        return kept_where<Real>((x >= Real(log_low)) & (x <= Real(log_high)));
    }
};

struct the_mismatch {
    template <typename Real>
    [[nodiscard]] static ASYNCRL_HOST_DEVICE Real of(token<Real> const& t) {
        return t.log_mismatch;
    }
};
struct the_lag {
    template <typename Real>
    [[nodiscard]] static ASYNCRL_HOST_DEVICE Real of(token<Real> const& t) {
        return t.log_lag;
    }
};
struct the_engine_gap {
    template <typename Real>
    [[nodiscard]] static ASYNCRL_HOST_DEVICE Real of(token<Real> const& t) {
        return t.log_engine;
    }
};

/// A divergence above the limit rejects.
template <typename Number>
struct kpop_op {
    Number limit;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE factor<Real> operator()(token<Real> const& t) const {
        return kept_where<Real>(t.mismatch_kl <= Real(limit));
    }
};

/// A token moves outward where the update would carry its probability further from the anchor's.
template <typename Real>
[[nodiscard]] ASYNCRL_HOST_DEVICE mask_of<Real> moves_outward(token<Real> const& t) {
    return ((t.advantage > Real(0)) & (t.own_log_ratio > Real(0))) | ((t.advantage < Real(0)) & (t.own_log_ratio < Real(0)));
}

template <typename Number>
struct tv_op {
    Number low, high;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE factor<Real> operator()(token<Real> const& t) const {
        Real const moved = t.probability - t.anchor_probability;
        return kept_where<Real>(
            !(((t.advantage > Real(0)) & (moved > Real(high))) | ((t.advantage < Real(0)) & (moved < -Real(low)))));
    }
};

template <typename Number>
struct kl_op {
    Number limit;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE factor<Real> operator()(token<Real> const& t) const {
        return kept_where<Real>(!(moves_outward(t) & (t.anchor_kl > Real(limit))));
    }
};

template <typename Number>
struct divergence_op {
    Number limit;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE factor<Real> operator()(token<Real> const& t) const {
        return kept_where<Real>(!(moves_outward(t) & (t.divergence > Real(limit))));
    }
};

template <typename Number>
struct ipo_op {
    Number limit;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE factor<Real> operator()(token<Real> const& t) const {
        return kept_where<Real>(absolute(t.probability - t.anchor_probability) <= Real(limit));
    }
};

template <typename Number>
struct staleness_op {
    Number limit;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE factor<Real> operator()(token<Real> const& t) const {
        return kept_where<Real>(t.staleness <= Real(limit));
    }
};

struct given_gate_op {
    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE factor<Real> operator()(token<Real> const& t) const {
        return kept_where<Real>(t.given_keep);
    }
};

/// What all bands of a ratio check.
inline void check_band(double low, double high, char const* low_name, char const* high_name) {
    require(low >= 0 && std::isfinite(low), low_name, low, "finite and >= 0");
    require(high > low, high_name, high, "greater than " + std::string(low_name) + " = " + text(low));
}
inline void check_limit(double limit, char const* name) {
    require(limit >= 0, name, limit, ">= 0");
}

}  // namespace detail

/// Keeps where low <= old / rollout <= high. With importance_weight it is `mis`.
struct mismatch_gate {
    double low = 0.5;  ///< >= 0; 0 leaves that side open
    double high = 5;   ///< > low; infinity leaves that side open

    static constexpr role kind = role::weight;
    static constexpr std::uint32_t needs = uses_mismatch | may_reject;

    void check() const { detail::check_band(low, high, "mismatch_gate.low", "mismatch_gate.high"); }
    template <typename Number>
    [[nodiscard]] detail::log_band_op<Number, detail::the_mismatch> bind() const {
        return {static_cast<Number>(std::log(low)), static_cast<Number>(std::log(high))};
    }
};

/// Keeps where low <= old / sync <= high: bounds what updates of the policy changed, whatever the engine's numerics.
struct lag_gate {
    double low = 0.5;  ///< >= 0; 0 leaves that side open
    double high = 5;   ///< > low; infinity leaves that side open

    static constexpr role kind = role::weight;
    static constexpr std::uint32_t needs = reads_sync | may_reject;

    void check() const { detail::check_band(low, high, "lag_gate.low", "lag_gate.high"); }
    template <typename Number>
    [[nodiscard]] detail::log_band_op<Number, detail::the_lag> bind() const {
        return {static_cast<Number>(std::log(low)), static_cast<Number>(std::log(high))};
    }
};

/// Keeps where low <= sync / rollout <= high: bounds the engine's numerics, whatever updates changed.
struct engine_gate {
    double low = 0.5;  ///< >= 0; 0 leaves that side open
    double high = 5;   ///< > low; infinity leaves that side open

    static constexpr role kind = role::weight;
    static constexpr std::uint32_t needs = reads_sync | may_reject;

    void check() const { detail::check_band(low, high, "engine_gate.low", "engine_gate.high"); }
    template <typename Number>
    [[nodiscard]] detail::log_band_op<Number, detail::the_engine_gap> bind() const {
        return {static_cast<Number>(std::log(low)), static_cast<Number>(std::log(high))};
    }
};

/// Keeps where the binary KL between old and rollout, the larger of both directions, is at most `limit`. With importance_weight
/// it is KPop (Ring team, 2026; arXiv 2606.15079).
struct kpop_gate {
    double limit = 0.1;  ///< nats, >= 0

    static constexpr role kind = role::weight;
    static constexpr std::uint32_t needs = uses_mismatch | uses_mismatch_kl | may_reject;

    void check() const { detail::check_limit(limit, "kpop_gate.limit"); }
    template <typename Number>
    [[nodiscard]] detail::kpop_op<Number> bind() const {
        return {static_cast<Number>(limit)};
    }
};

/// Rejects where A > 0 and p - q > high, or A < 0 and p - q < -low. Binary total variation of DPPO (arXiv 2602.04879),
/// published with anchor_rollout and importance_gradient.
struct tv_gate {
    double low = 0.2;   ///< a difference of probabilities, >= 0
    double high = 0.2;  ///< a difference of probabilities, >= 0

    static constexpr role kind = role::weight;
    static constexpr std::uint32_t needs = uses_ratio | uses_probability | may_reject;

    void check() const {
        detail::check_limit(low, "tv_gate.low");
        detail::check_limit(high, "tv_gate.high");
    }
    template <typename Number>
    [[nodiscard]] detail::tv_op<Number> bind() const {
        return {static_cast<Number>(low), static_cast<Number>(high)};
    }
};

/// Rejects where binary KL(anchor || new) > limit and the update would carry p further away. DPPO (arXiv 2602.04879).
struct kl_gate {
    double limit = 0.05;  ///< nats, >= 0

    static constexpr role kind = role::weight;
    static constexpr std::uint32_t needs = uses_ratio | uses_probability | uses_anchor_kl | may_reject;

    void check() const { detail::check_limit(limit, "kl_gate.limit"); }
    template <typename Number>
    [[nodiscard]] detail::kl_op<Number> bind() const {
        return {static_cast<Number>(limit)};
    }
};

/// kl_gate on the column token_batch::divergence, such as a divergence over the K largest probabilities and their tail (DPPO).
struct divergence_gate {
    double limit;  ///< in the column's unit, >= 0

    static constexpr role kind = role::weight;
    static constexpr std::uint32_t needs = uses_ratio | reads_divergence | may_reject;

    void check() const { detail::check_limit(limit, "divergence_gate.limit"); }
    template <typename Number>
    [[nodiscard]] detail::divergence_op<Number> bind() const {
        return {static_cast<Number>(limit)};
    }
};

/// Keeps where |p - q| <= limit, whatever the advantage. IPO of prime-rl.
struct ipo_gate {
    double limit = 0.1;  ///< a difference of probabilities, >= 0

    static constexpr role kind = role::weight;
    static constexpr std::uint32_t needs = uses_ratio | uses_probability | may_reject;

    void check() const { detail::check_limit(limit, "ipo_gate.limit"); }
    template <typename Number>
    [[nodiscard]] detail::ipo_op<Number> bind() const {
        return {static_cast<Number>(limit)};
    }
};

/// Keeps where the token's staleness is at most `limit` versions. An unknown version is kept.
struct staleness_gate {
    double limit;  ///< versions, >= 0

    static constexpr role kind = role::weight;
    static constexpr std::uint32_t needs = reads_version | may_reject;

    void check() const { detail::check_limit(limit, "staleness_gate.limit"); }
    template <typename Number>
    [[nodiscard]] detail::staleness_op<Number> bind() const {
        return {static_cast<Number>(limit)};
    }
};

/// Keeps where the column token_batch::keep is not zero: a mask that the caller computed, such as m2_mask's or one by
/// covariance or entropy. Unlike token_batch::mask it leaves the denominators alone.
struct given_gate {
    static constexpr role kind = role::weight;
    static constexpr std::uint32_t needs = reads_keep | may_reject;

    template <typename Number>
    [[nodiscard]] detail::given_gate_op bind() const {
        return {};
    }
};

ASYNCRL_END_NAMESPACE
