// mla_cluster: latent attention of one row or two that are alone in their sequences, behind few positions, with all that stands between
// its projections, in one launch: what latent_head_linear, mla_attention and fold_head_linear (mla_attention.h) compute.
//
// A cluster of groups has a few heads of a row. Each group multiplies a slice of the matrices of keys, and sends it to the others, so
// that all have the queries of these heads; attends to a split of the positions; folds a slice of the latent numbers from all splits,
// and sends it; and multiplies a slice of the matrices of values.
//
// Shapes    as latent_rope_write, head_linear and mla_attention have them: rows of 512 latent numbers and 64 turned ones, up to 192
//           features of a head that no position turns, up to 256 outputs of a head, and up to MLA_TILES tiles a group.
// Grid      (MLA_RANKS · ceil(heads / heads of a cluster), items).
// Messages  barriers in group memory count the bytes that others send. Barriers of whole clusters would take a fence each.
// Bytes     the matrices of all heads, once a row, and the rows of the positions, once for the heads of a cluster.
// Accuracy  as mla_attention.h. Codes of a byte are multiplied as whole numbers, by rows of 15 bits with a scale for 32 numbers.
// Order     a row's positions are cut into MLA_RANKS splits of whole tiles, which are folded in order.
struct MlaClusterParams {
  HeadLinearParams keys;    // q_nope is their x: `write` says where it comes from, and nobody stores what comes of it
  HeadLinearParams values;  // of what is attended; y: the result
  MlaParams<f16> mla;       // its q and out are nowhere
  LatentRopeWriteParams<f16> write;
  i32 heads;                // of a cluster
  i32 next_is_late;         // as in linear_stream.h
  i32 padding[2];
};

#if __CUDA_ARCH_FEAT_SM90_ALL
enum {
  MLA_RANKS = 8,   // groups of a cluster
  MLA_HEADS = 4,   // heads of a cluster, at most
  MLA_TILE = 64,   // positions
  MLA_TILES = 2,   // of a group, at most
  MLA_NOPE = 192,  // features of a head that no position turns, at most
  MLA_SLICE = MLA_DIM / MLA_RANKS,
  MLA_STRIDE = MLA_TILE + 4,  // of scores
  MLA_TURNS = (MLA_ROW - MLA_DIM) / 2
};

// A row that weights of W are multiplied by: f32, in the order in which lanes read it. For codes of a byte it is blocks of 32 whole numbers of
// 128 high + low and what these are multiplied by: the high bytes of four numbers, and then their low ones.
template <class W, i32 LEN> struct MlaRow { enum { BYTES = LEN * 4 }; f32 v[LEN]; };
template <i32 LEN> struct MlaRow<WeightQ8_0, LEN> { enum { BYTES = LEN * 2 + LEN / 8 }; u32 v[LEN / 2]; f32 scale[LEN / 32]; };
#define MLA_LARGEST 16256.f  // 127 · 128

struct MlaBytes { i32 high, low; };
FN MlaBytes mla_bytes(f32 v) {
  const i32 whole = __float2int_rn(v), high = (whole + 64) >> 7;
  return {high, whole - high * 128};
}

template <class W> struct MlaClusterGroup {
  union {
    u32x4 q[MLA_HEADS + 1][MLA_CHUNKS + 1];  // in the last place, the row that this step adds to the cache
    f32 scores[MLA_QUARTERS][MLA_HEADS][MLA_STRIDE];
  };
  u32x4 tile[MLA_TILE][MLA_CHUNKS + 1];
  union {
    MlaRow<W, 256> nope[MLA_HEADS];              // the others need what comes of it before they send
    f32 parts[MLA_RANKS][MLA_HEADS][MLA_SLICE];  // of each split, the slice of this group
  };
  union {
    f32 latent[MLA_HEADS][MLA_DIM];  // which this group has read before it sends parts
    MlaRow<W, MLA_DIM> attended[MLA_HEADS];
  };
  f32 turned[MLA_HEADS][MLA_ROW - MLA_DIM];
  f32x2 stats[MLA_RANKS][MLA_HEADS];  // the maximum that parts refer to, and the sum of their weights
  unsigned long long latent_come, parts_come, attended_come;
  u32 weights[MLA_HEADS][MLA_TILE / 2 + 4];  // pairs of positions
  f32 scale[MLA_HEADS], keep[MLA_HEADS], sums[MLA_SIMDS];
};
static_assert(sizeof(MlaClusterGroup<WeightF16>) <= 97 * 1024, "as in mla_cluster.rs");
static_assert(sizeof(f32[MLA_QUARTERS][MLA_HEADS][MLA_STRIDE]) <= sizeof(u32x4[MLA_HEADS][MLA_CHUNKS + 1]), "scores leave the row in the last place");

