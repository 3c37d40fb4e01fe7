// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/staleness/adaptive.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <stdexcept>
#include <vector>

using namespace asyncrl;
using Catch::Matchers::WithinAbs;
using Catch::Matchers::WithinRel;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("the limit narrows at once and widens after a calm while, within its ends", "[adaptive_limit]") {
    adaptive_limit limit({.min = 1, .max = 3, .narrow_above = 0.2, .widen_below = 0.1, .calm_steps = 3}, 2);
    REQUIRE(limit.value() == 2);
    REQUIRE(limit.update(0.3) == 1);
    REQUIRE(limit.update(infinity) == 1);  // not below min
    REQUIRE(limit.update(0.05) == 1);
    REQUIRE(limit.update(0) == 1);
    REQUIRE(limit.update(0.05) == 2);
    REQUIRE(limit.update(0.05) == 2);  // the count begins anew
    REQUIRE(limit.update(0.05) == 2);
    REQUIRE(limit.update(0.05) == 3);
    for (int i = 0; i < 9; ++i) {
        REQUIRE(limit.update(0) == 3);  // not above max
    }
}

TEST_CASE("between the marks the limit stays, and calm steps are counted from the start", "[adaptive_limit]") {
    adaptive_limit limit({.min = 0, .max = 9, .narrow_above = 0.2, .widen_below = 0.1, .calm_steps = 2}, 4);
    REQUIRE(limit.update(0.05) == 4);
    REQUIRE(limit.update(0.1) == 4);  // equal to a mark is between them
    REQUIRE(limit.update(0.05) == 4);
    REQUIRE(limit.update(0.2) == 4);
    REQUIRE(limit.update(0.05) == 4);
    REQUIRE(limit.update(0.05) == 5);
}

TEST_CASE("the limit throws for drift that is none and for marks out of order", "[adaptive_limit]") {
    adaptive_limit limit({.narrow_above = 0.2, .widen_below = 0.1}, 4);
    REQUIRE_THROWS_AS(limit.update(-0.1), std::invalid_argument);
    REQUIRE_THROWS_AS(limit.update(nan_value), std::invalid_argument);
    REQUIRE(limit.value() == 4);
    REQUIRE_THROWS_AS(adaptive_limit({.narrow_above = 0.1, .widen_below = 0.2}, 4), std::invalid_argument);
    REQUIRE_THROWS_AS(adaptive_limit({.min = 5, .max = 4}, 4), std::invalid_argument);
    REQUIRE_THROWS_AS(adaptive_limit({.min = 1, .max = 4}, 5), std::invalid_argument);
    REQUIRE_THROWS_AS(adaptive_limit({.calm_steps = 0}, 4), std::invalid_argument);
}

TEST_CASE("the window in drift keeps versions that hardly differ, and one large step closes it", "[drift_window]") {
    drift_window window({.max_drift = 1.0, .max_versions = 5});
    REQUIRE(window.keep_versions() == 1);
    REQUIRE(window.publish(0.25) == 2);
    REQUIRE(window.publish(0.25) == 3);
    REQUIRE(window.publish(0.5) == 4);  // 1.0 back to the first: equal is kept
    REQUIRE(window.publish(0.25) == 4);
    REQUIRE(window.drift_since(0) == 0.0);
    REQUIRE(window.drift_since(1) == 0.25);
    REQUIRE(window.drift_since(2) == 0.75);
    REQUIRE(window.drift_since(4) == 1.25);
    REQUIRE_FALSE(window.drift_since(5));
    REQUIRE_FALSE(window.drift_since(-1));
    REQUIRE(window.publish(3) == 1);
    REQUIRE(window.publish(0) == 2);
    for (int i = 0; i < 9; ++i) {
        window.publish(0);
    }
    REQUIRE(window.keep_versions() == 5);  // max_versions, however little it moves
    REQUIRE_THROWS_AS(window.publish(-1), std::invalid_argument);
    REQUIRE_THROWS_AS(window.publish(nan_value), std::invalid_argument);
    REQUIRE_THROWS_AS(drift_window({.max_drift = -1}), std::invalid_argument);
    REQUIRE_THROWS_AS(drift_window({.max_versions = 0}), std::invalid_argument);
}

TEST_CASE("random drifts: the window is the longest tail of versions within max_drift", "[drift_window]") {
    std::mt19937 random(2);
    for (int run = 0; run < 50; ++run) {
        drift_window window({.max_drift = 16, .max_versions = 7});
        std::vector<double> drifts;
        for (int version = 1; version < 40; ++version) {
            drifts.push_back(std::uniform_int_distribution<int>(0, 9)(random));
            std::int64_t expected = 1;
            for (std::int64_t keep = 2; keep <= std::min(version + 1, 7); ++keep) {
                double total = 0;
                for (std::int64_t age = 0; age < keep - 1; ++age) {
                    total += drifts[drifts.size() - 1 - static_cast<std::size_t>(age)];
                }
                if (total <= 16) {
                    expected = keep;
                }
            }
            REQUIRE(window.publish(drifts.back()) == expected);
        }
    }
}

