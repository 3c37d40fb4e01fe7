// SPDX-License-Identifier: Apache-2.0
// [snippet: definition]
#include "trainer_loss.hpp"

#include <asyncrl/cuda.cuh>

static auto clip_and_truncate() {
    return asyncrl::make_objective(asyncrl::ppo_clip{.low = 0.2, .high = 0.28}, asyncrl::tis{.cap = 2}, asyncrl::token_mean{});
}

std::size_t trainer::loss_scratch_bytes(asyncrl::token_batch const& largest) {
    return asyncrl::gpu::workspace_bytes(largest);
}

cudaError_t trainer::loss(asyncrl::token_batch const& batch, float* gradient, asyncrl::totals* totals,
                          asyncrl::loss_report* report, device_scratch scratch, cudaStream_t stream) {
    auto const objective = clip_and_truncate();
    asyncrl::gpu::workspace const workspace{scratch.data, scratch.bytes};
    cudaError_t const error = asyncrl::gpu::measure(objective, batch, totals, workspace, stream);
    if (error != cudaSuccess) {
        return error;
    }
    // With micro-batches or ranks: here `totals` becomes the sum of all of them, on the same stream.
    return asyncrl::gpu::policy_loss(objective, batch, totals, asyncrl::per_token(gradient, batch.tokens), report, workspace,
                                     stream);
}
// [snippet: end]

// [snippet: refusal]
std::string trainer::loss_refusal(asyncrl::token_batch const& batch, float* gradient, asyncrl::totals const* totals,
                                  asyncrl::loss_report const* report, device_scratch scratch) {
    return asyncrl::gpu::policy_loss_refusal(clip_and_truncate(), batch, totals, asyncrl::per_token(gradient, batch.tokens),
                                             report, {scratch.data, scratch.bytes});
}
// [snippet: end]
