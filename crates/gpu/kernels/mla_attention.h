// mla_attention: latent attention in its absorbed form. out[h] = softmax((q_latent[h], q_rope[h]) · rowsᵀ · scale) · latent over the
// cached positions of the row's sequence up to its own. A position has one row for all heads: `dim` latent numbers, which are its
// values too, and `rope` turned ones. latent_write: cache <- latent, rope.
//
// Shapes    q_latent, out (rows, heads · dim), q_rope (rows, heads · rope), f32; cache (blocks, block_len, dim + rope) of E;
//           dim <= 512, dim + rope <= 576. latent (rows, dim), rope (rows, rope), f32.
// Tables    as attention.h.
// Grid      as attention.h, with one kv head: (ceil(heads / G), items, splits). latent_write: (numbers of a row / 128, rows).
// Bytes     the rows of the positions, once for G heads.
// Accuracy  as attention.h.
// Order     as attention.h.
template <class E>
struct MlaParams {
  AttentionParams<E> attention;  // q: q_latent; keys: the cache; head_dim: dim
  Ptr<const f32> q_rope;
  Ptr<f32> parts;                // where `attention.partials` are, number by number
  i32 rope, q_rope_stride;
  i32 tile, padding;             // positions of a tile, where splits are whole tiles
};

// Latent numbers of a row at most, and all numbers of it.
enum { MLA_DIM = 512, MLA_ROW = 576 };

// Number i of a head's query.
template <class E>
FN f32 mla_query(CONST MlaParams<E>& p, i32 row, i32 head, i32 i) {
  CONST AttentionParams<E>& a = p.attention;
  if (i < a.head_dim) return a.q[i64(row) * a.q_stride + head * a.head_dim + i];
  return i < a.head_dim + p.rope ? p.q_rope[i64(row) * p.q_rope_stride + head * p.rope + i - a.head_dim] : 0.f;
}

// A lane has each 32nd number of a position's row, and a SIMD group a position.
template <class E, i32 G>
FN void mla_any_split(CONST MlaParams<E>& p, THREAD const AttentionWork& w, THREAD const f32 (&q)[G][MLA_ROW / SIMD], i32 split,
                      GROUP AttentionGroup<G, MLA_DIM>& g, Lane t) {
  enum { ROW = MLA_ROW / SIMD, VALUES = MLA_DIM / SIMD };
  CONST AttentionParams<E>& a = p.attention;
  const Ptr<const i32> table = offset(a.blocks, w.table_start);
  const i32 begin = w.first + split * w.split_len, end = mini(begin + w.split_len, w.position + 1), width = a.head_dim + p.rope;
  f32 acc[G][VALUES], top[G], sum[G];
  UNROLL for (i32 h = 0; h < G; h++) {
    top[h] = ATTENTION_NONE;
    sum[h] = 0;
    UNROLL for (i32 i = 0; i < VALUES; i++) acc[h][i] = 0;
  }
  for (i32 at = begin + t.simd; at < end; at += GROUP_SIMDS) {
    const i64 from = i64(attention_slot(a, table, 0, at)) * width;
    f32 row[ROW];
    UNROLL for (i32 i = 0; i < ROW; i++) row[i] = i * SIMD + t.lane < width ? to_f32(a.keys[from + i * SIMD + t.lane]) : 0.f;
    UNROLL for (i32 h = 0; h < G; h++) {
      f32 score = 0;
      UNROLL for (i32 i = 0; i < ROW; i++) score = fma32(q[h][i], row[i], score);
      score = sum_lanes<SIMD>(score) * (a.scale * LOG2_E);
      const f32 now = max32(top[h], score), keep = exp2_32(top[h] - now), weight = exp2_32(score - now);
      top[h] = now;
      sum[h] = fma32(sum[h], keep, weight);
      UNROLL for (i32 i = 0; i < VALUES; i++) acc[h][i] = fma32(weight, row[i], acc[h][i] * keep);
    }
  }
  UNROLL for (i32 h = 0; h < G; h++) {
    UNROLL for (i32 i = 0; i < VALUES; i++) g.of[t.simd].acc[h][i * SIMD + t.lane] = acc[h][i];
    if (t.lane == 0) { g.of[t.simd].top[h] = top[h]; g.of[t.simd].sum[h] = sum[h]; }
  }
}

