// SPDX-License-Identifier: Apache-2.0
/// @file The loss kernel: one block per chunk of positions, then one block that sums the chunks in order.
#pragma once

#include <asyncrl/correction/loss_report.hpp>
#include <asyncrl/correction/totals.hpp>
#include <asyncrl/cuda/detail/device.cuh>

#include <cub/block/block_reduce.cuh>

ASYNCRL_BEGIN_NAMESPACE
namespace gpu::detail {

/// The tally of a chunk, with room for its counts, and its first non-finite token as a place within it.
struct chunk_tally {
    float sums[10];
    float maxima[2];
    std::uint32_t counts[10];
    std::uint32_t first_nonfinite;

    chunk_tally() = default;
    __device__ __forceinline__ explicit chunk_tally(tally<float> const& t)
        : sums{t.loss,         t.absolute_loss,         t.weight,      t.weight_squared,    t.mismatch, t.mismatch_squared,
               t.log_mismatch, t.absolute_log_mismatch, t.k3_mismatch, t.absolute_log_ratio},
          maxima{t.largest_log_mismatch, t.largest_log_ratio},
          counts{low_half(t.tokens_kept),       high_half(t.tokens_kept),    low_half(t.clipped_high_low),
                 high_half(t.clipped_high_low), low_half(t.capped_gated),    high_half(t.capped_gated),
                 low_half(t.tail_nonfinite),    high_half(t.tail_nonfinite), low_half(t.unscored_overflow),
                 high_half(t.unscored_overflow)},
          first_nonfinite(~0U) {}
};

struct merge_chunk_tallies {
    __device__ __forceinline__ chunk_tally operator()(chunk_tally const& a, chunk_tally const& b) const {
        chunk_tally sum;
#pragma unroll
        for (int i = 0; i < 10; ++i) {
            sum.sums[i] = a.sums[i] + b.sums[i];
            sum.counts[i] = a.counts[i] + b.counts[i];
        }
        sum.maxima[0] = larger(a.maxima[0], b.maxima[0]);
        sum.maxima[1] = larger(a.maxima[1], b.maxima[1]);
        return sum;
    }
};

/// Weight of a token's gradient: factor / denominator, by its row's count too where there is one.
struct device_scale {
    float factor;                     ///< options.scale / divisor
    std::int64_t const* denominator;  ///< in the device's totals; null: 1
    std::int64_t const* row_counts;   ///< null: none

