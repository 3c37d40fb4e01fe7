// SPDX-License-Identifier: Apache-2.0
/// @file Kernels over rows of logits: a block takes one row at a time and reads each logit of it once.
///
/// A thread takes eight consecutive logits at a time, counted from the row's start wherever that lies. So the order of a row's
/// sums, and with it their bits, depends on the row's length alone.
#pragma once

#include <asyncrl/correction/log_prob_options.hpp>
#include <asyncrl/correction/token/softmax.hpp>
#include <asyncrl/cuda/detail/device.cuh>

#include <cub/block/block_reduce.cuh>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

ASYNCRL_BEGIN_NAMESPACE
namespace gpu::detail {

/// What both passes read.
struct softmax_arguments {
    matrix logits;
    token_ids targets;
    column mask;
    sampling_support support;
    double temperature;
    double inverse_temperature;
    float scale;  ///< log2(e) / temperature: the forward pass counts in bits, which saves a multiplication a logit
    log_prob_report* report;
};

inline constexpr int pack_size = 8;
inline constexpr int packs_at_once = 4;  // 64 bytes of bf16 under way for each thread

/// Eight consecutive elements as they lie in memory. All indices are known at compile time.
template <typename Element>
struct pack {
    static constexpr int in_word = 4 / sizeof(Element);
    using bits = std::conditional_t<in_word == 1, std::uint32_t, std::uint16_t>;
    std::uint32_t words[pack_size / in_word];

    [[nodiscard]] __device__ __forceinline__ float operator[](int i) const {
        std::uint32_t const word = words[i / in_word];
        if constexpr (std::is_same_v<Element, float>) {
            return __uint_as_float(word);
        } else if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
            return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000U);
        } else {
            return __half2float(__ushort_as_half(static_cast<unsigned short>(word >> (16 * (i % 2)))));
        }
    }
    __device__ __forceinline__ void put(int i, bits x) {
        if constexpr (in_word == 1) {
            words[i] = x;
        } else {
            std::uint32_t const other = words[i / 2] & (i % 2 == 0 ? 0xffff0000U : 0xffffU);
            words[i / 2] = other | static_cast<std::uint32_t>(x) << (16 * (i % 2));
        }
    }
    __device__ __forceinline__ void put_minus_infinity(int i) {
        put(i, std::is_same_v<Element, float>           ? static_cast<bits>(0xff800000U)
               : std::is_same_v<Element, __nv_bfloat16> ? static_cast<bits>(0xff80U)
                                                        : static_cast<bits>(0xfc00U));
    }
    /// From 16-byte aligned memory.
    __device__ __forceinline__ void load(bits const* from) {
#pragma unroll
        for (int i = 0; i < pack_size / in_word / 4; ++i) {
            uint4 const four = __ldcs(reinterpret_cast<uint4 const*>(from) + i);
            words[4 * i] = four.x;
            words[4 * i + 1] = four.y;
            words[4 * i + 2] = four.z;
            words[4 * i + 3] = four.w;
        }
    }
};

template <typename Element>
struct logit_row {
    using bits = typename pack<Element>::bits;
    bits const* data;
    std::int64_t columns;
    bool vectors;

    __device__ __forceinline__ logit_row(matrix const& m, std::int64_t row)
        : data(static_cast<bits const*>(m.data) + row * m.row_stride),
          columns(m.columns),
          vectors(reinterpret_cast<std::uintptr_t>(data) % 16 == 0) {}

