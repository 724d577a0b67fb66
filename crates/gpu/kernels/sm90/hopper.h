// What only Hopper has: barriers in group memory that copies report to, copies of tensor tiles, clusters of groups that
// share them, and matrix instructions of four SIMD groups together. Each function is one instruction, or nearly.

// A tensor as copies of its tiles see it: the driver encodes it (`cuTensorMapEncodeTiled`).
struct alignas(64) TensorMap { u32 words[32]; };

#if __CUDA_ARCH_FEAT_SM90_ALL
#define ROLL _Pragma("unroll 1")

// A number that is kept in a register, and not computed again wherever it is needed.
FN u32 held(u32 v) { asm volatile("" : "+r"(v)); return v; }

// The same place in another group of the cluster.
FN u32 cluster_address(u32 address, u32 rank) {
  u32 r;
  asm volatile("mapa.shared::cluster.u32 %0,%1,%2;" : "=r"(r) : "r"(address), "r"(rank));
  return r;
}
FN u32 cluster_rank() { u32 r; asm volatile("mov.u32 %0,%%cluster_ctarank;" : "=r"(r)); return r; }
FN u32 cluster_size() { u32 r; asm volatile("mov.u32 %0,%%cluster_nctarank;" : "=r"(r)); return r; }
FN void cluster_barrier() { asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory"); }

// Barriers. A phase ends when all arrivals and all expected bytes are there; phases alternate between 0 and 1.
FN void barrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" :: "r"(barrier), "r"(arrivals) : "memory");
}
FN void barriers_are_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
FN void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" :: "r"(barrier), "r"(bytes) : "memory");
}
FN void barrier_arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" :: "r"(barrier) : "memory"); }
FN void barrier_wait(u32 barrier, u32 phase) {
  asm volatile("{.reg .pred done; wait: mbarrier.try_wait.parity.shared::cta.b64 done,[%0],%1; @!done bra wait;}"
               :: "r"(barrier), "r"(phase) : "memory");
}
// In another group of the cluster. What this thread wrote is not yet seen there: that is what `publish` and `observe` are
// for, and they cost a thousand cycles.
FN void barrier_arrive_at(u32 barrier, u32 rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _,[%0];" :: "r"(cluster_address(barrier, rank)) : "memory");
}
FN void barrier_publish_at(u32 barrier, u32 rank) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _,[%0];" :: "r"(cluster_address(barrier, rank)) : "memory");
}
FN void barrier_observe(u32 barrier, u32 phase) {
  asm volatile(
      "{.reg .pred done; wait: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done,[%0],%1; @!done bra wait;}"
      :: "r"(barrier), "r"(phase) : "memory");
}
// Stores to group memory of a group of the cluster that report to a barrier there, as copies do.
FN void send_to(u32 address, u32 barrier, u32 rank, f32 a, f32 b) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0],{%1,%2},[%3];"
               :: "r"(cluster_address(address, rank)), "f"(a), "f"(b), "r"(cluster_address(barrier, rank)) : "memory");
}
FN void send_to(u32 address, u32 barrier, u32 rank, f32 v) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0],%1,[%2];"
               :: "r"(cluster_address(address, rank)), "f"(v), "r"(cluster_address(barrier, rank)) : "memory");
}
FN void send_to(u32 address, u32 barrier, u32 rank, f32x4 v) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0],{%1,%2,%3,%4},[%5];"
               :: "r"(cluster_address(address, rank)), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(cluster_address(barrier, rank)) : "memory");
}
// Says that this thread has come, and shows nothing that it wrote: a fence takes a microsecond.
FN void cluster_begin() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
FN void cluster_arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
FN void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
// A barrier of four SIMD groups, one of 16 that there are; the first is group_barrier's.
FN void four_simds_barrier(i32 which) { asm volatile("bar.sync %0,128;" :: "r"(which) : "memory"); }

