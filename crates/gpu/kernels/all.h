// Every kernel; the port header of the compiler comes first.
#include "parts.h"
#include "embed.h"
#include "rms_norm.h"
#include "linear.h"
#include "rope_kv_write.h"
#include "attention.h"
#include "elementwise.h"
