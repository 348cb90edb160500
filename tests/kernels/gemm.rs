//! Products with several columns at once by tensor cores: each column has the bits that it has alone.

use kiln::driver::TensorMap;
use kiln_codegen::Kernel;
use kiln_codegen::kernels::{Gemm, GemmSliced, GemmTile, GemmWarpgroups, Phase, Products, Quantise};
use kiln_shape::TensorRole::{self, *};
use kiln_shape::sliced::Cut;
use kiln_shape::{ModelShape, WeightType, columns};

use crate::compare::assert_same_bits;
use crate::phases::shape;
use crate::quantised::Matrix;
use crate::random::Random;
use crate::support::{
    Arg, Gpu, Output, Table, Weights, any_schedule, chips, every_schedule, some_chips, some_schedules,
};

pub(crate) const EPS: f32 = 0.0625;
/// Sums of a tile.
const TILE: usize = 128 * 128;
pub(crate) const LAYER: u32 = 1;

/// A tile that products have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tile {
    Narrow,
    Wide,
    Sliced(Cut),
    Large,
    Double,
    Warpgroups,
    /// The last two, by blocks that do not wait for each other.
    Impatient,
    ImpatientWarpgroups,
}

impl Tile {
    const ALL: [Tile; 6] = [Tile::Narrow, Tile::Wide, Tile::SLICED, Tile::Large, Tile::Double, Tile::Warpgroups];
    /// One that every chip from sm_80 on has shared memory for.
    const SLICED: Tile = Tile::Sliced(Cut { row_warps: 1, parts: 1, slices: 2, stages: 3 });
    /// Those of many rows.
    const LARGE: [Tile; 3] = [Tile::Large, Tile::Double, Tile::Warpgroups];

    /// Eights of columns.
    const fn eights(self) -> u32 {
        match self {
            Tile::Narrow => 1,
            Tile::Wide => 2,
            Tile::Sliced(_) | Tile::Large => columns::TILE_EIGHTS,
            Tile::Double | Tile::Warpgroups | Tile::Impatient | Tile::ImpatientWarpgroups => 2 * columns::TILE_EIGHTS,
        }
    }

    /// Whether a device has it, for a model's shape and matrices of these types.
    fn takes(self, gpu: &Gpu, shape: ModelShape, types: &[WeightType]) -> bool {
        let all = types.iter().all(|ty| ty.block_len() == 256) && GemmWarpgroups::new(shape, types).check().is_ok();
        match self {
            Tile::Sliced(_) => gpu.device.sm() >= 80,
            _ => !self.is_of_warpgroups() || gpu.device.sm() == 90 && all,
        }
    }

    /// The shared memory that a launch gives besides the kernel's own.
    fn more(self, types: &[WeightType]) -> u32 {
        match self {
            Tile::Sliced(cut) => types.iter().map(|ty| cut.bytes(*ty)).max().unwrap_or(0),
            _ => 0,
        }
    }

    fn is_of_warpgroups(self) -> bool {
        matches!(self, Tile::Warpgroups | Tile::ImpatientWarpgroups)
    }
}

/// The types that tensor cores multiply.
fn quantised() -> impl Iterator<Item = WeightType> {
    WeightType::ALL.iter().copied().filter(|ty| ty.is_quantised())
}

/// A phase of a layer with its tensors.
pub(crate) struct Case {
    pub(crate) phase: Phase,
    pub(crate) shape: ModelShape,
    pub(crate) types: Vec<WeightType>,
    k: usize,
    gamma: Vec<f32>,
    /// Of the norm behind the residual stream.
    next_gamma: Vec<f32>,
    matrices: Vec<(TensorRole, Matrix)>,
    biases: Vec<(TensorRole, Vec<f32>)>,
}

