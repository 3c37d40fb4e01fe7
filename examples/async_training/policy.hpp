// SPDX-License-Identifier: Apache-2.0
/// @file The policy: a multilayer perceptron over the context (Bengio et al. 2003) that gives the next token's logits, and its
/// backward pass.
#pragma once

#include "random.hpp"
#include "task.hpp"

#include <Eigen/Core>

#include <cmath>
#include <cstdint>
#include <span>
#include <type_traits>

/// One column per token to be predicted. `Scalar` is float; the gradient check uses double.
template <typename Scalar>
class policy {
  public:
    using matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic>;
    using vector = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;

    static constexpr Eigen::Index width = 256;
    static constexpr Eigen::Index tokens = task::blank + 1;
    static constexpr Eigen::Index inputs = task::context_places * tokens;  ///< one embedding per place and token
    static constexpr Eigen::Index outputs = task::vocabulary;
    static constexpr Eigen::Index parameter_count = width * inputs + width + width * width + width + outputs * width + outputs;

    /// What the backward pass needs of the forward pass; kept by the caller, so that it is allocated once.
    struct activations {
        matrix first, second, log_probs, delta_first, delta_second;
    };

    policy() : parameters(vector::Zero(parameter_count)) {}

    explicit policy(std::uint64_t seed) : policy() {
        random_stream random(seed, stream::weights);
        auto const fill = [&random](auto&& block, double scale) {
            for (auto& weight : block.reshaped()) {
                weight = static_cast<Scalar>(scale * (2 * static_cast<double>(random.uniform()) - 1));
            }
        };
        layout<vector> all(parameters);
        fill(all.embedding, std::sqrt(3.0 / task::context_places));
        fill(all.hidden, std::sqrt(6.0 / width));
        fill(all.head, std::sqrt(3.0 / width));
    }

    /// Writes the log-probabilities of every next token, column by column; then columns of padding, which mean nothing.
    void forward(std::span<task::context const> contexts, activations& a) const {
        layout<vector const> const w(parameters);
        auto const columns = static_cast<Eigen::Index>(contexts.size());
        a.first.resize(width, padded(columns));
        for (Eigen::Index column = 0; column < columns; ++column) {
            auto sum = a.first.col(column);
            sum = w.embedding_bias;
            each_input(contexts, column, [&](Eigen::Index input) { sum += w.embedding.col(input); });
        }
        a.first.rightCols(padded(columns) - columns).setZero();
        a.first = a.first.cwiseMax(Scalar(0));
        a.second.noalias() = w.hidden * a.first;
        a.second = (a.second.colwise() + w.hidden_bias).cwiseMax(Scalar(0));
        a.log_probs.noalias() = w.head * a.second;
        a.log_probs.colwise() += w.head_bias;
        for (Eigen::Index column = 0; column < columns; ++column) {
            auto logits = a.log_probs.col(column);
            Scalar const largest = logits.maxCoeff();
            Scalar sum(0);
            for (Scalar const logit : logits) {
                sum += std::exp(logit - largest);
            }
            logits.array() -= largest + std::log(sum);
        }
    }

    /// Adds to `gradient` the gradient of a loss whose derivative by the logits is `by_logit`, shaped like the
    /// log-probabilities and 0 in the padding. Comes after forward() of the same contexts.
    void backward(std::span<task::context const> contexts, activations& a, matrix const& by_logit, vector& gradient) const {
        layout<vector const> const w(parameters);
        layout<vector> g(gradient);
        g.head.noalias() += by_logit * a.second.transpose();
        g.head_bias += by_logit.rowwise().sum();
        a.delta_second.noalias() = w.head.transpose() * by_logit;
        a.delta_second.array() *= (a.second.array() > Scalar(0)).template cast<Scalar>();
        g.hidden.noalias() += a.delta_second * a.first.transpose();
        g.hidden_bias += a.delta_second.rowwise().sum();
        a.delta_first.noalias() = w.hidden.transpose() * a.delta_second;
        a.delta_first.array() *= (a.first.array() > Scalar(0)).template cast<Scalar>();
        g.embedding_bias += a.delta_first.rowwise().sum();
        for (Eigen::Index column = 0; column < static_cast<Eigen::Index>(contexts.size()); ++column) {
            each_input(contexts, column, [&](Eigen::Index input) { g.embedding.col(input) += a.delta_first.col(column); });
        }
    }

    vector parameters;  ///< all of them in one piece, for the optimizer, the copies and the rounding

  private:
    /// Columns are computed eight at a time. Eigen sums a rest of fewer columns in another order, so without the padding a
    /// context would get other bits when it is decoded with its group than when it is trained with its batch.
    static Eigen::Index padded(Eigen::Index columns) { return (columns + 7) / 8 * 8; }

    /// The matrices inside the one vector of parameters or gradients.
    template <typename Vector>
    struct layout {
        template <typename Plain>
        using view = Eigen::Map<std::conditional_t<std::is_const_v<Vector>, Plain const, Plain>>;

        explicit layout(Vector& all)
            : embedding(all.data(), width, inputs),
              embedding_bias(embedding.data() + embedding.size(), width),
              hidden(embedding_bias.data() + width, width, width),
              hidden_bias(hidden.data() + hidden.size(), width),
              head(hidden_bias.data() + width, outputs, width),
              head_bias(head.data() + head.size(), outputs) {}

        view<matrix> embedding;
        view<vector> embedding_bias;
        view<matrix> hidden;
        view<vector> hidden_bias;
        view<matrix> head;
        view<vector> head_bias;
    };

    template <typename Function>
    static void each_input(std::span<task::context const> contexts, Eigen::Index column, Function&& function) {
        Eigen::Index place = 0;
        for (auto const token : contexts[static_cast<std::size_t>(column)]) {
            function(place++ * tokens + token);
        }
    }
};
