// The stand-in for libcuda: streams, events, and graphs of what was captured.
#include <unistd.h>

#include <algorithm>

#include "state.h"

using namespace standin;

CUresult cuStreamCreateWithPriority(CUstream* handle, unsigned flags, int priority) {
  ENTRY();
  CURRENT(context);
  (void)priority;  // Out of range is as good as the nearest in it.
  if (flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  StreamPtr stream = new_stream(context, false, flags != CU_STREAM_NON_BLOCKING);
  *handle = CUstream(own(context->streams, stream));
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  ENTRY();
  return cuStreamCreateWithPriority(stream, flags, 0);
}

CUresult cuStreamDestroy_v2(CUstream handle) {
  ENTRY();
  CURRENT(context);
  StreamPtr stream = find(context->streams, handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  // What was queued still comes to its end.
  close_stream(stream);
  context->streams.erase(handle);
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream handle) {
  ENTRY();
  if (is_ignored(__func__)) return CUDA_SUCCESS;
  trace("block", __func__);
  CURRENT(context);
  StreamPtr stream;
  if (CUresult error = stream_of(context, handle, stream)) return error;
  if (stream->capture) {
    stream->capture->valid = false;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (CUresult error = while_capturing(context)) return error;
  return wait_until(lock, context, stream->last);
}

CUresult cuStreamQuery(CUstream handle) {
  ENTRY();
  CURRENT(context);
  StreamPtr stream;
  if (CUresult error = stream_of(context, handle, stream)) return error;
  if (stream->capture) {
    stream->capture->valid = false;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return !stream->last || stream->last->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static std::shared_ptr<Event> any_event(CUevent handle) {
  for (Context* context : driver().contexts)
    if (auto event = find(context->events, handle)) return event;
  return nullptr;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned flags) {
  ENTRY();
  if (is_ignored(__func__)) return CUDA_SUCCESS;
  trace("submit", __func__);
  CURRENT(context);
  if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
  StreamPtr stream;
  if (CUresult error = stream_of(context, handle, stream)) return error;
  // It may be one of another device.
  std::shared_ptr<Event> event = any_event(event_handle);
  return event ? wait_for(stream, *event) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  ENTRY();
  trace("submit", __func__);
  CURRENT(context);
  StreamPtr stream;
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = stream_of(context, handle, stream)) return error;
  // In a context that is broken it is not called.
  return submit(stream, [=]() -> CUresult {
    run_of_host(function, data);
    return CUDA_SUCCESS;
  });
}

CUresult cuEventCreate(CUevent* handle, unsigned flags) {
  ENTRY();
  CURRENT(context);
  if (flags & ~7u) return CUDA_ERROR_INVALID_VALUE;
  auto event = std::make_shared<Event>();
  event->context = context;
  event->has_time = !(flags & CU_EVENT_DISABLE_TIMING);
  *handle = CUevent(own(context->events, event));
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent handle) {
  ENTRY();
  CURRENT(context);
  return context->events.erase(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventRecord(CUevent event_handle, CUstream handle) {
  ENTRY();
  trace("submit", __func__);
  CURRENT(context);
  StreamPtr stream;
  if (CUresult error = stream_of(context, handle, stream)) return error;
  auto event = find(context->events, event_handle);
  return event ? record(stream, *event) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventQuery(CUevent handle) {
  ENTRY();
  CURRENT(context);
  auto event = find(context->events, handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
  if (CUresult error = while_capturing(context)) return error;
  return !event->mark || event->mark->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent handle) {
  ENTRY();
  if (is_ignored(__func__)) return CUDA_SUCCESS;
  trace("block", __func__);
  CURRENT(context);
  auto event = find(context->events, handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
  if (CUresult error = while_capturing(context)) return error;
  return wait_until(lock, context, event->mark);
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  ENTRY();
  CURRENT(context);
  auto from = find(context->events, start), to = find(context->events, end);
  bool are_timed = from && to && from->has_time && to->has_time && from->mark && to->mark;
  if (!are_timed) return CUDA_ERROR_INVALID_HANDLE;
  if (!from->mark->done || !to->mark->done) return CUDA_ERROR_NOT_READY;
  *milliseconds = std::chrono::duration<float, std::milli>(to->mark->at - from->mark->at).count();
  return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream handle, int mode) {
  ENTRY();
  CURRENT(context);
  if (mode < CU_CAPTURE_GLOBAL || mode > CU_CAPTURE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  StreamPtr stream;
  if (CUresult error = stream_of(context, handle, stream)) return error;
  // The legacy stream cannot be captured.
  if (stream->is_null) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture) return CUDA_ERROR_INVALID_VALUE;
  CapturePtr capture = std::make_shared<Capture>();
  capture->origin = stream.get();
  capture->context = context;
  capture->mode = mode;
  capture->thread = int(gettid());
  capture->streams.insert(stream.get());
  stream->capture = capture;
  stream->captured.clear();
  driver().captures.push_back(capture);
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  ENTRY();
  CURRENT(context);
  *graph = nullptr;
  StreamPtr stream;
  if (CUresult error = stream_of(context, handle, stream)) return error;
  CapturePtr capture = stream->capture;
  if (!capture) return CUDA_ERROR_INVALID_VALUE;
  if (capture->origin != stream.get()) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  // What the end of the origin does not come after.
  auto& nodes = capture->graph.nodes;
  std::vector<bool> reached(nodes.size());
  std::vector<size_t> left = stream->captured;
  while (!left.empty()) {
    size_t i = left.back();
    left.pop_back();
    if (reached[i]) continue;
    reached[i] = true;
    left.insert(left.end(), nodes[i].after.begin(), nodes[i].after.end());
  }
  bool are_joined = std::find(reached.begin(), reached.end(), false) == reached.end();
  for (auto& [_, other] : context->streams) {
    if (other->capture != capture) continue;
    other->capture = nullptr;
    other->captured.clear();
  }
  capture->streams.clear();
  auto& all = driver().captures;
  all.erase(std::find(all.begin(), all.end(), capture));
  if (!capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!are_joined) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  *graph = CUgraph(own(context->graphs, std::make_shared<Graph>(capture->graph)));
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream handle, int* status) {
  ENTRY();
  CURRENT(context);
  StreamPtr stream;
  if (CUresult error = stream_of(context, handle, stream)) return error;
  *status = !stream->capture ? 0 : stream->capture->valid ? 1 : 2;
  return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph handle, unsigned long long flags) {
  ENTRY();
  CURRENT(context);
  (void)flags;
  auto graph = find(context->graphs, handle);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  *exec = CUgraphExec(own(context->execs, std::make_shared<Graph>(*graph)));
  return CUDA_SUCCESS;
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream handle) {
  ENTRY();
  CURRENT(context);
  StreamPtr stream;
  if (CUresult error = stream_of(context, handle, stream)) return error;
  return find(context->execs, exec) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Runs the nodes in any order that their edges allow, so that an edge that is missing shows.
static CUresult run_in_some_order(const Graph& graph, std::mt19937& any) {
  std::vector<bool> done(graph.nodes.size());
  for (size_t left = done.size(); left > 0; left--) {
    std::vector<size_t> ready;
    for (size_t i = 0; i < done.size(); i++) {
      auto& after = graph.nodes[i].after;
      auto is_done = [&](size_t before) { return bool(done[before]); };
      if (!done[i] && std::all_of(after.begin(), after.end(), is_done)) ready.push_back(i);
    }
    size_t next = ready[any() % ready.size()];
    const Work& work = graph.nodes[next].work;
    CUresult error = work ? guarded(work) : 0;
    if (error) return error;
    done[next] = true;
  }
  return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
  ENTRY();
  trace("submit", __func__);
  CURRENT(context);
  StreamPtr stream;
  if (CUresult error = stream_of(context, stream_handle, stream)) return error;
  auto exec = find(context->execs, handle);
  if (!exec) return CUDA_ERROR_INVALID_VALUE;
  if (stream->capture) return CUDA_ERROR_NOT_SUPPORTED;
  Stream* of = stream.get();
  return submit(stream, [=] { return run_in_some_order(*exec, of->delays); });
}

CUresult cuGraphDestroy(CUgraph graph) {
  ENTRY();
  CURRENT(context);
  return context->graphs.erase(graph) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  ENTRY();
  CURRENT(context);
  return context->execs.erase(exec) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
