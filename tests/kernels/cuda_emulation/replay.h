// A program that repeats recorded launches, for sanitizers that must own the whole process (emulation.py's Recording).
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace emulation {

using Kernel = void (*)(const unsigned* grid, unsigned threads, void** arguments);

template <typename T>
T read(std::FILE* file) {
  T value;
  if (std::fread(&value, sizeof value, 1, file) != 1) std::abort();
  return value;
}

inline int replay(const char* path, const Kernel* kernels) {
  std::FILE* file = std::fopen(path, "rb");
  if (file == nullptr) return 2;
  std::vector<std::vector<uint4>> buffers(read<int64_t>(file));  // uint4: aligned as device memory is
  for (auto& buffer : buffers) {
    const int64_t size = read<int64_t>(file);
    buffer.resize(size / sizeof(uint4) + 1);
    if (std::fread(buffer.data(), 1, size, file) != static_cast<size_t>(size)) std::abort();
  }
  for (int64_t launches = read<int64_t>(file); launches > 0; --launches) {
    const Kernel kernel = kernels[read<int64_t>(file)];
    unsigned grid[3];
    for (unsigned& extent : grid) extent = static_cast<unsigned>(read<int64_t>(file));
    const unsigned threads = static_cast<unsigned>(read<int64_t>(file));
    std::vector<int64_t> values(read<int64_t>(file));
    std::vector<void*> arguments;
    for (int64_t& value : values) {
      const int64_t buffer = read<int64_t>(file);  // -1: the value itself, else an offset into that buffer
      value = read<int64_t>(file);
      if (buffer >= 0) value += reinterpret_cast<int64_t>(buffers[buffer].data());
      arguments.push_back(&value);
    }
    kernel(grid, threads, arguments.data());
  }
  std::fclose(file);
  return 0;
}

}  // namespace emulation
