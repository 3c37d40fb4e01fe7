// SPDX-License-Identifier: Apache-2.0
// One optimizer step over several ranks, each with some rows of the batch: totals and reports are all-reduced on the device,
// and each rank compares its gradient, and what all have in common, with those of the whole batch on one device. Ranks are
// threads here, with a device each; nothing would be different between processes.
//
//   multi_rank [ranks]    default: as many as there are devices
//
// Ends with 77 where there is no device.
#include "all_reduce.hpp"

#include <asyncrl/cuda.cuh>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

constexpr std::int64_t rows = 13;
constexpr std::int64_t tokens = 2048;

void must(cudaError_t error) {
    if (error != cudaSuccess) {
        throw std::runtime_error(cudaGetErrorString(error));
    }
}
void must(ncclResult_t error) {
    if (error != ncclSuccess) {
        throw std::runtime_error(ncclGetErrorString(error));
    }
}

struct device_free {
    void operator()(void* data) const { (void)cudaFree(data); }
};
template <typename Element>
using device_array = std::unique_ptr<Element[], device_free>;

template <typename Element>
device_array<Element> allocate(std::size_t count) {
    void* data = nullptr;
    must(cudaMalloc(&data, std::max<std::size_t>(count, 1) * sizeof(Element)));  // a rank may have no rows
    return device_array<Element>(static_cast<Element*>(data));
}
template <typename Element>
device_array<Element> on_device(std::vector<Element> const& from) {
    device_array<Element> to = allocate<Element>(from.size());
    must(cudaMemcpy(to.get(), from.data(), from.size() * sizeof(Element), cudaMemcpyHostToDevice));
    return to;
}
template <typename Element>
Element read_back(device_array<Element> const& from) {
    Element to;
    must(cudaMemcpy(&to, from.get(), sizeof(Element), cudaMemcpyDeviceToHost));
    return to;
}

/// The whole batch, which every rank holds for the comparison. Rows are of unequal lengths.
struct columns {
    std::vector<float> log_prob, old_log_prob, rollout_log_prob, advantage;
    std::vector<std::uint8_t> mask;

    columns() {
        for (std::int64_t i = 0; i < rows * tokens; ++i) {
            auto const x = static_cast<float>(i % 9973);
            rollout_log_prob.push_back(-1.5F + std::sin(x));
            old_log_prob.push_back(rollout_log_prob.back() + 0.9F * std::sin(3 * x));
            log_prob.push_back(old_log_prob.back() + 0.4F * std::sin(7 * x));
            mask.push_back(i % tokens < 150 * (i / tokens + 1) ? 1 : 0);
        }
        for (std::int64_t row = 0; row < rows; ++row) {
            advantage.push_back(row % 3 == 0 ? 1.0F : -0.4F);
        }
    }
};

/// What a step leaves on one device.
struct results {
    device_array<asyncrl::totals> totals = allocate<asyncrl::totals>(1);
    device_array<asyncrl::gpu::quantile_search> search = allocate<asyncrl::gpu::quantile_search>(1);
    device_array<float> gradient;
    device_array<asyncrl::loss_report> loss = allocate<asyncrl::loss_report>(1);
    device_array<asyncrl::mismatch_report> mismatch = allocate<asyncrl::mismatch_report>(1);
    device_array<std::byte> memory;
    asyncrl::gpu::workspace scratch;

    static std::size_t bytes_for(asyncrl::token_batch const& batch) {
        return std::max(asyncrl::gpu::workspace_bytes(batch), asyncrl::gpu::mismatch_workspace_bytes(batch));
    }
    explicit results(asyncrl::token_batch const& batch)
        : gradient(allocate<float>(static_cast<std::size_t>(batch.size()))),
          memory(allocate<std::byte>(bytes_for(batch))),
          scratch{memory.get(), bytes_for(batch)} {}

    [[nodiscard]] std::vector<float> read_gradient(std::int64_t first, std::int64_t end) const {
        std::vector<float> out(static_cast<std::size_t>((end - first) * tokens));
        must(cudaMemcpy(out.data(), gradient.get() + first * tokens, out.size() * sizeof(float), cudaMemcpyDeviceToHost));
        return out;
    }
};

/// SAT narrows the clip by the order statistic of the step, and weights are divided by their mean over it.
auto objective() {
    return asyncrl::make_objective(asyncrl::sat_clip{}, asyncrl::tis{.cap = 2}, asyncrl::normalised_weights{},
                                   asyncrl::token_mean{});
}

/// A step over one rank's rows.
void take_step(asyncrl::token_batch const& batch, results const& to, ncclComm_t ranks, cudaStream_t stream) {
    namespace gpu = asyncrl::gpu;
    asyncrl::totals* const totals = to.totals.get();
    gpu::quantile_search* const search = to.search.get();
    auto const reduce = [&](auto* of_this_rank) { must(trainer::all_reduce(of_this_rank, ranks, stream)); };
    // [snippet: step]
    must(gpu::measure(objective(), batch, totals, to.scratch, stream));
    reduce(totals);
    must(gpu::start_search(search, stream));  // for SAT; measure has left the order statistic of this rank alone
    for (int round = 0; round < gpu::search_rounds(objective()); ++round) {
        must(gpu::count_magnitudes(objective(), batch, search, to.scratch, stream));
        reduce(&search->counts);
        must(gpu::narrow(objective(), search, totals, stream));
    }
    must(gpu::policy_loss(objective(), batch, totals, asyncrl::per_token(to.gradient.get(), batch.tokens), to.loss.get(),
                          to.scratch, stream));
    reduce(to.loss.get());
    must(gpu::mismatch(batch, to.mismatch.get(), to.scratch, stream));
    reduce(to.mismatch.get());
    // [snippet: end]
}

