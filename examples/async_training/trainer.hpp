// SPDX-License-Identifier: Apache-2.0
/// @file The training side: one GRPO step per batch, with the library's loss.
#pragma once

#include "learner.hpp"
#include "objectives.hpp"
#include "options.hpp"
#include "rollout.hpp"

#include <asyncrl/correction/mismatch.hpp>
#include <asyncrl/correction/policy_loss.hpp>
#include <asyncrl/staleness/unit.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

/// How much better each answer is than its group, in standard deviations of the group (GRPO, arXiv 2402.03300). 0 where all are
/// equally good: nothing to learn.
inline void append_advantages(group const& answers, std::vector<float>& advantage) {
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
        advantage.push_back(variance > 0 ? (answer.reward - mean) / std::sqrt(variance) : 0);
    }
}

inline void append(group const& answers, minibatch& part) {
    for (trajectory const& answer : answers) {
        part.append(answer.problem, answer.tokens, answer.length);
        part.rollout_log_prob.insert(part.rollout_log_prob.end(), answer.log_probs.begin(),
                                     answer.log_probs.begin() + answer.length);
    }
    append_advantages(answers, part.advantage);
}

/// What the library sees of a minibatch whose columns are complete.
inline asyncrl::token_batch columns_of(minibatch const& part) {
    asyncrl::token_batch batch{.rows = static_cast<std::int64_t>(part.advantage.size()),
                               .tokens = static_cast<std::int64_t>(part.tokens.size()),
                               .offsets = part.offsets.data()};
    batch.log_prob = asyncrl::per_token(part.log_prob.data());
    batch.old_log_prob = asyncrl::per_token(part.old_log_prob.data());
    batch.rollout_log_prob = asyncrl::per_token(part.rollout_log_prob.data());
    batch.advantage = asyncrl::per_sequence(part.advantage.data());
    return batch;
}

/// What one batch said.
struct step_report {
    double reward = 0;                   ///< mean over answers
    double entropy = 0;                  ///< of the old policy, mean over tokens, in nats
    double staleness = 0;                ///< mean over units, in batches
    std::int64_t largest_staleness = 0;  ///< of a unit
    std::int64_t answers = 0;
    std::int64_t switched = 0;            ///< answers that more than one version wrote
    asyncrl::mismatch_report mismatch{};  ///< old against rollout
    asyncrl::loss_report loss{};          ///< of all optimizer steps
};

/// Adds one unit, which answers to one prompt. Throws if a token is older than its unit claims: then the bound would not bound
/// anything.
template <typename Group>
void count(asyncrl::taken_unit<std::unique_ptr<Group>> const& from, step_report& report) {
    report.staleness += static_cast<double>(from.staleness);
    report.largest_staleness = std::max(report.largest_staleness, from.staleness);
    for (auto const& answer : *from.handle) {
        report.reward += static_cast<double>(answer.reward);
        if (answer.versions.oldest() < from.version) {
            throw std::logic_error("a token was sampled by weights older than the version its unit was admitted under");
        }
        report.switched += answer.versions.switches() > 0 ? 1 : 0;
        ++report.answers;
    }
}

class trainer {
  public:
    using unit = asyncrl::taken_unit<std::unique_ptr<group>>;

    trainer(options const& o, policy<float> start)
        : options_(o),
          learner_(std::move(start)),
          scratch_(asyncrl::token_batch{.rows = std::int64_t{o.groups} * o.members, .tokens = task::max_tokens}) {}

    /// What the weight_board posts.
    [[nodiscard]] policy<float> const& current() const { return learner_.current(); }
    [[nodiscard]] policy<float> trained() const { return current(); }

    /// Trains on one batch, which it sorts by unit id so that nothing depends on who finished first.
    step_report step(std::span<unit> batch) {
        std::sort(batch.begin(), batch.end(), [](unit const& a, unit const& b) { return a.id < b.id; });
        step_report report;
        std::vector<minibatch> parts(static_cast<std::size_t>(options_.minibatches));
        for (std::size_t i = 0; i < batch.size(); ++i) {
            append(*batch[i].handle, parts[i * parts.size() / batch.size()]);
            count(batch[i], report);
        }
        report.reward /= static_cast<double>(report.answers);
        report.staleness /= static_cast<double>(batch.size());
        // The old policy is the trainer's own at the start of the step. Its distance to what the engines reported, from
        // staleness and from their arithmetic, is what the weights correct.
        for (minibatch& part : parts) {
            auto const log_probs = learner_.forward(part, part.old_log_prob).array();
            report.entropy -= static_cast<double>((log_probs * log_probs.exp()).sum());
            part.log_prob = part.old_log_prob;
            report.mismatch += asyncrl::mismatch(columns_of(part), scratch_);
        }
        report.entropy /= static_cast<double>(report.mismatch.counts.tokens);
        for (minibatch& part : parts) {
            report.loss += update(part);
        }
        return report;
    }

  private:
    asyncrl::loss_report update(minibatch& part) {
        // [snippet: update]
        learner_.forward(part, part.log_prob);
        part.gradient.resize(part.tokens.size());
        asyncrl::loss_report const report = with_objective(options_.loss(), [&](auto const& objective) {
            asyncrl::token_batch const columns = columns_of(part);
            asyncrl::totals const totals = asyncrl::measure(objective, columns, scratch_);
            return asyncrl::policy_loss(objective, columns, totals, asyncrl::per_token(part.gradient.data()), scratch_);
        });
        learner_.descend(part, static_cast<float>(options_.learning_rate));
        // [snippet: end]
        return report;
    }

    options options_;
    learner learner_;
    asyncrl::workspace scratch_;
};
