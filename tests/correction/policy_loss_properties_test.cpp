// SPDX-License-Identifier: Apache-2.0
// Identities between methods.
#include "catch.hpp"
#include "support/batches.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

using namespace support;

namespace {

oracle::method with_weight(oracle::weight correction) {
    oracle::method m;
    m.correction = correction;
    m.clip_high = 0.28;
    return m;
}

}  // namespace

TEST_CASE("TIS with a huge cap, where old and rollout agree, is PPO bit for bit") {
    source random(41);
    for (dtype const type : {dtype::f32, dtype::f64}) {
        oracle::batch rows = random_batch(random, {300, 300});
        for (oracle::row& r : rows) {
            for (oracle::token& t : r) {
                t.rollout_log_prob = t.old_log_prob;
                t.scored = true;
            }
        }
        laid_out const b(rows, types::all(type));
        outputs plain(b);
        outputs weighted(b);
        oracle::method m = with_weight(oracle::weight::truncated);
        m.cap = 1e30;
        (void)run(with_weight(oracle::weight::none), b, plain);
        (void)run(m, b, weighted);
        REQUIRE(weighted.same_bits(plain));
    }
}

TEST_CASE("the mask [0, infinity] is the raw importance weight bit for bit") {
    source random(42);
    for (dtype const type : {dtype::f32, dtype::f64}) {
        laid_out const b(random_batch(random, {300, 300}), types::all(type));
        outputs raw(b);
        outputs open(b);
        oracle::method m = with_weight(oracle::weight::masked);
        m.low = 0;
        m.high = infinity;
        (void)run(with_weight(oracle::weight::importance), b, raw);
        (void)run(m, b, open);
        REQUIRE(open.same_bits(raw));
    }
}

TEST_CASE("a weight outside the clip is a weight on the advantage: w min(r A, clip(r) A) = min(r w A, clip(r) w A)") {
    source random(43);
    oracle::batch rows = random_batch(random, {400, 400});
    laid_out const b(rows, types::all(dtype::f64));
    outputs outside(b);
    (void)run(with_weight(oracle::weight::importance), b, outside);
    for (oracle::row& r : rows) {
        for (oracle::token& t : r) {
            if (t.active && t.scored) {
                t.advantage *= std::exp(t.old_log_prob - t.rollout_log_prob);
            }
        }
    }
    laid_out const moved(rows, types::all(dtype::f64));
    outputs inside(moved);
    (void)run(with_weight(oracle::weight::none), moved, inside);
    std::size_t at = 0;
    b.where.each([&](std::size_t r, std::size_t t, std::int64_t, std::int64_t) {
        unsigned const bounds = oracle::high | oracle::low;
        REQUIRE((outside.flags(at) & bounds) == (inside.flags(at) & bounds));
        double const want = outside.loss.get(r, t);
        REQUIRE(std::abs(inside.loss.get(r, t) - want) <= 2 * 0x1p-52 * std::abs(want));
        double const slope = outside.gradient.get(r, t);
        REQUIRE(std::abs(inside.gradient.get(r, t) - slope) <= 3 * 0x1p-52 * std::abs(slope));
        ++at;
    });
}

TEST_CASE("bounds that are symmetric in log space swap sides when advantage and log-ratio change sign") {
    source random(44);
    oracle::method m;
    m.clip_high = 0.25;
    m.clip_low = 0.2;  // 1 / 1.25 = 1 - 0.2
    oracle::batch rows = random_batch(random, {500});
    laid_out const b(rows, types::all(dtype::f64));
    outputs plain(b);
    asyncrl::loss_report const report = run(m, b, plain);
    for (oracle::token& t : rows[0]) {
        t.log_prob = t.old_log_prob - (t.log_prob - t.old_log_prob);
        t.advantage = -t.advantage;
    }
    laid_out const turned(rows, types::all(dtype::f64));
    outputs out(turned);
    asyncrl::loss_report const other = run(m, turned, out);
    REQUIRE(report.counts.clipped_high > 10);
    REQUIRE(report.counts.clipped_low > 10);
    REQUIRE(other.counts.clipped_high == report.counts.clipped_low);
    REQUIRE(other.counts.clipped_low == report.counts.clipped_high);
    for (std::size_t t = 0; t < rows[0].size(); ++t) {
        unsigned const was = plain.flags(t);
        REQUIRE(out.flags(t) == (was == oracle::high ? oracle::low : was == oracle::low ? oracle::high : was));
    }
}

TEST_CASE("a truncated weight never enlarges a gradient by more than its cap, and the mean square by its square") {
    source random(45);
    laid_out const b(random_batch(random, {2000}), types::all(dtype::f64));
    outputs plain(b);
    outputs capped(b);
    oracle::method m = with_weight(oracle::weight::truncated);
    m.cap = 1.25;
    (void)run(with_weight(oracle::weight::none), b, plain);
    (void)run(m, b, capped);
    double square = 0;
    double capped_square = 0;
    b.where.each([&](std::size_t r, std::size_t t, std::int64_t, std::int64_t) {
        double const g = plain.gradient.get(r, t);
        double const h = capped.gradient.get(r, t);
        REQUIRE(std::abs(h) <= 1.25 * std::abs(g) * (1 + 1e-15));
        square += g * g;
        capped_square += h * h;
    });
    REQUIRE(square > 0);
    REQUIRE(capped_square <= 1.25 * 1.25 * square);
}

TEST_CASE("every number of every part, and every option, changes something") {
    source random(46);
    laid_out const b(random_batch(random, {300, 300}));
    oracle::method const base = [] {
        oracle::method m;
        m.clip_low = 0.1;
        m.clip_high = 0.1;
        m.cap = 1.1;
        m.low = 0.9;
        m.high = 1.1;
        m.constant = 2;
        return m;
    }();
    auto const differs = [&](oracle::method a, oracle::method c) {
        outputs first(b);
        outputs second(b);
        (void)run(a, b, first);
        (void)run(c, b, second);
        return first.gradient.bytes() != second.gradient.bytes();
    };
    oracle::method m = base;
    m.clip_low = 0.2;
    REQUIRE(differs(base, m));
    m = base;
    m.clip_high = 0.2;
    REQUIRE(differs(base, m));
    for (auto const correction : {oracle::weight::truncated, oracle::weight::masked, oracle::weight::importance}) {
        m = base;
        m.correction = correction;
        REQUIRE(differs(base, m));
    }
    oracle::method cap = base;
    cap.correction = oracle::weight::truncated;
    m = cap;
    m.cap = 2;
    REQUIRE(differs(cap, m));
    oracle::method band = base;
    band.correction = oracle::weight::masked;
    m = band;
    m.low = 0.5;
    REQUIRE(differs(band, m));
    m = band;
    m.high = 3;
    REQUIRE(differs(band, m));
    for (auto const reduce : {oracle::reduction::token_mean, oracle::reduction::sequence_mean_token_mean}) {
        band.reduce = reduce;
        m = band;
        m.over_kept = true;
        REQUIRE(differs(band, m));
    }
    for (auto const reduce : {oracle::reduction::token_sum, oracle::reduction::sequence_mean_token_sum}) {
        oracle::method sum = base;
        sum.reduce = reduce;
        m = sum;
        m.constant = 3;
        REQUIRE(differs(sum, m));
    }
}
