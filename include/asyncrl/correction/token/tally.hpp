// SPDX-License-Identifier: Apache-2.0
/// @file The steps of every loss loop that are math: from columns to a token, from its outcome to outputs and to the report.
///
/// A loop loads, calls `observe`, the objective, `settle` and `tally::add`, and stores: on the host a packet at a time, on the
/// device a token at a time.
#pragma once

#include <asyncrl/correction/objective.hpp>
#include <asyncrl/correction/token/divergence.hpp>
#include <asyncrl/correction/token/inputs.hpp>
#include <asyncrl/correction/token/token.hpp>

#include <cstdint>

ASYNCRL_BEGIN_NAMESPACE
namespace detail {

/// The logarithm of 2^30. Beyond it a mismatch ratio would swamp float sums of squares, and no weight of use is near.
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

/// The columns of a token. Those that an objective does not need are 0.
template <typename Real>
struct token_inputs {
    Real log_prob, old_log_prob, rollout_log_prob, advantage, anchor_log_prob, reference_log_prob, sync_log_prob, log_kept_mass,
        weight, divergence, score, staleness;
    mask_of<Real> keep;
};

/// Reads the columns that `Needs` names: `load(which)` gives one, `which` an `input` as a std::integral_constant.
template <std::uint32_t Needs, typename Real, typename Load>
[[nodiscard]] ASYNCRL_HOST_DEVICE token_inputs<Real> read_inputs(Load const& load) {
    token_inputs<Real> x{};
    auto const read = [&load](auto which, Real& to) {
        if constexpr (is_needed(decltype(which)::value, Needs)) {
            to = load(which);
        }
    };
    read(input_c<input::log_prob>{}, x.log_prob);
    read(input_c<input::old_log_prob>{}, x.old_log_prob);
    read(input_c<input::rollout_log_prob>{}, x.rollout_log_prob);
    read(input_c<input::advantage>{}, x.advantage);
    read(input_c<input::anchor_log_prob>{}, x.anchor_log_prob);
    read(input_c<input::reference_log_prob>{}, x.reference_log_prob);
    read(input_c<input::sync_log_prob>{}, x.sync_log_prob);
    read(input_c<input::log_kept_mass>{}, x.log_kept_mass);
    read(input_c<input::weight>{}, x.weight);
    read(input_c<input::divergence>{}, x.divergence);
    read(input_c<input::score>{}, x.score);
    read(input_c<input::staleness>{}, x.staleness);
    return x;
}

/// A token and which kind it is.
template <typename Real>
struct observed {
    token<Real> t;
    Real probe;  ///< a sum over all needed inputs: finite only if each is
    mask_of<Real> active;
    mask_of<Real> unscored;  ///< its rollout log-prob is the sentinel
    mask_of<Real> live;      ///< active and finite; set by `screen` or `settle`, until then nothing is known
};

/// Turns the columns of a token into what the objective sees. What an inactive token holds may be anything; so nothing of it
/// may be used before `screen` or `settle`.
template <std::uint32_t Needs, typename Real, typename Math>
[[nodiscard]] ASYNCRL_HOST_DEVICE observed<Real> observe(token_inputs<Real> x, mask_of<Real> active,
                                                         sentinel<Real> const& missing, Math const& math) {
    observed<Real> out{};
    token<Real>& t = out.t;
    out.active = active;
    out.unscored = !always<Real>();
    t.log_prob = x.log_prob;
    t.advantage = x.advantage;
    // Log-probs, advantages and weights are far from where sums of finite numbers overflow.
    out.probe = x.advantage;
    if constexpr ((Needs & reads_rollout) != 0) {
        out.unscored = missing.holds(x.rollout_log_prob);
        if constexpr ((Needs & reads_kept_mass) != 0) {
            x.rollout_log_prob = x.rollout_log_prob + x.log_kept_mass;
        }
        constexpr bool old_is_known = (Needs & reads_old) != 0;
        x.rollout_log_prob = select(out.unscored, old_is_known ? x.old_log_prob : x.log_prob, x.rollout_log_prob);
        if constexpr ((Needs & anchors_rollout) != 0 && old_is_known) {
            // A token without a rollout log-prob has no ratio to it either, nor a mismatch.
            x.old_log_prob = select(out.unscored, x.log_prob, x.old_log_prob);
            x.rollout_log_prob = select(out.unscored, x.log_prob, x.rollout_log_prob);
        }
        t.log_off_policy = x.log_prob - x.rollout_log_prob;
        if constexpr ((Needs & (uses_mismatch | anchors_rollout)) == 0) {
            out.probe = out.probe + t.log_off_policy;
        }
    }
    if constexpr ((Needs & reads_version) != 0) {
        t.staleness = x.staleness;
    }
    if constexpr ((Needs & anchors_between) != 0) {
        Real const share = select(x.staleness > Real(1), Real(1) - Real(1) / larger(x.staleness, Real(1)), Real(0));
        x.old_log_prob = x.rollout_log_prob + share * (x.log_prob - x.rollout_log_prob);
    }
    if constexpr ((Needs & uses_ratio) != 0) {
        Real const anchor = (Needs & anchors_rollout) != 0 ? x.rollout_log_prob
                            : (Needs & reads_anchor) != 0  ? x.anchor_log_prob
                                                           : x.old_log_prob;
        t.own_log_ratio = t.log_ratio = x.log_prob - anchor;
        t.own_ratio = t.ratio = math.exp(smaller(t.log_ratio, Real(real_traits<Real>::largest_exponent)));
        out.probe = out.probe + t.log_ratio;
        if constexpr ((Needs & uses_probability) != 0) {
            if constexpr ((Needs & uses_anchor_kl) != 0) {
                binary<Real> const p(x.log_prob, math);
                binary<Real> const q(anchor, math);
                t.probability = p.p;
                t.anchor_probability = q.p;
                t.anchor_kl = binary_kl(q, p);
            } else {
                t.probability = math.exp(smaller(x.log_prob, Real(0)));
                t.anchor_probability = math.exp(smaller(anchor, Real(0)));
            }
        }
    } else {
        out.probe = out.probe + x.log_prob;
    }
    if constexpr ((Needs & uses_mismatch) != 0) {
        t.log_mismatch = x.old_log_prob - x.rollout_log_prob;
        t.mismatch = math.exp(smaller(t.log_mismatch, Real(log_mismatch_ceiling)));
        out.probe = out.probe + t.log_mismatch;
        if constexpr ((Needs & uses_mismatch_kl) != 0) {
            binary<Real> const old(x.old_log_prob, math);
            binary<Real> const rollout(x.rollout_log_prob, math);
            t.mismatch_kl = larger(binary_kl(old, rollout), binary_kl(rollout, old));
        }
    }
    if constexpr ((Needs & reads_sync) != 0) {
        t.log_lag = x.old_log_prob - x.sync_log_prob;
        // Without a rollout log-prob there is no gap to the engine; the lag is known all the same.
        t.log_engine = select(out.unscored, Real(0), x.sync_log_prob - x.rollout_log_prob);
        out.probe = out.probe + t.log_lag;
    }
    if constexpr ((Needs & reads_reference) != 0) {
        t.log_reference = x.log_prob - x.reference_log_prob;
        t.reference_ratio = math.exp(smaller(-t.log_reference, Real(real_traits<Real>::largest_exponent)));
        out.probe = out.probe + t.log_reference;
    }
    if constexpr ((Needs & reads_weight) != 0) {
        t.given_weight = x.weight;
        out.probe = out.probe + x.weight;
    }
    if constexpr ((Needs & reads_divergence) != 0) {
        t.divergence = x.divergence;
        out.probe = out.probe + x.divergence;
    }
    if constexpr ((Needs & reads_score) != 0) {
        t.score = x.score;
        out.probe = out.probe + x.score;
    }
    if constexpr ((Needs & reads_keep) != 0) {
        t.given_keep = x.keep;
    }
    return out;
}

/// Finds which tokens are live by `probe`; the others get log-ratios of 0.
template <typename Real>
ASYNCRL_HOST_DEVICE void screen(observed<Real>& token) {
    token.live = token.active & !is_nonfinite(token.probe);
    token.t.log_ratio = select(token.live, token.t.log_ratio, Real(0));
    token.t.log_mismatch = select(token.live, token.t.log_mismatch, Real(0));
}

/// A token of an objective that knows nothing of sequences.
template <typename Real>
[[nodiscard]] ASYNCRL_HOST_DEVICE sequence_context<Real> no_sequence() {
    return {Real(1), Real(0), Real(1), Real(1), Real(0), Real(0), always<Real>(), !always<Real>()};
}

/// Finds which tokens are live, by their inputs and their outcome, and makes the outcome of the others exactly 0. Completes the
/// events.
template <std::uint32_t Needs, typename Real>
ASYNCRL_HOST_DEVICE void settle(observed<Real>& token, token_outcome<Real>& outcome) {
    token.probe = token.probe + outcome.value + outcome.slope;
    screen(token);
    outcome.value = select(token.live, outcome.value, Real(0));
    outcome.slope = select(token.live, outcome.slope, Real(0));
    outcome.penalty = select(token.live, outcome.penalty, Real(0));
    outcome.weight = select(token.live, outcome.weight, Real(0));
    auto of_live = outcome.flags | mark(always<Real>(), event::active);
    if constexpr ((Needs & may_reject) != 0) {
        of_live = of_live | mark(outcome.keep, event::kept);
    }
    auto const of_bad =
        mark(token.active, static_cast<std::uint32_t>(event::active) | static_cast<std::uint32_t>(event::nonfinite));
    outcome.flags = select_bits(token.live, of_live, of_bad);
    if constexpr ((Needs & reads_rollout) != 0) {
        token.unscored = token.unscored & token.active;
        outcome.flags = outcome.flags | mark(token.unscored, event::unscored);
    }
}

/// The numbers of a loss_report while a loop runs, over at most 65535 tokens. Fields of needs the objective does not have
/// stay 0.
template <typename Real>
struct tally {
    Real loss{}, absolute_loss{}, weight{}, weight_squared{}, mismatch{}, mismatch_squared{}, log_mismatch{},
        absolute_log_mismatch{}, k3_mismatch{}, absolute_log_ratio{}, penalty{};
    Real largest_log_mismatch{}, largest_log_ratio{};
    // Two counts in each: the first in the low 16 bits, the second in the high ones. Registers are what loops lack.
    bits_of<Real> clipped_high_low{}, capped_gated{}, unscored_nonfinite{}, tokens_kept{}, tails_clamped{};

