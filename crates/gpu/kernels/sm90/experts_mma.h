// experts_mma: expert_linear and expert_glu (experts.h says what they mean), for steps in which an expert has few rows. The weights of
// an expert are read once for a tile of its rows. Each SIMD group has a ring of copies of its own and multiplies what is in it, so no
// SIMD group waits for another. Before it, route_rows or group_rows puts rows in the order of their experts, and activations.h makes
// the operand without moving rows; after it, expert_sum or sum_norm_activations adds up the pairs of a row.
//
// expert_mma_pair: the choice of experts, their gated units and their down projections in one launch, all groups of which run at once.
// Each group chooses for itself, as route_rows does. Its down projections are of the tiles whose gated units it has made itself, with the
// groups next to it, so that it waits for these alone. A SIMD group that has asked for all of its gates and ups asks for down projections,
// so that memory does not rest meanwhile.
//
// Shapes    x (rows or pairs, k), f16 or bf16, rows of whole 64s, filled up with zeros, each times `row_scales`; weights of an expert
//           (n, k), experts one after another at equal distances; y (pairs, n), f32.
// Work      a slab is 16 rows of weights of one expert (eight of gate and the same of up, in a GLU) by up to T of its rows. A group
//           has a share of all slabs, and each of its SIMD groups as many stages of k as the others: where a slab begins in the
//           share of one and ends in those of others, the first adds up what they made.
// Bytes     W of each chosen expert once for a tile of its rows; x once for each slab, from the first cache.
// Accuracy  as gemm.h.
// Order     16s of k, then SIMD groups: a row's bits depend on how many slabs there are.
struct ExpertMmaParams {
  TensorMap weight;       // (k, n, experts); in a GLU (k, 8, 2, n / 8, experts), the third over gate and up
  TensorMap scale_tiles;  // the same of scales
  Ptr<const u32x4> x;
  Ptr<const f32> row_scales;
  Ptr<const f32> bias;    // of expert 0
  Ptr<const f32> up_bias;
  Ptr<const f32> matrix_scales;
  Ptr<const f32> up_matrix_scales;
  Ptr<f32> y;
  Ptr<const u32x4> tiles;  // expert, first of its rows in the order of experts, their end
  Ptr<const i32> num_tiles;
  Ptr<const i32> pairs;    // in the order of experts
  Ptr<const i32> sources;  // likewise: which row of x
  i32 k, n, slabs;         // slabs: of an expert
  i32 x_stride, y_stride;  // in 16 bytes; in numbers
  i32 bias_stride;         // from expert to expert, in numbers
  i32 activation, stages;  // stages: of a ring
  f32 factor;              // of all rows of x, where there are no `row_scales`
  i32 few_pairs;           // how many pairs there can be, where every group takes all of them and their tiles at once
  PairOperand operand;     // where given, gated units go there, and not to y
  i32 few_tiles;           // and how many tiles
  i32 padding[9];
};
struct ExpertPairParams {
  ExpertMmaParams units, downs;  // their lists are absent: `route` says what they follow from
  RouteRowsParams route;         // its lists are absent, too
  Ptr<u32> counters;             // of each tile; zero before and after
  i32 x_bytes;                   // of group memory, for rows of x; 0: they come from where they are
  i32 padding[11];
};
// router_rows: router_logits of route.h, and the operand that the gated units of these rows multiply: both read the same rows.
template <class E> struct RouterRowsParams {
  RouterLogitsParams<E> logits;
  ActivationParams rows;
};

#if __CUDA_ARCH_FEAT_SM90_ALL

enum {
  SLAB_SIMDS = 24,  // as many as there are registers for
  SLAB_ROWS = 16,        // of weights
  SLAB_STAGES_MAX = 8,
  SLAB_TILES_MAX = 64,   // that the slabs of a group are of
  SLAB_ALL_TILES = 160,  // up to so many all groups have all of them
  SLAB_PAIRS_MAX = SLAB_TILES_MAX * 16,
  SLAB_HEADER = 16384,
  SLAB_WEIGHTS = SLAB_ROWS * 128,  // bytes of a stage
  SLAB_SUMS = SLAB_SIMDS * SIMD * 16  // bytes of the sums of all threads for eight rows of x
};
// What a SIMD group takes next of the group's slabs: the stage of a slab of a tile that begins at `k`, and the slot of its ring. `left`
// says how many stages it still has to take; `is_last`, whether nothing comes behind them.
struct SlabCursor { i32 tile, slab, k, slot, left; bool is_last; };

// The share of a group of the slabs of all tiles: the first, the one behind the last, how many stages they have together, and one.
struct SlabShare { i32 begin, end, stages, in_slab; };

struct ExpertMmaGroup {
  unsigned long long full[SLAB_SIMDS][SLAB_STAGES_MAX];
  unsigned long long summed[2][SLAB_SIMDS];  // a SIMD group has left what it made of a slab that another began, of each projection
  u32x4 tiles[SLAB_ALL_TILES];
  i32 pairs[SLAB_PAIRS_MAX], sources[SLAB_PAIRS_MAX];  // of the rows of these tiles
  // Of expert_mma_pair: the experts of all pairs, the rows of each expert, and of gated units and of down projections the group's share,
  // and where each SIMD group begins.
  i32 expert[ROUTE_PAIRS_MAX];
  u32 rows_of[SLAB_ALL_TILES];
  SlabShare share[2];
  SlabCursor first[2][SLAB_SIMDS];
  i32 num_tiles;
  unsigned char fill[SLAB_HEADER - 8 * SLAB_SIMDS * (SLAB_STAGES_MAX + 2) - 16 * SLAB_ALL_TILES - 8 * SLAB_PAIRS_MAX -
                     4 * ROUTE_PAIRS_MAX - 4 * SLAB_ALL_TILES - 2 * sizeof(SlabShare) - 2 * SLAB_SIMDS * sizeof(SlabCursor) - 4];
  unsigned char stages[16];  // weights of all stages, their scales, and sums
};
static_assert(SLAB_HEADER % 1024 == 0 && FIELD_OFFSET(ExpertMmaGroup, stages) == SLAB_HEADER, "copies of weights begin on 1024 bytes");

