// SPDX-License-Identifier: Apache-2.0
/// @file Collects the members of prompt groups: the first G of G' candidates train, late and repeated ones are fenced off.
#pragma once

#include <asyncrl/config.hpp>
#include <asyncrl/error.hpp>
#include <asyncrl/fwd.hpp>
#include <asyncrl/staleness/policy_version.hpp>
#include <asyncrl/staleness/unit.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

ASYNCRL_BEGIN_NAMESPACE

/// What a member does for its group.
enum class member_role : std::uint8_t {
    trained,
    baseline_only,  ///< counts in mean and deviation of the rewards and gets no gradient: the default for one that is stale
    excluded,       ///< neither: the default for one that failed or is not finite
};

enum class member_status : std::uint8_t {
    ok,
    duplicate,    ///< this attempt has been settled before; nothing has changed
    old_attempt,  ///< the member was issued again; nothing has changed
    surplus,      ///< the group had its members already; the result was dropped and counted
    gone,         ///< the group has left, or never was; nothing has changed
};

enum class group_state : std::uint8_t {
    collecting,
    short_of_members,  ///< too few are delivered or in flight; see `short_group`
    selected,          ///< its members are there: compute the rewards, then `finish`; abort the candidates still in flight
    complete,          ///< members and rewards are there: occupy its unit
    dropped,           ///< too few members for its policy: discard its unit
};

/// What happens to a group that can no longer get all its members.
enum class short_group : std::uint8_t {
    drop,
    shrink,  ///< it waits for the candidates in flight and trains with what it has, if that is `minimum`
    wait,    ///< it stays short until a member is issued again, or the caller closes it
};

struct group_options {
    std::int64_t size = 8;                                  ///< members that make a group, G
    std::optional<std::int64_t> candidates = std::nullopt;  ///< generated at the same time, G'; default size
    short_group on_short = short_group::drop;
    std::int64_t minimum = 1;     ///< for short_group::shrink
    std::int64_t max_groups = 1;  ///< open at the same time
};

/// Names a group; the unit tells it from those that used the place before.
struct group_ticket {
    std::uint64_t unit = 0;
    std::uint32_t index = 0;
};

/// Names one attempt at one member. A plain value; the rollout worker carries it along.
struct member_ticket {
    group_ticket group = {};
    std::uint32_t member = 0;
    std::uint32_t attempt = 0;
};

/// How a group stands: what a trainer that waits for it wants to know.
struct group_view {
    group_state state = group_state::dropped;
    std::int64_t delivered = 0;  ///< trained or baseline-only
    std::int64_t trained = 0;
    std::int64_t failed = 0;
    std::int64_t in_flight = 0;
    std::int64_t needed = 0;  ///< deliveries that are missing
};

/// Everything that was ever told; members by attempt.
struct group_counters {
    std::int64_t opened = 0;
    std::int64_t completed = 0;
    std::int64_t shrunk = 0;  ///< of those, with fewer than G members
    std::int64_t dropped = 0;
    std::int64_t delivered = 0;
    std::int64_t surplus = 0;                              ///< results that came when the group had its members
    std::int64_t fenced = 0;                               ///< results of settled or old attempts, or of groups that have left
    std::array<std::int64_t, drop_reason_count> failed{};  ///< by reason
};

/// One group is one unit of a staleness control: it is admitted as one and occupies as one, when all its members and the
/// caller's post-processing are there. So no group waits for room for its last member.
///
/// Members are candidates 0 ... G' - 1, generated at the same time. The first G that are delivered are selected; what comes
/// later is counted and dropped. A member that fails may be issued again: within the group that is a new attempt, which keeps
/// the group's version (it may only be made by the same or a newer one). A group that starts from scratch is a new unit.
///
/// Cost: O(G') per call; all memory is allocated by the constructor. Not thread-safe.
template <typename Handle>
class group_assembler {
    static_assert(std::is_nothrow_default_constructible_v<Handle> && std::is_nothrow_move_assignable_v<Handle>,
                  "a handle is default constructible and moves without exceptions");

  public:
    /// Throws std::invalid_argument for an option outside its limits.
    explicit group_assembler(group_options const& options)
        : options_(checked(options)),
          candidates_(static_cast<std::size_t>(options.candidates.value_or(options.size))),
          groups_(static_cast<std::size_t>(options.max_groups)),
          members_(groups_.size() * candidates_) {
        for (std::size_t i = groups_.size(); i > 0; --i) {
            free_.push_back(static_cast<std::uint32_t>(i - 1));
        }
    }

    /// Starts a group for a unit that was just admitted; nothing, if max_groups are open.
    std::optional<group_ticket> open(std::uint64_t unit) noexcept {
        if (free_.empty()) {
            return std::nullopt;
        }
        std::uint32_t const index = free_.back();
        free_.pop_back();
        groups_[index] = {.unit = unit, .state = group_state::collecting, .is_open = true};
        for (member_record& each : of(index)) {
            each = {};
        }
        ++counters_.opened;
        return group_ticket{.unit = unit, .index = index};
    }

