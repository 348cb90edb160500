//! How often the blocks of the persistent decoder wait for each other in a token: counted by the kernel itself, whose text is
//! given a clock of messages, and run by the emulator.
//!
//! A warp's hops are the messages in the longest chain that it has behind it. What it publishes carries one more, whoever
//! finds that has as many at least, and a barrier of the block makes its warps equal. So a token's hops are what it has of
//! dependencies one after another, whatever else is waited for meanwhile.

use crate::common;
use crate::exchange::{of_layers, open_on, rewrite};
use kiln::model::{GenerateOptions, KvType, Numerics, PathChoice, Sampling, SessionOptions};
use kiln_emulator::{Checks, DeviceConfig};
use kiln_shape::exchange::EMPTY;
use kiln_shape::table::KV_CHUNK;
use kiln_shape::units::FAST_CHUNK;
use std::sync::Barrier;

/// Words that have hops of their own, by the lowest bits of their address.
const WORDS: u32 = 1 << 20;
const WARPS: u32 = 8;
const BLOCKS: u32 = 8;

/// Puts a word's place among those that carry hops into `%at`.
fn place(operand: &str, further: u32) -> String {
    let (base, offset) = operand.split_once('+').unwrap_or((operand, "0"));
    let offset: u32 = offset.parse().expect("an offset");
    format!(
        "add.s64 %at, {base}, {}; and.b64 %at, %at, {}; mov.u64 %of, carried; add.s64 %at, %at, %of;",
        offset + further,
        4 * (WORDS - 1)
    )
}

/// The text between braces in which `%own` is where the warp's hops lie, and `%all` where its block's do.
fn within(body: &str) -> String {
    format!(
        "{{ .reg .b64 %at, %of, %own, %all; .reg .b32 %hops, %warp, %block; .reg .pred %is; mov.u32 %block, %ctaid.x; \
         mov.u32 %warp, %tid.x; shr.u32 %warp, %warp, 5; mad.lo.u32 %warp, %block, {WARPS}, %warp; \
         mov.u64 %of, hops; mad.wide.u32 %own, %warp, 4, %of; mov.u64 %of, joined; mad.wide.u32 %all, %block, 4, %of; \
         {body} }}"
    )
}

/// What a message's way is counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Count {
    /// One, whatever it takes.
    Hops,
    /// Trips to the L2 cache one behind another: of a store, of the load that finds it, of a fence, which waits for the stores before it,
    /// and of an operation there and back.
    Trips,
}

/// The text of a kernel that counts hops, and the number of the line that it runs once for each hop between the begins of
/// its first token and its last one.
fn counting(ptx: &str, count: Count) -> String {
    rewrite(ptx, |line, _| {
        let operand =
            |line: &str| line.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|of| of.0.to_owned());
        if line.starts_with(".address_size") {
            return Some(format!(
                "{line}\n.global .align 4 .u32 carried[{WORDS}];\n.global .align 4 .u32 hops[{}];\n\
                 .global .align 4 .u32 joined[{BLOCKS}];\n.global .align 4 .u32 begun[1];",
                WARPS * BLOCKS
            ));
        }
        if line.starts_with("bar.sync") {
            let gives = "ld.relaxed.gpu.global.u32 %hops, [%own]; red.relaxed.gpu.global.max.u32 [%all], %hops;";
            let takes = "ld.relaxed.gpu.global.u32 %hops, [%all]; red.relaxed.gpu.global.max.u32 [%own], %hops;";
            return Some(within(&format!("{gives} {line} {takes} {line}")));
        }
        if line.starts_with("st.shared.u32 [first_epoch+4], %") {
            // A token begins.
            return Some(within(&format!(
                "{line} setp.ne.u32 %is, %block, 0; @%is bra $counted; ld.relaxed.gpu.global.u32 %hops, [%own]; \
                 mov.u64 %at, begun; ld.relaxed.gpu.global.u32 %warp, [%at]; st.relaxed.gpu.global.u32 [%at], %hops; \
                 setp.eq.u32 %is, %warp, 0; @%is bra $counted;\n$count:\n{COUNTED}\n\
                 add.u32 %warp, %warp, 1; setp.lt.u32 %is, %warp, %hops; @%is bra $count;\n$counted:\n"
            )));
        }
        if count == Count::Trips && line.starts_with("fence.acq_rel.gpu") {
            let waits = "ld.relaxed.gpu.global.u32 %hops, [%own]; add.u32 %hops, %hops, 1;";
            return Some(within(&format!("{line} {waits} red.relaxed.gpu.global.max.u32 [%own], %hops;")));
        }
        let back = match count {
            Count::Hops => "",
            Count::Trips => "add.u32 %hops, %hops, 1;",
        };
        let (operation, rest) = line.split_once(' ')?;
        if !operation.contains(".gpu.global") {
            return None;
        }
        let at = operand(rest)?;
        let carries = "ld.relaxed.gpu.global.u32 %hops, [%own]; add.u32 %hops, %hops, 1;";
        match operation.split('.').next()? {
            "st" | "red" => {
                let carries = format!("{} {carries} red.relaxed.gpu.global.max.u32 [%at], %hops;", place(&at, 0));
                Some(within(&format!("{carries} {line}")))
            }
            "atom" => {
                let carries =
                    format!("{} {carries} atom.relaxed.gpu.global.max.u32 %hops, [%at], %hops;", place(&at, 0));
                Some(within(&format!("{carries} {back} red.relaxed.gpu.global.max.u32 [%own], %hops; {line}")))
            }
            "ld" => {
                let (to, _) = rest.split_once('[')?;
                let to = to.trim().trim_end_matches(',').trim_matches(['{', '}']);
                let finds = to.split(", ").zip((0..).step_by(4)).map(|(value, further)| {
                    // An empty word is no message.
                    let finds = format!(
                        "ld.relaxed.gpu.global.u32 %hops, [%at]; {back} @%is red.relaxed.gpu.global.max.u32 [%own], %hops;"
                    );
                    format!("mov.b32 %hops, {value}; setp.ne.u32 %is, %hops, {EMPTY}; {} {finds}", place(&at, further))
                });
                Some(format!("{line} {}", within(&finds.collect::<Vec<_>>().join(" "))))
            }
            _ => None,
        }
    })
}

