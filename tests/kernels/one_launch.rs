//! A model's attention in one launch, whose last blocks put the units together: by f32 chunks in exact numerics, by tensor
//! cores over an f16 cache in fast ones.

use kiln_codegen::KvType;
use kiln_codegen::kernels::{Attention, AttentionBatch, Quantise};
use kiln_shape::table::KV_CHUNK;
use kiln_shape::units::{self, BatchCut};
use kiln_shape::{ModelShape, Numerics, WeightType, presets};

use crate::attention::{BOUND, Batch, Case, LAYER};
use crate::common;
use crate::compare::{assert_close, assert_same_bits};
use crate::kv::KV_TYPES;
use crate::random::Random;
use crate::support::{Arg, Gpu, every_schedule, gpu, some_chips};

/// Weights are rounded to f16, each by 2^-12 of itself at most on average; scores are of f32 queries but for 2^-22.
const FAST_BOUND: f64 = 4e-4;

/// A launch over a case, and what it left.
pub(crate) struct Launch<'a> {
    case: &'a Case,
    numerics: Numerics,
    /// Blocks for each KV head beyond those with a unit.
    more: u32,
    /// What it is told of the length.
    length: u32,
    /// How often it runs, one after another.
    times: u32,
}

impl<'a> Launch<'a> {
    pub(crate) fn of(case: &'a Case, numerics: Numerics) -> Launch<'a> {
        Launch { case, numerics, more: 0, length: case.length, times: 1 }
    }

    fn kernel(&self) -> Attention {
        let Case { heads, kv_heads, head_dim, kv, .. } = *self.case;
        let shape = ModelShape { heads, kv_heads, head_dim, ..presets::PRESETS[0].shape };
        Attention::new(shape, kv, self.numerics)
    }

    /// The result, and the error word.
    pub(crate) fn run(&self, gpu: &Gpu) -> (Vec<f32>, u32) {
        let (case, kernel) = (self.case, self.kernel());
        let units = kernel.units();
        let max_chunks = case.length.div_ceil(KV_CHUNK).max(1);
        let kept = case.heads * units.up_to(max_chunks * KV_CHUNK) * units.partial(case.head_dim);
        let kernel = gpu.load(kernel);
        let (q, out, error) = (gpu.input(&case.q), gpu.output::<f32>(case.q.len()), gpu.in_out(&[0u32]));
        let (_chunks, addresses) = case.chunked(gpu);
        let (table, partials) = (gpu.input(&addresses), gpu.unwritten::<f32>(kept as usize));
        let (arrivals, length) = (gpu.in_out(&vec![0u32; case.kv_heads as usize]), gpu.input(&[self.length]));
        let mut args = vec![Arg::from(&q), (&table).into(), LAYER.into(), case.length.into(), (&out).into()];
        args.extend([Arg::from(&partials), max_chunks.into(), (&arrivals).into(), (&length).into(), (&error).into()]);
        let blocks = units.count(case.length.min(self.length)).max(1) + self.more;
        for _ in 0..self.times {
            kernel.run([case.kv_heads, blocks, 1], &args);
        }
        assert!(arrivals.read().iter().all(|count| *count == 0), "counters are left at {:?}", arrivals.read());
        (out.read(), error.read()[0])
    }

    /// The result, held to float64 and, in exact numerics, to the kernels of `ops`.
    #[track_caller]
    fn check(&self, gpu: &Gpu) -> Vec<f32> {
        let what = format!("{}, {}, {gpu}", self.case.what(), self.numerics);
        let (found, error) = self.run(gpu);
        assert_eq!(error, 0, "{what}");
        let rounds = self.numerics == Numerics::Fast && self.case.kv == KvType::F16;
        assert_close(&what, &found, &self.case.expected(), if rounds { FAST_BOUND } else { BOUND });
        found
    }
}

/// The results of the last `columns` positions of a case, each with the case's queries times its number, in one launch: all
/// attended to together, and each alone.
fn batch(gpu: &Gpu, case: &Case, columns: u32) -> [Vec<f32>; 2] {
    let first = case.length - columns + 1;
    let (together, error) = launch_batch(gpu, case, columns, first);
    assert_eq!(error, 0, "{}", case.what());
    let alone = (0..columns).flat_map(|column| {
        let case = case.with_queries(scaled(case, column).collect());
        Launch { length: first + column, ..Launch::of(&case, Numerics::Fast) }.run(gpu).0
    });
    [together, alone.collect()]
}

/// A column's queries.
fn scaled(case: &Case, column: u32) -> impl Iterator<Item = f32> {
    case.q.iter().map(move |q| q * (column + 1) as f32)
}

/// So many columns together, told of the length up to the first: the results, whose rounded ones are checked, and the error
/// word.
fn launch_batch(gpu: &Gpu, case: &Case, columns: u32, first: u32) -> (Vec<f32>, u32) {
    let Case { heads, kv_heads, head_dim, length, .. } = *case;
    let shape = ModelShape { heads, kv_heads, head_dim, ..presets::PRESETS[0].shape };
    let kernel = AttentionBatch::new(shape, &TYPES);
    let blocks = BatchCut::of(shape.group()).blocks(columns);
    let (q_dim, qkv_dim) = (case.q.len(), case.q.len() + 2 * (kv_heads * head_dim) as usize);
    // What lies behind a column's queries is not read.
    let rest = || std::iter::repeat_n(f32::NAN, qkv_dim - q_dim);
    let q: Vec<f32> = (0..columns).flat_map(|column| scaled(case, column).chain(rest())).collect();
    let (q, out) = (gpu.input(&q), gpu.output::<f32>(q_dim * columns as usize));
    let (_chunks, addresses) = case.chunked(gpu);
    let (table, length_at, error) = (gpu.input(&addresses), gpu.input(&[first]), gpu.in_out(&[0u32]));
    let mut args = vec![Arg::from(&q), (&table).into(), LAYER.into(), length.into(), (&out).into()];
    args.extend([columns.into(), Arg::from(&length_at), (&error).into()]);
    let wanted = if units::batch_rounds(&shape) { TYPES.iter().fold(0, |bits, ty| bits | 1 << ty.id()) } else { 0 };
    let bytes = kiln_shape::columns::bytes(q_dim as u32, columns.next_multiple_of(8)) as usize;
    let forms = [(); 2].map(|()| gpu.in_out(&vec![0u8; bytes]));
    args.extend([wanted.into(), Arg::from(&forms[0]), (&forms[1]).into()]);
    gpu.load(kernel).run([kv_heads, blocks, 1], &args);
    let error = error.read()[0];
    if wanted != 0 && error == 0 {
        for (ty, found) in TYPES.into_iter().zip(&forms) {
            let rounded = rounded(gpu, &shape, ty, &out.read());
            assert_eq!(found.read(), rounded, "{}, {columns} columns rounded for {ty}, {gpu}", case.what());
        }
    }
    (out.read(), error)
}

/// Types that results are rounded for: with one scale for 256, and with one for each 32.
const TYPES: [WeightType; 2] = [WeightType::Q4_K, WeightType::Q8_0];

/// Columns as the kernel that rounds them has them for a type.
fn rounded(gpu: &Gpu, shape: &ModelShape, ty: WeightType, y: &[f32]) -> Vec<u8> {
    let count = y.len() as u32 / shape.q_dim();
    let padded = count.next_multiple_of(8);
    let (x, inverse, table) = (gpu.input(y), gpu.output::<f32>(count as usize), gpu.input(&[0u64; 8]));
    let to = gpu.in_out(&vec![0u8; kiln_shape::columns::bytes(shape.q_dim(), padded) as usize]);
    let mut args = vec![Arg::from(&table), 0u32.into(), (&x).into(), shape.q_dim().into(), 1e-6f32.into()];
    args.extend([count.into(), (1u32 << ty.id()).into(), Arg::from(&to), (&inverse).into()]);
    gpu.load(Quantise::new(shape, &TYPES)).run([padded, 1, 1], &args);
    to.read()
}

/// Groups that fill the rows of a block and others; lengths at the ends of chunks, and, of many KV heads, where runs of
/// several chunks begin.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn neighbouring_positions_have_the_bits_of_each_alone() {
    let mut random = Random::fresh();
    let cases = [
        (2, 4, 64, 34, 5),
        (1, 8, 128, 65, 3),
        (1, 12, 64, 40, 7),
        (1, 3, 64, 6, 6),
        (2, 4, 64, 70, 37),
        (16, 1, 64, 770, 4),
        (32, 1, 64, 310, 80),
    ];
    for (kv_heads, group, head_dim, length, columns) in cases {
        let case = Case::new(kv_heads, group, head_dim, KvType::F16, length, &mut random);
        for gpu in some_chips(&mut random) {
            let [together, alone] = batch(&gpu, &case, columns);
            assert_same_bits(&format!("{}, {columns} columns, {gpu}", case.what()), &together, &alone);
        }
    }
    let case = Case::new(1, 4, 64, KvType::F16, 70, &mut random);
    every_schedule(&mut random.clone(), |gpu| {
        let [together, alone] = batch(gpu, &case, 7);
        assert_same_bits(&format!("{}, {gpu}", case.what()), &together, &alone);
    });
}

