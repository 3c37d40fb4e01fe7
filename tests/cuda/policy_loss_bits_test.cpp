// SPDX-License-Identifier: Apache-2.0
// What must not change a single bit on the device: the run, the grid, garbage under the mask, layout and alignment.
#include "catch.hpp"
#include "support/compare.hpp"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <vector>

using namespace support;
using device::name_of;
using device::outcome;
using device::run;
using device::same_bits;
using methods::method;

namespace {

method method_of(methods::loss kind) {
    method m;
    m.kind = kind;
    m.reduce = kind == methods::loss::clip_mis ? methods::reduction::sequence_mean_token_mean : methods::reduction::token_mean;
    m.over_kept = m.rejects();
    return m;
}

oracle::batch calm_rows(std::uint64_t seed, std::vector<std::int64_t> const& lengths) {
    source random(seed);
    recipe how;
    how.garbage = false;
    how.dead_rows = 0;
    return random_batch(random, lengths, how);
}

/// The bits of each active token's outputs, row after row.
std::vector<std::uint64_t> token_bits(laid_out const& b, outputs const& out) {
    std::vector<std::uint64_t> all;
    std::size_t at = 0;
    b.where.each([&](std::size_t r, std::size_t t, std::int64_t, std::int64_t) {
        if (b.values[r][t].active) {
            all.insert(all.end(), {out.loss.bits(r, t), out.weight.bits(r, t), out.gradient.bits(r, t), out.flags(at)});
        }
        ++at;
    });
    return all;
}

}  // namespace

TEST_CASE("a second run has the same bits, in the same workspace too") {
    for (methods::loss const kind : methods::every_loss) {
        laid_out const b(calm_rows(1, {2100, 2100, 2100}));
        method const m = method_of(kind);
        outcome const first = run(m, b);
        REQUIRE(same_bits(run(m, b), first));
        device::on_device const d(b);
        for (int round = 0; round < 2; ++round) {
            d.measure(m);
            d.policy_loss(m);
            REQUIRE(same_bits(d.fetch(), first));
        }
    }
}

TEST_CASE("a workspace carries nothing from one batch to the next, and one for a larger batch serves") {
    laid_out const large(calm_rows(2, {3000, 3000}));
    laid_out const small(calm_rows(3, {50, 50}));
    for (methods::loss const kind : methods::every_loss) {
        method const m = method_of(kind);
        outcome const want = run(m, small);
        device::on_device const before(large);
        before.measure(m);
        before.policy_loss(m);
        device::on_device const d(small);
        device::must(device::measure(m, d.batch, d.sums(), before.room(), nullptr));
        device::must(device::policy_loss(m, d.batch, d.sums(), d.to, d.report(), before.room(), {}, nullptr));
        REQUIRE(same_bits(d.fetch(), want));
    }
}

TEST_CASE("any grid has the same bits") {
    laid_out const b(calm_rows(4, {1999, 1999, 1999, 1999}));
    for (methods::loss const kind : methods::every_loss) {
        method const m = method_of(kind);
        outcome const want = run(m, b);
        for (unsigned const blocks : {1U, 2U, 3U, 50U}) {
            device::on_device const d(b);
            device::must(device::both_on_grid(m, d.batch, d.sums(), d.to, d.report(), d.room(), blocks, nullptr));
            INFO(name_of(m) << ", " << blocks << " blocks");
            REQUIRE(same_bits(d.fetch(), want));
        }
    }
}

