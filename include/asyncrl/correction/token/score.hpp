// SPDX-License-Identifier: Apache-2.0
/// @file Surrogates in score form, -A sg(c) x: the ratio r = new / anchor makes a weight c on the score and is not
/// differentiated, so that no token loses its gradient to a clip. A is the advantage, x the new log-prob.
#pragma once

#include <asyncrl/correction/token/surrogate.hpp>

ASYNCRL_BEGIN_NAMESPACE

namespace detail {

template <typename Number>
struct cispo_op {
    clip_interval<Number> interval;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE term<Real> operator()(token<Real> const& t) const {
        mask_of<Real> const above = t.log_ratio > Real(interval.log_high);
        mask_of<Real> const below = t.log_ratio < Real(interval.log_low);
        Real const weight = select(above, Real(interval.high), select(below, Real(interval.low), t.ratio));
        Real const slope = (Real(0) - t.advantage) * weight;
        return {slope * t.log_prob, slope, mark(above | below, capped)};
    }
};

template <bool ByScore, typename Number>
struct topr_op {
    Number log_cap, cap;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE term<Real> operator()(token<Real> const& t) const {
        Real const key = ByScore ? t.score : t.advantage;
        mask_of<Real> const good = key > Real(0);
        mask_of<Real> const over = t.log_ratio > Real(log_cap);
        Real const slope = (Real(0) - t.advantage) * select(good, Real(1), select(over, Real(cap), t.ratio));
        return {slope * t.log_prob, slope, mark(over & !good, capped)};
    }
};

template <typename Number>
struct aspo_op {
    clip_interval<Number> interval;
    Number log_cap_positive, cap_positive, log_cap_negative, cap_negative, at_high;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE term<Real> operator()(token<Real> const& t) const {
        mask_of<Real> const positive = t.advantage > Real(0);
        mask_of<Real> const above = positive & (t.log_ratio > Real(interval.log_high));
        mask_of<Real> const below = (t.advantage < Real(0)) & (t.log_ratio < Real(interval.log_low));
        mask_of<Real> const over =
            (positive & (-t.log_ratio > Real(log_cap_positive))) | ((!positive) & (t.log_ratio > Real(log_cap_negative)));
        Real const cost = Real(0) - t.advantage;
        Real const flipped = select(positive, Real(1) / t.ratio, t.ratio);
        Real const slope = cost * select(over, select(positive, Real(cap_positive), Real(cap_negative)), flipped);
        Real const at_bound = cost * select(above, Real(at_high), Real(interval.low));
        mask_of<Real> const clipped = above | below;
        return {select(clipped, at_bound, select(over, slope * t.log_prob, slope)), select(clipped, Real(0), slope),
                mark(above, clipped_high) | mark(below, clipped_low) | mark(over & !clipped, capped)};
    }
};

template <typename Number>
struct vespo_op {
    Number power_positive, rate_positive, power_negative, rate_negative;

    template <typename Real, typename Math>
    [[nodiscard]] ASYNCRL_HOST_DEVICE term<Real> operator()(token<Real> const& t, Math const& math) const {
        mask_of<Real> const negative = t.advantage < Real(0);
        Real const log_w = larger(smaller(t.log_ratio, Real(20)), Real(-18.420680743952367));  // e^-18.4 = 1e-8
        Real const w = math.exp(log_w);
        Real const power = select(negative, Real(power_negative), Real(power_positive));
        Real const rate = select(negative, Real(rate_negative), Real(rate_positive));
        Real const slope = (Real(0) - t.advantage) * math.exp(power * log_w + rate * (Real(1) - w));
        return {slope * t.log_prob, slope, no_bits<Real>()};
    }
};

}  // namespace detail

/// -A sg(clip(r, 1 - low, 1 + high)) x. CISPO (MiniMax-M1, arXiv 2506.13585), which bounds above only: low = 1. Distances from
/// 1 as in ppo_clip; some frameworks write the cap 1 + high itself.
struct cispo {
    double low = 1;      ///< in [0, 1]
    double high = 0.28;  ///< finite and >= 0

    static constexpr role kind = role::surrogate;
    static constexpr std::uint32_t needs = uses_ratio | scores;

    void check() const {
        detail::require(low >= 0 && low <= 1, "cispo.low", low, "in [0, 1]");
        detail::require(high >= 0 && std::isfinite(high), "cispo.high", high, "finite and >= 0");
    }
    template <typename Number>
    [[nodiscard]] detail::cispo_op<Number> bind() const {
        return {detail::clip_interval<Number>::around_one(low, high)};
    }
};

