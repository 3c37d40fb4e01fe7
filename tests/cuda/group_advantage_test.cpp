// SPDX-License-Identifier: Apache-2.0
// Baselines within groups on the device against the host's call, which has tests of its own.
#include "catch.hpp"
#include "support/advantage_calls.hpp"
#include "support/device_memory.hpp"
#include "support/refusals.hpp"

#include <asyncrl/correction/advantage.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

using namespace support;
using asyncrl::group_advantage_options;
using asyncrl::group_advantage_report;
using asyncrl::group_baseline;
using asyncrl::group_deviation;
using device::must;

namespace {

struct member {
    double reward = 0;
    int role = 0;
};
using group = std::vector<member>;

struct layout {
    dtype reward = dtype::f32;
    dtype advantage = dtype::f32;
    bool uniform = false;       ///< groups of one size, without offsets
    bool wide_offsets = false;  ///< else 32 bits
    bool roles = true;
    std::int64_t stride = 1;
};

/// Groups as columns in the host's memory.
struct laid_out {
    laid_out(std::vector<group> g, layout l) : groups(std::move(g)), how(l) {
        narrow_offsets.push_back(0);
        wide_offsets.push_back(0);
        std::vector<member> members;
        for (group const& one : groups) {
            members.insert(members.end(), one.begin(), one.end());
            narrow_offsets.push_back(static_cast<std::int32_t>(members.size()));
            wide_offsets.push_back(static_cast<std::int64_t>(members.size()));
        }
        where.lengths.assign(members.size(), 1);
        reward = memory(how.reward, {how.stride, 0}, where);
        role = memory(dtype::u8, {how.stride, 0}, where);
        fresh = memory(how.advantage, {how.stride, 0}, where);
        for (std::size_t i = 0; i < members.size(); ++i) {
            reward.put(i, 0, members[i].reward);
            role.put(i, 0, members[i].role);
        }
        rewards.members = static_cast<std::int64_t>(members.size());
        rewards.group_size = how.uniform ? static_cast<std::int64_t>(groups.front().size()) : 0;
        rewards.groups = how.uniform ? 0 : static_cast<std::int64_t>(groups.size());
    }

    std::vector<group> groups;
    layout how;
    grid where;
    memory reward, role, fresh;
    std::vector<std::int32_t> narrow_offsets;
    std::vector<std::int64_t> wide_offsets;
    asyncrl::group_rewards rewards;  ///< without columns and offsets
};

struct outcome {
    memory advantage;
    group_advantage_report report;

    [[nodiscard]] bool same_bits(outcome const& other) const {
        return advantage.bytes() == other.advantage.bytes() && std::memcmp(&report, &other.report, sizeof report) == 0;
    }
};

outcome on_host(laid_out const& b, group_advantage_options const& options) {
    outcome out{b.fresh, {}};
    asyncrl::group_rewards rewards = b.rewards;
    if (!b.how.uniform) {
        rewards.offsets =
            b.how.wide_offsets ? asyncrl::row_offsets(b.wide_offsets.data()) : asyncrl::row_offsets(b.narrow_offsets.data());
    }
    rewards.reward = b.reward.in();
    if (b.how.roles) {
        rewards.role = b.role.in();
    }
    out.report = asyncrl::group_advantage(rewards, out.advantage.out(), options);
    return out;
}

template <typename Number>
std::vector<unsigned char> bytes_of_numbers(std::vector<Number> const& numbers) {
    std::vector<unsigned char> bytes(numbers.size() * sizeof(Number));
    std::memcpy(bytes.data(), numbers.data(), bytes.size());
    return bytes;
}

/// Groups and their advantages in device memory.
struct on_device {
    explicit on_device(laid_out const& b)
        : host(b),
          reward(b.reward),
          role(b.role),
          offsets(b.how.wide_offsets ? bytes_of_numbers(b.wide_offsets) : bytes_of_numbers(b.narrow_offsets)),
          advantage(b.fresh),
          report_memory(sizeof(group_advantage_report)),
          rewards(b.rewards),
          to(advantage.out()),
          report(report_memory.as<group_advantage_report>()) {
        void const* const data = offsets.data();
        if (!b.how.uniform) {
            rewards.offsets = b.how.wide_offsets ? asyncrl::row_offsets(static_cast<std::int64_t const*>(data))
                                                 : asyncrl::row_offsets(static_cast<std::int32_t const*>(data));
        }
        rewards.reward = reward.in();
        if (b.how.roles) {
            rewards.role = role.in();
        }
    }
    [[nodiscard]] cudaError_t call(group_advantage_options const& options, unsigned blocks = 0,
                                   cudaStream_t stream = nullptr) const {
        return device::group_advantage(rewards, to, report, options, blocks, stream);
    }
    /// Waits for the device. Throws if anything was written that is not an output.
    [[nodiscard]] outcome fetch() const {
        must(cudaDeviceSynchronize());
        outcome out{host.fresh, report_memory.value<group_advantage_report>()};
        advantage.fetch(out.advantage);
        if (!report_memory.guards_hold() || !out.advantage.guards_hold() || !reward.unchanged() || !role.unchanged()) {
            throw std::runtime_error("something beside the outputs was written");
        }
        return out;
    }
    [[nodiscard]] bool untouched() const {
        must(cudaDeviceSynchronize());
        return report_memory.untouched() && advantage.unchanged();
    }

