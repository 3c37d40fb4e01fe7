// SPDX-License-Identifier: Apache-2.0
/// @file What the routing replay calls read, are told, write and report, on the host and on the GPU.
#pragma once

#include <asyncrl/config.hpp>
#include <asyncrl/correction/matrix.hpp>
#include <asyncrl/correction/token_batch.hpp>

#include <cstdint>

ASYNCRL_BEGIN_NAMESPACE

inline constexpr std::int64_t most_experts = 4096;        ///< of one layer
inline constexpr std::int64_t most_chosen_experts = 128;  ///< of one token

/// How gates come from the logits z of the chosen experts.
enum class gate_rule : std::uint8_t {
    softmax_of_chosen,  ///< exp z / sum of exp z over the chosen: a softmax after the top-k, or one that is renormalised
    softmax_of_all,     ///< exp z / sum of exp z over all experts: gates do not add up to 1
    sigmoid,            ///< s / (sum of s over the chosen + 1e-20) with s = 1 / (1 + exp(-z)), as in DeepSeek-V3
};

/// Experts [rows, chosen] by index; row i stands at data[i * row_stride]. Any order, none twice; -1 throughout: not recorded.
struct expert_indices {
    std::int32_t const* data = nullptr;
    std::int64_t rows = 0;
    std::int64_t chosen = 0;
    std::int64_t row_stride = 0;
};

struct routing_options {
    /// f32 or f64, one number an expert, sigmoid only: added to s where the router selects, never to a gate.
    column selection_bias{};
};

struct routing_outputs {
    output_matrix gates{};  ///< [rows, chosen], in the order of the experts
    /// The experts that the gates are of, rows `experts_stride` apart: the recorded ones, or by descending score. Null: not
    /// wanted.
    std::int32_t* experts = nullptr;
    std::int64_t experts_stride = 0;
};

struct routing_report {
    std::int64_t replayed = 0;     ///< rows with recorded experts
    std::int64_t fallen_back = 0;  ///< rows without, routed by their own top-k
    std::int64_t differing = 0;    ///< replayed rows whose experts, as a set, are not their own top-k
    std::int64_t nonfinite = 0;    ///< rows with a NaN or +infinity, or no softmax: they are NaN
    std::int64_t first_nonfinite = -1;

    /// Of the replayed rows; 0 where there is none.
    [[nodiscard]] double differing_share() const {
        return replayed > 0 ? static_cast<double>(differing) / static_cast<double>(replayed) : 0;
    }
};

ASYNCRL_END_NAMESPACE
