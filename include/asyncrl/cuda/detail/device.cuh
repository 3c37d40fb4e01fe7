// SPDX-License-Identifier: Apache-2.0
/// @file What all kernels share: reading columns in device memory, and the checks and conventions of a call.
#pragma once

#if !defined(__CUDACC__)
#error "asyncrl's cuda headers are for .cu files: call them from a .cu of yours, and that from anywhere"
#endif

#include <asyncrl/correction/loss_options.hpp>
#include <asyncrl/correction/token/tally.hpp>
#include <asyncrl/correction/token_batch.hpp>
#include <asyncrl/cuda/detail/argument_list.cuh>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

ASYNCRL_BEGIN_NAMESPACE
namespace gpu {

/// Which dense, aligned columns of floats a loss reads and writes four elements at a time: those of f32, 16 bytes each, or of
/// bf16 and f16 too, 8 bytes each. What is left goes element by element, with the same result.
enum class vector_loads { f32, any };

namespace detail {

inline constexpr int block_threads = 256;

/// Parts that ask for these wait for the totals of the step.
inline constexpr std::uint32_t awaits_totals = batch_quantile | batch_weight;

/// Adds to a number that other blocks add to as well.
__device__ __forceinline__ void atomic_add(std::int64_t* to, std::int64_t x) {
    atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(x));
}

/// The transcendental functions of kernels. exp is one multiplication and ex2: 2 ulp plus the product's rounding, 1e-6 relative
/// at |x| = 20.
struct device_math {
    [[nodiscard]] __device__ __forceinline__ float exp(float x) const { return exp2f(x * 1.44269504088896340736F); }
    [[nodiscard]] __device__ __forceinline__ float expm1(float x) const { return expm1f(x); }
    [[nodiscard]] __device__ __forceinline__ float log(float x) const { return logf(x); }
    [[nodiscard]] __device__ __forceinline__ float log1p(float x) const { return log1pf(x); }
};

/// A position of the batch, counted row after row, as columns address it.
struct place {
    std::int64_t row;
    std::int64_t position;

