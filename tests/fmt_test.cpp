// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/fmt.hpp>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

using namespace asyncrl;

namespace {

struct event_log {
    std::vector<std::string>* lines = nullptr;

    void operator()(slot_event<char> const& event) const noexcept { lines->push_back(fmt::format("{}", event)); }
};

struct json_log {
    std::vector<std::string>* lines = nullptr;

    void operator()(slot_event<char> const& event) const noexcept {
        lines->push_back(json_line().add(event).text());
        lines->back().pop_back();
    }
};

}  // namespace

TEST_CASE("enumerators are written as in the code, with the options of a string", "[fmt]") {
    REQUIRE(fmt::format("{} {}", ticket_status::duplicate, drop_reason::stuck_timeout) == "duplicate stuck_timeout");
    REQUIRE(fmt::format("[{:>9}]", buffer_state::stuck) == "[    stuck]");
    REQUIRE(fmt::format("{} {} {}", wait_status::timed_out, span_verdict::mask, gate_status::stale_epoch) ==
            "timed_out mask stale_epoch");
    REQUIRE(fmt::format("{} {}", member_role::baseline_only, group_state::short_of_members) ==
            "baseline_only short_of_members");
    REQUIRE(name_of(static_cast<freshness>(77)) == "?");
    for (std::size_t i = 0; i < drop_reason_count; ++i) {
        REQUIRE(name_of(static_cast<drop_reason>(i)) != "?");
    }
}

TEST_CASE("value types are written shortly", "[fmt]") {
    version_runs runs;
    REQUIRE(fmt::format("{}", runs).empty());
    runs.append({7}, 57);
    runs.append({8}, 71);
    REQUIRE(fmt::format("{}", runs) == "(7, 57) (8, 71)");
    REQUIRE(fmt::format("v{:03}", policy_version{12}) == "v012");
    REQUIRE(fmt::format("{}", slot_place{{1}, 2}) == "1.2");
    REQUIRE(fmt::format("{}", unit_ticket{.id = 12, .version = {3}}) == "unit 12, version 3");

    unit_counters counters{.admitted = 9, .in_flight = 3, .completed = 2, .taken = 1};
    REQUIRE(fmt::format("{}", counters) == "admitted 9, in flight 3, completed 2, taken 1, dropped 0");
    counters.dropped[static_cast<std::size_t>(drop_reason::stale)] = 2;
    counters.dropped[static_cast<std::size_t>(drop_reason::failed)] = 1;
    REQUIRE(fmt::format("{}", counters) == "admitted 9, in flight 3, completed 2, taken 1, dropped 3 (1 failed, 2 stale)");

    span_limit const limit({.max_switches = 2});
    REQUIRE(fmt::format("{}", limit.judge(3)) == "proceed");
    REQUIRE(fmt::format("{}", limit.judge(4)) == "reject: partial_rollout_staleness_exceeded, 4 versions, at most 3");
    REQUIRE(fmt::format("{}", span_limit({.partial_rollout = false}).judge(2)) ==
            "reject: trajectory_version_changed, 2 versions");
}

TEST_CASE("the picture of the walkthrough after C is done", "[fmt]") {
    slot_buffer<char> buffer({.batch_size = 4, .max_staleness = 1, .max_in_flight = 6});
    std::vector<unit_ticket> tickets(128);
    auto const admit = [&](char name) { tickets[static_cast<std::size_t>(name)] = buffer.reserve(name).value(); };
    auto const complete = [&](char name) { buffer.occupy(tickets[static_cast<std::size_t>(name)]); };
    REQUIRE(slot_picture(buffer) ==
            "version 0, next batch 0: 0 in flight, 0 completed\n"
            "0 PENDING | -- | -- | -- | -- |\n"
            "1 PENDING | -- | -- | -- | -- |\n");
    for (char const name : std::string_view("ABCDEF")) {
        admit(name);
    }
    complete('A');
    admit('G');
    complete('D');
    admit('H');
    complete('C');
    REQUIRE(slot_picture(buffer) ==
            "version 0, next batch 0: 5 in flight, 3 completed\n"
            "0 STUCK   | A * | D * | C * | E R |\n"
            "1 STUCK   | G R | H R | B R | F R |\n");
    complete('E');
    std::string const named = slot_picture(buffer, [](char name) { return std::string(2, name); });
    REQUIRE(named.find("\n0 READY   | AA * | DD * | CC * | EE * |\n") != std::string::npos);
}

