// SPDX-License-Identifier: Apache-2.0
/// @file The calls of asyncrl/cuda/routing_replay.cuh for code that nvcc does not compile. `blocks`: a grid in the place of the
/// one that the library chooses; 0: that one.
#pragma once

#include <asyncrl/correction/routing_options.hpp>

#include <cuda_runtime_api.h>

#include <string>

namespace device {

[[nodiscard]] cudaError_t routing_replay(asyncrl::matrix const& logits, asyncrl::expert_indices const& experts,
                                         asyncrl::gate_rule rule, asyncrl::routing_outputs const& outputs,
                                         asyncrl::routing_report* report, asyncrl::routing_options const& options,
                                         unsigned blocks, cudaStream_t stream);
[[nodiscard]] cudaError_t routing_replay_gradient(asyncrl::matrix const& logits, asyncrl::expert_indices const& experts,
                                                  asyncrl::gate_rule rule, asyncrl::matrix const& gate_slopes,
                                                  asyncrl::output_matrix const& gradient, asyncrl::routing_report* report,
                                                  asyncrl::routing_options const& options, unsigned blocks,
                                                  cudaStream_t stream);

/// What is wrong with the arguments of the calls above; empty: nothing.
[[nodiscard]] std::string routing_replay_refusal(asyncrl::matrix const& logits, asyncrl::expert_indices const& experts,
                                                 asyncrl::gate_rule rule, asyncrl::routing_outputs const& outputs,
                                                 asyncrl::routing_report const* report,
                                                 asyncrl::routing_options const& options);
[[nodiscard]] std::string routing_replay_gradient_refusal(asyncrl::matrix const& logits, asyncrl::expert_indices const& experts,
                                                          asyncrl::gate_rule rule, asyncrl::matrix const& gate_slopes,
                                                          asyncrl::output_matrix const& gradient,
                                                          asyncrl::routing_report const* report,
                                                          asyncrl::routing_options const& options);

}  // namespace device
