//! The instruction table (`truth.txt`): every line gives what the ISA says, in one lane and in all, and approximate
//! instructions stay within their bound, perturbed or not.

use crate::rig::{self, Rig};
use crate::table::{kernel, matches, rows, warp};

fn check(guard: &str, lanes: usize, setup: impl Fn(&mut Rig)) {
    let rows = rows();
    let text: String = rows.iter().enumerate().map(|(i, r)| kernel(i, r, guard)).collect();
    let mut rig = Rig::new(&rig::ptx(90, &text));
    setup(&mut rig);
    let mut wrong = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        let mut values: Vec<u64> = row.inputs.iter().map(|v| v.1).collect();
        values.resize(4, 0);
        let input = rig.u64s(&values);
        let out = rig.u64s(&[0; 32]);
        if let Err(f) = rig.launch(&format!("row{i}"), 1, 32, &[input, out]) {
            wrong.push(format!("line {}: {f}", row.line));
            continue;
        }
        let got = rig.read_u64s(out, 32);
        // Results that name a lane differ between them.
        let lanes = if row.text.contains("%lane") { 1 } else { lanes };
        for (l, &g) in got.iter().enumerate().take(lanes) {
            if !matches(row, g) {
                wrong
                    .push(format!("line {}: {} gave {g:x} in lane {l}, expected {}", row.line, row.text, row.expected));
                break;
            }
        }
        rig.memory.free(input).unwrap();
        rig.memory.free(out).unwrap();
    }
    assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}

#[test]
fn every_row_holds_in_all_lanes() {
    check("", 32, |_| {});
}

#[test]
fn every_row_holds_in_a_guarded_lane() {
    check("@%q7 ", 1, |_| {});
}

#[test]
fn approximations_stay_within_their_bound_under_perturbation() {
    for seed in 1..6 {
        check("", 32, |rig| (rig.config.perturb, rig.config.seed) = (true, seed));
    }
}

#[test]
fn programs_of_a_warp_find_what_the_isa_says() {
    let inputs: Vec<u32> = (0..warp::INPUTS).map(warp::input).collect();
    let mut wrong = Vec::new();
    for (sm, count) in [(75, warp::PROGRAMS.len()), (80, warp::FROM_SM_80.len()), (90, warp::FROM_SM_90.len())] {
        let text: String = warp::programs(sm).map(warp::Program::kernel).collect();
        let mut rig = Rig::new(&rig::ptx(sm, &text));
        assert!(count > 0);
        for (schedule, split, seed) in rig::schedules() {
            (rig.config.schedule, rig.config.split_warps, rig.config.seed) = (schedule, split, seed);
            for program in warp::programs(sm) {
                let expected = program.results();
                let (input, out) = (rig.u32s(&inputs), rig.u32s(&vec![0; expected.len()]));
                match rig.launch(program.name, program.blocks, 32, &[input, out]) {
                    Err(fault) => wrong.push(format!("{}: {fault}", program.name)),
                    Ok(_) => {
                        let found = rig.read_u32s(out, expected.len());
                        if found != expected {
                            wrong.push(format!("{}: {found:x?}, not {expected:x?}", program.name));
                        }
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn perturbation_changes_approximate_results() {
    let text = rig::ptx(
        75,
        ".visible .entry k(.param .u64 out) { .reg .b32 %r<4>; .reg .f32 %f<3>; .reg .b64 %rd<4>;
         ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; add.u32 %r2, %r1, 3; cvt.rn.f32.u32 %f1, %r2; rcp.approx.f32 %f2, %f1;
         mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2; st.global.f32 [%rd3], %f2; ret; }",
    );
    let mut results = Vec::new();
    for (perturb, seed) in [(false, 0), (true, 1), (true, 2), (true, 1)] {
        let mut rig = Rig::new(&text);
        (rig.config.perturb, rig.config.seed) = (perturb, seed);
        let out = rig.u32s(&[0; 32]);
        rig.launch("k", 1, 32, &[out]).unwrap();
        results.push(rig.read_u32s(out, 32));
    }
    assert_ne!(results[0], results[1]);
    assert_ne!(results[1], results[2]);
    assert_eq!(results[1], results[3], "a seed reproduces a run");
}
