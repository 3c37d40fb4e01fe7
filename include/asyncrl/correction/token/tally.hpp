// SPDX-License-Identifier: Apache-2.0
/// @file The steps of every loss loop that are math: from columns to a token, from its outcome to outputs and to the report.
///
/// A loop loads, calls `observe`, the objective, `settle` and `tally::add`, and stores: on the host a packet at a time, on the
/// device a token at a time.
#pragma once

#include <asyncrl/correction/objective.hpp>
#include <asyncrl/correction/token/token.hpp>

#include <cstdint>

ASYNCRL_BEGIN_NAMESPACE
namespace detail {

/// Beyond it a raw mismatch ratio would swamp float sums of squares; such tokens count as exactly this and are counted.
inline constexpr double mismatch_ceiling = 1073741824.0;
inline constexpr double log_mismatch_ceiling = 20.79441541679835928251696;

/// The rollout log-prob that means "none": NaN, or one number.
template <typename Real>
struct sentinel {
    Real value;
    mask_of<Real> any_nan;

    ASYNCRL_HOST_DEVICE explicit sentinel(double number) : value(Real(number)), any_nan(is_nan(Real(number))) {}
    // Under -ffast-math a NaN may compare equal to anything.
    [[nodiscard]] ASYNCRL_HOST_DEVICE mask_of<Real> holds(Real x) const {
        mask_of<Real> const nan = is_nan(x);
        mask_of<Real> const number = !(nan | any_nan);
        return (nan & any_nan) | (number & (x == value));
    }
};

template <typename Real>
struct log_probs {
    Real new_policy, old_policy, rollout_policy;
};

/// A token and which kind it is. One that is not `live` has a log-ratio and log-mismatch of 0.
template <typename Real>
struct observed {
    token<Real> t;
    mask_of<Real> active;
    mask_of<Real> unscored;
    mask_of<Real> live;  ///< active, and every needed input is finite; after `settle` the result too
};

/// Turns the columns of a token into what the objective sees. `exponential` is the loop's exp.
template <std::uint32_t Needs, typename Real, typename Exponential>
[[nodiscard]] ASYNCRL_HOST_DEVICE observed<Real> observe(log_probs<Real> x, Real advantage, mask_of<Real> active,
                                                         sentinel<Real> const& missing, Exponential exponential) {
    observed<Real> out{};
    out.active = active;
    // A sum is finite only if each term is; log-probs and advantages are far from where finite terms overflow.
    Real probe = x.new_policy + advantage;
    if constexpr ((Needs & reads_old) != 0) {
        probe = probe + x.old_policy;
    }
    out.unscored = !always<Real>();
    if constexpr ((Needs & reads_rollout) != 0) {
        out.unscored = active & missing.holds(x.rollout_policy);
        x.rollout_policy = select(out.unscored, (Needs & anchors_rollout) != 0 ? x.new_policy : x.old_policy, x.rollout_policy);
        probe = probe + x.rollout_policy;
    }
    out.live = active & !is_nonfinite(probe);
    out.t.log_prob = x.new_policy;
    out.t.advantage = advantage;
    if constexpr ((Needs & uses_ratio) != 0) {
        Real const anchor = (Needs & anchors_rollout) != 0 ? x.rollout_policy : x.old_policy;
        out.t.log_ratio = select(out.live, x.new_policy - anchor, Real(0));
        out.t.ratio = exponential(out.t.log_ratio);
    }
    if constexpr ((Needs & uses_mismatch) != 0) {
        out.t.log_mismatch = select(out.live, x.old_policy - x.rollout_policy, Real(0));
        out.t.mismatch = exponential(out.t.log_mismatch);
    }
    return out;
}

/// Makes the outcome exactly 0 for tokens that do not count, and `bad_value` for active ones with a non-finite input or result.
template <typename Real>
ASYNCRL_HOST_DEVICE void settle(observed<Real>& token, token_outcome<Real>& outcome, Real bad_value) {
    token.live = token.live & !is_nonfinite(outcome.value + outcome.slope);
    mask_of<Real> const bad = token.active & !token.live;
    Real const dead = select(bad, bad_value, Real(0));
    outcome.value = select(token.live, outcome.value, dead);
    outcome.slope = select(token.live, outcome.slope, dead);
    outcome.weight = select(token.live, outcome.weight, Real(0));
    outcome.keep = token.live & outcome.keep;
    outcome.flags = (outcome.flags & mark(token.live, ~0U)) | mark(token.unscored, unscored) | mark(bad, nonfinite_input);
}

template <std::uint32_t Flag>
inline constexpr int bit_index = 1 + bit_index<Flag / 2>;
template <>
inline constexpr int bit_index<1> = 0;

/// The numbers of a loss_report while a loop runs, over at most 65535 tokens. Fields of needs the objective does not have
/// stay 0.
template <typename Real>
struct tally {
    Real loss{}, absolute_loss{}, weight{}, weight_squared{}, mismatch{}, mismatch_squared{}, log_mismatch{},
        absolute_log_mismatch{}, k3_mismatch{}, absolute_log_ratio{};
    Real largest_log_mismatch{}, largest_log_ratio{};
    // Two counts in each: the first in the low 16 bits, the second in the high ones. Registers are what loops lack.
    bits_of<Real> tokens_kept{}, clipped_high_low{}, capped_gated{}, tail_nonfinite{}, unscored_overflow{};

