// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/correction/loss_report.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

using asyncrl::loss_report;

namespace {

template <typename Number, std::size_t Count>
std::array<Number, Count> ascending(Number first) {
    std::array<Number, Count> numbers{};
    for (std::size_t i = 0; i < Count; ++i) {
        numbers[i] = first + static_cast<Number>(i * i);
    }
    return numbers;
}

constexpr std::size_t sums = sizeof(loss_report::sum_range) / 8;
constexpr std::size_t counts = sizeof(loss_report::count_range) / 8;

loss_report numbered(double first) {
    loss_report r;
    r.sums = std::bit_cast<loss_report::sum_range>(ascending<double, sums>(first));
    r.counts = std::bit_cast<loss_report::count_range>(ascending<std::int64_t, counts>(static_cast<std::int64_t>(first)));
    return r;
}

}  // namespace

TEST_CASE("reports merge as an all-reduce would: sums and counts add, maxima take the larger") {
    loss_report a = numbered(1);
    loss_report b = numbered(100);
    a.maxima = {1, 4};
    b.maxima = {3, 2};
    loss_report const both = a + b;
    auto const sum = std::bit_cast<std::array<double, sums>>(both.sums);
    auto const count = std::bit_cast<std::array<std::int64_t, counts>>(both.counts);
    for (std::size_t i = 0; i < sums; ++i) {
        REQUIRE(sum[i] == 101 + 2 * static_cast<double>(i * i));
    }
    for (std::size_t i = 0; i < counts; ++i) {
        REQUIRE(count[i] == 101 + 2 * static_cast<std::int64_t>(i * i));
    }
    REQUIRE(both.maxima.absolute_log_mismatch == 3);
    REQUIRE(both.maxima.absolute_log_ratio == 4);
}

TEST_CASE("an empty report is the zero of merging") {
    loss_report a = numbered(5);
    a.maxima = {0.5, 0.25};
    loss_report const both = loss_report{} + a;
    REQUIRE(std::bit_cast<std::array<double, sums>>(both.sums) == std::bit_cast<std::array<double, sums>>(a.sums));
    REQUIRE(both.counts.tokens == a.counts.tokens);
    REQUIRE(both.maxima.absolute_log_mismatch == 0.5);
}

TEST_CASE("means weigh by tokens, not by batches: 4 on one token and 0 on three is 1") {
    loss_report a;
    a.sums.k3_mismatch = 4;
    a.counts.tokens = 1;
    loss_report b;
    b.counts.tokens = 3;
    REQUIRE((a + b).mean(&loss_report::sum_range::k3_mismatch) == 1);
}

TEST_CASE("shares and means of nothing are 0") {
    loss_report const none;
    REQUIRE(none.effective_sample_share() == 0);
    REQUIRE(none.mean(&loss_report::sum_range::weight) == 0);
    REQUIRE(none.share(&loss_report::count_range::capped) == 0);
}

TEST_CASE("effective samples: equal weights count in full, one weight alone as one of n") {
    loss_report r;
    r.counts.tokens = 4;
    r.sums.weight = 4 * 0.5;
    r.sums.weight_squared = 4 * 0.25;
    REQUIRE(r.effective_sample_share() == 1);
    r.sums.weight = 3;
    r.sums.weight_squared = 9;
    REQUIRE(r.effective_sample_share() == 0.25);
    r.counts.capped = 3;
    REQUIRE(r.share(&loss_report::count_range::capped) == 0.75);
}
