// attention: out = softmax(q · Kᵀ · scale) · V over the cached positions of the row's sequence up to its own, or the last
// `window` of them. Query head h reads key/value head h / group.
//
// Shapes    q, out (rows, heads · head_dim), f32; the cache as in rope_kv_write.h; head_dim <= 256.
// Tables    positions[row]; blocks[table_starts[row] + p / block_len] holds position p.
// Grid      (kv heads · ceil(group / G), rows, splits). A SIMD group takes 32 / L positions side by side, L lanes each, and
//           AT_ONCE such sets before a maximum moves; all G query heads at once, so that K and V are read once for them.
// Bytes     K and V of the positions, once for G heads. Bound by memory at small batches.
// Accuracy  f32, online softmax: rescaled when a maximum moves.
// Order     positions are taken in splits of ATTENTION_SPLIT that begin at multiples of it; in a split, by position modulo
//           the positions under way; splits are folded in order. So a row's result depends neither on the rows beside it
//           nor on how many groups share its splits.
//
// With `partials`, group z takes splits z, z + grid z, … and leaves each one's result to attention_combine; without, one
// group takes all of them, in the same order.
template <class E>
struct AttentionParams {
  Ptr<const f32> q;
  Ptr<const E> keys;
  Ptr<const E> values;
  Ptr<const i32> rows;
  Ptr<const i32> positions;
  Ptr<const i32> table_starts;
  Ptr<const i32> blocks;
  Ptr<f32> out;
  Ptr<f32> partials;  // (rows, heads, max_splits, head_dim + 2): sums, maximum, sum of weights
  i32 heads, kv_heads;
  i32 head_dim, block_len;
  i32 window, max_splits;  // window 0: all
  i32 q_stride, out_stride;
  f32 scale;
  i32 split_groups;
};

enum { ATTENTION_SPLIT = 64 };
#define ATTENTION_NONE -1e30f

// What positions made of one query head: weighted values, and the maximum and sum that the weights refer to.
template <i32 G, i32 D> struct AttentionGroup { f32 acc[GROUP_SIMDS][G][D]; f32 top[GROUP_SIMDS][G]; f32 sum[GROUP_SIMDS][G]; };

struct AttentionFold { f32 acc, top, sum; };

FN void attention_fold(THREAD AttentionFold& to, f32 acc, f32 top, f32 sum) {
  const f32 now = max32(to.top, top), keep = exp32(to.top - now), take = exp32(top - now);
  to.acc = fma32(acc, take, to.acc * keep);
  to.sum = fma32(sum, take, to.sum * keep);
  to.top = now;
}

// How a head is shared by L lanes, C features each: any head of up to 256 features, lane by lane …
template <class E> struct HeadAny {
  enum { DIM = 256, L = 32, C = 8, AT_ONCE = 1 };
  struct Chunk { f32 x[8]; };
  static PART i32 feature(i32 i, i32 lane) { return i * 32 + lane; }
  static PART Chunk load(Ptr<const E> head, i32 lane, i32 head_dim) {
    Chunk c;
    UNROLL for (i32 i = 0; i < 8; i++) c.x[i] = i * 32 + lane < head_dim ? to_f32(head[i * 32 + lane]) : 0.f;
    return c;
  }
  static PART void widen(THREAD f32 (&to)[8], Chunk c) { UNROLL for (i32 i = 0; i < 8; i++) to[i] = c.x[i]; }
};

// … or a head of exactly D features of f16, 16 bytes a lane, N positions at once.
template <i32 D, i32 N> struct HeadF16 {
  enum { DIM = D, L = D / 8, C = 8, AT_ONCE = N };
  struct Chunk { u32x4 pairs; };
  static PART i32 feature(i32 i, i32 lane) { return lane * 8 + i; }
  static PART Chunk load(Ptr<const f16> head, i32 lane, i32 head_dim) { return {vectors16(head)[lane]}; }
  static PART void widen(THREAD f32 (&to)[8], Chunk c) {
    const f32x2 a = f16x2_to_f32(c.pairs.x), b = f16x2_to_f32(c.pairs.y), d = f16x2_to_f32(c.pairs.z), e = f16x2_to_f32(c.pairs.w);
    to[0] = a.x; to[1] = a.y; to[2] = b.x; to[3] = b.y; to[4] = d.x; to[5] = d.y; to[6] = e.x; to[7] = e.y;
  }
};

