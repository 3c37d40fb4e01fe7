// SPDX-License-Identifier: Apache-2.0
// The kernels that scripts/kernel_gate.sh looks at: those of a few objectives, and those of calls without one. As a program it
// makes the calls of one case, for counting the instructions that each kernel executes: over dense, aligned columns with a mask
// of ones, of numbers that vary. First it says, on the standard error, what they go over.
#include <asyncrl/cuda.cuh>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using namespace asyncrl;

constexpr std::int64_t row_length = 4096;

void announce(std::int64_t count, char const* units) {
    std::fprintf(stderr, "over %lld %s\n", static_cast<long long>(count), units);
}

template <typename Element>
Element* on_device(std::vector<Element> const& from) {
    void* data = nullptr;
    cudaMalloc(&data, from.size() * sizeof(Element));
    cudaMemcpy(data, from.data(), from.size() * sizeof(Element), cudaMemcpyHostToDevice);
    return static_cast<Element*>(data);
}
template <typename Element>
Element* filled(std::int64_t count, Element value = {}) {
    return on_device(std::vector<Element>(static_cast<std::size_t>(count), value));
}
gpu::workspace workspace_of(std::size_t bytes) {
    return {filled<std::uint8_t>(static_cast<std::int64_t>(bytes)), bytes};
}

/// Numbers from `low` up to `low` + 1, other ones with each call.
template <typename Element>
Element* varied(std::int64_t count, float low) {
    static std::uint32_t calls = 0;
    std::uint32_t const call = ++calls;
    std::vector<Element> numbers(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        std::uint32_t x = (static_cast<std::uint32_t>(i) + 1) * 2654435761U + call * 3266489917U;
        x = (x ^ (x >> 15)) * 2246822519U;
        numbers[i] = Element(low + static_cast<float>(x >> 8) * 0x1p-24F);
    }
    return on_device(numbers);
}

template <typename Element>
constexpr dtype type_of = std::is_same_v<Element, __nv_bfloat16> ? dtype::bf16 : dtype::f32;

template <typename Element = float>
token_batch batch_of(std::int64_t rows) {
    token_batch batch{.rows = rows, .tokens = row_length};
    for (column* const c : {&batch.log_prob, &batch.old_log_prob, &batch.rollout_log_prob}) {
        *c = {varied<Element>(batch.size(), -1.5F), type_of<Element>, row_length, 1};
    }
    batch.advantage = {varied<Element>(batch.size(), -0.5F), type_of<Element>, row_length, 1};
    batch.mask = per_token(filled<std::uint8_t>(batch.size(), 1), row_length);
    announce(batch.size(), "positions");
    return batch;
}

template <gpu::vector_loads Loads = gpu::vector_loads::f32, typename Element = float, typename Objective>
cudaError_t loss(Objective const& objective) {
    token_batch const batch = batch_of<Element>(4096);
    output_column const gradient{filled<Element>(batch.size()), type_of<Element>, row_length, 1};
    gpu::workspace const scratch = workspace_of(gpu::workspace_bytes(batch));
    auto* const sums = filled<totals>(1);
    cudaError_t const error = gpu::measure(objective, batch, sums, scratch, nullptr);
    return error != cudaSuccess
               ? error
               : gpu::policy_loss<Loads>(objective, batch, sums, gradient, filled<loss_report>(1), scratch, nullptr);
}

cudaError_t stored_loss() {
    auto const objective = make_objective(ppo_clip{}, tis{}, token_mean{});
    using stored = gpu::stored_objective<decltype(objective)>;
    stored const in_memory(objective, filled<std::uint8_t>(stored::bytes));
    cudaError_t const error = in_memory.store(objective, nullptr);
    return error != cudaSuccess ? error : loss(in_memory);
}

cudaError_t mismatch() {
    token_batch const batch = batch_of(4096);
    return gpu::mismatch(batch, filled<mismatch_report>(1), workspace_of(gpu::mismatch_workspace_bytes(batch)), nullptr);
}

cudaError_t recursions() {
    token_batch const batch = batch_of(256);
    auto const numbers = [&] { return per_token(varied<float>(batch.size(), -0.5F), row_length); };
    value_columns const values{.reward = numbers(), .value = numbers(), .action_value = numbers()};
    advantage_outputs const to{numbers(), numbers()};
    auto* const report = filled<recursion_report>(1);
    cudaError_t error = gpu::gae(batch, values, to, report, {}, nullptr);
    error = error == cudaSuccess ? gpu::vtrace(batch, values, to, report, {}, nullptr) : error;
    return error == cudaSuccess ? gpu::retrace(batch, values, to, report, {}, nullptr) : error;
}

