// SPDX-License-Identifier: Apache-2.0
// Compiled with -ffast-math, which lets a compiler take every number for finite: -infinity is still a probability of 0, and a
// row without a softmax is still found.
#include "catch.hpp"

#include <asyncrl/correction/log_prob.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#ifndef __FAST_MATH__
#error "this test is about -ffast-math"
#endif

namespace {

bool is_nan_by_bits(double x) {
    return (std::bit_cast<std::uint64_t>(x) & 0x7fffffffffffffffULL) > 0x7ff0000000000000ULL;
}

constexpr std::size_t vocabulary = 2500;

/// Three rows of equal logits and one number at a place of the second.
template <typename Number>
struct rows {
    rows(std::size_t place, Number number) : logits(3 * vocabulary, Number(0.5)) {
        logits[vocabulary + place] = number;
        outputs = {asyncrl::per_token(log_prob), asyncrl::per_token(log_sum_exp), asyncrl::per_token(entropy)};
        report = asyncrl::log_prob(asyncrl::row_major(logits.data(), 3, vocabulary), targets, outputs);
        asyncrl::log_prob_slopes const slopes{asyncrl::per_token(slope), asyncrl::per_token(slope)};
        gradient_report = asyncrl::log_prob_gradient(asyncrl::row_major(logits.data(), 3, vocabulary), targets, outputs, slopes,
                                                     asyncrl::row_major(logits.data(), 3, vocabulary));
    }
    [[nodiscard]] double gradient(std::size_t row, std::size_t i) const {
        return static_cast<double>(logits[row * vocabulary + i]);
    }

    std::int32_t targets[3] = {7, 7, 7};
    double log_prob[3] = {}, log_sum_exp[3] = {}, entropy[3] = {};
    float slope[3] = {1, 1, 1};
    std::vector<Number> logits;
    asyncrl::log_prob_outputs outputs;
    asyncrl::log_prob_report report, gradient_report;
};

}  // namespace

TEMPLATE_TEST_CASE("-infinity is a probability of 0, and NaN and +infinity spoil a row", "", float, double) {
    using limits = std::numeric_limits<TestType>;
    for (std::size_t const place : {0U, 8U, 2047U, 2048U, 2499U}) {
        rows<TestType> const masked(place, -limits::infinity());
        REQUIRE(masked.report.nonfinite == 0);
        REQUIRE(masked.gradient_report.nonfinite == 0);
        double const others = std::log(vocabulary - 1.0);
        REQUIRE_THAT(masked.log_prob[1], Catch::Matchers::WithinRel(-others, 4e-6));
        REQUIRE_THAT(masked.entropy[1], Catch::Matchers::WithinRel(others, 4e-6));
        REQUIRE(masked.gradient(1, place) == 0);

        for (TestType const bad : {limits::quiet_NaN(), -limits::quiet_NaN(), limits::infinity()}) {
            rows<TestType> const spoiled(place, bad);
            REQUIRE(spoiled.report.nonfinite == 1);
            REQUIRE(spoiled.report.first_nonfinite == 1);
            REQUIRE(spoiled.gradient_report.nonfinite == 1);
            for (std::size_t row = 0; row < 3; ++row) {
                REQUIRE(is_nan_by_bits(spoiled.log_prob[row]) == (row == 1));
                REQUIRE(is_nan_by_bits(spoiled.log_sum_exp[row]) == (row == 1));
                REQUIRE(is_nan_by_bits(spoiled.entropy[row]) == (row == 1));
                for (std::size_t const i : {std::size_t{0}, std::size_t{7}, vocabulary - 1}) {
                    REQUIRE(is_nan_by_bits(spoiled.gradient(row, i)) == (row == 1));
                }
            }
        }
    }
}

TEMPLATE_TEST_CASE("a row of -infinity alone has no softmax", "", float, double) {
    for (std::size_t const columns : {1U, 3U, 31U, 64U, 2048U, 3000U}) {
        std::vector<TestType> logits(columns, -std::numeric_limits<TestType>::infinity());
        std::int32_t const target = 0;
        double log_prob = 0;
        auto const rows = static_cast<std::int64_t>(columns);
        auto const report =
            asyncrl::log_prob(asyncrl::row_major(logits.data(), 1, rows), &target, {asyncrl::per_token(&log_prob)});
        REQUIRE(report.nonfinite == 1);
        REQUIRE(is_nan_by_bits(log_prob));
    }
}
