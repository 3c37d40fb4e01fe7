// SPDX-License-Identifier: Apache-2.0
/// @file How misuse is reported: one exception type, whose text names the argument and the value.
///
/// Outcomes that a correct program meets (no free place, a late ticket, a closed controller) are values, never exceptions.
/// Misuse throws `std::invalid_argument` before anything has been changed.
#pragma once

#include <asyncrl/config.hpp>

#include <concepts>
#include <cstdio>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

ASYNCRL_BEGIN_NAMESPACE
namespace detail {

template <typename Number>
    requires std::is_arithmetic_v<Number>
[[nodiscard]] inline std::string text(Number value) {
    if constexpr (std::integral<Number>) {
        return std::to_string(value);
    } else {
        char buffer[32];
        std::snprintf(buffer, sizeof buffer, "%.9g", static_cast<double>(value));
        return buffer;
    }
}

/// Sentences are put together where they are rare: cold code, compiled for size.
[[nodiscard]] [[gnu::cold]] inline std::string joined(std::initializer_list<std::string_view> pieces) {
    std::string all;
    for (std::string_view const piece : pieces) {
        all.append(piece);
    }
    return all;
}

[[noreturn]] [[gnu::cold]] inline void throw_misuse(std::string_view name, std::string const& value, std::string_view rule) {
    throw std::invalid_argument(joined({"asyncrl: ", name, " = ", value, ", must be ", rule}));
}

/// Throws "name = value, must be rule" unless `holds`.
template <typename Number>
inline void require(bool holds, std::string_view name, Number value, std::string_view rule) {
    if (!holds) {
        throw_misuse(name, text(value), rule);
    }
}

/// The same with a rule that is worded only where it is broken: for calls within a training loop, which must not allocate.
template <typename Number, std::invocable Rule>
inline void require(bool holds, std::string_view name, Number value, Rule rule) {
    if (!holds) {
        throw_misuse(name, text(value), rule());
    }
}

}  // namespace detail
ASYNCRL_END_NAMESPACE
