// linear_stream: what `linear` computes, of one row or two, at the speed of memory, where copies to group memory run beside the
// threads. norm_linear_stream: of a row that is normalised on the way. norm_linear_rope_stream: Q, K and V at once, and
// what rope_kv_write does with them.
//
// Shapes    as in linear.h, one row of x, or two (_m2); rotary: the segments are Q, K and V, the cache is f16, head_dim is even.
// Grid      a group a multiprocessor, all of them under way at once; each SIMD group takes its share of the outputs (of the
//           pairs of gate and up, or of features that turn together), one after another.
// Copies    each SIMD group has a ring of stages in group memory, each a piece of one row of weights of each plane, or
//           several short rows. Lane 0 asks for the next piece as soon as a stage is read; the first ones before the kernel
//           ahead has ended. Two groups of 512 threads fit a multiprocessor, so that the next kernel's ring fills while
//           this one runs.
// Bytes     the weights, once; x once a group, from the cache. Bound by memory.
// Accuracy  F16 and BF16: f32, |error| <= (k + 2) · ε · Σ|w·x|. Blocks: activations in blocks of 32 to signed bytes times
//           (largest magnitude / 127), exact dot products with codes, their sum over blocks in f32. FP8: activations of a block
//           to f16 times its largest magnitude, four sums of eight products in f16, everything else in f32.
// Order     a lane adds the chunks (of blocks: those of 32) c ≡ lane (mod 32) in order, then lanes by halves, then bias,
//           activation or rotation, residual. A norm's 1 / rms multiplies that sum, not the activations. Not the order of
//           linear.h where blocks or a norm are concerned: never where results must not depend on the batch. Of two rows each has
//           the numbers that it has alone.
struct LinearStreamParams {
  LinearSegment segments[3];  // `groups` counts outputs, or pairs
  Ptr<const f32x4> x;
  Ptr<const f32> residual;
  Ptr<const i32> rows;
  Ptr<const f32x4> gain;      // (k,) where there is a norm
  Ptr<const i32> select;      // row i is select[i], or i where this is absent
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
  // Where the last segment is in another format: workers and units of those before, and what the other has of x and a stage.
  i32 first_workers, first_units;
  i32 other_x_at, other_stage_rows;
  // Of two rows: bytes from one to the other in group memory, and numbers from result to result.
  i32 x_row, q_stride, residual_stride;
  // Whether the next kernel may start only when the kernel ahead of this one has ended. Gated units of experts gain nothing from an
  // early start, because they ask for weights only when they have chosen; those that began early were a third slower (lab 0086).
  i32 next_is_late;
};

#ifdef HAS_BULK_COPIES
enum { STREAM_SIMDS = 16, STREAM_THREADS = 512, STREAM_STAGES = 8, STREAM_ROWS = 4 };
enum StreamKind { STREAM_PLAIN, STREAM_GLU, STREAM_ROPE, STREAM_EXPERT_GLU, STREAM_EXPERT_DOWN };
// Whether a unit is a gated unit; whether its weights are those of an expert (experts_stream.h).
template <StreamKind KIND> struct StreamHas {
  enum { GLU = KIND == STREAM_GLU || KIND == STREAM_EXPERT_GLU, EXPERTS = KIND == STREAM_EXPERT_GLU || KIND == STREAM_EXPERT_DOWN };
};

// How group memory begins; x and the rings follow, at x_at and ring_at.
struct LinearStreamGroup {
  CopyBarrier full[STREAM_SIMDS][STREAM_STAGES];
  f32 part[STREAM_SIMDS];
  union {
    i32 expert[STREAM_SIMDS];  // of each slot
    f32 second_part[STREAM_SIMDS];  // of a second row
  };
};
static_assert(sizeof(LinearStreamGroup) <= 1152, "x begins at byte 1152");

// Activations as chunks are multiplied with them, those from `first` on, one a lane: f32 for F16 and BF16 …
template <class W> struct StreamActivations {
  // Bytes of a chunk of weights, and of weights of a stage; of scales for each 32 of those, and of a stage at least; formats of one
  // layout of activations share them.
  enum { CHUNK = 16, STAGE = 2048, SCALES_OF_32 = 0, SCALES_MIN = 0, LAYOUT = 0 };
  static PART i32 row_scales(i32 k) { return 0; }  // in 16 bytes
  struct Chunk { f32x4 low, high; };
  // Vector i beside vector i of the next chunk, so that 32 lanes read 512 bytes in a row; whole chunks, with zeros.
  template <i32 N> static PART void stage(GROUP LinearStreamGroup& g, i32 x_at, i32 k, u32 i, THREAD const f32x4 (&v)[N], i32 lane) {
    const u32 chunk = i / 2;
    const GroupPtr<f32x4> x = group_at<f32x4>(g, x_at);
    const u32 at = chunk / SIMD * (SIMD * 2) + i % 2 * SIMD + chunk % SIMD;
    UNROLL for (i32 j = 0; j < N; j++)
      if (i32(i + j * STREAM_THREADS) * 4 < (k + 7) / 8 * 8) x[at + j * STREAM_THREADS] = v[j];
  }
  static PART f32 dot(GROUP LinearStreamGroup& g, i32 weights, i32 scales, i32 first, Chunk x, i32 lane, f32 sum) {
    typename W::Chunk chunk = W::none();
    chunk.pairs = group_at<u32x4>(g, weights)[first + lane];
    f32 w[8];
    W::widen(w, chunk);
    f32 a = w[0] * x.low.x, b = w[1] * x.low.y;
    a = fma32(w[2], x.low.z, a); b = fma32(w[3], x.low.w, b);
    a = fma32(w[4], x.high.x, a); b = fma32(w[5], x.high.y, b);
    a = fma32(w[6], x.high.z, a); b = fma32(w[7], x.high.w, b);
    return sum + (a + b);
  }
  static PART Chunk load(GROUP LinearStreamGroup& g, i32 x_at, i32 k, i32 first, i32 lane) {
    const GroupPtr<f32x4> x = group_at<f32x4>(g, x_at);
    const i32 at = first * 2 + lane;
    return {x[at], x[at + SIMD]};
  }
};

// … signed bytes in blocks of 32 for the others. Eight lanes hold a block: the bytes of a lane's vector, what the block's are
// multiplied by. Of N vectors at once, so that what is waited for is waited for together: the row is all that is missing. A number
// that is none makes its block none: codes alone would hide it.
template <i32 N> FN void stream_largest(THREAD f32 (&largest)[N], THREAD const f32x4 (&v)[N]) {
  UNROLL for (i32 j = 0; j < N; j++)
    largest[j] = max_or_nan32(max_or_nan32(abs32(v[j].x), abs32(v[j].y)), max_or_nan32(abs32(v[j].z), abs32(v[j].w)));
  UNROLL for (i32 m = 4; m; m >>= 1)
    UNROLL for (i32 j = 0; j < N; j++) largest[j] = max_or_nan32(largest[j], shuffle_xor(largest[j], m));
}
// `of` by the largest magnitude of a block; finite where that is smaller than any that matters.
FN f32 stream_inverse(f32 of, f32 largest) { return near_quotient(of, max32(largest, 1e-30f)); }
template <i32 N> FN void stream_codes(THREAD u32 (&codes)[N], THREAD f32 (&scales)[N], THREAD const f32x4 (&v)[N]) {
  stream_largest<N>(scales, v);
  UNROLL for (i32 j = 0; j < N; j++) {
    const f32 inverse = stream_inverse(127.f, scales[j]);
    // The sum with 1.5 · 2^23 is rounded to a whole number, whose lowest byte is the code.
    const f32 whole = 12582912.f;
    const u32 a = f32_to_bits(fma32(v[j].x, inverse, whole)), b = f32_to_bits(fma32(v[j].y, inverse, whole));
    const u32 c = f32_to_bits(fma32(v[j].z, inverse, whole)), d = f32_to_bits(fma32(v[j].w, inverse, whole));
    codes[j] = (a & 255u) | (b & 255u) << 8 | (c & 255u) << 16 | d << 24;
    scales[j] *= 1.f / 127.f;
  }
}

