// SPDX-License-Identifier: Apache-2.0
#include "routing_replay_calls.hpp"

#include <asyncrl/cuda/routing_replay.cuh>

namespace device {

namespace detail = asyncrl::gpu::detail;

cudaError_t routing_replay(asyncrl::matrix const& logits, asyncrl::expert_indices const& experts, asyncrl::gate_rule rule,
                           asyncrl::routing_outputs const& outputs, asyncrl::routing_report* report,
                           asyncrl::routing_options const& options, unsigned blocks, cudaStream_t stream) {
    return blocks == 0 ? asyncrl::gpu::routing_replay(logits, experts, rule, outputs, report, options, stream)
                       : detail::launch_routing(logits, experts, rule, outputs, report, options, blocks, stream);
}

cudaError_t routing_replay_gradient(asyncrl::matrix const& logits, asyncrl::expert_indices const& experts,
                                    asyncrl::gate_rule rule, asyncrl::matrix const& gate_slopes,
                                    asyncrl::output_matrix const& gradient, asyncrl::routing_report* report,
                                    asyncrl::routing_options const& options, unsigned blocks, cudaStream_t stream) {
    return blocks == 0
               ? asyncrl::gpu::routing_replay_gradient(logits, experts, rule, gate_slopes, gradient, report, options, stream)
               : detail::launch_routing_gradient(logits, experts, rule, gate_slopes, gradient, report, options, blocks, stream);
}

std::string routing_replay_refusal(asyncrl::matrix const& logits, asyncrl::expert_indices const& experts,
                                   asyncrl::gate_rule rule, asyncrl::routing_outputs const& outputs,
                                   asyncrl::routing_report const* report, asyncrl::routing_options const& options) {
    return asyncrl::gpu::routing_replay_refusal(logits, experts, rule, outputs, report, options);
}

std::string routing_replay_gradient_refusal(asyncrl::matrix const& logits, asyncrl::expert_indices const& experts,
                                            asyncrl::gate_rule rule, asyncrl::matrix const& gate_slopes,
                                            asyncrl::output_matrix const& gradient, asyncrl::routing_report const* report,
                                            asyncrl::routing_options const& options) {
    return asyncrl::gpu::routing_replay_gradient_refusal(logits, experts, rule, gate_slopes, gradient, report, options);
}

}  // namespace device
