// SPDX-License-Identifier: Apache-2.0
/// @file Every objective once more, from the formulas: whole arrays of doubles over the flat batch, and the index of each
/// position's row and sequence. Shares nothing with the library. Decides by ratios and probabilities themselves, and says how
/// near each decision was.
#pragma once

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace arrays {

using numbers = Eigen::ArrayXd;
using choices = Eigen::Array<bool, Eigen::Dynamic, 1>;
using indices = Eigen::ArrayXi;

inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// What a batch holds, position by position, padding included (as inactive).
struct batch {
    int rows = 0;
    int sequences = 0;
    indices row, sequence;  ///< sequence: what parts that speak of sequences mean, a row or a segment
    choices active, scored, keep;
    numbers log_prob, old, rollout, advantage, anchor, reference, sync, log_kept_mass, weight, divergence, score, version;
    double policy_version = 0;
};

enum class pooled { product, geometric };
enum class anchor { old, rollout, given, between };
enum class loss {
    policy_gradient,
    importance,
    clip,
    dual_clip,
    delta_clip,
    cispo,
    topr,
    topr_by_score,
    aspo,
    vespo,
    spo,
    drpo,
    sapo,
    sat,
    sat_dual
};
enum class coupling { none, mean_advantage, own_slope, shared_slope, clipped };
enum class what {  // a weight or a mask
    importance,
    truncated,  ///< high
    two_sided,  ///< low, high
    given_weight,
    staleness_power,        ///< high: the exponent
    staleness_exponential,  ///< high: the rate
    staleness_hinge,        ///< high: the slope, low: the flat part
    sequence_truncated,     ///< high
    mismatch_band,
    lag_band,
    engine_band,
    kpop,  ///< high, as of every limit below
    tv,    ///< low for A < 0
    kl,
    divergence,
    ipo,
    staleness,
    given_keep,
    sequence_band,
    band_veto,
    mean_divergence,
    largest_divergence,
    opsm
};
enum class estimate { k1, k2, k3 };
enum class kl { k1, k2, k3, straight_through, unbiased, weighted, squared_log_ratio };
enum class reduction { token_mean, token_sum, sequence_mean_token_mean, sequence_mean_token_sum };

struct surrogate {
    loss kind = loss::clip;
    double low = 0.2, high = 0.2;
    double cap = 3;           ///< of a dual, delta or TOPR bound; ASPO: for A > 0
    double cap_negative = 3;  ///< ASPO
    double epsilon = 0.2;     ///< SPO; DRPO: delta
    double tau_positive = 1, tau_negative = 1.05;
    double power_positive = 2, rate_positive = 3, power_negative = 3, rate_negative = 2;
    std::int64_t numerator = 9, denominator = 10;
    double hill = 2;
    bool interpolate = false, each_sequence = false;
};
struct factor {
    what kind = what::importance;
    double low = 0, high = infinity;
    pooled of = pooled::geometric;
    estimate by = estimate::k3;
    bool per_token = true;
    double most_tokens = 0, most_share = 1;
};
struct penalty {
    kl kind = kl::k3;
    double coefficient = 0;
    double clamp = infinity;
};
struct method {
    surrogate ratio{};
    anchor against = anchor::old;
    coupling couple = coupling::none;
    pooled of = pooled::geometric;
    double limit = 0.4;       ///< of coupling::clipped
    double clamp = infinity;  ///< of the log-ratio that the surrogate sees
    bool kept_mass = false;
    std::vector<factor> factors{};
    bool normalised = false;
    std::vector<penalty> penalties{};
    reduction reduce = reduction::token_mean;
    bool over_kept = false;
    double constant = 1;  ///< divisor or horizon
};

inline constexpr int high = 1, low = 2, capped = 4, gated = 8, gated_sequence = 16, tail = 32, clamped = 64, unscored = 256;

struct answer {
    numbers loss;      ///< before the reduction
    numbers gradient;  ///< of the reduced loss
    numbers weight;
    choices kept;
    indices flags;
    numbers share;   ///< the reduction's weight
    numbers size;    ///< the largest of the terms of loss and slope, to compare with
    numbers margin;  ///< how near the token was to the nearest bound of a decision about it
    double reduced = 0, absolute = 0, penalty = 0, quantile = std::numeric_limits<double>::quiet_NaN();
    std::int64_t tokens = 0, sequences = 0, kept_tokens = 0, kept_sequences = 0;
};

[[nodiscard]] inline numbers sum_by(indices const& of, int count, numbers const& values) {
    numbers out = numbers::Zero(count);
    for (Eigen::Index i = 0; i < of.size(); ++i) {
        out(of(i)) += values(i);
    }
    return out;
}
[[nodiscard]] inline numbers largest_by(indices const& of, int count, choices const& which, numbers const& values) {
    numbers out = numbers::Constant(count, -infinity);
    for (Eigen::Index i = 0; i < of.size(); ++i) {
        out(of(i)) = which(i) ? std::max(out(of(i)), values(i)) : out(of(i));
    }
    return out;
}
[[nodiscard]] inline numbers chosen(choices const& where, numbers const& yes, numbers const& no) {
    return where.select(yes, no);
}
[[nodiscard]] inline numbers chosen(choices const& where, numbers const& yes, double no) {
    return where.select(yes, numbers::Constant(yes.size(), no));
}
[[nodiscard]] inline numbers chosen(choices const& where, double yes, double no) {
    return where.select(numbers::Constant(where.size(), yes), numbers::Constant(where.size(), no));
}
[[nodiscard]] inline numbers k_of(estimate by, numbers const& e) {
    if (by == estimate::k1) {
        return -e;
    }
    return by == estimate::k2 ? numbers(0.5 * e.square()) : numbers(e.expm1() - e);
}

/// Binary KL(P || Q) from log p and log q.
[[nodiscard]] inline numbers binary_kl(numbers const& log_p, numbers const& log_q) {
    numbers const rest_p = -log_p.expm1();
    numbers const rest_q = -log_q.expm1();
    choices const open = rest_p > 0;
    numbers const rest = chosen(open, rest_p * (rest_p.log() - rest_q.log()), 0);
    return log_p.exp() * (log_p - log_q) + rest;
}

/// The order statistic of the share numerator / denominator: the ceil(share n)-th, or the one between two.
[[nodiscard]] inline double order_statistic(std::vector<double> values, surrogate const& of) {
    if (values.empty()) {
        return 0;
    }
    std::sort(values.begin(), values.end());
    auto const n = static_cast<std::int64_t>(values.size());
    if (of.interpolate) {
        std::int64_t const steps = (n - 1) * of.numerator;
        auto const below = static_cast<std::size_t>(steps / of.denominator);
        double const share = static_cast<double>(steps % of.denominator) / static_cast<double>(of.denominator);
        double const above = values[std::min(below + 1, values.size() - 1)];
        return values[below] + share * (above - values[below]);
    }
    return values[static_cast<std::size_t>((n * of.numerator + of.denominator - 1) / of.denominator - 1)];
}

class evaluation {
  public:
    evaluation(method const& m, batch const& b) : m_(m), b_(b), n_(b.active.size()) {
        read();
        couple();
        surrogate_terms();
        weights();
        slopes();
        penalties();
        reduce();
    }

    answer out;

  private:
    [[nodiscard]] numbers none() const { return numbers::Zero(n_); }
    [[nodiscard]] numbers column(numbers const& from) const { return chosen(b_.active, from, 0); }
    [[nodiscard]] numbers over_sequences(numbers const& values) const { return sum_by(b_.sequence, b_.sequences, values); }
    [[nodiscard]] numbers to_tokens(numbers const& of_sequences) const { return of_sequences(b_.sequence); }
    [[nodiscard]] numbers mean(numbers const& values) const { return over_sequences(values) / tokens_.max(1); }
    [[nodiscard]] numbers at(pooled of, numbers const& values) const {
        return of == pooled::product ? over_sequences(values) : mean(values);
    }
    void mark(choices const& where, int flag) {
        for (Eigen::Index i = 0; i < n_; ++i) {
            flags_(i) |= where(i) ? flag : 0;
        }
    }
    void near(numbers const& distance) { margin_ = margin_.min(distance.abs()); }
    void near_sequences(numbers const& distance) { near(to_tokens(distance)); }
    void near_bounds(numbers const& log_ratio, double lowest, double highest) {
        near(log_ratio - std::log(lowest));
        near(log_ratio - std::log(highest));
    }

    void read() {
        active_ = b_.active;
        x_ = column(b_.log_prob);
        a_ = column(b_.advantage);
        numbers old = column(b_.old);
        numbers rollout = column(b_.rollout) + (m_.kept_mass ? column(b_.log_kept_mass) : none());
        bool reads_rollout = m_.against == anchor::rollout || m_.against == anchor::between || m_.kept_mass;
        bool reads_old = m_.against == anchor::old && m_.ratio.kind != loss::policy_gradient;
        for (factor const& f : m_.factors) {
            bool const compares = f.kind == what::importance || f.kind == what::truncated || f.kind == what::two_sided ||
                                  f.kind == what::sequence_truncated || f.kind == what::mismatch_band ||
                                  f.kind == what::lag_band || f.kind == what::engine_band || f.kind == what::kpop ||
                                  f.kind == what::sequence_band || f.kind == what::band_veto ||
                                  f.kind == what::mean_divergence || f.kind == what::largest_divergence;
            reads_rollout = reads_rollout || compares || f.kind == what::opsm;
            reads_old = reads_old || (compares && m_.against != anchor::between);
        }
        // A token without a rollout log-prob: every ratio to the rollout policy is 1.
        choices const missing = active_ && !b_.scored && choices::Constant(n_, reads_rollout);
        unscored_ = missing;
        if (m_.against == anchor::rollout) {
            rollout = chosen(missing, x_, rollout);
            old = chosen(missing, x_, old);
        }
        rollout = chosen(missing, reads_old ? old : x_, rollout);

        staleness_ = b_.policy_version - column(b_.version);
        staleness_ = chosen(column(b_.version) < 0 || staleness_ < 0, none(), staleness_);
        if (m_.against == anchor::between) {
            old = rollout + chosen(staleness_ > 1, 1 - 1 / staleness_.max(1), 0) * (x_ - rollout);
        }
        anchor_ = m_.against == anchor::rollout ? rollout : m_.against == anchor::given ? column(b_.anchor) : old;
        d_ = x_ - anchor_;
        e_ = old - rollout;
        off_policy_ = rollout - x_;
        lag_ = old - column(b_.sync);
        engine_ = chosen(missing, none(), column(b_.sync) - rollout);
        log_p_ = x_.min(0);
        log_q_ = anchor_.min(0);
        log_old_ = old.min(0);
        log_rollout_ = rollout.min(0);
        tokens_ = over_sequences(active_.cast<double>());
        flags_ = indices::Zero(n_);
        margin_ = numbers::Constant(n_, infinity);
    }

    void couple() {
        log_ratio_ = d_;
        inner_ = numbers::Ones(n_);
        if (m_.couple == coupling::none) {
            return;
        }
        numbers h = d_;
        if (m_.couple == coupling::clipped) {
            choices const above = a_ > 0 && d_ > m_.limit;
            choices const below = !(a_ > 0) && d_ < -m_.limit;  // without an advantage: either side would do
            h = above.select(m_.limit, below.select(-m_.limit, h));
            inner_ = chosen(above || below, none(), inner_);
            inner_high_ = above;
            inner_low_ = below && a_ < 0;
            near(chosen(a_ > 0, d_ - m_.limit, d_ + m_.limit));
        }
        pooled const of = m_.couple == coupling::clipped ? pooled::geometric : m_.of;
        log_ratio_ = to_tokens(at(of, h));
        spread_ = of == pooled::product ? to_tokens(tokens_) : numbers::Ones(n_);
        if (m_.couple == coupling::mean_advantage || m_.couple == coupling::clipped) {
            a_ = to_tokens(mean(a_));
        }
    }

    void surrogate_terms() {
        numbers lr = log_ratio_;
        at_clamp_ = lr.abs() > m_.clamp;
        lr = lr.max(-m_.clamp).min(m_.clamp);
        near(log_ratio_.abs() - m_.clamp);
        mark(at_clamp_, clamped);
        numbers const r = lr.exp();
        surrogate const& s = m_.ratio;
        choices const up = a_ > 0;
        choices const down = a_ < 0;
        scores_ = s.kind == loss::policy_gradient || s.kind == loss::cispo || s.kind == loss::topr ||
                  s.kind == loss::topr_by_score || s.kind == loss::aspo || s.kind == loss::vespo;
        size_ = a_.abs() * (1 + r);
        switch (s.kind) {
            case loss::policy_gradient:
                value_ = -a_ * x_;
                slope_ = -a_;
                size_ = a_.abs() * (1 + x_.abs());
                break;
            case loss::importance:
                value_ = -a_ * r;
                slope_ = value_;
                break;
            case loss::clip:
            case loss::dual_clip:
            case loss::delta_clip:
                clip(r, lr, numbers::Constant(n_, 1 - s.low), numbers::Constant(n_, 1 + s.high));
                if (s.kind == loss::dual_clip) {
                    dual(r, lr);
                } else if (s.kind == loss::delta_clip) {
                    value_ = (-a_ * r.min(s.cap)).max(-a_ * clipped_ratio_);
                    slope_ = chosen(down && r > s.cap, none(), slope_);
                    mark(down && r > s.cap, capped);
                    near(lr - std::log(s.cap));
                }
                break;
            case loss::sat:
            case loss::sat_dual:
                sat(r, lr);
                break;
            case loss::cispo:
                score(r.max(1 - s.low).min(1 + s.high));
                mark(r > 1 + s.high || r < 1 - s.low, capped);
                near_bounds(lr, 1 - s.low, 1 + s.high);
                break;
            case loss::topr:
            case loss::topr_by_score: {
                choices const good = s.kind == loss::topr ? up : choices(column(b_.score) > 0);
                score(chosen(good, numbers::Ones(n_), r.min(s.cap)));
                mark(!good && r > s.cap, capped);
                near(lr - std::log(s.cap));
                break;
            }
            case loss::aspo:
                aspo(r, lr);
                break;
            case loss::vespo: {
                numbers const log_w = lr.max(std::log(1e-8)).min(20);
                numbers const power = chosen(down, s.power_negative, s.power_positive);
                numbers const rate = chosen(down, s.rate_negative, s.rate_positive);
                score(((power * log_w).exp() * (rate * (1 - log_w.exp())).exp()));
                break;
            }
            case loss::spo:
                quadratic(r, numbers::Constant(n_, s.epsilon));
                break;
            case loss::drpo:
                quadratic(r, s.epsilon / log_q_.exp());
                break;
            case loss::sapo: {
                numbers const tau = chosen(up, s.tau_positive, s.tau_negative);
                numbers const sigmoid = 1 / (1 + (-tau * (r - 1)).exp());
                value_ = -a_ * 4 / tau * sigmoid;
                slope_ = -a_ * 4 * r * sigmoid * (1 - sigmoid);
                size_ = 4 * a_.abs() * (1 + r);
                break;
            }
        }
    }

    void score(numbers const& weight) {
        value_ = -a_ * weight * x_;
        slope_ = -a_ * weight;
        size_ = a_.abs() * weight * (1 + x_.abs());
    }

    void clip(numbers const& r, numbers const& lr, numbers const& lowest, numbers const& highest) {
        clipped_ratio_ = r.max(lowest).min(highest);
        value_ = (-a_ * r).max(-a_ * clipped_ratio_);
        choices const above = a_ > 0 && r > highest;
        choices const below = a_ < 0 && r < lowest;
        slope_ = chosen(above || below, none(), -a_ * r);
        mark(above, high);
        mark(below, low);
        near(lr - lowest.log());
        near(lr - highest.log());
    }

    /// For A < 0 the loss stops at -A cap.
    void dual(numbers const& r, numbers const& lr) {
        choices const down = a_ < 0;
        value_ = chosen(down, value_.min(-a_ * m_.ratio.cap), value_);
        slope_ = chosen(down && r > m_.ratio.cap, none(), slope_);
        mark(down && r > m_.ratio.cap, capped);
        near(lr - std::log(m_.ratio.cap));
    }

    void sat(numbers const& r, numbers const& lr) {
        surrogate const& s = m_.ratio;
        std::vector<double> sizes;
        for (int q = 0; s.each_sequence && q < b_.sequences; ++q) {
            for (Eigen::Index i = 0; i < n_; ++i) {
                if (active_(i) && b_.sequence(i) == q) {
                    sizes.push_back(std::abs(lr(i)));
                    break;
                }
            }
        }
        bool const without_ratio = m_.against == anchor::rollout && m_.couple == coupling::none;
        for (Eigen::Index i = 0; !s.each_sequence && i < n_; ++i) {
            if (active_(i) && !(unscored_(i) && without_ratio)) {
                sizes.push_back(std::abs(lr(i)));
            }
        }
        double const q = order_statistic(sizes, s);
        out.quantile = q;
        choices const in_tail = lr.abs() > q && choices::Constant(n_, q > 0);
        numbers const up_psi = chosen(in_tail, 1 / (1 + (lr.max(0) / q).pow(s.hill)), 1);
        numbers const down_psi = chosen(in_tail, 1 / (1 + ((-lr).max(0) / q).pow(s.hill)), 1);
        clip(r, lr, 1 - s.low * down_psi, 1 + s.high * up_psi);
        mark(in_tail, tail);
        near(chosen(lr.abs() == q, infinity, 0) + (lr.abs() - q).abs());
        if (s.kind == loss::sat_dual) {
            dual(r, lr);
        }
    }

    void aspo(numbers const& r, numbers const& lr) {
        surrogate const& s = m_.ratio;
        choices const up = a_ > 0;
        choices const above = up && r > 1 + s.high;
        choices const below = a_ < 0 && r < 1 - s.low;
        numbers const turned = chosen(up, 1 / r, r);
        numbers const cap = chosen(up, s.cap, s.cap_negative);
        choices const over = turned > cap;
        slope_ = -a_ * turned.min(cap);
        value_ = chosen(over, slope_ * x_, slope_);
        value_ = above.select(-a_ / (1 + s.high), below.select(-a_ * (1 - s.low), value_));
        slope_ = chosen(above || below, none(), slope_);
        size_ = a_.abs() * turned.min(cap) * (1 + x_.abs());
        mark(above, high);
        mark(below, low);
        mark(over && !above && !below, capped);
        near_bounds(lr, 1 - s.low, 1 + s.high);
        near(turned.log() - cap.log());
    }

    void quadratic(numbers const& r, numbers const& epsilon) {
        value_ = -a_ * r + a_.abs() * (r - 1).square() / (2 * epsilon);
        slope_ = -a_ * r + a_.abs() * r * (r - 1) / epsilon;
        size_ = a_.abs() * ((1 + r) + (1 + r).square() / epsilon);
        mark(a_ > 0 && r - 1 > epsilon, high);
        mark(a_ < 0 && r - 1 < -epsilon, low);
        near((r - 1).abs() - epsilon);
    }

    void weights() {
        weight_ = numbers::Ones(n_);
        kept_ = choices::Constant(n_, true);
        for (factor const& f : m_.factors) {
            apply(f);
        }
        kept_ = kept_ && active_;
        weight_ = chosen(kept_, weight_, 0);
        if (m_.normalised) {
            double const kept = static_cast<double>(kept_.count());
            double const sum = weight_.sum();
            weight_ = kept > 0 && sum > 0 ? numbers(weight_ * kept / sum) : weight_;
        }
        mark(!kept_, gated);
    }

    void keep(choices const& where) { kept_ = kept_ && where; }
    /// Masks of whole sequences, from one value and bounds a sequence.
    void keep_sequences(numbers const& value, double lowest, double highest) {
        numbers const keeps = ((value >= lowest && value <= highest) || tokens_ == 0).cast<double>();
        choices const where = to_tokens(keeps) > 0.5;
        keep(where);
        mark(!where, gated_sequence);
        near_sequences(value - lowest);
        near_sequences(value - highest);
    }

    void apply(factor const& f) {
        numbers const w = e_.exp();
        switch (f.kind) {
            case what::importance:
                weight_ *= w;
                break;
            case what::truncated:
                weight_ *= w.min(f.high);
                mark(w > f.high, capped);
                near(e_ - std::log(f.high));
                break;
            case what::two_sided:
                weight_ *= w.max(f.low).min(f.high);
                mark(w > f.high || w < f.low, capped);
                near_bounds(e_, f.low, f.high);
                break;
            case what::given_weight:
                weight_ *= column(b_.weight);
                break;
            case what::staleness_power:
                weight_ *= (1 + staleness_).pow(-f.high);
                break;
            case what::staleness_exponential:
                weight_ *= (-f.high * staleness_).exp();
                break;
            case what::staleness_hinge:
                weight_ *= chosen(staleness_ <= f.low, numbers::Ones(n_), 1 / (f.high * (staleness_ - f.low) + 1));
                break;
            case what::sequence_truncated: {
                numbers const log_ratio = at(f.of, e_);
                weight_ *= to_tokens(log_ratio).exp().min(f.high);
                mark(to_tokens(log_ratio).exp() > f.high, capped);
                near_sequences(log_ratio - std::log(f.high));
                break;
            }
            case what::mismatch_band:
                keep(w >= f.low && w <= f.high);
                near_bounds(e_, f.low, f.high);
                break;
            case what::lag_band:
                keep(lag_.exp() >= f.low && lag_.exp() <= f.high);
                near_bounds(lag_, f.low, f.high);
                break;
            case what::engine_band:
                keep(engine_.exp() >= f.low && engine_.exp() <= f.high);
                near_bounds(engine_, f.low, f.high);
                break;
            case what::kpop: {
                numbers const both = binary_kl(log_old_, log_rollout_).max(binary_kl(log_rollout_, log_old_));
                keep(both <= f.high);
                near(both - f.high);
                break;
            }
            case what::tv: {
                numbers const moved = log_p_.exp() - log_q_.exp();
                keep(!((a_ > 0 && moved > f.high) || (a_ < 0 && moved < -f.low)));
                near(chosen(a_ > 0, moved - f.high, moved + f.low));
                break;
            }
            case what::kl: {
                numbers const size = binary_kl(log_q_, log_p_);
                keep(!(size > f.high && outward()));
                near(size - f.high);
                break;
            }
            case what::divergence:
                keep(!(column(b_.divergence) > f.high && outward()));
                near(column(b_.divergence) - f.high);
                break;
            case what::ipo: {
                numbers const moved = (log_p_.exp() - log_q_.exp()).abs();
                keep(moved <= f.high);
                near(moved - f.high);
                break;
            }
            case what::staleness:
                keep(staleness_ <= f.high);
                break;
            case what::given_keep:
                keep(b_.keep);
                break;
            case what::sequence_band:
                keep_sequences(at(f.of, e_).exp(), f.low, f.high);
                break;
            case what::band_veto: {
                numbers const outside = (active_ && (w < f.low || w > f.high)).cast<double>();
                numbers const too_many =
                    (over_sequences(outside) > f.most_tokens || mean(outside) > f.most_share).cast<double>();
                keep_sequences(-too_many, -0.5, infinity);
                break;
            }
            case what::mean_divergence: {
                numbers const k = chosen(active_, k_of(f.by, e_), 0);
                keep_sequences(f.per_token ? mean(k) : over_sequences(k), -infinity, f.high);
                break;
            }
            case what::largest_divergence:
                keep_sequences(largest_by(b_.sequence, b_.sequences, active_, k_of(f.by, e_)), -infinity, f.high);
                break;
            case what::opsm: {
                numbers const kl_of_sequence = mean(off_policy_);
                choices const negative = mean(column(b_.advantage)) < 0;
                keep_sequences(chosen(negative, kl_of_sequence, -infinity), -infinity, f.high);
                break;
            }
        }
    }
    [[nodiscard]] choices outward() const { return (a_ > 0 && d_ > 0) || (a_ < 0 && d_ < 0); }

    void slopes() {
        out.loss = weight_ * value_;
        size_ = size_ * weight_ + weight_;
        numbers own = weight_ * (scores_ ? slope_ : chosen(at_clamp_, none(), slope_));
        total_ = own;
        if (m_.couple == coupling::none || scores_) {
            return;
        }
        if (m_.couple != coupling::own_slope) {  // d(sum over the sequence) / d(own log-prob)
            own = to_tokens(mean(own));
            size_ = size_.max(to_tokens(mean(size_)));
        }
        total_ = own * inner_ * spread_;
        size_ *= spread_;
        if (m_.couple == coupling::clipped) {
            mark(inner_high_, high);
            mark(inner_low_, low);
        }
    }

    void penalties() {
        numbers const df = x_ - column(b_.reference);
        numbers const k3 = (-df).expm1() + df;
        numbers const rho = d_.exp();
        penalty_ = none();
        for (penalty const& p : m_.penalties) {
            numbers value, slope;
            switch (p.kind) {
                case kl::k1:
                    value = df;
                    slope = numbers::Ones(n_);
                    break;
                case kl::k2:
                    value = df.square() / 2;
                    slope = df;
                    break;
                case kl::k3:
                    value = k3;
                    slope = 1 - (-df).exp();
                    break;
                case kl::straight_through:
                    value = k3;
                    slope = df;
                    break;
                case kl::unbiased:
                    value = rho * k3;
                    slope = rho * df;
                    break;
                case kl::weighted:
                    value = rho * k3;
                    slope = rho * (1 - (-df).exp());
                    break;
                case kl::squared_log_ratio:
                    value = d_.square();
                    slope = 2 * d_;
                    break;
            }
            choices const over = value.abs() > p.clamp;
            near(value.abs() - p.clamp);
            mark(over, clamped);
            size_ += p.coefficient * (1 + rho) * (1 + df.abs() + (-df).exp() + d_.square());
            penalty_ += p.coefficient * value.max(-p.clamp).min(p.clamp);
            total_ += p.coefficient * chosen(over, none(), slope);
        }
        out.loss += penalty_;
    }

    void reduce() {
        out.loss = chosen(active_, out.loss, 0);
        numbers const counted = (m_.over_kept ? kept_ : active_).cast<double>();
        numbers const in_row = sum_by(b_.row, b_.rows, counted);
        out.tokens = active_.count();
        out.kept_tokens = kept_.count();
        out.sequences = (sum_by(b_.row, b_.rows, active_.cast<double>()) > 0).count();
        out.kept_sequences = (sum_by(b_.row, b_.rows, kept_.cast<double>()) > 0).count();
        auto const tokens = static_cast<double>(m_.over_kept ? out.kept_tokens : out.tokens);
        auto const sequences = static_cast<double>(m_.over_kept ? out.kept_sequences : out.sequences);
        numbers of_row = numbers::Constant(b_.rows, 1 / m_.constant);
        if (m_.reduce == reduction::token_mean) {
            of_row.setConstant(tokens > 0 ? 1 / tokens : 0);
        } else if (m_.reduce == reduction::sequence_mean_token_mean) {
            of_row = chosen(in_row > 0, 1 / (sequences * in_row), 0);
        } else if (m_.reduce == reduction::sequence_mean_token_sum) {
            of_row.setConstant(out.sequences > 0 ? 1 / (static_cast<double>(out.sequences) * m_.constant) : 0);
        }
        out.share = of_row(b_.row);
        out.gradient = chosen(active_, total_ * out.share, 0);
        out.weight = weight_;
        out.kept = kept_;
        out.reduced = (out.loss * out.share).sum();
        out.absolute = (out.loss.abs() * out.share).sum();
        out.penalty = chosen(active_, penalty_, 0).sum();
        out.size = size_;
        out.margin = margin_;
        // Nothing happens to a token without an advantage.
        out.flags = (active_ && (a_ > 0 || a_ < 0)).select(flags_, indices::Zero(n_));
        for (Eigen::Index i = 0; i < n_; ++i) {
            out.flags(i) |= unscored_(i) ? unscored : 0;
        }
    }

    method const& m_;
    batch const& b_;
    Eigen::Index n_;
    choices active_, unscored_, at_clamp_, kept_, inner_high_, inner_low_;
    numbers x_, a_, anchor_, d_, e_, off_policy_, lag_, engine_, log_p_, log_q_, log_old_, log_rollout_, staleness_, tokens_;
    numbers log_ratio_, inner_, spread_, value_, slope_, clipped_ratio_, weight_, total_, penalty_, size_, margin_;
    indices flags_;
    bool scores_ = false;
};

[[nodiscard]] inline answer evaluate(method const& m, batch const& b) {
    return evaluation(m, b).out;
}

}  // namespace arrays
