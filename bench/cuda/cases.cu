// SPDX-License-Identifier: Apache-2.0
#include "cases.hpp"

#include <asyncrl/cuda.cuh>

#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/iterator/zip_iterator.h>
#include <thrust/transform.h>
#include <thrust/transform_reduce.h>
#include <thrust/tuple.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <type_traits>

namespace cases {
namespace {

using asyncrl::per_token;

constexpr std::int64_t row = 1024;  // tokens

void must(cudaError_t error) {
    if (error != cudaSuccess) {
        throw std::runtime_error(cudaGetErrorString(error));
    }
}

template <typename Element>
inline constexpr asyncrl::dtype element_type =
    std::is_same_v<Element, __nv_bfloat16> ? asyncrl::dtype::bf16 : asyncrl::dtype::f32;

/// Random tokens a few percent off policy, the same pattern of 2^16 repeated, one in eight masked.
template <typename Element>
struct columns {
    thrust::device_vector<Element> log_prob, old_log_prob, rollout, advantage, gradient;
    thrust::device_vector<std::uint8_t> mask;

    explicit columns(std::int64_t size, unsigned seed) : gradient(static_cast<std::size_t>(size)) {
        std::mt19937 random(seed);
        std::normal_distribution<float> noise(0, 0.1F);
        std::size_t const pattern = 1 << 16;
        std::vector<Element> x(pattern), o(pattern), u(pattern), a(pattern);
        std::vector<std::uint8_t> m(pattern);
        for (std::size_t i = 0; i < pattern; ++i) {
            u[i] = Element(-1 + noise(random));
            o[i] = Element(float(u[i]) + noise(random));
            x[i] = Element(float(o[i]) + noise(random));
            a[i] = Element(noise(random));
            m[i] = (random() & 7) != 0;
        }
        auto const fill = [&](auto& to, auto const& from) {
            to.resize(static_cast<std::size_t>(size));
            for (std::size_t at = 0; at < to.size(); at += pattern) {
                std::size_t const count = std::min(pattern, to.size() - at);
                must(cudaMemcpy(thrust::raw_pointer_cast(to.data()) + at, from.data(), count * sizeof from[0],
                                cudaMemcpyHostToDevice));
            }
        };
        fill(log_prob, x);
        fill(old_log_prob, o);
        fill(rollout, u);
        fill(advantage, a);
        fill(mask, m);
    }
    [[nodiscard]] asyncrl::token_batch batch() const {
        asyncrl::token_batch b;
        b.rows = static_cast<std::int64_t>(log_prob.size()) / row;
        b.tokens = row;
        b.log_prob = of(log_prob);
        b.old_log_prob = of(old_log_prob);
        b.rollout_log_prob = of(rollout);
        b.advantage = of(advantage);
        b.mask = per_token(thrust::raw_pointer_cast(mask.data()), row);
        return b;
    }
    [[nodiscard]] asyncrl::output_column output() {
        return {thrust::raw_pointer_cast(gradient.data()), element_type<Element>, row, 1};
    }

  private:
    [[nodiscard]] static asyncrl::column of(thrust::device_vector<Element> const& v) {
        return {thrust::raw_pointer_cast(v.data()), element_type<Element>, row, 1};
    }
};

template <typename Element>
std::vector<unsigned char> bytes_of(thrust::device_vector<Element> const& from) {
    must(cudaDeviceSynchronize());
    std::vector<unsigned char> bytes(from.size() * sizeof(Element));
    must(cudaMemcpy(bytes.data(), thrust::raw_pointer_cast(from.data()), bytes.size(), cudaMemcpyDeviceToHost));
    return bytes;
}

/// A case over columns, of which there are a few sets.
template <typename Element>
class over_columns : public timed_case {
  public:
    over_columns(std::int64_t size, std::int64_t rotations) : size_(size) {
        for (std::int64_t i = 0; i < rotations; ++i) {
            sets_.emplace_back(size, static_cast<unsigned>(i + 1));
        }
    }
    [[nodiscard]] std::vector<unsigned char> result() const override { return bytes_of(sets_[last_].gradient); }
    [[nodiscard]] double bytes() const override { return (5.0 * sizeof(Element) + 1) * static_cast<double>(size_); }

  protected:
    [[nodiscard]] columns<Element>& next() {
        last_ = turn_++ % sets_.size();
        return sets_[last_];
    }
    std::int64_t size_;

