// SPDX-License-Identifier: Apache-2.0
/// @file The program of README.md: a four-armed bandit learned asynchronously. It fails if it does not learn.
#include <asyncrl/asyncrl.hpp>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t arms = 4;
using weights = std::array<float, arms>;

/// One action, what the engine that sampled it reported, and the reward.
struct sample {
    std::size_t arm = 0;
    float log_prob = 0;
    float reward = 0;
};

weights log_softmax(weights const& logits) {
    float total = 0;
    for (float const x : logits) {
        total += std::exp(x);
    }
    weights result = logits;
    for (float& x : result) {
        x -= std::log(total);
    }
    return result;
}

/// The weights that rollout threads read while the trainer writes them.
class policy {
  public:
    weights read() const {
        std::lock_guard const lock(mutex_);
        return logits_;
    }
    void write(weights const& logits) {
        std::lock_guard const lock(mutex_);
        logits_ = logits;
    }

  private:
    mutable std::mutex mutex_;
    weights logits_{};
};

sample play(weights const& logits, std::mt19937& random) {
    weights const log_probs = log_softmax(logits);
    std::size_t arm = 0;
    for (float u = std::uniform_real_distribution<float>()(random); arm + 1 < arms && u >= std::exp(log_probs[arm]); ++arm) {
        u -= std::exp(log_probs[arm]);
    }
    return {arm, log_probs[arm], arm == 2 ? 1.0F : 0.0F};
}

/// The numbers of a batch as columns, one token a row, and the update of the logits.
class trainer {
  public:
    explicit trainer(std::size_t rows)
        : arm_(rows), log_prob_(rows), rollout_log_prob_(rows), advantage_(rows), gradient_(rows) {
        // [snippet: columns]
        batch.rows = static_cast<std::int64_t>(rows);
        batch.tokens = 1;
        batch.log_prob = asyncrl::per_token(log_prob_.data(), 1);  // 1: elements from one row to the next
        batch.old_log_prob = batch.log_prob;                       // one update per batch: the new policy is the old one
        batch.rollout_log_prob = asyncrl::per_token(rollout_log_prob_.data(), 1);
        batch.advantage = asyncrl::per_token(advantage_.data(), 1);
        // [snippet: end]
    }

    /// Fills the columns under the weights of now; returns the mean reward.
    float collate(std::vector<asyncrl::taken_unit<sample>> const& units) {
        log_probs_ = log_softmax(logits_);
        float mean_reward = 0;
        for (auto const& unit : units) {
            mean_reward += unit.handle.reward / static_cast<float>(units.size());
        }
        for (std::size_t i = 0; i < units.size(); ++i) {
            sample const& s = units[i].handle;
            arm_[i] = s.arm;
            log_prob_[i] = log_probs_[s.arm];
            rollout_log_prob_[i] = s.log_prob;
            advantage_[i] = s.reward - mean_reward;
        }
        return mean_reward;
    }

    /// Gradient descent: d loss / d logits from d loss / d log_prob.
    weights const& update() {
        for (std::size_t i = 0; i < arm_.size(); ++i) {
            for (std::size_t a = 0; a < arms; ++a) {
                logits_[a] -= gradient_[i] * ((a == arm_[i] ? 1.0F : 0.0F) - std::exp(log_probs_[a]));
            }
        }
        return logits_;
    }

    asyncrl::token_batch batch;

    asyncrl::output_column gradient() { return asyncrl::per_token(gradient_.data(), 1); }

  private:
    weights logits_{};
    weights log_probs_{};
    std::vector<std::size_t> arm_;
    std::vector<float> log_prob_, rollout_log_prob_, advantage_, gradient_;
};

}  // namespace

int main() {
    policy shared;
    trainer learner(64);
    float reward = 0;

    // [snippet: program]
    asyncrl::controller control(asyncrl::slot_buffer<sample>({.batch_size = 64, .max_staleness = 2}));

    auto const rollout = [&](std::stop_token stop, unsigned seed) {
        std::mt19937 random(seed);
        while (auto admitted = control.reserve({}, stop)) {     // waits for a place; stamps the policy's version
            admitted.unit.occupy(play(shared.read(), random));  // if play throws, the place is free again
        }
    };
    std::jthread const first(rollout, 1), second(rollout, 2);

    auto const objective = asyncrl::make_objective(asyncrl::ppo_clip{.low = 0.2, .high = 0.28},  // on new / old policy
                                                   asyncrl::tis{.cap = 2},                       // weight old / rollout
                                                   asyncrl::token_mean{});
    asyncrl::workspace workspace(learner.batch);
    std::vector<asyncrl::taken_unit<sample>> units(64);
    for (int step = 1; step <= 200 && control.take(units); ++step) {  // no unit is more than 2 batches old
        reward = learner.collate(units);
        auto const totals = asyncrl::measure(objective, learner.batch, workspace);
        auto const report = asyncrl::policy_loss(objective, learner.batch, totals, learner.gradient(), workspace);
        shared.write(learner.update());
        control.publish();  // a new version: places open for one batch more
        if (step % 50 == 0) {
            std::printf("step %3d: reward %.2f, effective samples %.0f %%\n", step, static_cast<double>(reward),
                        100 * report.effective_sample_share());
        }
    }
    control.close();
    // [snippet: end]

    return reward > 0.8F ? 0 : 1;
}
