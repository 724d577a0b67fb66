// prompt_attention: attention of attention_tiles.h (the same tables, tiles and meaning) on Hopper's matrix instructions, for
// heads of 64, 80, 96, 128, 192 or 256 features.
//
// Grid      (heads, items), as attention_tiles.
// Tiles     a group takes 128 rows of a query head: twice four SIMD groups multiply 64 rows each, and one more copies keys and
//           values of P positions after another into two stages of each. A copy brings `chunk` positions of a block. Where the rows
//           of all heads that share keys fit, they are one tile: row r is token r / packed of head r % packed, and 64 of them
//           are for four SIMD groups alone. A row has the same bits in every tile.
// Overlap   the products of queries with the next keys and of weights with these values are asked for together; while they run,
//           the other four SIMD groups turn scores into weights. They take turns, so that neither has both to itself.
// Accuracy  as attention_tiles: queries and weights are rounded to f16, sums are f32. Not the same bits, because P differs.
struct PromptParams {
  TensorMap keys, values;  // (features, heads of all positions in the order of the cache)
  AttentionParams<f16> of;
  i32 chunk;               // positions of a copy: divides P and block_len
  i32 align;               // steps begin at a multiple of this: of P, where a row's bits must not depend on what rows are beside it
  i32 padding[2];
};

#if __CUDA_ARCH_FEAT_SM90_ALL
enum { PROMPT_ROWS = 128, PROMPT_STAGES = 2, PROMPT_THREADS = 384 };

// Keys, values and queries lie as tiles of 64 features: rows of 128 bytes, swizzled. Of the last tile a head may fill a part.
template <i32 D, i32 P> struct PromptShape {
  enum {
    TILES = (D + 63) / 64,
    TILE = P * 128,                        // bytes of P positions of 64 features
    STAGE = TILES * i32(TILE),
    Q_TILE = PROMPT_ROWS * 128
  };
};
// D features of queries and keys, V of values.
template <i32 D, i32 V, i32 P> struct PromptAttention {
  unsigned long long full_keys[PROMPT_STAGES], full_values[PROMPT_STAGES], empty_keys[PROMPT_STAGES], empty_values[PROMPT_STAGES];
  f32 scale[PROMPT_ROWS], sums[256];  // sums: of each thread, which nobody reads
  unsigned char fill[2048 - 64 - 4 * (PROMPT_ROWS + 256)];
  unsigned char queries[PromptShape<D, P>::TILES * PromptShape<D, P>::Q_TILE];
  unsigned char keys[PROMPT_STAGES][PromptShape<D, P>::STAGE];
  unsigned char values[PROMPT_STAGES][PromptShape<V, P>::STAGE];
};

// `packed`: heads whose rows share the tile, from `head` on; `live`: their rows.
struct PromptWork : TileWork { i32 packed, live; };

// Where queries and positions are: rows of q, and the cache. expanded_attention.h has another answer.
struct PromptRows {
  template <i32 D> PART f32x4 query(CONST AttentionParams<f16>& p, i32 row, i32 head, i32 vector) const {
    return vectors4(p.q + (i64(row) * p.q_stride + head * D))[vector];
  }
  PART i32 slot(CONST AttentionParams<f16>& p, const PromptWork& w, i32 position) const {
    return attention_slot(p, p.blocks + p.table_starts[w.first_row], w.kv_head, position);
  }
};

// Barriers of some threads: of the four SIMD groups of a role, and for the turns of the two roles that multiply.
enum { PROMPT_ROLE_BARRIER = 1, PROMPT_TURN_BARRIER = 3, PROMPT_BOTH_BARRIER = 5 };
// `threads`: of the roles that multiply, 256 or, of one that is alone, 128: it never waits for a turn then.
FN void prompt_wait_for_turn(i32 role, i32 threads) { asm volatile("bar.sync %0,%1;" :: "r"(PROMPT_TURN_BARRIER + role), "r"(threads) : "memory"); }
FN void prompt_give_turn(i32 role, i32 threads) { asm volatile("bar.arrive %0,%1;" :: "r"(PROMPT_TURN_BARRIER + role), "r"(threads) : "memory"); }
FN void prompt_both_roles(i32 threads) { asm volatile("bar.sync %0,%1;" :: "r"(i32(PROMPT_BOTH_BARRIER)), "r"(threads) : "memory"); }
// Writes of this thread to group memory are seen by matrix instructions.
FN void writes_are_operands() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Sums are there: the compiler reads them after what stands before, and computes them before what stands behind.
template <i32 R> FN void sums_are_there(f32 (&sum)[R]) { UNROLL for (i32 i = 0; i < R; i++) asm volatile("" : "+f"(sum[i]) :: "memory"); }
// A tile (numbers of k, 64 of the others) as an operand that is turned: `next` is how far the next 64 of the others are.
FN unsigned long long turned_tile_descriptor(u32 address, u32 next) {
  return (unsigned long long)(address >> 4 & 0x3fff) | (unsigned long long)(next >> 4) << 16 | 64ull << 32 | 1ull << 62;
}

