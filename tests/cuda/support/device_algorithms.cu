// SPDX-License-Identifier: Apache-2.0
#include "device_algorithms.hpp"

#include <thrust/device_vector.h>
#include <thrust/scan.h>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <stdexcept>

namespace device_algorithms {
namespace {

void must(cudaError_t error) {
    if (error != cudaSuccess) {
        throw std::runtime_error(cudaGetErrorString(error));
    }
}

template <typename Element>
Element* raw(thrust::device_vector<Element>& from) {
    return thrust::raw_pointer_cast(from.data());
}
template <typename Element>
Element const* raw(thrust::device_vector<Element> const& from) {
    return thrust::raw_pointer_cast(from.data());
}
template <typename Element>
std::vector<Element> on_host(thrust::device_vector<Element> const& from) {
    std::vector<Element> to(from.size());
    must(cudaMemcpy(to.data(), raw(from), to.size() * sizeof(Element), cudaMemcpyDeviceToHost));
    return to;
}

/// Calls algorithm(room, bytes) twice, as CUB wants it: for the bytes, and to run.
template <typename Algorithm>
void with_room(Algorithm const& algorithm) {
    std::size_t bytes = 0;
    must(algorithm(nullptr, bytes));
    thrust::device_vector<unsigned char> room(std::max<std::size_t>(bytes, 1));
    must(algorithm(raw(room), bytes));
}

unsigned blocks_for(std::size_t count) {
    return static_cast<unsigned>((count + 127) / 128);
}
__device__ std::size_t own_index() {
    return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
}

constexpr std::uint32_t no_key = 0xffffffffU;

__global__ void keys_kernel(float const* a, float const* b, std::uint8_t const* active, std::size_t count,
                            std::uint32_t* keys) {
    std::size_t const i = own_index();
    if (i < count) {
        keys[i] = active[i] != 0 ? __float_as_uint(fabsf(a[i] - b[i])) : no_key;
    }
}

/// y -> add + scale y
struct affine {
    double scale, add;
};
/// `later` first, then `earlier`. Associative, not commutative.
struct then {
    __host__ __device__ affine operator()(affine const& later, affine const& earlier) const {
        return {earlier.scale * later.scale, earlier.add + earlier.scale * later.add};
    }
};

/// An active token that a position can see behind it, if there is one.
struct sight {
    int there;
    double value, ratio;
};
struct nearer {
    __host__ __device__ sight operator()(sight const& farther, sight const& near) const {
        return near.there != 0 ? near : farther;
    }
};

struct columns {
    double const *reward, *value, *action_value, *log_ratio, *bootstrap;
    std::uint8_t const* active;
    std::int32_t const* row;
    std::size_t count;

