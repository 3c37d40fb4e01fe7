// SPDX-License-Identifier: Apache-2.0
#include "objective_calls.hpp"

#include <asyncrl/cuda.cuh>

namespace device {

cudaError_t both(int which, methods::any_reduction const& reduce, asyncrl::token_batch const& batch, asyncrl::totals* sums,
                 asyncrl::loss_outputs const& to, asyncrl::loss_report* report, scratch room, cudaStream_t stream) {
    return objectives::with_objective(which, reduce, [&](auto const& objective) {
        asyncrl::gpu::workspace const workspace{room.data, room.bytes};
        cudaError_t const error = asyncrl::gpu::measure(objective, batch, sums, workspace, stream);
        return error != cudaSuccess ? error : asyncrl::gpu::policy_loss(objective, batch, sums, to, report, workspace, stream);
    });
}

cudaError_t measure(int which, methods::any_reduction const& reduce, asyncrl::token_batch const& batch, asyncrl::totals* sums,
                    scratch room) {
    return objectives::with_objective(which, reduce, [&](auto const& objective) {
        return asyncrl::gpu::measure(objective, batch, sums, {room.data, room.bytes}, nullptr);
    });
}

}  // namespace device
