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
#include <string>

ASYNCRL_BEGIN_NAMESPACE
namespace gpu {
namespace detail {

[[nodiscard]] inline fault fault_of_groups(group_rewards const& g, output_column const& advantage,
                                           group_advantage_report const* report, group_advantage_options const& options) {
    argument_list args;
    args.require(options.epsilon >= 0 && std::isfinite(options.epsilon), "group_advantage_options.epsilon", options.epsilon,
                 "finite and >= 0");
    args.require(g.members >= 0, "group_rewards.members", g.members, ">= 0");
    if (g.offsets) {
        args.require(g.group_size == 0, "group_rewards.group_size", g.group_size, "0 where there are offsets");
        args.require(g.groups >= 0, "group_rewards.groups", g.groups, ">= 0");
        args.require(g.groups > 0 || g.members == 0, "group_rewards.groups", g.groups,
                     {"> 0, as group_rewards.members = ", g.members});
    } else {
        args.require(g.groups == 0, "group_rewards.groups", g.groups, "0 where there are no offsets");
        args.require(g.group_size > 0, "group_rewards.group_size", g.group_size, "> 0 where there are no offsets");
        args.require(g.group_size <= 0 || g.members % g.group_size == 0, "group_rewards.group_size", g.group_size,
                     {"a divisor of group_rewards.members = ", g.members});
    }
    if (args.passed() && g.members > 0) {
        args.require_present(static_cast<bool>(g.reward), "group_rewards.reward", "");
        args.require_type(is_floating(g.reward.type), g.reward.type, "group_rewards.reward", "f32, f64, bf16 or f16");
        args.require_present(static_cast<bool>(advantage), "advantage", "");
        args.require_type(is_floating(advantage.type), advantage.type, "advantage", "f32, f64, bf16 or f16");
        args.refuse_if(advantage.row_stride == 0 && g.members > 1, "advantage",
                       "has a row stride of 0: each member needs an element of its own");
        inspect_flags(args, g.role, "group_rewards.role");
        args.reads("group_rewards.reward", g.reward, g.members, g.reward.row_stride);
        args.reads("group_rewards.role", g.role, g.members, g.role.row_stride);
        args.writes("advantage", advantage, g.members, advantage.row_stride);
    }
    args.reads("group_rewards.offsets", g.offsets.in_memory(), g.groups + 1, 1);
    args.writes_numbers("report", report);
    return args.first_fault();
}

template <int Unused = 0>
cudaError_t launch_group_advantage(group_rewards const& rewards, output_column const& advantage,
                                   group_advantage_options const& options, group_advantage_report* report, unsigned blocks,
                                   cudaStream_t stream) {
    if (fault_of_groups(rewards, advantage, report, options)) {
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

inline void inspect_share(argument_list& args, double x, char const* name) {
    args.require(x >= 0 && x <= 1, name, x, "in [0, 1]");
}
inline void inspect_options(argument_list& args, gae_options const& o) {
    inspect_share(args, o.gamma, "gae_options.gamma");
    inspect_share(args, o.lambda, "gae_options.lambda");
}
inline void inspect_options(argument_list& args, vtrace_options const& o) {
    inspect_share(args, o.gamma, "vtrace_options.gamma");
    inspect_share(args, o.lambda, "vtrace_options.lambda");
    args.require(o.rho_bar > 0, "vtrace_options.rho_bar", o.rho_bar, "> 0");
    args.require(o.c_bar > 0, "vtrace_options.c_bar", o.c_bar, "> 0");
}
inline void inspect_options(argument_list& args, retrace_options const& o) {
    inspect_share(args, o.gamma, "retrace_options.gamma");
    inspect_share(args, o.lambda, "retrace_options.lambda");
}

inline void inspect_recursion(argument_list& args, token_batch const& batch, value_columns const& values,
                              advantage_outputs const& outputs, bool reads_ratio, bool reads_action_value) {
    inspect_shape(args, batch);
    if (!args.passed() || batch.size() == 0) {
        return;
    }
    auto const check = [&](char const* name, column const& c) {
        args.require_kind(name, c.type, "value_columns.value has", values.value.type,
                          "all columns are f64, or each is f32, bf16 or f16");
    };
    auto const needs = [&](char const* name, column const& c) {
        args.require_present(static_cast<bool>(c), name, "the recursion needs it");
        check(name, c);
        args.reads(name, c, batch);
    };
    auto const writes = [&](char const* name, output_column const& c) {
        if (c) {
            check(name, c);
            inspect_strides(args, c, name, batch);
            args.writes(name, c, batch);
        }
    };
    needs("value_columns.value", values.value);
    needs("value_columns.reward", values.reward);
    if (values.bootstrap) {
        check("value_columns.bootstrap", values.bootstrap);
        args.reads("value_columns.bootstrap", values.bootstrap, batch.rows, values.bootstrap.row_stride);
    }
    if (reads_action_value) {
        needs("value_columns.action_value", values.action_value);
    }
    if (reads_ratio) {
        needs("token_batch.old_log_prob", batch.old_log_prob);
        needs("token_batch.rollout_log_prob", batch.rollout_log_prob);
    }
    args.inspect_masks(batch);
    writes("advantage_outputs.advantage", outputs.advantage);
    writes("advantage_outputs.target", outputs.target);
}

template <typename Recursion, typename Options>
[[nodiscard]] fault fault_of_recursion(token_batch const& batch, value_columns const& values, advantage_outputs const& outputs,
                                       recursion_report const* report, Options const& options) {
    argument_list args;
    inspect_options(args, options);
    inspect_recursion(args, batch, values, outputs, Recursion::reads_ratio, Recursion::reads_action_value);
    args.writes_numbers("report", report);
    return args.first_fault();
}

template <typename Recursion, typename Options>
cudaError_t launch_recursion(token_batch const& batch, value_columns const& values, advantage_outputs const& outputs,
                             Options const& options, recursion_report* report, unsigned blocks, cudaStream_t stream) {
    if (fault_of_recursion<Recursion>(batch, values, outputs, report, options)) {
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
/// @return cudaErrorInvalidValue before anything is launched, if group_advantage_refusal finds something; else what the
/// launches
///         gave.
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
/// @return cudaErrorInvalidValue before anything is launched, if gae_refusal finds something; else what the launches gave.
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

/// What is wrong with the arguments of a call above, in words that name one and its value; empty where it would launch. Looks
/// at what the call itself looks at: what the host's call refuses, as far as it can be seen from outside device memory, an
/// address that is no multiple of what stands there, a null report, and outputs that overlap an input or each other.
[[nodiscard]] inline std::string group_advantage_refusal(group_rewards const& rewards, output_column const& advantage,
                                                         group_advantage_report const* report,
                                                         group_advantage_options const& options = {}) {
    return detail::sentence(detail::fault_of_groups(rewards, advantage, report, options));
}
[[nodiscard]] inline std::string gae_refusal(token_batch const& batch, value_columns const& values,
                                             advantage_outputs const& outputs, recursion_report const* report,
                                             gae_options const& options = {}) {
    return detail::sentence(detail::fault_of_recursion<detail::gae_scan>(batch, values, outputs, report, options));
}
[[nodiscard]] inline std::string vtrace_refusal(token_batch const& batch, value_columns const& values,
                                                advantage_outputs const& outputs, recursion_report const* report,
                                                vtrace_options const& options = {}) {
    return detail::sentence(detail::fault_of_recursion<detail::vtrace_scan>(batch, values, outputs, report, options));
}
[[nodiscard]] inline std::string retrace_refusal(token_batch const& batch, value_columns const& values,
                                                 advantage_outputs const& outputs, recursion_report const* report,
                                                 retrace_options const& options = {}) {
    return detail::sentence(detail::fault_of_recursion<detail::retrace_scan>(batch, values, outputs, report, options));
}

}  // namespace gpu
ASYNCRL_END_NAMESPACE
