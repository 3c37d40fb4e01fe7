// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/staleness/group_assembler.hpp>
#include <asyncrl/staleness/slot_buffer.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

using namespace asyncrl;

namespace {

std::string members(group_assembler<int>& groups, group_ticket const& group) {
    std::string text;
    groups.for_each_member(group, [&](std::int64_t number, member_role role, int handle) {
        text += (text.empty() ? "" : " ") + std::to_string(number) + ":" + std::to_string(handle);
        text += role == member_role::baseline_only ? "b" : "";
    });
    return text;
}

std::string in_flight(group_assembler<int> const& groups, group_ticket const& group) {
    std::string text;
    groups.for_each_in_flight(group, [&](member_ticket const& ticket) { text += std::to_string(ticket.member); });
    return text;
}

}  // namespace

TEST_CASE("the first G of the candidates are the group; later ones are surplus and counted", "[group_assembler]") {
    group_assembler<int> groups({.size = 2, .candidates = 4});
    group_ticket const group = *groups.open(17);
    REQUIRE(groups.view(group).needed == 2);
    REQUIRE(groups.deliver(groups.ticket(group, 3), {5}, 30) == member_status::ok);
    REQUIRE(groups.view(group).state == group_state::collecting);
    REQUIRE(groups.deliver(groups.ticket(group, 1), {6}, 10) == member_status::ok);
    REQUIRE(groups.view(group).state == group_state::selected);
    REQUIRE(in_flight(groups, group) == "02");  // to abort
    REQUIRE(groups.deliver(groups.ticket(group, 0), {5}, 99) == member_status::surplus);
    REQUIRE(groups.deliver(groups.ticket(group, 0), {5}, 99) == member_status::duplicate);
    REQUIRE(members(groups, group) == "1:10 3:30");
    REQUIRE(groups.counters().surplus == 1);
    REQUIRE(groups.counters().fenced == 1);
}

TEST_CASE("a group is complete when its members and the post-processing are there", "[group_assembler]") {
    group_assembler<int> groups({.size = 1});
    group_ticket const group = *groups.open(0);
    REQUIRE_THROWS_AS(groups.finish(group), std::invalid_argument);
    REQUIRE(groups.deliver(groups.ticket(group, 0), {0}) == member_status::ok);
    REQUIRE(groups.view(group).state == group_state::selected);
    groups.finish(group);
    REQUIRE(groups.view(group).state == group_state::complete);
    REQUIRE_THROWS_AS(groups.finish(group), std::invalid_argument);
    REQUIRE(groups.counters().completed == 1);
}

TEST_CASE("late, repeated and older attempts are fenced by unit, attempt and member", "[group_assembler]") {
    group_assembler<int> groups({.size = 2, .on_short = short_group::wait});
    group_ticket const first = *groups.open(1);
    member_ticket const lost = groups.ticket(first, 0);
    REQUIRE(groups.fail(lost) == member_status::ok);
    REQUIRE(groups.fail(lost) == member_status::duplicate);
    member_ticket const again = groups.reissue(first, 0);
    REQUIRE(groups.deliver(lost, {0}, 7) == member_status::old_attempt);
    REQUIRE(groups.deliver(again, {0}, 8) == member_status::ok);
    REQUIRE(groups.deliver(again, {0}, 9) == member_status::duplicate);
    REQUIRE(members(groups, first) == "0:8");
    member_ticket const late = groups.ticket(first, 1);
    groups.close(first);
    group_ticket const second = *groups.open(2);  // the same place
    REQUIRE(second.index == first.index);
    REQUIRE(groups.deliver(late, {0}, 5) == member_status::gone);
    REQUIRE(members(groups, second).empty());
    REQUIRE_THROWS_AS(groups.view(first), std::invalid_argument);
    REQUIRE(groups.counters().fenced == 4);
}

