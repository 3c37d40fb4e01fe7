// SPDX-License-Identifier: Apache-2.0
/// @file Staleness control alone: units are admitted while they can still be trained in time, and finish in any order.
#include <asyncrl/staleness.hpp>

#include <array>
#include <cstdio>
#include <vector>

int main() {
    // [snippet: protocol]
    asyncrl::slot_buffer<int> buffer({.batch_size = 2, .max_staleness = 1});
    std::vector<asyncrl::unit_ticket> tickets;
    while (auto const ticket = buffer.reserve(static_cast<int>(tickets.size()))) {
        tickets.push_back(*ticket);
    }
    // [snippet: end]
    bool const four_fit = tickets.size() == 4;  // batches 0 and 1; a fifth unit could only be trained too late

    // [snippet: out_of_order]
    buffer.occupy(tickets[3]);
    buffer.occupy(tickets[1]);
    std::array<asyncrl::taken_unit<int>, 2> batch;
    auto const number = buffer.take(batch);
    // [snippet: end]
    bool const first_two_trained = number && number->value == 0 && batch[0].handle == 3 && batch[1].handle == 1;

    buffer.publish();
    std::printf("admitted %zu, trained %d and %d, room for %d more\n", tickets.size(), batch[0].handle, batch[1].handle,
                static_cast<int>(buffer.admissible()));
    return four_fit && first_two_trained && buffer.admissible() == 2 ? 0 : 1;
}
