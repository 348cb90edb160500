"""Compiles llama.cpp's kernels of a decode step to PTX, for the emulator and its clock.

    llama.py CHECKOUT CUDA OUT
    cargo run --release -p kiln-emulator --example llama_layer -- OUT

CUDA is the folder of nvcc's `bin` and `include`: `pip install nvidia-cuda-nvcc==13.5.37 nvidia-cuda-cccl nvidia-cuda-runtime
nvidia-cuda-crt` in a virtual environment, then PATH/site-packages/nvidia/cu13. OUT gets a file for each chip's sm.
Nothing of llama.cpp is kept here.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

# Declarations of cuBLAS that ggml's headers mention and no kernel here calls.
CUBLAS = """
#pragma once
#include <cuda_fp16.h>
#include <library_types.h>
typedef int cublasStatus_t;
typedef void * cublasHandle_t;
enum { CUBLAS_STATUS_SUCCESS, CUBLAS_TF32_TENSOR_OP_MATH };
const char * cublasGetStatusString(cublasStatus_t);
int cublasCreate(cublasHandle_t *);
int cublasDestroy(cublasHandle_t);
int cublasSetMathMode(cublasHandle_t, int);
int cublasSetStream(cublasHandle_t, cudaStream_t);
int cublasSetWorkspace(cublasHandle_t, void *, size_t);
"""

# Kernels are emitted where something names them.
NAMED = """
const void * named[] = {
    (const void *) mul_mat_vec_q<GGML_TYPE_Q4_K, 1, false>,
    (const void *) mul_mat_vec_q<GGML_TYPE_Q4_K, 1, true>,
    (const void *) mul_mat_vec_q<GGML_TYPE_Q6_K, 1, false>,
    (const void *) mul_mat_vec_q<GGML_TYPE_Q6_K, 1, true>,
    (const void *) quantize_q8_1,
    (const void *) rms_norm_f32<1024, true>,
    (const void *) rms_norm_mul_rope_f32<256, false, float>,
    (const void *) rms_norm_mul_rope_f32<256, false, half>,
    (const void *) k_set_rows<float, int64_t, half>,
    (const void *) flash_attn_ext_vec<128, 1, GGML_TYPE_F16, GGML_TYPE_F16, false>,
    (const void *) flash_attn_combine_results<128>,
};
"""


def head(path, kernel):
    """What stands in a file before the template of a kernel: the rest would instantiate every type."""
    text = path.read_text()
    at = re.search(rf"\b{kernel}\(", text)
    if not at:
        sys.exit(f"{path} has no {kernel}: this script is for another commit")
    return text[: text.rindex("\ntemplate", 0, at.start()) + 1]


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    checkout, cuda, out = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
    ggml = checkout / "ggml"
    kernels = ggml / "src" / "ggml-cuda"
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "cublas_v2.h").write_text(CUBLAS)
        source = folder / "layer.cu"
        parts = [
            head(kernels / "mmvq.cu", "mul_mat_vec_q_moe"),
            head(kernels / "quantize.cu", "quantize_mmq_nvfp4"),
            head(kernels / "norm.cu", "rms_norm_back_f32"),
            head(kernels / "rope.cu", "rms_norm_mul_rope_cuda"),
            head(kernels / "set-rows.cu", "set_rows_cuda"),
            '#include "fattn-vec.cuh"\n',
        ]
        source.write_text("\n".join(parts) + NAMED)
        include = [folder, kernels, ggml / "include", ggml / "src", cuda / "include", cuda / "include" / "cccl"]
        flags = [flag for path in include for flag in ("-I", str(path))]
        for sm in (80, 86, 87, 89, 90, 120):
            command = [cuda / "bin" / "nvcc", "-ptx", "-std=c++17", "-use_fast_math", "-extended-lambda", f"-arch=sm_{sm}"]
            subprocess.run([*command, *flags, "-o", out / f"sm_{sm}.ptx", source], check=True)


main()
