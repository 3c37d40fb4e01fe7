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

std::size_t search_bytes() {
    return sizeof(asyncrl::gpu::quantile_search);
}

/// Stands in for an all-reduce over ranks.
__global__ void add_counts_kernel(asyncrl::gpu::quantile_search* searches, std::size_t count) {
    for (unsigned i = threadIdx.x; i < asyncrl::gpu::quantile_search::buckets; i += blockDim.x) {
        std::int64_t sum = 0;
        for (std::size_t rank = 0; rank < count; ++rank) {
            sum += searches[rank].counts[i];
        }
        for (std::size_t rank = 0; rank < count; ++rank) {
            searches[rank].counts[i] = sum;
        }
    }
}

cudaError_t search(int which, methods::any_reduction const& reduce, ranks const& batches, void* searches, asyncrl::totals* sums,
                   scratch room, cudaStream_t stream) {
    namespace gpu = asyncrl::gpu;
    return objectives::with_objective(which, reduce, [&](auto const& objective) {
        cudaError_t error = cudaSuccess;
        if constexpr ((std::remove_cvref_t<decltype(objective)>::needs & asyncrl::batch_quantile) != 0) {
            auto* const all = static_cast<gpu::quantile_search*>(searches);
            auto const add = [&](cudaError_t next) { error = error != cudaSuccess ? error : next; };
            for (std::size_t rank = 0; rank < batches.size(); ++rank) {
                add(gpu::start_search(all + rank, stream));
            }
            for (int round = 0; round < gpu::search_rounds(objective) && error == cudaSuccess; ++round) {
                for (std::size_t rank = 0; rank < batches.size(); ++rank) {
                    for (asyncrl::token_batch const& batch : batches[rank]) {
                        add(gpu::count_magnitudes(objective, batch, all + rank, {room.data, room.bytes}, stream));
                    }
                }
                add_counts_kernel<<<1, 256, 0, stream>>>(all, batches.size());
                for (std::size_t rank = 0; rank < batches.size(); ++rank) {
                    add(gpu::narrow(objective, all + rank, sums == nullptr ? nullptr : sums + rank, stream));
                }
            }
        }
        return error;
    });
}

}  // namespace device
