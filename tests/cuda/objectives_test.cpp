// SPDX-License-Identifier: Apache-2.0
// Every other part of an objective on the device against the host: a batch with all columns, packed with rows of all lengths.
#include "catch.hpp"
#include "support/objective_calls.hpp"
#include "support/on_device.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

using asyncrl::column;
using asyncrl::per_token;
using asyncrl::token_batch;
using device::buffer;
using device::must;

namespace {

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

struct batch_columns {
    std::vector<std::int64_t> offsets{0}, segments{0};
    std::vector<float> log_prob, old, rollout, advantage, anchor, reference, sync, kept_mass, weight, divergence, score;
    std::vector<std::uint8_t> mask, keep;
    std::vector<std::int32_t> version;

    explicit batch_columns(std::vector<std::int64_t> const& lengths) {
        std::mt19937_64 random(lengths.size());
        std::normal_distribution<float> bell(0, 0.15F);
        for (std::int64_t const length : lengths) {
            bool const nothing = length == 31;  // a row wholly under the mask
            for (std::int64_t i = 0; i < length; ++i) {
                rollout.push_back(std::min(-0.01F, -1 + 4 * bell(random)));
                sync.push_back(rollout.back() + 0.3F * bell(random));
                old.push_back(sync.back() + bell(random));
                log_prob.push_back(old.back() + bell(random));
                anchor.push_back(old.back() + 0.2F * bell(random));
                reference.push_back(log_prob.back() + bell(random));
                kept_mass.push_back(-0.05F);
                advantage.push_back(random() % 16 == 0 ? 0 : 4 * bell(random));
                score.push_back(bell(random));
                weight.push_back(1 + bell(random));
                divergence.push_back(1 + 4 * bell(random));
                keep.push_back(random() % 8 != 0);
                version.push_back(static_cast<std::int32_t>(random() % 9) - 1);
                mask.push_back(!nothing && random() % 6 != 0);
                if (mask.back() == 0) {
                    log_prob.back() = advantage.back() = rollout.back() = weight.back() = not_a_number;
                } else if (random() % 64 == 0) {
                    rollout.back() = not_a_number;  // not scored
                }
            }
            offsets.push_back(offsets.back() + length);
            if (length > 100) {
                segments.push_back(offsets.back() - length / 3);
            }
            segments.push_back(offsets.back());
        }
    }
    /// Rows of another batch behind these.
    void append(batch_columns const& c) {
        auto const add = [](auto& to, auto const& from) { to.insert(to.end(), from.begin(), from.end()); };
        std::int64_t const before = size();
        for (std::size_t i = 1; i < c.offsets.size(); ++i) {
            offsets.push_back(before + c.offsets[i]);
        }
        for (std::size_t i = 1; i < c.segments.size(); ++i) {
            segments.push_back(before + c.segments[i]);
        }
        using member = std::vector<float> batch_columns::*;
        for (member const column :
             {&batch_columns::log_prob, &batch_columns::old, &batch_columns::rollout, &batch_columns::advantage,
              &batch_columns::anchor, &batch_columns::reference, &batch_columns::sync, &batch_columns::kept_mass,
              &batch_columns::weight, &batch_columns::divergence, &batch_columns::score}) {
            add(this->*column, c.*column);
        }
        add(mask, c.mask);
        add(keep, c.keep);
        add(version, c.version);
    }
    [[nodiscard]] std::int64_t size() const { return offsets.back(); }
    [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
};

template <typename Element>
std::vector<unsigned char> bytes_of(std::vector<Element> const& x) {
    std::vector<unsigned char> bytes(std::max<std::size_t>(1, x.size() * sizeof(Element)));
    std::memcpy(bytes.data(), x.data(), x.size() * sizeof(Element));
    return bytes;
}

/// The batch over the host's memory or over a copy on the device, there `shift` elements off its alignment.
struct laid {
    laid(batch_columns const& c, bool on_device, bool with_segments, std::size_t shift = 0)
        : on_device_(on_device), shift_(shift) {
        batch.rows = c.rows();
        batch.tokens = c.size();
        batch.offsets = put(c.offsets);
        batch.segments = with_segments ? asyncrl::row_offsets(put(c.segments)) : asyncrl::row_offsets();
        batch.segment_count = with_segments ? static_cast<std::int64_t>(c.segments.size()) - 1 : 0;
        batch.log_prob = per_token(put(c.log_prob));
        batch.old_log_prob = per_token(put(c.old));
        batch.rollout_log_prob = per_token(put(c.rollout));
        batch.advantage = per_token(put(c.advantage));
        batch.anchor_log_prob = per_token(put(c.anchor));
        batch.reference_log_prob = per_token(put(c.reference));
        batch.sync_log_prob = per_token(put(c.sync));
        batch.log_kept_mass = per_token(put(c.kept_mass));
        batch.weight = per_token(put(c.weight));
        batch.divergence = per_token(put(c.divergence));
        batch.score = per_token(put(c.score));
        batch.mask = per_token(put(c.mask));
        batch.keep = per_token(put(c.keep));
        batch.version = per_token(put(c.version));
        batch.policy_version = 7;
    }
    token_batch batch;

