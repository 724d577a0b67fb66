// gemm_mma: linear (see linear.h: the same segments, epilogues and meaning) for any number of rows, on the matrix instructions
// of SIMD groups (m16n8k16), with weights as their operand of 16 rows. operand_rows makes the operand that it multiplies.
//
// Shapes    operand (rows, k), f16 or bf16, rows of whole 64s, filled up with zeros, each times `row_scales`; W (n, k) in any
//           format but F32; y (rows, n), f32.
// Work      a group makes a tile of 256 features (128 of gate and 128 of up, in a GLU) by T rows, or `slices` groups do, each
//           of a slice of k: the last of them adds up what the others left. Where weights are in blocks a SIMD group has all T
//           rows, so that they become f16 once a tile. Stages of 64, 128 or 256 of k go through a ring in group memory.
// Grid      tiles · slices. Groups that run together share weights, and rows, in the second cache.
// Bytes     W once for T rows, x once for 256 features. Bound by arithmetic from about 200 rows on.
// Accuracy  products of 11 bits (BF16: 8), sums in f32; the weights of blocks are code · scale rounded to f16, by 2^-11; of Q4_K
//           scale and minimum are, too.
// Order     16s of k, then slices. Without slices a row's bits do not depend on T.
struct OperandRowsParams {
  Ptr<const f32x4> x;
  Ptr<const f32x4> gain;    // absent: rows are not normalised
  Ptr<const i32> rows;
  Ptr<const i32> select;    // row i of the operand is made from row select[i] of x
  Ptr<f32> row_scales;      // of f16
  OperandPlace to;          // its factor is not used
  i32 k, x_stride;          // x_stride in vectors
  f32 eps;
  i32 padding;
};
struct GemmMmaParams {
  LinearParams linear;      // a segment's `groups` are its tiles
  Ptr<const u32x4> operand;
  Ptr<const f32> row_scales;
  Ptr<f32x4> partials;      // (tiles, slices, sums of a thread in fours, threads)
  Ptr<u32> counters;        // of tiles
  i32 operand_stride;       // in 16 bytes
  i32 scale_stride;         // of a row of W's scales, in f16
  i32 tiles, slices, stages;
  i32 padding;
};
#if MATRIX_16X8X16

struct OperandGroup { f32 part[2][GROUP_SIMDS]; };

// Row t.gx: normalised or not, times a power of two by which its largest is in [2^13, 2^14).
FN void operand_rows(CONST OperandRowsParams& p, GROUP OperandGroup& g, Lane t) {
  let_next_start();
  if (t.gx >= p.rows[0]) return;  // the whole group
  wait_for_previous();
  const i32 thread = t.simd * SIMD + t.lane, vectors = (p.k + GEMM_K - 1) / GEMM_K * (GEMM_K / 4);
  const Ptr<const f32x4> row = offset(p.x, i64(given(p.select) ? p.select[t.gx] : t.gx) * p.x_stride);
  f32 squares = 0.f, most = 0.f;
  for (i32 i = thread; i < vectors; i += GROUP_THREADS) {
    f32x4 v = row_vector(row, i, p.k);
    if (given(p.gain)) {
      squares = fma32(v.w, v.w, fma32(v.z, v.z, fma32(v.y, v.y, fma32(v.x, v.x, squares))));
      const f32x4 gain = row_vector(p.gain, i, p.k);
      v.x *= gain.x; v.y *= gain.y; v.z *= gain.z; v.w *= gain.w;
    }
    most = max32(most, largest4(v));
  }
  squares = sum_lanes<SIMD>(squares);
  most = max_lanes<SIMD>(most);
  if (t.lane == 0) {
    g.part[0][t.simd] = squares;
    g.part[1][t.simd] = most;
  }
  group_barrier();
  squares = g.part[0][0];
  most = g.part[1][0];
  UNROLL for (i32 s = 1; s < GROUP_SIMDS; s++) {
    squares += g.part[0][s];
    most = max32(most, g.part[1][s]);
  }
  const f32 norm = given(p.gain) ? inv_sqrt(squares / f32(p.k) + p.eps) : 1.f;
  most *= norm;
  f32 factor = 1.f;
  if (!p.to.is_bf16) {
    // The exponent alone: 2^e <= most < 2^(e + 1). What is far too small for f16 to tell from 0 stays so.
    const i32 exponent = mini(maxi(i32(f32_to_bits(most) >> 23), 14), 253);
    factor = bits_to_f32(u32(most == 0.f ? 127 : 267 - exponent) << 23);
    if (thread == 0) p.row_scales[t.gx] = bits_to_f32(u32(most == 0.f ? 127 : exponent - 13) << 23);
  }
  for (i32 i = thread; i < vectors; i += GROUP_THREADS) {
    f32x4 v = row_vector(row, i, p.k);
    if (given(p.gain)) {
      const f32x4 gain = row_vector(p.gain, i, p.k);
      v.x *= norm * gain.x; v.y *= norm * gain.y; v.z *= norm * gain.z; v.w *= norm * gain.w;
    }
    v.x *= factor; v.y *= factor; v.z *= factor; v.w *= factor;
    operand_store(p.to, t.gx, i * 4, v);
  }
}
KERNEL(operand_rows_f32, OperandRowsParams, OperandGroup, 128, operand_rows)

