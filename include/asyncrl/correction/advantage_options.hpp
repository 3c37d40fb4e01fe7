// SPDX-License-Identifier: Apache-2.0
/// @file What the advantage calls read, what they are told, where they write and what they report.
#pragma once

#include <asyncrl/config.hpp>
#include <asyncrl/correction/token_batch.hpp>
#include <asyncrl/fwd.hpp>

#include <cstdint>

ASYNCRL_BEGIN_NAMESPACE

template <>
struct dtype_of<member_role> {
    static constexpr dtype value = dtype::u8;
};

/// One element per member of a group, densely. `per_sequence` then hands the written ones to a token_batch.
template <typename Element>
[[nodiscard]] constexpr column per_member(Element const* data) {
    return {data, dtype_of<Element>::value, 1, 0};
}
template <typename Element>
[[nodiscard]] constexpr output_column per_member(Element* data) {
    return {data, dtype_of<Element>::value, 1, 0};
}

/// The sequences that answer the same prompts. Those of a group are neighbours; column elements stand at data[i * row_stride].
struct group_rewards {
    std::int64_t members = 0;     ///< of all groups
    std::int64_t group_size = 0;  ///< members of every group; 0 where offsets tell
    std::int64_t groups = 0;      ///< with offsets only
    row_offsets offsets{};        ///< groups + 1 ascending numbers from 0 to `members`: groups of any size, or empty

    column reward{};
    column role{};  ///< u8, a member_role: 0 trained, 1 baseline only, 2 excluded; absent: all are trained
};

/// What a member's reward is compared with.
enum class group_baseline : std::uint8_t {
    mean,           ///< of the group, the member included
    leave_one_out,  ///< of the others: RLOO (Ahmadian et al., arXiv 2402.14740). n / (n - 1) times the difference to the mean
};

/// The standard deviation that the difference is divided by.
enum class group_deviation : std::uint8_t {
    none,        ///< with the mean: Dr. GRPO (Liu et al., arXiv 2503.20783)
    population,  ///< sqrt(sum of squares / n)
    unbiased,    ///< sqrt(sum of squares / (n - 1)): what verl and TRL divide by
};

/// The default is GRPO (Shao et al., arXiv 2402.03300), which leaves the kind of deviation open.
struct group_advantage_options {
    group_baseline baseline = group_baseline::mean;
    group_deviation deviation = group_deviation::unbiased;
    double epsilon = 1e-6;  ///< added to the deviation, >= 0; without effect where there is none
};

/// Plain counts, merged by `+=` or by one all-reduce. Each member is in exactly one of the last four.
struct group_advantage_report {
    std::int64_t groups = 0;
    std::int64_t degenerate = 0;  ///< with trained members, to whom the group says nothing: see group_advantage
    std::int64_t untrained = 0;   ///< without a trained member
    std::int64_t trained = 0;
    std::int64_t baseline_only = 0;
    std::int64_t excluded = 0;   ///< by their role
    std::int64_t nonfinite = 0;  ///< excluded because the reward is NaN or infinite

    group_advantage_report& operator+=(group_advantage_report const& other) {
        groups += other.groups;
        degenerate += other.degenerate;
        untrained += other.untrained;
        trained += other.trained;
        baseline_only += other.baseline_only;
        excluded += other.excluded;
        nonfinite += other.nonfinite;
        return *this;
    }
};

/// What a critic and its environment say about the tokens of a token_batch.
struct value_columns {
    column reward{};        ///< r_t, per token
    column value{};         ///< V of the state in which token t was sampled, per token
    column action_value{};  ///< `retrace` only: Q of that state and token t, per token; `value` is then its mean under the old
                            ///< policy
    column bootstrap{};     ///< V of the state behind a row's last active token, per sequence; absent: 0, every row has ended
};

struct advantage_outputs {
    output_column advantage{};  ///< per token, for the policy
    output_column target{};     ///< per token, for the critic
};

/// Counts of one call, merged by addition.
struct recursion_report {
    std::int64_t tokens = 0;     ///< active
    std::int64_t unscored = 0;   ///< of those, without a rollout log-prob: their ratio is 1
    std::int64_t nonfinite = 0;  ///< of those, with an advantage or target that is NaN or infinite
};

struct gae_options {
    double gamma = 1;   ///< discount of one active token, in [0, 1]
    double lambda = 1;  ///< in [0, 1]; 0: one step, 1: the whole row
};

struct vtrace_options {
    double gamma = 1;    ///< discount of one active token, in [0, 1]
    double lambda = 1;   ///< in [0, 1]
    double rho_bar = 1;  ///< bound on the ratios that weigh the errors, > 0; infinity: none. Decides what v converges to
    double c_bar = 1;    ///< bound on the ratios that carry them back, > 0; infinity: none. Decides how fast
};

struct retrace_options {
    double gamma = 1;   ///< discount of one active token, in [0, 1]
    double lambda = 1;  ///< in [0, 1]
};

ASYNCRL_END_NAMESPACE
