// SPDX-License-Identifier: Apache-2.0
/// @file Composes parts into one objective type. What it needs is known at compile time; its numbers are run-time values.
#pragma once

#include <asyncrl/correction/reduction.hpp>
#include <asyncrl/correction/token/anchor.hpp>
#include <asyncrl/correction/token/coupling.hpp>
#include <asyncrl/correction/token/gate.hpp>
#include <asyncrl/correction/token/penalty.hpp>
#include <asyncrl/correction/token/sat.hpp>
#include <asyncrl/correction/token/score.hpp>
#include <asyncrl/correction/token/sequence.hpp>
#include <asyncrl/correction/token/sequence_weight.hpp>
#include <asyncrl/correction/token/surrogate.hpp>
#include <asyncrl/correction/token/taper.hpp>
#include <asyncrl/correction/token/weight.hpp>

#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

ASYNCRL_BEGIN_NAMESPACE

/// A part names its role and needs; see `role` for which of them bind to a functor.
template <typename Part>
concept objective_part = requires {
    { Part::kind } -> std::convertible_to<role>;
    { Part::needs } -> std::convertible_to<std::uint32_t>;
};

/// The answer of a whole objective for one active token.
template <typename Real>
struct token_outcome {
    Real value;          ///< weighted loss and penalties, before the reduction
    Real slope;          ///< its derivative with respect to the new log-prob
    Real penalty;        ///< the penalties' part of the value
    Real weight;         ///< product of the weights; 0 where rejected
    mask_of<Real> keep;  ///< no mask rejected the token
    bits_of<Real> flags;
};

namespace detail {

template <std::size_t Index, typename Value>
struct leaf {
    [[no_unique_address]] Value value;
};
template <typename Indices, typename... Values>
struct leaves;
template <std::size_t... Index, typename... Values>
struct leaves<std::index_sequence<Index...>, Values...> : leaf<Index, Values>... {};

/// A tuple that is an aggregate, trivially copyable where its members are, and usable in a kernel.
template <typename... Values>
using tuple = leaves<std::index_sequence_for<Values...>, Values...>;

template <std::size_t Index, typename Value>
[[nodiscard]] ASYNCRL_HOST_DEVICE Value& get(leaf<Index, Value>& from) {
    return from.value;
}
template <std::size_t Index, typename Value>
[[nodiscard]] ASYNCRL_HOST_DEVICE Value const& get(leaf<Index, Value> const& from) {
    return from.value;
}

template <role Kind, typename Op>
struct bound_part {
    static constexpr role kind = Kind;
    [[no_unique_address]] Op op;
};

/// The objective with its numbers in the loop's type: trivially copyable, the argument of a kernel or a host loop. A `Math` has
/// the loop's exp, expm1, log and log1p as members.
template <std::uint32_t Needs, typename... Parts>
struct bound_objective {
    static constexpr std::uint32_t needs = Needs;
    /// How many parts gather a number over each sequence.
    static constexpr int statistics =
        (0 + ... + static_cast<int>(Parts::kind == role::sequence_weight || Parts::kind == role::coupling));

    [[no_unique_address]] tuple<Parts...> parts;

    template <typename Real, typename Math>
    [[nodiscard]] ASYNCRL_HOST_DEVICE token_outcome<Real> operator()(token<Real> const& t, sequence_context<Real> const& s,
                                                                     Math const& math) const {
        return evaluate<false>(t, s, math);
    }

    /// What the weighted surrogate's slope is by itself, before the coupling spreads it.
    template <typename Real, typename Math>
    [[nodiscard]] ASYNCRL_HOST_DEVICE Real slope_alone(token<Real> const& t, sequence_context<Real> const& s,
                                                       Math const& math) const {
        return evaluate<true>(t, s, math).slope;
    }

    /// Hands over what the parts wait for.
    ASYNCRL_HOST_DEVICE void prepare(batch_numbers const& batch) {
        for_each([&](auto& part) {
            if constexpr (requires { part.op.prepare(batch); }) {
                part.op.prepare(batch);
            }
        });
    }

