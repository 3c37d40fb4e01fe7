// SPDX-License-Identifier: Apache-2.0
/// @file Dense rows of numbers, such as logits: non-owning, with a number type and a row stride, and lists of indices into
/// them.
#pragma once

#include <asyncrl/correction/token_batch.hpp>

#include <cstdint>

ASYNCRL_BEGIN_NAMESPACE

/// Row i stands at data[i * row_stride] and is `columns` consecutive elements; strides in elements. Any alignment.
struct matrix {
    void const* data = nullptr;
    dtype type = dtype::f32;
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    std::int64_t row_stride = 0;
};

/// A matrix to write. Elements between the end of a row and the next row are left alone.
struct output_matrix {
    void* data = nullptr;
    dtype type = dtype::f32;
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    std::int64_t row_stride = 0;

    [[nodiscard]] constexpr operator matrix() const { return {data, type, rows, columns, row_stride}; }  // NOLINT: a view of it
};

/// Rows that follow each other `row_stride` elements apart, without a gap by default.
template <typename Element>
[[nodiscard]] constexpr matrix row_major(Element const* data, std::int64_t rows, std::int64_t columns,
                                         std::int64_t row_stride = -1) {
    return {data, dtype_of<Element>::value, rows, columns, row_stride < 0 ? columns : row_stride};
}
template <typename Element>
[[nodiscard]] constexpr output_matrix row_major(Element* data, std::int64_t rows, std::int64_t columns,
                                                std::int64_t row_stride = -1) {
    return {data, dtype_of<Element>::value, rows, columns, row_stride < 0 ? columns : row_stride};
}

/// Indices of tokens in a vocabulary, of either width.
class token_ids {
  public:
    constexpr token_ids() = default;
    constexpr token_ids(std::int32_t const* ids) : narrow_(ids) {}  // NOLINT: either width is meant to convert
    constexpr token_ids(std::int64_t const* ids) : wide_(ids) {}    // NOLINT

    [[nodiscard]] ASYNCRL_HOST_DEVICE constexpr explicit operator bool() const {
        return narrow_ != nullptr || wide_ != nullptr;
    }
    [[nodiscard]] ASYNCRL_HOST_DEVICE constexpr std::int64_t operator[](std::int64_t i) const {
        return wide_ != nullptr ? wide_[i] : narrow_[i];
    }
    /// The ids where they lie.
    [[nodiscard]] constexpr column in_memory() const {
        return wide_ != nullptr ? column{wide_, dtype::i64, 0, 1} : column{narrow_, dtype::i32, 0, 1};
    }

  private:
    std::int32_t const* narrow_ = nullptr;
    std::int64_t const* wide_ = nullptr;
};

ASYNCRL_END_NAMESPACE
