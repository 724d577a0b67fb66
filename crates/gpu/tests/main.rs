//! The tests of the simulator, and of what the crate says of kernels without running them. All files are one program,
//! because each program of tests is compiled, linked and run alone: in one, short tests run beside long ones.

mod attention;
mod attentions;
mod bits;
mod conformance;
mod devices;
mod experts;
mod failures;
mod forced;
mod goldens;
mod metal_matrices;
mod metal_source;
mod metal_text;
mod mixtures;
mod profile;
mod queue;
mod tuned;
