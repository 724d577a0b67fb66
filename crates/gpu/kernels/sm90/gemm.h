// gemm: linear (see linear.h: the same segments, epilogues and meaning) for many rows, on Hopper's matrix instructions.
//
// Shapes    x (rows, k), f16 or bf16, rows of whole 64s, filled up with zeros, each times `row_scales`; W (n, k) in F16, BF16,
//           Q8_0, FP8, Q4_0, MXFP4, NVFP4, Q4_K or Q6_K; y (rows, n), f32. With a GLU gate and up share a tile, in turns of eight rows: one thread has both.
// Work      a group of one SIMD group that copies and eight that multiply makes tiles of 128 features (64 of each, in a GLU)
//           by TOKENS rows, one after another. TOKENS = 256: two groups of a cluster share the rows of x, half copied by
//           each. TOKENS = 128: the groups of a cluster share the sum over k, and then each finishes part of the tile.
//           A tile has TOKENS rows at most, and fewer where all tiles then end sooner: else the last tile of a prompt may be nearly
//           empty, and the last round may have tiles for a few multiprocessors alone.
// Bytes     W once for TOKENS rows from the second cache, x once for 256 features. Bound by arithmetic from about 256 rows on.
// Accuracy  products of 11 bits (BF16: 8), sums in f32. The weights of blocks are code · scale rounded to f16, by 2^-11; of Q4_K
//           scale and minimum are, too.
// Order     a tile's products by 16s of k, whatever rows it has, partial sums of a cluster by rank: fixed by shapes alone, but
//           a row's bits depend on the cluster, and so on how many rows there are.

struct GemmSegment {
  TensorMap weight;       // (k, n); in a GLU (k, 8, 2, n / 8), the third over gate and up
  TensorMap scale_tiles;  // gemm_narrow: (scales of a row, n), or (scales of a row, 8, 2, n / 8)
  Ptr<const f16> scales;
  Ptr<const f16> up_scales;
  Ptr<const f32> bias;
  Ptr<const f32> up_bias;
  Ptr<f32> y;
  i32 n, tiles;  // output features; tiles of them: of a cluster where that shares x
  i32 y_stride;
  f32 matrix_scale, up_matrix_scale;  // `HasMatrixScale`
  i32 activation;  // of the gate, where there is an up weight
};
struct GemmParams {
  TensorMap x;
  GemmSegment segments[3];
  Ptr<const f32> row_scales;  // by which products are multiplied, where x was made row by row
  Ptr<const f32> residual;
  Ptr<const i32> rows;
  OperandPlace operand;  // where given, the result goes there, and not to y
  i32 k, scale_stride;  // of a row of W's scales, in f16
  i32 residual_stride, tiles;  // of all segments
  i32 glu, stages, height, columns;  // gemm_narrow: stages of the ring, rows of weights of a tile
  f32 factor;                        // by which products are multiplied where there are no row_scales
  i32 parts, row_tiles;              // gemm_alike: parts of k, and, of up to 64 rows, tiles of rows
  i32 padding[9];
};

#if __CUDA_ARCH_FEAT_SM90_ALL

enum {
  GEMM_FEATURES = 128,      // rows of weights in a tile
  GEMM_TOKEN_TILES = 8,     // tiles of rows that go through the second cache together
  GEMM_ROW_STEP = 32,       // rows of a tile are a multiple of this
  GEMM_MULTIPLIERS = 8,     // SIMD groups that multiply
  GEMM_STAGES_MAX = 16,
  GEMM_HEADER = 1024,
  GEMM_MEMORY = 227 * 1024, // of a group
  // Sums on their way to y lie in lines of 64 features of a token with a gap after them, so that neither writing nor
  // reading meets a bank twice; GEMM_PASS tokens at a time.
  GEMM_PASS = 32,
  GEMM_LINE = 68 * 4,
  GEMM_GAP = 64 * 4,
  GEMM_BUFFER = GEMM_PASS * GEMM_LINE
};

struct GemmF16 : GemmHalves {
  template <i32 T, i32 R> static PART void multiply(f32 (&sum)[R], unsigned long long w, unsigned long long x) { MatrixOp<T>::f16(sum, w, x); }
};
struct GemmBF16 : GemmHalves {
  template <i32 T, i32 R> static PART void multiply(f32 (&sum)[R], unsigned long long w, unsigned long long x) { MatrixOp<T>::bf16(sum, w, x); }
};
// Multiplies sums of two rows by turns of two, in a GLU of gate and up.
template <class W, i32 R> FN void gemm_scale_sums(f32 (&sum)[R], f32 matrix_scale, f32 up_matrix_scale, bool glu) {
  if (!HasMatrixScale<W>::VALUE) return;
  const f32 first = matrix_scale * 16384.f, second = glu ? up_matrix_scale * 16384.f : first;
  UNROLL for (i32 i = 0; i < R; i++) sum[i] *= i % 4 < 2 ? first : second;
}

// Group memory. `full` and `empty` are of a stage; `summed` and `read` of the partial sums of a cluster.
struct GemmGroup {
  unsigned long long full[GEMM_STAGES_MAX], empty[GEMM_STAGES_MAX], summed, read;
  unsigned char fill[GEMM_HEADER - 16 * GEMM_STAGES_MAX - 16];
  unsigned char buffers[16];  // then the stages
};

