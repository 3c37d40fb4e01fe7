// SPDX-License-Identifier: Apache-2.0
#include "examples.hpp"

#include <asyncrl/correction/presets.hpp>

namespace arrays {

using namespace asyncrl;

std::vector<example> clip_examples() {
    constexpr auto row_mean = reduction::sequence_mean_token_mean;
    std::vector<example> all;
    all.push_back({"grpo", compile(presets::grpo(0.04)), {.penalties = {{kl::k3, 0.04}}, .reduce = row_mean}});
    all.push_back({"dapo", compile(presets::dapo()), {.ratio = {.high = 0.28}}});
    all.push_back({"dr_grpo", compile(presets::dr_grpo(64)), {.reduce = reduction::sequence_mean_token_sum, .constant = 64}});
    all.push_back({"verl", compile(presets::verl()), {.ratio = {.kind = loss::dual_clip, .cap = 3}}});
    all.push_back({"roll", compile(presets::roll()), {.ratio = {.kind = loss::dual_clip, .cap = 1.4}, .reduce = row_mean}});
    all.push_back({"delta clip against a given anchor, k1",
                   compile(make_objective(k1_penalty{.coefficient = 0.02}, delta_clip{.low = 0.1, .high = 0.2, .delta = 1.3},
                                          anchor_given{}, token_sum{.divisor = 100})),
                   {.ratio = {.kind = loss::delta_clip, .low = 0.1, .high = 0.2, .cap = 1.3},
                    .against = anchor::given,
                    .penalties = {{kl::k1, 0.02}},
                    .reduce = reduction::token_sum,
                    .constant = 100}});
    all.push_back({"spo", compile(presets::simple_policy_optimization()), {.ratio = {.kind = loss::spo, .epsilon = 0.2}}});
    all.push_back({"drpo against the old policy",
                   compile(make_objective(drpo{.delta = 0.05}, sequence_mean_token_mean{})),
                   {.ratio = {.kind = loss::drpo, .epsilon = 0.05}, .reduce = row_mean}});
    all.push_back({"drpo_published",
                   compile(presets::drpo_published()),
                   {.ratio = {.kind = loss::drpo, .epsilon = 12.5}, .against = anchor::rollout}});
    all.push_back({"sapo_published",
                   compile(presets::sapo_published()),
                   {.ratio = {.kind = loss::sapo, .tau_positive = 1, .tau_negative = 1.05}, .reduce = row_mean}});
    all.push_back(
        {"sat_grpo",
         compile(presets::sat_grpo(1e-3)),
         {.ratio = {.kind = loss::sat}, .against = anchor::rollout, .penalties = {{kl::k3, 1e-3}}, .reduce = row_mean}});
    all.push_back({"sat with another exponent, interpolated",
                   compile(make_objective(
                       sat_clip{.low = 0.3, .high = 0.4, .quantile = {3, 7}, .hill = 3.5, .interpolate = true}, token_mean{})),
                   {.ratio = {.kind = loss::sat,
                              .low = 0.3,
                              .high = 0.4,
                              .numerator = 3,
                              .denominator = 7,
                              .hill = 3.5,
                              .interpolate = true}}});
    all.push_back({"sat with a dual bound",
                   compile(make_objective(sat_clip{.low = 0.2, .high = 0.2, .quantile = {2, 3}, .cap = 1.3}, token_mean{})),
                   {.ratio = {.kind = loss::sat_dual, .cap = 1.3, .numerator = 2, .denominator = 3}}});
    all.push_back({"a clamped log-ratio, k2 and straight-through k3 with clamps",
                   compile(make_objective(importance_gradient{}, log_ratio_clamp{.limit = 0.3},
                                          k2_penalty{.coefficient = 0.1, .clamp = 0.2},
                                          straight_through_k3_penalty{.coefficient = 0.05, .clamp = 0.3}, token_mean{})),
                   {.ratio = {.kind = loss::importance},
                    .clamp = 0.3,
                    .penalties = {{kl::k2, 0.1, 0.2}, {kl::straight_through, 0.05, 0.3}}}});
    return all;
}

}  // namespace arrays
