// route_rows: the experts of some rows, as route.h chooses them, and the rows in the order of their experts. expert_glu_rows: what
// expert_glu computes of these rows; they are normalised on the way. It may do what route_rows does, too: each group for itself, so that
// no launch stands between logits and weights. expert_down_rows: what expert_linear computes of them, a result for each pair of row and
// slot. Weights stream through group memory at the speed of memory, as in linear_stream.h.
//
// Shapes    as experts.h; up to ROUTE_PAIRS_MAX pairs and ROUTE_EXPERTS_MAX experts; results (pairs, n).
// Tiles     up to ROWS_OF_TILE rows of one expert, listed by route_rows: a launch is the same whatever is chosen.
// Grid      route_rows: one group, whose SIMD groups choose for a row each; then a thread lists the rows of an expert. The others: a
//           group a multiprocessor. Units of work are outputs (pairs of gate and up) tile by tile; a group takes its share of all, in
//           rounds of one or two tiles, and its SIMD groups take their shares of a round. Shares are equal in time: an output counts
//           tile_cost + row_cost · rows of its tile.
// Bytes     the weights of an expert once for ROWS_OF_TILE of its rows; of x those rows that a group needs, from the second cache.
// Accuracy  as linear_stream.h.
// Order     a lane adds the chunks of a piece as in linear_stream.h, then lanes by halves, then pieces; of short rows, lanes have chunks
//           8 or 16 apart. A result follows from its row and its expert alone, whatever is beside it.
struct RouteRowsParams {
  RouteParams route;
  Ptr<i32> pairs;       // in the order of experts: which pair, row · slots + slot
  Ptr<i32> sources;     // likewise: which row
  Ptr<u32x4> tiles;     // expert, first of the tile's rows in the order of experts, their end
  Ptr<i32> num_tiles;
  i32 tile_rows, padding;
};
struct ExpertRowsParams {
  LinearStreamParams linear;   // one segment: expert 0
  Ptr<const u32x4> tiles;
  Ptr<const i32> num_tiles;
  Ptr<const i32> pairs;
  Ptr<const f32> matrix_scales;
  Ptr<const f32> up_matrix_scales;
  i32 stride, bias_stride;     // from expert to expert, in 16 bytes and in numbers
  i32 tile_rows, tiles_max;
  i32 pairs_max, slots;        // slots: of a row of x that they share, or 1 where each has its own
  i32 x_row, x_rows;           // bytes of a row of x in group memory; how many there is room for
  i32 plane, scales_at;        // bytes of a plane of a stage; where its scales begin
  i32 lanes, y_stride;         // lanes for an output of short rows; y_stride: numbers from pair to pair
  i32 tile_cost, row_cost;
  PairOperand operand;         // where given, gated units go there, and not to y
  RouteRowsParams route;       // of gated units, where there are logits: what route_rows is told
};

#ifdef HAS_BULK_COPIES
enum { ROUTE_SIMDS_MAX = 24, ROUTE_EXPERTS_MAX = 512, ROUTE_PAIRS_MAX = 256 };
struct RouteRowsGroup {
  alignas(16) i32 expert[ROUTE_PAIRS_MAX];  // of each pair
  i32 found[ROUTE_SIMDS_MAX];
};

// What a thread knows of the rows of the expert of its number: how many there are, where they and their tiles begin in the order of
// experts, and how many tiles all experts have.
struct RowsOfExpert { u32 has[ROUTE_PAIRS_MAX / 32]; i32 first, count, first_tile, tiles, all_tiles; };

// Which rows are those of a thread's own expert, once all experts have been chosen.
FN RowsOfExpert route_rows_found(CONST RouteParams& r, GROUP RouteRowsGroup& g, i32 rows, i32 tile_rows, Lane t) {
  const i32 own = t.simd * SIMD + t.lane, slots = route_slots(r.router);
  // Rows of a thread's own expert, and tiles above them in the same word: those of the experts before are added up.
  const i32 pairs = rows * slots;
  RowsOfExpert of;
  of.count = 0;
  UNROLL for (i32 w = 0; w < ROUTE_PAIRS_MAX / 32; w++) {
    of.has[w] = 0;
    // SIMD groups without experts leave the multiprocessor to those that have some.
    if (w * 32 < pairs && t.simd * SIMD < r.router.experts + r.router.shared)
      UNROLL for (i32 i = 0; i < 32; i++) {
        const u32 is_own = g.expert[w * 32 + i] == own ? 1u : 0u;
        of.has[w] |= is_own << i;
        of.count += i32(is_own);
      }
  }
  of.tiles = (of.count + tile_rows - 1) / tile_rows;
  i32 ends = of.count + of.tiles * 65536;
  UNROLL for (i32 d = 1; d < SIMD; d *= 2) {
    const i32 before = shuffle(ends, t.lane >= d ? t.lane - d : t.lane);
    if (t.lane >= d) ends += before;
  }
  if (t.lane == SIMD - 1) g.found[t.simd] = ends;
  group_barrier();
  i32 all = 0;
  UNROLL for (i32 s = 0; s < ROUTE_SIMDS_MAX; s++)
    if (s < t.simds) {
      ends += s < t.simd ? g.found[s] : 0;
      all += g.found[s];
    }
  of.first = ends % 65536 - of.count;
  of.first_tile = ends / 65536 - of.tiles;
  of.all_tiles = all / 65536;
  return of;
}

