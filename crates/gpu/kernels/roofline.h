// roofline: what a device gives at most. Each kernel does one thing, over and over, and leaves a word of what it found for each
// thread, so that nothing can be left out.
//
// read_loads    reads every vector once, by loads of 16 bytes, eight of a thread under way.
// read_copies   the same by bulk copies: a ring of pieces in group memory for each SIMD group. Whole pieces alone are read.
// copy_loads    reads every vector, and writes it.
// peak_f32      fused multiply-adds. peak_f16: products of f16 matrices, 16 by 8 by 16, with sums in f32; `rounds` times eight a
//               SIMD group.
// idle_launch   waits for the kernel ahead, and ends.
// meet_all      all groups wait for each other, `rounds` times.
//
// Grid      `groups` groups, in x.
struct RooflineParams {
  Ptr<const u32x4> from;
  Ptr<u32x4> to;
  Ptr<u32> found;    // (groups · threads,)
  Ptr<u32> counter;  // of meet_all: 0 at the start
  i32 vectors, rounds, groups, stages;
};

enum { ROOFLINE_THREADS = 512, ROOFLINE_SIMDS = 16, ROOFLINE_DEEP = 8, ROOFLINE_STAGES_MAX = 6, ROOFLINE_PIECE = 2048, ROOFLINE_HEADER = 1024 };

FN i32 roofline_thread(Lane t) { return (t.gx * t.simds + t.simd) * SIMD + t.lane; }
FN u32 roofline_fold(u32 sum, u32x4 v) { return sum ^ v.x ^ v.y ^ v.z ^ v.w; }

template <bool COPY>
FN void roofline_loads(CONST RooflineParams& p, GROUP NoGroup& g, Lane t) {
  const i32 first = roofline_thread(t), all = p.groups * ROOFLINE_THREADS;
  u32 sum = 0;
  wait_for_previous();
  i32 i = first;
  for (; i + (ROOFLINE_DEEP - 1) * all < p.vectors; i += ROOFLINE_DEEP * all) {
    u32x4 v[ROOFLINE_DEEP];
    UNROLL for (i32 j = 0; j < ROOFLINE_DEEP; j++) v[j] = load_once(p.from, i + j * all);
    UNROLL for (i32 j = 0; j < ROOFLINE_DEEP; j++) {
      if (COPY) p.to[i + j * all] = v[j];
      else sum = roofline_fold(sum, v[j]);
    }
  }
  for (; i < p.vectors; i += all) {
    const u32x4 v = load_once(p.from, i);
    if (COPY) p.to[i] = v;
    else sum = roofline_fold(sum, v);
  }
  if (!COPY) p.found[first] = sum;
}
KERNEL(read_loads, RooflineParams, NoGroup, 512, roofline_loads<false>)
KERNEL(copy_loads, RooflineParams, NoGroup, 512, roofline_loads<true>)

#ifdef HAS_BULK_COPIES
// How group memory begins; the rings follow at ROOFLINE_HEADER.
struct RooflineRings { CopyBarrier full[ROOFLINE_SIMDS][ROOFLINE_STAGES_MAX]; };
static_assert(sizeof(RooflineRings) <= ROOFLINE_HEADER, "the rings begin at byte 1024");

FN void roofline_ask(CONST RooflineParams& p, GROUP RooflineRings& g, i32 simd, i32 stage, i32 piece) {
  const GroupPtr<u32x4> to = group_at<u32x4>(g, ROOFLINE_HEADER + (simd * p.stages + stage) * ROOFLINE_PIECE);
  expect_copies(g.full[simd][stage], ROOFLINE_PIECE);
  copy_to_group(to, offset(p.from, i64(piece) * (ROOFLINE_PIECE / 16)), ROOFLINE_PIECE, g.full[simd][stage]);
}

