// SPDX-License-Identifier: Apache-2.0
#include "steps.hpp"

#include <asyncrl/cuda/advantage.cuh>
#include <asyncrl/cuda/log_prob.cuh>
#include <asyncrl/cuda/measure.cuh>
#include <asyncrl/cuda/mismatch.cuh>
#include <asyncrl/cuda/policy_loss.cuh>

#include <algorithm>

namespace device {
namespace {

constexpr int block = 128;

unsigned blocks_for(std::int64_t threads) {
    return static_cast<unsigned>((threads + block - 1) / block);
}

/// Draws the next token of each open answer by inverting the distribution function at one uniform number, and rewards the
/// answers that end with it.
__global__ void sample(float const* logits, answer* answers, int count, int position, std::int32_t* tokens, std::uint8_t* open,
                       progress* seen) {
    int const i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= count) {
        return;
    }
    answer& a = answers[i];
    open[i] = a.length == position && (position == 0 || a.tokens[position - 1] != task::end_token) ? 1 : 0;
    tokens[i] = 0;
    seen[i] = {0, a.reward};
    if (open[i] == 0) {
        return;
    }
    float const* z = logits + i * task::vocabulary;
    float largest = z[0];
    for (int k = 1; k < task::vocabulary; ++k) {
        largest = fmaxf(largest, z[k]);
    }
    float sum = 0;
    for (int k = 0; k < task::vocabulary; ++k) {
        sum += expf(z[k] - largest);
    }
    float const log_sum = largest + logf(sum);
    int token = 0;
    for (float left = a.uniforms[position] - expf(z[0] - log_sum); left >= 0 && token + 1 < task::vocabulary;) {
        left -= expf(z[++token] - log_sum);
    }
    tokens[i] = token;
    a.tokens[position] = static_cast<std::uint8_t>(token);
    a.length = position + 1;
    if (token != task::end_token && a.length < task::max_tokens) {
        a.context[2 * task::digits + position] = static_cast<std::uint8_t>(token);
        seen[i].open = 1;
        return;
    }
    bool right = true;
    for (int k = 0; k < task::max_tokens; ++k) {
        right = right && a.tokens[k] == a.solution[k];
    }
    a.reward = right ? 1 : 0;
    seen[i].reward = a.reward;
}

/// Lays answers out as the columns of a batch, a thread for each position.
__global__ void collate(answer const* const* groups, int members, int positions, std::uint8_t* contexts, std::int32_t* targets,
                        std::uint8_t* mask, float* rollout_log_prob, float* reward) {
    int const i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= positions) {
        return;
    }
    int const row = i / task::max_tokens;
    int const position = i % task::max_tokens;
    answer const& a = groups[row / members][row % members];
    for (int place = 0; place < task::context_places; ++place) {
        bool const known = place < 2 * task::digits + position;
        contexts[i * task::context_places + place] = known ? a.context[place] : static_cast<std::uint8_t>(task::blank);
    }
    bool const active = position < a.length;
    targets[i] = active ? a.tokens[position] : 0;
    mask[i] = active ? 1 : 0;
    rollout_log_prob[i] = a.log_probs[position];
    if (position == 0) {
        reward[row] = a.reward;
    }
}

}  // namespace

token_writer::token_writer(int answers)
    : count_(answers),
      network_(static_cast<std::size_t>(answers)),
      tokens_(make_array<std::int32_t>(static_cast<std::size_t>(answers))),
      open_(make_array<std::uint8_t>(static_cast<std::size_t>(answers))),
      progress_(make_array<progress>(static_cast<std::size_t>(answers))),
      report_(make_array<asyncrl::log_prob_report>(1)),
      seen_(make_pinned<progress>(static_cast<std::size_t>(answers))) {}

