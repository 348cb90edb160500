//! What a bake says of kernels to those who launch them.

use kiln_codegen::bake::{DecoderPath, Descriptor, decoder, emit};
use kiln_codegen::kernels::{KvCacheScatter, Saxpy};
use kiln_codegen::{Bake, Kernel, KvType, Numerics, Target};
use kiln_shape::{NumberType, ParamType, WeightType, presets};
use std::path::Path;

/// The parameters of the kernel `name` among the baked.
fn params(baked: &[Descriptor], name: &str) -> Vec<(String, ParamType)> {
    let kernel = baked.iter().find(|kernel| kernel.name == name).expect("the kernel is baked");
    kernel.params.iter().map(|param| (param.name.clone(), param.ty)).collect()
}

fn baked(kernels: &[Box<dyn Kernel>]) -> Vec<Descriptor> {
    emit(Target::DEFAULT[0], None, kernels).expect("it bakes").kernels
}

#[test]
fn a_descriptor_has_the_names_and_types_of_parameters_in_order() {
    let expected = [
        ("x", ParamType::Read(NumberType::F32)),
        ("y", ParamType::Write(NumberType::F32)),
        ("a", ParamType::Value(NumberType::F32)),
        ("n", ParamType::Value(NumberType::U32)),
    ];
    let expected = expected.map(|(name, ty)| (name.to_owned(), ty));
    assert_eq!(params(&baked(&[Box::new(Saxpy)]), "saxpy"), expected);
}

#[test]
fn a_cache_has_its_own_type_and_is_written_where_the_kernel_stores() {
    for (kv, number) in [(KvType::F16, NumberType::F16), (KvType::F32, NumberType::F32)] {
        let found =
            params(&baked(&[Box::new(KvCacheScatter::general(kv))]), &format!("kv_cache_scatter_{}", kv.suffix()));
        let of = |name: &str| found.iter().find(|(found, _)| found == name).map(|(_, ty)| *ty);
        assert_eq!(of("k_cache"), Some(ParamType::Write(number)));
        assert_eq!(of("k"), Some(ParamType::Read(NumberType::F32)));
    }
}

/// Addresses reach the stores of a phase through tiles, selections and loops.
#[test]
fn a_phase_writes_its_output_and_nothing_else() {
    let shape = presets::by_name("tiny").expect("a preset").shape;
    let baked = baked(&decoder(shape, WeightType::ALL, DecoderPath::Stream, Numerics::Exact));
    for name in ["rmsnorm_qkv", "attention_output_residual", "rmsnorm_gate_up_swiglu", "down_residual", "rmsnorm_head"]
    {
        let written = params(&baked, name).into_iter().filter(|(_, ty)| matches!(ty, ParamType::Write(_)));
        assert_eq!(written.map(|(name, _)| name).collect::<Vec<_>>(), ["y"], "{name}");
    }
}

#[test]
fn a_list_of_parameters_stands_once_in_a_static() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("descriptors");
    std::fs::create_dir_all(&folder).expect("a scratch folder");
    let shape = presets::by_name("tiny").expect("a preset").shape;
    Bake::new().model("tiny", shape).targets(Target::DEFAULT).write(&folder).expect("it bakes");
    let text = std::fs::read_to_string(folder.join("kiln_baked.rs")).expect("a file");
    let lists: Vec<&str> = text.lines().filter_map(|line| line.trim().strip_prefix("const ")).collect();
    let phases = lists.iter().filter(|list| list.contains("Param::value(\"layer\", U32), Param::read(\"x\", F32)"));
    assert_eq!(phases.count(), 1, "{lists:#?}");
}

/// The generated file of a bake for the default targets.
fn generated(folder: &str, bake: Bake) -> Result<String, kiln_codegen::Error> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    std::fs::create_dir_all(&folder).expect("a scratch folder");
    bake.targets(Target::DEFAULT).write(&folder)?;
    Ok(std::fs::read_to_string(folder.join("kiln_baked.rs")).expect("a file"))
}

#[test]
fn a_kernel_of_ones_own_gets_a_launch_with_its_parameters() {
    let bake = Bake::new().kernel_as("own_saxpy", Saxpy).kernel_as("own_scatter", KvCacheScatter::general(KvType::F16));
    let bake = bake.general_kernels();
    let text = generated("launches", bake).expect("it bakes");
    let launch = text.split_once("pub struct OwnSaxpy<'a> {").expect("a launch").1.split_once('}').expect("its end").0;
    let fields: Vec<&str> = launch.split_whitespace().collect();
    let (read, write) = ("::kiln::launch::In<'a,", "::kiln::launch::Out<'a,");
    assert_eq!(fields, ["x:", read, "f32>,", "y:", write, "f32>,", "a:", "f32,", "n:", "u32,"]);
    assert!(text.contains("Entry for OwnSaxpy<'_> {\n    const NAME: &'static str = \"own_saxpy\";"), "{text}");
    assert!(text.contains("::kiln::launch::Out<'a, ::kiln::launch::f16>"), "a cache in half precision");
    // The general kernels are launched by kiln.
    assert_eq!(text.matches("launch::launch!").count(), 2);
}

/// A kernel of these parameters that does nothing.
#[derive(Debug)]
struct Odd(&'static str, fn(&mut kiln_codegen::ptx::Builder));

impl Kernel for Odd {
    fn name(&self) -> &str {
        self.0
    }

    fn build(&self, b: &mut kiln_codegen::ptx::Builder) {
        (self.1)(b);
    }
}

#[test]
fn what_can_have_no_launch_is_said_or_refused() {
    use kiln_codegen::ptx::{F32, Global, U32};
    let bake = Bake::new()
        .kernel(Odd("numbers", |b| {
            b.param::<U32>("n");
        }))
        .kernel(Odd("words", |b| {
            b.param::<Global<F32>>("type");
        }));
    let text = generated("odd", bake).expect("it bakes");
    assert!(text.contains("// `numbers` has no launch: it takes no addresses."), "{text}");
    assert!(text.contains("// `words` has no launch: a field cannot be named `type`."), "{text}");
    let error = generated("same", Bake::new().kernel_as("a_b", Saxpy).kernel_as("a__b", Saxpy)).expect_err("one name");
    assert!(error.to_string().contains("\"a__b\": its launch would be `AB`, that of `a_b`"), "{error}");
    for name in ["self", "_8"] {
        let error = generated("none", Bake::new().kernel_as(name, Saxpy)).expect_err("no name").to_string();
        assert!(error.contains("no name for a struct"), "{error}");
    }
}
