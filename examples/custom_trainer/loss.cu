// SPDX-License-Identifier: Apache-2.0
// The one file that nvcc compiles: which objective it is, and where this trainer keeps its columns.
// [snippet: definition]
#include "loss.hpp"

#include <asyncrl/cuda.cuh>

std::size_t trainer::scratch_bytes(std::int64_t rows, std::int64_t tokens) {
    return asyncrl::gpu::workspace_bytes({.rows = rows, .tokens = tokens});
}

cudaError_t trainer::loss(device_batch const& b, device_results const& to, void* scratch, cudaStream_t stream) {
    auto const objective =
        asyncrl::make_objective(asyncrl::ppo_clip{.low = 0.2, .high = 0.28}, asyncrl::tis{.cap = 2}, asyncrl::token_mean{});
    asyncrl::token_batch batch{.rows = b.rows, .tokens = b.tokens};
    batch.log_prob = asyncrl::per_token(b.log_prob, b.tokens);  // b.tokens: elements from one row to the next
    batch.old_log_prob = asyncrl::per_token(b.old_log_prob, b.tokens);
    batch.rollout_log_prob = asyncrl::per_token(b.rollout_log_prob, b.tokens);
    batch.advantage = asyncrl::per_sequence(b.advantage);
    batch.mask = asyncrl::per_token(b.mask, b.tokens);

    asyncrl::gpu::workspace const workspace{scratch, scratch_bytes(b.rows, b.tokens)};
    cudaError_t const error = asyncrl::gpu::measure(objective, batch, to.totals, workspace, stream);
    if (error != cudaSuccess) {
        return error;
    }
    // With micro-batches or ranks: here the totals become the sum of all of them, on the same stream.
    return asyncrl::gpu::policy_loss(objective, batch, to.totals, asyncrl::per_token(to.gradient, b.tokens), to.report,
                                     workspace, stream);
}
// [snippet: end]