  private:
    std::vector<columns<Element>> sets_;
    std::size_t turn_ = 0;
    std::size_t last_ = 0;
};

/// Moves 21 bytes a token in all.
class copy : public over_columns<float> {
  public:
    copy(std::int64_t size, std::int64_t rotations) : over_columns(size, rotations), from_(half()), to_(half()) {}
    cudaError_t run(cudaStream_t stream) override {
        return cudaMemcpyAsync(thrust::raw_pointer_cast(to_.data()), thrust::raw_pointer_cast(from_.data()), half(),
                               cudaMemcpyDeviceToDevice, stream);
    }

  private:
    [[nodiscard]] std::size_t half() const { return static_cast<std::size_t>(size_) * 21 / 2; }
    thrust::device_vector<char> from_, to_;
};

template <typename Objective, typename Element>
class loss : public over_columns<Element> {
  public:
    loss(Objective const& objective, std::int64_t size, std::int64_t rotations)
        : over_columns<Element>(size, rotations), objective_(objective), sums_(1), report_(1) {
        asyncrl::token_batch shape;
        shape.rows = size / row;
        shape.tokens = row;
        room_.resize(asyncrl::gpu::workspace_bytes(shape));
        must(asyncrl::gpu::measure(objective_, this->next().batch(), thrust::raw_pointer_cast(sums_.data()), workspace(),
                                   nullptr));
        must(cudaDeviceSynchronize());
    }
    cudaError_t run(cudaStream_t stream) override {
        columns<Element>& c = this->next();
        cudaError_t error = cudaSuccess;
        if constexpr ((Objective::needs & asyncrl::batch_quantile) != 0) {
            error = asyncrl::gpu::measure(objective_, c.batch(), thrust::raw_pointer_cast(sums_.data()), workspace(), stream);
        }
        return error != cudaSuccess
                   ? error
                   : asyncrl::gpu::policy_loss<loads>(objective_, c.batch(), thrust::raw_pointer_cast(sums_.data()), c.output(),
                                                      thrust::raw_pointer_cast(report_.data()), workspace(), stream);
    }

  private:
    static constexpr auto loads =
        std::is_same_v<Element, float> ? asyncrl::gpu::vector_loads::f32 : asyncrl::gpu::vector_loads::any;

    [[nodiscard]] asyncrl::gpu::workspace workspace() { return {thrust::raw_pointer_cast(room_.data()), room_.size()}; }
    Objective objective_;
    thrust::device_vector<std::byte> room_;
    thrust::device_vector<asyncrl::totals> sums_;
    thrust::device_vector<asyncrl::loss_report> report_;
};

// The straightforward version of clip and TIS: each quantity an array, each sum a reduction.
struct exp_difference {
    __device__ float operator()(thrust::tuple<float, float, std::uint8_t> const& t) const {
        return thrust::get<2>(t) != 0 ? expf(thrust::get<0>(t) - thrust::get<1>(t)) : 0.0F;
    }
};
struct clipped_slope {
    float tokens;
    __device__ float operator()(thrust::tuple<float, float, float, std::uint8_t> const& t) const {
        float const r = thrust::get<0>(t);
        float const a = thrust::get<2>(t);
        bool const clipped = (a > 0 && r > 1.2F) || (a < 0 && r < 0.8F);
        return thrust::get<3>(t) == 0 || clipped ? 0.0F : -a * r * fminf(thrust::get<1>(t), 2.0F) / tokens;
    }
};
struct clipped_loss {
    __device__ float operator()(thrust::tuple<float, float, float, std::uint8_t> const& t) const {
        float const r = thrust::get<0>(t);
        float const a = thrust::get<2>(t);
        float const value = fmaxf(-a * r, -a * fminf(fmaxf(r, 0.8F), 1.2F));
        return thrust::get<3>(t) == 0 ? 0.0F : value * fminf(thrust::get<1>(t), 2.0F);
    }
};
struct squared {
    __device__ float operator()(float x) const { return x * x; }
};

class thrust_clip_tis : public over_columns<float> {
  public:
    thrust_clip_tis(std::int64_t size, std::int64_t rotations)
        : over_columns(size, rotations), ratio_(count()), weight_(count()) {}
    cudaError_t run(cudaStream_t stream) override {
        columns<float>& c = next();
        auto const on = thrust::cuda::par.on(stream);
        auto const zip = [](auto... from) { return thrust::make_zip_iterator(thrust::make_tuple(from...)); };
        auto const ratio_inputs = zip(c.log_prob.begin(), c.old_log_prob.begin(), c.mask.begin());
        thrust::transform(on, ratio_inputs, ratio_inputs + size_, ratio_.begin(), exp_difference{});
        auto const weight_inputs = zip(c.old_log_prob.begin(), c.rollout.begin(), c.mask.begin());
        thrust::transform(on, weight_inputs, weight_inputs + size_, weight_.begin(), exp_difference{});
        auto const inputs = zip(ratio_.begin(), weight_.begin(), c.advantage.begin(), c.mask.begin());
        float const tokens = static_cast<float>(thrust::reduce(on, c.mask.begin(), c.mask.end(), std::int64_t{0}));
        thrust::transform(on, inputs, inputs + size_, c.gradient.begin(), clipped_slope{tokens});
        loss_ = thrust::transform_reduce(on, inputs, inputs + size_, clipped_loss{}, 0.0F, thrust::plus<float>{}) / tokens;
        sums_ = thrust::reduce(on, weight_.begin(), weight_.end()) +
                thrust::transform_reduce(on, weight_.begin(), weight_.end(), squared{}, 0.0F, thrust::plus<float>{});
        return cudaGetLastError();
    }

