// SPDX-License-Identifier: Apache-2.0
/// @file Kernels for routing replay: a warp for each row of a router's logits. All in double, as on the host.
#pragma once

#include <asyncrl/correction/routing_options.hpp>
#include <asyncrl/correction/token/routing.hpp>
#include <asyncrl/correction/token/softmax.hpp>
#include <asyncrl/cuda/detail/doubles.cuh>

#include <cub/warp/warp_reduce.cuh>

#include <cmath>
#include <cstdint>

ASYNCRL_BEGIN_NAMESPACE
namespace gpu::detail {

struct routing_arguments {
    column logits;  ///< [rows, experts]
    expert_indices recorded;
    std::int32_t experts;
    gate_rule rule;
    column selection_bias;
    routing_report* report;
};

struct double_exp {
    [[nodiscard]] __device__ __forceinline__ double operator()(double x) const { return exp(x); }
};

struct adds {
    template <typename Number>
    [[nodiscard]] __device__ __forceinline__ Number operator()(Number a, Number b) const {
        return a + b;
    }
};
struct takes_larger {
    [[nodiscard]] __device__ __forceinline__ double operator()(double a, double b) const { return larger(a, b); }
};

/// An expert and what it is selected by.
struct scored_expert {
    double score;
    std::int32_t index;

    /// Of equal scores the lower index comes first.
    [[nodiscard]] __device__ __forceinline__ bool is_before(scored_expert const& other) const {
        return score > other.score || (score == other.score && index < other.index);
    }
};
struct takes_first {
    [[nodiscard]] __device__ __forceinline__ scored_expert operator()(scored_expert const& a, scored_expert const& b) const {
        return b.is_before(a) ? b : a;
    }
};
struct takes_last {
    [[nodiscard]] __device__ __forceinline__ scored_expert operator()(scored_expert const& a, scored_expert const& b) const {
        return a.is_before(b) ? b : a;
    }
};

/// What the lanes of a warp have, merged in a fixed tree, for all of them.
template <int Warps, typename Number, typename Merge>
[[nodiscard]] __device__ __forceinline__ Number over_warp(Number mine, Merge merge) {
    using reduce = cub::WarpReduce<Number>;
    __shared__ typename reduce::TempStorage storage[Warps];
    __shared__ Number result[Warps];
    int const warp = static_cast<int>(threadIdx.x) / 32;
    mine = reduce(storage[warp]).Reduce(mine, merge);
    if (threadIdx.x % 32 == 0) {
        result[warp] = mine;
    }
    __syncwarp();
    mine = result[warp];
    __syncwarp();
    return mine;
}

/// What a warp keeps of a row's chosen experts.
struct chosen_experts {
    std::int32_t index[most_chosen_experts];
    double z[most_chosen_experts];
    double slope[most_chosen_experts];  ///< of their gates
};

/// One row's experts and what their gates are made of. Loops stay rolled: what they load is of any type, and short.
template <int Warps>
class routed_row {
  public:
    /// Leaves the experts and their logits in `chosen`.
    __device__ __forceinline__ routed_row(routing_arguments const& args, std::int64_t row, chosen_experts& chosen)
        : args_(args), row_(row), chosen_(chosen), lane_(static_cast<int>(threadIdx.x) % 32) {
        read_logits();
        take_experts();
        weigh();
    }

    [[nodiscard]] __device__ __forceinline__ bool usable() const { return usable_; }
    [[nodiscard]] __device__ __forceinline__ bool valid() const { return valid_; }
    [[nodiscard]] __device__ __forceinline__ bool replayed() const { return replayed_; }
    [[nodiscard]] __device__ __forceinline__ bool differs() const { return differs_; }
    [[nodiscard]] __device__ __forceinline__ double logit(std::int32_t expert) const {
        return load_double(args_.logits, {row_, expert});
    }
    /// Of an expert with this logit.
    [[nodiscard]] __device__ __forceinline__ double gate(double z) const {
        if (!usable_) {
            return static_cast<double>(NAN);
        }
        double const weight =
            args_.rule == gate_rule::sigmoid ? sigmoid(z, double_exp{}) : bounded_log<double>(z - largest_, double_exp{}).value;
        return weight / total_;
    }

  private:
    [[nodiscard]] __device__ __forceinline__ int count() const { return static_cast<int>(args_.recorded.chosen); }
    [[nodiscard]] __device__ __forceinline__ std::int32_t recorded(int place) const {
        return args_.recorded.data[row_ * args_.recorded.row_stride + place];
    }
    [[nodiscard]] __device__ __forceinline__ scored_expert scored(std::int32_t expert) const {
        double const z = logit(expert);
        column const& bias = args_.selection_bias;
        return {bias ? sigmoid(z, double_exp{}) + load_double(bias, {0, expert}) : z, expert};
    }

