//! The language: what it accepts, what it refuses, and with which line.

use kiln_codegen::Target;
use kiln_codegen::ptx::{AtomicOp, Builder, F32, Global, LoadKind, Module, Role, Scope, Text, U32, U64, Var, Work};
use kiln_shape::WeightType;

fn sm(number: u32) -> Target {
    Target::new(number).expect("a known target")
}

fn refusal(target: Target, body: impl FnOnce(&mut Builder)) -> String {
    Module::new(target).kernel("probe", 64, body).expect_err("the kernel breaks a rule").to_string()
}

fn saxpy(b: &mut Builder) {
    let x = b.param::<Global<F32>>("x");
    let y = b.param::<Global<F32>>("y");
    let a = b.param::<F32>("a");
    let n = b.param::<U32>("n");
    let (block, tid, threads) = (b.ctaid_x(), b.tid(), b.block());
    let first = b.mad::<U32>(block, threads, tid);
    let grid = b.nctaid_x();
    let step = b.mul(grid, threads);
    b.for_range(first, n, step, |b, i| {
        let (x, y) = (b.index(x, i), b.index(y, i));
        let x = b.ld(x, LoadKind::Constant);
        let old = b.ld(y, LoadKind::Ordinary);
        let new = b.fma(a, x, old);
        b.st(y, new);
    });
}

#[test]
fn emission_is_deterministic() {
    let text = || {
        let mut module = Module::new(sm(90));
        module.kernel("saxpy", 128, saxpy).expect("valid");
        module.ptx()
    };
    assert_eq!(text(), text());
    assert!(text().contains("language/rules.rs"), "provenance: {}", text());
}

#[test]
fn names_that_are_none_in_ptx_are_refused() {
    for name in ["gr\u{f6}\u{df}e", "x-1", "1x", "_", ""] {
        let line = line!() + 1;
        let param = refusal(sm(90), |b| _ = b.param::<U32>(name));
        assert!(param.contains(&format!("{name:?}")) && param.contains(&format!("rules.rs:{line}")), "{param}");
        let shared = refusal(sm(90), |b| _ = b.shared::<F32>(name, 1));
        assert!(shared.contains(&format!("{name:?}")), "{shared}");
        let entry = Module::new(sm(90)).kernel(name, 64, |_| {}).expect_err("no name").to_string();
        assert!(entry.contains(&format!("{name:?}")), "{entry}");
    }
}

#[test]
fn a_barrier_under_lane_varying_control_flow_is_refused_with_its_line() {
    let line = line!() + 4;
    let error = refusal(sm(80), |b| {
        let tid = b.tid();
        let some = b.setp_lt(tid, 7);
        b.if_(some, |b| b.bar_sync());
    });
    assert!(error.contains("bar.sync under lane-varying control flow"), "{error}");
    assert!(error.contains(&format!("rules.rs:{line}")), "{error}");
}

#[test]
fn a_barrier_under_block_uniform_control_flow_is_accepted() {
    let mut module = Module::new(sm(75));
    let body = |b: &mut Builder| {
        let n = b.param::<U32>("n");
        let some = b.setp_lt(n, 7);
        b.if_(some, |b| b.bar_sync());
    };
    assert!(module.kernel("probe", 64, body).is_ok());
}

#[test]
fn a_shuffle_after_a_lane_varying_assignment_is_fine_but_inside_it_is_refused() {
    let error = refusal(sm(75), |b| {
        let lane = b.lane();
        let odd = b.setp_lt(lane, 5);
        b.if_(odd, |b| {
            b.shfl_bfly(lane, 1);
        });
    });
    assert!(error.contains("shfl.sync.bfly.b32 under lane-varying"), "{error}");
}

#[test]
fn what_a_lane_varying_loop_leaves_behind_is_lane_varying() {
    let error = refusal(sm(75), |b| {
        let lane = b.lane();
        let count = b.var::<U32>(0);
        b.for_range(0, lane, 1, |b, _| {
            let next = b.add(count, 1);
            b.set(count, next);
        });
        let three = b.setp_eq(count, 3);
        b.if_(three, |b| b.bar_sync());
    });
    assert!(error.contains("lane-varying"), "{error}");
}

