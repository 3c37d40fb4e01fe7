// SPDX-License-Identifier: Apache-2.0
/// @file What docs/correction.md shows beyond one batch: columns of a packed batch, micro-batches, outputs of each token,
/// threads.
#include <asyncrl/correction.hpp>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

namespace {

/// Sequences of 3 and 2 tokens of which one was a tool's answer.
struct micro_batch {
    std::vector<std::int32_t> offsets{0, 3, 5};
    std::vector<float> log_prob{-1.0F, -0.5F, -2.0F, -0.25F, -1.5F};
    std::vector<float> old_log_prob{-1.0F, -0.625F, -2.0F, -0.25F, -1.5F};
    std::vector<float> rollout_log_prob{-1.0F, -0.625F, -4.0F, 0.0F, -9999.0F};
    std::vector<float> advantage{1.0F, -0.5F};  // one a sequence
    std::vector<std::uint8_t> mask{1, 1, 1, 0, 1};
    std::vector<float> gradient = std::vector<float>(5);
    asyncrl::token_batch batch;

    micro_batch() {
        // [snippet: packed]
        batch.rows = 2;
        batch.tokens = 5;
        batch.offsets = offsets.data();  // 0, 3, 5: rows of 3 and 2 tokens
        batch.log_prob = asyncrl::per_token(log_prob.data());
        batch.old_log_prob = asyncrl::per_token(old_log_prob.data());
        batch.rollout_log_prob = asyncrl::per_token(rollout_log_prob.data());
        batch.advantage = asyncrl::per_sequence(advantage.data());
        batch.mask = asyncrl::per_token(mask.data());
        batch.unscored = -9999;  // what the engine writes where it has no log-prob
        // [snippet: end]
    }
    micro_batch(micro_batch const&) = delete;
    micro_batch& operator=(micro_batch const&) = delete;
};

// [snippet: executor]
void on_two_threads(std::int64_t count, asyncrl::task_ref task) {
    std::atomic<std::int64_t> next{0};
    auto const work = [&] {
        for (std::int64_t i = next++; i < count; i = next++) {
            task(i);
        }
    };
    std::jthread const other(work);
    work();
}
// [snippet: end]

}  // namespace

int main() {
    std::vector<micro_batch> micro_batches(2);
    asyncrl::workspace workspace(micro_batches[0].batch);
    auto const objective =
        asyncrl::make_objective(asyncrl::ppo_clip{.low = 0.2, .high = 0.28}, asyncrl::mis{.low = 0.5, .high = 5},
                                asyncrl::token_mean{.over = asyncrl::counted::active});
    // [snippet: step]
    asyncrl::totals totals;
    for (micro_batch& m : micro_batches) {
        totals += asyncrl::measure(objective, m.batch, workspace);
    }
    // With ranks: all-reduce totals.counts here, five 64-bit integers, by sum.
    asyncrl::loss_report report;
    for (micro_batch& m : micro_batches) {
        report += asyncrl::policy_loss(objective, m.batch, totals, asyncrl::per_token(m.gradient.data()), workspace,
                                       {.batches = 2, .scale = 1});
    }
    // [snippet: end]

    // [snippet: outputs]
    std::vector<float> gradient(5), loss(5), weight(5);
    std::vector<std::uint16_t> flags(5);
    asyncrl::loss_outputs const outputs(asyncrl::per_token(gradient.data()), asyncrl::per_token(loss.data()),
                                        asyncrl::per_token(weight.data()), flags.data());
    asyncrl::policy_loss(objective, micro_batches[0].batch, totals, outputs, workspace, {.batches = 2}, on_two_threads);
    bool const rejected = (flags[2] & asyncrl::gated) != 0;  // old / rollout = exp(2), outside the mask
    // [snippet: end]
    bool const unscored = (flags[4] & asyncrl::unscored) != 0 && weight[4] == 1;

    std::printf("loss %g, %d tokens, %d kept, %d unscored\n", report.sums.loss, static_cast<int>(report.counts.tokens),
                static_cast<int>(report.counts.kept), static_cast<int>(report.counts.unscored));
    double const expected = (-1 - std::exp(0.125) + 0 + 0.5) / 4;  // of either micro-batch, and so of both
    bool const same = gradient == micro_batches[0].gradient && gradient == micro_batches[1].gradient;
    return std::abs(report.sums.loss - expected) < 1e-6 && rejected && unscored && same && loss[2] == 0 ? 0 : 1;
}