    /// `share` is the token's part of the loss sum.
    template <std::uint32_t Needs>
    ASYNCRL_HOST_DEVICE void add(observed<Real> const& in, token_outcome<Real> const& out, Real share) {
        loss = loss + share;
        absolute_loss = absolute_loss + absolute(share);
        tick_low(tokens_kept, in.active);
        tick_high(tail_nonfinite, in.active & !in.live);
        if constexpr ((Needs & uses_ratio) != 0) {
            Real const size = absolute(in.t.log_ratio);
            absolute_log_ratio = absolute_log_ratio + size;
            largest_log_ratio = larger(largest_log_ratio, size);
            clipped_high_low = clipped_high_low + pair<clipped_high, clipped_low>(out.flags);
        }
        if constexpr ((Needs & uses_mismatch) != 0) {
            add_mismatch(in, out);
        }
        if constexpr ((Needs & may_reject) != 0) {
            tick_high(tokens_kept, out.keep);
        }
        if constexpr ((Needs & batch_quantile) != 0) {
            tick_low(tail_nonfinite, has(out.flags, tail));
        }
        if constexpr ((Needs & reads_rollout) != 0) {
            tick_low(unscored_overflow, in.unscored);
        }
    }

  private:
    /// Two flags as the two counts of one token.
    template <token_flag Low, token_flag High>
    [[nodiscard]] static ASYNCRL_HOST_DEVICE bits_of<Real> pair(bits_of<Real> flags) {
        return ((flags >> bit_index<Low>)&mark(always<Real>(), 1U)) |
               ((flags & mark(always<Real>(), High)) << (16 - bit_index<High>));
    }

    ASYNCRL_HOST_DEVICE void add_mismatch(observed<Real> const& in, token_outcome<Real> const& out) {
        Real const e = in.t.log_mismatch;
        Real const size = absolute(e);
        mask_of<Real> const over = e > Real(log_mismatch_ceiling);
        Real const w = select(in.live, select(over, Real(mismatch_ceiling), in.t.mismatch), Real(0));
        mismatch = mismatch + w;
        mismatch_squared = mismatch_squared + w * w;
        log_mismatch = log_mismatch + e;
        absolute_log_mismatch = absolute_log_mismatch + size;
        largest_log_mismatch = larger(largest_log_mismatch, size);
        k3_mismatch = k3_mismatch + select(in.live, k3(e, w), Real(0));
        Real const effective = smaller(out.weight, Real(mismatch_ceiling));
        weight = weight + effective;
        weight_squared = weight_squared + effective * effective;
        tick_high(unscored_overflow, over);
        capped_gated = capped_gated + pair<capped, gated>(out.flags);
    }
};

/// Fills in what loops need not count: without a mask all live tokens are kept, and without a weight each weighs 1.
template <typename Report>
ASYNCRL_HOST_DEVICE void complete_report(Report& report, std::uint32_t needs) {
    if ((needs & may_reject) == 0) {
        report.counts.kept = report.counts.tokens - report.counts.nonfinite;
    }
    if ((needs & uses_mismatch) == 0) {
        report.sums.weight = static_cast<double>(report.counts.kept);
        report.sums.weight_squared = report.sums.weight;
    }
}

}  // namespace detail
ASYNCRL_END_NAMESPACE
