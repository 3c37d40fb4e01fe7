// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/correction/workspace.hpp>

#include <cstdint>
#include <stdexcept>
#include <vector>

using namespace asyncrl;

namespace {

token_batch shape(std::int64_t rows, std::int64_t tokens) {
    token_batch batch;
    batch.rows = rows;
    batch.tokens = tokens;
    return batch;
}

}  // namespace

TEST_CASE("a workspace has room for its batch and for every smaller one") {
    workspace const scratch(shape(10, 500));
    REQUIRE_NOTHROW(scratch.require_room(shape(10, 500)));
    REQUIRE_NOTHROW(scratch.require_room(shape(1, 5000)));
    REQUIRE_NOTHROW(scratch.require_room(shape(0, 0)));
    REQUIRE_THROWS_AS(scratch.require_room(shape(11, 1)), std::invalid_argument);
    REQUIRE_THROWS_AS(scratch.require_room(shape(10, 700)), std::invalid_argument);
    REQUIRE_THROWS_AS(workspace(shape(-1, 1)), std::invalid_argument);
}

TEST_CASE("a packed batch's rows and tokens are what counts") {
    std::vector<std::int32_t> const offsets{0, 1, 2, 3, 4};
    token_batch packed = shape(4, 4);
    packed.offsets = offsets.data();
    workspace const scratch(packed);
    REQUIRE_NOTHROW(scratch.require_room(packed));
    REQUIRE_NOTHROW(scratch.require_room(shape(4, 4)));
    REQUIRE_THROWS_AS(scratch.require_room(shape(5, 1)), std::invalid_argument);
}

TEST_CASE("serial calls each part once, in order") {
    std::vector<std::int64_t> seen;
    auto const task = [&](std::int64_t i) { seen.push_back(i); };
    serial{}(4, task_ref(task));
    REQUIRE(seen == std::vector<std::int64_t>{0, 1, 2, 3});
    serial{}(0, task_ref(task));
    REQUIRE(seen.size() == 4);
}
