// linear_batch: linear (see linear.h: the same segments, epilogues and meaning) for 2 to 32 rows, on the matrix instructions
// of SIMD groups (m16n8k16), with weights as their operand of 16 rows and activations as that of 8 columns.
//
// Shapes    as linear.h; F16, BF16 and Q8_0. With `gain`, row i is row select[i] (or i) of x, normalised.
// Grid      teams of `slices` groups, at most as many as run at once: they wait for each other. A group has a slice of the
//           input features, which it puts into group memory once, and its team makes tiles of output features, one after
//           another: 32 rows of weights (16 of gate, 16 of up) for each of 8 / k_simds SIMD groups, k_simds of which share
//           the slice. Weights stream through a ring of each SIMD group, asked for before the kernel ahead has ended and
//           across tiles. The other SIMD groups finish: a tile's outputs are shared among the team, each group gets what all
//           of them have added up for its share, and adds that up. Norms are a factor at the end: sums of squares travel too.
// Bytes     W once; a slice of x for each group; 4 · slices bytes an output and row, within the second cache. Bound by memory.
// Accuracy  activations times a power of two for each row and slice, rounded to f16 (2^-11 of themselves, or 2^-26 of the
//           slice's largest) or bf16 (2^-8); Q8_0's code · scale is rounded to f16 too. Sums in f32 (the instruction cuts
//           off what it shifts out): |error| <= (2^-11 or, for Q8_0, 2^-10 or, for BF16, 2^-8 + (k + slices) · 2^-22) · Σ|w·x|.
// Order     steps of k in each SIMD group, then k_simds, then slices, in order: all follow from the shapes of weights and
//           the device, so a row's bits do not depend on how many rows there are beside it, from 2 to 32.
//
// Where groups of a launch may wait for each other (not in Metal), and copies to group memory run beside the threads.
struct LinearBatchParams {
  LinearParams linear;    // a segment's `groups` are its tiles
  Ptr<f32x4> partials;    // messages between groups: (tiles, slices, N · row SIMD groups · 8)
  Ptr<f32x4> squares;     // the same: (teams, slices · finishers, slices, N)
  i32 tiles, teams;
  i32 slices, slice_steps;  // steps of 64 bytes · PIECES of a row
  i32 k_simds, scale_stride;
};
#if defined(GROUPS_MEET) && defined(MATRIX_16X8X16)

enum {
  BATCH_MULTIPLIERS = 8,  // SIMD groups that multiply; the others finish
  BATCH_ROWS_MAX = 32,    // rows of activations
  BATCH_FINISHERS_MAX = 4,
  BATCH_LOADS = 4,        // of 32 bytes a lane, that are under way at once
  BATCH_LOOKS = 4,        // messages that are looked at together
  BATCH_PIECES = 2,       // pieces of 64 bytes of each row of weights that are asked for together
};

struct LinearBatchGroup {
  f32 unscale[BATCH_ROWS_MAX], squares[BATCH_ROWS_MAX], norm[BATCH_FINISHERS_MAX][BATCH_ROWS_MAX];
  i32 sent, padding[3];  // tiles that this group has sent
};

FN f32x4 zero4() { f32x4 v; v.x = v.y = v.z = v.w = 0.f; return v; }
FN void add4(THREAD f32x4& sum, f32x4 v) { sum.x += v.x; sum.y += v.y; sum.z += v.z; sum.w += v.w; }
FN f32x4 times4(f32x4 v, f32x4 w) { v.x *= w.x; v.y *= w.y; v.z *= w.z; v.w *= w.w; return v; }
FN f32 squares4(f32x4 v, f32 sum) { return fma32(v.w, v.w, fma32(v.z, v.z, fma32(v.y, v.y, fma32(v.x, v.x, sum)))); }

// The power of two by which f16 has room for numbers of up to `largest`: 16 for the usual ones.
FN f32 batch_scale(f32 largest) {
  if ((largest >= 0.125f && largest < 2048.f) || !(largest > 0.f)) return 16.f;
  const i32 exponent = mini(maxi(i32(f32_to_bits(largest) >> 23 & 255u) - 127, -100), 127);
  return bits_to_f32(u32(127 + 14 - exponent) << 23);
}

