// Kernels that are wrong on purpose, one fault each: src/driver/sim_faults.rs expects the simulator to say so.
struct FaultParams {
  Ptr<f32> y;
  Ptr<const f32> x;
  i32 n, one;
};
struct FaultGroup { f32 values[128]; };
struct FaultCopies { u32x4 chunk; };

FN i32 fault_thread(Lane t) { return t.simd * SIMD + t.lane; }

FN void barrier_by_some(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) { if (t.simd < 2) group_barrier(); }
FN void return_before_barrier(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) {
  if (fault_thread(t) >= p.n) return;
  g.values[fault_thread(t)] = 1;
  group_barrier();
}
FN void sum_by_some(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) { if (t.lane < 20) sum_lanes<32>(1.f); }
FN void sum_beside_max(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) { if (t.lane < 5) sum_lanes<32>(1.f); else max_lanes<32>(1.f); }
FN void read_outside(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) { wait_for_previous(); g.values[fault_thread(t)] = p.x[fault_thread(t)]; }
FN void write_outside(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) { wait_for_previous(); p.y[fault_thread(t)] = 1; }
FN void write_just_past(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) { wait_for_previous(); if (fault_thread(t) == 0) p.y[p.n] = 1; }
FN void write_just_before(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) { wait_for_previous(); if (fault_thread(t) == 0) p.y[-1] = 1; }
FN void write_to_input(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) {
  wait_for_previous();
  Ptr<f32> x = p.y;
  x = offset(x, 1024);  // where the tests put x
  if (fault_thread(t) == 0) x[0] = 1;
}
FN void group_index_outside(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) { g.values[fault_thread(t) + p.one] = 1; }
FN void no_barrier(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) {
  const i32 i = fault_thread(t);
  wait_for_previous();
  g.values[i] = f32(i);
  if (i < p.n) p.y[i] = g.values[(i + 37) & 127];
}
FN void group_memory_unwritten(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) {
  const i32 i = fault_thread(t);
  wait_for_previous();
  if (i < p.n) p.y[i] = g.values[i];
}
FN void result_unwritten(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) {
  const i32 i = fault_thread(t);
  wait_for_previous();
  if (i + 1 < p.n) p.y[i] = 1;
}
FN void groups_race(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) { wait_for_previous(); if (fault_thread(t) < p.n) p.y[fault_thread(t)] = f32(t.gx); }
FN void overflow(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) { wait_for_previous(); p.y[p.n * p.n * p.n * p.n * p.n % 2] = 1; }
FN void read_before_wait(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) { if (fault_thread(t) == 0) g.values[0] = p.x[0]; }
FN void misaligned(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) {
  wait_for_previous();
  Ptr<f32> y = p.y;
  y.at = (f32*)((char*)y.at + 1);
  if (fault_thread(t) == 0) y[0] = 1;
}

// A plain pointer does not say how long its array is: only the address sanitizer knows.
FN f32 read_at(THREAD const f32* values, i32 i) { return values[i]; }
FN void register_pointer_outside(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) {
  f32 values[8];
  for (i32 i = 0; i < 8; i++) values[i] = f32(i * p.one);
  wait_for_previous();
  if (fault_thread(t) < p.n) p.y[fault_thread(t)] = read_at(values, 7 + p.one);
}
FN void group_pointer_outside(CONST FaultParams& p, GROUP FaultGroup& g, Lane t) {
  wait_for_previous();
  if (fault_thread(t) < p.n) p.y[fault_thread(t)] = read_at(g.values, fault_thread(t) + 27 + p.one);
}

// What the step wrote may not be asked for before the wait; what it did not, may.
FN void copy_before_wait(CONST FaultParams& p, GROUP FaultCopies& g, Lane t) {
  const Ptr<const u32x4> x = {(const u32x4*)p.x.at};
  if (fault_thread(t) == 0) copy16_async(g.chunk, x, 0);
  copies_asked();
  copies_arrived<0>();
  wait_for_previous();
  if (fault_thread(t) == 0) p.y[0] = bits_to_f32(g.chunk.x);
}
FN void copy_not_awaited(CONST FaultParams& p, GROUP FaultCopies& g, Lane t) {
  const Ptr<const u32x4> x = {(const u32x4*)p.x.at};
  wait_for_previous();
  if (fault_thread(t) == 0) copy16_async(g.chunk, x, 0);
  copies_asked();
  if (fault_thread(t) == 0) p.y[0] = bits_to_f32(g.chunk.x);
}
KERNEL(fault_copy_before_wait, FaultParams, FaultCopies, 128, copy_before_wait)
KERNEL(fault_copy_not_awaited, FaultParams, FaultCopies, 128, copy_not_awaited)

#define FAULT(NAME) KERNEL(fault_##NAME, FaultParams, FaultGroup, 128, NAME)
FAULT(barrier_by_some) FAULT(return_before_barrier) FAULT(sum_by_some) FAULT(sum_beside_max) FAULT(read_outside)
FAULT(write_outside) FAULT(write_just_past) FAULT(write_just_before) FAULT(write_to_input) FAULT(group_index_outside)
FAULT(no_barrier) FAULT(group_memory_unwritten) FAULT(result_unwritten) FAULT(groups_race) FAULT(misaligned) FAULT(overflow) FAULT(read_before_wait)
FAULT(register_pointer_outside) FAULT(group_pointer_outside)
