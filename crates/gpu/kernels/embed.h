// embed: y[row] = table[ids[row]]. A negative id is fed by the step before: the token that was chosen for output id & 2^31-1.
//
// Shapes    table (vocab_size, k) in any weight format; ids (rows,); y (rows, stride >= k), f32.
// Grid      (chunks of a row / 128, rows); a thread widens one 16-byte chunk.
// Bytes     one row of the table each, once. Bound by latency.
struct EmbedParams {
  Ptr<const u32x4> table;
  Ptr<const f16> scales;
  Ptr<const i32> ids;
  Ptr<const i32> rows;
  Ptr<const i32> chosen;  // (outputs of the step before, 4), the ids first
  Ptr<f32> y;
  i32 k, stride;
  f32 matrix_scale;
  i32 padding;
};

template <class W>
FN void embed(CONST EmbedParams& p, GROUP NoGroup&, Lane t) {
  const i32 row = t.gy, chunks = (p.k + W::LEN - 1) / W::LEN, chunk = (t.gx * t.simds + t.simd) * SIMD + t.lane;
  let_next_start();
  wait_for_previous();
  if (row < p.rows[0] && chunk < chunks) {
    i32 id = p.ids[row];
    if (id < 0) id = p.chosen[i64(id & 0x7fffffff) * 4];
    f32 w[W::LEN];
    const f32 scale = matrix_scaled<W>(W::widen(w, W::load(p.table, p.scales, id, chunks, chunk)), p.matrix_scale);
    UNROLL for (i32 i = 0; i < W::LEN; i++) {
      const i32 column = chunk * W::LEN + i;
      if (column < p.k) p.y[i64(row) * p.stride + column] = w[i] * scale;
    }
  }
}
KERNEL(embed_f32, EmbedParams, NoGroup, 128, embed<WeightF32>)
KERNEL(embed_f16, EmbedParams, NoGroup, 128, embed<WeightF16>)
KERNEL(embed_bf16, EmbedParams, NoGroup, 128, embed<WeightBF16>)
KERNEL(embed_q8_0, EmbedParams, NoGroup, 128, embed<WeightQ8_0>)
KERNEL(embed_q4_0, EmbedParams, NoGroup, 128, embed<WeightQ4_0>)
KERNEL(embed_fp8, EmbedParams, NoGroup, 128, embed<WeightFP8>)
KERNEL(embed_q4_g128, EmbedParams, NoGroup, 128, embed<WeightQ4G128>)
KERNEL(embed_q4_z128, EmbedParams, NoGroup, 128, embed<WeightQ4Z128>)
KERNEL(embed_mxfp4, EmbedParams, NoGroup, 128, embed<WeightMXFP4>)
KERNEL(embed_nvfp4, EmbedParams, NoGroup, 128, embed<WeightNVFP4>)
KERNEL(embed_q4_k, EmbedParams, NoGroup, 128, embed<WeightQ4_K>)
KERNEL(embed_q6_k, EmbedParams, NoGroup, 128, embed<WeightQ6_K>)
