// Causal attention of many queries a sequence over paged keys and values, cached context included.
#include "paged.cuh"

constexpr int PREFILL_THREADS = 128;
constexpr int ROWS = 32;  // of a tile: pairs (query token, head of the group)
constexpr int KEYS = 32;  // of a tile
constexpr int COLUMNS = 16;  // threads that share a row
constexpr int ROWS_EACH = ROWS / (PREFILL_THREADS / COLUMNS);
constexpr int KEYS_EACH = KEYS / COLUMNS;

// Keys or values first to first + KEYS of one head, as fp32; zeros from `end` on, where slots are not ours to read.
template <typename T, int D, int PITCH>
__device__ inline void load_tile(
    float (&tile)[KEYS][PITCH], const T* cache, const int* table, int first, int end, const Blocks& paging, int kv_heads,
    int kv_head) {
  constexpr int VEC = Chunk<T>::N;
  for (int i = threadIdx.x; i < KEYS * (D / VEC); i += PREFILL_THREADS) {
    const int key = i / (D / VEC), chunk = i % (D / VEC);
    const int position = first + key;
    uint4 raw = make_uint4(0, 0, 0, 0);
    if (position < end) {
      const int block = table[paging.of(position)];
      const i64 at = slot_offset(block, paging.offset(position), paging.size, kv_heads, kv_head, D) + chunk * VEC;
      raw = load_chunk(cache + at);
    }
    float x[VEC];
    Chunk<T>::unpack(raw, x);
#pragma unroll
    for (int j = 0; j < VEC; ++j) tile[key][chunk * VEC + j] = x[j];
  }
}

