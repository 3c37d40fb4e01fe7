// SPDX-License-Identifier: Apache-2.0
/// @file Kernels that count: tokens of each row, and the digits of |log_ratio| for the exact order statistic.
#pragma once

#include <asyncrl/correction/totals.hpp>
#include <asyncrl/cuda/detail/device.cuh>

#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_reduce.cuh>

ASYNCRL_BEGIN_NAMESPACE
namespace gpu::detail {

__device__ __forceinline__ void atomic_add(std::int64_t* to, std::int64_t x) {
    atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(x));
}

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

template <int Threads>
[[nodiscard]] __device__ __forceinline__ bool counts(no_masks, device_batch const& from, place p) {
    return is_set(from.batch.mask, p);
}
template <int Threads, typename Bound>
[[nodiscard]] __device__ __forceinline__ bool counts(Bound const& objective, device_batch const& from, place p) {
    __shared__ token_floats<Threads, Bound::needs> own;
    token_inputs<float> const x = load_token<Bound::needs, Threads>(from, p, own);
    observed<float> token = observe<Bound::needs>(x, is_set(from.batch.mask, p), sentinel<float>(from.unscored), device_math{});
    screen(token);
    sequence_context<float> sequence = no_sequence<float>();
    if constexpr ((Bound::needs & has_sequences) != 0) {
        sequence = from.context_at(p);
    }
    return token.live && objective.keeps(token.t, sequence, device_math{});
}

