//! What is loaded as constant stays as it is: in device memory for the whole kernel, in shared memory between barriers.

use kiln_codegen::Target;
use kiln_codegen::ptx::{AtomicOp, Builder, Global, LoadKind, Module, Order, Role, Scope, Shared, U32, U64, Val};

fn build(body: impl FnOnce(&mut Builder)) -> Result<(), String> {
    let mut module = Module::new(Target::new(80).expect("a known target"));
    module.kernel("probe", 64, body).map(drop).map_err(|error| error.to_string())
}

#[track_caller]
fn refused(outcome: Result<(), String>, because: &str) {
    let error = outcome.expect_err("the kernel breaks a rule");
    assert!(error.contains(because), "{error}");
    assert!(error.matches("constants.rs:").count() == 2, "both places: {error}");
}

#[track_caller]
fn accepted(outcome: Result<(), String>) {
    assert_eq!(outcome, Ok(()));
}

const STORED: &str = "of memory that the kernel stores to at";

/// Builds a kernel with two parameters in device memory, and a thread's number.
fn device(body: impl FnOnce(&mut Builder, Global<U32>, Global<U32>, Val<U32>)) -> Result<(), String> {
    build(|b| {
        let (x, y) = (b.param::<Global<U32>>("x"), b.param::<Global<U32>>("y"));
        let tid = b.tid();
        body(b, x, y, tid);
    })
}

#[test]
fn memory_that_the_kernel_stores_to_is_not_loaded_as_constant() {
    let outcome = |kind, same: bool| {
        device(|b, x, y, tid| {
            let from = b.index(x, tid);
            let value = b.ld(from, kind);
            let to = b.index(if same { x } else { y }, tid);
            b.st(to, value);
        })
    };
    refused(outcome(LoadKind::Constant, true), STORED);
    refused(outcome(LoadKind::Streaming, true), STORED);
    accepted(outcome(LoadKind::Ordinary, true));
    accepted(outcome(LoadKind::Constant, false));
}

#[test]
fn a_barrier_does_not_make_device_memory_constant() {
    let outcome = device(|b, x, y, tid| {
        b.st(x, 1u32);
        b.bar_sync();
        let value = b.ld(x, LoadKind::Constant);
        let to = b.index(y, tid);
        b.st(to, value);
    });
    refused(outcome, STORED);
}

#[test]
fn an_atomic_is_a_store() {
    let with = |write: fn(&mut Builder, Global<U32>)| {
        device(|b, x, y, tid| {
            write(b, x);
            let value = b.ld(x, LoadKind::Constant);
            let to = b.index(y, tid);
            b.st(to, value);
        })
    };
    refused(with(|b, x| b.red(AtomicOp::Add, x, 1u32, Scope::Gpu)), STORED);
    refused(with(|b, x| _ = b.atom(AtomicOp::Add, Order::Relaxed, x, 1u32, Scope::Gpu)), STORED);
    let vector = |b: &mut Builder, x| {
        let zero = b.mov(0u32);
        b.st_vector(x, [zero; 2]);
    };
    refused(with(vector), STORED);
    accepted(with(|_, _| {}));
}

#[test]
fn parts_of_a_buffer_that_begin_at_constants_are_told_apart() {
    let outcome = |load: u32, store: u32| {
        device(|b, x, _, tid| {
            let from = b.index(x.at(load), tid);
            let value = b.ld(from, LoadKind::Constant);
            let to = b.index(x.at(store), tid);
            b.st(to, value);
        })
    };
    accepted(outcome(64, 0));
    refused(outcome(64, 64), STORED);
}

#[test]
fn words_at_constants_are_told_apart_and_an_index_leads_upwards() {
    let words = |load: u32, store: u32| {
        device(|b, x, _, _| {
            let value = b.ld(x.at(load), LoadKind::Constant);
            b.st(x.at(store), value);
        })
    };
    accepted(words(0, 1));
    refused(words(1, 1), STORED);
    let indexed = |load: u32, store: u32| {
        device(|b, x, _, tid| {
            let value = b.ld(x.at(load), LoadKind::Constant);
            let to = b.index(x.at(store), tid);
            b.st(to, value);
        })
    };
    accepted(indexed(0, 1));
    refused(indexed(5, 1), STORED);
    let vector = device(|b, x, _, _| {
        let [_, value]: [_; 2] = b.ld_vector(x, LoadKind::Constant);
        b.st(x.at(1), value);
    });
    refused(vector, STORED);
}

