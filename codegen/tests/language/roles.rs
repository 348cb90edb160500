//! Roles: what the warps of a block may know of each other, and in which order they meet at named barriers.

use kiln_codegen::Target;
use kiln_codegen::ptx::{Builder, Global, LoadKind, Module, Role, U32, Val, Var};

fn build(block: u32, body: impl FnOnce(&mut Builder)) -> Result<(), String> {
    let mut module = Module::new(Target::new(80).expect("a known target"));
    module.kernel("probe", block, body).map(drop).map_err(|error| error.to_string())
}

/// Builds a block of one warp for each role.
fn with(roles: Vec<Role<'_>>) -> Result<(), String> {
    build(32 * roles.len() as u32, |b| b.roles(roles))
}

#[track_caller]
fn refused(outcome: Result<(), String>, because: &str) {
    let error = outcome.expect_err("the roles break a rule");
    assert!(error.contains(because), "{error}");
    assert!(error.contains("roles.rs:"), "{error}");
}

#[track_caller]
fn accepted(outcome: Result<(), String>) {
    assert_eq!(outcome, Ok(()));
}

const ORDER: &str = "roles must come to the barriers they share in one order";

/// Waits at barriers one after the other, each of two warps.
fn waits(barriers: &'static [u32]) -> Role<'static> {
    Role::new(1, |b| barriers.iter().for_each(|barrier| b.bar_sync_threads(*barrier, 64)))
}

fn set_next(b: &mut Builder, var: Var<U32>) {
    let next = b.add(var, 1);
    b.set(var, next);
}

#[test]
fn what_one_role_sets_is_not_uniform_in_the_block_afterwards() {
    let outcome = build(64, |b| {
        let var = b.var::<U32>(0);
        b.roles(vec![Role::new(1, |b| b.set(var, 1)), Role::new(1, |_| {})]);
        let set = b.setp_eq(var, 1);
        b.if_(set, |b| b.bar_sync());
    });
    refused(outcome, "bar.sync under warp-uniform control flow");
}

#[test]
fn what_a_role_sets_is_uniform_in_it() {
    accepted(build(128, |b| {
        let var = b.var::<U32>(0);
        let other = Role::new(1, move |b| b.set(var, 7));
        let own = Role::new(3, move |b| {
            set_next(b, var);
            let set = b.setp_eq(var, 1);
            b.if_(set, |b| b.bar_sync_threads(1, 96));
        });
        b.roles(vec![other, own]);
    }));
}

#[test]
fn a_role_that_crosses_others_of_before_knows_what_their_warps_do_not_share() {
    let outcome = build(128, |b| {
        let var = b.var::<U32>(0);
        b.roles(vec![Role::new(1, move |b| b.set(var, 1)), Role::new(3, |_| {})]);
        let pair = Role::new(2, move |b| {
            let set = b.setp_eq(var, 1);
            b.if_(set, |b| b.bar_sync_threads(1, 64));
        });
        b.roles(vec![pair, Role::new(2, |_| {})]);
    });
    refused(outcome, "bar.sync under warp-uniform control flow");
}

#[test]
fn barriers_in_one_order_are_accepted_and_crossed_ones_refused() {
    accepted(with(vec![waits(&[1, 2, 1]), waits(&[1, 2, 1])]));
    refused(with(vec![waits(&[1, 2]), waits(&[2, 1])]), ORDER);
    refused(with(vec![waits(&[1, 2]), waits(&[2, 1])]), "role 0 comes to barrier 1, role 1 comes to barrier 2");
}

#[test]
fn a_barrier_waited_at_more_often_by_one_role_is_refused() {
    refused(with(vec![waits(&[1, 1]), waits(&[1])]), "role 0 comes to barrier 1, role 1 to its end");
    refused(with(vec![waits(&[1]), waits(&[1, 1])]), "role 0 to its end, role 1 comes to barrier 1");
}

#[test]
fn three_roles_that_wait_in_a_ring_are_refused() {
    let ring = vec![waits(&[1, 2]), waits(&[3, 1]), waits(&[2, 3])];
    refused(with(ring), "role 0 comes to barrier 1, role 1 comes to barrier 3, role 2 comes to barrier 2");
    accepted(with(vec![waits(&[1, 2]), waits(&[1, 3]), waits(&[2, 3])]));
}

/// `times` rounds with a barrier of two warps in each.
fn rounds(barrier: u32, times: u32, b: &mut Builder) {
    b.for_range(0, times, 1, |b, _| b.bar_sync_threads(barrier, 64));
}

#[test]
fn a_barrier_in_a_loop_against_one_outside_is_refused() {
    let outcome = with(vec![Role::new(1, |b| rounds(1, 3, b)), waits(&[1])]);
    refused(outcome, "role 0 to a loop with barrier 1, role 1 comes to barrier 1");
    refused(with(vec![Role::new(1, |b| rounds(1, 3, b)), waits(&[1, 1, 1])]), ORDER);
}

#[test]
fn loops_of_as_many_rounds_are_accepted() {
    accepted(with(vec![Role::new(1, |b| rounds(1, 3, b)), Role::new(1, |b| rounds(1, 3, b))]));
    accepted(build(64, |b| {
        let n = b.param::<U32>("n");
        let y = b.param::<Global<U32>>("y");
        let role = |store: bool| {
            Role::new(1, move |b| {
                b.for_range(0, n, 1, |b, i| {
                    if store {
                        let at = b.index(y, i);
                        b.st(at, i);
                    }
                    b.bar_sync_threads(1, 64);
                    b.bar_sync_threads(2, 64);
                });
            })
        };
        b.roles(vec![role(true), role(false)]);
    }));
}

const CONDITIONS: &str = "the conditions of roles 0 and 1 around a barrier they share may differ";

#[test]
fn loops_of_other_rounds_are_refused() {
    refused(with(vec![Role::new(1, |b| rounds(1, 3, b)), Role::new(1, |b| rounds(1, 4, b))]), CONDITIONS);
    let outcome = build(64, |b| {
        let (n, m) = (b.param::<U32>("n"), b.param::<U32>("m"));
        let role = |end: Val<U32>| Role::new(1, move |b| b.for_range(0, end, 1, |b, _| b.bar_sync_threads(1, 64)));
        b.roles(vec![role(n), role(m)]);
    });
    refused(outcome, CONDITIONS);
}

#[test]
fn a_counter_that_is_tested_before_and_after_its_step_is_refused() {
    let role = |late: bool| {
        Role::new(1, move |b| {
            let count = b.var::<U32>(0);
            b.do_while(|b| {
                b.bar_sync_threads(1, 64);
                if !late {
                    set_next(b, count);
                }
                let again = b.setp_lt(count, 3);
                if late {
                    set_next(b, count);
                }
                again
            });
        })
    };
    accepted(with(vec![role(true), role(true)]));
    refused(with(vec![role(false), role(true)]), CONDITIONS);
}

#[test]
fn branches_of_roles_are_taken_together() {
    let outcome = |other: u32| {
        build(64, |b| {
            let n = b.param::<U32>("n");
            let role = |limit: u32| {
                Role::new(1, move |b| {
                    let small = b.setp_lt(n, limit);
                    b.if_else(small, |b| b.bar_sync_threads(1, 64), |b| b.bar_sync_threads(2, 64));
                })
            };
            b.roles(vec![role(3), role(other)]);
        })
    };
    accepted(outcome(3));
    refused(outcome(4), CONDITIONS);
}

#[test]
fn a_loop_in_a_branch_of_one_role_only_is_refused() {
    let outcome = build(64, |b| {
        let n = b.param::<U32>("n");
        let guarded = Role::new(1, move |b| {
            let small = b.setp_lt(n, 3);
            b.if_(small, |b| rounds(1, 2, b));
        });
        b.roles(vec![guarded, Role::new(1, |b| rounds(1, 2, b))]);
    });
    refused(outcome, ORDER);
}

#[test]
fn rounds_that_follow_from_shared_memory_are_refused_and_from_constants_accepted() {
    let outcome = |shared: bool| {
        build(64, |b| {
            let x = b.param::<Global<U32>>("x");
            let slot = b.shared::<U32>("slot", 1);
            let role = || {
                Role::new(1, move |b| {
                    let n = if shared { b.ld(slot, LoadKind::Constant) } else { b.ld(x, LoadKind::Constant) };
                    b.for_range(0, n, 1, |b, _| b.bar_sync_threads(1, 64));
                })
            };
            b.roles(vec![role(), role()]);
        })
    };
    accepted(outcome(false));
    refused(outcome(true), CONDITIONS);
}

#[test]
fn rounds_that_one_role_changes_are_refused() {
    let outcome = build(64, |b| {
        let n = b.var::<U32>(3);
        let role = |change: bool| {
            Role::new(1, move |b| {
                b.for_range(0, n, 1, |b, _| b.bar_sync_threads(1, 64));
                if change {
                    b.set(n, 5);
                }
            })
        };
        b.do_while(|b| {
            b.roles(vec![role(true), role(false)]);
            b.setp_eq(0u32, 1)
        });
    });
    refused(outcome, CONDITIONS);
}

/// Waits once and then while a variable counts to 3.
fn counts(var: Var<U32>) -> Role<'static> {
    Role::new(1, move |b| {
        b.do_while(|b| {
            b.bar_sync_threads(1, 64);
            set_next(b, var);
            b.setp_lt(var, 3)
        });
    })
}

