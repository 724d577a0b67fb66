//! llama.cpp's own interface: `/completion`, `/props` and `/slots`. What `/infill` shares with it is here, too: the form
//! of an answer ([`text`]), and what `samplers` means there ([`samplers`]).

mod completion;
mod props;
pub(crate) mod samplers;
pub(crate) mod slots;
pub(crate) mod text;

use crate::fields::{Field, applied, hint, only};

pub(crate) use completion::{FIELDS, completion};
pub(crate) use props::{build_info, props, slots};

/// Fields of the routes that generate.
pub(crate) const COMMON: &[Field] = &[
    applied("n_predict"),
    applied("max_tokens"),
    applied("n_indent"),
    applied("t_max_predict_ms"),
    applied("return_tokens"),
    applied("response_fields"),
    applied("n_probs"),
    applied("post_sampling_probs"),
    applied("timings_per_token"),
    applied("return_progress"),
    hint("n_cache_reuse", "the prefix cache serves all"),
    hint("n_discard", "where contexts are shifted, half of the older tokens is left out"),
    hint("t_max_prompt_ms", "a prompt is computed to its end"),
    only("min_keep", |value| value == 0 || value == 1, "the filters keep one token at least, and no more by force"),
];
