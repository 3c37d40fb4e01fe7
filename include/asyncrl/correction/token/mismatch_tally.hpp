// SPDX-License-Identifier: Apache-2.0
/// @file What one token adds to a mismatch_report, in loops on the host and on the GPU.
#pragma once

#include <asyncrl/correction/mismatch_report.hpp>
#include <asyncrl/correction/token/tally.hpp>
#include <asyncrl/correction/token_batch.hpp>

#include <cmath>
#include <cstdint>

ASYNCRL_BEGIN_NAMESPACE
namespace detail {

/// Points the loader's `old` and `rollout` columns at the pair, and the two that it reads in any case at the numerator.
[[nodiscard]] inline token_batch with_pair(token_batch batch, policy_pair pair) {
    if (pair != policy_pair::old_rollout) {
        column const old = batch.old_log_prob;
        batch.old_log_prob = batch.log_prob;
        if (pair == policy_pair::new_old) {
            batch.rollout_log_prob = old;
            batch.unscored = 1e30;  // no log-prob: the sentinel is one of the rollout column
        }
    }
    batch.log_prob = batch.old_log_prob;
    batch.advantage = batch.old_log_prob;
    return batch;
}

inline constexpr std::uint32_t mismatch_needs = uses_mismatch | reads_old | reads_rollout;

template <typename Real>
struct mismatch_bounds {
    Real log_cap, cap, log_low, log_high;

    explicit mismatch_bounds(mismatch_options const& o)
        : log_cap(std::log(o.cap)), cap(o.cap), log_low(std::log(o.low)), log_high(std::log(o.high)) {}
};

/// The part of a mismatch_report that one chunk yields.
struct mismatch_partial {
    mismatch_report::sum_range sums;
    mismatch_report::count_range counts;
    mismatch_report::maximum_range maxima;
};

/// The sums, counts and extremes of a loop over at most 65535 tokens.
template <typename Real>
struct mismatch_tally {
    Real log_ratio{}, absolute_log_ratio{}, k3_sum{}, total_variation{}, raw{}, raw_squared{}, truncated{}, truncated_squared{},
        masked{}, masked_squared{};
    Real largest = Real(-INFINITY);
    Real largest_negated = Real(-INFINITY);
    bits_of<Real> tokens{}, below_one{}, at_cap{}, out_of_band{}, unscored{}, nonfinite{}, overflow{};

    /// Adds a screened token. Returns |e|, or -1 for a token that does not count.
    ASYNCRL_HOST_DEVICE Real add(observed<Real> const& token, mismatch_bounds<Real> const& bounds) {
        mask_of<Real> const counts = token.live & !token.unscored;
        Real const e = token.t.log_mismatch;
        Real const w = select(counts, token.t.mismatch, Real(0));
        mask_of<Real> const capped = counts & (e > bounds.log_cap);
        mask_of<Real> const inside = (e >= bounds.log_low) & (e <= bounds.log_high);
        Real const t = select(capped, bounds.cap, w);
        Real const m = select(inside, w, Real(0));
        log_ratio = log_ratio + e;
        absolute_log_ratio = absolute_log_ratio + absolute(e);
        k3_sum = k3_sum + select(counts, k3(e, w), Real(0));
        total_variation = total_variation + select(counts, absolute(w - Real(1)) * Real(0.5), Real(0));
        raw = raw + w;
        raw_squared = raw_squared + w * w;
        truncated = truncated + t;
        truncated_squared = truncated_squared + t * t;
        masked = masked + m;
        masked_squared = masked_squared + m * m;
        largest = larger(largest, select(counts, e, Real(-INFINITY)));
        largest_negated = larger(largest_negated, select(counts, -e, Real(-INFINITY)));
        tick_low(tokens, counts);
        tick_low(below_one, counts & (e < Real(0)));
        tick_low(at_cap, capped);
        tick_low(out_of_band, counts & !inside);
        tick_low(unscored, token.active & token.unscored);
        tick_low(nonfinite, token.active & !token.live);
        tick_low(overflow, e > Real(log_mismatch_ceiling));
        return select(counts, absolute(e), Real(-1));
    }
};

}  // namespace detail
ASYNCRL_END_NAMESPACE
