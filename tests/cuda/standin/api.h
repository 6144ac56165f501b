// What of the CUDA driver's interface is stood in for: its types, its numbers and its functions, as
// its public documentation has them.
#pragma once
#include <cstddef>
#include <cstdint>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct Standin_context* CUcontext;
typedef struct Standin_stream* CUstream;
typedef struct Standin_event* CUevent;
typedef struct Standin_module* CUmodule;
typedef struct Standin_function* CUfunction;
typedef struct Standin_graph* CUgraph;
typedef struct Standin_graph_exec* CUgraphExec;
typedef void (*CUhostFn)(void*);
struct CUuuid {
  char bytes[16];
};

// Name, number, what cuGetErrorString says.
#define STANDIN_ERRORS(X)                                                  \
  X(CUDA_SUCCESS, 0, "no error")                                           \
  X(CUDA_ERROR_INVALID_VALUE, 1, "invalid argument")                       \
  X(CUDA_ERROR_OUT_OF_MEMORY, 2, "out of memory")                          \
  X(CUDA_ERROR_NOT_INITIALIZED, 3, "initialization error")                 \
  X(CUDA_ERROR_NO_DEVICE, 100, "no device is there")                       \
  X(CUDA_ERROR_INVALID_DEVICE, 101, "invalid device ordinal")              \
  X(CUDA_ERROR_INVALID_IMAGE, 200, "the image of the kernel is invalid")   \
  X(CUDA_ERROR_INVALID_CONTEXT, 201, "invalid device context")             \
  X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209, "no image is there for the device") \
  X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217, "no peer access")             \
  X(CUDA_ERROR_INVALID_PTX, 218, "a PTX compilation failed")               \
  X(CUDA_ERROR_INVALID_HANDLE, 400, "invalid resource handle")             \
  X(CUDA_ERROR_NOT_FOUND, 500, "named symbol not found")                   \
  X(CUDA_ERROR_NOT_READY, 600, "device not ready")                         \
  X(CUDA_ERROR_ILLEGAL_ADDRESS, 700, "an illegal memory access")           \
  X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701, "too many resources")         \
  X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, 704, "peer access is enabled") \
  X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709, "context is destroyed")          \
  X(CUDA_ERROR_LAUNCH_FAILED, 719, "unspecified launch failure")           \
  X(CUDA_ERROR_NOT_PERMITTED, 800, "operation not permitted")              \
  X(CUDA_ERROR_NOT_SUPPORTED, 801, "operation not supported")              \
  X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900, "not while capturing")     \
  X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901, "the capture is invalid")  \
  X(CUDA_ERROR_STREAM_CAPTURE_MERGE, 902, "captures would merge")          \
  X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, 903, "no capture began here")     \
  X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, 904, "captured work is unjoined")  \
  X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, 905, "uncaptured work is needed") \
  X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906, "the legacy stream is used")  \
  X(CUDA_ERROR_CAPTURED_EVENT, 907, "the event was captured")              \
  X(CUDA_ERROR_UNKNOWN, 999, "unknown error")

enum {
#define X(name, number, text) name = number,
  STANDIN_ERRORS(X)
#undef X
};

enum { CU_STREAM_NON_BLOCKING = 1, CU_EVENT_DISABLE_TIMING = 2 };
enum { CU_MEMHOSTALLOC_WRITECOMBINED = 4 };
enum { CU_FUNC_MAX_THREADS = 0, CU_FUNC_SHARED_SIZE = 1, CU_FUNC_NUM_REGS = 4, CU_FUNC_MAX_DYNAMIC_SHARED = 8 };
enum { CU_CAPTURE_GLOBAL = 0, CU_CAPTURE_THREAD_LOCAL = 1, CU_CAPTURE_RELAXED = 2 };

#define STANDIN_API extern "C" __attribute__((visibility("default")))

