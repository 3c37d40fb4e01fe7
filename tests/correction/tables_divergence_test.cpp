// SPDX-License-Identifier: Apache-2.0
/// Reference values of masks and surrogates by the probabilities themselves, and of the interpolated old policy.
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

TEST_CASE("DPPO by total variation 0.03") {
    // p - q: 0.0381, 0.0298, 0.0323, -0.190, -0.0480, 0.0974, 0.0638
    check_table(make_objective(importance_gradient{}, anchor_rollout{}, tv_gate{.low = 0.03, .high = 0.03}, token_sum{}),
                {{0, 0, 0, gated},
                 {1, -1.0317434075, -1.0317434075},
                 {2, 0, 0, gated},
                 {3, -0.645648526428, -0.645648526428},
                 {5, 0, 0, gated},
                 {6, 0.566574226533, 0.566574226533},
                 {7, 2.24084453517, 2.24084453517}});
}

TEST_CASE("DPPO by binary KL 0.01") {
    check_table(make_objective(importance_gradient{}, anchor_rollout{}, kl_gate{.limit = 0.01}, token_sum{}),
                {{0, -1.13314845307, -1.13314845307},
                 {1, 0, 0, gated},
                 {2, -1.6487212707, -1.6487212707},
                 {3, -0.645648526428, -0.645648526428},
                 {5, 0, 0, gated},
                 {6, 0.566574226533, 0.566574226533},
                 {7, 2.24084453517, 2.24084453517}});
}

TEST_CASE("the differences and divergences by which DPPO masks, found by limits on either side of them") {
    struct one {
        std::size_t slot;
        double difference, divergence;  // 0: the update does not carry the token outward
    };
    for (one const& r : {one{0, 0.0381476704982, 0.00339224340203}, one{1, 0.0298201716629, 0.0116997311486},
                         one{2, 0.032297930256, 0.00796606692868}, one{3, 0, 0}, one{5, 0.0479562570412, 0.0125355970186},
                         one{6, 0, 0}, one{7, 0, 0}}) {
        for (dtype const type : precisions) {
            double const step = type == dtype::f64 ? 2e-11 : 1e-4;
            INFO("slot " << r.slot << (type == dtype::f64 ? " in double" : " in float"));
            auto const keeps = [&](auto gate) {
                auto const objective = make_objective(importance_gradient{}, anchor_rollout{}, gate, token_sum{});
                return run(objective, eight_slots(), type).weight[r.slot] == 1;
            };
            double const above = r.difference * (1 + step);
            double const below = r.difference * (1 - step);
            CHECK(keeps(tv_gate{.low = above, .high = above}));
            CHECK(keeps(tv_gate{.low = below, .high = below}) == (r.difference == 0));
            CHECK(keeps(kl_gate{r.divergence * (1 + step)}));
            CHECK(keeps(kl_gate{r.divergence * (1 - step)}) == (r.divergence == 0));
        }
    }
}

TEST_CASE("a given divergence masks like a computed one: above the limit, and only outward") {
    tokens t = eight_slots();
    t.divergence = {0.1875, 0.1875, 0.25, 9, support::nan, 0.0880551483973, 9, 9};
    for (dtype const type : precisions) {
        auto const objective = make_objective(importance_gradient{}, anchor_rollout{}, divergence_gate{0.1875}, token_sum{});
        answer const a = run(objective, t, type);
        for (std::size_t slot : {0U, 1U, 2U, 3U, 5U, 6U, 7U}) {
            CHECK(a.weight[slot] == (slot == 2 ? 0 : 1));
            CHECK(a.flags[slot] == (slot == 2 ? gated : 0));
        }
    }
}

TEST_CASE("DRPO with delta 0.03") {
    // The gradient is -A r (1 - sign(A (r - 1)) |p - q| / delta), which nearly cancels in slot 1; beyond delta it has turned
    // round and the token counts as beyond the bound.
    check_table(make_objective(drpo{.delta = 0.03}, anchor_rollout{}, token_sum{}),
                {{0, -1.04849339782, 0.307750674036, clipped_high},
                 {1, -1.01596684315, -0.00618455671057, 0, 1.03},
                 {2, -1.29951536476, 0.12628821639, clipped_high, 1.6},
                 {3, 0.47451953213, -4.72766827405},
                 {5, 0.464435682794, -0.193223848313, clipped_low},
                 {6, 0.674661354861, 2.40630663708},
                 {7, 4.09105355861, 7.00408524429}});
}

TEST_CASE("IPO with limit 0.1, whose squared log-ratio counts masked tokens too") {
    check_table(make_objective(importance_gradient{}, anchor_rollout{}, ipo_gate{.limit = 0.1},
                               squared_log_ratio_penalty{.coefficient = 1e-3}, token_sum{}),
                {{0, -1.13313282807, -1.13289845307},
                 {1, -1.03174243094, -1.0316809075},
                 {2, -1.6484712707, -1.6477212707},
                 {3, 0.00019140625, -0.000875, gated},
                 {5, 0.323015669464, 0.321949263214},
                 {6, 0.566589851533, 0.566824226533},
                 {7, 2.24309453517, 2.24384453517}});
}

