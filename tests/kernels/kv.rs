//! Writing keys and values into caches.

use kiln_codegen::KvType;
use kiln_codegen::kernels::{KvCacheScatter, QkNormRopeKvWrite};
use kiln_shape::TensorRole::{AttnKNorm, AttnQNorm};
use kiln_shape::table::KV_CHUNK;
use kiln_shape::{Family, ModelShape, TensorRole};
pub(crate) use kiln_testing::kv::{decode, encode};

use crate::compare::assert_close;
use crate::norm::rms_norm;
use crate::random::Random;
use crate::rounding;
use crate::support::{Arg, Gpu, NULL, Output, Table, every_schedule};

pub(crate) const KV_TYPES: [KvType; 2] = [KvType::F16, KvType::F32];

#[test]
fn scatter_writes_one_position_and_nothing_else() {
    let mut random = Random::fresh();
    every_schedule(&mut random.clone(), |gpu| {
        for kv in KV_TYPES {
            for (heads, head_dim, max_seq) in [(1u32, 64u32, 1u32), (3, 80, 7), (2, 256, 130), (5, 96, 3)] {
                for in_memory in [false, true] {
                    let position = [0, max_seq - 1, random.below(max_seq)][random.below(3) as usize];
                    let what = format!("{heads} heads of {head_dim}, position {position} of {max_seq}, {kv:?}, {gpu}");
                    let kernel = gpu.load(KvCacheScatter::new(heads, head_dim, max_seq).with_kv_type(kv));
                    let rows = [0, 1].map(|_| random.floats((heads * head_dim) as usize, 3.0));
                    let before = [0, 1].map(|_| random.floats((heads * max_seq * head_dim) as usize, 3.0));
                    let caches = before.each_ref().map(|cache| gpu.in_out(&encode(kv, cache)));
                    let [k, v] = rows.each_ref().map(|row| gpu.input(row));
                    let (error, at) = (gpu.in_out(&[0u32]), gpu.input(&[position]));
                    let mut args = vec![Arg::from(&k), Arg::from(&v), (&caches[0]).into(), (&caches[1]).into()];
                    let by_value = if in_memory { u32::MAX } else { position };
                    args.extend([by_value.into(), if in_memory { Arg::from(&at) } else { NULL }, (&error).into()]);
                    kernel.run([heads, 1, 1], &args);
                    assert_eq!(error.read(), [0]);
                    for ((cache, mut expected), row) in caches.iter().zip(before).zip(&rows) {
                        for (head, row) in row.chunks(head_dim as usize).enumerate() {
                            let first = (head as u32 * max_seq + position) * head_dim;
                            expected[first as usize..][..head_dim as usize].copy_from_slice(row);
                        }
                        assert_eq!(cache.read(), encode(kv, &expected), "{what}");
                    }
                }
            }
        }
    });
}

#[test]
fn scatter_beyond_the_cache_sets_the_error_word_and_writes_nothing() {
    every_schedule(&mut Random::fresh(), |gpu| {
        let kernel = gpu.load(KvCacheScatter::new(2, 64, 5));
        for position in [5, u32::MAX] {
            let row = gpu.input(&[1.0f32; 128]);
            let caches = [0, 1].map(|_| gpu.in_out(&[0.5f32; 2 * 5 * 64]));
            let (error, at) = (gpu.in_out(&[0u32]), gpu.input(&[position]));
            for (by_value, at) in [(position, NULL), (0, Arg::from(&at))] {
                let row = Arg::from(&row);
                let args = [row, row, (&caches[0]).into(), (&caches[1]).into(), by_value.into(), at, (&error).into()];
                kernel.run([2, 1, 1], &args);
                assert_eq!(error.read(), [2]);
                assert!(caches.iter().all(|cache| cache.read() == [0.5; 2 * 5 * 64]), "{gpu}");
            }
        }
    });
}

/// Positions that a chunked cache and its RoPE tables have in these tests: two chunks.
const CAPACITY: u32 = 2 * KV_CHUNK;
const LAYERS: u32 = 2;
const EPS: f32 = 0.01;

/// A position's keys and values written after the QKV projection.
struct Written {
    qkv: Vec<f32>,
    chunks: [Output<u8>; 2],
    error: u32,
}

