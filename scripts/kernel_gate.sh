#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles the CUDA kernels for each architecture with warnings as errors, and fails if one of them spills registers, has a
# stack, or does double-precision arithmetic where it works on tokens.
#
#   scripts/kernel_gate.sh [folder of a stand-in for libcudart]
#
# With the folder it also runs the loss kernels and fails if one executes more than 110 PTX instructions a token, over 2^24
# tokens of dense, aligned float columns with a mask; and those of log_prob, which may execute 17 a logit of bfloat16 and 22 for
# the gradient. By arithmetic, an H200 issues 14 while it reads a logit, and 28 while it reads and writes one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
runtime=${1-}
architectures=(80 90 100)
most_instructions=110
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
compile=(nvcc -std=c++20 -O3 -Werror all-warnings -Xcompiler -Wall,-Wextra -Iinclude scripts/kernel_gate.cu)
failed=0

# Names of kernels without namespaces and arguments, with the functors of the objective or what else is their type.
names() {
    c++filt | awk '{
        line = $0
        if (match(line, /[a-z_]+_kernel</)) {
            name = substr(line, RSTART, RLENGTH - 1)
            rest = substr(line, RSTART + RLENGTH)
            sub(/>\(.*/, "", rest)
            parts = ""
            while (match(rest, /[a-z_]+_(op|scan|report)|__half|__nv_bfloat16/)) {
                part = substr(rest, RSTART, RLENGTH)
                rest = substr(rest, RSTART + RLENGTH)
                sub(/^__(nv_)?|_(op|scan)$/, "", part)
                parts = parts (parts == "" ? "" : ",") part
            }
            sub(/_kernel$/, "", name)
            if (parts == "" && match(line, /[0-9]+u/)) parts = "needs " substr(line, RSTART, RLENGTH - 1)
            line = name (parts == "" ? "" : " " parts)
        }
        print line
    }'
}

for architecture in "${architectures[@]}"; do
    "${compile[@]}" -arch="sm_$architecture" -Xptxas -v -c -o "$work/$architecture.o" 2>"$work/$architecture.log" ||
        { cat "$work/$architecture.log" && exit 1; }
    # One line a kernel: name, then registers, shared memory, stack, spilled bytes.
    awk -F"'" '/Compiling entry function/ { print $2 }' "$work/$architecture.log" | names >"$work/names"
    awk '/bytes stack frame/ { stack = $1; spilled = $5 + $9 }
         /Used [0-9]+ registers/ {
             for (i = 1; i < NF; ++i) { if ($i == "Used") registers = $(i + 1); if ($(i + 2) ~ /^smem/) shared = $i }
             print registers, shared + 0, stack, spilled; shared = 0 }' "$work/$architecture.log" >"$work/numbers"
    paste -d'|' "$work/names" "$work/numbers" | sed "s/\$/ $architecture/" >>"$work/table"
done

printf '%-34s %6s %9s %8s %6s %8s\n' kernel arch registers 'shared B' 'stack' spilled
sort -t'|' -k1,1 -s "$work/table" | awk -F'|' '{
    split($2, n, " ")
    bad = n[3] > 0 || n[4] > 0
    printf "%-34s %6s %9d %8d %6d %8d%s\n", $1, "sm_" n[5], n[1], n[2], n[3], n[4], bad ? "  <- FAILED" : ""
    failed += bad
} END { exit failed > 0 }' || failed=1

# The loss kernels work on tokens in float alone; sums of chunks are added up in double by a kernel of their own.
"${compile[@]}" -arch=compute_80 -ptx -o "$work/kernels.ptx"
awk '/\.entry/ { inside = /loss_kernel/ && !/finish_loss_kernel/; entries += inside }
     /^}/ { inside = 0 }
     inside && /^[ \t@].*\.f64/ && ++found <= 3 { print "double precision in a loss kernel: " $0 }
     END { if (entries == 0) print "no loss kernel found"; exit found > 0 || entries == 0 }' "$work/kernels.ptx" || failed=1

# Over logits too; what there is one of in a row is worked out in double. Loops over logits are unrolled 32 times.
awk '/\.entry/ { inside = /log_prob_kernel|log_prob_gradient_kernel/; entries += inside; count = 0 }
     inside && /^[ \t@].*\.f64/ && ++count == 49 { print "more double precision than a row needs in a kernel of log_prob"; ++bad }
     END { if (entries == 0) print "no kernel of log_prob found"; exit bad > 0 || entries == 0 }' "$work/kernels.ptx" || failed=1

if [[ -n $runtime ]]; then
    "${compile[@]}" -arch=compute_80 -cudart shared --no-compress -o "$work/kernels"
    printf '\n%-34s %s\n' 'loss of' 'PTX instructions a token'
    for objective in clip clip,tis clip,mis sat gspo sequence; do
        LD_LIBRARY_PATH=$runtime PTXEMU_TRACE=1 "$work/kernels" "$objective" >"$work/trace" 2>&1 ||
            { cat "$work/trace" && exit 1; }
        awk -v name="$objective" -v most=$most_instructions '
            /loss_kernel/ && !/finish_loss_kernel/ { for (i = 2; i <= NF; ++i) if ($i ~ /^instructions/) counted += $(i - 1) }
            END {
                counted /= 2 ^ 24
                bad = counted == 0 || counted > most
                printf "%-34s %.1f%s\n", name, counted, bad ? "  <- FAILED, at most " most : ""
                exit bad
            }' "$work/trace" || failed=1
    done
    printf '\n%-34s %s\n' 'rows of logits' 'PTX instructions a logit'
    LD_LIBRARY_PATH=$runtime PTXEMU_TRACE=1 "$work/kernels" log_prob >"$work/trace" 2>&1 || { cat "$work/trace" && exit 1; }
    for kernel in log_prob_kernel:17 log_prob_gradient_kernel:22; do
        awk -v name="${kernel%:*}" -v most="${kernel#*:}" '
            index($0, "::" name) { for (i = 2; i <= NF; ++i) if ($i ~ /^instructions/) counted += $(i - 1) }
            END {
                counted /= 16 * 151936
                bad = counted == 0 || counted > most
                printf "%-34s %.1f%s\n", name, counted, bad ? "  <- FAILED, at most " most : ""
                exit bad
            }' "$work/trace" || failed=1
    done
fi
exit $failed
