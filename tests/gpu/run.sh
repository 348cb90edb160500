#!/usr/bin/env bash
# Runs what pack.sh packed on a machine with an NVIDIA GPU: the tests, the emulator's instruction table among them,
# NVIDIA's compute-sanitizer over the kernels' tests, generate, bench. Ends with a table, writes it as JSON, and fails if
# anything did.
#
#   ./run.sh RESULTS [STEP...]               steps: tests sanitizer generate bench; all of them where none is named
#
#   KILN_DEVICE=emulator                     tries this script where there is no GPU
#   KILN_GPU_TIMEOUT=SECONDS                 for each program, 600 where not given
#   KILN_GPU_MODELS="FILE..."                GGUF files to bench besides the demo model
#   KILN_GPU_SYNTH="qwen3b qwen3-8b"         presets to bench with random weights: real sizes, written to RESULTS
#   KILN_GPU_PROMPTS="64,512,4096"           ids of prompts that are timed on these
#   KILN_GPU_SANITIZE="kernels ops"          the tests that the sanitizer watches
set -uo pipefail
bundle=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?usage: ./run.sh RESULTS [STEP...]}"
results=$(cd "$1" && pwd)
shift
steps=${*:-tests sanitizer generate bench}
export KILN_DEVICE=${KILN_DEVICE:-cuda}
limit=${KILN_GPU_TIMEOUT:-600}

# Where the tests were compiled is where they look for their data.
root=$(cat "$bundle/root")
if [ ! -e "$root" ]; then
    if ! { mkdir -p "$(dirname "$root")" && ln -s "$bundle/source" "$root"; }; then
        echo "cannot put the tests' data at $root, where they were compiled" >&2
        exit 1
    fi
    trap 'rm -f "$root"' EXIT
fi
cd "$root" || exit 1

rows=()
format='%-10s %-26s %-8s %7s %7s %8s %6s\n'
# row STEP NAME RESULT PASSED FAILED SKIPPED SECONDS
row() {
    local IFS='|'
    rows+=("$*")
    printf "$format" "$@"
}
# run LOG COMMAND...: its output into RESULTS/LOG, its seconds into $seconds, its status as the result
run() {
    local log=$results/$1 begin=$SECONDS status
    shift
    timeout -k 10 "$limit" "$@" >"$log" 2>&1 </dev/null
    status=$?
    seconds=$((SECONDS - begin))
    if [ "$status" -eq 124 ]; then echo "run.sh: ended after $limit s" >>"$log"; fi
    return "$status"
}
# counted LOG WORD: the number before WORD in the test harness's last line
counted() { sed -n "s/^test result:.* \([0-9]*\) $2.*/\1/p" "$results/$1" | tail -n 1; }
skipped() { grep -c 'SKIPPED' "$results/$1"; }

# table_rows WORDS: the number before WORDS in what the test of the emulator's instruction table says
table_rows() { sed -n "s/.*instruction table:.* \([0-9]*\) \(rows \)\?$1.*/\1/p" "$results/test-instructions.log"; }

step_tests() {
    local test name result
    for test in "$bundle"/tests/*; do
        name=$(basename "$test")
        result=ok
        # One at a time: they share the chip, and some of them wait for what others would keep busy.
        run "test-$name.log" "$test" --test-threads=1 --nocapture || result=FAILED
        row tests "$name" "$result" "$(counted "test-$name.log" passed)" "$(counted "test-$name.log" failed)" \
            "$(skipped "test-$name.log")" "$seconds"
        if [ "$name" = instructions ]; then
            row tests "instructions, row by row" "$result" "$(table_rows held)" "$(table_rows wrong)" \
                "$(table_rows 'not on this chip')" "$seconds"
        fi
    done
}

step_sanitizer() {
    local tool name log result errors
    if [ "$KILN_DEVICE" != cuda ] || ! command -v compute-sanitizer >/dev/null; then
        row sanitizer all SKIPPED - - 1 0
        echo "SKIPPED: compute-sanitizer needs a GPU and NVIDIA's CUDA tools on the PATH"
        return
    fi
    for tool in memcheck racecheck initcheck synccheck; do
        for name in ${KILN_GPU_SANITIZE:-kernels ops}; do
            log=sanitizer-$tool-$name.log
            result=ok
            run "$log" compute-sanitizer --tool "$tool" --error-exitcode 99 --print-limit 20 \
                "$bundle/tests/$name" --test-threads=1 || result=FAILED
            # racecheck words its summary differently.
            errors=$(sed -n 's/.*\(ERROR\|RACECHECK\) SUMMARY: \([0-9]*\) .*/\2/p' "$results/$log" | tail -n 1)
            # A sanitizer that did not come to its summary has found nothing, and proved nothing.
            if [ -z "$errors" ] || [ "$errors" -ne 0 ]; then result=FAILED; fi
            row sanitizer "$tool, $name" "$result" "$(counted "$log" passed)" "${errors:-?}" 0 "$seconds"
        done
    done
}

