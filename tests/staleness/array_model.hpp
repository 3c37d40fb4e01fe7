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
};

class array_model {
  public:
    array_model(std::int64_t batch_size, std::int64_t max_staleness, std::optional<std::int64_t> max_in_flight = std::nullopt)
        : width_(static_cast<std::size_t>(batch_size)), bound_(max_staleness), limit_(max_in_flight) {
        add_rows();
    }

    std::int64_t next_batch = 0;
    std::int64_t version = 0;
    std::deque<std::vector<cell>> rows;  // from next_batch on; every row that is legal now

    std::int64_t count(cell_state state) const {
        std::int64_t found = 0;
        for (auto const& row : rows) {
            found += std::count_if(row.begin(), row.end(), [&](cell const& each) { return each.state == state; });
        }
        return found;
    }

    bool can_reserve() const { return count(cell_state::empty) > 0 && (!limit_ || count(cell_state::reserved) < *limit_); }

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
        for (auto row = rows.rbegin(); row != rows.rend(); ++row) {
            auto const free = std::find_if(row->rbegin(), row->rend(), is<cell_state::empty>);
            if (free != row->rend()) {
                *free = {cell_state::reserved, unit, version};
                return;
            }
        }
    }

    bool occupy(std::int64_t unit) {
        auto const own = find(unit);
        if (!own || at(*own).state != cell_state::reserved) {
            return false;
        }
        cell result = at(*own);
        result.state = cell_state::occupied;
        at(*own) = {};
        fill_from_front(*own);
        for (auto& row : rows) {
            auto const free = std::find_if(row.begin(), row.end(), is<cell_state::empty>);
            if (free != row.end()) {
                *free = result;
                return true;
            }
        }
        return false;
    }

    /// Of a reserved or an occupied unit.
    bool drop(std::int64_t unit) {
        auto const own = find(unit);
        if (!own) {
            return false;
        }
        at(*own) = {};
        spot hole = *own;
        while (auto const later = last_result_behind(hole.row)) {
            at(hole) = at(*later);
            at(*later) = {};
            hole = *later;
        }
        fill_from_front(hole);
        return true;
    }

    bool in_training() const { return version < next_batch; }

    bool can_take() const {
        return !in_training() && std::all_of(rows.front().begin(), rows.front().end(), is<cell_state::occupied>);
    }

    std::vector<cell> take() {
        std::vector<cell> batch = std::move(rows.front());
        rows.pop_front();
        ++next_batch;
        return batch;
    }

    void publish() {
        ++version;
        add_rows();
    }

    std::optional<cell> look(std::int64_t unit) const {
        auto const place = find(unit);
        return place ? std::optional(rows[place->row][place->column]) : std::nullopt;
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
        std::int64_t const buffer = next_batch + static_cast<std::int64_t>(gap.row);
        for (std::size_t row = 0; row <= gap.row; ++row) {
            for (std::size_t column = 0; column < (row == gap.row ? gap.column : width_); ++column) {
                cell& each = rows[row][column];
                if (each.state == cell_state::reserved && buffer <= each.version + bound_) {
                    at(gap) = each;
                    each = {};
                    return;
                }
            }
        }
    }

    std::optional<spot> last_result_behind(std::size_t row) const {
        for (std::size_t later = row + 1; later < rows.size(); ++later) {
            for (std::size_t column = width_; column-- > 0;) {
                if (rows[later][column].state == cell_state::occupied) {
                    return spot{later, column};
                }
            }
        }
        return std::nullopt;
    }

    std::size_t width_;
    std::int64_t bound_;
    std::optional<std::int64_t> limit_;
};
