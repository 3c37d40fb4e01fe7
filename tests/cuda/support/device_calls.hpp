// SPDX-License-Identifier: Apache-2.0
/// @file The calls of asyncrl/cuda.cuh for code that nvcc does not compile, as a user would wrap them.
#pragma once

#include "methods.hpp"

#include <asyncrl/correction/loss_options.hpp>
#include <asyncrl/correction/loss_report.hpp>
#include <asyncrl/correction/token_batch.hpp>
#include <asyncrl/correction/totals.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace device {

using methods::method;

struct scratch {
    void* data;
    std::size_t bytes;
};

[[nodiscard]] std::size_t workspace_bytes(asyncrl::token_batch const& shape);
[[nodiscard]] cudaError_t measure(method const& m, asyncrl::token_batch const& batch, asyncrl::totals* sums, scratch room,
                                  cudaStream_t stream);
[[nodiscard]] cudaError_t policy_loss(method const& m, asyncrl::token_batch const& batch, asyncrl::totals const* sums,
                                      asyncrl::loss_outputs const& to, asyncrl::loss_report* report, scratch room,
                                      asyncrl::loss_options const& options, cudaStream_t stream);

/// policy_loss that reads columns of every type four elements at a time.
[[nodiscard]] cudaError_t policy_loss_in_fours(method const& m, asyncrl::token_batch const& batch, asyncrl::totals const* sums,
                                               asyncrl::loss_outputs const& to, asyncrl::loss_report* report, scratch room,
                                               asyncrl::loss_options const& options, cudaStream_t stream);

/// What is wrong with the arguments of the calls above; empty: nothing.
[[nodiscard]] std::string measure_refusal(method const& m, asyncrl::token_batch const& batch, asyncrl::totals const* sums,
                                          scratch room);
[[nodiscard]] std::string policy_loss_refusal(method const& m, asyncrl::token_batch const& batch, asyncrl::totals const* sums,
                                              asyncrl::loss_outputs const& to, asyncrl::loss_report const* report, scratch room,
                                              asyncrl::loss_options const& options);

/// measure_refusal of an objective with these needs.
[[nodiscard]] std::string refusal_by_needs(std::uint32_t needs, asyncrl::token_batch const& batch, asyncrl::totals const* sums,
                                           scratch room);
/// measure_refusal, and what measure gives, of an objective whose numbers lie there.
[[nodiscard]] std::string stored_refusal(void* numbers, asyncrl::token_batch const& batch, asyncrl::totals* sums, scratch room,
                                         cudaError_t& error);

/// Both calls with a grid of `blocks`, where the library chooses one by the size of the batch.
[[nodiscard]] cudaError_t both_on_grid(method const& m, asyncrl::token_batch const& batch, asyncrl::totals* sums,
                                       asyncrl::loss_outputs const& to, asyncrl::loss_report* report, scratch room,
                                       unsigned blocks, cudaStream_t stream);

[[nodiscard]] std::int64_t chunk_positions(std::int64_t size);
[[nodiscard]] std::int64_t chunks_of(std::int64_t size);
[[nodiscard]] std::int64_t most_chunks(std::int64_t size);

struct row_and_token {
    std::int64_t row;
    std::int64_t token;
};
/// Where kernels find positions of a batch of this shape.
[[nodiscard]] std::vector<row_and_token> places_of(asyncrl::token_batch const& shape,
                                                   std::vector<std::int64_t> const& positions);

/// `measure`, and then the order statistic once more by the way that large batches go: with a sample and a window.
[[nodiscard]] cudaError_t measure_by_window(method const& m, asyncrl::token_batch const& batch, asyncrl::totals* sums,
                                            scratch room, cudaStream_t stream);

/// How the last search for an order statistic in this workspace went.
struct search_state {
    bool overflowed;  ///< there were more candidates than there is room
    bool windowed;    ///< the batch was read once: the window held the rank
};
[[nodiscard]] search_state search_of(asyncrl::token_batch const& shape, scratch room);

}  // namespace device
