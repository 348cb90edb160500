//! The kernels that the tests launch: one module, put together from a few pieces.

/// A module's text.
macro_rules! module {
    ($($kernel:expr),+ $(,)?) => { concat!(".version 7.8\n.target sm_90\n.address_size 64\n", $($kernel),+) };
}

/// A kernel's text: its name, the parameters behind `words`, whose address is in `%rd1`, and its lines.
macro_rules! kernel {
    ($name:literal, $parameters:literal, $($line:expr),+ $(,)?) => {
        concat!(
            "\n.visible .entry ", $name, "(.param .u64 words", $parameters, ")\n{\n",
            ".reg .pred %p<5>;\n.reg .b32 %r<5>;\n.reg .b64 %rd<6>;\n",
            "ld.param.u64 %rd1, [words];\n",
            $($line, "\n",)+
            "ret;\n}\n"
        )
    };
}

/// `%r4` is the thread's number, `%rd3` the address of its word.
macro_rules! own_word {
    () => {
        "mov.u32 %r4, %tid.x;\nmul.wide.u32 %rd4, %r4, 4;\nadd.s64 %rd3, %rd1, %rd4;"
    };
}

/// Stores `value` into one word per thread.
macro_rules! store {
    () => {
        concat!("ld.param.u32 %r1, [value];\n", own_word!(), "\nst.global.u32 [%rd3], %r1;")
    };
}

/// Loads the word at an address into `%r1`, until it is not 0; the label is the loop's.
macro_rules! poll {
    ($label:literal, $load:literal, $at:literal) => {
        concat!($label, ":\n", $load, " %r1, [", $at, "];\nsetp.eq.u32 %p1, %r1, 0;\n@%p1 bra ", $label, ";")
    };
}

/// Every block counts itself in `words[0]` and waits until all blocks have.
macro_rules! meet {
    ($name:literal) => {
        kernel!(
            $name,
            "",
            "mov.u32 %r1, %nctaid.x;",
            "red.release.gpu.global.add.u32 [%rd1], 1;",
            "POLL:",
            "ld.acquire.gpu.global.u32 %r2, [%rd1];",
            "setp.lt.u32 %p1, %r2, %r1;",
            "@%p1 bra POLL;",
        )
    };
}

