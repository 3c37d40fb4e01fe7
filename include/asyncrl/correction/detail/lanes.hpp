// SPDX-License-Identifier: Apache-2.0
/// @file One native SIMD register of floats with the scalar spelling of token/real.hpp. Host loops only.
#pragma once

#if defined(__CUDACC__)
#error "asyncrl's host loops belong in .cpp files: under nvcc Eigen's packets have another width"
#endif

#include <asyncrl/correction/token/real.hpp>

#include <Eigen/Core>

#include <cmath>
#include <cstdint>
#include <cstring>

ASYNCRL_BEGIN_NAMESPACE

/// A namespace of its own, so that its functions are found by their arguments and hide none of token/real.hpp's.
namespace simd {

#if defined(__AVX512F__)
inline constexpr int native_width = 16;
#elif defined(__AVX__)
inline constexpr int native_width = 8;
#else
inline constexpr int native_width = 4;
#endif

// One specialisation for each width: g++ 12 takes no size that depends on a template parameter.
template <int Width>
struct registers;
template <>
struct registers<4> {
    typedef float reals __attribute__((vector_size(16)));
    typedef std::int32_t integers __attribute__((vector_size(16)));
};
template <>
struct registers<8> {
    typedef float reals __attribute__((vector_size(32)));
    typedef std::int32_t integers __attribute__((vector_size(32)));
};
template <>
struct registers<16> {
    typedef float reals __attribute__((vector_size(64)));
    typedef std::int32_t integers __attribute__((vector_size(64)));
};

/// `Width` floats. The width is part of the type, so that translation units compiled for different machines do not mix.
template <int Width>
struct lanes {
    using vector = typename registers<Width>::reals;
    vector v;

