// SPDX-License-Identifier: Apache-2.0
/// @file A batch of tokens as non-owning columns, each with a number type and strides: padded [rows, tokens], or packed with
/// row offsets. The same description serves host and device memory.
#pragma once

#include <asyncrl/config.hpp>

#include <bit>
#include <cstdint>
#include <limits>

ASYNCRL_BEGIN_NAMESPACE

/// How the numbers of a column are stored. Losses compute in float whatever the storage, and in double where all are f64.
enum class dtype : std::uint8_t { f32, f64, bf16, f16, u8, i32, i64 };

/// Names the dtype of an element type; specialise it for a framework's own bfloat16 or half type.
template <typename Element>
struct dtype_of;
template <>
struct dtype_of<float> {
    static constexpr dtype value = dtype::f32;
};
template <>
struct dtype_of<double> {
    static constexpr dtype value = dtype::f64;
};
template <>
struct dtype_of<std::uint8_t> {
    static constexpr dtype value = dtype::u8;
};
template <>
struct dtype_of<std::int32_t> {
    static constexpr dtype value = dtype::i32;
};
template <>
struct dtype_of<std::int64_t> {
    static constexpr dtype value = dtype::i64;
};
template <>
struct dtype_of<bool> {
    static constexpr dtype value = dtype::u8;
};

/// An input column. Element (row b, position t) stands at data[b * row_stride + t * token_stride], strides in elements;
/// in a padded batch t counts within the row, in a packed one over the whole batch. A stride of 0 repeats the element.
struct column {
    void const* data = nullptr;  ///< null: the column is absent
    dtype type = dtype::f32;
    std::int64_t row_stride = 0;
    std::int64_t token_stride = 0;

    [[nodiscard]] ASYNCRL_HOST_DEVICE constexpr explicit operator bool() const { return data != nullptr; }
};

/// A column to write, addressed like `column`. Every element of the batch is written, padding included.
struct output_column {
    void* data = nullptr;  ///< null: not wanted
    dtype type = dtype::f32;
    std::int64_t row_stride = 0;
    std::int64_t token_stride = 0;

    [[nodiscard]] ASYNCRL_HOST_DEVICE constexpr explicit operator bool() const { return data != nullptr; }
    [[nodiscard]] constexpr operator column() const { return {data, type, row_stride, token_stride}; }  // NOLINT: a view of it
};

/// One element per token: dense rows of `row_stride` elements in a padded batch, 0 in a packed one.
template <typename Element>
[[nodiscard]] constexpr column per_token(Element const* data, std::int64_t row_stride = 0) {
    return {data, dtype_of<Element>::value, row_stride, 1};
}
template <typename Element>
[[nodiscard]] constexpr output_column per_token(Element* data, std::int64_t row_stride = 0) {
    return {data, dtype_of<Element>::value, row_stride, 1};
}

/// One element per row, the same for all its tokens.
template <typename Element>
[[nodiscard]] constexpr column per_sequence(Element const* data) {
    return {data, dtype_of<Element>::value, 1, 0};
}

/// A packed batch's row offsets (cu_seqlens): rows + 1 ascending numbers, the first 0 and the last the count of tokens.
class row_offsets {
  public:
    constexpr row_offsets() = default;
    constexpr row_offsets(std::int32_t const* offsets) : narrow_(offsets) {}  // NOLINT: either width is meant to convert
    constexpr row_offsets(std::int64_t const* offsets) : wide_(offsets) {}    // NOLINT

    [[nodiscard]] ASYNCRL_HOST_DEVICE constexpr explicit operator bool() const {
        return narrow_ != nullptr || wide_ != nullptr;
    }
    [[nodiscard]] ASYNCRL_HOST_DEVICE constexpr std::int64_t operator[](std::int64_t row) const {
        return wide_ != nullptr ? wide_[row] : narrow_[row];
    }
    /// The numbers where they lie, one for each row and one more.
    [[nodiscard]] constexpr column in_memory() const {
        return wide_ != nullptr ? column{wide_, dtype::i64, 0, 1} : column{narrow_, dtype::i32, 0, 1};
    }

