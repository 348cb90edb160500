//! One query token against a cache: in one launch, and in chunks that are put together.

use kiln_codegen::KvType;
use kiln_codegen::kernels::{FlashDecodingChunk, FlashDecodingReduce, IncrementalAttention};
use kiln_codegen::{Kernel, Target};
use kiln_shape::table::KV_CHUNK;

use crate::compare::{assert_close, assert_same_bits};
use crate::kv::{KV_TYPES, decode, encode};
use crate::random::Random;
use crate::support::{Arg, Gpu, NULL, Output, every_schedule, gpu};

/// One sequence: queries, and a cache of which `length` positions count.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) heads: u32,
    pub(crate) kv_heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) kv: KvType,
    pub(crate) length: u32,
    max_seq: u32,
    pub(crate) q: Vec<f32>,
    /// `[kv_heads, max_seq, head_dim]`, NaN beyond the length.
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// Layers of the chunked cache, and the one that is used; the rest is NaN.
const LAYERS: u32 = 2;
pub(crate) const LAYER: u32 = 1;

impl Case {
    /// The same cache with other queries.
    pub(crate) fn with_queries(&self, q: Vec<f32>) -> Case {
        Case { q, ..self.clone() }
    }

    /// A sequence in a cache with some room left.
    pub(crate) fn new(kv_heads: u32, group: u32, head_dim: u32, kv: KvType, length: u32, random: &mut Random) -> Case {
        let max_seq = length + random.below(70) + u32::from(length == 0);
        Case { length, ..Case::with_room(kv_heads, group, head_dim, kv, max_seq, random) }.forgetful()
    }

    /// A sequence that fills its cache.
    fn with_room(kv_heads: u32, group: u32, head_dim: u32, kv: KvType, max_seq: u32, random: &mut Random) -> Case {
        let mut cache = || {
            let cache = random.floats((kv_heads * max_seq * head_dim) as usize, 1.0);
            // What the cache really holds.
            decode(kv, &encode(kv, &cache))
        };
        let (keys, values) = (cache(), cache());
        let heads = kv_heads * group;
        // Scores of several units, so that the softmax is neither flat nor a single position.
        let q = random.floats((heads * head_dim) as usize, 6.0);
        Case { heads, kv_heads, head_dim, kv, length: max_seq, max_seq, q, keys, values }
    }

    /// With NaN in all positions beyond the length.
    fn forgetful(mut self) -> Case {
        for cache in [&mut self.keys, &mut self.values] {
            for (row, values) in cache.chunks_mut(self.head_dim as usize).enumerate() {
                if row as u32 % self.max_seq >= self.length {
                    values.fill(f32::NAN);
                }
            }
        }
        self
    }

    /// Puts `value` among the values of a position, in every KV head.
    pub(crate) fn spoil(&mut self, position: u32, value: f32) {
        for head in 0..self.kv_heads {
            let at = (head * self.max_seq + position) * self.head_dim + head % self.head_dim;
            self.values[at as usize] = value;
        }
    }

    pub(crate) fn what(&self) -> String {
        let Case { heads, kv_heads, head_dim, kv, length, .. } = self;
        format!("{heads}/{kv_heads} heads of {head_dim}, {kv:?}, length {length}")
    }

    pub(crate) fn expected(&self) -> Vec<f64> {
        let dim = self.head_dim as usize;
        let mut out = Vec::new();
        for (head, q) in self.q.chunks(dim).enumerate() {
            let first = head / (self.heads / self.kv_heads) as usize * self.max_seq as usize;
            let row = |cache: &[f32], t: usize| -> Vec<f64> {
                cache[(first + t) * dim..][..dim].iter().map(|x| f64::from(*x)).collect()
            };
            let scores: Vec<f64> = (0..self.length as usize)
                .map(|t| q.iter().zip(row(&self.keys, t)).map(|(q, k)| f64::from(*q) * k).sum::<f64>())
                .map(|dot| dot / (dim as f64).sqrt())
                .collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let mut total = vec![0.0; dim];
            for (t, weight) in weights.iter().enumerate() {
                total.iter_mut().zip(row(&self.values, t)).for_each(|(total, v)| *total += weight / sum * v);
            }
            out.extend(total);
        }
        out
    }

