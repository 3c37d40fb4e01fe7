// SPDX-License-Identifier: Apache-2.0
/// @file How far apart two policies are on a batch in device memory: the twin of correction/mismatch.hpp. The calls are
/// templates so that kernels are compiled only for who calls them.
#pragma once

#include <asyncrl/cuda/detail/mismatch_kernels.cuh>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

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

[[nodiscard]] inline bool is_valid(mismatch_options const& o) {
    return o.cap > 0 && std::isfinite(o.cap) && o.low >= 0 && o.high > o.low;
}

/// `blocks`: the grid of the kernels over tokens and rows, on which no bit of the result depends; 0: as many as there is work
/// for.
template <int Unused = 0>
cudaError_t launch_mismatch(token_batch const& batch, mismatch_report* report, workspace scratch,
                            mismatch_options const& options, unsigned blocks, cudaStream_t stream) {
    token_batch const pair = with_pair(batch, options.pair);
    if (!is_valid(options) || !is_valid(pair, mismatch_needs) || report == nullptr || scratch.data == nullptr ||
        reinterpret_cast<std::uintptr_t>(scratch.data) % 256 != 0 || scratch.bytes < mismatch_layout(pair).bytes) {
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
        launch(mismatch_tokens_kernel<block_threads>, grid_for(chunks), block_threads, device_batch(pair, mismatch_needs),
               chunk_positions(pair.size()), mismatch_bounds<float>(options), at.partials, report);
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
/// @return cudaErrorInvalidValue before anything is launched, if a needed column is null or of another dtype, an option cannot
///         be meant, `report` is null, or the workspace is too small or not aligned; else what the launches gave.
template <int Unused = 0>
[[nodiscard]] cudaError_t mismatch(token_batch const& batch, mismatch_report* report, workspace scratch,
                                   mismatch_options const& options, cudaStream_t stream) {
    return detail::launch_mismatch(batch, report, scratch, options, 0, stream);
}

template <int Unused = 0>
[[nodiscard]] cudaError_t mismatch(token_batch const& batch, mismatch_report* report, workspace scratch, cudaStream_t stream) {
    return mismatch(batch, report, scratch, mismatch_options{}, stream);
}

}  // namespace gpu
ASYNCRL_END_NAMESPACE
