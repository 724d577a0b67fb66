// attention_prefill: attention of attention.h for many rows of a sequence, from an f16 cache of heads of exactly 64 or 128
// features, on Apple's matrices of 8 by 8. Metal alone has this text; attention.h computes the same.
//
// Tables    items[i]: the first row of a tile, and its number of rows, which are of one sequence and at most 128.
// Grid      (heads, items, 128 / 64): the last item first, since in a sequence it has most to do.
// Tiles     a group takes 64 rows of a query head, each of its eight SIMD groups eight of them, against 32 positions after
//           another, which lie in group memory while the next 32 come from the cache to registers.
// Matrices  which lane has which element of one nobody knows. So scores go through group memory, where a lane finds eight of
//           a row; weights come back that way; and sums are rescaled by a product with a diagonal matrix.
// Work      4 · 64 · 32 · D operations for 128 · D bytes from the cache: bound by arithmetic.
// Accuracy  queries and weights are rounded to f16, sums are f32. Queries are scaled by a power of two of their own row,
//           weights by 2^15, so that f16 holds them. Not the bits of attention.h.
enum { PREFILL_ROWS = 64, PREFILL_SIMDS = 8, PREFILL_POSITIONS = 32, PREFILL_THREADS = 256 };
#define PREFILL_SHIFT 15.f

// What a SIMD group has for itself: queries on their way in, then scores, then results on their way out; weights of scores;
// and a matrix that is zero but for its diagonal.
struct PrefillSimd { f32 scores[8][PREFILL_POSITIONS]; f16 weights[8][PREFILL_POSITIONS]; f32 keep[8][8]; };
// Rows of positions begin in different banks, and on 16 bytes.
template <i32 D> struct AttentionPrefill {
  f16 keys[PREFILL_POSITIONS][D + 8], values[PREFILL_POSITIONS][D + 8];
  PrefillSimd of[PREFILL_SIMDS];
};

// What a group works on: rows of one sequence, and the positions that they see.
struct PrefillWork { i32 first_row, rows, position, first, last, steps, head, kv_head; };

// A thread's share of 32 positions, in chunks of 16 bytes.
template <i32 D> struct PrefillChunks {
  enum { COUNT = PREFILL_POSITIONS * D / 8 / PREFILL_THREADS };
  u32x4 keys[COUNT], values[COUNT];
};

template <i32 D>
FN PrefillChunks<D> prefill_load(CONST AttentionParams<f16>& p, Ptr<const i32> table, THREAD const PrefillWork& w,
    i32 step, i32 index) {
  PrefillChunks<D> chunks;
  UNROLL for (i32 j = 0; j < PrefillChunks<D>::COUNT; j++) {
    const i32 item = j * PREFILL_THREADS + index;
    const i32 position = mini(w.first + step * PREFILL_POSITIONS + item / (D / 8), w.last);
    const i64 from = i64(attention_slot(p, table, w.kv_head, position)) * (D / 8) + item % (D / 8);
    chunks.keys[j] = vectors16(p.keys)[from];
    chunks.values[j] = vectors16(p.values)[from];
  }
  return chunks;
}

template <i32 D>
FN void prefill_put(GROUP AttentionPrefill<D>& g, THREAD const PrefillChunks<D>& chunks, i32 index) {
  UNROLL for (i32 j = 0; j < PrefillChunks<D>::COUNT; j++) {
    const i32 item = j * PREFILL_THREADS + index, row = item / (D / 8), chunk = item % (D / 8);
    *(GROUP u32x4*)&g.keys[row][chunk * 8] = chunks.keys[j];
    *(GROUP u32x4*)&g.values[row][chunk * 8] = chunks.values[j];
  }
}

// Queries of eight rows as matrices; the scale of the scores of the lane's row.
template <i32 D> struct PrefillQueries { simdgroup_half8x8 of[D / 8]; f32 scale; };

