// SPDX-License-Identifier: Apache-2.0
/// @file The calls on a GPU under Google Benchmark: 2^14 to 2^27 tokens, three vocabularies. Timed by events on the stream.
#include "cases.hpp"

#include <benchmark/benchmark.h>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>

namespace {

/// So many sets of inputs that they do not fit a cache of 128 MiB.
std::int64_t rotations(std::int64_t tokens) {
    return std::max<std::int64_t>(1, (std::int64_t{128} << 20) / (tokens * 21) + 1);
}

void time_calls(benchmark::State& state, char const* name, std::int64_t sets) {
    auto const timed = cases::make(name, state.range(0), std::min<std::int64_t>(sets, 64));
    for (auto _ : state) {
        state.SetIterationTime(cases::seconds(*timed, 1, nullptr));
    }
    state.counters["bytes/s"] = benchmark::Counter(timed->bytes(), benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace

int main(int argc, char** argv) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        std::puts("no GPU");
        return 77;
    }
    for (char const* const name : cases::of_tokens) {
        benchmark::RegisterBenchmark(name,
                                     [name](benchmark::State& state) { time_calls(state, name, rotations(state.range(0))); })
            ->RangeMultiplier(8)
            ->Range(1 << 14, 1 << 27)
            ->UseManualTime();
    }
    for (char const* const name : cases::of_logits) {
        benchmark::RegisterBenchmark(name, [name](benchmark::State& state) { time_calls(state, name, 1); })
            ->Arg(32000)
            ->Arg(128256)
            ->Arg(151936)
            ->UseManualTime();
    }
    benchmark::Initialize(&argc, argv);
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
