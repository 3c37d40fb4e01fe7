// SPDX-License-Identifier: Apache-2.0
// Elements further than 2^31 elements from the first: what 32-bit index arithmetic would miss. The address space is reserved,
// the memory between the elements never touched.
#include "catch.hpp"

#include <asyncrl/correction/policy_loss.hpp>

#include <sys/mman.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

using namespace asyncrl;

namespace {

class reserved {
  public:
    explicit reserved(std::size_t bytes)
        : bytes_(bytes),
          data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
    reserved(reserved const&) = delete;
    reserved& operator=(reserved const&) = delete;
    ~reserved() {
        if (there()) {
            munmap(data_, bytes_);
        }
    }
    [[nodiscard]] bool there() const { return data_ != MAP_FAILED; }
    [[nodiscard]] float* numbers() const { return static_cast<float*>(data_); }

  private:
    std::size_t bytes_;
    void* data_;
};

}  // namespace

TEST_CASE("strides and rows reach beyond 2^31 elements") {
    constexpr std::int64_t token_stride = (std::int64_t{1} << 30) + 3;
    constexpr std::int64_t row_stride = 7;
    constexpr std::int64_t last = 2 * token_stride + row_stride;
    REQUIRE(last > (std::int64_t{1} << 31));
    reserved const memory(static_cast<std::size_t>(last + 1) * sizeof(float));
    reserved const out(static_cast<std::size_t>(last + 1) * sizeof(float));
    REQUIRE(memory.there());
    REQUIRE(out.there());

    float const zero = -1;
    float const one = 1;
    token_batch batch;
    batch.rows = 2;
    batch.tokens = 3;
    batch.log_prob = {memory.numbers(), dtype::f32, row_stride, token_stride};
    batch.old_log_prob = {&zero, dtype::f32, 0, 0};
    batch.advantage = {&one, dtype::f32, 0, 0};
    for (std::int64_t row = 0; row < 2; ++row) {
        for (std::int64_t t = 0; t < 3; ++t) {
            memory.numbers()[row * row_stride + t * token_stride] = -1 + 0.0625F * static_cast<float>(3 * row + t) - 0.25F;
        }
    }
    workspace scratch(batch);
    auto const plain = make_objective(importance_gradient{}, token_sum{});
    auto const coupled = make_objective(importance_gradient{}, sequence_ratio{}, token_sum{});
    output_column const gradient{out.numbers(), dtype::f32, row_stride, token_stride};
    for (int pass = 0; pass < 2; ++pass) {
        if (pass == 0) {
            (void)policy_loss(plain, batch, measure(plain, batch, scratch), gradient, scratch);
        } else {
            (void)policy_loss(coupled, batch, measure(coupled, batch, scratch), gradient, scratch);
        }
        for (std::int64_t row = 0; row < 2; ++row) {
            for (std::int64_t t = 0; t < 3; ++t) {
                double const d = 0.0625 * static_cast<double>(3 * row + (pass == 0 ? t : 1)) - 0.25;
                REQUIRE_THAT(static_cast<double>(out.numbers()[row * row_stride + t * token_stride]),
                             Catch::Matchers::WithinRel(-std::exp(d), 4e-6));
            }
        }
    }
}
