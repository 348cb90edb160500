#!/usr/bin/env python3
"""Holds loops to what NVIDIA's assembler made of them: instructions per weight by pipe, and bytes in flight.

    loop_gate.py TOOLS FOLDER RECORD BUDGETS

FOLDER holds full text as `emit --all` writes it, NAME.sm_NN.PATH.ptx. A loop is held where its kernel says its work,
`b.each_iteration(Work::Weights(..))`: full text then has a comment at its top, and only kernels with such loops are
assembled. RECORD has what was counted: more instructions of any pipe, or fewer bytes in flight, is an error; less is
reported. KILN_BLESS=1 rewrites RECORD. BUDGETS, written by hand, has what no loop that it names may exceed.

The loop is found by line information: in the copy that is assembled the instructions of each marked loop have a line of
their own, so a loop that ptxas moves, splits or unrolls is still known. How often it is
unrolled follows from its barriers or its loads.

Each row of RECORD has a hash of the kernel's text, the tools' versions and `sass.py`: a kernel whose hash stands there
is not assembled again, unless KILN_PTXAS_ALL=1 asks for it. What was counted of others is kept in target/ptxas-cache,
or what KILN_PTXAS_CACHE names.
"""

import concurrent.futures
import dataclasses
import fnmatch
import fractions
import functools
import hashlib
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import sass

BLESS = os.environ.get("KILN_BLESS") == "1"
ANEW = os.environ.get("KILN_PTXAS_ALL") == "1"

HEAD = """\
# Loops whose work a kernel says, as ptxas makes them (see .ci/requirements.txt). Of a warp's iteration: units that it
# handles, instructions, those of each pipe (.ci/sass.py says which), those on rare paths. each: thread-instructions per
# unit. Then resident warps per SM, how often an iteration waits for global memory, and KB (1000 bytes) in flight per SM:
# the weights' bytes (of elements: the bytes loaded) of an iteration, times warps, divided by waits; and those of another
# iteration where lanes ask L2 for it. KILN_BLESS=1 .ci/assemble rewrites this file; codegen/budgets.txt is written by hand.
"""

# Per target: bytes of shared memory of an SM and what the system takes of each block's, resident warps and blocks: CUDA
# C++ Programming Guide, "Technical Specifications per Compute Capability". Registers are 65536, given to a warp in units
# of 256; each of four schedulers holds whole warps.
CHIPS = {
    "sm_75": (64 << 10, 0, 32, 16),
    "sm_80": (164 << 10, 1 << 10, 64, 32),
    "sm_86": (100 << 10, 1 << 10, 48, 16),
    "sm_87": (164 << 10, 1 << 10, 48, 16),
    "sm_89": (100 << 10, 1 << 10, 48, 24),
    "sm_90": (228 << 10, 1 << 10, 64, 32),
    "sm_90a": (228 << 10, 1 << 10, 64, 32),
    "sm_100": (228 << 10, 1 << 10, 64, 32),
    "sm_120": (100 << 10, 1 << 10, 48, 24),
}
REGISTERS = 65536