// The experts of all rows, which each SIMD group chooses for a row, in the order of their numbers. One group of all leaves ids and weights.
template <i32 J> FN RowsOfExpert route_rows_order(CONST RouteParams& r, GROUP RouteRowsGroup& g, i32 rows, i32 tile_rows, bool leave, Lane t) {
  const i32 slots = route_slots(r.router);
  for (i32 row = t.simd; row < rows; row += t.simds) {
    const RouteSlot slot = route_row<J>(r, row, leave, t.lane);
    if (t.lane < slots) g.expert[row * slots + t.lane] = slot.id;
  }
  group_barrier();
  return route_rows_found(r, g, rows, tile_rows, t);
}

// Leaves the order for the kernels behind.
FN void route_rows_leave(CONST RouteRowsParams& p, THREAD const RowsOfExpert& of, i32 expert) {
  const i32 slots = route_slots(p.route.router), end = of.first + of.count;
  if (expert == 0) p.num_tiles[0] = of.all_tiles;
  for (i32 i = 0, from = of.first; i < of.tiles; i++, from += p.tile_rows)
    p.tiles[of.first_tile + i] = make16(u32(expert), u32(from), u32(mini(from + p.tile_rows, end)), 0);
  i32 place = of.first;
  UNROLL for (i32 w = 0; w < ROUTE_PAIRS_MAX / 32; w++)
    for (u32 left = of.has[w]; left != 0; left &= left - 1) {
      const i32 pair = w * 32 + lowest_bit(left);
      p.pairs[place] = pair;
      p.sources[place] = pair / slots;
      place++;
    }
}

template <i32 J> FN void route_rows(CONST RouteRowsParams& p, GROUP RouteRowsGroup& g, Lane t) {
  const i32 own = t.simd * SIMD + t.lane;
  if (own < ROUTE_PAIRS_MAX) g.expert[own] = -1;
  group_barrier();
  wait_for_previous();
  // Not before: two groups of the next kernel would share a multiprocessor as long as the kernel ahead has others.
  let_next_start();
  route_rows_leave(p, route_rows_order<J>(p.route, g, p.route.rows[0], p.tile_rows, true, t), own);
}

enum { ROWS_OF_TILE = 4, ROWS_MAX = 8, ROWS_TILES_MAX = 320 };
// The rows of a tile in a round: which expert's, the first of them in group memory and in the order of experts.
struct TileRows { i32 expert, first, count, place; };

// Of group memory, ahead of x.
struct ExpertRowsGroup {
  LinearStreamGroup stream;
  TileRows round[2];
  i32 share[2];                  // of the group: its first unit, and the one behind its last
  i32 pair[ROUTE_PAIRS_MAX];     // in the order of experts
  u32 tile[ROWS_TILES_MAX];      // expert, and from bit 16 the first of its rows
  unsigned char rows[ROWS_TILES_MAX];
  f32 squares[ROWS_MAX][STREAM_SIMDS];  // of the rows of a round, summed up by each SIMD group
  RouteRowsGroup route;
};
static_assert(sizeof(ExpertRowsGroup) <= 5504, "x begins at byte 5504");

// Sums over lanes of each of N numbers: a lane has that of number lane / (SIMD / N).
template <i32 N> FN f32 sums_apart(THREAD f32 (&v)[N], i32 lane) {
  UNROLL for (i32 half = N / 2; half; half /= 2) {
    const i32 m = SIMD * half / N;
    const bool upper = (lane & m) != 0;
    UNROLL for (i32 i = 0; i < half; i++) {
      const f32 other = upper ? v[i] : v[i + half], own = upper ? v[i + half] : v[i];
      v[i] = own + shuffle_xor(other, m);
    }
  }
  UNROLL for (i32 m = SIMD / N / 2; m; m /= 2) v[0] += shuffle_xor(v[0], m);
  return v[0];
}

