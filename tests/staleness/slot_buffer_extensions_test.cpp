// SPDX-License-Identifier: Apache-2.0
#include "array_model.hpp"
#include "catch.hpp"

#include <asyncrl/staleness/slot_buffer.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using namespace asyncrl;
using seconds = std::chrono::duration<double>;

namespace {

/// A slot buffer of letters that can be told what to do and asked how it looks.
class stage {
  public:
    explicit stage(slot_buffer_options const& options) : buffer(options) {}

    slot_buffer<char> buffer;

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
    ticket_status occupy(char unit) { return buffer.occupy(ticket(unit)); }
    bool occupy_all(std::string const& units) {
        return std::all_of(units.begin(), units.end(), [&](char unit) { return occupy(unit) == ticket_status::ok; });
    }
    unit_ticket const& ticket(char unit) const { return tickets_.at(unit); }

    std::string take() {
        std::vector<taken_unit<char>> batch(static_cast<std::size_t>(buffer.batch_size()));
        std::string units;
        if (buffer.take(batch)) {
            for (auto const& unit : batch) {
                units += unit.handle;
            }
        }
        return units;
    }

    std::string doomed() const {
        std::string units;
        buffer.for_each_doomed([&](unit_ticket const&, char unit) { units += unit; });
        std::sort(units.begin(), units.end());
        return units;
    }

    /// "A* B -- R | ...": results with a star, then the state of the buffer.
    std::string picture() const {
        std::string text;
        auto const table = buffer.table();
        auto const width = static_cast<std::size_t>(buffer.slots_per_buffer());
        for (std::size_t i = 0; i < table.size(); ++i) {
            text += i != 0 && i % width == 0 ? "| " : "";
            text += table[i].state == slot_state::empty      ? std::string("-- ")
                    : table[i].state == slot_state::occupied ? std::string(1, table[i].handle) + "* "
                                                             : std::string(1, table[i].handle) + " ";
            if (i % width == width - 1) {
                policy_version const number{buffer.next_batch().value + static_cast<std::int64_t>(i / width)};
                text += "PSR"[static_cast<int>(buffer.state(number))];
                text += i + 1 < table.size() ? " " : "";
            }
        }
        return text;
    }

  private:
    std::map<char, unit_ticket> tickets_;
};

/// The figure of a stuck buffer: buffer 1 waits for B and C, D is completed behind them.
stage stuck_figure(slot_buffer_options options) {
    options.batch_size = 3;
    options.max_staleness = 1;
    stage s(options);
    REQUIRE(s.reserve_all("ABCPQR"));
    REQUIRE(s.occupy_all("PQR"));
    REQUIRE(s.take().size() == 3);
    s.buffer.publish();
    REQUIRE(s.occupy_all("A"));
    REQUIRE(s.picture() == "A* B C S | -- -- -- P");
    REQUIRE(s.reserve_all("DEF"));
    REQUIRE(s.occupy_all("D"));
    REQUIRE(s.picture() == "A* B C S | D* E F S");
    return s;
}

}  // namespace

TEST_CASE("past its time a stuck buffer goes on without its units in flight", "[slot_buffer][stuck]") {
    stage s = stuck_figure({.stuck_timeout = seconds(60)});
    REQUIRE(s.buffer.expire_stuck(seconds(1000)) == 0);  // the clock starts
    REQUIRE(s.buffer.expire_stuck(seconds(1059)) == 0);
    std::string dropped;
    REQUIRE(s.buffer.expire_stuck(seconds(1060), [&](unit_ticket const&, char unit) { dropped += unit; }) == 2);
    REQUIRE(dropped == "BC");
    REQUIRE(s.picture() == "A* D* -- P | -- E F P");
    REQUIRE(s.buffer.counters().dropped_for(drop_reason::stuck_timeout) == 2);
    REQUIRE(s.occupy('B') == ticket_status::gone);
    REQUIRE(s.reserve('G'));
    REQUIRE(s.picture() == "A* D* -- P | G E F S");
    REQUIRE(s.reserve('H'));
    REQUIRE(s.picture() == "A* D* H S | G E F S");
    REQUIRE_FALSE(s.reserve('I'));
}

