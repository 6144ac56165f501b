// The form in which compiled kernels go from the stand-in for NVRTC to that for the driver: the bytes
// of a shared object, as text that ends with a NUL where PTX is asked for, else as a cubin is, binary.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

namespace standin {
struct Image {
  // `sm_90` or `compute_90`.
  std::string target;
  std::string object;
};

inline uint64_t digest(const std::string& bytes) {
  uint64_t h = 14695981039346656037u;
  for (unsigned char b : bytes) h = (h ^ b) * 1099511628211u;
  return h;
}

const char CUBIN_START[] = "\177STANDIN cubin\n\0";
const char PTX_START[] = "//\n// Made by the stand-in for NVRTC\n//\n.version 8.2\n.target ";

inline std::string cubin(const Image& image) {
  char head[64] = {};
  snprintf(head, sizeof head, "%s %zu %llx", image.target.c_str(), image.object.size(),
           (unsigned long long)digest(image.object));
  return std::string(CUBIN_START, sizeof CUBIN_START) + std::string(head, sizeof head) + image.object;
}

inline std::string ptx(const Image& image) {
  char head[96];
  std::string target = "sm_" + image.target.substr(image.target.find('_') + 1);
  snprintf(head, sizeof head, "%s\n.address_size 64\n// object %zu %llx ", target.c_str(),
           image.object.size(), (unsigned long long)digest(image.object));
  std::string text = PTX_START + std::string(head);
  for (unsigned char b : image.object) {
    text += "0123456789abcdef"[b >> 4];
    text += "0123456789abcdef"[b & 15];
  }
  return text + "\n";
}

enum class Read { cubin, ptx, broken_ptx, nothing };

// What an image is that comes without a length, as cuModuleLoadData has it.
inline Read read(const char* from, Image& image) {
  char target[32] = {};
  size_t bytes = 0;
  unsigned long long hash = 0;
  const size_t most = size_t(64) << 20;
  if (!strncmp(from, PTX_START, sizeof PTX_START - 1)) {
    std::string text = from;
    int used = 0;
    const char* rest = text.c_str() + sizeof PTX_START - 1;
    const char* form = "%31s .address_size 64 // object %zu %llx %n";
    if (sscanf(rest, form, target, &bytes, &hash, &used) != 3 || used == 0 || bytes > most)
      return Read::broken_ptx;
    rest += used;
    if (strlen(rest) < bytes * 2) return Read::broken_ptx;
    auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
    for (size_t i = 0; i < bytes; i++)
      image.object += char(digit(rest[2 * i]) << 4 | digit(rest[2 * i + 1]));
    image.target = target;
    return digest(image.object) == hash ? Read::ptx : Read::broken_ptx;
  }
  // Byte by byte: of something else there may be less than this.
  for (size_t i = 0; i < sizeof CUBIN_START; i++)
    if (from[i] != CUBIN_START[i]) return Read::nothing;
  const char* head = from + sizeof CUBIN_START;
  if (sscanf(head, "%31s %zu %llx", target, &bytes, &hash) != 3 || bytes > most)
    return Read::nothing;
  image.target = target;
  image.object.assign(head + 64, bytes);
  return digest(image.object) == hash ? Read::cubin : Read::nothing;
}
}  // namespace standin