// What a group works on.
struct MlaClusterWork {
  i32 row, position;
  i32 first_head, heads;
  i32 rank;
  i32 begin, end, tiles;  // positions of the group, and its tiles
  bool has_newest;        // the row's own is one of these positions
};

FN f32 lane_number(f32 v, i32 lane) { return bits_to_f32(u32(shuffle(i32(f32_to_bits(v)), lane))); }

// Number i of a row in chunks of LEN numbers, of which each of LANES lanes has every LANES-th: vectors that lanes read together lie
// together.
template <i32 LEN, i32 LANES>
FN i32 mla_place(i32 i) {
  const i32 chunk = i / LEN;
  return (chunk / LANES * (LANES * LEN / 4) + i % LEN / 4 * LANES + chunk % LANES) * 4 + i % 4;
}

// A lane's chunks of a row of a head's matrix: LANES lanes have a row.
template <class W, i32 J, i32 LANES>
FN void mla_load(THREAD HeadTile<W, J>& tile, CONST HeadLinearParams& p, i32 head, i32 row, i32 lane) {
  const i64 at = i64(head) * p.stride;
  const i32 chunks = (p.k + W::LEN - 1) / W::LEN;
  UNROLL for (i32 j = 0; j < J; j++) {
    const i32 c = j * LANES + lane % LANES;
    tile.chunk[j] = W::none();
    if (c < chunks) tile.chunk[j] = W::load(offset(p.weight, at), offset(p.scales, at * 8), row, chunks, c);
  }
}

// The product of that row and of one in group memory, in all of its lanes.
template <i32 LANES, class W, i32 J, i32 LEN>
FN f32 mla_product(THREAD const HeadTile<W, J>& tile, CONST HeadLinearParams& p, GROUP const MlaRow<W, LEN>& x, i32 head, i32 row, i32 lane) {
  enum { V = W::LEN / 4 };
  const u32 from = group_address(x.v) + lane % LANES * 16;
  f32 sum = 0;
  UNROLL for (i32 j = 0; j < J; j++) {
    f32 w[W::LEN], v[W::LEN];
    const f32 scale = W::widen(w, tile.chunk[j]);
    UNROLL for (i32 i = 0; i < V; i++) {
      const f32x4 four = load_group(from + (j * V + i) * LANES * 16);
      v[i * 4] = four.x; v[i * 4 + 1] = four.y; v[i * 4 + 2] = four.z; v[i * 4 + 3] = four.w;
    }
    sum = fma32(linear_dot<W::LEN>(w, v), scale, sum);
  }
  sum = sum_lanes<LANES>(sum);
  if (HasMatrixScale<W>::VALUE) sum *= p.matrix_scales[head];
  return given(p.bias) ? sum + p.bias[i64(head) * p.bias_stride + row] : sum;
}
template <i32 LANES, i32 J, i32 LEN>
FN f32 mla_product(THREAD const HeadTile<WeightQ8_0, J>& tile, CONST HeadLinearParams& p, GROUP const MlaRow<WeightQ8_0, LEN>& x, i32 head, i32 row, i32 lane) {
  // A chunk has 16 numbers, half of a block.
  const u32 from = group_address(x.v) + lane % LANES * 32, scales = group_address(x.scale) + lane % LANES / 2 * 4;
  f32 sum = 0;
  UNROLL for (i32 j = 0; j < J; j++) {
    const u32x4 a = load_group_bits(from + j * LANES * 32), b = load_group_bits(from + j * LANES * 32 + 16), codes = tile.chunk[j].codes;
    i32 high = dot_i8x4(codes.x, a.x, 0), low = dot_i8x4(codes.x, a.y, 0);
    high = dot_i8x4(codes.y, a.z, high); low = dot_i8x4(codes.y, a.w, low);
    high = dot_i8x4(codes.z, b.x, high); low = dot_i8x4(codes.z, b.y, low);
    high = dot_i8x4(codes.w, b.z, high); low = dot_i8x4(codes.w, b.w, low);
    sum = fma32(f32(high * 128 + low), to_f32(tile.chunk[j].scale) * load_group_scalar(scales + j * (LANES * 2)), sum);
  }
  sum = sum_lanes<LANES>(sum);
  return given(p.bias) ? sum + p.bias[i64(head) * p.bias_stride + row] : sum;
}

// Puts number k of a row there. A SIMD group has a block.
template <i32 LANES, class W, i32 LEN> FN void mla_store(GROUP MlaRow<W, LEN>& x, i32 k, f32 v, i32 lane) { x.v[mla_place<W::LEN, LANES>(k)] = v; }
template <i32 LANES, i32 LEN> FN void mla_store(GROUP MlaRow<WeightQ8_0, LEN>& x, i32 k, f32 v, i32 lane) {
  const f32 most = max_lanes<SIMD>(abs32(v));
  const MlaBytes bytes = mla_bytes(most > 0 ? v * (MLA_LARGEST / most) : 0.f);
  signed char* const to = reinterpret_cast<signed char*>(x.v) + k / 4 * 8 + k % 4;
  to[0] = (signed char)bytes.high;
  to[4] = (signed char)bytes.low;
  if (lane == 0) x.scale[k / 32] = most / MLA_LARGEST;
}

