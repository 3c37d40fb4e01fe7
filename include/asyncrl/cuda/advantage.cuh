// SPDX-License-Identifier: Apache-2.0
/// @file Advantages in device memory: baselines within a group of sequences, and recursions over tokens with a critic. The
/// twins of correction/advantage.hpp, whose formulas and conventions they share.
///
/// The calls are asynchronous on `stream`, allocate nothing, synchronise nothing, need no workspace and may be captured. All
/// columns, offsets and reports are device memory, of any alignment and strides; arithmetic is in double, whatever columns
/// hold. Two launches each. The same bits on every run and for every grid, on GPUs of one architecture.
#pragma once

#include <asyncrl/cuda/detail/advantage_kernels.cuh>

#include <cmath>
#include <cstdint>

ASYNCRL_BEGIN_NAMESPACE
namespace gpu {
namespace detail {

[[nodiscard]] inline bool is_valid(group_rewards const& g, output_column const& advantage,
                                   group_advantage_options const& options) {
    bool const sizes = g.offsets ? g.group_size == 0 && g.groups >= 0 && (g.groups > 0 || g.members == 0)
                                 : g.groups == 0 && g.group_size > 0 && g.members % g.group_size == 0;
    if (g.members < 0 || !sizes || !(options.epsilon >= 0) || !std::isfinite(options.epsilon)) {
        return false;
    }
    return g.members == 0 || (g.reward && is_floating(g.reward.type) && advantage && is_floating(advantage.type) &&
                              (advantage.row_stride != 0 || g.members == 1) && (!g.role || g.role.type == dtype::u8));
}

template <int Unused = 0>
cudaError_t launch_group_advantage(group_rewards const& rewards, output_column const& advantage,
                                   group_advantage_options const& options, group_advantage_report* report, unsigned blocks,
                                   cudaStream_t stream) {
    if (!is_valid(rewards, advantage, options) || report == nullptr) {
        return cudaErrorInvalidValue;
    }
    constexpr int warps = block_threads / 32;
    std::int64_t const groups = rewards.offsets ? rewards.groups : rewards.members / rewards.group_size;
    launcher launch(stream);
    launch(start_report_kernel<group_advantage_report>, 1, 1, report);
    if (groups > 0) {
        launch(group_advantage_kernel<block_threads>, grid_for((groups + warps - 1) / warps, blocks), block_threads,
               group_arguments{rewards, groups, advantage, options, report});
    }
    return launch.error();
}

[[nodiscard]] inline bool is_share(double x) {
    return x >= 0 && x <= 1;
}
[[nodiscard]] inline bool is_valid(gae_options const& o) {
    return is_share(o.gamma) && is_share(o.lambda);
}
[[nodiscard]] inline bool is_valid(vtrace_options const& o) {
    return is_share(o.gamma) && is_share(o.lambda) && o.rho_bar > 0 && o.c_bar > 0;
}
[[nodiscard]] inline bool is_valid(retrace_options const& o) {
    return is_share(o.gamma) && is_share(o.lambda);
}

template <typename Recursion>
[[nodiscard]] bool is_valid(token_batch const& batch, value_columns const& values, advantage_outputs const& outputs) {
    if (!has_valid_shape(batch)) {
        return false;
    }
    if (batch.size() == 0) {
        return true;
    }
    auto const fits = [&](column const& c) {
        return c && is_floating(c.type) && (c.type == dtype::f64) == (values.value.type == dtype::f64);
    };
    auto const is_output = [&](output_column const& c) {
        return !c || (fits(c) && (c.token_stride != 0 || batch.tokens <= 1) &&
                      (batch.packed() || c.row_stride != 0 || batch.rows <= 1));
    };
    bool const ratio = !Recursion::reads_ratio || (fits(batch.old_log_prob) && fits(batch.rollout_log_prob));
    bool const action = !Recursion::reads_action_value || fits(values.action_value);
    return fits(values.value) && fits(values.reward) && (!values.bootstrap || fits(values.bootstrap)) && ratio && action &&
           (!batch.mask || batch.mask.type == dtype::u8) && is_output(outputs.advantage) && is_output(outputs.target);
}

template <typename Recursion, typename Options>
cudaError_t launch_recursion(token_batch const& batch, value_columns const& values, advantage_outputs const& outputs,
                             Options const& options, recursion_report* report, unsigned blocks, cudaStream_t stream) {
    if (!is_valid(options) || !is_valid<Recursion>(batch, values, outputs) || report == nullptr) {
        return cudaErrorInvalidValue;
    }
    launcher launch(stream);
    launch(start_report_kernel<recursion_report>, 1, 1, report);
    if (batch.size() > 0) {
        launch(recursion_kernel<block_threads, Recursion>, grid_for(batch.rows, blocks), block_threads,
               recursion_arguments{batch, values, outputs, stored_sentinel(batch), report}, Recursion{options});
    }
    return launch.error();
}

}  // namespace detail

/// Advantages of the members of groups: the twin of asyncrl::group_advantage. Three reads of the rewards, a warp for each
/// group. Where the host gives exactly 0, so does this; elsewhere sums are in another order than the host's.
///
/// Device memory cannot be looked into before the call: offsets must ascend from 0 to `members`, and a role that is none of
/// member_role's counts as excluded.
/// @return cudaErrorInvalidValue before anything is launched, where the host's call would throw or `report` is null; else what
///         the launches gave.
template <int Unused = 0>
[[nodiscard]] cudaError_t group_advantage(group_rewards const& rewards, output_column const& advantage,
                                          group_advantage_report* report, group_advantage_options const& options,
                                          cudaStream_t stream) {
    return detail::launch_group_advantage(rewards, advantage, options, report, 0, stream);
}

/// The twin of asyncrl::gae: a scan over each row, a block of threads for each, so that rows may have any length. Reads each
/// column once: 17 bytes a token of traffic over floats with a mask.
///
/// NaN and infinity in an active token reach the row's earlier outputs, as on the host; which of the two may differ.
/// @return cudaErrorInvalidValue before anything is launched, where the host's call would throw or `report` is null; else what
///         the launches gave.
template <int Unused = 0>
[[nodiscard]] cudaError_t gae(token_batch const& batch, value_columns const& values, advantage_outputs const& outputs,
                              recursion_report* report, gae_options const& options, cudaStream_t stream) {
    return detail::launch_recursion<detail::gae_scan>(batch, values, outputs, options, report, 0, stream);
}

/// The twin of asyncrl::vtrace; otherwise as `gae`, with 25 bytes a token.
template <int Unused = 0>
[[nodiscard]] cudaError_t vtrace(token_batch const& batch, value_columns const& values, advantage_outputs const& outputs,
                                 recursion_report* report, vtrace_options const& options, cudaStream_t stream) {
    return detail::launch_recursion<detail::vtrace_scan>(batch, values, outputs, options, report, 0, stream);
}

/// The twin of asyncrl::retrace; otherwise as `gae`, with 29 bytes a token.
template <int Unused = 0>
[[nodiscard]] cudaError_t retrace(token_batch const& batch, value_columns const& values, advantage_outputs const& outputs,
                                  recursion_report* report, retrace_options const& options, cudaStream_t stream) {
    return detail::launch_recursion<detail::retrace_scan>(batch, values, outputs, options, report, 0, stream);
}

}  // namespace gpu
ASYNCRL_END_NAMESPACE
