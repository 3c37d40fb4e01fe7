// SPDX-License-Identifier: Apache-2.0
// Where elements lie, against a map of bytes that are marked one by one.
#include "catch.hpp"

#include <asyncrl/correction/detail/footprint.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <vector>

using asyncrl::column;
using asyncrl::dtype;
using asyncrl::matrix;
using asyncrl::token_batch;
using asyncrl::detail::bytes_of;
using asyncrl::detail::footprint;
using asyncrl::detail::footprint_of;
using asyncrl::detail::repetition;
using relation = asyncrl::detail::footprint::relation;

namespace {

alignas(64) std::array<std::byte, 1 << 16> const arena{};
std::byte const* const middle = arena.data() + arena.size() / 2;

/// An argument, and the bytes it has by the definition of its strides.
struct piece {
    std::int64_t at;  ///< from the middle of the arena
    std::int64_t bytes;
    repetition outer, inner;

    [[nodiscard]] footprint print() const { return {middle + at, bytes, outer, inner}; }
    [[nodiscard]] std::set<std::int64_t> marked() const {
        std::set<std::int64_t> all;
        for (std::int64_t i = 0; i < outer.count; ++i) {
            for (std::int64_t j = 0; j < inner.count; ++j) {
                for (std::int64_t byte = 0; byte < bytes; ++byte) {
                    all.insert(at + (i * outer.stride + j * inner.stride) * bytes + byte);
                }
            }
        }
        return all;
    }
};

bool share_a_byte(piece const& a, piece const& b) {
    std::set<std::int64_t> const of_a = a.marked();
    std::set<std::int64_t> const of_b = b.marked();
    for (std::int64_t const byte : of_a) {
        if (of_b.count(byte) != 0) {
            return true;
        }
    }
    return false;
}

class source {
  public:
    explicit source(unsigned seed) : random_(seed) {}
    std::int64_t between(std::int64_t low, std::int64_t high) {
        return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
    }
    std::int64_t width() { return std::int64_t{1} << between(0, 3); }

  private:
    std::mt19937 random_;
};

}  // namespace

TEST_CASE("arguments of the same strides in bytes are told apart exactly") {
    source random(1);
    int met = 0;
    int missed = 0;
    for (int round = 0; round < 20'000; ++round) {
        piece a{random.between(-150, 150),
                random.width(),
                {random.between(1, 5), 0},
                {random.between(1, 6), random.between(-4, 4)}};
        a.outer.stride = random.between(0, 1) == 0 ? a.inner.stride * random.between(-7, 7) : random.between(-12, 12);
        piece b = a;
        b.at = random.between(-150, 150);
        b.outer.count = random.between(1, 5);
        b.inner.count = random.between(1, 6);
        std::int64_t const narrower = random.width();
        if (a.bytes % narrower == 0) {
            std::int64_t const times = a.bytes / narrower;
            b = {b.at, narrower, {b.outer.count, b.outer.stride * times}, {b.inner.count, b.inner.stride * times}};
        }
        bool const want = share_a_byte(a, b);
        relation const got = a.print().to(b.print());
        CAPTURE(a.at, a.bytes, a.outer.count, a.outer.stride, a.inner.count, a.inner.stride);
        CAPTURE(b.at, b.bytes, b.outer.count, b.outer.stride, b.inner.count, b.inner.stride);
        // Runs that one of the two forms alone has, as its rows or tokens touch, change its strides.
        if (got != relation::unknown) {
            REQUIRE((got == relation::overlap) == want);
        }
        REQUIRE(b.print().to(a.print()) == got);
        if (got == relation::unknown) {
            ++missed;
        } else {
            ++met;
        }
    }
    REQUIRE(missed < met / 20);
}