// The heads that a lane copies in a step; -1 where they are behind the last position that the tile sees.
template <class S>
FN i32 prompt_heads(CONST PromptParams& p, const S& from, const PromptWork& w, i32 begin, i32 lane) {
  const i32 position = begin + lane * p.chunk;
  return position <= w.last ? from.slot(p.of, w, position) : -1;
}

// One SIMD group: each lane asks for the positions of its chunk.
template <i32 D, i32 V, i32 P, class S>
FN void prompt_copy(CONST PromptParams& p, const S& from, const PromptWork& w, GROUP PromptAttention<D, V, P>& g, i32 lane) {
  typedef PromptShape<D, P> Shape;
  typedef PromptShape<V, P> ValueShape;
  const u32 keys = group_address(g.keys), values = group_address(g.values);
  const u32 full_keys = group_address(g.full_keys), full_values = group_address(g.full_values);
  const u32 empty_keys = group_address(g.empty_keys), empty_values = group_address(g.empty_values);
  const i32 chunks = P / p.chunk, chunk_bytes = p.chunk * 128;
  if (lane == 0) { prefetch_map(p.keys); prefetch_map(p.values); }
  i32 heads = prompt_heads(p, from, w, w.first, lane);
  wait_for_previous();
  ROLL for (i32 step = 0; step < w.steps; step++) {
    const i32 stage = step & 1, at = stage * Shape::STAGE + lane * chunk_bytes, begin = w.first + step * P;
    const i32 values_at = stage * ValueShape::STAGE + lane * chunk_bytes, bytes = mini(chunks, (w.last - begin) / p.chunk + 1) * chunk_bytes;
    const bool copies = lane < chunks && heads >= 0;
    if (step >= PROMPT_STAGES) barrier_wait(empty_keys + stage * 8, (step / PROMPT_STAGES - 1) & 1);
    if (lane == 0) barrier_expect(full_keys + stage * 8, bytes * Shape::TILES);
    simd_barrier();
    UNROLL for (i32 tile = 0; tile < Shape::TILES; tile++)
      if (copies) copy_tile_2d(keys + at + tile * Shape::TILE, p.keys, full_keys + stage * 8, tile * 64, heads);
    if (step >= PROMPT_STAGES) barrier_wait(empty_values + stage * 8, (step / PROMPT_STAGES - 1) & 1);
    if (lane == 0) barrier_expect(full_values + stage * 8, bytes * ValueShape::TILES);
    simd_barrier();
    UNROLL for (i32 tile = 0; tile < ValueShape::TILES; tile++)
      if (copies) copy_tile_2d(values + values_at + tile * ValueShape::TILE, p.values, full_values + stage * 8, tile * 64, heads);
    heads = prompt_heads(p, from, w, begin + P, lane);
  }
}

