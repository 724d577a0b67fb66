// Parts that kernels are made of, one definition each: the weight formats and the group-wide sum.
//
// A weight's rows lie as `chunks` chunks of 16 bytes of LEN numbers each, the last filled up with zeros. `Chunk` is what
// one lane loads; `widen` makes f32 of it. A product is (Σ w·x) · scale for each chunk.

struct WeightF32 {
  enum { LEN = 4 };
  struct Chunk { u32x4 bits; };
  static PART Chunk load(Ptr<const u32x4> values, Ptr<const f16> scales, i64 row, i32 chunks, i32 c) {
    return {load_once(values, row * chunks + c)};
  }
  static PART Chunk none() { return {make16(0, 0, 0, 0)}; }
  static PART f32 widen(THREAD f32 (&w)[4], Chunk c) {
    w[0] = bits_to_f32(c.bits.x); w[1] = bits_to_f32(c.bits.y); w[2] = bits_to_f32(c.bits.z); w[3] = bits_to_f32(c.bits.w);
    return 1.f;
  }
};

struct WeightF16 {
  enum { LEN = 8 };
  struct Chunk { u32x4 pairs; };
  static PART Chunk load(Ptr<const u32x4> values, Ptr<const f16> scales, i64 row, i32 chunks, i32 c) {
    return {load_once(values, row * chunks + c)};
  }
  static PART Chunk none() { return {make16(0, 0, 0, 0)}; }
  static PART f32 widen(THREAD f32 (&w)[8], Chunk c) {
    const f32x2 a = f16x2_to_f32(c.pairs.x), b = f16x2_to_f32(c.pairs.y), d = f16x2_to_f32(c.pairs.z), e = f16x2_to_f32(c.pairs.w);
    w[0] = a.x; w[1] = a.y; w[2] = b.x; w[3] = b.y; w[4] = d.x; w[5] = d.y; w[6] = e.x; w[7] = e.y;
    return 1.f;
  }
};

struct WeightBF16 {
  enum { LEN = 8 };
  struct Chunk { u32x4 pairs; };
  static PART Chunk load(Ptr<const u32x4> values, Ptr<const f16> scales, i64 row, i32 chunks, i32 c) {
    return {load_once(values, row * chunks + c)};
  }
  static PART Chunk none() { return {make16(0, 0, 0, 0)}; }
  static PART f32 widen(THREAD f32 (&w)[8], Chunk c) {
    const f32x2 a = bf16x2_to_f32(c.pairs.x), b = bf16x2_to_f32(c.pairs.y), d = bf16x2_to_f32(c.pairs.z), e = bf16x2_to_f32(c.pairs.w);
    w[0] = a.x; w[1] = a.y; w[2] = b.x; w[3] = b.y; w[4] = d.x; w[5] = d.y; w[6] = e.x; w[7] = e.y;
    return 1.f;
  }
};

// Scales of a row of k codes of Q8_0: one for 32 codes, filled up to 16 bytes, which copies come in.
FN i32 q8_scales(i32 k) { return (k / 32 + 7) / 8 * 8; }

// Q8_0 in split planes: codes of all rows, and scales of all rows; a block of 32 codes is two chunks.
struct WeightQ8_0 {
  enum { LEN = 16 };
  struct Chunk { u32x4 codes; f16 scale; };
  static PART Chunk load(Ptr<const u32x4> values, Ptr<const f16> scales, i64 row, i32 chunks, i32 c) {
    return {load_once(values, row * chunks + c), load_once(scales, row * q8_scales(chunks * 16) + (c >> 1))};
  }
  static PART Chunk none() { return {make16(0, 0, 0, 0), to_f16(0.f)}; }
  static PART f32 widen(THREAD f32 (&w)[16], Chunk c) {
    const f32x4 a = i8x4_to_f32(c.codes.x), b = i8x4_to_f32(c.codes.y), d = i8x4_to_f32(c.codes.z), e = i8x4_to_f32(c.codes.w);
    w[0] = a.x; w[1] = a.y; w[2] = a.z; w[3] = a.w; w[4] = b.x; w[5] = b.y; w[6] = b.z; w[7] = b.w;
    w[8] = d.x; w[9] = d.y; w[10] = d.z; w[11] = d.w; w[12] = e.x; w[13] = e.y; w[14] = e.z; w[15] = e.w;
    return to_f32(c.scale);
  }
};

