// SPDX-License-Identifier: Apache-2.0
/// @file The columns of numbers that loops over tokens read, and which needs ask for them.
#pragma once

#include <asyncrl/correction/token/token.hpp>
#include <asyncrl/correction/token_batch.hpp>

#include <cstdint>
#include <type_traits>

ASYNCRL_BEGIN_NAMESPACE
namespace detail {

enum class input : std::uint8_t {
    log_prob,
    old_log_prob,
    rollout_log_prob,
    advantage,
    anchor_log_prob,
    reference_log_prob,
    sync_log_prob,
    log_kept_mass,
    weight,
    divergence,
    score,
    staleness,  ///< made of token_batch::version
};
inline constexpr int input_count = 12;

template <input Which>
using input_c = std::integral_constant<input, Which>;

[[nodiscard]] ASYNCRL_HOST_DEVICE constexpr bool is_needed(input which, std::uint32_t needs) {
    constexpr std::uint32_t always_needed = 0;
    std::uint32_t const asked_by[] = {always_needed, reads_old,        reads_rollout, always_needed,
                                      reads_anchor,  reads_reference,  reads_sync,    reads_kept_mass,
                                      reads_weight,  reads_divergence, reads_score,   reads_version};
    std::uint32_t const by = asked_by[static_cast<int>(which)];
    return by == always_needed || (needs & by) != 0;
}

/// How many of the columns before `which` are needed: its place where only those are stored.
[[nodiscard]] ASYNCRL_HOST_DEVICE constexpr int slot_of(input which, std::uint32_t needs) {
    int count = 0;
    for (int i = 0; i < static_cast<int>(which); ++i) {
        count += is_needed(static_cast<input>(i), needs) ? 1 : 0;
    }
    return count;
}

[[nodiscard]] ASYNCRL_HOST_DEVICE constexpr int needed_inputs(std::uint32_t needs) {
    return slot_of(static_cast<input>(input_count), needs);
}

[[nodiscard]] ASYNCRL_HOST_DEVICE column const& column_of(token_batch const& batch, input which) {
    switch (which) {
        case input::log_prob:
            return batch.log_prob;
        case input::old_log_prob:
            return batch.old_log_prob;
        case input::rollout_log_prob:
            return batch.rollout_log_prob;
        case input::advantage:
            return batch.advantage;
        case input::anchor_log_prob:
            return batch.anchor_log_prob;
        case input::reference_log_prob:
            return batch.reference_log_prob;
        case input::sync_log_prob:
            return batch.sync_log_prob;
        case input::log_kept_mass:
            return batch.log_kept_mass;
        case input::weight:
            return batch.weight;
        case input::divergence:
            return batch.divergence;
        case input::score:
            return batch.score;
        default:
            return batch.version;
    }
}

/// As messages name it.
[[nodiscard]] inline char const* name_of(input which) {
    constexpr char const* names[] = {
        "token_batch.log_prob",      "token_batch.old_log_prob",    "token_batch.rollout_log_prob",
        "token_batch.advantage",     "token_batch.anchor_log_prob", "token_batch.reference_log_prob",
        "token_batch.sync_log_prob", "token_batch.log_kept_mass",   "token_batch.weight",
        "token_batch.divergence",    "token_batch.score",           "token_batch.version"};
    return names[static_cast<int>(which)];
}

/// The batch with sequences as its rows: segments where there are any.
[[nodiscard]] ASYNCRL_HOST_DEVICE token_batch sequences_of(token_batch batch) {
    if (batch.segments) {
        batch.offsets = batch.segments;
        batch.rows = batch.segment_count;
    }
    return batch;
}

/// How many versions older than the new policy; 0 where that is not known.
template <typename Integer>
[[nodiscard]] ASYNCRL_HOST_DEVICE std::int64_t staleness_of(Integer version, std::int64_t policy_version) {
    auto const sampled_by = static_cast<std::int64_t>(version);
    return sampled_by < 0 || sampled_by > policy_version ? 0 : policy_version - sampled_by;
}

}  // namespace detail
ASYNCRL_END_NAMESPACE
