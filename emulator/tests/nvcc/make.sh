#!/bin/sh
# Makes the PTX of programs.cu and system.cu. Needs nvcc: pip install nvidia-cuda-nvcc==13.5.37 nvidia-cuda-cccl nvidia-cuda-runtime nvidia-cuda-crt
# in a virtual environment, then: make.sh PATH/site-packages/nvidia/cu13
set -e
cd "$(dirname "$0")"
for sm in 75 80 90; do
    "$1/bin/nvcc" -ptx -arch=sm_$sm -I "$1/include" -o "programs.sm_$sm.ptx" programs.cu
done
"$1/bin/nvcc" -ptx -arch=sm_75 -I "$1/include" -o system.sm_75.ptx system.cu
