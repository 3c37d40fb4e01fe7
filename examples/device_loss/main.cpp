// SPDX-License-Identifier: Apache-2.0
// A training step's loss on the GPU, from a program that nvcc does not see: captured once, replayed, and compared with the
// host's. Ends with 77 where there is no device.
#include "trainer_loss.hpp"

#include <asyncrl/correction.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr std::int64_t rows = 8;
constexpr std::int64_t tokens = 1000;

void must(cudaError_t error) {
    if (error != cudaSuccess) {
        throw std::runtime_error(cudaGetErrorString(error));
    }
}

struct device_free {
    void operator()(void* data) const { (void)cudaFree(data); }
};
template <typename Element>
using device_array = std::unique_ptr<Element[], device_free>;

template <typename Element>
device_array<Element> on_device(std::vector<Element> const& from) {
    void* data = nullptr;
    must(cudaMalloc(&data, from.size() * sizeof(Element)));
    device_array<Element> array(static_cast<Element*>(data));
    must(cudaMemcpy(data, from.data(), from.size() * sizeof(Element), cudaMemcpyHostToDevice));
    return array;
}

template <typename Element>
void read_back(Element* to, Element const* from, std::size_t count) {
    must(cudaMemcpy(to, from, count * sizeof(Element), cudaMemcpyDeviceToHost));
}

/// Columns of a batch in which tokens have drifted from who sampled them.
struct columns {
    std::vector<float> log_prob, old_log_prob, rollout_log_prob, advantage;
    std::vector<std::uint8_t> mask;

    columns() {
        for (std::int64_t i = 0; i < rows * tokens; ++i) {
            auto const x = static_cast<float>(i);
            rollout_log_prob.push_back(-1.5F + std::sin(x));
            old_log_prob.push_back(rollout_log_prob.back() + 0.4F * std::sin(3 * x));
            log_prob.push_back(old_log_prob.back() + 0.3F * std::sin(7 * x));
            mask.push_back(i % tokens < 600 ? 1 : 0);
        }
        for (std::int64_t row = 0; row < rows; ++row) {
            advantage.push_back(row % 2 == 0 ? 1.0F : -0.5F);
        }
    }
};

asyncrl::token_batch batch_of(float const* log_prob, float const* old_log_prob, float const* rollout_log_prob,
                              float const* advantage, std::uint8_t const* mask) {
    asyncrl::token_batch batch{.rows = rows, .tokens = tokens};
    batch.log_prob = asyncrl::per_token(log_prob, tokens);
    batch.old_log_prob = asyncrl::per_token(old_log_prob, tokens);
    batch.rollout_log_prob = asyncrl::per_token(rollout_log_prob, tokens);
    batch.advantage = asyncrl::per_sequence(advantage);
    batch.mask = asyncrl::per_token(mask, tokens);
    return batch;
}

int run() {
    columns const host;
    auto const log_prob = on_device(host.log_prob);
    auto const old_log_prob = on_device(host.old_log_prob);
    auto const rollout_log_prob = on_device(host.rollout_log_prob);
    auto const advantage = on_device(host.advantage);
    auto const mask = on_device(host.mask);
    asyncrl::token_batch const batch =
        batch_of(log_prob.get(), old_log_prob.get(), rollout_log_prob.get(), advantage.get(), mask.get());
    auto const gradient = on_device(std::vector<float>(host.log_prob.size()));
    auto const totals = on_device(std::vector<asyncrl::totals>(1));
    auto const report = on_device(std::vector<asyncrl::loss_report>(1));
    auto const memory = on_device(std::vector<std::uint8_t>(trainer::loss_scratch_bytes(batch)));
    trainer::device_scratch const scratch{memory.get(), trainer::loss_scratch_bytes(batch)};

    if (std::string const why = trainer::loss_refusal(batch, gradient.get(), totals.get(), report.get(), scratch);
        !why.empty()) {
        throw std::invalid_argument(why);
    }
    std::puts(trainer::loss_refusal(batch, gradient.get(), totals.get(), report.get(), {memory.get(), 100}).c_str());

    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t step = nullptr;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    // [snippet: capture]
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    must(trainer::loss(batch, gradient.get(), totals.get(), report.get(), scratch, stream));
    must(cudaStreamEndCapture(stream, &graph));
    must(cudaGraphInstantiate(&step, graph, 0));
    for (int update = 0; update < 3; ++update) {
        must(cudaGraphLaunch(step, stream));  // reads what the columns hold now; the pointers are those of the capture
    }
    // [snippet: end]
    must(cudaStreamSynchronize(stream));
    must(cudaGraphExecDestroy(step));
    must(cudaGraphDestroy(graph));
    must(cudaStreamDestroy(stream));

    asyncrl::loss_report on_gpu;
    std::vector<float> got(host.log_prob.size());
    read_back(&on_gpu, report.get(), 1);
    read_back(got.data(), gradient.get(), got.size());

    auto const objective =
        asyncrl::make_objective(asyncrl::ppo_clip{.low = 0.2, .high = 0.28}, asyncrl::tis{.cap = 2}, asyncrl::token_mean{});
    asyncrl::token_batch const on_host = batch_of(host.log_prob.data(), host.old_log_prob.data(), host.rollout_log_prob.data(),
                                                  host.advantage.data(), host.mask.data());
    asyncrl::workspace workspace(on_host);
    std::vector<float> want(got.size());
    asyncrl::loss_report const on_cpu =
        asyncrl::policy_loss(objective, on_host, asyncrl::measure(objective, on_host, workspace),
                             asyncrl::per_token(want.data(), tokens), workspace);

    float largest = 0;
    float difference = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        largest = std::max(largest, std::abs(want[i]));
        difference = std::max(difference, std::abs(got[i] - want[i]));
    }
    std::printf("loss %.6f on the device, %.6f on the host; %lld of %lld tokens clipped\n", on_gpu.sums.loss, on_cpu.sums.loss,
                static_cast<long long>(on_gpu.counts.clipped_high + on_gpu.counts.clipped_low),
                static_cast<long long>(on_gpu.counts.tokens));
    return difference <= 4e-6F * largest && on_gpu.counts.clipped_high == on_cpu.counts.clipped_high ? 0 : 1;
}

}  // namespace

int main() {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        std::puts("skipped: no device");
        return 77;
    }
    try {
        return run();
    } catch (std::exception const& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
