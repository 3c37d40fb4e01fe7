// SPDX-License-Identifier: Apache-2.0
#include "slopes.hpp"

namespace arrays {

std::vector<slope_case> wide_clip_slopes() {
    std::vector<slope_case> all;
    add_coupled(all, "importance_gradient", asyncrl::importance_gradient{});
    add_coupled(all, "dual_clip", asyncrl::dual_clip{.low = 0.1, .high = 0.1, .cap = 1.1});
    return all;
}

}  // namespace arrays
