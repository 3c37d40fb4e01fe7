#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles the CUDA kernels for each architecture with warnings as errors, and prints what each one takes. Fails if a kernel of
# the library is not among them, if one spills registers, has a stack, or does double-precision arithmetic where it works on
# tokens.
#
#   scripts/kernel_gate.sh [--write | --check] [folder of a stand-in for libcudart]
#
# With the folder it also runs them and counts the PTX instructions that they execute. It fails if a loss kernel executes more
# than 110 a token (125 of bf16), over 2^24 tokens of dense, aligned columns with a mask, or a kernel of log_prob more than 17 a logit of
# bfloat16, 22 for the gradient. By arithmetic, an H200 issues 14 while it reads a logit, and 28 while it reads and writes one.
#
# --write puts the table into docs/cuda_kernels.md. --check fails if another one stands there, made with the same nvcc.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mode=
if [[ ${1-} == --write || ${1-} == --check ]]; then
    mode=$1
    shift
fi
runtime=${1-}
[[ $mode != --write || -n $runtime ]] || { echo "--write needs the folder" >&2 && exit 2; }
architectures=(80 90 100)
cases=(clip clip,tis clip,mis clip,tis,bf16 sat gspo normalised sat,gspo sequence stored mismatch recursions group_advantage
    log_prob log_prob,bf16 log_prob,f16 routing)
limits="clip:loss_kernel:110 clip,tis:loss_kernel:110 clip,mis:loss_kernel:110 clip,tis,bf16:loss_kernel:125
    sat:loss_kernel:110 gspo:loss_kernel:110
    log_prob,bf16:log_prob_kernel:17 log_prob,bf16:log_prob_gradient_kernel:22"
page=docs/cuda_kernels.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LC_ALL=C
failed=0

# One program with the PTX of every architecture, each of which is then assembled.
targets=()
for architecture in "${architectures[@]}"; do
    targets+=(-gencode "arch=compute_$architecture,code=compute_$architecture")
done
nvcc -std=c++20 -O3 -Werror all-warnings -Xcompiler -Wall,-Wextra -Iinclude -t 0 "${targets[@]}" --keep --keep-dir "$work" \
    -cudart shared --no-compress -o "$work/kernels" scripts/kernel_gate.cu
for architecture in "${architectures[@]}"; do
    ptxas --warning-as-error -v -m64 -arch="sm_$architecture" -o "$work/cubin" "$work/kernel_gate.compute_$architecture.ptx" \
        2>"$work/log" || { cat "$work/log" && exit 1; }
    # Symbol, architecture, registers, shared memory, stack, spilled bytes.
    awk -F"'" -v architecture="$architecture" '
        /Compiling entry function/ { symbol = $2 }
        /bytes stack frame/ { split($0, n, " "); stack = n[1]; spilled = n[5] + n[9] }
        /Used [0-9]+ registers/ {
            match($0, /Used [0-9]+/); registers = substr($0, RSTART + 5, RLENGTH - 5)
            shared = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART) + 0 : 0
            print symbol, architecture, registers, shared, stack, spilled
        }' "$work/log" >>"$work/resources"
done
ptx=$work/kernel_gate.compute_${architectures[0]}.ptx

awk '$5 + $6 > 0 { print "a stack of " $5 " bytes, " $6 " spilled, on sm_" $2 ": " $1; bad = 1 } END { exit bad }' \
    "$work/resources" | c++filt || failed=1