template <class E, i32 G, bool LOOP>
FN void mla_any(CONST MlaParams<E>& p, GROUP AttentionGroup<G, MLA_DIM>& g, Lane t) {
  CONST AttentionParams<E>& a = p.attention;
  let_next_start();
  AttentionWork w;
  if (!attention_work(w, a, G, t)) return;  // the whole group
  wait_for_previous();
  f32 q[G][MLA_ROW / SIMD];
  UNROLL for (i32 h = 0; h < G; h++)
    UNROLL for (i32 i = 0; i < MLA_ROW / SIMD; i++) q[h][i] = h < w.heads ? mla_query(p, w.row, w.first_head + h, i * SIMD + t.lane) : 0.f;
  if (LOOP) {
    AttentionStates<G, MLA_DIM, GROUP_SIMDS> states;
    for (i32 split = 0; split < w.splits; split++) {
      mla_any_split(p, w, q, split, g, t);
      attention_add_split<G, MLA_DIM>(states, w, split, g, t);
    }
    attention_store_all(a, states, w, t);
  } else {
    mla_any_split(p, w, q, t.gz, g, t);
    attention_finish<MLA_DIM>(a, w, t.gz, g, t);
  }
}

template <class E>
struct LatentWriteParams {
  Ptr<const f32> latent;
  Ptr<const f32> rope;
  Ptr<const i32> rows;
  Ptr<const i32> slots;
  Ptr<E> cache;
  i32 dim, rope_dim;
  i32 latent_stride, rope_stride;
};

template <class E>
FN void latent_write(CONST LatentWriteParams<E>& p, GROUP NoGroup&, Lane t) {
  const i32 row = t.gy, i = (t.gx * t.simds + t.simd) * SIMD + t.lane, width = p.dim + p.rope_dim;
  let_next_start();
  wait_for_previous();
  if (row >= p.rows[0] || i >= width) return;
  const f32 v = i < p.dim ? p.latent[i64(row) * p.latent_stride + i] : p.rope[i64(row) * p.rope_stride + i - p.dim];
  store(p.cache, i64(p.slots[row]) * width + i, v);
}

// latent_rope_write: what stands between the projections of latent attention. q_nope and q_rope are columns of q, the cache's row is
// columns of kv: the latent numbers normalised, those of q_rope and the last of the row turned.
//
// Shapes    q (rows, …), kv (rows, …), f32; columns: i32, which column of q or kv each number is; q_nope (rows, heads · nope), q_rope
//           (rows, heads · rope), f32; gain (dim,); angles as rope_kv_write.h has them.
// Grid      (heads + 1, rows): a group a head, and one the row of the cache.
// Bytes     what it reads and writes, once; bound by latency.
// Accuracy  as rms_norm.h and rope_kv_write.h.
template <class E>
struct LatentRopeWriteParams {
  Ptr<const f32> q;
  Ptr<const f32> kv;
  Ptr<const i32> q_nope_columns;
  Ptr<const i32> q_rope_columns;
  Ptr<const i32> latent_columns;
  Ptr<const i32> rope_columns;
  Ptr<const f32> gain;
  Ptr<const f32x2> angles;
  Ptr<const i32> rows;
  Ptr<const i32> positions;
  Ptr<const i32> slots;
  Ptr<f32> q_nope;
  Ptr<f32> q_rope;
  Ptr<E> cache;
  i32 heads, nope;
  i32 dim, rope_dim;
  i32 q_stride, kv_stride;
  i32 q_nope_stride, q_rope_stride;
  i32 turned;
  f32 eps;
};

// `threads` threads, this one being number `first`, turn `rope_dim` columns of x and store them.
template <class E, class Y>
FN void latent_turn(CONST LatentRopeWriteParams<E>& p, Ptr<const f32> x, Ptr<const i32> columns, Ptr<const f32x2> angles, Ptr<Y> y, i64 to, i32 first, i32 threads) {
  for (i32 i = first; i < p.rope_dim / 2; i += threads) {
    const RopePair pair = rope_pair(i, p.rope_dim / 2, p.turned);
    f32 a = x[columns[pair.low]], b = x[columns[pair.high]];
    if (i < p.turned) {
      const f32x2 turn = angles[i];
      const f32 low = a;
      a = low * turn.x - b * turn.y;
      b = b * turn.x + low * turn.y;
    }
    store(y, to + pair.low, a);
    store(y, to + pair.high, b);
  }
}

// The angles of a row.
template <class E>
FN Ptr<const f32x2> latent_angles(CONST LatentRopeWriteParams<E>& p, i32 row) { return offset(p.angles, i64(p.positions[row]) * p.turned); }