    __device__ __forceinline__ void read_logits() {
        int unusable = 0;
#pragma unroll 1
        for (std::int32_t j = lane_; j < args_.experts; j += 32) {
            double const z = logit(j);
            unusable += is_unusable(z) ? 1 : 0;
            largest_ = larger(largest_, z);
        }
        usable_ = over_warp<Warps>(unusable, adds{}) == 0;
        largest_ = over_warp<Warps>(largest_, takes_larger{});
    }

    __device__ __forceinline__ void take_experts() {
        int given = 0;
        int faulty = 0;
#pragma unroll 1
        for (int k = lane_; k < count(); k += 32) {
            std::int32_t const index = recorded(k);
            given += index != -1 ? 1 : 0;
            bool fault = index < 0 || index >= args_.experts;
#pragma unroll 1
            for (int before = 0; before < k; ++before) {
                fault = fault || recorded(before) == index;
            }
            faulty += fault ? 1 : 0;
            chosen_.index[k] = index;
        }
        replayed_ = over_warp<Warps>(given, adds{}) > 0;
        valid_ = over_warp<Warps>(faulty, adds{}) == 0;
        if (!replayed_) {
            valid_ = usable_ && select_top();
        }
        usable_ = usable_ && valid_;
        __syncwarp();
#pragma unroll 1
        for (int k = lane_; k < count() && usable_; k += 32) {
            chosen_.z[k] = logit(chosen_.index[k]);
        }
        __syncwarp();
        if (replayed_ && usable_) {
            compare_with_top();
        }
    }

    /// The experts with the highest scores, one after the other. Fails where scores are NaN.
    [[nodiscard]] __device__ __forceinline__ bool select_top() {
        scored_expert last{INFINITY, -1};
#pragma unroll 1
        for (int k = 0; k < count(); ++k) {
            scored_expert best{-INFINITY, args_.experts};
#pragma unroll 1
            for (std::int32_t j = lane_; j < args_.experts; j += 32) {
                scored_expert const one = scored(j);
                best = last.is_before(one) && one.is_before(best) ? one : best;
            }
            last = over_warp<Warps>(best, takes_first{});
            if (last.index == args_.experts) {
                return false;
            }
            if (lane_ == 0) {
                chosen_.index[k] = last.index;
            }
        }
        return true;
    }

    /// The chosen are the top-k if as many experts as they are come no later than the last of them.
    __device__ __forceinline__ void compare_with_top() {
        scored_expert last{INFINITY, -1};
#pragma unroll 1
        for (int k = lane_; k < count(); k += 32) {
            last = takes_last{}(last, scored(chosen_.index[k]));
        }
        last = over_warp<Warps>(last, takes_last{});
        int no_later = 0;
#pragma unroll 1
        for (std::int32_t j = lane_; j < args_.experts; j += 32) {
            no_later += last.is_before(scored(j)) ? 0 : 1;
        }
        differs_ = over_warp<Warps>(no_later, adds{}) != count();
    }

    /// What the gates are divided by.
    __device__ __forceinline__ void weigh() {
        bool const all = args_.rule == gate_rule::softmax_of_all;
        double sum = 0;
        if (args_.rule == gate_rule::softmax_of_chosen) {
            largest_ = -INFINITY;
#pragma unroll 1
            for (int k = lane_; k < count() && usable_; k += 32) {
                largest_ = larger(largest_, chosen_.z[k]);
            }
            largest_ = over_warp<Warps>(largest_, takes_larger{});
        }
        if (args_.rule != gate_rule::sigmoid) {
            usable_ = usable_ && !is_nonfinite(largest_);
        }
#pragma unroll 1
        for (int i = lane_; i < (all ? args_.experts : count()) && usable_; i += 32) {
            double const z = all ? logit(i) : chosen_.z[i];
            sum += args_.rule == gate_rule::sigmoid ? sigmoid(z, double_exp{})
                                                    : bounded_log<double>(z - largest_, double_exp{}).value;
        }
        total_ = over_warp<Warps>(sum, adds{}) + (args_.rule == gate_rule::sigmoid ? 1e-20 : 0);
    }

    routing_arguments const& args_;
    std::int64_t row_;
    chosen_experts& chosen_;
    int lane_;
    bool usable_ = true;
    bool valid_ = true;  ///< it has experts
    bool replayed_ = true;
    bool differs_ = false;
    double largest_ = -INFINITY;
    double total_ = 0;
};

/// What a warp counted of its rows.
struct routing_counts {
    std::uint32_t replayed = 0, fallen_back = 0, differing = 0, nonfinite = 0;  ///< 32 bits: registers are few
    std::int64_t first_nonfinite = -1;

