// SPDX-License-Identifier: Apache-2.0
// However a batch is cut into micro-batches and ranks, loss and gradient are those of the whole.
#include "catch.hpp"
#include "support/cases.hpp"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

using namespace support;

namespace {

std::vector<oracle::method> every_reduction() {
    std::vector<oracle::method> all;
    for (int reduce = 0; reduce < 4; ++reduce) {
        for (bool const kept : {false, true}) {
            oracle::method m;
            m.correction = oracle::weight::masked;
            m.high = 1.5;
            m.reduce = static_cast<oracle::reduction>(reduce);
            m.over_kept = kept;
            m.constant = 7;
            all.push_back(m);
        }
    }
    return all;
}

struct piece {
    piece(oracle::batch rows, types kinds, layout how) : b(std::move(rows), kinds, how), out(b) {}
    laid_out b;
    outputs out;
};

/// The rows cut before each of the given row numbers.
std::vector<std::unique_ptr<piece>> cut(oracle::batch const& rows, std::vector<std::size_t> const& before, types kinds,
                                        layout how) {
    std::vector<std::unique_ptr<piece>> pieces;
    std::size_t begin = 0;
    for (std::size_t i = 0; i <= before.size(); ++i) {
        std::size_t const end = i < before.size() ? before[i] : rows.size();
        oracle::batch part(rows.begin() + static_cast<std::ptrdiff_t>(begin), rows.begin() + static_cast<std::ptrdiff_t>(end));
        pieces.push_back(std::make_unique<piece>(std::move(part), kinds, how));
        begin = end;
    }
    return pieces;
}

asyncrl::totals sum_of(oracle::method const& m, std::vector<std::unique_ptr<piece>> const& pieces) {
    asyncrl::totals sums;
    for (auto const& p : pieces) {
        sums += library::measure(m, p->b.batch, p->out.scratch);
    }
    return sums;
}

}  // namespace

TEST_CASE("the loss of the whole does not depend on how it is cut: 16/7 for one, two and three micro-batches in any order") {
    oracle::batch const rows = rows_with_losses({{1, 1, 1, 1}, {6}, {2, 4}});
    oracle::method m;
    m.loss = oracle::surrogate::policy_gradient;
    layout how;
    how.packed = true;
    for (oracle::batch const& order :
         {rows, oracle::batch{rows[2], rows[0], rows[1]}, oracle::batch{rows[1], rows[2], rows[0]}}) {
        for (std::vector<std::size_t> const& cuts : std::vector<std::vector<std::size_t>>{{}, {1}, {2}, {1, 2}}) {
            auto const pieces = cut(order, cuts, types::all(dtype::f64), how);
            asyncrl::totals const sums = sum_of(m, pieces);
            double loss = 0;
            for (auto const& p : pieces) {
                loss += library::policy_loss(m, p->b.batch, sums, p->out.to(), p->out.scratch,
                                             {.batches = static_cast<std::int64_t>(pieces.size())})
                            .sums.loss;
            }
            REQUIRE_THAT(loss, Catch::Matchers::WithinAbs(16.0 / 7, 1e-15));
        }
    }
}

TEST_CASE("sequences of unequal length: advantages +1 and -1 over lengths 1 and 3 have the loss 0.5") {
    oracle::batch const rows{{token_of(0, 0, 0, 1)}, oracle::row(3, token_of(0, 0, 0, -1))};
    layout how;
    how.packed = true;
    for (std::vector<std::size_t> const& cuts : std::vector<std::vector<std::size_t>>{{}, {1}}) {
        auto const pieces = cut(rows, cuts, {}, how);
        asyncrl::totals const sums = sum_of(oracle::method{}, pieces);
        double loss = 0;
        for (auto const& p : pieces) {
            loss += library::policy_loss(oracle::method{}, p->b.batch, sums, p->out.to(), p->out.scratch).sums.loss;
        }
        REQUIRE(loss == 0.5);
    }
}

