// Checks of what streams promise, and of what they do not.
#include <atomic>

#include "check.h"

// A value goes from one stream to another and comes back to the host; with waits, it is right.
static bool passes_on(Fixture& f, bool with_wait) {
  CUfunction add = f.kernel("add");
  CUdeviceptr x = f.memory(256), y = f.memory(256), z = f.memory(256);
  f.upload(x, std::vector<float>(64, 1.0f));
  float* host = f.pinned<float>(64);
  CUstream first = f.stream(), second = f.stream();
  CUevent made = f.event(), done = f.event();
  DONE(launch(add, 64u, first, x, y, 1.0f, 64u));
  DONE(CU(cuEventRecord)(made, first));
  if (with_wait) DONE(CU(cuStreamWaitEvent)(second, made, 0));
  DONE(launch(add, 64u, second, y, z, 1.0f, 64u));
  DONE(CU(cuMemcpyDtoHAsync_v2)(host, z, 256, second));
  DONE(CU(cuEventRecord)(done, second));
  DONE(CU(cuEventSynchronize)(done));
  bool is_right = host[0] == 3.0f && host[63] == 3.0f;
  DONE(CU(cuCtxSynchronize)());
  for (CUdeviceptr at : {x, y, z}) DONE(CU(cuMemFree_v2)(at));
  DONE(CU(cuMemFreeHost)(host));
  for (CUstream stream : {first, second}) DONE(CU(cuStreamDestroy_v2)(stream));
  return is_right;
}

// Both with STANDIN_DELAY_US.
void order() {
  Fixture f(0, KERNELS);
  for (int i = 0; i < 20; i++) EXPECT(passes_on(f, true));
}

void missing_waits() {
  Fixture f(0, KERNELS);
  int wrong = 0;
  for (int i = 0; i < 20; i++) wrong += !passes_on(f, false);
  EXPECT(wrong > 3);
  // The host that does not wait sees what was there.
  CUdeviceptr x = f.memory(4);
  float *from = f.pinned<float>(1), *to = f.pinned<float>(1);
  CUstream stream = f.stream();
  int early = 0, late = 0;
  for (int i = 0; i < 20; i++) {
    *from = 1.0f, *to = 0.0f;
    DONE(CU(cuMemcpyHtoDAsync_v2)(x, from, 4, stream));
    DONE(CU(cuMemcpyDtoHAsync_v2)(to, x, 4, stream));
    early += *to != 1.0f;
    // What is copied is what is there when the copy runs.
    *from = 2.0f;
    DONE(CU(cuStreamSynchronize)(stream));
    late += *to == 2.0f;
  }
  EXPECT(early > 10 && late > 10);
}

void events() {
  Fixture f(0, KERNELS);
  std::atomic<bool> open{false};
  auto wait = [](void* data) {
    while (!*(std::atomic<bool>*)data) std::this_thread::yield();
  };
  CUstream held = f.stream(), other = f.stream();
  CUevent event = f.event(), timed = f.event(0), later = f.event(0);
  // One that was never recorded holds nobody up.
  DONE(CU(cuEventQuery)(event));
  DONE(CU(cuEventSynchronize)(event));
  DONE(CU(cuStreamWaitEvent)(other, event, 0));
  DONE(CU(cuStreamSynchronize)(other));
  float elapsed = -1;
  GIVES(CUDA_ERROR_INVALID_HANDLE, CU(cuEventElapsedTime)(&elapsed, timed, later));
  // A wait is for the last record before it, not for one after it.
  DONE(CU(cuEventRecord)(event, other));
  DONE(CU(cuStreamSynchronize)(other));
  DONE(CU(cuLaunchHostFunc)(held, wait, &open));
  DONE(CU(cuStreamWaitEvent)(other, event, 0));
  DONE(CU(cuEventRecord)(event, held));
  DONE(CU(cuStreamSynchronize)(other));
  GIVES(CUDA_ERROR_NOT_READY, CU(cuEventQuery)(event));
  GIVES(CUDA_ERROR_NOT_READY, CU(cuStreamQuery)(held));
  DONE(CU(cuEventRecord)(timed, held));
  DONE(CU(cuEventRecord)(later, held));
  GIVES(CUDA_ERROR_NOT_READY, CU(cuEventElapsedTime)(&elapsed, timed, later));
  open = true;
  DONE(CU(cuEventSynchronize)(event));
  DONE(CU(cuStreamSynchronize)(held));
  DONE(CU(cuEventElapsedTime)(&elapsed, timed, later));
  EXPECT(elapsed >= 0);
  // What was queued on a stream that is destroyed still runs.
  CUdeviceptr y = f.memory(16);
  DONE(launch(f.kernel("at"), 1u, held, y, 2));
  DONE(CU(cuEventRecord)(event, held));
  DONE(CU(cuStreamDestroy_v2)(held));
  GIVES(CUDA_ERROR_INVALID_HANDLE, CU(cuStreamSynchronize)(held));
  DONE(CU(cuEventSynchronize)(event));
  EXPECT(f.download(y, 4)[2] == 1.0f);
}