    static constexpr int tokens_between_flushes = 7;

    /// Adds a settled token; its events go to `events`, which `flush` must count before more than `tokens_between_flushes` have
    /// been added. `share` is the token's part of the loss sum.
    template <std::uint32_t Needs>
    ASYNCRL_HOST_DEVICE void add(observed<Real> const& in, token_outcome<Real> const& out, Real share, bits_of<Real>& events) {
        loss = loss + share;
        absolute_loss = absolute_loss + absolute(share);
        events = events + out.flags;
        if constexpr ((Needs & uses_ratio) != 0) {
            Real const size = absolute(in.t.log_ratio);  // the token's own
            absolute_log_ratio = absolute_log_ratio + size;
            largest_log_ratio = larger(largest_log_ratio, size);
        }
        if constexpr ((Needs & uses_mismatch) != 0) {
            Real const e = in.t.log_mismatch;
            Real const size = absolute(e);
            Real const w = select(in.live, in.t.mismatch, Real(0));
            mismatch = mismatch + w;
            mismatch_squared = mismatch_squared + w * w;
            log_mismatch = log_mismatch + e;
            absolute_log_mismatch = absolute_log_mismatch + size;
            largest_log_mismatch = larger(largest_log_mismatch, size);
            k3_mismatch = k3_mismatch + k3(e, w);  // 0 for a token that is not live, whose e is 0
        }
        if constexpr ((Needs & has_weights) != 0) {
            weight = weight + out.weight;
            weight_squared = weight_squared + out.weight * out.weight;
        }
        if constexpr ((Needs & has_penalties) != 0) {
            penalty = penalty + out.penalty;
        }
    }

