// SPDX-License-Identifier: Apache-2.0
#include "host_calls.hpp"

#include <asyncrl/correction/policy_loss.hpp>

namespace host {

asyncrl::totals measure(method const& m, asyncrl::token_batch const& batch, asyncrl::workspace& scratch) {
    return methods::with_objective(m, [&](auto const& objective) { return asyncrl::measure(objective, batch, scratch); });
}

asyncrl::loss_report policy_loss(method const& m, asyncrl::token_batch const& batch, asyncrl::totals const& sums,
                                 asyncrl::loss_outputs const& to, asyncrl::workspace& scratch,
                                 asyncrl::loss_options const& options) {
    return methods::with_objective(
        m, [&](auto const& objective) { return asyncrl::policy_loss(objective, batch, sums, to, scratch, options); });
}

}  // namespace host
