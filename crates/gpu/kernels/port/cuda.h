// Portability layer, CUDA (NVRTC or nvcc, no header needed). The same names as in metal.h and sim.h.
#pragma once
typedef int i32; typedef unsigned u32; typedef long long i64; typedef unsigned long long u64;
typedef float f32;
struct f16 { unsigned short bits; };
struct bf16 { unsigned short bits; };
typedef uint4 u32x4; typedef int2 i32x2; typedef float2 f32x2; typedef float4 f32x4;
#define GROUP
#define THREAD
#define CONST const
#define FN static __device__ __forceinline__
#define PART __device__ __forceinline__  // a static member function
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
static constexpr i32 SIMD = 32;
// Bytes of activations that a group stages at a time, beside which it has a little more.
#define STAGED_BYTES 32768
#define FIELD_OFFSET(STRUCT, FIELD) __INTADDR__(&((STRUCT*)0)->FIELD)  // this compiler has no __builtin_offsetof
struct NoGroup {};
struct Lane { i32 gx, gy, gz, simd, lane, simds; };
// The same for all lanes of a SIMD group, and the compiler knows: what follows from it takes no registers of lanes.
FN i32 simd_of_thread() { return __shfl_sync(~0u, (i32)threadIdx.x >> 5, 0); }

#define KERNEL(NAME, PARAMS, GROUPMEM, THREADS, ...)                                                                  \
  extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ PARAMS p) {                      \
    __shared__ GROUPMEM g;                                                                                            \
    const Lane t = {(i32)blockIdx.x, (i32)blockIdx.y, (i32)blockIdx.z, simd_of_thread(), (i32)threadIdx.x & 31,       \
                    THREADS / 32};                                                                                    \
    __VA_ARGS__(p, g, t);                                                                                             \
  }

// A kernel whose group memory has the size that the launch says: GROUPMEM is how it begins.
#define KERNEL_DYNAMIC(NAME, PARAMS, GROUPMEM, THREADS, ...) KERNEL_BESIDE(NAME, PARAMS, GROUPMEM, THREADS, 1, __VA_ARGS__)
// The same, in registers that let so many groups run at once on a multiprocessor.
#if __CUDA_ARCH__ < 1200
#define GROUPS_BESIDE(N) N
#else  // group memory of 100 KB holds one
#define GROUPS_BESIDE(N) 1
#endif
#define KERNEL_BESIDE(NAME, PARAMS, GROUPMEM, THREADS, GROUPS, ...)                                                   \
  extern "C" __global__ void __launch_bounds__(THREADS, GROUPS_BESIDE(GROUPS)) NAME(const __grid_constant__ PARAMS p) {                      \
    extern __shared__ __align__(1024) unsigned char group_memory[];                                                   \
    const Lane t = {(i32)blockIdx.x, (i32)blockIdx.y, (i32)blockIdx.z, simd_of_thread(), (i32)threadIdx.x & 31,       \
                    THREADS / 32};                                                                                    \
    __VA_ARGS__(p, *reinterpret_cast<GROUPMEM*>(group_memory), t);                                                    \
  }
// A pointer to device memory.
template <class T> using Ptr = T*;
template <class T> FN T* offset(T* p, i64 i) { return p + i; }
template <class T> FN bool given(T* p) { return p != nullptr; }
// The same memory, in other units.
FN const f32* scalars(const f32x4* p) { return reinterpret_cast<const f32*>(p); }
FN const u32x4* vectors16(const f16* p) { return reinterpret_cast<const u32x4*>(p); }
FN const u32* words(const f16* p) { return reinterpret_cast<const u32*>(p); }
FN const f32x4* vectors4(const f32* p) { return reinterpret_cast<const f32x4*>(p); }
FN u32x4 load_once(const u32x4* p, i64 i) {  // read-only data used once: weights
  u32x4 r;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3},[%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p + i));
  return r;
}
FN u32 load_once(const u32* p, i64 i) { u32 r; asm volatile("ld.global.nc.u32 %0,[%1];" : "=r"(r) : "l"(p + i)); return r; }
FN f16 load_once(const f16* p, i64 i) { f16 r; asm volatile("ld.global.nc.u16 %0,[%1];" : "=h"(r.bits) : "l"(p + i)); return r; }

