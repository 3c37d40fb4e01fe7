// SPDX-License-Identifier: Apache-2.0
#include "runner_parts.hpp"

namespace library {

asyncrl::totals measure(oracle::method const& m, asyncrl::token_batch const& batch, asyncrl::workspace& scratch,
                        executor const& execute) {
    request const r{batch, scratch, execute};
    return m.loss == oracle::surrogate::policy_gradient
               ? measure_policy_gradient(m, r)
               : measure_with(m, asyncrl::ppo_clip{.low = m.clip_low, .high = m.clip_high}, r);
}

asyncrl::loss_report policy_loss(oracle::method const& m, asyncrl::token_batch const& batch, asyncrl::totals const& sums,
                                 asyncrl::loss_outputs const& to, asyncrl::workspace& scratch,
                                 asyncrl::loss_options const& options, executor const& execute) {
    loss_request const r{{batch, scratch, execute}, sums, to, options};
    return m.loss == oracle::surrogate::policy_gradient
               ? loss_policy_gradient(m, r)
               : loss_with(m, asyncrl::ppo_clip{.low = m.clip_low, .high = m.clip_high}, r);
}

}  // namespace library