TEST_CASE("A-3PO: the old policy interpolated by staleness, PPO 0.2 / 0.2 times old / rollout") {
    auto const objective =
        make_objective(ppo_clip{.low = 0.2, .high = 0.2}, anchor_between{}, importance_weight{}, token_sum{});
    check_table(objective, {{0, -1.13314845307, -1.13314845307},
                            {1, -1.0317434075, -1.0317434075},
                            {2, -1.2, 0, clipped_high},
                            {3, -0.645648526428, -0.645648526428},
                            {5, 0.322824263214, 0.322824263214},
                            {6, 0.566574226533, 0.566574226533},
                            {7, 2.24084453517, 2.24084453517}});
    for (dtype const type : precisions) {
        answer const a = run(objective, eight_slots(), type);
        std::vector<double> const w = {1.06449445892, 1.01574770859, 1, 1, 0, 0.720272979955, 1.09828514031, 2.71828182846};
        for (std::size_t slot = 0; slot < 8; ++slot) {
            CHECK(near(a.weight[slot], w[slot], type));
        }
        // The ratio to the interpolated policy, by the loss without the weight.
        answer const ratio = run(make_objective(importance_gradient{}, anchor_between{}, token_sum{}), eight_slots(), type);
        std::vector<double> const r = {1.06449445892,  1.01574770859, 1.6487212707, 0.645648526428, 0,
                                       0.896394206635, 1.0317434075,  1.6487212707};
        for (std::size_t slot = 0; slot < 8; ++slot) {
            CHECK(near(ratio.loss[slot], slot < 4 ? -r[slot] : r[slot] / 2, type));
        }
    }
}

TEST_CASE("binary divergences at their edges, in both directions") {
    double const quarter = -16 - std::log(4.0);
    struct one {
        char const* name;
        double log_p, log_q, forward, backward, ratio;
    };
    for (one const& r : {one{"near-certain", -0x1p-16, -0x1p-15, 4.68216672273e-06, 5.89429423182e-06, 1.00001525891},
                         one{"rare", -16, quarter, 7.16055006633e-08, 4.5399665066e-08, 4},
                         one{"in the middle", -0.5, -0.75, 0.0361892859556, 0.0367153106002, 1.28402541669}}) {
        for (dtype const type : precisions) {
            double const step = type == dtype::f64 ? 2e-11 : 1e-4;
            INFO(r.name << (type == dtype::f64 ? " in double" : " in float"));
            auto const kpop = [&](double limit) {
                tokens t = tokens::row({r.log_p}, {r.log_p}, {1});
                t.rollout_log_prob = {r.log_q};
                return run(make_objective(policy_gradient{}, kpop_gate{limit}, importance_weight{}, token_sum{}), t, type)
                    .weight[0];
            };
            auto const dppo = [&](double anchor, double log_prob, double limit) {  // by KL(anchor || new)
                tokens const t = tokens::row({log_prob}, {anchor}, {log_prob > anchor ? 1.0 : -1.0});
                return run(make_objective(importance_gradient{}, kl_gate{limit}, token_sum{}), t, type).weight[0];
            };
            double const larger_one = std::max(r.forward, r.backward);
            CHECK(near(kpop(larger_one * (1 + step)), r.ratio, type));
            CHECK(kpop(larger_one * (1 - step)) == 0);
            CHECK(dppo(r.log_p, r.log_q, r.forward * (1 + step)) == 1);
            CHECK(dppo(r.log_p, r.log_q, r.forward * (1 - step)) == 0);
            CHECK(dppo(r.log_q, r.log_p, r.backward * (1 + step)) == 1);
            CHECK(dppo(r.log_q, r.log_p, r.backward * (1 - step)) == 0);
        }
    }
    for (dtype const type : precisions) {
        auto const kpop = [&](double old, double rollout, double limit) {
            tokens t = tokens::row({old}, {old}, {1});
            t.rollout_log_prob = {rollout};
            return run(make_objective(policy_gradient{}, kpop_gate{limit}, importance_weight{}, token_sum{}), t, type);
        };
        CHECK(kpop(-1, -1, 0).weight[0] == 1);
        CHECK(kpop(0, 0, 0).weight[0] == 1);  // both certain: no 0 * infinity
        answer const certain = kpop(0, -0.5, 1e30);
        CHECK(certain.flags[0] == gated);  // KL(rollout || old) is infinite
        CHECK(certain.gradient[0] == 0);
        CHECK(near(kpop(0, -0.5, support::inf).weight[0], 1.6487212707, type));
        auto const dppo = [&](double limit) {
            return run(make_objective(importance_gradient{}, kl_gate{limit}, token_sum{}), tokens::row({-0.5}, {0}, {-1}), type)
                .weight[0];
        };
        CHECK(dppo(0.5 + 1e-6) == 1);
        CHECK(dppo(0.5 - 1e-6) == 0);
    }
}

TEST_CASE("divergences over the three likeliest tokens and the rest") {
    double const q[] = {std::log(0.5), std::log(0.25), std::log(0.125)};
    double const p[] = {std::log(0.375), std::log(0.3125), std::log(0.0625)};
    top_k_divergence const d = divergence_over_top_k(q, p, 3);
    CHECK(near(d.total_variation, 0.1875, dtype::f64));
    CHECK(near(d.kl, 0.0880551483973, dtype::f64));
    CHECK(near(divergence_over_top_k(q, q, 3).kl, 0, dtype::f64, 1));
    // All of it: the rest is nothing, and what the rounding of the sum leaves does not count.
    double const whole[] = {std::log(0.7), std::log(0.2), std::log(0.1)};
    CHECK(near(divergence_over_top_k(whole, whole, 3).total_variation, 0, dtype::f64, 1));
}