#[test]
fn pointers_are_followed_through_registers() {
    let chosen = device(|b, x, y, tid| {
        let some = b.setp_lt(tid, 3);
        let to = b.select_ptr(x, y, some);
        let value = b.ld(y, LoadKind::Constant);
        b.st(to, value);
    });
    refused(chosen, STORED);
    let stepped = device(|b, x, _, tid| {
        let start = b.address(x);
        let at = b.var::<U64>(start);
        b.for_range(0, tid, 1, |b, _| {
            let here = b.get(at);
            let to = b.global_ptr::<U32>(here);
            b.st(to, 1u32);
            let next = b.add::<U64>(at, 4u64);
            b.set(at, next);
        });
        let _ = b.ld(x.at(3), LoadKind::Constant);
    });
    refused(stepped, STORED);
}

#[test]
fn a_loaded_pointer_is_followed() {
    let outcome = |kind| {
        build(|b| {
            let table = b.param::<Global<U64>>("table");
            let address = b.ld(table, LoadKind::Constant);
            let at = b.global_ptr::<U32>(address);
            let value = b.ld(at, kind);
            b.st(at, value);
        })
    };
    refused(outcome(LoadKind::Constant), STORED);
    accepted(outcome(LoadKind::Ordinary));
}

const LATE: &str = "a constant load of shared memory that was stored to at";
const EARLY: &str = "a store to shared memory that was loaded as constant at";

/// Builds a kernel with a shared variable, and a thread's number.
fn shared(body: impl FnOnce(&mut Builder, Shared<U32>, Val<U32>)) -> Result<(), String> {
    build(|b| {
        let slots = b.shared::<U32>("slots", 64);
        let tid = b.tid();
        body(b, slots, tid);
    })
}

#[test]
fn a_barrier_stands_between_a_store_and_a_uniform_load() {
    let outcome = |barrier: bool, kind| {
        shared(|b, slots, tid| {
            let first = b.setp_eq(tid, 0);
            b.if_(first, |b| b.st(slots, 1u32));
            if barrier {
                b.bar_sync();
            }
            b.ld(slots, kind);
        })
    };
    refused(outcome(false, LoadKind::Constant), LATE);
    accepted(outcome(true, LoadKind::Constant));
    accepted(outcome(false, LoadKind::Ordinary));
}

#[test]
fn a_barrier_stands_between_a_uniform_load_and_a_store() {
    let outcome = |barrier: bool| {
        shared(|b, slots, tid| {
            b.ld(slots, LoadKind::Constant);
            if barrier {
                b.bar_sync();
            }
            let to = b.index(slots, tid);
            b.st(to, tid);
        })
    };
    refused(outcome(false), EARLY);
    accepted(outcome(true));
}

#[test]
fn the_next_round_of_a_loop_counts() {
    let outcome = |barriers: usize| {
        shared(|b, slots, tid| {
            b.for_range(0, 9, 1, |b, _| {
                let to = b.index(slots, tid);
                b.st(to, tid);
                b.bar_sync();
                b.ld(slots, LoadKind::Constant);
                (1..barriers).for_each(|_| b.bar_sync());
            });
        })
    };
    refused(outcome(1), EARLY);
    accepted(outcome(2));
}

/// A branch at a loop's end that is taken where another round follows stands on every way to that round, and on none out.
#[test]
fn what_only_the_next_round_follows_counts_for_that_round() {
    let outcome = |of_next: bool, store_behind: bool| {
        shared(|b, slots, tid| {
            let round = b.var::<U32>(0);
            b.do_while(|b| {
                let to = b.index(slots, tid);
                b.st(to, tid);
                b.bar_sync();
                b.ld(slots, LoadKind::Constant);
                let next = b.add::<U32>(round, 1);
                b.set(round, next);
                let (more, other) = (b.setp_lt(round, 9), b.setp_lt(round, 8));
                b.if_(if of_next { more } else { other }, Builder::bar_sync);
                more
            });
            if store_behind {
                b.st(slots, 1u32);
            }
        })
    };
    accepted(outcome(true, false));
    refused(outcome(false, false), EARLY);
    refused(outcome(true, true), EARLY);
}

#[test]
fn either_branch_counts() {
    let outcome = |in_then: bool, in_else: bool| {
        build(|b| {
            let slots = b.shared::<U32>("slots", 64);
            let n = b.param::<U32>("n");
            b.st(slots, 1u32);
            let small = b.setp_lt(n, 3);
            let bar = |yes: bool| move |b: &mut Builder| (0..u32::from(yes)).for_each(|_| b.bar_sync());
            b.if_else(small, bar(in_then), bar(in_else));
            b.ld(slots, LoadKind::Constant);
        })
    };
    accepted(outcome(true, true));
    refused(outcome(true, false), LATE);
    refused(outcome(false, true), LATE);
}

