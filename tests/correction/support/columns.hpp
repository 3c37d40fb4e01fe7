// SPDX-License-Identifier: Apache-2.0
/// @file Memory for the columns of a test batch: any dtype, any strides, guarded, and with its own conversions.
#pragma once

#include <asyncrl/correction/detail/footprint.hpp>
#include <asyncrl/correction/token_batch.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace support {

using asyncrl::dtype;

inline constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
inline constexpr double infinity = std::numeric_limits<double>::infinity();

// bfloat16 and float16, written anew: round to nearest, ties to even.
inline std::uint16_t bf16_bits(double x) {
    if (std::isnan(x)) {
        return 0x7fc0;
    }
    auto const bits = std::bit_cast<std::uint32_t>(static_cast<float>(x));
    std::uint32_t upper = bits >> 16;
    std::uint32_t const rest = bits & 0xffffU;
    if (rest > 0x8000U || (rest == 0x8000U && (upper & 1U) != 0)) {
        ++upper;
    }
    return static_cast<std::uint16_t>(upper);
}
inline double from_bf16_bits(std::uint16_t bits) {
    return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16));
}
inline double from_f16_bits(std::uint16_t bits) {
    int const exponent = (bits >> 10) & 31;
    int const mantissa = bits & 1023;
    double size = 0;
    if (exponent == 31) {
        size = mantissa != 0 ? not_a_number : infinity;
    } else {
        size = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    }
    return (bits & 0x8000) != 0 ? -size : size;
}
inline std::uint16_t f16_bits(double x) {
    auto const sign = static_cast<std::uint16_t>(std::signbit(x) ? 0x8000 : 0);
    double const size = std::abs(x);
    if (std::isnan(x)) {
        return 0x7e00;
    }
    if (size >= 65520) {
        return static_cast<std::uint16_t>(sign | 0x7c00);
    }
    int exponent = 0;
    std::frexp(size, &exponent);
    exponent = std::max(exponent - 1, -14);
    auto units = static_cast<int>(std::nearbyint(std::ldexp(size, 10 - exponent)));
    int const bits = size < std::ldexp(1, -14) ? units : ((exponent + 15) << 10) + (units - 1024);
    return static_cast<std::uint16_t>(sign | bits);
}

inline std::size_t bytes_of(dtype type) {
    return static_cast<std::size_t>(asyncrl::detail::bytes_of(type));
}

/// x as a column of this dtype holds it.
inline double as_stored(dtype type, double x) {
    switch (type) {
        case dtype::f64:
            return x;
        case dtype::f32:
            return static_cast<double>(static_cast<float>(x));
        case dtype::bf16:
            return from_bf16_bits(bf16_bits(x));
        case dtype::f16:
            return from_f16_bits(f16_bits(x));
        case dtype::i32:
        case dtype::i64:
            return std::nearbyint(x);
        case dtype::u8:
            break;
    }
    return static_cast<double>(static_cast<std::uint8_t>(x));
}

/// Where tokens stand: rows of equal length, or packed rows of any length.
struct grid {
    bool packed = false;
    std::vector<std::int64_t> lengths;

    [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(lengths.size()); }
    [[nodiscard]] std::int64_t offset(std::int64_t row) const {
        std::int64_t sum = 0;
        for (std::int64_t b = 0; b < row; ++b) {
            sum += lengths[static_cast<std::size_t>(b)];
        }
        return sum;
    }
    [[nodiscard]] std::int64_t tokens() const { return packed ? offset(rows()) : (lengths.empty() ? 0 : lengths.front()); }
    [[nodiscard]] std::int64_t size() const { return packed ? tokens() : rows() * tokens(); }

    template <typename Visit>
    void each(Visit visit) const {
        std::int64_t before = 0;
        for (std::int64_t b = 0; b < rows(); ++b) {
            for (std::int64_t t = 0; t < lengths[static_cast<std::size_t>(b)]; ++t) {
                visit(static_cast<std::size_t>(b), static_cast<std::size_t>(t), b, packed ? before + t : t);
            }
            before += lengths[static_cast<std::size_t>(b)];
        }
    }
};

struct strides {
    std::int64_t row = 0;
    std::int64_t token = 1;
};

/// Strides without gaps.
inline strides dense(grid const& where) {
    return {where.packed ? 0 : where.tokens(), 1};
}

