// SPDX-License-Identifier: Apache-2.0
/// @file Advantages: baselines within a group of sequences (GRPO, Dr. GRPO, RLOO), and recursions over tokens with a critic
/// (GAE, V-trace, Retrace). Sums and recursions are in double, whatever the columns hold.
#pragma once

#include <asyncrl/correction/advantage_options.hpp>
#include <asyncrl/correction/detail/check_batch.hpp>
#include <asyncrl/correction/detail/recursion_loop.hpp>
#include <asyncrl/correction/token/recursion.hpp>
#include <asyncrl/correction/token_batch.hpp>
#include <asyncrl/correction/workspace.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

ASYNCRL_BEGIN_NAMESPACE

/// advantage = (reward - baseline) / (deviation + epsilon) for each trained member, and +0 for every other.
///
/// Trained and baseline-only members feed baseline and deviation. Excluded ones feed nothing, and their reward is not looked
/// at; members whose reward is not finite are excluded too. Where fewer than two members feed, or all that feed have the same
/// reward, the advantages are exactly 0 whatever epsilon is. Tokens of advantage 0 still count in a loss's denominators: mask
/// them where they should not.
///
/// Reward and advantage may have any floating dtype each. Cost: three passes over the rewards.
/// @throws std::invalid_argument naming the argument and its value, before anything is written.
inline group_advantage_report group_advantage(group_rewards const& rewards, output_column advantage,
                                              group_advantage_options const& options = {});

/// Generalized advantage estimation (Schulman et al., arXiv 1506.02438):
///
///     delta_t = r_t + gamma V_{t+1} - V_t,   A_t = delta_t + gamma lambda A_{t+1},   target_t = V_t + A_t
///
/// This and the other recursions read of the batch its shape and mask, and the log-probs where they are named.
/// A masked token is as if it were not there: t + 1 is the next active token, a reward under the mask is not paid, and both
/// outputs are +0. NaN and infinity in an active token are not hidden: they reach the row's earlier outputs, and the report.
///
/// Columns are all f64, or each is f32, bf16 or f16. Rows are the executor's tasks; nothing is allocated.
/// @throws std::invalid_argument naming what is wrong, before anything is written.
template <typename Executor = serial>
recursion_report gae(token_batch const& batch, value_columns const& values, advantage_outputs const& outputs,
                     gae_options const& options = {}, Executor const& execute = {});

/// V-trace (Espeholt et al., arXiv 1802.01561). With w_t = exp(old_log_prob - rollout_log_prob), rho_t = min(rho_bar, w_t) and
/// c_t = lambda min(c_bar, w_t):
///
///     v_t = V_t + rho_t delta_t + gamma c_t (v_{t+1} - V_{t+1}),   A_t = rho_t (r_t + gamma v_{t+1} - V_t),   target_t = v_t
///
/// A holds rho already: a loss that weighs by old / rollout once more would count it twice. A token without a rollout
/// log-prob (token_batch::unscored) has w = 1. A log ratio at hand is passed as old_log_prob, beside a rollout column that
/// repeats one 0. Otherwise as `gae`.
template <typename Executor = serial>
recursion_report vtrace(token_batch const& batch, value_columns const& values, advantage_outputs const& outputs,
                        vtrace_options const& options = {}, Executor const& execute = {});

/// Retrace(lambda) (Munos et al., arXiv 1606.02647). With w as in `vtrace`, c_t = lambda min(1, w_t) and V_t the mean of Q_t
/// under the old policy:
///
///     D_t = r_t + gamma V_{t+1} - Q_t + gamma c_{t+1} D_{t+1},   target_t = Q_t + D_t,   A_t = target_t - V_t
///
/// Otherwise as `vtrace`.
template <typename Executor = serial>
recursion_report retrace(token_batch const& batch, value_columns const& values, advantage_outputs const& outputs,
                         retrace_options const& options = {}, Executor const& execute = {});