template <class W, i32 TOKENS> struct GemmShape {
  enum {
    X = TOKENS * GEMM_K * 2,
    W_STAGE = GEMM_FEATURES * W::LINE,
    STAGE = W_STAGE + X,
    // Stages of few rows are small.
    MOST = TOKENS < 128 ? 16 : 8,
    PASS = TOKENS < GEMM_PASS ? TOKENS : i32(GEMM_PASS),  // rows that are finished at a time
    ROOM = (GEMM_MEMORY - GEMM_HEADER - 4 * GEMM_BUFFER) / STAGE,
    ROOM_OF_PARTS = (GEMM_MEMORY - GEMM_HEADER - 2 * TOKENS * GEMM_LINE) / STAGE,
    STAGES = ROOM < MOST ? ROOM : MOST,
    STAGES_OF_PARTS = ROOM_OF_PARTS < MOST ? ROOM_OF_PARTS : MOST,
    SUMS = TOKENS / 2,           // f32 of a thread: 64 features by TOKENS over 128 threads
    // Times, as measured, in that of a row in a stage of the larger tiles; in the others a row takes half of it. Of a stage beside its
    // rows; of the end of a tile, which takes as long as eight stages of 128 rows.
    STAGE_COST = !W::IN_REGISTERS ? 190 : TOKENS == 256 ? 256 : 234,
    ROW_SHARE = TOKENS == 256 ? 1 : 2,
    TILE_COST = W::IN_REGISTERS ? 8 * 298 : 8 * 254,
    // Fewer rows than these are faster in tiles of 128.
    HEIGHT_MIN = TOKENS == 256 ? 160 : TOKENS < 64 ? TOKENS : 32
  };
};

// Whether two groups of a cluster, which have other features, share the rows of x.
template <class E, i32 TOKENS> struct GemmShared { enum { VALUE = TOKENS == (E::BY_EXPERTS ? 128 : 256) }; };

// Where a tile is.
struct GemmTile {
  i32 segment, row, token, begin, end;  // `begin` and `end` of k, in stages
  i32 rows, expert;                     // rows of x end there; whose weights, of GemmExperts
  i32 live;                             // rows of x that it has
};

// Which weights multiply which rows: one matrix a segment, and all rows. gemm_experts.h has another answer.
struct GemmAll {
  enum { BY_EXPERTS = 0, IN_PARTS = 0 };
  template <class W, i32 TOKENS> PART i32 height(CONST GemmParams& p, i32 clusters, u32 size, i32 lane) const;
  PART i32 token_tiles(CONST GemmParams& p, i32 height) const { return (p.rows[0] + height - 1) / height; }
  template <bool SHARED, bool GLU>
  PART GemmTile tile(CONST GemmParams& p, i32 index, i32 token_tiles, i32 height, u32 rank, u32 size) const;
  template <bool GLU>
  PART void copy_weight(CONST GemmSegment& s, const GemmTile& tile, u32 to, u32 barrier, i32 k) const {
    if (GLU) copy_tile_4d(to, s.weight, barrier, k, 0, 0, tile.row / 8);
    else copy_tile_2d(to, s.weight, barrier, k, tile.row);
  }
  // Where the expert's begin: scales of gate and up, in f16; their biases.
  PART i64 scales_at(const GemmTile& tile) const { return 0; }
  PART i64 bias_at(const GemmTile& tile) const { return 0; }
  PART f32 matrix_scale(CONST GemmSegment& s, const GemmTile& tile) const { return s.matrix_scale; }
  PART f32 up_matrix_scale(CONST GemmSegment& s, const GemmTile& tile) const { return s.up_matrix_scale; }
  // The row of y that the result of a row of x is.
  PART i32 y_row(i32 token) const { return token; }
};

// gemm_alike: k in as many parts as the matrix asks for, each summed for itself, then added up from the first on.
struct GemmAlike : GemmAll { enum { IN_PARTS = 1 }; };

// Rows of a tile: those with which all tiles take the least time, in rounds of the clusters. Each lane knows what one height costs.
// Clusters take tiles by turns, so all tiles have the same.
template <class W, i32 TOKENS>
PART i32 GemmAll::height(CONST GemmParams& p, i32 clusters, u32 size, i32 lane) const {
  typedef GemmShape<W, TOKENS> Shape;
  const i32 height = mini(Shape::HEIGHT_MIN + GEMM_ROW_STEP * lane, TOKENS), tiles = (p.rows[0] + height - 1) / height * p.tiles;
  const i32 k = p.k / (TOKENS == 256 ? 1 : (i32)size), stages = (k + GEMM_K - 1) / GEMM_K;
  const i32 cost = (tiles + clusters - 1) / clusters * ((stages * (height / Shape::ROW_SHARE + Shape::STAGE_COST) + Shape::TILE_COST) / 16);
  const u32 best = min_lanes_u32((u32)mini(cost, 0xffffff) << 8 | (u32)(height / GEMM_ROW_STEP));
  return i32(best & 0xffu) * GEMM_ROW_STEP;
}

