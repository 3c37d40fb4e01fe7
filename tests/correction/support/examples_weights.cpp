// SPDX-License-Identifier: Apache-2.0
#include "examples.hpp"

#include <asyncrl/correction/presets.hpp>

namespace arrays {

using namespace asyncrl;

std::vector<example> weight_examples() {
    constexpr auto row_mean = reduction::sequence_mean_token_mean;
    std::vector<example> all;
    all.push_back(
        {"decoupled_ppo", compile(presets::decoupled_ppo(1.1)), {.factors = {{.kind = what::truncated, .high = 1.1}}}});
    all.push_back({"a3po",
                   compile(presets::a3po(1.2)),
                   {.against = anchor::between, .factors = {{.kind = what::truncated, .high = 1.2}}}});
    all.push_back(
        {"openrlhf_tis", compile(presets::openrlhf_tis()), {.factors = {{.kind = what::two_sided, .low = 0.5, .high = 5}}}});
    all.push_back(
        {"icepop over kept tokens",
         compile(make_objective(ppo_clip{.low = 0.2, .high = 0.2}, mis{.low = 0.8, .high = 1.5},
                                token_mean{.over = counted::kept})),
         {.factors = {{.kind = what::importance}, {.kind = what::mismatch_band, .low = 0.8, .high = 1.5}}, .over_kept = true}});
    all.push_back({"verl_sequence_tis",
                   compile(presets::verl_sequence_tis()),
                   {.ratio = {.kind = loss::dual_clip, .cap = 3},
                    .factors = {{.kind = what::sequence_truncated, .high = 2, .of = pooled::product}}}});
    all.push_back({"geometric weights of sequences, kept mass, normalised",
                   compile(make_objective(ppo_clip{.low = 0.2, .high = 0.2}, kept_mass{},
                                          sequence_tis{.cap = 1.02, .of = level::geometric}, normalised_weights{},
                                          sequence_mean_token_mean{})),
                   {.kept_mass = true,
                    .factors = {{.kind = what::sequence_truncated, .high = 1.02, .of = pooled::geometric}},
                    .normalised = true,
                    .reduce = row_mean}});
    all.push_back(
        {"normalised two-sided weights behind a mask, over kept tokens of rows",
         compile(make_objective(normalised_weights{}, ppo_clip{.low = 0.2, .high = 0.2}, two_sided_tis{.low = 0.9, .high = 1.2},
                                given_gate{}, k3_penalty{.coefficient = 0.1}, sequence_mean_token_mean{.over = counted::kept})),
         {.factors = {{.kind = what::two_sided, .low = 0.9, .high = 1.2}, {.kind = what::given_keep}},
          .normalised = true,
          .penalties = {{kl::k3, 0.1}},
          .reduce = row_mean,
          .over_kept = true}});
    all.push_back({"given weights and a power of staleness",
                   compile(make_objective(ppo_clip{.low = 0.2, .high = 0.2}, given_weight{}, staleness_power{.exponent = 0.7},
                                          token_mean{})),
                   {.factors = {{.kind = what::given_weight}, {.kind = what::staleness_power, .high = 0.7}}}});
    all.push_back({"an exponential and a hinge of staleness, a hard cut",
                   compile(make_objective(importance_gradient{}, staleness_exponential{.rate = 0.15},
                                          staleness_hinge{.slope = 0.5, .flat = 3}, staleness_gate{.limit = 7},
                                          token_mean{.over = counted::kept})),
                   {.ratio = {.kind = loss::importance},
                    .factors = {{.kind = what::staleness_exponential, .high = 0.15},
                                {.kind = what::staleness_hinge, .low = 3, .high = 0.5},
                                {.kind = what::staleness, .high = 7}},
                    .over_kept = true}});
    all.push_back({"the mismatch of interpolated old log-probs, in a band",
                   compile(make_objective(ppo_clip{.low = 0.2, .high = 0.2}, anchor_between{},
                                          mismatch_gate{.low = 0.9, .high = 1.1}, importance_weight{}, token_mean{})),
                   {.against = anchor::between,
                    .factors = {{.kind = what::importance}, {.kind = what::mismatch_band, .low = 0.9, .high = 1.1}}}});
    all.push_back({"rollout counted twice",
                   compile(make_objective(ppo_clip{.low = 0.2, .high = 0.2}, anchor_rollout{}, importance_weight{},
                                          count_twice{}, token_mean{})),
                   {.against = anchor::rollout, .factors = {{.kind = what::importance}}}});
    return all;
}

}  // namespace arrays