    laid_out const& host;
    device::device_column reward, role;
    device::buffer offsets;
    device::device_column advantage;
    device::guarded report_memory;
    asyncrl::group_rewards rewards;
    asyncrl::output_column to;
    group_advantage_report* report;
};

outcome run(laid_out const& b, group_advantage_options const& options, unsigned blocks = 0) {
    on_device const d(b);
    must(d.call(options, blocks));
    return d.fetch();
}

/// Where the device differs from the host: relative to the group's largest advantage, as the difference to the mean cancels.
/// Where the host has 0 exactly +0 is asked for. Empty if nowhere.
std::string difference_from_host(laid_out const& b, group_advantage_options const& options) {
    outcome const got = run(b, options);
    outcome const want = on_host(b, options);
    double const tolerance = b.how.advantage == dtype::f64   ? 1e-12
                             : b.how.advantage == dtype::f32 ? 0x1p-23
                             : b.how.advantage == dtype::f16 ? 0x1p-10
                                                             : 0x1p-7;
    std::ostringstream text;
    text.precision(17);
    std::size_t first = 0;
    for (group const& one : b.groups) {
        double size = 0;
        for (std::size_t i = first; i < first + one.size(); ++i) {
            size = std::max(size, std::abs(want.advantage.get(i, 0)));
        }
        for (std::size_t i = first; i < first + one.size(); ++i) {
            double const x = got.advantage.get(i, 0);
            double const y = want.advantage.get(i, 0);
            bool const fits = size == 0 ? got.advantage.bits(i, 0) == 0 : std::abs(x - y) <= tolerance * size;
            if (!fits && text.str().empty()) {
                text << "advantage[" << i << "] is " << x << ", expected " << y;
            }
        }
        first += one.size();
    }
    if (std::memcmp(&got.report, &want.report, sizeof got.report) != 0) {
        text << " reports differ";
    }
    return text.str();
}

std::vector<group> random_groups(std::mt19937_64& random, std::vector<std::size_t> const& sizes, bool roles) {
    std::normal_distribution<double> bell;
    std::vector<group> all;
    for (std::size_t const size : sizes) {
        group g;
        bool const binary = random() % 2 == 0;
        double const common = bell(random);
        std::uint64_t const kind = random() % 5;  // 0: all the same
        for (std::size_t i = 0; i < size; ++i) {
            member m{kind == 0 ? common : binary ? static_cast<double>(random() % 2) : 3 + bell(random), 0};
            if (roles && random() % 5 == 0) {
                m.role = static_cast<int>(random() % 3);
            }
            if (random() % 23 == 0 || m.role == 2) {
                double const bad[] = {not_a_number, infinity, -infinity};
                m.reward = bad[random() % 3];
            }
            g.push_back(m);
        }
        all.push_back(g);
    }
    return all;
}

std::vector<group_advantage_options> every_option() {
    std::vector<group_advantage_options> all;
    for (group_baseline const baseline : {group_baseline::mean, group_baseline::leave_one_out}) {
        for (group_deviation const deviation :
             {group_deviation::none, group_deviation::population, group_deviation::unbiased}) {
            for (double const epsilon : {0.0, 1e-6, 0.5}) {
                all.push_back({baseline, deviation, epsilon});
            }
        }
    }
    return all;
}

std::vector<std::size_t> const every_size{0, 1, 2, 3, 8, 31, 32, 33, 64, 0, 1, 700, 16};

}  // namespace

