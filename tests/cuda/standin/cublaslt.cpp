// The stand-in for cuBLASLt: products of matrices with an epilogue, computed on the CPU in the order
// of the stream. What of a description it does not know is not supported, never ignored.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "api.h"
#include "orders.h"

using namespace standin;

namespace {
enum Status {
  SUCCESS = 0,
  NOT_INITIALIZED = 1,
  INVALID_VALUE = 7,
  EXECUTION_FAILED = 13,
  INTERNAL_ERROR = 14,
  NOT_SUPPORTED = 15,
};
enum Type { R_32F = 0, R_16F = 2, R_16BF = 14 };
enum Compute {
  COMPUTE_32F = 68,
  COMPUTE_32F_FAST_16F = 74,
  COMPUTE_32F_FAST_16BF = 75,
  COMPUTE_32F_FAST_TF32 = 77
};

// Bits that operands lose.
inline int dropped_bits(int compute) {
  return compute == COMPUTE_32F ? 0 : compute == COMPUTE_32F_FAST_16BF ? 16 : 13;
}
enum Order { ORDER_COL = 0, ORDER_ROW = 1 };
enum Epilogue { RELU = 2, BIAS = 4, GELU = 32, DEFAULT = 1 };

struct Handle {};
struct Layout {
  int type;
  uint64_t rows, columns;
  int64_t leading;
  int order = ORDER_COL;
  int batch = 1;
  int64_t stride = 0;
};
struct Description {
  int compute, scale;
  int transposed_a = 0, transposed_b = 0;
  unsigned epilogue = DEFAULT;
  const void* bias = nullptr;
  int64_t bias_stride = 0;
  bool is_odd = false;
};
struct Preference {
  uint64_t workspace = 0;
};
struct Algorithm {
  uint64_t mark, problem, workspace, unused[5];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int unused[4];
};
const uint64_t MARK = 0x7374616e642d696e;
// What an algorithm takes where it is let.
const uint64_t WORKSPACE = 4096;

size_t bytes_of(int type) { return type == R_32F ? 4 : 2; }

float half(uint16_t v) {
  int exponent = v >> 10 & 31, fraction = v & 1023;
  float magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                    : exponent     ? std::ldexp(float(1024 + fraction), exponent - 25)
                                   : std::ldexp(float(fraction), -24);
  return v >> 15 ? -magnitude : magnitude;
}
// To the nearest, ties to even.
uint16_t to_half(float v) {
  uint16_t sign = std::signbit(v) ? 0x8000 : 0;
  float a = std::fabs(v);
  if (std::isnan(v)) return uint16_t(sign | 0x7e00);
  if (a >= 65520.0f) return uint16_t(sign | 0x7c00);
  int exponent = std::max(std::ilogb(a == 0 ? 1e-30f : a), -14);
  // In units of the last place; a carry into the exponent is where it belongs.
  int units = int(std::nearbyint(std::ldexp(a, 10 - exponent)));
  return uint16_t(sign | (((exponent + 14) << 10) + units));
}
float from_bits(uint32_t bits) {
  float v;
  memcpy(&v, &bits, 4);
  return v;
}
uint32_t to_bits(float v) {
  uint32_t bits;
  memcpy(&bits, &v, 4);
  return bits;
}
// Cuts a float to its upper bits, to the nearest.
float rounded(float v, int dropped) {
  if (!std::isfinite(v)) return v;
  uint32_t bits = to_bits(v), last = bits >> dropped & 1;
  bits += (1u << (dropped - 1)) - 1 + last;
  return from_bits(bits >> dropped << dropped);
}

float load(const void* at, int type, size_t i) {
  if (type == R_32F) return ((const float*)at)[i];
  uint16_t v = ((const uint16_t*)at)[i];
  return type == R_16F ? half(v) : from_bits(uint32_t(v) << 16);
}
void store(void* at, int type, size_t i, float v) {
  if (type == R_32F)
    ((float*)at)[i] = v;
  else
    ((uint16_t*)at)[i] = type == R_16F ? to_half(v) : uint16_t(to_bits(rounded(v, 16)) >> 16);
}

struct Problem {
  Description how;
  Layout a, b, c, d;
  float alpha, beta;
  const void *from_a, *from_b, *from_c;
  void *to, *workspace;
  uint64_t workspace_bytes;

