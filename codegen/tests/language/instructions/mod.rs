//! Every instruction and every method of the builder: printed, decoded and run on the emulator, all checks on, and
//! compared with what Rust computes. A row of the table, or a method, that no case uses fails a test of its own.

mod control;
mod matrix;
mod memory;
mod registers;

use kiln_codegen::Target;
use kiln_codegen::ptx::{Builder, Dim, F32, F64, Global, LoadKind, Module, Opcode, Size, Text, U8, U32, Val};
use kiln_emulator::{Checks, DeviceConfig, Launch, Memory, Schedule, add_device, resolve};
use std::collections::BTreeSet;

/// Threads of a block: two warps.
const BLOCK: u32 = 64;
/// Blocks in x, y and z.
const GRID: [u32; 3] = [2, 3, 2];
const THREADS: u32 = BLOCK * GRID[0] * GRID[1] * GRID[2];
/// The launch parameter `n`.
const N: u32 = 37;
/// Words of scratch memory that each thread has; zeros.
const OWN: u32 = 8;

/// Threads whose words are a row of the tensor map, and the bytes and rows of its boxes.
const ROW: u32 = 16;
const BOX: [u32; 2] = [64, 2];

/// Bytes of dynamic shared memory that launches give besides.
const REST: u32 = 16 * BLOCK;

/// What a case works with.
#[derive(Clone, Copy)]
struct In {
    /// Words of the thread.
    x: Val<U32>,
    y: Val<U32>,
    z: Val<U32>,
    /// Numbers of the thread; `h` is positive.
    f: Val<F32>,
    g: Val<F32>,
    h: Val<F32>,
    /// All words and numbers, four of each a thread, and one double.
    words: Global<U32>,
    doubles: Global<F64>,
    /// The tensor map of the words as rows of [`ROW`] threads, and boxes of [`BOX`] bytes and rows.
    map: Global<U8>,
    /// The thread's scratch memory, and all of it.
    own: Global<U32>,
    scratch: Global<U32>,
    /// Where the thread's result goes.
    out: Global<U32>,
    n: Size,
    /// The thread's number in the grid.
    thread: Val<U32>,
}

/// A thread, for what is expected of it.
#[derive(Clone, Copy)]
struct Thread(u32);

impl Thread {
    fn word(self, index: u32) -> u32 {
        (self.0 * 4 + index + 1).wrapping_mul(0x9e37_79b9).rotate_left(13).wrapping_mul(0x85eb_ca6b)
    }

    /// From -8 to 8, seldom whole.
    fn number(self, index: u32) -> f32 {
        let number = (self.word(index) >> 8) as f32 / (1 << 20) as f32 - 8.0;
        if index == 2 { number.abs() + 0.5 } else { number }
    }

    fn double(self) -> f64 {
        f64::from(self.word(0)) / f64::from(self.word(1) | 1)
    }

    fn x(self) -> u32 {
        self.word(0)
    }
    fn y(self) -> u32 {
        self.word(1)
    }
    fn z(self) -> u32 {
        self.word(2)
    }
    fn f(self) -> f32 {
        self.number(0)
    }
    fn g(self) -> f32 {
        self.number(1)
    }
    fn h(self) -> f32 {
        self.number(2)
    }
    fn tid(self) -> u32 {
        self.0 % BLOCK
    }
    fn block(self) -> u32 {
        self.0 / BLOCK
    }
    /// A thread of the same block.
    fn beside(self, tid: u32) -> Thread {
        Thread(self.block() * BLOCK + tid)
    }
    /// The threads of the block.
    fn all(self) -> impl Iterator<Item = Thread> {
        (0..BLOCK).map(move |tid| self.beside(tid))
    }
}

/// A kernel of one result per thread.
struct Case {
    name: &'static str,
    build: fn(&mut Builder, In) -> Val<U32>,
    expected: fn(Thread) -> u32,
    /// How far the result, as a float, may be from what is expected; 0 for the same bits.
    within: f32,
    /// The target it is built for, and the chip it runs on; and whether it needs that chip's own instructions.
    sm: u32,
    own: bool,
}

