// The stand-in for NVRTC: the C++ compiler makes a shared object of a text of CUDA C.
//
// It runs $CXX, or c++, and reads language.h and entry.h in the folder of this library.
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include "image.h"
#include "orders.h"

extern char** environ;

using namespace standin;

namespace {
enum Result {
  SUCCESS = 0,
  PROGRAM_CREATION_FAILURE = 2,
  INVALID_INPUT = 3,
  INVALID_PROGRAM = 4,
  INVALID_OPTION = 5,
  COMPILATION = 6,
  INTERNAL_ERROR = 11,
};

struct Program {
  std::string text, name, log;
  Image image;
  bool is_compiled = false;
};

std::mutex lock;
std::set<Program*> programs;

bool is_known(Program* program) {
  std::lock_guard<std::mutex> hold(lock);
  return programs.count(program) > 0;
}

std::string here() {
  Dl_info info;
  if (!dladdr((void*)is_known, &info) || !info.dli_fname) return ".";
  std::string path = info.dli_fname;
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

bool is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

// The table of the kernels that can be found by name: those that are `extern "C"`.
std::string table(const std::string& text) {
  std::string rows;
  size_t first = text.find("__global__");
  bool all_wait = first != std::string::npos && text.substr(0, first).find("__syncthreads") != std::string::npos;
  for (size_t at = first; at != std::string::npos;) {
    size_t next = text.find("__global__", at + 1);
    std::string before = text.substr(0, at);
    std::string kernel = text.substr(at, next == std::string::npos ? next : next - at);
    size_t end = before.find_last_not_of(" \t\n\r");
    bool is_c = end != std::string::npos && end >= 2 && before.compare(end - 2, 3, "\"C\"") == 0;
    std::string bound = "0";
    size_t open = kernel.find("__launch_bounds__");
    size_t after = 0;
    if (open != std::string::npos) {
      size_t from = kernel.find('(', open) + 1;
      after = kernel.find(')', from);
      bound = kernel.substr(from, kernel.find_first_of(",)", from) - from);
    }
    size_t to = kernel.find('(', after);
    if (is_c && to != std::string::npos) {
      while (to > 0 && !is_word(kernel[to - 1])) to--;
      size_t from = to;
      while (from > 0 && is_word(kernel[from - 1])) from--;
      std::string name = kernel.substr(from, to - from);
      bool waits = all_wait || kernel.find("__syncthreads") != std::string::npos;
      rows += "  standin::kernel(\"" + name + "\", " + name + ", " + (waits ? "true" : "false") + ", " + bound + "),\n";
    }
    at = next;
  }
  return "\nextern \"C\" { standin::Kernel standin_kernels[] = {\n" + rows + "  {}\n}; }\n";
}

// The architecture of the options, or the option that is none.
Result architecture(const std::vector<std::string>& options, std::string& target, std::string& log) {
  target = "compute_52";
  for (size_t i = 0; i < options.size(); i++) {
    std::string option = options[i];
    for (const char* name : {"--gpu-architecture", "-arch"}) {
      std::string with = std::string(name) + "=";
      bool is_apart = option == name && i + 1 < options.size();
      if (!is_apart && option.compare(0, with.size(), with)) continue;
      target = is_apart ? options[++i] : option.substr(with.size());
      option = "";
      size_t digits = target.find_first_of("0123456789");
      std::string kind = target.substr(0, digits);
      bool is_sane = (kind == "sm_" || kind == "compute_") && atoi(target.c_str() + digits) >= 50;
      if (is_sane) break;
      log = "nvrtc: error: invalid value for --gpu-architecture (-arch)\n";
      return INVALID_OPTION;
    }
    bool is_known = option.empty();
    for (const char* start : {"--fmad=", "-fmad=", "--ftz=", "--prec-sqrt=", "--prec-div=", "--use_fast_math",
                              "--maxrregcount=", "--std=", "-std=", "--restrict", "--device-debug", "-G",
                              "--generate-line-info", "-lineinfo", "-D", "--define-macro=", "-I",
                              "--include-path=", "-default-device", "--dopt=", "--extra-device-vectorization"})
      is_known = is_known || option.compare(0, strlen(start), start) == 0;
    if (is_known) continue;
    log = "nvrtc: error: unrecognized option " + option + " found\n";
    return INVALID_OPTION;
  }
  return SUCCESS;
}

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream all;
  all << file.rdbuf();
  return all.str();
}

// Runs a program; what it says goes into the file.
int run(const std::vector<std::string>& words, const std::string& said) {
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back((char*)word.c_str());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 1, said.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&files, 1, 2);
  pid_t child;
  int failed = posix_spawnp(&child, arguments[0], &files, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (failed) return -1;
  int status;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

Result compile(Program& program, const std::vector<std::string>& options) {
  program.log = "";
  program.is_compiled = false;
  Result sane = architecture(options, program.image.target, program.log);
  if (sane != SUCCESS) return sane;
  const char* temporary = getenv("TMPDIR");
  std::string folder = std::string(temporary && *temporary ? temporary : "/tmp") + "/nvrtc-XXXXXX";
  if (!mkdtemp(&folder[0])) return INTERNAL_ERROR;
  std::string source = folder + "/kernels.cpp", object = folder + "/kernels.so", said = folder + "/said";
  {
    std::ofstream file(source, std::ios::binary);
    file << "#include \"language.h\"\n#line 1 \"" << program.name << "\"\n" << program.text
         << "\n#include \"entry.h\"\n" << table(program.text);
  }
  const char* cxx = getenv("CXX");
  std::vector<std::string> words = {cxx && *cxx ? cxx : "c++", "-std=c++17", "-O1", "-w", "-fwrapv",
                                    "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-fno-exceptions",
                                    "-fno-rtti", "-fno-gnu-unique", "-nostdinc", "-nostdlib", "-shared", "-I", here()};
  for (auto& option : options)
    if (!option.compare(0, 2, "-D")) words.push_back(option);
  for (const std::string& word : {source, std::string("-o"), object, here() + "/libcuda.so.1", std::string("-lm")})
    words.push_back(word);
  int status = run(words, said);
  program.log = content(said);
  program.image.object = content(object);
  for (auto& file : {source, object, said}) unlink(file.c_str());
  rmdir(folder.c_str());
  if (status < 0) return INTERNAL_ERROR;
  if (status) return COMPILATION;
  program.is_compiled = true;
  return SUCCESS;
}
}  // namespace

#define NVRTC extern "C" __attribute__((visibility("default"))) int
#define ENTRY() \
  if (told_to_fail(__func__)) return INTERNAL_ERROR

NVRTC nvrtcVersion(int* major, int* minor) {
  ENTRY();
  if (!major || !minor) return INVALID_INPUT;
  *major = 12;
  *minor = 2;
  return SUCCESS;
}

extern "C" __attribute__((visibility("default"))) const char* nvrtcGetErrorString(int result) {
  switch (result) {
    case SUCCESS: return "NVRTC_SUCCESS";
    case PROGRAM_CREATION_FAILURE: return "NVRTC_ERROR_PROGRAM_CREATION_FAILURE";
    case INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
    case INVALID_PROGRAM: return "NVRTC_ERROR_INVALID_PROGRAM";
    case INVALID_OPTION: return "NVRTC_ERROR_INVALID_OPTION";
    case COMPILATION: return "NVRTC_ERROR_COMPILATION";
    case INTERNAL_ERROR: return "NVRTC_ERROR_INTERNAL_ERROR";
  }
  return "NVRTC_ERROR unknown";
}

NVRTC nvrtcCreateProgram(Program** program, const char* text, const char* name, int headers,
                         const char* const* contents, const char* const* names) {
  ENTRY();
  (void)contents, (void)names;
  if (!program || !text) return INVALID_INPUT;
  // Headers are not stood in for.
  if (headers) return PROGRAM_CREATION_FAILURE;
  *program = new Program;
  (*program)->text = text;
  (*program)->name = name && *name ? name : "default_program";
  std::lock_guard<std::mutex> hold(lock);
  programs.insert(*program);
  return SUCCESS;
}

NVRTC nvrtcDestroyProgram(Program** program) {
  ENTRY();
  if (!program || !is_known(*program)) return INVALID_PROGRAM;
  {
    std::lock_guard<std::mutex> hold(lock);
    programs.erase(*program);
  }
  delete *program;
  *program = nullptr;
  return SUCCESS;
}

NVRTC nvrtcCompileProgram(Program* program, int count, const char* const* options) {
  ENTRY();
  if (!is_known(program)) return INVALID_PROGRAM;
  return compile(*program, std::vector<std::string>(options, options + count));
}

static int give(const std::string& bytes, bool with_end, size_t* size, char* to) {
  size_t all = bytes.size() + (with_end ? 1 : 0);
  if (size) *size = all;
  if (to) memcpy(to, bytes.c_str(), all);
  return size || to ? SUCCESS : INVALID_INPUT;
}

static int give_ptx(Program* program, size_t* size, char* to) {
  if (!is_known(program) || !program->is_compiled) return INVALID_PROGRAM;
  return give(ptx(program->image), true, size, to);
}

static int give_cubin(Program* program, size_t* size, char* to) {
  if (!is_known(program) || !program->is_compiled) return INVALID_PROGRAM;
  // For an architecture that is none of a device nothing is assembled.
  bool is_real = program->image.target.compare(0, 3, "sm_") == 0;
  return give(is_real ? cubin(program->image) : "", false, size, to);
}

NVRTC nvrtcGetProgramLogSize(Program* program, size_t* size) {
  ENTRY();
  return is_known(program) ? give(program->log, true, size, nullptr) : int(INVALID_PROGRAM);
}
NVRTC nvrtcGetProgramLog(Program* program, char* to) {
  ENTRY();
  return is_known(program) ? give(program->log, true, nullptr, to) : int(INVALID_PROGRAM);
}
NVRTC nvrtcGetPTXSize(Program* program, size_t* size) {
  ENTRY();
  return give_ptx(program, size, nullptr);
}
NVRTC nvrtcGetPTX(Program* program, char* to) {
  ENTRY();
  return give_ptx(program, nullptr, to);
}
NVRTC nvrtcGetCUBINSize(Program* program, size_t* size) {
  ENTRY();
  return give_cubin(program, size, nullptr);
}
NVRTC nvrtcGetCUBIN(Program* program, char* to) {
  ENTRY();
  return give_cubin(program, nullptr, to);
}