// What so many threads do for a head of a row.
template <class E>
FN void latent_rope_head(CONST LatentRopeWriteParams<E>& p, i32 row, i32 head, i32 first, i32 threads) {
  const Ptr<const f32> q = offset(p.q, i64(row) * p.q_stride);
  for (i32 i = first; given(p.q_nope) && i < p.nope; i += threads)
    p.q_nope[i64(row) * p.q_nope_stride + head * p.nope + i] = q[p.q_nope_columns[head * p.nope + i]];
  latent_turn(p, q, offset(p.q_rope_columns, head * p.rope_dim), latent_angles(p, row), p.q_rope, i64(row) * p.q_rope_stride + head * p.rope_dim, first, threads);
}

// What a group does for a row of the cache.
template <class E>
FN void latent_cache_row(CONST LatentRopeWriteParams<E>& p, i32 row, GROUP SumGroup& g, Lane t) {
  const i32 first = t.simd * SIMD + t.lane;
  const Ptr<const f32> kv = offset(p.kv, i64(row) * p.kv_stride);
  const i64 to = i64(p.slots[row]) * (p.dim + p.rope_dim);
  f32 squares = 0;
  for (i32 i = first; i < p.dim; i += GROUP_THREADS) {
    const f32 v = kv[p.latent_columns[i]];
    squares = fma32(v, v, squares);
  }
  const f32 scale = inv_sqrt(sum_group(squares, g, t) / f32(p.dim) + p.eps);
  for (i32 i = first; i < p.dim; i += GROUP_THREADS) store(p.cache, to + i, kv[p.latent_columns[i]] * scale * p.gain[i]);
  latent_turn(p, kv, p.rope_columns, latent_angles(p, row), p.cache, to + p.dim, first, GROUP_THREADS);
}

template <class E>
FN void latent_rope_write(CONST LatentRopeWriteParams<E>& p, GROUP SumGroup& g, Lane t) {
  let_next_start();
  wait_for_previous();
  if (t.gy >= p.rows[0]) return;
  if (t.gx < p.heads) latent_rope_head(p, t.gy, t.gx, t.simd * SIMD + t.lane, GROUP_THREADS);
  else latent_cache_row(p, t.gy, g, t);
}

// latent_head_linear: the same, and head_linear of q_nope, which nobody else reads and so is not stored. Grid as head_linear, and more
// in z for what latent_rope_write does: a group for each row of the cache, then a SIMD group for each head of each row.
struct LatentHeadParams {
  HeadLinearParams heads;
  LatentRopeWriteParams<f16> write;
};