// What a lane takes of 64 numbers of k for four matrix instructions, its steps: of two rows of weights, 8 apart, and of a row of x, two
// vectors of 16 bytes. K: numbers of k in a stage. X_FOLLOWS: whether the second vector follows the first in x, and has the third and
// fourth step; else it is 32 bytes further, and has the second and fourth.
// F16, BF16: a lane has 16 numbers of k that follow each other.
template <class W> struct SlabHalves {
  enum { K = 64, SCALES = 0, LINE = 0, X_FOLLOWS = 1 };
  struct Unit { i32 none; };
  static PART i32 row(i32 lane) { return lane / 4; }
  static PART i32 x_place(i32 t) { return 2 * t; }
  static PART u32 place(i32 lane) { return (lane / 4) * 128 + ((lane % 4 * 2) ^ (lane / 4)) * 16; }
  static PART u32 scales_place(i32 lane) { return 0; }
  static PART u32 scales_begin(u32 k) { return 0; }
  static PART u32 scales_inside(u32 k) { return 0; }
  static PART Unit unit(u32 at, i32 t) { return {0}; }
  PART void load(u32 at, THREAD const Unit& low, THREAD const Unit& high, i32 block, i32 t) {
    UNROLL for (i32 i = 0; i < 2; i++) {
      a[i] = load_group_bits(at ^ i * 16);
      b[i] = load_group_bits((at ^ i * 16) + 8 * 128);
    }
  }
  PART void fragment(THREAD u32 (&w)[4], i32 step) const {
    const u32x4 low = a[step / 2], high = b[step / 2];
    w[0] = step % 2 == 0 ? low.x : low.z;
    w[2] = step % 2 == 0 ? low.y : low.w;
    w[1] = step % 2 == 0 ? high.x : high.z;
    w[3] = step % 2 == 0 ? high.y : high.w;
  }
  static PART void multiply(THREAD f32 (&c)[4], THREAD const u32 (&w)[4], u32 b0, u32 b1) { mma_f16_16x8x16(c, w[0], w[1], w[2], w[3], b0, b1); }
  u32x4 a[2], b[2];
};
template <class W> struct SlabStep : SlabHalves<W> {};
template <> struct SlabStep<GemmBF16> : SlabHalves<GemmBF16> {
  static PART void multiply(THREAD f32 (&c)[4], THREAD const u32 (&w)[4], u32 b0, u32 b1) { mma_bf16_16x8x16(c, w[0], w[1], w[2], w[3], b0, b1); }
};

// Codes: the places of gemm_narrow.h.
template <class W> struct SlabCodes {
  enum { SCALES = NarrowScales<W>::ONE };  // bytes of a row in a stage
  PART void fragment(THREAD u32 (&w)[4], i32 step) const { gemm_fragment<W>(w, low, high, step, scale_low, scale_high); }
  static PART void multiply(THREAD f32 (&c)[4], THREAD const u32 (&w)[4], u32 b0, u32 b1) { mma_f16_16x8x16(c, w[0], w[1], w[2], w[3], b0, b1); }
  typename W::Share low, high;
  GemmScale scale_low, scale_high;
};
template <class W> struct SlabBytes : SlabCodes<W> {
  enum { K = 128, LINE = NarrowScales<W>::ONE, X_FOLLOWS = 1 };
  struct Unit { u32 at; };
  static PART i32 row(i32 lane) { return NarrowBytes<W>::row(lane); }
  static PART i32 x_place(i32 t) { return 2 * t; }
  static PART u32 place(i32 lane) { return NarrowBytes<W>::weights(0, lane); }
  static PART u32 scales_place(i32 lane) { return NarrowBytes<W>::scales(LINE, 0, lane); }
  static PART u32 scales_begin(u32 k) { return k / 256 * 16; }
  static PART u32 scales_inside(u32 k) { return k / 128 % 2 * 8; }
  static PART Unit unit(u32 at, i32 t) { return {at}; }
  PART void load(u32 at, THREAD const Unit& unit_low, THREAD const Unit& unit_high, i32 block, i32 t) {
    const u32 from = at ^ block * 64;
    this->low = load_group_bits(from);
    this->high = load_group_bits(from + 8 * 128);
    this->scale_low = {load_scale(unit_low.at + block * 4), 0};
    this->scale_high = {load_scale(unit_high.at + block * 4), 0};
  }
};
template <class W> struct SlabHalfBytes : SlabCodes<W> {
  enum { K = 256, LINE = NarrowScales<W>::ONE, X_FOLLOWS = 0 };
  typedef typename W::Unit Unit;
  static PART i32 row(i32 lane) { return NarrowHalfBytes<W>::row(lane); }
  static PART i32 x_place(i32 t) { return t / 2 * 4 + t % 2; }
  static PART u32 place(i32 lane) { return NarrowHalfBytes<W>::weights(0, lane); }
  static PART u32 scales_place(i32 lane) { return NarrowHalfBytes<W>::scales(LINE, 0, lane); }
  static PART u32 scales_begin(u32 k) { return k / 256 * u32(NarrowScales<W>::OF_256) / 16 * 16; }
  static PART u32 scales_inside(u32 k) { return k / 256 * u32(NarrowScales<W>::OF_256) - scales_begin(k); }
  static PART Unit unit(u32 at, i32 t) { return NarrowHalfBytes<W>::unit(at, t); }
  PART void load(u32 at, THREAD const Unit& unit_low, THREAD const Unit& unit_high, i32 block, i32 t) {
    const u32 from = at ^ block * 32;
    this->low = W::load(from, unit_low, block);
    this->high = W::load(from + 8 * 128, unit_high, block);
    this->scale_low = W::scale(unit_low, block, t);
    this->scale_high = W::scale(unit_high, block, t);
  }
};
template <> struct SlabStep<GemmQ8_0> : SlabBytes<GemmQ8_0> {};
template <> struct SlabStep<GemmFP8> : SlabBytes<GemmFP8> {};
template <> struct SlabStep<GemmQ4_0> : SlabHalfBytes<GemmQ4_0> {};
template <> struct SlabStep<GemmQ4G128> : SlabHalfBytes<GemmQ4G128> {};
template <> struct SlabStep<GemmQ4Z128> : SlabHalfBytes<GemmQ4Z128> {};
template <> struct SlabStep<GemmMXFP4> : SlabHalfBytes<GemmMXFP4> {};
template <> struct SlabStep<GemmNVFP4> : SlabHalfBytes<GemmNVFP4> {};
template <> struct SlabStep<GemmQ4_K> : SlabHalfBytes<GemmQ4_K> {};
template <> struct SlabStep<GemmQ6_K> : SlabHalfBytes<GemmQ6_K> {};


