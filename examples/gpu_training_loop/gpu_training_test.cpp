// SPDX-License-Identifier: Apache-2.0
/// @file The loop on the device against the one on the host: the same weights and tokens give the same step, and the same draws
/// the same run.
#include "../async_training/run.hpp"
#include "catch.hpp"
#include "sides.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace {

using Catch::Matchers::WithinAbs;
using Catch::Matchers::WithinRel;

options small_run() {
    options o;
    o.steps = 6;
    o.groups = 4;
    o.members = 4;
    o.token_time = 0;
    return o;
}

policy<float> const& start() {
    static policy<float> const taught = warm_start(1, 120);
    return taught;
}

/// What the device holds of some answers, as async_training would hold it. Their rewards are computed anew.
group read_back(device::group const& from) {
    std::vector<device::answer> read(from.size());
    device::must(cudaMemcpy(read.data(), from.answers.get(), read.size() * sizeof(device::answer), cudaMemcpyDeviceToHost));
    group answers;
    for (std::size_t i = 0; i < read.size(); ++i) {
        trajectory& made = answers.emplace_back(trajectory{from[i].problem, from[i].random});
        std::copy(std::begin(read[i].tokens), std::end(read[i].tokens), made.tokens.begin());
        std::copy(std::begin(read[i].log_probs), std::end(read[i].log_probs), made.log_probs.begin());
        made.length = read[i].length;
        made.reward = task::reward(made.problem, made.tokens);
        REQUIRE(read[i].reward == made.reward);
        REQUIRE(from[i].reward == made.reward);
        REQUIRE(from[i].versions.tokens() == made.length);
    }
    return answers;
}

struct host_update {
    asyncrl::loss_report loss;
    double gradient_norm;
};

host_update update_on_host(loss_choice const& choice, learner& pupil, minibatch& part, asyncrl::workspace& scratch,
                           float learning_rate) {
    pupil.forward(part, part.log_prob);
    part.gradient.resize(part.tokens.size());
    host_update made{};
    made.loss = with_objective(choice, [&](auto const& objective) {
        asyncrl::token_batch const columns = columns_of(part);
        asyncrl::totals const totals = asyncrl::measure(objective, columns, scratch);
        return asyncrl::policy_loss(objective, columns, totals, asyncrl::per_token(part.gradient.data()), scratch);
    });
    made.gradient_norm = pupil.gradient_of(part).cast<double>().norm();
    pupil.descend(part, learning_rate);
    return made;
}

}  // namespace

TEST_CASE("a step on the device has the loss and the gradient norm of the host's, on the same weights and tokens") {
    options o = small_run();
    o.weight = GENERATE(correction::none, correction::tis, correction::mis, correction::sat, correction::sat_tis);
    o.engines = precision::fp8;  // so that old and rollout policy differ
    device::learner on_gpu(start().parameters.data(), o.loss(), 1e-3F, o.groups, o.members, 2);
    device::weight_board board(o.engines);
    board.post(on_gpu, {0});
    device::rollout_engine engine;
    engine.fetch(board);
    std::vector<std::unique_ptr<device::group>> groups;
    std::vector<device::answer const*> addresses;
    minibatch part;
    for (std::uint64_t id = 0; id < static_cast<std::uint64_t>(o.groups); ++id) {
        groups.push_back(make_group<device::group>(7, id, o.members));
        REQUIRE(engine.sample(*groups.back(), [](device::rollout_engine&) { return true; }));
        addresses.push_back(groups.back()->answers.get());
        append(read_back(*groups.back()), part);
    }
    on_gpu.load(addresses);
    on_gpu.update(0, 0, o.groups);
    on_gpu.update(1, 0, o.groups);  // of the same tokens once more: now the new policy is not the old one
    device::batch_report const& seen = on_gpu.finish();

    learner on_cpu(start());
    asyncrl::workspace scratch(columns_of(part));
    auto const log_probs = on_cpu.forward(part, part.old_log_prob).array();
    double const entropy = -static_cast<double>((log_probs * log_probs.exp()).sum());
    part.log_prob = part.old_log_prob;
    asyncrl::mismatch_report const mismatch = asyncrl::mismatch(columns_of(part), scratch);
    REQUIRE(seen.mismatch.counts.tokens == mismatch.counts.tokens);
    REQUIRE(mismatch.sums.absolute_log_ratio > 0.01);
    REQUIRE_THAT(seen.mismatch.sums.absolute_log_ratio, WithinRel(mismatch.sums.absolute_log_ratio, 1e-5));
    REQUIRE_THAT(seen.entropy, WithinRel(entropy, 4e-6));
    for (int update = 0; update < 2; ++update) {
        host_update const want = update_on_host(o.loss(), on_cpu, part, scratch, 1e-3F);
        device::update_report const& got = on_gpu.updates()[static_cast<std::size_t>(update)];
        CAPTURE(update, got.loss.sums.loss, want.loss.sums.loss);
        // Adam makes a whole step of any gradient that is not 0, so a rounding error there is one in the next update.
        double const share = update == 0 ? 4e-6 : 1e-4;
        REQUIRE(want.gradient_norm > 0);
        REQUIRE(got.loss.counts.tokens == want.loss.counts.tokens);
        REQUIRE(got.loss.counts.kept == want.loss.counts.kept);
        REQUIRE_THAT(got.loss.sums.loss, WithinAbs(want.loss.sums.loss, share * want.loss.sums.absolute_loss));
        REQUIRE_THAT(std::sqrt(got.squared_gradient_norm), WithinRel(want.gradient_norm, share));
    }
}