// The weight formats. A piece is 64 bytes of 32 rows. A lane multiplies rows lane / 4 and 8 more, features of its
// lane % 4: which features those are of 16 is free, as long as weights and activations agree, so it takes 16 bytes together.
struct BatchF16 {
  static PART void multiply(THREAD f32x4& c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    f32 sums[4] = {c.x, c.y, c.z, c.w};
    mma_f16_16x8x16(sums, a0, a1, a2, a3, b0, b1);
    c.x = sums[0]; c.y = sums[1]; c.z = sums[2]; c.w = sums[3];
  }
  static PART u32 pack(f32 x, f32 y) { return to_f16x2(x, y); }
  static PART f32 scale(f32 largest) { return batch_scale(largest); }
};
struct BatchBF16 {
  static PART void multiply(THREAD f32x4& c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    f32 sums[4] = {c.x, c.y, c.z, c.w};
    mma_bf16_16x8x16(sums, a0, a1, a2, a3, b0, b1);
    c.x = sums[0]; c.y = sums[1]; c.z = sums[2]; c.w = sums[3];
  }
  static PART u32 pack(f32 x, f32 y) { return to_bf16x2(x, y); }
  static PART f32 scale(f32) { return 1.f; }
};

template <class F> struct BatchPlain {
  typedef F Number;
  // Numbers in 16 bytes; features of a piece; its bytes; of them, scales.
  enum { LEN = 8, FEATURES = 32, BYTES = 2048, SCALES = 0 };
  // Where a piece has 16 bytes of a row.
  static PART i32 place(i32 row, i32 chunk) { return row * 64 + chunk * 16; }
  template <i32 NT>
  static PART void step(THREAD f32x4 (&sum)[2][NT], GROUP LinearBatchGroup& g, i32 w, i32 x, i32 lane) {
    u32x4 b[NT];
    UNROLL for (i32 n = 0; n < NT; n++) b[n] = group_at<u32x4>(g, x + n * 512 + lane * 16)[0];
    UNROLL for (i32 r = 0; r < 2; r++) {
      const u32x4 low = group_at<u32x4>(g, w + r * 1024 + lane * 16)[0], high = group_at<u32x4>(g, w + r * 1024 + 512 + lane * 16)[0];
      UNROLL for (i32 n = 0; n < NT; n++) F::multiply(sum[r][n], low.x, high.x, low.y, high.y, b[n].x, b[n].y);
      UNROLL for (i32 n = 0; n < NT; n++) F::multiply(sum[r][n], low.z, high.z, low.w, high.w, b[n].z, b[n].w);
    }
  }
};

// Codes become f16, exactly, and are multiplied by their scale. After 32 rows of codes a piece has the two scales of each.
struct BatchQ8_0 {
  typedef BatchF16 Number;
  enum { LEN = 16, FEATURES = 64, BYTES = 2048 + 128, SCALES = 128 };
  // A lane takes 8 bytes of each block of 32: rows two apart lie in other banks.
  static PART i32 place(i32 row, i32 chunk) { return row * 64 + (chunk ^ (row & 2)) * 16; }
  template <i32 NT>
  static PART void step(THREAD f32x4 (&sum)[2][NT], GROUP LinearBatchGroup& g, i32 w, i32 x, i32 lane) {
    const i32 row = lane / 4, four = lane % 4;
    UNROLL for (i32 block = 0; block < 2; block++) {
      u32x4 b[NT];
      UNROLL for (i32 n = 0; n < NT; n++) b[n] = group_at<u32x4>(g, x + (block * NT + n) * 512 + lane * 16)[0];
      UNROLL for (i32 r = 0; r < 2; r++) {
        const i32 at = w + r * 1024 + place(row, block * 2) + four * 8, scale = w + 2048 + (r * 16 + row) * 4 + block * 2;
        const u32x2 low = group_at<u32x2>(g, at)[0], high = group_at<u32x2>(g, at + 512)[0];
        const f16 low_scale = group_at<f16>(g, scale)[0], high_scale = group_at<f16>(g, scale + 32)[0];
        const u32x2 a = i8x4_to_f16x4(low.x, low_scale), c = i8x4_to_f16x4(high.x, high_scale);
        const u32x2 d = i8x4_to_f16x4(low.y, low_scale), e = i8x4_to_f16x4(high.y, high_scale);
        UNROLL for (i32 n = 0; n < NT; n++) BatchF16::multiply(sum[r][n], a.x, c.x, a.y, c.y, b[n].x, b[n].y);
        UNROLL for (i32 n = 0; n < NT; n++) BatchF16::multiply(sum[r][n], d.x, e.x, d.y, e.y, b[n].z, b[n].w);
      }
    }
  }
};

