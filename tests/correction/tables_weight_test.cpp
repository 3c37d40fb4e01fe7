// SPDX-License-Identifier: Apache-2.0
/// Reference values of detached weights and masks by old / rollout, of KL penalties, reductions and compositions.
#include "support/eight.hpp"

#include <cmath>

using namespace asyncrl;
using support::answer;
using support::check_rows;
using support::check_table;
using support::eight_slots;
using support::near;
using support::precisions;
using support::row;
using support::run;

namespace {

constexpr ppo_clip ppo{.low = 0.2, .high = 0.2};

/// Slot and effective weight.
struct weighed {
    std::size_t slot;
    double weight;
};

template <typename Objective>
void check_weights(Objective const& objective, std::vector<weighed> const& rows, support::tokens const& t = eight_slots()) {
    for (dtype const type : precisions) {
        answer const a = run(objective, t, type);
        for (weighed const& r : rows) {
            INFO("slot " << r.slot << ": " << a.weight[r.slot] << " of " << r.weight);
            CHECK(near(a.weight[r.slot], r.weight, type));
        }
    }
}

/// The eight slots with advantages of 0: what is left of a loss is its penalty.
template <typename Penalty>
void check_penalty(Penalty penalty, std::vector<row> const& rows) {
    support::tokens t = eight_slots();
    t.advantage = {0, 0, 0, 0, support::nan, 0, 0, 0};
    for (dtype const type : precisions) {
        answer const a = run(make_objective(policy_gradient{}, penalty, token_sum{}), t, type);
        check_rows(a, rows, type);
        CHECK(support::is_plus_zero(a.gradient[4]));
    }
}

}  // namespace

TEST_CASE("TIS with cap 2 times PPO") {
    auto const objective = make_objective(ppo, tis{.cap = 2}, token_sum{});
    check_table(objective, {{0, -1.13314845307, -1.13314845307},
                            {1, -1.0317434075, -1.0317434075},
                            {2, -1.35977814368, 0, clipped_high},
                            {3, -0.645648526428, -0.645648526428},
                            {5, 0.425797783567, 0, clipped_low},
                            {6, 0.566574226533, 0.566574226533},
                            {7, 2.11700001661, 2.11700001661, capped}});
    check_weights(objective, {{0, 1.0317434075},
                              {1, 0.969233234476},
                              {2, 1.13314845307},
                              {3, 0.939413062813},
                              {5, 1.06449445892},
                              {6, 1.0317434075},
                              {7, 2}});
}

TEST_CASE("IcePop's interval [0.5, 2] times PPO, as a weight that masks and as a weight and a mask") {
    std::vector<row> const table = {{0, -1.13314845307, -1.13314845307},
                                    {1, -1.0317434075, -1.0317434075},
                                    {2, -1.35977814368, 0, clipped_high},
                                    {3, -0.645648526428, -0.645648526428},
                                    {5, 0.425797783567, 0, clipped_low},
                                    {6, 0.566574226533, 0.566574226533},
                                    {7, 0, 0, gated}};
    check_table(make_objective(ppo, mis{.low = 0.5, .high = 2}, token_sum{}), table);
    check_table(make_objective(ppo, mismatch_gate{.low = 0.5, .high = 2}, importance_weight{}, token_sum{}), table);
}

TEST_CASE("KPop with limit 0.006 times PPO") {
    // max(D(old || rollout), D(rollout || old)): 2.01e-4, 6.45e-3, 4.46e-4, 2.11e-3, 3.20e-4, 1.43e-3, 8.84e-3
    auto const objective = make_objective(ppo, kpop_gate{.limit = 0.006}, importance_weight{}, token_sum{});
    check_table(objective, {{0, -1.13314845307, -1.13314845307},
                            {1, 0, 0, gated},
                            {2, -1.35977814368, 0, clipped_high},
                            {3, -0.645648526428, -0.645648526428},
                            {5, 0.425797783567, 0, clipped_low},
                            {6, 0.566574226533, 0.566574226533},
                            {7, 0, 0, gated}});
    check_weights(objective, {{0, 1.0317434075}, {1, 0}, {2, 1.13314845307}, {3, 0.939413062813}, {7, 0}});
}

