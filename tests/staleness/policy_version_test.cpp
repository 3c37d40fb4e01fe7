// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/staleness/policy_version.hpp>

#include <cstdint>
#include <limits>
#include <stdexcept>

using namespace asyncrl;

namespace {

constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();

}  // namespace

TEST_CASE("staleness is the signed difference in batches", "[policy_version]") {
    REQUIRE(staleness({7}, {7}) == 0);
    REQUIRE(staleness({12}, {9}) == 3);
    REQUIRE(staleness({3}, {5}) == -2);
}

TEST_CASE("staleness saturates where the difference would wrap", "[policy_version]") {
    REQUIRE(staleness({most}, {-1}) == most);
    REQUIRE(staleness({most}, {least}) == most);
    REQUIRE(staleness({least}, {1}) == least);
    REQUIRE(staleness({-2}, {most}) == least);
    REQUIRE(staleness({most}, {0}) == most);
    REQUIRE(staleness({-1}, {most}) == least);
    REQUIRE(staleness({most}, {most}) == 0);
}

TEST_CASE("equal to the bound is fresh, one more is stale", "[policy_version]") {
    REQUIRE(freshness_of({12}, {10}, 2) == freshness::fresh);
    REQUIRE(freshness_of({12}, {9}, 2) == freshness::stale);
    REQUIRE(freshness_of({0}, {0}, 0) == freshness::fresh);
}

TEST_CASE("one update ages a sample by exactly one", "[policy_version]") {
    version_clock clock(policy_version{5});
    policy_version const sample = clock.current();
    auto const update = [&] {
        clock.begin({clock.current().value + 1});
        clock.commit();
    };
    update();
    REQUIRE(freshness_of(clock.current(), sample, 0) == freshness::stale);
    REQUIRE(freshness_of(clock.current(), sample, 1) == freshness::fresh);
    update();
    REQUIRE(freshness_of(clock.current(), sample, 1) == freshness::stale);
    REQUIRE(staleness(clock.current(), sample) == 2);
}

TEST_CASE("time in the queue counts: staleness is taken at training, not at completion", "[policy_version]") {
    policy_version const started{2};
    policy_version const finished{2};
    policy_version const trained{6};
    REQUIRE(staleness(finished, started) == 0);
    REQUIRE(staleness(trained, finished) == 4);
    REQUIRE(staleness(trained, started) == 4);
}

TEST_CASE("a sample from the future is told, whatever the bound", "[policy_version]") {
    REQUIRE(freshness_of({3}, {5}, 0) == freshness::future);
    REQUIRE(freshness_of({3}, {5}, most) == freshness::future);
    REQUIRE(freshness_of({0}, {most}, 4) == freshness::future);
}

TEST_CASE("a window larger than the version ends at version 0", "[policy_version]") {
    REQUIRE(oldest_fresh({3}, 5) == policy_version{0});
    REQUIRE(oldest_fresh({5}, 5) == policy_version{0});
    REQUIRE(oldest_fresh({9}, 5) == policy_version{4});
    REQUIRE(oldest_fresh({3}, most) == policy_version{0});
}

TEST_CASE("a version is current from its commit on, never from its begin", "[version_clock]") {
    version_clock clock(policy_version{7});
    clock.begin({8});
    REQUIRE(clock.current() == policy_version{7});
    REQUIRE(clock.pending() == policy_version{8});
    SECTION("abort leaves the version before") {
        clock.abort();
        REQUIRE(clock.current() == policy_version{7});
        REQUIRE_FALSE(clock.pending());
        clock.begin({8});
        REQUIRE(clock.commit() == policy_version{8});
    }
    SECTION("commit makes it current") {
        REQUIRE(clock.commit() == policy_version{8});
        REQUIRE(clock.current() == policy_version{8});
        REQUIRE_FALSE(clock.pending());
    }
}

TEST_CASE("a clock that follows an engine advances and never goes back", "[version_clock]") {
    version_clock clock(policy_version{3});
    REQUIRE(clock.observe({5}) == 2);
    REQUIRE(clock.current() == policy_version{5});
    REQUIRE(clock.observe({5}) == 0);
    REQUIRE(clock.observe({4}) == -1);
    REQUIRE(clock.current() == policy_version{5});
}

TEST_CASE("misuse of a clock throws and changes nothing", "[version_clock]") {
    REQUIRE_THROWS_AS(version_clock(policy_version{-1}), std::invalid_argument);
    version_clock clock(policy_version{7});
    REQUIRE_THROWS_AS(clock.commit(), std::invalid_argument);
    REQUIRE_THROWS_AS(clock.abort(), std::invalid_argument);
    REQUIRE_THROWS_AS(clock.begin({7}), std::invalid_argument);
    REQUIRE_THROWS_AS(clock.begin({6}), std::invalid_argument);
    REQUIRE_FALSE(clock.pending());
    clock.begin({8});
    REQUIRE_THROWS_AS(clock.begin({9}), std::invalid_argument);
    REQUIRE_THROWS_AS(clock.observe({9}), std::invalid_argument);
    REQUIRE(clock.pending() == policy_version{8});
    REQUIRE(clock.current() == policy_version{7});
}

TEST_CASE("two clocks share nothing", "[version_clock]") {
    version_clock first;
    version_clock second;
    first.begin({1});
    first.commit();
    REQUIRE(first.current() == policy_version{1});
    REQUIRE(second.current() == policy_version{0});
    REQUIRE_FALSE(second.pending());
}
