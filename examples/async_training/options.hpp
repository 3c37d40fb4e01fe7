// SPDX-License-Identifier: Apache-2.0
/// @file What can be chosen on the command line.
#pragma once

#include "objectives.hpp"
#include "precision.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

/// What decides which unit may start and which batch it is for.
enum class control { slots, ledger };
inline constexpr std::array<char const*, 2> control_names{"slots", "ledger"};

struct options {
    int staleness = 2;                                ///< batches, at most
    std::optional<int> lag = std::nullopt;            ///< batches, exactly
    control admission = control::slots;               ///< slot_buffer or deadline_ledger
    std::optional<int> keep_versions = std::nullopt;  ///< units whose version has left this window are dropped
    std::optional<int> max_switches = std::nullopt;   ///< answers that cross more versions are rejected
    correction weight = correction::tis;              ///< of samples by how likely they are now
    precision engines = precision::fp32;              ///< of the rollout copies of the weights
    double learning_rate = 1e-3;
    double clip_low = 0.2;
    double clip_high = 0.28;
    int steps = 1200;      ///< batches
    int groups = 32;       ///< units per batch
    int members = 8;       ///< answers per group
    int minibatches = 2;   ///< per batch, one optimizer step each
    int warm_start = 120;  ///< supervised optimizer steps
    std::uint64_t seed = 1;
    int threads = 2;
    int token_time = 300;  ///< microseconds
    std::string json{};
    bool sweep = false;
    bool sweep_weights = true;  ///< over all corrections
    int seeds = 5;
    bool help = false;

    [[nodiscard]] int bound() const { return lag.value_or(staleness); }
    [[nodiscard]] loss_choice loss() const { return {weight, clip_low, clip_high}; }
};