enum {
  MMA_FEATURES = 256,    // rows of weights in a tile
  MMA_HEADER = 128,
  MMA_TOKEN_TILES = 16,  // tiles of rows that go through the second cache together
  MMA_PASS = 32,         // rows that are finished at a time
  MMA_LINE = MMA_FEATURES + 4
};
struct GemmMmaGroup { u32 last, fill[MMA_HEADER / 4 - 1]; };  // then the stages

// F16 and BF16; the other formats are those of gemm_formats.h.
struct MmaF16 : GemmHalves {
  static PART void multiply(THREAD f32 (&c)[4], THREAD const u32 (&a)[4], u32 b0, u32 b1) { mma_f16_16x8x16(c, a[0], a[1], a[2], a[3], b0, b1); }
};
struct MmaBF16 : GemmHalves {
  static PART void multiply(THREAD f32 (&c)[4], THREAD const u32 (&a)[4], u32 b0, u32 b1) { mma_bf16_16x8x16(c, a[0], a[1], a[2], a[3], b0, b1); }
};

// Where a group works: the tile, and of k the blocks of 64 from `begin` to `end`.
struct MmaTile {
  i32 segment, feature, token, index, slice, begin, end;
};

FN MmaTile mma_tile(CONST GemmMmaParams& p, i32 rows, i32 group, i32 height, i32 features) {
  MmaTile tile;
  const i32 token_tiles = (rows + height - 1) / height, index = group / p.slices;
  tile.slice = group - index * p.slices;
  tile.index = index;
  const i32 block = index / (MMA_TOKEN_TILES * p.tiles), left = token_tiles - block * MMA_TOKEN_TILES;
  const i32 wide = mini(left, MMA_TOKEN_TILES), inside = index - block * MMA_TOKEN_TILES * p.tiles;
  i32 feature = inside / wide;
  tile.token = (block * MMA_TOKEN_TILES + inside - feature * wide) * height;
  tile.segment = 0;
  while (tile.segment < 2 && feature >= p.linear.segments[tile.segment].groups) feature -= p.linear.segments[tile.segment++].groups;
  tile.feature = feature * features;
  const i32 blocks = (p.linear.k + GEMM_K - 1) / GEMM_K, units = (blocks + GEMM_UNIT - 1) / GEMM_UNIT;
  tile.begin = units * tile.slice / p.slices * GEMM_UNIT;
  tile.end = mini(units * (tile.slice + 1) / p.slices * GEMM_UNIT, blocks);
  return tile;
}

