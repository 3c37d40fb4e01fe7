// SPDX-License-Identifier: Apache-2.0
/// Reference values of SAT with bounds 0.2 / 0.2 and Hill exponent 2, ratio new / rollout.
#include "support/eight.hpp"

#include <cmath>

using namespace asyncrl;
using support::answer;
using support::check_rows;
using support::check_table;
using support::near;
using support::precisions;
using support::row;
using support::run;
using support::tokens;

namespace {

[[nodiscard]] auto sat(fraction share, bool interpolate = false) {
    return make_objective(sat_clip{.low = 0.2, .high = 0.2, .quantile = share, .interpolate = interpolate}, anchor_rollout{},
                          token_sum{});
}

/// Ten tokens with A = 1 and log-ratios in 1/256, whose last has another sign or advantage.
[[nodiscard]] tokens ten(double last = 24, double last_advantage = 1) {
    std::vector<double> d = {1, -1, 2, -2, 3, -3, 4, -4, 5, last};
    for (double& x : d) {
        x = x / 256 - 1;
    }
    std::vector<double> advantages(10, 1);
    advantages[9] = last_advantage;
    return tokens::row(d, std::vector<double>(10, -1), advantages);
}

/// Tokens with these log-ratios.
[[nodiscard]] tokens with_log_ratios(std::vector<double> const& d, std::vector<double> const& advantages) {
    std::vector<double> anchors;
    for (double const x : d) {
        anchors.push_back(-x);
    }
    return tokens::row(std::vector<double>(d.size(), 0), anchors, advantages);
}

}  // namespace

TEST_CASE("the eight slots at 9/10: the largest log-ratio is the quantile, and SAT is PPO") {
    check_table(sat({9, 10}), {{0, -1.13314845307, -1.13314845307},
                               {1, -1.0317434075, -1.0317434075},
                               {2, -1.2, 0, clipped_high},
                               {3, -0.645648526428, -0.645648526428},
                               {5, 0.4, 0, clipped_low},
                               {6, 0.566574226533, 0.566574226533},
                               {7, 2.24084453517, 2.24084453517}});
}

TEST_CASE("the eight slots at 3/4: the tail's bound is not on the side to which the advantage pushes") {
    check_table(sat({3, 4}), {{0, -1.13314845307, -1.13314845307},
                              {1, -1.0317434075, -1.0317434075},
                              {2, -1.2, 0, clipped_high},
                              {3, -0.645648526428, -0.645648526428},
                              {5, 0.4, 0, clipped_low},
                              {6, 0.566574226533, 0.566574226533},
                              {7, 2.24084453517, 2.24084453517, tail}});
}

TEST_CASE("the eight slots at 1/2: slot 2 is clipped at 1.0867") {
    check_table(sat({1, 2}), {{0, -1.13314845307, -1.13314845307},
                              {1, -1.0317434075, -1.0317434075},
                              {2, -1.08672566372, 0, tail | clipped_high},
                              {3, -0.645648526428, -0.645648526428},
                              {5, 0.4, 0, clipped_low},
                              {6, 0.566574226533, 0.566574226533},
                              {7, 2.24084453517, 2.24084453517, tail}});
}

TEST_CASE("ten tokens at 9/10: one is in the tail and is clipped on its side, in the direction of its advantage") {
    for (dtype const type : precisions) {
        answer const a = run(sat({9, 10}), ten(), type);
        CHECK(a.sums.quantile == 0.01953125);
        CHECK(a.report.counts.tail == 1);
        check_rows(a,
                   {{6, -1.01574770859, -1.01574770859},
                    {7, -0.984496437005, -0.984496437005},
                    {8, -1.01972323271, -1.01972323271},
                    {9, -1.00831946755, 0, tail | clipped_high}},
                   type);
        check_rows(run(sat({9, 10}), ten(-24, -1), type), {{9, 0.991680532446, 0, tail | clipped_low}}, type);
        check_rows(run(sat({9, 10}), ten(24, -1), type), {{9, 1.09828514031, 1.09828514031, tail}}, type);
        check_rows(run(sat({9, 10}), ten(-24, 1), type), {{9, -0.91051036138, -0.91051036138, tail}}, type);
    }
}

TEST_CASE("ten tokens at an interpolated 9/10") {
    for (dtype const type : precisions) {
        answer const a = run(sat({9, 10}, true), ten(), type);
        CHECK(near(a.sums.quantile, 0.026953125, type));
        check_rows(a, {{8, -1.01972323271, -1.01972323271}, {9, -1.01526915861, 0, tail | clipped_high}}, type);
    }
}

