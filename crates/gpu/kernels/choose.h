// choose: the likeliest token of each row of logits, the lowest id of equals, and the first logit that is not finite.
//
// Shapes    logits (rows, n), f32, rows `stride` vectors apart; chosen (rows,).
// Grid      choose_part (num_parts, rows): a group goes through a part of a row; choose (1, rows): through the parts.
// Bytes     4n a row, which the head has just left in the second cache: bound by latency.
struct ChoosePart { f32 value; i32 token_id, faulty, padding; };
struct Chosen { i32 token_id, faulty; u32 faulty_bits; i32 padding; };
struct ChooseParams {
  Ptr<const u32x4> logits;
  Ptr<const i32> rows;
  Ptr<ChoosePart> parts;
  Ptr<Chosen> chosen;
  i32 n, stride, num_parts, padding;
};

enum { CHOOSE_NONE = 0x7fffffff };
struct ChooseGroup { f32 value[GROUP_THREADS]; i32 id[GROUP_THREADS], faulty[GROUP_THREADS]; };

// Takes in logit `at`; a thread's come in ascending order.
FN void consider(THREAD ChoosePart& best, u32 bits, i32 at, i32 n) {
  if (at < n) {
    if ((bits & 0x7f800000u) == 0x7f800000u) best.faulty = mini(best.faulty, at);
    const f32 value = bits_to_f32(bits);
    if (value > best.value) {
      best.value = value;
      best.token_id = at;
    }
  }
}

// Leaves what all threads have found in the first.
FN void choose_in_group(ChoosePart own, GROUP ChooseGroup& g, i32 slot) {
  g.value[slot] = own.value;
  g.id[slot] = own.token_id;
  g.faulty[slot] = own.faulty;
  for (i32 half = GROUP_THREADS / 2; half > 0; half /= 2) {
    group_barrier();
    if (slot < half) {
      const i32 other = slot + half;
      const f32 value = g.value[other];
      if (value > g.value[slot] || (value == g.value[slot] && g.id[other] < g.id[slot])) {
        g.value[slot] = value;
        g.id[slot] = g.id[other];
      }
      g.faulty[slot] = mini(g.faulty[slot], g.faulty[other]);
    }
  }
}

FN ChoosePart choose_nothing() {
  ChoosePart part;
  part.value = bits_to_f32(0xff800000u);
  part.token_id = part.faulty = CHOOSE_NONE;
  part.padding = 0;
  return part;
}

FN void choose_part(CONST ChooseParams& p, GROUP ChooseGroup& g, Lane t) {
  const i32 slot = t.simd * SIMD + t.lane, vectors = (p.n + 3) / 4, len = (vectors + p.num_parts - 1) / p.num_parts;
  const i32 end = mini(vectors, (t.gx + 1) * len);
  let_next_start();
  wait_for_previous();
  if (t.gy < p.rows[0]) {
    ChoosePart best = choose_nothing();
    const Ptr<const u32x4> row = offset(p.logits, i64(t.gy) * p.stride);
    for (i32 i = t.gx * len + slot; i < end; i += GROUP_THREADS) {
      const u32x4 v = row[i];
      consider(best, v.x, i * 4, p.n);
      consider(best, v.y, i * 4 + 1, p.n);
      consider(best, v.z, i * 4 + 2, p.n);
      consider(best, v.w, i * 4 + 3, p.n);
    }
    choose_in_group(best, g, slot);
    if (slot == 0) {
      const i64 at = i64(t.gy) * p.num_parts + t.gx;
      p.parts[at].value = g.value[0];
      p.parts[at].token_id = g.id[0];
      p.parts[at].faulty = g.faulty[0];
    }
  }
}

FN void choose(CONST ChooseParams& p, GROUP ChooseGroup& g, Lane t) {
  const i32 slot = t.simd * SIMD + t.lane;
  let_next_start();
  wait_for_previous();
  if (t.gy < p.rows[0]) {
    ChoosePart own = choose_nothing();
    if (slot < p.num_parts) {
      const Ptr<const ChoosePart> parts = Ptr<const ChoosePart>(p.parts);
      const i64 at = i64(t.gy) * p.num_parts + slot;
      own.value = parts[at].value;
      own.token_id = parts[at].token_id;
      own.faulty = parts[at].faulty;
    }
    choose_in_group(own, g, slot);
    if (slot == 0) {
      const i32 faulty = g.faulty[0];
      // Where nothing is larger than the least, there is a fault; an id of the vocabulary all the same.
      p.chosen[t.gy].token_id = g.id[0] < p.n ? g.id[0] : 0;
      p.chosen[t.gy].faulty = faulty < p.n ? faulty : -1;
      u32 bits = 0;
      if (faulty < p.n) {
        const u32x4 v = p.logits[i64(t.gy) * p.stride + faulty / 4];
        bits = faulty % 4 == 0 ? v.x : faulty % 4 == 1 ? v.y : faulty % 4 == 2 ? v.z : v.w;
      }
      p.chosen[t.gy].faulty_bits = bits;
    }
  }
}
KERNEL(choose_part_f32, ChooseParams, ChooseGroup, 128, choose_part)
KERNEL(choose_f32, ChooseParams, ChooseGroup, 128, choose)
