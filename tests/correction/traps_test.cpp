// SPDX-License-Identifier: Apache-2.0
/// Mistakes that implementations of these losses have made, each with the smallest input that shows it; and edges.
#include "support/eight.hpp"

#include <cmath>
#include <limits>

using namespace asyncrl;
using support::answer;
using support::inf;
using support::near;
using support::precisions;
using support::run;
using support::tokens;

namespace {

constexpr ppo_clip ppo{.low = 0.2, .high = 0.2};
constexpr loss_options drop{.on_nonfinite = nonfinite::drop};

/// One token with this log-ratio, or this log(old / rollout).
[[nodiscard]] tokens with_log_ratio(double d, double advantage) {
    return tokens::row({0}, {-d}, {advantage});
}
[[nodiscard]] tokens with_log_mismatch(std::vector<double> const& e, double advantage = 1) {
    std::vector<double> const zeros(e.size(), 0);
    tokens t = tokens::row(zeros, zeros, std::vector<double>(e.size(), advantage));
    for (std::size_t i = 0; i < e.size(); ++i) {
        t.rollout_log_prob[i] = -e[i];
    }
    return t;
}

/// x as columns of this type hold it, and the next number of that type.
[[nodiscard]] double held(double x, dtype type) {
    return type == dtype::f64 ? x : static_cast<double>(static_cast<float>(x));
}
[[nodiscard]] double next(double x, double towards, dtype type) {
    return type == dtype::f64 ? std::nextafter(x, towards)
                              : static_cast<double>(std::nextafter(static_cast<float>(x), static_cast<float>(towards)));
}

}  // namespace

TEST_CASE("PPO at its bounds: the interval is closed, and an advantage of either zero is never flagged") {
    for (dtype const type : precisions) {
        auto const check = [&](auto const& objective, double d, double advantage, double loss, double gradient,
                               unsigned flags) {
            answer const a = run(objective, with_log_ratio(d, advantage), type);
            INFO("d = " << d << ", A = " << advantage << (type == dtype::f64 ? " in double" : " in float"));
            INFO("loss " << a.loss[0] << " of " << loss);
            CHECK(near(a.loss[0], loss, type));
            CHECK(near(a.gradient[0], gradient, type));
            CHECK((gradient != 0 || a.gradient[0] == 0));
            CHECK(a.flags[0] == flags);
        };
        auto const nothing_free = make_objective(ppo_clip{.low = 0, .high = 0}, token_sum{});
        check(nothing_free, 0, 1, -1, -1, 0);
        check(nothing_free, 0, -1, 1, 1, 0);

        double const at_bound = held(std::log1p(std::expm1(0.1875)), type);
        auto const bound = make_objective(ppo_clip{.low = 0.2, .high = std::expm1(0.1875)}, token_sum{});
        check(bound, at_bound, 1, -1.20623024942, -1.20623024942, 0);
        check(bound, next(at_bound, 1, type), 1, -1.20623024942, 0, clipped_high);

        auto const clip = make_objective(ppo, token_sum{});
        check(clip, 1, 0.0, 0, 0, 0);
        check(clip, 1, -0.0, 0, 0, 0);
        check(clip, 30, 1, -1.2, 0, clipped_high);
        check(clip, 30, -1, 1.06864745815e+13, 1.06864745815e+13, 0);
        check(clip, -30, -1, 0.8, 0, clipped_low);

        auto const clamped_at_20 = make_objective(ppo, log_ratio_clamp{.limit = 20}, token_sum{});
        check(clamped_at_20, 30, -1, 485165195.41, 0, clamped);
        check(clamped_at_20, 20, -1, 485165195.41, 485165195.41, 0);
        check(clamped_at_20, -30, 1, -std::exp(-20.0), 0, clamped);

        auto const dual = make_objective(dual_clip{.low = 0.2, .high = 0.2, .cap = 3}, token_sum{});
        check(dual, 30, -1, 3, 0, capped);
        auto const tied = make_objective(dual_clip{.low = 0.2, .high = 0.2, .cap = std::exp(0.75)}, token_sum{});
        double const at_cap = held(std::log(std::exp(0.75)), type);
        check(tied, at_cap, -1, 2.11700001661, 2.11700001661, 0);  // not half of it, as max and min would give
        check(tied, next(at_cap, 1, type), -1, 2.11700001661, 0, capped);
    }
}

