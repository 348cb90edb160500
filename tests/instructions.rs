//! The emulator's instruction table, row by row, on the device that `KILN_DEVICE` chooses: on a chip it tells whether the
//! table, and so the emulator, is right.

mod common;
#[path = "../emulator/tests/table/mod.rs"]
mod table;

use kiln::driver::{Device, DeviceBuffer, DeviceRepr, KernelParam, LaunchConfig, Module, Stream};
use table::{Row, warp};

/// What the newest instruction of the table needs: a chip before it is given each row in a module of its own.
const NEWEST: u32 = 90;

fn module(device: &Device, kernels: &str) -> kiln::Result<Module> {
    let sm = device.sm().min(NEWEST);
    // What cvt to 8-bit floats and packed 16-bit integers need.
    Module::from_ptx_str(device, &format!(".version 8.1\n.target sm_{sm}\n.address_size 64\n{kernels}"))
}

/// What a warp of the kernel `name` makes of `values`, a word for each lane.
fn launch<T: DeviceRepr>(stream: &Stream, module: &Module, name: &str, values: &[T]) -> kiln::Result<Vec<T>> {
    let input = DeviceBuffer::from_host(module.device(), values)?;
    let output = DeviceBuffer::<T>::zeroed(module.device(), 32)?;
    let function = module.function(name)?;
    let (from, to) = (input.as_ptr(), output.as_ptr());
    let params = [KernelParam::new(&from), KernelParam::new(&to)];
    let config = LaunchConfig::new([1, 1, 1], [32, 1, 1]);
    stream.enqueue([input.reads("in"), output.writes("out")], |stream| {
        // SAFETY: kernels of the tables read up to four words, those of a warp up to INPUTS, and write one a lane; both
        // buffers are that long.
        unsafe { function.launch(stream, &config, &params) }
    })?;
    output.to_host()
}

/// The results of a row in all lanes of a warp.
fn run(stream: &Stream, module: &Module, index: usize, row: &Row) -> kiln::Result<Vec<u64>> {
    let mut values: Vec<u64> = row.inputs.iter().map(|(_, value)| *value).collect();
    values.resize(4, 0);
    launch(stream, module, &format!("row{index}"), &values)
}

#[test]
fn programs_of_a_warp_find_what_the_isa_says() {
    let device = common::device();
    let stream = device.stream().expect("a stream");
    let values: Vec<u32> = (0..warp::INPUTS).map(warp::input).collect();
    let (mut held, mut wrong) = (0, Vec::new());
    for program in warp::programs(device.sm()) {
        let module = module(&device, &program.kernel()).unwrap_or_else(|error| panic!("{}: {error}", program.name));
        let found = launch(&stream, &module, program.name, &values);
        let found = found.unwrap_or_else(|error| panic!("{}: {error}", program.name));
        let expected: Vec<u32> = (0..32).map(program.expected).collect();
        if found == expected {
            held += 1;
        } else {
            wrong.push(format!("{}: {found:x?}, not {expected:x?}", program.name));
        }
    }
    println!("programs of a warp: {held} held, {} wrong", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_row_of_the_instruction_table_holds() {
    let device = common::device();
    let stream = device.stream().expect("a stream");
    let rows = table::rows();
    let kernels: Vec<String> = rows.iter().enumerate().map(|(index, row)| table::kernel(index, row, "")).collect();
    let all = if device.sm() >= NEWEST { Some(module(&device, &kernels.concat()).expect("a module")) } else { None };
    let (mut held, mut wrong, mut unknown) = (0, Vec::new(), 0);
    for (index, row) in rows.iter().enumerate() {
        let own = match &all {
            Some(_) => None,
            None => match module(&device, &kernels[index]) {
                Ok(module) => Some(module),
                Err(_) => {
                    unknown += 1;
                    continue;
                }
            },
        };
        let Some(module) = own.as_ref().or(all.as_ref()) else { continue };
        let results = run(&stream, module, index, row).unwrap_or_else(|error| panic!("{}: {error}", row.text));
        // Results that name a lane differ between them.
        let lanes = if row.text.contains("%lane") { 1 } else { 32 };
        match results[..lanes].iter().find(|result| !table::matches(row, **result)) {
            None => held += 1,
            Some(result) => {
                wrong.push(format!("line {}: {} gave {result:x}, not {}", row.line, row.text, row.expected))
            }
        }
    }
    println!("instruction table: {held} rows held, {} wrong, {unknown} not on this chip", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(unknown < rows.len() / 2, "{unknown} of {} rows are not known to the chip", rows.len());
    assert!(device.sm() < NEWEST || held == rows.len(), "{held} of {} rows", rows.len());
}
