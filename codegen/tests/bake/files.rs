//! Models that are baked from the headers of their files.

use kiln_codegen::{Bake, Error, FileFault, ModelFile, Target};
use kiln_shape::gguf::GgufWriter;
use kiln_shape::{GgmlType, ModelShape, WeightType, presets};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A fresh folder, with a blank in its name.
fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("files {name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a scratch folder");
    folder
}

/// The shape of a small random model, one layer of it.
fn shape() -> ModelShape {
    ModelShape { layers: 1, vocab: 64, ..presets::by_name("tiny3-d64").expect("a preset").shape }
}

/// Writes a file of a shape whose matrices have one type, all zeros, but for the embedding's.
fn write(path: &Path, shape: &ModelShape, matrices: GgmlType, embedding: GgmlType) {
    let mut writer = GgufWriter::new();
    let key = |name: &str| format!("qwen3.{name}");
    writer.set("general.architecture", "qwen3");
    for (name, value) in [
        ("embedding_length", shape.hidden),
        ("feed_forward_length", shape.ffn),
        ("attention.head_count", shape.heads),
        ("attention.head_count_kv", shape.kv_heads),
        ("attention.key_length", shape.head_dim),
        ("block_count", shape.layers),
        ("context_length", shape.context),
    ] {
        writer.set(&key(name), value);
    }
    writer.set(&key("attention.layer_norm_rms_epsilon"), shape.rms_eps);
    writer.set(&key("rope.freq_base"), shape.rope_theta as f32);
    for spec in shape.tensors() {
        let ty = match spec.name.as_str() {
            "token_embd.weight" => embedding,
            _ if spec.role.is_matrix() => matrices,
            _ => GgmlType::F32,
        };
        writer.tensor(&spec.name, &spec.dims, ty).expect("whole blocks");
    }
    let bytes = writer.data_bytes();
    let mut data = writer.start(File::create(path).expect("a file")).expect("a header");
    io::copy(&mut io::repeat(0).take(bytes), &mut data).expect("data");
    data.finish().expect("all of it");
}

fn fault(path: &Path) -> FileFault {
    match ModelFile::open(path) {
        Err(Error::ModelFile { path: named, fault }) => {
            assert_eq!(named, path);
            fault
        }
        other => panic!("{}: {other:?}", path.display()),
    }
}

/// A list as the variable has it.
fn list(entries: &[&Path]) -> OsString {
    std::env::join_paths(entries).expect("no separator within")
}

#[test]
fn a_file_gives_name_shape_and_only_its_types() {
    let folder = scratch("types");
    let path = folder.join("my model.Q8_0.gguf");
    write(&path, &shape(), GgmlType::Q8_0, GgmlType::Q4_K);
    let file = ModelFile::open(&path).expect("a model");
    assert_eq!((file.name(), file.shape(), file.path()), ("my model.Q8_0", shape(), path.as_path()));
    assert_eq!(file.types(), [WeightType::Q8_0, WeightType::Q4_K]);

    let target = Target::new(90).expect("a target");
    let bake = |bake: Bake, name: &str| {
        let out = folder.join(name);
        fs::create_dir_all(&out).expect("a folder");
        bake.targets([target]).write(&out).expect("it bakes");
        out
    };
    // A preset and a file in one bake.
    let tiny = presets::by_name("tiny").expect("a preset");
    let out = bake(Bake::new().model_file(&file).model("tiny", tiny.shape), "own");
    let text = fs::read_to_string(out.join("kiln_baked.rs")).expect("it is written");
    assert!(text.contains("MODELS: &[&::kiln::baked::BakedModel] = &[&MY_MODEL_Q8_0, &TINY];"), "{text}");
    assert!(text.contains("WeightTypes::of(&[::kiln::shape::WeightType::Q8_0, ::kiln::shape::WeightType::Q4_K])"));
    // The text of the other types is not there.
    let all = bake(Bake::new().model("all", shape()), "all");
    let bytes = |path: PathBuf| fs::metadata(path).expect("a module").len();
    let own = bytes(out.join("kiln_my_model_q8_0_sm_90_stream_exact.ptx"));
    let all = bytes(all.join("kiln_all_sm_90_stream_exact.ptx"));
    assert!(own * 2 < all, "{own} bytes of two types, {all} of nine");
}

