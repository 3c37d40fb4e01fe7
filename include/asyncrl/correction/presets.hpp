// SPDX-License-Identifier: Apache-2.0
/// @file Objectives by the name of a published method, or of a framework whose defaults they are.
///
/// Each is what it returns, no more: read it, and compose your own where a number or a part differs. docs/presets.md says what
/// each framework calls these parts and where its convention differs from ours.
#pragma once

#include <asyncrl/correction/objective.hpp>

ASYNCRL_BEGIN_NAMESPACE

namespace presets {

// Clips of the ratio.

/// GRPO (arXiv 2402.03300): clip, k3 against the reference, each sequence weighs the same.
[[nodiscard]] inline auto grpo(double kl = 0.04) {
    return make_objective(ppo_clip{.low = 0.2, .high = 0.2}, k3_penalty{.coefficient = kl}, sequence_mean_token_mean{});
}

/// DAPO (arXiv 2503.14476): clip-higher, each token weighs the same.
[[nodiscard]] inline auto dapo() {
    return make_objective(ppo_clip{.low = 0.2, .high = 0.28}, token_mean{});
}

/// Dr. GRPO (arXiv 2503.20783): sums by a constant horizon. Advantages are centred, not divided by their deviation.
[[nodiscard]] inline auto dr_grpo(double horizon) {
    return make_objective(ppo_clip{.low = 0.2, .high = 0.2}, sequence_mean_token_sum{.horizon = horizon});
}

/// GSPO (arXiv 2507.18071): the clip on the geometric mean of a sequence's ratios.
[[nodiscard]] inline auto gspo() {
    return make_objective(ppo_clip{.low = 3e-4, .high = 4e-4}, sequence_ratio{.of = level::geometric},
                          sequence_mean_token_mean{});
}

/// GSPO-token, for advantages that differ within a sequence.
[[nodiscard]] inline auto gspo_token() {
    return make_objective(ppo_clip{.low = 3e-4, .high = 4e-4}, sequence_ratio_own_slope{.of = level::geometric},
                          sequence_mean_token_mean{});
}

/// GMPO (arXiv 2507.20673): the geometric mean of ratios that are clipped one by one.
[[nodiscard]] inline auto gmpo() {
    return make_objective(importance_gradient{}, clipped_geometric_ratio{.limit = 0.4}, sequence_mean_token_mean{});
}

/// CISPO (arXiv 2506.13585) on data of an asynchronous engine: the capped ratio to the rollout policy weighs the score.
[[nodiscard]] inline auto cispo_async() {
    return make_objective(cispo{.low = 1, .high = 0.28}, anchor_rollout{}, token_mean{});
}

/// SPO (arXiv 2401.16025).
[[nodiscard]] inline auto simple_policy_optimization() {
    return make_objective(spo{.epsilon = 0.2}, token_mean{});
}

/// SAPO (arXiv 2511.20347).
[[nodiscard]] inline auto sapo_published() {
    return make_objective(sapo{.tau_positive = 1, .tau_negative = 1.05}, sequence_mean_token_mean{});
}

/// ASPO (arXiv 2510.06062).
[[nodiscard]] inline auto aspo_published() {
    return make_objective(aspo{.low = 0.2, .high = 0.2, .cap_positive = 3, .cap_negative = 3}, token_mean{});
}

/// TOPR (arXiv 2503.14286): by the ratio of the trajectory.
[[nodiscard]] inline auto topr_published() {
    return make_objective(topr{.cap = 1}, anchor_rollout{}, sequence_ratio_own_slope{.of = level::product}, token_mean{});
}

/// VESPO (arXiv 2602.10693).
[[nodiscard]] inline auto vespo_published() {
    return make_objective(vespo{}, anchor_rollout{}, sequence_ratio_own_slope{.of = level::product}, token_mean{});
}

/// Kimi k1.5 (arXiv 2501.12599): the score, and half of beta times the squared log-ratio.
[[nodiscard]] inline auto kimi_k15(double beta = 0.1) {
    return make_objective(policy_gradient{}, squared_log_ratio_penalty{.coefficient = beta / 2}, token_mean{});
}

/// M2PO (arXiv 2510.01161) with the bounds that m2_bound found for this batch.
[[nodiscard]] inline auto m2po(ppo_clip const& found) {
    return make_objective(found, token_mean{});
}

// Corrections of who sampled the data.

/// Decoupled PPO (arXiv 2110.00641; AReaL, 2505.24298): the clip against the proximal policy, whose ratio to the rollout policy
/// is a truncated weight.
[[nodiscard]] inline auto decoupled_ppo(double cap = 5) {
    return make_objective(ppo_clip{.low = 0.2, .high = 0.2}, tis{.cap = cap}, token_mean{});
}

/// A-3PO (arXiv 2512.06547): decoupled PPO whose proximal policy is interpolated by staleness.
[[nodiscard]] inline auto a3po(double cap = 5) {
    return make_objective(ppo_clip{.low = 0.2, .high = 0.2}, anchor_between{}, tis{.cap = cap}, token_mean{});
}

/// IcePop (arXiv 2510.18855).
[[nodiscard]] inline auto icepop() {
    return make_objective(ppo_clip{.low = 0.2, .high = 0.2}, mis{.low = 0.5, .high = 5}, token_mean{});
}

/// KPop (arXiv 2606.15079).
[[nodiscard]] inline auto kpop() {
    return make_objective(ppo_clip{.low = 0.2, .high = 0.2}, kpop_gate{.limit = 0.1}, importance_weight{}, token_mean{});
}

/// DPPO by total variation (arXiv 2602.04879), with the thresholds and the penalty of prime-rl, whose default it is.
[[nodiscard]] inline auto dppo_tv() {
    return make_objective(importance_gradient{}, anchor_rollout{}, tv_gate{.low = 0.2, .high = 0.2},
                          squared_log_ratio_penalty{.coefficient = 1e-3}, token_mean{});
}

/// DPPO by binary KL.
[[nodiscard]] inline auto dppo_kl(double limit) {
    return make_objective(importance_gradient{}, anchor_rollout{}, kl_gate{.limit = limit}, token_mean{});
}

/// IPO of prime-rl.
[[nodiscard]] inline auto ipo() {
    return make_objective(importance_gradient{}, anchor_rollout{}, ipo_gate{.limit = 0.1},
                          squared_log_ratio_penalty{.coefficient = 1e-3}, token_mean{});
}

/// DRPO (arXiv 2606.09821).
[[nodiscard]] inline auto drpo_published() {
    return make_objective(drpo{.delta = 12.5}, anchor_rollout{}, token_mean{});
}

/// SAT on GRPO (arXiv 2607.18722): the tail of the batch is clipped more tightly; the published penalty.
[[nodiscard]] inline auto sat_grpo(double kl = 1e-3) {
    return make_objective(sat_clip{.low = 0.2, .high = 0.2, .quantile = {9, 10}}, anchor_rollout{},
                          k3_penalty{.coefficient = kl}, sequence_mean_token_mean{});
}

/// SAT on GSPO: the same on the sequences' ratios, the quantile over tokens.
[[nodiscard]] inline auto sat_gspo(double kl = 1e-3) {
    return make_objective(sat_clip{.low = 3e-4, .high = 4e-4, .quantile = {9, 10}}, anchor_rollout{}, sequence_ratio{},
                          k3_penalty{.coefficient = kl}, sequence_mean_token_mean{});
}

/// As DeepSeek-V3.2 describes it (arXiv 2512.02556): off-policy sequence masking and the unbiased KL penalty.
[[nodiscard]] inline auto deepseek_v32(double delta, double kl) {
    return make_objective(ppo_clip{.low = 0.2, .high = 0.2}, opsm{.delta = delta}, unbiased_k3_penalty{.coefficient = kl},
                          sequence_mean_token_mean{});
}

// Defaults of frameworks, as of August 2026.

/// verl: dual clip at 3 is on; no correction.
[[nodiscard]] inline auto verl() {
    return make_objective(dual_clip{.low = 0.2, .high = 0.2, .cap = 3}, token_mean{});
}

/// verl with rollout_is = token.
[[nodiscard]] inline auto verl_tis() {
    return make_objective(dual_clip{.low = 0.2, .high = 0.2, .cap = 3}, tis{.cap = 2}, token_mean{});
}

/// verl with rollout_is = sequence.
[[nodiscard]] inline auto verl_sequence_tis() {
    return make_objective(dual_clip{.low = 0.2, .high = 0.2, .cap = 3}, sequence_tis{.cap = 2, .of = level::product},
                          token_mean{});
}

/// TRL's GRPOTrainer with vLLM: sequences whose product ratio is above 3 are rejected, the others weighted by it.
[[nodiscard]] inline auto trl() {
    return make_objective(ppo_clip{.low = 0.2, .high = 0.2}, sequence_gate{.low = 0, .high = 3, .of = level::product},
                          sequence_tis{.cap = 3, .of = level::product}, token_mean{});
}

/// slime, whose loss averages over rollouts.
[[nodiscard]] inline auto slime() {
    return make_objective(ppo_clip{.low = 0.2, .high = 0.2}, sequence_mean_token_mean{});
}

/// slime with --use-tis.
[[nodiscard]] inline auto slime_tis() {
    return make_objective(ppo_clip{.low = 0.2, .high = 0.2}, tis{.cap = 2}, sequence_mean_token_mean{});
}

/// OpenRLHF with its `tis`, which clamps both ends.
[[nodiscard]] inline auto openrlhf_tis() {
    return make_objective(ppo_clip{.low = 0.2, .high = 0.2}, two_sided_tis{.low = 0.5, .high = 5}, token_mean{});
}

/// AReaL with the decoupled loss and its token mask.
[[nodiscard]] inline auto areal_decoupled() {
    return make_objective(ppo_clip{.low = 0.2, .high = 0.2}, mis{.low = 0, .high = 5}, token_mean{});
}

/// prime-rl.
[[nodiscard]] inline auto prime_rl() {
    return dppo_tv();
}

/// SkyRL.
[[nodiscard]] inline auto skyrl() {
    return make_objective(ppo_clip{.low = 0.2, .high = 0.2}, token_mean{});
}

/// NeMo-RL with seq-mask-tis: sequences near 1 in the geometric mean, weighted token by token.
[[nodiscard]] inline auto nemo_rl_seq_mask_tis() {
    return make_objective(ppo_clip{.low = 0.2, .high = 0.2}, sequence_gate{.low = 0.999, .high = 1.002, .of = level::geometric},
                          importance_weight{}, token_mean{});
}

/// ROLL: dual clip at 1 + 2 epsilon, sequences weigh the same.
[[nodiscard]] inline auto roll() {
    return make_objective(dual_clip{.low = 0.2, .high = 0.2, .cap = 1.4}, sequence_mean_token_mean{});
}

}  // namespace presets

ASYNCRL_END_NAMESPACE