TEST_CASE("micro-batches give each token the bits of the whole batch, and their reports add up to its report") {
    source random(21);
    for (int repeat = 0; repeat < 12; ++repeat) {
        layout how;
        how.packed = repeat % 2 == 0;
        std::vector<std::int64_t> lengths;
        for (int r = 0; r < 13; ++r) {
            lengths.push_back(how.packed ? random.below(400) : 250);
        }
        oracle::batch const rows = random_batch(random, lengths);
        std::vector<std::size_t> cuts;
        for (std::size_t r = 0; r <= rows.size(); ++r) {
            if (random.chance(0.3)) {
                cuts.push_back(r);  // a cut at either end leaves an empty micro-batch
            }
        }
        for (dtype const type : {dtype::f64, dtype::f32}) {
            for (oracle::method const& m : every_reduction()) {
                laid_out const whole(rows, types::all(type), how);
                outputs want(whole);
                asyncrl::totals const all = library::measure(m, whole.batch, want.scratch);
                asyncrl::loss_report const report = library::policy_loss(m, whole.batch, all, want.to(), want.scratch);

                auto const pieces = cut(rows, cuts, types::all(type), how);
                asyncrl::totals const sums = sum_of(m, pieces);
                REQUIRE(sums.counts.batches == static_cast<std::int64_t>(pieces.size()));
                REQUIRE(sums.counts.tokens == all.counts.tokens);
                REQUIRE(sums.counts.sequences == all.counts.sequences);
                REQUIRE(sums.counts.kept_tokens == all.counts.kept_tokens);
                REQUIRE(sums.counts.kept_sequences == all.counts.kept_sequences);

                asyncrl::loss_report merged;
                std::size_t row = 0;
                bool same = true;
                for (auto const& p : pieces) {
                    merged += library::policy_loss(m, p->b.batch, sums, p->out.to(), p->out.scratch,
                                                   {.batches = static_cast<std::int64_t>(pieces.size())});
                    p->b.where.each([&](std::size_t r, std::size_t t, std::int64_t, std::int64_t) {
                        same = same && p->out.gradient.bits(r, t) == want.gradient.bits(row + r, t);
                    });
                    row += p->b.values.size();
                }
                REQUIRE(same);
                double const fine = type == dtype::f64 ? 1e-12 : 1e-6;
                REQUIRE_THAT(merged.sums.loss,
                             Catch::Matchers::WithinAbs(report.sums.loss, fine * report.sums.absolute_loss + 1e-300));
                REQUIRE_THAT(merged.sums.weight_squared, Catch::Matchers::WithinRel(report.sums.weight_squared, fine));
                REQUIRE(std::memcmp(&merged.counts, &report.counts, sizeof report.counts) == 0);
                REQUIRE(std::memcmp(&merged.maxima, &report.maxima, sizeof report.maxima) == 0);
            }
        }
    }
}

TEST_CASE("ranks that average their gradients scale by their number") {
    oracle::batch const rows = rows_with_losses({{1, 1, 1, 1}, {6}, {2, 4}});
    oracle::method m;
    m.loss = oracle::surrogate::policy_gradient;
    layout how;
    how.packed = true;
    auto const ranks = cut(rows, {1}, types::all(dtype::f64), how);
    asyncrl::totals const sums = sum_of(m, ranks);
    double mean = 0;
    for (auto const& r : ranks) {
        double const loss =
            library::policy_loss(m, r->b.batch, sums, r->out.to(), r->out.scratch, {.batches = 2, .scale = 2}).sums.loss;
        double const own = r == ranks.front() ? 4 : 12;
        REQUIRE_THAT(loss, Catch::Matchers::WithinAbs(own * 2 / 7, 1e-14));
        REQUIRE_THAT(r->out.gradient.get(0, 0), Catch::Matchers::WithinAbs(-2.0 / 7, 1e-15));
        mean += loss / 2;
    }
    REQUIRE_THAT(mean, Catch::Matchers::WithinAbs(16.0 / 7, 1e-14));
}

TEST_CASE("the scale is a factor of loss and gradient alone, under every reduction") {
    source random(22);
    oracle::batch const rows = random_batch(random, {40, 40, 40});
    for (oracle::method const& m : every_reduction()) {
        laid_out const b(rows, types::all(dtype::f64));
        outputs plain(b);
        outputs scaled(b);
        asyncrl::loss_report const one = run(m, b, plain);
        asyncrl::loss_report const four = run(m, b, scaled, {.scale = 4});
        REQUIRE(four.sums.loss == 4 * one.sums.loss);
        REQUIRE(four.sums.absolute_loss == 4 * one.sums.absolute_loss);
        REQUIRE(four.sums.weight == one.sums.weight);
        b.where.each([&](std::size_t r, std::size_t t, std::int64_t, std::int64_t) {
            REQUIRE(scaled.gradient.get(r, t) == 4 * plain.gradient.get(r, t));
            REQUIRE(scaled.loss.bits(r, t) == plain.loss.bits(r, t));
        });
    }
}