template <bool SHARED, bool GLU>
PART GemmTile GemmAll::tile(CONST GemmParams& p, i32 index, i32 token_tiles, i32 height, u32 rank, u32 size) const {
  const i32 block = index / (GEMM_TOKEN_TILES * p.tiles), left = token_tiles - block * GEMM_TOKEN_TILES;
  const i32 wide = mini(left, GEMM_TOKEN_TILES), inside = index - block * GEMM_TOKEN_TILES * p.tiles;
  i32 feature = inside / wide;
  GemmTile tile;
  tile.rows = p.rows[0];
  tile.expert = 0;
  tile.token = (block * GEMM_TOKEN_TILES + inside - feature * wide) * height;
  tile.live = mini(height, tile.rows - tile.token);
  tile.segment = 0;
  while (tile.segment < 2 && feature >= p.segments[tile.segment].tiles) feature -= p.segments[tile.segment++].tiles;
  tile.row = (SHARED ? feature * 2 + (i32)rank : feature) * (GLU ? GEMM_FEATURES / 2 : GEMM_FEATURES);
  const i32 stages = (p.k + GEMM_K - 1) / GEMM_K;
  tile.begin = 0;
  tile.end = stages;
  if (!SHARED) {
    const i32 units = (stages + GEMM_UNIT - 1) / GEMM_UNIT;
    tile.begin = units * (i32)rank / (i32)size * GEMM_UNIT;
    tile.end = mini(units * ((i32)rank + 1) / (i32)size * GEMM_UNIT, stages);
  }
  return tile;
}

template <class W, bool GLU, class E>
FN void gemm_copy_weight(CONST GemmParams& p, const E& of, const GemmTile& tile, i32 stage, u32 to, u32 barrier) {
  of.template copy_weight<GLU>(p.segments[tile.segment], tile, to, barrier, stage * (GEMM_K / W::PACK));
}

// Copies of x for a stage: those with live rows. ROWS: of a copy.
template <class E, i32 TOKENS> struct GemmCopies {
  enum { SHARED = GemmShared<E, TOKENS>::VALUE, MOST = E::BY_EXPERTS ? 32 : 128, ROWS = TOKENS < MOST ? TOKENS : i32(MOST), BYTES = ROWS * GEMM_K * 2 };
  static PART i32 count(const GemmTile& tile) { return (tile.live + ROWS - 1) / ROWS; }
  // Those of this group: where rows are shared it copies every second one, to both.
  static PART void ask(CONST GemmParams& p, const GemmTile& tile, i32 count, i32 stage, u32 to, u32 barrier, u32 rank) {
    if (SHARED) {
      ROLL for (i32 i = (i32)rank; i < count; i += 2) copy_tile_2d_to_all(to + i * BYTES, p.x, barrier, stage * GEMM_K, tile.token + i * ROWS, 3);
    } else {
      ROLL for (i32 i = 0; i < count; i++) copy_tile_2d(to + i * BYTES, p.x, barrier, stage * GEMM_K, tile.token + i * ROWS);
    }
  }
};

// One thread: copies stage after stage, as they become empty.
template <class W, i32 TOKENS, bool GLU, class E>
FN void gemm_copy(CONST GemmParams& p, const E& of, u32 full, u32 empty, u32 stages, i32 depth, i32 first, i32 step, i32 tiles, i32 token_tiles, i32 height, u32 rank, u32 size) {
  typedef GemmShape<W, TOKENS> Shape;
  typedef GemmCopies<E, TOKENS> Copies;
  i32 slot = 0, filled = 0;
  u32 phase = 1;
  ROLL for (i32 index = first; index < tiles; index += step) {
    const GemmTile tile = of.template tile<Copies::SHARED, GLU>(p, index, token_tiles, height, rank, size);
    const i32 copies = Copies::count(tile), bytes = Shape::W_STAGE + copies * Copies::BYTES;
    i32 stage = tile.begin;
    if (index == first) {
      // Weights are asked for before the kernel ahead, which makes x, has ended.
      filled = mini(depth, tile.end - tile.begin);
      ROLL for (i32 i = 0; i < filled; i++) {
        barrier_expect(full + i * 8, bytes);
        gemm_copy_weight<W, GLU>(p, of, tile, stage + i, stages + i * Shape::STAGE, full + i * 8);
      }
      wait_for_previous();
      ROLL for (i32 i = 0; i < filled; i++)
        Copies::ask(p, tile, copies, stage + i, stages + i * Shape::STAGE + Shape::W_STAGE, full + i * 8, rank);
      stage += filled;
      slot = filled;
      if (slot == depth) { slot = 0; phase ^= 1; }
    }
    ROLL for (; stage < tile.end; stage++) {
      barrier_wait(empty + slot * 8, phase);
      barrier_expect(full + slot * 8, bytes);
      gemm_copy_weight<W, GLU>(p, of, tile, stage, stages + slot * Shape::STAGE, full + slot * 8);
      Copies::ask(p, tile, copies, stage, stages + slot * Shape::STAGE + Shape::W_STAGE, full + slot * 8, rank);
      if (++slot == depth) { slot = 0; phase ^= 1; }
    }
  }
}

// A place in the ring of stages.
struct GemmRing { u32 full, empty, stages; i32 depth, slot; u32 phase; };