// Codes of four bits in split planes. A block of 32 is one chunk: bytes 4 i to 4 i + 3 have numbers 4 i to 4 i + 3 in their lower
// halves and those 16 further on in their upper ones, as Q4_0 has them in files.
FN void widen_codes(THREAD f32 (&w)[32], u32x4 codes) {
  const u32 words[4] = {codes.x, codes.y, codes.z, codes.w};
  UNROLL for (i32 i = 0; i < 4; i++)
    UNROLL for (i32 j = 0; j < 4; j++) {
      w[4 * i + j] = f32(i32(words[i] >> (8 * j) & 15u));
      w[16 + 4 * i + j] = f32(i32(words[i] >> (8 * j + 4) & 15u));
    }
}

// Q4_0: scales as of Q8_0.
struct WeightQ4_0 {
  enum { LEN = 32 };
  struct Chunk { u32x4 codes; f16 scale; };
  static PART Chunk load(Ptr<const u32x4> values, Ptr<const f16> scales, i64 row, i32 chunks, i32 c) {
    return {load_once(values, row * chunks + c), load_once(scales, row * q8_scales(chunks * 32) + c)};
  }
  static PART Chunk none() { return {make16(0, 0, 0, 0), to_f16(0.f)}; }
  static PART f32 widen(THREAD f32 (&w)[32], Chunk c) {
    widen_codes(w, c.codes);
    UNROLL for (i32 i = 0; i < 32; i++) w[i] -= 8.f;
    return to_f32(c.scale);
  }
};

// Q4_0 whose scales are the same for each 128 weights, as INT4 of such groups has them: one for four chunks. Rows of them are filled
// up to 32 bytes, which memory is read in, as a piece of a row has no more.
FN i32 q4_g128_scales(i32 k) { return (k / 128 + 15) / 16 * 16; }
struct WeightQ4G128 {
  enum { LEN = 32 };
  typedef WeightQ4_0::Chunk Chunk;
  static PART Chunk load(Ptr<const u32x4> values, Ptr<const f16> scales, i64 row, i32 chunks, i32 c) {
    return {load_once(values, row * chunks + c), load_once(scales, row * q4_g128_scales(chunks * 32) + c / 4)};
  }
  static PART Chunk none() { return WeightQ4_0::none(); }
  static PART f32 widen(THREAD f32 (&w)[32], Chunk c) { return WeightQ4_0::widen(w, c); }
};

// Codes of Q4_0 less a zero point, both from the 0 on: as INT4 with zero points has them. For each 128 weights a word: the scale, f16,
// and above it the zero point, 0 to 16, f16. Rows of words are as long as those of exponents of MXFP4.
struct WeightQ4Z128 {
  enum { LEN = 32 };
  struct Chunk { u32x4 codes; u32 scale_and_zero; };
  static PART Chunk load(Ptr<const u32x4> values, Ptr<const f16> scales, i64 row, i32 chunks, i32 c) {
    return {load_once(values, row * chunks + c), load_once(words(scales), row * ((chunks + 15) / 16 * 4) + c / 4)};
  }
  static PART Chunk none() { return {make16(0, 0, 0, 0), 0}; }
  static PART f32 widen(THREAD f32 (&w)[32], Chunk c) {
    widen_codes(w, c.codes);
    const f32x2 both = f16x2_to_f32(c.scale_and_zero);
    UNROLL for (i32 i = 0; i < 32; i++) w[i] -= both.y;
    return both.x;
  }
};

// Numbers of E4M3 (one byte: sign, four bits of exponent, three of mantissa) as pairs of f16, 2^-8 of what they are: bytes 0 and
// 2 of a word, or 1 and 3.
FN u32 e4m3_even(u32 word) { return (word << 8 & 0x80008000u) | (word << 7 & 0x3f803f80u); }
FN u32 e4m3_odd(u32 word) { return (word & 0x80008000u) | (word >> 1 & 0x3f803f80u); }

// FP8 in split planes, as Q8_0: numbers of E4M3, and scales by which 2^-8 of them are multiplied.
struct WeightFP8 {
  enum { LEN = 16 };
  typedef WeightQ8_0::Chunk Chunk;
  static PART Chunk load(Ptr<const u32x4> values, Ptr<const f16> scales, i64 row, i32 chunks, i32 c) {
    return WeightQ8_0::load(values, scales, row, chunks, c);
  }
  static PART Chunk none() { return WeightQ8_0::none(); }
  static PART f32 widen(THREAD f32 (&w)[16], Chunk c) {
    const u32 words[4] = {c.codes.x, c.codes.y, c.codes.z, c.codes.w};
    UNROLL for (i32 i = 0; i < 4; i++) {
      const f32x2 even = f16x2_to_f32(e4m3_even(words[i])), odd = f16x2_to_f32(e4m3_odd(words[i]));
      w[4 * i] = even.x; w[4 * i + 1] = odd.x; w[4 * i + 2] = even.y; w[4 * i + 3] = odd.y;
    }
    return to_f32(c.scale);
  }
};

