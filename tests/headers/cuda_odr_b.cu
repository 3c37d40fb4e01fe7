// SPDX-License-Identifier: Apache-2.0
#include <asyncrl/cuda.cuh>

cudaError_t other_refusal();

cudaError_t other_refusal() {
    auto const objective = asyncrl::make_objective(asyncrl::ppo_clip{}, asyncrl::token_mean{});
    asyncrl::token_batch const none;
    cudaError_t const error = asyncrl::gpu::measure(objective, none, nullptr, {}, nullptr);
    return error != cudaErrorInvalidValue ? error
                                          : asyncrl::gpu::policy_loss(objective, none, nullptr, {}, nullptr, {}, nullptr);
}
