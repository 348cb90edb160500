//! Generated code in a program that uses a part of it: what the rest is for is no warning.
#![deny(dead_code)]
#![allow(unreachable_pub)] // the modules of a program decide who reaches it

use crate::{baked, shape};

mod bake {
    include!(concat!(env!("OUT_DIR"), "/kiln_baked.rs"));
}

#[test]
fn a_program_may_name_one_model_and_nothing_else() {
    let tiny: &baked::BakedModel = &bake::TINY;
    assert_eq!((tiny.name(), shape::Family::of(tiny.shape())), ("tiny", Some(shape::Family::Qwen3)));
}
