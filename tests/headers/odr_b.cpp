// SPDX-License-Identifier: Apache-2.0
#include <asyncrl/asyncrl.hpp>

int other_version();

int other_version() {
    return ASYNCRL_VERSION_MINOR;
}
