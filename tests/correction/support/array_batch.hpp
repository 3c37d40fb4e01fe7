// SPDX-License-Identifier: Apache-2.0
/// @file Random batches for the array oracle, and the same in memory as a token_batch; objectives behind two functions.
#pragma once

#include "array_oracle.hpp"

#include <asyncrl/correction/policy_loss.hpp>

#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace arrays {

/// An objective, compiled where it is named and called anywhere.
struct compiled {
    std::function<asyncrl::totals(asyncrl::token_batch const&, asyncrl::workspace&)> measure;
    std::function<asyncrl::loss_report(asyncrl::token_batch const&, asyncrl::totals const&, asyncrl::loss_outputs const&,
                                       asyncrl::workspace&)>
        loss;
};

template <typename Objective>
[[nodiscard]] compiled compile(Objective const& objective) {
    return {[objective](asyncrl::token_batch const& b, asyncrl::workspace& scratch) {
                return asyncrl::measure(objective, b, scratch);
            },
            [objective](asyncrl::token_batch const& b, asyncrl::totals const& sums, asyncrl::loss_outputs const& to,
                        asyncrl::workspace& scratch) {
                return asyncrl::policy_loss(objective, b, sums, to, scratch, {.batches = sums.counts.batches});
            }};
}

/// A stream of numbers that is the same on every machine.
class stream {
  public:
    explicit stream(std::uint64_t seed) : engine_(seed) {}

    [[nodiscard]] double uniform(double from = 0, double to = 1) {
        return from + (to - from) * static_cast<double>(engine_() >> 11) * 0x1p-53;
    }
    [[nodiscard]] bool chance(double share) { return uniform() < share; }
    [[nodiscard]] int below(int bound) { return static_cast<int>(engine_() % static_cast<std::uint64_t>(bound)); }
    /// Mean 0, standard deviation 1, bounded.
    [[nodiscard]] double bell() {
        double sum = -6;
        for (int i = 0; i < 12; ++i) {
            sum += uniform();
        }
        return sum;
    }

  private:
    std::mt19937_64 engine_;
};

struct shape {
    std::vector<int> lengths;
    bool packed = true;
    bool row_advantage = false;
    bool segments = false;  ///< packed only
    bool single = false;
    double missing = std::numeric_limits<double>::quiet_NaN();
    double unscored = 0.04;
    double garbage = 0.1;        ///< share of masked tokens
    bool masked_rows = true;     ///< the second row is masked throughout
    bool certain_tokens = true;  ///< some with probability 1
};

/// Positions of a batch, and the offsets of its rows and segments where it is packed.
struct positions {
    std::vector<std::int64_t> offsets{0}, segments{0};
    std::int64_t tokens = 0;  ///< of a padded row, or in all
    batch values;
};

[[nodiscard]] inline double rounded(double x, bool single) {
    return single ? static_cast<double>(static_cast<float>(x)) : x;
}