// Features 4 · lane % 4 and on of each 16 of row lane / 4 are the lane's.
template <i32 D>
FN void prefill_queries(CONST AttentionParams<f16>& p, THREAD const PrefillWork& w, THREAD PrefillQueries<D>& queries,
    GROUP PrefillSimd& g, Lane t) {
  const i32 row = w.first_row + mini(t.simd * 8 + t.lane / 4, w.rows - 1);
  const Ptr<const f32x4> from = vectors4(offset(p.q, i64(row) * p.q_stride + w.head * D));
  f32x4 q[D / 16];
  f32 most = 0.f;
  UNROLL for (i32 j = 0; j < D / 16; j++) {
    q[j] = from[j * 4 + t.lane % 4];
    most = max32(max32(max32(abs32(q[j].x), abs32(q[j].y)), max32(abs32(q[j].z), abs32(q[j].w))), most);
  }
  most = max32(most, shuffle_xor(most, 1));
  most = max32(most, shuffle_xor(most, 2));
  // The power of two at or below the largest, and its inverse.
  const u32 exponent = f32_to_bits(most) & 0x7f800000u;
  const f32 inverse = bits_to_f32(0x7f000000u - exponent);
  queries.scale = bits_to_f32(exponent) * (p.scale * LOG2_E);
  GROUP u32* pairs = (GROUP u32*)&g.scores[0][0];
  UNROLL for (i32 piece = 0; piece < D / 64; piece++) {
    UNROLL for (i32 j = 0; j < 4; j++) {
      const f32x4 v = q[piece * 4 + j];
      const i32 at = t.lane / 4 * 32 + j * 8 + t.lane % 4 * 2;
      pairs[at] = f32x2_to_f16x2(v.x * inverse, v.y * inverse);
      pairs[at + 1] = f32x2_to_f16x2(v.z * inverse, v.w * inverse);
    }
    simd_barrier();
    UNROLL for (i32 i = 0; i < 8; i++) simdgroup_load(queries.of[piece * 8 + i], (GROUP const f16*)pairs + i * 8, 64);
    simd_barrier();
  }
}

// Sums of eight rows; the maximum and the sum of weights of the lane's row, of which four lanes have a part each.
template <i32 D> struct PrefillState { simdgroup_float8x8 acc[D / 8]; f32 top, sum; };

// Eight rows against the positions in group memory, of which the first is `begin`; `low` is the position of the first row.
template <i32 D>
FN void prefill_step(CONST AttentionParams<f16>& p, THREAD PrefillState<D>& s, THREAD const PrefillQueries<D>& queries,
    GROUP const AttentionPrefill<D>& g, GROUP PrefillSimd& own, i32 begin, i32 low, i32 lane) {
  enum { LINE = D + 8 };
  UNROLL for (i32 n = 0; n < PREFILL_POSITIONS / 8; n++) {
    simdgroup_float8x8 score = make_filled_simdgroup_matrix<float, 8, 8>(0.f);
    UNROLL for (i32 i = 0; i < D / 8; i++) {
      simdgroup_half8x8 keys;
      simdgroup_load(keys, &g.keys[n * 8][i * 8], LINE, ulong2(0, 0), true);
      simdgroup_multiply_accumulate(score, queries.of[i], keys, score);
    }
    simdgroup_store(score, &own.scores[0][n * 8], PREFILL_POSITIONS);
  }
  simd_barrier();
  const i32 row = lane / 4, first = lane % 4 * 8, position = low + row;
  f32 x[8], now = s.top;
  UNROLL for (i32 i = 0; i < 8; i++) {
    const i32 at = begin + first + i;
    x[i] = own.scores[row][first + i] * queries.scale;
    if (at > position || (p.window > 0 && at <= position - p.window)) x[i] = ATTENTION_MASKED;
    now = max32(now, x[i]);
  }
  now = max32(now, shuffle_xor(now, 1));
  now = max32(now, shuffle_xor(now, 2));
  const bool moved = any_lane(now > s.top);
  const f32 keep = exp2_32(s.top - now), shifted = now - PREFILL_SHIFT;
  s.sum *= keep;
  s.top = now;
  UNROLL for (i32 i = 0; i < 8; i++) {
    x[i] = exp2_32(x[i] - shifted);
    s.sum += x[i];
  }
  GROUP u32* pairs = (GROUP u32*)&own.weights[row][first];
  UNROLL for (i32 i = 0; i < 4; i++) pairs[i] = f32x2_to_f16x2(x[i * 2], x[i * 2 + 1]);
  if (lane % 4 == 0) own.keep[row][row] = keep;
  simd_barrier();
  if (moved) {
    simdgroup_float8x8 diagonal;
    simdgroup_load(diagonal, &own.keep[0][0], 8);
    UNROLL for (i32 j = 0; j < D / 8; j++) {
      simdgroup_float8x8 kept;
      simdgroup_multiply(kept, diagonal, s.acc[j]);
      s.acc[j] = kept;
    }
  }
  UNROLL for (i32 n = 0; n < PREFILL_POSITIONS / 8; n++) {
    simdgroup_half8x8 weights;
    simdgroup_load(weights, &own.weights[0][n * 8], PREFILL_POSITIONS);
    UNROLL for (i32 j = 0; j < D / 8; j++) {
      simdgroup_half8x8 values;
      simdgroup_load(values, &g.values[n * 8][j * 8], LINE);
      simdgroup_multiply_accumulate(s.acc[j], weights, values, s.acc[j]);
    }
  }
}

