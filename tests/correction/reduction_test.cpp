// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/correction/reduction.hpp>

using namespace asyncrl;

namespace {

totals known() {
    totals sums;
    sums.counts = {.batches = 1, .tokens = 20, .sequences = 5, .kept_tokens = 16, .kept_sequences = 4};
    return sums;
}

}  // namespace

TEST_CASE("a reduction divides by what it names: tokens, sequences, or a constant") {
    REQUIRE(token_mean{}.rule().scale(known()) == 1.0 / 20);
    REQUIRE(token_mean{.over = counted::kept}.rule().scale(known()) == 1.0 / 16);
    REQUIRE(token_sum{}.rule().scale(known()) == 1);
    REQUIRE(token_sum{.divisor = 8}.rule().scale(known()) == 1.0 / 8);
    REQUIRE(sequence_mean_token_mean{}.rule().scale(known()) == 1.0 / 5);
    REQUIRE(sequence_mean_token_mean{.over = counted::kept}.rule().scale(known()) == 1.0 / 4);
    REQUIRE(sequence_mean_token_sum{}.rule().scale(known()) == 1.0 / 5);
    REQUIRE(sequence_mean_token_sum{.horizon = 8}.rule().scale(known()) == 1.0 / 40);
}

TEST_CASE("only the mean over sequences of token means divides by each row's count as well") {
    REQUIRE_FALSE(token_mean{}.rule().per_row);
    REQUIRE_FALSE(token_sum{}.rule().per_row);
    REQUIRE(sequence_mean_token_mean{}.rule().per_row);
    REQUIRE_FALSE(sequence_mean_token_sum{}.rule().per_row);
}

TEST_CASE("a mean over nothing is 0, a sum stays a sum") {
    totals const none;
    REQUIRE(token_mean{}.rule().scale(none) == 0);
    REQUIRE(token_mean{.over = counted::kept}.rule().scale(none) == 0);
    REQUIRE(sequence_mean_token_mean{}.rule().scale(none) == 0);
    REQUIRE(sequence_mean_token_sum{.horizon = 8}.rule().scale(none) == 0);
    REQUIRE(token_sum{.divisor = 8}.rule().scale(none) == 1.0 / 8);
}