// Where things lie in group memory, in bytes, after LinearBatchGroup.
struct BatchMemory { i32 ring, partials, gain, x; };

// What a SIMD group multiplies: rows, and steps of the input features.
struct BatchShare { i32 row_simd, row_simds, begin, steps, chunks; };

// What its copies are at.
struct BatchStream {
  Ptr<const u32x4> row[4];
  Ptr<const f16> scales;
  i32 tile, step, stage;
};

struct BatchPlace { i32 segment, tile; };
FN BatchPlace batch_place(CONST LinearParams& p, i32 tile) {
  BatchPlace place;
  place.segment = 0;
  while (place.segment < 2 && tile >= p.segments[place.segment].groups) tile -= p.segments[place.segment++].groups;
  place.tile = tile;
  return place;
}

// Points the copies at the rows of their tile.
template <class W>
FN void batch_seek(CONST LinearBatchParams& p, THREAD BatchStream& s, THREAD const BatchShare& share, i32 lane) {
  const BatchPlace place = batch_place(p.linear, s.tile);
  CONST LinearSegment& w = p.linear.segments[place.segment];
  const bool glu = given(w.up);
  const i32 first = (place.tile * share.row_simds + share.row_simd) * (glu ? 16 : 32);
  UNROLL for (i32 i = 0; i < 4; i++) {
    const i32 row = mini(first + (glu ? i % 2 : i) * 8 + lane / 4, w.n - 1);
    s.row[i] = offset(glu && i >= 2 ? w.up : w.weight, i64(row) * share.chunks + lane % 4);
  }
  if (W::SCALES > 0) {
    const i32 row = mini(first + (glu ? lane % 16 : lane), w.n - 1);
    s.scales = offset(glu && lane >= 16 ? w.up_scales : w.scales, i64(row) * p.scale_stride);
  }
}

// Asks for the next step, of the next tile where this one ends.
template <class W, i32 STAGES>
FN void batch_ask(CONST LinearBatchParams& p, GROUP LinearBatchGroup& g, THREAD BatchStream& s, THREAD const BatchShare& share, i32 ring, i32 lane) {
  if (s.tile < p.tiles && share.steps > 0) {
    if (s.step == 0) batch_seek<W>(p, s, share, lane);
    const i32 chunk = (share.begin + s.step) * (4 * BATCH_PIECES), at = ring + s.stage * (BATCH_PIECES * W::BYTES);
    UNROLL for (i32 i = 0; i < 4; i++) UNROLL for (i32 u = 0; u < BATCH_PIECES; u++) {
      const bool in = chunk + u * 4 + lane % 4 < share.chunks;
      copy16_async(g, at + u * W::BYTES + i * 512 + W::place(lane / 4, lane % 4), s.row[i], in ? chunk + u * 4 : 0, in);
    }
    if (W::SCALES > 0) UNROLL for (i32 u = 0; u < BATCH_PIECES; u++) {
      const bool in = chunk + u * 4 < share.chunks;
      copy4_async(g, at + u * W::BYTES + 2048 + lane * 4, s.scales, in ? (chunk + u * 4) / 2 : 0, in);
    }
    s.stage = s.stage + 1 == STAGES ? 0 : s.stage + 1;
    if (++s.step == share.steps) {
      s.step = 0;
      s.tile += p.teams;
    }
  }
  copies_asked();
}