// Of Q8_0: codes first, then scales.
template <> struct StreamActivations<WeightQ8_0> {
  enum { CHUNK = 32, STAGE = 2048, SCALES_OF_32 = 2, SCALES_MIN = 128, LAYOUT = 1 };
  static PART i32 row_scales(i32 k) { return q8_scales(k) / 8; }
  struct Chunk { u32x4 low, high; f32 scale; };
  template <i32 N> static PART void stage(GROUP LinearStreamGroup& g, i32 x_at, i32 k, u32 i, THREAD const f32x4 (&v)[N], i32 lane) {
    u32 codes[N];
    f32 scales[N];
    stream_codes<N>(codes, scales, v);
    const GroupPtr<u32> x = group_at<u32>(g, x_at);
    const GroupPtr<f32> of_blocks = group_at<f32>(g, x_at + k);
    UNROLL for (i32 j = 0; j < N; j++)
      if (i32(i + j * STREAM_THREADS) * 4 < k) {
        x[i + j * STREAM_THREADS] = codes[j];
        if (i % 8 == 0) of_blocks[i / 8 + j * (STREAM_THREADS / 8)] = scales[j];
      }
  }
  // Lanes four apart begin with different halves of their blocks, so that they read different banks.
  static PART f32 dot(GROUP LinearStreamGroup& g, i32 weights, i32 scales, i32 first, Chunk x, i32 lane, f32 sum) {
    const i32 half = lane >> 2 & 1;
    const GroupPtr<u32x4> halves = group_at<u32x4>(g, weights + (first + lane) * 32);
    const u32x4 low = halves[half], high = halves[half ^ 1];
    i32 a = dot_i8x4(low.x, x.low.x, 0), b = dot_i8x4(high.x, x.high.x, 0);
    a = dot_i8x4(low.y, x.low.y, a); b = dot_i8x4(high.y, x.high.y, b);
    a = dot_i8x4(low.z, x.low.z, a); b = dot_i8x4(high.z, x.high.z, b);
    a = dot_i8x4(low.w, x.low.w, a); b = dot_i8x4(high.w, x.high.w, b);
    return fma32(f32(a + b), to_f32(group_at<f16>(g, scales)[first + lane]) * x.scale, sum);
  }
  static PART Chunk load(GROUP LinearStreamGroup& g, i32 x_at, i32 k, i32 first, i32 lane) {
    const i32 half = lane >> 2 & 1;
    const GroupPtr<u32x4> halves = group_at<u32x4>(g, x_at + (first + lane) * 32);
    return {halves[half], halves[half ^ 1], group_at<f32>(g, x_at + k)[first + lane]};
  }
};

// Of FP8: pairs of f16; of each 32 blocks first the first eight numbers, so that lanes read 512 bytes in a row. Then scales, which
// have what weights are multiplied by beside theirs.
template <> struct StreamActivations<WeightFP8> {
  enum { CHUNK = 32, STAGE = 2048, SCALES_OF_32 = 2, SCALES_MIN = 128, LAYOUT = 2 };
  static PART i32 row_scales(i32 k) { return q8_scales(k) / 8; }
  struct Chunk { u32x4 pairs[4]; f32 scale; };
  static PART i32 scales_at(i32 x_at, i32 k) { return x_at + (k + 1023) / 1024 * 2048; }
  template <i32 N> static PART void stage(GROUP LinearStreamGroup& g, i32 x_at, i32 k, u32 i, THREAD const f32x4 (&v)[N], i32 lane) {
    f32 largest[N];
    stream_largest<N>(largest, v);
    const u32 block = i / 8, word = i % 8, at = block / SIMD * 512 + word / 2 * 128 + block % SIMD * 4 + word % 2 * 2;
    const GroupPtr<u32> x = group_at<u32>(g, x_at);
    const GroupPtr<f32> of_blocks = group_at<f32>(g, scales_at(x_at, k));
    UNROLL for (i32 j = 0; j < N; j++)
      if (i32(i + j * STREAM_THREADS) * 4 < k) {
        const f32 inverse = stream_inverse(1.f, largest[j]);
        x[at + j * (STREAM_THREADS * 2)] = f32x2_to_f16x2(v[j].x * inverse, v[j].y * inverse);
        x[at + j * (STREAM_THREADS * 2) + 1] = f32x2_to_f16x2(v[j].z * inverse, v[j].w * inverse);
        if (word == 0) of_blocks[block + j * (STREAM_THREADS / 8)] = largest[j] / 256.f;
      }
  }
  // The half of a block that a lane begins with: as of Q8_0.
  static PART Chunk load(GROUP LinearStreamGroup& g, i32 x_at, i32 k, i32 first, i32 lane) {
    const i32 half = (lane >> 2 & 1) * 2;
    const GroupPtr<u32x4> x = group_at<u32x4>(g, x_at + first * 64 + lane * 16);
    return {{x[half * SIMD], x[(half + 1) * SIMD], x[(half ^ 2) * SIMD], x[(half ^ 3) * SIMD]},
            group_at<f32>(g, scales_at(x_at, k))[first + lane]};
  }
  static PART void add(THREAD u32& a, THREAD u32& b, u32 word, u32 x_low, u32 x_high) {
    u32 low, high;
    e4m3x4_to_f16x4(low, high, word);
    a = fma_f16x2(low, x_low, a);
    b = fma_f16x2(high, x_high, b);
  }
  static PART f32 dot(GROUP LinearStreamGroup& g, i32 weights, i32 scales, i32 first, Chunk x, i32 lane, f32 sum) {
    const i32 half = lane >> 2 & 1;
    const GroupPtr<u32x4> halves = group_at<u32x4>(g, weights + (first + lane) * 32);
    const u32x4 low = halves[half], high = halves[half ^ 1];
    u32 a = 0, b = 0;
    add(a, b, low.x, x.pairs[0].x, x.pairs[0].y); add(a, b, low.y, x.pairs[0].z, x.pairs[0].w);
    add(a, b, low.z, x.pairs[1].x, x.pairs[1].y); add(a, b, low.w, x.pairs[1].z, x.pairs[1].w);
    add(a, b, high.x, x.pairs[2].x, x.pairs[2].y); add(a, b, high.y, x.pairs[2].z, x.pairs[2].w);
    add(a, b, high.z, x.pairs[3].x, x.pairs[3].y); add(a, b, high.w, x.pairs[3].z, x.pairs[3].w);
    const f32x2 c = f16x2_to_f32(a), d = f16x2_to_f32(b);
    return fma32((c.x + c.y) + (d.x + d.y), to_f32(group_at<f16>(g, scales)[first + lane]) * x.scale, sum);
  }
};