  uint64_t m() const { return d.rows; }
  uint64_t n() const { return d.columns; }
  uint64_t k() const { return how.transposed_a ? a.rows : a.columns; }
};

size_t at(const Layout& l, int batch, uint64_t row, uint64_t column) {
  bool by_column = l.order == ORDER_COL;
  return size_t(batch * l.stride) + (by_column ? column * l.leading + row : row * l.leading + column);
}

bool fits(const Layout& l) {
  return l.rows && l.columns && l.batch >= 1 &&
         uint64_t(l.leading) >= (l.order == ORDER_COL ? l.rows : l.columns);
}

Status checked(const Problem& p) {
  const Description& h = p.how;
  for (const Layout* l : {&p.a, &p.b, &p.c, &p.d})
    if (!fits(*l)) return INVALID_VALUE;
  uint64_t a_rows = h.transposed_a ? p.a.columns : p.a.rows, b_rows = h.transposed_b ? p.b.columns : p.b.rows;
  uint64_t b_columns = h.transposed_b ? p.b.rows : p.b.columns;
  bool agree = a_rows == p.m() && b_rows == p.k() && b_columns == p.n() && p.c.rows == p.m() && p.c.columns == p.n();
  if (!agree) return INVALID_VALUE;
  for (const Layout* l : {&p.a, &p.b, &p.c})
    if (l->batch != p.d.batch) return INVALID_VALUE;
  bool is_f32 = p.a.type == R_32F && p.d.type == R_32F;
  bool is_narrow = (p.a.type == R_16F || p.a.type == R_16BF) && (p.d.type == p.a.type || p.d.type == R_32F);
  bool are_types = p.a.type == p.b.type && p.c.type == p.d.type && (is_f32 || is_narrow) && h.scale == R_32F;
  bool is_fast = h.compute == COMPUTE_32F_FAST_TF32 || h.compute == COMPUTE_32F_FAST_16F ||
                 h.compute == COMPUTE_32F_FAST_16BF;
  bool is_compute = h.compute == COMPUTE_32F || (is_fast && is_f32);
  bool are_orders = p.a.order == p.d.order && p.b.order == p.d.order && p.c.order == p.d.order;
  const unsigned known[] = {DEFAULT, RELU, BIAS, RELU | BIAS, GELU, GELU | BIAS};
  bool is_epilogue = std::find(std::begin(known), std::end(known), h.epilogue) != std::end(known);
  if (!are_types || !is_compute || !are_orders || !is_epilogue || h.is_odd) return NOT_SUPPORTED;
  // By rows, the documentation promises no bias.
  if (h.epilogue & BIAS && p.d.order != ORDER_COL) return NOT_SUPPORTED;
  return SUCCESS;
}

uint64_t digest(const Problem& p) {
  uint64_t hash = 14695981039346656037u;
  auto add = [&](uint64_t v) { hash = (hash ^ v) * 1099511628211u; };
  for (const Layout* l : {&p.a, &p.b, &p.c, &p.d})
    for (uint64_t v : {uint64_t(l->type), l->rows, l->columns, uint64_t(l->leading), uint64_t(l->order),
                       uint64_t(l->batch), uint64_t(l->stride)})
      add(v);
  const Description& h = p.how;
  for (int v : {h.compute, h.transposed_a, h.transposed_b, int(h.epilogue)}) add(uint64_t(v));
  return hash;
}

float finished(float v, unsigned epilogue) {
  if (epilogue & RELU) return std::isnan(v) ? v : std::fmax(v, 0.0f);
  // By the hyperbolic tangent, as the library has it, not by the error function.
  if (epilogue & GELU) return 0.5f * v * (1 + std::tanh(0.7978845608f * (v + 0.044715f * v * v * v)));
  return v;
}

// Whether all that a matrix is made of may be touched.
bool may_touch(const void* from, const Layout& l) {
  size_t last = at(l, l.batch - 1, l.rows - 1, l.columns - 1);
  return standin_may_touch(from, (last + 1) * bytes_of(l.type));
}

CUresult compute(void* data) {
  const Problem& p = *(const Problem*)data;
  const Description& h = p.how;
  bool with_bias = h.epilogue & BIAS;
  size_t biases = size_t((p.d.batch - 1) * h.bias_stride) + p.m();
  bool may = may_touch(p.from_a, p.a) && may_touch(p.from_b, p.b) && may_touch(p.to, p.d) &&
             (p.beta == 0 || may_touch(p.from_c, p.c)) &&
             (!with_bias || standin_may_touch(h.bias, biases * bytes_of(p.d.type))) &&
             (!p.workspace_bytes || standin_may_touch(p.workspace, p.workspace_bytes));
  if (!may) {
    note("cublasLtMatmul touches memory that is not allocated");
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  // Two products at once in one workspace spoil each other.
  static std::mutex lock;
  static uint64_t runs;
  uint64_t token = 0;
  if (p.workspace_bytes) {
    std::lock_guard<std::mutex> hold(lock);
    token = ++runs;
    memcpy(p.workspace, &token, sizeof token);
    memset((char*)p.workspace + 8, 0xff, p.workspace_bytes - 8);
  }
  uint64_t m = p.m(), n = p.n(), k = p.k();
  int dropped = dropped_bits(h.compute);
  auto taken = [&](const void* from, const Layout& l, int batch, bool turned, uint64_t i, uint64_t j) {
    float v = load(from, l.type, turned ? at(l, batch, j, i) : at(l, batch, i, j));
    return dropped ? rounded(v, dropped) : v;
  };
  std::vector<float> left(m * k), column(k), sums(m);
  for (int batch = 0; batch < p.d.batch; batch++) {
    for (uint64_t l = 0; l < k; l++)
      for (uint64_t i = 0; i < m; i++) left[l * m + i] = taken(p.from_a, p.a, batch, h.transposed_a, i, l);
    for (uint64_t j = 0; j < n; j++) {
      for (uint64_t l = 0; l < k; l++) column[l] = taken(p.from_b, p.b, batch, h.transposed_b, l, j);
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (uint64_t l = 0; l < k; l++)
        for (uint64_t i = 0; i < m; i++) sums[i] += left[l * m + i] * column[l];
      for (uint64_t i = 0; i < m; i++) {
        float v = p.alpha * sums[i];
        if (p.beta != 0) v += p.beta * load(p.from_c, p.c.type, at(p.c, batch, i, j));
        if (with_bias) v += load(h.bias, p.d.type, size_t(batch * h.bias_stride) + i);
        store(p.to, p.d.type, at(p.d, batch, i, j), finished(v, h.epilogue));
      }
    }
  }
  if (token && memcmp(p.workspace, &token, sizeof token)) {
    note("cublasLtMatmul: another product used the same workspace at the same time");
    store(p.to, p.d.type, 0, NAN);
  }
  return CUDA_SUCCESS;
}
}  // namespace

#define CUBLAS extern "C" __attribute__((visibility("default"))) int
#define ENTRY() \
  if (told_to_fail(__func__)) return INTERNAL_ERROR

CUBLAS cublasLtCreate(Handle** handle) {
  ENTRY();
  CUdevice device;
  // It belongs to a context.
  if (cuCtxGetDevice(&device)) return NOT_INITIALIZED;
  *handle = new Handle;
  return SUCCESS;
}

CUBLAS cublasLtDestroy(Handle* handle) {
  ENTRY();
  delete handle;
  return SUCCESS;
}

extern "C" __attribute__((visibility("default"))) size_t cublasLtGetVersion() { return 120205; }

CUBLAS cublasLtMatmulDescCreate(Description** how, int compute, int scale) {
  ENTRY();
  *how = new Description{compute, scale};
  return SUCCESS;
}

CUBLAS cublasLtMatmulDescDestroy(Description* how) {
  ENTRY();
  delete how;
  return SUCCESS;
}

template <class T>
static Status put(T& to, const void* from, size_t bytes) {
  if (bytes != sizeof(T) || !from) return INVALID_VALUE;
  memcpy(&to, from, bytes);
  return SUCCESS;
}

CUBLAS cublasLtMatmulDescSetAttribute(Description* how, int attribute, const void* value, size_t bytes) {
  ENTRY();
  int number = 0;
  switch (attribute) {
    case 2:  // the pointer mode: scalars of the host alone
    case 5:  // C is not turned
      if (Status s = put(number, value, bytes)) return s;
      how->is_odd = how->is_odd || number != 0;
      return SUCCESS;
    case 3:
    case 4: {
      // 0 as it is, 1 turned, 2 turned and conjugated.
      int& to = attribute == 3 ? how->transposed_a : how->transposed_b;
      if (Status s = put(to, value, bytes)) return s;
      how->is_odd = how->is_odd || to < 0 || to > 1;
      return SUCCESS;
    }
    case 7: return put(how->epilogue, value, bytes);
    case 8: return put(how->bias, value, bytes);
    case 10: return put(how->bias_stride, value, bytes);
  }
  return NOT_SUPPORTED;
}

CUBLAS cublasLtMatrixLayoutCreate(Layout** layout, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  ENTRY();
  *layout = new Layout{type, rows, columns, leading};
  return SUCCESS;
}

CUBLAS cublasLtMatrixLayoutDestroy(Layout* layout) {
  ENTRY();
  delete layout;
  return SUCCESS;
}

CUBLAS cublasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* value, size_t bytes) {
  ENTRY();
  switch (attribute) {
    case 1: return put(layout->order, value, bytes);
    case 4: return put(layout->leading, value, bytes);
    case 5: return put(layout->batch, value, bytes);
    case 6: return put(layout->stride, value, bytes);
  }
  return NOT_SUPPORTED;
}

