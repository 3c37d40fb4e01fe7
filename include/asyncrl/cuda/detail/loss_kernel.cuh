// SPDX-License-Identifier: Apache-2.0
/// @file The loss kernel: one block per chunk of positions, then one block that sums the chunks in order.
#pragma once

#include <asyncrl/correction/detail/batch_numbers.hpp>
#include <asyncrl/correction/loss_report.hpp>
#include <asyncrl/correction/totals.hpp>
#include <asyncrl/cuda/detail/device.cuh>

#include <cub/block/block_reduce.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cuda/functional>
#include <cuda/std/functional>

#include <cstddef>
#include <cstring>

ASYNCRL_BEGIN_NAMESPACE
namespace gpu::detail {

/// The tally of a chunk, and its first non-finite token as a place within it.
struct chunk_tally {
    tally<float> sums;
    std::uint32_t first_nonfinite;
};

struct loss_arguments {
    device_batch from;
    output_column outputs[3];  ///< gradient, loss, weight
    std::uint16_t* flags;
    bool propagate;
    device_scale scale;
    std::int64_t stride;  ///< positions of a chunk
    chunk_tally* partials;
    void const* prepared;  ///< the objective, for one that waits for the totals
};

/// By what tokens are multiplied, as far as it does not depend on their row.
struct loss_scale {
    float common;
    float upstream;  ///< the gradient alone
};

/// Evaluates one token, the way both loops share.
template <typename Bound>
__device__ __forceinline__ token_outcome<float> loss_of_token(Bound const& objective, sentinel<float> const& missing,
                                                              token_inputs<float> const& x, bool active,
                                                              sequence_context<float> const& sequence, float scale,
                                                              float upstream, tally<float>& mine, std::uint32_t& events) {
    constexpr std::uint32_t needs = Bound::needs;
    observed<float> token = observe<needs>(x, active, missing, device_math{});
    token_outcome<float> result = objective(token.t, sequence, device_math{});
    settle<needs>(token, result);
    mine.template add<needs>(token, result, result.value * scale, events);
    result.slope = result.slope * (scale * upstream) + 0.0F;  // +0 under the mask, whatever the sign of `upstream`
    return result;
}

/// The rare case: a token has a non-finite input or result.
__device__ __forceinline__ void note_nonfinite(bool propagate, std::uint32_t place_in_chunk, token_outcome<float>& out,
                                               tally<float>& mine, std::uint32_t* first_nonfinite) {
    if ((out.flags & static_cast<std::uint32_t>(event::nonfinite)) != 0) {
        atomicMin(first_nonfinite, place_in_chunk);
        if (propagate) {
            out.slope = out.value = mine.loss = mine.absolute_loss = __int_as_float(0x7fffffff);
        }
    }
}

/// Token by token: for what is not dense or not float, for the last tokens, and where more than the gradient is wanted.
template <int Threads, typename Bound>
__device__ __forceinline__ void loss_one_by_one(Bound const& objective, loss_arguments const& args, quad const& q, place first,
                                                loss_scale by, std::uint32_t place_in_chunk, tally<float>& mine,
                                                std::uint32_t* first_nonfinite, token_floats<Threads, Bound::needs>& own) {
    q.for_each_place(args.from.batch, first, [&](int i, place p) {
        token_inputs<float> const x = load_token<Bound::needs, Threads>(args.from, p, own);
        std::int64_t const* const rows = args.scale.row_counts;
        float const scale = rows == nullptr ? by.common : device_scale::over(by.common, rows[p.row]);
        std::uint32_t events = 0;
        sequence_context<float> sequence = no_sequence<float>();
        if constexpr ((Bound::needs & has_sequences) != 0) {
            sequence = args.from.context_at(p);
        }
        token_outcome<float> out = loss_of_token(objective, sentinel<float>(args.from.unscored), x,
                                                 is_set(args.from.batch.mask, p), sequence, scale, by.upstream, mine, events);
        mine.template flush<Bound::needs>(events);
        note_nonfinite(args.propagate, place_in_chunk + static_cast<std::uint32_t>(i), out, mine, first_nonfinite);
        own[0] = out.slope;
        own[1] = out.value;
        own[2] = out.weight;
#pragma unroll 1
        for (int c = 0; c < 3; ++c) {
            if (args.outputs[c]) {
                store_element(args.outputs[c], p, own[c]);
            }
        }
        if (args.flags != nullptr) {
            args.flags[q.at + i] = stored_flags(out.flags);
        }
    });
}

template <int Threads, bool AnyType, typename Bound>
__device__ __forceinline__ void loss_of_quad(Bound const& objective, loss_arguments const& args, quad const& q, loss_scale by,
                                             std::uint32_t place_in_chunk, tally<float>& mine, std::uint32_t* first_nonfinite,
                                             token_floats<Threads, Bound::needs>& own) {
    quad_inputs in;
    place first;
    if (!load_at_once<Bound::needs, AnyType>(args.from, q, by.common, args.scale.row_counts, in, first)) {
        loss_one_by_one<Threads>(objective, args, q, first, by, place_in_chunk, mine, first_nonfinite, own);
        return;
    }
    sentinel<float> const missing(args.from.unscored);
    std::uint32_t events = 0;
    sequence_context<float> sequence = no_sequence<float>();
    if constexpr ((Bound::needs & has_sequences) != 0) {
        sequence = args.from.context(first.row);
    }
    auto const evaluate = [&](int i) {
        return loss_of_token(objective, missing, in.token<Bound::needs>(i), in.active(i), sequence, in.scale, by.upstream, mine,
                             events);
    };
    auto out0 = evaluate(0);
    auto out1 = evaluate(1);
    auto out2 = evaluate(2);
    auto out3 = evaluate(3);
    if ((events & (7 * static_cast<std::uint32_t>(event::nonfinite))) != 0) {
        note_nonfinite(args.propagate, place_in_chunk, out0, mine, first_nonfinite);
        note_nonfinite(args.propagate, place_in_chunk + 1, out1, mine, first_nonfinite);
        note_nonfinite(args.propagate, place_in_chunk + 2, out2, mine, first_nonfinite);
        note_nonfinite(args.propagate, place_in_chunk + 3, out3, mine, first_nonfinite);
    }
    mine.template flush<Bound::needs>(events);
    store_four<AnyType>(args.outputs[0], q, {out0.slope, out1.slope, out2.slope, out3.slope});
}

/// The tallies of a block's threads, word by word: sums, then maxima of numbers that are not negative, then pairs of counts.
template <int Threads>
struct block_tallies {
    static constexpr int first_maximum = offsetof(tally<float>, largest_log_mismatch) / 4;
    static constexpr int first_count = offsetof(tally<float>, clipped_high_low) / 4;
    static constexpr int count = sizeof(tally<float>) / 4;

