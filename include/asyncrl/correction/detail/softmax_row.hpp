// SPDX-License-Identifier: Apache-2.0
/// @file The host's loops over one row of logits: sums of the softmax in one pass, and the gradient in another. Host only.
///
/// A row is cut into blocks that stay in the first cache. Floats that lie dense are read where they are; others are converted,
/// or gathered, into a buffer of the block.
#pragma once

#include <asyncrl/correction/detail/chunk.hpp>
#include <asyncrl/correction/detail/lanes.hpp>
#include <asyncrl/correction/log_prob_options.hpp>
#include <asyncrl/correction/token/softmax.hpp>
#include <asyncrl/correction/workspace.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

ASYNCRL_BEGIN_NAMESPACE
namespace detail {

inline constexpr std::int64_t softmax_block = 2048;

/// How a dtype is stored, and its numbers.
struct stored_f32 {
    using type = float;
    static float get(type x) { return x; }
    static type put(double x) { return static_cast<float>(x); }
};
struct stored_f64 {
    using type = double;
    static double get(type x) { return x; }
    static type put(double x) { return x; }
};
struct stored_bf16 {
    using type = std::uint16_t;
    static float get(type x) { return from_bf16(x); }
    static type put(double x) { return to_bf16(static_cast<float>(x)); }
};
struct stored_f16 {
    using type = std::uint16_t;
    static float get(type x) { return from_f16(x); }
    static type put(double x) { return to_f16(static_cast<float>(x)); }
};

/// Calls visit with the storage of a floating-point dtype.
template <typename Visit>
void with_storage(dtype type, Visit const& visit) {
    switch (type) {
        case dtype::f32:
            return visit(stored_f32{});
        case dtype::f64:
            return visit(stored_f64{});
        case dtype::bf16:
            return visit(stored_bf16{});
        case dtype::f16:
            return visit(stored_f16{});
        case dtype::u8:
        case dtype::i32:
        case dtype::i64:
            return;  // refused by the callers' checks
    }
}

[[nodiscard]] inline double number_in(void const* data, dtype type, std::int64_t at) {
    double x = 0;
    with_storage(type, [&](auto storage) {
        using stored = decltype(storage);
        x = static_cast<double>(stored::get(static_cast<typename stored::type const*>(data)[at]));
    });
    return x;
}
inline void put_number(void* data, dtype type, std::int64_t at, double x) {
    with_storage(type, [&](auto storage) {
        using stored = decltype(storage);
        static_cast<typename stored::type*>(data)[at] = stored::put(x);
    });
}

template <int Width>
struct half_registers;
template <>
struct half_registers<4> {
    typedef std::uint16_t type __attribute__((vector_size(8)));
};
template <>
struct half_registers<8> {
    typedef std::uint16_t type __attribute__((vector_size(16)));
};
template <>
struct half_registers<16> {
    typedef std::uint16_t type __attribute__((vector_size(32)));
};

template <int Width>
[[nodiscard]] ASYNCRL_HOST_DEVICE lanes<Width> load_bf16(std::uint16_t const* from) {
    using integers = typename simd::registers<Width>::integers;
    typename half_registers<Width>::type halves;
    std::memcpy(&halves, from, sizeof halves);
    integers const wide = __builtin_convertvector(halves, integers) << 16;
    return {__builtin_bit_cast(typename lanes<Width>::vector, wide)};
}
/// Rounds to nearest, ties to even. Not for NaN.
template <int Width>
ASYNCRL_HOST_DEVICE void store_bf16(std::uint16_t* to, lanes<Width> x) {
    auto const bits = bits_in(x).v;
    auto const rounded = ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) & 0xffff;
    auto const halves = __builtin_convertvector(rounded, typename half_registers<Width>::type);
    std::memcpy(to, &halves, sizeof halves);
}

/// Counts rows and finds the first, from any thread.
class row_tally {
  public:
    void note(std::int64_t row) {
        count_.fetch_add(1, std::memory_order_relaxed);
        std::int64_t seen = first_.load(std::memory_order_relaxed);
        while (row < seen && !first_.compare_exchange_weak(seen, row, std::memory_order_relaxed)) {
        }
    }
    [[nodiscard]] std::int64_t count() const { return count_.load(std::memory_order_relaxed); }
    /// -1: none.
    [[nodiscard]] std::int64_t first() const { return count() > 0 ? first_.load(std::memory_order_relaxed) : -1; }

  private:
    std::atomic<std::int64_t> count_{0};
    std::atomic<std::int64_t> first_{std::numeric_limits<std::int64_t>::max()};
};

