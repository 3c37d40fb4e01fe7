// SPDX-License-Identifier: Apache-2.0
/// Reference values of surrogates of single tokens, ratio new / old. Computed with forty digits from the published formulas,
/// and their gradients checked against numerical differentiation there.
#include "support/eight.hpp"

using namespace asyncrl;
using support::check_table;

TEST_CASE("PPO clip 0.2 / 0.2") {
    check_table(make_objective(ppo_clip{.low = 0.2, .high = 0.2}, token_sum{}), {{0, -1.09828514031, -1.09828514031},
                                                                                 {1, -1.06449445892, -1.06449445892},
                                                                                 {2, -1.2, 0, clipped_high},
                                                                                 {3, -0.687289278791, -0.687289278791},
                                                                                 {5, 0.4, 0, clipped_low},
                                                                                 {6, 0.549142570154, 0.549142570154},
                                                                                 {7, 1.05850000831, 1.05850000831}});
}

TEST_CASE("clip-higher 0.2 / 0.28") {
    check_table(make_objective(ppo_clip{.low = 0.2, .high = 0.28}, token_sum{}), {{0, -1.09828514031, -1.09828514031},
                                                                                  {1, -1.06449445892, -1.06449445892},
                                                                                  {2, -1.28, 0, clipped_high},
                                                                                  {3, -0.687289278791, -0.687289278791},
                                                                                  {5, 0.4, 0, clipped_low},
                                                                                  {6, 0.549142570154, 0.549142570154},
                                                                                  {7, 1.05850000831, 1.05850000831}});
}

TEST_CASE("dual clip with cap 2, and delta clip at 2, which is the same") {
    std::vector<support::row> const table = {{0, -1.09828514031, -1.09828514031},
                                             {1, -1.06449445892, -1.06449445892},
                                             {2, -1.2, 0, clipped_high},
                                             {3, -0.687289278791, -0.687289278791},
                                             {5, 0.4, 0, clipped_low},
                                             {6, 0.549142570154, 0.549142570154},
                                             {7, 1, 0, capped}};
    check_table(make_objective(dual_clip{.low = 0.2, .high = 0.2, .cap = 2}, token_sum{}), table);
    check_table(make_objective(delta_clip{.low = 0.2, .high = 0.2, .delta = 2}, token_sum{}), table);
}

TEST_CASE("CISPO on [0, 1.28]") {
    check_table(make_objective(cispo{.low = 1, .high = 0.28}, token_sum{}), {{0, 1.23557078285, -1.09828514031},
                                                                             {1, 0.0332654518412, -1.06449445892},
                                                                             {2, 3.2, -1.28, capped},
                                                                             {3, 0.730244858715, -0.687289278791},
                                                                             {5, -0.739209241525, 0.303265329856},
                                                                             {6, -0.102964231904, 0.549142570154},
                                                                             {7, -1.6, 0.64, capped}});
}

TEST_CASE("SAPO with tau 1 / 1.05") {
    check_table(make_objective(sapo{.tau_positive = 1, .tau_negative = 1.05}, token_sum{}),
                {{0, -2.09820609738, -1.09563705469},
                 {1, -2.06447211263, -1.06338827531},
                 {2, -2.44730132007, -1.38221330025},
                 {3, -1.68981288338, -0.670757214349},
                 {5, 0.758397666429, 0.290683900455},
                 {6, 1.00147995443, 0.547683053549},
                 {7, 1.45459006356, 0.764167223892}});
}

TEST_CASE("SPO with epsilon 0.2") {
    // Where the gradient has turned round the token counts as beyond the bound on the side to which its advantage pushes.
    check_table(make_objective(spo{.epsilon = 0.2}, token_sum{}), {{0, -1.07413521829, -0.558559594742},
                                                                   {1, -1.05409562084, -0.721224488173},
                                                                   {2, -0.937448446178, 1.85505159535, clipped_high},
                                                                   {3, -0.442819290893, -1.76190290904},
                                                                   {5, 0.496787982039, -0.293362716497, clipped_low},
                                                                   {6, 0.561217531161, 0.819005342937},
                                                                   {7, 2.6181113047, 6.97022264262}});
}

TEST_CASE("ASPO 0.2 / 0.2 with caps 3 and 2; beyond a cap the loss is in score form") {
    check_table(make_objective(aspo{.low = 0.2, .high = 0.2, .cap_positive = 3, .cap_negative = 2}, token_sum{}),
                {{0, -0.91051036138, -0.91051036138},
                 {1, -0.939413062813, -0.939413062813},
                 {2, -0.833333333333, 0, clipped_high},
                 {3, -1.45499141462, -1.45499141462},
                 {5, 0.4, 0, clipped_low},
                 {6, 0.549142570154, 0.549142570154},
                 {7, -2.5, 1, capped}});
}

TEST_CASE("TOPR by the token's ratio with cap 1, whether told by advantage or by a score of the same sign") {
    std::vector<support::row> const table = {{0, 1.125, -1},
                                             {1, 0.03125, -1},
                                             {2, 2.5, -1},
                                             {3, 1.0625, -1},
                                             {5, -0.739209241525, 0.303265329856},
                                             {6, -0.09375, 0.5, capped},
                                             {7, -1.25, 0.5, capped}};
    check_table(make_objective(topr{.cap = 1}, token_sum{}), table);
    check_table(make_objective(topr_by_score{.cap = 1}, token_sum{}), table);
}

TEST_CASE("Kimi k1.5 with beta 0.1: the policy gradient and half of beta on the squared log-ratio") {
    check_table(make_objective(policy_gradient{}, squared_log_ratio_penalty{.coefficient = 0.1 / 2}, token_sum{}),
                {{0, 1.12543945313, -0.990625},
                 {1, 0.0314453125, -0.99375},
                 {2, 2.50703125, -0.9625},
                 {3, 1.06953125, -1.0375},
                 {5, -1.20625, 0.45},
                 {6, -0.093310546875, 0.509375},
                 {7, -1.221875, 0.575}});
}

TEST_CASE("a ratio to a given anchor equal to the old policy is the ratio to the old policy") {
    check_table(make_objective(ppo_clip{.low = 0.2, .high = 0.2}, anchor_given{}, token_sum{}),
                {{0, -1.09828514031, -1.09828514031},
                 {2, -1.2, 0, clipped_high},
                 {5, 0.4, 0, clipped_low},
                 {7, 1.05850000831, 1.05850000831}});
}
