// Attention of one query a sequence over paged keys and values, and the merge of its splits.
#include "paged.cuh"

constexpr int DECODE_WARPS = 4;

// A CTA: one sequence, one key-value head, one split of the visible tokens, all query heads of the group (8 at most), so
// that a key and a value are read once. A warp serves HEADS of them, 4 at most, or registers run out; more heads are
// shared out over PARTS warps that meet the same tokens, the second one in L1. LANES lanes hold a token, 16 bytes each;
// a warp holds TOKENS tokens at a time, UNROLL times over to have enough loads in flight. Each group of lanes runs an
// online softmax of its own over the tokens it meets (in base 2, log2(e) is in `scale`), so the loop reduces over LANES
// alone; all are joined at the end.
//
// Grid (sequences, kv_heads * TILES, splits), 128 threads. Split i takes the i-th split_tokens of what
// the window shows, the last one all that remains; a split without tokens returns and `merge` does not look at it.
// One split writes `out` [S, H, D]. More write, unnormalised, partial [S, H, splits, D] and stats [S, H, splits]:
// maximum and sum.
template <typename T, int D, int GROUP>
__global__ void __launch_bounds__(DECODE_WARPS * WARP, 4) decode(
    const T* query,  // [S, H, D], rows query_stride elements apart
    i64 query_stride,
    const T* k_cache,  // [N, B, KVH, D]
    const T* v_cache,
    const int* block_tables,  // [S, M], rows table_stride elements apart
    i64 table_stride,
    const i64* context_lens,  // [S]
    T* out,
    float* partial,
    float2* stats,
    float scale,
    int block_size,
    unsigned block_multiplier,
    int block_shift,
    int kv_heads,
    int window,
    int split_tokens) {
  constexpr int VEC = Chunk<T>::N;
  constexpr int CHUNKS = D / VEC;
  // A power of two, for the shuffles; with D 80 or 96 some lanes idle, which costs issue slots but no bandwidth.
  constexpr int LANES = power_of_two_at_least(CHUNKS);
  constexpr int TOKENS = WARP / LANES;
  constexpr int PARTS = GROUP > 4 ? 2 : 1;
  constexpr int HEADS = GROUP > 8 ? 4 : (GROUP + PARTS - 1) / PARTS;
  constexpr int TILE = PARTS * HEADS;
  constexpr int TILES = (GROUP + TILE - 1) / TILE;
  constexpr int STREAMS = DECODE_WARPS / PARTS;  // of tokens
  constexpr int UNROLL = HEADS * VEC < 32 ? 4 : 2;  // registers, again
  constexpr int STEP = TOKENS * UNROLL;
  static_assert(D % VEC == 0 && LANES <= WARP, "a warp must hold a token");

  __shared__ float shared_sum_v[STREAMS][TILE][D];
  __shared__ float shared_max[STREAMS][TILE];
  __shared__ float shared_sum[STREAMS][TILE];

  const int sequence = blockIdx.x;
  const int kv_head = blockIdx.y / TILES;
  const int first_of_tile = (blockIdx.y % TILES) * TILE;
  const int split = blockIdx.z;
  const int splits = gridDim.z;
  const int stream = threadIdx.x / WARP / PARTS;
  const int part = threadIdx.x / WARP % PARTS;
  const int lane = threadIdx.x % WARP;
  const int chunk = lane % LANES;
  const int token = lane / LANES;
  const bool has_chunk = chunk < CHUNKS;

  const int context = static_cast<int>(context_lens[sequence]);
  const int begin = larger(context - window, 0) + split * split_tokens;
  const int end = split + 1 == splits ? context : smaller(begin + split_tokens, context);
  if (begin >= end) return;

  const int first_of_warp = first_of_tile + part * HEADS;
  float q[HEADS][VEC];
#pragma unroll
  for (int h = 0; h < HEADS; ++h) {
    const bool live = has_chunk && first_of_warp + h < GROUP;
    const int head = kv_head * GROUP + first_of_warp + h;
    uint4 raw = make_uint4(0, 0, 0, 0);
    if (live) raw = load_chunk(query + sequence * query_stride + static_cast<i64>(head) * D + chunk * VEC);
    Chunk<T>::unpack(raw, q[h]);
#pragma unroll
    for (int i = 0; i < VEC; ++i) q[h][i] *= scale;
  }

  const Blocks paging{block_size, block_multiplier, block_shift};
  const int* table = block_tables + sequence * table_stride;
  float sum_v[HEADS][VEC], max_score[HEADS], sum[HEADS];
#pragma unroll
  for (int h = 0; h < HEADS; ++h) {
    max_score[h] = NOTHING, sum[h] = 0.f;
#pragma unroll
    for (int i = 0; i < VEC; ++i) sum_v[h][i] = 0.f;
  }

  // Block ids are fetched a step ahead: the loads of keys and values wait for them.
  int blocks[UNROLL];
  int tile = begin + stream * STEP;
#pragma unroll
  for (int u = 0; u < UNROLL; ++u) {
    const int position = tile + u * TOKENS + token;
    blocks[u] = position < end ? table[paging.of(position)] : 0;
  }
  for (; tile < end; tile += STREAMS * STEP) {
    uint4 k_raw[UNROLL], v_raw[UNROLL];
    bool seen[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const int position = tile + u * TOKENS + token;
      seen[u] = position < end;
      // A slot beyond the end is not read: what it holds may be NaN, and 0 * NaN is NaN.
      k_raw[u] = v_raw[u] = make_uint4(0, 0, 0, 0);
      if (seen[u] && has_chunk) {
        const i64 at = slot_offset(blocks[u], paging.offset(position), block_size, kv_heads, kv_head, D) + chunk * VEC;
        k_raw[u] = load_chunk(k_cache + at);
        v_raw[u] = load_chunk(v_cache + at);
      }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const int position = tile + STREAMS * STEP + u * TOKENS + token;
      blocks[u] = position < end ? table[paging.of(position)] : 0;
    }

    float weight[HEADS][UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      float k[VEC];
      Chunk<T>::unpack(k_raw[u], k);
#pragma unroll
      for (int h = 0; h < HEADS; ++h) {
        float score = 0.f;
#pragma unroll
        for (int i = 0; i < VEC; ++i) score += q[h][i] * k[i];
#pragma unroll
        for (int apart = LANES / 2; apart > 0; apart /= 2) score += __shfl_xor_sync(FULL_MASK, score, apart);
        weight[h][u] = score;
      }
    }
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
      float highest = max_score[h];
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        if (seen[u]) highest = fmaxf(highest, weight[h][u]);
      }
      const float fade = power_of_two(max_score[h] - highest);
      max_score[h] = highest;
      sum[h] *= fade;
#pragma unroll
      for (int i = 0; i < VEC; ++i) sum_v[h][i] *= fade;
#pragma unroll
      for (int u = 0; u < UNROLL; ++u) {
        weight[h][u] = seen[u] ? power_of_two(weight[h][u] - highest) : 0.f;
        sum[h] += weight[h][u];
      }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      float v[VEC];
      Chunk<T>::unpack(v_raw[u], v);
#pragma unroll
      for (int h = 0; h < HEADS; ++h) {
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum_v[h][i] += weight[h][u] * v[i];
      }
    }
  }

  // Join the groups of lanes of a warp, then the warps.
