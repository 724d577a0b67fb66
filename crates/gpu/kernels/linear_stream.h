// linear_stream: what `linear` computes, of one row, at the speed of memory, where copies to group memory run beside the
// threads. norm_linear_stream: of a row that is normalised on the way. norm_linear_rope_stream: Q, K and V at once, and
// what rope_kv_write does with them.
//
// Shapes    as in linear.h, one row of x; rotary: the segments are Q, K and V, the cache is f16, head_dim is even.
// Grid      a group a multiprocessor, all of them under way at once; each SIMD group takes its share of the outputs (of the
//           pairs of gate and up, or of features that turn together), one after another.
// Copies    each SIMD group has a ring of stages in group memory, each a piece of one row of weights of each plane, or
//           several short rows. Lane 0 asks for the next piece as soon as a stage is read; the first ones before the kernel
//           ahead has ended. Two groups of 512 threads fit a multiprocessor, so that the next kernel's ring fills while
//           this one runs.
// Bytes     the weights, once; x once a group, from the cache. Bound by memory.
// Accuracy  F16 and BF16: f32, |error| <= (k + 2) · ε · Σ|w·x|. Q8_0: activations in blocks of 32 to signed bytes times
//           (largest magnitude / 127), exact dot products of bytes, their sum over blocks in f32.
// Order     a lane adds the chunks (Q8_0: blocks) c ≡ lane (mod 32) in order, then lanes by halves, then bias, activation or
//           rotation, residual. Not the order of linear.h where Q8_0 or a norm is concerned: never where results must not
//           depend on the batch.
struct LinearStreamParams {
  LinearSegment segments[3];  // `groups` counts outputs, or pairs
  Ptr<const f32x4> x;
  Ptr<const f32> residual;
  Ptr<const i32> rows;
  Ptr<const f32x4> gain;      // (k,) where there is a norm
  Ptr<const i32> select;      // the row is select[0], or 0 where this is absent
  Ptr<const f32x2> angles;    // rotary: as rope_kv_write has them
  Ptr<const i32> positions;
  Ptr<const i32> slots;
  Ptr<f32> q_out;
  Ptr<f16> keys;
  Ptr<f16> values;
  i32 k, x_stride;            // x_stride in vectors
  i32 units, stages;          // of all segments; of the ring of each SIMD group
  i32 stage_rows, x_at;       // rows of a stage, 1 where a row has several pieces; bytes
  i32 ring_at, head_dim;
  i32 kv_heads, block_len;
  f32 eps;
  i32 groups;                 // of the grid
};

#ifdef HAS_BULK_COPIES
enum { STREAM_SIMDS = 16, STREAM_THREADS = 512, STREAM_STAGES = 8, STREAM_SCALES = 128 };
enum StreamKind { STREAM_PLAIN, STREAM_GLU, STREAM_ROPE };
// Planes of a stage, and bytes of weights of each: of two planes half as many, so that two stages fit.
template <StreamKind KIND> struct StreamStage { enum { PLANES = KIND == STREAM_PLAIN ? 1 : 2, PIECE = 2048 / PLANES }; };

// How group memory begins; x and the rings follow, at x_at and ring_at.
struct LinearStreamGroup { CopyBarrier full[STREAM_SIMDS][STREAM_STAGES]; f32 part[STREAM_SIMDS]; };
static_assert(sizeof(LinearStreamGroup) <= 1152, "x begins at byte 1152");

