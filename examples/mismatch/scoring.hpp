// SPDX-License-Identifier: Apache-2.0
/// @file Log-probs of the same tokens, as an engine that decodes computes them and as a trainer does.
#pragma once

#include "../async_training/learner.hpp"
#include "../async_training/random.hpp"
#include "../async_training/task.hpp"
#include "engine.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace detail {

inline std::size_t length_of(minibatch const& written, std::size_t answer) {
    return static_cast<std::size_t>(written.offsets[answer + 1] - written.offsets[answer]);
}
inline std::size_t answers_in(minibatch const& written) {
    return written.offsets.size() - 1;
}

}  // namespace detail

/// As a trainer does: all tokens of `batch` answers in one pass.
inline std::vector<float> score_whole(engine& by, minibatch const& written, std::size_t batch) {
    std::vector<float> log_prob(written.tokens.size());
    for (std::size_t first = 0; first < detail::answers_in(written); first += batch) {
        std::size_t const last = std::min(first + batch, detail::answers_in(written));
        auto const begin = static_cast<std::size_t>(written.offsets[first]);
        auto const end = static_cast<std::size_t>(written.offsets[last]);
        auto const& all = by.forward(std::span(written.contexts).subspan(begin, end - begin));
        for (std::size_t i = begin; i < end; ++i) {
            log_prob[i] = all(written.tokens[i], static_cast<Eigen::Index>(i - begin));
        }
    }
    return log_prob;
}

/// As an engine does: the next token of each of `batch` answers in one pass, until all have ended.
inline std::vector<float> score_stepwise(engine& by, minibatch const& written, std::size_t batch) {
    std::vector<float> log_prob(written.tokens.size());
    std::vector<std::size_t> places;
    std::vector<task::context> contexts;
    for (std::size_t first = 0; first < detail::answers_in(written); first += batch) {
        std::size_t const last = std::min(first + batch, detail::answers_in(written));
        for (std::size_t position = 0; position < task::max_tokens; ++position) {
            places.clear();
            contexts.clear();
            for (std::size_t answer = first; answer < last; ++answer) {
                if (position < detail::length_of(written, answer)) {
                    places.push_back(static_cast<std::size_t>(written.offsets[answer]) + position);
                    contexts.push_back(written.contexts[places.back()]);
                }
            }
            auto const& all = by.forward(contexts);
            for (std::size_t i = 0; i < places.size(); ++i) {
                log_prob[places[i]] = all(written.tokens[places[i]], static_cast<Eigen::Index>(i));
            }
        }
    }
    return log_prob;
}

/// Samples `answers` answers, `batch` at a time, and keeps the log-probs with which it drew.
inline minibatch sample(engine& by, std::uint64_t seed, std::size_t answers, std::size_t batch) {
    struct open_answer {
        task::problem problem;
        random_stream random;
        task::answer tokens{};
        std::array<float, task::max_tokens> log_prob{};
        int length = 0;
        bool ended = false;
    };
    minibatch written;
    for (std::size_t first = 0; first < answers; first += batch) {
        std::vector<open_answer> group;
        for (std::size_t id = first; id < std::min(first + batch, answers); ++id) {
            random_stream prompts(seed, stream::prompt, id);
            group.push_back({task::draw(prompts, false), random_stream(seed, stream::sampling, id)});
        }
        std::vector<task::context> contexts;
        for (int position = 0; position < task::max_tokens; ++position) {
            contexts.clear();
            for (open_answer const& answer : group) {
                if (!answer.ended) {
                    task::context context = task::prompt(answer.problem);
                    for (int before = 0; before < position; ++before) {
                        task::append(context, before, answer.tokens[static_cast<std::size_t>(before)]);
                    }
                    contexts.push_back(context);
                }
            }
            auto const& all = by.forward(contexts);
            Eigen::Index column = 0;
            for (open_answer& answer : group) {
                if (!answer.ended) {
                    auto const log_probs = all.col(column++);
                    int token = 0;
                    for (float left = answer.random.uniform() - std::exp(log_probs[0]);
                         left >= 0 && token + 1 < task::vocabulary;) {
                        left -= std::exp(log_probs[++token]);
                    }
                    answer.tokens[static_cast<std::size_t>(position)] = static_cast<std::uint8_t>(token);
                    answer.log_prob[static_cast<std::size_t>(position)] = log_probs[token];
                    answer.length = position + 1;
                    answer.ended = token == task::end_token;
                }
            }
        }
        for (open_answer const& answer : group) {
            written.append(answer.problem, answer.tokens, answer.length);
            written.rollout_log_prob.insert(written.rollout_log_prob.end(), answer.log_prob.begin(),
                                            answer.log_prob.begin() + answer.length);
        }
    }
    return written;
}
