// SPDX-License-Identifier: Apache-2.0
/// @file Kernels for advantages: a warp for each group of sequences, a block for each row of a recursion. All in double, as on
/// the host: there are few bytes and few operations a token, and sums over a row would lose what floats hold.
#pragma once

#include <asyncrl/correction/advantage_options.hpp>
#include <asyncrl/correction/token/recursion.hpp>
#include <asyncrl/cuda/detail/doubles.cuh>

#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_reduce.cuh>

#include <cmath>
#include <cstdint>
#include <limits>

ASYNCRL_BEGIN_NAMESPACE
namespace gpu::detail {

struct group_arguments {
    group_rewards rewards;
    std::int64_t groups;
    output_column advantage;
    group_advantage_options options;
    group_advantage_report* report;
};

/// One member, and what it does for its group after a look at its reward.
struct group_member {
    static constexpr int trained = 0, baseline_only = 1, excluded = 2, nonfinite = 3;

    int does = trained;
    double reward;

    __device__ __forceinline__ group_member(group_rewards const& g, std::int64_t i) : reward(load_double(g.reward, {i, 0})) {
        if (g.role) {
            int const role = static_cast<std::uint8_t const*>(g.role.data)[i * g.role.row_stride];
            does = role < excluded ? role : excluded;
        }
        if (does != excluded && is_nonfinite(reward)) {
            does = nonfinite;
        }
    }
    [[nodiscard]] __device__ __forceinline__ bool feeds() const { return does == trained || does == baseline_only; }
};

/// What a group's members add up to.
struct group_sums {
    double sum = 0;
    double lowest = INFINITY;
    double highest = -INFINITY;
    std::int64_t trained = 0, baseline_only = 0, excluded = 0, nonfinite = 0;

    __device__ __forceinline__ void add(group_member const& m) {
        trained += m.does == group_member::trained ? 1 : 0;
        baseline_only += m.does == group_member::baseline_only ? 1 : 0;
        excluded += m.does == group_member::excluded ? 1 : 0;
        nonfinite += m.does == group_member::nonfinite ? 1 : 0;
        if (m.feeds()) {
            sum += m.reward;
            lowest = smaller(lowest, m.reward);
            highest = larger(highest, m.reward);
        }
    }
};

struct merge_group_sums {
    __device__ __forceinline__ group_sums operator()(group_sums const& a, group_sums const& b) const {
        return {a.sum + b.sum,
                smaller(a.lowest, b.lowest),
                larger(a.highest, b.highest),
                a.trained + b.trained,
                a.baseline_only + b.baseline_only,
                a.excluded + b.excluded,
                a.nonfinite + b.nonfinite};
    }
};

/// One warp for each group.
template <int Threads>
__global__ void __launch_bounds__(Threads) group_advantage_kernel(group_arguments const args) {
    constexpr int warps = Threads / 32;
    using sums_reduce = cub::WarpReduce<group_sums>;
    using squares_reduce = cub::WarpReduce<double>;
    __shared__ typename sums_reduce::TempStorage sums_storage[warps];
    __shared__ typename squares_reduce::TempStorage squares_storage[warps];
    __shared__ group_sums of_group[warps];
    __shared__ double squares_of_group[warps];
    group_rewards const& g = args.rewards;
    int const warp = static_cast<int>(threadIdx.x) / 32;
    int const lane = static_cast<int>(threadIdx.x) % 32;
    group_advantage_report mine{};
    for (std::int64_t group = std::int64_t{blockIdx.x} * warps + warp; group < args.groups;
         group += std::int64_t{gridDim.x} * warps) {
        std::int64_t const first = g.offsets ? g.offsets[group] : group * g.group_size;
        std::int64_t const last = g.offsets ? g.offsets[group + 1] : first + g.group_size;

        group_sums part;
        for (std::int64_t i = first + lane; i < last; i += 32) {
            part.add(group_member(g, i));
        }
        part = sums_reduce(sums_storage[warp]).Reduce(part, merge_group_sums{});
        if (lane == 0) {
            of_group[warp] = part;
        }
        __syncwarp();
        group_sums const all = of_group[warp];
        auto const n = static_cast<double>(all.trained + all.baseline_only);
        bool const degenerate = n < 2 || all.lowest == all.highest;
        double const mean = degenerate ? 0 : all.sum / n;

        double divisor = 1;
        if (!degenerate && args.options.deviation != group_deviation::none) {
            // Squares of shares of the largest difference neither over- nor underflow.
            double const largest = larger(all.highest - mean, mean - all.lowest);
            double squares = 0;
            for (std::int64_t i = first + lane; i < last; i += 32) {
                group_member const m(g, i);
                double const share = m.feeds() ? (m.reward - mean) / largest : 0;
                squares += share * share;
            }
            squares = squares_reduce(squares_storage[warp]).Sum(squares);
            if (lane == 0) {
                squares_of_group[warp] = squares;
            }
            __syncwarp();
            double const over = args.options.deviation == group_deviation::unbiased ? n - 1 : n;
            divisor = largest * sqrt(squares_of_group[warp] / over) + args.options.epsilon;
        }
        double const stretch = args.options.baseline == group_baseline::leave_one_out ? n / (n - 1) : 1;
        for (std::int64_t i = first + lane; i < last; i += 32) {
            group_member const m(g, i);
            bool const learns = m.does == group_member::trained && !degenerate;
            store_double(args.advantage, {i, 0}, learns ? (m.reward - mean) * stretch / divisor : 0);
        }

        mine.groups += 1;
        mine.degenerate += all.trained > 0 && degenerate ? 1 : 0;
        mine.untrained += all.trained > 0 ? 0 : 1;
        mine.trained += all.trained;
        mine.baseline_only += all.baseline_only;
        mine.excluded += all.excluded;
        mine.nonfinite += all.nonfinite;
        __syncwarp();  // all lanes have read what the next group overwrites
    }
    if (lane == 0) {
        add_to_report(&args.report->groups, mine.groups);
        add_to_report(&args.report->degenerate, mine.degenerate);
        add_to_report(&args.report->untrained, mine.untrained);
        add_to_report(&args.report->trained, mine.trained);
        add_to_report(&args.report->baseline_only, mine.baseline_only);
        add_to_report(&args.report->excluded, mine.excluded);
        add_to_report(&args.report->nonfinite, mine.nonfinite);
    }
}

/// One active token as a recursion sees it.
struct step_input {
    double reward;
    double value;
    double action_value;  ///< 0 unless the recursion `reads_action_value`
    double ratio;         ///< old / rollout; 1 unless the recursion `reads_ratio`
};

/// What a step needs of the next active token; initially of the state behind the row.
struct next_step {
    double value;
    double ratio;
};

struct step_output {
    double advantage;
    double target;
};

/// A recursion in two parts: its step y_t = add + scale y_{t+1}, which a scan composes, and the outputs from y_t and y_{t+1}.
struct gae_scan {
    static constexpr bool reads_action_value = false;
    static constexpr bool reads_ratio = false;

