// SPDX-License-Identifier: Apache-2.0
#include "slopes.hpp"

namespace arrays {

std::vector<slope_case> taper_slopes() {
    using namespace asyncrl;
    std::vector<slope_case> all;
    add_coupled(all, "spo", spo{.epsilon = 0.2});
    add_coupled(all, "sapo", sapo{.tau_positive = 1, .tau_negative = 3});
    add_slopes(all, "drpo", derivative_of::the_whole, drpo{.delta = 0.1});
    return all;
}

}  // namespace arrays