FN void slab_next(THREAD SlabCursor& c, i32 slabs) {
  c.k = 0;
  if (++c.slab == slabs) {
    c.slab = 0;
    c.tile++;
  }
}

// Where the parts of its ring are.
struct SlabRing { u32 full, weights, scales; };

template <class W, bool GLU>
FN void slab_ask(CONST ExpertMmaParams& p, GROUP ExpertMmaGroup& g, THREAD SlabCursor& next, SlabRing ring, i32 lane) {
  typedef SlabStep<W> Step;
  if (next.left == 0) return;
  const u32 barrier = ring.full + next.slot * 8, to = ring.weights + next.slot * SLAB_WEIGHTS;
  const u32 scales_to = ring.scales + next.slot * (SLAB_ROWS * i32(Step::SCALES));
  const i32 expert = (i32)g.tiles[next.tile].x, k = i32(u32(next.k) / W::PACK), scales = i32(Step::scales_begin(u32(next.k)) / 2);
  if (one_lane(lane)) {
    barrier_expect(barrier, SLAB_ROWS * (128 + i32(Step::SCALES)));
    if (GLU) copy_tile_5d(to, p.weight, barrier, k, 0, 0, next.slab, expert);
    else copy_tile_3d(to, p.weight, barrier, k, next.slab * SLAB_ROWS, expert);
    if (W::IN_REGISTERS) {
      if (GLU) copy_tile_5d(scales_to, p.scale_tiles, barrier, scales, 0, 0, next.slab, expert);
      else copy_tile_3d(scales_to, p.scale_tiles, barrier, scales, next.slab * SLAB_ROWS, expert);
    }
  }
  simd_barrier();
  if (++next.slot == p.stages) next.slot = 0;
  next.left--;
  next.k += Step::K;
  if (next.k >= p.k) slab_next(next, p.slabs);
}

// Where the share of a SIMD group of `stages` begins.
FN i32 slab_share(i32 stages, i32 simd) { return stages * simd / SLAB_SIMDS; }

// Products fit 32 bits: `src/kernels/sm90/experts_mma.rs` sees to it.
FN SlabShare slab_group_share(i32 slabs, i32 in_slab, i32 group) {
  const i32 begin = i32(u32(slabs) * u32(group) / gridDim.x), end = i32(u32(slabs) * u32(group + 1) / gridDim.x);
  return {begin, end, (end - begin) * in_slab, in_slab};
}

// Groups that have some of these slabs, of one tile, in their shares.
FN i32 slab_groups(i32 slabs, i32 first, i32 count) {
  const u32 groups = gridDim.x;
  if (u32(slabs) < groups) return count;
  return i32((u32(first + count) * groups - 1) / u32(slabs) - (u32(first + 1) * groups - 1) / u32(slabs)) + 1;
}

// What a SIMD group takes of it first, where tiles are counted from `first_tile` on.
FN SlabCursor slab_begin(SlabShare share, i32 slabs, i32 first_tile, i32 k_of_stage, i32 simd, i32 slot, bool is_last) {
  const i32 from = slab_share(share.stages, simd), skipped = from / share.in_slab;
  SlabCursor c;
  c.tile = (share.begin + skipped) / slabs - first_tile;
  c.slab = share.begin + skipped - (first_tile + c.tile) * slabs;
  c.k = (from - skipped * share.in_slab) * k_of_stage;
  c.slot = slot;
  c.left = slab_share(share.stages, simd + 1) - from;
  c.is_last = is_last;
  return c;
}

// How a SIMD group asks for the next stage of one projection, and of two.
template <class W, bool GLU> struct SlabAsk {
  CONST ExpertMmaParams& p;
  PART void operator()(GROUP ExpertMmaGroup& g, THREAD SlabCursor& next, SlabRing ring, Lane t) const { slab_ask<W, GLU>(p, g, next, ring, t.lane); }
};
template <class W> struct SlabPairAsk {
  CONST ExpertPairParams& p;
  PART void operator()(GROUP ExpertMmaGroup& g, THREAD SlabCursor& next, SlabRing ring, Lane t) const {
    if (next.left == 0 && !next.is_last) {
      const i32 slot = next.slot;
      next = g.first[1][t.simd];
      next.slot = slot;
    }
    if (next.is_last) slab_ask<W, false>(p.downs, g, next, ring, t.lane);
    else slab_ask<W, true>(p.units, g, next, ring, t.lane);
  }
};

// Asks for what a lane multiplies of 64 numbers of its rows of x: one of each eight that a column has, where the tile has so many.
template <i32 COLUMNS, i32 AHEAD, i32 SECOND>
FN void slab_rows(THREAD u32x4 (&v)[COLUMNS][AHEAD][2], const Ptr<const u32x4> (&rows)[COLUMNS], i32 num_rows, i32 block) {
  UNROLL for (i32 j = 0; j < COLUMNS; j++)
    if (j == 0 || j * 8 < num_rows)
      UNROLL for (i32 half = 0; half < 2; half++) v[j][block % AHEAD][half] = rows[j][block * 8 + half * SECOND];
}

