// SPDX-License-Identifier: Apache-2.0
/// @file A batch in chunks of 2048 positions, each column of a chunk as a dense array. Host only.
///
/// Chunks are cut by position alone, so sums over them do not depend on threads, layout or alignment. A column that is dense
/// float already is used where it lies; others are converted, gathered or repeated into a buffer of the chunk.
#pragma once

#include <asyncrl/correction/detail/lanes.hpp>
#include <asyncrl/correction/token/inputs.hpp>
#include <asyncrl/correction/token_batch.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>

ASYNCRL_BEGIN_NAMESPACE
namespace detail {

inline constexpr std::int64_t chunk_size = 2048;

[[nodiscard]] constexpr std::int64_t chunk_count(std::int64_t positions) {
    return (positions + chunk_size - 1) / chunk_size;
}

/// The row that holds packed position `at`: the last whose offset is <= at, so that empty rows are passed over.
[[nodiscard]] inline std::int64_t packed_row(token_batch const& batch, std::int64_t at) {
    std::int64_t low = 0;
    std::int64_t high = batch.rows;
    while (high - low > 1) {
        std::int64_t const middle = low + (high - low) / 2;
        (batch.offsets[middle] <= at ? low : high) = middle;
    }
    return low;
}

/// Positions [begin, begin + count) of the batch, counted row after row.
struct chunk_range {
    std::int64_t begin;
    std::int64_t count;
};

[[nodiscard]] inline chunk_range chunk_at(token_batch const& batch, std::int64_t chunk) {
    return {chunk * chunk_size, std::min(chunk_size, batch.size() - chunk * chunk_size)};
}

/// Calls visit(row, first, count, at) for each stretch of the range within one row: `first` is the position by which columns
/// are addressed, `at` the place within the range.
template <typename Visit>
void for_each_stretch(token_batch const& batch, chunk_range range, Visit visit) {
    if (range.count == 0) {
        return;
    }
    std::int64_t at = 0;
    std::int64_t row = batch.packed() ? packed_row(batch, range.begin) : range.begin / batch.tokens;
    while (at < range.count) {
        std::int64_t const position = range.begin + at;
        std::int64_t const row_end = batch.packed() ? batch.offsets[row + 1] : (row + 1) * batch.tokens;
        std::int64_t const count = std::min(row_end - position, range.count - at);
        if (count > 0) {
            visit(row, batch.packed() ? position : position - row * batch.tokens, count, at);
        }
        at += count;
        ++row;
    }
}

/// Whether consecutive positions of the batch are consecutive elements, across row ends too.
template <typename Column>
[[nodiscard]] bool is_dense(Column const& c, token_batch const& batch) {
    return c.token_stride == 1 && c.row_stride == (batch.packed() ? 0 : batch.tokens);
}

[[nodiscard]] inline float from_bf16(std::uint16_t bits) {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
}
[[nodiscard]] inline float from_f16(std::uint16_t bits) {
    return static_cast<float>(Eigen::numext::bit_cast<Eigen::half>(bits));
}
[[nodiscard]] inline std::uint16_t to_bf16(float x) {
    return Eigen::numext::bit_cast<std::uint16_t>(Eigen::bfloat16(x));
}
[[nodiscard]] inline std::uint16_t to_f16(float x) {
    return Eigen::numext::bit_cast<std::uint16_t>(Eigen::half(x));
}

template <typename Stored, typename Element, typename Convert>
void gather(column const& c, token_batch const& batch, chunk_range range, Element* to, Convert convert) {
    auto const* data = static_cast<Stored const*>(c.data);
    for_each_stretch(batch, range, [&](std::int64_t row, std::int64_t first, std::int64_t count, std::int64_t at) {
        Stored const* from = data + row * c.row_stride + first * c.token_stride;
        if (c.token_stride == 0) {
            std::fill_n(to + at, count, convert(*from));
        } else {
            for (std::int64_t i = 0; i < count; ++i) {
                to[at + i] = convert(from[i * c.token_stride]);
            }
        }
    });
}

/// The chunk of a column as a dense array of `padded` >= count elements; those behind the count are 0. Returns where it lies:
/// in the column itself, or in `buffer`.
template <typename Element>
[[nodiscard]] Element const* staged(column const& c, token_batch const& batch, chunk_range range, std::int64_t padded,
                                    Element* buffer) {
    if (is_dense(c, batch) && c.type == dtype_of<Element>::value && padded == range.count) {
        return static_cast<Element const*>(c.data) + range.begin;
    }
    if constexpr (dtype_of<Element>::value == dtype::f64) {
        if (c.type == dtype::f64) {
            gather<double>(c, batch, range, buffer, [](double x) { return x; });
        } else {
            alignas(64) float narrow[chunk_size];
            std::copy_n(staged<float>(c, batch, range, range.count, narrow), range.count, buffer);
        }
    } else if (c.type == dtype::bf16) {
        gather<std::uint16_t>(c, batch, range, buffer, [](std::uint16_t x) { return from_bf16(x); });
    } else if (c.type == dtype::f16) {
        gather<std::uint16_t>(c, batch, range, buffer, [](std::uint16_t x) { return from_f16(x); });
    } else {
        gather<float>(c, batch, range, buffer, [](float x) { return x; });  // other types are refused by the callers' checks
    }
    std::fill(buffer + range.count, buffer + padded, Element(0));
    return buffer;
}

/// The staleness of a chunk's tokens, from their versions.
template <typename Element>
[[nodiscard]] Element const* staged_staleness(token_batch const& batch, chunk_range range, std::int64_t padded,
                                              Element* buffer) {
    std::int64_t const newest = batch.newest_version();
    auto const convert = [newest](auto version) { return static_cast<Element>(staleness_of(version, newest)); };
    if (batch.version.type == dtype::i32) {
        gather<std::int32_t>(batch.version, batch, range, buffer, convert);
    } else {
        gather<std::int64_t>(batch.version, batch, range, buffer, convert);
    }
    std::fill(buffer + range.count, buffer + padded, Element(0));
    return buffer;
}

/// A chunk of flags, 1 for every position where there are none.
[[nodiscard]] inline std::uint8_t const* staged_flags(column const& flags, token_batch const& batch, chunk_range range,
                                                      std::int64_t padded, std::uint8_t* buffer) {
    if (!flags) {
        std::fill_n(buffer, range.count, std::uint8_t{1});
    } else if (is_dense(flags, batch) && padded == range.count) {
        return static_cast<std::uint8_t const*>(flags.data) + range.begin;
    } else {
        gather<std::uint8_t>(flags, batch, range, buffer, [](std::uint8_t x) { return x; });
    }
    std::fill(buffer + range.count, buffer + padded, std::uint8_t{0});
    return buffer;
}

template <typename Stored, typename Element, typename Convert>
void scatter(output_column const& c, token_batch const& batch, chunk_range range, Element const* from, Convert convert) {
    auto* data = static_cast<Stored*>(c.data);
    for_each_stretch(batch, range, [&](std::int64_t row, std::int64_t first, std::int64_t count, std::int64_t at) {
        Stored* to = data + row * c.row_stride + first * c.token_stride;
        for (std::int64_t i = 0; i < count; ++i) {
            to[i * c.token_stride] = convert(from[at + i]);
        }
    });
}

/// Where a loop may write the chunk of an output: the output itself if it is dense and of the loop's type, else `buffer`,
/// which `unstage` then writes out.
template <typename Element>
[[nodiscard]] Element* output_stage(output_column const& c, token_batch const& batch, chunk_range range, std::int64_t padded,
                                    Element* buffer) {
    bool const direct = c && is_dense(c, batch) && c.type == dtype_of<Element>::value && padded == range.count;
    return direct ? static_cast<Element*>(c.data) + range.begin : buffer;
}

/// An output of a loop in double is f64, one of a loop in float is not.
template <typename Element>
void unstage(output_column const& c, token_batch const& batch, chunk_range range, Element const* buffer, Element const* used) {
    if (!c || used != buffer) {
        return;
    }
    if constexpr (dtype_of<Element>::value == dtype::f64) {
        scatter<double>(c, batch, range, buffer, [](double x) { return x; });
    } else if (c.type == dtype::bf16) {
        scatter<std::uint16_t>(c, batch, range, buffer, [](float x) { return to_bf16(x); });
    } else if (c.type == dtype::f16) {
        scatter<std::uint16_t>(c, batch, range, buffer, [](float x) { return to_f16(x); });
    } else {
        scatter<float>(c, batch, range, buffer, [](float x) { return x; });
    }
}

}  // namespace detail
ASYNCRL_END_NAMESPACE