// Puts a slice of the rows into group memory, as lanes multiply: 512 bytes for 32 features of 8 rows. A SIMD group takes a
// row; it begins with the usual scale, and does it again where that does not do. TAIL: the slice ends past the row.
template <class W, i32 NT, bool TAIL>
FN void batch_stage(CONST LinearBatchParams& p, GROUP LinearBatchGroup& g, THREAD const BatchMemory& m, i32 first, i32 blocks, i32 rows, Lane t) {
  const bool norm = given(p.linear.gain);
  for (i32 n = t.simd; n < NT * 8; n += t.simds) {
    const i32 chunks = n < rows ? blocks * 4 : 0;
    const i32 row = n >= rows ? 0 : given(p.linear.select) ? p.linear.select[n] : n;
    const Ptr<const f32x4> x = offset(p.linear.x, i64(row) * p.linear.x_stride);
    f32 largest = 0.f, squares = 0.f, scale = W::Number::scale(1.f);
    for (i32 pass = 0; pass < 2; pass++) {
      for (i32 base = 0; base < blocks * 4; base += SIMD * BATCH_LOADS) {
        f32x4 a[BATCH_LOADS], b[BATCH_LOADS];
        UNROLL for (i32 i = 0; i < BATCH_LOADS; i++) {
          const i32 c = base + i * SIMD + t.lane, at = first * 8 + c * 2;
          a[i] = b[i] = zero4();
          if (c < chunks) {
            a[i] = TAIL ? row_vector(x, at, p.linear.k) : x[at];
            b[i] = TAIL ? row_vector(x, at + 1, p.linear.k) : x[at + 1];
          }
        }
        UNROLL for (i32 i = 0; i < BATCH_LOADS; i++) {
          const i32 c = base + i * SIMD + t.lane;
          const bool in = c < blocks * 4;
          if (norm) {
            squares = squares4(b[i], squares4(a[i], squares));
            const i32 at = m.gain + (in ? c : 0) * 32;
            a[i] = times4(a[i], group_at<f32x4>(g, at)[0]);
            b[i] = times4(b[i], group_at<f32x4>(g, at + 16)[0]);
          }
          largest = max32(largest, max32(largest4(a[i]), largest4(b[i])));
          if (in)
            group_at<u32x4>(g, m.x + (c / 4 * NT + n / 8) * 512 + n % 8 * 64 + c % 4 * 16)[0] =
                make16(W::Number::pack(a[i].x * scale, a[i].y * scale), W::Number::pack(a[i].z * scale, a[i].w * scale),
                       W::Number::pack(b[i].x * scale, b[i].y * scale), W::Number::pack(b[i].z * scale, b[i].w * scale));
        }
      }
      if (pass > 0) continue;
      largest = max_lanes<SIMD>(largest);
      if (norm) squares = sum_lanes<SIMD>(squares);
      const f32 better = W::Number::scale(largest);
      if (t.lane == 0) {
        g.squares[n] = squares;
        g.unscale[n] = 1.f / better;
      }
      if (better == scale) break;
      scale = better;
      squares = 0.f;
    }
  }
}

// What outputs are made of beside sums.
struct BatchMore { f32x4 bias, up_bias, residual; };

FN f32x4 batch_four(Ptr<const f32> from, i32 first, i32 n) {
  f32x4 v = zero4();
  if (first < n) v.x = from[first];
  if (first + 1 < n) v.y = from[first + 1];
  if (first + 2 < n) v.z = from[first + 2];
  if (first + 3 < n) v.w = from[first + 3];
  return v;
}

FN BatchMore batch_more(CONST LinearBatchParams& p, CONST LinearSegment& s, i32 n, i32 first) {
  BatchMore m;
  m.bias = m.up_bias = m.residual = zero4();
  if (given(s.bias)) m.bias = batch_four(s.bias, first, s.n);
  if (given(s.up_bias)) m.up_bias = batch_four(s.up_bias, first, s.n);
  if (given(p.linear.residual)) m.residual = batch_four(offset(p.linear.residual, i64(n) * p.linear.residual_stride), first, s.n);
  return m;
}

FN f32 batch_one(f32 sum, f32 bias, f32 up, f32 up_bias, f32 residual, f32 norm, bool glu, i32 activation) {
  f32 y = sum * norm + bias;
  if (glu) y = gated(y, up * norm + up_bias, activation);
  return y + residual;
}

// Four outputs of row n, from the sums, and in a gated unit those of up.
FN void batch_output(CONST LinearSegment& s, THREAD const BatchMore& m, f32x4 sum, f32x4 up, f32 norm, i32 n, i32 first) {
  const bool glu = given(s.up);
  const Ptr<f32> y = offset(s.y, i64(n) * s.y_stride);
  if (first < s.n) y[first] = batch_one(sum.x, m.bias.x, up.x, m.up_bias.x, m.residual.x, norm, glu, s.activation);
  if (first + 1 < s.n) y[first + 1] = batch_one(sum.y, m.bias.y, up.y, m.up_bias.y, m.residual.y, norm, glu, s.activation);
  if (first + 2 < s.n) y[first + 2] = batch_one(sum.z, m.bias.z, up.z, m.up_bias.z, m.residual.z, norm, glu, s.activation);
  if (first + 3 < s.n) y[first + 3] = batch_one(sum.w, m.bias.w, up.w, m.up_bias.w, m.residual.w, norm, glu, s.activation);
}

