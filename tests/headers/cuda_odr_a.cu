// SPDX-License-Identifier: Apache-2.0
/// @file With cuda_odr_b.cu: the same kernels in two translation units link into one program. Needs no device.
#include <asyncrl/cuda.cuh>

cudaError_t other_refusal();

static cudaError_t refusal() {
    auto const objective = asyncrl::make_objective(asyncrl::ppo_clip{}, asyncrl::token_mean{});
    asyncrl::token_batch const none;
    cudaError_t const error = asyncrl::gpu::measure(objective, none, nullptr, {}, nullptr);
    return error != cudaErrorInvalidValue ? error
                                          : asyncrl::gpu::policy_loss(objective, none, nullptr, {}, nullptr, {}, nullptr);
}

int main() {
    return refusal() == cudaErrorInvalidValue && other_refusal() == cudaErrorInvalidValue ? 0 : 1;
}