    [[nodiscard]] __device__ __forceinline__ std::int64_t in(std::int64_t row_stride, std::int64_t token_stride) const {
        return row * row_stride + position * token_stride;
    }
};

[[nodiscard]] __device__ __forceinline__ float load_element(column const& c, place p) {
    std::int64_t const at = p.in(c.row_stride, c.token_stride);
    switch (c.type) {
        case dtype::bf16:
            return __bfloat162float(static_cast<__nv_bfloat16 const*>(c.data)[at]);
        case dtype::f16:
            return __half2float(static_cast<__half const*>(c.data)[at]);
        default:
            return static_cast<float const*>(c.data)[at];
    }
}

__device__ __forceinline__ void store_element(output_column const& c, place p, float x) {
    std::int64_t const at = p.in(c.row_stride, c.token_stride);
    switch (c.type) {
        case dtype::bf16:
            static_cast<__nv_bfloat16*>(c.data)[at] = __float2bfloat16_rn(x);
            break;
        case dtype::f16:
            static_cast<__half*>(c.data)[at] = __float2half_rn(x);
            break;
        default:
            static_cast<float*>(c.data)[at] = x;
    }
}

[[nodiscard]] __device__ __forceinline__ place place_of(token_batch const& batch, std::int64_t at) {
    if (!batch.packed()) {
        if (((at | batch.tokens) >> 32) == 0) {  // a 64-bit division is several times as long
            auto const narrow = static_cast<std::uint32_t>(at);
            auto const tokens = static_cast<std::uint32_t>(batch.tokens);
            return {narrow / tokens, narrow % tokens};
        }
        return {at / batch.tokens, at % batch.tokens};
    }
    std::int64_t low = 0;
    std::int64_t high = batch.rows;
    while (high - low > 1) {  // the last row whose offset is <= at, so that empty rows are passed over
        std::int64_t const middle = low + (high - low) / 2;
        if (batch.offsets[middle] <= at) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return {low, at};
}

/// The place after `here`, which is not the batch's last.
[[nodiscard]] __device__ __forceinline__ place next_place(token_batch const& batch, place here) {
    ++here.position;
    if (!batch.packed()) {
        return here.position < batch.tokens ? here : place{here.row + 1, 0};
    }
    while (here.position >= batch.offsets[here.row + 1]) {
        ++here.row;
    }
    return here;
}

/// An element of a column of flags; true where there is no column.
[[nodiscard]] __device__ __forceinline__ bool is_set(column const& flags, place p) {
    return !flags || static_cast<std::uint8_t const*>(flags.data)[p.in(flags.row_stride, flags.token_stride)] != 0;
}

/// Whether four consecutive positions are one aligned access wherever the first is a multiple of four: 16 bytes of f32 and
/// i32, 8 of bf16 and f16, 4 of flags.
template <typename Column>
[[nodiscard]] inline bool loads_in_fours(Column const& c, token_batch const& batch) {
    bool const dense = c.token_stride == 1 && c.row_stride == (batch.packed() ? 0 : batch.tokens);
    auto const bytes = static_cast<std::uintptr_t>(4 * bytes_of(c.type));
    return c && dense && bytes <= 16 && reinterpret_cast<std::uintptr_t>(c.data) % bytes == 0;
}
/// The same of a column of floats, for kernels that load these types.
template <typename Column>
[[nodiscard]] inline bool loads_in_fours(Column const& c, token_batch const& batch, vector_loads types) {
    return (c.type == dtype::f32 || types == vector_loads::any) && loads_in_fours(c, batch);
}

/// What was decided of one sequence, as tokens load it.
struct alignas(16) sequence_floats {
    std::uint32_t tokens;  ///< live
    float weight, log_ratio, ratio, spread, advantage, slope;
    std::uint32_t keep_and_capped;  ///< bits 0 and 1
};

/// A batch as kernels take it: with what the host knows about its columns.
struct device_batch {
    token_batch batch;
    column columns[input_count];  ///< those that are needed, in the order of `input`, for loops over them
    int column_count = 0;
    float unscored;
    bool columns_in_fours;  ///< every needed column but the advantage, the mask and the flags
    bool advantage_in_fours;
    bool dense;                                  ///< both, and nothing else depends on the row
    sequence_floats const* sequences = nullptr;  ///< what was decided of each, for parts that speak of them

    /// Of a token in this sequence.
    [[nodiscard]] __device__ __forceinline__ sequence_context<float> context(std::int64_t sequence) const {
        sequence_floats const v = sequences[sequence];
        return {v.weight,
                v.log_ratio,
                v.ratio,
                v.spread,
                v.advantage,
                v.slope,
                (v.keep_and_capped & 1U) != 0,
                (v.keep_and_capped & 2U) != 0};
    }
    /// Of the token at `p`.
    [[nodiscard]] __device__ __forceinline__ sequence_context<float> context_at(place p) const {
        return context(batch.segments ? place_of(sequences_of(batch), p.position).row : p.row);
    }

    /// Whether a quad in one row has its advantage in one load.
    [[nodiscard]] __device__ __forceinline__ bool advantage_at_once() const {
        return advantage_in_fours || batch.advantage.token_stride == 0;
    }

    /// `by_row`: something beside the columns depends on the row. Inlined into every launch it would cost a .cu a fifth of a
    /// second.
    [[gnu::noinline]] device_batch(token_batch const& b, std::uint32_t needs, vector_loads loads, bool by_row = false)
        : batch(b),
          unscored(static_cast<float>(stored_sentinel(b))),
          columns_in_fours((!b.mask || loads_in_fours(b.mask, b)) && ((needs & reads_keep) == 0 || loads_in_fours(b.keep, b))),
          advantage_in_fours(loads_in_fours(b.advantage, b, loads)) {
        for (int i = 0; i < input_count; ++i) {
            auto const which = static_cast<input>(i);
            if (is_needed(which, needs)) {
                column const& c = column_of(b, which);
                columns[column_count++] = c;
                bool const in_fours = which == input::staleness ? loads_in_fours(c, b) : loads_in_fours(c, b, loads);
                columns_in_fours = columns_in_fours && (which == input::advantage || in_fours);
            }
        }
        bool const speaks = (needs & has_sequences) != 0;
        columns_in_fours = columns_in_fours && !(speaks && b.segments);  // a quad would have to lie in one segment
        dense = columns_in_fours && advantage_in_fours && !by_row && !speaks;
    }

    void go_by_token() { columns_in_fours = dense = false; }
};

/// Four consecutive positions, the first a multiple of four, and how many of them are in the batch.
struct quad {
    std::int64_t at;
    int count;

    [[nodiscard]] __device__ __forceinline__ bool full() const { return count == 4; }

    /// Calls visit(index, place) for those in the batch, of which `here` is the first. The loop stays rolled: this is the way
    /// for what is not dense or not float, and its code should cost kernels neither registers nor compile time.
    template <typename Visit>
    __device__ __forceinline__ void for_each_place(token_batch const& batch, place here, Visit visit) const {
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
            visit(i, here);
            if (i + 1 < count) {
                here = next_place(batch, here);
            }
        }
    }
};

/// How a token is weighted: by factor / denominator, and by its row's count too where there is one.
struct device_scale {
    float factor;                     ///< options.scale / divisor
    std::int64_t const* denominator;  ///< in the device's totals; null: 1
    std::int64_t const* row_counts;   ///< null: none
    float const* upstream;            ///< a further factor of the gradient; null: 1