cudaError_t group_advantage() {
    constexpr std::int64_t members = 1 << 20;
    announce(members, "members");
    group_rewards const rewards{.members = members, .group_size = 16, .reward = per_member(varied<float>(members, 0))};
    return gpu::group_advantage(rewards, per_member(filled<float>(members)), filled<group_advantage_report>(1), {}, nullptr);
}

template <typename Element>
cudaError_t log_prob(dtype type) {
    constexpr std::int64_t rows = 16;
    constexpr std::int64_t vocabulary = 151936;
    announce(rows * vocabulary, "logits");
    output_matrix const logits{varied<Element>(rows * vocabulary, -0.5F), type, rows, vocabulary, vocabulary};
    auto* const targets = filled<std::int32_t>(rows);
    log_prob_outputs const outputs{per_token(filled<float>(rows)), per_token(filled<double>(rows)),
                                   per_token(filled<float>(rows))};
    auto* const report = filled<log_prob_report>(1);
    cudaError_t const error = gpu::log_prob(logits, targets, outputs, report, {}, nullptr);
    column const slope = per_token(filled<float>(rows, 0.75F));
    return error != cudaSuccess ? error
                                : gpu::log_prob_gradient(logits, targets, outputs, {slope, slope}, logits, report, {}, nullptr);
}

cudaError_t routing() {
    constexpr std::int64_t rows = 4096;
    constexpr std::int64_t experts = 128;
    constexpr std::int64_t chosen = 8;
    announce(rows * experts, "logits");
    std::vector<std::int32_t> indices;
    for (std::int64_t i = 0; i < rows * chosen; ++i) {
        indices.push_back(static_cast<std::int32_t>(i / chosen % 16 + i % chosen * 16));
    }
    expert_indices const recorded{on_device(indices), rows, chosen, chosen};
    auto const numbers = [](std::int64_t columns) { return row_major(varied<float>(rows * columns, -0.5F), rows, columns); };
    output_matrix const logits = numbers(experts);
    auto* const report = filled<routing_report>(1);
    cudaError_t const error =
        gpu::routing_replay(logits, recorded, gate_rule::softmax_of_chosen, {.gates = numbers(chosen)}, report, {}, nullptr);
    return error != cudaSuccess ? error
                                : gpu::routing_replay_gradient(logits, recorded, gate_rule::softmax_of_chosen, numbers(chosen),
                                                               logits, report, {}, nullptr);
}

cudaError_t call_named(std::string const& name) {
    return name == "clip"       ? loss(make_objective(ppo_clip{}, token_mean{}))
           : name == "clip,tis" ? loss(make_objective(ppo_clip{}, tis{}, token_mean{}))
           : name == "clip,mis" ? loss(make_objective(ppo_clip{}, mis{}, token_mean{counted::kept}))
           : name == "clip,tis,bf16"
               ? loss<gpu::vector_loads::any, __nv_bfloat16>(make_objective(ppo_clip{}, tis{}, token_mean{}))
           : name == "sat"        ? loss(make_objective(sat_clip{}, anchor_rollout{}, token_mean{}))
           : name == "gspo"       ? loss(make_objective(ppo_clip{}, sequence_ratio{}, token_mean{}))
           : name == "normalised" ? loss(make_objective(ppo_clip{}, tis{}, normalised_weights{}, token_mean{counted::kept}))
           : name == "sat,gspo"   ? loss(make_objective(sat_clip{}, sequence_ratio{}, token_mean{}))
           : name == "sequence"
               ? loss(make_objective(ppo_clip{}, sequence_ratio_shared_slope{}, tis{}, band_veto{}, token_mean{counted::kept}))
           : name == "stored"          ? stored_loss()
           : name == "mismatch"        ? mismatch()
           : name == "recursions"      ? recursions()
           : name == "group_advantage" ? group_advantage()
           : name == "log_prob"        ? log_prob<float>(dtype::f32)
           : name == "log_prob,bf16"   ? log_prob<__nv_bfloat16>(dtype::bf16)
           : name == "log_prob,f16"    ? log_prob<__half>(dtype::f16)
           : name == "routing"         ? routing()
                                       : cudaErrorInvalidValue;
}

}  // namespace

int main(int argc, char** argv) {
    cudaError_t error = call_named(argc > 1 ? argv[1] : "");
    error = error == cudaSuccess ? cudaDeviceSynchronize() : error;
    std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
    return error == cudaSuccess ? 0 : 1;
}
