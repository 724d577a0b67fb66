// head_linear: y[t][h] = x[t][h] · W[h]ᵀ + b[h], each head of a row by a matrix of its own.
//
// Shapes    x (rows, heads · k), f32, or rows of which `columns` (heads · k) names what each number is; matrices (n, k) of each head in
//           any weight format, one after another at equal distances; y (rows, heads · n), f32.
// Grid      (n / outputs of a group, rows / M, heads); four lanes make an output of M rows, so that heads of few features fill a SIMD
//           group. W is read once for M rows.
// Bytes     the matrices of all heads, once for M rows. Bound by memory at small M.
// Accuracy  as linear.h.
// Order     a lane adds the chunks c ≡ lane (mod 4) in order, then the four lanes by halves, then bias, whatever M is: a row's result
//           does not depend on the rows beside it.
struct HeadLinearParams {
  Ptr<const u32x4> weight;         // of head 0
  Ptr<const f16> scales;
  Ptr<const f32> bias;
  Ptr<const f32> matrix_scales;    // (heads,), absent: 1
  Ptr<const f32> x;
  Ptr<const i32> columns;
  Ptr<const i32> rows;
  Ptr<f32> y;
  i32 n, k;
  i32 stride, bias_stride;         // from head to head, in 16 bytes and in numbers
  i32 x_stride, y_stride;
  i32 heads, groups;               // groups: of the grid's x
};

enum { HEAD_LANES = 4, HEAD_OUTPUTS = SIMD / HEAD_LANES, HEAD_VECTORS = 256 };  // vectors of x that a group stages at a time
template <i32 M> struct HeadGroup { f32x4 x[M][HEAD_VECTORS]; SumGroup sum; };

// Four numbers of a head's slice of a row, with zeros past its end.
FN f32x4 head_vector(CONST HeadLinearParams& p, i32 row, i32 head, i32 i) {
  if (!given(p.columns)) return slice_vector(offset(p.x, i64(row) * p.x_stride + head * p.k), i, p.k, p.k % 4 == 0);
  const Ptr<const f32> x = offset(p.x, i64(row) * p.x_stride);
  const Ptr<const i32> columns = offset(p.columns, head * p.k);
  f32x4 v;
  v.x = i * 4 < p.k ? x[columns[i * 4]] : 0.f;
  v.y = i * 4 + 1 < p.k ? x[columns[i * 4 + 1]] : 0.f;
  v.z = i * 4 + 2 < p.k ? x[columns[i * 4 + 2]] : 0.f;
  v.w = i * 4 + 3 < p.k ? x[columns[i * 4 + 3]] : 0.f;
  return v;
}
// Where rows come from: how many vectors of one a thread asks for at once, and what it knows of a row before the kernel ahead has ended.
template <class S> struct HeadSource {
  enum { AT_ONCE = 2 };
  typedef i32 Row;
};
FN i32 head_row(CONST HeadLinearParams&, CONST HeadLinearParams&, i32 row) { return row; }
FN f32x4 head_source(CONST HeadLinearParams& p, CONST HeadLinearParams&, i32 row, i32 head, i32 i) { return head_vector(p, row, head, i); }

// J chunks of a row of weights, four apart from `first`; those past the row's end are zero.
template <class W, i32 J> struct HeadTile { typename W::Chunk chunk[J]; };
template <class W, i32 J>
FN void head_load(THREAD HeadTile<W, J>& tile, Ptr<const u32x4> weight, Ptr<const f16> scales, i32 row, i32 first, i32 chunks) {
  UNROLL for (i32 j = 0; j < J; j++) {
    const i32 c = first + j * HEAD_LANES;
    tile.chunk[j] = W::none();
    if (c < chunks) tile.chunk[j] = W::load(weight, scales, row, chunks, c);
  }
}

