// What the build script compiles for the simulator: every kernel, the planted faults, and the checks of struct layouts
// that it writes. sim_metal.cpp has them again, as Metal sees them.
#include "port/sim.h"
#include "port/metal_sim/runtime.h"
#include "all.h"
#include "planted_faults.h"
#include "layout.h"
