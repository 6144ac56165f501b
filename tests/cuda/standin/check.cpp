// Shows that the stand-ins do what they say: `check NAME`, one process for each.
#include "check.h"

const char KERNELS[] = R"(
extern "C" __global__ void __launch_bounds__(256, 2) add(const float* __restrict__ x, float* __restrict__ y, float a, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + a;
}
extern "C" __global__ void __launch_bounds__(64) turned(const float* x, float* y) {
  __shared__ float s[64];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void at(float* y, int i) { y[i] = 1.0f; }
extern "C" __global__ void seen(const float* x, float* y, int i) { y[0] = x[i]; }
extern "C" __global__ void apart(float* y) {
  if (threadIdx.x < 2) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  y[threadIdx.x] = 7.0f;
}
extern "C" __global__ void much(float* y) {
  __shared__ float s[12 * 1024 + 1];
  s[threadIdx.x] = y[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x + 1];
}
__global__ void nameless(float* y) { y[0] = 1.0f; }
)";

void devices() {
  int count = 0, value = 0, version = 0;
  GIVES(CUDA_ERROR_NOT_INITIALIZED, CU(cuDeviceGetCount)(&count));
  DONE(CU(cuInit)(0));
  DONE(CU(cuDriverGetVersion)(&version));
  DONE(CU(cuDeviceGetCount)(&count));
  EXPECT(version == 12020 && count == 1);
  CUdevice device;
  GIVES(CUDA_ERROR_INVALID_DEVICE, CU(cuDeviceGet)(&device, 1));
  DONE(CU(cuDeviceGet)(&device, 0));
  char name[64];
  DONE(CU(cuDeviceGetName)(name, 64, device));
  EXPECT(strlen(name) > 0);
  DONE(CU(cuDeviceGetAttribute)(&value, 75, device));
  EXPECT(value == 9);
  GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuDeviceGetAttribute)(&value, 9999, device));
  const char* text;
  DONE(CU(cuGetErrorName)(700, &text));
  EXPECT(!strcmp(text, "CUDA_ERROR_ILLEGAL_ADDRESS"));
  GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuGetErrorString)(12345, &text));

  CUdeviceptr at;
  GIVES(CUDA_ERROR_INVALID_CONTEXT, CU(cuMemAlloc_v2)(&at, 4));
  Fixture f;
  size_t total = 0, free = 0;
  DONE(CU(cuDeviceTotalMem_v2)(&total, device));
  at = f.memory(1 << 20);
  DONE(CU(cuMemGetInfo_v2)(&free, &total));
  EXPECT(at % 256 == 0 && total - free == 1 << 20);
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, CU(cuMemAlloc_v2)(&at, total));
  CUcontext other;
  DONE(CU(cuCtxPushCurrent_v2)(f.context));
  DONE(CU(cuCtxPopCurrent_v2)(&other));
  EXPECT(other == f.context);
  DONE(CU(cuDevicePrimaryCtxRelease_v2)(device));
  GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, CU(cuCtxSynchronize)());
  // On another thread there is no context.
  CUresult result = 0;
  std::thread([&] { result = CU(cuMemAlloc_v2)(&at, 4); }).join();
  EXPECT(result == CUDA_ERROR_INVALID_CONTEXT);
}

