// SPDX-License-Identifier: Apache-2.0
/// @file GAE and V-trace on the host, rows of 1024 tokens, each beside a copy of the same bytes.
#include "two_threads.hpp"
#include "yardstick.hpp"

#include <asyncrl/correction/advantage.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace {

using asyncrl::per_token;

constexpr std::int64_t row_length = 1024;

/// Columns of random tokens, one in eight masked.
struct columns {
    explicit columns(std::int64_t n)
        : rows(n / row_length),
          reward(static_cast<std::size_t>(n)),
          value(reward),
          old_log_prob(reward),
          rollout_log_prob(reward),
          advantage(reward),
          target(reward),
          mask(static_cast<std::size_t>(n)) {
        std::mt19937 random(1);
        std::normal_distribution<float> noise(0, 0.1F);
        for (std::size_t i = 0; i < mask.size(); ++i) {
            reward[i] = i % row_length == row_length - 1 ? 1.0F : 0.0F;
            value[i] = 0.5F + noise(random);
            old_log_prob[i] = -1.0F + noise(random);
            rollout_log_prob[i] = old_log_prob[i] + noise(random);
            mask[i] = random() % 8 != 0 ? 1 : 0;
        }
    }
    [[nodiscard]] asyncrl::token_batch batch() const {
        asyncrl::token_batch b;
        b.rows = rows;
        b.tokens = row_length;
        b.old_log_prob = per_token(old_log_prob.data(), row_length);
        b.rollout_log_prob = per_token(rollout_log_prob.data(), row_length);
        b.mask = per_token(mask.data(), row_length);
        return b;
    }
    [[nodiscard]] asyncrl::value_columns values() const {
        asyncrl::value_columns v;
        v.reward = per_token(reward.data(), row_length);
        v.value = per_token(value.data(), row_length);
        return v;
    }
    [[nodiscard]] asyncrl::advantage_outputs outputs() {
        return {per_token(advantage.data(), row_length), per_token(target.data(), row_length)};
    }

    std::int64_t rows;
    std::vector<float> reward, value, old_log_prob, rollout_log_prob, advantage, target;
    std::vector<std::uint8_t> mask;
};

/// A copy that moves `bytes_per_token` a token in all.
template <std::size_t bytes_per_token>
void copy(benchmark::State& state) {
    copy_bytes(state, state.range(0) * static_cast<std::int64_t>(bytes_per_token));
    per_token_rate(state);
}

template <typename Executor>
void gae(benchmark::State& state) {
    columns c(state.range(0));
    Executor const execute;
    for (auto _ : state) {
        auto report = asyncrl::gae(c.batch(), c.values(), c.outputs(), {.gamma = 0.99, .lambda = 0.95}, execute);
        benchmark::DoNotOptimize(report);
        benchmark::ClobberMemory();
    }
    per_token_rate(state);
}

template <typename Executor>
void vtrace(benchmark::State& state) {
    columns c(state.range(0));
    Executor const execute;
    for (auto _ : state) {
        auto report = asyncrl::vtrace(c.batch(), c.values(), c.outputs(), {.gamma = 0.99, .lambda = 0.95}, execute);
        benchmark::DoNotOptimize(report);
        benchmark::ClobberMemory();
    }
    per_token_rate(state);
}

void sizes(benchmark::internal::Benchmark* b) {
    b->Arg(1 << 20)->UseRealTime()->MeasureProcessCPUTime();
}

BENCHMARK(copy<17>)->Apply(sizes);
BENCHMARK(gae<asyncrl::serial>)->Apply(sizes);
BENCHMARK(gae<two_threads>)->Apply(sizes);
BENCHMARK(copy<25>)->Apply(sizes);
BENCHMARK(vtrace<asyncrl::serial>)->Apply(sizes);
BENCHMARK(vtrace<two_threads>)->Apply(sizes);

}  // namespace
