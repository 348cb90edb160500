#!/usr/bin/env bash
# Packs kiln's tests and examples, built, with the data they read, into a folder that runs on a machine with an NVIDIA
# GPU and without Rust: copy the folder there and start run.sh in it. The C library there must not be older than here.
#
#   tests/gpu/pack.sh FOLDER [FEATURES]      features for more models; qwen3b,qwen3-8b where none are given
#
# Needs Rust and Python here.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:?usage: tests/gpu/pack.sh FOLDER [FEATURES]}
features=${2:-qwen3b,qwen3-8b}
if [ -e "$folder" ]; then
    echo "$folder exists; name a new folder" >&2
    exit 1
fi
mkdir -p "$folder/tests" "$folder/examples" "$folder/source/tests" "$folder/source/examples"
folder=$(cd "$folder" && pwd)

build() { cargo test --release --no-run --message-format=json --features "$features" -p kiln "$@"; }
collect() { # collect KIND FOLDER: copies the executables that cargo's messages name
    python3 -c '
import json, os, shutil, sys
kind, folder = sys.argv[1:]
for line in sys.stdin:
    message = json.loads(line) if line.startswith("{") else {}
    executable, target = message.get("executable"), message.get("target", {})
    if not executable or (kind == "example") != ("example" in target["kind"]):
        continue
    # These need cargo, or what it builds beside them.
    if target["name"] not in ("package", "cli"):
        shutil.copy2(executable, os.path.join(folder, target["name"]))
' "$1" "$2"
}
build --lib --tests | collect test "$folder/tests"
cargo build --release --examples --message-format=json --features "$features" -p kiln | collect example "$folder/examples"
strip "$folder"/tests/* "$folder"/examples/*

# Tests look for their data, and for sources they compare, where they were compiled: run.sh puts it there.
pwd >"$folder/root"
echo "$features" >"$folder/features"
git rev-parse HEAD >"$folder/commit"
if [ -n "$(git status --porcelain)" ]; then echo "with changes that are not committed" >>"$folder/commit"; fi
cp -r tests/data "$folder/source/tests/"
cp -r examples/data "$folder/source/examples/"
cp -r src Cargo.toml "$folder/source/"
cp tests/gpu/run.sh "$folder/"
echo "$folder: $(find "$folder/tests" -type f | wc -l) tests, $(find "$folder/examples" -type f | wc -l) examples, $(du -sh "$folder" | cut -f1)"
