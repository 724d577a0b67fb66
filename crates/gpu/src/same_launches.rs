//! A guard for changes that are to change no launch: what every model records, in every weight format, for every bucket
//! of steps and every kind of device, is what `tests/launches.txt` says.
//!
//! No device is needed: memory lies nowhere, at addresses that are the same in each run, so a launch's parameters and
//! operands can be compared as they are. A change that means to change launches replaces the file by the one that the
//! test leaves in `target/launches`, and says why in its commit.

mod dispatch_page;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use backend::Tuned;
use plan::{AnyShape, KvFormat, KvLayout, Plan, StepShape, fuse, hidden_states, restrict_outputs, share_slots};
use serde_json::{Value, json};
use testing::Sample;

use crate::executable::{counters_len, footprint};
use crate::forced::ForcedVariants;
use crate::formats::DeviceFormat;
use crate::glu_bounds::GluBounds;
use crate::kernels::{choose, rope_kv_write, sample};
use crate::kv_cache::KvCache;
use crate::launch::{Launch, Region};
use crate::ops;
use crate::params::{Address, Chosen};
use crate::site::LoadedPlan;
use crate::step_input::{StepRows, max_positions};
use crate::target::{Matrix, MemorySpeed, Target};
use crate::weights::DeviceWeights;

const EXPECTED: &str = include_str!("../tests/launches.txt");