// Numbers of E2M1 (half a byte: sign, two bits of exponent, one of mantissa) as a pair of f16, 2^-14 of what they are: half bytes
// N and N + 4 of a word.
template <i32 N> FN u32 e2m1_pair(u32 word) {
  const u32 number = N < 3 ? word << (9 - 4 * (N < 3 ? N : 0)) : word >> 3;
  return (word << (12 - 4 * N) & 0x80008000u) | (number & 0x0e000e00u);
}

// The numbers of a chunk, 2^-14 of what they are, in the places of `widen_codes`.
FN void widen_numbers(THREAD f32 (&w)[32], u32x4 codes) {
  const u32 words[4] = {codes.x, codes.y, codes.z, codes.w};
  UNROLL for (i32 i = 0; i < 4; i++) {
    const f32x2 low = f16x2_to_f32(e2m1_pair<0>(words[i])), high = f16x2_to_f32(e2m1_pair<1>(words[i]));
    const f32x2 next_low = f16x2_to_f32(e2m1_pair<2>(words[i])), next_high = f16x2_to_f32(e2m1_pair<3>(words[i]));
    w[4 * i] = low.x; w[4 * i + 1] = next_low.x; w[4 * i + 2] = low.y; w[4 * i + 3] = next_low.y;
    w[16 + 4 * i] = high.x; w[17 + 4 * i] = next_high.x; w[18 + 4 * i] = high.y; w[19 + 4 * i] = next_high.y;
  }
}

// The power of two of an exponent of E8M0; 0 where it is the least.
FN f32 e8m0(u32 exponent) { return bits_to_f32(exponent << 23); }

// MXFP4: numbers of E2M1 where Q4_0 has codes, and for each 32 an exponent of E8M0, a byte; rows of them are filled up to 16.
struct WeightMXFP4 {
  enum { LEN = 32 };
  struct Chunk { u32x4 codes; u32 exponent; };
  static PART Chunk load(Ptr<const u32x4> values, Ptr<const f16> scales, i64 row, i32 chunks, i32 c) {
    const u32 four = load_once(words(scales), row * ((chunks + 15) / 16 * 4) + c / 4);
    return {load_once(values, row * chunks + c), four >> (c % 4 * 8) & 255u};
  }
  static PART Chunk none() { return {make16(0, 0, 0, 0), 0}; }
  static PART f32 widen(THREAD f32 (&w)[32], Chunk c) {
    widen_numbers(w, c.codes);
    return e8m0(c.exponent) * 16384.f;
  }
};

// NVFP4: numbers of E2M1 where Q4_0 has codes, and for each 16 a scale of E4M3, a byte; rows of them are as long as those of Q8_0.
// What a whole matrix is multiplied by besides is left to those that have sums of products (`HasMatrixScale`).
struct WeightNVFP4 {
  enum { LEN = 32 };
  struct Chunk { u32x4 codes; u32 scales; };  // of the first 16, then of the others
  static PART Chunk load(Ptr<const u32x4> values, Ptr<const f16> scales, i64 row, i32 chunks, i32 c) {
    const u32 four = load_once(words(scales), row * (q8_scales(chunks * 32) / 2) + c / 2);
    return {load_once(values, row * chunks + c), four >> (c % 2 * 16)};
  }
  static PART Chunk none() { return {make16(0, 0, 0, 0), 0}; }
  static PART f32 widen(THREAD f32 (&w)[32], Chunk c) {
    widen_numbers(w, c.codes);
    const f32 first = f16x2_to_f32(e4m3_even(c.scales)).x, second = f16x2_to_f32(e4m3_odd(c.scales)).x;
    UNROLL for (i32 i = 0; i < 16; i++) {
      w[i] *= first;
      w[16 + i] *= second;
    }
    return 256.f * 16384.f;
  }
};

// Whether all weights of a matrix are multiplied by one number more, `matrix_scale`.
template <class W> struct HasMatrixScale { enum { VALUE = 0 }; };
template <> struct HasMatrixScale<WeightNVFP4> { enum { VALUE = 1 }; };
template <class W> FN f32 matrix_scaled(f32 v, f32 matrix_scale) { return HasMatrixScale<W>::VALUE ? v * matrix_scale : v; }

