// SPDX-License-Identifier: Apache-2.0
/// @file A part of one's own in an objective, on the host. tests/cuda uses it on the device.
#include "own_part.hpp"

#include <asyncrl/correction.hpp>

#include <array>
#include <cmath>
#include <cstdint>

int main() {
    std::array<double, 3> const log_prob{-1, -2, -3};
    std::array<double, 3> const rollout_log_prob{-1.5, -5, -1};  // weights exp(0.5), exp(3) and exp(-2)
    std::array<double, 3> const advantage{1, 1, 1};
    std::array<double, 3> gradient{};
    asyncrl::token_batch batch{.rows = 1, .tokens = 3};
    batch.log_prob = batch.old_log_prob = asyncrl::per_token(log_prob.data(), 3);
    batch.rollout_log_prob = asyncrl::per_token(rollout_log_prob.data(), 3);
    batch.advantage = asyncrl::per_token(advantage.data(), 3);

    asyncrl::workspace workspace(batch);
    auto const objective =
        asyncrl::make_objective(asyncrl::ppo_clip{}, mine::clamped_weight{.low = 0.5, .high = 2}, asyncrl::token_sum{});
    auto const totals = asyncrl::measure(objective, batch, workspace);
    auto const report = asyncrl::policy_loss(objective, batch, totals, asyncrl::per_token(gradient.data(), 3), workspace);
    auto const is = [](double value, double expected) { return std::abs(value - expected) < 1e-12; };
    bool const weighted =
        is(gradient[0], -std::exp(0.5)) && is(gradient[1], -2) && is(gradient[2], -0.5) && report.counts.capped == 2;

    // Of two sequences the shorter one is rejected.
    std::array<std::int32_t, 3> const offsets{0, 1, 3};
    batch.rows = 2;
    batch.offsets = offsets.data();
    for (asyncrl::column* const c : {&batch.log_prob, &batch.old_log_prob, &batch.advantage}) {
        c->row_stride = 0;
    }
    asyncrl::workspace larger(batch);
    auto const gated = asyncrl::make_objective(asyncrl::ppo_clip{}, mine::length_gate{.fewest = 2}, asyncrl::token_sum{});
    auto const counted = asyncrl::measure(gated, batch, larger);
    auto const second = asyncrl::policy_loss(gated, batch, counted, asyncrl::per_token(gradient.data()), larger);
    bool const rejected = gradient[0] == 0 && is(gradient[1], -1) && is(gradient[2], -1) && second.counts.kept == 2;
    return weighted && rejected ? 0 : 1;
}