FN void roofline_copies(CONST RooflineParams& p, GROUP RooflineRings& g, Lane t) {
  const i32 pieces = p.vectors / (ROOFLINE_PIECE / 16), step = p.groups * ROOFLINE_SIMDS, first = t.gx * ROOFLINE_SIMDS + t.simd;
  u32 sum = 0;
  wait_for_previous();
  if (t.lane == 0) {
    for (i32 i = 0; i < p.stages; i++) begin_barrier(g.full[t.simd][i]);
    show_barriers();
    for (i32 i = 0; i < p.stages && first + i * step < pieces; i++) roofline_ask(p, g, t.simd, i, first + i * step);
  }
  simd_barrier();
  i32 stage = 0;
  u32 parity = 0;
  for (i32 piece = first; piece < pieces; piece += step) {
    wait_for_copies(g.full[t.simd][stage], parity);
    const GroupPtr<u32x4> from = group_at<u32x4>(g, ROOFLINE_HEADER + (t.simd * p.stages + stage) * ROOFLINE_PIECE);
    UNROLL for (i32 j = 0; j < ROOFLINE_PIECE / 16; j += SIMD) sum = roofline_fold(sum, from[j + t.lane]);
    simd_barrier();
    if (t.lane == 0 && piece + p.stages * step < pieces) roofline_ask(p, g, t.simd, stage, piece + p.stages * step);
    if (++stage == p.stages) { stage = 0; parity ^= 1; }
  }
  p.found[roofline_thread(t)] = sum;
}
KERNEL_DYNAMIC(read_copies, RooflineParams, RooflineRings, 512, roofline_copies)
#endif

// Ordinary numbers, since zeros would draw less power and let the clock rise: -1 to 1, by two bytes of a product.
FN f32 roofline_number(i32 i) { return f32((i * 40503 & 0xffff) - 0x8000) / 32768.f; }

FN void roofline_f32(CONST RooflineParams& p, GROUP NoGroup& g, Lane t) {
  enum { SUMS = 16 };
  f32 sum[SUMS];
  UNROLL for (i32 j = 0; j < SUMS; j++) sum[j] = roofline_number(t.lane * SUMS + j);
  wait_for_previous();
  for (i32 round = 0; round < p.rounds; round++)
    UNROLL for (i32 j = 0; j < SUMS; j++) sum[j] = fma32(sum[j], 0.75f, 0.5f);
  f32 all = 0;
  UNROLL for (i32 j = 0; j < SUMS; j++) all += sum[j];
  p.found[roofline_thread(t)] = f32_to_bits(all);
}
KERNEL(peak_f32, RooflineParams, NoGroup, 512, roofline_f32)

#ifdef MATRIX_16X8X16
FN void roofline_f16(CONST RooflineParams& p, GROUP NoGroup& g, Lane t) {
  enum { SUMS = 8 };
  f32 sum[SUMS][4];
  u32 a[4], b[SUMS][2];
  UNROLL for (i32 i = 0; i < 4; i++) a[i] = f32x2_to_f16x2(roofline_number(t.lane * 8 + i * 2), roofline_number(t.lane * 8 + i * 2 + 1));
  UNROLL for (i32 j = 0; j < SUMS; j++) {
    UNROLL for (i32 i = 0; i < 2; i++) {
      const i32 at = 256 + t.lane * 32 + j * 4 + i * 2;
      b[j][i] = f32x2_to_f16x2(roofline_number(at), roofline_number(at + 1));
    }
    UNROLL for (i32 i = 0; i < 4; i++) sum[j][i] = 0.f;
  }
  wait_for_previous();
  for (i32 round = 0; round < p.rounds; round++)
    UNROLL for (i32 j = 0; j < SUMS; j++) mma_f16_16x8x16(sum[j], a[0], a[1], a[2], a[3], b[j][0], b[j][1]);
  f32 all = 0;
  UNROLL for (i32 j = 0; j < SUMS; j++) {
    UNROLL for (i32 i = 0; i < 4; i++) all += sum[j][i];
  }
  p.found[roofline_thread(t)] = f32_to_bits(all);
}
KERNEL(peak_f16, RooflineParams, NoGroup, 512, roofline_f16)
#endif

FN void roofline_idle(CONST RooflineParams& p, GROUP NoGroup& g, Lane t) {
  let_next_start();
  wait_for_previous();
}
KERNEL(idle_launch, RooflineParams, NoGroup, 128, roofline_idle)

#ifdef GROUPS_MEET
FN void roofline_meet(CONST RooflineParams& p, GROUP NoGroup& g, Lane t) {
  wait_for_previous();
  for (i32 round = 1; round <= p.rounds; round++) {
    group_barrier();
    if (t.simd == 0 && t.lane == 0) meet_groups(p.counter, u32(round) * u32(p.groups));
    group_barrier();
  }
  p.found[roofline_thread(t)] = u32(p.rounds);
}
KERNEL(meet_all, RooflineParams, NoGroup, 512, roofline_meet)
#endif
