// SPDX-License-Identifier: Apache-2.0
/// @file From logits in device memory to the log-prob of the chosen tokens, log-sum-exp and entropy in one pass, and from
/// gradients of those back to the logits in another, in place if wanted.
#pragma once

#include <asyncrl/cuda/detail/softmax_kernels.cuh>

#include <algorithm>
#include <cstdint>

ASYNCRL_BEGIN_NAMESPACE
namespace gpu {
namespace detail {

/// 0: neither logits nor their gradient can be of this type.
[[nodiscard]] inline std::int64_t logit_bytes(dtype type) {
    return type == dtype::f32 ? 4 : type == dtype::bf16 || type == dtype::f16 ? 2 : 0;
}

[[nodiscard]] inline std::uintptr_t address_of(void const* data) {
    return reinterpret_cast<std::uintptr_t>(data);
}

/// A matrix with rows.
[[nodiscard]] inline bool is_valid(matrix const& m) {
    std::int64_t const bytes = logit_bytes(m.type);
    return m.columns > 0 && m.data != nullptr && bytes != 0 && address_of(m.data) % static_cast<std::uintptr_t>(bytes) == 0;
}

/// A column of one number a row, which may be absent.
[[nodiscard]] inline bool is_row_input(column const& c) {
    std::uintptr_t const bytes = c.type == dtype::f64 ? 8 : static_cast<std::uintptr_t>(logit_bytes(c.type));
    return !c || (bytes != 0 && address_of(c.data) % bytes == 0);
}
[[nodiscard]] inline bool is_row_output(output_column const& c, std::int64_t rows) {
    bool const wide = c.type == dtype::f32 || c.type == dtype::f64;
    return !c || (wide && is_row_input(c) && (c.token_stride != 0 || rows == 1));
}

/// The bytes of a matrix, its gaps included.
struct byte_range {
    std::uintptr_t begin;
    std::uintptr_t end;
};
[[nodiscard]] inline byte_range bytes_of(matrix const& m) {
    std::int64_t const last = (m.rows - 1) * m.row_stride * logit_bytes(m.type);
    auto const offset = [&](std::int64_t by) { return address_of(m.data) + static_cast<std::uintptr_t>(by); };
    return {offset(std::min<std::int64_t>(last, 0)), offset(std::max<std::int64_t>(last, 0) + m.columns * logit_bytes(m.type))};
}

/// Whether no row of one lies in a row of the other. Where the rows alternate, only those of equal strides are seen to.
[[nodiscard]] inline bool are_apart(matrix const& a, matrix const& b) {
    byte_range const of_a = bytes_of(a);
    byte_range const of_b = bytes_of(b);
    if (of_a.end <= of_b.begin || of_b.end <= of_a.begin) {
        return true;
    }
    std::int64_t const stride = a.row_stride * logit_bytes(a.type);
    if (stride <= 0 || stride != b.row_stride * logit_bytes(b.type)) {
        return false;
    }
    bool const a_first = address_of(a.data) <= address_of(b.data);
    std::uintptr_t const distance = a_first ? address_of(b.data) - address_of(a.data) : address_of(a.data) - address_of(b.data);
    std::int64_t const ahead = static_cast<std::int64_t>(distance) % stride;
    std::int64_t const first = (a_first ? a : b).columns * logit_bytes((a_first ? a : b).type);
    std::int64_t const second = (a_first ? b : a).columns * logit_bytes((a_first ? b : a).type);
    return first <= ahead && ahead + second <= stride;
}

[[nodiscard]] inline bool is_gradient_of(output_matrix const& m, matrix const& logits) {
    if (m.rows != logits.rows || m.columns != logits.columns || !is_valid(m) || (m.rows > 1 && m.row_stride < m.columns)) {
        return false;
    }
    bool const in_place =
        m.data == logits.data && m.type == logits.type && (m.row_stride == logits.row_stride || logits.rows == 1);
    return in_place || are_apart(m, logits);
}

/// What both calls can see to be wrong.
[[nodiscard]] inline bool are_rows(matrix const& logits, token_ids targets, log_prob_options const& options) {
    bool const temperature = options.temperature >= 1e-30 && options.temperature <= 1e30;
    bool const mask = !options.mask || options.mask.type == dtype::u8;
    bool const support = !options.support.offsets || options.support.ids;
    return temperature && mask && logits.rows >= 0 && (logits.rows == 0 || (is_valid(logits) && targets && support));
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
    bool const writable = is_row_output(outputs.log_prob, logits.rows) && is_row_output(outputs.log_sum_exp, logits.rows) &&
                          is_row_output(outputs.entropy, logits.rows);
    if (!are_rows(logits, targets, options) || report == nullptr || (logits.rows > 0 && !writable)) {
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
    bool const readable = is_row_input(slopes.log_prob) && is_row_input(slopes.entropy) && is_row_input(saved.log_sum_exp) &&
                          is_row_input(saved.entropy) && saved.log_sum_exp && (!slopes.entropy || saved.entropy);
    if (!are_rows(logits, targets, options) || report == nullptr || gradient.rows != logits.rows ||
        (logits.rows > 0 && (!readable || !is_gradient_of(gradient, logits)))) {
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
/// @return cudaErrorInvalidValue before anything is launched, if logits, targets, support ids or report are null, a type does
///         not serve, a pointer is not aligned to its elements, an output of several rows has a stride of 0, or the
///         temperature is not in [1e-30, 1e30]; else what the launches gave.
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
/// @return cudaErrorInvalidValue also if the gradient has another shape, rows that overlap, or shares memory with the logits
///         without having their address, type and stride, or if a saved column that is needed is absent. A gradient whose rows
///         alternate with those of the logits must have their stride in bytes.
template <int Unused = 0>
[[nodiscard]] cudaError_t log_prob_gradient(matrix const& logits, token_ids targets, log_prob_outputs const& saved,
                                            log_prob_slopes const& slopes, output_matrix const& gradient,
                                            log_prob_report* report, log_prob_options const& options, cudaStream_t stream) {
    return detail::launch_log_prob_gradient(logits, targets, saved, slopes, gradient, report, options, 0, stream);
}

}  // namespace gpu
ASYNCRL_END_NAMESPACE
