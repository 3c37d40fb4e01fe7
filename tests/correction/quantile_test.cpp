// SPDX-License-Identifier: Apache-2.0
/// @file The order statistic of |log_ratio| against a sort, and SAT's losses on whole batches.
#include "catch.hpp"

#include <asyncrl/correction.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace {

using asyncrl::fraction;
using asyncrl::per_token;
using Catch::Matchers::WithinAbs;
using Catch::Matchers::WithinRel;

using objective = decltype(asyncrl::make_objective(asyncrl::sat_clip{}, asyncrl::anchor_rollout{}, asyncrl::token_mean{}));

objective sat(fraction share = {9, 10}) {
    return asyncrl::make_objective(asyncrl::sat_clip{.quantile = share}, asyncrl::anchor_rollout{}, asyncrl::token_mean{});
}

/// A row of tokens whose rollout log-prob is 0, so that the new one is the log-ratio.
template <typename Number>
struct tokens {
    explicit tokens(std::vector<Number> ratios)
        : log_ratio(std::move(ratios)),
          rollout(log_ratio.size(), Number(0)),
          advantage(log_ratio.size(), Number(1)),
          gradient(log_ratio.size(), std::numeric_limits<Number>::quiet_NaN()),
          loss(gradient),
          mask(log_ratio.size(), 1),
          flags(log_ratio.size(), 0xffff) {}

    [[nodiscard]] asyncrl::token_batch batch() const { return batch(0, log_ratio.size()); }
    [[nodiscard]] asyncrl::token_batch batch(std::size_t first, std::size_t count) const {
        asyncrl::token_batch b;
        b.rows = 1;
        b.tokens = static_cast<std::int64_t>(count);
        b.log_prob = per_token(log_ratio.data() + first, b.tokens);
        b.rollout_log_prob = per_token(rollout.data() + first, b.tokens);
        b.advantage = per_token(advantage.data() + first, b.tokens);
        b.mask = per_token(mask.data() + first, b.tokens);
        return b;
    }
    [[nodiscard]] asyncrl::loss_outputs to() {
        return {per_token(gradient.data(), static_cast<std::int64_t>(gradient.size())),
                per_token(loss.data(), static_cast<std::int64_t>(loss.size())),
                {},
                flags.data()};
    }
    /// The smallest |log-ratio| of an active token such that at least `share` of them are no larger.
    [[nodiscard]] double sorted(fraction share) const {
        std::vector<double> sizes;
        for (std::size_t i = 0; i < log_ratio.size(); ++i) {
            if (mask[i] != 0 && std::isfinite(log_ratio[i]) && std::isfinite(rollout[i])) {
                sizes.push_back(std::abs(static_cast<double>(log_ratio[i] - rollout[i])));
            }
        }
        std::sort(sizes.begin(), sizes.end());
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            if (static_cast<std::int64_t>(i + 1) * share.denominator >=
                share.numerator * static_cast<std::int64_t>(sizes.size())) {
                return sizes[i];
            }
        }
        return 0;
    }

    std::vector<Number> log_ratio, rollout, advantage, gradient, loss;
    std::vector<std::uint8_t> mask;
    std::vector<std::uint16_t> flags;
};

template <typename Number>
double measured(tokens<Number> const& t, fraction share) {
    asyncrl::workspace scratch(t.batch());
    return asyncrl::measure(sat(share), t.batch(), scratch).quantile;
}

template <typename Number>
double searched(std::vector<asyncrl::token_batch> const& parts, fraction share) {
    auto const method = sat(share);
    asyncrl::quantile_search search(share, asyncrl::dtype_of<Number>::value);
    asyncrl::token_batch largest;
    for (asyncrl::token_batch const& part : parts) {
        largest.rows = std::max(largest.rows, part.rows);
        largest.tokens = std::max(largest.tokens, part.tokens);
    }
    asyncrl::workspace scratch(largest);
    do {
        for (asyncrl::token_batch const& part : parts) {
            asyncrl::count_magnitudes(method, part, search, scratch);
        }
    } while (!search.narrow());
    return search.value<Number>();
}

/// Batches that ask for each way through the search.
template <typename Number>
tokens<Number> drawn(std::size_t count, int kind) {
    std::mt19937_64 random(count + static_cast<std::size_t>(kind));
    std::normal_distribution<double> bell(0, 0.1);
    std::vector<Number> ratios(count);
    for (std::size_t i = 0; i < count; ++i) {
        double d = bell(random);
        d = kind == 1 ? 0 : d;                                            // on-policy
        d = kind == 2 ? std::round(d * 8) / 8 : d;                        // a few values, massive ties
        d = kind == 3 ? std::round(d * 1024) / 1024 : d;                  // ties like those of bf16 log-probs
        d = kind == 4 ? (i < count / 2 ? d * 1e-6 : d) : d;               // sorted by place: a sample of places misleads
        d = kind == 5 ? 0.25 + static_cast<double>(i % 700) * 1e-7 : d;   // all in one first bucket
        d = kind == 6 ? std::ldexp(1.0, -static_cast<int>(i % 120)) : d;  // every magnitude
        ratios[i] = static_cast<Number>(d);
    }
    tokens<Number> t(std::move(ratios));
    for (std::size_t i = 0; i < count; ++i) {
        t.mask[i] = random() % 8 != 0;
        if (t.mask[i] == 0) {
            t.log_ratio[i] = std::numeric_limits<Number>::quiet_NaN();
        }
    }
    return t;
}

}  // namespace