    /// Only whether the masks keep the token, for counting.
    template <typename Real, typename Math>
    [[nodiscard]] ASYNCRL_HOST_DEVICE mask_of<Real> keeps(token<Real> const& t, sequence_context<Real> const& s,
                                                          Math const& math) const {
        mask_of<Real> keep = (needs & has_sequences) != 0 ? s.keep : always<Real>();
        visit<role::weight>([&](auto const& op) { keep = keep & call(op, t, math).keep; });
        return keep;
    }

    /// Adds a token to the statistics of its sequence, one a part.
    template <typename Real>
    ASYNCRL_HOST_DEVICE void add_statistics(token<Real> const& t, mask_of<Real> live, Real* sums) const {
        for_each_statistic([&](auto slot, auto const& op) {
            Real& sum = sums[decltype(slot)::value];
            Real const x = op.statistic(t);
            sum = op.maximum ? larger(sum, select(live, x, Real(-3.402823466e38))) : sum + select(live, x, Real(0));
        });
    }

    /// Which of the statistics are maxima.
    ASYNCRL_HOST_DEVICE void which_maxima(bool* maximum) const {
        for_each_statistic([&](auto slot, auto const& op) { maximum[decltype(slot)::value] = op.maximum; });
    }

    /// What the parts make of the statistics of one sequence.
    [[nodiscard]] ASYNCRL_HOST_DEVICE sequence_values decide(double tokens, double advantage, double const* gathered) const {
        sequence_values out;
        out.tokens = tokens;
        out.advantage = tokens > 0 ? advantage / tokens : 0;
        for_each_statistic([&](auto slot, auto const& op) {
            sequence_sums const sums{tokens, advantage, gathered[decltype(slot)::value]};
            auto const decided = op.decide(sums);
            if constexpr (std::is_same_v<std::remove_cv_t<decltype(decided)>, sequence_factor>) {
                out.weight *= decided.value;
                out.keep = out.keep && decided.keep;
                out.capped = out.capped || decided.capped;
            } else {
                out.log_ratio = decided.log_ratio;
                out.spread = decided.spread;
            }
        });
        return out;
    }

  private:
    template <typename Visit>
    ASYNCRL_HOST_DEVICE void for_each(Visit visit_part) const {
        for_all(parts, visit_part, std::index_sequence_for<Parts...>{});
    }
    template <typename Visit>
    ASYNCRL_HOST_DEVICE void for_each(Visit visit_part) {
        for_all(parts, visit_part, std::index_sequence_for<Parts...>{});
    }
    template <typename Tuple, typename Visit, std::size_t... Index>
    static ASYNCRL_HOST_DEVICE void for_all(Tuple& all, Visit& visit_part, std::index_sequence<Index...>) {
        (visit_part(get<Index>(all)), ...);
    }
    /// How many of the parts before `index` gather a statistic.
    [[nodiscard]] static ASYNCRL_HOST_DEVICE constexpr int slot_of_part(std::size_t index) {
        constexpr bool gathers[] = {(Parts::kind == role::sequence_weight || Parts::kind == role::coupling)...};
        int slot = 0;
        for (std::size_t i = 0; i < index; ++i) {
            slot += gathers[i] ? 1 : 0;
        }
        return slot;
    }
    /// Calls visit(slot, op) for parts that gather a statistic, the slot a std::integral_constant: arrays of them stay in
    /// registers.
    template <typename Visit>
    ASYNCRL_HOST_DEVICE void for_each_statistic(Visit visit_op) const {
        for_each_statistic_of(visit_op, std::index_sequence_for<Parts...>{});
    }
    template <typename Visit, std::size_t... Index>
    ASYNCRL_HOST_DEVICE void for_each_statistic_of(Visit& visit_op, std::index_sequence<Index...>) const {
        (one_statistic<Index>(get<Index>(parts), visit_op), ...);
    }
    template <std::size_t Index, typename Part, typename Visit>
    static ASYNCRL_HOST_DEVICE void one_statistic(Part const& part, Visit& visit_op) {
        if constexpr (Part::kind == role::sequence_weight || Part::kind == role::coupling) {
            visit_op(std::integral_constant<int, slot_of_part(Index)>{}, part.op);
        }
    }
    template <role Kind, typename Visit>
    ASYNCRL_HOST_DEVICE void visit(Visit visit_op) const {
        for_each([&](auto const& part) {
            if constexpr (std::remove_cvref_t<decltype(part)>::kind == Kind) {
                visit_op(part.op);
            }
        });
    }
    template <typename Op, typename Real, typename Math>
    [[nodiscard]] static ASYNCRL_HOST_DEVICE auto call(Op const& op, token<Real> const& t, Math const& math) {
        if constexpr (requires { op(t, math); }) {
            return op(t, math);
        } else {
            return op(t);
        }
    }