std::span<progress const> token_writer::write(float const* parameters, answer* answers, int position, stream const& on) {
    auto const count = static_cast<int>(count_);
    activations const a = network_.view();
    forward(parameters, {answers->context, sizeof(answer), count}, a, on);
    sample<<<blocks_for(count_), block, 0, on>>>(a.logits, answers, count, position, tokens_.get(), open_.get(),
                                                 progress_.get());
    must(cudaGetLastError());
    // The log-probs go straight into the answers, one answer apart.
    asyncrl::output_column log_prob = asyncrl::per_token(&answers->log_probs[position]);
    log_prob.token_stride = sizeof(answer) / sizeof(float);
    must(asyncrl::gpu::log_prob(asyncrl::row_major(a.logits, count_, task::vocabulary), tokens_.get(), {.log_prob = log_prob},
                                report_.get(), {.mask = asyncrl::per_token(open_.get())}, on));
    copy(seen_.get(), progress_.get(), static_cast<std::size_t>(count_), on);
    on.wait();
    return {seen_.get(), static_cast<std::size_t>(count_)};
}

learner::learner(float const* start, loss_choice const& loss, float learning_rate, int groups, int members, int minibatches)
    : loss_(loss),
      learning_rate_(learning_rate),
      members_(members),
      minibatches_(minibatches),
      rows_(std::int64_t{groups} * members),
      tokens_(rows_ * task::max_tokens),
      parameters_(make_array<float>(parameter_count)),
      parameter_gradient_(make_array<float>(parameter_count)),
      adam_mean_(make_array<float>(parameter_count)),
      adam_square_(make_array<float>(parameter_count)),
      network_(static_cast<std::size_t>(tokens_)) {
    auto const per_answer = static_cast<std::size_t>(rows_);
    auto const per_token = static_cast<std::size_t>(tokens_);
    addresses_ = make_array<answer const*>(static_cast<std::size_t>(groups));
    contexts_ = make_array<std::uint8_t>(per_token * task::context_places);
    mask_ = make_array<std::uint8_t>(per_token);
    targets_ = make_array<std::int32_t>(per_token);
    for (auto* column : {&log_prob_, &old_log_prob_, &rollout_log_prob_, &log_sum_exp_, &entropy_, &gradient_}) {
        *column = make_array<float>(per_token);
    }
    reward_ = make_array<float>(per_answer);
    advantage_ = make_array<float>(per_answer);
    totals_ = make_array<asyncrl::totals>(1);
    row_report_ = make_array<asyncrl::log_prob_report>(1);
    group_report_ = make_array<asyncrl::group_advantage_report>(1);
    report_ = make_array<batch_report>(1);
    updates_ = make_array<update_report>(static_cast<std::size_t>(minibatches));
    asyncrl::token_batch const largest{.rows = rows_, .tokens = task::max_tokens};
    scratch_bytes_ = std::max(asyncrl::gpu::workspace_bytes(largest), asyncrl::gpu::mismatch_workspace_bytes(largest));
    scratch_ = make_array<std::byte>(scratch_bytes_);
    seen_addresses_ = make_pinned<answer const*>(static_cast<std::size_t>(groups));
    seen_report_ = make_pinned<batch_report>(1);
    seen_updates_ = make_pinned<update_report>(static_cast<std::size_t>(minibatches));

    copy(parameters_.get(), start, parameter_count, stream_);
    must(cudaMemsetAsync(adam_mean_.get(), 0, parameter_count * sizeof(float), stream_));
    must(cudaMemsetAsync(adam_square_.get(), 0, parameter_count * sizeof(float), stream_));
    stream_.wait();
}

context_rows learner::contexts_of(std::int64_t row, std::int64_t rows) const {
    return {contexts_.get() + row * task::max_tokens * task::context_places, task::context_places,
            static_cast<int>(rows * task::max_tokens)};
}

asyncrl::token_batch learner::columns_of(std::int64_t row, std::int64_t rows) const {
    auto const column_of = [at = row * task::max_tokens](auto const& column) {
        return asyncrl::per_token(column.get() + at, task::max_tokens);
    };
    asyncrl::token_batch batch{.rows = rows, .tokens = task::max_tokens};
    batch.log_prob = column_of(log_prob_);
    batch.old_log_prob = column_of(old_log_prob_);
    batch.rollout_log_prob = column_of(rollout_log_prob_);
    batch.advantage = asyncrl::per_sequence(advantage_.get() + row);
    batch.mask = column_of(mask_);
    return batch;
}

