// SPDX-License-Identifier: Apache-2.0
/// @file What must hold of matrices before a host call touches anything. Reads no element.
#pragma once

#include <asyncrl/correction/detail/check_batch.hpp>
#include <asyncrl/correction/matrix.hpp>
#include <asyncrl/error.hpp>

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

/// A matrix that a call writes beside or over the one it reads.
inline void check_gradient(output_matrix const& gradient, matrix const& logits, std::int64_t columns, std::string const& name) {
    require(gradient.rows == logits.rows, name + ".rows", gradient.rows, "that of the logits, " + text(logits.rows));
    require(gradient.columns == columns || gradient.rows == 0, name + ".columns", gradient.columns, text(columns));
    require(gradient.row_stride >= gradient.columns || gradient.rows <= 1, name + ".row_stride", gradient.row_stride,
            "at least " + name + ".columns, " + text(gradient.columns));
    if (gradient.rows > 0 && gradient.data == nullptr) {
        refuse(name + ".data is absent");
    }
    if (gradient.type == dtype::u8 || (gradient.type == dtype::f64) != (logits.type == dtype::f64)) {
        refuse(name + " has dtype " + name_of(gradient.type) + ", but the logits have " + name_of(logits.type) +
               ": both are f64, or each is f32, bf16 or f16");
    }
    if (gradient.rows > 0 && gradient.data == logits.data) {
        if (gradient.type != logits.type) {
            refuse(name + " lies in the logits, but has dtype " + name_of(gradient.type) + " and not " + name_of(logits.type));
        }
        require(gradient.row_stride == logits.row_stride || gradient.rows == 1, name + ".row_stride", gradient.row_stride,
                "that of the logits in which it lies, " + text(logits.row_stride));
    }
}

}  // namespace detail
ASYNCRL_END_NAMESPACE
