// SPDX-License-Identifier: Apache-2.0
/// @file The bound, the window and the span limit at the same time, against a model that knows each rule by itself.
#include "catch.hpp"

#include <asyncrl/staleness.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

using namespace asyncrl;

namespace {

constexpr std::int64_t batch_size = 3;
constexpr std::int64_t max_staleness = 3;
constexpr std::int64_t max_switches = 1;
constexpr std::int64_t keep_versions = 2;
constexpr std::size_t group_size = 2;

/// What the model knows of a unit: plain lists, no class of the library but the ticket.
struct unit {
    unit_ticket ticket;
    std::vector<std::vector<std::int64_t>> versions = std::vector<std::vector<std::int64_t>>(group_size);  // token by token
    bool is_completed = false;
    bool is_taken = false;
    std::optional<drop_reason> dropped = std::nullopt;

    bool is_here() const { return !is_taken && !dropped; }
};

template <typename Control>
class loop {
  public:
    loop(Control control, unsigned seed) : control_(std::move(control)), random_(seed) {}

    void step() {
        int const event = draw(100);
        if (event < 25) {
            admit();
        } else if (event < 70) {
            generate();
        } else if (event < 85) {
            complete();
        } else if (event < 87) {
            give_up();
        } else if (event < 89) {
            filter();
        } else {
            train();
        }
        check();
    }

    std::map<drop_reason, std::int64_t> dropped;
    std::int64_t batches = 0;

  private:
    int draw(int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random_); }

    template <typename Predicate>
    unit* any(Predicate predicate) {
        std::vector<unit*> candidates;
        for (unit& each : units_) {
            if (each.is_here() && predicate(each)) {
                candidates.push_back(&each);
            }
        }
        return candidates.empty() ? nullptr : candidates[static_cast<std::size_t>(draw(static_cast<int>(candidates.size())))];
    }

    void drop(unit& lost, drop_reason reason, drop_stage stage) {
        std::int64_t tokens = 0;
        for (auto const& versions : lost.versions) {
            tokens += static_cast<std::int64_t>(versions.size());
        }
        metrics_.drop(reason, stage, tokens);
        lost.dropped = reason;
        ++dropped[reason];
    }

    void admit() {
        bool const has_place = control_.admissible() > 0;
        auto const ticket = control_.reserve(static_cast<int>(units_.size()));
        REQUIRE(ticket.has_value() == has_place);
        if (ticket) {
            REQUIRE(ticket->version == control_.version());
            units_.push_back({.ticket = *ticket});
            runs_.emplace_back(group_size);
        } else {
            metrics_.refuse(admission_status::no_place);
        }
    }

    void generate() {
        unit* const busy = any([](unit const& each) { return !each.is_completed; });
        if (busy == nullptr) {
            return;
        }
        auto const trajectory = static_cast<std::size_t>(draw(group_size));
        version_runs& runs = runs_[static_cast<std::size_t>(busy - units_.data())][trajectory];
        auto& versions = busy->versions[trajectory];
        std::set<std::int64_t> distinct(versions.begin(), versions.end());
        distinct.insert(control_.version().value);
        bool const is_allowed = distinct.size() <= static_cast<std::size_t>(max_switches) + 1;
        span_decision const decision = limit_.check(runs, control_.version());
        REQUIRE(static_cast<bool>(decision) == is_allowed);
        if (decision) {
            REQUIRE(runs.append(control_.version(), 2) == append_status::appended);
            versions.insert(versions.end(), 2, control_.version().value);
        } else {
            REQUIRE(control_.discard(busy->ticket, drop_reason::rejected) == ticket_status::ok);
            drop(*busy, drop_reason::rejected, drop_stage::in_flight);
        }
    }

    void complete() {
        unit* const done = any([](unit const& each) {
            return !each.is_completed &&
                   std::none_of(each.versions.begin(), each.versions.end(), [](auto const& tokens) { return tokens.empty(); });
        });
        if (done == nullptr) {
            return;
        }
        REQUIRE(control_.occupy(done->ticket) == ticket_status::ok);
        done->is_completed = true;
        std::vector<version_segment> segments;
        for (std::size_t i = 0; i < group_size; ++i) {
            segments.push_back({i, 0, *runs_[static_cast<std::size_t>(done - units_.data())][i].last()});
            observe(done->versions[i].back());
        }
        waiting_.add(done->ticket, segments, on_stale());
    }

    void give_up() {
        if (unit* const late = any([](unit const& each) { return !each.is_completed; })) {
            REQUIRE(control_.discard(late->ticket, drop_reason::timed_out) == ticket_status::ok);
            drop(*late, drop_reason::timed_out, drop_stage::in_flight);
        }
    }

    void filter() {
        if (unit* const useless = any([](unit const& each) { return each.is_completed; })) {
            REQUIRE(control_.filter(useless->ticket) == ticket_status::ok);
            REQUIRE(waiting_.remove(useless->ticket));
            drop(*useless, drop_reason::filtered, drop_stage::in_queue);
        }
    }

