// gemm_narrow: gemm (see gemm.h: the same operands, epilogues and meaning) for up to 64 rows, bound by memory. The matrix
// instruction is as wide as there are rows, and weights stream through a ring that takes nearly all of group memory.
//
// Tiles     of up to 64 rows of weights by 256 bytes a stage (two columns), or 128 rows by 128 bytes (two blocks): each of
//           four times four SIMD groups has a column or a block of every second stage. So that all multiprocessors have
//           equal shares, the height of tiles is any multiple of 16; the two groups of a cluster share k.
// Bytes     W once; x once a tile, from the second cache.
// Order     a SIMD group's stages, then stages and columns by turns, then groups of the cluster: shapes alone decide.
//
// gemm_tall: the same for 33 to 64 rows of x. Its tiles are up to 256 rows of weights by 128 bytes. Four SIMD groups together have 64 of
// these rows, in every stage, and each finishes its own sums from registers: lower tiles spend a third of the time in adding up what SIMD
// groups made, and their second round leaves many multiprocessors with nothing to do. No groups share k.
//
// gemm_alike: the same for 1 to 64 rows whose bits must not depend on how many rows there are. k is cut in `parts` (1, 2 or 4) that
// follow from the matrix alone, each a run of k that four SIMD groups multiply from its begin to its end; parts are added from the first
// on. gemm.h cuts k likewise for more rows, and an output is the same 16s of k in the same order there, however wide the instruction is.
#if __CUDA_ARCH_FEAT_SM90_ALL
enum {
  NARROW_MULTIPLIERS = 16,      // SIMD groups; one more copies weights, and one rows
  NARROW_HEADER = 1024,
  NARROW_ROWS_MAX = 64,
  NARROW_STAGES_MAX = 24,
  NARROW_WEIGHTS = 128 * 128    // bytes of a stage
};
struct NarrowGroup {
  unsigned long long full[NARROW_STAGES_MAX], empty[NARROW_STAGES_MAX], summed;
  f32 scales[NARROW_ROWS_MAX];
  unsigned char fill[NARROW_HEADER - 16 * NARROW_STAGES_MAX - 8 - 4 * NARROW_ROWS_MAX];
  unsigned char stages[16];  // then sums
};

// The scales of 256 weights of a row, in bytes, and what copies bring of them: rows of 16 bytes. One block or two are in a stage.
template <class W, bool IN_REGISTERS = W::IN_REGISTERS != 0> struct NarrowScales {
  enum { OF_256 = W::SCALES, ONE = (OF_256 + 15) / 16 * 16, TWO = (2 * OF_256 + 15) / 16 * 16, STAGE = 128 * i32(ONE) };
  static_assert(64 * i32(TWO) <= i32(STAGE), "rows of two blocks are half as many");
};
template <class W> struct NarrowScales<W, false> { enum { OF_256 = 0, ONE = 0, TWO = 0, STAGE = 0 }; };

enum NarrowKind { NARROW_LOW, NARROW_TALL, NARROW_ALIKE };
template <class W, i32 N, NarrowKind KIND> struct NarrowFormat {
  enum {
    TURNS = KIND == NARROW_LOW ? 2 : 1,           // a SIMD group has every second stage, or every one
    K = W::IN_REGISTERS ? 128 * W::PACK : 64,     // numbers in 128 bytes of a row of weights
    UNIT = TURNS == 1 ? 256 : K < 256 ? 512 : 4 * K,  // of k, by which groups share it: `TURNS` stages, or a multiple, and blocks of 256
    X_TILE = N * GEMM_K * 2,
    X_TILES = K / GEMM_K,
    ALIKE = KIND == NARROW_ALIKE
  };
  // Bytes of a stage: weights, scales, then rows. Of gemm_alike as many as tiles are high, because low tiles need many stages to
  // have enough on their way; rows of scales stay on whole KB for what follows.
  static PART i32 weights(CONST GemmParams& p) {
    return KIND == NARROW_ALIKE ? p.parts * p.height * 128 : (KIND == NARROW_TALL ? 2 : 1) * i32(NARROW_WEIGHTS);
  }
  static PART i32 scales(CONST GemmParams& p) {
    if (KIND == NARROW_ALIKE) return (p.parts * p.height * i32(NarrowScales<W>::ONE) + 1023) / 1024 * 1024;
    return (KIND == NARROW_TALL ? 2 : 1) * i32(NarrowScales<W>::STAGE);
  }
  // Of 32 and 64 rows with room for no more columns than there are, so that there are more stages. Of fewer rows more stages are slower.
  static PART i32 columns(CONST GemmParams& p) { return KIND == NARROW_ALIKE ? p.parts : N >= 32 ? p.columns : 2; }
  static PART i32 stage(CONST GemmParams& p) { return weights(p) + scales(p) + columns(p) * (X_TILES * X_TILE); }
};

