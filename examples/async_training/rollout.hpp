// SPDX-License-Identifier: Apache-2.0
/// @file Generation: engines that sample with their own copy of the weights, and change it between two tokens.
#pragma once

#include "policy.hpp"
#include "precision.hpp"
#include "random.hpp"
#include "task.hpp"

#include <asyncrl/staleness/policy_version.hpp>
#include <asyncrl/staleness/version_runs.hpp>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

/// One answer, with what the trainer must know of its origin.
struct trajectory {
    task::problem problem;
    random_stream random;
    task::answer tokens{};
    std::array<float, task::max_tokens> log_probs{};  ///< in nats, as the engine computed them
    asyncrl::version_runs versions{};                 ///< whose weights sampled which tokens
    int length = 0;                                   ///< tokens
    float reward = 0;
};

/// Answers to one prompt: what is admitted, trained and dropped as one unit.
using group = std::vector<trajectory>;

/// The group that unit `id` stands for. All its draws are keyed by the id, so it does not matter which thread makes it. A unit
/// that tries a rejected group again has the prompt of `prompt_id`.
template <typename Group = group>
std::unique_ptr<Group> make_group(std::uint64_t seed, std::uint64_t id, int members, std::uint64_t prompt_id) {
    random_stream prompts(seed, stream::prompt, prompt_id);
    task::problem const problem = task::draw(prompts, false);
    auto made = std::make_unique<Group>();
    for (int member = 0; member < members; ++member) {
        made->push_back({problem, random_stream(seed, stream::sampling, id, static_cast<std::uint64_t>(member))});
    }
    return made;
}
template <typename Group = group>
std::unique_ptr<Group> make_group(std::uint64_t seed, std::uint64_t id, int members) {
    return make_group<Group>(seed, id, members, id);
}

/// Where the trainer posts weights and engines fetch them, in the precision of the engines.
class weight_board {
  public:
    explicit weight_board(precision engines) : precision_(engines) {}

    void post(policy<float> const& trained, asyncrl::policy_version version) {
        policy<float> rounded = trained;
        round_weights(rounded.parameters, precision_);
        std::lock_guard const lock(mutex_);
        weights_ = std::move(rounded);
        newest_ = version.value;
    }

    /// Replaces an engine's weights if there are newer ones. Costs one atomic load if not.
    void fetch(policy<float>& weights, asyncrl::policy_version& version) const {
        if (newest_ > version.value) {
            std::lock_guard const lock(mutex_);
            weights = weights_;
            version = {newest_};
        }
    }

  private:
    precision precision_;
    mutable std::mutex mutex_;
    policy<float> weights_;
    std::atomic<std::int64_t> newest_{-1};
};

class rollout_engine {
  public:
    rollout_engine() = default;
    explicit rollout_engine(policy<float> weights) : weights_(std::move(weights)), version_{0} {}

    /// Writes all answers, one token of each per pass, and rewards them. `at_boundary(engine)` is called before each pass:
    /// there the weights may change, and the answers go on under the new ones. It returns false to stop; then so does this.
    template <typename Boundary>
    bool sample(std::span<trajectory> answers, Boundary&& at_boundary) {
        open_.clear();
        contexts_.clear();
        for (trajectory& answer : answers) {
            answer.tokens.fill(task::blank);
            open_.push_back(&answer);
            contexts_.push_back(task::prompt(answer.problem));
        }
        for (int position = 0; !open_.empty(); ++position) {
            if (!at_boundary(*this)) {
                return false;
            }
            weights_.forward(contexts_, activations_);
            std::size_t still_open = 0;
            for (std::size_t i = 0; i < open_.size(); ++i) {
                trajectory& answer = *open_[i];
                int const token = write_token(answer, position, static_cast<Eigen::Index>(i));
                if (token == task::end_token || answer.length == task::max_tokens) {
                    answer.reward = task::reward(answer.problem, answer.tokens);
                } else {
                    task::append(contexts_[i], position, token);
                    contexts_[still_open] = contexts_[i];
                    open_[still_open++] = &answer;
                }
            }
            open_.resize(still_open);
            contexts_.resize(still_open);
        }
        return true;
    }

    /// The answers that are not finished.
    [[nodiscard]] std::span<trajectory* const> open() const { return open_; }
    [[nodiscard]] asyncrl::policy_version version() const { return version_; }

    void fetch(weight_board const& board) { board.fetch(weights_, version_); }

  private:
    /// Draws the next token by inverting the distribution function at one uniform number.
    int write_token(trajectory& answer, int position, Eigen::Index column) {
        auto const log_probs = activations_.log_probs.col(column);
        int token = 0;
        for (float left = answer.random.uniform() - std::exp(log_probs[0]); left >= 0 && token + 1 < task::vocabulary;) {
            left -= std::exp(log_probs[++token]);
        }
        auto const at = static_cast<std::size_t>(position);
        answer.tokens[at] = static_cast<std::uint8_t>(token);
        answer.log_probs[at] = log_probs[token];
        answer.versions.append(version_, 1);
        ++answer.length;
        return token;
    }

    policy<float> weights_;
    asyncrl::policy_version version_{-1};
    policy<float>::activations activations_;
    std::vector<task::context> contexts_;
    std::vector<trajectory*> open_;
};

inline constexpr int held_out_problems = 1000;

/// Mean reward on the held-out set, of one answer to each problem, sampled like in training. Always the same problems.
inline double held_out_rate(policy<float> const& trained) {
    group answers;
    for (int i = 0; i < held_out_problems; ++i) {
        random_stream random(0, stream::evaluation, static_cast<std::uint64_t>(i));
        task::problem const problem = task::draw(random, true);
        answers.push_back({problem, random});
    }
    rollout_engine(trained).sample(answers, [](rollout_engine&) { return true; });
    double solved = 0;
    for (trajectory const& answer : answers) {
        solved += static_cast<double>(answer.reward);
    }
    return solved / held_out_problems;
}