    [[nodiscard]] __device__ __forceinline__ float common() const {
        return denominator == nullptr ? factor : over(factor, *denominator);
    }
    [[nodiscard]] static __device__ __forceinline__ float over(float x, std::int64_t count) {
        return count > 0 ? x / static_cast<float>(count) : 0.0F;
    }
};

/// The inputs of four tokens: columns by `input`, flags a byte each.
struct quad_inputs {
    float4 columns[input_count];
    float scale;
    std::uint32_t mask, keep;

    [[nodiscard]] __device__ __forceinline__ bool active(int i) const { return (mask & (0xffU << (8 * i))) != 0; }

    /// With a constant index, once inlined.
    template <std::uint32_t Needs>
    [[nodiscard]] __device__ __forceinline__ token_inputs<float> token(int i) const {
        token_inputs<float> x = read_inputs<Needs, float>([&](auto which) {
            float4 const& four = columns[static_cast<int>(decltype(which)::value)];
            return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
        });
        x.keep = (keep & (0xffU << (8 * i))) != 0;
        return x;
    }
};

/// Four elements as they stand in memory: two to a word where they are 16 bits. Converted by `four_of` only when the loads of
/// all columns are on their way.
template <bool AnyType>
[[nodiscard]] __device__ __forceinline__ float4 load_four(column const& c, quad const& q) {
    if (!AnyType || c.type == dtype::f32) {
        return __ldcs(reinterpret_cast<float4 const*>(static_cast<float const*>(c.data) + q.at));
    }
    uint2 const bits = __ldcs(reinterpret_cast<uint2 const*>(static_cast<std::uint16_t const*>(c.data) + q.at));
    float4 words;  // the other two are never read
    words.x = __uint_as_float(bits.x);
    words.y = __uint_as_float(bits.y);
    return words;
}
template <bool AnyType>
[[nodiscard]] __device__ __forceinline__ float4 four_of(column const& c, float4 loaded) {
    if (!AnyType || c.type == dtype::f32) {
        return loaded;
    }
    std::uint32_t const words[] = {__float_as_uint(loaded.x), __float_as_uint(loaded.y)};
    if (c.type == dtype::bf16) {
        constexpr std::uint32_t high = 0xffff0000U;
        return {__uint_as_float(words[0] << 16), __uint_as_float(words[0] & high), __uint_as_float(words[1] << 16),
                __uint_as_float(words[1] & high)};
    }
    float2 const first = __half22float2(reinterpret_cast<__half2 const&>(words[0]));
    float2 const second = __half22float2(reinterpret_cast<__half2 const&>(words[1]));
    return {first.x, first.y, second.x, second.y};
}
template <typename Two>
__device__ __forceinline__ void store_twos(output_column const& c, quad const& q, Two low, Two high) {
    __stcs(reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(c.data) + q.at),
           uint2{reinterpret_cast<std::uint32_t const&>(low), reinterpret_cast<std::uint32_t const&>(high)});
}
template <bool AnyType>
__device__ __forceinline__ void store_four(output_column const& c, quad const& q, float4 x) {
    if (!AnyType || c.type == dtype::f32) {
        __stcs(reinterpret_cast<float4*>(static_cast<float*>(c.data) + q.at), x);
    } else if (c.type == dtype::bf16) {
        store_twos(c, q, __floats2bfloat162_rn(x.x, x.y), __floats2bfloat162_rn(x.z, x.w));
    } else {
        store_twos(c, q, __floats2half2_rn(x.x, x.y), __floats2half2_rn(x.z, x.w));
    }
}
[[nodiscard]] __device__ __forceinline__ std::uint32_t load_four_flags(column const& c, quad const& q) {
    return c ? __ldcs(reinterpret_cast<std::uint32_t const*>(static_cast<std::uint8_t const*>(c.data) + q.at)) : ~0U;
}
[[nodiscard]] __device__ __forceinline__ float4 load_four_staleness(token_batch const& b, quad const& q) {
    int4 const v = __ldcs(reinterpret_cast<int4 const*>(static_cast<std::int32_t const*>(b.version.data) + q.at));
    std::int64_t const newest = b.newest_version();
    auto const age = [newest](int version) { return static_cast<float>(staleness_of(version, newest)); };
    return {age(v.x), age(v.y), age(v.z), age(v.w)};
}