TEST_CASE("the gradient alone, four tokens at a time where columns allow it, has the bits it has among all outputs") {
    source random(9);
    for (int round = 0; round < 168; ++round) {
        bool const any_type = round >= 96;
        layout how;
        how.packed = random.chance(0.5);
        how.row_advantage = round % 2 == 0;
        how.masked = random.chance(0.8);
        recipe made;
        made.row_advantage = how.row_advantage;
        if (!how.masked) {
            made.active = 1;
            made.dead_rows = 0;
        }
        std::int64_t const length = random.pick<std::int64_t>({1, 2, 3, 5, 7, 40, 1001});
        std::vector<std::int64_t> const lengths =
            how.packed ? random_lengths(random, 1 + random.below(2500)) : std::vector<std::int64_t>(9, length);
        oracle::batch rows = random_batch(random, lengths, made);
        for (oracle::row& row : rows) {
            for (oracle::token& t : row) {
                t.log_prob = round % 3 == 0 && random.chance(0.02) ? not_a_number : t.log_prob;
            }
        }
        types kinds;
        if (any_type) {
            auto const pick = [&] { return random.pick({dtype::f32, dtype::bf16, dtype::f16}); };
            kinds = random.chance(0.3) ? types::all(pick()) : types{pick(), pick(), pick(), pick(), pick()};
            how.shift = random.pick<std::int64_t>({0, 0, 0, 1, 2, 4});
        }
        laid_out const b(rows, kinds, how);
        method m = method_of(methods::every_loss[round % std::size(methods::every_loss)]);
        m.reduce = random.pick({methods::reduction::token_mean, methods::reduction::sequence_mean_token_mean});
        asyncrl::loss_options const options{.on_nonfinite =
                                                random.pick({asyncrl::nonfinite::drop, asyncrl::nonfinite::propagate})};
        outcome const want = run(m, b, options);
        device::on_device d(b);
        d.to.loss = d.to.weight = {};
        d.to.flags = nullptr;
        d.measure(m);
        if (any_type) {
            device::must(device::policy_loss_in_fours(m, d.batch, d.sums(), d.to, d.report(), d.room(), options, nullptr));
        } else {
            d.policy_loss(m, options);
        }
        outcome const got = d.fetch();
        INFO("round " << round << ": " << name_of(m) << (how.packed ? ", packed" : ", rows of ") << length);
        b.where.each([&](std::size_t r, std::size_t t, std::int64_t, std::int64_t) {
            REQUIRE(got.out.gradient.bits(r, t) == want.out.gradient.bits(r, t));
        });
        device::differences found;
        device::compare_reports(found, got.report, want.report);
        REQUIRE(found.text() == "");
    }
}

TEST_CASE("what stands under the mask changes no bit") {
    double const most = static_cast<double>(std::numeric_limits<float>::max());
    std::vector<double> const kinds{not_a_number, infinity, -infinity, 200, -200, most, -most, -9999, -0.0};
    oracle::batch const clean = calm_rows(5, {61, 61, 61});
    for (dtype const type : {dtype::f32, dtype::bf16}) {
        for (methods::loss const kind : methods::every_loss) {
            method const m = method_of(kind);
            laid_out const b(clean, types::all(type));
            outcome const want = run(m, b);
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
                laid_out const other(dirty, types::all(type));
                INFO(name_of(m) << ", type " << static_cast<int>(type) << ", column " << column);
                REQUIRE(same_bits(run(m, other), want));
            }
        }
    }
}

TEST_CASE("layout, strides and alignment change no bit of a token") {
    oracle::batch const rows = calm_rows(6, {701, 701, 701, 701});
    for (methods::loss const kind : {methods::loss::clip_mis, methods::loss::sat}) {
        for (dtype const type : {dtype::f32, dtype::bf16}) {
            method const m = method_of(kind);
            laid_out const b(rows, types::all(type));
            outcome const want = run(m, b);
            for (bool const packed : {false, true}) {
                for (std::int64_t const stride : {1, 2, -1}) {
                    for (std::int64_t const shift : {0, 1, 3}) {
                        for (std::int64_t const gap : {0, 3, 4}) {
                            layout how;
                            how.packed = packed;
                            how.token_stride = stride;
                            how.shift = shift;
                            how.row_gap = gap;
                            how.wide_offsets = shift == 1;
                            if (gap > 0 && (packed || shift > 0)) {
                                continue;
                            }
                            laid_out const other(rows, types::all(type), how);
                            outcome const got = run(m, other);
                            INFO(name_of(m)
                                 << ", packed " << packed << ", stride " << stride << ", shift " << shift << ", gap " << gap);
                            REQUIRE(token_bits(other, got.out) == token_bits(b, want.out));
                            REQUIRE(std::memcmp(&got.report, &want.report, sizeof got.report) == 0);
                        }
                    }
                }
            }
        }
    }
}

