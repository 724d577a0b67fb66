// attention_f16_d64, attention_f16_d128: attention of attention.h, from an f16 cache of heads of exactly so many features,
// by matrix instructions that take eight query heads of a group at once.
//
// Fragments K and V go from the cache to registers, 16 bytes a load, as the instructions want them. Which features are
//           multiplied together is free, so a lane's 16 bytes of K serve two instructions; and 16 bytes of V of two
//           positions make eight pairs of them.
// Accuracy  a query is two halves, what f16 keeps of it and what is left, and so is each weight: they are the upper and the
//           lower eight rows of the instruction, so nothing is lost against f32 and nothing is paid. Queries are scaled
//           by a power of two that is their own, and weights by 2^15, so that f16 holds them.

// Norms and rotation of heads, and the write to the cache, as rope_kv_write has them.
struct RopeAttentionParams {
  AttentionParams<f16> attention;  // q: as the projection left it
  Ptr<const f32> k;
  Ptr<const f32> v;
  Ptr<const f32> q_gain;
  Ptr<const f32> k_gain;
  Ptr<const f32x2> angles;
  Ptr<const i32> slots;
  Ptr<f16> keys;
  Ptr<f16> values;
  i32 kv_stride, next_is_late;     // next_is_late: as in linear_stream.h
  f32 q_eps, k_eps;
};

#if MATRIX_16X8X16
// Query heads that are multiplied at once.
enum { MATRIX_HEADS = 8 };
#define WEIGHT_SHIFT 15.f

// Two f32 as two pairs of halves: what f16 keeps, and what is left.
struct Halves { u32 high, low; };

FN Halves split_halves(f32 a, f32 b) {
  Halves h;
  h.high = f32x2_to_f16x2(a, b);
  const f32x2 kept = f16x2_to_f32(h.high);
  h.low = f32x2_to_f16x2(a - kept.x, b - kept.y);
  return h;
}

// The power of two at or below a magnitude, and the one that scales by its inverse.
FN u32 exponent_of(f32 magnitude) { return f32_to_bits(magnitude) & 0x7f800000u; }
FN f32 inverse_power(u32 exponent) { return bits_to_f32(0x7f000000u - exponent); }

// A lane's part of the query of head lane / 4: of each 32 features, eight that begin at lane % 4 · 8.
template <i32 D> struct QueryRows { u32 high[D / 32][4], low[D / 32][4]; f32 scale; };

template <i32 D>
FN void load_query(THREAD f32x4 (&q)[D / 16], CONST AttentionParams<f16>& p, THREAD const AttentionWork& w, i32 lane) {
  const i32 head = lane / 4;
  const Ptr<const f32x4> from = vectors4(offset(p.q, i64(w.row) * p.q_stride + (w.first_head + (head < w.heads ? head : 0)) * D + lane % 4 * 8));
  UNROLL for (i32 j = 0; j < D / 32; j++) { q[2 * j] = from[j * 8]; q[2 * j + 1] = from[j * 8 + 1]; }
}

template <i32 D>
FN QueryRows<D> split_query(THREAD const f32x4 (&q)[D / 16], CONST AttentionParams<f16>& p, THREAD const AttentionWork& w, i32 lane) {
  QueryRows<D> rows;
  const bool live = lane / 4 < w.heads;
  f32 most = 0;
  UNROLL for (i32 j = 0; j < D / 16; j++)
    most = max32(max32(max32(abs32(q[j].x), abs32(q[j].y)), max32(abs32(q[j].z), abs32(q[j].w))), most);
  most = max32(most, shuffle_xor(most, 1));
  most = max32(most, shuffle_xor(most, 2));
  const u32 exponent = exponent_of(most);
  const f32 inverse = live ? inverse_power(exponent) : 0.f;
  UNROLL for (i32 j = 0; j < D / 16; j++) {
    const Halves a = split_halves(q[j].x * inverse, q[j].y * inverse), b = split_halves(q[j].z * inverse, q[j].w * inverse);
    rows.high[j / 2][j % 2 * 2] = a.high; rows.high[j / 2][j % 2 * 2 + 1] = b.high;
    rows.low[j / 2][j % 2 * 2] = a.low; rows.low[j / 2][j % 2 * 2 + 1] = b.low;
  }
  rows.scale = bits_to_f32(exponent) * (p.scale * LOG2_E);
  return rows;
}

