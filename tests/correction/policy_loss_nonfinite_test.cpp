// SPDX-License-Identifier: Apache-2.0
// An active token that is NaN or infinite, or becomes so, is never hidden.
#include "catch.hpp"
#include "support/cases.hpp"

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

using namespace support;
using asyncrl::nonfinite;

namespace {

constexpr char const* column_names[] = {"log_prob", "old_log_prob", "rollout_log_prob", "advantage"};

double& number_of(oracle::token& t, int column) {
    double* const numbers[] = {&t.log_prob, &t.old_log_prob, &t.rollout_log_prob, &t.advantage};
    return *numbers[column];
}

oracle::batch calm_rows(std::size_t rows, std::size_t tokens) {
    source random(11);
    oracle::batch all;
    for (std::size_t b = 0; b < rows; ++b) {
        all.emplace_back();
        for (std::size_t t = 0; t < tokens; ++t) {
            all.back().push_back(random_token(random));
            all.back().back().active = (b + t) % 5 != 3;
            all.back().back().advantage = 1;
        }
    }
    return all;
}

oracle::method tis_method() {
    oracle::method m;
    m.correction = oracle::weight::truncated;
    return m;
}

/// Expects nonfinite_error at (row, position), with the column in its text and every gradient element +0.
void expect_error(oracle::method const& m, laid_out const& b, std::int64_t row, std::int64_t position,
                  std::string const& name) {
    outputs out(b);
    bool thrown = false;
    try {
        (void)run(m, b, out);
    } catch (asyncrl::nonfinite_error const& error) {
        thrown = true;
        std::string const text = error.what();
        INFO(text);
        REQUIRE(error.row == row);
        REQUIRE(error.position == position);
        REQUIRE(text.find(name + " is not finite at row " + std::to_string(row) + ", position " + std::to_string(position)) !=
                std::string::npos);
    }
    REQUIRE(thrown);
    b.where.each([&](std::size_t r, std::size_t t, std::int64_t, std::int64_t) { REQUIRE(out.gradient.bits(r, t) == 0); });
    REQUIRE(out.guards_hold());
}

std::vector<way> ways_with(double sentinel) {
    std::vector<way> ways = every_way();
    for (way& w : ways) {
        w.how.unscored = sentinel;
    }
    types narrow = types::all(dtype::bf16);
    ways.push_back({"bfloat16, packed", narrow, ways.back().how});
    return ways;
}

}  // namespace

TEST_CASE("error: the whole gradient is zeroed, then row, position and column are named") {
    oracle::batch const calm = calm_rows(3, 1000);
    for (way const& w : ways_with(-9999)) {
        for (int column = 0; column < 4; ++column) {
            for (double const value : {not_a_number, infinity, -infinity}) {
                INFO(w.name << ", " << column_names[column] << " = " << value);
                oracle::batch rows = calm;
                REQUIRE(rows[2][500].active);
                number_of(rows[2][500], column) = value;  // in the second chunk
                laid_out const b(rows, w.kinds, w.how);
                expect_error(tis_method(), b, 2, 500, std::string("asyncrl: ") + column_names[column]);
            }
        }
    }
}

TEST_CASE("error: it is the first bad token that is named, and the first column in the order of the batch") {
    oracle::batch rows = calm_rows(2, 40);
    number_of(rows[1][20], 0) = not_a_number;
    number_of(rows[0][30], 3) = infinity;
    number_of(rows[0][30], 1) = not_a_number;
    number_of(rows[0][2], 2) = infinity;
    for (way const& w : ways_with(-9999)) {
        INFO(w.name);
        laid_out const b(rows, w.kinds, w.how);
        expect_error(tis_method(), b, 0, 2, "asyncrl: rollout_log_prob");
        expect_error(oracle::method{}, b, 0, 30, "asyncrl: old_log_prob");  // does not read the rollout column
    }
}

TEST_CASE("error: rows are told apart at their ends, and empty rows are passed over") {
    layout how;
    how.packed = true;
    oracle::batch const calm = calm_rows(4, 6);
    for (std::size_t const position : {0U, 5U}) {
        oracle::batch rows{{}, calm[0], {}, {}, calm[1], {}};
        rows[4][position].active = true;
        rows[4][position].log_prob = not_a_number;
        expect_error(oracle::method{}, laid_out(rows, {}, how), 4, static_cast<std::int64_t>(position), "asyncrl: log_prob");
    }
}

TEST_CASE("error: a result that overflows is named at its own token") {
    oracle::batch rows = calm_rows(2, 40);
    rows[1][7] = token_of(0, 0, 30, -1e30);  // finite columns; the loss is beyond float
    number_of(rows[1][9], 0) = not_a_number;
    for (way const& w : ways_with(-9999)) {
        INFO(w.name);
        rows[1][7].advantage = w.kinds.single() ? -1e30 : -1e300;
        laid_out const b(rows, w.kinds, w.how);
        expect_error(oracle::method{}, b, 1, 7, "asyncrl: the loss");
    }
}

TEST_CASE("error is the default, and does not ask about tokens under the mask or columns that are not read") {
    oracle::batch rows = calm_rows(2, 40);
    rows[0][3].log_prob = not_a_number;
    REQUIRE_FALSE(rows[0][3].active);
    rows[0][4].rollout_log_prob = infinity;
    laid_out const b(rows);
    outputs out(b);
    asyncrl::loss_report const report = run(oracle::method{}, b, out);
    REQUIRE(report.counts.nonfinite == 0);
    REQUIRE(report.first_nonfinite == -1);
    REQUIRE_THROWS_AS(run(tis_method(), b, out), asyncrl::nonfinite_error);
}