// Programmatic dependent launch: the kernel may start before the one ahead of it in the step has ended. Nothing that
// kernels write may be touched before wait_for_previous(); sim.h checks that.
FN void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
FN void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
FN void group_barrier() { __syncthreads(); }
FN void simd_barrier() { __syncwarp(); }
// One thread counts its group, after a group barrier: 1 for the last of `groups`, which then sees, after another barrier, what
// all of them wrote to device memory before; and the counter is zero again.
FN u32 count_group(u32* counters, i64 i, u32 groups) {
  u32 before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0,[%1],1;" : "=r"(before) : "l"(counters + i) : "memory");
  if (before + 1 < groups) return 0;
  counters[i] = 0;
  return 1;
}
// True in one lane of those that all are here. The compiler sees that it is one, and copies which that lane asks for take no loop
// over lanes.
FN bool one_lane(i32 lane) {
#if __CUDA_ARCH__ >= 900
  u32 is_one;
  asm volatile("{.reg .pred one; elect.sync _|one,0xffffffff; selp.u32 %0,1,0,one;}" : "=r"(is_one));
  return is_one != 0;
#else
  return lane == 0;
#endif
}
// The place of the lowest bit that is set; one is.
FN i32 lowest_bit(u32 v) { return __ffs((i32)v) - 1; }
FN bool any_lane(bool v) { return __any_sync(~0u, v); }
FN i32 shuffle(i32 v, i32 lane) { return __shfl_sync(~0u, v, lane); }
FN f32 shuffle_xor(f32 v, i32 mask) { return __shfl_xor_sync(~0u, v, mask); }
// Over each L consecutive lanes, L a power of two; every lane gets the result.
template <i32 L> FN f32 sum_lanes(f32 v) { UNROLL for (i32 m = L / 2; m; m >>= 1) v += shuffle_xor(v, m); return v; }
template <i32 L> FN f32 max_lanes(f32 v) { UNROLL for (i32 m = L / 2; m; m >>= 1) v = fmaxf(v, shuffle_xor(v, m)); return v; }

FN u32 max_lanes_u32(u32 v) { return __reduce_max_sync(~0u, v); }
FN u32 min_lanes_u32(u32 v) { return __reduce_min_sync(~0u, v); }

FN f32 bits_to_f32(u32 bits) { return __uint_as_float(bits); }
FN u32 f32_to_bits(f32 v) { return __float_as_uint(v); }
FN f32 to_f32(f32 v) { return v; }
FN f32 to_f32(bf16 v) { return __uint_as_float((u32)v.bits << 16); }
FN f32 to_f32(f16 v) { f32 r; asm("cvt.f32.f16 %0,%1;" : "=f"(r) : "h"(v.bits)); return r; }
FN f16 to_f16(f32 v) { f16 r; asm("cvt.rn.f16.f32 %0,%1;" : "=h"(r.bits) : "f"(v)); return r; }
FN void store(f32* p, i64 i, f32 v) { p[i] = v; }
FN void store(f16* p, i64 i, f32 v) { p[i] = to_f16(v); }
FN f32x2 f16x2_to_f32(u32 v) {
  f32x2 r;
  asm("{.reg .b16 a, b; mov.b32 {a,b},%2; cvt.f32.f16 %0,a; cvt.f32.f16 %1,b;}" : "=f"(r.x), "=f"(r.y) : "r"(v));
  return r;
}
FN u32 f32x2_to_f16x2(f32 a, f32 b) { u32 r; asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(b), "f"(a)); return r; }
FN f32x2 bf16x2_to_f32(u32 v) { return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u)); }
FN f32x4 i8x4_to_f32(u32 v) {  // code + 128 into the mantissa of 2^23, then subtract: faster than I2F
  v ^= 0x80808080u;
  f32x4 r;
  r.x = __uint_as_float(__byte_perm(v, 0x4b000000u, 0x7540)) - 8388736.f;
  r.y = __uint_as_float(__byte_perm(v, 0x4b000000u, 0x7541)) - 8388736.f;
  r.z = __uint_as_float(__byte_perm(v, 0x4b000000u, 0x7542)) - 8388736.f;
  r.w = __uint_as_float(__byte_perm(v, 0x4b000000u, 0x7543)) - 8388736.f;
  return r;
}
// Within 2 ulp, for normal b < 2^126.
FN f32 near_quotient(f32 a, f32 b) { f32 r; asm("div.approx.ftz.f32 %0,%1,%2;" : "=f"(r) : "f"(a), "f"(b)); return r; }
// Four products of signed bytes, added to `sum`.
FN i32 dot_i8x4(u32 a, u32 b, i32 sum) { return __dp4a((i32)a, (i32)b, sum); }

