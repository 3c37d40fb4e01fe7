// SPDX-License-Identifier: Apache-2.0
/// Reference values of what speaks of whole sequences: ratios, weights and masks.
#include "support/eight.hpp"

#include <cmath>

using namespace asyncrl;
using support::answer;
using support::check_table;
using support::eight_slots;
using support::near;
using support::precisions;
using support::row;
using support::run;
using support::tokens;

namespace {

constexpr ppo_clip ppo{.low = 0.2, .high = 0.2};

/// The tables give dL_b / d(log_prob) of each sequence b: twice the gradient of the mean over two sequences.
constexpr loss_options two_sequences{.scale = 2};

}  // namespace

TEST_CASE("GSPO 0.1 / 0.1, differentiated through every token, through the token itself, or shared") {
    std::vector<row> const table = {{0, -1.03983547134, -0.259958867834}, {1, -1.03983547134, -0.259958867834},
                                    {2, -1.03983547134, -0.259958867834}, {3, -1.03983547134, -0.259958867834},
                                    {5, 0.560703043839, 0.186901014613},  {6, 0.560703043839, 0.186901014613},
                                    {7, 0.560703043839, 0.186901014613}};
    constexpr ppo_clip clip{.low = 0.1, .high = 0.1};
    check_table(make_objective(clip, sequence_ratio{}, sequence_mean_token_mean{}), table, two_sequences);
    check_table(make_objective(clip, sequence_ratio_own_slope{}, sequence_mean_token_mean{}), table, two_sequences);
    check_table(make_objective(clip, sequence_ratio_shared_slope{}, sequence_mean_token_mean{}), table, two_sequences);
}

TEST_CASE("GSPO with the bounds of its paper, 3e-4 / 4e-4") {
    check_table(make_objective(ppo_clip{.low = 3e-4, .high = 4e-4}, sequence_ratio{}, sequence_mean_token_mean{}),
                {{0, -1.0004, 0, clipped_high},
                 {1, -1.0004, 0, clipped_high},
                 {2, -1.0004, 0, clipped_high},
                 {3, -1.0004, 0, clipped_high},
                 {5, 0.560703043839, 0.186901014613},
                 {6, 0.560703043839, 0.186901014613},
                 {7, 0.560703043839, 0.186901014613}},
                two_sequences);
}

TEST_CASE("GMPO with limit 0.25: a clipped token has no gradient and still scales the others") {
    check_table(make_objective(importance_gradient{}, clipped_geometric_ratio{.limit = 0.25}, sequence_mean_token_mean{}),
                {{0, -1.00784309721, -0.251960774302},
                 {1, -1.00784309721, -0.251960774302},
                 {2, -1.00784309721, 0, clipped_high},
                 {3, -1.00784309721, -0.251960774302},
                 {5, 0.609430408927, 0, clipped_low},
                 {6, 0.609430408927, 0.203143469642},
                 {7, 0.609430408927, 0.203143469642}},
                two_sequences);
}

TEST_CASE("VESPO by the product of new / rollout: every token of a sequence has the same gradient") {
    // W = 1.24452010777 and 3.27887376794, phi(W) = 0.743742561663 and 0.369631936053; the loss is -phi A x
    check_table(make_objective(vespo{}, anchor_rollout{}, sequence_ratio{.of = level::product}, token_sum{}),
                {{0, 0.743742561663 * 1.125, -0.743742561663},
                 {1, 0.743742561663 * 0.03125, -0.743742561663},
                 {2, 0.743742561663 * 2.5, -0.743742561663},
                 {3, 0.743742561663 * 1.0625, -0.743742561663},
                 {5, 0.184815968027 * -2.4375, 0.184815968027},
                 {6, 0.184815968027 * -0.1875, 0.184815968027},
                 {7, 0.184815968027 * -2.5, 0.184815968027}});
}

TEST_CASE("the ratio of a sequence old / rollout: product, truncated product, geometric mean") {
    auto const check = [](auto const& objective, double first, double second, unsigned flags) {
        for (dtype const type : precisions) {
            answer const a = run(objective, eight_slots(), type);
            for (std::size_t slot = 0; slot < 8; ++slot) {
                INFO("slot " << slot << ": " << a.weight[slot]);
                CHECK(near(a.weight[slot], slot < 4 ? first : slot == 4 ? 0 : second, type));
                CHECK((a.flags[slot] & capped) == (slot > 4 ? flags : 0U));
            }
        }
    };
    check(make_objective(ppo, sequence_tis{.cap = 3, .of = level::product}, token_sum{}), 1.06449445892, 2.32506966028, 0);
    check(make_objective(ppo, sequence_tis{.cap = 2, .of = level::product}, token_sum{}), 1.06449445892, 2, capped);
    check(make_objective(ppo, sequence_tis{.cap = 2, .of = level::geometric}, token_sum{}), 1.01574770859, 1.32478475873, 0);
}

