// The same kernels as in sim.cpp through Metal's header, with those of Metal alone; each access is reported to the machine.
#include <metal_stdlib>
// Functions and structs here have the names of those in sim.cpp.
namespace msl {
#include "metal.h"
#include "port/metal_sim/planted_faults.h"
#include "layout.h"
}

const sim::Kernel* sim::metal_kernels() { return sim_listed; }
