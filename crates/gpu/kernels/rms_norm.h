// rms_norm: y = x / sqrt(mean(x²) + eps) · gain, over each slice of a row that is as wide as the gain.
//
// Shapes    x, y (rows, slices · width), f32; gain (width,), f32. With `select`, row i of y is made from row select[i].
// Grid      (slices, rows); a group a slice.
// Bytes     x twice (once from cache) and y once: a few microseconds at most, bound by latency.
// Accuracy  sums in f32, each thread a stride of 128, then by halves: within (width + 2) · ε.
struct RmsNormParams {
  Ptr<const f32> x;
  Ptr<const f32> gain;
  Ptr<const i32> rows;
  Ptr<const i32> select;
  Ptr<f32> y;
  i32 width, x_stride, y_stride;
  f32 eps;
};

FN void rms_norm(CONST RmsNormParams& p, GROUP SumGroup& g, Lane t) {
  let_next_start();
  wait_for_previous();
  if (t.gy >= p.rows[0]) return;  // the whole group
  const i32 source = given(p.select) ? p.select[t.gy] : t.gy, thread = t.simd * SIMD + t.lane;
  const Ptr<const f32> x = offset(p.x, i64(source) * p.x_stride + i64(t.gx) * p.width);
  const Ptr<f32> y = offset(p.y, i64(t.gy) * p.y_stride + i64(t.gx) * p.width);
  f32 squares = 0;
  for (i32 i = thread; i < p.width; i += GROUP_THREADS) squares = fma32(x[i], x[i], squares);
  const f32 scale = inv_sqrt(sum_group(squares, g, t) / f32(p.width) + p.eps);
  for (i32 i = thread; i < p.width; i += GROUP_THREADS) y[i] = x[i] * scale * p.gain[i];
}
KERNEL(rms_norm_f32, RmsNormParams, SumGroup, 128, rms_norm)
