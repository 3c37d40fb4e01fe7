// SPDX-License-Identifier: Apache-2.0
/// @file What must hold of a batch before a host call touches anything. Reads no column, only shapes and offsets.
#pragma once

#include <asyncrl/correction/detail/fault.hpp>
#include <asyncrl/correction/token/inputs.hpp>
#include <asyncrl/correction/token/token.hpp>
#include <asyncrl/correction/token_batch.hpp>
#include <asyncrl/error.hpp>

#include <cstdint>
#include <string>

ASYNCRL_BEGIN_NAMESPACE
namespace detail {

[[noreturn]] inline void refuse(std::string const& sentence) {
    throw std::invalid_argument("asyncrl: " + sentence);
}

/// Throws the first fault that `inspect`(inspection&, arguments...) finds.
template <typename... Parameters, typename... Arguments>
void must_pass(void (*inspect)(inspection&, Parameters...), Arguments const&... arguments) {
    inspection found;
    inspect(found, arguments...);
    if (!found.passed()) {
        refuse(sentence(found.found()));
    }
}

inline void check_shape(token_batch const& batch) {
    must_pass(inspect_shape, batch);
    if (!batch.packed()) {
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
    must_pass(inspect_strides, c, name, batch);
}

/// Segments cut rows and nothing else.
inline void check_segments(token_batch const& batch) {
    must_pass(inspect_segments, batch);
    if (!batch.segments) {
        return;
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
        must_pass(inspect_version, batch);
        require(batch.newest_version() >= 0, "token_batch.policy_version", batch.newest_version(), ">= 0");
    }
    must_pass(inspect_flags, batch.mask, "token_batch.mask");
    if ((needs & reads_keep) != 0) {
        must_pass(inspect_flags, batch.keep, "token_batch.keep");
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