// What each 32 of the 256 weights of a block of Q4_K are multiplied by, and what is subtracted: 16 bytes a block. The first word
// has what scales (f16, below) and minima (above) are multiplied by; the next two a byte for each 32 weights, the scale's lower
// four bits below the minimum's; the last a half byte, the scale's upper two bits below the minimum's.
struct ScaleQ4_K { f32 scale, minimum; };
// Of 32 weights, from the first word, the one of the middle two that has their byte, and the last.
FN ScaleQ4_K scale_q4_k(u32 units, u32 bytes, u32 halves, i32 part) {
  const u32 low = bytes >> (part % 4 * 8), high = halves >> (part * 4);
  const f32x2 unit = f16x2_to_f32(units);
  ScaleQ4_K s;
  s.scale = unit.x * f32(i32((low & 15u) | (high & 3u) << 4));
  s.minimum = unit.y * f32(i32((low >> 4 & 15u) | (high & 12u) << 2));
  return s;
}

struct WeightQ4_K {
  enum { LEN = 32 };
  struct Chunk { u32x4 codes, scales; i32 part; };
  static PART Chunk load(Ptr<const u32x4> values, Ptr<const f16> scales, i64 row, i32 chunks, i32 c) {
    return {load_once(values, row * chunks + c), load_once(vectors16(scales), row * (chunks / 8) + c / 8), c % 8};
  }
  static PART Chunk none() { return {make16(0, 0, 0, 0), make16(0, 0, 0, 0), 0}; }
  static PART f32 widen(THREAD f32 (&w)[32], Chunk c) {
    widen_codes(w, c.codes);
    const ScaleQ4_K s = scale_q4_k(c.scales.x, c.part < 4 ? c.scales.y : c.scales.z, c.scales.w, c.part);
    UNROLL for (i32 i = 0; i < 32; i++) w[i] = w[i] * s.scale - s.minimum;
    return 1.f;
  }
};

// Byte `place` of a word, signed.
FN i32 signed_byte(u32 word, i32 place) { return i32(word << (24 - place * 8)) >> 24; }

// What 256 weights of Q6_K have beside the lower four bits of their codes, which lie as those of Q4_0: 21 words; rows of them are
// filled up to 16 bytes. Words 4 t + s have the upper two bits, the highest of them inverted, of 16 of the weights 64 s to
// 64 s + 63, those of bytes 8 (t % 2) to 8 (t % 2) + 7 of chunk 2 s + t / 2. Byte j of a word has them, lowest first, of the lower half
// of byte j, its upper half, and both of byte j + 4. Words 16 to 19 are the scales of each 16 weights, i8; the last is what they are
// multiplied by, f16.
enum { Q6_K_WORDS = 21, Q6_K_SCALES = 16, Q6_K_UNIT = 20 };
// Words from row to row of k weights.
FN i32 q6_k_row_words(i32 k) { return (k / 256 * Q6_K_WORDS + 3) / 4 * 4; }
// The word of upper bits for the first or second half of a chunk, of eight in a block.
FN i32 q6_k_high(i32 part, i32 half) { return (part % 2 * 2 + half) * 4 + part / 2; }
// The two scales of a chunk, in the lower half of a word.
FN u32 q6_k_pair(u32 scales, i32 part) { return scales >> (part % 2 * 16); }

struct WeightQ6_K {
  enum { LEN = 32 };
  struct Chunk { u32x4 codes; u32 high[2], scales, unit; };
  static PART Chunk load(Ptr<const u32x4> values, Ptr<const f16> scales, i64 row, i32 chunks, i32 c) {
    const Ptr<const u32> block = offset(words(scales), row * q6_k_row_words(chunks * 32) + c / 8 * Q6_K_WORDS);
    const i32 part = c % 8;
    Chunk chunk;
    chunk.codes = load_once(values, row * chunks + c);
    chunk.high[0] = load_once(block, q6_k_high(part, 0));
    chunk.high[1] = load_once(block, q6_k_high(part, 1));
    chunk.scales = q6_k_pair(load_once(block, Q6_K_SCALES + part / 2), part);
    chunk.unit = load_once(block, Q6_K_UNIT);
    return chunk;
  }
  static PART Chunk none() {
    Chunk chunk;
    chunk.codes = make16(0, 0, 0, 0);
    chunk.high[0] = chunk.high[1] = chunk.scales = chunk.unit = 0;
    return chunk;
  }
  static PART f32 widen(THREAD f32 (&w)[32], Chunk c) {
    widen_codes(w, c.codes);
    const f32 first = f32(signed_byte(c.scales, 0)), second = f32(signed_byte(c.scales, 1));
    UNROLL for (i32 i = 0; i < 4; i++)
      UNROLL for (i32 j = 0; j < 4; j++) {
        const u32 high = c.high[i / 2] >> (8 * j + i % 2 * 4);
        w[4 * i + j] = first * (w[4 * i + j] + f32(i32((high & 3u) ^ 2u) * 16 - 32));
        w[16 + 4 * i + j] = second * (w[16 + 4 * i + j] + f32(i32((high >> 2 & 3u) ^ 2u) * 16 - 32));
      }
    return f16x2_to_f32(c.unit).x;
  }
};

