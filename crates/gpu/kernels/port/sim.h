// Portability layer, simulator: the kernel text as C++ on the processor, to find faults rather than to be fast.
//
// One fibre a thread of a group; SIMD groups and groups meet at every collective operation. Reported, with kernel, SIMD
// group and lane, and the launch ends with an error:
//   - a collective operation that part of a SIMD group or of a group reaches, or where lanes call different ones;
//   - an access through a Ptr outside every operand of the launch, to the byte, misaligned, or a write to one that is
//     only read;
//   - an access before wait_for_previous() to an operand that an earlier kernel of the step may write; but what copy16_async
//     asks for need only not have been written in the step;
//   - a wait for a bulk copy that nobody has asked for, bytes that do not add up, a copy that nobody waited for;
//   - an index outside an array in group memory or registers, a write around group memory, 32-bit overflow, a bad shift.
// Group memory is full of NaN before each group; the driver fills results with NaN before each launch.
// The same text through Metal's header (metal_sim/) runs on the same machine, which then sees every access of it.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <map>
#include <unordered_set>
#include <vector>
#include "metal_sim/machine.h"
// With the address sanitizer (feature `asan`), which then sees what a check of a Ptr or of an index cannot: an array in
// registers or group memory that is reached through a plain pointer.
#if defined(__SANITIZE_ADDRESS__)
#define SIM_ASAN 1
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
typedef int32_t i32; typedef uint32_t u32; typedef int64_t i64; typedef uint64_t u64;
typedef float f32;
struct f16 { uint16_t bits; };
struct bf16 { uint16_t bits; };
struct alignas(16) u32x4 { u32 x, y, z, w; };
struct i32x2 { i32 x, y; };
struct f32x2 { f32 x, y; };
struct alignas(16) f32x4 { f32 x, y, z, w; };
#define GROUP
#define THREAD
#define CONST const
#define FN static inline
#define PART inline  // a static member function
#define UNROLL
#define ROLLED
static constexpr i32 SIMD = 32;
// Bytes of activations that a group stages at a time, beside which it has a little more.
#define STAGED_BYTES 32768
#define FIELD_OFFSET(STRUCT, FIELD) __builtin_offsetof(STRUCT, FIELD)
struct NoGroup {};
struct Lane { i32 gx, gy, gz, simd, lane, simds; };

