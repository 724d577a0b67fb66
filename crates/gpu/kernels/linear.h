// linear: y = x · Wᵀ + b for up to three weights that read the same rows (Q, K and V), with an epilogue: `residual` is
// added, or with two planes y = activation(x · Wᵀ + b) · (x · Upᵀ + c). norm_linear: of one row, normalised on the way.
//
// Shapes    x (rows, k), f32, rows on 16 bytes; W (n, k) in any weight format; b (n,), f32; y (rows, n), f32.
// Grid      (groups of all segments, rows / M); each SIMD group makes R outputs of M rows, W is read once for M rows.
// Bytes     n·k of W, once; x once a group, from the cache. Bound by memory at small M.
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
  i32 y_stride, activation;  // of the gate, where there is `up`
  f32 matrix_scale, up_matrix_scale;  // `HasMatrixScale`
};
struct LinearParams {
  LinearSegment segments[3];
  Ptr<const f32x4> x;
  Ptr<const f32> residual;
  Ptr<const i32> rows;
  Ptr<const f32x4> gain;    // norm_linear: (k,)
  Ptr<const i32> select;    // norm_linear: the row is select[0], or 0 where this is absent
  i32 k, x_stride;
  i32 residual_stride;
  f32 eps;
};

// A piece of the rows of activations, M of them one after another, in the order in which lanes read them: vector i of a
// chunk beside vector i of the next chunk, so that 32 lanes read 512 bytes in a row.
enum { LINEAR_VECTORS = STAGED_BYTES / 16 };
struct LinearGroup { f32x4 x[LINEAR_VECTORS]; SumGroup sum; };

// U chunks of each of N rows of weights that one lane has in flight.
template <class W, i32 N, i32 U> struct LinearTile { typename W::Chunk chunk[N][U]; };

// Where rows of weights lie.
struct LinearRows {
  Ptr<const u32x4> weight;
  Ptr<const f16> scales;
  Ptr<const u32x4> up;
  Ptr<const f16> up_scales;
  i32 n;
};

