//! A CUDA device in software: runs PTX text on the CPU and checks it.
