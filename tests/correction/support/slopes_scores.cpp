// SPDX-License-Identifier: Apache-2.0
#include "slopes.hpp"

namespace arrays {

using namespace asyncrl;

namespace {

template <typename Surrogate>
void add_scores(std::vector<slope_case>& to, std::string const& name, Surrogate surrogate) {
    add_slopes(to, name, derivative_of::the_score, surrogate, anchor_given{});
    for (asyncrl::level const of : {asyncrl::level::geometric, asyncrl::level::product}) {
        add_slopes(to, name + " by the ratio", derivative_of::the_score, surrogate, anchor_given{}, sequence_ratio{of});
        add_slopes(to, name + " by own slopes", derivative_of::the_score, surrogate, anchor_given{},
                   sequence_ratio_own_slope{of});
    }
}

}  // namespace

std::vector<slope_case> score_slopes() {
    std::vector<slope_case> all;
    add_scores(all, "cispo", cispo{.low = 0.1, .high = 0.1});
    add_scores(all, "topr", topr{.cap = 1.05});
    add_scores(all, "topr_by_score", topr_by_score{.cap = 1.05});
    add_scores(all, "vespo", vespo{});
    add_slopes(all, "cispo by clipped ratios", derivative_of::the_score, cispo{.low = 0.1, .high = 0.1}, anchor_given{},
               clipped_geometric_ratio{0.15});
    add_slopes(all, "policy_gradient", derivative_of::the_whole, policy_gradient{});
    add_slopes(all, "aspo", derivative_of::the_turned, aspo{});
    return all;
}

}  // namespace arrays
