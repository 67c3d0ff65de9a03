// What all kernels share: where a slot lies, 16-byte loads, conversions.
//
// This is CUDA C that NVRTC compiles and that plain g++ runs too (tests/kernels/cuda_emulation): static shared memory
// and full-mask warp operations only, PTX behind __CUDA_ARCH__. NVRTC knows no INFINITY, no <cmath>, no <cstdint>.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef long long i64;

constexpr int WARP = 32;
constexpr unsigned FULL_MASK = 0xffffffffu;
// Below every score, and finite: (-inf) - (-inf) would be NaN where a thread has seen no token.
constexpr float NOTHING = -1e30f;

__host__ __device__ constexpr int power_of_two_at_least(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

__device__ inline int smaller(int a, int b) { return a < b ? a : b; }
__device__ inline int larger(int a, int b) { return a > b ? a : b; }

// position / block_size, exact for positions below 2^31: a division by a number unknown to the compiler is slow. The
// host finds the multiplier (kernels/cupy.py, _reciprocal).
struct Blocks {
  int size;
  unsigned multiplier;
  int shift;
  __device__ inline int of(int position) const {
    return static_cast<int>((static_cast<unsigned long long>(position) * multiplier) >> shift);
  }
  __device__ inline int offset(int position) const { return position - of(position) * size; }
};

// First element of a slot's key or value in a cache [N, B, KVH, D]; in 64 bits, a pool may exceed 2^31 elements.
__device__ inline i64 slot_offset(int block, int offset, int block_size, int kv_heads, int kv_head, int head_dim) {
  return ((static_cast<i64>(block) * block_size + offset) * kv_heads + kv_head) * head_dim;
}

// 2^x. The hardware's approximation: 2 ulp, 0 for NOTHING.
__device__ inline float power_of_two(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

template <typename T>
__device__ inline T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// How a dtype lies in 16 bytes, the widest load there is: N values.
template <typename T>
struct Chunk;

template <>
struct Chunk<float> {
  static constexpr int N = 4;
  static __device__ inline void unpack(const uint4& raw, float (&x)[N]) {
    x[0] = __uint_as_float(raw.x), x[1] = __uint_as_float(raw.y);
    x[2] = __uint_as_float(raw.z), x[3] = __uint_as_float(raw.w);
  }
};

template <>
struct Chunk<__half> {
  static constexpr int N = 8;
  static __device__ inline void unpack(const uint4& raw, float (&x)[N]) {
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
      x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
    }
  }
};

template <>
struct Chunk<__nv_bfloat16> {
  static constexpr int N = 8;
  static __device__ inline void unpack(const uint4& raw, float (&x)[N]) {
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // bf16 is the upper half of an fp32
      x[2 * i] = __uint_as_float(words[i] << 16), x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
};

// 16 bytes that no one writes while the kernel runs (read-only path).
template <typename T>
__device__ inline uint4 load_chunk(const T* from) {
  return __ldg(reinterpret_cast<const uint4*>(from));
}