/// Of a quad in one row, whose first token is at `first`; as it stands in memory where it is loaded in fours.
template <bool AnyType>
[[nodiscard]] __device__ __forceinline__ float4 load_advantage(device_batch const& from, quad const& q, place first) {
    if (from.advantage_in_fours) {
        return load_four<AnyType>(from.batch.advantage, q);
    }
    float const x = load_element(from.batch.advantage, first);
    return {x, x, x, x};
}

/// Loads what a quad reads beside its advantage, where columns can be loaded in fours.
template <std::uint32_t Needs, bool AnyType>
__device__ __forceinline__ void load_columns(device_batch const& from, quad const& q, quad_inputs& in) {
    token_batch const& b = from.batch;
    auto const for_each_column = [&](auto visit) {
#pragma unroll
        for (int i = 0; i < input_count; ++i) {
            auto const which = static_cast<input>(i);
            if (is_needed(which, Needs) && which != input::advantage && which != input::staleness) {
                visit(in.columns[i], column_of(b, which));
            }
        }
    };
    for_each_column([&](float4& four, column const& c) { four = load_four<AnyType>(c, q); });
    if constexpr ((Needs & reads_version) != 0) {
        in.columns[static_cast<int>(input::staleness)] = load_four_staleness(b, q);
    }
    in.mask = load_four_flags(b.mask, q);
    in.keep = (Needs & reads_keep) != 0 ? load_four_flags(b.keep, q) : ~0U;
    if constexpr (AnyType) {
        for_each_column([](float4& four, column const& c) { four = four_of<AnyType>(c, four); });
    }
}

