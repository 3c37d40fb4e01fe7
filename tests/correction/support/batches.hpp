// SPDX-License-Identifier: Apache-2.0
/// @file Batches for tests: the oracle's rows laid out in memory as a token_batch, random ones, and calls that keep all
/// outputs.
#pragma once

#include "columns.hpp"
#include "oracle.hpp"
#include "runner.hpp"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <random>
#include <vector>

namespace support {

struct types {
    dtype log_prob = dtype::f32;
    dtype old_log_prob = dtype::f32;
    dtype rollout_log_prob = dtype::f32;
    dtype advantage = dtype::f32;
    dtype output = dtype::f32;

    [[nodiscard]] static types all(dtype type) { return {type, type, type, type, type}; }
    [[nodiscard]] bool single() const { return log_prob != dtype::f64; }
};

struct layout {
    bool packed = false;
    bool wide_offsets = false;
    bool masked = true;             ///< with a mask column; without one every token must be active
    bool row_advantage = false;     ///< one advantage a row, by a token stride of 0
    std::int64_t token_stride = 1;  ///< of every per-token column; may be negative
    std::int64_t row_gap = 0;       ///< padded: elements between the end of a row and the next
    std::int64_t shift = 0;         ///< elements by which columns are off their alignment
    double unscored = not_a_number;
};

/// A batch in memory, as the library sees it and as the oracle does. Rows of a padded one have equal lengths.
class laid_out {
  public:
    laid_out(oracle::batch rows, types kinds = {}, layout how = {}) : values(std::move(rows)), kinds_(kinds), how_(how) {
        where.packed = how.packed;
        for (oracle::row const& r : values) {
            where.lengths.push_back(static_cast<std::int64_t>(r.size()));
        }
        std::int64_t const tokens = where.tokens();
        std::int64_t const reach = how.token_stride < 0 ? -how.token_stride : how.token_stride;
        strides const per_token{how.packed ? 0 : tokens * reach + how.row_gap, how.token_stride};
        log_prob = memory(kinds.log_prob, per_token, where, 0xff, how.shift);
        old_log_prob = memory(kinds.old_log_prob, per_token, where, 0xff, how.shift);
        rollout_log_prob = memory(kinds.rollout_log_prob, per_token, where, 0xff, how.shift);
        advantage = memory(kinds.advantage, how.row_advantage ? strides{1, 0} : per_token, where, 0xff, how.shift);
        mask = memory(dtype::u8, per_token, where, 0x5a, how.shift);
        output_strides = per_token;
        write();

        batch.rows = where.rows();
        batch.tokens = tokens;
        if (how.packed) {
            for (std::int64_t b = 0; b <= where.rows(); ++b) {
                wide_.push_back(where.offset(b));
                narrow_.push_back(static_cast<std::int32_t>(where.offset(b)));
            }
            batch.offsets = how.wide_offsets ? asyncrl::row_offsets(wide_.data()) : asyncrl::row_offsets(narrow_.data());
        }
        batch.log_prob = log_prob.in();
        batch.old_log_prob = old_log_prob.in();
        batch.rollout_log_prob = rollout_log_prob.in();
        batch.advantage = advantage.in();
        if (how.masked) {
            batch.mask = mask.in();
        }
        batch.unscored = how.unscored;
    }
    laid_out(laid_out const&) = delete;
    laid_out& operator=(laid_out const&) = delete;

    /// Copies `values` to memory, and rounds them to what the memory holds.
    void write() {
        where.each([&](std::size_t b, std::size_t t, std::int64_t, std::int64_t) {
            oracle::token& v = values[b][t];
            v.log_prob = as_stored(kinds_.log_prob, v.log_prob);
            v.old_log_prob = as_stored(kinds_.old_log_prob, v.old_log_prob);
            v.rollout_log_prob = as_stored(kinds_.rollout_log_prob, v.scored ? v.rollout_log_prob : how_.unscored);
            v.advantage = as_stored(kinds_.advantage, v.advantage);
            log_prob.put(b, t, v.log_prob);
            old_log_prob.put(b, t, v.old_log_prob);
            rollout_log_prob.put(b, t, v.rollout_log_prob);
            advantage.put(b, t, v.advantage);
            mask.put(b, t, v.active ? 1 + static_cast<double>((b + t) % 3) : 0);  // any nonzero byte is active
        });
    }

    [[nodiscard]] types const& kinds() const { return kinds_; }
    [[nodiscard]] layout const& how() const { return how_; }

    oracle::batch values;
    grid where;
    memory log_prob, old_log_prob, rollout_log_prob, advantage, mask;
    strides output_strides;
    asyncrl::token_batch batch;

  private:
    types kinds_;
    layout how_;
    std::vector<std::int32_t> narrow_;
    std::vector<std::int64_t> wide_;
};

/// All that one call writes, prefilled with NaN, and a workspace.
struct outputs {
    explicit outputs(laid_out const& b, dtype type)
        : gradient(type, b.output_strides, b.where),
          loss(type, b.output_strides, b.where),
          weight(type, b.output_strides, b.where),
          flag_words(static_cast<std::size_t>(b.where.size()) + 2 * flag_guard, 0xaaaa),
          scratch(b.batch) {}
    explicit outputs(laid_out const& b) : outputs(b, b.kinds().output) {}

    [[nodiscard]] asyncrl::loss_outputs to() {
        return {gradient.out(), loss.out(), weight.out(), flag_words.data() + flag_guard};
    }
    /// `position` counts over the whole batch, row after row.
    [[nodiscard]] unsigned flags(std::size_t position) const { return flag_words[flag_guard + position]; }

