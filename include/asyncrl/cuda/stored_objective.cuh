// SPDX-License-Identifier: Apache-2.0
/// @file An objective whose numbers lie in device memory: for captured graphs, which freeze what is passed by value.
#pragma once

#include <asyncrl/correction/objective.hpp>
#include <asyncrl/cuda/detail/device.cuh>

#include <cstddef>
#include <cstdint>

ASYNCRL_BEGIN_NAMESPACE
namespace gpu {
namespace detail {

template <typename Bound>
__global__ void store_numbers_kernel(functor<Bound> const given, Bound* at) {
    *at = given.objective;
}

}  // namespace detail

/// Takes an objective's place in `measure`, `policy_loss` and `quantile_search`: their kernels read its bounds, caps and
/// coefficients from device memory when they run, so that a schedule may change them between replays of a captured graph. What
/// the host reads stays as it was given: the reduction, and the share and kind of an order statistic.
///
/// `numbers`: `bytes` of device memory, aligned to 16 bytes, which outlive the calls; `store` writes them. An objective of
/// another type, and so other kernels than those of the plain one: a program that uses both compiles both.
template <typename Objective>
class stored_objective {
    using bound = decltype(std::declval<Objective const&>().template bind<float>());

  public:
    static constexpr std::uint32_t needs = Objective::needs;
    static constexpr std::size_t bytes = sizeof(bound);

    explicit stored_objective(Objective const& objective, void* numbers)
        : objective_(objective), numbers_(static_cast<bound*>(numbers)) {}

    /// Writes the numbers of `objective`, behind what `stream` holds; asynchronous, one small launch, may be captured.
    /// @return cudaErrorInvalidValue before it is launched, if there is no memory or what the host reads differs from what was
    ///         given to the constructor; else what the launch gave.
    [[nodiscard]] cudaError_t store(Objective const& objective, cudaStream_t stream) const {
        if (!has_numbers() || !reads_alike(objective)) {
            return cudaErrorInvalidValue;
        }
        detail::launcher launch(stream);
        launch(detail::store_numbers_kernel<bound>, 1, 1, detail::functor<bound>{objective.template bind<float>()}, numbers_);
        return launch.error();
    }

    [[nodiscard]] bool has_numbers() const {
        return numbers_ != nullptr && reinterpret_cast<std::uintptr_t>(numbers_) % 16 == 0;
    }

    // What calls ask of an objective.
    template <typename Number>
    [[nodiscard]] detail::stored_numbers<bound> bind() const {
        return {numbers_};
    }
    [[nodiscard]] asyncrl::detail::reduction_rule rule() const { return objective_.rule(); }
    [[nodiscard]] fraction quantile() const requires((needs & batch_quantile) != 0) { return objective_.quantile(); }
    [[nodiscard]] bool interpolates_quantile() const requires((needs & batch_quantile) != 0) {
        return objective_.interpolates_quantile();
    }
    [[nodiscard]] bool ranks_sequences() const requires((needs & batch_quantile) != 0) { return objective_.ranks_sequences(); }

  private:
    [[nodiscard]] bool reads_alike(Objective const& other) const {
        bool alike = rule() == other.rule();
        if constexpr ((needs & batch_quantile) != 0) {
            alike = alike && quantile() == other.quantile() && interpolates_quantile() == other.interpolates_quantile() &&
                    ranks_sequences() == other.ranks_sequences();
        }
        return alike;
    }

    Objective objective_;
    bound* numbers_;
};

}  // namespace gpu
ASYNCRL_END_NAMESPACE