TEST_CASE("one member fails: the group is visibly short and its policy decides", "[group_assembler]") {
    auto const after_one_failure = [](group_options options) {
        options.size = 4;
        group_assembler<int> groups(options);
        group_ticket const group = *groups.open(0);
        for (std::int64_t const i : {0, 1, 3}) {
            REQUIRE(groups.deliver(groups.ticket(group, i), {0}, static_cast<int>(i)) == member_status::ok);
        }
        REQUIRE(groups.fail(groups.ticket(group, 2)) == member_status::ok);
        REQUIRE(groups.view(group).delivered == 3);
        REQUIRE(groups.view(group).failed == 1);
        REQUIRE(groups.view(group).needed == 1);
        return std::pair(std::move(groups), group);
    };
    SECTION("drop") {
        auto const [groups, group] = after_one_failure({.on_short = short_group::drop});
        REQUIRE(groups.view(group).state == group_state::dropped);
        REQUIRE(groups.counters().dropped == 1);
    }
    SECTION("shrink") {
        auto [groups, group] = after_one_failure({.on_short = short_group::shrink, .minimum = 3});
        REQUIRE(groups.view(group).state == group_state::selected);
        groups.finish(group);
        REQUIRE(groups.counters().shrunk == 1);
        REQUIRE(groups.counters().dropped == 0);
    }
    SECTION("shrink, not below its minimum") {
        auto const [groups, group] = after_one_failure({.on_short = short_group::shrink, .minimum = 4});
        REQUIRE(groups.view(group).state == group_state::dropped);
    }
    SECTION("wait, and issue it again") {
        auto [groups, group] = after_one_failure({.on_short = short_group::wait});
        REQUIRE(groups.view(group).state == group_state::short_of_members);
        member_ticket const again = groups.reissue(group, 2);
        REQUIRE(groups.view(group).state == group_state::collecting);
        REQUIRE_THROWS_AS(groups.reissue(group, 0), std::invalid_argument);
        REQUIRE(groups.deliver(again, {1}, 2) == member_status::ok);
        REQUIRE(groups.view(group).state == group_state::selected);
    }
    SECTION("a spare candidate stands in") {
        auto [groups, group] = after_one_failure({.candidates = 5});
        REQUIRE(groups.view(group).state == group_state::collecting);
        REQUIRE(groups.deliver(groups.ticket(group, 4), {0}, 4) == member_status::ok);
        REQUIRE(groups.view(group).state == group_state::selected);
    }
}

TEST_CASE("a shrinking group waits for the candidates in flight, or until it is given up", "[group_assembler]") {
    group_assembler<int> groups({.size = 3, .on_short = short_group::shrink, .minimum = 1});
    group_ticket const group = *groups.open(0);
    groups.fail(groups.ticket(group, 0));
    REQUIRE(groups.view(group).state == group_state::short_of_members);
    groups.deliver(groups.ticket(group, 1), {0});
    REQUIRE(groups.view(group).state == group_state::short_of_members);
    groups.give_up(group);
    REQUIRE(groups.view(group).state == group_state::selected);
    REQUIRE(groups.view(group).delivered == 1);
    REQUIRE(groups.counters().failed[static_cast<std::size_t>(drop_reason::timed_out)] == 1);
}

TEST_CASE("an empty member leaves the group wanting its full count", "[group_assembler]") {
    group_assembler<int> groups({.size = 2, .candidates = 3});
    group_ticket const group = *groups.open(0);
    REQUIRE(groups.fail(groups.ticket(group, 0), drop_reason::rejected) == member_status::ok);
    REQUIRE(groups.view(group).needed == 2);
    REQUIRE(groups.counters().failed[static_cast<std::size_t>(drop_reason::rejected)] == 1);
}

TEST_CASE("a delivered member found useless before the end is excluded, and a candidate in flight may stand in",
          "[group_assembler]") {
    group_assembler<int> groups({.size = 2, .candidates = 3});
    group_ticket const group = *groups.open(0);
    member_ticket const bad = groups.ticket(group, 0);
    groups.deliver(bad, {0}, 1);
    groups.deliver(groups.ticket(group, 1), {0}, 2);
    REQUIRE(groups.view(group).state == group_state::selected);
    REQUIRE(groups.deliver(bad, {0}, 1, member_role::excluded) == member_status::ok);
    REQUIRE(groups.view(group).state == group_state::collecting);
    REQUIRE(groups.deliver(groups.ticket(group, 2), {0}, 3) == member_status::ok);
    groups.finish(group);
    REQUIRE(groups.fail(groups.ticket(group, 1)) == member_status::duplicate);
    REQUIRE(members(groups, group) == "1:2 2:3");
}

TEST_CASE("staleness counts from the oldest trained member, so a unit may be retagged", "[group_assembler]") {
    slot_buffer<int> buffer({.batch_size = 1, .max_staleness = 1});
    auto const unit = buffer.reserve();
    auto const other = buffer.reserve();
    buffer.occupy(*other);
    std::vector<taken_unit<int>> batch(1);
    buffer.take(batch);
    buffer.publish();
    group_assembler<int> groups({.size = 2, .candidates = 3});
    group_ticket const group = *groups.open(unit->id);
    REQUIRE_FALSE(groups.oldest(group).has_value());
    groups.deliver(groups.ticket(group, 1), {1}, 1);
    groups.deliver(groups.ticket(group, 2), {0}, 2, member_role::baseline_only);
    REQUIRE(members(groups, group) == "1:1 2:2b");
    REQUIRE(groups.view(group).trained == 1);
    REQUIRE(groups.oldest(group) == policy_version{1});  // member 0 was not selected, member 2 gets no gradient
    groups.finish(group);
    REQUIRE(buffer.retag(*unit, *groups.oldest(group)) == ticket_status::ok);
    REQUIRE(buffer.occupy(*unit) == ticket_status::ok);
    REQUIRE(buffer.take(batch));
    REQUIRE(batch[0].staleness == 0);
}

