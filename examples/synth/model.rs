//! Random weights of a model that behaves: activations of order one in every layer, logits that differ.
//!
//! Each matrix `[N, K]` has mean 0 and standard deviation `gain / sqrt(K)`. Quantised blocks are drawn as blocks, at the
//! speed of the disk: random quants under scales that make the numbers come out so.

#![allow(unreachable_pub)] // the tests' own crate has it too

use std::io::{self, Write};

use kiln_shape::gguf::{GgufWriter, Strings};
use kiln_shape::{Family, ModelShape, TensorRole, TensorSpec, WeightType};

/// 256 bytes and three control tokens.
pub const LEAST_VOCAB: u32 = 259;

/// Which tensor is stored in which type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// llama.cpp's: Q4_K, with the head and half of `attn_v` and `ffn_down` in Q6_K.
    Q4KM,
    Q8_0,
    F16,
    /// Every quantised type and F16 in turn, for tests.
    #[allow(dead_code)]
    InTurn,
}

/// A model to write.
#[derive(Debug, Clone, Copy)]
pub struct SynthModel {
    pub shape: ModelShape,
    pub mix: Mix,
    pub seed: u64,
}

impl Mix {
    fn tensor_type(self, spec: &TensorSpec, shape: &ModelShape) -> WeightType {
        use TensorRole::*;
        // The layers in which llama.cpp spends more bits.
        let more_bits = |i: u32, n: u32| i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
        let mixed = match (self, spec.role, spec.layer) {
            (_, role, _) if !role.is_matrix() => WeightType::F32,
            (Mix::Q8_0, ..) => WeightType::Q8_0,
            (Mix::F16, ..) => WeightType::F16,
            (Mix::InTurn, role, layer) => {
                use WeightType::{F16, Q4_0, Q4_K, Q5_0, Q5_K, Q6_K, Q8_0};
                let types = [Q6_K, Q4_0, Q8_0, Q4_K, Q5_0, F16, Q5_K];
                types[(role.table_index(layer.unwrap_or(0)) as usize) % types.len()]
            }
            (Mix::Q4KM, Output, _) => WeightType::Q6_K,
            (Mix::Q4KM, TokenEmbedding, _) if shape.tied_head => WeightType::Q6_K,
            (Mix::Q4KM, AttnV | FfnDown, Some(layer)) if more_bits(layer, shape.layers) => WeightType::Q6_K,
            (Mix::Q4KM, ..) => WeightType::Q4_K,
        };
        // As llama.cpp does where rows are not whole super-blocks.
        match mixed {
            WeightType::Q4_K if !spec.dims[0].is_multiple_of(256) => WeightType::Q5_0,
            WeightType::Q6_K if !spec.dims[0].is_multiple_of(256) => WeightType::Q8_0,
            mixed => mixed,
        }
    }

    /// llama.cpp's number for the mix.
    fn file_type(self) -> u32 {
        match self {
            Mix::F16 => 1,
            Mix::Q8_0 => 7,
            Mix::Q4KM | Mix::InTurn => 15,
        }
    }
}

impl SynthModel {
    /// Writes the file and tells `progress` the bytes of weights done and in all. Gives the bytes of weights.
    pub fn write(&self, out: impl Write, mut progress: impl FnMut(u64, u64)) -> io::Result<u64> {
        let mut writer = GgufWriter::new();
        self.set_metadata(&mut writer);
        let tensors: Vec<(TensorSpec, WeightType)> =
            self.shape.tensors().map(|spec| (spec.clone(), self.mix.tensor_type(&spec, &self.shape))).collect();
        for (spec, ty) in &tensors {
            writer.tensor(&spec.name, &spec.dims, ty.ggml())?;
        }
        let (mut done, all) = (0, writer.data_bytes());
        let mut data = writer.start(out)?;
        let mut row = Vec::new();
        for (spec, ty) in &tensors {
            let mut random = Random::new(self.seed, &spec.name);
            let deviation = self.deviation(spec);
            for _ in 0..spec.dims.get(1).copied().unwrap_or(1) {
                row.clear();
                match spec.role.is_matrix() {
                    true => draw_row(*ty, spec.dims[0], deviation, &mut random, &mut row),
                    false => draw_vector(spec, &mut random, &mut row),
                }
                data.write_all(&row)?;
                done += row.len() as u64;
                progress(done, all);
            }
        }
        data.finish()?;
        Ok(all)
    }