TEST_CASE("the picture marks where the slots beyond a batch begin", "[fmt]") {
    slot_buffer<int> buffer({.batch_size = 2, .max_staleness = 0, .surplus = 1});
    auto const first = buffer.reserve(7);
    buffer.occupy(first.value());
    REQUIRE(buffer.reserve(123));
    REQUIRE(slot_picture(buffer) ==
            "version 0, next batch 0: 1 in flight, 1 completed\n"
            "0 PENDING |   7 * |    -- || 123 R |\n");
}

TEST_CASE("a listener can write every move", "[fmt]") {
    std::vector<std::string> lines;
    slot_buffer<char, event_log> buffer({.batch_size = 2, .max_staleness = 1}, event_log{&lines});
    auto const a = buffer.reserve('A').value();
    auto const b = buffer.reserve('B').value();
    auto const c = buffer.reserve('C').value();
    buffer.occupy(a);
    buffer.filter(a);
    buffer.occupy(b);
    buffer.occupy(c);
    std::vector<taken_unit<char>> batch(2);
    REQUIRE(buffer.take(batch));
    buffer.publish();
    std::vector<std::string> const expected{"reserved A 1.1",       "reserved B 1.0",
                                            "reserved C 0.1",       "moved_back C 0.1 > 1.1",
                                            "occupied A 1.1 > 0.0", "dropped A 0.0 filtered",
                                            "occupied B 1.0 > 0.0", "occupied C 1.1 > 0.1",
                                            "taken B 0.0",          "taken C 0.1",
                                            "published 1"};
    REQUIRE(lines == expected);
}

TEST_CASE("moves as JSON lines are enough to draw the table", "[fmt]") {
    std::vector<std::string> lines;
    slot_buffer<char, json_log> buffer({.batch_size = 1, .max_staleness = 1, .first_version = {5}}, json_log{&lines});
    auto const a = buffer.reserve('A').value();
    auto const b = buffer.reserve('B').value();
    buffer.occupy(a);
    buffer.discard(b);
    std::vector<taken_unit<char>> batch(1);
    REQUIRE(buffer.take(batch));
    buffer.publish();
    std::vector<std::string> const expected{
        R"({"kind":"reserved","version":5,"unit":"A","id":0,"to":[6,0]})",
        R"({"kind":"reserved","version":5,"unit":"B","id":1,"to":[5,0]})",
        R"({"kind":"moved_back","version":5,"unit":"B","id":1,"from":[5,0],"to":[6,0]})",
        R"({"kind":"occupied","version":5,"unit":"A","id":0,"from":[6,0],"to":[5,0]})",
        R"({"kind":"dropped","version":5,"unit":"B","id":1,"from":[6,0],"reason":"discarded"})",
        R"({"kind":"taken","version":5,"unit":"A","id":0,"from":[5,0]})",
        R"({"kind":"published","version":6})"};
    REQUIRE(lines == expected);
}

TEST_CASE("a rejection as the JSON that a proxy answers", "[fmt]") {
    std::vector<std::string_view> versions;
    std::vector<std::string_view> const history{"a"}, candidates{"b"};
    span_decision const decision = span_limit({.max_switches = 0}).check(history, candidates, versions);
    REQUIRE(json_line().add(decision).add("versions", versions).text() ==
            R"({"error":"partial_rollout_staleness_exceeded","version_span":2,"version_switches":1,"max_switches":0,)"
            R"("max_version_span":1,"versions":["a","b"]})"
            "\n");
    versions.clear();
    REQUIRE(json_line().add("versions", versions).text() == "{\"versions\":[]}\n");
}

