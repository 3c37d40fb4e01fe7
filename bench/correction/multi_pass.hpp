// SPDX-License-Identifier: Apache-2.0
/// @file The rival: the same loss, gradient and statistics as whole-array expressions, one pass each, as they are written
/// first.
#pragma once

#include <Eigen/Core>

#include <cmath>

namespace multi_pass {

using array = Eigen::ArrayXf;

struct batch {
    array log_prob, old_log_prob, rollout_log_prob, advantage, mask;  // mask: 1 or 0
};

struct result {
    array gradient;
    float loss, weight, weight_squared, log_mismatch, absolute_log_mismatch, k3, largest, clipped_high, clipped_low, capped;
};

/// PPO's clip with truncated importance sampling, token mean.
inline result clip_and_tis(batch const& b, float low, float high, float cap) {
    float const tokens = b.mask.sum();
    array const log_ratio = (b.log_prob - b.old_log_prob) * b.mask;
    array const ratio = log_ratio.exp();
    array const unclipped = b.advantage * ratio;
    array const clipped = b.advantage * ratio.max(1 - low).min(1 + high);
    array const surrogate = -unclipped.min(clipped) * b.mask;
    array const log_mismatch = (b.old_log_prob - b.rollout_log_prob) * b.mask;
    array const mismatch = log_mismatch.exp();
    array const weight = mismatch.min(cap) * b.mask;
    array const is_high = ((b.advantage > 0) && (ratio > 1 + high)).cast<float>() * b.mask;
    array const is_low = ((b.advantage < 0) && (ratio < 1 - low)).cast<float>() * b.mask;
    array const slope = -unclipped * (1 - is_high) * (1 - is_low) * weight;
    return {slope / tokens,
            (surrogate * weight).sum() / tokens,
            weight.sum(),
            weight.square().sum(),
            log_mismatch.sum(),
            log_mismatch.abs().sum(),
            ((mismatch - 1 - log_mismatch) * b.mask).sum(),
            log_mismatch.abs().maxCoeff(),
            is_high.sum(),
            is_low.sum(),
            ((mismatch > cap).cast<float>() * b.mask).sum()};
}

/// GSPO: rows are columns of the arrays. Sequence mean.
struct sequence_result {
    Eigen::ArrayXXf gradient;
    float loss, clipped;
};
inline sequence_result gspo(Eigen::ArrayXXf const& log_prob, Eigen::ArrayXXf const& old_log_prob,
                            Eigen::ArrayXXf const& advantage, Eigen::ArrayXXf const& mask, float low, float high) {
    Eigen::ArrayXXf const log_ratio = (log_prob - old_log_prob) * mask;
    array const tokens = mask.colwise().sum().transpose();
    array const ratio = (log_ratio.colwise().sum().transpose() / tokens).exp();
    array const mean_advantage = (advantage * mask).colwise().sum().transpose() / tokens;
    array const unclipped = mean_advantage * ratio;
    array const clipped = mean_advantage * ratio.max(1 - low).min(1 + high);
    array const binds = (clipped < unclipped).cast<float>();
    array const slope = -unclipped * (1 - binds) / (tokens * static_cast<float>(tokens.size()));
    return {mask.rowwise() * slope.transpose(), -unclipped.min(clipped).mean(), binds.sum()};
}

}  // namespace multi_pass
