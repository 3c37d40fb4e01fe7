// SPDX-License-Identifier: Apache-2.0
/// @file Only the last N versions may be trained on: the window, which version speaks for a trajectory, and the completed
/// groups that wait and are checked again whenever the window moves.
#pragma once

#include <asyncrl/config.hpp>
#include <asyncrl/error.hpp>
#include <asyncrl/fwd.hpp>
#include <asyncrl/staleness/policy_version.hpp>
#include <asyncrl/staleness/version_labels.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

ASYNCRL_BEGIN_NAMESPACE

// --- which version speaks for a trajectory -----------------------------------------------------------------------------------

/// One sample of a group: a segment of a trajectory, and the label of the version that made its last trainable token.
struct label_segment {
    std::string_view trajectory = {};  ///< empty: unknown, the sample is inert
    std::int64_t segment = 0;          ///< place within the trajectory; 0 where it is not known
    std::string_view label = {};       ///< not real (see `real_label`): the sample is inert
};

/// The same with numbers; an absent trajectory or version makes the sample inert.
struct version_segment {
    std::optional<std::uint64_t> trajectory = std::nullopt;
    std::int64_t segment = 0;
    std::optional<policy_version> version = std::nullopt;
};

namespace detail {

[[nodiscard]] constexpr bool has_version(label_segment const& sample) noexcept {
    return !sample.trajectory.empty() && real_label(sample.label);
}
[[nodiscard]] constexpr bool has_version(version_segment const& sample) noexcept {
    return sample.trajectory && sample.version && sample.version->value >= 0;
}

template <typename Segment, typename Visit>
std::int64_t visit_representatives(std::span<Segment const> group, Visit& visit) {
    std::int64_t inert = 0;
    for (std::size_t first = 0; first < group.size(); ++first) {
        if (!has_version(group[first])) {
            ++inert;
            continue;
        }
        auto const speaks_for_it = [&](Segment const& other) {
            return other.trajectory == group[first].trajectory && has_version(other);
        };
        auto const earlier = group.first(first);
        if (std::any_of(earlier.begin(), earlier.end(), speaks_for_it)) {
            continue;
        }
        std::size_t representative = first;
        for (std::size_t i = first + 1; i < group.size(); ++i) {
            if (group[i].segment >= group[representative].segment && speaks_for_it(group[i])) {
                representative = i;
            }
        }
        visit(representative);
    }
    return inert;
}

}  // namespace detail

/// Calls visit(index of a sample) for the sample that represents each trajectory of a group: of those with a real version the
/// one with the largest segment number, the last of several. Trajectories come in the order of their first such sample. Returns
/// how many samples have no real version or no trajectory.
///
/// A trajectory counts as fresh as its last part, however old its beginning (Dressage). Cost: O(samples^2), for the tens of a
/// group.
template <typename Visit>
std::int64_t for_each_representative(std::span<label_segment const> group, Visit visit) {
    return detail::visit_representatives(group, visit);
}
template <typename Visit>
std::int64_t for_each_representative(std::span<version_segment const> group, Visit visit) {
    return detail::visit_representatives(group, visit);
}

// --- the window --------------------------------------------------------------------------------------------------------------

enum class window_order : std::uint8_t {
    observed,  ///< versions are new in the order in which they are first seen, and only those seen take up room in the window
    numeric,   ///< versions are numbers: N wide means newest - N + 1 to newest, whether or not each was seen
};

struct batch_window_options {
    std::int64_t keep_versions = 0;  ///< N; 0: the window is off, observes nothing and finds nothing stale
    window_order order = window_order::observed;
    version_labels_options labels = {};  ///< of window_order::observed; `numbered` limits N
};

/// The window of the last N versions. A version's position is its number in the order of the window; positions below `cutoff()`
/// are stale.
///
/// Not thread-safe.
class batch_window {
  public:
    /// Throws std::invalid_argument for a negative keep_versions, one above labels.numbered, or labels outside their limits.
    explicit batch_window(batch_window_options const& options) : options_(options), labels_(options.labels) {
        set_keep_versions(options.keep_versions);
    }