// Of four bits: of each 32 blocks first what meets the lower halves of bytes of weights, then what meets the upper ones, so
// that lanes read 512 bytes in a row; then of each block a 16th of its scale, and its scale times its sum.
struct StreamFourBits {
  enum { CHUNK = 16, STAGE = 2048, SCALES_OF_32 = 4, SCALES_MIN = 256, LAYOUT = 3 };
  static PART i32 row_scales(i32 k) { return q8_scales(k) / 8; }
  struct Chunk { u32x4 low, high; f32x2 scale; };
  static PART i32 scales_at(i32 x_at, i32 k) { return x_at + (k + 1023) / 1024 * 1024; }
  template <i32 N> static PART void stage(GROUP LinearStreamGroup& g, i32 x_at, i32 k, u32 i, THREAD const f32x4 (&v)[N], i32 lane) {
    u32 codes[N];
    f32 scales[N], sums[N];
    stream_codes<N>(codes, scales, v);
    // Two sums in one word: each is less than 2^12.
    UNROLL for (i32 j = 0; j < N; j += 2) {
      const i32 low = dot_i8x4(codes[j], 0x01010101u, 0), high = j + 1 < N ? dot_i8x4(codes[j + 1], 0x01010101u, 0) : 0;
      i32 both = low + high * 65536;
      UNROLL for (i32 m = 4; m; m >>= 1) both += i32(f32_to_bits(shuffle_xor(bits_to_f32(u32(both)), m)));
      sums[j] = f32(i32(u32(both) << 16) >> 16);
      if (j + 1 < N) sums[j + 1] = f32((both + 32768) >> 16);
    }
    UNROLL for (i32 j = 0; j < N; j++) sums[j] *= scales[j];
    put<N>(g, x_at, k, i, codes, scales, sums, 1.f / 16.f);
  }
  template <i32 N>
  static PART void put(GROUP LinearStreamGroup& g, i32 x_at, i32 k, u32 i, THREAD const u32 (&codes)[N], THREAD const f32 (&scales)[N],
                       THREAD const f32 (&sums)[N], f32 part) {
    const u32 block = i / 8, at = block / SIMD * 256 + i / 4 % 2 * 128 + block % SIMD * 4 + i % 4;
    const GroupPtr<u32> x = group_at<u32>(g, x_at);
    const GroupPtr<f32x2> of_blocks = group_at<f32x2>(g, scales_at(x_at, k));
    UNROLL for (i32 j = 0; j < N; j++)
      if (i32(i + j * STREAM_THREADS) * 4 < k) {
        x[at + j * STREAM_THREADS] = codes[j];
        f32x2 both;
        both.x = scales[j] * part;
        both.y = sums[j];
        if (i % 8 == 0) of_blocks[block + j * (STREAM_THREADS / 8)] = both;
      }
  }
  static PART Chunk load(GROUP LinearStreamGroup& g, i32 x_at, i32 k, i32 first, i32 lane) {
    const GroupPtr<u32x4> halves = group_at<u32x4>(g, x_at);
    const i32 at = first * 2 + lane;
    return {halves[at], halves[at + SIMD], group_at<f32x2>(g, scales_at(x_at, k))[first + lane]};
  }
  // Σ code · activation, without the scale of the weights. Upper halves are multiplied where they are, by 16.
  static PART f32 dot_codes(GROUP LinearStreamGroup& g, i32 weights, i32 c, Chunk x) {
    const u32x4 codes = group_at<u32x4>(g, weights)[c];
    const u32 low = 0x0f0f0f0fu, high = 0xf0f0f0f0u;
    i32 a = dot_u8x4(codes.x & low, x.low.x, 0), b = dot_u8x4(codes.x & high, x.high.x, 0);
    a = dot_u8x4(codes.y & low, x.low.y, a); b = dot_u8x4(codes.y & high, x.high.y, b);
    a = dot_u8x4(codes.z & low, x.low.z, a); b = dot_u8x4(codes.z & high, x.high.z, b);
    a = dot_u8x4(codes.w & low, x.low.w, a); b = dot_u8x4(codes.w & high, x.high.w, b);
    return f32(a * 16 + b) * x.scale.x;
  }
};
template <> struct StreamActivations<WeightQ4_0> : StreamFourBits {
  static PART f32 dot(GROUP LinearStreamGroup& g, i32 weights, i32 scales, i32 first, Chunk x, i32 lane, f32 sum) {
    const f32 v = fma32(-8.f, x.scale.y, dot_codes(g, weights, first + lane, x));
    return fma32(to_f32(group_at<f16>(g, scales)[first + lane]), v, sum);
  }
};
// Of one scale for 128.
template <> struct StreamActivations<WeightQ4G128> : StreamFourBits {
  enum { SCALES_OF_32 = 1, SCALES_MIN = 128 };
  static PART i32 row_scales(i32 k) { return q4_g128_scales(k) / 8; }
  static PART f32 dot(GROUP LinearStreamGroup& g, i32 weights, i32 scales, i32 first, Chunk x, i32 lane, f32 sum) {
    const f32 v = fma32(-8.f, x.scale.y, dot_codes(g, weights, first + lane, x));
    return fma32(to_f32(group_at<f16>(g, scales)[first / 4 + (lane >> 2)]), v, sum);
  }
};
// Of one scale and one zero point for 128.
template <> struct StreamActivations<WeightQ4Z128> : StreamFourBits {
  enum { SCALES_OF_32 = 2, SCALES_MIN = 128 };
  static PART i32 row_scales(i32 k) { return (k / 32 + 15) / 16; }
  static PART f32 dot(GROUP LinearStreamGroup& g, i32 weights, i32 scales, i32 first, Chunk x, i32 lane, f32 sum) {
    const f32x2 both = f16x2_to_f32(group_at<u32>(g, scales)[first / 4 + (lane >> 2)]);
    return fma32(both.x, fma32(-both.y, x.scale.y, dot_codes(g, weights, first + lane, x)), sum);
  }
};
// Of E2M1: twice its magnitudes come from a table, four of them for the lower and four for the upper half of a word, those below and
// those above zero apart. So what meets the lower half of word j are the bytes of numbers 4 j, 16 + 4 j, 4 j + 1, 17 + 4 j, and the
// upper half those behind: of a vector and of the one `APART` further, by turns.
template <> struct StreamActivations<WeightMXFP4> : StreamFourBits {
  enum { SCALES_OF_32 = 2, SCALES_MIN = 128, LAYOUT = 4 };
  static PART i32 row_scales(i32 k) { return (k / 32 + 15) / 16; }
  template <i32 N> static PART void stage(GROUP LinearStreamGroup& g, i32 x_at, i32 k, u32 i, THREAD const f32x4 (&v)[N], i32 lane) {
    stage_by_turns<4, N>(g, x_at, k, i, v);
  }
  template <i32 APART, i32 N>
  static PART void stage_by_turns(GROUP LinearStreamGroup& g, i32 x_at, i32 k, u32 i, THREAD const f32x4 (&v)[N]) {
    u32 codes[N];
    f32 scales[N], none[N];
    stream_codes<N>(codes, scales, v);
    UNROLL for (i32 j = 0; j < N; j++) {
      const u32 own = codes[j], other = f32_to_bits(shuffle_xor(bits_to_f32(own), APART));
      const bool upper = i / APART % 2 == 1;
      const u32 even = upper ? other >> 16 : own, odd = upper ? own >> 16 : other;
      codes[j] = (even & 255u) | (odd & 255u) << 8 | (even & 0xff00u) << 8 | (odd & 0xff00u) << 16;
      none[j] = 0.f;
    }
    put<N>(g, x_at, k, i, codes, scales, none, 1.f / 2.f);
  }
  static PART void add(THREAD i32& above, THREAD i32& below, u32 codes, u32 low, u32 high) {
    const u32 small = 0x03020100u, large = 0x0c080604u, turned = codes ^ 0x88888888u;
    above = dot_i8x4(pick_bytes(small, large, codes), low, above);
    below = dot_i8x4(pick_bytes(small, large, turned), low, below);
    above = dot_i8x4(pick_bytes(small, large, codes >> 16), high, above);
    below = dot_i8x4(pick_bytes(small, large, turned >> 16), high, below);
  }
  static PART f32 dot(GROUP LinearStreamGroup& g, i32 weights, i32 scales, i32 first, Chunk x, i32 lane, f32 sum) {
    const u32x4 codes = group_at<u32x4>(g, weights)[first + lane];
    i32 above = 0, below = 0;
    add(above, below, codes.x, x.low.x, x.high.x);
    add(above, below, codes.y, x.low.y, x.high.y);
    add(above, below, codes.z, x.low.z, x.high.z);
    add(above, below, codes.w, x.low.w, x.high.w);
    return fma32(e8m0(group_at<unsigned char>(g, scales)[first + lane]), f32(above - below) * x.scale.x, sum);
  }
};
// Of two scales for 32: the lower halves of the bytes of two words make one word, and so do the upper ones, so that a sum is of 16
// weights. What meets them are the bytes of numbers 4 j, 4 j + 4, 4 j + 1, 4 j + 5, and then those behind.
template <> struct StreamActivations<WeightNVFP4> : StreamActivations<WeightMXFP4> {
  enum { SCALES_OF_32 = 4, SCALES_MIN = 256, LAYOUT = 5 };
  static PART i32 row_scales(i32 k) { return q8_scales(k) / 8; }
  template <i32 N> static PART void stage(GROUP LinearStreamGroup& g, i32 x_at, i32 k, u32 i, THREAD const f32x4 (&v)[N], i32 lane) {
    stage_by_turns<1, N>(g, x_at, k, i, v);
  }
  static PART u32 lower(u32 a, u32 b) { return (a & 0x0f0f0f0fu) | (b << 4 & 0xf0f0f0f0u); }
  static PART u32 upper(u32 a, u32 b) { return (a >> 4 & 0x0f0f0f0fu) | (b & 0xf0f0f0f0u); }
  static PART f32 dot(GROUP LinearStreamGroup& g, i32 weights, i32 scales, i32 first, Chunk x, i32 lane, f32 sum) {
    const u32x4 codes = group_at<u32x4>(g, weights)[first + lane];
    const f32x2 scale = f16x2_to_f32(e4m3x2_to_f16x2(group_at<unsigned short>(g, scales)[first + lane]));
    i32 above = 0, below = 0, next_above = 0, next_below = 0;
    add(above, below, lower(codes.x, codes.y), x.low.x, x.low.y);
    add(above, below, lower(codes.z, codes.w), x.low.z, x.low.w);
    add(next_above, next_below, upper(codes.x, codes.y), x.high.x, x.high.y);
    add(next_above, next_below, upper(codes.z, codes.w), x.high.z, x.high.w);
    return fma32(fma32(scale.x, f32(above - below), scale.y * f32(next_above - next_below)), x.scale.x, sum);
  }
};
template <> struct StreamActivations<WeightQ4_K> : StreamFourBits {
  static PART f32 dot(GROUP LinearStreamGroup& g, i32 weights, i32 scales, i32 first, Chunk x, i32 lane, f32 sum) {
    const GroupPtr<u32> block = group_at<u32>(g, scales + (first / 8 + (lane >> 3)) * 16);
    const ScaleQ4_K s = scale_q4_k(block[0], block[1 + (lane >> 2 & 1)], block[3], lane & 7);
    return fma32(-s.minimum, x.scale.y, fma32(s.scale, dot_codes(g, weights, first + lane, x), sum));
  }
};

