// norm_expert_glu_stream: what expert_glu computes of one row or two, at the speed of memory, as linear_stream does; the row is normalised on
// the way. expert_down_stream: what expert_down computes. Weights stream from where the ids say: a launch is the same for all experts.
// route_expert_glu_stream: the router too, where groups of a launch may wait for each other.
//
// Shapes    as experts.h, one row, or two (_m2), whose slots are one after another; up to 16 slots; gates and ups at the same distances.
// Grid      a group a multiprocessor. Units of work are outputs (pairs of gate and up) slot by slot. norm_expert_glu_stream: each SIMD
//           group takes its share of all; expert_down_stream: each group has outputs of its own, whose sums over the slots its SIMD
//           groups leave in group memory.
// Router    each group makes the logit of one expert for each row, and sends it to all, which choose for themselves. What was chosen is sent to
//           expert_down_stream, whose weights are on their way before this kernel has ended. `logits` and `sent_ids` are full of ones
//           before; a later kernel fills them again (`forget`): the ids of a layer when that of the next layer has begun.
// Bytes     the weights of the experts, once.
// Accuracy  as linear_stream.h; logits in f32.
// Order     as linear_stream.h; expert_down_stream adds up the slots in order, then the residual.
struct ExpertStreamParams {
  LinearStreamParams linear;        // one segment: expert 0; x and y of all slots
  RouterParams router;
  Ptr<const f32> ids;
  Ptr<const f32> weights;           // of the slots
  Ptr<const f32> matrix_scales;     // as ExpertStack has them
  Ptr<const f32> up_matrix_scales;
  Ptr<const f32x4> router_f32;      // (experts, k), in one format or the other
  Ptr<const f32x2> router_bf16;     // pairs of pairs
  Ptr<const f32> router_bias;
  Ptr<f32x4> logits;                // messages: expert e of row m in part e / 32 of vector e % 32 of 32 for each row
  Ptr<f32> logit;                   // the same, one by one
  Ptr<f32> sent_ids;                // messages: the ids, 16 of them; expert_down: absent where they are read once all is there
  Ptr<f32x4> old_ids;               // expert_down: the messages of the layer before
  Ptr<f32> ids_out;
  Ptr<f32> weights_out;
  i32 slots, experts;               // slots of all rows; experts: of the stack, with those that are shared
  i32 stride, bias_stride;          // from expert to expert, in 16 bytes and in numbers
  i32 x_slot, parts_at;             // expert_down: bytes of a slot of x in group memory, and where its sums lie there
  i32 row_slots, ids_stride;        // slots of a row, and numbers from its ids to those of the next
  i32 weights_stride, padding;
};

#ifdef HAS_BULK_COPIES
// Of group memory, ahead of x.
enum { STREAM_EXPERTS = 128 };  // among which the kernel chooses that has the router
template <i32 ROWS> struct ExpertStreamGroup {
  LinearStreamGroup stream;
  f32 dot[ROWS][STREAM_SIMDS];  // a SIMD group's part of a logit
  f32 weight[STREAM_SIMDS];     // of each slot
  f32 logit[ROWS][STREAM_EXPERTS];
  u32 key[ROWS][STREAM_EXPERTS];
};
static_assert(sizeof(ExpertStreamGroup<1>) <= 2304 && sizeof(ExpertStreamGroup<2>) <= 3456, "where x begins");

// The row that a slot is of.
template <i32 ROWS> FN i32 stream_row(CONST ExpertStreamParams& e, i32 slot) { return ROWS == 2 && slot >= e.row_slots ? 1 : 0; }

