// SPDX-License-Identifier: Apache-2.0
#include "../support/columns.hpp"
#include "catch.hpp"

#include <asyncrl/correction/detail/chunk.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

using namespace asyncrl;

TEST_CASE("every bfloat16 and float16 number is read as what it is") {
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
        auto const half = static_cast<std::uint16_t>(bits);
        double const brain = support::from_bf16_bits(half);
        double const got_brain = static_cast<double>(detail::from_bf16(half));
        double const small = support::from_f16_bits(half);
        double const got_small = static_cast<double>(detail::from_f16(half));
        if (!(std::isnan(brain) ? std::isnan(got_brain) : got_brain == brain) ||
            !(std::isnan(small) ? std::isnan(got_small) : got_small == small)) {
            FAIL("pattern " << bits);
        }
    }
    SUCCEED();
}

TEST_CASE("a float is rounded to the nearest bfloat16 or float16, ties to even") {
    std::mt19937 engine(1);
    for (int i = 0; i < 200000; ++i) {
        auto x = std::bit_cast<float>(static_cast<std::uint32_t>(engine()));
        if (i % 2 == 0) {
            x = std::bit_cast<float>((std::bit_cast<std::uint32_t>(x) & 0x87ffffffU) | 0x38000000U);  // in float16's range
        }
        if (i % 3 == 0) {
            x = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0xffff8000U);  // ties of bfloat16
        }
        if (std::isnan(x)) {
            REQUIRE(std::isnan(detail::from_bf16(detail::to_bf16(x))));
            REQUIRE(std::isnan(detail::from_f16(detail::to_f16(x))));
            continue;
        }
        auto const wide = static_cast<double>(x);
        if (detail::to_bf16(x) != support::bf16_bits(wide) || detail::to_f16(x) != support::f16_bits(wide)) {
            FAIL("x = " << wide);
        }
    }
    SUCCEED();
}

TEST_CASE("stretches visit every position once, in order, and no stretch crosses a row") {
    std::vector<std::int64_t> const offsets{0, 0, 3, 3, 3, 10, 2050, 2050, 4100, 4100};
    token_batch packed;
    packed.rows = 9;
    packed.tokens = 4100;
    packed.offsets = offsets.data();
    token_batch padded;
    padded.rows = 41;
    padded.tokens = 100;
    for (token_batch const& batch : {packed, padded}) {
        std::int64_t seen = 0;
        for (std::int64_t chunk = 0; chunk < detail::chunk_count(batch.size()); ++chunk) {
            detail::chunk_range const range = detail::chunk_at(batch, chunk);
            detail::for_each_stretch(batch, range,
                                     [&](std::int64_t row, std::int64_t first, std::int64_t count, std::int64_t at) {
                                         REQUIRE(range.begin + at == seen);
                                         REQUIRE(count > 0);
                                         if (batch.packed()) {
                                             REQUIRE(first == seen);
                                             REQUIRE(seen >= batch.offsets[row]);
                                             REQUIRE(seen + count <= batch.offsets[row + 1]);
                                         } else {
                                             REQUIRE(row * 100 + first == seen);
                                             REQUIRE(first + count <= 100);
                                         }
                                         seen += count;
                                     });
        }
        REQUIRE(seen == 4100);
    }
}

TEST_CASE("the row of a packed position passes over empty rows") {
    std::vector<std::int32_t> const offsets{0, 0, 2, 2, 2, 5};
    token_batch batch;
    batch.rows = 5;
    batch.tokens = 5;
    batch.offsets = offsets.data();
    std::vector<std::int64_t> rows;
    for (std::int64_t at = 0; at < 5; ++at) {
        rows.push_back(detail::packed_row(batch, at));
    }
    REQUIRE(rows == std::vector<std::int64_t>{1, 1, 4, 4, 4});
}
