// SPDX-License-Identifier: Apache-2.0
/// What ratios say about the distance of two policies, on a softmax over 100 actions whose total variation is known; and what
/// a weight does to a clipped loss.
#include <asyncrl/correction/mismatch.hpp>

#include "support/eight.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

using namespace asyncrl;
using Catch::Matchers::WithinAbs;
using support::answer;
using support::precisions;
using support::run;
using support::tokens;

namespace {

using numbers = std::vector<double>;
constexpr std::size_t actions = 100;

double uniform(std::mt19937& random) {
    return static_cast<double>(random()) * 0x1p-32;
}
/// Nearly normal, and the same with any standard library.
double bell(std::mt19937& random) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) {
        sum += uniform(random);
    }
    return sum;
}

numbers softmax(numbers logits) {
    double total = 0;
    for (double& x : logits) {
        x = std::exp(x);
        total += x;
    }
    for (double& x : logits) {
        x /= total;
    }
    return logits;
}

/// A rollout policy, and the trainer's, whose logits are `noise` away.
struct policies {
    numbers rollout, trained;

    policies(unsigned seed, double noise) {
        std::mt19937 random(seed);
        numbers logits(actions);
        std::generate(logits.begin(), logits.end(), [&] { return 2 * bell(random); });
        rollout = softmax(logits);
        for (double& x : logits) {
            x += noise * bell(random);
        }
        trained = softmax(logits);
    }
};

double half_l1(numbers const& p, numbers const& q) {
    double sum = 0;
    for (std::size_t a = 0; a < p.size(); ++a) {
        sum += std::abs(p[a] - q[a]) / 2;
    }
    return sum;
}

numbers logs(numbers p) {
    std::transform(p.begin(), p.end(), p.begin(), [](double x) { return std::log(x); });
    return p;
}

/// Every action as one token of a batch.
tokens each_action(numbers const& trained, numbers const& rollout) {
    tokens t = tokens::row(logs(trained), logs(trained), numbers(trained.size(), 1));
    t.rollout_log_prob = logs(rollout);
    return t;
}

/// Half of E |w - 1| over `sampler`.
double half_deviation(numbers const& sampler, numbers const& w) {
    double sum = 0;
    for (std::size_t a = 0; a < w.size(); ++a) {
        sum += sampler[a] * std::abs(w[a] - 1) / 2;
    }
    return sum;
}

double precision_of(dtype type) {
    return type == dtype::f64 ? 1e-13 : 1e-6;
}

auto const weighted = make_objective(policy_gradient{}, importance_weight{}, token_sum{});

}  // namespace

TEST_CASE("half the mean |w - 1| under the rollout policy is the total variation") {
    for (unsigned seed : {1U, 2U, 3U, 4U}) {
        for (double const noise : {0.0, 0.01, 0.3, 2.0}) {
            policies const p(seed, noise);
            double const distance = half_l1(p.rollout, p.trained);
            CHECK((distance >= 0.02 * noise && distance <= 0.5 * noise));
            for (dtype const type : precisions) {
                numbers const w = run(weighted, each_action(p.trained, p.rollout), type).weight;
                CHECK_THAT(half_deviation(p.rollout, w), WithinAbs(distance, precision_of(type)));
            }
        }
    }
}

TEST_CASE("the mismatch report gives it exactly where each action occurs as often as the rollout policy says") {
    std::mt19937 random(5);
    std::vector<int> times(actions, 1);
    for (std::size_t rest = actions; rest < 4096; ++rest) {
        ++times[static_cast<std::size_t>(static_cast<double>(actions) * std::pow(uniform(random), 3))];
    }
    numbers const trained = policies(6, 0).trained;
    numbers rollout, rollout_column, trained_column;
    for (std::size_t a = 0; a < actions; ++a) {
        rollout.push_back(times[a] / 4096.0);
        rollout_column.insert(rollout_column.end(), static_cast<std::size_t>(times[a]), std::log(rollout[a]));
        trained_column.insert(trained_column.end(), static_cast<std::size_t>(times[a]), std::log(trained[a]));
    }
    for (dtype const type : precisions) {
        tokens t = tokens::row(trained_column, trained_column, trained_column);
        t.rollout_log_prob = rollout_column;
        support::stored const s(t, type);
        workspace scratch(s.batch);
        mismatch_report const report = mismatch(s.batch, scratch);
        CHECK(report.counts.tokens == 4096);
        CHECK_THAT(report.mean(&mismatch_report::sum_range::total_variation),
                   WithinAbs(half_l1(rollout, trained), precision_of(type)));
    }
}

