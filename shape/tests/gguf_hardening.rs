//! A GGUF file is untrusted: whatever stands in it, reading gives a header or an error, never a panic, and never takes
//! much more memory than the file has bytes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Cursor, Read, Seek, SeekFrom, Write};

use kiln_shape::gguf::{Array, GgufWriter, Strings, Value};
use kiln_shape::{GgmlType, Gguf, GgufError, ModelShape, ShapeError, presets};

/// The system's allocator, keeping each thread's live and highest number of bytes.
struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    LIVE.set(LIVE.get() + bytes);
    PEAK.set(PEAK.get().max(LIVE.get()));
}

// SAFETY: every call goes to `System` unchanged; counting touches thread-local integers only and cannot allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Reads `bytes` and fails if that took memory out of proportion to them.
fn read(bytes: &[u8]) -> Result<Gguf, GgufError> {
    PEAK.set(LIVE.get());
    let before = LIVE.get();
    let result = Gguf::from_bytes(bytes);
    let used = PEAK.get() - before;
    let allowed = 16 * bytes.len() as isize + 8192;
    assert!(used <= allowed, "{used} bytes of memory for a file of {} bytes", bytes.len());
    result
}

/// xorshift64*: repeatable, and enough to hit every branch.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }
}

fn every_kind_of_value() -> Vec<(&'static str, Value)> {
    let numbers = Array::Array(vec![Array::U16(vec![1, 2, 3]), Array::Array(vec![Array::Bool(vec![true, false])])]);
    vec![
        ("general.architecture", "qwen3".into()),
        ("u8", Value::U8(200)),
        ("i8", Value::I8(-3)),
        ("u16", Value::U16(60000)),
        ("i16", Value::I16(-300)),
        ("u32", Value::U32(4_000_000_000)),
        ("i32", Value::I32(-70000)),
        ("f32", Value::F32(0.1)),
        ("bool", Value::Bool(true)),
        ("u64", Value::U64(1 << 40)),
        ("i64", Value::I64(-1 << 40)),
        ("f64", Value::F64(0.1)),
        ("strings", Strings::from_iter(["a", "", "né", "🦀"]).into()),
        ("i32s", vec![1_i32, -2, 3].into()),
        ("f32s", vec![0.5_f32, -1.5].into()),
        ("nested", Value::Array(numbers)),
        ("more", Value::Array(Array::U8(vec![1, 2]))),
        ("u32s", Value::Array(Array::U32(vec![7; 5]))),
        ("u64s", Value::Array(Array::U64(vec![7; 5]))),
        ("i64s", Value::Array(Array::I64(vec![-7; 5]))),
        ("f64s", Value::Array(Array::F64(vec![0.25; 5]))),
        ("i8s", Value::Array(Array::I8(vec![-7; 5]))),
        ("i16s", Value::Array(Array::I16(vec![-7; 5]))),
        ("empty", Value::Array(Array::Array(vec![]))),
    ]
}

fn small_file() -> Vec<u8> {
    let mut writer = GgufWriter::new();
    for (key, value) in every_kind_of_value() {
        writer.set(key, value);
    }
    writer.tensor("a.weight", &[256, 3], GgmlType::Q4_K).unwrap();
    writer.tensor("b.bias", &[5], GgmlType::F32).unwrap();
    writer.tensor("c", &[32, 1, 2, 1], GgmlType::Q8_0).unwrap();
    let mut data = writer.start(Vec::new()).unwrap();
    let bytes: Vec<u8> = (0..3 * 144 + 5 * 4 + 2 * 34).map(|i| i as u8).collect();
    data.write_all(&bytes).unwrap();
    data.finish().unwrap()
}

fn at(file: &[u8], needle: &[u8]) -> usize {
    file.windows(needle.len()).position(|window| window == needle).expect("the file holds it")
}

/// The file with `patch` written over its bytes at `offset`.
fn patched(file: &[u8], offset: usize, patch: &[u8]) -> Vec<u8> {
    let mut file = file.to_vec();
    file[offset..offset + patch.len()].copy_from_slice(patch);
    file
}

