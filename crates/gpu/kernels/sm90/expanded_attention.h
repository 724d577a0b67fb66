// Latent attention in its expanded form, for many rows of a sequence: the meaning of head_linear, mla_attention and head_linear one
// after another (see mla_attention.h), with fewer products. Of every position that rows of the step see, and of every head, a key
// and a value are made; rows then attend to those as in prompt_attention.h.
//
// head_weights         the matrices of heads in f16, those of keys turned. They are made for each step, because a copy would take
//                      memory all the time.
// expand_latent        keys = (latent · W_keys, the turned numbers of the position), values = latent · W_values.
// expanded_attention   attention of tiles of rows to those.
//
// Shapes    matrices of keys (heads, dim, nope) and of values (heads, dim of values, dim), in any weight format; the cache
//           (blocks, block_len, 512 + 64), f16; keys (entries of block tables, heads, block_len, nope + 64) and values (entries, heads,
//           block_len, dim of values), f16: entry i of the tables of the step is block i here.
// Grid      head_weights: (chunks / 128, heads). expand_latent: a group a multiprocessor; each takes equal shares of (128 positions,
//           head, keys or values). expanded_attention: as prompt_attention.
// Bytes     keys and values of the positions, there and back, mostly in the second cache. Bound by arithmetic.
// Accuracy  weights of heads, keys and values are rounded to f16, and held to what f16 has; sums are f32. Then as attention_tiles.
// Order     a key or value follows from its position and its head alone.
struct HeadWeightsParams {
  Ptr<const u32x4> weight;  // of head 0
  Ptr<const f16> scales;
  Ptr<const f32> matrix_scales;  // (heads,), absent: 1
  Ptr<f16> y;               // (heads, features, dim); a launch writes the features from `first` on
  i32 n, k;                 // of a matrix, as it is stored
  i32 stride;               // from head to head, in 16 bytes
  i32 features, first, dim;
};

struct ExpandLatentParams {
  TensorMap latents;        // (numbers of a row, rows of the cache)
  TensorMap weights;        // (dim, heads · features)
  Ptr<const f16> cache;
  Ptr<const i32> blocks;    // entries of block tables
  Ptr<const i32> num_blocks;
  Ptr<f16> keys;
  Ptr<f16> values;
  i32 heads, block_len;
  i32 chunk, groups;        // positions of a copy: divides 128 and block_len; groups of the grid
  i32 padding[2];
};

struct ExpandedParams {
  PromptParams prompt;      // q: q_nope; keys and values as above
  Ptr<const f32> q_rope;
  i32 q_rope_stride;
  i32 padding[13];
};

#if __CUDA_ARCH_FEAT_SM90_ALL
enum {
  EXPAND_ROWS = 128, EXPAND_DIM = 512, EXPAND_ROPE = 64,
  EXPAND_STAGES = 3, EXPAND_THREADS = 384,
  EXPAND_TILE = EXPAND_ROWS * 128,   // bytes of 64 numbers of the positions
  EXPAND_STAGE = 256 * 128           // of 64 numbers of up to 256 features
};

// Where a feature of a head lies among the rows of its matrix: of 32, a thread of a matrix instruction's result then has eight that
// follow each other.
FN i32 expand_row(i32 feature) {
  const i32 inside = feature % 32;
  return feature - inside + inside % 8 / 2 * 8 + inside / 8 * 2 + inside % 2;
}

// Within what f16 has.
FN u32 held_f16x2(f32 a, f32 b) {
  return f32x2_to_f16x2(fminf(fmaxf(a, -65504.f), 65504.f), fminf(fmaxf(b, -65504.f), 65504.f));
}

// TURNED: numbers of a row of the matrix are features. Lanes then have rows side by side, which are written together.
template <class W, bool TURNED>
FN void head_weights(CONST HeadWeightsParams& p, GROUP NoGroup&, Lane t) {
  const i32 item = (t.gx * t.simds + t.simd) * SIMD + t.lane, head = t.gy, chunks = (p.k + W::LEN - 1) / W::LEN;
  let_next_start();
  // What is written here the kernels of the layer ahead may still read.
  wait_for_previous();
  if (item >= p.n * chunks) return;
  const i32 row = TURNED ? item % p.n : item / chunks, chunk = TURNED ? item / p.n : item % chunks;
  const i64 at = i64(head) * p.stride;
  f32 w[W::LEN];
  f32 scale = W::widen(w, W::load(offset(p.weight, at), offset(p.scales, at * 8), row, chunks, chunk));
  if (HasMatrixScale<W>::VALUE) scale *= p.matrix_scales[head];
  f16* const y = p.y + (i64(head) * p.features + p.first) * p.dim;
  if (TURNED) {
    UNROLL for (i32 i = 0; i < W::LEN; i++) {
      const i32 feature = chunk * W::LEN + i;
      if (feature < p.k) y[i64(expand_row(feature)) * p.dim + row] = to_f16(fminf(fmaxf(w[i] * scale, -65504.f), 65504.f));
    }
  } else {
    u32* const to = reinterpret_cast<u32*>(y + i64(expand_row(row)) * p.dim + chunk * W::LEN);
    UNROLL for (i32 i = 0; i < W::LEN; i += 2)
      if (chunk * W::LEN + i < p.k) to[i / 2] = held_f16x2(w[i] * scale, w[i + 1] * scale);
  }
}