  private:
    [[nodiscard]] std::size_t count() const { return static_cast<std::size_t>(size_); }
    thrust::device_vector<float> ratio_, weight_;
    float loss_ = 0;
    float sums_ = 0;
};

class gae : public over_columns<float> {
  public:
    gae(std::int64_t size, std::int64_t rotations)
        : over_columns(size, rotations), targets_(static_cast<std::size_t>(size)), report_(1) {}
    cudaError_t run(cudaStream_t stream) override {
        columns<float>& c = next();
        asyncrl::token_batch const batch = c.batch();
        asyncrl::value_columns const values{.reward = batch.advantage, .value = batch.old_log_prob};
        return asyncrl::gpu::gae(batch, values,
                                 {per_token(thrust::raw_pointer_cast(c.gradient.data()), row),
                                  per_token(thrust::raw_pointer_cast(targets_.data()), row)},
                                 thrust::raw_pointer_cast(report_.data()), {}, stream);
    }
    [[nodiscard]] double bytes() const override { return 17.0 * static_cast<double>(size_); }

  private:
    thrust::device_vector<float> targets_;
    thrust::device_vector<asyncrl::recursion_report> report_;
};

/// bfloat16 logits of a vocabulary of `columns`.
class logits : public timed_case {
  public:
    logits(std::int64_t vocabulary, std::int64_t all, bool backward)
        : rows_(all / vocabulary),
          vocabulary_(vocabulary),
          backward_(backward),
          logits_(static_cast<std::size_t>(rows_ * vocabulary)),
          gradient_(backward ? logits_.size() : 0),
          targets_(static_cast<std::size_t>(rows_)),
          log_prob_(targets_.size()),
          log_sum_exp_(targets_.size()),
          entropy_(targets_.size()),
          slope_(targets_.size(), 1.0F),
          report_(1) {
        std::mt19937 random(1);
        std::vector<std::uint16_t> pattern(static_cast<std::size_t>(vocabulary));
        for (std::uint16_t& x : pattern) {
            x = static_cast<std::uint16_t>(0x3f00U + random() % 256);  // bfloat16 between 0.5 and 2
        }
        for (std::int64_t i = 0; i < rows_; ++i) {
            must(cudaMemcpy(thrust::raw_pointer_cast(logits_.data()) + i * vocabulary, pattern.data(),
                            pattern.size() * sizeof pattern[0], cudaMemcpyHostToDevice));
        }
        must(forward(nullptr));
        must(cudaDeviceSynchronize());
    }
    cudaError_t run(cudaStream_t stream) override {
        if (!backward_) {
            return forward(stream);
        }
        asyncrl::output_matrix const to{thrust::raw_pointer_cast(gradient_.data()), asyncrl::dtype::bf16, rows_, vocabulary_,
                                        vocabulary_};
        return asyncrl::gpu::log_prob_gradient(matrix(), targets(), outputs(),
                                               {per_token(thrust::raw_pointer_cast(slope_.data())), {}}, to,
                                               thrust::raw_pointer_cast(report_.data()), {}, stream);
    }
    [[nodiscard]] std::vector<unsigned char> result() const override {
        return backward_ ? bytes_of(gradient_) : bytes_of(log_sum_exp_);
    }
    [[nodiscard]] double bytes() const override { return (backward_ ? 4.0 : 2.0) * static_cast<double>(rows_ * vocabulary_); }