FN f32x4 load_group(u32 address) {
  f32x4 v;
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3},[%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address) : "memory");
  return v;
}
FN f32x2 load_group_pair(u32 address) {
  f32x2 v;
  asm volatile("ld.shared.v2.f32 {%0,%1},[%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
  return v;
}
FN f32 load_group_scalar(u32 address) {
  f32 v;
  asm volatile("ld.shared.f32 %0,[%1];" : "=f"(v) : "r"(address) : "memory");
  return v;
}
FN f32x4 load_cluster(u32 address, u32 rank) {
  f32x4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3},[%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(cluster_address(address, rank)) : "memory");
  return v;
}
FN void store_group_pair(u32 address, f32 a, f32 b) {
  asm volatile("st.shared.v2.f32 [%0],{%1,%2};" :: "r"(address), "f"(a), "f"(b) : "memory");
}
FN void store_group_four(u32 address, const f32 (&v)[4]) {
  asm volatile("st.shared.v4.f32 [%0],{%1,%2,%3,%4};" :: "r"(address), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
}
FN void store_group(u32 address, f32 v) { asm volatile("st.shared.f32 [%0],%1;" :: "r"(address), "f"(v) : "memory"); }

// Copies of tiles: the innermost coordinate first.
FN void prefetch_map(CONST TensorMap& map) { asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory"); }
FN void copy_tile_2d(u32 to, CONST TensorMap& map, u32 barrier, i32 x, i32 y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1,{%2,%3}],[%4];"
               :: "r"(to), "l"(&map), "r"(x), "r"(y), "r"(barrier) : "memory");
}
FN void copy_tile_3d(u32 to, CONST TensorMap& map, u32 barrier, i32 x, i32 y, i32 z) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1,{%2,%3,%4}],[%5];"
               :: "r"(to), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier) : "memory");
}
FN void copy_tile_4d(u32 to, CONST TensorMap& map, u32 barrier, i32 x, i32 y, i32 z, i32 w) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1,{%2,%3,%4,%5}],[%6];"
               :: "r"(to), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier) : "memory");
}
FN void copy_tile_5d(u32 to, CONST TensorMap& map, u32 barrier, i32 x, i32 y, i32 z, i32 w, i32 v) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1,{%2,%3,%4,%5,%6}],[%7];"
               :: "r"(to), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v), "r"(barrier) : "memory");
}
// To the same place in every group of `ranks` (a bit each), whose barriers all hear of it.
FN void copy_tile_2d_to_all(u32 to, CONST TensorMap& map, u32 barrier, i32 x, i32 y, u32 ranks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0],[%1,{%2,%3}],[%4],%5;"
      :: "r"(to), "l"(&map), "r"(x), "r"(y), "r"(barrier), "h"((unsigned short)ranks) : "memory");
}

// Registers of a thread, for all four SIMD groups of a role.
template <i32 N> FN void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N)); }
template <i32 N> FN void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N)); }

// A value that the compiler keeps in a register: where it can compute an address again from the group's place in its cluster, it does so
// in every stage, and waits for that place.
FN u32 kept(u32 v) {
  asm volatile("" : "+r"(v));
  return v;
}