CUBLAS cublasLtMatmulPreferenceCreate(Preference** preference) {
  ENTRY();
  *preference = new Preference;
  return SUCCESS;
}

CUBLAS cublasLtMatmulPreferenceDestroy(Preference* preference) {
  ENTRY();
  delete preference;
  return SUCCESS;
}

CUBLAS cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* value, size_t bytes) {
  ENTRY();
  uint32_t alignment;
  if (attribute == 1) return put(preference->workspace, value, bytes);
  // The least alignment of A, B, C and D: any will do.
  if (attribute >= 5 && attribute <= 8) return put(alignment, value, bytes);
  return NOT_SUPPORTED;
}

CUBLAS cublasLtMatmulAlgoGetHeuristic(Handle* handle, Description* how, Layout* a, Layout* b, Layout* c, Layout* d,
                                      Preference* preference, int wanted, Heuristic* results, int* count) {
  ENTRY();
  *count = 0;
  if (!handle || !how || !a || !b || !c || !d || !preference || wanted < 1) return INVALID_VALUE;
  Problem p = {*how, *a, *b, *c, *d, 0, 0, nullptr, nullptr, nullptr, nullptr, nullptr, 0};
  if (Status s = checked(p)) return s;
  uint64_t workspace = std::min(preference->workspace, WORKSPACE);
  if (workspace < 8) workspace = 0;
  results[0] = Heuristic{{MARK, digest(p), workspace, {}}, size_t(workspace), SUCCESS, 1.0f, {}};
  *count = 1;
  return SUCCESS;
}

