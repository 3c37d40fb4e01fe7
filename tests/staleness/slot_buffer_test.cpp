// SPDX-License-Identifier: Apache-2.0
#include "array_model.hpp"
#include "catch.hpp"
#include "counted_allocations.hpp"

#include <asyncrl/staleness/slot_buffer.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using namespace asyncrl;

namespace {

/// Writes the moves of a call as the walkthrough does: "F 0.3>1.4, A 0.1", buffers from 0, slots from 1.
struct move_log {
    std::string* text = nullptr;

    static std::string spot(slot_place place) {
        return std::to_string(place.buffer.value) + "." + std::to_string(place.slot + 1);
    }

    void operator()(slot_event<char> const& event) const noexcept {
        std::string line;
        switch (event.kind) {
            case slot_event_kind::reserved:
            case slot_event_kind::occupied:
                line = std::string(1, *event.handle) + " " + spot(event.to);
                break;
            case slot_event_kind::moved_back:
            case slot_event_kind::moved_forward:
                line = std::string(1, *event.handle) + " " + spot(event.from) + ">" + spot(event.to);
                break;
            case slot_event_kind::dropped:
                line = std::string(1, *event.handle) + " dropped";
                break;
            case slot_event_kind::taken:
                line = std::string(1, *event.handle) + " taken";
                break;
            case slot_event_kind::published:
                line = "published " + std::to_string(event.version.value);
                break;
            case slot_event_kind::displaced:
                line = std::string(1, *event.handle) + " displaced";
                break;
        }
        *text += (text->empty() ? "" : ", ") + line;
    }
};

/// A slot buffer of letters that can be told what to do and asked how it looks.
class stage {
  public:
    explicit stage(slot_buffer_options const& options) : buffer(options, move_log{&moves_}) {}

    slot_buffer<char, move_log> buffer;

    bool reserve(char unit) {
        auto const ticket = buffer.reserve(unit);
        if (ticket) {
            tickets_[unit] = *ticket;
        }
        return ticket.has_value();
    }
    bool reserve_all(std::string const& units) {
        return std::all_of(units.begin(), units.end(), [&](char unit) { return reserve(unit); });
    }
    bool occupy(char unit) { return buffer.occupy(tickets_.at(unit)) == ticket_status::ok; }
    bool occupy_all(std::string const& units) {
        return std::all_of(units.begin(), units.end(), [&](char unit) { return occupy(unit); });
    }
    bool discard(char unit, drop_reason reason = drop_reason::discarded) {
        return buffer.discard(tickets_.at(unit), reason) == ticket_status::ok;
    }
    bool filter(char unit) { return buffer.filter(tickets_.at(unit)) == ticket_status::ok; }

    std::string take() {
        std::vector<taken_unit<char>> batch(static_cast<std::size_t>(buffer.batch_size()));
        std::string units;
        if (auto const number = buffer.take(batch)) {
            for (auto const& unit : batch) {
                units += unit.handle;
                staleness_seen.insert(unit.staleness);
                if (unit.staleness != number->value - unit.version.value) {
                    units += '!';
                }
            }
        }
        return units;
    }

    /// The legal buffers: "A* D* H E S | G C B F S", with `*` for completed units, -- for empty slots, then the state.
    std::string picture() const {
        std::string text;
        auto const table = buffer.table();
        auto const width = static_cast<std::size_t>(buffer.batch_size());
        for (std::size_t i = 0; i < table.size(); ++i) {
            text += i != 0 && i % width == 0 ? "| " : "";
            switch (table[i].state) {
                case slot_state::empty:
                    text += "-- ";
                    break;
                case slot_state::reserved:
                    text += std::string(1, table[i].handle) + " ";
                    break;
                case slot_state::occupied:
                    text += std::string(1, table[i].handle) + "* ";
                    break;
            }
            if (i % width == width - 1) {
                policy_version const number{buffer.next_batch().value + static_cast<std::int64_t>(i / width)};
                text += "PSR"[static_cast<int>(buffer.state(number))];
                text += i + 1 < table.size() ? " " : "";
            }
        }
        return text;
    }

    std::string moves() { return std::exchange(moves_, {}); }
    std::int64_t in_flight() const { return buffer.counters().in_flight; }
    unit_ticket ticket(char unit) const { return tickets_.at(unit); }

    std::set<std::int64_t> staleness_seen;

  private:
    std::string moves_;
    std::map<char, unit_ticket> tickets_;
};

bool is_conserved(unit_counters const& counters) {
    return counters.admitted == counters.in_flight + counters.completed + counters.taken + counters.dropped_total();
}

/// The invariants that the walkthrough states beside its table.
void check_walkthrough_invariants(stage const& s) {
    auto const table = s.buffer.table();
    auto const reserved =
        std::count_if(table.begin(), table.end(), [](auto const& slot) { return slot.state == slot_state::reserved; });
    auto const used =
        std::count_if(table.begin(), table.end(), [](auto const& slot) { return slot.state != slot_state::empty; });
    REQUIRE(reserved == s.in_flight());
    REQUIRE(used <= 8);
    REQUIRE(s.in_flight() <= 6);
    REQUIRE(is_conserved(s.buffer.counters()));
    for (std::size_t i = 0; i < table.size(); ++i) {
        auto const number = s.buffer.next_batch().value + static_cast<std::int64_t>(i / 4);
        REQUIRE((table[i].state == slot_state::empty || number - table[i].version.value <= 1));
    }
}

}  // namespace