TEST_CASE("under a truncated support it is not, unless the kept mass is given") {
    // The sampler draws from the likeliest actions alone and reports what it drew from; the trainer's policy is whole.
    double const noise = GENERATE(0.0, 0.1);
    policies const p(7, noise);
    numbers sorted = p.rollout;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    numbers whole, trained;  // the rollout policy before the truncation, and the trainer's, on the support
    double outside = 0;      // of the support: what the two differ there
    for (std::size_t a = 0; a < actions; ++a) {
        if (p.rollout[a] >= sorted[30]) {
            whole.push_back(p.rollout[a]);
            trained.push_back(p.trained[a]);
        } else {
            outside += std::abs(p.rollout[a] - p.trained[a]) / 2;
        }
    }
    double const kept = std::accumulate(whole.begin(), whole.end(), 0.0);
    double const trained_there = std::accumulate(trained.begin(), trained.end(), 0.0);
    CHECK((kept > 0.6 && kept < 0.97));
    numbers sampler = whole;
    for (double& x : sampler) {
        x /= kept;
    }
    for (dtype const type : precisions) {
        tokens t = each_action(trained, sampler);
        double const plain = half_deviation(sampler, run(weighted, t, type).weight);
        // It lacks half of what the trainer's policy has where nothing is drawn, and is no distance of the whole policies.
        double const of_the_sampler = half_l1(sampler, trained) + (1 - trained_there) / 2;
        CHECK_THAT(plain, WithinAbs(of_the_sampler - (1 - trained_there) / 2, precision_of(type)));
        CHECK(std::abs(plain - half_l1(p.rollout, p.trained)) > 0.01);
        CHECK(std::abs(plain - of_the_sampler) > 0.01);

        t.log_kept_mass.assign(whole.size(), std::log(kept));
        auto const told = make_objective(policy_gradient{}, importance_weight{}, kept_mass{}, token_sum{});
        double const corrected = kept * half_deviation(sampler, run(told, t, type).weight);
        CHECK_THAT(corrected + outside, WithinAbs(half_l1(p.rollout, p.trained), precision_of(type)));
    }
}

TEST_CASE("a clip that stops none of all the actions bounds the total variation by half its width") {
    int inside = 0;
    int outside = 0;
    for (double const delta : {0.05, 0.2, 0.5}) {
        auto const clip = make_objective(ppo_clip{.low = delta, .high = delta}, token_sum{});
        for (unsigned seed = 1; seed <= 40; ++seed) {
            policies const p(seed, delta * (seed % 2 == 0 ? 0.25 : 1.0));
            tokens t = tokens::row(logs(p.trained), logs(p.rollout), {});
            for (std::size_t a = 0; a < actions; ++a) {
                t.advantage.push_back(p.trained[a] > p.rollout[a] ? 1 : -1);  // each ratio has moved the way it was pushed
            }
            loss_report const report = run(clip, t, dtype::f64).report;
            std::int64_t beyond = 0;
            for (std::size_t a = 0; a < actions; ++a) {
                beyond += std::abs(p.trained[a] / p.rollout[a] - 1) > delta ? 1 : 0;
            }
            CHECK(report.counts.clipped_high + report.counts.clipped_low == beyond);
            if (beyond == 0) {
                ++inside;
                CHECK(half_l1(p.rollout, p.trained) <= delta / 2);
            } else {
                ++outside;
            }
        }
        // It is tight: half of the mass up by delta, the other half down.
        tokens const even = tokens::row(logs({(1 + delta) / 2, (1 - delta) / 2}), logs({0.5, 0.5}), {1, -1});
        double const wider = delta + 1e-12;
        auto const fits = make_objective(ppo_clip{.low = wider, .high = wider}, token_sum{});
        CHECK(run(fits, even, dtype::f64).flags == std::vector<std::uint16_t>{0, 0});
        CHECK_THAT(half_l1({(1 + delta) / 2, (1 - delta) / 2}, {0.5, 0.5}), WithinAbs(delta / 2, 1e-15));
        // And it is about all actions: where the sampled one has not moved, the others may be anywhere.
        CHECK(half_l1({0.5, 0.499, 0.001}, {0.5, 0.001, 0.499}) > delta / 2 + 0.2);
        CHECK(run(clip, tokens::row({std::log(0.5)}, {std::log(0.5)}, {1}), dtype::f64).flags[0] == 0);
    }
    CHECK(inside > 20);
    CHECK(outside > 20);
}

TEST_CASE("the sampled total variation lies within its standard error of the exact one") {
    constexpr std::size_t drawn = 4000;
    constexpr int runs = 60;
    policies const p(8, 0.5);
    double const exact = half_l1(p.rollout, p.trained);
    double second = 0;
    for (std::size_t a = 0; a < actions; ++a) {
        second += p.rollout[a] * std::pow((p.trained[a] / p.rollout[a] - 1) / 2, 2);
    }
    double const standard_error = std::sqrt((second - exact * exact) / drawn);
    numbers cumulative(actions);
    std::partial_sum(p.rollout.begin(), p.rollout.end(), cumulative.begin());
    cumulative.back() = 1;
    std::mt19937 random(9);
    double squares = 0;
    for (int i = 0; i < runs; ++i) {
        numbers trained, rollout;
        for (std::size_t n = 0; n < drawn; ++n) {
            auto const a = static_cast<std::size_t>(std::upper_bound(cumulative.begin(), cumulative.end(), uniform(random)) -
                                                    cumulative.begin());
            trained.push_back(p.trained[a]);
            rollout.push_back(p.rollout[a]);
        }
        support::stored const s(each_action(trained, rollout), i % 2 == 0 ? dtype::f64 : dtype::f32);
        workspace scratch(s.batch);
        double const sampled = mismatch(s.batch, scratch).mean(&mismatch_report::sum_range::total_variation);
        double const errors = (sampled - exact) / standard_error;
        CHECK(std::abs(errors) < 4.5);
        squares += errors * errors / runs;
    }
    CHECK((squares > 0.5 && squares < 1.7));  // 1 within five standard deviations, sqrt(2 / runs) each
}