[[nodiscard]] inline positions random_positions(stream& random, shape const& how) {
    positions out;
    batch& b = out.values;
    b.rows = static_cast<int>(how.lengths.size());
    int const longest = *std::max_element(how.lengths.begin(), how.lengths.end());
    int size = 0;
    for (int const length : how.lengths) {
        size += how.packed ? length : longest;
    }
    out.tokens = how.packed ? size : longest;
    for (indices* to : {&b.row, &b.sequence}) {
        to->setZero(size);
    }
    for (choices* to : {&b.active, &b.scored, &b.keep}) {
        to->setConstant(size, true);
    }
    numbers* const columns[] = {&b.log_prob, &b.old,           &b.rollout, &b.advantage,  &b.anchor, &b.reference,
                                &b.sync,     &b.log_kept_mass, &b.weight,  &b.divergence, &b.score,  &b.version};
    for (numbers* to : columns) {
        to->setZero(size);
    }
    b.policy_version = 10;
    double const junk[] = {std::numeric_limits<double>::quiet_NaN(), infinity, -infinity, 1e30, -9999, -0.0};
    int at = 0;
    for (int row = 0; row < b.rows; ++row) {
        int const length = how.lengths[static_cast<std::size_t>(row)];
        double const drift = 0.06 * random.bell();
        double const lag = 0.06 * random.bell();
        double const row_advantage = rounded(random.chance(0.05) ? 0.0 : random.bell(), how.single);
        int const end = at + (how.packed ? length : longest);
        for (int t = 0; at < end; ++at, ++t) {
            b.row(at) = row;
            b.sequence(at) = how.segments ? static_cast<int>(out.segments.size()) - 1 : row;
            double const certainty = random.uniform();
            double const old = -6 * certainty * certainty - 1e-3;
            auto const beside = [&](double center, double width, double shift) {
                return std::min(-1e-4, center + shift + width * random.bell());
            };
            b.old(at) = old;
            b.log_prob(at) = beside(old, 0.2, drift);
            b.rollout(at) = beside(old, random.chance(0.1) ? 0.8 : 0.15, lag);
            b.anchor(at) = beside(old, 0.2, 0);
            b.reference(at) = beside(old, 0.5, 0);
            b.sync(at) = beside(old, 0.2, lag);
            b.advantage(at) = how.row_advantage ? row_advantage : random.bell() + 1.5 * row_advantage;
            if (!how.row_advantage && random.chance(0.06)) {
                b.advantage(at) = random.chance(0.5) ? 0.0 : -0.0;
            }
            b.log_kept_mass(at) = -random.uniform(0, 0.3);
            b.weight(at) = random.uniform(0.1, 3);
            b.divergence(at) = random.uniform(0, 0.2);
            b.score(at) = random.bell();
            b.version(at) = random.below(14) - 2;
            b.keep(at) = !random.chance(0.15);
            b.scored(at) = !random.chance(how.unscored);
            if (how.certain_tokens && random.chance(0.05)) {  // probability 1 under some of the policies
                b.log_prob(at) = random.chance(0.7) ? 0 : b.log_prob(at);
                b.old(at) = random.chance(0.7) ? 0 : b.old(at);
                b.rollout(at) = random.chance(0.7) ? 0 : b.rollout(at);
            }
            for (numbers* to : columns) {
                (*to)(at) = rounded((*to)(at), how.single);
            }
            bool const masked_row = how.masked_rows && row == 1;
            b.active(at) = t < length && !masked_row && !random.chance(how.garbage);
            if (!b.active(at)) {
                for (numbers* to : columns) {
                    bool const integer = to == &b.version;
                    bool const one_a_row = how.row_advantage && to == &b.advantage;
                    (*to)(at) = integer || one_a_row ? (*to)(at) : junk[random.below(6)];
                }
            }
            if (how.segments && random.chance(0.03)) {
                for (int empty = random.below(2); empty >= 0; --empty) {
                    out.segments.push_back(at + 1);
                }
            }
        }
        out.offsets.push_back(at);
        if (how.segments && (out.segments.back() != at || length == 0)) {
            out.segments.push_back(at);
        }
    }
    b.sequences = how.segments ? static_cast<int>(out.segments.size()) - 1 : b.rows;
    return out;
}

/// A batch in memory, with all columns and room for all outputs.
class memory {
  public:
    memory(positions from, shape how)
        : source(std::move(from)), how_(std::move(how)), size_(static_cast<std::size_t>(source.values.active.size())) {
        write();
        asyncrl::token_batch& b = batch;
        arrays::batch const& v = source.values;
        b.rows = v.rows;
        b.tokens = source.tokens;
        if (how_.packed) {
            b.offsets = source.offsets.data();
        }
        if (how_.segments) {
            b.segments = source.segments.data();
            b.segment_count = static_cast<std::int64_t>(source.segments.size()) - 1;
        }
        b.mask = at(active_);
        b.keep = at(keep_);
        b.version = at(version_);
        b.policy_version = static_cast<std::int64_t>(v.policy_version);
        b.unscored = how_.missing;
        asyncrl::column* const to[] = {&b.log_prob,
                                       &b.old_log_prob,
                                       &b.rollout_log_prob,
                                       &b.advantage,
                                       &b.anchor_log_prob,
                                       &b.reference_log_prob,
                                       &b.sync_log_prob,
                                       &b.log_kept_mass,
                                       &b.weight,
                                       &b.divergence,
                                       &b.score};
        for (std::size_t i = 0; i < std::size(to); ++i) {
            *to[i] = how_.single ? at(singles_[i]) : at(doubles_[i]);
        }
        if (how_.row_advantage) {
            b.advantage = how_.single ? asyncrl::per_sequence(row_singles_.data()) : asyncrl::per_sequence(row_doubles_.data());
        }
        for (auto& o : out_doubles_) {
            o.assign(size_, 7.0);
        }
        for (auto& o : out_singles_) {
            o.assign(size_, 7.0F);
        }
        flags.assign(size_, 0xffff);
    }
    memory(memory const&) = delete;
    memory& operator=(memory const&) = delete;

