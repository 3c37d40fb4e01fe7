// SPDX-License-Identifier: Apache-2.0
#include <asyncrl/config.hpp>

ASYNCRL_HOST_DEVICE float twice(float x) {
    return x + x;
}

__global__ void double_all(float* values, int count) {
    int const i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) {
        values[i] = twice(values[i]);
    }
}
