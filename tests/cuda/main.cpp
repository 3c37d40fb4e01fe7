// SPDX-License-Identifier: Apache-2.0
// Runs the tests where there is a device; elsewhere ends with the code that ctest takes for "skipped".
#define CATCH_CONFIG_RUNNER
#include "catch.hpp"

#include <cuda_runtime_api.h>

#include <cstdio>

int main(int argc, char** argv) {
    int devices = 0;
    cudaError_t const error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices == 0) {
        std::printf("skipped: %s\n", error != cudaSuccess ? cudaGetErrorString(error) : "no device");
        return 77;
    }
    return Catch::Session().run(argc, argv);
}