void kernels() {
  Fixture f(0, KERNELS);
  CUdeviceptr x = f.memory(100 * 4), y = f.memory(100 * 4);
  std::vector<float> values(100);
  for (int i = 0; i < 100; i++) values[i] = float(i);
  // What nobody wrote is no number.
  EXPECT(std::isnan(f.download(x, 100)[99]));
  f.upload(x, values);
  float a = 0.5f;
  unsigned n = 100;
  void* parameters[] = {&x, &y, &a, &n};
  CUstream stream = f.stream();
  DONE(CU(cuLaunchKernel)(f.kernel("add"), 4, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr));
  // The parameters were copied.
  a = 100.0f, n = 0;
  DONE(CU(cuStreamSynchronize)(stream));
  std::vector<float> got = f.download(y, 100);
  for (int i = 0; i < 100; i++) EXPECT(got[i] == float(i) + 0.5f);
  DONE(launch(f.kernel("turned"), 64u, stream, x, y));
  DONE(CU(cuStreamSynchronize)(stream));
  got = f.download(y, 64);
  for (int i = 0; i < 64; i++) EXPECT(got[i] == float(63 - i));
  CUfunction none;
  GIVES(CUDA_ERROR_NOT_FOUND, CU(cuModuleGetFunction)(&none, f.module, "nameless"));
  int value = 0;
  DONE(CU(cuFuncGetAttribute)(&value, CU_FUNC_SHARED_SIZE, f.kernel("turned")));
  EXPECT(value == 256);
  // A launch that is queued keeps the module.
  DONE(launch(f.kernel("turned"), 64u, stream, y, x));
  DONE(CU(cuModuleUnload)(f.module));
  DONE(CU(cuStreamSynchronize)(stream));
  EXPECT(f.download(x, 64)[5] == 5.0f);
  // The same kernel on several streams at once, each with what its blocks share.
  Fixture g(0, KERNELS);
  std::vector<CUstream> streams;
  std::vector<CUdeviceptr> memory;
  for (int s = 0; s < 4; s++) {
    streams.push_back(g.stream());
    memory.push_back(g.memory(256));
    g.upload(memory[s], std::vector<float>(values.begin() + s, values.begin() + s + 64));
  }
  for (int turn = 0; turn < 51; turn++)
    for (int s = 0; s < 4; s++) DONE(launch(g.kernel("turned"), 64u, streams[s], memory[s], memory[s]));
  DONE(CU(cuCtxSynchronize)());
  for (int s = 0; s < 4; s++) EXPECT(g.download(memory[s], 64)[0] == float(63 + s));
}