impl Case {
    /// The matrices have `types` in turn.
    pub(crate) fn new(phase: Phase, shape: ModelShape, types: &[WeightType], random: &mut Random) -> Case {
        let ModelShape { hidden, ffn, .. } = shape;
        let (q, kv) = (shape.q_dim(), shape.kv_dim());
        let (k, roles): (u32, &[(TensorRole, u32)]) = match phase {
            Phase::Qkv => (hidden, &[(AttnQ, q), (AttnK, kv), (AttnV, kv)]),
            Phase::AttentionOutput => (q, &[(TensorRole::AttnOutput, hidden)]),
            Phase::GateUp => (hidden, &[(FfnGate, ffn), (FfnUp, ffn)]),
            Phase::Down => (ffn, &[(FfnDown, hidden)]),
            // An odd number of rows.
            Phase::Head => (hidden, &[(TensorRole::Output, 193)]),
        };
        let matrices = roles.iter().zip(types.iter().cycle());
        let matrices = matrices.map(|(&(role, n), &ty)| (role, Matrix::random(ty, n as usize, k as usize, random)));
        let matrices = matrices.collect();
        let biases: &[_] = if phase == Phase::Qkv { &[(AttnQBias, q), (AttnKBias, kv), (AttnVBias, kv)] } else { &[] };
        let biases = biases.iter().map(|&(role, n)| (role, random.floats(n as usize, 4.0))).collect();
        Case {
            phase,
            shape,
            types: types.to_vec(),
            k: k as usize,
            gamma: random.floats(k as usize, 1.0),
            next_gamma: random.floats(hidden as usize, 1.0),
            matrices,
            biases,
        }
    }

    pub(crate) fn rows(&self) -> usize {
        let rows: usize = self.matrices.iter().map(|(_, matrix)| matrix.n).sum();
        if self.phase == Phase::GateUp { rows / 2 } else { rows }
    }

    /// Large tiles of its matrices: gate and up share theirs.
    fn tiles(&self, tile: Tile) -> usize {
        let pair = self.phase == Phase::GateUp;
        let of = |matrix: &Matrix| {
            let rows = match tile {
                Tile::Sliced(cut) => 32 * cut.row_warps as usize,
                tile if tile.is_of_warpgroups() => 128,
                _ => columns::tile_rows(matrix.ty) as usize,
            };
            matrix.n.div_ceil(if pair { rows / 2 } else { rows })
        };
        self.matrices.iter().take(if pair { 1 } else { 3 }).map(|(_, matrix)| of(matrix)).sum()
    }

    fn norm(&self) -> Option<TensorRole> {
        match self.phase {
            Phase::Qkv => Some(AttnNorm),
            Phase::GateUp => Some(FfnNorm),
            Phase::Head => Some(OutputNorm),
            Phase::AttentionOutput | Phase::Down => None,
        }
    }

    /// The table, and what keeps its tensors alive.
    pub(crate) fn on(&self, gpu: &Gpu) -> OnDevice {
        let mut table = Table::new(LAYER + 1);
        let weights: Vec<Weights> = self.matrices.iter().map(|(_, matrix)| gpu.matrix(matrix)).collect();
        for ((role, _), weights) in self.matrices.iter().zip(&weights) {
            table.matrix(*role, LAYER, weights);
        }
        let mut vectors: Vec<_> = self.biases.iter().map(|(role, bias)| (*role, gpu.input(bias))).collect();
        vectors.extend(self.norm().map(|role| (role, gpu.input(&self.gamma))));
        if self.rounds() && self.norm() != Some(FfnNorm) {
            vectors.push((FfnNorm, gpu.input(&self.next_gamma)));
        }
        for (role, vector) in &vectors {
            table.vector(*role, LAYER, vector);
        }
        OnDevice { table: table.upload(gpu), _weights: weights, _vectors: vectors }
    }

    /// Column after column, by the kernel that decoding has, of which `gemv` checks everything.
    pub(crate) fn alone(&self, gpu: &Gpu, x: &[f32], y: &[f32]) -> Vec<f32> {
        let gpu = gpu.without_checks();
        let on = self.on(&gpu);
        let kernel = gpu.load(Products::new(self.shape, &self.types));
        let columns = x.chunks(self.k).zip(y.chunks(self.rows()));
        let each = columns.map(|(x, y)| {
            let (x, y) = (gpu.input(x), gpu.in_out(y));
            let args = [&on.table].map(Arg::from).into_iter().chain([
                LAYER.into(),
                (&x).into(),
                (&y).into(),
                EPS.into(),
                (self.rows() as u32).into(),
                (self.phase as u32).into(),
            ]);
            kernel.run([3, 1, 1], &args.collect::<Vec<_>>());
            y.read()
        });
        each.collect::<Vec<_>>().concat()
    }

