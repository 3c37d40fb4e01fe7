// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/correction/token/softmax.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

namespace {

using asyncrl::bounded_log;
using asyncrl::softmax_sums;
using Catch::Matchers::WithinAbs;
using Catch::Matchers::WithinRel;

constexpr double infinity = std::numeric_limits<double>::infinity();

template <typename Real>
Real exponential(Real x) {
    return std::exp(x);
}

/// 2^x, and 0 from a bound of its own on down.
struct flushing_exp2 {
    static constexpr float zero_from = -50;

    float operator()(float x) const {
        REQUIRE(x >= zero_from);
        return x > zero_from ? std::exp2(x) : 0;
    }
};

template <typename Real>
softmax_sums<Real> sums_of(std::vector<Real> const& logits, Real inverse_temperature) {
    softmax_sums<Real> sums;
    for (Real const x : logits) {
        sums.largest = std::max(sums.largest, x);
    }
    for (Real const x : logits) {
        sums.add(x, inverse_temperature, exponential<Real>);
    }
    return sums;
}

struct exact {
    long double log_sum_exp = 0, entropy = 0;

    template <typename Real>
    exact(std::vector<Real> const& logits, double temperature) {
        long double sum = 0;
        for (Real const x : logits) {
            sum += std::exp(static_cast<long double>(x) / static_cast<long double>(temperature));
        }
        log_sum_exp = std::log(sum);
        for (Real const x : logits) {
            long double const log_p = static_cast<long double>(x) / static_cast<long double>(temperature) - log_sum_exp;
            entropy -= std::exp(log_p) * log_p;
        }
    }
};

}  // namespace

TEMPLATE_TEST_CASE("sums over parts of a row merge to those of the row, however it is cut and in any order", "", float,
                   double) {
    using Real = TestType;
    double const close = sizeof(Real) == 4 ? 4e-6 : 1e-13;
    std::mt19937 random(1);
    std::normal_distribution<Real> noise(0, 3);
    for (int round = 0; round < 50; ++round) {
        double const temperature = round % 2 == 0 ? 1 : 0.75;
        Real const inverse = static_cast<Real>(1 / temperature);
        std::vector<softmax_sums<Real>> parts(1);  // the first one is empty
        std::vector<Real> all;
        for (int part = 0; part < 6; ++part) {
            std::vector<Real> logits(random() % 9);
            for (Real& x : logits) {
                x = noise(random);
            }
            all.insert(all.end(), logits.begin(), logits.end());
            parts.push_back(sums_of(logits, inverse));
        }
        all.push_back(1);
        parts.push_back(sums_of<Real>({1}, inverse));
        std::shuffle(parts.begin(), parts.end(), random);
        while (parts.size() > 1) {
            softmax_sums<Real> const last = parts.back();
            parts.pop_back();
            std::size_t const into = random() % parts.size();
            parts[into] = combined(parts[into], last, inverse, exponential<Real>);
        }
        softmax_sums<Real> const& sums = parts[0];
        exact const want(all, temperature);
        Real const log_total = std::log1p(sums.excess());
        REQUIRE(sums.largest == *std::max_element(all.begin(), all.end()));
        REQUIRE_THAT(
            static_cast<double>(sums.largest) / temperature + static_cast<double>(log_total),
            WithinRel(static_cast<double>(want.log_sum_exp), close) || WithinAbs(static_cast<double>(want.log_sum_exp), close));
        REQUIRE_THAT(static_cast<double>(sums.entropy(log_total)), WithinRel(static_cast<double>(want.entropy), close) ||
                                                                       WithinAbs(static_cast<double>(want.entropy), close));
    }
}

TEST_CASE("an empty part, or one of -infinity alone, changes nothing") {
    softmax_sums<double> const some = sums_of<double>({0.5, 2, 2, -1}, 1);
    softmax_sums<double> nothing;
    softmax_sums<double> impossible = sums_of<double>({-infinity, -infinity}, 1);
    for (softmax_sums<double> const& other : {nothing, impossible}) {
        for (softmax_sums<double> const& sums :
             {combined(some, other, 1.0, exponential<double>), combined(other, some, 1.0, exponential<double>)}) {
            REQUIRE(sums.largest == 2);
            REQUIRE(sums.ties == 2);
            REQUIRE(sums.below == some.below);
            REQUIRE(sums.weighted == some.weighted);
        }
    }
}

TEST_CASE("logits equal to the largest are counted, so that the excess of one alone is what the others weigh") {
    softmax_sums<float> const sums = sums_of<float>({3, -20, -20, -INFINITY}, 1);
    REQUIRE(sums.ties == 1);
    REQUIRE_THAT(static_cast<double>(sums.excess()), WithinRel(2 * std::exp(-23.0), 1e-6));
    REQUIRE(sums_of<float>({3, 3, 3}, 1).excess() == 2);
}

TEST_CASE("a probability of 0 times its logarithm is 0") {
    for (double const x : {-infinity, -1e300, -800.0}) {
        bounded_log<double> const p(x, exponential<double>);
        REQUIRE(p.value == 0);
        REQUIRE(p.value * p.log == 0);
    }
    bounded_log<float> const p(-86.0F, exponential<float>);
    REQUIRE(p.value == std::exp(-86.0F));
    REQUIRE(p.log == -86.0F);
    REQUIRE(bounded_log<float>(-49, flushing_exp2{}).value == std::exp2(-49.0F));
    for (float const x : {-50.0F, -51.0F, static_cast<float>(-infinity)}) {
        bounded_log<float> const none(x, flushing_exp2{});
        REQUIRE(none.value == 0);
        REQUIRE(none.log == -50);
    }
}

TEST_CASE("log p of large float logits keeps the digits that their differences have") {
    for (double const temperature : {1.0, 0.7, 3.0}) {
        for (double const centre : {0.0, 81.3, -1e4, 1e6}) {
            float const logit = static_cast<float>(centre) + 1.5F;
            double const log_sum_exp = (centre + 2.25) / temperature + 0.6931;
            auto const log_p = asyncrl::make_log_softmax<float>(log_sum_exp, temperature);
            REQUIRE_THAT(static_cast<double>(log_p(logit)),
                         WithinAbs(static_cast<double>(logit) / temperature - log_sum_exp, 3e-7));
        }
    }
}

TEST_CASE("the gradient of g log p + h entropy to a logit, by hand") {
    // p = (1/2, 1/4, 1/4): entropy 1.5 log 2; the target is the first. T = 2.
    double const log2 = std::log(2.0);
    asyncrl::logit_slope<double> const slope{3.0 / 2, 5.0 / 2, 1.5 * log2};
    bounded_log<double> const half(-log2, exponential<double>);
    bounded_log<double> const quarter(-2 * log2, exponential<double>);
    REQUIRE_THAT(slope(half, 0.5), WithinRel((3 * 0.5 - 5 * 0.5 * (0.5 * log2)) / 2, 1e-14));
    REQUIRE_THAT(slope(quarter, -0.25), WithinRel((-3 * 0.25 + 5 * 0.25 * 0.5 * log2) / 2, 1e-14));
}
