// SPDX-License-Identifier: Apache-2.0
/// @file Objectives of the library, each beside the same method in the words of the array oracle.
#pragma once

#include "array_batch.hpp"

#include <string>
#include <vector>

namespace arrays {

struct example {
    std::string name;
    compiled objective;
    method means;
};

[[nodiscard]] std::vector<example> clip_examples();
[[nodiscard]] std::vector<example> score_examples();
[[nodiscard]] std::vector<example> weight_examples();
[[nodiscard]] std::vector<example> gate_examples();
[[nodiscard]] std::vector<example> coupling_examples();
[[nodiscard]] std::vector<example> sequence_examples();

}  // namespace arrays
