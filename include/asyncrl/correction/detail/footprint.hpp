// SPDX-License-Identifier: Apache-2.0
/// @file Which bytes the elements of an argument take, and whether two arguments share some: by addresses and strides alone.
#pragma once

#include <asyncrl/correction/matrix.hpp>
#include <asyncrl/correction/token_batch.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

ASYNCRL_BEGIN_NAMESPACE
namespace detail {

[[nodiscard]] constexpr std::int64_t bytes_of(dtype type) {
    switch (type) {
        case dtype::f64:
        case dtype::i64:
            return 8;
        case dtype::f32:
        case dtype::i32:
            return 4;
        case dtype::bf16:
        case dtype::f16:
            return 2;
        case dtype::u8:
            break;
    }
    return 1;
}

[[nodiscard]] inline std::uintptr_t address_of(void const* data) {
    return reinterpret_cast<std::uintptr_t>(data);
}

/// So many places, so many elements apart.
struct repetition {
    std::int64_t count;
    std::int64_t stride;
};

/// Runs of bytes, repeated at up to two strides.
class footprint {
  public:
    /// Elements at data + (i * outer.stride + j * inner.stride) * bytes.
    [[gnu::noinline]] footprint(void const* data, std::int64_t bytes, repetition outer, repetition inner = {1, 0}) {
        if (outer.count <= 0 || inner.count <= 0) {
            return;
        }
        begin_ = address_of(data);
        run_ = bytes;
        outer_ = laid_out(outer, bytes);
        inner_ = laid_out(inner, bytes);
        if (!known_) {
            return;
        }
        if (outer_.stride < inner_.stride) {
            std::swap(outer_, inner_);
        }
        join(inner_);
        join(outer_);
        if (inner_.count > 1 && outer_.count > 1 && outer_.stride % inner_.stride == 0 &&
            outer_.stride / inner_.stride <= inner_.count) {  // the rows go on where those before them end
            inner_.count += (outer_.count - 1) * (outer_.stride / inner_.stride);
            outer_ = {1, 0};
        }
        if (outer_.count == 1) {
            std::swap(outer_, inner_);
        }
    }
    /// Nothing.
    footprint() = default;
    /// Of an argument of which only its memory could tell.
    [[nodiscard]] static footprint not_known() {
        footprint unknown;
        unknown.run_ = 1;
        unknown.known_ = false;
        return unknown;
    }

    enum class relation : std::uint8_t { apart, overlap, unknown };

    /// Exact where both have the same strides, or one has no more than one run in a direction in which the other has more.
    /// Elsewhere `overlap` if the first run of either lies in the other, and else `unknown`.
    [[nodiscard]] relation to(footprint const& other) const {
        if (run_ == 0 || other.run_ == 0) {
            return relation::apart;
        }
        if (!known_ || !other.known_) {
            return relation::unknown;
        }
        if (end() <= other.begin_ || other.end() <= begin_) {
            return relation::apart;
        }
        relation const whole = by_strides(other);
        bool const met = whole == relation::unknown && (first_run().by_strides(other) == relation::overlap ||
                                                        by_strides(other.first_run()) == relation::overlap);
        return met ? relation::overlap : whole;
    }

  private:
    static constexpr std::int64_t most_bytes = std::int64_t{1} << 57;

    [[nodiscard]] repetition laid_out(repetition r, std::int64_t bytes) {
        if (r.count == 1 || r.stride == 0) {
            return {1, 0};
        }
        std::int64_t const most = most_bytes / bytes / r.count;
        if (r.stride > most || r.stride < -most) {
            known_ = false;
            return {1, 0};
        }
        std::int64_t const step = r.stride * bytes;
        if (step < 0) {
            begin_ += static_cast<std::uintptr_t>((r.count - 1) * step);  // modulo 2^64
        }
        return {r.count, step < 0 ? -step : step};
    }
    /// Places that touch are one run.
    void join(repetition& r) {
        if (r.count > 1 && r.stride <= run_) {
            run_ += (r.count - 1) * r.stride;
            r = {1, 0};
        }
    }
    [[nodiscard]] std::uintptr_t end() const {
        return begin_ +
               static_cast<std::uintptr_t>((outer_.count - 1) * outer_.stride + (inner_.count - 1) * inner_.stride + run_);
    }
    [[nodiscard]] footprint first_run() const {
        footprint first;
        first.begin_ = begin_;
        first.run_ = run_;
        return first;
    }

