//! Comparisons of one and two bytes cost nothing.
//!
//! The instrumented code tells libFuzzer the operands of each comparison. Those of four and eight bytes become words
//! that it writes into inputs; shorter ones are only for its value profile, which no run uses. `build.rs` has the
//! linker send them here, because they took up to a third of the time: every loop over characters makes them.

#[cfg(target_os = "linux")]
std::arch::global_asm!(
    ".globl __wrap___sanitizer_cov_trace_cmp1",
    ".globl __wrap___sanitizer_cov_trace_cmp2",
    ".globl __wrap___sanitizer_cov_trace_const_cmp1",
    ".globl __wrap___sanitizer_cov_trace_const_cmp2",
    "__wrap___sanitizer_cov_trace_cmp1:",
    "__wrap___sanitizer_cov_trace_cmp2:",
    "__wrap___sanitizer_cov_trace_const_cmp1:",
    "__wrap___sanitizer_cov_trace_const_cmp2:",
    "ret",
);
