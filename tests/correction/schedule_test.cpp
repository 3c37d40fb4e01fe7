// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/correction/schedule.hpp>

#include <cmath>
#include <limits>
#include <stdexcept>

using namespace asyncrl;

TEST_CASE("the coefficient doubles above one and a half targets and halves below two thirds") {
    REQUIRE(adapted_coefficient(0.1, 0.31, 0.2) == 0.2);
    REQUIRE(adapted_coefficient(0.1, 0.3, 0.2) == 0.1);
    REQUIRE(adapted_coefficient(0.1, 0.2, 0.2) == 0.1);
    REQUIRE(adapted_coefficient(0.1, 0.14, 0.2) == 0.1);
    REQUIRE(adapted_coefficient(0.1, 0.13, 0.2) == 0.05);
    REQUIRE(adapted_coefficient(0.1, -0.5, 0.2) == 0.05);
    double const nan = std::numeric_limits<double>::quiet_NaN();
    REQUIRE_THROWS_AS(adapted_coefficient(0, 0.1, 0.2), std::invalid_argument);
    REQUIRE_THROWS_AS(adapted_coefficient(0.1, nan, 0.2), std::invalid_argument);
    REQUIRE_THROWS_AS(adapted_coefficient(0.1, 0.1, 0), std::invalid_argument);
}

TEST_CASE("the step shrinks with the root of the effective sample share, and never grows") {
    REQUIRE_THAT(effective_sample_step_scale(0.878496239896), Catch::Matchers::WithinRel(0.937281302436, 1e-11));
    REQUIRE(effective_sample_step_scale(0.25) == 0.5);
    REQUIRE(effective_sample_step_scale(0.9, 0.5) == 1);
    REQUIRE(effective_sample_step_scale(0) == 0);
    REQUIRE_THROWS_AS(effective_sample_step_scale(1.1), std::invalid_argument);
    REQUIRE_THROWS_AS(effective_sample_step_scale(0.5, 0), std::invalid_argument);
}