/// The same over the whole batch, on one device.
void take_step(asyncrl::token_batch const& batch, results const& to, cudaStream_t stream) {
    namespace gpu = asyncrl::gpu;
    must(gpu::measure(objective(), batch, to.totals.get(), to.scratch, stream));
    must(gpu::policy_loss(objective(), batch, to.totals.get(), asyncrl::per_token(to.gradient.get(), batch.tokens),
                          to.loss.get(), to.scratch, stream));
    must(gpu::mismatch(batch, to.mismatch.get(), to.scratch, stream));
}

template <typename Range>
bool same_bits(Range const& a, Range const& b) {
    return std::memcmp(&a, &b, sizeof(Range)) == 0;
}
/// Rows are chunks of these sums, which are added up in double: in another order for ranks than for the whole batch.
template <typename Range>
bool close(Range const& a, Range const& b) {
    double x[sizeof(Range) / 8];
    double y[sizeof(Range) / 8];
    std::memcpy(x, &a, sizeof(Range));
    std::memcpy(y, &b, sizeof(Range));
    return std::equal(std::begin(x), std::end(x), std::begin(y),
                      [](double one, double other) { return std::abs(one - other) <= 1e-12 * rows * tokens; });
}

/// @return whether this rank has what the whole batch gives.
bool train(int rank, int ranks, ncclUniqueId const& id) {
    int devices = 0;
    must(cudaGetDeviceCount(&devices));
    must(cudaSetDevice(rank % devices));
    ncclComm_t group = nullptr;
    cudaStream_t stream = nullptr;
    must(ncclCommInitRank(&group, ranks, id, rank));
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

    columns const host;
    auto const log_prob = on_device(host.log_prob);
    auto const old_log_prob = on_device(host.old_log_prob);
    auto const rollout_log_prob = on_device(host.rollout_log_prob);
    auto const advantage = on_device(host.advantage);
    auto const mask = on_device(host.mask);
    auto const rows_from = [&](std::int64_t first, std::int64_t end) {
        asyncrl::token_batch batch{.rows = end - first, .tokens = tokens};
        batch.log_prob = asyncrl::per_token(log_prob.get() + first * tokens, tokens);
        batch.old_log_prob = asyncrl::per_token(old_log_prob.get() + first * tokens, tokens);
        batch.rollout_log_prob = asyncrl::per_token(rollout_log_prob.get() + first * tokens, tokens);
        batch.advantage = asyncrl::per_sequence(advantage.get() + first);
        batch.mask = asyncrl::per_token(mask.get() + first * tokens, tokens);
        return batch;
    };
    std::int64_t const first = rows * rank / ranks;
    std::int64_t const end = rows * (rank + 1) / ranks;
    results const of_rank(rows_from(first, end));
    results const of_all(rows_from(0, rows));
    take_step(rows_from(first, end), of_rank, group, stream);
    take_step(rows_from(0, rows), of_all, stream);
    must(cudaStreamSynchronize(stream));
    must(cudaStreamDestroy(stream));
    must(ncclCommDestroy(group));

    auto const totals = read_back(of_rank.totals);
    auto const loss = read_back(of_rank.loss);
    auto const all_loss = read_back(of_all.loss);
    auto const mismatch = read_back(of_rank.mismatch);
    auto const all_mismatch = read_back(of_all.mismatch);
    bool const gradients = totals.quantile == read_back(of_all.totals).quantile &&
                           of_rank.read_gradient(0, end - first) == of_all.read_gradient(first, end);
    bool const losses =
        close(loss.sums, all_loss.sums) && same_bits(loss.counts, all_loss.counts) && same_bits(loss.maxima, all_loss.maxima);
    bool const mismatches = close(mismatch.sums, all_mismatch.sums) && same_bits(mismatch.counts, all_mismatch.counts) &&
                            same_bits(mismatch.maxima, all_mismatch.maxima) &&
                            same_bits(mismatch.histogram, all_mismatch.histogram);
    std::printf("rank %d of %d: %lld of %lld tokens, quantile %.6f, loss %.6f, KL %.6f; gradient %s, report %s, mismatch %s\n",
                rank, ranks,
                static_cast<long long>(std::count(host.mask.begin() + first * tokens, host.mask.begin() + end * tokens, 1)),
                static_cast<long long>(loss.counts.tokens), totals.quantile, loss.sums.loss, mismatch.k1(),
                gradients ? "agrees" : "DIFFERS", losses ? "agrees" : "DIFFERS", mismatches ? "agrees" : "DIFFERS");
    return gradients && losses && mismatches && totals.counts.batches == ranks;
}

}  // namespace

int main(int argc, char** argv) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        std::puts("skipped: no device");
        return 77;
    }
    int const ranks = argc > 1 ? std::atoi(argv[1]) : devices;
    ncclUniqueId id;
    if (ranks < 1 || ncclGetUniqueId(&id) != ncclSuccess) {
        std::fputs("usage: multi_rank [ranks]\n", stderr);
        return 2;
    }
    std::atomic<int> agreeing = 0;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] {
            try {
                agreeing += train(rank, ranks, id) ? 1 : 0;
            } catch (std::exception const& error) {
                std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
                std::_Exit(1);  // the others would wait for this rank for ever
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    return agreeing == ranks ? 0 : 1;
}