// Activations as chunks are multiplied with them: f32 for F16 and BF16 …
template <class W> struct StreamActivations {
  enum { CHUNK = 16, SCALES = 0 };  // bytes of a chunk of weights; of the scales of a stage
  struct Chunk { f32x4 low, high; };
  // Vector i beside vector i of the next chunk, so that 32 lanes read 512 bytes in a row; whole chunks, with zeros.
  static PART void stage(GROUP LinearStreamGroup& g, i32 x_at, i32 k, i32 i, f32x4 v, i32 lane) {
    const GroupPtr<f32x4> x = group_at<f32x4>(g, x_at);
    const i32 chunk = i >> 1;
    if (i * 4 < (k + 7) / 8 * 8) x[chunk / SIMD * (SIMD * 2) + (i & 1) * SIMD + chunk % SIMD] = v;
  }
  static PART f32 dot(GROUP LinearStreamGroup& g, i32 weights, i32 scales, i32 c, Chunk x, i32 lane, f32 sum) {
    typename W::Chunk chunk = W::none();
    chunk.pairs = group_at<u32x4>(g, weights)[c];
    f32 w[8];
    W::widen(w, chunk);
    f32 a = w[0] * x.low.x, b = w[1] * x.low.y;
    a = fma32(w[2], x.low.z, a); b = fma32(w[3], x.low.w, b);
    a = fma32(w[4], x.high.x, a); b = fma32(w[5], x.high.y, b);
    a = fma32(w[6], x.high.z, a); b = fma32(w[7], x.high.w, b);
    return sum + (a + b);
  }
  static PART Chunk load(GROUP LinearStreamGroup& g, i32 x_at, i32 k, i32 c, i32 lane) {
    const GroupPtr<f32x4> x = group_at<f32x4>(g, x_at);
    const i32 at = c / SIMD * (SIMD * 2) + c % SIMD;
    return {x[at], x[at + SIMD]};
  }
};

// … and signed bytes in blocks of 32 for Q8_0, codes first, then scales.
template <> struct StreamActivations<WeightQ8_0> {
  enum { CHUNK = 32, SCALES = STREAM_SCALES };
  struct Chunk { u32x4 low, high; f32 scale; };
  // Eight lanes hold a block.
  static PART void stage(GROUP LinearStreamGroup& g, i32 x_at, i32 k, i32 i, f32x4 v, i32 lane) {
    const f32 largest = max_lanes<8>(max32(max32(abs32(v.x), abs32(v.y)), max32(abs32(v.z), abs32(v.w))));
    const f32 inverse = largest > 0.f ? 127.f / largest : 0.f;
    const u32 a = u32(round_to_i32(v.x * inverse)), b = u32(round_to_i32(v.y * inverse));
    const u32 c = u32(round_to_i32(v.z * inverse)), d = u32(round_to_i32(v.w * inverse));
    if (i * 4 < k) {
      group_at<u32>(g, x_at)[i] = (a & 255u) | (b & 255u) << 8 | (c & 255u) << 16 | d << 24;
      if (i % 8 == 0) group_at<f32>(g, x_at + k)[i / 8] = largest / 127.f;
    }
  }
  // Lanes four apart begin with different halves of their blocks, so that they read different banks.
  static PART f32 dot(GROUP LinearStreamGroup& g, i32 weights, i32 scales, i32 c, Chunk x, i32 lane, f32 sum) {
    const i32 first = lane >> 2 & 1;
    const GroupPtr<u32x4> halves = group_at<u32x4>(g, weights + c * 32);
    const u32x4 low = halves[first], high = halves[first ^ 1];
    i32 a = dot_i8x4(low.x, x.low.x, 0), b = dot_i8x4(high.x, x.high.x, 0);
    a = dot_i8x4(low.y, x.low.y, a); b = dot_i8x4(high.y, x.high.y, b);
    a = dot_i8x4(low.z, x.low.z, a); b = dot_i8x4(high.z, x.high.z, b);
    a = dot_i8x4(low.w, x.low.w, a); b = dot_i8x4(high.w, x.high.w, b);
    return fma32(f32(a + b), to_f32(group_at<f16>(g, scales)[c]) * x.scale, sum);
  }
  static PART Chunk load(GROUP LinearStreamGroup& g, i32 x_at, i32 k, i32 c, i32 lane) {
    const i32 first = lane >> 2 & 1;
    const GroupPtr<u32x4> halves = group_at<u32x4>(g, x_at + c * 32);
    return {halves[first], halves[first ^ 1], group_at<f32>(g, x_at + k)[c]};
  }
};

// Outputs one after another whose weights lie one after another: what a stage is filled with.
struct StreamRun { i32 segment, row, count; };

