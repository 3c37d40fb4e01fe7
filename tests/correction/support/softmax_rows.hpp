// SPDX-License-Identifier: Apache-2.0
/// @file Rows of logits for tests: in memory of any dtype, stride and alignment, and their softmax in long double, term by
/// term.
#pragma once

#include "columns.hpp"

#include <asyncrl/correction/matrix.hpp>
#include <asyncrl/correction/workspace.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

namespace support {

using numbers = std::vector<double>;
using executor = std::function<void(std::int64_t, asyncrl::task_ref)>;

inline void backwards(std::int64_t count, asyncrl::task_ref task) {
    for (std::int64_t i = count; i-- > 0;) {
        task(i);
    }
}
inline void on_three_threads(std::int64_t count, asyncrl::task_ref task) {
    std::atomic<std::int64_t> next{0};
    auto const work = [&] {
        for (std::int64_t i = next++; i < count; i = next++) {
            task(i);
        }
    };
    std::jthread const second(work);
    std::jthread const third(work);
    work();
}

/// Rows of equal length in guarded memory.
class rows_in_memory {
  public:
    rows_in_memory(dtype type, std::int64_t rows, std::int64_t columns, std::int64_t gap = 0, std::int64_t shift = 0)
        : rows_(rows),
          columns_(columns),
          memory_(type, {columns + gap, 1}, {false, std::vector<std::int64_t>(static_cast<std::size_t>(rows), columns)}, 0xa5,
                  shift) {}
    rows_in_memory(dtype type, std::vector<numbers> const& values, std::int64_t gap = 0, std::int64_t shift = 0)
        : rows_in_memory(type, static_cast<std::int64_t>(values.size()), static_cast<std::int64_t>(values.front().size()), gap,
                         shift) {
        for (std::size_t row = 0; row < values.size(); ++row) {
            for (std::size_t i = 0; i < values[row].size(); ++i) {
                memory_.put(row, i, values[row][i]);
            }
        }
    }

    [[nodiscard]] asyncrl::matrix in() const {
        asyncrl::column const c = memory_.in();
        return {c.data, c.type, rows_, columns_, c.row_stride};
    }
    [[nodiscard]] asyncrl::output_matrix out() {
        asyncrl::output_column const c = memory_.out();
        return {c.data, c.type, rows_, columns_, c.row_stride};
    }
    [[nodiscard]] numbers row(std::size_t row) const {
        numbers all;
        for (std::size_t i = 0; i < static_cast<std::size_t>(columns_); ++i) {
            all.push_back(memory_.get(row, i));
        }
        return all;
    }
    memory& elements() { return memory_; }
    [[nodiscard]] memory const& elements() const { return memory_; }

  private:
    std::int64_t rows_;
    std::int64_t columns_;
    memory memory_;
};

/// One number a row.
inline memory row_numbers(dtype type, std::size_t rows, std::int64_t stride = 1) {
    return {type, {0, stride}, {true, {static_cast<std::int64_t>(rows)}}, 0xa5, 0};
}
inline memory row_numbers(dtype type, numbers const& values, std::int64_t stride = 1) {
    memory all = row_numbers(type, values.size(), stride);
    for (std::size_t i = 0; i < values.size(); ++i) {
        all.put(0, i, values[i]);
    }
    return all;
}

/// A softmax over some elements of a row, as the textbook has it.
class exact_softmax {
  public:
    exact_softmax(numbers const& logits, std::vector<std::size_t> elements, double temperature)
        : elements_(std::move(elements)), z_(logits.size(), 0), p_(logits.size(), 0) {
        long double largest = -std::numeric_limits<long double>::infinity();
        for (std::size_t const i : elements_) {
            z_[i] = static_cast<long double>(logits[i]) / static_cast<long double>(temperature);
            largest = std::max(largest, z_[i]);
        }
        long double sum = 0;
        for (std::size_t const i : elements_) {
            sum += std::exp(z_[i] - largest);
            rest_ += z_[i] < largest ? std::exp(z_[i] - largest) : 0;
            ties_ += z_[i] < largest ? 0 : 1;
        }
        largest_ = largest;
        log_sum_ = std::log1p(rest_ + static_cast<long double>(ties_ - 1));
        for (std::size_t const i : elements_) {
            p_[i] = std::exp(z_[i] - largest) / sum;
            if (p_[i] > 0) {
                entropy_ -= p_[i] * log_p(i);
            }
        }
    }
    [[nodiscard]] long double log_p(std::size_t i) const { return z_[i] - largest_ - log_sum_; }
    [[nodiscard]] long double p(std::size_t i) const { return p_[i]; }
    [[nodiscard]] long double log_sum_exp() const { return largest_ + log_sum_; }
    [[nodiscard]] long double entropy() const { return entropy_; }
    [[nodiscard]] std::vector<std::size_t> const& elements() const { return elements_; }
    /// 1 - p without cancellation.
    [[nodiscard]] long double rest(std::size_t i) const { return -std::expm1(log_p(i)); }

  private:
    std::vector<std::size_t> elements_;
    std::vector<long double> z_, p_;
    long double largest_ = 0, log_sum_ = 0, rest_ = 0, entropy_ = 0;
    int ties_ = 0;
};

inline std::vector<std::size_t> all_of(numbers const& row) {
    std::vector<std::size_t> all(row.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    return all;
}

}  // namespace support
