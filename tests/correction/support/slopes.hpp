// SPDX-License-Identifier: Apache-2.0
/// @file Objectives whose gradient is checked by finite differences, and of what it is the derivative.
#pragma once

#include "array_batch.hpp"

#include <string>
#include <type_traits>
#include <vector>

namespace arrays {

enum class derivative_of {
    the_whole,     ///< of the reduced loss
    its_own_term,  ///< of the token's own term, times the tokens of the sequence
    the_score,     ///< of the reduced loss with the ratio held fixed: the given anchor moves along with the new log-prob
    the_turned,    ///< ASPO: for A > 0 minus that of the reduced loss, whose ratio is turned over
};

struct slope_case {
    std::string name;
    compiled objective;
    derivative_of what = derivative_of::the_whole;
    reduction reduce = reduction::token_mean;
    bool over_kept = false;
};

inline constexpr double slope_constant = 7;

/// The objective under each reduction.
template <typename... Parts>
void add_slopes(std::vector<slope_case>& to, std::string const& name, derivative_of what, Parts... parts) {
    to.push_back({name + ", token mean", compile(asyncrl::make_objective(parts..., asyncrl::token_mean{})), what,
                  reduction::token_mean});
    to.push_back({name + ", token sum", compile(asyncrl::make_objective(parts..., asyncrl::token_sum{slope_constant})), what,
                  reduction::token_sum});
    to.push_back({name + ", sequence mean", compile(asyncrl::make_objective(parts..., asyncrl::sequence_mean_token_mean{})),
                  what, reduction::sequence_mean_token_mean});
    to.push_back({name + ", sequence sum",
                  compile(asyncrl::make_objective(parts..., asyncrl::sequence_mean_token_sum{slope_constant})), what,
                  reduction::sequence_mean_token_sum});
}

[[nodiscard]] std::vector<slope_case> narrow_clip_slopes();
[[nodiscard]] std::vector<slope_case> wide_clip_slopes();
[[nodiscard]] std::vector<slope_case> taper_slopes();
[[nodiscard]] std::vector<slope_case> score_slopes();
[[nodiscard]] std::vector<slope_case> weighted_slopes();

/// A surrogate alone and under each coupling.
template <typename Surrogate>
void add_coupled(std::vector<slope_case>& to, std::string const& name, Surrogate surrogate) {
    using asyncrl::level;
    add_slopes(to, name, derivative_of::the_whole, surrogate);
    for (level const of : {level::geometric, level::product}) {
        std::string const by = of == level::product ? " of products" : " of means";
        add_slopes(to, name + " by the ratio" + by, derivative_of::the_whole, surrogate, asyncrl::sequence_ratio{of});
        add_slopes(to, name + " by own slopes" + by, derivative_of::its_own_term, surrogate,
                   asyncrl::sequence_ratio_own_slope{of});
        add_slopes(to, name + " by shared slopes" + by, derivative_of::the_whole, surrogate,
                   asyncrl::sequence_ratio_shared_slope{of});
    }
    if constexpr (!std::is_same_v<Surrogate, asyncrl::sat_clip>) {
        add_slopes(to, name + " by clipped ratios", derivative_of::the_whole, surrogate,
                   asyncrl::clipped_geometric_ratio{0.15});
    }
}

}  // namespace arrays
