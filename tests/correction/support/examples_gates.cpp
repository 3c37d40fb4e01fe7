// SPDX-License-Identifier: Apache-2.0
#include "examples.hpp"

#include <asyncrl/correction/presets.hpp>

namespace arrays {

using namespace asyncrl;

std::vector<example> gate_examples() {
    constexpr auto row_mean = reduction::sequence_mean_token_mean;
    std::vector<example> all;
    all.push_back({"kpop with a narrow limit",
                   compile(make_objective(ppo_clip{.low = 0.2, .high = 0.2}, kpop_gate{.limit = 0.01}, importance_weight{},
                                          token_mean{})),
                   {.factors = {{.kind = what::kpop, .high = 0.01}, {.kind = what::importance}}}});
    all.push_back({"dppo_tv",
                   compile(presets::dppo_tv()),
                   {.ratio = {.kind = loss::importance},
                    .against = anchor::rollout,
                    .factors = {{.kind = what::tv, .low = 0.2, .high = 0.2}},
                    .penalties = {{kl::squared_log_ratio, 1e-3}}}});
    all.push_back({"total variation with unequal limits, over kept tokens",
                   compile(make_objective(ppo_clip{.low = 0.2, .high = 0.2}, tv_gate{.low = 0.01, .high = 0.03},
                                          token_mean{.over = counted::kept})),
                   {.factors = {{.kind = what::tv, .low = 0.01, .high = 0.03}}, .over_kept = true}});
    all.push_back(
        {"dppo_kl",
         compile(presets::dppo_kl(0.005)),
         {.ratio = {.kind = loss::importance}, .against = anchor::rollout, .factors = {{.kind = what::kl, .high = 0.005}}}});
    all.push_back({"a divergence given, over kept tokens of rows",
                   compile(make_objective(importance_gradient{}, divergence_gate{.limit = 0.1}, anchor_given{},
                                          squared_log_ratio_penalty{.coefficient = 0.01, .clamp = 0.05},
                                          sequence_mean_token_mean{.over = counted::kept})),
                   {.ratio = {.kind = loss::importance},
                    .against = anchor::given,
                    .factors = {{.kind = what::divergence, .high = 0.1}},
                    .penalties = {{kl::squared_log_ratio, 0.01, 0.05}},
                    .reduce = row_mean,
                    .over_kept = true}});
    all.push_back({"ipo",
                   compile(presets::ipo()),
                   {.ratio = {.kind = loss::importance},
                    .against = anchor::rollout,
                    .factors = {{.kind = what::ipo, .high = 0.1}},
                    .penalties = {{kl::squared_log_ratio, 1e-3}}}});
    all.push_back({"lag and engine apart",
                   compile(make_objective(ppo_clip{.low = 0.2, .high = 0.2}, lag_gate{.low = 0.8, .high = 1.3},
                                          engine_gate{.low = 0.7, .high = 1.2}, token_mean{})),
                   {.factors = {{.kind = what::lag_band, .low = 0.8, .high = 1.3},
                                {.kind = what::engine_band, .low = 0.7, .high = 1.2}}}});
    all.push_back({"areal_decoupled",
                   compile(presets::areal_decoupled()),
                   {.factors = {{.kind = what::importance}, {.kind = what::mismatch_band, .low = 0, .high = 5}}}});
    return all;
}

}  // namespace arrays