// The same of unsigned bytes and signed ones.
FN i32 dot_u8x4(u32 a, u32 b, i32 sum) { asm("dp4a.u32.s32 %0,%1,%2,%0;" : "+r"(sum) : "r"(a), "r"(b)); return sum; }
// Byte i is that of eight, four in `low` and four in `high`, all below 128, which half byte i of `which` names; 0 where it is 8 or more.
// (__byte_perm would leave the highest bit of each half byte out.)
FN u32 pick_bytes(u32 low, u32 high, u32 which) { u32 r; asm("prmt.b32 %0,%1,%2,%3;" : "=r"(r) : "r"(low), "r"(high), "r"(which)); return r; }
// Pairs of f16: a · b + c, rounded once.
FN u32 fma_f16x2(u32 a, u32 b, u32 c) { u32 r; asm("fma.rn.f16x2 %0,%1,%2,%3;" : "=r"(r) : "r"(a), "r"(b), "r"(c)); return r; }
FN u32 mul_f16x2(u32 a, u32 b) { u32 r; asm("mul.rn.f16x2 %0,%1,%2;" : "=r"(r) : "r"(a), "r"(b)); return r; }
FN u32 sub_f16x2(u32 a, u32 b) { u32 r; asm("sub.rn.f16x2 %0,%1,%2;" : "=r"(r) : "r"(a), "r"(b)); return r; }
// (a & b) | c. Hopper's kernels have it as the one instruction that it is: taken apart by the compiler and mixed with shifts, few rows
// of four bits took 6 % longer.
FN u32 and_or(u32 a, u32 b, u32 c) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  u32 r;
  asm("lop3.b32 %0,%1,%2,%3,0xea;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
#else
  return (a & b) | c;
#endif
}
// Byte i is that of eight, four in `low` and four in `high`, which half byte i of `which`, below 8, names.
FN u32 byte_perm(u32 low, u32 high, u32 which) { return __byte_perm(low, high, which); }

// Group memory by its byte, for kernels whose group memory has parts of sizes that the launch decides.
template <class T> using GroupPtr = T*;
template <class T, class G> FN GroupPtr<T> group_at(G& g, i32 byte) {
  return reinterpret_cast<T*>(reinterpret_cast<unsigned char*>(&g) + byte);
}

// The same as instructions address it.
typedef u32 GroupAddress;
template <class G> FN GroupAddress group_address_at(G& g, i32 byte) { return (u32)__cvta_generic_to_shared(&g) + byte; }
struct u32x2 { u32 x, y; };
FN u32x4 load_group_bits(GroupAddress address) {
  u32x4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3},[%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
  return v;
}
FN u32x2 load_group_two(GroupAddress address) {
  u32x2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1},[%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
  return v;
}