// Matrix instructions: D (64, N) += A (64, 16) · B (N, 16)ᵀ. A tile in group memory is rows of 128 bytes, swizzled as the
// copies do, and begins at a multiple of 1024.
FN unsigned long long tile_descriptor(u32 address) {
  return (unsigned long long)(address >> 4 & 0x3fff) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
FN void matrix_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FN void matrix_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <i32 N> FN void matrix_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory"); }

#define ACC_8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define ACC_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ACC_16(d, i) ACC_8(d, i), ACC_8(d, i + 8)
#define ACC_64(d, i) ACC_8(d, i), ACC_8(d, i + 8), ACC_8(d, i + 16), ACC_8(d, i + 24), ACC_8(d, i + 32), ACC_8(d, i + 40), ACC_8(d, i + 48), ACC_8(d, i + 56)
#define REGISTERS_4 "{%0,%1,%2,%3}"
#define REGISTERS_8 "{%0,%1,%2,%3,%4,%5,%6,%7}"
#define REGISTERS_16 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}"
#define REGISTERS_32 \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"
#define REGISTERS_40 \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39}"
#define REGISTERS_48 \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47}"
#define REGISTERS_64 \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"
#define REGISTERS_80 \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63," \
  "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79}"
#define REGISTERS_96 \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63," \
  "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
  "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95}"
#define REGISTERS_112 \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63," \
  "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
  "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
  "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111}"
#define REGISTERS_128 \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63," \
  "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
  "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
  "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111," \
  "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}"

#define MATRIX_OPS(N, COUNT, ACC, A, B, A0, A1, A2, A3, B4)                                                                  \
  template <> struct MatrixOp<N> {                                                                                          \
    static PART void f16(f32 (&d)[COUNT], unsigned long long a, unsigned long long b) {                                     \
      asm volatile("{.reg .pred p; setp.ne.b32 p,1,0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 "              \
                   REGISTERS_##COUNT "," A "," B ",p,1,1,0,0;}" : ACC : "l"(a), "l"(b));                                    \
    }                                                                                                                       \
    static PART void bf16(f32 (&d)[COUNT], unsigned long long a, unsigned long long b) {                                    \
      asm volatile("{.reg .pred p; setp.ne.b32 p,1,0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 "            \
                   REGISTERS_##COUNT "," A "," B ",p,1,1,0,0;}" : ACC : "l"(a), "l"(b));                                    \
    }                                                                                                                       \
    static PART void f16(f32 (&d)[COUNT], const u32 (&a)[4], unsigned long long b) {                                        \
      asm volatile("{.reg .pred p; setp.ne.b32 p,1,0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 "              \
                   REGISTERS_##COUNT ",{" A0 "," A1 "," A2 "," A3 "}," B4 ",p,1,1,0;}"                                      \
                   : ACC : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                             \
    }                                                                                                                       \
    /* B (16, N) instead, in rows of 128 bytes. */                                                                          \
    static PART void f16_turned(f32 (&d)[COUNT], const u32 (&a)[4], unsigned long long b) {                                 \
      asm volatile("{.reg .pred p; setp.ne.b32 p,1,0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 "              \
                   REGISTERS_##COUNT ",{" A0 "," A1 "," A2 "," A3 "}," B4 ",p,1,1,1;}"                                      \
                   : ACC : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                             \
    }                                                                                                                       \
  };
template <i32 N> struct MatrixOp;
#define ACC_D4 ACC_4(d, 0)
#define ACC_D8 ACC_8(d, 0)
#define ACC_D16 ACC_16(d, 0)
#define ACC_D32 ACC_16(d, 0), ACC_16(d, 16)
#define ACC_D40 ACC_16(d, 0), ACC_16(d, 16), ACC_8(d, 32)
#define ACC_D48 ACC_16(d, 0), ACC_16(d, 16), ACC_16(d, 32)
#define ACC_D64 ACC_64(d, 0)
#define ACC_D80 ACC_64(d, 0), ACC_16(d, 64)
#define ACC_D96 ACC_64(d, 0), ACC_16(d, 64), ACC_16(d, 80)
#define ACC_D112 ACC_64(d, 0), ACC_16(d, 64), ACC_16(d, 80), ACC_16(d, 96)
#define ACC_D128 ACC_64(d, 0), ACC_64(d, 64)
MATRIX_OPS(8, 4, ACC_D4, "%4", "%5", "%4", "%5", "%6", "%7", "%8")
MATRIX_OPS(16, 8, ACC_D8, "%8", "%9", "%8", "%9", "%10", "%11", "%12")
MATRIX_OPS(32, 16, ACC_D16, "%16", "%17", "%16", "%17", "%18", "%19", "%20")
MATRIX_OPS(64, 32, ACC_D32, "%32", "%33", "%32", "%33", "%34", "%35", "%36")
MATRIX_OPS(80, 40, ACC_D40, "%40", "%41", "%40", "%41", "%42", "%43", "%44")
MATRIX_OPS(96, 48, ACC_D48, "%48", "%49", "%48", "%49", "%50", "%51", "%52")
MATRIX_OPS(128, 64, ACC_D64, "%64", "%65", "%64", "%65", "%66", "%67", "%68")
MATRIX_OPS(160, 80, ACC_D80, "%80", "%81", "%80", "%81", "%82", "%83", "%84")
MATRIX_OPS(192, 96, ACC_D96, "%96", "%97", "%96", "%97", "%98", "%99", "%100")
MATRIX_OPS(224, 112, ACC_D112, "%112", "%113", "%112", "%113", "%114", "%115", "%116")
MATRIX_OPS(256, 128, ACC_D128, "%128", "%129", "%128", "%129", "%130", "%131", "%132")

#endif