TEST_CASE("arguments of any strides are never said to overlap or to be apart where they are not") {
    source random(2);
    int told = 0;
    for (int round = 0; round < 20'000; ++round) {
        auto const any = [&] {
            return piece{random.between(-200, 200),
                         random.width(),
                         {random.between(1, 5), random.between(-20, 20)},
                         {random.between(1, 6), random.between(-5, 5)}};
        };
        piece const a = any();
        piece const b = any();
        relation const got = a.print().to(b.print());
        CAPTURE(a.at, a.bytes, a.outer.count, a.outer.stride, a.inner.count, a.inner.stride);
        CAPTURE(b.at, b.bytes, b.outer.count, b.outer.stride, b.inner.count, b.inner.stride);
        if (got != relation::unknown) {
            ++told;
            REQUIRE((got == relation::overlap) == share_a_byte(a, b));
        }
        REQUIRE(b.print().to(a.print()) == got);
    }
    REQUIRE(told > 10'000);
}

TEST_CASE("columns of one array are apart, and not from themselves") {
    token_batch batch;
    batch.rows = 7;
    batch.tokens = 5;
    auto const* const floats = reinterpret_cast<float const*>(middle);
    auto const view = [&](std::int64_t which) { return column{floats + which, dtype::f32, 5 * 3 + 4, 3}; };
    for (std::int64_t i = 0; i < 3; ++i) {
        for (std::int64_t j = 0; j < 3; ++j) {
            relation const is = footprint_of(view(i), batch).to(footprint_of(view(j), batch));
            REQUIRE(is == (i == j ? relation::overlap : relation::apart));
        }
    }
    column transposed{floats, dtype::f32, 1, 7};
    column behind{floats + 35, dtype::f32, 5, 1};
    REQUIRE(footprint_of(transposed, batch).to(footprint_of(behind, batch)) == relation::apart);
    behind.data = floats + 34;
    REQUIRE(footprint_of(transposed, batch).to(footprint_of(behind, batch)) == relation::overlap);
    matrix const rows{floats, dtype::bf16, 4, 10, 16};
    matrix gaps{reinterpret_cast<std::uint16_t const*>(floats) + 10, dtype::bf16, 4, 6, 16};
    REQUIRE(footprint_of(rows).to(footprint_of(gaps)) == relation::apart);
    ++gaps.columns;
    REQUIRE(footprint_of(rows).to(footprint_of(gaps)) == relation::overlap);
}

TEST_CASE("packed columns lie by their tokens, or by their rows; where both move them, that is not known") {
    std::int32_t const offsets[] = {0, 2, 9};
    token_batch batch;
    batch.rows = 2;
    batch.tokens = 9;
    batch.offsets = offsets;
    auto const* const floats = reinterpret_cast<float const*>(middle);
    auto const to_byte = [&](column const& c, std::int64_t at) {
        return footprint_of(c, batch).to(footprint_of(middle + at, std::size_t{1}));
    };
    column const by_token{floats, dtype::f32, 0, 2};
    REQUIRE(to_byte(by_token, 0) == relation::overlap);
    REQUIRE(to_byte(by_token, 4) == relation::apart);
    REQUIRE(to_byte(by_token, 64) == relation::overlap);
    REQUIRE(to_byte(by_token, 72) == relation::apart);
    column const by_row{floats, dtype::f32, 1, 0};
    REQUIRE(to_byte(by_row, 7) == relation::overlap);
    REQUIRE(to_byte(by_row, 8) == relation::apart);
    REQUIRE(to_byte(column{floats, dtype::f32, 3, 1}, 0) == relation::unknown);
    REQUIRE(to_byte(column{floats, dtype::f32, 0, 0}, 4) == relation::apart);
}

TEST_CASE("nothing overlaps nothing, and strides beyond all memory are not known") {
    footprint const none(middle, 4, {0, 1}, {5, 1});
    footprint const all(middle, 4, {5, 1});
    REQUIRE(none.to(all) == relation::apart);
    REQUIRE(footprint().to(all) == relation::apart);
    REQUIRE(footprint_of(middle, std::size_t{0}).to(all) == relation::apart);
    std::int64_t const most = std::numeric_limits<std::int64_t>::max();
    std::int64_t const least = std::numeric_limits<std::int64_t>::min();
    for (repetition const r : {repetition{2, most}, repetition{2, least}, repetition{most, 2}, repetition{most, most}}) {
        REQUIRE(footprint(middle, 8, r).to(all) == relation::unknown);
        REQUIRE(footprint(middle, 8, {3, 1}, r).to(all) == relation::unknown);
    }
    REQUIRE(footprint(middle, 8, {1, most}).to(all) == relation::overlap);
}
