// SPDX-License-Identifier: Apache-2.0
/// @file The policy of the training example as kernels of an accelerator would compute it: in few bits, and with sums whose
/// order depends on how many tokens are computed together.
#pragma once

#include "../async_training/policy.hpp"
#include "../async_training/precision.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

/// Products are added up in fp32 whatever the type, as tensor cores do; what is stored in between has the type.
struct arithmetic {
    precision weights = precision::fp32;
    precision activations = precision::fp32;  ///< fp32 or bf16
    bool fp32_head = false;                   ///< the last layer has fp32 weights and logits in any case
    bool fp32_partial_sums = false;           ///< of sums that are split; else they have the type of the result
};

class engine {
  public:
    engine(policy<float> const& trained, arithmetic how) : how_(how) {
        Eigen::VectorXf all = trained.parameters;
        round_weights(all, how.weights);
        float const* next = all.data();
        auto const take = [&next](auto& into, Eigen::Index rows, Eigen::Index columns) {
            into = Eigen::Map<Eigen::MatrixXf const>(next, rows, columns);
            next += rows * columns;
        };
        take(embedding_, net::width, net::inputs);
        take(embedding_bias_, net::width, 1);
        take(hidden_, net::width, net::width);
        take(hidden_bias_, net::width, 1);
        if (how.fp32_head) {
            next = trained.parameters.data() + (next - all.data());
        }
        take(head_, net::outputs, net::width);
        take(head_bias_, net::outputs, 1);
    }

    /// The log-probs of every next token, one column a context. Contexts of one call are computed together.
    Eigen::MatrixXf const& forward(std::span<task::context const> contexts) {
        auto const together = static_cast<Eigen::Index>(contexts.size());
        log_probs_.resize(net::outputs, together);
        for (Eigen::Index column = 0; column < together; ++column) {
            first_ = embedding_bias_;
            Eigen::Index place = 0;
            for (auto const token : contexts[static_cast<std::size_t>(column)]) {
                first_ += embedding_.col(place++ * net::tokens + token);
            }
            first_ = first_.cwiseMax(0.0F);
            store(first_);
            multiply(hidden_, first_, together, how_.activations == precision::bf16, second_);
            second_ = (second_ + hidden_bias_).cwiseMax(0.0F);
            store(second_);
            bool const narrow_logits = how_.activations == precision::bf16 && !how_.fp32_head;
            multiply(head_, second_, together, narrow_logits, logits_);
            logits_ += head_bias_;
            if (narrow_logits) {
                store(logits_);
            }
            float const largest = logits_.maxCoeff();
            log_probs_.col(column) = logits_.array() - (largest + std::log((logits_.array() - largest).exp().sum()));
        }
        return log_probs_;
    }

  private:
    using net = policy<float>;

    static float to_bf16(float x) {
        auto const bits = std::bit_cast<std::uint32_t>(x);
        return std::bit_cast<float>((bits + 0x7fffU + ((bits >> 16) & 1U)) & 0xffff0000U);
    }
    void store(Eigen::VectorXf& x) const {
        if (how_.activations == precision::bf16) {
            x = x.unaryExpr(&to_bf16);
        }
    }

    /// Few columns leave most of a device idle, so kernels split the sum over its units: the fewer columns, the more parts.
    static Eigen::Index parts_for(Eigen::Index together) {
        return together <= 4 ? 8 : together <= 16 ? 4 : together <= 64 ? 2 : 1;
    }

    /// PyTorch permits its kernels to store partial sums in bfloat16 unless told otherwise.
    void multiply(Eigen::MatrixXf const& weights, Eigen::VectorXf const& x, Eigen::Index together, bool narrow,
                  Eigen::VectorXf& sum) const {
        Eigen::Index const parts = parts_for(together);
        Eigen::Index const length = x.size() / parts;
        Eigen::VectorXf partial(weights.rows());
        sum.setZero(weights.rows());
        for (Eigen::Index part = 0; part < parts; ++part) {
            partial.setZero();
            for (Eigen::Index k = part * length; k < (part + 1) * length; ++k) {
                partial += weights.col(k) * x[k];
            }
            if (narrow && parts > 1 && !how_.fp32_partial_sums) {
                partial = partial.unaryExpr(&to_bf16);
            }
            sum += partial;
        }
    }

    arithmetic how_;
    Eigen::MatrixXf embedding_, hidden_, head_;
    Eigen::VectorXf embedding_bias_, hidden_bias_, head_bias_;
    Eigen::VectorXf first_, second_, logits_;
    Eigen::MatrixXf log_probs_;
};