TEST_CASE("the walkthrough A to L holds in every slot after every event", "[slot_buffer][walkthrough]") {
    stage s({.batch_size = 4, .max_staleness = 1, .max_in_flight = 6});
    auto const expect = [&](std::string const& moves, std::string const& picture, std::int64_t in_flight) {
        REQUIRE(s.moves() == moves);
        REQUIRE(s.picture() == picture);
        REQUIRE(s.in_flight() == in_flight);
        check_walkthrough_invariants(s);
    };

    REQUIRE(s.reserve_all("ABCDEF"));
    expect("A 1.4, B 1.3, C 1.2, D 1.1, E 0.4, F 0.3", "-- -- F E P | D C B A S", 6);
    REQUIRE_FALSE(s.reserve('G'));
    REQUIRE(s.occupy('A'));
    expect("F 0.3>1.4, A 0.1", "A* -- -- E P | D C B F S", 5);
    REQUIRE(s.reserve('G'));
    expect("G 0.3", "A* -- G E P | D C B F S", 6);
    REQUIRE(s.occupy('D'));
    expect("G 0.3>1.1, D 0.2", "A* D* -- E P | G C B F S", 5);
    REQUIRE(s.reserve('H'));
    expect("H 0.3", "A* D* H E S | G C B F S", 6);
    REQUIRE(s.occupy('C'));
    expect("H 0.3>1.2, C 0.3", "A* D* C* E S | G H B F S", 5);
    REQUIRE_FALSE(s.reserve('I'));
    REQUIRE(s.occupy('E'));
    expect("E 0.4", "A* D* C* E* R | G H B F S", 4);
    REQUIRE_FALSE(s.reserve('I'));
    REQUIRE(s.take() == "ADCE");
    expect("A taken, D taken, C taken, E taken", "G H B F S", 4);
    REQUIRE_FALSE(s.reserve('I'));
    REQUIRE(s.staleness_seen == std::set<std::int64_t>{0});

    bool const f_first = GENERATE(true, false);
    if (f_first) {
        REQUIRE(s.occupy('F'));
        expect("G 1.1>1.4, F 1.1", "F* H B G S", 3);
        REQUIRE_FALSE(s.reserve('I'));
        REQUIRE(s.occupy('G'));
        expect("H 1.2>1.4, G 1.2", "F* G* B H S", 2);
    } else {
        REQUIRE(s.occupy('G'));
        expect("G 1.1", "G* H B F S", 3);
        REQUIRE_FALSE(s.reserve('I'));
        REQUIRE(s.occupy('F'));
        expect("H 1.2>1.4, F 1.2", "G* F* B H S", 2);
    }
    std::string const front = f_first ? "F* G*" : "G* F*";
    REQUIRE_FALSE(s.reserve('I'));
    s.buffer.publish();
    expect("published 1", front + " B H S | -- -- -- -- P", 2);

    bool const i_last = GENERATE(true, false);
    if (i_last) {
        REQUIRE(s.reserve_all("LKJI"));
        expect("L 2.4, K 2.3, J 2.2, I 2.1", front + " B H S | I J K L S", 6);
        REQUIRE_FALSE(s.reserve('M'));
        REQUIRE(s.occupy('J'));
        expect("I 2.1>2.2, J 2.1", front + " B H S | J* I K L S", 5);
        REQUIRE(s.occupy('H'));
        expect("B 1.3>1.4, H 1.3", front + " H* B S | J* I K L S", 4);
        REQUIRE(s.occupy('K'));
        expect("I 2.2>2.3, K 2.2", front + " H* B S | J* K* I L S", 3);
        REQUIRE(s.occupy('B'));
        expect("B 1.4", front + " H* B* R | J* K* I L S", 2);
        REQUIRE(s.take() == (f_first ? "FGHB" : "GFHB"));
        expect(f_first ? "F taken, G taken, H taken, B taken" : "G taken, F taken, H taken, B taken", "J* K* I L S", 2);
        REQUIRE(s.occupy('L'));
        expect("I 2.3>2.4, L 2.3", "J* K* L* I S", 1);
        REQUIRE(s.occupy('I'));
        expect("I 2.4", "J* K* L* I* R", 0);
    } else {
        REQUIRE(s.reserve_all("IJKL"));
        expect("I 2.4, J 2.3, K 2.2, L 2.1", front + " B H S | L K J I S", 6);
        REQUIRE(s.occupy('J'));
        expect("L 2.1>2.3, J 2.1", front + " B H S | J* K L I S", 5);
        REQUIRE(s.occupy('H'));
        expect("B 1.3>1.4, H 1.3", front + " H* B S | J* K L I S", 4);
        REQUIRE(s.occupy('K'));
        expect("K 2.2", front + " H* B S | J* K* L I S", 3);
        REQUIRE(s.occupy('B'));
        expect("B 1.4", front + " H* B* R | J* K* L I S", 2);
        REQUIRE(s.take().size() == 4);
        s.moves();
        REQUIRE(s.occupy('L'));
        expect("L 2.3", "J* K* L* I S", 1);
        REQUIRE(s.occupy('I'));
        expect("I 2.4", "J* K* L* I* R", 0);
    }
    REQUIRE(s.staleness_seen == std::set<std::int64_t>{0, 1});
    REQUIRE(s.take().empty());  // batch 2 is ready while batch 1 trains
    s.buffer.publish();
    REQUIRE(s.take().size() == 4);
    s.buffer.publish();
    REQUIRE(s.picture() == "-- -- -- -- P | -- -- -- -- P");
    unit_counters const& counters = s.buffer.counters();
    REQUIRE(counters.admitted == 12);
    REQUIRE(counters.taken == 12);
    REQUIRE(counters.dropped_total() == 0);
}