/// The module.
pub(crate) const KERNELS: &str = module!(
    // Waits until `words[0]` is set, then sets `words[1]`.
    kernel!(
        "mailbox",
        "",
        poll!("POLL", "ld.acquire.sys.global.u32", "%rd1"),
        "add.u32 %r2, %r1, 1;",
        "st.release.sys.global.u32 [%rd1+4], %r2;",
    ),
    // Sets `words[0]`, for the host to see.
    kernel!("set", "", "st.release.sys.global.u32 [%rd1], 1;"),
    // Sets `words[0]`, for the device to see.
    kernel!("post", "", "st.release.gpu.global.u32 [%rd1], 1;"),
    // One strong access, so that blocks take turns, then a loop that nobody sees anything of.
    kernel!(
        "compute",
        "",
        "ld.acquire.sys.global.u32 %r1, [%rd1];",
        "mov.u32 %r2, 0;",
        "LOOP:",
        "add.u32 %r2, %r2, 1;",
        "setp.lt.u32 %p1, %r2, 3000000;",
        "@%p1 bra LOOP;",
    ),
    meet!("meet"),
    meet!("join"),
    // No block waits for another: each writes a word of its own.
    kernel!(
        "alone",
        "",
        "mov.u32 %r1, %ctaid.x;",
        "mul.wide.u32 %rd2, %r1, 4;",
        "add.s64 %rd3, %rd1, %rd2;",
        "st.global.u32 [%rd3], %r1;",
    ),
    // Every block counts itself in `words[1]` and waits until `words[0]` is set.
    kernel!(
        "linger",
        "",
        "red.relaxed.sys.global.add.u32 [%rd1+4], 1;",
        poll!("POLL", "ld.acquire.sys.global.u32", "%rd1"),
    ),
    // `words[i] += value`, one word per thread.
    kernel!(
        "add",
        ", .param .u32 value",
        "ld.param.u32 %r1, [value];",
        own_word!(),
        "ld.global.u32 %r3, [%rd3];",
        "add.u32 %r3, %r3, %r1;",
        "st.global.u32 [%rd3], %r3;",
    ),
    kernel!("write", ", .param .u32 value", store!()),
    // Lets the kernel after it begin as soon as it likes, then stores.
    kernel!("trigger", ", .param .u32 value", "griddepcontrol.launch_dependents;", store!()),
    // Reads one word per thread, adds `value`, writes it to `out`.
    kernel!(
        "read",
        ", .param .u64 out, .param .u32 value",
        "ld.param.u64 %rd2, [out];",
        "ld.param.u32 %r1, [value];",
        own_word!(),
        "add.s64 %rd5, %rd2, %rd4;",
        "ld.global.u32 %r3, [%rd3];",
        "add.u32 %r3, %r3, %r1;",
        "st.global.u32 [%rd5], %r3;",
    ),
    // One byte per thread, in every second place.
    kernel!(
        "bytes",
        "",
        "mov.u32 %r2, %tid.x;",
        "mul.wide.u32 %rd2, %r2, 2;",
        "add.s64 %rd3, %rd1, %rd2;",
        "st.global.u8 [%rd3], %r2;",
    ),
    // Copies one word per thread to `out`, and may begin before the kernel before it ends: it waits late, at once, or by
    // one thread for all.
    kernel!(
        "early",
        ", .param .u64 out, .param .u32 how",
        "ld.param.u64 %rd2, [out];",
        "ld.param.u32 %r1, [how];",
        own_word!(),
        "add.s64 %rd5, %rd2, %rd4;",
        "setp.eq.u32 %p1, %r1, 1;",
        "setp.eq.u32 %p2, %r1, 2;",
        "setp.eq.u32 %p3, %r4, 0;",
        "and.pred %p4, %p2, %p3;",
        "@%p1 griddepcontrol.wait;",
        "@%p4 griddepcontrol.wait;",
        "bar.sync 0;",
        "ld.global.u32 %r3, [%rd3];",
        "griddepcontrol.wait;",
        "st.global.u32 [%rd5], %r3;",
    ),
    // Lets the kernel after it begin, then waits for those before it if `how` is 1.
    kernel!(
        "pass",
        ", .param .u32 how",
        "ld.param.u32 %r1, [how];",
        "setp.eq.u32 %p1, %r1, 1;",
        "griddepcontrol.launch_dependents;",
        "@%p1 griddepcontrol.wait;",
    ),
    // Copies one word per thread to `out` behind its wait, by a non-coherent load.
    kernel!(
        "early_constant",
        ", .param .u64 out",
        "ld.param.u64 %rd2, [out];",
        own_word!(),
        "add.s64 %rd5, %rd2, %rd4;",
        "griddepcontrol.wait;",
        "ld.global.nc.u32 %r3, [%rd3];",
        "st.global.u32 [%rd5], %r3;",
    ),
    // Lets the kernel after it begin, then reads one word per thread.
    kernel!("trigger_read", "", "griddepcontrol.launch_dependents;", own_word!(), "ld.global.u32 %r1, [%rd3];"),
    // Reads the word at byte `first`, then that at `second`, and does not wait before. Where `how` is 1 the first warp waits, where it
    // is 2 the second access is a store, where it is 3 all wait and the second is non-coherent.
    kernel!(
        "twice",
        ", .param .u32 first, .param .u32 second, .param .u32 how",
        "ld.param.u32 %r1, [how];",
        "ld.param.u32 %r2, [first];",
        "cvt.u64.u32 %rd2, %r2;",
        "add.s64 %rd2, %rd1, %rd2;",
        "ld.param.u32 %r2, [second];",
        "cvt.u64.u32 %rd3, %r2;",
        "add.s64 %rd3, %rd1, %rd3;",
        "mov.u32 %r4, %tid.x;",
        "setp.lt.u32 %p1, %r4, 32;",
        "setp.eq.u32 %p2, %r1, 1;",
        "and.pred %p2, %p2, %p1;",
        "setp.eq.u32 %p3, %r1, 3;",
        "or.pred %p2, %p2, %p3;",
        "setp.eq.u32 %p4, %r1, 2;",
        "@%p2 griddepcontrol.wait;",
        "ld.global.u32 %r3, [%rd2];",
        "@%p4 st.global.u32 [%rd3], %r3;",
        "@%p4 bra END;",
        "@%p3 ld.global.nc.u32 %r3, [%rd3];",
        "@%p3 bra END;",
        "ld.global.u32 %r3, [%rd3];",
        "END:",
    ),
    // Adds one to a counter.
    kernel!("count", "", "red.relaxed.gpu.global.add.u32 [%rd1], 1;"),
    // Writes word 1, then sets the flag in word 0, releasing it.
    kernel!("send", "", "st.global.u32 [%rd1+4], 7;", "st.release.gpu.global.u32 [%rd1], 1;"),
    // Waits for the flag in word 0, then reads word 1 into word 2.
    kernel!(
        "receive",
        "",
        poll!("POLL", "ld.acquire.gpu.global.u32", "%rd1"),
        "ld.global.u32 %r2, [%rd1+4];",
        "st.global.u32 [%rd1+8], %r2;",
    ),
    // Waits for the host's flag in word 0, then copies a word of device memory to word 1.
    kernel!(
        "fetch",
        ", .param .u64 from",
        "ld.param.u64 %rd2, [from];",
        poll!("POLL", "ld.acquire.sys.global.u32", "%rd1"),
        "ld.global.u32 %r2, [%rd2];",
        "st.global.u32 [%rd1+4], %r2;",
    ),
    // Waits for the host's flag, then for that of `send`, and copies what came with it to word 1.
    kernel!(
        "late",
        ", .param .u64 from",
        "ld.param.u64 %rd2, [from];",
        poll!("HOST", "ld.relaxed.sys.global.u32", "%rd1"),
        poll!("POLL", "ld.acquire.gpu.global.u32", "%rd2"),
        "ld.global.u32 %r2, [%rd2+4];",
        "st.global.u32 [%rd1+4], %r2;",
    ),
    // A mailbox with a payload: waits for the host's flag in word 0, reads word 1, answers in word 2, sets word 3.
    kernel!(
        "answer",
        "",
        poll!("POLL", "ld.acquire.sys.global.u32", "%rd1"),
        "ld.global.u32 %r2, [%rd1+4];",
        "add.u32 %r3, %r2, 1;",
        "st.global.u32 [%rd1+8], %r3;",
        "st.release.sys.global.u32 [%rd1+12], 1;",
    ),
    // The same with a release that does not reach the host.
    kernel!(
        "answer_near",
        "",
        "st.global.u32 [%rd1+8], 5;",
        "fence.acq_rel.cta;",
        "st.relaxed.sys.global.u32 [%rd1+12], 1;",
    ),
);
