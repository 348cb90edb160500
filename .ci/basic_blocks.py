#!/usr/bin/env python3
"""Records what NVIDIA's assembler made of every basic block of kernels: instructions by pipe.

    basic_blocks.py PTXAS NVDISASM FOLDER RECORD

FOLDER holds full text as `emit` writes it, NAME.sm_NN.PATH.ptx; RECORD has a line for each kernel and below it one for each
basic block of its text. tests/package/basic_blocks.rs holds the clock's own table of instructions to it. KILN_BLESS=1
rewrites RECORD; otherwise a kernel whose text is not the recorded one is an error.

A block is found by line information: in the copy that is assembled each block of PTX has a line of its own, which its
instructions keep when ptxas moves, copies or predicates them. So what is counted of a block is where it came from, not
where it runs: what ptxas moves out of a loop counts in the loop's block. Not counted is what is reached only through a
division's or root's slow way, or by a warp whose lanes have diverged where PTX says that they have not.

A kernel whose text stands in RECORD is not assembled again, unless KILN_PTXAS_ALL=1 asks for it.
"""

import collections
import concurrent.futures
import hashlib
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
# Basic blocks of kernels as ptxas makes them (see .ci/requirements.txt). A kernel: module, name, target, hash of its text.
# Then a line for each block with code: its number in the text, and xN where its accesses say that ptxas made N copies of it;
# instructions of each pipe, of all copies (.ci/sass.py says which pipe), but for moves between registers, which count as such.
# KILN_BLESS=1 .ci/assemble rewrites this file.
"""

# Opcodes that stand in no loop that .ci/loop_gate.py counts.
OTHERS = dict.fromkeys(("BPT", "CGAERRBAR", "ENDCOLLECTIVE"), "control")

ENDS = re.compile(r"(?:^|\s)(?:bra|brx|call|exit|ret|trap)\b")
PASSED = ("//", ".", "{", "}")
# What moves data, in PTX and in SASS: by it the copies of a block are told.
ACCESS = re.compile(r"(?:^|\s)(?:ld|st|atom|red|ldmatrix|stmatrix|cp\.async)\.(?!param|mbarrier|\w+_(?:group|all))")
MOVES = set("ATOM ATOMG ATOMS LD LDG LDGSTS LDS LDSM RED REDG ST STG STS STSM UBLKCP UTMALDG".split())


def numbered(lines):
    """A kernel's lines, each with the number of its basic block; none for what is no instruction. As basic_blocks.rs has it."""
    number, opens = 0, True
    for line in lines:
        text = line.strip()
        if text.endswith(":") or not text or text.startswith(PASSED):
            opens |= text.endswith(":")
            yield line, None
            continue
        number += opens
        opens = bool(ENDS.search(text))
        yield line, number


class Kernel:
    """A kernel of a module, and its text with a line of its own for each block."""

    def __init__(self, module, target, head, name, text):
        self.module, self.target, self.name, self.head = module, target, name, head
        self.plain = re.sub(r"(?m)^ *\.loc .*\n", "", text)
        self.accesses, before, out = collections.Counter(), None, []
        opening = self.plain.index("\n{\n") + 3
        for line, number in numbered(self.plain[opening:].splitlines()):
            if number not in (None, before):
                out.append(f".loc 1 {number} 0")
                before = number
            self.accesses[number] += bool(number and ACCESS.search(line))
            out.append(line)
        self.text = self.plain[:opening] + "\n".join(out) + "\n"

    @property
    def key(self):
        return self.module, self.name, self.target

    def digest(self, version):
        return hashlib.sha256("\0".join([version, self.head, self.plain]).encode()).hexdigest()[:16]


def kernels(path):
    """The kernels of a module."""
    text = path.read_text()
    name, target, rest = re.fullmatch(r"(.+?)\.(sm_\d+)(\.\w+)\.ptx", path.name).groups()
    start = text.index(".visible .entry")
    head = re.sub(r"(?m)^\.file .*\n", "", text[:start])
    for entry in re.finditer(r"(?ms)^\.visible \.entry (\w+)\(.*?^\}\n", text[start:]):
        yield Kernel(name + rest, target, head, entry.group(1), entry.group(0))


