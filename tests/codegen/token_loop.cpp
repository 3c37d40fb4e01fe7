// SPDX-License-Identifier: Apache-2.0
// Only compiled: token_loop.cmake looks at the machine code of the loss loop.
#include <asyncrl/correction.hpp>

using objective = decltype(asyncrl::make_objective(asyncrl::ppo_clip{}, asyncrl::tis{}, asyncrl::token_mean{}));

asyncrl::loss_report token_loop(objective const& o, asyncrl::token_batch const& batch, asyncrl::totals const& sums,
                                asyncrl::loss_outputs const& to, asyncrl::workspace& scratch) {
    return asyncrl::policy_loss(o, batch, sums, to, scratch);
}
