// gemm_simdgroup: linear (see linear.h: the same segments, epilogues and meaning) for many rows, on Apple's matrices of 8 by
// 8. Metal alone has this text; linear.h computes the same.
//
// Shapes    as linear.h, in every weight format.
// Grid      (tiles of all segments, rows / T): a group makes T rows, 32 or 64, of 64 output features, or in a gated unit of
//           32, gate and up. Each of its four SIMD groups has half of the rows and half of the features.
// Tiles     16 input features of both operands lie in group memory as f32, whatever the weights are: products are exact but
//           for what Q8_0's code · scale rounds, nothing overflows, and both operands of an instruction have the type of its
//           sums, as the specification has it. While one stage is multiplied, the next comes from memory to registers, and
//           then to the other half of group memory: one barrier a stage.
// Bytes     W once for T rows; x once for each 64 features, from the cache. Bound by arithmetic from about 32 rows on.
// Accuracy  f32; |error| <= (k + 2) · ε · Σ|w·x|.
// Order     eights of input features in order, then what the matrix unit does within one: the same for every row, but not
//           that of linear.h.
enum {
  TILE_FEATURES = 64,
  TILE_K = 16,         // of a stage
  TILE_LINE = 20,      // f32 from row to row of a stage: eight rows begin in different banks, and on 16 bytes
  TILE_OUT_LINE = 68   // the same of sums on their way out
};

// Two stages: rows of weights, then rows of activations. At the end, sums.
template <i32 T> struct GemmTiles { f32 at[2 * (TILE_FEATURES + T) * TILE_LINE]; };

// Eight numbers of a row of weights as they come: what a thread has of a stage.
template <class W> struct GemmPiece { enum { CHUNKS = W::LEN == 4 ? 2 : 1 }; typename W::Chunk chunk[CHUNKS]; };

template <class W>
FN GemmPiece<W> gemm_load(CONST LinearSegment& s, bool up, i32 row, i32 k, i32 chunks) {
  GemmPiece<W> piece;
  UNROLL for (i32 j = 0; j < GemmPiece<W>::CHUNKS; j++) {
    const i32 c = k / W::LEN + j;
    piece.chunk[j] = W::none();
    const Ptr<const u32x4> values = up ? s.up : s.weight;
    if (c < chunks) piece.chunk[j] = W::load(values, up ? s.up_scales : s.scales, row, chunks, c);
  }
  return piece;
}

// `from`: the first of the eight in their chunk. One of sixteen is two threads', one of 32 four's.
template <class W>
FN void gemm_widen(THREAD f32 (&to)[8], THREAD const GemmPiece<W>& piece, i32 from) {
  UNROLL for (i32 j = 0; j < GemmPiece<W>::CHUNKS; j++) {
    enum { TAKEN = W::LEN < 8 ? W::LEN : 8 };
    f32 w[W::LEN];
    const f32 scale = W::widen(w, piece.chunk[j]);
    UNROLL for (i32 first = 0; first < W::LEN; first += TAKEN)
      if (W::LEN <= 8 || first == from)
        UNROLL for (i32 i = 0; i < TAKEN; i++) to[j * TAKEN + i] = w[first + i] * scale;
  }
}

template <class G> FN void gemm_put(GROUP G& g, i32 at, f32 a, f32 b, f32 c, f32 d) {
  f32x4 v;
  v.x = a; v.y = b; v.z = c; v.w = d;
  group_at<f32x4>(g, at * 4)[0] = v;
}

