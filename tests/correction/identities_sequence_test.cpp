// SPDX-License-Identifier: Apache-2.0
/// Identities between couplings of the tokens of a sequence, and their gradients.
#include "support/random_tokens.hpp"

#include <cmath>

using namespace asyncrl;
using support::answer;
using support::check_agree;
using support::near;
using support::precisions;
using support::random_tokens;
using support::run;
using support::same_bits;
using support::tokens;

namespace {

constexpr ppo_clip ppo{.low = 0.2, .high = 0.2};

}  // namespace

TEST_CASE("for sequences of one token the three couplings are PPO by tokens") {
    tokens const t = random_tokens(300, 1);
    for (dtype const type : precisions) {
        answer const base = run(make_objective(ppo, token_mean{}), t, type);
        CHECK(base.report.counts.clipped_high > 5);
        check_agree(base, run(make_objective(ppo, sequence_ratio{}, token_mean{}), t, type), type);
        check_agree(base, run(make_objective(ppo, sequence_ratio{level::product}, token_mean{}), t, type), type);
        check_agree(base, run(make_objective(ppo, sequence_ratio_own_slope{}, token_mean{}), t, type), type);
        check_agree(base, run(make_objective(ppo, sequence_ratio_shared_slope{}, token_mean{}), t, type), type);
    }
}

TEST_CASE("GMPO with a huge limit is GSPO without a clip; with one advantage a sequence the three couplings agree") {
    tokens const t = random_tokens(40);
    for (dtype const type : precisions) {
        auto const of = [&](auto surrogate, auto coupling) {
            return run(make_objective(surrogate, coupling, sequence_mean_token_mean{}), t, type);
        };
        answer const base = of(importance_gradient{}, sequence_ratio{});
        CHECK(same_bits(base, of(importance_gradient{}, clipped_geometric_ratio{.limit = 1e30})));
        CHECK_FALSE(same_bits(base, of(importance_gradient{}, clipped_geometric_ratio{.limit = 0.1})));
        constexpr ppo_clip narrow{.low = 0.02, .high = 0.02};
        answer const clipped = of(narrow, sequence_ratio{});
        CHECK(clipped.report.counts.clipped_high > 5);
        check_agree(clipped, of(narrow, sequence_ratio_own_slope{}), type);
        check_agree(clipped, of(narrow, sequence_ratio_shared_slope{}), type);
    }
}

TEST_CASE("the gradient of a coupled loss is that of the sum over the sequence, by central differences") {
    tokens const t = random_tokens(3, 7, false);
    auto const check = [&](auto const& objective) {
        answer const a = run(objective, t, dtype::f64);
        double largest = 0;
        for (std::size_t i = 0; i < t.log_prob.size(); ++i) {
            constexpr double step = 1e-5;
            tokens up = t;
            tokens down = t;
            up.log_prob[i] += step;
            down.log_prob[i] -= step;
            double const slope =
                (run(objective, up, dtype::f64).report.sums.loss - run(objective, down, dtype::f64).report.sums.loss) /
                (2 * step);
            INFO("token " << i << ": " << a.gradient[i] << ", by differences " << slope);
            CHECK(std::abs(a.gradient[i] - slope) <= 1e-8);
            largest = std::max(largest, std::abs(slope));
        }
        CHECK(largest > 1e-3);
    };
    check(make_objective(importance_gradient{}, sequence_ratio{}, token_mean{}));
    check(make_objective(spo{.epsilon = 0.3}, sequence_ratio{level::product}, token_sum{}));
    check(make_objective(spo{.epsilon = 0.3}, sequence_ratio_shared_slope{}, sequence_mean_token_mean{}));
    check(make_objective(importance_gradient{}, sequence_ratio_shared_slope{level::product}, token_mean{}));
    check(make_objective(importance_gradient{}, clipped_geometric_ratio{.limit = 0.1}, sequence_mean_token_mean{}));
}

TEST_CASE("GSPO-token has each token's own advantage, and the slope of its own") {
    tokens const t = random_tokens(5, 6, false);
    for (dtype const type : precisions) {
        answer const a = run(make_objective(importance_gradient{}, sequence_ratio_own_slope{}, token_sum{}), t, type);
        for (std::size_t b = 0; b < 5; ++b) {
            double sum = 0;
            double n = 0;
            for (std::size_t i = 6 * b; i < 6 * b + 6; ++i) {
                sum += t.mask[i] != 0 ? t.log_prob[i] - t.old_log_prob[i] : 0;
                n += t.mask[i];
            }
            for (std::size_t i = 6 * b; i < 6 * b + 6; ++i) {
                double const loss = t.mask[i] != 0 ? -t.advantage[i] * std::exp(sum / n) : 0;
                CHECK(near(a.loss[i], loss, type));
                CHECK(near(a.gradient[i], loss, type));
            }
        }
    }
}