FN TileRows tile_rows(GROUP ExpertRowsGroup& g, i32 tile, i32 first) {
  const u32 both = g.tile[tile];
  return {i32(both & 0xffffu), first, i32(g.rows[tile]), i32(both >> 16)};
}

// What is asked for next, and what is read next, as StreamCursor has it.
struct RowsCursor { i32 unit, left, at, scales_at, piece, stage; };
struct RowsPlace { i32 stage; u32 parity; };

template <class W, StreamKind KIND>
FN void rows_ask(CONST ExpertRowsParams& e, GROUP ExpertRowsGroup& whole, THREAD RowsCursor& next, StreamSizes size, StreamSlots slots, i32 end, Lane t) {
  enum { PIECE = StreamStage<W, KIND>::PIECE / 16, PIECE_SCALES = StreamStage<W, KIND>::PIECE_SCALES / 16, PLANES = StreamStage<W, KIND>::PLANES };
  CONST LinearStreamParams& p = e.linear;
  CONST LinearSegment& s = p.segments[0];
  GROUP LinearStreamGroup& g = whole.stream;
  if (next.left == 0) {
    if (next.unit >= end) return;
    const StreamRun run = stream_run<KIND, true>(p, slots, next.unit, end);
    const i32 base = g.expert[run.segment] * slots.stride;
    next.unit += run.left;
    next.left = run.left;
    next.at = base + run.row * size.row;
    next.scales_at = base + run.row * size.scales;
  }
  i32 weights = PIECE, scales = PIECE_SCALES;
  if (++next.piece == size.pieces) {
    const i32 count = mini(p.stage_rows, next.left);
    weights = count * size.last;
    scales = count * size.last_scales;
    next.left -= count;
    next.piece = 0;
  }
  if (one_lane(t.lane)) {
    GROUP CopyBarrier& barrier = g.full[t.simd][next.stage];
    const i32 to = p.ring_at + (t.simd * p.stages + next.stage) * (PLANES * e.plane);
    expect_copies(barrier, PLANES * 16 * (weights + scales));
    UNROLL for (i32 plane = 0; plane < PLANES; plane++) {
      copy_to_group(group_at<u32x4>(whole, to + plane * e.plane), offset(plane ? s.up : s.weight, next.at), weights * 16, barrier);
      if (PIECE_SCALES > 0)
        copy_to_group(group_at<u32x4>(whole, to + plane * e.plane + e.scales_at),
                      offset(vectors16(plane ? s.up_scales : s.scales), next.scales_at), scales * 16, barrier);
    }
  }
  next.at += weights;
  next.scales_at += scales;
  if (++next.stage == p.stages) next.stage = 0;
}

// 1 / rms of a row of a round.
FN f32 rows_factor(CONST LinearStreamParams& p, GROUP const f32 (&squares)[STREAM_SIMDS]) {
  f32 sum = 0.f;
  UNROLL for (i32 s = 0; s < STREAM_SIMDS; s++) sum += squares[s];
  return near_inverse_sqrt(near_quotient(sum, f32(p.k)) + p.eps);
}

// Finishes the sums `a` and `b` that so many lanes hold: of outputs from `first` on, of each row one after another.
template <class W, StreamKind KIND>
FN void rows_finish(CONST ExpertRowsParams& e, GROUP ExpertRowsGroup& whole, TileRows of, i32 first, i32 held, f32 a, f32 b, i32 lane) {
  CONST LinearSegment& s = e.linear.segments[0];
  if (lane >= held) return;
  const i32 place = lane / of.count, output = first + place, row = lane - place * of.count, bias_at = of.expert * e.bias_stride + output;
  f32 bias = 0.f, up_bias = 0.f;
  if (given(s.bias)) bias = s.bias[bias_at];
  if (KIND == STREAM_EXPERT_GLU && given(s.up_bias)) up_bias = s.up_bias[bias_at];
  if (HasMatrixScale<W>::VALUE) {
    a *= e.matrix_scales[of.expert];
    if (KIND == STREAM_EXPERT_GLU) b *= e.up_matrix_scales[of.expert];
  }
  const f32 factor = KIND == STREAM_EXPERT_GLU ? rows_factor(e.linear, whole.squares[of.first + row]) : 1.f;
  a = a * factor + bias;
  if (KIND == STREAM_EXPERT_GLU) a = near_gated(a, b * factor + up_bias, s.activation);
  const i32 pair = whole.pair[of.place + row];
  if (KIND == STREAM_EXPERT_GLU && given(e.operand.rows)) pair_operand_store(e.operand, pair, output, a);
  else s.y[pair * e.y_stride + output] = a;
}

