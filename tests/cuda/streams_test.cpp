// SPDX-License-Identifier: Apache-2.0
// Calls inside a training step: on a stream of the caller's, behind work that is still under way, and in a captured graph.
#include "catch.hpp"
#include "support/compare.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

using namespace support;
using device::must;
using device::name_of;
using device::on_device;
using device::outcome;
using device::same_bits;
using methods::method;

namespace {

class stream {
  public:
    stream() { must(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking)); }
    stream(stream const&) = delete;
    stream& operator=(stream const&) = delete;
    ~stream() { (void)cudaStreamDestroy(handle_); }
    [[nodiscard]] cudaStream_t get() const { return handle_; }

  private:
    cudaStream_t handle_ = nullptr;
};

method method_of(methods::loss kind) {
    method m;
    m.kind = kind;
    m.reduce = methods::reduction::sequence_mean_token_mean;
    m.over_kept = m.rejects();
    return m;
}

laid_out batch_of(std::uint64_t seed) {
    source random(seed);
    return laid_out(random_batch(random, {1500, 1500, 1500}));
}

}  // namespace

TEST_CASE("both calls are captured, and each replay works on what the columns hold then") {
    laid_out const first = batch_of(1);
    laid_out const second = batch_of(2);
    for (methods::loss const kind : methods::every_loss) {
        method const m = method_of(kind);
        INFO(name_of(m));
        stream const on;
        on_device d(first);
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t replay = nullptr;
        // The strictest mode: whatever allocates, frees or waits, on any stream, is an error and ends the capture.
        must(cudaStreamBeginCapture(on.get(), cudaStreamCaptureModeGlobal));
        d.measure(m, on.get());
        d.policy_loss(m, {}, on.get());
        must(cudaStreamEndCapture(on.get(), &graph));
        REQUIRE(d.untouched());
        must(cudaGraphInstantiate(&replay, graph, 0));
        for (laid_out const* const b : {&first, &second, &first}) {
            d.rewrite(*b);
            must(cudaGraphLaunch(replay, on.get()));
            must(cudaStreamSynchronize(on.get()));
            REQUIRE(same_bits(d.fetch(), device::run(m, *b)));
        }
        must(cudaGraphExecDestroy(replay));
        must(cudaGraphDestroy(graph));
    }
}

TEST_CASE("calls wait for the stream they are given, and for no other") {
    laid_out const b = batch_of(3);
    laid_out const stale = batch_of(4);
    for (methods::loss const kind : methods::every_loss) {
        method const m = method_of(kind);
        outcome const want = device::run(m, b);
        stream const on;
        on_device const d(stale);
        // The producer: columns arrive on the same stream, and nothing waits before the calls.
        memory const* const columns[] = {&b.log_prob, &b.old_log_prob, &b.rollout_log_prob, &b.advantage, &b.mask};
        asyncrl::column const places[] = {d.batch.log_prob, d.batch.old_log_prob, d.batch.rollout_log_prob, d.batch.advantage,
                                          d.batch.mask};
        for (std::size_t i = 0; i < std::size(columns); ++i) {
            unsigned char* const begin =
                static_cast<unsigned char*>(const_cast<void*>(places[i].data)) - device::origin_of(*columns[i]);
            must(cudaMemcpyAsync(begin, columns[i]->bytes().data(), columns[i]->bytes().size(), cudaMemcpyHostToDevice,
                                 on.get()));
        }
        d.measure(m, on.get());
        d.policy_loss(m, {}, on.get());
        asyncrl::loss_report report;
        must(cudaMemcpyAsync(&report, d.report(), sizeof report, cudaMemcpyDeviceToHost, on.get()));
        must(cudaStreamSynchronize(on.get()));
        INFO(name_of(m));
        REQUIRE(std::memcmp(&report, &want.report, sizeof report) == 0);
    }
}

TEST_CASE("two streams with a workspace each do not disturb one another") {
    laid_out const one = batch_of(5);
    laid_out const two = batch_of(6);
    method const m = method_of(methods::loss::sat_tis);
    stream const first;
    stream const second;
    on_device const d(one);
    on_device const e(two);
    d.measure(m, first.get());
    e.measure(m, second.get());
    d.policy_loss(m, {}, first.get());
    e.policy_loss(m, {}, second.get());
    REQUIRE(same_bits(d.fetch(), device::run(m, one)));
    REQUIRE(same_bits(e.fetch(), device::run(m, two)));
}

TEST_CASE("a call allocates nothing") {
    laid_out const b = batch_of(7);
    on_device const d(b);
    for (int round = 0; round < 2; ++round) {  // what the runtime itself loads, it loads in the first
        std::size_t before = 0;
        std::size_t after = 0;
        std::size_t all = 0;
        must(cudaMemGetInfo(&before, &all));
        for (methods::loss const kind : methods::every_loss) {
            d.measure(method_of(kind));
            d.policy_loss(method_of(kind));
        }
        must(cudaDeviceSynchronize());
        must(cudaMemGetInfo(&after, &all));
        REQUIRE((round == 0 || after == before));
    }
}
