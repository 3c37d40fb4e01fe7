// SPDX-License-Identifier: Apache-2.0
#include "objective_calls.hpp"

#include <asyncrl/correction/policy_loss.hpp>

namespace host {

asyncrl::loss_report both(int which, methods::any_reduction const& reduce, asyncrl::token_batch const& batch,
                          asyncrl::totals& sums, asyncrl::loss_outputs const& to, asyncrl::workspace& scratch) {
    return objectives::with_objective(which, reduce, [&](auto const& objective) {
        sums = asyncrl::measure(objective, batch, scratch);
        return asyncrl::policy_loss(objective, batch, sums, to, scratch);
    });
}

asyncrl::totals measure(int which, methods::any_reduction const& reduce, asyncrl::token_batch const& batch,
                        asyncrl::workspace& scratch) {
    return objectives::with_objective(which, reduce,
                                      [&](auto const& objective) { return asyncrl::measure(objective, batch, scratch); });
}

}  // namespace host
