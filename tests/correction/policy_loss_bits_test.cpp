// SPDX-License-Identifier: Apache-2.0
// What must not change a single bit: garbage under the mask, the executor, a token's place, the layout, optional outputs.
#include "catch.hpp"
#include "support/batches.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

using namespace support;

namespace {

/// Surrogate x weight x reduction x denominator.
std::vector<oracle::method> every_method() {
    std::vector<oracle::method> all;
    for (int loss = 0; loss < 2; ++loss) {
        for (int weight = 0; weight < 4; ++weight) {
            for (int reduce = 0; reduce < 4; ++reduce) {
                for (bool const kept : {false, true}) {
                    oracle::method m;
                    m.loss = static_cast<oracle::surrogate>(loss);
                    m.correction = static_cast<oracle::weight>(weight);
                    m.reduce = static_cast<oracle::reduction>(reduce);
                    m.over_kept = kept;
                    m.high = 1.5;
                    all.push_back(m);
                }
            }
        }
    }
    return all;
}

void backwards(std::int64_t count, asyncrl::task_ref task) {
    for (std::int64_t i = count - 1; i >= 0; --i) {
        task(i);
    }
}

void on_two_threads(std::int64_t count, asyncrl::task_ref task) {
    std::atomic<std::int64_t> next{0};
    auto const work = [&] {
        for (std::int64_t i = next++; i < count; i = next++) {
            task(i);
        }
    };
    std::thread other(work);
    work();
    other.join();
}

oracle::batch tokens_of(std::uint64_t seed, std::vector<std::int64_t> const& lengths) {
    source random(seed);
    recipe how;
    how.garbage = false;
    return random_batch(random, lengths, how);
}

/// The bits of each token's outputs, row after row, active tokens only.
std::vector<std::uint64_t> token_bits(laid_out const& b, outputs const& out, bool with_gradient = true) {
    std::vector<std::uint64_t> all;
    std::size_t at = 0;
    b.where.each([&](std::size_t r, std::size_t t, std::int64_t, std::int64_t) {
        if (b.values[r][t].active) {
            all.push_back(out.loss.bits(r, t));
            all.push_back(out.weight.bits(r, t));
            all.push_back(out.flags(at));
            all.push_back(with_gradient ? out.gradient.bits(r, t) : 0);
        }
        ++at;
    });
    return all;
}

}  // namespace

TEST_CASE("what stands under the mask changes no bit of any output or report, whatever the method") {
    double const most = static_cast<double>(std::numeric_limits<float>::max());
    std::vector<double> const kinds{not_a_number, infinity, -infinity, 200, -200, most, -most, -9999, -0.0};
    oracle::batch const clean = tokens_of(1, {9, 9, 9});
    for (dtype const type : {dtype::f32, dtype::f64, dtype::bf16}) {
        for (oracle::method const& m : every_method()) {
            for (bool const packed : {false, true}) {
                layout how;
                how.packed = packed;
                laid_out const b(clean, types::all(type), how);
                outputs want(b);
                asyncrl::loss_report const report = run(m, b, want);
                std::size_t next = 0;
                for (int column = 0; column < 4; ++column) {
                    oracle::batch dirty = clean;
                    for (oracle::row& r : dirty) {
                        for (oracle::token& t : r) {
                            double* const numbers[] = {&t.log_prob, &t.old_log_prob, &t.rollout_log_prob, &t.advantage};
                            if (!t.active) {
                                t.scored = true;
                                *numbers[column] = kinds[next++ % kinds.size()];
                            }
                        }
                    }
                    REQUIRE(next > 0);
                    laid_out const other(dirty, types::all(type), how);
                    outputs got(other);
                    asyncrl::loss_report const other_report = run(m, other, got);
                    INFO("type " << static_cast<int>(type) << ", column " << column << ", loss " << static_cast<int>(m.loss)
                                 << ", weight " << static_cast<int>(m.correction) << ", reduction "
                                 << static_cast<int>(m.reduce));
                    REQUIRE(got.same_bits(want));
                    REQUIRE(same_bits(other_report, report));
                }
            }
        }
    }
}

