"""Compiles kernels that other people wrote to PTX, for the example `foreign`.

    compile.py SET CHECKOUT CUDA OUT

SET is `samples`, `calm`, `llmc` or `llama`; CHECKOUT a folder of NVIDIA/cuda-samples, zeux/calm, karpathy/llm.c,
ggml-org/llama.cpp. CUDA is the folder of nvcc's `bin` and `include`: `pip install nvidia-cuda-nvcc==13.5.37
nvidia-cuda-cccl nvidia-cuda-runtime nvidia-cuda-crt` in a virtual environment, then PATH/site-packages/nvidia/cu13.
OUT/SET gets one text for each source. Nothing of the checkout is kept here, and its sources are compiled as they are.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

# Declarations of libraries that the sources mention outside their kernels, and what CUDA 13 took out of CUDA 12.
CUDA_12 = """
#include <cuda_runtime.h>
#define _ALIGNAS(n) __align__(n)
#define memoryClockRate memoryBusWidth
#undef cudaCpuDeviceId
#define cudaCpuDeviceId cudaMemLocation{}
"""
STUBS = {
    "cuda_12.h": CUDA_12,
    "cublas_v2.h": """
#pragma once
#include <cuda_fp16.h>
#include <library_types.h>
typedef int cublasStatus_t;
typedef void * cublasHandle_t;
typedef int cublasComputeType_t;
enum { CUBLAS_STATUS_SUCCESS, CUBLAS_TF32_TENSOR_OP_MATH, CUBLAS_COMPUTE_32F };
const char * cublasGetStatusString(cublasStatus_t);
int cublasCreate(cublasHandle_t *);
int cublasDestroy(cublasHandle_t);
int cublasSetMathMode(cublasHandle_t, int);
int cublasSetStream(cublasHandle_t, cudaStream_t);
int cublasSetWorkspace(cublasHandle_t, void *, size_t);
""",
    "cublasLt.h": """
typedef void * cublasLtHandle_t;
template <typename... T> void matmul_cublaslt(T...) {}
""",
    "cuda_profiler_api.h": "#include <driver_types.h>\ncudaError_t cudaProfilerStart();\ncudaError_t cudaProfilerStop();\n",
    "nvtx3/nvToolsExt.h": "inline int nvtxRangePush(const char *) { return 0; }\ninline int nvtxRangePop() { return 0; }\n",
    "nvtx3/nvToolsExtCudaRt.h": "",
}

SAMPLES = [
    "0_Introduction/vectorAdd/vectorAdd.cu",
    "0_Introduction/matrixMul/matrixMul.cu",
    "0_Introduction/mergeSort/mergeSort.cu",
    "0_Introduction/simpleAWBarrier/simpleAWBarrier.cu",
    "2_Concepts_and_Techniques/convolutionSeparable/convolutionSeparable.cu",
    "2_Concepts_and_Techniques/histogram/histogram256.cu",
    "2_Concepts_and_Techniques/histogram/histogram64.cu",
    "2_Concepts_and_Techniques/reduction/reduction_kernel.cu",
    "2_Concepts_and_Techniques/reductionMultiBlockCG/reductionMultiBlockCG.cu",
    "2_Concepts_and_Techniques/scalarProd/scalarProd.cu",
    "2_Concepts_and_Techniques/scan/scan.cu",
    "2_Concepts_and_Techniques/shfl_scan/shfl_scan.cu",
    "2_Concepts_and_Techniques/sortingNetworks/bitonicSort.cu",
    "2_Concepts_and_Techniques/threadFenceReduction/threadFenceReduction.cu",
    "3_CUDA_Features/globalToShmemAsyncCopy/globalToShmemAsyncCopy.cu",
    "5_Domain_Specific/dwtHaar1D/dwtHaar1D.cu",
    "5_Domain_Specific/fastWalshTransform/fastWalshTransform.cu",
    "6_Performance/transpose/transpose.cu",
]

# Kernels are emitted where something names them.
LLMC = [
    "adamw_kernel3<floatX, floatX>",
    "global_norm_squared_kernel<floatX>",
    "fused_classifier_kernel5<true, false>",
]

# Of these files only what stands before a kernel is compiled, since the
# rest instantiates every type.
LLAMA = {
    "rope": ([("rope.cu", None)], []),
    "softmax": ([("softmax.cu", None)], []),
    "fattn_vec": (
        [("fattn-vec.cuh", None)],
        ["flash_attn_ext_vec<128, 1, GGML_TYPE_F16, GGML_TYPE_F16, false>"],
    ),
}


def names(kernels):
    """Text that names kernels."""
    each = ", ".join(f"(const void *) {kernel}" for kernel in kernels)
    return f"const void * named[] = {{ {each} }};\n" if kernels else ""


def head(path, kernel):
    """A file's text, up to the template of a kernel if one is named, with its lines numbered as they were."""
    text = path.read_text()
    if kernel:
        at = re.search(rf"\b{kernel}\(", text)
        if not at:
            sys.exit(f"{path} has no {kernel}: this script is for another commit")
        text = text[: text.rindex("\ntemplate", 0, at.start()) + 1]
    return f'#line 1 "{path}"\n{text}\n'


def sources(name, checkout, folder):
    """Name, path and include folders of each text to make, and further options."""
    if name == "samples":
        for path in SAMPLES:
            path = checkout / "Samples" / path
            yield path.stem, path, [checkout / "Common", path.parent], ["-arch=sm_80"]
    elif name == "calm":
        yield "infer", checkout / "src" / "infer.cu", [], ["-arch=sm_80", "-include", "cuda_12.h"]
    elif name == "llmc":
        path = folder / "llmc.cu"
        files = ["adamw", "attention", "encoder", "fused_classifier", "gelu", "global_norm", "layernorm"]
        parts = [f'#include "llmc/{file}.cuh"\n' for file in files]
        path.write_text("".join(parts) + names(LLMC))
        yield "llmc", path, [checkout], ["-arch=sm_80", "-include", "cuda_12.h", "-DENABLE_BF16"]
    elif name == "llama":
        ggml = checkout / "ggml"
        kernels = ggml / "src" / "ggml-cuda"
        include = [kernels, ggml / "include", ggml / "src"]
        for stem, (files, named) in LLAMA.items():
            path = folder / f"{stem}.cu"
            path.write_text("".join(head(kernels / file, kernel) for file, kernel in files) + names(named))
            yield stem, path, include, ["-arch=sm_80", "-std=c++17", "-use_fast_math", "-extended-lambda"]
    else:
        sys.exit(__doc__)


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    name, (checkout, cuda, out) = sys.argv[1], (pathlib.Path(argument).resolve() for argument in sys.argv[2:])
    (out / name).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        stubs = folder / "stubs"
        for path, text in STUBS.items():
            (stubs / path).parent.mkdir(parents=True, exist_ok=True)
            (stubs / path).write_text(text)
        for stem, path, include, options in sources(name, checkout, folder):
            include = [*include, stubs, cuda / "include", cuda / "include" / "cccl"]
            flags = [flag for path in include for flag in ("-I", str(path))]
            command = [cuda / "bin" / "nvcc", "-ptx", "-lineinfo", "-w", *options, *flags]
            subprocess.run([*command, "-o", out / name / f"{stem}.ptx", path], check=True)


main()