#[test]
fn a_value_of_one_branch_is_not_defined_after_it() {
    let error = refusal(sm(75), |b| {
        let y = b.param::<Global<U32>>("y");
        let tid = b.tid();
        let some = b.setp_lt(tid, 7);
        let mut inside = None;
        b.if_(some, |b| inside = Some(b.add(tid, 1)));
        b.st(y, inside.expect("the closure ran"));
    });
    assert!(error.contains("not defined on every path"), "{error}");
}

#[test]
fn shared_memory_beyond_the_target_is_refused() {
    let wants = |b: &mut Builder| {
        let tile = b.dynamic_shared::<F32>(25 << 10);
        b.st(tile, 0.0);
    };
    assert!(refusal(sm(86), wants).contains("sm_86 has 101376"));
    assert!(Module::new(sm(80)).kernel("probe", 64, wants).is_ok());
    let error = refusal(sm(80), |b| {
        b.shared::<F32>("x", 12289);
    });
    assert!(error.contains("at most 49152"), "{error}");
}

#[test]
fn griddepcontrol_needs_sm_90_and_the_ptx_that_knows_it() {
    let waits = |b: &mut Builder| b.griddepcontrol_wait();
    let line = line!() - 1;
    let error = refusal(sm(80), waits);
    assert!(error.contains("griddepcontrol.wait needs sm_90: sm_80 lacks it"), "{error}");
    assert!(error.contains(&format!("rules.rs:{line}")), "{error}");
    let mut module = Module::new(sm(90));
    module.kernel("probe", 64, waits).expect("valid");
    assert!(module.ptx().starts_with(".version 7.8\n.target sm_90\n"), "{}", module.ptx());
}

#[test]
fn a_kernel_of_a_programmatic_chain_waits_before_it_writes_or_ends() {
    let refused = |body: fn(&mut Builder, Global<U32>)| {
        refusal(sm(90), |b| {
            let y = b.param::<Global<U32>>("y");
            body(b, y);
        })
    };
    let error = refused(|b, y| {
        b.griddepcontrol_launch_dependents();
        b.st(y, 1);
    });
    assert!(error.contains("griddepcontrol.launch_dependents without a griddepcontrol.wait"), "{error}");
    let error = refused(|b, y| {
        b.st(y, 1);
        b.griddepcontrol_wait();
    });
    assert!(error.contains("st.global.u32 before the griddepcontrol.wait"), "{error}");
    let error = refused(|b, y| {
        let block = b.ctaid_x();
        let first = b.setp_eq(block, 0);
        b.if_(first, |b| b.red(AtomicOp::Add, y, 1, Scope::Gpu));
        b.griddepcontrol_wait();
    });
    assert!(error.contains("red.relaxed.gpu.global.add.u32 before the griddepcontrol.wait"), "{error}");
    let error = refused(|b, y| {
        let block = b.ctaid_x();
        let first = b.setp_eq(block, 0);
        b.if_(first, |b| b.exit());
        b.griddepcontrol_wait();
        b.st(y, 1);
    });
    assert!(error.contains("exit before the griddepcontrol.wait"), "{error}");
    let error = refused(|b, y| {
        let block = b.ctaid_x();
        let first = b.setp_eq(block, 0);
        b.if_(first, |b| b.griddepcontrol_wait());
        b.st(y, 1);
    });
    assert!(error.contains("without a griddepcontrol.wait outside branches"), "{error}");
    let error = refused(|b, y| {
        let value = b.ld(y.at(1), LoadKind::Settled);
        b.griddepcontrol_wait();
        b.st(y, value);
    });
    assert!(error.contains("ld.global.u32 before the griddepcontrol.wait"), "{error}");
    let error = refused(|b, y| {
        let value = b.ld(y.at(1), LoadKind::Settled);
        b.st(y, value);
    });
    assert!(error.contains("ld.global.u32 without a griddepcontrol.wait"), "{error}");
    // Loads, shared memory and copies to it are free, and so is the order of the two.
    let fine = |b: &mut Builder| {
        let (x, y) = (b.param::<Global<U32>>("x"), b.param::<Global<U32>>("y"));
        let (tile, copied) = (b.shared::<U32>("tile", 1), b.shared::<U32>("copied", 4));
        b.griddepcontrol_launch_dependents();
        b.cp_async(copied, x, 16u32);
        let weight = b.ld(x, LoadKind::Constant);
        b.st(tile, weight);
        b.griddepcontrol_wait();
        let settled = b.ld(x.at(1), LoadKind::Settled);
        let sum = b.add(weight, settled);
        b.st(y, sum);
    };
    assert!(Module::new(sm(90)).kernel("probe", 64, fine).is_ok());
}