    void train() {
        std::vector<taken_unit<int>> batch(batch_size);
        auto const number = control_.take(batch);
        if (!number) {
            return;
        }
        ++batches;
        metrics_.train_batch();
        for (taken_unit<int> const& taken : batch) {
            unit& each = units_[static_cast<std::size_t>(taken.handle)];
            REQUIRE(each.is_here());
            REQUIRE(each.is_completed);
            std::int64_t oldest = control_.version().value;
            for (std::size_t i = 0; i < group_size; ++i) {
                oldest = std::min(oldest, each.versions[i].front());
                REQUIRE_FALSE(is_outside(each.versions[i].back()));
                metrics_.train_trajectory(*number, runs_[static_cast<std::size_t>(taken.handle)][i]);
            }
            REQUIRE(number->value - oldest <= max_staleness);
            REQUIRE(taken.staleness <= max_staleness);
            REQUIRE(oldest >= taken.version.value);
            metrics_.train_unit(*number, {oldest}, *number);
            each.is_taken = true;
            REQUIRE(waiting_.remove(each.ticket));
        }
        control_.begin_publish();
        policy_version const version = control_.commit_publish();
        if (draw(2) == 0) {  // the window may be told at the publish, or by the first group
            waiting_.window().observe(version);
            observe(version.value);
            waiting_.recheck(on_stale());
        }
    }

    auto on_stale() {
        return [this](stale_notice<unit_ticket> const& notice) {
            auto const stale =
                std::find_if(units_.begin(), units_.end(), [&](unit const& each) { return each.ticket == notice.handle; });
            REQUIRE(stale->is_here());
            REQUIRE(control_.filter(notice.handle, drop_reason::stale) == ticket_status::ok);
            drop(*stale, drop_reason::stale, drop_stage::in_queue);
        };
    }

    // --- the model's window ---------------------------------------------------------------------------------------------

    void observe(std::int64_t version) {
        if (std::find(seen_.begin(), seen_.end(), version) == seen_.end()) {
            seen_.push_back(version);
        }
    }
    bool is_outside(std::int64_t version) const {
        auto const kept = seen_.end() - std::min<std::ptrdiff_t>(keep_versions, std::ssize(seen_));
        return std::find(kept, seen_.end(), version) == seen_.end();
    }

    void check() {
        std::int64_t in_flight = 0, completed = 0, taken = 0;
        for (unit const& each : units_) {
            if (each.is_taken) {
                ++taken;
            } else if (!each.dropped) {
                ++(each.is_completed ? completed : in_flight);
                if (each.is_completed) {  // what is outside the window has left
                    for (auto const& versions : each.versions) {
                        REQUIRE_FALSE(is_outside(versions.back()));
                    }
                }
            }
        }
        unit_counters const counters = control_.counters();
        REQUIRE(counters.admitted == std::ssize(units_));
        REQUIRE(counters.in_flight == in_flight);
        REQUIRE(counters.completed == completed);
        REQUIRE(counters.taken == taken);
        REQUIRE(counters.admitted == counters.in_flight + counters.completed + counters.taken + counters.dropped_total());
        REQUIRE(waiting_.size() == completed);
        for (std::size_t i = 0; i < drop_reason_count; ++i) {
            auto const reason = static_cast<drop_reason>(i);
            auto const found = dropped.find(reason);
            REQUIRE(counters.dropped[i] == (found == dropped.end() ? 0 : found->second));
            REQUIRE(metrics_.dropped(reason) == counters.dropped[i]);
        }
        // A second rule comes too late: the first one's reason stays.
        if (!units_.empty()) {
            unit const& gone = units_[static_cast<std::size_t>(draw(static_cast<int>(units_.size())))];
            if (!gone.is_here()) {
                REQUIRE(control_.discard(gone.ticket, drop_reason::failed) == ticket_status::gone);
                REQUIRE(control_.filter(gone.ticket, drop_reason::stale) == ticket_status::gone);
                REQUIRE(control_.occupy(gone.ticket) == ticket_status::gone);
            }
        }
    }

    Control control_;
    std::mt19937 random_;
    span_limit limit_{{.max_switches = max_switches}};
    pending_groups<unit_ticket> waiting_{{.keep_versions = keep_versions}};
    staleness_metrics metrics_;
    std::vector<unit> units_;
    std::vector<std::vector<version_runs>> runs_;
    std::vector<std::int64_t> seen_;
};

template <typename Make>
void run_all(Make make) {
    std::map<drop_reason, std::int64_t> dropped;
    std::int64_t batches = 0;
    for (unsigned seed = 1; seed <= 12; ++seed) {
        loop run(make(), seed);
        for (int i = 0; i < 800; ++i) {
            run.step();
        }
        batches += run.batches;
        for (auto const& [reason, count] : run.dropped) {
            dropped[reason] += count;
        }
    }
    REQUIRE(batches > 100);  // every rule has had something to do
    REQUIRE(dropped[drop_reason::rejected] > 20);
    REQUIRE(dropped[drop_reason::stale] > 20);
    REQUIRE(dropped[drop_reason::filtered] > 20);
    REQUIRE(dropped[drop_reason::timed_out] > 20);
    REQUIRE(dropped.size() == 4);
}

}  // namespace

TEST_CASE("with slots: each drop carries the first rule that fired, nothing is lost, the bound holds", "[all_controls]") {
    run_all([] { return slot_buffer<int>({.batch_size = batch_size, .max_staleness = max_staleness}); });
}

TEST_CASE("with a ledger: the same", "[all_controls]") {
    run_all([] { return deadline_ledger<int>({.batch_size = batch_size, .max_staleness = max_staleness}); });
}