    /// Counts the events and clears them.
    template <std::uint32_t Needs>
    ASYNCRL_HOST_DEVICE void flush(bits_of<Real>& events) {
        auto const pair = [&](int shift) { return (events >> shift) & mark(always<Real>(), 0x00070007U); };
        if constexpr ((Needs & uses_ratio) != 0) {
            clipped_high_low = clipped_high_low + pair(0);
        }
        if constexpr ((Needs & (uses_ratio | has_weights)) != 0) {
            capped_gated = capped_gated + pair(3);
        }
        unscored_nonfinite = unscored_nonfinite + pair(6);
        tokens_kept = tokens_kept + pair(9);
        if constexpr ((Needs & (batch_quantile | has_clamp | has_penalties)) != 0) {
            tails_clamped = tails_clamped + pair(12);
        }
        events = no_bits<Real>();
    }
};

/// The tally of two sets of tokens, 65535 in all at most.
template <typename Real>
[[nodiscard]] ASYNCRL_HOST_DEVICE tally<Real> merged(tally<Real> const& a, tally<Real> const& b) {
    tally<Real> sum;
    sum.loss = a.loss + b.loss;
    sum.absolute_loss = a.absolute_loss + b.absolute_loss;
    sum.weight = a.weight + b.weight;
    sum.weight_squared = a.weight_squared + b.weight_squared;
    sum.mismatch = a.mismatch + b.mismatch;
    sum.mismatch_squared = a.mismatch_squared + b.mismatch_squared;
    sum.log_mismatch = a.log_mismatch + b.log_mismatch;
    sum.absolute_log_mismatch = a.absolute_log_mismatch + b.absolute_log_mismatch;
    sum.k3_mismatch = a.k3_mismatch + b.k3_mismatch;
    sum.absolute_log_ratio = a.absolute_log_ratio + b.absolute_log_ratio;
    sum.largest_log_mismatch = larger(a.largest_log_mismatch, b.largest_log_mismatch);
    sum.largest_log_ratio = larger(a.largest_log_ratio, b.largest_log_ratio);
    sum.clipped_high_low = a.clipped_high_low + b.clipped_high_low;
    sum.capped_gated = a.capped_gated + b.capped_gated;
    sum.unscored_nonfinite = a.unscored_nonfinite + b.unscored_nonfinite;
    sum.tokens_kept = a.tokens_kept + b.tokens_kept;
    sum.tails_clamped = a.tails_clamped + b.tails_clamped;
    sum.penalty = a.penalty + b.penalty;
    return sum;
}

/// Fills in what loops need not count: without a mask all live tokens are kept, and without a weight each weighs 1.
template <typename Report>
ASYNCRL_HOST_DEVICE void complete_report(Report& report, std::uint32_t needs) {
    if ((needs & may_reject) == 0) {
        report.counts.kept = report.counts.tokens - report.counts.nonfinite;
    }
    if ((needs & has_weights) == 0) {
        report.sums.weight = static_cast<double>(report.counts.kept);
        report.sums.weight_squared = report.sums.weight;
    }
}

}  // namespace detail
ASYNCRL_END_NAMESPACE
