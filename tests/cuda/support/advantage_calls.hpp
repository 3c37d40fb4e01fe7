// SPDX-License-Identifier: Apache-2.0
/// @file The calls of asyncrl/cuda/advantage.cuh for code that nvcc does not compile. `blocks`: a grid in the place of the one
/// that the library chooses; 0: that one.
#pragma once

#include <asyncrl/correction/advantage_options.hpp>
#include <asyncrl/correction/token_batch.hpp>

#include <cuda_runtime_api.h>

#include <string>

namespace device {

[[nodiscard]] cudaError_t group_advantage(asyncrl::group_rewards const& rewards, asyncrl::output_column const& advantage,
                                          asyncrl::group_advantage_report* report,
                                          asyncrl::group_advantage_options const& options, unsigned blocks,
                                          cudaStream_t stream);
[[nodiscard]] cudaError_t gae(asyncrl::token_batch const& batch, asyncrl::value_columns const& values,
                              asyncrl::advantage_outputs const& outputs, asyncrl::recursion_report* report,
                              asyncrl::gae_options const& options, unsigned blocks, cudaStream_t stream);
[[nodiscard]] cudaError_t vtrace(asyncrl::token_batch const& batch, asyncrl::value_columns const& values,
                                 asyncrl::advantage_outputs const& outputs, asyncrl::recursion_report* report,
                                 asyncrl::vtrace_options const& options, unsigned blocks, cudaStream_t stream);
[[nodiscard]] cudaError_t retrace(asyncrl::token_batch const& batch, asyncrl::value_columns const& values,
                                  asyncrl::advantage_outputs const& outputs, asyncrl::recursion_report* report,
                                  asyncrl::retrace_options const& options, unsigned blocks, cudaStream_t stream);

/// What is wrong with the arguments of the calls above; empty: nothing.
[[nodiscard]] std::string group_advantage_refusal(asyncrl::group_rewards const& rewards,
                                                  asyncrl::output_column const& advantage,
                                                  asyncrl::group_advantage_report const* report,
                                                  asyncrl::group_advantage_options const& options);
[[nodiscard]] std::string gae_refusal(asyncrl::token_batch const& batch, asyncrl::value_columns const& values,
                                      asyncrl::advantage_outputs const& outputs, asyncrl::recursion_report const* report,
                                      asyncrl::gae_options const& options);
[[nodiscard]] std::string vtrace_refusal(asyncrl::token_batch const& batch, asyncrl::value_columns const& values,
                                         asyncrl::advantage_outputs const& outputs, asyncrl::recursion_report const* report,
                                         asyncrl::vtrace_options const& options);
[[nodiscard]] std::string retrace_refusal(asyncrl::token_batch const& batch, asyncrl::value_columns const& values,
                                          asyncrl::advantage_outputs const& outputs, asyncrl::recursion_report const* report,
                                          asyncrl::retrace_options const& options);

}  // namespace device