// Asks for the positions from `begin` on, of which each SIMD group has eight. In the place of positions that were not there before this
// step comes the last that was.
template <class G>
FN void mla_cluster_ask(CONST AttentionParams<f16>& a, Ptr<const i32> table, THREAD const MlaClusterWork& w, i32 begin, GROUP G& g, Lane t) {
  static_assert(MLA_TILE == 8 * MLA_SIMDS, "a SIMD group has eight positions of a tile");
  const i32 slot = attention_slot(a, table, 0, maxi(mini(begin + t.simd * 8 + t.lane % 8, w.position - 1), 0));
  const Ptr<const u32x4> cache = vectors16(a.keys);
  ROLL for (i32 first = 0; first < 8; first += 4)
    UNROLL for (i32 i = 0; i < 4 * MLA_CHUNKS / SIMD; i++) {
      const i32 at = i * SIMD + t.lane, row = first + at / MLA_CHUNKS, chunk = at % MLA_CHUNKS;
      copy16_async(g.tile[t.simd * 8 + row][chunk], cache, i64(shuffle(slot, row)) * MLA_CHUNKS + chunk);
    }
  copies_asked();
}

// A pair of numbers that a position turns: which columns they come from, and by which angle, which is known before the step's rows.
struct MlaTurn { RopePair pair; i32 low, high; f32x2 angle; };
FN MlaTurn mla_turn(CONST LatentRopeWriteParams<f16>& p, Ptr<const i32> columns, i32 row, i32 i) {
  MlaTurn turn;
  turn.pair = rope_pair(i, p.rope_dim / 2, p.turned);
  turn.low = columns[turn.pair.low];
  turn.high = columns[turn.pair.high];
  turn.angle.x = 1.f;
  turn.angle.y = 0.f;
  if (i < p.turned) turn.angle = latent_angles(p, row)[i];
  return turn;
}
FN f32x2 mla_turned(THREAD const MlaTurn& turn, Ptr<const f32> x) {
  const f32 a = x[turn.low], b = x[turn.high];
  f32x2 both;
  both.x = a * turn.angle.x - b * turn.angle.y;
  both.y = b * turn.angle.x + a * turn.angle.y;
  return both;
}

// The row that this step adds to the cache: which of its numbers are a thread's, and what is known of them before they are there.
enum { MLA_NEWEST = MLA_DIM / MLA_THREADS };
struct MlaNewest { i32 columns[MLA_NEWEST]; f32 gain[MLA_NEWEST], v[MLA_NEWEST]; i32 slot; };

// Its latent numbers, whose squares are added up at the next barrier.
template <class G>
FN void mla_newest_load(THREAD MlaNewest& newest, Ptr<const f32> kv, GROUP G& g, Lane t) {
  f32 squares = 0;
  UNROLL for (i32 j = 0; j < MLA_NEWEST; j++) newest.v[j] = kv[newest.columns[j]];
  UNROLL for (i32 j = 0; j < MLA_NEWEST; j++) squares = fma32(newest.v[j], newest.v[j], squares);
  squares = sum_lanes<SIMD>(squares);
  if (t.lane == 0) g.sums[t.simd] = squares;
}
// Puts the row in group memory, and in the cache where `writes`; a pair of its turned numbers where `turns`.
template <class G>
FN void mla_newest_row(CONST LatentRopeWriteParams<f16>& p, THREAD const MlaNewest& newest, bool turns, RopePair pair, f32x2 turned, bool writes,
                       GROUP G& g, Lane t) {
  f32 squares = 0;
  UNROLL for (i32 s = 0; s < MLA_SIMDS; s++) squares += g.sums[s];
  const f32 scale = inv_sqrt(squares / f32(p.dim) + p.eps);
  const i64 to = i64(newest.slot) * MLA_ROW;
  f16* const here = reinterpret_cast<f16*>(g.q[MLA_HEADS]);
  UNROLL for (i32 j = 0; j < MLA_NEWEST; j++) {
    const i32 i = j * MLA_THREADS + t.simd * SIMD + t.lane;
    const f32 v = newest.v[j] * scale * newest.gain[j];
    store(here, i, v);
    if (writes) store(p.cache, to + i, v);
  }
  if (turns) {
    store(here, MLA_DIM + pair.low, turned.x);
    store(here, MLA_DIM + pair.high, turned.y);
    if (writes) {
      store(p.cache, to + MLA_DIM + pair.low, turned.x);
      store(p.cache, to + MLA_DIM + pair.high, turned.y);
    }
  }
}

