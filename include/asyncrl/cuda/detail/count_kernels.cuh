// SPDX-License-Identifier: Apache-2.0
/// @file Kernels that count tokens of each row, and that add up weights.
#pragma once

#include <asyncrl/correction/totals.hpp>
#include <asyncrl/cuda/detail/device.cuh>

#include <cub/block/block_reduce.cuh>
#include <cub/warp/warp_reduce.cuh>

ASYNCRL_BEGIN_NAMESPACE
namespace gpu::detail {

/// Starts the totals of one batch.
template <int Unused = 0>
__global__ void start_totals_kernel(totals* sums, double quantile) {
    sums->counts = {1, 0, 0, 0, 0};
    sums->quantile = quantile;
    sums->weight = NAN;
}

/// Without a mask that could reject, kept tokens are the active ones.
template <int Unused = 0>
__global__ void copy_active_to_kept_kernel(totals* sums) {
    sums->counts.kept_tokens = sums->counts.tokens;
    sums->counts.kept_sequences = sums->counts.sequences;
}

/// For counting active tokens, in the place of an objective whose masks are asked too.
struct no_masks {};

/// visit(token, sequence) for a token that was screened.
template <int Threads, typename Bound, typename Visit>
[[nodiscard]] __device__ __forceinline__ auto with_token(device_batch const& from, place p, Visit visit) {
    __shared__ token_floats<Threads, Bound::needs> own;
    token_inputs<float> const x = load_token<Bound::needs, Threads>(from, p, own);
    sequence_context<float> sequence = no_sequence<float>();
    if constexpr ((Bound::needs & has_sequences) != 0) {
        sequence = from.context_at(p);
    }
    return visit(screened<Bound::needs>(from, x, is_set(from.batch.mask, p)), sequence);
}

/// The sum of visit(token, sequence) over a quad, in order.
template <int Threads, typename Bound, typename Visit>
[[nodiscard]] __device__ __forceinline__ float sum_of_quad(device_batch const& from, quad const& q, Visit visit) {
    constexpr std::uint32_t needs = Bound::needs;
    quad_inputs in;
    place first;
    float sum = 0;
    if (load_at_once<needs, false>(from, q, 1, nullptr, in, first)) {
        sequence_context<float> sequence = no_sequence<float>();
        if constexpr ((needs & has_sequences) != 0) {
            sequence = from.context(first.row);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            sum += visit(screened<needs>(from, in.token<needs>(i), in.active(i)), sequence);
        }
    } else {
        q.for_each_place(from.batch, first, [&](int, place p) { sum += with_token<Threads, Bound>(from, p, visit); });
    }
    return sum;
}

template <int Threads>
[[nodiscard]] __device__ __forceinline__ bool counts(no_masks, device_batch const& from, place p) {
    return is_set(from.batch.mask, p);
}
template <int Threads, typename Bound>
[[nodiscard]] __device__ __forceinline__ bool counts(Bound const& objective, device_batch const& from, place p) {
    return with_token<Threads, Bound>(from, p, [&](observed<float> const& token, sequence_context<float> const& sequence) {
        return token.live && objective.keeps(token.t, sequence, device_math{});
    });
}

/// Counts rows, one warp each: into `row_counts` (or null) and added to `tokens` and `sequences` (or null).
template <int Threads, typename Given>
__global__ void __launch_bounds__(Threads, 2)
    count_rows_kernel(device_batch const from, std::int64_t* row_counts, std::int64_t* tokens, std::int64_t* sequences,
                      functor<Given> const with) {
    auto const& objective = read_numbers(with.objective);
    token_batch const& batch = from.batch;
    constexpr int warps = Threads / 32;
    using warp_reduce = cub::WarpReduce<std::int64_t>;
    __shared__ typename warp_reduce::TempStorage storage[warps];
    int const warp = static_cast<int>(threadIdx.x) / 32;
    int const lane = static_cast<int>(threadIdx.x) % 32;
    std::int64_t my_tokens = 0;
    std::int64_t my_sequences = 0;
    for (std::int64_t row = std::int64_t{blockIdx.x} * warps + warp; row < batch.rows; row += std::int64_t{gridDim.x} * warps) {
        std::int64_t const first = batch.packed() ? batch.offsets[row] : 0;
        std::int64_t const end = batch.packed() ? batch.offsets[row + 1] : batch.tokens;
        std::int64_t count = 0;
        for (std::int64_t position = first + lane; position < end; position += 32) {
            count += counts<Threads>(objective, from, place{row, position}) ? 1 : 0;
        }
        count = warp_reduce(storage[warp]).Sum(count);
        __syncwarp();
        if (lane == 0) {
            my_tokens += count;
            my_sequences += count > 0 ? 1 : 0;
            if (row_counts != nullptr) {
                row_counts[row] = count;
            }
        }
    }
    if (lane == 0 && tokens != nullptr && my_tokens > 0) {
        atomic_add(tokens, my_tokens);
        atomic_add(sequences, my_sequences);
    }
}

/// Adds up the effective weights of the tokens that `counts` counts, chunk by chunk.
template <int Threads, typename Given>
__global__ void __launch_bounds__(Threads, 2)
    weigh_kernel(device_batch const from, std::int64_t chunk_positions, float* partials, functor<Given> const with) {
    auto const& objective = read_numbers(with.objective);
    using block_reduce = cub::BlockReduce<float, Threads>;
    __shared__ typename block_reduce::TempStorage storage;
    auto const weight = [&](observed<float> const& token, sequence_context<float> const& sequence) {
        bool const keep = token.live && objective.keeps(token.t, sequence, device_math{});
        return keep ? objective(token.t, sequence, device_math{}).weight : 0.0F;
    };
    std::int64_t const size = from.batch.size();
    for (std::int64_t chunk = blockIdx.x; chunk * chunk_positions < size; chunk += gridDim.x) {
        std::int64_t const begin = chunk * chunk_positions;
        std::int64_t const end = begin + chunk_positions < size ? begin + chunk_positions : size;
        float mine = 0;
        for (std::int64_t at = begin + threadIdx.x * 4; at < end; at += Threads * 4) {
            mine += sum_of_quad<Threads, evaluated<Given>>(from, {at, end - at < 4 ? static_cast<int>(end - at) : 4}, weight);
        }
        float const sum = block_reduce(storage).Sum(mine);
        if (threadIdx.x == 0) {
            partials[chunk] = sum;
        }
        __syncthreads();
    }
}

/// Adds up the chunks as the loss does: every Threads-th to a thread, then a fixed tree, in double.
template <int Threads>
__global__ void __launch_bounds__(Threads) finish_weight_kernel(float const* partials, std::int64_t chunks, totals* sums) {
    using block_reduce = cub::BlockReduce<double, Threads>;
    __shared__ typename block_reduce::TempStorage storage;
    double mine = 0;
    for (std::int64_t chunk = threadIdx.x; chunk < chunks; chunk += Threads) {
        mine += static_cast<double>(partials[chunk]);
    }
    double const sum = block_reduce(storage).Sum(mine);
    if (threadIdx.x == 0) {
        sums->weight = sum;
    }
}

}  // namespace gpu::detail
ASYNCRL_END_NAMESPACE
