// gemm_narrow: gemm (see gemm.h: the same operands, epilogues and meaning) for up to 32 rows, bound by memory. The matrix
// instruction is as wide as there are rows, and weights stream through a ring that takes nearly all of group memory.
//
// Tiles     of up to 64 rows of weights by 256 bytes a stage (two columns), or 128 rows by 128 bytes (two blocks): each of
//           four times four SIMD groups has a column or a block of every second stage. So that all multiprocessors have
//           equal shares, the height of tiles is any multiple of 16; the two groups of a cluster share k.
// Bytes     W once; x once a tile, from the second cache.
// Order     a SIMD group's stages, then stages and columns by turns, then groups of the cluster: shapes alone decide.
#if __CUDA_ARCH_FEAT_SM90_ALL
enum {
  NARROW_MULTIPLIERS = 16,      // SIMD groups; one more copies weights, and one rows
  NARROW_HEADER = 1024,
  NARROW_STAGES_MAX = 24,
  NARROW_WEIGHTS = 128 * 128    // bytes of a stage
};
struct NarrowGroup {
  unsigned long long full[NARROW_STAGES_MAX], empty[NARROW_STAGES_MAX], summed;
  f32 scales[32];  // of rows
  unsigned char fill[NARROW_HEADER - 16 * NARROW_STAGES_MAX - 8 - 128];
  unsigned char stages[16];  // then sums
};

// The scales of 256 weights of a row, in bytes, and what copies bring of them: rows of 16 bytes. One block or two are in a stage.
template <class W, bool IN_REGISTERS = W::IN_REGISTERS != 0> struct NarrowScales {
  enum { OF_256 = W::SCALES, ONE = (OF_256 + 15) / 16 * 16, TWO = (2 * OF_256 + 15) / 16 * 16, STAGE = 128 * i32(ONE) };
  static_assert(64 * i32(TWO) <= i32(STAGE), "rows of two blocks are half as many");
};
template <class W> struct NarrowScales<W, false> { enum { OF_256 = 0, ONE = 0, TWO = 0, STAGE = 0 }; };

template <class W, i32 N> struct NarrowFormat {
  enum {
    K = W::IN_REGISTERS ? 128 * W::PACK : 64,     // numbers in 128 bytes of a row of weights
    UNIT = K < 256 ? 512 : 4 * K,                 // of k, by which groups share it: two stages, or a multiple
    SCALES = NarrowScales<W>::STAGE,
    X_TILE = N * GEMM_K * 2,
    X_TILES = K / GEMM_K
  };
  // Bytes of a stage: of 32 rows with room for no more columns than there are, so that there are more stages. Of fewer rows more
  // stages are slower.
  static PART i32 stage(CONST GemmParams& p) { return NARROW_WEIGHTS + SCALES + (N == 32 ? p.columns : 2) * (X_TILES * X_TILE); }
};

struct NarrowTile { i32 segment, row; };
FN NarrowTile narrow_tile(CONST GemmParams& p, i32 index) {
  NarrowTile tile;
  tile.segment = 0;
  while (tile.segment < 2 && index >= p.segments[tile.segment].tiles) index -= p.segments[tile.segment++].tiles;
  tile.row = index * (p.glu ? p.height / 2 : p.height);
  return tile;
}

// Which tiles and which stages of k are a group's.
struct NarrowShare { i32 rank, sharers, first, step, begin, count, stage_k; };
template <class Format>
FN NarrowShare narrow_share(CONST GemmParams& p, i32 group) {
  NarrowShare s;
  s.rank = (i32)cluster_rank();
  s.sharers = (i32)cluster_size();
  s.first = group / s.sharers;
  s.step = (i32)gridDim.x / s.sharers;
  s.stage_k = p.columns * Format::K;
  const i32 units = (p.k + Format::UNIT - 1) / Format::UNIT, each = Format::UNIT / s.stage_k;
  s.begin = units * s.rank / s.sharers * each;
  s.count = units * (s.rank + 1) / s.sharers * each - s.begin;
  return s;
}

// Bytes of scales of a row in a stage: of 256 weights, or of two columns of as many.
template <class W> FN i32 narrow_scales(CONST GemmParams& p) {
  return W::PACK == 2 && p.columns == 2 ? NarrowScales<W>::TWO : NarrowScales<W>::ONE;
}

// Where copies of the scales of 256 weights begin in a row, in bytes.
template <class W> FN i32 narrow_scales_begin(i32 block) { return block * NarrowScales<W>::OF_256 / 16 * 16; }

