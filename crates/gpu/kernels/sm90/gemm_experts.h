// gemm by experts: expert_linear, expert_glu and expert_down (see experts.h: the same meaning) for two rows and more. A pair is a
// row and one of the slots of its experts. group_rows orders pairs by their expert; activations.h makes rows of them in that order;
// the gemm of gemm.h makes tiles of rows of one expert each, and writes every result to the place of its pair; expert_sum of
// experts.h adds up the pairs of a row.
//
// Shapes    ids, weights (rows, slots), f32; x (pairs, k), f16 or bf16, in the order of experts; weights of an expert (n, k), experts
//           one after another at equal distances; y (pairs, n), f32, in the order of pairs.
// Tiles     up to TOKENS rows of one expert by 128 features (64 of each, in a GLU). The list of tiles is made on the device, so that
//           the recorded launches stay as they are, whatever is chosen.
// Copies    rows come 32 at a time, and only as many as are live in a tile; where TOKENS is 128, two groups of a cluster share them.
// Bytes     W of each chosen expert once for TOKENS of its rows, x once for 128 features from the second cache, or for 256.
// Accuracy  as gemm.h.
// Order     a result follows from its row and its expert alone, whatever is beside it.
struct GroupRowsParams {
  Ptr<const f32> ids;
  Ptr<const i32> rows;
  Ptr<i32> pairs;       // in the order of experts: which pair, row · slots + slot
  Ptr<i32> sources;     // likewise: which row
  Ptr<u32x4> tiles;     // expert, first of its rows in the order of experts, their end
  Ptr<i32> num_tiles;
  i32 ids_stride, slots;
  i32 experts, tokens;  // tokens: rows of a tile
};
// What the gemm of gemm.h asks, answered for the experts of rows.
struct GemmExperts {
  Ptr<const u32x4> tiles;
  Ptr<const i32> num_tiles;
  Ptr<const i32> pairs;
  Ptr<const f32> matrix_scales;
  Ptr<const f32> up_matrix_scales;
  i32 stride, bias_stride;  // from expert to expert: of scales in 16 bytes, of biases in numbers
  i32 padding[4];
#if __CUDA_ARCH_FEAT_SM90_ALL
  enum { BY_EXPERTS = 1, IN_PARTS = 0 };
  template <class W, i32 TOKENS> PART i32 height(CONST GemmParams& p, i32 clusters, u32 size, i32 lane) const { return TOKENS; }
  PART i32 token_tiles(CONST GemmParams& p, i32 height) const { return num_tiles[0]; }
  // Tiles of the same rows follow each other: weights are read by all multiprocessors, rows from the second cache.
  template <bool SHARED, bool GLU>
  PART GemmTile tile(CONST GemmParams& p, i32 index, i32 token_tiles, i32 height, u32 rank, u32 size) const {
    const i32 item = index / p.tiles;
    const u32x4 of = tiles[item];
    GemmTile tile;
    tile.segment = 0;
    tile.expert = (i32)of.x;
    tile.token = (i32)of.y;
    tile.rows = (i32)of.z;
    tile.live = mini(height, tile.rows - tile.token);
    const i32 feature = index - item * p.tiles;
    tile.row = (SHARED ? feature * 2 + (i32)rank : feature) * (GLU ? GEMM_FEATURES / 2 : GEMM_FEATURES);
    tile.begin = 0;
    tile.end = (p.k + GEMM_K - 1) / GEMM_K;
    return tile;
  }
  template <bool GLU>
  PART void copy_weight(CONST GemmSegment& s, const GemmTile& tile, u32 to, u32 barrier, i32 k) const {
    if (GLU) copy_tile_5d(to, s.weight, barrier, k, 0, 0, tile.row / 8, tile.expert);
    else copy_tile_3d(to, s.weight, barrier, k, tile.row, tile.expert);
  }
  PART i64 scales_at(const GemmTile& tile) const { return i64(tile.expert) * stride * 8; }
  PART i64 bias_at(const GemmTile& tile) const { return i64(tile.expert) * bias_stride; }
  PART f32 matrix_scale(CONST GemmSegment& s, const GemmTile& tile) const { return matrix_scales[tile.expert]; }
  PART f32 up_matrix_scale(CONST GemmSegment& s, const GemmTile& tile) const {
    return given(up_matrix_scales) ? up_matrix_scales[tile.expert] : 1.f;
  }
  PART i32 y_row(i32 token) const { return pairs[token]; }
#endif
};
struct ExpertGemmParams {
  GemmParams gemm;
  GemmExperts experts;
};

#if __CUDA_ARCH_FEAT_SM90_ALL

enum { GROUP_ROWS_SIMDS = 8, GROUP_ROWS_EXPERTS_MAX = 512 };
struct GroupRowsMemory {
  i32 count[GROUP_ROWS_EXPERTS_MAX];  // rows of each expert
  i32 found[GROUP_ROWS_SIMDS], tiles[GROUP_ROWS_SIMDS];
};

// The expert of a pair.
FN i32 group_rows_expert(CONST GroupRowsParams& p, i32 pair) {
  const i32 row = pair / p.slots;
  return expert_of(p.ids[i64(row) * p.ids_stride + (pair - row * p.slots)], p.experts);
}

