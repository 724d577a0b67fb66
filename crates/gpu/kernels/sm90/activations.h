// activations: rows of f32, normalised or not, as the operands of matrix instructions: f16 with a power of two for each row,
// by which nothing overflows and nothing that matters is lost, or bf16, which has the range of f32.
//
// Shapes    x (rows, k), f32, rows on 16 bytes; gain (k,); y (rows, k rounded up to 64), f16 or bf16, zeros past k.
// Scales    y · row_scales = x, to 11 bits (bf16: 8): the largest of a row is in [2^13, 2^14).
// Order     see operand.h.
// Grid      (rows · copies); a group a row, which it holds in registers: k <= 16 · threads <= 16384 (wide: twice that). Bytes: x and y, once.

struct ActivationParams {
  Ptr<const f32x4> x;
  Ptr<const f32x4> gain;    // norm_activations
  Ptr<const i32> rows;
  Ptr<const i32> select;    // row i of y is made from row select[i] of x
  Ptr<u32> y;               // pairs
  Ptr<f32> row_scales;
  i32 k, x_stride;  // in f32
  i32 y_stride;     // in 16-bit numbers
  f32 eps;
  i32 copies;       // rows of y for each of `rows`
  i32 waits;        // whether a kernel of this step makes `select`
};

// sum_norm_activations: expert_sum (see experts.h) and norm_activations of the rows that it makes. `rows.x` is not read: a thread has
// what it added up. k <= 4096, a multiple of 4.
struct SumActivationParams {
  ExpertSumParams sum;
  ActivationParams rows;
};

#if __CUDA_ARCH_FEAT_SM90_ALL

struct ActivationGroup { f32 part[2][32]; };

// y of one lane's vector. 16 lanes have 64 numbers, and each writes two pairs that follow each other, of different lanes.
template <OperandOrder ORDER>
FN void activation_store(Ptr<u32> y, i32 vector, u32 low, u32 high, i32 lane, bool in) {
  uint2 pairs = make_uint2(low, high);
  if (ORDER == FOR_FOUR_BITS || ORDER == IN_TURNS) pairs = make_uint2(__byte_perm(low, high, 0x5410), __byte_perm(low, high, 0x7632));
  if (ORDER == FOR_BYTES || ORDER == FOR_FOUR_BITS) {
    const i32 q = lane % 16, from = lane - q + q % 2 * 8 + (ORDER == FOR_BYTES ? q / 4 : q / 8 + q / 4 % 2 * 4);
    enum { SECOND = ORDER == FOR_BYTES ? 4 : 2 };
    const u32 low_a = __shfl_sync(~0u, pairs.x, from), high_a = __shfl_sync(~0u, pairs.y, from);
    const u32 low_b = __shfl_sync(~0u, pairs.x, from + SECOND), high_b = __shfl_sync(~0u, pairs.y, from + SECOND);
    pairs = q & 2 ? make_uint2(high_a, high_b) : make_uint2(low_a, low_b);
  }
  if (in) reinterpret_cast<uint2*>(y)[vector] = pairs;
}

