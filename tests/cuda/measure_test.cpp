// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"
#include "support/compare.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

using namespace support;
using device::name_of;
using methods::method;

namespace {

/// The totals that the device finds, and where they differ from the host's.
struct measured {
    asyncrl::totals sums;
    std::string difference;
    bool overflowed;
    bool windowed;  ///< by the way that large batches go
};

measured measure(method const& m, laid_out const& b) {
    device::on_device const d(b);
    d.measure(m);
    measured out{};
    device::must(cudaMemcpy(&out.sums, d.sums(), sizeof out.sums, cudaMemcpyDeviceToHost));
    out.overflowed = m.orders() && device::search_of(b.batch, d.room()).overflowed;
    asyncrl::workspace scratch(b.batch);
    asyncrl::totals const want = host::measure(m, b.batch, scratch);
    differences found;
    device::compare_totals(found, out.sums, want);
    if (m.orders()) {
        asyncrl::totals again;
        device::must(device::measure_by_window(m, d.batch, d.sums(), d.room(), nullptr));
        device::must(cudaMemcpy(&again, d.sums(), sizeof again, cudaMemcpyDeviceToHost));
        device::compare_totals(found, again, want);
        out.windowed = device::search_of(b.batch, d.room()).windowed;
    }
    out.difference = found.text();
    return out;
}

/// One row of tokens whose log-ratio under anchor_rollout is the given number.
oracle::batch with_log_ratios(std::vector<double> const& ratios) {
    oracle::batch rows(1);
    for (double const d : ratios) {
        oracle::token t;
        t.log_prob = d;
        t.old_log_prob = d;
        t.rollout_log_prob = 0;
        t.advantage = 1;
        rows[0].push_back(t);
    }
    return rows;
}

double quantile_of(std::vector<double> const& ratios, asyncrl::fraction share = {9, 10}, bool interpolate = false) {
    method m;
    m.kind = methods::loss::sat;
    m.quantile = share;
    m.interpolate = interpolate;
    laid_out const b(with_log_ratios(ratios));
    measured const found = measure(m, b);
    INFO(ratios.size() << " tokens, share " << share.numerator << " / " << share.denominator);
    REQUIRE(found.difference.empty());
    return found.sums.quantile;
}

}  // namespace

TEST_CASE("counts and order statistic equal the host's, whatever the method, layout and size") {
    source random(1);
    for (methods::loss const kind : methods::every_loss) {
        for (methods::reduction const reduce : methods::every_reduction) {
            for (bool const kept : {false, true}) {
                method m;
                m.kind = kind;
                m.reduce = reduce;
                m.over_kept = kept;
                m.interpolate = random.chance(0.5);
                layout how;
                how.packed = random.chance(0.5);
                how.wide_offsets = random.chance(0.5);
                how.shift = random.pick({0, 0, 1});
                auto const pick = [&] { return random.pick({dtype::f32, dtype::bf16, dtype::f16}); };
                types const kinds = random.chance(0.5) ? types{} : types{pick(), pick(), pick(), pick(), dtype::f32};
                std::vector<std::int64_t> const lengths =
                    how.packed
                        ? random_lengths(random, 1 + random.below(600))
                        : std::vector<std::int64_t>(static_cast<std::size_t>(1 + random.below(12)), 1 + random.below(99));
                laid_out const b(random_batch(random, lengths), kinds, how);
                INFO(name_of(m) << (how.packed ? ", packed" : ""));
                REQUIRE(measure(m, b).difference == "");
            }
        }
    }
}

TEST_CASE("many rows, short and long, are each counted once") {
    method m;
    m.kind = methods::loss::clip_mis;
    m.reduce = methods::reduction::sequence_mean_token_mean;
    m.over_kept = true;
    source random(2);
    layout how;
    how.packed = true;
    std::vector<std::int64_t> lengths(5000, 1);
    lengths[17] = 3000;
    lengths[4999] = 0;
    laid_out const b(random_batch(random, lengths), {}, how);
    REQUIRE(measure(m, b).difference == "");
}