#[test]
fn what_is_no_model_is_refused_by_its_path() {
    let folder = scratch("refused");
    assert!(matches!(fault(Path::new("models/own.gguf")), FileFault::Relative));
    assert!(matches!(fault(&folder.join("a\nb.gguf")), FileFault::Unprintable));
    assert!(matches!(fault(&folder), FileFault::NotAFile));
    let missing = folder.join("missing.gguf");
    assert!(matches!(fault(&missing), FileFault::Io(error) if error.kind() == io::ErrorKind::NotFound));
    let error = ModelFile::open(&missing).expect_err("it is missing").to_string();
    assert!(error.contains("missing.gguf") && error.contains("No such file"), "{error}");
    let text = folder.join("text.gguf");
    for (content, said) in [("no model", "GGUF"), ("", "GGUF")] {
        fs::write(&text, content).expect("a file");
        let fault = fault(&text);
        assert!(matches!(&fault, FileFault::Header(error) if error.to_string().contains(said)), "{fault}");
    }
    // Cut within the weights: the header says that there is more.
    let cut = folder.join("cut.gguf");
    write(&cut, &shape(), GgmlType::Q8_0, GgmlType::Q8_0);
    let file = File::options().write(true).open(&cut).expect("a file");
    file.set_len(file.metadata().expect("a length").len() - 64).expect("it is cut");
    assert!(fault(&cut).to_string().contains("cut"), "{}", fault(&cut));
    // A type without kernels.
    let odd = folder.join("odd.gguf");
    write(&odd, &shape(), GgmlType::Q5_1, GgmlType::Q8_0);
    assert!(fault(&odd).to_string().contains("Q5_1"), "{}", fault(&odd));
}

#[cfg(unix)]
#[test]
fn a_pipe_is_refused_and_not_waited_for() {
    let pipe = scratch("pipe").join("pipe.gguf");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs");
    assert!(made.success());
    assert!(matches!(fault(&pipe), FileFault::NotAFile));
}

#[test]
fn a_list_names_files_as_path_does() {
    let folder = scratch("list");
    let (first, second) = (folder.join("first.gguf"), folder.join("second = 2.gguf"));
    write(&first, &shape(), GgmlType::Q8_0, GgmlType::Q8_0);
    write(&second, &shape(), GgmlType::F16, GgmlType::F16);
    let named = PathBuf::from(format!("own={}", second.display()));
    let files = ModelFile::list(&list(&[&first, Path::new(""), &named, &second])).expect("models");
    let names: Vec<&str> = files.iter().map(ModelFile::name).collect();
    assert_eq!(names, ["first", "own", "second = 2"]);
    assert_eq!((files[1].path(), files[1].types()), (second.as_path(), &[WeightType::F16][..]));
    assert_eq!(ModelFile::list("".as_ref()).expect("none"), []);
    let relative = ModelFile::list(&list(&[&first, Path::new("own=model.gguf")]));
    assert!(matches!(relative, Err(Error::ModelFile { fault: FileFault::Relative, .. })), "{relative:?}");
}

#[test]
fn names_that_clash_are_refused_with_the_file() {
    let folder = scratch("clash");
    let path = folder.join("tiny.gguf");
    write(&path, &shape(), GgmlType::Q8_0, GgmlType::Q8_0);
    let file = ModelFile::open(&path).expect("a model");
    let refusal = |bake: Bake| match bake.targets(Target::DEFAULT).write(&folder) {
        Err(error @ Error::ModelName { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let tiny = presets::by_name("tiny").expect("a preset").shape;
    for bake in [Bake::new().model("tiny", tiny).model_file(&file), Bake::new().model_file(&file).model_file(&file)] {
        let error = refusal(bake);
        for part in ["`TINY`", "model \"tiny\"", "tiny.gguf", "NAME=PATH"] {
            assert!(error.contains(part), "{part} in {error}");
        }
    }
    for name in ["8b", "", "kernels", "日本"] {
        let error = refusal(Bake::new().model_file(&file.clone().named(name)));
        assert!(error.contains("tiny.gguf") && error.contains("NAME=PATH"), "{error}");
    }
    // The preset first or the file first: whoever comes second is told, and the file's name is in it where it is one.
    let error = refusal(Bake::new().model_file(&file).model("tiny", tiny));
    assert!(error.contains("tiny.gguf: `NAME=PATH` gives"), "{error}");
}