// Each SIMD group rounds the queries of a head, as mla_queries does.
template <class G>
FN void mla_cluster_queries(CONST AttentionParams<f16>& a, THREAD const MlaClusterWork& w, GROUP G& g, Lane t) {
  const i32 h = t.simd;
  if (h >= w.heads) return;  // the whole SIMD group
  f32x4 v[6];
  UNROLL for (i32 i = 0; i < 4; i++) v[i] = load_group(group_address(&g.latent[h][((i / 2 * SIMD + t.lane) * 2 + i % 2) * 4]));
  UNROLL for (i32 i = 0; i < 2; i++) v[4 + i] = load_group(group_address(&g.turned[h][(t.lane % 8 * 2 + i) * 4]));
  f32 most = 0;
  UNROLL for (i32 i = 0; i < 6; i++) most = max32(most, largest4(v[i]));
  const u32 exponent = exponent_of(max_lanes<SIMD>(most));
  const f32 inverse = inverse_power(exponent);
  g.q[h][t.lane] = mla_halves(v[0], v[1], inverse);
  g.q[h][SIMD + t.lane] = mla_halves(v[2], v[3], inverse);
  if (t.lane < 8) g.q[h][2 * SIMD + t.lane] = mla_halves(v[4], v[5], inverse);
  if (t.lane == 0) g.scale[h] = bits_to_f32(exponent) * (a.scale * LOG2_E);
}

// A SIMD group has a quarter of the numbers that are multiplied, of all heads, and half of the positions of the tile. Two steps of 16
// numbers come at once; of the last, one. An instruction takes eight heads: the others are the same ones again.
struct MlaClusterQueries { u32 b[(MLA_STEPS + 1) / 2][4]; };
template <class G>
FN void mla_cluster_load_queries(THREAD MlaClusterQueries& q, GROUP const G& g, Lane t) {
  const i32 from = t.simd % MLA_QUARTERS * (MLA_STEPS * 2);
  UNROLL for (i32 k = 0; k < (MLA_STEPS + 1) / 2; k++) load_matrices(q.b[k], g.q[t.lane % 8 % MLA_HEADS][mini(from + k * 4 + t.lane / 8, MLA_CHUNKS - 1)]);
}

template <class G>
FN void mla_cluster_scores(THREAD const MlaClusterQueries& q, GROUP G& g, Lane t) {
  const i32 matrix = t.lane / 8, line = t.lane % 8, quarter = t.simd % MLA_QUARTERS, half = t.simd / MLA_QUARTERS * 32;
  f32 c[2][4];
  UNROLL for (i32 m = 0; m < 2; m++)
    UNROLL for (i32 i = 0; i < 4; i++) c[m][i] = 0.f;
  UNROLL for (i32 k = 0; k < MLA_STEPS; k++)
    UNROLL for (i32 m = 0; m < 2; m++) {
      u32 a[4];
      load_matrices(a, g.tile[half + m * 16 + matrix % 2 * 8 + line][(quarter * MLA_STEPS + k) * 2 + matrix / 2]);
      mma_f16_16x8x16(c[m], a[0], a[1], a[2], a[3], q.b[k / 2][k % 2 * 2], q.b[k / 2][k % 2 * 2 + 1]);
    }
  if (t.lane % 4 * 2 < MLA_HEADS)
    UNROLL for (i32 m = 0; m < 2; m++)
      UNROLL for (i32 i = 0; i < 4; i++) g.scores[quarter][t.lane % 4 * 2 + i % 2][half + m * 16 + t.lane / 4 + i / 2 * 8] = c[m][i];
}

// SIMD group h makes weights of the scores of head h: a lane has two positions of those from `begin` on, of which those from `end` on are
// not there. `top` is the maximum so far, and `sum` the lane's part of the sum of the weights.
template <class G>
FN void mla_cluster_weights(GROUP G& g, i32 begin, i32 end, THREAD f32& top, THREAD f32& sum, Lane t) {
  if (t.simd >= MLA_HEADS) return;  // the whole SIMD group
  f32 low = 0, high = 0;
  UNROLL for (i32 quarter = 0; quarter < MLA_QUARTERS; quarter++) {
    const f32x2 two = load_group_pair(group_address(&g.scores[quarter][t.simd][t.lane * 2]));
    low += two.x;
    high += two.y;
  }
  const f32 scale = g.scale[t.simd];
  low = begin + t.lane * 2 < end ? low * scale : ATTENTION_MASKED;
  high = begin + t.lane * 2 + 1 < end ? high * scale : ATTENTION_MASKED;
  const f32 now = max32(top, max_lanes<SIMD>(max32(low, high))), shifted = now - WEIGHT_SHIFT;
  if (t.lane == 0) g.keep[t.simd] = exp2_32(top - now);
  low = exp2_32(low - shifted);
  high = exp2_32(high - shifted);
  sum = fma32(sum, exp2_32(top - now), low + high);
  top = now;
  g.weights[t.simd][t.lane] = f32x2_to_f16x2(low, high);
}

