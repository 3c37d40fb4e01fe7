// SPDX-License-Identifier: Apache-2.0
/// @file How far apart two policies are on a batch in device memory: the twin of correction/mismatch.hpp. The calls are
/// templates so that kernels are compiled only for who calls them.
#pragma once

#include <asyncrl/cuda/detail/mismatch_kernels.cuh>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

ASYNCRL_BEGIN_NAMESPACE
namespace gpu {
namespace detail {

/// Where things stand in a workspace of `mismatch`.
struct mismatch_layout {
    double* row_sums;
    mismatch_partial* partials;
    std::size_t bytes;

    explicit mismatch_layout(token_batch const& shape, void* data = nullptr) {
        carver pieces(data);
        row_sums = pieces.take<double>(shape.rows);
        partials = pieces.take<mismatch_partial>(most_chunks(shape.size()));
        bytes = pieces.used();
    }
};

/// `pair`: of the batch, as `with_pair` has it.
[[nodiscard]] inline fault fault_of_mismatch(token_batch const& pair, mismatch_report const* report, workspace const& scratch,
                                             mismatch_options const& options) {
    argument_list args;
    args.require(options.cap > 0 && std::isfinite(options.cap), "mismatch_options.cap", options.cap, "finite and > 0");
    args.require(options.low >= 0, "mismatch_options.low", options.low, ">= 0");
    args.require(options.high > options.low, "mismatch_options.high", options.high, "greater than mismatch_options.low");
    inspect_shape(args, pair);
    if (args.passed() && pair.size() > 0) {
        args.inspect_input(options.pair == policy_pair::old_rollout ? "token_batch.old_log_prob" : "token_batch.log_prob",
                           pair.old_log_prob, pair);
        args.inspect_input(options.pair == policy_pair::new_old ? "token_batch.old_log_prob" : "token_batch.rollout_log_prob",
                           pair.rollout_log_prob, pair);
        args.inspect_masks(pair);
    }
    if (args.passed()) {
        args.uses(scratch, mismatch_layout(pair).bytes, " (mismatch_workspace_bytes of this batch)");
    }
    args.writes_numbers("report", report);
    return args.first_fault();
}

/// `blocks`: the grid of the kernels over tokens and rows, on which no bit of the result depends; 0: as many as there is work
/// for.
template <int Unused = 0>
cudaError_t launch_mismatch(token_batch const& batch, mismatch_report* report, workspace scratch,
                            mismatch_options const& options, unsigned blocks, cudaStream_t stream) {
    token_batch const pair = with_pair(batch, options.pair);
    if (fault_of_mismatch(pair, report, scratch, options)) {
        return cudaErrorInvalidValue;
    }
    mismatch_layout const at(pair, scratch.data);
    auto const grid_for = [blocks](std::int64_t parts) {
        return blocks > 0 ? blocks : static_cast<unsigned>(std::max<std::int64_t>(1, std::min<std::int64_t>(parts, 2048)));
    };
    constexpr int warps = block_threads / 32;
    std::int64_t const chunks = chunks_of(pair.size());
    launcher launch(stream);
    launch(start_mismatch_kernel<block_threads>, 1, block_threads, report);
    if (chunks > 0) {
        launch(mismatch_tokens_kernel<block_threads>, grid_for(chunks), block_threads,
               device_batch(pair, mismatch_needs, vector_loads::any), chunk_positions(pair.size()),
               mismatch_bounds<float>(options), at.partials, report);
        launch(mismatch_rows_kernel<block_threads>, grid_for((pair.rows + warps - 1) / warps), block_threads, pair,
               stored_sentinel(pair), at.row_sums);
    }
    launch(finish_mismatch_kernel<block_threads>, 1, block_threads, at.partials, chunks, at.row_sums,
           chunks > 0 ? pair.rows : 0, report);
    return launch.error();
}

}  // namespace detail

/// Bytes of device memory that `mismatch` needs for a batch of this shape or a smaller one; its columns are not looked at.
/// 8 bytes a row, 176 a chunk of tokens: at most 90 KB up to 2^20 positions.
[[nodiscard]] inline std::size_t mismatch_workspace_bytes(token_batch const& shape) {
    return detail::mismatch_layout(shape).bytes;
}

/// Measures the pair on one batch into `*report` in device memory: the twin of asyncrl::mismatch.
///
/// Asynchronous on `stream`; allocates nothing, synchronises nothing and may be captured. Four launches, two reads of the two
/// log-prob columns, which are f32, bf16 or f16; any alignment and strides. The same bits on every run and for every grid, on
/// GPUs of one architecture. Counts, the histogram and the tokens' extremes equal the host's; sums agree to 4e-6 of the sum of
/// absolute values, the sequences' log ratios to 1e-12.
/// @return cudaErrorInvalidValue before anything is launched, if mismatch_refusal finds something; else what the launches gave.
template <int Unused = 0>
[[nodiscard]] cudaError_t mismatch(token_batch const& batch, mismatch_report* report, workspace scratch,
                                   mismatch_options const& options, cudaStream_t stream) {
    return detail::launch_mismatch(batch, report, scratch, options, 0, stream);
}

template <int Unused = 0>
[[nodiscard]] cudaError_t mismatch(token_batch const& batch, mismatch_report* report, workspace scratch, cudaStream_t stream) {
    return mismatch(batch, report, scratch, mismatch_options{}, stream);
}

/// What is wrong with the arguments of `mismatch`, in words that name one and its value; empty where it would launch.
[[nodiscard]] inline std::string mismatch_refusal(token_batch const& batch, mismatch_report const* report, workspace scratch,
                                                  mismatch_options const& options = {}) {
    return detail::sentence(detail::fault_of_mismatch(detail::with_pair(batch, options.pair), report, scratch, options));
}

}  // namespace gpu
ASYNCRL_END_NAMESPACE
