// SPDX-License-Identifier: Apache-2.0
#include "log_prob_calls.hpp"

#include <asyncrl/cuda/log_prob.cuh>

namespace device {

cudaError_t log_prob(asyncrl::matrix const& logits, asyncrl::token_ids targets, asyncrl::log_prob_outputs const& outputs,
                     asyncrl::log_prob_report* report, asyncrl::log_prob_options const& options, unsigned blocks,
                     cudaStream_t stream) {
    return blocks == 0 ? asyncrl::gpu::log_prob(logits, targets, outputs, report, options, stream)
                       : asyncrl::gpu::detail::launch_log_prob(logits, targets, outputs, report, options, blocks, stream);
}

cudaError_t log_prob_gradient(asyncrl::matrix const& logits, asyncrl::token_ids targets, asyncrl::log_prob_outputs const& saved,
                              asyncrl::log_prob_slopes const& slopes, asyncrl::output_matrix const& gradient,
                              asyncrl::log_prob_report* report, asyncrl::log_prob_options const& options, unsigned blocks,
                              cudaStream_t stream) {
    return blocks == 0 ? asyncrl::gpu::log_prob_gradient(logits, targets, saved, slopes, gradient, report, options, stream)
                       : asyncrl::gpu::detail::launch_log_prob_gradient(logits, targets, saved, slopes, gradient, report,
                                                                        options, blocks, stream);
}

std::string log_prob_refusal(asyncrl::matrix const& logits, asyncrl::token_ids targets,
                             asyncrl::log_prob_outputs const& outputs, asyncrl::log_prob_report const* report,
                             asyncrl::log_prob_options const& options) {
    return asyncrl::gpu::log_prob_refusal(logits, targets, outputs, report, options);
}

std::string log_prob_gradient_refusal(asyncrl::matrix const& logits, asyncrl::token_ids targets,
                                      asyncrl::log_prob_outputs const& saved, asyncrl::log_prob_slopes const& slopes,
                                      asyncrl::output_matrix const& gradient, asyncrl::log_prob_report const* report,
                                      asyncrl::log_prob_options const& options) {
    return asyncrl::gpu::log_prob_gradient_refusal(logits, targets, saved, slopes, gradient, report, options);
}

}  // namespace device