/// Each kind of device that chooses kernels in a way of its own.
fn targets() -> [(&'static str, Target); 8] {
    let hopper = Target {
        multiprocessors: 132,
        groups_meet: true,
        bulk_copies: true,
        matrix: Matrix::FourSimdGroups,
        group_bytes_max: 227 << 10,
        batch_invariant: false,
        forced: ForcedVariants::NONE,
        kernel: None,
        tuned: Tuned::NONE,
        memory: MemorySpeed::FITTED,
    };
    let blackwell = Target { multiprocessors: 170, matrix: Matrix::SimdGroup, group_bytes_max: 99 << 10, ..hopper };
    let ampere = Target { multiprocessors: 108, bulk_copies: false, group_bytes_max: 163 << 10, ..blackwell };
    let metal = Target {
        multiprocessors: 10,
        groups_meet: false,
        matrix: Matrix::EightByEight,
        group_bytes_max: 32 << 10,
        ..ampere
    };
    let simulator = Target { multiprocessors: 3, groups_meet: false, group_bytes_max: 227 << 10, ..blackwell };
    let invariant = |target| Target { batch_invariant: true, ..target };
    [
        ("hopper", hopper),
        ("hopper-invariant", invariant(hopper)),
        ("blackwell", blackwell),
        ("ampere", ampere),
        ("ampere-invariant", invariant(ampere)),
        ("metal", metal),
        ("metal-invariant", invariant(metal)),
        ("simulator", simulator),
    ]
}

/// Models whose plans differ: biases, norms of heads, windows, sinks, tied heads, heads that turn in part, heads of every
/// size that has a kernel.
fn models() -> Vec<(&'static str, Value)> {
    let config = |model_type, hidden, inner, heads, kv_heads, head_dim| {
        json!({
            "model_type": model_type, "vocab_size": 5_003, "hidden_size": hidden, "intermediate_size": inner,
            "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "head_dim": head_dim, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
            "tie_word_embeddings": false,
        })
    };
    let with = |mut config: Value, fields: Value| {
        let fields = fields.as_object().expect("an object").clone();
        config.as_object_mut().expect("an object").extend(fields);
        config
    };
    let mixture = |more: &Value| {
        with(
            json!({"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": true}),
            more.clone(),
        )
    };
    vec![
        ("llama-8b", config("llama", 4096, 14_336, 32, 8, 128)),
        ("llama-1b", with(config("llama", 2048, 8192, 32, 8, 64), json!({"tie_word_embeddings": true}))),
        ("llama-biased", with(config("llama", 512, 1024, 8, 2, 96), json!({"attention_bias": true, "mlp_bias": true}))),
        ("qwen2-0.5b", with(config("qwen2", 896, 4864, 14, 2, 64), json!({"tie_word_embeddings": true}))),
        ("qwen3-4b", config("qwen3", 2560, 9728, 32, 8, 128)),
        ("mistral", with(config("mistral", 1024, 2816, 8, 8, 128), json!({"sliding_window": 33}))),
        ("smollm3", config("smollm3", 2048, 11_008, 16, 4, 128)),
        (
            "mixtral",
            with(config("mixtral", 1024, 2048, 8, 2, 128), json!({"num_local_experts": 8, "num_experts_per_tok": 2})),
        ),
        ("qwen3-moe", with(config("qwen3_moe", 2048, 6144, 32, 4, 128), mixture(&json!({})))),
        (
            "qwen2-moe",
            with(config("qwen2_moe", 512, 1024, 8, 2, 64), mixture(&json!({"shared_expert_intermediate_size": 512}))),
        ),
        (
            "gpt-oss",
            with(
                config("gpt_oss", 2880, 2880, 64, 8, 64),
                json!({
                    "attention_bias": true, "sliding_window": 128, "num_local_experts": 32, "num_experts_per_tok": 4,
                }),
            ),
        ),
        (
            "glm4-moe",
            with(
                config("glm4_moe", 1024, 2816, 8, 2, 128),
                json!({
                    "attention_bias": true, "partial_rotary_factor": 0.5, "use_qk_norm": false, "n_routed_experts": 128,
                    "num_experts_per_tok": 8, "moe_intermediate_size": 768, "n_shared_experts": 1,
                    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": true,
                    "routed_scaling_factor": 1.0,
                }),
            ),
        ),
        (
            "glm4-moe-lite",
            with(
                config("glm4_moe_lite", 2048, 10_240, 20, 20, 64),
                json!({
                    "q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
                    "v_head_dim": 256, "n_routed_experts": 64, "num_experts_per_tok": 4, "moe_intermediate_size": 1536,
                    "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
                    "norm_topk_prob": true, "routed_scaling_factor": 1.8,
                }),
            ),
        ),
        (
            "deepseek-v2-lite",
            with(
                config("deepseek_v2", 2048, 10_944, 16, 16, 64),
                json!({
                    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
                    "n_routed_experts": 64, "num_experts_per_tok": 6, "moe_intermediate_size": 1408,
                    "n_shared_experts": 2, "first_k_dense_replace": 1, "topk_method": "greedy",
                    "scoring_func": "softmax", "norm_topk_prob": false, "routed_scaling_factor": 1.0,
                }),
            ),
        ),
        ("odd", config("llama", 40, 56, 3, 1, 10)),
    ]
}

/// Bytes that addresses of one kind of memory may span.
const SPAN: u64 = 1 << 44;

/// Memory that is nowhere, of one kind.
fn nowhere(kind: u64, bytes: u64) -> Region {
    Region { address: Address(kind * SPAN), bytes }
}

/// What a test records with: all that a loaded model has, without a device.
struct Loaded {
    weights: DeviceWeights,
    glu_bounds: GluBounds,
    angles: Vec<Region>,
    orders: Vec<Region>,
    head_ids: Region,
    cache: KvCache,
    counters: Region,
    chosen: Region,
    target: Target,
}

impl Loaded {
    fn new(target: Target, plan: &Plan, formats: &dyn Fn(usize, &[usize]) -> DeviceFormat, kv: KvLayout) -> Self {
        let shapes =
            plan.weights.iter().enumerate().map(|(index, info)| (formats(index, &info.shape), &info.shape[..]));
        let mut tables = nowhere(3, 0);
        let mut table = |bytes: u64| {
            tables = Region { address: Address(tables.address.0 + tables.bytes.next_multiple_of(256)), bytes };
            tables
        };
        let positions = max_positions(plan, &kv);
        let angles = plan.ropes.iter().map(|rope| table((positions * rope.dims) as u64 * 4)).collect();
        let orders = plan.orders.iter().map(|order| table(size_of_val(&order[..]) as u64)).collect();
        let cache_bytes = KvCache::bytes(&plan.kv_layers, &kv).expect("a cache of some size");
        Self {
            weights: DeviceWeights::at(nowhere(1, SPAN), shapes),
            glu_bounds: GluBounds::of_all(plan, 900.0),
            angles,
            orders,
            head_ids: table(size_of_val(&ops::latent::head_ids(plan)[..]) as u64),
            cache: KvCache::at(nowhere(2, cache_bytes), &plan.kv_layers, kv),
            counters: nowhere(4, counters_len(plan, &target) as u64 * 4),
            chosen: nowhere(5, (4096 * size_of::<Chosen>()) as u64),
            target,
        }
    }

    fn plan<'a>(&'a self, plan: &'a Plan) -> LoadedPlan<'a> {
        LoadedPlan {
            plan,
            weights: &self.weights,
            angles: &self.angles,
            orders: &self.orders,
            head_ids: self.head_ids,
            cache: &self.cache,
            target: self.target,
            counters: self.counters,
            chosen: self.chosen,
            glu_bounds: &self.glu_bounds,
        }
    }

    /// All that is recorded of steps of every bucket, in words.
    fn recorded(&self, plan: &Plan) -> String {
        let mut text = String::new();
        let loaded = self.plan(plan);
        let shapes = [1, 2, 4, 8, 16, 32, 64, 128, 512, 2048].into_iter().flat_map(|tokens| {
            let shapes = [1, 4, tokens].map(|sequences| StepShape { tokens, sequences, outputs: sequences }.bucket());
            shapes.into_iter().flat_map(|shape| {
                let any = (shape.tokens == shape.sequences && shape.tokens > 1).then_some(StepRows::Expanded);
                let rows = StepRows::all_of_shape(shape, ops::latent::has_near(&loaded));
                rows.chain(any).map(move |rows| (shape, rows))
            })
        });
        let mut seen = vec![];
        for (shape, rows) in shapes.filter(|(shape, _)| shape.sequences <= shape.tokens) {
            if seen.contains(&(shape, rows)) {
                continue;
            }
            seen.push((shape, rows));
            let layout = ops::lay_out(&loaded, shape, rows);
            let regions = [(6, layout.bytes), (7, layout.step.bytes()), (8, layout.messages)];
            let [arena, step, messages] = regions.map(|(kind, bytes)| nowhere(kind, bytes));
            writeln!(text, "{shape:?} {rows:?}: {} {} {}", arena.bytes, step.bytes, messages.bytes).expect("a text");
            for keep in [false, true] {
                for of_op in ops::lower(&loaded, &layout, [arena, step, messages], keep) {
                    writeln!(text, "op {} {keep}", of_op.op).expect("a text");
                    of_op.launches.iter().for_each(|launch| write_launch(&mut text, launch));
                }
            }
            if plan.value(plan.logits).width == plan.vocab_size {
                choose::launches(&loaded, &layout, arena, step)
                    .iter()
                    .for_each(|launch| write_launch(&mut text, launch));
                write_launch(&mut text, &sample::launch(&loaded, &layout, arena, step));
            }
        }
        write_launch(&mut text, &rope_kv_write::block_copy(&self.cache, 1, 3, 5));
        text
    }
}

fn write_launch(text: &mut String, launch: &Launch) {
    let Launch { kernel, groups, threads, group_bytes, early_start, cluster, params, maps, operands } = launch;
    writeln!(text, "{kernel} {groups:?} {threads} {group_bytes} {early_start} {cluster}").expect("a text");
    writeln!(text, "  {params:x?}\n  {maps:?}").expect("a text");
    for operand in operands {
        let (Region { address, bytes }, access) = (operand.region, operand.access);
        writeln!(text, "  {access:?} {:x} {bytes:x}", address.0).expect("a text");
    }
}

/// FNV-1a, 64 bits.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The format of each weight where all matrices are in `format`, whose rows are whole blocks, and else in F16.
fn all_in(format: DeviceFormat) -> impl Fn(usize, &[usize]) -> DeviceFormat {
    move |_, shape| match *shape {
        [_, k] if k.is_multiple_of(format.weight_format().block_len()) => format,
        [_, _] => DeviceFormat::F16,
        _ => DeviceFormat::F32,
    }
}

/// As mixtures have it: every third matrix in another format.
fn mixed(index: usize, shape: &[usize]) -> DeviceFormat {
    all_in(if index.is_multiple_of(3) { DeviceFormat::Q6_K } else { DeviceFormat::Q4_K })(index, shape)
}

/// A line for each target, model and format of the sample: the number of launches, and a hash of all that is said of
/// them.
fn lines(sample: Sample) -> (String, BTreeMap<String, String>) {
    let (mut lines, mut texts, mut index) = (String::new(), BTreeMap::new(), 0);
    let mut add = |name: String, text: &dyn Fn() -> String| {
        index += 1;
        if !sample.has(index) {
            return;
        }
        let text = text();
        let launches = text.lines().filter(|line| line.starts_with("  [")).count() / 2;
        writeln!(lines, "{name}: {launches} launches, {:016x}", hash(&text)).expect("a text");
        texts.insert(name, text);
    };
    let kv = |format| KvLayout { format, block_len: 16, num_blocks: 512 };
    for (target_name, target) in targets() {
        for (model_name, config) in models() {
            let textbook = models::build_plan(&config, &AnyShape).expect("a configuration");
            // All matrices are in one format.
            let fused = fuse(share_slots(restrict_outputs(textbook.clone()), |_| true));
            let name = |what: &str| format!("{target_name} {model_name} {what}");
            for format in DeviceFormat::ALL {
                let loaded = || Loaded::new(target, &fused, &all_in(format), kv(KvFormat::F16));
                add(name(format.name()), &|| loaded().recorded(&fused));
            }
            // All experts of a stack are in one format.
            if crate::weights::stacks(&fused).next().is_none() {
                let loaded = || Loaded::new(target, &fused, &mixed, kv(KvFormat::F16));
                add(name("mixed"), &|| loaded().recorded(&fused));
            }
            let q8_0 = all_in(DeviceFormat::Q8_0);
            add(name("kv-f32"), &|| Loaded::new(target, &fused, &q8_0, kv(KvFormat::F32)).recorded(&fused));
            add(name("textbook"), &|| Loaded::new(target, &textbook, &q8_0, kv(KvFormat::F16)).recorded(&textbook));
            if let Some(hidden) = hidden_states(&fused) {
                add(name("hidden"), &|| Loaded::new(target, &fused, &q8_0, kv(KvFormat::F16)).recorded(&hidden));
            }
        }
    }
    (lines, texts)
}

/// What a model takes is asked before its weights are there, and is what programs then take, or a little more.
#[test]
fn what_steps_take_is_known_before_the_weights_are_there() {
    let kv = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks: 512 };
    for (target_name, target) in targets() {
        for (model_name, config) in models() {
            let plan = models::build_plan(&config, &AnyShape).expect("a configuration");
            let plan = fuse(share_slots(restrict_outputs(plan), |_| true));
            let loaded = Loaded::new(target, &plan, &all_in(DeviceFormat::Q8_0), kv);
            let largest = StepShape { tokens: 2048, sequences: 4, outputs: 4 };
            let predicted = footprint(target, &plan, &[], kv, largest).activations;
            for shape in
                [largest, StepShape { tokens: 4, ..largest }, StepShape { tokens: 1, sequences: 1, outputs: 1 }]
            {
                let bytes = ops::lay_out(&loaded.plan(&plan), shape, StepRows::of_shape(shape)).bytes;
                assert!(bytes <= predicted, "{target_name} {model_name} {shape:?}: {bytes} of {predicted}");
            }
        }
    }
}