TEST_CASE("IcePop's interval is closed, and weights of any size are rejected by selection") {
    for (dtype const type : precisions) {
        auto const objective = make_objective(ppo, mis{.low = std::exp(-0.6875), .high = std::exp(0.75)}, token_sum{});
        double const high = held(std::log(std::exp(0.75)), type);
        double const low = held(std::log(std::exp(-0.6875)), type);
        tokens const t = with_log_mismatch({high, next(high, 1, type), low, next(low, -1, type), 1000, -1000, support::nan});
        tokens not_scored = t;
        not_scored.rollout_log_prob[6] = inf;  // a NaN means that the engine gave no log-prob
        answer const a = run(objective, not_scored, type, drop);
        CHECK(near(a.weight[0], 2.11700001661, type));
        CHECK(near(a.weight[2], 0.502831577971, type));
        for (std::size_t i : {1U, 3U, 4U, 5U}) {
            CHECK(support::is_plus_zero(a.weight[i]));
            CHECK(a.gradient[i] == 0);
            CHECK(a.loss[i] == 0);
            CHECK(a.flags[i] == gated);
        }
        CHECK(a.weight[6] == 0);
        CHECK(a.gradient[6] == 0);
        CHECK(a.flags[6] == nonfinite_input);
        CHECK(run(objective, t, type).weight[6] == 1);
        CHECK(run(objective, t, type).flags[6] == unscored);
    }
}

TEST_CASE("a mask on the ratio of a sequence bounds no token: log-ratios of +1000 and -1000 pass, and only a cap bounds them") {
    tokens const t = with_log_mismatch({1000, -1000});
    for (dtype const type : precisions) {
        auto const gate = sequence_gate{.low = 0.5, .high = 5, .of = level::geometric};
        answer const raw = run(make_objective(ppo, gate, importance_weight{}, token_sum{}), t, type);
        CHECK(raw.report.counts.kept == 2);
        CHECK(near(raw.weight[0], 0x1p30, type));  // where mismatch ratios saturate
        CHECK(raw.weight[1] < 1e-30);
        answer const safe = run(make_objective(ppo, gate, tis{.cap = 2}, token_sum{}), t, type);
        CHECK(safe.weight[0] == 2);
        CHECK(safe.weight[1] < 1e-30);
    }
}

TEST_CASE("an infinite weight times a mask of 0 is 0, with the denominator of all") {
    tokens const t = with_log_mismatch({100, 0});
    for (dtype const type : precisions) {
        answer const a = run(make_objective(ppo, mis{}, token_mean{}), t, type);
        CHECK(a.report.sums.loss == -0.5);
        CHECK(a.gradient == std::vector<double>{0, -0.5});
        answer const b = run(make_objective(ppo, mismatch_gate{}, importance_weight{}, token_mean{}), t, type);
        CHECK(b.gradient == std::vector<double>{0, -0.5});
    }
}

TEST_CASE("OPSM goes by the sign of the sequence's mean advantage, and masks or keeps it whole") {
    for (dtype const type : precisions) {
        auto const weights = [&](std::vector<double> const& advantages) {
            tokens const t = tokens::row({-3, -3, -3}, {-1, -1, -1}, advantages);
            return run(make_objective(policy_gradient{}, opsm{.delta = 0.5}, token_sum{}), t, type).weight;
        };
        CHECK(weights({3, -1, -1}) == std::vector<double>(3, 1));
        CHECK(weights({-3, 1, 1}) == std::vector<double>(3, 0));
        CHECK(weights({1, -1, 0}) == std::vector<double>(3, 1));
    }
}

TEST_CASE("bounds of a sequence mask are on old / rollout, not mirrored") {
    for (dtype const type : precisions) {
        auto const keeps = [&](double e) {
            auto const objective = make_objective(ppo, sequence_gate{.low = 0.5, .high = 5, .of = level::product}, token_sum{});
            return run(objective, with_log_mismatch({e / 2, e / 2}), type).report.counts.kept == 2;
        };
        CHECK(keeps(std::log(4.0)));
        CHECK_FALSE(keeps(-std::log(4.0)));
    }
}

TEST_CASE("beyond its cap CISPO keeps the gradient -A cap, where a mask has none") {
    for (dtype const type : precisions) {
        for (double const advantage : {1.0, -1.0}) {
            answer const a = run(make_objective(cispo{.low = 1, .high = 4}, token_sum{}), with_log_ratio(3, advantage), type);
            CHECK(a.gradient[0] == -advantage * 5);  // the bound is 1 + high
        }
    }
}