TEST_CASE("the clock of a stuck buffer runs only while it is stuck and nobody trains", "[slot_buffer][stuck]") {
    SECTION("it stops when the buffer has an empty slot again") {
        stage s = stuck_figure({.stuck_timeout = seconds(60)});
        REQUIRE(s.buffer.expire_stuck(seconds(0)) == 0);
        REQUIRE(s.buffer.discard(s.ticket('B')) == ticket_status::ok);
        REQUIRE(s.buffer.discard(s.ticket('D')) == ticket_status::duplicate);
        REQUIRE(s.buffer.filter(s.ticket('D')) == ticket_status::ok);  // D had moved into the hole
        REQUIRE(s.reserve_all("XY"));                                  // stuck again, since just now
        REQUIRE(s.buffer.state({1}) == buffer_state::stuck);
        REQUIRE(s.buffer.expire_stuck(seconds(100)) == 0);
        REQUIRE(s.buffer.expire_stuck(seconds(159)) == 0);
        REQUIRE(s.buffer.expire_stuck(seconds(160)) > 0);
    }
    SECTION("a result within it does not restart it") {
        stage s = stuck_figure({.stuck_timeout = seconds(60)});
        s.buffer.expire_stuck(seconds(0));
        REQUIRE(s.occupy_all("B"));
        REQUIRE(s.buffer.expire_stuck(seconds(60)) == 1);
    }
    SECTION("unless that is asked for") {
        stage s = stuck_figure({.stuck_timeout = seconds(60), .stuck_restarts = true});
        s.buffer.expire_stuck(seconds(0));
        REQUIRE(s.occupy_all("B"));
        REQUIRE(s.buffer.expire_stuck(seconds(60)) == 0);
        REQUIRE(s.buffer.expire_stuck(seconds(119)) == 0);
        REQUIRE(s.buffer.expire_stuck(seconds(120)) == 1);
    }
    SECTION("while a batch is in training nobody waits") {
        stage s({.batch_size = 1, .max_staleness = 1, .stuck_timeout = seconds(0)});
        REQUIRE(s.reserve_all("AB"));
        REQUIRE(s.occupy_all("B"));
        REQUIRE(s.take() == "B");
        REQUIRE(s.buffer.state({1}) == buffer_state::stuck);
        REQUIRE(s.buffer.expire_stuck(seconds(9)) == 0);
        s.buffer.publish();
        REQUIRE(s.buffer.expire_stuck(seconds(9)) == 1);
    }
    SECTION("without a timeout nothing is dropped") {
        stage s = stuck_figure({});
        s.buffer.expire_stuck(seconds(0));
        REQUIRE(s.buffer.expire_stuck(seconds(1e9)) == 0);
    }
}

TEST_CASE("a filtered result is replaced from behind, and its place is open again", "[slot_buffer]") {
    stage s({.batch_size = 3, .max_staleness = 1});
    REQUIRE(s.reserve_all("ABCDEF"));
    REQUIRE(s.occupy_all("ABCD"));
    REQUIRE(s.picture() == "A* B* C* R | D* E F S");
    REQUIRE(s.buffer.filter(s.ticket('C')) == ticket_status::ok);
    REQUIRE(s.picture() == "A* B* D* R | -- E F P");
    REQUIRE(s.reserve('G'));
    REQUIRE(s.picture() == "A* B* D* R | G E F S");
    REQUIRE_FALSE(s.reserve('H'));
}