template <StreamKind KIND>
FN StreamRun stream_run(CONST LinearStreamParams& p, i32 unit, i32 end) {
  StreamRun run;
  run.segment = 0;
  while (run.segment < 2 && unit >= p.segments[run.segment].groups) {
    unit -= p.segments[run.segment].groups;
    end -= p.segments[run.segment].groups;
    run.segment++;
  }
  run.row = unit;
  run.count = mini(p.stage_rows, mini(end, p.segments[run.segment].groups) - unit);
  if (KIND == STREAM_ROPE) {
    const i32 half = p.head_dim / 2, head = unit / half, pair = unit - head * half;
    run.row = head * p.head_dim + pair;
    run.count = mini(run.count, half - pair);
  }
  return run;
}

// Sizes of a launch in bytes.
struct StreamSizes { i32 row, scales, pieces; };

template <class W, StreamKind KIND> FN StreamSizes stream_sizes(CONST LinearStreamParams& p) {
  StreamSizes size;
  size.row = (p.k + W::LEN - 1) / W::LEN * 16;
  size.scales = StreamActivations<W>::SCALES > 0 ? q8_scales(p.k) * 2 : 0;
  size.pieces = p.stage_rows > 1 ? 1 : (size.row + StreamStage<KIND>::PIECE - 1) / StreamStage<KIND>::PIECE;
  return size;
}

// What lane 0 asks for next.
struct StreamCursor { i32 unit, piece, stage; };

template <class W, StreamKind KIND>
FN void stream_ask(CONST LinearStreamParams& p, GROUP LinearStreamGroup& g, THREAD StreamCursor& next, StreamSizes size, i32 end, Lane t) {
  enum { SCALES = StreamActivations<W>::SCALES, PIECE = StreamStage<KIND>::PIECE, PLANE = PIECE + SCALES, PLANES = StreamStage<KIND>::PLANES };
  if (next.unit >= end) return;
  const StreamRun run = stream_run<KIND>(p, next.unit, end);
  CONST LinearSegment& s = p.segments[run.segment];
  const i32 offset_in_row = next.piece * PIECE, bytes = mini(PIECE, run.count * size.row - offset_in_row);
  const i32 scales_in_row = next.piece * (PIECE / 16);
  const i32 scales = mini(size.pieces > 1 ? PIECE / 16 : run.count * size.scales, run.count * size.scales - scales_in_row);
  const i32 to = p.ring_at + (t.simd * p.stages + next.stage) * (PLANES * PLANE);
  GROUP CopyBarrier& barrier = g.full[t.simd][next.stage];
  expect_copies(barrier, PLANES * (bytes + (SCALES > 0 ? scales : 0)));
  UNROLL for (i32 plane = 0; plane < PLANES; plane++) {
    const bool up = KIND == STREAM_GLU && plane == 1;
    const i64 row = run.row + (KIND == STREAM_ROPE && plane == 1 ? p.head_dim / 2 : 0);
    copy_to_group(group_at<u32x4>(g, to + plane * PLANE), offset(up ? s.up : s.weight, (row * size.row + offset_in_row) / 16),
                  bytes, barrier);
    if (SCALES > 0)
      copy_to_group(group_at<u32x4>(g, to + plane * PLANE + PIECE),
                    offset(vectors16(up ? s.up_scales : s.scales), (row * size.scales + scales_in_row) / 16), scales, barrier);
  }
  if (++next.piece == size.pieces) { next.piece = 0; next.unit += run.count; }
  if (++next.stage == p.stages) next.stage = 0;
}