    template <bool Alone, typename Real, typename Math>
    [[nodiscard]] ASYNCRL_HOST_DEVICE token_outcome<Real> evaluate(token<Real> t, sequence_context<Real> const& s,
                                                                   Math const& math) const {
        term<Real> inner{Real(0), Real(1), no_bits<Real>()};  // how the sequence's ratio moves with the token's own
        if constexpr ((needs & has_coupling) != 0) {
            visit<role::coupling>([&](auto const& op) {
                if constexpr (requires { op.inner(t); }) {
                    inner = op.inner(t);
                }
            });
            t.log_ratio = s.log_ratio;
            t.ratio = s.ratio;
            if constexpr ((needs & averages_advantage) != 0) {
                t.advantage = s.advantage;
            }
        }
        mask_of<Real> at_clamp = !always<Real>();
        visit<role::clamp>([&](auto const& op) { at_clamp = op.apply(t); });

        term<Real> loss{Real(0), Real(0), no_bits<Real>()};
        visit<role::surrogate>([&](auto const& op) { loss = call(op, t, math); });

        factor<Real> weight{Real(1), always<Real>(), no_bits<Real>()};
        visit<role::weight>([&](auto const& op) {
            factor<Real> const next = call(op, t, math);
            weight.value = weight.value * next.value;
            weight.keep = weight.keep & next.keep;
            weight.flags = weight.flags | next.flags;
        });
        if constexpr ((needs & has_sequences) != 0) {
            weight.value = weight.value * s.weight;
            weight.keep = weight.keep & s.keep;
            weight.flags = weight.flags | mark(!s.keep, gated_sequence) | mark(s.capped, capped);
        }
        Real const effective = select(weight.keep, weight.value, Real(0));
        token_outcome<Real> out{effective * loss.value,
                                effective * loss.slope,
                                Real(0),
                                effective,
                                weight.keep,
                                loss.flags | weight.flags | mark(!weight.keep, gated)};
        if constexpr ((needs & has_clamp) != 0) {
            out.flags = out.flags | mark(at_clamp, clamped);
            if constexpr ((needs & scores) == 0) {
                out.slope = select(at_clamp, Real(0), out.slope);
            }
        }
        if constexpr (Alone) {
            return out;
        }
        if constexpr ((needs & has_coupling) != 0 && (needs & scores) == 0) {
            out.slope = ((needs & shares_slope) != 0 ? s.slope : out.slope) * (inner.slope * s.spread);
            out.flags = out.flags | inner.flags;
        }
        visit<role::penalty>([&](auto const& op) {
            term<Real> const next = call(op, t, math);
            out.penalty = out.penalty + next.value;
            out.slope = out.slope + next.slope;
            out.flags = out.flags | next.flags;
        });
        out.value = out.value + out.penalty;
        mask_of<Real> const matters = (t.advantage < Real(0)) | (t.advantage > Real(0));
        out.flags = select_bits(matters, out.flags, no_bits<Real>());
        return out;
    }
};

template <role Kind, typename... Parts>
inline constexpr int parts_of = (0 + ... + static_cast<int>(Parts::kind == Kind));
template <std::uint32_t Need, typename... Parts>
inline constexpr int parts_with = (0 + ... + static_cast<int>((Parts::needs & Need) != 0));
template <typename... Parts>
inline constexpr bool surrogate_uses_ratio = (false || ... ||
                                              (Parts::kind == role::surrogate && (Parts::needs & uses_ratio) != 0));

}  // namespace detail

