// SPDX-License-Identifier: Apache-2.0
/// Identities between methods of single tokens, on random batches and on grids.
#include "support/random_tokens.hpp"

#include <cmath>

using namespace asyncrl;
using support::answer;
using support::check_agree;
using support::inf;
using support::near;
using support::precisions;
using support::random_tokens;
using support::run;
using support::same_bits;
using support::tokens;

namespace {

constexpr ppo_clip ppo{.low = 0.2, .high = 0.2};

}  // namespace

TEST_CASE("SAT at alpha = 1, and a dual clip with a huge cap, are PPO bit for bit") {
    tokens const t = random_tokens(40);
    for (dtype const type : precisions) {
        answer const base = run(make_objective(ppo, token_mean{}), t, type);
        CHECK(base.report.counts.clipped_high > 5);
        CHECK(base.report.counts.clipped_low > 5);
        CHECK(same_bits(base, run(make_objective(sat_clip{.quantile = {1, 1}}, token_mean{}), t, type)));
        CHECK(same_bits(base, run(make_objective(dual_clip{.cap = 1e30}, token_mean{}), t, type)));
        CHECK(same_bits(base, run(make_objective(delta_clip{.delta = 1e30}, token_mean{}), t, type)));
        CHECK_FALSE(same_bits(base, run(make_objective(sat_clip{}, token_mean{}), t, type)));
        CHECK_FALSE(same_bits(base, run(make_objective(dual_clip{.cap = 1.1}, token_mean{}), t, type)));
    }
}

TEST_CASE("weights and masks without a bound are the raw weight bit for bit; where old and rollout agree, none at all") {
    tokens const t = random_tokens(40);
    tokens same = t;
    same.rollout_log_prob = same.old_log_prob;
    for (dtype const type : precisions) {
        answer const raw = run(make_objective(ppo, importance_weight{}, token_mean{}), t, type);
        CHECK(same_bits(raw, run(make_objective(ppo, tis{.cap = 1e30}, token_mean{}), t, type)));
        CHECK(same_bits(raw, run(make_objective(ppo, mis{.low = 0, .high = inf}, token_mean{}), t, type)));
        CHECK(same_bits(raw, run(make_objective(ppo, kpop_gate{inf}, importance_weight{}, token_mean{}), t, type)));
        CHECK_FALSE(same_bits(raw, run(make_objective(ppo, kpop_gate{1e-3}, importance_weight{}, token_mean{}), t, type)));
        CHECK(same_bits(run(make_objective(ppo, token_mean{}), t, type),
                        run(make_objective(ppo, tis{.cap = 1e30}, token_mean{}), same, type)));
    }
}

TEST_CASE("DPPO's mask by total variation is PPO's clip, and DRPO is SPO, with epsilon = delta / anchor probability") {
    constexpr double delta = 0.03;
    for (int const anchor : {-128, -64, -20, -2, -1}) {
        std::vector<double> log_prob;
        std::vector<double> advantage;
        for (int d = -40; d <= 40 && anchor + d <= 0; ++d) {
            log_prob.insert(log_prob.end(), {(anchor + d) / 32.0, (anchor + d) / 32.0});
            advantage.insert(advantage.end(), {1, -1});
        }
        std::vector<double> const old(log_prob.size(), anchor / 32.0);
        tokens const t = tokens::row(log_prob, old, advantage);
        double const epsilon = delta / std::exp(anchor / 32.0);
        INFO("anchor " << anchor << " / 32");
        for (dtype const type : precisions) {
            double const low = std::min(epsilon, 1 - 1e-9);  // at 1 and beyond no ratio is below the bound
            answer const clip = run(make_objective(ppo_clip{.low = low, .high = epsilon}, token_sum{}), t, type);
            answer const mask = run(make_objective(importance_gradient{}, tv_gate{delta, delta}, token_sum{}), t, type);
            std::int64_t clipped = 0;
            for (std::size_t i = 0; i < t.log_prob.size(); ++i) {
                bool const beyond = (clip.flags[i] & (clipped_high | clipped_low)) != 0;
                clipped += beyond ? 1 : 0;
                CHECK(mask.flags[i] == (beyond ? gated : 0));
                CHECK(mask.gradient[i] == clip.gradient[i]);
            }
            CHECK(clipped > 0);
            answer const pulled = run(make_objective(drpo{.delta = delta}, token_sum{}), t, type);
            answer const simple = run(make_objective(spo{.epsilon = epsilon}, token_sum{}), t, type);
            for (std::size_t i = 0; i < t.log_prob.size(); ++i) {
                CHECK(near(pulled.loss[i], simple.loss[i], type, 1));
                CHECK(near(pulled.gradient[i], simple.gradient[i], type, 1));
                CHECK(pulled.flags[i] == simple.flags[i]);
            }
        }
    }
}

TEST_CASE("IPO masks all that DPPO masks, and more") {
    tokens const t = random_tokens(40);
    for (dtype const type : precisions) {
        answer const dppo =
            run(make_objective(importance_gradient{}, anchor_rollout{}, tv_gate{0.1, 0.1}, token_sum{}), t, type);
        answer const ipo = run(make_objective(importance_gradient{}, anchor_rollout{}, ipo_gate{0.1}, token_sum{}), t, type);
        CHECK(dppo.report.counts.gated > 5);
        CHECK(ipo.report.counts.gated > dppo.report.counts.gated);
        for (std::size_t i = 0; i < t.log_prob.size(); ++i) {
            CHECK(((dppo.flags[i] & gated) == 0 || (ipo.flags[i] & gated) != 0));
        }
    }
}