    /// The cache in chunks, `[layer][K, V][kv_head][KV_CHUNK][head_dim]`, with the table of their addresses.
    pub(crate) fn chunked(&self, gpu: &Gpu) -> (Vec<kiln::driver::DeviceBuffer<u8>>, Vec<u64>) {
        let dim = self.head_dim as usize;
        let mut chunks = Vec::new();
        for chunk in 0..self.length.div_ceil(KV_CHUNK) {
            let mut floats = vec![f32::NAN; (LAYERS * 2 * self.kv_heads * KV_CHUNK) as usize * dim];
            for (half, cache) in [&self.keys, &self.values].into_iter().enumerate() {
                for head in 0..self.kv_heads {
                    for position in chunk * KV_CHUNK..self.length.min((chunk + 1) * KV_CHUNK) {
                        let plane = (LAYER * 2 + half as u32) * self.kv_heads + head;
                        let to = (plane * KV_CHUNK + position % KV_CHUNK) as usize * dim;
                        let from = (head * self.max_seq + position) as usize * dim;
                        floats[to..to + dim].copy_from_slice(&cache[from..from + dim]);
                    }
                }
            }
            chunks.push(gpu.input(&encode(self.kv, &floats)));
        }
        let addresses = chunks.iter().map(|chunk| chunk.as_ptr().address()).collect();
        (chunks, addresses)
    }

    fn incremental(&self, chunked: bool) -> IncrementalAttention {
        let kernel = IncrementalAttention::new(self.max_seq, self.head_dim, self.heads);
        let kernel = kernel.with_kv_heads(self.kv_heads).with_kv_type(self.kv);
        if chunked { kernel.with_chunked_cache() } else { kernel }
    }

    /// Incremental attention; the error word must stay 0.
    pub(crate) fn run(&self, gpu: &Gpu, chunked: bool, in_memory: bool) -> Vec<f32> {
        let kernel = gpu.load(self.incremental(chunked));
        let (q, out) = (gpu.input(&self.q), gpu.output::<f32>(self.q.len()));
        let (error, length_at) = (gpu.in_out(&[0u32]), gpu.input(&[self.length]));
        let length = if in_memory { u32::MAX } else { self.length };
        let tail =
            [Arg::from(&out), length.into(), if in_memory { Arg::from(&length_at) } else { NULL }, Arg::from(&error)];
        let mut args = vec![Arg::from(&q)];
        let (keys, values) = (gpu.input(&encode(self.kv, &self.keys)), gpu.input(&encode(self.kv, &self.values)));
        let (_chunks, addresses) = self.chunked(gpu);
        let addresses = gpu.input(&addresses);
        if chunked {
            args.extend([Arg::from(&addresses), LAYER.into(), self.length.next_multiple_of(KV_CHUNK).into()]);
        } else {
            args.extend([Arg::from(&keys), Arg::from(&values)]);
        }
        args.extend(tail);
        kernel.run([self.kv_heads, 1, 1], &args);
        assert_eq!(error.read(), [0]);
        out.read()
    }

    /// Query heads of a KV head, for a general kernel.
    pub(crate) fn group(&self) -> u32 {
        self.heads / self.kv_heads
    }

    /// The general kernel for the group, with every size a launch parameter.
    pub(crate) fn run_general(&self, gpu: &Gpu) -> Vec<f32> {
        let kernel = IncrementalAttention::general(self.head_dim, self.kv);
        let kernel = gpu.load(if self.group() > 4 { kernel.with_wide_groups() } else { kernel });
        let (q, out, error) = (gpu.input(&self.q), gpu.output::<f32>(self.q.len()), gpu.in_out(&[0u32]));
        let (keys, values) = (gpu.input(&encode(self.kv, &self.keys)), gpu.input(&encode(self.kv, &self.values)));
        let mut args = vec![Arg::from(&q), (&keys).into(), (&values).into(), self.max_seq.into(), (&out).into()];
        args.extend([Arg::from(self.length), NULL, (&error).into(), self.group().into()]);
        kernel.run([self.kv_heads, 1, 1], &args);
        assert_eq!(error.read(), [0]);
        out.read()
    }

