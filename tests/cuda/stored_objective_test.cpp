// SPDX-License-Identifier: Apache-2.0
// What a captured graph reads from device memory when it is replayed: numbers of the objective, the version, the gradient from
// above.
#include "catch.hpp"
#include "support/device_memory.hpp"
#include "support/stored_calls.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

using device::buffer;
using device::guarded;
using device::must;
using device::schedule;
using device::stored_kind;

namespace {

constexpr std::int64_t rows = 3;
constexpr std::int64_t tokens = 700;
constexpr std::int64_t size = rows * tokens;

template <typename Element, typename Draw>
buffer filled(Draw draw) {
    std::vector<unsigned char> bytes(size * sizeof(Element));
    for (std::int64_t i = 0; i < size; ++i) {
        Element const x = static_cast<Element>(draw());
        std::memcpy(bytes.data() + static_cast<std::size_t>(i) * sizeof x, &x, sizeof x);
    }
    return buffer(bytes);
}

struct columns {
    std::mt19937 random{5};
    std::normal_distribution<double> noise{0, 0.2};
    buffer log_prob = filled<float>([&] { return -2 + noise(random); });
    buffer old = filled<float>([&] { return -2 + noise(random); });
    buffer rollout = filled<float>([&] { return -2 + noise(random); });
    buffer reference = filled<float>([&] { return -2 + noise(random); });
    buffer advantage = filled<float>([&] { return noise(random); });
    buffer version = filled<std::int32_t>([&] { return random() % 6; });
    buffer mask = filled<std::uint8_t>([&] { return random() % 5 != 0; });

    [[nodiscard]] asyncrl::token_batch batch() const {
        auto const floats = [](buffer const& b) {
            return asyncrl::per_token(reinterpret_cast<float const*>(b.data()), tokens);
        };
        asyncrl::token_batch b{.rows = rows, .tokens = tokens};
        b.log_prob = floats(log_prob);
        b.old_log_prob = floats(old);
        b.rollout_log_prob = floats(rollout);
        b.reference_log_prob = floats(reference);
        b.advantage = floats(advantage);
        b.version = asyncrl::per_token(reinterpret_cast<std::int32_t const*>(version.data()), tokens);
        b.mask = asyncrl::per_token(static_cast<std::uint8_t const*>(mask.data()), tokens);
        return b;
    }
};

/// Where a call writes, guards around.
struct results {
    guarded gradient{size * sizeof(float)};
    guarded sums{sizeof(asyncrl::totals)};
    guarded report{sizeof(asyncrl::loss_report)};
    guarded room;

    explicit results(asyncrl::token_batch const& b) : room(device::workspace_bytes(b)) {}

    [[nodiscard]] asyncrl::loss_outputs to() const { return asyncrl::per_token(gradient.as<float>(), tokens); }
    [[nodiscard]] device::scratch scratch() const { return {room.data(), room.bytes()}; }
    [[nodiscard]] std::vector<float> gradients() const {
        std::vector<float> x(size);
        must(cudaMemcpy(x.data(), gradient.data(), gradient.bytes(), cudaMemcpyDeviceToHost));
        return x;
    }
    [[nodiscard]] bool same_report(results const& other) const {
        auto const a = report.value<asyncrl::loss_report>();
        auto const b = other.report.value<asyncrl::loss_report>();
        return std::memcmp(&a, &b, sizeof a) == 0;
    }
    [[nodiscard]] bool guards_hold() const {
        return gradient.guards_hold() && sums.guards_hold() && report.guards_hold() && room.guards_hold();
    }
};

template <typename Value>
void write(guarded const& at, Value x, cudaStream_t stream) {
    must(cudaMemcpyAsync(at.data(), &x, sizeof x, cudaMemcpyHostToDevice, stream));
    must(cudaStreamSynchronize(stream));
}

bool is_plus_zero(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits == 0;
}

}  // namespace