/// An objective: exactly one surrogate and one reduction, at most one anchor and one coupling, any number of weights, masks and
/// penalties, in any order.
///
/// L_t = sg(product of weights) * surrogate(new log-prob, advantage) + penalties; the first term is 0 where a mask rejects the
/// token. Construction throws `std::invalid_argument` naming the field of a part whose number cannot be meant.
template <typename... Parts>
class objective {
    static_assert((objective_part<Parts> && ...),
                  "asyncrl: each argument is a part: a type with `kind`, `needs` and, where its role has a functor, "
                  "`bind<Number>()`");
    static_assert(detail::parts_of<role::surrogate, Parts...> == 1,
                  "asyncrl: an objective has exactly one surrogate (ppo_clip, policy_gradient, ...)");
    static_assert(detail::parts_of<role::reduction, Parts...> == 1,
                  "asyncrl: an objective names exactly one reduction (token_mean, sequence_mean_token_mean, ...)");
    static_assert(detail::parts_of<role::anchor, Parts...> <= 1, "asyncrl: an objective has at most one anchor");
    static_assert(detail::parts_of<role::coupling, Parts...> <= 1, "asyncrl: an objective has at most one coupling");
    static_assert(detail::parts_of<role::clamp, Parts...> <= 1, "asyncrl: an objective has at most one clamp");
    static constexpr std::uint32_t stated = (0U | ... | Parts::needs);
    static constexpr bool twice_is_meant = (stated & allows_double) != 0;
    static_assert(
        twice_is_meant || !((stated & anchors_rollout) != 0 && (stated & weighs_mismatch) != 0),
        "asyncrl: the ratio is already new / rollout (anchor_rollout); a weight on old / rollout would count rollout twice "
        "(say count_twice{} if that is meant)");
    static_assert(twice_is_meant || detail::parts_with<weighs_mismatch, Parts...> <= 1,
                  "asyncrl: an objective has at most one weight on old / rollout; two would count rollout twice "
                  "(say count_twice{} if that is meant)");
    static_assert(detail::parts_of<role::anchor, Parts...> == 0 || (stated & (uses_ratio | anchors_between)) != 0,
                  "asyncrl: the anchor of the ratio is named, but no part uses the ratio");
    static_assert(!((stated & of_one_token) != 0 && detail::parts_of<role::coupling, Parts...> != 0),
                  "asyncrl: this surrogate is about single tokens; it has no meaning for the ratio of a sequence");
    static_assert(detail::parts_of<role::coupling, Parts...> == 0 || detail::surrogate_uses_ratio<Parts...>,
                  "asyncrl: the tokens of a sequence are coupled through the ratio, but the surrogate uses none");
    static_assert(!((stated & shares_slope) != 0 && (stated & scores) != 0),
                  "asyncrl: a surrogate in score form has no slope through the ratio to share");
    static_assert((stated & batch_weight) == 0 ||
                      (detail::parts_of<role::weight, Parts...> + detail::parts_of<role::sequence_weight, Parts...>) > 1,
                  "asyncrl: normalised_weights needs another weight to normalise");

    static constexpr bool reads_no_old = (stated & (anchors_rollout | reads_anchor | anchors_between)) != 0;
    static constexpr std::uint32_t columns =
        ((stated & uses_ratio) != 0 && !reads_no_old ? std::uint32_t{reads_old} : 0U) |
        ((stated & uses_mismatch) != 0 ? std::uint32_t{reads_rollout} : 0U) |
        ((stated & (uses_mismatch | reads_sync)) != 0 && (stated & anchors_between) == 0 ? std::uint32_t{reads_old} : 0U) |
        ((stated & reads_sync) != 0 ? std::uint32_t{reads_rollout} : 0U);

    // Where weights differ within a sequence, what all of its tokens get is the mean of their slopes.
    static constexpr std::uint32_t shared =
        (stated & averages_advantage) != 0 && (stated & scores) == 0 && detail::parts_of<role::weight, Parts...> != 0
            ? std::uint32_t{shares_slope}
            : 0U;

  public:
    static constexpr std::uint32_t needs =
        stated | columns | shared | (detail::parts_of<role::weight, Parts...> != 0 ? std::uint32_t{has_weights} : 0U) |
        (detail::parts_of<role::penalty, Parts...> != 0 ? std::uint32_t{has_penalties} : 0U) |
        (detail::parts_of<role::clamp, Parts...> != 0 ? std::uint32_t{has_clamp} : 0U) |
        (detail::parts_of<role::coupling, Parts...> != 0 ? std::uint32_t{has_coupling | has_sequences} : 0U) |
        (detail::parts_of<role::sequence_weight, Parts...> != 0 ? std::uint32_t{has_weights | has_sequences} : 0U);