    /// The same through flash decoding, one sequence.
    pub(crate) fn run_general_flash(&self, gpu: &Gpu) -> Vec<f32> {
        let chunk = FlashDecodingChunk::general(self.head_dim, self.kv);
        let chunk = if self.group() > 4 { chunk.with_wide_groups() } else { chunk };
        let chunks = chunk.num_chunks(self.length).max(1);
        let len = u64::from(self.heads) * chunk.partials_size_per_head(chunks);
        let (chunk, reduce) = (gpu.load(chunk), gpu.load(FlashDecodingReduce::general(self.head_dim)));
        let (q, out, error) = (gpu.input(&self.q), gpu.output::<f32>(self.q.len()), gpu.in_out(&[0u32]));
        let caches = [&self.keys, &self.values].map(|cache| gpu.input(&encode(self.kv, cache)));
        let [keys, values] = caches.each_ref().map(|cache| gpu.input(&[cache.as_ptr().address()]));
        let (lengths, partials) = (gpu.input(&[self.length]), gpu.unwritten::<f32>(len as usize));
        let mut args = vec![Arg::from(&q), (&keys).into(), (&values).into(), (&lengths).into(), (&partials).into()];
        args.extend([Arg::from(chunks), (&error).into(), self.max_seq.into(), self.heads.into(), self.group().into()]);
        chunk.run([self.kv_heads, chunks, 1], &args);
        let args = [Arg::from(&partials), (&lengths).into(), chunks.into(), (&out).into(), self.heads.into()];
        reduce.run([self.heads, 1, 1], &args);
        assert_eq!(error.read(), [0]);
        out.read()
    }

    /// Both caches and both ways of giving the length, held to float64 and to each other.
    #[track_caller]
    fn check(&self, gpu: &Gpu) -> Vec<f32> {
        let what = format!("{}, {gpu}", self.what());
        let contiguous = self.run(gpu, false, false);
        assert_close(&what, &contiguous, &self.expected(), BOUND);
        assert_same_bits(&format!("chunked: {what}"), &self.run(gpu, true, true), &contiguous);
        contiguous
    }
}

/// Scores of some ten units in f32, exponentials to 2 ulp.
pub(crate) const BOUND: f64 = 3e-6;