/// Loads a quad at once if its columns can be loaded in fours, and its advantage so or, as its scale, by one row.
/// @return false if not; then `first` is the place of its first token, for going token by token.
template <std::uint32_t Needs, bool AnyType>
[[nodiscard]] __device__ __forceinline__ bool load_at_once(device_batch const& from, quad const& q, float scale,
                                                           std::int64_t const* row_counts, quad_inputs& in, place& first) {
    token_batch const& b = from.batch;
    float4& advantage = in.columns[static_cast<int>(input::advantage)];
    in.scale = scale;
    if (q.full() && from.dense) {
        advantage = load_four<AnyType>(b.advantage, q);
    } else {
        first = place_of(b, q.at);
        std::int64_t const end = b.packed() ? b.offsets[first.row + 1] : b.tokens;
        if (!q.full() || !from.columns_in_fours || end - first.position < 4 || !from.advantage_at_once()) {
            return false;
        }
        advantage = load_advantage<AnyType>(from, q, first);
        in.scale = row_counts == nullptr ? scale : device_scale::over(scale, row_counts[first.row]);
    }
    load_columns<Needs, AnyType>(from, q, in);
    if (AnyType && from.advantage_in_fours) {
        advantage = four_of<AnyType>(b.advantage, advantage);
    }
    return true;
}

/// A few floats of each thread's own in shared memory: registers cannot be indexed by a loop's variable, and a loop over
/// columns is compiled once where there would be a copy of its body for each.
template <int Threads, int Count>
struct thread_floats {
    float numbers[Count][Threads];  // neighbours in different banks

    [[nodiscard]] __device__ __forceinline__ float& operator[](int i) { return numbers[i][threadIdx.x]; }
};

/// Room for a token's inputs, or for its gradient, loss and weight.
template <int Threads, std::uint32_t Needs>
using token_floats = thread_floats<Threads, (needed_inputs(Needs) > 3 ? needed_inputs(Needs) : 3)>;

[[nodiscard]] __device__ __forceinline__ float load_staleness(token_batch const& b, place p) {
    column const& v = b.version;
    std::int64_t const at = p.in(v.row_stride, v.token_stride);
    std::int64_t const version =
        v.type == dtype::i64 ? static_cast<std::int64_t const*>(v.data)[at] : static_cast<std::int32_t const*>(v.data)[at];
    return static_cast<float>(staleness_of(version, b.newest_version()));
}

/// The columns of one token.
template <std::uint32_t Needs, int Threads>
[[nodiscard]] __device__ __forceinline__ token_inputs<float> load_token(device_batch const& from, place p,
                                                                        token_floats<Threads, Needs>& own) {
#pragma unroll 1
    for (int c = 0; c < needed_inputs(Needs); ++c) {
        own[c] = load_element(from.columns[c], p);
    }
    if constexpr ((Needs & reads_version) != 0) {
        own[slot_of(input::staleness, Needs)] = load_staleness(from.batch, p);
    }
    token_inputs<float> x = read_inputs<Needs, float>([&](auto which) { return own[slot_of(decltype(which)::value, Needs)]; });
    if constexpr ((Needs & reads_keep) != 0) {
        x.keep = is_set(from.batch.keep, p);
    }
    return x;
}

template <std::uint32_t Needs>
[[nodiscard]] __device__ __forceinline__ observed<float> screened(device_batch const& from, token_inputs<float> const& x,
                                                                  bool active) {
    observed<float> token = observe<Needs>(x, active, sentinel<float>(from.unscored), device_math{});
    screen(token);
    return token;
}

inline constexpr std::int64_t shortest_chunk = 2048;  // positions
inline constexpr std::int64_t longest_chunk = 32768;  // its counts fit 16 bits
inline constexpr std::int64_t enough_chunks = 512;    // longer ones from here on: the block's reduction costs less