TEST_CASE("a replay uses the numbers, the version and the upstream gradient that stand in device memory then") {
    columns const data;
    struct round {
        schedule numbers;
        std::int64_t version;
        float upstream;  // a power of two, so that what is expected is exact
    };
    round const rounds[] = {{{0.2, 0.2, 1.25, 0.125}, 5, 1.0F},
                            {{0.0625, 0.125, 2, 0.5}, 9, -0.5F},
                            {{0.3, 0.3, 1.0625, 0}, 3, 4.0F},
                            {{0.2, 0.2, 1.25, 0.125}, 5, 0.0F}};
    for (stored_kind const kind : device::every_stored_kind) {
        INFO("objective " << static_cast<int>(kind));
        cudaStream_t stream = nullptr;
        must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        guarded const numbers(device::numbers_bytes(kind));
        guarded const version(sizeof(std::int64_t));
        guarded const upstream(sizeof(float));

        asyncrl::token_batch scheduled = data.batch();
        scheduled.policy_version_at = version.as<std::int64_t>();
        results const replayed(scheduled);
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t step = nullptr;
        must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        must(device::both_stored(kind, numbers.data(), scheduled, replayed.sums.as<asyncrl::totals>(), replayed.to(),
                                 replayed.report.as<asyncrl::loss_report>(), replayed.scratch(),
                                 {.upstream = upstream.as<float>()}, stream));
        must(cudaStreamEndCapture(stream, &graph));
        must(cudaGraphInstantiate(&step, graph, 0));

        std::vector<float> previous;
        for (round const& r : rounds) {
            must(device::store(kind, r.numbers, numbers.data(), false, stream));
            write(version, r.version, stream);
            write(upstream, r.upstream, stream);
            must(cudaGraphLaunch(step, stream));
            must(cudaStreamSynchronize(stream));

            asyncrl::token_batch plain = data.batch();
            plain.policy_version = r.version;
            results const direct(plain);
            must(device::both_by_value(kind, r.numbers, plain, direct.sums.as<asyncrl::totals>(), direct.to(),
                                       direct.report.as<asyncrl::loss_report>(), direct.scratch(), stream));
            must(cudaStreamSynchronize(stream));

            REQUIRE(replayed.same_report(direct));
            std::vector<float> const got = replayed.gradients();
            std::vector<float> const one = direct.gradients();
            for (std::size_t i = 0; i < got.size(); ++i) {
                REQUIRE(got[i] == one[i] * r.upstream);
                REQUIRE((got[i] != 0 || is_plus_zero(got[i])));
            }
            REQUIRE(got != previous);  // the schedule matters
            previous = got;
            REQUIRE(replayed.guards_hold());
        }
        REQUIRE((numbers.guards_hold() && version.guards_hold() && upstream.guards_hold()));
        must(cudaGraphExecDestroy(step));
        must(cudaGraphDestroy(graph));
        must(cudaStreamDestroy(stream));
    }
}

TEST_CASE("numbers are not stored where the host would go on reading others, nor where there is no memory for them") {
    schedule const s{0.2, 0.2, 1.25, 0.125};
    for (stored_kind const kind : device::every_stored_kind) {
        guarded const numbers(device::numbers_bytes(kind) + 16);
        REQUIRE(device::store(kind, s, numbers.data(), true, nullptr) == cudaErrorInvalidValue);
        REQUIRE(device::store(kind, s, nullptr, false, nullptr) == cudaErrorInvalidValue);
        REQUIRE(device::store(kind, s, numbers.as<unsigned char>() + 4, false, nullptr) == cudaErrorInvalidValue);
        must(cudaDeviceSynchronize());
        REQUIRE(numbers.untouched());
    }
}

TEST_CASE("a call with an objective that has no memory for its numbers is refused before anything is written") {
    columns const data;
    asyncrl::token_batch const batch = data.batch();
    for (stored_kind const kind : device::every_stored_kind) {
        results const none(batch);
        REQUIRE(device::both_stored(kind, nullptr, batch, none.sums.as<asyncrl::totals>(), none.to(),
                                    none.report.as<asyncrl::loss_report>(), none.scratch(), {},
                                    nullptr) == cudaErrorInvalidValue);
        must(cudaDeviceSynchronize());
        REQUIRE((none.gradient.untouched() && none.sums.untouched() && none.report.untouched() && none.room.untouched()));
    }
}
