// SPDX-License-Identifier: Apache-2.0
/// @file How a loss call is told what to do and where to write, on either backend.
#pragma once

#include <asyncrl/correction/token_batch.hpp>

#include <cstdint>

ASYNCRL_BEGIN_NAMESPACE

/// What becomes of an active token with a needed input, or a result, that is NaN or infinite. It is counted in any case.
enum class nonfinite : std::uint8_t {
    error,      ///< host: the whole gradient is zeroed, then `nonfinite_error` is thrown; device: as drop, see the report
    drop,       ///< loss and gradient of the token are 0; counted as active, not as kept by a mask
    propagate,  ///< loss and gradient of the token are NaN
};

struct loss_options {
    std::int64_t batches = 1;  ///< micro-batches x ranks of the optimizer step: the totals must cover as many
    double scale = 1;          ///< > 0: factor of loss and gradient, such as the number of ranks that average gradients
    nonfinite on_nonfinite = nonfinite::error;
    /// If set: a further factor of the gradient alone, as automatic differentiation hands it down, read when the loss is
    /// computed, from the memory in which the columns lie.
    float const* upstream = nullptr;
};

/// What to write. Converts from the gradient alone.
struct loss_outputs {
    output_column gradient{};  ///< d(reduced loss) / d(log_prob); exactly +0 under the mask
    output_column loss{};      ///< optional: weighted loss of each token, before the reduction
    output_column weight{};    ///< optional: its effective weight
    /// Optional: token_flag bits of each position, dense in the batch's order (rows * tokens, or packed).
    std::uint16_t* flags = nullptr;

    loss_outputs() = default;
    loss_outputs(output_column to, output_column losses = {}, output_column weights = {},  // NOLINT: meant to convert
                 std::uint16_t* bits = nullptr)
        : gradient(to), loss(losses), weight(weights), flags(bits) {}
};

ASYNCRL_END_NAMESPACE
