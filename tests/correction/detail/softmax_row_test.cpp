// SPDX-License-Identifier: Apache-2.0
#include "../support/columns.hpp"
#include "catch.hpp"

#include <asyncrl/correction/detail/softmax_row.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

using asyncrl::detail::native_lanes;
using pack = asyncrl::detail::packing<native_lanes>;

TEST_CASE("bfloat16 is read as it is, in whole registers") {
    std::vector<std::uint16_t> stored(pack::width);
    std::vector<float> numbers(pack::width);
    for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
        stored[bits % pack::width] = static_cast<std::uint16_t>(bits);
        pack::store(numbers.data(), asyncrl::detail::load_bf16<pack::width>(stored.data()));
        REQUIRE(std::bit_cast<std::uint32_t>(numbers[bits % pack::width]) == bits << 16);
    }
}

TEST_CASE("bfloat16 is written to the nearest, and to the even one of two") {
    std::vector<float> numbers(pack::width);
    std::vector<std::uint16_t> stored(pack::width);
    for (std::uint32_t upper = 0; upper < 0x10000U; upper += 3) {
        for (std::uint32_t const lower : {0x0000U, 0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
            std::uint32_t const bits = (upper << 16) | lower;
            float const x = std::bit_cast<float>(bits);
            if ((bits & 0x7fffffffU) > 0x7f800000U) {
                continue;  // NaN goes another way
            }
            numbers[upper % pack::width] = x;
            asyncrl::detail::store_bf16(stored.data(), pack::load(numbers.data()));
            if (stored[upper % pack::width] != support::bf16_bits(static_cast<double>(x))) {
                FAIL("bits " << bits << " became " << stored[upper % pack::width]);
            }
        }
    }
}

TEST_CASE("rows that many threads note are counted, and the first of them is known") {
    asyncrl::detail::row_tally tally;
    REQUIRE(tally.first() == -1);
    for (std::int64_t const row : {7, 3, 12, 3}) {
        tally.note(row);
    }
    REQUIRE(tally.count() == 4);
    REQUIRE(tally.first() == 3);
}

TEST_CASE("an ascending list knows what it names") {
    std::vector<std::int32_t> const ids{9, 1, 4, 5, 8};
    asyncrl::detail::row_part const part{3, ids.data(), 1};  // 1, 4, 5
    for (std::int64_t id = 0; id < 10; ++id) {
        REQUIRE(part.names(id) == (id == 1 || id == 4 || id == 5));
    }
    REQUIRE(part[2] == 5);
    REQUIRE(asyncrl::detail::row_part{3}[2] == 2);
}
