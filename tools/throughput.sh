#!/usr/bin/env bash
# Tokens per second of whole `hotmetal run` processes: the same prompt as often as asked, and what the runs say together.
#
#   tools/throughput.sh [-i ITERATIONS] [-n MAX_TOKENS] [-f FORMAT[,FORMAT…]] [-m MODEL] [-p PROMPT] [-- RUN_FLAGS…]
#
# With -f, MODEL has %f in it, which stands for each format in turn: -m 'model-%f.gguf' -f Q8_0,BF16. Without -m it is the
# model in the binary. Flags after -- go to `hotmetal run`: -- --threads 1. HOTMETAL names another binary than the release
# build of this checkout. One line a format: median, mean, min, max and standard deviation of the decode rate, and the
# median rate of the prompt.
set -euo pipefail

usage() {
    sed -n '2,9s/^# \{0,1\}//p' "$0"
}

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 2
}

iterations=5
max_tokens=128
formats=
model=
prompt="Once upon a time, in a town by the sea, there lived a clockmaker who"
while getopts "i:n:f:m:p:h" flag; do
    case $flag in
        i) iterations=$OPTARG ;;
        n) max_tokens=$OPTARG ;;
        f) formats=$OPTARG ;;
        m) model=$OPTARG ;;
        p) prompt=$OPTARG ;;
        h) usage && exit 0 ;;
        *) usage >&2 && exit 2 ;;
    esac
done
shift $((OPTIND - 1))

for number in "$iterations" "$max_tokens"; do
    [[ $number =~ ^[1-9][0-9]*$ ]] || fail "-i and -n take a whole number above 0, found \`$number\`"
done
if [[ -n $formats && $model != *%f* ]]; then
    fail "-f needs a model with %f in its name, found \`${model:-the built-in model}\`"
fi

root=$(cd "$(dirname "$0")/.." && pwd)
hotmetal=${HOTMETAL:-}
if [[ -z $hotmetal ]]; then
    cargo build --release --quiet --manifest-path "$root/Cargo.toml" --package hotmetal
    hotmetal=${CARGO_TARGET_DIR:-$root/target}/release/hotmetal
fi
[[ -x $hotmetal ]] || fail "there is no program at \`$hotmetal\`"

# The number after "$1": in one line of JSON.
field() {
    sed -n "s/.*\"$1\": *\([0-9.eE+-]*\).*/\1/p"
}

# Median, mean, min, max and sample standard deviation of the numbers on standard input.
statistics() {
    sort -g | awk '
        { value[NR] = $1; sum += $1 }
        END {
            mean = sum / NR
            for (i = 1; i <= NR; i++) squares += (value[i] - mean) ^ 2
            stdev = NR == 1 ? 0 : sqrt(squares / (NR - 1))
            median = NR % 2 ? value[(NR + 1) / 2] : (value[NR / 2] + value[NR / 2 + 1]) / 2
            printf "%.2f %.2f %.2f %.2f %.2f\n", median, mean, value[1], value[NR], stdev
        }'
}

measure() { # NAME MODEL [FLAGS…]
    local name=$1 path=$2 decode=() prefill=() line
    shift 2
    local run=("$hotmetal" run --raw --temp 0 --ignore-eos -n "$max_tokens" --output-format json -p "$prompt" "$@")
    [[ -z $path ]] || run+=(--model "$path")
    # A warm-up: the file comes from the cache of the system from then on.
    "${run[@]}" >/dev/null 2>&1 || { "${run[@]}" >/dev/null || true; fail "\`${run[*]}\` failed"; }
    for ((i = 0; i < iterations; i++)); do
        line=$("${run[@]}" 2>/dev/null) || fail "\`${run[*]}\` failed"
        decode+=("$(field decode_tokens_per_s <<<"$line")")
        prefill+=("$(field prompt_tokens_per_s <<<"$line")")
    done
    local median mean min max stdev prompt_median
    read -r median mean min max stdev < <(printf '%s\n' "${decode[@]}" | statistics)
    read -r prompt_median _ < <(printf '%s\n' "${prefill[@]}" | statistics)
    printf '| %s | %s | %s | %s | %s | %s | %s | %s |\n' \
        "$name" "$iterations" "$median" "$mean" "$min" "$max" "$stdev" "$prompt_median"
}

printf '| model | runs | t/s median | mean | min | max | stdev | prompt t/s |\n'
printf '| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n'
if [[ -z $formats ]]; then
    measure "${model:-built-in}" "$model" "$@"
else
    IFS=, read -ra list <<<"$formats"
    for format in "${list[@]}"; do
        measure "$format" "${model//%f/$format}" "$@"
    done
fi
