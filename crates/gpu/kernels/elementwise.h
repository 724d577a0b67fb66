// glu: y = activation(a) · b.  add: y = a + b.  select_outputs: y[i] = a[select[i]].  gather_columns: y[i][j] = a[i][select[j]].
// combine: y[i][j] = Σ_s b[i][s] · a[i][s · width + j], in the order of s.  gate_rows: y[i] = sigmoid(b[i]) · a[i].
//
// Shapes    all (rows, width), f32; combine: a (rows, terms · width), b (rows, terms); gate_rows: b (rows, 1).
// Grid      (width / 128, rows).
// Bytes     each operand once: bound by memory, or latency where rows are few.
struct ElementwiseParams {
  Ptr<const f32> a;
  Ptr<const f32> b;
  Ptr<const i32> rows;
  Ptr<const i32> select;
  Ptr<f32> y;
  i32 width, a_stride;
  i32 b_stride, y_stride;
  i32 activation, terms;
};

FN i32 elementwise_column(CONST ElementwiseParams& p, Lane t) {
  let_next_start();
  wait_for_previous();
  const i32 column = (t.gx * t.simds + t.simd) * SIMD + t.lane;
  return t.gy < p.rows[0] && column < p.width ? column : -1;
}

FN void glu(CONST ElementwiseParams& p, GROUP NoGroup&, Lane t) {
  const i32 i = elementwise_column(p, t);
  if (i >= 0) p.y[i64(t.gy) * p.y_stride + i] = gated(p.a[i64(t.gy) * p.a_stride + i], p.b[i64(t.gy) * p.b_stride + i], p.activation);
}
FN void add(CONST ElementwiseParams& p, GROUP NoGroup&, Lane t) {
  const i32 i = elementwise_column(p, t);
  if (i >= 0) p.y[i64(t.gy) * p.y_stride + i] = p.a[i64(t.gy) * p.a_stride + i] + p.b[i64(t.gy) * p.b_stride + i];
}
FN void select_outputs(CONST ElementwiseParams& p, GROUP NoGroup&, Lane t) {
  const i32 i = elementwise_column(p, t);
  if (i >= 0) p.y[i64(t.gy) * p.y_stride + i] = p.a[i64(p.select[t.gy]) * p.a_stride + i];
}
FN void gather_columns(CONST ElementwiseParams& p, GROUP NoGroup&, Lane t) {
  const i32 i = elementwise_column(p, t);
  if (i >= 0) p.y[i64(t.gy) * p.y_stride + i] = p.a[i64(t.gy) * p.a_stride + p.select[i]];
}
FN void combine(CONST ElementwiseParams& p, GROUP NoGroup&, Lane t) {
  const i32 i = elementwise_column(p, t);
  if (i < 0) return;
  f32 sum = 0.f;
  for (i32 s = 0; s < p.terms; s++)
    sum = fma32(p.b[i64(t.gy) * p.b_stride + s], p.a[i64(t.gy) * p.a_stride + i64(s) * p.width + i], sum);
  p.y[i64(t.gy) * p.y_stride + i] = sum;
}
FN void gate_rows(CONST ElementwiseParams& p, GROUP NoGroup&, Lane t) {
  const i32 i = elementwise_column(p, t);
  if (i >= 0) p.y[i64(t.gy) * p.y_stride + i] = p.a[i64(t.gy) * p.a_stride + i] / (1.f + exp32(-p.b[i64(t.gy) * p.b_stride]));
}
KERNEL(glu_f32, ElementwiseParams, NoGroup, 128, glu)
KERNEL(add_f32, ElementwiseParams, NoGroup, 128, add)
KERNEL(select_outputs_f32, ElementwiseParams, NoGroup, 128, select_outputs)
KERNEL(gather_columns_f32, ElementwiseParams, NoGroup, 128, gather_columns)
KERNEL(combine_f32, ElementwiseParams, NoGroup, 128, combine)
KERNEL(gate_rows_f32, ElementwiseParams, NoGroup, 128, gate_rows)
