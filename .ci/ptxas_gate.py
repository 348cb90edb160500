#!/usr/bin/env python3
"""Assembles PTX modules with NVIDIA's ptxas and holds the result to recorded bounds.

    ptxas_gate.py PTXAS FOLDER BOUNDS

FOLDER holds what `emit --all` writes: NAME.sm_NN.PATH_NUMERICS.ptx. Every module must assemble, without a loss of performance
that ptxas tells of, and no kernel may spill
registers or keep a stack frame but for those that SPILLING names. Of what BOUNDED names no kernel may take more registers or static shared memory than
BOUNDS says; fewer is reported, so that the bound can follow. KILN_BLESS=1 rewrites BOUNDS from what was measured, and
beside it ASSEMBLED, the hashes of the texts that it was measured from.

A text is assembled once: a hash of it, of ptxas's version and of what its kernels may spill stands in ASSEMBLED where the
recorded bounds are what ptxas said of it; what ptxas said of others is kept in a folder, target/ptxas-cache or what KILN_PTXAS_CACHE names.
KILN_PTXAS_ALL=1 assembles all of them anew.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

BLESS = os.environ.get("KILN_BLESS") == "1"
ANEW = os.environ.get("KILN_PTXAS_ALL") == "1"
# Whose kernels have bounds of their own, on every path: the general ones, the demo model, one model of each family.
BOUNDED = ["general", "tiny", "qwen3b", "qwen3-8b"]
# The bytes that a kernel may spill on a target, of stores and loads. Of 255 registers tiles of products have 128 in sums, and
# of 128 attention of batches has 64 in queries and sums; ptxas 13.5 has no room for a few others, which that one reads back
# about twelve times in the 590 instructions of a chunk. Tiles without
# spills, as they were tried, took 11.3 instead of 10.2 instructions a product of Q4_K at sm_80. Twelve warps with slices of
# rows have 168 registers each: a bake of llama.cpp's usual types spills none at sm_90 and 64 to 172 bytes before, the demo model, whose text has every
# type, 690. Of the persistent
# decoder some words of an item are read back once a token; at sm_90 one word, of a model of the tests
# alone, and on sm_120 some beside keys that are asked for ahead.
SPILLING = {
    ("gemm_sliced", "sm_80"): 460,
    ("gemm_sliced", "sm_86"): 490,
    ("gemm_sliced", "sm_87"): 490,
    ("gemm_sliced", "sm_89"): 490,
    ("gemm_sliced", "sm_90"): 690,
    ("gemm_sliced", "sm_100"): 690,
    ("gemm_sliced", "sm_120"): 770,
    ("gemm_sliced_2", "sm_120"): 490,
    ("gemm_tile_128", "sm_80"): 350,
    ("gemm_tile_128", "sm_86"): 290,
    ("gemm_tile_128", "sm_87"): 290,
    ("gemm_tile_128", "sm_89"): 290,
    ("gemm_tile_128", "sm_90"): 330,
    ("gemm_tile_128", "sm_100"): 270,
    ("gemm_tile_128", "sm_120"): 1240,
    ("gemm_q4k", "sm_80"): 150,
    ("gemm_q5k", "sm_80"): 20,
    ("gemm_q4k", "sm_100"): 40,
    ("gemm_q6k", "sm_100"): 60,
    ("gemm_q4k", "sm_120"): 270,
    ("gemm_q5k", "sm_120"): 180,
    ("gemm_q6k", "sm_120"): 660,
    ("gemm_q80", "sm_120"): 240,
    ("gemm_q50", "sm_80"): 160,
    ("gemm_q50", "sm_86"): 160,
    ("gemm_q50", "sm_87"): 160,
    ("gemm_q50", "sm_89"): 160,
    ("gemm_q50", "sm_90"): 70,
    ("gemm_q50", "sm_100"): 150,
    ("gemm_q50", "sm_120"): 260,
    ("gemm_q40", "sm_120"): 220,
    ("persistent_decoder", "sm_80"): 50,
    ("persistent_decoder", "sm_86"): 50,
    ("persistent_decoder", "sm_87"): 50,
    ("persistent_decoder", "sm_89"): 50,
    ("persistent_decoder", "sm_90"): 8,
    ("persistent_decoder", "sm_120"): 70,
    ("persistent_decoder_slices", "sm_80"): 50,
    ("persistent_decoder_slices", "sm_86"): 50,
    ("persistent_decoder_slices", "sm_87"): 50,
    ("persistent_decoder_slices", "sm_89"): 50,
    ("persistent_decoder_slices", "sm_90"): 20,
    ("persistent_decoder_slices", "sm_120"): 140,
    ("persistent_decoder_trace", "sm_90"): 68,
    ("attention_batch_f16", "sm_75"): 170,
    ("attention_batch_f16", "sm_80"): 120,
    ("attention_batch_f16", "sm_86"): 120,
    ("attention_batch_f16", "sm_87"): 120,
    ("attention_batch_f16", "sm_89"): 120,
    ("attention_batch_f16", "sm_90"): 140,
    ("attention_batch_f16", "sm_100"): 170,
    ("attention_batch_f16", "sm_120"): 120,
    ("causal_attention_f16_128", "sm_86"): 120,
    ("causal_attention_f16_128", "sm_87"): 120,
    ("causal_attention_f16_128", "sm_89"): 120,
    ("causal_attention_f16_128", "sm_90"): 150,
    ("causal_attention_f16_128", "sm_100"): 150,
    ("causal_attention_f16_128", "sm_120"): 140,
    ("causal_attention_f16_128", "sm_80"): 90,
    ("causal_attention_f16_64", "sm_80"): 30,
    ("causal_attention_f16_64", "sm_86"): 30,
    ("causal_attention_f16_64", "sm_87"): 30,
    ("causal_attention_f16_64", "sm_89"): 30,
    ("causal_attention_f16_64", "sm_90"): 30,
    ("gemm_16", "sm_120"): 10,
    ("gemm_q80", "sm_80"): 40,
    ("gemm_q80", "sm_86"): 40,
    ("gemm_q80", "sm_87"): 40,
    ("gemm_q80", "sm_89"): 40,
    ("gemm_q80", "sm_100"): 40,
    ("gemm_q40", "sm_80"): 20,
    ("gemm_q40", "sm_86"): 20,
    ("gemm_q40", "sm_87"): 20,
    ("gemm_q40", "sm_89"): 20,
}

HEAD = """\
# Upper bounds per kernel and target, as ptxas (see .ci/requirements.txt) reports them: registers per thread / bytes of
# static shared memory; - where a module is not assembled. Spills and stack frames are refused. KILN_BLESS=1
# .ci/assemble rewrites this file.
"""

ASSEMBLED_HEAD = """\
# Modules that the bounds were measured from: a hash of text, ptxas version and allowed spills each. KILN_BLESS=1 .ci/assemble rewrites it.
"""

ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\S+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
# Products of warpgroups wait for each other where ptxas finds no way to have several under way.
LOSS = "Potential Performance Loss"
SHARED = re.compile(r"(\d+) bytes smem")


def assemble(ptxas, path):
    """A module's kernels as {name: (registers, shared, stack, spilled)}, or what ptxas said against it."""
    target = re.search(r"(?m)^\.target (\S+)", path.read_text()).group(1)
    command = [ptxas, f"-arch={target}", "-v", "-o", os.devnull, path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {}, done.stderr.strip() or f"ptxas ended with {done.returncode}"
    if LOSS in done.stderr:
        return {}, next(line for line in done.stderr.splitlines() if LOSS in line)
    kernels, name, frame = {}, None, None
    for line in done.stderr.splitlines():
        if found := ENTRY.search(line):
            name, frame = found.group(1), None
        elif found := FRAME.search(line):
            frame = [int(group) for group in found.groups()]
        elif (found := USED.search(line)) and name:
            shared = SHARED.search(line)
            stack, spills = frame[0], frame[1] + frame[2]
            kernels[name] = (int(found.group(1)), int(shared.group(1)) if shared else 0, stack, spills)
            name = None
    entries = re.findall(r"(?m)^\.visible \.entry (\w+)", path.read_text())
    if sorted(entries) != sorted(kernels):
        return {}, f"ptxas reports on {sorted(kernels)}, the module has {sorted(entries)}"
    # As they stand in the text: ptxas reports on them in either order.
    return {name: kernels[name] for name in entries}, None


class Cache:
    """What ptxas said of texts that assembled. A complaint is not kept: it may be the machine's."""

    # Part of the hash: another number where what `assemble` gives changes.
    FORMAT = 2

    def __init__(self, ptxas, folder):
        said = subprocess.run([ptxas, "--version"], capture_output=True, text=True, check=True).stdout
        self.ptxas, self.folder, self.version, self.found = ptxas, folder, f"{self.FORMAT} {said}", 0
        folder.mkdir(parents=True, exist_ok=True)

    def digest(self, path):
        return hashlib.sha256(self.version.encode() + b"\0" + path.read_bytes()).hexdigest()

    def held(self, path):
        """The same of the text and what its kernels may spill: a recorded result was within other limits otherwise."""
        text = path.read_text()
        target = re.search(r"(?m)^\.target (\S+)", text).group(1)
        limits = [(name, SPILLING.get((name, target), 0)) for name in re.findall(r"(?m)^\.visible \.entry (\w+)", text)]
        return hashlib.sha256(f"{self.digest(path)} {limits}".encode()).hexdigest()

    def assemble(self, path):
        entry = self.folder / f"{self.digest(path)}.json"
        if entry.exists() and not ANEW:
            self.found += 1
            return {name: tuple(of) for name, of in json.loads(entry.read_text()).items()}, None
        kernels, error = assemble(self.ptxas, path)
        if error is None:
            # In one step: another run may look at the same moment.
            partial = entry.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(kernels))
            partial.replace(entry)
        return kernels, error