// The row of weights that line `line` of a tile has. In a GLU every other 16 lines are of the up projection.
template <bool GLU> FN i32 mma_row(i32 feature, i32 line) { return feature + (GLU ? line / 32 * 16 + line % 16 : line); }
template <bool GLU> FN bool mma_is_up(i32 line) { return GLU && line % 32 >= 16; }

// How a group of SIMDS SIMD groups shares a tile: ACROSS of them lie side by side over its lines, of which each has 16 · HEIGHT, by WIDTH
// of its T rows. With many rows few SIMD groups that have much, since operands are read from group memory least; with few, many.
// BLOCKS of 64 of k in a stage: of few rows so many that 128 bytes of each row of weights come together.
template <class W, i32 T> struct MmaShape {
  enum {
    SIMDS = T >= 64 ? 8 : 16,
    THREADS = SIMDS * SIMD,
    HEIGHT = T < 64 ? 1 : W::IN_REGISTERS ? 2 : 4,
    ACROSS = MMA_FEATURES / 16 / HEIGHT,
    WIDTH = T * ACROSS / SIMDS,
    MOST = T >= 128 ? 1 : T >= 64 ? 2 : 4,
    BLOCKS = 128 / W::LINE < MOST ? 128 / W::LINE : MOST,
    W_BLOCK = MMA_FEATURES * W::LINE,   // bytes of a block of weights, and of rows
    X_BLOCK = T * GEMM_K * 2,
    X_AT = BLOCKS * W_BLOCK,
    STAGE = X_AT + BLOCKS * X_BLOCK,
    W_PIECES = BLOCKS * W::LINE / 16,   // of 16 bytes, of a line
    X_PIECES = BLOCKS * GEMM_K * 2 / 16
  };
};

// What a thread copies of each stage: 16 bytes of every STEP-th line, from the same place of each. Where all of a tile's lines
// are there, and all of a stage, which is nearly always, nothing is asked but the copies.
struct MmaCopies {
  Ptr<const u32x4> from;  // of the stage to come
  i64 step;               // from line to line of a thread, in 16 bytes
  i32 lines, to;          // how many there are; where the first goes, or nowhere
};

template <class W, i32 T, bool GLU>
FN MmaCopies mma_weight_copies(CONST LinearSegment& s, i32 feature, i32 block, i32 chunks, i32 thread) {
  typedef MmaShape<W, T> Shape;
  enum { OF_BLOCK = W::LINE / 16, STEP = Shape::THREADS / Shape::W_PIECES, ROWS = GLU ? STEP / 2 : i32(STEP) };
  static_assert(STEP % 32 == 0, "a thread's lines are all of gate, or all of up");
  const i32 line = thread / Shape::W_PIECES, piece = thread % Shape::W_PIECES, row = mma_row<GLU>(feature, line);
  MmaCopies c;
  c.from = offset(mma_is_up<GLU>(line) ? s.up : s.weight, i64(row) * chunks + block * OF_BLOCK + piece);
  c.step = i64(ROWS) * chunks;
  c.lines = (s.n - row + ROWS - 1) / ROWS;
  const i32 place = piece % OF_BLOCK;
  c.to = piece / OF_BLOCK * Shape::W_BLOCK + line * W::LINE + (W::IN_REGISTERS ? place : place ^ (line & 7)) * 16;
  return c;
}

template <class W, i32 T>
FN MmaCopies mma_row_copies(CONST GemmMmaParams& p, i32 token, i32 rows, i32 block, i32 thread) {
  typedef MmaShape<W, T> Shape;
  enum { OF_BLOCK = GEMM_K * 2 / 16, STEP = Shape::THREADS / Shape::X_PIECES };
  const i32 line = thread / Shape::X_PIECES, piece = thread % Shape::X_PIECES;
  MmaCopies c;
  c.from = offset(p.operand, i64(token + line) * p.operand_stride + block * OF_BLOCK + piece);
  c.step = i64(STEP) * p.operand_stride;
  c.lines = (rows - token - line + STEP - 1) / STEP;
  // A tile may have fewer than STEP lines.
  c.to = line < T ? piece / OF_BLOCK * Shape::X_BLOCK + line * (GEMM_K * 2) + (piece % OF_BLOCK ^ (line & 7)) * 16 : -1;
  return c;
}

