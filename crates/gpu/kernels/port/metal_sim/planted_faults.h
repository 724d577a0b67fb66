// Kernels in Metal's words that are wrong on purpose, one fault each: src/driver/sim_faults.rs expects the simulator to say
// so.
struct FaultParams {
  Ptr<f32> y;
  Ptr<const f32> x;
  i32 n, one;
};
struct FaultGroup { f32 values[256]; };
struct FaultTile { f32 of[2][64]; };

FN i32 fault_thread(Lane t) { return t.simd * SIMD + t.lane; }

FN void barrier_by_some(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) { if (t.simd < 2) group_barrier(); }
FN void return_before_barrier(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) {
  if (fault_thread(t) >= p.n) return;
  g.values[fault_thread(t)] = 1;
  group_barrier();
}
FN void shuffle_by_some(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) {
  if (t.lane < 20) g.values[t.lane] = shuffle_xor(1.f, 1);
}
FN void shuffle_beside_any(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) {
  if (t.lane < 5) g.values[t.lane] = shuffle_xor(1.f, 1);
  else if (any_lane(true)) g.values[t.lane] = 1;
}
FN void read_outside(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) { g.values[fault_thread(t)] = p.x[fault_thread(t)]; }
FN void write_outside(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) { p.y[fault_thread(t)] = 1; }
FN void write_just_past(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) { if (fault_thread(t) == 0) p.y[p.n] = 1; }
FN void write_just_before(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) { if (fault_thread(t) == 0) p.y[-1] = 1; }
FN void write_to_input(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) {
  if (fault_thread(t) == 0) p.y[1024] = 1;  // where the tests put x
}
FN void misaligned(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) {
  if (fault_thread(t) == 0) *(device f32*)((device char*)p.y + 1) = 1;
}
FN void overflow(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) { p.y[p.n * p.n * p.n * p.n * p.n % 2] = 1; }
FN void group_index_outside(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) {
  g.values[fault_thread(t) * 2 + p.one + 1] = 1;
}
FN void group_pointer_outside(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) {
  threadgroup f32* at = g.values;
  at[fault_thread(t) * 2 + p.one + 1] = 1;
}
// Both thread orders come to the same: one writes before the other reads, in whichever order they run.
FN void no_barrier(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) {
  const i32 i = fault_thread(t);
  g.values[i] = f32(i);
  if (i < p.n) p.y[i] = g.values[(i + 37) & 127];
}
FN void no_barrier_before_write(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) {
  const i32 i = fault_thread(t);
  g.values[i] = f32(i);
  group_barrier();
  const f32 v = g.values[(i + 37) & 127];
  g.values[i] = v;
}
FN void simd_barrier_too_small(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) {
  const i32 i = fault_thread(t);
  g.values[i] = f32(i);
  simd_barrier();
  if (i < p.n) p.y[i] = g.values[i ^ 32];
}
FN void group_memory_unwritten(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) {
  if (fault_thread(t) < p.n) p.y[fault_thread(t)] = g.values[fault_thread(t)];
}
FN void groups_race(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) {
  if (fault_thread(t) < p.n) p.y[fault_thread(t)] = f32(t.gx);
}