    std::uint32_t words[count][Threads];  // neighbours in different banks

    __device__ __forceinline__ void put(tally<float> const& x) {
        std::uint32_t mine[count];
        std::memcpy(mine, &x, sizeof x);
#pragma unroll
        for (int word = 0; word < count; ++word) {
            words[word][threadIdx.x] = mine[word];
        }
    }

    /// Adds up the tallies, a warp one word at a time, in an order that is always the same.
    __device__ __forceinline__ void add_up(tally<float>& sum) const {
        int const lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
        for (int word = static_cast<int>(threadIdx.x) / 32; word < count; word += Threads / 32) {
            std::uint32_t const* const of = words[word];
            std::uint32_t result = 0;
            if (word < first_maximum) {
                result = __float_as_uint(over_warp<float>(
                    of, lane, [](std::uint32_t x) { return __uint_as_float(x); }, cuda::std::plus<>{}));
            } else if (word < first_count) {
                result = over_warp<std::uint32_t>(
                    of, lane, [](std::uint32_t x) { return x; }, cuda::maximum<>{});
            } else {
                result = over_warp<std::uint32_t>(
                    of, lane, [](std::uint32_t x) { return x; }, cuda::std::plus<>{});
            }
            if (lane == 0) {
                reinterpret_cast<std::uint32_t*>(&sum)[word] = result;
            }
        }
    }