/// Positions of a chunk: a power of two that depends on the batch's size alone, so that sums have the same bits for any grid.
[[nodiscard]] inline std::int64_t chunk_positions(std::int64_t size) {
    std::int64_t positions = shortest_chunk;
    while (size > positions * enough_chunks && positions < longest_chunk) {
        positions *= 2;
    }
    return positions;
}

[[nodiscard]] inline std::int64_t chunks_of(std::int64_t size) {
    std::int64_t const positions = chunk_positions(size);
    return (size + positions - 1) / positions;
}

/// Not less than the chunks of any batch of at most this size: a larger batch may have fewer.
[[nodiscard]] inline std::int64_t most_chunks(std::int64_t size) {
    std::int64_t const at_shortest = (size + shortest_chunk - 1) / shortest_chunk;
    std::int64_t const at_longest = (size + longest_chunk - 1) / longest_chunk;
    return at_shortest < enough_chunks ? at_shortest : at_longest > enough_chunks ? at_longest : enough_chunks;
}

/// The numbers of an objective in device memory, in the place of those that are a kernel's argument.
template <typename Bound>
struct stored_numbers {
    static constexpr std::uint32_t needs = Bound::needs;
    static constexpr int statistics = Bound::statistics;

    Bound const* at;
};

/// An argument stays where it is, in constant memory.
template <typename Bound>
[[nodiscard]] __device__ __forceinline__ Bound const& read_numbers(Bound const& given) {
    return given;
}
template <typename Bound>
[[nodiscard]] __device__ __forceinline__ Bound read_numbers(stored_numbers<Bound> const& given) {
    return *given.at;
}
/// What a kernel evaluates, from the type of its argument.
template <typename Given>
using evaluated = std::remove_cvref_t<decltype(read_numbers(std::declval<Given const&>()))>;

/// Launches kernels on one stream until a launch fails. Its error is that launch's own, not one that others left behind.
class launcher {
  public:
    explicit launcher(cudaStream_t stream) : stream_(stream) {}

    template <typename... Parameters, typename... Arguments>
    void operator()(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, Arguments const&... arguments) {
        start(reinterpret_cast<void const*>(kernel), blocks, threads, static_cast<Parameters>(arguments)...);
    }
    /// With pointers to the arguments, of exactly the types of the kernel's parameters.
    void operator()(void const* kernel, unsigned blocks, unsigned threads, void** arguments) {
        if (error_ == cudaSuccess) {
            cudaLaunchConfig_t config{};
            config.gridDim = dim3(blocks);
            config.blockDim = dim3(threads);
            config.stream = stream_;
            error_ = cudaLaunchKernelExC(&config, kernel, arguments);
        }
    }
    [[nodiscard]] cudaError_t error() const { return error_; }

  private:
    template <typename... Parameters>
    void start(void const* kernel, unsigned blocks, unsigned threads, Parameters... parameters) {
        void* pointers[] = {const_cast<void*>(static_cast<void const*>(&parameters))...};
        (*this)(kernel, blocks, threads, static_cast<void**>(pointers));
    }

    cudaStream_t stream_;
    cudaError_t error_ = cudaSuccess;
};

/// A functor as an argument of a kernel, which nothing empty can be.
template <typename Bound>
struct functor {
    Bound objective;
    std::uint32_t unused = 0;
};

/// Cuts a workspace into aligned pieces.
class carver {
  public:
    explicit carver(void* data) : at_(static_cast<std::byte*>(data)) {}

    template <typename Element>
    [[nodiscard]] Element* take(std::int64_t count) {
        std::byte* const piece = at_ + used_;
        used_ += (static_cast<std::size_t>(count) * sizeof(Element) + 255) / 256 * 256;
        return reinterpret_cast<Element*>(piece);
    }
    [[nodiscard]] std::size_t used() const { return used_; }

  private:
    std::byte* at_;
    std::size_t used_ = 0;
};

}  // namespace detail
}  // namespace gpu
ASYNCRL_END_NAMESPACE
