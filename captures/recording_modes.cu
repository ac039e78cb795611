// Tiny programs, one for each way in which a capture of Nsight Systems can look different.
//
//   nvcc -O2 -std=c++17 -o recording_modes recording_modes.cu && ./recording_modes MODE
//
// graph: replays a CUDA graph of kernels, a copy and a fill · memory: allocates and frees (also asynchronously) · nvtx:
// domains, registered strings, categories, payloads, colours, start/end ranges across threads, marks, nesting · memset:
// fills of no byte · queued: leaves 1,500 launches in the queues when the recording ends · threads: two threads launch.
// Each records from cudaProfilerStart to cudaProfilerStop.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <cuda_profiler_api.h>
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>

#define CHECK(call)                                                                                                   \
  do {                                                                                                                \
    cudaError_t error = (call);                                                                                       \
    if (error != cudaSuccess) {                                                                                       \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));                                             \
      std::exit(1);                                                                                                   \
    }                                                                                                                 \
  } while (0)

__global__ void scale(float *x, int n, float by) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= by;
}

__global__ void add(float *x, const float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += y[i];
}

__global__ void spin(long long cycles) {
  long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

constexpr int kCount = 1 << 22;
float *x, *y;

void layer(cudaStream_t stream) {
  scale<<<kCount / 256, 256, 0, stream>>>(x, kCount, 0.5f);
  add<<<kCount / 256, 256, 0, stream>>>(x, y, kCount);
}

void graph() {
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  cudaGraph_t recorded;
  cudaGraphExec_t ready;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < 8; i++) layer(stream);
  CHECK(cudaMemcpyAsync(y, x, kCount * sizeof(float), cudaMemcpyDeviceToDevice, stream));
  CHECK(cudaMemsetAsync(x, 0, 4096, stream));
  CHECK(cudaStreamEndCapture(stream, &recorded));
  CHECK(cudaGraphInstantiate(&ready, recorded, 0));
  CHECK(cudaGraphLaunch(ready, stream));
  CHECK(cudaStreamSynchronize(stream));
  CHECK(cudaProfilerStart());
  for (int i = 0; i < 5; i++) {
    nvtxRangePushA("step");
    layer(stream);
    CHECK(cudaGraphLaunch(ready, stream));
    CHECK(cudaGraphLaunch(ready, stream));
    CHECK(cudaStreamSynchronize(stream));
    nvtxRangePop();
  }
}