#[test]
fn kernels_of_a_chain_begin_early_from_sm_90_on() {
    for (target, is_chain, expected) in [(80, true, false), (90, true, true), (120, true, true), (90, false, false)] {
        let module = Module::new(sm(target));
        let mut module = if is_chain { module.of_chain() } else { module };
        let mut found = None;
        module.kernel("probe", 64, |b| found = Some(b.begins_early())).expect("valid");
        assert_eq!(found, Some(expected), "sm_{target}, {is_chain}");
    }
}

#[test]
fn a_misaligned_vector_access_is_refused() {
    let error = refusal(sm(75), |b| {
        let x = b.param::<Global<F32>>("x");
        let _: [_; 4] = b.ld_vector(x.at(2), LoadKind::Constant);
    });
    assert!(error.contains("at offset 8, which is not a multiple of 16"), "{error}");
}

#[test]
fn barriers_of_roles_must_count_the_warps_that_wait() {
    let error = refusal(sm(75), |b| {
        b.roles(vec![Role::new(1, |b| b.bar_sync_threads(1, 64)), Role::new(1, |_| {})]);
    });
    assert!(error.contains("barrier 1 counts 64 threads, but the roles that wait have 32"), "{error}");
    let error = refusal(sm(75), |b| b.roles(vec![Role::new(1, |b| b.bar_sync()), Role::new(1, |_| {})]));
    assert!(error.contains("must name its participants"), "{error}");
}

