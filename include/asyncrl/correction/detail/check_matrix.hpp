// SPDX-License-Identifier: Apache-2.0
/// @file What must hold of matrices before a host call touches anything. Reads no element.
#pragma once

#include <asyncrl/correction/detail/check_batch.hpp>
#include <asyncrl/correction/matrix.hpp>
#include <asyncrl/error.hpp>

#include <cstdint>
#include <string>

ASYNCRL_BEGIN_NAMESPACE
namespace detail {

inline void check_logits(matrix const& logits) {
    require(logits.rows >= 0, "logits.rows", logits.rows, ">= 0");
    require(logits.columns >= 0 && (logits.columns > 0 || logits.rows == 0), "logits.columns", logits.columns, ">= 1");
    if (logits.rows > 0 && logits.data == nullptr) {
        refuse("logits.data is absent");
    }
    if (logits.type == dtype::u8) {
        refuse("logits have dtype u8, must be f32, f64, bf16 or f16");
    }
}

/// A matrix of `columns` numbers for each row of logits. Texts that are put together are made only to be thrown: they allocate.
inline void check_matrix(matrix const& m, matrix const& logits, std::int64_t columns, char const* name) {
    if (m.rows != logits.rows) {
        require(false, std::string(name) + ".rows", m.rows, "that of the logits, " + text(logits.rows));
    }
    if (m.columns != columns && m.rows > 0) {
        require(false, std::string(name) + ".columns", m.columns, text(columns));
    }
    if (m.rows > 0 && m.data == nullptr) {
        refuse(std::string(name) + ".data is absent");
    }
    if (m.type == dtype::u8 || (m.type == dtype::f64) != (logits.type == dtype::f64)) {
        refuse(std::string(name) + " has dtype " + name_of(m.type) + ", but the logits have " + name_of(logits.type) +
               ": both are f64, or each is f32, bf16 or f16");
    }
}

/// The same for one that a call writes, beside the logits or over them.
inline void check_output_matrix(output_matrix const& m, matrix const& logits, std::int64_t columns, char const* name) {
    check_matrix(m, logits, columns, name);
    if (m.row_stride < m.columns && m.rows > 1) {
        require(false, std::string(name) + ".row_stride", m.row_stride,
                "at least " + std::string(name) + ".columns, " + text(m.columns));
    }
    if (m.rows == 0 || m.data != logits.data) {
        return;
    }
    if (m.type != logits.type) {
        refuse(std::string(name) + " lies in the logits, but has dtype " + name_of(m.type) + " and not " +
               name_of(logits.type));
    }
    if (m.row_stride != logits.row_stride && m.rows > 1) {
        require(false, std::string(name) + ".row_stride", m.row_stride,
                "that of the logits in which it lies, " + text(logits.row_stride));
    }
}

}  // namespace detail
ASYNCRL_END_NAMESPACE
