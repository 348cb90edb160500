//! Weights on their way through shared memory: a warp loads a run of records together, 512 neighbouring bytes an
//! instruction, and each lane then reads the record of its own super-block.
//!
//! The next records are in registers while the lanes work on those in shared memory. A warp has its place for itself, so
//! no barrier of the block is needed.

use crate::formats::{APART, Weights, format};
use crate::ptx::{Builder, F16, F32, Global, LoadKind, Pred, S32, Shared, U8, U32, Val, Var, Work};
use kiln_shape::{Layout, SUPER_BLOCK, WeightType};

/// Bytes of shared memory that every chip from sm_80 on lets a block have.
const BLOCK_BYTES: u32 = 99 << 10;
/// Bytes left to what a kernel has beside products.
const BESIDE_BYTES: u32 = 4 << 10;

/// Pieces that a lane carries, at most: those of 32 records of Q6_K. Longer records come fewer at once, since with more the
/// persistent decoder has no registers left.
const CARRIED: u32 = 13;

/// Lanes that may have records at once, most first.
fn lanes(layout: Layout) -> impl Iterator<Item = u32> {
    [32, 16, 8].into_iter().filter(move |lanes| (layout.data / 16 * lanes).div_ceil(32) <= CARRIED)
}

/// A warp's place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    own: Shared<U32>,
    bytes: u32,
}

/// Super-blocks that follow each other in memory.
pub(crate) struct Run {
    pub(crate) data: Global<U8>,
    pub(crate) plane: Global<U8>,
    pub(crate) ty: WeightType,
    /// How many.
    pub(crate) tasks: Val<U32>,
}

/// How records of a layout lie in a slot.
#[derive(Clone, Copy)]
struct Records {
    /// Pieces of 16 bytes in a record.
    pieces: u32,
    /// Records at once: a power of two.
    lanes: u32,
    /// Whether two lanes work on each: lane l and l + 16 on record l.
    by_two: bool,
}

impl Records {
    /// As many as fit.
    fn new(ty: WeightType, bytes: u32) -> Records {
        let layout = ty.layout();
        let pieces = layout.data / 16;
        let stride = 16 * (pieces | 1);
        let lanes = lanes(layout).find(|lanes| lanes * stride <= bytes).unwrap_or(8);
        let by_two = lanes == APART && format(ty).int8().is_some_and(|int8| int8.has_by_two());
        Records { pieces, lanes, by_two }
    }

    /// From a record to the next: an odd number of pieces, so that lanes' reads of 16 bytes meet in no bank.
    const fn stride(self) -> u32 {
        16 * (self.pieces | 1)
    }

    /// Pieces that a lane carries.
    const fn carried(self) -> u32 {
        (self.pieces * self.lanes).div_ceil(32)
    }
}

/// What a lane carries of the next records.
struct Carried {
    pieces: Vec<[Var<U32>; 4]>,
    plane: Vec<[Var<U32>; 4]>,
    half: Option<Var<F16>>,
}

impl Slot {
    /// Takes the shared memory for records of `types`, beside so many bytes: for as many as lanes, where that can be.
    #[track_caller]
    pub(crate) fn new(b: &mut Builder, types: &[WeightType], beside: u32) -> Slot {
        let room = BLOCK_BYTES.saturating_sub(beside + BESIDE_BYTES) / b.warps();
        let of_type = |ty: &WeightType| {
            let stride = 16 * ((ty.layout().data / 16) | 1);
            lanes(ty.layout()).map(|lanes| lanes * stride).find(|bytes| *bytes <= room).unwrap_or(8 * stride)
        };
        let quantised = types.iter().filter(|ty| format(**ty).int8().is_some());
        let bytes = quantised.map(of_type).max().unwrap_or(0);
        let all = b.dynamic_shared::<U32>(bytes / 4 * b.warps());
        let warp = b.warp_id();
        Slot { own: b.byte_index(all, warp, bytes), bytes }
    }

    /// Records of a type that lanes work on at once, and whether two lanes share each: then the second, 16 lanes behind the
    /// first, has its value.
    pub(crate) fn records(&self, ty: WeightType) -> (u32, bool) {
        let records = Records::new(ty, self.bytes);
        (records.lanes, records.by_two)
    }

