// The stand-in for libcuda: devices, contexts and errors.
//
// STANDIN_DEVICES, STANDIN_CC (90), STANDIN_MEMORY (bytes of a device), STANDIN_POOLS and STANDIN_PEERS
// (0: not supported) say what there is; STANDIN_DELAY_US and STANDIN_SEED how long each operation
// waits before it runs.
#include <algorithm>

#include "state.h"

namespace standin {
std::mutex& world() {
  static std::mutex* one = new std::mutex;
  return *one;
}

Driver::Driver() : pinned(size_t(64) << 30) {
  for (long i = number("STANDIN_DEVICES", 1); i > 0; i--)
    devices.push_back(std::unique_ptr<Device>(
        new Device{Arena(size_t(number("STANDIN_MEMORY", 4L << 30))), nullptr}));
}

Driver& driver() {
  // Never given back: threads of streams may look while the process ends.
  static Driver* all = new Driver;
  return *all;
}

static thread_local std::vector<Context*> contexts;

CUresult entered(const char* name, CUresult told) {
  if (is_in_host_function()) {
    note(std::string(name) + " is called in a host function");
    return CUDA_ERROR_NOT_PERMITTED;
  }
  if (told_to_fail(name)) return told;
  Lock lock(world());
  return driver().ready ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult current(Context*& context) {
  context = contexts.empty() ? nullptr : contexts.back();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (!driver().contexts.count(context)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return context->error;
}

CUresult stream_of(Context* context, CUstream handle, StreamPtr& stream) {
  // 1 is the legacy stream by its other name.
  bool is_null = uintptr_t(handle) <= 1;
  stream = is_null ? context->null : find(context->streams, handle);
  if (stream) return CUDA_SUCCESS;
  for (Context* other : driver().contexts)
    if (find(other->streams, handle)) return CUDA_ERROR_INVALID_CONTEXT;
  return CUDA_ERROR_INVALID_HANDLE;
}

static Device* device_by(CUdevice device) {
  auto& all = driver().devices;
  return device >= 0 && size_t(device) < all.size() ? all[device].get() : nullptr;
}
}  // namespace standin

using namespace standin;

CUresult cuInit(unsigned flags) {
  if (told_to_fail(__func__)) return CUDA_ERROR_UNKNOWN;
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  Lock lock(world());
  if (driver().devices.empty()) return CUDA_ERROR_NO_DEVICE;
  driver().ready = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  if (told_to_fail(__func__)) return CUDA_ERROR_UNKNOWN;
  *version = 12020;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** text) {
  switch (error) {
#define X(name, number, words) \
  case number:                 \
    *text = #name;             \
    return CUDA_SUCCESS;
    STANDIN_ERRORS(X)
#undef X
  }
  *text = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  switch (error) {
#define X(name, number, words) \
  case number:                 \
    *text = words;             \
    return CUDA_SUCCESS;
    STANDIN_ERRORS(X)
#undef X
  }
  *text = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  ENTRY();
  if (!device_by(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  ENTRY();
  *count = int(driver().devices.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  ENTRY();
  if (!device_by(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (length > 0) snprintf(name, size_t(length), "Stand-in for a GPU, on the CPU");
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
  ENTRY();
  if (!device_by(device)) return CUDA_ERROR_INVALID_DEVICE;
  int capability = int(number("STANDIN_CC", 90));
  // By the numbers of CUdevice_attribute.
  const std::map<int, int> values = {
      {1, 1024},         // threads of a block
      {2, 1024},         // and along each axis
      {3, 1024},
      {4, 64},
      {5, 2147483647},   // blocks along each axis
      {6, 65535},
      {7, 65535},
      {8, 48 << 10},     // bytes that a block shares
      {9, 64 << 10},     // bytes of constants
      {10, 32},          // threads of a warp
      {11, 2147483647},  // pitch
      {12, 65536},       // registers of a block
      {13, 1000000},     // kHz
      {14, 512},         // alignment of textures
      {16, 2},           // multiprocessors
      {18, 0},           // integrated
      {19, 1},           // maps memory of the host
      {20, 0},           // compute mode
      {31, 1},           // kernels at the same time
      {32, 0},           // ECC
      {33, device + 1},  // PCI bus, device and domain
      {34, 0},
      {36, 1000000},     // kHz of memory
      {37, 128},         // bits of its bus
      {38, 1 << 20},     // bytes of the L2 cache
      {39, 2048},        // threads of a multiprocessor
      {40, 2},           // copy engines
      {41, 1},           // one address space
      {50, 0},
      {75, capability / 10},
      {76, capability % 10},
      {78, 1},           // priorities of streams
      {81, 96 << 10},    // bytes shared on a multiprocessor
      {83, 0},           // managed memory
      {91, 1},           // registered memory has one address
      {97, 96 << 10},    // bytes that a block shares where it is asked for
      {115, number("STANDIN_POOLS", 1) != 0},
  };
  auto found = values.find(attribute);
  if (found == values.end()) return CUDA_ERROR_INVALID_VALUE;
  *value = found->second;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  ENTRY();
  if (!device_by(device)) return CUDA_ERROR_INVALID_DEVICE;
  memcpy(uuid->bytes, "stand-in device", 16);
  uuid->bytes[15] = char(device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  ENTRY();
  Device* one = device_by(device);
  if (!one) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = one->memory.total();
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  ENTRY();
  if (!device_by(device) || !device_by(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer && number("STANDIN_PEERS", 1) != 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  ENTRY();
  Lock lock(world());
  Device* one = device_by(device);
  if (!one) return CUDA_ERROR_INVALID_DEVICE;
  if (!one->primary) {
    one->primary.reset(new Context);
    one->primary->device = device;
    one->primary->null = new_stream(one->primary.get(), true, true);
    driver().contexts.insert(one->primary.get());
  }
  one->primary->retained++;
  *context = CUcontext(one->primary.get());
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  ENTRY();
  Lock lock(world());
  Device* one = device_by(device);
  if (!one) return CUDA_ERROR_INVALID_DEVICE;
  if (!one->primary) return CUDA_ERROR_INVALID_CONTEXT;
  if (--one->primary->retained == 0) destroy(lock, *one);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
  ENTRY();
  if (!device_by(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (flags & ~0x1fu) return CUDA_ERROR_INVALID_VALUE;
  device_by(device)->flags = flags;
  return CUDA_SUCCESS;
}

static CUresult push(CUcontext handle) {
  Context* context = (Context*)handle;
  Lock lock(world());
  if (!driver().contexts.count(context)) return CUDA_ERROR_INVALID_CONTEXT;
  contexts.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  ENTRY();
  std::vector<Context*> kept = contexts;
  if (!contexts.empty()) contexts.pop_back();
  if (!context) return CUDA_SUCCESS;
  CUresult result = push(context);
  if (result) contexts = kept;
  return result;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  ENTRY();
  *context = contexts.empty() ? nullptr : CUcontext(contexts.back());
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  ENTRY();
  return push(context);
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  ENTRY();
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context) *context = CUcontext(contexts.back());
  contexts.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  ENTRY();
  CURRENT(context);
  *device = context->device;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned flags) {
  ENTRY();
  CURRENT(context);
  if (flags & ~0x1fu) return CUDA_ERROR_INVALID_VALUE;
  driver().devices[context->device]->flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  ENTRY();
  CURRENT(context);
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() {
  ENTRY();
  trace("block", __func__);
  CURRENT(context);
  if (CUresult error = while_capturing(context)) return error;
  return wait_for_all(lock, context);
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  ENTRY();
  CURRENT(context);
  Context* other = (Context*)peer;
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  if (!driver().contexts.count(other)) return CUDA_ERROR_INVALID_CONTEXT;
  if (other == context) return CUDA_ERROR_INVALID_DEVICE;
  if (number("STANDIN_PEERS", 1) == 0) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  if (!context->peers.insert(other->device).second) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  return CUDA_SUCCESS;
}