TEST_CASE("any executor gives the same bits of outputs, totals and report") {
    source random(2);
    for (bool const packed : {false, true}) {
        for (dtype const type : {dtype::f32, dtype::f64}) {
            layout how;
            how.packed = packed;
            std::vector<std::int64_t> const lengths =
                packed ? random_lengths(random, 9001) : std::vector<std::int64_t>(150, 61);  // several chunks and row blocks
            laid_out const b(random_batch(random, lengths), types::all(type), how);
            for (oracle::method const& m : every_method()) {
                outputs want(b);
                asyncrl::loss_report const report = run(m, b, want);
                for (library::executor const& execute : {library::executor(backwards), library::executor(on_two_threads)}) {
                    outputs got(b);
                    asyncrl::loss_report const other = run(m, b, got, {}, execute);
                    REQUIRE(got.same_bits(want));
                    REQUIRE(same_bits(other, report));
                    asyncrl::totals const sums = library::measure(m, b.batch, got.scratch, execute);
                    asyncrl::totals const plain = library::measure(m, b.batch, want.scratch);
                    REQUIRE(std::memcmp(&sums.counts, &plain.counts, sizeof sums.counts) == 0);
                }
            }
        }
    }
}

TEST_CASE("a token's bits do not depend on its place in the batch") {
    oracle::batch const rows = tokens_of(3, {40, 0, 17, 3});
    layout how;
    how.packed = true;
    for (oracle::method const& m : every_method()) {
        laid_out const b(rows, {}, how);
        outputs want(b);
        asyncrl::totals const sums = library::measure(m, b.batch, want.scratch);
        (void)library::policy_loss(m, b.batch, sums, want.to(), want.scratch);
        for (std::int64_t const shift : {1, 2, 3, 5, 8, 15, 2030, 2047, 4095}) {
            oracle::batch moved = rows;
            moved.insert(moved.begin(), oracle::row(static_cast<std::size_t>(shift), oracle::token{.active = false}));
            laid_out const other(moved, {}, how);
            outputs got(other);
            (void)library::policy_loss(m, other.batch, sums, got.to(), got.scratch);
            INFO("shift " << shift << ", reduction " << static_cast<int>(m.reduce));
            REQUIRE(token_bits(other, got) == token_bits(b, want));
        }
    }
}

TEST_CASE("layout, strides and alignment change no bit of a token") {
    oracle::batch const rows = tokens_of(4, {700, 700, 700, 700});
    oracle::method m;
    m.correction = oracle::weight::truncated;
    m.reduce = oracle::reduction::sequence_mean_token_mean;
    for (dtype const type : {dtype::f32, dtype::f64, dtype::bf16}) {
        laid_out const b(rows, types::all(type));
        outputs want(b);
        asyncrl::loss_report const report = run(m, b, want);
        for (bool const packed : {false, true}) {
            for (std::int64_t const stride : {1, 2, -1, 7}) {
                for (std::int64_t const shift : {0, 1, 3}) {
                    layout how;
                    how.packed = packed;
                    how.token_stride = stride;
                    how.shift = shift;
                    how.row_gap = shift;
                    laid_out const other(rows, types::all(type), how);
                    outputs got(other);
                    asyncrl::loss_report const other_report = run(m, other, got);
                    INFO("packed " << packed << ", stride " << stride << ", shift " << shift);
                    REQUIRE(token_bits(other, got) == token_bits(b, want));
                    REQUIRE(same_bits(other_report, report));  // chunks are cut by position alone
                    REQUIRE(got.guards_hold());
                }
            }
        }
    }
}