/// The elements of one column, with a guard in front, behind, and in every gap.
class memory {
  public:
    memory() = default;
    memory(dtype type, strides step, grid const& where, unsigned char fill = 0xff, std::int64_t shift = 0)
        : type_(type), step_(step), fill_(fill) {
        std::int64_t first = 0;
        std::int64_t last = 0;
        where.each([&](std::size_t, std::size_t, std::int64_t row, std::int64_t position) {
            std::int64_t const at = row * step.row + position * step.token;
            first = std::min(first, at);
            last = std::max(last, at);
        });
        origin_ = guard - first + shift;
        bytes_.assign(static_cast<std::size_t>(origin_ + last + 1 + guard) * bytes_of(type), fill);
        used_.assign(bytes_.size(), false);
        where.each([&](std::size_t b, std::size_t t, std::int64_t row, std::int64_t position) {
            if (addresses_.size() <= b) {
                addresses_.resize(b + 1);
            }
            std::size_t const at = static_cast<std::size_t>(origin_ + row * step.row + position * step.token) * bytes_of(type);
            addresses_[b].resize(std::max(addresses_[b].size(), t + 1));
            addresses_[b][t] = at;
            std::fill_n(used_.begin() + static_cast<std::ptrdiff_t>(at), bytes_of(type), true);
        });
    }

    void put(std::size_t row, std::size_t position, double value) {
        switch (type_) {
            case dtype::f64:
                return store(row, position, value);
            case dtype::f32:
                return store(row, position, static_cast<float>(value));
            case dtype::bf16:
                return store(row, position, bf16_bits(value));
            case dtype::f16:
                return store(row, position, f16_bits(value));
            case dtype::i32:
                return store(row, position, static_cast<std::int32_t>(value));
            case dtype::i64:
                return store(row, position, static_cast<std::int64_t>(value));
            case dtype::u8:
                return store(row, position, static_cast<std::uint8_t>(value));
        }
    }
    [[nodiscard]] double get(std::size_t row, std::size_t position) const {
        switch (type_) {
            case dtype::f64:
                return load<double>(row, position);
            case dtype::f32:
                return static_cast<double>(load<float>(row, position));
            case dtype::bf16:
                return from_bf16_bits(load<std::uint16_t>(row, position));
            case dtype::f16:
                return from_f16_bits(load<std::uint16_t>(row, position));
            case dtype::i32:
                return load<std::int32_t>(row, position);
            case dtype::i64:
                return static_cast<double>(load<std::int64_t>(row, position));
            case dtype::u8:
                break;
        }
        return load<std::uint8_t>(row, position);
    }
    /// The bits of one element, widened.
    [[nodiscard]] std::uint64_t bits(std::size_t row, std::size_t position) const {
        std::uint64_t out = 0;
        std::memcpy(&out, bytes_.data() + addresses_[row][position], bytes_of(type_));
        return out;
    }

    [[nodiscard]] asyncrl::column in() const { return {data(), type_, step_.row, step_.token}; }
    [[nodiscard]] asyncrl::output_column out() { return {const_cast<unsigned char*>(data()), type_, step_.row, step_.token}; }
    [[nodiscard]] std::vector<unsigned char> const& bytes() const { return bytes_; }
    [[nodiscard]] dtype type() const { return type_; }

    /// No byte outside the elements was written.
    [[nodiscard]] bool guards_hold() const {
        for (std::size_t i = 0; i < bytes_.size(); ++i) {
            if (!used_[i] && bytes_[i] != fill_) {
                return false;
            }
        }
        return true;
    }
    /// No byte at all was written.
    [[nodiscard]] bool untouched() const {
        return std::all_of(bytes_.begin(), bytes_.end(), [&](unsigned char byte) { return byte == fill_; });
    }

  private:
    static constexpr std::int64_t guard = 24;

    template <typename Element>
    void store(std::size_t row, std::size_t position, Element value) {
        std::memcpy(bytes_.data() + addresses_[row][position], &value, sizeof value);
    }
    template <typename Element>
    [[nodiscard]] Element load(std::size_t row, std::size_t position) const {
        Element value{};
        std::memcpy(&value, bytes_.data() + addresses_[row][position], sizeof value);
        return value;
    }
    [[nodiscard]] unsigned char const* data() const {
        return bytes_.data() + static_cast<std::size_t>(origin_) * bytes_of(type_);
    }

    dtype type_ = dtype::f32;
    strides step_;
    unsigned char fill_ = 0;
    std::int64_t origin_ = 0;
    std::vector<unsigned char> bytes_;
    std::vector<bool> used_;
    std::vector<std::vector<std::size_t>> addresses_;
};

}  // namespace support