void learner::load(std::span<answer const* const> groups) {
    std::copy(groups.begin(), groups.end(), seen_addresses_.get());
    copy(addresses_.get(), seen_addresses_.get(), groups.size(), stream_);
    collate<<<blocks_for(tokens_), block, 0, stream_>>>(addresses_.get(), members_, static_cast<int>(tokens_), contexts_.get(),
                                                        targets_.get(), mask_.get(), rollout_log_prob_.get(), reward_.get());
    must(cudaGetLastError());
    asyncrl::group_rewards rewards{.members = rows_, .group_size = members_};
    rewards.reward = asyncrl::per_member(reward_.get());
    must(asyncrl::gpu::group_advantage(rewards, asyncrl::per_member(advantage_.get()), group_report_.get(),
                                       {.deviation = asyncrl::group_deviation::population, .epsilon = 0}, stream_));
    // The old policy is the trainer's own at the start of the step.
    score(0, rows_, old_log_prob_.get());
    add_up(entropy_.get(), static_cast<int>(tokens_), false, &report_.get()->entropy, stream_);
    must(asyncrl::gpu::mismatch(columns_of(0, rows_), &report_.get()->mismatch, {scratch_.get(), scratch_bytes_}, stream_));
}

/// Logits of all positions of some answers by the newest parameters, and what they say of the tokens.
asyncrl::output_matrix learner::score(std::int64_t row, std::int64_t rows, float* log_prob) {
    std::int64_t const at = row * task::max_tokens;
    activations const a = network_.view();
    forward(parameters_.get(), contexts_of(row, rows), a, stream_);
    asyncrl::output_matrix const logits = asyncrl::row_major(a.logits, rows * task::max_tokens, task::vocabulary);
    must(asyncrl::gpu::log_prob(logits, targets_.get() + at,
                                {.log_prob = asyncrl::per_token(log_prob + at),
                                 .log_sum_exp = asyncrl::per_token(log_sum_exp_.get() + at),
                                 .entropy = asyncrl::per_token(entropy_.get() + at)},
                                row_report_.get(), {.mask = asyncrl::per_token(mask_.get() + at)}, stream_));
    return logits;
}

// [snippet: update]
void learner::update(int minibatch, int group, int groups) {
    std::int64_t const row = std::int64_t{group} * members_;
    std::int64_t const rows = std::int64_t{groups} * members_;
    std::int64_t const at = row * task::max_tokens;
    update_report* const report = updates_.get() + minibatch;

    asyncrl::output_matrix const logits = score(row, rows, log_prob_.get());
    with_objective(loss_, [&](auto const& objective) {
        asyncrl::token_batch const columns = columns_of(row, rows);
        asyncrl::gpu::workspace const scratch{scratch_.get(), scratch_bytes_};
        must(asyncrl::gpu::measure(objective, columns, totals_.get(), scratch, stream_));
        must(asyncrl::gpu::policy_loss(objective, columns, totals_.get(),
                                       asyncrl::per_token(gradient_.get() + at, task::max_tokens), &report->loss, scratch,
                                       stream_));
    });
    must(asyncrl::gpu::log_prob_gradient(logits, targets_.get() + at,
                                         {.log_sum_exp = asyncrl::per_token(log_sum_exp_.get() + at)},
                                         {.log_prob = asyncrl::per_token(gradient_.get() + at)}, logits,  // in place
                                         row_report_.get(), {.mask = asyncrl::per_token(mask_.get() + at)}, stream_));
    backward(parameters_.get(), contexts_of(row, rows), network_.view(), parameter_gradient_.get(), stream_);
    add_up(parameter_gradient_.get(), parameter_count, true, &report->squared_gradient_norm, stream_);
    adam_step(parameters_.get(), parameter_gradient_.get(), &report->squared_gradient_norm,
              {adam_mean_.get(), adam_square_.get()}, ++steps_, learning_rate_, stream_);
}
// [snippet: end]

void learner::copy_parameters(float* to) const {
    copy(to, parameters_.get(), parameter_count, stream_);
}

batch_report const& learner::finish() {
    copy(seen_report_.get(), report_.get(), 1, stream_);
    copy(seen_updates_.get(), updates_.get(), updates().size(), stream_);
    stream_.wait();
    return *seen_report_.get();
}

std::span<update_report const> learner::updates() const {
    return {seen_updates_.get(), static_cast<std::size_t>(minibatches_)};
}

}  // namespace device
