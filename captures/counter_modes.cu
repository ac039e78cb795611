// Small kernels for each way in which Nsight Compute takes a result: kernels, ranges, graphs, inside NVTX ranges, in
// clusters of blocks, and with sparse matrices on the tensor cores.
//
//     nvcc -O3 -std=c++17 -arch=sm_90 -o counter_modes counter_modes.cu
//     ./counter_modes kernels      # each kernel once, inside NVTX ranges
//     ./counter_modes ranges       # two ranges, each between cudaProfilerStart and Stop
//     ./counter_modes graph        # a CUDA graph of three kernels, launched twice

#include <cooperative_groups.h>
#include <cuda_profiler_api.h>
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define CHECK(call)                                                                                 \
    do {                                                                                            \
        const cudaError_t status = (call);                                                          \
        if (status != cudaSuccess) {                                                                \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status));    \
            std::exit(1);                                                                           \
        }                                                                                           \
    } while (0)

namespace cg = cooperative_groups;

constexpr int COUNT = 1 << 24, THREADS = 256, BLOCKS = 132 * 8, PRODUCTS = 4096;

__global__ void scale(float* values, float factor) {
    const size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    values[i] = values[i] * factor;
}

__global__ void add(const float* left, float* right) {
    const size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    right[i] = left[i] + right[i];
}

// ---- clusters ---------------------------------------------------------------------------------------------------------
// Each block sums up its part in shared memory; the first block of a cluster adds up the sums of all of them. 64 KB of
// shared memory a block let three blocks fit on a multiprocessor by that alone, and clusters of eight allow fewer.
constexpr int CLUSTER = 8, CLUSTER_BYTES = 64 * 1024;

__global__ void __cluster_dims__(CLUSTER, 1, 1) clustered_sum(const float* values, float* sums, int parts) {
    extern __shared__ float sum[];
    const cg::cluster_group cluster = cg::this_cluster();
    float own = 0.0f;
    for (int part = 0; part < parts; ++part)
        own += values[(blockIdx.x * size_t(parts) + part) * blockDim.x + threadIdx.x];
    sum[threadIdx.x] = own;
    cluster.sync();
    if (cluster.block_rank() == 0) {
        for (unsigned block = 1; block < cluster.num_blocks(); ++block)
            own += cluster.map_shared_rank(sum, block)[threadIdx.x];
        sums[blockIdx.x / CLUSTER * blockDim.x + threadIdx.x] = own;
    }
    cluster.sync();
}

// ---- tensor cores -----------------------------------------------------------------------------------------------------
// bfloat16 products of fragments in registers, 16 x 8 x 16 dense and 16 x 8 x 32 with two of four values zero.
__global__ void dense_products(float* results, uint32_t seed) {
    const uint32_t a = seed + threadIdx.x, b = seed * 3 + threadIdx.x;
    float sum[4][4] = {};
    for (int step = 0; step < PRODUCTS; ++step)
#pragma unroll
        for (int chain = 0; chain < 4; ++chain)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%5,%5}, {%0,%1,%2,%3};"
                : "+f"(sum[chain][0]), "+f"(sum[chain][1]), "+f"(sum[chain][2]), "+f"(sum[chain][3]) : "r"(a), "r"(b));
    results[blockIdx.x * size_t(blockDim.x) + threadIdx.x] = sum[0][0] + sum[1][1] + sum[2][2] + sum[3][3];
}

__global__ void sparse_products(float* results, uint32_t seed) {
    const uint32_t a = seed + threadIdx.x, b = seed * 3 + threadIdx.x, which = 0x44444444u;
    float sum[4][4] = {};
    for (int step = 0; step < PRODUCTS; ++step)
#pragma unroll
        for (int chain = 0; chain < 4; ++chain)
            asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32 "
                "{%0,%1,%2,%3}, {%4,%4,%4,%4}, {%5,%5,%5,%5}, {%0,%1,%2,%3}, %6, 0x0;"
                : "+f"(sum[chain][0]), "+f"(sum[chain][1]), "+f"(sum[chain][2]), "+f"(sum[chain][3])
                : "r"(a), "r"(b), "r"(which));
    results[blockIdx.x * size_t(blockDim.x) + threadIdx.x] = sum[0][0] + sum[1][1] + sum[2][2] + sum[3][3];
}

struct Buffers {
    float *left = nullptr, *right = nullptr;
    Buffers() {
        CHECK(cudaMalloc(&left, COUNT * sizeof(float)));
        CHECK(cudaMalloc(&right, COUNT * sizeof(float)));
        CHECK(cudaMemset(left, 0, COUNT * sizeof(float)));
        CHECK(cudaMemset(right, 0, COUNT * sizeof(float)));
    }
    ~Buffers() { cudaFree(left), cudaFree(right); }
    Buffers(const Buffers&) = delete;
};

void elementwise(const Buffers& with, cudaStream_t stream) {
    scale<<<COUNT / THREADS, THREADS, 0, stream>>>(with.left, 0.5f);
    add<<<COUNT / THREADS, THREADS, 0, stream>>>(with.left, with.right);
}

void kernels(const Buffers& with) {
    CHECK(cudaFuncSetAttribute(clustered_sum, cudaFuncAttributeMaxDynamicSharedMemorySize, CLUSTER_BYTES));
    for (const char* step : {"warmup", "step"}) {
        nvtxRangePushA(step);
        nvtxRangePushA("elementwise");
        elementwise(with, nullptr);
        nvtxRangePop();
        nvtxRangePushA("products");
        dense_products<<<BLOCKS, THREADS>>>(with.right, 1);
        sparse_products<<<BLOCKS, THREADS>>>(with.right, 1);
        nvtxRangePop();
        clustered_sum<<<BLOCKS, THREADS, CLUSTER_BYTES>>>(with.left, with.right, COUNT / THREADS / BLOCKS);
        nvtxRangePop();
        CHECK(cudaDeviceSynchronize());
    }
}

void ranges(const Buffers& with) {
    elementwise(with, nullptr);
    for (int range = 0; range < 2; ++range) {
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaProfilerStart());
        for (int time = 0; time <= range; ++time) elementwise(with, nullptr);
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaProfilerStop());
    }
}

void graph(const Buffers& with) {
    cudaStream_t stream;
    cudaGraph_t recorded;
    cudaGraphExec_t executable;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    elementwise(with, stream);
    dense_products<<<BLOCKS, THREADS, 0, stream>>>(with.right, 1);
    CHECK(cudaStreamEndCapture(stream, &recorded));
    CHECK(cudaGraphInstantiate(&executable, recorded, 0));
    for (int time = 0; time < 2; ++time) CHECK(cudaGraphLaunch(executable, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(recorded));
    CHECK(cudaStreamDestroy(stream));
}

int main(int count, char** arguments) {
    const char* what = count > 1 ? arguments[1] : "kernels";
    const Buffers buffers;
    if (std::strcmp(what, "ranges") == 0) ranges(buffers);
    else if (std::strcmp(what, "graph") == 0) graph(buffers);
    else kernels(buffers);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    return 0;
}