namespace sim {

// ---- what Rust passes and registers
enum Access : u32 { CONSTANT = 0, READ = 1, WRITE = 2, READ_WRITE = 3 };
struct Operand { uint64_t address, len; u32 access, padding; };
inline Kernel* kernels = nullptr;  // of CUDA_TEXT
inline bool list(Kernel& kernel) {
  kernel.next = kernels;
  kernels = &kernel;
  return true;
}

// ---- fibres
enum State { RUN, AT_SIMD, AT_GROUP, AT_COPY, DONE };
struct Copy { void* to; const void* from; size_t bytes; u32 batch; };
struct Fibre {
  void* sp; void* fake_stack; State state; const char* at; bool waited;
  void* barrier; u32 parity;     // what it waits for where it is AT_COPY
  u32 turn; f32 slot[2];         // what it gave to the last two exchanges
  f32 given[2][12];              // and what it gave beside that, where that is not enough
  u32 result_turn; f32 result;   // of the first lane of some: what they made together, and in which exchange
  std::vector<Copy> copies;      // that it asked for and that have not arrived
  u32 batch;                     // the one that it asks for
  i32 meeting;                   // how many threads it waits for where it is AT_GROUP
  bool orders;                   // whether it waits AT_SIMD for what the others wrote to group memory
};

// A phase of a barrier for copies ends when the bytes that were announced have come. They come as late as they can: when
// a thread waits for them; until then NaN lies where they go.
struct BulkCopy { void* to; const void* from; size_t bytes; };
struct CopyBarrier { uint32_t phase, expected; };
// An odd number of cache lines: with 64 KiB the tops of all stacks lay in the same lines of every cache.
constexpr i32 MAX_THREADS = 1024, STACK = (64 << 10) + 13 * 64;
constexpr size_t CANARY = 64;

// Who wrote and who read four bytes of group memory last, and in which span between barriers of the group and of the SIMD
// group.
constexpr uint16_t MANY = 0xffff, SIMD_WIDE = 0x8000;  // readers: of several SIMD groups; several of one
struct Cell { u32 write_span, write_turn, read_span, read_turn; uint16_t writer, reader; };

struct Machine {
  Fibre fibre[MAX_THREADS];
  i32 current = -1;                      // -1 outside fibres
  void* main_sp = nullptr;
  void* main_fake_stack = nullptr;
  const void* main_bottom = nullptr;     // the address sanitizer is told whose stack is whose
  size_t main_size = 0;
  bool left_main = false;
  bool unclean = false;                  // fibres of a launch that failed never came back
  char* stacks = nullptr;
  const Kernel* kernel = nullptr;
  const void* params = nullptr;
  std::vector<uint64_t> group;           // group memory between two canaries
  size_t group_size = 0;
  const Operand* operands = nullptr;
  size_t num_operands = 0, last = 0;
  i32 gx = 0, gy = 0, gz = 0;
  i32 step = 1;                          // to the lane that runs next
  std::vector<Operand> step_regions;          // what kernels of the step wrote, as a whole
  std::unordered_set<uint64_t> step_writes;   // and in part: by the index of 16 bytes
  bool failed = false;
  std::map<const CopyBarrier*, std::vector<BulkCopy>> bulk_copies;  // those under way
  std::vector<Cell> cells;               // Metal: of group memory
  u32 span = 0, turn[MAX_THREADS / SIMD] = {};  // barriers so far, of groups and of SIMD groups
  u32 num_launches = 0;
  char error[512];
  ~Machine() { free(stacks); }
  char* group_memory() { return (char*)group.data() + CANARY; }
};
// This thread's: made at its first launch.
inline thread_local Machine* this_machine = nullptr;
inline Machine& here() { return *this_machine; }
inline void make_machine() {
  static thread_local Machine own;
  this_machine = &own;
}

// void sim_switch(void** save, void* to): stores callee-saved registers on this stack and takes those on the other.
extern "C" void sim_switch(void** save, void* to);
#if defined(__x86_64__)
constexpr i32 SAVED_WORDS = 6;
asm(".text\n.weak sim_switch\nsim_switch:\n push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
    " mov %rsp,(%rdi)\n mov %rsi,%rsp\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");
#elif defined(__aarch64__)
constexpr i32 SAVED_WORDS = 20;
asm(".text\n.weak sim_switch\nsim_switch:\n sub sp,sp,#160\n"
    " stp x19,x20,[sp]\n stp x21,x22,[sp,#16]\n stp x23,x24,[sp,#32]\n stp x25,x26,[sp,#48]\n stp x27,x28,[sp,#64]\n"
    " stp x29,x30,[sp,#80]\n stp d8,d9,[sp,#96]\n stp d10,d11,[sp,#112]\n stp d12,d13,[sp,#128]\n stp d14,d15,[sp,#144]\n"
    " mov x9,sp\n str x9,[x0]\n mov sp,x1\n"
    " ldp x19,x20,[sp]\n ldp x21,x22,[sp,#16]\n ldp x23,x24,[sp,#32]\n ldp x25,x26,[sp,#48]\n ldp x27,x28,[sp,#64]\n"
    " ldp x29,x30,[sp,#80]\n ldp d8,d9,[sp,#96]\n ldp d10,d11,[sp,#112]\n ldp d12,d13,[sp,#128]\n ldp d14,d15,[sp,#144]\n"
    " add sp,sp,#160\n ret\n");
#else
#error "the simulator switches fibres on x86-64 and aarch64: add this processor's callee-saved registers"
#endif

// On the stack that was switched to, which may be new.
inline void arrive(void* fake_stack) {
#ifdef SIM_ASAN
  Machine& m = here();
  const void* bottom = nullptr;
  size_t size = 0;
  __sanitizer_finish_switch_fiber(fake_stack, &bottom, &size);
  if (m.left_main) { m.main_bottom = bottom; m.main_size = size; }
#else
  (void)fake_stack;
#endif
}
// To a fibre, or with -1 to who runs them.
inline void switch_to(i32 next) {
  Machine& m = here();
  const i32 from = m.current;
  m.current = next;
#ifdef SIM_ASAN
  void** fake_stack = from < 0 ? &m.main_fake_stack : &m.fibre[from].fake_stack;
  m.left_main = from < 0;
  if (next < 0) __sanitizer_start_switch_fiber(fake_stack, m.main_bottom, m.main_size);
  else __sanitizer_start_switch_fiber(fake_stack, m.stacks + (size_t)next * STACK, STACK);
#endif
  sim_switch(from < 0 ? &m.main_sp : &m.fibre[from].sp, next < 0 ? m.main_sp : m.fibre[next].sp);
  arrive(from < 0 ? m.main_fake_stack : m.fibre[from].fake_stack);
}

inline void block(State state, const char* at) {
  Machine& m = here();
  Fibre& f = m.fibre[m.current];
  f.state = state;
  f.at = at;
  // A lane that has only to meet the others lets the next one run.
  const i32 next = m.current + m.step;
  const bool passes_on = state == AT_SIMD && next >= 0 && next / SIMD == m.current / SIMD && m.fibre[next].state == RUN;
  switch_to(passes_on ? next : -1);
}

// Records the first fault and never comes back: the fibre is not run again.
template <class... A> [[noreturn]] inline void fail(const char* format, A... a) {
  Machine& m = here();
  char what[320];
  if constexpr (sizeof...(a) == 0) snprintf(what, sizeof what, "%s", format);
  else snprintf(what, sizeof what, format, a...);
  if (m.current < 0) { fprintf(stderr, "simulator: %s\n", what); abort(); }
  if (!m.failed)
    snprintf(m.error, sizeof m.error, "`%s`, group (%d, %d, %d), SIMD group %d, lane %d: %s", m.kernel->name, m.gx, m.gy,
             m.gz, m.current / SIMD, m.current % SIMD, what);
  m.failed = true;
  for (;;) block(DONE, "");
}
inline void report(const char* format, const char* at, i32 n, i32 of, i32 where) {
  Machine& m = here();
  char what[320];
  snprintf(what, sizeof what, format, at, n, of, where);
  if (!m.failed) snprintf(m.error, sizeof m.error, "`%s`, group (%d, %d, %d): %s", m.kernel->name, m.gx, m.gy, m.gz, what);
  m.failed = true;
}

inline void entry() {
  arrive(nullptr);
  Machine& m = here();
  const i32 i = m.current;
  m.kernel->body(m.params, m.group_memory(), Place{m.gx, m.gy, m.gz, i / SIMD, i % SIMD, m.kernel->threads / SIMD});
  for (;;) block(DONE, "");
}

// Whether a kernel ahead in the step wrote to any of 16 bytes.
inline bool written_in_step(uint64_t at) {
  for (const Operand& o : here().step_regions)
    if (at + 16 > o.address && at < o.address + o.len) return true;
  return here().step_writes.count(at / 16) > 0;
}

// The address of an access of `size` bytes, if the launch may make it; with `settled` before the wait too, to what the step
// did not write.
inline void check(uint64_t at, size_t size, size_t align, bool write, bool settled = false) {
  Machine& m = here();
  const auto allows = [&](const Operand& o) {
    return at >= o.address && at + size <= o.address + o.len && (!write || o.access >= WRITE);
  };
  if (m.last >= m.num_operands || !allows(m.operands[m.last])) {
    size_t i = 0;
    while (i < m.num_operands && !allows(m.operands[i])) i++;
    if (i == m.num_operands) {
      for (size_t j = 0; j < m.num_operands; j++) {
        const Operand& o = m.operands[j];
        if (at >= o.address && at + size <= o.address + o.len)
          fail("write to operand %d, which is only read, at byte %lld", (i32)j, (long long)(at - o.address));
      }
      i32 near = -1;
      uint64_t off = ~0ull;
      for (size_t j = 0; j < m.num_operands; j++) {
        const Operand& o = m.operands[j];
        const uint64_t d = at < o.address ? o.address - at : at + size - (o.address + o.len);
        if (d < off) { off = d; near = (i32)j; }
      }
      fail("access of %d bytes outside every operand, %lld bytes %s operand %d", (i32)size, (long long)off,
           near >= 0 && at < m.operands[near].address ? "before" : "past the end of", near);
    }
    m.last = i;
  }
  if (at % align) fail("misaligned access of %d bytes", (i32)size);
  if (m.operands[m.last].access != CONSTANT && !m.fibre[m.current].waited && !(settled && !written_in_step(at)))
    fail("access to operand %d before wait_for_previous()", (i32)m.last);
  if (write && m.operands[m.last].access == READ_WRITE && m.kernel->dialect == CUDA_TEXT)
    for (uint64_t i = at / 16; i * 16 < at + size; i++) m.step_writes.insert(i);
}

// Whether the fibre's wait for copies is over; ends the phase if all its copies have been asked for.
inline bool copies_have_come(Fibre& f) {
  CopyBarrier& b = *(CopyBarrier*)f.barrier;
  if ((b.phase & 1) != f.parity) return true;
  std::vector<BulkCopy>& copies = here().bulk_copies[&b];
  size_t bytes = 0;
  for (const BulkCopy& c : copies) bytes += c.bytes;
  if (!b.expected || bytes != b.expected) return false;
  for (const BulkCopy& c : copies) memcpy(c.to, c.from, c.bytes);
  copies.clear();
  b.expected = 0;
  b.phase++;
  return true;
}

inline i32 count(i32 from, i32 n, State state) {
  i32 c = 0;
  for (i32 i = from; i < from + n; i++) c += here().fibre[i].state == state;
  return c;
}

// Nothing of the address sanitizer's is left on the stack of a fibre that is to run from its beginning: the one before it never
// came back from its last functions, or, where the launch failed, from any.
inline void clean_stack(char* bottom, bool whole) {
#ifdef SIM_ASAN
  const size_t bytes = whole ? STACK : 2048;
  __asan_unpoison_memory_region(bottom + STACK - bytes, bytes);
#else
  (void)bottom; (void)whole;
#endif
}
// Around group memory.
inline void guard(char* at, bool forbidden) {
#ifdef SIM_ASAN
  if (forbidden) __asan_poison_memory_region(at, CANARY);
  else __asan_unpoison_memory_region(at, CANARY);
#else
  (void)at; (void)forbidden;
#endif
}

inline void run_group(i32 threads, bool reverse) {
  Machine& m = here();
  for (i32 i = 0; i < threads; i++) {
    // The top of each stack: a return address to `entry`, below what the switch pops.
    clean_stack(m.stacks + (size_t)i * STACK, m.unclean);
    uint64_t* top = (uint64_t*)(m.stacks + (size_t)(i + 1) * STACK) - 8;
#if defined(__x86_64__)
    top[0] = (uint64_t)entry;
    uint64_t* sp = top - SAVED_WORDS;
    memset(sp, 0, SAVED_WORDS * 8);
#else
    uint64_t* sp = top - SAVED_WORDS;
    memset(sp, 0, SAVED_WORDS * 8);
    sp[11] = (uint64_t)entry;
#endif
    Fibre& f = m.fibre[i];
    f.sp = sp; f.fake_stack = nullptr; f.state = RUN; f.at = ""; f.turn = f.result_turn = f.batch = 0;
    f.waited = m.kernel->dialect == METAL_TEXT;  // there the encoder has barriers
    f.orders = false;
    f.copies.clear();
  }
  m.span++;
  const i32 simds = threads / SIMD;
  m.step = reverse ? -1 : 1;
  for (;;) {
    bool moved = false;
    for (i32 k = 0; k < simds; k++) {
      const i32 first = (reverse ? simds - 1 - k : k) * SIMD;
      for (;;) {
        bool again = false;
        for (i32 l = 0; l < SIMD; l++) {
          const i32 i = first + (reverse ? SIMD - 1 - l : l);
          Fibre& f = m.fibre[i];
          if (f.state == AT_COPY && copies_have_come(f)) f.state = RUN;
          if (f.state == RUN) { switch_to(i); again = true; }
          if (m.failed) return;
        }
        moved = moved || again;
        // What one lane asked for another may have waited for.
        if (again && count(first, SIMD, AT_COPY)) continue;
        const i32 n = count(first, SIMD, AT_SIMD);
        if (!n) break;
        const char* at = nullptr;
        bool same = n == SIMD;
        for (i32 l = 0; l < SIMD; l++) {
          if (m.fibre[first + l].state != AT_SIMD) continue;
          if (at && at != m.fibre[first + l].at) same = false;
          at = m.fibre[first + l].at;
        }
        if (!same) return report("divergent %s: %d of %d lanes of SIMD group %d reached it together", at, n, SIMD, first / SIMD);
        if (m.fibre[first].orders) m.turn[first / SIMD]++;
        for (i32 l = 0; l < SIMD; l++) {
          m.fibre[first + l].state = RUN;
          m.fibre[first + l].orders = false;
        }
      }
    }
    if (count(0, threads, AT_COPY)) {
      if (moved) continue;
      return report("%s that have not all been asked for: %d of %d threads wait", "copies", count(0, threads, AT_COPY), threads, 0);
    }
    const i32 n = count(0, threads, AT_GROUP);
    if (!n) return;
    // The first so many threads may meet without the others.
    i32 meeting = 0;
    while (meeting < threads && m.fibre[meeting].state == AT_GROUP && m.fibre[meeting].meeting == m.fibre[0].meeting) meeting++;
    if (meeting > 0 && meeting < threads && meeting == m.fibre[0].meeting && meeting == n) {
      for (i32 i = 0; i < meeting; i++) m.fibre[i].state = RUN;
      continue;
    }
    if (n != threads || meeting != threads) return report("divergent %s: %d of %d threads reached it", "group barrier", n, threads, 0);
    for (i32 i = 0; i < threads; i++) m.fibre[i].state = RUN;
    m.span++;
  }
}

inline const Kernel* find(i32 dialect, const char* name) {
  const Kernel* kernel = dialect == METAL_TEXT ? metal_kernels() : kernels;
  while (kernel && strcmp(kernel->name, name)) kernel = kernel->next;
  return kernel;
}

}  // namespace sim

