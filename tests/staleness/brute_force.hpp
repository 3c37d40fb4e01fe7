// SPDX-License-Identifier: Apache-2.0
/// @file What deadline_ledger promises, found the slow way: bipartite matching and search through all subsets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace brute_force {

struct unit {
    std::int64_t deadline = 0;
    bool is_completed = false;
    double worth = 0;
};

/// Sizes of the batches to come; batch i trains units whose deadline is at least i. Deadlines count from the next batch.
using batches = std::vector<std::int64_t>;

/// Whether every unit gets a place in a batch up to its deadline: augmenting paths over single places (Kuhn).
inline bool fits(std::vector<std::int64_t> const& deadlines, batches const& sizes, std::size_t first_batch = 0) {
    std::vector<std::int64_t> places;  // the batch of each place
    for (std::size_t batch = first_batch; batch < sizes.size(); ++batch) {
        places.insert(places.end(), static_cast<std::size_t>(sizes[batch]), static_cast<std::int64_t>(batch));
    }
    std::vector<std::optional<std::size_t>> owner(places.size());
    std::vector<bool> is_seen;
    auto const place = [&](auto const& self, std::size_t who) -> bool {
        for (std::size_t i = 0; i < places.size(); ++i) {
            if (places[i] > deadlines[who] || is_seen[i]) {
                continue;
            }
            is_seen[i] = true;
            if (!owner[i] || self(self, *owner[i])) {
                owner[i] = who;
                return true;
            }
        }
        return false;
    };
    for (std::size_t who = 0; who < deadlines.size(); ++who) {
        is_seen.assign(places.size(), false);
        if (!place(place, who)) {
            return false;
        }
    }
    return true;
}

inline std::vector<std::int64_t> deadlines_of(std::vector<unit> const& units) {
    std::vector<std::int64_t> deadlines;
    for (unit const& each : units) {
        deadlines.push_back(each.deadline);
    }
    return deadlines;
}

/// Whether some choice of completed units for the next batch leaves a place for every other unit.
inline bool is_ready(std::vector<unit> const& units, batches const& sizes) {
    std::vector<std::int64_t> rest;  // of the units that are not in the batch
    auto const choose = [&](auto const& self, std::size_t i, std::int64_t wanted) -> bool {
        if (i == units.size()) {
            return wanted == 0 && fits(rest, sizes, 1);
        }
        if (units[i].is_completed && wanted > 0 && self(self, i + 1, wanted - 1)) {
            return true;
        }
        rest.push_back(units[i].deadline);
        bool const found = self(self, i + 1, wanted);
        rest.pop_back();
        return found;
    };
    return choose(choose, 0, sizes.front());
}

struct loss {
    std::size_t units = 0;
    double worth = 0;
};

/// The least worth in flight that must leave so that the batch is ready, and the least number of units.
inline std::optional<loss> least_sacrifice(std::vector<unit> const& units, batches const& sizes) {
    std::vector<std::size_t> in_flight;
    for (std::size_t i = 0; i < units.size(); ++i) {
        if (!units[i].is_completed) {
            in_flight.push_back(i);
        }
    }
    std::optional<loss> least;
    for (std::uint32_t leaving = 0; leaving < 1U << in_flight.size(); ++leaving) {
        std::vector<unit> staying;
        loss now;
        for (std::size_t i = 0, bit = 0; i < units.size(); ++i) {
            bool const leaves = !units[i].is_completed && (leaving >> bit & 1U) != 0;
            bit += units[i].is_completed ? 0 : 1;
            if (leaves) {
                ++now.units;
                now.worth += units[i].worth;
            } else {
                staying.push_back(units[i]);
            }
        }
        bool const is_less = !least || now.worth < least->worth || now.units < least->units;
        if (is_less && is_ready(staying, sizes)) {
            least = least ? loss{.units = now.units < least->units ? now.units : least->units,
                                 .worth = now.worth < least->worth ? now.worth : least->worth}
                          : now;
        }
    }
    return least;
}

}  // namespace brute_force