CUBLAS cublasLtMatmul(Handle* handle, Description* how, const void* alpha, const void* from_a, Layout* a,
                      const void* from_b, Layout* b, const void* beta, const void* from_c, Layout* c, void* to,
                      Layout* d, const Algorithm* algorithm, void* workspace, size_t workspace_bytes, CUstream stream) {
  ENTRY();
  if (!handle || !how || !a || !b || !c || !d || !alpha || !beta) return INVALID_VALUE;
  Problem p = {*how, *a, *b, *c, *d, *(const float*)alpha, *(const float*)beta, from_a, from_b, from_c, to, workspace, 0};
  if (Status s = checked(p)) return s;
  if (algorithm) {
    // One is for the problem that it was found for.
    if (algorithm->mark != MARK || algorithm->problem != digest(p)) return INVALID_VALUE;
    if (algorithm->workspace > workspace_bytes || (algorithm->workspace && !workspace)) return INVALID_VALUE;
    p.workspace_bytes = algorithm->workspace;
  }
  if ((how->epilogue & BIAS) && !how->bias) return INVALID_VALUE;
  auto drop = [](void* data) { delete (Problem*)data; };
  return standin_queue(stream, __func__, compute, drop, new Problem(p)) ? EXECUTION_FAILED : SUCCESS;
}
