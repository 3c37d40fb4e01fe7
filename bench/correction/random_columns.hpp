// SPDX-License-Identifier: Apache-2.0
/// @file The batches that the benchmarks of losses run over, and how their time is told.
#pragma once

#include <asyncrl/correction/token_batch.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

/// Columns of random tokens a few percent off policy, one in eight masked.
struct random_columns {
    explicit random_columns(std::int64_t n)
        : size(n),
          log_prob(count()),
          old_log_prob(count()),
          rollout(count()),
          advantage(count()),
          reference(count()),
          gradient(count()),
          version(count()),
          mask(count()) {
        std::mt19937 random(1);
        std::normal_distribution<float> noise(0, 0.1F);
        for (std::size_t i = 0; i < count(); ++i) {
            rollout[i] = -1 + noise(random);
            old_log_prob[i] = rollout[i] + noise(random);
            log_prob[i] = old_log_prob[i] + noise(random);
            reference[i] = log_prob[i] + noise(random);
            advantage[i] = noise(random);
            version[i] = static_cast<std::int32_t>(random() % 5);
            mask[i] = (random() & 7) != 0;
        }
    }
    [[nodiscard]] std::size_t count() const { return static_cast<std::size_t>(size); }
    /// In rows of `tokens`, of which the size is a multiple.
    [[nodiscard]] asyncrl::token_batch batch(std::int64_t tokens) const {
        using asyncrl::per_token;
        asyncrl::token_batch b;
        b.rows = size / tokens;
        b.tokens = tokens;
        b.log_prob = per_token(log_prob.data(), tokens);
        b.old_log_prob = per_token(old_log_prob.data(), tokens);
        b.rollout_log_prob = per_token(rollout.data(), tokens);
        b.reference_log_prob = per_token(reference.data(), tokens);
        b.advantage = per_token(advantage.data(), tokens);
        b.version = per_token(version.data(), tokens);
        b.policy_version = 4;
        b.mask = per_token(mask.data(), tokens);
        return b;
    }
    [[nodiscard]] asyncrl::token_batch batch() const { return batch(size); }

    std::int64_t size;
    std::vector<float> log_prob, old_log_prob, rollout, advantage, reference, gradient;
    std::vector<std::int32_t> version;
    std::vector<std::uint8_t> mask;
};

inline void per_token_rate(benchmark::State& state) {
    state.counters["tokens/s"] =
        benchmark::Counter(static_cast<double>(state.range(0)), benchmark::Counter::kIsIterationInvariantRate);
    state.counters["ns/token"] =
        benchmark::Counter(static_cast<double>(state.range(0)) * 1e-9,
                           benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

/// A copy that moves 21 bytes a token in all: what the loss with a weight on old / rollout must move.
inline void copy(benchmark::State& state) {
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
