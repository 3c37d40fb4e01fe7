// SPDX-License-Identifier: Apache-2.0
/// @file Opaque names of a policy's versions (a hash, a time stamp, an id), numbered in the order in which they are first seen;
/// and loss masks by label.
#pragma once

#include <asyncrl/config.hpp>
#include <asyncrl/error.hpp>
#include <asyncrl/fwd.hpp>
#include <asyncrl/staleness/policy_version.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

ASYNCRL_BEGIN_NAMESPACE

/// The label without white space around it, or nothing if it names no version: "", "-1", "unknown" and "none", in any case of
/// letters. What has no real label is inert everywhere: it moves no window, and is neither dropped nor counted as fresh.
[[nodiscard]] constexpr std::optional<std::string_view> real_label(std::string_view text) noexcept {
    constexpr std::string_view space = " \t\n\r\f\v";
    std::size_t const first = text.find_first_not_of(space);
    if (first == std::string_view::npos) {
        return std::nullopt;
    }
    text = text.substr(first, text.find_last_not_of(space) - first + 1);
    auto const is = [text](std::string_view lower) {
        return std::equal(text.begin(), text.end(), lower.begin(), lower.end(),
                          [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b; });
    };
    return is("-1") || is("unknown") || is("none") ? std::nullopt : std::optional(text);
}

struct version_labels_options {
    /// How many of the newest labels keep a number of their own: at least the longest window plus the versions that units in
    /// flight may carry.
    std::int64_t numbered = 1024;
    /// Only `publish` brings new labels: for a trainer that names its own versions. Memory then does not grow: a label older
    /// than the numbered ones is as unknown to the object as one that was never published.
    bool published_only = false;
    /// How many labels older than the numbered ones are remembered, 8 bytes each; the oldest are forgotten first. Without a
    /// value, all: one that is forgotten counts as new when it comes again.
    std::optional<std::int64_t> max_remembered = std::nullopt;
};

/// Numbers labels 0, 1, 2, ... in order of first observation. The text of a label says nothing about its age: "v10" is newer
/// than "v2" only if it was seen later.
///
/// Two labels are told apart by a 64-bit fingerprint; with 10^6 labels the odds that any two collide are 3e-8.
///
/// Cost: O(1) for the newest label, O(numbered) for the others of those, O(log^2 n) for n older ones and for a new label, which
/// also allocates now and then. Not thread-safe.
class version_labels {
  public:
    /// Throws std::invalid_argument unless numbered >= 1 and max_remembered >= 0.
    explicit version_labels(version_labels_options const& options = {}) : options_(options) {
        detail::require(options.numbered >= 1, "numbered", options.numbered, "at least 1");
        detail::require(options.max_remembered.value_or(0) >= 0, "max_remembered", options.max_remembered.value_or(0),
                        "at least 0, or absent");
        newest_.resize(static_cast<std::size_t>(options.numbered));
    }

    /// The label's number; one not seen before becomes the newest. None for a label that is not real.
    std::optional<policy_version> publish(std::string_view label) {
        auto const name = real_label(label);
        if (!name) {
            return std::nullopt;
        }
        std::uint64_t const print = fingerprint(*name);
        auto const known = number_of(print);
        return known ? known : std::optional(append(print));
    }

    /// The same for a label that came with a sample. None also where only published labels count and this is not one of those
    /// remembered; `unversioned()` and `unpublished()` count the two cases.
    std::optional<policy_version> observe(std::string_view label) {
        if (!options_.published_only) {
            auto const number = publish(label);
            unversioned_ += number ? 0 : 1;
            return number;
        }
        auto const number = find(label);
        if (!number) {
            ++(real_label(label) ? unpublished_ : unversioned_);
        }
        return number;
    }

    /// The number of a label seen before. Labels older than the numbered ones share a number: that of the youngest of them.
    [[nodiscard]] std::optional<policy_version> find(std::string_view label) const {
        auto const name = real_label(label);
        return name ? number_of(fingerprint(*name)) : std::nullopt;
    }

    /// The number of the label seen first last.
    [[nodiscard]] std::optional<policy_version> newest() const noexcept {
        return seen_ == 0 ? std::nullopt : std::optional(policy_version{seen_ - 1});
    }

    /// Labels numbered so far.
    [[nodiscard]] std::int64_t seen() const noexcept { return seen_; }

    /// Labels of which the object knows that it has seen them.
    [[nodiscard]] std::int64_t remembered() const noexcept { return seen_ - forgotten_; }

    /// Labels that would count as new, or as never published, if they came again.
    [[nodiscard]] std::int64_t forgotten() const noexcept { return forgotten_; }

    /// Observations that named no version.
    [[nodiscard]] std::int64_t unversioned() const noexcept { return unversioned_; }

    /// Observations of labels that are not among the published ones remembered.
    [[nodiscard]] std::int64_t unpublished() const noexcept { return unpublished_; }

  private:
    using prints = std::vector<std::uint64_t>;

    // FNV-1a, then the finish of splitmix64, so that all bits depend on all characters. Not std::hash: its values are not the
    // same everywhere.
    static constexpr std::uint64_t fingerprint(std::string_view label) noexcept {
        std::uint64_t hash = 0xcbf29ce484222325U;
        for (char const c : label) {
            hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
        }
        hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9U;
        hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebU;
        return hash ^ (hash >> 31);
    }

    std::size_t ring(std::int64_t number) const noexcept { return static_cast<std::size_t>(number % options_.numbered); }
    std::int64_t first_numbered() const noexcept { return std::max<std::int64_t>(seen_ - options_.numbered, 0); }