    /// Tells of a version, by a sample that carries it or at its publish, and returns its position. None for what is not a
    /// real version, and while the window is off.
    ///
    /// A label that is not one of those published, where only those count, is at position -1: older than any.
    /// @pre A label only with window_order::observed: the text of a label has no numeric order.
    std::optional<policy_version> observe(std::string_view label) {
        detail::require(options_.order == window_order::observed, "order", static_cast<int>(options_.order),
                        "observed for labels");
        if (!is_on() || !real_label(label)) {
            return std::nullopt;
        }
        auto const position = labels_.observe(label).value_or(policy_version{-1});
        seen_ = labels_.seen();
        return position;
    }
    std::optional<policy_version> observe(policy_version version) {
        if (!is_on() || version.value < 0) {
            return std::nullopt;
        }
        if (options_.order == window_order::observed) {
            std::array<char, 24> text{};
            auto const end = std::to_chars(text.data(), text.data() + text.size(), version.value).ptr;
            return observe(std::string_view(text.data(), static_cast<std::size_t>(end - text.data())));
        }
        seen_ = std::max(seen_, version.value + 1);
        return version;
    }

    /// Tells of a label at its publish: the only way in where only published labels count. Otherwise as `observe`.
    std::optional<policy_version> publish(std::string_view label) {
        if (is_on() && options_.order == window_order::observed) {
            labels_.publish(label);
        }
        return observe(label);
    }

    [[nodiscard]] bool is_on() const noexcept { return options_.keep_versions > 0; }
    [[nodiscard]] std::int64_t keep_versions() const noexcept { return options_.keep_versions; }

    /// Makes the window wider or narrower, from the next check on; for schedules and windows that adapt.
    ///
    /// @pre 0 <= keep_versions, and at most labels.numbered with window_order::observed. What passed while the window was off
    /// was not seen.
    void set_keep_versions(std::int64_t keep_versions) {
        detail::require(keep_versions >= 0, "keep_versions", keep_versions, "at least 0");
        detail::require(options_.order == window_order::numeric || keep_versions <= options_.labels.numbered, "keep_versions",
                        keep_versions, "at most labels.numbered");
        options_.keep_versions = keep_versions;
    }

    /// Position of the newest version; none before the first.
    [[nodiscard]] std::optional<policy_version> newest() const noexcept {
        return seen_ == 0 ? std::nullopt : std::optional(policy_version{seen_ - 1});
    }

    /// The first position inside the window: max(0, seen - keep_versions).
    [[nodiscard]] policy_version cutoff() const noexcept {
        return {.value = is_on() ? std::max<std::int64_t>(seen_ - options_.keep_versions, 0) : 0};
    }

    [[nodiscard]] bool is_stale(policy_version position) const noexcept { return is_on() && position < cutoff(); }

    [[nodiscard]] version_labels const& labels() const noexcept { return labels_; }

  private:
    batch_window_options options_;
    version_labels labels_;
    std::int64_t seen_ = 0;
};

// --- groups that wait
// ----------------------------------------------------------------------------------------------------------

/// What leaves with a trajectory that has become stale.
enum class stale_scope : std::uint8_t {
    group,   ///< its whole group: a group's baseline is only right for all its members
    member,  ///< itself, as member_role::baseline_only or excluded
};

/// Something that fell out of the window.
template <typename Handle>
struct stale_notice {
    Handle const& handle;  ///< of the group
    std::optional<std::size_t> member =
        std::nullopt;                ///< which sample of the group, as it was added; none: the whole group leaves
    std::int64_t fresh_members = 0;  ///< trajectories of the group that have a version inside the window
};

/// Completed groups that wait for their batch. Every new version re-checks all of them, so that nothing stale is left when the
/// batch is put together.
///
/// `Handle` names a group: a unit's ticket, an index. Groups leave in three ways: stale, by `remove`, or never. Not
/// thread-safe. Cost: `add` O(samples^2), plus O(groups) when the window moved; allocates when more groups wait than ever
/// before, and with stale_scope::member for each group.
template <typename Handle>
class pending_groups {
  public:
    explicit pending_groups(batch_window_options const& window, stale_scope scope = stale_scope::group)
        : window_(window), scope_(scope) {}

    /// A group has completed: observes its representatives, re-checks those waiting if that moved the window, then checks the
    /// group itself. Calls on_stale(stale_notice<Handle> const&) for each group or member that falls out, in order of arrival.
    /// Returns whether the group waits now.
    ///
    /// on_stale must not throw, nor call this object.
    template <typename OnStale>
    bool add(Handle handle, std::span<label_segment const> group, OnStale&& on_stale) {
        return add_group(std::move(handle), group, on_stale);
    }
    template <typename OnStale>
    bool add(Handle handle, std::span<version_segment const> group, OnStale&& on_stale) {
        return add_group(std::move(handle), group, on_stale);
    }

