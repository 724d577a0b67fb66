//! Writes the weights of a model in another format: a GGUF file or a folder of safetensors for `hotmetal quantize`, or
//! the weights of a model that is being loaded for `--quant`. It stands above `load`, which reads what it packs.
//!
//! Tensors are read from the mapped file, converted a piece at a time on all cores and written as they come, so that
//! memory does not grow with the model; the experts of a layer are one tensor of a GGUF file, and are read and written
//! one after another. The same input gives the same bytes.
//!
//! `mix` says which format a matrix gets, `scales` how its scales are chosen, `importance` how much its features count
//! then, `convert` packs its weights and `loss` adds up what they lose. `source` reads what is packed, `gguf_metadata`
//! says the rest of it in GGUF's words. `gguf` and `folder` write a model as a `job` asks, through `work`, which goes
//! on where an interrupted run came to; `receipt` tells what was lost. `on_load` serves `--quant`.

mod convert;
pub(crate) mod folder;
pub(crate) mod gguf;
pub(crate) mod gguf_metadata;
pub(crate) mod importance;
pub(crate) mod job;
mod loss;
pub(crate) mod mix;
pub(crate) mod on_load;
pub(crate) mod receipt;
mod scales;
mod source;
mod work;
