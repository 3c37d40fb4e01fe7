// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/correction/token/recursion.hpp>

#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

using asyncrl::compose;
using asyncrl::recursion_step;
using Catch::Matchers::WithinAbs;

TEST_CASE("a step adds and scales, and the default step changes nothing", "[recursion]") {
    REQUIRE(recursion_step<double>{0.5, 0.25}(2) == 1);
    REQUIRE(recursion_step<double>{}(3) == 3);
    REQUIRE(recursion_step<float>{}(3) == 3);
}

TEST_CASE("composed steps are applied from the last to the first", "[recursion]") {
    recursion_step<double> const earlier{1, 0.5};
    recursion_step<double> const later{4, 0.25};
    auto const both = compose(earlier, later);
    REQUIRE(both.add == 3);        // 1 + 0.5 * 4
    REQUIRE(both.scale == 0.125);  // 0.5 * 0.25
    REQUIRE(both(8) == earlier(later(8)));
}

TEST_CASE("the masked step is neutral on either side", "[recursion]") {
    recursion_step<double> const masked;
    recursion_step<double> const step{0.75, -0.5};
    for (auto const& both : {compose(step, masked), compose(masked, step)}) {
        REQUIRE(both.add == step.add);
        REQUIRE(both.scale == step.scale);
    }
}

TEST_CASE("a tree of composed steps gives what the loop gives", "[recursion]") {
    std::mt19937_64 random(7);
    std::uniform_real_distribution<double> number(-1, 1);
    std::vector<recursion_step<double>> steps;
    for (int i = 0; i < 37; ++i) {
        steps.push_back({number(random), number(random)});
    }
    double y = 0.5;
    for (std::size_t i = steps.size(); i-- > 0;) {
        y = steps[i](y);
    }
    while (steps.size() > 1) {
        std::vector<recursion_step<double>> halved;
        for (std::size_t i = 0; i < steps.size(); i += 2) {
            halved.push_back(i + 1 < steps.size() ? compose(steps[i], steps[i + 1]) : steps[i]);
        }
        steps = halved;
    }
    REQUIRE_THAT(steps.front()(0.5), WithinAbs(y, 1e-14));
}

TEST_CASE("truncation bounds from above and hides no NaN", "[recursion]") {
    REQUIRE(asyncrl::truncated(0.5, 1.0) == 0.5);
    REQUIRE(asyncrl::truncated(1.5, 1.0) == 1);
    REQUIRE(asyncrl::truncated(1.5, std::numeric_limits<double>::infinity()) == 1.5);
    REQUIRE(std::isnan(asyncrl::truncated(std::numeric_limits<double>::quiet_NaN(), 1.0)));
}

TEST_CASE("the steps of GAE, V-trace and Retrace hold these numbers", "[recursion]") {
    REQUIRE(asyncrl::td_error(1.0, 0.5, 4.0, 2.0) == 1);
    auto const gae = asyncrl::gae_step(3.0, 0.5, 0.25);
    REQUIRE(gae.add == 3);
    REQUIRE(gae.scale == 0.125);
    auto const vtrace = asyncrl::vtrace_step(3.0, 0.75, 2.0, 0.5, 0.25);
    REQUIRE(vtrace.add == 2.25);
    REQUIRE(vtrace.scale == 0.25);
    auto const retrace = asyncrl::retrace_step(3.0, 4.0, 0.5, 0.25);
    REQUIRE(retrace.add == 3);
    REQUIRE(retrace.scale == 0.125);  // the ratio of 4 is cut to 1
    REQUIRE(asyncrl::retrace_step(3.0, 0.5, 0.5, 0.25).scale == 0.0625);
}