def resident(target, threads, registers, shared):
    """Blocks of a kernel that an SM holds."""
    memory, reserved, most_warps, most_blocks = CHIPS[target]
    warps = -(-threads // 32)
    per_warp = -(-registers * 32 // 256) * 256
    by_registers = REGISTERS // 4 // per_warp * 4 // warps
    taken = -(-(shared + reserved) // 128) * 128
    return min(most_warps // warps, most_blocks, by_registers, memory // taken if taken else most_blocks)


ACCESS = re.compile(r"(?:@\S+ )?(bar\.sync|ld\.global|cp\.async\.c[ag]|ld\.shared|st\.shared)\b")
# In this order: what tells how often a loop is unrolled. Every barrier of the text stands in the code.
BECOMES = {"bar.sync": "BAR", "ld.global": "LDG", "cp.async.cg": "LDGSTS", "cp.async.ca": "LDGSTS"}
BECOMES |= {"ld.shared": "LDS", "st.shared": "STS"}


@dataclasses.dataclass
class Mark:
    """A loop in PTX whose kernel says its work."""

    name: str
    units: int
    # Bytes of weights; None where the work is no weights.
    bytes: int | None
    source: str = "?"
    rounds: int = 1
    # Accesses in its text, by the SASS opcode that they become.
    accesses: dict = dataclasses.field(default_factory=lambda: dict.fromkeys(BECOMES.values(), 0))


WORK = re.compile(
    r"// each iteration of a warp: (\d+) "
    r"(weights of (\S+?)(?:, (\d+) bytes| in (shared) memory)|products of (\S+)|elements(?: rounded| read)?|of few|of columns|of (\d+) rounds)$"
)
# The name of a loop within another that few iterations of that one come to.
FEW = "of few"
# One that goes round so many times in each iteration of the loop around it, with which it is counted.
ROUNDS = "rounds"
# The name of a loop within another that goes round once for each column: counted with that one, as for one column.
COLUMNS = "of columns"


class Kernel:
    """A kernel of a module, with line information that numbers its marked loops."""

    def __init__(self, module, target, head, files, name, text):
        self.module, self.target, self.name, self.head = module, target, name, head
        self.threads = int(re.search(r"\.reqntid (\d+)", text).group(1))
        dynamic = re.search(r"// dynamic shared memory: (\d+) bytes", text)
        self.dynamic = int(dynamic.group(1)) if dynamic else 0
        self.text, self.files = text, files

    def digest(self, tools):
        plain = re.sub(r"(?m)^ *\.loc .*\n", "", self.text)
        return hashlib.sha256("\0".join([tools, self.head, plain]).encode()).hexdigest()[:16]

    @functools.cached_property
    def numbered(self):
        """Its text with line 1, and with 2 and more in the marked loops; and these loops."""
        marks = []
        return "\n".join(self.number(self.text.splitlines(), marks)) + "\n", marks

    def number(self, lines, marks):
        places = {line.strip()[:-1]: at for at, line in enumerate(lines) if line.endswith(":")}
        branches = ["bra" in line and re.search(r"\bbra(?:\.uni)? ([\w$]+);", line) for line in lines]
        back = [found and places[found.group(1)] < at and found.group(1) for at, found in enumerate(branches)]
        tops = {label for label in back if label}
        inside, source = [None], "?"
        for at, line in enumerate(lines):
            text = line.strip()
            if text.startswith(".loc "):
                file, number = text.split()[1:3]
                source = f"{self.files[file]}:{number}"
                continue
            yield line
            if text.endswith(":") and text[:-1] in tops:
                work = WORK.search(lines[at + 1])
                if work:
                    units, what, of, size, shared, product, rounds = work.groups()
                    name = f"{of}@{shared}" if shared else of or product or what.removeprefix("elements ")
                    name = ROUNDS if rounds else name
                    same = sum(mark.name.split("/")[0] == name for mark in marks)
                    name = f"{name}/{same + 1}" if same else name
                    marks.append(Mark(name, int(units), int(size) if size else None, rounds=int(rounds or 1)))
                inside.append(len(marks) - 1 if work else None)
            elif back[at]:
                ended = inside.pop()
                if ended is not None:
                    marks[ended].source = source
            else:
                # A loop has what the loops within it have, but for those on rare ways.
                if inside[-1] is not None and (access := ACCESS.match(text)):
                    around = [mark for mark in inside if mark is not None]
                    few = [at for at, mark in enumerate(around) if marks[mark].name.split("/")[0] == FEW]
                    for mark in set(around[few[-1] if few else 0 :]):
                        marks[mark].accesses[BECOMES[access.group(1)]] += 1
                continue
            yield f".loc 1 {1 if inside[-1] is None else inside[-1] + 2} 0"


def kernels(path):
    """The kernels of a module that have marked loops."""
    text = path.read_text()
    name, target, rest = re.fullmatch(r"(.+?)\.(sm_\d+a?)(\.\w+)?\.ptx", path.name).groups()
    files = dict(re.findall(r'(?m)^\.file (\d+) "(.*)"', text))
    start = text.index(".visible .entry")
    head = re.sub(r"(?m)^\.file .*\n", "", text[:start])
    for entry in re.finditer(r"(?ms)^\.visible \.entry (\w+)\(.*?^\}\n", text[start:]):
        if re.search(rf"// each iteration of a warp: (?!0 {FEW}\b)", entry.group(0)):
            yield Kernel(name + (rest or ""), target, head, files, entry.group(1), entry.group(0))


def measure(tools, group):
    """[(kernel, its loops as rows, or what speaks against it)] of kernels of one module and target."""
    ptxas, nvdisasm = tools
    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = pathlib.Path(folder, "loops.ptx"), pathlib.Path(folder, "loops.cubin")
        head = group[0].head.replace(".address_size 64\n", '.address_size 64\n.file 1 "loops"\n')
        ptx.write_text(head + "".join(kernel.numbered[0] for kernel in group))
        command = [ptxas, f"-arch={group[0].target}", "-v", "-lineinfo", "-o", cubin, ptx]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return [(kernel, done.stderr.strip() or f"ptxas ended with {done.returncode}") for kernel in group]
        command = [nvdisasm, "--print-code", "--print-line-info", cubin]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    code, results = sass.functions(shown), []
    for kernel in group:
        said = done.stderr.split(f"Compiling entry function '{kernel.name}'")[1].split("Compiling entry")[0]
        static = re.search(r"(\d+) bytes smem", said)
        shared = kernel.dynamic + (int(static.group(1)) if static else 0)
        registers = int(re.search(r"Used (\d+) registers", said).group(1))
        blocks = resident(kernel.target, kernel.threads, registers, shared)
        results.append((kernel, rows(kernel, code[kernel.name], blocks)))
    return results


def rows(kernel, code, blocks):
    """What was counted of each marked loop; a text where that cannot be done."""
    counted, all_loops = [], sass.loops(code)
    within, few, rounds = set(), set(), []
    for number, mark in enumerate(kernel.numbered[1]):
        try:
            kind = mark.name.split("/")[0]
            if kind.endswith("@shared") or kind in (FEW, COLUMNS, ROUNDS):
                inner = sass.marked(code, number + 2, all_loops)
                within.add(inner.header)
                few |= inner.body if kind == FEW else set()
                if kind == ROUNDS:
                    times = unrolled(mark, [code[index] for index in sorted(inner.body)])
                    rounds.append((inner.body, mark.rounds // times))
        except sass.Refused as why:
            return f"loop {mark.name} ({mark.source}): {why}"
    for number, mark in enumerate(kernel.numbered[1]):
        if mark.name.split("/")[0] in (FEW, COLUMNS, ROUNDS):
            continue
        try:
            loop = sass.marked(code, number + 2, all_loops)
            sass.checked(code, loop, all_loops, within)
            hot = [index for index in loop.hot() if index not in few]
            instructions = [code[index] for index in hot]
            times = unrolled(mark, instructions)
            counts = sass.count(code, hot)
            for body, again in rounds:
                of_round = sass.count(code, body.intersection(hot))
                counts = {pipe: count + (again - 1) * of_round[pipe] for pipe, count in counts.items()}
            rare = sass.count(code, loop.body - set(hot))
        except sass.Refused as why:
            return f"loop {mark.name} ({mark.source}): {why}"
        if mark.bytes is not None:
            size = mark.bytes * times
        else:
            size = 32 * sass.loaded(instructions)
        counted.append(
            {
                "loop": mark.name,
                "units": mark.units * times,
                "counts": [sum(counts.values()), *counts.values(), sum(rare.values())],
                "warps": blocks * (kernel.threads // 32),
                "bytes": size,
                "waits": round(sass.waits(instructions), 2) if sass.loaded(instructions) else 0,
                "asks": sass.asks_ahead(instructions),
            }
        )
    return counted


def unrolled(mark, instructions):
    """How many iterations of the PTX the loop handles in one of its own, by its accesses."""
    for opcode, in_text in mark.accesses.items():
        if not in_text:
            continue
        found = sum(instruction.name == opcode for instruction in instructions)
        times = fractions.Fraction(found, in_text)
        if times.denominator == 1 and times >= 1:
            return int(times)
        what = f"it has {found} {opcode} where its text has {in_text}, needed is a multiple"
        raise sass.Refused(f"{what}: how often it is unrolled cannot be told")
    raise sass.Refused("its text has no load or store: how often it is unrolled cannot be told")


@dataclasses.dataclass
class Row:
    """A line of RECORD."""

    module: str
    kernel: str
    loop: str
    target: str
    text: str
    units: int
    counts: list
    warps: int
    waits: str
    flight: float | None

    COLUMNS = ["module", "kernel", "loop", "target", "text"]
    COLUMNS += ["units", "all", *sass.PIPES, "rare", "each", "warps", "waits", "KB"]

    @property
    def key(self):
        return self.module, self.kernel, self.loop, self.target

    @property
    def each(self):
        return 32 * self.counts[0] / self.units

    def cells(self):
        flight = "-" if self.flight is None else f"{self.flight:.1f}"
        numbers = [str(number) for number in self.counts]
        return [*self.key, self.text, str(self.units), *numbers, f"{self.each:.3f}", str(self.warps), self.waits, flight]

    @staticmethod
    def read(fields):
        module, kernel, loop, target, text, units = fields[:6]
        *counts, _, warps, waits, flight = fields[6:]
        flight = None if flight == "-" else float(flight)
        counts = [int(cell) for cell in counts]
        return Row(module, kernel, loop, target, text, int(units), counts, int(warps), waits, flight)


def row(kernel, text, of, ahead):
    """A loop's row. `ahead`: iterations, or bytes of a block with K behind, that are asked for ahead of their use."""
    flight = None
    if ahead:
        blocks = of["warps"] // (kernel.threads // 32)
        whole = int(ahead[:-1]) * 1000 * blocks if ahead.endswith("K") else int(ahead) * of["bytes"] * of["warps"]
        flight = whole / 1000
    elif of["waits"]:
        flight = of["bytes"] * of["warps"] * (1 / of["waits"] + of["asks"]) / 1000
    flight = flight and round(flight, 1)
    names = (kernel.module, kernel.name, of["loop"], kernel.target, text)
    return Row(*names, of["units"], of["counts"], of["warps"], f"{of['waits']:.2f}", flight)


def read_record(path):
    lines = path.read_text().splitlines() if path.exists() else []
    fields = [line.split() for line in lines if line and not line.startswith("#")]
    if fields and fields[0] != Row.COLUMNS:
        return {}
    return {row.key: row for row in map(Row.read, fields[1:])}


def write_record(path, found):
    table = [Row.COLUMNS, *(row.cells() for row in found)]
    widths = [max(len(line[column]) for line in table) for column in range(len(Row.COLUMNS))]
    lines = []
    for line in table:
        names = [cell.ljust(width) for cell, width in zip(line[:5], widths)]
        numbers = [cell.rjust(width) for cell, width in zip(line[5:], widths[5:])]
        lines.append("  ".join(names) + "  " + " ".join(numbers))
    path.write_text(HEAD + "\n".join(lines) + "\n")


@dataclasses.dataclass
class Budget:
    """A line of BUDGETS."""

    kernel: str
    loop: str
    target: str
    at_most: float | None
    at_least: float | None
    ahead: str | None
    place: str
    used: bool = False

    def fits(self, module, kernel, loop, target):
        names = ((f"{module}/{kernel}", self.kernel), (loop, self.loop), (target, self.target))
        fits = all(fnmatch.fnmatchcase(name, pattern) for name, pattern in names)
        self.used |= fits
        return fits


def read_budgets(path):
    budgets = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fields = line.split("#")[0].split()
        if fields:
            if len(fields) != 6:
                sys.exit(f"{path}:{number}: {len(fields)} columns, needed are six: kernel loop target each KB ahead")
            cells = [None if cell == "-" else cell for cell in fields]
            numbers = [cell and float(cell) for cell in cells[3:5]]
            budgets.append(Budget(*cells[:3], *numbers, cells[5], f"{path}:{number}"))
    return budgets


def compare(row, was):
    """What is worse than recorded, and what is better."""
    wrong, better = [], []
    names = ["instructions", *(f"instructions on pipe {pipe}" for pipe in sass.PIPES), "instructions on rare paths"]
    for name, now, before in zip(names, row.counts, was.counts):
        change = fractions.Fraction(now, row.units) - fractions.Fraction(before, was.units)
        if change:
            found, recorded = (f"{32 * count / of.units:.3f}" for count, of in ((now, row), (before, was)))
            counted = f"({now} in {row.units}, {before} in {was.units})"
            say = f"{found} {name} per unit, recorded are {recorded} {counted}"
            (wrong if change > 0 else better).append(say)
    if row.flight != was.flight:
        say = f"{row.flight} KB in flight per SM, recorded are {was.flight}"
        worse = row.flight is None or was.flight is not None and row.flight < was.flight
        (wrong if worse else better).append(say)
    return wrong, better


ADVICE = "KILN_BLESS=1 .ci/assemble records it, with a reason in the commit's message"


def main():
    tools, folder = sys.argv[1:3], pathlib.Path(sys.argv[3])
    record_file, budgets_file = map(pathlib.Path, sys.argv[4:6])
    began = time.monotonic()
    say = {"capture_output": True, "text": True, "check": True}
    versions = [subprocess.run([tool, "--version"], **say).stdout for tool in tools]
    versions.append(pathlib.Path(sass.__file__).read_text())
    cache = pathlib.Path(os.environ.get("KILN_PTXAS_CACHE") or "target/ptxas-cache")
    cache.mkdir(parents=True, exist_ok=True)
    record, budgets = read_record(record_file), read_budgets(budgets_file)
    versions += [f"{budget.kernel} {budget.loop} {budget.target} {budget.ahead}" for budget in budgets if budget.ahead]
    version = "\0".join(versions)
    recorded = {}
    for of in record.values():
        recorded.setdefault((of.module, of.kernel, of.target), []).append(of)

    wrong, results, groups, known = [], {}, {}, 0
    found = [kernel for path in sorted(folder.glob("*.ptx")) for kernel in kernels(path)]
    if not found:
        sys.exit(f"no loop in {folder} has its work said: is it full text?")
    for kernel in found:
        text = kernel.digest(version)
        kept = cache / f"loops-{text}.json"
        before = recorded.get((kernel.module, kernel.name, kernel.target), [])
        if not ANEW and {of.text for of in before} == {text}:
            known += 1
        elif kept.exists() and not ANEW:
            results[id(kernel)] = json.loads(kept.read_text())
        else:
            groups.setdefault((kernel.module, kernel.target), []).append(kernel)
    assembled = sum(map(len, groups.values()))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        measuring = pool.map(lambda group: measure(tools, group), groups.values())
        for kernel, result in itertools.chain.from_iterable(measuring):
            results[id(kernel)] = result
            if isinstance(result, str):
                wrong.append(f"{kernel.module} {kernel.name} {kernel.target}: {result}")
            else:
                kept = cache / f"loops-{kernel.digest(version)}.json"
                partial = kept.with_suffix(f".{os.getpid()}")
                partial.write_text(json.dumps(result))
                partial.replace(kept)

    measured, owners = {}, {}
    for kernel in found:
        key = (kernel.module, kernel.name, kernel.target)
        owners[key] = kernel
        if id(kernel) not in results:
            measured.update({of.key: of for of in recorded[key]})
        elif not isinstance(results[id(kernel)], str):
            text = kernel.digest(version)
            for of in results[id(kernel)]:
                names = (kernel.module, kernel.name, of["loop"], kernel.target)
                ahead = next((budget.ahead for budget in budgets if budget.ahead and budget.fits(*names)), None)
                measured[names] = row(kernel, text, of, ahead)

    def where(module, kernel, loop, target):
        marks = owners[module, kernel, target].numbered[1]
        source = next(mark.source for mark in marks if mark.name == loop)
        return f"{module} {kernel}, loop {loop} ({source}), {target}"

    if BLESS:
        order = {target: number for number, target in enumerate(CHIPS)}
        write_record(record_file, sorted(measured.values(), key=lambda row: (*row.key[:3], order[row.target])))
        record = read_record(record_file)
        print(f"wrote {record_file}")
    better = []
    for key in sorted(measured):
        if key not in record:
            wrong.append(f"{where(*key)}: not recorded; {ADVICE}")
        else:
            worse, less = compare(measured[key], record[key])
            wrong += [f"{where(*key)}: {line}; {ADVICE}" for line in worse]
            better += [f"{where(*key)}: {line}" for line in less]
        for budget in budgets:
            if budget.fits(*key):
                wrong += [f"{where(*key)}: {line}" for line in over(measured[key], budget)]
    for key in sorted(record.keys() - measured.keys()):
        wrong.append(f"{' '.join(key)}: recorded, but no such loop was counted; KILN_BLESS=1 .ci/assemble drops it")
    for budget in budgets:
        if not budget.used:
            names = f"{budget.kernel} {budget.loop} {budget.target}"
            wrong.append(f"{budget.place}: no loop fits {names}; see {record_file}")

    for line in better:
        print("better:", line)
    for line in wrong:
        print("wrong:", line, file=sys.stderr)
    what = f"{len(measured)} loops of {len(found)} kernels ({known} recorded, {assembled} assembled)"
    print(f"loops: {what}, {len(wrong)} complaints, {len(better)} below, {time.monotonic() - began:.0f} s")
    sys.exit(1 if wrong else 0)


def over(row, budget):
    """What exceeds a budget."""
    if budget.at_most is not None and row.each > budget.at_most:
        pipes = ", ".join(f"{name} {count}" for name, count in zip(sass.PIPES, row.counts[1:]) if count)
        needed = f"needed are at most {budget.at_most} ({budget.place})"
        most = int(budget.at_most * row.units / 32)
        yield f"{row.each:.3f} instructions per unit, {needed}: bring {row.counts[0]} down to {most}: {pipes}"
    if budget.at_least is not None and (row.flight is None or row.flight < budget.at_least):
        needed = f"needed are at least {budget.at_least} ({budget.place})"
        waits = f"{row.warps} warps wait {row.waits} times an iteration"
        todo = "load more before the first use, take fewer registers, or say what is asked for ahead"
        yield f"{row.flight} KB in flight per SM, {needed}: {waits}; {todo}"


if __name__ == "__main__":
    main()