template <class W, i32 T, bool GLU>
FN void gemm_simdgroup(CONST LinearParams& p, GROUP GemmTiles<T>& g, Lane t) {
  enum {
    FEATURES = GLU ? TILE_FEATURES / 2 : TILE_FEATURES,
    STAGE = (TILE_FEATURES + T) * TILE_LINE, X = TILE_FEATURES * TILE_LINE,
    VECTORS = T * TILE_K / 4 / GROUP_THREADS,  // of activations, of a thread
    ROWS = T / 16, COLUMNS = 4                 // matrices of a SIMD group
  };
  const i32 rows = p.rows[0], first_row = t.gy * T, index = t.simd * SIMD + t.lane;
  if (first_row >= rows) return;  // the whole group
  i32 segment = 0, tile = t.gx;
  while (segment < 2 && tile >= p.segments[segment].groups) tile -= p.segments[segment++].groups;
  CONST LinearSegment& s = p.segments[segment];
  const i32 first = tile * FEATURES, chunks = (p.k + W::LEN - 1) / W::LEN, steps = (p.k + TILE_K - 1) / TILE_K;
  // Of weights a thread has half of a stage's row; of activations the four numbers `quarter` of rows 32 apart.
  const i32 line = index / 2, k_half = index % 2 * 8, quarter = index % 4;
  const bool up = GLU && line >= FEATURES;
  const i32 weight_row = mini(first + (up ? line - FEATURES : line), s.n - 1);
  Ptr<const f32x4> x[VECTORS];
  UNROLL for (i32 j = 0; j < VECTORS; j++)
    x[j] = offset(p.x, i64(mini(first_row + index / 4 + j * (GROUP_THREADS / 4), rows - 1)) * p.x_stride);

  const i32 row_half = t.simd / 2 * (T / 2), column_half = t.simd % 2 * (TILE_FEATURES / 2);
  simdgroup_float8x8 sum[ROWS][COLUMNS];
  UNROLL for (i32 i = 0; i < ROWS; i++)
    UNROLL for (i32 j = 0; j < COLUMNS; j++) sum[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.f);

  GemmPiece<W> piece = gemm_load<W>(s, up, weight_row, k_half, chunks);
  f32x4 v[VECTORS];
  UNROLL for (i32 j = 0; j < VECTORS; j++) v[j] = row_vector(x[j], quarter, p.k);
  for (i32 step = 0; step <= steps; step++) {
    const i32 stage = (step & 1) * STAGE, before = STAGE - stage;
    if (step < steps) {
      f32 w[8];
      gemm_widen<W>(w, piece, (step * TILE_K + k_half) % W::LEN);
      const i32 to = stage + line * TILE_LINE + k_half;
      gemm_put(g, to, w[0], w[1], w[2], w[3]);
      gemm_put(g, to + 4, w[4], w[5], w[6], w[7]);
      UNROLL for (i32 j = 0; j < VECTORS; j++)
        gemm_put(g, stage + X + (index / 4 + j * (GROUP_THREADS / 4)) * TILE_LINE + quarter * 4,
                 v[j].x, v[j].y, v[j].z, v[j].w);
    }
    if (step + 1 < steps) {
      piece = gemm_load<W>(s, up, weight_row, (step + 1) * TILE_K + k_half, chunks);
      UNROLL for (i32 j = 0; j < VECTORS; j++) v[j] = row_vector(x[j], (step + 1) * (TILE_K / 4) + quarter, p.k);
    }
    if (step > 0) {
      UNROLL for (i32 k = 0; k < TILE_K; k += 8) {
        simdgroup_float8x8 w[COLUMNS];
        UNROLL for (i32 j = 0; j < COLUMNS; j++)
          simdgroup_load(w[j], group_at<f32>(g, (before + (column_half + j * 8) * TILE_LINE + k) * 4), TILE_LINE,
                         ulong2(0, 0), true);
        UNROLL for (i32 i = 0; i < ROWS; i++) {
          simdgroup_float8x8 a;
          simdgroup_load(a, group_at<f32>(g, (before + X + (row_half + i * 8) * TILE_LINE + k) * 4), TILE_LINE);
          UNROLL for (i32 j = 0; j < COLUMNS; j++) simdgroup_multiply_accumulate(sum[i][j], a, w[j], sum[i][j]);
        }
      }
    }
    group_barrier();  // all have this stage, and none reads the one before
  }

  UNROLL for (i32 i = 0; i < ROWS; i++)
    UNROLL for (i32 j = 0; j < COLUMNS; j++)
      simdgroup_store(sum[i][j], group_at<f32>(g, ((row_half + i * 8) * TILE_OUT_LINE + column_half + j * 8) * 4),
                      TILE_OUT_LINE);
  group_barrier();
  for (i32 item = index; item < T * FEATURES; item += GROUP_THREADS) {
    const i32 line_out = item / FEATURES, place = item % FEATURES, at = line_out * TILE_OUT_LINE + place;
    const i32 row = first_row + line_out, column = first + place;
    if (row < rows && column < s.n) {
      f32 y = matrix_scaled<W>(g.at[at], s.matrix_scale);
      if (given(s.bias)) y += s.bias[column];
      if (GLU) {
        f32 by = matrix_scaled<W>(g.at[at + TILE_FEATURES / 2], s.up_matrix_scale);
        if (given(s.up_bias)) by += s.up_bias[column];
        y = gated(y, by, s.activation);
      }
      if (given(p.residual)) y += p.residual[i64(row) * p.residual_stride + column];
      s.y[i64(row) * s.y_stride + column] = y;
    }
  }
}

// Rows and output features of a group: as `src/kernels/gemm_simdgroup.rs` has them.
#define GEMM_SIMDGROUP(FORMAT, W, T)                                                                                     \
  KERNEL(gemm_simdgroup_##FORMAT##_t##T, LinearParams, GemmTiles<T>, 128, gemm_simdgroup<W, T, false>)                   \
  KERNEL(gemm_simdgroup_glu_##FORMAT##_t##T, LinearParams, GemmTiles<T>, 128, gemm_simdgroup<W, T, true>)
GEMM_SIMDGROUP(f32, WeightF32, 32)
GEMM_SIMDGROUP(f32, WeightF32, 64)
GEMM_SIMDGROUP(f16, WeightF16, 32)
GEMM_SIMDGROUP(f16, WeightF16, 64)
GEMM_SIMDGROUP(bf16, WeightBF16, 32)
GEMM_SIMDGROUP(bf16, WeightBF16, 64)
GEMM_SIMDGROUP(q8_0, WeightQ8_0, 32)
GEMM_SIMDGROUP(q8_0, WeightQ8_0, 64)
GEMM_SIMDGROUP(fp8, WeightFP8, 32)
GEMM_SIMDGROUP(fp8, WeightFP8, 64)
GEMM_SIMDGROUP(q4_0, WeightQ4_0, 32)
GEMM_SIMDGROUP(q4_0, WeightQ4_0, 64)
GEMM_SIMDGROUP(q4_g128, WeightQ4G128, 32)
GEMM_SIMDGROUP(q4_g128, WeightQ4G128, 64)
GEMM_SIMDGROUP(q4_z128, WeightQ4Z128, 32)
GEMM_SIMDGROUP(q4_z128, WeightQ4Z128, 64)
GEMM_SIMDGROUP(mxfp4, WeightMXFP4, 32)
GEMM_SIMDGROUP(mxfp4, WeightMXFP4, 64)
GEMM_SIMDGROUP(nvfp4, WeightNVFP4, 32)
GEMM_SIMDGROUP(nvfp4, WeightNVFP4, 64)
GEMM_SIMDGROUP(q4_k, WeightQ4_K, 32)
GEMM_SIMDGROUP(q4_k, WeightQ4_K, 64)
GEMM_SIMDGROUP(q6_k, WeightQ6_K, 32)
GEMM_SIMDGROUP(q6_k, WeightQ6_K, 64)