// What outputs of experts are finished with.
template <StreamKind KIND, i32 ROWS> struct StreamExperts {
  CONST ExpertStreamParams& e;
  GROUP const f32 (&weights)[STREAM_SIMDS];  // of slots
  f32 first_factor, second_factor;           // of the norms of rows
  i32 units, first;
  template <bool OTHER> PART i32 x_at(CONST LinearStreamParams& p, i32 slot) const {
    return p.x_at + (KIND == STREAM_EXPERT_DOWN ? slot * e.x_slot : stream_row<ROWS>(e, slot) * p.x_row);
  }
  template <class W, bool SECOND> PART f32 factor(CONST LinearStreamParams&, GROUP LinearStreamGroup& g, i32 slot) const {
    const f32 factor = stream_row<ROWS>(e, slot) == 0 ? first_factor : second_factor;
    if (!HasMatrixScale<W>::VALUE) return factor;
    return factor * (SECOND && KIND == STREAM_EXPERT_GLU ? e.up_matrix_scales : e.matrix_scales)[g.expert[slot]];
  }
  PART StreamRest rest(CONST LinearStreamParams& p, GROUP LinearStreamGroup& g, i32 slot, i32 row, bool in) const {
    StreamRest rest;
    rest.residual = rest.bias = rest.other_bias = rest.turn.x = rest.turn.y = 0.f;
    CONST LinearSegment& s = p.segments[0];
    if (in) {
      const i64 at = i64(g.expert[slot]) * e.bias_stride + row;
      if (given(s.bias)) rest.bias = s.bias[at];
      if (KIND == STREAM_EXPERT_GLU && given(s.up_bias)) rest.other_bias = s.up_bias[at];
      if (KIND == STREAM_EXPERT_DOWN) rest.residual = weights[slot];
    }
    return rest;
  }
  PART void store(CONST LinearStreamParams& p, GROUP LinearStreamGroup& g, i32 slot, i32 row, f32 a, f32 b, StreamRest rest) const {
    CONST LinearSegment& s = p.segments[0];
    a += rest.bias;
    const i32 m = stream_row<ROWS>(e, slot);
    if (KIND == STREAM_EXPERT_GLU) s.y[m * s.y_stride + (slot - m * e.row_slots) * s.n + row] = near_gated(a, b + rest.other_bias, s.activation);
    else group_at<f32>(g, e.parts_at)[slot * units + row - first] = a * rest.residual;
  }
};

// Barriers of a SIMD group's ring.
FN void stream_begin(CONST LinearStreamParams& p, GROUP LinearStreamGroup& g, Lane t) {
  if (t.lane == 0) {
    for (i32 i = 0; i < p.stages; i++) begin_barrier(g.full[t.simd][i]);
    show_barriers();
  }
}

#ifdef GROUPS_MEET
// A thread's part of the logit of this group's expert, without the norm's factor: `v` is its part of the row times the gain.
template <i32 N> FN void router_row(CONST ExpertStreamParams& e, THREAD f32x4 (&row)[N], i32 expert, i32 thread) {
  const i32 vectors = e.linear.k / 4;
  UNROLL for (i32 j = 0; j < N; j++) {
    const i32 i = thread + j * STREAM_THREADS;
    row[j].x = row[j].y = row[j].z = row[j].w = 0.f;
    if (i < vectors && expert < e.router.experts) {
      if (given(e.router_bf16)) {
        const f32x2 four = e.router_bf16[i64(expert) * vectors + i];
        const f32x2 a = bf16x2_to_f32(f32_to_bits(four.x)), b = bf16x2_to_f32(f32_to_bits(four.y));
        row[j].x = a.x; row[j].y = a.y; row[j].z = b.x; row[j].w = b.y;
      } else {
        row[j] = e.router_f32[i64(expert) * vectors + i];
      }
    }
  }
}

// Waits for the id of a lane's slot.
FN f32 sent_id(CONST ExpertStreamParams& e, i32 lane) {
  for (;;) {
    const f32 id = look(e.sent_ids, mini(lane, e.slots - 1));
    if (!any_lane(f32_to_bits(id) == ~0u)) return id;
  }
}