// One output, or a pair, to where it belongs; a lane of its own does it.
template <StreamKind KIND>
FN void stream_store(CONST LinearStreamParams& p, StreamRun run, i32 row, f32 a, f32 b, f32 residual) {
  CONST LinearSegment& s = p.segments[run.segment];
  if (given(s.bias)) a += s.bias[row];
  if (KIND == STREAM_PLAIN) s.y[row] = a + residual;
  if (KIND == STREAM_GLU) {
    if (given(s.up_bias)) b += s.up_bias[row];
    s.y[row] = silu(a) * b + residual;
  }
  if (KIND == STREAM_ROPE) {
    const i32 half = p.head_dim / 2, head = row / p.head_dim, i = row - head * p.head_dim;
    if (given(s.bias)) b += s.bias[row + half];
    s.y[row] = a;
    s.y[row + half] = b;
    if (run.segment < 2) {
      const f32x2 turn = p.angles[i64(p.positions[0]) * half + i];
      const f32 low = a * turn.x - b * turn.y;
      b = b * turn.x + a * turn.y;
      a = low;
    }
    if (run.segment == 0) {
      p.q_out[row] = a;
      p.q_out[row + half] = b;
    } else {
      const i64 to = kv_at(p.slots[0], head, p.kv_heads, p.block_len, p.head_dim) + i;
      const Ptr<f16> cache = run.segment == 1 ? p.keys : p.values;
      store(cache, to, a);
      store(cache, to + half, b);
    }
  }
}

template <class W, StreamKind KIND, bool NORM>
FN void linear_stream(CONST LinearStreamParams& p, GROUP LinearStreamGroup& g, Lane t) {
  typedef StreamActivations<W> Activations;
  enum { CHUNK = Activations::CHUNK, PIECE = StreamStage<KIND>::PIECE, PLANE = PIECE + Activations::SCALES, PLANES = StreamStage<KIND>::PLANES };
  enum { XV = 4 };  // vectors of x that a thread has at once; with a norm, of all of x
  const i32 worker = t.gx * STREAM_SIMDS + t.simd, workers = p.groups * STREAM_SIMDS, thread = t.simd * SIMD + t.lane;
  const i32 end = i32(i64(worker + 1) * p.units / workers);
  const StreamSizes size = stream_sizes<W, KIND>(p);
  StreamCursor next;
  next.unit = i32(i64(worker) * p.units / workers);
  next.piece = next.stage = 0;
  i32 unit = next.unit;
  if (t.lane == 0) {
    for (i32 i = 0; i < p.stages; i++) begin_barrier(g.full[t.simd][i]);
    show_barriers();
    for (i32 i = 0; i < p.stages; i++) stream_ask<W, KIND>(p, g, next, size, end, t);
  }
  let_next_start();
  f32x4 gain[XV], v[XV];
  if (NORM) UNROLL for (i32 j = 0; j < XV; j++) gain[j] = row_vector(p.gain, thread + j * STREAM_THREADS, p.k);
  const i32 rows = p.rows[0], selected = given(p.select) ? p.select[0] : 0;
  wait_for_previous();
  // Without a row, nobody reads the result: that of row 0 does no harm.
  const Ptr<const f32x4> x = offset(p.x, i64(rows > 0 ? selected : 0) * p.x_stride);
  UNROLL for (i32 j = 0; j < XV; j++) v[j] = row_vector(x, thread + j * STREAM_THREADS, p.k);
  if (NORM) {
    f32 squares = 0;
    UNROLL for (i32 j = 0; j < XV; j++)
      squares = fma32(v[j].w, v[j].w, fma32(v[j].z, v[j].z, fma32(v[j].y, v[j].y, fma32(v[j].x, v[j].x, squares))));
    squares = sum_lanes<SIMD>(squares);
    if (t.lane == 0) g.part[t.simd] = squares;
    group_barrier();
    f32 sum = g.part[0];
    UNROLL for (i32 s = 1; s < STREAM_SIMDS; s++) sum += g.part[s];
    const f32 scale = inv_sqrt(sum / f32(p.k) + p.eps);
    UNROLL for (i32 j = 0; j < XV; j++) {
      v[j].x = v[j].x * scale * gain[j].x; v[j].y = v[j].y * scale * gain[j].y;
      v[j].z = v[j].z * scale * gain[j].z; v[j].w = v[j].w * scale * gain[j].w;
    }
  }
  for (i32 base = 0;;) {
    UNROLL for (i32 j = 0; j < XV; j++)
      if ((base + j * STREAM_THREADS) * 4 < p.k)
        Activations::stage(g, p.x_at, p.k, base + thread + j * STREAM_THREADS, v[j], t.lane);
    base += XV * STREAM_THREADS;
    if (NORM || base * 4 >= p.k) break;
    UNROLL for (i32 j = 0; j < XV; j++) v[j] = row_vector(x, base + thread + j * STREAM_THREADS, p.k);
  }
  group_barrier();
  i32 stage = 0;
  u32 parity = 0;
  while (unit < end) {
    const StreamRun run = stream_run<KIND>(p, unit, end);
    f32 residual = 0.f;
    if (given(p.residual) && t.lane < run.count) residual = p.residual[run.row + t.lane];
    f32 sum[PLANES];
    UNROLL for (i32 plane = 0; plane < PLANES; plane++) sum[plane] = 0;
    for (i32 piece = 0; piece < size.pieces; piece++) {
      wait_for_copies(g.full[t.simd][stage], parity);
      const i32 at = p.ring_at + (t.simd * p.stages + stage) * (PLANES * PLANE);
      const i32 first = piece * (PIECE / CHUNK);
      const i32 chunks = mini(PIECE, size.row - piece * PIECE) / CHUNK;
      for (i32 r = 0; r < run.count; r++) {
        const i32 weights = at + r * size.row, scales = at + PIECE + r * size.scales;
        if (chunks == PIECE / CHUNK) {
          UNROLL for (i32 c = 0; c < PIECE / CHUNK; c += SIMD) {
            const typename Activations::Chunk chunk = Activations::load(g, p.x_at, p.k, first + c + t.lane, t.lane);
            UNROLL for (i32 plane = 0; plane < PLANES; plane++)
              sum[plane] = Activations::dot(g, weights + plane * PLANE, scales + plane * PLANE, c + t.lane, chunk, t.lane, sum[plane]);
          }
        } else {
          UNROLL for (i32 c = 0; c < PIECE / CHUNK; c += SIMD)
            if (c + t.lane < chunks) {
              const typename Activations::Chunk chunk = Activations::load(g, p.x_at, p.k, first + c + t.lane, t.lane);
              UNROLL for (i32 plane = 0; plane < PLANES; plane++)
                sum[plane] = Activations::dot(g, weights + plane * PLANE, scales + plane * PLANE, c + t.lane, chunk, t.lane, sum[plane]);
            }
        }
        if (piece == size.pieces - 1) {
          const f32 a = sum_lanes<SIMD>(sum[0]), b = i32(PLANES) == 2 ? sum_lanes<SIMD>(sum[PLANES - 1]) : 0.f;
          if (t.lane == r) stream_store<KIND>(p, run, run.row + r, a, b, residual);
          UNROLL for (i32 plane = 0; plane < PLANES; plane++) sum[plane] = 0;
        }
      }
      simd_barrier();
      if (t.lane == 0) stream_ask<W, KIND>(p, g, next, size, end, t);
      if (++stage == p.stages) { stage = 0; parity ^= 1; }
    }
    unit += run.count;
  }
}

