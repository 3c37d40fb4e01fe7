// SPDX-License-Identifier: Apache-2.0
/// @file What docs/advantage.md shows: baselines of prompt groups, and V-trace over a packed batch with a critic.
#include <asyncrl/correction.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

bool near(float got, double want) {
    return std::abs(static_cast<double>(got) - want) < 1e-5;
}

bool groups() {
    // Two prompts with four answers each. The last answer came too late: its reward counts, but it is not trained.
    std::vector<float> const reward{1, 0, 0, 1, 0, 0, 0, 1};
    std::vector<std::uint8_t> const role{0, 0, 0, 0, 0, 0, 0, 1};  // as asyncrl::member_role
    // [snippet: groups]
    std::vector<float> advantage(8);
    asyncrl::group_rewards group;
    group.members = 8;
    group.group_size = 4;
    group.reward = asyncrl::per_member(reward.data());
    group.role = asyncrl::per_member(role.data());
    auto const report = asyncrl::group_advantage(group, asyncrl::per_member(advantage.data()),
                                                 {.deviation = asyncrl::group_deviation::population});
    asyncrl::token_batch batch;
    batch.rows = 8;
    batch.advantage = asyncrl::per_sequence(advantage.data());
    // [snippet: end]
    std::printf("%d groups, %d without a signal\n", static_cast<int>(report.groups), static_cast<int>(report.degenerate));
    return near(advantage[0], 1) && near(advantage[1], -1) && near(advantage[4], -1 / std::sqrt(3)) && advantage[7] == 0 &&
           report.degenerate == 0 && report.baseline_only == 1 && batch.advantage;
}

bool recursions() {
    std::vector<std::int32_t> const offsets{0, 3, 5};
    std::vector<float> const reward{0, 0, 1, 0, 0};
    std::vector<float> const value{0.5F, 0.25F, 0.75F, 0.5F, 0.25F};
    std::vector<float> const after{0, 0.5F};  // the second row was cut at the length limit
    std::vector<float> const old_log_prob{-1, -1, -1, -1, -1};
    std::vector<float> const rollout_log_prob{-1, -1, -1.5F, -1, -0.5F};
    std::vector<std::uint8_t> const mask{1, 0, 1, 1, 1};
    asyncrl::token_batch batch;
    batch.rows = 2;
    batch.tokens = 5;
    batch.offsets = offsets.data();
    batch.old_log_prob = asyncrl::per_token(old_log_prob.data());
    batch.rollout_log_prob = asyncrl::per_token(rollout_log_prob.data());
    batch.mask = asyncrl::per_token(mask.data());
    // [snippet: recursion]
    std::vector<float> advantage(5), target(5);
    asyncrl::value_columns values;
    values.reward = asyncrl::per_token(reward.data());
    values.value = asyncrl::per_token(value.data());
    values.bootstrap = asyncrl::per_sequence(after.data());  // 0 for a row that ended, V for one that was cut
    asyncrl::advantage_outputs const outputs{asyncrl::per_token(advantage.data()), asyncrl::per_token(target.data())};
    asyncrl::gae(batch, values, outputs, {.gamma = 1, .lambda = 0.95});
    auto const report = asyncrl::vtrace(batch, values, outputs, {.lambda = 0.95, .rho_bar = 1, .c_bar = 1});
    // [snippet: end]
    // Row 0: the middle token is masked. Row 1: the last ratio is exp(-0.5).
    double const last = std::exp(-0.5) * 0.25;
    return near(advantage[0], 0.5) && advantage[1] == 0 && near(advantage[2], 0.25) && near(target[2], 1) &&
           near(advantage[4], last) && near(target[3], 0.5 + (0.25 - 0.5) + 0.95 * last) && report.tokens == 4 &&
           report.nonfinite == 0;
}

}  // namespace

int main() {
    bool const first = groups();
    return first && recursions() ? 0 : 1;
}