// K or V of 16 positions. Chunk i of 16 bytes of row r lies at place i ^ chunk_turn(r): so a SIMD group's loads of 16 bytes a
// lane, of K (rows lane / 4, chunks lane % 4) and of V (rows lane % 4 · 2, chunks lane / 4), find all banks at once.
template <i32 D> struct CacheTile { u32x4 rows[ATTENTION_TILE][D / 8]; };

FN i32 chunk_turn(i32 row) { return (row & 6) ^ (row & 1) << 2; }

// What a SIMD group has in group memory: tiles on their way, of K and V by turns, then its result.
template <i32 D, i32 W> struct MatrixMemory {
  enum { STAGES = 24 / W * 128 / D };  // 96 KiB for all W
  union {
    CacheTile<D> tiles[STAGES];
    f32 acc[MATRIX_HEADS][D + 4];
  };
  f32 top[MATRIX_HEADS], sum[MATRIX_HEADS];
};
template <i32 D, i32 W> struct MatrixGroup { enum { SIMDS = W }; MatrixMemory<D, W> of[SIMDS]; u32 is_last; };

// The lower and the upper halves of two words.
FN u32 lower_halves(u32 a, u32 b) { return (a & 0xffffu) | b << 16; }
FN u32 upper_halves(u32 a, u32 b) { return a >> 16 | (b & 0xffff0000u); }

// acc += weights · V, of all features: weights of the positions lane % 4 · 2 and the next are `a`, of those 8 further `b`.
template <i32 D>
FN void add_values(THREAD f32 (&acc)[D / 8][4], GROUP const CacheTile<D>& tile, Halves a, Halves b, i32 lane) {
  UNROLL for (i32 j = 0; j < D / 64; j++) {
    u32x4 v[4];
    UNROLL for (i32 n = 0; n < 4; n++) {
      const i32 row = n / 2 * 8 + lane % 4 * 2 + n % 2;
      v[n] = tile.rows[row][(j * 8 + lane / 4) ^ chunk_turn(row)];
    }
    mma_f16_16x8x16(acc[j * 8], a.high, a.low, b.high, b.low, lower_halves(v[0].x, v[1].x), lower_halves(v[2].x, v[3].x));
    mma_f16_16x8x16(acc[j * 8 + 1], a.high, a.low, b.high, b.low, upper_halves(v[0].x, v[1].x), upper_halves(v[2].x, v[3].x));
    mma_f16_16x8x16(acc[j * 8 + 2], a.high, a.low, b.high, b.low, lower_halves(v[0].y, v[1].y), lower_halves(v[2].y, v[3].y));
    mma_f16_16x8x16(acc[j * 8 + 3], a.high, a.low, b.high, b.low, upper_halves(v[0].y, v[1].y), upper_halves(v[2].y, v[3].y));
    mma_f16_16x8x16(acc[j * 8 + 4], a.high, a.low, b.high, b.low, lower_halves(v[0].z, v[1].z), lower_halves(v[2].z, v[3].z));
    mma_f16_16x8x16(acc[j * 8 + 5], a.high, a.low, b.high, b.low, upper_halves(v[0].z, v[1].z), upper_halves(v[2].z, v[3].z));
    mma_f16_16x8x16(acc[j * 8 + 6], a.high, a.low, b.high, b.low, lower_halves(v[0].w, v[1].w), lower_halves(v[2].w, v[3].w));
    mma_f16_16x8x16(acc[j * 8 + 7], a.high, a.low, b.high, b.low, upper_halves(v[0].w, v[1].w), upper_halves(v[2].w, v[3].w));
  }
}

// The tiles of a SIMD group: every so many of a split as the group has SIMD groups, from `begin` on, `stride` positions apart.
struct MatrixTiles {
  i32 begin, end, stride, count;
  i32 slots, ahead;  // of the positions of two tiles, a lane each; and of two more
};

// A lane's slot in the tiles 2 · pair and 2 · pair + 1; of the row's own position where there are none left.
FN i32 tile_slots(CONST AttentionParams<f16>& p, Ptr<const i32> table, THREAD const AttentionWork& w, THREAD const MatrixTiles& tiles, i32 pair, i32 lane) {
  const i32 tile = pair * 2 + lane / ATTENTION_TILE;
  return attention_slot(p, table, w.kv_head, mini(tiles.begin + tile * tiles.stride + lane % ATTENTION_TILE, w.position));
}