TEST_CASE("without any token the order statistic is 0") {
    method m;
    m.kind = methods::loss::sat;
    for (std::size_t const rows : {0U, 1U, 3U}) {
        laid_out const empty(oracle::batch(rows, oracle::row{}));
        measured const nothing = measure(m, empty);
        REQUIRE(nothing.difference == "");
        REQUIRE(nothing.sums.quantile == 0);
        laid_out const masked(oracle::batch(rows, oracle::row(5, oracle::token{.active = false})));
        REQUIRE(measure(m, masked).difference == "");
    }
}

TEST_CASE("the order statistic is the number of rank ceil(share * n), worked out by hand") {
    REQUIRE(quantile_of({0.5}) == 0.5);
    REQUIRE(quantile_of({-0.5, 0.25}) == 0.5);
    REQUIRE(quantile_of({-0.5, 0.25}, {1, 2}) == 0.25);
    REQUIRE(quantile_of({-0.5, 0.25, 1}, {1, 2}) == 0.5);
    REQUIRE(quantile_of({-0.5, 0.25, 1}, {1, 1}) == 1);
    REQUIRE(quantile_of({-0.5, 0.25, 1}, {1, 1000000000}) == 0.25);
    std::vector<double> numbers;
    for (int i = 1; i <= 100; ++i) {
        numbers.push_back((i * 37 % 101) * (i % 2 == 0 ? 0.0625 : -0.0625));  // each of 1 ... 100 once, by 1/16
    }
    REQUIRE(quantile_of(numbers, {55, 100}) == 55 * 0.0625);  // 0.55 * 100 is 55.00000000000001 in double
    REQUIRE(quantile_of(numbers, {9, 10}) == 90 * 0.0625);
    REQUIRE(quantile_of(numbers, {901, 1000}) == 91 * 0.0625);
    numbers.resize(9);
    REQUIRE(quantile_of(numbers) == 94 * 0.0625);  // below ten tokens it is the largest: ceil(8.1)
}

TEST_CASE("an interpolated order statistic lies between two, worked out by hand") {
    REQUIRE(quantile_of({0.5}, {1, 2}, true) == 0.5);
    REQUIRE(quantile_of({-0.5, 0.25}, {1, 2}, true) == 0.375);
    REQUIRE(quantile_of({-0.5, 0.25}, {1, 1}, true) == 0.5);
    REQUIRE(quantile_of({-0.5, 0.25, 1}, {1, 2}, true) == 0.5);
    REQUIRE(quantile_of({-0.5, 0.25, 1}, {3, 4}, true) == 0.75);
    REQUIRE(quantile_of({0, 0, 0, 0, 3}, {7, 8}, true) == 1.5);  // the lower of the two is 0
    REQUIRE(quantile_of({0, 0, 0, 0, 3}, {3, 4}, true) == 0);
    REQUIRE(quantile_of(std::vector<double>(3000, 0.0), {9, 10}, true) == 0);
    REQUIRE(quantile_of(std::vector<double>(3000, 0.125), {9, 10}, true) == 0.125);
    REQUIRE(quantile_of({}, {9, 10}, true) == 0);
}

TEST_CASE("an on-policy batch has order statistic 0, and so has one that is almost so") {
    REQUIRE(quantile_of(std::vector<double>(3000, 0.0)) == 0);
    std::vector<double> numbers(3000, 0.0);
    for (std::size_t i = 0; i < 300; ++i) {
        numbers[i * 7] = 0.5 + static_cast<double>(i);
    }
    REQUIRE(quantile_of(numbers) == 0);
    numbers[2999] = 0.25;
    REQUIRE(quantile_of(numbers) == 0.25);
}