TEST_CASE("the batches of the walkthrough do not depend on the orders that it leaves open", "[slot_buffer][walkthrough]") {
    std::string order = "IJKL";
    int orders = 0;
    do {
        for (std::string const two : {"FG", "GF"}) {
            ++orders;
            stage s({.batch_size = 4, .max_staleness = 1, .max_in_flight = 6});
            auto const sorted = [](std::string text) {
                std::sort(text.begin(), text.end());
                return text;
            };
            REQUIRE(s.reserve_all("ABCDEF"));
            REQUIRE((s.occupy('A') && s.reserve('G') && s.occupy('D') && s.reserve('H') && s.occupy('C')));
            REQUIRE_FALSE(s.reserve('I'));
            REQUIRE(s.occupy('E'));
            REQUIRE(sorted(s.take()) == "ACDE");
            REQUIRE(s.staleness_seen == std::set<std::int64_t>{0});
            REQUIRE(s.occupy_all(two));
            REQUIRE_FALSE(s.reserve('I'));
            s.buffer.publish();
            REQUIRE(s.reserve_all(order));
            s.moves();
            REQUIRE(s.occupy('J'));
            REQUIRE(s.moves().find("J 2.1") != std::string::npos);
            check_walkthrough_invariants(s);
            REQUIRE(s.occupy_all("HKB"));
            s.staleness_seen.clear();
            REQUIRE(sorted(s.take()) == "BFGH");
            REQUIRE(s.staleness_seen == std::set<std::int64_t>{1});
            REQUIRE(s.occupy_all("LI"));
            REQUIRE(s.take().empty());
            s.buffer.publish();
            REQUIRE(sorted(s.take()) == "IJKL");
            REQUIRE(s.staleness_seen == std::set<std::int64_t>{1});
            check_walkthrough_invariants(s);
        }
    } while (std::next_permutation(order.begin(), order.end()));
    REQUIRE(orders == 48);
}

TEST_CASE("results and reservations may alternate within a buffer", "[slot_buffer]") {
    SECTION("three slots, one batch of staleness") {
        stage s({.batch_size = 3, .max_staleness = 1});
        REQUIRE(s.reserve_all("ABCDE"));
        REQUIRE(s.moves() == "A 1.3, B 1.2, C 1.1, D 0.3, E 0.2");
        REQUIRE(s.occupy_all("EDC"));
        REQUIRE(s.take().size() == 3);
        s.buffer.publish();
        s.moves();
        REQUIRE(s.reserve_all("FGHI"));
        REQUIRE(s.moves() == "F 2.3, G 2.2, H 2.1, I 1.1");
        REQUIRE(s.occupy('A'));
        REQUIRE(s.moves() == "I 1.1>1.3, A 1.1");
        REQUIRE(s.occupy('H'));
        REQUIRE(s.moves() == "I 1.3>2.1, H 1.3");
        REQUIRE(s.picture() == "A* B H* S | I G F S");
        REQUIRE(s.buffer.at({{1}, 0}).version == policy_version{0});
        REQUIRE(s.buffer.at({{1}, 1}).version == policy_version{0});
        REQUIRE(s.buffer.at({{1}, 2}).version == policy_version{1});
    }
    SECTION("two slots, two batches of staleness: a reservation stays in front of an empty slot") {
        stage s({.batch_size = 2, .max_staleness = 2});
        REQUIRE(s.reserve_all("ABCD"));
        REQUIRE(s.occupy_all("DC"));
        REQUIRE(s.take() == "DC");
        s.buffer.publish();
        REQUIRE(s.reserve_all("EFG"));
        REQUIRE(s.picture() == "-- G P | B A S | F E S");
        REQUIRE(s.occupy_all("AF"));
        REQUIRE(s.picture() == "A* F* R | B -- P | G E S");
    }
}

TEST_CASE("a unit goes to no batch beyond its version plus the bound, were it empty", "[slot_buffer]") {
    stage s({.batch_size = 1, .max_staleness = 1});
    REQUIRE(s.reserve_all("AB"));
    REQUIRE_FALSE(s.reserve('C'));
    REQUIRE(s.occupy('B'));
    REQUIRE(s.take() == "B");
    REQUIRE_FALSE(s.reserve('C'));
    s.buffer.publish();
    REQUIRE(s.picture() == "A S | -- P");
    REQUIRE(s.reserve('C'));
    REQUIRE(s.occupy('C'));
    REQUIRE(s.picture() == "A S | C* R");  // A may not take the place behind C, nor C the one that A needs
    REQUIRE(s.occupy('A'));
    REQUIRE(s.take() == "A");
    REQUIRE(s.staleness_seen == std::set<std::int64_t>{0, 1});
}

TEST_CASE("reserve takes the latest legal slot and refuses when none is left", "[slot_buffer]") {
    stage s({.batch_size = 2, .max_staleness = 1});
    REQUIRE(s.reserve_all("ABCD"));
    REQUIRE(s.moves() == "A 1.2, B 1.1, C 0.2, D 0.1");
    REQUIRE(s.buffer.admissible() == 0);
    REQUIRE_FALSE(s.reserve('E'));
    REQUIRE(s.buffer.counters().admitted == 4);
}

TEST_CASE("a completed unit takes the earliest empty slot, and one reservation moves into its gap", "[slot_buffer]") {
    stage s({.batch_size = 4, .max_staleness = 1});
    REQUIRE(s.reserve_all("ABCDEF"));
    s.moves();
    REQUIRE(s.occupy('B'));
    REQUIRE(s.moves() == "F 0.3>1.3, B 0.1");
    REQUIRE(s.picture() == "B* -- -- E P | D C F A S");
}

TEST_CASE("staleness 0 admits one batch and is synchronous", "[slot_buffer]") {
    stage s({.batch_size = 8, .max_staleness = 0});
    REQUIRE(s.buffer.admissible() == 8);
    REQUIRE(s.reserve_all("ABCDEFGH"));
    REQUIRE_FALSE(s.reserve('I'));
    REQUIRE(s.occupy_all("HGFEDCBA"));
    REQUIRE(s.take().size() == 8);
    REQUIRE(s.buffer.table().empty());
    REQUIRE(s.buffer.state({1}) == buffer_state::pending);
    REQUIRE_FALSE(s.reserve('I'));
    s.buffer.publish();
    REQUIRE(s.reserve('I'));
    REQUIRE(s.staleness_seen == std::set<std::int64_t>{0});
}

