// Runs the blocks of a kernel one after the other, and the threads of a block too: each on a stack
// of its own where they wait for each other. Any number of threads of the CPU may do so at once.
// To be included by one file of a program.
#pragma once
#include <setjmp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <vector>

#include "language.h"

namespace shim {
// What is to happen when threads do not meet at a barrier; whoever includes this says it.
[[noreturn]] void fail(const char* why);

const size_t STACK = 64 * 1024;

struct Fiber {
  jmp_buf here;
  dim3 id;
  bool begun, done;
  int at;
};

struct Blocks {
  void (*body)(void*);
  void* data;
  // That of the object which the kernel is in, on this thread of the CPU.
  Place* place;
  jmp_buf scheduler;
  ucontext_t first;
  Fiber* current;
  std::vector<Fiber> fibers;
  char* stacks;
  size_t count;
  ~Blocks() {
    if (stacks) munmap(stacks, count * STACK);
  }
};
static thread_local Blocks blocks;

// Leaves the stack that this runs on for the one of `there`, until somebody comes back to `here`.
__attribute__((noinline)) static void leave(jmp_buf& here, jmp_buf& there) {
  if (!_setjmp(here)) _longjmp(there, 1);
}

// A stack serves block after block.
static void serve() {
  for (;;) {
    Blocks& b = blocks;
    b.body(b.data);
    b.current->done = true;
    leave(b.current->here, b.scheduler);
  }
}

void wait_at(int line) {
  Blocks& b = blocks;
  if (!b.current) fail("a thread waits for others that it was not started with");
  Fiber& self = *b.current;
  self.at = line;
  leave(self.here, b.scheduler);
  b.place->thread = self.id;
}

__attribute__((noinline)) static void resume(Blocks& b, size_t i) {
  Fiber& f = b.fibers[i];
  b.current = &f;
  b.place->thread = f.id;
  if (f.begun) {
    leave(b.scheduler, f.here);
  } else if (!_setjmp(b.scheduler)) {
    f.begun = true;
    getcontext(&b.first);
    b.first.uc_stack.ss_sp = b.stacks + i * STACK;
    b.first.uc_stack.ss_size = STACK;
    b.first.uc_link = nullptr;
    makecontext(&b.first, serve, 0);
    setcontext(&b.first);
  }
  b.current = nullptr;
}

// After a kernel was left in the middle: its stacks are not to be used where they stand.
[[maybe_unused]] static void forget() {
  blocks.current = nullptr;
  for (Fiber& f : blocks.fibers) f.begun = false;
}

static void block_with_barriers() {
  Blocks& b = blocks;
  dim3 threads = b.place->threads;
  size_t n = size_t(threads.x) * threads.y * threads.z;
  if (b.count < n) {
    if (b.stacks) munmap(b.stacks, b.count * STACK);
    b.stacks = (char*)mmap(nullptr, n * STACK, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    b.count = b.stacks == MAP_FAILED ? 0 : n;
    if (!b.count) b.stacks = nullptr, fail("there is no memory for the stacks of a block");
    b.fibers.assign(n, Fiber{});
  }
  for (size_t i = 0; i < n; i++) {
    Fiber& f = b.fibers[i];
    f.id = {unsigned(i % threads.x), unsigned(i / threads.x % threads.y),
            unsigned(i / threads.x / threads.y)};
    f.done = false;
    f.at = 0;
  }
  for (size_t left = n; left > 0;) {
    left = 0;
    int at = -1;
    for (size_t i = 0; i < n; i++) {
      if (b.fibers[i].done) continue;
      resume(b, i);
      if (!b.fibers[i].done) left++;
    }
    for (size_t i = 0; i < n && left > 0; i++) {
      if (b.fibers[i].done) fail("a thread left while others wait for it");
      if (at >= 0 && b.fibers[i].at != at) fail("threads wait at different barriers");
      at = b.fibers[i].at;
    }
  }
}

// Runs a kernel that looks at `place`; `barriers` says that its threads may wait for each other.
static void launch(Place& place, dim3 groups, dim3 threads, bool barriers, void (*body)(void*),
                   void* data) {
  blocks.body = body;
  blocks.data = data;
  blocks.place = &place;
  place.groups = groups;
  place.threads = threads;
  for (unsigned z = 0; z < groups.z; z++)
    for (unsigned y = 0; y < groups.y; y++)
      for (unsigned x = 0; x < groups.x; x++) {
        place.group = {x, y, z};
        if (barriers) {
          block_with_barriers();
          continue;
        }
        dim3& at = place.thread;
        for (at.z = 0; at.z < threads.z; at.z++)
          for (at.y = 0; at.y < threads.y; at.y++)
            for (at.x = 0; at.x < threads.x; at.x++) body(data);
      }
}
}  // namespace shim
