//! What those get who build with kiln: its bindings, the code it generates, and its dependencies.

#[cfg(feature = "tiny")]
mod bake_in_a_program;
mod basic_blocks;
mod bindings;
mod dependencies;
mod folding;

// As the generated code calls them: it is kiln's own, whose crate this stands for.
#[cfg(feature = "tiny")]
use kiln::{baked, shape};