// A SIMD group waits for the logits of all experts for row m, and leaves them in group memory, with the keys that they are ordered by.
template <i32 ROWS> FN void router_logits(CONST ExpertStreamParams& e, GROUP ExpertStreamGroup<ROWS>& g, i32 m, i32 lane) {
  const Ptr<f32x4> logits = offset(e.logits, m * SIMD);
  f32x4 all;
  for (;;) {
    all = look(logits, lane);
    const u32 none = ~0u;
    const bool late = (lane < e.router.experts && f32_to_bits(all.x) == none) || (SIMD + lane < e.router.experts && f32_to_bits(all.y) == none) ||
                      (2 * SIMD + lane < e.router.experts && f32_to_bits(all.z) == none) || (3 * SIMD + lane < e.router.experts && f32_to_bits(all.w) == none);
    if (!any_lane(late)) break;
  }
  const f32 logit[4] = {all.x, all.y, all.z, all.w};
  UNROLL for (i32 j = 0; j < 4; j++) {
    const i32 expert = j * SIMD + lane;
    const f32 score = e.router.scores == SCORES_SIGMOID ? 1.f / (1.f + exp32(-logit[j])) : logit[j];
    g.logit[m][expert] = logit[j];
    g.key[m][expert] = expert < e.router.experts ? route_key(score + (given(e.router.correction) ? e.router.correction[expert] : 0.f)) : 0;
  }
}

// Four threads count the experts ahead of one: those that are among the chosen are in the slot of that number.
template <i32 ROWS> FN void router_choose(CONST ExpertStreamParams& e, GROUP ExpertStreamGroup<ROWS>& g, i32 m, Lane t) {
  const i32 thread = t.simd * SIMD + t.lane, expert = thread / 4, first = m * e.row_slots;
  const u32 own = g.key[m][expert];
  i32 ahead = 0;
  UNROLL for (i32 i = 0; i < STREAM_EXPERTS / 4; i++) {
    const i32 other = i * 4 + thread % 4;
    const u32 key = g.key[m][other];
    ahead += key > own || (key == own && other < expert) ? 1 : 0;
  }
  ahead += shuffle(ahead, t.lane ^ 1);
  ahead += shuffle(ahead, t.lane ^ 2);
  if (thread % 4 == 0 && expert < e.router.experts && ahead < e.router.top_k) g.stream.expert[first + ahead] = expert;
  if (thread >= e.router.top_k && thread < e.row_slots) g.stream.expert[first + thread] = route_shared_id(e.router, thread);
}

// The weights of the chosen of row m: a lane has that of its slot.
template <i32 ROWS> FN f32 router_weight(CONST ExpertStreamParams& e, GROUP ExpertStreamGroup<ROWS>& g, i32 m, i32 lane) {
  f32 score[4];
  u32 key[4];
  UNROLL for (i32 j = 0; j < 4; j++) score[j] = g.logit[m][j * SIMD + lane];
  route_scores<4>(e.router, score, key, lane);
  UNROLL for (i32 j = 0; j < 4; j++) g.logit[m][j * SIMD + lane] = score[j];
  simd_barrier();
  RouteSlot slot;
  slot.id = lane < e.router.top_k ? g.stream.expert[m * e.row_slots + lane] : 0;
  slot.weight = g.logit[m][slot.id];
  return route_weigh(e.router, slot, lane).weight;
}
#endif

// The place of a slot's id, or weight, where rows are `stride` apart.
template <i32 ROWS> FN i32 slot_place(CONST ExpertStreamParams& e, i32 slot, i32 stride) {
  const i32 m = stream_row<ROWS>(e, slot);
  return m * stride + slot - m * e.row_slots;
}

