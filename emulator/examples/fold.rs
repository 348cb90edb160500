//! Prints what an assembler is expected to make of each line of a PTX file, as the clock counts it.
//!
//! ```text
//! cargo run --release -p kiln-emulator --example fold -- FILE.ptx
//! ```

use kiln_emulator::{Memory, Module};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("give a file of PTX text")?;
    let text = std::fs::read_to_string(path)?;
    let module = Module::load(&text, &Memory::new(1 << 30))?;
    let lines: Vec<&str> = text.lines().collect();
    for kernel in module.kernel_names() {
        println!("{kernel}");
        for (line, pipe, count) in module.instructions(kernel) {
            println!("{line:6} {pipe:8} {count:3}  {}", lines.get(line as usize - 1).unwrap_or(&"").trim());
        }
    }
    Ok(())
}
