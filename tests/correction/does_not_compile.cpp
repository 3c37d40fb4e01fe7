// SPDX-License-Identifier: Apache-2.0
// Compositions that the compiler refuses with a sentence; CMakeLists.txt names the CASE and the sentence.
#include <asyncrl/correction/objective.hpp>

namespace {

struct not_a_part {};

[[maybe_unused]] auto compose() {
    using namespace asyncrl;
#if CASE == 0
    return make_objective(ppo_clip{}, tis{}, token_mean{});  // all is well
#elif CASE == 1
    return make_objective(tis{}, token_mean{});
#elif CASE == 2
    return make_objective(ppo_clip{}, policy_gradient{}, token_mean{});
#elif CASE == 3
    return make_objective(ppo_clip{}, tis{});
#elif CASE == 4
    return make_objective(ppo_clip{}, token_mean{}, token_sum{});
#elif CASE == 5
    return make_objective(ppo_clip{}, tis{}, anchor_rollout{}, token_mean{});
#elif CASE == 6
    return make_objective(ppo_clip{}, tis{}, mis{}, token_mean{});
#elif CASE == 7
    return make_objective(ppo_clip{}, anchor_rollout{}, anchor_rollout{}, token_mean{});
#elif CASE == 8
    return make_objective(policy_gradient{}, anchor_rollout{}, token_mean{});
#elif CASE == 9
    return make_objective(ppo_clip{}, not_a_part{}, token_mean{});
#elif CASE == 10
    return make_objective(ppo_clip{}, sequence_ratio{}, clipped_geometric_ratio{}, token_mean{});
#elif CASE == 11
    return make_objective(ppo_clip{}, log_ratio_clamp{}, log_ratio_clamp{}, token_mean{});
#elif CASE == 12
    return make_objective(drpo{}, sequence_ratio{}, token_mean{});
#elif CASE == 13
    return make_objective(policy_gradient{}, sequence_ratio{}, token_mean{});
#elif CASE == 14
    return make_objective(cispo{}, sequence_ratio_shared_slope{}, token_mean{});
#elif CASE == 15
    return make_objective(ppo_clip{}, normalised_weights{}, token_mean{});
#elif CASE == 16
    return make_objective(ppo_clip{}, tis{}, sequence_tis{}, token_mean{});
#elif CASE == 17
    return make_objective(ppo_clip{}, tis{}, anchor_rollout{}, count_twice{}, token_mean{});  // said to be meant
#endif
}

}  // namespace