TEST_CASE("ties beyond the room for candidates end in the same number by reading the batch again") {
    method m;
    m.kind = methods::loss::sat;
    std::vector<double> numbers(20000, 0.125);
    for (std::size_t i = 0; i < 20000; i += 11) {
        numbers[i] = -2 - static_cast<double>(i);
    }
    for (std::size_t i = 0; i < 9000; i += 2) {
        numbers[i + 1] = 0.125 + 0x1p-20 * static_cast<double>(i);  // the same first digits, other last ones
    }
    laid_out const b(with_log_ratios(numbers));
    for (asyncrl::fraction const share : {asyncrl::fraction{1, 4}, {1, 2}, {4, 5}, {9, 10}}) {
        m.quantile = share;
        m.interpolate = true;
        REQUIRE(measure(m, b).difference == "");
        m.interpolate = false;
        measured const found = measure(m, b);
        INFO("share " << share.numerator << " / " << share.denominator);
        REQUIRE(found.difference == "");
        REQUIRE(found.overflowed);
    }
    m.quantile = {99, 100};
    measured const found = measure(m, b);
    REQUIRE(found.difference == "");
    REQUIRE_FALSE(found.overflowed);
}

TEST_CASE("a large batch is read once if the sample does not mislead, and else again, with the same number") {
    source random(5);
    std::int64_t const size = 1 << 16;
    std::vector<double> even;
    std::vector<double> misleading;  // what the sample sees is small
    for (std::int64_t i = 0; i < size; ++i) {
        even.push_back(random.uniform(-1, 1));
        misleading.push_back(i % (size / 512) < 16 ? random.uniform(0, 0.001) : random.uniform(0.5, 1));
    }
    method m;
    m.kind = methods::loss::sat;
    for (asyncrl::fraction const share : {asyncrl::fraction{1, 2000}, {1, 10}, {1, 2}, {9, 10}, {1999, 2000}, {1, 1}}) {
        m.quantile = share;
        INFO("share " << share.numerator << " / " << share.denominator);
        measured const found = measure(m, laid_out(with_log_ratios(even)));
        REQUIRE(found.difference == "");
        REQUIRE(found.windowed);
        measured const missed = measure(m, laid_out(with_log_ratios(misleading)));
        REQUIRE(missed.difference == "");
        REQUIRE_FALSE(missed.windowed);
    }
}

TEST_CASE("from 2^21 positions on measure itself reads once") {
    source random(6);
    method m;
    m.kind = methods::loss::sat_tis;
    layout how;
    how.packed = true;
    laid_out const b(random_batch(random, std::vector<std::int64_t>(8, (1 << 21) / 8)), {}, how);
    device::on_device const d(b);
    d.measure(m);
    asyncrl::totals found;
    device::must(cudaMemcpy(&found, d.sums(), sizeof found, cudaMemcpyDeviceToHost));
    asyncrl::workspace scratch(b.batch);
    REQUIRE(found.quantile == host::measure(m, b.batch, scratch).quantile);
    REQUIRE(device::search_of(b.batch, d.room()).windowed);
}

TEST_CASE("every digit of the order statistic is found, from subnormal numbers to the largest") {
    source random(3);
    method m;
    m.kind = methods::loss::sat;
    for (int round = 0; round < 12; ++round) {
        std::vector<double> numbers;
        std::int64_t const count = 1 + random.below(4500);
        for (std::int64_t i = 0; i < count; ++i) {
            double const spread = round % 3 == 0 ? random.uniform(-149, 120) : random.uniform(-1, round % 3);
            numbers.push_back(std::exp2(spread) * (random.chance(0.5) ? 1 : -1));
        }
        m.quantile = {1 + random.below(1000), 1000};
        m.interpolate = random.chance(0.5);
        laid_out const b(with_log_ratios(numbers));
        INFO("round " << round);
        REQUIRE(measure(m, b).difference == "");
    }
}

