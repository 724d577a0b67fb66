// Portability layer, Metal Shading Language 3.x: parameters hold GPU addresses. The same names as in cuda.h and sim.h.
// No Apple compiler has seen this text yet.
#pragma once
#include <metal_stdlib>
using namespace metal;
typedef int i32; typedef uint u32; typedef long i64; typedef ulong u64;
typedef float f32; typedef half f16; typedef bfloat bf16;
typedef uint4 u32x4; typedef int2 i32x2; typedef float2 f32x2; typedef float4 f32x4;
#define GROUP threadgroup
#define THREAD thread
#define CONST constant
#define FN static inline __attribute__((always_inline))
#define PART inline __attribute__((always_inline))  // a static member function
#define UNROLL _Pragma("clang loop unroll(full)")
#define ROLLED _Pragma("clang loop unroll(disable)")
// What those define who check this text without a device: how group memory is declared, and a note of each kernel.
#ifndef GROUP_LOCAL
#define GROUP_LOCAL(GROUPMEM, NAME) threadgroup GROUPMEM NAME
#define GROUP_ARGUMENT [[threadgroup(0)]]
#define NOTE_KERNEL(NAME, PARAMS, GROUPMEM, THREADS)
#define NOTE_KERNEL_DYNAMIC(NAME, PARAMS, GROUPMEM, THREADS)
#endif
// What every Apple GPU has: bytes of group memory, and threads of a group.
#define GROUP_BYTES_MAX 32768
#define GROUP_THREADS_MAX 1024
#define SIMD 32
// Bytes of activations that a group stages at a time, beside which it has a little more.
#define STAGED_BYTES 16384
#define FIELD_OFFSET(STRUCT, FIELD) __builtin_offsetof(STRUCT, FIELD)
struct NoGroup { char unused; };
struct Lane { i32 gx, gy, gz, simd, lane, simds; };

