// SPDX-License-Identifier: Apache-2.0
/// @file Runs an advantage recursion over the rows of a batch, each from its last position to its first. Host only.
#pragma once

#include <asyncrl/correction/advantage_options.hpp>
#include <asyncrl/correction/detail/check_batch.hpp>
#include <asyncrl/correction/token/real.hpp>
#include <asyncrl/correction/token_batch.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

ASYNCRL_BEGIN_NAMESPACE
namespace detail {

/// Calls visit(element) with a pointer to an element of the column's number type.
template <typename Visit>
void with_element(dtype type, void const* data, Visit visit) {
    switch (type) {
        case dtype::f32:
            return visit(static_cast<float const*>(data));
        case dtype::f64:
            return visit(static_cast<double const*>(data));
        case dtype::bf16:
            return visit(static_cast<Eigen::bfloat16 const*>(data));
        case dtype::f16:
            return visit(static_cast<Eigen::half const*>(data));
        case dtype::u8:
            return visit(static_cast<std::uint8_t const*>(data));
        case dtype::i32:
            return visit(static_cast<std::int32_t const*>(data));
        case dtype::i64:
            return visit(static_cast<std::int64_t const*>(data));
    }
}

template <typename Stored>
[[nodiscard]] double as_double(Stored x) {
    return static_cast<double>(x);
}
[[nodiscard]] inline double as_double(Eigen::bfloat16 x) {
    return static_cast<double>(static_cast<float>(x));
}
[[nodiscard]] inline double as_double(Eigen::half x) {
    return static_cast<double>(static_cast<float>(x));
}

/// Elements first, first + stride, ... of a column's data.
inline void read_elements(void const* data, dtype type, std::int64_t first, std::int64_t stride, std::int64_t count,
                          double* to) {
    with_element(type, data, [&](auto const* elements) {
        auto const* from = elements + first;
        if (stride == 1) {
            for (std::int64_t i = 0; i < count; ++i) {
                to[i] = as_double(from[i]);
            }
        } else {
            for (std::int64_t i = 0; i < count; ++i) {
                to[i] = as_double(from[i * stride]);
            }
        }
    });
}

inline void write_elements(void* data, dtype type, std::int64_t first, std::int64_t stride, std::int64_t count,
                           double const* from) {
    with_element(type, data, [&]<typename Stored>(Stored const*) {
        auto* elements = static_cast<Stored*>(data);
        for (std::int64_t i = 0; i < count; ++i) {
            if constexpr (sizeof(Stored) == 2) {
                elements[first + i * stride] = Stored(static_cast<float>(from[i]));
            } else {
                elements[first + i * stride] = static_cast<Stored>(from[i]);
            }
        }
    });
}

[[nodiscard]] inline double read_element(column const& c, std::int64_t at) {
    double x = 0;
    read_elements(c.data, c.type, at, 0, 1, &x);
    return x;
}

/// One active step as a recursion sees it.
struct recursion_input {
    double reward;
    double value;
    double action_value;  ///< 0 unless the recursion `reads_action_value`
    double ratio;         ///< old / rollout; 1 unless the recursion `reads_ratio`
};

struct recursion_output {
    double advantage;
    double target;
};

/// Positions that are converted to double at a time.
inline constexpr std::int64_t recursion_block = 256;

/// `count` positions of one row, the first at `position` by which columns are addressed.
struct recursion_stretch {
    token_batch const& batch;
    std::int64_t row;
    std::int64_t position;
    std::int64_t count;