    /// All columns at once, in such tiles, which so many blocks share.
    fn together(&self, gpu: &Gpu, on: &OnDevice, (x, y): (&[f32], &[f32]), tile: Tile, blocks: u32) -> Vec<f32> {
        let (count, rows) = (x.len() / self.k, self.rows());
        let padded = (count as u32).next_multiple_of(8 * tile.eights());
        let bytes = columns::bytes(self.k as u32, padded) as usize;
        let forms = [gpu.unwritten::<u8>(bytes), gpu.unwritten::<u8>(bytes)];
        let inverse = gpu.output::<f32>(count);
        let (x, y) = (gpu.input(x), gpu.in_out(y));
        let norm = self.norm().map_or(0, |role| role.table_index(LAYER));
        let quantise = gpu.load(Quantise::new(&self.shape, &self.types));
        for (form, len) in forms.iter().zip([256, 32]) {
            let types = self.matrices.iter().map(|(_, matrix)| matrix.ty);
            let wanted = types.filter(|ty| ty.block_len() == len).fold(0, |bits, ty| bits | 1 << ty.id());
            if wanted == 0 {
                continue;
            }
            let args: Vec<Arg> = vec![
                (&on.table).into(),
                norm.into(),
                (&x).into(),
                (self.k as u32).into(),
                EPS.into(),
                (count as u32).into(),
                wanted.into(),
                form.into(),
                (&inverse).into(),
            ];
            quantise.run([padded, 1, 1], &args);
        }
        let maps = match tile.is_of_warpgroups() {
            true => {
                let row = u64::from(self.k as u32 / 256 * columns::MAP_WORDS);
                let of = |bytes: u32| {
                    let (size, each) = ((row, u64::from(padded / 8)), (bytes / columns::MAP_WORD, columns::BOX_EIGHTS));
                    TensorMap::of_rows::<u64>(&gpu.device, forms[0].as_ptr().cast(), size, each).expect("a tensor map")
                };
                gpu.input(&columns::BOXES.map(|bytes| of(bytes).to_bytes()).concat())
            }
            false => gpu.input(&[0u8]),
        };
        let next = self.next(gpu, count, padded);
        let begun = gpu.unwritten::<f32>(blocks as usize * TILE);
        let begun_words = gpu.in_out(&vec![0u32; blocks as usize]);
        let (shape, types) = (self.shape, &self.types);
        let small = [padded / (8 * tile.eights()), rows as u32 / 16, 1];
        let (kernel, grid) = match tile {
            Tile::Narrow => (gpu.load(Gemm::narrow(shape, types)), small),
            Tile::Wide => (gpu.load(Gemm::wide(shape, types)), small),
            Tile::Sliced(Cut { parts: 1, .. }) => (gpu.load(GemmSliced::new(shape, types)), [blocks, 1, 1]),
            Tile::Sliced(_) => (gpu.load(GemmSliced::new(shape, types).halved()), [blocks, 1, 1]),
            Tile::Large => (gpu.load(self.large(gpu)), [blocks, 1, 1]),
            Tile::Double => (gpu.load(GemmTile::new(shape, types).double()), [blocks, 1, 1]),
            Tile::Impatient => (gpu.load(GemmTile::new(shape, types).double().with_looks(1)), [blocks, 1, 1]),
            Tile::Warpgroups => (gpu.load_own(GemmWarpgroups::new(shape, types)), [blocks, 1, 1]),
            Tile::ImpatientWarpgroups => {
                (gpu.load_own(GemmWarpgroups::new(shape, types).with_looks(1)), [blocks, 1, 1])
            }
        };
        let args: Vec<Arg> = vec![
            (&on.table).into(),
            LAYER.into(),
            (self.phase as u32).into(),
            (&forms[0]).into(),
            (&forms[1]).into(),
            (&maps).into(),
            (&inverse).into(),
            (count as u32).into(),
            (&y).into(),
            (rows as u32).into(),
        ];
        let args = args.into_iter().chain(next.args(self.rounds()));
        let mut args: Vec<Arg> = args.chain([(&begun).into(), (&begun_words).into()]).collect();
        if let Tile::Sliced(Cut { row_warps, slices, stages, .. }) = tile {
            args.extend([row_warps, slices, stages].map(Arg::from));
        }
        kernel.run_with(grid, tile.more(&self.types), &args);
        assert!(
            begun_words.read().iter().all(|word| *word == 0),
            "{tile:?} of {blocks} blocks on {gpu}: words are left"
        );
        let y = y.read();
        if self.rounds() {
            next.check(self, gpu, on, &y);
        }
        y
    }