// 16 rows of a SIMD group, scaled and rounded; lanes take four features of a row.
template <i32 D, i32 V, i32 P, class S>
FN void prompt_queries(CONST AttentionParams<f16>& p, const S& from, const PromptWork& w, GROUP PromptAttention<D, V, P>& g, i32 first, i32 lane) {
  enum { VECTORS = D / 4, EACH = (VECTORS + SIMD - 1) / SIMD, AT_ONCE = 4 };
  const u32 queries = group_address(g.queries);
  ROLL for (i32 base = first; base < first + 16; base += AT_ONCE) {
    f32x4 q[AT_ONCE][EACH];
    UNROLL for (i32 j = 0; j < AT_ONCE; j++)
      UNROLL for (i32 e = 0; e < EACH; e++) {
        const i32 vector = e * SIMD + lane;
        q[j][e] = make_float4(0.f, 0.f, 0.f, 0.f);
        const i32 row = mini(base + j, w.live - 1), token = row / w.packed;
        if (vector < VECTORS) q[j][e] = from.template query<D>(p, w.first_row + token, w.head + row - token * w.packed, vector);
      }
    UNROLL for (i32 j = 0; j < AT_ONCE; j++) {
      f32 most = 0.f;
      UNROLL for (i32 e = 0; e < EACH; e++) most = max32(most, max32(max32(abs32(q[j][e].x), abs32(q[j][e].y)), max32(abs32(q[j][e].z), abs32(q[j][e].w))));
      const u32 exponent = exponent_of(max_lanes<SIMD>(most));
      const f32 inverse = inverse_power(exponent);
      const i32 row = base + j;
      UNROLL for (i32 e = 0; e < EACH; e++) {
        const i32 vector = e * SIMD + lane, chunk = vector / 2;
        const u32 at = queries + chunk / 8 * PromptShape<D, P>::Q_TILE + row * 128 + (chunk % 8 ^ row % 8) * 16 + vector % 2 * 8;
        const u32 a = f32x2_to_f16x2(q[j][e].x * inverse, q[j][e].y * inverse), b = f32x2_to_f16x2(q[j][e].z * inverse, q[j][e].w * inverse);
        if (vector < VECTORS) asm volatile("st.shared.v2.u32 [%0],{%1,%2};" :: "r"(at), "r"(a), "r"(b) : "memory");
      }
      // Of a row of zeros it is no zero, by which no masked score may be multiplied.
      if (lane == 0) g.scale[row] = max32(bits_to_f32(exponent) * (p.scale * LOG2_E), 1e-37f);
    }
  }
}

// What a thread has of 64 rows: of 16 · (SIMD group) + lane / 4 + 8 i.
template <i32 V> struct PromptState { f32 acc[V / 2]; f32 top[2], sum[2], scale[2]; };

template <i32 D, i32 P>
FN void prompt_scores(f32 (&score)[P / 2], u32 queries, u32 keys) {
  typedef PromptShape<D, P> Shape;
  UNROLL for (i32 i = 0; i < P / 2; i++) score[i] = 0.f;
  matrix_begin();
  UNROLL for (i32 k = 0; k < D / 16; k++) {
    const unsigned long long q = tile_descriptor(queries + k / 4 * Shape::Q_TILE), from = tile_descriptor(keys + k / 4 * Shape::TILE);
    MatrixOp<P>::f16(score, q + k % 4 * 2, from + k % 4 * 2);
  }
  matrix_commit();
}

template <i32 V, i32 P>
FN void prompt_values(f32 (&acc)[V / 2], const u32 (&weights)[P / 16][4], u32 values) {
  const unsigned long long from = turned_tile_descriptor(values, PromptShape<V, P>::TILE);
  matrix_begin();
  UNROLL for (i32 k = 0; k < P / 16; k++) MatrixOp<V>::f16_turned(acc, weights[k], from + k * (16 * 128 / 16));
  matrix_commit();
}

// What those that multiply need to know: addresses, whose turn it is, and where they are; positions of the first and of the last of
// 64 rows.
struct PromptPlaces {
  u32 queries, keys, values, full_keys, full_values, empty_keys, empty_values, sums;
  i32 role, simd, lane, position, packed, low, high, threads;
};

// Whether some row of 64 does not see some of P positions from `begin` on.
template <i32 P> FN bool prompt_is_masked(CONST AttentionParams<f16>& p, const PromptPlaces& at, i32 begin) {
  return begin + P - 1 > at.low || (p.window > 0 && begin <= at.high - p.window);
}

