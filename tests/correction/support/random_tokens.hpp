// SPDX-License-Identifier: Apache-2.0
/// @file Random batches of tokens, and the comparison of two methods on one.
#pragma once

#include "eight.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

namespace support {

/// Sequences of `length` tokens, or of random lengths from 1 on. Log-probs are multiples of 1/1024 and so exact in float; one
/// token in eight is masked.
[[nodiscard]] inline tokens random_tokens(int sequences, int length = 0, bool one_advantage = true) {
    std::mt19937_64 random(20261129);
    auto const uniform = [&](double low, double high) {
        double const share = static_cast<double>(random() >> 11) * 0x1p-53;
        return low + share * (high - low);
    };
    auto const exact = [](double x) { return std::round(x * 1024) / 1024; };
    tokens t;
    t.offsets = {0};
    for (int b = 0; b < sequences; ++b) {
        int const n = length > 0 ? length : 1 + static_cast<int>(random() % 30);
        double const advantage = exact(uniform(-2, 2));
        for (int i = 0; i < n; ++i) {
            double const old = exact(-4 * uniform(0.01, 1) * uniform(0.01, 1));
            t.old_log_prob.push_back(old);
            t.log_prob.push_back(std::min(-0x1p-10, old + exact(uniform(-0.6, 0.6) * uniform(0, 1))));
            t.rollout_log_prob.push_back(std::min(-0x1p-10, old + exact(uniform(-0.3, 0.3) * uniform(0, 1))));
            t.advantage.push_back(one_advantage ? advantage : exact(uniform(-2, 2)));
            t.mask.push_back(random() % 8 != 0);
            t.version.push_back(static_cast<std::int32_t>(random() % 9));
        }
        t.offsets.push_back(static_cast<std::int64_t>(t.log_prob.size()));
    }
    t.policy_version = 8;
    return t;
}

/// Losses, gradients, weights and flags agree to rounding; flags exactly.
inline void check_agree(answer const& a, answer const& b, asyncrl::dtype type) {
    REQUIRE(a.loss.size() == b.loss.size());
    for (std::size_t i = 0; i < a.loss.size(); ++i) {
        INFO("token " << i << ": " << a.loss[i] << " and " << b.loss[i]);
        CHECK(near(a.loss[i], b.loss[i], type, 1e-2));
        CHECK(near(a.gradient[i], b.gradient[i], type, 1e-2));
        CHECK(a.flags[i] == b.flags[i]);
    }
}

}  // namespace support