// The largest magnitude of four.
FN f32 largest4(f32x4 v) { return max32(max32(abs32(v.x), abs32(v.y)), max32(abs32(v.z), abs32(v.w))); }

enum { GROUP_THREADS = 128, GROUP_SIMDS = 4 };

struct SumGroup { f32 part[GROUP_SIMDS]; };

// The sum of `v` over the group, the same in every thread.
FN f32 sum_group(f32 v, GROUP SumGroup& g, Lane t) {
  v = sum_lanes<SIMD>(v);
  if (t.lane == 0) g.part[t.simd] = v;
  group_barrier();
  f32 sum = g.part[0];
  UNROLL for (i32 s = 1; s < GROUP_SIMDS; s++) sum += g.part[s];
  return sum;
}

// The activations of gated units: numbers of `plan::Activation`.
enum { SILU, GELU_TANH, RELU, CLAMPED_SWIGLU };
#define SWIGLU_ALPHA 1.702f
#define SWIGLU_LIMIT 7.f

// What the sigmoid of an activation that is x times one takes.
FN f32 sigmoid_argument(f32 x, i32 activation) {
  if (activation == CLAMPED_SWIGLU) return x * SWIGLU_ALPHA;
  return activation == GELU_TANH ? x * fma32(x * x, 0.071354814f, 1.5957691f) : x;
}
FN f32 activated(f32 x, i32 activation) {
  if (activation == RELU) return x < 0.f ? 0.f : x;  // NaN stays
  return x / (1.f + exp32(-sigmoid_argument(x, activation)));
}
// What goes into the activation of a gate, and what that is multiplied by: NaN stays.
FN f32 clamped_gate(f32 gate, i32 activation) {
  return activation == CLAMPED_SWIGLU && gate > SWIGLU_LIMIT ? SWIGLU_LIMIT : gate;
}
FN f32 let_through(f32 up, i32 activation) {
  if (activation != CLAMPED_SWIGLU) return up;
  return (up > SWIGLU_LIMIT ? SWIGLU_LIMIT : up < -SWIGLU_LIMIT ? -SWIGLU_LIMIT : up) + 1.f;
}
// A gated unit.
FN f32 gated(f32 gate, f32 up, i32 activation) {
  return activated(clamped_gate(gate, activation), activation) * let_through(up, activation);
}

// A vector of a row of `width` f32, with zeros past its end.
FN f32x4 row_vector(Ptr<const f32x4> row, i32 i, i32 width) {
  f32x4 v;
  v.x = v.y = v.z = v.w = 0.f;
  if (i * 4 < width) v = row[i];
  if (i * 4 + 3 >= width) {
    if (i * 4 + 1 >= width) v.y = 0.f;
    if (i * 4 + 2 >= width) v.z = 0.f;
    v.w = 0.f;
  }
  return v;
}

// 1 / sqrt(mean(x²) + eps) of a row, the same in every thread of the group: four loads of each thread are under way, and
// a thread adds its vectors in order, whoever calls.
FN f32 row_scale(Ptr<const f32x4> row, i32 width, f32 eps, GROUP SumGroup& g, Lane t) {
  f32 squares = 0;
  for (i32 base = t.simd * SIMD + t.lane; base * 4 < width; base += 4 * GROUP_THREADS) {
    f32x4 v[4];
    UNROLL for (i32 j = 0; j < 4; j++) v[j] = row_vector(row, base + j * GROUP_THREADS, width);
    UNROLL for (i32 j = 0; j < 4; j++)
      squares = fma32(v[j].w, v[j].w, fma32(v[j].z, v[j].z, fma32(v[j].y, v[j].y, fma32(v[j].x, v[j].x, squares))));
  }
  return inv_sqrt(sum_group(squares, g, t) / f32(width) + eps);
}