// x of up to 8,192 features where they are normalised: as `dispatch.rs` has it.
#define LINEAR_STREAM(FORMAT, W)                                                                                             \
  KERNEL_BESIDE(linear_stream_##FORMAT, LinearStreamParams, LinearStreamGroup, 512, 2, linear_stream<W, STREAM_PLAIN, false>)     \
  KERNEL_BESIDE(linear_glu_stream_##FORMAT, LinearStreamParams, LinearStreamGroup, 512, 2, linear_stream<W, STREAM_GLU, false>)   \
  KERNEL_BESIDE(norm_linear_stream_##FORMAT, LinearStreamParams, LinearStreamGroup, 512, 2, linear_stream<W, STREAM_PLAIN, true>) \
  KERNEL_BESIDE(norm_linear_glu_stream_##FORMAT, LinearStreamParams, LinearStreamGroup, 512, 2, linear_stream<W, STREAM_GLU, true>) \
  KERNEL_BESIDE(norm_linear_rope_stream_##FORMAT, LinearStreamParams, LinearStreamGroup, 512, 2, linear_stream<W, STREAM_ROPE, true>)
LINEAR_STREAM(f16, WeightF16)
LINEAR_STREAM(bf16, WeightBF16)
LINEAR_STREAM(q8_0, WeightQ8_0)
#endif
