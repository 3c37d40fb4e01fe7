// SPDX-License-Identifier: Apache-2.0
// What scripts/gpu_check.sh runs: every timed call once more with the same bits, captured and replayed, on a stream that waits
// for nobody behind a producer; then a table of bandwidths beside a copy. Ends with 77 where there is no GPU.
#include "cases.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace {

void must(cudaError_t error) {
    if (error != cudaSuccess) {
        throw std::runtime_error(cudaGetErrorString(error));
    }
}

/// The same bits from a second call, from a graph, and from a stream that does not wait for the default one.
bool agrees(std::string const& name, std::int64_t size, std::int64_t rotations) {
    auto const timed = cases::make(name, size, rotations);
    cudaStream_t stream{};
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    must(timed->run(nullptr));
    auto const first = timed->result();
    must(timed->run(stream));
    must(cudaStreamSynchronize(stream));
    bool same = timed->result() == first;
    bool const may_be_captured = name.rfind("thrust", 0) != 0;  // its reductions return to the host
    if (may_be_captured) {
        cudaGraph_t graph{};
        cudaGraphExec_t replay{};
        must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        must(timed->run(stream));
        must(cudaStreamEndCapture(stream, &graph));
        must(cudaGraphInstantiate(&replay, graph, 0));
        for (int i = 0; i < 3; ++i) {
            must(cudaGraphLaunch(replay, stream));
        }
        must(cudaStreamSynchronize(stream));
        same = same && timed->result() == first;
        must(cudaGraphExecDestroy(replay));
        must(cudaGraphDestroy(graph));
    }
    must(cudaStreamDestroy(stream));
    std::printf("%-20s %s\n", name.c_str(), same ? "same bits" : "DIFFERS");
    std::fflush(stdout);
    return same;
}

void time_all(std::int64_t tokens, std::int64_t vocabulary, int calls) {
    std::printf("\n%-20s %12s %10s %10s\n", "", "us", "GB/s", "of copy");
    double copy = 0;
    auto const line = [&](std::string const& name, std::int64_t size, std::int64_t sets) {
        auto const timed = cases::make(name, size, sets);
        double const s = cases::seconds(*timed, calls, nullptr);
        double const rate = timed->bytes() / s;
        copy = name == "copy" ? rate : copy;
        std::printf("%-20s %12.1f %10.1f %10.2f\n", name.c_str(), s * 1e6, rate / 1e9, rate / copy);
    };
    for (char const* const name : cases::of_tokens) {
        line(name, tokens, 2);
    }
    for (char const* const name : cases::of_logits) {
        line(name, vocabulary, std::max<std::int64_t>(1, (std::int64_t{1} << 24) / tokens));
    }
}

}  // namespace

/// gpu_check [log2 of tokens] [vocabulary] [calls]
int main(int argc, char** argv) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        std::puts("no GPU");
        return 77;
    }
    cudaDeviceProp properties{};
    must(cudaGetDeviceProperties(&properties, 0));
    std::int64_t const tokens = std::int64_t{1} << (argc > 1 ? std::atoi(argv[1]) : 24);
    std::int64_t const vocabulary = argc > 2 ? std::atoll(argv[2]) : 151936;
    std::printf("%s, %lld tokens, %lld logits a row\n\n", properties.name, static_cast<long long>(tokens),
                static_cast<long long>(vocabulary));
    bool good = true;
    for (char const* const name : cases::of_tokens) {
        good = std::strcmp(name, "copy") == 0 ? good : agrees(name, 1 << 12, 1) && good;
    }
    for (char const* const name : cases::of_logits) {
        good = agrees(name, 4096 + 1, 1024) && good;
    }
    time_all(tokens, vocabulary, argc > 3 ? std::atoi(argv[3]) : 20);
    return good ? 0 : 1;
}