#[test]
fn what_is_written_is_read() {
    let file = small_file();
    let gguf = read(&file).unwrap();
    let values = every_kind_of_value();
    assert!(gguf.metadata().eq(values.iter().map(|(key, value)| (*key, value))));
    assert_eq!((gguf.version(), gguf.alignment(), gguf.file_len()), (3, 32, file.len() as u64));

    let tensors: Vec<_> = gguf.tensors().iter().map(|t| (t.name(), t.dims(), t.ty(), t.bytes())).collect();
    assert_eq!(
        tensors,
        [
            ("a.weight", &[256, 3][..], GgmlType::Q4_K, 432),
            ("b.bias", &[5][..], GgmlType::F32, 20),
            ("c", &[32, 1, 2, 1][..], GgmlType::Q8_0, 68),
        ]
    );
    let b = gguf.tensor("b.bias").unwrap();
    let start = b.offset() as usize;
    assert_eq!(file[start..start + 20], (432..452).map(|i| i as u8).collect::<Vec<u8>>());
    assert!(gguf.tensors().iter().all(|t| t.offset() % 32 == 0));
    assert!(gguf.tensor("b").is_none());
}

#[test]
fn a_stream_reads_as_the_bytes_do() {
    let file = small_file();
    let mut stream = Cursor::new(&file);
    stream.seek(SeekFrom::Start(7)).unwrap();
    assert_eq!(format!("{:?}", Gguf::read(stream).unwrap()), format!("{:?}", Gguf::from_bytes(&file).unwrap()));
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
    let file = small_file();
    // The padding after the last tensor is not needed.
    let needed = read(&file).unwrap().tensor("c").map(|t| (t.offset() + t.bytes()) as usize).unwrap();
    for len in 0..needed {
        let error = read(&file[..len]).expect_err("cut short");
        assert!(
            matches!(error, GgufError::Truncated { .. } | GgufError::TensorOutOfFile { .. })
                || len < 4 && matches!(error, GgufError::NotGguf { .. }),
            "{len}: {error}"
        );
    }
    read(&file[..needed]).unwrap();
}

#[test]
fn a_real_file_cut_or_damaged_never_panics() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data/demo.Q4_K_M.gguf");
    let file = std::fs::read(path).unwrap();
    let header = read(&file).unwrap().data_offset() as usize;
    for len in (0..header).step_by(131).chain(header - 300..header) {
        assert!(read(&file[..len]).is_err(), "{len}");
    }
    let mut random = Random(3);
    for _ in 0..500 {
        let mut damaged = file[..header].to_vec();
        // The first bytes hold the counts, the last the tensors; between them is mostly vocabulary.
        let range = [0..400, header - 3000..header, 0..header][random.below(3)].clone();
        for _ in 0..=random.below(4) {
            let at = range.start + random.below(range.len());
            damaged[at] = random.below(256) as u8;
        }
        damaged.resize(file.len(), 0);
        if let Ok(gguf) = read(&damaged) {
            shape_is_sound_or_an_error(&gguf);
        }
    }
}

fn shape_is_sound_or_an_error(gguf: &Gguf) {
    if let Ok(shape) = ModelShape::from_gguf(gguf) {
        assert!(shape.group() >= 1 && shape.q_dim() >= shape.kv_dim());
        let _ = shape.check_tensors(gguf);
    }
}

#[test]
fn random_damage_never_panics_and_stays_in_range() {
    let file = small_file();
    let mut random = Random(1);
    let interesting = [0, 1, 2, 3, 4, 8, 9, 12, 13, 31, 32, 0x7f, 0x80, 0xfe, 0xff];
    for _ in 0..60_000 {
        let mut damaged = file.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(damaged.len());
            match random.below(3) {
                0 => damaged[at] ^= 1 << random.below(8),
                1 => damaged[at] = interesting[random.below(interesting.len())],
                _ => damaged[at..].iter_mut().take(8).for_each(|byte| *byte = 0xff),
            }
        }
        damaged.truncate(damaged.len() - random.below(2) * random.below(40));
        if let Ok(gguf) = read(&damaged) {
            for tensor in gguf.tensors() {
                assert!(tensor.offset() >= gguf.data_offset());
                assert!(tensor.offset().checked_add(tensor.bytes()).is_some_and(|end| end <= gguf.file_len()));
            }
            shape_is_sound_or_an_error(&gguf);
        }
    }
}