TEST_CASE("a resumed run starts with the capacity of its bound, not of its history", "[slot_buffer]") {
    slot_buffer<int> buffer({.batch_size = 4, .max_staleness = 2, .first_version = {10}});
    REQUIRE(buffer.admissible() == 12);
    REQUIRE(buffer.next_batch() == policy_version{10});
    REQUIRE(buffer.last_buffer() == policy_version{12});
    REQUIRE(buffer.reserve(1)->version == policy_version{10});
    REQUIRE(buffer.at({{12}, 3}).state == slot_state::reserved);
}

TEST_CASE("the version that a unit is admitted under is that of the last commit", "[slot_buffer]") {
    slot_buffer<int> buffer({.batch_size = 1, .max_staleness = 3, .first_version = {7}});
    auto const first = buffer.reserve(0);
    std::vector<taken_unit<int>> batch(1);
    REQUIRE(buffer.occupy(*first) == ticket_status::ok);
    REQUIRE(buffer.take(batch) == policy_version{7});
    REQUIRE(buffer.begin_publish() == policy_version{8});
    REQUIRE(buffer.reserve(1)->version == policy_version{7});
    buffer.abort_publish();
    REQUIRE(buffer.version() == policy_version{7});
    REQUIRE(buffer.in_training());
    REQUIRE(buffer.begin_publish() == policy_version{8});
    auto const before = buffer.reserve(2);
    REQUIRE(buffer.commit_publish() == policy_version{8});
    REQUIRE(before->version == policy_version{7});
    REQUIRE(buffer.reserve(3)->version == policy_version{8});
    // A publish between reserve and occupy does not relabel.
    REQUIRE(buffer.occupy(*before) == ticket_status::ok);
    REQUIRE(buffer.take(batch) == policy_version{8});
    REQUIRE(batch[0].version == policy_version{7});
    REQUIRE(batch[0].staleness == 1);
}

TEST_CASE("a second result is a duplicate and changes nothing", "[slot_buffer][fencing]") {
    stage s({.batch_size = 3, .max_staleness = 1});
    REQUIRE(s.reserve_all("ABCD"));
    REQUIRE(s.occupy('B'));
    std::string const picture = s.picture();
    s.moves();
    REQUIRE(s.buffer.occupy(s.ticket('B')) == ticket_status::duplicate);
    REQUIRE(s.buffer.occupy(s.ticket('B'), 'X') == ticket_status::duplicate);
    REQUIRE(s.buffer.discard(s.ticket('B')) == ticket_status::duplicate);
    REQUIRE(s.buffer.filter(s.ticket('A')) == ticket_status::in_flight);
    REQUIRE(s.moves().empty());
    REQUIRE(s.picture() == picture);
    REQUIRE(s.buffer.counters().completed == 1);
}

TEST_CASE("a late result of a unit whose slot was used again leaves the new unit intact", "[slot_buffer][fencing]") {
    stage s({.batch_size = 1, .max_staleness = 0});
    REQUIRE(s.reserve('A'));
    unit_ticket const old = s.ticket('A');
    REQUIRE(s.discard('A', drop_reason::timed_out));
    REQUIRE(s.reserve('B'));
    REQUIRE(s.ticket('B').index == old.index);  // the same record, another generation
    REQUIRE(s.buffer.occupy(old, 'X') == ticket_status::gone);
    REQUIRE(s.buffer.discard(old) == ticket_status::gone);
    REQUIRE(s.buffer.filter(old) == ticket_status::gone);
    REQUIRE(s.picture() == "B S");
    REQUIRE(s.occupy('B'));
    REQUIRE(s.take() == "B");
    REQUIRE(s.buffer.occupy(s.ticket('B')) == ticket_status::gone);
    REQUIRE(s.buffer.counters().dropped_for(drop_reason::timed_out) == 1);
}

TEST_CASE("a unit dropped as stale under its worker answers the worker with gone and has freed its place",
          "[slot_buffer][fencing]") {
    stage s({.batch_size = 2, .max_staleness = 0});
    REQUIRE(s.reserve_all("AB"));
    REQUIRE(s.discard('A', drop_reason::stale));
    REQUIRE(s.buffer.admissible() == 1);
    REQUIRE(s.buffer.occupy(s.ticket('A')) == ticket_status::gone);
    REQUIRE(s.buffer.counters().dropped_for(drop_reason::stale) == 1);
    REQUIRE(is_conserved(s.buffer.counters()));
}

TEST_CASE("a ticket of another buffer is foreign, also one with the same numbers", "[slot_buffer][fencing]") {
    slot_buffer<int> one({.batch_size = 2});
    slot_buffer<int> two({.batch_size = 2});
    auto const ticket = *one.reserve(1);
    auto const twin = *two.reserve(2);
    REQUIRE((ticket.id == twin.id && ticket.index == twin.index));
    REQUIRE(two.occupy(ticket) == ticket_status::foreign);
    REQUIRE(two.discard(ticket) == ticket_status::foreign);
    REQUIRE(two.filter(ticket) == ticket_status::foreign);
    REQUIRE(two.occupy(unit_ticket{}) == ticket_status::foreign);
    unit_ticket unborn = twin;
    unborn.id = 77;
    REQUIRE(two.occupy(unborn) == ticket_status::foreign);
    REQUIRE(two.counters().in_flight == 1);
    slot_buffer<int> moved(std::move(two));
    REQUIRE(moved.occupy(twin) == ticket_status::ok);
}