// Normalises what a thread has of row `t.gx`, or not, and makes the operand of it. `gains` where they were read early.
template <bool NORM, bool BF16, OperandOrder ORDER, i32 VECTORS, i32 GAINS>
FN void activations_make(CONST ActivationParams& p, GROUP ActivationGroup& g, Lane t, f32x4 (&v)[VECTORS], const f32x4 (&gains)[GAINS]) {
  const i32 threads = t.simds * SIMD, thread = t.simd * SIMD + t.lane;
  if (NORM) {
    f32 squares = 0.f;
    UNROLL for (i32 j = 0; j < VECTORS; j++)
      squares = fma32(v[j].w, v[j].w, fma32(v[j].z, v[j].z, fma32(v[j].y, v[j].y, fma32(v[j].x, v[j].x, squares))));
    squares = sum_lanes<SIMD>(squares);
    if (t.lane == 0) g.part[0][t.simd] = squares;
    group_barrier();
    squares = sum_lanes<SIMD>(t.lane < t.simds ? g.part[0][t.lane] : 0.f);
    const f32 scale = inv_sqrt(squares / f32(p.k) + p.eps);
    UNROLL for (i32 j = 0; j < VECTORS; j++) {
      const f32x4 gain = GAINS == VECTORS ? gains[GAINS == VECTORS ? j : 0] : row_vector(p.gain, thread + j * threads, p.k);
      v[j].x *= scale * gain.x; v[j].y *= scale * gain.y; v[j].z *= scale * gain.z; v[j].w *= scale * gain.w;
    }
  }
  f32 factor = 1.f;
  if (!BF16) {
    f32 most = 0.f;
    UNROLL for (i32 j = 0; j < VECTORS; j++) most = max32(most, largest4(v[j]));
    most = max_lanes<SIMD>(most);
    if (t.lane == 0) g.part[1][t.simd] = most;
    group_barrier();
    most = max_lanes<SIMD>(t.lane < t.simds ? g.part[1][t.lane] : 0.f);
    // The exponent alone: 2^e <= most < 2^(e + 1). What is far too small for f16 to tell from 0 stays so.
    const i32 exponent = mini(maxi((i32)(__float_as_uint(most) >> 23), 14), 253);
    factor = bits_to_f32((u32)(most == 0.f ? 127 : 267 - exponent) << 23);
    if (thread == 0) p.row_scales[t.gx] = bits_to_f32((u32)(most == 0.f ? 127 : exponent - 13) << 23);
  }
  const Ptr<u32> y = p.y + i64(t.gx) * (p.y_stride / 2);
  UNROLL for (i32 j = 0; j < VECTORS; j++) {
    // A row is whole 64s: all 16 lanes that exchange are inside, or none.
    const i32 vector = thread + j * threads;
    if (thread - t.lane + j * threads < p.y_stride / 4) {
      const u32 low = BF16 ? to_bf16x2(v[j].x, v[j].y) : f32x2_to_f16x2(v[j].x * factor, v[j].y * factor);
      const u32 high = BF16 ? to_bf16x2(v[j].z, v[j].w) : f32x2_to_f16x2(v[j].z * factor, v[j].w * factor);
      activation_store<ORDER>(y, vector, low, high, t.lane, vector < p.y_stride / 4);
    }
  }
}

// VECTORS of a thread, at most: where they are few, it has the gain's too, before the kernel ahead has ended.
template <bool NORM, bool BF16, OperandOrder ORDER, i32 VECTORS>
FN void activations(CONST ActivationParams& p, GROUP ActivationGroup& g, Lane t) {
  enum { EARLY = NORM && VECTORS <= 4 };
  let_next_start();
  if (t.gx >= p.rows[0] * p.copies) return;  // the whole group
  if (p.waits) wait_for_previous();
  const i32 source = given(p.select) ? p.select[t.gx] : t.gx, threads = t.simds * SIMD, thread = t.simd * SIMD + t.lane;
  const Ptr<const f32x4> row = p.x + i64(source) * (p.x_stride / 4);
  f32x4 gains[EARLY ? VECTORS : 1];
  if (EARLY) UNROLL for (i32 j = 0; j < VECTORS; j++) gains[j] = row_vector(p.gain, thread + j * threads, p.k);
  wait_for_previous();
  f32x4 v[VECTORS];
  UNROLL for (i32 j = 0; j < VECTORS; j++) v[j] = row_vector(row, thread + j * threads, p.k);
  activations_make<NORM, BF16, ORDER>(p, g, t, v, gains);
}