TEST_CASE("a weight times the clipped loss is the clipped loss of the weighted advantage, flags and values to 2 ulp") {
    std::mt19937 random(10);
    ppo_clip const clip{.low = 0.2, .high = 0.28};
    auto const outside = make_objective(clip, given_weight{}, token_sum{});
    auto const inside = make_objective(clip, token_sum{});
    auto const capped_outside = make_objective(clip, tis{.cap = 2}, token_sum{});
    auto const narrow = [](double x) { return static_cast<double>(static_cast<float>(x)); };
    for (dtype const type : precisions) {
        double const ulp = type == dtype::f64 ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
        auto const same = [&](double a, double b) {
            int exponent = 0;
            std::frexp(a, &exponent);
            return std::abs(a - b) <= 2 * std::ldexp(ulp, exponent - 1) || (a == 0 && b == 0);
        };
        tokens t = tokens::row({}, {}, {});
        for (int i = 0; i < 3000; ++i) {
            t.old_log_prob.push_back(narrow(-3 * uniform(random)));
            t.log_prob.push_back(narrow(t.old_log_prob.back() + bell(random) / 2));
            t.rollout_log_prob.push_back(narrow(t.old_log_prob.back() + bell(random)));
            t.advantage.push_back(narrow(bell(random)));
        }
        t.offsets = {0, 3000};
        answer const by_ratio = run(capped_outside, t, type);
        for (auto const& weights : {by_ratio.weight, numbers(3000, 0.375), numbers(3000, 1), numbers(3000, 0)}) {
            tokens pulled_in = t;
            for (std::size_t i = 0; i < 3000; ++i) {
                double const product = weights[i] * t.advantage[i];
                pulled_in.advantage[i] = type == dtype::f64 ? product : narrow(product);
            }
            support::stored s(t, type);
            std::vector<float> const single(weights.begin(), weights.end());
            s.batch.weight = type == dtype::f64 ? per_token(weights.data()) : per_token(single.data());
            workspace scratch(s.batch);
            support::outputs out(3000);
            policy_loss(outside, s.batch, measure(outside, s.batch, scratch), out.in(type), scratch);
            answer const expected = run(inside, pulled_in, type);
            numbers const gradient = out.read(type, 0);
            numbers const loss = out.read(type, 1);
            bool const vanishes = weights[0] == 0;  // an advantage of 0 has no flags
            int clipped = 0;
            for (std::size_t i = 0; i < 3000; ++i) {
                INFO("weight " << weights[i] << ", advantage " << t.advantage[i] << ", loss " << loss[i]);
                CHECK(same(loss[i], expected.loss[i]));
                CHECK(same(gradient[i], expected.gradient[i]));
                CHECK((vanishes || out.flags[i] == expected.flags[i]));
                clipped += (out.flags[i] & (clipped_high | clipped_low)) != 0 ? 1 : 0;
            }
            CHECK(clipped > 500);
            CHECK((!vanishes || std::all_of(loss.begin(), loss.end(), [](double x) { return x == 0; })));
        }
        for (std::size_t i = 0; i < 3000; ++i) {  // TIS is that weight
            CHECK((by_ratio.weight[i] >= 0 && by_ratio.weight[i] <= 2));
        }
    }
}

TEST_CASE("truncated weights raise the second moment of the gradient by their cap squared at most; raw ones by more") {
    bool raw_exceeds = false;
    for (unsigned seed = 1; seed <= 30; ++seed) {
        policies const p(seed, 2);
        std::mt19937 random(seed);
        tokens t = each_action(p.trained, p.rollout);
        std::generate(t.advantage.begin(), t.advantage.end(), [&] { return bell(random); });
        for (dtype const type : precisions) {
            auto const second_moment = [&](auto const& objective) {
                numbers const g = run(objective, t, type).gradient;
                double sum = 0;
                for (std::size_t a = 0; a < actions; ++a) {
                    sum += p.rollout[a] * g[a] * g[a];
                }
                return sum;
            };
            double const unweighted = second_moment(make_objective(policy_gradient{}, token_sum{}));
            for (double const cap : {0.5, 1.0, 2.0}) {
                double const bound = cap * cap * unweighted * (1 + 1e-6);
                CHECK(second_moment(make_objective(policy_gradient{}, tis{cap}, token_sum{})) <= bound);
                raw_exceeds = raw_exceeds || second_moment(weighted) > bound;
            }
        }
    }
    CHECK(raw_exceeds);
}
