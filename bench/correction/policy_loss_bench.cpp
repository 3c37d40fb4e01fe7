// SPDX-License-Identifier: Apache-2.0
/// @file Loss, gradient and report on the host: each objective beside a copy of the same bytes and beside the multi-pass form.
#include "multi_pass.hpp"
#include "two_threads.hpp"

#include <asyncrl/correction.hpp>

#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

using asyncrl::per_token;

/// Columns of random tokens a few percent off policy, one in eight masked.
struct columns {
    explicit columns(std::int64_t n)
        : size(n),
          log_prob(count()),
          old_log_prob(count()),
          rollout(count()),
          advantage(count()),
          gradient(count()),
          mask(count()) {
        std::mt19937 random(1);
        std::normal_distribution<float> noise(0, 0.1F);
        for (std::size_t i = 0; i < count(); ++i) {
            rollout[i] = -1 + noise(random);
            old_log_prob[i] = rollout[i] + noise(random);
            log_prob[i] = old_log_prob[i] + noise(random);
            advantage[i] = noise(random);
            mask[i] = (random() & 7) != 0;
        }
    }
    [[nodiscard]] std::size_t count() const { return static_cast<std::size_t>(size); }
    [[nodiscard]] asyncrl::token_batch batch() const {
        asyncrl::token_batch b;
        b.rows = 1;
        b.tokens = size;
        b.log_prob = per_token(log_prob.data(), size);
        b.old_log_prob = per_token(old_log_prob.data(), size);
        b.rollout_log_prob = per_token(rollout.data(), size);
        b.advantage = per_token(advantage.data(), size);
        b.mask = per_token(mask.data(), size);
        return b;
    }

    std::int64_t size;
    std::vector<float> log_prob, old_log_prob, rollout, advantage, gradient;
    std::vector<std::uint8_t> mask;
};

void per_token_rate(benchmark::State& state) {
    state.counters["tokens/s"] =
        benchmark::Counter(static_cast<double>(state.range(0)), benchmark::Counter::kIsIterationInvariantRate);
    state.counters["ns/token"] =
        benchmark::Counter(static_cast<double>(state.range(0)) * 1e-9,
                           benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

/// A copy that moves 21 bytes a token in all: what the loss with a weight on old / rollout must move.
void copy(benchmark::State& state) {
    std::size_t const half = static_cast<std::size_t>(state.range(0)) * 21 / 2;
    std::vector<char> from(half, 1);
    std::vector<char> to(half);
    for (auto _ : state) {
        std::memcpy(to.data(), from.data(), half);
        benchmark::DoNotOptimize(to.data());
        benchmark::ClobberMemory();
    }
    per_token_rate(state);
}

void multi_pass_clip_and_tis(benchmark::State& state) {
    columns const c(state.range(0));
    auto const view = [&](std::vector<float> const& column) {
        return Eigen::Map<Eigen::ArrayXf const>(column.data(), static_cast<Eigen::Index>(column.size()));
    };
    multi_pass::batch const b{
        view(c.log_prob), view(c.old_log_prob), view(c.rollout), view(c.advantage),
        Eigen::Map<Eigen::Array<std::uint8_t, Eigen::Dynamic, 1> const>(c.mask.data(), c.size).cast<float>()};
    for (auto _ : state) {
        auto result = multi_pass::clip_and_tis(b, 0.2F, 0.2F, 2.0F);
        benchmark::DoNotOptimize(result);
    }
    per_token_rate(state);
}

template <typename Executor, typename Objective>
void loss(benchmark::State& state, Objective const& objective) {
    columns c(state.range(0));
    asyncrl::token_batch const batch = c.batch();
    asyncrl::workspace scratch(batch);
    Executor const execute;
    asyncrl::totals const totals = asyncrl::measure(objective, batch, scratch, execute);
    for (auto _ : state) {
        auto report =
            asyncrl::policy_loss(objective, batch, totals, per_token(c.gradient.data(), c.size), scratch, {}, execute);
        benchmark::DoNotOptimize(report);
    }
    per_token_rate(state);
}

template <typename Executor, typename Objective>
void measure_and_loss(benchmark::State& state, Objective const& objective) {
    columns c(state.range(0));
    asyncrl::token_batch const batch = c.batch();
    asyncrl::workspace scratch(batch);
    Executor const execute;
    for (auto _ : state) {
        asyncrl::totals const totals = asyncrl::measure(objective, batch, scratch, execute);
        auto report =
            asyncrl::policy_loss(objective, batch, totals, per_token(c.gradient.data(), c.size), scratch, {}, execute);
        benchmark::DoNotOptimize(report);
    }
    per_token_rate(state);
}

auto const clip = asyncrl::make_objective(asyncrl::ppo_clip{}, asyncrl::token_mean{});
auto const clip_tis = asyncrl::make_objective(asyncrl::ppo_clip{}, asyncrl::tis{}, asyncrl::token_mean{});
auto const clip_mis = asyncrl::make_objective(asyncrl::ppo_clip{}, asyncrl::mis{}, asyncrl::token_mean{});
auto const sat = asyncrl::make_objective(asyncrl::sat_clip{}, asyncrl::anchor_rollout{}, asyncrl::token_mean{});

void sizes(benchmark::internal::Benchmark* b) {
    b->Arg(1 << 16)->Arg(1 << 24)->UseRealTime()->MeasureProcessCPUTime();
}

template <typename Executor>
void register_losses(std::string const& threads) {
    auto const add = [&](char const* name, auto function) {
        benchmark::RegisterBenchmark((name + threads).c_str(), function)->Apply(sizes);
    };
    add("clip", [](benchmark::State& state) { loss<Executor>(state, clip); });
    add("clip_tis", [](benchmark::State& state) { loss<Executor>(state, clip_tis); });
    add("clip_mis", [](benchmark::State& state) { loss<Executor>(state, clip_mis); });
    add("sat_with_measure", [](benchmark::State& state) { measure_and_loss<Executor>(state, sat); });
}

[[maybe_unused]] bool const registered = [] {
    benchmark::RegisterBenchmark("copy", copy)->Apply(sizes);
    benchmark::RegisterBenchmark("multi_pass_clip_tis", multi_pass_clip_and_tis)->Apply(sizes);
    register_losses<asyncrl::serial>("");
    register_losses<two_threads>("/two_threads");
    return true;
}();

}  // namespace
