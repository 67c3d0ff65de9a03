// CUDA C on a CPU, as much of it as kernels/cuda/ uses: one OS thread per CUDA thread, blocks one after another,
// __syncthreads and warp shuffles over std::barrier. Slow and exact; ThreadSanitizer sees every access.
//
// It takes kernels with static __shared__ arrays, full-mask shuffles, one-dimensional blocks. A shuffle orders memory
// here, which it does not on a GPU: kernels must not rely on it. Blocks never run at the same time.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_functions.h>

#include <barrier>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __launch_bounds__
#undef __align__
#define __global__ static
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

namespace emulation {

struct Block {
  explicit Block(unsigned threads) : all(threads) {
    for (unsigned first = 0; first < threads; first += 32) {
      warps.push_back(std::make_unique<std::barrier<>>(threads - first < 32 ? threads - first : 32));
    }
    lanes.resize(2 * 32 * warps.size());
  }
  std::barrier<> all;
  std::vector<std::unique_ptr<std::barrier<>>> warps;
  std::vector<float> lanes;  // what shuffles exchange: two sets in turn, so that one wait is enough
};

inline thread_local Block* current = nullptr;
inline thread_local unsigned turn = 0;

}  // namespace emulation

inline thread_local uint3 threadIdx{}, blockIdx{};
inline thread_local dim3 gridDim{}, blockDim{};

inline void __syncthreads() { emulation::current->all.arrive_and_wait(); }

inline float __shfl_xor_sync(unsigned, float x, int apart) {
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* lanes = emulation::current->lanes.data() + (2 * warp + emulation::turn++ % 2) * 32;
  lanes[lane] = x;
  emulation::current->warps[warp]->arrive_and_wait();
  return lanes[lane ^ apart];
}

template <typename T>
inline T __ldg(const T* from) {
  return *from;
}
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }

namespace emulation {

template <typename... P, std::size_t... I>
void call(void (*kernel)(P...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_cv_t<P>*>(arguments[I])...);
}

// As cuLaunchKernel: the arguments by address.
template <typename... P>
void launch(void (*kernel)(P...), const unsigned* grid, unsigned threads, void** arguments) {
  Block block(threads);
  std::vector<std::thread> running;
  for (unsigned t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      current = &block;
      threadIdx = {t, 0, 0};
      blockDim = dim3(threads);
      gridDim = dim3(grid[0], grid[1], grid[2]);
      for (unsigned z = 0; z < grid[2]; ++z) {
        for (unsigned y = 0; y < grid[1]; ++y) {
          for (unsigned x = 0; x < grid[0]; ++x) {
            blockIdx = {x, y, z};
            call(kernel, arguments, std::index_sequence_for<P...>());
            block.all.arrive_and_wait();  // shared memory is static: one block at a time
          }
        }
      }
    });
  }
  for (std::thread& thread : running) thread.join();
}

}  // namespace emulation
