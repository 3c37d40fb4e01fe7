// SPDX-License-Identifier: Apache-2.0
/// @file M2PO: bounds on the second moment of the log-ratios of a batch (arXiv 2510.01161). Two algorithms go by that name.
///
/// Both look at a whole batch before the loss and answer in what other parts take: bounds for ppo_clip, or a mask for
/// given_gate.
#pragma once

#include <asyncrl/correction/detail/check_batch.hpp>
#include <asyncrl/correction/detail/host_loop.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

ASYNCRL_BEGIN_NAMESPACE

/// What m2_bound found.
struct m2_bound_result {
    double log_bound;      ///< tau; infinity where the budget is kept without a bound
    std::int64_t outward;  ///< tokens that an update would carry further from the old policy
    double mean_square;    ///< of their log-ratios, before bounding
    ppo_clip clip;         ///< 1 - low = exp(-tau), 1 + high = exp(tau), no narrower than asked for
};

namespace detail {

inline constexpr std::uint32_t m2_needs = uses_ratio | reads_old;
inline constexpr std::uint32_t m2_mask_needs = uses_mismatch | reads_old | reads_rollout;

/// Calls visit(position, token) for the live tokens of a batch, in double and in order.
template <std::uint32_t Needs, typename Visit>
void for_each_live_token(token_batch const& batch, Visit visit) {
    sentinel<double> const missing(stored_sentinel(batch));
    for (std::int64_t chunk = 0; chunk < chunk_count(batch.size()); ++chunk) {
        chunk_range const range = chunk_at(batch, chunk);
        input_buffers<double, Needs> buffers;
        auto const in = stage_inputs<Needs>(batch, range, range.count, buffers);
        for (std::int64_t i = 0; i < range.count; ++i) {
            observed<double> token = load_tokens<Needs, double>(in, i, missing);
            screen(token);
            if (token.live) {
                visit(range.begin + i, token);
            }
        }
    }
}

}  // namespace detail

/// The clip of M2PO as published: over the tokens that an update would carry outward (A and log(new / old) of the same sign),
/// the bound tau with mean(min(log r, tau)^2) = budget, exactly, by sorting; as a clip with bounds exp(-tau) and exp(tau), at
/// least `narrowest_low` and `narrowest_high` away from 1. No outward token, or a mean below the budget: no bound on that
/// account (tau = infinity, a clip that takes nothing: low just below 1, high at 1e30).
///
/// `scratch` is the caller's memory, grown as needed. O(n log n), double.
/// @throws std::invalid_argument naming what is wrong with the batch, or a budget <= 0.
[[nodiscard]] inline m2_bound_result m2_bound(token_batch const& batch, double budget, std::vector<double>& scratch,
                                              double narrowest_low = 0, double narrowest_high = 0) {
    detail::require(budget > 0 && std::isfinite(budget), "budget", budget, "finite and > 0");
    detail::check_clip(narrowest_low, narrowest_high, "narrowest_low", "narrowest_high");
    detail::check_batch(batch, detail::m2_needs);
    scratch.clear();
    double sum = 0;
    detail::for_each_live_token<detail::m2_needs>(batch, [&](std::int64_t, detail::observed<double> const& token) {
        double const d = token.t.log_ratio;
        if (token.t.advantage * d > 0) {
            scratch.push_back(d * d);
            sum += d * d;
        }
    });
    auto const n = static_cast<double>(scratch.size());
    m2_bound_result result{
        std::numeric_limits<double>::infinity(), static_cast<std::int64_t>(scratch.size()), n > 0 ? sum / n : 0, {}};
    if (n > 0 && sum > budget * n) {
        // Water-filling: the smaller squares stay as they are, all larger ones are cut to one level.
        std::sort(scratch.begin(), scratch.end());
        double below = 0;
        for (std::size_t i = 0; i < scratch.size(); ++i) {
            double const level = (budget * n - below) / (n - static_cast<double>(i));
            if (level <= scratch[i]) {
                result.log_bound = std::sqrt(level);
                break;
            }
            below += scratch[i];
        }
    }
    result.clip.low = std::max(narrowest_low, std::min(-std::expm1(-result.log_bound), 1 - 0x1p-53));
    result.clip.high = std::max(narrowest_high, std::min(std::expm1(result.log_bound), 1e30));
    return result;
}

/// The mask of AReaL's M2PO: with e = log(old / rollout), rejects tokens, the largest e^2 first, until the mean of e^2 over the
/// rest is strictly below `limit`; the last token is always kept. Of equal squares the earlier token goes first. Writes `keep`,
/// 1 or 0 for each position in the batch's order, for token_batch::keep: 1 for inactive tokens. Returns how many were rejected.
///
/// `scratch` is the caller's memory, grown as needed. O(n log n), double.
/// @throws std::invalid_argument naming what is wrong with the batch, or a limit that is not > 0, before `keep` is changed.
inline std::int64_t m2_mask(token_batch const& batch, double limit, std::uint8_t* keep,
                            std::vector<std::pair<double, std::int64_t>>& scratch) {
    detail::require(limit > 0, "limit", limit, "> 0");
    token_batch pair = batch;
    pair.log_prob = batch.old_log_prob;
    pair.advantage = batch.old_log_prob;
    detail::check_shape(batch);
    detail::check_column(batch.old_log_prob, "token_batch.old_log_prob", batch);
    detail::check_batch(pair, detail::m2_mask_needs);
    std::fill_n(keep, batch.size(), std::uint8_t{1});
    scratch.clear();
    detail::for_each_live_token<detail::m2_mask_needs>(pair, [&](std::int64_t at, detail::observed<double> const& token) {
        double const square = token.t.log_mismatch * token.t.log_mismatch;
        scratch.emplace_back(-square, at);  // sorted: the largest first, then by place
    });
    std::sort(scratch.begin(), scratch.end());
    // The sum over what is scratch is added up from the small end, so that it does not carry the large squares' rounding.
    double rest = 0;
    for (auto at = scratch.rbegin(); at != scratch.rend(); ++at) {
        rest -= at->first;
        at->first = -rest;
    }
    std::int64_t rejected = 0;
    auto const n = static_cast<std::int64_t>(scratch.size());
    while (rejected + 1 < n &&
           -scratch[static_cast<std::size_t>(rejected)].first / static_cast<double>(n - rejected) >= limit) {
        keep[scratch[static_cast<std::size_t>(rejected)].second] = 0;
        ++rejected;
    }
    return rejected;
}

ASYNCRL_END_NAMESPACE