FN void gemm_next(GemmRing& ring) {
  if (++ring.slot == ring.depth) { ring.slot = 0; ring.phase ^= 1; }
}
// This SIMD group has read the stage: in the memory of each group that copies to it.
template <bool SHARED> FN void gemm_release(GemmRing& ring, i32 slot, i32 lane) {
  simd_barrier();
  if (SHARED) { if (lane < 2) barrier_arrive_at(ring.empty + slot * 8, lane); }
  else if (lane == 0) barrier_arrive(ring.empty + slot * 8);
}

// What matrix instruction i of a stage multiplies: weights from group memory, or fragments of them.
template <class W, i32 N>
FN void gemm_product(f32 (&sum)[N / 2], unsigned long long w, unsigned long long x, i32 i) { W::template multiply<N>(sum, w + 2 * i, x + 2 * i); }
template <class W, i32 N>
FN void gemm_product(f32 (&sum)[N / 2], const u32 (&w)[GEMM_K / 16][4], unsigned long long x, i32 i) { MatrixOp<N>::f16(sum, w[i], x + 2 * i); }

// sum += W · xᵀ of a stage and of the first N tokens, which have the first sums.
template <class W, i32 N, i32 R, class A>
FN void gemm_products_of(f32 (&sum)[R], const A& w, unsigned long long x) {
  matrix_begin();
  UNROLL for (i32 i = 0; i < GEMM_K / 16; i++) gemm_product<W, N>(reinterpret_cast<f32 (&)[N / 2]>(sum), w, x, i);
  matrix_commit();
}
// The same of a tile's live rows alone, in 32s, where it may have fewer than TOKENS; whole tiles first, because they are many.
// Beginning and end stand in each branch, because the compiler runs matrix instructions one by one where a branch is between them, or
// a loop of their own for each N.
template <class W, i32 N, bool LEAST> struct GemmProducts {
  template <i32 R, class A> static PART void run(f32 (&sum)[R], const A& w, unsigned long long x, i32 live) {
    enum { FEWER = N - GEMM_ROW_STEP };
    if (live > FEWER) gemm_products_of<W, N>(sum, w, x);
    else GemmProducts<W, FEWER, i32(FEWER) <= GemmShape<W, R * 2>::HEIGHT_MIN>::run(sum, w, x, live);
  }
};
template <class W, i32 N> struct GemmProducts<W, N, true> {
  template <i32 R, class A> static PART void run(f32 (&sum)[R], const A& w, unsigned long long x, i32 live) { gemm_products_of<W, N>(sum, w, x); }
};
template <class W, i32 TOKENS, i32 R, class A>
FN void gemm_products(f32 (&sum)[R], const A& w, unsigned long long x, i32 live) {
  GemmProducts<W, TOKENS, TOKENS <= GemmShape<W, TOKENS>::HEIGHT_MIN>::run(sum, w, x, live);
}

// F16, BF16: over the tile's stages, both from group memory.
template <class W, i32 TOKENS, class E, i32 R>
FN void gemm_multiply(f32 (&sum)[R], CONST GemmParams& p, GemmRing& ring, GemmTile tile, i32 half, i32 lane) {
  typedef GemmShape<W, TOKENS> Shape;
  enum { SHARED = GemmShared<E, TOKENS>::VALUE };
  i32 before = -1;
  ROLL for (i32 stage = tile.begin; stage < tile.end; stage++) {
    barrier_wait(ring.full + ring.slot * 8, ring.phase);
    const u32 at = ring.stages + ring.slot * Shape::STAGE;
    const unsigned long long w = tile_descriptor(at + half * (Shape::W_STAGE / 2)), x = tile_descriptor(at + Shape::W_STAGE);
    gemm_products<W, TOKENS>(sum, w, x, tile.live);
    matrix_wait<1>();
    if (before >= 0) gemm_release<SHARED>(ring, before, lane);
    before = ring.slot;
    gemm_next(ring);
  }
  matrix_wait<0>();
  if (before >= 0) gemm_release<SHARED>(ring, before, lane);
}

// What one matrix instruction takes of a thread: four numbers of row g and four of row g + 8, of the 16 of its SIMD group.
template <class W>
FN void gemm_fragment(u32 (&w)[4], typename W::Share a, typename W::Share b, i32 step, GemmScale scale_a, GemmScale scale_b) {
  W::widen(w[0], w[2], a, step, scale_a);
  W::widen(w[1], w[3], b, step, scale_b);
}

