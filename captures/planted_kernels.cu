// Kernels with one planted fault each, and healthy ones, for Nsight Compute.
//
//     nvcc -O3 -std=c++17 -arch=sm_90 -o planted_kernels planted_kernels.cu
//     ./planted_kernels            # profiled region (cudaProfilerStart … Stop): each kernel once, after a warm-up launch
//     ./planted_kernels --times    # milliseconds of each kernel, and of the same work without the fault
//
// Sizes are for an H200: 132 multiprocessors, 60 MB of L2. Every fault has to be what limits its kernel; `--times` shows
// that it does, and captures/README.md has the numbers.

#include <cuda_profiler_api.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#define CHECK(call)                                                                                 \
    do {                                                                                            \
        const cudaError_t status = (call);                                                          \
        if (status != cudaSuccess) {                                                                \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status));    \
            std::exit(1);                                                                           \
        }                                                                                           \
    } while (0)

// ---- uncoalesced ------------------------------------------------------------------------------------------------------
// One 4-byte field of each 32-byte structure: a warp's load touches 32 sectors instead of 4 and uses an eighth of each.
// Memory is as busy as can be, and 7/9 of what it moves is not needed. Without the fault: the fields in a row (stride 1).
__global__ void uncoalesced(const float* structures, float* fields, int stride) {
    const size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    fields[i] = structures[i * stride] + 1.0f;
}

// ---- bank conflicts ---------------------------------------------------------------------------------------------------
// A transpose through shared memory. Without padding, the 32 threads that read a column of the tile meet in one bank:
// 32 passes for each such load, 1024 of the 1120 cycles that a tile keeps the L1 data pipe busy.
template <int PADDING>
__global__ void bank_conflicts(const float* matrix, float* transposed, int size) {
    __shared__ float tile[32][32 + PADDING];
    const int x = blockIdx.x * 32, y = blockIdx.y * 32;
    for (int row = threadIdx.y; row < 32; row += 8) tile[row][threadIdx.x] = matrix[size_t(y + row) * size + x + threadIdx.x];
    __syncthreads();
    for (int row = threadIdx.y; row < 32; row += 8)
        transposed[size_t(x + row) * size + y + threadIdx.x] = tile[threadIdx.x][row];
}

// ---- occupancy --------------------------------------------------------------------------------------------------------
// Warps that follow a chain of cache lines through 256 MB: every load waits for the one before, and only further warps can
// fill the wait. A line holds 32 times the number of the next one, so that the loads are coalesced.
constexpr int STEPS = 200;
constexpr uint32_t LINES = 1u << 21;

__host__ __device__ inline uint32_t next_line(uint32_t line) {  // a full cycle through all lines (Hull and Dobell, 1962)
    return (line * 1664525u + 1013904223u) & (LINES - 1);
}

__device__ inline uint32_t first_line() { return ((blockIdx.x * blockDim.x + threadIdx.x) / 32 * 2654435761u) & (LINES - 1); }