struct ExpandGroup {
  unsigned long long full[EXPAND_STAGES], empty[EXPAND_STAGES], rows_full, rows_empty;
  unsigned char fill[1024 - 16 * EXPAND_STAGES - 16];
  unsigned char rows[EXPAND_DIM / 64][EXPAND_TILE];
  unsigned char stages[EXPAND_STAGES][EXPAND_STAGE];
};

// What a group makes: units from `begin` to `end`. A unit is a tile of positions, a head, and its keys or its values.
struct ExpandWork { i32 blocks, rows, begin, end; };
struct ExpandUnit { i32 tile, head; bool values; };
FN ExpandUnit expand_unit(CONST ExpandLatentParams& p, i32 index) {
  const i32 items = 2 * p.heads, item = index % items;
  return {index / items, item / 2, item % 2 == 1};
}
FN ExpandWork expand_work(CONST ExpandLatentParams& p, Lane t) {
  ExpandWork w;
  w.blocks = p.num_blocks[0];
  w.rows = w.blocks * p.block_len;
  const i64 units = i64((w.rows + EXPAND_ROWS - 1) / EXPAND_ROWS) * (2 * p.heads);
  w.begin = i32(units * t.gx / p.groups);
  w.end = i32(units * (t.gx + 1) / p.groups);
  return w;
}

// One SIMD group: lanes ask for the rows of a tile, and the first for weights.
template <i32 NOPE, i32 VALUE>
FN void expand_copy(CONST ExpandLatentParams& p, const ExpandWork& w, GROUP ExpandGroup& g, i32 lane) {
  const u32 full = group_address(g.full), empty = group_address(g.empty), rows_full = group_address(&g.rows_full);
  const u32 rows_empty = group_address(&g.rows_empty), rows = group_address(g.rows), stages = group_address(g.stages);
  i32 tile = -1, tiles = 0, slot = 0, filled = 0;
  u32 phase = 1;
  ROLL for (i32 index = w.begin; index < w.end; index++) {
    const ExpandUnit unit = expand_unit(p, index);
    if (unit.tile != tile) {
      tile = unit.tile;
      if (tiles > 0) barrier_wait(rows_empty, (tiles - 1) & 1);
      tiles++;
      if (lane == 0) barrier_expect(rows_full, EXPAND_DIM / 64 * EXPAND_TILE);
      simd_barrier();
      ROLL for (i32 chunk = lane; chunk < EXPAND_ROWS / p.chunk; chunk += SIMD) {
        // Behind the last entry nobody looks at what is made: the last once more.
        const i32 row = tile * EXPAND_ROWS + chunk * p.chunk, block = mini(row / p.block_len, w.blocks - 1);
        const i32 from = p.blocks[block] * p.block_len + row % p.block_len;
        ROLL for (i32 k = 0; k < EXPAND_DIM / 64; k++)
          copy_tile_2d(rows + k * EXPAND_TILE + chunk * p.chunk * 128, p.latents, rows_full, k * 64, from);
      }
    }
    const i32 features = unit.values ? VALUE : NOPE, first = unit.head * (NOPE + VALUE) + (unit.values ? i32(NOPE) : 0);
    ROLL for (i32 k = 0; k < EXPAND_DIM / 64; k++) {
      if (filled >= EXPAND_STAGES) barrier_wait(empty + slot * 8, phase);
      filled = mini(filled + 1, EXPAND_STAGES);
      if (lane == 0) {
        barrier_expect(full + slot * 8, features * 128);
        ROLL for (i32 f = 0; f < features; f += 64) copy_tile_2d(stages + slot * EXPAND_STAGE + f * 128, p.weights, full + slot * 8, k * 64, first + f);
      }
      simd_barrier();
      if (++slot == EXPAND_STAGES) { slot = 0; phase ^= 1; }
    }
  }
}

