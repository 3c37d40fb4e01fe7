// SPDX-License-Identifier: Apache-2.0
/// @file Forward declarations of the public types.
#pragma once

#include <asyncrl/config.hpp>

#include <cstdint>

ASYNCRL_BEGIN_NAMESPACE

// staleness/
struct policy_version;
enum class freshness : std::uint8_t;
class version_clock;

struct version_labels_options;
class version_labels;
struct label_run;

struct version_run;
enum class append_status : std::uint8_t;
class version_runs;

enum class span_verdict : std::uint8_t;
struct span_decision;
struct span_limit_options;
class span_limit;
enum class retry_verdict : std::uint8_t;
class retry_budget;

enum class gate_mode : std::uint8_t;
enum class gate_state : std::uint8_t;
enum class gate_status : std::uint8_t;
struct gate_pass;
class rollout_gate;
class gate_controller;

struct unit_ticket;
enum class ticket_status : std::uint8_t;
enum class admission_status : std::uint8_t;
enum class drop_reason : std::uint8_t;
struct unit_counters;
template <typename Handle>
struct taken_unit;

struct label_segment;
struct version_segment;
enum class window_order : std::uint8_t;
struct batch_window_options;
class batch_window;
enum class stale_scope : std::uint8_t;
template <typename Handle>
struct stale_notice;
template <typename Handle>
class pending_groups;

struct adaptive_limit_options;
class adaptive_limit;
struct drift_window_options;
class drift_window;
struct constant_decay;
struct polynomial_decay;
struct hinge_decay;
struct exponential_decay;
struct phase;
class phase_schedule;
struct interruption_forecast_options;
class interruption_forecast;

struct staleness_histogram;
enum class drop_stage : std::uint8_t;
enum class wait_cause : std::uint8_t;
struct staleness_metrics;

enum class slot_state : std::uint8_t;
enum class buffer_state : std::uint8_t;
enum class slot_event_kind : std::uint8_t;
struct slot_place;
template <typename Handle>
struct slot_view;
template <typename Handle>
struct slot_event;
struct no_listener;
struct slot_buffer_options;
template <typename Handle, typename Listener = no_listener>
class slot_buffer;

struct deadline_ledger_options;
enum class readiness_state : std::uint8_t;
struct batch_readiness;
struct unit_worth;
enum class sacrifice_mode : std::uint8_t;
struct sacrifice_options;
struct sacrifice_result;
template <typename Handle>
class deadline_ledger;

enum class member_role : std::uint8_t;
enum class member_status : std::uint8_t;
enum class group_state : std::uint8_t;
enum class short_group : std::uint8_t;
struct group_options;
struct group_ticket;
struct member_ticket;
struct group_view;
struct group_counters;
template <typename Handle>
class group_assembler;

enum class wait_status : std::uint8_t;
template <typename Control>
class controller;

ASYNCRL_END_NAMESPACE