// Each thread keeps its whole path in shared memory: 100 KB for a block of 4 warps, so that 8 of 64 warps fit.
// Without the fault: a running sum.
template <bool KEEP>
__global__ void shared_memory_limited(const uint32_t* chain, uint32_t* sums) {
    extern __shared__ uint32_t path[];
    uint32_t line = first_line(), sum = 0;
    for (int step = 0; step < STEPS; ++step) {
        line = chain[line * 32 + threadIdx.x % 32];
        if (KEEP) path[step * blockDim.x + threadIdx.x] = line;
        else sum += line;
    }
    if (KEEP)
        for (int step = 0; step < STEPS; ++step) sum += path[step * blockDim.x + threadIdx.x];
    sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// Each thread keeps KEPT averages in registers: with 192, one block of 8 warps fits. Without the fault: 24.
template <int KEPT>
__global__ void register_limited(const uint32_t* chain, float* sums) {
    constexpr int AT_A_TIME = 24, GROUPS = KEPT / AT_A_TIME;
    float average[KEPT];
#pragma unroll
    for (int i = 0; i < KEPT; ++i) average[i] = float(threadIdx.x + i);
    uint32_t line = first_line();
#pragma unroll 1
    for (int step = 0; step < STEPS; step += GROUPS) {
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
            line = chain[line * 32 + threadIdx.x % 32];
#pragma unroll
            for (int i = 0; i < AT_A_TIME; ++i)
                average[group * AT_A_TIME + i] = average[group * AT_A_TIME + i] * 0.5f + float(line);
        }
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < KEPT; ++i) sum += average[i] * float(i + 1);
    sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// ---- divergence -------------------------------------------------------------------------------------------------------
// One thread of eight, at random, has 1024 steps to go, the others 32: a warp takes 1024 steps with 6 of 32 threads active.
// Without the fault: the same work in order, so that the threads of a warp have equally much.
__global__ void divergent(const int* steps, float* values) {
    const size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    const int last = steps[i];
    float value = float(threadIdx.x);
    for (int step = 0; step < last; ++step) value = value * 0.999f + 0.5f;
    values[i] = value;
}

// ---- tiny grid --------------------------------------------------------------------------------------------------------
// A sum of 64 MB by 4 blocks: 128 of the 132 multiprocessors have nothing to do. Without the fault: 8 blocks each.
__global__ void tiny_grid(const float* values, float* sums, size_t count) {
    const size_t threads = size_t(gridDim.x) * blockDim.x, first = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    float sum = 0.0f;
    for (size_t i = first; i < count; i += threads) sum += values[i];
    sums[first] = sum;
}

// ---- healthy: at the roof of device memory ----------------------------------------------------------------------------
// 1 GB read once and written once, 16 bytes a thread, far more than L2 holds. Its hit rates are low, and rightly so.
__global__ void streaming_copy(const float4* from, float4* to) {
    const size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    to[i] = from[i];
}

// ---- healthy: at the roof of the FMA pipe -----------------------------------------------------------------------------
// 8 independent chains of multiply-adds a thread, all of it in registers.
__global__ void multiply_add(float* values, float factor, float addend) {
    float chain[8];
    for (int i = 0; i < 8; ++i) chain[i] = float(threadIdx.x + i);
#pragma unroll 16
    for (int step = 0; step < 2048; ++step)
#pragma unroll
        for (int i = 0; i < 8; ++i) chain[i] = chain[i] * factor + addend;
    float sum = 0.0f;
    for (int i = 0; i < 8; ++i) sum += chain[i];
    values[blockIdx.x * size_t(blockDim.x) + threadIdx.x] = sum;
}

// ---- what they read ---------------------------------------------------------------------------------------------------
__global__ void prepare_numbers(float* values) {
    const size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    values[i] = float(i % 1000);
}

__global__ void prepare_chain(uint32_t* chain) {
    const size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    chain[i] = next_line(uint32_t(i / 32));
}

__global__ void prepare_steps(int* steps, bool in_order) {
    const size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x, count = size_t(gridDim.x) * blockDim.x;
    uint32_t random = uint32_t(i) * 2654435761u;
    random = (random ^ (random >> 15)) * 2246822519u;
    const bool is_long = in_order ? i < count / 8 : (random >> 16) % 8 == 0;
    steps[i] = is_long ? 1024 : 32;
}

// Device memory that lives as long as this. Only one kernel's is allocated at a time: the profiler saves and restores it.
template <typename T>
struct Memory {
    T* at = nullptr;
    explicit Memory(size_t count) { CHECK(cudaMalloc(&at, count * sizeof(T))); }
    ~Memory() { cudaFree(at); }
    Memory(const Memory&) = delete;
};

bool times_asked = false;

using Launch = std::function<void()>;

float milliseconds(const Launch& launch) {
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    launch();
    float best = 1e30f;
    for (int repetition = 0; repetition < 5; ++repetition) {
        CHECK(cudaEventRecord(begin));
        launch();
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        float taken = 0.0f;
        CHECK(cudaEventElapsedTime(&taken, begin, end));
        best = taken < best ? taken : best;
    }
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    return best;
}

void run(const char* name, const Launch& planted, const Launch& repaired = nullptr) {
    CHECK(cudaDeviceSynchronize());
    if (times_asked) {
        const float taken = milliseconds(planted), without = repaired ? milliseconds(repaired) : 0.0f;
        std::printf("%-22s %8.3f ms", name, taken);
        if (repaired) std::printf("   without the fault %8.3f ms   %5.1f times faster", without, taken / without);
        std::printf("\n");
        return;
    }
    planted();
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaProfilerStart());
    planted();
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaProfilerStop());
}

