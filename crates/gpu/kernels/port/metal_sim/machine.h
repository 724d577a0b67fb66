// What the simulator's machine (port/sim.h) and kernel text that was compiled through Metal's header know of each other:
// declarations alone, since that text is compiled so that each of its accesses is reported, and the machine is not.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sim {

// Where a thread is: its group in the grid, its SIMD group, its lane, and the SIMD groups of its group.
struct Place { int32_t gx, gy, gz, simd, lane, simds; };
enum Dialect : int32_t { CUDA_TEXT = 0, METAL_TEXT = 1 };
typedef void (*Body)(const void* params, void* group, Place place);
struct Kernel {
  const char* name; size_t params_size, group_size; bool dynamic; int32_t threads; Body body; Dialect dialect; Kernel* next;
};

// Of every Apple GPU.
constexpr size_t METAL_GROUP_BYTES = 32 << 10;

// What the text compiled through Metal's header has: sim_metal.cpp.
const Kernel* metal_kernels();

// What it calls: runtime.h. `what` is the name of the function, for messages.
void begin_metal_launch();
void* metal_group_memory();
void metal_group_barrier();
void metal_simd_barrier();
float metal_shuffle_xor(float v, uint32_t mask, const char* what);
float metal_shuffle(float v, uint32_t lane, const char* what);
bool metal_any(bool v);
float metal_half_to_float(uint16_t bits);
uint16_t metal_float_to_half(float v);
uint16_t metal_float_to_bfloat(float v);

// Matrices of 8 by 8, of which a lane has two elements: which ones nobody knows, so they change from launch to launch and
// are not the same for two element types.
enum Element : int32_t { F32, F16, BF16 };
struct Matrix { float* held; Element element; };  // a lane's elements as they are computed with
struct ConstMatrix { const float* held; Element element; };
void metal_matrix_load(Matrix to, const void* from, uint64_t elements_per_row, uint64_t column, uint64_t row,
    bool transposed);
void metal_matrix_store(ConstMatrix from, void* to, uint64_t elements_per_row, uint64_t column, uint64_t row,
    bool transposed);
// to = a · b + c; without `c`, to = a · b.
void metal_matrix_multiply(Matrix to, ConstMatrix a, ConstMatrix b, const float* c);
void metal_matrix_use(const char* what);

}  // namespace sim
