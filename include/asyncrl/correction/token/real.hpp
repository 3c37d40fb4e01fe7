// SPDX-License-Identifier: Apache-2.0
/// @file The few words in which per-token math is written, so that one source serves float, double, a SIMD register and a GPU.
///
/// A `Real` is float, double or, in host loops, `detail::lanes`. Code over it has no `if` on data and no exponential: it
/// decides with `select`, reports with `mark`, and receives every ratio ready-made.
#pragma once

#include <asyncrl/config.hpp>

#include <concepts>
#include <cstdint>

ASYNCRL_BEGIN_NAMESPACE

/// Companion types of a Real: the outcome of a comparison, and flag bits or counts of the same shape.
template <typename Real>
struct real_traits;

template <std::floating_point Real>
struct real_traits<Real> {
    using mask = bool;
    using bits = std::uint32_t;
    /// Below this |d| the series of k3 is nearer than its direct form.
    static constexpr double k3_series_below = sizeof(Real) == sizeof(float) ? 1.0 / 2 : 1.0 / 32;
    /// Ratios saturate here: e^88 and e^709 are finite, so that their product with an exact zero is zero.
    static constexpr double largest_exponent = sizeof(Real) == sizeof(float) ? 88 : 709;
};

template <typename Real>
using mask_of = typename real_traits<Real>::mask;
template <typename Real>
using bits_of = typename real_traits<Real>::bits;

template <std::floating_point Real>
[[nodiscard]] ASYNCRL_HOST_DEVICE Real select(bool condition, Real yes, Real no) {
    return condition ? yes : no;
}

/// `bits` where the condition holds, 0 elsewhere.
[[nodiscard]] ASYNCRL_HOST_DEVICE std::uint32_t mark(bool condition, std::uint32_t bits) {
    return condition ? bits : 0U;
}

[[nodiscard]] ASYNCRL_HOST_DEVICE std::uint32_t select_bits(bool condition, std::uint32_t yes, std::uint32_t no) {
    return condition ? yes : no;
}

/// Adds one to the count in the low 16 bits of `counts` where the condition holds.
ASYNCRL_HOST_DEVICE void tick_low(std::uint32_t& counts, bool condition) {
    counts += condition ? 1U : 0U;
}
[[nodiscard]] ASYNCRL_HOST_DEVICE std::uint32_t low_half(std::uint32_t counts) {
    return counts & 0xffffU;
}
[[nodiscard]] ASYNCRL_HOST_DEVICE std::uint32_t high_half(std::uint32_t counts) {
    return counts >> 16;
}

/// Looks at exponent bits on the host, where -ffast-math could assume a comparison away; nvcc assumes nothing of the kind.
[[nodiscard]] ASYNCRL_HOST_DEVICE bool is_nonfinite(float x) {
#if defined(__CUDA_ARCH__)
    return !(fabsf(x) <= 3.402823466e38F);
#else
    return (__builtin_bit_cast(std::uint32_t, x) & 0x7f800000U) == 0x7f800000U;
#endif
}
[[nodiscard]] ASYNCRL_HOST_DEVICE bool is_nonfinite(double x) {
    return (__builtin_bit_cast(std::uint64_t, x) & 0x7ff0000000000000ULL) == 0x7ff0000000000000ULL;
}
[[nodiscard]] ASYNCRL_HOST_DEVICE bool is_nan(float x) {
#if defined(__CUDA_ARCH__)
    return x != x;
#else
    return (__builtin_bit_cast(std::uint32_t, x) & 0x7fffffffU) > 0x7f800000U;
#endif
}
[[nodiscard]] ASYNCRL_HOST_DEVICE bool is_nan(double x) {
    return (__builtin_bit_cast(std::uint64_t, x) & 0x7fffffffffffffffULL) > 0x7ff0000000000000ULL;
}

template <typename Real>
[[nodiscard]] ASYNCRL_HOST_DEVICE mask_of<Real> always() {
    return Real(0) == Real(0);
}

template <typename Real>
[[nodiscard]] ASYNCRL_HOST_DEVICE bits_of<Real> no_bits() {
    return mark(always<Real>(), 0U);
}

/// |x|, and +0 for -0.
[[nodiscard]] ASYNCRL_HOST_DEVICE float absolute(float x) {
#if defined(__CUDA_ARCH__)
    return fabsf(x);
#else
    return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, x) & 0x7fffffffU);
#endif
}
[[nodiscard]] ASYNCRL_HOST_DEVICE double absolute(double x) {
    return __builtin_bit_cast(double, __builtin_bit_cast(std::uint64_t, x) & 0x7fffffffffffffffULL);
}

/// The larger of two numbers; what a NaN gives is left open.
template <typename Real>
[[nodiscard]] ASYNCRL_HOST_DEVICE Real larger(Real a, Real b) {
    return select(a > b, a, b);
}
template <typename Real>
[[nodiscard]] ASYNCRL_HOST_DEVICE Real smaller(Real a, Real b) {
    return select(a < b, a, b);
}
#if defined(__CUDA_ARCH__)
[[nodiscard]] ASYNCRL_HOST_DEVICE float larger(float a, float b) {
    return fmaxf(a, b);
}
[[nodiscard]] ASYNCRL_HOST_DEVICE float smaller(float a, float b) {
    return fminf(a, b);
}
#endif

/// exp(d) - 1 - d >= 0 from d and exp(d): the k3 estimator of a divergence (Schulman, 2020). Near 0 the direct form cancels
/// (18 % off at |d| = 1e-3 in float), so the Taylor polynomial through d^7 takes over: 2e-6 off at most in float, 3e-13 in
/// double.
template <typename Real>
[[nodiscard]] ASYNCRL_HOST_DEVICE Real k3(Real d, Real exp_d) {
    Real tail = Real(1.0 / 720) + d * Real(1.0 / 5040);
    tail = Real(1.0 / 24) + d * (Real(1.0 / 120) + d * tail);
    Real const series = d * d * (Real(0.5) + d * (Real(1.0 / 6) + d * tail));
    return select(absolute(d) < Real(real_traits<Real>::k3_series_below), series, exp_d - Real(1) - d);
}

ASYNCRL_END_NAMESPACE
