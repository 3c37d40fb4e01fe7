// SPDX-License-Identifier: Apache-2.0
#include "runner_parts.hpp"

namespace library {

asyncrl::totals measure_policy_gradient(oracle::method const& m, request const& r) {
    return measure_with(m, asyncrl::policy_gradient{}, r);
}

asyncrl::loss_report loss_policy_gradient(oracle::method const& m, loss_request const& r) {
    return loss_with(m, asyncrl::policy_gradient{}, r);
}

}  // namespace library
