// SPDX-License-Identifier: Apache-2.0
#include "slopes.hpp"

namespace arrays {

using namespace asyncrl;

std::vector<slope_case> weighted_slopes() {
    constexpr ppo_clip clip{.low = 0.06, .high = 0.1};
    constexpr auto whole = derivative_of::the_whole;
    std::vector<slope_case> all;
    add_slopes(all, "delta_clip", whole, delta_clip{.low = 0.1, .high = 0.1, .delta = 1.2});
    // Weights and masks that differ from token to token.
    for (asyncrl::level const of : {asyncrl::level::geometric, asyncrl::level::product}) {
        add_slopes(all, "weighted ratio", whole, clip, sequence_ratio{of}, given_weight{}, given_gate{});
        add_slopes(all, "weighted own slopes", derivative_of::its_own_term, clip, sequence_ratio_own_slope{of}, given_weight{},
                   given_gate{});
        add_slopes(all, "weighted shared slopes", whole, clip, sequence_ratio_shared_slope{of}, given_weight{}, given_gate{},
                   log_ratio_clamp{0.2});
    }
    add_slopes(all, "weighted clipped ratios", whole, clip, clipped_geometric_ratio{0.15}, given_weight{}, given_gate{});
    add_slopes(all, "weighted ratio under weights of sequences", whole, importance_gradient{}, sequence_ratio{},
               sequence_tis{.cap = 1.01, .of = asyncrl::level::geometric}, log_ratio_clamp{0.05});
    all.push_back({"kept tokens",
                   compile(make_objective(clip, sequence_ratio_shared_slope{}, given_gate{}, k2_penalty{0.1},
                                          token_mean{.over = counted::kept})),
                   whole, reduction::token_mean, true});
    all.push_back({"kept tokens of rows",
                   compile(make_objective(clip, sequence_ratio{}, given_gate{}, k1_penalty{0.1},
                                          sequence_mean_token_mean{.over = counted::kept})),
                   whole, reduction::sequence_mean_token_mean, true});
    add_slopes(all, "penalties", whole, clip, given_gate{}, k3_penalty{0.3}, unbiased_k3_penalty{0.2},
               squared_log_ratio_penalty{.coefficient = 0.1, .clamp = 0.03}, k2_penalty{.coefficient = 0.1, .clamp = 0.1});
    add_slopes(all, "weighted penalty", derivative_of::the_score, policy_gradient{}, anchor_given{}, weighted_k3_penalty{0.3});
    return all;
}

}  // namespace arrays
