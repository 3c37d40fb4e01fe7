// SPDX-License-Identifier: Apache-2.0
#include "advantage_calls.hpp"

#include <asyncrl/cuda/advantage.cuh>

namespace device {

namespace detail = asyncrl::gpu::detail;

cudaError_t group_advantage(asyncrl::group_rewards const& rewards, asyncrl::output_column const& advantage,
                            asyncrl::group_advantage_report* report, asyncrl::group_advantage_options const& options,
                            unsigned blocks, cudaStream_t stream) {
    return blocks == 0 ? asyncrl::gpu::group_advantage(rewards, advantage, report, options, stream)
                       : detail::launch_group_advantage(rewards, advantage, options, report, blocks, stream);
}

cudaError_t gae(asyncrl::token_batch const& batch, asyncrl::value_columns const& values,
                asyncrl::advantage_outputs const& outputs, asyncrl::recursion_report* report,
                asyncrl::gae_options const& options, unsigned blocks, cudaStream_t stream) {
    return blocks == 0 ? asyncrl::gpu::gae(batch, values, outputs, report, options, stream)
                       : detail::launch_recursion<detail::gae_scan>(batch, values, outputs, options, report, blocks, stream);
}

cudaError_t vtrace(asyncrl::token_batch const& batch, asyncrl::value_columns const& values,
                   asyncrl::advantage_outputs const& outputs, asyncrl::recursion_report* report,
                   asyncrl::vtrace_options const& options, unsigned blocks, cudaStream_t stream) {
    return blocks == 0 ? asyncrl::gpu::vtrace(batch, values, outputs, report, options, stream)
                       : detail::launch_recursion<detail::vtrace_scan>(batch, values, outputs, options, report, blocks, stream);
}

cudaError_t retrace(asyncrl::token_batch const& batch, asyncrl::value_columns const& values,
                    asyncrl::advantage_outputs const& outputs, asyncrl::recursion_report* report,
                    asyncrl::retrace_options const& options, unsigned blocks, cudaStream_t stream) {
    return blocks == 0
               ? asyncrl::gpu::retrace(batch, values, outputs, report, options, stream)
               : detail::launch_recursion<detail::retrace_scan>(batch, values, outputs, options, report, blocks, stream);
}

std::string group_advantage_refusal(asyncrl::group_rewards const& rewards, asyncrl::output_column const& advantage,
                                    asyncrl::group_advantage_report const* report,
                                    asyncrl::group_advantage_options const& options) {
    return asyncrl::gpu::group_advantage_refusal(rewards, advantage, report, options);
}

std::string gae_refusal(asyncrl::token_batch const& batch, asyncrl::value_columns const& values,
                        asyncrl::advantage_outputs const& outputs, asyncrl::recursion_report const* report,
                        asyncrl::gae_options const& options) {
    return asyncrl::gpu::gae_refusal(batch, values, outputs, report, options);
}

std::string vtrace_refusal(asyncrl::token_batch const& batch, asyncrl::value_columns const& values,
                           asyncrl::advantage_outputs const& outputs, asyncrl::recursion_report const* report,
                           asyncrl::vtrace_options const& options) {
    return asyncrl::gpu::vtrace_refusal(batch, values, outputs, report, options);
}

std::string retrace_refusal(asyncrl::token_batch const& batch, asyncrl::value_columns const& values,
                            asyncrl::advantage_outputs const& outputs, asyncrl::recursion_report const* report,
                            asyncrl::retrace_options const& options) {
    return asyncrl::gpu::retrace_refusal(batch, values, outputs, report, options);
}

}  // namespace device