// A part of k of gemm_alike, in stages.
struct NarrowRun { i32 begin, count; };
template <class Format> FN NarrowRun narrow_run(CONST GemmParams& p, i32 part) {
  const i32 units = (p.k + Format::UNIT - 1) / Format::UNIT, each = Format::UNIT / Format::K, begin = units * part / p.parts;
  return {begin * each, (units * (part + 1) / p.parts - begin) * each};
}

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
  // Of gemm_alike a stage has one of each part, and the last part has the most.
  if (Format::ALIKE) s.count = narrow_run<Format>(p, p.parts - 1).count;
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
template <class W, i32 N, NarrowKind KIND>
FN void narrow_copy_weights(CONST GemmParams& p, NarrowRing ring, const NarrowShare& share, i32 lane) {
  typedef NarrowFormat<W, N, KIND> Format;
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
          const u32 behind = to + Format::weights(p);
          if (p.glu) copy_tile_4d(behind, s.scale_tiles, full, scales, 0, 0, tile.row / 8);
          else copy_tile_2d(behind, s.scale_tiles, full, scales, tile.row);
        }
      }
      simd_barrier();
      narrow_next<1>(p, ring);
    }
  }
}

// Another SIMD group: rows, as soon as the kernel ahead has made them.
template <class W, i32 N, NarrowKind KIND>
FN void narrow_copy_rows(CONST GemmParams& p, NarrowRing ring, const NarrowShare& share, i32 lane) {
  typedef NarrowFormat<W, N, KIND> Format;
  prefetch_map(p.x);
  wait_for_previous();
  const i32 tiles = p.columns * Format::X_TILES;
  ROLL for (i32 index = share.first; index < p.tiles; index += share.step) {
    ROLL for (i32 stage = 0; stage < share.count; stage++) {
      const u32 full = ring.full + ring.slot * 8, to = ring.stages + ring.slot * ring.stage + Format::weights(p) + Format::scales(p);
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

// The same of gemm_alike, where each lane asks for a tile of a part: of its weights, of their scales, or of 64 features of its rows.
// There are `row_tiles` tiles of rows for each tile of weights.
template <class W, i32 N, bool ROWS>
FN void narrow_copy_parts(CONST GemmParams& p, NarrowRing ring, const NarrowShare& share, i32 lane) {
  typedef NarrowFormat<W, N, NARROW_ALIKE> Format;
  const i32 part = ROWS ? lane / i32(Format::X_TILES) : lane % p.parts, piece = ROWS ? lane % i32(Format::X_TILES) : lane / p.parts;
  const bool asks = ROWS ? part < p.parts : piece < (W::IN_REGISTERS ? 2 : 1);
  const NarrowRun run = narrow_run<Format>(p, mini(part, p.parts - 1));
  const i32 scales = p.height * i32(NarrowScales<W>::ONE), weights = p.height * 128, behind = Format::weights(p);
  const i32 at = ROWS ? behind + Format::scales(p) + lane * i32(Format::X_TILE) : piece == 0 ? part * weights : behind + part * scales;
  const i32 bytes = ROWS ? i32(Format::X_TILE) : piece == 0 ? weights : scales;
  if (ROWS) {
    if (lane == 0) prefetch_map(p.x);
    wait_for_previous();
  }
  ROLL for (i32 index = share.first; index < p.tiles * p.row_tiles; index += share.step) {
    const i32 of_weights = index / p.row_tiles;
    const NarrowTile tile = narrow_tile(p, of_weights);
    CONST GemmSegment& s = p.segments[tile.segment];
    ROLL for (i32 stage = 0; stage < share.count; stage++) {
      const u32 full = ring.full + ring.slot * 8, to = ring.stages + ring.slot * ring.stage + at;
      const i32 first = (run.begin + stage) * Format::K;
      const bool live = asks && stage < run.count;
      barrier_wait(ring.empty + ring.slot * 8, ring.phase);
      const i32 all = sum_lanes<SIMD>(live ? bytes : 0);
      if (lane == 0) barrier_expect(full, all);
      simd_barrier();
      if (live) {
        if (ROWS) {
          copy_tile_2d(to, p.x, full, first + piece * GEMM_K, (index - of_weights * p.row_tiles) * N);
        } else if (piece == 0) {
          if (p.glu) copy_tile_4d(to, s.weight, full, first / W::PACK, 0, 0, tile.row / 8);
          else copy_tile_2d(to, s.weight, full, first / W::PACK, tile.row);
        } else {
          if (p.glu) copy_tile_4d(to, s.scale_tiles, full, narrow_scales_begin<W>(first / 256) / 2, 0, 0, tile.row / 8);
          else copy_tile_2d(to, s.scale_tiles, full, narrow_scales_begin<W>(first / 256) / 2, tile.row);
        }
      }
      simd_barrier();
      narrow_next<1>(p, ring);
    }
  }
}

// What a lane reads of each of its stages: addresses, first of `narrow_places` from a stage's begin, then in it.
struct NarrowPlaces { u32 weights, rows, scales; i32 line; };  // line: bytes of scales of a row

// F16, BF16: 64 rows by 128 bytes.
template <class W> struct NarrowStep {
  static PART i32 row(i32 lane) { return lane / 4; }
  static PART u32 weights(i32 simd, i32 lane) { return 0; }
  static PART u32 scales(i32 line, i32 simd, i32 lane) { return 0; }
  template <i32 N, i32 R>
  static PART void run(f32 (&sum)[R], const NarrowPlaces& at, i32 t) {
    const unsigned long long w = tile_descriptor(at.weights), x = tile_descriptor(at.rows);
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
  static PART u32 weights(i32 simd, i32 lane) { return (simd * 16 + row(lane)) * 128 + (lane % 4 ^ row(lane)) * 16; }
  static PART u32 scales(i32 line, i32 simd, i32 lane) { return (simd * 16 + row(lane)) * line + lane % 4 / 2 * 2; }
  template <i32 N, i32 R>
  static PART void run(f32 (&sum)[R], const NarrowPlaces& at, i32 t) {
    const unsigned long long rows = tile_descriptor(at.rows);
    u32 w[2][4][4];
    UNROLL for (i32 i = 0; i < 2; i++) {
      const u32 from = at.weights ^ i * 64, scale = at.scales + i * 4;
      const u32x4 low = load_group_bits(from), high = load_group_bits(from + 8 * 128);
      const GemmScale scale_low = {load_scale(scale), 0}, scale_high = {load_scale(scale + 8 * at.line), 0};
      UNROLL for (i32 j = 0; j < 4; j++) gemm_fragment<W>(w[i][j], low, high, j, scale_low, scale_high);
      const unsigned long long x = rows + i * (N * GEMM_K * 2 / 16);
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
FN void narrow_unit(u32x2& unit, u32 at, i32 t) { unit = {load_word(at), load_word(at + 4)}; }
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
  static PART u32 weights(i32 simd, i32 lane) {
    return (simd * 16 + row(lane)) * 128 + (lane % 4 / 2 ^ row(lane)) * 16 + lane % 2 * 8;
  }
  static PART u32 scales(i32 line, i32 simd, i32 lane) { return (simd * 16 + row(lane)) * line; }
  template <i32 N, i32 R>
  static PART void run(f32 (&sum)[R], const NarrowPlaces& at, i32 t) {
    const unsigned long long rows = tile_descriptor(at.rows);
    const typename W::Unit unit_low = unit(at.scales, t), unit_high = unit(at.scales + 8 * at.line, t);
    // Registers for two of four: where the compiler has too few, it runs matrix instructions one by one (`cargo xtask kernels`
    // fails then).
    u32 w[2][4][4];
    UNROLL for (i32 i = 0; i < 4; i++) {
      const u32 from = at.weights ^ i * 32;
      const typename W::Share low = W::load(from, unit_low, i), high = W::load(from + 8 * 128, unit_high, i);
      const GemmScale scale_low = W::scale(unit_low, i, t), scale_high = W::scale(unit_high, i, t);
      if (i >= 2) matrix_wait<1>();
      UNROLL for (i32 j = 0; j < 4; j++) gemm_fragment<W>(w[i % 2][j], low, high, j, scale_low, scale_high);
      const unsigned long long x = rows + i * (N * GEMM_K * 2 / 16);
      matrix_begin();
      UNROLL for (i32 j = 0; j < 4; j++) MatrixOp<N>::f16(sum, w[i % 2][j], x + 2 * j);
      matrix_commit();
    }
  }
};
template <> struct NarrowStep<GemmQ4_0> : NarrowHalfBytes<GemmQ4_0> {};
template <> struct NarrowStep<GemmQ4G128> : NarrowHalfBytes<GemmQ4G128> {};
template <> struct NarrowStep<GemmQ4Z128> : NarrowHalfBytes<GemmQ4Z128> {};
template <> struct NarrowStep<GemmMXFP4> : NarrowHalfBytes<GemmMXFP4> {};
template <> struct NarrowStep<GemmNVFP4> : NarrowHalfBytes<GemmNVFP4> {};
template <> struct NarrowStep<GemmQ4_K> : NarrowHalfBytes<GemmQ4_K> {};
template <> struct NarrowStep<GemmQ6_K> : NarrowHalfBytes<GemmQ6_K> {};

// Which of four times four SIMD groups: every second stage is for two of them, a column or a block for each; of tall tiles every stage
// is for all. Of gemm_alike `turn` is the part.
struct NarrowRole { i32 turn, side, simd, lane; };

template <class W, i32 N, NarrowKind KIND>
FN NarrowPlaces narrow_places(CONST GemmParams& p, const NarrowRole& role) {
  typedef NarrowFormat<W, N, KIND> Format;
  const bool columns = p.columns == 2;
  // Of bytes, every stage has half of a row's 256 weights, and two columns are all.
  const i32 line = narrow_scales<W>(p), part = W::PACK == 2 ? NarrowScales<W>::OF_256 : 8;
  const i32 side = columns ? role.side * part : role.side * (64 * NarrowScales<W>::ONE) + (W::PACK == 2 ? 0 : role.turn * 8);
  NarrowPlaces places;
  if (Format::ALIKE) {
    places.weights = (role.turn * p.height + role.side * 64) * 128 + NarrowStep<W>::weights(role.simd, role.lane);
    places.scales = Format::weights(p) + (role.turn * p.height + role.side * 64) * NarrowScales<W>::ONE +
                    NarrowStep<W>::scales(line, role.simd, role.lane);
    places.rows = Format::weights(p) + Format::scales(p) + role.turn * (Format::X_TILES * Format::X_TILE);
    places.line = line;
    return places;
  }
  places.weights = role.side * (columns ? p.height : 64) * 128 + NarrowStep<W>::weights(role.simd, role.lane);
  places.scales = Format::weights(p) + side + NarrowStep<W>::scales(line, role.simd, role.lane);
  places.rows = Format::weights(p) + Format::scales(p) + (columns ? role.side * (Format::X_TILES * Format::X_TILE) : 0);
  places.line = line;
  return places;
}

template <class W, i32 N, NarrowKind KIND, i32 R>
FN void narrow_sum(f32 (&sum)[R], CONST GemmParams& p, NarrowRing& ring, const NarrowShare& share, const NarrowPlaces& places, const NarrowRole& role) {
  typedef NarrowFormat<W, N, KIND> Format;
  enum { TURNS = Format::TURNS };
  // Of tall tiles: the SIMD groups whose rows no tile has.
  const bool in = KIND == NARROW_LOW || role.side * 64 < p.height;
  const NarrowRun run = narrow_run<Format>(p, KIND == NARROW_ALIKE ? role.turn : 0);
  ROLL for (i32 stage = 0; stage < share.count; stage += TURNS) {
    const u32 at = ring.stages + ring.slot * ring.stage;
    const i32 block = (KIND == NARROW_ALIKE ? (run.begin + stage) * i32(Format::K) : (share.begin + stage + role.turn) * share.stage_k) / 256;
    u32 inside = NarrowScales<W>::OF_256 % 16 == 0 ? 0 : block * NarrowScales<W>::OF_256 - narrow_scales_begin<W>(block);
    // Of bytes, every second stage has the second half of a block.
    if (TURNS == 1 && W::IN_REGISTERS && W::PACK == 1) inside += stage % 2 * 8;
    const NarrowPlaces here = {at + places.weights, at + places.rows, at + places.scales + inside, places.line};
    barrier_wait(ring.full + ring.slot * 8, ring.phase);
    if (in && (KIND != NARROW_ALIKE || stage < run.count)) NarrowStep<W>::template run<N>(sum, here, role.lane % 4);
    matrix_wait<0>();
    simd_barrier();
    if (role.lane == 0) barrier_arrive(ring.empty + ring.slot * 8);
    narrow_next<TURNS>(p, ring);
  }
}

// The first pair of rows that group `rank` of `sharers` finishes.
template <i32 N> FN i32 narrow_first(i32 rank, i32 sharers) { return (rank * (N / 2) + sharers - 1) / sharers; }

// Sums in group memory, a line for each row of weights: those of this group, of all rows; then, where groups share k, those
// of each of them, of the rows that this one finishes.
struct NarrowSums { u32 own, all, summed; i32 sharers, line, first, pairs; };

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

// Adds up the parts of gemm_alike, from the first on.
template <class W, i32 N, i32 R>
FN void narrow_add_parts(f32 (&sum)[R], CONST GemmParams& p, const NarrowSums& sums, const NarrowRole& role) {
  enum { LINE = (N + 2) * 4 };
  const i32 inside = role.side * 64 + role.simd * 16;
  const u32 own = sums.own + (inside + NarrowStep<W>::row(role.lane)) * LINE + role.lane % 4 * 8;
  ROLL for (i32 part = 0; part < p.parts; part++) {
    if (role.turn == part && inside < p.height) {
      UNROLL for (i32 j = 0; j < N / 8; j++)
        UNROLL for (i32 e = 0; e < 2; e++) {
          const u32 at = own + j * 32 + e * 8 * LINE;
          const f32x2 before = part > 0 ? load_group_pair(at) : make_float2(0.f, 0.f);
          store_group_pair(at, before.x + sum[4 * j + 2 * e], before.y + sum[4 * j + 2 * e + 1]);
        }
    }
    simds_barrier<NARROW_MULTIPLIERS>();
  }
}

// What a thread finishes of every tile: an output, and every `step`-th of the pairs of rows from `first` on. Threads that are
// left over, as heights do not divide their number, begin beyond the last pair.
struct NarrowPart { i32 output, line, first, step; };  // line: in the sums, of which up's is 8 further
FN NarrowPart narrow_part(CONST GemmParams& p, i32 thread) {
  const i32 outputs = p.glu ? p.height / 2 : p.height;
  NarrowPart part;
  part.step = NARROW_MULTIPLIERS * SIMD / outputs;
  part.first = thread / outputs;
  part.output = thread - part.first * outputs;
  part.line = p.glu ? part.output / 8 * 16 + part.output % 8 : part.output;
  if (part.first >= part.step) part.first = NARROW_ROWS_MAX / 2;
  return part;
}

// Of `COUNT` pairs from one on.
template <i32 COUNT>
FN void narrow_residual(f32x2 (&residual)[COUNT], CONST GemmParams& p, const NarrowSums& sums, const NarrowPart& part, i32 feature, i32 n, i32 first, i32 rows) {
  UNROLL for (i32 i = 0; i < COUNT; i++) residual[i] = make_float2(0.f, 0.f);
  if (!given(p.residual) || feature >= n) return;
  const f32* from = p.residual + feature;
  UNROLL for (i32 i = 0; i < COUNT; i++) {
    const i32 pair = first + i * part.step, row = sums.first + pair * 2;
    if (pair >= sums.pairs) continue;
    if (row < rows) residual[i].x = from[i64(row) * p.residual_stride];
    if (row + 1 < rows) residual[i].y = from[i64(row + 1) * p.residual_stride];
  }
}

// See `operand_store`: where number `feature` of a row is.
FN i32 narrow_hand_place(CONST OperandPlace& to, i32 feature) {
  const i32 inside = feature % 4, word = operand_word(to.order, feature - inside);
  const i32 second = to.order == FOR_FOUR_BITS ? inside % 2 : inside / 2, half = to.order == FOR_FOUR_BITS ? inside / 2 : inside % 2;
  return (word + second * (to.order == AS_X ? 1 : i32(OPERAND_NEXT))) * 2 + half;
}

// Where one output goes, and the biases that it gets: `up_bias` only in a gated unit.
struct NarrowOutput {
  f32* y;                  // of row 0
  unsigned short* handed;  // the same, where results become an operand
  f32 bias, up_bias;
};
FN NarrowOutput narrow_output(CONST GemmParams& p, CONST GemmSegment& s, i32 feature) {
  NarrowOutput out;
  out.y = s.y + feature;
  out.handed = reinterpret_cast<unsigned short*>(p.operand.rows) + (given(p.operand.rows) ? narrow_hand_place(p.operand, feature) : 0);
  out.bias = given(s.bias) ? s.bias[feature] : 0.f;
  out.up_bias = given(s.up_bias) ? s.up_bias[feature] : 0.f;
  return out;
}
// Turns the sums `v` of one output feature for `row` and `row + 1` into its results, and stores them. `up` has the sums of up in a gated
// unit; there may be no second row.
FN void narrow_store(CONST GemmParams& p, CONST GemmSegment& s, const NarrowOutput& out, f32x2 v, f32x2 up, f32x2 scale, f32x2 residual, i32 row, i32 rows) {
  v = make_float2(fma32(v.x, scale.x, out.bias), fma32(v.y, scale.y, out.bias));
  if (p.glu) {
    up = make_float2(fma32(up.x, scale.x, out.up_bias), fma32(up.y, scale.y, out.up_bias));
    f32 gates[2] = {v.x, v.y};
    const f32 ups[2] = {up.x, up.y};
    near_gated<2>(gates, ups, s.activation);
    v = make_float2(gates[0], gates[1]);
  }
  const bool both = row + 1 < rows;
  if (given(p.operand.rows)) {
    const f32 x = v.x * p.operand.factor, y = v.y * p.operand.factor;
    const u32 bits = p.operand.is_bf16 ? to_bf16x2(x, y) : f32x2_to_f16x2(x, y);
    out.handed[i64(row) * p.operand.stride] = (unsigned short)bits;
    if (both) out.handed[i64(row + 1) * p.operand.stride] = (unsigned short)(bits >> 16);
  } else {
    f32* const y = out.y + i64(row) * s.y_stride;
    y[0] = v.x + residual.x;
    if (both) y[s.y_stride] = v.y + residual.y;
  }
}

template <i32 COUNT>
FN void narrow_finish(f32x2 (&residual)[COUNT], CONST GemmParams& p, GROUP NarrowGroup& g, NarrowTile tile, const NarrowSums& sums, const NarrowPart& part, i32 rows) {
  CONST GemmSegment& s = p.segments[tile.segment];
  const i32 feature = tile.row + part.output, pairs = mini(sums.pairs, (rows - sums.first + 1) / 2);
  if (feature >= s.n || part.first >= pairs) return;
  const NarrowOutput out = narrow_output(p, s, feature);
  const u32 from = (sums.sharers > 1 ? sums.all : sums.own) + part.line * (sums.line * 4), share = p.height * (sums.line * 4);
  const u32 up_further = 8 * (sums.line * 4), scales = group_address(g.scales) + sums.first * 4;
  ROLL for (i32 first = part.first; first < pairs; first += COUNT * part.step) {
    if (first != part.first) narrow_residual(residual, p, sums, part, feature, s.n, first, rows);
    UNROLL for (i32 i = 0; i < COUNT; i++) {
      const i32 pair = first + i * part.step, row = sums.first + pair * 2;
      if (pair >= pairs) continue;
      f32x2 v = make_float2(0.f, 0.f), up = v;
      ROLL for (i32 sharer = 0; sharer < sums.sharers; sharer++) {
        const u32 at = from + sharer * share + pair * 8;
        const f32x2 a = load_group_pair(at);
        v = make_float2(v.x + a.x, v.y + a.y);
        if (p.glu) {
          const f32x2 b = load_group_pair(at + up_further);
          up = make_float2(up.x + b.x, up.y + b.y);
        }
      }
      narrow_store(p, s, out, v, up, load_group_pair(scales + pair * 8), residual[i], row, rows);
    }
  }
}

// Of tall tiles: a lane has two rows of the tile, which are gate and up of one output, or two outputs.
template <class W, i32 N, i32 R>
FN void narrow_finish_tall(const f32 (&sum)[R], CONST GemmParams& p, GROUP NarrowGroup& g, NarrowTile tile, const NarrowRole& role, i32 rows) {
  enum { BATCH = N < 16 ? 1 : 2 };  // pairs of rows whose residuals are under way together
  CONST GemmSegment& s = p.segments[tile.segment];
  const i32 first = role.side * 64 + role.simd * 16, line = NarrowStep<W>::row(role.lane);
  if (first >= p.height) return;
  ROLL for (i32 e = 0; e < (p.glu ? 1 : 2); e++) {
    const i32 feature = tile.row + (p.glu ? first / 2 + line : first + line + e * 8);
    if (feature >= s.n) continue;
    const NarrowOutput out = narrow_output(p, s, feature);
    UNROLL for (i32 base = 0; base < N / 8; base += BATCH) {
      f32x2 residual[BATCH];
      UNROLL for (i32 i = 0; i < BATCH; i++) {
        const i32 row = (base + i) * 8 + role.lane % 4 * 2;
        residual[i] = make_float2(0.f, 0.f);
        if (!given(p.residual)) continue;
        if (row < rows) residual[i].x = p.residual[i64(row) * p.residual_stride + feature];
        if (row + 1 < rows) residual[i].y = p.residual[i64(row + 1) * p.residual_stride + feature];
      }
      UNROLL for (i32 i = 0; i < BATCH; i++) {
        const i32 j = base + i, row = j * 8 + role.lane % 4 * 2;
        const f32x2 low = make_float2(sum[4 * j], sum[4 * j + 1]), high = make_float2(sum[4 * j + 2], sum[4 * j + 3]);
        const f32x2 scale = load_group_pair(group_address(g.scales) + row * 4);
        if (row < rows) narrow_store(p, s, out, e == 0 ? low : high, high, scale, residual[i], row, rows);
      }
    }
  }
}

template <class W, i32 N, NarrowKind KIND = NARROW_LOW>
FN void gemm_narrow(CONST GemmParams& p, GROUP NarrowGroup& g, Lane t) {
  typedef NarrowFormat<W, N, KIND> Format;
  enum { PAIRS = N < 32 ? 1 : 2 };  // whose residual is under way together
  const NarrowShare share = narrow_share<Format>(p, t.gx);
  NarrowRing ring = {kept(group_address(g.full)), kept(group_address(g.empty)), kept(group_address(g.stages)), Format::stage(p), 0, 1};
  NarrowSums sums;
  sums.summed = kept(group_address(&g.summed));
  sums.own = ring.stages + p.stages * ring.stage;
  sums.all = sums.own + p.height * (N + 2) * 4;
  sums.sharers = share.sharers;
  sums.first = 2 * narrow_first<N>(share.rank, share.sharers);
  sums.pairs = narrow_first<N>(share.rank + 1, share.sharers) - sums.first / 2;
  sums.line = (N / 2 + share.sharers - 1) / share.sharers * 2 + 2;
  let_next_start();
  if (t.simd == NARROW_MULTIPLIERS && t.lane == 0) {
    for (i32 i = 0; i < p.stages; i++) {
      barrier_init(ring.full + i * 8, 2);
      barrier_init(ring.empty + i * 8, NARROW_MULTIPLIERS / Format::TURNS);
    }
    barrier_init(sums.summed, 1);
    barriers_are_ready();
  }
  group_barrier();
  if (share.sharers > 1) cluster_arrive();
  if (t.simd >= NARROW_MULTIPLIERS) {
    if (KIND == NARROW_ALIKE) {
      if (t.simd == NARROW_MULTIPLIERS) narrow_copy_parts<W, N, false>(p, ring, share, t.lane);
      else narrow_copy_parts<W, N, true>(p, ring, share, t.lane);
    } else if (t.simd == NARROW_MULTIPLIERS) {
      narrow_copy_weights<W, N, KIND>(p, ring, share, t.lane);
    } else {
      narrow_copy_rows<W, N, KIND>(p, ring, share, t.lane);
    }
    if (share.sharers > 1) cluster_wait();
    return;
  }
  if (share.sharers > 1) cluster_wait();
  const i32 rows = p.rows[0], thread = t.simd * SIMD + t.lane;
  const NarrowPart part = narrow_part(p, thread);
  const i32 sides = KIND == NARROW_ALIKE ? 4 / p.parts : KIND == NARROW_TALL ? 4 : 2, four = t.simd / 4;
  const NarrowRole role = {KIND == NARROW_TALL ? 0 : four / sides, four % sides, t.simd % 4, t.lane};
  const NarrowPlaces places = narrow_places<W, N, KIND>(p, role);
  // Whether sums are finished from registers: of 33 to 64 rows and one part, gemm_tall has the same bits.
  const bool from_registers = KIND == NARROW_TALL || (KIND == NARROW_ALIKE && N < 64 && p.parts == 1);
  ring.slot = KIND == NARROW_LOW ? role.turn : 0;
  ring.phase = 0;
  wait_for_previous();
  if (thread < (KIND == NARROW_ALIKE ? i32(NARROW_ROWS_MAX) : N)) g.scales[thread] = gemm_row_scale(p, thread, rows);
  if (from_registers) simds_barrier<NARROW_MULTIPLIERS>();
  const i32 row_tiles = KIND == NARROW_ALIKE ? p.row_tiles : 1;
  ROLL for (i32 index = share.first; index < p.tiles * row_tiles; index += share.step) {
    const NarrowTile tile = narrow_tile(p, index / row_tiles);
    if (KIND == NARROW_ALIKE) sums.first = index % row_tiles * N;
    f32 sum[N / 2];
    f32x2 residual[PAIRS];
    if (!from_registers) narrow_residual(residual, p, sums, part, tile.row + part.output, p.segments[tile.segment].n, part.first, rows);
    UNROLL for (i32 i = 0; i < N / 2; i++) sum[i] = 0.f;
    narrow_sum<W, N, KIND>(sum, p, ring, share, places, role);
    CONST GemmSegment& s = p.segments[tile.segment];
    gemm_scale_sums<W>(sum, s.matrix_scale, s.up_matrix_scale, p.glu);
    if (from_registers) {
      narrow_finish_tall<W, N>(sum, p, g, tile, role, rows);
      continue;
    }
    // Everybody has read the sums of the tile before.
    simds_barrier<NARROW_MULTIPLIERS>();
    // Where groups share k, there is one tile for each cluster: nobody is told of the next before it has read this one.
    if (share.sharers > 1 && thread == 0) barrier_expect(sums.summed, share.sharers * p.height * sums.pairs * 8);
    if (KIND == NARROW_ALIKE) narrow_add_parts<W, N>(sum, p, sums, role);
    else narrow_add<W, N>(sum, p, sums, share.rank, role);
    if (share.sharers > 1) barrier_wait(sums.summed, 0);
    narrow_finish(residual, p, g, tile, sums, part, rows);
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
  NARROW_KERNEL(gemm_narrow_##FORMAT##_t32, gemm_narrow<W, 32>)   \
  NARROW_KERNEL(gemm_narrow_##FORMAT##_t64, gemm_narrow<W, 64>)   \
  NARROW_KERNEL(gemm_tall_##FORMAT##_t64, gemm_narrow<W, 64, NARROW_TALL>)    \
  NARROW_KERNEL(gemm_alike_##FORMAT##_t8, gemm_narrow<W, 8, NARROW_ALIKE>)    \
  NARROW_KERNEL(gemm_alike_##FORMAT##_t16, gemm_narrow<W, 16, NARROW_ALIKE>)  \
  NARROW_KERNEL(gemm_alike_##FORMAT##_t32, gemm_narrow<W, 32, NARROW_ALIKE>)  \
  NARROW_KERNEL(gemm_alike_##FORMAT##_t64, gemm_narrow<W, 64, NARROW_ALIKE>)
NARROW(f16, GemmF16)
NARROW(bf16, GemmBF16)
NARROW(q8_0, GemmQ8_0)
NARROW(fp8, GemmFP8)
NARROW(q4_0, GemmQ4_0)
NARROW(q4_g128, GemmQ4G128)
NARROW(q4_z128, GemmQ4Z128)
NARROW(mxfp4, GemmMXFP4)
NARROW(nvfp4, GemmNVFP4)
NARROW(q4_k, GemmQ4_K)
NARROW(q6_k, GemmQ6_K)
#endif
