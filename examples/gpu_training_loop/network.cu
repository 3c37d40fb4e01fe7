// SPDX-License-Identifier: Apache-2.0
#include "network.hpp"

#include "device.hpp"

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cub/block/block_reduce.cuh>

#include <cmath>

namespace device {
namespace {

constexpr int block = 256;

template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), int threads, cudaStream_t stream, Arguments... arguments) {
    kernel<<<static_cast<unsigned>((threads + block - 1) / block), block, 0, stream>>>(arguments...);
    must(cudaGetLastError());
}

__device__ int thread_index() {
    return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}

/// Weights from `in` numbers to `out`: those of one input side by side, and then the biases, like weights of one input more
/// that is always 1.
template <typename Number>
struct layer {
    Number* weights;
    int in;
    int out;

    __host__ __device__ int size() const { return (in + 1) * out; }
    __device__ Number& at(int from, int to) const { return weights[from * out + to]; }
};

/// The layers inside the one array of parameters or gradients.
template <typename Number>
struct layers {
    layer<Number> embedding, hidden, head;

    explicit layers(Number* all)
        : embedding{all, inputs, width},
          hidden{all + embedding.size(), width, width},
          head{hidden.weights + hidden.size(), width, task::vocabulary} {}
};

/// Of each place of a context one of `symbols` inputs is 1, the others are 0.
__global__ void embed(layer<float const> w, context_rows rows, float* y) {
    int const i = thread_index();
    if (i >= rows.count * w.out) {
        return;
    }
    int const to = i % w.out;
    std::uint8_t const* context = rows.data + i / w.out * rows.stride;
    float sum = w.at(w.in, to);
    for (int place = 0; place < task::context_places; ++place) {
        sum += w.at(place * symbols + context[place], to);
    }
    y[i] = fmaxf(sum, 0);
}

__global__ void apply(layer<float const> w, int rows, float const* x, bool rectified, float* y) {
    int const i = thread_index();
    if (i >= rows * w.out) {
        return;
    }
    int const to = i % w.out;
    float const* from = x + i / w.out * w.in;
    float sum = w.at(w.in, to);
    for (int k = 0; k < w.in; ++k) {
        sum += w.at(k, to) * from[k];
    }
    y[i] = rectified ? fmaxf(sum, 0) : sum;
}

/// Overwrites x, which was rectified, with the gradient by it.
__global__ void gradient_of_input(layer<float const> w, int rows, float const* by_y, float* x) {
    int const i = thread_index();
    if (i >= rows * w.in) {
        return;
    }
    float const* by = by_y + i / w.in * w.out;
    float sum = 0;
    for (int to = 0; to < w.out; ++to) {
        sum += w.at(i % w.in, to) * by[to];
    }
    x[i] = x[i] > 0 ? sum : 0;
}

__global__ void gradient_of_weights(layer<float> g, int rows, float const* x, float const* by_y) {
    int const i = thread_index();
    if (i >= g.size()) {
        return;
    }
    int const from = i / g.out;
    float sum = 0;
    for (int row = 0; row < rows; ++row) {
        sum += (from < g.in ? x[row * g.in + from] : 1) * by_y[row * g.out + i % g.out];
    }
    g.weights[i] = sum;
}

__global__ void gradient_of_embedding(layer<float> g, context_rows rows, float const* by_y) {
    int const i = thread_index();
    if (i >= g.size()) {
        return;
    }
    int const from = i / g.out;
    float sum = 0;
    for (int row = 0; row < rows.count; ++row) {
        if (from == g.in || rows.data[row * rows.stride + from / symbols] == from % symbols) {
            sum += by_y[row * g.out + i % g.out];
        }
    }
    g.weights[i] = sum;
}

__global__ void add_up_kernel(float const* numbers, int count, bool squares, double* sum) {
    using reduce = cub::BlockReduce<double, block>;
    __shared__ typename reduce::TempStorage storage;
    double mine = 0;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += block) {
        double const x = numbers[i];
        mine += squares ? x * x : x;
    }
    double const all = reduce(storage).Sum(mine);
    if (threadIdx.x == 0) {
        *sum = all;
    }
}

__global__ void adam_kernel(float* parameters, float const* gradient, double const* squared_norm, adam_state state, float rate,
                            float unbias) {
    constexpr float beta1 = 0.9F;
    constexpr float beta2 = 0.99F;
    int const i = thread_index();
    if (i >= parameter_count) {
        return;
    }
    float const norm = sqrtf(static_cast<float>(*squared_norm));
    float const g = norm > 1 ? gradient[i] / norm : gradient[i];
    float const mean = state.mean[i] += (1 - beta1) * (g - state.mean[i]);
    float const square = state.square[i] += (1 - beta2) * (g * g - state.square[i]);
    parameters[i] -= rate * mean / (sqrtf(unbias * square) + 1e-8F);
}

template <typename Narrow>
__global__ void round_kernel(float* to, float const* from, int count) {
    int const i = thread_index();
    if (i < count) {
        to[i] = static_cast<float>(Narrow(from[i]));
    }
}

}  // namespace

void forward(float const* parameters, context_rows rows, activations const& a, cudaStream_t stream) {
    layers<float const> const w(parameters);
    launch(embed, rows.count * width, stream, w.embedding, rows, a.first);
    launch(apply, rows.count * width, stream, w.hidden, rows.count, a.first, true, a.second);
    launch(apply, rows.count * task::vocabulary, stream, w.head, rows.count, a.second, false, a.logits);
}

void backward(float const* parameters, context_rows rows, activations const& a, float* gradient, cudaStream_t stream) {
    layers<float const> const w(parameters);
    layers<float> const g(gradient);
    launch(gradient_of_weights, g.head.size(), stream, g.head, rows.count, a.second, a.logits);
    launch(gradient_of_input, rows.count * width, stream, w.head, rows.count, a.logits, a.second);
    launch(gradient_of_weights, g.hidden.size(), stream, g.hidden, rows.count, a.first, a.second);
    launch(gradient_of_input, rows.count * width, stream, w.hidden, rows.count, a.second, a.first);
    launch(gradient_of_embedding, g.embedding.size(), stream, g.embedding, rows, a.first);
}

void add_up(float const* numbers, int count, bool squares, double* sum, cudaStream_t stream) {
    launch(add_up_kernel, block, stream, numbers, count, squares, sum);
}

void adam_step(float* parameters, float const* gradient, double const* squared_norm, adam_state const& state, int step,
               float learning_rate, cudaStream_t stream) {
    float const rate = learning_rate / (1 - std::pow(0.9F, static_cast<float>(step)));
    float const unbias = 1 / (1 - std::pow(0.99F, static_cast<float>(step)));
    launch(adam_kernel, parameter_count, stream, parameters, gradient, squared_norm, state, rate, unbias);
}

void round_to_bf16(float* to, float const* from, int count, cudaStream_t stream) {
    launch(round_kernel<__nv_bfloat16>, count, stream, to, from, count);
}

void round_to_fp8(float* to, float const* from, int count, cudaStream_t stream) {
    launch(round_kernel<__nv_fp8_e4m3>, count, stream, to, from, count);
}

}  // namespace device