    explicit objective(Parts... parts) : parts_{{parts}...} {
        auto const check = [](auto const& part) {
            if constexpr (requires { part.check(); }) {
                part.check();
            }
        };
        (check(parts), ...);
    }

    /// The functor for loops over `Number` (float or double): every bound is computed in double and rounded once, here.
    template <typename Number>
    [[nodiscard]] auto bind() const {
        return bind_all<Number>(std::index_sequence_for<Parts...>{}, detail::bound_objective<needs>{});
    }

    [[nodiscard]] detail::reduction_rule rule() const {
        return find(
            detail::reduction_rule{}, [](auto const& part) -> decltype(part.rule()) { return part.rule(); },
            std::index_sequence_for<Parts...>{});
    }

    /// Whether the order statistic is interpolated, and whether each sequence counts once; see sat_clip.
    [[nodiscard]] bool interpolates_quantile() const requires((needs & batch_quantile) != 0) {
        return find(
            false, [](auto const& part) -> decltype(part.interpolate) { return part.interpolate; },
            std::index_sequence_for<Parts...>{});
    }
    [[nodiscard]] bool ranks_sequences() const requires((needs & batch_quantile) != 0) {
        return find(
            false, [](auto const& part) -> decltype(part.each_sequence) { return part.each_sequence; },
            std::index_sequence_for<Parts...>{});
    }

    /// The share of the batch whose order statistic the surrogate asks for.
    [[nodiscard]] fraction quantile() const requires((needs & batch_quantile) != 0) {
        return find(
            fraction{1, 1}, [](auto const& part) -> decltype(part.quantile) { return part.quantile; },
            std::index_sequence_for<Parts...>{});
    }

  private:
    template <std::size_t Index>
    using part_at = std::remove_cvref_t<decltype(detail::get<Index>(std::declval<detail::tuple<Parts...>&>()))>;
    template <typename Part>
    static constexpr bool has_op = Part::kind != role::anchor&& Part::kind != role::reduction&& Part::kind != role::option;

    // Recursion over the parts that carry a functor; the others leave no trace in the bound type.
    template <typename Number, std::size_t First, std::size_t... Rest, typename... Done>
    [[nodiscard]] auto bind_all(std::index_sequence<First, Rest...>, detail::bound_objective<needs, Done...> done) const {
        using part = part_at<First>;
        if constexpr (has_op<part>) {
            auto op = detail::get<First>(parts_).template bind<Number>();
            return bind_all<Number>(
                std::index_sequence<Rest...>{},
                append(done, detail::bound_part<part::kind, decltype(op)>{op}, std::index_sequence_for<Done...>{}));
        } else {
            return bind_all<Number>(std::index_sequence<Rest...>{}, done);
        }
    }
    template <typename Number, typename... Done>
    [[nodiscard]] auto bind_all(std::index_sequence<>, detail::bound_objective<needs, Done...> done) const {
        return done;
    }
    template <typename... Done, typename Next, std::size_t... Index>
    [[nodiscard]] static auto append(detail::bound_objective<needs, Done...> const& done, Next next,
                                     std::index_sequence<Index...>) {
        return detail::bound_objective<needs, Done..., Next>{{{detail::get<Index>(done.parts)}..., {next}}};
    }

    /// What `read` gives for the part it can be called with.
    template <typename Found, typename Read, std::size_t... Index>
    [[nodiscard]] Found find(Found found, Read read, std::index_sequence<Index...>) const {
        auto const look = [&](auto const& part) {
            if constexpr (std::is_invocable_v<Read, decltype(part)>) {
                found = read(part);
            }
        };
        (look(detail::get<Index>(parts_)), ...);
        return found;
    }

    [[no_unique_address]] detail::tuple<Parts...> parts_;
};

/// Composes an objective from its parts: `make_objective(ppo_clip{.low = 0.2, .high = 0.28}, tis{.cap = 2}, token_mean{})`.
template <typename... Parts>
[[nodiscard]] objective<Parts...> make_objective(Parts... parts) {
    return objective<Parts...>(parts...);
}

ASYNCRL_END_NAMESPACE
