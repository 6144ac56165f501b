// Memory of devices, and that of the host which is pinned.
#include <sys/mman.h>
#include <unistd.h>

#include "state.h"

namespace standin {
const size_t PAGE = 4096, ALIGNED = 256;
// What nobody wrote is not a number.
const int UNWRITTEN = 0xff;

static size_t up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

Arena::Arena(size_t total) : total_(total) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* at = mmap(nullptr, SPAN, PROT_NONE, flags, -1, 0);
  if (at == MAP_FAILED) {
    total_ = 0;
    note("there is no address space for the memory of a device");
    return;
  }
  base_ = uintptr_t(at);
  next_ = base_ + PAGE;
}

uintptr_t Arena::allocate(size_t bytes, bool is_open) {
  size_t mapped = up(up(bytes, ALIGNED), PAGE);
  if (bytes > total_ - used_ || next_ + mapped + PAGE > base_ + SPAN) return 0;
  Range range = {bytes, next_, mapped, false};
  uintptr_t at = next_ + mapped - up(bytes, ALIGNED);
  next_ += mapped + PAGE;
  used_ += bytes;
  if (is_open) open(at, range);
  ranges_[at] = range;
  return at;
}

void Arena::open(uintptr_t at, Range& range) {
  mprotect((void*)range.pages, range.mapped, PROT_READ | PROT_WRITE);
  memset((void*)range.pages, UNWRITTEN, range.mapped);
  range.open = true;
  (void)at;
}

void Arena::open(uintptr_t at) {
  auto found = ranges_.find(at);
  if (found != ranges_.end() && !found->second.open) open(at, found->second);
}

bool Arena::release(uintptr_t at) {
  auto found = ranges_.find(at);
  if (found == ranges_.end()) return false;
  Range& range = found->second;
  madvise((void*)range.pages, range.mapped, MADV_DONTNEED);
  mprotect((void*)range.pages, range.mapped, PROT_NONE);
  used_ -= range.bytes;
  ranges_.erase(found);
  return true;
}

bool Arena::covers(uintptr_t at, size_t bytes) const {
  auto next = ranges_.upper_bound(at);
  if (next == ranges_.begin()) return false;
  auto& [from, range] = *--next;
  return at - from <= range.bytes && bytes <= range.bytes - (at - from);
}

bool Arena::intact(uintptr_t at, const Range& range) {
  if (!range.open) return true;
  // Beyond a page nobody gets unnoticed: only what is left of the last page counts, and as much
  // before the start.
  auto is_unwritten = [](uintptr_t from, uintptr_t to) {
    for (; from < to; from++)
      if (*(const unsigned char*)from != UNWRITTEN) return false;
    return true;
  };
  uintptr_t before = at - range.pages < ALIGNED ? range.pages : at - ALIGNED;
  return is_unwritten(before, at) &&
         is_unwritten(at + range.bytes, range.pages + range.mapped);
}

bool Arena::intact() const {
  for (auto& [at, range] : ranges_)
    if (!intact(at, range)) return false;
  return true;
}

int device_of(uintptr_t at) {
  auto& devices = driver().devices;
  for (size_t i = 0; i < devices.size(); i++)
    if (devices[i]->memory.has(at)) return int(i);
  return -1;
}

bool may_touch(Context* context, uintptr_t at, size_t bytes) {
  Driver& d = driver();
  // With one address space for all, pinned memory is every device's.
  if (d.pinned.has(at)) return d.pinned.covers(at, bytes);
  int device = device_of(at);
  if (device < 0) return false;
  if (device != context->device && !context->peers.count(device)) return false;
  return d.devices[device]->memory.covers(at, bytes);
}
}  // namespace standin