/// A case whose result has exactly the bits expected.
const fn case(name: &'static str, build: fn(&mut Builder, In) -> Val<U32>, expected: fn(Thread) -> u32) -> Case {
    Case { name, build, expected, within: 0.0, sm: 80, own: false }
}

fn cases() -> Vec<Case> {
    [registers::cases(), memory::cases(), matrix::cases(), control::cases()].into_iter().flatten().collect()
}

impl Case {
    /// The case for another target.
    const fn of(self, sm: u32) -> Case {
        Case { sm, ..self }
    }

    /// The case for that target's own instructions.
    const fn of_own(self, sm: u32) -> Case {
        Case { sm, own: true, ..self }
    }

    fn module(&self) -> Module {
        let target = Target::new(self.sm).and_then(|target| if self.own { target.own() } else { Some(target) });
        let mut module = Module::new(target.expect("a target"));
        let built = module.kernel("probe", BLOCK, |b| {
            let words = b.param::<Global<U32>>("words");
            let numbers = b.param::<Global<F32>>("numbers");
            let doubles = b.param::<Global<F64>>("doubles");
            let map = b.param::<Global<U8>>("map");
            let scratch = b.param::<Global<U32>>("scratch");
            let out = b.param::<Global<U32>>("out");
            let n = b.dim("n", Dim::Param);
            let (x, y, z, width) = (b.ctaid_x(), b.ctaid_y(), b.ctaid_z(), b.nctaid_x());
            let row = b.mad::<U32>(z, GRID[1], y);
            let block = b.mad(row, width, x);
            let tid = b.tid();
            let thread = b.mad(block, BLOCK, tid);
            let first = b.mul(thread, 4);
            let (at, numbers) = (b.index(words, first), b.index(numbers, first));
            let [x, y, z, _] = b.ld_vector(at, LoadKind::Constant);
            let [f, g, h, _] = b.ld_vector(numbers, LoadKind::Constant);
            let own = b.byte_index(scratch, thread, 4 * OWN);
            let out = b.index(out, thread);
            let result = (self.build)(b, In { x, y, z, f, g, h, words, doubles, map, own, scratch, out, n, thread });
            b.st(out, result);
        });
        if let Err(error) = built {
            panic!("{}: {error}", self.name);
        }
        module
    }

    /// What each thread gives, from text as full as asked for.
    fn run(&self, text: Text) -> Vec<u32> {
        let module = self.module();
        let dynamic_shared = REST + module.functions().map(|function| function.dynamic_shared()).sum::<u32>();
        let memory = Memory::new(1 << 24);
        let text = module.ptx_as(text);
        let module =
            kiln_emulator::Module::load(&text, &memory).unwrap_or_else(|e| panic!("{}: {e}\n{text}", self.name));
        let buffer = |bytes: Vec<u8>| {
            let at = memory.alloc(bytes.len() as u64).expect("memory");
            memory.write(at, &bytes).expect("the bytes fit");
            at
        };
        let threads = (0..THREADS).map(Thread);
        let each = threads.clone().flat_map(|thread| (0..4).map(move |index| (thread, index)));
        let words = buffer(each.clone().flat_map(|(thread, index)| thread.word(index).to_le_bytes()).collect());
        let numbers = buffer(each.flat_map(|(thread, index)| thread.number(index).to_le_bytes()).collect());
        let doubles = buffer(threads.flat_map(|thread| thread.double().to_le_bytes()).collect());
        let map = buffer(map_of(words).to_vec());
        let scratch = buffer(vec![0; (4 * OWN * THREADS) as usize]);
        let out = memory.alloc(u64::from(4 * THREADS)).expect("memory");
        let mut params: Vec<u8> =
            [words, numbers, doubles, map, scratch, out].iter().flat_map(|pointer| pointer.to_le_bytes()).collect();
        params.extend(N.to_le_bytes());
        let launch = Launch {
            module: &module,
            kernel: "probe",
            grid: GRID,
            block: [BLOCK, 1, 1],
            dynamic_shared,
            params: &params,
            cooperative: false,
            cluster: None,
        };
        let schedule = Schedule::Random;
        let chip = DeviceConfig::with_sm(self.sm / 10, self.sm % 10);
        let config = DeviceConfig { threads: 1, checks: Checks::ALL, schedule, seed: 7, ..chip };
        kiln_emulator::run(&launch, &memory, &config).unwrap_or_else(|fault| panic!("{}: {fault}\n{text}", self.name));
        let mut bytes = vec![0; (4 * THREADS) as usize];
        memory.read(out, &mut bytes).expect("the results are there");
        bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes"))).collect()
    }
}

