// SPDX-License-Identifier: Apache-2.0
// The one file that nvcc compiles: which objective it is, and where this trainer keeps its columns.
// [snippet: definition]
#include "loss.hpp"

#include <asyncrl/cuda.cuh>

namespace {

auto clip_and_truncate() {
    return asyncrl::make_objective(asyncrl::ppo_clip{.low = 0.2, .high = 0.28}, asyncrl::tis{.cap = 2}, asyncrl::token_mean{});
}

asyncrl::token_batch columns_of(trainer::device_batch const& b) {
    asyncrl::token_batch batch{.rows = b.rows, .tokens = b.tokens};
    batch.log_prob = asyncrl::per_token(b.log_prob, b.tokens);  // b.tokens: elements from one row to the next
    batch.old_log_prob = asyncrl::per_token(b.old_log_prob, b.tokens);
    batch.rollout_log_prob = asyncrl::per_token(b.rollout_log_prob, b.tokens);
    batch.advantage = asyncrl::per_sequence(b.advantage);
    batch.mask = asyncrl::per_token(b.mask, b.tokens);
    return batch;
}

}  // namespace

std::size_t trainer::scratch_bytes(std::int64_t rows, std::int64_t tokens) {
    return asyncrl::gpu::workspace_bytes({.rows = rows, .tokens = tokens});
}

cudaError_t trainer::loss(device_batch const& b, device_results const& to, void* scratch, cudaStream_t stream) {
    auto const objective = clip_and_truncate();
    asyncrl::token_batch const batch = columns_of(b);
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

// [snippet: refusal]
std::string trainer::loss_refusal(device_batch const& b, device_results const& to, void* scratch) {
    return asyncrl::gpu::policy_loss_refusal(clip_and_truncate(), columns_of(b), to.totals,
                                             asyncrl::per_token(to.gradient, b.tokens), to.report,
                                             {scratch, scratch_bytes(b.rows, b.tokens)});
}
// [snippet: end]