// Of Q6_K: codes of six bits are put together as signed bytes four times as large, so no sum of activations is needed.
template <> struct StreamActivations<WeightQ6_K> : StreamFourBits {
  enum { STAGE = 1024, SCALES_OF_32 = 21, SCALES_MIN = 336 };
  static PART i32 row_scales(i32 k) { return q6_k_row_words(k) / 4; }
  static PART i32 dot_low(u32 codes, u32 high, u32 x, i32 sum) {
    return dot_i8x4((codes << 2 & 0x3c3c3c3cu) | (high & 0xc0c0c0c0u), x, sum);
  }
  static PART i32 dot_high(u32 codes, u32 high, u32 x, i32 sum) {
    return dot_i8x4((codes >> 2 & 0x3c3c3c3cu) | (high & 0xc0c0c0c0u), x, sum);
  }
  static PART f32 dot(GROUP LinearStreamGroup& g, i32 weights, i32 scales, i32 first, Chunk x, i32 lane, f32 sum) {
    const u32x4 codes = group_at<u32x4>(g, weights)[first + lane];
    const i32 part = lane & 7;
    const GroupPtr<u32> block = group_at<u32>(g, scales + (first / 8 + (lane >> 3)) * (Q6_K_WORDS * 4));
    const u32 h = block[q6_k_high(part, 0)], i = block[q6_k_high(part, 1)], pair = q6_k_pair(block[Q6_K_SCALES + part / 2], part);
    i32 a = dot_low(codes.x, h << 6, x.low.x, 0), b = dot_high(codes.x, h << 4, x.high.x, 0);
    a = dot_low(codes.y, h << 2, x.low.y, a); b = dot_high(codes.y, h, x.high.y, b);
    a = dot_low(codes.z, i << 6, x.low.z, a); b = dot_high(codes.z, i << 4, x.high.z, b);
    a = dot_low(codes.w, i << 2, x.low.w, a); b = dot_high(codes.w, i, x.high.w, b);
    const f32 v = f32(a * signed_byte(pair, 0) + b * signed_byte(pair, 1)) * (x.scale.x * 4.f);
    return fma32(f16x2_to_f32(block[Q6_K_UNIT]).x, v, sum);
  }
};

// Planes of a stage, and bytes of weights of each and of scales: of two planes half as many, so that two stages fit.
template <class W, StreamKind KIND> struct StreamStage {
  typedef StreamActivations<W> Activations;
  enum {
    PLANES = KIND == STREAM_PLAIN || KIND == STREAM_EXPERT_DOWN ? 1 : 2, PIECE = Activations::STAGE / PLANES,
    PIECE_SCALES = PIECE / 32 * Activations::SCALES_OF_32,
    SCALES = i32(PIECE_SCALES) > i32(Activations::SCALES_MIN) ? i32(PIECE_SCALES) : i32(Activations::SCALES_MIN)
  };
};

// Outputs one after another whose weights lie one after another: up to `end`, or of one segment, or of half a head.
struct StreamRun { i32 segment, row, left; };

// Units of experts go slot by slot: how many of a slot a group or a launch has, and the first row of each; 16 bytes from expert to
// expert. A run is of one slot, which stands where others have their segment.
struct StreamSlots { i32 units, first, stride; };