    [[nodiscard]] bool guards_hold() const {
        bool ok = gradient.guards_hold() && loss.guards_hold() && weight.guards_hold();
        for (std::size_t i = 0; i < flag_guard; ++i) {
            ok = ok && flag_words[i] == 0xaaaa && flag_words[flag_words.size() - 1 - i] == 0xaaaa;
        }
        return ok;
    }
    [[nodiscard]] bool untouched() const {
        bool ok = gradient.untouched() && loss.untouched() && weight.untouched();
        for (std::uint16_t const word : flag_words) {
            ok = ok && word == 0xaaaa;
        }
        return ok;
    }
    [[nodiscard]] bool same_bits(outputs const& other) const {
        return gradient.bytes() == other.gradient.bytes() && loss.bytes() == other.loss.bytes() &&
               weight.bytes() == other.weight.bytes() && flag_words == other.flag_words;
    }

    static constexpr std::size_t flag_guard = 8;
    memory gradient, loss, weight;
    std::vector<std::uint16_t> flag_words;
    asyncrl::workspace scratch;
};

[[nodiscard]] inline bool same_bits(asyncrl::loss_report const& a, asyncrl::loss_report const& b) {
    return std::memcmp(&a, &b, sizeof a) == 0;
}

/// measure, then policy_loss with its totals.
inline asyncrl::loss_report run(oracle::method const& m, laid_out const& b, outputs& out,
                                asyncrl::loss_options const& options = {},
                                library::executor const& execute = asyncrl::serial{}) {
    asyncrl::totals const sums = library::measure(m, b.batch, out.scratch, execute);
    return library::policy_loss(m, b.batch, sums, out.to(), out.scratch, options, execute);
}

/// A stream of numbers that is the same on every machine.
class source {
  public:
    explicit source(std::uint64_t seed) : engine_(seed) {}

    [[nodiscard]] double uniform(double low = 0, double high = 1) {
        return low + (high - low) * static_cast<double>(engine_() >> 11) * 0x1p-53;
    }
    [[nodiscard]] bool chance(double share) { return uniform() < share; }
    [[nodiscard]] std::int64_t below(std::int64_t bound) {
        return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(bound));
    }
    /// Roughly normal, with mean 0 and standard deviation 1.
    [[nodiscard]] double bell() {
        double sum = -6;
        for (int i = 0; i < 12; ++i) {
            sum += uniform();
        }
        return sum;
    }
    template <typename Choices>
    [[nodiscard]] auto pick(Choices const& from) {
        return *(std::begin(from) + below(static_cast<std::int64_t>(std::size(from))));
    }
    [[nodiscard]] double pick(std::initializer_list<double> from) { return pick<std::initializer_list<double>>(from); }
    template <typename Choice>
    [[nodiscard]] Choice pick(std::initializer_list<Choice> from) {
        return *(from.begin() + below(static_cast<std::int64_t>(from.size())));
    }

  private:
    std::mt19937_64 engine_;
};

struct recipe {
    double active = 0.8;
    double unscored = 0.03;
    double dead_rows = 0.2;  ///< rows without an active token
    bool row_advantage = false;
    bool garbage = true;  ///< NaN, infinities and huge numbers under the mask
};

inline oracle::token random_token(source& random) {
    oracle::token t;
    t.old_log_prob = -random.uniform(0.01, 6);
    t.log_prob = t.old_log_prob + 0.3 * random.bell();
    t.rollout_log_prob = t.old_log_prob + (random.chance(0.1) ? 1.5 : 0.3) * random.bell();
    t.advantage = random.chance(0.05) ? (random.chance(0.5) ? 0.0 : -0.0) : random.bell();
    return t;
}

/// Something that may stand under the mask.
inline double random_garbage(source& random) {
    static std::vector<double> const kinds{not_a_number, infinity, -infinity, 1e30, -1e30, 0.0, -0.0, -9999.0};
    return random.pick(kinds);
}

/// Rows of the given lengths.
inline oracle::batch random_batch(source& random, std::vector<std::int64_t> const& lengths, recipe const& how = {}) {
    oracle::batch rows;
    for (std::int64_t const length : lengths) {
        rows.emplace_back();
        bool const dead = random.chance(how.dead_rows);
        double const row_advantage = random.bell();
        for (std::int64_t i = 0; i < length; ++i) {
            oracle::token t = random_token(random);
            t.active = !dead && random.chance(how.active);
            t.scored = !random.chance(how.unscored);
            if (how.row_advantage) {
                t.advantage = row_advantage;
            }
            if (!t.active && how.garbage) {
                t.log_prob = random_garbage(random);
                t.old_log_prob = random_garbage(random);
                t.rollout_log_prob = random_garbage(random);
                t.advantage = how.row_advantage ? row_advantage : random_garbage(random);
            }
            rows.back().push_back(t);
        }
    }
    return rows;
}

/// Lengths that add up to `tokens`, some of them 0: of a packed batch.
inline std::vector<std::int64_t> random_lengths(source& random, std::int64_t tokens) {
    std::vector<std::int64_t> lengths;
    while (tokens > 0) {
        if (random.chance(0.2)) {
            lengths.push_back(0);
        }
        lengths.push_back(std::min(tokens, 1 + random.below(1 + tokens * 2 / 3)));
        tokens -= lengths.back();
    }
    if (random.chance(0.5)) {
        lengths.push_back(0);
    }
    return lengths;
}

}  // namespace support
