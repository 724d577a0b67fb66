// linear: y = x · Wᵀ + b for up to three weights that read the same rows (Q, K and V), with an epilogue: `residual` is
// added, or with two planes y = silu(x · Wᵀ + b) · (x · Upᵀ + c).
//
// Shapes    x (rows, k), f32, rows on 16 bytes; W (n, k) in any weight format; b (n,), f32; y (rows, n), f32.
// Grid      (groups of all segments, rows / M); each SIMD group makes R outputs of M rows, W is read once for M rows.
// Bytes     n·k of W, once; x from the L1 cache.  Bound by memory at small M.
// Accuracy  f32; |error| <= (k + 2) · ε · Σ|w·x|.
// Order     a lane adds the chunks c ≡ lane (mod 32) in order, then lanes by halves, then bias, then residual, whatever M,
//           R and U are: a row's result does not depend on the rows beside it.
struct LinearSegment {
  Ptr<const u32x4> weight;
  Ptr<const f16> scales;
  Ptr<const f32> bias;
  Ptr<const u32x4> up;
  Ptr<const f16> up_scales;
  Ptr<const f32> up_bias;
  Ptr<f32> y;
  i32 n, groups;
  i32 y_stride, padding;
};
struct LinearParams {
  LinearSegment segments[3];
  Ptr<const f32x4> x;
  Ptr<const f32> residual;
  Ptr<const i32> rows;
  i32 k, x_stride;
  i32 residual_stride, padding;
};

// U chunks of each of N rows of weights that one lane has in flight.
template <class W, i32 N, i32 U> struct LinearTile { typename W::Chunk chunk[N][U]; };

// Chunks 32 apart from `first`; with TAIL, those past the row's end are zero. Rows `R` and on are of the up weight.
template <bool TAIL, class W, i32 R, i32 N, i32 U>
FN void linear_load(THREAD LinearTile<W, N, U>& tile, CONST LinearSegment& s, i32 row, i32 first, i32 chunks) {
  UNROLL for (i32 u = 0; u < U; u++) {
    const i32 c = first + u * SIMD;
    UNROLL for (i32 r = 0; r < N; r++) {
      if (TAIL) tile.chunk[r][u] = W::none();
      if (!TAIL || c < chunks) {
        const i64 at = i64(mini(row + r % R, s.n - 1)) * chunks + c;
        tile.chunk[r][u] = r < R ? W::load(s.weight, s.scales, at) : W::load(s.up, s.up_scales, at);
      }
    }
  }
}

// The activations of chunk `c` of one row; with TAIL, zero past the row's end.
template <bool TAIL, i32 LEN>
FN void linear_x(THREAD f32 (&to)[LEN], Ptr<const f32x4> x, i32 c, i32 k) {
  UNROLL for (i32 i = 0; i < LEN / 4; i++) {
    const i32 at = c * (LEN / 4) + i;
    f32x4 v;
    v.x = v.y = v.z = v.w = 0.f;
    if (!TAIL || at * 4 < k) v = x[at];
    to[i * 4] = v.x;
    to[i * 4 + 1] = !TAIL || at * 4 + 1 < k ? v.y : 0.f;
    to[i * 4 + 2] = !TAIL || at * 4 + 2 < k ? v.z : 0.f;
    to[i * 4 + 3] = !TAIL || at * 4 + 3 < k ? v.w : 0.f;
  }
}

// Two chains of additions a chunk, so that they overlap.
template <i32 LEN>
FN f32 linear_dot(THREAD const f32 (&w)[LEN], THREAD const f32 (&x)[LEN]) {
  f32 a = 0, b = 0;
  UNROLL for (i32 i = 0; i < LEN; i += 2) {
    a = fma32(w[i], x[i], a);
    b = fma32(w[i + 1], x[i + 1], b);
  }
  return a + b;
}

