//! What a bake writes, and the kernels it refuses to make.

mod descriptors;
mod emission;
mod exact;
mod files;
mod light;
mod machine_code;
mod provenance;
mod refusals;