/// The command line cannot be meant; the text says why, in one line.
struct usage_error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class option_table {
  public:
    explicit option_table(options& o)
        : rows_{
              {"--staleness", "BATCHES", "bound on the staleness, 0 to 63; rollout threads run freely (2)",
               value(o.staleness, 0, 63)},
              {"--lag", "BATCHES", "instead of a bound: batch b is exactly min(b, this) old, and all bits are reproducible",
               [&o](std::string_view word) { o.lag = number(word, 0, 63); }},
              {"--control", "NAME", "of admission and batches: slots = slot_buffer, ledger = deadline_ledger (slots)",
               name(o.admission, control_names)},
              {"--keep-versions", "VERSIONS",
               "drop finished groups whose version is not among the newest observed; not with --lag",
               [&o](std::string_view word) { o.keep_versions = number(word, 1, 1000); }},
              {"--max-switches", "SWITCHES",
               "weights one answer may change; else its group starts again, at most twice; not with --lag",
               [&o](std::string_view word) { o.max_switches = number(word, 0, 1000); }},
              {"--correction", "NAME",
               "none; weights by w = old / rollout: tis = min(w, 2), mis = w in [0.5, 5]; sat: the clip on new / rollout,\n"
               "                                narrower in each minibatch's tail; sat-tis: that clip on new / old, and tis "
               "(tis)",
               name(o.weight, correction_names)},
              {"--precision", "NAME", "of the rollout copies of the weights: fp32, bf16 or fp8, which is e4m3 (fp32)",
               name(o.engines, precision_names)},
              {"--learning-rate", "X", "of Adam, per optimizer step (0.001)", value(o.learning_rate, 1e-9, 1.0)},
              {"--clip-low", "X", "how far the ratio new / old may fall below 1 (0.2)", value(o.clip_low, 0.0, 0.999)},
              {"--clip-high", "X", "how far it may rise above 1 (0.28)", value(o.clip_high, 0.0, 1000.0)},
              {"--steps", "BATCHES", "batches to train (1200; 300 in a sweep)", value(o.steps, 4, 1'000'000)},
              {"--groups", "UNITS", "prompts per batch (32)", value(o.groups, 1, 4096)},
              {"--members", "ANSWERS", "answers per prompt (8)", value(o.members, 2, 256)},
              {"--minibatches", "PARTS", "of a batch, one optimizer step each (2)", value(o.minibatches, 1, 64)},
              {"--warm-start", "STEPS", "supervised optimizer steps before the first batch (120)",
               value(o.warm_start, 0, 100'000)},
              {"--seed", "N", "of every random draw (1)", value(o.seed, std::uint64_t{0}, ~std::uint64_t{0})},
              {"--threads", "THREADS", "that generate; in a sweep, runs at the same time (2)", value(o.threads, 1, 64)},
              {"--token-time", "MICROSECONDS",
               "engines sleep before each token, to be as slow as large ones; not with --lag (300)",
               value(o.token_time, 0, 1'000'000)},
              {"--json", "FILE", "also write all numbers to this file", [&o](std::string_view word) { o.json = word; }},
              {"--sweep", "", "lags 0, 2, 4, 8 x corrections x seeds, as a table; --lag or --correction narrow it to one",
               [&o](std::string_view) { o.sweep = true; }},
              {"--seeds", "RUNS", "seeds of a sweep, counted up from --seed (5)", value(o.seeds, 2, 1000)},
              {"--help", "", "this text", [&o](std::string_view) { o.help = true; }},
          } {}

    void read(std::span<char const* const> words) {
        for (std::size_t i = 0; i < words.size(); ++i) {
            std::string const option = words[i];
            row& found = find(option);
            found.given = true;
            if (found.unit[0] != '\0' && ++i == words.size()) {
                throw usage_error(fmt::format("{} needs a value: {}", option, found.unit));
            }
            try {
                found.set(words[i]);
            } catch (usage_error const& rule) {
                throw usage_error(fmt::format("{} '{}': must be {}", option, words[i], rule.what()));
            }
        }
    }

    [[nodiscard]] bool given(std::string_view option) { return find(option).given; }

    void print() const {
        fmt::print("Asynchronous GRPO: threads sample answers to additions while a policy is trained on them.\n\n");
        for (row const& option : rows_) {
            fmt::print("  {:<15} {:<13} {}\n", option.name, option.unit, option.help);
        }
    }

  private:
    using setter = std::function<void(std::string_view)>;
    struct row {
        char const *name, *unit, *help;  ///< no unit: a switch
        setter set;
        bool given = false;
    };

    row& find(std::string_view option) {
        for (row& candidate : rows_) {
            if (candidate.name == option) {
                return candidate;
            }
        }
        throw usage_error(fmt::format("unknown option '{}'; --help lists all", option));
    }

    template <typename Number>
    static Number number(std::string_view word, Number low, Number high) {
        Number read{};
        auto const [end, error] = std::from_chars(word.data(), word.data() + word.size(), read);
        if (error != std::errc() || end != word.data() + word.size() || !(read >= low && read <= high)) {
            throw usage_error(fmt::format("a number from {} to {}", low, high));
        }
        return read;
    }
    template <typename Number>
    static setter value(Number& into, Number low, Number high) {
        return [&into, low, high](std::string_view word) { into = number(word, low, high); };
    }
    template <typename Enum, std::size_t Count>
    static setter name(Enum& into, std::array<char const*, Count> const& names) {
        return [&into, &names](std::string_view word) {
            for (std::size_t i = 0; i < Count; ++i) {
                if (word == names[i]) {
                    into = static_cast<Enum>(i);
                    return;
                }
            }
            throw usage_error(fmt::format("one of {}", fmt::join(names, ", ")));
        };
    }

    std::vector<row> rows_;
};

/// Reads the words after the program's name. Throws usage_error for what cannot be meant.
inline options read_options(std::span<char const* const> words) {
    options o;
    option_table table(o);
    table.read(words);
    if (o.help) {
        table.print();
        return o;
    }
    auto const refuse_if = [](bool wrong, char const* why) {
        if (wrong) {
            throw usage_error(why);
        }
    };
    refuse_if(o.lag && table.given("--staleness"), "--lag fixes the staleness and --staleness bounds it: give one of them");
    refuse_if(o.sweep && table.given("--staleness"), "a sweep compares fixed lags: give --lag instead of --staleness");
    refuse_if((o.sweep || o.lag) && table.given("--token-time"),
              "--token-time needs free-running threads: --staleness, not --lag");
    refuse_if((o.sweep || o.lag) && (o.keep_versions || o.max_switches),
              "--keep-versions and --max-switches need free-running threads: --staleness, not --lag");
    refuse_if(o.sweep && o.lag && *o.lag != 0 && *o.lag != 2 && *o.lag != 4 && *o.lag != 8,
              "a sweep has the lags 0, 2, 4 and 8");
    refuse_if(!o.sweep && table.given("--seeds"), "--seeds counts the runs of a sweep: give --sweep too");
    refuse_if(o.minibatches > o.groups, "--minibatches must not exceed --groups: every optimizer step needs a group");
    o.sweep_weights = !table.given("--correction");
    if (o.sweep && !table.given("--steps")) {
        o.steps = 300;
    }
    return o;
}