// Copies from device to group memory that run beside the threads. A barrier counts phases: in each, one thread says how
// many bytes will come, asks for the copies, and all wait for its end by the phase's parity, 0 first.
#if __CUDA_ARCH__ >= 900
#define HAS_BULK_COPIES
// Numbers of E4M3 as pairs of f16, exactly: the instruction is of capability 8.9 and on.
#define HAS_E4M3
FN void e4m3x4_to_f16x4(u32& low, u32& high, u32 word) {
  asm("{.reg .b16 a,b; mov.b32 {a,b},%2; cvt.rn.f16x2.e4m3x2 %0,a; cvt.rn.f16x2.e4m3x2 %1,b;}" : "=r"(low), "=r"(high) : "r"(word));
}
FN u32 e4m3x2_to_f16x2(u32 pair) {  // in the lower half of a word
  u32 r;
  asm("{.reg .b16 a,b; mov.b32 {a,b},%1; cvt.rn.f16x2.e4m3x2 %0,a;}" : "=r"(r) : "r"(pair));
  return r;
}
struct CopyBarrier { unsigned long long state; };
FN u32 group_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
FN void begin_barrier(CopyBarrier& b) { asm volatile("mbarrier.init.shared.b64 [%0],1;" ::"r"(group_address(&b)) : "memory"); }
FN void show_barriers() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }  // after begin_barrier, to the copies
FN void expect_copies(CopyBarrier& b, i32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _,[%0],%1;" ::"r"(group_address(&b)), "r"(bytes) : "memory");
}
// `bytes` is a multiple of 16. Read-only data used once: weights.
FN void copy_to_group(u32x4* to, const u32x4* from, i32 bytes, CopyBarrier& b) {
  asm volatile(
      "{.reg .b64 once; createpolicy.fractional.L2::evict_first.b64 once,1.0;"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0],[%1],%2,[%3],once;}"
      ::"r"(group_address(to)), "l"(from), "r"(bytes), "r"(group_address(&b)) : "memory");
}
FN void copy_to_cache(const u32x4* from, i32 bytes) {  // of the device; `bytes` as above
  asm volatile("cp.async.bulk.prefetch.L2.global [%0],%1;" ::"l"(from), "r"(bytes));
}
FN void wait_for_copies(CopyBarrier& b, u32 parity) {
  asm volatile(
      "{.reg .pred done;\nAGAIN: mbarrier.try_wait.parity.shared.b64 done,[%0],%1;\n@!done bra AGAIN;}"
      ::"r"(group_address(&b)), "r"(parity) : "memory");
}
#endif
FN u32x4 make16(u32 x, u32 y, u32 z, u32 w) { return make_uint4(x, y, z, w); }
FN f32 exp32(f32 x) { return expf(x); }
FN f32 exp2_32(f32 x) { f32 r; asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(r) : "f"(x)); return r; }  // to 2 units in the last place
FN f32 abs32(f32 x) { return fabsf(x); }
FN f32 near_inverse_sqrt(f32 x) { f32 r; asm("rsqrt.approx.ftz.f32 %0,%1;" : "=f"(r) : "f"(x)); return r; }  // within 2 ulp, for normal x
FN f32 inv_sqrt(f32 x) { return 1.f / sqrtf(x); }
FN f32 fma32(f32 a, f32 b, f32 c) { return fmaf(a, b, c); }
// A product that is rounded, whatever it is added to.
FN f32 mul_rounded(f32 a, f32 b) { return __fmul_rn(a, b); }
// The upper half of a product.
FN u32 mul_high(u32 a, u32 b) { return __umulhi(a, b); }
FN u64 mul_high_u64(u64 a, u64 b) { return __umul64hi(a, b); }
FN u64 sum_lanes_u64(u64 v) { UNROLL for (i32 m = SIMD / 2; m; m >>= 1) v += __shfl_xor_sync(~0u, v, m); return v; }
FN f32 max32(f32 a, f32 b) { return fmaxf(a, b); }
// NaN where one of them is.
FN f32 max_or_nan32(f32 a, f32 b) { f32 r; asm("max.NaN.f32 %0,%1,%2;" : "=f"(r) : "f"(a), "f"(b)); return r; }
FN i32 mini(i32 a, i32 b) { return min(a, b); }
FN i32 maxi(i32 a, i32 b) { return max(a, b); }

#define MATRIX_16X8X16 1
// c (16, 8) += a (16, 16) · b (16, 8), of f16 with sums in f32, by the lanes of a SIMD group together. With g = lane / 4 and
// i = lane % 4 · 2, a lane has of c the columns i and i + 1 of row g, then of row g + 8; of a the columns i and i + 1 of rows
// g and g + 8, then i + 8 and i + 9 of both; of b the rows i and i + 1 of column g, then i + 8 and i + 9.
FN void mma_f16_16x8x16(f32 (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// Four matrices of 8 rows of 16 bytes, as mma_f16_16x8x16 has its operands: lane l says where row l % 8 of matrix l / 8 is.
FN void load_matrices(u32 (&to)[4], const u32x4& row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"((u32)__cvta_generic_to_shared(&row)) : "memory");
}
// The same of matrices of halves, each turned: rows become columns.
FN void load_matrices_turned(u32 (&to)[4], const u32x4& row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"((u32)__cvta_generic_to_shared(&row)) : "memory");
}
// Copies from device to group memory that run on: asked for one by one, then closed to a batch, which has arrived when all but
// the last N batches have. That is for the thread that asked; others need a barrier too.
FN void copy16_async(u32x4& to, const u32x4* from, i64 i) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16;" :: "r"((u32)__cvta_generic_to_shared(&to)), "l"(from + i) : "memory");
}
FN void copies_asked() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <i32 N> FN void copies_arrived() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }

