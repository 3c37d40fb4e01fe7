// SPDX-License-Identifier: Apache-2.0
/// @file One training run: rollout threads, the controller between, and the trainer.
#pragma once

#include "options.hpp"
#include "rollout.hpp"
#include "trainer.hpp"

#include <asyncrl/staleness/batch_window.hpp>
#include <asyncrl/staleness/controller.hpp>
#include <asyncrl/staleness/deadline_ledger.hpp>
#include <asyncrl/staleness/slot_buffer.hpp>
#include <asyncrl/staleness/span_limit.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

/// Seconds spent in parts of the work, added up over threads.
class stopwatch {
  public:
    /// Runs `work` and counts its time.
    template <typename Work>
    auto time(Work&& work) {
        struct lap {
            stopwatch& owner;
            std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
            ~lap() { owner.nanoseconds_ += std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count(); }
        } const lap_of_work{*this};
        return work();
    }
    [[nodiscard]] double seconds() const { return static_cast<double>(nanoseconds_) * 1e-9; }

  private:
    std::atomic<std::int64_t> nanoseconds_{0};
};

struct run_result {
    std::vector<step_report> steps;
    std::vector<std::int64_t> staleness_histogram;  ///< units trained at each staleness
    asyncrl::unit_counters units;                   ///< after the last batch, with the threads still at work
    struct {
        double generating, waiting_for_admission;               ///< over all rollout threads
        double waiting_for_batches, training, publishing, all;  ///< of the trainer's thread
    } seconds{};
};

/// The two sides of a run, where all numbers are the host's.
struct on_host {
    using group = ::group;
    using rollout_engine = ::rollout_engine;
    using weight_board = ::weight_board;
    using trainer = ::trainer;
};

/// `Buffer`: a slot_buffer or a deadline_ledger of groups; they model one concept, and nothing here knows which it is. Nor does
/// anything here know where the `Sides` keep tokens and weights.
template <typename Buffer, typename Sides>
class training_run {
    using group = typename Sides::group;
    using rollout_engine = typename Sides::rollout_engine;
    using trainer = typename Sides::trainer;
    using controller = asyncrl::controller<Buffer>;

  public:
    using watcher = std::function<void(step_report const&)>;

    training_run(options const& o, policy<float> start)
        : options_(o),
          controller_(Buffer({.batch_size = o.groups, .max_staleness = o.bound()})),
          limit_({.max_switches = o.max_switches}),
          window_({.keep_versions = o.keep_versions.value_or(0)}),
          board_(o.engines),
          trainer_(o, std::move(start)),
          batch_(static_cast<std::size_t>(o.groups)) {}

    /// Trains all batches; calls `watch` after each.
    run_result run(watcher const& watch) {
        board_.post(trainer_.current(), {0});
        result_.staleness_histogram.resize(static_cast<std::size_t>(options_.bound()) + 1);
        stopwatch all;
        all.time([&] { options_.lag ? run_in_lockstep(watch) : run_freely(watch); });
        result_.seconds = {generating_.seconds(), admission_.seconds(),  waiting_.seconds(),
                           training_.seconds(),   publishing_.seconds(), all.seconds()};
        return std::move(result_);
    }

    [[nodiscard]] policy<float> trained() const { return trainer_.trained(); }

  private:
    /// Rollout threads and trainer at their own pace: the controller alone keeps them together.
    void run_freely(watcher const& watch) {
        std::vector<std::jthread> rollouts;
        for (int i = 0; i < options_.threads; ++i) {
            rollouts.emplace_back([this](std::stop_token const& stop) {
                try {
                    generate_until(stop);
                } catch (std::exception const& error) {
                    controller_.fail(error.what());
                }
            });
        }
        for (int step = 0; step < options_.steps; ++step) {
            train_one_batch(watch);
        }
        result_.units = controller_.counters();
        controller_.close();
    }

    void generate_until(std::stop_token const& stop) {
        rollout_engine engine;
        asyncrl::retry_budget attempts;
        std::optional<std::uint64_t> retried;  // the prompt of a group that was rejected
        // [snippet: rollout]
        for (;;) {
            auto admitted = admission_.time([&] { return controller_.reserve({}, stop); });
            if (!admitted) {
                return;
            }
            generating_.time([&] {
                auto const prompt = retried.value_or(admitted.unit.id());
                auto answers = make_group<group>(options_.seed, admitted.unit.id(), options_.members, prompt);
                bool const is_whole = engine.sample(*answers, [this](rollout_engine& now) {
                    std::this_thread::sleep_for(std::chrono::microseconds(options_.token_time));
                    now.fetch(board_);
                    return all_may_go_on(now);
                });
                if (is_whole) {
                    finish(std::move(admitted.unit), std::move(answers));
                } else {
                    attempts.reject();
                    admitted.unit.discard(asyncrl::drop_reason::rejected);
                }
                bool const again = attempts.settle() == asyncrl::retry_verdict::retry;
                retried = again ? std::optional(prompt) : std::nullopt;
                attempts = again ? attempts : asyncrl::retry_budget();
            });
        }
        // [snippet: end]
    }

    /// Whether no open answer would cross more versions than allowed.
    [[nodiscard]] bool all_may_go_on(rollout_engine const& engine) const {
        return std::none_of(engine.open().begin(), engine.open().end(), [&](auto const* answer) {
            return limit_.check(answer->versions, engine.version()).verdict == asyncrl::span_verdict::reject;
        });
    }