/// -A sg(min(r, cap)) x for A <= 0, and -A x for A > 0: tapered off-policy REINFORCE, TOPR (arXiv 2503.14286). By the token's
/// ratio, or with sequence_ratio{.of = level::product} by the trajectory's as published.
struct topr {
    double cap = 1;  ///< finite and > 0

    static constexpr role kind = role::surrogate;
    static constexpr std::uint32_t needs = uses_ratio | scores;

    void check() const { detail::require(cap > 0 && std::isfinite(cap), "topr.cap", cap, "finite and > 0"); }
    template <typename Number>
    [[nodiscard]] detail::topr_op<false, Number> bind() const {
        return {static_cast<Number>(std::log(cap)), static_cast<Number>(cap)};
    }
};

/// topr that tells good from bad by the column token_batch::score (the episode's, as ROLL does) and not by the advantage.
struct topr_by_score {
    double cap = 1;  ///< finite and > 0

    static constexpr role kind = role::surrogate;
    static constexpr std::uint32_t needs = uses_ratio | scores | reads_score;

    void check() const { detail::require(cap > 0 && std::isfinite(cap), "topr_by_score.cap", cap, "finite and > 0"); }
    template <typename Number>
    [[nodiscard]] detail::topr_op<true, Number> bind() const {
        return {static_cast<Number>(std::log(cap)), static_cast<Number>(cap)};
    }
};

/// A > 0: -A sg(1 / r), the ratio turned over, no gradient above 1 + high, at most cap_positive. A <= 0: -A r, no gradient
/// below 1 - low, at most cap_negative. Beyond a cap in score form. ASPO (arXiv 2510.06062).
struct aspo {
    double low = 0.2;         ///< as in ppo_clip
    double high = 0.2;        ///< as in ppo_clip
    double cap_positive = 3;  ///< finite and >= 1
    double cap_negative = 3;  ///< finite and >= 1

    static constexpr role kind = role::surrogate;
    static constexpr std::uint32_t needs = uses_ratio | scores | of_one_token;

    void check() const {
        detail::check_clip(low, high, "aspo.low", "aspo.high");
        detail::require(cap_positive >= 1 && std::isfinite(cap_positive), "aspo.cap_positive", cap_positive, "finite and >= 1");
        detail::require(cap_negative >= 1 && std::isfinite(cap_negative), "aspo.cap_negative", cap_negative, "finite and >= 1");
    }
    template <typename Number>
    [[nodiscard]] detail::aspo_op<Number> bind() const {
        return {detail::clip_interval<Number>::around_one(low, high),
                static_cast<Number>(std::log(cap_positive)),
                static_cast<Number>(cap_positive),
                static_cast<Number>(std::log(cap_negative)),
                static_cast<Number>(cap_negative),
                static_cast<Number>(1 / (1 + high))};
    }
};

/// -A sg(W^power exp(rate (1 - W))) x: a smooth weight that is 1 at W = 1 and falls off on both sides, with W the ratio of the
/// whole sequence: publish with anchor_rollout and sequence_ratio{.of = level::product}. log W is held in [log 1e-8, 20]. VESPO
/// (arXiv 2602.10693).
struct vespo {
    double power_positive = 2;  ///< finite and > 0
    double rate_positive = 3;
    double power_negative = 3;  ///< for A < 0
    double rate_negative = 2;

    static constexpr role kind = role::surrogate;
    static constexpr std::uint32_t needs = uses_ratio | scores;

    void check() const {
        detail::require(power_positive > 0 && std::isfinite(power_positive), "vespo.power_positive", power_positive,
                        "finite and > 0");
        detail::require(rate_positive > 0 && std::isfinite(rate_positive), "vespo.rate_positive", rate_positive,
                        "finite and > 0");
        detail::require(power_negative > 0 && std::isfinite(power_negative), "vespo.power_negative", power_negative,
                        "finite and > 0");
        detail::require(rate_negative > 0 && std::isfinite(rate_negative), "vespo.rate_negative", rate_negative,
                        "finite and > 0");
    }
    template <typename Number>
    [[nodiscard]] detail::vespo_op<Number> bind() const {
        return {static_cast<Number>(power_positive), static_cast<Number>(rate_positive), static_cast<Number>(power_negative),
                static_cast<Number>(rate_negative)};
    }
};

ASYNCRL_END_NAMESPACE
