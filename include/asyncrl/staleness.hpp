// SPDX-License-Identifier: Apache-2.0
/// @file May this be trained on? Everything of staleness/, in the order in which data passes; standard library only.
#pragma once

#include <asyncrl/staleness/adaptive.hpp>
#include <asyncrl/staleness/batch_window.hpp>
#include <asyncrl/staleness/controller.hpp>
#include <asyncrl/staleness/deadline_ledger.hpp>
#include <asyncrl/staleness/gate_controller.hpp>
#include <asyncrl/staleness/group_assembler.hpp>
#include <asyncrl/staleness/metrics.hpp>
#include <asyncrl/staleness/policy_version.hpp>
#include <asyncrl/staleness/rollout_gate.hpp>
#include <asyncrl/staleness/slot_buffer.hpp>
#include <asyncrl/staleness/span_limit.hpp>
#include <asyncrl/staleness/unit.hpp>
#include <asyncrl/staleness/version_labels.hpp>
#include <asyncrl/staleness/version_runs.hpp>