/// Each day records one program in three: every target and model, in a third of the formats. Where one of those has
/// other launches, all of them are recorded, because the file is replaced as a whole. A full run also finds a line of the
/// file that is of no program.
#[test]
fn launches_are_as_they_were() {
    let sample = Sample::of_today(3);
    let (found, _) = lines(sample);
    let expected: BTreeSet<_> = EXPECTED.lines().collect();
    let is_known = found.lines().all(|line| expected.contains(line));
    if is_known && (sample != Sample::ALL || found == EXPECTED) {
        return;
    }
    let (found, texts) = lines(Sample::ALL);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/launches");
    std::fs::create_dir_all(&folder).expect("a folder for what was found");
    std::fs::write(folder.join("launches.txt"), &found).expect("room for what was found");
    let expected: Vec<_> = EXPECTED.lines().collect();
    let others: Vec<_> = found.lines().filter(|line| !expected.contains(line)).collect();
    for name in others.iter().filter_map(|line| line.split(": ").next()).take(20) {
        std::fs::write(folder.join(name.replace(' ', "_")), &texts[name]).expect("room for what was found");
    }
    panic!(
        "{} of {} programs have other launches, as {:?}; what the first of them are is in {}, beside launches.txt as it \
         would be",
        others.len(),
        texts.len(),
        others.first(),
        folder.display()
    );
}