    lanes() = default;
    ASYNCRL_HOST_DEVICE lanes(vector x) : v(x) {}  // NOLINT: a lanes is its vector
    ASYNCRL_HOST_DEVICE explicit lanes(float x) : v(x - vector{}) {}
    ASYNCRL_HOST_DEVICE explicit lanes(double x) : lanes(static_cast<float>(x)) {}
    ASYNCRL_HOST_DEVICE explicit lanes(int x) : lanes(static_cast<float>(x)) {}
};

/// -1 in each lane where a condition holds, else 0.
template <int Width>
struct lane_mask {
    using vector = typename registers<Width>::integers;
    vector v;
};

template <int Width>
struct lane_bits {
    using vector = typename lane_mask<Width>::vector;
    vector v;
};

#define ASYNCRL_LANES_OPERATOR(result, left, right, op)                                          \
    template <int Width>                                                                         \
    [[nodiscard]] ASYNCRL_HOST_DEVICE result<Width> operator op(left<Width> a, right<Width> b) { \
        return {a.v op b.v};                                                                     \
    }
ASYNCRL_LANES_OPERATOR(lanes, lanes, lanes, +)
ASYNCRL_LANES_OPERATOR(lanes, lanes, lanes, -)
ASYNCRL_LANES_OPERATOR(lanes, lanes, lanes, *)
ASYNCRL_LANES_OPERATOR(lanes, lanes, lanes, /)
ASYNCRL_LANES_OPERATOR(lane_mask, lanes, lanes, <)
ASYNCRL_LANES_OPERATOR(lane_mask, lanes, lanes, >)
ASYNCRL_LANES_OPERATOR(lane_mask, lanes, lanes, <=)
ASYNCRL_LANES_OPERATOR(lane_mask, lanes, lanes, >=)
ASYNCRL_LANES_OPERATOR(lane_mask, lanes, lanes, ==)
ASYNCRL_LANES_OPERATOR(lane_mask, lane_mask, lane_mask, &)
ASYNCRL_LANES_OPERATOR(lane_mask, lane_mask, lane_mask, |)
ASYNCRL_LANES_OPERATOR(lane_bits, lane_bits, lane_bits, &)
ASYNCRL_LANES_OPERATOR(lane_bits, lane_bits, lane_bits, |)
ASYNCRL_LANES_OPERATOR(lane_bits, lane_bits, lane_bits, +)
#undef ASYNCRL_LANES_OPERATOR

template <int Width>
[[nodiscard]] ASYNCRL_HOST_DEVICE lanes<Width> operator-(lanes<Width> a) {
    return {-a.v};
}
template <int Width>
[[nodiscard]] ASYNCRL_HOST_DEVICE lane_bits<Width> operator<<(lane_bits<Width> a, int by) {
    return {a.v << by};
}
template <int Width>
[[nodiscard]] ASYNCRL_HOST_DEVICE lane_bits<Width> operator>>(lane_bits<Width> a, int by) {
    return {a.v >> by};
}
template <int Width>
[[nodiscard]] ASYNCRL_HOST_DEVICE lane_mask<Width> operator!(lane_mask<Width> a) {
    return {~a.v};
}
template <int Width>
[[nodiscard]] ASYNCRL_HOST_DEVICE lanes<Width> select(lane_mask<Width> condition, lanes<Width> yes, lanes<Width> no) {
    return {condition.v ? yes.v : no.v};
}
template <int Width>
[[nodiscard]] ASYNCRL_HOST_DEVICE lane_bits<Width> mark(lane_mask<Width> condition, std::uint32_t bits) {
    using vector = typename lane_bits<Width>::vector;
    return {condition.v & (vector{} + static_cast<std::int32_t>(bits))};
}
template <int Width>
[[nodiscard]] ASYNCRL_HOST_DEVICE lane_bits<Width> select_bits(lane_mask<Width> condition, lane_bits<Width> yes,
                                                               lane_bits<Width> no) {
    return {condition.v ? yes.v : no.v};
}
template <int Width>
ASYNCRL_HOST_DEVICE void tick_low(lane_bits<Width>& counts, lane_mask<Width> condition) {
    counts.v -= condition.v;
}
template <int Width>
[[nodiscard]] ASYNCRL_HOST_DEVICE lane_bits<Width> low_half(lane_bits<Width> counts) {
    return {counts.v & 0xffff};
}
template <int Width>
[[nodiscard]] ASYNCRL_HOST_DEVICE lane_bits<Width> high_half(lane_bits<Width> counts) {
    return {counts.v >> 16};
}

template <int Width>
[[nodiscard]] ASYNCRL_HOST_DEVICE lane_bits<Width> bits_in(lanes<Width> x) {
    return {__builtin_bit_cast(typename lane_bits<Width>::vector, x.v)};
}
template <int Width>
[[nodiscard]] ASYNCRL_HOST_DEVICE lanes<Width> absolute(lanes<Width> x) {
    return {__builtin_bit_cast(typename lanes<Width>::vector, bits_in(x).v & 0x7fffffff)};
}
template <int Width>
[[nodiscard]] ASYNCRL_HOST_DEVICE lane_mask<Width> is_nonfinite(lanes<Width> x) {
    return {(bits_in(x).v & 0x7f800000) == 0x7f800000};
}
template <int Width>
[[nodiscard]] ASYNCRL_HOST_DEVICE lane_mask<Width> is_nan(lanes<Width> x) {
    return {(bits_in(x).v & 0x7fffffff) > 0x7f800000};
}

/// Eigen's packet functions: within 2 ulp.
#define ASYNCRL_LANES_FUNCTION(name, eigen_name)                          \
    template <int Width>                                                  \
    [[nodiscard]] ASYNCRL_HOST_DEVICE lanes<Width> name(lanes<Width> x) { \
        Eigen::Array<float, Width, 1> buffer;                             \
        std::memcpy(buffer.data(), &x.v, sizeof x.v);                     \
        buffer = buffer.eigen_name();                                     \
        std::memcpy(&x.v, buffer.data(), sizeof x.v);                     \
        return x;                                                         \
    }
ASYNCRL_LANES_FUNCTION(exponential, exp)
ASYNCRL_LANES_FUNCTION(exponential_minus_one, expm1)
ASYNCRL_LANES_FUNCTION(logarithm, log)
ASYNCRL_LANES_FUNCTION(logarithm_of_one_plus, log1p)
#undef ASYNCRL_LANES_FUNCTION

}  // namespace simd

template <int Width>
struct real_traits<simd::lanes<Width>> {
    using mask = simd::lane_mask<Width>;
    using bits = simd::lane_bits<Width>;
    static constexpr double k3_series_below = real_traits<float>::k3_series_below;
    static constexpr double largest_exponent = real_traits<float>::largest_exponent;
};