    /// The tile of 64 columns that a bake has for the chip.
    fn large(&self, gpu: &Gpu) -> GemmTile {
        let tile = GemmTile::new(self.shape, &self.types);
        if gpu.device.sm() < 80 { tile.by_more_warps() } else { tile }
    }

    /// Whether the results go to a product that takes them as they are.
    fn rounds(&self) -> bool {
        matches!(self.phase, Phase::AttentionOutput | Phase::GateUp | Phase::Down)
    }

    /// Room for the results rounded, in both forms.
    fn next(&self, gpu: &Gpu, count: usize, padded: u32) -> Next {
        let super_blocks = self.rows().div_ceil(256);
        let bytes = columns::bytes(self.rows() as u32, padded) as usize;
        Next {
            forms: [gpu.in_out(&vec![0u8; bytes]), gpu.in_out(&vec![0u8; bytes])],
            squares: gpu.unwritten(count * super_blocks),
            inverse: gpu.in_out(&vec![1.0; count]),
            arrivals: gpu.in_out(&vec![0u32; padded as usize / 8 * (super_blocks + 1)]),
            // The norm of a layer that such results meet: behind down that of the next layer.
            norm: matches!(self.phase, Phase::AttentionOutput | Phase::Down).then_some(FfnNorm),
            types: WeightType::ALL.iter().copied().filter(|ty| self.types.contains(ty)).collect(),
        }
    }

    #[track_caller]
    fn check(&self, gpu: &Gpu, counts: &[usize], tiles: &[Tile], random: &mut Random) {
        let on = self.on(gpu);
        for &count in counts {
            let x = self.columns(count, random);
            let y = random.floats(count * self.rows(), 4.0);
            let alone = self.alone(gpu, &x, &y);
            for &tile in tiles.iter().filter(|tile| tile.takes(gpu, self.shape, &self.types)) {
                let across = count.div_ceil(8 * tile.eights() as usize);
                let tiles = (across * self.tiles(tile)) as u32;
                self.check_shared(gpu, (&on, &alone), (&x, &y), tile, tiles);
            }
        }
    }

    /// So many columns, of which some have outliers, and so a second plane.
    pub(crate) fn columns(&self, count: usize, random: &mut Random) -> Vec<f32> {
        let mut x = random.floats(count * self.k, 1.0);
        for column in x.chunks_mut(self.k).step_by(3) {
            column[random.below(self.k as u32) as usize] = 1e4;
        }
        x
    }

    /// So many blocks share the tiles.
    #[track_caller]
    fn check_shared(
        &self,
        gpu: &Gpu,
        (on, alone): (&OnDevice, &[f32]),
        (x, y): (&[f32], &[f32]),
        tile: Tile,
        blocks: u32,
    ) {
        let columns = x.len() / self.k;
        let what = format!("{:?}, {:?}, {columns} columns, {tile:?}, {blocks} blocks", self.phase, self.types);
        assert_same_bits(&format!("{what}, {gpu}"), &self.together(gpu, on, (x, y), tile, blocks), alone);
    }
}

/// What a product leaves for the next.
struct Next {
    forms: [Output<u8>; 2],
    squares: kiln::driver::DeviceBuffer<f32>,
    inverse: Output<f32>,
    arrivals: Output<u32>,
    norm: Option<TensorRole>,
    types: Vec<WeightType>,
}

impl Next {
    fn args(&self, rounds: bool) -> Vec<Arg> {
        let wanted = self.types.iter().fold(0, |bits, ty| bits | 1 << ty.id());
        vec![
            (if rounds { wanted } else { 0 }).into(),
            (&self.forms[0]).into(),
            (&self.forms[1]).into(),
            self.norm.map_or(0, |role| role.table_index(LAYER)).into(),
            EPS.into(),
            (&self.squares).into(),
            (&self.inverse).into(),
            (&self.arrivals).into(),
        ]
    }

