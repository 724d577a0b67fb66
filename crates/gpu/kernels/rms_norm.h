// rms_norm: y = x / sqrt(mean(x²) + eps) · gain, over each slice of a row that is as wide as the gain.
//
// Shapes    x, y (rows, slices · width), f32; gain (width,), f32. With `select`, row i of y is made from row select[i].
// Grid      (slices, rows); a group a slice.
// Bytes     x twice (once from cache) and y once: a few microseconds at most, bound by latency.
// Accuracy  sums in f32, each thread a stride of 128, then by halves: within (width + 2) · ε.
// Order     of a whole row as in norm_linear, so that a row's result does not depend on which of the two made it.
struct RmsNormParams {
  Ptr<const f32x4> x;
  Ptr<const f32x4> gain;
  Ptr<const i32> rows;
  Ptr<const i32> select;
  Ptr<f32> y;
  i32 width, slices;
  i32 x_stride, y_stride;
  f32 eps;
  i32 padding;
};

FN void rms_norm(CONST RmsNormParams& p, GROUP SumGroup& g, Lane t) {
  let_next_start();
  wait_for_previous();
  if (t.gy >= p.rows[0]) return;  // the whole group
  const i32 source = given(p.select) ? p.select[t.gy] : t.gy, first = t.simd * SIMD + t.lane;
  const Ptr<const f32x4> row = offset(p.x, i64(source) * (p.x_stride / 4));
  const Ptr<f32> y = offset(p.y, i64(t.gy) * p.y_stride + i64(t.gx) * p.width);
  if (p.slices == 1 || p.width % 4 == 0) {  // one slice, or slices that begin on 16 bytes
    const Ptr<const f32x4> x = offset(row, i64(t.gx) * (p.width / 4));
    const f32 scale = row_scale(x, p.width, p.eps, g, t);
    for (i32 i = first; i * 4 < p.width; i += GROUP_THREADS) {
      const f32x4 v = x[i], gain = row_vector(p.gain, i, p.width);
      y[i * 4] = v.x * scale * gain.x;
      if (i * 4 + 1 < p.width) y[i * 4 + 1] = v.y * scale * gain.y;
      if (i * 4 + 2 < p.width) y[i * 4 + 2] = v.z * scale * gain.z;
      if (i * 4 + 3 < p.width) y[i * 4 + 3] = v.w * scale * gain.w;
    }
    return;
  }
  const Ptr<const f32> x = offset(scalars(row), i64(t.gx) * p.width), gain = scalars(p.gain);
  f32 squares = 0;
  for (i32 i = first; i < p.width; i += GROUP_THREADS) squares = fma32(x[i], x[i], squares);
  const f32 scale = inv_sqrt(sum_group(squares, g, t) / f32(p.width) + p.eps);
  for (i32 i = first; i < p.width; i += GROUP_THREADS) y[i] = x[i] * scale * gain[i];
}
KERNEL(rms_norm_f32, RmsNormParams, SumGroup, 128, rms_norm)
