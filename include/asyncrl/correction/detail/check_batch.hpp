// SPDX-License-Identifier: Apache-2.0
/// @file What must hold of a batch before a host call touches anything. Reads no column, only shapes and offsets.
#pragma once

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
    require(batch.offsets[0] == 0, "token_batch.offsets[0]", batch.offsets[0], "0");
    for (std::int64_t row = 0; row < batch.rows; ++row) {
        require(batch.offsets[row + 1] >= batch.offsets[row], "token_batch.offsets[" + text(row + 1) + "]",
                batch.offsets[row + 1], "at least the offset before it, " + text(batch.offsets[row]));
    }
    require(batch.offsets[batch.rows] == batch.tokens, "token_batch.offsets[rows]", batch.offsets[batch.rows],
            "token_batch.tokens = " + text(batch.tokens));
}

[[nodiscard]] inline char const* name_of(dtype type) {
    constexpr char const* names[] = {"f32", "f64", "bf16", "f16", "u8"};
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
    if (c.type == dtype::u8 || (c.type == dtype::f64) != (batch.log_prob.type == dtype::f64)) {
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

/// Shape, mask and every column that `needs` names.
inline void check_batch(token_batch const& batch, std::uint32_t needs) {
    check_shape(batch);
    check_column(batch.log_prob, "token_batch.log_prob", batch);
    check_column(batch.advantage, "token_batch.advantage", batch);
    if ((needs & reads_old) != 0) {
        check_column(batch.old_log_prob, "token_batch.old_log_prob", batch);
    }
    if ((needs & reads_rollout) != 0) {
        check_column(batch.rollout_log_prob, "token_batch.rollout_log_prob", batch);
    }
    if (batch.mask && batch.mask.type != dtype::u8) {
        refuse(std::string("token_batch.mask has dtype ") + name_of(batch.mask.type) + ", must be u8");
    }
}

}  // namespace detail
ASYNCRL_END_NAMESPACE
