// What CUDA C needs to run on a CPU: blocks one after the other, threads of a block one after the
// other too, each on a stack of its own where they wait for each other. Buffers end at a page that
// nobody may touch, so that what lies beyond them is not read unnoticed.
#pragma once
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define __global__
#define __shared__ static
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
};
static dim3 threadIdx, blockIdx;

static inline unsigned __float_as_uint(float v) { unsigned r; memcpy(&r, &v, 4); return r; }
static inline int __float_as_int(float v) { int r; memcpy(&r, &v, 4); return r; }
static inline float __uint_as_float(unsigned v) { float r; memcpy(&r, &v, 4); return r; }
static inline float __int_as_float(int v) { float r; memcpy(&r, &v, 4); return r; }
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }

namespace shim {
static const char* running = "nothing";

[[noreturn]] static void fail(const char* why) {
  fprintf(stderr, "%s: %s\n", running, why);
  _exit(3);
}

static void touched(int) {
  const char* why = ": memory beyond a buffer was touched\n";
  (void)!write(2, running, strlen(running));
  (void)!write(2, why, strlen(why));
  _exit(3);
}

const size_t STACK = 64 * 1024;
struct Fiber {
  ucontext_t context;
  dim3 id;
  bool done;
  int at;
};
static ucontext_t scheduler;
static Fiber* current;
static std::function<void()> body;
static std::vector<Fiber> fibers;
static std::vector<char> stacks;

static void enter() {
  body();
  current->done = true;
  swapcontext(&current->context, &scheduler);
}

static void wait_at(int line) {
  current->at = line;
  swapcontext(&current->context, &scheduler);
  threadIdx = current->id;
}

static void block_with_barriers(dim3 threads) {
  size_t n = size_t(threads.x) * threads.y * threads.z;
  if (fibers.size() < n) fibers.resize(n);
  if (stacks.size() < n * STACK) stacks.resize(n * STACK);
  for (size_t i = 0; i < n; i++) {
    Fiber& f = fibers[i];
    f.id = {unsigned(i % threads.x), unsigned(i / threads.x % threads.y),
            unsigned(i / threads.x / threads.y)};
    f.done = false;
    f.at = 0;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = &stacks[i * STACK];
    f.context.uc_stack.ss_size = STACK;
    f.context.uc_link = &scheduler;
    makecontext(&f.context, enter, 0);
  }
  for (size_t left = n; left > 0;) {
    left = 0;
    int at = -1;
    for (size_t i = 0; i < n; i++) {
      Fiber& f = fibers[i];
      if (f.done) continue;
      current = &f;
      threadIdx = f.id;
      swapcontext(&scheduler, &f.context);
      if (!f.done) left++;
    }
    for (size_t i = 0; i < n && left > 0; i++) {
      if (fibers[i].done) fail("a thread left while others wait for it");
      if (at >= 0 && fibers[i].at != at) fail("threads wait at different barriers");
      at = fibers[i].at;
    }
  }
}

static void launch(dim3 groups, dim3 threads, bool barriers, std::function<void()> kernel) {
  body = kernel;
  for (blockIdx.z = 0; blockIdx.z < groups.z; blockIdx.z++)
    for (blockIdx.y = 0; blockIdx.y < groups.y; blockIdx.y++)
      for (blockIdx.x = 0; blockIdx.x < groups.x; blockIdx.x++) {
        if (barriers) {
          block_with_barriers(threads);
          continue;
        }
        for (threadIdx.z = 0; threadIdx.z < threads.z; threadIdx.z++)
          for (threadIdx.y = 0; threadIdx.y < threads.y; threadIdx.y++)
            for (threadIdx.x = 0; threadIdx.x < threads.x; threadIdx.x++) body();
      }
}

static std::vector<std::pair<void*, size_t>> mapped;

// A buffer whose last byte is the last one before a page that nobody may touch.
static char* guarded(size_t bytes) {
  size_t page = size_t(sysconf(_SC_PAGESIZE));
  size_t whole = (bytes + page - 1) / page * page;
  char* at = (char*)mmap(nullptr, whole + page, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) fail("no memory");
  mprotect(at + whole, page, PROT_NONE);
  mapped.push_back({at, whole + page});
  // What nobody wrote is not a number.
  memset(at, 0xff, whole);
  return at + whole - bytes;
}

// Gives the buffers of a job back.
static void release() {
  for (auto& m : mapped) munmap(m.first, m.second);
  mapped.clear();
}

static FILE* input;
static unsigned word() {
  unsigned v;
  if (fread(&v, 4, 1, input) != 1) fail("the jobs end in the middle");
  return v;
}
}  // namespace shim

#define __syncthreads() shim::wait_at(__LINE__)