template <StreamKind KIND, bool ONE>
FN StreamRun stream_run(CONST LinearStreamParams& p, StreamSlots slots, i32 unit, i32 end) {
  StreamRun run;
  run.segment = 0;
  run.row = unit;
  run.left = end - unit;
  if (StreamHas<KIND>::EXPERTS) {
    run.segment = unit / slots.units;
    const i32 place = unit - run.segment * slots.units;
    run.row = slots.first + place;
    run.left = mini(run.left, slots.units - place);
    return run;
  }
  if (ONE) return run;
  while (run.segment < 2 && unit >= p.segments[run.segment].groups) {
    unit -= p.segments[run.segment].groups;
    end -= p.segments[run.segment].groups;
    run.segment++;
  }
  run.row = unit;
  run.left = mini(end, p.segments[run.segment].groups) - unit;
  if (KIND == STREAM_ROPE) {
    const i32 half = p.head_dim / 2, head = unit / half, pair = unit - head * half;
    run.row = head * p.head_dim + pair;
    run.left = mini(run.left, half - pair);
  }
  return run;
}

// Sizes of a launch in 16 bytes. Rows are one piece, and a stage may have several of them; or they are several, the last of
// what is left.
struct StreamSizes { i32 row, scales, pieces, last, last_scales; };

// Rows of a stage.
template <bool OTHER> FN i32 stream_rows(CONST LinearStreamParams& p) { return OTHER ? p.other_stage_rows : p.stage_rows; }

template <class W, StreamKind KIND, bool OTHER> FN StreamSizes stream_sizes(CONST LinearStreamParams& p) {
  enum { PIECE = StreamStage<W, KIND>::PIECE / 16, PIECE_SCALES = StreamStage<W, KIND>::PIECE_SCALES / 16 };
  StreamSizes size;
  size.row = (p.k + W::LEN - 1) / W::LEN;
  size.scales = StreamActivations<W>::row_scales(p.k);
  size.pieces = stream_rows<OTHER>(p) > 1 ? 1 : (size.row + PIECE - 1) / PIECE;
  size.last = size.row - (size.pieces - 1) * PIECE;
  size.last_scales = size.scales - (size.pieces - 1) * PIECE_SCALES;
  return size;
}

// What is asked for next: what of a run is not yet asked for lies one after another, in 16 bytes. The same in every lane, so
// that it takes no registers of lanes; lane 0 asks.
struct StreamCursor { i32 unit, segment, left, at, scales_at, piece, stage; };

template <class W, StreamKind KIND, bool ONE, bool OTHER, i32 PLANE>
FN void stream_ask(CONST LinearStreamParams& p, GROUP LinearStreamGroup& g, THREAD StreamCursor& next, StreamSizes size, StreamSlots slots, i32 end, Lane t) {
  enum {
    SCALES = StreamStage<W, KIND>::SCALES, PIECE = StreamStage<W, KIND>::PIECE, PLANES = StreamStage<W, KIND>::PLANES,
    PIECE_SCALES = StreamStage<W, KIND>::PIECE_SCALES
  };
  if (next.left == 0) {
    if (next.unit >= end) return;
    const StreamRun run = stream_run<KIND, ONE>(p, slots, next.unit, end);
    const i32 base = StreamHas<KIND>::EXPERTS ? g.expert[run.segment] * slots.stride : 0;
    next.unit += run.left;
    next.segment = run.segment;
    next.left = run.left;
    next.at = base + run.row * size.row;
    next.scales_at = base + run.row * size.scales;
  }
  i32 weights = PIECE / 16, scales = PIECE_SCALES / 16;
  if (++next.piece == size.pieces) {
    const i32 count = mini(stream_rows<OTHER>(p), next.left);
    weights = count * size.last;
    scales = count * size.last_scales;
    next.left -= count;
    next.piece = 0;
  }
  CONST LinearSegment& s = p.segments[ONE ? 0 : next.segment];
  const i32 to = p.ring_at + (t.simd * p.stages + next.stage) * (PLANES * PLANE);
  if (one_lane(t.lane)) {
    GROUP CopyBarrier& barrier = g.full[t.simd][next.stage];
    expect_copies(barrier, PLANES * 16 * (weights + (SCALES > 0 ? scales : 0)));
    UNROLL for (i32 plane = 0; plane < PLANES; plane++) {
      const bool up = StreamHas<KIND>::GLU && plane == 1;
      const i32 half = KIND == STREAM_ROPE && plane == 1 ? p.head_dim / 2 : 0;
      copy_to_group(group_at<u32x4>(g, to + plane * PLANE), offset(up ? s.up : s.weight, next.at + half * size.row), weights * 16, barrier);
      if (SCALES > 0)
        copy_to_group(group_at<u32x4>(g, to + plane * PLANE + PIECE),
                      offset(vectors16(up ? s.up_scales : s.scales), next.scales_at + half * size.scales), scales * 16, barrier);
    }
  }
  next.at += weights;
  next.scales_at += scales;
  if (++next.stage == p.stages) next.stage = 0;
}

// Asks for the next 1 KB behind the ring into the cache of the device, while x is on its way: memory would rest. With more, all
// is slower; four bits gain nothing.
template <class W, StreamKind KIND>
FN void stream_ask_ahead(CONST LinearStreamParams& p, StreamCursor next, StreamSizes size, Lane t) {
  enum { PIECE = StreamStage<W, KIND>::PIECE / 16, PLANES = StreamStage<W, KIND>::PLANES, AHEAD = 1024 / 16 / PLANES };
  const i32 count = mini(next.left * size.row - next.piece * PIECE, AHEAD);
  if (count > 0 && t.lane < PLANES) {
    CONST LinearSegment& s = p.segments[next.segment];
    const i32 half = KIND == STREAM_ROPE && t.lane == 1 ? p.head_dim / 2 : 0;
    copy_to_cache(offset(KIND == STREAM_GLU && t.lane == 1 ? s.up : s.weight, next.at + half * size.row), count * 16);
  }
}

// What an output, or a pair, is finished with: asked for before its weights have come.
struct StreamRest { f32 residual, bias, other_bias; f32x2 turn; };

template <StreamKind KIND>
FN StreamRest stream_rest(CONST LinearStreamParams& p, i32 segment, i32 x_row, i32 row, i32 position, bool in) {
  StreamRest rest;
  rest.residual = rest.bias = rest.other_bias = rest.turn.x = rest.turn.y = 0.f;
  CONST LinearSegment& s = p.segments[segment];
  if (in) {
    if (given(s.bias)) rest.bias = s.bias[row];
    if (KIND == STREAM_PLAIN && given(p.residual)) rest.residual = p.residual[x_row * p.residual_stride + row];
    if (KIND == STREAM_GLU && given(s.up_bias)) rest.other_bias = s.up_bias[row];
    if (KIND == STREAM_ROPE) {
      const i32 half = p.head_dim / 2;
      if (given(s.bias)) rest.other_bias = s.bias[row + half];
      if (segment < 2) rest.turn = p.angles[i64(position) * half + row % p.head_dim];
    }
  }
  return rest;
}

// An activation with a quotient within 2^-22 of itself: an exact one takes as long as all the rest that is left to do at the end of a
// product.
FN f32 near_activated(f32 x, i32 activation) {
  if (activation == RELU) return x < 0.f ? 0.f : x;
  return near_quotient(x, 1.f + exp32(-sigmoid_argument(x, activation)));
}
FN f32 near_gated(f32 gate, f32 up, i32 activation) {
  return near_activated(clamped_gate(gate, activation), activation) * let_through(up, activation);
}
// The same of several, in place of the gates. Each activation that big models have is a branch of its own, in which the compiler knows it:
// asking for each number what its activation is takes a tenth of the time of gate and up of 128 rows.
template <i32 N> FN void near_gated(THREAD f32 (&gates)[N], THREAD const f32 (&ups)[N], i32 activation) {
  if (activation == SILU) {
    UNROLL for (i32 i = 0; i < N; i++) gates[i] = near_gated(gates[i], ups[i], SILU);
  } else if (activation == CLAMPED_SWIGLU) {
    UNROLL for (i32 i = 0; i < N; i++) gates[i] = near_gated(gates[i], ups[i], CLAMPED_SWIGLU);
  } else {
    UNROLL for (i32 i = 0; i < N; i++) gates[i] = near_gated(gates[i], ups[i], activation);
  }
}