TEST_CASE("drop: the token has no loss and no gradient, is counted, and stays in the denominator") {
    oracle::batch const calm = calm_rows(3, 1000);
    for (way const& w : ways_with(-9999)) {
        for (int column = 0; column < 4; ++column) {
            for (double const value : {not_a_number, infinity, -infinity}) {
                INFO(w.name << ", " << column_names[column] << " = " << value);
                oracle::batch rows = calm;
                number_of(rows[2][500], column) = value;
                laid_out const clean(calm, w.kinds, w.how);
                laid_out const b(rows, w.kinds, w.how);
                outputs want(clean);
                outputs got(b);
                asyncrl::loss_report const before = run(tis_method(), clean, want);
                asyncrl::loss_report const report = run(tis_method(), b, got, {.on_nonfinite = nonfinite::drop});
                bool others_agree = true;
                b.where.each([&](std::size_t r, std::size_t t, std::int64_t, std::int64_t) {
                    bool const same = got.gradient.bits(r, t) == want.gradient.bits(r, t);
                    others_agree = others_agree && (same || (r == 2 && t == 500));
                });
                REQUIRE(others_agree);
                REQUIRE(got.gradient.bits(2, 500) == 0);
                REQUIRE(got.loss.bits(2, 500) == 0);
                REQUIRE(got.weight.bits(2, 500) == 0);
                std::size_t const at = w.how.packed ? 2500 : 2500;
                REQUIRE(got.flags(at) == oracle::bad);
                REQUIRE(report.counts.nonfinite == 1);
                REQUIRE(report.first_nonfinite == 2500);
                REQUIRE(report.counts.tokens == before.counts.tokens);
                REQUIRE(report.counts.kept == before.counts.kept - 1);
                REQUIRE(std::isfinite(report.sums.loss));
                REQUIRE(std::isfinite(report.sums.mismatch_squared));
                REQUIRE(std::isfinite(report.maxima.absolute_log_mismatch));
            }
        }
    }
}

TEST_CASE("propagate: loss and gradient of the token are NaN, and so is the loss of the batch") {
    oracle::batch rows = calm_rows(2, 40);
    rows[0][8].rollout_log_prob = infinity;
    REQUIRE_FALSE(rows[0][8].active);
    rows[0][7].rollout_log_prob = infinity;
    for (way const& w : ways_with(-9999)) {
        for (auto const reduce : {oracle::reduction::token_mean, oracle::reduction::sequence_mean_token_mean}) {
            INFO(w.name);
            oracle::method m = tis_method();
            m.reduce = reduce;
            laid_out const b(rows, w.kinds, w.how);
            outputs out(b);
            asyncrl::loss_report const report = run(m, b, out, {.on_nonfinite = nonfinite::propagate});
            b.where.each([&](std::size_t r, std::size_t t, std::int64_t, std::int64_t) {
                bool const bad = r == 0 && t == 7;
                REQUIRE(std::isnan(out.gradient.get(r, t)) == bad);
                REQUIRE(std::isnan(out.loss.get(r, t)) == bad);
            });
            REQUIRE(std::isnan(report.sums.loss));
            REQUIRE(report.counts.nonfinite == 1);
            REQUIRE(report.first_nonfinite == 7);
        }
    }
}

TEST_CASE("NaN in the rollout column alone means unscored, unless the batch names another sentinel; infinity never does") {
    oracle::batch rows = calm_rows(1, 20);
    rows[0][5].rollout_log_prob = not_a_number;
    laid_out const excused(rows);
    outputs out(excused);
    asyncrl::loss_report const report = run(tis_method(), excused, out);
    REQUIRE(report.counts.unscored == 1);
    REQUIRE(report.counts.nonfinite == 0);

    rows[0][6].rollout_log_prob = -infinity;
    expect_error(tis_method(), laid_out(rows), 0, 6, "rollout_log_prob");

    rows[0][6].rollout_log_prob = -1;
    layout how;
    how.unscored = -9999;
    expect_error(tis_method(), laid_out(rows, {}, how), 0, 5, "rollout_log_prob");

    rows[0][5].rollout_log_prob = -1;
    rows[0][6].old_log_prob = not_a_number;  // the sentinel is one of the rollout column
    expect_error(tis_method(), laid_out(rows), 0, 6, "old_log_prob");
}

TEST_CASE("an unscored token with another bad column is both unscored and not finite") {
    oracle::batch rows = calm_rows(1, 20);
    rows[0][5].rollout_log_prob = not_a_number;
    rows[0][5].log_prob = infinity;
    laid_out const b(rows);
    outputs out(b);
    asyncrl::loss_report const report = run(tis_method(), b, out, {.on_nonfinite = nonfinite::drop});
    REQUIRE(out.flags(5) == (oracle::bad | oracle::unscored));
    REQUIRE(report.counts.unscored == 1);
    REQUIRE(report.counts.nonfinite == 1);
    expect_error(tis_method(), b, 0, 5, "asyncrl: log_prob");
}

TEST_CASE("every bad token is counted") {
    oracle::batch rows = calm_rows(3, 900);
    std::int64_t bad = 0;
    for (std::size_t i = 0; i < 900; i += 7) {
        rows[i % 3][i].log_prob = i % 2 == 0 ? not_a_number : infinity;
        bad += rows[i % 3][i].active ? 1 : 0;
    }
    for (auto const policy : {nonfinite::drop, nonfinite::propagate}) {
        laid_out const b(rows);
        outputs out(b);
        REQUIRE(run(oracle::method{}, b, out, {.on_nonfinite = policy}).counts.nonfinite == bad);
    }
}
