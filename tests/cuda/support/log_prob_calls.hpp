// SPDX-License-Identifier: Apache-2.0
/// @file The calls of asyncrl/cuda/log_prob.cuh for code that nvcc does not compile, with a grid of `blocks`; 0: the library's.
#pragma once

#include <asyncrl/correction/log_prob_options.hpp>

#include <cuda_runtime_api.h>

#include <string>

namespace device {

[[nodiscard]] cudaError_t log_prob(asyncrl::matrix const& logits, asyncrl::token_ids targets,
                                   asyncrl::log_prob_outputs const& outputs, asyncrl::log_prob_report* report,
                                   asyncrl::log_prob_options const& options, unsigned blocks, cudaStream_t stream);
[[nodiscard]] cudaError_t log_prob_gradient(asyncrl::matrix const& logits, asyncrl::token_ids targets,
                                            asyncrl::log_prob_outputs const& saved, asyncrl::log_prob_slopes const& slopes,
                                            asyncrl::output_matrix const& gradient, asyncrl::log_prob_report* report,
                                            asyncrl::log_prob_options const& options, unsigned blocks, cudaStream_t stream);

/// What is wrong with the arguments of the calls above; empty: nothing.
[[nodiscard]] std::string log_prob_refusal(asyncrl::matrix const& logits, asyncrl::token_ids targets,
                                           asyncrl::log_prob_outputs const& outputs, asyncrl::log_prob_report const* report,
                                           asyncrl::log_prob_options const& options);
[[nodiscard]] std::string log_prob_gradient_refusal(asyncrl::matrix const& logits, asyncrl::token_ids targets,
                                                    asyncrl::log_prob_outputs const& saved,
                                                    asyncrl::log_prob_slopes const& slopes,
                                                    asyncrl::output_matrix const& gradient,
                                                    asyncrl::log_prob_report const* report,
                                                    asyncrl::log_prob_options const& options);

}  // namespace device
