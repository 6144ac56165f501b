// What the stand-in for the driver keeps. One lock guards all of it; nobody holds the lock while work
// of a stream runs.
#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "api.h"
#include "entry.h"
#include "orders.h"

namespace standin {
typedef std::unique_lock<std::mutex> Lock;
std::mutex& world();

// Memory of a device, or that of the host which is pinned: a part of the address space, of which each
// allocation gets pages that nobody had before, between pages that nobody may touch.
class Arena {
 public:
  Arena(size_t total);
  // The lowest address, aligned to 256 bytes, or 0 without memory. Where it is not `open`, nobody may
  // touch it until open() is called.
  uintptr_t allocate(size_t bytes, bool open);
  void open(uintptr_t at);
  bool release(uintptr_t at);
  bool has(uintptr_t at) const { return at - base_ < SPAN; }
  // Whether these bytes are of one allocation; with none of them, its end is, too.
  bool covers(uintptr_t at, size_t bytes) const;
  bool starts(uintptr_t at) const { return ranges_.count(at) > 0; }
  // Whether what lies next to allocations is as it was made.
  bool intact() const;
  size_t used() const { return used_; }
  size_t total() const { return total_; }

 private:
  struct Range {
    size_t bytes;
    uintptr_t pages;
    size_t mapped;
    bool open;
  };
  static const size_t SPAN = size_t(1) << 40;
  void open(uintptr_t at, Range& range);
  static bool intact(uintptr_t at, const Range& range);

  uintptr_t base_ = 0, next_ = 0;
  size_t total_, used_ = 0;
  std::map<uintptr_t, Range> ranges_;
};

// The end of something that was queued.
struct Mark {
  bool done = false;
  std::chrono::steady_clock::time_point at;
};
typedef std::shared_ptr<Mark> MarkPtr;

// What a stream does: 0, or the error that breaks the context.
typedef std::function<CUresult()> Work;

struct Node {
  Work work;
  std::vector<size_t> after;
};
struct Graph {
  std::vector<Node> nodes;
};

struct Stream;
struct Context;

struct Capture {
  Stream* origin;
  Context* context;
  int mode;
  int thread;
  bool valid = true;
  Graph graph;
  std::set<Stream*> streams;
};
typedef std::shared_ptr<Capture> CapturePtr;

struct Operation {
  Work work;
  std::vector<MarkPtr> after;
  MarkPtr end;
};

struct Stream {
  Context* context;
  bool is_null, is_blocking;
  bool is_closing = false;
  unsigned number;
  std::deque<Operation> queue;
  std::condition_variable arrived;
  // The end of what came last.
  MarkPtr last;
  CapturePtr capture;
  std::vector<size_t> captured;
  std::mt19937 delays;
};
typedef std::shared_ptr<Stream> StreamPtr;

struct Event {
  Context* context;
  bool has_time;
  // That of the last record.
  MarkPtr mark;
  CapturePtr capture;
  std::vector<size_t> captured;
};

struct Module {
  void* library = nullptr;
  // Of each kernel, the bytes that a block shares.
  std::map<std::string, size_t> shared;
  ~Module();
};
struct Function {
  std::shared_ptr<Module> module;
  const Kernel* kernel;
  size_t shared;
  int most_dynamic;
};

template <class T>
using Owned = std::map<const void*, std::shared_ptr<T>>;

struct Context {
  int device;
  unsigned retained = 0;
  CUresult error = 0;
  std::set<int> peers;
  StreamPtr null;
  Owned<Stream> streams;
  Owned<Event> events;
  Owned<Module> modules;
  Owned<Function> functions;
  Owned<Graph> graphs;
  Owned<Graph> execs;
  std::set<uintptr_t> allocations;
  // Threads of streams that have not ended.
  unsigned running = 0;
};

struct Device {
  Arena memory;
  std::unique_ptr<Context> primary;
  unsigned flags = 0;
};

struct Driver {
  bool ready = false;
  std::vector<std::unique_ptr<Device>> devices;
  Arena pinned;
  // Of pinned memory, the bytes and how it was allocated.
  std::map<uintptr_t, unsigned> pinned_flags;
  std::set<Context*> contexts;
  std::vector<CapturePtr> captures;
  std::condition_variable ended;
  unsigned streams = 0;
  Driver();
};
Driver& driver();

// Each entry point begins with this; the name is that in STANDIN_FAIL.
CUresult entered(const char* name, CUresult told);
#define ENTRY_OR(told) \
  if (CUresult entered_ = entered(__func__, told)) return entered_
#define ENTRY() ENTRY_OR(CUDA_ERROR_UNKNOWN)
// The context of this thread, if it is not broken.
CUresult current(Context*& context);
#define CURRENT(context)  \
  Lock lock(world());     \
  Context* context;       \
  if (CUresult broken_ = current(context)) return broken_
CUresult stream_of(Context* context, CUstream handle, StreamPtr& stream);
template <class T, class H>
std::shared_ptr<T> find(const Owned<T>& all, H handle) {
  auto found = all.find(handle);
  return found == all.end() ? nullptr : found->second;
}
template <class T>
const void* own(Owned<T>& all, std::shared_ptr<T> one) {
  return all.emplace(one.get(), one).first->first;
}

// All below with the lock held.
StreamPtr new_stream(Context* context, bool is_null, bool is_blocking);
void close_stream(const StreamPtr& stream);
// Queues, or captures. `after` is what the stream waits for beside what it has.
CUresult submit(const StreamPtr& stream, Work work, std::vector<MarkPtr> after = {});
CUresult record(const StreamPtr& stream, Event& event);
CUresult wait_for(const StreamPtr& stream, const Event& event);
CUresult wait_until(Lock& lock, Context* context, const MarkPtr& mark);
CUresult wait_for_all(Lock& lock, Context* context);
// Refuses what may not be called while somebody captures.
CUresult while_capturing(Context* context);
void destroy(Lock& lock, Device& device);

// Whether kernels and copies of a context may touch these bytes.
bool may_touch(Context* context, uintptr_t at, size_t bytes);
// The device that an address is of, or -1.
int device_of(uintptr_t at);

// On the thread of a stream: the context whose work runs.
Context* running_context();
// Runs work, out of which fault() leaves with an error; so does touching what may not be touched.
CUresult guarded(const Work& work);
[[noreturn]] void fault(CUresult error);
// Within guarded work: something that faults like any code of the host does, and may not call CUDA.
void run_of_host(CUhostFn function, void* data);
bool is_in_host_function();
void forget_blocks();
}  // namespace standin
