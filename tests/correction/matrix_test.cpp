// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/correction/matrix.hpp>

#include <cstdint>

TEST_CASE("rows follow each other without a gap, or at the stride that is given") {
    float numbers[12] = {};
    float const* read_only = numbers;
    asyncrl::output_matrix const out = asyncrl::row_major(numbers, 3, 4);
    asyncrl::matrix const in = asyncrl::row_major(read_only, 2, 3, 6);
    REQUIRE(out.data == numbers);
    REQUIRE(out.type == asyncrl::dtype::f32);
    REQUIRE((out.rows == 3 && out.columns == 4 && out.row_stride == 4));
    REQUIRE((in.rows == 2 && in.columns == 3 && in.row_stride == 6));
    REQUIRE(asyncrl::row_major(read_only, 2, 3, 0).row_stride == 0);
    asyncrl::matrix const view = out;
    REQUIRE((view.data == numbers && view.rows == 3 && view.columns == 4 && view.row_stride == 4));
}

TEST_CASE("ids of either width are the same ids") {
    std::int32_t const narrow[] = {3, -1};
    std::int64_t const wide[] = {3, std::int64_t{1} << 40};
    REQUIRE(asyncrl::token_ids(narrow)[1] == -1);
    REQUIRE(asyncrl::token_ids(wide)[0] == asyncrl::token_ids(narrow)[0]);
    REQUIRE(asyncrl::token_ids(wide)[1] == std::int64_t{1} << 40);
    REQUIRE_FALSE(asyncrl::token_ids{});
    REQUIRE(asyncrl::token_ids(narrow));
}