    /// Whether some packs, `stride` elements apart, are whole and aligned.
    [[nodiscard]] __device__ __forceinline__ bool loads_at_once(std::int64_t at, std::int64_t stride) const {
        return vectors && at + (packs_at_once - 1) * stride + pack_size <= columns;
    }
    /// -infinity beyond the row's end.
    __device__ __forceinline__ void load(pack<Element>& x, std::int64_t at) const {
        if (vectors && at + pack_size <= columns) {
            x.load(data + at);
            return;
        }
#pragma unroll
        for (int i = 0; i < pack_size; ++i) {
            if (at + i < columns) {
                x.put(i, data[at + i]);
            } else {
                x.put_minus_infinity(i);
            }
        }
    }
    /// Elements `at` and on of a list, -infinity beyond its end. Returns whether they ascend within the row.
    [[nodiscard]] __device__ __forceinline__ bool gather(pack<Element>& x, row_part const& part, std::int64_t at) const {
        std::int64_t before = at > 0 && at < part.count ? part[at - 1] : -1;
        bool ascend = true;
#pragma unroll
        for (int i = 0; i < pack_size; ++i) {
            std::int64_t const id = at + i < part.count ? part[at + i] : columns;
            bool const usable = id > before && id >= 0 && id < columns;
            ascend = ascend && (usable || at + i >= part.count);
            before = id;
            if (usable) {
                x.put(i, data[id]);
            } else {
                x.put_minus_infinity(i);
            }
        }
        return ascend;
    }
    [[nodiscard]] __device__ __forceinline__ bool holds(std::int64_t id) const {
        return id >= 0 && id < columns;
    }
    [[nodiscard]] __device__ __forceinline__ float operator[](std::int64_t at) const {
        pack<Element> one;
        one.words[0] = 0;
        one.put(0, data[at]);
        return one[0];
    }
};

/// One number of a row, of any floating-point type.
[[nodiscard]] __device__ __forceinline__ double number_of_row(column const& c, std::int64_t row) {
    std::int64_t const at = row * c.token_stride;
    return c.type == dtype::f64 ? static_cast<double const*>(c.data)[at] : static_cast<double>(load_element(c, place{0, row}));
}
__device__ __forceinline__ void put_row(output_column const& c, std::int64_t row, double x) {
    if (!c) {
        return;
    }
    std::int64_t const at = row * c.token_stride;
    if (c.type == dtype::f64) {
        static_cast<double*>(c.data)[at] = x;
    } else {
        static_cast<float*>(c.data)[at] = static_cast<float>(x);
    }
}

template <int Unused = 0>
__global__ void start_rows_kernel(log_prob_report* report) {
    *report = log_prob_report{};
}

/// What one block counted.
struct row_counts {
    std::int64_t rows = 0;
    std::int64_t nonfinite = 0;
    std::int64_t first_nonfinite = -1;

    __device__ __forceinline__ void note_nonfinite(std::int64_t row) {
        ++nonfinite;
        first_nonfinite = first_nonfinite < 0 ? row : first_nonfinite;  // a block's rows ascend
    }
    /// Integers: whatever the order of the blocks, the report is the same.
    __device__ __forceinline__ void add_to(log_prob_report* report) const {
        if (rows > 0) {
            add(&report->rows, rows);
        }
        if (nonfinite > 0) {
            add(&report->nonfinite, nonfinite);
            // As unsigned numbers, so that -1 (none) is larger than any row.
            atomicMin(reinterpret_cast<unsigned long long*>(&report->first_nonfinite),
                      static_cast<unsigned long long>(first_nonfinite));
        }
    }

  private:
    static __device__ __forceinline__ void add(std::int64_t* to, std::int64_t x) {
        atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(x));
    }
};

/// 2^x in one instruction, which takes denormal results for 0.
struct flushing_exp2 {
    static constexpr float zero_from = -127;

    [[nodiscard]] __device__ __forceinline__ float operator()(float x) const {
        float result;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
        return result;
    }
};
/// e^x. Off by 1e-6 at x = -20, as device_math.
struct flushing_exp {
    static constexpr float zero_from = -88;

    [[nodiscard]] __device__ __forceinline__ float operator()(float x) const {
        return flushing_exp2{}(x * 1.44269504088896340736F);
    }
};

/// The largest of some logits, NaN if one of them is.
template <typename Element>
class running_largest {
  public:
    __device__ __forceinline__ void add(pack<Element> const& x) {
#pragma unroll
        for (int i = 0; i < pack_size; ++i) {
            largest_ = larger(largest_, x[i]);
            nan_ = nan_ || is_nan(x[i]);
        }
    }
    [[nodiscard]] __device__ __forceinline__ float value() const {
        return nan_ ? NAN : largest_;
    }

  private:
    float largest_ = -INFINITY;
    bool nan_ = false;
};

