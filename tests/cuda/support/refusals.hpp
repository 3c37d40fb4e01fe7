// SPDX-License-Identifier: Apache-2.0
/// @file Whether a call put anything on its stream, and whether two sentences agree.
#pragma once

#include "device_memory.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

namespace device {

/// True if go(stream) is cudaErrorInvalidValue, and has launched nothing: there is nothing to capture.
template <typename Go>
[[nodiscard]] bool refused_before_any_launch(Go const& go) {
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    std::size_t nodes = 0;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    cudaError_t const error = go(stream);
    must(cudaStreamEndCapture(stream, &graph));
    must(cudaGraphGetNodes(graph, nullptr, &nodes));
    must(cudaGraphDestroy(graph));
    must(cudaStreamDestroy(stream));
    return error == cudaErrorInvalidValue && nodes == 0;
}

/// A sentence with `*` for an address or a size.
[[nodiscard]] inline bool is_like(std::string const& sentence, std::string const& pattern) {
    std::size_t const star = pattern.find('*');
    if (star == std::string::npos) {
        return sentence == pattern;
    }
    std::string const behind = pattern.substr(star + 1);
    return sentence.size() > star + behind.size() && sentence.compare(0, star, pattern, 0, star) == 0 &&
           sentence.compare(sentence.size() - behind.size(), behind.size(), behind) == 0;
}

}  // namespace device