def read_assembled(path):
    """The hashes of texts whose results are recorded."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {line.split()[0] for line in lines if line and not line.startswith("#")}


def read_bounds(path):
    """{(module, kernel, target): (registers, shared)}"""
    bounds, targets = {}, []
    for line in path.read_text().splitlines() if path.exists() else []:
        fields = line.split()
        if not fields or fields[0] == "#":
            continue
        if fields[0] == "module":
            targets = fields[2:]
            continue
        for target, cell in zip(targets, fields[2:], strict=True):
            if cell != "-":
                bounds[fields[0], fields[1], target] = tuple(int(number) for number in cell.split("/"))
    return bounds


def write_bounds(path, measured):
    targets = sorted({target for _, _, target in measured}, key=lambda name: (int(name[3:].rstrip("a")), name))
    rows = [["module", "kernel", *targets]]
    for module in sorted({of for of, _, _ in measured}, key=lambda of: (BOUNDED.index(of.split(".")[0]), of)):
        for kernel in dict.fromkeys(kernel for of, kernel, _ in measured if of == module):
            cells = [measured.get((module, kernel, target)) for target in targets]
            rows.append([module, kernel, *("-" if cell is None else f"{cell[0]}/{cell[1]}" for cell in cells)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    path.write_text(HEAD + "\n".join(lines) + "\n")


def main():
    ptxas, folder, bounds_file = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    began = time.monotonic()
    paths = sorted(folder.glob("*.ptx"))
    if not paths:
        sys.exit(f"no PTX in {folder}")
    cache = Cache(ptxas, pathlib.Path(os.environ.get("KILN_PTXAS_CACHE") or "target/ptxas-cache"))
    assembled_file = bounds_file.with_name("assembled.txt")
    recorded = set() if ANEW else read_assembled(assembled_file)
    known = {path for path in paths if cache.held(path) in recorded}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda path: ({}, None) if path in known else cache.assemble(path), paths))

    wrong, better, measured, count, refused = [], [], {}, 0, set()
    recorded_bounds = read_bounds(bounds_file)
    for path, (kernels, error) in zip(paths, results):
        name, target = re.fullmatch(r"(.+?)\.(sm_\d+a?)(?:\.\w+)?\.ptx", path.name).groups()
        module = name + path.name[len(f"{name}.{target}") : -len(".ptx")]
        if path in known:
            for kernel in re.findall(r"(?m)^\.visible \.entry (\w+)", path.read_text()):
                count += 1
                if (key := (module, kernel, target)) in recorded_bounds:
                    measured[key] = recorded_bounds[key]
        if error:
            refused.add(path)
            wrong.append(f"{path.name}: {error}")
        for kernel, (registers, shared, stack, spilled) in kernels.items():
            count += 1
            if (stack or spilled) and not 0 < spilled <= SPILLING.get((kernel, target), 0):
                refused.add(path)
                wrong.append(f"{module} {kernel} {target}: {stack} bytes of stack, {spilled} bytes spilled")
            if name in BOUNDED:
                measured[module, kernel, target] = (registers, shared)

    if BLESS:
        write_bounds(bounds_file, measured)
        lines = [f"{cache.held(path)} {path.stem}\n" for path in paths if path not in refused]
        assembled_file.write_text(ASSEMBLED_HEAD + "".join(lines))
        print(f"wrote {bounds_file} and {assembled_file}")
    bounds = read_bounds(bounds_file)
    if unknown := measured.keys() - bounds.keys():
        wrong.append(f"{len(unknown)} bounds are not recorded, {' '.join(min(unknown))} first; KILN_BLESS=1 records them")
    if stale := bounds.keys() - measured.keys():
        wrong.append(f"{len(stale)} bounds were not measured, {' '.join(min(stale))} first; KILN_BLESS=1 drops them")
    for key in sorted(measured.keys() & bounds.keys()):
        where, found, bound = " ".join(key), measured[key], bounds[key]
        for what, is_now, was in zip(("registers", "bytes of shared memory"), found, bound):
            if is_now > was:
                wrong.append(f"{where}: {is_now} {what}, the bound is {was}")
            elif is_now < was:
                better.append(f"{where}: {is_now} {what}, below the bound of {was}")

    for line in better:
        print("better:", line)
    for line in wrong:
        print("wrong:", line, file=sys.stderr)
    seconds = time.monotonic() - began
    known = f"{len(known)} recorded, {cache.found} known from before"
    summary = f"{len(paths)} modules ({known}), {count} kernels, {len(wrong)} complaints, {len(better)} below their bounds"
    print(f"ptxas: {summary}, {seconds:.0f} s")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
