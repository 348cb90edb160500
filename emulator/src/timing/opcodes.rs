//! The table of opcodes: which pipe of a multiprocessor an instruction takes by itself, and how many instructions it becomes.

/// A pipe of a multiprocessor's quarter, or what stands in for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pipe {
    /// None: part of another instruction.
    Folded,
    /// An issue slot only.
    Control,
    Fma,
    Heavy,
    Alu,
    Half,
    Double,
    /// From integers to floating point.
    Convert,
    Sixteen,
    Shuffle,
    /// Products of f16, or of int8, of one instruction.
    Tensor {
        products: u32,
        int8: bool,
    },
    /// Products of int8 of a warpgroup, which nobody waits for at their issue: those of one warp.
    Warpgroup {
        products: u32,
    },
    /// The load and store unit.
    Memory,
}

/// What an opcode becomes by itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) pipe: Pipe,
    pub(super) count: u32,
    pub(super) extra: u32,
}

/// An opcode's parts.
pub(super) struct Words<'a> {
    pub(super) name: &'a str,
    rest: Vec<&'a str>,
}

impl<'a> Words<'a> {
    pub(super) fn of(opcode: &'a str) -> Words<'a> {
        let mut parts = opcode.split('.');
        Words { name: parts.next().unwrap_or(""), rest: parts.collect() }
    }

    pub(super) fn has(&self, word: &str) -> bool {
        self.rest.contains(&word)
    }

    /// The type of its operands.
    pub(super) fn last(&self) -> &'a str {
        self.rest.last().copied().unwrap_or("")
    }

    pub(super) fn is_wide(&self) -> bool {
        self.last().ends_with("64")
    }

    pub(super) fn is_float(&self) -> bool {
        self.last().starts_with('f')
    }

    fn is_half(&self) -> bool {
        matches!(self.last(), "f16" | "f16x2" | "bf16" | "bf16x2")
    }

    pub(super) fn is_logic(&self) -> bool {
        matches!(self.name, "and" | "or" | "xor" | "not") && self.last() == "b32"
    }

    pub(super) fn is_sum(&self) -> bool {
        matches!(self.name, "add" | "sub") && matches!(self.last(), "u32" | "s32")
    }

    /// As many products as the three numbers of a shape such as `m16n8k16` make.
    fn products(&self) -> u32 {
        let shape = self.rest.iter().find(|word| word.starts_with('m') && word.contains('n') && word.contains('k'));
        shape.map_or(0, |word| word.split(['m', 'n', 'k']).filter_map(|n| n.parse::<u32>().ok()).product())
    }

    pub(super) fn addresses(&self) -> bool {
        matches!(self.name, "ld" | "st" | "atom" | "red" | "cp" | "prefetch")
    }
}

impl Shape {
    /// What an opcode with `reads` registers becomes.
    pub(super) fn of(words: &Words<'_>, reads: usize) -> Shape {
        use Pipe::*;
        let (pipe, count, extra) = Self::parts(words, reads);
        let pipe = if words.last() == "f64" && matches!(pipe, Fma | Alu) { Double } else { pipe };
        Shape { pipe, count, extra }
    }

    fn parts(words: &Words<'_>, reads: usize) -> (Pipe, u32, u32) {
        use Pipe::*;
        let twice = if words.is_wide() { 2 } else { 1 };
        match words.name {
            "mov" | "cvta" | "isspacep" | "mapa" => (Folded, 0, 0),
            "ld" if words.has("param") => (Folded, 0, 0),
            "neg" | "abs" if words.is_float() => (Folded, 0, 0),
            "not" if words.has("pred") => (Folded, 0, 0),
            "add" | "sub" | "mul" | "fma" | "mad" if words.is_half() => (Half, 1, 0),
            "add" | "sub" | "mul" | "fma" | "mad" if words.is_float() => (Fma, 1, 0),
            // By a constant, onto an address, it is a sum of both halves.
            "mad" if words.has("wide") && reads <= 2 => (Alu, 2, 0),
            "mul" | "mad" if words.has("hi") => (Heavy, 2 * twice, 0),
            "mul" | "mad" if words.is_wide() && !words.has("wide") => (Heavy, 4, 0),
            "mul" | "mad" | "mul24" | "mad24" | "dp4a" | "dp2a" => (Heavy, 1, 0),
            "add" | "sub" | "and" | "or" | "xor" | "not" | "lop3" | "setp" | "set" | "selp" | "slct" | "min"
            | "max" | "abs" | "neg" => (Alu, twice, 0),
            "prmt" | "shf" | "vote" | "activemask" | "vabsdiff4" => (Alu, 1, 0),
            "shl" | "shr" => (Alu, if words.is_wide() { 3 } else { 1 }, 0),
            "bfe" | "bfi" | "sad" | "szext" | "bmsk" => (Alu, 2 * twice, 0),
            "brev" | "popc" => (Sixteen, twice, 0),
            "clz" | "bfind" => (Sixteen, twice, 1),
            "cvt" => Self::conversion(words),
            "ex2" | "lg2" | "rcp" | "rsqrt" | "sqrt" | "sin" | "cos" | "tanh" | "div" if words.has("approx") => {
                (Sixteen, 1, if words.has("ftz") { 0 } else { 3 })
            }
            "rcp" | "sqrt" => (Sixteen, 1, 8),
            "div" if words.is_float() => (Sixteen, 2, 8),
            // By a constant it is a product and a shift.
            "div" if reads < 2 => (Heavy, 2, 1),
            "rem" if reads < 2 => (Heavy, 3, 1),
            "div" | "rem" => (Sixteen, 2, if words.is_wide() { 70 } else { 16 }),
            "shfl" => (Shuffle, 1, 0),
            "redux" | "match" => (Sixteen, 1, 0),
            "mma" => (Tensor { products: words.products(), int8: words.has("s32") }, 1, 0),
            // A warp has a quarter of the rows.
            "wgmma" if words.has("mma_async") => (Warpgroup { products: words.products() / 4 }, 1, 0),
            // The last product before it says so.
            "wgmma" if words.has("commit_group") => (Folded, 0, 0),
            "ld" | "ldu" | "st" | "atom" | "red" | "prefetch" | "ldmatrix" | "stmatrix" | "discard" => (Memory, 1, 0),
            "cp" if words.has("commit_group") || words.has("wait_group") || words.has("wait_all") => (Control, 1, 0),
            "cp" | "mbarrier" => (Memory, 1, 0),
            _ => (Control, 1, 0),
        }
    }

    /// `cvt`, by its two types.
    fn conversion(words: &Words<'_>) -> (Pipe, u32, u32) {
        use Pipe::*;
        let from = words.last();
        let to = words.rest.iter().rev().nth(1).copied().unwrap_or("");
        let float = |ty: &str| ty.starts_with('f') || ty.starts_with("bf");
        let bits = |ty: &str| ty.trim_start_matches(char::is_alphabetic).parse::<u32>().unwrap_or(32);
        match (float(to), float(from)) {
            _ if bits(to) == 64 && (float(to) || float(from)) || from == "f64" => (Sixteen, 2, 0),
            (true, true) if to == from => (Sixteen, 1, 0),
            (true, true) if from == "f16" => (Half, 1, 0),
            (true, true) => (Alu, 1, 0),
            (true, false) => (Convert, 1, 0),
            (false, true) => (Sixteen, 1, 0),
            (false, false) if bits(to) <= bits(from) && bits(to) >= 32 => (Folded, 0, 0),
            (false, false) if bits(from) == 32 && from.starts_with('u') => (Folded, 0, 0),
            (false, false) => (Alu, 1, 0),
        }
    }
}
