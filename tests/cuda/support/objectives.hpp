// SPDX-License-Identifier: Apache-2.0
/// @file One objective for each part that the methods of the other tests do not have, by number, for both backends.
#pragma once

#include "methods.hpp"

#include <asyncrl/correction/presets.hpp>

namespace objectives {

inline constexpr char const* names[] = {
    "dual clip, two-sided TIS, k3 and k1",
    "delta clip, given weight and gate, log-ratio clamp",
    "KPop, anchor given",
    "DPPO by total variation",
    "DPPO by KL, divergence gate, unbiased k3",
    "A-3PO, staleness weights and gate",
    "CISPO, lag and engine gates",
    "SAPO, k2, straight-through and weighted k3",
    "SPO",
    "DRPO, IPO gate",
    "ASPO, hinge",
    "TOPR by score, kept mass",
    "GSPO",
    "GSPO-token, sequence TIS, band veto",
    "shared slope, TIS, sequence gate, kept",
    "GMPO, mismatch gate",
    "VESPO",
    "OPSM, divergence gates of sequences",
    "SAT on GSPO",
    "SAT, dual cap and Hill exponent, shared slopes",
    "SAT on GSPO, interpolated over sequences",
    "SAT, anchor between, interpolated",
    "SAT by the rollout policy, lag gate, k3",
    "SAT, anchor given, kept mass, weights, divergence gate, k2",
    "normalised weights without a mask",
    "SAT on shared slopes, gates and weights of both kinds, normalised",
    "SAT by the rollout policy, kept mass",
};
inline constexpr int first_of_sequences = 12;
inline constexpr int count = 27;

/// go(objective)
template <typename Call>
auto with_objective(int which, methods::any_reduction const& reduce, Call const& go) {
    using namespace asyncrl;
    auto const made = [&](auto... parts) { return go(make_objective(parts..., reduce)); };
    switch (which) {
        case 0:
            return made(dual_clip{.cap = 1.5}, two_sided_tis{.low = 0.75, .high = 1.25}, k3_penalty{.coefficient = 0.1},
                        k1_penalty{.coefficient = 0.01, .clamp = 0.25});
        case 1:
            return made(delta_clip{.delta = 1.5}, given_weight{}, given_gate{}, log_ratio_clamp{.limit = 0.375});
        case 2:
            return made(ppo_clip{}, anchor_given{}, kpop_gate{.limit = 0.01}, importance_weight{});
        case 3:
            return made(importance_gradient{}, anchor_rollout{}, tv_gate{.low = 0.05, .high = 0.05},
                        squared_log_ratio_penalty{.coefficient = 1e-3});
        case 4:
            return made(importance_gradient{}, anchor_rollout{}, kl_gate{.limit = 0.01}, divergence_gate{.limit = 0.5},
                        unbiased_k3_penalty{.coefficient = 0.1});
        case 5:
            return made(ppo_clip{}, anchor_between{}, tis{.cap = 1.25}, staleness_power{}, staleness_exponential{},
                        staleness_gate{.limit = 5});
        case 6:
            return made(cispo{.low = 0.25, .high = 0.25}, lag_gate{.low = 0.75, .high = 1.5},
                        engine_gate{.low = 0.75, .high = 1.5});
        case 7:
            return made(sapo{}, k2_penalty{.coefficient = 0.1}, straight_through_k3_penalty{.coefficient = 0.1},
                        weighted_k3_penalty{.coefficient = 0.1});
        case 8:
            return made(spo{});
        case 9:
            return made(drpo{.delta = 0.05}, anchor_rollout{}, ipo_gate{.limit = 0.1});
        case 10:
            return made(aspo{.cap_positive = 1.25, .cap_negative = 1.25}, staleness_hinge{});
        case 11:
            return made(topr_by_score{}, anchor_rollout{}, kept_mass{});
        case 12:
            return made(ppo_clip{.low = 0.02, .high = 0.03}, sequence_ratio{});
        case 13:
            return made(ppo_clip{.low = 0.02, .high = 0.03}, sequence_ratio_own_slope{},
                        sequence_tis{.cap = 1.5, .of = level::product}, band_veto{.low = 0.5, .high = 2, .most_share = 0.1});
        case 14:
            return made(importance_gradient{}, sequence_ratio_shared_slope{}, tis{.cap = 1.25},
                        sequence_gate{.low = 0.95, .high = 1.05});
        case 15:
            return made(importance_gradient{}, clipped_geometric_ratio{.limit = 0.25}, mismatch_gate{.low = 0.75, .high = 1.5});
        case 16:
            return made(vespo{}, anchor_rollout{}, sequence_ratio_own_slope{.of = level::product});
        case 17:
            return made(ppo_clip{}, opsm{.delta = 0.001}, mean_divergence_gate{.limit = 0.05, .by = estimator::k2},
                        largest_divergence_gate{.limit = 0.5});
        case 18:
            return made(sat_clip{.low = 0.02, .high = 0.03, .quantile = {3, 4}}, anchor_rollout{}, sequence_ratio{},
                        k3_penalty{.coefficient = 0.1});
        case 19:
            return made(sat_clip{.quantile = {3, 4}, .hill = 1.5, .cap = 1.5}, sequence_ratio_shared_slope{},
                        importance_weight{});
        case 20:
            return made(sat_clip{.low = 0.02, .high = 0.03, .quantile = {2, 3}, .interpolate = true, .each_sequence = true},
                        sequence_ratio{});
        case 21:
            return made(sat_clip{.quantile = {3, 4}, .interpolate = true}, anchor_between{}, kept_mass{});
        case 22:
            return made(sat_clip{.quantile = {3, 4}}, anchor_rollout{}, lag_gate{.low = 0.5, .high = 2},
                        k3_penalty{.coefficient = 0.1});
        case 23:
            return made(sat_clip{.quantile = {3, 4}}, anchor_given{}, kept_mass{}, importance_weight{}, given_weight{},
                        divergence_gate{.limit = 2}, k2_penalty{.coefficient = 0.1});
        case 24:
            return made(ppo_clip{}, normalised_weights{}, importance_weight{}, staleness_power{});
        case 25:
            return made(sat_clip{.low = 0.02, .high = 0.03, .quantile = {3, 4}}, sequence_ratio_shared_slope{},
                        sequence_gate{.low = 0.9, .high = 1.1}, sequence_tis{.cap = 1.02, .of = level::geometric},
                        mismatch_gate{.low = 0.75, .high = 1.5}, given_weight{}, normalised_weights{});
        default:
            return made(sat_clip{.quantile = {3, 4}}, anchor_rollout{}, kept_mass{});
    }
}

}  // namespace objectives