// A CTA: ROWS rows of one sequence and one key-value head. Rows are (token, head of the group) pairs, heads inner, so
// the whole group shares a tile of keys. Scores, softmax and sums in fp32 on ordinary cores: plain, not fast.
// A thread holds ROWS_EACH rows, KEYS_EACH of their scores at a time and D / COLUMNS of their output.
//
// Grid (tiles of the longest prefill, kv_heads, sequences), 128 threads. Sequence 0 is the batch's first prefill:
// block_tables, context_lens and query_start begin there; query and out begin at its first token.
template <typename T, int D, int GROUP>
__global__ void __launch_bounds__(PREFILL_THREADS, 4) prefill(
    const T* query,  // [T, H, D], rows query_stride elements apart
    i64 query_stride,
    const T* k_cache,  // [N, B, KVH, D]
    const T* v_cache,
    const int* block_tables,  // [S, M], rows table_stride elements apart
    i64 table_stride,
    const i64* context_lens,  // [S]
    const i64* query_start,  // [S + 1], counted from anywhere
    T* out,  // [T, H, D]
    float scale,
    int block_size,
    unsigned block_multiplier,
    int block_shift,
    int kv_heads,
    int window) {
  constexpr int VEC = Chunk<T>::N;
  constexpr int PITCH = D + 4;  // 16-byte rows that start 4 banks apart
  constexpr int DIMS_EACH = D / COLUMNS;
  static_assert(D % COLUMNS == 0, "a row's output is shared out evenly");
  __shared__ __align__(16) float shared_q[ROWS][PITCH];
  __shared__ __align__(16) float shared_kv[KEYS][PITCH];  // keys, then values
  __shared__ __align__(16) float shared_p[ROWS][KEYS + 4];

  const int sequence = blockIdx.z;
  const int kv_head = blockIdx.y;
  const i64 start = query_start[sequence] - query_start[0];
  const int tokens = static_cast<int>(query_start[sequence + 1] - query_start[sequence]);
  // The last rows see the most keys: they go first, so that no long tile is left to run alone.
  const int first_row = (gridDim.x - 1 - blockIdx.x) * ROWS;
  const int rows = tokens * GROUP - first_row;  // real ones of this tile, and beyond
  if (rows <= 0) return;

  const int context = static_cast<int>(context_lens[sequence]);
  const int cached = context - tokens;
  const Blocks paging{block_size, block_multiplier, block_shift};
  const int* table = block_tables + sequence * table_stride;
  const int column = threadIdx.x % COLUMNS;
  const int first_mine = threadIdx.x / COLUMNS * ROWS_EACH;
  const i64 query_heads = static_cast<i64>(kv_heads) * GROUP;

  for (int i = threadIdx.x; i < ROWS * (D / VEC); i += PREFILL_THREADS) {
    const int r = i / (D / VEC), chunk = i % (D / VEC);
    const int token = (first_row + r) / GROUP, head = kv_head * GROUP + (first_row + r) % GROUP;
    uint4 raw = make_uint4(0, 0, 0, 0);
    if (r < rows) raw = load_chunk(query + (start + token) * query_stride + head * D + chunk * VEC);
    float x[VEC];
    Chunk<T>::unpack(raw, x);
#pragma unroll
    for (int j = 0; j < VEC; ++j) shared_q[r][chunk * VEC + j] = x[j] * scale;
  }

  float sum_v[ROWS_EACH][DIMS_EACH], max_score[ROWS_EACH], sum[ROWS_EACH];
  int position[ROWS_EACH];
#pragma unroll
  for (int r = 0; r < ROWS_EACH; ++r) {
    max_score[r] = NOTHING, sum[r] = 0.f;
    position[r] = cached + (first_row + first_mine + r) / GROUP;
#pragma unroll
    for (int j = 0; j < DIMS_EACH; ++j) sum_v[r][j] = 0.f;
  }

  // From the first key that the tile's first row sees to the last one that its last row sees.
  const int first_key = larger(cached + first_row / GROUP - window + 1, 0);
  const int end = cached + (first_row + smaller(rows, ROWS) - 1) / GROUP + 1;
  for (int tile = first_key; tile < end; tile += KEYS) {
    load_tile<T, D, PITCH>(shared_kv, k_cache, table, tile, end, paging, kv_heads, kv_head);
    __syncthreads();  // keys (and once the queries) are there

    float score[ROWS_EACH][KEYS_EACH];
#pragma unroll
    for (int r = 0; r < ROWS_EACH; ++r) {
#pragma unroll
      for (int c = 0; c < KEYS_EACH; ++c) score[r][c] = 0.f;
    }
#pragma unroll 4
    for (int d = 0; d < D; d += 4) {
      float4 k[KEYS_EACH];
#pragma unroll
      for (int c = 0; c < KEYS_EACH; ++c) {
        k[c] = *reinterpret_cast<const float4*>(&shared_kv[column + c * COLUMNS][d]);
      }
#pragma unroll
      for (int r = 0; r < ROWS_EACH; ++r) {
        const float4 q = *reinterpret_cast<const float4*>(&shared_q[first_mine + r][d]);
#pragma unroll
        for (int c = 0; c < KEYS_EACH; ++c) {
          score[r][c] += q.x * k[c].x + q.y * k[c].y + q.z * k[c].z + q.w * k[c].w;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < ROWS_EACH; ++r) {
      bool seen[KEYS_EACH];
      float highest = max_score[r];
#pragma unroll
      for (int c = 0; c < KEYS_EACH; ++c) {
        const int key = tile + column + c * COLUMNS;
        seen[c] = key <= position[r] && key > position[r] - window && key < end;
        if (seen[c]) highest = fmaxf(highest, score[r][c]);
      }
#pragma unroll
      for (int apart = COLUMNS / 2; apart > 0; apart /= 2) {
        highest = fmaxf(highest, __shfl_xor_sync(FULL_MASK, highest, apart));
      }
      const float fade = power_of_two(max_score[r] - highest);
      max_score[r] = highest;
      sum[r] *= fade;  // of this thread's keys alone; the threads of a row are added up at the end
#pragma unroll
      for (int j = 0; j < DIMS_EACH; ++j) sum_v[r][j] *= fade;
#pragma unroll
      for (int c = 0; c < KEYS_EACH; ++c) {
        const float weight = seen[c] ? power_of_two(score[r][c] - highest) : 0.f;
        sum[r] += weight;
        shared_p[first_mine + r][column + c * COLUMNS] = weight;
      }
    }
    __syncthreads();  // weights are there, keys no longer needed

    load_tile<T, D, PITCH>(shared_kv, v_cache, table, tile, end, paging, kv_heads, kv_head);
    __syncthreads();  // values are there
#pragma unroll 4
    for (int key = 0; key < KEYS; ++key) {
      float weight[ROWS_EACH];
#pragma unroll
      for (int r = 0; r < ROWS_EACH; ++r) weight[r] = shared_p[first_mine + r][key];
#pragma unroll
      for (int j = 0; j < DIMS_EACH; ++j) {
        const float v = shared_kv[key][column + j * COLUMNS];
#pragma unroll
        for (int r = 0; r < ROWS_EACH; ++r) sum_v[r][j] += weight[r] * v;
      }
    }
    __syncthreads();  // values and weights no longer needed
  }

#pragma unroll
  for (int r = 0; r < ROWS_EACH; ++r) {
#pragma unroll
    for (int apart = COLUMNS / 2; apart > 0; apart /= 2) sum[r] += __shfl_xor_sync(FULL_MASK, sum[r], apart);
    const int row = first_mine + r;
    if (row < rows) {  // and no `continue`: every lane must meet the next row's shuffles
      const int token = (first_row + row) / GROUP, head = kv_head * GROUP + (first_row + row) % GROUP;
      T* to = out + ((start + token) * query_heads + head) * D;
#pragma unroll
      for (int j = 0; j < DIMS_EACH; ++j) to[column + j * COLUMNS] = from_float<T>(sum_v[r][j] / sum[r]);
    }
  }
}
