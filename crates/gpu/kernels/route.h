// route: the experts of each row, by their logits, and how much each of them counts. router_logits: their logits.
//
// Shapes    logits (rows, experts), f32; ids (whole numbers) and weights (rows, top_k + shared), f32.
// Grid      (1, rows); a SIMD group a row. A lane has the experts e ≡ lane (mod 32); up to 512 experts, 32 of them in slots, 32 groups
//           of experts.
// Order     of equal scores the lowest id is ahead; a NaN is below every number.
struct RouterParams {
  Ptr<const f32> correction;  // (experts,), absent: none
  i32 experts, top_k;
  i32 scores, weighing;       // `RouteScores`, `RouteWeighing`
  i32 groups, chosen_groups;  // 0 groups: all experts take part
  i32 sum_of_two;             // of a group's scores, or its largest
  i32 shared;                 // experts behind the others, in the last slots of each row, with a weight of 1
  f32 eps, scale;
};
struct RouteParams {
  RouterParams router;
  Ptr<const f32> logits;
  Ptr<const i32> rows;
  Ptr<f32> ids;
  Ptr<f32> weights;
  i32 logits_stride, ids_stride, weights_stride, padding;
};

// router_logits: logits = norm(x) · Wᵀ + bias, for few rows; router_logits_many: for more.
//
// Shapes    x (rows, k), f32, rows on 16 bytes; gain (k,); W (experts, k), k a multiple of 4; bias (experts,) or none.
// Grid      (experts, rows / R): a group has one row of W for so many rows, few, so that all of them come at once. Of many:
//           (experts / 16, rows / ROUTER_ROWS), a SIMD group has ROUTER_EXPERTS rows of W.
// Bytes     W once for ROUTER_ROWS rows; x once for each expert, or for 16, from the second cache. Bound by latency, or by the
//           first cache.
// Accuracy  f32. The norm is a factor at the end, because squares are added up with the products.
// Order     each thread a stride of 128 (of many: of 32), then by halves, then SIMD groups: a row's logits do not depend on the
//           rows beside it.
template <class E> struct RouterLogitsParams {
  Ptr<const f32x4> x;
  Ptr<const f32x4> gain;
  Ptr<const E> weight;
  Ptr<const f32> bias;
  Ptr<const i32> rows;
  Ptr<f32> logits;
  i32 k, x_stride;
  i32 weight_stride, logits_stride;  // in numbers
  f32 eps;
  i32 experts;
};

enum RouteScores { SCORES_SOFTMAX, SCORES_SIGMOID, SCORES_LOGITS };
enum RouteWeighing { WEIGHTS_SCORES, WEIGHTS_NORMALISED, WEIGHTS_SOFTMAX };
#define ROUTE_LEAST bits_to_f32(0xff800000u)