TEST_CASE("the binary divergences of the eight slots, found by limits on either side of them") {
    struct one {
        std::size_t slot;
        double divergence;
    };
    for (one const& r :
         {one{0, 0.000201054559792}, one{1, 0.00645140638877}, one{2, 0.000446123809108}, one{3, 0.00210893085051},
          one{5, 0.000319806203052}, one{6, 0.00142780771202}, one{7, 0.00883676454406}}) {
        for (dtype const type : precisions) {
            double const step = type == dtype::f64 ? 1e-11 : 2e-3;
            INFO("slot " << r.slot << (type == dtype::f64 ? " in double" : " in float"));
            auto const weight_at = [&](double limit) {
                return run(make_objective(ppo, kpop_gate{limit}, token_sum{}), eight_slots(), type).weight[r.slot];
            };
            CHECK(weight_at(r.divergence * (1 + step)) == 1);
            CHECK(weight_at(r.divergence * (1 - step)) == 0);
        }
    }
}

TEST_CASE("effective sample sizes: 6.329 of 7 tokens, 1.757 of the two sequences") {
    for (dtype const type : precisions) {
        answer const a = run(make_objective(ppo, importance_weight{}, token_sum{}), eight_slots(), type);
        CHECK(near(7 * a.report.effective_sample_share(), 6.32923176287, type));

        support::tokens sequences = support::tokens::row({-1, -1}, {-1, -1}, {1, 1});  // the sums of log old / rollout
        sequences.rollout_log_prob = {-1.0625, -1.84375};
        answer const b = run(make_objective(ppo, importance_weight{}, token_sum{}), sequences, type);
        CHECK(near(2 * b.report.effective_sample_share(), 1.75699247979, type));
        CHECK(near(b.report.effective_sample_share(), 0.878496239896, type));
        CHECK(near(std::sqrt(b.report.effective_sample_share()), 0.937281302436, type));
    }
}

TEST_CASE("weights divided by their mean over the batch") {
    auto const capped_weights = make_objective(ppo, tis{.cap = 2}, token_sum{});
    auto const normalised = make_objective(ppo, tis{.cap = 2}, normalised_weights{}, token_sum{});
    for (dtype const type : precisions) {
        answer const a = run(capped_weights, eight_slots(), type);
        CHECK(near(a.report.sums.weight / 7, 1.16711086061, type));
        CHECK(near(run(normalised, eight_slots(), type).report.sums.weight, 7, type));
    }
    check_weights(normalised, {{0, 0.884014914367}, {7, 1.71363326955}});
}

TEST_CASE("KL penalties with the rollout policy as the reference") {
    check_penalty(k1_penalty{.coefficient = 1},
                  {{0, 0.125, 1}, {1, 0.03125, 1}, {2, 0.5, 1}, {3, -0.4375, 1}, {5, -0.4375, 1}, {6, 0.125, 1}, {7, 1.5, 1}});
    check_penalty(k2_penalty{.coefficient = 1}, {{0, 0.0078125, 0.125},
                                                 {1, 0.00048828125, 0.03125},
                                                 {2, 0.125, 0.5},
                                                 {3, 0.095703125, -0.4375},
                                                 {5, 0.095703125, -0.4375},
                                                 {6, 0.0078125, 0.125},
                                                 {7, 1.125, 1.5}});
    std::vector<row> const k3 = {{0, 0.0074969025846, 0.117503097415}, {1, 0.000483234476344, 0.0307667655237},
                                 {2, 0.106530659713, 0.393469340287},  {3, 0.111330298634, -0.548830298634},
                                 {5, 0.111330298634, -0.548830298634}, {6, 0.0074969025846, 0.117503097415},
                                 {7, 0.723130160148, 0.776869839852}};
    check_penalty(k3_penalty{.coefficient = 1}, k3);
    std::vector<row> straight_through = k3;
    for (row& r : straight_through) {
        r.gradient = eight_slots().log_prob[r.slot] - eight_slots().rollout_log_prob[r.slot];  // of k2
    }
    check_penalty(straight_through_k3_penalty{.coefficient = 1}, straight_through);
    std::vector<row> const unbiased = {{0, 0.008233736707, 0.137285642538},   {1, 0.000514400422426, 0.0332654518412},
                                       {2, 0.155001195275, 0.727495707309},   {3, 0.0765161206558, -0.300689059471},
                                       {5, 0.0675252394766, -0.265357163624}, {6, 0.008233736707, 0.137285642538},
                                       {7, 1.53086656105, 3.17550002492}};
    check_penalty(unbiased_k3_penalty{.coefficient = 1}, unbiased);
    std::vector<row> weighted = unbiased;
    for (std::size_t i = 0; i < weighted.size(); ++i) {
        weighted[i].gradient = unbiased[i].loss / k3[i].loss * k3[i].gradient;  // the ratio times the gradient of k3
    }
    check_penalty(weighted_k3_penalty{.coefficient = 1}, weighted);
}