    /// Runs `body` in all lanes for the next super-blocks of the run, with whether the lane has one of its own, and that
    /// one's weights; a lane that has none sees another's. Of two lanes that share one each sees its half of the weights.
    #[track_caller]
    pub(crate) fn each(&self, b: &mut Builder, run: &Run, body: impl FnOnce(&mut Builder, Val<Pred>, &Weights)) {
        let layout = run.ty.layout();
        let records = Records::new(run.ty, self.bytes);
        let lane = b.lane();
        let (record, half_of_record) = if records.by_two {
            (b.and::<U32>(lane, APART - 1), Some(b.shr::<U32>(lane, APART.trailing_zeros())))
        } else {
            (lane, None)
        };
        let mut quads =
            |count: u32| -> Vec<[Var<U32>; 4]> { (0..count).map(|_| [(); 4].map(|()| b.var::<U32>(0))).collect() };
        let (pieces, plane) = (quads(records.carried()), quads(layout.plane / 16));
        let half = (layout.plane == 2).then(|| {
            let zero = b.mov::<F32>(0.0);
            let zero = b.cvt::<F16, F32>(zero);
            b.var::<F16>(zero)
        });
        let carried = Carried { pieces, plane, half };
        let zero = b.mov::<U32>(0);
        run.load(b, records, &carried, zero);
        b.for_range(0, run.tasks, records.lanes, |b, first| {
            b.each_iteration(Work::Weights(run.ty, SUPER_BLOCK * records.lanes / 32));
            self.store(b, records, &carried);
            let plane = carried.plane.iter().map(|quad| quad.map(|word| b.get(word))).collect();
            let half = carried.half.map(|half| b.get(half));
            let left = b.sub::<U32>(run.tasks, first);
            let last = b.sub::<U32>(left, 1);
            let last = b.min::<U32>(last, records.lanes - 1);
            let has = b.setp_ge(last, record);
            let has = match half_of_record {
                None => has,
                Some(half) => {
                    let second = b.setp_ne(half, 0);
                    b.and_pred(has, second)
                }
            };
            let own = b.min::<U32>(record, last);
            let data = b.byte_index(self.own, own, records.stride());
            let data = match half_of_record {
                None => data,
                Some(half) => b.byte_index(data, half, layout.data / 2),
            };
            let weights = Weights::Shared { data, plane, half };
            b.bar_warp_sync(); // the records are in shared memory
            let next = b.add::<U32>(first, records.lanes);
            run.load(b, records, &carried, next);
            body(b, has, &weights);
            b.bar_warp_sync(); // they have been read
        });
    }

    /// Puts what is carried where the lanes find their records.
    fn store(&self, b: &mut Builder, records: Records, carried: &Carried) {
        let lane = b.lane();
        let to = b.byte_index(self.own, lane, 16);
        // Of records with an even number of pieces, which divides 32, each lies a piece further on.
        let even = records.pieces.is_multiple_of(2);
        let to = if even {
            let record = b.div::<U32>(lane, records.pieces);
            b.byte_index(to, record, 16)
        } else {
            to
        };
        for (j, piece) in carried.pieces.iter().enumerate() {
            let j = j as u32;
            let padding = if even { 32 / records.pieces * j * 4 } else { 0 };
            let words = piece.map(|word| b.get(word));
            let store = |b: &mut Builder| b.st_vector(to.at(128 * j + padding), words);
            match ragged(b, records, j) {
                Some(there) => b.if_(there, store),
                None => store(b),
            }
        }
    }
}

/// Whether a lane has a piece `j`, where not all have.
fn ragged(b: &mut Builder, records: Records, j: u32) -> Option<Val<Pred>> {
    let pieces = records.pieces * records.lanes;
    (32 * (j + 1) > pieces).then(|| {
        let lane = b.lane();
        b.setp_lt(lane, pieces - 32 * j)
    })
}

impl Run {
    /// Loads the records from number `first` on, where there are any.
    fn load(&self, b: &mut Builder, records: Records, into: &Carried, first: Val<U32>) {
        let lane = b.lane();
        let (lane, tasks, from) = (b.mov_bits(lane), b.mov_bits(self.tasks), b.mov_bits(first));
        let left = b.sub::<S32>(tasks, from);
        let left = b.min::<S32>(left, records.lanes as i32);
        // Lane l has piece l + 32 j if there is one.
        let negative = b.sub::<S32>(0, lane);
        let rest = b.mad::<S32>(left, records.pieces as i32, negative);
        let layout = self.ty.layout();
        let data = b.byte_index(self.data, first, layout.data);
        let own = b.lane();
        let data = b.byte_index(data, own, 16).cast::<U32>();
        for (j, into) in into.pieces.iter().enumerate() {
            let there = b.setp_lt(32 * j as i32, rest);
            b.if_(there, |b| {
                let piece: [Val<U32>; 4] = b.ld_vector(data.at(128 * j as u32), LoadKind::Streaming);
                into.iter().zip(piece).for_each(|(into, word)| b.set(*into, word));
            });
        }
        if layout.plane == 0 {
            return;
        }
        if records.by_two {
            return self.load_half_planes(b, into, first, left);
        }
        let has = b.setp_lt(lane, left);
        b.if_(has, |b| {
            let task = b.add::<U32>(first, own);
            let plane = b.byte_index(self.plane, task, layout.plane);
            for (i, quad) in into.plane.iter().enumerate() {
                let words: [Val<U32>; 4] = b.ld_vector(plane.at(16 * i as u32).cast::<U32>(), LoadKind::Streaming);
                quad.iter().zip(words).for_each(|(into, word)| b.set(*into, word));
            }
            if let Some(half) = into.half {
                let loaded = b.ld(plane.cast::<F16>(), LoadKind::Streaming);
                b.set(half, loaded);
            }
        });
    }

    /// Loads each lane's half of a plane of 16 bytes, into the first words of it.
    fn load_half_planes(&self, b: &mut Builder, into: &Carried, first: Val<U32>, left: Val<S32>) {
        let lane = b.lane();
        let (record, half) = (b.and::<U32>(lane, APART - 1), b.shr::<U32>(lane, APART.trailing_zeros()));
        let number = b.mov_bits(record);
        let has = b.setp_lt::<S32>(number, left);
        b.if_(has, |b| {
            let task = b.add::<U32>(first, record);
            let plane = b.byte_index(self.plane, task, self.ty.layout().plane);
            let plane = b.byte_index(plane, half, self.ty.layout().plane / 2);
            let words: [Val<U32>; 2] = b.ld_vector(plane.cast::<U32>(), LoadKind::Streaming);
            into.plane.iter().flatten().zip(words).for_each(|(into, word)| b.set(*into, word));
        });
    }
}
