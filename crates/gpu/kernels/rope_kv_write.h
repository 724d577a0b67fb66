// rope_kv_write: q_out = rope(norm(q)); cache <- rope(norm(k)), v.  rope and kv_write: parts of it.
//
// Shapes    q (rows, heads · head_dim), k and v (rows, kv_heads · head_dim), f32; gains (head_dim,) or none.
// Angles    (positions, turned) of (cosine, sine); feature i turns with feature i + turned, and those from 2 · turned on pass
//           as they are. turned <= head_dim / 2; head_dim is even.
// Cache     of one layer: keys and values each (blocks, kv_heads, block_len, head_dim) of E; slots[row] is
//           block · block_len + place.
// Grid      (heads + 2 · kv_heads, in fours, rows): a SIMD group a head, a lane up to four pairs, so head_dim <= 256.
// Bytes     what it reads and writes, once; bound by latency.
template <class E>
struct RopeKvWriteParams {
  Ptr<const f32> q;
  Ptr<const f32> k;
  Ptr<const f32> v;
  Ptr<const f32> q_gain;
  Ptr<const f32> k_gain;
  Ptr<const f32x2> angles;
  Ptr<const i32> rows;
  Ptr<const i32> positions;
  Ptr<const i32> slots;
  Ptr<f32> q_out;
  Ptr<E> keys;
  Ptr<E> values;
  i32 heads, kv_heads;    // kv_heads = 0: only q is turned
  i32 head_dim, block_len;
  i32 q_stride, kv_stride;
  i32 q_out_stride, turned;
  f32 q_eps, k_eps;
};

enum { ROPE_PAIRS = 4 };

struct RopeHead { f32 low[ROPE_PAIRS], high[ROPE_PAIRS]; };

// The features of pair i of the `half` pairs of a head: the first `turned` pairs turn, the others are any.
struct RopePair { i32 low, high; };

FN RopePair rope_pair(i32 i, i32 half, i32 turned) {
  RopePair pair;
  pair.low = i < turned ? i : i + turned;
  pair.high = i < turned ? i + turned : i + half;
  return pair;
}

FN RopeHead rope_load(Ptr<const f32> x, i32 half, i32 turned, i32 lane) {
  RopeHead head;
  UNROLL for (i32 j = 0; j < ROPE_PAIRS; j++) {
    const i32 i = lane + j * SIMD;
    const RopePair pair = rope_pair(i, half, turned);
    head.low[j] = i < half ? x[pair.low] : 0.f;
    head.high[j] = i < half ? x[pair.high] : 0.f;
  }
  return head;
}

// By gains as rope_load has them.
FN void rope_norm(THREAD RopeHead& head, THREAD const RopeHead& gain, f32 eps, i32 half, i32 lane) {
  f32 squares = 0;
  UNROLL for (i32 j = 0; j < ROPE_PAIRS; j++) squares = fma32(head.high[j], head.high[j], fma32(head.low[j], head.low[j], squares));
  const f32 scale = inv_sqrt(sum_lanes<SIMD>(squares) / f32(2 * half) + eps);
  UNROLL for (i32 j = 0; j < ROPE_PAIRS; j++) {
    if (lane + j * SIMD < half) {
      head.low[j] = head.low[j] * scale * gain.low[j];
      head.high[j] = head.high[j] * scale * gain.high[j];
    }
  }
}

struct RopeAngles { f32x2 of[ROPE_PAIRS]; };

FN RopeAngles rope_angles(Ptr<const f32x2> angles, i32 turned, i32 lane) {
  RopeAngles own;
  UNROLL for (i32 j = 0; j < ROPE_PAIRS; j++) {
    const i32 i = lane + j * SIMD;
    own.of[j].x = own.of[j].y = 0.f;
    if (i < turned) own.of[j] = angles[i];
  }
  return own;
}

FN void rope_turn(THREAD RopeHead& head, THREAD const RopeAngles& angles, i32 turned, i32 lane) {
  UNROLL for (i32 j = 0; j < ROPE_PAIRS; j++) {
    if (lane + j * SIMD < turned) {
      const f32x2 turn = angles.of[j];
      const f32 a = head.low[j], b = head.high[j];
      head.low[j] = a * turn.x - b * turn.y;
      head.high[j] = b * turn.x + a * turn.y;
    }
  }
}

template <class E>
FN void rope_store(Ptr<E> y, THREAD const RopeHead& head, i32 half, i32 turned, i32 lane) {
  UNROLL for (i32 j = 0; j < ROPE_PAIRS; j++) {
    const i32 i = lane + j * SIMD;
    if (i < half) {
      const RopePair pair = rope_pair(i, half, turned);
      store(y, pair.low, head.low[j]);
      store(y, pair.high, head.high[j]);
    }
  }
}

// Where a head of the token in `slot` lies in the cache.
FN i64 kv_at(i32 slot, i32 kv_head, i32 kv_heads, i32 block_len, i32 head_dim) {
  return ((i64(slot / block_len) * kv_heads + kv_head) * block_len + slot % block_len) * head_dim;
}