TEST_CASE("a cap on groups never blocks a member of an open one", "[group_assembler]") {
    group_assembler<int> groups({.size = 2, .max_groups = 1});
    group_ticket const group = *groups.open(0);
    REQUIRE(groups.deliver(groups.ticket(group, 0), {0}) == member_status::ok);
    REQUIRE_FALSE(groups.open(1).has_value());
    REQUIRE(groups.deliver(groups.ticket(group, 1), {0}) == member_status::ok);
    groups.finish(group);
    groups.close(group);
    REQUIRE(groups.open(1).has_value());
}

TEST_CASE("handles are released with their group", "[group_assembler]") {
    group_assembler<std::shared_ptr<int>> groups({.size = 1, .candidates = 2});
    auto const payload = std::make_shared<int>(1);
    group_ticket const group = *groups.open(0);
    groups.deliver(groups.ticket(group, 0), {0}, payload);
    groups.deliver(groups.ticket(group, 1), {0}, payload);
    REQUIRE(payload.use_count() == 2);  // the surplus one is gone
    groups.close(group);
    REQUIRE(payload.use_count() == 1);
}

TEST_CASE("options outside their limits and misuse throw", "[group_assembler]") {
    using assembler = group_assembler<int>;
    REQUIRE_THROWS_AS(assembler({.size = 0}), std::invalid_argument);
    REQUIRE_THROWS_AS(assembler({.size = 4, .candidates = 3}), std::invalid_argument);
    REQUIRE_THROWS_AS(assembler({.size = 4, .minimum = 5}), std::invalid_argument);
    REQUIRE_THROWS_AS(assembler({.minimum = 0}), std::invalid_argument);
    REQUIRE_THROWS_AS(assembler({.max_groups = 0}), std::invalid_argument);
    assembler groups({.size = 2});
    group_ticket const group = *groups.open(0);
    REQUIRE_THROWS_AS(groups.ticket(group, 2), std::invalid_argument);
    REQUIRE_THROWS_AS(groups.ticket(group, -1), std::invalid_argument);
    REQUIRE_THROWS_AS(groups.reissue(group, 0), std::invalid_argument);
    groups.close(group);
    REQUIRE_THROWS_AS(groups.close(group), std::invalid_argument);
}

TEST_CASE("random deliveries, failures and retries agree with counting by hand", "[group_assembler][oracle]") {
    std::mt19937 random(3);
    auto const below = [&](std::int64_t bound) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(bound)); };
    for (int run = 0; run < 2000; ++run) {
        group_options options{.size = 1 + below(4)};
        options.candidates = options.size + below(3);
        options.on_short = static_cast<short_group>(below(3));
        options.minimum = 1 + below(options.size);
        group_assembler<int> groups(options);
        group_ticket const group = *groups.open(static_cast<std::uint64_t>(run));
        std::map<std::int64_t, char> now;  // of each candidate: f in flight, d delivered, x failed
        for (std::int64_t i = 0; i < *options.candidates; ++i) {
            now[i] = 'f';
        }
        auto const count = [&](char what) {
            return std::count_if(now.begin(), now.end(), [&](auto const& each) { return each.second == what; });
        };
        for (int step = 0; step < 12; ++step) {
            std::int64_t const i = below(*options.candidates);
            group_state const before = groups.view(group).state;
            bool const is_open = before == group_state::collecting || before == group_state::short_of_members;
            if (now[i] == 'x' && is_open && below(2) == 0) {
                groups.reissue(group, i);
                now[i] = 'f';
            } else if (below(3) > 0) {
                bool const is_ok = groups.deliver(groups.ticket(group, i), {0}, 0) == member_status::ok;
                REQUIRE(is_ok == (is_open && now[i] == 'f'));
                now[i] = now[i] != 'f' ? now[i] : is_ok ? 'd' : 'x';
            } else if (is_open) {
                bool const is_ok = groups.fail(groups.ticket(group, i)) == member_status::ok;
                REQUIRE(is_ok == (now[i] != 'x'));
                now[i] = 'x';
            }
            std::int64_t const reachable = count('d') + count('f');
            bool const can_shrink = options.on_short == short_group::shrink && reachable >= options.minimum;
            group_view const seen = groups.view(group);
            group_state expected = group_state::short_of_members;
            if (before == group_state::dropped) {
                expected = group_state::dropped;
            } else if (count('d') >= options.size || (before == group_state::selected)) {
                expected = group_state::selected;
            } else if (reachable >= options.size) {
                expected = group_state::collecting;
            } else if (options.on_short == short_group::drop || (options.on_short == short_group::shrink && !can_shrink)) {
                expected = group_state::dropped;
            } else if (can_shrink && count('f') == 0) {
                expected = group_state::selected;
            }
            REQUIRE(seen.state == expected);
            REQUIRE(seen.delivered == count('d'));
            REQUIRE(seen.in_flight == count('f'));
            REQUIRE(seen.failed == count('x'));
        }
    }
}