TEST_CASE("rewards 1, 2, 3 have these advantages") {
    laid_out const b({{{1}, {2}, {3}}}, {.uniform = true});
    memory const unbiased = run(b, {group_baseline::mean, group_deviation::unbiased, 0}).advantage;
    memory const others = run(b, {group_baseline::leave_one_out, group_deviation::none, 0}).advantage;
    for (std::size_t i = 0; i < 3; ++i) {
        double const from_mean = static_cast<double>(i) - 1;
        REQUIRE(unbiased.get(i, 0) == from_mean);
        REQUIRE(others.get(i, 0) == 1.5 * from_mean);
    }
}

TEST_CASE("groups of every size agree with the host, with every option, dtype and layout") {
    std::mt19937_64 random(1);
    dtype const floating[] = {dtype::f64, dtype::f32, dtype::bf16, dtype::f16};
    for (group_advantage_options const& options : every_option()) {
        layout how;
        how.reward = floating[random() % 4];
        how.advantage = floating[random() % 4];
        how.wide_offsets = random() % 2 == 0;
        how.roles = random() % 4 != 0;
        how.stride = random() % 3 == 0 ? 3 : random() % 3 == 0 ? -1 : 1;
        laid_out const ragged(random_groups(random, every_size, how.roles), how);
        REQUIRE(difference_from_host(ragged, options) == "");
        how.uniform = true;
        std::size_t const size = 1 + random() % 40;
        laid_out const uniform(random_groups(random, std::vector<std::size_t>(50, size), how.roles), how);
        REQUIRE(difference_from_host(uniform, options) == "");
    }
}

TEST_CASE("rewards near the ends of the range of doubles agree with the host") {
    for (double const size : {1e-300, 1e150, 1e300}) {
        laid_out const b({{{size}, {2 * size}, {4 * size}}}, {.reward = dtype::f64, .advantage = dtype::f64});
        for (group_advantage_options options : every_option()) {
            options.epsilon = 0;
            REQUIRE(difference_from_host(b, options) == "");
        }
    }
}

TEST_CASE("equal rewards give exact zeros with any epsilon, in groups of any size") {
    for (std::size_t const size : {1U, 2U, 7U, 33U, 100U}) {
        laid_out const b({group(size, member{0.1})}, {.reward = dtype::f64, .advantage = dtype::f64});
        for (group_advantage_options const& options : every_option()) {
            outcome const out = run(b, options);
            for (std::size_t i = 0; i < size; ++i) {
                REQUIRE(out.advantage.bits(i, 0) == 0);
            }
            REQUIRE(out.report.degenerate == 1);
        }
    }
}

TEST_CASE("any grid and a second run have the same bits") {
    std::mt19937_64 random(2);
    laid_out const b(random_groups(random, std::vector<std::size_t>(60, 37), true), {.advantage = dtype::f64});
    outcome const want = run(b, {});
    for (unsigned const blocks : {0U, 1U, 2U, 5U}) {
        REQUIRE(run(b, {}, blocks).same_bits(want));
    }
}

TEST_CASE("a role that no member has is taken for excluded") {
    laid_out wrong({{{1, 77}, {2}, {5}}}, {.advantage = dtype::f64});
    laid_out const excluded({{{1, 2}, {2}, {5}}}, {.advantage = dtype::f64});
    REQUIRE(run(wrong, {}).same_bits(run(excluded, {})));
}

TEST_CASE("a group call is captured, and a replay reads what the columns hold then") {
    std::mt19937_64 random(3);
    std::vector<std::size_t> const sizes(20, 8);
    laid_out const first(random_groups(random, sizes, true), {});
    laid_out const second(random_groups(random, sizes, true), {});
    cudaStream_t stream = nullptr;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    on_device d(first);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    must(d.call({}, 0, stream));
    must(cudaStreamEndCapture(stream, &graph));
    REQUIRE(d.untouched());
    must(cudaGraphInstantiate(&replay, graph, 0));
    for (laid_out const* const b : {&first, &second}) {
        d.reward.rewrite(b->reward);
        d.role.rewrite(b->role);
        must(cudaGraphLaunch(replay, stream));
        must(cudaStreamSynchronize(stream));
        REQUIRE(d.fetch().same_bits(run(*b, {})));
    }
    must(cudaGraphExecDestroy(replay));
    must(cudaGraphDestroy(graph));
    must(cudaStreamDestroy(stream));
}

