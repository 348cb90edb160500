#!/usr/bin/env python3
"""Tests of sass.py and of the gate's arithmetic, on snippets as nvdisasm prints them."""

import textwrap
import unittest
import unittest.mock

import basic_blocks
import loop_gate
import sass


def code(text):
    """A kernel of these lines: `LINE| instruction`, or `label:`."""
    rows, address = ["\t.section\t.text.k,\"ax\",@progbits", ".text.k:"], 0
    for row in textwrap.dedent(text).strip().splitlines():
        if row.endswith(":"):
            rows.append(row.strip())
            continue
        line, instruction = row.split("|")
        rows.append(f'\t//## File "loops", line {line.strip()}')
        rows.append(f"        /*{address:04x}*/        {instruction.strip()} ;")
        address += 16
    return sass.functions("\n".join(rows))["k"]


def names(code, indices):
    return [code[index].name for index in sorted(indices)]


class BasicBlocks(unittest.TestCase):
    def test_a_block_begins_at_a_label_and_behind_a_branch(self):
        text = [".reg .b32 %r1;", "mov.u32 %r1, 1;", "@%p bra B;", "add.s32 %r1, %r1, 1;", "A:", "B:", "// said", "ret;"]
        self.assertEqual([number for _, number in basic_blocks.numbered(text)], [None, 1, 1, 2, None, None, None, 3])

    def test_slow_ways_of_divisions_and_of_diverged_warps_are_not_reached(self):
        kernel = code(
            """
            1| BRA.DIV UR4, `(.L_x_2)
            1| FCHK P0, R3, R4
            1| @!P0 BRA `(.L_x_1)
            1| MOV R4, 0x7a0
            1| CALL.REL.NOINC `($__internal_0_$__slowpath)
            .L_x_1:
            2| EXIT
            .L_x_2:
            1| WARPSYNC R5
            1| BRA `(.L_x_1)
            """
        )
        self.assertEqual(names(kernel, basic_blocks.reached(kernel)), ["BRA", "FCHK", "BRA", "EXIT"])

    def test_products_with_nothing_are_moves(self):
        kernel = code(
            """
            1| MOV R1, R2
            1| IMAD.MOV.U32 R1, RZ, RZ, R2
            1| IMAD R1, R2, R3, R4
            1| CS2R R2, SRZ
            1| CS2R R2, SR_CLOCKLO
            """
        )
        self.assertEqual([basic_blocks.moves(instruction) for instruction in kernel], [True, True, False, True, False])


class Loops(unittest.TestCase):
    def test_the_innermost_loop_is_found_around_forward_branches(self):
        kernel = code(
            """
            1| MOV R1, RZ
            .L_x_0:
            1| IADD3 R1, R1, 0x1, RZ
            .L_x_1:
            2| LDG.E R4, desc[UR4][R2.64]
            2| @P1 BRA `(.L_x_2)
            2| FADD R5, R5, R4
            .L_x_2:
            2| ISETP.GE.AND P0, PT, R1, R6, PT
            2| @!P0 BRA `(.L_x_1)
            1| @P2 BRA `(.L_x_0)
            1| EXIT
            """
        )
        found = sass.loops(kernel)
        self.assertEqual([len(loop.body) for loop in found], [5, 7])
        loop = sass.marked(kernel, 2, found)
        self.assertEqual(names(kernel, loop.hot()), ["LDG", "BRA", "FADD", "ISETP", "BRA"])

    def test_several_back_edges_make_one_loop(self):
        kernel = code(
            """
            .L_x_0:
            2| FADD R0, R0, R1
            2| @P0 BRA `(.L_x_0)
            2| FMUL R0, R0, R2
            2| @P1 BRA `(.L_x_0)
            1| EXIT
            """
        )
        self.assertEqual([names(kernel, loop.body) for loop in sass.loops(kernel)], [["FADD", "BRA", "FMUL", "BRA"]])

    def test_a_rare_path_behind_the_loop_is_counted_apart(self):
        kernel = code(
            """
            .L_x_0:
            2| FADD R0, R0, R1
            2| @P0 BRA `(.L_x_2)
            .L_x_1:
            2| @P1 BRA `(.L_x_0)
            1| STG.E desc[UR4][R2.64], R0
            1| EXIT
            .L_x_2:
            2| MUFU.RCP R0, R0
            2| BRA `(.L_x_1)
            """
        )
        (loop,) = sass.loops(kernel)
        self.assertEqual(names(kernel, loop.hot()), ["FADD", "BRA", "BRA"])
        self.assertEqual(names(kernel, loop.body - set(loop.hot())), ["MUFU", "BRA"])

    def test_a_call_to_a_label_is_a_jump_and_one_to_a_function_is_refused(self):
        text = """
            .L_x_0:
            2| FADD R0, R0, R1
            2| {call}
            2| BRA `(.L_x_0)
            .L_x_1:
            1| EXIT
            $__internal_0_$div:
            1| RET.REL.NODEC R2 `(k)
            """
        kernel = code(text.format(call="@P0 CALL.REL.NOINC `(.L_x_1)"))
        found = sass.loops(kernel)
        self.assertEqual(names(kernel, found[0].body), ["FADD", "CALL", "BRA"])
        sass.checked(kernel, found[0], found)
        kernel = code(text.format(call="@P0 CALL.REL.NOINC `($__internal_0_$div)"))
        found = sass.loops(kernel)
        with self.assertRaisesRegex(sass.Refused, "subroutine"):
            sass.checked(kernel, found[0], found)

    def test_a_loop_in_a_loop_is_refused_unless_it_waits(self):
        text = """
            .L_x_0:
            2| LDS R4, [R3]
            .L_x_1:
            1| {inner}
            1| @!P0 BRA `(.L_x_1)
            2| @P1 BRA `(.L_x_0)
            1| EXIT
            """
        for inner, refused in [("FADD R0, R0, R4", True), ("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R3], R5", False)]:
            kernel = code(text.format(inner=inner))
            found = sass.loops(kernel)
            loop = sass.marked(kernel, 2, found)
            self.assertEqual(len(loop.body), 4)
            if refused:
                self.assertRaisesRegex(sass.Refused, "mark the inner one", sass.checked, kernel, loop, found)
            else:
                sass.checked(kernel, loop, found)

    def test_a_mark_that_no_loop_has_is_refused(self):
        kernel = code("2| FADD R0, R0, R1\n1| EXIT")
        self.assertRaisesRegex(sass.Refused, "no loop is left", sass.marked, kernel, 2, sass.loops(kernel))