/// The same for types of which two fit a register.
template <typename Element, typename Two>
class running_largest_of_two {
  public:
    __device__ __forceinline__ void add(pack<Element> const& x) {
#pragma unroll
        for (std::uint32_t const word : x.words) {
            Two two;
            std::memcpy(&two, &word, sizeof two);
            largest_ = __hmax2_nan(largest_, two);
        }
    }
    [[nodiscard]] __device__ __forceinline__ float value() const {
        pack<Element> two;
        std::memcpy(two.words, &largest_, sizeof largest_);
        return is_nan(two[0]) || is_nan(two[1]) ? NAN : larger(two[0], two[1]);
    }

  private:
    Two largest_{Element(-INFINITY), Element(-INFINITY)};
};
template <>
class running_largest<__nv_bfloat16> : public running_largest_of_two<__nv_bfloat16, __nv_bfloat162> {};
template <>
class running_largest<__half> : public running_largest_of_two<__half, __half2> {};

struct merge_sums {
    float scale;

    [[nodiscard]] __device__ __forceinline__ softmax_sums<float> operator()(softmax_sums<float> const& a,
                                                                            softmax_sums<float> const& b) const {
        return combined(a, b, scale, flushing_exp2{});
    }
};

template <typename Element>
__device__ __forceinline__ void add_pack(softmax_sums<float>& part, pack<Element> const& x, float scale) {
#pragma unroll
    for (int i = 0; i < pack_size; ++i) {
        part.add(x[i], scale, flushing_exp2{});
    }
}

/// Adds the logits of some packs, `load(x, i)` of each: few terms to a sum, and such sums to the thread's. Where they cannot be
/// held at once they are loaded twice, the second time from the cache; the sums have the same bits. Returns whether one is NaN.
template <typename Element, typename Load>
[[nodiscard]] __device__ __forceinline__ bool add_packs(softmax_sums<float>& sums, bool at_once, float scale,
                                                        Load const& load) {
    running_largest<Element> top;
    softmax_sums<float> part;
    auto const raise = [&] {
        sums.raise(top.value(), scale, flushing_exp2{});
        part.largest = sums.largest;
    };
    if (at_once) {
        pack<Element> x[packs_at_once];
#pragma unroll
        for (int i = 0; i < packs_at_once; ++i) {
            load(x[i], i);
        }
#pragma unroll
        for (int i = 0; i < packs_at_once; ++i) {
            top.add(x[i]);
        }
        raise();
#pragma unroll
        for (int i = 0; i < packs_at_once; ++i) {
            add_pack(part, x[i], scale);
        }
    } else {
        pack<Element> x;
#pragma unroll 1
        for (int i = 0; i < packs_at_once; ++i) {
            load(x, i);
            top.add(x);
        }
        raise();
#pragma unroll 1
        for (int i = 0; i < packs_at_once; ++i) {
            load(x, i);
            add_pack(part, x, scale);
        }
    }
    sums.add(part);
    return is_nan(top.value());
}