TEST_CASE("weights fall with staleness as published", "[staleness_decay]") {
    struct row {
        std::int64_t staleness;
        double polynomial, hinge, exponential;
    };
    for (row const& expected : {row{0, 1, 1, 1}, row{1, 0.707106781187, 1, 0.778800783071},
                                row{2, 0.57735026919, 1, 0.606530659713}, row{4, 0.4472135955, 0.047619047619, 0.367879441171},
                                row{8, 0.333333333333, 0.016393442623, 0.135335283237}, row{-3, 1, 1, 1}}) {
        CAPTURE(expected.staleness);
        REQUIRE(constant_decay{}(expected.staleness) == 1);
        REQUIRE_THAT(polynomial_decay{.exponent = 0.5}(expected.staleness), WithinRel(expected.polynomial, 1e-11));
        REQUIRE_THAT((hinge_decay{.slope = 10, .free = 2}(expected.staleness)), WithinRel(expected.hinge, 1e-11));
        REQUIRE_THAT(exponential_decay{.rate = 0.25}(expected.staleness), WithinRel(expected.exponential, 1e-11));
    }
    REQUIRE_THROWS_AS(polynomial_decay{.exponent = -1}(1), std::invalid_argument);
    REQUIRE_THROWS_AS((hinge_decay{.slope = -1, .free = 0}(1)), std::invalid_argument);
    REQUIRE_THROWS_AS(exponential_decay{.rate = nan_value}(1), std::invalid_argument);
}

TEST_CASE("each token is weighed by the version that made it", "[staleness_decay]") {
    version_runs runs;
    runs.append({2}, 2);
    runs.append({5}, 1);
    runs.append({6}, 1);
    std::vector<float> weights(4, -1.0F);
    weigh_by_staleness(exponential_decay{.rate = 0.25}, runs, {6}, std::span(weights));
    REQUIRE_THAT(weights[0], WithinAbs(0.367879441, 1e-7));
    REQUIRE(weights[1] == weights[0]);
    REQUIRE_THAT(weights[2], WithinAbs(0.778800783, 1e-7));
    REQUIRE(weights[3] == 1);
    weights.resize(3);
    REQUIRE_THROWS_AS(weigh_by_staleness(constant_decay{}, runs, {6}, std::span(weights)), std::invalid_argument);
}

TEST_CASE("a phase holds from its first step to the next one's", "[phase_schedule]") {
    phase const early{.first_step = 0, .keep_versions = 4, .max_switches = 3, .max_staleness = 4};
    phase const middle{.first_step = 100, .keep_versions = 2, .max_switches = 1, .max_staleness = 2};
    phase const late{.first_step = 101, .keep_versions = 1, .max_switches = 0, .max_staleness = 0};
    phase_schedule const schedule({early, middle, late});
    REQUIRE(schedule.at(-1) == early);
    REQUIRE(schedule.at(0) == early);
    REQUIRE(schedule.at(99) == early);
    REQUIRE(schedule.at(100) == middle);
    REQUIRE(schedule.at(101) == late);
    REQUIRE(schedule.at(1'000'000) == late);
    REQUIRE_THROWS_AS(phase_schedule({}), std::invalid_argument);
    REQUIRE_THROWS_AS(phase_schedule({middle}), std::invalid_argument);
    REQUIRE_THROWS_AS(phase_schedule({early, late, middle}), std::invalid_argument);
    REQUIRE_THROWS_AS(phase_schedule({early, early}), std::invalid_argument);
    REQUIRE_THROWS_AS(phase_schedule({{.first_step = 0, .keep_versions = -1}}), std::invalid_argument);
}

TEST_CASE("the forecast proposes the tokens that fit before the next interruption", "[interruption_forecast]") {
    interruption_forecast forecast({.smoothing = 0.5, .margin = 1, .min_tokens = 4, .max_tokens = 500});
    REQUIRE_FALSE(forecast.next());
    REQUIRE(forecast.propose_tokens(0, 50) == 500);
    forecast.interrupted(10);
    REQUIRE(forecast.propose_tokens(11, 50) == 500);  // one interruption is no interval
    forecast.interrupted(20);
    REQUIRE(forecast.next() == 30.0);
    REQUIRE(forecast.propose_tokens(23, 50) == 350);
    REQUIRE(forecast.propose_tokens(23.01, 50) == 349);
    REQUIRE(forecast.propose_tokens(29.99, 50) == 4);
    REQUIRE(forecast.propose_tokens(45, 50) == 4);  // overdue
    REQUIRE(forecast.propose_tokens(20, 1e300) == 500);
    forecast.interrupted(34);  // interval 14: mean 12, deviation 2
    REQUIRE(forecast.next() == 34.0 + 12 - 2);
    REQUIRE_THROWS_AS(forecast.interrupted(33), std::invalid_argument);
    REQUIRE_THROWS_AS(forecast.propose_tokens(35, -1), std::invalid_argument);
    REQUIRE_THROWS_AS(interruption_forecast({.smoothing = 0}), std::invalid_argument);
    REQUIRE_THROWS_AS(interruption_forecast({.min_tokens = 9, .max_tokens = 8}), std::invalid_argument);
}

TEST_CASE("with a forecast fewer chunks are cut than with chunks of one size", "[interruption_forecast]") {
    auto const cut_chunks = [](bool uses_forecast) {
        std::mt19937 random(11);
        interruption_forecast forecast({.smoothing = 0.25, .margin = 2, .min_tokens = 1, .max_tokens = 64});
        double time = 0;
        double swap = 10;
        std::int64_t cut = 0;
        for (int i = 0; i < 200;) {
            double const tokens = static_cast<double>(uses_forecast ? forecast.propose_tokens(time, 10) : 64);
            time += tokens / 10;
            if (time > swap) {
                cut += tokens > 1 ? 1 : 0;
                time = swap;
                forecast.interrupted(swap);
                swap += std::uniform_real_distribution<double>(9.8, 10.2)(random);
                ++i;
            }
        }
        return cut;
    };
    REQUIRE(cut_chunks(false) > 190);
    REQUIRE(cut_chunks(true) < 40);
}
