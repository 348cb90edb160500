#!/usr/bin/env bash
# Runs the tests of cudarc's driver layer on the library:
#   libcuda/tests/cudarc.sh PATH      PATH is a checkout of cudarc, or its sources from crates.io
# Fails if a test fails that cudarc.txt does not list, or passes that it does. With KILN_NVRTC, a folder that has
# libnvrtc.so.12, tests that compile CUDA C run too; those whose kernels loop a million times in 1024 threads, which takes
# minutes here, are left out. Then one runs that cudarc wants run by itself. Works on a copy; nothing of it is kept.
set -euo pipefail
checkout=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
expected=$PWD/libcuda/tests/cudarc.txt
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cargo build --quiet --release -p kiln-libcuda
mkdir "$scratch/lib" "$scratch/cudarc"
cp target/release/libkiln_libcuda.so "$scratch/lib/libcuda.so.1"
ln -s libcuda.so.1 "$scratch/lib/libcuda.so"
cp -r "$checkout/." "$scratch/cudarc"
chmod -R u+w "$scratch/cudarc"

features=std,driver,cuda-12080,dynamic-loading
if [ -n "${KILN_NVRTC:-}" ]; then features=$features,nvrtc; fi
# What is tested here is the driver, not the kernels.
export KILN_EMULATOR_CHECKS=${KILN_EMULATOR_CHECKS:-none} KILN_EMULATOR_REPORT=$scratch/findings.txt
export LD_LIBRARY_PATH=$scratch/lib:${KILN_NVRTC:-}
(
    cd "$scratch/cudarc"
    tests=(timeout 1800 cargo test --no-default-features --features "$features" --lib)
    "${tests[@]}" driver:: -- --test-threads 2 --skip test_par_launch --skip test_multi_stream
    "${tests[@]}" -- --ignored test_post_alloc_memory
) 2>&1 | tee "$scratch/log" || true

grep -q '^test result' "$scratch/log"
ran() { sed -n "s/^test driver::\(.*\) \.\.\. $1\$/\1/p" "$scratch/log" | sort; }
ran FAILED >"$scratch/failed"
ran ok >"$scratch/passed"
grep -v '^#' "$expected" | cut -d' ' -f1 | sort >"$scratch/expected"
printf '%d passed, %d failed\n' "$(wc -l <"$scratch/passed")" "$(wc -l <"$scratch/failed")"
new=$(comm -23 "$scratch/failed" "$scratch/expected")
gone=$(comm -12 "$scratch/passed" "$scratch/expected")
if [ -n "$new" ]; then printf 'failed, and is not listed:\n%s\n' "$new"; fi
if [ -n "$gone" ]; then printf 'passed, and is listed:\n%s\n' "$gone"; fi
[ -z "$new$gone" ]
