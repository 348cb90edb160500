//! Weights on their way through shared memory: a warp loads a run of records together, 512 neighbouring bytes an
//! instruction, and each lane then reads the record of its own super-block.
//!
//! The next records are in registers while the lanes work on those in shared memory. A warp has its place for itself, so
//! no barrier of the block is needed.

use crate::formats::{APART, Weights, format};
use crate::ptx::{Builder, F16, F32, Global, LoadKind, Pred, S32, Shared, U8, U32, U64, Val, Var, Work};
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

/// A lane's part of a run.
struct Part {
    /// Addresses of the lane's first piece and plane, or half of a plane.
    data: Val<U64>,
    plane: Val<U64>,
    /// Pieces of the run, less the lane's number.
    pieces: Val<S32>,
    /// Super-blocks of the run, less the number of the lane's record.
    records: Val<S32>,
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
        // The lane's record, and the same in lanes that have its value: in others more than a run has.
        let (record, valued, data) = if records.by_two {
            let record = b.and::<U32>(lane, APART - 1);
            let half = b.shr::<U32>(lane, APART.trailing_zeros());
            let second = b.setp_ne(half, 0);
            let valued = b.selp::<U32>(record, i32::MAX as u32, second);
            (record, valued, b.byte_index(self.own, half, layout.data / 2))
        } else if records.lanes < 32 {
            let works = b.setp_lt(lane, records.lanes);
            let valued = b.selp::<U32>(lane, i32::MAX as u32, works);
            (b.min::<U32>(lane, records.lanes - 1), valued, self.own)
        } else {
            (lane, lane, self.own)
        };
        let (record, valued) = (b.mov_bits::<S32, U32>(record), b.mov_bits::<S32, U32>(valued));
        let mut quads =
            |count: u32| -> Vec<[Var<U32>; 4]> { (0..count).map(|_| [(); 4].map(|()| b.var::<U32>(0))).collect() };
        let (pieces, plane) = (quads(records.carried()), quads(layout.plane / 16));
        let half = (layout.plane == 2).then(|| {
            let zero = b.mov::<F32>(0.0);
            let zero = b.cvt::<F16, F32>(zero);
            b.var::<F16>(zero)
        });
        let carried = Carried { pieces, plane, half };
        let part = run.part(b, records, record);
        let to = self.place(b, records);
        let ahead = b.var::<S32>(0);
        run.load(b, records, &carried, &part, ahead);
        // What is carried is a step ahead of what is in shared memory.
        let step = records.lanes as i32;
        b.set(ahead, step);
        let tasks = b.mov_bits::<S32, U32>(run.tasks);
        let end = b.add::<S32>(tasks, step);
        let valued = b.sub::<S32>(end, valued);
        let last = b.sub::<S32>(end, 1);
        let any = |b: &mut Builder| b.setp_lt::<S32>(ahead, end);
        b.while_(any, |b| {
            b.each_iteration(Work::Weights(run.ty, SUPER_BLOCK * records.lanes / 32));
            store(b, records, &carried, to);
            let plane = carried.plane.iter().map(|quad| quad.map(|word| b.get(word))).collect();
            let half = carried.half.map(|half| b.get(half));
            let has = b.setp_lt::<S32>(ahead, valued);
            let last = b.sub::<S32>(last, ahead);
            let own = b.min::<S32>(last, record);
            let own = b.mov_bits::<U32, S32>(own);
            let weights = Weights::Shared { data: b.byte_index(data, own, records.stride()), plane, half };
            b.bar_warp_sync(); // the records are in shared memory
            run.load(b, records, &carried, &part, ahead);
            let next = b.add::<S32>(ahead, step);
            b.set(ahead, next);
            body(b, has, &weights);
            b.bar_warp_sync(); // they have been read
        });
    }

    /// Where a lane puts its first piece, and every 32nd behind it.
    fn place(&self, b: &mut Builder, records: Records) -> Shared<U32> {
        let lane = b.lane();
        let to = b.byte_index(self.own, lane, 16);
        if !records.pieces.is_multiple_of(2) {
            return to;
        }
        // Of records with an even number of pieces, which divides 32, each lies a piece further on.
        let record = b.div::<U32>(lane, records.pieces);
        b.byte_index(to, record, 16)
    }
}

/// Puts what is carried where the lanes find their records.
fn store(b: &mut Builder, records: Records, carried: &Carried, to: Shared<U32>) {
    for (j, piece) in carried.pieces.iter().enumerate() {
        let j = j as u32;
        let padding = if records.pieces.is_multiple_of(2) { 32 / records.pieces * j * 4 } else { 0 };
        let words = piece.map(|word| b.get(word));
        let store = |b: &mut Builder| b.st_vector(to.at(128 * j + padding), words);
        match ragged(b, records, j) {
            Some(there) => b.if_(there, store),
            None => store(b),
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
    fn part(&self, b: &mut Builder, of: Records, record: Val<S32>) -> Part {
        let (lane, layout) = (b.lane(), self.ty.layout());
        let data = b.byte_index(self.data, lane, 16);
        let number = b.mov_bits::<U32, S32>(record);
        let plane = b.byte_index(self.plane, number, layout.plane);
        let plane = if of.by_two {
            let half = b.shr::<U32>(lane, APART.trailing_zeros());
            b.byte_index(plane, half, layout.plane / 2)
        } else {
            plane
        };
        let (data, plane) = (b.address(data), b.address(plane));
        let (tasks, lane) = (b.mov_bits(self.tasks), b.mov_bits(lane));
        let negative = b.sub::<S32>(0, lane);
        let pieces = b.mad::<S32>(tasks, of.pieces as i32, negative);
        Part { data, plane, pieces, records: b.sub::<S32>(tasks, record) }
    }

    /// Loads the records from number `first` on, where there are any.
    fn load(&self, b: &mut Builder, records: Records, into: &Carried, part: &Part, first: Var<S32>) {
        let layout = self.ty.layout();
        let first = b.get(first);
        let number = b.mov_bits::<U32, S32>(first);
        let mut from = |at: Val<U64>, bytes: u32| -> Global<U8> {
            let at = b.mad_wide(number, bytes, at);
            b.global_ptr(at)
        };
        let (data, plane) = (from(part.data, layout.data).cast::<U32>(), from(part.plane, layout.plane));
        // Lane l has piece l + 32 j if there is one; of the last only what belongs to these records.
        let rest = b.mad::<S32>(first, -(records.pieces as i32), part.pieces);
        for (j, into) in into.pieces.iter().enumerate() {
            let there = b.setp_lt(32 * j as i32, rest);
            let there = match ragged(b, records, j as u32) {
                Some(own) => b.and_pred(there, own),
                None => there,
            };
            b.if_(there, |b| {
                let piece: [Val<U32>; 4] = b.ld_vector(data.at(128 * j as u32), LoadKind::Streaming);
                into.iter().zip(piece).for_each(|(into, word)| b.set(*into, word));
            });
        }
        if layout.plane == 0 {
            return;
        }
        let has = b.setp_lt::<S32>(first, part.records);
        b.if_(has, |b| {
            if records.by_two {
                let words: [Val<U32>; 2] = b.ld_vector(plane.cast::<U32>(), LoadKind::Streaming);
                return into.plane.iter().flatten().zip(words).for_each(|(into, word)| b.set(*into, word));
            }
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
}
