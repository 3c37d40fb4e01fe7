// SPDX-License-Identifier: Apache-2.0
/// @file What kernels share that compute in double, with columns of doubles too, and whose reports begin with zeros.
#pragma once

#include <asyncrl/cuda/detail/device.cuh>

#include <algorithm>
#include <cstdint>

ASYNCRL_BEGIN_NAMESPACE
namespace gpu::detail {

/// `blocks`: the grid, on which no bit of the result depends; 0: as many as there is work for.
[[nodiscard]] inline unsigned grid_for(std::int64_t parts, unsigned blocks) {
    return blocks > 0 ? blocks : static_cast<unsigned>(std::max<std::int64_t>(1, std::min<std::int64_t>(parts, 1 << 16)));
}

[[nodiscard]] __device__ __forceinline__ double load_double(column const& c, place p) {
    return c.type == dtype::f64 ? static_cast<double const*>(c.data)[p.in(c.row_stride, c.token_stride)]
                                : static_cast<double>(load_element(c, p));
}

__device__ __forceinline__ void store_double(output_column const& c, place p, double x) {
    if (c.type == dtype::f64) {
        static_cast<double*>(c.data)[p.in(c.row_stride, c.token_stride)] = x;
    } else {
        store_element(c, p, static_cast<float>(x));
    }
}

/// Adds to a number of a report that other blocks add to as well.
__device__ __forceinline__ void add_to_report(std::int64_t* to, std::int64_t x) {
    if (x != 0) {
        atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(x));
    }
}

/// Starts a report.
template <typename Report>
__global__ void start_report_kernel(Report* report) {
    *report = Report{};
}

}  // namespace gpu::detail
ASYNCRL_END_NAMESPACE