    __device__ double ratio(std::size_t i, recursion which) const { return which == recursion::gae ? 1 : exp(log_ratio[i]); }
};

// Scans go forwards, so everything stands in reverse: place p holds position count - 1 - p.
__global__ void sights_kernel(columns c, recursion which, sight* sights, std::int32_t* rows) {
    std::size_t const p = own_index();
    if (p < c.count) {
        std::size_t const i = c.count - 1 - p;
        rows[p] = c.row[i];
        sights[p] = c.active[i] != 0 ? sight{1, c.value[i], c.ratio(i, which)} : sight{0, 0, 0};
    }
}

/// The sight of position i is what was gathered up to the place before its own, in the same row.
__device__ sight behind(columns const& c, sight const* gathered, std::size_t i) {
    bool const last = i + 1 == c.count || c.row[i + 1] != c.row[i];
    sight const seen = last ? sight{0, 0, 0} : gathered[c.count - 2 - i];
    return seen.there != 0 ? seen : sight{0, c.bootstrap[c.row[i]], 0};
}

__global__ void maps_kernel(columns c, recursion which, bounds with, sight const* gathered, affine* maps) {
    std::size_t const p = own_index();
    if (p >= c.count) {
        return;
    }
    std::size_t const i = c.count - 1 - p;
    if (c.active[i] == 0) {
        maps[p] = {1, 0};
        return;
    }
    sight const next = behind(c, gathered, i);
    double const w = c.ratio(i, which);
    double const target = c.reward[i] + with.gamma * next.value;
    if (which == recursion::gae) {
        maps[p] = {with.gamma * with.lambda, target - c.value[i]};
    } else if (which == recursion::vtrace) {
        maps[p] = {with.gamma * with.lambda * fmin(with.c_bar, w), fmin(with.rho_bar, w) * (target - c.value[i])};
    } else {
        maps[p] = {with.gamma * with.lambda * fmin(1.0, next.ratio), target - c.action_value[i]};
    }
}

__global__ void answers_kernel(columns c, recursion which, bounds with, sight const* gathered, affine const* scanned,
                               double* advantage, double* target) {
    std::size_t const i = own_index();
    if (i >= c.count) {
        return;
    }
    advantage[i] = target[i] = 0;
    if (c.active[i] == 0) {
        return;
    }
    double const y = scanned[c.count - 1 - i].add;  // of the map applied to 0
    if (which == recursion::gae) {
        advantage[i] = y;
        target[i] = c.value[i] + y;
    } else if (which == recursion::vtrace) {
        bool const last = i + 1 == c.count || c.row[i + 1] != c.row[i];
        double const later = last ? 0 : scanned[c.count - 2 - i].add;
        double const next = behind(c, gathered, i).value + later;
        target[i] = c.value[i] + y;
        advantage[i] = fmin(with.rho_bar, c.ratio(i, which)) * (c.reward[i] + with.gamma * next - c.value[i]);
    } else {
        target[i] = c.action_value[i] + y;
        advantage[i] = target[i] - c.value[i];
    }
}

}  // namespace

std::vector<float> sorted_magnitudes(std::vector<float> const& a, std::vector<float> const& b,
                                     std::vector<std::uint8_t> const& active) {
    thrust::device_vector<float> const first(a.begin(), a.end());
    thrust::device_vector<float> const second(b.begin(), b.end());
    thrust::device_vector<std::uint8_t> const mask(active.begin(), active.end());
    thrust::device_vector<std::uint32_t> keys(a.size());
    thrust::device_vector<std::uint32_t> sorted(a.size());
    keys_kernel<<<blocks_for(a.size()), 128>>>(raw(first), raw(second), raw(mask), a.size(), raw(keys));
    must(cudaGetLastError());
    with_room([&](void* room, std::size_t& bytes) {
        return cub::DeviceRadixSort::SortKeys(room, bytes, raw(keys), raw(sorted), static_cast<int>(a.size()));
    });
    std::vector<float> magnitudes;
    for (std::uint32_t const key : on_host(sorted)) {
        if (key != no_key) {
            magnitudes.push_back(std::bit_cast<float>(key));
        }
    }
    return magnitudes;
}

answers run(recursion which, bounds const& with, tokens const& all) {
    auto const on_device = [](std::vector<double> const& from) {
        return thrust::device_vector<double>(from.begin(), from.end());
    };
    thrust::device_vector<double> const reward = on_device(all.reward);
    thrust::device_vector<double> const value = on_device(all.value);
    thrust::device_vector<double> const action_value = on_device(all.action_value);
    thrust::device_vector<double> const log_ratio = on_device(all.log_ratio);
    thrust::device_vector<double> const bootstrap = on_device(all.bootstrap);
    thrust::device_vector<std::uint8_t> const active(all.active.begin(), all.active.end());
    thrust::device_vector<std::int32_t> const row(all.row.begin(), all.row.end());
    std::size_t const count = all.reward.size();
    columns const c{raw(reward), raw(value), raw(action_value), raw(log_ratio), raw(bootstrap), raw(active), raw(row), count};
    thrust::device_vector<sight> sights(count);
    thrust::device_vector<std::int32_t> rows(count);
    thrust::device_vector<affine> maps(count);
    thrust::device_vector<double> advantage(count);
    thrust::device_vector<double> target(count);

    sights_kernel<<<blocks_for(count), 128>>>(c, which, raw(sights), raw(rows));
    must(cudaGetLastError());
    thrust::inclusive_scan_by_key(rows.begin(), rows.end(), sights.begin(), sights.begin(), thrust::equal_to<std::int32_t>(),
                                  nearer());
    maps_kernel<<<blocks_for(count), 128>>>(c, which, with, raw(sights), raw(maps));
    must(cudaGetLastError());
    if (all.bootstrap.size() == 1) {
        with_room([&](void* room, std::size_t& bytes) {
            return cub::DeviceScan::InclusiveScan(room, bytes, raw(maps), raw(maps), then(), static_cast<int>(count));
        });
    } else {
        thrust::inclusive_scan_by_key(rows.begin(), rows.end(), maps.begin(), maps.begin(), thrust::equal_to<std::int32_t>(),
                                      then());
    }
    answers_kernel<<<blocks_for(count), 128>>>(c, which, with, raw(sights), raw(maps), raw(advantage), raw(target));
    must(cudaGetLastError());
    return {on_host(advantage), on_host(target)};
}

}  // namespace device_algorithms
