// attention_tiles: attention of attention.h for many rows of a sequence, from an f16 cache of heads of exactly 64 or 128
// features, by matrix instructions.
//
// Tables    items[i]: the first row of a tile, and its number of rows, which are of one sequence and at most 128.
// Grid      (heads, items): the last item first, since in a sequence it has most to do.
// Tiles     a group takes 128 rows of a query head, a SIMD group 32 of them, against 64 positions after another; the next
//           64 are on their way to group memory meanwhile.
// Work      4 · 128 · 64 · D operations for 256 · D bytes from the cache, most of which other groups asked for too: bound
//           by arithmetic.
// Accuracy  queries and weights are rounded to f16, sums are f32. Queries are scaled by a power of two of their own row,
//           weights by 2^15, so that f16 holds them. Not the bits of attention.h.
#if MATRIX_16X8X16
enum { TILE_ROWS = 128, TILE_POSITIONS = 64 };

// Rows of D halves in chunks of 16 bytes: chunk i of row r lies at place i ^ (r % 8), so that eight rows' chunks of the same
// place are in different banks.
template <i32 D> struct AttentionTiles {
  u32x4 q[TILE_ROWS][D / 8];
  u32x4 keys[2][TILE_POSITIONS][D / 8];
  u32x4 values[2][TILE_POSITIONS][D / 8];
  f32 scale[TILE_ROWS];
  i32 slots[2][TILE_POSITIONS];
};

// What a tile is, and what it sees: positions from `first` to `last`, in steps of TILE_POSITIONS.
struct TileWork {
  i32 first_row, rows, position;  // of the first row
  i32 first, last, steps;
  i32 head, kv_head;
};

FN TileWork tile_work(CONST AttentionParams<f16>& p, Lane t) {
  TileWork w;
  const i32x2 item = p.items[p.num_items[0] - 1 - t.gy];
  w.first_row = item.x;
  w.rows = item.y;
  w.position = p.positions[item.x];
  w.first = p.window > 0 ? maxi(0, w.position + 1 - p.window) : 0;
  w.last = w.position + w.rows - 1;
  w.steps = (w.last - w.first) / TILE_POSITIONS + 1;
  w.head = t.gx;
  w.kv_head = t.gx / (p.heads / p.kv_heads);
  return w;
}

// Asks for the positions of a step whose slots are known.
template <i32 D>
FN void tile_copy(CONST AttentionParams<f16>& p, GROUP AttentionTiles<D>& g, i32 step, i32 thread) {
  enum { CHUNKS = D / 8 };
  const i32 half = step & 1;
  UNROLL for (i32 j = 0; j < TILE_POSITIONS * CHUNKS / GROUP_THREADS; j++) {
    const i32 item = j * GROUP_THREADS + thread, row = item / CHUNKS, chunk = item % CHUNKS;
    const i64 from = i64(g.slots[half][row]) * CHUNKS + chunk;
    copy16_async(g.keys[half][row][chunk ^ (row & 7)], vectors16(p.keys), from);
    copy16_async(g.values[half][row][chunk ^ (row & 7)], vectors16(p.values), from);
  }
}

FN i32 tile_slot(CONST AttentionParams<f16>& p, Ptr<const i32> table, THREAD const TileWork& w, i32 step, i32 thread) {
  return attention_slot(p, table, w.kv_head, mini(w.first + step * TILE_POSITIONS + thread, w.last));
}

// The tile's queries, scaled and rounded: a SIMD group writes the rows that it multiplies.
template <i32 D>
FN void tile_queries(CONST AttentionParams<f16>& p, THREAD const TileWork& w, GROUP AttentionTiles<D>& g, Lane t) {
  enum { VECTORS = D / 4, SIDE_BY_SIDE = SIMD / VECTORS };  // a lane has four features
  UNROLL for (i32 base = 0; base < TILE_ROWS / GROUP_SIMDS; base += 4 * SIDE_BY_SIDE) {
    f32x4 q[4];
    UNROLL for (i32 j = 0; j < 4; j++) {
      const i32 row = t.simd * (TILE_ROWS / GROUP_SIMDS) + base + j * SIDE_BY_SIDE + t.lane / VECTORS;
      const i64 from = i64(w.first_row + mini(row, w.rows - 1)) * p.q_stride + w.head * D;
      q[j] = vectors4(offset(p.q, from))[t.lane % VECTORS];
    }
    UNROLL for (i32 j = 0; j < 4; j++) {
      const i32 row = t.simd * (TILE_ROWS / GROUP_SIMDS) + base + j * SIDE_BY_SIDE + t.lane / VECTORS;
      const u32 exponent = exponent_of(max_lanes<VECTORS>(max32(max32(abs32(q[j].x), abs32(q[j].y)), max32(abs32(q[j].z), abs32(q[j].w)))));
      const f32 inverse = inverse_power(exponent);
      const u32 a = f32x2_to_f16x2(q[j].x * inverse, q[j].y * inverse), b = f32x2_to_f16x2(q[j].z * inverse, q[j].w * inverse);
      const u32 other_a = u32(shuffle(i32(a), t.lane | 1)), other_b = u32(shuffle(i32(b), t.lane | 1));
      const i32 chunk = t.lane % VECTORS / 2;
      if (t.lane % 2 == 0) g.q[row][chunk ^ (row & 7)] = make16(a, b, other_a, other_b);
      if (t.lane % VECTORS == 0) g.scale[row] = bits_to_f32(exponent) * (p.scale * LOG2_E);
    }
  }
}

