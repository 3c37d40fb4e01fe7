// SPDX-License-Identifier: Apache-2.0
/// @file Gradient estimates from samples of the rollout policy, as the library's loss makes them, and how wrong they are.
#pragma once

#include "problem.hpp"

#include <asyncrl/correction.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

/// Relative to the squared norm of the true gradient.
struct error {
    double squared_bias = 0;
    double variance = 0;

    [[nodiscard]] double mean_square() const { return squared_bias + variance; }
};

/// Calls visit(objective) with each estimator: the score of a token by its advantage, weighted by old / rollout or not.
template <typename Visit>
void for_each_estimator(Visit visit) {
    using namespace asyncrl;
    // [snippet: estimators]
    visit(make_objective(policy_gradient{}, token_mean{}));
    visit(make_objective(policy_gradient{}, importance_weight{}, token_mean{}));
    visit(make_objective(policy_gradient{}, tis{.cap = 2}, token_mean{}));
    visit(make_objective(policy_gradient{}, mis{.low = 0.5, .high = 5}, token_mean{}));
    // [snippet: end]
}
enum estimator : std::size_t { none, full_is, truncated, masked };
inline constexpr char const* estimator_names[] = {"none", "full IS", "TIS C=2", "MIS [0.5, 5]"};

/// What the loss multiplies each token's score by, for an advantage of 1.
template <typename Objective>
numbers coefficients(Objective const& objective, numbers const& log_policy, numbers const& log_rollout) {
    numbers const advantage = numbers::Ones(log_policy.size());
    numbers gradient(log_policy.size());
    asyncrl::token_batch tokens{.rows = 1, .tokens = log_policy.size()};
    tokens.log_prob = asyncrl::per_token(log_policy.data());
    tokens.old_log_prob = tokens.log_prob;  // one update from on-policy weights: only the sampler differs
    tokens.rollout_log_prob = asyncrl::per_token(log_rollout.data());
    tokens.advantage = asyncrl::per_token(advantage.data());
    asyncrl::workspace scratch(tokens);
    asyncrl::totals const totals = asyncrl::measure(objective, tokens, scratch);
    double const undo_mean = static_cast<double>(log_policy.size());
    asyncrl::policy_loss(objective, tokens, totals, asyncrl::per_token(gradient.data()), scratch, {.scale = undo_mean});
    return -gradient;
}

/// The exact error of the mean over `samples` tokens a ~ rollout of c(a) (r(a) - mean r) score(a). Each component is the sample
/// covariance of f = c score with the reward, whose mean and variance are textbook.
template <typename Objective>
error exact_error(Objective const& objective, problem const& p, numbers const& log_rollout) {
    constexpr double n = samples;
    numbers const log_policy = p.log_policy();
    numbers const policy = log_policy.exp();
    numbers const rollout = log_rollout.exp();
    numbers const c = coefficients(objective, log_policy, log_rollout);
    numbers const reward = p.rewards - mean(rollout, p.rewards);
    numbers const truth = p.gradient();
    error found;
    for (Eigen::Index v = 0; v < vocabulary; ++v) {
        numbers f = -policy[v] * c;  // score_v(a) = 1{a = v} - policy_v
        f[v] += c[v];
        f -= mean(rollout, f);
        double const covariance = mean(rollout, f * reward);
        double const fourth = mean(rollout, f.square() * reward.square());
        double const squares = mean(rollout, f.square()) * mean(rollout, reward.square());
        double const unbiased = fourth / n + (squares - (n - 2) * covariance * covariance) / (n * (n - 1));
        double const shrink = (n - 1) / n;  // the baseline is the batch's own mean
        found.squared_bias += std::pow(shrink * covariance - truth[v], 2);
        found.variance += shrink * shrink * unbiased;
    }
    double const scale = truth.square().sum();
    return {found.squared_bias / scale, found.variance / scale};
}

/// The same from `repeats` batches, each through the loss and back to the logits as in training.
template <typename Objective>
error sampled_error(Objective const& objective, problem const& p, numbers const& log_rollout, int repeats,
                    std::mt19937& random) {
    numbers const rollout = log_rollout.exp();
    std::vector<double> cumulative(vocabulary);
    std::partial_sum(rollout.begin(), rollout.end(), cumulative.begin());
    cumulative.back() = 1;
    numbers const log_policy = p.log_policy();

    std::vector<std::int32_t> action(samples);
    numbers x(samples), rollout_x(samples), advantage(samples), slope(samples);
    Eigen::ArrayXXd by_logit(vocabulary, samples);
    asyncrl::token_batch tokens{.rows = 1, .tokens = samples};
    tokens.log_prob = asyncrl::per_token(static_cast<double const*>(x.data()));
    tokens.old_log_prob = tokens.log_prob;
    tokens.rollout_log_prob = asyncrl::per_token(static_cast<double const*>(rollout_x.data()));
    tokens.advantage = asyncrl::per_token(static_cast<double const*>(advantage.data()));
    asyncrl::workspace scratch(tokens);
    // All samples share one row of logits, which are log-probs already: their log-sum-exp is 0.
    asyncrl::matrix const logits = asyncrl::row_major(log_policy.data(), samples, vocabulary, 0);
    double log_sum_exp = 0;
    asyncrl::log_prob_outputs saved;
    saved.log_sum_exp = {&log_sum_exp, asyncrl::dtype::f64, 0, 0};

    numbers sum = numbers::Zero(vocabulary);
    numbers squares = numbers::Zero(vocabulary);
    for (int repeat = 0; repeat < repeats; ++repeat) {
        for (Eigen::Index i = 0; i < samples; ++i) {
            double const u = std::ldexp(static_cast<double>(random()), -32);
            auto const a = std::upper_bound(cumulative.begin(), cumulative.end(), u) - cumulative.begin();
            action[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(a);
            x[i] = log_policy[a];
            rollout_x[i] = log_rollout[a];
            advantage[i] = p.rewards[a];
        }
        advantage -= advantage.mean();
        asyncrl::totals const totals = asyncrl::measure(objective, tokens, scratch);
        asyncrl::policy_loss(objective, tokens, totals, asyncrl::per_token(slope.data()), scratch);
        asyncrl::log_prob_gradient(logits, action.data(), saved, {.log_prob = asyncrl::per_token(slope.data())},
                                   asyncrl::row_major(by_logit.data(), samples, vocabulary));
        numbers const ascent = -by_logit.rowwise().sum();
        sum += ascent;
        squares += ascent.square();
    }
    numbers const average = sum / repeats;
    numbers const truth = p.gradient();
    double const scale = truth.square().sum();
    return {(average - truth).square().sum() / scale, (squares - sum * average).sum() / (repeats - 1) / scale};
}