template <i32 D>
FN void prefill_store(CONST AttentionParams<f16>& p, THREAD const PrefillWork& w, THREAD const PrefillState<D>& s,
    GROUP PrefillSimd& own, Lane t) {
  f32 sum = s.sum;
  sum += shuffle_xor(sum, 1);
  sum += shuffle_xor(sum, 2);
  const f32 scale = 1.f / attention_divisor(p, w.head, sum, s.top - PREFILL_SHIFT);
  const i32 line = t.lane / 4, first = t.lane % 4 * 8, row = t.simd * 8 + line;
  UNROLL for (i32 piece = 0; piece < D / 32; piece++) {
    simd_barrier();  // none reads what was there
    UNROLL for (i32 j = 0; j < 4; j++) simdgroup_store(s.acc[piece * 4 + j], &own.scores[0][j * 8], PREFILL_POSITIONS);
    simd_barrier();
    const i64 to = i64(w.first_row + row) * p.out_stride + w.head * D + piece * 32 + first;
    if (row < w.rows)
      UNROLL for (i32 i = 0; i < 8; i++) p.out[to + i] = own.scores[line][first + i] * scale;
  }
}

template <i32 D>
FN void attention_prefill(CONST AttentionParams<f16>& p, GROUP AttentionPrefill<D>& g, Lane t) {
  if (t.gy >= p.num_items[0]) return;  // the whole group
  const i32x2 item = p.items[p.num_items[0] - 1 - t.gy];
  PrefillWork w;
  w.first_row = item.x + t.gz * PREFILL_ROWS;
  w.rows = mini(item.y - t.gz * PREFILL_ROWS, PREFILL_ROWS);
  if (w.rows <= 0) return;  // the whole group
  w.position = p.positions[w.first_row];
  w.first = p.window > 0 ? maxi(0, w.position + 1 - p.window) : 0;
  w.last = w.position + w.rows - 1;
  w.steps = (w.last - w.first) / PREFILL_POSITIONS + 1;
  w.head = t.gx;
  w.kv_head = t.gx / (p.heads / p.kv_heads);
  const Ptr<const i32> table = offset(p.blocks, p.table_starts[w.first_row]);
  const i32 index = t.simd * SIMD + t.lane, low = w.position + t.simd * 8;
  GROUP PrefillSimd& own = g.of[t.simd];
  UNROLL for (i32 i = 0; i < 2; i++) own.keep[t.lane / 4][t.lane % 4 * 2 + i] = 0.f;
  PrefillChunks<D> chunks = prefill_load<D>(p, table, w, 0, index);
  PrefillQueries<D> queries;
  prefill_queries<D>(p, w, queries, own, t);
  PrefillState<D> s;
  UNROLL for (i32 j = 0; j < D / 8; j++) s.acc[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.f);
  s.top = ATTENTION_NONE;
  s.sum = 0.f;
  for (i32 step = 0; step < w.steps; step++) {
    group_barrier();  // none reads the positions before
    prefill_put<D>(g, chunks, index);
    if (step + 1 < w.steps) chunks = prefill_load<D>(p, table, w, step + 1, index);
    group_barrier();
    // Rows before all of the positions see none of them: nor do rows that only positions before see, in a window.
    const i32 begin = w.first + step * PREFILL_POSITIONS;
    if (t.simd * 8 < w.rows && begin <= low + 7 && (p.window == 0 || begin + PREFILL_POSITIONS > low + 1 - p.window))
      prefill_step<D>(p, s, queries, g, own, begin, low, t.lane);
  }
  prefill_store<D>(p, w, s, own, t);
}
typedef AttentionPrefill<64> attention_prefill_d64_memory;
typedef AttentionPrefill<128> attention_prefill_d128_memory;
KERNEL(attention_prefill_d64, AttentionParams<f16>, attention_prefill_d64_memory, 256, attention_prefill<64>)
KERNEL(attention_prefill_d128, AttentionParams<f16>, attention_prefill_d128_memory, 256, attention_prefill<128>)
