// SPDX-License-Identifier: Apache-2.0
/// @file Random streams keyed by what is drawn, never by the thread that draws: a run has the same bits on any number of
/// threads.
#pragma once

#include <cstdint>

/// What a stream is for. Two streams with different keys are independent, so no draw shifts another.
enum class stream : std::uint64_t { weights, warm_start, prompt, sampling, evaluation };

/// Counter-based generator: SplitMix64 (Steele, Lea and Flood 2014) over a state that is hashed from the key.
class random_stream {
  public:
    random_stream(std::uint64_t seed, stream use, std::uint64_t first = 0, std::uint64_t second = 0)
        : state_(mix(mix(mix(mix(seed) ^ static_cast<std::uint64_t>(use)) ^ first) ^ second)) {}

    std::uint64_t bits() { return mix(state_ += increment); }

    /// Uniform in [0, 1), a multiple of 2^-24: exact in float.
    float uniform() { return static_cast<float>(bits() >> 40) * 0x1p-24F; }

    /// Uniform in [0, bound), for a small bound.
    int below(int bound) { return static_cast<int>(((bits() >> 32) * static_cast<std::uint64_t>(bound)) >> 32); }

  private:
    static constexpr std::uint64_t increment = 0x9E3779B97F4A7C15;

    static std::uint64_t mix(std::uint64_t z) {
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
        return z ^ (z >> 31);
    }

    std::uint64_t state_;
};