// As copy16_async, to a byte of group memory, and of two f16 that begin on 4 bytes; where `in` is false zeros come. Others of a
// SIMD group see them after simd_barrier().
template <class G> FN void copy16_async(G& g, i32 byte, const u32x4* from, i64 i, bool in) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0],[%1],16,%2;"
               ::"r"((u32)__cvta_generic_to_shared(&g) + byte), "l"(from + i), "r"(in ? 16 : 0) : "memory");
}
template <class G> FN void copy4_async(G& g, i32 byte, const f16* from, i64 i, bool in) {
  asm volatile("cp.async.ca.shared.global [%0],[%1],4,%2;"
               ::"r"((u32)__cvta_generic_to_shared(&g) + byte), "l"(from + i), "r"(in ? 4 : 0) : "memory");
}
// As group_barrier, of the first SIMDS SIMD groups.
template <i32 SIMDS> FN void simds_barrier() { asm volatile("bar.sync 1,%0;" ::"n"(SIMDS * 32) : "memory"); }

// Messages between groups of a launch that run at the same time: all bits of their memory are set until one is sent, and
// whoever has seen it sets them again. Results that are not a number have other bits.
#define GROUPS_MEET
FN f32x4 look(const f32x4* from, i64 i) {
  f32x4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0,%1,%2,%3},[%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from + i) : "memory");
  return v;
}
FN f32 look(const f32* from, i64 i) { f32 v; asm volatile("ld.relaxed.gpu.global.f32 %0,[%1];" : "=f"(v) : "l"(from + i) : "memory"); return v; }
FN bool has_come(f32x4 v) {
  return __float_as_uint(v.x) != ~0u && __float_as_uint(v.y) != ~0u && __float_as_uint(v.z) != ~0u && __float_as_uint(v.w) != ~0u;
}
FN void send(f32x4* to, i64 i, f32x4 v) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0],{%1,%2,%3,%4};" ::"l"(to + i), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
FN void send(f32* to, i64 i, f32 v) { asm volatile("st.relaxed.gpu.global.f32 [%0],%1;" ::"l"(to + i), "f"(v) : "memory"); }
FN void forget(f32x4* at, i64 i) { asm volatile("st.relaxed.gpu.global.v4.u32 [%0],{%1,%1,%1,%1};" ::"l"(at + i), "r"(~0u) : "memory"); }
// One thread of each group of a launch whose groups all run at once, after a group barrier: goes on when `until` have come to
// the counter, which no other launch uses.
FN void meet_groups(u32* counter, u32 until) {
  asm volatile("red.add.release.gpu.global.u32 [%0],1;" ::"l"(counter) : "memory");
  u32 come;
  do asm volatile("ld.acquire.gpu.global.u32 %0,[%1];" : "=r"(come) : "l"(counter) : "memory");
  while (come < until);
}
// The same in steps: what a group has done is told, others wait until all of it is done, and the last of those that pass, when `all` have
// come, leaves zero.
FN void arrive_at(u32* counter, u32 done) { asm volatile("red.release.gpu.global.add.u32 [%0],%1;" ::"l"(counter), "r"(done) : "memory"); }
FN void wait_at(u32* counter, u32 until) {
  u32 come;
  do asm volatile("ld.acquire.gpu.global.u32 %0,[%1];" : "=r"(come) : "l"(counter) : "memory");
  while (come < until);
}
FN void pass_at(u32* counter, u32 all) {
  if (atomicAdd(counter, 1u) + 1 == all) *counter = 0;
}
// A word of group memory that another SIMD group may be changing, and a moment between two looks at it.
FN i32 flag(const i32& word) { return *(volatile const i32*)&word; }
FN void pause() { __nanosleep(64); }

// As mma_f16_16x8x16, of bf16.
FN void mma_bf16_16x8x16(f32 (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
FN u32 to_f16x2(f32 x, f32 y) { u32 r; asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(y), "f"(x)); return r; }
FN u32 to_bf16x2(f32 x, f32 y) { u32 r; asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(y), "f"(x)); return r; }
// Four signed bytes times `scale`: byte + 128 into the mantissa of 1024, subtract, multiply; rounded once.
FN u32x2 i8x4_to_f16x4(u32 v, f16 scale) {
  v ^= 0x80808080u;
  const u32 scales = scale.bits * 0x10001u;
  u32x2 r;
  asm("{.reg .b32 a; sub.f16x2 a,%1,%2; mul.f16x2 %0,a,%3;}" : "=r"(r.x) : "r"(__byte_perm(v, 0x64646464u, 0x4140)), "r"(0x64806480u), "r"(scales));
  asm("{.reg .b32 a; sub.f16x2 a,%1,%2; mul.f16x2 %0,a,%3;}" : "=r"(r.y) : "r"(__byte_perm(v, 0x64646464u, 0x4342)), "r"(0x64806480u), "r"(scales));
  return r;
}
