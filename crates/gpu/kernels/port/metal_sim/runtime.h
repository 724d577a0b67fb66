// The simulator's machine for kernel text that was compiled through Metal's header. Included once, after port/sim.h.
//
// That text has plain pointers, as Metal has. Its compiler reports each access of them (-fsanitize=thread) to the functions
// at the end of this file, which hold it to what the launch may touch; so what port/sim.h promises of a Ptr holds of every
// pointer, and beside it:
//   - two threads of a group that touch the same word of group memory, one of them writing, with no barrier between;
//   - a matrix that lanes load from, or store to, different places; one in a group of exactly 32 threads;
//   - group memory over 32 KiB.
#pragma once

namespace sim {

// Which slot (two of each lane) has which element of a matrix, by element type, and the reverse.
struct MatrixLayout { uint8_t element_of[64], slot_of[64]; };
inline thread_local MatrixLayout matrix_layouts[3];

void begin_metal_launch() {
  uint32_t state = here().num_launches * 2654435761u + 12345u;
  for (MatrixLayout& layout : matrix_layouts) {
    for (i32 i = 0; i < 64; i++) layout.element_of[i] = (uint8_t)i;
    for (i32 i = 63; i > 0; i--) {
      state = state * 1664525u + 1013904223u;
      const i32 other = (i32)((state >> 16) % (uint32_t)(i + 1));
      const uint8_t held = layout.element_of[i];
      layout.element_of[i] = layout.element_of[other];
      layout.element_of[other] = held;
    }
    for (i32 i = 0; i < 64; i++) layout.slot_of[layout.element_of[i]] = (uint8_t)i;
  }
  here().cells.resize(METAL_GROUP_BYTES / 4);
}

// Whether what thread `other` did in a span and a turn of its SIMD group comes before what the current thread does now.
inline bool comes_before(u32 span, u32 turn, i32 simd) {
  const Machine& m = here();
  return span != m.span || (simd == m.current / SIMD && turn != m.turn[simd]);
}

[[noreturn]] inline void fail_race(size_t byte, bool write, bool written, i32 other) {
  const char* now = write ? "written" : "read", *then = written ? "wrote" : "read";
  if (other == MANY) fail("race in group memory: byte %lld is %s, and other SIMD groups %s it, with no barrier between",
      (long long)byte, now, then);
  fail("race in group memory: byte %lld is %s, and SIMD group %d, lane %d %s it, with no barrier between",
      (long long)byte, now, other / SIMD, other % SIMD, then);
}

inline void note_group_access(size_t at, size_t size, bool write) {
  Machine& m = here();
  const uint16_t me = (uint16_t)m.current;
  const i32 simd = m.current / SIMD;
  for (size_t i = at / 4; i * 4 < at + size; i++) {
    Cell& c = m.cells[i];
    if (c.write_span == m.span && c.writer != me && !comes_before(c.write_span, c.write_turn, c.writer / SIMD))
      fail_race(i * 4, write, true, c.writer);
    if (write) {
      if (c.read_span == m.span) {
        const i32 of = c.reader == MANY ? -1 : (c.reader & ~SIMD_WIDE) / SIMD;
        if (c.reader != me && !comes_before(c.read_span, c.read_turn, of))
          fail_race(i * 4, true, false, c.reader == MANY ? MANY : c.reader & ~SIMD_WIDE);
      }
      c.write_span = m.span; c.write_turn = m.turn[simd]; c.writer = me;
    } else {
      const bool again = c.read_span == m.span && c.reader != me;
      if (again && (c.reader == MANY || (c.reader & ~SIMD_WIDE) / SIMD != simd)) c.reader = MANY;
      else if (again && c.read_turn == m.turn[simd]) c.reader = me | SIMD_WIDE;
      else c.reader = me;
      c.read_span = m.span; c.read_turn = m.turn[simd];
    }
  }
}

// An access of the text at an address, if the launch may make it.
inline void metal_access(uint64_t at, size_t size, bool write) {
  if (!this_machine || this_machine->current < 0) return;
  Machine& m = *this_machine;
  if (at - (uint64_t)m.stacks < (uint64_t)MAX_THREADS * STACK) return;
  const uint64_t group = (uint64_t)m.group_memory(), params = (uint64_t)m.params;
  if (at - (group - CANARY) < m.group_size + 2 * CANARY) {
    if (at < group || at + size > group + m.group_size)
      fail("access of %d bytes at byte %lld of %lld of group memory", (i32)size, (long long)(at - group),
          (long long)m.group_size);
    return note_group_access(at - group, size, write);
  }
  if (!write && at - params < m.kernel->params_size && at + size <= params + m.kernel->params_size) return;
  check(at, size, 1, write);
}

void* metal_group_memory() { return here().group_memory(); }
void metal_group_barrier() {
  here().fibre[here().current].meeting = here().kernel->threads;
  block(AT_GROUP, "group barrier");
}
void metal_simd_barrier() {
  here().fibre[here().current].orders = true;
  block(AT_SIMD, "simd barrier");
}
inline const Fibre& metal_exchange(float v, const char* what) {
  Fibre& f = here().fibre[here().current];
  f.slot[++f.turn & 1] = v;
  block(AT_SIMD, what);
  return f;
}
float metal_shuffle_xor(float v, uint32_t mask, const char* what) {
  const Fibre& f = metal_exchange(v, what);
  if (mask >= (uint32_t)SIMD) fail("%s by %d", what, (i32)mask);
  return here().fibre[here().current ^ (i32)mask].slot[f.turn & 1];
}
float metal_shuffle(float v, uint32_t lane, const char* what) {
  const Fibre& f = metal_exchange(v, what);
  if (lane >= (uint32_t)SIMD) fail("%s from lane %d", what, (i32)lane);
  return here().fibre[here().current / SIMD * SIMD + (i32)lane].slot[f.turn & 1];
}
bool metal_any(bool v) {
  const Fibre& f = metal_exchange(v ? 1.f : 0.f, "simd_any");
  bool any = false;
  for (i32 l = 0; l < SIMD; l++) any = any || here().fibre[here().current / SIMD * SIMD + l].slot[f.turn & 1] > 0;
  return any;
}

inline float half_bits_to_f32(uint16_t bits) {
  const uint32_t magnitude = bits & 0x7fffu, sign = (uint32_t)(bits & 0x8000u) << 16;
  uint32_t wide = sign | 0x7f800000u | (magnitude & 0x3ffu) << 13;
  if (magnitude < 0x7c00u) wide = sign | ((magnitude << 13) + 0x38000000u);
  float v;
  memcpy(&v, &wide, 4);
  if (magnitude >= 0x400u) return v;
  return sign ? -(float)magnitude / 16777216.f : (float)magnitude / 16777216.f;
}
float metal_half_to_float(uint16_t bits) { return half_bits_to_f32(bits); }
uint16_t metal_float_to_half(float v) {  // to nearest even
  uint32_t bits;
  memcpy(&bits, &v, 4);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
  if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
  if (magnitude < 0x38800000u) return (uint16_t)(sign | (uint16_t)std::nearbyint(std::fabs(v) * 16777216.f));
  return (uint16_t)(sign | (uint16_t)((magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13));
}
uint16_t metal_float_to_bfloat(float v) {  // to nearest even
  uint32_t bits;
  memcpy(&bits, &v, 4);
  return std::isnan(v) ? 0x7fffu : (uint16_t)(((uint64_t)bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// ---- matrices
inline size_t element_bytes(Element e) { return e == F32 ? 4 : 2; }
inline float read_element(const char* at, Element e) {
  uint16_t bits;
  uint32_t wide;
  float v;
  if (e == F32) { memcpy(&v, at, 4); return v; }
  memcpy(&bits, at, 2);
  if (e == F16) return metal_half_to_float(bits);
  wide = (uint32_t)bits << 16;
  memcpy(&v, &wide, 4);
  return v;
}
inline uint16_t round_element(float v, Element e) { return e == F16 ? metal_float_to_half(v) : metal_float_to_bfloat(v); }
inline void write_element(char* at, float v, Element e) {
  if (e == F32) { memcpy(at, &v, 4); return; }
  const uint16_t bits = round_element(v, e);
  memcpy(at, &bits, 2);
}

void metal_matrix_use(const char* what) {
  if (here().kernel->threads == SIMD) fail("%s in a group of exactly 32 threads, which Metal's compiler gets wrong", what);
}

// Meets the other lanes, which must all name the same place.
inline void same_place(const void* at, uint64_t elements_per_row, uint64_t column, uint64_t row, bool transposed,
    const char* what) {
  metal_matrix_use(what);
  Fibre& f = here().fibre[here().current];
  const uint64_t said[5] = {(uint64_t)at, elements_per_row, column, row, transposed};
  static_assert(sizeof said <= sizeof f.given[0], "there is room for it");
  memcpy(f.given[(f.turn + 1) & 1], said, sizeof said);
  metal_exchange(0.f, what);
  const Fibre& first = here().fibre[here().current / SIMD * SIMD];
  if (memcmp(first.given[f.turn & 1], said, sizeof said)) fail("%s at another place than lane 0", what);
}
// Calls with each element of this lane: its slot's index, and where it lies.
template <class F> inline void for_own_elements(Element e, uint64_t at, uint64_t elements_per_row, uint64_t column,
    uint64_t row, bool transposed, F f) {
  for (i32 i = 0; i < 2; i++) {
    const uint64_t element = matrix_layouts[e].element_of[here().current % SIMD * 2 + i];
    uint64_t r = element / 8, c = element % 8;
    if (transposed) { const uint64_t held = r; r = c; c = held; }
    f(i, at + ((row + r) * elements_per_row + column + c) * element_bytes(e));
  }
}
void metal_matrix_load(Matrix to, const void* from, uint64_t elements_per_row, uint64_t column, uint64_t row,
    bool transposed) {
  same_place(from, elements_per_row, column, row, transposed, "simdgroup_load");
  for_own_elements(to.element, (uint64_t)from, elements_per_row, column, row, transposed, [&](i32 i, uint64_t at) {
    metal_access(at, element_bytes(to.element), false);
    to.held[i] = read_element((const char*)at, to.element);
  });
}
void metal_matrix_store(ConstMatrix from, void* to, uint64_t elements_per_row, uint64_t column, uint64_t row,
    bool transposed) {
  same_place(to, elements_per_row, column, row, transposed, "simdgroup_store");
  for_own_elements(from.element, (uint64_t)to, elements_per_row, column, row, transposed, [&](i32 i, uint64_t at) {
    metal_access(at, element_bytes(from.element), true);
    write_element((char*)at, from.held[i], from.element);
  });
}
void metal_matrix_multiply(Matrix to, ConstMatrix a, ConstMatrix b, const float* c) {
  metal_matrix_use("simdgroup_multiply_accumulate");
  Fibre& f = here().fibre[here().current];
  float* given = f.given[(f.turn + 1) & 1];
  given[0] = a.held[0]; given[1] = a.held[1]; given[2] = b.held[0]; given[3] = b.held[1];
  metal_exchange(0.f, "simdgroup_multiply_accumulate");
  const Fibre* lanes = here().fibre + here().current / SIMD * SIMD;
  const i32 turn = f.turn & 1;
  const MatrixLayout& of_a = matrix_layouts[a.element], &of_b = matrix_layouts[b.element];
  for (i32 i = 0; i < 2; i++) {
    const i32 element = matrix_layouts[to.element].element_of[here().current % SIMD * 2 + i];
    float sum = c ? c[i] : 0.f;
    for (i32 k = 0; k < 8; k++) {
      const i32 slot_a = of_a.slot_of[element / 8 * 8 + k], slot_b = of_b.slot_of[k * 8 + element % 8];
      sum += lanes[slot_a / 2].given[turn][slot_a % 2] * lanes[slot_b / 2].given[turn][2 + slot_b % 2];
    }
    if (to.element != F32) {
      char rounded[2];
      write_element(rounded, sum, to.element);
      sum = read_element(rounded, to.element);
    }
    to.held[i] = sum;
  }
}

}  // namespace sim

// What the compiler calls for each access (-fsanitize=thread).
#define SIM_ACCESS(NAME, SIZE)                                                                            \
  extern "C" void __tsan_read##NAME(const void* at) { sim::metal_access((uint64_t)at, SIZE, false); }    \
  extern "C" void __tsan_write##NAME(void* at) { sim::metal_access((uint64_t)at, SIZE, true); }          \
  extern "C" void __tsan_unaligned_read##NAME(const void* at) { sim::metal_access((uint64_t)at, SIZE, false); } \
  extern "C" void __tsan_unaligned_write##NAME(void* at) { sim::metal_access((uint64_t)at, SIZE, true); }
SIM_ACCESS(1, 1) SIM_ACCESS(2, 2) SIM_ACCESS(4, 4) SIM_ACCESS(8, 8) SIM_ACCESS(16, 16)
extern "C" void __tsan_read_range(const void* at, size_t size) { sim::metal_access((uint64_t)at, size, false); }
extern "C" void __tsan_write_range(void* at, size_t size) { sim::metal_access((uint64_t)at, size, true); }
extern "C" void* __tsan_memcpy(void* to, const void* from, size_t size) {
  sim::metal_access((uint64_t)from, size, false);
  sim::metal_access((uint64_t)to, size, true);
  return memcpy(to, from, size);
}
extern "C" void* __tsan_memset(void* to, int byte, size_t size) {
  sim::metal_access((uint64_t)to, size, true);
  return memset(to, byte, size);
}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_init() {}
// A pointer that is not a multiple of what it points to (-fsanitize=alignment).
extern "C" void __ubsan_handle_type_mismatch_v1_abort(void* data, void*) {
  struct Place { const char* file; u32 line, column; };
  const Place* place = (const Place*)data;
  sim::fail("misaligned access at %s:%u", place->file, place->line);
}