/// Calls visit(row) for each row, enough of them in one part of the executor's work to be worth a thread's while.
template <typename Executor, typename Visit>
void for_each_row(std::int64_t rows, std::int64_t columns, Executor const& execute, Visit const& visit) {
    std::int64_t const together = std::max<std::int64_t>(1, 8 * softmax_block / std::max<std::int64_t>(columns, 1));
    auto const task = [&](std::int64_t part) {
        std::int64_t const end = std::min(rows, (part + 1) * together);
        for (std::int64_t row = part * together; row < end; ++row) {
            visit(row);
        }
    };
    execute((rows + together - 1) / together, task_ref(task));
}

[[nodiscard]] constexpr std::int64_t padded_block(std::int64_t count, int width) {
    return (count + width - 1) / width * width;
}

/// `count` elements of the part, from its place `at` on, as a dense array that is filled up with -infinity to a multiple of the
/// register's width. Returns where it lies: in the row itself, or in `buffer`.
template <typename Real>
[[nodiscard]] typename packing<Real>::element const* staged_logits(matrix const& m, std::int64_t row, row_part const& part,
                                                                   std::int64_t at, std::int64_t count,
                                                                   typename packing<Real>::element* buffer) {
    using pack = packing<Real>;
    using element = typename pack::element;
    std::int64_t done = 0;
    if (!part.listed()) {
        std::int64_t const begin = row * m.row_stride + at;
        if (m.type == dtype_of<element>::value && count % pack::width == 0) {
            return static_cast<element const*>(m.data) + begin;
        }
        if constexpr (std::is_same_v<element, float>) {
            if (m.type == dtype::bf16) {
                auto const* from = static_cast<std::uint16_t const*>(m.data) + begin;
                for (; done + pack::width <= count; done += pack::width) {
                    pack::store(buffer + done, load_bf16<pack::width>(from + done));
                }
            }
        }
    }
    with_storage(m.type, [&](auto storage) {
        using stored = decltype(storage);
        auto const* from = static_cast<typename stored::type const*>(m.data) + row * m.row_stride;
        for (; done < count; ++done) {
            buffer[done] = static_cast<element>(stored::get(from[part[at + done]]));
        }
    });
    std::fill(buffer + count, buffer + padded_block(count, pack::width), -std::numeric_limits<element>::infinity());
    return buffer;
}

/// What one pass over a row yields.
struct scanned_row {
    softmax_sums<double> sums;
    bool unusable = false;

    /// Adds one logit that the pass did not meet.
    void add(double logit, double inverse_temperature) {
        unusable = unusable || is_unusable(logit);
        softmax_sums<double> one;
        one.largest = logit;
        one.ties = 1;
        sums = combined(sums, one, inverse_temperature, [](double x) { return host_math{}.exp(x); });
    }
    /// No logit is above -infinity, or one is NaN or +infinity.
    [[nodiscard]] bool has_no_softmax() const { return unusable || is_nonfinite(sums.largest); }
};

template <typename Real>
void scan_block(scanned_row& row, typename packing<Real>::element const* x, std::int64_t padded, double inverse_temperature) {
    using pack = packing<Real>;
    // Few terms to a sum of floats, few such sums to the block's, and doubles between blocks.
    constexpr std::int64_t few = 32 * pack::width;
    Real top(-INFINITY);
    mask_of<Real> unusable = !always<Real>();
    for (std::int64_t i = 0; i < padded; i += pack::width) {
        Real const logit = pack::load(x + i);
        top = larger(top, logit);
        unusable = unusable | is_unusable(logit);
    }
    row.unusable = row.unusable || pack::sum(mark(unusable, 1U)) != 0;
    if (row.unusable) {
        return;
    }
    row.sums.raise(pack::maximum(top), inverse_temperature, [](double d) { return host_math{}.exp(d); });
    if (is_nonfinite(row.sums.largest)) {
        return;
    }
    softmax_sums<Real> block;
    softmax_sums<Real> part;
    part.largest = Real(row.sums.largest);
    Real const inverse(inverse_temperature);
    for (std::int64_t i = 0; i < padded;) {
        part.ties = part.below = part.weighted = Real(0);
        for (std::int64_t const end = std::min(padded, i + few); i < end; i += pack::width) {
            part.add(pack::load(x + i), inverse, [](Real d) { return host_math{}.exp(d); });
        }
        block.add(part);
    }
    softmax_sums<double> total;
    total.ties = pack::sum(block.ties);
    total.below = pack::sum(block.below);
    total.weighted = pack::sum(block.weighted);
    row.sums.add(total);
}