    void read(column const& c, double* to) const {
        read_elements(c.data, c.type, row * c.row_stride + position * c.token_stride, c.token_stride, count, to);
    }
    void write(output_column const& c, double const* from) const {
        if (c) {
            write_elements(c.data, c.type, row * c.row_stride + position * c.token_stride, c.token_stride, count, from);
        }
    }
    void read_mask(bool* active) const {
        column const& mask = batch.mask;
        auto const* elements = static_cast<std::uint8_t const*>(mask.data);
        for (std::int64_t i = 0; i < count; ++i) {
            active[i] = !mask || elements[row * mask.row_stride + (position + i) * mask.token_stride] != 0;
        }
    }
    /// old / rollout of the active positions: 1 where the engine gave no log-prob, NaN where the log ratio is not finite.
    /// Returns how many were unscored.
    std::int64_t read_ratios(bool const* active, double* ratio) const {
        double old_log_prob[recursion_block];
        double rollout_log_prob[recursion_block];
        read(batch.old_log_prob, old_log_prob);
        read(batch.rollout_log_prob, rollout_log_prob);
        double const missing = stored_sentinel(batch);
        bool const missing_is_nan = is_nan(missing);
        std::int64_t unscored = 0;
        for (std::int64_t i = 0; i < count; ++i) {
            if (!active[i]) {
                continue;
            }
            double const rollout = rollout_log_prob[i];
            if (missing_is_nan ? is_nan(rollout) : rollout == missing) {
                ratio[i] = is_nonfinite(old_log_prob[i]) ? std::numeric_limits<double>::quiet_NaN() : 1;
                ++unscored;
            } else {
                double const e = old_log_prob[i] - rollout;
                ratio[i] = is_nonfinite(e) ? std::numeric_limits<double>::quiet_NaN() : std::exp(e);
            }
        }
        return unscored;
    }
};

/// Runs `step`, which carries the state of the row, over the active positions from the last to the first. Adds to `report`.
template <typename Step>
void run_recursion(token_batch const& batch, value_columns const& values, advantage_outputs const& outputs, std::int64_t row,
                   Step step, recursion_report& report) {
    bool active[recursion_block];
    double reward[recursion_block];
    double value[recursion_block];
    double action_value[recursion_block];
    double ratio[recursion_block];
    std::int64_t const first = batch.packed() ? batch.offsets[row] : 0;
    std::int64_t end = batch.packed() ? batch.offsets[row + 1] : batch.tokens;
    while (end > first) {
        std::int64_t const count = std::min(recursion_block, end - first);
        end -= count;
        recursion_stretch const stretch{batch, row, end, count};
        stretch.read_mask(active);
        stretch.read(values.reward, reward);
        stretch.read(values.value, value);
        if constexpr (Step::reads_action_value) {
            stretch.read(values.action_value, action_value);
        }
        if constexpr (Step::reads_ratio) {
            report.unscored += stretch.read_ratios(active, ratio);
        }
        for (std::int64_t i = count; i-- > 0;) {
            recursion_output out{0, 0};
            if (active[i]) {
                out = step(recursion_input{reward[i], value[i], Step::reads_action_value ? action_value[i] : 0,
                                           Step::reads_ratio ? ratio[i] : 1});
                ++report.tokens;
                report.nonfinite += is_nonfinite(out.advantage) || is_nonfinite(out.target) ? 1 : 0;
            }
            reward[i] = out.advantage;  // the inputs of this position are used up
            value[i] = out.target;
        }
        stretch.write(outputs.advantage, reward);
        stretch.write(outputs.target, value);
    }
}

/// A needed column is there and has the precision of the values.
inline void check_recursion_column(column const& c, char const* name, value_columns const& values) {
    if (!c) {
        refuse(std::string(name) + " is absent, but the recursion needs it");
    }
    if (c.type == dtype::u8 || (c.type == dtype::f64) != (values.value.type == dtype::f64)) {
        refuse(std::string(name) + " has dtype " + name_of(c.type) + ", but value_columns.value has " +
               name_of(values.value.type) + ": all columns are f64, or each is f32, bf16 or f16");
    }
}

/// Every position of the batch has an element of its own.
inline void check_recursion_output(output_column const& c, char const* name, token_batch const& batch,
                                   value_columns const& values) {
    if (!c) {
        return;
    }
    check_recursion_column(c, name, values);
    must_pass(inspect_strides, c, name, batch);
}

}  // namespace detail
ASYNCRL_END_NAMESPACE