// Asks for a stage of LINES lines of a thread, SPAN bytes apart in group memory; `whole` if none of the tile is missing, and zeros
// come where one is. `in`: whether the thread's part of the stage is there. Nothing is read from `any`, which must be memory.
template <i32 LINES, i32 SPAN>
FN void mma_copy(GROUP GemmMmaGroup& g, THREAD MmaCopies& c, i32 at, i32 pieces, bool whole, bool in, Ptr<const u32x4> any) {
  if (whole) {
    UNROLL for (i32 j = 0; j < LINES; j++) copy16_async(g, at + c.to + j * SPAN, c.from, j * c.step, true);
  } else if (c.to >= 0) {
    UNROLL for (i32 j = 0; j < LINES; j++) {
      const bool is_there = in && j < c.lines;
      copy16_async(g, at + c.to + j * SPAN, is_there ? c.from : any, is_there ? j * c.step : 0, is_there);
    }
  }
  c.from = offset(c.from, pieces);
}

// What of a tile is there: whether all its features and rows; blocks of k of which all weights are, and all; chunks of a row of weights.
struct MmaThere { bool features, rows; i32 whole_blocks, blocks, chunks; };

template <class W, i32 T>
FN void mma_copy_weights(GROUP GemmMmaGroup& g, THREAD MmaCopies& c, THREAD const MmaThere& there, i32 block, i32 at, i32 thread, Ptr<const u32x4> any) {
  typedef MmaShape<W, T> Shape;
  enum { STEP = Shape::THREADS / Shape::W_PIECES };
  mma_copy<MMA_FEATURES / STEP, STEP * W::LINE>(g, c, at, Shape::W_PIECES, there.features && block + Shape::BLOCKS <= there.whole_blocks,
                                                block * (W::LINE / 16) + thread % Shape::W_PIECES < there.chunks, any);
}

template <class W, i32 T>
FN void mma_copy_rows(GROUP GemmMmaGroup& g, THREAD MmaCopies& c, THREAD const MmaThere& there, i32 block, i32 at, i32 thread, Ptr<const u32x4> any) {
  typedef MmaShape<W, T> Shape;
  enum { STEP = Shape::THREADS / Shape::X_PIECES, LINES = (T + STEP - 1) / STEP };
  mma_copy<LINES, STEP * GEMM_K * 2>(g, c, at, Shape::X_PIECES, T >= STEP && there.rows && block + Shape::BLOCKS <= there.blocks,
                                     block + thread % Shape::X_PIECES / (GEMM_K * 2 / 16) < there.blocks, any);
}