    std::optional<policy_version> number_of(std::uint64_t print) const noexcept {
        for (std::int64_t number = seen_ - 1; number >= first_numbered(); --number) {
            if (newest_[ring(number)] == print) {
                return policy_version{number};
            }
        }
        for (prints const& run : older_) {
            if (std::binary_search(run.begin(), run.end(), print)) {
                return policy_version{first_numbered() - 1};
            }
        }
        return std::nullopt;
    }

    policy_version append(std::uint64_t print) {
        if (seen_ >= options_.numbered) {
            remember(newest_[ring(seen_)]);
        }
        newest_[ring(seen_)] = print;
        return {.value = seen_++};
    }

    // Older labels sit in sorted runs, oldest run first. Two runs of one size become one, so that there are about log2(n) of
    // them, and no byte is spent but the prints. Where memory is limited a run holds at most an eighth of it, so that
    // forgetting the oldest run forgets few.
    void remember(std::uint64_t print) {
        std::int64_t const limit = options_.published_only ? 0 : options_.max_remembered.value_or(seen_);
        if (limit == 0) {
            ++forgotten_;
            return;
        }
        older_.push_back({print});
        ++older_count_;
        std::size_t const largest_run =
            options_.max_remembered ? static_cast<std::size_t>(std::max<std::int64_t>(limit / 8, 1)) : older_.max_size();
        while (older_.size() > 1 && older_.back().size() == std::prev(older_.end(), 2)->size() &&
               2 * older_.back().size() <= largest_run) {
            prints const& younger = older_.back();
            prints& last = *std::prev(older_.end(), 2);
            prints both(last.size() + younger.size());
            std::merge(last.begin(), last.end(), younger.begin(), younger.end(), both.begin());
            last = std::move(both);
            older_.pop_back();
        }
        if (older_count_ > limit) {
            auto const size = static_cast<std::int64_t>(older_.front().size());
            forgotten_ += size;
            older_count_ -= size;
            older_.erase(older_.begin());
        }
    }

    version_labels_options options_;
    prints newest_;  // ring: the prints of the numbered labels
    std::vector<prints> older_;
    std::int64_t older_count_ = 0;
    std::int64_t seen_ = 0;
    std::int64_t forgotten_ = 0;
    std::int64_t unversioned_ = 0;
    std::int64_t unpublished_ = 0;
};

/// `tokens` consecutive tokens that came with one label, real or not.
struct label_run {
    std::string_view label = {};
    std::int64_t tokens = 0;
};

namespace detail {

inline void require_one_per_token(std::span<label_run const> runs, std::span<std::uint8_t const> mask) {
    std::int64_t tokens = 0;
    for (label_run const& run : runs) {
        require(run.tokens >= 0, "tokens of a run", run.tokens, "at least 0");
        tokens += run.tokens;
    }
    require(static_cast<std::int64_t>(mask.size()) == tokens, "mask size", mask.size(), "one entry per token");
}

/// Calls visit(run, its part of the mask) for each run.
template <typename Visit>
void for_each_run(std::span<label_run const> runs, std::span<std::uint8_t> mask, Visit visit) {
    for (label_run const& run : runs) {
        visit(run, mask.first(static_cast<std::size_t>(run.tokens)));
        mask = mask.subspan(static_cast<std::size_t>(run.tokens));
    }
}

[[nodiscard]] inline bool keeps_any(std::span<std::uint8_t const> mask) noexcept {
    return std::any_of(mask.begin(), mask.end(), [](std::uint8_t entry) { return entry != 0; });
}

[[nodiscard]] inline std::int64_t count_kept(std::span<std::uint8_t const> mask) noexcept {
    return std::count_if(mask.begin(), mask.end(), [](std::uint8_t entry) { return entry != 0; });
}

}  // namespace detail

/// Narrows a loss mask to the tokens that carry the label of its last unmasked token with a real one. Returns the tokens left.
///
/// A mask whose unmasked tokens carry one real label or none stays as it is; otherwise tokens without a real label leave it
/// too. Entries are only ever cleared (0 = masked).
/// @pre `mask` has one entry per token of the runs; throws std::invalid_argument otherwise.
inline std::int64_t keep_last_label(std::span<label_run const> runs, std::span<std::uint8_t> mask) {
    detail::require_one_per_token(runs, mask);
    std::optional<std::string_view> last;
    bool has_several = false;
    detail::for_each_run(runs, mask, [&](label_run const& run, std::span<std::uint8_t const> part) {
        auto const label = real_label(run.label);
        if (label && detail::keeps_any(part)) {
            has_several = has_several || (last && *last != *label);
            last = label;
        }
    });
    if (has_several) {
        detail::for_each_run(runs, mask, [&](label_run const& run, std::span<std::uint8_t> part) {
            if (real_label(run.label) != last) {
                std::fill(part.begin(), part.end(), std::uint8_t{0});
            }
        });
    }
    return detail::count_kept(mask);
}

/// Takes the tokens whose label is older than number `oldest` out of a loss mask. Returns the tokens left. Tokens whose label
/// is not real stay as they are; a label that `labels` does not know is older.
///
/// @pre As for `keep_last_label`.
inline std::int64_t keep_labels_not_older_than(policy_version oldest, version_labels const& labels,
                                               std::span<label_run const> runs, std::span<std::uint8_t> mask) {
    detail::require_one_per_token(runs, mask);
    detail::for_each_run(runs, mask, [&](label_run const& run, std::span<std::uint8_t> part) {
        if (real_label(run.label) && labels.find(run.label).value_or(policy_version{-1}) < oldest) {
            std::fill(part.begin(), part.end(), std::uint8_t{0});
        }
    });
    return detail::count_kept(mask);
}

ASYNCRL_END_NAMESPACE