// A device of another width is refused before a kernel runs.
static_assert(SIMD == 32, "kernels shuffle and sum over SIMD groups of 32");
#define KERNEL(NAME, PARAMS, GROUPMEM, THREADS, ...)                                                             \
  static_assert(THREADS % SIMD == 0, "whole SIMD groups in " #NAME);                                             \
  static_assert(sizeof(GROUPMEM) <= GROUP_BYTES_MAX, "group memory of " #NAME);                                  \
  static_assert(THREADS <= GROUP_THREADS_MAX, "threads of " #NAME);                                              \
  [[kernel, max_total_threads_per_threadgroup(THREADS)]] void NAME(                                              \
      constant PARAMS& p [[buffer(0)]], uint3 gid [[threadgroup_position_in_grid]],                              \
      uint sg [[simdgroup_index_in_threadgroup]], uint ln [[thread_index_in_simdgroup]]) {                       \
    GROUP_LOCAL(GROUPMEM, NAME##_group);                                                                         \
    const Lane t = {(i32)gid.x, (i32)gid.y, (i32)gid.z, (i32)sg, (i32)ln, THREADS / 32};                         \
    __VA_ARGS__(p, NAME##_group, t);                                                                             \
  }                                                                                                              \
  NOTE_KERNEL(NAME, PARAMS, GROUPMEM, THREADS)

// A kernel whose group memory has the size that the launch says, a multiple of 16: GROUPMEM is how it begins.
#define KERNEL_DYNAMIC(NAME, PARAMS, GROUPMEM, THREADS, ...)                                                     \
  static_assert(THREADS % SIMD == 0, "whole SIMD groups in " #NAME);                                             \
  static_assert(sizeof(GROUPMEM) <= GROUP_BYTES_MAX, "group memory of " #NAME);                                  \
  static_assert(THREADS <= GROUP_THREADS_MAX, "threads of " #NAME);                                              \
  [[kernel, max_total_threads_per_threadgroup(THREADS)]] void NAME(                                              \
      constant PARAMS& p [[buffer(0)]], threadgroup GROUPMEM* g GROUP_ARGUMENT,                                  \
      uint3 gid [[threadgroup_position_in_grid]], uint sg [[simdgroup_index_in_threadgroup]],                    \
      uint ln [[thread_index_in_simdgroup]]) {                                                                   \
    const Lane t = {(i32)gid.x, (i32)gid.y, (i32)gid.z, (i32)sg, (i32)ln, THREADS / 32};                         \
    __VA_ARGS__(p, *g, t);                                                                                       \
  }                                                                                                              \
  NOTE_KERNEL_DYNAMIC(NAME, PARAMS, GROUPMEM, THREADS)
#define KERNEL_BESIDE(NAME, PARAMS, GROUPMEM, THREADS, GROUPS, ...) KERNEL_DYNAMIC(NAME, PARAMS, GROUPMEM, THREADS, __VA_ARGS__)

// A pointer to device memory.
template <class T> using Ptr = device T*;
template <class T> FN device T* offset(device T* p, i64 i) { return p + i; }
template <class T> FN bool given(device T* p) { return p != nullptr; }
// The same memory, in other units.
FN device const f32* scalars(device const f32x4* p) { return (device const f32*)p; }
FN device const u32x4* vectors16(device const f16* p) { return (device const u32x4*)p; }
FN device const u32* words(device const f16* p) { return (device const u32*)p; }
FN device const f32x4* vectors4(device const f32* p) { return (device const f32x4*)p; }
FN u32x4 load_once(device const u32x4* p, i64 i) { return p[i]; }
FN u32 load_once(device const u32* p, i64 i) { return p[i]; }
FN f16 load_once(device const f16* p, i64 i) { return p[i]; }

// Between kernels of a step the encoder has barriers.
FN void wait_for_previous() {}
FN void let_next_start() {}
FN void group_barrier() { threadgroup_barrier(mem_flags::mem_threadgroup); }
FN void simd_barrier() { simdgroup_barrier(mem_flags::mem_threadgroup); }
// One thread counts its group, after a group barrier: 1 for the last of `groups`, which then sees, after another barrier, what
// all of them wrote to device memory before; and the counter is zero again. Metal's atomics are relaxed, and its group
// barriers order device memory within a group alone: it is the fences (Metal 3.2) that order the writes of all groups,
// which the specification promises, and no device has shown yet.
FN u32 count_group(device u32* counters, i64 i, u32 groups) {
  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
  device atomic_uint* counter = (device atomic_uint*)(counters + i);
  if (atomic_fetch_add_explicit(counter, 1u, memory_order_relaxed) + 1 < groups) return 0;
  atomic_store_explicit(counter, 0u, memory_order_relaxed);
  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
  return 1;
}
FN bool one_lane(i32 lane) { return lane == 0; }
FN bool any_lane(bool v) { return simd_any(v); }
FN i32 shuffle(i32 v, i32 lane) { return simd_shuffle(v, (ushort)lane); }
FN f32 shuffle_xor(f32 v, i32 m) { return simd_shuffle_xor(v, (ushort)m); }
// Over each L consecutive lanes, L a power of two; every lane gets the result.
template <i32 L> FN f32 sum_lanes(f32 v) { UNROLL for (i32 m = L / 2; m; m >>= 1) v += shuffle_xor(v, m); return v; }
template <i32 L> FN f32 max_lanes(f32 v) { UNROLL for (i32 m = L / 2; m; m >>= 1) v = max(v, shuffle_xor(v, m)); return v; }

FN u32 max_lanes_u32(u32 v) {
  UNROLL for (i32 m = SIMD / 2; m; m >>= 1) { const u32 other = simd_shuffle_xor(v, (ushort)m); v = other > v ? other : v; }
  return v;
}
FN u32 min_lanes_u32(u32 v) {
  UNROLL for (i32 m = SIMD / 2; m; m >>= 1) { const u32 other = simd_shuffle_xor(v, (ushort)m); v = other < v ? other : v; }
  return v;
}

FN f32 bits_to_f32(u32 bits) { return as_type<f32>(bits); }
FN u32 f32_to_bits(f32 v) { return as_type<u32>(v); }
FN f32 to_f32(f32 v) { return v; }
FN f32 to_f32(f16 v) { return f32(v); }
FN f32 to_f32(bf16 v) { return f32(v); }
FN f16 to_f16(f32 v) { return f16(v); }
FN void store(device f32* p, i64 i, f32 v) { p[i] = v; }
FN void store(device f16* p, i64 i, f32 v) { p[i] = f16(v); }
FN f32x2 f16x2_to_f32(u32 v) { return float2(as_type<half2>(v)); }
FN u32 f32x2_to_f16x2(f32 a, f32 b) { return as_type<u32>(half2(a, b)); }
FN u32 to_bf16x2(f32 x, f32 y) { return u32(as_type<ushort>(bf16(x))) | u32(as_type<ushort>(bf16(y))) << 16; }
FN f32x2 bf16x2_to_f32(u32 v) { return float2(as_type<float>(v << 16), as_type<float>(v & 0xffff0000u)); }
FN f32x4 i8x4_to_f32(u32 v) { return float4(as_type<char4>(v)); }
// Four products of signed bytes, added to `sum`.
FN i32 dot_i8x4(u32 a, u32 b, i32 sum) {
  const int4 x = int4(as_type<char4>(a)), y = int4(as_type<char4>(b));
  return sum + x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
}
// Group memory by its byte, for kernels whose group memory has parts of sizes that the launch decides.
template <class T> using GroupPtr = threadgroup T*;
template <class T, class G> FN GroupPtr<T> group_at(threadgroup G& g, i32 byte) {
  return (threadgroup T*)((threadgroup char*)&g + byte);
}
// There are no copies that run beside the threads: HAS_BULK_COPIES is not defined.
FN u32x4 make16(u32 x, u32 y, u32 z, u32 w) { return uint4(x, y, z, w); }
FN f32 exp32(f32 x) { return precise::exp(x); }
FN f32 exp2_32(f32 x) { return exp2(x); }
FN f32 abs32(f32 x) { return abs(x); }
FN f32 inv_sqrt(f32 x) { return 1.f / precise::sqrt(x); }
FN f32 fma32(f32 a, f32 b, f32 c) { return fma(a, b, c); }
// A product that is rounded, whatever it is added to.
FN f32 mul_rounded(f32 a, f32 b) {
#pragma clang fp contract(off)
  return a * b;
}
// The upper half of a product.
FN u32 mul_high(u32 a, u32 b) { return mulhi(a, b); }
FN u64 mul_high_u64(u64 a, u64 b) { return mulhi(a, b); }
FN u64 sum_lanes_u64(u64 v) {
  UNROLL for (i32 m = SIMD / 2; m; m >>= 1)
    v += u64(simd_shuffle_xor(u32(v), (ushort)m)) | u64(simd_shuffle_xor(u32(v >> 32), (ushort)m)) << 32;
  return v;
}
FN f32 max32(f32 a, f32 b) { return max(a, b); }
FN i32 mini(i32 a, i32 b) { return min(a, b); }
FN i32 maxi(i32 a, i32 b) { return max(a, b); }

// It has matrix instructions of 8 by 8 alone, whose lanes hold nobody knows what: no MATRIX_16X8X16.
// Groups of a launch cannot be relied on to run at the same time: GROUPS_MEET is not defined.
