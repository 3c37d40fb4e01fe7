// SPDX-License-Identifier: Apache-2.0
/// @file The checks of a call's arguments on the host: once for the call, which only asks whether there is a fault, and for
/// the function that says in words which.
#pragma once

#include <asyncrl/correction/detail/fault.hpp>
#include <asyncrl/correction/detail/footprint.hpp>
#include <asyncrl/correction/matrix.hpp>
#include <asyncrl/correction/token/inputs.hpp>
#include <asyncrl/correction/token_batch.hpp>

#include <cstddef>
#include <cstdint>

ASYNCRL_BEGIN_NAMESPACE
namespace gpu {

/// Scratch memory of a call, owned by the caller: device memory, aligned to 256 bytes (as cudaMalloc gives it). A call keeps
/// nothing in it; calls that run at the same time need one each.
struct workspace {
    void* data = nullptr;
    std::size_t bytes = 0;
};

namespace detail {

using namespace ::asyncrl::detail;

[[nodiscard]] inline bool is_floating(dtype type) {
    return type == dtype::f32 || type == dtype::f64 || type == dtype::bf16 || type == dtype::f16;
}
[[nodiscard]] inline bool is_narrow_floating(dtype type) {
    return is_floating(type) && type != dtype::f64;
}

/// The arguments of one call. What it reads and writes is noted, so that `first_fault` can look for outputs that overlap.
/// Inlined into every call, the checks would cost a .cu more of the compiler's time than its launches.
class argument_list : public inspection {
  public:
    /// Memory that a call reads or writes; nothing where it is null. Gives its place in the list, or -1.
    int reads(char const* name, void const* data, std::int64_t alignment, footprint const& bytes) {
        return note(name, data, alignment, bytes, false);
    }
    int writes(char const* name, void const* data, std::int64_t alignment, footprint const& bytes) {
        return note(name, data, alignment, bytes, true);
    }
    [[gnu::noinline]] int reads(char const* name, column const& c, token_batch const& batch) {
        return reads(name, c.data, bytes_of(c.type), footprint_of(c, batch));
    }
    int writes(char const* name, output_column const& c, token_batch const& batch) {
        return writes(name, c.data, bytes_of(c.type), footprint_of(c, batch));
    }
    /// `count` elements of a column, `stride` apart.
    int reads(char const* name, column const& c, std::int64_t count, std::int64_t stride) {
        return reads(name, c.data, bytes_of(c.type), {c.data, bytes_of(c.type), {count, stride}});
    }
    int writes(char const* name, output_column const& c, std::int64_t count, std::int64_t stride) {
        return writes(name, c.data, bytes_of(c.type), {c.data, bytes_of(c.type), {count, stride}});
    }
    int reads(char const* name, matrix const& m) { return reads(name, m.data, bytes_of(m.type), footprint_of(m)); }
    int writes(char const* name, output_matrix const& m) { return writes(name, m.data, bytes_of(m.type), footprint_of(m)); }
    /// Totals or a report.
    template <typename Numbers>
    int reads_numbers(char const* name, Numbers const* numbers) {
        require_pointer(name, numbers);
        return reads(name, numbers, alignof(Numbers), footprint_of(numbers, sizeof(Numbers)));
    }
    template <typename Numbers>
    int writes_numbers(char const* name, Numbers const* numbers) {
        require_pointer(name, numbers);
        return writes(name, numbers, alignof(Numbers), footprint_of(numbers, sizeof(Numbers)));
    }
    /// `sized_by`: what says how many bytes are needed.
    [[gnu::noinline]] void uses(workspace const& scratch, std::size_t bytes, char const* sized_by) {
        require_pointer("workspace.data", scratch.data);
        require(scratch.bytes >= bytes, "workspace.bytes", static_cast<std::int64_t>(scratch.bytes),
                {"at least ", static_cast<std::int64_t>(bytes), sized_by});
        writes("workspace.data", scratch.data, 256, footprint_of(scratch.data, bytes));
    }