// What was written so far is of steps before.
extern "C" void hotmetal_sim_begin_step() {
  sim::make_machine();
  sim::here().step_regions.clear();
  sim::here().step_writes.clear();
}

// Threads and bytes of group memory of a kernel of a dialect, without what its launch adds: 1, or 0 if there is none.
extern "C" i32 hotmetal_sim_kernel(i32 dialect, const char* name, u32* threads, uint64_t* group_bytes) {
  const sim::Kernel* kernel = sim::find(dialect, name);
  if (!kernel) return 0;
  *threads = (u32)kernel->threads;
  *group_bytes = kernel->dynamic ? 0 : kernel->group_size;
  return 1;
}

// Runs one launch of a kernel of a dialect: 0, or 1 with a message in `error`.
extern "C" i32 hotmetal_sim_launch(i32 dialect, const char* name, const void* params, uint64_t params_size, u32 gx, u32 gy,
                                          u32 gz, u32 threads, uint64_t group_bytes, const sim::Operand* operands,
                                          uint64_t num_operands, i32 reverse, char* error, uint64_t error_size) {
  using namespace sim;
  make_machine();
  Machine& m = here();
  const Kernel* kernel = find(dialect, name);
  if (!kernel) { snprintf(error, error_size, "there is no kernel `%s`", name); return 1; }
  if (kernel->params_size != params_size || kernel->threads != (i32)threads) {
    snprintf(error, error_size, "`%s` takes %zu bytes of parameters and %d threads, not %llu and %u", name,
             kernel->params_size, kernel->threads, (unsigned long long)params_size, threads);
    return 1;
  }
  // What a kernel declares itself is not in `group_bytes`.
  if (kernel->dynamic ? group_bytes < kernel->group_size : group_bytes != 0) {
    snprintf(error, error_size, "`%s` declares %zu bytes of group memory%s, not %llu", name, kernel->group_size,
             kernel->dynamic ? " or more" : " itself", (unsigned long long)group_bytes);
    return 1;
  }
  const size_t group_size = kernel->dynamic ? (size_t)group_bytes : kernel->group_size;
  if (dialect == METAL_TEXT && (group_size > METAL_GROUP_BYTES || kernel->threads > MAX_THREADS || group_bytes % 16)) {
    snprintf(error, error_size,
             "`%s`: groups of Metal have at most %zu bytes of memory, whole 16s where the launch says how many, "
             "and %d threads, not %zu and %d", name, METAL_GROUP_BYTES, MAX_THREADS, group_size, kernel->threads);
    return 1;
  }
  if (!m.stacks) m.stacks = (char*)malloc((size_t)MAX_THREADS * STACK);
  m.kernel = kernel; m.params = params; m.operands = operands; m.num_operands = num_operands; m.last = 0;
  m.unclean = m.unclean || m.failed;
  m.failed = false;
  m.group_size = group_size;
  m.num_launches++;
  if (dialect == METAL_TEXT) begin_metal_launch();
  m.group.resize((group_size + 7) / 8 + 2 * CANARY / 8);
  for (u32 i = 0; i < gx * gy * gz && !m.failed; i++) {
    const u32 at = reverse ? gx * gy * gz - 1 - i : i;
    m.gx = (i32)(at % gx); m.gy = (i32)(at / gx % gy); m.gz = (i32)(at / gx / gy);
    char* group = m.group_memory();
    memset(group - CANARY, 0xa5, CANARY);
    memset(group, 0xff, group_size);
    memset(group + group_size, 0xa5, CANARY);
    guard(group - CANARY, true);
    guard(group + group_size, true);
    run_group(kernel->threads, reverse);
    guard(group - CANARY, false);
    guard(group + group_size, false);
    for (const auto& barrier : m.bulk_copies)
      if (!barrier.second.empty() && !m.failed) report("%s that nobody waited for: %d%.0d%.0d", "copies", (i32)barrier.second.size(), 0, 0);
    m.bulk_copies.clear();
    for (size_t c = 0; c < CANARY && !m.failed; c++)
      if ((unsigned char)group[c - CANARY] != 0xa5 || (unsigned char)group[group_size + c] != 0xa5)
        report("%s was written to%.0d%.0d%.0d", "memory around the group's", 0, 0, 0);
  }
  for (size_t i = 0; i < num_operands; i++)
    if (operands[i].access == WRITE) m.step_regions.push_back(operands[i]);
  if (m.failed) snprintf(error, error_size, "%s", m.error);
  return m.failed;
}