// Rows of a tile that are multiplied together. Numbers of E2M1 take a table, so that they are looked up once for two rows; of other codes
// more registers cost as much as is saved.
template <class W> struct RowsTogether { enum { VALUE = 1 }; };
template <> struct RowsTogether<WeightMXFP4> { enum { VALUE = 2 }; };
template <> struct RowsTogether<WeightNVFP4> { enum { VALUE = 2 }; };

// Adds 32 chunks of one output and ROWS rows to the sums of planes, row by row.
template <class W, i32 PLANES, i32 ROWS>
FN void rows_add(CONST ExpertRowsParams& e, GROUP ExpertRowsGroup& whole, THREAD f32 (&sum)[ROWS * PLANES], i32 weights, i32 scales, i32 x_at, i32 first, i32 c, i32 lane) {
  typedef StreamActivations<W> Activations;
  typename Activations::Chunk chunk[ROWS];
  UNROLL for (i32 r = 0; r < ROWS; r++) chunk[r] = Activations::load(whole.stream, x_at + r * e.x_row, e.linear.k, first + c, lane);
  UNROLL for (i32 plane = 0; plane < PLANES; plane++)
    UNROLL for (i32 r = 0; r < ROWS; r++)
      sum[r * PLANES + plane] = Activations::dot(whole.stream, weights + plane * e.plane, scales + plane * e.plane, c, chunk[r], lane, sum[r * PLANES + plane]);
}

// What another lane has, whichever lane that is.
FN f32 from_lane(f32 v, i32 lane) { return bits_to_f32(u32(shuffle(i32(f32_to_bits(v)), lane & (SIMD - 1)))); }

// Adds a piece of one output and ROWS rows to what the lanes from `to` on hold.
template <class W, StreamKind KIND, i32 ROWS>
FN void rows_piece(CONST ExpertRowsParams& e, GROUP ExpertRowsGroup& whole, THREAD f32& a, THREAD f32& b, i32 weights, i32 scales, i32 x_at, i32 first, i32 chunks, i32 to, i32 lane) {
  enum { PLANES = StreamStage<W, KIND>::PLANES, CHUNKS = i32(StreamStage<W, KIND>::PIECE) / i32(StreamActivations<W>::CHUNK), N = ROWS * PLANES };
  f32 sum[N];
  UNROLL for (i32 i = 0; i < N; i++) sum[i] = 0.f;
  if (chunks == CHUNKS) {
    UNROLL for (i32 c = 0; c < CHUNKS; c += SIMD) rows_add<W, PLANES, ROWS>(e, whole, sum, weights, scales, x_at, first, c, lane);
  } else {
    UNROLL for (i32 c = 0; c < CHUNKS; c += SIMD)
      if (c + lane < chunks) rows_add<W, PLANES, ROWS>(e, whole, sum, weights, scales, x_at, first, c, lane);
  }
  const f32 own = sums_apart<N>(sum, lane);
  const i32 row = lane - to;
  f32 of_a = own, of_b = 0.f;
  if (ROWS > 1) {
    of_a = from_lane(own, row * PLANES * (SIMD / N));
    if (i32(PLANES) == 2) of_b = from_lane(own, (row * PLANES + 1) * (SIMD / N));
  } else if (i32(PLANES) == 2) {
    const f32 other = shuffle_xor(own, SIMD / 2);
    of_a = lane < SIMD / 2 ? own : other;
    of_b = lane < SIMD / 2 ? other : own;
  }
  if (row >= 0 && row < ROWS) {
    a += of_a;
    b += of_b;
  }
}

