"""Loops in what NVIDIA's assembler made of a kernel: where they are, what their instructions cost, how long they wait.

Input is the text of `nvdisasm --print-code --print-line-info`. A loop is a natural loop of the control flow graph: all
back edges to one header, and every block from which they are reached. What of it lies in one run with the header is
counted as executed in every iteration, whatever branches forward in it; blocks placed elsewhere are rare paths and are
counted apart.
"""

import collections
import dataclasses
import re

# The pipe of each opcode, by its name up to the first dot. Which pipe does what: NVIDIA, Nsight Compute Documentation,
# Profiling Guide, section "Pipelines". Which of them are 64, 128 or 16 lanes wide: microbenchmarks that others published
# (arabel1a/gpu-micro-bench, HPMLL/NVIDIA-Hopper-Benchmark); per clock and SM alu and heavy give 64 lanes each, fma 128
# (heavy included; 64 on sm_75 and sm_80), sixteen 16, all of them together 128.
OPCODES = {
    # Integers without multiplication, logic, comparisons, moves.
    "alu": """BMSK CSEL F2FP FMNMX FMNMX3 FSEL FSET FSETP HMNMX2 HSET2 HSETP2 I2FP IABS IADD IADD3 IMNMX ISCADD ISETP LEA
        LOP LOP3 MOV MOV32I P2R PLOP3 PRMT PSETP R2P SEL SGXT SHF SHL SHR VABSDIFF VABSDIFF4 VHMNMX VIADD VIADDMNMX VIMNMX
        VIMNMX3 VOTE""",
    # Multiplication of integers and their dot products. ptxas moves and shifts with IMAD as well.
    "heavy": "IDP IDP4A IMAD IMUL",
    "fma": "FADD FADD2 FFMA FFMA2 FFMA32I FMUL FMUL2 FMUL32I FSWZADD",
    # A pipe of its own up to sm_80, later part of fma. f16 to f32 is an HADD2.
    "half": "HADD2 HADD2_32I HFMA2 HFMA2_32I HMUL2 HMUL2_32I",
    # 16 lanes: conversions, transcendental functions, bits, exchange between lanes.
    "sixteen": "BREV F2F F2I FCHK FLO FRND I2F I2I MATCH MUFU POPC REDUX SHFL",
    # mbarriers (SYNCS, ARRIVES) are words of shared memory.
    "shared": "ARRIVES ATOMS LDS LDSM STAS STS STSM SYNCS",
    "global": """ATOM ATOMG CCTL LD LDG LDGSTS LDL RED REDG ST STG STL UBLKCP UBLKPF UBLKRED UTMACCTL
        UTMALDG""",
    "tensor": "BMMA DMMA HGMMA HMMA IGMMA IMMA MOVM QGMMA QMMA",
    "double": "DADD DFMA DMUL DSETP",
    # Once for a whole warp, beside the other pipes, though each takes a slot.
    "uniform": """R2UR S2UR UBMSK UBREV UF2FP UFADD UFFMA UFLO UFMUL UFSETP UI2FP UIADD3 UIMAD UIMNMX UISETP ULDC ULEA ULOP
        ULOP3 UMOV UP2UR UPLOP3 UPOPC UPRMT UPSETP UR2UP USEL USGXT USHF USHL USHR UVIADD UVIMNMX VOTEU""",
    # Branches, convergence, barriers, waits, constants that are not operands.
    "control": """ACQBULK B2R BAR BMOV BRA BREAK BSSY BSYNC CALL CS2R DEPBAR ELECT ERRBAR EXIT FENCE JMP LDC LDGDEPBAR MEMBAR
        NANOSLEEP NOP PREEXIT R2B RET S2R UCGABAR_ARV UCGABAR_WAIT WARPGROUP WARPSYNC YIELD""",
}
PIPES = list(OPCODES)
PIPE = {opcode: pipe for pipe, opcodes in OPCODES.items() for opcode in opcodes.split()}


class Refused(Exception):
    """Something that cannot be counted honestly: what was found and what to do."""