/// The tensor map of the words at an address.
fn map_of(words: u64) -> [u8; 128] {
    #[repr(align(64))]
    struct Map([u8; 128]);
    type Init = unsafe extern "C" fn(u32) -> u32;
    #[rustfmt::skip]
    type Encode = unsafe extern "C" fn(*mut Map, u32, u32, u64, *const u64, *const u64, *const u32, *const u32, u32, u32, u32, u32) -> u32;
    let mut map = Map([0; 128]);
    add_device(DeviceConfig::default());
    let row = u64::from(16 * ROW);
    let (sizes, strides) = ([row, u64::from(THREADS / ROW)], [row]);
    // SAFETY: the signatures are those of NVIDIA's header; the pointers are to as many values as there are dimensions.
    let codes = unsafe {
        let init: Init = std::mem::transmute(resolve(c"cuInit").expect("a function").as_ptr());
        let encode: Encode = std::mem::transmute(resolve(c"cuTensorMapEncodeTiled").expect("a function").as_ptr());
        let (sizes, strides, steps) = (sizes.as_ptr(), strides.as_ptr(), [1; 2].as_ptr());
        (init(0), encode(&mut map, 0, 2, words, sizes, strides, BOX.as_ptr(), steps, 0, 0, 0, 0))
    };
    assert_eq!(codes, (0, 0));
    map.0
}

#[test]
fn every_instruction_gives_what_rust_computes() {
    for (case, text) in cases().iter().flat_map(|case| [(case, Text::Full), (case, Text::Light)]) {
        for (thread, found) in case.run(text).into_iter().enumerate() {
            let expected = (case.expected)(Thread(thread as u32));
            let near = (f32::from_bits(found) - f32::from_bits(expected)).abs() <= case.within;
            assert!(
                found == expected || (case.within > 0.0 && near),
                "{}: thread {thread} gives {found:#x}, not {expected:#x}, in {text:?} text",
                case.name
            );
        }
    }
}

#[test]
fn every_row_of_the_table_is_in_a_case() {
    let used: BTreeSet<Opcode> = cases()
        .iter()
        .flat_map(|case| case.module().functions().flat_map(|f| f.opcodes()).collect::<Vec<_>>())
        .collect();
    let missing: Vec<_> = Opcode::ALL.iter().filter(|opcode| !used.contains(opcode)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The builder's methods, as its source declares them.
#[test]
fn every_method_of_the_builder_is_in_a_case() {
    let declared = [
        include_str!("../../../src/ptx/builder.rs"),
        include_str!("../../../src/ptx/flow.rs"),
        include_str!("../../../src/ptx/ops.rs"),
        include_str!("../../../src/ptx/memory.rs"),
    ];
    let called =
        [include_str!("mod.rs"), include_str!("registers.rs"), include_str!("memory.rs"), include_str!("control.rs")]
            .concat();
    let methods: BTreeSet<&str> = declared
        .iter()
        .flat_map(|source| source.lines())
        .filter_map(|line| line.strip_prefix("    pub fn "))
        .filter_map(|line| line.split(['(', '<']).next())
        .collect();
    assert!(methods.contains("fma") && methods.contains("for_range"), "{methods:?}");
    // Of the builder itself the module makes one; of a role it is no method.
    let unused: Vec<&&str> = methods
        .iter()
        .filter(|name| **name != "new")
        .filter(|name| !called.contains(&format!(".{name}(")) && !called.contains(&format!(".{name}::<")))
        .collect();
    assert!(unused.is_empty(), "{unused:?}");
}
