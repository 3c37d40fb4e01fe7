// SPDX-License-Identifier: Apache-2.0
/// @file With odr_b.cpp: a function of a header that lacks `inline` is defined twice, and the two do not link.
#include <asyncrl/asyncrl.hpp>

int other_version();

int main() {
    return other_version() == ASYNCRL_VERSION_MINOR ? 0 : 1;
}
