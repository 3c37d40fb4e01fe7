// SPDX-License-Identifier: Apache-2.0
/// @file What is wrong with an argument, kept without words until somebody asks for them, and the checks that both backends
/// make of a batch. Nothing here allocates but `sentence`.
#pragma once

#include <asyncrl/correction/token_batch.hpp>
#include <asyncrl/error.hpp>

#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <string_view>

ASYNCRL_BEGIN_NAMESPACE
namespace detail {

[[nodiscard]] inline char const* name_of(dtype type) {
    constexpr char const* names[] = {"f32", "f64", "bf16", "f16", "u8", "i32", "i64"};
    return names[static_cast<int>(type)];
}

/// "must be ...": a text, or one around a number.
struct rule {
    char const* text;
    std::int64_t number = 0;
    char const* behind = nullptr;  ///< null: the number is not told

    constexpr rule(char const* only) : text(only) {}  // NOLINT: meant to convert
    constexpr rule(char const* before, std::int64_t limit, char const* after = "")
        : text(before), number(limit), behind(after) {}
};

/// The first thing wrong with a call's arguments.
struct fault {
    enum class kind : std::uint8_t {
        none,
        integer,       ///< name = integer, must be rule
        real,          ///< name = real, must be rule
        null,          ///< name = null, must point to device memory
        absent,        ///< name is absent, but rule
        type,          ///< name has dtype type, must be rule
        type_beside,   ///< name has dtype type, but other has other_type: rule
        no_alignment,  ///< name = address, must be rule
        overlap,       ///< name overlaps other, must lie apart from rule
        other,         ///< name rule
    };

    kind what = kind::none;
    dtype type = dtype::f32;
    dtype other_type = dtype::f32;
    char const* name = "";
    char const* other = "";
    std::int64_t integer = 0;
    double real = 0;
    rule must = "";

    [[nodiscard]] explicit operator bool() const { return what != kind::none; }
};

[[nodiscard]] [[gnu::cold]] inline std::string sentence(fault const& f) {
    std::string_view const name = f.name;
    bool const plural = name == "logits" || name == "targets";
    std::string const must = f.must.behind == nullptr ? f.must.text : joined({f.must.text, text(f.must.number), f.must.behind});
    switch (f.what) {
        case fault::kind::none:
            return "";
        case fault::kind::integer:
            return joined({name, " = ", text(f.integer), ", must be ", must});
        case fault::kind::real:
            return joined({name, " = ", text(f.real), ", must be ", must});
        case fault::kind::null:
            return joined({name, " = null, must point to device memory"});
        case fault::kind::absent:
            return joined({name, plural ? " are" : " is", " absent", must.empty() ? "" : ", but ", must});
        case fault::kind::type:
            return joined({name, plural ? " have" : " has", " dtype ", name_of(f.type), ", must be ", must});
        case fault::kind::type_beside:
            return joined({name, " has dtype ", name_of(f.type), ", but ", f.other, " ", name_of(f.other_type), ": ", must});
        case fault::kind::no_alignment: {
            char address[24];
            std::snprintf(address, sizeof address, "0x%llx", static_cast<unsigned long long>(f.integer));
            return joined({name, " = ", address, ", must be ", must});
        }
        case fault::kind::overlap:
            return joined({name, " overlaps ", f.other, ", must lie apart from it", must});
        case fault::kind::other:
            break;
    }
    return joined({name, " ", must});
}

/// Keeps the first fault of those it is shown.
class inspection {
  public:
    [[nodiscard]] bool passed() const { return !found_; }
    [[nodiscard]] fault const& found() const { return found_; }

    void require(bool holds, char const* name, std::int64_t value, rule const& must) {
        if (!holds) {
            report({.what = fault::kind::integer, .name = name, .integer = value, .must = must});
        }
    }
    void require(bool holds, char const* name, double value, rule const& must) {
        if (!holds) {
            report({.what = fault::kind::real, .name = name, .real = value, .must = must});
        }
    }
    void require_present(bool present, char const* name, char const* needed_by) {
        if (!present) {
            report({.what = fault::kind::absent, .name = name, .must = needed_by});
        }
    }
    void require_type(bool fits, dtype type, char const* name, char const* types) {
        if (!fits) {
            report({.what = fault::kind::type, .type = type, .name = name, .must = types});
        }
    }
    void refuse_if(bool wrong, char const* name, char const* what) {
        if (wrong) {
            report({.what = fault::kind::other, .name = name, .must = what});
        }
    }
    [[gnu::noinline]] void report(fault const& f) {
        if (!found_) {
            found_ = f;
        }
    }

  private:
    fault found_;
};

/// What of a shape can be seen without its offsets.
inline void inspect_shape(inspection& found, token_batch const& batch) {
    found.require(batch.rows >= 0, "token_batch.rows", batch.rows, ">= 0");
    found.require(batch.tokens >= 0, "token_batch.tokens", batch.tokens, ">= 0");
    if (!found.passed()) {
        return;
    }
    if (batch.packed()) {
        found.require(batch.rows > 0 || batch.tokens == 0, "token_batch.rows", batch.rows,
                      {"> 0, as token_batch.tokens = ", batch.tokens});
    } else {
        found.require(batch.tokens == 0 || batch.rows <= std::numeric_limits<std::int64_t>::max() / batch.tokens,
                      "token_batch.rows", batch.rows, "such that rows * tokens fits 64 bits");
    }
}

/// What of segments can be seen without their positions.
inline void inspect_segments(inspection& found, token_batch const& batch) {
    if (batch.segments) {
        found.refuse_if(!batch.packed(), "token_batch.segments", "cut packed rows, but the batch is padded");
        found.require(batch.segment_count >= batch.rows, "token_batch.segment_count", batch.segment_count,
                      {"at least token_batch.rows = ", batch.rows});
    }
}

/// A column of flags is u8.
inline void inspect_flags(inspection& found, column const& c, char const* name) {
    found.require_type(!c || c.type == dtype::u8, c.type, name, "u8");
}

/// The version of the new policy too, unless it lies in memory.
inline void inspect_version(inspection& found, token_batch const& batch) {
    if (batch.size() > 0) {
        found.require_present(static_cast<bool>(batch.version), "token_batch.version", "the objective needs it");
        found.require_type(batch.version.type == dtype::i32 || batch.version.type == dtype::i64, batch.version.type,
                           "token_batch.version", "i32 or i64");
    }
    found.require(batch.policy_version_at != nullptr || batch.policy_version >= 0, "token_batch.policy_version",
                  batch.policy_version, ">= 0");
}

/// No two positions share an element.
inline void inspect_strides(inspection& found, output_column const& c, char const* name, token_batch const& batch) {
    found.refuse_if((c.token_stride == 0 && batch.tokens > 1) || (!batch.packed() && c.row_stride == 0 && batch.rows > 1), name,
                    "has a stride of 0: an output needs an element of its own for every position");
}

}  // namespace detail
ASYNCRL_END_NAMESPACE
