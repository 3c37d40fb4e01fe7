// SPDX-License-Identifier: Apache-2.0
/// @file Numbers as a rollout engine of lower precision holds them: a source of real train-inference mismatch.
#pragma once

#include <Eigen/Core>

#include <algorithm>
#include <array>
#include <cmath>

enum class precision { fp32, bf16, fp8 };
inline constexpr std::array<char const*, 3> precision_names{"fp32", "bf16", "fp8"};

/// Rounds to the nearest number, ties to even, that has `bits` bits after the leading one, an exponent of at least
/// `lowest_exponent` (subnormal below it) and a magnitude of at most `largest`.
inline float round_to(float x, int bits, int lowest_exponent, float largest) {
    if (x == 0 || !std::isfinite(x)) {
        return x;
    }
    int const exponent = std::max(std::ilogb(x), lowest_exponent);
    float const unit = std::ldexp(1.0F, exponent - bits);
    return std::clamp(std::nearbyint(x / unit) * unit, -largest, largest);
}

/// fp8 is e4m3 without infinities: 3 bits, exponents from -6, at most 448. Engines that add a scale per tensor lose less.
inline void round_weights(Eigen::VectorXf& weights, precision to) {
    if (to == precision::bf16) {
        weights = weights.unaryExpr([](float x) { return round_to(x, 7, -126, 0x1.FEp127F); });
    } else if (to == precision::fp8) {
        weights = weights.unaryExpr([](float x) { return round_to(x, 3, -6, 448.0F); });
    }
}
