// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/staleness/version_labels.hpp>

#include <algorithm>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

using namespace asyncrl;

namespace {

using mask = std::vector<std::uint8_t>;

std::string label(std::int64_t number) {
    return "commit-" + std::to_string(number * 7919);
}

}  // namespace

TEST_CASE("labels are numbered in order of first observation, whatever their text", "[version_labels]") {
    version_labels labels;
    REQUIRE_FALSE(labels.newest());
    REQUIRE(labels.observe("alpha") == policy_version{0});
    REQUIRE(labels.observe("aardvark") == policy_version{1});
    REQUIRE(labels.observe("9") == policy_version{2});
    REQUIRE(labels.observe("10") == policy_version{3});
    REQUIRE(labels.observe("alpha") == policy_version{0});
    REQUIRE(labels.newest() == policy_version{3});
    REQUIRE(labels.seen() == 4);
    REQUIRE(labels.find("10") == policy_version{3});
    REQUIRE_FALSE(labels.find("11"));
    REQUIRE(labels.seen() == 4);
}

TEST_CASE("a real label is trimmed and keeps its case; the words for unknown are none", "[version_labels]") {
    for (std::string_view const text : {"", " ", "-1", " -1\t", "unknown", "Unknown", " UNKNOWN \n", "none", "NONE", "None "}) {
        CAPTURE(text);
        REQUIRE_FALSE(real_label(text));
    }
    REQUIRE(real_label("  Ab c\r\n") == "Ab c");
    REQUIRE(real_label("unknown1") == "unknown1");
    REQUIRE(real_label("-10") == "-10");
    REQUIRE(real_label("non") == "non");

    version_labels labels;
    REQUIRE(labels.observe(" v1 ") == policy_version{0});
    REQUIRE(labels.observe("v1") == policy_version{0});
    REQUIRE(labels.observe("V1") == policy_version{1});
}

TEST_CASE("an observation without a real label is counted and changes nothing else", "[version_labels]") {
    bool const published_only = GENERATE(false, true);
    version_labels labels({.published_only = published_only});
    labels.publish("a");
    REQUIRE_FALSE(labels.observe("unknown"));
    REQUIRE_FALSE(labels.observe(""));
    REQUIRE_FALSE(labels.publish("none"));
    REQUIRE(labels.unversioned() == 2);
    REQUIRE(labels.unpublished() == 0);
    REQUIRE(labels.seen() == 1);
    REQUIRE(labels.newest() == policy_version{0});
}

TEST_CASE("where only published labels count, a sample cannot bring one", "[version_labels]") {
    version_labels labels({.numbered = 2, .published_only = true});
    REQUIRE(labels.publish("a") == policy_version{0});
    REQUIRE(labels.publish("b") == policy_version{1});
    REQUIRE(labels.publish("a") == policy_version{0});
    REQUIRE_FALSE(labels.observe("c"));
    REQUIRE(labels.publish("c") == policy_version{2});
    REQUIRE_FALSE(labels.observe("a"));  // out of the two that are numbered
    REQUIRE(labels.observe("b") == policy_version{1});
    REQUIRE(labels.unpublished() == 2);
    REQUIRE(labels.forgotten() == 1);
    REQUIRE(labels.remembered() == 2);
}

