// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/correction/m2po.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

using namespace asyncrl;
using Catch::Matchers::WithinAbs;
using Catch::Matchers::WithinRel;

namespace {

struct columns {
    std::vector<double> x, o, u, a;
    std::vector<std::uint8_t> mask;

    [[nodiscard]] token_batch batch() const {
        token_batch b;
        b.rows = 1;
        b.tokens = static_cast<std::int64_t>(x.size());
        b.log_prob = per_token(x.data());
        b.old_log_prob = per_token(o.data());
        b.rollout_log_prob = per_token(u.data());
        b.advantage = per_token(a.data());
        b.mask = per_token(mask.data());
        return b;
    }
};

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

/// Eight tokens, the fifth under the mask.
columns eight() {
    return {{-1.125, -0.03125, -2.5, -1.0625, not_a_number, -2.4375, -0.1875, -2.5},
            {-1.21875, -0.09375, -2.875, -0.6875, not_a_number, -1.9375, -0.28125, -3.25},
            {-1.25, -0.0625, -3, -0.625, -infinity, -2, -0.3125, -4},
            {1, 1, 1, 1, infinity, -0.5, -0.5, -0.5},
            {1, 1, 1, 1, 0, 1, 1, 1}};
}

columns drawn(std::uint64_t seed, std::size_t n) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> bell(0, 0.3);
    columns c;
    for (std::size_t i = 0; i < n; ++i) {
        c.o.push_back(-1 + bell(random));
        c.x.push_back(c.o.back() + bell(random));
        c.u.push_back(c.o.back() - std::round(8 * bell(random)) / 8);  // ties
        c.a.push_back(bell(random));
        c.mask.push_back(random() % 5 != 0);
    }
    return c;
}

}  // namespace

TEST_CASE("the bound cuts the outward squares to the budget") {
    columns const c = eight();
    std::vector<double> scratch;
    m2_bound_result const found = m2_bound(c.batch(), 0.04, scratch);
    REQUIRE(found.outward == 4);
    REQUIRE_THAT(found.mean_square, WithinRel(0.100830078125, 1e-12));
    REQUIRE_THAT(found.log_bound, WithinRel(0.27138965299, 1e-11));
    REQUIRE_THAT(1 - found.clip.low, WithinRel(0.762319398493, 1e-11));
    REQUIRE_THAT(1 + found.clip.high, WithinRel(1.31178611219, 1e-11));

    m2_bound_result const floored = m2_bound(c.batch(), 0.04, scratch, 0.3, 0.5);
    REQUIRE(floored.clip.low == 0.3);
    REQUIRE(floored.clip.high == 0.5);
}

TEST_CASE("the bound solves its equation on random batches") {
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
        columns const c = drawn(seed, 50 + 61 * seed);
        std::vector<double> scratch;
        double const budget = 0.002 * static_cast<double>(seed);
        m2_bound_result const found = m2_bound(c.batch(), budget, scratch);
        double cut = 0;
        double whole = 0;
        std::int64_t n = 0;
        for (std::size_t i = 0; i < c.x.size(); ++i) {
            double const d = c.x[i] - c.o[i];
            if (c.mask[i] != 0 && c.a[i] * d > 0) {
                ++n;
                whole += d * d;
                cut += std::pow(std::min(std::abs(d), found.log_bound), 2);
            }
        }
        INFO("seed " << seed);
        REQUIRE(found.outward == n);
        if (whole / static_cast<double>(n) <= budget) {
            REQUIRE(found.log_bound == infinity);
        } else {
            REQUIRE_THAT(cut / static_cast<double>(n), WithinRel(budget, 1e-9));
        }
        found.clip.check();  // a clip that make_objective takes
    }
}

TEST_CASE("without outward tokens there is no bound") {
    columns c = eight();
    std::fill(c.a.begin(), c.a.end(), 0.0);
    std::vector<double> scratch;
    m2_bound_result const found = m2_bound(c.batch(), 0.04, scratch);
    REQUIRE(found.outward == 0);
    REQUIRE(found.log_bound == infinity);
    found.clip.check();
}

TEST_CASE("the mask rejects the largest squares until the mean of the rest is below the limit") {
    columns const c = eight();
    std::vector<std::pair<double, std::int64_t>> scratch;
    std::vector<std::uint8_t> keep(8, 7);
    REQUIRE(m2_mask(c.batch(), 0.04, keep.data(), scratch) == 1);
    REQUIRE(keep == std::vector<std::uint8_t>{1, 1, 1, 1, 1, 1, 1, 0});
}

TEST_CASE("the mask is that of a search over every cut, the earlier of equal squares first") {
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
        columns const c = drawn(seed, 20 + 7 * seed);
        double const limit = 0.005 * static_cast<double>(seed);
        std::vector<std::size_t> order;
        for (std::size_t i = 0; i < c.x.size(); ++i) {
            if (c.mask[i] != 0) {
                order.push_back(i);
            }
        }
        auto const square = [&](std::size_t i) { return (c.o[i] - c.u[i]) * (c.o[i] - c.u[i]); };
        std::stable_sort(order.begin(), order.end(), [&](std::size_t i, std::size_t j) { return square(i) > square(j); });
        std::size_t cut = 0;
        for (; cut + 1 < order.size(); ++cut) {
            double rest = 0;
            for (std::size_t i = order.size(); i-- > cut;) {
                rest += square(order[i]);
            }
            if (rest / static_cast<double>(order.size() - cut) < limit) {
                break;
            }
        }
        std::vector<std::uint8_t> want(c.x.size(), 1);
        for (std::size_t i = 0; i < cut; ++i) {
            want[order[i]] = 0;
        }
        std::vector<std::pair<double, std::int64_t>> scratch;
        std::vector<std::uint8_t> keep(c.x.size());
        INFO("seed " << seed);
        REQUIRE(m2_mask(c.batch(), limit, keep.data(), scratch) == static_cast<std::int64_t>(cut));
        REQUIRE(keep == want);
    }
}

TEST_CASE("one token is always kept, and inactive ones are") {
    columns c = eight();
    std::vector<std::pair<double, std::int64_t>> scratch;
    std::vector<std::uint8_t> keep(8);
    REQUIRE(m2_mask(c.batch(), 1e-12, keep.data(), scratch) == 6);
    REQUIRE(keep[4] == 1);
    REQUIRE(std::count(keep.begin(), keep.end(), 1) == 2);
    std::fill(c.mask.begin(), c.mask.end(), std::uint8_t{0});
    REQUIRE(m2_mask(c.batch(), 0.04, keep.data(), scratch) == 0);
}

TEST_CASE("numbers that cannot be meant are refused before anything is written") {
    columns const c = eight();
    std::vector<double> scratch;
    std::vector<std::pair<double, std::int64_t>> pairs;
    std::vector<std::uint8_t> keep(8, 7);
    REQUIRE_THROWS_AS(m2_bound(c.batch(), 0, scratch), std::invalid_argument);
    REQUIRE_THROWS_AS(m2_bound(c.batch(), not_a_number, scratch), std::invalid_argument);
    REQUIRE_THROWS_AS(m2_bound(c.batch(), 1, scratch, 1, 0), std::invalid_argument);
    REQUIRE_THROWS_AS(m2_mask(c.batch(), 0, keep.data(), pairs), std::invalid_argument);
    token_batch broken = c.batch();
    broken.old_log_prob = {};
    REQUIRE_THROWS_AS(m2_mask(broken, 1, keep.data(), pairs), std::invalid_argument);
    REQUIRE(keep == std::vector<std::uint8_t>(8, 7));
}
