//! Kernels that several driver tests launch.

/// Waits until `word[0]` is set, then sets `word[1]`.
pub(crate) const MAILBOX: &str = r"
.version 7.0
.target sm_80
.address_size 64
.visible .entry mailbox(.param .u64 words)
{
    .reg .pred %p<2>;
    .reg .b32 %r<3>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [words];
POLL:
    ld.acquire.sys.global.u32 %r1, [%rd1];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra POLL;
    add.u32 %r2, %r1, 1;
    st.release.sys.global.u32 [%rd1+4], %r2;
    ret;
}
";

/// Sets `word[0]`.
pub(crate) const SET: &str = r"
.version 7.0
.target sm_80
.address_size 64
.visible .entry set(.param .u64 words)
{
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [words];
    st.release.sys.global.u32 [%rd1], 1;
    ret;
}
";

/// Every block counts itself in `word[0]` and waits until all blocks have.
pub(crate) const MEET: &str = r"
.version 7.0
.target sm_80
.address_size 64
.visible .entry meet(.param .u64 words)
{
    .reg .pred %p<2>;
    .reg .b32 %r<3>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [words];
    mov.u32 %r1, %nctaid.x;
    red.release.gpu.global.add.u32 [%rd1], 1;
POLL:
    ld.acquire.gpu.global.u32 %r2, [%rd1];
    setp.lt.u32 %p1, %r2, %r1;
    @%p1 bra POLL;
    ret;
}
";