// A SIMD group has 64 latent numbers of all heads, in four pieces of 16, as a matrix instruction leaves them: a lane those of heads
// lane % 4 · 2 and the next, where there are such.
struct MlaClusterSums { f32 acc[4][4]; };
template <class G>
FN void mla_cluster_values(THREAD MlaClusterSums& s, GROUP const G& g, bool first, Lane t) {
  enum { STEPS = MLA_TILE / 16 };
  const i32 head = t.lane / 4 % MLA_HEADS, matrix = t.lane / 8, line = t.lane % 8, low_head = t.lane % 4 * 2 % MLA_HEADS;
  if (!first) {
    const f32 low = g.keep[low_head], high = g.keep[low_head + 1];
    UNROLL for (i32 m = 0; m < 4; m++) {
      s.acc[m][0] *= low; s.acc[m][1] *= high;
      s.acc[m][2] *= low; s.acc[m][3] *= high;
    }
  }
  u32 b[STEPS * 2];
  UNROLL for (i32 i = 0; i < STEPS * 2; i++) b[i] = g.weights[head][i * 4 + t.lane % 4];
  UNROLL for (i32 k = 0; k < STEPS; k++)
    UNROLL for (i32 m = 0; m < 4; m++) {
      u32 a[4];
      load_matrices_turned(a, g.tile[k * 16 + matrix / 2 * 8 + line][t.simd * 8 + m * 2 + matrix % 2]);
      mma_f16_16x8x16(s.acc[m], a[0], a[1], a[2], a[3], b[k * 2], b[k * 2 + 1]);
    }
}
// Where number d of a slice is among the parts of a split: what a lane has follows each other.
FN i32 mla_part_place(i32 d) { return d % 8 * 8 + d / 8; }

// Four numbers that follow each other in the parts of a head, folded from the splits of the cluster.
template <class G>
FN AttentionState mla_cluster_folded(GROUP const G& g, i32 h, i32 v) {
  AttentionState all = attention_nothing();
  f32x2 stat[MLA_RANKS];
  UNROLL for (i32 j = 0; j < MLA_RANKS; j++) {
    stat[j] = load_group_pair(group_address(&g.stats[j][h]));
    all.top = max32(all.top, stat[j].x);
  }
  UNROLL for (i32 j = 0; j < MLA_RANKS; j++) {
    const f32x4 part = load_group(group_address(&g.parts[j][h][v * 4]));
    const f32 take = exp2_32(stat[j].x - all.top);
    all.acc.x = fma32(part.x, take, all.acc.x);
    all.acc.y = fma32(part.y, take, all.acc.y);
    all.acc.z = fma32(part.z, take, all.acc.z);
    all.acc.w = fma32(part.w, take, all.acc.w);
    all.sum = fma32(stat[j].y, take, all.sum);
  }
  return all;
}