// A place in the ring of stages: of those that copy, or of SIMD groups to whom every second belongs.
struct NarrowRing { u32 full, empty, stages; i32 stage, slot; u32 phase; };  // stage: its bytes
template <i32 STEP> FN void narrow_next(CONST GemmParams& p, NarrowRing& ring) {
  ring.slot += STEP;
  if (ring.slot >= p.stages) { ring.slot -= p.stages; ring.phase ^= 1; }
}

// One SIMD group, whose lanes all count, so that it takes no registers of lanes; the first asks. Weights, without a stop from
// tile to tile, and before the kernel ahead has ended.
template <class W, i32 N>
FN void narrow_copy_weights(CONST GemmParams& p, NarrowRing ring, const NarrowShare& share, i32 lane) {
  typedef NarrowFormat<W, N> Format;
  const i32 bytes = p.height * (p.columns * 128 + narrow_scales<W>(p));
  ROLL for (i32 index = share.first; index < p.tiles; index += share.step) {
    const NarrowTile tile = narrow_tile(p, index);
    CONST GemmSegment& s = p.segments[tile.segment];
    ROLL for (i32 stage = 0; stage < share.count; stage++) {
      const u32 full = ring.full + ring.slot * 8, to = ring.stages + ring.slot * ring.stage;
      const i32 first = (share.begin + stage) * share.stage_k, scales = narrow_scales_begin<W>(first / 256) / 2;
      barrier_wait(ring.empty + ring.slot * 8, ring.phase);
      if (one_lane(lane)) {
        const i32 k = first / W::PACK, second = (first + Format::K) / W::PACK;
        barrier_expect(full, bytes);
        if (p.glu) copy_tile_4d(to, s.weight, full, k, 0, 0, tile.row / 8);
        else copy_tile_2d(to, s.weight, full, k, tile.row);
        if (p.columns == 2) {
          if (p.glu) copy_tile_4d(to + p.height * 128, s.weight, full, second, 0, 0, tile.row / 8);
          else copy_tile_2d(to + p.height * 128, s.weight, full, second, tile.row);
        }
        if (W::IN_REGISTERS) {
          if (p.glu) copy_tile_4d(to + NARROW_WEIGHTS, s.scale_tiles, full, scales, 0, 0, tile.row / 8);
          else copy_tile_2d(to + NARROW_WEIGHTS, s.scale_tiles, full, scales, tile.row);
        }
      }
      simd_barrier();
      narrow_next<1>(p, ring);
    }
  }
}

// Another SIMD group: rows, as soon as the kernel ahead has made them.
template <class W, i32 N>
FN void narrow_copy_rows(CONST GemmParams& p, NarrowRing ring, const NarrowShare& share, i32 lane) {
  typedef NarrowFormat<W, N> Format;
  prefetch_map(p.x);
  wait_for_previous();
  const i32 tiles = p.columns * Format::X_TILES;
  ROLL for (i32 index = share.first; index < p.tiles; index += share.step) {
    ROLL for (i32 stage = 0; stage < share.count; stage++) {
      const u32 full = ring.full + ring.slot * 8, to = ring.stages + ring.slot * ring.stage + NARROW_WEIGHTS + Format::SCALES;
      barrier_wait(ring.empty + ring.slot * 8, ring.phase);
      if (one_lane(lane)) {
        barrier_expect(full, tiles * Format::X_TILE);
        UNROLL for (i32 i = 0; i < 2 * Format::X_TILES; i++)
          if (i < tiles) copy_tile_2d(to + i * Format::X_TILE, p.x, full, (share.begin + stage) * share.stage_k + i * GEMM_K, 0);
      }
      simd_barrier();
      narrow_next<1>(p, ring);
    }
  }
}