// G query heads, H as above.
template <class E, class H, i32 G>
FN void attention(CONST AttentionParams<E>& p, GROUP AttentionGroup<G, H::DIM>& g, Lane t) {
  enum { L = H::L, C = H::C, D = H::DIM, N = H::AT_ONCE, PARTS = SIMD / L * GROUP_SIMDS, STATES = G * D / GROUP_THREADS };
  const i32 row = t.gy, part = t.simd * (SIMD / L) + t.lane / L, lane = t.lane % L, group = p.heads / p.kv_heads;
  const i32 chunks = (group + G - 1) / G, kv_head = t.gx / chunks, first_head = kv_head * group + t.gx % chunks * G;
  const i32 heads = mini(G, group - t.gx % chunks * G);
  let_next_start();
  wait_for_previous();
  if (row >= p.rows[0]) return;  // the whole group
  const i32 position = p.positions[row], first = p.window > 0 ? maxi(0, position + 1 - p.window) : 0;
  const Ptr<const i32> table = offset(p.blocks, p.table_starts[row]);
  f32 q[G][C];
  UNROLL for (i32 h = 0; h < G; h++)
    UNROLL for (i32 i = 0; i < C; i++) {
      const i32 d = H::feature(i, lane);
      q[h][i] = h < heads && d < p.head_dim ? p.q[i64(row) * p.q_stride + (first_head + h) * p.head_dim + d] : 0.f;
    }
  AttentionFold state[STATES];
  const i32 splits = position / ATTENTION_SPLIT, stride = given(p.partials) ? p.split_groups : 1;
  const i32 first_split = first / ATTENTION_SPLIT;
  for (i32 split = first_split + t.gz; split <= splits; split += stride) {
    const i32 begin = maxi(first, split * ATTENTION_SPLIT), end = mini((split + 1) * ATTENTION_SPLIT, position + 1);
    f32 acc[G][C], top[G], sum[G];
    UNROLL for (i32 h = 0; h < G; h++) {
      top[h] = ATTENTION_NONE;
      sum[h] = 0;
      UNROLL for (i32 i = 0; i < C; i++) acc[h][i] = 0;
    }
    for (i32 base = begin / (PARTS * N) * (PARTS * N); base < end; base += PARTS * N) {
      typename H::Chunk keys[N], values[N];
      UNROLL for (i32 u = 0; u < N; u++) {
        const i32 at = mini(maxi(base + u * PARTS + part, begin), end - 1), block = at / p.block_len;
        const i64 from = ((i64(table[block]) * p.kv_heads + kv_head) * p.block_len + at - block * p.block_len) * p.head_dim;
        keys[u] = H::load(offset(p.keys, from), lane, p.head_dim);
        values[u] = H::load(offset(p.values, from), lane, p.head_dim);
      }
      f32 score[N][G];
      UNROLL for (i32 u = 0; u < N; u++) {
        const i32 at = base + u * PARTS + part;
        f32 key[C];
        H::widen(key, keys[u]);
        UNROLL for (i32 h = 0; h < G; h++) {
          score[u][h] = ATTENTION_NONE;
          if (h < heads) {
            f32 s = 0;
            UNROLL for (i32 i = 0; i < C; i++) s = fma32(q[h][i], key[i], s);
            s = sum_lanes<L>(s) * p.scale;
            if (at >= begin && at < end) score[u][h] = s;
          }
        }
      }
      // The maximum moves once for all positions at hand.
      UNROLL for (i32 h = 0; h < G; h++) {
        f32 now = top[h];
        UNROLL for (i32 u = 0; u < N; u++) now = max32(now, score[u][h]);
        const f32 keep = exp32(top[h] - now);
        top[h] = now;
        sum[h] *= keep;
        UNROLL for (i32 i = 0; i < C; i++) acc[h][i] *= keep;
      }
      UNROLL for (i32 u = 0; u < N; u++) {
        const i32 at = base + u * PARTS + part;
        const bool live = at >= begin && at < end;
        f32 value[C];
        H::widen(value, values[u]);
        UNROLL for (i32 h = 0; h < G; h++) {
          const f32 weight = live ? exp32(score[u][h] - top[h]) : 0.f;
          sum[h] += weight;
          // What a position beyond the end holds is nobody's business, NaN included.
          UNROLL for (i32 i = 0; i < C; i++) acc[h][i] = live ? fma32(weight, value[i], acc[h][i]) : acc[h][i];
        }
      }
    }
    // The parts of a SIMD group, then those of the group.
    UNROLL for (i32 h = 0; h < G; h++)
      if (h < heads) {
        f32 now = top[h];
        UNROLL for (i32 m = L; m < SIMD; m *= 2) now = max32(now, shuffle_xor(now, m));
        const f32 keep = exp32(top[h] - now);
        f32 total = sum[h] * keep;
        UNROLL for (i32 m = L; m < SIMD; m *= 2) total += shuffle_xor(total, m);
        UNROLL for (i32 i = 0; i < C; i++) {
          f32 a = acc[h][i] * keep;
          UNROLL for (i32 m = L; m < SIMD; m *= 2) a += shuffle_xor(a, m);
          if (t.lane < L) g.acc[t.simd][h][H::feature(i, lane)] = a;
        }
        if (t.lane == 0) { g.top[t.simd][h] = now; g.sum[t.simd][h] = total; }
      }
    group_barrier();
    UNROLL for (i32 j = 0; j < STATES; j++) {
      const i32 item = j * GROUP_THREADS + t.simd * SIMD + t.lane, h = item / D, d = item % D;
      if (h < heads && d < p.head_dim) {
        AttentionFold all;
        all.acc = g.acc[0][h][d]; all.top = g.top[0][h]; all.sum = g.sum[0][h];
        UNROLL for (i32 s = 1; s < GROUP_SIMDS; s++) attention_fold(all, g.acc[s][h][d], g.top[s][h], g.sum[s][h]);
        if (given(p.partials)) {
          const i64 to = ((i64(row) * p.heads + first_head + h) * p.max_splits + split) * (p.head_dim + 2);
          p.partials[to + d] = all.acc;
          if (d == 0) { p.partials[to + p.head_dim] = all.top; p.partials[to + p.head_dim + 1] = all.sum; }
        } else if (split == first_split) {
          state[j] = all;
        } else {
          attention_fold(state[j], all.acc, all.top, all.sum);
        }
      }
    }
    group_barrier();
  }
  if (!given(p.partials))
    UNROLL for (i32 j = 0; j < STATES; j++) {
      const i32 item = j * GROUP_THREADS + t.simd * SIMD + t.lane, h = item / D, d = item % D;
      if (h < heads && d < p.head_dim)
        p.out[i64(row) * p.out_stride + (first_head + h) * p.head_dim + d] = state[j].acc / state[j].sum;
    }
}
#define ATTENTION(NAME, E, G, ...)                                           \
  typedef __VA_ARGS__ attention_##NAME##_head;                                \
  typedef AttentionGroup<G, __VA_ARGS__::DIM> attention_##NAME##_memory;      \
  KERNEL(attention_##NAME, AttentionParams<E>, attention_##NAME##_memory, 128, attention<E, attention_##NAME##_head, G>)
ATTENTION(f32, f32, 4, HeadAny<f32>)
ATTENTION(f16, f16, 4, HeadAny<f16>)
ATTENTION(f16_d64, f16, 4, HeadF16<64, 4>)
ATTENTION(f16_d64_g8, f16, 8, HeadF16<64, 2>)  // with more at once, registers do not suffice
ATTENTION(f16_d128, f16, 4, HeadF16<128, 4>)

// attention_combine: the partial results of all splits, folded in order.  Grid (heads, rows).
template <class E>
FN void attention_combine(CONST AttentionParams<E>& p, GROUP NoGroup&, Lane t) {
  const i32 row = t.gy, head = t.gx;
  let_next_start();
  wait_for_previous();
  if (row >= p.rows[0]) return;  // the whole group
  const i32 position = p.positions[row], first = p.window > 0 ? maxi(0, position + 1 - p.window) : 0;
  const i32 first_split = first / ATTENTION_SPLIT, splits = position / ATTENTION_SPLIT + 1 - first_split;
  const i64 from = ((i64(row) * p.heads + head) * p.max_splits + first_split) * (p.head_dim + 2);
  const Ptr<const f32> partials = offset(Ptr<const f32>(p.partials), from);
  for (i32 d = t.simd * SIMD + t.lane; d < p.head_dim; d += GROUP_THREADS) {
    AttentionFold all;
    all.acc = all.top = all.sum = 0;
    for (i32 base = 0; base < splits; base += 8) {
      f32 acc[8], top[8], sum[8];
      UNROLL for (i32 j = 0; j < 8; j++) {
        const Ptr<const f32> split = offset(partials, i64(mini(base + j, splits - 1)) * (p.head_dim + 2));
        acc[j] = split[d]; top[j] = split[p.head_dim]; sum[j] = split[p.head_dim + 1];
      }
      UNROLL for (i32 j = 0; j < 8; j++) {
        if (base + j == 0) { all.acc = acc[j]; all.top = top[j]; all.sum = sum[j]; }
        else if (base + j < splits) attention_fold(all, acc[j], top[j], sum[j]);
      }
    }
    p.out[i64(row) * p.out_stride + head * p.head_dim + d] = all.acc / all.sum;
  }
}
KERNEL(attention_combine_f32, AttentionParams<f32>, NoGroup, 128, attention_combine<f32>)
KERNEL(attention_combine_f16, AttentionParams<f16>, NoGroup, 128, attention_combine<f16>)