// Chunks 32 apart from `first`; with TAIL, those past the row's end are zero. Rows `R` and on are of the up weight.
template <bool TAIL, class W, i32 R, i32 N, i32 U>
FN void linear_load(THREAD LinearTile<W, N, U>& tile, THREAD const LinearRows& s, i32 row, i32 first, i32 chunks) {
  UNROLL for (i32 u = 0; u < U; u++) {
    const i32 c = first + u * SIMD;
    UNROLL for (i32 r = 0; r < N; r++) {
      if (TAIL) tile.chunk[r][u] = W::none();
      if (!TAIL || c < chunks) {
        const i64 at = mini(row + r % R, s.n - 1);
        tile.chunk[r][u] = r < R ? W::load(s.weight, s.scales, at, chunks, c) : W::load(s.up, s.up_scales, at, chunks, c);
      }
    }
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

// Adds one tile, whose first chunk is `first` chunks into the piece (a multiple of 32, without the lane).
template <class W, i32 M, i32 N, i32 U>
FN void linear_add(THREAD f32 (&sum)[M][N], THREAD const LinearTile<W, N, U>& tile, GROUP const LinearGroup& g, i32 first, i32 lane) {
  enum { V = W::LEN / 4 };
  UNROLL for (i32 u = 0; u < U; u++) {
    f32 w[N][W::LEN], scale[N];
    UNROLL for (i32 r = 0; r < N; r++) scale[r] = W::widen(w[r], tile.chunk[r][u]);
    UNROLL for (i32 m = 0; m < M; m++) {
      f32 v[W::LEN];
      UNROLL for (i32 i = 0; i < V; i++) {
        const f32x4 x = g.x[m * (LINEAR_VECTORS / M) + (first + u * SIMD) * V + i * SIMD + lane];
        v[i * 4] = x.x; v[i * 4 + 1] = x.y; v[i * 4 + 2] = x.z; v[i * 4 + 3] = x.w;
      }
      UNROLL for (i32 r = 0; r < N; r++) sum[m][r] = fma32(linear_dot<W::LEN>(w[r], v), scale[r], sum[m][r]);
    }
  }
}

// Fills group memory with `vectors` of each row from vector `begin` on, zeros past the rows' end.
template <class W, i32 M, bool NORM>
FN void linear_stage(CONST LinearParams& p, GROUP LinearGroup& g, THREAD const Ptr<const f32x4> (&x)[M], f32 scale, i32 begin, i32 vectors, Lane t) {
  enum { V = W::LEN / 4 };
  UNROLL for (i32 m = 0; m < M; m++)
    for (i32 i = t.simd * SIMD + t.lane; i < vectors; i += GROUP_THREADS) {
      f32x4 v = row_vector(x[m], begin + i, p.k);
      if (NORM) {
        const f32x4 gain = row_vector(p.gain, begin + i, p.k);
        v.x = v.x * scale * gain.x; v.y = v.y * scale * gain.y; v.z = v.z * scale * gain.z; v.w = v.w * scale * gain.w;
      }
      const i32 chunk = i / V;
      g.x[m * (LINEAR_VECTORS / M) + chunk / SIMD * (SIMD * V) + i % V * SIMD + chunk % SIMD] = v;
    }
}

// Where a group works: a segment, and the first of its SIMD group's rows there.
struct LinearPlace { i32 segment, row; };

FN LinearPlace linear_place(CONST LinearParams& p, i32 outputs, Lane t) {
  LinearPlace place;
  i32 group = t.gx;
  place.segment = 0;
  while (place.segment < 2 && group >= p.segments[place.segment].groups) group -= p.segments[place.segment++].groups;
  place.row = (group * t.simds + t.simd) * outputs;
  return place;
}

// Adds up the lanes, then bias, activation and residual.
template <class W, i32 M, i32 R, i32 P>
FN void linear_finish(CONST LinearParams& p, CONST LinearSegment& s, THREAD const f32 (&sum)[M][R * P], i32 row, i32 first_row, i32 rows, Lane t) {
  UNROLL for (i32 m = 0; m < M; m++)
    UNROLL for (i32 r = 0; r < R; r++) {
      f32 y = sum_lanes<SIMD>(sum[m][r]), up = P == 2 ? sum_lanes<SIMD>(sum[m][R * P - R + r]) : 0.f;
      y = matrix_scaled<W>(y, s.matrix_scale);
      up = matrix_scaled<W>(up, s.up_matrix_scale);
      const i32 column = row + r, y_row = first_row + m;
      if (t.lane == 0 && column < s.n && y_row < rows) {
        if (given(s.bias)) y += s.bias[column];
        if (P == 2) {
          if (given(s.up_bias)) up += s.up_bias[column];
          y = gated(y, up, s.activation);
        }
        if (given(p.residual)) y += p.residual[i64(y_row) * p.residual_stride + column];
        s.y[i64(y_row) * s.y_stride + column] = y;
      }
    }
}

// M rows, R outputs a SIMD group, U chunks of each in flight, P planes (2 with an up weight). With NORM the one row is
// normalised on the way, by every group for itself: cheaper than a kernel before it.
template <class W, i32 M, i32 R, i32 U, i32 P, bool NORM>
FN void linear(CONST LinearParams& p, GROUP LinearGroup& g, Lane t) {
  enum { N = R * P, TILE = SIMD * U, PIECE = LINEAR_VECTORS / M / (W::LEN / 4) };  // in chunks
  static_assert(PIECE % TILE == 0, "a piece is whole tiles");
  const LinearPlace place = linear_place(p, R, t);
  CONST LinearSegment& s = p.segments[place.segment];
  const i32 row = place.row, chunks = (p.k + W::LEN - 1) / W::LEN, whole = p.k / W::LEN;
  const LinearRows weights = {s.weight, s.scales, s.up, s.up_scales, s.n};
  LinearTile<W, N, U> tile, next;
  let_next_start();
  // Weights are asked for before the kernel ahead has ended.
  if (TILE <= whole) linear_load<false, W, R>(tile, weights, row, t.lane, chunks);
  else linear_load<true, W, R>(tile, weights, row, t.lane, chunks);
  wait_for_previous();
  const i32 rows = p.rows[0], first_row = t.gy * M;
  if (first_row >= rows) return;  // the whole group
  Ptr<const f32x4> x[M];
  f32 sum[M][N];
  UNROLL for (i32 m = 0; m < M; m++) {
    const i32 x_row = given(p.select) ? p.select[0] : mini(first_row + m, rows - 1);
    x[m] = offset(p.x, i64(x_row) * p.x_stride);
    UNROLL for (i32 r = 0; r < N; r++) sum[m][r] = 0;
  }
  const f32 scale = NORM ? row_scale(x[0], p.k, p.eps, g.sum, t) : 1.f;
  for (i32 piece = 0; piece < chunks; piece += PIECE) {
    const i32 end = mini(piece + PIECE, (chunks + TILE - 1) / TILE * TILE);
    if (piece > 0) group_barrier();
    linear_stage<W, M, NORM>(p, g, x, scale, piece * (W::LEN / 4), (end - piece) * (W::LEN / 4), t);
    group_barrier();
    for (i32 base = piece; base < end; base += TILE) {
      const i32 after = base + TILE;
      if (after + TILE <= whole) linear_load<false, W, R>(next, weights, row, after + t.lane, chunks);
      else if (after < chunks) linear_load<true, W, R>(next, weights, row, after + t.lane, chunks);
      linear_add<W, M, N, U>(sum, tile, g, base - piece, t.lane);
      tile = next;
    }
  }
  linear_finish<W, M, R, P>(p, s, sum, row, first_row, rows, t);
}

// R outputs a SIMD group: as `src/kernels/linear.rs` has it.
#define LINEAR(FORMAT, W, R, U)                                                                           \
  KERNEL(linear_##FORMAT##_m1, LinearParams, LinearGroup, 128, linear<W, 1, R, U, 1, false>)              \
  KERNEL(linear_##FORMAT##_m4, LinearParams, LinearGroup, 128, linear<W, 4, R, U / 2, 1, false>)          \
  KERNEL(linear_glu_##FORMAT##_m1, LinearParams, LinearGroup, 128, linear<W, 1, R, U / 2, 2, false>)      \
  KERNEL(linear_glu_##FORMAT##_m4, LinearParams, LinearGroup, 128, linear<W, 4, R, U / 4, 2, false>)      \
  KERNEL(norm_linear_##FORMAT##_m1, LinearParams, LinearGroup, 128, linear<W, 1, R, U, 1, true>)          \
  KERNEL(norm_linear_glu_##FORMAT##_m1, LinearParams, LinearGroup, 128, linear<W, 1, R, U / 2, 2, true>)
// Chunks of 32 weights: with two outputs a SIMD group, one of each is all that fits registers.
#define LINEAR_OF_32(FORMAT, W)                                                                           \
  KERNEL(linear_##FORMAT##_m1, LinearParams, LinearGroup, 128, linear<W, 1, 2, 1, 1, false>)              \
  KERNEL(linear_##FORMAT##_m4, LinearParams, LinearGroup, 128, linear<W, 4, 2, 1, 1, false>)              \
  KERNEL(linear_glu_##FORMAT##_m1, LinearParams, LinearGroup, 128, linear<W, 1, 2, 1, 2, false>)          \
  KERNEL(linear_glu_##FORMAT##_m4, LinearParams, LinearGroup, 128, linear<W, 4, 2, 1, 2, false>)          \
  KERNEL(norm_linear_##FORMAT##_m1, LinearParams, LinearGroup, 128, linear<W, 1, 2, 1, 1, true>)          \
  KERNEL(norm_linear_glu_##FORMAT##_m1, LinearParams, LinearGroup, 128, linear<W, 1, 2, 1, 2, true>)
LINEAR(f32, WeightF32, 2, 4)
LINEAR(f16, WeightF16, 2, 4)
LINEAR(bf16, WeightBF16, 2, 4)
LINEAR(q8_0, WeightQ8_0, 2, 4)
LINEAR(fp8, WeightFP8, 2, 4)
LINEAR_OF_32(q4_0, WeightQ4_0)
LINEAR_OF_32(q4_g128, WeightQ4G128)
LINEAR_OF_32(q4_z128, WeightQ4Z128)
LINEAR_OF_32(mxfp4, WeightMXFP4)
LINEAR_OF_32(nvfp4, WeightNVFP4)
LINEAR_OF_32(q4_k, WeightQ4_K)
LINEAR_OF_32(q6_k, WeightQ6_K)
