// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/correction/mismatch_split.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

using namespace asyncrl;
using Catch::Matchers::WithinAbs;
using Catch::Matchers::WithinRel;

namespace {

template <typename Number>
struct columns {
    std::vector<Number> old, sync, rollout;
    std::vector<std::int32_t> version;
    std::vector<std::uint8_t> mask;

    explicit columns(std::size_t n) {
        std::mt19937_64 random(n);
        std::normal_distribution<double> bell(0, 0.2);
        for (std::size_t i = 0; i < n; ++i) {
            rollout.push_back(static_cast<Number>(-1 + bell(random)));
            sync.push_back(static_cast<Number>(static_cast<double>(rollout.back()) + 0.1 * bell(random)));
            old.push_back(static_cast<Number>(static_cast<double>(sync.back()) + bell(random)));
            version.push_back(static_cast<std::int32_t>(random() % 9) - 1);
            mask.push_back(random() % 4 != 0);
            if (mask.back() == 0) {
                sync.back() = std::numeric_limits<Number>::quiet_NaN();
            } else if (random() % 16 == 0) {
                rollout.back() = std::numeric_limits<Number>::quiet_NaN();  // not scored
            } else if (random() % 32 == 0) {
                old.back() = -std::numeric_limits<Number>::infinity();
            }
        }
    }
    [[nodiscard]] token_batch batch() const {
        token_batch b;
        b.rows = 1;
        b.tokens = static_cast<std::int64_t>(old.size());
        b.old_log_prob = per_token(old.data());
        b.sync_log_prob = per_token(sync.data());
        b.rollout_log_prob = per_token(rollout.data());
        b.version = per_token(version.data());
        b.policy_version = 6;
        b.mask = per_token(mask.data());
        return b;
    }
    [[nodiscard]] bool counts(std::size_t i) const {
        return mask[i] != 0 && std::isfinite(old[i]) && std::isfinite(rollout[i]);
    }
};

}  // namespace

TEMPLATE_TEST_CASE("lag and engine gap are moments over the tokens that have both", "", float, double) {
    for (std::size_t const n : {0U, 1U, 7U, 2048U, 5001U}) {
        columns<TestType> const c(n);
        double lag = 0, engine = 0, lag2 = 0, engine2 = 0, product = 0;
        std::int64_t tokens = 0;
        for (std::size_t i = 0; i < n; ++i) {
            if (c.counts(i)) {
                double const l = static_cast<double>(c.old[i] - c.sync[i]);
                double const e = static_cast<double>(c.sync[i] - c.rollout[i]);
                lag += l;
                engine += e;
                lag2 += l * l;
                engine2 += e * e;
                product += l * e;
                ++tokens;
            }
        }
        mismatch_split_report const got = mismatch_split(c.batch());
        INFO("n " << n);
        REQUIRE(got.tokens == tokens);
        REQUIRE_THAT(got.sums.lag, WithinAbs(lag, 1e-5 * static_cast<double>(n)));
        REQUIRE_THAT(got.sums.engine, WithinAbs(engine, 1e-5 * static_cast<double>(n)));
        REQUIRE_THAT(got.sums.lag_squared, WithinRel(lag2, 1e-5));
        REQUIRE_THAT(got.sums.engine_squared, WithinRel(engine2, 1e-5));
        REQUIRE_THAT(got.sums.product, WithinAbs(product, 1e-6 * static_cast<double>(n)));
        REQUIRE(got.lag.total() == tokens);
        REQUIRE(got.engine.total() == tokens);
        if (tokens > 100) {
            auto const m = static_cast<double>(tokens);
            REQUIRE_THAT(got.covariance(), WithinAbs(product / m - lag / m * (engine / m), 1e-6));
            REQUIRE_THAT(got.lag_variance(), WithinRel(lag2 / m - lag / m * (lag / m), 1e-4));
            REQUIRE(got.lag.quantile(0.5) > got.engine.quantile(0.5));
        }
    }
}

