// SPDX-License-Identifier: Apache-2.0
/// @file The objectives of these tests, chosen at run time. One text composes them for both backends.
#pragma once

#include "docs/own_part.hpp"

#include <asyncrl/correction/objective.hpp>

#include <cstdint>

namespace methods {

enum class loss { clip, gradient, clip_tis, clip_mis, clip_own, gradient_weighted, normalised, sat, sat_tis };
inline constexpr loss every_loss[] = {loss::clip,       loss::gradient, loss::clip_tis,
                                      loss::clip_mis,   loss::clip_own, loss::gradient_weighted,
                                      loss::normalised, loss::sat,      loss::sat_tis};

enum class reduction { token_mean, token_sum, sequence_mean_token_mean, sequence_mean_token_sum };
inline constexpr reduction every_reduction[] = {reduction::token_mean, reduction::token_sum,
                                                reduction::sequence_mean_token_mean, reduction::sequence_mean_token_sum};

struct method {
    loss kind = loss::clip;
    reduction reduce = reduction::token_mean;
    bool over_kept = false;  ///< of the two means by tokens
    double constant = 3;     ///< of the two sums
    double low = 0.2;
    double high = 0.28;
    asyncrl::fraction quantile = {9, 10};
    bool interpolate = false;

    [[nodiscard]] asyncrl::detail::reduction_rule rule() const {
        auto const over = over_kept ? asyncrl::counted::kept : asyncrl::counted::active;
        switch (reduce) {
            case reduction::token_mean:
                return asyncrl::token_mean{.over = over}.rule();
            case reduction::token_sum:
                return asyncrl::token_sum{.divisor = constant}.rule();
            case reduction::sequence_mean_token_mean:
                return asyncrl::sequence_mean_token_mean{.over = over}.rule();
            case reduction::sequence_mean_token_sum:
                break;
        }
        return asyncrl::sequence_mean_token_sum{.horizon = constant}.rule();
    }
    [[nodiscard]] bool reads_old() const { return kind != loss::gradient && kind != loss::sat; }
    [[nodiscard]] bool reads_rollout() const { return kind != loss::gradient && kind != loss::clip; }
    [[nodiscard]] bool orders() const { return kind == loss::sat || kind == loss::sat_tis; }
    [[nodiscard]] bool rejects() const { return kind == loss::clip_mis || kind == loss::normalised; }
};

/// Any of the library's reductions, so that an objective is compiled once for all of them.
struct any_reduction {
    static constexpr asyncrl::role kind = asyncrl::role::reduction;
    static constexpr std::uint32_t needs = 0;

    asyncrl::detail::reduction_rule numbers;

    [[nodiscard]] asyncrl::detail::reduction_rule rule() const { return numbers; }
};

/// go(objective)
template <typename Call>
auto with_objective(method const& m, Call const& go) {
    any_reduction const reduce{m.rule()};
    asyncrl::ppo_clip const clip{.low = m.low, .high = m.high};
    asyncrl::sat_clip const sat{.low = m.low, .high = m.high, .quantile = m.quantile, .interpolate = m.interpolate};
    switch (m.kind) {
        case loss::clip:
            return go(asyncrl::make_objective(clip, reduce));
        case loss::gradient:
            return go(asyncrl::make_objective(asyncrl::policy_gradient{}, reduce));
        case loss::clip_tis:
            return go(asyncrl::make_objective(clip, asyncrl::tis{.cap = 1.5}, reduce));
        case loss::clip_mis:
            return go(asyncrl::make_objective(clip, asyncrl::mis{.low = 0.75, .high = 1.5}, reduce));
        case loss::clip_own:
            return go(asyncrl::make_objective(clip, mine::clamped_weight{.low = 0.75, .high = 1.5}, reduce));
        case loss::gradient_weighted:
            return go(asyncrl::make_objective(asyncrl::policy_gradient{}, asyncrl::importance_weight{}, reduce));
        case loss::normalised:
            return go(
                asyncrl::make_objective(clip, asyncrl::normalised_weights{}, asyncrl::mis{.low = 0.75, .high = 1.5}, reduce));
        case loss::sat:
            return go(asyncrl::make_objective(sat, asyncrl::anchor_rollout{}, reduce));
        case loss::sat_tis:
            break;
    }
    return go(asyncrl::make_objective(sat, asyncrl::tis{.cap = 1.5}, reduce));
}

}  // namespace methods