#pragma unroll
  for (int h = 0; h < HEADS; ++h) {
    float highest = max_score[h];
#pragma unroll
    for (int apart = LANES; apart < WARP; apart *= 2) {
      highest = fmaxf(highest, __shfl_xor_sync(FULL_MASK, highest, apart));
    }
    const float fade = power_of_two(max_score[h] - highest);
    sum[h] *= fade;
#pragma unroll
    for (int apart = LANES; apart < WARP; apart *= 2) sum[h] += __shfl_xor_sync(FULL_MASK, sum[h], apart);
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
      sum_v[h][i] *= fade;
#pragma unroll
      for (int apart = LANES; apart < WARP; apart *= 2) {
        sum_v[h][i] += __shfl_xor_sync(FULL_MASK, sum_v[h][i], apart);
      }
      if (token == 0 && has_chunk) shared_sum_v[stream][part * HEADS + h][chunk * VEC + i] = sum_v[h][i];
    }
    if (lane == 0) shared_max[stream][part * HEADS + h] = highest, shared_sum[stream][part * HEADS + h] = sum[h];
  }
  __syncthreads();

  const int query_heads = kv_heads * GROUP;
  for (int i = threadIdx.x; i < TILE * D; i += DECODE_WARPS * WARP) {
    const int h = i / D, d = i % D;
    if (first_of_tile + h >= GROUP) break;
    float highest = NOTHING, total = 0.f, value = 0.f;
#pragma unroll
    for (int w = 0; w < STREAMS; ++w) highest = fmaxf(highest, shared_max[w][h]);
#pragma unroll
    for (int w = 0; w < STREAMS; ++w) {
      const float fade = power_of_two(shared_max[w][h] - highest);
      total += fade * shared_sum[w][h];
      value += fade * shared_sum_v[w][h][d];
    }
    const i64 row = static_cast<i64>(sequence) * query_heads + kv_head * GROUP + first_of_tile + h;
    if (splits == 1) {
      out[row * D + d] = from_float<T>(value / total);
    } else {
      partial[(row * splits + split) * D + d] = value;
      if (d == 0) stats[row * splits + split] = make_float2(highest, total);
    }
  }
}

// Joins the splits of `decode`. Grid (S * H), D threads. Splits that had no tokens left nothing behind: not read.
template <typename T, int D>
__global__ void __launch_bounds__(D) merge(
    const float* partial,  // [S, H, splits, D]
    const float2* stats,  // [S, H, splits]
    const i64* context_lens,
    T* out,  // [S, H, D]
    int query_heads,
    int splits,
    int split_tokens,
    int window) {
  const i64 row = blockIdx.x;
  const int context = static_cast<int>(context_lens[row / query_heads]);
  const int visible = smaller(context, window);
  const int used = smaller((visible + split_tokens - 1) / split_tokens, splits);
  float highest = NOTHING, total = 0.f, value = 0.f;
  for (int i = 0; i < used; ++i) highest = fmaxf(highest, stats[row * splits + i].x);
  for (int i = 0; i < used; ++i) {
    const float2 one = stats[row * splits + i];
    const float fade = power_of_two(one.x - highest);
    total += fade * one.y;
    value += fade * partial[(row * splits + i) * D + threadIdx.x];
  }
  out[row * D + threadIdx.x] = from_float<T>(value / total);
}