    /// Delivers a group. Under a window its versions are observed, and groups that fall out of it are dropped at once.
    void finish(typename controller::lease unit, std::unique_ptr<group> answers) {
        if (!options_.keep_versions) {
            unit.occupy(std::move(answers));
            return;
        }
        std::vector<asyncrl::version_segment> segments;
        for (std::size_t i = 0; i < answers->size(); ++i) {
            segments.push_back({static_cast<std::int64_t>(i), 0, (*answers)[i].versions.last()});
        }
        asyncrl::unit_ticket const ticket = unit.release();
        controller_.update([&](Buffer& buffer) {  // in one step, so that no batch is taken in between
            if (buffer.occupy(ticket, std::move(answers)) == asyncrl::ticket_status::ok) {
                window_.add(ticket, segments, [&](asyncrl::stale_notice<asyncrl::unit_ticket> const& stale) {
                    (void)buffer.filter(stale.handle, asyncrl::drop_reason::stale);  // or else a batch has just taken it
                });
            }
        });
    }

    /// The same protocol in steps: fill every place that the bound leaves open, then train one batch. At version 0 that fills
    /// the batches 0 to lag, later one batch per version; so batch b is min(b, lag) batches old. Results are delivered in the
    /// order of their ids, so nothing depends on the number of threads.
    void run_in_lockstep(watcher const& watch) {
        std::vector<rollout_engine> engines(static_cast<std::size_t>(options_.threads));
        std::vector<typename controller::lease> open;
        std::vector<std::unique_ptr<group>> answers;
        for (int step = 0; step < options_.steps; ++step) {
            for (auto admitted = controller_.try_reserve(); admitted; admitted = controller_.try_reserve()) {
                answers.push_back(make_group<group>(options_.seed, admitted.unit.id(), options_.members));
                open.push_back(std::move(admitted.unit));
            }
            generate_all(engines, answers);
            for (std::size_t i = 0; i < open.size(); ++i) {
                open[i].occupy(std::move(answers[i]));
            }
            open.clear();
            answers.clear();
            train_one_batch(watch);
        }
        result_.units = controller_.counters();
    }

    void generate_all(std::vector<rollout_engine>& engines, std::span<std::unique_ptr<group> const> answers) {
        std::atomic<std::size_t> next{0};
        auto const work = [&](rollout_engine& engine) {
            generating_.time([&] {
                engine.fetch(board_);
                for (std::size_t i = next++; i < answers.size(); i = next++) {
                    engine.sample(*answers[i], [](rollout_engine&) { return true; });
                }
            });
        };
        std::vector<std::jthread> others;
        for (std::size_t i = 1; i < engines.size(); ++i) {
            others.emplace_back([&work, &engine = engines[i]] { work(engine); });
        }
        work(engines.front());
    }

    void train_one_batch(watcher const& watch) {
        if (auto const taken = waiting_.time([&] { return controller_.take(batch_); }); !taken) {
            throw std::runtime_error("rollouts failed: " + controller_.failure().value_or("controller closed"));
        }
        if (options_.keep_versions) {
            controller_.update([&](Buffer&) {
                window_.remove_if([&](asyncrl::unit_ticket const& waiting) {
                    return std::any_of(batch_.begin(), batch_.end(),
                                       [&](typename trainer::unit const& unit) { return unit.id == waiting.id; });
                });
            });
        }
        for (auto const& unit : batch_) {
            ++result_.staleness_histogram.at(static_cast<std::size_t>(unit.staleness));
        }
        result_.steps.push_back(training_.time([&] { return trainer_.step(batch_); }));
        // [snippet: publish]
        publishing_.time([&] {
            // Engines must be able to fetch the new weights before units are stamped with their version: the other way round
            // a token could be older than its unit claims, and the bound would not hold.
            board_.post(trainer_.current(), controller_.begin_publish());
            controller_.commit_publish();
        });
        // [snippet: end]
        watch(result_.steps.back());
    }

    options options_;
    controller controller_;
    asyncrl::span_limit limit_;
    asyncrl::pending_groups<asyncrl::unit_ticket> window_;  ///< touched only inside controller_.update
    typename Sides::weight_board board_;
    trainer trainer_;
    std::vector<typename trainer::unit> batch_;
    run_result result_;
    stopwatch generating_, admission_, waiting_, training_, publishing_;
};

/// A finished run, and the policy that it made.
struct trained_policy {
    run_result result;
    policy<float> weights;
};

/// Trains all batches under the control that the options name; calls `watch` after each.
template <typename Sides = on_host>
trained_policy run_training(options const& o, policy<float> start, std::function<void(step_report const&)> const& watch) {
    auto const run_under = [&](auto training) {
        run_result result = training->run(watch);
        return trained_policy{std::move(result), training->trained()};
    };
    using handle = std::unique_ptr<typename Sides::group>;
    if (o.admission == control::ledger) {
        return run_under(std::make_unique<training_run<asyncrl::deadline_ledger<handle>, Sides>>(o, std::move(start)));
    }
    return run_under(std::make_unique<training_run<asyncrl::slot_buffer<handle>, Sides>>(o, std::move(start)));
}