/// Counts rows, one warp each: into `row_counts` (or null) and added to `tokens` and `sequences` (or null).
template <int Threads, typename Given>
__global__ void __launch_bounds__(Threads, 2)
    count_rows_kernel(device_batch const from, std::int64_t* row_counts, std::int64_t* tokens, std::int64_t* sequences,
                      functor<Given> const with) {
    auto const& objective = numbers_of(with.objective);
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

/// The search for an order statistic, digit by digit (12, 10 and 9 bits of a non-negative float).
struct quantile_state {
    static constexpr int buckets = 4096;

    std::int64_t rank;         ///< within the numbers that agree with the digits found
    std::int64_t zeros;        ///< exact zeros: on-policy batches end here
    std::uint32_t prefix;      ///< digits found
    std::uint32_t candidates;  ///< how many numbers of the chosen first bucket were moved to the side
    std::uint32_t overflow;    ///< they did not fit: later rounds read the batch again
    std::uint32_t done;
    std::int64_t counts[buckets];
};

/// The digits of one round.
struct digit_round {
    int shift;
    int bits;

    [[nodiscard]] __device__ __forceinline__ std::uint32_t bucket(std::uint32_t key, std::uint32_t prefix) const {
        return (key >> shift) - (prefix << bits);  // beyond the buckets for numbers with other digits before
    }
};

template <int Threads>
__global__ void __launch_bounds__(Threads) start_quantile_kernel(quantile_state* state) {
    for (int i = static_cast<int>(threadIdx.x); i < quantile_state::buckets; i += Threads) {
        state->counts[i] = 0;
    }
    if (threadIdx.x == 0) {
        state->rank = 0;
        state->zeros = 0;
        state->prefix = 0;
        state->candidates = 0;
        state->overflow = 0;
        state->done = 0;
    }
}

/// A batch whose column of the old policy holds the log-probs of the anchor, whichever that is: all that keys are made of.
/// `sequences`: where tokens are coupled, what was decided of them.
[[nodiscard]] inline device_batch batch_of_keys(token_batch batch, std::uint32_t needs, sequence_floats const* sequences) {
    float const missing = static_cast<float>(stored_sentinel(batch));
    bool const anchored = (needs & anchors_rollout) != 0;
    batch.old_log_prob = anchored                      ? batch.rollout_log_prob
                         : (needs & reads_anchor) != 0 ? batch.anchor_log_prob
                                                       : batch.old_log_prob;
    bool const coupled = (needs & has_coupling) != 0;
    device_batch keys(batch, reads_old, coupled);
    keys.sequences = coupled ? sequences : nullptr;
    keys.unscored = anchored && !coupled ? missing : std::numeric_limits<float>::quiet_NaN();
    return keys;
}

/// Calls visit(key) with the bits of |log_ratio| of this thread's tokens of a chunk that have one.
template <int Threads, typename Visit>
__device__ __forceinline__ void for_each_key(device_batch const& from, std::int64_t begin, std::int64_t end, Visit visit) {
    constexpr std::uint32_t needs = std::uint32_t{uses_ratio} | reads_old;
    __shared__ token_floats<Threads, needs> own;
    __shared__ thread_floats<Threads, 4> sizes;  // -1: none
    sentinel<float> const missing(from.unscored);
    auto const size_of = [&](token_inputs<float> const& x, bool active) {
        observed<float> token = observe<needs>(x, active, missing, device_math{});
        screen(token);
        return token.live && !missing.holds(x.old_log_prob) ? fabsf(token.t.log_ratio) : -1.0F;
    };
    for (std::int64_t at = begin + threadIdx.x * 4; at < end; at += Threads * 4) {
        quad const q{at, end - at < 4 ? static_cast<int>(end - at) : 4};
        quad_inputs in;
        place first;
        if (load_at_once<needs>(from, q, 1, nullptr, in, first)) {
            sizes[0] = size_of(in.token<needs>(0), in.active(0));
            sizes[1] = size_of(in.token<needs>(1), in.active(1));
            sizes[2] = size_of(in.token<needs>(2), in.active(2));
            sizes[3] = size_of(in.token<needs>(3), in.active(3));
        } else {
            q.for_each_place(from.batch, first, [&](int i, place p) {
                float const size = size_of(load_token<needs, Threads>(from, p, own), is_set(from.batch.mask, p));
                sizes[i] = size >= 0 && from.sequences != nullptr ? fabsf(from.context_at(p).log_ratio) : size;
            });
        }
#pragma unroll 1
        for (int i = 0; i < q.count; ++i) {
            if (sizes[i] >= 0) {
                visit(__float_as_uint(sizes[i]));
            }
        }
    }
}

/// One round's counts, over the batch or over the numbers moved to the side.
template <int Threads>
__global__ void __launch_bounds__(Threads, 2)
    histogram_kernel(device_batch const from, std::int64_t chunk_positions, digit_round round, bool first,
                     std::uint32_t const* candidates, quantile_state* state) {
    __shared__ std::uint32_t counts[quantile_state::buckets];
    if (state->done != 0) {
        return;
    }
    for (int i = static_cast<int>(threadIdx.x); i < quantile_state::buckets; i += Threads) {
        counts[i] = 0;
    }
    __syncthreads();
    std::uint32_t const prefix = state->prefix;
    std::uint32_t zeros = 0;
    auto const count = [&](std::uint32_t key) {
        // Zeros are kept from the shared counter, where an on-policy batch would queue up.
        if (first && key == 0) {
            ++zeros;
        } else if (std::uint32_t const bucket = round.bucket(key, prefix); bucket < quantile_state::buckets) {
            atomicAdd(&counts[bucket], 1U);
        }
    };
    if (first || state->overflow != 0) {
        std::int64_t const size = from.batch.size();
        for (std::int64_t chunk = blockIdx.x; chunk * chunk_positions < size; chunk += gridDim.x) {
            std::int64_t const begin = chunk * chunk_positions;
            std::int64_t const end = begin + chunk_positions < size ? begin + chunk_positions : size;
            for_each_key<Threads>(from, begin, end, count);
        }
    } else {
        std::uint32_t const total = state->candidates;
        for (std::uint32_t i = blockIdx.x * Threads + threadIdx.x; i < total; i += gridDim.x * Threads) {
            count(candidates[i]);
        }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < quantile_state::buckets; i += Threads) {
        if (counts[i] != 0) {
            atomic_add(&state->counts[i], counts[i]);
        }
    }
    using block_reduce = cub::BlockReduce<std::uint32_t, Threads>;
    __shared__ typename block_reduce::TempStorage storage;
    std::uint32_t const block_zeros = block_reduce(storage).Sum(zeros);
    if (threadIdx.x == 0 && block_zeros != 0) {
        atomic_add(&state->zeros, block_zeros);
    }
}

/// Finds the bucket that holds the rank; after the last round, the number.
template <int Threads>
__global__ void __launch_bounds__(Threads, 2)
    locate_kernel(fraction share, digit_round round, bool first, quantile_state* state, totals* sums) {
    using block_scan = cub::BlockScan<std::int64_t, Threads>;
    __shared__ typename block_scan::TempStorage storage;
    constexpr int each = quantile_state::buckets / Threads;
    if (state->done != 0) {
        return;
    }
    auto const count_of = [&](int i) { return state->counts[i] + (first && i == 0 ? state->zeros : 0); };
    int const begin = static_cast<int>(threadIdx.x) * each;
    std::int64_t mine = 0;
#pragma unroll 1
    for (int i = begin; i < begin + each; ++i) {
        mine += count_of(i);
    }
    std::int64_t before = 0;
    std::int64_t total = 0;
    block_scan(storage).ExclusiveSum(mine, before, total);
    std::int64_t const rank = first ? share.rank(total) : state->rank;
    std::uint32_t const prefix = state->prefix;
    bool const at_zero = first && rank <= state->zeros;
    __syncthreads();  // all have read the state before one thread changes it
    if (threadIdx.x == 0 && at_zero) {
        state->done = 1;
        sums->quantile = 0;
    }
#pragma unroll 1
    for (int i = begin; i < begin + each; ++i) {
        std::int64_t const count = count_of(i);
        if (!at_zero && before < rank && rank <= before + count) {
            state->rank = rank - before;
            state->prefix = (prefix << round.bits) + static_cast<std::uint32_t>(i);
            if (round.shift == 0) {
                state->done = 1;
                sums->quantile = static_cast<double>(__uint_as_float(state->prefix));
            }
        }
        before += count;
        state->counts[i] = 0;
    }
}

/// Moves the numbers of the first round's bucket to the side, so that later rounds need not read the batch again. Their order
/// is left open; what is counted of them does not depend on it.
template <int Threads>
__global__ void __launch_bounds__(Threads, 2)
    compact_kernel(device_batch const from, std::int64_t chunk_positions, int shift, std::uint32_t* candidates,
                   std::uint32_t room, quantile_state* state) {
    constexpr int piece = 2048;
    __shared__ std::uint32_t keys[piece];
    __shared__ std::uint32_t count;
    __shared__ std::uint32_t base;
    if (state->done != 0) {
        return;
    }
    std::uint32_t const prefix = state->prefix;
    std::int64_t const size = from.batch.size();
    for (std::int64_t chunk = blockIdx.x; chunk * chunk_positions < size; chunk += gridDim.x) {
        std::int64_t const chunk_end = (chunk + 1) * chunk_positions < size ? (chunk + 1) * chunk_positions : size;
        for (std::int64_t begin = chunk * chunk_positions; begin < chunk_end; begin += piece) {
            if (threadIdx.x == 0) {
                count = 0;
            }
            __syncthreads();
            std::int64_t const end = begin + piece < chunk_end ? begin + piece : chunk_end;
            for_each_key<Threads>(from, begin, end, [&](std::uint32_t key) {
                if (key >> shift == prefix) {
                    keys[atomicAdd(&count, 1U)] = key;
                }
            });
            __syncthreads();
            if (threadIdx.x == 0) {
                base = count > 0 ? atomicAdd(&state->candidates, count) : 0;
                if (count > 0 && (base > room || count > room - base)) {
                    atomicOr(&state->overflow, 1U);
                }
            }
            __syncthreads();
            for (std::uint32_t i = threadIdx.x; i < count; i += Threads) {
                if (base < room && i < room - base) {
                    candidates[base + i] = keys[i];
                }
            }
            __syncthreads();
        }
    }
}

}  // namespace gpu::detail
ASYNCRL_END_NAMESPACE