// What the operands of a SIMD group's lines are made of: for those in 16 bits nothing but group memory.
template <class W, i32 HEIGHT, bool IN_REGISTERS> struct MmaWeights {
  template <bool GLU> PART void begin(CONST LinearSegment& s, i32 scale_stride, i32 feature, i32 place, i32 simd, i32 lane) {}
  PART void next_unit(i32 place, bool more, i32 t) {}
  PART void load(GROUP GemmMmaGroup& g, i32 at, i32 simd, i32 pair, i32 lane) { lines = at + simd * (16 * HEIGHT) * W::LINE; }
  PART void operand(THREAD u32 (&a)[HEIGHT][4], GROUP GemmMmaGroup& g, i32 step, i32 lane) {
    const i32 matrix = lane / 8, line = lane % 8;
    UNROLL for (i32 m = 0; m < HEIGHT; m++)
      load_matrices(a[m], group_at<u32x4>(g, lines + (m * 16 + matrix % 2 * 8 + line) * W::LINE + ((step * 2 + matrix / 2) ^ line) * 16)[0]);
  }
  static PART void multiply(THREAD f32 (&c)[4], THREAD const u32 (&a)[4], u32 b0, u32 b1) { W::multiply(c, a, b0, b1); }
  i32 lines;
};
template <class W, i32 HEIGHT> struct MmaWeights<W, HEIGHT, true> {
  enum { ROWS = 2 * HEIGHT };
  Ptr<const f16> scales[ROWS];  // of lines lane / 4 + 8 i
  typename W::Unit unit[ROWS], next[ROWS];
  typename W::Share share[ROWS];
  GemmScale scale[ROWS];
  template <bool GLU> PART void begin(CONST LinearSegment& s, i32 scale_stride, i32 feature, i32 place, i32 simd, i32 lane) {
    UNROLL for (i32 i = 0; i < ROWS; i++) {
      const i32 line = simd * (16 * HEIGHT) + i * 8 + lane / 4;
      scales[i] = offset(mma_is_up<GLU>(line) ? s.up_scales : s.scales, i64(mini(mma_row<GLU>(feature, line), s.n - 1)) * scale_stride);
      next[i] = W::unit(scales[i], place, lane % 4);
    }
  }
  PART void next_unit(i32 place, bool more, i32 t) {
    UNROLL for (i32 i = 0; i < ROWS; i++) {
      unit[i] = next[i];
      if (more) next[i] = W::unit(scales[i], place, t);
    }
  }
  PART void load(GROUP GemmMmaGroup& g, i32 at, i32 simd, i32 pair, i32 lane) {
    UNROLL for (i32 i = 0; i < ROWS; i++) {
      share[i] = W::load(group_address_at(g, at + W::place(simd * (16 * HEIGHT) + i * 8 + lane / 4, lane % 4)), unit[i], pair);
      scale[i] = W::scale(unit[i], pair, lane % 4);
    }
  }
  PART void operand(THREAD u32 (&a)[HEIGHT][4], GROUP GemmMmaGroup& g, i32 step, i32 lane) {
    UNROLL for (i32 m = 0; m < HEIGHT; m++) {
      W::widen(a[m][0], a[m][2], share[2 * m], step, scale[2 * m]);
      W::widen(a[m][1], a[m][3], share[2 * m + 1], step, scale[2 * m + 1]);
    }
  }
  static PART void multiply(THREAD f32 (&c)[4], THREAD const u32 (&a)[4], u32 b0, u32 b1) { mma_f16_16x8x16(c, a[0], a[1], a[2], a[3], b0, b1); }
};

// What a lane has: of lines 16 m + lane / 4 + 8 (i / 2), rows 8 n + lane % 4 · 2 + i % 2.
template <i32 HEIGHT, i32 WIDTH> struct MmaSums { f32 at[HEIGHT][WIDTH / 8][4]; };
template <i32 HEIGHT, i32 WIDTH> FN void mma_clear(THREAD MmaSums<HEIGHT, WIDTH>& sum) {
  UNROLL for (i32 m = 0; m < HEIGHT; m++)
    UNROLL for (i32 n = 0; n < WIDTH / 8; n++) UNROLL for (i32 i = 0; i < 4; i++) sum.at[m][n][i] = 0.f;
}

