// What CUDA C needs to run on a CPU, in a program of its own: buffers end at a page that nobody may
// touch, so that what lies beyond them is not read unnoticed.
#pragma once
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "blocks.h"

namespace shim {
static const char* running = "nothing";

void fail(const char* why) {
  fprintf(stderr, "%s: %s\n", running, why);
  _exit(3);
}

static void touched(int) {
  const char* why = ": memory beyond a buffer was touched\n";
  (void)!write(2, running, strlen(running));
  (void)!write(2, why, strlen(why));
  _exit(3);
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