    /// Shape, mask and every column that `needs` names.
    [[gnu::noinline]] void inspect_batch(token_batch const& batch, std::uint32_t needs) {
        inspect_shape(*this, batch);
        if (!passed() || batch.size() == 0) {
            return;
        }
        for (int i = 0; i < input_count; ++i) {
            auto const which = static_cast<input>(i);
            if (which != input::staleness && is_needed(which, needs)) {
                inspect_input(name_of(which), column_of(batch, which), batch);
            }
        }
        if ((needs & reads_version) != 0) {
            inspect_version(*this, batch);
            reads("token_batch.version", batch.version, batch);
            reads("token_batch.policy_version_at", per_token(batch.policy_version_at), 1, 1);
        }
        inspect_masks(batch);
        if ((needs & reads_keep) != 0) {
            require_present(static_cast<bool>(batch.keep), "token_batch.keep", "the objective needs it");
            inspect_flags(*this, batch.keep, "token_batch.keep");
            reads("token_batch.keep", batch.keep, batch);
        }
        if ((needs & has_sequences) != 0) {
            inspect_segments(*this, batch);
            reads("token_batch.segments", batch.segments.in_memory(), batch.segment_count + 1, 1);
        }
    }
    /// Offsets and mask, which every call reads.
    void inspect_masks(token_batch const& batch) {
        reads("token_batch.offsets", batch.offsets.in_memory(), batch.rows + 1, 1);
        inspect_flags(*this, batch.mask, "token_batch.mask");
        reads("token_batch.mask", batch.mask, batch);
    }
    [[gnu::noinline]] void inspect_input(char const* name, column const& c, token_batch const& batch) {
        require_present(static_cast<bool>(c), name, "the objective needs it");
        require_type(is_narrow_floating(c.type), c.type, name, "f32, bf16 or f16");
        reads(name, c, batch);
    }
    /// One that may be absent.
    [[gnu::noinline]] void inspect_output(char const* name, output_column const& c, token_batch const& batch) {
        if (c) {
            require_type(is_narrow_floating(c.type), c.type, name, "f32, bf16 or f16");
            inspect_strides(*this, c, name, batch);
            writes(name, c, batch);
        }
    }
    /// In device memory.
    void require_pointer(char const* name, void const* data) {
        if (data == nullptr) {
            report({.what = fault::kind::null, .name = name});
        }
    }
    /// Both of a kind: doubles, or numbers of less.
    void require_kind(char const* name, dtype type, char const* other, dtype other_type, char const* sentence) {
        if (!is_floating(type) || (type == dtype::f64) != (other_type == dtype::f64)) {
            report({.what = fault::kind::type_beside,
                    .type = type,
                    .other_type = other_type,
                    .name = name,
                    .other = other,
                    .must = sentence});
        }
    }
    void refuse_overlap(char const* name, char const* other, char const* behind = "") {
        report({.what = fault::kind::overlap, .name = name, .other = other, .must = behind});
    }

    /// The output at this place of the list lies over the input at that one, as it may.
    void allow_in_place(int output, int in) {
        if (output >= 0) {
            noted_[output].over = in;
        }
    }

    /// The first fault; where there is none else, an output that overlaps an input or another output. What cannot be told
    /// from addresses and strides is not refused.
    [[nodiscard, gnu::noinline]] fault first_fault() {
        for (int i = 0; i < count_ && passed(); ++i) {
            for (int j = 0; j < i; ++j) {
                noted const& a = noted_[i];
                noted const& b = noted_[j];
                if ((a.written || b.written) && a.over != j && b.over != i &&
                    a.bytes.to(b.bytes) == footprint::relation::overlap) {
                    refuse_overlap(a.written ? a.name : b.name, a.written ? b.name : a.name);
                }
            }
        }
        return found();
    }

  private:
    struct noted {
        char const* name;
        footprint bytes;
        bool written;
        int over = -1;
    };

    [[gnu::noinline]] int note(char const* name, void const* data, std::int64_t alignment, footprint const& bytes,
                               bool written) {
        if (data == nullptr || !passed()) {
            return -1;
        }
        if (address_of(data) % static_cast<std::uintptr_t>(alignment) != 0) {
            report({.what = fault::kind::no_alignment,
                    .name = name,
                    .integer = static_cast<std::int64_t>(address_of(data)),
                    .must = {"a multiple of ", alignment}});
        }
        if (!passed() || count_ == most) {
            return -1;
        }
        noted_[count_] = {name, bytes, written};
        return count_++;
    }

    static constexpr int most = 24;
    noted noted_[most]{};
    int count_ = 0;
};

}  // namespace detail
}  // namespace gpu
ASYNCRL_END_NAMESPACE
