// SPDX-License-Identifier: Apache-2.0
// A captured step whose clip and penalty follow a schedule. Quoted by docs/cuda.md; compiled, and run by no test of its own.
#include <asyncrl/cuda.cuh>

#include <cmath>
#include <stdexcept>

namespace docs {

using namespace asyncrl;

/// All in device memory.
struct step_memory {
    token_batch batch;
    output_column gradient;
    totals* sums;
    loss_report* report;
    gpu::workspace scratch;
    void* numbers;          ///< scheduled_bytes()
    float const* upstream;  ///< one number
};

namespace {

void must(cudaError_t error) {
    if (error != cudaSuccess) {
        throw std::runtime_error(cudaGetErrorString(error));
    }
}

// [snippet: schedule]
/// What the step is at one moment of the run.
auto objective_at(double clip, double kl) {
    return make_objective(ppo_clip{.low = clip, .high = clip}, tis{.cap = 2}, k3_penalty{.coefficient = kl}, token_mean{});
}
using scheduled_loss = gpu::stored_objective<decltype(objective_at(0, 0))>;
// [snippet: end]

}  // namespace

std::size_t scheduled_bytes() {
    return scheduled_loss::bytes;
}

void run_scheduled(step_memory const& m, int steps, cudaStream_t stream) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t step = nullptr;
    // [snippet: replay]
    scheduled_loss const loss(objective_at(0.2, 0.01), m.numbers);
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    must(gpu::measure(loss, m.batch, m.sums, m.scratch, stream));
    must(gpu::policy_loss(loss, m.batch, m.sums, m.gradient, m.report, m.scratch, {.upstream = m.upstream}, stream));
    must(cudaStreamEndCapture(stream, &graph));
    must(cudaGraphInstantiate(&step, graph, 0));
    for (int i = 0; i < steps; ++i) {
        must(loss.store(objective_at(0.2, 0.01 * std::exp(-0.1 * i)), stream));
        must(cudaGraphLaunch(step, stream));
    }
    // [snippet: end]
    must(cudaStreamSynchronize(stream));
    must(cudaGraphExecDestroy(step));
    must(cudaGraphDestroy(graph));
}

}  // namespace docs