    /// Copies `source.values` to the columns.
    void write() {
        arrays::batch const& v = source.values;
        numbers const* const from[] = {&v.log_prob, &v.old,           &v.rollout, &v.advantage,  &v.anchor, &v.reference,
                                       &v.sync,     &v.log_kept_mass, &v.weight,  &v.divergence, &v.score};
        for (std::size_t i = 0; i < std::size(from); ++i) {
            doubles_[i].assign(from[i]->data(), from[i]->data() + size_);
            if (i == 2) {
                for (std::size_t t = 0; t < size_; ++t) {
                    bool const none = v.active(static_cast<Eigen::Index>(t)) && !v.scored(static_cast<Eigen::Index>(t));
                    doubles_[i][t] = none ? how_.missing : doubles_[i][t];
                }
            }
            singles_[i].resize(size_);
            std::transform(doubles_[i].begin(), doubles_[i].end(), singles_[i].begin(),
                           [](double x) { return static_cast<float>(x); });
        }
        row_doubles_.assign(static_cast<std::size_t>(v.rows), 0);
        active_.resize(size_);
        keep_.resize(size_);
        version_.resize(size_);
        for (std::size_t t = 0; t < size_; ++t) {
            auto const i = static_cast<Eigen::Index>(t);
            active_[t] = v.active(i) ? 1 : 0;
            keep_[t] = v.keep(i) ? 1 : 0;
            version_[t] = static_cast<std::int32_t>(v.version(i));
            row_doubles_[static_cast<std::size_t>(v.row(i))] = v.advantage(i);
        }
        row_singles_.resize(row_doubles_.size());
        std::transform(row_doubles_.begin(), row_doubles_.end(), row_singles_.begin(),
                       [](double x) { return static_cast<float>(x); });
    }

    [[nodiscard]] asyncrl::loss_outputs to() {
        auto const one = [&](std::size_t i) {
            std::int64_t const stride = how_.packed ? 0 : source.tokens;
            return how_.single ? asyncrl::per_token(out_singles_[i].data(), stride)
                               : asyncrl::per_token(out_doubles_[i].data(), stride);
        };
        return {one(0), one(1), one(2), flags.data()};
    }
    [[nodiscard]] double gradient(Eigen::Index i) const { return output(0, i); }
    [[nodiscard]] double loss(Eigen::Index i) const { return output(1, i); }
    [[nodiscard]] double weight(Eigen::Index i) const { return output(2, i); }
    [[nodiscard]] Eigen::Index size() const { return static_cast<Eigen::Index>(size_); }

    positions source;
    asyncrl::token_batch batch;
    std::vector<std::uint16_t> flags;

  private:
    [[nodiscard]] double output(std::size_t which, Eigen::Index i) const {
        auto const t = static_cast<std::size_t>(i);
        return how_.single ? static_cast<double>(out_singles_[which][t]) : out_doubles_[which][t];
    }
    template <typename Element>
    [[nodiscard]] asyncrl::column at(std::vector<Element> const& from) const {
        return asyncrl::per_token(from.data(), how_.packed ? 0 : source.tokens);
    }

    shape how_;
    std::size_t size_;
    std::vector<double> doubles_[11], row_doubles_;
    std::vector<float> singles_[11], row_singles_;
    std::vector<std::uint8_t> active_, keep_;
    std::vector<std::int32_t> version_;
    std::vector<double> out_doubles_[3];
    std::vector<float> out_singles_[3];
};

}  // namespace arrays
