// Streams: a thread each, with a queue. Events, captures and graphs are made of what is queued.
#include <setjmp.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "state.h"

namespace standin {
static thread_local sigjmp_buf* guard;
static thread_local Context* running;
static thread_local bool in_host_function;

Context* running_context() { return running; }
bool is_in_host_function() { return in_host_function; }

void fault(CUresult error) { siglongjmp(*guard, error); }

static struct sigaction before_segv, before_bus;

static void touched(int signal, siginfo_t* info, void* context) {
  if (guard) fault(CUDA_ERROR_ILLEGAL_ADDRESS);
  // Not of a stream's work: whoever was there before decides.
  struct sigaction& old = signal == SIGBUS ? before_bus : before_segv;
  if (old.sa_flags & SA_SIGINFO) return old.sa_sigaction(signal, info, context);
  if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) return old.sa_handler(signal);
  sigaction(signal, &old, nullptr);
}

static void watch() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction ours = {};
    ours.sa_sigaction = touched;
    // A stack of its own where the thread has one: that of the host may have overflowed.
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &ours, &before_segv);
    sigaction(SIGBUS, &ours, &before_bus);
  });
}

CUresult guarded(const Work& work) {
  watch();
  sigjmp_buf* const outer = guard;
  sigjmp_buf here;
  if (CUresult error = sigsetjmp(here, 1)) {
    guard = outer;
    forget_blocks();
    return error;
  }
  guard = &here;
  CUresult result = work();
  guard = outer;
  return result;
}

void run_of_host(CUhostFn function, void* data) {
  sigjmp_buf* kept = guard;
  guard = nullptr;
  in_host_function = true;
  function(data);
  in_host_function = false;
  guard = kept;
}

static bool all_done(const std::vector<MarkPtr>& marks) {
  for (auto& mark : marks)
    if (!mark->done) return false;
  return true;
}

static void finish(const MarkPtr& mark) {
  mark->done = true;
  mark->at = std::chrono::steady_clock::now();
  driver().ended.notify_all();
}

// The thread of a stream.
static void serve(StreamPtr stream) {
  long most = number("STANDIN_DELAY_US", 0);
  Context* context = running = stream->context;
  Lock lock(world());
  for (;;) {
    stream->arrived.wait(lock, [&] { return stream->is_closing || !stream->queue.empty(); });
    if (stream->queue.empty()) break;
    Operation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    driver().ended.wait(lock, [&] { return all_done(operation.after); });
    if (!context->error) {
      lock.unlock();
      if (most > 0) {
        std::uniform_int_distribution<long> any(0, most);
        std::this_thread::sleep_for(std::chrono::microseconds(any(stream->delays)));
      }
      CUresult error = operation.work ? guarded(operation.work) : 0;
      operation.work = nullptr;
      lock.lock();
      if (error && !context->error) context->error = error;
    } else {
      // What is left of a broken context does not run; what it holds is let go without the lock.
      lock.unlock();
      operation.work = nullptr;
      lock.lock();
    }
    finish(operation.end);
  }
  context->running--;
  driver().ended.notify_all();
}

StreamPtr new_stream(Context* context, bool is_null, bool is_blocking) {
  StreamPtr stream = std::make_shared<Stream>();
  stream->context = context;
  stream->is_null = is_null;
  stream->is_blocking = is_blocking;
  stream->number = driver().streams++;
  stream->delays.seed(unsigned(number("STANDIN_SEED", 1)) * 1009 + stream->number);
  context->running++;
  std::thread(serve, stream).detach();
  return stream;
}

void close_stream(const StreamPtr& stream) {
  if (stream->capture) stream->capture->valid = false;
  stream->is_closing = true;
  stream->arrived.notify_all();
}

CUresult submit(const StreamPtr& stream, Work work, std::vector<MarkPtr> after) {
  Context* context = stream->context;
  if (CapturePtr capture = stream->capture) {
    if (!capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    capture->graph.nodes.push_back({std::move(work), stream->captured});
    stream->captured = {capture->graph.nodes.size() - 1};
    return CUDA_SUCCESS;
  }
  // The legacy stream and those that do not decline it wait for each other.
  if (stream->is_null) {
    for (auto& [_, other] : context->streams) {
      if (!other->is_blocking) continue;
      if (other->capture) {
        other->capture->valid = false;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
      }
      if (other->last) after.push_back(other->last);
    }
  } else if (stream->is_blocking && context->null->last) {
    after.push_back(context->null->last);
  }
  MarkPtr end = std::make_shared<Mark>();
  stream->last = end;
  stream->queue.push_back({std::move(work), std::move(after), end});
  stream->arrived.notify_all();
  return CUDA_SUCCESS;
}

CUresult record(const StreamPtr& stream, Event& event) {
  if (stream->capture) {
    if (!stream->capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    event.capture = stream->capture;
    event.captured = stream->captured;
    return CUDA_SUCCESS;
  }
  event.capture = nullptr;
  CUresult result = submit(stream, nullptr);
  if (result == CUDA_SUCCESS) event.mark = stream->last;
  return result;
}

CUresult wait_for(const StreamPtr& stream, const Event& event) {
  CapturePtr capture = stream->capture;
  if (event.capture) {
    if (capture && capture != event.capture) {
      capture->valid = event.capture->valid = false;
      return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (!event.capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!event.capture->streams.count(event.capture->origin)) return CUDA_ERROR_CAPTURED_EVENT;
    if (!capture) {
      if (stream->is_null) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
      stream->capture = event.capture;
      event.capture->streams.insert(stream.get());
    }
    auto& to = stream->captured;
    to.insert(to.end(), event.captured.begin(), event.captured.end());
    return CUDA_SUCCESS;
  }
  if (capture) {
    if (!event.mark) return CUDA_SUCCESS;
    capture->valid = false;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  // What was never recorded holds nobody up; what is recorded later is another wait's matter.
  if (!event.mark) return CUDA_SUCCESS;
  return submit(stream, nullptr, {event.mark});
}

CUresult wait_until(Lock& lock, Context* context, const MarkPtr& mark) {
  if (mark) driver().ended.wait(lock, [&] { return mark->done; });
  return context->error;
}

CUresult wait_for_all(Lock& lock, Context* context) {
  std::vector<MarkPtr> marks;
  if (context->null->last) marks.push_back(context->null->last);
  for (auto& [_, stream] : context->streams)
    if (stream->last) marks.push_back(stream->last);
  driver().ended.wait(lock, [&] { return all_done(marks); });
  return context->error;
}

CUresult while_capturing(Context* context) {
  auto& captures = driver().captures;
  for (auto& capture : captures) {
    bool ours = capture->mode == CU_CAPTURE_THREAD_LOCAL && capture->thread == int(gettid());
    if (capture->context != context || !(capture->mode == CU_CAPTURE_GLOBAL || ours)) continue;
    capture->valid = false;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return CUDA_SUCCESS;
}

void destroy(Lock& lock, Device& device) {
  Context* context = device.primary.get();
  wait_for_all(lock, context);
  auto& captures = driver().captures;
  for (size_t i = captures.size(); i-- > 0;)
    if (captures[i]->context == context) captures.erase(captures.begin() + i);
  close_stream(context->null);
  for (auto& [_, stream] : context->streams) close_stream(stream);
  driver().ended.wait(lock, [&] { return context->running == 0; });
  for (uintptr_t at : context->allocations) device.memory.release(at);
  driver().contexts.erase(context);
  device.primary.reset();
}
}  // namespace standin