#[test]
fn random_bytes_after_the_magic_never_panic() {
    let mut random = Random(2);
    for _ in 0..20_000 {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        for _ in 0..2 {
            file.extend((random.below(4) as u64).to_le_bytes());
        }
        // Small numbers are what counts, lengths and types look like.
        file.extend((0..random.below(200)).map(|_| if random.below(3) > 0 { random.below(14) as u8 } else { 0 }));
        let _ = read(&file);
    }
}

#[test]
fn counts_that_the_file_cannot_hold_are_refused_before_allocation() {
    let file = small_file();
    let array_len = at(&file, b"u32s") + 4 + 4 + 4;
    let string_len = at(&file, b"qwen3") - 8;
    let places = [("tensors", 8), ("metadata keys", 16), ("array", array_len), ("string", string_len), ("key", 24)];
    for (what, offset) in places {
        for huge in [1 << 12, 1 << 20, 1 << 31, 1 << 32, 1 << 60, u64::MAX / 4, u64::MAX] {
            let error = read(&patched(&file, offset, &u64::to_le_bytes(huge))).expect_err(what);
            assert!(
                matches!(error, GgufError::TooLarge { .. } | GgufError::Truncated { .. }),
                "{what} = {huge}: {error}"
            );
            assert!(error.to_string().contains(what), "{what} = {huge}: {error}");
        }
    }
}

#[test]
fn nesting_beyond_the_limit_is_refused() {
    let nested = |depth: usize| {
        let value = (1..depth).fold(Array::U8(vec![1]), |inner, _| Array::Array(vec![inner]));
        let mut writer = GgufWriter::new();
        writer.set("deep", Value::Array(value));
        writer.start(Vec::new()).unwrap().finish().unwrap()
    };
    read(&nested(4)).unwrap();
    let error = read(&nested(5)).unwrap_err();
    assert!(matches!(error, GgufError::TooLarge { found: 5, limit: 4, .. }), "{error}");

    // What only claims to be deep must not exhaust the stack: 200,000 arrays of one array each.
    let mut file = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0k\x09\0\0\0".to_vec();
    (0..200_000).for_each(|_| file.extend(b"\x09\0\0\0\x01\0\0\0\0\0\0\0"));
    assert!(matches!(read(&file).unwrap_err(), GgufError::TooLarge { found: 5, limit: 4, .. }));
}

#[test]
fn dimensions_types_and_offsets_are_checked() {
    let file = small_file();
    let entry = at(&file, b"a.weight") + 8; // dimension count, dimensions, type, offset
    let read_with = |offset: usize, patch: &[u8]| read(&patched(&file, entry + offset, patch)).unwrap_err();

    assert!(matches!(read_with(0, &5_u32.to_le_bytes()), GgufError::TooLarge { found: 5, limit: 4, .. }));
    assert!(matches!(read_with(0, &0_u32.to_le_bytes()), GgufError::InvalidDims { .. }));
    assert!(matches!(read_with(4, &0_u64.to_le_bytes()), GgufError::InvalidDims { .. }));
    assert!(matches!(read_with(4, &255_u64.to_le_bytes()), GgufError::InvalidTensorSize { .. }), "no whole block");
    assert!(matches!(read_with(12, &(1_u64 << 62).to_le_bytes()), GgufError::InvalidTensorSize { .. }), "overflow");
    assert!(matches!(read_with(12, &(1_u64 << 40).to_le_bytes()), GgufError::TensorOutOfFile { .. }));
    for removed_or_unknown in [4, 5, 31, 33, 36, 1000, u32::MAX] {
        let error = read_with(20, &removed_or_unknown.to_le_bytes());
        assert!(matches!(error, GgufError::UnknownTensorType { found, .. } if found == removed_or_unknown));
    }
    assert!(matches!(read_with(24, &16_u64.to_le_bytes()), GgufError::MisalignedTensor { .. }));
    assert!(matches!(read_with(24, &(1_u64 << 30).to_le_bytes()), GgufError::TensorOutOfFile { .. }));
    assert!(matches!(read_with(24, &(u64::MAX - 31).to_le_bytes()), GgufError::TensorOutOfFile { .. }));

    let offset_of_b = at(&file, b"b.bias") + 6 + 4 + 8 + 4; // behind the name, one dimension and the type
    for (offset, overlaps) in [(0_u64, true), (416, true), (448, false), (480, true)] {
        let result = read(&patched(&file, offset_of_b, &offset.to_le_bytes()));
        assert_eq!(matches!(result, Err(GgufError::TensorsOverlap { .. })), overlaps, "{offset}: {result:?}");
    }
}

