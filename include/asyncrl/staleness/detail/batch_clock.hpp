// SPDX-License-Identifier: Apache-2.0
/// @file Which batch comes next, and how far training may run ahead of the published version.
#pragma once

#include <asyncrl/config.hpp>
#include <asyncrl/error.hpp>
#include <asyncrl/staleness/policy_version.hpp>

#include <cstdint>

ASYNCRL_BEGIN_NAMESPACE
namespace detail {

/// The version clock of a staleness control, and the batches taken since its current version.
class batch_clock {
  public:
    batch_clock(policy_version first, std::int64_t publish_interval)
        : versions_(first), next_batch_(first), publish_interval_(publish_interval) {}

    [[nodiscard]] version_clock const& versions() const noexcept { return versions_; }
    [[nodiscard]] policy_version current() const noexcept { return versions_.current(); }
    [[nodiscard]] policy_version next_batch() const noexcept { return next_batch_; }
    [[nodiscard]] bool in_training() const noexcept { return next_batch_ > current(); }
    [[nodiscard]] bool may_take() const noexcept { return next_batch_.value - current().value < publish_interval_; }

    void take() noexcept { ++next_batch_.value; }

    policy_version begin() {
        detail::require(in_training(), "published version", next_batch_.value + 1,
                        "preceded by taking the batch that makes it");
        versions_.begin(next_batch_);
        return next_batch_;
    }
    policy_version commit() { return versions_.commit(); }
    void abort() { versions_.abort(); }

  private:
    version_clock versions_;
    policy_version next_batch_;
    std::int64_t publish_interval_;
};

}  // namespace detail
ASYNCRL_END_NAMESPACE
