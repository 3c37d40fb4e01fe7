// SPDX-License-Identifier: Apache-2.0
/// @file The order statistic and the recursions once more, by the device-wide sorts and scans of CUB and Thrust: other kernels,
/// other cuts, other formulas. All arguments are the host's.
#pragma once

#include <cstdint>
#include <vector>

namespace device_algorithms {

/// The |a - b| of active elements in order: a radix sort of their bits.
[[nodiscard]] std::vector<float> sorted_magnitudes(std::vector<float> const& a, std::vector<float> const& b,
                                                   std::vector<std::uint8_t> const& active);

/// One element a position, rows one after the other.
struct tokens {
    std::vector<double> reward, value, action_value;
    std::vector<double> log_ratio;  ///< old - rollout
    std::vector<std::uint8_t> active;
    std::vector<std::int32_t> row;  ///< ascending
    std::vector<double> bootstrap;  ///< one a row
};

enum class recursion { gae, vtrace, retrace };

struct bounds {
    double gamma, lambda, rho_bar, c_bar;
};

struct answers {
    std::vector<double> advantage, target;
};

/// y_t = add_t + scale_t y_{t+1} as a scan of the maps' composition, from the last position to the first: of one row by
/// cub::DeviceScan, of several by thrust::inclusive_scan_by_key.
[[nodiscard]] answers run(recursion which, bounds const& with, tokens const& all);

}  // namespace device_algorithms
