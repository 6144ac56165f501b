// Checks of the stand-ins for NVRTC and cuBLASLt.
#include "check.h"

void images() {
  Nvrtc nvrtc;
  Fixture f;
  std::string text, binary, log;
  auto start = std::chrono::steady_clock::now();
  EXPECT(nvrtc.compile(KERNELS, "compute_80", text, log, true) == 0);
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  printf("compiled in %.2f s\n", took.count());
  // PTX is text that ends with a NUL, a cubin is not, and there is none without an architecture of a device.
  EXPECT(text.size() == strlen(text.c_str()) + 1);
  EXPECT(nvrtc.compile(KERNELS, "compute_80", binary, log, false) == 0 && binary.empty());
  EXPECT(nvrtc.compile(KERNELS, "sm_90", binary, log, false) == 0 && binary.find('\0') < binary.size());
  CUmodule module;
  DONE(CU(cuModuleLoadData)(&module, text.data()));
  DONE(CU(cuModuleLoadDataEx)(&module, binary.data(), 0, nullptr, nullptr));
  // Kernels of one name in several modules are several kernels.
  std::string other;
  EXPECT(nvrtc.compile("extern \"C\" __global__ void at(float* y, int i) { y[i] = 3.0f; }", "sm_90", other, log, false) == 0);
  CUmodule second;
  DONE(CU(cuModuleLoadData)(&second, other.data()));
  CUdeviceptr y = f.memory(8);
  f.module = module;
  DONE(launch(f.kernel("at"), 1u, nullptr, y, 0));
  f.module = second;
  DONE(launch(f.kernel("at"), 1u, nullptr, y, 1));
  EXPECT(f.download(y, 2)[0] == 1.0f && f.download(y, 2)[1] == 3.0f);
  // What does not compile, with what the compiler says.
  EXPECT(nvrtc.compile("extern \"C\" __global__ void k(float* y) { y[0] = nothing; }", "sm_90", binary, log, false) == 6);
  EXPECT(log.find("kernels.cu:1") != std::string::npos && log.find("nothing") != std::string::npos);
  EXPECT(nvrtc.compile("#include <cmath>\n", "sm_90", binary, log, false) == 6);
  EXPECT(nvrtc.compile(KERNELS, "90", binary, log, false) == 5);
  NvrtcProgram program = nullptr;
  EXPECT(nvrtc.CreateProgram(&program, KERNELS, nullptr, 0, nullptr, nullptr) == 0);
  const char* odd[] = {"--speed=high"};
  EXPECT(nvrtc.CompileProgram(program, 1, odd) == 5);
  size_t bytes;
  EXPECT(nvrtc.GetPTXSize(program, &bytes) == 4 && nvrtc.DestroyProgram(&program) == 0);
  EXPECT(nvrtc.DestroyProgram(&program) == 4);
  // Images that are damaged, cut off, foreign, or for another device.
  EXPECT(nvrtc.compile(KERNELS, "sm_90", binary, log, false) == 0);
  std::string damaged = binary;
  damaged[binary.size() / 2] ^= 1;
  GIVES(CUDA_ERROR_INVALID_IMAGE, CU(cuModuleLoadData)(&module, damaged.data()));
  std::string cut = text;
  cut.resize(cut.size() / 2);
  GIVES(CUDA_ERROR_INVALID_PTX, CU(cuModuleLoadData)(&module, cut.c_str()));
  GIVES(CUDA_ERROR_INVALID_IMAGE, CU(cuModuleLoadData)(&module, "something else"));
  GIVES(CUDA_ERROR_INVALID_IMAGE, CU(cuModuleLoadData)(&module, ""));
  EXPECT(nvrtc.compile(KERNELS, "sm_86", binary, log, false) == 0);
  GIVES(CUDA_ERROR_NO_BINARY_FOR_GPU, CU(cuModuleLoadData)(&module, binary.data()));
  EXPECT(nvrtc.compile(KERNELS, "compute_100", text, log, true) == 0);
  GIVES(CUDA_ERROR_INVALID_PTX, CU(cuModuleLoadData)(&module, text.data()));
}