#ifdef SIM_ASAN
// Fibres by the thousand need no stacks beside their own, and what Rust never frees is no fault of a kernel.
extern "C" const char* __asan_default_options() { return "detect_leaks=0:detect_stack_use_after_return=0"; }
// Before the sanitizer says what is wrong and ends the program.
extern "C" void __asan_on_error() {
  const sim::Machine* m = sim::this_machine;
  if (m && m->current >= 0)
    fprintf(stderr, "`%s`, group (%d, %d, %d), SIMD group %d, lane %d:\n", m->kernel->name, m->gx, m->gy, m->gz,
            m->current / SIMD, m->current % SIMD);
}
#endif

// What the compiler's checks call (-fsanitize=bounds,…): the data begins with where it happened.
#define SIM_CHECK(NAME, WHAT)                                                             \
  extern "C" void __ubsan_handle_##NAME##_abort(void* data, ...) {                 \
    struct Place { const char* file; u32 line, column; };                                 \
    const Place* place = (const Place*)data;                                              \
    sim::fail("%s at %s:%u", WHAT, place->file, place->line);                             \
  }
SIM_CHECK(out_of_bounds, "index outside an array")
SIM_CHECK(add_overflow, "32-bit overflow")
SIM_CHECK(sub_overflow, "32-bit overflow")
SIM_CHECK(mul_overflow, "32-bit overflow")
SIM_CHECK(negate_overflow, "32-bit overflow")
SIM_CHECK(divrem_overflow, "division by zero")
SIM_CHECK(shift_out_of_bounds, "bad shift")