#[test]
fn what_counts_as_uniform_in_a_warp_needs_a_barrier_of_the_warp() {
    let outcome = |barrier: bool| {
        shared(|b, slots, tid| {
            let to = b.index(slots, tid);
            b.st(to, tid);
            if barrier {
                b.bar_warp_sync();
            }
            let warp = b.warp_id();
            let from = b.byte_index(slots, warp, 128);
            b.ld(from, LoadKind::Constant);
        })
    };
    refused(outcome(false), LATE);
    accepted(outcome(true));
    accepted(shared(|b, slots, tid| {
        let to = b.index(slots, tid);
        b.st(to, tid);
        b.bar_sync();
        let warp = b.warp_id();
        let from = b.index(slots, warp);
        b.ld(from, LoadKind::Constant);
    }));
    // What varies from lane to lane promises nothing.
    accepted(shared(|b, slots, tid| {
        let at = b.index(slots, tid);
        b.st(at, tid);
        b.ld(at, LoadKind::Constant);
    }));
}

#[test]
fn a_barrier_of_a_warp_is_none_of_the_block() {
    let outcome = shared(|b, slots, tid| {
        let to = b.index(slots, tid);
        b.st(to, tid);
        b.bar_warp_sync();
        b.ld(slots, LoadKind::Constant);
    });
    refused(outcome, LATE);
}

#[test]
fn dynamic_allocations_are_told_apart_and_overlapping_ones_not() {
    let outcome = |overlap: bool| {
        build(|b| {
            let tid = b.tid();
            let (one, other) = if overlap {
                let one = b.overlap(|b| b.dynamic_shared::<U32>(64));
                (one, b.dynamic_shared::<U32>(64))
            } else {
                (b.dynamic_shared::<U32>(64), b.dynamic_shared::<U32>(64))
            };
            let to = b.index(one, tid);
            b.st(to, tid);
            b.ld(other.at(3), LoadKind::Constant);
        })
    };
    accepted(outcome(false));
    refused(outcome(true), LATE);
}

#[test]
fn an_index_reaches_the_whole_shared_variable() {
    let outcome = shared(|b, slots, tid| {
        let to = b.index(slots.at(8), tid);
        b.st(to, tid);
        let block = b.ctaid_x();
        let from = b.index(slots, block);
        b.ld(from, LoadKind::Constant);
    });
    refused(outcome, LATE);
}

#[test]
fn an_index_reaches_the_largest_of_overlapping_allocations() {
    let outcome = build(|b| {
        let tid = b.tid();
        let large = b.overlap(|b| b.dynamic_shared::<U32>(64));
        b.dynamic_shared::<U32>(32);
        let to = b.index(large, tid);
        b.st(to, tid);
        b.ld(large.at(40), LoadKind::Constant);
    });
    refused(outcome, LATE);
}

const FOREIGN: &str = "a constant load in a role of shared memory that other warps store to at";

#[test]
fn what_another_role_stores_to_is_not_constant() {
    let outcome = |kind, apart: u32| {
        shared(|b, slots, _| {
            let producer = Role::new(1, move |b| {
                b.st(slots, 1u32);
                b.bar_sync_threads(1, 64);
            });
            let consumer = Role::new(1, move |b| {
                b.bar_sync_threads(1, 64);
                b.ld(slots.at(apart), kind);
            });
            b.roles(vec![producer, consumer]);
        })
    };
    refused(outcome(LoadKind::Constant, 0), FOREIGN);
    accepted(outcome(LoadKind::Constant, 1));
    accepted(outcome(LoadKind::Ordinary, 0));
}

#[test]
fn a_role_reads_its_own_stores_behind_its_own_barrier() {
    let outcome = |barrier: bool| {
        shared(|b, slots, _| {
            let own = Role::new(1, move |b| {
                b.st(slots, 1u32);
                if barrier {
                    b.bar_sync_threads(1, 32);
                }
                b.ld(slots, LoadKind::Constant);
            });
            b.roles(vec![own, Role::new(1, |_| {})]);
        })
    };
    refused(outcome(false), LATE);
    accepted(outcome(true));
}

#[test]
fn a_barrier_of_a_role_is_none_of_the_block() {
    let before = |barrier: bool| {
        shared(|b, slots, tid| {
            let to = b.index(slots, tid);
            b.st(to, tid);
            if barrier {
                b.bar_sync();
            }
            let own = Role::new(1, move |b| {
                b.bar_sync_threads(1, 32);
                b.ld(slots, LoadKind::Constant);
            });
            b.roles(vec![own, Role::new(1, |_| {})]);
        })
    };
    refused(before(false), FOREIGN);
    accepted(before(true));
    let after = |barrier: bool| {
        shared(|b, slots, _| {
            let own = Role::new(1, move |b| {
                b.st(slots, 1u32);
                b.bar_sync_threads(1, 32);
            });
            b.roles(vec![own, Role::new(1, |_| {})]);
            if barrier {
                b.bar_sync();
            }
            b.ld(slots, LoadKind::Constant);
        })
    };
    refused(after(false), LATE);
    accepted(after(true));
}