    /// The current attempt at a member: what its worker gets. @pre The group is open and member < candidates.
    [[nodiscard]] member_ticket ticket(group_ticket const& group, std::int64_t member) const {
        require_open(group);
        require_member(member);
        return {group, static_cast<std::uint32_t>(member), of(group.index)[static_cast<std::size_t>(member)].attempt};
    }

    /// A member's result, with the oldest version among its trained tokens. `excluded` is a failure: see `fail`.
    member_status deliver(member_ticket const& ticket, policy_version oldest, Handle result = {},
                          member_role role = member_role::trained) noexcept {
        if (role == member_role::excluded) {
            return fail(ticket);
        }
        member_status const status = check(ticket);
        if (status != member_status::ok) {
            return count_refusal(ticket, status);
        }
        member_record& each = of(ticket.group.index)[ticket.member];
        each.state = member_state::delivered;
        each.role = role;
        each.oldest = oldest;
        each.handle = std::move(result);
        ++counters_.delivered;
        settle(ticket.group.index);
        return member_status::ok;
    }

    /// A member that brings nothing, or, until `finish`, a delivered one that turns out to be useless (not finite, no tokens).
    member_status fail(member_ticket const& ticket, drop_reason reason = drop_reason::failed) noexcept {
        member_status const status = check(ticket);
        bool const is_delivered =
            status == member_status::duplicate && of(ticket.group.index)[ticket.member].state == member_state::delivered;
        if (status != member_status::ok && !(is_delivered && is_undecided(ticket.group.index))) {
            return count_refusal(ticket, status);
        }
        set_failed(of(ticket.group.index)[ticket.member], reason);
        settle(ticket.group.index);
        return member_status::ok;
    }

    /// Fails all members in flight, for instance because the group took too long; then its policy decides.
    void give_up(group_ticket const& group, drop_reason reason = drop_reason::timed_out) {
        require_open(group);
        for (member_record& each : of(group.index)) {
            if (each.state == member_state::in_flight) {
                set_failed(each, reason);
            }
        }
        settle(group.index);
    }

    /// A new attempt at a failed member. @pre The group is collecting or short, and the member has failed.
    member_ticket reissue(group_ticket const& group, std::int64_t member) {
        require_open(group);
        require_member(member);
        member_record& again = of(group.index)[static_cast<std::size_t>(member)];
        detail::require(again.state == member_state::failed && is_undecided(group.index), "member issued again", member,
                        "a failed one of a group that lacks members");
        again = {.attempt = again.attempt + 1};
        settle(group.index);
        return {group, static_cast<std::uint32_t>(member), again.attempt};
    }

    /// The caller's post-processing is done. @pre The group is selected.
    void finish(group_ticket const& group) {
        require_open(group);
        detail::require(groups_[group.index].state == group_state::selected, "finished group", group.unit, "selected before");
        groups_[group.index].state = group_state::complete;
        ++counters_.completed;
        counters_.shrunk += count(group.index).needed > 0 ? 1 : 0;
    }

    /// The group leaves, in whatever state: its unit was taken, dropped or discarded. Its tickets are void from now on.
    void close(group_ticket const& group) {
        require_open(group);
        for (member_record& each : of(group.index)) {
            each.handle = Handle{};
        }
        groups_[group.index].is_open = false;
        free_.push_back(group.index);
    }

    [[nodiscard]] group_view view(group_ticket const& group) const {
        require_open(group);
        group_view seen = count(group.index);
        seen.state = groups_[group.index].state;
        return seen;
    }

    /// The version from which the group's staleness counts: the oldest of its trained members; retag its unit to it. None
    /// without a trained member.
    [[nodiscard]] std::optional<policy_version> oldest(group_ticket const& group) const {
        require_open(group);
        std::optional<policy_version> oldest;
        for (member_record const& each : of(group.index)) {
            if (each.state == member_state::delivered && each.role == member_role::trained) {
                oldest = oldest ? std::min(*oldest, each.oldest) : each.oldest;
            }
        }
        return oldest;
    }

    /// Calls visit(std::int64_t member, member_role, Handle&) for the delivered members, in the order of their numbers.
    template <typename Visit>
    void for_each_member(group_ticket const& group, Visit visit) {
        require_open(group);
        std::int64_t number = 0;
        for (member_record& each : of(group.index)) {
            if (each.state == member_state::delivered) {
                visit(number, each.role, each.handle);
            }
            ++number;
        }
    }

    /// Calls visit(member_ticket const&) for the members in flight: once a group is selected or dropped, those to abort.
    template <typename Visit>
    void for_each_in_flight(group_ticket const& group, Visit visit) const {
        require_open(group);
        std::uint32_t number = 0;
        for (member_record const& each : of(group.index)) {
            if (each.state == member_state::in_flight) {
                visit(member_ticket{group, number, each.attempt});
            }
            ++number;
        }
    }

