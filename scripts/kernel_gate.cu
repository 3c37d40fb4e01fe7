// SPDX-License-Identifier: Apache-2.0
// The kernels that scripts/kernel_gate.sh looks at: those of a few objectives, and those of calls without one. As a program,
// for counting instructions: one call of an objective over 2^24 tokens of dense, aligned float columns, or log_prob and its
// gradient over 16 rows of 151,936 logits in bfloat16.
#include <asyncrl/cuda.cuh>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

namespace {

constexpr std::int64_t rows = 1 << 12;
constexpr std::int64_t tokens = 1 << 12;

template <typename Element>
Element* zeros(std::size_t count) {
    void* data = nullptr;
    cudaMalloc(&data, count * sizeof(Element));
    cudaMemset(data, 0, count * sizeof(Element));
    return static_cast<Element*>(data);
}

template <typename Objective>
cudaError_t call(Objective const& objective) {
    asyncrl::token_batch batch{.rows = rows, .tokens = tokens};
    auto const size = static_cast<std::size_t>(batch.size());
    for (asyncrl::column* const c : {&batch.log_prob, &batch.old_log_prob, &batch.rollout_log_prob, &batch.advantage}) {
        *c = asyncrl::per_token(zeros<float>(size), tokens);
    }
    auto* const mask = zeros<std::uint8_t>(size);
    cudaMemset(mask, 1, size);
    batch.mask = asyncrl::per_token(mask, tokens);
    asyncrl::gpu::workspace scratch;
    scratch.bytes = asyncrl::gpu::workspace_bytes(batch);
    scratch.data = zeros<std::byte>(scratch.bytes);
    auto* const sums = zeros<asyncrl::totals>(1);
    auto* const report = zeros<asyncrl::loss_report>(1);
    cudaError_t const error = asyncrl::gpu::measure(objective, batch, sums, scratch, nullptr);
    return error != cudaSuccess
               ? error
               : asyncrl::gpu::policy_loss(objective, batch, sums, asyncrl::per_token(zeros<float>(size), tokens), report,
                                           scratch, nullptr);
}

cudaError_t log_prob_and_gradient() {
    using namespace asyncrl;
    constexpr std::int64_t size = 16;
    constexpr std::int64_t vocabulary = 151936;
    output_matrix const logits{zeros<std::uint16_t>(size * vocabulary), dtype::bf16, size, vocabulary, vocabulary};
    auto* const targets = zeros<std::int32_t>(size);
    auto* const slopes = zeros<float>(size);
    cudaMemset(slopes, 0x3f, size * sizeof(float));
    log_prob_outputs const outputs{per_token(zeros<float>(size)), per_token(zeros<double>(size)),
                                   per_token(zeros<float>(size))};
    auto* const report = zeros<log_prob_report>(1);
    cudaError_t const error = gpu::log_prob(logits, targets, outputs, report, {}, nullptr);
    column const slope = per_token<float>(static_cast<float const*>(slopes));
    return error != cudaSuccess ? error
                                : gpu::log_prob_gradient(logits, targets, outputs, {slope, slope}, logits, report, {}, nullptr);
}

cudaError_t call_named(std::string const& name) {
    using namespace asyncrl;
    return name == "log_prob"              ? log_prob_and_gradient()
           : name == "clip"                ? call(make_objective(ppo_clip{}, token_mean{}))
           : name == "clip,tis"            ? call(make_objective(ppo_clip{}, tis{}, token_mean{}))
           : name == "clip,mis"            ? call(make_objective(ppo_clip{}, mis{}, token_mean{}))
           : name == "sat"                 ? call(make_objective(sat_clip{}, anchor_rollout{}, token_mean{}))
           : name == "sat,sequence"        ? call(make_objective(sat_clip{}, anchor_rollout{}, sequence_ratio{}, token_mean{}))
           : name == "clip,tis,normalised" ? call(make_objective(ppo_clip{}, tis{}, normalised_weights{}, token_mean{}))
           : name == "gspo"                ? call(make_objective(ppo_clip{}, sequence_ratio{}, token_mean{}))
           : name == "sequence"
               ? call(make_objective(ppo_clip{}, sequence_ratio_shared_slope{}, tis{}, band_veto{}, token_mean{}))
               : cudaErrorInvalidValue;
}

/// Refused before anything is launched: that the kernels are compiled is all.
[[maybe_unused]] cudaError_t without_objective() {
    using namespace asyncrl;
    token_batch const none{.rows = -1};
    cudaError_t error = gpu::group_advantage({}, {}, nullptr, {}, nullptr);
    error = gpu::gae(none, {}, {}, nullptr, {}, nullptr);
    error = gpu::vtrace(none, {}, {}, nullptr, {}, nullptr);
    error = gpu::retrace(none, {}, {}, nullptr, {}, nullptr);
    error = gpu::routing_replay({}, {}, {}, {}, nullptr, {}, nullptr);
    error = gpu::routing_replay_gradient({}, {}, {}, {}, {}, nullptr, {}, nullptr);
    return error == cudaErrorInvalidValue ? gpu::mismatch(none, nullptr, {}, nullptr) : error;
}

}  // namespace

int main(int argc, char** argv) {
    cudaError_t error = call_named(argc > 1 ? argv[1] : "");
    error = error == cudaSuccess ? cudaDeviceSynchronize() : error;
    std::puts(cudaGetErrorString(error));
    return error == cudaSuccess ? 0 : 1;
}