FN MatrixTiles matrix_tiles(CONST AttentionParams<f16>& p, Ptr<const i32> table, THREAD const AttentionWork& w, i32 split, Lane t) {
  MatrixTiles tiles;
  const i32 first = w.first + split * w.split_len;
  tiles.begin = first + t.simd * ATTENTION_TILE;
  tiles.end = mini(first + w.split_len, w.position + 1);
  tiles.stride = t.simds * ATTENTION_TILE;
  tiles.count = maxi(0, (tiles.end - tiles.begin + tiles.stride - 1) / tiles.stride);
  tiles.slots = tile_slots(p, table, w, tiles, 0, t.lane);
  tiles.ahead = tile_slots(p, table, w, tiles, 1, t.lane);
  return tiles;
}

// Asks for K or V, by turns, of the SIMD group's tile `turn / 2`, which must be the next.
template <i32 D>
FN void ask_for_tile(CONST AttentionParams<f16>& p, Ptr<const i32> table, THREAD const AttentionWork& w, THREAD MatrixTiles& tiles, i32 turn,
                     GROUP CacheTile<D>& to, i32 lane) {
  enum { CHUNKS = D / 8, ROWS = SIMD / CHUNKS };
  const i32 index = turn / 2;
  if (turn > 0 && turn % 4 == 0) {
    tiles.slots = tiles.ahead;
    tiles.ahead = tile_slots(p, table, w, tiles, index / 2 + 1, lane);
  }
  const Ptr<const u32x4> cache = vectors16(turn % 2 == 0 ? p.keys : p.values);
  UNROLL for (i32 i = 0; i < ATTENTION_TILE / ROWS; i++) {
    const i32 row = i * ROWS + lane / CHUNKS, chunk = lane % CHUNKS, place = chunk ^ chunk_turn(row);
    const i64 from = i64(shuffle(tiles.slots, index % 2 * ATTENTION_TILE + row)) * CHUNKS + chunk;
    copy16_async(to.rows[row][place], cache, from);
  }
}

// Asks for what the place of tile `turn` has room for now; the place of the next.
template <i32 D, i32 W>
FN i32 ask_for_next(CONST AttentionParams<f16>& p, Ptr<const i32> table, THREAD const AttentionWork& w, THREAD MatrixTiles& tiles, i32 turn,
                    GROUP MatrixMemory<D, W>& g, i32 stage, i32 lane) {
  enum { STAGES = MatrixMemory<D, W>::STAGES };
  simd_barrier();  // none reads it any more
  if (turn + STAGES < 2 * tiles.count) ask_for_tile(p, table, w, tiles, turn + STAGES, g.tiles[stage], lane);
  copies_asked();
  return stage + 1 == STAGES ? 0 : stage + 1;
}

// What a lane has of the rows of the instruction: of weighted values, and of the head lane / 4.
template <i32 D> struct MatrixState { f32 acc[D / 8][4]; f32 top, sum; };

// Queries against the keys of 16 positions, of which those from `end` on are not there.
template <i32 D>
FN void matrix_scores(THREAD f32 (&score)[2][2], THREAD const QueryRows<D>& q, GROUP const CacheTile<D>& tile, i32 at, i32 end, i32 lane) {
  UNROLL for (i32 n = 0; n < 2; n++) {
    f32 a[4], b[4];  // two sums, since an instruction waits for the one before that adds to the same
    UNROLL for (i32 i = 0; i < 4; i++) a[i] = b[i] = 0;
    const i32 row = n * 8 + lane / 4;
    UNROLL for (i32 j = 0; j < D / 32; j++) {
      const u32x4 k = tile.rows[row][(j * 4 + lane % 4) ^ chunk_turn(row)];
      mma_f16_16x8x16(a, q.high[j][0], q.low[j][0], q.high[j][1], q.low[j][1], k.x, k.y);
      mma_f16_16x8x16(b, q.high[j][2], q.low[j][2], q.high[j][3], q.low[j][3], k.z, k.w);
    }
    const i32 position = at + n * 8 + lane % 4 * 2;
    score[n][0] = position < end ? ((a[0] + b[0]) + (a[2] + b[2])) * q.scale : ATTENTION_MASKED;
    score[n][1] = position + 1 < end ? ((a[1] + b[1]) + (a[3] + b[3])) * q.scale : ATTENTION_MASKED;
  }
}