// What a SIMD group makes of a run of outputs of one tile.
template <class W, StreamKind KIND>
FN void rows_run(CONST ExpertRowsParams& e, GROUP ExpertRowsGroup& whole, THREAD RowsCursor& next, StreamSizes size, StreamSlots slots,
                 StreamRun run, i32 end, TileRows of, THREAD RowsPlace& at_place, Lane t) {
  enum { CHUNK = StreamActivations<W>::CHUNK, PIECE = StreamStage<W, KIND>::PIECE, PLANES = StreamStage<W, KIND>::PLANES, TOGETHER = RowsTogether<W>::VALUE };
  CONST LinearStreamParams& p = e.linear;
  const i32 first_x = p.x_at + of.first * e.x_row;
  f32 a = 0.f, b = 0.f;
  i32 held = 0, held_from = run.row;
  while (run.left > 0) {
    const i32 count = mini(p.stage_rows, run.left);
    if (held + count * of.count > SIMD) {
      rows_finish<W, KIND>(e, whole, of, held_from, held, a, b, t.lane);
      held = 0;
      held_from = run.row;
      a = b = 0.f;
    }
    for (i32 piece = 0; piece < size.pieces; piece++) {
      wait_for_copies(whole.stream.full[t.simd][at_place.stage], at_place.parity);
      const i32 at = p.ring_at + (t.simd * p.stages + at_place.stage) * (PLANES * e.plane), first = piece * (PIECE / CHUNK);
      const i32 chunks = piece == size.pieces - 1 ? size.last / (CHUNK / 16) : PIECE / CHUNK;
      i32 lane = held;  // takes the sums
      for (i32 r = 0; r < count; r++) {
        const i32 weights = at + r * size.row * 16, scales = at + e.scales_at + r * size.scales * 16;
        i32 j = 0;
        if (i32(TOGETHER) > 1)
          for (; j + TOGETHER <= of.count; j += TOGETHER, lane += TOGETHER)
            rows_piece<W, KIND, TOGETHER>(e, whole, a, b, weights, scales, first_x + j * e.x_row, first, chunks, lane, t.lane);
        for (; j < of.count; j++, lane++)
          rows_piece<W, KIND, 1>(e, whole, a, b, weights, scales, first_x + j * e.x_row, first, chunks, lane, t.lane);
      }
      simd_barrier();
      rows_ask<W, KIND>(e, whole, next, size, slots, end, t);
      if (++at_place.stage == p.stages) { at_place.stage = 0; at_place.parity ^= 1; }
    }
    held += count * of.count;
    run.row += count;
    run.left -= count;
  }
  rows_finish<W, KIND>(e, whole, of, held_from, held, a, b, t.lane);
}

// What ROWS short rows from row `j` on make of one output, in lanes j and up.
template <class W, i32 LANES, i32 CHUNKS, i32 ROWS>
FN void short_rows_piece(CONST ExpertRowsParams& e, GROUP ExpertRowsGroup& whole, THREAD f32& total, i32 weights, i32 scales, i32 x_at, i32 chunks, i32 j, i32 lane) {
  f32 sum[ROWS];
  UNROLL for (i32 r = 0; r < ROWS; r++) sum[r] = 0.f;
  UNROLL for (i32 c = 0; c < CHUNKS; c += LANES)
    if (c + lane < chunks) rows_add<W, 1, ROWS>(e, whole, sum, weights, scales, x_at, 0, c & ~(SIMD - 1), (c & (SIMD - 1)) + lane);
  UNROLL for (i32 r = 0; r < ROWS; r++) {
    const f32 all = sum_lanes<LANES>(sum[r]);
    total = lane == j + r ? all : total;
  }
}

// The same of short rows, of which a stage has several: LANES lanes have an output, so that none rests and few sums are added up.
template <class W, StreamKind KIND, i32 LANES, bool ONE>
FN void short_rows_run(CONST ExpertRowsParams& e, GROUP ExpertRowsGroup& whole, THREAD RowsCursor& next, StreamSizes size, StreamSlots slots,
                       StreamRun run, i32 end, TileRows of, THREAD RowsPlace& at_place, Lane t) {
  enum { CHUNK = StreamActivations<W>::CHUNK, OUTPUTS = SIMD / LANES, CHUNKS = i32(StreamStage<W, KIND>::PIECE) / OUTPUTS / CHUNK, TOGETHER = RowsTogether<W>::VALUE };
  CONST LinearStreamParams& p = e.linear;
  CONST LinearSegment& s = p.segments[0];
  const i32 output = t.lane / LANES, lane = t.lane % LANES, chunks = size.row / (CHUNK / 16);
  const i32 y_at = whole.pair[of.place + mini(lane, of.count - 1)] * e.y_stride;
  while (run.left > 0) {
    const i32 count = mini(p.stage_rows, run.left);
    wait_for_copies(whole.stream.full[t.simd][at_place.stage], at_place.parity);
    const i32 at = p.ring_at + (t.simd * p.stages + at_place.stage) * e.plane;
    for (i32 r = 0; r < count; r += OUTPUTS) {
      const i32 own = mini(r + output, count - 1), weights = at + own * size.row * 16, scales = at + e.scales_at + own * size.scales * 16;
      f32 total = 0.f;
      i32 j = 0;
      const i32 x_at = p.x_at + of.first * e.x_row;
      if (!ONE && i32(TOGETHER) > 1)
        for (; j + TOGETHER <= of.count; j += TOGETHER)
          short_rows_piece<W, LANES, CHUNKS, TOGETHER>(e, whole, total, weights, scales, x_at + j * e.x_row, chunks, j, lane);
      for (; j < (ONE ? 1 : of.count); j++)
        short_rows_piece<W, LANES, CHUNKS, 1>(e, whole, total, weights, scales, x_at + j * e.x_row, chunks, j, lane);
      if (lane < of.count && r + output < count) {
        const i32 row = run.row + own;
        s.y[y_at + row] = total + (given(s.bias) ? s.bias[of.expert * e.bias_stride + row] : 0.f);
      }
    }
    simd_barrier();
    rows_ask<W, KIND>(e, whole, next, size, slots, end, t);
    if (++at_place.stage == p.stages) { at_place.stage = 0; at_place.parity ^= 1; }
    run.row += count;
    run.left -= count;
  }
}