/// An instruction that the kernel has nowhere else.
const COUNTED: &str = "brev.b32 %block, %block;";

/// Hops of a token behind a prompt, in a model of so many layers. All tokens are of one launch.
fn hops(layers: u32, prompt: u32, kv: KvType, count: Count) -> u64 {
    let until = |tokens: usize| {
        let config =
            DeviceConfig { multiprocessors: BLOCKS, checks: Checks::NONE, counters: true, ..DeviceConfig::default() };
        let model = open_on(config, of_layers(layers), |ptx| counting(ptx, count));
        let ordinal = model.device().ordinal();
        kiln_emulator::clear_reports(ordinal);
        let options = SessionOptions::default().with_numerics(Numerics::Fast).with_kv(kv).with_capacity(256);
        let mut session = model.session(options.with_path(PathChoice::Persistent)).expect("a session");
        let ids: Vec<u32> = (0..prompt).map(|id| 7 * id % 600).collect();
        session.append(&ids).expect("they fit");
        session.generate(GenerateOptions::new(tokens)).collect::<kiln::Result<Vec<_>>>().expect("it generates");
        drop(session);
        drop(model);
        let reports = kiln_emulator::reports(ordinal);
        let decoder: Vec<_> = reports.iter().filter(|report| report.kernel == "persistent_decoder").collect();
        assert_eq!(decoder.len(), 1, "launches");
        decoder[0].counters.by_opcode.get("brev").copied().unwrap_or(0)
    };
    let [few, many] = [3, 5].map(until);
    println!("{layers} layers behind {prompt} ids, {kv:?}: {few} {count:?} of three tokens, {many} of five");
    assert_eq!((many - few) % 2, 0, "tokens differ");
    (many - few) / 2
}

#[test]
fn tokens_take_five_dependencies_a_layer_and_one_within_kv_heads() {
    if common::is_left_out_on_gpu("a changed text is for the emulator to run") {
        return;
    }
    for (prompt, of_layer) in [(4, 5), (FAST_CHUNK + 4, 6)] {
        let [one, three] = [1, 3].map(|layers| hops(layers, prompt, KvType::F16, Count::Hops));
        println!("behind {prompt} ids: {one} for one layer, {three} for three");
        assert_eq!(three - one, 2 * of_layer, "two layers");
        // The blocks' best logits: 217 at most for 36 layers.
        assert_eq!(one - of_layer, 1, "beside layers");
    }
}

/// Each dependency of a layer is a store and the load that finds it; a unit's parts as well, of which eight are waited for at once.
/// Where the cache is in f32, units go by a counter between fences.
#[test]
#[ignore = "longer; .ci/run runs it"]
fn dependencies_take_two_trips() {
    if common::is_left_out_on_gpu("a changed text is for the emulator to run") {
        return;
    }
    let of_layer = |prompt, kv| {
        let [one, three] = [1, 3].map(|layers| hops(layers, prompt, kv, Count::Trips));
        println!("behind {prompt} ids: {one} for one layer, {three} for three");
        (three - one) / 2
    };
    assert_eq!(of_layer(4, KvType::F16), 10, "five dependencies");
    assert_eq!(of_layer(FAST_CHUNK + 4, KvType::F16), 12, "six dependencies");
    assert!(of_layer(KV_CHUNK + 4, KvType::F32) > 12, "fences and a counter");
}

