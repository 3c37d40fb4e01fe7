// SPDX-License-Identifier: Apache-2.0
/// @file A test batch in device memory; calls on it and what they left.
#pragma once

#include "correction/support/batches.hpp"
#include "device_calls.hpp"
#include "device_memory.hpp"
#include "host_calls.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

namespace device {

using asyncrl::dtype;
using asyncrl::loss_options;
using asyncrl::loss_report;
using asyncrl::totals;
using support::laid_out;
using support::outputs;

/// What a pair of calls left behind. Outputs include the guards around them.
struct outcome {
    totals sums;
    loss_report report;
    outputs out;
};

inline bool same_bits(outcome const& a, outcome const& b) {
    return std::memcmp(&a.sums, &b.sums, sizeof a.sums) == 0 && std::memcmp(&a.report, &b.report, sizeof a.report) == 0 &&
           a.out.same_bits(b.out);
}

/// A batch, its outputs and a workspace on the device.
class on_device {
  public:
    on_device(laid_out const& b, dtype type)
        : host_(b),
          fresh_(b, type),
          log_prob_(b.log_prob),
          old_log_prob_(b.old_log_prob),
          rollout_log_prob_(b.rollout_log_prob),
          advantage_(b.advantage),
          mask_(b.mask),
          offsets_(offset_bytes(b)),
          gradient_(fresh_.gradient),
          loss_(fresh_.loss),
          weight_(fresh_.weight),
          flags_(flag_bytes(fresh_)),
          sums_(sizeof(totals)),
          report_(sizeof(loss_report)),
          room_(workspace_bytes(b.batch)),
          batch(b.batch) {
        batch.log_prob = log_prob_.in();
        batch.old_log_prob = old_log_prob_.in();
        batch.rollout_log_prob = rollout_log_prob_.in();
        batch.advantage = advantage_.in();
        batch.mask = b.batch.mask ? mask_.in() : asyncrl::column{};
        if (b.batch.packed()) {
            batch.offsets = wide(b) ? asyncrl::row_offsets(reinterpret_cast<std::int64_t const*>(offsets_.data()))
                                    : asyncrl::row_offsets(reinterpret_cast<std::int32_t const*>(offsets_.data()));
        }
        to = {gradient_.out(), loss_.out(), weight_.out(),
              reinterpret_cast<std::uint16_t*>(flags_.data()) + outputs::flag_guard};
    }
    explicit on_device(laid_out const& b) : on_device(b, b.kinds().output) {}

    [[nodiscard]] totals* sums() const { return sums_.as<totals>(); }
    [[nodiscard]] loss_report* report() const { return report_.as<loss_report>(); }
    [[nodiscard]] scratch room() const { return {room_.data(), room_.bytes()}; }

    void measure(method const& m, cudaStream_t stream = nullptr) const {
        must(device::measure(m, batch, sums(), room(), stream));
    }
    void policy_loss(method const& m, loss_options const& options = {}, cudaStream_t stream = nullptr) const {
        must(device::policy_loss(m, batch, sums(), to, report(), room(), options, stream));
    }

    /// Waits for the device. Throws if anything was written that is not an output.
    [[nodiscard]] outcome fetch() const {
        must(cudaDeviceSynchronize());
        outputs out(host_, fresh_.gradient.type());
        gradient_.fetch(out.gradient);
        loss_.fetch(out.loss);
        weight_.fetch(out.weight);
        flags_.read(out.flag_words.data());
        outcome all{sums_.value<totals>(), report_.value<loss_report>(), std::move(out)};
        if (!sums_.guards_hold() || !report_.guards_hold() || !room_.guards_hold() || !all.out.guards_hold()) {
            throw std::runtime_error("something beside the outputs was written");
        }
        if (!log_prob_.unchanged() || !old_log_prob_.unchanged() || !rollout_log_prob_.unchanged() || !advantage_.unchanged() ||
            !mask_.unchanged()) {
            throw std::runtime_error("an input was written");
        }
        return all;
    }
    /// Nothing at all was written by anything before.
    [[nodiscard]] bool untouched() const {
        must(cudaDeviceSynchronize());
        return sums_.untouched() && report_.untouched() && room_.untouched() && gradient_.unchanged() && loss_.unchanged() &&
               weight_.unchanged() && flags_.read() == flag_bytes(fresh_);
    }

    /// Other numbers in the same places.
    void rewrite(laid_out const& b) {
        log_prob_.rewrite(b.log_prob);
        old_log_prob_.rewrite(b.old_log_prob);
        rollout_log_prob_.rewrite(b.rollout_log_prob);
        advantage_.rewrite(b.advantage);
        mask_.rewrite(b.mask);
    }

  private:
    [[nodiscard]] static bool wide(laid_out const& b) { return b.how().wide_offsets; }
    [[nodiscard]] static std::vector<unsigned char> offset_bytes(laid_out const& b) {
        std::size_t const width = wide(b) ? 8 : 4;
        std::vector<unsigned char> bytes(b.batch.packed() ? static_cast<std::size_t>(b.batch.rows + 1) * width : 1);
        for (std::int64_t row = 0; b.batch.packed() && row <= b.batch.rows; ++row) {
            std::int64_t const offset = b.batch.offsets[row];  // little endian: its low half comes first
            std::memcpy(bytes.data() + static_cast<std::size_t>(row) * width, &offset, width);
        }
        return bytes;
    }
    [[nodiscard]] static std::vector<unsigned char> flag_bytes(outputs const& out) {
        std::vector<unsigned char> bytes(out.flag_words.size() * 2);
        std::memcpy(bytes.data(), out.flag_words.data(), bytes.size());
        return bytes;
    }

    laid_out const& host_;
    outputs fresh_;
    device_column log_prob_, old_log_prob_, rollout_log_prob_, advantage_, mask_;
    buffer offsets_;
    device_column gradient_, loss_, weight_;
    buffer flags_;
    guarded sums_, report_, room_;

  public:
    asyncrl::token_batch batch;
    asyncrl::loss_outputs to;
};

/// measure, then policy_loss with its totals.
inline outcome run(method const& m, laid_out const& b, loss_options const& options = {}) {
    on_device d(b);
    d.measure(m);
    d.policy_loss(m, options);
    return d.fetch();
}

}  // namespace device