namespace {
typedef void* Handle;
struct Lt {
#define FUNCTION(name, ...) int (*name)(__VA_ARGS__) = (int (*)(__VA_ARGS__))symbol("libcublasLt.so.12", "cublasLt" #name)
  FUNCTION(Create, Handle*);
  FUNCTION(Destroy, Handle);
  FUNCTION(MatmulDescCreate, Handle*, int, int);
  FUNCTION(MatmulDescSetAttribute, Handle, int, const void*, size_t);
  FUNCTION(MatrixLayoutCreate, Handle*, int, uint64_t, uint64_t, int64_t);
  FUNCTION(MatrixLayoutSetAttribute, Handle, int, const void*, size_t);
  FUNCTION(MatmulPreferenceCreate, Handle*);
  FUNCTION(MatmulPreferenceSetAttribute, Handle, int, const void*, size_t);
  FUNCTION(MatmulAlgoGetHeuristic, Handle, Handle, Handle, Handle, Handle, Handle, Handle, int, void*, int*);
  FUNCTION(Matmul, Handle, Handle, const void*, const void*, Handle, const void*, Handle, const void*, const void*, Handle, void*, Handle, const void*, void*, size_t, CUstream);
#undef FUNCTION
};

enum { F32 = 0, F16 = 2, BF16 = 14 };
struct Case {
  unsigned m, n, k;
  bool turn_a, turn_b;
  int epilogue = 1, type = F32, compute = 68, order = 0, batch = 1;
  float alpha = 1, beta = 0;
};

uint16_t narrow(float v, int type) {
  uint32_t bits;
  memcpy(&bits, &v, 4);
  // The values here are exact in both.
  if (type == BF16) return uint16_t(bits >> 16);
  if (v == 0) return 0;
  return uint16_t((bits >> 16 & 0x8000) | ((int(bits >> 23 & 255) - 112) << 10) | (bits >> 13 & 1023));
}

// Small multiples of a quarter, so that sums are exact.
float value(size_t i, int seed) { return float(int((i * 7 + size_t(seed) * 5) % 17) - 8) / 4; }

float finished(float v, int epilogue) {
  if (epilogue & 2) return v > 0 ? v : 0;
  if (epilogue & 32) return float(0.5 * v * (1 + std::tanh(std::sqrt(2 / 3.14159265358979) * (v + 0.044715 * v * v * v))));
  return v;
}

struct Operands {
  CUdeviceptr a, b, c, d, bias;
};

int multiply(Fixture& f, Lt& lt, const Case& c, CUstream stream, Operands& o, void* workspace, size_t bytes, bool at_odds = false) {
  uint64_t ar = c.turn_a ? c.k : c.m, ac = c.turn_a ? c.m : c.k, br = c.turn_b ? c.n : c.k, bc = c.turn_b ? c.k : c.n;
  static Handle handle;
  if (!handle) EXPECT(lt.Create(&handle) == 0);
  Handle how, preference, layouts[3];
  EXPECT(lt.MatmulDescCreate(&how, c.compute, F32) == 0);
  int turn_a = c.turn_a, turn_b = c.turn_b;
  EXPECT(lt.MatmulDescSetAttribute(how, 3, &turn_a, 4) == 0 && lt.MatmulDescSetAttribute(how, 4, &turn_b, 4) == 0);
  EXPECT(lt.MatmulDescSetAttribute(how, 7, &c.epilogue, 4) == 0 && lt.MatmulDescSetAttribute(how, 8, &o.bias, 8) == 0);
  EXPECT(lt.MatmulDescSetAttribute(how, 7, &c.epilogue, 8) == 7);
  uint64_t shapes[3][2] = {{ar, ac}, {br, bc}, {c.m, c.n}};
  for (int i = 0; i < 3; i++) {
    auto [rows, columns] = shapes[i];
    int64_t leading = int64_t(c.order ? columns : rows), stride = int64_t(rows * columns);
    EXPECT(lt.MatrixLayoutCreate(&layouts[i], c.type, rows, columns, leading) == 0);
    EXPECT(lt.MatrixLayoutSetAttribute(layouts[i], 1, &c.order, 4) == 0);
    EXPECT(lt.MatrixLayoutSetAttribute(layouts[i], 5, &c.batch, 4) == 0);
    EXPECT(lt.MatrixLayoutSetAttribute(layouts[i], 6, &stride, 8) == 0);
  }
  EXPECT(lt.MatmulPreferenceCreate(&preference) == 0);
  EXPECT(lt.MatmulPreferenceSetAttribute(preference, 1, &bytes, 8) == 0);
  struct {
    uint64_t algorithm[8];
    size_t workspace;
    int state, waves, unused[4];
  } found;
  int count = 0;
  int result = lt.MatmulAlgoGetHeuristic(handle, how, layouts[0], layouts[1], layouts[2], layouts[2], preference, 1, &found, &count);
  if (result) return result;
  EXPECT(count == 1 && found.workspace <= bytes);
  // An algorithm is for its problem.
  if (at_odds) turn_a = !turn_a, turn_b = !turn_b, lt.MatmulDescSetAttribute(how, 3, &turn_a, 4), lt.MatmulDescSetAttribute(how, 4, &turn_b, 4);
  (void)f;
  return lt.Matmul(handle, how, &c.alpha, (void*)o.a, layouts[0], (void*)o.b, layouts[1], &c.beta, (void*)o.c, layouts[2], (void*)o.d, layouts[2], found.algorithm, workspace, bytes, stream);
}

CUdeviceptr filled(Fixture& f, size_t count, int seed, int type) {
  std::vector<float> wide(count);
  std::vector<uint16_t> small(count);
  for (size_t i = 0; i < count; i++) wide[i] = value(i, seed), small[i] = narrow(wide[i], type);
  CUdeviceptr at = f.memory(count * (type == F32 ? 4 : 2));
  DONE(CU(cuMemcpyHtoD_v2)(at, type == F32 ? (void*)wide.data() : (void*)small.data(), count * (type == F32 ? 4 : 2)));
  return at;
}

void check(Fixture& f, Lt& lt, const Case& c) {
  size_t a = size_t(c.m) * c.k, b = size_t(c.k) * c.n, d = size_t(c.m) * c.n;
  Operands o = {filled(f, a * c.batch, 1, c.type), filled(f, b * c.batch, 2, c.type), filled(f, d * c.batch, 3, c.type),
                f.memory(d * c.batch * 4), filled(f, c.m, 4, c.type)};
  CUstream stream = f.stream();
  CUdeviceptr workspace = f.memory(1 << 16);
  EXPECT(multiply(f, lt, c, stream, o, (void*)workspace, 1 << 16) == 0);
  DONE(CU(cuStreamSynchronize)(stream));
  size_t count = d * c.batch;
  std::vector<float> wide(count);
  std::vector<uint16_t> small(count);
  DONE(CU(cuMemcpyDtoH_v2)(c.type == F32 ? (void*)wide.data() : (void*)small.data(), o.d, count * (c.type == F32 ? 4 : 2)));
  auto at = [&](unsigned row, unsigned column, unsigned rows, unsigned columns) {
    return c.order ? size_t(row) * columns + column : size_t(column) * rows + row;
  };
  for (int batch = 0; batch < c.batch; batch++)
    for (unsigned j = 0; j < c.n; j++)
      for (unsigned i = 0; i < c.m; i++) {
        float sum = 0;
        for (unsigned l = 0; l < c.k; l++) {
          size_t from_a = c.turn_a ? at(l, i, c.k, c.m) : at(i, l, c.m, c.k), from_b = c.turn_b ? at(j, l, c.n, c.k) : at(l, j, c.k, c.n);
          sum += value(batch * a + from_a, 1) * value(batch * b + from_b, 2);
        }
        size_t to = batch * d + at(i, j, c.m, c.n);
        float want = c.alpha * sum + c.beta * value(to, 3);
        if (c.epilogue & 4) want += value(i, 4);
        want = finished(want, c.epilogue);
        if (c.type == F32)
          EXPECT(std::fabs(wide[to] - want) <= 1e-5f * std::fmax(1.0f, std::fabs(want)));
        else
          EXPECT(small[to] == narrow(want, c.type));
      }
}
}  // namespace

