// gemm_formats: weights in blocks as the operands of m16n8k16 and of Hopper's matrix instructions, from registers: how a thread
// finds its share of 64 weights of a row, and what makes f16 of it. For gemm_mma.h, sm90/gemm.h and sm90/gemm_narrow.h.
#if MATRIX_16X8X16

// Weights of a row in a block of k, where x has 128 bytes; blocks that one load of scales is for.
enum { GEMM_K = 64, GEMM_UNIT = 4 };

#ifndef HAS_E4M3
// Numbers of E4M3 as pairs of f16, exactly, for devices without an instruction for it.
FN void e4m3x4_to_f16x4(THREAD u32& low, THREAD u32& high, u32 word) {
  const u32 even = mul_f16x2(e4m3_even(word), 0x5c005c00u), odd = mul_f16x2(e4m3_odd(word), 0x5c005c00u);
  low = byte_perm(even, odd, 0x5410);
  high = byte_perm(even, odd, 0x7632);
}
FN u32 e4m3x2_to_f16x2(u32 pair) {  // in the lower half of a word
  u32 low, high;
  e4m3x4_to_f16x4(low, high, pair);
  return low;
}
#endif

// LINE: bytes of 64 weights of a row. PACK: numbers in an element of their tensor map.
// F16, BF16: operands come from group memory as they are.
struct GemmHalves {
  enum { LINE = GEMM_K * 2, IN_REGISTERS = 0, PACK = 1 };
};

// Blocks: codes become f16 on the way to the matrix instruction, which takes W from registers. So that a thread finds its share
// of 64 codes of a row side by side, x comes with each 64 of k in the order of operand.h. The scales of 256 weights are
// 16 bytes, or a block of `WeightQ6_K`; what a thread multiplies its share by, and then subtracts, are two pairs of equal f16.
struct GemmScale { u32 scale, minimum; };
// The scales of 256 weights of a row, whose scales begin at `row`.
struct GemmUnit16 {
  typedef u32x4 Unit;
  enum { SCALES = 16 };  // bytes
  static PART Unit unit(Ptr<const f16> row, i32 place, i32 t) { return load_once(vectors16(row), place); }
};

// Two codes as f16 with `bias` in them, which the first operation takes away without rounding.
FN u32 gemm_unbiased(u32 pair, u32 bias, GemmScale s) {
  return mul_f16x2(sub_f16x2(pair, bias), s.scale);
}
// The scale of 32 codes of eight in a block of 256.
FN GemmScale gemm_scale_of_32(u32x4 scales, i32 pair, i32 t) {
  const u32 two = pair < 2 ? (pair == 0 ? scales.x : scales.y) : (pair == 2 ? scales.z : scales.w);
  return {byte_perm(two, 0, t < 2 ? 0x1010 : 0x3232), 0};
}

struct GemmQ8_0 : GemmUnit16 {
  enum { LINE = GEMM_K, IN_REGISTERS = 1, PACK = 1 };
  typedef u32x4 Share;
  static PART i32 place(i32 row, i32 t) { return row * GEMM_K + t * 16; }
  static PART Share load(GroupAddress at, THREAD const Unit& unit, i32 pair) { return load_group_bits(at); }
  // Of the pair-th 64 weights of a block.
  static PART GemmScale scale(u32x4 scales, i32 pair, i32 t) { return gemm_scale_of_32(scales, pair, t); }
  // The four codes of a step of 16: 1024 + 128 + code has the code in its low bits.
  static PART void widen(THREAD u32& low, THREAD u32& high, Share share, i32 step, GemmScale s) {
    const u32 biased = (step < 2 ? (step == 0 ? share.x : share.y) : (step == 2 ? share.z : share.w)) ^ 0x80808080u;
    low = gemm_unbiased(byte_perm(biased, 0x64646464u, 0x4140), 0x64806480u, s);
    high = gemm_unbiased(byte_perm(biased, 0x64646464u, 0x4342), 0x64806480u, s);
  }
};

