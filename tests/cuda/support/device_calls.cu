// SPDX-License-Identifier: Apache-2.0
#include "device_calls.hpp"

#include <asyncrl/cuda.cuh>

namespace device {

std::size_t workspace_bytes(asyncrl::token_batch const& shape) {
    return asyncrl::gpu::workspace_bytes(shape);
}

cudaError_t measure(method const& m, asyncrl::token_batch const& batch, asyncrl::totals* sums, scratch room,
                    cudaStream_t stream) {
    return methods::with_objective(m, [&](auto const& objective) {
        return asyncrl::gpu::measure(objective, batch, sums, {room.data, room.bytes}, stream);
    });
}

cudaError_t policy_loss(method const& m, asyncrl::token_batch const& batch, asyncrl::totals const* sums,
                        asyncrl::loss_outputs const& to, asyncrl::loss_report* report, scratch room,
                        asyncrl::loss_options const& options, cudaStream_t stream) {
    return methods::with_objective(m, [&](auto const& objective) {
        return asyncrl::gpu::policy_loss(objective, batch, sums, to, report, {room.data, room.bytes}, options, stream);
    });
}

cudaError_t policy_loss_in_fours(method const& m, asyncrl::token_batch const& batch, asyncrl::totals const* sums,
                                 asyncrl::loss_outputs const& to, asyncrl::loss_report* report, scratch room,
                                 asyncrl::loss_options const& options, cudaStream_t stream) {
    return methods::with_objective(m, [&](auto const& objective) {
        using asyncrl::gpu::vector_loads;
        return asyncrl::gpu::policy_loss<vector_loads::any>(objective, batch, sums, to, report, {room.data, room.bytes},
                                                            options, stream);
    });
}

std::string measure_refusal(method const& m, asyncrl::token_batch const& batch, asyncrl::totals const* sums, scratch room) {
    return methods::with_objective(m, [&](auto const& objective) {
        return asyncrl::gpu::measure_refusal(objective, batch, sums, {room.data, room.bytes});
    });
}

std::string policy_loss_refusal(method const& m, asyncrl::token_batch const& batch, asyncrl::totals const* sums,
                                asyncrl::loss_outputs const& to, asyncrl::loss_report const* report, scratch room,
                                asyncrl::loss_options const& options) {
    return methods::with_objective(m, [&](auto const& objective) {
        return asyncrl::gpu::policy_loss_refusal(objective, batch, sums, to, report, {room.data, room.bytes}, options);
    });
}

std::string refusal_by_needs(std::uint32_t needs, asyncrl::token_batch const& batch, asyncrl::totals const* sums,
                             scratch room) {
    asyncrl::gpu::detail::erased_objective const objective{.needs = needs, .rule = {}, .with = nullptr, .count_kept = nullptr};
    return asyncrl::gpu::detail::sentence(
        asyncrl::gpu::detail::fault_of_measure(objective, batch, sums, {room.data, room.bytes}));
}

std::string stored_refusal(void* numbers, asyncrl::token_batch const& batch, asyncrl::totals* sums, scratch room,
                           cudaError_t& error) {
    asyncrl::gpu::stored_objective const objective(
        asyncrl::make_objective(asyncrl::policy_gradient{}, methods::any_reduction{}), numbers);
    error = asyncrl::gpu::measure(objective, batch, sums, {room.data, room.bytes}, nullptr);
    return asyncrl::gpu::measure_refusal(objective, batch, sums, {room.data, room.bytes});
}

cudaError_t both_on_grid(method const& m, asyncrl::token_batch const& batch, asyncrl::totals* sums,
                         asyncrl::loss_outputs const& to, asyncrl::loss_report* report, scratch room, unsigned blocks,
                         cudaStream_t stream) {
    namespace detail = asyncrl::gpu::detail;
    return methods::with_objective(m, [&](auto const& objective) {
        using objective_type = std::remove_cvref_t<decltype(objective)>;
        asyncrl::gpu::workspace const scratch{room.data, room.bytes};
        cudaError_t const error = asyncrl::gpu::measure(objective, batch, sums, scratch, stream);
        if (error != cudaSuccess) {
            return error;
        }
        detail::functor<detail::bound_type<objective_type>> with{objective.template bind<float>()};
        detail::erased_objective const erased = detail::erased(objective, with);
        detail::workspace_layout const at(batch, scratch.data);
        detail::launcher launch(stream);
        if (erased.weigh != nullptr) {
            detail::launch_weight(erased, batch, sums, at, blocks, launch);
        }
        if constexpr ((objective_type::needs & asyncrl::batch_quantile) != 0) {
            detail::launch_quantile<false>(erased, batch, sums, at, blocks, blocks % 2 != 0, launch);
        }
        return detail::launch_loss(erased, detail::kernels_of<asyncrl::gpu::vector_loads::f32, objective_type>(), batch, sums,
                                   to, report, scratch, {}, blocks, stream);
    });
}

std::int64_t chunk_positions(std::int64_t size) {
    return asyncrl::gpu::detail::chunk_positions(size);
}

std::int64_t chunks_of(std::int64_t size) {
    return asyncrl::gpu::detail::chunks_of(size);
}

std::int64_t most_chunks(std::int64_t size) {
    return asyncrl::gpu::detail::most_chunks(size);
}

__global__ void places_kernel(asyncrl::token_batch shape, std::int64_t const* positions, row_and_token* places) {
    asyncrl::gpu::detail::place const found = asyncrl::gpu::detail::place_of(shape, positions[threadIdx.x]);
    places[threadIdx.x] = {found.row, found.position};
}

std::vector<row_and_token> places_of(asyncrl::token_batch const& shape, std::vector<std::int64_t> const& positions) {
    std::vector<row_and_token> places(positions.size());
    std::int64_t* from = nullptr;
    row_and_token* to = nullptr;
    (void)cudaMalloc(&from, positions.size() * sizeof *from);
    (void)cudaMalloc(&to, places.size() * sizeof *to);
    (void)cudaMemcpy(from, positions.data(), positions.size() * sizeof *from, cudaMemcpyHostToDevice);
    places_kernel<<<1, static_cast<unsigned>(positions.size())>>>(shape, from, to);
    (void)cudaMemcpy(places.data(), to, places.size() * sizeof *to, cudaMemcpyDeviceToHost);
    (void)cudaFree(from);
    (void)cudaFree(to);
    return places;
}

cudaError_t measure_by_window(method const& m, asyncrl::token_batch const& batch, asyncrl::totals* sums, scratch room,
                              cudaStream_t stream) {
    namespace detail = asyncrl::gpu::detail;
    return methods::with_objective(m, [&](auto const& objective) {
        using objective_type = std::remove_cvref_t<decltype(objective)>;
        cudaError_t const error = asyncrl::gpu::measure(objective, batch, sums, {room.data, room.bytes}, stream);
        if constexpr ((objective_type::needs & asyncrl::batch_quantile) != 0) {
            if (error == cudaSuccess && batch.size() > 0) {
                detail::functor<detail::bound_type<objective_type>> with{objective.template bind<float>()};
                detail::launcher launch(stream);
                detail::launch_quantile<false>(detail::erased(objective, with), batch, sums,
                                               detail::workspace_layout(batch, room.data), 3, true, launch);
                return launch.error();
            }
        }
        return error;
    });
}

search_state search_of(asyncrl::token_batch const& shape, scratch room) {
    asyncrl::gpu::detail::workspace_layout const at(shape, room.data);
    asyncrl::gpu::quantile_search search{};
    (void)cudaMemcpy(&search, at.quantile, sizeof search, cudaMemcpyDeviceToHost);
    return {search.progress.overflow != 0, search.progress.windowed != 0};
}

}  // namespace device