TEST_CASE("a JSON line holds names, numbers that read back alike, and null for those that are not finite", "[fmt]") {
    REQUIRE(json_line().text() == "{}\n");
    std::string const text = json_line()
                                 .add("step", 7)
                                 .add("x", 0.1)
                                 .add("nan", std::numeric_limits<double>::quiet_NaN())
                                 .add("inf", -std::numeric_limits<float>::infinity())
                                 .add("on", true)
                                 .add("a \"name\"\\\n", "text\t1")
                                 .text();
    REQUIRE(text ==
            "{\"step\":7,\"x\":0.1,\"nan\":null,\"inf\":null,\"on\":true,\"a \\\"name\\\"\\\\\\u000a\":\"text\\u0009"
            "1\"}\n");
    REQUIRE(
        json_line()
            .add("t/", totals{.counts = {.batches = 2, .tokens = 9, .sequences = 3, .kept_tokens = 8, .kept_sequences = 1}})
            .text() ==
        "{\"t/batches\":2,\"t/tokens\":9,\"t/sequences\":3,\"t/kept_tokens\":8,\"t/kept_sequences\":1,\"t/quantile\":null}\n");
    staleness_histogram histogram;
    REQUIRE(json_line().add("h", histogram).text() == "{\"h\":[]}\n");
    histogram.add(0, 3);
    histogram.add(2);
    REQUIRE(json_line().add("h", histogram).text() == "{\"h\":[3,0,1]}\n");
}

TEST_CASE("metrics carry Dressage's names", "[fmt]") {
    staleness_metrics metrics;
    version_runs runs;
    runs.append({2}, 4);
    runs.append({3}, 6);
    metrics.train_unit({6}, {2}, {2});
    metrics.train_trajectory({6}, runs);
    metrics.drop(drop_reason::stale, drop_stage::in_queue, 50);
    metrics.refuse(admission_status::no_place);
    std::string const text = json_line().add(metrics).text();
    for (std::string_view const part :
         {"\"staleness/dropped_groups\":1,", "\"staleness/version_gap_mean\":3,", "\"staleness/version_gap_min\":3,",
          "\"staleness/version_gap_max\":3,", "\"staleness/version_span_mean\":2,", "\"staleness/version_span_max\":2,",
          "\"staleness/version_span_min\":2,", "\"staleness/current_version_index\":-1,",
          "\"staleness/cutoff_version_index\":-1,", "\"staleness/partial_rollout_rejected_groups\":0,",
          "\"staleness/partial_rollout_rejected_samples\":0,", "\"staleness/oldest_mean\":4,", "\"staleness/in_queue_max\":4,",
          "\"staleness/token_mean\":3.4,", "\"dropped/in_queue/stale\":1,", "\"dropped_tokens/in_queue/stale\":50,",
          "\"refused/no_place\":1,", "\"trained_tokens\":10,"}) {
        CAPTURE(part, text);
        REQUIRE(text.find(part) != std::string::npos);
    }

    std::string const table = number_table(metrics);
    REQUIRE(table.find("staleness/dropped_groups") != std::string::npos);
    REQUIRE(table.find("staleness/in_flight_mean") == std::string::npos);  // 0
    REQUIRE(number_table(staleness_metrics{}) ==
            "staleness/current_version_index            -1\n"
            "staleness/cutoff_version_index             -1\n");
}

TEST_CASE("a loss report and unit counters are written the same way", "[fmt]") {
    loss_report loss;
    loss.sums.loss = 0.25;
    loss.sums.log_mismatch = 2;
    loss.counts.tokens = 8;
    loss.counts.capped = 2;
    std::string const text = json_line().add("loss/", loss).text();
    REQUIRE(text.find("{\"loss/loss\":0.25,\"loss/tokens\":8,") == 0);
    REQUIRE(text.find("\"loss/capped_share\":0.25,") != std::string::npos);
    REQUIRE(text.find("\"loss/mismatch_k1\":-0.25,") != std::string::npos);
    REQUIRE(number_table(group_counters{.opened = 12}) == "opened            12\n");
    REQUIRE(number_table(unit_counters{.admitted = 3, .in_flight = 2}) ==
            "admitted              3\n"
            "in_flight             2\n");
}
