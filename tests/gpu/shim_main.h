// Reads jobs and writes their outputs. A job: buffers (bytes, contents or none), launches (kernel,
// groups, buffers, words), buffers to write out. All numbers are words of 32 bits.
struct Kernel {
  const char* name;
  dim3 threads;
  bool barriers;
  unsigned buffers;
  void (*run)(const unsigned* words, char* const* buffers);
};
extern const Kernel KERNELS[];

struct Call {
  const Kernel* kernel;
  const unsigned* words;
  char* const* buffers;
};
static void run(void* data) {
  const Call& call = *(const Call*)data;
  call.kernel->run(call.words, call.buffers);
}

int main(int, char** arguments) {
  signal(SIGSEGV, shim::touched);
  signal(SIGBUS, shim::touched);
  shim::input = fopen(arguments[1], "rb");
  FILE* output = fopen(arguments[2], "wb");
  if (!shim::input || !output) shim::fail("the jobs cannot be opened");
  for (unsigned jobs = shim::word(); jobs > 0; jobs--) {
    std::vector<char*> buffers;
    std::vector<unsigned> sizes;
    for (unsigned n = shim::word(); n > 0; n--) {
      unsigned bytes = shim::word(), filled = shim::word();
      char* at = shim::guarded(bytes);
      if (filled && bytes && fread(at, 1, bytes, shim::input) != bytes) shim::fail("no contents");
      buffers.push_back(at);
      sizes.push_back(bytes);
    }
    for (unsigned n = shim::word(); n > 0; n--) {
      const Kernel& kernel = KERNELS[shim::word()];
      shim::running = kernel.name;
      dim3 groups;
      groups.x = shim::word();
      groups.y = shim::word();
      groups.z = shim::word();
      std::vector<char*> given;
      for (unsigned i = 0; i < kernel.buffers; i++) given.push_back(buffers[shim::word()]);
      unsigned count = shim::word();
      unsigned* words = (unsigned*)shim::guarded(count * 4);
      for (unsigned i = 0; i < count; i++) words[i] = shim::word();
      Call call = {&kernel, words, given.data()};
      shim::launch(shim::place, groups, kernel.threads, kernel.barriers, run, &call);
    }
    for (unsigned n = shim::word(); n > 0; n--) {
      unsigned which = shim::word();
      if (sizes[which]) fwrite(buffers[which], 1, sizes[which], output);
    }
    shim::release();
  }
  fclose(output);
  return 0;
}
