// SPDX-License-Identifier: Apache-2.0
/// @file Every loss of these tests once more, from the formulas: plain doubles, one token after the other, `if` and std::exp.
/// Shares nothing with the library, not even the numbers of the flags.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace oracle {

enum class surrogate { policy_gradient, ppo_clip };
enum class weight { none, importance, truncated, masked };
enum class reduction { token_mean, token_sum, sequence_mean_token_mean, sequence_mean_token_sum };

struct method {
    surrogate loss = surrogate::ppo_clip;
    double clip_low = 0.2;
    double clip_high = 0.2;
    weight correction = weight::none;
    double cap = 2;
    double low = 0.5;
    double high = 5;
    reduction reduce = reduction::token_mean;
    bool over_kept = false;
    double constant = 1;

    [[nodiscard]] bool reads_old() const { return loss == surrogate::ppo_clip || correction != weight::none; }
    [[nodiscard]] bool reads_rollout() const { return correction != weight::none; }
};

struct token {
    bool active = true;
    double log_prob = 0;
    double old_log_prob = 0;
    double rollout_log_prob = 0;
    double advantage = 0;
    bool scored = true;
};
using row = std::vector<token>;
using batch = std::vector<row>;

inline constexpr unsigned high = 1, low = 2, capped = 4, rejected = 8, bad = 128, unscored = 256;

struct answer {
    double loss = 0;  ///< of the token, before the reduction
    double gradient = 0;
    double weight = 0;
    bool finite = false;  ///< active, and all that the method reads is finite
    bool kept = false;
    unsigned flags = 0;
    double log_ratio = 0;
    double log_mismatch = 0;
    double raw_weight = 0;
};

/// `single`: differences and bounds are rounded to float, as a loop over floats sees them; everything else stays double.
inline double rounded(double x, bool single) {
    return single ? static_cast<double>(static_cast<float>(x)) : x;
}

inline answer judge(method const& m, token const& t, bool single) {
    answer a;
    if (!t.active) {
        return a;
    }
    if (m.reads_rollout() && !t.scored) {
        a.flags |= unscored;
    }
    a.finite = std::isfinite(t.log_prob) && std::isfinite(t.advantage) && (!m.reads_old() || std::isfinite(t.old_log_prob)) &&
               (!m.reads_rollout() || !t.scored || std::isfinite(t.rollout_log_prob));
    if (!a.finite) {
        a.flags |= bad;
        a.kept = m.correction != weight::masked;
        return a;
    }

    if (m.reads_rollout()) {
        a.log_mismatch = t.scored ? rounded(t.old_log_prob - t.rollout_log_prob, single) : 0;
        a.raw_weight = std::exp(a.log_mismatch);
    }
    a.kept = true;
    a.weight = 1;
    unsigned weight_flags = 0;
    if (m.correction == weight::importance) {
        a.weight = a.raw_weight;
    } else if (m.correction == weight::truncated) {
        bool const over = a.log_mismatch > rounded(std::log(m.cap), single);
        a.weight = over ? m.cap : a.raw_weight;
        weight_flags = over ? capped : 0;
    } else if (m.correction == weight::masked) {
        a.kept = a.log_mismatch >= rounded(std::log(m.low), single) && a.log_mismatch <= rounded(std::log(m.high), single);
        a.weight = a.kept ? a.raw_weight : 0;
        weight_flags = a.kept ? 0 : rejected;
    }

    if (m.loss == surrogate::ppo_clip) {
        a.log_ratio = rounded(t.log_prob - t.old_log_prob, single);
    }
    if (!(t.advantage > 0 || t.advantage < 0)) {
        return a;  // no loss, no gradient, no flag
    }
    a.flags |= weight_flags;

    double loss = 0;
    double gradient = 0;
    if (m.loss == surrogate::policy_gradient) {
        loss = -t.advantage * t.log_prob;
        gradient = -t.advantage;
    } else {
        double const ratio = std::exp(a.log_ratio);
        bool const clipped_high = t.advantage > 0 && a.log_ratio > rounded(std::log1p(m.clip_high), single);
        bool const clipped_low = t.advantage < 0 && a.log_ratio < rounded(std::log1p(-m.clip_low), single);
        if (clipped_high) {
            loss = -t.advantage * (1 + m.clip_high);
            a.flags |= high;
        } else if (clipped_low) {
            loss = -t.advantage * (1 - m.clip_low);
            a.flags |= low;
        } else {
            loss = -t.advantage * ratio;
            gradient = -t.advantage * ratio;
        }
    }
    if (a.kept) {
        a.loss = a.weight * loss;
        a.gradient = a.weight * gradient;
    }
    return a;
}

using answers = std::vector<std::vector<answer>>;

inline answers judge(method const& m, batch const& rows, bool single) {
    answers all;
    for (row const& r : rows) {
        all.emplace_back();
        for (token const& t : r) {
            all.back().push_back(judge(m, t, single));
        }
    }
    return all;
}