#[test]
fn names_stand_once() {
    let file = small_file();
    let twice = patched(&file, at(&file, b"i64s"), b"u64s");
    assert!(matches!(read(&twice).unwrap_err(), GgufError::DuplicateKey { key } if key == "u64s"));

    let mut writer = GgufWriter::new();
    writer.tensor("same", &[8], GgmlType::F32).unwrap();
    writer.tensor("same", &[8], GgmlType::F32).unwrap();
    let mut data = writer.start(Vec::new()).unwrap();
    data.write_all(&[0; 64]).unwrap();
    let file = data.finish().unwrap();
    assert!(matches!(read(&file).unwrap_err(), GgufError::DuplicateTensor { name } if name == "same"));
}

#[test]
fn magic_version_and_alignment_are_checked() {
    let file = small_file();
    assert!(matches!(read(b"").unwrap_err(), GgufError::NotGguf { .. }));
    assert!(matches!(read(&patched(&file, 0, b"GGML")).unwrap_err(), GgufError::NotGguf { .. }));
    for version in [0, 1, 4, 0x0300_0000] {
        let error = read(&patched(&file, 4, &u32::to_le_bytes(version))).unwrap_err();
        assert!(matches!(error, GgufError::UnsupportedVersion { .. }));
        assert_eq!(error.to_string().contains("big-endian"), version == 0x0300_0000);
    }
    read(&patched(&file, 4, &2_u32.to_le_bytes())).expect("version 2 differs in nothing that matters here");

    for (alignment, good) in [(0_u32, false), (1, true), (24, false), (64, true), (1 << 16, true), (1 << 17, false)] {
        let mut writer = GgufWriter::new();
        writer.set("general.alignment", alignment);
        let file = writer.start(Vec::new()).unwrap().finish().unwrap();
        match read(&file) {
            Ok(gguf) => assert!(good && gguf.alignment() == alignment),
            Err(error) => assert!(!good && matches!(error, GgufError::InvalidAlignment { .. }), "{error}"),
        }
    }
}

#[test]
fn getters_name_the_key_and_both_types() {
    let gguf = Gguf::from_bytes(&small_file()).unwrap();
    assert_eq!(gguf.u32("u8").unwrap(), 200);
    assert_eq!(gguf.f32("f64").unwrap(), 0.1);
    assert_eq!(gguf.strings("strings").unwrap().iter().collect::<Vec<_>>(), ["a", "", "né", "🦀"]);
    assert_eq!(gguf.strings("strings").unwrap().get(3), Some("🦀"));
    assert_eq!(gguf.i32s("i32s").unwrap(), [1, -2, 3]);
    assert_eq!(gguf.f32s("f32s").unwrap(), [0.5, -1.5]);
    assert_eq!(gguf.optional::<u32>("absent").unwrap(), None);
    let messages = [
        (gguf.u32("u64").unwrap_err(), ["`u64`", "u64 1099511627776", "2^32"]),
        (gguf.str("u8").unwrap_err(), ["`u8`", "the u8 200", "a string"]),
        (gguf.strings("i32s").unwrap_err(), ["`i32s`", "array of 3 i32", "array of strings"]),
        (gguf.f32("absent").unwrap_err(), ["`absent`", "missing", "floating-point"]),
    ];
    for (error, parts) in messages {
        let message = error.to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
}

/// A stream that says it is longer than it is, as a file cut short while it is read.
struct Lying<'a>(Cursor<&'a [u8]>);