template <class W, i32 TOKENS, bool GLU, class E, i32 R>
FN void gemm_multiply_codes(f32 (&sum)[R], CONST GemmParams& p, const E& of, GemmRing& ring, GemmTile tile, i32 half, i32 simd, i32 lane) {
  typedef GemmShape<W, TOKENS> Shape;
  CONST GemmSegment& s = p.segments[tile.segment];
  const i32 g = lane / 4, t = lane % 4;
  const i32 first = tile.row + (GLU ? half * 32 + simd * 8 : half * 64 + simd * 16) + g;
  const i64 row_a = mini(first, s.n - 1), row_b = mini(GLU ? first : first + 8, s.n - 1);
  const f16* scales_a = s.scales + (of.scales_at(tile) + row_a * p.scale_stride);
  const f16* scales_b = (GLU ? s.up_scales : s.scales) + (of.scales_at(tile) + row_b * p.scale_stride);
  const u32 share = W::place(half * 64 + simd * 16 + g, t), share_b = W::place(half * 64 + simd * 16 + g + 8, t);
  enum { SHARED = GemmShared<E, TOKENS>::VALUE };
  i32 before = -1;
  enum { AT_ONCE = TOKENS == 256 || E::IN_PARTS ? 2 : 4 };  // stages whose fragments have registers of their own
  u32 w[AT_ONCE][4][4];
  typename W::Unit unit_a, unit_b, next_a = W::unit(scales_a, tile.begin / GEMM_UNIT, t), next_b = W::unit(scales_b, tile.begin / GEMM_UNIT, t);
  ROLL for (i32 stage = tile.begin; stage < tile.end; stage += GEMM_UNIT) {
    unit_a = next_a;
    unit_b = next_b;
    if (stage + GEMM_UNIT < tile.end) {
      next_a = W::unit(scales_a, stage / GEMM_UNIT + 1, t);
      next_b = W::unit(scales_b, stage / GEMM_UNIT + 1, t);
    }
    // A loop of its own: in one with the loads above, the compiler moves what they bring at once, and so waits for it.
    ROLL for (i32 from = 0; from < GEMM_UNIT; from += AT_ONCE) {
      UNROLL for (i32 j = 0; j < AT_ONCE; j++) {
        const i32 pair = from + j;
        if (stage + pair < tile.end) {
          barrier_wait(ring.full + ring.slot * 8, ring.phase);
          const u32 at = ring.stages + ring.slot * Shape::STAGE;
          const typename W::Share a = W::load(at + share, unit_a, pair), b = W::load(at + share_b, unit_b, pair);
          const GemmScale scale_a = W::scale(unit_a, pair, t), scale_b = W::scale(unit_b, pair, t);
          UNROLL for (i32 i = 0; i < GEMM_K / 16; i++) gemm_fragment<W>(w[j][i], a, b, i, scale_a, scale_b);
          const unsigned long long x = tile_descriptor(at + Shape::W_STAGE);
          gemm_products<W, TOKENS>(sum, w[j], x, tile.live);
          // The multiplication before this one has ended: its registers and its stage are free.
          matrix_wait<1>();
          if (before >= 0) gemm_release<SHARED>(ring, before, lane);
          before = ring.slot;
          gemm_next(ring);
        }
      }
    }
  }
  matrix_wait<0>();
  if (before >= 0) gemm_release<SHARED>(ring, before, lane);
}

template <class W, bool IN_REGISTERS> struct GemmSum {
  template <i32 TOKENS, bool GLU, class E, i32 R>
  static PART void run(f32 (&sum)[R], CONST GemmParams& p, const E& of, GemmRing& ring, GemmTile tile, i32 half, i32 simd, i32 lane) {
    gemm_multiply<W, TOKENS, E>(sum, p, ring, tile, half, lane);
  }
};
template <class W> struct GemmSum<W, true> {
  template <i32 TOKENS, bool GLU, class E, i32 R>
  static PART void run(f32 (&sum)[R], CONST GemmParams& p, const E& of, GemmRing& ring, GemmTile tile, i32 half, i32 simd, i32 lane) {
    gemm_multiply_codes<W, TOKENS, GLU>(sum, p, of, ring, tile, half, simd, lane);
  }
};

// Writes N times four sums of a thread to lines of 64 features (in a GLU, 32 of gate, then 32 of up), 8 tokens apart: each of features f and f + 8 (in a GLU: of gate and up) and of two
// tokens one after the other.
template <bool GLU, i32 N, i32 R>
FN void gemm_stage(u32 to, const f32 (&sum)[R], i32 first, i32 simd, i32 lane) {
  const u32 at = to + lane % 4 * (2 * GEMM_LINE) + (GLU ? simd * 8 + lane / 4 : simd * 16 + lane / 4) * 4;
  enum { SECOND = GLU ? 32 * 4 : 8 * 4 };
  UNROLL for (i32 j = 0; j < N; j++)
    UNROLL for (i32 e = 0; e < 2; e++) {
      store_group(at + (8 * j + e) * GEMM_LINE, sum[(first + j) * 4 + e]);
      store_group(at + (8 * j + e) * GEMM_LINE + SECOND, sum[(first + j) * 4 + 2 + e]);
    }
}

// What a thread finishes: four features of every STEP-th token of four SIMD groups' part of a tile.
template <bool GLU> struct GemmColumn {
  enum { STEP = GLU ? 16 : 8 };
  i32 feature, token;  // of `token`s in the buffer
  u32 place;           // in a line
  bool in;
  f32x4 bias, up_bias;
};