#[test]
fn counters_that_begin_outside_the_roles_are_refused() {
    let outcome = build(64, |b| {
        let (one, other) = (b.var::<U32>(0), b.var::<U32>(1));
        b.roles(vec![counts(one), counts(other)]);
    });
    refused(outcome, CONDITIONS);
}

#[test]
fn rounds_that_earlier_roles_set_are_refused() {
    let outcome = build(64, |b| {
        let n = b.var::<U32>(3);
        b.roles(vec![Role::new(1, |b| b.set(n, 5)), Role::new(1, |_| {})]);
        let role = || Role::new(1, move |b| b.for_range(0, n, 1, |b, _| b.bar_sync_threads(1, 64)));
        b.roles(vec![role(), role()]);
    });
    refused(outcome, CONDITIONS);
}

#[test]
fn operands_that_are_exchanged_in_one_role_are_refused() {
    let outcome = |exchanged: bool| {
        build(64, |b| {
            let n = b.param::<U32>("n");
            let role = |exchanged: bool| {
                Role::new(1, move |b| {
                    let (x, y) = (b.add(n, 1), b.mul(n, 3));
                    let small = if exchanged { b.setp_lt(y, x) } else { b.setp_lt(x, y) };
                    b.if_(small, |b| b.bar_sync_threads(1, 64));
                })
            };
            b.roles(vec![role(false), role(exchanged)]);
        })
    };
    accepted(outcome(false));
    refused(outcome(true), CONDITIONS);
}