    gae_options options;

    [[nodiscard]] __device__ __forceinline__ recursion_step<double> step(step_input const& in, next_step const& next) const {
        return gae_step(td_error(in.reward, options.gamma, next.value, in.value), options.gamma, options.lambda);
    }
    [[nodiscard]] __device__ __forceinline__ step_output output(step_input const& in, next_step const&, double y,
                                                                double) const {
        return {y, in.value + y};
    }
};

struct vtrace_scan {
    static constexpr bool reads_action_value = false;
    static constexpr bool reads_ratio = true;

    vtrace_options options;

    [[nodiscard]] __device__ __forceinline__ recursion_step<double> step(step_input const& in, next_step const& next) const {
        double const td = td_error(in.reward, options.gamma, next.value, in.value);
        return vtrace_step(td, truncated(in.ratio, options.rho_bar), truncated(in.ratio, options.c_bar), options.gamma,
                           options.lambda);
    }
    [[nodiscard]] __device__ __forceinline__ step_output output(step_input const& in, next_step const& next, double y,
                                                                double later) const {
        double const rho = truncated(in.ratio, options.rho_bar);
        return {rho * td_error(in.reward, options.gamma, next.value + later, in.value), in.value + y};
    }
};

struct retrace_scan {
    static constexpr bool reads_action_value = true;
    static constexpr bool reads_ratio = true;

    retrace_options options;