# Symbol and number of instructions. A line of inline assembly holds several.
awk '{ sub(/\/\/.*/, "") }
     /\.entry/ { match($0, /_Z[A-Za-z0-9_]+/); symbol = substr($0, RSTART, RLENGTH); count = 0 }
     symbol != "" {
         pieces = split($0, piece, ";")
         for (i = 1; i < pieces; ++i) { count += piece[i] ~ /^[ \t{]*(@!?[%a-z0-9_]+[ \t]+)?[a-z]/ }
         opened = gsub(/{/, "{"); closed = gsub(/}/, "}"); depth += opened - closed
         if (depth == 0 && opened + closed > 0) { print symbol, count; symbol = "" }
     }' "$ptx" | sort >"$work/sizes"

# Short names: the kernel's, with the functors of its objective or what else is its type.
cut -d' ' -f1 "$work/sizes" >"$work/symbols"
c++filt <"$work/symbols" >"$work/signatures"
awk '{
    match($0, /[a-z_]+_kernel[<(]/)
    name = substr($0, RSTART, RLENGTH - 8)
    rest = substr($0, RSTART + RLENGTH)
    sub(/>\(.*/, "", rest)
    flag = name == "loss" ? "any type" : "slopes"
    parts = rest ~ /stored_numbers/ ? "stored" : rest ~ /^[0-9]+, true/ ? flag : ""
    while (match(rest, /[a-z_]+_(op|scan|report)|__half|__nv_bfloat16|^[0-9]+, float$/)) {
        part = substr(rest, RSTART, RLENGTH)
        rest = substr(rest, RSTART + RLENGTH)
        sub(/^__(nv_)?|^[0-9]+, |_(op|scan)$/, "", part)
        parts = parts (parts == "" ? "" : ", ") part
    }
    print name (parts == "" ? "" : ": " parts)
}' "$work/signatures" >"$work/names"

# Every kernel of the library is among them.
grep -rhA 2 __global__ include/asyncrl/cuda | grep -oE '[a-z_]+_kernel\(' | sort -u | while read -r kernel; do
    grep -q "::${kernel%(}[<(]" "$work/signatures" || { echo "scripts/kernel_gate.cu calls no ${kernel%(}"; exit 1; }
done || failed=1

# The loss kernels work on tokens in float alone; sums of chunks are added up in double by a kernel of their own.
awk '/\.entry/ { inside = /loss_kernel/ && !/finish_loss_kernel/; entries += inside }
     /^}/ { inside = 0 }
     inside && /^[ \t@].*\.f64/ && ++found <= 3 { print "double precision in a loss kernel: " $0 }
     END { if (entries == 0) print "no loss kernel found"; exit found > 0 || entries == 0 }' "$ptx" || failed=1

# Over logits too; what there is one of in a row is worked out in double. Loops over logits are unrolled 32 times.
awk '/\.entry/ { inside = /log_prob_kernel|log_prob_gradient_kernel/; entries += inside; count = 0 }
     inside && /^[ \t@].*\.f64/ && ++count == 49 { print "more double precision than a row needs in a kernel of log_prob"; ++bad }
     END { if (entries == 0) print "no kernel of log_prob found"; exit bad > 0 || entries == 0 }' "$ptx" || failed=1

# The begin of a signature, and what a kernel of more than one block executed for each of its units.
touch "$work/executed"
if [[ -n $runtime ]]; then
    for name in "${cases[@]}"; do
        LD_LIBRARY_PATH=$runtime PTXEMU_SM=${architectures[0]} PTXEMU_TRACE=1 "$work/kernels" "$name" >"$work/trace" 2>&1 ||
            { cat "$work/trace" && exit 1; }
        awk -v name="$name" -v limits="$limits" '
            /^over / { units = $2; unit = $3; sub(/s$/, "", unit) }
            / instructions/ && !/<<<\(1,1,1\)/ {
                signature = substr($0, 9, index($0, " <<<") - 9)
                for (i = 2; i <= NF; ++i) if ($i ~ /^instructions/) counted[signature] += $(i - 1) / units
            }
            END {
                for (signature in counted) printf "%s|%.1f|%s\n", signature, counted[signature], unit
                count = split(limits, limit, " ")
                for (i = 1; i <= count; ++i) {
                    split(limit[i], part, ":")
                    if (part[1] != name) continue
                    each = 0
                    for (signature in counted) if (index(signature, "::" part[2] "<")) each = counted[signature]
                    if (each > 0 && each <= part[3]) continue
                    printf "%s: %s executes %.1f a %s, not 1 to %d\n", name, part[2], each, unit, part[3] >"/dev/stderr"
                    bad = 1
                }
                exit bad
            }' "$work/trace" >>"$work/executed" || failed=1
    done
fi

version=$(nvcc --version | sed -n 's/.*, V//p')
{
    printf '`scripts/kernel_gate.sh --write <folder>`, with nvcc %s:\n\n' "$version"
    printf '| kernel | registers, sm_%s | shared memory, bytes | PTX instructions | executed |\n|---|---|---|---|---|\n' \
        "$(IFS=/ && sed 's,/, / ,g' <<<"${architectures[*]}")"
    paste -d'|' "$work/symbols" "$work/signatures" "$work/names" <(cut -d' ' -f2 "$work/sizes") | awk -F'|' '
        FILENAME ~ /resources$/ {
            split($0, n, " ")
            registers[n[1]] = registers[n[1]] (n[1] in registers && registers[n[1]] != "" ? " / " : "") n[3]
            if (n[4] > shared[n[1]] + 0) shared[n[1]] = n[4]
            next
        }
        FILENAME ~ /executed$/ {  # a kernel that several cases launch is that of the first
            if (!($1 in executed)) { begin[++begins] = $1; executed[$1] = $2 " a " $3 }
            next
        }
        {
            run = ""
            for (i = 1; i <= begins; ++i) {
                if (index($2, begin[i]) == 1) {
                    if (taken[i]++) { print "two kernels begin as " begin[i] >"/dev/stderr"; exit 1 }
                    run = executed[begin[i]]
                }
            }
            printf "| %s | %s | %d | %d | %s |\n", $3, registers[$1], shared[$1], $4, run
        }' "$work/resources" "$work/executed" - | sort
    printf '\n'
} >"$work/table"
cat "$work/table"

# What stands between the marks of the page.
generated() {
    sed -n '/^<!-- generated -->$/,/^<!-- end -->$/p' "$page" | sed '1d;$d'
}
if [[ $mode == --write ]]; then
    sed -i -e "/^<!-- generated -->\$/r $work/table" -e '/^<!-- generated -->$/,/^<!-- end -->$/{//!d}' "$page"
elif [[ $mode == --check ]] && [[ $(generated) != *"nvcc $version:"* ]]; then
    echo "$page is of another nvcc, and not compared"
elif [[ $mode == --check ]]; then
    columns=cat
    [[ -n $runtime ]] || columns="sed s/[^|]*|\$//"  # what was not executed is not compared
    diff <(generated | $columns) <($columns "$work/table") || { echo "$page differs (<) from what was measured (>)" && failed=1; }
fi
exit $failed