// One output, or a pair, to where it belongs; a lane of its own does it.
template <StreamKind KIND>
FN void stream_store(CONST LinearStreamParams& p, i32 segment, i32 x_row, i32 row, f32 a, f32 b, StreamRest rest, i32 slot) {
  CONST LinearSegment& s = p.segments[segment];
  const Ptr<f32> y = offset(s.y, i64(x_row) * s.y_stride);
  a += rest.bias;
  if (KIND == STREAM_PLAIN) y[row] = a + rest.residual;
  if (KIND == STREAM_GLU) y[row] = near_gated(a, b + rest.other_bias, s.activation);
  if (KIND == STREAM_ROPE) {
    const i32 half = p.head_dim / 2, head = row / p.head_dim, i = row - head * p.head_dim;
    b += rest.other_bias;
    y[row] = a;
    y[row + half] = b;
    if (segment < 2) {
      const f32 low = a * rest.turn.x - b * rest.turn.y;
      b = b * rest.turn.x + a * rest.turn.y;
      a = low;
    }
    if (segment == 0) {
      p.q_out[x_row * p.q_stride + row] = a;
      p.q_out[x_row * p.q_stride + row + half] = b;
    } else {
      const i64 to = kv_at(slot, head, p.kv_heads, p.block_len, p.head_dim) + i;
      const Ptr<f16> cache = segment == 1 ? p.keys : p.values;
      store(cache, to, a);
      store(cache, to + half, b);
    }
  }
}

// Sums of all lanes, of ROWS rows: of two the lower half of the lanes has the first, and the upper one the second.
template <i32 ROWS> FN f32 stream_sum(f32 first, f32 second, i32 lane) {
  if (ROWS == 1) return sum_lanes<SIMD>(first);
  const bool upper = lane >= SIMD / 2;
  const f32 own = upper ? second : first, other = upper ? first : second;
  return sum_lanes<SIMD / 2>(own + shuffle_xor(other, SIMD / 2));
}

// Sums over all lanes of four numbers at once, with the bits of sum_lanes: the b-th quarter of the lanes has the sum of number b.
FN f32 stream_sum_four(THREAD const f32 (&v)[STREAM_ROWS], i32 lane) {
  const bool upper = lane >= SIMD / 2, odd = lane / (SIMD / 4) % 2 == 1;
  f32 half[2];
  UNROLL for (i32 b = 0; b < 2; b++) half[b] = (upper ? v[2 + b] : v[b]) + shuffle_xor(upper ? v[b] : v[2 + b], SIMD / 2);
  return sum_lanes<SIMD / 4>((odd ? half[1] : half[0]) + shuffle_xor(odd ? half[0] : half[1], SIMD / 4));
}

// What a SIMD group makes, of weights in format W, once x lies in group memory. MORE says what is particular to KIND: what an output
// is finished with, where it goes, and for units of experts where their x lies and what their sums are multiplied by. Of two rows
// the upper half of the lanes has the second.
template <class W, StreamKind KIND, bool ONE, bool OTHER, i32 PLANE, i32 ROWS, class MORE>
FN void stream_units(CONST LinearStreamParams& p, GROUP LinearStreamGroup& g, StreamCursor next, StreamSizes size, StreamSlots slots, i32 unit,
                     i32 end, THREAD const MORE& more, Lane t) {
  typedef StreamActivations<W> Activations;
  enum { CHUNK = Activations::CHUNK, PIECE = StreamStage<W, KIND>::PIECE, PLANES = StreamStage<W, KIND>::PLANES };
  i32 stage = 0;
  u32 parity = 0;
  while (unit < end) {
    StreamRun run = stream_run<KIND, ONE>(p, slots, unit, end);
    unit += run.left;
    const i32 x_at = more.template x_at<OTHER>(p, run.segment);
    const f32 factor_a = more.template factor<W, false>(p, g, run.segment), factor_b = more.template factor<W, true>(p, g, run.segment);
    while (run.left > 0) {
      const i32 count = mini(stream_rows<OTHER>(p), run.left);
      // Several rows at once, which meet the same x: sums of one would wait for each other.
      const bool several = KIND == STREAM_EXPERT_DOWN && i32(W::LEN) == 32 && p.stage_rows == STREAM_ROWS;
      const i32 own = several ? t.lane / (SIMD / STREAM_ROWS) : t.lane % (SIMD / ROWS);
      const StreamRest rest = more.rest(p, g, run.segment, run.row + own, own < count);
      f32 sum[ROWS][PLANES];
      UNROLL for (i32 m = 0; m < ROWS; m++)
        UNROLL for (i32 plane = 0; plane < PLANES; plane++) sum[m][plane] = 0;
      for (i32 piece = 0; piece < size.pieces; piece++) {
        wait_for_copies(g.full[t.simd][stage], parity);
        const i32 at = p.ring_at + (t.simd * p.stages + stage) * (PLANES * PLANE);
        const i32 first = piece * (PIECE / CHUNK);
        const bool is_last = piece == size.pieces - 1;
        const i32 chunks = is_last ? size.last / (CHUNK / 16) : PIECE / CHUNK;
        if (several) {
          f32 sums[STREAM_ROWS];
          UNROLL for (i32 b = 0; b < STREAM_ROWS; b++) sums[b] = 0;
          UNROLL for (i32 c = 0; c < PIECE / CHUNK; c += SIMD)
            if (c + t.lane < chunks) {
              const typename Activations::Chunk chunk = Activations::load(g, x_at, p.k, c, t.lane);
              UNROLL for (i32 b = 0; b < STREAM_ROWS; b++) {
                const i32 row = mini(b, count - 1);
                sums[b] = Activations::dot(g, at + row * size.row * 16, at + PIECE + row * size.scales * 16, c, chunk, t.lane, sums[b]);
              }
            }
          const f32 all = stream_sum_four(sums, t.lane);
          if (t.lane % (SIMD / STREAM_ROWS) == 0 && own < count) more.store(p, g, run.segment, run.row + own, all * factor_a, 0.f, rest);
        }
        for (i32 r = several ? count : 0; r < count; r++) {
          const i32 weights = at + r * size.row * 16, scales = at + PIECE + r * size.scales * 16;
          // Of two rows two chunks at a time, or one: registers hold no more.
          enum {
            ALL = i32(PIECE) / CHUNK, FEW = (sizeof(typename Activations::Chunk) > 48 ? 1 : 2) * SIMD,
            CHUNKS = ROWS == 1 || i32(ALL) < i32(FEW) ? i32(ALL) : i32(FEW)
          };
          static_assert(ALL % CHUNKS == 0, "as many at a time");
          if (chunks == ALL) {
            ROLLED for (i32 base = 0; base < ALL; base += CHUNKS)
              UNROLL for (i32 c = base; c < base + CHUNKS; c += SIMD)
                UNROLL for (i32 m = 0; m < ROWS; m++) {
                  const typename Activations::Chunk chunk = Activations::load(g, x_at + m * p.x_row, p.k, first + c, t.lane);
                  UNROLL for (i32 plane = 0; plane < PLANES; plane++)
                    sum[m][plane] = Activations::dot(g, weights + plane * PLANE, scales + plane * PLANE, c, chunk, t.lane, sum[m][plane]);
                }
          } else {
            ROLLED for (i32 base = 0; base < ALL; base += CHUNKS)
              UNROLL for (i32 c = base; c < base + CHUNKS; c += SIMD)
                if (c + t.lane < chunks)
                  UNROLL for (i32 m = 0; m < ROWS; m++) {
                    const typename Activations::Chunk chunk = Activations::load(g, x_at + m * p.x_row, p.k, first + c, t.lane);
                    UNROLL for (i32 plane = 0; plane < PLANES; plane++)
                      sum[m][plane] = Activations::dot(g, weights + plane * PLANE, scales + plane * PLANE, c, chunk, t.lane, sum[m][plane]);
                  }
          }
          if (is_last) {
            const f32 a = stream_sum<ROWS>(sum[0][0], sum[ROWS - 1][0], t.lane);
            const f32 b = i32(PLANES) == 2 ? stream_sum<ROWS>(sum[0][PLANES - 1], sum[ROWS - 1][PLANES - 1], t.lane) : 0.f;
            if (own == r) more.store(p, g, run.segment, run.row + r, a * factor_a, b * factor_b, rest);
            UNROLL for (i32 m = 0; m < ROWS; m++)
              UNROLL for (i32 plane = 0; plane < PLANES; plane++) sum[m][plane] = 0;
          }
        }
        simd_barrier();
        stream_ask<W, KIND, ONE, OTHER, PLANE>(p, g, next, size, slots, end, t);
        if (++stage == p.stages) { stage = 0; parity ^= 1; }
      }
      run.row += count;
      run.left -= count;
    }
  }
}

