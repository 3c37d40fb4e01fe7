// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/staleness/batch_window.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace asyncrl;

namespace {

using segments = std::vector<label_segment>;

std::vector<std::string> representatives(segments const& group) {
    std::vector<std::string> labels;
    for_each_representative(std::span(group),
                            [&](std::size_t sample) { labels.emplace_back(*real_label(group[sample].label)); });
    return labels;
}

segments one(std::string_view label) {
    return {{"t", 0, label}};
}

/// Pending groups that are named by numbers, and what fell out of the window.
struct waiting_room {
    explicit waiting_room(batch_window_options const& window, stale_scope scope = stale_scope::group) : groups(window, scope) {}

    auto log() {
        return [this](stale_notice<int> const& notice) {
            dropped.push_back(notice.handle);
            if (notice.member) {
                members.push_back({notice.handle, *notice.member, notice.fresh_members});
            }
        };
    }
    bool add(int name, segments const& group) { return groups.add(name, group, log()); }
    bool add(int name, std::vector<version_segment> const& group) { return groups.add(name, group, log()); }
    std::vector<int> waiting() const {
        std::vector<int> names;
        groups.for_each([&](int name) { names.push_back(name); });
        return names;
    }

    struct stale_member {
        int group;
        std::size_t sample;
        std::int64_t fresh;
        bool operator==(stale_member const&) const = default;
    };

    pending_groups<int> groups;
    std::vector<int> dropped;
    std::vector<stale_member> members;
};

using names = std::vector<int>;

}  // namespace

TEST_CASE("the last segment speaks for a trajectory, and of equal ones the later", "[batch_window]") {
    REQUIRE(representatives({{"t", 1, "beta"}, {"t", 0, "alpha"}, {"t", 2, "gamma"}}) == std::vector<std::string>{"gamma"});
    REQUIRE(representatives({{"t", 2, "gamma"}, {"t", 1, "beta"}}) == std::vector<std::string>{"gamma"});
    REQUIRE(representatives({{"t", 1, "beta"}, {"t", 1, "alpha"}}) == std::vector<std::string>{"alpha"});
    REQUIRE(representatives({{"t", -1, "beta"}, {"t", 0, "alpha"}}) == std::vector<std::string>{"alpha"});
}

TEST_CASE("an unknown last segment leaves the word to the one before it", "[batch_window]") {
    REQUIRE(representatives({{"t", 0, "alpha"}, {"t", 1, "unknown"}}) == std::vector<std::string>{"alpha"});
    REQUIRE(representatives({{"t", 1, "None"}, {"t", 0, ""}}).empty());
    REQUIRE(representatives({{"", 0, "alpha"}}).empty());
    segments const group{{"", 0, "a"}, {"t", 0, "-1"}, {"t", 0, "b"}};
    REQUIRE(for_each_representative(group, [](std::size_t) {}) == 2);
}

TEST_CASE("trajectories come in the order of their first sample with a version", "[batch_window]") {
    REQUIRE(representatives({{"x", 0, "1st"}, {"y", 0, "2nd"}, {"x", 1, "3rd"}}) == std::vector<std::string>{"3rd", "2nd"});
    REQUIRE(representatives({{"x", 0, "none"}, {"y", 0, "2nd"}, {"x", 1, "3rd"}}) == std::vector<std::string>{"2nd", "3rd"});
}

TEST_CASE("the window keeps the last versions seen", "[batch_window]") {
    batch_window window({.keep_versions = 2});
    REQUIRE_FALSE(window.newest());
    REQUIRE(window.cutoff() == policy_version{0});
    auto const alpha = *window.observe("alpha");
    auto const aardvark = *window.observe("aardvark");
    REQUIRE_FALSE(window.is_stale(alpha));
    auto const beta = *window.observe("beta");
    REQUIRE(window.newest() == beta);
    REQUIRE(window.cutoff() == aardvark);
    REQUIRE(window.is_stale(alpha));
    REQUIRE_FALSE(window.is_stale(aardvark));
    REQUIRE(window.observe("alpha") == alpha);  // an old one seen again moves nothing
    REQUIRE_FALSE(window.is_stale(aardvark));
    REQUIRE_FALSE(window.observe("unknown"));
    REQUIRE(window.newest() == beta);
}