// A tile as those see it that finish it: items of four outputs of a row, a share of them for each group.
struct BatchTile { i32 segment, first, fours, items, begin, end; Ptr<f32x4> partials; };

template <i32 NT>
FN BatchTile batch_tile(CONST LinearBatchParams& p, i32 tile, i32 rank, i32 rows) {
  const i32 row_simds = BATCH_MULTIPLIERS / p.k_simds;
  const BatchPlace place = batch_place(p.linear, tile);
  const bool glu = given(p.linear.segments[place.segment].up);
  BatchTile b;
  b.segment = place.segment;
  b.first = place.tile * row_simds * (glu ? 16 : 32);
  b.fours = row_simds * (glu ? 4 : 8);
  b.items = b.fours * mini(rows, NT * 8);
  const i32 each = (b.items + p.slices - 1) / p.slices;
  b.begin = mini(rank * each, b.items);
  b.end = mini(b.begin + each, b.items);
  b.partials = offset(p.partials, i64(tile) * p.slices * (NT * 8 * row_simds * 8));
  return b;
}

// Sends this slice's sums of a tile, or finishes it where there is one slice.
template <i32 NT>
FN void batch_send(CONST LinearBatchParams& p, GROUP LinearBatchGroup& g, THREAD const BatchMemory& m, i32 tile, i32 rank, i32 rows, Lane t) {
  enum { N = NT * 8 };
  const i32 row_simds = BATCH_MULTIPLIERS / p.k_simds, stride = 32 * row_simds + 4, vectors = N * row_simds * 8;
  const BatchTile b = batch_tile<NT>(p, tile, rank, rows);
  CONST LinearSegment& s = p.linear.segments[b.segment];
  const bool glu = given(s.up);
  for (i32 item = t.simd * SIMD + t.lane; item < b.items; item += BATCH_MULTIPLIERS * SIMD) {
    const i32 n = item / b.fours, four = item % b.fours;
    const i32 at = m.partials + (n * stride + (glu ? four / 4 * 32 + four % 4 * 4 : four * 4)) * 4;
    f32x4 sum = group_at<f32x4>(g, at)[0], up = glu ? group_at<f32x4>(g, at + 64)[0] : sum;
    for (i32 k = 1; k < p.k_simds; k++) {
      add4(sum, group_at<f32x4>(g, at + k * N * stride * 4)[0]);
      if (glu) add4(up, group_at<f32x4>(g, at + k * N * stride * 4 + 64)[0]);
    }
    if (p.slices == 1) {
      const f32 norm = given(p.linear.gain) ? inv_sqrt(g.squares[n] / f32(p.linear.k) + p.linear.eps) : 1.f;
      batch_output(s, batch_more(p, s, n, b.first + four * 4), sum, up, norm, n, b.first + four * 4);
    } else {
      send(b.partials, rank * vectors + item, sum);
      if (glu) send(b.partials, rank * vectors + b.items + item, up);
    }
  }
}

// Adds up what all groups have sent for this group's share of a tile, and finishes it.
template <i32 NT>
FN void batch_receive(CONST LinearBatchParams& p, GROUP LinearBatchGroup& g, i32 tile, i32 rank, i32 rows, Lane t) {
  const i32 vectors = NT * 8 * (BATCH_MULTIPLIERS / p.k_simds) * 8, finisher = t.simd - BATCH_MULTIPLIERS;
  const BatchTile b = batch_tile<NT>(p, tile, rank, rows);
  CONST LinearSegment& s = p.linear.segments[b.segment];
  const bool glu = given(s.up);
  for (i32 item = b.begin + finisher * SIMD + t.lane; item < b.end; item += (t.simds - BATCH_MULTIPLIERS) * SIMD) {
    const i32 n = item / b.fours, four = item % b.fours;
    const BatchMore more = batch_more(p, s, n, b.first + four * 4);
    f32x4 sum = zero4(), up = zero4();
    for (i32 slice = 0; slice < p.slices; slice += BATCH_LOOKS) {
      f32x4 v[BATCH_LOOKS], u[BATCH_LOOKS];
      bool all = false;
      while (!all) {
        all = true;
        UNROLL for (i32 i = 0; i < BATCH_LOOKS; i++) {
          const i32 from = mini(slice + i, p.slices - 1) * vectors + item;
          v[i] = look(b.partials, from);
          u[i] = glu ? look(b.partials, from + b.items) : v[i];
        }
        UNROLL for (i32 i = 0; i < BATCH_LOOKS; i++) all = all && has_come(v[i]) && has_come(u[i]);
      }
      UNROLL for (i32 i = 0; i < BATCH_LOOKS; i++)
        if (slice + i < p.slices) {
          const i32 from = (slice + i) * vectors + item;
          forget(b.partials, from);
          if (glu) forget(b.partials, from + b.items);
          add4(sum, v[i]);
          add4(up, u[i]);
        }
    }
    batch_output(s, more, sum, up, given(p.linear.gain) ? g.norm[finisher][n] : 1.f, n, b.first + four * 4);
  }
}

