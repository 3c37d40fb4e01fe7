// SPDX-License-Identifier: Apache-2.0
#include "examples.hpp"

#include <asyncrl/correction/presets.hpp>

namespace arrays {

using namespace asyncrl;

std::vector<example> score_examples() {
    constexpr auto row_mean = reduction::sequence_mean_token_mean;
    std::vector<example> all;
    all.push_back({"cispo_async",
                   compile(presets::cispo_async()),
                   {.ratio = {.kind = loss::cispo, .low = 1, .high = 0.28}, .against = anchor::rollout}});
    all.push_back({"cispo on both sides, clamped, weighted k3",
                   compile(make_objective(cispo{.low = 0.2, .high = 0.2}, log_ratio_clamp{.limit = 0.15},
                                          weighted_k3_penalty{.coefficient = 0.3, .clamp = 0.4}, sequence_mean_token_mean{})),
                   {.ratio = {.kind = loss::cispo, .low = 0.2, .high = 0.2},
                    .clamp = 0.15,
                    .penalties = {{kl::weighted, 0.3, 0.4}},
                    .reduce = row_mean}});
    all.push_back({"aspo_published",
                   compile(presets::aspo_published()),
                   {.ratio = {.kind = loss::aspo, .low = 0.2, .high = 0.2, .cap = 3, .cap_negative = 3}}});
    all.push_back({"aspo with low caps",
                   compile(make_objective(aspo{.low = 0.3, .high = 0.1, .cap_positive = 1.2, .cap_negative = 1.1},
                                          anchor_rollout{}, token_mean{})),
                   {.ratio = {.kind = loss::aspo, .low = 0.3, .high = 0.1, .cap = 1.2, .cap_negative = 1.1},
                    .against = anchor::rollout}});
    all.push_back({"topr_published",
                   compile(presets::topr_published()),
                   {.ratio = {.kind = loss::topr, .cap = 1},
                    .against = anchor::rollout,
                    .couple = coupling::own_slope,
                    .of = pooled::product}});
    all.push_back({"topr by tokens and score",
                   compile(make_objective(topr_by_score{.cap = 1.1}, anchor_rollout{}, sequence_mean_token_sum{.horizon = 32})),
                   {.ratio = {.kind = loss::topr_by_score, .cap = 1.1},
                    .against = anchor::rollout,
                    .reduce = reduction::sequence_mean_token_sum,
                    .constant = 32}});
    all.push_back(
        {"vespo_published",
         compile(presets::vespo_published()),
         {.ratio = {.kind = loss::vespo}, .against = anchor::rollout, .couple = coupling::own_slope, .of = pooled::product}});
    all.push_back(
        {"vespo by tokens",
         compile(make_objective(vespo{.power_positive = 1, .rate_positive = 0.5, .power_negative = 2, .rate_negative = 4},
                                token_mean{})),
         {.ratio = {.kind = loss::vespo, .power_positive = 1, .rate_positive = 0.5, .power_negative = 2, .rate_negative = 4}}});
    all.push_back({"kimi_k15",
                   compile(presets::kimi_k15(0.1)),
                   {.ratio = {.kind = loss::policy_gradient}, .penalties = {{kl::squared_log_ratio, 0.05}}}});
    all.push_back(
        {"policy gradient with truncated weights",
         compile(make_objective(policy_gradient{}, tis{.cap = 1.2}, sequence_mean_token_mean{})),
         {.ratio = {.kind = loss::policy_gradient}, .factors = {{.kind = what::truncated, .high = 1.2}}, .reduce = row_mean}});
    return all;
}

}  // namespace arrays