template <bool GLU, class E>
FN GemmColumn<GLU> gemm_column(CONST GemmSegment& s, const E& of, GemmTile tile, i32 half, i32 thread) {
  GemmColumn<GLU> c;
  const i32 lanes = GLU ? 8 : 16;
  c.token = thread / lanes;
  c.place = thread % lanes * 16;
  c.feature = tile.row + half * (lanes * 4) + thread % lanes * 4;
  c.in = c.feature < s.n;
  if (!c.in) c.feature = 0;  // what is read for nothing is there, at least
  c.bias = c.up_bias = make_float4(0.f, 0.f, 0.f, 0.f);
  if (given(s.bias)) c.bias = *reinterpret_cast<const f32x4*>(s.bias + (of.bias_at(tile) + c.feature));
  if (GLU && given(s.up_bias)) c.up_bias = *reinterpret_cast<const f32x4*>(s.up_bias + (of.bias_at(tile) + c.feature));
  return c;
}

// Residuals of N tokens of a column, asked for early: they come from far.
template <i32 N> struct GemmResidual { f32x4 v[N]; };

template <bool GLU, i32 N>
FN void gemm_ask(GemmResidual<N>& residual, CONST GemmParams& p, const GemmColumn<GLU>& c, i32 token, i32 rows) {
  UNROLL for (i32 i = 0; i < N; i++) residual.v[i] = make_float4(0.f, 0.f, 0.f, 0.f);
  if (!GLU && given(p.residual)) {
    UNROLL for (i32 i = 0; i < N; i++)
      residual.v[i] = *reinterpret_cast<const f32x4*>(p.residual + i64(mini(token + i * c.STEP, rows - 1)) * p.residual_stride + c.feature);
  }
}

FN f32 gemm_row_scale(CONST GemmParams& p, i32 token, i32 rows) {
  return given(p.row_scales) ? p.row_scales[maxi(mini(token, rows - 1), 0)] : p.factor;
}

FN f32x4 gemm_scaled(f32x4 v, f32 scale, f32x4 bias) {
  return make_float4(fma32(v.x, scale, bias.x), fma32(v.y, scale, bias.y), fma32(v.z, scale, bias.z), fma32(v.w, scale, bias.w));
}

FN f32x4 gemm_added(f32x4 a, f32x4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }


// One token of a column: v are its sums, up those of up. Results of gated units may be the operand of the gemm behind.
template <bool GLU, class E>
FN void gemm_finish(CONST GemmParams& p, CONST GemmSegment& s, const E& of, const GemmColumn<GLU>& c, f32x4 v, f32x4 up, f32 scale, f32x4 residual, i32 token, i32 rows) {
  v = gemm_scaled(v, scale, c.bias);
  if (GLU) {
    up = gemm_scaled(up, scale, c.up_bias);
    f32 gates[4] = {v.x, v.y, v.z, v.w};
    const f32 ups[4] = {up.x, up.y, up.z, up.w};
    near_gated<4>(gates, ups, s.activation);
    v = make_float4(gates[0], gates[1], gates[2], gates[3]);
  } else {
    v = gemm_added(v, residual);
  }
  if (!c.in || token >= rows) return;
  if (GLU && !E::BY_EXPERTS && given(p.operand.rows)) operand_store(p.operand, token, c.feature, v);
  else *reinterpret_cast<f32x4*>(s.y + i64(of.y_row(token)) * s.y_stride + c.feature) = v;
}

// What rows of a tile are multiplied by: a thread of four SIMD groups has that of every 128th, since before the sums.
template <i32 TOKENS> struct GemmScales { enum { COUNT = (TOKENS + 127) / 128 }; f32 of[COUNT]; };

// A whole tile: `passes` of it, one after another, through two buffers of group memory, the first through that of `turn`. Scales
// travel in the gaps of lines.
template <i32 TOKENS, bool GLU, class E, i32 R>
FN void gemm_finish_tile(CONST GemmParams& p, const E& of, const f32 (&sum)[R], const GemmScales<TOKENS>& scales, GemmTile tile, u32 buffers, i32 turn, i32 passes, i32 half, i32 simd, i32 lane) {
  typedef GemmColumn<GLU> Column;
  enum { PASS = GemmShape<GemmF16, TOKENS>::PASS, PASSES = TOKENS / PASS, N = PASS / Column::STEP };
  const i32 rows = tile.rows;
  CONST GemmSegment& s = p.segments[tile.segment];
  const Column c = gemm_column<GLU>(s, of, tile, half, simd * SIMD + lane);
  const u32 mine = buffers + half * (2 * GEMM_BUFFER);
  const i32 first = tile.token + c.token;
  GemmResidual<N> residual, next, last;
  gemm_ask<GLU, N>(residual, p, c, first, rows);
  gemm_ask<GLU, N>(next, p, c, first + PASS, rows);
  UNROLL for (i32 pass = 0; pass < PASSES; pass++) {
    if (pass >= passes) break;  // all four SIMD groups
    const u32 buffer = mine + ((pass + turn) & 1) * GEMM_BUFFER;
    gemm_stage<GLU, PASS / 8>(buffer, sum, pass * (PASS / 8), simd, lane);
    if (simd == pass % 4) store_group(buffer + lane * GEMM_LINE + GEMM_GAP, scales.of[pass / 4]);
    if (pass + 2 < PASSES) gemm_ask<GLU, N>(last, p, c, first + (pass + 2) * PASS, rows);
    // Nobody writes to this buffer before the barrier after the next.
    four_simds_barrier(1 + half);
    UNROLL for (i32 i = 0; i < N; i++) {
      const u32 line = buffer + (c.token + i * Column::STEP) * GEMM_LINE;
      const f32x4 v = load_group(line + c.place), up = GLU ? load_group(line + c.place + 32 * 4) : v;
      gemm_finish<GLU>(p, s, of, c, v, up, load_group_scalar(line + GEMM_GAP), residual.v[i], first + pass * PASS + i * Column::STEP, rows);
    }
    residual = next;
    next = last;
  }
}