TEST_CASE("memory of published labels does not grow with their number", "[version_labels]") {
    version_labels labels({.numbered = 8, .published_only = true});
    for (std::int64_t i = 0; i < 1'000'000; ++i) {
        labels.publish(label(i));
    }
    REQUIRE(labels.seen() == 1'000'000);
    REQUIRE(labels.remembered() == 8);
    REQUIRE(labels.find(label(999'992)) == policy_version{999'992});
    REQUIRE_FALSE(labels.find(label(999'991)));
}

TEST_CASE("a label that was only observed stays known however old", "[version_labels]") {
    version_labels labels({.numbered = 4});
    std::int64_t const count = 3000;
    std::mt19937 random(1);
    for (std::int64_t i = 0; i < count; ++i) {
        REQUIRE(labels.observe(label(i)) == policy_version{i});
        std::int64_t const earlier = std::uniform_int_distribution<std::int64_t>(0, i)(random);
        std::int64_t const youngest_without_number = i - 4;
        std::int64_t const expected = earlier > youngest_without_number ? earlier : youngest_without_number;
        REQUIRE(labels.observe(label(earlier)) == policy_version{expected});
    }
    for (std::int64_t i = 0; i < count; ++i) {
        REQUIRE(labels.find(label(i)));
    }
    REQUIRE(labels.seen() == count);
    REQUIRE(labels.forgotten() == 0);
    REQUIRE_FALSE(labels.find(label(count)));
}

TEST_CASE("a limit on remembered labels forgets the oldest first and counts them", "[version_labels]") {
    std::int64_t const limit = GENERATE(0, 1, 5, 100);
    CAPTURE(limit);
    version_labels labels({.numbered = 3, .max_remembered = limit});
    std::int64_t const count = 1000;
    for (std::int64_t i = 0; i < count; ++i) {
        labels.observe(label(i));
        REQUIRE(labels.remembered() <= 3 + limit);
        REQUIRE(labels.remembered() >= std::min(i + 1, 3 + limit - limit / 8));
        REQUIRE(labels.remembered() + labels.forgotten() == labels.seen());
    }
    std::int64_t const forgotten = labels.forgotten();
    for (std::int64_t i = 0; i < count; ++i) {
        CAPTURE(i);
        REQUIRE(labels.find(label(i)).has_value() == (i >= forgotten));
    }
    REQUIRE(labels.observe(label(0)) == policy_version{count});  // forgotten: counts as new
}

TEST_CASE("options outside their limits throw", "[version_labels]") {
    REQUIRE_THROWS_AS(version_labels({.numbered = 0}), std::invalid_argument);
    REQUIRE_THROWS_AS(version_labels({.max_remembered = -1}), std::invalid_argument);
}

TEST_CASE("the last-label mask keeps the tokens of the last real label among those in the mask", "[version_labels][mask]") {
    std::vector<label_run> runs{{"b", 1}, {"a", 2}, {"unknown", 1}, {"b", 1}, {" a ", 1}, {"", 1}};
    auto const narrowed = [&](mask entries) {
        std::int64_t const kept = keep_last_label(runs, entries);
        REQUIRE(entries.size() == 7);
        REQUIRE(kept == std::count(entries.begin(), entries.end(), 1));
        return entries;
    };
    REQUIRE(narrowed({1, 1, 1, 1, 1, 1, 1}) == mask{0, 1, 1, 0, 0, 1, 0});
    REQUIRE(narrowed({1, 0, 1, 1, 1, 0, 1}) == mask{1, 0, 0, 0, 1, 0, 0});  // the last trainable real label is b
    REQUIRE(narrowed({0, 1, 1, 1, 0, 1, 1}) == mask{0, 1, 1, 1, 0, 1, 1});  // one real label: unchanged, unknown ones too
    REQUIRE(narrowed({0, 0, 0, 1, 0, 0, 1}) == mask{0, 0, 0, 1, 0, 0, 1});  // none
    REQUIRE(narrowed({0, 0, 0, 0, 0, 0, 0}) == mask{0, 0, 0, 0, 0, 0, 0});
    runs = {{"old", 4}, {"resumed", 3}};
    REQUIRE(narrowed({1, 1, 1, 1, 1, 1, 1}) == mask{0, 0, 0, 0, 1, 1, 1});
    runs = {{"a", 2}, {"b", 2}, {"b", 3}};
    REQUIRE(narrowed({1, 1, 1, 1, 0, 1, 1}) == mask{0, 0, 1, 1, 0, 1, 1});
}

TEST_CASE("the mask by age takes out tokens with older labels and leaves those without one", "[version_labels][mask]") {
    version_labels labels;
    for (std::string_view const name : {"z", "y", "x"}) {
        labels.observe(name);
    }
    std::vector<label_run> const runs{{"x", 1}, {"z", 1}, {"none", 2}, {"y", 2}, {"never seen", 1}};
    mask entries{1, 1, 1, 0, 1, 1, 1};
    REQUIRE(keep_labels_not_older_than({1}, labels, runs, entries) == 4);
    REQUIRE(entries == mask{1, 0, 1, 0, 1, 1, 0});
    REQUIRE(keep_labels_not_older_than({2}, labels, runs, entries) == 2);
    REQUIRE(entries == mask{1, 0, 1, 0, 0, 0, 0});
}

TEST_CASE("a mask that is not one entry per token throws and stays as it is", "[version_labels][mask]") {
    std::vector<label_run> const runs{{"a", 2}, {"b", 3}};
    mask entries{1, 1, 1, 1};
    REQUIRE_THROWS_AS(keep_last_label(runs, entries), std::invalid_argument);
    REQUIRE_THROWS_AS(keep_labels_not_older_than({1}, version_labels{}, runs, entries), std::invalid_argument);
    REQUIRE(entries == mask{1, 1, 1, 1});
    std::vector<label_run> const negative{{"a", 5}, {"b", -1}};
    REQUIRE_THROWS_AS(keep_last_label(negative, entries), std::invalid_argument);
}
