//! What a model gets of a device's memory, and what is refused.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use backend::{Backend, BackendError, DeviceInfo, Executable, Footprint};
use plan::{AnyShape, KvFormat, KvLayout, Op, Plan, StepShape};
use tensor::{Tensor, WeightFormat};

use super::device::{self, CPU, CUDA, DeviceSettings};
use super::facts::KV_BLOCK_LEN;
use super::fits::RESERVE_BYTES;
use super::neighbours::{ALONE, DeviceShare, Neighbours};
use super::place::{PlacedModel, place_on};
use super::sizes::{CacheSettings, DeviceRegion, EngineSizes, KvTokens};

/// A device on which the weights take 1 MiB and activations of 512 tokens half of that.
struct Device(DeviceInfo);

impl Backend for Device {
    fn device(&self) -> &DeviceInfo {
        &self.0
    }

    fn supports(&self, _: &Op, _: &[WeightFormat]) -> bool {
        true
    }

    fn footprint(&self, plan: &Plan, _: &[Tensor], kv: &KvLayout, step: StepShape) -> Option<Footprint> {
        let kv_cache = (plan.kv_bytes_per_token(kv.format) * kv.num_blocks * kv.block_len) as u64;
        Some(Footprint { weights: 1 << 20, kv_cache, activations: 1024 * step.tokens as u64 })
    }

    fn load(&self, _: Arc<Plan>, _: Vec<Tensor>, _: KvLayout) -> Result<Box<dyn Executable>, BackendError> {
        Err(BackendError::Unobservable)
    }
}

/// With so many bytes more than the reserve.
fn device(bytes: u64) -> Box<dyn Backend> {
    named("small", bytes)
}

fn named(name: &str, bytes: u64) -> Box<dyn Backend> {
    let memory_bytes = RESERVE_BYTES + bytes;
    Box::new(Device(DeviceInfo { name: name.to_owned(), description: String::new(), memory_bytes, driver: None }))
}

