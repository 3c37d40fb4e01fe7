// SPDX-License-Identifier: Apache-2.0
/// @file Numbers that a report of one step sets for the next: the coefficient of a KL penalty, the length of an optimizer step.
#pragma once

#include <asyncrl/error.hpp>

#include <algorithm>
#include <cmath>

ASYNCRL_BEGIN_NAMESPACE

/// PPO's adaptive penalty: doubles the coefficient where the measured KL is above 1.5 times the target, halves it where it is
/// below two thirds (arXiv 1707.06347). A trust region by penalty, as TRPO has it by constraint.
/// @throws std::invalid_argument if coefficient or target is not finite and > 0, or kl is not finite.
[[nodiscard]] inline double adapted_coefficient(double coefficient, double kl, double target) {
    detail::require(coefficient > 0 && std::isfinite(coefficient), "coefficient", coefficient, "finite and > 0");
    detail::require(std::isfinite(kl), "kl", kl, "finite");
    detail::require(target > 0 && std::isfinite(target), "target", target, "finite and > 0");
    return kl > 1.5 * target ? 2 * coefficient : kl < target / 1.5 ? coefficient / 2 : coefficient;
}

/// By what to multiply the learning rate where few samples carry the weight: sqrt(min(1, share / base)), with `share` the
/// effective sample share of a report and `base` the one at which the learning rate was tuned. VCPO (arXiv 2602.17616).
/// @throws std::invalid_argument if share is not in [0, 1] or base not in (0, 1].
[[nodiscard]] inline double effective_sample_step_scale(double share, double base = 1) {
    detail::require(share >= 0 && share <= 1, "share", share, "in [0, 1]");
    detail::require(base > 0 && base <= 1, "base", base, "in (0, 1]");
    return std::sqrt(std::min(1.0, share / base));
}

ASYNCRL_END_NAMESPACE