template <class W, bool ROUTE, i32 ROWS = 1>
FN void expert_glu_stream(CONST ExpertStreamParams& e, GROUP ExpertStreamGroup<ROWS>& whole, Lane t) {
  CONST LinearStreamParams& p = e.linear;
  GROUP LinearStreamGroup& g = whole.stream;
  // Two rows of up to 4,096 features, one of up to 8,192.
  enum { PLANE = StreamStage<W, STREAM_EXPERT_GLU>::PIECE + StreamStage<W, STREAM_EXPERT_GLU>::SCALES, XV = 4 / ROWS };
  const i32 worker = t.gx * STREAM_SIMDS + t.simd, workers = p.groups * STREAM_SIMDS, thread = t.simd * SIMD + t.lane;
  // Products fit 32 bits: the host sees to it.
  const i32 unit = i32(u32(worker) * u32(p.units) / u32(workers)), end = i32(u32(worker + 1) * u32(p.units) / u32(workers));
  const StreamSizes size = stream_sizes<W, STREAM_EXPERT_GLU, false>(p);
  const StreamSlots slots = {p.segments[0].n, 0, e.stride};
  StreamCursor next;
  next.unit = unit;
  next.segment = next.left = next.at = next.scales_at = next.piece = next.stage = 0;
  stream_begin(p, g, t);
  f32x4 gain[XV], v[ROWS][XV];
  UNROLL for (i32 j = 0; j < XV; j++) gain[j] = stream_vector<W>(p.gain, thread + j * STREAM_THREADS, p.k);
#ifdef GROUPS_MEET
  f32x4 row[XV];
  if (ROUTE) router_row<XV>(e, row, t.gx, thread);
#endif
  wait_for_previous();
  UNROLL for (i32 m = 0; m < ROWS; m++)
    UNROLL for (i32 j = 0; j < XV; j++) v[m][j] = stream_vector<W>(offset(p.x, m * p.x_stride), thread + j * STREAM_THREADS, p.k);
  i32 id = 0;
  if (!ROUTE && t.simd == 0 && t.lane < e.slots) id = expert_of(e.ids[slot_place<ROWS>(e, t.lane, e.ids_stride)], e.experts);
  f32 squares = stream_sum<ROWS>(stream_squares<XV>(v[0]), ROWS == 2 ? stream_squares<XV>(v[ROWS - 1]) : 0.f, t.lane);
  UNROLL for (i32 m = 0; m < ROWS; m++)
    UNROLL for (i32 j = 0; j < XV; j++) {
      v[m][j].x *= gain[j].x; v[m][j].y *= gain[j].y;
      v[m][j].z *= gain[j].z; v[m][j].w *= gain[j].w;
    }
#ifdef GROUPS_MEET
  if (ROUTE) {
    f32 dots[ROWS];
    UNROLL for (i32 m = 0; m < ROWS; m++) {
      dots[m] = 0.f;
      UNROLL for (i32 j = 0; j < XV; j++)
        dots[m] = fma32(v[m][j].w, row[j].w, fma32(v[m][j].z, row[j].z, fma32(v[m][j].y, row[j].y, fma32(v[m][j].x, row[j].x, dots[m]))));
    }
    const f32 dot = stream_sum<ROWS>(dots[0], dots[ROWS - 1], t.lane);
    if (t.lane % (SIMD / ROWS) == 0) whole.dot[t.lane / (SIMD / ROWS)][t.simd] = dot;
  }
#endif
  if (t.lane == 0) g.part[t.simd] = squares;
  if (ROWS == 2 && t.lane == SIMD / 2) g.second_part[t.simd] = squares;
  f32 factors[ROWS];
#ifdef GROUPS_MEET
  if (ROUTE) {
    group_barrier();
    factors[0] = stream_norm(p, g.part);
    if (ROWS == 2) factors[ROWS - 1] = stream_norm(p, g.second_part);
    if (t.simd < ROWS) {
      const i32 m = t.simd, expert = t.gx;
      const f32 sum = sum_lanes<STREAM_SIMDS>(whole.dot[m][t.lane % STREAM_SIMDS]);
      if (t.lane == 0 && expert < e.router.experts) {
        f32 logit = sum * (m == 0 ? factors[0] : factors[ROWS - 1]);
        if (given(e.router_bias)) logit += e.router_bias[expert];
        send(e.logit, m * STREAM_EXPERTS + expert % SIMD * 4 + expert / SIMD, logit);
      }
    }
  }
#endif
  if (!ROUTE) {
    if (ROWS == 1 && t.simd == 0 && t.lane < e.slots) g.expert[t.lane] = id;
    group_barrier();
    factors[0] = stream_norm(p, g.part);
    if (ROWS == 2) {
      factors[ROWS - 1] = stream_norm(p, g.second_part);
      group_barrier();  // ids lie where the second row's parts did
      if (t.simd == 0 && t.lane < e.slots) g.expert[t.lane] = id;
      group_barrier();
    }
    for (i32 i = 0; i < p.stages; i++) stream_ask<W, STREAM_EXPERT_GLU, true, false, PLANE>(p, g, next, size, slots, end, t);
  }
  UNROLL for (i32 m = 0; m < ROWS; m++) stream_stage_all<W, W, XV>(p, g, m * p.x_row, 0, v[m], t);
#ifdef GROUPS_MEET
  if (ROUTE) {
    if (t.simd < ROWS) router_logits<ROWS>(e, whole, t.simd, t.lane);
    group_barrier();
    UNROLL for (i32 m = 0; m < ROWS; m++) router_choose<ROWS>(e, whole, m, t);
  }
#endif
  group_barrier();
#ifdef GROUPS_MEET
  if (ROUTE) {
    for (i32 i = 0; i < p.stages; i++) stream_ask<W, STREAM_EXPERT_GLU, true, false, PLANE>(p, g, next, size, slots, end, t);
    if (t.gx == 0 && t.simd < ROWS) {
      const i32 m = t.simd, slot = m * e.row_slots + t.lane;
      if (given(e.sent_ids) && t.lane < e.row_slots) send(e.sent_ids, slot, f32(g.expert[slot]));
      const f32 weight = router_weight<ROWS>(e, whole, m, t.lane);
      if (t.lane < e.row_slots) {
        e.ids_out[m * e.ids_stride + t.lane] = f32(g.expert[slot]);
        e.weights_out[m * e.weights_stride + t.lane] = weight;
      }
    }
  }
#endif
  // Not earlier: the down projections would ask for their weights before this kernel has asked for its own.
  let_next_start();
  const StreamExperts<STREAM_EXPERT_GLU, ROWS> more = {e, whole.weight, factors[0], factors[ROWS - 1], slots.units, 0};
  stream_units<W, STREAM_EXPERT_GLU, true, false, PLANE, 1>(p, g, next, size, slots, unit, end, more, t);
}