template <class W, i32 M, i32 J>
FN void latent_head_linear(CONST LatentHeadParams& p, GROUP HeadGroup<M>& g, Lane t) {
  if (t.gz < p.heads.heads) {  // the whole group
    head_linear_of<W, M, J>(p.heads, p.heads, g, t);
    return;
  }
  let_next_start();
  wait_for_previous();
  const i32 first_row = t.gy * M, rows = mini(M, p.write.rows[0] - first_row), group = (t.gz - p.heads.heads) * p.heads.groups + t.gx;
  if (group < M) {
    if (group < rows) latent_cache_row(p.write, first_row + group, g.sum, t);
    return;
  }
  const i32 item = (group - M) * t.simds + t.simd, row = item / p.write.heads;
  if (row < rows) latent_rope_head(p.write, first_row + row, item - row * p.write.heads, t.lane, SIMD);
}
#define LATENT_HEAD_LINEAR(FORMAT, W, ONE, FOUR)                                                                                \
  KERNEL(latent_head_linear_##FORMAT##_m1, LatentHeadParams, head_linear_m1_memory, 128, latent_head_linear<W, 1, ONE>)         \
  KERNEL(latent_head_linear_##FORMAT##_m4, LatentHeadParams, head_linear_m4_memory, 128, latent_head_linear<W, 4, FOUR>)
EACH_HEAD_FORMAT(LATENT_HEAD_LINEAR)

#define MLA_ANY(E)                                                                                                        \
  typedef AttentionGroup<2, MLA_DIM> mla_attention_##E##_memory;                                                          \
  KERNEL(mla_attention_##E, MlaParams<E>, mla_attention_##E##_memory, 128, mla_any<E, 2, false>)                          \
  KERNEL(mla_attention_##E##_loop, MlaParams<E>, mla_attention_##E##_memory, 128, mla_any<E, 2, true>)                    \
  KERNEL(latent_write_##E, LatentWriteParams<E>, NoGroup, 128, latent_write<E>)                                           \
  KERNEL(latent_rope_write_##E, LatentRopeWriteParams<E>, SumGroup, 128, latent_rope_write<E>)
MLA_ANY(f32)
MLA_ANY(f16)

// fold_head_linear: of rows that are items of attention.
struct FoldHeadParams {
  HeadLinearParams heads;
  MlaParams<f16> mla;
};

#if MATRIX_16X8X16
// mla_attention_f16_h16, mla_attention_f16_h32: rows of 512 and 64 numbers in f16, by matrix instructions, for 16 or 32 heads at
// once, whose scores of a tile of positions make one product and whose weighted values another. A group has one split of the
// positions; where there are several, mla_fold folds what they left, or the kernel that multiplies the result.
//
// Copies    tiles of positions go to group memory a tile ahead or two; each position's row is 16 bytes longer there, so that eight
//           rows begin in different banks.
// Accuracy  queries are rounded to f16 times a power of two of their own, weights to f16 times 2^15; sums are f32.
// Order     a row's positions are cut into splits of whole tiles by their number alone.
enum { MLA_CHUNKS = MLA_ROW / 8, MLA_SIMDS = 8, MLA_THREADS = MLA_SIMDS * SIMD };

// Scores begin where queries were, which all SIMD groups have in registers by then: a quarter of the sum each, of MLA_QUARTERS.
enum { MLA_QUARTERS = 4, MLA_STEPS = MLA_CHUNKS / 2 / MLA_QUARTERS };
template <i32 HEADS> struct MlaGroup {
  enum { TILE = 1024 / HEADS, STAGES = HEADS / 16 + 1, SCORES = TILE + 4 };
  u32x4 q[HEADS][MLA_CHUNKS + 1];
  u32x4 tiles[STAGES][TILE][MLA_CHUNKS + 1];
  u32x4 weights[HEADS][TILE / 8 + 1];
  f32 scale[HEADS], keep[HEADS], top[HEADS], sum[HEADS];
};

// How a row's positions are cut: splits, and tiles of each.
struct MlaCut { i32 splits, tiles; };

FN MlaCut mla_cut(i32 position, i32 tile, i32 max_splits) {
  const i32 tiles = position / tile + 1;
  MlaCut cut;
  cut.tiles = (tiles - 1) / max_splits + 1;
  cut.splits = (tiles - 1) / cut.tiles + 1;
  return cut;
}

// Asks for the positions from `begin` on; in the place of those behind `last` comes that one.
template <i32 HEADS>
FN void mla_ask(CONST AttentionParams<f16>& a, Ptr<const i32> table, i32 begin, i32 last, GROUP MlaGroup<HEADS>& g, i32 stage, Lane t) {
  enum { COPIES = MlaGroup<HEADS>::TILE * MLA_CHUNKS / MLA_THREADS };
  const Ptr<const u32x4> cache = vectors16(a.keys);
  // All blocks are looked up before a copy is asked for: nothing is read past one.
  i32 slots[COPIES];
  UNROLL for (i32 i = 0; i < COPIES; i++)
    slots[i] = attention_slot(a, table, 0, mini(begin + (i * MLA_THREADS + t.simd * SIMD + t.lane) / MLA_CHUNKS, last));
  UNROLL for (i32 i = 0; i < COPIES; i++) {
    const i32 at = i * MLA_THREADS + t.simd * SIMD + t.lane, row = at / MLA_CHUNKS, chunk = at % MLA_CHUNKS;
    copy16_async(g.tiles[stage][row][chunk], cache, i64(slots[i]) * MLA_CHUNKS + chunk);
  }
}

FN u32x4 mla_halves(f32x4 a, f32x4 b, f32 by) {
  return make16(f32x2_to_f16x2(a.x * by, a.y * by), f32x2_to_f16x2(a.z * by, a.w * by), f32x2_to_f16x2(b.x * by, b.y * by), f32x2_to_f16x2(b.z * by, b.w * by));
}

// Each SIMD group rounds the queries of every eighth head; of heads that are not there come zeros.
template <i32 HEADS>
FN void mla_queries(CONST MlaParams<f16>& p, i32 row, i32 first_head, i32 heads, GROUP MlaGroup<HEADS>& g, Lane t) {
  CONST AttentionParams<f16>& a = p.attention;
  UNROLL for (i32 j = 0; j < HEADS / MLA_SIMDS; j++) {
    const i32 h = j * MLA_SIMDS + t.simd;
    const bool live = h < heads;
    const i32 head = first_head + (live ? h : 0);
    const Ptr<const f32x4> latent = vectors4(offset(a.q, i64(row) * a.q_stride + head * MLA_DIM));
    const Ptr<const f32x4> turned = vectors4(offset(p.q_rope, i64(row) * p.q_rope_stride + head * (MLA_ROW - MLA_DIM)));
    f32x4 v[6];
    UNROLL for (i32 i = 0; i < 4; i++) v[i] = latent[(i / 2 * SIMD + t.lane) * 2 + i % 2];
    UNROLL for (i32 i = 0; i < 2; i++) v[4 + i] = turned[t.lane % 8 * 2 + i];
    f32 most = 0;
    UNROLL for (i32 i = 0; i < 6; i++) most = max32(most, largest4(v[i]));
    const u32 exponent = exponent_of(max_lanes<SIMD>(most));
    const f32 inverse = live ? inverse_power(exponent) : 0.f;
    g.q[h][t.lane] = mla_halves(v[0], v[1], inverse);
    g.q[h][SIMD + t.lane] = mla_halves(v[2], v[3], inverse);
    if (t.lane < 8) g.q[h][2 * SIMD + t.lane] = mla_halves(v[4], v[5], inverse);
    if (t.lane == 0) g.scale[h] = bits_to_f32(exponent) * (a.scale * LOG2_E);
  }
}

// The first byte of the scores of a head from a position on, of a quarter of the sum.
template <i32 HEADS>
FN i32 mla_score_at(i32 quarter, i32 head, i32 position) { return ((quarter * HEADS + head) * MlaGroup<HEADS>::SCORES + position) * 4; }

// A SIMD group has sixteen heads, a quarter of the numbers that are multiplied, and 32 positions of a tile.
struct MlaPart { i32 quarter, rows, positions; };
template <i32 HEADS>
FN MlaPart mla_part(Lane t) {
  MlaPart part;
  part.quarter = t.simd % MLA_QUARTERS;
  part.rows = HEADS == 32 ? t.simd / MLA_QUARTERS * 16 : 0;
  part.positions = HEADS == 32 ? 0 : t.simd / MLA_QUARTERS * 32;
  return part;
}
struct MlaQueries { u32 a[MLA_STEPS][4]; };

template <i32 HEADS>
FN void mla_load_queries(THREAD MlaQueries& q, GROUP const MlaGroup<HEADS>& g, Lane t) {
  const MlaPart part = mla_part<HEADS>(t);
  const i32 matrix = t.lane / 8, line = t.lane % 8;
  UNROLL for (i32 k = 0; k < MLA_STEPS; k++)
    load_matrices(q.a[k], g.q[part.rows + matrix % 2 * 8 + line][(part.quarter * MLA_STEPS + k) * 2 + matrix / 2]);
}

template <i32 HEADS>
FN void mla_scores(THREAD const MlaQueries& q, GROUP MlaGroup<HEADS>& g, i32 stage, Lane t) {
  const MlaPart part = mla_part<HEADS>(t);
  const i32 matrix = t.lane / 8, line = t.lane % 8;
  f32 c[4][4];
  UNROLL for (i32 n = 0; n < 4; n++)
    UNROLL for (i32 i = 0; i < 4; i++) c[n][i] = 0;
  UNROLL for (i32 k = 0; k < MLA_STEPS; k++)
    UNROLL for (i32 n = 0; n < 4; n += 2) {
      u32 b[4];
      load_matrices(b, g.tiles[stage][part.positions + n * 8 + matrix / 2 * 8 + line][(part.quarter * MLA_STEPS + k) * 2 + matrix % 2]);
      mma_f16_16x8x16(c[n], q.a[k][0], q.a[k][1], q.a[k][2], q.a[k][3], b[0], b[1]);
      mma_f16_16x8x16(c[n + 1], q.a[k][0], q.a[k][1], q.a[k][2], q.a[k][3], b[2], b[3]);
    }
  UNROLL for (i32 n = 0; n < 4; n++)
    UNROLL for (i32 half = 0; half < 2; half++) {
      f32x2 both;
      both.x = c[n][half * 2]; both.y = c[n][half * 2 + 1];
      const i32 at = mla_score_at<HEADS>(part.quarter, part.rows + half * 8 + t.lane / 4, part.positions + n * 8 + t.lane % 4 * 2);
      group_at<f32x2>(g, at)[0] = both;
    }
}

// A lane has eight positions of a head; the first 128 lanes have all of those from `begin` on, of which those from `end` on are not
// there. Scores become weights, of the maximum so far.
template <i32 HEADS>
FN void mla_weights(GROUP MlaGroup<HEADS>& g, i32 begin, i32 end, THREAD f32& top, THREAD f32& sum, Lane t) {
  enum { LANES = MlaGroup<HEADS>::TILE / 8 };
  const i32 own = t.simd * SIMD + t.lane, head = own / LANES, part = own % LANES;
  if (t.simd >= HEADS * LANES / SIMD) return;  // the whole SIMD group
  f32 v[8], now = top;
  UNROLL for (i32 i = 0; i < 8; i++) v[i] = 0.f;
  UNROLL for (i32 quarter = 0; quarter < MLA_QUARTERS; quarter++) {
    const GroupPtr<f32x4> scores = group_at<f32x4>(g, mla_score_at<HEADS>(quarter, head, part * 8));
    const f32x4 a = scores[0], b = scores[1];
    v[0] += a.x; v[1] += a.y; v[2] += a.z; v[3] += a.w;
    v[4] += b.x; v[5] += b.y; v[6] += b.z; v[7] += b.w;
  }
  const f32 scale = g.scale[head];
  UNROLL for (i32 i = 0; i < 8; i++) {
    v[i] = begin + part * 8 + i < end ? v[i] * scale : ATTENTION_MASKED;
    now = max32(now, v[i]);
  }
  now = max_lanes<LANES>(now);
  const f32 keep = exp2_32(top - now), shifted = now - WEIGHT_SHIFT;
  top = now;
  sum *= keep;
  UNROLL for (i32 i = 0; i < 8; i++) {
    v[i] = exp2_32(v[i] - shifted);
    sum += v[i];
  }
  g.weights[head][part] = make16(f32x2_to_f16x2(v[0], v[1]), f32x2_to_f16x2(v[2], v[3]), f32x2_to_f16x2(v[4], v[5]), f32x2_to_f16x2(v[6], v[7]));
  if (part == 0) g.keep[head] = keep;
}

// Each SIMD group has 64 latent numbers of all heads.
template <i32 HEADS>
FN void mla_values(THREAD f32 (&acc)[HEADS / 16][8][4], GROUP const MlaGroup<HEADS>& g, i32 stage, Lane t) {
  const i32 matrix = t.lane / 8, line = t.lane % 8;
  UNROLL for (i32 m = 0; m < HEADS / 16; m++) {
    const f32 low = g.keep[m * 16 + t.lane / 4], high = g.keep[m * 16 + 8 + t.lane / 4];
    if (any_lane(low != 1.f || high != 1.f))
      UNROLL for (i32 j = 0; j < 8; j++) {
        acc[m][j][0] *= low; acc[m][j][1] *= low;
        acc[m][j][2] *= high; acc[m][j][3] *= high;
      }
  }
  UNROLL for (i32 k = 0; k < MlaGroup<HEADS>::TILE / 16; k++) {
    u32 a[HEADS / 16][4];
    UNROLL for (i32 m = 0; m < HEADS / 16; m++) load_matrices(a[m], g.weights[m * 16 + matrix % 2 * 8 + line][k * 2 + matrix / 2]);
    UNROLL for (i32 j = 0; j < 8; j += 2) {
      u32 b[4];
      load_matrices_turned(b, g.tiles[stage][k * 16 + matrix % 2 * 8 + line][t.simd * 8 + j + matrix / 2]);
      UNROLL for (i32 m = 0; m < HEADS / 16; m++) {
        mma_f16_16x8x16(acc[m][j], a[m][0], a[m][1], a[m][2], a[m][3], b[0], b[1]);
        mma_f16_16x8x16(acc[m][j + 1], a[m][0], a[m][1], a[m][2], a[m][3], b[2], b[3]);
      }
    }
  }
}

template <i32 HEADS>
FN void mla_matrix(CONST MlaParams<f16>& p, GROUP MlaGroup<HEADS>& g, Lane t) {
  enum { TILE = MlaGroup<HEADS>::TILE, STAGES = MlaGroup<HEADS>::STAGES, LANES = TILE / 8 };
  CONST AttentionParams<f16>& a = p.attention;
  let_next_start();
  const bool live = t.gy < a.num_items[0];
  const i32 row = live ? a.items[t.gy].x : 0, settled = live ? a.items[t.gy].y : 0, position = live ? a.positions[row] : 0;
  const MlaCut cut = mla_cut(position, TILE, a.max_splits);
  if (!live || t.gz >= cut.splits) {  // the whole group
    // A kernel may not end before the one ahead has.
    if (t.gx + t.gy + t.gz == 0) wait_for_previous();
    return;
  }
  const i32 first_head = t.gx * HEADS, heads = mini(HEADS, a.heads - first_head);
  const i32 begin = t.gz * cut.tiles * TILE, end = mini(begin + cut.tiles * TILE, position + 1), tiles = (end - begin + TILE - 1) / TILE;
  const Ptr<const i32> table = offset(a.blocks, a.table_starts[row]);
  // What earlier steps wrote may be read before this step's kernels have written the rest.
  i32 asked = 0;
  for (; asked < mini(STAGES - 1, tiles) && mini(begin + (asked + 1) * TILE, position + 1) <= settled; asked++) {
    mla_ask<HEADS>(a, table, begin + asked * TILE, position, g, asked, t);
    copies_asked();
  }
  wait_for_previous();
  for (; asked < STAGES - 1; asked++) {
    if (asked < tiles) mla_ask<HEADS>(a, table, begin + asked * TILE, position, g, asked, t);
    copies_asked();
  }
  mla_queries<HEADS>(p, row, first_head, heads, g, t);
  group_barrier();
  MlaQueries q;
  mla_load_queries<HEADS>(q, g, t);
  f32 acc[HEADS / 16][8][4], top = ATTENTION_NONE, sum = 0;
  UNROLL for (i32 m = 0; m < HEADS / 16; m++)
    UNROLL for (i32 j = 0; j < 8; j++)
      UNROLL for (i32 i = 0; i < 4; i++) acc[m][j][i] = 0;
  for (i32 tile = 0, stage = 0; tile < tiles; tile++) {
    copies_arrived<STAGES - 2>();
    group_barrier();  // all have theirs, and none reads the tile before
    if (tile + STAGES - 1 < tiles) mla_ask<HEADS>(a, table, begin + (tile + STAGES - 1) * TILE, position, g, stage == 0 ? STAGES - 1 : stage - 1, t);
    copies_asked();
    mla_scores<HEADS>(q, g, stage, t);
    group_barrier();
    mla_weights<HEADS>(g, begin + tile * TILE, end, top, sum, t);
    group_barrier();
    mla_values<HEADS>(acc, g, stage, t);
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
  sum = sum_lanes<LANES>(sum);
  const i32 own = t.simd * SIMD + t.lane;
  if (own < HEADS * LANES && own % LANES == 0) { g.top[own / LANES] = top - WEIGHT_SHIFT; g.sum[own / LANES] = sum; }
  group_barrier();
  UNROLL for (i32 m = 0; m < HEADS / 16; m++)
    UNROLL for (i32 half = 0; half < 2; half++) {
      const i32 h = m * 16 + half * 8 + t.lane / 4, head = first_head + h;
      if (h >= heads) continue;
      const i64 split = (i64(t.gy) * a.heads + head) * a.max_splits + t.gz;
      const bool whole = cut.splits == 1;
      const Ptr<f32> to = whole ? offset(a.out, i64(row) * a.out_stride + head * MLA_DIM) : offset(p.parts, split * MLA_DIM);
      const f32 by = whole ? 1.f / g.sum[h] : 1.f;
      UNROLL for (i32 j = 0; j < 8; j++) {
        const i32 d = t.simd * 64 + j * 8 + t.lane % 4 * 2;
        to[d] = acc[m][j][half * 2] * by;
        to[d + 1] = acc[m][j][half * 2 + 1] * by;
      }
      if (!whole && t.simd == 0 && t.lane % 4 == 0) {
        f32x2 stat;
        stat.x = g.top[h]; stat.y = g.sum[h];
        a.stats[split] = stat;
      }
    }
}
static_assert(sizeof(MlaGroup<16>) == 170752 && sizeof(MlaGroup<32>) == 152576, "as in mla_attention.rs");
typedef MlaGroup<16> mla_attention_h16_memory;
typedef MlaGroup<32> mla_attention_h32_memory;
KERNEL_DYNAMIC(mla_attention_f16_h16, MlaParams<f16>, mla_attention_h16_memory, 256, mla_matrix<16>)
KERNEL_DYNAMIC(mla_attention_f16_h32, MlaParams<f16>, mla_attention_h32_memory, 256, mla_matrix<32>)

// An item of attention whose splits are folded: its row, and how many splits there are.
struct MlaItem { i32 item, row, splits; };
FN MlaItem mla_item(CONST MlaParams<f16>& p, i32 item) {
  CONST AttentionParams<f16>& a = p.attention;
  const i32 row = a.items[item].x;
  return {item, row, mla_cut(a.positions[row], p.tile, a.max_splits).splits};
}

// Four latent numbers of a head of an item, folded from its splits in order.
FN f32x4 mla_folded(CONST MlaParams<f16>& p, MlaItem of, i32 head, i32 v) {
  enum { AHEAD = 8 };
  CONST AttentionParams<f16>& a = p.attention;
  if (of.splits == 1) {
    const Ptr<f32> out = offset(a.out, i64(of.row) * a.out_stride + head * MLA_DIM + v * 4);
    f32x4 whole;
    whole.x = out[0]; whole.y = out[1]; whole.z = out[2]; whole.w = out[3];
    return whole;
  }
  const i64 from = (i64(of.item) * a.heads + head) * a.max_splits;
  AttentionState all = attention_nothing();
  for (i32 base = 0; base < of.splits; base += AHEAD) {
    AttentionState next[AHEAD];
    UNROLL for (i32 j = 0; j < AHEAD; j++) {
      const i64 at = from + mini(base + j, of.splits - 1);
      const f32x2 stat = a.stats[at];
      next[j].acc = a.partials[at * (MLA_DIM / 4) + v];
      next[j].top = stat.x;
      next[j].sum = stat.y;
    }
    UNROLL for (i32 j = 0; j < AHEAD; j++)
      if (base + j < of.splits) attention_fold(all, next[j]);
  }
  const f32 scale = 1.f / all.sum;
  all.acc.x *= scale; all.acc.y *= scale; all.acc.z *= scale; all.acc.w *= scale;
  return all.acc;
}

// mla_fold: the splits of each row and head, folded. Grid (heads, items): a lane has four latent numbers.
FN void mla_fold(CONST MlaParams<f16>& p, GROUP NoGroup&, Lane t) {
  CONST AttentionParams<f16>& a = p.attention;
  let_next_start();
  wait_for_previous();
  if (t.gy >= a.num_items[0]) return;
  const i32 v = t.simd * SIMD + t.lane;
  const MlaItem of = mla_item(p, t.gy);
  if (of.splits == 1) return;  // it is there
  const f32x4 all = mla_folded(p, of, t.gx, v);
  const Ptr<f32> out = offset(a.out, i64(of.row) * a.out_stride + t.gx * MLA_DIM + v * 4);
  out[0] = all.x; out[1] = all.y; out[2] = all.z; out[3] = all.w;
}
KERNEL(mla_fold, MlaParams<f16>, NoGroup, 128, mla_fold)

// fold_head_linear: head_linear of what mla_fold would give. Groups of several rows are large, so that a vector is folded for 128 outputs.
template <> struct HeadSource<MlaParams<f16>> {
  enum { AT_ONCE = 1 };
  typedef MlaItem Row;
};
FN MlaItem head_row(CONST HeadLinearParams&, CONST MlaParams<f16>& source, i32 row) { return mla_item(source, row); }
FN f32x4 head_source(CONST HeadLinearParams& p, CONST MlaParams<f16>& source, MlaItem of, i32 head, i32 i) {
  f32x4 zero;
  zero.x = zero.y = zero.z = zero.w = 0.f;
  return i < MLA_DIM / 4 ? mla_folded(source, of, head, i) : zero;
}
template <class W, i32 M, i32 J>
FN void fold_head_linear(CONST FoldHeadParams& p, GROUP HeadGroup<M>& g, Lane t) { head_linear_of<W, M, J>(p.heads, p.mla, g, t); }
#define FOLD_HEAD_LINEAR(FORMAT, W, ONE, FOUR)                                                                             \
  KERNEL(fold_head_linear_##FORMAT##_m1, FoldHeadParams, head_linear_m1_memory, 128, fold_head_linear<W, 1, ONE>)          \
  KERNEL(fold_head_linear_##FORMAT##_m4, FoldHeadParams, head_linear_m4_memory, 512, fold_head_linear<W, 4, FOUR>)
EACH_HEAD_FORMAT(FOLD_HEAD_LINEAR)
#endif