    [[nodiscard]] std::int64_t open_groups() const noexcept { return static_cast<std::int64_t>(groups_.size() - free_.size()); }
    [[nodiscard]] group_counters const& counters() const noexcept { return counters_; }
    [[nodiscard]] group_options const& options() const noexcept { return options_; }

  private:
    enum class member_state : std::uint8_t { in_flight, delivered, failed };

    struct member_record {
        member_state state = member_state::in_flight;
        member_role role = member_role::trained;
        std::uint32_t attempt = 0;
        policy_version oldest = {};
        Handle handle{};
    };
    struct group_record {
        std::uint64_t unit = 0;
        group_state state = group_state::dropped;
        bool is_open = false;
    };

    static group_options const& checked(group_options const& options) {
        detail::require(options.size >= 1 && options.size <= 1'000'000, "size", options.size, "1 to 1000000");
        std::int64_t const candidates = options.candidates.value_or(options.size);
        detail::require(candidates >= options.size && candidates <= 1'000'000, "candidates", candidates, "size to 1000000");
        detail::require(options.minimum >= 1 && options.minimum <= options.size, "minimum", options.minimum, "1 to size");
        detail::require(options.max_groups >= 1 && options.max_groups <= 0xffffffff, "max_groups", options.max_groups,
                        "1 to 4294967295");
        return options;
    }

    std::span<member_record> of(std::uint32_t group) noexcept {
        return std::span(members_).subspan(group * candidates_, candidates_);
    }
    std::span<member_record const> of(std::uint32_t group) const noexcept {
        return std::span(members_).subspan(group * candidates_, candidates_);
    }

    bool is_open(group_ticket const& group) const noexcept {
        return group.index < groups_.size() && groups_[group.index].is_open && groups_[group.index].unit == group.unit;
    }
    void require_open(group_ticket const& group) const { detail::require(is_open(group), "group", group.unit, "open"); }
    void require_member(std::int64_t member) const {
        detail::require(member >= 0 && member < static_cast<std::int64_t>(candidates_), "member", member,
                        "below the number of candidates");
    }
    bool is_undecided(std::uint32_t group) const noexcept {
        group_state const state = groups_[group].state;
        return state == group_state::collecting || state == group_state::short_of_members || state == group_state::selected;
    }

    member_status check(member_ticket const& ticket) const noexcept {
        if (!is_open(ticket.group) || ticket.member >= candidates_) {
            return member_status::gone;
        }
        member_record const& each = of(ticket.group.index)[ticket.member];
        if (ticket.attempt != each.attempt) {
            return member_status::old_attempt;
        }
        if (each.state != member_state::in_flight) {
            return member_status::duplicate;
        }
        group_state const state = groups_[ticket.group.index].state;
        return state == group_state::collecting || state == group_state::short_of_members ? member_status::ok
                                                                                          : member_status::surplus;
    }
    member_status count_refusal(member_ticket const& ticket, member_status status) noexcept {
        if (status == member_status::surplus) {
            of(ticket.group.index)[ticket.member].state = member_state::failed;
            ++counters_.surplus;
        } else {
            ++counters_.fenced;
        }
        return status;
    }

    void set_failed(member_record& each, drop_reason reason) noexcept {
        each.state = member_state::failed;
        each.handle = Handle{};
        ++counters_.failed[static_cast<std::size_t>(reason)];
    }

    group_view count(std::uint32_t index) const noexcept {
        group_view seen;
        for (member_record const& each : of(index)) {
            seen.delivered += each.state == member_state::delivered ? 1 : 0;
            seen.trained += each.state == member_state::delivered && each.role == member_role::trained ? 1 : 0;
            seen.failed += each.state == member_state::failed ? 1 : 0;
            seen.in_flight += each.state == member_state::in_flight ? 1 : 0;
        }
        seen.needed = std::max<std::int64_t>(options_.size - seen.delivered, 0);
        return seen;
    }

    /// Decides what the group is after one of its members has changed.
    void settle(std::uint32_t index) noexcept {
        if (!is_undecided(index)) {
            return;
        }
        group_view const now = count(index);
        group_state& state = groups_[index].state;
        bool const is_shrinking = options_.on_short == short_group::shrink;
        if (now.needed == 0) {
            state = group_state::selected;
        } else if (now.in_flight >= now.needed) {
            state = group_state::collecting;
        } else if (options_.on_short == short_group::drop ||
                   (is_shrinking && now.delivered + now.in_flight < options_.minimum)) {
            state = group_state::dropped;
            ++counters_.dropped;
        } else if (is_shrinking && now.in_flight == 0) {
            state = group_state::selected;
        } else {
            state = group_state::short_of_members;
        }
    }

    group_options options_;
    std::size_t candidates_;
    std::vector<group_record> groups_;
    std::vector<member_record> members_;
    std::vector<std::uint32_t> free_;
    group_counters counters_;
};

ASYNCRL_END_NAMESPACE
