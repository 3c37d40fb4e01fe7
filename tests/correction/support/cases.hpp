// SPDX-License-Identifier: Apache-2.0
/// @file Small batches with values worked out by hand, and the ways in which each is laid out in memory.
#pragma once

#include "batches.hpp"

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

namespace support {

/// A token from its log-probs; all of them are exact in bfloat16 where the text says dyadic.
inline oracle::token token_of(double rollout, double old, double log_prob, double advantage, bool active = true) {
    oracle::token t;
    t.rollout_log_prob = rollout;
    t.old_log_prob = old;
    t.log_prob = log_prob;
    t.advantage = advantage;
    t.active = active;
    return t;
}

/// A masked token whose every number is unusable.
inline oracle::token garbage() {
    return token_of(-infinity, not_a_number, not_a_number, infinity, false);
}

/// Eight tokens in two rows, seven of them active; every number dyadic. Slot 4 is masked.
inline oracle::batch eight_slots() {
    return {
        {token_of(-1.25, -1.21875, -1.125, 1), token_of(-0.0625, -0.09375, -0.03125, 1), token_of(-3, -2.875, -2.5, 1),
         token_of(-0.625, -0.6875, -1.0625, 1), garbage()},
        {token_of(-2, -1.9375, -2.4375, -0.5), token_of(-0.3125, -0.28125, -0.1875, -0.5), token_of(-4, -3.25, -2.5, -0.5)}};
}

/// Rows of equal length, filled up with masked garbage.
inline oracle::batch padded(oracle::batch rows) {
    std::size_t longest = 0;
    for (oracle::row const& r : rows) {
        longest = std::max(longest, r.size());
    }
    for (oracle::row& r : rows) {
        r.resize(longest, garbage());
    }
    return rows;
}

/// Tokens whose policy-gradient loss is the given number: A = 1, log-prob = -loss.
inline oracle::batch rows_with_losses(std::vector<std::vector<double>> const& losses) {
    oracle::batch rows;
    for (auto const& r : losses) {
        rows.emplace_back();
        for (double const loss : r) {
            rows.back().push_back(token_of(-loss, -loss, -loss, 1));
        }
    }
    return rows;
}

struct way {
    std::string name;
    types kinds;
    layout how;
};

/// Precisions and layouts in which a hand-made batch must give the same values.
inline std::vector<way> every_way() {
    std::vector<way> ways;
    for (bool const packed : {false, true}) {
        layout plain;
        plain.packed = packed;
        layout strided = plain;
        strided.wide_offsets = true;
        strided.token_stride = 2;
        strided.row_gap = packed ? 0 : 3;
        std::string const rows = packed ? ", packed" : ", padded";
        ways.push_back({"double" + rows, types::all(dtype::f64), plain});
        ways.push_back({"double, stride 2" + rows, types::all(dtype::f64), strided});
        ways.push_back({"float" + rows, {}, plain});
        ways.push_back({"float, stride 2" + rows, {}, strided});
    }
    return ways;
}

/// The batch laid out that way.
inline oracle::batch rows_for(way const& w, oracle::batch rows) {
    return w.how.packed ? rows : padded(std::move(rows));
}

/// Values that are printed to 12 digits.
inline bool close(double got, double want, bool single) {
    double const allowed = single ? 4e-6 * std::abs(want) + 1e-7 : 1e-11 * std::abs(want) + 1e-15;
    return std::abs(got - want) <= allowed;
}

}  // namespace support