TEST_CASE("groups that cannot be meant are cudaErrorInvalidValue, are put in words, launch and write nothing") {
    struct misuse {
        std::string words;  ///< `*`: an address
        std::function<void(on_device&, group_advantage_options&)> spoil;
    };
    std::vector<misuse> const all{
        {"group_rewards.members = -4, must be >= 0", [](on_device& d, group_advantage_options&) { d.rewards.members = -4; }},
        {"group_rewards.group_size = 4, must be 0 where there are offsets",
         [](on_device& d, group_advantage_options&) { d.rewards.group_size = 4; }},
        {"group_rewards.groups = -1, must be >= 0", [](on_device& d, group_advantage_options&) { d.rewards.groups = -1; }},
        {"group_rewards.groups = 0, must be > 0, as group_rewards.members = 12",
         [](on_device& d, group_advantage_options&) { d.rewards.groups = 0; }},
        {"group_rewards.groups = 3, must be 0 where there are no offsets",
         [](on_device& d, group_advantage_options&) { d.rewards.offsets = {}; }},
        {"group_rewards.group_size = 5, must be a divisor of group_rewards.members = 12",
         [](on_device& d, group_advantage_options&) {
             d.rewards.offsets = {};
             d.rewards.groups = 0;
             d.rewards.group_size = 5;
         }},
        {"group_rewards.reward is absent", [](on_device& d, group_advantage_options&) { d.rewards.reward = {}; }},
        {"group_rewards.reward has dtype i32, must be f32, f64, bf16 or f16",
         [](on_device& d, group_advantage_options&) { d.rewards.reward.type = dtype::i32; }},
        {"group_rewards.role has dtype f32, must be u8",
         [](on_device& d, group_advantage_options&) { d.rewards.role.type = dtype::f32; }},
        {"advantage is absent", [](on_device& d, group_advantage_options&) { d.to = {}; }},
        {"advantage has dtype u8, must be f32, f64, bf16 or f16",
         [](on_device& d, group_advantage_options&) { d.to.type = dtype::u8; }},
        {"advantage has a row stride of 0: each member needs an element of its own",
         [](on_device& d, group_advantage_options&) { d.to.row_stride = 0; }},
        {"report = null, must point to device memory", [](on_device& d, group_advantage_options&) { d.report = nullptr; }},
        {"group_advantage_options.epsilon = -1, must be finite and >= 0",
         [](on_device&, group_advantage_options& o) { o.epsilon = -1; }},
        {"group_advantage_options.epsilon = nan, must be finite and >= 0",
         [](on_device&, group_advantage_options& o) { o.epsilon = not_a_number; }},
        {"group_advantage_options.epsilon = inf, must be finite and >= 0",
         [](on_device&, group_advantage_options& o) { o.epsilon = infinity; }},
        {"group_rewards.reward = 0x*, must be a multiple of 4",
         [](on_device& d, group_advantage_options&) {
             d.rewards.reward.data = static_cast<std::byte const*>(d.rewards.reward.data) + 2;
         }},
        {"advantage overlaps group_rewards.reward, must lie apart from it",
         [](on_device& d, group_advantage_options&) { d.to.data = const_cast<void*>(d.rewards.reward.data); }},
        {"report overlaps group_rewards.role, must lie apart from it",
         [](on_device& d, group_advantage_options&) { d.rewards.role.data = d.report; }},
        {"report overlaps advantage, must lie apart from it",
         [](on_device& d, group_advantage_options&) { d.to.data = reinterpret_cast<float*>(d.report) + 3; }},
    };
    std::mt19937_64 random(4);
    laid_out const b(random_groups(random, {4, 4, 4}, true), {});
    for (misuse const& wrong : all) {
        on_device d(b);
        group_advantage_options options;
        REQUIRE(device::group_advantage_refusal(d.rewards, d.to, d.report, options) == "");
        wrong.spoil(d, options);
        std::string const words = device::group_advantage_refusal(d.rewards, d.to, d.report, options);
        CAPTURE(wrong.words, words);
        REQUIRE(device::refused_before_any_launch([&](cudaStream_t on) { return d.call(options, 0, on); }));
        REQUIRE(device::is_like(words, wrong.words));
        REQUIRE(d.untouched());
        REQUIRE(cudaGetLastError() == cudaSuccess);
    }
}
