// SPDX-License-Identifier: Apache-2.0
/// @file The loss of this trainer on the GPU, for code that nvcc does not compile.
#pragma once

// [snippet: declaration]
#include <asyncrl/correction/loss_report.hpp>
#include <asyncrl/correction/totals.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace trainer {

/// A batch as this trainer keeps it, on the device: dense rows of `tokens` numbers, one advantage a row.
struct device_batch {
    std::int64_t rows;
    std::int64_t tokens;
    float const* log_prob;
    float const* old_log_prob;
    float const* rollout_log_prob;
    float const* advantage;
    std::uint8_t const* mask;
};

/// What a step leaves on the device. All of it is written.
struct device_results {
    float* gradient;  ///< d loss / d log_prob, dense like the batch
    asyncrl::totals* totals;
    asyncrl::loss_report* report;
};

/// Bytes that `loss` needs as scratch, for a batch of this size or a smaller one.
std::size_t scratch_bytes(std::int64_t rows, std::int64_t tokens);

/// PPO's clip with truncated importance weights, averaged over active tokens. Asynchronous on `stream`.
cudaError_t loss(device_batch const& batch, device_results const& to, void* scratch, cudaStream_t stream);

/// What is wrong with the arguments where `loss` gives cudaErrorInvalidValue; empty: nothing.
std::string loss_refusal(device_batch const& batch, device_results const& to, void* scratch);

}  // namespace trainer
// [snippet: end]