    [[nodiscard]] __device__ __forceinline__ recursion_step<double> step(step_input const& in, next_step const& next) const {
        double const td = td_error(in.reward, options.gamma, next.value, in.action_value);
        return retrace_step(td, next.ratio, options.gamma, options.lambda);
    }
    [[nodiscard]] __device__ __forceinline__ step_output output(step_input const& in, next_step const&, double y,
                                                                double) const {
        return {y + (in.action_value - in.value), in.action_value + y};
    }
};

struct recursion_arguments {
    token_batch batch;
    value_columns values;
    advantage_outputs outputs;
    double unscored;
    recursion_report* report;
};

/// old / rollout of an active token: 1 where the engine gave no log-prob, NaN where the log ratio is not finite.
[[nodiscard]] __device__ __forceinline__ double load_ratio(recursion_arguments const& args, place p, std::uint32_t& unscored) {
    double const old = load_double(args.batch.old_log_prob, p);
    double const rollout = load_double(args.batch.rollout_log_prob, p);
    bool const missing = sentinel<double>(args.unscored).holds(rollout);
    unscored += missing ? 1 : 0;
    double const log_ratio = missing ? old : old - rollout;
    return is_nonfinite(log_ratio) ? static_cast<double>(NAN) : missing ? 1.0 : exp(log_ratio);
}

/// The later of two places counted from a row's end, of which -1 is none.
struct later_place {
    __device__ __forceinline__ int operator()(int a, int b) const { return a > b ? a : b; }
};

inline constexpr double largest_double = std::numeric_limits<double>::max();

/// Two neighbouring stretches of a scan from the end of a row. Products of ratios saturate, so that with an error of 0 they
/// give 0.
struct merge_steps {
    __device__ __forceinline__ recursion_step<double> operator()(recursion_step<double> const& later,
                                                                 recursion_step<double> const& earlier) const {
        recursion_step<double> both = compose(earlier, later);
        both.scale = truncated(both.scale, largest_double);
        return both;
    }
};

/// One block for each row: a chunk of positions at a time from the row's end, a thread for each. One scan finds each token's
/// next active one, a second composes the steps; what they carry from chunk to chunk is one token and one y.
template <int Threads, typename Recursion>
__global__ void __launch_bounds__(Threads, 4) recursion_kernel(recursion_arguments const args, Recursion const recursion) {
    using place_scan = cub::BlockScan<int, Threads, cub::BLOCK_SCAN_WARP_SCANS>;
    using step_scan = cub::BlockScan<recursion_step<double>, Threads, cub::BLOCK_SCAN_WARP_SCANS>;
    using count_reduce = cub::BlockReduce<std::uint64_t, Threads>;
    __shared__ typename place_scan::TempStorage place_storage;
    __shared__ typename step_scan::TempStorage step_storage;
    __shared__ typename count_reduce::TempStorage count_storage;
    __shared__ double values[Threads];
    __shared__ double ratios[Recursion::reads_ratio ? Threads : 1];
    token_batch const& batch = args.batch;
    int const own = static_cast<int>(threadIdx.x);
    std::int64_t tokens = 0;
    std::int64_t unscored = 0;
    std::int64_t nonfinite = 0;
    for (std::int64_t row = blockIdx.x; row < batch.rows; row += gridDim.x) {
        std::int64_t const first = batch.packed() ? batch.offsets[row] : 0;
        next_step behind{args.values.bootstrap ? load_double(args.values.bootstrap, {row, 0}) : 0, 0};
        double y_behind = 0;
        std::int64_t end = batch.packed() ? batch.offsets[row + 1] : batch.tokens;
        for (; end > first; end -= Threads) {
            place const here{row, end - 1 - own};
            bool const inside = here.position >= first;
            bool const active = inside && is_set(batch.mask, here);
            step_input in{0, 0, 0, 1};
            std::uint32_t without = 0;
            if (active) {
                in.reward = load_double(args.values.reward, here);
                in.value = load_double(args.values.value, here);
                if constexpr (Recursion::reads_action_value) {
                    in.action_value = load_double(args.values.action_value, here);
                }
                if constexpr (Recursion::reads_ratio) {
                    in.ratio = load_ratio(args, here, without);
                    ratios[own] = in.ratio;
                }
                values[own] = in.value;
            }
            int nearest = -1;
            int farthest = -1;
            place_scan(place_storage).ExclusiveScan(active ? own : -1, nearest, -1, later_place{}, farthest);
            __syncthreads();
            auto const next_at = [&](int at) {
                return at < 0 ? behind : next_step{values[at], Recursion::reads_ratio ? ratios[at] : 1};
            };
            next_step const next = next_at(nearest);
            recursion_step<double> const step = active ? recursion.step(in, next) : recursion_step<double>{};
            recursion_step<double> later;
            recursion_step<double> chunk;
            // The constant map to what the chunk behind gave comes before all steps.
            step_scan(step_storage).ExclusiveScan(step, later, recursion_step<double>{y_behind, 0}, merge_steps{}, chunk);
            step_output out{0, 0};
            if (active) {
                out = recursion.output(in, next, step(later.add), later.add);
                ++tokens;
                unscored += without;
                nonfinite += is_nonfinite(out.advantage) || is_nonfinite(out.target) ? 1 : 0;
            }
            if (inside && args.outputs.advantage) {
                store_double(args.outputs.advantage, here, out.advantage);
            }
            if (inside && args.outputs.target) {
                store_double(args.outputs.target, here, out.target);
            }
            behind = next_at(farthest);
            y_behind = chunk(y_behind);
            __syncthreads();
        }
    }
    auto const report = [&](std::int64_t* to, std::int64_t mine) {
        std::uint64_t const sum = count_reduce(count_storage).Sum(static_cast<std::uint64_t>(mine));
        if (own == 0) {
            add_to_report(to, static_cast<std::int64_t>(sum));
        }
        __syncthreads();
    };
    report(&args.report->tokens, tokens);
    report(&args.report->unscored, unscored);
    report(&args.report->nonfinite, nonfinite);
}

}  // namespace gpu::detail
ASYNCRL_END_NAMESPACE