void memory() {
  CHECK(cudaProfilerStart());
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  for (int i = 0; i < 4; i++) {
    nvtxRangePushA("step");
    float *z, *async, *pinned, *managed;
    CHECK(cudaMalloc(&z, (8 << 20) * (i + 1)));
    CHECK(cudaMallocHost(&pinned, 1 << 20));
    CHECK(cudaMallocManaged(&managed, 1 << 20));
    CHECK(cudaMallocAsync(&async, 1 << 20, stream));
    CHECK(cudaMemcpyAsync(z, pinned, 1 << 20, cudaMemcpyHostToDevice, stream));
    layer(stream);
    CHECK(cudaFreeAsync(async, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaFree(z));
    CHECK(cudaFree(managed));
    CHECK(cudaFreeHost(pinned));
    nvtxRangePop();
  }
  float *kept;
  CHECK(cudaMalloc(&kept, 64 << 20));
  layer(stream);
}

void nvtx() {
  nvtxDomainHandle_t domain = nvtxDomainCreateA("model"), other = nvtxDomainCreateA("data loader");
  nvtxStringHandle_t registered = nvtxDomainRegisterStringA(domain, "attention (registered)");
  nvtxDomainNameCategoryA(domain, 7, "forward");
  nvtxNameCategoryA(3, "phases");
  CHECK(cudaProfilerStart());
  for (int i = 0; i < 4; i++) {
    nvtxEventAttributes_t event = {};
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event.category = 3;
    event.colorType = NVTX_COLOR_ARGB;
    event.color = 0xff4080c0;
    event.messageType = NVTX_MESSAGE_TYPE_ASCII;
    event.message.ascii = "step";
    event.payloadType = NVTX_PAYLOAD_TYPE_INT64;
    event.payload.llValue = i;
    nvtxRangePushEx(&event);
    nvtxRangeId_t flight = nvtxRangeStartA("in flight");
    event.category = 7;
    event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    event.message.registered = registered;
    event.payloadType = NVTX_PAYLOAD_TYPE_DOUBLE;
    event.payload.dValue = 0.5 * i;
    nvtxDomainRangePushEx(domain, &event);
    layer(nullptr);
    nvtxDomainRangePop(domain);
    event.messageType = NVTX_MESSAGE_TYPE_UNICODE;
    event.message.unicode = L"Schicht für Schicht";
    event.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
    event.payload.ullValue = 1ull << 63;
    nvtxRangeId_t across = nvtxDomainRangeStartEx(other, &event);
    layer(nullptr);
    nvtxMarkA("half of the step");
    nvtxRangePushA("");
    layer(nullptr);
    nvtxRangePop();
    CHECK(cudaDeviceSynchronize());
    std::thread([&] { nvtxDomainRangeEnd(other, across); }).join();
    nvtxRangeEnd(flight);
    nvtxRangePop();
  }
  nvtxRangePushA("never closed");
  layer(nullptr);
}

void memset_() {
  CHECK(cudaProfilerStart());
  for (int i = 0; i < 5; i++) {
    nvtxRangePushA("step");
    CHECK(cudaMemsetAsync(x, 0, 0));
    layer(nullptr);
    CHECK(cudaMemsetAsync(x, 0, 1 << 20));
    CHECK(cudaMemsetAsync(x, 0, 0));
    CHECK(cudaMemcpyAsync(x, y, 0, cudaMemcpyDeviceToDevice));
    CHECK(cudaDeviceSynchronize());
    nvtxRangePop();
  }
}

void queued() {
  std::vector<cudaStream_t> streams(3);
  for (auto &stream : streams) CHECK(cudaStreamCreate(&stream));
  CHECK(cudaProfilerStart());
  for (int i = 0; i < 3; i++) {
    nvtxRangePushA("step");
    for (int j = 0; j < 20; j++) layer(streams[0]);
    CHECK(cudaDeviceSynchronize());
    nvtxRangePop();
  }
  nvtxRangePushA("step");
  for (auto &stream : streams) spin<<<1, 1, 0, stream>>>(1500000000ll);
  for (int j = 0; j < 250; j++)
    for (auto &stream : streams) layer(stream);
  nvtxRangePop();
}

void threads() {
  cudaStream_t streams[2];
  for (auto &stream : streams) CHECK(cudaStreamCreate(&stream));
  CHECK(cudaProfilerStart());
  auto work = [&](int which) {
    for (int i = 0; i < 5; i++) {
      nvtxRangePushA(which ? "step of the second thread" : "step");
      for (int j = 0; j < 10 + 10 * which; j++) layer(streams[which]);
      CHECK(cudaStreamSynchronize(streams[which]));
      nvtxRangePop();
    }
  };
  std::thread first(work, 0), second(work, 1);
  first.join();
  second.join();
}

int main(int count, char **arguments) {
  std::string mode = count > 1 ? arguments[1] : "";
  CHECK(cudaMalloc(&x, kCount * sizeof(float)));
  CHECK(cudaMalloc(&y, kCount * sizeof(float)));
  layer(nullptr);
  CHECK(cudaDeviceSynchronize());
  if (mode == "graph") graph();
  else if (mode == "memory") memory();
  else if (mode == "nvtx") nvtx();
  else if (mode == "memset") memset_();
  else if (mode == "queued") queued();
  else if (mode == "threads") threads();
  else return std::fprintf(stderr, "graph, memory, nvtx, memset, queued, or threads\n"), 2;
  if (mode != "queued") CHECK(cudaDeviceSynchronize());
  CHECK(cudaProfilerStop());
  CHECK(cudaDeviceSynchronize());
}