// What a lane has of 32 rows: of 16 m + lane / 4 + 8 i, for m and i of 0 and 1.
template <i32 D> struct TileState { f32 acc[2][D / 8][4]; f32 top[2][2], sum[2][2], scale[2][2]; };

// 32 rows of a SIMD group against N positions of the tile, from `first` on, of which the first is `begin`.
template <i32 D, i32 N>
FN void tile_step(CONST AttentionParams<f16>& p, THREAD const TileWork& w, THREAD TileState<D>& s, GROUP const AttentionTiles<D>& g, i32 half, i32 first, i32 begin, Lane t) {
  const i32 row = t.simd * (TILE_ROWS / GROUP_SIMDS), matrix = t.lane / 8, line = t.lane % 8;
  f32 score[2][N / 8][4];
  UNROLL for (i32 m = 0; m < 2; m++)
    UNROLL for (i32 n = 0; n < N / 8; n++) UNROLL for (i32 i = 0; i < 4; i++) score[m][n][i] = 0;
  UNROLL for (i32 k = 0; k < D / 16; k++) {
    u32 a[2][4];
    // Matrices in the order of the instruction's operands: rows first, then features.
    UNROLL for (i32 m = 0; m < 2; m++) load_matrices(a[m], g.q[row + m * 16 + matrix % 2 * 8 + line][(k * 2 + matrix / 2) ^ line]);
    UNROLL for (i32 n = 0; n < N / 16; n++) {
      u32 b[4];
      load_matrices(b, g.keys[half][first + n * 16 + matrix / 2 * 8 + line][(k * 2 + matrix % 2) ^ line]);
      UNROLL for (i32 m = 0; m < 2; m++) {
        mma_f16_16x8x16(score[m][n * 2], a[m][0], a[m][1], a[m][2], a[m][3], b[0], b[1]);
        mma_f16_16x8x16(score[m][n * 2 + 1], a[m][0], a[m][1], a[m][2], a[m][3], b[2], b[3]);
      }
    }
  }
  // Whether some row of the SIMD group does not see some position: the same for all its lanes.
  const i32 low = w.position + row, high = low + TILE_ROWS / GROUP_SIMDS - 1;
  const bool masked = begin + N - 1 > low || (p.window > 0 && begin <= high - p.window);
  UNROLL for (i32 m = 0; m < 2; m++)
    UNROLL for (i32 i = 0; i < 2; i++) {
      const i32 position = low + m * 16 + i * 8 + t.lane / 4;
      f32 now = s.top[m][i];
      UNROLL for (i32 n = 0; n < N / 8; n++)
        UNROLL for (i32 e = 0; e < 2; e++) {
          f32 x = score[m][n][i * 2 + e] * s.scale[m][i];
          if (masked) {
            const i32 at = begin + n * 8 + t.lane % 4 * 2 + e;
            if (at > position || (p.window > 0 && at <= position - p.window)) x = ATTENTION_MASKED;
          }
          score[m][n][i * 2 + e] = x;
          now = max32(now, x);
        }
      now = max32(now, shuffle_xor(now, 1));
      now = max32(now, shuffle_xor(now, 2));
      if (any_lane(now > s.top[m][i])) {
        const f32 keep = exp2_32(s.top[m][i] - now);
        s.top[m][i] = now;
        s.sum[m][i] *= keep;
        UNROLL for (i32 j = 0; j < D / 8; j++) { s.acc[m][j][i * 2] *= keep; s.acc[m][j][i * 2 + 1] *= keep; }
      }
      const f32 shifted = s.top[m][i] - WEIGHT_SHIFT;
      UNROLL for (i32 n = 0; n < N / 8; n++)
        UNROLL for (i32 e = 0; e < 2; e++) {
          const f32 weight = exp2_32(score[m][n][i * 2 + e] - shifted);
          score[m][n][i * 2 + e] = weight;
          s.sum[m][i] += weight;
        }
    }
  UNROLL for (i32 n = 0; n < N / 16; n++) {
    u32 a[2][4];
    UNROLL for (i32 m = 0; m < 2; m++)
      UNROLL for (i32 i = 0; i < 4; i++)
        a[m][i] = f32x2_to_f16x2(score[m][n * 2 + i / 2][i % 2 * 2], score[m][n * 2 + i / 2][i % 2 * 2 + 1]);
    UNROLL for (i32 j = 0; j < D / 16; j++) {
      u32 b[4];
      load_matrices_turned(b, g.values[half][first + n * 16 + matrix % 2 * 8 + line][(j * 2 + matrix / 2) ^ line]);
      UNROLL for (i32 m = 0; m < 2; m++) {
        mma_f16_16x8x16(s.acc[m][j * 2], a[m][0], a[m][1], a[m][2], a[m][3], b[0], b[1]);
        mma_f16_16x8x16(s.acc[m][j * 2 + 1], a[m][0], a[m][1], a[m][2], a[m][3], b[2], b[3]);
      }
    }
  }
}