// A part of the tile for each group of the cluster: every group has sums over part of k, which are added rank by rank.
template <i32 TOKENS, bool GLU, class E, i32 R>
FN void gemm_finish_part(CONST GemmParams& p, const E& of, const f32 (&sum)[R], GemmTile tile, u32 buffers, u32 summed, u32 read, u32 phase, i32 half, i32 simd, i32 lane, u32 rank, u32 size) {
  typedef GemmColumn<GLU> Column;
  const i32 rows = tile.rows;
  CONST GemmSegment& s = p.segments[tile.segment];
  const Column c = gemm_column<GLU>(s, of, tile, half, simd * SIMD + lane);
  const u32 mine = buffers + half * (TOKENS * GEMM_LINE);
  barrier_wait(read, phase ^ 1);
  gemm_stage<GLU, TOKENS / 8>(mine, sum, 0, simd, lane);
  simd_barrier();
  if (lane < (i32)size) barrier_publish_at(summed, lane);
  const i32 steps = (tile.live + Column::STEP - 1) / Column::STEP;
  const i32 first = steps * (i32)rank / (i32)size, end = steps * ((i32)rank + 1) / (i32)size;
  enum { BATCH = 4 };  // whose loads are under way together
  ROLL for (i32 i = first; i < end; i += BATCH) {
    const i32 token = tile.token + i * Column::STEP + c.token;
    GemmResidual<BATCH> residual;
    f32 scales[BATCH];
    UNROLL for (i32 j = 0; j < BATCH; j++) scales[j] = gemm_row_scale(p, token + j * Column::STEP, rows);
    gemm_ask<GLU, BATCH>(residual, p, c, token, rows);
    if (i == first) barrier_observe(summed, phase);
    f32x4 v[BATCH], up[BATCH];
    UNROLL for (i32 j = 0; j < BATCH; j++) v[j] = up[j] = make_float4(0.f, 0.f, 0.f, 0.f);
    ROLL for (u32 r = 0; r < size; r++)
      UNROLL for (i32 j = 0; j < BATCH; j++)
        if (i + j < end) {
          const u32 at = mine + ((i + j) * Column::STEP + c.token) * GEMM_LINE + c.place;
          v[j] = gemm_added(v[j], load_cluster(at, r));
          if (GLU) up[j] = gemm_added(up[j], load_cluster(at + 32 * 4, r));
        }
    UNROLL for (i32 j = 0; j < BATCH; j++)
      if (i + j < end) gemm_finish<GLU>(p, s, of, c, v[j], up[j], scales[j], residual.v[j], token + j * Column::STEP, rows);
  }
  simd_barrier();
  if (lane < (i32)size) barrier_arrive_at(read, lane);
}

