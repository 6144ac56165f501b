// The stand-in for libcuda: images of kernels, and launches.
#include <dlfcn.h>
#include <elf.h>
#include <stdlib.h>
#include <unistd.h>

#include "blocks.h"
#include "image.h"
#include "state.h"

void shim::fail(const char* why) {
  standin::note(why);
  standin::fault(CUDA_ERROR_LAUNCH_FAILED);
}

namespace standin {
void forget_blocks() { shim::forget(); }

Module::~Module() {
  if (library) dlclose(library);
}

// What a block shares are variables of threads in the object, named after the function that they are in.
static std::map<std::string, size_t> shared_sizes(const std::string& object) {
  std::map<std::string, size_t> sizes;
  auto at = [&](size_t offset, size_t bytes) -> const char* {
    return offset <= object.size() && bytes <= object.size() - offset ? object.data() + offset : nullptr;
  };
  auto head = (const Elf64_Ehdr*)at(0, sizeof(Elf64_Ehdr));
  if (!head) return sizes;
  auto sections = (const Elf64_Shdr*)at(head->e_shoff, head->e_shnum * sizeof(Elf64_Shdr));
  for (size_t s = 0; sections && s < head->e_shnum; s++) {
    const Elf64_Shdr& table = sections[s];
    if (table.sh_type != SHT_SYMTAB || table.sh_link >= head->e_shnum) continue;
    auto symbols = (const Elf64_Sym*)at(table.sh_offset, table.sh_size);
    auto names = at(sections[table.sh_link].sh_offset, sections[table.sh_link].sh_size);
    for (size_t i = 0; symbols && names && i < table.sh_size / sizeof(Elf64_Sym); i++) {
      if (ELF64_ST_TYPE(symbols[i].st_info) != STT_TLS) continue;
      const char* name = names + symbols[i].st_name;
      int length = 0, used = 0;
      if (sscanf(name, "_ZZ%d%n", &length, &used) == 1 && length > 0)
        sizes[std::string(name + used, strnlen(name + used, size_t(length)))] += symbols[i].st_size;
    }
  }
  return sizes;
}

static CUresult load(Context* context, const void* from, CUmodule* handle) {
  Image image;
  Read read_as = Read::nothing;
  // The header may promise more than there is.
  guarded([&]() -> CUresult {
    read_as = read((const char*)from, image);
    return CUDA_SUCCESS;
  });
  if (read_as == Read::nothing) return CUDA_ERROR_INVALID_IMAGE;
  if (read_as == Read::broken_ptx) return CUDA_ERROR_INVALID_PTX;
  int wanted = atoi(image.target.c_str() + image.target.find('_') + 1);
  int there = int(number("STANDIN_CC", 90));
  if (read_as == Read::ptx && wanted > there) return CUDA_ERROR_INVALID_PTX;
  // What is assembled runs on devices of its generation alone.
  bool fits = wanted / 10 == there / 10 && wanted <= there;
  if (read_as == Read::cubin && !fits) return CUDA_ERROR_NO_BINARY_FOR_GPU;

  // Under a name of its own: what has the name of something that is loaded is taken for that.
  const char* temporary = getenv("TMPDIR");
  std::string path = std::string(temporary && *temporary ? temporary : "/tmp") + "/kernels-XXXXXX";
  int file = mkstemp(&path[0]);
  size_t bytes = image.object.size();
  auto module = std::make_shared<Module>();
  if (file >= 0 && write(file, image.object.data(), bytes) == ssize_t(bytes))
    module->library = dlopen(path.c_str(), RTLD_NOW);
  if (file >= 0) close(file), unlink(path.c_str());
  if (!module->library) {
    const char* why = dlerror();
    note(why ? why : "an image cannot be written");
    return CUDA_ERROR_INVALID_IMAGE;
  }
  module->shared = shared_sizes(image.object);
  *handle = CUmodule(own(context->modules, module));
  return CUDA_SUCCESS;
}

// Runs a kernel with a copy of its parameters.
static CUresult run(const Function& function, const std::vector<std::vector<char>>& values,
                    dim3 groups, dim3 threads) {
  const Kernel& kernel = *function.kernel;
  Context* context = running_context();
  std::vector<void*> parameters;
  bool are_known = !told_to_fail("kernel");
  {
    Lock lock(world());
    for (unsigned i = 0; i < kernel.count; i++) {
      parameters.push_back((void*)values[i].data());
      uintptr_t at = 0;
      if (kernel.parameters[i].is_pointer) memcpy(&at, values[i].data(), sizeof at);
      if (!at || may_touch(context, at, 0)) continue;
      note(std::string(kernel.name) + ": parameter " + std::to_string(i) + " points to no memory of the device");
      are_known = false;
    }
  }
  if (!are_known) return CUDA_ERROR_ILLEGAL_ADDRESS;
  struct Call {
    const Kernel* kernel;
    void** parameters;
  } call = {&kernel, parameters.data()};
  CUresult error = guarded([&]() -> CUresult {
    auto body = [](void* data) {
      const Call& c = *(const Call*)data;
      c.kernel->call(c.kernel->function, c.parameters);
    };
    shim::launch(*kernel.place(), groups, threads, kernel.has_barriers, body, &call);
    return CUDA_SUCCESS;
  });
  Lock lock(world());
  if (!error && !driver().devices[context->device]->memory.intact()) error = CUDA_ERROR_ILLEGAL_ADDRESS;
  if (error == CUDA_ERROR_ILLEGAL_ADDRESS)
    note(std::string(kernel.name) + ": memory beyond an allocation was touched");
  return error;
}

static std::shared_ptr<Function> function_of(Context* context, CUfunction handle) {
  return find(context->functions, handle);
}

// What blocks may share where it is not asked for, and where it is.
const size_t SHARED = 48 << 10, SHARED_ON_DEMAND = 96 << 10;
}  // namespace standin