// `first_row`: of weights, the SIMD group's; of a gate in a GLU.
template <class W, i32 COLUMNS, bool GLU>
FN void slab_finish(CONST ExpertMmaParams& p, GROUP ExpertMmaGroup& g, THREAD f32 (&sum)[COLUMNS][4], THREAD const u32x4& tile, i32 pairs_from, i32 first_row, i32 lane) {
  const i32 expert = (i32)tile.x, first = (i32)tile.y, count = (i32)tile.z - first;
  const i32 low = first_row + SlabStep<W>::row(lane), high = GLU ? low : low + 8;
  const bool has_low = low < p.n, has_high = high < p.n;
  f32 low_scale = 1.f, high_scale = 1.f;
  if (HasMatrixScale<W>::VALUE) {
    low_scale = p.matrix_scales[expert] * 16384.f;
    high_scale = GLU && given(p.up_matrix_scales) ? p.up_matrix_scales[expert] * 16384.f : GLU ? 16384.f : low_scale;
  }
  const i64 bias_at = i64(expert) * p.bias_stride;
  const f32 low_bias = given(p.bias) && has_low ? p.bias[bias_at + low] : 0.f;
  const f32 high_bias = GLU ? (given(p.up_bias) && has_low ? p.up_bias[bias_at + low] : 0.f) : (given(p.bias) && has_high ? p.bias[bias_at + high] : 0.f);
  UNROLL for (i32 j = 0; j < COLUMNS; j++) {
    const i32 token = j * 8 + lane % 4 * 2;
    i32 pair[2];
    f32 scale[2], v[2], u[2];
    UNROLL for (i32 e = 0; e < 2; e++) {
      const i32 at = first - pairs_from + mini(token + e, count - 1);
      pair[e] = g.pairs[at];
      scale[e] = given(p.row_scales) ? p.row_scales[g.sources[at]] : p.factor;
      v[e] = fma32(sum[j][e], scale[e] * low_scale, low_bias);
      u[e] = fma32(sum[j][2 + e], scale[e] * high_scale, high_bias);
    }
    if (GLU) {
      const f32 ups[2] = {u[0], u[1]};
      near_gated<2>(v, ups, p.activation);
    }
    UNROLL for (i32 e = 0; e < 2; e++)
      if (token + e < count) {
        const Ptr<f32> y = p.y + i64(pair[e]) * p.y_stride;
        if (GLU && given(p.operand.rows)) {
          if (has_low) pair_operand_store(p.operand, pair[e], low, v[e]);
        } else if (has_low) {
          y[low] = v[e];
        }
        if (!GLU && has_high) y[high] = u[e];
      }
  }
}

// Where a SIMD group works, and where a lane reads what comes and leaves its sums.
struct SlabPlace {
  SlabRing ring;
  u32 weights, scales, sums, summed;
  i32 simd, lane, of_group;  // of_group: stages of k of all of the group's slabs
  i32 pairs_from;            // the first of its rows in the order of experts
  Ptr<const u32x4> rows;     // those in group memory
  i32 rows_from, num_rows;   // the first of them in the order of experts
  i32 row_stride;
};

// What a SIMD group makes of the slab that it has next, or of the part of it that is in its share.
template <class W, i32 COLUMNS, bool GLU, class ASK>
FN void slab_run(CONST ExpertMmaParams& p, GROUP ExpertMmaGroup& g, THREAD const SlabPlace& at, THREAD SlabCursor& own, THREAD SlabCursor& next,
                 THREAD u32& parity, THREAD const u32x4& tile, i32 slab_end, ASK ask, Lane t) {
  typedef SlabStep<W> Step;
  enum { BLOCKS = i32(Step::K) / GEMM_K, MOST = 4 / COLUMNS, AHEAD = i32(BLOCKS) < MOST ? i32(BLOCKS) : MOST, SECOND = Step::X_FOLLOWS ? 1 : 2 };
  const i32 lane = at.lane, quarter = lane % 4, num_rows = (i32)(tile.z - tile.y);
  const bool begins = own.k == 0;
  i32 left = (p.k - own.k + GEMM_K - 1) / GEMM_K;  // of 64s of k
  // Where a row is missing the last is multiplied once more, for nothing.
  Ptr<const u32x4> x[COLUMNS];
  UNROLL for (i32 j = 0; j < COLUMNS; j++) {
    const i32 place = mini((i32)tile.y + j * 8 + lane / 4, (i32)tile.z - 1) - at.pairs_from;
    const i32 held = place - at.rows_from;
    x[j] = (held < at.num_rows ? at.rows + held * at.row_stride : p.x + i64(g.sources[place]) * p.x_stride) + Step::x_place(quarter) + own.k / 8;
  }
  f32 sum[COLUMNS][4];
  UNROLL for (i32 j = 0; j < COLUMNS; j++) UNROLL for (i32 i = 0; i < 4; i++) sum[j][i] = 0.f;
  // Rows are read AHEAD blocks of 64 numbers before they are multiplied. Past the end of k weights are zeros, and registers keep what they
  // had: finite numbers, so that products are zero.
  u32x4 v[COLUMNS][AHEAD][2];
  UNROLL for (i32 block = 0; block < AHEAD; block++) {
    UNROLL for (i32 j = 0; j < COLUMNS; j++) v[j][block][0] = v[j][block][1] = make16(0, 0, 0, 0);
    if (block < left) slab_rows<COLUMNS, AHEAD, SECOND>(v, x, num_rows, block);
  }
  ROLL do {
    Step step;
    barrier_wait(at.ring.full + own.slot * 8, parity);
    const u32 weights = at.weights + own.slot * SLAB_WEIGHTS;
    const u32 scales = at.scales + own.slot * (SLAB_ROWS * i32(Step::SCALES)) + Step::scales_inside(u32(own.k));
    const typename Step::Unit low = Step::unit(scales, quarter), high = Step::unit(scales + 8 * i32(Step::LINE), quarter);
    UNROLL for (i32 block = 0; block < BLOCKS; block++) {
      step.load(weights, low, high, block, quarter);
      UNROLL for (i32 s = 0; s < GEMM_K / 16; s++) {
        u32 w[4];
        step.fragment(w, s);
        UNROLL for (i32 j = 0; j < COLUMNS; j++) {
          const u32x4 b = v[j][block % AHEAD][Step::X_FOLLOWS ? s / 2 : s % 2];
          const bool second = (Step::X_FOLLOWS ? s % 2 : s / 2) != 0;
          Step::multiply(sum[j], w, second ? b.z : b.x, second ? b.w : b.y);
        }
      }
      if (block + AHEAD < left) slab_rows<COLUMNS, AHEAD, SECOND>(v, x, num_rows, block + AHEAD);
    }
    simd_barrier();
    ask(g, next, at.ring, t);
    if (++own.slot == p.stages) { own.slot = 0; parity ^= 1; }
    UNROLL for (i32 j = 0; j < COLUMNS; j++) x[j] += BLOCKS * 8;
    left -= BLOCKS;
    own.k += Step::K;
    own.left--;
  } while (own.left > 0 && own.k < p.k);
  if (!begins) {
    UNROLL for (i32 j = 0; j < COLUMNS; j++) store_group_four(at.sums + j * SLAB_SUMS, sum[j]);
    simd_barrier();
    if (lane == 0) barrier_arrive(at.summed);
    return;
  }
  // Others have the end of the slab, and make it before anything else.
  if (own.k < p.k)
    ROLL for (i32 simd = at.simd + 1; simd < SLAB_SIMDS && slab_share(at.of_group, simd) < slab_end; simd++) {
      if (slab_share(at.of_group, simd + 1) == slab_share(at.of_group, simd)) continue;
      const i32 further = simd - at.simd;
      barrier_wait(at.summed + further * 8, 0);
      UNROLL for (i32 j = 0; j < COLUMNS; j++) {
        const f32x4 other = load_group(at.sums + further * (SIMD * 16) + j * SLAB_SUMS);
        sum[j][0] += other.x; sum[j][1] += other.y;
        sum[j][2] += other.z; sum[j][3] += other.w;
      }
    }
  slab_finish<W, COLUMNS, GLU>(p, g, sum, tile, at.pairs_from, own.slab * (GLU ? 8 : SLAB_ROWS), lane);
}