namespace detail {

using simd::lanes;
using native_lanes = lanes<simd::native_width>;

/// The transcendental functions of host loops.
struct host_math {
    template <int Width>
    [[nodiscard]] ASYNCRL_HOST_DEVICE lanes<Width> exp(lanes<Width> x) const {
        return exponential(x);
    }
    template <int Width>
    [[nodiscard]] ASYNCRL_HOST_DEVICE lanes<Width> expm1(lanes<Width> x) const {
        return exponential_minus_one(x);
    }
    template <int Width>
    [[nodiscard]] ASYNCRL_HOST_DEVICE lanes<Width> log(lanes<Width> x) const {
        return logarithm(x);
    }
    template <int Width>
    [[nodiscard]] ASYNCRL_HOST_DEVICE lanes<Width> log1p(lanes<Width> x) const {
        return logarithm_of_one_plus(x);
    }
    [[nodiscard]] double exp(double x) const { return std::exp(x); }
    [[nodiscard]] double expm1(double x) const { return std::expm1(x); }
    [[nodiscard]] double log(double x) const { return std::log(x); }
    [[nodiscard]] double log1p(double x) const { return std::log1p(x); }
};

// What a host loop needs of a Real beyond token/real.hpp: how many tokens it holds, and to move them.
template <typename Real>
struct packing;

template <int Width>
struct packing<lanes<Width>> {
    using element = float;
    static constexpr int width = Width;

    [[nodiscard]] static ASYNCRL_HOST_DEVICE lanes<Width> load(float const* from) {
        lanes<Width> x;
        std::memcpy(&x.v, from, sizeof x.v);
        return x;
    }
    static ASYNCRL_HOST_DEVICE void store(float* to, lanes<Width> x) { std::memcpy(to, &x.v, sizeof x.v); }
    [[nodiscard]] static ASYNCRL_HOST_DEVICE simd::lane_mask<Width> load_mask(std::uint8_t const* from) {
        // Every lane gets the four bytes that hold its own, and keeps that one: wider than a conversion, but all SIMD.
        typename simd::registers<Width>::integers words{};
        typename simd::registers<Width>::integers own{};
        for (int group = 0; group < Width / 4; ++group) {
            std::int32_t word;
            std::memcpy(&word, from + 4 * group, sizeof word);
            for (int i = 0; i < 4; ++i) {
                words[4 * group + i] = word;
                own[4 * group + i] = static_cast<std::int32_t>(0xffU << (8 * i));
            }
        }
        return {(words & own) != 0};
    }
    [[nodiscard]] static double sum(lanes<Width> const& x) {
        double total = 0;
        for (int i = 0; i < Width; ++i) {
            total += static_cast<double>(x.v[i]);
        }
        return total;
    }
    [[nodiscard]] static std::int64_t sum(simd::lane_bits<Width> const& x) {
        std::int64_t total = 0;
        for (int i = 0; i < Width; ++i) {
            total += x.v[i];
        }
        return total;
    }
    [[nodiscard]] static double maximum(lanes<Width> const& x) {
        double largest = static_cast<double>(x.v[0]);
        for (int i = 1; i < Width; ++i) {
            largest = static_cast<double>(x.v[i]) > largest ? static_cast<double>(x.v[i]) : largest;
        }
        return largest;
    }
    static ASYNCRL_HOST_DEVICE void store_bits(std::uint32_t* to, simd::lane_bits<Width> x) {
        std::memcpy(to, &x.v, sizeof x.v);
    }
};

/// The reference path: one double at a time.
template <>
struct packing<double> {
    using element = double;
    static constexpr int width = 1;

    [[nodiscard]] static double load(double const* from) { return *from; }
    static void store(double* to, double x) { *to = x; }
    [[nodiscard]] static bool load_mask(std::uint8_t const* from) { return *from != 0; }
    [[nodiscard]] static double sum(double x) { return x; }
    [[nodiscard]] static std::int64_t sum(std::uint32_t x) { return x; }
    [[nodiscard]] static double maximum(double x) { return x; }
    static void store_bits(std::uint32_t* to, std::uint32_t x) { *to = x; }
};

}  // namespace detail

ASYNCRL_END_NAMESPACE
