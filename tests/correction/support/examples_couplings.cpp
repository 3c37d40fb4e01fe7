// SPDX-License-Identifier: Apache-2.0
#include "examples.hpp"

#include <asyncrl/correction/presets.hpp>

namespace arrays {

using namespace asyncrl;

std::vector<example> coupling_examples() {
    constexpr auto row_mean = reduction::sequence_mean_token_mean;
    constexpr auto averaged = coupling::mean_advantage;
    std::vector<example> all;
    all.push_back(
        {"gspo", compile(presets::gspo()), {.ratio = {.low = 3e-4, .high = 4e-4}, .couple = averaged, .reduce = row_mean}});
    all.push_back({"gspo_token",
                   compile(presets::gspo_token()),
                   {.ratio = {.low = 3e-4, .high = 4e-4}, .couple = coupling::own_slope, .reduce = row_mean}});
    all.push_back({"gspo with wide bounds, a dual bound and k3",
                   compile(make_objective(dual_clip{.low = 0.05, .high = 0.06, .cap = 1.1}, sequence_ratio{},
                                          k3_penalty{.coefficient = 0.1}, token_mean{})),
                   {.ratio = {.kind = loss::dual_clip, .low = 0.05, .high = 0.06, .cap = 1.1},
                    .couple = averaged,
                    .penalties = {{kl::k3, 0.1}}}});
    all.push_back(
        {"a clip on the product of ratios",
         compile(make_objective(ppo_clip{.low = 0.5, .high = 0.8}, sequence_ratio{.of = level::product}, token_mean{})),
         {.ratio = {.low = 0.5, .high = 0.8}, .couple = averaged, .of = pooled::product}});
    all.push_back({"gspo under truncated weights and a mask",
                   compile(make_objective(ppo_clip{.low = 0.05, .high = 0.05}, sequence_ratio{}, tis{.cap = 1.1}, given_gate{},
                                          sequence_mean_token_mean{.over = counted::kept})),
                   {.ratio = {.low = 0.05, .high = 0.05},
                    .couple = averaged,
                    .factors = {{.kind = what::truncated, .high = 1.1}, {.kind = what::given_keep}},
                    .reduce = row_mean,
                    .over_kept = true}});
    all.push_back({"gmpo under given weights",
                   compile(make_objective(importance_gradient{}, clipped_geometric_ratio{.limit = 0.2}, given_weight{},
                                          sequence_mean_token_mean{})),
                   {.ratio = {.kind = loss::importance},
                    .couple = coupling::clipped,
                    .limit = 0.2,
                    .factors = {{.kind = what::given_weight}},
                    .reduce = row_mean}});
    all.push_back({"a live broadcast under truncated weights",
                   compile(make_objective(ppo_clip{.low = 0.04, .high = 0.05}, sequence_ratio_shared_slope{}, tis{.cap = 1.1},
                                          unbiased_k3_penalty{.coefficient = 0.05}, sequence_mean_token_mean{})),
                   {.ratio = {.low = 0.04, .high = 0.05},
                    .couple = coupling::shared_slope,
                    .factors = {{.kind = what::truncated, .high = 1.1}},
                    .penalties = {{kl::unbiased, 0.05}},
                    .reduce = row_mean}});
    all.push_back({"a live broadcast of a clamped product",
                   compile(make_objective(spo{.epsilon = 0.3}, sequence_ratio_shared_slope{.of = level::product},
                                          log_ratio_clamp{.limit = 1}, mis{.low = 0.8, .high = 1.3},
                                          sequence_mean_token_sum{.horizon = 100})),
                   {.ratio = {.kind = loss::spo, .epsilon = 0.3},
                    .couple = coupling::shared_slope,
                    .of = pooled::product,
                    .clamp = 1,
                    .factors = {{.kind = what::importance}, {.kind = what::mismatch_band, .low = 0.8, .high = 1.3}},
                    .reduce = reduction::sequence_mean_token_sum,
                    .constant = 100}});
    all.push_back({"gmpo",
                   compile(presets::gmpo()),
                   {.ratio = {.kind = loss::importance}, .couple = coupling::clipped, .limit = 0.4, .reduce = row_mean}});
    all.push_back({"gmpo with a narrow limit",
                   compile(make_objective(importance_gradient{}, clipped_geometric_ratio{.limit = 0.1}, token_mean{})),
                   {.ratio = {.kind = loss::importance}, .couple = coupling::clipped, .limit = 0.1}});
    all.push_back({"sat_gspo",
                   compile(presets::sat_gspo(1e-3)),
                   {.ratio = {.kind = loss::sat, .low = 3e-4, .high = 4e-4},
                    .against = anchor::rollout,
                    .couple = averaged,
                    .penalties = {{kl::k3, 1e-3}},
                    .reduce = row_mean}});
    all.push_back(
        {"sat_gspo that counts sequences",
         compile(make_objective(sat_clip{.low = 0.1, .high = 0.1, .quantile = {1, 2}, .each_sequence = true},
                                sequence_ratio_own_slope{}, token_mean{})),
         {.ratio = {.kind = loss::sat, .low = 0.1, .high = 0.1, .numerator = 1, .denominator = 2, .each_sequence = true},
          .couple = coupling::own_slope}});
    all.push_back(
        {"sapo on sequences, by their own slopes",
         compile(make_objective(sapo{}, sequence_ratio_own_slope{}, anchor_rollout{}, sequence_mean_token_mean{})),
         {.ratio = {.kind = loss::sapo}, .against = anchor::rollout, .couple = coupling::own_slope, .reduce = row_mean}});
    return all;
}

}  // namespace arrays
