// SPDX-License-Identifier: Apache-2.0
/// @file Which version made which tokens of one trajectory, as runs; and loss masks by version.
#pragma once

#include <asyncrl/config.hpp>
#include <asyncrl/error.hpp>
#include <asyncrl/fwd.hpp>
#include <asyncrl/staleness/policy_version.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

ASYNCRL_BEGIN_NAMESPACE

/// `tokens` consecutive tokens made by one version.
struct version_run {
    policy_version version = {};
    std::int64_t tokens = 0;

    friend constexpr bool operator==(version_run, version_run) = default;
};

enum class append_status : std::uint8_t {
    appended,
    older_version,  ///< the tokens claim a version older than the last one: refused, nothing changed
};

/// The versions of one trajectory in the order of its tokens.
///
/// A partial rollout continues under newer weights, so versions never go back within a trajectory and the first run is the
/// oldest: the version that its staleness is counted from. Tokens are stamped with the version that made them when they are
/// appended; a publish in between relabels nothing.
///
/// Not thread-safe. `append` allocates only when the trajectory has more runs than the object has held before; `clear` keeps
/// the memory.
class version_runs {
  public:
    /// Adds tokens at the end; zero tokens change nothing.
    ///
    /// @pre `tokens` and `version` are not negative.
    append_status append(policy_version version, std::int64_t tokens) {
        detail::require(tokens >= 0, "tokens", tokens, "at least 0");
        detail::require(version.value >= 0, "version", version.value, "at least 0");
        if (!runs_.empty() && version < runs_.back().version) {
            return append_status::older_version;
        }
        if (tokens == 0) {
            return append_status::appended;
        }
        if (!runs_.empty() && version == runs_.back().version) {
            runs_.back().tokens += tokens;
        } else {
            runs_.push_back({.version = version, .tokens = tokens});
        }
        tokens_ += tokens;
        return append_status::appended;
    }

    void clear() noexcept {
        runs_.clear();
        tokens_ = 0;
    }

    void reserve(std::size_t runs) { runs_.reserve(runs); }

    [[nodiscard]] std::span<version_run const> runs() const noexcept { return runs_; }

    [[nodiscard]] std::int64_t tokens() const noexcept { return tokens_; }

    /// Version of the first token; none without tokens.
    [[nodiscard]] std::optional<policy_version> oldest() const noexcept {
        return runs_.empty() ? std::nullopt : std::optional(runs_.front().version);
    }

    /// Version of the last token; none without tokens.
    [[nodiscard]] std::optional<policy_version> last() const noexcept {
        return runs_.empty() ? std::nullopt : std::optional(runs_.back().version);
    }

    /// Number of distinct versions: 1 for an uninterrupted trajectory.
    [[nodiscard]] std::int64_t span() const noexcept { return static_cast<std::int64_t>(runs_.size()); }

    /// How often the weights changed within the trajectory.
    [[nodiscard]] std::int64_t switches() const noexcept { return std::max<std::int64_t>(span() - 1, 0); }

    /// Narrows a loss mask to the tokens made by the version of its last unmasked token. Returns the tokens left in the mask.
    ///
    /// `mask` has one byte per token, 0 = masked; entries are only ever cleared, so prompt and tool tokens stay out.
    /// @pre `mask.size() == tokens()`.
    std::int64_t keep_last_version(std::span<std::uint8_t> mask) const {
        require_one_per_token(mask);
        std::size_t end = mask.size();
        for (auto run = runs_.rbegin(); run != runs_.rend(); ++run) {
            std::size_t const begin = end - static_cast<std::size_t>(run->tokens);
            if (std::any_of(mask.begin() + signed_size(begin), mask.begin() + signed_size(end), is_kept)) {
                std::fill(mask.begin(), mask.begin() + signed_size(begin), std::uint8_t{0});
                break;
            }
            end = begin;
        }
        return count_kept(mask);
    }

    /// Narrows a loss mask to the tokens made by `oldest` or a newer version. Returns the tokens left in the mask.
    ///
    /// @pre As for `keep_last_version`.
    std::int64_t keep_not_older_than(policy_version oldest, std::span<std::uint8_t> mask) const {
        require_one_per_token(mask);
        auto position = mask.begin();
        for (version_run const& run : runs_) {
            if (run.version >= oldest) {
                break;
            }
            position = std::fill_n(position, run.tokens, std::uint8_t{0});
        }
        return count_kept(mask);
    }

  private:
    static bool is_kept(std::uint8_t entry) noexcept { return entry != 0; }
    static std::ptrdiff_t signed_size(std::size_t size) noexcept { return static_cast<std::ptrdiff_t>(size); }
    static std::int64_t count_kept(std::span<std::uint8_t const> mask) noexcept {
        return std::count_if(mask.begin(), mask.end(), is_kept);
    }
    void require_one_per_token(std::span<std::uint8_t const> mask) const {
        detail::require(static_cast<std::int64_t>(mask.size()) == tokens_, "mask size", mask.size(), "one entry per token");
    }

    std::vector<version_run> runs_;
    std::int64_t tokens_ = 0;
};

ASYNCRL_END_NAMESPACE