TEST_CASE("numbers in order of observation take up room only when seen, in numeric order always", "[batch_window]") {
    batch_window observed({.keep_versions = 2});
    batch_window numeric({.keep_versions = 2, .order = window_order::numeric});
    for (policy_version const version : {policy_version{3}, policy_version{9}, policy_version{7}}) {
        observed.observe(version);
        numeric.observe(version);
    }
    REQUIRE(observed.is_stale(*observed.observe(policy_version{3})));
    REQUIRE_FALSE(observed.is_stale(*observed.observe(policy_version{9})));
    REQUIRE_FALSE(observed.is_stale(*observed.observe(policy_version{7})));  // seen last
    REQUIRE(numeric.newest() == policy_version{9});
    REQUIRE(numeric.cutoff() == policy_version{8});
    REQUIRE(numeric.is_stale({7}));
    REQUIRE_FALSE(numeric.is_stale({8}));
    REQUIRE(numeric.observe(policy_version{-1}) == std::nullopt);
    REQUIRE_THROWS_AS(numeric.observe("9"), std::invalid_argument);
}

TEST_CASE("a window wider than what was seen keeps all, and never counts below 0", "[batch_window]") {
    batch_window window({.keep_versions = 100, .order = window_order::numeric});
    REQUIRE(window.observe(policy_version{3}) == policy_version{3});
    REQUIRE(window.cutoff() == policy_version{0});
    REQUIRE_FALSE(window.is_stale({0}));
}

TEST_CASE("keep_versions 0 switches the window off, a negative one throws", "[batch_window]") {
    REQUIRE_THROWS_AS(batch_window({.keep_versions = -1}), std::invalid_argument);
    REQUIRE_THROWS_AS(batch_window({.keep_versions = 9, .labels = {.numbered = 8}}), std::invalid_argument);
    waiting_room room({.keep_versions = 0});
    REQUIRE(room.add(1, one("a")));
    REQUIRE(room.add(2, one("b")));
    REQUIRE_FALSE(room.groups.window().newest());
    REQUIRE(room.groups.window().labels().seen() == 0);
    REQUIRE(room.waiting() == names{1, 2});
    REQUIRE_THROWS_AS(room.groups.window().set_keep_versions(-1), std::invalid_argument);
}

TEST_CASE("a group that waits leaves when another brings a version that moves the window", "[batch_window]") {
    waiting_room room({.keep_versions = 1});
    REQUIRE(room.add(1, one("v1")));
    REQUIRE(room.add(2, one("v2")));
    REQUIRE(room.dropped == names{1});
    REQUIRE(room.waiting() == names{2});
    REQUIRE_FALSE(room.add(3, one("v1")));  // stale when it enters
    REQUIRE(room.dropped == names{1, 3});
    REQUIRE(room.waiting() == names{2});
}

TEST_CASE("a group leaves as a whole for one stale member, and what has no version never leaves", "[batch_window]") {
    waiting_room room({.keep_versions = 1});
    REQUIRE(room.add(1, {{"a", 0, "v1"}, {"b", 0, "v1"}}));
    REQUIRE(room.add(2, {{"a", 0, "unknown"}, {"", 0, "v7"}}));
    REQUIRE(room.groups.unversioned() == 2);
    REQUIRE(room.groups.window().labels().seen() == 1);
    REQUIRE_FALSE(room.add(3, {{"a", 0, "v2"}, {"b", 0, "v1"}}));
    REQUIRE(room.dropped == names{1, 3});
    REQUIRE(room.waiting() == names{2});
}

TEST_CASE("one group can move the window by several versions, and fall out of it by itself", "[batch_window]") {
    waiting_room room({.keep_versions = 2});
    REQUIRE(room.add(1, one("v1")));
    REQUIRE_FALSE(room.add(2, {{"a", 0, "v2"}, {"b", 0, "v3"}, {"c", 0, "v4"}}));
    REQUIRE(room.dropped == names{1, 2});
    REQUIRE(room.groups.window().newest() == policy_version{3});
}

TEST_CASE("a trajectory that began under an old version and ended under a new one is fresh", "[batch_window]") {
    waiting_room room({.keep_versions = 1});
    REQUIRE(room.add(1, {{"a", 0, "v1"}, {"a", 1, "v2"}}));
    REQUIRE(room.groups.window().labels().seen() == 1);  // only the representative was observed
}

TEST_CASE("by choice only the member leaves", "[batch_window]") {
    waiting_room room({.keep_versions = 1}, stale_scope::member);
    REQUIRE(room.add(1, {{"a", 0, "v1"}, {"b", 0, ""}, {"c", 0, "v1"}}));
    REQUIRE(room.members.empty());
    REQUIRE(room.add(2, {{"a", 0, "v2"}, {"b", 0, "v1"}, {"c", 0, "v2"}}));
    using stale_member = waiting_room::stale_member;
    std::vector<stale_member> const expected{{1, 0, 0}, {1, 2, 0}, {2, 1, 2}};
    REQUIRE(room.members == expected);
    REQUIRE(room.waiting() == names{1, 2});
    REQUIRE(room.add(3, one("v3")));
    REQUIRE(room.members.size() == 5);  // each member once
    REQUIRE(room.members.back() == stale_member{2, 2, 0});
}