def measure(tools, kernel):
    """The lines of a kernel's blocks."""
    ptxas, nvdisasm = tools
    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = pathlib.Path(folder, "blocks.ptx"), pathlib.Path(folder, "blocks.cubin")
        head = kernel.head.replace(".address_size 64\n", '.address_size 64\n.file 1 "blocks"\n')
        ptx.write_text(head + kernel.text)
        subprocess.run([ptxas, f"-arch={kernel.target}", "-lineinfo", "-o", cubin, ptx], check=True)
        command = [nvdisasm, "--print-code", "--print-line-info", cubin]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    code = sass.functions(shown)[kernel.name]
    counts, accesses = collections.defaultdict(collections.Counter), collections.Counter()
    for index in reached(code):
        instruction = code[index]
        pipe = "moves" if moves(instruction) else OTHERS.get(instruction.name) or sass.PIPE.get(instruction.name)
        if pipe is None:
            sys.exit(f"{kernel.name}, {kernel.target}: .ci/sass.py has no pipe for {instruction.opcode}")
        if instruction.name != "NOP":
            counts[instruction.line][pipe] += 1
            accesses[instruction.line] += instruction.name in MOVES
    lines = []
    for block, pipes in sorted(counts.items()):
        found, said = accesses[block], kernel.accesses[block]
        copies = f"x{found // said}" if said and found > said and found % said == 0 else ""
        lines.append(" ".join([f"{block}{copies}", *(f"{pipe} {pipes[pipe]}" for pipe in [*sass.PIPES, "moves"] if pipes[pipe])]))
    return lines


def moves(instruction):
    """Whether it moves a register, a constant or zero: ptxas does so by products and sums with nothing as well."""
    match instruction.name:
        case "MOV" | "UMOV" | "MOV32I" | "CS2R" | "R2UR":
            return instruction.name != "CS2R" or instruction.operands.endswith("SRZ")
        case "IMAD":
            return instruction.modifiers[:1] == ["MOV"] or "RZ, RZ, " in instruction.operands
        case "HFMA2":
            return "-RZ, RZ, " in instruction.operands
    return False


def reached(code):
    """Instructions that are reached by other ways than the slow ones."""
    places = {label: index for index, instruction in enumerate(code) for label in instruction.labels}
    seen, ahead = set(), [0]
    while ahead:
        index = ahead.pop()
        if index in seen:
            continue
        seen.add(index)
        instruction = code[index]
        diverged = instruction.name == "BRA" and {"DIV", "CONV"} & set(instruction.modifiers)
        targets = [index + 1] if diverged else sass.successors(code, index, places)
        ahead += [target for target in targets if len(targets) == 1 or not calls(code, target)]
    return seen


def calls(code, index):
    """Whether one of ptxas's own functions is called before the next label or branch."""
    for instruction in code[index:]:
        if instruction.labels or instruction.name in ("BRA", "EXIT", "RET"):
            return False
        if sass.subroutine(instruction):
            return True
    return False


def read_record(path):
    """{(module, kernel, target): (hash, lines of blocks)}."""
    record, lines = {}, []
    for line in path.read_text().splitlines() if path.exists() else []:
        if line and line[0].isdigit():
            lines.append(line)
        elif line and not line.startswith("#"):
            *key, text = line.split()
            lines = []
            record[tuple(key)] = text, lines
    return record


def main():
    tools, folder, record_file = sys.argv[1:3], pathlib.Path(sys.argv[3]), pathlib.Path(sys.argv[4])
    began = time.monotonic()
    say = {"capture_output": True, "text": True, "check": True}
    version = "\0".join(subprocess.run([tool, "--version"], **say).stdout for tool in tools)
    record = read_record(record_file)
    found = {kernel.key: kernel for path in sorted(folder.glob("*.ptx")) for kernel in kernels(path)}
    texts = {key: kernel.digest(version) for key, kernel in found.items()}
    known = {key for key, text in texts.items() if not ANEW and record.get(key, ("",))[0] == text}
    missing = [key for key in sorted(found) if key not in known]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        measured = dict(zip(missing, pool.map(lambda key: measure(tools, found[key]), missing)))
    now = {key: record[key] if key in known else (texts[key], measured[key]) for key in sorted(found)}
    wrong = [key for key in now.keys() | record.keys() if now.get(key) != record.get(key)]
    if BLESS and wrong:
        rows = ["\n".join([" ".join([*key, text]), *lines]) for key, (text, lines) in now.items()]
        record_file.write_text(HEAD + "\n".join(rows) + "\n")
        print(f"wrote {record_file}")
        wrong = []
    for key in sorted(wrong):
        print(f"wrong: {' '.join(key)}: its basic blocks are not the recorded ones; KILN_BLESS=1 .ci/assemble", file=sys.stderr)
    blocks = sum(len(lines) for _, lines in now.values())
    what = f"{blocks} of {len(found)} kernels ({len(known)} recorded, {len(missing)} assembled)"
    print(f"basic blocks: {what}, {len(wrong)} complaints, {time.monotonic() - began:.0f} s")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