template <class W, i32 ROWS = 1>
FN void expert_down_stream(CONST ExpertStreamParams& e, GROUP ExpertStreamGroup<ROWS>& whole, Lane t) {
  CONST LinearStreamParams& p = e.linear;
  GROUP LinearStreamGroup& g = whole.stream;
  enum { PLANE = StreamStage<W, STREAM_EXPERT_DOWN>::PIECE + StreamStage<W, STREAM_EXPERT_DOWN>::SCALES, XV = 4 };
  const i32 thread = t.simd * SIMD + t.lane, n = p.segments[0].n;
  // Outputs of the group, and units of the SIMD group: products fit 32 bits.
  const i32 first = i32(u32(t.gx) * u32(n) / u32(p.groups)), outputs = i32(u32(t.gx + 1) * u32(n) / u32(p.groups)) - first;
  const i32 units = outputs * e.slots, unit = t.simd * units / STREAM_SIMDS, end = (t.simd + 1) * units / STREAM_SIMDS;
  let_next_start();
  const StreamSizes size = stream_sizes<W, STREAM_EXPERT_DOWN, false>(p);
  const StreamSlots slots = {outputs, first, e.stride};
  StreamCursor next;
  next.unit = unit;
  next.segment = next.left = next.at = next.scales_at = next.piece = next.stage = 0;
  stream_begin(p, g, t);
  bool asked = false;
#ifdef GROUPS_MEET
  if (given(e.sent_ids)) {
    if (t.simd == 0) {
      const f32 id = sent_id(e, t.lane);
      if (t.lane < e.slots) g.expert[t.lane] = expert_of(id, e.experts);
    }
    group_barrier();
    for (i32 i = 0; i < p.stages; i++) stream_ask<W, STREAM_EXPERT_DOWN, true, false, PLANE>(p, g, next, size, slots, end, t);
    asked = true;
  }
#endif
  wait_for_previous();
  if (!asked && t.simd == 0 && t.lane < e.slots) g.expert[t.lane] = expert_of(e.ids[slot_place<ROWS>(e, t.lane, e.ids_stride)], e.experts);
  const f32 weight = t.simd == 0 && t.lane < e.slots ? e.weights[slot_place<ROWS>(e, t.lane, e.weights_stride)] : 0.f;
  // Outputs of the group, of rows one after another.
  const i32 own_row = ROWS == 2 && thread >= outputs ? 1 : 0;
  const f32 residual = thread < outputs * ROWS ? p.residual[own_row * (p.residual_stride - outputs) + first + thread] : 0.f;
#ifdef GROUPS_MEET
  // Messages of the router, which everybody has seen.
  if (given(e.logits) && t.gx == 0 && t.simd > 0 && t.simd <= ROWS) forget(offset(e.logits, (t.simd - 1) * SIMD), t.lane);
  if (given(e.old_ids) && t.gx == 0 && t.simd == 1 && t.lane < STREAM_SIMDS / 4) forget(e.old_ids, t.lane);
#endif
  // Vectors of all slots one after another; eight lanes have a block.
  const i32 slot_vectors = p.k / 4, vectors = slot_vectors * e.slots;
  // The whole part of (i + 1/2) · slots_of is i / slot_vectors: exact for up to 16 slots with 2^16 vectors together.
  const f32 slots_of = near_quotient(1.f, f32(slot_vectors));
  for (i32 base = 0; base < vectors; base += XV * STREAM_THREADS) {
    f32x4 v[XV];
    UNROLL for (i32 j = 0; j < XV; j++) {
      const i32 i = base + j * STREAM_THREADS + thread;
      v[j].x = v[j].y = v[j].z = v[j].w = 0.f;
      if (i < vectors) {
        const i32 m = ROWS == 2 && i >= slot_vectors * e.row_slots ? 1 : 0;
        v[j] = p.x[m * (p.x_stride - slot_vectors * e.row_slots) + i];
      }
    }
    if (!asked) {
      group_barrier();
      for (i32 i = 0; i < p.stages; i++) stream_ask<W, STREAM_EXPERT_DOWN, true, false, PLANE>(p, g, next, size, slots, end, t);
      asked = true;
    }
    UNROLL for (i32 j = 0; j < XV; j++) {
      if (base + j * STREAM_THREADS >= vectors) break;  // all threads
      const i32 i = base + j * STREAM_THREADS + thread;
      const i32 slot = mini(i32((f32(i) + 0.5f) * slots_of), e.slots - 1), at = i - slot * slot_vectors;
      const f32x4 one[1] = {v[j]};
      StreamActivations<W>::template stage<1>(g, p.x_at + slot * e.x_slot, p.k, u32(at), one, t.lane);
    }
  }
  if (t.simd == 0 && t.lane < STREAM_SIMDS) whole.weight[t.lane] = weight;
  group_barrier();
  const StreamExperts<STREAM_EXPERT_DOWN, ROWS> more = {e, whole.weight, 1.f, 1.f, outputs, first};
  stream_units<W, STREAM_EXPERT_DOWN, true, false, PLANE, 1>(p, g, next, size, slots, unit, end, more, t);
  group_barrier();
  const GroupPtr<f32> parts = group_at<f32>(g, e.parts_at);
  for (i32 i = thread; i < outputs * ROWS; i += STREAM_THREADS) {
    const i32 m = ROWS == 2 && i >= outputs ? 1 : 0, output = i - m * outputs;
    f32 sum = parts[m * e.row_slots * outputs + output];
    for (i32 slot = 1; slot < e.row_slots; slot++) sum += parts[(m * e.row_slots + slot) * outputs + output];
    const f32 rest = i == thread ? residual : p.residual[m * p.residual_stride + first + output];
    p.segments[0].y[m * p.segments[0].y_stride + first + output] = sum + rest;
  }
}

