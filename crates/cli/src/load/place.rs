//! Chooses the device of a model, and the part of the device's memory that it gets.

use anyhow::{Result, bail};
use backend::{Backend, check_load};
use plan::{KvFormat, KvLayout, Plan, StepShape};
use tensor::Tensor;

use super::device::{self, AUTO, CPU, CUDA, DeviceSettings};
use super::facts::{KV_BLOCK_LEN, kv_format_of};
use super::fits::{bytes_beside, room_for_cache};
use super::sizes::{
    BATCH_TOKENS, CacheSettings, DeviceRegion, EngineSizes, KvTokens, SEQUENCES, SEQUENCES_ON_CUDA, TEXT_TOKENS,
    batch_tokens, largest_step, stretched,
};
use crate::output::note;
use crate::units;

/// The part of the free memory that the cache takes at most when no `--ctx-size` is given, as a divisor.
const KV_MEMORY_SHARE: u64 = 4;
/// The same of an NVIDIA GPU that serves: its texts are as many as the cache holds.
const KV_MEMORY_SHARE_OF_SERVER: u64 = 2;

/// A device with room for a model.
pub(crate) struct PlacedModel {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) region: DeviceRegion,
}

/// Where `--device` says, or for `auto` on the first GPU if the model fits it, else on the CPU; says which and why.
pub(crate) fn place(
    settings: &DeviceSettings,
    cache: CacheSettings,
    sizes: &EngineSizes<'_>,
    plan: &Plan,
    weights: &[Tensor],
) -> Result<PlacedModel> {
    if settings.name != AUTO {
        return place_on(device::backend(settings)?, cache, sizes, plan, weights);
    }
    settings.gpu.check_metal(&[AUTO])?;
    let on_gpu = device::first_gpu(&settings.gpu).map_err(anyhow::Error::from).and_then(|gpu| {
        check_load(&gpu, plan, weights)?;
        place_on(Box::new(gpu), cache, sizes, plan, weights)
    });
    match on_gpu {
        Ok(placed) => {
            let device = placed.backend.device();
            note(&format!("device: {CUDA} ({}), where the model fits; --device chooses another", device.description));
            Ok(placed)
        }
        // What is forced is refused where it cannot be, and not left out.
        Err(why) if !settings.gpu.force_variant.is_empty() => Err(why),
        Err(why) => {
            let line = format!("device: {CPU}, because {why:#}");
            // A machine without a GPU has no choice, and nothing to explain.
            if matches!(why.downcast_ref(), Some(gpu::GpuError::NoDriver)) {
                tracing::info!("{line}");
            } else {
                note(&line);
            }
            place_on(Box::new(device::cpu_backend(settings)?), cache, sizes, plan, weights)
        }
    }
}

/// The region that a model gets on this device. Refuses what does not fit. Steps are as large as suits the device,
/// unless their activations would take from the context.
pub(super) fn place_on(
    backend: Box<dyn Backend>,
    cache: CacheSettings,
    sizes: &EngineSizes<'_>,
    plan: &Plan,
    weights: &[Tensor],
) -> Result<PlacedModel> {
    let name = &backend.device().name;
    let with_sequences = |count| {
        let with_steps_of = |tokens| region_on(&*backend, cache, sizes, plan, weights, largest_step(tokens, count));
        let has_all = |region: &DeviceRegion| region.context_len == cache.ctx_size.unwrap_or(plan.context_len);
        let most = sizes.max_batch_tokens.unwrap_or_else(|| batch_tokens(name));
        let mut region = with_steps_of(most);
        if sizes.max_batch_tokens.is_none() && most > BATCH_TOKENS && !region.as_ref().is_ok_and(has_all) {
            let with_small_steps = with_steps_of(BATCH_TOKENS)?;
            if region.as_ref().map_or(0, |region| region.context_len) < with_small_steps.context_len {
                region = Ok(with_small_steps);
            }
        }
        region
    };
    let region = match sizes.max_sequences {
        Some(count) => DeviceRegion { sequences_why: "--parallel", ..with_sequences(count)? },
        None if device::is_cuda(name) => with_many_sequences(&with_sequences)?,
        None => with_sequences(SEQUENCES)?,
    };
    if cache.ctx_size.is_none() && region.context_len < plan.context_len {
        tracing::info!(
            "context of {} tokens: the model's {} would take {} of cache; --ctx-size sets another",
            region.context_len,
            plan.context_len,
            units::bytes((plan.kv_bytes_per_token(region.kv.format) * plan.context_len) as u64),
        );
    }
    Ok(PlacedModel { backend, region })
}