// What a SIMD group makes of its share of the group's.
template <class W, i32 T, bool GLU, class ASK>
FN void slab_runs(CONST ExpertMmaParams& p, GROUP ExpertMmaGroup& g, THREAD SlabPlace& at, SlabShare share, THREAD SlabCursor& own, THREAD SlabCursor& next,
                  THREAD u32& parity, ASK ask, Lane t) {
  at.of_group = share.stages;
  i32 slab_end = slab_share(share.stages, t.simd) / share.in_slab * share.in_slab;  // where the slab ends that is next, in stages of the group's
  ROLL while (own.left > 0) {
    u32x4 tile = g.tiles[own.tile];
    tile.z = tile.y + mini((i32)(tile.z - tile.y), T);
    slab_end += share.in_slab;
    slab_run<W, T / 8, GLU>(p, g, at, own, next, parity, tile, slab_end, ask, t);
    slab_next(own, p.slabs);
  }
}

// Where things are in group memory, and barriers.
template <class W>
FN SlabPlace slab_place(GROUP ExpertMmaGroup& g, i32 num_stages, Lane t) {
  typedef SlabStep<W> Step;
  const u32 stages = group_address(g.stages), all_scales = stages + SLAB_SIMDS * num_stages * SLAB_WEIGHTS;
  SlabPlace at;
  at.simd = t.simd;
  at.lane = t.lane;
  at.ring.full = group_address(g.full[t.simd]);
  at.ring.weights = stages + t.simd * num_stages * SLAB_WEIGHTS;
  at.ring.scales = all_scales + t.simd * num_stages * (SLAB_ROWS * i32(Step::SCALES));
  at.weights = held(at.ring.weights + Step::place(t.lane));
  at.scales = held(at.ring.scales + Step::scales_place(t.lane));
  at.sums = all_scales + SLAB_SIMDS * num_stages * (SLAB_ROWS * i32(Step::SCALES)) + (t.simd * SIMD + t.lane) * 16;
  at.summed = group_address(&g.summed[0][t.simd]);
  at.pairs_from = at.rows_from = at.num_rows = at.row_stride = 0;
  at.rows = nullptr;
  if (t.lane == 0) {
    for (i32 i = 0; i < num_stages; i++) barrier_init(at.ring.full + i * 8, 1);
    UNROLL for (i32 i = 0; i < 2; i++) barrier_init(at.summed + i * (8 * SLAB_SIMDS), 1);
    barriers_are_ready();
  }
  return at;
}

