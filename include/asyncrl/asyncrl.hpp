// SPDX-License-Identifier: Apache-2.0
/// @file Everything for the host, in the order in which data passes. Needs Eigen; staleness.hpp alone does not.
#pragma once

// clang-format off
#include <asyncrl/version.hpp>
#include <asyncrl/config.hpp>
#include <asyncrl/error.hpp>
#include <asyncrl/fwd.hpp>

#include <asyncrl/staleness.hpp>   // may it be trained on?
#include <asyncrl/correction.hpp>  // what does each token weigh?
// clang-format on
