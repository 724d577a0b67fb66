// sample: the token of each row of logits whose step says how to draw it, in place of the likeliest that choose found. Bit for
// bit what `plan::sampling::choose` says, which sorts: sums are of integers, and so have no order.
//
// Shapes    logits (rows, n), f32, rows `stride` vectors apart; sampling, chosen (rows,).
// Grid      (1, rows): a group a row.
// Order     tokens are ranked by one number each: the logit's bits so that larger is larger, then the id so that lower is larger.
//           A filter keeps those from some number on. It is found by dividing the range that it lies in by eight, a pass over the
//           row each time, until few tokens are left in it: those are compared with each other.
// Bytes     4n a row and pass, from the second cache: bound by it, or by arithmetic where all weights are needed.
struct RowSampling { f32 temperature, min_p_ln; u32 top_k, top_p, pick_low, pick_high; i32 padding[2]; };
struct SampleParams {
  Ptr<const u32x4> logits;
  Ptr<const i32> rows;
  Ptr<const RowSampling> sampling;
  Ptr<Chosen> chosen;
  i32 n, stride;
};

enum { SAMPLE_THREADS = 512, SAMPLE_SIMDS = 16, SAMPLE_PARTS = 8, SAMPLE_LIST = 128 };
struct SampleGroup {
  u64 mass[SAMPLE_PARTS][SAMPLE_SIMDS], count[SAMPLE_PARTS][SAMPLE_SIMDS];
  u64 masses[SAMPLE_PARTS], counts[SAMPLE_PARTS];  // over the group
  u64 rank[SAMPLE_LIST], weight[SAMPLE_LIST];
  i32 found[SAMPLE_THREADS];
  u64 cut;
  i32 token_id;
};

// e^-distance in units of 2^-40: plan::sampling::weight. No product may be fused with a sum.
FN u64 sample_weight(f32 distance) {
  const f32 halvings = mul_rounded(distance, 1.44269504f);
  if (!(halvings < 41.f)) return 0;
  const u32 whole = u32(halvings), rest = u32((halvings - f32(whole)) * 4294967296.f);
  u32 power = 23258u;
  power = 316563u - mul_high(power, rest);
  power = 2852265u - mul_high(power, rest);
  power = 20650178u - mul_high(power, rest);
  power = 119193227u - mul_high(power, rest);
  power = 515882421u - mul_high(power, rest);
  power = 1488522235u - mul_high(power, rest);
  power = 2147483648u - mul_high(power, rest);
  return u64(power) << 9 >> whole;
}

