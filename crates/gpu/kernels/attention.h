// attention: out = softmax(q · Kᵀ · scale) · V over the cached positions of the row's sequence up to its own, or the last
// `window` of them. Query head h reads key/value head h / group. For few rows of each sequence; attention_tiles.h is for
// many. A head may have a sink, a logit that joins the softmax and has no value: the weights then sum to less than 1.
//
// Shapes    q, out (rows, heads · head_dim), f32; the cache as in rope_kv_write.h; head_dim <= 256; sinks (heads,) or none.
// Tables    items[i]: a row, and how many positions of its sequence were there before this step; positions[row];
//           blocks[table_starts[row] + p / block_len] holds position p.
// Grid      (kv heads · ceil(group / G), items, splits). A group takes G query heads at once, so that K and V are read
//           once for them, and one split of the positions.
// Bytes     K and V of the positions, once for G heads. Bound by memory at small batches.
// Accuracy  f32, online softmax: rescaled when a maximum moves; weights are powers of two of scores times log2(e).
// Order     a row's positions are cut into at most `max_splits` splits of the same length, a multiple of ATTENTION_TILE, by
//           the number of its positions alone, and folded in order: so a row's result does not depend on the rows beside
//           it. The group that ends last folds them: it learns so from a counter, which it sets to zero again.
//
// With `max_splits` 1 a group takes all positions. With LOOP it takes all splits, one after another, and the result is
// the same bits as that of as many groups.
template <class E>
struct AttentionParams {
  Ptr<const f32> q;
  Ptr<const E> keys;
  Ptr<const E> values;
  Ptr<const i32> num_items;
  Ptr<const i32x2> items;
  Ptr<const i32> positions;
  Ptr<const i32> table_starts;
  Ptr<const i32> blocks;
  Ptr<f32> out;
  Ptr<f32x4> partials;  // (items, heads, max_splits, D): weighted values
  Ptr<f32x2> stats;     // (items, heads, max_splits): the maximum that they refer to, and the sum of the weights
  Ptr<u32> counters;    // (items, grid x): splits that are done; zero between launches
  Ptr<const f32> sinks;
  i32 heads, kv_heads;
  i32 head_dim, block_len;
  i32 window, max_splits;  // window 0: all
  i32 q_stride, out_stride;
  f32 scale;
  i32 min_tiles;           // of a split
  i32 whole_tiles;         // as many are not cut
  i32 padding;
  OperandPlace operand;    // where given, the result goes there and not to `out`: heads are multiples of 4 then
};

enum { ATTENTION_TILE = 16 };    // positions
#define ATTENTION_NONE -1e30f    // less than any score
#define ATTENTION_MASKED -3e38f  // and less than that: its weight is 0
#define LOG2_E 1.44269504089f

// What one group works on.
struct AttentionWork {
  i32 row, settled, position, first;      // the first position that the row sees
  i32 kv_head, first_head, heads;         // query heads of the group
  i32 splits, split_len;
  i32 counter;
  i32 table_start;                        // of the row's blocks
};

// How a row's positions are cut.
struct AttentionCut { i32 position, first, splits, split_len; };  // the first position that the row sees

template <class E>
FN AttentionCut attention_cut(CONST AttentionParams<E>& p, i32 row) {
  AttentionCut cut;
  cut.position = p.positions[row];
  cut.first = p.window > 0 ? maxi(0, cut.position + 1 - p.window) : 0;
  const i32 tiles = (cut.position - cut.first) / ATTENTION_TILE + 1;
  const i32 each = tiles <= p.whole_tiles ? tiles : maxi((tiles - 1) / p.max_splits + 1, mini(p.min_tiles, tiles));
  cut.split_len = each * ATTENTION_TILE;
  cut.splits = (tiles - 1) / each + 1;
  return cut;
}

// Whether this group has work, and which. A group without work leaves at once. A kernel may not end before the one ahead has, so one
// group stays that long. Loads are asked for together, because each load that waits for another takes half a microsecond.
template <class E>
FN bool attention_work(THREAD AttentionWork& w, CONST AttentionParams<E>& p, i32 heads_max, Lane t) {
  const i32 items = p.num_items[0];
  const i32x2 item = p.items[t.gy];  // readable for every t.gy; no item from `items` on
  bool has_work = false;
  if (t.gy < items) {
    w.row = item.x;
    w.settled = item.y;
    w.table_start = p.table_starts[w.row];
    const AttentionCut cut = attention_cut(p, w.row);
    w.position = cut.position;
    w.first = cut.first;
    w.splits = cut.splits;
    w.split_len = cut.split_len;
    has_work = t.gz < cut.splits;
  }
  if (!has_work) {
    if (t.gx + t.gy + t.gz == 0) wait_for_previous();
    return false;
  }
  const i32 group = p.heads / p.kv_heads, chunks = (group + heads_max - 1) / heads_max, chunk = t.gx % chunks;
  w.kv_head = t.gx / chunks;
  w.first_head = w.kv_head * group + chunk * heads_max;
  w.heads = mini(heads_max, group - chunk * heads_max);
  w.counter = t.gy * (p.kv_heads * chunks) + t.gx;
  return true;
}