TEST_CASE("a version told at its publish, and another width, hold from the next check on", "[batch_window]") {
    waiting_room room({.keep_versions = 2, .order = window_order::numeric});
    auto const version = [](std::int64_t number) { return std::vector<version_segment>{{7U, 0, policy_version{number}}}; };
    REQUIRE(room.add(1, version(4)));
    REQUIRE(room.add(2, version(5)));
    room.groups.window().observe(policy_version{6});
    REQUIRE(room.waiting() == names{1, 2});
    room.groups.recheck(room.log());
    REQUIRE(room.waiting() == names{2});
    room.groups.window().set_keep_versions(1);
    room.groups.recheck(room.log());
    REQUIRE(room.waiting().empty());
    REQUIRE(room.dropped == names{1, 2});
}

TEST_CASE("a label that was not published is older than any, where only published ones count", "[batch_window]") {
    waiting_room room({.keep_versions = 2, .labels = {.numbered = 2, .published_only = true}});
    room.groups.window().publish("a");
    REQUIRE(room.add(1, one("a")));
    REQUIRE_FALSE(room.add(2, one("b")));
    REQUIRE(room.dropped == names{2});
    REQUIRE(room.groups.window().newest() == policy_version{0});
}

TEST_CASE("a group that a batch has taken is forgotten", "[batch_window]") {
    waiting_room room({.keep_versions = 1});
    room.add(1, one("v1"));
    room.add(2, one("v1"));
    room.add(3, one("v1"));
    REQUIRE(room.groups.remove(2));
    REQUIRE_FALSE(room.groups.remove(2));
    REQUIRE(room.groups.remove_if([](int name) { return name == 1; }) == 1);
    room.add(4, one("v2"));
    REQUIRE(room.dropped == names{3});
    REQUIRE(room.groups.size() == 1);
}

TEST_CASE("random groups: the same leave as in a model that keeps lists", "[batch_window]") {
    std::mt19937 random(7);
    auto const draw = [&](int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random); };
    std::vector<std::string> const texts{"-1", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o"};
    std::vector<std::string> const trajectories{"", "x", "y", "z"};
    for (int run = 0; run < 300; ++run) {
        int const keep = 1 + draw(4);
        waiting_room room({.keep_versions = keep});
        std::vector<std::string> seen;
        std::map<int, std::vector<std::string>> waiting;
        std::set<int> expected;
        int front = 1;
        for (int name = 0; name < 25; ++name) {
            front = std::min(front + draw(3) / 2, 15);
            segments group;
            for (int i = draw(6); i >= 0; --i) {
                int const text = std::max(front - draw(4), 0);
                group.push_back(
                    {trajectories[static_cast<std::size_t>(draw(4))], draw(3), texts[static_cast<std::size_t>(text)]});
            }
            // The model: per trajectory a list of (segment, position, label), the maximum of which speaks.
            std::vector<std::string_view> order;
            std::map<std::string_view, std::pair<std::pair<std::int64_t, std::size_t>, std::string>> speaker;
            for (std::size_t i = 0; i < group.size(); ++i) {
                if (group[i].trajectory.empty() || group[i].label == "-1") {
                    continue;
                }
                std::pair const place{group[i].segment, i};
                auto const [at, is_new] = speaker.try_emplace(group[i].trajectory, place, std::string(group[i].label));
                if (is_new) {
                    order.push_back(group[i].trajectory);
                } else if (place > at->second.first) {
                    at->second = {place, std::string(group[i].label)};
                }
            }
            for (std::string_view const trajectory : order) {
                std::string const& label = speaker[trajectory].second;
                waiting[name].push_back(label);
                if (std::find(seen.begin(), seen.end(), label) == seen.end()) {
                    seen.push_back(label);
                }
            }
            auto const newest = seen.end() - std::min<std::ptrdiff_t>(keep, static_cast<std::ptrdiff_t>(seen.size()));
            for (auto const& [other, labels] : waiting) {
                for (std::string const& label : labels) {
                    if (std::find(newest, seen.end(), label) == seen.end()) {
                        expected.insert(other);
                    }
                }
            }
            room.add(name, group);
            REQUIRE(std::set<int>(room.dropped.begin(), room.dropped.end()) == expected);
            REQUIRE(room.dropped.size() == expected.size());
            REQUIRE(room.groups.size() == name + 1 - static_cast<std::int64_t>(expected.size()));
        }
    }
}
