// SPDX-License-Identifier: Apache-2.0
// Each lane does what one float would.
#include "catch.hpp"

#include <asyncrl/correction/detail/lanes.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

using namespace asyncrl;

namespace {

using real = detail::native_lanes;
using pack = detail::packing<real>;
constexpr int width = pack::width;

real of(std::vector<float> const& numbers) {
    return pack::load(numbers.data());
}
std::vector<float> floats(real x) {
    std::vector<float> out(width);
    pack::store(out.data(), x);
    return out;
}
/// 1 where the condition holds.
std::vector<float> truth(mask_of<real> m) {
    return floats(select(m, real(1), real(0)));
}
bool same(float a, float b) {
    return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

std::vector<float> numbers(std::mt19937& engine) {
    float const special[] = {0.0F,
                             -0.0F,
                             1.0F,
                             -1.0F,
                             std::numeric_limits<float>::infinity(),
                             -std::numeric_limits<float>::infinity(),
                             std::numeric_limits<float>::quiet_NaN(),
                             std::numeric_limits<float>::max(),
                             std::numeric_limits<float>::denorm_min()};
    std::vector<float> out(width);
    for (float& x : out) {
        x = engine() % 3 == 0 ? special[engine() % 9] : std::bit_cast<float>(static_cast<std::uint32_t>(engine()));
    }
    return out;
}

}  // namespace

TEST_CASE("arithmetic, comparisons and selection are those of each float") {
    std::mt19937 engine(1);
    for (int repeat = 0; repeat < 3000; ++repeat) {
        std::vector<float> const a = numbers(engine);
        std::vector<float> const b = repeat % 5 == 0 ? a : numbers(engine);
        real const x = of(a);
        real const y = of(b);
        std::vector<float> const sum = floats(x + y), difference = floats(x - y), product = floats(x * y),
                                 ratio = floats(x / y);
        std::vector<float> const negated = floats(-x), size = floats(absolute(x)), large = floats(larger(x, y));
        std::vector<float> const less = truth(x < y), more = truth(x > y), at_most = truth(x <= y), at_least = truth(x >= y);
        std::vector<float> const equal = truth(x == y), unequal = truth(!(x == y)), both = truth((x < y) & (x < real(0)));
        std::vector<float> const either = truth((x < y) | (x < real(0)));
        std::vector<float> const nonfinite = truth(is_nonfinite(x)), nan = truth(is_nan(x));
        bool ok = true;
        for (std::size_t i = 0; i < width; ++i) {
            ok = ok && same(sum[i], a[i] + b[i]) && same(difference[i], a[i] - b[i]) && same(product[i], a[i] * b[i]) &&
                 same(ratio[i], a[i] / b[i]) && same(negated[i], -a[i]) && same(size[i], absolute(a[i])) &&
                 same(large[i], larger(a[i], b[i])) && (less[i] > 0) == (a[i] < b[i]) && (more[i] > 0) == (a[i] > b[i]) &&
                 (at_most[i] > 0) == (a[i] <= b[i]) && (at_least[i] > 0) == (a[i] >= b[i]) &&
                 (equal[i] > 0) == (a[i] == b[i]) && (unequal[i] > 0) == (a[i] != b[i]) &&
                 (both[i] > 0) == (a[i] < b[i] && a[i] < 0) && (either[i] > 0) == (a[i] < b[i] || a[i] < 0) &&
                 (nonfinite[i] > 0) == is_nonfinite(a[i]) && (nan[i] > 0) == is_nan(a[i]);
        }
        REQUIRE(ok);
    }
}

TEST_CASE("flag bits are set and joined lane by lane") {
    std::vector<float> numbers_up(width);
    std::vector<std::uint8_t> bytes(width);
    for (int i = 0; i < width; ++i) {
        numbers_up[static_cast<std::size_t>(i)] = static_cast<float>(i);
        bytes[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(i % 3 == 0 ? 0 : 200 + i);
    }
    real const x = of(numbers_up);
    bits_of<real> const flags = mark(x > real(1), 4U) | mark(x < real(3), 256U);
    std::vector<std::uint32_t> words(width);
    pack::store_bits(words.data(), flags);
    std::vector<float> const loaded = truth(pack::load_mask(bytes.data()));
    for (int i = 0; i < width; ++i) {
        auto const at = static_cast<std::size_t>(i);
        REQUIRE(words[at] == ((i > 1 ? 4U : 0U) | (i < 3 ? 256U : 0U)));
        REQUIRE((loaded[at] > 0) == (i % 3 != 0));
    }
    REQUIRE(pack::sum(x) == width * (width - 1) / 2.0);
    REQUIRE(pack::maximum(x) == width - 1);
}

TEST_CASE("the exponential is within 2 units in the last place, and its value does not depend on the lane") {
    for (float x = -87; x < 88; x += 0.0137F) {
        std::vector<float> const got = floats(detail::host_math{}.exp(real(x)));
        double const want = std::exp(static_cast<double>(x));
        INFO("x = " << x);
        REQUIRE(std::abs(static_cast<double>(got[0]) - want) <= 2.5 * 0x1p-23 * want);
        for (float const y : got) {
            REQUIRE(y == got[0]);
        }
    }
    REQUIRE(floats(detail::host_math{}.exp(real(0)))[0] == 1);
    REQUIRE(floats(detail::host_math{}.exp(real(-1000)))[0] < 1e-37F);
    REQUIRE(floats(detail::host_math{}.exp(real(1000)))[0] > 1e38F);
}