// Folds the parts of the slice of this group, and sends what that makes to all groups of the cluster.
template <class W>
FN void mla_cluster_send(GROUP MlaClusterGroup<W>& g, THREAD const MlaClusterWork& w, u32 come, Lane t) {
  // A thread sends four numbers to one of the groups.
  for (i32 i = t.simd * SIMD + t.lane; i < w.heads * (MLA_SLICE / 4) * MLA_RANKS; i += MLA_THREADS) {
    const i32 to = i % MLA_RANKS, item = i / MLA_RANKS, h = item / (MLA_SLICE / 4), v = item % (MLA_SLICE / 4);
    const AttentionState all = mla_cluster_folded(g, h, v);
    const f32 scale = 1.f / all.sum, numbers[4] = {all.acc.x * scale, all.acc.y * scale, all.acc.z * scale, all.acc.w * scale};
    UNROLL for (i32 j = 0; j < 4; j++) {
      const i32 d = (v % 2 * 4 + j) * 8 + v / 2;  // that lies at place 4 v + j
      send_to(group_address(&g.attended[h].v[mla_place<W::LEN, 8>(w.rank * MLA_SLICE + d)]), come, to, numbers[j]);
    }
  }
}
FN void mla_cluster_send(GROUP MlaClusterGroup<WeightQ8_0>& g, THREAD const MlaClusterWork& w, u32 come, Lane t) {
  // Two SIMD groups have a block of a head, and send it to four groups each: a lane has four numbers that follow each other.
  for (i32 unit = t.simd / 2; unit < w.heads * 2; unit += MLA_SIMDS / 2) {
    const i32 h = unit / 2, to = t.simd % 2 * 4 + t.lane % 4, first = unit % 2 * 32 + t.lane / 4 * 4;
    f32x2 stats[MLA_RANKS];
    f32 n[4] = {0.f, 0.f, 0.f, 0.f}, top = ATTENTION_NONE, sum = 0.f;
    UNROLL for (i32 r = 0; r < MLA_RANKS; r++) {
      stats[r] = load_group_pair(group_address(&g.stats[r][h]));
      top = max32(top, stats[r].x);
    }
    UNROLL for (i32 r = 0; r < MLA_RANKS; r++) {
      const f32 keep = exp2_32(stats[r].x - top);
      sum = fma32(stats[r].y, keep, sum);
      UNROLL for (i32 e = 0; e < 4; e++) n[e] = fma32(g.parts[r][h][mla_part_place(first) + e * 8], keep, n[e]);
    }
    f32 most = max32(max32(abs32(n[0]), abs32(n[1])), max32(abs32(n[2]), abs32(n[3])));
    UNROLL for (i32 d = 4; d < SIMD; d *= 2) most = max32(most, shuffle_xor(most, d));
    const f32 by = most > 0 ? MLA_LARGEST / most : 0.f;
    u32 high = 0, low = 0;
    UNROLL for (i32 e = 0; e < 4; e++) {
      const MlaBytes bytes = mla_bytes(n[e] * by);
      high |= (u32(bytes.high) & 255u) << e * 8;
      low |= (u32(bytes.low) & 255u) << e * 8;
    }
    const i32 at = w.rank * MLA_SLICE + first;
    send_to(group_address(&g.attended[h].v[at / 2]), come, to, bits_to_f32(high), bits_to_f32(low));
    if (t.lane < 4) send_to(group_address(&g.attended[h].scale[at / 32]), come, to, most / (MLA_LARGEST * sum));
  }
}