template <class W, i32 T, bool GLU>
FN void expert_mma(CONST ExpertMmaParams& p, GROUP ExpertMmaGroup& g, Lane t) {
  enum { K = SlabStep<W>::K };
  const i32 thread = t.simd * SIMD + t.lane;
  let_next_start();
  SlabPlace at = slab_place<W>(g, p.stages, t);
  if (thread == 0) prefetch_map(p.weight);
  if (thread == SIMD && W::IN_REGISTERS) prefetch_map(p.scale_tiles);
  wait_for_previous();
  // The group's share: slabs, and the stages of all of them.
  const bool few = p.few_pairs > 0;
  if (few) {
    // What is read one after the other is waited for one after the other.
    if (thread < p.few_tiles) g.tiles[thread] = p.tiles[thread];
    if (thread < p.few_pairs) {
      g.pairs[thread] = p.pairs[thread];
      g.sources[thread] = p.sources[thread];
    }
  }
  const SlabShare share = slab_group_share(p.num_tiles[0] * p.slabs, (p.k + K - 1) / K, t.gx);
  const i32 first_tile = few ? 0 : share.begin / p.slabs;
  if (!few && thread < SLAB_TILES_MAX && (first_tile + thread) * p.slabs < share.end) g.tiles[thread] = p.tiles[first_tile + thread];
  group_barrier();
  SlabCursor own = slab_begin(share, p.slabs, first_tile, K, t.simd, 0, true), next = own;
  const SlabAsk<W, GLU> ask = {p};
  for (i32 i = 0; i < p.stages; i++) ask(g, next, at.ring, t);
  if (!few && share.begin < share.end) {
    const u32x4 last = g.tiles[(share.end - 1) / p.slabs - first_tile];
    at.pairs_from = (i32)g.tiles[0].y;
    const i32 pairs = mini((i32)last.z, (i32)last.y + T) - at.pairs_from;
    for (i32 i = thread; i < pairs; i += SLAB_SIMDS * SIMD) {
      g.pairs[i] = p.pairs[at.pairs_from + i];
      g.sources[i] = p.sources[at.pairs_from + i];
    }
  }
  if (!few) group_barrier();
  u32 parity = 0;
  slab_runs<W, T, GLU>(p, g, at, share, own, next, parity, ask, t);
}

// The lists of all rows and tiles, in group memory, which follow from the logits, and the shares. A row has an expert once, so that the
// rows of an expert are the bits of a word. SLAB_EXPERTS: those of a lane, one after another. SLAB_CHOSEN: rows of a SIMD group, at most.
enum { SLAB_EXPERTS = SLAB_ALL_TILES / SIMD, SLAB_CHOSEN = 2, SLAB_TILE_ONE = 65536 };
template <i32 T>
FN void slab_lists(CONST ExpertPairParams& pair, GROUP ExpertMmaGroup& g, i32 k_of_stage, Lane t) {
  CONST RouteParams& r = pair.route.route;
  const i32 slots = route_slots(r.router), rows = r.rows[0];
  f32 logit[SLAB_CHOSEN][4];
  i32 id[SLAB_CHOSEN];
  UNROLL for (i32 i = 0; i < SLAB_CHOSEN; i++)
    if (t.simd + i * SLAB_SIMDS < rows) route_logits<4>(r, logit[i], t.simd + i * SLAB_SIMDS, t.lane);
  UNROLL for (i32 i = 0; i < SLAB_CHOSEN; i++) {
    const i32 row = t.simd + i * SLAB_SIMDS;
    if (row >= rows) continue;
    id[i] = route_ids<4>(r.router, logit[i], t.lane);
    if (t.lane < slots) {
      g.expert[row * slots + t.lane] = id[i];
      atomicOr(&g.rows_of[id[i]], 1u << row);
    }
  }
  group_barrier();
  // Where the rows of a lane's experts begin, and above that in the same word where their tiles do: those of the experts before are added up.
  u32 rows_of[SLAB_EXPERTS];
  i32 begin[SLAB_EXPERTS], end = 0;
  UNROLL for (i32 e = 0; e < SLAB_EXPERTS; e++) {
    rows_of[e] = g.rows_of[t.lane * SLAB_EXPERTS + e];
    begin[e] = end;
    const i32 count = __popc(rows_of[e]);
    end += count + (count + T - 1) / T * SLAB_TILE_ONE;
  }
  i32 before = end;
  UNROLL for (i32 d = 1; d < SIMD; d *= 2) {
    const i32 lower = shuffle(before, t.lane >= d ? t.lane - d : t.lane);
    if (t.lane >= d) before += lower;
  }
  const i32 num_tiles = shuffle(before, SIMD - 1) / SLAB_TILE_ONE;
  before -= end;
  UNROLL for (i32 i = 0; i < SLAB_CHOSEN; i++) {
    const i32 row = t.simd + i * SLAB_SIMDS;
    if (row >= rows) continue;
    const i32 of_lane = t.lane < slots ? id[i] / SLAB_EXPERTS : 0, which = id[i] - of_lane * SLAB_EXPERTS;
    i32 place = 0;
    UNROLL for (i32 e = 0; e < SLAB_EXPERTS; e++) {
      const i32 first = shuffle(before + begin[e], of_lane);
      place = which == e ? first : place;
    }
    if (t.lane >= slots) continue;
    place = place % SLAB_TILE_ONE + __popc(g.rows_of[id[i]] & ((1u << row) - 1));
    g.pairs[place] = row * slots + t.lane;
    g.sources[place] = row;
  }
  // The last three SIMD groups, which have no rows where there are up to 21: one lists tiles, and two find where all of them begin.
  if (t.simd == SLAB_SIMDS - 1) {
    if (t.lane == 0) g.num_tiles = num_tiles;
    UNROLL for (i32 e = 0; e < SLAB_EXPERTS; e++) {
      const i32 first = (before + begin[e]) % SLAB_TILE_ONE, count = __popc(rows_of[e]);
      i32 tile = (before + begin[e]) / SLAB_TILE_ONE;
      for (i32 from = 0; from < count; from += T)
        g.tiles[tile++] = make16(u32(t.lane * SLAB_EXPERTS + e), u32(first + from), u32(first + mini(from + T, count)), 0);
    }
  } else if (t.simd >= SLAB_SIMDS - 3) {
    const i32 which = t.simd - (SLAB_SIMDS - 3), slabs = which ? pair.downs.slabs : pair.units.slabs, k = which ? pair.downs.k : pair.units.k;
    const SlabShare share = slab_group_share(num_tiles * slabs, (k + k_of_stage - 1) / k_of_stage, t.gx);
    if (t.lane == 0) g.share[which] = share;
    if (t.lane < SLAB_SIMDS) g.first[which][t.lane] = slab_begin(share, slabs, 0, k_of_stage, t.lane, 0, which == 1);
  }
  group_barrier();
}