// F16, BF16: 64 rows by 128 bytes.
template <class W> struct NarrowStep {
  static PART i32 row(i32 lane) { return lane / 4; }
  template <i32 N, i32 R>
  static PART void run(f32 (&sum)[R], u32 weights, u32 rows, u32 scales, i32 scale_line, i32 simd, i32 lane) {
    const unsigned long long w = tile_descriptor(weights), x = tile_descriptor(rows);
    matrix_begin();
    UNROLL for (i32 i = 0; i < GEMM_K / 16; i++) W::template multiply<N>(sum, w + 2 * i, x + 2 * i);
    matrix_commit();
  }
};
FN u32 load_scale(u32 address) {
  unsigned short v;
  asm volatile("ld.shared.u16 %0,[%1];" : "=h"(v) : "r"(address) : "memory");
  return (u32)v * 0x10001u;
}
template <class W> struct NarrowBytes {
  // Rows so that eight lanes read all banks.
  static PART i32 row(i32 lane) { return lane / 8 + lane / 4 % 2 * 4; }
  template <i32 N, i32 R>
  static PART void run(f32 (&sum)[R], u32 weights, u32 rows, u32 scales, i32 scale_line, i32 simd, i32 lane) {
    const i32 g = row(lane), t = lane % 4, first = simd * 16 + g;
    u32 w[2][4][4];
    UNROLL for (i32 i = 0; i < 2; i++) {
      const u32 from = weights + first * 128 + ((i * 4 + t) ^ g) * 16, scale = scales + first * scale_line + i * 4 + t / 2 * 2;
      const u32x4 low = load_group_bits(from), high = load_group_bits(from + 8 * 128);
      const GemmScale scale_low = {load_scale(scale), 0}, scale_high = {load_scale(scale + 8 * scale_line), 0};
      UNROLL for (i32 j = 0; j < 4; j++) gemm_fragment<W>(w[i][j], low, high, j, scale_low, scale_high);
      const unsigned long long x = tile_descriptor(rows + i * (N * GEMM_K * 2));
      matrix_begin();
      UNROLL for (i32 j = 0; j < 4; j++) MatrixOp<N>::f16(sum, w[i][j], x + 2 * j);
      matrix_commit();
    }
  }
};
template <> struct NarrowStep<GemmQ8_0> : NarrowBytes<GemmQ8_0> {};
template <> struct NarrowStep<GemmFP8> : NarrowBytes<GemmFP8> {};
FN u32 load_word(u32 address) {
  u32 v;
  asm volatile("ld.shared.u32 %0,[%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}
FN void narrow_unit(u32& unit, u32 at, i32 t) { unit = load_word(at); }
FN void narrow_unit(uint2& unit, u32 at, i32 t) { unit = make_uint2(load_word(at), load_word(at + 4)); }
FN void narrow_unit(u32x4& unit, u32 at, i32 t) { unit = load_group_bits(at); }
FN void narrow_unit(GemmQ6_K::Unit& unit, u32 at, i32 t) {
  UNROLL for (i32 s = 0; s < 4; s++) unit.high[s] = load_word(at + (t * 4 + s) * 4);
  u32 scales[4];
  UNROLL for (i32 s = 0; s < 4; s++) scales[s] = load_word(at + (Q6_K_SCALES + s) * 4);
  GemmQ6_K::take_scales(unit, scales, t);
  unit.unit = load_word(at + Q6_K_UNIT * 4);
}
template <class W> struct NarrowHalfBytes {
  static PART typename W::Unit unit(u32 at, i32 t) {
    typename W::Unit unit;
    narrow_unit(unit, at, t);
    return unit;
  }
  // Rows so that sixteen lanes read all banks.
  static PART i32 row(i32 lane) { return lane / 16 + lane / 4 % 4 * 2; }
  template <i32 N, i32 R>
  static PART void run(f32 (&sum)[R], u32 weights, u32 rows, u32 scales, i32 scale_line, i32 simd, i32 lane) {
    const i32 g = row(lane), t = lane % 4, first = simd * 16 + g;
    const typename W::Unit unit_low = unit(scales + first * scale_line, t), unit_high = unit(scales + (first + 8) * scale_line, t);
    u32 w[4][4][4];
    UNROLL for (i32 i = 0; i < 4; i++) {
      const u32 from = weights + first * 128 + ((i * 2 + t / 2) ^ g) * 16 + t % 2 * 8;
      const typename W::Share low = W::load(from, unit_low, i), high = W::load(from + 8 * 128, unit_high, i);
      const GemmScale scale_low = W::scale(unit_low, i, t), scale_high = W::scale(unit_high, i, t);
      UNROLL for (i32 j = 0; j < 4; j++) gemm_fragment<W>(w[i][j], low, high, j, scale_low, scale_high);
      const unsigned long long x = tile_descriptor(rows + i * (N * GEMM_K * 2));
      matrix_begin();
      UNROLL for (i32 j = 0; j < 4; j++) MatrixOp<N>::f16(sum, w[i][j], x + 2 * j);
      matrix_commit();
    }
  }
};
template <> struct NarrowStep<GemmQ4_0> : NarrowHalfBytes<GemmQ4_0> {};
template <> struct NarrowStep<GemmQ4G128> : NarrowHalfBytes<GemmQ4G128> {};
template <> struct NarrowStep<GemmMXFP4> : NarrowHalfBytes<GemmMXFP4> {};
template <> struct NarrowStep<GemmQ4_K> : NarrowHalfBytes<GemmQ4_K> {};
template <> struct NarrowStep<GemmQ6_K> : NarrowHalfBytes<GemmQ6_K> {};

// Which of four times four SIMD groups: every second stage is for two of them, a column or a block for each.
struct NarrowRole { i32 turn, side, simd, lane; };

template <class W, i32 N, i32 R>
FN void narrow_sum(f32 (&sum)[R], CONST GemmParams& p, NarrowRing& ring, const NarrowShare& share, const NarrowRole& role) {
  typedef NarrowFormat<W, N> Format;
  const u32 weights = role.side * (p.columns == 2 ? p.height : 64) * 128;
  // Of bytes, every stage has half of a row's 256 weights, and two columns are all.
  const i32 scale_line = narrow_scales<W>(p), part = W::PACK == 2 ? NarrowScales<W>::OF_256 : 8;
  const u32 scales = NARROW_WEIGHTS + (p.columns == 2 ? role.side * part : role.side * (64 * NarrowScales<W>::ONE) + (W::PACK == 2 ? 0 : role.turn * 8));
  const u32 rows = NARROW_WEIGHTS + Format::SCALES + (p.columns == 2 ? role.side * (Format::X_TILES * Format::X_TILE) : 0);
  ROLL for (i32 stage = 0; stage < share.count; stage += 2) {
    const u32 at = ring.stages + ring.slot * ring.stage;
    const i32 block = (share.begin + stage + role.turn) * share.stage_k / 256;
    const u32 inside = NarrowScales<W>::OF_256 % 16 == 0 ? 0 : block * NarrowScales<W>::OF_256 - narrow_scales_begin<W>(block);
    barrier_wait(ring.full + ring.slot * 8, ring.phase);
    NarrowStep<W>::template run<N>(sum, at + weights, at + rows, at + scales + inside, scale_line, role.simd, role.lane);
    matrix_wait<0>();
    simd_barrier();
    if (role.lane == 0) barrier_arrive(ring.empty + ring.slot * 8);
    narrow_next<2>(p, ring);
  }
}

// The first pair of rows that group `rank` of `sharers` finishes.
template <i32 N> FN i32 narrow_first(i32 rank, i32 sharers) { return (rank * (N / 2) + sharers - 1) / sharers; }

// Sums in group memory, a line for each row of weights: those of this group, of all rows; then, where groups share k, those
// of each of them, of the rows that this one finishes.
struct NarrowSums { u32 own, all, summed; i32 sharers, line, first, places; };

// Adds up what four times four SIMD groups have, one after another, and tells the groups of the cluster.
template <class W, i32 N, i32 R>
FN void narrow_add(f32 (&sum)[R], CONST GemmParams& p, const NarrowSums& sums, i32 rank, const NarrowRole& role) {
  enum { LINE = (N + 2) * 4 };
  const i32 part = p.columns == 2 ? role.turn * 2 + role.side : role.turn, inside = (p.columns == 2 ? 0 : role.side * 64) + role.simd * 16;
  const i32 row = inside + NarrowStep<W>::row(role.lane);
  const u32 own = sums.own + row * LINE + role.lane % 4 * 8;
  const bool in = inside < p.height;
  ROLL for (i32 turn = p.columns * 2 - 1; turn >= 0; turn--) {
    if (part == turn && in) {
      if (turn < p.columns * 2 - 1) {
        UNROLL for (i32 j = 0; j < N / 8; j++)
          UNROLL for (i32 e = 0; e < 2; e++) {
            const f32x2 v = load_group_pair(own + j * 32 + e * 8 * LINE);
            sum[4 * j + 2 * e] += v.x;
            sum[4 * j + 2 * e + 1] += v.y;
          }
      }
      if (turn > 0 || sums.sharers == 1) {
        UNROLL for (i32 j = 0; j < N / 8; j++)
          UNROLL for (i32 e = 0; e < 2; e++) store_group_pair(own + j * 32 + e * 8 * LINE, sum[4 * j + 2 * e], sum[4 * j + 2 * e + 1]);
      } else {
        UNROLL for (i32 j = 0; j < N / 8; j++) {
          const i32 pair = j * 4 + role.lane % 4, to = pair * sums.sharers / (N / 2);
          const u32 at = sums.all + ((rank * p.height + row) * sums.line + (pair - narrow_first<N>(to, sums.sharers)) * 2) * 4;
          UNROLL for (i32 e = 0; e < 2; e++) send_to(at + e * 8 * sums.line * 4, sums.summed, to, sum[4 * j + 2 * e], sum[4 * j + 2 * e + 1]);
        }
      }
    }
    if (turn > 0 || sums.sharers == 1) simds_barrier<NARROW_MULTIPLIERS>();
  }
}

// What a thread finishes of a tile: outputs 512 apart, row by row.
struct NarrowItem { i32 place, n, feature, row; bool in; };
FN NarrowItem narrow_item(CONST GemmParams& p, NarrowTile tile, const NarrowSums& sums, i32 outputs, i32 at, i32 rows) {
  NarrowItem item;
  item.place = at / outputs;
  const i32 column = at - item.place * outputs;
  item.n = sums.first + item.place;
  item.feature = tile.row + column;
  item.row = p.glu ? column / 8 * 16 + column % 8 : column;
  item.in = item.place < sums.places && item.n < rows && item.feature < p.segments[tile.segment].n;
  return item;
}

template <i32 COUNT>
FN void narrow_residual(f32 (&residual)[COUNT], CONST GemmParams& p, NarrowTile tile, const NarrowSums& sums, i32 outputs, i32 first, i32 rows) {
  UNROLL for (i32 i = 0; i < COUNT; i++) {
    const NarrowItem item = narrow_item(p, tile, sums, outputs, first + i * (NARROW_MULTIPLIERS * SIMD), rows);
    residual[i] = 0.f;
    if (given(p.residual) && item.in) residual[i] = p.residual[i64(item.n) * p.residual_stride + item.feature];
  }
}

// See `operand_store`: one number.
FN void narrow_hand(CONST OperandPlace& to, i32 row, i32 feature, f32 v) {
  const i32 inside = feature % 4, word = operand_word(to.order, feature - inside);
  const i32 second = to.order == FOR_FOUR_BITS ? inside % 2 : inside / 2, half = to.order == FOR_FOUR_BITS ? inside / 2 : inside % 2;
  const i32 place = (word + second * (to.order == AS_X ? 1 : i32(OPERAND_NEXT))) * 2 + half;
  const u32 pair = to.is_bf16 ? to_bf16x2(v * to.factor, 0.f) : f32x2_to_f16x2(v * to.factor, 0.f);
  reinterpret_cast<unsigned short*>(to.rows)[i64(row) * to.stride + place] = (unsigned short)pair;
}

template <i32 COUNT>
FN void narrow_finish(f32 (&residual)[COUNT], CONST GemmParams& p, GROUP NarrowGroup& g, NarrowTile tile, const NarrowSums& sums, i32 thread, i32 rows) {
  CONST GemmSegment& s = p.segments[tile.segment];
  const i32 outputs = p.glu ? p.height / 2 : p.height, all = outputs * sums.places;
  const u32 from = sums.sharers > 1 ? sums.all : sums.own;
  ROLL for (i32 first = thread; first < all; first += COUNT * NARROW_MULTIPLIERS * SIMD) {
    if (first != thread) narrow_residual(residual, p, tile, sums, outputs, first, rows);
    UNROLL for (i32 i = 0; i < COUNT; i++) {
      const NarrowItem item = narrow_item(p, tile, sums, outputs, first + i * (NARROW_MULTIPLIERS * SIMD), rows);
      if (!item.in) continue;
      f32 v = 0.f, up = 0.f;
      ROLL for (i32 part = 0; part < sums.sharers; part++) {
        const u32 at = from + ((part * p.height + item.row) * sums.line + item.place) * 4;
        v += load_group_scalar(at);
        if (p.glu) up += load_group_scalar(at + 8 * sums.line * 4);
      }
      v = fma32(v, g.scales[item.n], given(s.bias) ? s.bias[item.feature] : 0.f);
      if (p.glu) v = gemm_gated(v, fma32(up, g.scales[item.n], given(s.up_bias) ? s.up_bias[item.feature] : 0.f));
      if (given(p.operand.rows)) narrow_hand(p.operand, item.n, item.feature, v);
      else s.y[i64(item.n) * s.y_stride + item.feature] = v + residual[i];
    }
  }
}

template <class W, i32 N>
FN void gemm_narrow(CONST GemmParams& p, GROUP NarrowGroup& g, Lane t) {
  typedef NarrowFormat<W, N> Format;
  enum { ITEMS = N / 8 };  // whose residual is under way together
  const NarrowShare share = narrow_share<Format>(p, t.gx);
  NarrowRing ring = {group_address(g.full), group_address(g.empty), group_address(g.stages), Format::stage(p), 0, 1};
  NarrowSums sums;
  sums.summed = group_address(&g.summed);
  sums.own = ring.stages + p.stages * ring.stage;
  sums.all = sums.own + p.height * (N + 2) * 4;
  sums.sharers = share.sharers;
  sums.first = 2 * narrow_first<N>(share.rank, share.sharers);
  sums.places = 2 * narrow_first<N>(share.rank + 1, share.sharers) - sums.first;
  sums.line = (N / 2 + share.sharers - 1) / share.sharers * 2 + 2;
  let_next_start();
  if (t.simd == NARROW_MULTIPLIERS && t.lane == 0) {
    for (i32 i = 0; i < p.stages; i++) {
      barrier_init(ring.full + i * 8, 2);
      barrier_init(ring.empty + i * 8, NARROW_MULTIPLIERS / 2);
    }
    barrier_init(sums.summed, 1);
    barriers_are_ready();
  }
  group_barrier();
  if (share.sharers > 1) cluster_arrive();
  if (t.simd >= NARROW_MULTIPLIERS) {
    if (t.simd == NARROW_MULTIPLIERS) narrow_copy_weights<W, N>(p, ring, share, t.lane);
    else narrow_copy_rows<W, N>(p, ring, share, t.lane);
    if (share.sharers > 1) cluster_wait();
    return;
  }
  if (share.sharers > 1) cluster_wait();
  const i32 rows = p.rows[0], thread = t.simd * SIMD + t.lane;
  const NarrowRole role = {t.simd / 8, t.simd / 4 % 2, t.simd % 4, t.lane};
  ring.slot = role.turn;
  ring.phase = 0;
  wait_for_previous();
  if (thread < N) g.scales[thread] = gemm_row_scale(p, thread, rows);
  ROLL for (i32 index = share.first; index < p.tiles; index += share.step) {
    const NarrowTile tile = narrow_tile(p, index);
    f32 residual[ITEMS], sum[N / 2];
    narrow_residual(residual, p, tile, sums, p.glu ? p.height / 2 : p.height, thread, rows);
    UNROLL for (i32 i = 0; i < N / 2; i++) sum[i] = 0.f;
    narrow_sum<W, N>(sum, p, ring, share, role);
    // What was summed of the tile before has been read.
    simds_barrier<NARROW_MULTIPLIERS>();
    // Where groups share k, there is one tile for each cluster: nobody is told of the next before it has read this one.
    if (share.sharers > 1 && thread == 0) barrier_expect(sums.summed, share.sharers * p.height * sums.places * 4);
    narrow_add<W, N>(sum, p, sums, share.rank, role);
    if (share.sharers > 1) barrier_wait(sums.summed, 0);
    narrow_finish(residual, p, g, tile, sums, thread, rows);
  }
}

#define NARROW_KERNEL(NAME, ...)                                                                                            \
  extern "C" __global__ void __launch_bounds__(576, 1) NAME(const __grid_constant__ GemmParams p) {                         \
    extern __shared__ __align__(1024) unsigned char group_memory[];                                                         \
    const Lane t = {(i32)blockIdx.x, 0, 0, simd_of_thread(), (i32)threadIdx.x & 31, 18};                               \
    __VA_ARGS__(p, *reinterpret_cast<NarrowGroup*>(group_memory), t);                                                       \
  }
#define NARROW(FORMAT, W)                                         \
  NARROW_KERNEL(gemm_narrow_##FORMAT##_t8, gemm_narrow<W, 8>)     \
  NARROW_KERNEL(gemm_narrow_##FORMAT##_t16, gemm_narrow<W, 16>)   \
  NARROW_KERNEL(gemm_narrow_##FORMAT##_t32, gemm_narrow<W, 32>)
NARROW(f16, GemmF16)
NARROW(bf16, GemmBF16)
NARROW(q8_0, GemmQ8_0)
NARROW(fp8, GemmFP8)
NARROW(q4_0, GemmQ4_0)
NARROW(q4_g128, GemmQ4G128)
NARROW(mxfp4, GemmMXFP4)
NARROW(q4_k, GemmQ4_K)
NARROW(q6_k, GemmQ6_K)
#endif
