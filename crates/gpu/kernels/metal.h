// Every kernel in the Metal Shading Language: those of all.h, and those of Apple's matrix instructions.
#include "port/metal.h"
#include "parts.h"
#include "embed.h"
#include "rms_norm.h"
#include "linear.h"
#include "linear_batch.h"
#include "rope_kv_write.h"
#include "linear_stream.h"
#include "attention.h"
#include "attention_f16.h"
#include "attention_tiles.h"
#include "elementwise.h"
#include "choose.h"
#include "sample.h"
// A word of Metal is a name in this file.
#pragma push_macro("thread")
#undef thread
#define thread thread_index
#include "roofline.h"
#pragma pop_macro("thread")
#include "gemm.simdgroup_matrix.h"
#include "attention_prefill.simdgroup_matrix.h"