TEST_CASE("reductions of the PPO loss: the scalar, and what the gradient of a token of either sequence is multiplied by") {
    auto const check = [](auto const& objective, double loss, double first, double second) {
        for (dtype const type : precisions) {
            answer const a = run(objective, eight_slots(), type);
            INFO("loss " << a.report.sums.loss << " of " << loss);
            CHECK(near(a.report.sums.loss, loss, type));
            CHECK(near(a.gradient[0], -1.09828514031 * first, type));
            CHECK(near(a.gradient[3], -0.687289278791 * first, type));
            CHECK(near(a.gradient[6], 0.549142570154 * second, type));
        }
    };
    check(make_objective(ppo, token_mean{}), -0.291775185651, 1.0 / 7, 1.0 / 7);
    check(make_objective(ppo, token_sum{}), -2.04242629956, 1, 1);
    check(make_objective(ppo, sequence_mean_token_mean{}), -0.171651513342, 1.0 / 8, 1.0 / 6);
    check(make_objective(ppo, sequence_mean_token_sum{}), -1.02121314978, 0.5, 0.5);
    check(make_objective(ppo, sequence_mean_token_sum{.horizon = 8}), -0.127651643722, 0.0625, 0.0625);
}

TEST_CASE("reductions after slot 7 was rejected: by all active tokens, or by those kept") {
    support::tokens t = eight_slots();
    t.keep[7] = 0;
    for (dtype const type : precisions) {
        answer const all = run(make_objective(ppo, given_gate{}, token_mean{}), t, type);
        answer const kept = run(make_objective(ppo, given_gate{}, token_mean{.over = counted::kept}), t, type);
        CHECK(near(all.report.sums.loss, -0.442989472552, type));
        CHECK(near(all.gradient[0], -1.09828514031 / 7, type));
        CHECK(near(kept.report.sums.loss, -0.51682105131, type));
        CHECK(near(kept.gradient[6], 0.549142570154 / 6, type));
        CHECK(all.gradient[7] == 0);
        CHECK(all.flags[7] == gated);
        CHECK(kept.sums.counts.kept_tokens == 6);
    }
}

TEST_CASE("TIS(2) * PPO + 0.1 k3 to the rollout policy, by token mean") {
    auto const objective = make_objective(ppo, tis{.cap = 2}, k3_penalty{.coefficient = 0.1}, token_mean{});
    check_table(objective, {{0, -1.13239876281, -0.160199734761},
                            {1, -1.03169508405, -0.146952390135},
                            {2, -1.34912507771, 0.00562099057553, clipped_high},
                            {3, -0.634515496564, -0.100075936613},
                            {5, 0.436930813431, -0.00784043283763, clipped_low},
                            {6, 0.567323916792, 0.0826177908964},
                            {7, 2.18931303263, 0.313526714371, capped}});
    for (dtype const type : precisions) {
        CHECK(near(run(objective, eight_slots(), type).report.sums.loss, -0.136309522612, type));
    }
}

TEST_CASE("weights by staleness: (1 + s)^-1/2, the hinge with slope 10 from 2 on, exp(-s / 4)") {
    support::tokens t = support::tokens::row({-1, -1, -1, -1, -1}, {-1, -1, -1, -1, -1}, {1, 1, 1, 1, 1});
    t.version = {8, 7, 6, 4, 0};
    t.policy_version = 8;
    check_weights(make_objective(ppo, staleness_power{.exponent = 0.5}, token_sum{}),
                  {{0, 1}, {1, 0.707106781187}, {2, 0.57735026919}, {3, 0.4472135955}, {4, 0.333333333333}}, t);
    check_weights(make_objective(ppo, staleness_hinge{.slope = 10, .flat = 2}, token_sum{}),
                  {{0, 1}, {1, 1}, {2, 1}, {3, 0.047619047619}, {4, 0.016393442623}}, t);
    check_weights(make_objective(ppo, staleness_exponential{.rate = 0.25}, token_sum{}),
                  {{0, 1}, {1, 0.778800783071}, {2, 0.606530659713}, {3, 0.367879441171}, {4, 0.135335283237}}, t);
}
