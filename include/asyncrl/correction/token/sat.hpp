// SPDX-License-Identifier: Apache-2.0
/// @file SAT: PPO's clip with an interval that narrows in the tail of the batch's log-ratios (arXiv 2607.18722).
#pragma once

#include <asyncrl/correction/token/surrogate.hpp>

#include <cmath>
#include <cstdint>
#include <limits>

ASYNCRL_BEGIN_NAMESPACE

/// A share of a batch as an exact fraction: 9/10 is no binary number, and a rank must not depend on its rounding.
struct fraction {
    std::int64_t numerator;
    std::int64_t denominator;

    [[nodiscard]] constexpr bool operator==(fraction const&) const = default;
    /// The rank ceil(share * count), at least 1 where there is anything to rank.
    [[nodiscard]] ASYNCRL_HOST_DEVICE constexpr std::int64_t rank(std::int64_t count) const {
        std::int64_t const whole = count / denominator * numerator;
        std::int64_t const rest = (count % denominator * numerator + denominator - 1) / denominator;
        return count > 0 && whole + rest < 1 ? 1 : whole + rest;
    }
};

/// Which order statistic of `count` numbers is meant by a share of them.
enum class rank_rule : std::uint8_t {
    ceiling,  ///< rank ceil(share count)
    below,    ///< the lower and the upper of the two between which (count - 1) share lies, as torch.quantile interpolates
    above,
};

[[nodiscard]] ASYNCRL_HOST_DEVICE constexpr std::int64_t rank_of(fraction share, rank_rule rule, std::int64_t count) {
    if (rule == rank_rule::ceiling || count < 1) {
        return share.rank(count);
    }
    std::int64_t const steps = count - 1;
    std::int64_t const floor =
        steps / share.denominator * share.numerator + steps % share.denominator * share.numerator / share.denominator;
    return rule == rank_rule::below || floor == steps ? floor + 1 : floor + 2;
}

namespace detail {

/// What lies between the order statistics that `below` and `above` mean, where (count - 1) share does. One rounding, so that
/// host and device agree.
[[nodiscard]] ASYNCRL_HOST_DEVICE double interpolated(double low, double high, fraction share, std::int64_t count) {
    if (count < 1) {
        return 0;
    }
    std::int64_t const rest = (count - 1) % share.denominator * share.numerator % share.denominator;
    return ::fma(high - low, static_cast<double>(rest) / static_cast<double>(share.denominator), low);
}

/// The smallest |log-ratio| at which SAT clips, on the side of `sign` (+1: the upper bound, -1: the lower).
///
/// Up to q the interval is PPO's; beyond it the bound is 1 +- epsilon * psi, psi = 1 / (1 + (d/q)^hill). So a token is clipped
/// where d passes max(q, root of |exp(d) - 1| = epsilon psi(d)), which is a number of the batch, not of the token: PPO's own
/// where q is 0 or beyond PPO's bound. Bisection in double. `hill` is the exponent of d/q in psi.
[[nodiscard]] ASYNCRL_HOST_DEVICE double sat_threshold(double q, double epsilon, double sign, double hill = 2) {
    double const nominal = sign * ::log1p(sign * epsilon);
    if (!(q > 0) || q >= nominal) {
        return nominal;
    }
    double low = q;
    double high = nominal;
    for (int i = 0; i < 64; ++i) {
        double const middle = low + (high - low) / 2;
        double const z = middle / q;
        double const power = hill == 2 ? z * z : ::exp(hill * ::log(z));
        if (sign * ::expm1(sign * middle) > epsilon / (1 + power)) {
            high = middle;
        } else {
            low = middle;
        }
    }
    return low;
}

template <typename Number>
struct sat_clip_op {
    double epsilon_low, epsilon_high, exponent;
    clip_interval<Number> interval;  // its log bounds are the batch's thresholds, its bounds PPO's
    Number narrow_low, narrow_high, hill, log_cap, cap, q, inverse_q;

    /// Once a batch, by the host or by one thread of the device.
    ASYNCRL_HOST_DEVICE void prepare(batch_numbers const& batch) {
        q = static_cast<Number>(batch.quantile);
        inverse_q = static_cast<Number>(batch.quantile > 0 ? 1 / batch.quantile : 0);
        interval.log_high = static_cast<Number>(sat_threshold(batch.quantile, epsilon_high, 1, exponent));
        interval.log_low = static_cast<Number>(-sat_threshold(batch.quantile, epsilon_low, -1, exponent));
    }