TEST_CASE("tokens that are masked, not finite or unscored have no rank") {
    std::vector<double> numbers;
    for (int i = 0; i < 100; ++i) {
        numbers.push_back(1 + i);
    }
    oracle::batch rows = with_log_ratios(numbers);
    for (int i = 0; i < 30; ++i) {
        oracle::token t = rows[0][0];
        t.log_prob = i % 3 == 0 ? not_a_number : 1000;
        t.active = i % 3 != 1;
        t.scored = i % 3 != 2;
        rows[0].push_back(t);
    }
    for (double const sentinel : {not_a_number, -9999.0}) {
        layout how;
        how.unscored = sentinel;
        laid_out const b(rows, {}, how);
        method m;
        m.kind = methods::loss::sat;
        measured const found = measure(m, b);
        REQUIRE(found.difference == "");
        REQUIRE(found.sums.quantile == 90);
    }
}

TEST_CASE("a rollout log-prob that is not finite takes the rank from its token, in every type and place") {
    for (dtype const type : {dtype::f32, dtype::bf16, dtype::f16}) {
        std::vector<double> numbers;
        for (int i = 0; i < 100; ++i) {
            numbers.push_back(1 + i);
        }
        oracle::batch rows = with_log_ratios(numbers);
        for (oracle::token& t : rows[0]) {
            std::swap(t.old_log_prob, t.rollout_log_prob);
        }
        for (std::size_t const i : {5U, 22U, 43U, 64U}) {
            rows[0][i].rollout_log_prob = -infinity;
        }
        method m;
        m.kind = methods::loss::sat_tis;
        measured const found = measure(m, laid_out(rows, types::all(type)));
        INFO("type " << static_cast<int>(type));
        REQUIRE(found.difference == "");
        REQUIRE(found.sums.quantile == 91);  // 87th of 96
    }
}

TEST_CASE("another grid finds the same totals, and a second run the same bits") {
    source random(4);
    for (methods::loss const kind : {methods::loss::normalised, methods::loss::sat, methods::loss::sat_tis}) {
        method m;
        m.kind = kind;
        m.interpolate = kind == methods::loss::sat_tis;
        laid_out const b(random_batch(random, std::vector<std::int64_t>(9, 1111)));
        device::outcome const want = device::run(m, b);
        for (unsigned const blocks : {1U, 2U, 3U, 300U}) {
            device::on_device const d(b);
            device::must(device::both_on_grid(m, d.batch, d.sums(), d.to, d.report(), d.room(), blocks, nullptr));
            INFO(blocks << " blocks");
            REQUIRE(device::same_bits(d.fetch(), want));
        }
    }
}

TEST_CASE("chunks depend on the size alone: short ones up to 512 of them, then longer ones, then more of 32768") {
    std::int64_t const boundary = 512 * 2048;
    REQUIRE(device::chunk_positions(0) == 2048);
    REQUIRE(device::chunks_of(0) == 0);
    REQUIRE(device::chunks_of(1) == 1);
    REQUIRE(device::chunks_of(2048) == 1);
    REQUIRE(device::chunks_of(2049) == 2);
    REQUIRE(device::chunk_positions(boundary) == 2048);
    REQUIRE(device::chunks_of(boundary) == 512);
    REQUIRE(device::chunk_positions(boundary + 1) == 4096);
    REQUIRE(device::chunks_of(boundary + 1) == 257);
    REQUIRE(device::chunk_positions(std::int64_t{1} << 40) == 32768);
    REQUIRE(device::chunks_of(std::int64_t{1} << 40) == std::int64_t{1} << 25);
}

TEST_CASE("a workspace has room for the chunks of every smaller batch") {
    std::int64_t most = 0;
    for (std::int64_t size = 1; size < std::int64_t{1} << 40; size = size * 33 / 32 + 1) {
        for (std::int64_t const around : {-1, 0, 1}) {
            REQUIRE(device::most_chunks(size + around) >= device::chunks_of(size + around));
            REQUIRE(device::most_chunks(size + around) >= most);
            most = device::most_chunks(size + around);
        }
    }
    REQUIRE(device::most_chunks(std::int64_t{1} << 40) == device::chunks_of(std::int64_t{1} << 40));
}