TEST_CASE("outputs have strides of their own, and optional ones change nothing in the others") {
    oracle::batch const rows = tokens_of(5, {33, 33, 33});
    oracle::method m;
    m.correction = oracle::weight::masked;
    for (dtype const type : {dtype::f32, dtype::f64}) {
        laid_out const b(rows, types::all(type));
        outputs want(b);
        asyncrl::loss_report const report = run(m, b, want);

        memory transposed(type, {1, 3}, b.where);
        asyncrl::totals const sums = library::measure(m, b.batch, want.scratch);
        asyncrl::loss_report const other = library::policy_loss(m, b.batch, sums, transposed.out(), want.scratch);
        REQUIRE(same_bits(other, report));
        REQUIRE(transposed.guards_hold());
        b.where.each([&](std::size_t r, std::size_t t, std::int64_t, std::int64_t) {
            REQUIRE(transposed.bits(r, t) == want.gradient.bits(r, t));
        });
    }
}

TEST_CASE("a narrow gradient is the float gradient rounded once") {
    oracle::batch const rows = tokens_of(6, {50, 50});
    oracle::method const m;
    laid_out const b(rows);
    outputs want(b);
    (void)run(m, b, want);
    for (dtype const type : {dtype::bf16, dtype::f16}) {
        outputs got(b, type);
        (void)run(m, b, got);
        b.where.each([&](std::size_t r, std::size_t t, std::int64_t, std::int64_t) {
            INFO("row " << r << ", position " << t);
            REQUIRE(got.gradient.get(r, t) == as_stored(type, want.gradient.get(r, t)));
            REQUIRE(got.loss.get(r, t) == as_stored(type, want.loss.get(r, t)));
        });
    }
}

TEST_CASE("inputs are not written") {
    source random(7);
    laid_out const b(random_batch(random, {100, 100}));
    auto const before = {b.log_prob.bytes(), b.old_log_prob.bytes(), b.rollout_log_prob.bytes(), b.advantage.bytes(),
                         b.mask.bytes()};
    for (oracle::method const& m : every_method()) {
        outputs out(b);
        (void)run(m, b, out);
    }
    auto const after = {b.log_prob.bytes(), b.old_log_prob.bytes(), b.rollout_log_prob.bytes(), b.advantage.bytes(),
                        b.mask.bytes()};
    REQUIRE(std::equal(before.begin(), before.end(), after.begin()));
}

TEST_CASE("the order of rows changes no bit of a token, and sums only in their last digits") {
    oracle::batch const rows = tokens_of(8, {30, 12, 0, 50, 7});
    oracle::batch const turned(rows.rbegin(), rows.rend());
    layout how;
    how.packed = true;
    for (oracle::method const& m : every_method()) {
        laid_out const b(rows, types::all(dtype::f64), how);
        laid_out const other(turned, types::all(dtype::f64), how);
        outputs want(b);
        outputs got(other);
        asyncrl::loss_report const report = run(m, b, want);
        asyncrl::loss_report const other_report = run(m, other, got);
        REQUIRE_THAT(other_report.sums.loss,
                     Catch::Matchers::WithinAbs(report.sums.loss, 1e-13 * report.sums.absolute_loss + 1e-300));
        REQUIRE(std::memcmp(&other_report.counts, &report.counts, sizeof report.counts) == 0);
        for (std::size_t r = 0; r < rows.size(); ++r) {
            for (std::size_t t = 0; t < rows[r].size(); ++t) {
                REQUIRE(got.gradient.bits(rows.size() - 1 - r, t) == want.gradient.bits(r, t));
            }
        }
    }
}

TEST_CASE("a workspace carries nothing from one call to the next") {
    source random(9);
    laid_out const large(random_batch(random, {3000, 3000}));
    laid_out const small(random_batch(random, {20, 20}));
    oracle::method m;
    m.reduce = oracle::reduction::sequence_mean_token_mean;
    outputs fresh(small);
    asyncrl::loss_report const report = run(m, small, fresh);

    outputs first(large);
    (void)run(m, large, first);
    outputs again(small);
    asyncrl::totals const sums = library::measure(m, small.batch, first.scratch);
    asyncrl::loss_report const other = library::policy_loss(m, small.batch, sums, again.to(), first.scratch);
    REQUIRE(again.same_bits(fresh));
    REQUIRE(same_bits(other, report));
}