static_assert(SIMD == 32, "kernels shuffle and sum over SIMD groups of 32");
#define SIM_KERNEL(NAME, PARAMS, GROUPMEM, DYNAMIC, THREADS, ...)                                                 \
  static_assert(THREADS % SIMD == 0 && THREADS <= sim::MAX_THREADS, "whole SIMD groups in " #NAME);               \
  static void sim_body_##NAME(const void* p, void* g, sim::Place at) {                                             \
    const Lane t = {at.gx, at.gy, at.gz, at.simd, at.lane, at.simds};                                              \
    __VA_ARGS__(*(const PARAMS*)p, *(GROUPMEM*)g, t);                                                              \
  }                                                                                                                \
  static sim::Kernel sim_kernel_##NAME = {#NAME, sizeof(PARAMS), sizeof(GROUPMEM), DYNAMIC, THREADS,               \
                                          sim_body_##NAME, sim::CUDA_TEXT, nullptr};                               \
  static const bool sim_listed_##NAME = sim::list(sim_kernel_##NAME);
#define KERNEL(NAME, PARAMS, GROUPMEM, THREADS, ...) SIM_KERNEL(NAME, PARAMS, GROUPMEM, false, THREADS, __VA_ARGS__)
// A kernel whose group memory has the size that the launch says: GROUPMEM is how it begins.
#define KERNEL_DYNAMIC(NAME, PARAMS, GROUPMEM, THREADS, ...) SIM_KERNEL(NAME, PARAMS, GROUPMEM, true, THREADS, __VA_ARGS__)
#define KERNEL_BESIDE(NAME, PARAMS, GROUPMEM, THREADS, GROUPS, ...) KERNEL_DYNAMIC(NAME, PARAMS, GROUPMEM, THREADS, __VA_ARGS__)

// A pointer to device memory; every access is checked.
template <class T> struct Ptr {
  T* at;
  explicit operator Ptr<const T>() const { return {at}; }
  T& operator[](i64 i) const {
    T* p = (T*)((uint64_t)at + (uint64_t)(i * (i64)sizeof(T)));
    sim::check((uint64_t)p, sizeof(T), alignof(T), !std::is_const<T>::value);
    return *p;
  }
};
template <class T> FN Ptr<T> offset(Ptr<T> p, i64 i) { return {(T*)((uint64_t)p.at + (uint64_t)(i * (i64)sizeof(T)))}; }
template <class T> FN bool given(Ptr<T> p) { return p.at != nullptr; }
// The same memory, in other units.
FN Ptr<const f32> scalars(Ptr<const f32x4> p) { return {(const f32*)p.at}; }
FN Ptr<const u32x4> vectors16(Ptr<const f16> p) { return {(const u32x4*)p.at}; }
FN Ptr<const u32> words(Ptr<const f16> p) { return {(const u32*)p.at}; }
FN Ptr<const f32x4> vectors4(Ptr<const f32> p) { return {(const f32x4*)p.at}; }
FN u32x4 load_once(Ptr<const u32x4> p, i64 i) { return p[i]; }
FN u32 load_once(Ptr<const u32> p, i64 i) { return p[i]; }
FN f16 load_once(Ptr<const f16> p, i64 i) { return p[i]; }

FN void wait_for_previous() { sim::here().fibre[sim::here().current].waited = true; }
FN void let_next_start() {}
FN void meet(i32 threads) {
  sim::here().fibre[sim::here().current].meeting = threads;
  sim::block(sim::AT_GROUP, "group barrier");
}
FN void group_barrier() { meet(sim::here().kernel->threads); }
// As group_barrier, of the first SIMDS SIMD groups.
template <i32 SIMDS> FN void simds_barrier() { meet(SIMDS * SIMD); }
FN void simd_barrier() { sim::block(sim::AT_SIMD, "simd barrier"); }
// Meets the other lanes. Two slots in turn: nobody comes to the next exchange but one before all have read this one.
FN void exchange(f32 v, const char* what) {
  sim::Fibre& f = sim::here().fibre[sim::here().current];
  f.slot[++f.turn & 1] = v;
  sim::block(sim::AT_SIMD, what);
}
FN f32 shuffle_xor(f32 v, i32 mask) {
  exchange(v, "shuffle_xor");
  const i32 i = sim::here().current;
  return sim::here().fibre[i ^ mask].slot[sim::here().fibre[i].turn & 1];
}
// Over each L consecutive lanes, L a power of two; every lane gets the result, which the first to ask computes.
template <i32 L, class F> FN f32 reduce_lanes(f32 v, const char* what, F join) {
  exchange(v, what);
  sim::Machine& m = sim::here();
  const u32 turn = m.fibre[m.current].turn;
  sim::Fibre* f = m.fibre + m.current / L * L;
  if (f->result_turn != turn) {
    f32 s[L];
    for (i32 i = 0; i < L; i++) s[i] = f[i].slot[turn & 1];
    for (i32 n = L / 2; n; n /= 2) for (i32 i = 0; i < n; i++) s[i] = join(s[i], s[i + n]);
    f->result_turn = turn;
    f->result = s[0];
  }
  return f->result;
}
template <i32 L> FN f32 sum_lanes(f32 v) { return reduce_lanes<L>(v, "sum_lanes", [](f32 a, f32 b) { return a + b; }); }
template <i32 L> FN f32 max_lanes(f32 v) { return reduce_lanes<L>(v, "max_lanes", [](f32 a, f32 b) { return std::fmax(a, b); }); }

FN bool one_lane(i32 lane) { return lane == 0; }
FN i32 lowest_bit(u32 v) { return __builtin_ctz(v); }
FN bool any_lane(bool v) { return reduce_lanes<SIMD>(v ? 1.f : 0.f, "any_lane", [](f32 a, f32 b) { return std::fmax(a, b); }) > 0; }
// One thread counts its group, after a group barrier: 1 for the last of `groups`, which then sees, after another barrier, what
// all of them wrote to device memory before; and the counter is zero again.
FN u32 count_group(Ptr<u32> counters, i64 i, u32 groups) {
  if (++counters[i] < groups) return 0;
  counters[i] = 0;
  return 1;
}