  private:
    template <typename Number, typename Read, typename Merge>
    static __device__ __forceinline__ Number over_warp(std::uint32_t const* of, int lane, Read read, Merge merge) {
        using warp_reduce = cub::WarpReduce<Number>;
        __shared__ typename warp_reduce::TempStorage storage[Threads / 32];
        Number mine = read(of[lane]);
#pragma unroll 1
        for (int thread = lane + 32; thread < Threads; thread += 32) {
            mine = merge(mine, read(of[thread]));
        }
        return warp_reduce(storage[threadIdx.x / 32]).Reduce(mine, merge);
    }
};

template <int Threads, bool AnyType, typename Bound>
__device__ __forceinline__ void loss_of_chunks(Bound const& objective, loss_arguments const& args) {
    __shared__ token_floats<Threads, Bound::needs> own;
    __shared__ block_tallies<Threads> tallies;
    __shared__ std::uint32_t first_nonfinite;
    std::int64_t const size = args.from.batch.size();
    loss_scale const by{args.scale.common(), args.scale.upstream != nullptr ? *args.scale.upstream : 1.0F};
    for (std::int64_t chunk = blockIdx.x; chunk * args.stride < size; chunk += gridDim.x) {
        std::int64_t const begin = chunk * args.stride;
        std::int64_t const end = begin + args.stride < size ? begin + args.stride : size;
        if (threadIdx.x == 0) {
            first_nonfinite = ~0U;
        }
        __syncthreads();
        tally<float> mine;
        for (std::int64_t at = begin + threadIdx.x * 4; at < end; at += Threads * 4) {
            loss_of_quad<Threads, AnyType>(objective, args, quad{at, end - at < 4 ? static_cast<int>(end - at) : 4}, by,
                                           static_cast<std::uint32_t>(at - begin), mine, &first_nonfinite, own);
        }
        tallies.put(mine);
        __syncthreads();
        tallies.add_up(args.partials[chunk].sums);
        if (threadIdx.x == 0) {
            args.partials[chunk].first_nonfinite = first_nonfinite;
        }
        __syncthreads();
    }
}

template <int Threads, bool AnyType, typename Given>
__global__ void __launch_bounds__(Threads, 2) loss_kernel(loss_arguments const args, functor<Given> const with) {
    if constexpr ((Given::needs & awaits_totals) != 0) {
        using bound = evaluated<Given>;
        loss_of_chunks<Threads, AnyType>(bound(*static_cast<bound const*>(args.prepared)), args);
    } else {
        loss_of_chunks<Threads, AnyType>(read_numbers(with.objective), args);
    }
}

/// A loss_report under construction on the device.
struct merge_reports {
    __device__ __forceinline__ loss_report operator()(loss_report const& a, loss_report const& b) const {
        loss_report r;
        add(reinterpret_cast<double const*>(&a.sums), reinterpret_cast<double const*>(&b.sums),
            reinterpret_cast<double*>(&r.sums), sizeof r.sums / 8);
        add(reinterpret_cast<std::int64_t const*>(&a.counts), reinterpret_cast<std::int64_t const*>(&b.counts),
            reinterpret_cast<std::int64_t*>(&r.counts), sizeof r.counts / 8);
        r.maxima.absolute_log_mismatch = larger(a.maxima.absolute_log_mismatch, b.maxima.absolute_log_mismatch);
        r.maxima.absolute_log_ratio = larger(a.maxima.absolute_log_ratio, b.maxima.absolute_log_ratio);
        // As unsigned numbers, so that -1 (none) is larger than any place.
        auto const first_a = static_cast<std::uint64_t>(a.first_nonfinite);
        auto const first_b = static_cast<std::uint64_t>(b.first_nonfinite);
        r.first_nonfinite = first_a < first_b ? a.first_nonfinite : b.first_nonfinite;
        return r;
    }

  private:
    template <typename Number>
    static __device__ __forceinline__ void add(Number const* a, Number const* b, Number* to, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            to[i] = a[i] + b[i];
        }
    }
};

[[nodiscard]] __device__ inline loss_report report_of_chunk(chunk_tally const& t, std::int64_t begin) {
    tally<float> const& s = t.sums;
    loss_report r;
    r.sums = {s.loss,         s.absolute_loss,         s.weight,      s.weight_squared,     s.mismatch, s.mismatch_squared,
              s.log_mismatch, s.absolute_log_mismatch, s.k3_mismatch, s.absolute_log_ratio, s.penalty};
    r.counts = {low_half(s.tokens_kept),         0,
                high_half(s.tokens_kept),        low_half(s.clipped_high_low),
                high_half(s.clipped_high_low),   low_half(s.capped_gated),
                high_half(s.capped_gated),       low_half(s.tails_clamped),
                high_half(s.unscored_nonfinite), low_half(s.unscored_nonfinite),
                high_half(s.tails_clamped)};
    r.maxima = {s.largest_log_mismatch, s.largest_log_ratio};
    r.first_nonfinite = t.first_nonfinite == ~0U ? -1 : begin + t.first_nonfinite;
    return r;
}

/// Sums the chunks: each of a fixed number of threads takes every Threads-th, then a fixed tree, all in double.
template <int Threads>
__global__ void __launch_bounds__(Threads, 2)
    finish_loss_kernel(std::uint32_t needs, chunk_tally const* partials, std::int64_t chunks, std::int64_t chunk_positions,
                       std::int64_t rows, loss_report* report) {
    using block_reduce = cub::BlockReduce<loss_report, Threads>;
    __shared__ typename block_reduce::TempStorage storage;
    loss_report mine;
    for (std::int64_t chunk = threadIdx.x; chunk < chunks; chunk += Threads) {
        mine = merge_reports{}(mine, report_of_chunk(partials[chunk], chunk * chunk_positions));
    }
    loss_report sum = block_reduce(storage).Reduce(mine, merge_reports{});
    if (threadIdx.x == 0) {
        sum.counts.sequences = rows;
        complete_report(sum, needs);
        *report = sum;
    }
}

/// Hands the totals' numbers to the objective.
template <typename Given>
__global__ void prepare_kernel(totals const* sums, void* prepared, functor<Given> const with) {
    evaluated<Given> objective = read_numbers(with.objective);
    objective.prepare(batch_numbers_of(*sums));
    *static_cast<evaluated<Given>*>(prepared) = objective;
}

}  // namespace gpu::detail
ASYNCRL_END_NAMESPACE