  private:
    std::int32_t const* narrow_ = nullptr;
    std::int64_t const* wide_ = nullptr;
};

/// The columns of one batch. Nothing is owned or copied; inputs must not overlap the outputs of a call.
///
/// Log-probs are those of the sampled tokens, in nats: of the new policy (being optimised), the old one (proximal: the
/// trainer's at the start of the step) and the rollout policy (as the engine that sampled reported them). A column that the
/// objective does not need may be absent; an absent one is never guessed.
struct token_batch {
    std::int64_t rows = 0;    ///< sequences
    std::int64_t tokens = 0;  ///< padded: positions per row; packed: tokens in all
    row_offsets offsets{};    ///< packed only

    column log_prob{};
    column old_log_prob{};
    column rollout_log_prob{};
    column advantage{};  ///< per token or per sequence
    column mask{};       ///< u8, nonzero: the token is active; absent: all are

    // Read by the parts that say so; f32, bf16 or f16 (f64 where all are), unless another type is named.
    column anchor_log_prob{};         ///< anchor_given: of the policy that the ratio is taken against
    column reference_log_prob{};      ///< KL penalties: of the reference policy
    column sync_log_prob{};           ///< lag_gate, engine_gate: the trainer's, of the weights that the rollout policy had
    column log_kept_mass{};           ///< kept_mass: log of the probability that the sampler's truncation kept, <= 0
    column weight{};                  ///< given_weight
    column keep{};                    ///< given_gate: u8, zero rejects the token
    column divergence{};              ///< divergence_gate
    column score{};                   ///< topr_by_score
    column version{};                 ///< i32 or i64: version of the policy that sampled the token; negative or newer: unknown
    std::int64_t policy_version = 0;  ///< version of the new policy: what staleness is counted from
    std::int64_t const* policy_version_at = nullptr;  ///< if set, read there in its place, in the memory of the columns

    /// Packed batches: cuts rows into segments, such as turns or runs of one version; segment_count + 1 ascending positions
    /// that contain all of `offsets`. Parts that speak of sequences then mean segments; reductions still mean rows.
    row_offsets segments{};
    std::int64_t segment_count = 0;

    /// In rollout_log_prob, the value that stands for "the engine gave none": the token trains with weight 1 and is counted.
    double unscored = std::numeric_limits<double>::quiet_NaN();

    [[nodiscard]] ASYNCRL_HOST_DEVICE constexpr bool packed() const { return static_cast<bool>(offsets); }
    /// The version of the new policy, where the columns can be read.
    [[nodiscard]] ASYNCRL_HOST_DEVICE constexpr std::int64_t newest_version() const {
        return policy_version_at != nullptr ? *policy_version_at : policy_version;
    }
    /// Positions in all, padding included.
    [[nodiscard]] ASYNCRL_HOST_DEVICE constexpr std::int64_t size() const { return packed() ? tokens : rows * tokens; }
};

namespace detail {

/// token_batch::unscored as the rollout column can hold it: -9999 is -9984 in bfloat16.
[[nodiscard]] constexpr double stored_sentinel(token_batch const& batch) {
    dtype const type = batch.rollout_log_prob.type;
    auto const bits = std::bit_cast<std::uint32_t>(static_cast<float>(batch.unscored));
    bool const not_a_number = (bits & 0x7fffffffU) > 0x7f800000U;
    if (type == dtype::f64 || not_a_number) {
        return batch.unscored;
    }
    std::uint32_t const unit = type == dtype::bf16 ? 0x10000U : type == dtype::f16 ? 0x2000U : 1U;  // to nearest, ties to even
    std::uint32_t const half = unit == 1U ? 0U : unit / 2 - 1 + ((bits & unit) != 0 ? 1U : 0U);
    return static_cast<double>(std::bit_cast<float>((bits + half) & ~(unit - 1U)));
}

}  // namespace detail

ASYNCRL_END_NAMESPACE