/// Groups of each size, heads of each size, and units of several chunks for several heads of a position.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn batches_of_every_head_size_and_group_have_the_bits_of_each_alone() {
    let mut random = Random::fresh();
    let all = [64, 128, 192, 256].map(|head_dim| [1, 2, 5, 7, 8, 9, 16].map(|group| (1, group, head_dim, 50, 20)));
    let long = [(33, 2, 64, 300, 50), (33, 4, 64, 290, 18), (33, 12, 64, 260, 5)];
    for (kv_heads, group, head_dim, length, columns) in all.into_iter().flatten().chain(long) {
        let case = Case::new(kv_heads, group, head_dim, KvType::F16, length, &mut random);
        let [together, alone] = batch(&gpu(), &case, columns);
        assert_same_bits(&format!("{}, {columns} columns", case.what()), &together, &alone);
    }
}

/// Behind a prefix of thousands, some on each side of where units become longer.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn positions_behind_thousands_have_the_bits_of_each_alone() {
    let mut random = Random::fresh();
    // Up to 4096 positions a unit has one chunk, or two, and behind them one more.
    for (kv_heads, group, head_dim) in [(3, 2, 64), (6, 1, 128)] {
        let case = Case::new(kv_heads, group, head_dim, KvType::F16, 4099, &mut random);
        for gpu in some_chips(&mut random) {
            let [together, alone] = batch(&gpu, &case, 5);
            assert_same_bits(&format!("{}, {gpu}", case.what()), &together, &alone);
        }
    }
}