@dataclasses.dataclass
class Instruction:
    """One line of code."""

    guard: str
    opcode: str
    operands: str
    line: int
    labels: list

    @property
    def name(self):
        return self.opcode.split(".")[0]

    @property
    def modifiers(self):
        return self.opcode.split(".")[1:]

    @property
    def target(self):
        """The label that it names."""
        found = re.search(r"`\((\S+?)\)", self.operands)
        return found and found.group(1)

    def bytes(self):
        """Bytes that a lane's access moves."""
        for modifier, size in (("U8", 1), ("S8", 1), ("U16", 2), ("S16", 2), ("64", 8), ("128", 16), ("256", 32)):
            if modifier in self.modifiers:
                return size
        return 4

    def registers(self):
        """Numbers of the registers that it reads or writes."""
        found = set()
        operands = [part for part in re.split(r",(?![^\[]*\])", self.operands) if part.strip()]
        for index, operand in enumerate(operands):
            for number, pair in re.findall(r"\bR(\d+)(\.64)?", operand):
                inside = "[" in operand
                count = 2 if pair else 1 if inside else self.width(index, len(operands))
                found.update(range(int(number), int(number) + count))
        return found

    def width(self, index, operands):
        """Registers of an operand that is no address."""
        first, last = index == 0, index == operands - 1
        match self.name:
            case "LDG" | "LDS" | "LD" | "LDL" | "LDC" if first:
                return max(1, self.bytes() // 4)
            case "STG" | "STS" | "ST" | "STL" if last:
                return max(1, self.bytes() // 4)
            case "LDSM" if first:
                return int(next((modifier for modifier in self.modifiers if modifier in ("2", "4")), 1))
            case "STSM" if last:
                return int(next((modifier for modifier in self.modifiers if modifier in ("2", "4")), 1))
            # At most: a wait that is noticed too early only makes the figure worse.
            case "HMMA" | "IMMA":
                return 2 if index == 2 else 4
            case "IMAD" if "WIDE" in self.modifiers and (first or index >= 3):
                return 2
            case "CS2R" if first and "32" not in self.modifiers:
                return 2
            case "DADD" | "DFMA" | "DMUL" | "DSETP":
                return 2
        return 1


LINE = re.compile(r'//## File "[^"]*", line (\d+)')
LABEL = re.compile(r"^([^\s:]+):$")
CODE = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@(\S+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;\s*(?:/\*.*)?$")


def functions(text):
    """{kernel: its instructions} of a disassembly."""
    found, code, line, labels = {}, None, 0, []
    for row in text.splitlines():
        if section := re.match(r"\s*\.section\s+\.text\.([^,\s]+)", row):
            code = found.setdefault(section.group(1), [])
            line, labels = 0, []
        elif code is None:
            continue
        elif said := LINE.search(row):
            line = int(said.group(1))
        elif label := LABEL.match(row.strip()):
            labels.append(label.group(1))
        elif instruction := CODE.match(row):
            guard, opcode, operands = instruction.groups()
            code.append(Instruction(guard or "", opcode, operands, line, labels))
            labels = []
        elif re.match(r"\s*/\*[0-9a-f]{4,}\*/", row):
            raise Refused(f"a line of nvdisasm that .ci/sass.py cannot read: {row.strip()!r}")
    return found


def successors(code, index, places):
    """Where execution goes from an instruction."""
    instruction, after = code[index], [index + 1] if index + 1 < len(code) else []
    conditional = instruction.guard not in ("", "PT")
    if instruction.guard == "!PT":
        return after
    match instruction.name:
        case "EXIT" | "RET":
            return after if conditional else []
        case "BRX" | "JMX":
            raise Refused(f"an indirect branch, {instruction.opcode}, whose targets .ci/sass.py does not know")
        case "BRA" | "JMP":
            # A predicate or a uniform register before the label is a condition as well.
            conditional = conditional or not instruction.operands.startswith("`(")
            taken = [places[instruction.target]]
            return after + taken if conditional else taken
        case "WARPSYNC" if instruction.target:
            return [*after, places[instruction.target]]
        case "CALL" if not subroutine(instruction):
            # A jump: ptxas leaves loops that way on sm_80 and sm_89.
            return [*after, places[instruction.target]] if conditional else [places[instruction.target]]
        # BSYNC stands where its BSSY points, so what follows is where all threads go on; a call comes back.
    return after


def subroutine(instruction):
    """Whether it calls one of ptxas's own functions, for a division or a root: their labels begin with a dollar."""
    return instruction.name == "CALL" and (instruction.target or "$").startswith("$")


@dataclasses.dataclass
class Loop:
    """A natural loop, by the numbers of its instructions."""

    header: int
    body: set

    def hot(self):
        """The run of instructions around the header."""
        first = last = self.header
        while first - 1 in self.body:
            first -= 1
        while last + 1 in self.body:
            last += 1
        return range(first, last + 1)


def loops(code):
    """All loops of a kernel, inner ones before those around them."""
    places = {label: index for index, instruction in enumerate(code) for label in instruction.labels}
    after = [successors(code, index, places) for index in range(len(code))]
    before = [[] for _ in code]
    for index, targets in enumerate(after):
        for target in targets:
            before[target].append(index)
    order, seen, stack = [], {0}, [(0, iter(after[0]))]
    while stack:
        index, rest = stack[-1]
        target = next((target for target in rest if target not in seen), None)
        if target is None:
            order.append(index)
            stack.pop()
        else:
            seen.add(target)
            stack.append((target, iter(after[target])))
    order.reverse()
    dominators = dominator_tree(order, before)
    found = {}
    for index in order:
        for target in after[index]:
            if dominates(dominators, target, index):
                body = found.setdefault(target, {target})
                work = [index]
                while work:
                    at = work.pop()
                    if at not in body:
                        body.add(at)
                        work.extend(source for source in before[at] if source in seen)
    return sorted((Loop(header, body) for header, body in found.items()), key=lambda loop: len(loop.body))


def dominator_tree(order, before):
    """Each reachable instruction's number in `order` and immediate dominator (Cooper, Harvey and Kennedy)."""
    number = {index: place for place, index in enumerate(order)}
    above = {order[0]: order[0]}
    changed = True
    while changed:
        changed = False
        for index in order[1:]:
            known = [source for source in before[index] if source in above]
            best = known[0]
            for other in known[1:]:
                while best != other:
                    while number[best] > number[other]:
                        best = above[best]
                    while number[other] > number[best]:
                        other = above[other]
            if above.get(index) != best:
                above[index], changed = best, True
    return number, above


def dominates(tree, first, second):
    number, above = tree
    while number[second] > number[first]:
        second = above[second]
    return first == second


def marked(code, line, all_loops):
    """The loop that most instructions of that line lie in, innermost; a remainder that ptxas splits off is smaller."""
    votes = collections.Counter()
    for index, instruction in enumerate(code):
        if instruction.line == line:
            inner = next((place for place, loop in enumerate(all_loops) if index in loop.body), None)
            if inner is not None:
                votes[inner] += 1
    if not votes:
        raise Refused("no loop is left of it in what ptxas made: take the work's mark away, or let it be a loop")
    return all_loops[votes.most_common(1)[0][0]]


# What a loop that only waits has in it, or one over lanes that ask for a bulk copy, of which one does, or that name an
# mbarrier for their copies, which all name the same.
WAITS = {"SYNCS", "NANOSLEEP", "YIELD", "UBLKCP", "ARRIVES"}


def checked(code, loop, all_loops, once=()):
    """Refuses loops whose instructions are not a count of what they execute. Loops in it whose headers are `once` run once
    in each of its iterations, seldom more often."""
    for inner in all_loops:
        if inner.header != loop.header and inner.header not in once and inner.body < loop.body:
            if not any(code[index].name in WAITS for index in inner.body):
                raise Refused("another loop lies in it: mark the inner one, whose count does not hang on iterations")
    for index in loop.body:
        if subroutine(code[index]):
            raise Refused("it calls a subroutine (a division, a root), whose instructions stand elsewhere")


def count(code, indices):
    """Instructions by pipe."""
    counts = dict.fromkeys(PIPES, 0)
    for index in indices:
        opcode = code[index].name
        if opcode not in PIPE:
            what = f"opcode {code[index].opcode} has no pipe in .ci/sass.py: look up which it runs on and add it there"
            raise Refused(what)
        counts[PIPE[opcode]] += 1
    return counts


def loaded(instructions):
    """Bytes that a lane asks global memory for."""
    return sum(instruction.bytes() for instruction in instructions if instruction.name in ("LDG", "LD", "LDGSTS"))


def asks_ahead(instructions):
    """Whether lanes ask L2 for what they load in the next iteration, which no register waits for."""
    return any(instruction.name == "CCTL" and ".PF2" in instruction.opcode for instruction in instructions)


def waits(instructions, iterations=16):
    """How often one iteration waits for global memory, in the steady state: the time of an iteration, where a load takes
    1 and all else takes none. Loads that are in flight together wait once, also where the first use of one lies in the
    next iteration. `LDGSTS` is waited for by its group (`LDGDEPBAR`, `DEPBAR`): with 3 groups left in flight, a fourth as
    often."""
    loads = {place: results(instruction) for place, instruction in enumerate(instructions)}
    watched = set().union(*loads.values())
    copies = any(instruction.name == "LDGDEPBAR" for instruction in instructions)
    events = []
    for place, instruction in enumerate(instructions):
        used = instruction.registers() & watched
        if used or instruction.name in ("LDGSTS", "LDGDEPBAR", "DEPBAR"):
            events.append((instruction, used, loads[place]))
    now, arrival, group, groups, middle = 0, {}, 0, [], 0
    for iteration in range(2 * iterations):
        if iteration == iterations:
            middle = now
        for instruction, used, loading in events:
            for register in used:
                now = max(now, arrival.pop(register, 0))
            arrival.update(dict.fromkeys(loading, now + 1))
            match instruction.name:
                case "LDGSTS":
                    group = now + 1
                case "LDGDEPBAR":
                    groups.append(group)
                    group = 0
                case "DEPBAR" if copies and (left := re.search(r"SB0,\s*(0x[0-9a-f]+|\d+)", instruction.operands)):
                    keep = int(left.group(1), 0)
                    done = groups[: max(0, len(groups) - keep)]
                    now, groups = max([now, *done]), groups[len(done) :]
    return (now - middle) / iterations


def results(instruction):
    """Registers that a load from global memory fills."""
    if instruction.name not in ("LDG", "LD"):
        return set()
    # A predicate may stand before them.
    first = re.search(r"\bR(\d+)", re.split(r"desc\[|\[", instruction.operands)[0])
    start = int(first.group(1)) if first else 0
    return set(range(start, start + max(1, instruction.bytes() // 4))) if first else set()