// Scores of P positions from `begin` on become weights, and `keep` what sums so far are multiplied by.
template <i32 V, i32 P, bool MASKED>
FN void prompt_weights(f32 (&score)[P / 2], f32 (&keep)[2], PromptState<V>& s, CONST AttentionParams<f16>& p, const PromptPlaces& here, i32 begin) {
  UNROLL for (i32 i = 0; i < 2; i++) {
    if (MASKED) {
      const i32 position = here.position + (here.role * 64 + here.simd * 16 + here.lane / 4 + i * 8) / here.packed;
      UNROLL for (i32 n = 0; n < P / 8; n++)
        UNROLL for (i32 e = 0; e < 2; e++) {
          const i32 at = begin + n * 8 + here.lane % 4 * 2 + e;
          if (at > position || (p.window > 0 && at <= position - p.window)) score[n * 4 + i * 2 + e] = bits_to_f32(0xff800000u);
        }
    }
    f32 most = score[i * 2];
    UNROLL for (i32 n = 0; n < P / 8; n++) most = max32(most, max32(score[n * 4 + i * 2], score[n * 4 + i * 2 + 1]));
    most = max32(most, shuffle_xor(most, 1));
    most = max32(most, shuffle_xor(most, 2));
    const f32 now = max32(s.top[i], most * s.scale[i]);
    keep[i] = exp2_32(s.top[i] - now);
    s.top[i] = now;
    const f32 shifted = now - WEIGHT_SHIFT, scale = s.scale[i];
    f32 sum = 0.f;
    UNROLL for (i32 n = 0; n < P / 8; n++)
      UNROLL for (i32 e = 0; e < 2; e++) {
        const f32 weight = exp2_32(fma32(score[n * 4 + i * 2 + e], scale, -shifted));
        score[n * 4 + i * 2 + e] = weight;
        sum += weight;
      }
    s.sum[i] = fma32(s.sum[i], keep[i], sum);
  }
}

template <i32 P>
FN void prompt_halves(u32 (&weights)[P / 16][4], const f32 (&score)[P / 2]) {
  UNROLL for (i32 k = 0; k < P / 16; k++)
    UNROLL for (i32 i = 0; i < 4; i++) weights[k][i] = f32x2_to_f16x2(score[k * 8 + i * 2], score[k * 8 + i * 2 + 1]);
}

// Scores of a step, and the values of the step before. Without a branch between request and wait, for at one the compiler waits
// for all products.
template <i32 D, i32 V, i32 P, bool MASKED>
FN void prompt_step(f32 (&score)[P / 2], u32 (&weights)[P / 16][4], PromptState<V>& s, CONST AttentionParams<f16>& p, const PromptPlaces& at, i32 step, i32 begin) {
  enum { STAGE = PromptShape<D, P>::STAGE, VALUE_STAGE = PromptShape<V, P>::STAGE };
  const i32 stage = step & 1, before = stage ^ 1;
  f32 keep[2];
  barrier_wait(at.full_keys + stage * 8, step / PROMPT_STAGES & 1);
  prompt_wait_for_turn(at.role, at.threads);
  prompt_scores<D, P>(score, at.queries, at.keys + stage * STAGE);
  barrier_wait(at.full_values + before * 8, (step - 1) / PROMPT_STAGES & 1);
  prompt_values<V, P>(s.acc, weights, at.values + before * VALUE_STAGE);
  prompt_give_turn(at.role ^ 1, at.threads);
  matrix_wait<1>();
  sums_are_there(score);
  if (at.lane == 0) barrier_arrive(at.empty_keys + stage * 8);
  prompt_weights<V, P, MASKED>(score, keep, s, p, at, begin);
  // The compiler waits before it computes weights, unless something that it may not move stands between.
  store_group(at.sums, s.sum[0] + s.sum[1]);
  matrix_wait<0>();
  sums_are_there(s.acc);
  if (at.lane == 0) barrier_arrive(at.empty_values + before * 8);
  UNROLL for (i32 j = 0; j < V / 8; j++)
    UNROLL for (i32 i = 0; i < 4; i++) s.acc[j * 4 + i] *= keep[i / 2];
  prompt_halves<P>(weights, score);
}

// Values of positions behind the last may be anything, and no number times a weight of zero is none: `threads` make them zeros.
template <i32 V, i32 P>
FN void prompt_clear(u32 values, i32 from, i32 thread, i32 threads) {
  typedef PromptShape<V, P> Shape;
  ROLL for (i32 item = thread; item < P * 8; item += threads) {
    const u32 at = values + item * 16;
    if (item / 8 >= from) {
      UNROLL for (i32 tile = 0; tile < Shape::TILES; tile++)
        asm volatile("st.shared.v4.u32 [%0],{%1,%1,%1,%1};" :: "r"(at + tile * Shape::TILE), "r"(0) : "memory");
    }
  }
}

