// SPDX-License-Identifier: Apache-2.0
/// @file Kernels for parts that speak of sequences: statistics of each, what is decided on them, and mean slopes.
///
/// Positions are cut into pieces of 256, one warp each, so that rows of any length share the work evenly. A piece and a row
/// that meet yield one partial, whose place is the sum of both numbers; one thread for each row then adds up its partials in
/// order.
#pragma once

#include <asyncrl/cuda/detail/device.cuh>

#include <cub/warp/warp_reduce.cuh>
#include <cuda/functional>
#include <cuda/std/functional>

ASYNCRL_BEGIN_NAMESPACE
namespace gpu::detail {

inline constexpr std::int64_t sequence_piece = 256;  // positions

/// What one piece holds of one sequence.
struct sequence_partial {
    static constexpr int most_statistics = 5;

    float statistics[most_statistics];  ///< or, in the pass for slopes, their sum in the first
    float advantage;
    std::uint32_t live;
    std::uint32_t unused;
};

/// A stretch of positions of one sequence within one piece.
struct stretch {
    std::int64_t sequence;
    std::int64_t row;    ///< of the batch: a segment lies within one
    std::int64_t first;  ///< positions counted row after row
    std::int64_t end;

    [[nodiscard]] __device__ __forceinline__ place at(token_batch const& batch, std::int64_t position) const {
        return {row, batch.packed() ? position : position - row * batch.tokens};
    }
};

/// Calls visit(stretch) for those of a piece, in order.
template <typename Visit>
__device__ __forceinline__ void for_each_stretch_of(token_batch const& batch, std::int64_t piece, Visit visit) {
    std::int64_t const size = batch.size();
    std::int64_t at = piece * sequence_piece;
    std::int64_t const end = at + sequence_piece < size ? at + sequence_piece : size;
    token_batch const sequences = sequences_of(batch);
    while (at < end) {
        std::int64_t const sequence = place_of(sequences, at).row;
        std::int64_t const row = batch.segments ? place_of(batch, at).row : sequence;
        std::int64_t const sequence_end = batch.packed() ? sequences.offsets[sequence + 1] : (sequence + 1) * batch.tokens;
        std::int64_t const stop = sequence_end < end ? sequence_end : end;
        visit(stretch{sequence, row, at, stop});
        at = stop;
    }
}

template <typename Number, typename Merge>
[[nodiscard]] __device__ __forceinline__ Number over_warp(typename cub::WarpReduce<Number>::TempStorage& storage, Number x,
                                                          Merge merge) {
    Number const sum = cub::WarpReduce<Number>(storage).Reduce(x, merge);
    __syncwarp();
    return sum;
}

/// Statistics of the live tokens of each piece, or the sums of their slopes by themselves.
template <int Threads, bool Slopes, typename Bound>
__device__ __forceinline__ void gather_sequences(Bound const& objective, device_batch const& from, sequence_partial* partials) {
    constexpr std::uint32_t needs = Bound::needs;
    constexpr int count = Slopes ? 1 : Bound::statistics;
    static_assert(Bound::statistics <= sequence_partial::most_statistics, "asyncrl: too many parts that speak of sequences");
    __shared__ token_floats<Threads, needs> own;
    __shared__ typename cub::WarpReduce<float>::TempStorage floats[Threads / 32];
    __shared__ typename cub::WarpReduce<std::uint32_t>::TempStorage counts[Threads / 32];
    int const lane = static_cast<int>(threadIdx.x) % 32;
    int const warp = static_cast<int>(threadIdx.x) / 32;
    bool maximum[count] = {};
    if constexpr (!Slopes) {
        objective.which_maxima(maximum);
    }
    bool const in_fours = from.columns_in_fours && from.advantage_at_once();
    std::int64_t const pieces = (from.batch.size() + sequence_piece - 1) / sequence_piece;
    std::int64_t const warps = std::int64_t{gridDim.x} * (Threads / 32);
    for (std::int64_t piece = std::int64_t{blockIdx.x} * (Threads / 32) + warp; piece < pieces; piece += warps) {
        for_each_stretch_of(from.batch, piece, [&](stretch const& s) {
            float sums[count];
#pragma unroll
            for (int i = 0; i < count; ++i) {
                sums[i] = maximum[i] ? -3.402823466e38F : 0.0F;
            }
            float advantage = 0;
            std::uint32_t live = 0;
            sequence_context<float> context = no_sequence<float>();
            if constexpr (Slopes) {
                context = from.context(s.sequence);
            }
            auto const take = [&](token_inputs<float> const& x, bool active) {
                observed<float> const token = screened<needs>(from, x, active);
                if constexpr (Slopes) {
                    sums[0] += token.live ? objective.slope_alone(token.t, context, device_math{}) : 0.0F;
                } else {
                    objective.add_statistics(token.t, token.live, sums);
                    advantage += token.live ? token.t.advantage : 0.0F;
                    live += token.live ? 1U : 0U;
                }
            };
            // A lane takes the same positions of a stretch whether it loads them in fours or not.
#pragma unroll 1
            for (std::int64_t at = (s.first & ~std::int64_t{3}) + lane * 4; at < s.end; at += 32 * 4) {
                quad const q{at, 4};
                if (in_fours && at >= s.first && at + 4 <= s.end) {
                    quad_inputs in;
                    in.columns[static_cast<int>(input::advantage)] = load_advantage<false>(from, q, s.at(from.batch, at));
                    load_columns<needs, false>(from, q, in);
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        take(in.token<needs>(i), in.active(i));
                    }
                } else {
                    std::int64_t const end = at + 4 < s.end ? at + 4 : s.end;
#pragma unroll 1
                    for (std::int64_t i = at > s.first ? at : s.first; i < end; ++i) {
                        place const p = s.at(from.batch, i);
                        take(load_token<needs, Threads>(from, p, own), is_set(from.batch.mask, p));
                    }
                }
            }
            sequence_partial out{};
#pragma unroll
            for (int i = 0; i < count; ++i) {
                out.statistics[i] = maximum[i] ? over_warp(floats[warp], sums[i], ::cuda::maximum<>{})
                                               : over_warp(floats[warp], sums[i], ::cuda::std::plus<>{});
            }
            if constexpr (!Slopes) {
                out.advantage = over_warp(floats[warp], advantage, ::cuda::std::plus<>{});
                out.live = over_warp(counts[warp], live, ::cuda::std::plus<>{});
            }
            if (lane == 0) {
                partials[piece + s.sequence] = out;
            }
        });
    }
}