TEST_CASE("a run in lockstep on the device is the host's: the same answers, rewards and versions") {
    options o = small_run();
    o.lag = GENERATE(0, 1);
    o.minibatches = 1;
    trained_policy const on_gpu = run_training<on_device>(o, start(), [](step_report const&) {});
    trained_policy const on_cpu = run_training(o, start(), [](step_report const&) {});
    REQUIRE(on_gpu.result.staleness_histogram == on_cpu.result.staleness_histogram);
    double rewards = 0;
    for (std::size_t i = 0; i < on_cpu.result.steps.size(); ++i) {
        step_report const& got = on_gpu.result.steps[i];
        step_report const& want = on_cpu.result.steps[i];
        CAPTURE(i);
        rewards += want.reward;
        REQUIRE_THAT(got.reward, WithinAbs(want.reward, 1e-12));
        REQUIRE(got.answers == want.answers);
        REQUIRE(got.mismatch.counts.tokens == want.mismatch.counts.tokens);
        REQUIRE_THAT(got.mismatch.sums.absolute_log_ratio, WithinRel(want.mismatch.sums.absolute_log_ratio, 1e-3));
        // By the same weights a token has the same bits when it is sampled with its group and when it is trained with its
        // batch.
        REQUIRE((got.mismatch.sums.absolute_log_ratio == 0) == (*o.lag == 0 || i == 0));
    }
    REQUIRE(rewards > 0);
    double const moved = (on_cpu.weights.parameters - start().parameters).cast<double>().norm();
    double const apart = (on_gpu.weights.parameters - on_cpu.weights.parameters).cast<double>().norm();
    REQUIRE(apart < 0.01 * moved);
}

TEST_CASE("threads that sample on streams of their own keep the bound, and lose no unit") {
    options o = small_run();
    o.engines = precision::bf16;
    o.max_switches = GENERATE(0, 1);
    o.admission = GENERATE(control::slots, control::ledger);
    run_result const result = run_training<on_device>(o, start(), [](step_report const&) {}).result;
    REQUIRE(result.staleness_histogram.size() == 3);
    REQUIRE(result.units.taken == o.steps * o.groups);
    REQUIRE(result.units.admitted ==
            result.units.taken + result.units.in_flight + result.units.completed + result.units.dropped_total());
    for (step_report const& step : result.steps) {
        REQUIRE(step.largest_staleness <= 2);
        REQUIRE((*o.max_switches > 0 || step.switched == 0));
        REQUIRE(step.loss.counts.tokens == step.mismatch.counts.tokens);
    }
}
