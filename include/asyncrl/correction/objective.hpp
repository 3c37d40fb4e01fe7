// SPDX-License-Identifier: Apache-2.0
/// @file Composes parts into one objective type. What it needs is known at compile time; its numbers are run-time values.
#pragma once

#include <asyncrl/correction/reduction.hpp>
#include <asyncrl/correction/token/sat.hpp>
#include <asyncrl/correction/token/surrogate.hpp>
#include <asyncrl/correction/token/weight.hpp>

#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

ASYNCRL_BEGIN_NAMESPACE

/// Anchors the ratio at the rollout policy instead of the old one (bypass: no old log-probs are computed).
struct anchor_rollout {
    static constexpr role kind = role::anchor;
    static constexpr std::uint32_t needs = reads_rollout | anchors_rollout;
};

/// A part names its role and needs; every part but anchors and reductions binds to a functor over `token`.
template <typename Part>
concept objective_part = requires {
    { Part::kind } -> std::convertible_to<role>;
    { Part::needs } -> std::convertible_to<std::uint32_t>;
};

/// The answer of a whole objective for one active token.
template <typename Real>
struct token_outcome {
    Real value;          ///< weighted loss, before the reduction
    Real slope;          ///< its derivative with respect to the new log-prob
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

/// The objective with its numbers in the loop's type: trivially copyable, the argument of a kernel or a host loop.
template <std::uint32_t Needs, typename... Parts>
struct bound_objective {
    static constexpr std::uint32_t needs = Needs;

    [[no_unique_address]] tuple<Parts...> parts;

    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE token_outcome<Real> operator()(token<Real> const& t) const {
        return evaluate(t, std::index_sequence_for<Parts...>{});
    }

    /// Hands the batch's order statistic to the parts that wait for it.
    ASYNCRL_HOST_DEVICE void prepare(double quantile) { prepare_all(quantile, std::index_sequence_for<Parts...>{}); }

    /// Only whether the masks keep the token, for counting.
    template <typename Real>
    [[nodiscard]] ASYNCRL_HOST_DEVICE mask_of<Real> keeps(token<Real> const& t) const {
        return keeps_all(t, std::index_sequence_for<Parts...>{});
    }

  private:
    template <typename Real, std::size_t... Index>
    [[nodiscard]] ASYNCRL_HOST_DEVICE token_outcome<Real> evaluate(token<Real> const& t, std::index_sequence<Index...>) const {
        term<Real> loss{Real(0), Real(0), no_bits<Real>()};
        factor<Real> weight{Real(1), always<Real>(), no_bits<Real>()};
        (accumulate(get<Index>(parts), t, loss, weight), ...);

        mask_of<Real> const matters = (t.advantage < Real(0)) | (t.advantage > Real(0));
        bits_of<Real> const flags = loss.flags | weight.flags | mark(!weight.keep, gated);
        Real const effective = select(weight.keep, weight.value, Real(0));
        return {effective * loss.value, effective * loss.slope, effective, weight.keep,
                select_bits(matters, flags, no_bits<Real>())};
    }

    template <std::size_t... Index>
    ASYNCRL_HOST_DEVICE void prepare_all(double quantile, std::index_sequence<Index...>) {
        (prepare_one(get<Index>(parts).op, quantile), ...);
    }
    template <typename Op>
    static ASYNCRL_HOST_DEVICE void prepare_one(Op& op, double quantile) {
        if constexpr (requires { op.prepare(quantile); }) {
            op.prepare(quantile);
        }
    }

    template <typename Part, typename Real>
    static ASYNCRL_HOST_DEVICE void accumulate(Part const& part, token<Real> const& t, term<Real>& loss, factor<Real>& weight) {
        if constexpr (Part::kind == role::surrogate) {
            loss = part.op(t);
        } else {
            factor<Real> const next = part.op(t);
            weight.value = weight.value * next.value;
            weight.keep = weight.keep & next.keep;
            weight.flags = weight.flags | next.flags;
        }
    }

    template <typename Real, std::size_t... Index>
    [[nodiscard]] ASYNCRL_HOST_DEVICE mask_of<Real> keeps_all(token<Real> const& t, std::index_sequence<Index...>) const {
        mask_of<Real> keep = always<Real>();
        auto const meet = [&](auto const& part) {
            if constexpr (std::remove_cvref_t<decltype(part)>::kind == role::weight) {
                keep = keep & part.op(t).keep;
            }
        };
        (meet(get<Index>(parts)), ...);
        return keep;
    }
};

template <role Kind, typename... Parts>
inline constexpr int parts_of = (0 + ... + static_cast<int>(Parts::kind == Kind));
template <std::uint32_t Need, typename... Parts>
inline constexpr int parts_with = (0 + ... + static_cast<int>((Parts::needs & Need) != 0));

}  // namespace detail

/// An objective: exactly one surrogate and one reduction, any number of weights, at most one anchor, in any order.
///
/// L_t = sg(product of weights) * surrogate(new log-prob, advantage), 0 where a mask rejects the token, reduced to one number.
/// Construction throws `std::invalid_argument` naming the field of a part whose number cannot be meant.
template <typename... Parts>
class objective {
    static_assert((objective_part<Parts> && ...),
                  "asyncrl: each argument is a part: a type with `kind`, `needs` and, unless it is an anchor or a reduction, "
                  "`bind<Number>()`");
    static_assert(detail::parts_of<role::surrogate, Parts...> == 1,
                  "asyncrl: an objective has exactly one surrogate (ppo_clip, policy_gradient, ...)");
    static_assert(detail::parts_of<role::reduction, Parts...> == 1,
                  "asyncrl: an objective names exactly one reduction (token_mean, sequence_mean_token_mean, ...)");
    static_assert(detail::parts_of<role::anchor, Parts...> <= 1, "asyncrl: an objective has at most one anchor");
    static constexpr std::uint32_t stated = (0U | ... | Parts::needs);
    static_assert(
        !((stated & anchors_rollout) != 0 && (stated & weighs_mismatch) != 0),
        "asyncrl: the ratio is already new / rollout (anchor_rollout); a weight on old / rollout would count rollout twice");
    static_assert(detail::parts_with<weighs_mismatch, Parts...> <= 1,
                  "asyncrl: an objective has at most one weight on old / rollout; two would count rollout twice");
    static_assert(detail::parts_of<role::anchor, Parts...> == 0 || (stated & uses_ratio) != 0,
                  "asyncrl: the anchor of the ratio is named, but the surrogate uses no ratio");

  public:
    static constexpr std::uint32_t needs =
        stated | ((stated & uses_ratio) != 0 && (stated & anchors_rollout) == 0 ? std::uint32_t{reads_old} : 0U) |
        ((stated & uses_mismatch) != 0 ? std::uint32_t{reads_old | reads_rollout} : 0U);

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
    static constexpr bool has_op = Part::kind == role::surrogate || Part::kind == role::weight;

    // Recursion over the parts that carry a functor; anchors and reductions leave no trace in the bound type.
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
