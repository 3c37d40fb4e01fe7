// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/correction/token/real.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

using namespace asyncrl;

namespace {

/// exp(d) - 1 - d in long double, by its series near 0.
long double exact_k3(long double d) {
    if (std::abs(d) > 0.5L) {
        return std::exp(d) - 1 - d;
    }
    long double term = d * d / 2;
    long double sum = 0;
    for (int n = 3; n < 40; ++n) {
        sum += term;
        term *= d / n;
    }
    return sum;
}

template <typename Number>
void check_k3(long double allowed) {
    for (int exponent = -40; exponent <= 6; ++exponent) {
        for (double const mantissa : {1.0, 1.1, 1.37, 1.5, 1.99}) {
            for (double const sign : {1.0, -1.0}) {
                auto const d = static_cast<Number>(sign * std::ldexp(mantissa, exponent));
                if (std::abs(d) > Number(80)) {
                    continue;
                }
                long double const want = exact_k3(static_cast<long double>(d));
                auto const got = static_cast<long double>(k3(d, std::exp(d)));
                INFO("d = " << static_cast<double>(d) << ": " << static_cast<double>(got) << ", exactly "
                            << static_cast<double>(want));
                REQUIRE(std::abs(got - want) <= allowed * want);
                REQUIRE(got >= 0);
            }
        }
    }
    REQUIRE(k3(Number(0), Number(1)) == 0);
}

template <typename Number, typename Bits>
void check_finiteness() {
    using limits = std::numeric_limits<Number>;
    for (Number const x :
         {Number(0), Number(-0.0), limits::min(), limits::denorm_min(), limits::max(), limits::lowest(), Number(1)}) {
        REQUIRE_FALSE(is_nonfinite(x));
        REQUIRE_FALSE(is_nan(x));
    }
    for (Number const x : {limits::infinity(), -limits::infinity()}) {
        REQUIRE(is_nonfinite(x));
        REQUIRE_FALSE(is_nan(x));
    }
    Bits const infinity = std::bit_cast<Bits>(limits::infinity());
    for (Bits const payload : {Bits{1}, std::bit_cast<Bits>(limits::quiet_NaN()) ^ infinity}) {
        for (Bits const sign : {Bits{0}, Bits{1} << (8 * sizeof(Bits) - 1)}) {
            auto const x = std::bit_cast<Number>(Bits(infinity | payload | sign));
            REQUIRE(is_nonfinite(x));
            REQUIRE(is_nan(x));
        }
    }
}

}  // namespace

TEST_CASE("k3 keeps its digits from tiny to large arguments") {
    check_k3<double>(3e-13L);
    check_k3<float>(2e-6L);
}

TEST_CASE("finiteness is told from the exponent bits") {
    check_finiteness<float, std::uint32_t>();
    check_finiteness<double, std::uint64_t>();
}

TEST_CASE("select takes one of two and looks at no other") {
    REQUIRE(select(true, 1.0, std::numeric_limits<double>::quiet_NaN()) == 1);
    REQUIRE(select(false, std::numeric_limits<double>::quiet_NaN(), 2.0) == 2);
    REQUIRE(mark(true, 6U) == 6);
    REQUIRE(mark(false, 6U) == 0);
    REQUIRE(larger(1.0, 2.0) == 2);
    REQUIRE(smaller(1.0, 2.0) == 1);
    REQUIRE(absolute(-1.5) == 1.5);
    REQUIRE(absolute(1.5) == 1.5);
    REQUIRE(always<double>());
    REQUIRE(no_bits<float>() == 0);
}