// Group memory by its byte, every access checked.
template <class T> struct GroupPtr {
  char* at;
  T& operator[](i32 i) const {
    sim::Machine& m = sim::here();
    char* p = at + (i64)i * (i64)sizeof(T);
    if (p < m.group_memory() || p + sizeof(T) > m.group_memory() + m.group_size)
      sim::fail("access of %d bytes at byte %lld of %lld of group memory", (i32)sizeof(T), (long long)(p - m.group_memory()), (long long)m.group_size);
    if ((uint64_t)p % alignof(T)) sim::fail("misaligned access of %d bytes of group memory", (i32)sizeof(T));
    return *(T*)p;
  }
};
template <class T, class G> FN GroupPtr<T> group_at(G& g, i32 byte) { return {(char*)&g + byte}; }

// The same as instructions address it.
struct GroupAddress {
  char* at;
  GroupAddress operator+(i32 bytes) const { return {at + bytes}; }
};
struct alignas(8) u32x2 { u32 x, y; };
template <class G> FN GroupAddress group_address_at(G& g, i32 byte) { return {(char*)&g + byte}; }
FN u32x4 load_group_bits(GroupAddress address) { return GroupPtr<u32x4>{address.at}[0]; }
FN u32x2 load_group_two(GroupAddress address) { return GroupPtr<u32x2>{address.at}[0]; }

// Copies from device to group memory that run beside the threads: as in cuda.h.
#define HAS_BULK_COPIES
typedef sim::CopyBarrier CopyBarrier;
FN void begin_barrier(CopyBarrier& b) { b = {0, 0}; }
FN void show_barriers() {}
FN void expect_copies(CopyBarrier& b, i32 bytes) {
  if (b.expected) sim::fail("copies announced while others are under way");
  b.expected = (uint32_t)bytes;
}
FN void copy_to_group(GroupPtr<u32x4> to, Ptr<const u32x4> from, i32 bytes, CopyBarrier& b) {
  if (bytes <= 0 || bytes % 16) sim::fail("copy of %d bytes", bytes);
  sim::check((uint64_t)from.at, (size_t)bytes, 16, false);
  (void)to[0];
  (void)to[bytes / 16 - 1];
  memset(to.at, 0xff, (size_t)bytes);
  sim::here().bulk_copies[&b].push_back({to.at, from.at, (size_t)bytes});
}
FN void copy_to_cache(Ptr<const u32x4> from, i32 bytes) {
  if (bytes <= 0 || bytes % 16) sim::fail("copy of %d bytes", bytes);
  sim::check((uint64_t)from.at, (size_t)bytes, 16, false);
}
FN void wait_for_copies(CopyBarrier& b, u32 parity) {
  sim::Fibre& f = sim::here().fibre[sim::here().current];
  f.barrier = &b;
  f.parity = parity;
  while (!sim::copies_have_come(f)) sim::block(sim::AT_COPY, "wait for copies");
}

