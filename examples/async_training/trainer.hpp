// SPDX-License-Identifier: Apache-2.0
/// @file The training side: a warm start, then one GRPO step per batch with the library's loss.
#pragma once

#include "adam.hpp"
#include "options.hpp"
#include "policy.hpp"
#include "rollout.hpp"

#include <asyncrl/correction/mismatch.hpp>
#include <asyncrl/correction/objective.hpp>
#include <asyncrl/correction/policy_loss.hpp>
#include <asyncrl/staleness/unit.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

/// Calls use(objective) with the objective that the options name. A further correction is one more line.
template <typename Use>
auto with_objective(options const& o, Use&& use) {
    asyncrl::ppo_clip const clip{.low = o.clip_low, .high = o.clip_high};
    switch (o.weight) {
        case correction::tis:
            return use(asyncrl::make_objective(clip, asyncrl::tis{.cap = 2}, asyncrl::token_mean{}));
        case correction::mis:
            return use(asyncrl::make_objective(clip, asyncrl::mis{.low = 0.5, .high = 5}, asyncrl::token_mean{}));
        case correction::none:
            break;
    }
    return use(asyncrl::make_objective(clip, asyncrl::token_mean{}));
}

/// How much better each answer is than its group, in standard deviations of the group (GRPO, arXiv 2402.03300). 0 where all are
/// equally good: nothing to learn.
inline void group_relative_advantages(group const& answers, std::vector<float>& advantages) {
    auto const count = static_cast<float>(answers.size());
    float mean = 0;
    for (trajectory const& answer : answers) {
        mean += answer.reward / count;
    }
    float variance = 0;
    for (trajectory const& answer : answers) {
        variance += (answer.reward - mean) * (answer.reward - mean) / count;
    }
    for (trajectory const& answer : answers) {
        advantages.push_back(variance > 0 ? (answer.reward - mean) / std::sqrt(variance) : 0);
    }
}

/// The tokens of one optimizer step as columns, answer after answer without padding.
struct minibatch {
    std::vector<task::context> contexts;
    std::vector<std::uint8_t> tokens;
    std::vector<float> log_prob, old_log_prob, rollout_log_prob, gradient;
    std::vector<float> advantage;  ///< one per answer
    std::vector<std::int32_t> offsets{0};

    void append(group const& answers) {
        for (trajectory const& answer : answers) {
            append(answer.problem, answer.tokens, answer.length);
            rollout_log_prob.insert(rollout_log_prob.end(), answer.log_probs.begin(), answer.log_probs.begin() + answer.length);
        }
        group_relative_advantages(answers, advantage);
    }

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

    /// What the library sees. Computed when it is needed: the vectors may have moved.
    [[nodiscard]] asyncrl::token_batch columns() const {
        asyncrl::token_batch batch{.rows = static_cast<std::int64_t>(advantage.size()),
                                   .tokens = static_cast<std::int64_t>(tokens.size()),
                                   .offsets = offsets.data()};
        batch.log_prob = asyncrl::per_token(log_prob.data());
        batch.old_log_prob = asyncrl::per_token(old_log_prob.data());
        batch.rollout_log_prob = asyncrl::per_token(rollout_log_prob.data());
        batch.advantage = asyncrl::per_sequence(advantage.data());
        return batch;
    }
};

/// What one batch said.
struct step_report {
    double reward = 0;   ///< mean
    double entropy = 0;  ///< mean over tokens of the old policy's, in nats
    std::int64_t largest_staleness = 0;
    double staleness = 0;  ///< mean over units, in batches
    std::int64_t answers = 0;
    std::int64_t switched = 0;          ///< answers that more than one version wrote
    asyncrl::mismatch_report mismatch;  ///< old against rollout
    asyncrl::loss_report loss;          ///< of all optimizer steps
};

class trainer {
  public:
    using unit = asyncrl::taken_unit<std::unique_ptr<group>>;

    explicit trainer(options const& o)
        : options_(o),
          policy_(o.seed),
          optimizer_(policy<float>::parameter_count),
          scratch_(asyncrl::token_batch{.rows = std::int64_t{o.groups} * o.members, .tokens = task::max_tokens}) {}

    [[nodiscard]] policy<float> const& current() const { return policy_; }

