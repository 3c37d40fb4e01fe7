// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/staleness/rollout_gate.hpp>
#include <asyncrl/staleness/version_runs.hpp>

#include <cstdint>
#include <random>
#include <stdexcept>
#include <vector>

using namespace asyncrl;

namespace {

void swap_to(rollout_gate& gate, std::int64_t version) {
    gate.begin({version});
    gate.commit();
    gate.resume();
}

}  // namespace

TEST_CASE("a pause stops new generations and those under way at a token boundary", "[rollout_gate]") {
    rollout_gate gate(gate_mode::boundary, {4});
    gate_pass pass = *gate.enter();
    REQUIRE(pass.version == policy_version{4});
    REQUIRE_FALSE(gate.must_park());

    REQUIRE(gate.pause() == 1);
    REQUIRE(gate.state() == gate_state::pausing);
    REQUIRE(gate.must_park());
    REQUIRE_FALSE(gate.enter());
    REQUIRE_THROWS_AS(gate.begin({5}), std::invalid_argument);  // one still reads the weights

    REQUIRE(gate.park(pass) == gate_status::ok);
    REQUIRE(gate.park(pass) == gate_status::ok);  // asked twice, stopped once
    REQUIRE(gate.running() == 0);
    REQUIRE(gate.parked() == 1);
    REQUIRE(gate.state() == gate_state::quiet);
    REQUIRE(gate.unpark(pass) == gate_status::not_open);

    gate.begin({5});
    REQUIRE(gate.version() == policy_version{4});
    REQUIRE_THROWS_AS(gate.resume(), std::invalid_argument);  // neither committed nor aborted
    REQUIRE(gate.unpark(pass) == gate_status::not_open);
    REQUIRE(gate.commit() == policy_version{5});
    REQUIRE_FALSE(gate.enter());
    gate.resume();

    REQUIRE(gate.unpark(pass) == gate_status::ok);
    REQUIRE(pass.version == policy_version{5});
    REQUIRE(pass.epoch == 1);
    REQUIRE(gate.leave(pass) == gate_status::ok);
    REQUIRE(gate.running() == 0);
    REQUIRE(gate.parked() == 0);
}

TEST_CASE("in drain mode generations run to their end under one version", "[rollout_gate]") {
    rollout_gate gate(gate_mode::drain);
    gate_pass const first = *gate.enter();
    gate_pass const second = *gate.enter();
    gate.pause();
    REQUIRE_FALSE(gate.must_park());
    REQUIRE(gate.leave(first) == gate_status::ok);
    REQUIRE(gate.state() == gate_state::pausing);
    REQUIRE(gate.leave(second) == gate_status::ok);
    REQUIRE(gate.state() == gate_state::quiet);
    swap_to(gate, 1);
    REQUIRE(gate.enter()->version == policy_version{1});
}

TEST_CASE("a generation that a pause gave up is refused as of a stale epoch", "[rollout_gate]") {
    gate_mode const mode = GENERATE(gate_mode::drain, gate_mode::boundary);
    rollout_gate gate(mode);
    gate_pass late = *gate.enter();
    gate_pass const in_time = *gate.enter();
    gate.pause();
    REQUIRE(gate.leave(in_time) == gate_status::ok);
    REQUIRE(gate.abandon() == 1);
    REQUIRE(gate.abandon() == 0);
    REQUIRE(gate.state() == gate_state::quiet);
    swap_to(gate, 1);
    gate_pass const next = *gate.enter();
    REQUIRE(gate.park(late) == gate_status::stale_epoch);
    REQUIRE(gate.unpark(late) == gate_status::stale_epoch);
    REQUIRE(gate.leave(late) == gate_status::stale_epoch);
    REQUIRE(gate.running() == 1);  // the late one is not counted off twice
    REQUIRE(gate.leave(next) == gate_status::ok);
    REQUIRE(gate.running() == 0);
}

