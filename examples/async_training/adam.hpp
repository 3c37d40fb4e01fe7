// SPDX-License-Identifier: Apache-2.0
/// @file Adam (Kingma and Ba 2015) with the gradient's norm clipped first.
#pragma once

#include <Eigen/Core>

#include <cmath>

class adam {
  public:
    explicit adam(Eigen::Index parameters)
        : mean_(Eigen::VectorXf::Zero(parameters)), square_(Eigen::VectorXf::Zero(parameters)) {}

    /// One step down the gradient, which is scaled first if its norm is above `max_norm`.
    void step(Eigen::VectorXf& parameters, Eigen::VectorXf& gradient, float learning_rate, float max_norm = 1) {
        constexpr float beta1 = 0.9F;
        constexpr float beta2 = 0.99F;
        ++steps_;
        if (float const norm = gradient.norm(); norm > max_norm) {
            gradient *= max_norm / norm;
        }
        mean_ += (1 - beta1) * (gradient - mean_);
        square_.array() += (1 - beta2) * (gradient.array().square() - square_.array());
        float const rate = learning_rate / (1 - std::pow(beta1, static_cast<float>(steps_)));
        float const unbias = 1 / (1 - std::pow(beta2, static_cast<float>(steps_)));
        parameters.array() -= rate * mean_.array() / ((unbias * square_.array()).sqrt() + 1e-8F);
    }

  private:
    Eigen::VectorXf mean_;
    Eigen::VectorXf square_;
    long steps_ = 0;
};