FN f32 bits_to_f32(u32 bits) { f32 v; memcpy(&v, &bits, 4); return v; }
FN u32 f32_to_bits(f32 v) { u32 bits; memcpy(&bits, &v, 4); return bits; }
FN i32 shuffle(i32 v, i32 lane) {
  exchange(bits_to_f32((u32)v), "shuffle");
  const i32 i = sim::here().current;
  return (i32)f32_to_bits(sim::here().fibre[i / SIMD * SIMD + lane].slot[sim::here().fibre[i].turn & 1]);
}
FN u32 max_lanes_u32(u32 v) {
  const i32 lane = sim::here().current % SIMD;
  for (i32 m = SIMD / 2; m; m >>= 1) { const u32 other = (u32)shuffle((i32)v, lane ^ m); v = other > v ? other : v; }
  return v;
}
FN u32 min_lanes_u32(u32 v) {
  const i32 lane = sim::here().current % SIMD;
  for (i32 m = SIMD / 2; m; m >>= 1) { const u32 other = (u32)shuffle((i32)v, lane ^ m); v = other < v ? other : v; }
  return v;
}
FN f32 to_f32(f32 v) { return v; }
FN f32 to_f32(bf16 v) { return bits_to_f32((u32)v.bits << 16); }
FN f32 to_f32(f16 v) {
  const u32 magnitude = v.bits & 0x7fffu, sign = (u32)(v.bits & 0x8000u) << 16;
  if (magnitude >= 0x7c00u) return bits_to_f32(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x400u) return bits_to_f32(sign | ((magnitude << 13) + 0x38000000u));
  const f32 subnormal = (f32)magnitude * (1.f / 16777216.f);
  return sign ? -subnormal : subnormal;
}
FN f16 to_f16(f32 v) {  // to nearest even
  const u32 bits = f32_to_bits(v), magnitude = bits & 0x7fffffffu;
  const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
  if (magnitude > 0x7f800000u) return {(uint16_t)(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {(uint16_t)(sign | 0x7c00u)};
  if (magnitude < 0x38800000u) return {(uint16_t)(sign | (u32)std::nearbyint(bits_to_f32(magnitude) * 16777216.f))};
  return {(uint16_t)(sign | (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13)};
}
FN void store(Ptr<f32> p, i64 i, f32 v) { p[i] = v; }
FN void store(Ptr<f16> p, i64 i, f32 v) { p[i] = to_f16(v); }
FN f32x2 f16x2_to_f32(u32 v) { return {to_f32(f16{(uint16_t)v}), to_f32(f16{(uint16_t)(v >> 16)})}; }
FN u32 f32x2_to_f16x2(f32 a, f32 b) { return (u32)to_f16(a).bits | (u32)to_f16(b).bits << 16; }
FN f32x2 bf16x2_to_f32(u32 v) { return {bits_to_f32(v << 16), bits_to_f32(v & 0xffff0000u)}; }
FN f32x4 i8x4_to_f32(u32 v) { return {(f32)(int8_t)v, (f32)(int8_t)(v >> 8), (f32)(int8_t)(v >> 16), (f32)(int8_t)(v >> 24)}; }
FN f32 near_quotient(f32 a, f32 b) { return a / b; }
// Four products of signed bytes, added to `sum`.
FN i32 dot_i8x4(u32 a, u32 b, i32 sum) {
  for (i32 i = 0; i < 32; i += 8) sum += (i32)(int8_t)(a >> i) * (i32)(int8_t)(b >> i);
  return sum;
}
FN i32 dot_u8x4(u32 a, u32 b, i32 sum) {
  for (i32 i = 0; i < 32; i += 8) sum += (i32)(uint8_t)(a >> i) * (i32)(int8_t)(b >> i);
  return sum;
}
FN u32 pick_bytes(u32 low, u32 high, u32 which) {
  u32 bytes = 0;
  for (i32 i = 0; i < 4; i++) {
    const u32 place = which >> (4 * i) & 15;
    if (place < 8) bytes |= ((place < 4 ? low : high) >> (place % 4 * 8) & 255) << (8 * i);
  }
  return bytes;
}
FN u32 fma_f16x2(u32 a, u32 b, u32 c) {
  const f32x2 x = f16x2_to_f32(a), y = f16x2_to_f32(b), z = f16x2_to_f32(c);
  return f32x2_to_f16x2((f32)((double)x.x * y.x + z.x), (f32)((double)x.y * y.y + z.y));
}
FN u32 mul_f16x2(u32 a, u32 b) {
  const f32x2 x = f16x2_to_f32(a), y = f16x2_to_f32(b);
  return f32x2_to_f16x2(x.x * y.x, x.y * y.y);
}
FN u32 sub_f16x2(u32 a, u32 b) {
  const f32x2 x = f16x2_to_f32(a), y = f16x2_to_f32(b);
  return f32x2_to_f16x2(x.x - y.x, x.y - y.y);
}
FN u32 and_or(u32 a, u32 b, u32 c) { return (a & b) | c; }
FN u32 byte_perm(u32 low, u32 high, u32 which) {
  if (which & 0x8888u) sim::fail("byte %x of eight", which);
  return pick_bytes(low, high, which);
}
#define HAS_E4M3
FN void e4m3x4_to_f16x4(u32& low, u32& high, u32 word) {
  f32 v[4];
  for (i32 i = 0; i < 4; i++) {
    const u32 code = word >> (8 * i) & 255, exponent = code >> 3 & 15, mantissa = code & 7;
    v[i] = exponent == 0 ? std::ldexp((f32)mantissa, -9) : std::ldexp((f32)(8 + mantissa), (int)exponent - 10);
    if ((code & 127) == 127) v[i] = NAN;
    if (code & 128) v[i] = -v[i];
  }
  low = f32x2_to_f16x2(v[0], v[1]);
  high = f32x2_to_f16x2(v[2], v[3]);
}
FN u32 e4m3x2_to_f16x2(u32 pair) {
  u32 low, high;
  e4m3x4_to_f16x4(low, high, pair);
  return low;
}
FN u32x4 make16(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
FN f32 exp32(f32 x) { return std::exp(x); }
FN f32 exp2_32(f32 x) { return std::exp2(x); }
FN f32 abs32(f32 x) { return std::fabs(x); }
FN f32 near_inverse_sqrt(f32 x) { return 1 / std::sqrt(x); }
FN f32 inv_sqrt(f32 x) { return 1 / std::sqrt(x); }
FN f32 fma32(f32 a, f32 b, f32 c) { return std::fma(a, b, c); }
// A product that is rounded, whatever it is added to: the build script turns fusing off.
FN f32 mul_rounded(f32 a, f32 b) { return a * b; }
// The upper half of a product.
FN u32 mul_high(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }
FN u64 mul_high_u64(u64 a, u64 b) { return (u64)((unsigned __int128)a * b >> 64); }
FN u64 sum_lanes_u64(u64 v) {
  sim::Machine& m = sim::here();
  sim::Fibre& f = m.fibre[m.current];
  memcpy(f.given[(f.turn + 1) & 1], &v, sizeof v);
  exchange(0.f, "sum_lanes_u64");
  u64 sum = 0;
  for (i32 l = 0; l < SIMD; l++) {
    memcpy(&v, m.fibre[m.current / SIMD * SIMD + l].given[f.turn & 1], sizeof v);
    sum += v;
  }
  return sum;
}
FN f32 max32(f32 a, f32 b) { return std::fmax(a, b); }
FN f32 max_or_nan32(f32 a, f32 b) { return a != a || a > b ? a : b; }
FN i32 mini(i32 a, i32 b) { return a < b ? a : b; }
FN i32 maxi(i32 a, i32 b) { return a > b ? a : b; }

#define MATRIX_16X8X16 1
// c (16, 8) += a (16, 16) · b (16, 8), of f16 with sums in f32, by the lanes of a SIMD group together. With g = lane / 4 and
// i = lane % 4 · 2, a lane has of c the columns i and i + 1 of row g, then of row g + 8; of a the columns i and i + 1 of rows
// g and g + 8, then i + 8 and i + 9 of both; of b the rows i and i + 1 of column g, then i + 8 and i + 9.
FN void multiply_16x8x16(f32 (&c)[4], const f32x2 (&pairs)[6], const char* what) {
  sim::Machine& m = sim::here();
  sim::Fibre& f = m.fibre[m.current];
  for (i32 i = 0; i < 6; i++) {
    f.given[(f.turn + 1) & 1][i * 2] = pairs[i].x;
    f.given[(f.turn + 1) & 1][i * 2 + 1] = pairs[i].y;
  }
  exchange(0.f, what);
  const i32 first = m.current / SIMD * SIMD, lane = m.current % SIMD, turn = f.turn & 1;
  for (i32 i = 0; i < 4; i++)
    for (i32 k = 0; k < 4; k++) {
      const f32* a = m.fibre[first + lane / 4 * 4 + k].given[turn] + i / 2 * 2;
      const f32* b = m.fibre[first + (lane % 4 * 2 + i % 2) * 4 + k].given[turn] + 8;
      c[i] += a[0] * b[0] + a[1] * b[1] + a[4] * b[2] + a[5] * b[3];
    }
}
FN void mma_f16_16x8x16(f32 (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  multiply_16x8x16(c, {f16x2_to_f32(a0), f16x2_to_f32(a1), f16x2_to_f32(a2), f16x2_to_f32(a3), f16x2_to_f32(b0), f16x2_to_f32(b1)},
                   "mma_f16_16x8x16");
}
// As mma_f16_16x8x16, of bf16.
FN void mma_bf16_16x8x16(f32 (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  multiply_16x8x16(c, {bf16x2_to_f32(a0), bf16x2_to_f32(a1), bf16x2_to_f32(a2), bf16x2_to_f32(a3), bf16x2_to_f32(b0), bf16x2_to_f32(b1)},
                   "mma_bf16_16x8x16");
}
// Four matrices of 8 rows of 16 bytes, as mma_f16_16x8x16 has its operands: lane l says where row l % 8 of matrix l / 8 is.
FN const uint16_t* matrix_row(i32 row) {
  const sim::Machine& m = sim::here();
  const uint16_t* at;
  memcpy(&at, m.fibre[m.current / SIMD * SIMD + row].given[m.fibre[m.current].turn & 1], sizeof at);
  return at;
}
FN void give_matrix_row(const u32x4& row, const char* what) {
  sim::Fibre& f = sim::here().fibre[sim::here().current];
  const u32x4* at = &row;
  memcpy(f.given[(f.turn + 1) & 1], &at, sizeof at);
  exchange(0.f, what);
}
FN void load_matrices(u32 (&to)[4], const u32x4& row) {
  give_matrix_row(row, "load_matrices");
  const i32 lane = sim::here().current % SIMD;
  for (i32 m = 0; m < 4; m++) memcpy(&to[m], matrix_row(m * 8 + lane / 4) + lane % 4 * 2, 4);
}
// The same of matrices of halves, each turned: rows become columns.
FN void load_matrices_turned(u32 (&to)[4], const u32x4& row) {
  give_matrix_row(row, "load_matrices_turned");
  const i32 lane = sim::here().current % SIMD;
  for (i32 m = 0; m < 4; m++)
    to[m] = (u32)matrix_row(m * 8 + lane % 4 * 2)[lane / 4] | (u32)matrix_row(m * 8 + lane % 4 * 2 + 1)[lane / 4] << 16;
}
// Copies from device to group memory that run on: asked for one by one, then closed to a batch, which has arrived when all but
// the last N batches have. That is for the thread that asked; others need a barrier too. Until then there is NaN.
FN void copy16_async(u32x4& to, Ptr<const u32x4> from, i64 i) {
  const uint64_t at = (uint64_t)from.at + (uint64_t)(i * (i64)sizeof(u32x4));
  sim::check(at, sizeof(u32x4), alignof(u32x4), false, true);
  sim::Fibre& f = sim::here().fibre[sim::here().current];
  memset(&to, 0xff, sizeof to);
  f.copies.push_back({&to, (const void*)at, sizeof to, f.batch});
}
FN void copies_asked() { sim::here().fibre[sim::here().current].batch++; }
template <i32 N> FN void copies_arrived() {
  sim::Fibre& f = sim::here().fibre[sim::here().current];
  size_t arrived = 0;
  for (; arrived < f.copies.size() && f.copies[arrived].batch + N < f.batch; arrived++)
    memcpy(f.copies[arrived].to, f.copies[arrived].from, f.copies[arrived].bytes);
  f.copies.erase(f.copies.begin(), f.copies.begin() + (std::ptrdiff_t)arrived);
}

// As copy16_async, to a byte of group memory, and of two f16 that begin on 4 bytes; where `in` is false zeros come.
template <class T, class G, class F> FN void copy_async(G& g, i32 byte, Ptr<const F> from, i64 i, bool in) {
  static const T zeros = {};
  const GroupPtr<T> to = group_at<T>(g, byte);
  const uint64_t at = (uint64_t)from.at + (uint64_t)(i * (i64)sizeof(F));
  if (in) sim::check(at, sizeof(T), alignof(T), false, true);
  sim::Fibre& f = sim::here().fibre[sim::here().current];
  memset(&to[0], 0xff, sizeof(T));
  f.copies.push_back({to.at, in ? (const void*)at : &zeros, sizeof(T), f.batch});
}
template <class G> FN void copy16_async(G& g, i32 byte, Ptr<const u32x4> from, i64 i, bool in) { copy_async<u32x4>(g, byte, from, i, in); }
template <class G> FN void copy4_async(G& g, i32 byte, Ptr<const f16> from, i64 i, bool in) { copy_async<u32>(g, byte, from, i, in); }

// Messages between groups of a launch. Groups run one after another here: a launch must not need any.
#define GROUPS_MEET
FN f32x4 look(Ptr<f32x4> from, i64 i) { return from[i]; }
FN f32 look(Ptr<f32> from, i64 i) { return from[i]; }
FN bool has_come(f32x4 v) {
  if (f32_to_bits(v.x) == ~0u) sim::fail("wait for a message that no group before has sent%.0d", 0);
  return true;
}
FN void send(Ptr<f32x4> to, i64 i, f32x4 v) { to[i] = v; }
FN void send(Ptr<f32> to, i64 i, f32 v) { to[i] = v; }
FN void forget(Ptr<f32x4> at, i64 i) { memset(&at[i], 0xff, sizeof(f32x4)); }
FN void meet_groups(Ptr<u32> counter, u32 until) {
  if (++counter[0] < until) sim::fail("wait for a group that has not run%.0d", 0);
}
FN i32 flag(const i32& word) { return word; }
FN void pause() { sim::fail("wait for another SIMD group%.0d", 0); }

FN u32 to_f16x2(f32 x, f32 y) { return to_f16(x).bits | (u32)to_f16(y).bits << 16; }
FN u32 to_bf16(f32 v) {  // to nearest even
  const u32 bits = f32_to_bits(v);
  return std::isnan(v) ? 0x7fffu : (u32)(((uint64_t)bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
FN u32 to_bf16x2(f32 x, f32 y) { return to_bf16(x) | to_bf16(y) << 16; }
FN u32x2 i8x4_to_f16x4(u32 v, f16 scale) {
  const f32x4 codes = i8x4_to_f32(v);
  const f32 s = to_f32(scale);
  return {to_f16x2(codes.x * s, codes.y * s), to_f16x2(codes.z * s, codes.w * s)};
}
