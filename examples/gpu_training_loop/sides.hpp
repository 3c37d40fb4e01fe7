// SPDX-License-Identifier: Apache-2.0
/// @file The two sides of a run whose tokens and weights are the device's: what async_training's run.hpp takes in the place of
/// its own engine, weight board and trainer. The host sees lengths, versions, rewards and reports.
#pragma once

#include "../async_training/options.hpp"
#include "../async_training/policy.hpp"
#include "../async_training/rollout.hpp"
#include "../async_training/trainer.hpp"
#include "device.hpp"
#include "network.hpp"
#include "steps.hpp"

#include <asyncrl/staleness/policy_version.hpp>
#include <asyncrl/staleness/unit.hpp>
#include <asyncrl/staleness/version_runs.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

namespace device {

static_assert(parameter_count == policy<float>::parameter_count, "both examples have one policy");

/// What the host knows of an answer.
struct answer_record {
    task::problem problem;
    random_stream random;
    asyncrl::version_runs versions{};
    float reward = 0;
};

/// The answers to one prompt, and where the device has them.
struct group : std::vector<answer_record> {
    std::shared_ptr<answer[]> answers;
};

/// Weights that never change: an engine holds the version it samples with, and the memory is used again when none does.
struct posted_weights {
    std::shared_ptr<float[]> parameters;
    std::shared_ptr<event> ready;  ///< on the training stream
    asyncrl::policy_version version{-1};
};

class weight_board {
  public:
    explicit weight_board(precision engines) : precision_(engines) {}

    // [snippet: weights]
    /// Copies the weights on the training stream, behind the steps that made them. Nobody waits.
    void post(learner const& trained, asyncrl::policy_version version) {
        posted_weights next{memory_.take(), std::make_shared<event>(), version};
        if (precision_ == precision::bf16) {
            round_to_bf16(next.parameters.get(), trained.parameters(), parameter_count, trained.training_stream());
        } else if (precision_ == precision::fp8) {
            round_to_fp8(next.parameters.get(), trained.parameters(), parameter_count, trained.training_stream());
        } else {
            trained.copy_parameters(next.parameters.get());
        }
        must(cudaEventRecord(*next.ready, trained.training_stream()));
        std::lock_guard const lock(mutex_);
        std::swap(weights_, next);
        newest_ = version.value;
    }

    /// Replaces an engine's weights if there are newer ones; its stream, not its thread, waits for them.
    void fetch(posted_weights& held, stream const& rollout) const {
        if (newest_ > held.version.value) {
            std::lock_guard const lock(mutex_);
            held = weights_;
            must(cudaStreamWaitEvent(rollout, *held.ready));
        }
    }
    // [snippet: end]

  private:
    precision precision_;
    pool<float> memory_{parameter_count};
    mutable std::mutex mutex_;
    posted_weights weights_;
    std::atomic<std::int64_t> newest_{-1};
};

/// Samples on a stream of its own.
class rollout_engine {
  public:
    /// As the host's: `at_boundary` is called before each token, may change the weights, and stops by returning false.
    template <typename Boundary>
    bool sample(group& answers, Boundary&& at_boundary) {
        hand_over(answers);
        open_.clear();
        for (answer_record& answer : answers) {
            open_.push_back(&answer);
        }
        for (int position = 0; !open_.empty(); ++position) {
            if (!at_boundary(*this)) {
                stream_.wait();
                return false;
            }
            auto const seen = writer_->write(weights_.parameters.get(), answers.answers.get(), position, stream_);
            for (answer_record* answer : open_) {
                answer->versions.append(version(), 1);
                answer->reward = seen[index(answers, answer)].reward;
            }
            std::erase_if(open_, [&](answer_record* answer) { return seen[index(answers, answer)].open == 0; });
        }
        return true;
    }

    /// The answers that are not finished.
    [[nodiscard]] std::span<answer_record* const> open() const { return open_; }
    [[nodiscard]] asyncrl::policy_version version() const { return weights_.version; }

    void fetch(weight_board const& board) { board.fetch(weights_, stream_); }

  private:
    static std::size_t index(group const& answers, answer_record const* answer) {
        return static_cast<std::size_t>(answer - answers.data());
    }

    /// Prompts and random numbers go to the device; tokens never come back.
    void hand_over(group& answers) {
        if (!writer_) {
            writer_.emplace(static_cast<int>(answers.size()));
            memory_.emplace(answers.size());
            prompts_ = make_pinned<answer>(answers.size());
        }
        answers.answers = memory_->take();
        for (std::size_t i = 0; i < answers.size(); ++i) {
            answer fresh{};
            std::ranges::copy(task::prompt(answers[i].problem), fresh.context);
            std::ranges::copy(task::solution(answers[i].problem), fresh.solution);
            std::ranges::fill(fresh.tokens, static_cast<std::uint8_t>(task::blank));
            std::ranges::generate(fresh.uniforms, [&] { return answers[i].random.uniform(); });
            prompts_[i] = fresh;
        }
        copy(answers.answers.get(), prompts_.get(), answers.size(), stream_);
    }

    stream stream_;
    posted_weights weights_;
    std::optional<token_writer> writer_;  ///< from the first group on, whose size is that of all
    std::optional<pool<answer>> memory_;
    pinned_array<answer> prompts_;
    std::vector<answer_record*> open_;
};

/// One GRPO step per batch.
class trainer {
  public:
    using unit = asyncrl::taken_unit<std::unique_ptr<group>>;

    trainer(options const& o, policy<float> const& start)
        : minibatches_(o.minibatches),
          learner_(start.parameters.data(), o.loss(), static_cast<float>(o.learning_rate), o.groups, o.members, o.minibatches) {
    }

    [[nodiscard]] learner const& current() const { return learner_; }
    [[nodiscard]] policy<float> trained() const {
        policy<float> read;
        learner_.copy_parameters(read.parameters.data());
        learner_.training_stream().wait();
        return read;
    }

    /// Trains on one batch, which it sorts by unit id so that nothing depends on who finished first.
    step_report step(std::span<unit> batch) {
        std::sort(batch.begin(), batch.end(), [](unit const& a, unit const& b) { return a.id < b.id; });
        step_report report;
        addresses_.clear();
        for (unit const& from : batch) {
            addresses_.push_back(from.handle->answers.get());
            count(from, report);
        }
        report.reward /= static_cast<double>(report.answers);
        report.staleness /= static_cast<double>(batch.size());

        learner_.load(addresses_);
        auto const groups = static_cast<int>(batch.size());
        auto const first_of = [&](int part) { return (part * groups + minibatches_ - 1) / minibatches_; };
        for (int part = 0; part < minibatches_; ++part) {
            learner_.update(part, first_of(part), first_of(part + 1) - first_of(part));
        }
        batch_report const& seen = learner_.finish();
        report.mismatch = seen.mismatch;
        report.entropy = seen.entropy / static_cast<double>(seen.mismatch.counts.tokens);
        for (update_report const& update : learner_.updates()) {
            report.loss += update.loss;
        }
        if (report.loss.counts.nonfinite > 0) {
            throw std::runtime_error("a log-prob is not finite");
        }
        return report;
    }

  private:
    int minibatches_;
    learner learner_;
    std::vector<answer const*> addresses_;
};

}  // namespace device

struct on_device {
    using group = device::group;
    using rollout_engine = device::rollout_engine;
    using weight_board = device::weight_board;
    using trainer = device::trainer;
};
