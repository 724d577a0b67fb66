// glu: y = activation(a) · b.  add: y = a + b.  select_outputs: y[i] = a[select[i]].  gather_columns: y[i][j] = a[i][select[j]].
//
// Shapes    all (rows, width), f32.
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
  i32 activation, padding;
};

FN i32 elementwise_column(CONST ElementwiseParams& p, Lane t) {
  let_next_start();
  wait_for_previous();
  const i32 column = (t.gx * t.simds + t.simd) * SIMD + t.lane;
  return t.gy < p.rows[0] && column < p.width ? column : -1;
}

FN void glu(CONST ElementwiseParams& p, GROUP NoGroup&, Lane t) {
  const i32 i = elementwise_column(p, t);
  if (i >= 0) p.y[i64(t.gy) * p.y_stride + i] = activated(p.a[i64(t.gy) * p.a_stride + i], p.activation) * p.b[i64(t.gy) * p.b_stride + i];
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
KERNEL(glu_f32, ElementwiseParams, NoGroup, 128, glu)
KERNEL(add_f32, ElementwiseParams, NoGroup, 128, add)
KERNEL(select_outputs_f32, ElementwiseParams, NoGroup, 128, select_outputs)
KERNEL(gather_columns_f32, ElementwiseParams, NoGroup, 128, gather_columns)