class Pipes(unittest.TestCase):
    def test_opcodes_are_counted_by_pipe(self):
        kernel = code("1| LOP3.LUT R0, R1, 0xf, RZ, 0xc0, !PT\n1| IDP.4A.S8.S8 R0, R1, R2, R0\n1| IMAD R0, R1, R2, RZ")
        counts = sass.count(kernel, range(3))
        self.assertEqual((counts["alu"], counts["heavy"], sum(counts.values())), (1, 2, 3))

    def test_an_unknown_opcode_is_refused(self):
        kernel = code("1| FROB.X R0, R1")
        self.assertRaisesRegex(sass.Refused, "FROB.X has no pipe", sass.count, kernel, range(1))

    def test_no_opcode_has_two_pipes(self):
        self.assertEqual(len(sass.PIPE), sum(len(opcodes.split()) for opcodes in sass.OPCODES.values()))

    def test_a_line_that_cannot_be_read_is_refused(self):
        self.assertRaisesRegex(sass.Refused, "cannot read", code, "1| 0xdeadbeef")


class Waits(unittest.TestCase):
    def waits(self, text):
        return sass.waits(code(text))

    def test_loads_before_the_first_use_wait_once(self):
        once = """
            1| LDG.E.128 R4, desc[UR4][R2.64]
            1| LDG.E.128 R8, desc[UR4][R2.64+0x200]
            1| FADD R0, R4, R0
            1| FADD R0, R11, R0
            """
        self.assertEqual(self.waits(once), 1)
        self.assertEqual(sass.loaded(code(once)), 32)

    def test_a_load_after_the_first_use_waits_once_more(self):
        twice = """
            1| LDG.E.128 R4, desc[UR4][R2.64]
            1| FADD R0, R7, R0
            1| LDG.E.128 R8, desc[UR4][R2.64+0x200]
            1| FADD R0, R9, R0
            """
        self.assertEqual(self.waits(twice), 2)

    def test_loads_used_in_the_next_iteration_are_in_flight_beside_those_before(self):
        wrapped = """
            1| FADD R0, R0, R4
            1| LDG.E R4, desc[UR4][R2.64]
            1| FADD R0, R0, R5
            1| LDG.E R5, desc[UR4][R2.64+0x4]
            """
        self.assertEqual(self.waits(wrapped), 1)
        # Used at once, each waits for itself.
        direct = """
            1| LDG.E R4, desc[UR4][R2.64]
            1| FADD R0, R0, R4
            1| LDG.E R5, desc[UR4][R2.64+0x4]
            1| FADD R0, R0, R5
            """
        self.assertEqual(self.waits(direct), 2)

    def test_an_address_that_is_loaded_waits(self):
        chain = """
            1| LDG.E.64 R2, desc[UR4][R6.64]
            1| LDG.E R4, desc[UR4][R2.64]
            1| FADD R0, R0, R4
            """
        self.assertEqual(self.waits(chain), 2)

    def test_the_second_register_of_an_address_counts(self):
        self.assertEqual(self.waits("1| STS [R9], R8\n1| LDG.E R3, desc[UR4][R6.64]\n1| LD.E R8, [R2.64]"), 2)

    def test_copies_are_waited_for_by_their_groups(self):
        text = """
            1| DEPBAR.LE SB0, {left}
            1| LDS R4, [R3]
            1| LDGSTS.E.BYPASS.128 [R5], desc[UR4][R2.64]
            1| LDGDEPBAR
            """
        self.assertEqual(self.waits(text.format(left="0x0")), 1)
        self.assertEqual(self.waits(text.format(left="0x3")), 0.25)


