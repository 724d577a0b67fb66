// expert_linear: what `linear` computes, of each row by the weights of each of the experts that it chose. expert_glu: gated units.
// expert_down: their weighted sum, and what is added to it. expert_sum: the same sum of results that are there.
//
// Shapes    ids, weights (rows, slots), f32; x (rows, k), or (rows, slots · k), a slice for each slot; weights of an expert (n, k), in
//           any format, experts one after another at equal distances; y (rows, slots · n), of expert_down and expert_sum (rows, n);
//           parts (rows · slots, n), rows of all on 16 bytes.
// Grid      (n / outputs of a group, rows, slots), of expert_down (…, rows, 1): a group makes outputs of one row and one slot, or of
//           all slots one after another. expert_sum: (n / 512, rows, 1), a thread has four outputs.
// Bytes     the weights of a row's experts, once for each row.
// Accuracy  as linear.h.
// Order     as linear.h; expert_down and expert_sum add up the slots in order, then the residual.
struct ExpertStack {
  Ptr<const u32x4> weight;         // of expert 0
  Ptr<const f16> scales;
  Ptr<const f32> bias;
  Ptr<const f32> matrix_scales;    // (experts,), absent: 1
  i32 stride, bias_stride;         // from expert to expert, in 16 bytes and in numbers
};
struct ExpertsParams {
  ExpertStack stack, up;           // up: with the gate in `stack`
  Ptr<const f32> x;
  Ptr<const f32> ids;
  Ptr<const f32> weights;
  Ptr<const f32> residual;
  Ptr<const i32> rows;
  Ptr<f32> y;
  i32 n, k, slots, experts;
  i32 x_stride, x_slot;            // x_slot: from slot to slot, 0 where all share the row
  i32 ids_stride, weights_stride;
  i32 residual_stride, y_stride;
  i32 activation, padding;
};
struct ExpertSumParams {
  Ptr<const f32x4> parts;
  Ptr<const f32> weights;
  Ptr<const f32x4> residual;
  Ptr<const i32> rows;
  Ptr<f32x4> y;
  i32 vectors, slots;              // vectors: of a row, four numbers each
  i32 parts_stride, weights_stride;  // strides in numbers
  i32 residual_stride, y_stride;
};

// The expert that an id names; some expert where there is no row and nobody reads the result.
FN i32 expert_of(f32 id, i32 experts) { return id >= 0.f && id < f32(experts) ? i32(id) : 0; }

// A vector of a slice of a row, with zeros past its end; slices of rows may begin anywhere.
FN f32x4 slice_vector(Ptr<const f32> x, i32 i, i32 width, bool aligned) {
  if (aligned) return row_vector(vectors4(x), i, width);
  f32x4 v;
  v.x = v.y = v.z = v.w = 0.f;
  if (i * 4 < width) v.x = x[i * 4];
  if (i * 4 + 1 < width) v.y = x[i * 4 + 1];
  if (i * 4 + 2 < width) v.z = x[i * 4 + 2];
  if (i * 4 + 3 < width) v.w = x[i * 4 + 3];
  return v;
}

// The sums of R outputs of one slot, and of the up weight behind them; each lane has its part.
template <class W, i32 R, i32 U, i32 P>
FN void expert_sums(CONST ExpertsParams& p, GROUP LinearGroup& g, THREAD f32 (&sum)[1][R * P], THREAD const LinearRows& weights, Ptr<const f32> x, i32 row, Lane t) {
  enum { N = R * P, TILE = SIMD * U, V = W::LEN / 4, PIECE = LINEAR_VECTORS / V };
  const i32 chunks = (p.k + W::LEN - 1) / W::LEN, whole = p.k / W::LEN;
  const bool aligned = p.x_slot % 4 == 0;
  LinearTile<W, N, U> tile, next;
  if (TILE <= whole) linear_load<false, W, R>(tile, weights, row, t.lane, chunks);
  else linear_load<true, W, R>(tile, weights, row, t.lane, chunks);
  UNROLL for (i32 r = 0; r < N; r++) sum[0][r] = 0.f;
  for (i32 piece = 0; piece < chunks; piece += PIECE) {
    const i32 end = mini(piece + PIECE, (chunks + TILE - 1) / TILE * TILE);
    group_barrier();  // what was there has been read
    for (i32 i = t.simd * SIMD + t.lane; i < (end - piece) * V; i += GROUP_THREADS) {
      const i32 chunk = i / V;
      g.x[chunk / SIMD * (SIMD * V) + i % V * SIMD + chunk % SIMD] = slice_vector(x, piece * V + i, p.k, aligned);
    }
    group_barrier();
    for (i32 base = piece; base < end; base += TILE) {
      const i32 after = base + TILE;
      if (after + TILE <= whole) linear_load<false, W, R>(next, weights, row, after + t.lane, chunks);
      else if (after < chunks) linear_load<true, W, R>(next, weights, row, after + t.lane, chunks);
      linear_add<W, 1, N, U>(sum, tile, g, base - piece, t.lane);
      tile = next;
    }
  }
}

