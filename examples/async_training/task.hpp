// SPDX-License-Identifier: Apache-2.0
/// @file The task: add two numbers, answer token by token, be checked by a program.
///
/// The answer is written like on paper, lowest digit first, and closed by an end token: 47 + 85 = "2 3 1 end".
#pragma once

#include "random.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

namespace task {

inline constexpr int digits = 2;               ///< of each operand, at most
inline constexpr int end_token = 10;           ///< closes an answer
inline constexpr int blank = 11;               ///< a place of the context that holds nothing; the policy cannot write it
inline constexpr int vocabulary = 11;          ///< what the policy can write: ten digits and the end
inline constexpr int max_tokens = digits + 2;  ///< the longest right answer: digits + 1 digits and the end
inline constexpr int context_places = 2 * digits + max_tokens - 1;

struct problem {
    int left = 0;
    int right = 0;
};

/// What the policy sees when it writes a token: both operands, lowest digit first, and the answer so far.
using context = std::array<std::uint8_t, context_places>;

inline context prompt(problem const& p) {
    context c;
    c.fill(blank);
    for (int i = 0, left = p.left, right = p.right; i < digits; ++i, left /= 10, right /= 10) {
        c[static_cast<std::size_t>(2 * i)] = static_cast<std::uint8_t>(left % 10);
        c[static_cast<std::size_t>(2 * i + 1)] = static_cast<std::uint8_t>(right % 10);
    }
    return c;
}

/// Puts the token written at `position` into the context of the next one.
inline void append(context& c, int position, int token) {
    c[static_cast<std::size_t>(2 * digits + position)] = static_cast<std::uint8_t>(token);
}

using answer = std::array<std::uint8_t, max_tokens>;

/// The right answer, padded with blanks.
inline answer solution(problem const& p) {
    answer a;
    a.fill(blank);
    std::size_t length = 0;
    for (int sum = p.left + p.right; length == 0 || sum > 0; sum /= 10) {
        a[length++] = static_cast<std::uint8_t>(sum % 10);
    }
    a[length] = end_token;
    return a;
}

/// 1 if every token up to the end is right, otherwise 0.
inline float reward(problem const& p, answer const& given) {
    return given == solution(p) ? 1.0F : 0.0F;
}

/// One problem in eight is never trained on.
inline bool is_held_out(problem const& p) {
    return (static_cast<std::uint32_t>(p.left * 1000 + p.right) * 2654435761U) >> 29 == 0;
}

/// Draws a problem of the training set or of the held-out set. Each operand has 1 to `digits` digits with equal chance.
inline problem draw(random_stream& random, bool held_out) {
    auto const operand = [&random] {
        int bound = 10;
        for (int more = random.below(digits); more > 0; --more) {
            bound *= 10;
        }
        return random.below(bound);
    };
    for (;;) {
        problem const p{operand(), operand()};
        if (is_held_out(p) == held_out) {
            return p;
        }
    }
}

}  // namespace task
