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

// Where calls go wrong: the first error, thrown.
void must(cudaError_t error) {
    if (error != cudaSuccess) {
        throw error;
    }
}

// [snippet: search]
namespace gpu = asyncrl::gpu;

/// The order statistic of a whole step, into the totals of every rank.
template <typename Objective, typename AllReduce>
void find_quantile(Objective const& objective, std::vector<asyncrl::token_batch> const& micro_batches,
                   gpu::quantile_search* search, asyncrl::totals* totals, gpu::workspace workspace, AllReduce sum_over_ranks,
                   cudaStream_t stream) {
    must(gpu::start_search(search, stream));
    for (int round = 0; round < gpu::search_rounds(objective); ++round) {
        for (asyncrl::token_batch const& batch : micro_batches) {
            must(gpu::count_magnitudes(objective, batch, search, workspace, stream));
        }
        sum_over_ranks(search->counts, gpu::quantile_search::buckets);  // such as ncclAllReduce of ncclInt64, by ncclSum
        must(gpu::narrow(objective, search, totals, stream));
    }
}
// [snippet: end]

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

/// The same with the ranks of one program, which take their turns.
template <typename Objective>
void find_quantile(Objective const& objective, ranks const& batches, gpu::quantile_search* searches, asyncrl::totals* sums,
                   gpu::workspace workspace, cudaStream_t stream) {
    for (std::size_t rank = 0; rank < batches.size(); ++rank) {
        must(gpu::start_search(searches + rank, stream));
    }
    for (int round = 0; round < gpu::search_rounds(objective); ++round) {
        for (std::size_t rank = 0; rank < batches.size(); ++rank) {
            for (asyncrl::token_batch const& batch : batches[rank]) {
                must(gpu::count_magnitudes(objective, batch, searches + rank, workspace, stream));
            }
        }
        add_counts_kernel<<<1, 256, 0, stream>>>(searches, batches.size());
        for (std::size_t rank = 0; rank < batches.size(); ++rank) {
            must(gpu::narrow(objective, searches + rank, sums + rank, stream));
        }
    }
}

cudaError_t search(int which, methods::any_reduction const& reduce, ranks const& batches, void* searches, asyncrl::totals* sums,
                   scratch room, cudaStream_t stream) {
    return objectives::with_objective(which, reduce, [&](auto const& objective) {
        if constexpr ((std::remove_cvref_t<decltype(objective)>::needs & asyncrl::batch_quantile) != 0) {
            auto* const all = static_cast<gpu::quantile_search*>(searches);
            gpu::workspace const workspace{room.data, room.bytes};
            try {
                if (batches.size() == 1) {
                    auto const alone = [](std::int64_t const*, int) {};
                    find_quantile(objective, batches[0], all, sums, workspace, alone, stream);
                } else {
                    find_quantile(objective, batches, all, sums, workspace, stream);
                }
            } catch (cudaError_t error) {
                return error;
            }
        }
        return cudaSuccess;
    });
}

std::string count_refusal(int which, methods::any_reduction const& reduce, asyncrl::token_batch const& batch,
                          void const* search, scratch room) {
    return objectives::with_objective(which, reduce, [&](auto const& objective) {
        std::string why;
        if constexpr ((std::remove_cvref_t<decltype(objective)>::needs & asyncrl::batch_quantile) != 0) {
            why = gpu::count_magnitudes_refusal(objective, batch, static_cast<gpu::quantile_search const*>(search),
                                                {room.data, room.bytes});
        }
        return why;
    });
}

}  // namespace device