static std::atomic<int> calls, refused;

void host_functions() {
  Fixture f(0, KERNELS);
  CUstream stream = f.stream();
  auto call = [](void*) {
    calls++;
    CUdeviceptr at;
    refused += CU(cuMemAlloc_v2)(&at, 4) == CUDA_ERROR_NOT_PERMITTED;
    refused += CU(cuEventQuery)(nullptr) == CUDA_ERROR_NOT_PERMITTED;
  };
  DONE(CU(cuLaunchHostFunc)(stream, call, nullptr));
  DONE(CU(cuStreamSynchronize)(stream));
  EXPECT(calls == 1 && refused == 2);
  // In a broken context nobody is called.
  CUdeviceptr y = f.memory(16);
  DONE(launch(f.kernel("at"), 1u, stream, y, 4096));
  CU(cuLaunchHostFunc)(stream, call, nullptr);
  GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, CU(cuStreamSynchronize)(stream));
  EXPECT(calls == 1);
}

void legacy_stream() {
  Fixture f(0, KERNELS);
  CUstream blocking;
  DONE(CU(cuStreamCreate)(&blocking, 0));
  CUfunction add = f.kernel("add");
  for (int i = 0; i < 10; i++) {
    CUdeviceptr x = f.memory(16), y = f.memory(16), z = f.memory(16);
    // The legacy stream and one that does not decline it wait for each other.
    DONE(CU(cuMemsetD8_v2)(x, 0, 16));
    DONE(launch(add, 4u, blocking, x, y, 1.0f, 4u));
    DONE(launch(add, 4u, nullptr, y, z, 1.0f, 4u));
    DONE(launch(add, 4u, blocking, z, x, 1.0f, 4u));
    EXPECT(f.download(x, 4)[3] == 3.0f);
  }
}

void pools() {
  Fixture f(0, KERNELS);
  int value = 0;
  DONE(CU(cuDeviceGetAttribute)(&value, 115, 0));
  EXPECT(value == 1);
  CUstream first = f.stream(), second = f.stream();
  CUdeviceptr y, z;
  DONE(CU(cuMemAllocAsync)(&y, 64, first));
  DONE(launch(f.kernel("at"), 1u, first, y, 3));
  CUevent event = f.event();
  DONE(CU(cuEventRecord)(event, first));
  DONE(CU(cuStreamWaitEvent)(second, event, 0));
  DONE(launch(f.kernel("at"), 1u, second, y, 4));
  DONE(CU(cuStreamSynchronize)(second));
  EXPECT(f.download(y, 16)[3] == 1.0f && f.download(y, 16)[4] == 1.0f);
  DONE(CU(cuMemFreeAsync)(y, first));
  GIVES(CUDA_ERROR_INVALID_VALUE, CU(cuMemFreeAsync)(y, first));
  // Memory that a stream gives out is not another's before that.
  std::atomic<bool> open{false};
  auto wait = [](void* data) {
    while (!*(std::atomic<bool>*)data) std::this_thread::yield();
  };
  DONE(CU(cuLaunchHostFunc)(first, wait, &open));
  DONE(CU(cuMemAllocAsync)(&z, 64, first));
  DONE(launch(f.kernel("at"), 1u, second, z, 0));
  GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, CU(cuStreamSynchronize)(second));
  open = true;
}

