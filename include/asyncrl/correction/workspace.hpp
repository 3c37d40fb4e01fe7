// SPDX-License-Identifier: Apache-2.0
/// @file Scratch memory of the host loops, and how they use a caller's threads.
#pragma once

#include <asyncrl/correction/detail/check_batch.hpp>
#include <asyncrl/correction/detail/chunk.hpp>
#include <asyncrl/correction/token/sequence.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

ASYNCRL_BEGIN_NAMESPACE

/// Scratch memory for one call at a time; the only allocation of the host loops. Nothing in it outlives a call.
///
/// Thread safety: one workspace for each concurrent call.
class workspace {
  public:
    /// Room for batches of at most as many rows, segments and positions as `largest`, whose columns are not looked at.
    /// @throws std::invalid_argument if its shape is not one.
    explicit workspace(token_batch const& largest) {
        detail::check_shape(largest);
        partials_.resize(static_cast<std::size_t>(detail::chunk_count(largest.size())));
        rows_.resize(static_cast<std::size_t>(largest.rows));
        row_weights_.resize(rows_.size());
        sequences_.resize(static_cast<std::size_t>(std::max(largest.rows, largest.segment_count)));
        std::int64_t const chunks = detail::chunk_count(largest.size());
        std::int64_t const room =
            std::max(chunks * candidates_per_chunk(chunks), std::min<std::int64_t>(chunks, 16) * detail::chunk_size);
        candidates_.reset(new double[static_cast<std::size_t>(room)]);  // left unset: it costs nothing until it is used
    }

    /// @throws std::invalid_argument if the batch is larger than the one this workspace was made for.
    void require_room(token_batch const& batch) const {
        auto const most = [](std::size_t room) { return [room] { return "at most the workspace's " + detail::text(room); }; };
        detail::require(batch.rows <= static_cast<std::int64_t>(rows_.size()), "token_batch.rows", batch.rows,
                        most(rows_.size()));
        detail::require(!batch.segments || batch.segment_count <= static_cast<std::int64_t>(sequences_.size()),
                        "token_batch.segment_count", batch.segment_count, most(sequences_.size()));
        detail::require(detail::chunk_count(batch.size()) <= static_cast<std::int64_t>(partials_.size()), "token_batch.size()",
                        batch.size(), most(partials_.size() * detail::chunk_size));
    }

    /// For the library's loops: one report for each chunk, and one number for each row.
    template <typename Report>
    [[nodiscard]] Report* partials() {
        static_assert(sizeof(Report) <= sizeof(partial) && std::is_trivially_copyable_v<Report>);
        return reinterpret_cast<Report*>(partials_.data());
    }
    [[nodiscard]] double* rows() { return rows_.data(); }
    [[nodiscard]] double* row_weights() { return row_weights_.data(); }
    [[nodiscard]] detail::sequence_values* sequences() { return sequences_.data(); }
    /// Room for a few numbers of each chunk, `candidates_per_chunk` apart.
    template <typename Number>
    [[nodiscard]] Number* candidates() {
        static_assert(sizeof(Number) <= sizeof(double) && std::is_trivially_copyable_v<Number>);
        return reinterpret_cast<Number*>(candidates_.get());
    }
    /// All of a small batch, 1/8 of a large one.
    [[nodiscard]] static constexpr std::int64_t candidates_per_chunk(std::int64_t chunks) {
        return chunks <= 16 ? detail::chunk_size : detail::chunk_size / 8;
    }

  private:
    struct alignas(64) partial {
        std::byte bytes[256];
    };
    std::vector<partial> partials_;
    std::vector<double> rows_;
    std::vector<double> row_weights_;
    std::vector<detail::sequence_values> sequences_;
    std::unique_ptr<double[]> candidates_;
};

/// A reference to the work of a host loop: `task(i)` does part i. Parts are independent.
class task_ref {
  public:
    template <typename Task>
    explicit task_ref(Task const& task)
        : context_(&task), call_([](void const* context, std::int64_t i) { (*static_cast<Task const*>(context))(i); }) {}

    void operator()(std::int64_t i) const { call_(context_, i); }

  private:
    void const* context_;
    void (*call_)(void const*, std::int64_t);
};

/// How a host loop runs: any callable `(std::int64_t count, task_ref task)` that calls task(0) ... task(count - 1), in any
/// order and on any threads, and returns when all are done. The result has the same bits whatever it does.
struct serial {
    void operator()(std::int64_t count, task_ref task) const {
        for (std::int64_t i = 0; i < count; ++i) {
            task(i);
        }
    }
};

ASYNCRL_END_NAMESPACE
