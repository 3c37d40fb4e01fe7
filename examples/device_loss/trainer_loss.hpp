// SPDX-License-Identifier: Apache-2.0
/// @file The loss of a trainer on the GPU, for code that nvcc does not compile.
#pragma once

// [snippet: declaration]
#include <asyncrl/correction/loss_report.hpp>
#include <asyncrl/correction/token_batch.hpp>
#include <asyncrl/correction/totals.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

namespace trainer {

struct device_scratch {
    void* data;
    std::size_t bytes;
};

std::size_t loss_scratch_bytes(asyncrl::token_batch const& largest);

/// PPO's clip with truncated importance weights. All memory is the device's; asynchronous on `stream`.
cudaError_t loss(asyncrl::token_batch const& batch, float* gradient, asyncrl::totals* totals, asyncrl::loss_report* report,
                 device_scratch scratch, cudaStream_t stream);

/// What is wrong with the arguments where `loss` gives cudaErrorInvalidValue; empty: nothing.
std::string loss_refusal(asyncrl::token_batch const& batch, float* gradient, asyncrl::totals const* totals,
                         asyncrl::loss_report const* report, device_scratch scratch);

}  // namespace trainer
// [snippet: end]
