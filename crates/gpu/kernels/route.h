// route: the experts of each row, by their logits, and how much each of them counts.
//
// Shapes    logits (rows, experts), f32; ids (whole numbers) and weights (rows, top_k), f32.
// Grid      (1, rows); a SIMD group a row. A lane has the experts e ≡ lane (mod 32); up to 512 experts, 32 of them chosen, 32 groups
//           of experts.
// Order     of equal scores the lowest id is ahead; a NaN is below every number.
struct RouterParams {
  Ptr<const f32> correction;  // (experts,), absent: none
  i32 experts, top_k;
  i32 scores, weighing;       // `RouteScores`, `RouteWeighing`
  i32 groups, chosen_groups;  // 0 groups: all experts take part
  i32 sum_of_two, padding;    // of a group's scores, or its largest
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

// The weights of slots that have scores.
FN RouteSlot route_weigh(CONST RouterParams& r, RouteSlot slot, i32 lane) {
  const bool in = lane < r.top_k;
  if (r.weighing == WEIGHTS_NORMALISED) slot.weight /= sum_lanes<SIMD>(in ? slot.weight : 0.f) + r.eps;
  if (r.weighing == WEIGHTS_SOFTMAX) {
    const f32 largest = max_lanes<SIMD>(in ? slot.weight : ROUTE_LEAST);
    slot.weight = in ? exp32(slot.weight - largest) : 0.f;
    slot.weight /= sum_lanes<SIMD>(slot.weight);
  }
  slot.weight *= r.scale;
  return slot;
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

template <i32 J> FN void route(CONST RouteParams& p, GROUP NoGroup&, Lane t) {
  let_next_start();
  wait_for_previous();
  if (t.gy >= p.rows[0]) return;  // the whole group
  f32 score[J];
  UNROLL for (i32 j = 0; j < J; j++) {
    const i32 expert = j * SIMD + t.lane;
    score[j] = expert < p.router.experts ? p.logits[i64(t.gy) * p.logits_stride + expert] : 0.f;
  }
  const RouteSlot slot = route_choose<J>(p.router, score, t.lane);
  if (t.lane < p.router.top_k) {
    p.ids[i64(t.gy) * p.ids_stride + t.lane] = f32(slot.id);
    p.weights[i64(t.gy) * p.weights_stride + t.lane] = slot.weight;
  }
}
KERNEL(route_e128, RouteParams, NoGroup, 32, route<4>)
KERNEL(route_e512, RouteParams, NoGroup, 32, route<16>)