// AHEAD: heads whose weights are asked for together, those of keys before the kernel ahead has ended.
template <class W, i32 AHEAD>
FN void mla_cluster(CONST MlaClusterParams& p, GROUP MlaClusterGroup<W>& g, Lane t) {
  enum {
    KEYS = (MLA_NOPE / W::LEN + 3) / 4, VALUES = MLA_DIM / W::LEN / 8,  // chunks of a lane
    NOPE = KEYS * 4 * W::LEN, NUMBERS = (MLA_HEADS * NOPE + MLA_THREADS - 1) / MLA_THREADS
  };
  static_assert(NOPE <= 256 && (MLA_HEADS + 1) * MLA_TURNS <= MLA_THREADS, "there is room for queries, and a thread for each pair");
  CONST AttentionParams<f16>& a = p.mla.attention;
  CONST LatentRopeWriteParams<f16>& write = p.write;
  if (!p.next_is_late) let_next_start();
  const i32 own = t.simd * SIMD + t.lane;
  MlaClusterWork w;
  w.rank = t.gx % MLA_RANKS;
  w.first_head = t.gx / MLA_RANKS * p.heads;
  w.heads = mini(p.heads, a.heads - w.first_head);
  const u32 latent_come = group_address(&g.latent_come), parts_come = group_address(&g.parts_come), attended_come = group_address(&g.attended_come);
  if (own == 0) {
    barrier_init(latent_come, 1);
    barrier_init(parts_come, 1);
    barrier_init(attended_come, 1);
    barriers_are_ready();
    barrier_expect(latent_come, w.heads * (MLA_DIM * 4));
    barrier_expect(parts_come, w.heads * MLA_RANKS * (MLA_SLICE * 4 + 8));
    barrier_expect(attended_come, w.heads * i32(MlaRow<W, MLA_DIM>::BYTES));
  }
  simd_barrier();
  cluster_begin();
  // All that no kernel of this step writes is asked for before the kernel ahead has ended.
  const i32 slice = (p.values.n + MLA_RANKS - 1) / MLA_RANKS, in_slice = t.simd * 4 + t.lane / 8;
  const i32 key_row = w.rank * MLA_SLICE + t.simd * 8 + t.lane / 4, value_row = w.rank * slice + in_slice;
  const bool is_output = in_slice < slice && value_row < p.values.n;
  const i32 value_read = mini(value_row, p.values.n - 1);
  HeadTile<W, KEYS> keys[AHEAD];
  UNROLL for (i32 j = 0; j < AHEAD; j++) mla_load<W, KEYS, 4>(keys[j], p.keys, mini(w.first_head + j, a.heads - 1), key_row, t.lane);
  const i32 items = a.num_items[0];
  const i32x2 item = a.items[t.gy];  // readable for every t.gy
  i32 columns[NUMBERS];
  UNROLL for (i32 i = 0; i < NUMBERS; i++) {
    const i32 at = i * MLA_THREADS + own, h = at / NOPE, k = at % NOPE;
    columns[i] = h < w.heads && k < write.nope ? write.q_nope_columns[(w.first_head + h) * write.nope + k] : -1;
  }
  if (t.gy >= items) {  // the whole cluster
    // A kernel may not end before the one ahead has.
    if (t.gx + t.gy == 0) wait_for_previous();
    cluster_wait();
    return;
  }
  w.row = item.x;
  w.position = a.positions[w.row];
  const Ptr<const i32> table = offset(a.blocks, a.table_starts[w.row]);
  const i32 each = w.position / MLA_TILE / MLA_RANKS + 1;
  w.begin = w.rank * each * MLA_TILE;
  w.end = mini(w.begin + each * MLA_TILE, w.position + 1);
  w.tiles = w.begin < w.end ? (w.end - w.begin + MLA_TILE - 1) / MLA_TILE : 0;
  w.has_newest = w.tiles > 0 && w.end == w.position + 1;
  if (w.tiles > 0) mla_cluster_ask(a, table, w, w.begin, g, t);
  // A pair of numbers to be turned: of the queries of a head, or of the row that is new.
  const i32 turn_head = own / MLA_TURNS;
  const bool turns_newest = w.has_newest && turn_head == MLA_HEADS, turns = turn_head < w.heads || turns_newest;
  MlaTurn turn;
  f32x2 turned;
  if (turns) {
    const Ptr<const i32> of = turns_newest ? write.rope_columns : offset(write.q_rope_columns, (w.first_head + turn_head) * write.rope_dim);
    turn = mla_turn(write, of, w.row, own % MLA_TURNS);
  }
  MlaNewest newest;
  if (w.has_newest) {
    newest.slot = write.slots[w.row];
    UNROLL for (i32 j = 0; j < MLA_NEWEST; j++) {
      newest.columns[j] = write.latent_columns[j * MLA_THREADS + own];
      newest.gain[j] = write.gain[j * MLA_THREADS + own];
    }
  }
  // Twice, and the first time for nothing: while the kernel ahead is at work, because instructions that a multiprocessor has not had
  // for long take it as much time as what they compute.
  ROLL for (i32 time = 0; time < 2; time++) {
    if (time == 1) {
      wait_for_previous();
      if (p.next_is_late) let_next_start();
      const Ptr<const f32> q_row = offset(write.q, i64(w.row) * write.q_stride), kv_row = offset(write.kv, i64(w.row) * write.kv_stride);
      f32 numbers[NUMBERS];
      UNROLL for (i32 i = 0; i < NUMBERS; i++) numbers[i] = columns[i] < 0 ? 0.f : q_row[columns[i]];
      if (turns) turned = mla_turned(turn, turns_newest ? kv_row : q_row);
      if (w.has_newest) mla_newest_load(newest, kv_row, g, t);
      UNROLL for (i32 i = 0; i < NUMBERS; i++) {
        const i32 at = i * MLA_THREADS + own, h = at / NOPE;
        if (h < w.heads) mla_store<4>(g.nope[h], at % NOPE, numbers[i], t.lane);
      }
      if (turn_head < w.heads) {
        g.turned[turn_head][turn.pair.low] = turned.x;
        g.turned[turn_head][turn.pair.high] = turned.y;
      }
      cluster_wait();  // all groups have begun, before anything is sent
      group_barrier();
      if (w.has_newest) mla_newest_row(write, newest, turns_newest, turn.pair, turned, w.first_head == 0, g, t);
    }
    ROLL for (i32 base = 0; base < w.heads; base += AHEAD)
      UNROLL for (i32 j = 0; j < AHEAD; j++) {
        const i32 h = base + j;
        if (h >= w.heads) continue;
        const f32 y = mla_product<4>(keys[j], p.keys, g.nope[h], w.first_head + h, key_row, t.lane);
        // Of eight numbers, four go to each group at once: a lane has four of them and one group.
        const i32 half = t.lane / 8 % 2;
        f32x4 four;
        four.x = lane_number(y, half * 16); four.y = lane_number(y, half * 16 + 4);
        four.z = lane_number(y, half * 16 + 8); four.w = lane_number(y, half * 16 + 12);
        if (time == 1 && t.lane < 16) send_to(group_address(&g.latent[h][w.rank * MLA_SLICE + t.simd * 8 + half * 4]), latent_come, t.lane % 8, four);
        if (time == 1 && h + AHEAD < w.heads) mla_load<W, KEYS, 4>(keys[j], p.keys, w.first_head + h + AHEAD, key_row, t.lane);
      }
  }
  // Where weights of keys were is room for those of values, which come while the group attends.
  HeadTile<W, VALUES> values[AHEAD];
  mla_load<W, VALUES, 8>(values[0], p.values, w.first_head, value_read, t.lane);
  barrier_wait(latent_come, 0);
  mla_cluster_queries(a, w, g, t);
  group_barrier();
  MlaClusterQueries q;
  mla_cluster_load_queries(q, g, t);
  MlaClusterSums sums;
  UNROLL for (i32 m = 0; m < 4; m++)
    UNROLL for (i32 i = 0; i < 4; i++) sums.acc[m][i] = 0.f;
  f32 top = ATTENTION_NONE, sum = 0.f;  // of head t.simd
  ROLL for (i32 tile = 0; tile < w.tiles; tile++) {
    const i32 begin = w.begin + tile * MLA_TILE;
    copies_arrived<0>();
    if (w.has_newest && tile + 1 == w.tiles) {
      group_barrier();  // all copies are there
      // The row's own position. In the place of those that are not there is the one before it: where there is none, what is a number.
      const i32 first = w.position - begin, rows = w.position > 0 ? 1 : i32(MLA_TILE);
      for (i32 i = own; i < rows * MLA_CHUNKS; i += MLA_THREADS) g.tile[first + i / MLA_CHUNKS][i % MLA_CHUNKS] = g.q[MLA_HEADS][i % MLA_CHUNKS];
    }
    group_barrier();  // the tile is there, and queries are in registers
    mla_cluster_scores(q, g, t);
    group_barrier();
    mla_cluster_weights(g, begin, w.end, top, sum, t);
    group_barrier();
    mla_cluster_values(sums, g, tile == 0, t);
    if (tile + 1 < w.tiles) {
      group_barrier();  // none reads the tile any more
      mla_cluster_ask(a, table, w, begin + MLA_TILE, g, t);
    }
  }
  UNROLL for (i32 j = 1; j < AHEAD; j++) mla_load<W, VALUES, 8>(values[j], p.values, mini(w.first_head + j, a.heads - 1), value_read, t.lane);
  // SIMD group s has what group s folds.
  static_assert(MLA_SIMDS == MLA_RANKS, "a SIMD group for each group of the cluster");
  UNROLL for (i32 i = 0; i < 2; i++) {
    const i32 h = t.lane % 4 * 2 + i;
    if (h < w.heads) {
      const u32 to = group_address(&g.parts[w.rank][h][mla_part_place(t.lane / 4)]);
      f32x4 low, high;
      low.x = sums.acc[0][i]; low.y = sums.acc[0][2 + i]; low.z = sums.acc[1][i]; low.w = sums.acc[1][2 + i];
      high.x = sums.acc[2][i]; high.y = sums.acc[2][2 + i]; high.z = sums.acc[3][i]; high.w = sums.acc[3][2 + i];
      send_to(to, parts_come, t.simd, low);
      send_to(to + 16, parts_come, t.simd, high);
    }
  }
  if (t.simd < w.heads) {
    sum = sum_lanes<SIMD>(sum);
    if (t.lane < MLA_RANKS) send_to(group_address(&g.stats[w.rank][t.simd]), parts_come, t.lane, top - WEIGHT_SHIFT, sum);
  }
  barrier_wait(parts_come, 0);
  mla_cluster_send(g, w, attended_come, t);
  barrier_wait(attended_come, 0);
  ROLL for (i32 base = 0; base < w.heads; base += AHEAD)
    UNROLL for (i32 j = 0; j < AHEAD; j++) {
      const i32 h = base + j;
      if (h >= w.heads) continue;
      const f32 y = mla_product<8>(values[j], p.values, g.attended[h], w.first_head + h, value_read, t.lane);
      if (is_output && t.lane % 8 == 0) p.values.y[i64(w.row) * p.values.y_stride + (w.first_head + h) * p.values.n + value_row] = y;
      if (h + AHEAD < w.heads) mla_load<W, VALUES, 8>(values[j], p.values, w.first_head + h + AHEAD, value_read, t.lane);
    }
}

// As attention_cluster.h: beside projections that stream.
#define MLA_CLUSTER(FORMAT, W, AHEAD) KERNEL_BESIDE(mla_cluster_##FORMAT, MlaClusterParams, MlaClusterGroup<W>, 256, 2, mla_cluster<W, AHEAD>)
MLA_CLUSTER(f16, WeightF16, 1)
MLA_CLUSTER(bf16, WeightBF16, 1)
MLA_CLUSTER(q8_0, WeightQ8_0, 2)
MLA_CLUSTER(fp8, WeightFP8, 2)
MLA_CLUSTER(q4_0, WeightQ4_0, 2)
MLA_CLUSTER(q4_g128, WeightQ4G128, 2)
MLA_CLUSTER(q4_z128, WeightQ4Z128, 2)
MLA_CLUSTER(mxfp4, WeightMXFP4, 2)
MLA_CLUSTER(nvfp4, WeightNVFP4, 2)
#endif