/// A batch through flash decoding.
pub(crate) struct Batch<'a> {
    sequences: &'a [Case],
    max_chunks: u32,
    /// What is told of the lengths, if not the truth.
    lengths: Vec<u32>,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(sequences: &'a [Case], more: u32) -> Batch<'a> {
        let lengths: Vec<u32> = sequences.iter().map(|case| case.length).collect();
        let needed = lengths.iter().map(|length| length.div_ceil(KV_CHUNK)).max();
        Batch { sequences, max_chunks: needed.unwrap_or(0).max(1) + more, lengths }
    }

    /// Results of the batch, and the error word. All sequences have the same shape, and room for `max_seq` positions.
    pub(crate) fn run(&self, gpu: &Gpu, chunked: bool) -> (Vec<f32>, u32) {
        let Case { heads, kv_heads, head_dim, kv, max_seq, .. } = self.sequences[0];
        let batch = self.sequences.len() as u32;
        let chunk = FlashDecodingChunk::new(max_seq, head_dim, heads, kv_heads, batch).with_kv_type(kv);
        let chunk = if chunked { chunk.with_chunked_cache() } else { chunk };
        let per_head = chunk.partials_size_per_head(self.max_chunks) as usize;
        assert!(self.lengths.iter().all(|&length| length > max_seq || chunk.num_chunks(length) <= self.max_chunks));
        let (chunk, reduce) = (gpu.load(chunk), gpu.load(FlashDecodingReduce::new(head_dim, heads)));

        let q: Vec<f32> = self.sequences.iter().flat_map(|case| case.q.clone()).collect();
        let q = gpu.input(&q);
        let mut buffers = Vec::new();
        let (mut k_caches, mut v_caches) = (Vec::new(), Vec::new());
        let mut tables = Vec::new();
        for case in self.sequences {
            assert_eq!((case.heads, case.kv_heads, case.head_dim, case.max_seq), (heads, kv_heads, head_dim, max_seq));
            if chunked {
                let (chunks, addresses) = case.chunked(gpu);
                buffers.extend(chunks);
                tables.push(gpu.input(&addresses));
                k_caches.push(tables.last().map_or(0, |table| table.as_ptr().address()));
                v_caches.push(0);
            } else {
                for (cache, addresses) in [(&case.keys, &mut k_caches), (&case.values, &mut v_caches)] {
                    let buffer = gpu.input(&encode(kv, cache));
                    addresses.push(buffer.as_ptr().address());
                    buffers.push(buffer);
                }
            }
        }
        let (k_caches, v_caches, lengths) = (gpu.input(&k_caches), gpu.input(&v_caches), gpu.input(&self.lengths));
        // Nobody writes the accumulators of empty chunks, so nobody may read them: the emulator reports who does, and a
        // NaN would be seen.
        let len = batch as usize * heads as usize * per_head;
        let partials = if chunked { gpu.input(&vec![f32::NAN; len]) } else { gpu.unwritten::<f32>(len) };
        let (out, error) = (gpu.output::<f32>((batch * heads * head_dim) as usize), gpu.in_out(&[0u32]));
        let mut args = vec![Arg::from(&q), (&k_caches).into(), (&v_caches).into(), (&lengths).into()];
        args.extend([Arg::from(&partials), self.max_chunks.into(), Arg::from(&error)]);
        if chunked {
            let capacity = self.sequences.iter().map(|case| case.length.next_multiple_of(KV_CHUNK)).max();
            args.extend([Arg::from(LAYER), capacity.unwrap_or(0).into()]);
        }
        chunk.run([kv_heads, self.max_chunks, batch], &args);
        let args = [Arg::from(&partials), (&lengths).into(), self.max_chunks.into(), (&out).into()];
        reduce.run([heads, batch, 1], &args);
        (out.read(), error.read()[0])
    }

    #[track_caller]
    fn check(&self, gpu: &Gpu) {
        let what: Vec<String> = self.sequences.iter().map(Case::what).collect();
        let what = format!("{}, {} chunks, {gpu}", what.join("; "), self.max_chunks);
        let expected: Vec<f64> = self.sequences.iter().flat_map(Case::expected).collect();
        let (out, error) = self.run(gpu, false);
        assert_eq!(error, 0, "{what}");
        assert_close(&what, &out, &expected, BOUND);
        let (chunked, error) = self.run(gpu, true);
        assert_eq!(error, 0, "{what}");
        assert_same_bits(&format!("chunked: {what}"), &chunked, &out);
        for (case, found) in self.sequences.iter().zip(out.chunks(self.sequences[0].q.len())) {
            let whole = case.run(gpu, false, false);
            if case.length <= KV_CHUNK {
                assert_same_bits(&format!("against incremental: {what}"), found, &whole);
            } else {
                let whole: Vec<f64> = whole.into_iter().map(f64::from).collect();
                assert_close(&format!("against incremental: {what}"), found, &whole, BOUND);
            }
        }
    }
}

#[test]
#[ignore = "longer; .ci/run runs it"]
fn every_head_size_and_group_matches_float64() {
    let mut random = Random::fresh();
    for head_dim in [64, 80, 96, 128, 256] {
        for kv in KV_TYPES {
            for group in [1, 2, 5, 7, 8] {
                let length = 1 + random.below(140);
                let case = Case::new(2, group, head_dim, kv, length, &mut random);
                case.check(&gpu());
                Batch::new(&[case], random.below(2)).check(&gpu());
            }
        }
    }
}

#[test]
fn general_kernels_give_the_bits_of_those_with_baked_sizes() {
    let mut random = Random::fresh();
    every_schedule(&mut random.clone(), |gpu| {
        for (group, head_dim, kv) in
            [(3, 80, KvType::F16), (4, 64, KvType::F32), (5, 96, KvType::F32), (8, 128, KvType::F16)]
        {
            let case = [Case::new(2, group, head_dim, kv, 140, &mut random)];
            let what = format!("{}, {gpu}", case[0].what());
            assert_same_bits(&what, &case[0].run_general(gpu), &case[0].run(gpu, false, false));
            assert_same_bits(&what, &case[0].run_general_flash(gpu), &Batch::new(&case, 0).run(gpu, false).0);
        }
    });
}

#[test]
fn every_schedule_gives_the_same_bits() {
    let mut random = Random::fresh();
    for (group, head_dim, kv) in [(3, 80, KvType::F16), (2, 128, KvType::F32)] {
        let case = [Case::new(2, group, head_dim, kv, 150, &mut random)];
        let (mut incremental, mut flash) = (Vec::new(), Vec::new());
        every_schedule(&mut random, |gpu| {
            incremental.push(case[0].check(gpu));
            flash.push(Batch::new(&case, 1).run(gpu, false).0);
        });
        for results in [incremental, flash] {
            results.iter().for_each(|result| assert_same_bits(&case[0].what(), result, &results[0]));
        }
    }
}