// Which row of the cache, counted in heads, holds a position.
template <class E>
FN i32 attention_slot(CONST AttentionParams<E>& p, Ptr<const i32> table, i32 kv_head, i32 position) {
  const i32 block = position / p.block_len;
  return (table[block] * p.kv_heads + kv_head) * p.block_len + position - block * p.block_len;
}

// What the SIMD groups made of G query heads of up to D features: weighted values, and the maximum and sum that the weights
// refer to.
template <i32 G, i32 D> struct AttentionResult { f32 acc[G][D + 4]; f32 top[G], sum[G]; };
template <i32 G, i32 D> struct AttentionGroup { enum { SIMDS = GROUP_SIMDS }; AttentionResult<G, D> of[SIMDS]; u32 is_last; };

struct AttentionState { f32x4 acc; f32 top, sum; };

FN AttentionState attention_nothing() {
  AttentionState state;
  state.acc.x = state.acc.y = state.acc.z = state.acc.w = state.sum = 0;
  state.top = ATTENTION_NONE;
  return state;
}

// Both scaled to the maximum of both.
FN void attention_fold(THREAD AttentionState& to, THREAD const AttentionState& next) {
  const f32 top = max32(to.top, next.top), keep = exp2_32(to.top - top), take = exp2_32(next.top - top);
  to.acc.x = fma32(next.acc.x, take, to.acc.x * keep);
  to.acc.y = fma32(next.acc.y, take, to.acc.y * keep);
  to.acc.z = fma32(next.acc.z, take, to.acc.z * keep);
  to.acc.w = fma32(next.acc.w, take, to.acc.w * keep);
  to.sum = fma32(next.sum, take, to.sum * keep);
  to.top = top;
}

// What the SIMD groups of a group found for four features of a head. M is an AttentionGroup, or something like it.
template <class M>
FN AttentionState attention_merge(GROUP const M& g, i32 h, i32 d) {
  AttentionState all = attention_nothing();
  UNROLL for (i32 s = 0; s < M::SIMDS; s++) {
    AttentionState next;
    next.acc.x = g.of[s].acc[h][d]; next.acc.y = g.of[s].acc[h][d + 1];
    next.acc.z = g.of[s].acc[h][d + 2]; next.acc.w = g.of[s].acc[h][d + 3];
    next.top = g.of[s].top[h];
    next.sum = g.of[s].sum[h];
    attention_fold(all, next);
  }
  return all;
}

// What the weighted values of a head are divided by: the sum of the weights, and that of its sink where it has one. A score
// of `unit`, in base 2, has the weight 1. A sink far above all scores weighs infinitely much, and the result is zero.
template <class E>
FN f32 attention_divisor(CONST AttentionParams<E>& p, i32 head, f32 sum, f32 unit) {
  return given(p.sinks) ? sum + exp2_32(p.sinks[head] * LOG2_E - unit) : sum;
}

template <class E>
FN void attention_store(CONST AttentionParams<E>& p, THREAD const AttentionWork& w, i32 h, i32 d, THREAD const AttentionState& all) {
  const f32 scale = 1.f / attention_divisor(p, w.first_head + h, all.sum, all.top);
  if (given(p.operand.rows)) {
    f32x4 v;
    v.x = all.acc.x * scale; v.y = all.acc.y * scale; v.z = all.acc.z * scale; v.w = all.acc.w * scale;
    if (d < p.head_dim) operand_store(p.operand, w.row, (w.first_head + h) * p.head_dim + d, v);
    return;
  }
  const i64 to = i64(w.row) * p.out_stride + (w.first_head + h) * p.head_dim + d;
  if (d < p.head_dim) p.out[to] = all.acc.x * scale;
  if (d + 1 < p.head_dim) p.out[to + 1] = all.acc.y * scale;
  if (d + 2 < p.head_dim) p.out[to + 2] = all.acc.z * scale;
  if (d + 3 < p.head_dim) p.out[to + 3] = all.acc.w * scale;
}