struct Case {
    shape: ModelShape,
    kv: KvType,
    qkv: Vec<f32>,
    gammas: [Vec<f32>; 2],
    angles: [Vec<f32>; 2],
}

impl Case {
    fn new(family: Family, heads: u32, kv_heads: u32, head_dim: u32, kv: KvType, random: &mut Random) -> Case {
        let shape = ModelShape {
            qkv_bias: family.has_qkv_bias(),
            qk_norm: family.has_qk_norm(),
            rope: family.rope(),
            hidden: 256,
            ffn: 256,
            heads,
            kv_heads,
            head_dim,
            layers: LAYERS,
            vocab: 1,
            tied_head: true,
            rope_theta: 1e6,
            rms_eps: EPS,
            context: CAPACITY,
        };
        let angle = |position: u32, pair: u32| {
            f64::from(position) * shape.rope_theta.powf(-2.0 * f64::from(pair) / f64::from(head_dim))
        };
        let table = |turn: fn(f64) -> f64| {
            (0..CAPACITY).flat_map(|p| (0..head_dim / 2).map(move |pair| turn(angle(p, pair)) as f32)).collect()
        };
        Case {
            shape,
            kv,
            qkv: random.floats(((heads + 2 * kv_heads) * head_dim) as usize, 2.0),
            gammas: [0, 1].map(|_| random.floats(head_dim as usize, 1.5)),
            angles: [table(f64::cos), table(f64::sin)],
        }
    }

    /// Floats of a chunk.
    fn chunk_len(&self) -> usize {
        (LAYERS * 2 * self.shape.kv_heads * KV_CHUNK * self.shape.head_dim) as usize
    }

    fn run(&self, gpu: &Gpu, layer: u32, position: u32) -> Written {
        let kernel = gpu.load(QkNormRopeKvWrite::new(self.shape, self.kv));
        let gammas = self.gammas.each_ref().map(|gamma| gpu.input(gamma));
        let mut table = Table::new(LAYERS);
        for (role, gamma) in [(AttnQNorm, &gammas[0]), (AttnKNorm, &gammas[1])] {
            if self.shape.qk_norm {
                table.vector(role as TensorRole, layer, gamma);
            }
        }
        let table = table.upload(gpu);
        let qkv = gpu.in_out(&self.qkv);
        let [cos, sin] = self.angles.each_ref().map(|angles| gpu.input(angles));
        let chunks = [0, 1].map(|_| gpu.in_out(&encode(self.kv, &vec![0.25; self.chunk_len()])));
        let addresses = chunks.each_ref().map(|chunk| match Arg::from(chunk) {
            Arg::Address(address) => address,
            _ => unreachable!("a buffer has an address"),
        });
        let (addresses, state) = (gpu.input(&addresses), gpu.in_out(&[position, 77, 0]));
        let mut args = vec![Arg::from(&table), layer.into(), (&qkv).into(), (&cos).into(), (&sin).into()];
        args.extend([Arg::from(EPS), (&addresses).into(), CAPACITY.into(), (&state).into()]);
        let heads = self.shape.heads + 2 * self.shape.kv_heads;
        kernel.run([heads.div_ceil(4), 1, 1], &args);
        let state = state.read();
        assert_eq!(state[..2], [position, 77]);
        Written { qkv: qkv.read(), chunks, error: state[2] }
    }

    /// Q, K and V as they should be.
    fn expected(&self, position: u32) -> [Vec<f64>; 3] {
        let ModelShape { heads, kv_heads, head_dim, .. } = self.shape;
        let (dim, half) = (head_dim as usize, head_dim as usize / 2);
        let turned = |head: &[f32], gamma: &[f32]| {
            let head: Vec<f64> = head.iter().map(|x| f64::from(*x)).collect();
            let head = if self.shape.qk_norm { rms_norm(&head, gamma, EPS.into()) } else { head };
            let mut turned = head.clone();
            for pair in 0..half {
                let frequency = self.shape.rope_theta.powf(-2.0 * pair as f64 / f64::from(head_dim));
                let (sin, cos) = (f64::from(position) * frequency).sin_cos();
                turned[pair] = head[pair] * cos - head[pair + half] * sin;
                turned[pair + half] = head[pair + half] * cos + head[pair] * sin;
            }
            turned
        };
        let rows: Vec<&[f32]> = self.qkv.chunks(dim).collect();
        let (q, rest) = rows.split_at(heads as usize);
        let (k, v) = rest.split_at(kv_heads as usize);
        [
            q.iter().flat_map(|head| turned(head, &self.gammas[0])).collect(),
            k.iter().flat_map(|head| turned(head, &self.gammas[1])).collect(),
            v.iter().flat_map(|head| head.iter().map(|x| f64::from(*x))).collect(),
        ]
    }

