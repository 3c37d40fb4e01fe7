// SPDX-License-Identifier: Apache-2.0
/// @file The library's calls for an oracle::method chosen at run time: each objective is compiled once, in runner_*.cpp.
#pragma once

#include "oracle.hpp"

#include <asyncrl/correction/policy_loss.hpp>

#include <cstdint>
#include <functional>

namespace library {

using executor = std::function<void(std::int64_t, asyncrl::task_ref)>;

asyncrl::totals measure(oracle::method const& method, asyncrl::token_batch const& batch, asyncrl::workspace& scratch,
                        executor const& execute = asyncrl::serial{});

asyncrl::loss_report policy_loss(oracle::method const& method, asyncrl::token_batch const& batch, asyncrl::totals const& sums,
                                 asyncrl::loss_outputs const& to, asyncrl::workspace& scratch,
                                 asyncrl::loss_options const& options = {}, executor const& execute = asyncrl::serial{});

}  // namespace library
