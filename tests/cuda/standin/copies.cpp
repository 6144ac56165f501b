// The stand-in for libcuda: memory and copies. What is copied is looked at when the copy runs.
#include "state.h"

using namespace standin;

namespace {
Device& device_of(Context* context) { return *driver().devices[context->device]; }

bool may(CUdeviceptr at, size_t bytes) {
  Lock lock(world());
  if (may_touch(running_context(), at, bytes)) return true;
  note("a copy touches device memory that is not allocated");
  return false;
}

// The host's side of an asynchronous copy: of pinned memory alone, and not read from where the
// processor reads at a crawl.
bool is_pinned(const char* name, const void* at, size_t bytes, bool is_written) {
  Driver& d = driver();
  if (!d.pinned.covers(uintptr_t(at), bytes)) {
    note(std::string(name) + " is given memory of the host that is not pinned");
    return false;
  }
  auto flags = d.pinned_flags.upper_bound(uintptr_t(at));
  if (is_written && (--flags)->second & CU_MEMHOSTALLOC_WRITECOMBINED) {
    note(std::string(name) + " is given write-combined memory, which is slow to read");
    return false;
  }
  return true;
}

Work upload(CUdeviceptr to, const void* from, size_t bytes) {
  return [=]() -> CUresult {
    if (!may(to, bytes)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    memcpy((void*)to, from, bytes);
    return CUDA_SUCCESS;
  };
}
Work download(void* to, CUdeviceptr from, size_t bytes) {
  return [=]() -> CUresult {
    if (!may(from, bytes)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    memcpy(to, (const void*)from, bytes);
    return CUDA_SUCCESS;
  };
}
Work between(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return [=]() -> CUresult {
    if (!may(to, bytes) || !may(from, bytes)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    memmove((void*)to, (const void*)from, bytes);
    return CUDA_SUCCESS;
  };
}
Work fill(CUdeviceptr at, unsigned char value, size_t bytes) {
  return [=]() -> CUresult {
    if (!may(at, bytes)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    memset((void*)at, value, bytes);
    return CUDA_SUCCESS;
  };
}

CUresult queued(const char* name, Context* context, CUstream handle, size_t bytes, Work work) {
  StreamPtr stream;
  if (CUresult error = stream_of(context, handle, stream)) return error;
  trace("submit", name, std::to_string(bytes));
  return bytes ? submit(stream, std::move(work)) : CUDA_SUCCESS;
}

// On the legacy stream, and waited for.
CUresult waited(const char* name, Lock& lock, Context* context, size_t bytes, Work work) {
  trace("block", name, std::to_string(bytes));
  if (CUresult error = while_capturing(context)) return error;
  if (!bytes) return CUDA_SUCCESS;
  if (CUresult error = submit(context->null, std::move(work))) return error;
  return wait_until(lock, context, context->null->last);
}
}  // namespace

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  ENTRY();
  CURRENT(context);
  Arena& memory = device_of(context).memory;
  *free = memory.total() - memory.used();
  *total = memory.total();
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr* at, size_t bytes) {
  ENTRY_OR(CUDA_ERROR_OUT_OF_MEMORY);
  trace("allocate", __func__, std::to_string(bytes));
  CURRENT(context);
  if (CUresult error = while_capturing(context)) return error;
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  *at = device_of(context).memory.allocate(bytes, true);
  if (!*at) return CUDA_ERROR_OUT_OF_MEMORY;
  context->allocations.insert(*at);
  return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr at) {
  ENTRY();
  // It waits for what may use the memory.
  trace("block", __func__);
  CURRENT(context);
  if (CUresult error = while_capturing(context)) return error;
  if (!at) return CUDA_SUCCESS;
  if (!context->allocations.count(at)) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = wait_for_all(lock, context)) return error;
  context->allocations.erase(at);
  device_of(context).memory.release(at);
  return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr* at, size_t bytes, CUstream handle) {
  ENTRY_OR(CUDA_ERROR_OUT_OF_MEMORY);
  trace("allocate", __func__, std::to_string(bytes));
  CURRENT(context);
  StreamPtr stream;
  if (number("STANDIN_POOLS", 1) == 0) return CUDA_ERROR_NOT_SUPPORTED;
  if (CUresult error = stream_of(context, handle, stream)) return error;
  // Graphs that allocate are not stood in for.
  if (stream->capture) return CUDA_ERROR_NOT_SUPPORTED;
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  Arena& memory = device_of(context).memory;
  uintptr_t made = memory.allocate(bytes, false);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  context->allocations.insert(*at = made);
  // Before that nobody may touch it.
  return submit(stream, [&memory, made]() -> CUresult {
    Lock lock(world());
    memory.open(made);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemFreeAsync(CUdeviceptr at, CUstream handle) {
  ENTRY();
  trace("submit", __func__);
  CURRENT(context);
  StreamPtr stream;
  if (CUresult error = stream_of(context, handle, stream)) return error;
  if (stream->capture) return CUDA_ERROR_NOT_SUPPORTED;
  if (!context->allocations.erase(at)) return CUDA_ERROR_INVALID_VALUE;
  Arena& memory = device_of(context).memory;
  return submit(stream, [&memory, at]() -> CUresult {
    Lock lock(world());
    memory.release(at);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostAlloc(void** at, size_t bytes, unsigned flags) {
  ENTRY_OR(CUDA_ERROR_OUT_OF_MEMORY);
  trace("allocate", __func__, std::to_string(bytes));
  CURRENT(context);
  if (CUresult error = while_capturing(context)) return error;
  if (flags & ~7u) return CUDA_ERROR_INVALID_VALUE;
  uintptr_t made = driver().pinned.allocate(bytes, true);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  driver().pinned_flags[made] = flags;
  *at = (void*)made;
  return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void* at) {
  ENTRY();
  trace("block", __func__);
  CURRENT(context);
  if (CUresult error = while_capturing(context)) return error;
  if (!driver().pinned.starts(uintptr_t(at))) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = wait_for_all(lock, context)) return error;
  driver().pinned_flags.erase(uintptr_t(at));
  driver().pinned.release(uintptr_t(at));
  return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  ENTRY();
  CURRENT(context);
  return waited(__func__, lock, context, bytes, upload(to, from, bytes));
}

CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  ENTRY();
  CURRENT(context);
  return waited(__func__, lock, context, bytes, download(to, from, bytes));
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  ENTRY();
  CURRENT(context);
  // From device to device the host need not wait.
  return queued(__func__, context, nullptr, bytes, between(to, from, bytes));
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  ENTRY();
  CURRENT(context);
  if (bytes && !is_pinned(__func__, from, bytes, false)) return CUDA_ERROR_INVALID_VALUE;
  return queued(__func__, context, stream, bytes, upload(to, from, bytes));
}

CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  ENTRY();
  CURRENT(context);
  if (bytes && !is_pinned(__func__, to, bytes, true)) return CUDA_ERROR_INVALID_VALUE;
  return queued(__func__, context, stream, bytes, download(to, from, bytes));
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  ENTRY();
  CURRENT(context);
  return queued(__func__, context, stream, bytes, between(to, from, bytes));
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_handle, CUdeviceptr from,
                           CUcontext from_handle, size_t bytes, CUstream stream) {
  ENTRY();
  CURRENT(context);
  Context *target = (Context*)to_handle, *source = (Context*)from_handle;
  auto& all = driver().contexts;
  if (!all.count(target) || !all.count(source)) return CUDA_ERROR_INVALID_CONTEXT;
  int to_device = target->device, from_device = source->device;
  // Each side is of its own device; no access between them is needed.
  auto copy = [=]() -> CUresult {
    {
      Lock lock(world());
      auto& devices = driver().devices;
      if (!devices[to_device]->memory.covers(to, bytes) ||
          !devices[from_device]->memory.covers(from, bytes)) {
        note("a copy between devices touches memory that is not allocated");
        return CUDA_ERROR_ILLEGAL_ADDRESS;
      }
    }
    memcpy((void*)to, (const void*)from, bytes);
    return CUDA_SUCCESS;
  };
  return queued(__func__, context, stream, bytes, copy);
}

CUresult cuMemsetD8_v2(CUdeviceptr at, unsigned char value, size_t bytes) {
  ENTRY();
  CURRENT(context);
  return queued(__func__, context, nullptr, bytes, fill(at, value, bytes));
}

CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t bytes, CUstream stream) {
  ENTRY();
  CURRENT(context);
  return queued(__func__, context, stream, bytes, fill(at, value, bytes));
}