TEST_CASE("the parts add up to the mismatch, whose variance is theirs and twice the covariance") {
    columns<double> const c(4000);
    mismatch_split_report const split = mismatch_split(c.batch());
    workspace scratch(c.batch());
    mismatch_report const whole = mismatch(c.batch(), scratch);
    REQUIRE(whole.counts.tokens == split.tokens);
    REQUIRE_THAT(split.sums.lag + split.sums.engine, WithinRel(whole.sums.log_ratio, 1e-12));
    double squares = 0;
    for (std::size_t i = 0; i < c.old.size(); ++i) {
        squares += c.counts(i) ? std::pow(c.old[i] - c.rollout[i], 2) : 0;
    }
    double const n = static_cast<double>(split.tokens);
    double const variance = squares / n - std::pow(whole.sums.log_ratio / n, 2);
    REQUIRE_THAT(split.lag_variance() + split.engine_variance() + 2 * split.covariance(), WithinRel(variance, 1e-9));
}

TEST_CASE("reports of two halves merge to that of the whole") {
    columns<double> const c(4096);
    token_batch first = c.batch();
    first.tokens = 2048;
    token_batch second = c.batch();
    second.tokens = 2048;
    for (column* const x : {&second.old_log_prob, &second.sync_log_prob, &second.rollout_log_prob}) {
        x->data = static_cast<double const*>(x->data) + 2048;
    }
    second.mask.data = static_cast<std::uint8_t const*>(second.mask.data) + 2048;
    mismatch_split_report both = mismatch_split(first);
    both += mismatch_split(second);
    mismatch_split_report const whole = mismatch_split(c.batch());
    REQUIRE(both.tokens == whole.tokens);
    REQUIRE(both.sums.product == whole.sums.product);
    REQUIRE(both.lag.buckets == whole.lag.buckets);
}

TEST_CASE("buckets hold the tokens of one staleness, the last one all older ones, and none of an unknown version") {
    columns<double> const c(3000);
    std::vector<staleness_bucket> got(4);
    add_mismatch_by_staleness(c.batch(), got.data(), 4);
    std::vector<staleness_bucket> want(4);
    for (std::size_t i = 0; i < c.old.size(); ++i) {
        int const age = 6 - c.version[i];
        bool const usable = c.mask[i] != 0 && std::isfinite(c.old[i]) && std::isfinite(c.rollout[i]);
        if (usable && c.version[i] >= 0 && age >= 0) {
            double const e = c.old[i] - c.rollout[i];
            staleness_bucket& b = want[static_cast<std::size_t>(std::min(age, 3))];
            ++b.tokens;
            b.log_ratio += e;
            b.absolute_log_ratio += std::abs(e);
            b.log_ratio_squared += e * e;
            b.k3 += std::exp(e) - 1 - e;
            b.largest_absolute_log_ratio = std::max(b.largest_absolute_log_ratio, std::abs(e));
        }
    }
    for (std::size_t i = 0; i < 4; ++i) {
        REQUIRE(got[i].tokens == want[i].tokens);
        REQUIRE(got[i].tokens > 0);
        REQUIRE_THAT(got[i].log_ratio, WithinAbs(want[i].log_ratio, 1e-10));
        REQUIRE_THAT(got[i].absolute_log_ratio, WithinRel(want[i].absolute_log_ratio, 1e-12));
        REQUIRE_THAT(got[i].log_ratio_squared, WithinRel(want[i].log_ratio_squared, 1e-12));
        REQUIRE_THAT(got[i].k3, WithinRel(want[i].k3, 1e-9));
        REQUIRE(got[i].largest_absolute_log_ratio == want[i].largest_absolute_log_ratio);
    }
}

TEST_CASE("what cannot be meant is refused by name") {
    columns<double> const c(10);
    std::vector<staleness_bucket> buckets(1);
    REQUIRE_THROWS_AS(add_mismatch_by_staleness(c.batch(), buckets.data(), 0), std::invalid_argument);
    token_batch b = c.batch();
    b.sync_log_prob = {};
    REQUIRE_THROWS_AS(mismatch_split(b), std::invalid_argument);
    b = c.batch();
    b.version = per_token(c.mask.data());
    REQUIRE_THROWS_AS(add_mismatch_by_staleness(b, buckets.data(), 1), std::invalid_argument);
    b = c.batch();
    b.policy_version = -1;
    REQUIRE_THROWS_AS(add_mismatch_by_staleness(b, buckets.data(), 1), std::invalid_argument);
}
