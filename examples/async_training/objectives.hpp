// SPDX-License-Identifier: Apache-2.0
/// @file The losses to choose from. Free of host loops, so that a kernel's file may include it too.
#pragma once

#include <asyncrl/correction/objective.hpp>

#include <array>

enum class correction { none, tis, mis, sat, sat_tis };
inline constexpr std::array<char const*, 5> correction_names{"none", "tis", "mis", "sat", "sat-tis"};

struct loss_choice {
    correction weight;  ///< of samples by how likely they are now
    double clip_low;
    double clip_high;
};

/// Calls use(objective) with the objective that is chosen. A further correction is one more line.
template <typename Use>
auto with_objective(loss_choice const& o, Use&& use) {
    asyncrl::ppo_clip const clip{.low = o.clip_low, .high = o.clip_high};
    switch (o.weight) {
        case correction::tis:
            return use(asyncrl::make_objective(clip, asyncrl::tis{.cap = 2}, asyncrl::token_mean{}));
        case correction::mis:
            return use(asyncrl::make_objective(clip, asyncrl::mis{.low = 0.5, .high = 5}, asyncrl::token_mean{}));
        case correction::sat:  // as published: no old policy, and the tail of each minibatch by itself
            return use(asyncrl::make_objective(asyncrl::sat_clip{.low = o.clip_low, .high = o.clip_high},
                                               asyncrl::anchor_rollout{}, asyncrl::token_mean{}));
        case correction::sat_tis:
            return use(asyncrl::make_objective(asyncrl::sat_clip{.low = o.clip_low, .high = o.clip_high},
                                               asyncrl::tis{.cap = 2}, asyncrl::token_mean{}));
        case correction::none:
            break;
    }
    return use(asyncrl::make_objective(clip, asyncrl::token_mean{}));
}