TEMPLATE_TEST_CASE("the order statistic equals that of a sort", "", float, double) {
    for (std::size_t const count : {1U, 2U, 9U, 10U, 63U, 2047U, 2048U, 2049U, 32768U, 40000U, 150000U}) {
        for (int kind = 0; kind <= 6; ++kind) {
            tokens<TestType> const t = drawn<TestType>(count, kind);
            for (fraction const share : {fraction{9, 10}, fraction{1, 2}, fraction{1, 1}, fraction{1, 1000}}) {
                CAPTURE(count, kind, share.numerator, share.denominator);
                REQUIRE(measured(t, share) == t.sorted(share));
            }
        }
    }
}

TEMPLATE_TEST_CASE("a search over parts finds the order statistic of the whole, however it is cut", "", float, double) {
    for (int kind = 0; kind <= 6; ++kind) {
        std::size_t const count = 10007;
        tokens<TestType> const t = drawn<TestType>(count, kind);
        for (fraction const share : {fraction{9, 10}, fraction{1, 3}, fraction{1, 1}}) {
            CAPTURE(kind, share.numerator, share.denominator);
            double const want = t.sorted(share);
            CHECK(searched<TestType>({t.batch()}, share) == want);
            CHECK(searched<TestType>({t.batch(7000, 3007), t.batch(0, 1), t.batch(1, 6999)}, share) == want);
        }
    }
}

TEST_CASE("counts of two ranks added up give the order statistic of both") {
    tokens<float> const t = drawn<float>(5000, 0);
    asyncrl::quantile_search here({9, 10});
    asyncrl::quantile_search there({9, 10});
    asyncrl::workspace scratch(t.batch());
    bool done = false;
    while (!done) {
        asyncrl::count_magnitudes(sat(), t.batch(0, 1234), here, scratch);
        asyncrl::count_magnitudes(sat(), t.batch(1234, 5000 - 1234), there, scratch);
        for (std::size_t i = 0; i < here.counts().size(); ++i) {
            here.counts()[i] += there.counts()[i];
        }
        there.counts() = here.counts();
        done = here.narrow();
        CHECK(there.narrow() == done);
    }
    CHECK(here.value() == t.sorted({9, 10}));
    CHECK(there.value() == here.value());
}

TEST_CASE("edges of the order statistic, in 1/32") {
    struct row {
        std::vector<float> d;
        fraction share;
        double q;
        std::int64_t in_tail;
    };
    for (row const& r :
         {row{{4}, {9, 10}, 0.125, 0}, row{{4, 4, -4, 4}, {1, 2}, 0.125, 0}, row{{1, 4, 4, -4, 8}, {3, 4}, 0.125, 1},
          row{{0, 0, 0, 16}, {3, 4}, 0, 0}, row{{1, 1, 1, 1, 1, 1, 1, 1, 64}, {9, 10}, 2, 0},
          row{{1, 1, 1, 1, 1, 1, 1, 1, 1, 64}, {9, 10}, 0.03125, 1}, row{{1, 2, 3, 64}, {1, 1}, 2, 0},
          row{{}, {9, 10}, 0, 0}}) {
        std::vector<float> d = r.d;
        for (float& x : d) {
            x /= 32;
        }
        tokens<float> t(d);
        asyncrl::workspace scratch(t.batch());
        auto const totals = asyncrl::measure(sat(r.share), t.batch(), scratch);
        CHECK(totals.quantile == r.q);
        auto const report = asyncrl::policy_loss(sat(r.share), t.batch(), totals, t.to(), scratch);
        CHECK(report.counts.tail == r.in_tail);
    }
}