/// Reads the part of a row once.
template <typename Real>
[[nodiscard]] scanned_row scan_row(matrix const& m, std::int64_t row, row_part const& part, double inverse_temperature) {
    alignas(64) typename packing<Real>::element buffer[softmax_block];
    scanned_row scanned;
    for (std::int64_t at = 0; at < part.count && !scanned.unusable; at += softmax_block) {
        std::int64_t const count = std::min(softmax_block, part.count - at);
        auto const* x = staged_logits<Real>(m, row, part, at, count, buffer);
        scan_block<Real>(scanned, x, padded_block(count, packing<Real>::width), inverse_temperature);
    }
    return scanned;
}

inline void zero_elements(output_matrix const& out, std::int64_t row, std::int64_t first, std::int64_t count) {
    with_storage(out.type, [&](auto storage) {
        using type = typename decltype(storage)::type;
        std::fill_n(static_cast<type*>(out.data) + row * out.row_stride + first, std::max<std::int64_t>(count, 0), type{});
    });
}

/// Writes `count` elements of the part from its place `at` on.
template <typename Real>
void write_elements(output_matrix const& out, std::int64_t row, row_part const& part, std::int64_t at, std::int64_t count,
                    typename packing<Real>::element const* from) {
    using pack = packing<Real>;
    std::int64_t done = 0;
    if constexpr (std::is_same_v<typename pack::element, float>) {
        if (!part.listed() && out.type == dtype::bf16) {
            auto* to = static_cast<std::uint16_t*>(out.data) + row * out.row_stride + at;
            for (; done + pack::width <= count; done += pack::width) {
                store_bf16(to + done, pack::load(from + done));
            }
        }
    }
    with_storage(out.type, [&](auto storage) {
        using stored = decltype(storage);
        auto* to = static_cast<typename stored::type*>(out.data) + row * out.row_stride;
        for (; done < count; ++done) {
            to[part[at + done]] = stored::put(static_cast<double>(from[done]));
        }
    });
}

/// The gradient in the part of a row, all of whose logits count as not chosen, and 0 in the rest of the row. `out` may be `m`.
/// Returns whether a logit is unusable.
template <typename Real>
[[nodiscard]] bool gradient_of_row(matrix const& m, output_matrix const& out, std::int64_t row, row_part const& part,
                                   log_softmax<typename packing<Real>::element> const& scalar_log_p,
                                   logit_slope<typename packing<Real>::element> const& scalar_slope) {
    using pack = packing<Real>;
    using element = typename pack::element;
    alignas(64) element buffer[softmax_block];
    auto const log_p = scalar_log_p.template as<Real>();
    auto const slope = scalar_slope.template as<Real>();
    mask_of<Real> unusable = !always<Real>();
    std::int64_t written = 0;
    for (std::int64_t at = 0; at < part.count; at += softmax_block) {
        std::int64_t const count = std::min(softmax_block, part.count - at);
        std::int64_t const padded = padded_block(count, pack::width);
        element const* x = staged_logits<Real>(m, row, part, at, count, buffer);
        bool const direct = !part.listed() && out.type == dtype_of<element>::value && padded == count;
        element* to = direct ? static_cast<element*>(out.data) + row * out.row_stride + at : buffer;
        for (std::int64_t i = 0; i < padded; i += pack::width) {
            Real const logit = pack::load(x + i);
            unusable = unusable | is_unusable(logit);
            bounded_log<Real> const p(log_p(logit), [](Real d) { return host_math{}.exp(d); });
            pack::store(to + i, slope(p, -p.value));
        }
        for (std::int64_t i = 0; part.listed() && i < count; ++i) {
            zero_elements(out, row, written, part[at + i] - written);
            written = part[at + i] + 1;
        }
        if (!direct) {
            write_elements<Real>(out, row, part, at, count, buffer);
        }
    }
    if (part.listed()) {
        zero_elements(out, row, written, out.columns - written);
    }
    return pack::sum(mark(unusable, 1U)) != 0;
}

/// NaN in the part of a row.
inline void spoil_row(output_matrix const& out, std::int64_t row, row_part const& part) {
    with_storage(out.type, [&](auto storage) {
        using stored = decltype(storage);
        auto* to = static_cast<typename stored::type*>(out.data) + row * out.row_stride;
        for (std::int64_t i = 0; i < part.count; ++i) {
            to[part[i]] = stored::put(std::numeric_limits<double>::quiet_NaN());
        }
    });
}

}  // namespace detail
ASYNCRL_END_NAMESPACE
