// Copies into, within and out of the cache. They know no dtype: Unit is what a thread moves at once, uint4 (16 bytes)
// wherever sizes allow.
#include "paged.cuh"

constexpr int COPY_THREADS = 256;

// The new tokens' keys and values into their slots. One thread a unit of key and value; any grid.
template <typename Unit>
__global__ void __launch_bounds__(COPY_THREADS) write_kv(
    const Unit* key,  // [T, row_units], rows key_stride units apart
    i64 key_stride,
    const Unit* value,
    i64 value_stride,
    Unit* k_cache,  // [N * B, row_units]
    Unit* v_cache,
    const i64* slot_mapping,  // [T]; -1 writes nothing
    i64 tokens,
    int row_units) {
  const i64 step = static_cast<i64>(gridDim.x) * COPY_THREADS;
  for (i64 i = static_cast<i64>(blockIdx.x) * COPY_THREADS + threadIdx.x; i < tokens * row_units; i += step) {
    const i64 token = i / row_units;
    const i64 unit = i - token * row_units;
    const i64 slot = slot_mapping[token];
    if (slot < 0) continue;
    k_cache[slot * row_units + unit] = key[token * key_stride + unit];
    v_cache[slot * row_units + unit] = value[token * value_stride + unit];
  }
}

// Whole blocks of all layers in one launch: grid (pairs, tensors), any number of threads. Sources and destinations are
// tables of addresses; either side may be page-locked host memory.
template <typename Unit>
__global__ void __launch_bounds__(COPY_THREADS) copy_blocks(
    const Unit* const* sources,  // [tensors]
    Unit* const* destinations,  // [tensors]
    const i64* pairs,  // [P, 2]: block of the source, block of the destination
    i64 block_units) {
  const Unit* from = sources[blockIdx.y] + pairs[2 * static_cast<i64>(blockIdx.x)] * block_units;
  Unit* to = destinations[blockIdx.y] + pairs[2 * static_cast<i64>(blockIdx.x) + 1] * block_units;
  for (i64 i = threadIdx.x; i < block_units; i += COPY_THREADS) to[i] = from[i];
}
