// SPDX-License-Identifier: Apache-2.0
/// @file What host benchmarks are held against, a copy of as many bytes, and how they tell their time.
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

inline void per_token_rate(benchmark::State& state) {
    state.counters["tokens/s"] =
        benchmark::Counter(static_cast<double>(state.range(0)), benchmark::Counter::kIsIterationInvariantRate);
    state.counters["ns/token"] =
        benchmark::Counter(static_cast<double>(state.range(0)) * 1e-9,
                           benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

/// Moves `moved` bytes in all: half of them read, half written.
inline void copy_bytes(benchmark::State& state, std::int64_t moved) {
    auto const half = static_cast<std::size_t>(moved / 2);
    std::vector<char> from(half, 1);
    std::vector<char> to(half);
    for (auto _ : state) {
        std::memcpy(to.data(), from.data(), half);
        benchmark::DoNotOptimize(to.data());
        benchmark::ClobberMemory();
    }
}
