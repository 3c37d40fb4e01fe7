// SPDX-License-Identifier: Apache-2.0
/// @file The loss kernel: one block per chunk of positions, then one block that sums the chunks in order.
#pragma once

#include <asyncrl/correction/loss_report.hpp>
#include <asyncrl/correction/totals.hpp>
#include <asyncrl/cuda/detail/device.cuh>

#include <cub/block/block_reduce.cuh>

ASYNCRL_BEGIN_NAMESPACE
namespace gpu::detail {

/// The tally of a chunk, and its first non-finite token as a place within it.
struct chunk_tally {
    tally<float> sums;
    std::uint32_t first_nonfinite;
};

struct merge_tallies {
    __device__ __forceinline__ tally<float> operator()(tally<float> const& a, tally<float> const& b) const {
        return merged(a, b);
    }
};

/// The objective is one of them, as a kernel cannot take an empty one by itself.
template <typename Bound>
struct loss_arguments {
    device_batch from;
    loss_outputs to;
    bool by_token;  ///< the gradient is not dense float, or more than the gradient is wanted
    bool propagate;
    device_scale scale;
    std::int64_t stride;  ///< positions of a chunk
    chunk_tally* partials;
    Bound const* prepared;  ///< for objectives that wait for the batch's order statistic
    Bound objective;
};

/// What four tokens yield.
struct quad_outputs {
    float4 gradient, loss, weight;
    uint4 flags;
};

__device__ __forceinline__ void store_outputs(token_batch const& batch, loss_outputs const& to, bool by_token, quad const& q,
                                              quad_outputs const& out) {
    if (!by_token && q.full()) {
        __stcs(reinterpret_cast<float4*>(static_cast<float*>(to.gradient.data) + q.at), out.gradient);
        return;
    }
    q.for_each_place(batch, [&](int i, place p) {
        auto const store = [&](output_column const& c, float4 const& x) {
            if (c.data != nullptr) {
                store_element(c, p.in(c.row_stride, c.token_stride), get(x, i));
            }
        };
        store(to.gradient, out.gradient);
        store(to.loss, out.loss);
        store(to.weight, out.weight);
        if (to.flags != nullptr) {
            to.flags[q.at + i] = stored_flags(get(out.flags, i));
        }
    });
}

/// The rare case: some of the four have a non-finite input or result.
__device__ __forceinline__ void note_nonfinite(bool propagate, quad_outputs& out, std::uint32_t first_place, tally<float>& mine,
                                               std::uint32_t* first_nonfinite) {
    float const nan = __int_as_float(0x7fffffff);
#pragma unroll 1
    for (int i = 3; i >= 0; --i) {
        if ((get(out.flags, i) & static_cast<std::uint32_t>(event::nonfinite)) != 0) {
            atomicMin(first_nonfinite, first_place + static_cast<std::uint32_t>(i));
            if (propagate) {
                set(out.gradient, i, nan);
                set(out.loss, i, nan);
                mine.loss = nan;
                mine.absolute_loss = nan;
            }
        }
    }
}

template <typename Bound>
__device__ __forceinline__ void loss_of_quad(Bound const& objective, loss_arguments<Bound> const& args, quad const& q,
                                             float common_scale, std::uint32_t first_place, tally<float>& mine,
                                             std::uint32_t* first_nonfinite) {
    constexpr std::uint32_t needs = Bound::needs;
    quad_inputs const in = load_inputs<needs>(args.from, q, common_scale, args.scale.row_counts);
    sentinel<float> const missing(args.from.unscored);
    quad_outputs out;
    std::uint32_t events = 0;
    auto const evaluate = [&](log_probs<float> x, float advantage, bool active, float scale, float& slope, float& loss,
                              float& weight, std::uint32_t& flags) {
        observed<float> token = observe<needs>(x, advantage, active, missing, device_exponential{});
        token_outcome<float> result = objective(token.t);
        settle<needs>(token, result);
        mine.template add<needs>(token, result, result.value * scale, events);
        slope = result.slope * scale;
        loss = result.value;
        weight = result.weight;
        flags = result.flags;
    };
    evaluate({in.log_prob.x, in.old_log_prob.x, in.rollout_log_prob.x}, in.advantage.x, in.active(0), in.scale.x,
             out.gradient.x, out.loss.x, out.weight.x, out.flags.x);
    evaluate({in.log_prob.y, in.old_log_prob.y, in.rollout_log_prob.y}, in.advantage.y, in.active(1), in.scale.y,
             out.gradient.y, out.loss.y, out.weight.y, out.flags.y);
    evaluate({in.log_prob.z, in.old_log_prob.z, in.rollout_log_prob.z}, in.advantage.z, in.active(2), in.scale.z,
             out.gradient.z, out.loss.z, out.weight.z, out.flags.z);
    evaluate({in.log_prob.w, in.old_log_prob.w, in.rollout_log_prob.w}, in.advantage.w, in.active(3), in.scale.w,
             out.gradient.w, out.loss.w, out.weight.w, out.flags.w);
    if ((events & (7 * static_cast<std::uint32_t>(event::nonfinite))) != 0) {
        note_nonfinite(args.propagate, out, first_place, mine, first_nonfinite);
    }
    mine.template flush<needs>(events);
    store_outputs(args.from.batch, args.to, args.by_token, q, out);
}

template <int Threads, typename Bound>
__device__ __forceinline__ void loss_of_chunks(Bound const& objective, loss_arguments<Bound> const& args) {
    using block_reduce = cub::BlockReduce<tally<float>, Threads>;
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
        tally<float> const sum = block_reduce(storage).Reduce(mine, merge_tallies{});
        if (threadIdx.x == 0) {
            args.partials[chunk] = {sum, first_nonfinite};  // all are past their tokens: the reduction waits for them
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

[[nodiscard]] __device__ inline loss_report report_of_chunk(chunk_tally const& t, std::int64_t begin) {
    tally<float> const& s = t.sums;
    loss_report r;
    r.sums = {s.loss,         s.absolute_loss,         s.weight,      s.weight_squared,    s.mismatch, s.mismatch_squared,
              s.log_mismatch, s.absolute_log_mismatch, s.k3_mismatch, s.absolute_log_ratio};
    r.counts = {low_half(s.tokens_kept),         0,
                high_half(s.tokens_kept),        low_half(s.clipped_high_low),
                high_half(s.clipped_high_low),   low_half(s.capped_gated),
                high_half(s.capped_gated),       low_half(s.tails),
                high_half(s.unscored_nonfinite), low_half(s.unscored_nonfinite)};
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

/// Hands the device's order statistic to the objective.
template <typename Bound>
__global__ void prepare_kernel(Bound objective, totals const* sums, Bound* prepared) {
    objective.prepare(sums->quantile);
    *prepared = objective;
}

}  // namespace gpu::detail
ASYNCRL_END_NAMESPACE
