// SPDX-License-Identifier: Apache-2.0
/// @file The calls of asyncrl/cuda/mismatch.cuh for code that nvcc does not compile.
#pragma once

#include <asyncrl/correction/mismatch_report.hpp>
#include <asyncrl/correction/token_batch.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

namespace device {

[[nodiscard]] std::size_t mismatch_workspace_bytes(asyncrl::token_batch const& shape);
/// `blocks`: a grid in the place of those that the library chooses; 0: those.
[[nodiscard]] cudaError_t mismatch(asyncrl::token_batch const& batch, asyncrl::mismatch_report* report, void* room,
                                   std::size_t bytes, asyncrl::mismatch_options const& options, unsigned blocks,
                                   cudaStream_t stream);

/// What is wrong with the arguments of the call above; empty: nothing.
[[nodiscard]] std::string mismatch_refusal(asyncrl::token_batch const& batch, asyncrl::mismatch_report const* report,
                                           void* room, std::size_t bytes, asyncrl::mismatch_options const& options);

}  // namespace device
