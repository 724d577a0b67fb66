// weight_norms: the largest of the norms of a matrix's rows, each number times its gain: what a product of such a row and a
// row of RMS 1 cannot exceed, but for the root of k.
//
// Shapes    weight (n, k) in any weight format, of each of some experts at equal distances; gain (k,), f32; y (SIMD groups of the
//           grid,), f32.
// Grid      any number of groups: a SIMD group takes every so-manieth row, and leaves the largest sum of squares of its rows.
// Bytes     the matrices, once.
struct WeightNormsParams {
  Ptr<const u32x4> weight;
  Ptr<const f16> scales;
  Ptr<const f32> gain;
  Ptr<f32> y;
  Ptr<const f32> matrix_scales;  // of experts, absent: `matrix_scale`
  i32 n, k, groups;
  f32 matrix_scale;
  i32 experts, stride;           // stride: from expert to expert, in 16 bytes
};

template <class W>
FN void weight_norms(CONST WeightNormsParams& p, GROUP NoGroup&, Lane t) {
  const i32 chunks = (p.k + W::LEN - 1) / W::LEN, worker = t.gx * t.simds + t.simd;
  let_next_start();
  wait_for_previous();
  f32 most = 0.f;
  for (i32 at = worker; at < p.n * p.experts; at += p.groups * t.simds) {
    const i32 expert = at / p.n, row = at - expert * p.n;
    const i64 from = i64(expert) * p.stride;
    const Ptr<const u32x4> weight = offset(p.weight, from);
    const Ptr<const f16> scales = offset(p.scales, from * 8);
    const f32 matrix_scale = given(p.matrix_scales) ? p.matrix_scales[expert] : p.matrix_scale;
    f32 squares = 0.f;
    for (i32 chunk = t.lane; chunk < chunks; chunk += SIMD) {
      f32 w[W::LEN];
      const f32 scale = matrix_scaled<W>(W::widen(w, W::load(weight, scales, row, chunks, chunk)), matrix_scale);
      UNROLL for (i32 i = 0; i < W::LEN; i++) {
        const i32 column = chunk * W::LEN + i;
        const f32 v = column < p.k ? w[i] * scale * p.gain[column] : 0.f;
        squares = fma32(v, v, squares);
      }
    }
    most = max32(most, sum_lanes<SIMD>(squares));
  }
  if (t.lane == 0) p.y[worker] = most;
}
KERNEL(weight_norms_f32, WeightNormsParams, NoGroup, 128, weight_norms<WeightF32>)
KERNEL(weight_norms_bf16, WeightNormsParams, NoGroup, 128, weight_norms<WeightBF16>)
KERNEL(weight_norms_f16, WeightNormsParams, NoGroup, 128, weight_norms<WeightF16>)
KERNEL(weight_norms_q8_0, WeightNormsParams, NoGroup, 128, weight_norms<WeightQ8_0>)
KERNEL(weight_norms_fp8, WeightNormsParams, NoGroup, 128, weight_norms<WeightFP8>)
KERNEL(weight_norms_q4_0, WeightNormsParams, NoGroup, 128, weight_norms<WeightQ4_0>)
KERNEL(weight_norms_q4_g128, WeightNormsParams, NoGroup, 128, weight_norms<WeightQ4G128>)
KERNEL(weight_norms_q4_z128, WeightNormsParams, NoGroup, 128, weight_norms<WeightQ4Z128>)
KERNEL(weight_norms_mxfp4, WeightNormsParams, NoGroup, 128, weight_norms<WeightMXFP4>)
KERNEL(weight_norms_nvfp4, WeightNormsParams, NoGroup, 128, weight_norms<WeightNVFP4>)
KERNEL(weight_norms_q4_k, WeightNormsParams, NoGroup, 128, weight_norms<WeightQ4_K>)
KERNEL(weight_norms_q6_k, WeightNormsParams, NoGroup, 128, weight_norms<WeightQ6_K>)