    /// The rounded results are those of the kernel that rounds columns.
    #[track_caller]
    fn check(&self, case: &Case, gpu: &Gpu, on: &OnDevice, y: &[f32]) {
        let rows = case.rows();
        let count = y.len() / rows;
        let what = format!("{:?}, {:?}, {count} columns rounded, {gpu}", case.phase, case.types);
        let (y, inverse) = (gpu.input(y), gpu.output::<f32>(count));
        let quantise = gpu.load(Quantise::new(&case.shape, &case.types));
        for (form, len) in self.forms.iter().zip([256, 32]) {
            let types = self.types.iter().filter(|ty| ty.block_len() == len);
            let wanted = types.fold(0, |bits, ty| bits | 1 << ty.id());
            if wanted == 0 {
                continue;
            }
            let found = form.read();
            let expected = gpu.in_out(&vec![0u8; found.len()]);
            let args: Vec<Arg> = vec![
                (&on.table).into(),
                self.norm.map_or(0, |role| role.table_index(LAYER)).into(),
                (&y).into(),
                (rows as u32).into(),
                EPS.into(),
                (count as u32).into(),
                wanted.into(),
                (&expected).into(),
                (&inverse).into(),
            ];
            quantise.run([count.next_multiple_of(8) as u32, 1, 1], &args);
            assert_eq!(found, expected.read(), "{what}");
            assert_same_bits(&what, &self.inverse.read(), &inverse.read());
        }
        assert!(self.arrivals.read().iter().all(|count| *count == 0), "{what}: counters are left");
    }
}

pub(crate) struct OnDevice {
    pub(crate) table: kiln::driver::DeviceBuffer<u8>,
    _weights: Vec<Weights>,
    _vectors: Vec<(TensorRole, kiln::driver::DeviceBuffer<f32>)>,
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn a_column_has_the_bits_it_has_alone() {
    let mut random = Random::fresh();
    let phases = [Phase::Qkv, Phase::AttentionOutput, Phase::GateUp, Phase::Down];
    for gpu in some_chips(&mut random) {
        let from = random.below(4) as usize;
        for (ty, phase) in quantised().zip(phases.into_iter().cycle().skip(from)) {
            let shape = shape(kiln_shape::Family::Qwen2, 512, 4, 1, 64, 768);
            Case::new(phase, shape, &[ty], &mut random).check(&gpu, &[1, 9], &Tile::ALL, &mut random);
        }
    }
}

/// As many columns as a prompt has at once.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn all_columns_of_a_batch_have_the_same_bits() {
    use WeightType::{Q4_K, Q6_K, Q8_0};
    let mut random = Random::fresh();
    let cases: [(Phase, &[WeightType], ModelShape); 3] = [
        (Phase::Qkv, &[Q4_K, Q8_0, Q6_K], shape(kiln_shape::Family::Qwen2, 256, 1, 1, 64, 256)),
        (Phase::GateUp, &[Q4_K], shape(kiln_shape::Family::Qwen2, 256, 1, 1, 64, 96)),
        (Phase::Down, &[Q6_K], shape(kiln_shape::Family::Qwen2, 160, 1, 1, 64, 512)),
    ];
    for gpu in some_chips(&mut random) {
        for (phase, types, shape) in cases {
            Case::new(phase, shape, types, &mut random).check(&gpu, &[512], &Tile::ALL, &mut random);
        }
    }
}

#[test]
fn matrices_of_different_types_share_columns() {
    let mut random = Random::fresh();
    let types = [WeightType::Q8_0, WeightType::Q4_K, WeightType::Q6_K];
    let every = random.clone();
    every_schedule(&mut every.clone(), |gpu| {
        let shape = shape(kiln_shape::Family::Qwen2, 512, 4, 1, 64, 256);
        Case::new(Phase::Qkv, shape, &types, &mut random).check(gpu, &[5], &Tile::ALL, &mut random);
    });
}

#[test]
fn matrices_of_different_types_share_columns_on_every_chip() {
    let mut random = Random::fresh();
    let types = [WeightType::Q8_0, WeightType::Q4_K, WeightType::Q6_K];
    let shape = shape(kiln_shape::Family::Qwen2, 512, 4, 1, 64, 256);
    let case = Case::new(Phase::Qkv, shape, &types, &mut random);
    for gpu in chips() {
        case.check(&gpu, &[5], &Tile::ALL, &mut random);
    }
}

/// More columns and rows than a tile has.
#[test]
fn columns_of_several_tiles_have_the_same_bits() {
    let mut random = Random::fresh();
    let shape = shape(kiln_shape::Family::Qwen2, 160, 1, 1, 64, 256);
    let case = Case::new(Phase::AttentionOutput, shape, &[WeightType::Q8_0], &mut random);
    for gpu in chips() {
        case.check(&gpu, &[65, 129], &Tile::LARGE, &mut random);
    }
}