// Where the partial results of a head lie, in `partials` and `stats`, for a row's item `gy`.
template <class E>
FN i64 attention_parts(CONST AttentionParams<E>& p, THREAD const AttentionWork& w, i32 gy, i32 h) {
  return (i64(gy) * p.heads + w.first_head + h) * p.max_splits;
}

// Stores four features of a head: as the result where there is one part of it, otherwise as partial result `part`.
template <i32 D, class E>
FN void attention_store_part(CONST AttentionParams<E>& p, THREAD const AttentionWork& w, i32 gy, i32 h, i32 v, i32 part, i32 parts,
                             THREAD const AttentionState& all) {
  if (parts == 1) {
    attention_store(p, w, h, v * 4, all);
    return;
  }
  const i64 to = attention_parts(p, w, gy, h) + part;
  p.partials[to * (D / 4) + v] = all.acc;
  f32x2 stat;
  stat.x = all.top; stat.y = all.sum;
  if (v == 0) p.stats[to] = stat;
}

// Folds the partial results of a row's heads, in the group that ends last: all of them have been stored by then.
template <i32 D, class E, class M>
FN void attention_fold_partials(CONST AttentionParams<E>& p, THREAD const AttentionWork& w, i32 parts, GROUP M& g, Lane t) {
  enum { VECTORS = D / 4, THREADS = M::SIMDS * SIMD, AHEAD = 16 };
  const i32 own = t.simd * SIMD + t.lane;
  group_barrier();
  if (own == 0) g.is_last = count_group(p.counters, w.counter, u32(w.splits));
  group_barrier();
  if (g.is_last == 0) return;  // the whole group
  for (i32 item = own; item < w.heads * VECTORS; item += THREADS) {
    const i32 h = item / VECTORS, v = item % VECTORS;
    const i64 from = attention_parts(p, w, t.gy, h);
    AttentionState all = attention_nothing();
    for (i32 base = 0; base < parts; base += AHEAD) {
      AttentionState next[AHEAD];
      UNROLL for (i32 j = 0; j < AHEAD; j++) {
        if (base + j >= parts) continue;
        const i64 at = from + base + j;
        const f32x2 stat = p.stats[at];
        next[j].acc = p.partials[at * VECTORS + v];
        next[j].top = stat.x;
        next[j].sum = stat.y;
      }
      UNROLL for (i32 j = 0; j < AHEAD; j++)
        if (base + j < parts) attention_fold(all, next[j]);
    }
    attention_store(p, w, h, v * 4, all);
  }
}

// Merges what the SIMD groups left in group memory, and stores it: as the result where there is one split; otherwise as
// one of the splits, which the group that ends last folds.
template <i32 D, class E, class M>
FN void attention_finish(CONST AttentionParams<E>& p, THREAD const AttentionWork& w, i32 split, GROUP M& g, Lane t) {
  enum { VECTORS = D / 4, THREADS = M::SIMDS * SIMD };
  const i32 own = t.simd * SIMD + t.lane;
  group_barrier();
  for (i32 item = own; item < w.heads * VECTORS; item += THREADS) {
    const i32 h = item / VECTORS, v = item % VECTORS;
    attention_store_part<D>(p, w, t.gy, h, v, split, w.splits, attention_merge(g, h, v * 4));
  }
  if (w.splits > 1) attention_fold_partials<D>(p, w, w.splits, g, t);
}

// All splits one after another, folded as above.
template <i32 G, i32 D, i32 SIMDS> struct AttentionStates { enum { THREADS = SIMDS * SIMD, COUNT = (G * D / 4 + THREADS - 1) / THREADS }; AttentionState of[COUNT]; };

template <i32 G, i32 D, class M>
FN void attention_add_split(THREAD AttentionStates<G, D, M::SIMDS>& states, THREAD const AttentionWork& w, i32 split, GROUP const M& g, Lane t) {
  enum { VECTORS = D / 4 };
  group_barrier();
  UNROLL for (i32 j = 0; j < AttentionStates<G, D, M::SIMDS>::COUNT; j++) {
    const i32 item = j * M::SIMDS * SIMD + t.simd * SIMD + t.lane, h = item / VECTORS, v = item % VECTORS;
    if (split == 0) states.of[j] = attention_nothing();
    if (h < w.heads) attention_fold(states.of[j], attention_merge(g, h, v * 4));
  }
  group_barrier();
}

