//! Text of a kernel, written line by line: registers of every type, and what several of the kernels do.

/// A kernel's body. Registers are `%r`, `%f`, `%rd` and `%p` with a number.
pub(super) struct Kernel {
    lines: Vec<String>,
    shared: u32,
}

impl Kernel {
    /// A kernel of blocks of so many threads. `%r0` is the thread's number in its block, `%r1` the block's, `%r2` the
    /// thread's number in the grid, `%rd0` and on are its parameters.
    pub(super) fn new(threads: u32, shared: u32) -> Kernel {
        let mut kernel = Kernel { lines: Vec::new(), shared };
        for i in 0..4 {
            kernel.line(&format!("ld.param.u64 %rd{i}, [p{i}]"));
        }
        kernel.line("mov.u32 %r0, %tid.x");
        kernel.line("mov.u32 %r1, %ctaid.x");
        kernel.line(&format!("mad.lo.u32 %r2, %r1, {threads}, %r0"));
        kernel
    }

    pub(super) fn line(&mut self, line: &str) {
        self.lines.push(format!("    {line};"));
    }

    pub(super) fn lines(&mut self, lines: &[&str]) {
        lines.iter().for_each(|line| self.line(line));
    }

    pub(super) fn label(&mut self, label: &str) {
        self.lines.push(format!("{label}:"));
    }

    /// Adds `f` of all lanes of a warp, by five shuffles through `other`.
    pub(super) fn warp_sum(&mut self, f: &str, other: &str) {
        for distance in [16, 8, 4, 2, 1] {
            self.line(&format!("shfl.sync.bfly.b32 {other}, {f}, {distance}, 31, -1"));
            self.line(&format!("add.f32 {f}, {f}, {other}"));
        }
    }

    /// Adds `f` by warp and leaves the sums in shared memory from byte `at` on. `%r21` is the lane, `%r22` the address that
    /// is its share of all sums.
    pub(super) fn warp_sums(&mut self, f: &str, other: &str, at: u32) {
        self.warp_sum(f, other);
        self.lines(&[
            "shr.u32 %r20, %r0, 5",
            "shl.b32 %r20, %r20, 2",
            "and.b32 %r21, %r0, 31",
            "shl.b32 %r22, %r21, 2",
        ]);
        self.lines(&["mov.u32 %r23, data", "add.u32 %r20, %r23, %r20", "add.u32 %r22, %r23, %r22"]);
        self.line("setp.eq.u32 %p8, %r21, 0");
        self.line(&format!("@%p8 st.shared.f32 [%r20+{at}], {f}"));
    }

    /// Adds up the sums of so many warps, from byte `at` on, in every lane.
    pub(super) fn sum_of_warps(&mut self, f: &str, other: &str, warps: u32, at: u32) {
        self.line(&format!("setp.lt.u32 %p9, %r21, {warps}"));
        self.line(&format!("mov.f32 {f}, 0f00000000"));
        self.line(&format!("@%p9 ld.shared.f32 {f}, [%r22+{at}]"));
        self.warp_sum(f, other);
    }

    /// PTX of the kernel.
    pub(super) fn text(&self, name: &str) -> String {
        let body = self.lines.join("\n");
        let shared = self.shared.max(16);
        format!(
            ".visible .entry {name}(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3)\n{{\n    \
             .reg .pred %p<16>;\n    .reg .b32 %r<128>;\n    .reg .f32 %f<128>;\n    .reg .b64 %rd<32>;\n    \
             .reg .b16 %h<2>;\n    \
             .shared .align 16 .b8 data[{shared}];\n{body}\n    ret;\n}}\n"
        )
    }
}
