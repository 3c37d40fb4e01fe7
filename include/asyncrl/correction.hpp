// SPDX-License-Identifier: Apache-2.0
/// @file What does each token weigh? Off-policy corrections, losses and their statistics. Host loops; needs Eigen/Core.
#pragma once

// In the order in which data passes.
// clang-format off
#include <asyncrl/correction/token_batch.hpp>
#include <asyncrl/correction/routing_replay.hpp>
#include <asyncrl/correction/log_prob.hpp>
#include <asyncrl/correction/mismatch.hpp>
#include <asyncrl/correction/mismatch_split.hpp>
#include <asyncrl/correction/advantage.hpp>
#include <asyncrl/correction/m2po.hpp>
#include <asyncrl/correction/objective.hpp>
#include <asyncrl/correction/presets.hpp>
#include <asyncrl/correction/measure.hpp>
#include <asyncrl/correction/policy_loss.hpp>
#include <asyncrl/correction/schedule.hpp>
// clang-format on