#[test]
fn every_length_matches_float64() {
    let mut random = Random::fresh();
    for length in [1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300] {
        let kv = KV_TYPES[random.below(2) as usize];
        let case = Case::new(1, 2, 64, kv, length, &mut random);
        case.check(&gpu());
        Batch::new(&[case], random.below(3)).check(&gpu());
    }
}

/// Both kernels on one sequence.
fn long(length: u32, head_dim: u32, random: &mut Random) {
    let case = Case::new(1, 2, head_dim, KvType::F16, length, random);
    case.check(&gpu());
    Batch::new(&[case], 0).check(&gpu());
}

#[test]
fn thousands_of_positions_match_float64() {
    let mut random = Random::fresh();
    long(1000, 128, &mut random);
    long(4097, 64, &mut random);
}

#[test]
#[ignore = "half a minute in a debug build; .ci/long runs it in a release build"]
fn the_longest_context_of_a_published_model_matches_float64() {
    long(40960, 128, &mut Random::fresh());
}

#[test]
fn an_empty_cache_gives_zeros() {
    let mut random = Random::fresh();
    every_schedule(&mut random.clone(), |gpu| {
        let case = Case::new(2, 2, 80, KvType::F16, 0, &mut random);
        assert_eq!(case.run(gpu, false, false), [0.0; 320], "{gpu}");
        assert_eq!(case.run(gpu, true, true), [0.0; 320], "{gpu}");
        assert_eq!(Batch::new(&[case], 2).run(gpu, false), (vec![0.0; 320], 0), "{gpu}");
    });
}

/// A batch whose sequences have these lengths and the same room.
fn batch_of(lengths: &[u32], random: &mut Random) -> Vec<Case> {
    let room = lengths.iter().max().map_or(1, |length| length + 3);
    let mut case = |length| Case { length, ..Case::with_room(2, 2, 64, KvType::F32, room, random) }.forgetful();
    lengths.iter().map(|length| case(*length)).collect()
}

#[test]
fn a_batch_mixes_lengths_and_empty_sequences() {
    let mut random = Random::fresh();
    every_schedule(&mut random.clone(), |gpu| {
        let sequences = batch_of(&[0, 200, 1, 128, 129], &mut random);
        Batch::new(&sequences, 1).check(gpu);
        let sequences = batch_of(&[0, 0], &mut random);
        Batch::new(&sequences, 0).check(gpu);
    });
}

#[test]
fn a_length_beyond_the_cache_sets_the_error_word_and_gives_zeros() {
    let mut random = Random::fresh();
    every_schedule(&mut random.clone(), |gpu| {
        let case = Case::new(2, 2, 64, KvType::F32, 100, &mut random);
        for length in [case.max_seq + 1, u32::MAX] {
            let kernel = gpu.load(case.incremental(false));
            let (q, out) = (gpu.input(&case.q), gpu.output::<f32>(case.q.len()));
            let (keys, values) = (gpu.input(&case.keys), gpu.input(&case.values));
            let (error, at) = (gpu.in_out(&[0u32]), gpu.input(&[length]));
            for (by_value, at) in [(length, NULL), (0, Arg::from(&at))] {
                let args = [&q, &keys, &values].map(Arg::from);
                let args = [&args[..], &[Arg::from(&out), by_value.into(), at, Arg::from(&error)]].concat();
                kernel.run([2, 1, 1], &args);
                assert_eq!((out.read(), error.read()), (vec![0.0; 256], vec![3]), "length {length}, {gpu}");
            }
        }
        // In a batch the other sequences are not disturbed, and it may happen to two at once.
        let sequences = batch_of(&[140, 50, 9], &mut random);
        let mut batch = Batch::new(&sequences, 0);
        let (good, _) = batch.run(gpu, false);
        batch.lengths[2] = u32::MAX;
        // Of the chunked caches, 256 positions is all there is.
        for (chunked, first) in [(false, sequences[0].max_seq + 1), (true, 257)] {
            batch.lengths[0] = first;
            batch.max_chunks = 3;
            let (out, error) = batch.run(gpu, chunked);
            assert_eq!(error, 3, "{gpu}");
            let mut expected = good.clone();
            expected[..256].fill(0.0);
            expected[512..].fill(0.0);
            assert_same_bits("a batch with lengths beyond the cache", &out, &expected);
        }
    });
}

