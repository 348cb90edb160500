//! Source lines: full text has them for faults and counters, light text has none.
// A fault is large, and rare.
#![allow(clippy::result_large_err)]

use kiln_codegen::kernels::Saxpy;
use kiln_codegen::ptx::Text;
use kiln_codegen::{Bake, Kernel, Target, bake};
use kiln_emulator::{DeviceConfig, Fault, Launch, Memory, Module, Report};

const FILE: &str = "codegen/src/kernels/saxpy.rs";

fn saxpy(text: Text) -> String {
    let kernels: [Box<dyn Kernel>; 1] = [Box::new(Saxpy)];
    bake::emit_as(Target::new(90).expect("a target"), None, &kernels, text).expect("valid").ptx
}

/// Runs `n` elements of vectors that have 64.
fn run(text: &str, n: u32) -> Result<Report, Fault> {
    let memory = Memory::new(1 << 20);
    let module = Module::load(text, &memory).expect("it decodes");
    let [x, y] = [0u8; 2].map(|zero| {
        let at = memory.alloc(256).expect("memory");
        memory.fill(at, &[zero], 256).expect("it fits");
        at
    });
    let mut params: Vec<u8> = [x, y].iter().flat_map(|pointer| pointer.to_le_bytes()).collect();
    params.extend(2f32.to_le_bytes());
    params.extend(n.to_le_bytes());
    let launch = Launch {
        module: &module,
        kernel: "saxpy",
        grid: [1, 1, 1],
        block: module.kernel("saxpy").and_then(|kernel| kernel.reqntid).expect("a block"),
        dynamic_shared: 0,
        params: &params,
        cooperative: false,
        cluster: None,
    };
    kiln_emulator::run(&launch, &memory, &DeviceConfig { counters: true, ..DeviceConfig::with_sm(9, 0) })
}

#[test]
fn a_fault_names_the_kernels_line_where_the_text_has_it() {
    let [full, light] = [Text::Full, Text::Light].map(|text| run(&saxpy(text), 65).expect_err("the 65th is not there"));
    assert_eq!(full.source.as_ref().map(|(file, _)| file.as_str()), Some(FILE), "{full}");
    assert_eq!(light.source, None, "{light}");
    let line = saxpy(Text::Light).lines().nth(light.ptx_line as usize - 1).expect("a line").to_owned();
    assert!(line.starts_with("ld.global"), "{line}");
}

#[test]
fn counters_go_by_the_kernels_lines_where_the_text_has_them() {
    let counters = |text| run(&saxpy(text), 64).expect("64 are there").counters.expect("it counts");
    let (full, light) = (counters(Text::Full), counters(Text::Light));
    let of_file = full.lines.values().filter(|line| line.source.as_ref().is_some_and(|(file, _)| file == FILE));
    assert!(of_file.map(|line| line.bytes_used).sum::<u64>() >= 3 * 256);
    assert!(light.lines.values().all(|line| line.source.is_none()));
    assert_eq!(full.lane_instructions, light.lane_instructions);
}

#[test]
fn a_bake_keeps_provenance_where_asked() {
    for keeps in [false, true] {
        let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("provenance-{keeps}"));
        std::fs::create_dir_all(&folder).expect("a scratch folder");
        let bake = Bake::new().kernel(Saxpy).targets([Target::new(90).expect("a target")]).provenance(keeps);
        bake.write(&folder).expect("it bakes");
        let ptx = std::fs::read_to_string(folder.join("kiln_kernels_sm_90.ptx")).expect("a module");
        assert_eq!(ptx, saxpy(if keeps { Text::Full } else { Text::Light }));
        assert_eq!(ptx.contains(".loc") && ptx.contains(FILE), keeps, "{ptx}");
    }
}