TEST_CASE("TOPR told by score tapers other tokens than TOPR told by advantage") {
    tokens t = tokens::row({0, 0}, {-0.75, -0.75}, {1, -1});
    t.score = {-1, 1};
    for (dtype const type : precisions) {
        CHECK(near(run(make_objective(topr{.cap = 1.5}, token_sum{}), t, type).gradient[0], -1, type));
        CHECK(near(run(make_objective(topr{.cap = 1.5}, token_sum{}), t, type).gradient[1], 1.5, type));
        CHECK(near(run(make_objective(topr_by_score{.cap = 1.5}, token_sum{}), t, type).gradient[0], -1.5, type));
        CHECK(near(run(make_objective(topr_by_score{.cap = 1.5}, token_sum{}), t, type).gradient[1], 1, type));
    }
}

TEST_CASE("a clamp of the log-ratio leaves the gradient of a score form, whose ratio is a weight") {
    for (dtype const type : precisions) {
        auto const objective = make_objective(cispo{.low = 1, .high = 4}, log_ratio_clamp{.limit = 1}, token_sum{});
        answer const a = run(objective, with_log_ratio(3, 1), type);
        CHECK(near(a.gradient[0], -std::exp(1.0), type));
        CHECK(a.flags[0] == clamped);
    }
}

TEST_CASE("masks act first, then weights, then their mean over what is kept, in whatever order they are named") {
    tokens const t = with_log_mismatch({0.5, -0.25, 0.125, 3, -4});
    for (dtype const type : precisions) {
        double const mean = (std::exp(0.5) + std::exp(-0.25) + std::exp(0.125)) / 3;
        answer const a = run(make_objective(ppo, mis{}, normalised_weights{}, token_sum{}), t, type);
        answer const b =
            run(make_objective(normalised_weights{}, importance_weight{}, mismatch_gate{}, ppo, token_sum{}), t, type);
        for (answer const& x : {a, b}) {
            CHECK(near(x.weight[0], std::exp(0.5) / mean, type));
            CHECK(near(x.weight[1], std::exp(-0.25) / mean, type));
            CHECK(near(x.report.sums.weight, 3, type));
            CHECK(x.weight[3] == 0);
            CHECK(x.weight[4] == 0);
        }
    }
}

TEST_CASE("GSPO with a mean log-ratio of 100: the clip binds, and no other sequence changes a bit") {
    auto const objective = make_objective(ppo, sequence_ratio{}, token_sum{});
    auto const batch = [](double d, double advantage) {
        return tokens{{0, 2, 5},
                      {-1, -1, -1, -2, -0.5},
                      {-1 - d, -1 - d, -1.125, -1.75, -0.625},
                      {-1, -1, -1, -2, -0.5},
                      {advantage, advantage, 1, 1, 1}};
    };
    for (dtype const type : precisions) {
        answer const usual = run(objective, batch(0, 1), type);
        answer const up = run(objective, batch(100, 1), type);
        CHECK(near(up.loss[0], -1.2, type));
        CHECK(up.gradient[0] == 0);
        CHECK(up.flags[1] == clipped_high);
        answer const down = run(objective, batch(100, -1), type);
        CHECK(std::isfinite(down.loss[0]));
        CHECK(std::isfinite(down.gradient[0]));
        answer const clamped_down =
            run(make_objective(ppo, sequence_ratio{}, log_ratio_clamp{}, token_sum{}), batch(100, -1), type);
        CHECK(near(clamped_down.loss[0], 485165195.41, type));
        CHECK(clamped_down.gradient[0] == 0);
        CHECK(clamped_down.flags[0] == clamped);
        for (std::size_t i = 2; i < 5; ++i) {
            for (answer const* x : {&up, &down}) {
                CHECK(x->gradient[i] == usual.gradient[i]);
                CHECK(x->loss[i] == usual.loss[i]);
            }
        }
    }
}

TEST_CASE("k3 a hundred nats away: finite, and behind its clamp without a gradient") {
    tokens t = tokens::row({-100, -10}, {-100, -10}, {0, 0});
    t.reference_log_prob = {0, 0};
    for (dtype const type : precisions) {
        answer const a =
            run(make_objective(policy_gradient{}, k3_penalty{.coefficient = 0.1, .clamp = 10}, token_sum{}), t, type);
        CHECK(near(a.loss[0], 1, type));
        CHECK(a.gradient[0] == 0);
        answer const b = run(make_objective(policy_gradient{}, k3_penalty{.coefficient = 1}, token_sum{}), t, type);
        CHECK(std::isfinite(b.loss[0]));
        CHECK(std::isfinite(b.gradient[0]));
        CHECK(near(b.loss[1], std::exp(10.0) - 11, type));
        CHECK(near(b.gradient[1], 1 - std::exp(10.0), type));
    }
}

