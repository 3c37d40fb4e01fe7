// SPDX-License-Identifier: Apache-2.0
#include "examples.hpp"

#include <asyncrl/correction/presets.hpp>

namespace arrays {

using namespace asyncrl;

std::vector<example> sequence_examples() {
    constexpr auto row_mean = reduction::sequence_mean_token_mean;
    std::vector<example> all;
    all.push_back({"trl",
                   compile(presets::trl()),
                   {.factors = {{.kind = what::sequence_band, .low = 0, .high = 3, .of = pooled::product},
                                {.kind = what::sequence_truncated, .high = 3, .of = pooled::product}}}});
    all.push_back({"nemo_rl_seq_mask_tis",
                   compile(presets::nemo_rl_seq_mask_tis()),
                   {.factors = {{.kind = what::sequence_band, .low = 0.999, .high = 1.002, .of = pooled::geometric},
                                {.kind = what::importance}}}});
    all.push_back({"a geometric band over kept sequences",
                   compile(make_objective(ppo_clip{.low = 0.2, .high = 0.2},
                                          sequence_gate{.low = 0.97, .high = 1.05, .of = level::geometric},
                                          sequence_mean_token_mean{.over = counted::kept})),
                   {.factors = {{.kind = what::sequence_band, .low = 0.97, .high = 1.05, .of = pooled::geometric}},
                    .reduce = row_mean,
                    .over_kept = true}});
    all.push_back({"a veto of any token and a mean k3",
                   compile(make_objective(ppo_clip{.low = 0.2, .high = 0.2}, band_veto{.low = 0.3},
                                          mean_divergence_gate{.limit = 0.03, .by = estimator::k3}, token_mean{})),
                   {.factors = {{.kind = what::band_veto, .low = 0.3, .high = infinity},
                                {.kind = what::mean_divergence, .high = 0.03, .by = estimate::k3}}}});
    all.push_back({"a veto of too many tokens, a sum of k2",
                   compile(make_objective(ppo_clip{.low = 0.2, .high = 0.2},
                                          band_veto{.low = 0.7, .high = 1.3, .most_tokens = 6, .most_share = 0.3},
                                          mean_divergence_gate{.limit = 3, .by = estimator::k2, .per_token = false},
                                          k3_penalty{.coefficient = 0.1}, token_mean{.over = counted::kept})),
                   {.factors = {{.kind = what::band_veto, .low = 0.7, .high = 1.3, .most_tokens = 6, .most_share = 0.3},
                                {.kind = what::mean_divergence, .high = 3, .by = estimate::k2, .per_token = false}},
                    .penalties = {{kl::k3, 0.1}},
                    .over_kept = true}});
    all.push_back({"the largest k1 and the mean k1",
                   compile(make_objective(largest_divergence_gate{.limit = 0.7, .by = estimator::k1},
                                          mean_divergence_gate{.limit = 0.02, .by = estimator::k1}, importance_gradient{},
                                          anchor_rollout{}, token_mean{})),
                   {.ratio = {.kind = loss::importance},
                    .against = anchor::rollout,
                    .factors = {{.kind = what::largest_divergence, .high = 0.7, .by = estimate::k1},
                                {.kind = what::mean_divergence, .high = 0.02, .by = estimate::k1}}}});
    all.push_back({"the largest k2 and the largest k3",
                   compile(make_objective(largest_divergence_gate{.limit = 0.4, .by = estimator::k2},
                                          largest_divergence_gate{.limit = 0.3, .by = estimator::k3}, policy_gradient{},
                                          importance_weight{}, sequence_mean_token_mean{})),
                   {.ratio = {.kind = loss::policy_gradient},
                    .factors = {{.kind = what::largest_divergence, .high = 0.4, .by = estimate::k2},
                                {.kind = what::largest_divergence, .high = 0.3, .by = estimate::k3},
                                {.kind = what::importance}},
                    .reduce = row_mean}});
    all.push_back({"deepseek_v32",
                   compile(presets::deepseek_v32(0.01, 0.02)),
                   {.factors = {{.kind = what::opsm, .high = 0.01}}, .penalties = {{kl::unbiased, 0.02}}, .reduce = row_mean}});
    all.push_back({"off-policy masking under a coupling, over kept sequences",
                   compile(make_objective(ppo_clip{.low = 0.05, .high = 0.05}, sequence_ratio{}, opsm{.delta = 0.02},
                                          anchor_rollout{}, sequence_mean_token_mean{.over = counted::kept})),
                   {.ratio = {.low = 0.05, .high = 0.05},
                    .against = anchor::rollout,
                    .couple = coupling::mean_advantage,
                    .factors = {{.kind = what::opsm, .high = 0.02}},
                    .reduce = row_mean,
                    .over_kept = true}});
    all.push_back({"normalised product weights of sequences",
                   compile(make_objective(ppo_clip{.low = 0.2, .high = 0.2}, sequence_tis{.cap = 4, .of = level::product},
                                          sequence_gate{.low = 0.1, .high = 10, .of = level::product}, normalised_weights{},
                                          token_mean{})),
                   {.factors = {{.kind = what::sequence_truncated, .high = 4, .of = pooled::product},
                                {.kind = what::sequence_band, .low = 0.1, .high = 10, .of = pooled::product}},
                    .normalised = true}});
    return all;
}

}  // namespace arrays
