// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/correction/token/routing.hpp>

#include <cmath>
#include <limits>

using Catch::Matchers::WithinRel;

namespace {

double exponential(double x) {
    return std::exp(x);
}

}  // namespace

TEST_CASE("a sigmoid overflows nowhere, and keeps its digits on both sides") {
    for (double const z : {-700.0, -40.0, -1.0, 0.0, 0.25, 40.0, 1e4}) {
        long double const e = std::exp(static_cast<long double>(-z));
        REQUIRE_THAT(asyncrl::sigmoid(z, exponential), WithinRel(static_cast<double>(1 / (1 + e)), 1e-14));
    }
    REQUIRE(asyncrl::sigmoid(-std::numeric_limits<double>::infinity(), exponential) == 0);
    REQUIRE(asyncrl::sigmoid(0.0, exponential) == 0.5);
}

TEST_CASE("the gradient of gates, by hand") {
    // Softmax gates (3/4, 1/4) with slopes (1, 5): mean 2.
    REQUIRE(asyncrl::gate_gradient(0.75, 1.0, 1.0, 2.0) == -0.75);
    REQUIRE(asyncrl::gate_gradient(0.25, 1.0, 5.0, 2.0) == 0.75);
}