TEST_CASE("statistics of a sequence, found by limits on either side of them") {
    // A step of 1e-11 in double is a digit of the table; in float the limits are as far away as its sums are off.
    auto const check = [](double first, double second, auto const& objective_at) {
        for (dtype const type : precisions) {
            double const step = type == dtype::f64 ? 1e-11 : 1e-5;
            for (std::size_t const slot : {0U, 3U, 5U, 7U}) {
                double const value = slot < 4 ? first : second;
                double const aside = step * std::abs(value);
                INFO("slot " << slot << ": " << value);
                CHECK(run(objective_at(value + aside), eight_slots(), type).weight[slot] == 1);
                answer const a = run(objective_at(value - aside), eight_slots(), type);
                CHECK(a.weight[slot] == 0);
                CHECK(a.loss[slot] == 0);
                CHECK((a.flags[slot] & (gated | gated_sequence)) == (gated | gated_sequence));
            }
        }
    };
    check(0.00275953946394, 0.123162627677, [](double limit) {
        return make_objective(ppo, mean_divergence_gate{.limit = limit, .by = estimator::k3}, token_sum{});
    });
    check(0.0078125, 0.28125, [](double limit) {
        return make_objective(ppo, largest_divergence_gate{.limit = limit, .by = estimator::k2}, token_sum{});
    });
    check(-0.0625, -0.84375, [](double limit) {
        return make_objective(ppo, mean_divergence_gate{.limit = limit, .by = estimator::k1, .per_token = false}, token_sum{});
    });
    check(-0.015625, -0.28125, [](double limit) {
        return make_objective(ppo, mean_divergence_gate{.limit = limit, .by = estimator::k1}, token_sum{});
    });
    check(1.06449445892, 2.32506966028, [](double limit) {
        return make_objective(ppo, sequence_gate{.low = 0, .high = limit, .of = level::product}, token_sum{});
    });
    check(1.01574770859, 1.32478475873, [](double limit) {
        return make_objective(ppo, sequence_gate{.low = 0, .high = limit, .of = level::geometric}, token_sum{});
    });
}

TEST_CASE("SAT-GSPO: each token counts in the quantile, or each sequence once") {
    struct one {
        bool each_sequence;
        fraction share;
        double q;
    };
    for (one const& r : {one{true, {9, 10}, 0.114583333333}, one{true, {11, 20}, 0.114583333333},
                         one{false, {9, 10}, 0.114583333333}, one{false, {11, 20}, 0.0390625}}) {
        for (dtype const type : precisions) {
            auto const objective = make_objective(sat_clip{.quantile = r.share, .each_sequence = r.each_sequence},
                                                  sequence_ratio{}, sequence_mean_token_mean{});
            answer const a = run(objective, eight_slots(), type);
            INFO("q " << a.sums.quantile << " of " << r.q);
            CHECK(near(a.sums.quantile, r.q, type));
            // With the smaller q the second sequence is in the tail, where its advantage does not push it.
            CHECK(a.report.counts.tail == (r.q < 0.1 ? 3 : 0));
            CHECK(near(a.loss[0], -1.03983547134, type));
            CHECK(near(a.gradient[7] * 2, 0.186901014613, type));
        }
    }
}

TEST_CASE("OPSM: masked where A < 0 and mean(rollout - new) is strictly above the limit") {
    struct one {
        std::vector<double> rollout, log_prob;
        double advantage;
        bool keep;
    };
    for (one const& r : {one{{-1, -1, -1}, {-2, -2, -2}, -1, false}, one{{-1, -1}, {-1.5, -1.5}, -1, true},
                         one{{-1, -1}, {-3, -3}, 1, true}, one{{-1}, {-9}, 0, true}, one{{-1, -1}, {-9, 7}, -1, true}}) {
        for (dtype const type : precisions) {
            support::tokens t = support::tokens::row(r.log_prob, r.rollout, std::vector<double>(r.rollout.size(), r.advantage));
            INFO(r.log_prob[0] << ", A = " << r.advantage);
            answer const a = run(make_objective(policy_gradient{}, opsm{.delta = 0.5}, token_sum{}), t, type);
            for (std::size_t i = 0; i < r.log_prob.size(); ++i) {
                CHECK(a.weight[i] == (r.keep ? 1 : 0));
                CHECK(a.gradient[i] == (r.keep ? -r.advantage : 0));
                CHECK(a.flags[i] == (r.keep ? 0 : gated | gated_sequence));
            }
        }
    }
}

TEST_CASE("where weights differ within a sequence, every token gets the mean of their slopes") {
    tokens t = tokens::row({-1, -1, -1}, {-1, -1, -1}, {1, 1, 1});
    t.rollout_log_prob = {-1, -1.5, -1};
    t.keep = {1, 0, 1};
    double const mean_weight = (2 + std::exp(0.5)) / 3;
    for (dtype const type : precisions) {
        auto const weighted = run(make_objective(importance_gradient{}, sequence_ratio{}, tis{.cap = 5}, token_sum{}), t, type);
        auto const gated = run(make_objective(importance_gradient{}, sequence_ratio{}, given_gate{}, token_sum{}), t, type);
        for (std::size_t i = 0; i < 3; ++i) {
            CHECK(near(weighted.gradient[i], -mean_weight, type));
            CHECK(near(gated.gradient[i], -2.0 / 3, type));
        }
    }
}

TEST_CASE("in GMPO a token without an advantage moves the others only where it is not clipped") {
    tokens const t = tokens::row({-0.2, -1.8, -3}, {-1, -1, -1}, {1, 1, 0});
    for (dtype const type : precisions) {
        auto const a = run(make_objective(importance_gradient{}, clipped_geometric_ratio{.limit = 0.4}, token_sum{}), t, type);
        CHECK(a.gradient[2] == 0);
        CHECK(a.gradient[1] != 0);
    }
}
