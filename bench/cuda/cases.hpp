// SPDX-License-Identifier: Apache-2.0
/// @file What is timed on a GPU, for two programs: one with Google Benchmark, and one that needs nothing but the toolkit.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace cases {

/// One call over inputs that rotate through more memory than the caches hold.
class timed_case {
  public:
    virtual ~timed_case() = default;
    timed_case() = default;
    timed_case(timed_case const&) = delete;
    timed_case& operator=(timed_case const&) = delete;

    /// Starts one call on the stream, over the next inputs.
    virtual cudaError_t run(cudaStream_t stream) = 0;
    /// What the last call left, for comparing runs bit by bit. Waits for the device.
    [[nodiscard]] virtual std::vector<unsigned char> result() const = 0;
    /// Bytes that one call must move at least.
    [[nodiscard]] virtual double bytes() const = 0;
};

/// `size`: tokens, in `rotations` sets; or the vocabulary of 2^26 / rotations logits in all.
[[nodiscard]] std::unique_ptr<timed_case> make(std::string const& name, std::int64_t size, std::int64_t rotations);

/// In the order of the table. `copy` is a device-to-device copy, by whose bandwidth the others are judged; `thrust clip,tis`
/// the straightforward version of `clip,tis`, one Thrust call for each step; with `bf16` columns and gradient are that.
inline constexpr char const* of_tokens[] = {
    "copy", "thrust clip,tis", "clip", "clip,tis", "clip,tis bf16", "clip,mis", "sat", "gspo", "gae"};
inline constexpr char const* of_logits[] = {"log_prob", "log_prob_gradient"};

/// Seconds of one call, the mean over `calls`, by events on the stream.
[[nodiscard]] double seconds(timed_case& timed, int calls, cudaStream_t stream);

}  // namespace cases
