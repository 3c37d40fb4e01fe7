// SPDX-License-Identifier: Apache-2.0
/// @file Gates of recorded experts in device memory, and their gradient to the router's logits: the twins of
/// correction/routing_replay.hpp.
///
/// The calls are asynchronous on `stream`, allocate nothing, synchronise nothing, need no workspace and may be captured. Two
/// launches, a warp for each row, arithmetic in double. The same bits on every run and for every grid, on GPUs of one
/// architecture. They are templates so that kernels are compiled only for who calls them.
#pragma once

#include <asyncrl/cuda/detail/routing_kernels.cuh>

#include <algorithm>
#include <cstdint>

ASYNCRL_BEGIN_NAMESPACE
namespace gpu {
namespace detail {

[[nodiscard]] inline bool is_valid(matrix const& logits, expert_indices const& experts, gate_rule rule,
                                   routing_options const& options) {
    if (logits.rows < 0 || logits.columns < 0 || experts.rows != logits.rows || rule > gate_rule::sigmoid) {
        return false;
    }
    column const& bias = options.selection_bias;
    if (bias && (rule != gate_rule::sigmoid || (bias.type != dtype::f32 && bias.type != dtype::f64))) {
        return false;
    }
    std::int64_t const most_chosen = std::min(logits.columns, most_chosen_experts);
    return logits.rows == 0 || (logits.data != nullptr && is_floating(logits.type) && logits.columns <= most_experts &&
                                experts.data != nullptr && experts.chosen >= 1 && experts.chosen <= most_chosen);
}

/// A matrix of `columns` numbers for each row of logits.
[[nodiscard]] inline bool fits(matrix const& m, matrix const& logits, std::int64_t columns) {
    return m.rows == logits.rows && (m.rows == 0 || (m.columns == columns && m.data != nullptr && is_floating(m.type) &&
                                                     (m.type == dtype::f64) == (logits.type == dtype::f64)));
}
[[nodiscard]] inline bool fits(output_matrix const& m, matrix const& logits, std::int64_t columns) {
    bool const in_place = m.type == logits.type && (m.row_stride == logits.row_stride || m.rows <= 1);
    return fits(static_cast<matrix>(m), logits, columns) && (m.row_stride >= m.columns || m.rows <= 1) &&
           (m.data != logits.data || m.rows == 0 || in_place);
}

[[nodiscard]] inline column elements_of(matrix const& m) {
    return {m.data, m.type, m.row_stride, 1};
}
[[nodiscard]] inline output_column elements_of(output_matrix const& m) {
    return {m.data, m.type, m.row_stride, 1};
}

[[nodiscard]] inline routing_arguments arguments_of(matrix const& logits, expert_indices const& experts, gate_rule rule,
                                                    routing_options const& options, routing_report* report) {
    return {elements_of(logits), experts, static_cast<std::int32_t>(logits.columns), rule, options.selection_bias, report};
}

inline constexpr int routing_warps = block_threads / 32;

template <int Unused = 0>
cudaError_t launch_routing(matrix const& logits, expert_indices const& experts, gate_rule rule, routing_outputs const& outputs,
                           routing_report* report, routing_options const& options, unsigned blocks, cudaStream_t stream) {
    bool const apart = outputs.experts == nullptr || outputs.experts_stride >= experts.chosen || logits.rows <= 1;
    if (!is_valid(logits, experts, rule, options) || !fits(outputs.gates, logits, experts.chosen) || !apart ||
        report == nullptr) {
        return cudaErrorInvalidValue;
    }
    launcher launch(stream);
    launch(start_report_kernel<routing_report>, 1, 1, report);
    if (logits.rows > 0) {
        launch(routing_kernel<block_threads>, grid_for((logits.rows + routing_warps - 1) / routing_warps, blocks),
               block_threads, arguments_of(logits, experts, rule, options, report), elements_of(outputs.gates), outputs.experts,
               outputs.experts_stride);
    }
    return launch.error();
}

template <int Unused = 0>
cudaError_t launch_routing_gradient(matrix const& logits, expert_indices const& experts, gate_rule rule,
                                    matrix const& gate_slopes, output_matrix const& gradient, routing_report* report,
                                    routing_options const& options, unsigned blocks, cudaStream_t stream) {
    if (!is_valid(logits, experts, rule, options) || !fits(gate_slopes, logits, experts.chosen) ||
        !fits(gradient, logits, logits.columns) || report == nullptr) {
        return cudaErrorInvalidValue;
    }
    launcher launch(stream);
    launch(start_report_kernel<routing_report>, 1, 1, report);
    if (logits.rows > 0) {
        launch(routing_gradient_kernel<block_threads>, grid_for((logits.rows + routing_warps - 1) / routing_warps, blocks),
               block_threads, arguments_of(logits, experts, rule, options, report), elements_of(gate_slopes),
               elements_of(gradient));
    }
    return launch.error();
}

}  // namespace detail

/// The twin of asyncrl::routing_replay, with the report in device memory. Reads a row's logits two to four times, from cache
/// after the first; a row that was not recorded once more for each chosen expert.
///
/// The device cannot throw: a row with an index outside the experts or named twice has NaN for gates and is counted as
/// nonfinite. The experts of a row whose logits are not finite and that was not recorded stay -1. With a selection bias, scores
/// that differ in their last digit may fall otherwise than on the host.
/// @return cudaErrorInvalidValue before anything is launched, where the host's call would throw for another reason or `report`
///         is null; else what the launches gave.
template <int Unused = 0>
[[nodiscard]] cudaError_t routing_replay(matrix const& logits, expert_indices const& experts, gate_rule rule,
                                         routing_outputs const& outputs, routing_report* report, routing_options const& options,
                                         cudaStream_t stream) {
    return detail::launch_routing(logits, experts, rule, outputs, report, options, 0, stream);
}

/// The twin of asyncrl::routing_replay_gradient; otherwise as `routing_replay`. `gradient` may be the logits themselves. A row
/// whose indices cannot be meant, or that was not recorded and is not finite, is NaN throughout.
template <int Unused = 0>
[[nodiscard]] cudaError_t routing_replay_gradient(matrix const& logits, expert_indices const& experts, gate_rule rule,
                                                  matrix const& gate_slopes, output_matrix const& gradient,
                                                  routing_report* report, routing_options const& options, cudaStream_t stream) {
    return detail::launch_routing_gradient(logits, experts, rule, gate_slopes, gradient, report, options, 0, stream);
}

}  // namespace gpu
ASYNCRL_END_NAMESPACE
