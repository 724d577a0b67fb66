// peak_f16_four: as peak_f16 of roofline.h, by Hopper's matrix instructions of four SIMD groups: twice 64 rows times 256, both
// operands in group memory, `rounds` times 64 of k.
#if __CUDA_ARCH_FEAT_SM90_ALL
enum { ROOFLINE_FOUR_THREADS = 256 };
enum { ROOFLINE_TILE = 64 * 32 };                          // words: 64 rows of 64 f16
struct RooflineTiles { u32 words[6 * ROOFLINE_TILE]; };  // of two times 64 rows, then of 256

FN void roofline_f16_four(CONST RooflineParams& p, GROUP RooflineTiles& g, Lane t) {
  const i32 slot = t.simd * SIMD + t.lane;
  for (i32 i = slot; i < (i32)sizeof(RooflineTiles) / 4; i += ROOFLINE_FOUR_THREADS)
    g.words[i] = f32x2_to_f16x2(roofline_number(2 * i), roofline_number(2 * i + 1));
  show_barriers();  // what was written, to the matrix instructions
  group_barrier();
  f32 sum[128];
  UNROLL for (i32 i = 0; i < 128; i++) sum[i] = 0.f;
  const unsigned long long w = tile_descriptor(group_address(g.words + t.simd / 4 * ROOFLINE_TILE)), x = tile_descriptor(group_address(g.words + 2 * ROOFLINE_TILE));
  wait_for_previous();
  ROLL for (i32 round = 0; round < p.rounds; round++) {
    matrix_begin();
    UNROLL for (i32 i = 0; i < 4; i++) MatrixOp<256>::f16(sum, w + 2 * i, x + 2 * i);
    matrix_commit();
    matrix_wait<1>();
  }
  matrix_wait<0>();
  // Not to be read before: the compiler would run the matrix instructions one by one.
  UNROLL for (i32 i = 0; i < 128; i++) asm volatile("" : "+f"(sum[i]));
  f32 all = 0;
  UNROLL for (i32 i = 0; i < 128; i++) all += sum[i];
  p.found[roofline_thread(t)] = f32_to_bits(all);
}
KERNEL_DYNAMIC(peak_f16_four, RooflineParams, RooflineTiles, 256, roofline_f16_four)
#endif
