// SPDX-License-Identifier: Apache-2.0
/// @file One decision whose gradient is known: a softmax policy over a few tokens, each with a reward, and a rollout policy
/// whose logits are noisy copies.
#pragma once

#include <Eigen/Core>

#include <cmath>
#include <random>

using numbers = Eigen::ArrayXd;

inline constexpr Eigen::Index vocabulary = 100;
inline constexpr Eigen::Index samples = 64;  ///< of one estimate
inline constexpr double noise_levels[] = {0.1, 0.5, 1.0, 2.0};

/// Standard normal numbers by Box and Muller, from the same draws and in the same places as torch.randn on a CPU: so that the
/// instance of the published table is among ours. Needs at least 16.
inline numbers normals(std::mt19937& random, Eigen::Index count) {
    auto const uniform = [&] { return std::ldexp(static_cast<double>(random() & 0xffffffU), -24); };
    numbers x = numbers::NullaryExpr(count, uniform);
    auto const transform = [&](Eigen::Index first) {
        constexpr double turn = 6.283185307179586;
        for (Eigen::Index i = first; i < first + 8; ++i) {
            double const radius = std::sqrt(-2 * std::log(1 - x[i]));
            double const angle = turn * x[i + 8];
            x[i] = radius * std::cos(angle);
            x[i + 8] = radius * std::sin(angle);
        }
    };
    for (Eigen::Index first = 0; first + 16 <= count; first += 16) {
        transform(first);
    }
    if (count % 16 != 0) {
        for (Eigen::Index i = count - 16; i < count; ++i) {
            x[i] = uniform();
        }
        transform(count - 16);
    }
    return x;
}

inline numbers log_softmax(numbers const& logits) {
    double const largest = logits.maxCoeff();
    return logits - (largest + std::log((logits - largest).exp().sum()));
}

/// Mean of `x` under the distribution `p`.
inline double mean(numbers const& p, numbers const& x) {
    return (p * x).sum();
}

struct problem {
    numbers logits, rewards;

    explicit problem(std::mt19937& random) : logits(2 * normals(random, vocabulary)), rewards(normals(random, vocabulary)) {}

    [[nodiscard]] numbers log_policy() const { return log_softmax(logits); }
    [[nodiscard]] numbers log_rollout(double noise, std::mt19937& random) const {
        return log_softmax(logits + noise * normals(random, vocabulary));
    }
    /// Of the expected reward, by the logits.
    [[nodiscard]] numbers gradient() const {
        numbers const p = log_policy().exp();
        return p * (rewards - mean(p, rewards));
    }
};