struct counts {
    std::int64_t tokens = 0;
    std::int64_t sequences = 0;
    std::int64_t kept_tokens = 0;
    std::int64_t kept_sequences = 0;
};

inline counts count(batch const& rows, answers const& all) {
    counts c;
    for (std::size_t b = 0; b < rows.size(); ++b) {
        std::int64_t active = 0;
        std::int64_t kept = 0;
        for (std::size_t t = 0; t < rows[b].size(); ++t) {
            active += rows[b][t].active ? 1 : 0;
            kept += rows[b][t].active && all[b][t].kept ? 1 : 0;
        }
        c.tokens += active;
        c.kept_tokens += kept;
        c.sequences += active > 0 ? 1 : 0;
        c.kept_sequences += kept > 0 ? 1 : 0;
    }
    return c;
}

struct reduced {
    double loss = 0;
    double absolute_loss = 0;
    std::vector<std::vector<double>> gradient;
};

/// The reduced loss and its gradient, under the counts of the whole optimizer step.
inline reduced reduce(method const& m, batch const& rows, answers const& all, counts const& whole, double factor = 1) {
    reduced out;
    for (std::size_t b = 0; b < rows.size(); ++b) {
        double row_tokens = 0;
        for (std::size_t t = 0; t < rows[b].size(); ++t) {
            row_tokens += rows[b][t].active && (!m.over_kept || all[b][t].kept) ? 1 : 0;
        }
        double const tokens = static_cast<double>(m.over_kept ? whole.kept_tokens : whole.tokens);
        double const sequences = static_cast<double>(m.over_kept ? whole.kept_sequences : whole.sequences);
        double share = 0;
        if (m.reduce == reduction::token_mean && tokens > 0) {
            share = 1 / tokens;
        } else if (m.reduce == reduction::token_sum) {
            share = 1 / m.constant;
        } else if (m.reduce == reduction::sequence_mean_token_mean && sequences > 0 && row_tokens > 0) {
            share = 1 / sequences / row_tokens;
        } else if (m.reduce == reduction::sequence_mean_token_sum) {
            share = whole.sequences > 0 ? 1 / static_cast<double>(whole.sequences) / m.constant : 0;
        }
        share *= factor;
        out.gradient.emplace_back();
        for (std::size_t t = 0; t < rows[b].size(); ++t) {
            out.gradient.back().push_back(rows[b][t].active ? all[b][t].gradient * share : 0);
            out.loss += all[b][t].loss * share;
            out.absolute_loss += std::abs(all[b][t].loss * share);
        }
    }
    return out;
}

/// What a report says, added up token by token.
struct statistics {
    double weight = 0, weight_squared = 0, mismatch = 0, mismatch_squared = 0, log_mismatch = 0, absolute_log_mismatch = 0,
           k3_mismatch = 0, absolute_log_ratio = 0, largest_log_mismatch = 0, largest_log_ratio = 0;
    std::int64_t tokens = 0, kept = 0, high = 0, low = 0, capped = 0, rejected = 0, bad = 0, unscored = 0;
};

inline statistics describe(method const& m, batch const& rows, answers const& all) {
    statistics s;
    for (std::size_t b = 0; b < rows.size(); ++b) {
        for (std::size_t t = 0; t < rows[b].size(); ++t) {
            answer const& a = all[b][t];
            s.tokens += rows[b][t].active ? 1 : 0;
            s.kept += a.finite && a.kept ? 1 : 0;
            s.high += (a.flags & high) != 0 ? 1 : 0;
            s.low += (a.flags & low) != 0 ? 1 : 0;
            s.capped += (a.flags & capped) != 0 ? 1 : 0;
            s.rejected += (a.flags & rejected) != 0 ? 1 : 0;
            s.bad += (a.flags & bad) != 0 ? 1 : 0;
            s.unscored += (a.flags & unscored) != 0 ? 1 : 0;
            if (!a.finite) {
                continue;
            }
            s.weight += a.weight;
            s.weight_squared += a.weight * a.weight;
            s.absolute_log_ratio += std::abs(a.log_ratio);
            s.largest_log_ratio = std::max(s.largest_log_ratio, std::abs(a.log_ratio));
            if (m.reads_rollout()) {
                s.mismatch += a.raw_weight;
                s.mismatch_squared += a.raw_weight * a.raw_weight;
                s.log_mismatch += a.log_mismatch;
                s.absolute_log_mismatch += std::abs(a.log_mismatch);
                s.k3_mismatch += std::expm1(a.log_mismatch) - a.log_mismatch;
                s.largest_log_mismatch = std::max(s.largest_log_mismatch, std::abs(a.log_mismatch));
            }
        }
    }
    return s;
}

}  // namespace oracle
