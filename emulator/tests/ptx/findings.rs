//! Findings: launches go on after them, each distinct one is listed once, and whole reports stand in
//! `tests/reports`, a file beside each planted program (`KILN_BLESS=1` writes them).

use crate::races;
use crate::rig::{Rig, ptx};
use kiln_emulator::FaultKind::{self, *};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[test]
fn reports_of_planted_bugs_are_as_recorded() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reports");
    let bless = std::env::var_os("KILN_BLESS").is_some();
    let mut known: BTreeSet<String> = BTreeSet::new();
    let mut wrong = Vec::new();
    for planted in races::table() {
        let (mut rig, params) = races::rig(&planted, true);
        (rig.config.fatal_findings, rig.config.threads) = (false, 1);
        rig.config.checks.initcheck = planted.kind != Race;
        let result = rig.launch("k", planted.grid, planted.block, &params);
        let found = rig.memory.findings();
        let mut report = found.to_string();
        if let Err(fault) = &result {
            report += &format!("{fault}\n");
        }
        assert!(result.is_ok() || !planted.kind.is_finding() || !found.is_empty(), "{}: {report}", planted.name);
        let slug: String = planted.name.chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect();
        let file = folder.join(format!("{slug}.txt"));
        if bless {
            fs::create_dir_all(&folder).unwrap();
            fs::write(&file, &report).unwrap();
        } else if fs::read_to_string(&file).unwrap_or_default() != report {
            wrong.push(format!("{}:\n{report}", planted.name));
        }
        assert!(known.insert(format!("{slug}.txt")), "two programs named {slug}");
    }
    let files = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    // Those of texts that are refused are `refused.rs`'s.
    let there: BTreeSet<String> = files.filter(|name| !name.starts_with("refused_")).collect();
    assert_eq!(there, known, "a report without a program");
    assert!(wrong.is_empty(), "KILN_BLESS=1 records these:\n{}", wrong.join("\n"));
}

/// Each thread writes its word, reads another warp's without a barrier, and then a branch on what nothing has written.
const SEVERAL: &str = "
.visible .entry k(.param .u64 a, .param .u64 b)
{
    .reg .pred %p<4>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    .shared .align 4 .b8 tile[256];
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    mov.u32 %r1, %tid.x;
    shl.b32 %r2, %r1, 2;
    mov.u32 %r3, tile;
    add.u32 %r3, %r3, %r2;
    st.shared.u32 [%r3], %r1;
    xor.b32 %r2, %r2, 128;
    mov.u32 %r4, tile;
    add.u32 %r4, %r4, %r2;
    ld.shared.u32 %r5, [%r4];
    ld.global.u32 %r6, [%rd2];
    setp.eq.u32 %p1, %r6, 0;
    @%p1 bra E;
E:  setp.eq.u32 %p2, %r1, 0;
    @%p2 st.global.u32 [%rd1], 7;
    ret;
}";

#[test]
fn a_launch_goes_on_after_findings_and_lists_each_once() {
    let mut rig = Rig::new(&ptx(75, SEVERAL));
    (rig.config.fatal_findings, rig.config.threads) = (false, 1);
    let (a, b) = (rig.u32s(&[0]), rig.memory.alloc(4).unwrap());
    rig.launch("k", 1, 64, &[a, b]).unwrap();
    assert_eq!(rig.read_u32s(a, 1), [7]);
    let found = rig.memory.findings();
    let kinds: BTreeSet<(FaultKind, u64)> = found.iter().map(|finding| (finding.example.kind, finding.count)).collect();
    // Warp 1 reads what warp 0 has written; of the branch there is one occurrence for each warp.
    assert!(kinds.contains(&(Race, 32)), "{found}");
    assert!(kinds.contains(&(UninitialisedMemory, 2)), "{found}");
    let before = found.len();
    rig.launch("k", 1, 64, &[a, b]).unwrap();
    let again = rig.memory.findings();
    assert_eq!(again.len(), before, "{again}");
    assert!(again.iter().zip(found.iter()).all(|(again, found)| again.count > found.count), "{again}");
    let json = again.json();
    assert!(json.starts_with('[') && json.ends_with(']') && json.matches("\"kind\"").count() == before, "{json}");
    assert!(json.contains(r#""kind": "Race", "count": "#) && json.contains(r#""block": [0, 0, 0]"#), "{json}");
    // The first is fatal unless asked otherwise.
    rig.config.fatal_findings = true;
    assert!(rig.launch("k", 1, 64, &[a, b]).unwrap_err().kind.is_finding());
}

#[test]
fn stores_of_one_value_by_one_instruction_are_a_kind_of_their_own() {
    let text = |value: &str| {
        ptx(
            75,
            &format!(
                ".visible .entry k(.param .u64 a)\n{{ .reg .b32 %r<4>; .reg .b64 %rd<4>;
                 ld.param.u64 %rd1, [a]; mov.u32 %r1, %tid.x; mov.u32 %r2, 5; st.global.u32 [%rd1], {value}; ret; }}"
            ),
        )
    };
    for (value, kind) in [("%r2", SameValueStore), ("%r1", Race)] {
        let mut rig = Rig::new(&text(value));
        let a = rig.u32s(&[0]);
        assert_eq!(rig.launch("k", 1, 32, &[a]).unwrap_err().kind, kind);
        rig.config.silenced = vec![SameValueStore];
        assert_eq!(rig.launch("k", 1, 32, &[a]).is_ok(), kind == SameValueStore);
        // Lanes of another warp are another instruction's.
        assert_eq!(rig.launch("k", 1, 64, &[a]).unwrap_err().kind, Race);
    }
}

#[test]
fn beyond_a_number_of_occurrences_they_are_only_counted() {
    let text = ".visible .entry k(.param .u64 a)\n{ .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %rd<4>; ld.param.u64 %rd1, [a];
        mov.u32 %r1, %tid.x; mov.u32 %r2, 0; L: st.global.u32 [%rd1], %r1; add.u32 %r2, %r2, 1; setp.lt.u32 %p, %r2, 100; @%p bra L; ret; }";
    let mut rig = Rig::new(&ptx(75, text));
    (rig.config.fatal_findings, rig.config.threads) = (false, 1);
    let a = rig.u32s(&[0]);
    rig.launch("k", 1, 32, &[a]).unwrap();
    let found = rig.memory.findings();
    // 31 of 32 lanes follow another one, a hundred times; the first lane follows the last one but once.
    assert_eq!(found.iter().map(|finding| finding.count).collect::<Vec<_>>(), [3199], "{found}");
}