void graphs() {
  Fixture f(0, KERNELS);
  CUfunction add = f.kernel("add");
  CUstream main = f.stream(), side = f.stream();
  CUevent fork = f.event(), join = f.event(), outside = f.event();
  CUdeviceptr x = f.memory(16), y = f.memory(16), z = f.memory(16), w = f.memory(16);
  float *from = f.pinned<float>(4), *to = f.pinned<float>(4);
  CUgraph graph;
  CUgraphExec exec;
  int status = 0;
  // Two branches, of which either may come first.
  DONE(CU(cuStreamBeginCapture_v2)(main, CU_CAPTURE_THREAD_LOCAL));
  DONE(CU(cuMemcpyHtoDAsync_v2)(x, from, 16, main));
  DONE(CU(cuEventRecord)(fork, main));
  DONE(CU(cuStreamWaitEvent)(side, fork, 0));
  DONE(CU(cuStreamIsCapturing)(side, &status));
  EXPECT(status == 1);
  DONE(launch(add, 4u, main, x, y, 1.0f, 4u));
  DONE(launch(add, 4u, side, x, z, 10.0f, 4u));
  DONE(CU(cuEventRecord)(join, side));
  DONE(CU(cuStreamWaitEvent)(main, join, 0));
  DONE(launch(add, 4u, main, z, w, 100.0f, 4u));
  DONE(launch(add, 4u, main, y, z, 100.0f, 4u));
  DONE(CU(cuMemcpyDtoHAsync_v2)(to, w, 16, main));
  DONE(CU(cuStreamEndCapture)(main, &graph));
  DONE(CU(cuGraphInstantiateWithFlags)(&exec, graph, 0));
  DONE(CU(cuGraphDestroy)(graph));
  // Nothing has run.
  EXPECT(std::isnan(f.download(x, 1)[0]));
  for (int i = 0; i < 20; i++) {
    from[3] = float(i);
    DONE(CU(cuGraphLaunch)(exec, main));
    DONE(CU(cuStreamSynchronize)(main));
    EXPECT(to[3] == float(i) + 110.0f && f.download(z, 4)[3] == float(i) + 101.0f);
  }
  DONE(CU(cuGraphExecDestroy)(exec));
  // A branch that does not come back.
  DONE(CU(cuStreamBeginCapture_v2)(main, CU_CAPTURE_THREAD_LOCAL));
  DONE(CU(cuEventRecord)(fork, main));
  DONE(CU(cuStreamWaitEvent)(side, fork, 0));
  DONE(launch(add, 4u, side, x, y, 1.0f, 4u));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, CU(cuStreamEndCapture)(side, &graph));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, CU(cuStreamEndCapture)(main, &graph));
  // A wait for what is not of the capture.
  DONE(CU(cuEventRecord)(outside, side));
  DONE(CU(cuStreamBeginCapture_v2)(main, CU_CAPTURE_THREAD_LOCAL));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, CU(cuStreamWaitEvent)(main, outside, 0));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, CU(cuStreamEndCapture)(main, &graph));
  // The host waits for what has not run.
  DONE(CU(cuStreamBeginCapture_v2)(main, CU_CAPTURE_RELAXED));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CU(cuStreamSynchronize)(main));
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, CU(cuStreamEndCapture)(main, &graph));
  // Memory is allocated meanwhile: by whom it may, the mode says.
  CUresult there = 0;
  auto allocate = [&] {
    std::thread([&] {
      CU(cuCtxSetCurrent)(f.context);
      CUdeviceptr at;
      there = CU(cuMemAlloc_v2)(&at, 4);
    }).join();
  };
  DONE(CU(cuStreamBeginCapture_v2)(main, CU_CAPTURE_GLOBAL));
  allocate();
  EXPECT(there == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, CU(cuStreamEndCapture)(main, &graph));
  DONE(CU(cuStreamBeginCapture_v2)(main, CU_CAPTURE_THREAD_LOCAL));
  allocate();
  EXPECT(there == CUDA_SUCCESS);
  DONE(CU(cuStreamEndCapture)(main, &graph));
  EXPECT(graph);
}