template <bool TAIL, class W, i32 M, i32 N, i32 U>
FN void linear_add(THREAD f32 (&sum)[M][N], THREAD const LinearTile<W, N, U>& tile, THREAD const Ptr<const f32x4> (&x)[M], i32 first, i32 k) {
  UNROLL for (i32 u = 0; u < U; u++) {
    f32 w[N][W::LEN], scale[N];
    UNROLL for (i32 r = 0; r < N; r++) scale[r] = W::widen(w[r], tile.chunk[r][u]);
    UNROLL for (i32 m = 0; m < M; m++) {
      f32 v[W::LEN];
      linear_x<TAIL, W::LEN>(v, x[m], first + u * SIMD, k);
      UNROLL for (i32 r = 0; r < N; r++) sum[m][r] = fma32(linear_dot<W::LEN>(w[r], v), scale[r], sum[m][r]);
    }
  }
}

// M rows, R outputs a SIMD group, U chunks of each in flight, P planes (2 with an up weight).
template <class W, i32 M, i32 R, i32 U, i32 P>
FN void linear(CONST LinearParams& p, GROUP NoGroup&, Lane t) {
  enum { N = R * P };
  i32 segment = 0, group = t.gx;
  while (segment < 2 && group >= p.segments[segment].groups) group -= p.segments[segment++].groups;
  CONST LinearSegment& s = p.segments[segment];
  const i32 row = (group * t.simds + t.simd) * R, chunks = (p.k + W::LEN - 1) / W::LEN, whole = p.k / W::LEN;
  LinearTile<W, N, U> tile, next;
  let_next_start();
  // Weights are asked for before the kernel ahead has ended.
  if (SIMD * U <= whole) linear_load<false, W, R>(tile, s, row, t.lane, chunks);
  else linear_load<true, W, R>(tile, s, row, t.lane, chunks);
  wait_for_previous();
  const i32 rows = p.rows[0], first_row = t.gy * M;
  if (first_row >= rows) return;  // the whole group
  Ptr<const f32x4> x[M];
  f32 sum[M][N];
  UNROLL for (i32 m = 0; m < M; m++) {
    x[m] = offset(p.x, i64(mini(first_row + m, rows - 1)) * p.x_stride);
    UNROLL for (i32 r = 0; r < N; r++) sum[m][r] = 0;
  }
  for (i32 base = 0; base < chunks; base += SIMD * U) {
    const i32 after = base + SIMD * U;
    if (after + SIMD * U <= whole) linear_load<false, W, R>(next, s, row, after + t.lane, chunks);
    else if (after < chunks) linear_load<true, W, R>(next, s, row, after + t.lane, chunks);
    if (after <= whole) linear_add<false, W, M, N, U>(sum, tile, x, base + t.lane, p.k);
    else linear_add<true, W, M, N, U>(sum, tile, x, base + t.lane, p.k);
    tile = next;
  }
  UNROLL for (i32 m = 0; m < M; m++)
    UNROLL for (i32 r = 0; r < R; r++) {
      f32 y = sum_lanes<SIMD>(sum[m][r]), up = P == 2 ? sum_lanes<SIMD>(sum[m][N - R + r]) : 0.f;
      const i32 column = row + r, y_row = first_row + m;
      if (t.lane == 0 && column < s.n && y_row < rows) {
        if (given(s.bias)) y += s.bias[column];
        if (P == 2) {
          if (given(s.up_bias)) up += s.up_bias[column];
          y = silu(y) * up;
        }
        if (given(p.residual)) y += p.residual[i64(y_row) * p.residual_stride + column];
        s.y[i64(y_row) * s.y_stride + column] = y;
      }
    }
}

#define LINEAR(FORMAT, W, R1, U1, R4, U4)                                                    \
  KERNEL(linear_##FORMAT##_m1, LinearParams, NoGroup, 128, linear<W, 1, R1, U1, 1>)          \
  KERNEL(linear_##FORMAT##_m4, LinearParams, NoGroup, 128, linear<W, 4, R4, U4, 1>)          \
  KERNEL(linear_glu_##FORMAT##_m1, LinearParams, NoGroup, 128, linear<W, 1, R1, U1 / 2, 2>)  \
  KERNEL(linear_glu_##FORMAT##_m4, LinearParams, NoGroup, 128, linear<W, 4, R4, U4 / 2, 2>)
LINEAR(f32, WeightF32, 2, 4, 2, 2)
LINEAR(f16, WeightF16, 2, 4, 2, 2)
LINEAR(bf16, WeightBF16, 2, 4, 2, 2)
LINEAR(q8_0, WeightQ8_0, 2, 4, 2, 2)
