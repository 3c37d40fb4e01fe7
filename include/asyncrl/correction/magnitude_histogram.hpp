// SPDX-License-Identifier: Apache-2.0
/// @file A mergeable histogram of non-negative numbers over the top bits of their float representation.
#pragma once

#include <asyncrl/config.hpp>

#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

ASYNCRL_BEGIN_NAMESPACE

namespace detail {

inline constexpr std::size_t bucket_count = 4096;
using bucket_counts = std::array<std::int64_t, bucket_count>;

/// Adds one to into[bucket(number)] for each of at most 65535 non-negative numbers, unless the bucket is none. Concurrent calls
/// add up.
template <typename Number, typename Bucket>
void count_in_buckets(bucket_counts& into, Number const* numbers, std::int64_t count, Bucket bucket) {
    std::array<std::uint16_t, bucket_count> mine{};  // so that other threads are met once a bucket, not once a number
    for (std::int64_t i = 0; i < count; ++i) {
        if (numbers[i] >= 0) {
            std::size_t const at = bucket(numbers[i]);
            if (at < bucket_count) {
                ++mine[at];
            }
        }
    }
    for (std::size_t i = 0; i < bucket_count; ++i) {
        if (mine[i] != 0) {
            std::atomic_ref(into[i]).fetch_add(mine[i], std::memory_order_relaxed);
        }
    }
}

}  // namespace detail

/// Counts of non-negative numbers in 4096 buckets: 8 exponent and 4 mantissa bits of the number as a float, so that a bucket
/// is 1/16 of its lower end wide. Integer counts: merging by addition is exact in any order.
struct magnitude_histogram {
    static constexpr int mantissa_bits_dropped = 19;

    detail::bucket_counts buckets{};

    /// Adds at most 65535 numbers; negative ones are passed over. Thread safety: concurrent calls add up.
    template <typename Number>
    void add(Number const* numbers, std::int64_t count) {
        detail::count_in_buckets(buckets, numbers, count, [](Number x) { return bucket_of(static_cast<float>(x)); });
    }

    [[nodiscard]] static std::size_t bucket_of(float magnitude) {
        return std::bit_cast<std::uint32_t>(magnitude) >> mantissa_bits_dropped;
    }

    [[nodiscard]] std::int64_t total() const {
        std::int64_t sum = 0;
        for (std::int64_t const bucket : buckets) {
            sum += bucket;
        }
        return sum;
    }

    /// The upper end of the bucket that holds the ceil(share * n)-th smallest number; 0 for an empty histogram, and exactly 0
    /// where that number is in the bucket of zero.
    [[nodiscard]] double quantile(double share) const {
        double const rank = std::ceil(share * static_cast<double>(total()));
        std::int64_t below = 0;
        for (std::size_t i = 0; i < buckets.size(); ++i) {
            below += buckets[i];
            if (below > 0 && static_cast<double>(below) >= rank) {
                return i == 0 ? 0 : upper_end(i);
            }
        }
        return 0;
    }

    magnitude_histogram& operator+=(magnitude_histogram const& other) {
        for (std::size_t i = 0; i < buckets.size(); ++i) {
            buckets[i] += other.buckets[i];
        }
        return *this;
    }

  private:
    [[nodiscard]] static double upper_end(std::size_t bucket) {
        auto const next = (static_cast<std::uint32_t>(bucket) + 1) << mantissa_bits_dropped;
        return next >= 0x7f800000U ? std::numeric_limits<float>::max() : std::bit_cast<float>(next);
    }
};

ASYNCRL_END_NAMESPACE