fn small_plan() -> Plan {
    let config = serde_json::json!({
        "model_type": "llama", "vocab_size": 64, "hidden_size": 256, "intermediate_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    });
    models::build_plan(&config, &AnyShape).unwrap()
}

fn context(ctx_size: Option<usize>) -> CacheSettings {
    CacheSettings { ctx_size, format: None }
}

#[test]
fn what_does_not_fit_a_device_is_refused_with_the_sizes_and_what_would() {
    let plan = small_plan();
    let per_token = plan.kv_bytes_per_token(KvFormat::F32) as u64;
    let error = |bytes, ctx_size| {
        place_on(device(bytes), context(ctx_size), &EngineSizes::SINGLE, &plan, &[])
            .map(|placed| placed.region.context_len)
            .unwrap_err()
            .to_string()
    };
    let found = error((3 << 19) + 100 * per_token, Some(128));
    assert!(found.starts_with("1.00 MiB of weights, 512 KiB of KV cache for 128 tokens and 512 KiB of"), "{found}");
    assert!(found.ends_with("that are free on `small`; --ctx-size 96 would fit"), "{found}");
    assert!(error((1 << 20) - 1, Some(32)).contains("the weights alone do not fit"));
    assert!(error(1 << 20, Some(32)).contains("weights and activations leave nothing for a cache"));
    // Without a size asked for, the cache takes what is there.
    let placed = |bytes, kv_tokens| {
        let sizes = EngineSizes { kv_tokens, ..EngineSizes::SINGLE };
        let DeviceRegion { context_len, kv, .. } =
            place_on(device(bytes), context(None), &sizes, &plan, &[]).unwrap().region;
        (context_len, kv.num_blocks)
    };
    assert_eq!(placed((3 << 19) + 100 * per_token, KvTokens::OneContext), (96, 3));
    assert_eq!(placed((3 << 19) + 100 * per_token, KvTokens::AsMemoryAllows), (96, 3));
    assert_eq!(placed(1 << 40, KvTokens::OneContext), (4096, 128));
    // A context for each sequence, where there is memory for that.
    assert_eq!(placed(1 << 40, KvTokens::AsMemoryAllows), (4096, 16 * 128));
    assert_eq!(placed(1 << 40, KvTokens::AtLeast(5000)), (4096, 157));
    assert_eq!(placed(1 << 40, KvTokens::AtLeast(7)), (4096, 128));
}

/// What is advised is taken, and does fit.
#[test]
fn what_asks_for_too_large_a_cache_is_named_with_a_size_that_fits() {
    let plan = small_plan();
    let per_token = plan.kv_bytes_per_token(KvFormat::F32) as u64;
    let place = |ctx_size, kv_tokens: Option<usize>, max_batch_tokens| {
        let kv_tokens = kv_tokens.map_or(KvTokens::AsMemoryAllows, KvTokens::AtLeast);
        let sizes = EngineSizes { kv_tokens, max_batch_tokens, ..EngineSizes::SINGLE };
        let device = device((3 << 19) + 100 * per_token);
        place_on(device, context(ctx_size), &sizes, &plan, &[]).map(drop).map_err(|error| error.to_string())
    };
    for (ctx_size, kv_tokens, advice) in [
        (Some(128), None, "; --ctx-size 96 would fit"),
        (Some(64), Some(5000), "; --kv-tokens 96 would fit"),
        (None, Some(5000), "; --kv-tokens 96 would fit"),
        (Some(128), Some(64), "; --ctx-size 96 would fit"),
        (Some(128), Some(5000), "; --ctx-size 96 with --kv-tokens 96 would fit"),
    ] {
        let error = place(ctx_size, kv_tokens, None).unwrap_err();
        assert!(error.ends_with(advice), "{ctx_size:?} {kv_tokens:?}: {error}");
        let advised = |flag, asked| if advice.contains(flag) { Some(96) } else { asked };
        place(advised("--ctx-size", ctx_size), advised("--kv-tokens", kv_tokens), None).unwrap();
    }
    let error = place(Some(32), None, Some(4096)).unwrap_err();
    assert!(error.ends_with("or a smaller --batch-tokens"), "{error}");
    place(Some(32), None, Some(64)).unwrap();
}

#[test]
fn a_cache_beyond_the_memory_of_the_processors_is_refused_by_its_flag() {
    let plan = small_plan();
    let place = |kv_tokens| {
        let sizes = EngineSizes { kv_tokens: KvTokens::AtLeast(kv_tokens), ..EngineSizes::SINGLE };
        let backend = Box::new(device::cpu_backend(&DeviceSettings::on(CPU)).unwrap());
        place_on(backend, context(Some(64)), &sizes, &plan, &[]).map(drop).map_err(|error| error.to_string())
    };
    // A petabyte.
    let error = place((1 << 50) / plan.kv_bytes_per_token(KvFormat::F32)).unwrap_err();
    let advised = error.split("; --kv-tokens ").nth(1).and_then(|rest| rest.strip_suffix(" would fit"));
    let advised = advised.unwrap_or_else(|| panic!("{error}")).parse().unwrap();
    assert!(error.contains(" of KV cache for ") && error.contains(" free on `cpu`"), "{error}");
    place(advised).unwrap();
}

#[test]
fn a_second_model_gets_what_the_first_has_left_and_is_refused_with_the_sizes() {
    const MEMORY: u64 = 600 << 20;
    let plan = small_plan();
    let per_token = plan.kv_bytes_per_token(KvFormat::F32) as u64;
    let placed = |neighbours: &Neighbours, ctx_size| {
        let sizes = EngineSizes { kv_tokens: KvTokens::AsMemoryAllows, neighbours, ..EngineSizes::SINGLE };
        place_on(device(MEMORY), context(ctx_size), &sizes, &plan, &[])
            .map(|placed| placed.region.kv.num_blocks * KV_BLOCK_LEN)
            .map_err(|error| error.to_string())
    };
    // Alone a fourth of the memory; one of two an eighth.
    let alone = placed(&ALONE, None).unwrap();
    let mut neighbours = Neighbours::of(2);
    let first = placed(&neighbours, None).unwrap();
    assert!(first.abs_diff(alone / 2) <= KV_BLOCK_LEN, "{first} of {alone}");
    let had = device(MEMORY).device().memory_bytes;
    neighbours.give(DeviceShare { device: "small".to_owned(), had, bytes: (3 << 19) + first as u64 * per_token });
    assert_eq!(placed(&neighbours, None).unwrap(), first);
    neighbours.give(DeviceShare { device: "small".to_owned(), had, bytes: 500 << 20 });
    let refused = placed(&neighbours, Some(2048)).unwrap_err();
    assert!(refused.contains("do not fit the") && refused.contains("of the models before; "), "{refused}");
}

#[test]
fn steps_are_large_where_that_takes_nothing_from_the_context() {
    let plan = small_plan();
    let per_token = plan.kv_bytes_per_token(KvFormat::F32) as u64;
    let placed = |name, bytes, ctx_size, max_batch_tokens| {
        let sizes = EngineSizes { max_batch_tokens, ..EngineSizes::SINGLE };
        let placed = place_on(named(name, bytes), context(ctx_size), &sizes, &plan, &[]);
        placed
            .map(|PlacedModel { region, .. }| (region.batch_tokens, region.context_len))
            .map_err(|error| error.to_string())
    };
    assert_eq!(placed("small", 1 << 40, None, None), Ok((512, 4096)));
    assert_eq!(placed(CUDA, 1 << 40, None, None), Ok((2048, 4096)));
    // 1 MiB of weights, half of activations: no room for more of those than 512 tokens have.
    let little = (3 << 19) + 128 * per_token;
    assert_eq!(placed(CUDA, little, None, None), Ok((512, 128)));
    assert_eq!(placed(CUDA, little, Some(128), None), Ok((512, 128)));
    assert_eq!(placed(CUDA, little + 3 * (1 << 19), Some(128), None), Ok((2048, 128)));
    // What is asked for is not made smaller in silence.
    assert!(placed(CUDA, little, Some(128), Some(2048)).is_err_and(|error| error.contains("do not fit")));
    assert_eq!(placed(CUDA, little, Some(96), Some(256)), Ok((256, 96)));
}

#[test]
fn as_many_sequences_run_on_an_nvidia_gpu_as_its_cache_has_room_for() {
    let plan = small_plan();
    let placed = |name, bytes, ctx_size, change: &dyn Fn(&mut EngineSizes<'static>)| {
        let mut sizes = EngineSizes { max_sequences: None, kv_tokens: KvTokens::AsMemoryAllows, ..EngineSizes::SINGLE };
        change(&mut sizes);
        let region = place_on(named(name, bytes), context(ctx_size), &sizes, &plan, &[]).unwrap().region;
        (region.max_sequences, region.kv.num_blocks * KV_BLOCK_LEN)
    };
    let as_it_is = |_: &mut EngineSizes<'static>| ();
    let with_cache = |tokens| move |sizes: &mut EngineSizes<'static>| sizes.kv_tokens = KvTokens::AtLeast(tokens);
    assert_eq!(placed(CUDA, 1 << 40, None, &as_it_is), (256, 256 * 4096));
    assert_eq!(placed("cuda:1", 1 << 40, Some(256), &as_it_is), (256, 256 * 256));
    assert_eq!(placed(CUDA, 1 << 40, Some(4096), &with_cache(128 * 512)).0, 128);
    assert_eq!(placed(CUDA, 1 << 40, Some(4096), &with_cache(128 * 512 - 32)).0, 64);
    assert_eq!(placed(CUDA, 1 << 40, Some(4096), &with_cache(4096)).0, 16);
    // A step has a token for each.
    assert_eq!(placed(CUDA, 1 << 40, None, &|sizes| sizes.max_batch_tokens = Some(200)).0, 128);
    // Others compute each sequence in time of its own.
    assert_eq!(placed("small", 1 << 40, None, &as_it_is), (16, 16 * 4096));
    // What is asked for is what there is.
    assert_eq!(placed(CUDA, 1 << 40, None, &|sizes| sizes.max_sequences = Some(500)).0, 500);
    // Half of the memory of a GPU that serves, and a fourth of any other.
    let [of_gpu, of_other] = [CUDA, "small"].map(|name| placed(name, 1 << 30, None, &as_it_is).1);
    let of_gpu_alone = placed(CUDA, 1 << 30, None, &|sizes| sizes.max_sequences = Some(16)).1;
    assert!(of_gpu_alone.abs_diff(16 * 4096) <= KV_BLOCK_LEN && of_other == 16 * 4096, "{of_gpu}, {of_other}");
}

#[test]
fn prompts_share_steps_with_texts_by_time_on_a_gpu_and_by_number_on_a_processor() {
    let plan = small_plan();
    let config = |device, max_mixed_tokens, step_target_ms: Option<u64>| {
        let step_target = step_target_ms.map(Duration::from_millis);
        let sizes = EngineSizes { max_mixed_tokens, step_target, ..EngineSizes::SINGLE };
        let region = place_on(named(device, 1 << 40), context(None), &sizes, &plan, &[]).unwrap().region;
        let config = sizes.config(device, region, 64);
        (config.max_mixed_tokens, config.step_target.map(|target| target.as_millis()))
    };
    assert_eq!(config(CUDA, None, None), (2048, Some(55)));
    assert_eq!(config(CPU, None, None), (64, None));
    // One flag says one thing, and both say both.
    assert_eq!(config(CUDA, Some(700), None), (700, None));
    assert_eq!(config(CUDA, None, Some(0)), (2048, None));
    assert_eq!(config(CUDA, Some(700), Some(30)), (700, Some(30)));
    assert_eq!(config(CPU, None, Some(200)), (512, Some(200)));
}