TEST_CASE("one advantage a row has the bits of the same advantage at every token") {
    oracle::batch rows = calm_rows(7, {97, 97, 97});
    for (oracle::row& r : rows) {
        for (oracle::token& t : r) {
            t.advantage = r[0].advantage;
        }
    }
    for (bool const packed : {false, true}) {
        layout each;
        each.packed = packed;
        layout once = each;
        once.row_advantage = true;
        laid_out const b(rows, {}, each);
        laid_out const other(rows, {}, once);
        REQUIRE(same_bits(run(method{}, other), run(method{}, b)));
    }
}

TEST_CASE("an absent mask is a mask of ones") {
    oracle::batch rows = calm_rows(8, {500, 500});
    for (oracle::row& r : rows) {
        for (oracle::token& t : r) {
            t.active = true;
        }
    }
    layout bare;
    bare.masked = false;
    laid_out const b(rows);
    laid_out const other(rows, {}, bare);
    for (methods::loss const kind : methods::every_loss) {
        REQUIRE(same_bits(run(method_of(kind), other), run(method_of(kind), b)));
    }
}

TEST_CASE("the gradient alone, in whatever memory, has the bits it has beside other outputs") {
    method const m = method_of(methods::loss::clip_tis);
    for (std::int64_t const size : {1, 2, 3, 4, 5, 6, 7, 31, 32, 33, 1023, 1025, 2047, 2048, 2049, 4097}) {
        for (bool const packed : {false, true}) {
            for (std::int64_t const shift : {0, 1}) {
                for (std::int64_t const gap : {0, 4}) {
                    layout how;
                    how.packed = packed;
                    how.shift = shift;
                    how.row_gap = packed ? 0 : gap;
                    laid_out const b(calm_rows(9, {size, size}), {}, how);
                    outcome const want = run(m, b);
                    device::on_device d(b);
                    d.to = {d.to.gradient};
                    d.measure(m);
                    d.policy_loss(m);
                    outcome const got = d.fetch();
                    INFO(size << " positions, packed " << packed << ", shift " << shift << ", gap " << gap);
                    REQUIRE(got.out.gradient.bytes() == want.out.gradient.bytes());
                    REQUIRE(std::memcmp(&got.report, &want.report, sizeof got.report) == 0);
                }
            }
        }
    }
}

TEST_CASE("optional outputs change nothing in the others") {
    laid_out const b(calm_rows(10, {333, 333}));
    method const m = method_of(methods::loss::clip_tis);
    outcome const want = run(m, b);
    for (int wanted = 0; wanted < 8; ++wanted) {
        device::on_device d(b);
        asyncrl::loss_outputs const all = d.to;
        d.to = {all.gradient};
        d.to.loss = (wanted & 1) != 0 ? all.loss : asyncrl::output_column{};
        d.to.weight = (wanted & 2) != 0 ? all.weight : asyncrl::output_column{};
        d.to.flags = (wanted & 4) != 0 ? all.flags : nullptr;
        d.measure(m);
        d.policy_loss(m);
        outcome const got = d.fetch();
        REQUIRE(got.out.gradient.bytes() == want.out.gradient.bytes());
        REQUIRE(std::memcmp(&got.report, &want.report, sizeof got.report) == 0);
        REQUIRE(((wanted & 1) != 0 ? got.out.loss.bytes() == want.out.loss.bytes() : got.out.loss.untouched()));
        REQUIRE(((wanted & 2) != 0 ? got.out.weight.bytes() == want.out.weight.bytes() : got.out.weight.untouched()));
        REQUIRE((got.out.flag_words == want.out.flag_words) == ((wanted & 4) != 0));
    }
}
