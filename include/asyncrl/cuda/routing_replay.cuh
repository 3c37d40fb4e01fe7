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
#include <string>

ASYNCRL_BEGIN_NAMESPACE
namespace gpu {
namespace detail {

/// What both calls read, and where in the list it is.
struct noted_routing {
    int logits = -1;
    int experts = -1;
};

inline noted_routing inspect_routing(argument_list& args, matrix const& logits, expert_indices const& experts, gate_rule rule,
                                     routing_options const& options) {
    args.require(logits.rows >= 0, "logits.rows", logits.rows, ">= 0");
    args.require(logits.columns > 0 || (logits.columns == 0 && logits.rows <= 0), "logits.columns", logits.columns, ">= 1");
    args.require(experts.rows == logits.rows, "experts.rows", experts.rows, {"that of the logits, ", logits.rows});
    args.require(rule <= gate_rule::sigmoid, "gate_rule", std::int64_t{static_cast<std::uint8_t>(rule)},
                 "one of its enumerators");
    column const& bias = options.selection_bias;
    if (bias) {
        args.refuse_if(rule != gate_rule::sigmoid, "routing_options.selection_bias",
                       "is given, but only gate_rule::sigmoid has one");
        args.require_type(bias.type == dtype::f32 || bias.type == dtype::f64, bias.type, "routing_options.selection_bias",
                          "f32 or f64");
    }
    if (!args.passed() || logits.rows == 0) {
        return {};
    }
    std::int64_t const most_chosen = std::min(logits.columns, most_chosen_experts);
    args.require_present(logits.data != nullptr, "logits.data", "");
    args.require_type(is_floating(logits.type), logits.type, "logits", "f32, f64, bf16 or f16");
    args.require(logits.columns <= most_experts, "logits.columns", logits.columns, {"at most ", most_experts});
    args.require(experts.chosen >= 1 && experts.chosen <= most_chosen, "experts.chosen", experts.chosen,
                 {"in [1, ", most_chosen, "]"});
    args.require_present(experts.data != nullptr, "experts.data", "");
    args.reads("routing_options.selection_bias", bias, logits.columns, bias.token_stride);
    return {args.reads("logits.data", logits),
            args.reads("experts.data", matrix{experts.data, dtype::i32, experts.rows, experts.chosen, experts.row_stride})};
}

/// A matrix and its members, as messages name them.
struct matrix_names {
    char const* matrix;
    char const* data;
    char const* rows;
    char const* columns;
    char const* row_stride;
};

/// A matrix of `columns` numbers for each row of logits.
inline void inspect_matrix(argument_list& args, matrix const& m, matrix const& logits, std::int64_t columns,
                           matrix_names const& names) {
    args.require(m.rows == logits.rows, names.rows, m.rows, {"that of the logits, ", logits.rows});
    if (args.passed() && m.rows > 0) {
        args.require(m.columns == columns, names.columns, m.columns, {"", columns});
        args.require_present(m.data != nullptr, names.data, "");
        args.require_kind(names.matrix, m.type, "the logits have", logits.type, "both are f64, or each is f32, bf16 or f16");
    }
}
/// One to write, beside the logits or exactly over them.
inline void inspect_output_matrix(argument_list& args, output_matrix const& m, matrix const& logits, int of_logits,
                                  std::int64_t columns, matrix_names const& names) {
    inspect_matrix(args, m, logits, columns, names);
    args.require(m.row_stride >= m.columns || m.rows <= 1, names.row_stride, m.row_stride,
                 {"at least its columns, ", m.columns});
    if (args.passed() && m.rows > 0) {
        int const place = args.writes(names.data, m);
        if (m.data == logits.data && m.type == logits.type && (m.row_stride == logits.row_stride || m.rows == 1)) {
            args.allow_in_place(place, of_logits);
        }
    }
}

inline constexpr matrix_names gates_names{"gates", "gates.data", "gates.rows", "gates.columns", "gates.row_stride"};
inline constexpr matrix_names slopes_names{"gate_slopes", "gate_slopes.data", "gate_slopes.rows", "gate_slopes.columns",
                                           "gate_slopes.row_stride"};
inline constexpr matrix_names gradient_names{"gradient", "gradient.data", "gradient.rows", "gradient.columns",
                                             "gradient.row_stride"};

[[nodiscard]] inline fault fault_of_routing(matrix const& logits, expert_indices const& experts, gate_rule rule,
                                            routing_outputs const& outputs, routing_report const* report,
                                            routing_options const& options) {
    argument_list args;
    noted_routing const in = inspect_routing(args, logits, experts, rule, options);
    inspect_output_matrix(args, outputs.gates, logits, in.logits, experts.chosen, gates_names);
    if (outputs.experts != nullptr && args.passed() && logits.rows > 0) {
        args.require(outputs.experts_stride >= experts.chosen || logits.rows == 1, "routing_outputs.experts_stride",
                     outputs.experts_stride, {"at least experts.chosen, ", experts.chosen});
        int const place = args.writes("routing_outputs.experts", output_matrix{outputs.experts, dtype::i32, logits.rows,
                                                                               experts.chosen, outputs.experts_stride});
        if (outputs.experts == experts.data && (outputs.experts_stride == experts.row_stride || logits.rows == 1)) {
            args.allow_in_place(place, in.experts);
        }
    }
    args.writes_numbers("report", report);
    return args.first_fault();
}

[[nodiscard]] inline fault fault_of_routing_gradient(matrix const& logits, expert_indices const& experts, gate_rule rule,
                                                     matrix const& gate_slopes, output_matrix const& gradient,
                                                     routing_report const* report, routing_options const& options) {
    argument_list args;
    noted_routing const in = inspect_routing(args, logits, experts, rule, options);
    inspect_matrix(args, gate_slopes, logits, experts.chosen, slopes_names);
    if (args.passed() && logits.rows > 0) {
        args.reads("gate_slopes.data", gate_slopes);
    }
    inspect_output_matrix(args, gradient, logits, in.logits, logits.columns, gradient_names);
    args.writes_numbers("report", report);
    return args.first_fault();
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
    if (fault_of_routing(logits, experts, rule, outputs, report, options)) {
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
    if (fault_of_routing_gradient(logits, experts, rule, gate_slopes, gradient, report, options)) {
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
/// @return cudaErrorInvalidValue before anything is launched, if routing_replay_refusal finds something; else what the launches
///         gave.
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

/// What is wrong with the arguments of `routing_replay`, in words that name one and its value; empty where it would launch.
/// Looks at what the call itself looks at: what the host's call refuses but single experts, an address that is no multiple of
/// its elements, a null report, and outputs that overlap an input or each other. Gates may lie exactly over the logits, experts
/// exactly over the recorded ones.
[[nodiscard]] inline std::string routing_replay_refusal(matrix const& logits, expert_indices const& experts, gate_rule rule,
                                                        routing_outputs const& outputs, routing_report const* report,
                                                        routing_options const& options = {}) {
    return detail::sentence(detail::fault_of_routing(logits, experts, rule, outputs, report, options));
}
[[nodiscard]] inline std::string routing_replay_gradient_refusal(matrix const& logits, expert_indices const& experts,
                                                                 gate_rule rule, matrix const& gate_slopes,
                                                                 output_matrix const& gradient, routing_report const* report,
                                                                 routing_options const& options = {}) {
    return detail::sentence(detail::fault_of_routing_gradient(logits, experts, rule, gate_slopes, gradient, report, options));
}

}  // namespace gpu
ASYNCRL_END_NAMESPACE
