// SPDX-License-Identifier: Apache-2.0
/// @file What the device does for both sides of the loop: write tokens, and train on them. nvcc compiles it; the rest of the
/// program sees this header.
#pragma once

#include "../async_training/objectives.hpp"
#include "../async_training/task.hpp"
#include "device.hpp"
#include "network.hpp"

#include <asyncrl/correction/advantage_options.hpp>
#include <asyncrl/correction/log_prob_options.hpp>
#include <asyncrl/correction/loss_report.hpp>
#include <asyncrl/correction/mismatch_report.hpp>
#include <asyncrl/correction/token_batch.hpp>
#include <asyncrl/correction/totals.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace device {

/// One answer in device memory. The host fills it in before the first token, and then has only its address.
struct answer {
    std::uint8_t context[task::context_places];  ///< of the next token
    std::uint8_t solution[task::max_tokens];     ///< what the reward compares with
    std::uint8_t tokens[task::max_tokens];       ///< blank behind the end
    float uniforms[task::max_tokens];            ///< the random number that each token is drawn with
    float log_probs[task::max_tokens];           ///< of the tokens, in nats, by the weights that sampled them
    std::int32_t length;                         ///< tokens
    float reward;
};

/// What the host learns of an answer after each token.
struct progress {
    std::int32_t open;  ///< 0: the answer has ended
    float reward;
};

/// Memory in which the network runs, for up to `rows` contexts.
struct network_memory {
    explicit network_memory(std::size_t rows)
        : first(make_array<float>(rows * width)),
          second(make_array<float>(rows * width)),
          logits(make_array<float>(rows * task::vocabulary)) {}

    [[nodiscard]] activations view() const { return {first.get(), second.get(), logits.get()}; }

    array<float> first, second, logits;
};

/// Writes the answers to one prompt, a token of each at a time.
class token_writer {
  public:
    explicit token_writer(int answers);

    /// Writes the token at `position` of every answer that is open, on the stream `on`, and waits for it.
    std::span<progress const> write(float const* parameters, answer* answers, int position, stream const& on);

  private:
    std::int64_t count_;
    network_memory network_;
    array<std::int32_t> tokens_;
    array<std::uint8_t> open_;
    array<progress> progress_;
    array<asyncrl::log_prob_report> report_;
    pinned_array<progress> seen_;
};

struct batch_report {
    asyncrl::mismatch_report mismatch;  ///< old against rollout policy
    double entropy;                     ///< of the old policy, summed over tokens, in nats
};
struct update_report {
    asyncrl::loss_report loss;
    double squared_gradient_norm;
};

/// The policy being trained, with its optimizer and the columns of one batch: [answers, max_tokens], padded.
class learner {
  public:
    /// `start`: parameters in host memory.
    learner(float const* start, loss_choice const& loss, float learning_rate, int groups, int members, int minibatches);

    // All of this goes on the training stream, and returns at once.
    void load(std::span<answer const* const> groups);   ///< columns, advantages, and what the old policy says
    void update(int minibatch, int group, int groups);  ///< one optimizer step on some of the groups
    void copy_parameters(float* to) const;              ///< to device or host

    /// Waits for all of it. What it returns holds until the next load().
    [[nodiscard]] batch_report const& finish();
    [[nodiscard]] std::span<update_report const> updates() const;

    [[nodiscard]] float const* parameters() const { return parameters_.get(); }
    [[nodiscard]] stream const& training_stream() const { return stream_; }

  private:
    asyncrl::output_matrix score(std::int64_t row, std::int64_t rows, float* log_prob);
    [[nodiscard]] context_rows contexts_of(std::int64_t row, std::int64_t rows) const;
    [[nodiscard]] asyncrl::token_batch columns_of(std::int64_t row, std::int64_t rows) const;

    loss_choice loss_;
    float learning_rate_;
    int members_;
    int minibatches_;
    int steps_ = 0;
    std::int64_t rows_;    ///< answers of a batch
    std::int64_t tokens_;  ///< positions of a batch
    stream stream_;
    array<float> parameters_, parameter_gradient_, adam_mean_, adam_square_;
    network_memory network_;
    array<answer const*> addresses_;
    array<std::uint8_t> contexts_, mask_;
    array<std::int32_t> targets_;
    array<float> log_prob_, old_log_prob_, rollout_log_prob_, log_sum_exp_, entropy_, gradient_;  ///< one per token
    array<float> reward_, advantage_;                                                             ///< one per answer
    array<asyncrl::totals> totals_;
    array<asyncrl::log_prob_report> row_report_;
    array<asyncrl::group_advantage_report> group_report_;
    array<batch_report> report_;
    array<update_report> updates_;
    std::size_t scratch_bytes_;
    array<std::byte> scratch_;
    pinned_array<answer const*> seen_addresses_;
    pinned_array<batch_report> seen_report_;
    pinned_array<update_report> seen_updates_;
};

}  // namespace device