/// The region with as many sequences as pay on an NVIDIA GPU and have room in the cache that is left: each more takes
/// memory for its row of logits and its part of attention.
fn with_many_sequences(with_sequences: &dyn Fn(usize) -> Result<DeviceRegion>) -> Result<DeviceRegion> {
    let few = with_sequences(SEQUENCES)?;
    for count in SEQUENCES_ON_CUDA {
        let Ok(region) = with_sequences(count) else { continue };
        let tokens = region.kv.num_blocks * region.kv.block_len;
        let has_room = tokens >= count * TEXT_TOKENS.min(region.context_len);
        // A twentieth of the context is not missed.
        let has_context = region.context_len >= few.context_len - few.context_len / 20;
        let has_steps = region.batch_tokens == few.batch_tokens && region.batch_tokens >= count;
        if has_room && has_context && has_steps {
            let why = match count == SEQUENCES_ON_CUDA[0] {
                true => "the most that --parallel auto takes",
                false => "--parallel auto: the KV cache holds 512 tokens of each, and not of twice as many",
            };
            return Ok(DeviceRegion { sequences_why: why, ..region });
        }
    }
    let why = "the fewest that --parallel auto takes, for a small KV cache";
    Ok(DeviceRegion { sequences_why: why, ..few })
}

/// The region that a model gets with steps of up to `largest`.
fn region_on(
    backend: &dyn Backend,
    cache: CacheSettings,
    sizes: &EngineSizes<'_>,
    plan: &Plan,
    weights: &[Tensor],
    largest: StepShape,
) -> Result<DeviceRegion> {
    let format = kv_format_of(cache.format, weights);
    let layout =
        |tokens: usize| KvLayout { format, block_len: KV_BLOCK_LEN, num_blocks: tokens.div_ceil(KV_BLOCK_LEN) };
    let (device, neighbours) = (backend.device(), sizes.neighbours);
    let serves = matches!(sizes.kv_tokens, KvTokens::AsMemoryAllows) && device::is_cuda(&device.name);
    let share = if serves { KV_MEMORY_SHARE_OF_SERVER } else { KV_MEMORY_SHARE };
    let free = neighbours.free(device);
    // Activations grow with the context, so what they leave at the model's own is left at any.
    let most = backend.footprint(plan, weights, &layout(plan.context_len), largest);
    let room = most.map_or(free, |most| room_for_cache(free, &most));
    let affordable = affordable_tokens(plan, format, neighbours.cache_bytes(device, room, share));
    let context_len = context_len(plan, cache.ctx_size, affordable)?;
    let kv = layout(match sizes.kv_tokens {
        KvTokens::OneContext => context_len,
        KvTokens::AsMemoryAllows => context_len.saturating_mul(largest.sequences).min(affordable).max(context_len),
        KvTokens::AtLeast(tokens) => tokens.max(context_len),
    });
    let remedy = |fits| sizes.remedy(context_len, fits);
    let bytes = bytes_beside(neighbours, backend, plan, weights, &kv, largest, &remedy)?;
    let (batch_tokens, max_sequences) = (largest.tokens, largest.sequences);
    let sequences_why = "--parallel auto, where no NVIDIA GPU computes";
    Ok(DeviceRegion { kv, bytes, context_len, batch_tokens, max_sequences, sequences_why })
}

/// Tokens whose cache so many bytes hold.
fn affordable_tokens(plan: &Plan, kv: KvFormat, bytes: u64) -> usize {
    let per_token = plan.kv_bytes_per_token(kv).max(1) as u64;
    usize::try_from(bytes / per_token).unwrap_or(usize::MAX) / KV_BLOCK_LEN * KV_BLOCK_LEN
}

/// What `--ctx-size` says, or what the model was made for as far as memory affords its cache.
fn context_len(plan: &Plan, asked: Option<usize>, affordable: usize) -> Result<usize> {
    if let Some(asked) = asked {
        if asked > plan.context_len {
            bail!(
                "--ctx-size {asked} is more than the {} tokens that the model was made for; text beyond them would be \
                 noise ({})",
                plan.context_len,
                stretched(asked, plan.context_len),
            );
        }
        if asked < 2 {
            bail!("--ctx-size {asked} leaves no room: one token of prompt and one to generate make 2");
        }
        return Ok(asked);
    }
    Ok(plan.context_len.min(affordable.max(2 * KV_BLOCK_LEN)))
}