// A logit's bits so that they are in its order; zeros of both signs are one.
FN u32 sample_key(u32 bits) {
  const u32 b = bits == 0x80000000u ? 0u : bits;
  return b & 0x80000000u ? ~b : b | 0x80000000u;
}
FN u64 sample_rank(u32 bits, i32 id) { return u64(sample_key(bits)) << 32 | u64(~u32(id)); }
FN u32 sample_bits(u32x4 v, i32 i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// What is passed over a row for: its tokens of rank `low` to `high`, counted, or weighed below `max`.
struct SampleRow { Ptr<const u32x4> logits; i32 n; f32 max; };
struct SampleRange { u64 low, high; };

// Sums over the group what each thread has of every part, to g.masses and g.counts.
FN void sample_add_up(GROUP SampleGroup& g, THREAD u64 (&mass)[SAMPLE_PARTS], THREAD u32 (&count)[SAMPLE_PARTS], Lane t) {
  UNROLL for (i32 j = 0; j < SAMPLE_PARTS; j++) {
    const u64 m = sum_lanes_u64(mass[j]), c = sum_lanes_u64(count[j]);
    if (t.lane == 0) {
      g.mass[j][t.simd] = m;
      g.count[j][t.simd] = c;
    }
  }
  group_barrier();
  if (t.simd < SAMPLE_PARTS) {
    const bool is_simd = t.lane < SAMPLE_SIMDS;
    const u64 m = sum_lanes_u64(is_simd ? g.mass[t.simd][t.lane] : 0), c = sum_lanes_u64(is_simd ? g.count[t.simd][t.lane] : 0);
    if (t.lane == 0) {
      g.masses[t.simd] = m;
      g.counts[t.simd] = c;
    }
  }
  group_barrier();
}

// The least rank that is kept where those kept are the first to reach `top_k` in number, or `top_p` of the weight of all from
// rank `least` on.
template <bool WEIGHTS>
FN u64 sample_cut(SampleRow row, u64 least, u32 share, GROUP SampleGroup& g, Lane t) {
  const i32 slot = t.simd * SIMD + t.lane, vectors = (row.n + 3) / 4;
  SampleRange range;
  range.low = least;
  range.high = ~u64(0);
  u64 enough = share, above = 0;  // what is to be reached, and what lies above the range
  u64 inside = 0;                 // tokens in the range
  i32 mine = 0;                   // those of this thread
  bool first = true;
  do {
    u64 from[SAMPLE_PARTS], mass[SAMPLE_PARTS];
    u32 count[SAMPLE_PARTS];
    UNROLL for (i32 j = 0; j < SAMPLE_PARTS; j++) {
      mass[j] = 0;
      count[j] = 0;
      // First by distances below the largest, then by equal parts.
      if (first) from[j] = u64(sample_key(f32_to_bits(row.max - 64.f / f32(1 << j)))) << 32;
      else from[j] = range.low + (range.high - range.low) / SAMPLE_PARTS * u64(j);
      if (j == 0 || from[j] < range.low) from[j] = range.low;
    }
    for (i32 i = slot; i < vectors; i += SAMPLE_THREADS) {
      const u32x4 v = row.logits[i];
      UNROLL for (i32 e = 0; e < 4; e++) {
        const u64 rank = sample_rank(sample_bits(v, e), i * 4 + e);
        if (i * 4 + e < row.n && rank >= range.low && rank < range.high) {
          const u64 m = WEIGHTS ? sample_weight(row.max - bits_to_f32(sample_bits(v, e))) : 1;
          UNROLL for (i32 j = 0; j < SAMPLE_PARTS; j++)
            if (rank >= from[j]) {
              mass[j] += m;
              count[j]++;
            }
        }
      }
    }
    sample_add_up(g, mass, count, t);
    if (WEIGHTS && first) enough = u64(share) * (g.masses[0] >> 32) + (u64(share) * (g.masses[0] & 0xffffffffu) >> 32);
    // The last part from whose begin on there is enough; from `low` on there always is.
    i32 part = 0;
    UNROLL for (i32 j = 1; j < SAMPLE_PARTS; j++)
      if (above + g.masses[j] >= enough) part = j;
    u64 low = 0, high = range.high, beyond = 0;
    inside = g.counts[part];
    u32 own = 0;
    UNROLL for (i32 j = 0; j < SAMPLE_PARTS; j++) {
      if (j == part) {
        low = from[j];
        own = count[j];
      }
      if (j == part + 1) {
        high = from[j];
        beyond = g.masses[j];
        inside -= g.counts[j];
        own -= count[j];
      }
    }
    above += beyond;
    range.low = low;
    range.high = high;
    mine = i32(own);
    first = false;
    group_barrier();  // all have read what the next pass writes
  } while (inside > SAMPLE_LIST);
  // The few, in any order that has a place for each.
  const u64 of_simd = sum_lanes_u64(u64(mine));
  g.found[slot] = mine;
  if (t.lane == 0) g.mass[0][t.simd] = of_simd;
  group_barrier();
  if (mine > 0) {
    i32 at = 0;
    for (i32 i = 0; i < t.simd; i++) at += i32(g.mass[0][i]);
    for (i32 i = t.simd * SIMD; i < slot; i++) at += g.found[i];
    for (i32 i = slot; i < vectors; i += SAMPLE_THREADS) {
      const u32x4 v = row.logits[i];
      UNROLL for (i32 e = 0; e < 4; e++) {
        const u64 rank = sample_rank(sample_bits(v, e), i * 4 + e);
        if (i * 4 + e < row.n && rank >= range.low && rank < range.high) {
          g.rank[at] = rank;
          g.weight[at] = WEIGHTS ? sample_weight(row.max - bits_to_f32(sample_bits(v, e))) : 1;
          at++;
        }
      }
    }
  }
  group_barrier();
  const i32 all = i32(inside);
  if (slot < all) {
    const u64 rank = g.rank[slot];
    u64 reached = above;
    for (i32 i = 0; i < all; i++)
      if (g.rank[i] >= rank) reached += g.weight[i];
    if (reached >= enough && reached - g.weight[slot] < enough) g.cut = rank;
  }
  group_barrier();
  const u64 cut = g.cut;
  group_barrier();
  return cut;
}

// The weight of token `id` in the draw, 0 where it is not kept.
FN u64 sample_drawn(SampleRow row, u64 cut, f32 temperature, u32 bits, i32 id) {
  if (id >= row.n || sample_rank(bits, id) < cut) return 0;
  return sample_weight((row.max - bits_to_f32(bits)) / temperature);
}

// The first token, in the order of ids, with which the weights of those kept exceed `pick` of them all.
FN i32 sample_draw(SampleRow row, u64 cut, f32 temperature, u64 pick, GROUP SampleGroup& g, Lane t) {
  i32 begin = 0, end = (row.n + 3) / 4;  // vectors that it is among
  u64 target = 0;
  bool first = true;
  while (true) {
    // Each SIMD group has a piece of whole turns of its lanes.
    const i32 piece = ((end - begin + SAMPLE_SIMDS - 1) / SAMPLE_SIMDS + SIMD - 1) / SIMD * SIMD;
    const i32 from = begin + t.simd * piece, to = mini(from + piece, end);
    u64 sum = 0;
    for (i32 i = from + t.lane; i < to; i += SIMD) {
      const u32x4 v = row.logits[i];
      UNROLL for (i32 e = 0; e < 4; e++) sum += sample_drawn(row, cut, temperature, sample_bits(v, e), i * 4 + e);
    }
    sum = sum_lanes_u64(sum);
    if (t.lane == 0) g.mass[0][t.simd] = sum;
    group_barrier();
    u64 all = 0;
    if (first) {
      for (i32 i = 0; i < SAMPLE_SIMDS; i++) all += g.mass[0][i];
      target = mul_high_u64(pick, all);
      first = false;
    }
    i32 owner = 0;
    while (owner < SAMPLE_SIMDS - 1 && target >= g.mass[0][owner]) target -= g.mass[0][owner++];
    group_barrier();
    begin += owner * piece;
    end = mini(begin + piece, end);
    if (piece == SIMD) break;
  }
  if (t.simd == 0) {
    const i32 i = begin + t.lane;
    u32x4 v = make16(0, 0, 0, 0);
    if (i < end) v = row.logits[i];
    UNROLL for (i32 e = 0; e < 4; e++)
      g.weight[t.lane * 4 + e] = i < end ? sample_drawn(row, cut, temperature, sample_bits(v, e), i * 4 + e) : 0;
    simd_barrier();
    if (t.lane == 0) {
      u64 sum = 0;
      i32 before = -1;
      do sum += g.weight[++before];
      while (sum <= target && before < SAMPLE_LIST - 1);
      g.token_id = begin * 4 + before;
    }
  }
  group_barrier();
  return g.token_id;
}

FN void sample(CONST SampleParams& p, GROUP SampleGroup& g, Lane t) {
  let_next_start();
  wait_for_previous();
  if (t.gy < p.rows[0]) {
    const f32 temperature = p.sampling[t.gy].temperature;
    // Where a logit is not finite there is nothing to draw.
    if (temperature > 0.f && p.chosen[t.gy].faulty < 0) {
      SampleRow row;
      row.logits = offset(p.logits, i64(t.gy) * p.stride);
      row.n = p.n;
      const i32 likeliest = p.chosen[t.gy].token_id;
      row.max = bits_to_f32(sample_bits(row.logits[likeliest / 4], likeliest % 4));
      const u32 top_k = p.sampling[t.gy].top_k, top_p = p.sampling[t.gy].top_p;
      u64 cut = 0;
      if (top_k > 0 && top_k < u32(p.n)) cut = sample_cut<false>(row, cut, top_k, g, t);
      if (top_p > 0) cut = sample_cut<true>(row, cut, top_p, g, t);
      const u64 least = u64(sample_key(f32_to_bits(row.max + p.sampling[t.gy].min_p_ln))) << 32;
      if (least > cut) cut = least;
      const u64 pick = u64(p.sampling[t.gy].pick_high) << 32 | u64(p.sampling[t.gy].pick_low);
      const i32 token = sample_draw(row, cut, temperature, pick, g, t);
      if (t.simd == 0 && t.lane == 0) p.chosen[t.gy].token_id = token;
    }
  }
}
KERNEL(sample_f32, SampleParams, SampleGroup, 512, sample)
