// SPDX-License-Identifier: Apache-2.0
/// @file Tokens as columns, the optimizer step on them, and the supervised warm start.
#pragma once

#include "adam.hpp"
#include "policy.hpp"
#include "random.hpp"
#include "task.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

/// The tokens of one optimizer step as columns, answer after answer without padding.
struct minibatch {
    std::vector<task::context> contexts;
    std::vector<std::uint8_t> tokens;
    std::vector<float> log_prob, old_log_prob, rollout_log_prob;
    std::vector<float> gradient;           ///< of the loss, by the log-prob of each token
    std::vector<float> advantage;          ///< one per answer
    std::vector<std::int32_t> offsets{0};  ///< where each answer begins, and the end

    void append(task::problem const& problem, task::answer const& answer, int length) {
        task::context context = task::prompt(problem);
        for (int position = 0; position < length; ++position) {
            contexts.push_back(context);
            tokens.push_back(answer[static_cast<std::size_t>(position)]);
            if (position + 1 < length) {
                task::append(context, position, tokens.back());
            }
        }
        offsets.push_back(static_cast<std::int32_t>(tokens.size()));
    }
};

/// The policy being trained, with its optimizer.
class learner {
  public:
    explicit learner(policy<float> start) : policy_(std::move(start)), optimizer_(policy<float>::parameter_count) {}

    [[nodiscard]] policy<float> const& current() const { return policy_; }

    /// Writes the log-prob of each token. Returns those of all that might stand in its place, one column per token.
    auto forward(minibatch const& part, std::vector<float>& log_prob) {
        auto const columns = static_cast<Eigen::Index>(part.tokens.size());
        policy_.forward(part.contexts, activations_);
        log_prob.resize(part.tokens.size());
        for (Eigen::Index column = 0; column < columns; ++column) {
            log_prob[static_cast<std::size_t>(column)] =
                activations_.log_probs(part.tokens[static_cast<std::size_t>(column)], column);
        }
        return activations_.log_probs.leftCols(columns);
    }

    /// The gradient by all parameters, from part.gradient. Comes after forward() of the same part.
    policy<float>::vector& gradient_of(minibatch const& part) {
        by_logit_.setZero(activations_.log_probs.rows(), activations_.log_probs.cols());
        for (std::size_t i = 0; i < part.tokens.size(); ++i) {
            auto const column = static_cast<Eigen::Index>(i);
            by_logit_.col(column) = -part.gradient[i] * activations_.log_probs.col(column).array().exp();
            by_logit_(part.tokens[i], column) += part.gradient[i];
        }
        gradient_.setZero(policy_.parameters.size());
        policy_.backward(part.contexts, activations_, by_logit_, gradient_);
        return gradient_;
    }

    /// One optimizer step along part.gradient. Comes after forward() of the same part.
    void descend(minibatch const& part, float learning_rate) {
        optimizer_.step(policy_.parameters, gradient_of(part), learning_rate);
    }

  private:
    policy<float> policy_;
    adam optimizer_;
    policy<float>::activations activations_;
    policy<float>::matrix by_logit_;
    policy<float>::vector gradient_;
};

/// A policy that was taught right answers until it finds some by chance: without any reward there is nothing to reinforce.
inline policy<float> warm_start(std::uint64_t seed, int steps) {
    constexpr int problems = 128;
    constexpr float learning_rate = 2e-3F;
    learner pupil{policy<float>(seed)};
    random_stream random(seed, stream::warm_start);
    for (int step = 0; step < steps; ++step) {
        minibatch lesson;
        for (int i = 0; i < problems; ++i) {
            task::problem const problem = task::draw(random, false);
            task::answer const answer = task::solution(problem);
            auto const end = std::find(answer.begin(), answer.end(), task::end_token);
            lesson.append(problem, answer, static_cast<int>(end - answer.begin()) + 1);
        }
        pupil.forward(lesson, lesson.log_prob);
        lesson.gradient.assign(lesson.tokens.size(), -1.0F / static_cast<float>(lesson.tokens.size()));  // of the cross entropy
        pupil.descend(lesson, learning_rate);
    }
    return pupil.current();
}
