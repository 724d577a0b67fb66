//! Whether a model fits a device with its cache, and if it does not, which flag is to ask for less.

use anyhow::{Result, bail};
use backend::{Backend, DeviceInfo, Footprint};
use plan::{KvLayout, Plan, StepShape};
use tensor::Tensor;

use super::device::CPU;
use super::facts::KV_BLOCK_LEN;
use super::neighbours::{ALONE, Neighbours};
use crate::units;

/// What a device's system takes for kernels and recorded programs. Guessed.
pub(super) const RESERVE_BYTES: u64 = 256 << 20;

/// Bytes that weights and activations leave for a cache.
pub(super) fn room_for_cache(memory_bytes: u64, footprint: &Footprint) -> u64 {
    memory_bytes.saturating_sub(footprint.weights).saturating_sub(footprint.activations).saturating_sub(RESERVE_BYTES)
}

/// A model does not fit a device beside those that have memory there.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct TooLargeBeside(String);

impl TooLargeBeside {
    /// Whether this is, at the end, why something failed.
    pub(crate) fn is_in(error: &anyhow::Error) -> bool {
        error.chain().any(|cause| cause.is::<Self>())
    }
}

/// What to do about a cache, if so many tokens would fit; not called where there is no room for weights.
pub(crate) type Remedy<'a> = &'a dyn Fn(usize) -> String;

/// Where `--ctx-size` alone says how large the cache is.
pub(crate) fn smaller_context(fits: usize) -> String {
    match fits {
        0 => format!("weights and activations leave nothing for a cache: {SMALLER_MODEL}"),
        _ => format!("--ctx-size {fits} would fit"),
    }
}

const SMALLER_MODEL: &str = "use a more strongly quantised file, a smaller model, or --device cpu";

/// Refuses a model that does not fit `backend` with a cache of `kv` and steps of up to `largest`, with the sizes and
/// what would fit.
pub(crate) fn check_fits(
    backend: &dyn Backend,
    plan: &Plan,
    weights: &[Tensor],
    kv: &KvLayout,
    largest: StepShape,
    remedy: Remedy<'_>,
) -> Result<()> {
    bytes_beside(&ALONE, backend, plan, weights, kv, largest, remedy).map(drop)
}

/// What a cache may take of this device besides weights that are mapped.
fn available(device: &DeviceInfo) -> u64 {
    let known = if device.name == CPU { cpu::available_bytes() } else { None };
    known.unwrap_or(u64::MAX)
}

/// As [`check_fits`], in what `neighbours` leave; returns what the model takes of the device.
pub(super) fn bytes_beside(
    neighbours: &Neighbours,
    backend: &dyn Backend,
    plan: &Plan,
    weights: &[Tensor],
    kv: &KvLayout,
    largest: StepShape,
    remedy: Remedy<'_>,
) -> Result<u64> {
    let found = backend.footprint(plan, weights, kv, largest);
    let has_to_fit = found.is_some() || neighbours.is_any();
    let footprint = found.unwrap_or_else(|| {
        let tokens = (kv.num_blocks * kv.block_len) as u64;
        let kv_cache = tokens.saturating_mul(plan.kv_bytes_per_token(kv.format) as u64);
        Footprint { kv_cache, ..Footprint::default() }
    });
    let device = backend.device();
    // Alone, a model whose weights are mapped takes memory for its cache, and nothing else that could be refused.
    let (free, reserve) = if has_to_fit { (neighbours.free(device), RESERVE_BYTES) } else { (available(device), 0) };
    if footprint.total().saturating_add(reserve) <= free {
        return Ok(footprint.total());
    }
    let room = room_for_cache(free, &footprint);
    let per_token = plan.kv_bytes_per_token(kv.format).max(1) as u64;
    let tokens = usize::try_from(room / per_token).unwrap_or(usize::MAX) / KV_BLOCK_LEN * KV_BLOCK_LEN;
    let remedy = match found {
        Some(found) if found.weights.saturating_add(RESERVE_BYTES) > free => {
            format!("the weights alone do not fit: {SMALLER_MODEL}")
        }
        None if tokens == 0 => "hardly any memory is left: end other programs, or use a smaller model".to_owned(),
        _ => remedy(tokens),
    };
    let beside = match neighbours.bytes_on(&device.name) {
        0 => String::new(),
        bytes => format!(" beside the {} of the models before", units::bytes(bytes)),
    };
    let cache = format!("{} of KV cache for {} tokens", units::bytes(footprint.kv_cache), kv.num_blocks * kv.block_len);
    let what = match found {
        Some(Footprint { weights, activations, .. }) => {
            format!("{} of weights, {cache} and {} of activations do", units::bytes(weights), units::bytes(activations))
        }
        None => format!("{cache} does"),
    };
    let message =
        format!("{what} not fit the {} that are free on `{}`{beside}; {remedy}", units::bytes(free), device.name);
    if beside.is_empty() {
        bail!(message);
    }
    Err(TooLargeBeside(message).into())
}