// The norm of each row, from the squares of all slices: each finisher of each group has a copy of its own sent.
template <i32 NT>
FN void batch_norms(CONST LinearBatchParams& p, GROUP LinearBatchGroup& g, i32 team, i32 rank, i32 rows, Lane t) {
  enum { N = NT * 8 };
  const i32 finisher = t.simd - BATCH_MULTIPLIERS, finishers = t.simds - BATCH_MULTIPLIERS, copy = p.slices * N;
  const Ptr<f32x4> all = offset(p.squares, i64(team) * p.slices * finishers * copy);
  for (i32 n = t.lane; n < mini(rows, N); n += SIMD)
    for (i32 to = 0; to < p.slices; to++) {
      f32x4 v;
      v.x = v.y = v.z = v.w = g.squares[n];
      send(all, (to * finishers + finisher) * copy + rank * N + n, v);
    }
  const Ptr<f32x4> mine = offset(all, (rank * finishers + finisher) * copy);
  for (i32 n = t.lane; n < mini(rows, N); n += SIMD) {
    f32 squares = 0.f;
    for (i32 from = 0; from < p.slices; from++) {
      f32x4 v = look(mine, from * N + n);
      while (!has_come(v)) v = look(mine, from * N + n);
      forget(mine, from * N + n);
      squares += v.x;
    }
    g.norm[finisher][n] = inv_sqrt(squares / f32(p.linear.k) + p.linear.eps);
  }
  simd_barrier();
}

