//! What a bake writes, and the kernels it refuses to make.

mod descriptors;
mod emission;
mod light;
mod provenance;
mod refusals;
