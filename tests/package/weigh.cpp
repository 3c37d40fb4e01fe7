// SPDX-License-Identifier: Apache-2.0
/// @file Losses alone: the gradient of a clipped, truncated-weight loss for two tokens, one of them far off-policy.
#include <asyncrl/correction.hpp>

#include <array>
#include <cmath>
#include <cstdio>

int main() {
    std::array<float, 2> const log_prob{-1.0F, -2.0F};
    std::array<float, 2> const rollout_log_prob{-1.0F, -4.0F};  // the second weighs exp(2) = 7.4, truncated to 2
    std::array<float, 2> const advantage{1.0F, 1.0F};
    std::array<float, 2> gradient{};

    asyncrl::token_batch batch{.rows = 1, .tokens = 2};
    batch.log_prob = asyncrl::per_token(log_prob.data(), 2);
    batch.old_log_prob = batch.log_prob;
    batch.rollout_log_prob = asyncrl::per_token(rollout_log_prob.data(), 2);
    batch.advantage = asyncrl::per_token(advantage.data(), 2);

    // [snippet: objective]
    auto const objective = asyncrl::make_objective(asyncrl::ppo_clip{}, asyncrl::tis{.cap = 2}, asyncrl::token_mean{});
    // [snippet: end]
    // [snippet: calls]
    asyncrl::workspace workspace(batch);
    auto const totals = asyncrl::measure(objective, batch, workspace);
    auto const report = asyncrl::policy_loss(objective, batch, totals, asyncrl::per_token(gradient.data(), 2), workspace);
    // [snippet: end]

    std::printf("loss %g, gradient %g %g, capped %d\n", report.sums.loss, static_cast<double>(gradient[0]),
                static_cast<double>(gradient[1]), static_cast<int>(report.counts.capped));
    auto const is = [](double value, double expected) { return std::abs(value - expected) < 1e-6; };
    return is(report.sums.loss, -1.5) && is(gradient[0], -0.5) && is(gradient[1], -1) && report.counts.capped == 1 ? 0 : 1;
}
