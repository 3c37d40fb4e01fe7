// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/correction/token_batch.hpp>

#include <cstdint>
#include <limits>
#include <type_traits>

using namespace asyncrl;

static_assert(dtype_of<float>::value == dtype::f32);
static_assert(dtype_of<double>::value == dtype::f64);
static_assert(dtype_of<std::uint8_t>::value == dtype::u8);
static_assert(std::is_trivially_copyable_v<token_batch>, "a kernel's argument");

namespace {

struct framework_bf16 {
    std::uint16_t bits;
};

}  // namespace

ASYNCRL_BEGIN_NAMESPACE
template <>
struct dtype_of<framework_bf16> {
    static constexpr dtype value = dtype::bf16;
};
ASYNCRL_END_NAMESPACE

TEST_CASE("a column per token steps by one element, a column per sequence by one element a row") {
    float numbers[6] = {};
    column const token = per_token(static_cast<float const*>(numbers), 3);
    REQUIRE(token.data == numbers);
    REQUIRE(token.type == dtype::f32);
    REQUIRE(token.row_stride == 3);
    REQUIRE(token.token_stride == 1);
    column const sequence = per_sequence(static_cast<float const*>(numbers));
    REQUIRE(sequence.row_stride == 1);
    REQUIRE(sequence.token_stride == 0);
    output_column const out = per_token(numbers, 3);
    column const back = out;
    REQUIRE(back.data == numbers);
    REQUIRE(back.row_stride == 3);
}

TEST_CASE("a framework's own type is told apart by a specialisation") {
    framework_bf16 const numbers[2] = {};
    REQUIRE(per_token(numbers).type == dtype::bf16);
}

TEST_CASE("positions: rows times tokens in a padded batch, tokens in a packed one") {
    token_batch batch;
    batch.rows = 3;
    batch.tokens = 5;
    REQUIRE_FALSE(batch.packed());
    REQUIRE(batch.size() == 15);
    std::int32_t const narrow[] = {0, 2, 2, 5};
    batch.offsets = narrow;
    REQUIRE(batch.packed());
    REQUIRE(batch.size() == 5);
    REQUIRE(batch.offsets[3] == 5);
    std::int64_t const wide[] = {0, 2, 2, std::int64_t{1} << 40};
    batch.offsets = wide;
    REQUIRE(batch.offsets[3] == std::int64_t{1} << 40);
}

TEST_CASE("an absent column is false, a column at an address true") {
    float x = 0;
    REQUIRE_FALSE(column{});
    REQUIRE_FALSE(output_column{});
    REQUIRE(per_token(static_cast<float const*>(&x)));
    REQUIRE(per_token(&x));
}

TEST_CASE("the sentinel is compared as the rollout column can hold it") {
    token_batch batch;
    float const x = 0;
    batch.rollout_log_prob = per_token(&x);
    auto const stored = [&](double number, dtype type) {
        batch.unscored = number;
        batch.rollout_log_prob.type = type;
        return detail::stored_sentinel(batch);
    };
    REQUIRE(stored(-9999, dtype::f64) == -9999);
    REQUIRE(stored(0.1, dtype::f64) == 0.1);
    REQUIRE(stored(0.1, dtype::f32) == static_cast<double>(0.1F));
    REQUIRE(stored(-9999, dtype::f32) == -9999);
    REQUIRE(stored(-9999, dtype::bf16) == -9984);   // units of 64
    REQUIRE(stored(-10016, dtype::bf16) == -9984);  // half way: to the even one
    REQUIRE(stored(-10080, dtype::bf16) == -10112);
    REQUIRE(stored(-9999, dtype::f16) == -10000);  // units of 8
    REQUIRE(stored(-9996, dtype::f16) == -10000);
    REQUIRE(stored(-10004, dtype::f16) == -10000);
    for (dtype const type : {dtype::f32, dtype::f64, dtype::bf16, dtype::f16}) {
        double const none = stored(std::numeric_limits<double>::quiet_NaN(), type);
        REQUIRE(none != none);
        REQUIRE(stored(-std::numeric_limits<double>::infinity(), type) == -std::numeric_limits<double>::infinity());
        REQUIRE(stored(0, type) == 0);
    }
}