    /// Checks all groups again, after the window was told of a version or given another width by `window()`.
    template <typename OnStale>
    void recheck(OnStale&& on_stale) {
        auto kept = entries_.begin();
        for (auto waiting = entries_.begin(); waiting != entries_.end(); ++waiting) {
            if (survives(*waiting, on_stale)) {
                if (kept != waiting) {
                    *kept = std::move(*waiting);
                }
                ++kept;
            }
        }
        entries_.erase(kept, entries_.end());
    }

    /// Takes out the groups for which leaves(handle) holds: those that a batch has taken. Returns how many.
    template <std::predicate<Handle const&> Leaves>
    std::int64_t remove_if(Leaves leaves) {
        return static_cast<std::int64_t>(std::erase_if(entries_, [&](entry const& waiting) { return leaves(waiting.handle); }));
    }

    /// Returns whether the group was waiting.
    bool remove(Handle const& handle) requires std::equality_comparable<Handle> {
        return remove_if([&](Handle const& waiting) { return waiting == handle; }) > 0;
    }

    [[nodiscard]] std::int64_t size() const noexcept { return static_cast<std::int64_t>(entries_.size()); }

    /// Samples added that had no real version or no trajectory.
    [[nodiscard]] std::int64_t unversioned() const noexcept { return unversioned_; }

    [[nodiscard]] batch_window& window() noexcept { return window_; }
    [[nodiscard]] batch_window const& window() const noexcept { return window_; }

    /// Calls visit(handle) for each group that waits, in order of arrival.
    template <typename Visit>
    void for_each(Visit visit) const {
        for (entry const& waiting : entries_) {
            visit(waiting.handle);
        }
    }

  private:
    static constexpr policy_version no_version{std::numeric_limits<std::int64_t>::max()};
    struct member {
        std::size_t sample = 0;
        policy_version position;
    };
    struct entry {
        Handle handle;
        std::vector<member> members;  // those inside the window when last checked; with stale_scope::member only
        policy_version oldest;
    };

    std::optional<policy_version> observe(label_segment const& sample) { return window_.observe(sample.label); }
    std::optional<policy_version> observe(version_segment const& sample) { return window_.observe(*sample.version); }

    template <typename Segment, typename OnStale>
    bool add_group(Handle&& handle, std::span<Segment const> group, OnStale& on_stale) {
        auto const newest_before = window_.newest();
        entry added{std::move(handle), {}, no_version};
        unversioned_ += for_each_representative(group, [&](std::size_t sample) {
            if (auto const position = observe(group[sample])) {
                added.oldest = std::min(added.oldest, *position);
                added.members.push_back({sample, *position});
            }
        });
        if (window_.newest() != newest_before) {
            recheck(on_stale);
        }
        if (!survives(added, on_stale)) {
            return false;
        }
        if (scope_ == stale_scope::group) {
            added.members = {};
        }
        entries_.push_back(std::move(added));
        return true;
    }

    /// Tells of what is stale in `group`; whether the group stays.
    template <typename OnStale>
    bool survives(entry& group, OnStale& on_stale) {
        if (!window_.is_stale(group.oldest)) {
            return true;
        }
        if (scope_ == stale_scope::group) {
            on_stale(stale_notice<Handle>{group.handle, std::nullopt, 0});
            return false;
        }
        auto const is_stale = [&](member const& one) { return window_.is_stale(one.position); };
        auto const fresh = static_cast<std::int64_t>(group.members.size()) -
                           std::count_if(group.members.begin(), group.members.end(), is_stale);
        group.oldest = no_version;
        for (member const& one : group.members) {
            if (is_stale(one)) {
                on_stale(stale_notice<Handle>{group.handle, one.sample, fresh});
            } else {
                group.oldest = std::min(group.oldest, one.position);
            }
        }
        std::erase_if(group.members, is_stale);
        return true;
    }

    batch_window window_;
    stale_scope scope_;
    std::vector<entry> entries_;
    std::int64_t unversioned_ = 0;
};

ASYNCRL_END_NAMESPACE