// Three SIMD groups: the turned numbers of positions, behind the keys of each head.
template <i32 NOPE>
FN void expand_turned(CONST ExpandLatentParams& p, const ExpandWork& w, i32 thread) {
  enum { VECTORS = EXPAND_ROPE / 8, OF_CACHE = (EXPAND_DIM + EXPAND_ROPE) / 8, OF_KEY = (NOPE + EXPAND_ROPE) / 8 };
  const u32x4* const cache = reinterpret_cast<const u32x4*>(p.cache);
  u32x4* const keys = reinterpret_cast<u32x4*>(p.keys);
  ROLL for (i32 index = w.begin; index < w.end; index++) {
    const ExpandUnit unit = expand_unit(p, index);
    if (unit.values) continue;
    ROLL for (i32 item = thread; item < EXPAND_ROWS * VECTORS; item += 3 * SIMD) {
      const i32 row = unit.tile * EXPAND_ROWS + item / VECTORS, vector = item % VECTORS;
      if (row >= w.rows) break;
      const i32 block = row / p.block_len, inside = row % p.block_len;
      const u32x4 v = cache[(i64(p.blocks[block]) * p.block_len + inside) * OF_CACHE + EXPAND_DIM / 8 + vector];
      keys[((i64(block) * p.heads + unit.head) * p.block_len + inside) * OF_KEY + NOPE / 8 + vector] = v;
    }
  }
}

struct ExpandRing { i32 slot; u32 phase; };

// N features of 64 positions of a tile. WIDTH: features of a position where they go.
template <i32 N, i32 WIDTH>
FN void expand_multiply(CONST ExpandLatentParams& p, const ExpandWork& w, const ExpandUnit& unit, ExpandRing& ring, u32 full, u32 empty, u32 rows,
                        u32 stages, Ptr<f16> out, i32 role, i32 simd, i32 lane) {
  f32 sum[N / 2];
  UNROLL for (i32 i = 0; i < N / 2; i++) sum[i] = 0.f;
  i32 before = -1;
  ROLL for (i32 k = 0; k < EXPAND_DIM / 64; k++) {
    barrier_wait(full + ring.slot * 8, ring.phase);
    const unsigned long long x = tile_descriptor(rows + k * EXPAND_TILE + role * (64 * 128)), weight = tile_descriptor(stages + ring.slot * EXPAND_STAGE);
    matrix_begin();
    UNROLL for (i32 i = 0; i < 4; i++) MatrixOp<N>::f16(sum, x + 2 * i, weight + 2 * i);
    matrix_commit();
    matrix_wait<1>();
    if (before >= 0 && lane == 0) barrier_arrive(empty + before * 8);
    before = ring.slot;
    if (++ring.slot == EXPAND_STAGES) { ring.slot = 0; ring.phase ^= 1; }
  }
  matrix_wait<0>();
  sums_are_there(sum);
  if (lane == 0) barrier_arrive(empty + before * 8);
  UNROLL for (i32 i = 0; i < 2; i++) {
    const i32 row = unit.tile * EXPAND_ROWS + role * 64 + simd * 16 + lane / 4 + i * 8;
    if (row >= w.rows) continue;
    const i32 block = row / p.block_len, inside = row % p.block_len;
    u32x4* const to = reinterpret_cast<u32x4*>(out + ((i64(block) * p.heads + unit.head) * p.block_len + inside) * WIDTH);
    UNROLL for (i32 n = 0; n < N / 32; n++) {
      u32 of[4];
      UNROLL for (i32 j = 0; j < 4; j++) of[j] = held_f16x2(sum[(n * 4 + j) * 4 + i * 2], sum[(n * 4 + j) * 4 + i * 2 + 1]);
      to[n * 4 + lane % 4] = make16(of[0], of[1], of[2], of[3]);
    }
  }
}