// A group for each expert, which counts those of all, finds the pairs of its own in their order, and lists its tiles.
FN void group_rows(CONST GroupRowsParams& p, GROUP GroupRowsMemory& g, Lane t) {
  enum { THREADS = GROUP_ROWS_SIMDS * SIMD };
  const i32 own = t.gx, thread = t.simd * SIMD + t.lane, num_pairs = p.rows[0] * p.slots;
  let_next_start();
  for (i32 e = thread; e < p.experts; e += THREADS) g.count[e] = 0;
  group_barrier();
  wait_for_previous();
  for (i32 pair = thread; pair < num_pairs; pair += THREADS) atomicAdd(&g.count[group_rows_expert(p, pair)], 1);
  group_barrier();
  // Rows and tiles of the experts before.
  i32 before = 0, tiles_before = 0;
  for (i32 e = thread; e < own; e += THREADS) {
    before += g.count[e];
    tiles_before += (g.count[e] + p.tokens - 1) / p.tokens;
  }
  before = __reduce_add_sync(~0u, before);
  tiles_before = __reduce_add_sync(~0u, tiles_before);
  if (t.lane == 0) { g.found[t.simd] = before; g.tiles[t.simd] = tiles_before; }
  group_barrier();
  before = tiles_before = 0;
  UNROLL for (i32 s = 0; s < GROUP_ROWS_SIMDS; s++) { before += g.found[s]; tiles_before += g.tiles[s]; }
  const i32 count = g.count[own], tiles = (count + p.tokens - 1) / p.tokens, end = before + count;
  for (i32 i = thread; i < tiles; i += THREADS) p.tiles[tiles_before + i] = make_uint4(own, before + i * p.tokens, end, 0);
  if (own == p.experts - 1 && thread == 0) p.num_tiles[0] = tiles_before + tiles;
  ROLL for (i32 base = 0, at = before; at < end; base += THREADS) {  // the whole group
    const i32 pair = base + thread;
    const bool is_own = pair < num_pairs && group_rows_expert(p, pair) == own;
    const u32 lanes = __ballot_sync(~0u, is_own);
    group_barrier();  // what was found before has been read
    if (t.lane == 0) g.found[t.simd] = __popc(lanes);
    group_barrier();
    i32 place = at + __popc(lanes & ((1u << t.lane) - 1u));
    UNROLL for (i32 s = 0; s < GROUP_ROWS_SIMDS; s++) {
      if (s < t.simd) place += g.found[s];
      at += g.found[s];
    }
    if (is_own) { p.pairs[place] = pair; p.sources[place] = pair / p.slots; }
  }
}
KERNEL(group_rows, GroupRowsParams, GroupRowsMemory, 256, group_rows)

#define EXPERT_GEMM_KERNEL(NAME, W, TOKENS, GLU)                                                                            \
  extern "C" __global__ void __launch_bounds__(384, 1) NAME(const __grid_constant__ ExpertGemmParams p) {                   \
    extern __shared__ __align__(1024) unsigned char group_memory[];                                                         \
    const Lane t = {(i32)blockIdx.x, (i32)blockIdx.y, (i32)blockIdx.z, simd_of_thread(), (i32)threadIdx.x & 31, 12};   \
    gemm_of<W, TOKENS, GLU>(p.gemm, p.experts, *reinterpret_cast<GemmGroup*>(group_memory), t);                            \
  }
#define EXPERT_GEMM(FORMAT, W)                                       \
  EXPERT_GEMM_KERNEL(expert_gemm_##FORMAT##_t16, W, 16, false)       \
  EXPERT_GEMM_KERNEL(expert_gemm_glu_##FORMAT##_t16, W, 16, true)    \
  EXPERT_GEMM_KERNEL(expert_gemm_##FORMAT##_t32, W, 32, false)       \
  EXPERT_GEMM_KERNEL(expert_gemm_glu_##FORMAT##_t32, W, 32, true)    \
  EXPERT_GEMM_KERNEL(expert_gemm_##FORMAT##_t64, W, 64, false)       \
  EXPERT_GEMM_KERNEL(expert_gemm_glu_##FORMAT##_t64, W, 64, true)    \
  EXPERT_GEMM_KERNEL(expert_gemm_##FORMAT##_t128, W, 128, false)     \
  EXPERT_GEMM_KERNEL(expert_gemm_glu_##FORMAT##_t128, W, 128, true)
EXPERT_GEMM(f16, GemmF16)
EXPERT_GEMM(bf16, GemmBF16)
EXPERT_GEMM(q8_0, GemmQ8_0)
EXPERT_GEMM(fp8, GemmFP8)
EXPERT_GEMM(q4_0, GemmQ4_0)
EXPERT_GEMM(q4_g128, GemmQ4G128)
EXPERT_GEMM(q4_z128, GemmQ4Z128)
EXPERT_GEMM(mxfp4, GemmMXFP4)
EXPERT_GEMM(nvfp4, GemmNVFP4)
EXPERT_GEMM(q4_k, GemmQ4_K)
EXPERT_GEMM(q6_k, GemmQ6_K)

#endif