    /// Teaches right answers until some are found by chance: without any reward there is nothing to reinforce.
    void warm_start() {
        constexpr int problems = 128;
        adam optimizer(policy<float>::parameter_count);
        random_stream random(options_.seed, stream::warm_start);
        for (int step = 0; step < options_.warm_start; ++step) {
            minibatch lesson;
            for (int i = 0; i < problems; ++i) {
                task::problem const problem = task::draw(random, false);
                task::answer const answer = task::solution(problem);
                auto const end = std::find(answer.begin(), answer.end(), task::end_token);
                lesson.append(problem, answer, static_cast<int>(end - answer.begin()) + 1);
            }
            policy_.forward(lesson.contexts, activations_);
            lesson.gradient.assign(lesson.tokens.size(), -1.0F / static_cast<float>(lesson.tokens.size()));
            descend(lesson, optimizer, 2e-3F);
        }
    }

    /// Trains on one batch, which it sorts by unit id so that nothing depends on who finished first.
    step_report step(std::span<unit> batch) {
        std::sort(batch.begin(), batch.end(), [](unit const& a, unit const& b) { return a.id < b.id; });
        step_report report;
        std::vector<minibatch> parts(static_cast<std::size_t>(options_.updates));
        for (std::size_t i = 0; i < batch.size(); ++i) {
            parts[i * parts.size() / batch.size()].append(*batch[i].handle);
            tell_origin(batch[i], report);
        }
        report.reward /= static_cast<double>(report.answers);
        report.staleness /= static_cast<double>(batch.size());
        for (minibatch& part : parts) {
            recompute_old_log_probs(part, report);
        }
        report.entropy /= static_cast<double>(report.mismatch.counts.tokens);
        for (minibatch& part : parts) {
            report.loss += update(part);
        }
        return report;
    }

  private:
    static void tell_origin(unit const& from, step_report& report) {
        report.staleness += static_cast<double>(from.staleness);
        report.largest_staleness = std::max(report.largest_staleness, from.staleness);
        for (trajectory const& answer : *from.handle) {
            report.reward += static_cast<double>(answer.reward);
            report.switched += answer.versions.switches() > 0 ? 1 : 0;
            ++report.answers;
        }
    }

    /// The trainer's own log-probs at the start of the step: their distance to the engine's is what corrections correct.
    void recompute_old_log_probs(minibatch& part, step_report& report) {
        forward(part, part.old_log_prob);
        auto const log_probs = activations_.log_probs.leftCols(static_cast<Eigen::Index>(part.tokens.size())).array();
        report.entropy -= static_cast<double>((log_probs * log_probs.exp()).sum());
        report.mismatch += asyncrl::mismatch(part.columns(), scratch_);
    }

    asyncrl::loss_report update(minibatch& part) {
        forward(part, part.log_prob);
        part.gradient.resize(part.tokens.size());
        asyncrl::loss_report const report = with_objective(options_, [&](auto const& objective) {
            asyncrl::token_batch const columns = part.columns();
            asyncrl::totals const totals = asyncrl::measure(objective, columns, scratch_);
            return asyncrl::policy_loss(objective, columns, totals, asyncrl::per_token(part.gradient.data()), scratch_);
        });
        descend(part, optimizer_, static_cast<float>(options_.learning_rate));
        return report;
    }

    void forward(minibatch const& part, std::vector<float>& log_prob) {
        policy_.forward(part.contexts, activations_);
        log_prob.resize(part.tokens.size());
        for (std::size_t i = 0; i < log_prob.size(); ++i) {
            log_prob[i] = activations_.log_probs(part.tokens[i], static_cast<Eigen::Index>(i));
        }
    }

    /// From the gradient by each token's log-prob, which follows the last forward(), to one optimizer step.
    void descend(minibatch const& part, adam& optimizer, float learning_rate) {
        by_logit_.setZero(activations_.log_probs.rows(), activations_.log_probs.cols());
        for (std::size_t i = 0; i < part.tokens.size(); ++i) {
            auto const column = static_cast<Eigen::Index>(i);
            by_logit_.col(column) = -part.gradient[i] * activations_.log_probs.col(column).array().exp();
            by_logit_(part.tokens[i], column) += part.gradient[i];
        }
        gradient_.setZero(policy_.parameters.size());
        policy_.backward(part.contexts, activations_, by_logit_, gradient_);
        optimizer.step(policy_.parameters, gradient_, learning_rate);
    }

    options options_;
    policy<float> policy_;
    adam optimizer_;
    policy<float>::activations activations_;
    policy<float>::matrix by_logit_;
    policy<float>::vector gradient_;
    asyncrl::workspace scratch_;
};
