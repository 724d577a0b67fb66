//! A model that generates: `load` finds, plans and places it, `packing` quantises it where `--quant` asks for that, and
//! `engine` joins both; `encode` makes ids of text for it.

pub(crate) mod args;
mod encode;
mod engine;
pub(crate) mod settings;

pub(crate) use engine::{Model, load, load_weights, load_with};