int main(int count, char** arguments) {
    times_asked = count > 1 && std::strcmp(arguments[1], "--times") == 0;
    constexpr int SMS = 132;
    {
        constexpr int STRUCTURES = 1 << 25;
        Memory<float> structures(size_t(STRUCTURES) * 8), fields(STRUCTURES);
        prepare_numbers<<<STRUCTURES / 256 * 8, 256>>>(structures.at);
        const auto launch = [&](int stride) { uncoalesced<<<STRUCTURES / 256, 256>>>(structures.at, fields.at, stride); };
        run("uncoalesced", [&] { launch(8); }, [&] { launch(1); });
    }
    {
        constexpr int SIZE = 8192;
        Memory<float> matrix(size_t(SIZE) * SIZE), transposed(size_t(SIZE) * SIZE);
        prepare_numbers<<<SIZE * SIZE / 256, 256>>>(matrix.at);
        const dim3 grid(SIZE / 32, SIZE / 32), block(32, 8);
        run("bank_conflicts", [&] { bank_conflicts<0><<<grid, block>>>(matrix.at, transposed.at, SIZE); },
            [&] { bank_conflicts<1><<<grid, block>>>(matrix.at, transposed.at, SIZE); });
    }
    {
        constexpr int THREADS = 128, BLOCKS = SMS * 2 * 8, BYTES = STEPS * THREADS * 4;
        Memory<uint32_t> chain(size_t(LINES) * 32), sums(THREADS * BLOCKS);
        prepare_chain<<<LINES * 32 / 256, 256>>>(chain.at);
        CHECK(cudaFuncSetAttribute(shared_memory_limited<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES));
        run("shared_memory_limited", [&] { shared_memory_limited<true><<<BLOCKS, THREADS, BYTES>>>(chain.at, sums.at); },
            [&] { shared_memory_limited<false><<<BLOCKS, THREADS>>>(chain.at, sums.at); });
    }
    {
        constexpr int THREADS = 256, BLOCKS = SMS * 8;
        Memory<uint32_t> chain(size_t(LINES) * 32);
        Memory<float> sums(THREADS * BLOCKS);
        prepare_chain<<<LINES * 32 / 256, 256>>>(chain.at);
        run("register_limited", [&] { register_limited<192><<<BLOCKS, THREADS>>>(chain.at, sums.at); },
            [&] { register_limited<24><<<BLOCKS, THREADS>>>(chain.at, sums.at); });
    }
    {
        constexpr int COUNT = 1 << 22;
        Memory<int> mixed(COUNT), in_order(COUNT);
        Memory<float> values(COUNT);
        prepare_steps<<<COUNT / 256, 256>>>(mixed.at, false);
        prepare_steps<<<COUNT / 256, 256>>>(in_order.at, true);
        run("divergent", [&] { divergent<<<COUNT / 256, 256>>>(mixed.at, values.at); },
            [&] { divergent<<<COUNT / 256, 256>>>(in_order.at, values.at); });
    }
    {
        constexpr int COUNT = 1 << 24;
        Memory<float> values(COUNT), sums(SMS * 8 * 256);
        prepare_numbers<<<COUNT / 256, 256>>>(values.at);
        run("tiny_grid", [&] { tiny_grid<<<4, 256>>>(values.at, sums.at, COUNT); },
            [&] { tiny_grid<<<SMS * 8, 256>>>(values.at, sums.at, COUNT); });
    }
    {
        constexpr int COUNT = 1 << 26;
        Memory<float4> from(COUNT), to(COUNT);
        prepare_numbers<<<COUNT / 256 * 4, 256>>>(reinterpret_cast<float*>(from.at));
        run("streaming_copy", [&] { streaming_copy<<<COUNT / 256, 256>>>(from.at, to.at); });
    }
    {
        constexpr int BLOCKS = SMS * 8 * 4;
        Memory<float> values(size_t(BLOCKS) * 256);
        run("multiply_add", [&] { multiply_add<<<BLOCKS, 256>>>(values.at, 0.999f, 0.5f); });
    }
    return 0;
}