TEST_CASE("the upstream gradient is a factor of the gradient alone, under every reduction; zeros stay +0") {
    source random(23);
    oracle::batch const rows = random_batch(random, {40, 40, 40});
    for (oracle::method const& m : every_reduction()) {
        for (dtype const type : {dtype::f32, dtype::f64}) {
            laid_out const b(rows, types::all(type));
            outputs plain(b);
            asyncrl::loss_report const one = run(m, b, plain);
            for (float const upstream : {-0.5F, 4.0F, 0.0F}) {
                outputs scaled(b);
                asyncrl::loss_report const same = run(m, b, scaled, {.upstream = &upstream});
                REQUIRE(same.sums.loss == one.sums.loss);
                REQUIRE(same.sums.absolute_loss == one.sums.absolute_loss);
                b.where.each([&](std::size_t r, std::size_t t, std::int64_t, std::int64_t) {
                    double const got = scaled.gradient.get(r, t);
                    REQUIRE(got == static_cast<double>(upstream) * plain.gradient.get(r, t));
                    REQUIRE((got != 0 || !std::signbit(got)));
                    REQUIRE(scaled.loss.bits(r, t) == plain.loss.bits(r, t));
                });
            }
        }
    }
    laid_out const b(rows);
    for (float const wrong : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        outputs out(b);
        REQUIRE_THROWS_AS(run(oracle::method{}, b, out, {.upstream = &wrong}), std::invalid_argument);
        REQUIRE(out.untouched());
    }
}

TEST_CASE("more batches than the totals cover is an error, never a local mean") {
    oracle::batch const rows = rows_with_losses({{1, 2}});
    laid_out const b(rows);
    outputs out(b);
    asyncrl::totals const one = library::measure(oracle::method{}, b.batch, out.scratch);
    REQUIRE_THROWS_AS(library::policy_loss(oracle::method{}, b.batch, one, out.to(), out.scratch, {.batches = 2}),
                      std::invalid_argument);
    REQUIRE(out.untouched());
    REQUIRE_NOTHROW(library::policy_loss(oracle::method{}, b.batch, one + one, out.to(), out.scratch, {.batches = 2}));
}

TEST_CASE("a rank without a token adds a zero element") {
    asyncrl::token_batch empty;
    asyncrl::workspace none(empty);
    oracle::batch const rows = rows_with_losses({{1, 3}});
    oracle::method m;
    m.loss = oracle::surrogate::policy_gradient;
    laid_out const b(rows, types::all(dtype::f64));
    outputs out(b);
    asyncrl::totals const sums = library::measure(m, b.batch, out.scratch) + library::measure(m, empty, none);
    REQUIRE(sums.counts.batches == 2);
    asyncrl::loss_report const report = library::policy_loss(m, b.batch, sums, out.to(), out.scratch, {.batches = 2}) +
                                        library::policy_loss(m, empty, sums, {}, none, {.batches = 2});
    REQUIRE(report.sums.loss == 2);
    REQUIRE(report.counts.tokens == 2);
}

TEST_CASE("the caller's counts win") {
    oracle::batch const rows = rows_with_losses({{1, 3}, {4, 4}});
    oracle::method m;
    m.loss = oracle::surrogate::policy_gradient;
    laid_out const b(rows, types::all(dtype::f64));
    outputs out(b);
    asyncrl::totals mine;
    mine.counts = {.batches = 1, .tokens = 24, .sequences = 8, .kept_tokens = 48, .kept_sequences = 16};
    auto const loss_by = [&](oracle::reduction reduce, bool kept) {
        m.reduce = reduce;
        m.over_kept = kept;
        return library::policy_loss(m, b.batch, mine, out.to(), out.scratch).sums.loss;
    };
    REQUIRE(loss_by(oracle::reduction::token_mean, false) == 0.5);
    REQUIRE(loss_by(oracle::reduction::token_mean, true) == 0.25);
    REQUIRE(loss_by(oracle::reduction::sequence_mean_token_mean, false) == 0.75);
    REQUIRE(loss_by(oracle::reduction::sequence_mean_token_mean, true) == 0.375);
    REQUIRE(loss_by(oracle::reduction::sequence_mean_token_sum, false) == 1.5);
    REQUIRE(loss_by(oracle::reduction::token_sum, false) == 12);
}

TEST_CASE("totals add up field by field") {
    asyncrl::totals a;
    a.counts = {.batches = 1, .tokens = 20, .sequences = 300, .kept_tokens = 4000, .kept_sequences = 50000};
    asyncrl::totals b;
    b.counts = {.batches = 2, .tokens = 30, .sequences = 400, .kept_tokens = 5000, .kept_sequences = 60000};
    asyncrl::totals const sum = a + b;
    REQUIRE(sum.counts.batches == 3);
    REQUIRE(sum.counts.tokens == 50);
    REQUIRE(sum.counts.sequences == 700);
    REQUIRE(sum.counts.kept_tokens == 9000);
    REQUIRE(sum.counts.kept_sequences == 110000);
}