template <class E, i32 G, i32 D, i32 SIMDS>
FN void attention_store_all(CONST AttentionParams<E>& p, THREAD const AttentionStates<G, D, SIMDS>& states, THREAD const AttentionWork& w, Lane t) {
  enum { VECTORS = D / 4 };
  UNROLL for (i32 j = 0; j < AttentionStates<G, D, SIMDS>::COUNT; j++) {
    const i32 item = j * SIMDS * SIMD + t.simd * SIMD + t.lane, h = item / VECTORS;
    if (h < w.heads) attention_store(p, w, h, item % VECTORS * 4, states.of[j]);
  }
}

// Any format, and any head of up to 256 features: a lane has each 32nd of a position's, and a SIMD group a position.
template <class E, i32 G>
FN void attention_any_split(CONST AttentionParams<E>& p, THREAD const AttentionWork& w, THREAD const f32 (&q)[G][8], i32 split, GROUP AttentionGroup<G, 256>& g, Lane t) {
  const Ptr<const i32> table = offset(p.blocks, w.table_start);
  const i32 begin = w.first + split * w.split_len, end = mini(begin + w.split_len, w.position + 1);
  f32 acc[G][8], top[G], sum[G];
  UNROLL for (i32 h = 0; h < G; h++) {
    top[h] = ATTENTION_NONE;
    sum[h] = 0;
    UNROLL for (i32 i = 0; i < 8; i++) acc[h][i] = 0;
  }
  for (i32 at = begin + t.simd; at < end; at += GROUP_SIMDS) {
    const i64 from = i64(attention_slot(p, table, w.kv_head, at)) * p.head_dim;
    f32 key[8], value[8];
    UNROLL for (i32 i = 0; i < 8; i++) {
      const bool live = i * SIMD + t.lane < p.head_dim;
      key[i] = live ? to_f32(p.keys[from + i * SIMD + t.lane]) : 0.f;
      value[i] = live ? to_f32(p.values[from + i * SIMD + t.lane]) : 0.f;
    }
    UNROLL for (i32 h = 0; h < G; h++) {
      f32 score = 0;
      UNROLL for (i32 i = 0; i < 8; i++) score = fma32(q[h][i], key[i], score);
      score = sum_lanes<SIMD>(score) * (p.scale * LOG2_E);
      const f32 now = max32(top[h], score), keep = exp2_32(top[h] - now), weight = exp2_32(score - now);
      top[h] = now;
      sum[h] = fma32(sum[h], keep, weight);
      UNROLL for (i32 i = 0; i < 8; i++) acc[h][i] = fma32(weight, value[i], acc[h][i] * keep);
    }
  }
  UNROLL for (i32 h = 0; h < G; h++) {
    UNROLL for (i32 i = 0; i < 8; i++) g.of[t.simd].acc[h][i * SIMD + t.lane] = acc[h][i];
    if (t.lane == 0) { g.of[t.simd].top[h] = top[h]; g.of[t.simd].sum[h] = sum[h]; }
  }
}

template <class E, i32 G, bool LOOP>
FN void attention_any(CONST AttentionParams<E>& p, GROUP AttentionGroup<G, 256>& g, Lane t) {
  let_next_start();
  AttentionWork w;
  if (!attention_work(w, p, G, t)) return;  // the whole group
  wait_for_previous();
  f32 q[G][8];
  UNROLL for (i32 h = 0; h < G; h++)
    UNROLL for (i32 i = 0; i < 8; i++) {
      const i32 d = i * SIMD + t.lane;
      q[h][i] = h < w.heads && d < p.head_dim ? p.q[i64(w.row) * p.q_stride + (w.first_head + h) * p.head_dim + d] : 0.f;
    }
  if (LOOP) {
    AttentionStates<G, 256, GROUP_SIMDS> states;
    for (i32 split = 0; split < w.splits; split++) {
      attention_any_split(p, w, q, split, g, t);
      attention_add_split<G, 256>(states, w, split, g, t);
    }
    attention_store_all(p, states, w, t);
  } else {
    attention_any_split(p, w, q, t.gz, g, t);
    attention_finish<256>(p, w, t.gz, g, t);
  }
}
#define ATTENTION_ANY(E)                                                                                                        \
  typedef AttentionGroup<4, 256> attention_##E##_memory;                                                                        \
  KERNEL(attention_##E, AttentionParams<E>, attention_##E##_memory, 128, attention_any<E, 4, false>)                            \
  KERNEL(attention_##E##_loop, AttentionParams<E>, attention_##E##_memory, 128, attention_any<E, 4, true>)
ATTENTION_ANY(f32)
ATTENTION_ANY(f16)