struct GemmFP8 : GemmQ8_0 {
  // 2^-8 first: beside it the scale may be too small for f16.
  static PART u32 scaled(u32 pair, GemmScale s) { return mul_f16x2(mul_f16x2(pair, 0x1c001c00u), s.scale); }
  static PART void widen(THREAD u32& low, THREAD u32& high, Share share, i32 step, GemmScale s) {
    e4m3x4_to_f16x4(low, high, step < 2 ? (step == 0 ? share.x : share.y) : (step == 2 ? share.z : share.w));
    low = scaled(low, s);
    high = scaled(high, s);
  }
};

// Steps are the lower halves of the bytes of a word, then the upper ones, which are 1024 + 16 · code.
struct GemmHalfBytes {
  enum { LINE = GEMM_K / 2, IN_REGISTERS = 1, PACK = 2 };
  static PART i32 place(i32 row, i32 t) { return row * (GEMM_K / 2) + t * 8; }
};
struct GemmFourBits : GemmHalfBytes, GemmUnit16 {
  typedef u32x2 Share;
  static PART Share load(GroupAddress at, THREAD const Unit& unit, i32 pair) { return load_group_two(at); }
};
// (a & mask) | 1024 in each half.
FN u32 gemm_codes(u32 word, u32 mask) { return and_or(word, mask, 0x64006400u); }
struct GemmQ4_0 : GemmFourBits {
  static PART GemmScale scale(u32x4 scales, i32 pair, i32 t) { return gemm_scale_of_32(scales, pair, t); }
  static PART u32 pair(u32 word, bool upper, GemmScale s) {
    if (!upper) return gemm_unbiased(gemm_codes(word, 0x000f000fu), 0x64086408u, s);
    return mul_f16x2(fma_f16x2(gemm_codes(word, 0x00f000f0u), 0x2c002c00u, 0xd480d480u), s.scale);
  }
  static PART void widen(THREAD u32& low, THREAD u32& high, Share share, i32 step, GemmScale s) {
    const u32 word = step < 2 ? share.x : share.y;
    low = pair(word, step % 2 == 1, s);
    high = pair(word >> 8, step % 2 == 1, s);
  }
};
// One scale for 128.
struct GemmQ4G128 : GemmQ4_0 {
  enum { SCALES = 4 };
  typedef u32 Unit;
  static PART Unit unit(Ptr<const f16> row, i32 place, i32 t) { return load_once(words(row), place); }
  static PART Share load(GroupAddress at, Unit unit, i32 pair) { return load_group_two(at); }
  static PART GemmScale scale(Unit scales, i32 pair, i32 t) { return {byte_perm(scales, 0, pair < 2 ? 0x1010 : 0x3232), 0}; }
};
// Formats with eight bytes of scales for 256.
struct GemmUnit8 : GemmHalfBytes {
  enum { SCALES = 8 };
  typedef u32x2 Unit;
  typedef u32x2 Share;
  static PART Unit unit(Ptr<const f16> row, i32 place, i32 t) {
    return {load_once(words(row), 2 * place), load_once(words(row), 2 * place + 1)};
  }
  static PART Share load(GroupAddress at, THREAD const Unit& unit, i32 pair) { return load_group_two(at); }
};
// One scale and one zero point for 128. What `minimum` has is 1024 + the zero point.
struct GemmQ4Z128 : GemmUnit8 {
  static PART GemmScale scale(Unit unit, i32 pair, i32 t) {
    const u32 both = pair < 2 ? unit.x : unit.y;
    return {byte_perm(both, 0, 0x1010), fma_f16x2(byte_perm(both, 0, 0x3232), 0x3c003c00u, 0x64006400u)};
  }
  // 1024 + 16 · code becomes 64 + code, and 64 + the zero point is taken away.
  static PART u32 pair(u32 word, bool upper, GemmScale s) {
    if (!upper) return gemm_unbiased(gemm_codes(word, 0x000f000fu), s.minimum, s);
    return mul_f16x2(fma_f16x2(gemm_codes(word, 0x00f000f0u), 0x2c002c00u, sub_f16x2(0x63806380u, s.minimum)), s.scale);
  }
  static PART void widen(THREAD u32& low, THREAD u32& high, Share share, i32 step, GemmScale s) {
    const u32 word = step < 2 ? share.x : share.y;
    low = pair(word, step % 2 == 1, s);
    high = pair(word >> 8, step % 2 == 1, s);
  }
};
struct GemmMXFP4 : GemmUnit8 {
  // 2^5 of a power of two between 2^-19 and 2^10 (it is nothing below, and 2^10 above), as numbers are 2^-14 of themselves and
  // become 2^-5 of themselves first: so it is a normal number of f16.
  static PART GemmScale scale(Unit exponents, i32 pair, i32 t) {
    const i32 exponent = i32((pair < 2 ? exponents.x : exponents.y) >> (pair % 2 * 16 + t / 2 * 8) & 255u) - 107;
    return {(u32)mini(maxi(exponent, 0), 30) * 0x04000400u, 0};
  }
  static PART u32 pair(u32 numbers, GemmScale s) { return mul_f16x2(mul_f16x2(numbers, 0x60006000u), s.scale); }
  static PART void widen(THREAD u32& low, THREAD u32& high, Share share, i32 step, GemmScale s) {
    const u32 word = step < 2 ? share.x : share.y;
    low = pair(step % 2 == 1 ? e2m1_pair<1>(word) : e2m1_pair<0>(word), s);
    high = pair(step % 2 == 1 ? e2m1_pair<3>(word) : e2m1_pair<2>(word), s);
  }
};
// A thread's 16 weights are of two scales, which lower and upper halves have. Numbers are 2^-14 of themselves, and so are products
// with scales of E4M3: f16 has all of them. What a matrix is multiplied by besides, and 2^14, is for the sums.
struct GemmNVFP4 : GemmFourBits {
  static PART GemmScale scale(u32x4 scales, i32 pair, i32 t) {
    const u32 four = pair < 2 ? (pair == 0 ? scales.x : scales.y) : (pair == 2 ? scales.z : scales.w);
    const u32 two = e4m3x2_to_f16x2(four >> (t / 2 * 16));
    return {byte_perm(two, 0, 0x1010), byte_perm(two, 0, 0x3232)};
  }
  static PART u32 pair(u32 numbers, u32 scale) { return mul_f16x2(numbers, scale); }
  static PART void widen(THREAD u32& low, THREAD u32& high, Share share, i32 step, GemmScale s) {
    const u32 word = step < 2 ? share.x : share.y, scale = step % 2 == 0 ? s.scale : s.minimum;
    low = pair(step % 2 == 1 ? e2m1_pair<1>(word) : e2m1_pair<0>(word), scale);
    high = pair(step % 2 == 1 ? e2m1_pair<3>(word) : e2m1_pair<2>(word), scale);
  }
};
template <> struct HasMatrixScale<GemmNVFP4> { enum { VALUE = 1 }; };