// The pair of a row of a round.
FN i32 pair_of(GROUP const ExpertRowsGroup& g, TileRows a, TileRows b, i32 row) {
  return g.pair[row < a.count ? a.place + row : b.place + row - a.count];
}

// Rows of x times the gain to where they are multiplied, and the sums of their squares. The vectors of a row are those of all threads,
// so that a SIMD group has its part of each sum.
template <class W>
FN void rows_stage_normed(CONST ExpertRowsParams& e, GROUP ExpertRowsGroup& whole, TileRows a, TileRows b, Lane t) {
  enum { AHEAD = 4 };
  CONST LinearStreamParams& p = e.linear;
  const i32 thread = t.simd * SIMD + t.lane, rows = a.count + b.count, turns = (p.k / 4 + STREAM_THREADS - 1) / STREAM_THREADS;
  f32 squares = 0.f;
  for (i32 base = 0, row = 0, turn = 0; base < rows * turns; base += AHEAD) {
    f32x4 v[AHEAD], gain[AHEAD];
    UNROLL for (i32 j = 0; j < AHEAD; j++) {
      const i32 own = mini((base + j) / turns, rows - 1), at = (base + j) % turns * STREAM_THREADS + thread;
      const i32 x_row = pair_of(whole, a, b, own) / e.slots;
      v[j] = stream_vector<W>(offset(p.x, i64(x_row) * p.x_stride), at, p.k);
      gain[j] = stream_vector<W>(p.gain, at, p.k);
    }
    UNROLL for (i32 j = 0; j < AHEAD; j++)
      if (row < rows) {
        const f32x4 one[1] = {v[j]};
        squares += stream_squares<1>(one);
        v[j].x *= gain[j].x; v[j].y *= gain[j].y;
        v[j].z *= gain[j].z; v[j].w *= gain[j].w;
        const f32x4 scaled[1] = {v[j]};
        StreamActivations<W>::template stage<1>(whole.stream, p.x_at + row * e.x_row, p.k, u32(turn * STREAM_THREADS + thread), scaled, t.lane);
        if (++turn == turns) {
          squares = sum_lanes<SIMD>(squares);
          if (t.lane == 0) whole.squares[row][t.simd] = squares;
          squares = 0.f;
          turn = 0;
          row++;
        }
      }
  }
}

// Rows of x to where they are multiplied: vectors of all rows one after another, eight lanes have a block.
template <class W>
FN void rows_stage(CONST ExpertRowsParams& e, GROUP ExpertRowsGroup& whole, TileRows a, TileRows b, Lane t) {
  enum { AHEAD = 4 };
  CONST LinearStreamParams& p = e.linear;
  const i32 thread = t.simd * SIMD + t.lane, rows = a.count + b.count, row_vectors = p.k / 4;
  for (i32 base = 0; base < rows * row_vectors; base += AHEAD * STREAM_THREADS) {
    f32x4 v[AHEAD];
    UNROLL for (i32 j = 0; j < AHEAD; j++) {
      const i32 i = base + j * STREAM_THREADS + thread, row = i / row_vectors;
      v[j].x = v[j].y = v[j].z = v[j].w = 0.f;
      if (row < rows) v[j] = p.x[i64(pair_of(whole, a, b, row) / e.slots) * p.x_stride + (i - row * row_vectors)];
    }
    UNROLL for (i32 j = 0; j < AHEAD; j++) {
      const i32 i = base + j * STREAM_THREADS + thread, row = mini(i / row_vectors, rows - 1);
      const f32x4 one[1] = {v[j]};
      StreamActivations<W>::template stage<1>(whole.stream, p.x_at + row * e.x_row, p.k, u32(i - row * row_vectors), one, t.lane);
    }
  }
}

