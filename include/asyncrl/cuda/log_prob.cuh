// SPDX-License-Identifier: Apache-2.0
/// @file From logits in device memory to the log-prob of the chosen tokens, log-sum-exp and entropy in one pass, and from
/// gradients of those back to the logits in another, in place if wanted.
#pragma once

#include <asyncrl/cuda/detail/softmax_kernels.cuh>

#include <algorithm>
#include <cstdint>
#include <string>

ASYNCRL_BEGIN_NAMESPACE
namespace gpu {
namespace detail {

/// What both calls read. Gives the place of the logits in the list.
inline int inspect_rows(argument_list& args, matrix const& logits, token_ids targets, log_prob_options const& options) {
    args.require(logits.rows >= 0, "logits.rows", logits.rows, ">= 0");
    args.require(logits.columns > 0 || logits.rows == 0, "logits.columns", logits.columns, ">= 1");
    args.require(options.temperature >= 1e-30 && options.temperature <= 1e30, "log_prob_options.temperature",
                 options.temperature, "> 0 and finite (1e-30 to 1e30)");
    inspect_flags(args, options.mask, "log_prob_options.mask");
    if (!args.passed() || logits.rows == 0) {
        return -1;
    }
    args.require_present(logits.data != nullptr, "logits.data", "");
    args.require_type(is_narrow_floating(logits.type), logits.type, "logits", "f32, bf16 or f16");
    int const of_logits = args.reads("logits.data", logits);
    args.require_present(static_cast<bool>(targets), "targets", "");
    args.reads("targets", targets.in_memory(), logits.rows, 1);
    args.reads("log_prob_options.mask", options.mask, logits.rows, options.mask.token_stride);
    if (options.support.offsets) {
        args.require_present(static_cast<bool>(options.support.ids), "support.ids", "there are support.offsets");
        args.reads("support.offsets", options.support.offsets.in_memory(), logits.rows + 1, 1);
        args.reads("support.ids", options.support.ids.in_memory(), 1, 1);  // how many they are, offsets tell
    }
    return of_logits;
}

/// One number a row.
inline void inspect_row_input(argument_list& args, char const* name, column const& c, std::int64_t rows) {
    if (c) {
        args.require_type(is_floating(c.type), c.type, name, "f32, f64, bf16 or f16");
        args.reads(name, c, rows, c.token_stride);
    }
}
inline void inspect_row_output(argument_list& args, char const* name, output_column const& c, std::int64_t rows) {
    if (c) {
        args.require_type(c.type == dtype::f32 || c.type == dtype::f64, c.type, name, "f32 or f64");
        args.refuse_if(c.token_stride == 0 && rows > 1, name,
                       "has a stride of 0: an output needs an element of its own for every row");
        args.writes(name, c, rows, c.token_stride);
    }
}

[[nodiscard]] inline fault fault_of_log_prob(matrix const& logits, token_ids targets, log_prob_outputs const& outputs,
                                             log_prob_report const* report, log_prob_options const& options) {
    argument_list args;
    inspect_rows(args, logits, targets, options);
    if (args.passed() && logits.rows > 0) {
        inspect_row_output(args, "log_prob_outputs.log_prob", outputs.log_prob, logits.rows);
        inspect_row_output(args, "log_prob_outputs.log_sum_exp", outputs.log_sum_exp, logits.rows);
        inspect_row_output(args, "log_prob_outputs.entropy", outputs.entropy, logits.rows);
    }
    args.writes_numbers("report", report);
    return args.first_fault();
}

/// The gradient lies over the logits, or provably apart from them.
inline void inspect_gradient(argument_list& args, matrix const& logits, int of_logits, output_matrix const& gradient) {
    args.require(gradient.columns == logits.columns, "gradient.columns", gradient.columns, {"", logits.columns});
    args.require_present(gradient.data != nullptr, "gradient.data", "");
    args.require_type(is_narrow_floating(gradient.type), gradient.type, "gradient", "f32, bf16 or f16");
    args.require(gradient.rows == 1 || gradient.row_stride >= gradient.columns, "gradient.row_stride", gradient.row_stride,
                 {"at least gradient.columns, ", gradient.columns});
    int const of_gradient = args.writes("gradient.data", gradient);
    if (!args.passed()) {
        return;
    }
    if (gradient.data == logits.data && gradient.type == logits.type &&
        (gradient.row_stride == logits.row_stride || logits.rows == 1)) {
        args.allow_in_place(of_gradient, of_logits);
    } else if (auto const is = footprint_of(gradient).to(footprint_of(logits)); is != footprint::relation::apart) {
        args.refuse_if(is == footprint::relation::unknown, "gradient.data",
                       "lies among the logits: rows that alternate with theirs must have their stride in bytes");
        args.refuse_overlap("gradient.data", "logits.data", ", or have its address, dtype and row stride");
    }
}

[[nodiscard]] inline fault fault_of_log_prob_gradient(matrix const& logits, token_ids targets, log_prob_outputs const& saved,
                                                      log_prob_slopes const& slopes, output_matrix const& gradient,
                                                      log_prob_report const* report, log_prob_options const& options) {
    argument_list args;
    int const of_logits = inspect_rows(args, logits, targets, options);
    args.require(gradient.rows == logits.rows, "gradient.rows", gradient.rows, {"that of the logits, ", logits.rows});
    if (args.passed() && logits.rows > 0) {
        inspect_gradient(args, logits, of_logits, gradient);
        inspect_row_input(args, "log_prob_slopes.log_prob", slopes.log_prob, logits.rows);
        inspect_row_input(args, "log_prob_slopes.entropy", slopes.entropy, logits.rows);
        args.require_present(static_cast<bool>(saved.log_sum_exp), "saved.log_sum_exp", "the gradient needs it");
        inspect_row_input(args, "saved.log_sum_exp", saved.log_sum_exp, logits.rows);
        args.require_present(saved.entropy || !slopes.entropy, "saved.entropy", "the gradient of the entropy needs it");
        inspect_row_input(args, "saved.entropy", slopes.entropy ? saved.entropy : output_column{}, logits.rows);
    }
    args.writes_numbers("report", report);
    return args.first_fault();
}

[[nodiscard]] inline softmax_arguments arguments_of(matrix const& logits, token_ids targets, log_prob_options const& options,
                                                    log_prob_report* report) {
    double const inverse = 1 / options.temperature;
    auto const scale = static_cast<float>(inverse * 1.44269504088896340736);
    return {logits, targets, options.mask, options.support, options.temperature, inverse, scale, report};
}

/// Calls launch with a null pointer to the element type.
template <typename Launch>
void with_element(dtype type, Launch const& launch) {
    if (type == dtype::f32) {
        launch(static_cast<float*>(nullptr));
    } else if (type == dtype::bf16) {
        launch(static_cast<__nv_bfloat16*>(nullptr));
    } else {
        launch(static_cast<__half*>(nullptr));
    }
}

/// A block for each row, so that the hardware spreads rows of unequal cost. No bit depends on it.
[[nodiscard]] inline unsigned row_blocks(std::int64_t rows) {
    return static_cast<unsigned>(std::min<std::int64_t>(rows, 1 << 20));
}

/// `blocks`: the grid; 0: as the library has it. A template, so that who does not call it compiles none of its kernels.
template <int Unused = 0>
cudaError_t launch_log_prob(matrix const& logits, token_ids targets, log_prob_outputs const& outputs, log_prob_report* report,
                            log_prob_options const& options, unsigned blocks, cudaStream_t stream) {
    if (fault_of_log_prob(logits, targets, outputs, report, options)) {
        return cudaErrorInvalidValue;
    }
    launcher launch(stream);
    launch(start_rows_kernel<>, 1, 1, report);
    if (logits.rows > 0) {
        with_element(logits.type, [&](auto* element) {
            using type = std::remove_pointer_t<decltype(element)>;
            launch(log_prob_kernel<block_threads, type>, blocks > 0 ? blocks : row_blocks(logits.rows), block_threads,
                   arguments_of(logits, targets, options, report), outputs);
        });
    }
    return launch.error();
}

template <int Unused = 0>
cudaError_t launch_log_prob_gradient(matrix const& logits, token_ids targets, log_prob_outputs const& saved,
                                     log_prob_slopes const& slopes, output_matrix const& gradient, log_prob_report* report,
                                     log_prob_options const& options, unsigned blocks, cudaStream_t stream) {
    if (fault_of_log_prob_gradient(logits, targets, saved, slopes, gradient, report, options)) {
        return cudaErrorInvalidValue;
    }
    launcher launch(stream);
    launch(start_rows_kernel<>, 1, 1, report);
    if (logits.rows > 0) {
        with_element(logits.type, [&](auto* element) {
            using type = std::remove_pointer_t<decltype(element)>;
            gradient_arguments const args{arguments_of(logits, targets, options, report), saved.log_sum_exp, saved.entropy,
                                          slopes, gradient};
            launch(log_prob_gradient_kernel<block_threads, type>, blocks > 0 ? blocks : row_blocks(logits.rows), block_threads,
                   args);
        });
    }
    return launch.error();
}

}  // namespace detail

/// Log-prob, log-sum-exp and entropy of each row of logits [rows, vocabulary] in device memory: the twin of
/// asyncrl::log_prob, with the report in device memory.
///
/// Asynchronous on `stream`; needs no workspace, allocates nothing, synchronises nothing and may be captured. Two launches.
/// Logits are f32, bf16 or f16, of any row stride; each is read once, in vectors of 16 bytes where the row begins at a
/// multiple of 16. Outputs are f32 or f64; values agree with the host's to 4e-6 relative + 1e-7. The bits of a row depend on
/// its logits alone: not on the grid, on its place in the batch or on its alignment, on GPUs of one architecture.
///
/// The device cannot throw. A row whose target, or a support id, is outside the vocabulary, or whose support does not ascend,
/// is NaN in all outputs and counted as nonfinite. Support offsets must ascend: they are trusted.
///
/// @return cudaErrorInvalidValue before anything is launched, if log_prob_refusal finds something; else what the launches gave.
template <int Unused = 0>
[[nodiscard]] cudaError_t log_prob(matrix const& logits, token_ids targets, log_prob_outputs const& outputs,
                                   log_prob_report* report, log_prob_options const& options, cudaStream_t stream) {
    return detail::launch_log_prob(logits, targets, outputs, report, options, 0, stream);
}

/// d loss / d logits in device memory: the twin of asyncrl::log_prob_gradient, over the logits or beside them.
///
/// As `log_prob` above; each logit is read once and each element of the gradient written once, twice in a row that turns out
/// not to be finite. Rows that are masked or whose slopes are 0 are written without their logits being read. The gradient may
/// be f32, bf16 or f16 where it does not lie in the logits. A row whose target or support is not valid is NaN throughout and
/// counted as nonfinite.
///
/// @return cudaErrorInvalidValue before anything is launched, if log_prob_gradient_refusal finds something; else what the
///         launches gave.
template <int Unused = 0>
[[nodiscard]] cudaError_t log_prob_gradient(matrix const& logits, token_ids targets, log_prob_outputs const& saved,
                                            log_prob_slopes const& slopes, output_matrix const& gradient,
                                            log_prob_report* report, log_prob_options const& options, cudaStream_t stream) {
    return detail::launch_log_prob_gradient(logits, targets, saved, slopes, gradient, report, options, 0, stream);
}

/// What is wrong with the arguments of `log_prob`, in words that name one and its value; empty where it would launch. Looks at
/// what the call itself looks at: logits, targets, support ids or report are null, a type does not serve, an address is no
/// multiple of its elements, an output of several rows has a stride of 0 or overlaps an input or another output, the
/// temperature is not in [1e-30, 1e30].
[[nodiscard]] inline std::string log_prob_refusal(matrix const& logits, token_ids targets, log_prob_outputs const& outputs,
                                                  log_prob_report const* report, log_prob_options const& options = {}) {
    return detail::sentence(detail::fault_of_log_prob(logits, targets, outputs, report, options));
}

/// The same for `log_prob_gradient`: also if the gradient has another shape, rows that overlap, or shares memory with the
/// logits without having their address, type and stride, or if a saved column that is needed is absent. A gradient whose rows
/// alternate with those of the logits at another stride than theirs is refused where there are many.
[[nodiscard]] inline std::string log_prob_gradient_refusal(matrix const& logits, token_ids targets,
                                                           log_prob_outputs const& saved, log_prob_slopes const& slopes,
                                                           output_matrix const& gradient, log_prob_report const* report,
                                                           log_prob_options const& options = {}) {
    return detail::sentence(detail::fault_of_log_prob_gradient(logits, targets, saved, slopes, gradient, report, options));
}

}  // namespace gpu
ASYNCRL_END_NAMESPACE