  private:
    template <typename Element>
    Element const* put(std::vector<Element> const& x) {
        if (!on_device_) {
            return x.data();
        }
        std::vector<Element> shifted(shift_);
        shifted.insert(shifted.end(), x.begin(), x.end());
        buffers_.emplace_back(bytes_of(shifted));
        return reinterpret_cast<Element const*>(buffers_.back().data()) + shift_;
    }

    bool on_device_;
    std::size_t shift_;
    std::vector<buffer> buffers_;
};

struct outcome {
    std::vector<float> gradient, loss, weight;
    std::vector<std::uint16_t> flags;
    asyncrl::totals sums;
    asyncrl::loss_report report;
};

outcome on_host(int which, methods::any_reduction const& reduce, token_batch const& batch) {
    auto const n = static_cast<std::size_t>(batch.tokens);
    outcome o{std::vector<float>(n, not_a_number),
              std::vector<float>(n, not_a_number),
              std::vector<float>(n, not_a_number),
              std::vector<std::uint16_t>(n, 0xffff),
              {},
              {}};
    asyncrl::workspace scratch(batch);
    o.report = host::both(which, reduce, batch, o.sums,
                          {per_token(o.gradient.data()), per_token(o.loss.data()), per_token(o.weight.data()), o.flags.data()},
                          scratch);
    return o;
}

/// `all`: loss, weight and flags too, for which the kernel goes token by token.
outcome on_device(int which, methods::any_reduction const& reduce, token_batch const& batch, bool all) {
    auto const n = static_cast<std::size_t>(batch.tokens);
    device::guarded const gradient(n * 4), loss(n * 4), weight(n * 4), flags(n * 2), sums(sizeof(asyncrl::totals)),
        report(sizeof(asyncrl::loss_report)), room(device::workspace_bytes(batch));
    asyncrl::loss_outputs to(per_token(gradient.as<float>()));
    if (all) {
        to = {per_token(gradient.as<float>()), per_token(loss.as<float>()), per_token(weight.as<float>()),
              flags.as<std::uint16_t>()};
    }
    must(device::both(which, reduce, batch, sums.as<asyncrl::totals>(), to, report.as<asyncrl::loss_report>(),
                      {room.data(), room.bytes()}, nullptr));
    must(cudaDeviceSynchronize());
    for (device::guarded const* const g : {&gradient, &loss, &weight, &flags, &sums, &report, &room}) {
        REQUIRE(g->guards_hold());
    }
    outcome o;
    auto const read = [n](device::guarded const& from, auto& into) {
        into.resize(n);
        must(cudaMemcpy(into.data(), from.data(), n * sizeof into[0], cudaMemcpyDeviceToHost));
    };
    read(gradient, o.gradient);
    read(loss, o.loss);
    read(weight, o.weight);
    read(flags, o.flags);
    o.sums = sums.value<asyncrl::totals>();
    o.report = report.value<asyncrl::loss_report>();
    return o;
}

bool near(float got, float want, double relative) {
    return std::abs(static_cast<double>(got) - static_cast<double>(want)) <=
           relative * std::abs(static_cast<double>(want)) + 1e-6;
}

bool same_bits(std::vector<float> const& a, std::vector<float> const& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void check(int which, methods::any_reduction const& reduce, batch_columns const& c, bool segments) {
    laid const here(c, false, segments);
    laid const there(c, true, segments);
    outcome const want = on_host(which, reduce, here.batch);
    outcome const got = on_device(which, reduce, there.batch, true);
    INFO(objectives::names[which] << (segments ? ", segments" : ""));
    REQUIRE(got.sums.counts.tokens == want.sums.counts.tokens);
    REQUIRE(got.sums.counts.sequences == want.sums.counts.sequences);
    REQUIRE(got.sums.counts.batches == 1);
    REQUIRE(got.report.counts.tokens == want.report.counts.tokens);
    REQUIRE(got.report.counts.unscored == want.report.counts.unscored);
    REQUIRE(got.report.counts.nonfinite == 0);
    REQUIRE(want.report.counts.nonfinite == 0);
    bool const ordered = !std::isnan(want.sums.quantile);
    REQUIRE(std::isnan(got.sums.quantile) == !ordered);
    if (ordered) {
        // Sums over sequences and what is interpolated by staleness are rounded; else it is one of the batch's numbers.
        bool const exact = which == 22 || which == 23 || which == 26;
        REQUIRE_THAT(got.sums.quantile, Catch::Matchers::WithinRel(want.sums.quantile, exact ? 0 : 4e-6));
    }
    REQUIRE(std::isnan(got.sums.weight) == std::isnan(want.sums.weight));
    if (!std::isnan(want.sums.weight)) {
        REQUIRE(got.sums.counts.kept_tokens == want.sums.counts.kept_tokens);
        REQUIRE(got.sums.counts.kept_sequences == want.sums.counts.kept_sequences);
        REQUIRE_THAT(got.sums.weight, Catch::Matchers::WithinRel(want.sums.weight, 4e-6));
    }
    // Decisions on probabilities and sums may fall differently within 1e-6 of the bound.
    std::size_t differing = 0;
    std::size_t gradients = 0;
    for (std::size_t i = 0; i < want.flags.size(); ++i) {
        if (got.flags[i] != want.flags[i]) {
            ++differing;
            continue;
        }
        INFO("token " << i << ": gradient " << got.gradient[i] << " of " << want.gradient[i] << ", loss " << got.loss[i]
                      << " of " << want.loss[i] << ", weight " << got.weight[i] << " of " << want.weight[i]);
        REQUIRE(near(got.gradient[i], want.gradient[i], 2e-5));
        REQUIRE(near(got.loss[i], want.loss[i], 2e-5));
        REQUIRE(near(got.weight[i], want.weight[i], 2e-5));
        gradients += want.gradient[i] != 0 ? 1 : 0;
    }
    REQUIRE(differing <= want.flags.size() / 200);
    REQUIRE(gradients > 0);
    if (differing == 0) {
        REQUIRE(got.report.counts.kept == want.report.counts.kept);
        REQUIRE(got.report.counts.capped == want.report.counts.capped);
        REQUIRE(got.report.counts.clamped == want.report.counts.clamped);
        REQUIRE(std::abs(got.report.sums.loss - want.report.sums.loss) <= 2e-5 * want.report.sums.absolute_loss);
        REQUIRE(std::abs(got.report.sums.penalty - want.report.sums.penalty) <=
                2e-5 * std::abs(want.report.sums.penalty) + 1e-4);
    }

    outcome const again = on_device(which, reduce, there.batch, true);
    REQUIRE(same_bits(again.gradient, got.gradient));
    REQUIRE(same_bits(again.loss, got.loss));
    REQUIRE(again.report.sums.loss == got.report.sums.loss);
    outcome const in_fours = on_device(which, reduce, there.batch, false);
    REQUIRE(same_bits(in_fours.gradient, got.gradient));
    laid const unaligned(c, true, segments, 1);
    outcome const by_element = on_device(which, reduce, unaligned.batch, false);
    REQUIRE(same_bits(by_element.gradient, got.gradient));
    REQUIRE(std::memcmp(&by_element.sums, &got.sums, sizeof got.sums) == 0);
}

batch_columns const& rows_of_all_lengths() {
    static batch_columns const c({1, 31, 0, 32, 33, 255, 300, 2, 3, 0, 1029, 5, 4, 260, 0});
    return c;
}

}  // namespace

TEST_CASE("every part gives the host's flags, values and report") {
    methods::any_reduction const reduce{asyncrl::token_mean{}.rule()};
    for (int which = 0; which < objectives::count; ++which) {
        check(which, reduce, rows_of_all_lengths(), false);
    }
}

TEST_CASE("parts that speak of sequences under reductions by sequences, over kept tokens, and with segments") {
    methods::any_reduction const reduce{asyncrl::sequence_mean_token_mean{.over = asyncrl::counted::kept}.rule()};
    for (int which = objectives::first_of_sequences; which < objectives::count; ++which) {
        check(which, reduce, rows_of_all_lengths(), false);
        check(which, reduce, rows_of_all_lengths(), true);
    }
}

TEST_CASE("a token that is not finite in a column that is needed has no rank, as on the host") {
    methods::any_reduction const reduce{asyncrl::token_mean{}.rule()};
    using member = std::vector<float> batch_columns::*;
    static batch_columns const sound({700, 31, 1029, 1});
    for (member const spoilt :
         {&batch_columns::log_prob, &batch_columns::old, &batch_columns::rollout, &batch_columns::anchor,
          &batch_columns::reference, &batch_columns::sync, &batch_columns::kept_mass, &batch_columns::weight,
          &batch_columns::divergence, &batch_columns::score, &batch_columns::advantage}) {
        batch_columns c = sound;
        for (std::size_t i = 0; i < c.mask.size(); ++i) {
            float const difference = std::abs(c.log_prob[i] - c.anchor[i]);
            (c.*spoilt)[i] = difference > 0.1F && i % 3 != 0 ? not_a_number : (c.*spoilt)[i];
            c.rollout[i] = i % 5 == 0 ? not_a_number : c.rollout[i];  // not scored
        }
        laid const here(c, false, false);
        laid const there(c, true, false);
        for (int const which : {21, 22, 23, 26}) {
            device::guarded const sums(sizeof(asyncrl::totals)), room(device::workspace_bytes(there.batch));
            must(device::measure(which, reduce, there.batch, sums.as<asyncrl::totals>(), {room.data(), room.bytes()}));
            asyncrl::workspace scratch(here.batch);
            INFO(objectives::names[which] << ", column " << (spoilt == &batch_columns::old));
            REQUIRE_THAT(sums.value<asyncrl::totals>().quantile,
                         Catch::Matchers::WithinRel(host::measure(which, reduce, here.batch, scratch).quantile, 1e-6));
        }
    }
}

TEST_CASE("a search over ranks and micro-batches leaves every rank the order statistic of the whole") {
    methods::any_reduction const reduce{asyncrl::token_mean{}.rule()};
    std::vector<std::vector<batch_columns>> ranks;
    SECTION("of all lengths") {
        ranks = {{batch_columns({1, 31, 0, 32}), batch_columns({33})}, {batch_columns({2047, 1})}, {batch_columns({0, 2049})}};
    }
    SECTION("one of which has nothing") {
        ranks = {{batch_columns({1})}, {batch_columns({})}};
    }
    SECTION("none of which has anything") {
        ranks = {{batch_columns({31})}, {batch_columns({0}), batch_columns({})}};
    }
    SECTION("with massive ties, exact zeros for some objectives") {
        ranks = {{batch_columns({300, 2048, 5})}, {batch_columns({2048})}};
        for (std::vector<batch_columns>& rank : ranks) {
            for (batch_columns& c : rank) {
                for (std::size_t i = 0; i < c.mask.size(); ++i) {
                    c.log_prob[i] = c.anchor[i] = c.old[i] = c.rollout[i] + (i % 29 == 0 ? 0.25F : 0);
                }
            }
        }
    }
    SECTION("of one batch each") {
        ranks = {{batch_columns({700, 3})}, {batch_columns({260})}, {batch_columns({5, 4})}};
    }
    batch_columns whole({});
    std::vector<std::vector<laid>> there(ranks.size());
    for (std::size_t r = 0; r < ranks.size(); ++r) {
        for (batch_columns const& c : ranks[r]) {
            whole.append(c);
            there[r].emplace_back(c, true, true);
        }
    }
    laid const all_here(whole, false, true);
    laid const all_there(whole, true, true);
    for (int const which : {18, 20, 21, 22, 23, 26}) {
        INFO(objectives::names[which]);
        device::guarded const room(device::workspace_bytes(all_there.batch)), sums(sizeof(asyncrl::totals));
        must(device::measure(which, reduce, all_there.batch, sums.as<asyncrl::totals>(), {room.data(), room.bytes()}));
        asyncrl::workspace scratch(all_here.batch);
        double const of_host = host::measure(which, reduce, all_here.batch, scratch).quantile;
        double const of_device = sums.value<asyncrl::totals>().quantile;

        device::ranks parts;
        for (std::vector<laid> const& rank : there) {
            parts.emplace_back();
            for (laid const& b : rank) {
                parts.back().push_back(b.batch);
            }
        }
        device::guarded const searches(parts.size() * device::search_bytes());
        device::guarded const each(parts.size() * sizeof(asyncrl::totals));
        // Sequences are added up by their place in a batch; what is between policies is rounded.
        bool const of_sequences = which == 18 || which == 20;
        bool const rounded = of_sequences || which == 21;
        for (int round = 0; round < 2; ++round) {  // the second finds what the first left in the search
            must(device::search(which, reduce, parts, searches.data(), each.as<asyncrl::totals>(), {room.data(), room.bytes()},
                                nullptr));
            must(cudaDeviceSynchronize());
            for (std::size_t r = 0; r < parts.size(); ++r) {
                asyncrl::totals found;
                must(cudaMemcpy(&found, each.as<asyncrl::totals>() + r, sizeof found, cudaMemcpyDeviceToHost));
                REQUIRE_THAT(found.quantile, Catch::Matchers::WithinRel(of_device, of_sequences ? 4e-6 : 0));
                REQUIRE_THAT(found.quantile, Catch::Matchers::WithinRel(of_host, rounded ? 4e-6 : 0));
            }
        }
        REQUIRE(searches.guards_hold());
        REQUIRE(each.guards_hold());
        REQUIRE(room.guards_hold());
    }
}

TEST_CASE("a captured search finds what the columns hold when it is replayed") {
    methods::any_reduction const reduce{asyncrl::token_mean{}.rule()};
    batch_columns c({700, 260});
    laid const there(c, true, false);
    device::guarded const room(device::workspace_bytes(there.batch)), searches(device::search_bytes()),
        sums(sizeof(asyncrl::totals));
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t step = nullptr;
    must(cudaStreamCreate(&stream));
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    must(device::search(22, reduce, {{there.batch}}, searches.data(), sums.as<asyncrl::totals>(), {room.data(), room.bytes()},
                        stream));
    must(cudaStreamEndCapture(stream, &graph));
    must(cudaGraphInstantiate(&step, graph, 0));
    for (int replay = 0; replay < 2; ++replay) {
        must(cudaMemcpy(const_cast<void*>(there.batch.log_prob.data), c.log_prob.data(), c.log_prob.size() * sizeof(float),
                        cudaMemcpyHostToDevice));
        must(cudaGraphLaunch(step, stream));
        must(cudaStreamSynchronize(stream));
        laid const here(c, false, false);
        asyncrl::workspace scratch(here.batch);
        REQUIRE(sums.value<asyncrl::totals>().quantile == host::measure(22, reduce, here.batch, scratch).quantile);
        for (float& x : c.log_prob) {
            x *= 2;
        }
    }
    must(cudaGraphExecDestroy(step));
    must(cudaGraphDestroy(graph));
    must(cudaStreamDestroy(stream));
}

TEST_CASE("a search refuses what cannot be meant before anything is launched") {
    methods::any_reduction const reduce{asyncrl::token_mean{}.rule()};
    batch_columns const c({40});
    laid there(c, true, false);
    device::guarded const room(device::workspace_bytes(there.batch)), searches(device::search_bytes()),
        sums(sizeof(asyncrl::totals));
    auto const refused = [&](void* search, asyncrl::totals* to, device::scratch scratch) {
        return device::search(22, reduce, {{there.batch}}, search, to, scratch, nullptr) == cudaErrorInvalidValue;
    };
    auto const why = [&](void* search, device::scratch scratch) {
        return device::count_refusal(22, reduce, there.batch, search, scratch);
    };
    device::scratch const whole{room.data(), room.bytes()};
    REQUIRE(why(searches.data(), whole) == "");
    REQUIRE(why(nullptr, whole) == "search = null, must point to device memory");
    REQUIRE(why(room.data(), whole).find("overlaps") != std::string::npos);
    REQUIRE(why(searches.data(), {room.data(), room.bytes() - 1}).find("workspace.bytes = ") == 0);
    REQUIRE(refused(nullptr, sums.as<asyncrl::totals>(), whole));
    REQUIRE(refused(searches.data(), nullptr, whole));
    REQUIRE(refused(searches.data(), sums.as<asyncrl::totals>(), {room.data(), room.bytes() - 1}));
    there.batch.rollout_log_prob = {};
    REQUIRE(why(searches.data(), whole) == "token_batch.rollout_log_prob is absent, but the objective needs it");
    REQUIRE(refused(searches.data(), sums.as<asyncrl::totals>(), whole));
    must(cudaDeviceSynchronize());
    REQUIRE(sums.untouched());
}

TEST_CASE("a sequence longer than any block's share is one sequence") {
    methods::any_reduction const reduce{asyncrl::token_mean{}.rule()};
    static batch_columns const c({3, 9001, 7});
    for (int const which : {12, 14, 18}) {
        check(which, reduce, c, false);
    }
}