// What an output of a tile costs.
FN i32 rows_cost(CONST ExpertRowsParams& e, i32 rows) { return e.tile_cost + e.row_cost * rows; }

// Finds where the share of this group begins and ends, and writes both to `g.share`. Each thread looks at the tile with its number,
// which has `own_rows` rows, the first of them row `first_row` of all tiles; the thread in whose tile a border lies writes it.
FN void rows_shares(CONST ExpertRowsParams& e, GROUP ExpertRowsGroup& g, i32 tiles, i32 first_row, i32 own_rows, Lane t) {
  CONST LinearStreamParams& p = e.linear;
  const i32 thread = t.simd * SIMD + t.lane, n = p.segments[0].n, last = mini(tiles, ROWS_TILES_MAX) - 1;
  const i32 rows = last < 0 ? 0 : i32(g.tile[last] >> 16) + g.rows[last];
  // Products fit 32 bits: `src/kernels/experts_rows.rs` sees to it.
  const u32 all = u32(e.tile_cost * tiles + e.row_cost * rows) * u32(n), cost = u32(rows_cost(e, own_rows));
  const u32 from = u32(e.tile_cost * thread + e.row_cost * first_row) * u32(n), to = from + cost * u32(n);
  UNROLL for (i32 i = 0; i < 2; i++) {
    const u32 at = u32(t.gx + i) * all / u32(p.groups);
    if (thread < tiles && at >= from && at < to) g.share[i] = thread * n + i32((at - from) / cost);
    if (thread == 0 && at == all) g.share[i] = tiles * n;
  }
}

// Where the share of a SIMD group begins among `len` outputs, `of_a` of tile `a` and the others of `b`.
FN i32 rows_simd_share(CONST ExpertRowsParams& e, TileRows a, TileRows b, i32 of_a, i32 len, i32 simd) {
  const i32 cost_a = rows_cost(e, a.count), cost_b = rows_cost(e, b.count), all_a = of_a * cost_a;
  const i32 at = simd * (all_a + (len - of_a) * cost_b) / STREAM_SIMDS;
  return at < all_a ? at / cost_a : of_a + (at - all_a) / cost_b;
}

// What route_rows would leave, in group memory, and how many tiles there are; one group leaves it for the kernels behind.
FN i32 rows_route(CONST ExpertRowsParams& e, GROUP ExpertRowsGroup& g, i32 rows, Lane t) {
  const i32 own = t.simd * SIMD + t.lane, tile_rows = e.route.tile_rows;
  const RowsOfExpert of = route_rows_order<4>(e.route.route, g.route, rows, tile_rows, t.gx == 0, t);
  for (i32 i = 0; i < of.tiles; i++) {
    g.tile[of.first_tile + i] = u32(own) | u32(of.first + i * tile_rows) << 16;
    g.rows[of.first_tile + i] = (unsigned char)mini(tile_rows, of.count - i * tile_rows);
  }
  i32 place = of.first;
  UNROLL for (i32 w = 0; w < ROUTE_PAIRS_MAX / 32; w++)
    for (u32 left = of.has[w]; left != 0; left &= left - 1) g.pair[place++] = w * 32 + lowest_bit(left);
  if (t.gx == 0) route_rows_leave(e.route, of, own);
  return of.all_tiles;
}