    template <int Warps>
    __device__ __forceinline__ void note(routed_row<Warps> const& routed) {
        (routed.replayed() ? replayed : fallen_back) += 1;
        differing += routed.differs() ? 1 : 0;
    }
    __device__ __forceinline__ void note_nonfinite(std::int64_t row) {
        ++nonfinite;
        first_nonfinite = first_nonfinite < 0 ? row : first_nonfinite;  // a warp's rows ascend
    }
    /// Integers: whatever the order of the warps, the report is the same.
    __device__ __forceinline__ void add_to(routing_report* report) const {
        add_to_report(&report->replayed, replayed);
        add_to_report(&report->fallen_back, fallen_back);
        add_to_report(&report->differing, differing);
        add_to_report(&report->nonfinite, nonfinite);
        if (first_nonfinite >= 0) {
            // As unsigned numbers, so that -1 (none) is larger than any row.
            atomicMin(reinterpret_cast<unsigned long long*>(&report->first_nonfinite),
                      static_cast<unsigned long long>(first_nonfinite));
        }
    }
};

template <int Threads>
__global__ void __launch_bounds__(Threads) routing_kernel(routing_arguments const args, output_column const gates,
                                                          std::int32_t* experts, std::int64_t experts_stride) {
    constexpr int warps = Threads / 32;
    __shared__ chosen_experts chosen_of[warps];
    int const warp = static_cast<int>(threadIdx.x) / 32;
    int const lane = static_cast<int>(threadIdx.x) % 32;
    chosen_experts& chosen = chosen_of[warp];
    routing_counts counts;
    for (std::int64_t row = std::int64_t{blockIdx.x} * warps + warp; row < args.recorded.rows;
         row += std::int64_t{gridDim.x} * warps) {
        routed_row<warps> const routed(args, row, chosen);
        counts.note(routed);
        if (!routed.usable()) {
            counts.note_nonfinite(row);
        }
#pragma unroll 1
        for (int k = lane; k < static_cast<int>(args.recorded.chosen); k += 32) {
            store_double(gates, {row, k}, routed.gate(routed.usable() ? chosen.z[k] : 0));
            if (experts != nullptr) {
                experts[row * experts_stride + k] = chosen.index[k];
            }
        }
        __syncwarp();
    }
    if (lane == 0) {
        counts.add_to(args.report);
    }
}

template <int Threads>
__global__ void __launch_bounds__(Threads, 2)
    routing_gradient_kernel(routing_arguments const args, column const gate_slopes, output_column const gradient) {
    constexpr int warps = Threads / 32;
    __shared__ chosen_experts chosen_of[warps];
    int const warp = static_cast<int>(threadIdx.x) / 32;
    int const lane = static_cast<int>(threadIdx.x) % 32;
    chosen_experts& chosen = chosen_of[warp];
    int const count = static_cast<int>(args.recorded.chosen);
    routing_counts counts;
    for (std::int64_t row = std::int64_t{blockIdx.x} * warps + warp; row < args.recorded.rows;
         row += std::int64_t{gridDim.x} * warps) {
        int nonzero = 0;
        int bad = 0;
#pragma unroll 1
        for (int k = lane; k < count; k += 32) {
            double const u = load_double(gate_slopes, {row, k});
            chosen.slope[k] = u;
            nonzero += u == 0 ? 0 : 1;
            bad += is_nonfinite(u) ? 1 : 0;
        }
        if (over_warp<warps>(nonzero, adds{}) == 0) {
#pragma unroll 1
            for (std::int32_t j = lane; j < args.experts; j += 32) {
                store_double(gradient, {row, j}, 0);
            }
            continue;
        }
        routed_row<warps> const routed(args, row, chosen);
        counts.note(routed);
        bool const finite = over_warp<warps>(bad, adds{}) == 0 && routed.usable();
        double mean = 0;
#pragma unroll 1
        for (int k = lane; k < count && finite; k += 32) {
            mean += routed.gate(chosen.z[k]) * chosen.slope[k];
        }
        mean = over_warp<warps>(mean, adds{});
        if (!finite) {
            counts.note_nonfinite(row);
        }
        double const nothing = finite ? 0 : static_cast<double>(NAN);
        bool const pushed = args.rule == gate_rule::softmax_of_all;
#pragma unroll 1
        for (std::int32_t j = lane; j < args.experts; j += 32) {
            double slope = routed.valid() ? 0 : nothing;
            if (pushed) {
                slope = nothing + gate_gradient(routed.gate(routed.logit(j)), 1.0, 0.0, mean);
            }
            store_double(gradient, {row, j}, slope);
        }
        __syncwarp();  // the chosen experts' places are written once more, by other lanes
#pragma unroll 1
        for (int k = lane; k < count && routed.valid(); k += 32) {
            double slope = nothing;
            if (finite) {
                double const z = chosen.z[k];
                double const log_slope = args.rule == gate_rule::sigmoid ? sigmoid(-z, double_exp{}) : 1.0;
                slope = gate_gradient(routed.gate(z), log_slope, chosen.slope[k], mean);
            }
            store_double(gradient, {row, chosen.index[k]}, slope);
        }
        __syncwarp();
    }
    if (lane == 0) {
        counts.add_to(args.report);
    }
}

}  // namespace gpu::detail
ASYNCRL_END_NAMESPACE
