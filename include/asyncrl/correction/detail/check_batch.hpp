// SPDX-License-Identifier: Apache-2.0
/// @file What must hold of a batch before a host call touches anything. Reads no column, only shapes and offsets.
#pragma once

#include <asyncrl/correction/token/inputs.hpp>
#include <asyncrl/correction/token/token.hpp>
#include <asyncrl/correction/token_batch.hpp>
#include <asyncrl/error.hpp>

#include <cstdint>
#include <limits>
#include <string>

ASYNCRL_BEGIN_NAMESPACE
namespace detail {

[[noreturn]] inline void refuse(std::string const& sentence) {
    throw std::invalid_argument("asyncrl: " + sentence);
}

inline void check_shape(token_batch const& batch) {
    require(batch.rows >= 0, "token_batch.rows", batch.rows, ">= 0");
    require(batch.tokens >= 0, "token_batch.tokens", batch.tokens, ">= 0");
    if (!batch.packed()) {
        require(batch.tokens == 0 || batch.rows <= std::numeric_limits<std::int64_t>::max() / batch.tokens, "token_batch.rows",
                batch.rows, "such that rows * tokens fits 64 bits");
        return;
    }
    // Texts are made only where one is needed: this runs in the training loop.
    require(batch.offsets[0] == 0, "token_batch.offsets[0]", batch.offsets[0], "0");
    for (std::int64_t row = 0; row < batch.rows; ++row) {
        if (batch.offsets[row + 1] < batch.offsets[row]) {
            require(false, "token_batch.offsets[" + text(row + 1) + "]", batch.offsets[row + 1],
                    "at least the offset before it, " + text(batch.offsets[row]));
        }
    }
    if (batch.offsets[batch.rows] != batch.tokens) {
        require(false, "token_batch.offsets[rows]", batch.offsets[batch.rows], "token_batch.tokens = " + text(batch.tokens));
    }
}

[[nodiscard]] inline char const* name_of(dtype type) {
    constexpr char const* names[] = {"f32", "f64", "bf16", "f16", "u8", "i32", "i64"};
    return names[static_cast<int>(type)];
}

/// A needed column is there and holds numbers of the batch's precision.
inline void check_column(column const& c, char const* name, token_batch const& batch) {
    if (batch.size() == 0) {
        return;
    }
    if (!c) {
        refuse(std::string(name) + " is absent, but the objective needs it");
    }
    bool const integers = c.type == dtype::u8 || c.type == dtype::i32 || c.type == dtype::i64;
    if (integers || (c.type == dtype::f64) != (batch.log_prob.type == dtype::f64)) {
        refuse(std::string(name) + " has dtype " + name_of(c.type) + ", but token_batch.log_prob has " +
               name_of(batch.log_prob.type) + ": all columns are f64, or each is f32, bf16 or f16");
    }
}

inline void check_output(output_column const& c, char const* name, token_batch const& batch) {
    if (!c || batch.size() == 0) {
        return;
    }
    check_column(c, name, batch);
    if ((c.token_stride == 0 && batch.tokens > 1) || (!batch.packed() && c.row_stride == 0 && batch.rows > 1)) {
        refuse(std::string(name) + " has a stride of 0: an output needs an element of its own for every position");
    }
}

/// A column of flags is u8.
inline void check_flags(column const& c, char const* name) {
    if (c && c.type != dtype::u8) {
        refuse(std::string(name) + " has dtype " + name_of(c.type) + ", must be u8");
    }
}

inline void check_version(token_batch const& batch) {
    if (batch.size() > 0 && !batch.version) {
        refuse("token_batch.version is absent, but the objective needs it");
    }
    if (batch.size() > 0 && batch.version.type != dtype::i32 && batch.version.type != dtype::i64) {
        refuse(std::string("token_batch.version has dtype ") + name_of(batch.version.type) + ", must be i32 or i64");
    }
    require(batch.newest_version() >= 0, "token_batch.policy_version", batch.newest_version(), ">= 0");
}

/// Segments cut rows and nothing else.
inline void check_segments(token_batch const& batch) {
    if (!batch.segments) {
        return;
    }
    if (!batch.packed()) {
        refuse("token_batch.segments cut packed rows, but the batch is padded");
    }
    if (batch.segment_count < batch.rows) {
        require(false, "token_batch.segment_count", batch.segment_count, "at least token_batch.rows = " + text(batch.rows));
    }
    require(batch.segments[0] == 0, "token_batch.segments[0]", batch.segments[0], "0");
    std::int64_t row = 0;
    for (std::int64_t segment = 1; segment <= batch.segment_count; ++segment) {
        std::int64_t const begin = batch.segments[segment - 1];
        std::int64_t const end = batch.segments[segment];
        while (row < batch.rows && batch.offsets[row + 1] <= begin) {
            ++row;
        }
        std::int64_t const row_end = row < batch.rows ? batch.offsets[row + 1] : batch.tokens;
        if (end < begin || end > row_end) {
            require(false, "token_batch.segments[" + text(segment) + "]", end,
                    "at least the one before it and at most the end of its row, " + text(row_end));
        }
    }
    if (batch.segments[batch.segment_count] != batch.tokens) {
        require(false, "token_batch.segments[segment_count]", batch.segments[batch.segment_count],
                "token_batch.tokens = " + text(batch.tokens));
    }
}

/// Shape, mask and every column that `needs` names.
inline void check_batch(token_batch const& batch, std::uint32_t needs) {
    check_shape(batch);
    for (int i = 0; i < input_count; ++i) {
        auto const which = static_cast<input>(i);
        if (which != input::staleness && is_needed(which, needs)) {
            check_column(column_of(batch, which), name_of(which), batch);
        }
    }
    if ((needs & reads_version) != 0) {
        check_version(batch);
    }
    check_flags(batch.mask, "token_batch.mask");
    if ((needs & reads_keep) != 0) {
        check_flags(batch.keep, "token_batch.keep");
        if (batch.size() > 0 && !batch.keep) {
            refuse("token_batch.keep is absent, but the objective needs it");
        }
    }
    if ((needs & has_sequences) != 0) {
        check_segments(batch);
    }
}

}  // namespace detail
ASYNCRL_END_NAMESPACE