// W a format, 8 · NT rows at most, STAGES of a ring.
template <class W, i32 NT, i32 STAGES>
FN void linear_batch(CONST LinearBatchParams& p, GROUP LinearBatchGroup& g, Lane t) {
  enum { N = NT * 8, STEP = BATCH_PIECES * W::FEATURES, STAGE = BATCH_PIECES * W::BYTES };
  const i32 rank = t.gx % p.slices, team = t.gx / p.slices;
  const bool multiplies = t.simd < BATCH_MULTIPLIERS;
  const i32 k_simd = t.simd % p.k_simds, stride = 32 * (BATCH_MULTIPLIERS / p.k_simds) + 4;
  BatchMemory m;
  m.ring = i32(sizeof(LinearBatchGroup)) + t.simd * STAGES * STAGE;
  m.partials = i32(sizeof(LinearBatchGroup)) + BATCH_MULTIPLIERS * STAGES * STAGE;
  m.gain = m.partials + p.k_simds * N * stride * 4;
  m.x = m.gain + (given(p.linear.gain) ? p.slice_steps * STEP * 4 : 0);
  BatchShare share;
  share.row_simd = t.simd / p.k_simds;
  share.row_simds = BATCH_MULTIPLIERS / p.k_simds;
  share.chunks = (p.linear.k + W::LEN - 1) / W::LEN;
  const i32 all_steps = (share.chunks + 4 * BATCH_PIECES - 1) / (4 * BATCH_PIECES), slice = mini(rank * p.slice_steps, all_steps);
  const i32 slice_end = mini(slice + p.slice_steps, all_steps), each = (p.slice_steps + p.k_simds - 1) / p.k_simds;
  share.begin = mini(slice + k_simd * each, slice_end);
  share.steps = mini(share.begin + each, slice_end) - share.begin;
  BatchStream ahead;
  ahead.tile = team;
  ahead.step = ahead.stage = 0;
  let_next_start();
  if (multiplies) for (i32 i = 0; i < STAGES; i++) batch_ask<W, STAGES>(p, g, ahead, share, m.ring, t.lane);
  const i32 rows = p.linear.rows[0], first = slice * (STEP / 32), blocks = (slice_end - slice) * (STEP / 32);
  if (t.simd == 0 && t.lane == 0) g.sent = 0;
  if (given(p.linear.gain)) {
    for (i32 i = t.simd * SIMD + t.lane; i < blocks * 8; i += t.simds * SIMD)
      group_at<f32x4>(g, m.gain + i * 16)[0] = row_vector(p.linear.gain, first * 8 + i, p.linear.k);
    group_barrier();
  }
  wait_for_previous();
  if ((first + blocks) * 32 <= p.linear.k) batch_stage<W, NT, false>(p, g, m, first, blocks, rows, t);
  else batch_stage<W, NT, true>(p, g, m, first, blocks, rows, t);
  group_barrier();
  if (!multiplies) {
    if (p.slices == 1) return;
    if (given(p.linear.gain)) batch_norms<NT>(p, g, team, rank, rows, t);
    i32 tiles = 0;
    for (i32 tile = team; tile < p.tiles; tile += p.teams) {
      // The others of the team are about as far: until then, looking would be in the way of weights.
      tiles++;
      while (flag(g.sent) < tiles) pause();
      batch_receive<NT>(p, g, tile, rank, rows, t);
    }
    return;
  }
  i32 stage = 0, tiles = 0;
  for (i32 tile = team; tile < p.tiles; tile += p.teams) {
    f32x4 sum[2][NT];
    UNROLL for (i32 r = 0; r < 2; r++) UNROLL for (i32 n = 0; n < NT; n++) sum[r][n] = zero4();
    i32 x = m.x + (share.begin - slice) * (STEP / 32 * NT * 512);
    for (i32 step = 0; step < share.steps; step++) {
      copies_arrived<STAGES - 1>();
      simd_barrier();
      UNROLL for (i32 u = 0; u < BATCH_PIECES; u++) {
        W::template step<NT>(sum, g, m.ring + stage * STAGE + u * W::BYTES, x, t.lane);
        x += W::FEATURES / 32 * NT * 512;
      }
      simd_barrier();
      batch_ask<W, STAGES>(p, g, ahead, share, m.ring, t.lane);
      stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    simds_barrier<BATCH_MULTIPLIERS>();  // the tile before was sent
    UNROLL for (i32 n = 0; n < NT; n++) {
      const i32 column = n * 8 + t.lane % 4 * 2;
      const f32 a = g.unscale[column], b = g.unscale[column + 1];
      UNROLL for (i32 r = 0; r < 2; r++) {
        const GroupPtr<f32> to = group_at<f32>(g, m.partials + ((k_simd * N + column) * stride + share.row_simd * 32 + r * 16 + t.lane / 4) * 4);
        to[0] = sum[r][n].x * a;
        to[stride] = sum[r][n].y * b;
        to[8] = sum[r][n].z * a;
        to[stride + 8] = sum[r][n].w * b;
      }
    }
    simds_barrier<BATCH_MULTIPLIERS>();
    tiles++;
    if (t.simd == 0 && t.lane == 0) g.sent = tiles;
    batch_send<NT>(p, g, m, tile, rank, rows, t);
  }
}

// As `src/kernels/linear_batch.rs` has them: threads, and stages of a ring. One group has a multiprocessor: two were slower.
#define LINEAR_BATCH(FORMAT, W)                                                                                  \
  KERNEL_BESIDE(linear_batch_##FORMAT##_t8, LinearBatchParams, LinearBatchGroup, 320, 1, linear_batch<W, 1, 3>)  \
  KERNEL_BESIDE(linear_batch_##FORMAT##_t16, LinearBatchParams, LinearBatchGroup, 320, 1, linear_batch<W, 2, 3>) \
  KERNEL_BESIDE(linear_batch_##FORMAT##_t32, LinearBatchParams, LinearBatchGroup, 384, 1, linear_batch<W, 4, 2>)
LINEAR_BATCH(f16, BatchPlain<BatchF16>)
LINEAR_BATCH(bf16, BatchPlain<BatchBF16>)
LINEAR_BATCH(q8_0, BatchQ8_0)
#endif