// The outputs of a tile, MMA_PASS rows at a time by way of group memory, where lines have a gap after them so that neither writing
// nor reading meets a bank twice: a thread has one feature of all of them.
template <class W, i32 T, bool GLU, i32 HEIGHT, i32 WIDTH>
FN void mma_finish(CONST GemmMmaParams& p, GROUP GemmMmaGroup& g, CONST LinearSegment& s, THREAD const MmaSums<HEIGHT, WIDTH>& sum, i32 first, i32 token, i32 rows, Lane t) {
  enum { ACROSS = MmaShape<W, T>::ACROSS, PASS = T < MMA_PASS ? T : i32(MMA_PASS) };
  enum { FEATURES = GLU ? MMA_FEATURES / 2 : i32(MMA_FEATURES), TOGETHER = MmaShape<W, T>::THREADS / FEATURES };
  const GroupPtr<f32> sums = group_at<f32>(g, MMA_HEADER);
  const f32 scale = HasMatrixScale<W>::VALUE ? s.matrix_scale * 16384.f : 1.f, up_scale = HasMatrixScale<W>::VALUE ? s.up_matrix_scale * 16384.f : 1.f;
  const i32 thread = t.simd * SIMD + t.lane, mine = thread % FEATURES, feature = first + mine;
  // In a GLU every other 16 lines are of the up projection.
  const i32 place = GLU ? mine / 16 * 32 + mine % 16 : mine;
  const i32 line_at = t.simd % ACROSS * (16 * HEIGHT) + t.lane / 4, row_at = t.simd / ACROSS * WIDTH;  // of the sums that the thread has
  const bool in = feature < s.n;
  const f32 bias = in && given(s.bias) ? s.bias[feature] : 0.f, up_bias = GLU && in && given(s.up_bias) ? s.up_bias[feature] : 0.f;
  for (i32 pass = 0; pass < T && token + pass < rows; pass += PASS) {
    group_barrier();  // all have read what lay here
    UNROLL for (i32 n = 0; n < WIDTH / 8; n++) {
      const i32 row = row_at + n * 8 - pass;
      if (row >= 0 && row < PASS)
        UNROLL for (i32 m = 0; m < HEIGHT; m++)
          UNROLL for (i32 i = 0; i < 4; i++)
            sums[(row + t.lane % 4 * 2 + i % 2) * MMA_LINE + line_at + m * 16 + i / 2 * 8] = sum.at[m][n][i];
    }
    group_barrier();
    const i32 end = mini(PASS, rows - token - pass);
    for (i32 line = thread / FEATURES; in && line < end; line += TOGETHER) {
      const i32 row = token + pass + line;
      const f32 by = given(p.row_scales) ? p.row_scales[row] : 1.f;
      f32 y = fma32(sums[line * MMA_LINE + place], by * scale, bias);
      if (GLU) y = gated(y, fma32(sums[line * MMA_LINE + place + 16], by * up_scale, up_bias), s.activation);
      if (given(p.linear.residual)) y += p.linear.residual[i64(row) * p.linear.residual_stride + feature];
      s.y[i64(row) * s.y_stride + feature] = y;
    }
  }
}

// Leaves a slice's sums for the last group of the tile. True in that, which has the sums of all slices then.
template <i32 HEIGHT, i32 WIDTH>
FN bool mma_fold(CONST GemmMmaParams& p, GROUP GemmMmaGroup& g, THREAD MmaSums<HEIGHT, WIDTH>& sum, THREAD const MmaTile& tile, Lane t) {
  enum { COLUMNS = WIDTH / 8, VECTORS = HEIGHT * i32(COLUMNS) };
  const i32 thread = t.simd * SIMD + t.lane, threads = t.simds * SIMD;
  const Ptr<f32x4> all = offset(p.partials, i64(tile.index) * p.slices * (VECTORS * threads));
  UNROLL for (i32 i = 0; i < VECTORS; i++) {
    THREAD const f32 (&c)[4] = sum.at[i / COLUMNS][i % COLUMNS];
    f32x4 v;
    v.x = c[0]; v.y = c[1]; v.z = c[2]; v.w = c[3];
    all[i64(tile.slice * VECTORS + i) * threads + thread] = v;
  }
  group_barrier();
  if (thread == 0) g.last = count_group(p.counters, tile.index, u32(p.slices));
  group_barrier();
  if (g.last == 0) return false;
  mma_clear(sum);
  for (i32 slice = 0; slice < p.slices; slice++)
    UNROLL for (i32 i = 0; i < VECTORS; i++) {
      const f32x4 v = all[i64(slice * VECTORS + i) * threads + thread];
      THREAD f32 (&c)[4] = sum.at[i / COLUMNS][i % COLUMNS];
      c[0] += v.x; c[1] += v.y; c[2] += v.z; c[3] += v.w;
    }
  return true;
}