#[test]
fn a_barrier_in_another_branch_of_the_same_ones_is_refused() {
    let outcome = |second: bool| {
        build(64, |b| {
            let n = b.param::<U32>("n");
            let role = |second: bool| {
                Role::new(1, move |b| {
                    let var = b.var::<U32>(n);
                    for here in [!second, second] {
                        let small = b.setp_lt(var, 3);
                        b.if_(small, |b| {
                            if here {
                                b.bar_sync_threads(1, 64);
                            }
                            set_next(b, var);
                        });
                    }
                })
            };
            b.roles(vec![role(false), role(second)]);
        })
    };
    accepted(outcome(false));
    refused(outcome(true), CONDITIONS);
}

#[test]
fn barriers_crossed_in_the_other_branch_are_refused() {
    let outcome = build(64, |b| {
        let n = b.param::<U32>("n");
        let role = |order: [u32; 2]| {
            Role::new(1, move |b| {
                let small = b.setp_lt(n, 3);
                b.if_else(
                    small,
                    |b| b.bar_sync_threads(1, 64),
                    |b| order.iter().for_each(|id| b.bar_sync_threads(*id, 64)),
                );
            })
        };
        b.roles(vec![role([1, 2]), role([2, 1])]);
    });
    refused(outcome, ORDER);
}

#[test]
fn a_role_of_its_own_barrier_is_free_of_the_others() {
    accepted(build(96, |b| b.roles(vec![Role::new(2, |b| rounds(1, 9, b)), Role::new(1, |_| {})])));
}

#[test]
fn a_number_means_the_same_warps_in_the_whole_kernel() {
    let twice = |second: u32| {
        build(128, |b| {
            let pair = |barrier| vec![Role::new(2, move |b| b.bar_sync_threads(barrier, 64)), Role::new(2, |_| {})];
            let late = |barrier| vec![Role::new(2, |_| {}), Role::new(2, move |b| b.bar_sync_threads(barrier, 64))];
            b.roles(pair(1));
            b.roles(pair(1));
            b.roles(late(second));
        })
    };
    accepted(twice(2));
    refused(twice(1), "barrier 1 is for warps 2 to 3 here and for warps 0 to 1 at");
    let zero = build(64, |b| {
        b.roles(vec![Role::new(1, |b| b.bar_sync_threads(0, 32)), Role::new(1, |_| {})]);
        b.bar_sync();
    });
    refused(zero, "barrier 0 is for warps 0 to 1 here and for warps 0 to 0 at");
}

#[test]
fn outside_roles_a_named_barrier_counts_the_block() {
    accepted(build(64, |b| b.bar_sync_threads(1, 64)));
    refused(build(64, |b| b.bar_sync_threads(1, 32)), "outside roles: the whole block waits, 64 threads");
}

/// A role that ends where a parameter says so, beside one that waits at the barriers.
fn leaves(own: u32, others: &'static [u32], b: &mut Builder) {
    let n = b.param::<U32>("n");
    let over = b.setp_eq(n, 0);
    let role = Role::new(1, move |b| {
        b.if_(over, |b| b.exit());
        b.bar_sync_threads(own, 32 + 32 * u32::from(others.contains(&own)));
    });
    b.roles(vec![role, waits(others)]);
}

#[test]
fn a_role_ends_where_it_shares_no_barrier_and_the_block_has_none_behind() {
    accepted(build(64, |b| leaves(1, &[], b)));
    refused(build(64, |b| leaves(1, &[1], b)), "a role ends that shares barrier 1 with others");
    let outcome = build(64, |b| {
        leaves(1, &[], b);
        b.bar_sync();
    });
    refused(outcome, "a barrier of the block behind roles of which one ends");
}
