// SPDX-License-Identifier: Apache-2.0
#include "catch.hpp"

#include <asyncrl/correction/magnitude_histogram.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <thread>
#include <vector>

using asyncrl::magnitude_histogram;

namespace {

std::vector<float> random_magnitudes(std::uint64_t seed, std::size_t count) {
    std::mt19937_64 engine(seed);
    std::vector<float> numbers;
    for (std::size_t i = 0; i < count; ++i) {
        double const exponent = static_cast<double>(engine() % 4000) / 100 - 30;
        numbers.push_back(static_cast<float>(std::exp2(exponent)));
    }
    return numbers;
}

double exact_quantile(std::vector<float> numbers, double share) {
    std::sort(numbers.begin(), numbers.end());
    double const rank = std::max(1.0, std::ceil(share * static_cast<double>(numbers.size())));
    return static_cast<double>(numbers[static_cast<std::size_t>(rank) - 1]);
}

}  // namespace

TEST_CASE("a quantile is never too small, and at most a sixteenth too large") {
    for (std::size_t const count : {1U, 2U, 10U, 999U}) {
        std::vector<float> const numbers = random_magnitudes(count, count);
        magnitude_histogram h;
        h.add(numbers.data(), static_cast<std::int64_t>(numbers.size()));
        REQUIRE(h.total() == static_cast<std::int64_t>(count));
        for (double const share : {0.0, 0.001, 0.25, 0.5, 0.9, 0.99, 1.0}) {
            double const want = exact_quantile(numbers, share);
            double const got = h.quantile(share);
            INFO(count << " numbers, share " << share << ": " << got << ", exactly " << want);
            REQUIRE(got >= want);
            REQUIRE(got <= want * (1 + 1.0 / 16));
        }
    }
}

TEST_CASE("buckets ascend with the number, and each is a sixteenth of its lower end wide") {
    float const numbers[] = {0.0F, 1.0F, 1.0624F, 1.0625F, 1.9999F, 2.0F, 2.1249F, 2.125F};
    std::size_t const buckets[] = {0, 0, 0, 1, 15, 16, 16, 17};  // beyond that of 1
    std::size_t const one = magnitude_histogram::bucket_of(1.0F);
    REQUIRE(magnitude_histogram::bucket_of(0.0F) == 0);
    for (std::size_t i = 1; i < 8; ++i) {
        REQUIRE(magnitude_histogram::bucket_of(numbers[i]) == one + buckets[i]);
    }
    REQUIRE(magnitude_histogram::bucket_of(std::numeric_limits<float>::max()) < 4096);
}

TEST_CASE("negative numbers are passed over, and zeros have the quantile 0") {
    float const numbers[] = {-1.0F, 0.0F, 0.0F, -0.5F, 3.0F};
    magnitude_histogram h;
    h.add(numbers, 5);
    REQUIRE(h.total() == 3);
    REQUIRE(h.quantile(0.5) == 0);
    REQUIRE(h.quantile(1) >= 3);
    REQUIRE(h.quantile(1) <= 3 * (1 + 1.0 / 16));
    REQUIRE(magnitude_histogram{}.quantile(0.5) == 0);
}

TEST_CASE("numbers at the end of float's range stay finite") {
    float const most = std::numeric_limits<float>::max();
    magnitude_histogram h;
    h.add(&most, 1);
    REQUIRE(h.quantile(1) == static_cast<double>(most));
}

TEST_CASE("merging is exact, in any order and from any thread") {
    std::vector<float> const numbers = random_magnitudes(5, 60000);
    magnitude_histogram whole;
    whole.add(numbers.data(), 60000);
    magnitude_histogram first;
    magnitude_histogram second;
    first.add(numbers.data(), 20000);
    second.add(numbers.data() + 20000, 40000);
    second += first;
    REQUIRE(second.buckets == whole.buckets);

    magnitude_histogram shared;
    std::thread other([&] { shared.add(numbers.data(), 30000); });
    shared.add(numbers.data() + 30000, 30000);
    other.join();
    REQUIRE(shared.buckets == whole.buckets);
}
