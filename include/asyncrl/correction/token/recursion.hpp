// SPDX-License-Identifier: Apache-2.0
/// @file One step of the advantage recursions. Each is y_t = add_t + scale_t y_{t+1}: a loop from the last step to the first on
/// the host, a scan of composed steps on a GPU.
#pragma once

#include <asyncrl/config.hpp>
#include <asyncrl/correction/token/real.hpp>

ASYNCRL_BEGIN_NAMESPACE

/// The map y -> add + scale y. The default changes nothing: it is the step of a masked token.
template <typename Real>
struct recursion_step {
    Real add = Real(0);
    Real scale = Real(1);

    [[nodiscard]] ASYNCRL_HOST_DEVICE Real operator()(Real later) const { return add + scale * later; }
};

/// Two neighbouring stretches of steps as one: `earlier` applied to the result of `later`. Associative up to rounding.
template <typename Real>
[[nodiscard]] ASYNCRL_HOST_DEVICE recursion_step<Real> compose(recursion_step<Real> const& earlier,
                                                               recursion_step<Real> const& later) {
    return {earlier(later.add), earlier.scale * later.scale};
}

/// The temporal-difference error r_t + gamma V_{t+1} - V_t.
template <typename Real>
[[nodiscard]] ASYNCRL_HOST_DEVICE Real td_error(Real reward, Real gamma, Real next_value, Real value) {
    return reward + gamma * next_value - value;
}

/// min(ratio, bar); a NaN stays one.
template <typename Real>
[[nodiscard]] ASYNCRL_HOST_DEVICE Real truncated(Real ratio, Real bar) {
    return select(ratio > bar, bar, ratio);
}

/// y = A_t: A_t = delta_t + gamma lambda A_{t+1}.
template <typename Real>
[[nodiscard]] ASYNCRL_HOST_DEVICE recursion_step<Real> gae_step(Real td, Real gamma, Real lambda) {
    return {td, gamma * lambda};
}

/// y = v_t - V_t: rho_t delta_t + gamma lambda c_t (v_{t+1} - V_{t+1}), with rho_t and c_t truncated already.
template <typename Real>
[[nodiscard]] ASYNCRL_HOST_DEVICE recursion_step<Real> vtrace_step(Real td, Real rho, Real c, Real gamma, Real lambda) {
    return {rho * td, gamma * lambda * c};
}

/// y = the correction of Q_t: delta_t + gamma lambda min(1, ratio_{t+1}) y_{t+1}. Its own ratio does not enter: the action is
/// given.
template <typename Real>
[[nodiscard]] ASYNCRL_HOST_DEVICE recursion_step<Real> retrace_step(Real td, Real next_ratio, Real gamma, Real lambda) {
    return {td, gamma * lambda * truncated(next_ratio, Real(1))};
}

ASYNCRL_END_NAMESPACE