/// Blocks have equal shares of tiles, which end within tiles: some begin what others end, and some have the middle of one.
#[test]
fn any_number_of_blocks_shares_tiles() {
    let mut random = Random::fresh();
    blocks_share_tiles(&any_schedule(&mut random), &mut random);
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn any_number_of_blocks_shares_tiles_under_every_schedule() {
    let mut random = Random::fresh();
    some_schedules(&mut random.clone(), |gpu| blocks_share_tiles(gpu, &mut random));
}

fn blocks_share_tiles(gpu: &Gpu, random: &mut Random) {
    use WeightType::{Q4_K, Q5_K, Q6_K, Q8_0};
    let cases: [(Phase, &[WeightType], ModelShape, usize); 4] = [
        // Four tiles of three costs, of three super-blocks each.
        (Phase::Qkv, &[Q4_K, Q5_K, Q6_K], shape(kiln_shape::Family::Qwen2, 768, 4, 1, 64, 256), 3),
        (Phase::GateUp, &[Q4_K], shape(kiln_shape::Family::Qwen2, 512, 4, 1, 64, 128), 66),
        // A block of all has more tiles than have their places found at once.
        (Phase::GateUp, &[Q6_K], shape(kiln_shape::Family::Qwen2, 256, 4, 1, 64, 64 * 18), 1),
        // Rows end within a super-block.
        (Phase::Down, &[Q8_0], shape(kiln_shape::Family::Qwen2, 192, 3, 1, 64, 1120), 2),
    ];
    for (phase, types, shape, count) in cases {
        let case = Case::new(phase, shape, types, random);
        let on = case.on(gpu);
        let (x, y) = (case.columns(count, random), random.floats(count * case.rows(), 4.0));
        let alone = case.alone(gpu, &x, &y);
        let tiles = Tile::LARGE.into_iter().chain([Tile::Impatient, Tile::ImpatientWarpgroups]);
        for tile in tiles.filter(|tile| tile.takes(gpu, shape, types)) {
            let tiles = (count.div_ceil(8 * tile.eights() as usize) * case.tiles(tile)) as u32;
            // Also more than there are super-blocks.
            let some = if tiles > 8 { vec![1] } else { vec![1, 3, tiles + 1, 4 * tiles + 1] };
            for blocks in some {
                case.check_shared(gpu, (&on, &alone), (&x, &y), tile, blocks);
            }
        }
    }
}

/// Its rows are a launch parameter, in large tiles.
#[test]
fn the_head_of_several_columns_has_the_same_bits() {
    let mut random = Random::fresh();
    for gpu in chips() {
        for ty in [WeightType::Q6_K, WeightType::Q8_0] {
            let shape = shape(kiln_shape::Family::Qwen2, 256, 4, 1, 64, 256);
            Case::new(Phase::Head, shape, &[ty], &mut random).check(&gpu, &[3], &Tile::LARGE, &mut random);
        }
    }
}

/// Rows of many super-blocks go through several rounds of folding; those of 1120 end within one.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn long_and_cut_rows_have_the_same_bits() {
    let mut random = Random::fresh();
    for gpu in chips() {
        for ty in quantised() {
            let shape = shape(kiln_shape::Family::Qwen2, 32, 1, 1, 64, 11008);
            Case::new(Phase::Down, shape, &[ty], &mut random).check(&gpu, &[2], &Tile::ALL[..2], &mut random);
        }
        for ty in quantised().filter(|ty| ty.block_len() == 32) {
            let shape = shape(kiln_shape::Family::Qwen2, 32, 1, 1, 64, 1120);
            Case::new(Phase::Down, shape, &[ty], &mut random).check(&gpu, &[3, 8], &Tile::ALL, &mut random);
        }
    }
}

/// Tiles by products of warpgroups, whose matrices differ in type, with many super-blocks, odd rows and columns.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn products_of_warpgroups_have_the_same_bits() {
    use WeightType::{Q4_K, Q5_K, Q6_K};
    let mut random = Random::fresh();
    let cases: [(Phase, &[WeightType], ModelShape, usize); 5] = [
        (Phase::Qkv, &[Q4_K, Q5_K, Q6_K], shape(kiln_shape::Family::Qwen2, 1280, 4, 1, 64, 256), 5),
        (Phase::GateUp, &[Q4_K], shape(kiln_shape::Family::Qwen2, 768, 4, 1, 64, 256), 131),
        (Phase::GateUp, &[Q6_K], shape(kiln_shape::Family::Qwen2, 256, 4, 1, 64, 256), 3),
        (Phase::Down, &[Q6_K], shape(kiln_shape::Family::Qwen2, 256, 4, 1, 64, 1792), 130),
        (Phase::Head, &[Q5_K], shape(kiln_shape::Family::Qwen2, 512, 4, 1, 64, 256), 2),
    ];
    let every = random.clone();
    some_schedules(&mut every.clone(), |gpu| {
        for (phase, types, shape, count) in cases {
            Case::new(phase, shape, types, &mut random).check(gpu, &[count], &[Tile::Warpgroups], &mut random);
        }
    });
}

