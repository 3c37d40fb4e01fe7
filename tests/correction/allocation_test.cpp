// SPDX-License-Identifier: Apache-2.0
// Once a workspace is made, the calls of a training step allocate nothing.
#include "catch.hpp"
#include "counted_allocations.hpp"

#include <asyncrl/correction/policy_loss.hpp>

#include <cstdint>
#include <vector>

using namespace asyncrl;

TEST_CASE("a step over a packed batch allocates nothing") {
    std::vector<std::int64_t> const offsets = {0, 3000, 3000, 3007, 5000};
    std::vector<std::int64_t> const segments = {0, 1000, 3000, 3000, 3007, 5000};
    std::vector<float> new_policy(5000), old(5000), rollout(5000), reference(5000), advantage(5000), gradient(5000);
    for (std::size_t i = 0; i < 5000; ++i) {
        auto const x = static_cast<float>(i % 97);
        new_policy[i] = -1 - x / 64;
        old[i] = new_policy[i] + (x - 48) / 256;
        rollout[i] = old[i] + (x - 40) / 512;
        reference[i] = old[i];
        advantage[i] = x - 48;
    }
    token_batch batch;
    batch.rows = 4;
    batch.tokens = 5000;
    batch.offsets = offsets.data();
    batch.segments = segments.data();
    batch.segment_count = 5;
    batch.log_prob = per_token(new_policy.data());
    batch.old_log_prob = per_token(old.data());
    batch.rollout_log_prob = per_token(rollout.data());
    batch.reference_log_prob = per_token(reference.data());
    batch.advantage = per_token(advantage.data());
    workspace scratch(batch);
    std::int64_t const before = allocations;
    REQUIRE(before > 0);  // the counter counts

    auto const sequences = make_objective(sat_clip{}, sequence_ratio{}, sequence_tis{}, band_veto{}, normalised_weights{},
                                          k3_penalty{.coefficient = 0.1}, sequence_mean_token_mean{.over = counted::kept});
    auto const tokens = make_objective(ppo_clip{}, mis{}, token_mean{});
    std::int64_t const start = allocations;
    loss_report const a =
        policy_loss(sequences, batch, measure(sequences, batch, scratch), per_token(gradient.data()), scratch);
    loss_report const b = policy_loss(tokens, batch, measure(tokens, batch, scratch), per_token(gradient.data()), scratch);
    std::int64_t const end = allocations;
    REQUIRE(end == start);
    REQUIRE(a.counts.tokens == 5000);
    REQUIRE(b.counts.tokens == 5000);
}