// Goes on when all gated units of the tiles of this group have been made. One SIMD group: a lane has a tile.
FN void slab_meet(CONST ExpertPairParams& p, GROUP ExpertMmaGroup& g, i32 lane) {
  const SlabShare units = g.share[0], downs = g.share[1];
  const i32 own = units.begin / p.units.slabs + lane, from = own * p.units.slabs;
  const i32 made = mini(units.end, from + p.units.slabs) - maxi(units.begin, from);
  if (made > 0) arrive_at(p.counters + own, u32(made));
  const i32 needed = downs.begin / p.downs.slabs + lane, first = needed * p.downs.slabs;
  if (downs.stages > 0 && first < downs.end) {
    wait_at(p.counters + needed, u32(p.units.slabs));
    // The last that goes on leaves zero.
    const u32 all = u32(p.units.slabs + slab_groups(g.num_tiles * p.downs.slabs, first, p.downs.slabs));
    pass_at(p.counters + needed, all);
  }
}

// Rows of x that a group needs, on their way to its group memory: what it asks for later would wait for all weights that are asked for.
enum { SLAB_ROWS_AHEAD = 4 };
struct SlabRows {
  u32x4 v[SLAB_ROWS_AHEAD];
  i32 first, count, vectors;
};

// A part of a row for each lane: 32 vectors for a SIMD group.
FN i32 slab_rows_parts(THREAD const SlabRows& r) { return (r.vectors + SIMD - 1) / SIMD; }

FN void slab_rows_ask(CONST ExpertMmaParams& p, GROUP ExpertMmaGroup& g, THREAD SlabRows& r, i32 from, Lane t) {
  const i32 parts = slab_rows_parts(r);
  UNROLL for (i32 i = 0; i < SLAB_ROWS_AHEAD; i++) {
    const i32 part = from + i * SLAB_SIMDS + t.simd, row = part / parts, vector = (part - row * parts) * SIMD + t.lane;
    if (row < r.count && vector < r.vectors) r.v[i] = p.x[i64(g.sources[r.first + row]) * p.x_stride + vector];
  }
}
FN void slab_rows_store(Ptr<u32x4> to, i32 stride, THREAD const SlabRows& r, i32 from, Lane t) {
  const i32 parts = slab_rows_parts(r);
  UNROLL for (i32 i = 0; i < SLAB_ROWS_AHEAD; i++) {
    const i32 part = from + i * SLAB_SIMDS + t.simd, row = part / parts, vector = (part - row * parts) * SIMD + t.lane;
    if (row < r.count && vector < r.vectors) to[row * stride + vector] = r.v[i];
  }
}

// Which rows the group's share is of, as many as there is room for; the first are asked for.
template <class W>
FN SlabRows slab_rows_begin(CONST ExpertMmaParams& p, GROUP ExpertMmaGroup& g, THREAD SlabPlace& at, SlabShare share, i32 bytes, Lane t) {
  SlabRows r;
  r.vectors = p.x_stride;
  // Two rows that are read at once begin in different banks.
  at.row_stride = r.vectors + (SlabStep<W>::X_FOLLOWS ? 1 : 2);
  r.first = r.count = 0;
  if (share.stages > 0) {
    r.first = (i32)g.tiles[share.begin / p.slabs].y;
    r.count = mini((i32)g.tiles[(share.end - 1) / p.slabs].z - r.first, bytes / (at.row_stride * 16));
  }
  at.rows_from = r.first;
  at.num_rows = r.count;
  slab_rows_ask(p, g, r, 0, t);
  return r;
}
FN void slab_rows_end(CONST ExpertMmaParams& p, GROUP ExpertMmaGroup& g, THREAD const SlabPlace& at, Ptr<u32x4> to, THREAD SlabRows& r, Lane t) {
  slab_rows_store(to, at.row_stride, r, 0, t);
  const i32 all = r.count * slab_rows_parts(r);
  for (i32 from = SLAB_ROWS_AHEAD * SLAB_SIMDS; from < all; from += SLAB_ROWS_AHEAD * SLAB_SIMDS) {
    slab_rows_ask(p, g, r, from, t);
    slab_rows_store(to, at.row_stride, r, from, t);
  }
}

template <class W, i32 T>
FN void expert_mma_pair(CONST ExpertPairParams& p, GROUP ExpertMmaGroup& g, Lane t) {
  enum { K = SlabStep<W>::K };
  const i32 thread = t.simd * SIMD + t.lane, stages = p.units.stages;
  let_next_start();
  SlabPlace at = slab_place<W>(g, stages, t);
  if (thread < SLAB_ALL_TILES) g.rows_of[thread] = 0;
  if (thread == 0) prefetch_map(p.units.weight);
  if (thread == SIMD) prefetch_map(p.downs.weight);
  if (thread == 2 * SIMD && W::IN_REGISTERS) prefetch_map(p.units.scale_tiles);
  if (thread == 3 * SIMD && W::IN_REGISTERS) prefetch_map(p.downs.scale_tiles);
  group_barrier();
  wait_for_previous();
  slab_lists<T>(p, g, K, t);
  const SlabPairAsk<W> ask = {p};
  SlabCursor own = g.first[0][t.simd], next = own;
  const Ptr<u32x4> x = reinterpret_cast<u32x4*>(g.stages + SLAB_SIMDS * stages * (SLAB_WEIGHTS + SLAB_ROWS * i32(SlabStep<W>::SCALES)) + SLAB_SUMS * (T / 8));
  at.rows = x;
  const bool keeps = p.x_bytes > 0;
  SlabRows rows;
  if (keeps) rows = slab_rows_begin<W>(p.units, g, at, g.share[0], p.x_bytes, t);
  for (i32 i = 0; i < stages; i++) ask(g, next, at.ring, t);
  if (keeps) {
    slab_rows_end(p.units, g, at, x, rows, t);
    group_barrier();
  }
  u32 parity = 0;
  slab_runs<W, T, true>(p.units, g, at, g.share[0], own, next, parity, ask, t);
  const i32 slot = own.slot;
  own = g.first[1][t.simd];
  own.slot = slot;
  at.summed += 8 * SLAB_SIMDS;
  group_barrier();
  if (t.simd == 0) {
    slab_meet(p, g, t.lane);
  } else if (t.simd == 1) {
    // Nobody in this launch needs to know how much experts count: each group leaves that of a few rows.
    for (i32 row = t.gx; row < p.route.route.rows[0]; row += (i32)gridDim.x) {
      f32 logit[4];
      route_logits<4>(p.route.route, logit, row, t.lane);
      const i32 slots = route_slots(p.route.route.router), id = t.lane < slots ? g.expert[row * slots + t.lane] : 0;
      route_leave(p.route.route, row, route_weights<4>(p.route.route.router, logit, id, t.lane), t.lane);
    }
  } else {
    // A gated unit is a row of its own for the down projections.
    for (i32 i = thread - 2 * SIMD; i < ROUTE_PAIRS_MAX; i += (SLAB_SIMDS - 2) * SIMD) g.sources[i] = g.pairs[i];
  }
  group_barrier();
  if (keeps) {
    rows = slab_rows_begin<W>(p.downs, g, at, g.share[1], p.x_bytes, t);
    slab_rows_end(p.downs, g, at, x, rows, t);
    group_barrier();
  }
  slab_runs<W, T, false>(p.downs, g, at, g.share[1], own, next, parity, ask, t);
}