TEST_CASE("SAT on the eight tokens of the tables") {
    double const nan = std::numeric_limits<double>::quiet_NaN();
    tokens<double> t({-1.125, -0.03125, -2.5, -1.0625, nan, -2.4375, -0.1875, -2.5});
    t.rollout = {-1.25, -0.0625, -3, -0.625, -INFINITY, -2, -0.3125, -4};
    t.advantage = {1, 1, 1, 1, INFINITY, -0.5, -0.5, -0.5};
    t.mask[4] = 0;
    asyncrl::workspace scratch(t.batch());
    struct row {
        fraction share;
        double q;
        std::vector<double> loss;
        std::vector<unsigned> flags;
    };
    unsigned const high = asyncrl::clipped_high;
    unsigned const low = asyncrl::clipped_low;
    unsigned const tail = asyncrl::tail;
    for (row const& r :
         {row{{9, 10},
              1.5,
              {-1.13314845307, -1.0317434075, -1.2, -0.645648526428, 0, 0.4, 0.566574226533, 2.24084453517},
              {0, 0, high, 0, 0, low, 0, 0}},
          row{{3, 4},
              0.5,
              {-1.13314845307, -1.0317434075, -1.2, -0.645648526428, 0, 0.4, 0.566574226533, 2.24084453517},
              {0, 0, high, 0, 0, low, 0, tail}},
          row{{1, 2},
              0.4375,
              {-1.13314845307, -1.0317434075, -1.08672566372, -0.645648526428, 0, 0.4, 0.566574226533, 2.24084453517},
              {0, 0, high | tail, 0, 0, low, 0, tail}}}) {
        auto const totals = asyncrl::measure(sat(r.share), t.batch(), scratch);
        REQUIRE(totals.quantile == r.q);
        auto const report = asyncrl::policy_loss(sat(r.share), t.batch(), totals, t.to(), scratch);
        for (std::size_t i = 0; i < 8; ++i) {
            CAPTURE(r.q, i);
            CHECK_THAT(t.loss[i], WithinAbs(r.loss[i], 5e-12));
            CHECK(t.flags[i] == r.flags[i]);
            bool const stopped = i == 4 || (r.flags[i] & (high | low)) != 0;
            CHECK_THAT(t.gradient[i], WithinAbs(stopped ? 0 : r.loss[i] / 7, 1e-12));
        }
        CHECK(report.counts.tokens == 7);
    }
}

TEST_CASE("tokens without a log-ratio do not rank") {
    std::vector<float> d(20);
    for (std::size_t i = 0; i < d.size(); ++i) {
        d[i] = static_cast<float>(i + 1) / 64;
    }
    tokens<float> t(d);
    double const nan = std::numeric_limits<double>::quiet_NaN();
    t.rollout[19] = static_cast<float>(nan);  // unscored: 19 rank, the 18th of them is the largest but one
    CHECK(measured(t, {9, 10}) == 18.0 / 64);
    t.log_ratio[18] = INFINITY;  // not finite: 18 rank
    CHECK(measured(t, {9, 10}) == 17.0 / 64);
    t.mask[17] = 0;
    CHECK(measured(t, {9, 10}) == 16.0 / 64);
}

TEST_CASE("alpha = 1 is PPO bit for bit, on a batch") {
    tokens<float> t = drawn<float>(5000, 0);
    tokens<float> p = t;
    asyncrl::workspace scratch(t.batch());
    auto const ppo = asyncrl::make_objective(asyncrl::ppo_clip{}, asyncrl::anchor_rollout{}, asyncrl::token_mean{});
    auto const whole = sat({1, 1});
    auto const s = asyncrl::policy_loss(whole, t.batch(), asyncrl::measure(whole, t.batch(), scratch), t.to(), scratch);
    auto const q = asyncrl::policy_loss(ppo, p.batch(), asyncrl::measure(ppo, p.batch(), scratch), p.to(), scratch);
    CHECK(std::memcmp(t.gradient.data(), p.gradient.data(), t.gradient.size() * sizeof(float)) == 0);
    CHECK(std::memcmp(t.loss.data(), p.loss.data(), t.loss.size() * sizeof(float)) == 0);
    CHECK(t.flags == p.flags);
    CHECK(std::memcmp(&s.sums, &q.sums, sizeof s.sums) == 0);
}

TEST_CASE("a loss asks for the order statistic of the step, and totals of unequal batches forget theirs") {
    tokens<float> t = drawn<float>(400, 0);
    asyncrl::workspace scratch(t.batch());
    auto const first = asyncrl::measure(sat(), t.batch(0, 150), scratch);
    auto const second = asyncrl::measure(sat(), t.batch(150, 250), scratch);
    asyncrl::totals sum;
    sum += first;
    CHECK(sum.quantile == first.quantile);
    sum += second;
    CHECK(std::isnan(sum.quantile));
    auto const call = [&] { return asyncrl::policy_loss(sat(), t.batch(), sum, t.to(), scratch); };
    CHECK_THROWS_AS(call(), std::invalid_argument);
    CHECK(std::isnan(t.gradient[0]));
    sum.quantile = searched<float>({t.batch(0, 150), t.batch(150, 250)}, {9, 10});
    CHECK(sum.quantile == measured(t, {9, 10}));
    CHECK_NOTHROW(call());
}

TEST_CASE("the order statistic does not depend on threads") {
    tokens<float> const t = drawn<float>(150000, 0);
    asyncrl::workspace scratch(t.batch());
    auto const backwards = [](std::int64_t count, asyncrl::task_ref task) {
        for (std::int64_t i = count; i > 0; --i) {
            task(i - 1);
        }
    };
    CHECK(asyncrl::measure(sat(), t.batch(), scratch, backwards).quantile == t.sorted({9, 10}));
}
