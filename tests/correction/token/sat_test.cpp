// SPDX-License-Identifier: Apache-2.0
/// @file SAT against its definition: bounds of each token from q and psi, then PPO's clip; nothing is shared with the header.
#include "catch.hpp"

#include <asyncrl/correction/token/sat.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace {

using asyncrl::sat_clip;
using asyncrl::token;
using Catch::Matchers::WithinAbs;
using Catch::Matchers::WithinRel;

struct plain_math {
    [[nodiscard]] double exp(double x) const { return std::exp(x); }
    [[nodiscard]] double log(double x) const { return std::log(x); }
    [[nodiscard]] float exp(float x) const { return std::exp(x); }
    [[nodiscard]] float log(float x) const { return std::log(x); }
};
constexpr plain_math math{};

struct bounds {
    double low, high;
    bool in_tail;
};

double psi(double u, double q) {
    return 1 / (1 + u / q * (u / q));
}

bounds sat_bounds(double d, double q, double epsilon_low, double epsilon_high) {
    bool const in_tail = q > 0 && std::abs(d) > q;
    // Not psi(max(-d, 0), q): g++ 14.2 at -O2 then takes the maximum to be 0 for negative d.
    double const narrow_high = in_tail && d > 0 ? psi(d, q) : 1;
    double const narrow_low = in_tail && d < 0 ? psi(d, q) : 1;
    return {1 - epsilon_low * narrow_low, 1 + epsilon_high * narrow_high, in_tail};
}

struct loss_and_slope {
    double loss, slope;
};

loss_and_slope clipped(double d, double advantage, double low, double high) {
    double const r = std::exp(d);
    double const loss = std::max(-advantage * r, -advantage * std::clamp(r, low, high));
    bool const stopped = (advantage > 0 && r > high) || (advantage < 0 && r < low);
    return {advantage == 0 ? 0 : loss, stopped || advantage == 0 ? 0 : -advantage * r};
}

template <typename Number>
auto bound_at(sat_clip const& part, double q) {
    auto op = part.bind<Number>();
    op.prepare({.quantile = q});
    return op;
}

token<double> at(double d, double advantage) {
    return {.log_ratio = d, .ratio = std::exp(d), .advantage = advantage};
}

std::vector<double> log_ratios() {
    std::vector<double> all;
    for (int i = -400; i <= 400; ++i) {
        all.push_back(i / 256.0);
    }
    return all;
}

}  // namespace

TEST_CASE("SAT's loss, slope and flags are those of its bounds") {
    sat_clip const part{.low = 0.2, .high = 0.28};
    for (double const q : {0.0, 0.005, 0.02, 0.1, 0.15, 0.1875, 0.3, 2.0}) {
        auto const op = bound_at<double>(part, q);
        for (double const d : log_ratios()) {
            for (double const advantage : {1.0, -0.5, 0.0, 2.0}) {
                CAPTURE(q, d, advantage);
                bounds const b = sat_bounds(d, q, part.low, part.high);
                loss_and_slope const want = clipped(d, advantage, b.low, b.high);
                auto const got = op(at(d, advantage), math);
                CHECK_THAT(got.value, WithinAbs(want.loss, 1e-12));
                CHECK_THAT(got.slope, WithinAbs(want.slope, 1e-12));
                CHECK(has(got.flags, asyncrl::tail) == b.in_tail);
                CHECK(has(got.flags, asyncrl::clipped_high) == (advantage > 0 && std::exp(d) > b.high));
                CHECK(has(got.flags, asyncrl::clipped_low) == (advantage < 0 && std::exp(d) < b.low));
            }
        }
    }
}

TEST_CASE("SAT clips from the smallest log-ratio beyond q whose ratio passes its own bound") {
    struct row {
        double q, up, down;
    };
    // Interception points at epsilon 0.2; PPO's own are log 1.2 and -log 0.8.
    for (row const r : {row{0.005, 0.0165640050607, 0.0166613906928}, row{0.01, 0.0257950615474, 0.0260401342922},
                        row{0.02, 0.0396945296069, 0.0403099370587}, row{0.05, 0.0679253454782, 0.0699825359355},
                        row{0.1, 0.1, 0.102558270717}, row{0.15, 0.15, 0.15}, row{0.19, 0.182321556794, 0.19},
                        row{0.0, 0.182321556794, 0.223143551314}, row{1.0, 0.182321556794, 0.223143551314}}) {
        CAPTURE(r.q);
        CHECK_THAT(asyncrl::detail::sat_threshold(r.q, 0.2, 1), WithinRel(r.up, 1e-11));
        CHECK_THAT(asyncrl::detail::sat_threshold(r.q, 0.2, -1), WithinRel(r.down, 1e-11));
    }
}

TEST_CASE(
    "SAT's interval lies inside PPO's, equal outside the tail and strictly inside on the side of the log-ratio within it") {
    std::mt19937_64 random(7);
    std::uniform_real_distribution<double> uniform(0, 1);
    CHECK(psi(0, 0.3) == 1);
    CHECK(psi(0.3, 0.3) == 0.5);
    for (int i = 0; i < 20000; ++i) {
        double const q = 0.3 * uniform(random) + 1e-3;
        double const d = 3 * uniform(random) - 1.5;
        bounds const b = sat_bounds(d, q, 0.2, 0.28);
        REQUIRE(b.low >= 1 - 0.2);
        REQUIRE(b.high <= 1 + 0.28);
        REQUIRE((b.high < 1 + 0.28) == (b.in_tail && d > 0));
        REQUIRE((b.low > 1 - 0.2) == (b.in_tail && d < 0));
    }
}