namespace detail {

inline void check_groups(group_rewards const& g, output_column const& advantage) {
    require(g.members >= 0, "group_rewards.members", g.members, ">= 0");
    if (g.offsets) {
        require(g.group_size == 0, "group_rewards.group_size", g.group_size, "0 where there are offsets");
        require(g.groups >= 0, "group_rewards.groups", g.groups, ">= 0");
        require(g.offsets[0] == 0, "group_rewards.offsets[0]", g.offsets[0], "0");
        for (std::int64_t group = 0; group < g.groups; ++group) {
            if (g.offsets[group + 1] < g.offsets[group]) {  // the texts are made only where they are needed: they allocate
                require(false, "group_rewards.offsets[" + text(group + 1) + "]", g.offsets[group + 1],
                        "at least the offset before it, " + text(g.offsets[group]));
            }
        }
        if (g.offsets[g.groups] != g.members) {
            require(false, "group_rewards.offsets[groups]", g.offsets[g.groups], "group_rewards.members = " + text(g.members));
        }
    } else {
        require(g.groups == 0, "group_rewards.groups", g.groups, "0 where there are no offsets");
        require(g.group_size > 0, "group_rewards.group_size", g.group_size, "> 0 where there are no offsets");
        if (g.members % g.group_size != 0) {
            require(false, "group_rewards.group_size", g.group_size, "a divisor of group_rewards.members = " + text(g.members));
        }
    }
    if (g.members == 0) {
        return;
    }
    if (!g.reward || g.reward.type == dtype::u8) {
        refuse(std::string("group_rewards.reward ") + (g.reward ? "has dtype u8, must be floating" : "is absent"));
    }
    if (!advantage || advantage.type == dtype::u8) {
        refuse(std::string("advantage ") + (advantage ? "has dtype u8, must be floating" : "is absent"));
    }
    if (advantage.row_stride == 0 && g.members > 1) {
        refuse("advantage has a row stride of 0: each member needs an element of its own");
    }
    must_pass(inspect_flags, g.role, "group_rewards.role");
    for (std::int64_t i = 0; g.role && i < g.members; ++i) {
        std::int64_t const role = static_cast<std::uint8_t const*>(g.role.data)[i * g.role.row_stride];
        if (role > 2) {
            require(false, "group_rewards.role[" + text(i) + "]", role, "0 (trained), 1 (baseline only) or 2 (excluded)");
        }
    }
}

/// One member, and what it does for its group after a look at its reward.
struct group_member {
    enum kind : std::uint8_t { trained, baseline_only, excluded, nonfinite };
    kind does;
    double reward;