namespace {

/// Two of three slots make a batch; buffer 1 = [A* B C], buffer 2 = [F* G* H].
stage surplus_figure() {
    stage s({.batch_size = 2, .max_staleness = 1, .surplus = 1});
    REQUIRE(s.reserve_all("ABCDE"));
    REQUIRE(s.occupy_all("DE"));
    REQUIRE(s.take() == "DE");
    s.buffer.publish();
    REQUIRE(s.reserve_all("FGH"));
    REQUIRE_FALSE(s.reserve('I'));
    REQUIRE(s.occupy_all("AFG"));
    REQUIRE(s.picture() == "A* B C S | F* G* H R");
    REQUIRE(s.doomed().empty());
    return s;
}

}  // namespace

TEST_CASE("with a surplus a batch is ready without its slowest, which are then named", "[slot_buffer][surplus]") {
    stage s = surplus_figure();
    REQUIRE(s.occupy('B') == ticket_status::ok);
    REQUIRE(s.picture() == "A* B* C R | F* G* H R");
    REQUIRE(s.doomed() == "CH");
    REQUIRE(s.buffer.admissible() == 0);  // a further unit would be doomed as well

    SECTION("aborted, they free their slots") {
        REQUIRE(s.buffer.discard(s.ticket('C'), drop_reason::oversampled) == ticket_status::ok);
        REQUIRE(s.buffer.discard(s.ticket('H'), drop_reason::oversampled) == ticket_status::ok);
        REQUIRE(s.picture() == "A* B* -- R | F* G* -- R");
        REQUIRE(s.doomed().empty());
    }
    SECTION("a result of theirs is dropped and counted") {
        REQUIRE(s.occupy('C') == ticket_status::oversampled);
        REQUIRE(s.occupy('C') == ticket_status::gone);
        REQUIRE(s.buffer.counters().dropped_for(drop_reason::oversampled) == 1);
        REQUIRE(s.picture() == "A* B* -- R | F* G* H R");
    }
    SECTION("when their buffer is taken they stay in flight without a slot, and count") {
        REQUIRE(s.take() == "AB");
        REQUIRE(s.buffer.displaced() == 1);
        REQUIRE(s.buffer.counters().in_flight == 2);
        s.buffer.publish();
        REQUIRE(s.buffer.admissible() == 2);  // of buffer 3's slots C uses up one
        REQUIRE(s.doomed() == "CH");
        REQUIRE(s.buffer.filter(s.ticket('F')) == ticket_status::ok);
        REQUIRE(s.doomed() == "C");  // F's slot is H's chance; C's last batch is over
        REQUIRE(s.occupy('C') == ticket_status::oversampled);
        REQUIRE(s.occupy('H') == ticket_status::ok);
        REQUIRE(s.picture() == "H* G* -- R | -- -- -- P");
        REQUIRE(s.buffer.displaced() == 0);
    }
}

TEST_CASE("a result from a ready buffer displaces a reservation where its batch still lacks one", "[slot_buffer][surplus]") {
    stage s = surplus_figure();
    REQUIRE(s.occupy('H') == ticket_status::ok);
    REQUIRE(s.picture() == "A* B H* R | F* G* -- R");
    REQUIRE(s.buffer.displaced() == 1);
    REQUIRE(s.doomed() == "BC");
    REQUIRE(s.take() == "AH");
    s.buffer.publish();
    REQUIRE(s.occupy('B') == ticket_status::oversampled);
    REQUIRE(s.occupy('C') == ticket_status::oversampled);
    REQUIRE(s.buffer.counters().in_flight == 0);
}

TEST_CASE("a displaced unit still completes into an open buffer", "[slot_buffer][surplus]") {
    stage s({.batch_size = 1, .max_staleness = 2, .surplus = 1});
    REQUIRE(s.reserve_all("ABCDEF"));
    REQUIRE(s.picture() == "F E S | D C S | B A S");
    REQUIRE(s.occupy_all("F"));
    REQUIRE(s.take() == "F");
    REQUIRE(s.buffer.displaced() == 1);
    REQUIRE(s.buffer.discard(s.ticket('C')) == ticket_status::ok);
    REQUIRE(s.occupy('E') == ticket_status::ok);
    REQUIRE(s.picture() == "E* D R | B A S");  // D had moved into C's gap, in front of it is E's
    REQUIRE(s.buffer.displaced() == 0);
}