void limits() {
  Fixture f(0, KERNELS);
  CUdeviceptr y = f.memory(4096);
  int i = 0;
  void* parameters[] = {&y, &i, nullptr, nullptr};
  auto start = [&](const char* name, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared) {
    return CU(cuLaunchKernel)(f.kernel(name), gx, gy, gz, bx, by, bz, shared, nullptr, parameters, nullptr);
  };
  DONE(start("at", 1, 1, 1, 1024, 1, 1, 0));
  GIVES(CUDA_ERROR_INVALID_VALUE, start("at", 0, 1, 1, 1, 1, 1, 0));
  GIVES(CUDA_ERROR_INVALID_VALUE, start("at", 1, 65536, 1, 1, 1, 1, 0));
  GIVES(CUDA_ERROR_INVALID_VALUE, start("at", 1, 1, 65536, 1, 1, 1, 0));
  GIVES(CUDA_ERROR_INVALID_VALUE, start("at", 2147483648u, 1, 1, 1, 1, 1, 0));
  GIVES(CUDA_ERROR_INVALID_VALUE, start("at", 1, 1, 1, 1025, 1, 1, 0));
  GIVES(CUDA_ERROR_INVALID_VALUE, start("at", 1, 1, 1, 1, 1, 65, 0));
  GIVES(CUDA_ERROR_INVALID_VALUE, start("at", 1, 1, 1, 64, 32, 1, 0));
  GIVES(CUDA_ERROR_INVALID_VALUE, start("at", 1, 1, 1, 1, 1, 1, 49153));
  GIVES(CUDA_ERROR_INVALID_VALUE, start("much", 1, 1, 1, 1, 1, 1, 0));
  DONE(CU(cuFuncSetAttribute)(f.kernel("at"), CU_FUNC_MAX_DYNAMIC_SHARED, 65536));
  GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuFuncSetAttribute)(f.kernel("at"), CU_FUNC_MAX_DYNAMIC_SHARED, 1 << 20));
  // More threads than the kernel was compiled for.
  GIVES(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, start("turned", 1, 1, 1, 65, 1, 1, 0));
  GIVES(CUDA_ERROR_INVALID_HANDLE, CU(cuLaunchKernel)(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  // None of these broke anything.
  DONE(CU(cuCtxSynchronize)());
}

// After each of these a context is broken, and stays so until nobody retains it.
static void breaks(CUresult want, const char* kernel, int index, size_t bytes = 4096) {
  Fixture f(0, KERNELS);
  CUdeviceptr y = f.memory(bytes), other = f.memory(4096);
  CUstream stream = f.stream();
  CUfunction fine_kernel = f.kernel("at");
  DONE(launch(f.kernel(kernel), 4u, stream, y, index));
  GIVES(want, CU(cuStreamSynchronize)(stream));
  GIVES(want, CU(cuMemAlloc_v2)(&other, 4));
  GIVES(want, launch(fine_kernel, 1u, stream, other, 0));
  DONE(CU(cuDevicePrimaryCtxRelease_v2)(0));
  Fixture again(0, KERNELS);
  CUdeviceptr fine = again.memory(16);
  DONE(launch(again.kernel("at"), 1u, nullptr, fine, 2));
  EXPECT(again.download(fine, 4)[2] == 1.0f);
  DONE(CU(cuDevicePrimaryCtxRelease_v2)(0));
}

void faults() {
  breaks(CUDA_ERROR_ILLEGAL_ADDRESS, "at", 1024);
  breaks(CUDA_ERROR_ILLEGAL_ADDRESS, "at", -1024);
  {
    // Of what was freed.
    Fixture f(0, KERNELS);
    CUdeviceptr y = f.memory(64);
    DONE(CU(cuMemFree_v2)(y));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemFree_v2)(y));
    DONE(launch(f.kernel("at"), 1u, nullptr, y, 0));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, CU(cuCtxSynchronize)());
    DONE(CU(cuDevicePrimaryCtxRelease_v2)(0));
  }
  {
    // A pointer into another allocation is one that may be followed, to what is freed, not.
    Fixture f(0, KERNELS);
    CUdeviceptr x = f.memory(64), freed = f.memory(64), y = f.memory(64);
    DONE(CU(cuMemFree_v2)(freed));
    DONE(launch(f.kernel("seen"), 1u, nullptr, x, y, int((long long)(freed - x) / 4)));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, CU(cuCtxSynchronize)());
    DONE(CU(cuDevicePrimaryCtxRelease_v2)(0));
  }
  {
    // Memory of the host that is not pinned.
    Fixture f(0, KERNELS);
    float host = 0;
    DONE(launch(f.kernel("at"), 1u, nullptr, &host, 0));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, CU(cuCtxSynchronize)());
    EXPECT(host == 0);
    DONE(CU(cuDevicePrimaryCtxRelease_v2)(0));
  }
  {
    // Copies and fills.
    Fixture f;
    CUdeviceptr y = f.memory(64);
    float values[32] = {};
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, CU(cuMemcpyHtoD_v2)(y, values, 68));
    DONE(CU(cuDevicePrimaryCtxRelease_v2)(0));
    Fixture g;
    y = g.memory(64);
    DONE(CU(cuMemsetD8_v2)(y + 32, 0, 33));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, CU(cuCtxSynchronize)());
    DONE(CU(cuDevicePrimaryCtxRelease_v2)(0));
  }
  {
    // Asynchronous copies are of pinned memory, and do not read back into write-combined memory.
    Fixture f;
    CUdeviceptr y = f.memory(64);
    float values[16] = {};
    CUstream stream = f.stream();
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyHtoDAsync_v2)(y, values, 64, stream));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyDtoHAsync_v2)(values, y, 64, stream));
    float* combined = f.pinned<float>(16, CU_MEMHOSTALLOC_WRITECOMBINED);
    DONE(CU(cuMemcpyHtoDAsync_v2)(y, combined, 64, stream));
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyDtoHAsync_v2)(combined, y, 64, stream));
    float* pinned = f.pinned<float>(16);
    GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyDtoHAsync_v2)(pinned + 1, y, 64, stream));
    DONE(CU(cuMemcpyDtoHAsync_v2)(pinned, y, 64, stream));
    DONE(CU(cuStreamSynchronize)(stream));
    DONE(CU(cuMemFreeHost)(pinned));
  }
}

