// SPDX-License-Identifier: Apache-2.0
// The library's kernels against device-wide sorts and scans that others wrote.
#include "support/device_algorithms.hpp"
#include "catch.hpp"
#include "support/advantage_calls.hpp"
#include "support/on_device.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

using device::must;
using device_algorithms::recursion;
using namespace support;

namespace {

/// The numbers of a padded batch whose ratio is taken against the rollout policy.
struct log_probs {
    std::vector<float> of_new, of_rollout;
    std::vector<std::uint8_t> active;

    void add(float log_prob, float rollout, bool is_active) {
        of_new.push_back(log_prob);
        of_rollout.push_back(rollout);
        active.push_back(is_active ? 1 : 0);
    }
};

double quantile_on_device(log_probs const& p, asyncrl::fraction share, bool& overflowed) {
    auto const bytes_of = [](auto const& values) {
        std::vector<unsigned char> bytes(values.size() * sizeof values[0]);
        std::memcpy(bytes.data(), values.data(), bytes.size());
        return bytes;
    };
    device::buffer const of_new(bytes_of(p.of_new));
    device::buffer const of_rollout(bytes_of(p.of_rollout));
    device::buffer const active(bytes_of(p.active));
    asyncrl::token_batch batch;
    batch.rows = 1;
    batch.tokens = static_cast<std::int64_t>(p.active.size());
    batch.log_prob = {of_new.data(), dtype::f32, batch.tokens, 1};
    batch.rollout_log_prob = {of_rollout.data(), dtype::f32, batch.tokens, 1};
    batch.advantage = batch.log_prob;
    batch.mask = {active.data(), dtype::u8, batch.tokens, 1};
    device::guarded const sums(sizeof(asyncrl::totals));
    device::guarded const room(device::workspace_bytes(batch));
    methods::method m;
    m.kind = methods::loss::sat;
    m.quantile = share;
    must(device::measure(m, batch, sums.as<asyncrl::totals>(), {room.data(), room.bytes()}, nullptr));
    must(cudaDeviceSynchronize());
    overflowed = overflowed || device::search_of(batch, {room.data(), room.bytes()}).overflowed;
    double const found = sums.value<asyncrl::totals>().quantile;
    must(device::measure_by_window(m, batch, sums.as<asyncrl::totals>(), {room.data(), room.bytes()}, nullptr));
    must(cudaDeviceSynchronize());
    REQUIRE(sums.value<asyncrl::totals>().quantile == found);
    return found;
}

/// Rows of tokens, as both sides read them: a packed batch of doubles.
device_algorithms::tokens random_tokens(std::mt19937_64& random, std::vector<std::size_t> const& lengths, double masked) {
    std::normal_distribution<double> noise(0, 1);
    std::uniform_real_distribution<double> chance(0, 1);
    device_algorithms::tokens all;
    for (std::size_t row = 0; row < lengths.size(); ++row) {
        for (std::size_t t = 0; t < lengths[row]; ++t) {
            all.reward.push_back(noise(random));
            all.value.push_back(noise(random));
            all.action_value.push_back(noise(random));
            all.log_ratio.push_back(chance(random) < 0.3 ? 0 : 0.5 * noise(random));
            all.active.push_back(chance(random) < masked ? 0 : 1);
            all.row.push_back(static_cast<std::int32_t>(row));
        }
        all.bootstrap.push_back(noise(random));
    }
    return all;
}

device_algorithms::answers on_device(recursion which, device_algorithms::bounds const& with,
                                     device_algorithms::tokens const& all) {
    auto const column_of = [](std::vector<double> const& values) {
        std::vector<unsigned char> bytes(values.size() * sizeof(double));
        std::memcpy(bytes.data(), values.data(), bytes.size());
        return device::buffer(bytes);
    };
    std::vector<double> const zeros(all.reward.size(), 0);
    std::vector<std::int32_t> offsets(all.bootstrap.size() + 1, 0);
    for (std::int32_t const row : all.row) {
        ++offsets[static_cast<std::size_t>(row) + 1];
    }
    for (std::size_t row = 1; row < offsets.size(); ++row) {
        offsets[row] += offsets[row - 1];
    }
    std::vector<unsigned char> offset_bytes(offsets.size() * sizeof offsets[0]);
    std::memcpy(offset_bytes.data(), offsets.data(), offset_bytes.size());

    device::buffer const reward = column_of(all.reward);
    device::buffer const value = column_of(all.value);
    device::buffer const action_value = column_of(all.action_value);
    device::buffer const old = column_of(all.log_ratio);
    device::buffer const rollout = column_of(zeros);
    device::buffer const bootstrap = column_of(all.bootstrap);
    device::buffer const active(std::vector<unsigned char>(all.active.begin(), all.active.end()));
    device::buffer const offset(offset_bytes);
    device::buffer const advantage = column_of(zeros);
    device::buffer const target = column_of(zeros);
    device::guarded const report(sizeof(asyncrl::recursion_report));

    auto const per_token = [](device::buffer const& b) { return asyncrl::column{b.data(), dtype::f64, 0, 1}; };
    asyncrl::token_batch batch;
    batch.rows = static_cast<std::int64_t>(all.bootstrap.size());
    batch.tokens = static_cast<std::int64_t>(all.reward.size());
    batch.offsets = reinterpret_cast<std::int32_t const*>(offset.data());
    batch.mask = {active.data(), dtype::u8, 0, 1};
    batch.old_log_prob = per_token(old);
    batch.rollout_log_prob = per_token(rollout);
    asyncrl::value_columns const values{
        per_token(reward), per_token(value), per_token(action_value), {bootstrap.data(), dtype::f64, 1, 0}};
    asyncrl::advantage_outputs const to{{advantage.data(), dtype::f64, 0, 1}, {target.data(), dtype::f64, 0, 1}};
    auto* const counts = report.as<asyncrl::recursion_report>();
    switch (which) {
        case recursion::gae:
            must(device::gae(batch, values, to, counts, {.gamma = with.gamma, .lambda = with.lambda}, 0, nullptr));
            break;
        case recursion::vtrace:
            must(device::vtrace(batch, values, to, counts,
                                {.gamma = with.gamma, .lambda = with.lambda, .rho_bar = with.rho_bar, .c_bar = with.c_bar}, 0,
                                nullptr));
            break;
        case recursion::retrace:
            must(device::retrace(batch, values, to, counts, {.gamma = with.gamma, .lambda = with.lambda}, 0, nullptr));
            break;
    }
    must(cudaDeviceSynchronize());
    device_algorithms::answers got{zeros, zeros};
    advantage.read(got.advantage.data());
    target.read(got.target.data());
    REQUIRE(report.value<asyncrl::recursion_report>().tokens ==
            static_cast<std::int64_t>(std::count(all.active.begin(), all.active.end(), 1)));
    return got;
}

/// The largest difference of a row's numbers, relative to the row's largest target.
double difference(device_algorithms::tokens const& all, device_algorithms::answers const& got,
                  device_algorithms::answers const& want) {
    std::vector<double> largest(all.bootstrap.size(), 0);
    for (std::size_t i = 0; i < all.row.size(); ++i) {
        double& size = largest[static_cast<std::size_t>(all.row[i])];
        size = std::max({size, std::abs(want.target[i]), std::abs(want.advantage[i])});
    }
    double worst = 0;
    for (std::size_t i = 0; i < all.row.size(); ++i) {
        double const by = std::max(std::abs(got.advantage[i] - want.advantage[i]), std::abs(got.target[i] - want.target[i]));
        if (all.active[i] == 0) {
            worst = by == 0 ? worst : 1;
        } else {
            worst = std::max(worst, by / largest[static_cast<std::size_t>(all.row[i])]);
        }
    }
    return worst;
}

}  // namespace