struct GemmQ4_K : GemmFourBits {
  // See `scale_q4_k`: the two numbers of six bits become f16 together.
  static PART GemmScale scale(u32x4 scales, i32 pair, i32 t) {
    const u32 low = (pair < 2 ? scales.y : scales.z) >> (pair % 2 * 16 + t / 2 * 8), high = scales.w >> (pair * 8 + t / 2 * 4);
    const u32 both = (low & 15u) | (high & 3u) << 4 | (low & 0xf0u) << 12 | (high & 12u) << 18 | 0x64006400u;
    const u32 r = mul_f16x2(sub_f16x2(both, 0x64006400u), scales.x);
    return {byte_perm(r, 0, 0x1010), byte_perm(r, 0, 0x3232) ^ 0x80008000u};
  }
  static PART u32 pair(u32 word, bool upper, GemmScale s) {
    const u32 code = upper ? fma_f16x2(gemm_codes(word, 0x00f000f0u), 0x2c002c00u, 0xd400d400u)
                           : fma_f16x2(gemm_codes(word, 0x000f000fu), 0x3c003c00u, 0xe400e400u);
    return fma_f16x2(code, s.scale, s.minimum);
  }
  static PART void widen(THREAD u32& low, THREAD u32& high, Share share, i32 step, GemmScale s) {
    const u32 word = step < 2 ? share.x : share.y;
    low = pair(word, step % 2 == 1, s);
    high = pair(word >> 8, step % 2 == 1, s);
  }
};