// What outputs of a lane's row are finished with. ONE: there is one segment.
template <StreamKind KIND, bool ONE> struct StreamDense {
  f32 factor_;  // of the norm
  i32 position, slot, x_row;
  bool live;
  template <bool OTHER> PART i32 x_at(CONST LinearStreamParams& p, i32) const { return OTHER ? p.other_x_at : p.x_at; }
  template <class W, bool SECOND> PART f32 factor(CONST LinearStreamParams& p, GROUP LinearStreamGroup&, i32 segment) const {
    CONST LinearSegment& s = p.segments[ONE ? 0 : segment];
    return matrix_scaled<W>(factor_, SECOND && KIND == STREAM_GLU ? s.up_matrix_scale : s.matrix_scale);
  }
  PART StreamRest rest(CONST LinearStreamParams& p, GROUP LinearStreamGroup&, i32 segment, i32 row, bool in) const {
    return stream_rest<KIND>(p, ONE ? 0 : segment, x_row, row, position, in && live);
  }
  PART void store(CONST LinearStreamParams& p, GROUP LinearStreamGroup&, i32 segment, i32 row, f32 a, f32 b, StreamRest rest) const {
    if (live) stream_store<KIND>(p, ONE ? 0 : segment, x_row, row, a, b, rest, slot);
  }
};

// Whether two formats are one.
template <class A, class B> struct IsSame { enum { VALUE = 0 }; };
template <class A> struct IsSame<A, A> { enum { VALUE = 1 }; };

// A vector of a row, with zeros past its end: rows of blocks have whole vectors.
template <class W> FN f32x4 stream_vector(Ptr<const f32x4> row, i32 i, i32 k) {
  if (i32(W::LEN) < 16) return row_vector(row, i, k);
  f32x4 v;
  v.x = v.y = v.z = v.w = 0.f;
  if (i * 4 < k) v = row[i];
  return v;
}

// N vectors of a row to where both formats have them, `at` bytes behind the first row.
template <class W, class V, i32 N>
FN void stream_stage(CONST LinearStreamParams& p, GROUP LinearStreamGroup& g, i32 at, u32 first, THREAD const f32x4 (&v)[N], i32 lane) {
  StreamActivations<W>::template stage<N>(g, p.x_at + at, p.k, first, v, lane);
  if (i32(StreamActivations<W>::LAYOUT) != i32(StreamActivations<V>::LAYOUT))
    StreamActivations<V>::template stage<N>(g, p.other_x_at + at, p.k, first, v, lane);
}

// N vectors a thread of a row from vector `base` on to where they are multiplied.
template <class W, class V, i32 N>
FN void stream_stage_all(CONST LinearStreamParams& p, GROUP LinearStreamGroup& g, i32 at, i32 base, THREAD const f32x4 (&v)[N], Lane t) {
  UNROLL for (i32 j = 0; j < N; j += 2) {
    const i32 left = p.k - (base + j * STREAM_THREADS) * 4;
    const u32 first = u32(base + t.simd * SIMD + t.lane + j * STREAM_THREADS);
    const f32x4 one[1] = {v[j]}, two[2] = {v[j], v[j + 1]};
    if (left > 4 * STREAM_THREADS) stream_stage<W, V, 2>(p, g, at, first, two, t.lane);
    else if (left > 0) stream_stage<W, V, 1>(p, g, at, first, one, t.lane);
  }
}

// A thread's part of the sum of squares.
template <i32 N> FN f32 stream_squares(THREAD const f32x4 (&v)[N]) {
  f32 squares[N], sum = 0.f;
  UNROLL for (i32 j = 0; j < N; j++)
    squares[j] = fma32(v[j].w, v[j].w, fma32(v[j].z, v[j].z, fma32(v[j].y, v[j].y, v[j].x * v[j].x)));
  UNROLL for (i32 j = 0; j < N; j++) sum += squares[j];
  return sum;
}

// 1 / rms of a row, of the sums that SIMD groups left.
FN f32 stream_norm(CONST LinearStreamParams& p, GROUP const f32 (&parts)[STREAM_SIMDS]) {
  f32 part[4];
  UNROLL for (i32 s = 0; s < 4; s++) part[s] = (parts[s] + parts[s + 4]) + (parts[s + 8] + parts[s + 12]);
  return near_inverse_sqrt(near_quotient((part[0] + part[1]) + (part[2] + part[3]), f32(p.k)) + p.eps);
}

