// The kernels. kernels/cuda/build.sh makes the PTX of this file.
#include "scan.cuh"

extern "C" __global__ void __launch_bounds__(128, 4) peregrine_ladder(Scan s) {
    u32 row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < s.rows) ladder_row(s, row);
}

extern "C" __global__ void __launch_bounds__(128, 4) peregrine_comb(Scan s) {
    comb_rows(s, blockIdx.x * blockDim.x + threadIdx.x);
}

extern "C" __global__ void __launch_bounds__(128, 4) peregrine_match(Scan s) {
    match_rows(s, blockIdx.x * blockDim.x + threadIdx.x);
}