// M rows from `source`, J chunks of an output in flight a lane.
template <class W, i32 M, i32 J, class S>
FN void head_linear_of(CONST HeadLinearParams& p, CONST S& source, GROUP HeadGroup<M>& g, Lane t) {
  enum { TILE = HEAD_LANES * J, V = W::LEN / 4, PIECE = HEAD_VECTORS / V, AT_ONCE = HeadSource<S>::AT_ONCE };  // in chunks
  static_assert(PIECE % TILE == 0, "a piece is whole tiles");
  const i32 head = t.gz, part = t.lane % HEAD_LANES, column = (t.gx * t.simds + t.simd) * HEAD_OUTPUTS + t.lane / HEAD_LANES;
  const i32 chunks = (p.k + W::LEN - 1) / W::LEN, output = mini(column, p.n - 1);
  const i64 at = i64(head) * p.stride;
  const Ptr<const u32x4> weight = offset(p.weight, at);
  const Ptr<const f16> scales = offset(p.scales, at * 8);
  HeadTile<W, J> tile, next;
  let_next_start();
  // Weights are asked for before the kernel ahead has ended.
  head_load<W, J>(tile, weight, scales, output, part, chunks);
  const i32 rows = p.rows[0], first_row = t.gy * M;
  // Each SIMD group brings vectors of one row to group memory, so that all rows come at once.
  const i32 own = t.simd % M, own_first = t.simd / M * SIMD + t.lane, own_threads = t.simds / M * SIMD;
  const typename HeadSource<S>::Row own_row = head_row(p, source, maxi(mini(first_row + own, rows - 1), 0));
  wait_for_previous();
  if (first_row >= rows) return;  // the whole group
  f32 sum[M];
  UNROLL for (i32 m = 0; m < M; m++) sum[m] = 0.f;
  for (i32 piece = 0; piece < chunks; piece += PIECE) {
    const i32 end = mini(piece + PIECE, (chunks + TILE - 1) / TILE * TILE);
    if (piece > 0) group_barrier();
    for (i32 first = own_first; first < (end - piece) * V; first += own_threads * AT_ONCE) {
      f32x4 v[AT_ONCE];
      UNROLL for (i32 j = 0; j < AT_ONCE; j++) v[j] = head_source(p, source, own_row, head, piece * V + first + j * own_threads);
      UNROLL for (i32 j = 0; j < AT_ONCE; j++) {
        const i32 i = first + j * own_threads, chunk = i / V;  // vector i of a chunk beside vector i of the next
        if (i < (end - piece) * V) g.x[own][chunk / HEAD_LANES * (HEAD_LANES * V) + i % V * HEAD_LANES + chunk % HEAD_LANES] = v[j];
      }
    }
    group_barrier();
    for (i32 base = piece; base < end; base += TILE) {
      if (base + TILE < chunks) head_load<W, J>(next, weight, scales, output, base + TILE + part, chunks);
      UNROLL for (i32 j = 0; j < J; j++) {
        f32 w[W::LEN];
        const f32 scale = W::widen(w, tile.chunk[j]);
        UNROLL for (i32 m = 0; m < M; m++) {
          f32 v[W::LEN];
          UNROLL for (i32 i = 0; i < V; i++) {
            const f32x4 x = g.x[m][(base - piece + j * HEAD_LANES) * V + i * HEAD_LANES + part];
            v[i * 4] = x.x; v[i * 4 + 1] = x.y; v[i * 4 + 2] = x.z; v[i * 4 + 3] = x.w;
          }
          sum[m] = fma32(linear_dot<W::LEN>(w, v), scale, sum[m]);
        }
      }
      tile = next;
    }
  }
  UNROLL for (i32 m = 0; m < M; m++) {
    f32 y = sum_lanes<HEAD_LANES>(sum[m]);
    if (HasMatrixScale<W>::VALUE) y *= p.matrix_scales[head];
    if (part == 0 && column < p.n && first_row + m < rows) {
      if (given(p.bias)) y += p.bias[i64(head) * p.bias_stride + column];
      p.y[i64(first_row + m) * p.y_stride + head * p.n + column] = y;
    }
  }
}

template <class W, i32 M, i32 J>
FN void head_linear(CONST HeadLinearParams& p, GROUP HeadGroup<M>& g, Lane t) { head_linear_of<W, M, J>(p, p, g, t); }

// Each format with chunks in flight for one row and for four.
#define EACH_HEAD_FORMAT(KERNELS)  \
  KERNELS(f32, WeightF32, 8, 4)    \
  KERNELS(f16, WeightF16, 8, 4)    \
  KERNELS(bf16, WeightBF16, 8, 4)  \
  KERNELS(q8_0, WeightQ8_0, 8, 4)  \
  KERNELS(fp8, WeightFP8, 8, 4)    \
  KERNELS(q4_0, WeightQ4_0, 4, 2)  \
  KERNELS(q4_g128, WeightQ4G128, 4, 2) \
  KERNELS(q4_z128, WeightQ4Z128, 4, 2) \
  KERNELS(mxfp4, WeightMXFP4, 4, 2) \
  KERNELS(nvfp4, WeightNVFP4, 4, 2) \
  KERNELS(q4_k, WeightQ4_K, 4, 2)  \
  KERNELS(q6_k, WeightQ6_K, 4, 2)
typedef HeadGroup<1> head_linear_m1_memory;
typedef HeadGroup<4> head_linear_m4_memory;
#define HEAD_LINEAR(FORMAT, W, ONE, FOUR)                                                               \
  KERNEL(head_linear_##FORMAT##_m1, HeadLinearParams, head_linear_m1_memory, 128, head_linear<W, 1, ONE>) \
  KERNEL(head_linear_##FORMAT##_m4, HeadLinearParams, head_linear_m4_memory, 128, head_linear<W, 4, FOUR>)
EACH_HEAD_FORMAT(HEAD_LINEAR)