step_generate() {
    local path result ids first=
    for path in stream graph persistent; do
        result=ok
        run "generate-$path.log" "$bundle/examples/generate" --prompt The --tokens 100 --path "$path" --print-ids || result=FAILED
        ids=$(grep '^ids:' "$results/generate-$path.log")
        if [ -z "$ids" ]; then result=FAILED; fi
        first=${first:-$ids}
        if [ "$ids" != "$first" ]; then result=DIFFERS; fi
        row generate "$path" "$result" - - 0 "$seconds"
        grep '^device:' "$results/generate-$path.log" | sed 's/^/    /'
    done
}

bench_one() { # bench_one NAME ARGUMENTS...
    local name=$1 result=ok
    shift
    run "bench-$name.log" "$bundle/examples/bench" "$@" || result=FAILED
    row bench "$name" "$result" - - 0 "$seconds"
    sed 's/^/    /' "$results/bench-$name.log"
}

step_bench() {
    local model preset file prompts=()
    if [ "$KILN_DEVICE" = cuda ]; then prompts=(--prompts "${KILN_GPU_PROMPTS:-64,512,4096}"); fi
    bench_one demo --tokens "${KILN_GPU_TOKENS:-128}"
    for model in ${KILN_GPU_MODELS:-}; do
        bench_one "$(basename "$model" .gguf)" --tokens "${KILN_GPU_TOKENS:-128}" "${prompts[@]}" --model "$model"
    done
    for preset in ${KILN_GPU_SYNTH:-}; do
        file=$results/$preset.gguf
        if run "synth-$preset.log" "$bundle/examples/synth" --model "$preset" --out "$file"; then
            bench_one "$preset" --tokens "${KILN_GPU_TOKENS:-128}" "${prompts[@]}" --model "$file"
        else
            row bench "$preset" FAILED - - 0 "$seconds"
        fi
        rm -f "$file"
    done
}

gpu=none
if command -v nvidia-smi >/dev/null; then
    fields=name,driver_version,clocks.max.sm,clocks.max.memory,power.limit
    gpu=$(nvidia-smi --query-gpu=$fields --format=csv,noheader | head -n 1)
    nvidia-smi -q >"$results/nvidia-smi.log" 2>&1
fi
when=$(date -u +%Y-%m-%dT%H:%MZ)
echo "KILN_DEVICE=$KILN_DEVICE, GPU: ${gpu:-none}, kiln $(head -n 1 "$bundle/commit"), $when"
printf "$format" step what result passed failed skipped seconds
for step in $steps; do
    case $step in
    tests | sanitizer | generate | bench) "step_$step" ;;
    *) echo "no step \`$step\`; there are tests, sanitizer, generate, bench" >&2; exit 1 ;;
    esac
done

# Once more without what the programs said, as a table and as JSON.
number() { if [[ $1 =~ ^[0-9]+$ ]]; then echo "$1"; else echo null; fi; }
bad=0
separator=
printf '\n'
printf "$format" step what result passed failed skipped seconds | tee "$results/summary.txt"
printf '{"device": "%s", "gpu": "%s", "commit": "%s", "date": "%s", "rows": [' "$KILN_DEVICE" "${gpu//[\"\\]/}" \
    "$(head -n 1 "$bundle/commit")" "$when" >"$results/summary.json"
for line in "${rows[@]}"; do
    IFS='|' read -r step what result passed failed skips took <<<"$line"
    case $result in FAILED | DIFFERS) bad=$((bad + 1)) ;; esac
    printf "$format" "$step" "$what" "$result" "$passed" "$failed" "$skips" "$took" | tee -a "$results/summary.txt"
    printf '%s\n  {"step": "%s", "what": "%s", "result": "%s", "passed": %s, "failed": %s, "skipped": %s, "seconds": %s}' \
        "$separator" "$step" "$what" "$result" "$(number "$passed")" "$(number "$failed")" "$(number "$skips")" \
        "$(number "$took")" >>"$results/summary.json"
    separator=,
done
printf '\n]}\n' >>"$results/summary.json"
echo "$bad of ${#rows[@]} failed; $SECONDS s; $results/summary.json"
[ "$bad" -eq 0 ]