template <class E>
FN void rope_kv_write(CONST RopeKvWriteParams<E>& p, GROUP NoGroup&, Lane t) {
  const i32 row = t.gy, item = t.gx * t.simds + t.simd, half = p.head_dim / 2;
  let_next_start();
  wait_for_previous();
  if (row >= p.rows[0] || item >= p.heads + 2 * p.kv_heads) return;  // the whole SIMD group
  const RopeAngles angles = rope_angles(offset(p.angles, i64(p.positions[row]) * p.turned), p.turned, t.lane);
  if (item < p.heads) {
    RopeHead head = rope_load(offset(p.q, i64(row) * p.q_stride + item * p.head_dim), half, p.turned, t.lane);
    if (given(p.q_gain)) {
      const RopeHead gain = rope_load(p.q_gain, half, p.turned, t.lane);
      rope_norm(head, gain, p.q_eps, half, t.lane);
    }
    rope_turn(head, angles, p.turned, t.lane);
    rope_store(offset(p.q_out, i64(row) * p.q_out_stride + item * p.head_dim), head, half, p.turned, t.lane);
    return;
  }
  const bool key = item < p.heads + p.kv_heads;
  const i32 kv_head = item - p.heads - (key ? 0 : p.kv_heads);
  const i64 to = kv_at(p.slots[row], kv_head, p.kv_heads, p.block_len, p.head_dim);
  RopeHead head = rope_load(offset(key ? p.k : p.v, i64(row) * p.kv_stride + kv_head * p.head_dim), half, p.turned, t.lane);
  if (key) {
    if (given(p.k_gain)) {
      const RopeHead gain = rope_load(p.k_gain, half, p.turned, t.lane);
      rope_norm(head, gain, p.k_eps, half, t.lane);
    }
    rope_turn(head, angles, p.turned, t.lane);
  }
  rope_store(offset(key ? p.keys : p.values, to), head, half, p.turned, t.lane);
}
KERNEL(rope_kv_write_f32, RopeKvWriteParams<f32>, NoGroup, 128, rope_kv_write<f32>)
KERNEL(rope_kv_write_f16, RopeKvWriteParams<f16>, NoGroup, 128, rope_kv_write<f16>)

// rope: y = rope(x), every head of every row. Grid as above.
struct RopeParams {
  Ptr<const f32> x;
  Ptr<const f32x2> angles;
  Ptr<const i32> rows;
  Ptr<const i32> positions;
  Ptr<f32> y;
  i32 heads, head_dim;
  i32 x_stride, y_stride;
  i32 turned, padding;
};

FN void rope(CONST RopeParams& p, GROUP NoGroup&, Lane t) {
  const i32 row = t.gy, item = t.gx * t.simds + t.simd, half = p.head_dim / 2;
  let_next_start();
  wait_for_previous();
  if (row >= p.rows[0] || item >= p.heads) return;  // the whole SIMD group
  // Heads wider than a lane's four pairs are turned in pieces: each pair is on its own.
  for (i32 first = 0; first < half; first += ROPE_PAIRS * SIMD)
    for (i32 i = first + t.lane; i < mini(first + ROPE_PAIRS * SIMD, half); i += SIMD) {
      const Ptr<const f32> x = offset(p.x, i64(row) * p.x_stride + item * p.head_dim);
      const Ptr<f32> y = offset(p.y, i64(row) * p.y_stride + item * p.head_dim);
      const RopePair pair = rope_pair(i, half, p.turned);
      f32 a = x[pair.low], b = x[pair.high];
      if (i < p.turned) {
        const f32x2 turn = p.angles[i64(p.positions[row]) * p.turned + i];
        const f32 low = a;
        a = low * turn.x - b * turn.y;
        b = b * turn.x + low * turn.y;
      }
      y[pair.low] = a;
      y[pair.high] = b;
    }
}
KERNEL(rope_f32, RopeParams, NoGroup, 128, rope)

// kv_write: cache <- k, v, (rows, kv_heads · head_dim) each.  Grid (features / 128, rows).
template <class E>
struct KvWriteParams {
  Ptr<const f32> k;
  Ptr<const f32> v;
  Ptr<const i32> rows;
  Ptr<const i32> slots;
  Ptr<E> keys;
  Ptr<E> values;
  i32 kv_heads, head_dim;
  i32 block_len, kv_stride;
};

template <class E>
FN void kv_write(CONST KvWriteParams<E>& p, GROUP NoGroup&, Lane t) {
  const i32 row = t.gy, feature = (t.gx * t.simds + t.simd) * SIMD + t.lane;
  let_next_start();
  wait_for_previous();
  if (row < p.rows[0] && feature < p.kv_heads * p.head_dim) {
    const i64 from = i64(row) * p.kv_stride + feature;
    const i64 to = kv_at(p.slots[row], feature / p.head_dim, p.kv_heads, p.block_len, p.head_dim) + feature % p.head_dim;
    store(p.keys, to, p.k[from]);
    store(p.values, to, p.v[from]);
  }
}
KERNEL(kv_write_f32, KvWriteParams<f32>, NoGroup, 128, kv_write<f32>)
KERNEL(kv_write_f16, KvWriteParams<f16>, NoGroup, 128, kv_write<f16>)

// block_copy: one block of one layer's keys and values over another, whatever their format, two bytes at a time.
// Grid (halves / 128, 2), of a latent cache, which has keys alone, (…, 1).
struct BlockCopyParams {
  Ptr<f16> keys;
  Ptr<f16> values;
  i32 from, to;
  i32 block_halves, padding;
};

FN void block_copy(CONST BlockCopyParams& p, GROUP NoGroup&, Lane t) {
  const i32 i = (t.gx * t.simds + t.simd) * SIMD + t.lane;
  wait_for_previous();
  const Ptr<f16> cache = t.gy == 0 ? p.keys : p.values;
  if (i < p.block_halves) cache[i64(p.to) * p.block_halves + i] = cache[i64(p.from) * p.block_halves + i];
}
KERNEL(block_copy, BlockCopyParams, NoGroup, 128, block_copy)