// The upper two bits of a thread's share are one word. Its 16 weights are of two scales, which lower and upper halves have.
struct GemmQ6_K : GemmHalfBytes {
  enum { SCALES = Q6_K_WORDS * 4 };
  struct Unit { u32 high[4], scales[2], unit; };  // of each 64 weights, the two scales that the thread needs
  struct Share { u32 x, y, high; };
  static PART Unit unit(Ptr<const f16> row, i32 place, i32 t) {
    const Ptr<const u32> block = offset(words(row), place * Q6_K_WORDS);
    Unit u;
    UNROLL for (i32 s = 0; s < 4; s++) u.high[s] = load_once(block, t * 4 + s);
    u32 scales[4];
    UNROLL for (i32 s = 0; s < 4; s++) scales[s] = load_once(block, Q6_K_SCALES + s);
    take_scales(u, scales, t);
    u.unit = load_once(block, Q6_K_UNIT);
    return u;
  }
  static PART void take_scales(THREAD Unit& u, THREAD const u32 (&scales)[4], i32 t) {
    const u32 halves = t < 2 ? 0x5410 : 0x7632;
    u.scales[0] = byte_perm(scales[0], scales[1], halves);
    u.scales[1] = byte_perm(scales[2], scales[3], halves);
  }
  static PART Share load(GroupAddress at, THREAD const Unit& unit, i32 pair) {
    const u32x2 codes = load_group_two(at);
    return {codes.x, codes.y, high(unit, pair)};
  }
  static PART u32 high(THREAD const Unit& u, i32 pair) { return pair < 2 ? (pair == 0 ? u.high[0] : u.high[1]) : (pair == 2 ? u.high[2] : u.high[3]); }
  static PART GemmScale scale(THREAD const Unit& u, i32 pair, i32 t) {
    return scale_of((pair < 2 ? u.scales[0] : u.scales[1]) >> (pair % 2 * 16), u.unit);
  }
  // Both scales become f16 together.
  static PART GemmScale scale_of(u32 scales, u32 unit) {
    const u32 both = byte_perm(scales ^ 0x80808080u, 0x64646464u, 0x4140), units = byte_perm(unit, 0, 0x1010);
    const u32 r = mul_f16x2(sub_f16x2(both, 0x64806480u), units);
    return {byte_perm(r, 0, 0x1010), byte_perm(r, 0, 0x3232)};
  }
  // 1024 + 32 less the highest bit, which is inverted: 1024 + code.
  static PART u32 pair(u32 codes, u32 high, u32 scale) {
    const u32 biased = (high & 0x00300030u) ^ and_or(codes, 0x000f000fu, 0x64206420u);
    return mul_f16x2(sub_f16x2(biased, 0x64206420u), scale);
  }
  static PART void widen(THREAD u32& low, THREAD u32& high, Share share, i32 step, GemmScale s) {
    const u32 word = (step < 2 ? share.x : share.y) >> (step % 2 * 4), scale = step % 2 == 0 ? s.scale : s.minimum;
    const u32 upper = step < 2 ? share.high << (4 - 2 * step) : share.high >> (2 * step - 4);
    low = pair(word, upper, scale);
    high = pair(word >> 8, upper >> 8, scale);
  }
};

#endif
