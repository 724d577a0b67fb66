// What the build script compiles for the simulator: every kernel, the planted faults, and the checks of struct layouts
// that it writes.
#include "port/sim.h"
#include "all.h"
#include "planted_faults.h"
#include "layout.h"