// A number as one that orders as it does, above 0; a NaN as the least.
FN u32 route_key(f32 v) {
  const u32 bits = f32_to_bits((v == v ? v : ROUTE_LEAST) + 0.f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
FN f32 route_number(u32 key) { return bits_to_f32(key >> 31 ? key & 0x7fffffffu : ~key); }

// The largest of all lanes' keys, and who has it: the expert with the lowest id. Those with key 0 take no part.
template <i32 J> FN i32 route_best(THREAD const u32 (&key)[J], THREAD u32& most, i32 lane) {
  most = 0;
  UNROLL for (i32 j = 0; j < J; j++) most = key[j] > most ? key[j] : most;
  most = max_lanes_u32(most);
  u32 id = 0x7fffffffu;
  UNROLL for (i32 j = J - 1; j >= 0; j--) id = key[j] == most ? u32(j * SIMD + lane) : id;
  return i32(min_lanes_u32(id));
}

// What the scores of a lane's experts are, and the keys that the choice goes by.
template <i32 J> FN void route_scores(CONST RouterParams& r, THREAD f32 (&score)[J], THREAD u32 (&key)[J], i32 lane) {
  if (r.scores == SCORES_SOFTMAX) {
    f32 most = ROUTE_LEAST, sum = 0.f;
    UNROLL for (i32 j = 0; j < J; j++) most = j * SIMD + lane < r.experts ? max32(most, score[j]) : most;
    most = max_lanes<SIMD>(most);
    UNROLL for (i32 j = 0; j < J; j++) {
      score[j] = j * SIMD + lane < r.experts ? exp32(score[j] - most) : 0.f;
      sum += score[j];
    }
    sum = sum_lanes<SIMD>(sum);
    UNROLL for (i32 j = 0; j < J; j++) score[j] /= sum;
  }
  if (r.scores == SCORES_SIGMOID) UNROLL for (i32 j = 0; j < J; j++) score[j] = 1.f / (1.f + exp32(-score[j]));
  UNROLL for (i32 j = 0; j < J; j++) {
    const i32 expert = j * SIMD + lane;
    key[j] = 0;
    if (expert < r.experts) key[j] = route_key(score[j] + (given(r.correction) ? r.correction[expert] : 0.f));
  }
}

// The experts of groups that are not chosen score minus infinity.
template <i32 J> FN void route_groups(CONST RouterParams& r, THREAD u32 (&key)[J], i32 lane) {
  const i32 size = r.experts / r.groups;
  u32 own[1] = {0};  // of group `lane`
  for (i32 group = 0; group < r.groups; group++) {
    u32 of_group[J], most;
    UNROLL for (i32 j = 0; j < J; j++) {
      const i32 expert = j * SIMD + lane;
      of_group[j] = expert >= group * size && expert < (group + 1) * size ? key[j] : 0;
    }
    const i32 best = route_best<J>(of_group, most, lane);
    f32 sum = route_number(most);
    if (r.sum_of_two) {
      UNROLL for (i32 j = 0; j < J; j++) of_group[j] = j * SIMD + lane == best ? 0 : of_group[j];
      route_best<J>(of_group, most, lane);
      sum += route_number(most);
    }
    if (lane == group) own[0] = route_key(sum);
  }
  u32 taken = 0, most;
  for (i32 i = 0; i < r.chosen_groups; i++) {
    const i32 best = route_best<1>(own, most, lane) & 31;
    taken |= 1u << best;
    if (lane == best) own[0] = 0;
  }
  UNROLL for (i32 j = 0; j < J; j++) {
    const i32 expert = j * SIMD + lane;
    if (expert < r.experts && (taken >> mini(expert / size, 31) & 1u) == 0) key[j] = route_key(ROUTE_LEAST);
  }
}

// An expert, and its weight: lane s has those of slot s.
struct RouteSlot { i32 id; f32 weight; };

// Slots of a row.
FN i32 route_slots(CONST RouterParams& r) { return r.top_k + r.shared; }

// The id in a slot of a shared expert.
FN i32 route_shared_id(CONST RouterParams& r, i32 slot) { return r.experts + slot - r.top_k; }

// The weights of slots that have scores, and all of the slots behind them.
FN RouteSlot route_weigh(CONST RouterParams& r, RouteSlot slot, i32 lane) {
  const bool in = lane < r.top_k;
  if (r.weighing == WEIGHTS_NORMALISED) slot.weight /= sum_lanes<SIMD>(in ? slot.weight : 0.f) + r.eps;
  if (r.weighing == WEIGHTS_SOFTMAX) {
    const f32 largest = max_lanes<SIMD>(in ? slot.weight : ROUTE_LEAST);
    slot.weight = in ? exp32(slot.weight - largest) : 0.f;
    slot.weight /= sum_lanes<SIMD>(slot.weight);
  }
  slot.weight *= r.scale;
  if (!in) {
    slot.id = route_shared_id(r, lane);
    slot.weight = 1.f;
  }
  return slot;
}

// The choice alone, of a row whose experts have these logits: lane s has the id of slot s.
template <i32 J> FN i32 route_ids(CONST RouterParams& r, THREAD f32 (&score)[J], i32 lane) {
  u32 key[J], most;
  if (r.scores == SCORES_SOFTMAX && r.groups == 0 && !given(r.correction)) {
    // A softmax leaves the order as it is.
    UNROLL for (i32 j = 0; j < J; j++) key[j] = j * SIMD + lane < r.experts ? route_key(score[j]) : 0;
  } else {
    route_scores<J>(r, score, key, lane);
  }
  if (r.groups > 0) route_groups<J>(r, key, lane);
  i32 id = route_shared_id(r, lane);
  for (i32 s = 0; s < r.top_k; s++) {
    const i32 best = route_best<J>(key, most, lane);
    UNROLL for (i32 j = 0; j < J; j++) key[j] = j * SIMD + lane == best ? 0 : key[j];
    if (lane == s) id = best;
  }
  return id;
}

// How much each of these ids counts, of a row whose experts have these logits.
template <i32 J> FN RouteSlot route_weights(CONST RouterParams& r, THREAD f32 (&score)[J], i32 id, i32 lane) {
  u32 key[J];
  route_scores<J>(r, score, key, lane);
  RouteSlot slot = {id, 0.f};
  UNROLL for (i32 j = 0; j < J; j++) {
    const f32 of = bits_to_f32(u32(shuffle(i32(f32_to_bits(score[j])), id % SIMD)));
    if (id / SIMD == j) slot.weight = of;
  }
  return route_weigh(r, slot, lane);
}

// `score`: the logits of a lane's experts.
template <i32 J> FN RouteSlot route_choose(CONST RouterParams& r, THREAD f32 (&score)[J], i32 lane) {
  u32 key[J], most;
  route_scores<J>(r, score, key, lane);
  if (r.groups > 0) route_groups<J>(r, key, lane);
  RouteSlot slot;
  slot.id = 0;
  slot.weight = 0.f;
  for (i32 s = 0; s < r.top_k; s++) {
    const i32 best = route_best<J>(key, most, lane);
    f32 picked = 0.f;
    UNROLL for (i32 j = 0; j < J; j++)
      if (j * SIMD + lane == best) {
        picked = score[j];
        key[j] = 0;
      }
    picked = bits_to_f32(u32(shuffle(i32(f32_to_bits(picked)), best % SIMD)));
    if (lane == s) {
      slot.id = best;
      slot.weight = picked;
    }
  }
  return route_weigh(r, slot, lane);
}

// The logits of a lane's experts.
template <i32 J> FN void route_logits(CONST RouteParams& p, THREAD f32 (&logit)[J], i32 row, i32 lane) {
  UNROLL for (i32 j = 0; j < J; j++) {
    const i32 expert = j * SIMD + lane;
    logit[j] = expert < p.router.experts ? p.logits[i64(row) * p.logits_stride + expert] : 0.f;
  }
}

// A SIMD group leaves the experts of a row where the row has them.
FN void route_leave(CONST RouteParams& p, i32 row, RouteSlot slot, i32 lane) {
  if (lane < route_slots(p.router)) {
    p.ids[i64(row) * p.ids_stride + lane] = f32(slot.id);
    p.weights[i64(row) * p.weights_stride + lane] = slot.weight;
  }
}

// The experts of one row, which are left, if they should be.
template <i32 J> FN RouteSlot route_row(CONST RouteParams& p, i32 row, bool leave, i32 lane) {
  f32 score[J];
  route_logits<J>(p, score, row, lane);
  const RouteSlot slot = route_choose<J>(p.router, score, lane);
  if (leave) route_leave(p, row, slot, lane);
  return slot;
}

template <i32 J> FN void route(CONST RouteParams& p, GROUP NoGroup&, Lane t) {
  let_next_start();
  wait_for_previous();
  if (t.gy < p.rows[0]) route_row<J>(p, t.gy, true, t.lane);  // the whole group
}
// Rows of a group: of router_logits, of router_rows of sm90/experts_mma.h, which has more of them, and of router_logits_many.
enum { ROUTER_FEW_ROWS = 2, ROUTER_MORE_ROWS = 4, ROUTER_ROWS = 8, ROUTER_AHEAD = 4 };
template <i32 R> struct RouterLogitsGroup { f32 product[GROUP_SIMDS][R], squares[GROUP_SIMDS][R]; };

// Four weights of a row, times the gain.
FN f32x4 router_weights(Ptr<const f32> w, i32 i) { return vectors4(w)[i]; }
template <class E> FN f32x4 router_weights(Ptr<const E> w, i32 i) {
  f32x4 v;
  v.x = to_f32(w[i * 4]); v.y = to_f32(w[i * 4 + 1]); v.z = to_f32(w[i * 4 + 2]); v.w = to_f32(w[i * 4 + 3]);
  return v;
}
template <class E>
FN f32x4 router_scaled(CONST RouterLogitsParams<E>& p, i32 expert, i32 i) {
  f32x4 v;
  v.x = v.y = v.z = v.w = 0.f;
  if (i * 4 < p.k) {
    v = router_weights(offset(p.weight, i64(expert) * p.weight_stride), i);
    const f32x4 gain = p.gain[i];
    v.x *= gain.x; v.y *= gain.y; v.z *= gain.z; v.w *= gain.w;
  }
  return v;
}

template <class E, i32 R>
FN void router_logits(CONST RouterLogitsParams<E>& p, GROUP RouterLogitsGroup<R>& g, Lane t) {
  const i32 expert = t.gx, first = t.gy * R, own = t.simd * SIMD + t.lane, rows = p.rows[0];
  let_next_start();
  f32x4 ahead[ROUTER_AHEAD];
  UNROLL for (i32 j = 0; j < ROUTER_AHEAD; j++) ahead[j] = router_scaled(p, expert, own + j * GROUP_THREADS);
  wait_for_previous();
  if (first >= rows) return;  // the whole group
  f32 product[R], squares[R];
  UNROLL for (i32 r = 0; r < R; r++) product[r] = squares[r] = 0.f;
  for (i32 base = 0; base * 4 < p.k; base += ROUTER_AHEAD * GROUP_THREADS) {
    f32x4 x[ROUTER_AHEAD][R];
    UNROLL for (i32 j = 0; j < ROUTER_AHEAD; j++) {
      const i32 i = base + j * GROUP_THREADS + own;
      if (base > 0) ahead[j] = router_scaled(p, expert, i);
      UNROLL for (i32 r = 0; r < R; r++) {
        x[j][r].x = x[j][r].y = x[j][r].z = x[j][r].w = 0.f;
        if (i * 4 < p.k) x[j][r] = p.x[i64(mini(first + r, rows - 1)) * (p.x_stride / 4) + i];
      }
    }
    UNROLL for (i32 j = 0; j < ROUTER_AHEAD; j++)
      UNROLL for (i32 r = 0; r < R; r++) {
        const f32x4 v = x[j][r];
        product[r] = fma32(v.w, ahead[j].w, fma32(v.z, ahead[j].z, fma32(v.y, ahead[j].y, fma32(v.x, ahead[j].x, product[r]))));
        squares[r] = fma32(v.w, v.w, fma32(v.z, v.z, fma32(v.y, v.y, fma32(v.x, v.x, squares[r]))));
      }
  }
  UNROLL for (i32 r = 0; r < R; r++) {
    const f32 sum = sum_lanes<SIMD>(product[r]), square = sum_lanes<SIMD>(squares[r]);
    if (t.lane == 0) { g.product[t.simd][r] = sum; g.squares[t.simd][r] = square; }
  }
  group_barrier();
  if (own >= R || first + own >= rows) return;
  f32 sum = 0.f, square = 0.f;
  UNROLL for (i32 s = 0; s < GROUP_SIMDS; s++) { sum += g.product[s][own]; square += g.squares[s][own]; }
  const f32 scale = inv_sqrt(square / f32(p.k) + p.eps);
  p.logits[i64(first + own) * p.logits_stride + expert] = sum * scale + (given(p.bias) ? p.bias[expert] : 0.f);
}

// Of a SIMD group, which has the rows of W in registers for its rows of x.
enum { ROUTER_EXPERTS = 4 };

template <class E>
FN void router_logits_many(CONST RouterLogitsParams<E>& p, GROUP NoGroup&, Lane t) {
  const i32 expert = (t.gx * t.simds + t.simd) * ROUTER_EXPERTS, first = t.gy * ROUTER_ROWS, rows = p.rows[0];
  let_next_start();
  wait_for_previous();
  if (first >= rows || expert >= p.experts) return;  // the whole SIMD group
  f32 product[ROUTER_EXPERTS][ROUTER_ROWS], squares[ROUTER_ROWS];
  UNROLL for (i32 r = 0; r < ROUTER_ROWS; r++) {
    squares[r] = 0.f;
    UNROLL for (i32 e = 0; e < ROUTER_EXPERTS; e++) product[e][r] = 0.f;
  }
  for (i32 i = t.lane; i * 4 < p.k; i += SIMD) {
    f32x4 w[ROUTER_EXPERTS];
    UNROLL for (i32 e = 0; e < ROUTER_EXPERTS; e++) w[e] = router_scaled(p, mini(expert + e, p.experts - 1), i);
    UNROLL for (i32 r = 0; r < ROUTER_ROWS; r++) {
      const f32x4 x = p.x[i64(mini(first + r, rows - 1)) * (p.x_stride / 4) + i];
      squares[r] = fma32(x.w, x.w, fma32(x.z, x.z, fma32(x.y, x.y, fma32(x.x, x.x, squares[r]))));
      UNROLL for (i32 e = 0; e < ROUTER_EXPERTS; e++)
        product[e][r] = fma32(x.w, w[e].w, fma32(x.z, w[e].z, fma32(x.y, w[e].y, fma32(x.x, w[e].x, product[e][r]))));
    }
  }
  UNROLL for (i32 r = 0; r < ROUTER_ROWS; r++) {
    const f32 scale = inv_sqrt(sum_lanes<SIMD>(squares[r]) / f32(p.k) + p.eps);
    UNROLL for (i32 e = 0; e < ROUTER_EXPERTS; e++) {
      const f32 sum = sum_lanes<SIMD>(product[e][r]);
      if (t.lane == 0 && first + r < rows && expert + e < p.experts)
        p.logits[i64(first + r) * p.logits_stride + expert + e] = sum * scale + (given(p.bias) ? p.bias[expert + e] : 0.f);
    }
  }
}
typedef RouterLogitsGroup<ROUTER_FEW_ROWS> router_logits_memory;
KERNEL(router_logits_f32, RouterLogitsParams<f32>, router_logits_memory, 128, router_logits<f32, ROUTER_FEW_ROWS>)
KERNEL(router_logits_f16, RouterLogitsParams<f16>, router_logits_memory, 128, router_logits<f16, ROUTER_FEW_ROWS>)
KERNEL(router_logits_bf16, RouterLogitsParams<bf16>, router_logits_memory, 128, router_logits<bf16, ROUTER_FEW_ROWS>)
KERNEL(router_logits_many_f32, RouterLogitsParams<f32>, NoGroup, 128, router_logits_many<f32>)
KERNEL(router_logits_many_f16, RouterLogitsParams<f16>, NoGroup, 128, router_logits_many<f16>)
KERNEL(router_logits_many_bf16, RouterLogitsParams<bf16>, NoGroup, 128, router_logits_many<bf16>)
KERNEL(route_e128, RouteParams, NoGroup, 32, route<4>)
KERNEL(route_e512, RouteParams, NoGroup, 32, route<16>)
