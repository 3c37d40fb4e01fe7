// SPDX-License-Identifier: Apache-2.0
// A trainer with device pointers, a stream and a graph of its own, to which the library is one call: loss.hpp declares it,
// loss.cu is all that nvcc compiles. The step is captured once and replayed as the policy drifts, and each result is compared
// with the formula, written out below in double. Ends with 77 where there is no device.
#include "loss.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <stdexcept>
#include <vector>

namespace {

constexpr std::int64_t rows = 8;
constexpr std::int64_t tokens = 1000;
constexpr std::size_t size = rows * tokens;

void must(cudaError_t error) {
    if (error != cudaSuccess) {
        throw std::runtime_error(cudaGetErrorString(error));
    }
}

template <typename Element>
Element* allocate(std::size_t count) {
    void* data = nullptr;
    must(cudaMalloc(&data, count * sizeof(Element)));
    return static_cast<Element*>(data);
}

template <typename Element>
void send(Element* to, std::vector<Element> const& from, cudaStream_t stream) {
    must(cudaMemcpyAsync(to, from.data(), from.size() * sizeof(Element), cudaMemcpyHostToDevice, stream));
}
template <typename Element>
void fetch(Element* to, Element const* from, std::size_t count, cudaStream_t stream) {
    must(cudaMemcpyAsync(to, from, count * sizeof(Element), cudaMemcpyDeviceToHost, stream));
}

/// Answers of 600 tokens, padded. The old policy's numbers differ from those of the engine that sampled.
struct answers {
    std::vector<float> log_prob, old_log_prob, rollout_log_prob, advantage;
    std::vector<std::uint8_t> mask;

    answers() {
        for (std::size_t i = 0; i < size; ++i) {
            rollout_log_prob.push_back(-1.5F + std::sin(static_cast<float>(i)));
            old_log_prob.push_back(rollout_log_prob.back() + 0.9F * std::sin(static_cast<float>(3 * i)));
            mask.push_back(i % tokens < 600 ? 1 : 0);
        }
        for (int row = 0; row < rows; ++row) {
            advantage.push_back(row % 2 == 0 ? 1.0F : -0.5F);
        }
        log_prob = old_log_prob;
    }
    /// The new policy, some updates after the old one.
    void drift(int update) {
        for (std::size_t i = 0; i < size; ++i) {
            log_prob[i] = old_log_prob[i] + 0.15F * static_cast<float>(update) * std::sin(static_cast<float>(7 * i));
        }
    }
};

/// What the call should come to.
struct expectation {
    double loss = 0;
    std::int64_t clipped = 0;
    std::vector<double> gradient = std::vector<double>(size);

    explicit expectation(answers const& a) {
        auto const active = static_cast<double>(std::count(a.mask.begin(), a.mask.end(), 1));
        for (std::size_t i = 0; i < size; ++i) {
            if (a.mask[i] == 0) {
                continue;
            }
            double const advantage = a.advantage[i / tokens];
            double const ratio = std::exp(static_cast<double>(a.log_prob[i]) - static_cast<double>(a.old_log_prob[i]));
            double const mismatch =
                std::exp(static_cast<double>(a.old_log_prob[i]) - static_cast<double>(a.rollout_log_prob[i]));
            double const weight = std::min(mismatch, 2.0) / active;
            double const limited = std::clamp(ratio, 0.8, 1.28);
            bool const is_clipped = limited * advantage < ratio * advantage;
            loss -= weight * std::min(ratio * advantage, limited * advantage);
            gradient[i] = is_clipped ? 0 : -weight * ratio * advantage;
            clipped += is_clipped ? 1 : 0;
        }
    }
    /// To what float arithmetic leaves.
    [[nodiscard]] bool agrees(asyncrl::loss_report const& report, std::vector<float> const& got) const {
        bool same = std::abs(report.sums.loss - loss) <= 1e-5 * report.sums.absolute_loss && report.counts.nonfinite == 0 &&
                    report.counts.clipped_high + report.counts.clipped_low == clipped;
        for (std::size_t i = 0; i < size; ++i) {
            same = same && std::abs(static_cast<double>(got[i]) - gradient[i]) <= 1e-5 * std::abs(gradient[i]);
        }
        return same;
    }
};

int run() {
    cudaStream_t stream = nullptr;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    auto* const log_prob = allocate<float>(size);
    auto* const old_log_prob = allocate<float>(size);
    auto* const rollout_log_prob = allocate<float>(size);
    auto* const advantage = allocate<float>(rows);
    auto* const mask = allocate<std::uint8_t>(size);
    auto* const gradient = allocate<float>(size);
    auto* const totals = allocate<asyncrl::totals>(1);
    auto* const report = allocate<asyncrl::loss_report>(1);
    auto* const scratch = allocate<std::byte>(trainer::scratch_bytes(rows, tokens));

    answers host;
    send(old_log_prob, host.old_log_prob, stream);
    send(rollout_log_prob, host.rollout_log_prob, stream);
    send(advantage, host.advantage, stream);
    send(mask, host.mask, stream);

    trainer::device_batch const batch{rows, tokens, log_prob, old_log_prob, rollout_log_prob, advantage, mask};
    trainer::device_results const results{gradient, totals, report};
    if (std::string const why = trainer::loss_refusal(batch, results, scratch); !why.empty()) {
        throw std::invalid_argument(why);
    }
    std::printf("refused: %s\n", trainer::loss_refusal(batch, results, scratch + 64).c_str());

    cudaGraph_t graph = nullptr;
    cudaGraphExec_t step = nullptr;
    // [snippet: capture]
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    must(trainer::loss(batch, results, scratch, stream));
    must(cudaStreamEndCapture(stream, &graph));
    must(cudaGraphInstantiate(&step, graph, 0));
    // [snippet: end]

    bool all_agree = true;
    std::vector<float> got(size);
    asyncrl::loss_report said;
    for (int update = 0; update < 4; ++update) {
        host.drift(update);
        send(log_prob, host.log_prob, stream);
        must(cudaGraphLaunch(step, stream));  // reads what the columns hold now; the pointers are those of the capture
        fetch(got.data(), gradient, size, stream);
        fetch(&said, report, 1, stream);
        must(cudaStreamSynchronize(stream));

        expectation const want(host);
        bool const agrees = want.agrees(said, got);
        std::printf("update %d: loss %.6f, by hand %.6f; %lld of %lld tokens clipped, by hand %lld%s\n", update, said.sums.loss,
                    want.loss, static_cast<long long>(said.counts.clipped_high + said.counts.clipped_low),
                    static_cast<long long>(said.counts.tokens), static_cast<long long>(want.clipped),
                    agrees ? "" : "  <- they differ");
        all_agree = all_agree && agrees;
    }

    must(cudaGraphExecDestroy(step));
    must(cudaGraphDestroy(graph));
    must(cudaStreamDestroy(stream));
    for (void* const data : std::initializer_list<void*>{log_prob, old_log_prob, rollout_log_prob, advantage, mask, gradient,
                                                         totals, report, scratch}) {
        must(cudaFree(data));
    }
    return all_agree ? 0 : 1;
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