    /// Floor and ceiling of a / b, b > 0.
    [[nodiscard]] static std::int64_t below(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
    [[nodiscard]] static std::int64_t above(std::int64_t a, std::int64_t b) { return -below(-a, b); }

    [[nodiscard]] std::int64_t count_at(std::int64_t stride) const {
        return stride == 0 ? 1 : stride == outer_.stride ? outer_.count : stride == inner_.stride ? inner_.count : 1;
    }

    /// The runs meet where low < i * long_stride + j * short_stride < high for differences i and j of places.
    [[nodiscard, gnu::noinline]] relation by_strides(footprint const& other) const {
        std::int64_t strides[2] = {0, 0};
        int found = 0;
        for (std::int64_t const stride : {outer_.stride, inner_.stride, other.outer_.stride, other.inner_.stride}) {
            if (stride != 0 && stride != strides[0] && stride != strides[1]) {
                if (found == 2) {
                    return relation::unknown;
                }
                strides[found++] = stride;
            }
        }
        std::int64_t const long_stride = std::max(strides[0], strides[1]);
        std::int64_t const short_stride = std::min(strides[0], strides[1]);
        auto const distance = static_cast<std::int64_t>(other.begin_ - begin_);
        std::int64_t const low = distance - run_;
        std::int64_t const high = distance + other.run_;
        std::int64_t const least = -(other.count_at(short_stride) - 1);
        std::int64_t const most = count_at(short_stride) - 1;
        // Is there a j for this rest of low and high?
        auto const meets = [&](std::int64_t from, std::int64_t to) {
            if (short_stride == 0) {
                return from < 0 && 0 < to;
            }
            return std::max(least, below(from, short_stride) + 1) <= std::min(most, above(to, short_stride) - 1);
        };
        if (long_stride == 0) {
            return meets(low, high) ? relation::overlap : relation::apart;
        }
        std::int64_t const first =
            std::max(-(other.count_at(long_stride) - 1), below(low - most * short_stride, long_stride) + 1);
        std::int64_t const last = std::min(count_at(long_stride) - 1, above(high - least * short_stride, long_stride) - 1);
        constexpr std::int64_t most_tries = 64;  // a few, but where rows of one argument run into each other
        for (std::int64_t i = first; i <= last && i < first + most_tries; ++i) {
            if (meets(low - i * long_stride, high - i * long_stride)) {
                return relation::overlap;
            }
        }
        return last - first < most_tries ? relation::apart : relation::unknown;
    }

    std::uintptr_t begin_ = 0;
    std::int64_t run_ = 0;
    repetition outer_{1, 0};  ///< strides in bytes, the longer one; {1, 0} where there is none
    repetition inner_{1, 0};
    bool known_ = true;  ///< false too where it lies beyond all memory
};

[[nodiscard]] inline footprint footprint_of(void const* data, std::size_t bytes) {
    return {data, 1, {static_cast<std::int64_t>(std::min<std::size_t>(bytes, std::size_t{1} << 57)), 1}};
}
/// Of a column over all positions. Where packed rows and tokens both move it, only the offsets tell: not known.
[[nodiscard]] inline footprint footprint_of(column const& c, token_batch const& batch) {
    std::int64_t const bytes = bytes_of(c.type);
    repetition const rows{batch.rows, c.row_stride};
    repetition const tokens{batch.tokens, c.token_stride};
    if (!batch.packed()) {
        return {c.data, bytes, rows, tokens};
    }
    if (c.row_stride != 0 && c.token_stride != 0 && batch.rows > 1) {
        return footprint::not_known();
    }
    return c.row_stride != 0 && batch.rows > 1 ? footprint(c.data, bytes, rows) : footprint(c.data, bytes, tokens);
}
[[nodiscard]] inline footprint footprint_of(matrix const& m) {
    return {m.data, bytes_of(m.type), {m.rows, m.row_stride}, {m.columns, 1}};
}

}  // namespace detail
ASYNCRL_END_NAMESPACE