/// Scores of thousands of units: exponentials of differences underflow, and nothing overflows.
#[test]
fn one_position_may_take_all_the_weight() {
    let mut random = Random::fresh();
    let mut case = Case::new(1, 2, 64, KvType::F32, 200, &mut random);
    case.q.iter_mut().for_each(|q| *q *= 1000.0);
    // A difference of scores is off by a rounding of scores a thousand times as large.
    let found = case.run(&gpu(), false, false);
    assert_close(&case.what(), &found, &case.expected(), 3e-3);
    let (flash, _) = Batch::new(&[case], 1).run(&gpu(), false);
    assert!(flash.iter().zip(&found).all(|(flash, found)| (flash - found).abs() < 1e-4));
}

#[test]
fn partial_results_are_laid_out_as_documented() {
    let mut random = Random::fresh();
    let gpu = gpu();
    let (heads, head_dim, max_chunks) = (2u32, 64u32, 3u32);
    let case = Case::new(1, heads, head_dim, KvType::F32, 130, &mut random);
    let kernel = FlashDecodingChunk::new(case.max_seq, head_dim, heads, 1, 1);
    assert_eq!((kernel.chunk_size, kernel.num_chunks(130), kernel.num_chunks(0)), (KV_CHUNK, 2, 0));
    assert_eq!(kernel.partials_size_per_head(max_chunks), 3 * 66);
    let kernel = gpu.load(kernel);
    let partials: Output<f32> = gpu.output((heads * max_chunks * (head_dim + 2)) as usize);
    let (q, keys, values) = (gpu.input(&case.q), gpu.input(&case.keys), gpu.input(&case.values));
    let [keys, values] = [&keys, &values].map(|cache| gpu.input(&[cache.as_ptr().address()]));
    let (lengths, error) = (gpu.input(&[130u32]), gpu.in_out(&[0u32]));
    let mut args = vec![Arg::from(&q), (&keys).into(), (&values).into(), (&lengths).into()];
    args.extend([Arg::from(&partials), max_chunks.into(), (&error).into()]);
    kernel.run([1, max_chunks, 1], &args);
    let partials = partials.read();
    let row = (head_dim + 2) as usize;
    for (head, q) in case.q.chunks(head_dim as usize).enumerate() {
        let dot = |t: usize| -> f64 {
            let key = &case.keys[t * 64..][..64];
            q.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() / 8.0
        };
        for chunk in 0..2 {
            let partial = &partials[(head * 3 + chunk) * row..][..row];
            let positions = chunk * 128..130.min(chunk * 128 + 128);
            let max = positions.clone().map(dot).fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = positions.clone().map(|t| (dot(t) - max).exp()).sum();
            let acc: Vec<f64> = (0..64)
                .map(|i| positions.clone().map(|t| (dot(t) - max).exp() * f64::from(case.values[t * 64 + i])).sum())
                .collect();
            assert_close("accumulator", &partial[..64], &acc, BOUND);
            assert_close("maximum and sum", &partial[64..], &[max, sum], BOUND);
        }
        let empty = &partials[(head * 3 + 2) * row..][..row];
        assert_eq!(empty[64..], [f32::NEG_INFINITY, 0.0]);
        assert!(empty[..64].iter().all(|x| x.to_bits() == u32::MAX), "an empty chunk has no accumulator");
    }
}

#[test]
fn shapes_that_no_kernel_takes_are_refused() {
    let refused = |head_dim, heads, kv_heads| {
        let incremental = IncrementalAttention::new(64, head_dim, heads).with_kv_heads(kv_heads);
        let flash = FlashDecodingChunk::new(64, head_dim, heads, kv_heads, 1);
        let target = Target::DEFAULT[0];
        let (one, other) = (incremental.emit_ptx(target).unwrap_err(), flash.emit_ptx(target).unwrap_err());
        (one.to_string(), other.to_string())
    };
    for (head_dim, heads, kv_heads, what) in
        [(72, 2, 1, "head_dim is 72"), (272, 2, 1, "head_dim is 272"), (64, 3, 2, "3 query heads"), (64, 2, 0, "0 KV")]
    {
        let (one, other) = refused(head_dim, heads, kv_heads);
        assert!(one.contains(what) && other.contains(what), "{one}; {other}");
    }
}