template <class W, i32 TOKENS, bool GLU, class E>
FN void gemm_of(CONST GemmParams& p, const E& of, GROUP GemmGroup& g, Lane t) {
  typedef GemmShape<W, TOKENS> Shape;
  const u32 rank = cluster_rank(), size = cluster_size();
  enum { SHARED = GemmShared<E, TOKENS>::VALUE };
  const bool parts = !SHARED && size > 1;
  const u32 full = group_address(g.full), empty = group_address(g.empty), summed = group_address(&g.summed), read = group_address(&g.read);
  const u32 buffers = group_address(g.buffers);
  const u32 stages = buffers + (parts ? 2 * TOKENS * GEMM_LINE : 4 * GEMM_BUFFER);
  const i32 depth = parts ? (i32)Shape::STAGES_OF_PARTS : (i32)Shape::STAGES;
  let_next_start();
  if (t.simd == 0 && t.lane == 0) {
    for (i32 i = 0; i < depth; i++) {
      barrier_init(full + i * 8, 1);
      barrier_init(empty + i * 8, GEMM_MULTIPLIERS * (SHARED ? 2 : 1));
    }
    barrier_init(summed, GEMM_MULTIPLIERS * size);
    barrier_init(read, GEMM_MULTIPLIERS * size);
    barriers_are_ready();
  }
  cluster_barrier();
  if (E::BY_EXPERTS) wait_for_previous();
  const i32 first = t.gx / (i32)size, step = (i32)gridDim.x / (i32)size;
  const i32 height = of.template height<W, TOKENS>(p, step, size, t.lane);
  const i32 token_tiles = of.token_tiles(p, height), tiles = p.tiles * token_tiles;
  if (t.simd < 4) {
    give_registers<40>();
    if (t.simd == 0 && one_lane(t.lane)) {
      gemm_copy<W, TOKENS, GLU>(p, of, full, empty, stages, depth, first, step, tiles, token_tiles, height, rank, size);
    }
    simd_barrier();
  } else {
    take_registers<232>();
    const i32 half = t.simd / 4 - 1, simd = t.simd & 3;
    GemmRing ring = {kept(full), kept(empty), kept(stages), depth, 0, 0};
    u32 phase = 0;
    i32 turn = 0;  // which of two buffers is first: after an odd number of passes, the next tile takes the other
    wait_for_previous();
    ROLL for (i32 index = first; index < tiles; index += step) {
      const GemmTile tile = of.template tile<SHARED, GLU>(p, index, token_tiles, height, rank, size);
      f32 sum[Shape::SUMS];
      UNROLL for (i32 i = 0; i < Shape::SUMS; i++) sum[i] = 0.f;
      GemmScales<TOKENS> scales;
      UNROLL for (i32 i = 0; i < GemmScales<TOKENS>::COUNT; i++)
        scales.of[i] = gemm_row_scale(p, tile.token + i * 128 + simd * SIMD + t.lane, tile.rows);
      CONST GemmSegment& s = p.segments[tile.segment];
      if (E::IN_PARTS) {
        f32 part_sum[Shape::SUMS];
        const i32 units = (tile.end + GEMM_UNIT - 1) / GEMM_UNIT;
        ROLL for (i32 part = 0; part < p.parts; part++) {
          GemmTile of_part = tile;
          of_part.begin = units * part / p.parts * GEMM_UNIT;
          of_part.end = mini(units * (part + 1) / p.parts * GEMM_UNIT, tile.end);
          UNROLL for (i32 i = 0; i < Shape::SUMS; i++) part_sum[i] = 0.f;
          GemmSum<W, W::IN_REGISTERS>::template run<TOKENS, GLU>(part_sum, p, of, ring, of_part, half, simd, t.lane);
          if (HasMatrixScale<W>::VALUE) gemm_scale_sums<W>(part_sum, of.matrix_scale(s, tile), of.up_matrix_scale(s, tile), GLU);
          UNROLL for (i32 i = 0; i < Shape::SUMS; i++) sum[i] += part_sum[i];
        }
      } else {
        GemmSum<W, W::IN_REGISTERS>::template run<TOKENS, GLU>(sum, p, of, ring, tile, half, simd, t.lane);
        if (HasMatrixScale<W>::VALUE) gemm_scale_sums<W>(sum, of.matrix_scale(s, tile), of.up_matrix_scale(s, tile), GLU);
      }
      if (parts) {
        gemm_finish_part<TOKENS, GLU>(p, of, sum, tile, buffers, summed, read, phase, half, simd, t.lane, rank, size);
        phase ^= 1;
      } else {
        const i32 passes = (tile.live + Shape::PASS - 1) / Shape::PASS;
        gemm_finish_tile<TOKENS, GLU>(p, of, sum, scales, tile, buffers, turn, passes, half, simd, t.lane);
        turn ^= passes & 1;
      }
    }
  }
  // Nobody leaves while others still reach into its memory.
  cluster_barrier();
}

template <class W, i32 TOKENS, bool GLU>
FN void gemm(CONST GemmParams& p, GROUP GemmGroup& g, Lane t) { gemm_of<W, TOKENS, GLU>(p, GemmAll(), g, t); }

template <class W, bool GLU>
FN void gemm_alike(CONST GemmParams& p, GROUP GemmGroup& g, Lane t) { gemm_of<W, 128, GLU>(p, GemmAlike(), g, t); }

#define GEMM_KERNEL(NAME, ...)                                                                                              \
  extern "C" __global__ void __launch_bounds__(384, 1) NAME(const __grid_constant__ GemmParams p) {                         \
    extern __shared__ __align__(1024) unsigned char group_memory[];                                                         \
    const Lane t = {(i32)blockIdx.x, (i32)blockIdx.y, (i32)blockIdx.z, simd_of_thread(), (i32)threadIdx.x & 31, 12};   \
    __VA_ARGS__(p, *reinterpret_cast<GemmGroup*>(group_memory), t);                                                         \
  }
#define GEMM(FORMAT, W)                                                \
  GEMM_KERNEL(gemm_##FORMAT##_t256, gemm<W, 256, false>)               \
  GEMM_KERNEL(gemm_##FORMAT##_t128, gemm<W, 128, false>)               \
  GEMM_KERNEL(gemm_glu_##FORMAT##_t256, gemm<W, 256, true>)            \
  GEMM_KERNEL(gemm_glu_##FORMAT##_t128, gemm<W, 128, true>)            \
  GEMM_KERNEL(gemm_alike_##FORMAT##_t128, gemm_alike<W, false>)        \
  GEMM_KERNEL(gemm_glu_alike_##FORMAT##_t128, gemm_alike<W, true>)
GEMM(f16, GemmF16)
GEMM(bf16, GemmBF16)
GEMM(q8_0, GemmQ8_0)
GEMM(fp8, GemmFP8)
GEMM(q4_0, GemmQ4_0)
GEMM(q4_g128, GemmQ4G128)
GEMM(q4_z128, GemmQ4Z128)
GEMM(mxfp4, GemmMXFP4)
GEMM(nvfp4, GemmNVFP4)
GEMM(q4_k, GemmQ4_K)
GEMM(q6_k, GemmQ6_K)

#endif