// Scores become weights, of the maximum so far.
template <i32 D>
FN void matrix_weights(THREAD MatrixState<D>& s, THREAD f32 (&score)[2][2]) {
  f32 now = max32(max32(s.top, max32(score[0][0], score[0][1])), max32(score[1][0], score[1][1]));
  now = max32(now, shuffle_xor(now, 1));
  now = max32(now, shuffle_xor(now, 2));
  if (any_lane(now > s.top)) {
    const f32 keep = exp2_32(s.top - now);
    s.sum *= keep;
    UNROLL for (i32 j = 0; j < D / 8; j++) UNROLL for (i32 i = 0; i < 4; i++) s.acc[j][i] *= keep;
    s.top = now;
  }
  const f32 shifted = s.top - WEIGHT_SHIFT;
  UNROLL for (i32 n = 0; n < 2; n++)
    UNROLL for (i32 i = 0; i < 2; i++) {
      score[n][i] = exp2_32(score[n][i] - shifted);
      s.sum += score[n][i];
    }
}

// Waits for the SIMD group's next tile of K or V.
template <i32 STAGES>
FN void wait_for_tile() {
  copies_arrived<STAGES - 1>();
  simd_barrier();  // all lanes have theirs
}

// The tiles of a SIMD group, of which the first STAGES have been asked for; leaves what they make in group memory.
template <i32 D, i32 W>
FN void matrix_split(CONST AttentionParams<f16>& p, Ptr<const i32> table, THREAD const AttentionWork& w, THREAD const QueryRows<D>& q,
                     THREAD MatrixTiles& tiles, GROUP MatrixMemory<D, W>& g, i32 lane) {
  enum { STAGES = MatrixMemory<D, W>::STAGES };
  MatrixState<D> s;
  s.top = ATTENTION_NONE;
  s.sum = 0;
  UNROLL for (i32 j = 0; j < D / 8; j++) UNROLL for (i32 i = 0; i < 4; i++) s.acc[j][i] = 0;
  for (i32 turn = 0, stage = 0; turn < 2 * tiles.count; turn += 2) {
    f32 score[2][2];
    wait_for_tile<STAGES>();
    matrix_scores(score, q, g.tiles[stage], tiles.begin + turn / 2 * tiles.stride, tiles.end, lane);
    stage = ask_for_next(p, table, w, tiles, turn, g, stage, lane);
    matrix_weights(s, score);
    wait_for_tile<STAGES>();
    add_values(s.acc, g.tiles[stage], split_halves(score[0][0], score[0][1]), split_halves(score[1][0], score[1][1]), lane);
    stage = ask_for_next(p, table, w, tiles, turn + 1, g, stage, lane);
  }
  s.sum += shuffle_xor(s.sum, 1);
  s.sum += shuffle_xor(s.sum, 2);
  const i32 head = lane / 4;
  UNROLL for (i32 j = 0; j < D / 64; j++)
    UNROLL for (i32 i = 0; i < 8; i++) {
      const i32 d = j * 64 + lane % 4 * 16 + i;
      g.acc[head][d] = s.acc[j * 8 + i][0] + s.acc[j * 8 + i][2];
      g.acc[head][d + 8] = s.acc[j * 8 + i][1] + s.acc[j * 8 + i][3];
    }
  if (lane % 4 == 0) { g.top[head] = s.top - WEIGHT_SHIFT; g.sum[head] = s.sum; }
}

// How the splits of a row become its result.
template <i32 D> struct FoldedByLast {
  template <class M>
  static PART void finish(CONST AttentionParams<f16>& p, THREAD const AttentionWork& w, i32 split, GROUP M& g, Lane t) {
    attention_finish<D>(p, w, split, g, t);
  }
};