TEST_CASE("a unit that is retagged gives its slot to a result and moves back", "[slot_buffer][retag]") {
    stage s({.batch_size = 1, .max_staleness = 1});
    REQUIRE(s.reserve_all("AB"));
    REQUIRE(s.occupy_all("B"));
    REQUIRE(s.take() == "B");
    s.buffer.publish();
    REQUIRE(s.reserve('C'));
    REQUIRE(s.occupy_all("C"));
    REQUIRE(s.picture() == "A S | C* R");
    REQUIRE_THROWS_AS(s.buffer.retag(s.ticket('A'), {2}), std::invalid_argument);
    REQUIRE_THROWS_AS(s.buffer.retag(s.ticket('C'), {0}), std::invalid_argument);
    REQUIRE(s.buffer.retag(s.ticket('B'), {1}) == ticket_status::gone);
    REQUIRE(s.picture() == "A S | C* R");
    REQUIRE(s.buffer.retag(s.ticket('A'), {1}) == ticket_status::ok);
    REQUIRE(s.picture() == "C* R | A S");
    REQUIRE(s.take() == "C");
    s.buffer.publish();
    REQUIRE(s.occupy('A') == ticket_status::ok);
    std::vector<taken_unit<char>> batch(1);
    REQUIRE(s.buffer.take(batch));
    REQUIRE((batch[0].version == policy_version{1} && batch[0].staleness == 1));
}

TEST_CASE("a partial rollout keeps its oldest version", "[slot_buffer][retag]") {
    stage s({.batch_size = 1, .max_staleness = 1});
    REQUIRE(s.reserve_all("AB"));
    REQUIRE(s.occupy_all("B"));
    REQUIRE(s.take() == "B");
    s.buffer.publish();  // A goes on under version 1
    REQUIRE(s.occupy_all("A"));
    std::vector<taken_unit<char>> batch(1);
    REQUIRE(s.buffer.take(batch));
    REQUIRE((batch[0].version == policy_version{0} && batch[0].staleness == 1));
}

TEST_CASE("every u-th version is published: bound and progress hold up to u = bound + 1, and more is refused",
          "[slot_buffer][publish]") {
    for (std::int64_t bound = 0; bound <= 4; ++bound) {
        REQUIRE_THROWS_AS(slot_buffer<int>({.max_staleness = bound, .publish_interval = bound + 2}), std::invalid_argument);
        for (std::int64_t interval = 1; interval <= bound + 1; ++interval) {
            slot_buffer<int> buffer({.batch_size = 3, .max_staleness = bound, .publish_interval = interval});
            std::mt19937 random(static_cast<unsigned>(bound * 10 + interval));
            std::vector<unit_ticket> in_flight;
            std::vector<taken_unit<int>> batch(3);
            std::int64_t max_seen = 0;
            for (int trained = 0; trained < 40; ++trained) {
                while (!buffer.can_take()) {
                    while (auto const ticket = buffer.reserve()) {
                        in_flight.push_back(*ticket);
                    }
                    REQUIRE_FALSE(in_flight.empty());
                    std::swap(in_flight[random() % in_flight.size()], in_flight.back());
                    REQUIRE(buffer.occupy(in_flight.back()) == ticket_status::ok);
                    in_flight.pop_back();
                }
                REQUIRE(buffer.take(batch) == policy_version{trained});
                for (auto const& unit : batch) {
                    max_seen = std::max(max_seen, unit.staleness);
                    REQUIRE(unit.version.value % interval == 0);
                }
                if ((trained + 1) % interval == 0) {
                    REQUIRE(buffer.publish() == policy_version{trained + 1});
                } else {
                    REQUIRE(buffer.version().value == trained + 1 - (trained + 1) % interval);
                }
            }
            REQUIRE(max_seen <= bound);
            REQUIRE(max_seen >= interval - 1);
        }
    }
}