typedef ExpertStreamGroup<1> ExpertStreamGroup_m1;
typedef ExpertStreamGroup<2> ExpertStreamGroup_m2;
#define EXPERTS_STREAM(FORMAT, W)                                                                                                     \
  KERNEL_BESIDE(norm_expert_glu_stream_##FORMAT, ExpertStreamParams, ExpertStreamGroup_m1, 512, 2, expert_glu_stream<W, false>)            \
  KERNEL_BESIDE(norm_expert_glu_stream_##FORMAT##_m2, ExpertStreamParams, ExpertStreamGroup_m2, 512, 2, expert_glu_stream<W, false, 2>)    \
  KERNEL_BESIDE(expert_down_stream_##FORMAT, ExpertStreamParams, ExpertStreamGroup_m1, 512, 2, expert_down_stream<W>)                      \
  KERNEL_BESIDE(expert_down_stream_##FORMAT##_m2, ExpertStreamParams, ExpertStreamGroup_m2, 512, 2, expert_down_stream<W, 2>)
EXPERTS_STREAM(f16, WeightF16)
EXPERTS_STREAM(bf16, WeightBF16)
EXPERTS_STREAM(q8_0, WeightQ8_0)
EXPERTS_STREAM(fp8, WeightFP8)
EXPERTS_STREAM(q4_0, WeightQ4_0)
EXPERTS_STREAM(q4_g128, WeightQ4G128)
EXPERTS_STREAM(q4_z128, WeightQ4Z128)
EXPERTS_STREAM(mxfp4, WeightMXFP4)
EXPERTS_STREAM(nvfp4, WeightNVFP4)
EXPERTS_STREAM(q4_k, WeightQ4_K)
EXPERTS_STREAM(q6_k, WeightQ6_K)
#ifdef GROUPS_MEET
#define ROUTE_EXPERTS_STREAM(FORMAT, W) \
  KERNEL_BESIDE(route_expert_glu_stream_##FORMAT, ExpertStreamParams, ExpertStreamGroup_m1, 512, 2, expert_glu_stream<W, true>)         \
  KERNEL_BESIDE(route_expert_glu_stream_##FORMAT##_m2, ExpertStreamParams, ExpertStreamGroup_m2, 512, 2, expert_glu_stream<W, true, 2>)
ROUTE_EXPERTS_STREAM(f16, WeightF16)
ROUTE_EXPERTS_STREAM(bf16, WeightBF16)
ROUTE_EXPERTS_STREAM(q8_0, WeightQ8_0)
ROUTE_EXPERTS_STREAM(fp8, WeightFP8)
ROUTE_EXPERTS_STREAM(q4_0, WeightQ4_0)
ROUTE_EXPERTS_STREAM(q4_g128, WeightQ4G128)
ROUTE_EXPERTS_STREAM(q4_z128, WeightQ4Z128)
ROUTE_EXPERTS_STREAM(mxfp4, WeightMXFP4)
ROUTE_EXPERTS_STREAM(nvfp4, WeightNVFP4)
ROUTE_EXPERTS_STREAM(q4_k, WeightQ4_K)
ROUTE_EXPERTS_STREAM(q6_k, WeightQ6_K)
#endif
#endif