    group_member(group_rewards const& g, std::int64_t i)
        : does(trained), reward(read_element(g.reward, i * g.reward.row_stride)) {
        if (g.role) {
            does = static_cast<kind>(static_cast<std::uint8_t const*>(g.role.data)[i * g.role.row_stride]);
        }
        if (does != excluded && is_nonfinite(reward)) {
            does = nonfinite;
        }
    }
    [[nodiscard]] bool feeds() const { return does == trained || does == baseline_only; }
};

/// The members [first, last) of one group.
inline void advantages_of_group(group_rewards const& g, std::int64_t first, std::int64_t last, output_column const& advantage,
                                group_advantage_options const& options, group_advantage_report& report) {
    std::int64_t counts[4] = {};
    double sum = 0;
    double lowest = std::numeric_limits<double>::infinity();
    double highest = -lowest;
    for (std::int64_t i = first; i < last; ++i) {
        group_member const m(g, i);
        ++counts[m.does];
        if (m.feeds()) {
            sum += m.reward;
            lowest = std::min(lowest, m.reward);
            highest = std::max(highest, m.reward);
        }
    }
    auto const n = static_cast<double>(counts[group_member::trained] + counts[group_member::baseline_only]);
    bool const degenerate = n < 2 || lowest == highest;
    double const mean = degenerate ? 0 : sum / n;

    double divisor = 1;
    if (!degenerate && options.deviation != group_deviation::none) {
        double const largest = std::max(highest - mean, mean - lowest);  // squares of shares of it neither over- nor underflow
        double squares = 0;
        for (std::int64_t i = first; i < last; ++i) {
            group_member const m(g, i);
            double const share = m.feeds() ? (m.reward - mean) / largest : 0;
            squares += share * share;
        }
        divisor = largest * std::sqrt(squares / (options.deviation == group_deviation::unbiased ? n - 1 : n)) + options.epsilon;
    }
    double const stretch = options.baseline == group_baseline::leave_one_out ? n / (n - 1) : 1;
    for (std::int64_t i = first; i < last; ++i) {
        group_member const m(g, i);
        double const a = m.does == group_member::trained && !degenerate ? (m.reward - mean) * stretch / divisor : 0;
        write_elements(advantage.data, advantage.type, i * advantage.row_stride, 0, 1, &a);
    }

    bool const trains = counts[group_member::trained] > 0;
    report += {.groups = 1,
               .degenerate = trains && degenerate ? 1 : 0,
               .untrained = trains ? 0 : 1,
               .trained = counts[group_member::trained],
               .baseline_only = counts[group_member::baseline_only],
               .excluded = counts[group_member::excluded],
               .nonfinite = counts[group_member::nonfinite]};
}

}  // namespace detail

inline group_advantage_report group_advantage(group_rewards const& rewards, output_column advantage,
                                              group_advantage_options const& options) {
    detail::require(options.epsilon >= 0 && std::isfinite(options.epsilon), "group_advantage_options.epsilon", options.epsilon,
                    "finite and >= 0");
    detail::check_groups(rewards, advantage);
    group_advantage_report report;
    std::int64_t const groups = rewards.offsets ? rewards.groups : rewards.members / rewards.group_size;
    for (std::int64_t group = 0; group < groups; ++group) {
        std::int64_t const first = rewards.offsets ? rewards.offsets[group] : group * rewards.group_size;
        std::int64_t const last = rewards.offsets ? rewards.offsets[group + 1] : first + rewards.group_size;
        detail::advantages_of_group(rewards, first, last, advantage, options, report);
    }
    return report;
}

namespace detail {

/// Each recursion carries what it knows of the next active token: initially of the state behind the row.
struct gae_recursion {
    static constexpr bool reads_action_value = false;
    static constexpr bool reads_ratio = false;

    gae_options options;
    double next_value;
    double advantage = 0;

    gae_recursion(gae_options const& o, double bootstrap) : options(o), next_value(bootstrap) {}

    recursion_output operator()(recursion_input const& in) {
        double const td = td_error(in.reward, options.gamma, next_value, in.value);
        advantage = gae_step(td, options.gamma, options.lambda)(advantage);
        next_value = in.value;
        return {advantage, in.value + advantage};
    }
};

struct vtrace_recursion {
    static constexpr bool reads_action_value = false;
    static constexpr bool reads_ratio = true;

    vtrace_options options;
    double next_value;
    double next_target;
    double correction = 0;

    vtrace_recursion(vtrace_options const& o, double bootstrap) : options(o), next_value(bootstrap), next_target(bootstrap) {}

    recursion_output operator()(recursion_input const& in) {
        double const rho = truncated(in.ratio, options.rho_bar);
        double const td = td_error(in.reward, options.gamma, next_value, in.value);
        correction = vtrace_step(td, rho, truncated(in.ratio, options.c_bar), options.gamma, options.lambda)(correction);
        double const advantage = rho * td_error(in.reward, options.gamma, next_target, in.value);
        next_value = in.value;
        next_target = in.value + correction;
        return {advantage, next_target};
    }
};

struct retrace_recursion {
    static constexpr bool reads_action_value = true;
    static constexpr bool reads_ratio = true;

    retrace_options options;
    double next_value;
    double next_ratio = 0;
    double correction = 0;