    template <typename Real, typename Math>
    [[nodiscard]] ASYNCRL_HOST_DEVICE term<Real> operator()(token<Real> const& t, Math const& math) const {
        mask_of<Real> const above = (t.advantage > Real(0)) & (t.log_ratio > Real(interval.log_high));
        mask_of<Real> const below = (t.advantage < Real(0)) & (t.log_ratio < Real(interval.log_low));
        Real const size = absolute(t.log_ratio);
        mask_of<Real> const in_tail = (size > Real(q)) & (Real(q) > Real(0));
        Real const z = size * Real(inverse_q);
        Real const power = hill == Number(2) ? z * z : math.exp(Real(hill) * math.log(z));
        Real const narrowed = Real(1) + select(above, Real(narrow_high), -Real(narrow_low)) / (Real(1) + power);
        Real const bound = select(in_tail, narrowed, select(above, Real(interval.high), Real(interval.low)));
        Real const cost = Real(0) - t.advantage;  // +0 for an advantage of either zero
        Real const inside = cost * t.ratio;
        mask_of<Real> const over = (t.advantage < Real(0)) & (t.log_ratio > Real(log_cap));
        Real const value = select(over, cost * Real(cap), select(above | below, cost * bound, inside));
        return {value, select(above | below | over, Real(0), inside),
                mark(above, clipped_high) | mark(below, clipped_low) | mark(in_tail, tail) | mark(over, capped)};
    }
};

}  // namespace detail

/// max(-A r, -A clip(r, 1 - low psi-, 1 + high psi+)): PPO's clip where |log r| <= q, and beyond it bounds that narrow by
/// psi = 1 / (1 + (log r / q)^hill), on the side on which log r lies. q is the order statistic of |log r| at `quantile` over
/// the active tokens of whatever `totals` cover; with q = 0 it is PPO. Published with anchor_rollout. With sequence_ratio
/// (SAT-GSPO) log r is the sequence's, and each of its tokens counts in the order statistic, or the sequence once.
///
/// What it does not bound: actions that were not sampled, the total variation, or the age of a token; the tail is relative, so
/// it is tightest near on-policy data.
struct sat_clip {
    double low = 0.2;             ///< distance of the lower bound from 1, in [0, 1)
    double high = 0.2;            ///< distance of the upper bound from 1, finite and >= 0
    fraction quantile = {9, 10};  ///< in (0, 1]; at 1 no token is in the tail and it is PPO bit for bit
    double hill = 2;              ///< how fast the bounds narrow, finite and > 0
    double cap = std::numeric_limits<double>::infinity();  ///< as in dual_clip; > 1
    bool interpolate = false;                              ///< q lies between two order statistics, as torch.quantile has it
    bool each_sequence = false;  ///< with a sequence_ratio: a sequence counts once, not once for each of its tokens

    static constexpr role kind = role::surrogate;
    static constexpr std::uint32_t needs = uses_ratio | batch_quantile;

    void check() const {
        detail::check_clip(low, high, "sat_clip.low", "sat_clip.high");
        detail::require(hill > 0 && std::isfinite(hill), "sat_clip.hill", hill, "finite and > 0");
        detail::require(cap > 1, "sat_clip.cap", cap, "> 1");
        detail::require(quantile.denominator > 0 && quantile.denominator <= 1000000000, "sat_clip.quantile.denominator",
                        quantile.denominator, "in [1, 1000000000]");
        detail::require(quantile.numerator > 0 && quantile.numerator <= quantile.denominator, "sat_clip.quantile.numerator",
                        quantile.numerator, "in [1, denominator]");
    }
    template <typename Number>
    [[nodiscard]] detail::sat_clip_op<Number> bind() const {
        detail::sat_clip_op<Number> op{low,
                                       high,
                                       hill,
                                       detail::clip_interval<Number>::around_one(low, high),
                                       static_cast<Number>(low),
                                       static_cast<Number>(high),
                                       static_cast<Number>(hill),
                                       static_cast<Number>(std::log(cap)),
                                       static_cast<Number>(cap),
                                       0,
                                       0};
        op.prepare({});
        return op;
    }
};

ASYNCRL_END_NAMESPACE