// Groups behind those of router_logits have a row each: of 4,096 numbers at most.
struct RouterRowsGroup { RouterLogitsGroup<ROUTER_MORE_ROWS> logits; ActivationGroup rows; };
template <class E, bool BF16, OperandOrder ORDER>
FN void router_rows(CONST RouterRowsParams<E>& p, GROUP RouterRowsGroup& g, Lane t) {
  if (t.gx < p.logits.experts) {
    router_logits<E, ROUTER_MORE_ROWS>(p.logits, g.logits, t);
    return;
  }
  const Lane of_row = {t.gy * ROUTER_MORE_ROWS + t.gx - p.logits.experts, 0, 0, t.simd, t.lane, t.simds};
  activations<true, BF16, ORDER, 8>(p.rows, g.rows, of_row);
}
#define ROUTER_ROWS_KERNELS(FORMAT, BF16, ORDER)                                                                                     \
  KERNEL(router_rows_f32_##FORMAT, RouterRowsParams<f32>, RouterRowsGroup, 128, router_rows<f32, BF16, ORDER>)      \
  KERNEL(router_rows_f16_##FORMAT, RouterRowsParams<f16>, RouterRowsGroup, 128, router_rows<f16, BF16, ORDER>)      \
  KERNEL(router_rows_bf16_##FORMAT, RouterRowsParams<bf16>, RouterRowsGroup, 128, router_rows<bf16, BF16, ORDER>)
ROUTER_ROWS_KERNELS(f16, false, AS_X)
ROUTER_ROWS_KERNELS(bf16, true, AS_X)
ROUTER_ROWS_KERNELS(turns, false, IN_TURNS)

#define EXPERT_MMA_KERNEL(NAME, PARAMS, ...)                                                                               \
  extern "C" __global__ void __launch_bounds__(SLAB_SIMDS * SIMD, 1) NAME(const __grid_constant__ PARAMS p) {              \
    extern __shared__ __align__(1024) unsigned char group_memory[];                                                        \
    const Lane t = {(i32)blockIdx.x, 0, 0, simd_of_thread(), (i32)threadIdx.x & 31, SLAB_SIMDS};                           \
    __VA_ARGS__(p, *reinterpret_cast<ExpertMmaGroup*>(group_memory), t);                                                   \
  }
#define EXPERT_MMA(FORMAT, W)                                             \
  EXPERT_MMA_KERNEL(expert_mma_##FORMAT##_t8, ExpertMmaParams, expert_mma<W, 8, false>)     \
  EXPERT_MMA_KERNEL(expert_mma_glu_##FORMAT##_t8, ExpertMmaParams, expert_mma<W, 8, true>)  \
  EXPERT_MMA_KERNEL(expert_mma_##FORMAT##_t16, ExpertMmaParams, expert_mma<W, 16, false>)   \
  EXPERT_MMA_KERNEL(expert_mma_glu_##FORMAT##_t16, ExpertMmaParams, expert_mma<W, 16, true>)
EXPERT_MMA(f16, GemmF16)
EXPERT_MMA(bf16, GemmBF16)
EXPERT_MMA(q8_0, GemmQ8_0)
EXPERT_MMA(fp8, GemmFP8)
EXPERT_MMA(q4_0, GemmQ4_0)
EXPERT_MMA(q4_g128, GemmQ4G128)
EXPERT_MMA(q4_z128, GemmQ4Z128)
EXPERT_MMA(mxfp4, GemmMXFP4)
EXPERT_MMA(nvfp4, GemmNVFP4)
EXPERT_MMA(q4_k, GemmQ4_K)
EXPERT_MMA(q6_k, GemmQ6_K)
// Not of BF16: gated units leave no rows for it.
#define EXPERT_MMA_PAIR(FORMAT, W) EXPERT_MMA_KERNEL(expert_mma_pair_##FORMAT, ExpertPairParams, expert_mma_pair<W, 8>)
EXPERT_MMA_PAIR(f16, GemmF16)
EXPERT_MMA_PAIR(q8_0, GemmQ8_0)
EXPERT_MMA_PAIR(fp8, GemmFP8)
EXPERT_MMA_PAIR(q4_0, GemmQ4_0)
EXPERT_MMA_PAIR(q4_g128, GemmQ4G128)
EXPERT_MMA_PAIR(q4_z128, GemmQ4Z128)
EXPERT_MMA_PAIR(mxfp4, GemmMXFP4)
EXPERT_MMA_PAIR(nvfp4, GemmNVFP4)
EXPERT_MMA_PAIR(q4_k, GemmQ4_K)
EXPERT_MMA_PAIR(q6_k, GemmQ6_K)

#endif
