// What the checks of the stand-ins share: the libraries, loaded as a program without CUDA does, and
// kernels to run.
#pragma once
#include <dlfcn.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "api.h"

inline void* library(const char* name) {
  void* found = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!found) fprintf(stderr, "%s\n", dlerror()), exit(2);
  return found;
}
inline void* symbol(const char* of, const char* name) {
  void* found = dlsym(library(of), name);
  if (!found) fprintf(stderr, "%s lacks %s\n", of, name), exit(2);
  return found;
}
#define CU(name) ((decltype(&name))symbol("libcuda.so.1", #name))

inline void expected(bool is_so, const char* what, const char* file, int line) {
  if (is_so) return;
  fprintf(stderr, "%s:%d: not so: %s\n", file, line, what);
  exit(1);
}
#define EXPECT(what) expected((what), #what, __FILE__, __LINE__)
// That a call gives an error, or none.
inline void gave(CUresult got, CUresult want, const char* what, const char* file, int line) {
  if (got == want) return;
  fprintf(stderr, "%s:%d: %s gave %d, not %d\n", file, line, what, got, want);
  exit(1);
}
#define GIVES(want, call) gave((call), (want), #call, __FILE__, __LINE__)
#define DONE(call) GIVES(CUDA_SUCCESS, call)

typedef struct Program* NvrtcProgram;
struct Nvrtc {
#define FUNCTION(name, ...) int (*name)(__VA_ARGS__) = (int (*)(__VA_ARGS__))symbol("libnvrtc.so.12", "nvrtc" #name)
  FUNCTION(Version, int*, int*);
  FUNCTION(CreateProgram, NvrtcProgram*, const char*, const char*, int, const char* const*, const char* const*);
  FUNCTION(CompileProgram, NvrtcProgram, int, const char* const*);
  FUNCTION(DestroyProgram, NvrtcProgram*);
  FUNCTION(GetProgramLogSize, NvrtcProgram, size_t*);
  FUNCTION(GetProgramLog, NvrtcProgram, char*);
  FUNCTION(GetPTXSize, NvrtcProgram, size_t*);
  FUNCTION(GetPTX, NvrtcProgram, char*);
  FUNCTION(GetCUBINSize, NvrtcProgram, size_t*);
  FUNCTION(GetCUBIN, NvrtcProgram, char*);
#undef FUNCTION
  // The result of the compiler; `image` is the text or the binary, and `log` what was said.
  int compile(const char* text, const char* architecture, std::string& image, std::string& log, bool is_text) {
    NvrtcProgram program;
    EXPECT(CreateProgram(&program, text, "kernels.cu", 0, nullptr, nullptr) == 0);
    std::string option = std::string("--gpu-architecture=") + architecture;
    const char* options[] = {option.c_str(), "--fmad=true"};
    int result = CompileProgram(program, 2, options);
    size_t bytes = 0;
    EXPECT(GetProgramLogSize(program, &bytes) == 0 && bytes > 0);
    log.resize(bytes);
    EXPECT(GetProgramLog(program, &log[0]) == 0);
    if (!result) {
      EXPECT((is_text ? GetPTXSize : GetCUBINSize)(program, &bytes) == 0);
      image.resize(bytes);
      if (bytes) EXPECT((is_text ? GetPTX : GetCUBIN)(program, &image[0]) == 0);
    }
    EXPECT(DestroyProgram(&program) == 0 && !program);
    return result;
  }
};

// A context of a device on this thread, with kernels.
struct Fixture {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUmodule module = nullptr;

  explicit Fixture(int ordinal = 0, const char* text = nullptr) {
    DONE(CU(cuInit)(0));
    DONE(CU(cuDeviceGet)(&device, ordinal));
    DONE(CU(cuDevicePrimaryCtxRetain)(&context, device));
    DONE(CU(cuCtxSetCurrent)(context));
    if (!text) return;
    std::string image, log;
    EXPECT(Nvrtc().compile(text, "sm_90", image, log, false) == 0);
    DONE(CU(cuModuleLoadData)(&module, image.data()));
  }
  CUfunction kernel(const char* name) {
    CUfunction found;
    DONE(CU(cuModuleGetFunction)(&found, module, name));
    return found;
  }
  CUdeviceptr memory(size_t bytes) {
    CUdeviceptr at;
    DONE(CU(cuMemAlloc_v2)(&at, bytes));
    return at;
  }
  template <class T>
  T* pinned(size_t count, unsigned flags = 0) {
    void* at;
    DONE(CU(cuMemHostAlloc)(&at, count * sizeof(T), flags));
    return (T*)at;
  }
  CUstream stream() {
    CUstream made;
    DONE(CU(cuStreamCreate)(&made, CU_STREAM_NON_BLOCKING));
    return made;
  }
  CUevent event(unsigned flags = CU_EVENT_DISABLE_TIMING) {
    CUevent made;
    DONE(CU(cuEventCreate)(&made, flags));
    return made;
  }
  void upload(CUdeviceptr to, const std::vector<float>& values) {
    DONE(CU(cuMemcpyHtoD_v2)(to, values.data(), values.size() * 4));
  }
  std::vector<float> download(CUdeviceptr from, size_t count) {
    std::vector<float> values(count);
    DONE(CU(cuMemcpyDtoH_v2)(values.data(), from, count * 4));
    return values;
  }
};

// One block; the parameters are copied where this is called.
template <class... A>
CUresult launch(CUfunction kernel, unsigned threads, CUstream stream, A... a) {
  void* parameters[] = {&a..., nullptr};
  return CU(cuLaunchKernel)(kernel, 1, 1, 1, threads, 1, 1, 0, stream, parameters, nullptr);
}

extern const char KERNELS[];

void devices();
void kernels();
void limits();
void order();
void missing_waits();
void events();
void host_functions();
void legacy_stream();
void pools();
void graphs();
void faults();
void slack();
void barriers();
void peers();
void failing();
void tracing();
void images();
void products();
void workspaces();