    retrace_recursion(retrace_options const& o, double bootstrap) : options(o), next_value(bootstrap) {}

    recursion_output operator()(recursion_input const& in) {
        double const td = td_error(in.reward, options.gamma, next_value, in.action_value);
        correction = retrace_step(td, next_ratio, options.gamma, options.lambda)(correction);
        next_value = in.value;
        next_ratio = in.ratio;
        return {correction + (in.action_value - in.value), in.action_value + correction};
    }
};

inline void check_share(double x, char const* name) {
    require(x >= 0 && x <= 1, name, x, "in [0, 1]");
}

template <typename Recursion, typename Options, typename Executor>
recursion_report run_recursions(token_batch const& batch, value_columns const& values, advantage_outputs const& outputs,
                                Options const& options, Executor const& execute) {
    check_shape(batch);
    if (batch.size() == 0) {
        return {};
    }
    auto const check = [&](column const& c, char const* name) { check_recursion_column(c, name, values); };
    check(values.value, "value_columns.value");
    check(values.reward, "value_columns.reward");
    if (values.bootstrap) {
        check(values.bootstrap, "value_columns.bootstrap");
    }
    if constexpr (Recursion::reads_action_value) {
        check(values.action_value, "value_columns.action_value");
    }
    if constexpr (Recursion::reads_ratio) {
        check(batch.old_log_prob, "token_batch.old_log_prob");
        check(batch.rollout_log_prob, "token_batch.rollout_log_prob");
    }
    must_pass(inspect_flags, batch.mask, "token_batch.mask");
    check_recursion_output(outputs.advantage, "advantage_outputs.advantage", batch, values);
    check_recursion_output(outputs.target, "advantage_outputs.target", batch, values);

    std::atomic<std::int64_t> tokens{0};
    std::atomic<std::int64_t> unscored{0};
    std::atomic<std::int64_t> nonfinite{0};
    auto const task = [&](std::int64_t row) {
        double const bootstrap = values.bootstrap ? read_element(values.bootstrap, row * values.bootstrap.row_stride) : 0;
        recursion_report of_row;
        run_recursion(batch, values, outputs, row, Recursion(options, bootstrap), of_row);
        tokens += of_row.tokens;
        unscored += of_row.unscored;
        nonfinite += of_row.nonfinite;
    };
    execute(batch.rows, task_ref(task));
    return {tokens, unscored, nonfinite};
}

}  // namespace detail

template <typename Executor>
recursion_report gae(token_batch const& batch, value_columns const& values, advantage_outputs const& outputs,
                     gae_options const& options, Executor const& execute) {
    detail::check_share(options.gamma, "gae_options.gamma");
    detail::check_share(options.lambda, "gae_options.lambda");
    return detail::run_recursions<detail::gae_recursion>(batch, values, outputs, options, execute);
}

template <typename Executor>
recursion_report vtrace(token_batch const& batch, value_columns const& values, advantage_outputs const& outputs,
                        vtrace_options const& options, Executor const& execute) {
    detail::check_share(options.gamma, "vtrace_options.gamma");
    detail::check_share(options.lambda, "vtrace_options.lambda");
    detail::require(options.rho_bar > 0, "vtrace_options.rho_bar", options.rho_bar, "> 0");
    detail::require(options.c_bar > 0, "vtrace_options.c_bar", options.c_bar, "> 0");
    return detail::run_recursions<detail::vtrace_recursion>(batch, values, outputs, options, execute);
}

template <typename Executor>
recursion_report retrace(token_batch const& batch, value_columns const& values, advantage_outputs const& outputs,
                         retrace_options const& options, Executor const& execute) {
    detail::check_share(options.gamma, "retrace_options.gamma");
    detail::check_share(options.lambda, "retrace_options.lambda");
    return detail::run_recursions<detail::retrace_recursion>(batch, values, outputs, options, execute);
}

ASYNCRL_END_NAMESPACE
