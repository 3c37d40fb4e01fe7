// SPDX-License-Identifier: Apache-2.0
/// @file What the device is compared with: the host's calls, which have tests of their own.
#pragma once

#include "methods.hpp"

#include <asyncrl/correction/loss_options.hpp>
#include <asyncrl/correction/loss_report.hpp>
#include <asyncrl/correction/token_batch.hpp>
#include <asyncrl/correction/totals.hpp>
#include <asyncrl/correction/workspace.hpp>

namespace host {

using methods::method;

[[nodiscard]] asyncrl::totals measure(method const& m, asyncrl::token_batch const& batch, asyncrl::workspace& scratch);
asyncrl::loss_report policy_loss(method const& m, asyncrl::token_batch const& batch, asyncrl::totals const& sums,
                                 asyncrl::loss_outputs const& to, asyncrl::workspace& scratch,
                                 asyncrl::loss_options const& options);

}  // namespace host