TEST_CASE(
    "SAT is never more optimistic than PPO, and their gradients differ on the outward side between the two bounds alone") {
    std::mt19937_64 random(11);
    std::uniform_real_distribution<double> uniform(0, 1);
    double const epsilon_low = 0.2;
    double const epsilon_high = 0.28;
    auto const ppo = asyncrl::ppo_clip{.low = epsilon_low, .high = epsilon_high}.bind<double>();
    int differ = 0;
    for (int batch = 0; batch < 200; ++batch) {
        double const q = 0.3 * uniform(random);
        auto const sat = bound_at<double>(sat_clip{.low = epsilon_low, .high = epsilon_high}, q);
        for (int i = 0; i < 500; ++i) {
            double const d = 2 * uniform(random) - 1;
            double const advantage = 2 * uniform(random) - 1;
            CAPTURE(q, d, advantage);
            double const r = std::exp(d);
            bounds const b = sat_bounds(d, q, epsilon_low, epsilon_high);
            auto const s = sat(at(d, advantage), math);
            auto const p = ppo(at(d, advantage));
            REQUIRE(s.value >= p.value - 1e-15);
            bool const between =
                (advantage > 0 && b.high < r && r <= 1 + epsilon_high) || (advantage < 0 && 1 - epsilon_low <= r && r < b.low);
            REQUIRE((s.slope != p.slope) == between);
            differ += between ? 1 : 0;
        }
    }
    CHECK(differ > 1000);
}

TEST_CASE("SAT with no token in its tail is PPO bit for bit") {
    for (auto const& [low, high] : {std::pair{0.2, 0.2}, std::pair{0.1, 0.28}, std::pair{0.0, 0.3}}) {
        auto const ppo = asyncrl::ppo_clip{.low = low, .high = high}.bind<float>();
        for (double const q : {0.0, 0.4, 1.5625}) {
            auto const sat = bound_at<float>(sat_clip{.low = low, .high = high}, q);
            for (double const d : log_ratios()) {
                if (q != 0 && std::abs(d) > q) {
                    continue;
                }
                for (float const advantage : {1.0F, -0.7F, 0.0F, -0.0F}) {
                    auto const x = static_cast<float>(d);
                    token<float> const t{.log_ratio = x, .ratio = std::exp(x), .advantage = advantage};
                    auto const s = sat(t, math);
                    auto const p = ppo(t);
                    REQUIRE(s.value == p.value);
                    REQUIRE(s.slope == p.slope);
                    REQUIRE(s.flags == p.flags);
                }
            }
        }
    }
}

TEST_CASE("the published example of ten tokens") {
    // d in 1/256, q = 5/256: only the tenth is in the tail.
    auto const op = bound_at<double>(sat_clip{}, 5.0 / 256);
    auto const high = op(at(24.0 / 256, 1), math);
    CHECK_THAT(high.value, WithinRel(-1.00831946755, 1e-11));
    CHECK(high.slope == 0);
    auto const low = op(at(-24.0 / 256, -1), math);
    CHECK_THAT(low.value, WithinRel(0.991680532446, 1e-11));
    CHECK(low.slope == 0);
    // What pulls the ratio back to 1 keeps PPO's loss and gradient.
    CHECK_THAT(op(at(24.0 / 256, -1), math).slope, WithinRel(1.09828514031, 1e-11));
    CHECK_THAT(op(at(-24.0 / 256, 1), math).slope, WithinRel(-0.91051036138, 1e-11));
    // Under the interpolated quantile of other libraries the bound would be another.
    auto const interpolated = bound_at<double>(sat_clip{}, 0.026953125);
    CHECK_THAT(interpolated(at(24.0 / 256, 1), math).value, WithinRel(-1.01526915861, 1e-11));
}

TEST_CASE("the rank of a fraction is exact") {
    CHECK(asyncrl::fraction{9, 10}.rank(0) == 0);
    CHECK(asyncrl::fraction{9, 10}.rank(1) == 1);
    CHECK(asyncrl::fraction{9, 10}.rank(9) == 9);
    CHECK(asyncrl::fraction{9, 10}.rank(10) == 9);
    CHECK(asyncrl::fraction{9, 10}.rank(20) == 18);
    CHECK(asyncrl::fraction{55, 100}.rank(100) == 55);  // ceil(0.55 * 100) in double is 56
    CHECK(asyncrl::fraction{1, 1}.rank(7) == 7);
    CHECK(asyncrl::fraction{1, 1000000000}.rank(3) == 1);
    CHECK(asyncrl::fraction{999999999, 1000000000}.rank(std::int64_t{1} << 40) == 1099511626677);
    for (std::int64_t n = 0; n < 500; ++n) {
        for (std::int64_t p = 1; p <= 100; ++p) {
            REQUIRE(asyncrl::fraction{p, 100}.rank(n) == (p * n + 99) / 100);
        }
    }
}

TEST_CASE("sat_clip names the field that cannot be meant") {
    CHECK_THROWS_WITH(sat_clip{.low = 1}.check(), Catch::Matchers::StartsWith("asyncrl: sat_clip.low = 1"));
    CHECK_THROWS_WITH(sat_clip{.high = -0.5}.check(), Catch::Matchers::StartsWith("asyncrl: sat_clip.high = -0.5"));
    CHECK_THROWS_WITH((sat_clip{.quantile = {9, 0}}.check()),
                      Catch::Matchers::StartsWith("asyncrl: sat_clip.quantile.denominator = 0"));
    CHECK_THROWS_WITH((sat_clip{.quantile = {11, 10}}.check()),
                      Catch::Matchers::StartsWith("asyncrl: sat_clip.quantile.numerator = 11"));
    CHECK_THROWS_WITH((sat_clip{.quantile = {0, 10}}.check()),
                      Catch::Matchers::StartsWith("asyncrl: sat_clip.quantile.numerator = 0"));
}
