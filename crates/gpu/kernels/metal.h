// Every kernel in the Metal Shading Language.
#include "port/metal.h"
#include "all.h"