// Matrices. Each kernel but the faulty ones stages a tile in group memory, and multiplies it with itself.
template <bool BARRIER, i32 STAGED>
FN void tile(CONST FaultParams& p, GROUP FaultTile& g, Lane t) {
  for (i32 i = fault_thread(t); i < STAGED; i += t.simds * SIMD) g.of[0][i] = f32(i % 9);
  if (BARRIER) group_barrier();
  if (t.simd == 0) {
    simdgroup_float8x8 a, sum = make_filled_simdgroup_matrix<float, 8, 8>(0.f);
    simdgroup_load(a, g.of[0], 8);
    simdgroup_multiply_accumulate(sum, a, a, sum);
    simdgroup_store(sum, g.of[1], 8);
    simd_barrier();
    for (i32 i = t.lane; i < 64; i += SIMD) p.y[i] = g.of[1][i];
  }
}
FN void matrix_sound(CONST FaultParams& p, GROUP FaultTile& g, Lane t) { tile<true, 64>(p, g, t); }
FN void matrix_no_barrier(CONST FaultParams& p, GROUP FaultTile& g, Lane t) { tile<false, 64>(p, g, t); }
FN void matrix_partly_staged(CONST FaultParams& p, GROUP FaultTile& g, Lane t) { tile<true, 63>(p, g, t); }
FN void matrix_load_outside(CONST FaultParams& p, GROUP FaultTile& g, Lane t) {
  simdgroup_float8x8 a;
  if (t.simd == 0) simdgroup_load(a, g.of[1] + p.one, 8);
}
FN void matrix_load_outside_operand(CONST FaultParams& p, GROUP FaultTile& g, Lane t) {
  simdgroup_float8x8 a;
  if (t.simd == 0) simdgroup_load(a, p.x, p.n);  // eight rows are more than there are
}
FN void matrix_store_to_input(CONST FaultParams& p, GROUP FaultTile& g, Lane t) {
  if (t.simd == 0) simdgroup_store(make_filled_simdgroup_matrix<float, 8, 8>(1.f), p.y + 1024, 8);
}
FN void matrix_by_some(CONST FaultParams& p, GROUP FaultTile& g, Lane t) {
  simdgroup_float8x8 a = make_filled_simdgroup_matrix<float, 8, 8>(1.f);
  if (t.lane < 16) simdgroup_multiply(a, a, a);
}
FN void matrix_at_each_lane(CONST FaultParams& p, GROUP FaultTile& g, Lane t) {
  simdgroup_float8x8 a;
  if (t.simd == 0) simdgroup_load(a, p.x + (t.lane & p.one), 8);
}
FN void matrix_never_loaded(CONST FaultParams& p, GROUP FaultTile& g, Lane t) {
  simdgroup_float8x8 a;
  if (t.simd == 0) simdgroup_store(a, p.y, 8);
}
// A matrix of which each element is its index, taken apart in the order in which some device had it once.
FN void matrix_by_lane(CONST FaultParams& p, GROUP FaultTile& g, Lane t) {
  for (i32 i = fault_thread(t); i < 64; i += t.simds * SIMD) g.of[0][i] = f32(i);
  group_barrier();
  if (t.simd == 0) {
    simdgroup_float8x8 a;
    simdgroup_load(a, g.of[0], 8);
    p.y[t.lane * 2] = a.thread_elements()[0];
    p.y[t.lane * 2 + 1] = a.thread_elements()[1];
  }
}
FN void matrix_in_32_threads(CONST FaultParams& p, GROUP FaultTile& g, Lane t) { tile<true, 64>(p, g, t); }
FN void memory_of_the_launch(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) {
  if (fault_thread(t) < p.n) p.y[fault_thread(t)] = 1;
}

#define FAULT(NAME) KERNEL(fault_##NAME, FaultParams, FaultGroup, 128, NAME)
FAULT(barrier_by_some) FAULT(return_before_barrier) FAULT(shuffle_by_some) FAULT(shuffle_beside_any) FAULT(read_outside)
FAULT(write_outside) FAULT(write_just_past) FAULT(write_just_before) FAULT(write_to_input) FAULT(group_index_outside)
FAULT(group_pointer_outside) FAULT(no_barrier) FAULT(no_barrier_before_write) FAULT(simd_barrier_too_small)
FAULT(group_memory_unwritten) FAULT(groups_race) FAULT(misaligned) FAULT(overflow)
#define FAULT_MATRIX(NAME) KERNEL(fault_##NAME, FaultParams, FaultTile, 128, NAME)
FAULT_MATRIX(matrix_sound) FAULT_MATRIX(matrix_no_barrier) FAULT_MATRIX(matrix_partly_staged) FAULT_MATRIX(matrix_load_outside)
FAULT_MATRIX(matrix_load_outside_operand) FAULT_MATRIX(matrix_store_to_input) FAULT_MATRIX(matrix_by_some)
FAULT_MATRIX(matrix_at_each_lane) FAULT_MATRIX(matrix_never_loaded) FAULT_MATRIX(matrix_by_lane)
KERNEL(fault_matrix_in_32_threads, FaultParams, FaultTile, 32, matrix_in_32_threads)
KERNEL_DYNAMIC(fault_memory_of_the_launch, FaultParams, FaultGroup, 128, memory_of_the_launch)