    /// Standard deviation of a matrix's weights.
    fn deviation(&self, spec: &TensorSpec) -> f32 {
        let gain = match spec.role {
            // A tied embedding is the head as well, whose gain is the logits' spread.
            TensorRole::Output => 3.0,
            TensorRole::TokenEmbedding if self.shape.tied_head => 3.0,
            TensorRole::TokenEmbedding => (spec.dims[0] as f32).sqrt(),
            // What is added to the residual stream sums up to order one over the layers.
            TensorRole::AttnOutput | TensorRole::FfnDown => (0.5 / self.shape.layers as f32).sqrt(),
            _ => 1.0,
        };
        gain / (spec.dims[0] as f32).sqrt()
    }

    fn set_metadata(&self, writer: &mut GgufWriter) {
        let shape = &self.shape;
        let architecture = Family::of(shape).expect("presets are of a family").architecture();
        writer.set("general.architecture", architecture);
        writer.set("general.name", "random weights");
        let numbers = [
            ("block_count", shape.layers),
            ("context_length", shape.context),
            ("embedding_length", shape.hidden),
            ("feed_forward_length", shape.ffn),
            ("attention.head_count", shape.heads),
            ("attention.head_count_kv", shape.kv_heads),
            ("attention.key_length", shape.head_dim),
            ("attention.value_length", shape.head_dim),
        ];
        numbers.iter().for_each(|(name, value)| writer.set(&format!("{architecture}.{name}"), *value));
        writer.set(&format!("{architecture}.rope.freq_base"), shape.rope_theta as f32);
        writer.set(&format!("{architecture}.attention.layer_norm_rms_epsilon"), shape.rms_eps);
        writer.set("general.quantization_version", 2_u32);
        writer.set("general.file_type", self.mix.file_type());
        set_tokenizer(writer, shape.vocab);
    }
}

/// A vocabulary of the right size that encodes and decodes any text: bytes, pairs of printable characters with the
/// merges that make them, and unused tokens up to the three that control a chat.
fn set_tokenizer(writer: &mut GgufWriter, vocab: u32) {
    const NORMAL: i32 = 1;
    const CONTROL: i32 = 3;
    const UNUSED: i32 = 5;
    let end_of_text = vocab.saturating_sub(3);
    let room = end_of_text.saturating_sub(256) as usize;

    // Byte-level vocabularies write a byte as a printable character: itself, or one from U+0100 on.
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let moved: Vec<u8> = (0..=255).filter(|byte| !printable(byte)).collect();
    let char_of = |byte: u8| match moved.binary_search(&byte) {
        Ok(index) => char::from_u32(0x100 + index as u32).expect("far below the surrogates"),
        Err(_) => char::from(byte),
    };
    let bytes = (0..=255).map(|byte| char_of(byte).to_string());
    let pairs: Vec<(char, char)> = (b' '..=b'~')
        .flat_map(|a| (b'!'..=b'~').map(move |b| (a, b)))
        .map(|(a, b)| (char_of(a), char_of(b)))
        .take(room)
        .collect();
    let unused = (256 + pairs.len() as u32..end_of_text).map(|id| format!("[PAD{id}]"));
    let control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(String::from);

    let tokens: Strings =
        bytes.chain(pairs.iter().map(|(a, b)| format!("{a}{b}"))).chain(unused).chain(control).collect();
    let mut types = vec![NORMAL; 256 + pairs.len()];
    types.resize(end_of_text as usize, UNUSED);
    types.extend([CONTROL; 3]);
    writer.set("tokenizer.ggml.model", "gpt2");
    writer.set("tokenizer.ggml.pre", "qwen2");
    writer.set("tokenizer.ggml.tokens", tokens);
    writer.set("tokenizer.ggml.token_type", types);
    writer.set("tokenizer.ggml.merges", pairs.iter().map(|(a, b)| format!("{a} {b}")).collect::<Strings>());
    writer.set("tokenizer.ggml.eos_token_id", end_of_text + 2);
    writer.set("tokenizer.ggml.bos_token_id", end_of_text);
    writer.set("tokenizer.ggml.padding_token_id", end_of_text);
    writer.set("tokenizer.ggml.add_bos_token", false);
    let turns =
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}";
    let answer = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
    writer.set("tokenizer.chat_template", format!("{turns}{answer}"));
}

/// Norms are near 1, biases near 0 and large enough to matter.
fn draw_vector(spec: &TensorSpec, random: &mut Random, out: &mut Vec<u8>) {
    let (center, spread) = match spec.role {
        TensorRole::AttnQBias | TensorRole::AttnKBias | TensorRole::AttnVBias => (0.0, 0.5),
        _ => (1.0, 0.2),
    };
    (0..spec.dims[0]).for_each(|_| out.extend((center + spread * random.symmetric()).to_le_bytes()));
}