// V: the format of the last segment.
template <class W, StreamKind KIND, bool NORM, i32 ROWS = 1, class V = W>
FN void linear_stream(CONST LinearStreamParams& p, GROUP LinearStreamGroup& g, Lane t) {
  enum {
    SCALES = StreamStage<W, KIND>::SCALES, TWO = !IsSame<W, V>::VALUE,
    OWN = StreamStage<W, KIND>::PIECE + StreamStage<W, KIND>::SCALES, OTHER = StreamStage<V, KIND>::PIECE + StreamStage<V, KIND>::SCALES,
    PLANE = i32(OWN) > i32(OTHER) ? i32(OWN) : i32(OTHER)
  };
  // Vectors of x that a thread has at once; with a norm, of all of x. A pair has one segment, and so has a row that is not
  // normalised.
  enum { XV = NORM || SCALES == 0 ? 4 : 8 / ROWS, ONE = KIND == STREAM_GLU || (KIND == STREAM_PLAIN && !NORM) };
  const i32 worker = t.gx * STREAM_SIMDS + t.simd, workers = p.groups * STREAM_SIMDS, thread = t.simd * SIMD + t.lane;
  const bool other = TWO && worker >= p.first_workers;
  const i32 units = TWO ? (other ? p.units - p.first_units : p.first_units) : p.units;
  const i32 sharers = TWO ? (other ? workers - p.first_workers : p.first_workers) : workers;
  const i32 sharer = other ? worker - p.first_workers : worker, before = other ? p.first_units : 0;
  // Products fit 32 bits: `src/kernels/linear_stream.rs` sees to it.
  const i32 end = before + i32(u32(sharer + 1) * u32(units) / u32(sharers));
  const bool next_is_late = KIND == STREAM_PLAIN && !NORM && p.next_is_late != 0;
  if (!next_is_late) let_next_start();
  const StreamSizes size = other ? stream_sizes<V, KIND, true>(p) : stream_sizes<W, KIND, false>(p);
  StreamCursor next;
  next.unit = before + i32(u32(sharer) * u32(units) / u32(sharers));
  next.segment = next.left = next.at = next.scales_at = next.piece = next.stage = 0;
  i32 unit = next.unit;
  if (t.lane == 0) {
    for (i32 i = 0; i < p.stages; i++) begin_barrier(g.full[t.simd][i]);
    show_barriers();
  }
  const StreamSlots slots = {0, 0, 0};
  for (i32 i = 0; i < p.stages; i++) {
    if (other) stream_ask<V, KIND, ONE, true, PLANE>(p, g, next, size, slots, end, t);
    else stream_ask<W, KIND, ONE, false, PLANE>(p, g, next, size, slots, end, t);
  }
  f32x4 gain[XV], v[ROWS][XV];
  if (NORM) UNROLL for (i32 j = 0; j < XV; j++) gain[j] = stream_vector<W>(p.gain, thread + j * STREAM_THREADS, p.k);
  // A lane's row. Without rows, nobody reads the result: that of row 0 does no harm.
  const i32 rows = p.rows[0], own = ROWS == 1 ? 0 : mini(t.lane / (SIMD / ROWS), maxi(rows - 1, 0));
  const bool live = ROWS == 1 || t.lane / (SIMD / ROWS) == own;
  const i32 position = KIND == STREAM_ROPE ? p.positions[own] : 0, slot = KIND == STREAM_ROPE ? p.slots[own] : 0;
  Ptr<const f32x4> x[ROWS];
  UNROLL for (i32 m = 0; m < ROWS; m++) {
    const i32 row = mini(m, maxi(rows - 1, 0)), selected = given(p.select) ? p.select[row] : row;
    x[m] = offset(p.x, i64(rows > 0 ? selected : 0) * p.x_stride);
  }
  wait_for_previous();
  if (next_is_late) let_next_start();
  UNROLL for (i32 m = 0; m < ROWS; m++)
    UNROLL for (i32 j = 0; j < XV; j++) v[m][j] = stream_vector<W>(x[m], thread + j * STREAM_THREADS, p.k);
  if (!TWO && (i32(W::LEN) < 32 || IsSame<W, WeightQ6_K>::VALUE)) stream_ask_ahead<W, KIND>(p, next, size, t);
  if (NORM) {
    // Codes of a row and of the same times a number are the same codes: so that number is worked out beside them, and results
    // are multiplied by it.
    const f32 sum = stream_sum<ROWS>(stream_squares<XV>(v[0]), ROWS == 2 ? stream_squares<XV>(v[ROWS - 1]) : 0.f, t.lane);
    if (t.lane == 0) g.part[t.simd] = sum;
    if (ROWS == 2 && t.lane == SIMD / 2) g.second_part[t.simd] = sum;
    UNROLL for (i32 m = 0; m < ROWS; m++)
      UNROLL for (i32 j = 0; j < XV; j++) {
        v[m][j].x *= gain[j].x; v[m][j].y *= gain[j].y;
        v[m][j].z *= gain[j].z; v[m][j].w *= gain[j].w;
      }
  }
  for (i32 base = 0;;) {
    UNROLL for (i32 m = 0; m < ROWS; m++) stream_stage_all<W, V, XV>(p, g, m * p.x_row, base, v[m], t);
    base += XV * STREAM_THREADS;
    if (NORM || base * 4 >= p.k) break;
    UNROLL for (i32 m = 0; m < ROWS; m++)
      UNROLL for (i32 j = 0; j < XV; j++) v[m][j] = stream_vector<W>(x[m], base + thread + j * STREAM_THREADS, p.k);
  }
  group_barrier();
  f32 factor = 1.f;
  if (NORM) {
    factor = stream_norm(p, g.part);
    if (ROWS == 2 && t.lane >= SIMD / 2) factor = stream_norm(p, g.second_part);
  }
  const StreamDense<KIND, ONE> more = {factor, position, slot, own, live};
  if (other) stream_units<V, KIND, ONE, true, PLANE, ROWS>(p, g, next, size, slots, unit, end, more, t);
  else stream_units<W, KIND, ONE, false, PLANE, ROWS>(p, g, next, size, slots, unit, end, more, t);
}

// x of up to 8,192 features where they are normalised: as `src/kernels/linear_stream.rs` has it.
#define STREAM_KERNEL(NAME, ...) KERNEL_BESIDE(NAME, LinearStreamParams, LinearStreamGroup, 512, 2, linear_stream<__VA_ARGS__>)
#define LINEAR_STREAM(FORMAT, W)                                       \
  STREAM_KERNEL(linear_stream_##FORMAT, W, STREAM_PLAIN, false)          \
  STREAM_KERNEL(linear_glu_stream_##FORMAT, W, STREAM_GLU, false)        \
  STREAM_KERNEL(norm_linear_stream_##FORMAT, W, STREAM_PLAIN, true)      \
  STREAM_KERNEL(norm_linear_glu_stream_##FORMAT, W, STREAM_GLU, true)    \
  STREAM_KERNEL(norm_linear_rope_stream_##FORMAT, W, STREAM_ROPE, true)  \
  STREAM_KERNEL(linear_stream_##FORMAT##_m2, W, STREAM_PLAIN, false, 2)          \
  STREAM_KERNEL(norm_linear_stream_##FORMAT##_m2, W, STREAM_PLAIN, true, 2)      \
  STREAM_KERNEL(norm_linear_glu_stream_##FORMAT##_m2, W, STREAM_GLU, true, 2)    \
  STREAM_KERNEL(norm_linear_rope_stream_##FORMAT##_m2, W, STREAM_ROPE, true, 2)
LINEAR_STREAM(f16, WeightF16)
LINEAR_STREAM(bf16, WeightBF16)
LINEAR_STREAM(q8_0, WeightQ8_0)
LINEAR_STREAM(fp8, WeightFP8)
LINEAR_STREAM(q4_0, WeightQ4_0)
LINEAR_STREAM(q4_g128, WeightQ4G128)
LINEAR_STREAM(q4_z128, WeightQ4Z128)
LINEAR_STREAM(mxfp4, WeightMXFP4)
LINEAR_STREAM(nvfp4, WeightNVFP4)
LINEAR_STREAM(q4_k, WeightQ4_K)
LINEAR_STREAM(q6_k, WeightQ6_K)
// Values of heads often have more bits.
#define NORM_LINEAR_ROPE_STREAM(FORMATS, W, V)                                 \
  STREAM_KERNEL(norm_linear_rope_stream_##FORMATS, W, STREAM_ROPE, true, 1, V) \
  STREAM_KERNEL(norm_linear_rope_stream_##FORMATS##_m2, W, STREAM_ROPE, true, 2, V)
NORM_LINEAR_ROPE_STREAM(q4_k_q8_0, WeightQ4_K, WeightQ8_0)
NORM_LINEAR_ROPE_STREAM(q4_k_q6_k, WeightQ4_K, WeightQ6_K)
NORM_LINEAR_ROPE_STREAM(q8_0_q6_k, WeightQ8_0, WeightQ6_K)
#endif