class Arithmetic(unittest.TestCase):
    def test_what_l2_is_asked_for_is_in_flight_beside_what_is_loaded(self):
        text = "2| LDG.E.128 R4, desc[UR4][R2.64]\n2| @!P0 CCTL.E.PF2 [R2.64+0x240]\n2| FADD R8, R4, R5"
        self.assertTrue(sass.asks_ahead(code(text)))
        self.assertFalse(sass.asks_ahead(code(text.replace("PF2", "IVALL"))))
        kernel = unittest.mock.Mock(module="m", target="sm_90", threads=256)
        kernel.name = "k"
        counts = [0] * (len(sass.PIPES) + 2)
        of = {"loop": "Q4_K", "units": 2048, "counts": counts, "warps": 16, "bytes": 1000, "waits": 2, "asks": False}
        self.assertEqual(loop_gate.row(kernel, "-", of, None).flight, 8.0)
        self.assertEqual(loop_gate.row(kernel, "-", {**of, "asks": True}, None).flight, 24.0)

    def test_resident_blocks_are_limited_by_each_resource(self):
        self.assertEqual(loop_gate.resident("sm_90", 256, 80, 0), 3)
        self.assertEqual(loop_gate.resident("sm_90", 256, 32, 50000), 4)
        self.assertEqual(loop_gate.resident("sm_75", 256, 32, 0), 4)
        self.assertEqual(loop_gate.resident("sm_86", 32, 32, 0), 16)

    def test_text_is_numbered_by_its_marked_loops(self):
        text = textwrap.dedent(
            """\
            .visible .entry k(
            )
            .reqntid 256
            {
                // dynamic shared memory: 1024 bytes
             .loc 2 5 1
            $0:
             // each iteration of a warp: 256 elements
             ld.global.nc.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];
            $1:
             .loc 1 9 3
             @%p1 bra $1;
             .loc 1 7 3
             @%p0 bra.uni $0;
             ret;
            }
            """
        )
        kernel = loop_gate.Kernel("m", "sm_90", "", {"1": "a.rs", "2": "b.rs"}, "k", text)
        numbered, (mark,) = kernel.numbered
        self.assertEqual((kernel.threads, kernel.dynamic), (256, 1024))
        self.assertEqual((mark.name, mark.units, mark.bytes, mark.source), ("elements", 256, None, "a.rs:7"))
        self.assertEqual(mark.accesses["LDG"], 1)
        lines = [line.split()[2] for line in numbered.splitlines() if ".loc" in line]
        self.assertEqual(lines, ["2", "1", "2", "1"])
        moved = loop_gate.Kernel("m", "sm_90", "", {}, "k", text.replace("1 9 3", "1 8 3"))
        self.assertEqual(kernel.digest(""), moved.digest(""))
        load = code("2| LDG.E.128 R4, desc[UR4][R2.64]\n2| LDG.E.128 R8, desc[UR4][R2.64]")
        self.assertEqual(loop_gate.unrolled(mark, load), 2)
        self.assertRaisesRegex(sass.Refused, "0 LDG where its text has 1", loop_gate.unrolled, mark, [])

    def test_what_is_worse_than_recorded_or_over_its_budget_is_said(self):
        counts = [80, 40, 40, *[0] * (len(sass.PIPES) - 2), 0]
        was = loop_gate.Row("m", "k", "Q4_K", "sm_90", "-", 2048, counts, 16, "1.00", 20.0)
        double = [2 * count for count in counts]
        unrolled = loop_gate.Row("m", "k", "Q4_K", "sm_90", "-", 4096, double, 16, "1.00", 20.0)
        self.assertEqual(loop_gate.compare(unrolled, was), ([], []))
        more = loop_gate.Row("m", "k", "Q4_K", "sm_90", "-", 2048, [81, 41, *counts[2:]], 16, "2.00", 10.0)
        worse, better = loop_gate.compare(more, was)
        self.assertEqual((len(worse), len(better)), (3, 0))
        self.assertEqual([len(side) for side in loop_gate.compare(was, more)], [0, 3])
        self.assertEqual(loop_gate.Row.read(more.cells()), more)
        budget = loop_gate.Budget("m/k", "Q4_K", "sm_90", 1.25, 32.0, None, "budgets.txt:1")
        self.assertTrue(budget.fits("m", "k", "Q4_K", "sm_90") and not budget.fits("m", "k", "Q6_K", "sm_90"))
        said = list(loop_gate.over(more, budget))
        self.assertIn("needed are at most 1.25 (budgets.txt:1): bring 81 down to 80", said[0])
        self.assertIn("10.0 KB in flight per SM, needed are at least 32.0", said[1])
        self.assertEqual(len(list(loop_gate.over(was, budget))), 1)


if __name__ == "__main__":
    unittest.main(verbosity=0)
