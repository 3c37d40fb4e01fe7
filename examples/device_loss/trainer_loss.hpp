// SPDX-License-Identifier: Apache-2.0
/// @file The loss of a trainer on the GPU, for code that nvcc does not compile.
#pragma once

// [snippet: declaration]
#include <asyncrl/correction/loss_report.hpp>
#include <asyncrl/correction/token_batch.hpp>
#include <asyncrl/correction/totals.hpp>

#include <cuda_runtime_api.h>

namespace trainer {

struct device_scratch {
    void* data;
    std::size_t bytes;
};

std::size_t loss_scratch_bytes(asyncrl::token_batch const& largest);

/// PPO's clip with truncated importance weights. All memory is the device's; asynchronous on `stream`.
cudaError_t loss(asyncrl::token_batch const& batch, float* gradient, asyncrl::totals* totals, asyncrl::loss_report* report,
                 device_scratch scratch, cudaStream_t stream);

}  // namespace trainer
// [snippet: end]
