// What a text of CUDA C names, on a CPU. No header is included: NVRTC has none either.
#pragma once

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
// A block runs on one thread of the CPU, and others run blocks of the same kernel at that time.
#define __shared__ static __thread
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
};

namespace shim {
// Where a thread stands.
struct Place {
  dim3 thread, group, threads, groups;
};
[[maybe_unused]] static __thread Place place;

// Returns when every thread of the block waits at this line. It is of whoever runs the blocks, which
// may be another object.
__attribute__((visibility("default"))) void wait_at(int line);
}  // namespace shim

#define threadIdx shim::place.thread
#define blockIdx shim::place.group
#define blockDim shim::place.threads
#define gridDim shim::place.groups
#define __syncthreads() shim::wait_at(__LINE__)

extern "C" {
int abs(int) noexcept;
float ceilf(float) noexcept;
float copysignf(float, float) noexcept;
float cosf(float) noexcept;
float erff(float) noexcept;
float exp2f(float) noexcept;
float expf(float) noexcept;
float expm1f(float) noexcept;
float fabsf(float) noexcept;
float floorf(float) noexcept;
float fmaf(float, float, float) noexcept;
float fmaxf(float, float) noexcept;
float fminf(float, float) noexcept;
float fmodf(float, float) noexcept;
float log1pf(float) noexcept;
float log2f(float) noexcept;
float logf(float) noexcept;
float powf(float, float) noexcept;
float rintf(float) noexcept;
float roundf(float) noexcept;
float sinf(float) noexcept;
float sqrtf(float) noexcept;
float tanf(float) noexcept;
float tanhf(float) noexcept;
float truncf(float) noexcept;
}

static inline unsigned __float_as_uint(float v) { unsigned r; __builtin_memcpy(&r, &v, 4); return r; }
static inline int __float_as_int(float v) { int r; __builtin_memcpy(&r, &v, 4); return r; }
static inline float __uint_as_float(unsigned v) { float r; __builtin_memcpy(&r, &v, 4); return r; }
static inline float __int_as_float(int v) { float r; __builtin_memcpy(&r, &v, 4); return r; }
static inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
static inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __clz(int v) { return v ? __builtin_clz(unsigned(v)) : 32; }
static inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }
