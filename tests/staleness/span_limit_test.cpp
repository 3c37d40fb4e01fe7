// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/staleness/span_limit.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

using namespace asyncrl;

namespace {

using labels = std::vector<std::string_view>;

version_runs through(std::vector<std::int64_t> const& versions) {
    version_runs runs;
    for (std::int64_t const version : versions) {
        runs.append({version}, 10);
    }
    return runs;
}

}  // namespace

TEST_CASE("two switches allow three versions, and a token of a fourth is refused", "[span_limit]") {
    span_limit const limit({.max_switches = 2});
    REQUIRE(limit.check(version_runs{}, {7}));
    REQUIRE(limit.check(through({7, 8}), {9}));
    REQUIRE(limit.check(through({7, 8, 9}), {9}));

    span_decision const refused = limit.check(through({7, 8, 9}), {10});
    REQUIRE_FALSE(refused);
    REQUIRE(refused.verdict == span_verdict::reject);
    REQUIRE(refused.error == "partial_rollout_staleness_exceeded");
    REQUIRE(refused.version_span == 4);
    REQUIRE(refused.version_switches == 3);
    REQUIRE(refused.max_switches == 2);
    REQUIRE(refused.max_version_span == 3);
}

TEST_CASE("without a limit all is well; a limit of 0 allows no switch", "[span_limit]") {
    span_decision const unlimited = span_limit({}).check(through({1, 2, 3, 4, 5, 6}), {7});
    REQUIRE(unlimited);
    REQUIRE(unlimited.error.empty());
    REQUIRE(unlimited.version_span == 7);
    REQUIRE_FALSE(unlimited.max_switches);
    REQUIRE_FALSE(unlimited.max_version_span);

    span_limit const none({.max_switches = 0});
    REQUIRE(none.check(through({5}), {5}));
    REQUIRE(none.check(through({5}), {6}).verdict == span_verdict::reject);
    REQUIRE(none.check(through({5}), {6}).max_version_span == 1);
}

TEST_CASE("without partial rollout any second version is an error, whatever the limit", "[span_limit]") {
    for (std::optional<std::int64_t> const max_switches : {std::optional<std::int64_t>{}, std::optional<std::int64_t>{5}}) {
        span_limit const limit({.max_switches = max_switches, .on_excess = span_verdict::mask, .partial_rollout = false});
        REQUIRE(limit.check(through({2}), {2}));
        REQUIRE(limit.check(through({2}), {4}).verdict == span_verdict::reject);
        REQUIRE(limit.check(through({2}), {4}).error == "trajectory_version_changed");
    }
}

TEST_CASE("by choice the excess is masked instead", "[span_limit]") {
    span_limit const limit({.max_switches = 1, .on_excess = span_verdict::mask});
    REQUIRE(limit.check(through({1}), {2}).verdict == span_verdict::proceed);
    span_decision const excess = limit.check(through({1, 2}), {3});
    REQUIRE(excess.verdict == span_verdict::mask);
    REQUIRE(excess.error == span_limit::exceeded);
}

TEST_CASE("labels count once, unknown ones not at all, in order of appearance over history and candidate", "[span_limit]") {
    span_limit const limit({.max_switches = 1});
    labels versions{"left over"};
    labels const history{"b", "b", "unknown", " b ", ""};
    REQUIRE(limit.check(history, labels{"none", "a"}, versions));
    REQUIRE(versions == labels{"b", "a"});
    REQUIRE_FALSE(limit.check(history, labels{"a", "b", "c"}, versions));
    REQUIRE(versions == labels{"b", "a", "c"});
    REQUIRE(limit.check(labels{}, labels{"-1"}, versions).version_span == 0);
    REQUIRE(versions.empty());
}

TEST_CASE("versions that come back are no new ones, and numbers may be missing", "[span_limit]") {
    using numbers = std::vector<std::optional<policy_version>>;
    span_limit const limit({.max_switches = 1});
    std::vector<policy_version> versions;
    REQUIRE(limit.check(numbers{{{3}}, std::nullopt, {{2}}}, numbers{{{3}}, {{-1}}, {{2}}}, versions));
    REQUIRE(versions == std::vector<policy_version>{{3}, {2}});
    REQUIRE_FALSE(limit.check(numbers{{{3}}, {{2}}}, numbers{{{4}}}, versions));
}

TEST_CASE("random labels: the span is the size of the set of real ones", "[span_limit]") {
    std::mt19937 random(3);
    labels const names{"a", "A", "b", " b", "c", "unknown", "", "-1"};
    span_limit const limit({.max_switches = 2});
    labels versions;
    for (int run = 0; run < 500; ++run) {
        labels both[2];
        std::set<std::string> distinct;
        for (labels& part : both) {
            for (int i = std::uniform_int_distribution<int>(0, 5)(random); i > 0; --i) {
                part.push_back(names[std::uniform_int_distribution<std::size_t>(0, names.size() - 1)(random)]);
                if (auto const name = real_label(part.back())) {
                    distinct.emplace(*name);
                }
            }
        }
        span_decision const decision = limit.check(both[0], both[1], versions);
        REQUIRE(decision.version_span == static_cast<std::int64_t>(distinct.size()));
        REQUIRE(static_cast<bool>(decision) == (distinct.size() <= 3));
        REQUIRE(std::set<std::string>(versions.begin(), versions.end()) == distinct);
    }
}

TEST_CASE("options outside their limits throw", "[span_limit]") {
    REQUIRE_THROWS_AS(span_limit({.max_switches = -1}), std::invalid_argument);
    REQUIRE_THROWS_AS(span_limit({.on_excess = span_verdict::proceed}), std::invalid_argument);
    REQUIRE_THROWS_AS(retry_budget(-1), std::invalid_argument);
}

TEST_CASE("a group fails as a whole, is retried twice, then dropped", "[retry_budget]") {
    retry_budget budget;
    REQUIRE(budget.settle() == retry_verdict::completed);
    for (int retry = 1; retry <= 2; ++retry) {
        REQUIRE(budget.reject());
        REQUIRE_FALSE(budget.reject());  // a second member of the same attempt
        REQUIRE(budget.has_failed());
        REQUIRE(budget.settle() == retry_verdict::retry);
        REQUIRE_FALSE(budget.has_failed());
        REQUIRE(budget.retries() == retry);
    }
    REQUIRE(budget.reject());
    REQUIRE(budget.settle() == retry_verdict::drop);
    REQUIRE(budget.retries() == 2);
    REQUIRE(budget.rejected_members() == 5);

    retry_budget none(0);
    none.reject();
    REQUIRE(none.settle() == retry_verdict::drop);
}

TEST_CASE("tokens made after a rejection are waste, those before it are lost with the attempt", "[retry_budget]") {
    retry_budget budget(1);
    budget.add_tokens(100);
    budget.reject();
    budget.add_tokens(7);
    budget.add_tokens(5);
    REQUIRE(budget.waste_after_reject() == 12);
    REQUIRE(budget.settle() == retry_verdict::retry);
    REQUIRE(budget.lost_tokens() == 100);
    budget.add_tokens(40);
    REQUIRE(budget.settle() == retry_verdict::completed);
    REQUIRE(budget.lost_tokens() == 100);
    REQUIRE(budget.waste_after_reject() == 12);
    budget.reject();
    REQUIRE(budget.settle() == retry_verdict::drop);
    REQUIRE(budget.lost_tokens() == 140);
}
