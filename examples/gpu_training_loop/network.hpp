// SPDX-License-Identifier: Apache-2.0
/// @file The policy of async_training on the device: the same parameters in the same order, its own small kernels. A real
/// trainer has its framework here.
#pragma once

#include "../async_training/task.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace device {

inline constexpr int width = 256;
inline constexpr int symbols = task::blank + 1;
inline constexpr int inputs = task::context_places * symbols;  ///< one embedding per place and symbol
inline constexpr int parameter_count = (inputs + 1) * width + (width + 1) * width + (width + 1) * task::vocabulary;

/// The contexts of the tokens to be predicted, one row each.
struct context_rows {
    std::uint8_t const* data;
    int stride;  ///< bytes from one row to the next
    int count;
};

/// Row-major, one row per context.
struct activations {
    float* first;   ///< [rows, width]
    float* second;  ///< [rows, width]
    float* logits;  ///< [rows, vocabulary]
};

void forward(float const* parameters, context_rows rows, activations const& a, cudaStream_t stream);

/// Writes the gradient by all parameters, from the loss's gradient by the logits, which stands in a.logits. Comes after
/// forward() of the same rows; a.first and a.second are overwritten with the gradients by them.
void backward(float const* parameters, context_rows rows, activations const& a, float* gradient, cudaStream_t stream);

/// The sum of numbers, or of their squares, in an order that depends on their count alone.
void add_up(float const* numbers, int count, bool squares, double* sum, cudaStream_t stream);

/// One step of Adam, numbered from 1, down the gradient, which is scaled first if its norm is above 1.
struct adam_state {
    float* mean;
    float* square;
};
void adam_step(float* parameters, float const* gradient, double const* squared_norm, adam_state const& state, int step,
               float learning_rate, cudaStream_t stream);

/// Numbers as an engine of lower precision holds them.
void round_to_bf16(float* to, float const* from, int count, cudaStream_t stream);
void round_to_fp8(float* to, float const* from, int count, cudaStream_t stream);

}  // namespace device