/// The text of a kernel whose first block counts its passes, and its barriers of the grid.
fn counting_barriers(ptx: &str) -> String {
    let arrives = |line: &str| line.starts_with("red.relaxed.gpu.global.add.u32 [") && line.ends_with("], 1;");
    // What blocks arrive at behind attention has a place for each KV head, in a register of its own.
    let mut all: Vec<&str> = ptx.lines().map(str::trim).filter(|line| arrives(line)).collect();
    all.sort_unstable();
    let arrival = all.chunk_by(|one, other| one == other).max_by_key(|same| same.len()).expect("a barrier")[0];
    let by_first = |line: &str, counted: &str| {
        format!(
            "{line} {{ .reg .b32 %block; .reg .pred %is; mov.u32 %block, %ctaid.x; setp.ne.u32 %is, %block, 0; \
             @%is bra $counted; {counted}\n$counted:\n }}"
        )
    };
    rewrite(ptx, |line, _| match line {
        _ if line == arrival => Some(by_first(line, "popc.b32 %block, %block;")),
        _ if line.starts_with("st.shared.u32 [first_epoch+4], %") => Some(by_first(line, COUNTED)),
        _ => None,
    })
}

/// Passes over the weights for three sessions that begin together, and barriers of the grid in them.
fn barriers_of_three(sampling: &Sampling) -> [u64; 2] {
    let config =
        DeviceConfig { multiprocessors: BLOCKS, checks: Checks::NONE, counters: true, ..DeviceConfig::default() };
    let model = open_on(config, of_layers(1), counting_barriers);
    let ordinal = model.device().ordinal();
    kiln_emulator::clear_reports(ordinal);
    let options = SessionOptions::default().with_numerics(Numerics::Fast).with_kv(KvType::F16).with_capacity(128);
    let begin = Barrier::new(3);
    std::thread::scope(|scope| {
        for id in [5, 600, 7] {
            let (model, begin) = (&model, &begin);
            scope.spawn(move || {
                let mut session = model.session(options.with_path(PathChoice::Persistent)).expect("a session");
                session.append(&[id]).expect("it fits");
                begin.wait();
                let options = GenerateOptions::new(20).with_sampling(sampling.clone());
                session.generate(options).collect::<kiln::Result<Vec<_>>>().expect("it generates");
            });
        }
    });
    drop(model);
    let reports = kiln_emulator::reports(ordinal);
    let decoder: Vec<_> = reports.iter().filter(|report| report.kernel == "persistent_decoder").collect();
    ["brev", "popc"].map(|of| decoder.iter().filter_map(|report| report.counters.by_opcode.get(of)).sum())
}

/// A draw takes one barrier of the grid more than the greatest logit, or two, however many columns of the pass draw.
#[test]
fn draws_of_several_columns_share_their_barriers() {
    if common::is_left_out_on_gpu("a changed text is for the emulator to run") {
        return;
    }
    let drawn = Sampling::GREEDY.with_temperature(0.8).with_seed(1);
    let typical = drawn.clone().with_top_k(500).with_typical_p(0.9).with_top_p(0.9).with_min_p(0.1);
    let drawn = [(drawn.clone(), 1), (drawn.with_top_p(0.9), 2), (typical, 2)];
    for (sampling, more) in [(Sampling::GREEDY, 0)].into_iter().chain(drawn) {
        let [passes, barriers] = barriers_of_three(&sampling);
        println!("{more} more a token: {passes} passes, {barriers} barriers");
        // Where the machine lets the sessions run one after another, each token has a pass of its own.
        assert!((20..=60).contains(&passes), "60 tokens: {passes} passes");
        assert!(barriers.abs_diff(passes * (1 + more)) < passes / 2, "{passes} passes have {barriers} barriers");
    }
}

#[test]
fn a_hundred_tokens_take_one_launch() {
    if common::is_left_out_on_gpu("a GPU does not tell its launches") {
        return;
    }
    let config = DeviceConfig { multiprocessors: 2, checks: Checks::NONE, counters: true, ..DeviceConfig::default() };
    let model = open_on(config, of_layers(1), str::to_owned);
    let ordinal = model.device().ordinal();
    let options = SessionOptions::default().with_numerics(Numerics::Fast).with_capacity(128);
    let mut session = model.session(options.with_path(PathChoice::Persistent)).expect("a session");
    session.append(&[5, 600, 7]).expect("they fit");
    kiln_emulator::clear_reports(ordinal);
    let made = session.generate(GenerateOptions::new(100)).collect::<kiln::Result<Vec<_>>>().expect("it generates");
    assert_eq!((made.len(), session.work().launches), (100, 1));
    drop(session);
    drop(model);
    let launches: Vec<_> = kiln_emulator::reports(ordinal).into_iter().map(|report| report.kernel).collect();
    assert_eq!(launches, ["persistent_decoder"]);
}