TEST_CASE("a generation that is parked through several pauses is not given up", "[rollout_gate]") {
    rollout_gate gate(gate_mode::boundary);
    gate_pass slow = *gate.enter();
    gate.pause();
    gate.park(slow);
    swap_to(gate, 1);
    gate_pass const stuck = *gate.enter();
    gate.pause();
    REQUIRE(gate.abandon() == 1);
    swap_to(gate, 2);
    REQUIRE(gate.leave(stuck) == gate_status::stale_epoch);
    REQUIRE(gate.unpark(slow) == gate_status::ok);
    REQUIRE(slow.version == policy_version{2});
    REQUIRE(gate.leave(slow) == gate_status::ok);
}

TEST_CASE("weights that did not arrive leave the version as it was, and a pause needs no swap", "[rollout_gate]") {
    rollout_gate gate(gate_mode::boundary);
    gate_pass pass = *gate.enter();
    gate.pause();
    gate.park(pass);
    gate.begin({1});
    gate.abort();
    gate.resume();
    REQUIRE(gate.unpark(pass) == gate_status::ok);
    REQUIRE(pass.version == policy_version{0});
    REQUIRE(gate.pause() == 2);
    gate.resume();  // given up before the generation stopped
    REQUIRE(gate.state() == gate_state::open);
    REQUIRE(gate.leave(pass) == gate_status::ok);
}

TEST_CASE("calls out of order throw and change nothing", "[rollout_gate]") {
    rollout_gate gate(gate_mode::drain);
    REQUIRE_THROWS_AS(gate.begin({1}), std::invalid_argument);
    REQUIRE_THROWS_AS(gate.commit(), std::invalid_argument);
    REQUIRE_THROWS_AS(gate.abort(), std::invalid_argument);
    REQUIRE_THROWS_AS(gate.resume(), std::invalid_argument);
    REQUIRE_THROWS_AS(gate.abandon(), std::invalid_argument);
    gate.pause();
    REQUIRE_THROWS_AS(gate.pause(), std::invalid_argument);
    REQUIRE(gate.epoch() == 1);
    REQUIRE_THROWS_AS(gate.begin({0}), std::invalid_argument);
    gate.begin({1});
    REQUIRE_THROWS_AS(gate.begin({2}), std::invalid_argument);
    REQUIRE(gate.commit() == policy_version{1});
    REQUIRE_THROWS_AS(rollout_gate(gate_mode::drain, {-1}), std::invalid_argument);
}

TEST_CASE("interrupted sequences join to the uninterrupted one, with columns of equal length", "[rollout_gate]") {
    // Greedy decoding of a policy whose next token depends on the prefix only: interruptions must not show in the tokens.
    auto const next_token = [](std::vector<int> const& prefix) {
        int hash = 17;
        for (int const token : prefix) {
            hash = (hash * 31 + token) % 1009;
        }
        return hash;
    };
    std::vector<int> expected;
    while (expected.size() < 60) {
        expected.push_back(next_token(expected));
    }

    std::mt19937 random(5);
    for (int run = 0; run < 50; ++run) {
        rollout_gate gate(gate_mode::boundary);
        gate_pass pass = *gate.enter();
        std::vector<int> tokens;
        std::vector<double> log_probs;
        std::vector<std::uint8_t> mask;
        std::vector<std::int64_t> versions;  // token by token, independent of the runs
        version_runs runs;
        while (tokens.size() < expected.size()) {
            tokens.push_back(next_token(tokens));
            log_probs.push_back(-0.1 * tokens.back());
            mask.push_back(1);
            versions.push_back(gate.version().value);
            REQUIRE(runs.append(pass.version, 1) == append_status::appended);
            if (std::uniform_int_distribution<int>(0, 5)(random) == 0) {
                gate.pause();
                REQUIRE(gate.park(pass) == gate_status::ok);
                swap_to(gate, gate.version().value + 1);
                REQUIRE(gate.unpark(pass) == gate_status::ok);
            }
        }
        REQUIRE(gate.leave(pass) == gate_status::ok);
        REQUIRE(tokens == expected);
        REQUIRE(log_probs.size() == tokens.size());
        REQUIRE(mask.size() == tokens.size());
        REQUIRE(runs.tokens() == static_cast<std::int64_t>(tokens.size()));
        std::vector<std::int64_t> joined;
        for (version_run const& part : runs.runs()) {
            joined.insert(joined.end(), static_cast<std::size_t>(part.tokens), part.version.value);
        }
        REQUIRE(joined == versions);
    }
}