#[test]
fn a_cache_hint_raises_the_version_of_the_module() {
    let version = |kind| {
        let mut module = Module::new(sm(75));
        let body = |b: &mut Builder| {
            let x = b.param::<Global<F32>>("x");
            let y = b.param::<Global<F32>>("y");
            let value = b.ld(x, kind);
            b.st(y, value);
        };
        module.kernel("probe", 32, body).expect("valid");
        module.ptx().lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!(version(LoadKind::Constant), ".version 6.3");
    assert_eq!(version(LoadKind::Streaming), ".version 7.4");
}

/// The text of a kernel with a variable that is loaded, and stored behind `body`.
fn of_a_variable(body: impl Fn(&mut Builder, Global<F32>, Var<F32>)) -> String {
    let mut module = Module::new(sm(80));
    let kernel = |b: &mut Builder| {
        let y = b.param::<Global<F32>>("y");
        let before = b.ld(y, LoadKind::Ordinary);
        let var = b.var::<F32>(before);
        body(b, y, var);
        b.st(y.at(1), var);
    };
    module.kernel("probe", 32, kernel).expect("valid");
    module.ptx()
}

/// A variable takes the place of the value that it is set to, unless it is read, or set, between the two.
#[test]
fn a_variable_is_written_where_its_value_is_made_unless_it_is_named_before_it_is_set() {
    let moves =
        |body: &dyn Fn(&mut Builder, Var<F32>)| of_a_variable(|b, _, var| body(b, var)).matches("mov.f32").count();
    let between = |what: &dyn Fn(&mut Builder, Var<F32>)| {
        moves(&|b, var| {
            let value = b.mul::<F32>(2.0, 3.0);
            what(b, var);
            b.set(var, value);
        })
    };
    let free = between(&|b, _| _ = b.mul::<F32>(4.0, 5.0));
    let read = between(&|b, var| _ = b.mul::<F32>(var, 5.0));
    let read_in_a_branch = between(&|b, var| {
        let lane = b.lane();
        let is = b.setp_lt(lane, 7);
        b.if_(is, |b| _ = b.mul::<F32>(var, 5.0));
    });
    let set = between(&|b, var| b.set(var, 1.0));
    // What is set is moved.
    assert_eq!([free, read, read_in_a_branch, set], [0, 1, 1, 2]);
    // A value that is read twice, or made elsewhere, keeps a register of its own.
    let twice = moves(&|b, var| {
        let value = b.mul::<F32>(2.0, 3.0);
        b.set(var, value);
        let _ = b.mul::<F32>(value, 5.0);
    });
    let in_a_branch = moves(&|b, var| {
        let value = b.mul::<F32>(2.0, 3.0);
        let lane = b.lane();
        let is = b.setp_lt(lane, 7);
        b.if_(is, |b| b.set(var, value));
    });
    assert_eq!([twice, in_a_branch], [1, 1]);
}

/// Arithmetic is done once for operands that are the same, up to the next branch.
#[test]
fn arithmetic_that_stands_a_second_time_is_left_out_unless_something_changed_between() {
    let products = |between: &dyn Fn(&mut Builder, Var<F32>)| {
        let text = of_a_variable(|b, y, var| {
            let first = b.mul::<F32>(var, 5.0);
            between(b, var);
            let second = b.mul::<F32>(var, 5.0);
            b.st(y.at(2), first);
            b.st(y.at(3), second);
        });
        let stored = |place: u32| {
            let line = text.lines().find(|line| line.contains(&format!("+{}]", 4 * place))).expect("a store");
            line.rsplit(", ").next().expect("a value").to_owned()
        };
        (text.matches("mul.rn.f32").count(), stored(2) == stored(3))
    };
    let same = products(&|_, _| ());
    let others = products(&|b, var| _ = b.mul::<F32>(var, 6.0));
    let set = products(&|b, var| b.set(var, 1.0));
    let set_in_a_branch = products(&|b, var| {
        let lane = b.lane();
        let is = b.setp_lt(lane, 7);
        b.if_(is, |b| b.set(var, 1.0));
    });
    assert_eq!([same, others, set, set_in_a_branch], [(1, true), (2, true), (2, false), (2, false)]);
}

#[test]
fn a_clock_is_read_as_often_as_it_is_asked_for() {
    let mut module = Module::new(sm(80));
    let kernel = |b: &mut Builder| {
        let y = b.param::<Global<U64>>("y");
        let (first, second) = (b.globaltimer(), b.globaltimer());
        b.st(y, first);
        b.st(y.at(1), second);
    };
    module.kernel("probe", 32, kernel).expect("valid");
    assert_eq!(module.ptx().matches("%globaltimer").count(), 2);
}

#[test]
fn bits_seen_as_another_type_are_moved_where_the_instruction_before_cannot_write_them() {
    let mut module = Module::new(sm(75));
    let body = |b: &mut Builder| {
        let y = b.param::<Global<F32>>("y");
        let (tid, block) = (b.tid(), b.ctaid_x());
        let sum = b.add(tid, block);
        let number = b.mov_bits::<F32, _>(sum);
        b.st(y, number);
    };
    module.kernel("probe", 32, body).expect("valid");
    let ptx = module.ptx();
    assert!(ptx.contains("add.u32 %r") && ptx.contains("mov.b32 %f"), "{ptx}");
}

#[test]
fn full_text_says_a_loops_work_at_its_top_and_light_text_does_not() {
    let mut module = Module::new(sm(90));
    let body = |b: &mut Builder| {
        let n = b.param::<U32>("n");
        b.for_range(0, n, 1, |b, _| {
            b.for_range(0, n, 1, |b, _| b.each_iteration(Work::Weights(WeightType::Q6_K, 64)));
            b.each_iteration(Work::Elements(8));
        });
    };
    module.kernel("probe", 64, body).expect("valid");
    let full = module.ptx();
    let lines: Vec<&str> = full.lines().map(str::trim).collect();
    let said: Vec<&str> = lines.windows(2).filter(|pair| pair[0].ends_with(':')).map(|pair| pair[1]).collect();
    // Bytes are those of 2048 weights, data and plane: 210 for 256.
    let inner = "// each iteration of a warp: 2048 weights of Q6_K, 1680 bytes";
    assert_eq!(&said[..2], ["// each iteration of a warp: 256 elements", inner], "{full}");
    assert!(!module.ptx_as(Text::Light).contains("//"));
}

#[test]
fn work_that_belongs_to_no_loop_or_is_said_twice_is_refused() {
    let outside = refusal(sm(90), |b| b.each_iteration(Work::Elements(1)));
    assert!(outside.contains("outside of every loop"), "{outside}");
    let line = line!() + 4;
    let twice = refusal(sm(90), |b| {
        b.for_range(0, 4, 1, |b, _| {
            b.each_iteration(Work::Elements(1));
            b.each_iteration(Work::Elements(1));
        });
    });
    assert!(twice.contains("said twice") && twice.contains(&format!("rules.rs:{line}")), "{twice}");
}