TEST_CASE("an empty trajectory frees its slot, is counted as rejected, and the batch still wants its full count",
          "[slot_buffer][drop]") {
    stage s({.batch_size = 2, .max_staleness = 0});
    REQUIRE(s.reserve_all("AB"));
    REQUIRE(s.occupy('A'));
    REQUIRE(s.discard('B', drop_reason::rejected));
    REQUIRE(s.take().empty());
    REQUIRE(s.buffer.counters().dropped_for(drop_reason::rejected) == 1);
    REQUIRE(s.reserve('C'));
    REQUIRE(s.occupy('C'));
    REQUIRE(s.take() == "AC");
}

TEST_CASE("ten completed units leave as 4 and 4 in order, and the other 2 stay", "[slot_buffer]") {
    stage s({.batch_size = 4, .max_staleness = 2});
    REQUIRE(s.reserve_all("ABCDEFGHIJ"));
    REQUIRE(s.occupy_all("ABCDEFGHIJ"));
    REQUIRE(s.take() == "ABCD");
    s.buffer.publish();
    REQUIRE(s.take() == "EFGH");
    s.buffer.publish();
    REQUIRE(s.take().empty());
    REQUIRE(s.picture() == "I* J* -- -- P | -- -- -- -- P | -- -- -- -- P");
    REQUIRE(s.buffer.counters().completed == 2);
}

TEST_CASE("when every completed unit is dropped nothing can be taken and the whole batch is wanted again",
          "[slot_buffer][drop]") {
    stage s({.batch_size = 3, .max_staleness = 0});
    REQUIRE((s.reserve_all("ABC") && s.occupy_all("ABC")));
    REQUIRE((s.filter('A') && s.filter('B') && s.filter('C')));
    REQUIRE(s.take().empty());
    REQUIRE(s.buffer.admissible() == 3);
    REQUIRE(s.buffer.counters().dropped_for(drop_reason::filtered) == 3);
}

TEST_CASE("units given up in a stuck buffer are replaced by a later result, and their places are open again",
          "[slot_buffer][drop]") {
    stage s({.batch_size = 3, .max_staleness = 1});
    REQUIRE((s.reserve_all("ABCPQR") && s.occupy_all("PQR")));
    REQUIRE(s.take().size() == 3);
    s.buffer.publish();
    REQUIRE(s.occupy('A'));
    REQUIRE((s.reserve_all("DEF") && s.occupy('D')));
    REQUIRE(s.picture() == "A* B C S | D* E F S");
    s.moves();
    REQUIRE((s.discard('B', drop_reason::stuck_timeout) && s.discard('C', drop_reason::stuck_timeout)));
    REQUIRE(s.moves() == "B dropped, D 2.1>1.2, C dropped");
    REQUIRE((s.reserve('G') && s.reserve('H')));
    REQUIRE(s.moves() == "G 2.1, H 1.3");
    REQUIRE_FALSE(s.reserve('I'));
    REQUIRE(s.picture() == "A* D* H S | G E F S");
}

TEST_CASE("a filtered result is replaced by the last one of the next buffer that has one", "[slot_buffer][drop]") {
    stage s({.batch_size = 3, .max_staleness = 1});
    REQUIRE((s.reserve_all("ABCDEF") && s.occupy_all("ABCD")));
    REQUIRE(s.picture() == "A* B* C* R | D* E F S");
    s.moves();
    REQUIRE(s.filter('C'));
    REQUIRE(s.moves() == "C dropped, D 1.1>0.3");
    REQUIRE(s.picture() == "A* B* D* R | -- E F P");
    REQUIRE(s.reserve('G'));
    REQUIRE(s.moves() == "G 1.1");
}

TEST_CASE("a drop pulls results forward through the buffers, then one reservation back", "[slot_buffer][drop]") {
    stage s({.batch_size = 2, .max_staleness = 3});
    REQUIRE((s.reserve_all("ABCDEFGH") && s.occupy_all("ABCDEF")));
    REQUIRE(s.picture() == "A* B* R | C* D* R | E* F* R | G H S");
    s.moves();
    REQUIRE(s.filter('A'));
    REQUIRE(s.moves() == "A dropped, D 1.2>0.1, F 2.2>1.2");
    REQUIRE(s.picture() == "D* B* R | C* F* R | E* -- P | G H S");
    REQUIRE(s.reserve('I'));
    REQUIRE(s.discard('G'));
    REQUIRE(s.moves() == "I 2.2, G dropped, I 2.2>3.1");
    REQUIRE(s.picture() == "D* B* R | C* F* R | E* -- P | I H S");
}

TEST_CASE("after a failure in flight one completion makes the next batch ready", "[slot_buffer][drop]") {
    // Without the move back on a failed reservation, batch 1 would wait for B.
    stage s({.batch_size = 1, .max_staleness = 2});
    REQUIRE((s.reserve_all("ABC") && s.occupy('A')));
    REQUIRE(s.take() == "A");
    s.buffer.publish();
    REQUIRE(s.discard('C', drop_reason::failed));
    REQUIRE(s.picture() == "-- P | B S | -- P");
    REQUIRE(s.reserve_all("XY"));
    REQUIRE(s.picture() == "Y S | B S | X S");
    REQUIRE(s.occupy('X'));
    REQUIRE(s.take() == "X");
}

TEST_CASE("a result moves over units in flight when the one before them is dropped", "[slot_buffer][drop]") {
    stage s({.batch_size = 1, .max_staleness = 2});
    REQUIRE((s.reserve_all("ABC") && s.occupy('A')));
    REQUIRE(s.take() == "A");
    s.buffer.publish();
    REQUIRE((s.reserve('X') && s.occupy('X')));
    REQUIRE(s.picture() == "B S | C S | X* R");
    REQUIRE(s.discard('B'));
    REQUIRE(s.take() == "X");
}

TEST_CASE("every state of a buffer is told, not only the front one's", "[slot_buffer]") {
    stage s({.batch_size = 2, .max_staleness = 3});
    REQUIRE((s.reserve_all("ABCDEF") && s.occupy_all("FE")));
    REQUIRE(s.buffer.state({0}) == buffer_state::ready);
    REQUIRE(s.buffer.state({1}) == buffer_state::pending);
    REQUIRE(s.buffer.state({2}) == buffer_state::stuck);
    REQUIRE(s.buffer.state({3}) == buffer_state::stuck);
}