TEST_CASE("a higher bound opens buffers at once, a lower one holds for new units", "[slot_buffer]") {
    stage s({.batch_size = 1, .max_staleness = 1, .max_staleness_limit = 3});
    REQUIRE(s.reserve_all("AB"));
    REQUIRE_FALSE(s.reserve('C'));
    s.buffer.set_max_staleness(3);
    REQUIRE(s.buffer.admissible() == 2);
    REQUIRE(s.reserve('C'));
    REQUIRE(s.picture() == "B S | A S | -- P | C S");
    s.buffer.set_max_staleness(0);
    REQUIRE(s.buffer.admissible() == 0);
    REQUIRE(s.picture() == "B S | A S | -- P | C S");
    REQUIRE(s.occupy_all("C"));
    REQUIRE(s.picture() == "B S | A S | C* R | -- P");
    REQUIRE(s.buffer.discard(s.ticket('B')) == ticket_status::ok);
    REQUIRE(s.take() == "C");
    s.buffer.publish();
    REQUIRE_FALSE(s.reserve('D'));  // buffer 1, the only one for a unit of version 1, is A's
    REQUIRE(s.buffer.admission() == admission_status::no_place);
    REQUIRE(s.occupy_all("A"));
    REQUIRE(s.take() == "A");
    s.buffer.publish();
    REQUIRE(s.buffer.admissible() == 1);
    REQUIRE_THROWS_AS(s.buffer.set_max_staleness(4), std::invalid_argument);
    REQUIRE_THROWS_AS(s.buffer.set_max_staleness(-1), std::invalid_argument);
}

