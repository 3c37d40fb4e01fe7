// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/staleness/deadline_ledger.hpp>
#include <asyncrl/staleness/slot_buffer.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

// Where the two controls differ: the histories of docs/slots_and_ledger.md, told to both.

using namespace asyncrl;

namespace {

/// Both controls, told the same. Units are named by the order of their admission: a, b, c, ...
class both {
  public:
    both(std::int64_t batch_size, std::int64_t max_staleness)
        : slots_({.batch_size = batch_size, .max_staleness = max_staleness}),
          ledger_({.batch_size = batch_size, .max_staleness = max_staleness}) {}

    bool reserve(std::size_t count) {
        bool is_ok = true;
        for (; count > 0; --count) {
            auto const a = slots_.reserve(next_);
            auto const b = ledger_.reserve(next_++);
            is_ok = is_ok && a && b;
            if (a && b) {
                slot_tickets_.push_back(*a);
                ledger_tickets_.push_back(*b);
            }
        }
        return is_ok;
    }
    bool occupy(char unit) {
        return slots_.occupy(slot_ticket(unit)) == ticket_status::ok &&
               ledger_.occupy(ledger_ticket(unit)) == ticket_status::ok;
    }
    bool discard(char unit) {
        return slots_.discard(slot_ticket(unit)) == ticket_status::ok &&
               ledger_.discard(ledger_ticket(unit)) == ticket_status::ok;
    }
    /// Takes from both, and publishes. The units, if both took the same ones.
    std::string train() {
        std::string const a = take(slots_);
        std::string const b = take(ledger_);
        if (!a.empty() && !b.empty()) {
            slots_.publish();
            ledger_.publish();
        }
        return a == b ? a : a + " and " + b;
    }

    /// Batches from the next one on: results with a star.
    std::string picture() const {
        std::string text;
        auto const table = slots_.table();
        for (std::size_t i = 0; i < table.size(); ++i) {
            text += i != 0 && i % static_cast<std::size_t>(slots_.batch_size()) == 0 ? "| " : "";
            text += table[i].state == slot_state::empty ? std::string("--") : std::string(1, table[i].handle);
            text += table[i].state == slot_state::occupied ? "* " : " ";
        }
        return text;
    }
    bool slots_ready() const { return slots_.state(slots_.next_batch()) == buffer_state::ready; }
    bool ledger_ready() const { return ledger_.readiness().state == readiness_state::ready; }

    template <typename Control>
    static std::string take(Control& control) {
        std::vector<taken_unit<char>> batch(static_cast<std::size_t>(control.batch_size()));
        std::string units;
        if (control.take(batch)) {
            for (auto const& unit : batch) {
                units += unit.handle;
            }
        }
        return units;
    }
    deadline_ledger<char>& ledger() { return ledger_; }

  private:
    unit_ticket const& slot_ticket(char unit) const { return slot_tickets_[static_cast<std::size_t>(unit - 'a')]; }
    unit_ticket const& ledger_ticket(char unit) const { return ledger_tickets_[static_cast<std::size_t>(unit - 'a')]; }

    slot_buffer<char> slots_;
    deadline_ledger<char> ledger_;
    std::vector<unit_ticket> slot_tickets_;
    std::vector<unit_ticket> ledger_tickets_;
    char next_ = 'a';
};

}  // namespace

TEST_CASE("a drop that moves no reservation back would leave a batch stuck", "[slots_and_ledger]") {
    both s(1, 2);
    REQUIRE(s.reserve(3));
    REQUIRE(s.picture() == "c | b | a ");
    REQUIRE(s.occupy('a'));
    REQUIRE(s.picture() == "a* | b | c ");
    REQUIRE(s.train() == "a");
    REQUIRE(s.discard('c'));
    REQUIRE(s.picture() == "-- | b | -- ");  // b moved back into c's slot
    REQUIRE(s.reserve(2));
    REQUIRE(s.picture() == "e | b | d ");
    REQUIRE(s.occupy('d'));
    REQUIRE(s.picture() == "d* | b | e ");
    REQUIRE(s.slots_ready());
    REQUIRE(s.ledger_ready());
}