template <i32 D>
FN void tile_store(CONST AttentionParams<f16>& p, THREAD const TileWork& w, THREAD TileState<D>& s, Lane t) {
  UNROLL for (i32 m = 0; m < 2; m++)
    UNROLL for (i32 i = 0; i < 2; i++) {
      const i32 row = t.simd * (TILE_ROWS / GROUP_SIMDS) + m * 16 + i * 8 + t.lane / 4;
      f32 sum = s.sum[m][i];
      sum += shuffle_xor(sum, 1);
      sum += shuffle_xor(sum, 2);
      const f32 scale = 1.f / attention_divisor(p, w.head, sum, s.top[m][i] - WEIGHT_SHIFT);
      const Ptr<f32> out = offset(p.out, i64(w.first_row + row) * p.out_stride + w.head * D + t.lane % 4 * 2);
      if (row < w.rows)
        UNROLL for (i32 j = 0; j < D / 8; j++) {
          out[j * 8] = s.acc[m][j][i * 2] * scale;
          out[j * 8 + 1] = s.acc[m][j][i * 2 + 1] * scale;
        }
    }
}

template <i32 D>
FN void attention_tiles(CONST AttentionParams<f16>& p, GROUP AttentionTiles<D>& g, Lane t) {
  enum { AT_ONCE = D == 64 ? 64 : 32 };  // with more, registers do not suffice
  let_next_start();
  if (t.gy >= p.num_items[0]) {
    // A kernel may not end before the one ahead has.
    if (t.gx + t.gy == 0) wait_for_previous();
    return;  // the whole group
  }
  const TileWork w = tile_work(p, t);
  const Ptr<const i32> table = offset(p.blocks, p.table_starts[w.first_row]);
  const i32 thread = t.simd * SIMD + t.lane;
  // Slots of this step and the next.
  if (thread < TILE_POSITIONS) {
    g.slots[0][thread] = tile_slot(p, table, w, 0, thread);
    g.slots[1][thread] = tile_slot(p, table, w, 1, thread);
  }
  wait_for_previous();
  group_barrier();
  tile_copy(p, g, 0, thread);
  copies_asked();
  tile_queries(p, w, g, t);
  simd_barrier();
  TileState<D> s;
  UNROLL for (i32 m = 0; m < 2; m++) {
    UNROLL for (i32 j = 0; j < D / 8; j++) UNROLL for (i32 i = 0; i < 4; i++) s.acc[m][j][i] = 0;
    UNROLL for (i32 i = 0; i < 2; i++) {
      s.top[m][i] = ATTENTION_NONE;
      s.sum[m][i] = 0;
      s.scale[m][i] = g.scale[t.simd * (TILE_ROWS / GROUP_SIMDS) + m * 16 + i * 8 + t.lane / 4];
    }
  }
  for (i32 step = 0; step < w.steps; step++) {
    copies_arrived<0>();
    group_barrier();  // all have what was asked for, and none reads what is asked for next
    if (step + 1 < w.steps) tile_copy(p, g, step + 1, thread);
    copies_asked();
    if (thread < TILE_POSITIONS) g.slots[step & 1][thread] = tile_slot(p, table, w, step + 2, thread);
    const i32 begin = w.first + step * TILE_POSITIONS, low = w.position + t.simd * (TILE_ROWS / GROUP_SIMDS);
    // Rows before all of the positions see none of them: nor do rows that only positions before see, in a window.
    for (i32 first = 0; first < TILE_POSITIONS; first += AT_ONCE)
      if (begin + first < low + TILE_ROWS / GROUP_SIMDS && (p.window == 0 || begin + first + AT_ONCE > low + 1 - p.window))
        tile_step<D, AT_ONCE>(p, w, s, g, step & 1, first, begin + first, t);
  }
  tile_store(p, w, s, t);
}
typedef AttentionTiles<64> attention_tiles_d64_memory;
typedef AttentionTiles<128> attention_tiles_d128_memory;
KERNEL_DYNAMIC(attention_tiles_d64, AttentionParams<f16>, attention_tiles_d64_memory, 128, attention_tiles<64>)
KERNEL_DYNAMIC(attention_tiles_d128, AttentionParams<f16>, attention_tiles_d128_memory, 128, attention_tiles<128>)
#endif