impl Read for Lying<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(out)
    }
}

impl Seek for Lying<'_> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        match to {
            SeekFrom::End(0) => Ok(1 << 40),
            to => self.0.seek(to),
        }
    }
}

#[test]
fn a_stream_shorter_than_it_says_is_truncated_not_allocated() {
    let file = small_file();
    let string_len = at(&file, b"qwen3") - 8;
    let file = patched(&file, string_len, &(1_u64 << 25).to_le_bytes());
    PEAK.set(LIVE.get());
    let before = LIVE.get();
    let error = Gguf::read(Lying(Cursor::new(&file))).unwrap_err();
    assert!(matches!(error, GgufError::Truncated { .. }), "{error}");
    assert!(PEAK.get() - before < 1 << 20, "memory for bytes that never came");
}

/// A file of the shape of `tiny` with a tensor's type or dimensions changed, or one left out or added.
fn tiny_with(change: impl Fn(&mut GgufWriter, &str, &[u64]) -> bool, extra: Option<&str>) -> Gguf {
    let shape = ModelShape { layers: 1, vocab: 8, ..presets::by_name("tiny").unwrap().shape };
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", "qwen3");
    let numbers = [
        ("block_count", 1),
        ("context_length", 64),
        ("embedding_length", shape.hidden),
        ("feed_forward_length", shape.ffn),
        ("attention.head_count", shape.heads),
        ("attention.head_count_kv", shape.kv_heads),
        ("attention.key_length", shape.head_dim),
    ];
    numbers.iter().for_each(|(key, value)| writer.set(&format!("qwen3.{key}"), *value));
    writer.set("qwen3.attention.layer_norm_rms_epsilon", 1e-6_f32);
    for spec in shape.tensors() {
        if !change(&mut writer, &spec.name, &spec.dims) {
            let ty = if spec.role.is_matrix() { GgmlType::F16 } else { GgmlType::F32 };
            writer.tensor(&spec.name, &spec.dims, ty).unwrap();
        }
    }
    extra.into_iter().for_each(|name| writer.tensor(name, &[8], GgmlType::F32).unwrap());
    let bytes = writer.data_bytes() as usize;
    let mut file = writer.start(Vec::new()).unwrap();
    file.write_all(&vec![0; bytes]).unwrap();
    Gguf::from_bytes(&file.finish().unwrap()).unwrap()
}

fn check(gguf: &Gguf) -> Result<(), ShapeError> {
    ModelShape::from_gguf(gguf)?.check_tensors(gguf).map(drop)
}

#[test]
fn a_model_with_wrong_tensors_is_refused_by_the_tensors_name() {
    check(&tiny_with(|_, _, _| false, None)).unwrap();

    let left_out = check(&tiny_with(|_, name, _| name == "blk.0.ffn_up.weight", None)).unwrap_err();
    assert_eq!(left_out.to_string(), "tensor `blk.0.ffn_up.weight` is missing");

    let added = check(&tiny_with(|_, _, _| false, Some("blk.0.attn_q.bias"))).unwrap_err();
    assert!(matches!(added, ShapeError::UnexpectedTensor { ref tensor } if tensor == "blk.0.attn_q.bias"));

    let q5_1 = |writer: &mut GgufWriter, name: &str, dims: &[u64]| {
        name == "blk.0.attn_k.weight" && writer.tensor(name, dims, GgmlType::Q5_1).is_ok()
    };
    let message = check(&tiny_with(q5_1, None)).unwrap_err().to_string();
    assert!(message.contains("`blk.0.attn_k.weight` is stored as Q5_1"), "{message}");

    let narrow = |writer: &mut GgufWriter, name: &str, dims: &[u64]| {
        name == "blk.0.ffn_down.weight" && writer.tensor(name, &[dims[0], dims[1] - 1], GgmlType::F16).is_ok()
    };
    let error = check(&tiny_with(narrow, None)).unwrap_err();
    assert!(matches!(error, ShapeError::TensorDims { ref needed, .. } if *needed == [768, 256]), "{error}");
}

