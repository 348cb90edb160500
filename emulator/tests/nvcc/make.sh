#!/bin/sh
# Makes the PTX of programs.cu, system.cu and clock.cu. Needs nvcc: pip install nvidia-cuda-nvcc==13.5.37 nvidia-cuda-cccl
# nvidia-cuda-runtime nvidia-cuda-crt in a virtual environment, then: make.sh PATH/site-packages/nvidia/cu13
set -e
cd "$(dirname "$0")"
for sm in 75 80 90; do
    for program in programs clock; do
        "$1/bin/nvcc" -ptx -arch=sm_$sm -I "$1/include" -o "$program.sm_$sm.ptx" "$program.cu"
    done
done
"$1/bin/nvcc" -ptx -arch=sm_75 -I "$1/include" -o system.sm_75.ptx system.cu
