//! From a model's name to a plan with weights and a device with room for them; one file a step, and no step knows a
//! later one.
//!
//! `args` reads the flags, `find` opens the checkpoint, `plan` builds its plan, `weights` reads its tensors, `device`
//! opens the device, `place` gives the model its part of the device's memory, `text` builds tokenizer and chat
//! templates. What several steps and commands ask of a plan or its weights is in `facts`; `tuned` and `device_facts` read
//! and write what was measured of a device. Only `args` knows clap: the others take plain structs, `…Settings`, which
//! commands without these flags fill themselves.
//!
//! `packing` stands above, since it quantises what is loaded here, and `model` on top joins both into an engine.

pub(crate) mod args;
pub(crate) mod device;
pub(crate) mod device_facts;
pub(crate) mod facts;
pub(crate) mod find;
pub(crate) mod fits;
pub(crate) mod named_templates;
pub(crate) mod neighbours;
pub(crate) mod place;
#[cfg(test)]
mod place_tests;
pub(crate) mod plan;
pub(crate) mod rope;
pub(crate) mod sizes;
pub(crate) mod text;
pub(crate) mod tuned;
pub(crate) mod unchecked;
pub(crate) mod watch;
pub(crate) mod weights;