TEST_CASE("three hundred tokens: the product of their ratios leaves float, their geometric mean does not") {
    auto const weight = [](double e, auto part, dtype type) {
        return run(make_objective(ppo, part, token_sum{}), with_log_mismatch(std::vector<double>(300, e)), type).weight[299];
    };
    for (dtype const type : precisions) {
        double const product = weight(std::log(0.7), sequence_tis{.cap = 2, .of = level::product}, type);
        CHECK((type == dtype::f64 ? near(product, std::pow(0.7, 300), type) : product == 0));
        CHECK(near(weight(std::log(0.7), sequence_tis{.cap = 2, .of = level::geometric}, type), 0.7, type));
        CHECK(near(weight(0.0048828125, sequence_tis{.cap = 9, .of = level::product}, type), std::exp(1.46484375), type));
        CHECK(weight(0.005, sequence_gate{.low = 0, .high = 3, .of = level::product}, type) == 0);
        CHECK(weight(0.005, sequence_gate{.low = 0, .high = 3, .of = level::geometric}, type) == 1);
        CHECK(weight(10, sequence_tis{.cap = 2, .of = level::product}, type) == 2);  // e^3000
    }
}

TEST_CASE("the advantage of a sequence is not averaged over padding") {
    tokens t = tokens::row({0, 0, 0, 0}, {0, 0, 0, 0}, {1, 1, 10, 10});
    t.mask = {1, 1, 0, 0};
    for (dtype const type : precisions) {
        answer const a = run(make_objective(ppo, sequence_ratio{}, sequence_mean_token_mean{}), t, type);
        CHECK(a.report.sums.loss == -1);
        CHECK(a.gradient == std::vector<double>{-0.5, -0.5, 0, 0});
    }
}

TEST_CASE("a sampler that kept nine tenths of the mass biases every weight, unless it is told") {
    tokens t = with_log_mismatch({std::log(0.9), std::log(0.9)});
    t.log_kept_mass = {std::log(0.9), std::log(0.9)};
    for (dtype const type : precisions) {
        CHECK(near(run(make_objective(ppo, importance_weight{}, token_sum{}), t, type).weight[0], 0.9, type));
        CHECK(near(run(make_objective(ppo, importance_weight{}, kept_mass{}, token_sum{}), t, type).weight[0], 1, type));
    }
}

TEST_CASE("a token without a rollout log-prob adds nothing to the ratio of its sequence") {
    tokens t = with_log_mismatch({0.25, 7, 0.5});
    t.rollout_log_prob[1] = support::nan;
    for (dtype const type : precisions) {
        answer const a = run(make_objective(ppo, sequence_tis{.cap = 9, .of = level::product}, token_sum{}), t, type);
        CHECK(near(a.weight[1], std::exp(0.75), type));
        CHECK(a.flags[1] == unscored);
        answer const b = run(make_objective(policy_gradient{}, opsm{.delta = 0.5}, token_sum{}), t, type);
        CHECK(b.report.counts.unscored == 1);
        CHECK(b.report.counts.kept == 3);
    }
}

TEST_CASE("the old policy is interpolated by 1 - 1 / staleness, and is the rollout policy where that is not known") {
    tokens t = tokens::row(std::vector<double>(6, -1.2), std::vector<double>(6, 0), std::vector<double>(6, 1));
    t.rollout_log_prob.assign(6, -2);
    t.old_log_prob.clear();
    t.version = {10, 9, 8, 6, -1, 11};
    t.policy_version = 10;
    std::vector<double> const share = {0, 0, 0.5, 0.75, 0, 0};
    for (dtype const type : precisions) {
        answer const a = run(make_objective(ppo, anchor_between{}, importance_weight{}, token_sum{}), t, type);
        answer const b = run(make_objective(ppo, anchor_between{}, staleness_gate{2}, token_sum{}), t, type);
        for (std::size_t i = 0; i < 6; ++i) {
            CHECK(near(a.weight[i], std::exp(share[i] * 0.8), type, 1));
            CHECK(b.weight[i] == (i == 3 ? 0 : 1));
        }
    }
}

TEST_CASE("a rollout policy that is counted twice on purpose is counted twice") {
    tokens t = tokens::row({-1.2}, {-1.35}, {-1});
    t.rollout_log_prob = {-1.5};
    for (dtype const type : precisions) {
        auto const once = make_objective(ppo, anchor_rollout{}, token_sum{});
        auto const twice = make_objective(ppo, anchor_rollout{}, importance_weight{}, count_twice{}, token_sum{});
        CHECK(near(run(once, t, type).loss[0], std::exp(0.3), type));
        CHECK(near(run(twice, t, type).loss[0], std::exp(0.15) * std::exp(0.3), type));
    }
}
