#![allow(clippy::print_stdout, reason = "temporary")]
fn main() { print!("{}", gpu::kernel_source::cuda()); }