    [[nodiscard]] __device__ __forceinline__ float common() const {
        if (denominator == nullptr) {
            return factor;
        }
        std::int64_t const count = *denominator;
        return count > 0 ? factor / static_cast<float>(count) : 0.0F;
    }
};

/// The objective is one of them, as a kernel cannot take an empty one by itself.
template <typename Bound>
struct loss_arguments {
    device_batch from;
    loss_outputs to;
    bool gradient_in_fours;
    bool propagate;
    bool extras;  ///< losses, weights or flags are wanted
    device_scale scale;
    std::int64_t stride;  ///< positions of a chunk
    chunk_tally* partials;
    Bound const* prepared;  ///< for objectives that wait for the batch's order statistic
    Bound objective;
};

__device__ __forceinline__ void store_quad(token_batch const& batch, output_column const& c, bool in_fours, quad const& q,
                                           float4 x) {
    if (in_fours && q.count == 4) {
        __stcs(reinterpret_cast<float4*>(static_cast<float*>(c.data) + q.at), x);
        return;
    }
    q.for_each_place(batch, [&](int i, place p) {
        store_element(c, p.in(c.row_stride, c.token_stride), i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w);
    });
}

/// The scale of the gradient of a token.
[[nodiscard]] __device__ __forceinline__ float scale_of(token_batch const& batch, device_scale const& scale, float common,
                                                        std::int64_t at) {
    if (scale.row_counts == nullptr || at >= batch.size()) {
        return common;
    }
    std::int64_t const count = scale.row_counts[place_of(batch, at).row];
    return count > 0 ? common / static_cast<float>(count) : 0.0F;
}

/// Writes what was asked for beyond the gradient, token by token.
__device__ __forceinline__ void store_extras(token_batch const& batch, loss_outputs const& to, quad const& q, int i,
                                             token_outcome<float> const& result) {
    if (i >= q.count) {
        return;
    }
    if (to.flags != nullptr) {
        to.flags[q.at + i] = static_cast<std::uint16_t>(result.flags);
    }
    if (to.loss.data != nullptr || to.weight.data != nullptr) {
        place const here = place_of(batch, q.at + i);
        if (to.loss.data != nullptr) {
            store_element(to.loss, here.in(to.loss.row_stride, to.loss.token_stride), result.value);
        }
        if (to.weight.data != nullptr) {
            store_element(to.weight, here.in(to.weight.row_stride, to.weight.token_stride), result.weight);
        }
    }
}

template <typename Bound>
__device__ __forceinline__ void loss_of_quad(Bound const& objective, loss_arguments<Bound> const& args, quad const& q,
                                             float common_scale, std::uint32_t first_place, tally<float>& mine,
                                             std::uint32_t* first_nonfinite) {
    constexpr std::uint32_t needs = Bound::needs;
    token_batch const& batch = args.from.batch;
    quad_inputs const in = load_inputs<needs>(args.from, q);
    sentinel<float> const missing(args.from.unscored);
    float const bad_value = args.propagate ? __int_as_float(0x7fffffff) : 0.0F;
    auto const slope_of = [&](int i, log_probs<float> x, float advantage, bool active) {
        float const scale = scale_of(batch, args.scale, common_scale, q.at + i);
        observed<float> token = observe<needs>(x, advantage, active, missing, device_exponential{});
        token_outcome<float> result = objective(token.t);
        settle(token, result, bad_value);
        mine.template add<needs>(token, result, args.scale.row_counts != nullptr ? result.value * scale : result.value);
        if (active && !token.live) {
            atomicMin(first_nonfinite, first_place + static_cast<std::uint32_t>(i));
        }
        if (args.extras) {
            store_extras(batch, args.to, q, i, result);
        }
        return result.slope * scale;
    };
    float4 gradient;
    gradient.x = slope_of(0, {in.log_prob.x, in.old_log_prob.x, in.rollout_log_prob.x}, in.advantage.x, in.mask.x != 0);
    gradient.y = slope_of(1, {in.log_prob.y, in.old_log_prob.y, in.rollout_log_prob.y}, in.advantage.y, in.mask.y != 0);
    gradient.z = slope_of(2, {in.log_prob.z, in.old_log_prob.z, in.rollout_log_prob.z}, in.advantage.z, in.mask.z != 0);
    gradient.w = slope_of(3, {in.log_prob.w, in.old_log_prob.w, in.rollout_log_prob.w}, in.advantage.w, in.mask.w != 0);
    store_quad(batch, args.to.gradient, args.gradient_in_fours, q, gradient);
}

template <int Threads, typename Bound>
__device__ __forceinline__ void loss_of_chunks(Bound const& objective, loss_arguments<Bound> const& args) {
    using block_reduce = cub::BlockReduce<chunk_tally, Threads>;
    __shared__ typename block_reduce::TempStorage storage;
    __shared__ std::uint32_t first_nonfinite;
    std::int64_t const size = args.from.batch.size();
    float const scale = args.scale.common();
    for (std::int64_t chunk = blockIdx.x; chunk * args.stride < size; chunk += gridDim.x) {
        std::int64_t const begin = chunk * args.stride;
        auto const count = static_cast<int>(begin + args.stride < size ? args.stride : size - begin);
        if (threadIdx.x == 0) {
            first_nonfinite = ~0U;
        }
        __syncthreads();
        tally<float> mine;
        for (int i = static_cast<int>(threadIdx.x) * 4; i < count; i += Threads * 4) {
            loss_of_quad(objective, args, quad{begin + i, count - i < 4 ? count - i : 4}, scale, static_cast<std::uint32_t>(i),
                         mine, &first_nonfinite);
        }
        chunk_tally sum = block_reduce(storage).Reduce(chunk_tally(mine), merge_chunk_tallies{});
        if (threadIdx.x == 0) {
            sum.first_nonfinite = first_nonfinite;  // all threads are past their tokens: the reduction waits for them
            args.partials[chunk] = sum;
        }
        __syncthreads();
    }
}

template <int Threads, typename Bound>
__global__ void __launch_bounds__(Threads, 2) loss_kernel(loss_arguments<Bound> const args) {
    if constexpr ((Bound::needs & batch_quantile) != 0) {
        loss_of_chunks<Threads>(Bound(*args.prepared), args);
    } else {
        loss_of_chunks<Threads>(args.objective, args);  // stays in constant memory
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

[[nodiscard]] __device__ inline loss_report report_of_chunk(chunk_tally const& t, std::int64_t begin, double scale) {
    float const* s = t.sums;
    std::uint32_t const* n = t.counts;
    loss_report r;
    r.sums = {s[0] * scale, s[1] * fabs(scale), s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9]};
    r.counts = {n[0], 0, n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9]};
    r.maxima = {t.maxima[0], t.maxima[1]};
    r.first_nonfinite = t.first_nonfinite == ~0U ? -1 : begin + t.first_nonfinite;
    return r;
}

/// Sums the chunks: each of a fixed number of threads takes every Threads-th, then a fixed tree, all in double.
template <int Threads, std::uint32_t Needs>
__global__ void __launch_bounds__(Threads)
    finish_loss_kernel(chunk_tally const* partials, std::int64_t chunks, std::int64_t chunk_positions, std::int64_t rows,
                       double factor, std::int64_t const* denominator, bool by_row, loss_report* report) {
    using block_reduce = cub::BlockReduce<loss_report, Threads>;
    __shared__ typename block_reduce::TempStorage storage;
    double scale = 1;
    if (!by_row) {
        scale = denominator == nullptr ? factor : *denominator > 0 ? factor / static_cast<double>(*denominator) : 0;
    }
    loss_report mine;
    for (std::int64_t chunk = threadIdx.x; chunk < chunks; chunk += Threads) {
        mine = merge_reports{}(mine, report_of_chunk(partials[chunk], chunk * chunk_positions, scale));
    }
    loss_report sum = block_reduce(storage).Reduce(mine, merge_reports{});
    if (threadIdx.x == 0) {
        sum.counts.sequences = rows;
        complete_report<Needs>(sum);
        *report = sum;
    }
}

/// Hands the device's order statistic to the objective.
template <typename Bound>
__global__ void prepare_kernel(Bound objective, totals const* sums, Bound* prepared) {
    objective.prepare(sums->quantile);
    *prepared = objective;
}

}  // namespace gpu::detail
ASYNCRL_END_NAMESPACE
