// What the environment orders of the stand-ins: calls that fail, and a trace.
//
// STANDIN_FAIL=NAME[:N|:*][,…]   the N-th call (the first, each) of an entry point fails; `kernel` is
//                                the N-th run of a kernel, which then touches what it may not
// STANDIN_IGNORE=NAME            waits of that entry point do not wait
// STANDIN_TRACE=FILE             a line for each submission, each call that may block, each allocation
// STANDIN_CALLS=FILE             a line for each call of an entry point: its name
#pragma once
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace standin {
inline long number(const char* variable, long otherwise) {
  const char* text = getenv(variable);
  return text && *text ? atol(text) : otherwise;
}

inline void note(const std::string& text) { fprintf(stderr, "stand-in: %s\n", text.c_str()); }

struct Orders {
  std::mutex lock;
  // By name: which call fails (0: each one), and how many have been.
  std::map<std::string, std::pair<long, long>> failing;
  FILE *trace = nullptr, *calls = nullptr;
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();

  Orders() {
    const char* fail = getenv("STANDIN_FAIL");
    for (std::string rest = fail ? fail : ""; !rest.empty();) {
      std::string one = rest.substr(0, rest.find(','));
      rest.erase(0, one.size() + 1);
      size_t colon = one.find(':');
      std::string which = colon == std::string::npos ? "1" : one.substr(colon + 1);
      failing[one.substr(0, colon)] = {which == "*" ? 0 : atol(which.c_str()), 0};
    }
    if (const char* file = getenv("STANDIN_TRACE")) trace = fopen(file, "a");
    if (const char* file = getenv("STANDIN_CALLS")) calls = fopen(file, "a");
  }
};

inline Orders& orders() {
  // Never given back: threads may look while the process ends.
  static Orders* all = new Orders;
  return *all;
}

// To be asked once by each call of an entry point.
inline bool told_to_fail(const char* name) {
  Orders& o = orders();
  if (o.failing.empty() && !o.calls) return false;
  std::lock_guard<std::mutex> hold(o.lock);
  if (o.calls) {
    fprintf(o.calls, "%s\n", name);
    fflush(o.calls);
  }
  auto found = o.failing.find(name);
  if (found == o.failing.end()) return false;
  auto& [which, calls] = found->second;
  calls++;
  return which == 0 || which == calls;
}

inline bool is_ignored(const char* name) {
  const char* ignored = getenv("STANDIN_IGNORE");
  return ignored && !strcmp(ignored, name);
}

// A line `microseconds thread kind name detail`; kinds are submit, block and allocate.
inline void trace(const char* kind, const char* name, const std::string& detail = "") {
  Orders& o = orders();
  if (!o.trace) return;
  std::lock_guard<std::mutex> hold(o.lock);
  auto passed = std::chrono::steady_clock::now() - o.start;
  long at = long(std::chrono::duration_cast<std::chrono::microseconds>(passed).count());
  fprintf(o.trace, "%ld %d %s %s %s\n", at, int(gettid()), kind, name, detail.c_str());
  fflush(o.trace);
}
}  // namespace standin