// 16 rows of x, as two operands: those of step `step` of a stage.
FN void mma_rows(THREAD u32 (&b)[4], GROUP GemmMmaGroup& g, i32 at, i32 step, i32 n, i32 lane) {
  const i32 matrix = lane / 8, line = lane % 8;
  load_matrices(b, group_at<u32x4>(g, at + (n * 16 + matrix / 2 * 8 + line) * (GEMM_K * 2) + ((step * 2 + matrix % 2) ^ line) * 16)[0]);
}

// FORMAT has how weights lie in device memory, W how they become operands.
template <class FORMAT, class W, i32 T, bool GLU>
FN void gemm_mma(CONST GemmMmaParams& p, GROUP GemmMmaGroup& g, Lane t) {
  typedef MmaShape<W, T> Shape;
  enum { FEATURES = GLU ? MMA_FEATURES / 2 : i32(MMA_FEATURES), STAGE = Shape::STAGE, BLOCKS = Shape::BLOCKS };
  let_next_start();
  const i32 rows = p.linear.rows[0], thread = t.simd * SIMD + t.lane;
  if (t.gx >= (rows + T - 1) / T * p.tiles * p.slices) return;  // the whole group
  const MmaTile tile = mma_tile(p, rows, t.gx, T, FEATURES);
  CONST LinearSegment& s = p.linear.segments[tile.segment];
  MmaThere there;
  there.features = tile.feature + FEATURES <= s.n;
  there.rows = tile.token + T <= rows;
  there.chunks = (p.linear.k + FORMAT::LEN - 1) / FORMAT::LEN;
  there.whole_blocks = there.chunks / (W::LINE / 16);
  there.blocks = (p.linear.k + GEMM_K - 1) / GEMM_K;
  MmaCopies w = mma_weight_copies<W, T, GLU>(s, tile.feature, tile.begin, there.chunks, thread);
  MmaCopies x = mma_row_copies<W, T>(p, tile.token, rows, tile.begin, thread);
  const i32 ahead = p.stages - 1;
  for (i32 i = 0; i < ahead && tile.begin + i * BLOCKS < tile.end; i++)
    mma_copy_weights<W, T>(g, w, there, tile.begin + i * BLOCKS, MMA_HEADER + i * STAGE, thread, s.weight);
  MmaWeights<W, Shape::HEIGHT, W::IN_REGISTERS> weights;
  const i32 simd = t.simd % Shape::ACROSS, rows_at = Shape::X_AT + t.simd / Shape::ACROSS * (Shape::WIDTH * GEMM_K * 2);
  weights.template begin<GLU>(s, p.scale_stride, tile.feature, tile.begin / GEMM_UNIT, simd, t.lane);
  MmaSums<Shape::HEIGHT, Shape::WIDTH> sum;
  mma_clear(sum);
  wait_for_previous();
  for (i32 i = 0; i < ahead; i++) {
    if (tile.begin + i * BLOCKS < tile.end)
      mma_copy_rows<W, T>(g, x, there, tile.begin + i * BLOCKS, MMA_HEADER + i * STAGE + Shape::X_AT, thread, p.operand);
    copies_asked();
  }
  i32 slot = 0, next_slot = ahead;
  for (i32 first = tile.begin; first < tile.end; first += BLOCKS) {
    if (ahead == 1) copies_arrived<0>();
    else if (ahead == 2) copies_arrived<1>();
    else copies_arrived<2>();
    group_barrier();  // all have this stage, and none reads the one before
    UNROLL for (i32 u = 0; u < BLOCKS; u++) {
      const i32 block = first + u, at = MMA_HEADER + slot * STAGE, pair = block % GEMM_UNIT;
      const bool is_there = u == 0 || block < tile.end;
      u32 a[2][Shape::HEIGHT][4], b[2][4];
      if (is_there) {
        if (pair == 0) weights.next_unit(block / GEMM_UNIT + 1, block + GEMM_UNIT < tile.end, t.lane % 4);
        weights.load(g, at + u * Shape::W_BLOCK, simd, pair, t.lane);
        weights.operand(a[0], g, 0, t.lane);
        mma_rows(b[0], g, at + rows_at + u * Shape::X_BLOCK, 0, 0, t.lane);
      }
      if (u == 0) {
        const i32 next = first + ahead * BLOCKS, to = MMA_HEADER + next_slot * STAGE;
        if (next < tile.end) {
          mma_copy_weights<W, T>(g, w, there, next, to, thread, s.weight);
          mma_copy_rows<W, T>(g, x, there, next, to + Shape::X_AT, thread, p.operand);
        }
        copies_asked();
      }
      if (!is_there) continue;
      enum { COLUMNS = Shape::WIDTH / 16, ALL = GEMM_K / 16 * i32(COLUMNS) };
      UNROLL for (i32 i = 0; i < ALL; i++) {
        const i32 step = i / COLUMNS, n = i % COLUMNS;
        // What comes next is on its way while matrix instructions run.
        if (i + 1 < ALL) mma_rows(b[(i + 1) % 2], g, at + rows_at + u * Shape::X_BLOCK, (i + 1) / COLUMNS, (i + 1) % COLUMNS, t.lane);
        if (n == COLUMNS - 1 && i + 1 < ALL) weights.operand(a[(step + 1) % 2], g, step + 1, t.lane);
        UNROLL for (i32 m = 0; m < Shape::HEIGHT; m++) {
          weights.multiply(sum.at[m][n * 2], a[step % 2][m], b[i % 2][0], b[i % 2][1]);
          weights.multiply(sum.at[m][n * 2 + 1], a[step % 2][m], b[i % 2][2], b[i % 2][3]);
        }
      }
    }
    slot = slot + 1 == p.stages ? 0 : slot + 1;
    next_slot = next_slot + 1 == p.stages ? 0 : next_slot + 1;
  }
  if (p.slices > 1 && !mma_fold(p, g, sum, tile, t)) return;
  mma_finish<W, T, GLU>(p, g, s, sum, tile.feature, tile.token, rows, t);
}

