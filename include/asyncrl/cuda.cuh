// SPDX-License-Identifier: Apache-2.0
/// @file What does each token weigh, on the GPU. For .cu files; needs neither Eigen nor fmt.
#pragma once

#include <asyncrl/cuda/advantage.cuh>
#include <asyncrl/cuda/log_prob.cuh>
#include <asyncrl/cuda/measure.cuh>
#include <asyncrl/cuda/mismatch.cuh>
#include <asyncrl/cuda/policy_loss.cuh>
#include <asyncrl/cuda/quantile.cuh>
#include <asyncrl/cuda/routing_replay.cuh>
#include <asyncrl/cuda/stored_objective.cuh>