TEST_CASE("the smallest log-ratio that is clipped") {
    struct one {
        double q, up, down;
    };
    for (one const& r : {one{0.005, 0.0165640050607, 0.0166613906928}, one{0.01, 0.0257950615474, 0.0260401342922},
                         one{0.02, 0.0396945296069, 0.0403099370587}, one{0.05, 0.0679253454782, 0.0699825359355},
                         one{0.1, 0.1, 0.102558270717}, one{0.15, 0.15, 0.15}, one{0, 0.182321556794, 0.223143551314},
                         one{1, 0.182321556794, 0.223143551314}}) {
        INFO("q = " << r.q);
        CHECK(near(detail::sat_threshold(r.q, 0.2, 1), r.up, dtype::f64));
        CHECK(near(detail::sat_threshold(r.q, 0.2, -1), r.down, dtype::f64));
        for (dtype const type : precisions) {
            double const step = type == dtype::f64 ? 1e-11 : 1e-6;
            tokens const t = with_log_ratios({r.up * (1 - step), r.up * (1 + step), -r.down * (1 - step), -r.down * (1 + step)},
                                             {1, 1, -1, -1});
            answer const a = run(sat({9, 10}), t, type, {}, r.q);
            CHECK((a.flags[0] & clipped_high) == 0);
            CHECK((a.flags[1] & clipped_high) == clipped_high);
            CHECK((a.flags[2] & clipped_low) == 0);
            CHECK((a.flags[3] & clipped_low) == clipped_low);
        }
    }
}

TEST_CASE("quantile and size of the tail at their edges, log-ratios in 1/32") {
    struct one {
        std::vector<double> d;
        fraction share;
        double q;
        std::int64_t in_tail;
    };
    std::vector<double> twenty(18, 1);
    twenty.insert(twenty.end(), {64, -64});
    for (one const& r :
         {one{{4}, {9, 10}, 0.125, 0}, one{{4, 4, -4, 4}, {1, 2}, 0.125, 0}, one{{1, 4, 4, -4, 8}, {3, 4}, 0.125, 1},
          one{{0, 0, 0, 16}, {3, 4}, 0, 0}, one{{1, 1, 1, 1, 1, 1, 1, 1, 64}, {9, 10}, 2, 0},
          one{{1, 1, 1, 1, 1, 1, 1, 1, 1, 64}, {9, 10}, 0.03125, 1}, one{twenty, {9, 10}, 0.03125, 2},
          one{{1, 2, 3, 64}, {1, 1}, 2, 0}, one{{}, {9, 10}, 0, 0}}) {
        std::vector<double> d = r.d;
        for (double& x : d) {
            x /= 32;
        }
        for (dtype const type : precisions) {
            answer const a = run(sat(r.share), with_log_ratios(d, std::vector<double>(d.size(), 1)), type);
            INFO(d.size() << " tokens");
            CHECK(a.sums.quantile == r.q);
            CHECK(a.report.counts.tail == r.in_tail);
        }
    }
}

TEST_CASE("at most floor((1 - alpha) n) tokens are beyond the quantile: none of fewer than ten at 9/10") {
    for (fraction const share : {fraction{9, 10}, fraction{3, 4}, fraction{19, 20}, fraction{1, 2}}) {
        for (std::int64_t n = 1; n < 400; ++n) {
            CHECK(n - share.rank(n) == (share.denominator - share.numerator) * n / share.denominator);
        }
    }
}

TEST_CASE("two numbers of the batch decide the clip: so do the bounds of each token by themselves") {
    for (int const quantile : {0, 1, 2, 5, 13, 26, 40, 47, 58, 70}) {
        double const q = quantile / 256.0;
        std::vector<double> d;
        std::vector<double> advantages;
        for (int i = -90; i <= 90; ++i) {
            d.insert(d.end(), {i / 256.0, i / 256.0});
            advantages.insert(advantages.end(), {1, -1});
        }
        for (dtype const type : precisions) {
            answer const a = run(sat({9, 10}), with_log_ratios(d, advantages), type, {}, q);
            for (std::size_t i = 0; i < d.size(); ++i) {
                bool const in_tail = q > 0 && std::abs(d[i]) > q;
                auto const narrowed = [&](double outward) {
                    return in_tail && outward > 0 ? 0.2 / (1 + std::pow(outward / q, 2)) : 0.2;
                };
                double const ratio = std::exp(d[i]);
                double const high = 1 + narrowed(d[i]);
                double const low = 1 - narrowed(-d[i]);
                unsigned flags = in_tail ? unsigned{tail} : 0;
                flags |= advantages[i] > 0 && ratio > high ? unsigned{clipped_high} : 0;
                flags |= advantages[i] < 0 && ratio < low ? unsigned{clipped_low} : 0;
                double const loss = std::max(-advantages[i] * ratio, -advantages[i] * std::clamp(ratio, low, high));
                INFO("q = " << q << ", d = " << d[i] << ", A = " << advantages[i]);
                CHECK(a.flags[i] == flags);
                CHECK(near(a.loss[i], loss, type));
            }
        }
    }
}

TEST_CASE("SAT and a dual cap act on different sides") {
    auto const objective = [](auto reduction) {
        return make_objective(sat_clip{.low = 0.2, .high = 0.2, .quantile = {1, 2}, .cap = 2}, anchor_rollout{}, reduction);
    };
    check_table(objective(token_sum{}), {{0, -1.13314845307, -1.13314845307},
                                         {1, -1.0317434075, -1.0317434075},
                                         {2, -1.08672566372, 0, clipped_high | tail},
                                         {3, -0.645648526428, -0.645648526428},
                                         {5, 0.4, 0, clipped_low},
                                         {6, 0.566574226533, 0.566574226533},
                                         {7, 1, 0, capped | tail}});
    for (asyncrl::dtype const type : precisions) {
        CHECK(near(run(objective(token_mean{}), support::eight_slots(), type).report.sums.loss, -0.27581311774, type, 1));
    }
}