/// A block has all tiles, one after the other: the next one's first super-blocks are copied while this one's last are
/// multiplied and its results rounded, unless tiles have too few.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn tiles_of_warpgroups_that_go_on_have_the_same_bits() {
    use WeightType::{Q4_K, Q6_K};
    let mut random = Random::fresh();
    let cases: [(Phase, &[WeightType], ModelShape, usize); 4] = [
        // Two super-blocks of results, of which the first is rounded while tiles are left.
        (Phase::Down, &[Q4_K], shape(kiln_shape::Family::Qwen2, 512, 4, 1, 64, 512), 2),
        (Phase::GateUp, &[Q6_K], shape(kiln_shape::Family::Qwen2, 512, 4, 1, 64, 256), 131),
        // More tiles than have their places found at once, of two super-blocks and of one.
        (Phase::GateUp, &[Q4_K], shape(kiln_shape::Family::Qwen2, 512, 4, 1, 64, 64 * 20), 1),
        (Phase::GateUp, &[Q4_K], shape(kiln_shape::Family::Qwen2, 256, 4, 1, 64, 64 * 20), 3),
    ];
    let every = random.clone();
    some_schedules(&mut every.clone(), |gpu| {
        for (phase, types, shape, count) in
            cases.into_iter().filter(|(_, types, shape, _)| Tile::Warpgroups.takes(gpu, *shape, types))
        {
            let case = Case::new(phase, shape, types, &mut random);
            let on = case.on(gpu);
            let (x, y) = (case.columns(count, &mut random), random.floats(count * case.rows(), 4.0));
            let alone = case.alone(gpu, &x, &y);
            for blocks in [1, 2] {
                case.check_shared(gpu, (&on, &alone), (&x, &y), Tile::Warpgroups, blocks);
            }
        }
    });
}

/// Slices of rows, as launches may cut them: with a stage more than slices, and fewer slices than the block has warps for.
#[test]
fn slices_of_rows_have_the_same_bits() {
    let mut random = Random::fresh();
    slices_of_rows(&any_schedule(&mut random), &mut random);
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn slices_of_rows_have_the_same_bits_under_every_schedule() {
    let mut random = Random::fresh();
    some_schedules(&mut random.clone(), |gpu| slices_of_rows(gpu, &mut random));
}

fn slices_of_rows(gpu: &Gpu, random: &mut Random) {
    use WeightType::{Q4_K, Q5_K, Q6_K, Q8_0};
    let cases: [(Phase, &[WeightType], ModelShape, usize); 4] = [
        (Phase::Qkv, &[Q4_K, Q5_K, Q6_K], shape(kiln_shape::Family::Qwen2, 1280, 4, 1, 64, 256), 5),
        (Phase::GateUp, &[Q4_K], shape(kiln_shape::Family::Qwen2, 2304, 4, 1, 64, 192), 66),
        (Phase::Down, &[Q8_0], shape(kiln_shape::Family::Qwen2, 160, 3, 1, 64, 1120), 17),
        (Phase::Head, &[Q6_K], shape(kiln_shape::Family::Qwen2, 768, 4, 1, 64, 256), 3),
    ];
    // With the most stages and the most rows among them, and warps that have half of the columns.
    let cuts = [(2, 1, 4, 5), (1, 2, 6, 8), (1, 1, 7, 8), (3, 2, 2, 4), (2, 1, 2, 3), (1, 2, 3, 5), (6, 1, 2, 3)];
    let cuts = cuts.map(|(row_warps, parts, slices, stages)| Tile::Sliced(Cut { row_warps, parts, slices, stages }));
    for ((phase, types, shape, count), cuts) in cases.into_iter().zip(cuts.windows(4)) {
        Case::new(phase, shape, types, random).check(gpu, &[count], cuts, random);
    }
}
