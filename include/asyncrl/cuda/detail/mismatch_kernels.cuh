// SPDX-License-Identifier: Apache-2.0
/// @file Kernels for the mismatch of two policies: over the tokens of chunks, over rows, and one block that adds up both.
#pragma once

#include <asyncrl/correction/token/mismatch_tally.hpp>
#include <asyncrl/cuda/detail/device.cuh>

#include <cub/block/block_reduce.cuh>
#include <cub/warp/warp_reduce.cuh>

#include <cmath>
#include <cstddef>
#include <cstdint>

ASYNCRL_BEGIN_NAMESPACE
namespace gpu::detail {

static_assert(sizeof(mismatch_report) == sizeof(mismatch_partial) + bucket_count * 8, "all of it is numbers of 8 bytes");

/// What every token's kernel adds to while it runs: the rest of the report is written at the end.
[[nodiscard]] __device__ __forceinline__ unsigned long long* buckets_of(mismatch_report* report) {
    return reinterpret_cast<unsigned long long*>(&report->histogram);
}

template <int Threads>
__global__ void __launch_bounds__(Threads) start_mismatch_kernel(mismatch_report* report) {
    for (std::size_t i = threadIdx.x; i < bucket_count; i += Threads) {
        buckets_of(report)[i] = 0;
    }
}

/// Merges the sums, then the maxima or counts of two tallies, or of two parts of a report.
template <typename Number, typename Range, typename Merge>
__device__ __forceinline__ void merge_numbers(Range const& a, Range const& b, Range& to, std::size_t begin, std::size_t end,
                                              Merge merge) {
#pragma unroll
    for (std::size_t i = begin; i < end; ++i) {
        reinterpret_cast<Number*>(&to)[i] =
            merge(reinterpret_cast<Number const*>(&a)[i], reinterpret_cast<Number const*>(&b)[i]);
    }
}

struct merge_mismatch {
    /// Of a block's threads, over one chunk: in float, as their registers are few.
    __device__ __forceinline__ mismatch_tally<float> operator()(mismatch_tally<float> const& a,
                                                                mismatch_tally<float> const& b) const {
        constexpr std::size_t first_maximum = offsetof(mismatch_tally<float>, largest) / 4;
        constexpr std::size_t first_count = offsetof(mismatch_tally<float>, tokens) / 4;
        mismatch_tally<float> r;
        merge_numbers<float>(a, b, r, 0, first_maximum, [](float x, float y) { return x + y; });
        merge_numbers<float>(a, b, r, first_maximum, first_count, [](float x, float y) { return larger(x, y); });
        merge_numbers<std::uint32_t>(a, b, r, first_count, sizeof r / 4,
                                     [](std::uint32_t x, std::uint32_t y) { return x + y; });
        return r;
    }
    __device__ __forceinline__ mismatch_partial operator()(mismatch_partial const& a, mismatch_partial const& b) const {
        mismatch_partial r;
        merge_numbers<double>(a.sums, b.sums, r.sums, 0, sizeof r.sums / 8, [](double x, double y) { return x + y; });
        merge_numbers<std::int64_t>(a.counts, b.counts, r.counts, 0, sizeof r.counts / 8,
                                    [](std::int64_t x, std::int64_t y) { return x + y; });
        merge_numbers<double>(a.maxima, b.maxima, r.maxima, 0, sizeof r.maxima / 8,
                              [](double x, double y) { return larger(x, y); });
        return r;
    }
};

[[nodiscard]] __device__ __forceinline__ mismatch_partial partial_of(mismatch_tally<float> const& t) {
    return {{t.log_ratio, t.absolute_log_ratio, t.k3_sum, t.total_variation, t.raw, t.raw_squared, t.truncated,
             t.truncated_squared, t.masked, t.masked_squared},
            {t.tokens, 0, t.below_one, t.at_cap, t.out_of_band, t.unscored, t.nonfinite, t.overflow},
            {t.largest, t.largest_negated, -INFINITY, -INFINITY}};
}

/// Sums each chunk: a thread its tokens, then the block in a fixed tree. Counts |e| in the report's histogram.
template <int Threads>
__global__ void __launch_bounds__(Threads, 2)
    mismatch_tokens_kernel(device_batch const from, std::int64_t chunk_positions, mismatch_bounds<float> const bounds,
                           mismatch_partial* partials, mismatch_report* report) {
    using block_reduce = cub::BlockReduce<mismatch_tally<float>, Threads>;
    __shared__ typename block_reduce::TempStorage storage;
    __shared__ token_floats<Threads, mismatch_needs> own;
    __shared__ std::uint32_t counts[bucket_count];
    for (std::size_t i = threadIdx.x; i < bucket_count; i += Threads) {
        counts[i] = 0;
    }
    __syncthreads();
    sentinel<float> const missing(from.unscored);
    std::uint32_t zeros = 0;  // kept from the shared counter, where an on-policy batch would queue up
    std::int64_t const size = from.batch.size();
    for (std::int64_t chunk = blockIdx.x; chunk * chunk_positions < size; chunk += gridDim.x) {
        std::int64_t const begin = chunk * chunk_positions;
        std::int64_t const end = begin + chunk_positions < size ? begin + chunk_positions : size;
        mismatch_tally<float> mine;
        auto const take = [&](token_inputs<float> const& x, bool active) {
            observed<float> token = observe<mismatch_needs>(x, active, missing, device_math{});
            screen(token);
            float const magnitude = mine.add(token, bounds);
            if (magnitude == 0) {
                ++zeros;
            } else if (magnitude > 0) {
                atomicAdd(&counts[__float_as_uint(magnitude) >> magnitude_histogram::mantissa_bits_dropped], 1U);
            }
        };
        for (std::int64_t at = begin + threadIdx.x * 4; at < end; at += Threads * 4) {
            quad const q{at, end - at < 4 ? static_cast<int>(end - at) : 4};
            quad_inputs in;
            place first;
            if (load_at_once<mismatch_needs, true>(from, q, 1, nullptr, in, first)) {
                take(in.token<mismatch_needs>(0), in.active(0));
                take(in.token<mismatch_needs>(1), in.active(1));
                take(in.token<mismatch_needs>(2), in.active(2));
                take(in.token<mismatch_needs>(3), in.active(3));
            } else {
                q.for_each_place(from.batch, first, [&](int, place p) {
                    take(load_token<mismatch_needs, Threads>(from, p, own), is_set(from.batch.mask, p));
                });
            }
        }
        mine = block_reduce(storage).Reduce(mine, merge_mismatch{});
        if (threadIdx.x == 0) {
            partials[chunk] = partial_of(mine);
        }
        __syncthreads();
    }
    if (zeros != 0) {
        atomicAdd(&counts[0], zeros);
    }
    __syncthreads();
    for (std::size_t i = threadIdx.x; i < bucket_count; i += Threads) {
        if (counts[i] != 0) {
            atomicAdd(&buckets_of(report)[i], static_cast<unsigned long long>(counts[i]));
        }
    }
}

/// The sum of a row's log ratios in double, one warp each; NaN where no token counts.
template <int Threads>
__global__ void __launch_bounds__(Threads) mismatch_rows_kernel(token_batch const batch, float unscored, double* row_sums) {
    constexpr int warps = Threads / 32;
    using sum_reduce = cub::WarpReduce<double>;
    using count_reduce = cub::WarpReduce<std::uint32_t>;
    __shared__ typename sum_reduce::TempStorage sum_storage[warps];
    __shared__ typename count_reduce::TempStorage count_storage[warps];
    int const warp = static_cast<int>(threadIdx.x) / 32;
    int const lane = static_cast<int>(threadIdx.x) % 32;
    sentinel<float> const missing(unscored);
    for (std::int64_t row = std::int64_t{blockIdx.x} * warps + warp; row < batch.rows; row += std::int64_t{gridDim.x} * warps) {
        std::int64_t const first = batch.packed() ? batch.offsets[row] : 0;
        std::int64_t const end = batch.packed() ? batch.offsets[row + 1] : batch.tokens;
        double sum = 0;
        std::uint32_t any = 0;
        for (std::int64_t position = first + lane; position < end; position += 32) {
            place const p{row, position};
            if (is_set(batch.mask, p)) {
                float const numerator = load_element(batch.old_log_prob, p);
                float const denominator = load_element(batch.rollout_log_prob, p);
                if (!missing.holds(denominator) && !is_nonfinite(numerator) && !is_nonfinite(denominator)) {
                    sum += static_cast<double>(numerator) - static_cast<double>(denominator);
                    any = 1;
                }
            }
        }
        sum = sum_reduce(sum_storage[warp]).Sum(sum);
        any = count_reduce(count_storage[warp]).Sum(any);
        if (lane == 0) {
            row_sums[row] = any != 0 ? sum : static_cast<double>(NAN);
        }
        __syncwarp();
    }
}

/// Adds up chunks and rows: each of a fixed number of threads takes every Threads-th, then a fixed tree, all in double.
template <int Threads>
__global__ void __launch_bounds__(Threads, 2)
    finish_mismatch_kernel(mismatch_partial const* partials, std::int64_t chunks, double const* row_sums, std::int64_t rows,
                           mismatch_report* report) {
    using block_reduce = cub::BlockReduce<mismatch_partial, Threads>;
    __shared__ typename block_reduce::TempStorage storage;
    mismatch_partial mine = partial_of(mismatch_tally<float>{});
    for (std::int64_t chunk = threadIdx.x; chunk < chunks; chunk += Threads) {
        mine = merge_mismatch{}(mine, partials[chunk]);
    }
    for (std::int64_t row = threadIdx.x; row < rows; row += Threads) {
        double const sum = row_sums[row];
        if (!is_nan(sum)) {
            ++mine.counts.sequences;
            mine.maxima.sequence_log_ratio = larger(mine.maxima.sequence_log_ratio, sum);
            mine.maxima.negated_sequence_log_ratio = larger(mine.maxima.negated_sequence_log_ratio, -sum);
        }
    }
    mismatch_partial const all = block_reduce(storage).Reduce(mine, merge_mismatch{});
    if (threadIdx.x == 0) {
        report->sums = all.sums;
        report->counts = all.counts;
        report->maxima = all.maxima;
    }
}

}  // namespace gpu::detail
ASYNCRL_END_NAMESPACE
