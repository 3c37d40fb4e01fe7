// SPDX-License-Identifier: Apache-2.0
/// @file From an oracle::method to the parts of an objective.
#pragma once

#include "runner.hpp"

namespace library {

/// What both calls share: go(objective) with the objective that has this surrogate.
template <typename Call, typename... Parts>
auto with_reduction(oracle::method const& m, Call const& go, Parts... parts) {
    auto const over = m.over_kept ? asyncrl::counted::kept : asyncrl::counted::active;
    switch (m.reduce) {
        case oracle::reduction::token_mean:
            return go(asyncrl::make_objective(parts..., asyncrl::token_mean{.over = over}));
        case oracle::reduction::token_sum:
            return go(asyncrl::make_objective(parts..., asyncrl::token_sum{.divisor = m.constant}));
        case oracle::reduction::sequence_mean_token_mean:
            return go(asyncrl::make_objective(parts..., asyncrl::sequence_mean_token_mean{.over = over}));
        case oracle::reduction::sequence_mean_token_sum:
            break;
    }
    return go(asyncrl::make_objective(parts..., asyncrl::sequence_mean_token_sum{.horizon = m.constant}));
}

template <typename Call, typename Surrogate>
auto with_weight(oracle::method const& m, Surrogate surrogate, Call const& go) {
    switch (m.correction) {
        case oracle::weight::none:
            return with_reduction(m, go, surrogate);
        case oracle::weight::importance:
            return with_reduction(m, go, surrogate, asyncrl::importance_weight{});
        case oracle::weight::truncated:
            return with_reduction(m, go, surrogate, asyncrl::tis{.cap = m.cap});
        case oracle::weight::masked:
            break;
    }
    return with_reduction(m, go, asyncrl::mis{.low = m.low, .high = m.high}, surrogate);
}

/// The arguments of both calls.
struct request {
    asyncrl::token_batch const& batch;
    asyncrl::workspace& scratch;
    executor const& execute;
};
struct loss_request : request {
    asyncrl::totals const& sums;
    asyncrl::loss_outputs const& to;
    asyncrl::loss_options const& options;
};

template <typename Surrogate>
asyncrl::totals measure_with(oracle::method const& m, Surrogate surrogate, request const& r) {
    return with_weight(m, surrogate,
                       [&](auto const& objective) { return asyncrl::measure(objective, r.batch, r.scratch, r.execute); });
}
template <typename Surrogate>
asyncrl::loss_report loss_with(oracle::method const& m, Surrogate surrogate, loss_request const& r) {
    return with_weight(m, surrogate, [&](auto const& objective) {
        return asyncrl::policy_loss(objective, r.batch, r.sums, r.to, r.scratch, r.options, r.execute);
    });
}

asyncrl::totals measure_policy_gradient(oracle::method const&, request const&);
asyncrl::loss_report loss_policy_gradient(oracle::method const&, loss_request const&);

}  // namespace library