// Two numbers of a row to the operand of the gemm behind: of four from `first` on, an even lane has the first two, the next lane the
// others. All lanes call it, and those that are not `live` write nothing.
FN void prompt_operand(CONST OperandPlace& to, i32 row, i32 first, f32 a, f32 b, bool odd, bool live) {
  f32 low = a * to.factor, high = b * to.factor;
  if (to.order == FOR_FOUR_BITS) {  // pairs are every other number
    const f32 other = shuffle_xor(odd ? low : high, 1);
    if (odd) low = other;
    else high = other;
  }
  const i64 at = i64(row) * (to.stride / 2) + operand_word(to.order, first) + (odd ? (to.order == AS_X ? 1 : i32(OPERAND_NEXT)) : 0);
  if (live) to.rows[at] = to.is_bf16 ? to_bf16x2(low, high) : f32x2_to_f16x2(low, high);
}

template <i32 D, i32 V, i32 P, class S>
FN void prompt_multiply(CONST AttentionParams<f16>& p, const S& from, const PromptWork& w, GROUP PromptAttention<D, V, P>& g, i32 role, i32 simd, i32 lane) {
  enum { VALUE_STAGE = PromptShape<V, P>::STAGE };
  const PromptPlaces at = {
      group_address(g.queries) + role * (64 * 128), group_address(g.keys), group_address(g.values),
      group_address(g.full_keys), group_address(g.full_values), group_address(g.empty_keys), group_address(g.empty_values),
      group_address(g.sums) + (role * 128 + simd * SIMD + lane) * 4, role, simd, lane, w.position, w.packed,
      w.position + role * 64 / w.packed, w.position + (role * 64 + 63) / w.packed, w.live > PROMPT_ROWS / 2 ? 256 : 128};
  const i32 row = role * 64 + simd * 16 + lane / 4;
  wait_for_previous();
  prompt_queries<D, V, P>(p, from, w, g, role * 64 + simd * 16, lane);
  writes_are_operands();
  four_simds_barrier(PROMPT_ROLE_BARRIER + role);
  PromptState<V> s;
  UNROLL for (i32 i = 0; i < V / 2; i++) s.acc[i] = 0.f;
  UNROLL for (i32 i = 0; i < 2; i++) { s.top[i] = ATTENTION_NONE; s.sum[i] = 0.f; s.scale[i] = g.scale[row + i * 8]; }
  f32 score[P / 2], keep[2];
  u32 weights[P / 16][4];
  // The first role has the first turn.
  if (role == 1) prompt_give_turn(0, at.threads);
  barrier_wait(at.full_keys, 0);
  prompt_scores<D, P>(score, at.queries, at.keys);
  matrix_wait<0>();
  sums_are_there(score);
  if (lane == 0) barrier_arrive(at.empty_keys);
  prompt_weights<V, P, true>(score, keep, s, p, at, w.first);
  prompt_halves<P>(weights, score);
  ROLL for (i32 step = 1; step < w.steps; step++) {
    const i32 begin = w.first + step * P;
    if (prompt_is_masked<P>(p, at, begin)) prompt_step<D, V, P, true>(score, weights, s, p, at, step, begin);
    else prompt_step<D, V, P, false>(score, weights, s, p, at, step, begin);
  }
  const i32 last = w.steps - 1;
  barrier_wait(at.full_values + (last & 1) * 8, last / PROMPT_STAGES & 1);
  const i32 seen = w.last + 1 - (w.first + last * P);  // positions of the last step
  if (seen < P) {
    prompt_clear<V, P>(at.values + (last & 1) * VALUE_STAGE, seen, role * 128 + simd * SIMD + lane, at.threads);
    writes_are_operands();
    prompt_both_roles(at.threads);
  }
  prompt_values<V, P>(s.acc, weights, at.values + (last & 1) * VALUE_STAGE);
  matrix_wait<0>();
  sums_are_there(s.acc);
  // The turn that nobody takes.
  if (role == 0) prompt_wait_for_turn(0, at.threads);
  UNROLL for (i32 i = 0; i < 2; i++) {
    f32 sum = s.sum[i];
    sum += shuffle_xor(sum, 1);
    sum += shuffle_xor(sum, 2);
    const i32 token = (row + i * 8) / w.packed, head = w.head + row + i * 8 - token * w.packed;
    const bool live = row + i * 8 < w.live;
    const f32 scale = live ? 1.f / attention_divisor(p, head, sum, s.top[i] - WEIGHT_SHIFT) : 0.f;
    if (given(p.operand.rows)) {
      UNROLL for (i32 j = 0; j < V / 8; j++)
        prompt_operand(p.operand, w.first_row + token, head * V + j * 8 + lane % 4 / 2 * 4, s.acc[j * 4 + i * 2] * scale, s.acc[j * 4 + i * 2 + 1] * scale, lane % 2 != 0, live);
    } else if (live) {
      f32* const out = p.out + (i64(w.first_row + token) * p.out_stride + head * V + lane % 4 * 2);
      UNROLL for (i32 j = 0; j < V / 8; j++)
        *reinterpret_cast<f32x2*>(out + j * 8) = make_float2(s.acc[j * 4 + i * 2] * scale, s.acc[j * 4 + i * 2 + 1] * scale);
    }
  }
}