TEST_CASE("what a limit on binary KL keeps is an interval of the probability, each way and for the larger of both") {
    for (int const anchor : {-96, -40, -8, -2}) {
        std::vector<double> x;
        for (int i = -256; i < 0; ++i) {
            x.push_back(i / 64.0);
        }
        std::vector<double> const anchors(x.size(), anchor / 32.0);
        tokens t = tokens::row(x, x, std::vector<double>(x.size(), 1));
        t.rollout_log_prob = anchors;
        auto const changes = [&](answer const& a) {
            int count = 0;
            for (std::size_t i = 1; i < x.size(); ++i) {
                count += a.weight[i] != a.weight[i - 1] ? 1 : 0;
            }
            return count;
        };
        auto const binary = [](double log_p, double log_q) {
            double const p = std::exp(log_p);
            return p * (log_p - log_q) + (1 - p) * (std::log1p(-p) - std::log1p(-std::exp(log_q)));
        };
        for (dtype const type : precisions) {
            answer const kpop = run(make_objective(policy_gradient{}, kpop_gate{0.05}, token_sum{}), t, type);
            CHECK(changes(kpop) >= 1);
            CHECK(changes(kpop) <= 2);
            tokens outward = t;
            for (std::size_t i = 0; i < x.size(); ++i) {
                outward.advantage[i] = x[i] > anchors[i] ? 1 : -1;
            }
            auto const dppo_objective = make_objective(importance_gradient{}, anchor_rollout{}, kl_gate{0.05}, token_sum{});
            answer const dppo = run(dppo_objective, outward, type);
            CHECK(changes(dppo) >= 1);
            CHECK(changes(dppo) <= 2);
            for (std::size_t i = 0; i < x.size(); ++i) {
                INFO("anchor " << anchors[i] << ", x = " << x[i]);
                CHECK(kpop.weight[i] == (std::max(binary(x[i], anchors[i]), binary(anchors[i], x[i])) <= 0.05 ? 1 : 0));
                CHECK(dppo.weight[i] == (binary(anchors[i], x[i]) <= 0.05 ? 1 : 0));
            }
        }
    }
}

TEST_CASE("interpolated old policy: weight times ratio is new / rollout, whatever the staleness") {
    tokens const t = random_tokens(40);
    for (dtype const type : precisions) {
        answer const a =
            run(make_objective(importance_gradient{}, anchor_between{}, importance_weight{}, token_sum{}), t, type);
        answer const b = run(make_objective(importance_gradient{}, anchor_rollout{}, token_sum{}), t, type);
        answer const ratio = run(make_objective(importance_gradient{}, anchor_between{}, token_sum{}), t, type);
        check_agree(a, b, type);
        for (std::size_t i = 0; i < t.log_prob.size(); ++i) {
            double const s = std::max(1, static_cast<int>(t.policy_version) - t.version[i]);
            double const r = std::exp((t.log_prob[i] - t.rollout_log_prob[i]) / s);
            CHECK(near(ratio.loss[i], t.mask[i] != 0 ? -t.advantage[i] * r : 0, type));
        }
    }
}

TEST_CASE("on policy every surrogate has the gradient -A") {
    std::vector<double> const x = {-0.5, -1, -3, -0.0625};
    tokens t = tokens::row(x, x, {1, -1, 2, -0.5});
    t.score = t.advantage;
    auto const check = [&](auto surrogate) {
        for (dtype const type : precisions) {
            answer const a = run(make_objective(surrogate, token_sum{}), t, type);
            for (std::size_t i = 0; i < 4; ++i) {
                CHECK(near(a.gradient[i], -t.advantage[i], type));
                CHECK(a.flags[i] == 0);
            }
        }
    };
    check(policy_gradient{});
    check(importance_gradient{});
    check(ppo_clip{});
    check(dual_clip{});
    check(cispo{});
    check(topr{});
    check(topr_by_score{});
    check(aspo{});
    check(vespo{});
    check(spo{});
    check(drpo{});
    check(sapo{});
}

TEST_CASE("the order of the tokens of a batch changes neither SAT's quantile nor what becomes of a token") {
    tokens const t = random_tokens(40);
    tokens r = t;
    for (std::vector<double>* column : {&r.log_prob, &r.old_log_prob, &r.rollout_log_prob, &r.advantage}) {
        std::reverse(column->begin(), column->end());
    }
    std::reverse(r.mask.begin(), r.mask.end());
    for (dtype const type : precisions) {
        auto const objective = make_objective(sat_clip{}, anchor_rollout{}, token_sum{});
        answer const a = run(objective, t, type);
        answer b = run(objective, r, type);
        CHECK(a.sums.quantile == b.sums.quantile);
        CHECK(a.report.counts.tail == b.report.counts.tail);
        std::reverse(b.flags.begin(), b.flags.end());
        std::reverse(b.gradient.begin(), b.gradient.end());
        CHECK(a.flags == b.flags);
        CHECK(a.gradient == b.gradient);
    }
}