FN f32 expert_bias(CONST ExpertStack& s, i32 expert, i32 column) {
  return given(s.bias) ? s.bias[i64(expert) * s.bias_stride + column] : 0.f;
}
template <class W> FN f32 expert_scaled(CONST ExpertStack& s, i32 expert, f32 v) {
  return HasMatrixScale<W>::VALUE ? v * s.matrix_scales[expert] : v;
}

// R outputs a SIMD group, U chunks of each in flight, P planes (2 with an up weight); with SUM, of all slots together.
template <class W, i32 R, i32 U, i32 P, bool SUM>
FN void experts(CONST ExpertsParams& p, GROUP LinearGroup& g, Lane t) {
  enum { N = R * P };
  const i32 row = (t.gx * t.simds + t.simd) * R, y_row = t.gy;
  let_next_start();
  wait_for_previous();
  if (y_row >= p.rows[0]) return;  // the whole group
  const i32 first = SUM ? 0 : t.gz, end = SUM ? p.slots : t.gz + 1;
  f32 total[R];
  UNROLL for (i32 r = 0; r < R; r++) total[r] = 0.f;
  for (i32 slot = first; slot < end; slot++) {
    const i32 expert = expert_of(p.ids[i64(y_row) * p.ids_stride + slot], p.experts);
    const i64 at = i64(expert) * p.stack.stride, up_at = i64(expert) * p.up.stride;
    const LinearRows weights = {offset(p.stack.weight, at), offset(p.stack.scales, at * 8), offset(p.up.weight, up_at), offset(p.up.scales, up_at * 8), p.n};
    f32 sum[1][N];
    expert_sums<W, R, U, P>(p, g, sum, weights, offset(p.x, i64(y_row) * p.x_stride + i64(slot) * p.x_slot), row, t);
    UNROLL for (i32 r = 0; r < R; r++) {
      const i32 column = row + r;
      f32 y = sum_lanes<SIMD>(sum[0][r]), up = P == 2 ? sum_lanes<SIMD>(sum[0][N - R + r]) : 0.f;
      if (t.lane == 0 && column < p.n) {
        y = expert_scaled<W>(p.stack, expert, y) + expert_bias(p.stack, expert, column);
        if (P == 2) y = gated(y, expert_scaled<W>(p.up, expert, up) + expert_bias(p.up, expert, column), p.activation);
        if (SUM) total[r] = fma32(p.weights[i64(y_row) * p.weights_stride + slot], y, total[r]);
        else p.y[i64(y_row) * p.y_stride + i64(slot) * p.n + column] = y;
      }
    }
  }
  if (SUM && t.lane == 0)
    UNROLL for (i32 r = 0; r < R; r++) {
      const i32 column = row + r;
      if (column < p.n) p.y[i64(y_row) * p.y_stride + column] = total[r] + p.residual[i64(y_row) * p.residual_stride + column];
    }
}

#define EXPERTS(FORMAT, W, U)                                                                             \
  KERNEL(expert_linear_##FORMAT, ExpertsParams, LinearGroup, 128, experts<W, 2, U, 1, false>)             \
  KERNEL(expert_glu_##FORMAT, ExpertsParams, LinearGroup, 128, experts<W, 2, (U + 1) / 2, 2, false>)      \
  KERNEL(expert_down_##FORMAT, ExpertsParams, LinearGroup, 128, experts<W, 2, U, 1, true>)
EXPERTS(f32, WeightF32, 4)
EXPERTS(f16, WeightF16, 4)
EXPERTS(bf16, WeightBF16, 4)
EXPERTS(q8_0, WeightQ8_0, 4)
EXPERTS(fp8, WeightFP8, 4)
EXPERTS(q4_0, WeightQ4_0, 1)
EXPERTS(q4_g128, WeightQ4G128, 1)
EXPERTS(q4_z128, WeightQ4Z128, 1)
EXPERTS(mxfp4, WeightMXFP4, 1)
EXPERTS(nvfp4, WeightNVFP4, 1)
EXPERTS(q4_k, WeightQ4_K, 1)
EXPERTS(q6_k, WeightQ6_K, 1)

FN void expert_sum(CONST ExpertSumParams& p, GROUP NoGroup&, Lane t) {
  const i32 row = t.gy, i = (t.gx * t.simds + t.simd) * SIMD + t.lane;
  let_next_start();
  wait_for_previous();
  if (row >= p.rows[0] || i >= p.vectors) return;
  const f32x4 residual = p.residual[i64(row) * (p.residual_stride / 4) + i];
  f32x4 sum;
  sum.x = sum.y = sum.z = sum.w = 0.f;
  for (i32 slot = 0; slot < p.slots; slot++) {
    const f32 weight = p.weights[i64(row) * p.weights_stride + slot];
    const f32x4 v = p.parts[(i64(row) * p.slots + slot) * (p.parts_stride / 4) + i];
    sum.x = fma32(weight, v.x, sum.x); sum.y = fma32(weight, v.y, sum.y);
    sum.z = fma32(weight, v.z, sum.z); sum.w = fma32(weight, v.w, sum.w);
  }
  sum.x += residual.x; sum.y += residual.y; sum.z += residual.z; sum.w += residual.w;
  p.y[i64(row) * (p.y_stride / 4) + i] = sum;
}
KERNEL(expert_sum, ExpertSumParams, NoGroup, 128, expert_sum)