/// `prepared`: the objective, for slopes of one that waits for the totals.
template <int Threads, bool Slopes, typename Given>
__global__ void __launch_bounds__(Threads, 2) sequence_partials_kernel(device_batch const from, sequence_partial* partials,
                                                                       void const* prepared, functor<Given> const with) {
    if constexpr (Slopes && (Given::needs & awaits_totals) != 0) {
        using bound = evaluated<Given>;
        gather_sequences<Threads, Slopes>(bound(*static_cast<bound const*>(prepared)), from, partials);
    } else {
        gather_sequences<Threads, Slopes>(read_numbers(with.objective), from, partials);
    }
}

/// Adds up the partials of each sequence, and decides on it; or completes its mean slope.
template <int Threads, bool Slopes, typename Given>
__global__ void __launch_bounds__(Threads, 2) sequence_finish_kernel(token_batch const batch, sequence_partial const* partials,
                                                                     sequence_floats* values, functor<Given> const with) {
    constexpr int count = Slopes ? 1 : Given::statistics;
    auto const& objective = read_numbers(with.objective);
    bool maximum[count] = {};
    if constexpr (!Slopes) {
        objective.which_maxima(maximum);
    }
    token_batch const sequences = sequences_of(batch);
    for (std::int64_t row = std::int64_t{blockIdx.x} * Threads + threadIdx.x; row < sequences.rows;
         row += std::int64_t{gridDim.x} * Threads) {
        std::int64_t const first = batch.packed() ? sequences.offsets[row] : row * batch.tokens;
        std::int64_t const end = batch.packed() ? sequences.offsets[row + 1] : first + batch.tokens;
        double statistics[count];
#pragma unroll
        for (int i = 0; i < count; ++i) {
            statistics[i] = maximum[i] ? -3.402823466e38 : 0.0;
        }
        double tokens = 0;
        double advantage = 0;
        if (end > first) {
#pragma unroll 1
            for (std::int64_t piece = first / sequence_piece; piece <= (end - 1) / sequence_piece; ++piece) {
                sequence_partial const part = partials[piece + row];
#pragma unroll
                for (int i = 0; i < count; ++i) {
                    auto const x = static_cast<double>(part.statistics[i]);
                    statistics[i] = maximum[i] ? (x > statistics[i] ? x : statistics[i]) : statistics[i] + x;
                }
                tokens += part.live;
                advantage += static_cast<double>(part.advantage);
            }
        }
        if constexpr (Slopes) {
            std::uint32_t const live = values[row].tokens;
            values[row].slope = live > 0 ? static_cast<float>(statistics[0] / live) : 0.0F;
        } else {
            sequence_values const decided = objective.decide(tokens, advantage, statistics);
            double const top = real_traits<float>::largest_exponent;
            values[row] = {static_cast<std::uint32_t>(decided.tokens),
                           static_cast<float>(decided.weight),
                           static_cast<float>(decided.log_ratio),
                           static_cast<float>(::exp(decided.log_ratio < top ? decided.log_ratio : top)),
                           static_cast<float>(decided.spread),
                           static_cast<float>(decided.advantage),
                           0,
                           (decided.keep ? 1U : 0U) | (decided.capped ? 2U : 0U)};
        }
    }
}

}  // namespace gpu::detail
ASYNCRL_END_NAMESPACE
