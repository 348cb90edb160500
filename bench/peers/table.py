"""One layer of qwen3-8b by llama.cpp's kernels and by kiln's, under one clock: modelled, not measured.

    table.py OUT ONE TWELVE CHIP...

OUT is what llama.py made; ONE and TWELVE are cuts of qwen3-8b with one and with twelve layers, as the example `synth`
makes them, whose only and whose tenth layer has attn_v and down in Q6_K. The examples `llama_layer`, `generate` (feature
`qwen3-8b`) and `trace` (features `qwen3-8b` and `trace`) are run from `target/release`, where they were built. Both sides
attend to 512 positions. The persistent path attends to one, since its trace times a whole sequence. What its ring and L2
are asked for ahead moves memory's work from one layer to the one before, so that three layers are taken, of which the tenth
of the cut is the last, and of their time the part that it has of their bytes.
"""

import json
import pathlib
import re
import subprocess
import sys

BIN = pathlib.Path("target/release/examples")
POSITIONS = 512
# Bytes of a layer's weights: all in Q4_K, or attn_v and down in Q6_K.
BYTES = 4096 * (2 * 4096 + 2 * 1024 + 3 * 12288) * 144 // 256
BYTES_Q6_K = BYTES + 4096 * (1024 + 12288) * (210 - 144) // 256

# Part of a layer; llama.cpp's rows, and how many of their launches; kiln's row.
PARTS = [
    ("norm, rounding, q, k, v", {"RMS norm": 1, "quantize, 4096": 3, "q (": 1, "k (": 1, "v (": 1}, "products, qkv"),
    ("norms of heads, rope, cache", {"norm and rope": 1, "v into": 1}, "qk_norm_rope_kv_write_f16"),
    (f"attention, {POSITIONS} positions", {"attention, ": 1, "attention's parts": 1}, "attention_f16"),
    ("rounding, attention output, sum", {"quantize, 4096": 1, "attention output": 1}, "products, attention output"),
    ("norm, rounding, gate and up", {"RMS norm": 1, "quantize, 4096": 1, "gate and up": 1}, "products, gate and up"),
    ("rounding, down, sum", {"quantize, 12288": 1, "down": 1}, "products, down"),
]


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command[0]}: {done.stderr}")
    return done.stdout + done.stderr


class Row:
    """Launches of a kernel: microseconds, and shares: of the bandwidth that reads reach, of waits, of issue slots."""

    def __init__(self, launches, time, shares):
        self.launches, self.time = launches, time
        self.read, self.memory, self.issue, self.dependency, self.barrier, self.issued = shares

    def times(self, launches):
        part = launches / self.launches
        shares = (self.read, self.memory, self.issue, self.dependency, self.barrier, self.issued)
        return Row(launches, self.time * part, shares)


def summed(rows):
    """Rows one after the other: shares are weighted by time."""
    time = sum(row.time for row in rows)
    names = ("read", "memory", "issue", "dependency", "barrier", "issued")
    mean = [sum(getattr(row, name) * row.time for row in rows) / time for name in names]
    return Row(sum(row.launches for row in rows), time, mean)


def theirs(out, chip):
    """llama.cpp's rows by name."""
    rows = {}
    for line in run(BIN / "llama_layer", out, chip).splitlines():
        cells = [cell.strip(" %") for cell in line.strip("|").split("|")]
        if len(cells) == 9 and cells[1].isdigit():
            rows[cells[0]] = Row(int(cells[1]), float(cells[2]), [float(cell) for cell in cells[3:]])
    return rows


def ours(model, chip):
    """kiln's rows by name, and the chip's time of a graph's node."""
    ids = ",".join(str(5 + i % 100) for i in range(POSITIONS))
    command = (BIN / "generate", "--model", model, "--ids", ids, "--tokens", 1, "--path", "stream")
    text = run(*command, "--clock", chip, "--clock-last")
    row = re.compile(r"^(\S.*?) +(\d+) +([\d.]+) +\d+" + r" +(\d+) %" * 6 + "$", re.M)
    rows = {m[1]: Row(int(m[2]), float(m[3]), [float(m[i]) for i in range(4, 10)]) for m in row.finditer(text)}
    return rows, float(re.search(r"with ([\d.]+) us for each node", text)[1])


def persistent(model, chip):
    """Microseconds of the tenth of twelve layers in the persistent path, by the two before and itself."""
    out = pathlib.Path("target/peers") / chip
    run(BIN / "trace", "--model", model, "--ids", 5, "--tokens", 1, "--clock", chip, "--out", out)
    events = json.loads((out / "trace.json").read_text())["traceEvents"]
    begins = lambda name, layer: {
        event["tid"]: event["ts"] for event in events if event["name"] == name and event["args"].get("layer") == layer
    }
    first, behind = begins("qkv", 7), begins("qkv", 10)
    if not first or first.keys() != behind.keys():
        sys.exit("the trace is not of twelve layers")
    three = sum(behind[block] - first[block] for block in first) / len(first)
    return three * BYTES_Q6_K / (BYTES_Q6_K + 2 * BYTES)


def bound(row):
    """What warps wait for most, and the share of issue slots that are taken."""
    waits = {name: getattr(row, name) for name in ("memory", "issue", "dependency", "barrier")}
    most = max(waits, key=waits.get)
    return f"{most} {waits[most]:.0f} %, {row.issued:.0f} % issued"


def main():
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    out, model, twelve, *chips = sys.argv[1:]
    for chip in chips:
        peers, (kiln, node) = theirs(out, chip), ours(model, chip)
        print(f"\n`{chip}`, modelled, not measured\n")
        print("| part | llama.cpp: launches, us, of reads | waits | kiln: launches, us, of reads | waits | ratio |")
        print("|---|---|---|---|---|---|")
        all_peers, all_kiln = [], []
        for name, launches, ours_name in PARTS:
            found = {
                prefix: [row for key, row in peers.items() if key.startswith(prefix)] for prefix in launches
            }
            a = summed([row.times(launches[prefix]) for prefix, rows in found.items() for row in rows])
            b = kiln[ours_name]
            all_peers.append(a)
            all_kiln.append(b)
            line(name, a, b)
        a, b = summed(all_peers), summed(all_kiln)
        if a.launches != sum(row.launches for row in peers.values()):
            sys.exit("a launch of llama.cpp's is in no part, or in two")
        line("layer", a, b)
        a_nodes, b_nodes = (row.time + row.launches * node for row in (a, b))
        print(f"| as nodes of a graph, {node} us each | {a_nodes:.1f} | | {b_nodes:.1f} | | {a_nodes / b_nodes:.2f} |")
        whole = persistent(twelve, chip)
        print(f"| persistent path | | | {whole:.1f} | | {a_nodes / whole:.2f} |", flush=True)


def line(name, a, b):
    cell = lambda row: f"{row.launches}, {row.time:.1f}, {row.read:.0f} % | {bound(row)}"
    print(f"| {name} | {cell(a)} | {cell(b)} | {a.time / b.time:.2f} |")


main()