  private:
    [[nodiscard]] asyncrl::matrix matrix() const {
        return {thrust::raw_pointer_cast(logits_.data()), asyncrl::dtype::bf16, rows_, vocabulary_, vocabulary_};
    }
    [[nodiscard]] asyncrl::token_ids targets() const { return thrust::raw_pointer_cast(targets_.data()); }
    [[nodiscard]] asyncrl::log_prob_outputs outputs() {
        return {per_token(thrust::raw_pointer_cast(log_prob_.data())), per_token(thrust::raw_pointer_cast(log_sum_exp_.data())),
                per_token(thrust::raw_pointer_cast(entropy_.data()))};
    }
    cudaError_t forward(cudaStream_t stream) {
        return asyncrl::gpu::log_prob(matrix(), targets(), outputs(), thrust::raw_pointer_cast(report_.data()), {}, stream);
    }

    std::int64_t rows_, vocabulary_;
    bool backward_;
    thrust::device_vector<std::uint16_t> logits_, gradient_;
    thrust::device_vector<std::int32_t> targets_;
    thrust::device_vector<float> log_prob_;
    thrust::device_vector<double> log_sum_exp_;
    thrust::device_vector<float> entropy_, slope_;
    thrust::device_vector<asyncrl::log_prob_report> report_;
};

template <typename Element = float, typename Objective>
std::unique_ptr<timed_case> loss_of(Objective const& objective, std::int64_t size, std::int64_t rotations) {
    return std::make_unique<loss<Objective, Element>>(objective, size, rotations);
}

}  // namespace

std::unique_ptr<timed_case> make(std::string const& name, std::int64_t size, std::int64_t rotations) {
    using namespace asyncrl;
    constexpr std::int64_t all_logits = 1 << 26;
    if (name == "copy") {
        return std::make_unique<copy>(size, rotations);
    } else if (name == "thrust clip,tis") {
        return std::make_unique<thrust_clip_tis>(size, rotations);
    } else if (name == "clip") {
        return loss_of(make_objective(ppo_clip{}, token_mean{}), size, rotations);
    } else if (name == "clip,tis") {
        return loss_of(make_objective(ppo_clip{}, tis{}, token_mean{}), size, rotations);
    } else if (name == "clip,tis bf16") {
        return loss_of<__nv_bfloat16>(make_objective(ppo_clip{}, tis{}, token_mean{}), size, rotations);
    } else if (name == "clip,mis") {
        return loss_of(make_objective(ppo_clip{}, mis{}, token_mean{}), size, rotations);
    } else if (name == "sat") {
        return loss_of(make_objective(sat_clip{}, anchor_rollout{}, token_mean{}), size, rotations);
    } else if (name == "gspo") {
        return loss_of(make_objective(ppo_clip{}, sequence_ratio{}, token_mean{}), size, rotations);
    } else if (name == "gae") {
        return std::make_unique<gae>(size, rotations);
    } else if (name == "log_prob" || name == "log_prob_gradient") {
        return std::make_unique<logits>(size, std::max(all_logits / rotations, size), name != "log_prob");
    }
    throw std::invalid_argument("no case " + name);
}

double seconds(timed_case& timed, int calls, cudaStream_t stream) {
    cudaEvent_t begin{};
    cudaEvent_t end{};
    must(cudaEventCreate(&begin));
    must(cudaEventCreate(&end));
    must(timed.run(stream));
    must(cudaEventRecord(begin, stream));
    for (int i = 0; i < calls; ++i) {
        must(timed.run(stream));
    }
    must(cudaEventRecord(end, stream));
    must(cudaEventSynchronize(end));
    float milliseconds = 0;
    must(cudaEventElapsedTime(&milliseconds, begin, end));
    must(cudaEventDestroy(begin));
    must(cudaEventDestroy(end));
    return static_cast<double>(milliseconds) / 1000 / calls;
}

}  // namespace cases
