// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/staleness/version_runs.hpp>

#include <cstddef>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <vector>

using namespace asyncrl;

namespace {

using mask = std::vector<std::uint8_t>;

version_runs runs_of(std::vector<version_run> const& parts) {
    version_runs runs;
    for (version_run const& part : parts) {
        runs.append(part.version, part.tokens);
    }
    return runs;
}

}  // namespace

TEST_CASE("tokens keep the version that made them when a publish comes between", "[version_runs]") {
    version_runs const runs = runs_of({{{7}, 57}, {{8}, 71}});
    REQUIRE(runs.runs().size() == 2);
    REQUIRE(runs.runs()[0] == version_run{{7}, 57});
    REQUIRE(runs.runs()[1] == version_run{{8}, 71});
    REQUIRE(runs.oldest() == policy_version{7});
    REQUIRE(runs.last() == policy_version{8});
    REQUIRE(runs.span() == 2);
    REQUIRE(runs.switches() == 1);
    REQUIRE(runs.tokens() == 128);
}

TEST_CASE("pieces of one version are one run, empty pieces are none", "[version_runs]") {
    version_runs const runs = runs_of({{{3}, 2}, {{3}, 5}, {{4}, 0}, {{6}, 1}, {{6}, 0}});
    REQUIRE(runs.runs().size() == 2);
    REQUIRE(runs.runs()[0] == version_run{{3}, 7});
    REQUIRE(runs.runs()[1] == version_run{{6}, 1});
    REQUIRE(runs.span() == 2);
    REQUIRE(runs.tokens() == 8);
}

TEST_CASE("a trajectory without tokens has no version, span 0 and no switches", "[version_runs]") {
    version_runs runs;
    REQUIRE_FALSE(runs.oldest());
    REQUIRE_FALSE(runs.last());
    REQUIRE(runs.span() == 0);
    REQUIRE(runs.switches() == 0);
    REQUIRE(runs.keep_last_version({}) == 0);
    runs.append({2}, 3);
    runs.clear();
    REQUIRE_FALSE(runs.oldest());
    REQUIRE(runs.tokens() == 0);
    REQUIRE(runs.append({1}, 1) == append_status::appended);
}

TEST_CASE("a version older than the last one is refused and changes nothing", "[version_runs]") {
    version_runs runs = runs_of({{{4}, 3}});
    REQUIRE(runs.append({3}, 5) == append_status::older_version);
    REQUIRE(runs.append({3}, 0) == append_status::older_version);
    REQUIRE(runs.tokens() == 3);
    REQUIRE(runs.last() == policy_version{4});
    REQUIRE(runs.append({4}, 1) == append_status::appended);
}

TEST_CASE("negative counts and versions throw", "[version_runs]") {
    version_runs runs;
    REQUIRE_THROWS_AS(runs.append({1}, -1), std::invalid_argument);
    REQUIRE_THROWS_AS(runs.append({-1}, 1), std::invalid_argument);
    REQUIRE(runs.tokens() == 0);
}

TEST_CASE("after a resume the last-version mask keeps the resumed tokens only", "[version_runs]") {
    version_runs const runs = runs_of({{{1}, 5}, {{2}, 3}});
    mask loss(8, 1);
    REQUIRE(runs.keep_last_version(loss) == 3);
    REQUIRE(loss == mask{0, 0, 0, 0, 0, 1, 1, 1});
}

TEST_CASE("the last version is that of the last token that trains", "[version_runs]") {
    version_runs const runs = runs_of({{{1}, 2}, {{2}, 3}, {{3}, 2}});
    mask loss{1, 1, 1, 0, 1, 0, 0};
    REQUIRE(runs.keep_last_version(loss) == 2);
    REQUIRE(loss == mask{0, 0, 1, 0, 1, 0, 0});
    mask nothing(7, 0);
    REQUIRE(runs.keep_last_version(nothing) == 0);
    REQUIRE(nothing == mask(7, 0));
}

TEST_CASE("a mask that is not one entry per token throws and stays as it was", "[version_runs]") {
    version_runs const runs = runs_of({{{1}, 2}, {{2}, 1}});
    mask loss(2, 1);
    REQUIRE_THROWS_AS(runs.keep_last_version(loss), std::invalid_argument);
    REQUIRE_THROWS_AS(runs.keep_not_older_than({2}, loss), std::invalid_argument);
    REQUIRE(loss == mask{1, 1});
}

TEST_CASE("masks equal those made token by token", "[version_runs]") {
    std::mt19937 random(3);
    auto const below = [&](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
    for (int round = 0; round < 2000; ++round) {
        version_runs runs;
        std::vector<std::int64_t> version_of_token;
        std::int64_t version = below(3);
        for (int piece = below(6); piece > 0; --piece) {
            version += below(3);
            int const tokens = below(5);
            REQUIRE(runs.append({version}, tokens) == append_status::appended);
            version_of_token.insert(version_of_token.end(), static_cast<std::size_t>(tokens), version);
        }
        mask before(version_of_token.size());
        for (std::uint8_t& entry : before) {
            entry = static_cast<std::uint8_t>(below(2));
        }
        std::int64_t last = -1;
        for (std::size_t i = 0; i < before.size(); ++i) {
            last = before[i] != 0 ? version_of_token[i] : last;
        }
        std::int64_t const bound = below(12);
        mask by_last = before;
        mask by_age = before;
        std::int64_t const kept_last = runs.keep_last_version(by_last);
        std::int64_t const kept_young = runs.keep_not_older_than({bound}, by_age);
        std::int64_t expected_last = 0;
        std::int64_t expected_young = 0;
        bool same = true;
        for (std::size_t i = 0; i < before.size(); ++i) {
            bool const keep_last = before[i] != 0 && version_of_token[i] == last;
            bool const keep_young = before[i] != 0 && version_of_token[i] >= bound;
            same = same && (by_last[i] != 0) == keep_last && (by_age[i] != 0) == keep_young;
            expected_last += keep_last ? 1 : 0;
            expected_young += keep_young ? 1 : 0;
        }
        REQUIRE(same);
        REQUIRE(kept_last == expected_last);
        REQUIRE(kept_young == expected_young);
    }
}
