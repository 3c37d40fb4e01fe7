// SPDX-License-Identifier: Apache-2.0
/// @file The batches that the benchmarks of losses run over, and the copy they are held against.
#pragma once

#include "yardstick.hpp"

#include <asyncrl/correction/token_batch.hpp>

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
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

/// A copy that moves 21 bytes a token in all: what the loss with a weight on old / rollout must move.
inline void copy(benchmark::State& state) {
    copy_bytes(state, state.range(0) * 21);
    per_token_rate(state);
}