/// Its last positions.
#[test]
#[ignore = "half a minute in a debug build; .ci/long runs it in a release build"]
fn the_longest_context_of_a_published_model_has_the_bits_of_each_position_alone() {
    let mut random = Random::fresh();
    for (kv_heads, group, head_dim) in [(1, 8, 128), (2, 4, 64)] {
        let case = Case::new(kv_heads, group, head_dim, KvType::F16, 40960, &mut random);
        for gpu in some_chips(&mut random) {
            let [together, alone] = batch(&gpu, &case, 5);
            assert_same_bits(&format!("{}, {gpu}", case.what()), &together, &alone);
        }
    }
}

#[test]
fn a_batch_beyond_the_cache_gives_zeros() {
    let mut random = Random::fresh();
    let case = Case::new(2, 4, 64, KvType::F16, 40, &mut random);
    for length in [37, u32::MAX - 2] {
        let (found, error) = launch_batch(&gpu(), &case, 5, length);
        assert!(error == 3 && found.iter().all(|value| *value == 0.0), "up to {length} and four more: {error}");
    }
}

/// Zero times it is not zero.
#[test]
fn what_is_not_finite_at_a_later_position_does_not_reach_the_rows_before() {
    let mut random = Random::fresh();
    for (kv_heads, group, length, columns) in [(2, 4, 34, 5), (1, 8, 65, 3), (1, 1, 20, 20)] {
        let mut case = Case::new(kv_heads, group, 64, KvType::F16, length, &mut random);
        let spoilt = columns - 1 - random.below(2).min(columns - 2);
        for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            case.spoil(length - columns + spoilt, value);
            let [together, alone] = batch(&gpu(), &case, columns);
            let before = (spoilt * kv_heads * group * 64) as usize;
            assert!(together[..before].iter().all(|value| value.is_finite()), "{}", case.what());
            let what = format!("{}, {columns} columns, {value} in number {spoilt}", case.what());
            assert_same_bits(&what, &together, &alone);
            let reached = &together[before..before + (group * 64) as usize];
            assert!(reached.iter().any(|value| !value.is_finite()), "{what}: its own row");
        }
    }
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn every_head_size_and_group_matches_float64() {
    let mut random = Random::fresh();
    for head_dim in [64, 128, 256] {
        for group in [1, 2, 4, 5, 7, 8, 12] {
            let length = 1 + random.below(200);
            let case = Case::new(2, group, head_dim, KvType::F16, length, &mut random);
            Launch::of(&case, Numerics::Fast).check(&gpu());
            if !common::on_gpu() {
                Launch::of(&case, Numerics::Fast).check(&Gpu::of_chip(7, 5));
            }
        }
    }
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn every_length_matches_float64() {
    let mut random = Random::fresh();
    for length in [1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1000] {
        let case = Case::new(2, 3, [64, 128][random.below(2) as usize], KvType::F16, length, &mut random);
        Launch { more: random.below(3), ..Launch::of(&case, Numerics::Fast) }.check(&gpu());
    }
    // Many KV heads have few units each: runs of several chunks, the last of them short.
    for length in [769, 1567] {
        let case = Case::new(16, 1, 64, KvType::F16, length, &mut random);
        Launch::of(&case, Numerics::Fast).check(&gpu());
    }
}

#[test]
fn exact_numerics_give_the_bits_of_two_launches() {
    let mut random = Random::fresh();
    for (length, kv) in [(1, KvType::F16), (128, KvType::F32), (129, KvType::F16), (500, KvType::F32)] {
        let case = [Case::new(2, 3, 64, kv, length, &mut random)];
        let one = Launch::of(&case[0], Numerics::Exact).check(&gpu());
        let two =
            if length <= KV_CHUNK { case[0].run(&gpu(), true, true) } else { Batch::new(&case, 0).run(&gpu(), true).0 };
        assert_same_bits(&case[0].what(), &one, &two);
        if kv == KvType::F32 {
            assert_same_bits("fast numerics", &Launch::of(&case[0], Numerics::Fast).check(&gpu()), &one);
        }
    }
}

/// Whoever arrives last, and however many blocks have nothing to do.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn every_schedule_and_grid_gives_the_same_bits() {
    let mut random = Random::fresh();
    let fast = [(2, 20), (2, 300), (16, 800)].map(|(kv_heads, length)| (KvType::F16, Numerics::Fast, kv_heads, length));
    for (kv, numerics, kv_heads, length) in fast.into_iter().chain([(KvType::F32, Numerics::Exact, 2, 300)]) {
        let case = Case::new(kv_heads, 2, 64, kv, length, &mut random);
        let expected = Launch::of(&case, numerics).check(&gpu());
        every_schedule(&mut random.clone(), |gpu| {
            let more = random.below(9);
            let (found, error) = Launch { more, times: 2, ..Launch::of(&case, numerics) }.run(gpu);
            assert_eq!(error, 0);
            assert_same_bits(&format!("{}, {more} blocks more, {gpu}", case.what()), &found, &expected);
        });
    }
}