template <i32 NOPE, i32 VALUE>
FN void expand_latent(CONST ExpandLatentParams& p, GROUP ExpandGroup& g, Lane t) {
  let_next_start();
  const u32 full = group_address(g.full), empty = group_address(g.empty), rows_full = group_address(&g.rows_full), rows_empty = group_address(&g.rows_empty);
  if (t.simd == 0 && t.lane == 0) {
    UNROLL for (i32 i = 0; i < EXPAND_STAGES; i++) {
      barrier_init(full + i * 8, 1);
      barrier_init(empty + i * 8, 8);
    }
    barrier_init(rows_full, 1);
    barrier_init(rows_empty, 8);
    barriers_are_ready();
  }
  group_barrier();
  wait_for_previous();
  const ExpandWork w = expand_work(p, t);
  if (t.simd < 4) {
    give_registers<40>();
    if (t.simd == 0) expand_copy<NOPE, VALUE>(p, w, g, t.lane);
    else expand_turned<NOPE>(p, w, (t.simd - 1) * SIMD + t.lane);
  } else {
    take_registers<232>();
    const i32 role = t.simd / 4 - 1, simd = t.simd & 3;
    const u32 rows = group_address(g.rows), stages = group_address(g.stages);
    ExpandRing ring = {0, 0};
    i32 tile = -1, tiles = 0;
    ROLL for (i32 index = w.begin; index < w.end; index++) {
      const ExpandUnit unit = expand_unit(p, index);
      if (unit.tile != tile) {
        tile = unit.tile;
        barrier_wait(rows_full, tiles++ & 1);
      }
      if (unit.values) expand_multiply<VALUE, VALUE>(p, w, unit, ring, full, empty, rows, stages, p.values, role, simd, t.lane);
      else expand_multiply<NOPE, NOPE + EXPAND_ROPE>(p, w, unit, ring, full, empty, rows, stages, p.keys, role, simd, t.lane);
      if (index + 1 < w.end && expand_unit(p, index + 1).tile != tile && t.lane == 0) barrier_arrive(rows_empty);
    }
  }
}

// What prompt_attention asks: queries are in two places, and entries of block tables are blocks of keys and values.
struct ExpandedRows {
  Ptr<const f32> q_rope;
  i32 q_rope_stride;
  template <i32 D> PART f32x4 query(CONST AttentionParams<f16>& p, i32 row, i32 head, i32 vector) const {
    enum { VECTORS = (D - EXPAND_ROPE) / 4 };
    return vector < VECTORS ? vectors4(p.q + (i64(row) * p.q_stride + head * (D - EXPAND_ROPE)))[vector]
                            : vectors4(q_rope + (i64(row) * q_rope_stride + head * EXPAND_ROPE))[vector - VECTORS];
  }
  PART i32 slot(CONST AttentionParams<f16>& p, const PromptWork& w, i32 position) const {
    const i32 block = position / p.block_len;
    return ((p.table_starts[w.first_row] + block) * p.kv_heads + w.kv_head) * p.block_len + position - block * p.block_len;
  }
};

#define HEAD_WEIGHTS(FORMAT, W, ...)                                                                       \
  KERNEL(head_weights_##FORMAT, HeadWeightsParams, NoGroup, 128, head_weights<W, false>)                    \
  KERNEL(head_weights_turned_##FORMAT, HeadWeightsParams, NoGroup, 128, head_weights<W, true>)
EACH_HEAD_FORMAT(HEAD_WEIGHTS)

// Features of a head's keys that no position turns, and of its values: those of GLM-4.7-Flash and of DeepSeek's models.
#define EXPANDED_ATTENTION(NOPE, VALUE, P)                                                                                  \
  extern "C" __global__ void __launch_bounds__(EXPAND_THREADS, 1)                                                           \
      expand_latent_d##NOPE##_v##VALUE(const __grid_constant__ ExpandLatentParams p) {                                      \
    extern __shared__ __align__(1024) unsigned char group_memory[];                                                         \
    const Lane t = {(i32)blockIdx.x, (i32)blockIdx.y, (i32)blockIdx.z, simd_of_thread(), (i32)threadIdx.x & 31, 12};        \
    expand_latent<NOPE, VALUE>(p, *reinterpret_cast<ExpandGroup*>(group_memory), t);                                        \
  }                                                                                                                         \
  extern "C" __global__ void __launch_bounds__(PROMPT_THREADS, 1)                                                           \
      expanded_attention_d##NOPE##_v##VALUE(const __grid_constant__ ExpandedParams p) {                                     \
    extern __shared__ __align__(1024) unsigned char group_memory[];                                                         \
    const Lane t = {(i32)blockIdx.x, (i32)blockIdx.y, (i32)blockIdx.z, simd_of_thread(), (i32)threadIdx.x & 31, 12};        \
    const ExpandedRows from = {p.q_rope, p.q_rope_stride};                                                                  \
    prompt_attention<NOPE + EXPAND_ROPE, VALUE, P>(                                                                         \
        p.prompt, from, *reinterpret_cast<PromptAttention<NOPE + EXPAND_ROPE, VALUE, P>*>(group_memory), t);                \
  }
EXPANDED_ATTENTION(192, 256, 64)
EXPANDED_ATTENTION(128, 128, 128)
#endif
