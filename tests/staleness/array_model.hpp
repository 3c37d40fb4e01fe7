// SPDX-License-Identifier: Apache-2.0
/// @file Reserve-Occupy as plain arrays that are scanned from end to end: the oracle for slot_buffer, and its yardstick.
///
/// It shares no code and no idea with the library's structure. Buffers are rows of cells; every question is a scan.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

enum class cell_state : std::uint8_t { empty, reserved, occupied };

struct cell {
    cell_state state = cell_state::empty;
    std::int64_t unit = -1;
    std::int64_t version = 0;
    std::int64_t last = 0;  // the last batch that the unit may be trained in
};

class array_model {
  public:
    array_model(std::int64_t batch_size, std::int64_t max_staleness, std::optional<std::int64_t> max_in_flight = std::nullopt,
                std::int64_t surplus = 0, std::int64_t publish_interval = 1)
        : width_(static_cast<std::size_t>(batch_size + surplus)),
          enough_(batch_size),
          bound_(max_staleness),
          limit_(max_in_flight),
          interval_(publish_interval) {
        add_rows();
    }

    std::int64_t next_batch = 0;
    std::int64_t version = 0;
    std::deque<std::vector<cell>> rows;  // from next_batch on; every row that was ever legal
    std::vector<cell> slotless;          // units in flight that were pushed out of their cells

    std::int64_t count(cell_state state) const {
        std::int64_t found = 0;
        for (auto const& row : rows) {
            found += std::count_if(row.begin(), row.end(), [&](cell const& each) { return each.state == state; });
        }
        return found;
    }

    bool can_reserve() const {
        std::int64_t free = -static_cast<std::int64_t>(slotless.size());
        bool are_all_ready = true;
        for (std::size_t row = 0; row < legal_rows(); ++row) {
            free += std::count_if(rows[row].begin(), rows[row].end(), is<cell_state::empty>);
            are_all_ready = are_all_ready && is_ready(row);
        }
        std::int64_t const in_flight = count(cell_state::reserved) + static_cast<std::int64_t>(slotless.size());
        return free > 0 && !are_all_ready && (!limit_ || in_flight < *limit_);
    }

    /// The last empty cell of the last legal row.
    bool reserve(std::int64_t unit) {
        if (!can_reserve()) {
            return false;
        }
        place_last(unit);
        return true;
    }

    /// The same without counting first, for the benchmark.
    void place_last(std::int64_t unit) {
        for (std::size_t row = legal_rows(); row-- > 0;) {
            auto const free = std::find_if(rows[row].rbegin(), rows[row].rend(), is<cell_state::empty>);
            if (free != rows[row].rend()) {
                *free = {cell_state::reserved, unit, version, version + bound_};
                return;
            }
        }
    }

    enum class outcome { refused, placed, oversampled };

    outcome occupy(std::int64_t unit) {
        auto const own = find(unit);
        if (own && at(*own).state != cell_state::reserved) {
            return outcome::refused;
        }
        std::optional<cell> found = own ? std::optional(at(*own)) : find_slotless(unit);
        if (!found) {
            return outcome::refused;
        }
        found->state = cell_state::occupied;
        if (own) {
            bool const takes_part = !is_ready(own->row);
            at(*own) = {};
            if (takes_part) {
                fill_from_front(*own);
            }
        } else {
            remove_slotless(unit);
        }
        for (bool const may_displace : {false, true}) {
            for (std::size_t row = 0; row < rows.size() && number(row) <= found->last; ++row) {
                if (is_ready(row)) {
                    continue;
                }
                if (auto const free = std::find_if(rows[row].begin(), rows[row].end(), is<cell_state::empty>);
                    free != rows[row].end()) {
                    *free = *found;
                    return outcome::placed;
                }
                if (may_displace) {
                    cell& victim = most_patient(rows[row]);
                    slotless.push_back(victim);
                    victim = *found;
                    return outcome::placed;
                }
            }
        }
        return outcome::oversampled;
    }

    /// Of a reserved or an occupied unit.
    bool drop(std::int64_t unit) {
        auto const own = find(unit);
        if (!own) {
            return remove_slotless(unit);
        }
        bool const takes_part = at(*own).state == cell_state::occupied || !is_ready(own->row);
        at(*own) = {};
        if (takes_part) {
            fill_from_front(fill_from_behind(*own, rows.size()));
        }
        return true;
    }

    /// Raises the version of a unit.
    void retag(std::int64_t unit, std::int64_t oldest) {
        auto const own = find(unit);
        if (!own) {
            for (cell& each : slotless) {
                if (each.unit == unit) {
                    each.version = oldest;
                    each.last = std::max(each.last, oldest + bound_);
                }
            }
            return;
        }
        at(*own).version = oldest;
        if (oldest + bound_ <= at(*own).last) {
            return;
        }
        at(*own).last = oldest + bound_;
        if (at(*own).state == cell_state::occupied || is_ready(own->row)) {
            return;
        }
        cell const moving = at(*own);
        auto const end = static_cast<std::size_t>(moving.last - next_batch + 1);
        bool has_room_behind = last_result_behind(own->row, end).has_value();
        for (std::size_t row = own->row + 1; row < end; ++row) {
            bool const has_empty = std::any_of(rows[row].begin(), rows[row].end(), is<cell_state::empty>);
            has_room_behind = has_room_behind || (has_empty && !is_ready(row));
        }
        if (!has_room_behind) {
            return;
        }
        at(*own) = {};
        spot const hole = fill_from_behind(*own, end);
        for (std::size_t row = end; row-- > 0;) {
            auto const free = std::find_if(rows[row].rbegin(), rows[row].rend(), is<cell_state::empty>);
            if (free != rows[row].rend() && !is_ready(row)) {
                *free = moving;
                break;
            }
        }
        if (at(hole).state == cell_state::empty) {
            fill_from_front(hole);
        }
    }

