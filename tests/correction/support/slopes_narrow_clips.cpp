// SPDX-License-Identifier: Apache-2.0
#include "slopes.hpp"

namespace arrays {

std::vector<slope_case> narrow_clip_slopes() {
    std::vector<slope_case> all;
    add_coupled(all, "ppo_clip", asyncrl::ppo_clip{.low = 0.06, .high = 0.1});
    add_coupled(all, "sat_clip", asyncrl::sat_clip{.low = 0.2, .high = 0.2, .quantile = {1, 2}});
    // Without a tail: beside the flags of clipped_geometric_ratio, those of its narrowed bounds could not be told apart.
    add_slopes(all, "sat_clip by clipped ratios", derivative_of::the_whole,
               asyncrl::sat_clip{.low = 0.05, .high = 0.05, .quantile = {1, 1}}, asyncrl::clipped_geometric_ratio{0.15});
    return all;
}

}  // namespace arrays