void products() {
  Fixture f;
  Lt lt;
  for (bool turn_a : {false, true})
    for (bool turn_b : {false, true}) check(f, lt, {5, 7, 9, turn_a, turn_b});
  for (int epilogue : {2, 4, 6, 32, 36}) check(f, lt, {5, 7, 9, false, true, epilogue});
  check(f, lt, {6, 3, 4, true, false, 1, F32, 68, 1, 3, 0.5f, 2.0f});
  check(f, lt, {6, 3, 4, false, false, 6, F32, 77, 0, 2, 1.0f, 1.0f});
  // Small enough that the sums are exact in so few bits.
  check(f, lt, {3, 2, 2, false, false, 1, F16, 68, 0, 2});
  check(f, lt, {2, 2, 1, false, true, 2, BF16});
  Operands o = {f.memory(64), f.memory(64), f.memory(64), f.memory(64), f.memory(64)};
  auto gives = [&](Case c) { return multiply(f, lt, c, nullptr, o, nullptr, 0); };
  EXPECT(gives({2, 2, 2, false, false, 1, 1}) == 15);          // double
  EXPECT(gives({2, 2, 2, false, false, 1, F32, 64}) == 15);    // computed in half
  EXPECT(gives({2, 2, 2, false, false, 130}) == 15);           // an epilogue with a mask
  EXPECT(gives({2, 2, 2, false, false, 4, F32, 68, 1}) == 15); // a bias of rows
  EXPECT(gives({2, 2, 2, false, false}) == 0);
  EXPECT(multiply(f, lt, {2, 3, 2, false, false}, nullptr, o, nullptr, 0, true) == 7);
  DONE(CU(cuCtxSynchronize)());
  // In the order of the stream, and into what may be touched alone.
  CUstream stream = f.stream();
  EXPECT(multiply(f, lt, {16, 16, 16, false, false}, stream, o, nullptr, 0) == 0);
  GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, CU(cuStreamSynchronize)(stream));
}

// One workspace for two streams is one too few.
void workspaces() {
  Fixture f;
  Lt lt;
  Case c = {64, 64, 64, false, false};
  size_t bytes = 64 * 64 * 4;
  CUdeviceptr shared = f.memory(1 << 16), own = f.memory(1 << 16);
  Operands o[2];
  CUstream streams[2] = {f.stream(), f.stream()};
  for (auto& one : o) one = {filled(f, 4096, 1, F32), filled(f, 4096, 2, F32), f.memory(bytes), f.memory(bytes), f.memory(256)};
  // Within so many turns; the first is enough.
  auto is_spoilt = [&](CUdeviceptr second, int turns) {
    bool is = false;
    for (int turn = 0; turn < turns && !is; turn++) {
      for (int s = 0; s < 2; s++)
        EXPECT(multiply(f, lt, c, streams[s], o[s], (void*)(s ? second : shared), 1 << 16) == 0);
      DONE(CU(cuCtxSynchronize)());
      is = std::isnan(f.download(o[0].d, 1)[0]) || std::isnan(f.download(o[1].d, 1)[0]);
    }
    return is;
  };
  EXPECT(!is_spoilt(own, 30));
  EXPECT(is_spoilt(shared, 5000));
}