/// `k` weights of the given standard deviation.
fn draw_row(ty: WeightType, k: u64, deviation: f32, random: &mut Random, out: &mut Vec<u8>) {
    for _ in 0..k / u64::from(ty.block_len()) {
        // Scales differ from block to block by up to a quarter, so that a mistaken one shows.
        let deviation = deviation * (1.0 + 0.25 * random.symmetric());
        match ty {
            WeightType::F16 => out.extend(f16_bytes(deviation * UNIFORM * random.symmetric())),
            WeightType::Q8_0 => {
                // Quants -127..=127, uniform.
                out.extend(f16_bytes(deviation * UNIFORM / 127.0));
                let quants = random.bytes::<32>();
                out.extend(quants.map(|q| if q == 0x80 { 0 } else { q }));
            }
            WeightType::Q4_0 => {
                // Nibbles -8..=7, uniform about -1/2: scales of both signs take that mean away.
                out.extend(f16_bytes(deviation / 4.61 * random.sign()));
                out.extend(random.bytes::<16>());
            }
            WeightType::Q5_0 => {
                out.extend(f16_bytes(deviation / 9.23 * random.sign()));
                out.extend(random.bytes::<20>());
            }
            WeightType::Q4_K => draw_with_mins(deviation, 4, random, out),
            WeightType::Q5_K => draw_with_mins(deviation, 5, random, out),
            WeightType::Q6_K => draw_q6_k(deviation, random, out),
            WeightType::BF16 | WeightType::F32 => unreachable!("no mix has {ty}"),
        }
    }
}

/// Half the width of a uniform distribution of standard deviation 1.
const UNIFORM: f32 = 1.732_050_8;

/// Q4_K and Q5_K: quants of 4 or 5 bits are uniform, of mean 7.5 or 15.5 and standard deviation 4.61 or 9.23; `dmin` that
/// many times `d`, and mins near the scales, center them.
fn draw_with_mins(deviation: f32, bits: u32, random: &mut Random, out: &mut Vec<u8>) {
    let levels = (1 << bits) as f32;
    let (mean, spread) = ((levels - 1.0) / 2.0, ((levels * levels - 1.0) / 12.0).sqrt());
    let d = deviation / (MEAN_SCALE * spread);
    out.extend(f16_bytes(d));
    out.extend(f16_bytes(mean * d));
    const MEAN_SCALE: f32 = 47.5;
    let scales = random.bytes::<8>().map(|byte| 32 + byte % 32);
    let shifts = random.bytes::<8>();
    let mins: [u8; 8] = std::array::from_fn(|j| (scales[j] + shifts[j] % 5).clamp(2, 65) - 2);
    // 6 bits each: the first four whole, the high pairs of the other four above them.
    let mut packed = [0; 12];
    for j in 0..4 {
        packed[j] = scales[j] | scales[j + 4] >> 4 << 6;
        packed[j + 4] = mins[j] | mins[j + 4] >> 4 << 6;
        packed[j + 8] = scales[j + 4] & 15 | mins[j + 4] << 4;
    }
    out.extend(packed);
    if bits == 5 {
        out.extend(random.bytes::<32>());
    }
    out.extend(random.bytes::<128>());
}

/// -32..=31 are uniform with standard deviation 18.5; scales of both signs take away the mean of -1/2.
fn draw_q6_k(deviation: f32, random: &mut Random, out: &mut Vec<u8>) {
    const MEAN_SCALE: f32 = 80.0;
    out.extend(random.bytes::<192>());
    out.extend(random.bytes::<16>().map(|byte| {
        let magnitude = 64 + (byte >> 1) % 32; // 64..=95
        if byte & 1 == 1 { magnitude.wrapping_neg() } else { magnitude }
    }));
    out.extend(f16_bytes(deviation / (MEAN_SCALE * 18.5)));
}

/// The nearest float16 of a number in its range, little endian.
fn f16_bytes(x: f32) -> [u8; 2] {
    let exponent = ((x.to_bits() >> 23 & 255) as i32 - 127).max(-14);
    // 11 bits with the leading one, which adds 1 to the exponent field below; fewer where that field stays 0.
    let significand = (x.abs() * 2f32.powi(10 - exponent)).round_ties_even() as u16;
    let magnitude = (((exponent + 14) as u16) << 10) + significand;
    (magnitude | (x.to_bits() >> 16) as u16 & 0x8000).to_le_bytes()
}

/// splitmix64: one multiplication chain per eight bytes, and any seed is good.
struct Random(u64);

impl Random {
    /// A stream of its own for each tensor, whatever the others are.
    fn new(seed: u64, tensor: &str) -> Random {
        let mut random = Random(seed);
        for byte in tensor.bytes() {
            random.0 = random.next() ^ u64::from(byte);
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Uniform in -1..1.
    fn sign(&mut self) -> f32 {
        if self.next() >> 63 == 0 { 1.0 } else { -1.0 }
    }

    fn symmetric(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]));
        bytes
    }
}