// Beside an allocation, but on its page.
void slack() {
  breaks(CUDA_ERROR_ILLEGAL_ADDRESS, "at", 17, 68);
  breaks(CUDA_ERROR_ILLEGAL_ADDRESS, "at", -1, 68);
}

void barriers() { breaks(CUDA_ERROR_LAUNCH_FAILED, "apart", 0); }

void peers() {
  Fixture f(0, KERNELS), g(1, KERNELS);
  CUdeviceptr here = g.memory(64);
  DONE(CU(cuCtxSetCurrent)(f.context));
  CUdeviceptr there = f.memory(64);
  f.upload(there, {1, 2, 3, 4});
  DONE(CU(cuCtxSetCurrent)(g.context));
  int can = 0;
  DONE(CU(cuDeviceCanAccessPeer)(&can, 1, 0));
  EXPECT(can == 1);
  // From device to device without access.
  DONE(CU(cuMemcpyPeerAsync)(here, g.context, there, f.context, 16, nullptr));
  EXPECT(g.download(here, 4)[3] == 4.0f);
  DONE(CU(cuCtxEnablePeerAccess)(f.context, 0));
  GIVES(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, CU(cuCtxEnablePeerAccess)(f.context, 0));
  DONE(launch(g.kernel("seen"), 1u, nullptr, there, here, 1));
  EXPECT(g.download(here, 1)[0] == 2.0f);
  // The other way nobody enabled it. The first device is broken by that, the second is not.
  DONE(CU(cuCtxSetCurrent)(f.context));
  DONE(launch(f.kernel("seen"), 1u, nullptr, here, there, 1));
  GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, CU(cuCtxSynchronize)());
  DONE(CU(cuCtxSetCurrent)(g.context));
  DONE(CU(cuCtxSynchronize)());
}

// With STANDIN_FAIL=cuMemAlloc_v2:2,cuStreamCreate,cuEventRecord:*,kernel:2.
void failing() {
  Fixture f(0, KERNELS);
  CUdeviceptr y = f.memory(64), z;
  GIVES(CUDA_ERROR_OUT_OF_MEMORY, CU(cuMemAlloc_v2)(&z, 64));
  z = f.memory(64);
  CUstream stream;
  GIVES(CUDA_ERROR_UNKNOWN, CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  stream = f.stream();
  CUevent event = f.event();
  for (int i = 0; i < 3; i++) GIVES(CUDA_ERROR_UNKNOWN, CU(cuEventRecord)(event, stream));
  DONE(launch(f.kernel("at"), 1u, stream, y, 0));
  DONE(CU(cuStreamSynchronize)(stream));
  DONE(launch(f.kernel("at"), 1u, stream, y, 0));
  GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, CU(cuStreamSynchronize)(stream));
}

// With STANDIN_TRACE.
void tracing() {
  Fixture f(0, KERNELS);
  CUdeviceptr y = f.memory(64);
  CUstream stream = f.stream();
  DONE(launch(f.kernel("at"), 1u, stream, y, 0));
  DONE(launch(f.kernel("at"), 1u, stream, y, 1));
  DONE(CU(cuStreamSynchronize)(stream));
}

int main(int count, char** words) {
  struct {
    const char* name;
    void (*run)();
  } const checks[] = {
#define CHECK(name) {#name, name}
      CHECK(devices), CHECK(kernels),       CHECK(limits), CHECK(order),  CHECK(missing_waits), CHECK(events),
      CHECK(host_functions), CHECK(legacy_stream), CHECK(pools), CHECK(graphs), CHECK(faults), CHECK(slack),
      CHECK(barriers), CHECK(peers), CHECK(failing), CHECK(tracing), CHECK(images), CHECK(products), CHECK(workspaces),
#undef CHECK
  };
  for (auto& check : checks)
    if (count == 2 && !strcmp(words[1], check.name)) return check.run(), 0;
  fprintf(stderr, "which check?\n");
  return 2;
}