    /// The units in flight of which every row that they may use has its batch.
    std::vector<std::int64_t> doomed() const {
        std::vector<std::int64_t> units;
        auto const look = [&](cell const& each) {
            std::size_t row = 0;
            while (row < rows.size() && number(row) <= each.last && is_ready(row)) {
                ++row;
            }
            if (each.state == cell_state::reserved && (row == rows.size() || number(row) > each.last)) {
                units.push_back(each.unit);
            }
        };
        for (auto const& row : rows) {
            std::for_each(row.begin(), row.end(), look);
        }
        std::for_each(slotless.begin(), slotless.end(), look);
        std::sort(units.begin(), units.end());
        return units;
    }

    bool is_stuck() const {
        return !is_ready(0) && std::none_of(rows.front().begin(), rows.front().end(), is<cell_state::empty>);
    }

    /// Drops what is in flight in the front row.
    std::int64_t clear_front() {
        std::vector<std::int64_t> units;
        for (cell const& each : rows.front()) {
            if (each.state == cell_state::reserved) {
                units.push_back(each.unit);
            }
        }
        for (std::int64_t const unit : units) {
            drop(unit);
        }
        return static_cast<std::int64_t>(units.size());
    }

    void set_bound(std::int64_t bound) {
        bound_ = bound;
        add_rows();
    }

    bool is_ready(std::size_t row) const {
        return std::count_if(rows[row].begin(), rows[row].end(), is<cell_state::occupied>) == enough_;
    }

    bool in_training() const { return version < next_batch; }

    bool may_take() const { return next_batch - version < interval_; }

    bool can_take() const { return may_take() && is_ready(0); }

    /// Only the results, in the order of their cells.
    std::vector<cell> take() {
        std::vector<cell> batch;
        for (cell const& each : rows.front()) {
            if (each.state == cell_state::occupied) {
                batch.push_back(each);
            } else if (each.state == cell_state::reserved) {
                slotless.push_back(each);
            }
        }
        rows.pop_front();
        ++next_batch;
        return batch;
    }

    void publish() {
        version = next_batch;
        add_rows();
    }

  private:
    struct spot {
        std::size_t row;
        std::size_t column;
    };

    template <cell_state State>
    static bool is(cell const& each) {
        return each.state == State;
    }

    cell& at(spot place) { return rows[place.row][place.column]; }

    std::int64_t number(std::size_t row) const { return next_batch + static_cast<std::int64_t>(row); }

    std::size_t legal_rows() const {
        return static_cast<std::size_t>(std::max<std::int64_t>(version + bound_ - next_batch + 1, 0));
    }

    std::optional<cell> find_slotless(std::int64_t unit) const {
        auto const place = std::find_if(slotless.begin(), slotless.end(), [&](cell const& each) { return each.unit == unit; });
        return place != slotless.end() ? std::optional(*place) : std::nullopt;
    }

    bool remove_slotless(std::int64_t unit) {
        return std::erase_if(slotless, [&](cell const& each) { return each.unit == unit; }) > 0;
    }

    /// Of the reservations in a row the last of those that may be trained latest.
    static cell& most_patient(std::vector<cell>& row) {
        cell* patient = nullptr;
        for (cell& each : row) {
            if (each.state == cell_state::reserved && (patient == nullptr || each.last >= patient->last)) {
                patient = &each;
            }
        }
        return *patient;
    }

    spot fill_from_behind(spot hole, std::size_t end) {
        while (auto const later = last_result_behind(hole.row, end)) {
            at(hole) = at(*later);
            at(*later) = {};
            hole = *later;
        }
        return hole;
    }

    void add_rows() {
        while (next_batch + static_cast<std::int64_t>(rows.size()) <= version + bound_) {
            rows.emplace_back(width_);
        }
    }

    std::optional<spot> find(std::int64_t unit) const {
        for (std::size_t row = 0; row < rows.size(); ++row) {
            for (std::size_t column = 0; column < width_; ++column) {
                if (rows[row][column].state != cell_state::empty && rows[row][column].unit == unit) {
                    return spot{row, column};
                }
            }
        }
        return std::nullopt;
    }

    void fill_from_front(spot gap) {
        for (std::size_t row = 0; row <= gap.row; ++row) {
            if (is_ready(row)) {
                continue;
            }
            for (std::size_t column = 0; column < (row == gap.row ? gap.column : width_); ++column) {
                cell& each = rows[row][column];
                if (each.state == cell_state::reserved && number(gap.row) <= each.last) {
                    at(gap) = each;
                    each = {};
                    return;
                }
            }
        }
    }

    std::optional<spot> last_result_behind(std::size_t row, std::size_t end) const {
        for (std::size_t later = row + 1; later < end; ++later) {
            for (std::size_t column = width_; column-- > 0;) {
                if (rows[later][column].state == cell_state::occupied) {
                    return spot{later, column};
                }
            }
        }
        return std::nullopt;
    }

    std::size_t width_;
    std::int64_t enough_;
    std::int64_t bound_;
    std::optional<std::int64_t> limit_;
    std::int64_t interval_;
};