    fn check(&self, gpu: &Gpu, layer: u32, position: u32) {
        let ModelShape { qk_norm, heads, kv_heads, head_dim, .. } = self.shape;
        let what =
            format!("qk_norm {qk_norm}, {heads}/{kv_heads} x {head_dim}, {:?}, position {position}, {gpu}", self.kv);
        let written = self.run(gpu, layer, position);
        assert_eq!(written.error, 0, "{what}");
        let [q, k, v] = self.expected(position);
        let turned = rounding::turned_head(head_dim as usize);
        assert_close(&format!("q: {what}"), &written.qkv[..q.len()], &q, turned);
        // K and V of the projection stay what they were.
        assert_eq!(written.qkv[q.len()..], self.qkv[q.len()..], "{what}");
        let bound = if self.kv == KvType::F16 { rounding::in_f16(turned) } else { turned };
        for (index, chunk) in written.chunks.iter().enumerate() {
            let mut found = decode(self.kv, &chunk.read());
            if index as u32 == position / KV_CHUNK {
                for (half, expected) in [(0, &k), (1, &v)] {
                    for head in 0..kv_heads {
                        let row = ((layer * 2 + half) * kv_heads + head) * KV_CHUNK + position % KV_CHUNK;
                        let row = &mut found[(row * head_dim) as usize..][..head_dim as usize];
                        let expected = &expected[(head * head_dim) as usize..][..head_dim as usize];
                        assert_close(&format!("half {half}, head {head}: {what}"), row, expected, bound);
                        row.fill(0.25);
                    }
                }
            }
            assert!(found.iter().all(|x| *x == 0.25), "written elsewhere in chunk {index}: {what}");
        }
    }
}

#[test]
fn heads_are_normalised_turned_and_written_at_their_position() {
    let mut random = Random::fresh();
    every_schedule(&mut random.clone(), |gpu| {
        for (family, heads, kv_heads, head_dim) in
            [(Family::Qwen3, 4, 2, 64), (Family::Qwen2, 6, 1, 128), (Family::Qwen3, 3, 3, 256)]
        {
            for kv in KV_TYPES {
                let case = Case::new(family, heads, kv_heads, head_dim, kv, &mut random);
                let positions = [0, KV_CHUNK - 1, KV_CHUNK, CAPACITY - 1];
                let position = positions[random.below(4) as usize];
                case.check(gpu, random.below(LAYERS), position);
            }
        }
    });
}

#[test]
fn positions_on_both_sides_of_a_chunk_boundary_go_where_they_belong() {
    let mut random = Random::fresh();
    let gpu = crate::support::gpu();
    let case = Case::new(Family::Qwen3, 2, 1, 64, KvType::F32, &mut random);
    for position in [0, 1, KV_CHUNK - 1, KV_CHUNK, KV_CHUNK + 1, CAPACITY - 1] {
        case.check(&gpu, 1, position);
    }
}

#[test]
fn a_position_beyond_the_chunks_sets_the_error_word_and_writes_nothing() {
    let mut random = Random::fresh();
    every_schedule(&mut random.clone(), |gpu| {
        for family in [Family::Qwen2, Family::Qwen3] {
            let case = Case::new(family, 4, 2, 64, KvType::F16, &mut random);
            for position in [CAPACITY, u32::MAX] {
                let written = case.run(gpu, 0, position);
                assert_eq!(written.error, 2, "{gpu}");
                assert_eq!(written.qkv, case.qkv, "{gpu}");
                let untouched = encode(KvType::F16, &vec![0.25; case.chunk_len()]);
                assert!(written.chunks.iter().all(|chunk| chunk.read() == untouched), "{gpu}");
            }
        }
    });
}