TEST_CASE("two buffers in one process share nothing", "[slot_buffer]") {
    stage one({.batch_size = 1, .max_staleness = 1});
    stage two({.batch_size = 1, .max_staleness = 1});
    REQUIRE((one.reserve('A') && one.occupy('A')));
    REQUIRE(one.take() == "A");
    one.buffer.publish();
    REQUIRE(one.buffer.version() == policy_version{1});
    REQUIRE(two.buffer.version() == policy_version{0});
    REQUIRE(two.buffer.counters().admitted == 0);
    REQUIRE(two.picture() == "-- P | -- P");
}

TEST_CASE("options outside their limits and misuse throw before anything changes", "[slot_buffer]") {
    using buffer_type = slot_buffer<int>;
    REQUIRE_THROWS_AS(buffer_type({.batch_size = 0}), std::invalid_argument);
    REQUIRE_THROWS_AS(buffer_type({.batch_size = 262'145}), std::invalid_argument);
    REQUIRE_THROWS_AS(buffer_type({.batch_size = 1, .max_staleness = -1}), std::invalid_argument);
    REQUIRE_THROWS_AS(buffer_type({.batch_size = 1, .max_staleness = 64}), std::invalid_argument);
    REQUIRE_THROWS_AS(buffer_type({.batch_size = 1, .max_in_flight = 0}), std::invalid_argument);
    REQUIRE_THROWS_AS(buffer_type({.batch_size = 1, .first_version = {-1}}), std::invalid_argument);

    buffer_type buffer({.batch_size = 2, .max_staleness = 1});
    REQUIRE_THROWS_AS(buffer.publish(), std::invalid_argument);
    REQUIRE_THROWS_AS(buffer.begin_publish(), std::invalid_argument);
    REQUIRE_THROWS_AS(buffer.commit_publish(), std::invalid_argument);
    REQUIRE_THROWS_AS(buffer.abort_publish(), std::invalid_argument);
    REQUIRE_THROWS_AS(buffer.state({2}), std::invalid_argument);
    REQUIRE_THROWS_AS(buffer.state({-1}), std::invalid_argument);
    REQUIRE_THROWS_AS(buffer.at({{0}, 2}), std::invalid_argument);
    std::vector<taken_unit<int>> batch(3);
    REQUIRE_THROWS_AS(buffer.take(batch), std::invalid_argument);
    REQUIRE(buffer.version() == policy_version{0});

    REQUIRE(buffer.occupy(*buffer.reserve(1)) == ticket_status::ok);
    REQUIRE(buffer.occupy(*buffer.reserve(2)) == ticket_status::ok);
    REQUIRE_THROWS_AS(buffer.take(batch), std::invalid_argument);
    REQUIRE(buffer.can_take());
    batch.resize(2);
    REQUIRE(buffer.take(batch));
    buffer.begin_publish();
    REQUIRE_THROWS_AS(buffer.begin_publish(), std::invalid_argument);
    REQUIRE_THROWS_AS(buffer.publish(), std::invalid_argument);
    REQUIRE(buffer.commit_publish() == policy_version{1});
}

TEST_CASE("handles are moved in and out, and a dropped one is released at once", "[slot_buffer]") {
    slot_buffer<std::unique_ptr<int>> owners({.batch_size = 1, .max_staleness = 1});
    auto const ticket = *owners.reserve(std::make_unique<int>(1));
    REQUIRE(owners.occupy(ticket, std::make_unique<int>(2)) == ticket_status::ok);
    std::vector<taken_unit<std::unique_ptr<int>>> batch(1);
    REQUIRE(owners.take(batch));
    REQUIRE(*batch[0].handle == 2);

    slot_buffer<std::shared_ptr<int>> shared({.batch_size = 1, .max_staleness = 1});
    auto const payload = std::make_shared<int>(3);
    auto const first = *shared.reserve(payload);
    auto const second = *shared.reserve(payload);
    REQUIRE(payload.use_count() == 3);
    REQUIRE(shared.discard(first) == ticket_status::ok);
    REQUIRE(payload.use_count() == 2);
    REQUIRE(shared.occupy(second) == ticket_status::ok);
    REQUIRE(shared.filter(second) == ticket_status::ok);
    REQUIRE(payload.use_count() == 1);
}

TEST_CASE("after construction the training loop does not allocate", "[slot_buffer]") {
    slot_buffer<int> buffer({.batch_size = 70, .max_staleness = 3});
    std::vector<unit_ticket> tickets;
    tickets.reserve(1000);
    std::vector<taken_unit<int>> batch(70);
    std::int64_t const before = allocations;
    for (int round = 0; round < 20; ++round) {
        while (auto const ticket = buffer.reserve(round)) {
            tickets.push_back(*ticket);
        }
        buffer.discard(tickets[tickets.size() / 2]);
        for (unit_ticket const& ticket : tickets) {
            buffer.occupy(ticket);
        }
        buffer.filter(tickets[3]);
        tickets.clear();
        if (buffer.take(batch)) {
            buffer.publish();
        }
    }
    std::int64_t const during = allocations - before;
    REQUIRE(during == 0);
    REQUIRE(buffer.counters().taken > 1000);
}

namespace {

/// Drives the buffer and the array model with the same random events and compares everything after each.
class comparison {
  public:
    struct weights {
        int reserve, occupy, discard, filter, late, train;
    };

    comparison(slot_buffer_options const& options, unsigned seed)
        : buffer_(options),
          model_(options.batch_size, options.max_staleness, options.max_in_flight),
          random_(seed),
          batch_(static_cast<std::size_t>(options.batch_size)) {}

    /// One event. Returns what differs, or nothing.
    std::string step(weights const& weight, bool compares_tables = true) {
        std::discrete_distribution<int> event{static_cast<double>(weight.reserve), static_cast<double>(weight.occupy),
                                              static_cast<double>(weight.discard), static_cast<double>(weight.filter),
                                              static_cast<double>(weight.late),    static_cast<double>(weight.train)};
        std::string const wrong = one(event(random_));
        return wrong.empty() && compares_tables ? compare() : wrong;
    }

    std::int64_t taken() const { return buffer_.counters().taken; }

    /// Calls that reached the buffer: events for which no unit was at hand do not count.
    std::int64_t calls() const { return calls_; }

    /// Completes all that is in flight and admits what fits until a batch can be taken. False if it never can.
    bool progresses() {
        if (buffer_.in_training()) {
            publish();
        }
        for (int round = 0; round < 3 && !buffer_.can_take(); ++round) {
            while (!in_flight_.empty()) {
                one(1);
            }
            while (buffer_.admissible() > 0 && !buffer_.can_take()) {
                one(0);
                one(1);
            }
        }
        return buffer_.can_take();
    }

  private:
    std::size_t any(std::vector<unit_ticket> const& from) { return random_() % from.size(); }

    unit_ticket pick(std::vector<unit_ticket>& from) {
        std::size_t const i = any(from);
        unit_ticket const ticket = from[i];
        from[i] = from.back();
        from.pop_back();
        ++calls_;
        return ticket;
    }

    std::string one(int event) {
        switch (event) {
            case 0: {
                ++calls_;
                auto const ticket = buffer_.reserve(next_);
                if (ticket.has_value() != model_.reserve(next_)) {
                    return "reserve";
                }
                if (ticket) {
                    if (ticket->version.value != model_.version || ticket->id != static_cast<std::uint64_t>(next_)) {
                        return "stamp";
                    }
                    in_flight_.push_back(*ticket);
                    ++next_;
                }
                return {};
            }
            case 1: {
                if (in_flight_.empty()) {
                    return {};
                }
                unit_ticket const ticket = pick(in_flight_);
                completed_.push_back(ticket);
                bool const same =
                    buffer_.occupy(ticket) == ticket_status::ok && model_.occupy(unit(ticket)) == array_model::outcome::placed;
                return same ? "" : "occupy";
            }
            case 2:
            case 3: {
                auto& from = event == 2 ? in_flight_ : completed_;
                if (from.empty()) {
                    return {};
                }
                unit_ticket const ticket = pick(from);
                gone_.push_back(ticket);
                ++dropped_;
                auto const status = event == 2 ? buffer_.discard(ticket, drop_reason::failed) : buffer_.filter(ticket);
                return status == ticket_status::ok && model_.drop(unit(ticket)) ? "" : "drop";
            }
            case 4: {
                if (!gone_.empty()) {
                    unit_ticket const& ticket = gone_[any(gone_)];
                    if (buffer_.occupy(ticket, -7) != ticket_status::gone || buffer_.discard(ticket) != ticket_status::gone ||
                        buffer_.filter(ticket) != ticket_status::gone) {
                        return "late ticket";
                    }
                }
                if (!completed_.empty()) {
                    unit_ticket const& ticket = completed_[any(completed_)];
                    if (buffer_.occupy(ticket, -7) != ticket_status::duplicate) {
                        return "second result";
                    }
                }
                return {};
            }
            default:
                return buffer_.in_training() ? publish() : take();
        }
    }

    std::string publish() {
        ++calls_;
        buffer_.publish();
        model_.publish();
        return {};
    }

    std::string take() {
        ++calls_;
        if (buffer_.can_take() != model_.can_take()) {
            return "can_take";
        }
        auto const number = buffer_.take(batch_);
        if (!number) {
            return model_.can_take() ? "take" : "";
        }
        if (number->value != model_.next_batch) {
            return "batch number";
        }
        auto const expected = model_.take();
        for (std::size_t i = 0; i < expected.size(); ++i) {
            std::int64_t const age = number->value - expected[i].version;
            if (batch_[i].handle != expected[i].unit || batch_[i].version.value != expected[i].version ||
                batch_[i].staleness != age || age > buffer_.max_staleness() || age < 0) {
                return "batch";
            }
            if (!trained_.insert(batch_[i].handle).second) {
                return "taken twice";
            }
            auto const place = std::find_if(completed_.begin(), completed_.end(),
                                            [&](unit_ticket const& ticket) { return ticket.id == batch_[i].id; });
            if (place == completed_.end()) {
                return "taken without a result";
            }
            gone_.push_back(*place);
            *place = completed_.back();
            completed_.pop_back();
        }
        return {};
    }

    static std::int64_t unit(unit_ticket const& ticket) { return static_cast<std::int64_t>(ticket.id); }

    std::string compare() const {
        std::int64_t const rows = buffer_.last_buffer().value - buffer_.next_batch().value + 1;
        if (rows != static_cast<std::int64_t>(model_.rows.size()) || buffer_.next_batch().value != model_.next_batch ||
            buffer_.version().value != model_.version) {
            return "window";
        }
        for (std::int64_t row = 0; row < rows; ++row) {
            policy_version const number{model_.next_batch + row};
            bool has_empty = false;
            bool has_reserved = false;
            for (std::int64_t slot = 0; slot < buffer_.batch_size(); ++slot) {
                slot_view<std::int64_t> const seen = buffer_.at({number, slot});
                cell const& expected = model_.rows[static_cast<std::size_t>(row)][static_cast<std::size_t>(slot)];
                if (static_cast<int>(seen.state) != static_cast<int>(expected.state)) {
                    return "state of a slot";
                }
                has_empty = has_empty || expected.state == cell_state::empty;
                has_reserved = has_reserved || expected.state == cell_state::reserved;
                if (expected.state == cell_state::empty) {
                    continue;
                }
                if (seen.handle != expected.unit || seen.version.value != expected.version ||
                    seen.id != static_cast<std::uint64_t>(expected.unit)) {
                    return "unit in a slot";
                }
                if (number.value - expected.version > buffer_.max_staleness()) {
                    return "bound";
                }
            }
            buffer_state const state = has_empty      ? buffer_state::pending
                                       : has_reserved ? buffer_state::stuck
                                                      : buffer_state::ready;
            if (buffer_.state(number) != state) {
                return "state of a buffer";
            }
        }
        unit_counters const& counters = buffer_.counters();
        if (!is_conserved(counters) || counters.admitted != next_ ||
            counters.in_flight != static_cast<std::int64_t>(in_flight_.size()) ||
            counters.completed != static_cast<std::int64_t>(completed_.size()) || counters.dropped_total() != dropped_ ||
            counters.taken != static_cast<std::int64_t>(trained_.size())) {
            return "counters";
        }
        if ((buffer_.admissible() > 0) != model_.can_reserve() || buffer_.can_take() != model_.can_take()) {
            return "admission";
        }
        return {};
    }

    slot_buffer<std::int64_t> buffer_;
    array_model model_;
    std::mt19937 random_;
    std::vector<taken_unit<std::int64_t>> batch_;
    std::vector<unit_ticket> in_flight_;
    std::vector<unit_ticket> completed_;
    std::vector<unit_ticket> gone_;
    std::set<std::int64_t> trained_;
    std::int64_t next_ = 0;
    std::int64_t dropped_ = 0;
    std::int64_t calls_ = 0;
};

}  // namespace

TEST_CASE("a million random events leave the same table as plain arrays", "[slot_buffer][oracle]") {
    std::mt19937 random(2024);
    auto const below = [&](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
    std::int64_t calls = 0;
    for (int run = 0; run < 9000; ++run) {
        bool const is_wide = run % 40 == 0;
        slot_buffer_options options{.batch_size = is_wide ? 60 + below(80) : 1 + below(6), .max_staleness = below(6)};
        if (run % 97 == 0) {
            options = {.batch_size = 1 + below(2), .max_staleness = 60 + below(4)};
        }
        if (below(2) == 0) {
            options.max_in_flight = 1 + below(static_cast<int>(options.batch_size * (options.max_staleness + 1)) + 1);
        }
        bool const drops = run % 2 == 0;
        comparison::weights const weight{.reserve = 35 + below(20),
                                         .occupy = 25 + below(20),
                                         .discard = drops ? below(10) : 0,
                                         .filter = drops ? below(10) : 0,
                                         .late = 3,
                                         .train = 5 + below(25)};
        comparison pair(options, static_cast<unsigned>(random()));
        int const steps = is_wide ? 400 : 200;
        for (int i = 0; i < steps; ++i) {
            std::string const wrong = pair.step(weight);
            if (!wrong.empty()) {
                CAPTURE(run, i, options.batch_size, options.max_staleness, wrong);
                FAIL("buffer and array model differ");
            }
        }
        calls += pair.calls();
        if (!pair.progresses()) {
            CAPTURE(run, options.batch_size, options.max_staleness);
            FAIL("everything in flight has completed, and no batch is ready");
        }
    }
    REQUIRE(calls >= 1'000'000);
}

TEST_CASE("a batch of thousands leaves the same table as plain arrays", "[slot_buffer][oracle]") {
    // Beyond 4096 slots the sets use their third level.
    comparison pair({.batch_size = 4500, .max_staleness = 1}, 7);
    std::string wrong;
    auto const run = [&](comparison::weights const& weight, int steps) {
        for (int i = 0; i < steps && wrong.empty(); ++i) {
            wrong = pair.step(weight, i % 250 == 0);
        }
    };
    run({.reserve = 8, .occupy = 3, .discard = 1, .filter = 1, .late = 0, .train = 0}, 12'000);
    run({.reserve = 2, .occupy = 8, .discard = 0, .filter = 0, .late = 0, .train = 1}, 12'000);
    REQUIRE(wrong.empty());
    REQUIRE(pair.taken() >= 4500);
}

TEST_CASE("sets of bits know their first and last element at every size", "[bit_trees]") {
    std::mt19937 random(5);
    for (std::uint32_t const bits : {1U, 2U, 63U, 64U, 65U, 4095U, 4096U, 4097U, 70'000U, 262'144U}) {
        detail::bit_trees trees(3, bits);
        std::set<std::uint32_t> expected;
        bool same = !trees.any(1);
        for (int i = 0; i < 3000; ++i) {
            std::uint32_t const bit = i % 7 == 0 ? bits - 1 : static_cast<std::uint32_t>(random() % bits);
            if (random() % 2 == 0) {
                trees.set(1, bit);
                expected.insert(bit);
            } else {
                trees.clear(1, bit);
                expected.erase(bit);
            }
            same = same && trees.any(1) == !expected.empty();
            if (!expected.empty()) {
                same = same && trees.first(1) == *expected.begin() && trees.last(1) == *expected.rbegin();
            }
        }
        REQUIRE(same);
        REQUIRE_FALSE(trees.any(0));
        REQUIRE_FALSE(trees.any(2));
        trees.set_all(1);
        for (std::uint32_t bit = 0; bit < bits; ++bit) {
            same = same && trees.first(1) == bit;
            trees.clear(1, bit);
        }
        REQUIRE(same);
        REQUIRE_FALSE(trees.any(1));
        trees.set_all(1);
        REQUIRE(trees.last(1) == bits - 1);
        trees.clear_all(1);
        REQUIRE_FALSE(trees.any(1));
        trees.set(1, bits / 2);
        REQUIRE((trees.first(1) == bits / 2 && trees.last(1) == bits / 2));
    }
}