template <int Threads, typename Element>
__global__ void __launch_bounds__(Threads, 3) log_prob_kernel(softmax_arguments const args, log_prob_outputs const outputs) {
    using block_reduce = cub::BlockReduce<softmax_sums<float>, Threads>;
    __shared__ typename block_reduce::TempStorage storage;
    constexpr std::int64_t stride = Threads * pack_size;
    row_counts counted;
    for (std::int64_t row = blockIdx.x; row < args.logits.rows; row += gridDim.x) {
        if (is_masked(args.mask, row)) {
            if (threadIdx.x == 0) {
                put_row(outputs.log_prob, row, 0);
                put_row(outputs.log_sum_exp, row, 0);
                put_row(outputs.entropy, row, 0);
            }
            continue;
        }
        logit_row<Element> const logits(args.logits, row);
        row_part const part = part_of_row(args.logits, args.support, row);
        std::int64_t const target = args.targets[row];
        float const chosen = logits.holds(target) ? logits[target] : NAN;
        softmax_sums<float> mine;
        bool unusable = false;
        for (std::int64_t at = threadIdx.x * pack_size; at < part.count; at += stride * packs_at_once) {
            bool const at_once = !part.listed() && logits.loads_at_once(at, stride);
            bool const nan = add_packs<Element>(mine, at_once, args.scale, [&](pack<Element>& x, int i) {
                if (at_once) {
                    x.load(logits.data + at + i * stride);
                } else if (part.listed()) {
                    unusable = !logits.gather(x, part, at + i * stride) || unusable;
                } else {
                    logits.load(x, at + i * stride);
                }
            });
            unusable = unusable || nan;
        }
        if (threadIdx.x == 0) {
            unusable = unusable || is_nan(chosen);
            if (part.listed() && !part.names(target)) {
                mine.raise(chosen, args.scale, flushing_exp2{});
                mine.add(chosen, args.scale, flushing_exp2{});
            }
        }
        if (unusable) {
            mine.largest = INFINITY;  // exceeds all, and no row with it has a softmax
        }
        softmax_sums<float> sums = block_reduce(storage).Reduce(mine, merge_sums{args.scale});
        if (threadIdx.x == 0) {
            ++counted.rows;
            sums.weighted = sums.weighted * 0.693147180559945309417F;  // from bits to nats
            float log_total = log1pf(sums.excess());
            if (is_nonfinite(sums.largest)) {
                counted.note_nonfinite(row);
                log_total = NAN;
            }
            put_row(outputs.log_prob, row,
                    static_cast<double>((chosen - sums.largest) * static_cast<float>(args.inverse_temperature) - log_total));
            put_row(outputs.log_sum_exp, row,
                    static_cast<double>(sums.largest) * args.inverse_temperature + static_cast<double>(log_total));
            put_row(outputs.entropy, row, static_cast<double>(sums.entropy(log_total)));
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        counted.add_to(args.report);
    }
}

struct gradient_arguments {
    softmax_arguments of;
    column log_sum_exp;  ///< as the first pass saved them
    column entropy;
    log_prob_slopes slopes;
    output_matrix gradient;
};

/// What there is to write into a row of the gradient.
enum class row_content : std::uint8_t {
    zeros,
    slopes,
    nan_in_part,
    nan  ///< the chosen token, or the list, is none
};

struct gradient_row {
    row_content content;
    log_softmax<float> log_p;
    logit_slope<float> slope;
    std::int64_t target;
    float of_target;
};

/// Looks at all that there is one of in a row, the chosen logit before anything overwrites it.
template <typename Element>
[[nodiscard]] __device__ __forceinline__ gradient_row prepare_row(gradient_arguments const& args, std::int64_t row) {
    softmax_arguments const& of = args.of;
    gradient_row result{};  // zeros
    if (is_masked(of.mask, row)) {
        return result;
    }
    double const g = args.slopes.log_prob ? number_of_row(args.slopes.log_prob, row) : 0;
    double const h = args.slopes.entropy ? number_of_row(args.slopes.entropy, row) : 0;
    if (g == 0 && h == 0) {
        return result;
    }
    logit_row<Element> const logits(of.logits, row);
    double const log_sum_exp = number_of_row(args.log_sum_exp, row);
    double const entropy = args.slopes.entropy ? number_of_row(args.entropy, row) : 0;
    result.target = of.targets[row];
    bool const is_one = logits.holds(result.target);
    float const chosen = is_one ? logits[result.target] : NAN;
    bool const bad = is_nonfinite(g) || is_nonfinite(h) || is_nonfinite(log_sum_exp) || is_nonfinite(entropy);
    result.content = !is_one ? row_content::nan : bad || is_unusable(chosen) ? row_content::nan_in_part : row_content::slopes;
    result.log_p = make_log_softmax<float>(log_sum_exp, of.temperature);
    result.slope = {static_cast<float>(g * of.inverse_temperature), static_cast<float>(h * of.inverse_temperature),
                    static_cast<float>(entropy)};
    bounded_log<float> const p(result.log_p(chosen), flushing_exp{});
    result.of_target = result.slope(p, -expm1f(p.log));
    return result;
}

/// A row of the gradient, written in packs.
class row_writer {
  public:
    __device__ __forceinline__ row_writer(output_matrix const& m, std::int64_t row) : type_(m.type), columns_(m.columns) {
        std::int64_t const size = m.type == dtype::f32 ? 4 : 2;
        data_ = static_cast<std::byte*>(m.data) + row * m.row_stride * size;
        vectors_ = reinterpret_cast<std::uintptr_t>(data_) % 16 == 0;
    }
    [[nodiscard]] __device__ __forceinline__ bool in_vectors() const { return vectors_; }
    /// A pack that is whole and aligned.
    __device__ __forceinline__ void put_vector(std::int64_t at, float const (&x)[pack_size]) const {
        if (type_ == dtype::f32) {
            auto* const to = reinterpret_cast<float4*>(reinterpret_cast<float*>(data_) + at);
            __stcs(to, float4{x[0], x[1], x[2], x[3]});
            __stcs(to + 1, float4{x[4], x[5], x[6], x[7]});
        } else {
            auto* const to = reinterpret_cast<uint4*>(reinterpret_cast<std::uint16_t*>(data_) + at);
            bool const bf16 = type_ == dtype::bf16;
            __stcs(to, uint4{two(x[0], x[1], bf16), two(x[2], x[3], bf16), two(x[4], x[5], bf16), two(x[6], x[7], bf16)});
        }
    }
    __device__ __forceinline__ void put(std::int64_t at, float const (&x)[pack_size]) const {
        if (vectors_ && at + pack_size <= columns_) {
            put_vector(at, x);
            return;
        }
#pragma unroll
        for (int i = 0; i < pack_size; ++i) {
            if (at + i < columns_) {
                put_one(at + i, x[i]);
            }
        }
    }
    __device__ __forceinline__ void put_one(std::int64_t at, float x) const {
        store_element({data_, type_, 0, 1}, place{0, at}, x);
    }

  private:
    static __device__ __forceinline__ std::uint32_t two(float low, float high, bool bf16) {
        if (bf16) {
            __nv_bfloat162 const x = __floats2bfloat162_rn(low, high);
            return static_cast<std::uint32_t>(__bfloat16_as_ushort(x.x)) | static_cast<std::uint32_t>(__bfloat16_as_ushort(x.y))
                                                                               << 16;
        }
        __half2 const x = __floats2half2_rn(low, high);
        return static_cast<std::uint32_t>(__half_as_ushort(__low2half(x))) |
               static_cast<std::uint32_t>(__half_as_ushort(__high2half(x))) << 16;
    }

    std::byte* data_;
    dtype type_;
    std::int64_t columns_;
    bool vectors_;
};

/// Which of the elements at, ..., at + 7 belong to a part of a row: a bit each.
[[nodiscard]] __device__ __forceinline__ std::uint32_t members(row_part const& part, std::int64_t at) {
    constexpr std::uint32_t all = (1U << pack_size) - 1;
    if (!part.listed()) {
        return all;
    }
    std::uint32_t bits = 0;
    for (std::int64_t i = part.first_from(at); i < part.count && part[i] < at + pack_size; ++i) {
        bits |= part[i] >= at ? 1U << (part[i] - at) : 0;  // a list that does not ascend is found to be none elsewhere
    }
    return bits;
}

/// One number in the members of a row, and 0 in the rest.
template <int Threads>
__device__ __forceinline__ void fill_row(row_writer const& to, row_part const& part, std::int64_t columns, float x) {
    for (std::int64_t at = threadIdx.x * pack_size; at < columns; at += Threads * pack_size) {
        std::uint32_t const inside = members(part, at);
        float values[pack_size];
#pragma unroll
        for (int i = 0; i < pack_size; ++i) {
            values[i] = (inside & (1U << i)) != 0 ? x : 0.0F;
        }
        to.put(at, values);
    }
}

template <typename Element>
__device__ __forceinline__ void slopes_of(pack<Element> const& x, gradient_row const& with, float (&slopes)[pack_size]) {
#pragma unroll
    for (int i = 0; i < pack_size; ++i) {
        bounded_log<float> const p(with.log_p(x[i]), flushing_exp{});
        slopes[i] = with.slope(p, -p.value);
    }
}

/// The slopes of one pack, and 0 for what does not belong to the part.
template <typename Element>
__device__ __forceinline__ void put_slopes(row_writer const& to, logit_row<Element> const& logits, row_part const& part,
                                           std::int64_t at, gradient_row const& with, running_largest<Element>& top) {
    std::uint32_t const inside = members(part, at);
    float slopes[pack_size] = {};
    if (inside != 0) {
        pack<Element> x;
        logits.load(x, at);
#pragma unroll
        for (int i = 0; i < pack_size; ++i) {
            if ((inside & (1U << i)) == 0) {
                x.put_minus_infinity(i);
            }
        }
        top.add(x);
        slopes_of(x, with, slopes);
#pragma unroll
        for (int i = 0; i < pack_size; ++i) {
            slopes[i] = (inside & (1U << i)) != 0 ? slopes[i] : 0.0F;
        }
    }
    to.put(at, slopes);
}

/// Writes a row's slopes, all of whose logits count as not chosen. Returns whether a logit is unusable.
template <int Threads, typename Element>
[[nodiscard]] __device__ __forceinline__ bool put_row_slopes(row_writer const& to, logit_row<Element> const& logits,
                                                             row_part const& part, gradient_row const& with) {
    constexpr std::int64_t stride = Threads * pack_size;
    running_largest<Element> top;
    for (std::int64_t at = threadIdx.x * pack_size; at < logits.columns; at += stride * packs_at_once) {
        if (!part.listed() && to.in_vectors() && logits.loads_at_once(at, stride)) {
            pack<Element> x[packs_at_once];
#pragma unroll
            for (int i = 0; i < packs_at_once; ++i) {
                x[i].load(logits.data + at + i * stride);
            }
#pragma unroll
            for (int i = 0; i < packs_at_once; ++i) {
                float slopes[pack_size];
                top.add(x[i]);
                slopes_of(x[i], with, slopes);
                to.put_vector(at + i * stride, slopes);
            }
        } else {
#pragma unroll 1
            for (int i = 0; i < packs_at_once; ++i) {
                put_slopes(to, logits, part, at + i * stride, with, top);
            }
        }
    }
    return is_unusable(top.value());
}

/// Whether a list ascends within the row, as far as this thread has looked.
template <int Threads>
[[nodiscard]] __device__ __forceinline__ bool ascends(row_part const& part, std::int64_t columns) {
    bool fine = true;
    for (std::int64_t i = threadIdx.x; part.listed() && i < part.count; i += Threads) {
        std::int64_t const id = part[i];
        fine = fine && id >= 0 && id < columns && (i == 0 || part[i - 1] < id);
    }
    return fine;
}

template <int Threads, typename Element>
__global__ void __launch_bounds__(Threads, 3) log_prob_gradient_kernel(gradient_arguments const args) {
    __shared__ gradient_row prepared;
    std::int64_t const columns = args.of.logits.columns;
    row_counts counted;
    for (std::int64_t row = blockIdx.x; row < args.of.logits.rows; row += gridDim.x) {
        if (threadIdx.x == 0) {
            prepared = prepare_row<Element>(args, row);
        }
        __syncthreads();
        gradient_row const with = prepared;
        row_writer const to(args.gradient, row);
        bool const whole = with.content == row_content::zeros || with.content == row_content::nan;
        row_part const part = whole ? row_part{columns} : part_of_row(args.of.logits, args.of.support, row);
        bool faulty = !ascends<Threads>(part, columns);
        bool unusable = faulty;
        if (with.content == row_content::slopes) {
            unusable = put_row_slopes<Threads>(to, logit_row<Element>(args.of.logits, row), part, with) || unusable;
        } else {
            fill_row<Threads>(to, part, columns, with.content == row_content::zeros ? 0.0F : NAN);
        }
        // The row is written, and nobody reads what was prepared any more.
        bool const spoilt = __syncthreads_or(unusable ? 1 : 0) != 0;
        if (spoilt) {
            faulty = __syncthreads_or(faulty ? 1 : 0) != 0;
            fill_row<Threads>(to, faulty ? row_part{columns} : part, columns, NAN);
            __syncthreads();
        }
        if (threadIdx.x == 0 && with.content != row_content::zeros) {
            ++counted.rows;
            if (spoilt || with.content != row_content::slopes) {
                counted.note_nonfinite(row);
            }
            if (with.content != row_content::nan) {
                to.put_one(with.target, spoilt || with.content != row_content::slopes ? NAN : with.of_target);
            }
        }
    }
    if (threadIdx.x == 0) {
        counted.add_to(args.of.report);
    }
}

}  // namespace gpu::detail
ASYNCRL_END_NAMESPACE
