// SPDX-License-Identifier: Apache-2.0
#include "mismatch_calls.hpp"

#include <asyncrl/cuda/mismatch.cuh>

namespace device {

std::size_t mismatch_workspace_bytes(asyncrl::token_batch const& shape) {
    return asyncrl::gpu::mismatch_workspace_bytes(shape);
}

cudaError_t mismatch(asyncrl::token_batch const& batch, asyncrl::mismatch_report* report, void* room, std::size_t bytes,
                     asyncrl::mismatch_options const& options, unsigned blocks, cudaStream_t stream) {
    return blocks == 0 ? asyncrl::gpu::mismatch(batch, report, {room, bytes}, options, stream)
                       : asyncrl::gpu::detail::launch_mismatch(batch, report, {room, bytes}, options, blocks, stream);
}

std::string mismatch_refusal(asyncrl::token_batch const& batch, asyncrl::mismatch_report const* report, void* room,
                             std::size_t bytes, asyncrl::mismatch_options const& options) {
    return asyncrl::gpu::mismatch_refusal(batch, report, {room, bytes}, options);
}

}  // namespace device
