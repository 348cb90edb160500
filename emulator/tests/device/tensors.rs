//! Tensor maps: what `cuTensorMapEncodeTiled` allows, and a map as a kernel's parameter.

use crate::support::{Device, Handle, ok};
use kiln_emulator::{Code, DeviceConfig};
use std::ffi::c_void;
use std::ptr::{from_mut, from_ref, null, null_mut};

/// `CUtensorMap`
#[repr(align(64))]
struct Map([u8; 128]);

/// Arguments of `cuTensorMapEncodeTiled`.
#[derive(Clone, Copy)]
struct Tensor {
    /// Bytes that the map lies behind an aligned address.
    map: usize,
    ty: u32,
    rank: u32,
    address: u64,
    dims: [u64; 5],
    strides: [u64; 4],
    extent: [u32; 5],
    steps: [u32; 5],
    /// Interleave, swizzle, promotion to L2, fill.
    modes: [u32; 4],
}

/// Sixteen rows of 64 halves, boxes of eight rows by 16.
const HALVES: Tensor = Tensor {
    map: 0,
    ty: 6,
    rank: 2,
    address: 1 << 36,
    dims: [64, 16, 0, 0, 0],
    strides: [128, 0, 0, 0],
    extent: [16, 8, 0, 0, 0],
    steps: [1; 5],
    modes: [0, 0, 2, 0],
};

impl Tensor {
    fn encode(&self, device: &Device) -> (u32, Map) {
        let mut maps = [Map([0; 128]), Map([0; 128])];
        let to = from_mut(&mut maps).cast::<u8>().wrapping_add(self.map).cast::<c_void>();
        let Tensor {
            ty,
            rank,
            address,
            dims,
            strides,
            extent,
            steps,
            modes: [interleave, swizzle, promotion, fill],
            ..
        } = *self;
        let (dims, strides, extent, steps) = (dims.as_ptr(), strides.as_ptr(), extent.as_ptr(), steps.as_ptr());
        let encode = device.api.encode_tiled;
        // SAFETY: there is room for a map, and the lists have values for every dimension.
        let code = unsafe {
            encode(to, ty, rank, address, dims, strides, extent, steps, interleave, swizzle, promotion, fill)
        };
        let [map, _] = maps;
        (code, map)
    }
}

/// What makes another tensor of one.
type Change<'a> = &'a dyn Fn(&mut Tensor);

#[test]
fn maps_are_what_the_manual_allows() {
    let device = Device::new(DeviceConfig::default());
    let limits =
        Tensor { ty: 0, rank: 5, dims: [1 << 32; 5], strides: [(1 << 40) - 16; 4], extent: [256; 5], ..HALVES };
    // The step of dimension 0 means nothing without an interleave.
    for tensor in [HALVES, limits, Tensor { rank: 1, ..HALVES }, Tensor { steps: [8, 1, 1, 1, 1], ..HALVES }] {
        let (code, map) = tensor.encode(&device);
        ok(code);
        assert_ne!(map.0, [0; 128]);
    }
    let forbidden: &[Change] = &[
        &|t| t.map = 32,
        &|t| t.rank = 0,
        &|t| t.rank = 6,
        &|t| t.address += 8,
        &|t| t.dims[4] = 0,
        &|t| t.dims[0] += 1,
        &|t| t.strides[3] -= 8,
        &|t| t.strides[0] += 16,
        &|t| t.extent[4] = 0,
        &|t| t.extent[1] = 257,
        &|t| t.extent[0] = 24,
        &|t| t.steps[0] = 0,
        &|t| t.steps[4] = 9,
        &|t| t.ty = 16,
        &|t| t.modes[0] = 3,
        &|t| t.modes[1] = 7,
        &|t| t.modes[2] = 4,
        &|t| t.modes[3] = 2,
    ];
    let absent: &[Change] = &[
        // Types that a copy changes, and steps.
        &|t| t.ty = 10,
        &|t| t.ty = 12,
        &|t| t.steps[1] = 2,
        &|t| t.modes[0] = 1,
        &|t| t.modes[1] = 3,
        &|t| t.modes[3] = 1,
    ];
    for (code, changes) in [(Code::INVALID_VALUE, forbidden), (Code::NOT_SUPPORTED, absent)] {
        for (k, change) in changes.iter().enumerate() {
            let mut tensor = limits;
            change(&mut tensor);
            let (found, map) = tensor.encode(&device);
            assert_eq!((found, map.0), (code.raw(), [0; 128]), "case {k}");
        }
    }
    // SAFETY: null is refused before anything is read.
    let code = unsafe { (device.api.encode_tiled)(null_mut(), 0, 1, 0, null(), null(), null(), null(), 0, 0, 0, 0) };
    assert_eq!(code, Code::INVALID_VALUE.raw());
}

/// A thread copies 16 by 8 halves to shared memory, and the warp from there to `out`.
const BY_PARAMETER: &str = "
.version 8.6
.target sm_90
.address_size 64
.visible .entry by_parameter(.param .align 64 .b8 map[128], .param .u64 out)
{
    .reg .pred %p<3>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;
    .shared .align 128 .b8 tile[256];
    .shared .align 8 .b64 full;
    mov.b64 %rd1, map;
    cvta.param.u64 %rd1, %rd1;
    ld.param.u64 %rd2, [out];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, tile;
    mov.u32 %r3, full;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra WAIT;
    mbarrier.init.shared::cta.b64 [%r3], 1;
    fence.proxy.async.shared::cta;
    mbarrier.arrive.expect_tx.shared::cta.b64 %rd3, [%r3], 256;
    cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r2], [%rd1, {48, 4}], [%r3];
WAIT:
    bar.sync 0;
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;
    @!%p2 bra WAIT;
    shl.b32 %r4, %r1, 3;
    add.u32 %r2, %r2, %r4;
    ld.shared.v2.u32 {%r5, %r6}, [%r2];
    cvt.u64.u32 %rd4, %r4;
    add.u64 %rd4, %rd2, %rd4;
    st.global.v2.u32 [%rd4], {%r5, %r6};
    ret;
}";

#[test]
fn a_map_in_a_kernels_parameters_needs_no_fence() {
    let device = Device::new(DeviceConfig::default());
    let halves: Vec<u16> = (0..64 * 16).collect();
    let (from, out) = (device.upload(&halves), device.alloc(256));
    let (code, map) = Tensor { address: from, ..HALVES }.encode(&device);
    ok(code);
    let kernel: Handle = device.kernel(BY_PARAMETER, "by_parameter");
    let mut arguments = [from_ref(&map).cast_mut().cast::<c_void>(), from_ref(&out).cast_mut().cast()];
    // SAFETY: one pointer per parameter, each to a value of its size.
    ok(unsafe { (device.api.launch)(kernel, 1, 1, 1, 32, 1, 1, 0, 0, arguments.as_mut_ptr(), null_mut()) });
    let expected: Vec<u16> = (4..12).flat_map(|row| (48..64).map(move |column| 64 * row + column)).collect();
    assert_eq!(device.download::<u16>(out, 128), expected);
}