template <i32 D, i32 W, bool LOOP, class FOLD = FoldedByLast<D>>
FN void attention_matrix(CONST AttentionParams<f16>& p, GROUP MatrixGroup<D, W>& g, Lane t) {
  enum { STAGES = MatrixMemory<D, W>::STAGES };
  let_next_start();
  AttentionWork w;
  if (!attention_work(w, p, MATRIX_HEADS, t)) return;  // the whole group
  const Ptr<const i32> table = offset(p.blocks, w.table_start);
  GROUP MatrixMemory<D, W>& own = g.of[t.simd];
  MatrixTiles tiles = matrix_tiles(p, table, w, t.gz, t);
  // What earlier steps wrote may be read before this step's kernels have written the rest.
  i32 asked = 0;
  for (; asked < STAGES && asked < 2 * tiles.count; asked++) {
    const i32 last = tiles.begin + asked / 2 * tiles.stride + ATTENTION_TILE - 1;
    if (mini(last, w.position) >= w.settled) break;
    ask_for_tile(p, table, w, tiles, asked, own.tiles[asked], t.lane);
    copies_asked();
  }
  wait_for_previous();
  for (; asked < STAGES; asked++) {
    if (asked < 2 * tiles.count) ask_for_tile(p, table, w, tiles, asked, own.tiles[asked], t.lane);
    copies_asked();
  }
  f32x4 row[D / 16];
  load_query<D>(row, p, w, t.lane);
  const QueryRows<D> q = split_query<D>(row, p, w, t.lane);
  if (!LOOP) {
    matrix_split(p, table, w, q, tiles, own, t.lane);
    FOLD::finish(p, w, t.gz, g, t);
    return;
  }
  AttentionStates<MATRIX_HEADS, D, W> states;
  for (i32 split = 0; split < w.splits; split++) {
    if (split > 0) {
      tiles = matrix_tiles(p, table, w, split, t);
      for (i32 i = 0; i < STAGES; i++) {
        if (i < 2 * tiles.count) ask_for_tile(p, table, w, tiles, i, own.tiles[i], t.lane);
        copies_asked();
      }
    }
    matrix_split(p, table, w, q, tiles, own, t.lane);
    attention_add_split<MATRIX_HEADS, D>(states, w, split, g, t);
  }
  attention_store_all(p, states, w, t);
}
// What a lane's part of a query is multiplied by and turned by, asked for before the query is there.
template <i32 D> struct QueryTurn { f32x4 gain[D / 16]; f32x2 angle[D / 8]; };

template <i32 D>
FN void load_turn(THREAD QueryTurn<D>& turn, CONST RopeAttentionParams& r, i32 position, i32 lane) {
  const Ptr<const f32x2> angles = offset(r.angles, i64(position) * (D / 2));
  UNROLL for (i32 j = 0; j < D / 32; j++)
    UNROLL for (i32 i = 0; i < 4; i++) turn.angle[j * 4 + i] = angles[j / 2 * 32 + lane % 4 * 8 + j % 2 * 4 + i];
  if (given(r.q_gain)) {
    const Ptr<const f32x4> gains = vectors4(r.q_gain);
    UNROLL for (i32 j = 0; j < D / 16; j++) turn.gain[j] = gains[j / 2 * 8 + lane % 4 * 2 + j % 2];
  }
}

// A lane's part of a query is normalised with those of the three lanes beside it, and turned: features that turn together are in one lane.
template <i32 D>
FN void turn_query(THREAD f32x4 (&q)[D / 16], THREAD const QueryTurn<D>& turn, CONST RopeAttentionParams& r) {
  if (given(r.q_gain)) {
    f32 squares = 0.f;
    UNROLL for (i32 j = 0; j < D / 16; j++)
      squares = fma32(q[j].w, q[j].w, fma32(q[j].z, q[j].z, fma32(q[j].y, q[j].y, fma32(q[j].x, q[j].x, squares))));
    squares += shuffle_xor(squares, 1);
    squares += shuffle_xor(squares, 2);
    const f32 scale = inv_sqrt(squares / f32(D) + r.q_eps);
    UNROLL for (i32 j = 0; j < D / 16; j++) {
      const f32x4 gain = turn.gain[j];
      q[j].x = q[j].x * scale * gain.x; q[j].y = q[j].y * scale * gain.y;
      q[j].z = q[j].z * scale * gain.z; q[j].w = q[j].w * scale * gain.w;
    }
  }
  UNROLL for (i32 j = 0; j < D / 32; j++) {
    const f32x2 x = turn.angle[j * 4], y = turn.angle[j * 4 + 1], z = turn.angle[j * 4 + 2], w = turn.angle[j * 4 + 3];
    const f32x4 a = q[j], b = q[j + D / 32];
    q[j].x = a.x * x.x - b.x * x.y; q[j + D / 32].x = b.x * x.x + a.x * x.y;
    q[j].y = a.y * y.x - b.y * y.y; q[j + D / 32].y = b.y * y.x + a.y * y.y;
    q[j].z = a.z * z.x - b.z * z.y; q[j + D / 32].z = b.z * z.x + a.z * z.y;
    q[j].w = a.w * w.x - b.w * w.y; q[j + D / 32].w = b.w * w.x + a.w * w.y;
  }
}