// Rows of a tile: as `src/kernels/gemm_mma.rs` has them.
#define GEMM_MMA(NAME, FORMAT, W, T, THREADS)                                                                             \
  KERNEL_DYNAMIC(gemm_mma_##NAME##_t##T, GemmMmaParams, GemmMmaGroup, THREADS, gemm_mma<FORMAT, W, T, false>)             \
  KERNEL_DYNAMIC(gemm_mma_glu_##NAME##_t##T, GemmMmaParams, GemmMmaGroup, THREADS, gemm_mma<FORMAT, W, T, true>)
#define GEMM_MMA_ROWS(NAME, FORMAT, W)  \
  GEMM_MMA(NAME, FORMAT, W, 16, 512)    \
  GEMM_MMA(NAME, FORMAT, W, 32, 512)    \
  GEMM_MMA(NAME, FORMAT, W, 64, 256)    \
  GEMM_MMA(NAME, FORMAT, W, 128, 256)
GEMM_MMA_ROWS(f16, WeightF16, MmaF16)
GEMM_MMA_ROWS(bf16, WeightBF16, MmaBF16)
GEMM_MMA_ROWS(q8_0, WeightQ8_0, GemmQ8_0)
GEMM_MMA_ROWS(fp8, WeightFP8, GemmFP8)
GEMM_MMA_ROWS(q4_0, WeightQ4_0, GemmQ4_0)
GEMM_MMA_ROWS(q4_g128, WeightQ4G128, GemmQ4G128)
GEMM_MMA_ROWS(q4_z128, WeightQ4Z128, GemmQ4Z128)
GEMM_MMA_ROWS(mxfp4, WeightMXFP4, GemmMXFP4)
GEMM_MMA_ROWS(nvfp4, WeightNVFP4, GemmNVFP4)
GEMM_MMA_ROWS(q4_k, WeightQ4_K, GemmQ4_K)
GEMM_MMA_ROWS(q6_k, WeightQ6_K, GemmQ6_K)
#endif