STANDIN_API CUresult cuInit(unsigned flags);
STANDIN_API CUresult cuDriverGetVersion(int* version);
STANDIN_API CUresult cuGetErrorName(CUresult error, const char** text);
STANDIN_API CUresult cuGetErrorString(CUresult error, const char** text);
STANDIN_API CUresult cuDeviceGet(CUdevice* device, int ordinal);
STANDIN_API CUresult cuDeviceGetCount(int* count);
STANDIN_API CUresult cuDeviceGetName(char* name, int length, CUdevice device);
STANDIN_API CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device);
STANDIN_API CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device);
STANDIN_API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device);
STANDIN_API CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer);
STANDIN_API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device);
STANDIN_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
STANDIN_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags);
STANDIN_API CUresult cuCtxSetCurrent(CUcontext context);
STANDIN_API CUresult cuCtxGetCurrent(CUcontext* context);
STANDIN_API CUresult cuCtxPushCurrent_v2(CUcontext context);
STANDIN_API CUresult cuCtxPopCurrent_v2(CUcontext* context);
STANDIN_API CUresult cuCtxGetDevice(CUdevice* device);
STANDIN_API CUresult cuCtxSetFlags(unsigned flags);
STANDIN_API CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest);
STANDIN_API CUresult cuCtxSynchronize();
STANDIN_API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags);
STANDIN_API CUresult cuMemGetInfo_v2(size_t* free, size_t* total);
STANDIN_API CUresult cuMemAlloc_v2(CUdeviceptr* at, size_t bytes);
STANDIN_API CUresult cuMemFree_v2(CUdeviceptr at);
STANDIN_API CUresult cuMemAllocAsync(CUdeviceptr* at, size_t bytes, CUstream stream);
STANDIN_API CUresult cuMemFreeAsync(CUdeviceptr at, CUstream stream);
STANDIN_API CUresult cuMemHostAlloc(void** at, size_t bytes, unsigned flags);
STANDIN_API CUresult cuMemFreeHost(void* at);
STANDIN_API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes);
STANDIN_API CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes);
STANDIN_API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes);
STANDIN_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream);
STANDIN_API CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream);
STANDIN_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
STANDIN_API CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, CUstream stream);
STANDIN_API CUresult cuMemsetD8_v2(CUdeviceptr at, unsigned char value, size_t bytes);
STANDIN_API CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t bytes, CUstream stream);
STANDIN_API CUresult cuStreamCreate(CUstream* stream, unsigned flags);
STANDIN_API CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority);
STANDIN_API CUresult cuStreamDestroy_v2(CUstream stream);
STANDIN_API CUresult cuStreamSynchronize(CUstream stream);
STANDIN_API CUresult cuStreamQuery(CUstream stream);
STANDIN_API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
STANDIN_API CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
STANDIN_API CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph);
STANDIN_API CUresult cuStreamIsCapturing(CUstream stream, int* status);
STANDIN_API CUresult cuEventCreate(CUevent* event, unsigned flags);
STANDIN_API CUresult cuEventDestroy_v2(CUevent event);
STANDIN_API CUresult cuEventRecord(CUevent event, CUstream stream);
STANDIN_API CUresult cuEventQuery(CUevent event);
STANDIN_API CUresult cuEventSynchronize(CUevent event);
STANDIN_API CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end);
STANDIN_API CUresult cuModuleLoadData(CUmodule* module, const void* image);
STANDIN_API CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count, int* options, void** values);
STANDIN_API CUresult cuModuleUnload(CUmodule module);
STANDIN_API CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name);
STANDIN_API CUresult cuFuncGetAttribute(int* value, int attribute, CUfunction function);
STANDIN_API CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value);
STANDIN_API CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void** parameters, void** extra);
STANDIN_API CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data);
STANDIN_API CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags);
STANDIN_API CUresult cuGraphUpload(CUgraphExec exec, CUstream stream);
STANDIN_API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream);
STANDIN_API CUresult cuGraphDestroy(CUgraph graph);
STANDIN_API CUresult cuGraphExecDestroy(CUgraphExec exec);

// Not of CUDA: how the stand-in for cuBLASLt queues what it computes. `run` gives 0 or the error
// that breaks the context; `drop` lets `data` go.
STANDIN_API CUresult standin_queue(CUstream stream, const char* name, CUresult (*run)(void*), void (*drop)(void*), void* data);
// Whether kernels of the context that `run` runs in may touch these bytes.
STANDIN_API int standin_may_touch(const void* at, size_t bytes);