TEST_CASE("options of the extensions outside their limits throw", "[slot_buffer]") {
    using buffer = slot_buffer<int>;
    REQUIRE_THROWS_AS(buffer({.surplus = -1}), std::invalid_argument);
    REQUIRE_THROWS_AS(buffer({.batch_size = 262'144, .surplus = 1}), std::invalid_argument);
    REQUIRE_THROWS_AS(buffer({.max_staleness = 2, .max_staleness_limit = 1}), std::invalid_argument);
    REQUIRE_THROWS_AS(buffer({.max_staleness_limit = 64}), std::invalid_argument);
    REQUIRE_THROWS_AS(buffer({.stuck_timeout = seconds(-1)}), std::invalid_argument);
    REQUIRE_THROWS_AS(buffer({.publish_interval = 0}), std::invalid_argument);
    buffer every_second({.max_staleness = 2, .publish_interval = 2});
    REQUIRE_THROWS_AS(every_second.set_max_staleness(0), std::invalid_argument);
}

namespace {

/// Draws the table from nothing but the moves it is told.
struct drawing {
    using cells = std::map<std::pair<std::int64_t, std::int64_t>, std::pair<std::uint64_t, slot_state>>;
    cells* shown = nullptr;

    void operator()(slot_event<int> const& event) const noexcept {
        auto const key = [](slot_place place) { return std::pair(place.buffer.value, place.slot); };
        bool const has_from = event.kind != slot_event_kind::reserved && event.kind != slot_event_kind::published;
        bool const has_to = event.kind == slot_event_kind::reserved || event.kind == slot_event_kind::occupied ||
                            event.kind == slot_event_kind::moved_back || event.kind == slot_event_kind::moved_forward;
        bool const is_result = event.kind == slot_event_kind::occupied || event.kind == slot_event_kind::moved_forward;
        if (has_from) {
            auto const old = shown->find(key(event.from));
            if (old != shown->end() && old->second.first == event.id) {
                shown->erase(old);
            }
        }
        if (has_to) {
            (*shown)[key(event.to)] = {event.id, is_result ? slot_state::occupied : slot_state::reserved};
        }
    }
};

}  // namespace

TEST_CASE("the moves that a listener hears are enough to draw the table", "[slot_buffer][listener]") {
    std::mt19937 random(6);
    for (int run = 0; run < 200; ++run) {
        drawing::cells shown;
        slot_buffer_options const options{.batch_size = 1 + static_cast<std::int64_t>(random() % 4),
                                          .max_staleness = static_cast<std::int64_t>(random() % 4),
                                          .surplus = static_cast<std::int64_t>(random() % 3),
                                          .stuck_timeout = seconds(0)};
        slot_buffer<int, drawing> buffer(options, drawing{&shown});
        std::vector<unit_ticket> tickets;
        std::vector<taken_unit<int>> batch(static_cast<std::size_t>(options.batch_size));
        for (int i = 0; i < 200; ++i) {
            unit_ticket const any = tickets.empty() ? unit_ticket{} : tickets[random() % tickets.size()];
            switch (random() % 8) {
                case 0:
                    buffer.discard(any);
                    break;
                case 1:
                    buffer.filter(any);
                    break;
                case 2:
                    if (!tickets.empty()) {
                        buffer.retag(any, buffer.version());
                    }
                    break;
                case 3:
                    buffer.expire_stuck(seconds(0));
                    break;
                case 4:
                    buffer.in_training() ? static_cast<void>(buffer.publish()) : static_cast<void>(buffer.take(batch));
                    break;
                case 5:
                    buffer.occupy(any);
                    break;
                default:
                    if (auto const ticket = buffer.reserve()) {
                        tickets.push_back(*ticket);
                    }
            }
            drawing::cells expected;
            auto const table = buffer.table();
            auto const width = static_cast<std::size_t>(buffer.slots_per_buffer());
            for (std::size_t at = 0; at < table.size(); ++at) {
                if (table[at].state != slot_state::empty) {
                    std::int64_t const number = buffer.next_batch().value + static_cast<std::int64_t>(at / width);
                    expected[{number, static_cast<std::int64_t>(at % width)}] = {table[at].id, table[at].state};
                }
            }
            CAPTURE(run, i);
            REQUIRE(shown == expected);
        }
    }
}

// --- against plain arrays -----------------------------------------------------------------------------------------------

namespace {

/// Drives buffer and array model with the same random events of every kind and compares everything after each.
class comparison {
  public:
    comparison(slot_buffer_options const& options, unsigned seed)
        : buffer_(options),
          model_(options.batch_size, options.max_staleness, options.max_in_flight, options.surplus, options.publish_interval),
          random_(seed),
          batch_(static_cast<std::size_t>(options.batch_size)) {}

    std::int64_t calls() const { return calls_; }
    unit_counters const& counters() const { return buffer_.counters(); }

    std::string step() {
        ++calls_;
        std::string const wrong = one(static_cast<int>(random_() % 32));
        return wrong.empty() ? compare() : wrong;
    }

    /// Completes all that is in flight and admits what fits until a batch can be taken.
    bool progresses() {
        if (!model_.may_take()) {
            publish();
        }
        for (int round = 0; round < 4 && !buffer_.can_take(); ++round) {
            while (!in_flight_.empty()) {
                occupy();
            }
            while (buffer_.admissible() > 0 && !buffer_.can_take()) {
                reserve();
                occupy();
            }
        }
        return buffer_.can_take();
    }

  private:
    static std::int64_t unit(unit_ticket const& ticket) { return static_cast<std::int64_t>(ticket.id); }

    unit_ticket pick(std::vector<unit_ticket>& from) {
        std::swap(from[random_() % from.size()], from.back());
        unit_ticket const ticket = from.back();
        from.pop_back();
        return ticket;
    }

    std::string one(int event) {
        if (event < 12) {
            return reserve();
        }
        if (event < 20) {
            return in_flight_.empty() ? "" : occupy();
        }
        switch (event) {
            case 20:
            case 21:
                return drop(event == 20);
            case 22:
            case 23:
                return retag();
            case 24:
                return expire();
            case 25:
                return change_bound();
            default:
                return !model_.may_take() || (model_.in_training() && random_() % 2 == 0) ? publish() : take();
        }
    }

    std::string reserve() {
        auto const ticket = buffer_.reserve(next_);
        if (ticket.has_value() != model_.reserve(next_)) {
            return "reserve";
        }
        if (ticket) {
            in_flight_.push_back(*ticket);
            ++next_;
        }
        return {};
    }
    std::string occupy() {
        unit_ticket const ticket = pick(in_flight_);
        ticket_status const status = buffer_.occupy(ticket);
        array_model::outcome const expected = model_.occupy(unit(ticket));
        if (status == ticket_status::ok) {
            completed_.push_back(ticket);
        }
        return (status == ticket_status::ok && expected == array_model::outcome::placed) ||
                       (status == ticket_status::oversampled && expected == array_model::outcome::oversampled)
                   ? ""
                   : "occupy";
    }
    std::string drop(bool is_filter) {
        auto& from = is_filter ? completed_ : in_flight_;
        if (from.empty()) {
            return {};
        }
        unit_ticket const ticket = pick(from);
        ticket_status const status = is_filter ? buffer_.filter(ticket) : buffer_.discard(ticket, drop_reason::failed);
        return status == ticket_status::ok && model_.drop(unit(ticket)) ? "" : "drop";
    }
    std::string retag() {
        auto& from = random_() % 3 == 0 ? completed_ : in_flight_;
        if (from.empty()) {
            return {};
        }
        unit_ticket& ticket = from[random_() % from.size()];
        std::int64_t const back = static_cast<std::int64_t>(random_() % 2);
        ticket.version.value = std::max(ticket.version.value, model_.version - back);
        model_.retag(unit(ticket), ticket.version.value);
        return buffer_.retag(ticket, ticket.version) == ticket_status::ok ? "" : "retag";
    }
    std::string expire() {
        if (!buffer_.options().stuck_timeout) {
            return {};
        }
        std::int64_t const expected = model_.may_take() && model_.is_stuck() ? model_.clear_front() : 0;
        std::int64_t const dropped = buffer_.expire_stuck(seconds(0), [&](unit_ticket const& ticket, std::int64_t) {
            std::erase_if(in_flight_, [&](unit_ticket const& each) { return each.id == ticket.id; });
        });
        return dropped == expected ? "" : "expire";
    }
    std::string change_bound() {
        std::int64_t const lowest = buffer_.options().publish_interval - 1;
        std::int64_t const limit = buffer_.options().max_staleness_limit.value_or(buffer_.max_staleness());
        if (!buffer_.options().max_staleness_limit) {
            return {};
        }
        std::int64_t const bound = lowest + static_cast<std::int64_t>(random_()) % (limit - lowest + 1);
        buffer_.set_max_staleness(bound);
        model_.set_bound(bound);
        return {};
    }
    std::string publish() {
        buffer_.publish();
        model_.publish();
        return {};
    }
    std::string take() {
        bool const can = model_.can_take();
        if (buffer_.take(batch_).has_value() != can) {
            return "take";
        }
        if (!can) {
            return {};
        }
        std::int64_t const number = model_.next_batch;
        auto const expected = model_.take();
        if (expected.size() != batch_.size()) {
            return "size of the batch";
        }
        for (std::size_t i = 0; i < expected.size(); ++i) {
            if (batch_[i].handle != expected[i].unit || batch_[i].version.value != expected[i].version ||
                batch_[i].staleness != number - expected[i].version || number > expected[i].last) {
                return "batch";
            }
            if (std::erase_if(completed_, [&](unit_ticket const& each) { return each.id == batch_[i].id; }) != 1) {
                return "taken without a result";
            }
        }
        return {};
    }

    std::string compare() const {
        auto const table = buffer_.table();
        auto const width = static_cast<std::size_t>(buffer_.slots_per_buffer());
        if (table.size() != model_.rows.size() * width || buffer_.next_batch().value != model_.next_batch) {
            return "window";
        }
        for (std::size_t row = 0; row < model_.rows.size(); ++row) {
            for (std::size_t slot = 0; slot < width; ++slot) {
                auto const& seen = table[row * width + slot];
                cell const& expected = model_.rows[row][slot];
                if (static_cast<int>(seen.state) != static_cast<int>(expected.state) ||
                    (expected.state != cell_state::empty &&
                     (seen.handle != expected.unit || seen.version.value != expected.version))) {
                    return "slot";
                }
                if (expected.state != cell_state::empty && model_.next_batch + static_cast<std::int64_t>(row) > expected.last) {
                    return "bound";
                }
            }
            if ((buffer_.state({model_.next_batch + static_cast<std::int64_t>(row)}) == buffer_state::ready) !=
                model_.is_ready(row)) {
                return "state";
            }
        }
        unit_counters const& counters = buffer_.counters();
        if (counters.admitted != counters.in_flight + counters.completed + counters.taken + counters.dropped_total() ||
            counters.in_flight != static_cast<std::int64_t>(in_flight_.size()) ||
            counters.completed != static_cast<std::int64_t>(completed_.size()) || counters.admitted != next_) {
            return "counters";
        }
        std::vector<std::int64_t> doomed;
        buffer_.for_each_doomed([&](unit_ticket const& ticket, std::int64_t) { doomed.push_back(unit(ticket)); });
        std::sort(doomed.begin(), doomed.end());
        if (doomed != model_.doomed() || buffer_.displaced() != static_cast<std::int64_t>(model_.slotless.size())) {
            return "doomed";
        }
        bool const is_open = buffer_.admissible() > 0;
        return is_open == model_.can_reserve() && buffer_.can_take() == model_.can_take() ? "" : "admission";
    }

    slot_buffer<std::int64_t> buffer_;
    array_model model_;
    std::mt19937 random_;
    std::vector<taken_unit<std::int64_t>> batch_;
    std::vector<unit_ticket> in_flight_;
    std::vector<unit_ticket> completed_;
    std::int64_t next_ = 0;
    std::int64_t calls_ = 0;
};

}  // namespace

TEST_CASE(
    "a million random events with drops, retags, surplus, timeouts, sparse publishes and a changing bound leave the same "
    "table as plain arrays",
    "[slot_buffer][oracle]") {
    std::mt19937 random(99);
    auto const below = [&](std::int64_t bound) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(bound)); };
    std::int64_t calls = 0;
    std::int64_t oversampled = 0;
    std::int64_t timed_out = 0;
    for (int run = 0; run < 4100; ++run) {
        slot_buffer_options options{.batch_size = 1 + below(5), .max_staleness = below(5)};
        options.surplus = run % 2 == 0 ? below(4) : 0;
        options.publish_interval = 1 + below(options.max_staleness + 1);
        if (run % 3 == 0) {
            options.max_staleness_limit = options.max_staleness + below(3);
        }
        if (run % 5 == 0) {
            options.stuck_timeout = seconds(0);
        }
        if (run % 4 == 0) {
            options.max_in_flight = 1 + below(options.batch_size * (options.max_staleness + 1));
        }
        comparison pair(options, static_cast<unsigned>(random()));
        for (int i = 0; i < 250; ++i) {
            std::string const wrong = pair.step();
            if (!wrong.empty()) {
                CAPTURE(run, i, options.batch_size, options.surplus, options.max_staleness, options.publish_interval, wrong);
                FAIL("buffer and array model differ");
            }
        }
        calls += pair.calls();
        oversampled += pair.counters().dropped_for(drop_reason::oversampled);
        timed_out += pair.counters().dropped_for(drop_reason::stuck_timeout);
        if (!pair.progresses()) {
            CAPTURE(run, options.batch_size, options.surplus, options.max_staleness);
            FAIL("everything in flight has completed, and no batch is ready");
        }
    }
    REQUIRE(calls >= 1'000'000);
    REQUIRE(oversampled > 1000);
    REQUIRE(timed_out > 100);
}
