// Single operations, for counting their instructions: kernels/cuda/build.sh --counts.
#include "scan.cuh"

// Loads and stores are left out of the counts.
extern "C" __global__ void count_mul(Fe *p) { p[0] = mul(p[1], p[2]); }
extern "C" __global__ void count_sqr(Fe *p) { p[0] = sqr(p[1]); }
extern "C" __global__ void count_double(Jacobian *p) { p[0] = double_point(p[1]); }
extern "C" __global__ void count_add(Jacobian *p, const Affine *q) {
    p[0] = add_point(p[1], q->x, [&]() { return q->y; });
}