TEST_CASE("the order statistic is what a sort of all numbers has in its place") {
    std::mt19937_64 random(1);
    std::normal_distribution<float> noise(0, 0.3F);
    std::uniform_real_distribution<double> chance(0, 1);
    bool overflowed = false;
    for (std::size_t const size : {1U, 2U, 7U, 2048U, 2049U, 5000U, 12345U, 40001U}) {
        for (int kind = 0; kind < 4; ++kind) {
            log_probs p;
            for (std::size_t i = 0; i < size; ++i) {
                float const rollout = -2 + noise(random);
                float log_prob = rollout + noise(random);
                if (kind == 1 && chance(random) < 0.6) {
                    log_prob = rollout;  // on-policy
                } else if (kind == 2) {
                    log_prob = rollout + 0.125F * std::round(2 * noise(random));  // ties
                } else if (kind == 3) {
                    log_prob = rollout * (1 + 0x1p-20F * std::round(noise(random) * 8));  // all in few first digits
                }
                p.add(log_prob, rollout, chance(random) < 0.9);
            }
            std::vector<float> const sorted = device_algorithms::sorted_magnitudes(p.of_new, p.of_rollout, p.active);
            for (asyncrl::fraction const share : {asyncrl::fraction{1, 2}, {9, 10}, {999, 1000}, {1, 1}}) {
                CAPTURE(size, kind, share.numerator, share.denominator);
                std::size_t rank = 1;  // the first of which the share is not below
                auto const count = static_cast<std::int64_t>(sorted.size());
                while (static_cast<std::int64_t>(rank) * share.denominator < share.numerator * count) {
                    ++rank;
                }
                float const want = sorted.empty() ? 0 : sorted[rank - 1];
                REQUIRE(quantile_on_device(p, share, overflowed) == static_cast<double>(want));
            }
        }
    }
    REQUIRE(overflowed);  // the way for more candidates than there is room for was gone too
}

TEST_CASE("recursions are what a device-wide scan of their maps gives") {
    std::mt19937_64 random(2);
    std::vector<std::vector<std::size_t>> const shapes{{1},
                                                       {2},
                                                       {255},
                                                       {256},
                                                       {257},
                                                       {5000},
                                                       {20'000},
                                                       {1, 1, 1},
                                                       {300, 0, 7, 513, 1, 256, 0},
                                                       {0, 4000, 3},
                                                       std::vector<std::size_t>(200, 31)};
    for (std::vector<std::size_t> const& lengths : shapes) {
        for (double const masked : {0.0, 0.3}) {
            device_algorithms::tokens const all = random_tokens(random, lengths, masked);
            for (device_algorithms::bounds const& with :
                 {device_algorithms::bounds{0.99, 0.95, 1, 1}, {1, 1, 1.5, 0.8}, {0.9, 0, 2, 1}}) {
                for (recursion const which : {recursion::gae, recursion::vtrace, recursion::retrace}) {
                    CAPTURE(lengths.size(), lengths[0], masked, with.lambda, static_cast<int>(which));
                    REQUIRE(difference(all, on_device(which, with, all), device_algorithms::run(which, with, all)) <= 1e-12);
                }
            }
        }
    }
}