using namespace standin;

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  ENTRY();
  CURRENT(context);
  if (CUresult error = while_capturing(context)) return error;
  return image ? load(context, image, module) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count, int* options,
                            void** values) {
  ENTRY();
  CURRENT(context);
  // What options ask of the assembler, there is none here to do.
  (void)count, (void)options, (void)values;
  if (CUresult error = while_capturing(context)) return error;
  return image ? load(context, image, module) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuModuleUnload(CUmodule handle) {
  ENTRY();
  CURRENT(context);
  auto module = find(context->modules, handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  // Launches that are queued keep what they need.
  context->modules.erase(handle);
  auto& functions = context->functions;
  for (auto f = functions.begin(); f != functions.end();)
    f = f->second->module == module ? functions.erase(f) : std::next(f);
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* handle, CUmodule module_handle, const char* name) {
  ENTRY();
  CURRENT(context);
  auto module = find(context->modules, module_handle);
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  auto kernel = (const Kernel*)dlsym(module->library, "standin_kernels");
  for (; kernel && kernel->name; kernel++) {
    if (strcmp(kernel->name, name)) continue;
    auto function = std::make_shared<Function>(Function{module, kernel, module->shared[name], 0});
    *handle = CUfunction(own(context->functions, function));
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

CUresult cuFuncGetAttribute(int* value, int attribute, CUfunction handle) {
  ENTRY();
  CURRENT(context);
  auto function = function_of(context, handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  unsigned most = function->kernel->most_threads;
  switch (attribute) {
    case CU_FUNC_MAX_THREADS: *value = most ? int(most) : 1024; return CUDA_SUCCESS;
    case CU_FUNC_SHARED_SIZE: *value = int(function->shared); return CUDA_SUCCESS;
    case CU_FUNC_NUM_REGS: *value = 32; return CUDA_SUCCESS;
    case CU_FUNC_MAX_DYNAMIC_SHARED: *value = function->most_dynamic; return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuFuncSetAttribute(CUfunction handle, int attribute, int value) {
  ENTRY();
  CURRENT(context);
  auto function = function_of(context, handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (attribute != CU_FUNC_MAX_DYNAMIC_SHARED) return CUDA_ERROR_NOT_SUPPORTED;
  if (value < 0 || size_t(value) + function->shared > SHARED_ON_DEMAND) return CUDA_ERROR_INVALID_VALUE;
  function->most_dynamic = value;
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                        CUstream stream_handle, void** parameters, void** extra) {
  ENTRY();
  CURRENT(context);
  StreamPtr stream;
  if (CUresult error = stream_of(context, stream_handle, stream)) return error;
  auto function = function_of(context, handle);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (extra) return CUDA_ERROR_NOT_SUPPORTED;
  const Kernel& kernel = *function->kernel;
  bool is_grid = grid_x && grid_y && grid_z && grid_x <= 2147483647u && grid_y <= 65535 && grid_z <= 65535;
  bool is_block = block_x && block_y && block_z && block_x <= 1024 && block_y <= 1024 && block_z <= 64 &&
                  block_x * block_y * block_z <= 1024;
  size_t most = function->most_dynamic ? SHARED_ON_DEMAND : SHARED;
  if (!is_grid || !is_block || function->shared + shared > most) return CUDA_ERROR_INVALID_VALUE;
  if (shared && int(shared) > function->most_dynamic && function->shared + shared > SHARED)
    return CUDA_ERROR_INVALID_VALUE;
  unsigned block = block_x * block_y * block_z;
  if (kernel.most_threads && block > kernel.most_threads) {
    note(std::string(kernel.name) + " is for blocks of " + std::to_string(kernel.most_threads) +
         " threads, not " + std::to_string(block));
    return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  }
  if (kernel.count && !parameters) return CUDA_ERROR_INVALID_VALUE;
  std::vector<std::vector<char>> values;
  for (unsigned i = 0; i < kernel.count; i++) {
    if (!parameters[i]) return CUDA_ERROR_INVALID_VALUE;
    auto from = (const char*)parameters[i];
    values.emplace_back(from, from + kernel.parameters[i].bytes);
  }
  trace("submit", __func__, kernel.name);
  dim3 groups = {grid_x, grid_y, grid_z}, threads = {block_x, block_y, block_z};
  return submit(stream, [=] { return run(*function, values, groups, threads); });
}

CUresult standin_queue(CUstream handle, const char* name, CUresult (*work)(void*), void (*drop)(void*),
                       void* data) {
  std::shared_ptr<void> kept(data, drop);
  CURRENT(context);
  StreamPtr stream;
  if (CUresult error = stream_of(context, handle, stream)) return error;
  trace("submit", name);
  return submit(stream, [=]() -> CUresult { return work(kept.get()); });
}

int standin_may_touch(const void* at, size_t bytes) {
  Lock lock(world());
  return may_touch(running_context(), uintptr_t(at), bytes);
}
