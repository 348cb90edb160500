//! kiln's kernels, and the typed PTX language they are written in.