template <i32 D, i32 V, i32 P, class S>
FN void prompt_attention(CONST PromptParams& p, const S& from, GROUP PromptAttention<D, V, P>& g, Lane t) {
  let_next_start();
  if (t.gy >= p.of.num_items[0]) {
    // A kernel may not end before the one ahead has.
    if (t.gx + t.gy == 0) wait_for_previous();
    return;  // the whole group
  }
  PromptWork w;
  static_cast<TileWork&>(w) = tile_work(p.of, t);
  const i32 sharers = p.of.heads / p.of.kv_heads;
  w.packed = w.rows * sharers <= PROMPT_ROWS ? sharers : 1;
  w.live = w.rows * w.packed;
  if (w.head % w.packed != 0) return;  // the whole group: the rows of its head are in another tile
  const bool alone = w.live <= PROMPT_ROWS / 2;
  w.first -= w.first % p.align;
  w.steps = (w.last - w.first) / P + 1;
  if (t.simd == 0 && t.lane == 0) {
    UNROLL for (i32 i = 0; i < PROMPT_STAGES; i++) {
      barrier_init(group_address(&g.full_keys[i]), 1);
      barrier_init(group_address(&g.full_values[i]), 1);
      barrier_init(group_address(&g.empty_keys[i]), alone ? 4 : 8);
      barrier_init(group_address(&g.empty_values[i]), alone ? 4 : 8);
    }
    barriers_are_ready();
  }
  group_barrier();
  if (t.simd < 4) {
    give_registers<40>();
    if (t.simd == 0) prompt_copy<D, V, P>(p, from, w, g, t.lane);
  } else if (t.simd < 8 || !alone) {
    take_registers<232>();
    prompt_multiply<D, V, P>(p.of, from, w, g, t.simd / 4 - 1, t.simd & 3, t.lane);
  }
}

#define PROMPT_ATTENTION(D, P)                                                                                              \
  extern "C" __global__ void __launch_bounds__(PROMPT_THREADS, 1)                                                           \
      prompt_attention_d##D(const __grid_constant__ PromptParams p) {                                                       \
    extern __shared__ __align__(1024) unsigned char group_memory[];                                                         \
    const Lane t = {(i32)blockIdx.x, (i32)blockIdx.y, (i32)blockIdx.z, simd_of_thread(), (i32)threadIdx.x & 31, 12};        \
    prompt_attention<D, D, P>(p, PromptRows(), *reinterpret_cast<PromptAttention<D, D, P>*>(group_memory), t);                                        \
  }
PROMPT_ATTENTION(64, 128)
PROMPT_ATTENTION(80, 128)
PROMPT_ATTENTION(96, 128)
PROMPT_ATTENTION(128, 128)
PROMPT_ATTENTION(192, 64)
PROMPT_ATTENTION(256, 64)
#endif