template <class W, StreamKind KIND>
FN void expert_rows(CONST ExpertRowsParams& e, GROUP ExpertRowsGroup& whole, Lane t) {
  CONST LinearStreamParams& p = e.linear;
  GROUP LinearStreamGroup& g = whole.stream;
  const i32 thread = t.simd * SIMD + t.lane, n = p.segments[0].n;
  let_next_start();
  const StreamSizes size = stream_sizes<W, KIND, false>(p);
  const StreamSlots slots = {n, 0, e.stride};
  stream_begin(p, g, t);
  RowsCursor next;
  next.unit = next.left = next.at = next.scales_at = next.piece = next.stage = 0;
  RowsPlace at_place = {0, 0};
  const bool routes = KIND == STREAM_EXPERT_GLU && given(e.route.route.logits);
  const i32 rows = routes ? e.route.route.rows[0] : 0;
  if (routes && thread < ROUTE_PAIRS_MAX) whole.route.expert[thread] = -1;
  if (routes) group_barrier();
  wait_for_previous();
  i32 tiles, first_row = 0, own_rows = 0;
  if (routes) {
    tiles = rows_route(e, whole, rows, t);
    group_barrier();
    if (thread < tiles) {
      first_row = i32(whole.tile[thread] >> 16);
      own_rows = i32(whole.rows[thread]);
    }
  } else {
    // All lists at once, whatever of them this group needs: what is read one after the other is waited for one after the other.
    tiles = e.num_tiles[0];
    if (thread < e.tiles_max) {
      const u32x4 tile = e.tiles[thread];
      first_row = i32(tile.y);
      own_rows = mini(e.tile_rows, i32(tile.z - tile.y));
      whole.tile[thread] = tile.x | tile.y << 16;
      whole.rows[thread] = (unsigned char)own_rows;
    }
    if (thread < e.pairs_max) whole.pair[thread] = e.pairs[thread];
    group_barrier();
  }
  rows_shares(e, whole, tiles, first_row, own_rows, t);
  group_barrier();
  i32 unit = whole.share[0];
  const i32 end = whole.share[1];
  while (unit < end) {
    const i32 tile = unit / n;
    i32 until = mini(end, (tile + 1) * n);
    const TileRows a = tile_rows(whole, tile, 0);
    TileRows b = until < end ? tile_rows(whole, tile + 1, a.count) : a;
    if (until < end && a.count + b.count <= e.x_rows) until = mini(end, (tile + 2) * n);
    else b.count = 0;
    if (thread == 0) {
      whole.round[0] = a;
      whole.round[1] = b;
      g.expert[0] = a.expert;
      g.expert[1] = b.expert;
    }
    group_barrier();
    // The share of the SIMD group, from the beginning of the first tile on.
    const i32 begin = unit - tile * n, len = until - unit, of_a = mini(len, n - begin);
    i32 own = begin + rows_simd_share(e, a, b, of_a, len, t.simd);
    const i32 own_end = begin + rows_simd_share(e, a, b, of_a, len, t.simd + 1);
    next.unit = own;
    for (i32 i = 0; i < p.stages; i++) rows_ask<W, KIND>(e, whole, next, size, slots, own_end, t);
    if (KIND == STREAM_EXPERT_GLU) rows_stage_normed<W>(e, whole, a, b, t);
    else rows_stage<W>(e, whole, a, b, t);
    group_barrier();
    while (own < own_end) {
      const StreamRun run = stream_run<KIND, true>(p, slots, own, own_end);
      own += run.left;
      const TileRows of = whole.round[run.segment];
      // NVFP4 would have too few registers.
      const bool may_be_short = KIND == STREAM_EXPERT_DOWN && i32(W::LEN) >= 16 && !HasMatrixScale<W>::VALUE;
      if (may_be_short && e.lanes == 8 && of.count == 1) short_rows_run<W, KIND, 8, true>(e, whole, next, size, slots, run, own_end, of, at_place, t);
      else if (may_be_short && e.lanes == 8) short_rows_run<W, KIND, 8, false>(e, whole, next, size, slots, run, own_end, of, at_place, t);
      else if (may_be_short && e.lanes == 16) short_rows_run<W, KIND, 16, false>(e, whole, next, size, slots, run, own_end, of, at_place, t);
      else rows_run<W, KIND>(e, whole, next, size, slots, run, own_end, of, at_place, t);
    }
    unit = until;
    if (unit < end) group_barrier();  // x has been read
  }
}

KERNEL(route_rows_e128, RouteRowsParams, RouteRowsGroup, 512, route_rows<4>)
KERNEL(route_rows_e512, RouteRowsParams, RouteRowsGroup, 512, route_rows<16>)
#define EXPERT_ROWS(FORMAT, W)                                                                                                      \
  KERNEL_BESIDE(expert_glu_rows_##FORMAT, ExpertRowsParams, ExpertRowsGroup, 512, 1, expert_rows<W, STREAM_EXPERT_GLU>)   \
  KERNEL_BESIDE(expert_down_rows_##FORMAT, ExpertRowsParams, ExpertRowsGroup, 512, 1, expert_rows<W, STREAM_EXPERT_DOWN>)
EXPERT_ROWS(f16, WeightF16)
EXPERT_ROWS(bf16, WeightBF16)
EXPERT_ROWS(q8_0, WeightQ8_0)
EXPERT_ROWS(fp8, WeightFP8)
EXPERT_ROWS(q4_0, WeightQ4_0)
EXPERT_ROWS(q4_g128, WeightQ4G128)
EXPERT_ROWS(q4_z128, WeightQ4Z128)
EXPERT_ROWS(mxfp4, WeightMXFP4)
EXPERT_ROWS(nvfp4, WeightNVFP4)
EXPERT_ROWS(q4_k, WeightQ4_K)
EXPERT_ROWS(q6_k, WeightQ6_K)
#endif
