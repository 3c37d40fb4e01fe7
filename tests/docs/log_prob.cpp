// SPDX-License-Identifier: Apache-2.0
/// @file What docs/log_prob.md shows: logits to log-probs, a loss on them, and its gradient back in place; replayed experts.
#include <asyncrl/correction.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

bool near(double a, double b) {
    return std::abs(a - b) < 1e-6;
}

bool logits_to_loss_and_back() {
    std::int64_t const rows = 3;
    std::int64_t const vocabulary = 4;
    std::vector<float> logits{0.5F, -0.25F, 1, 0, 0, 0, 0, 0, 2, 1, 0, -1};
    std::vector<std::int32_t> const tokens{0, 3, -100};  // the last row is padding
    std::vector<std::uint8_t> const mask{1, 1, 0};
    std::vector<float> const old_log_prob{-1, -1.5F, 0}, rollout_log_prob{-1, -1.25F, 0}, advantage{1, -1, 0};
    std::vector<float> log_prob(3), entropy(3), slope(3);
    std::vector<double> log_sum_exp(3);

    asyncrl::token_batch batch;
    batch.rows = 1;
    batch.tokens = rows;
    batch.log_prob = asyncrl::per_token(log_prob.data(), rows);
    batch.old_log_prob = asyncrl::per_token(old_log_prob.data(), rows);
    batch.rollout_log_prob = asyncrl::per_token(rollout_log_prob.data(), rows);
    batch.advantage = asyncrl::per_token(advantage.data(), rows);
    batch.mask = asyncrl::per_token(mask.data(), rows);
    asyncrl::workspace workspace(batch);
    auto const objective = asyncrl::make_objective(asyncrl::ppo_clip{}, asyncrl::tis{}, asyncrl::token_mean{});

    // [snippet: round_trip]
    asyncrl::log_prob_options options;
    options.temperature = 0.8;  // the sampler's
    options.mask = asyncrl::per_token(mask.data());
    asyncrl::log_prob_outputs const outputs{asyncrl::per_token(log_prob.data()),
                                            asyncrl::per_token(log_sum_exp.data()),  // doubles: for the way back
                                            asyncrl::per_token(entropy.data())};
    asyncrl::matrix const in = asyncrl::row_major(logits.data(), rows, vocabulary);
    asyncrl::log_prob_report const report = asyncrl::log_prob(in, tokens.data(), outputs, options);
    if (report.nonfinite > 0) {
        std::printf("row %d has no softmax\n", static_cast<int>(report.first_nonfinite));
    }

    asyncrl::totals const totals = asyncrl::measure(objective, batch, workspace);
    asyncrl::policy_loss(objective, batch, totals, asyncrl::per_token(slope.data(), rows), workspace);

    float const bonus = -0.01F / 2;  // loss - 0.01 * mean entropy, over two tokens
    asyncrl::log_prob_slopes slopes;
    slopes.log_prob = asyncrl::per_token(slope.data());
    slopes.entropy = {&bonus, asyncrl::dtype::f32, 0, 0};  // a stride of 0: the same for every row
    asyncrl::log_prob_gradient(in, tokens.data(), outputs, slopes, asyncrl::row_major(logits.data(), rows, vocabulary),
                               options);
    // [snippet: end]

    float sum = 0;
    for (std::size_t i = 0; i < 4; ++i) {
        sum += logits[i];
    }
    return near(static_cast<double>(log_prob[1]), -std::log(4.0)) && near(static_cast<double>(entropy[1]), std::log(4.0)) &&
           near(static_cast<double>(sum), 0) && logits[8] == 0 && slope[0] != 0;
}

bool truncated_sampling() {
    std::vector<float> const logits{0.5F, -0.25F, 1, 0, 0, 0, 0, 0};
    std::vector<std::int32_t> const tokens{0, 3};
    std::vector<float> log_prob(2);
    // [snippet: support]
    std::vector<std::int64_t> const offsets{0, 2, 2};  // the first row: two tokens; the second: none recorded, so all
    std::vector<std::int32_t> const ids{0, 2};
    asyncrl::log_prob_options options;
    options.support = {offsets.data(), ids.data()};
    asyncrl::log_prob(asyncrl::row_major(logits.data(), 2, 4), tokens.data(), {asyncrl::per_token(log_prob.data())}, options);
    // [snippet: end]
    return near(static_cast<double>(log_prob[0]), -0.97407698418) && near(static_cast<double>(log_prob[1]), -std::log(4.0));
}

bool replayed_experts() {
    std::vector<float> const logits{0.5F, -0.25F, 1, 0, 0.5F, -0.25F, 1, 0};
    std::vector<float> const gate_slopes{1, 0, 1, 0};
    std::vector<float> gates(4), gradient(8);
    std::vector<std::int32_t> used(4);
    // [snippet: experts]
    std::vector<std::int32_t> const recorded{0, 3, -1, -1};  // the engine has no row for the last token
    asyncrl::matrix const router = asyncrl::row_major(logits.data(), 2, 4);
    asyncrl::routing_report const report =
        asyncrl::routing_replay(router, {recorded.data(), 2, 2, 2}, asyncrl::gate_rule::softmax_of_chosen,
                                {asyncrl::row_major(gates.data(), 2, 2), used.data(), 2});
    // ... the experts `used` run, and the loss comes back as d loss / d gates ...
    asyncrl::routing_replay_gradient(router, {used.data(), 2, 2, 2}, asyncrl::gate_rule::softmax_of_chosen,
                                     asyncrl::row_major(gate_slopes.data(), 2, 2), asyncrl::row_major(gradient.data(), 2, 4));
    // [snippet: end]
    return near(static_cast<double>(gates[0]), 0.622459331202) && used[2] == 2 && used[3] == 0 && report.fallen_back == 1 &&
           report.differing == 1 && near(static_cast<double>(gradient[0]), 0.235003712202);
}

}  // namespace

int main() {
    return logits_to_loss_and_back() && truncated_sampling() && replayed_experts() ? 0 : 1;
}