// rope_attention: what rope_kv_write and attention do, of rows that are alone in their sequence and whose heads turn whole. The
// SIMD group whose last tile has the row's own position writes its key and value to the cache, and reads them there as it does
// the others.
template <i32 D, i32 W, class FOLD = FoldedByLast<D>>
FN void rope_attention_matrix(CONST RopeAttentionParams& r, GROUP MatrixGroup<D, W>& g, Lane t) {
  CONST AttentionParams<f16>& p = r.attention;
  enum { STAGES = MatrixMemory<D, W>::STAGES };
  if (!r.next_is_late) let_next_start();
  AttentionWork w;
  if (!attention_work(w, p, MATRIX_HEADS, t)) return;  // the whole group
  const Ptr<const i32> table = offset(p.blocks, w.table_start);
  GROUP MatrixMemory<D, W>& own = g.of[t.simd];
  MatrixTiles tiles = matrix_tiles(p, table, w, t.gz, t);
  i32 asked = 0;
  for (; asked < STAGES && asked < 2 * tiles.count; asked++) {
    const i32 last = tiles.begin + asked / 2 * tiles.stride + ATTENTION_TILE - 1;
    if (mini(last, w.position) >= w.settled) break;
    ask_for_tile(p, table, w, tiles, asked, own.tiles[asked], t.lane);
    copies_asked();
  }
  QueryTurn<D> turn;
  load_turn<D>(turn, r, w.position, t.lane);
  const i64 to = kv_at(r.slots[w.row], w.kv_head, p.kv_heads, p.block_len, D);
  const i32 behind = w.position - (tiles.begin + (tiles.count - 1) * tiles.stride);
  const bool has_own = tiles.count > 0 && tiles.end == w.position + 1 && behind >= 0 && behind < ATTENTION_TILE;  // the whole SIMD group
  RopeHead gain;
  RopeAngles angles;
  if (has_own) {
    if (given(r.k_gain)) gain = rope_load(r.k_gain, D / 2, D / 2, t.lane);
    angles = rope_angles(offset(r.angles, i64(w.position) * (D / 2)), D / 2, t.lane);
  }
  wait_for_previous();
  if (r.next_is_late) let_next_start();
  f32x4 row[D / 16];
  load_query<D>(row, p, w, t.lane);
  if (has_own) {
    const i64 from = i64(w.row) * r.kv_stride + w.kv_head * D;
    RopeHead key = rope_load(offset(r.k, from), D / 2, D / 2, t.lane);
    const RopeHead value = rope_load(offset(r.v, from), D / 2, D / 2, t.lane);
    if (given(r.k_gain)) rope_norm(key, gain, r.k_eps, D / 2, t.lane);
    rope_turn(key, angles, D / 2, t.lane);
    rope_store(offset(r.keys, to), key, D / 2, D / 2, t.lane);
    rope_store(offset(r.values, to), value, D / 2, D / 2, t.lane);
    simd_barrier();  // all lanes of it see them
  }
  for (; asked < STAGES; asked++) {
    if (asked < 2 * tiles.count) ask_for_tile(p, table, w, tiles, asked, own.tiles[asked], t.lane);
    copies_asked();
  }
  turn_query<D>(row, turn, r);
  const QueryRows<D> q = split_query<D>(row, p, w, t.lane);
  matrix_split(p, table, w, q, tiles, own, t.lane);
  FOLD::finish(p, w, t.gz, g, t);
}

// Two groups share a multiprocessor; where there are few rows, one of eight SIMD groups has what the projections beside it leave:
// of registers 128 a thread, which heads of 64 do with (`WIDE_BESIDE` 2), so that the projections of the next layer fill their rings
// meanwhile. Heads of 128 have 176 registers, and lose more by 128 than they gain.
#define ATTENTION_MATRIX(D, WIDE_BESIDE)                                                                                               \
  typedef MatrixGroup<D, 4> attention_d##D##_memory;                                                                         \
  typedef MatrixGroup<D, 8> attention_d##D##_wide_memory;                                                                    \
  KERNEL_DYNAMIC(attention_f16_d##D, AttentionParams<f16>, attention_d##D##_memory, 128, attention_matrix<D, 4, false>)      \
  KERNEL_DYNAMIC(attention_f16_d##D##_loop, AttentionParams<f16>, attention_d##D##_memory, 128, attention_matrix<D, 4, true>) \
  KERNEL_BESIDE(attention_f16_d##D##_wide, AttentionParams<f16>, attention_d##D##_wide_memory, 256, WIDE_BESIDE,             \
                attention_matrix<D, 8, false>)                                                                               \
  KERNEL_BESIDE(rope_attention_f16_d##D##_wide, RopeAttentionParams, attention_d##D##_wide_memory, 256, WIDE_BESIDE,        \
                rope_attention_matrix<D, 8>)
ATTENTION_MATRIX(64, 2)
ATTENTION_MATRIX(128, 1)
#endif