template <bool BF16, OperandOrder ORDER>
FN void sum_norm_activations(CONST SumActivationParams& p, GROUP ActivationGroup& g, Lane t) {
  enum { VECTORS = 2, SLOTS = 4 };  // SLOTS: whose results are under way together
  let_next_start();
  if (t.gx >= p.rows.rows[0]) return;  // the whole group
  const i32 threads = t.simds * SIMD, thread = t.simd * SIMD + t.lane, row = t.gx, slots = p.sum.slots;
  f32x4 gains[VECTORS], residual[VECTORS], v[VECTORS];
  UNROLL for (i32 j = 0; j < VECTORS; j++) {
    gains[j] = row_vector(p.rows.gain, thread + j * threads, p.rows.k);
    residual[j] = v[j] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
  wait_for_previous();
  UNROLL for (i32 j = 0; j < VECTORS; j++)
    if (thread + j * threads < p.sum.vectors) residual[j] = p.sum.residual[i64(row) * (p.sum.residual_stride / 4) + thread + j * threads];
  const Ptr<const f32> weights = p.sum.weights + i64(row) * p.sum.weights_stride;
  const Ptr<const f32x4> parts = p.sum.parts + i64(row) * slots * (p.sum.parts_stride / 4);
  ROLL for (i32 first = 0; first < slots; first += SLOTS) {
    f32 weight[SLOTS];
    f32x4 part[SLOTS][VECTORS];
    UNROLL for (i32 i = 0; i < SLOTS; i++) {
      if (first + i < slots) weight[i] = weights[first + i];
      UNROLL for (i32 j = 0; j < VECTORS; j++)
        if (first + i < slots && thread + j * threads < p.sum.vectors)
          part[i][j] = parts[i64(first + i) * (p.sum.parts_stride / 4) + thread + j * threads];
    }
    UNROLL for (i32 i = 0; i < SLOTS; i++)
      UNROLL for (i32 j = 0; j < VECTORS; j++) {
        if (first + i >= slots || thread + j * threads >= p.sum.vectors) continue;
        v[j].x = fma32(weight[i], part[i][j].x, v[j].x); v[j].y = fma32(weight[i], part[i][j].y, v[j].y);
        v[j].z = fma32(weight[i], part[i][j].z, v[j].z); v[j].w = fma32(weight[i], part[i][j].w, v[j].w);
      }
  }
  UNROLL for (i32 j = 0; j < VECTORS; j++) {
    v[j].x += residual[j].x; v[j].y += residual[j].y; v[j].z += residual[j].z; v[j].w += residual[j].w;
    if (thread + j * threads < p.sum.vectors) p.sum.y[i64(row) * (p.sum.y_stride / 4) + thread + j * threads] = v[j];
  }
  activations_make<true, BF16, ORDER>(p.rows, g, t, v, gains);
}

// Of as many threads as a row needs.
#define ACTIVATION_KERNEL(NAME, PARAMS, THREADS, ...)                                                                       \
  extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ PARAMS p) {                            \
    __shared__ ActivationGroup g;                                                                                           \
    const Lane t = {(i32)blockIdx.x, 0, 0, simd_of_thread(), (i32)threadIdx.x & 31, (i32)blockDim.x >> 5};             \
    __VA_ARGS__(p, g, t);                                                                                                   \
  }
#define ACTIVATIONS(FORMAT, BF16, ORDER)                                                                        \
  ACTIVATION_KERNEL(activations_##FORMAT, ActivationParams, 1024, activations<false, BF16, ORDER, 4>)           \
  ACTIVATION_KERNEL(activations_wide_##FORMAT, ActivationParams, 1024, activations<false, BF16, ORDER, 8>)      \
  ACTIVATION_KERNEL(norm_activations_##FORMAT, ActivationParams, 1024, activations<true, BF16, ORDER, 4>)       \
  ACTIVATION_KERNEL(norm_activations_wide_##FORMAT, ActivationParams, 1024, activations<true, BF16, ORDER, 8>)
ACTIVATIONS(f16, false, AS_X)
ACTIVATIONS(bf16, true, AS_X)
ACTIVATIONS(q8_0, false, FOR_BYTES)
ACTIVATIONS(q4, false, FOR_FOUR_BITS)
ACTIVATIONS(turns, false, IN_TURNS)
#define SUM_ACTIVATIONS(FORMAT, BF16, ORDER) \
  ACTIVATION_KERNEL(sum_norm_activations_##FORMAT, SumActivationParams, 512, sum_norm_activations<BF16, ORDER>)
SUM_ACTIVATIONS(f16, false, AS_X)
SUM_ACTIVATIONS(bf16, true, AS_X)
SUM_ACTIVATIONS(q8_0, false, FOR_BYTES)
SUM_ACTIVATIONS(q4, false, FOR_FOUR_BITS)

#endif