TEST_CASE("a slot that stays free over a publish can make slots later than the ledger: one slot", "[slots_and_ledger]") {
    both s(1, 3);
    REQUIRE(s.reserve(3));
    REQUIRE(s.picture() == "-- | c | b | a ");
    REQUIRE(s.occupy('a'));
    REQUIRE(s.train() == "a");
    REQUIRE(s.picture() == "-- | b | c | -- ");
    REQUIRE(s.reserve(2));
    REQUIRE(s.picture() == "e | b | c | d ");
    REQUIRE(s.occupy('c'));
    REQUIRE(s.occupy('d'));
    REQUIRE(s.picture() == "c* | b | d* | e ");
    REQUIRE(s.train() == "c");
    REQUIRE(s.picture() == "b | d* | e | -- ");
    REQUIRE_FALSE(s.slots_ready());
    REQUIRE(s.ledger_ready());
    REQUIRE(both::take(s.ledger()) == "d");
}

TEST_CASE("a slot that stays free over a publish can make slots later than the ledger: two slots", "[slots_and_ledger]") {
    both s(2, 2);
    REQUIRE(s.reserve(5));
    REQUIRE(s.picture() == "-- e | d c | b a ");
    REQUIRE((s.occupy('e') && s.occupy('d')));
    REQUIRE(s.train() == "ed");
    REQUIRE(s.reserve(3));
    REQUIRE(s.picture() == "h c | b a | g f ");
    REQUIRE(s.occupy('b'));
    REQUIRE(s.picture() == "b* c | h a | g f ");
    REQUIRE(s.occupy('g'));
    REQUIRE(s.picture() == "b* c | g* a | h f ");
    REQUIRE_FALSE(s.slots_ready());
    REQUIRE(s.ledger_ready());
    REQUIRE(both::take(s.ledger()) == "bg");
}

TEST_CASE("a result that was placed late moves forward when a unit in flight before it is dropped", "[slots_and_ledger]") {
    both s(1, 2);
    REQUIRE(s.reserve(3));
    REQUIRE(s.occupy('a'));
    REQUIRE(s.train() == "a");
    REQUIRE(s.reserve(1));
    REQUIRE(s.occupy('d'));
    REQUIRE(s.picture() == "b | c | d* ");
    REQUIRE_FALSE(s.slots_ready());
    REQUIRE_FALSE(s.ledger_ready());
    REQUIRE(s.discard('b'));
    REQUIRE(s.picture() == "d* | c | -- ");
    REQUIRE(s.slots_ready());
    REQUIRE(s.ledger_ready());
}

namespace {

/// The times at which a closed loop takes its batches: a constant number in flight, each replaced at once. The generation times
/// belong to the units, so both controls see the same ones.
template <typename Control, typename Options>
std::vector<double> take_times(Options const& options, unsigned seed) {
    Control control(options);
    std::map<double, unit_ticket> generating;
    std::vector<taken_unit<char>> batch(static_cast<std::size_t>(options.batch_size));
    std::vector<double> times;
    double now = 0;
    double trained_at = 0;
    while (times.size() < 40) {
        bool const publishes = control.in_training() && (generating.empty() || trained_at <= generating.begin()->first);
        if (publishes) {
            now = std::max(now, trained_at);
            control.publish();
        } else if (!generating.empty()) {
            now = generating.begin()->first;
            control.occupy(generating.begin()->second);
            generating.erase(generating.begin());
        }
        if (control.take(batch)) {
            times.push_back(now);
            trained_at = now + 0.3 * static_cast<double>(options.batch_size);
        }
        while (auto const ticket = control.reserve()) {
            std::mt19937 random(seed + static_cast<unsigned>(ticket->id) * 7919);
            std::normal_distribution<double> normal;
            generating.emplace(now + std::exp(normal(random)), *ticket);
        }
    }
    return times;
}

}  // namespace

TEST_CASE("with a constant number in flight and no drops both take every batch at the same time", "[slots_and_ledger]") {
    std::mt19937 random(4);
    auto const below = [&](std::int64_t end) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(end)); };
    for (int run = 0; run < 500; ++run) {
        std::int64_t const size = 1 + below(5);
        std::int64_t const bound = below(5);
        std::int64_t const in_flight = 1 + below(size * (bound + 1));
        auto const seed = static_cast<unsigned>(random());
        auto const slots = take_times<slot_buffer<char>, slot_buffer_options>(
            {.batch_size = size, .max_staleness = bound, .max_in_flight = in_flight}, seed);
        auto const ledger = take_times<deadline_ledger<char>, deadline_ledger_options>(
            {.batch_size = size, .max_staleness = bound, .max_in_flight = in_flight}, seed);
        CAPTURE(run, size, bound, in_flight);
        REQUIRE(slots == ledger);
    }
}