/// The refusal of a file whose key `qwen3.{key}` has this value.
fn refusal_of(key: &str, value: impl Into<Value>) -> String {
    let value = value.into();
    let set = |writer: &mut GgufWriter, _: &str, _: &[u64]| {
        writer.set(&format!("qwen3.{key}"), value.clone());
        false
    };
    check(&tiny_with(set, None)).expect_err(key).to_string()
}

#[test]
fn what_would_change_the_answer_is_refused_by_its_key() {
    let refused: [(&str, Value); 9] = [
        ("rope.scaling.type", "yarn".into()),
        ("rope.scaling.type", "linear".into()),
        ("rope.scaling.factor", 4.0_f32.into()),
        ("rope.scaling.factor", f32::NAN.into()),
        ("rope.scale_linear", 2.0_f32.into()),
        ("rope.scaling.attn_factor", 0.5_f32.into()),
        ("pooling_type", 3_u32.into()),
        ("attention.causal", false.into()),
        ("attention.causal", 0_u32.into()),
    ];
    for (key, value) in refused {
        let error = refusal_of(key, value);
        assert!(error.contains(&format!("qwen3.{key}")), "{error}");
    }
    let allowed: [(&str, Value); 7] = [
        ("rope.scaling.type", "none".into()),
        ("rope.scaling.factor", 1.0_f32.into()),
        ("rope.scaling.factor", 0.0_f32.into()),
        ("rope.scale_linear", 1.0_f32.into()),
        ("rope.scaling.attn_factor", 1.0_f32.into()),
        ("pooling_type", 0_u32.into()),
        ("attention.causal", true.into()),
    ];
    for (key, value) in allowed {
        let set = |writer: &mut GgufWriter, _: &str, _: &[u64]| {
            writer.set(&format!("qwen3.{key}"), value.clone());
            false
        };
        check(&tiny_with(set, None)).expect(key);
    }
}

#[test]
fn an_epsilon_or_theta_that_makes_no_numbers_is_refused_by_its_key() {
    let (nan, infinity) = (f32::NAN, f32::INFINITY);
    for eps in [nan, -nan, -1e-6, infinity, -infinity] {
        let error = refusal_of("attention.layer_norm_rms_epsilon", eps);
        assert!(error.starts_with("qwen3.attention.layer_norm_rms_epsilon is "), "{error}");
    }
    for theta in [nan, 0.0, -0.0, -1e6, infinity, -infinity] {
        let error = refusal_of("rope.freq_base", theta);
        assert!(error.starts_with("qwen3.rope.freq_base is "), "{error}");
    }
    // Of 64 bits, and beyond 32.
    assert!(refusal_of("rope.freq_base", Value::F64(1e300)).starts_with("qwen3.rope.freq_base is "));
    assert!(refusal_of("rope.freq_base", Value::F64(1e-300)).starts_with("qwen3.rope.freq_base is "));
}

#[test]
fn one_part_of_several_is_refused_and_says_how_to_merge_them() {
    let mut part = GgufWriter::new();
    part.set("split.count", Value::U16(2));
    let refusal = |part: GgufWriter| {
        let file = part.start(Vec::new()).unwrap().finish().unwrap();
        ModelShape::from_gguf(&Gguf::from_bytes(&file).unwrap()).unwrap_err().to_string()
    };
    let error = refusal(part.clone());
    assert!(error.starts_with("split.count is 2") && error.contains("--merge"), "{error}");
    part.set("split.count", Value::U16(1));
    let error = refusal(part);
    assert!(error.contains("general.architecture"), "{error}");
}

#[test]
fn heads_that_do_not_go_together_are_refused_by_both_keys() {
    let error = refusal_of("attention.head_count_kv", 3);
    for part in ["qwen3.attention.head_count is 4", "qwen3.attention.head_count_kv, which is 3"] {
        assert!(error.contains(part), "{error}");
    }
    let error = refusal_of("attention.head_count_kv", 0);
    assert!(error.starts_with("qwen3.attention.head_count_kv is 0"), "{error}");
}