#[test]
#[ignore = "half a minute in a debug build; .ci/long runs it in a release build"]
fn the_longest_context_of_a_published_model_matches_float64() {
    let case = Case::new(1, 8, 128, KvType::F16, 40960, &mut Random::fresh());
    Launch::of(&case, Numerics::Fast).check(&gpu());
}

#[test]
fn an_empty_cache_and_a_length_beyond_it_give_zeros() {
    let mut random = Random::fresh();
    for numerics in Numerics::ALL {
        for kv in KV_TYPES {
            let case = Case::new(2, 2, 64, kv, 40, &mut random);
            for (length, error) in [(0, 0), (41, 3), (u32::MAX, 3)] {
                let found = Launch { length, ..Launch::of(&case, numerics) }.run(&gpu());
                assert_eq!(found, (vec![0.0; 256], error), "length {length}, {kv:?}, {numerics}");
            }
        }
    }
}

/// Scores of thousands of units: exponentials of differences underflow, and nothing overflows.
#[test]
fn one_position_may_take_all_the_weight() {
    let mut random = Random::fresh();
    let mut case = Case::new(1, 2, 64, KvType::F16, 200, &mut random);
    case.q.iter_mut().for_each(|q| *q *= 1000.0);
    let (found, _) = Launch::of(&case, Numerics::Fast).run(&gpu());
    assert_close(&case.what(), &found, &case.expected(), 3e-3);
}
