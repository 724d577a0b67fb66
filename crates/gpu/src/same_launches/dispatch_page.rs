//! `docs/performance/dispatch-gpu.md`: which kernel computes each op, at which rows, and why; as the lowering of steps
//! says it, for devices that are not there. A test holds the page to it, as `launches.txt` is held.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

const PAGE: &str = include_str!("../../../../docs/performance/dispatch-gpu.md");

/// The devices of the page, as [`targets`] and as people call them.
const DEVICES: [(&str, &str); 3] = [
    ("hopper", "Hopper: matrix instructions of four SIMD groups (compute capability 9.0, 132 multiprocessors)"),
    ("ampere", "Other NVIDIA GPUs: matrix instructions of a SIMD group (compute capability 8.0, 108 multiprocessors)"),
    ("metal", "Apple GPUs: matrices of 8 by 8 (10 cores)"),
];

/// The models of the page, and their names there. Each has ops that the others lack.
const MODELS: [(&str, &str); 3] = [("llama-8b", "dense"), ("qwen3-moe", "experts"), ("glm4-moe-lite", "latent")];

/// Rows of a step, each of a sequence of its own; then tokens of a prompt.
const DECODES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const PROMPTS: [usize; 2] = [512, 2048];

/// Why a kernel is taken, where it is. `*` is the format of its weights, and `#` a number that the shape decides.
const WHY: &[(&str, &str)] = &[
    ("embed_*", "the only kernel that reads rows of a table"),
    (
        "rms_norm_f32",
        "normalises once for all groups, because the projection behind it does not normalise several rows",
    ),
    (
        "norm_linear_rope_stream_*",
        "one row: memory bounds it, so copies stream weights through group memory; norm, \
      rotation and the write to the cache are in the same launch, because a launch boundary costs 2 µs and more",
    ),
    (
        "norm_linear_stream_*",
        "one row: memory bounds it, so copies stream weights through group memory; each group \
      normalises the row again, which is cheaper than a launch",
    ),
    ("linear_stream_*", "one row: memory bounds it, so copies stream weights through group memory"),
    (
        "norm_linear_rope_stream_*_m#",
        "two rows: as for one, because launches before and behind the product take longer than its second row",
    ),
    ("norm_linear_stream_*_m#", "the same without rotation"),
    ("norm_linear_glu_stream_*_m#", "the same of gate and up"),
    ("linear_stream_*_m#", "the same without a norm"),
    (
        "norm_linear_glu_stream_*",
        "one row: as `linear_stream`; gate and up are read by one launch, so that their \
      product is never written as two rows",
    ),
    (
        "norm_linear_*_m1",
        "one row without copies that stream: each group normalises the row again, which is cheaper \
      than a launch",
    ),
    ("norm_linear_glu_*_m1", "one row without copies that stream: as `norm_linear`, with gate and up in one launch"),
    ("linear_*_m1", "one row without copies that stream"),
    (
        "linear_*_m4",
        "rows for which no kernel on matrix instructions takes these weights: each weight is read for four \
      rows at a time",
    ),
    ("linear_glu_*_m#", "the same for gate and up in one launch"),
    (
        "linear_batch_*_t#",
        "2 to 32 rows: memory still bounds it, so weights are read once for all rows, and a team of \
      groups shares the input features",
    ),
    ("operand_rows_f32", "makes the f16 operand of `gemm_mma` once for all its groups"),
    ("gemm_mma_*_t#", "rows that `linear_batch` does not take, on the matrix instructions that all NVIDIA GPUs have"),
    ("gemm_mma_glu_*_t#", "the same for gate and up in one launch"),
    ("gemm_simdgroup_*_t#", "many rows: arithmetic bounds it, and Apple's matrices of 8 by 8 multiply fastest"),
    ("gemm_simdgroup_glu_*_t#", "the same for gate and up in one launch"),
    (
        "gemm_narrow_*_t#",
        "2 to 64 rows: memory bounds it, so tiles have such a height that all multiprocessors stream \
      equal shares of the weights",
    ),
    (
        "gemm_tall_*_t64",
        "33 to 64 rows of many output features: tiles of 256 rows of weights spend less time on adding \
      up what SIMD groups made",
    ),
    ("gemm_*_t#", "65 rows and more: arithmetic bounds it, so tiles of 128 or 256 rows share what they read"),
    ("gemm_glu_*_t#", "the same for gate and up in one launch"),
    ("activations_?", "makes the operand of a gemm once for all its groups, where the op ahead did not leave it"),
    ("norm_activations_?", "makes the operand of a gemm once for all its groups, and normalises rows on the way"),
    (
        "sum_norm_activations_?",
        "adds up the experts of each row where rows are normalised for the next gemm, which \
      saves a launch and a pass over the rows",
    ),
    ("rope_kv_write_f16", "rotates and writes to the cache in one launch, because latency bounds both"),
    ("attention_f16", "heads of a size that has no kernel on matrix instructions, or a device without them"),
    ("attention_f16_d#", "single rows over a cache in F16: matrix instructions take the query heads that share keys"),
    (
        "attention_f16_d#_wide",
        "the same for few rows, with eight SIMD groups, because there are more multiprocessors \
      than groups",
    ),
    (
        "rope_attention_f16_d#_wide",
        "rows that are alone in their sequences: rotation and the write to the cache are in the \
      launch of attention, which saves a boundary",
    ),
    (
        "rope_attention_cluster_d#",
        "one row or two in few groups, on Hopper: it asks for its tiles while the projections ahead still multiply, and \
      a cluster folds the splits through group memory",
    ),
    (
        "mla_cluster_*",
        "one row or two that attend to up to 1,024 positions, on Hopper: three launches take longer to begin and to end than \
      all that they read, so a cluster computes a few heads from their queries to their results",
    ),
    (
        "prompt_attention_d#",
        "many rows of a sequence on Hopper: arithmetic bounds it, so products run on matrix \
      instructions of four SIMD groups",
    ),
    (
        "attention_tiles_d#",
        "many rows of a sequence: arithmetic bounds it, so products run on matrix instructions of a \
      SIMD group",
    ),
    ("attention_prefill_d#", "many rows of a sequence: arithmetic bounds it, so products run on matrices of 8 by 8"),
    (
        "select_outputs_f32",
        "copies the rows whose logits are wanted, because the last layer's projections and the head compute only these",
    ),
    ("route_e#", "one row for each group: chooses its experts from the logits of the router"),
    ("route_rows_e#", "chooses the experts of some rows, and lists the rows of each expert for the launches behind it"),
    ("router_logits_*", "few rows: a SIMD group has outputs of the router for one row, because its weights are few"),
    ("router_logits_many_*", "more rows: each weight of the router is read for several rows at a time"),
    ("router_rows_*_?", "few rows on Hopper: the router, and the operand of the gated units, which read the same rows"),
    ("expert_glu_*", "weights of each chosen expert are read for each row by itself, where no other kernel takes them"),
    ("expert_down_*", "the same for the down projections, which are added up in the same launch"),
    (
        "expert_glu_rows_*",
        "several rows: rows that chose the same expert read its weights together; each group \
      chooses the experts for itself, because a launch for that would take longer",
    ),
    (
        "norm_expert_glu_stream_*",
        "few rows: memory bounds it, so copies stream the weights of the chosen experts through group memory; each group \
      normalises the row again",
    ),
    (
        "norm_expert_glu_stream_*_m#",
        "two rows: each streams the experts that it chose, without launches that put rows in order",
    ),
    ("route_expert_glu_stream_*_m#", "two rows: the router of both is in the same launch"),
    ("expert_down_stream_*_m#", "two rows: the same for the down projections"),
    (
        "route_expert_glu_stream_*",
        "one row: the router is in the same launch, because a launch boundary costs 2 µs and more",
    ),
    ("expert_down_stream_*", "few rows: copies stream the weights of the chosen experts, whose results are added up"),
    (
        "expert_mma_glu_*_t#",
        "few rows of many experts on Hopper: each SIMD group streams 16 rows of weights through a ring of its own, and \
      multiplies them by the rows of one expert on matrix instructions",
    ),
    ("expert_mma_*_t#", "the same for the down projections"),
    (
        "expert_mma_pair_*",
        "the same for both, and the choice of experts: each group's down projections are of the experts whose gated units it made, \
      so that it waits for few others, and weights come meanwhile",
    ),
    ("group_rows", "puts rows in the order of their experts, so that a tile has rows of one expert"),
    ("expert_gemm_glu_*_t#", "many rows of each expert on Hopper: tiles of one expert on matrix instructions"),
    ("expert_gemm_*_t#", "the same for the down projections, and for the heads of latent attention"),
    ("head_linear_*_m#", "a matrix for each head of latent attention, for few rows"),
    (
        "head_weights_turned_*",
        "prompts on Hopper: the heads' matrices of keys in F16 and turned, for a step alone, because a copy would take the \
      memory all the time",
    ),
    ("head_weights_*", "the same of the matrices of values, as they are"),
    (
        "expand_latent_d#_v#",
        "prompts on Hopper: makes keys and values of every head from the latent cache, because rows that are many then \
      need half as many products",
    ),
    (
        "expanded_attention_d#_v#",
        "attention of many rows of a sequence to these, on matrix instructions of four SIMD groups",
    ),
    (
        "fold_head_linear_*_m#",
        "the same, of what the splits of attention left: they are folded where they are multiplied, which saves a launch",
    ),
    (
        "latent_head_linear_*_m#",
        "few rows: the projection of each head's query, and in the same launch the norm, rotation and write of the latent row",
    ),
    ("latent_rope_write_f16", "many rows: the norm, rotation and write of latent rows in a launch of their own"),
    (
        "mla_attention_f16_h#",
        "all query heads of a group share the latent rows, so a group has 16 or 32 heads on matrix instructions",
    ),
    ("mla_attention_f16", "the same without matrix instructions: two heads a group"),
    ("mla_fold", "folds the splits of a cache where nobody behind it does"),
];

/// Whether `kernel` is one that `pattern` stands for: `*` is the name of a format, `#` a number, `?` any word.
fn is_of(pattern: &str, kernel: &str) -> bool {
    let Some(place) = pattern.find(['*', '#', '?']) else { return pattern == kernel };
    let (before, behind) = (&pattern[..place], &pattern[place + 1..]);
    let Some(rest) = kernel.strip_prefix(before) else { return false };
    let ends: Vec<usize> = match pattern.as_bytes()[place] {
        b'*' => {
            let names = DeviceFormat::ALL.map(DeviceFormat::name);
            names.iter().filter(|name| rest.starts_with(*name)).map(|name| name.len()).collect()
        }
        b'#' => (1..=rest.bytes().take_while(u8::is_ascii_digit).count()).collect(),
        _ => (1..=rest.len()).collect(),
    };
    ends.into_iter().any(|end| is_of(behind, &rest[end..]))
}

/// The pattern that stands for a kernel: the longest, because `expert_glu_*` stands for `expert_glu_rows_*` of no format.
fn pattern_of(kernel: &'static str) -> &'static str {
    let found = WHY.iter().map(|&(pattern, _)| pattern).filter(|pattern| is_of(pattern, kernel));
    found.max_by_key(|pattern| pattern.len()).unwrap_or_else(|| panic!("the page has no reason for `{kernel}`"))
}

/// `1 to 4, 512`: places in [`DECODES`], then in [`PROMPTS`], that follow each other are one range.
fn rows_in_words(places: &[usize]) -> String {
    let name = |place: usize| match DECODES.get(place) {
        Some(rows) => rows.to_string(),
        None => format!("a prompt of {}", PROMPTS[place - DECODES.len()]),
    };
    let are_beside = |a: &usize, b: &usize| a + 1 == *b && *b != DECODES.len();
    let ranges = places.chunk_by(are_beside).map(|range| match range {
        [one] => name(*one),
        [first, .., last] if *first < DECODES.len() => format!("{} to {}", name(*first), name(*last)),
        _ => "prompts".to_owned(),
    });
    ranges.collect::<Vec<_>>().join(", ")
}

/// What computes the ops of a step, by op: the kernels, or that the launch ahead computes it too.
fn kernels_of_step(loaded: &LoadedPlan<'_>, shape: StepShape) -> BTreeMap<&'static str, BTreeSet<String>> {
    let mut found: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
    let launches = StepRows::all_of_shape(shape, ops::latent::has_near(loaded)).flat_map(|rows| {
        let layout = ops::lay_out(loaded, shape.bucket(), rows);
        let regions = [(6, layout.bytes), (7, layout.step.bytes()), (8, layout.messages)];
        ops::lower(loaded, &layout, regions.map(|(kind, bytes)| nowhere(kind, bytes)), false)
    });
    for of_op in launches {
        let mut kernels: Vec<_> = of_op.launches.iter().map(|launch| pattern_of(launch.kernel)).collect();
        kernels.dedup();
        let kernels = match kernels.is_empty() {
            true => "in the launch ahead".to_owned(),
            false => kernels.iter().map(|kernel| format!("`{kernel}`")).collect::<Vec<_>>().join(" + "),
        };
        found.entry(loaded.plan.ops[of_op.op].name()).or_default().insert(kernels);
    }
    found
}

/// The places of the rows at which an op of a model in a format has these kernels.
type ByRows = BTreeMap<String, Vec<usize>>;

/// The table of a device.
fn table(target: Target) -> (String, BTreeSet<&'static str>) {
    // By op and what it has at all rows: the models and formats that it has so.
    let mut lines: BTreeMap<(&'static str, ByRows), BTreeSet<(usize, usize)>> = BTreeMap::new();
    for (model, (name, _)) in MODELS.into_iter().enumerate() {
        let (_, config) = models().into_iter().find(|(known, _)| *known == name).expect("a model");
        let textbook = models::build_plan(&config, &AnyShape).expect("a configuration");
        let fused = fuse(share_slots(restrict_outputs(textbook), |_| true));
        let kv = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks: 512 };
        for (format, device_format) in DeviceFormat::ALL.into_iter().enumerate() {
            let loaded = Loaded::new(target, &fused, &all_in(device_format), kv);
            let loaded = loaded.plan(&fused);
            let decodes = DECODES.map(|rows| StepShape { tokens: rows, sequences: rows, outputs: rows });
            let prompts = PROMPTS.map(|rows| StepShape { tokens: rows, sequences: 1, outputs: 1 });
            let mut ops: BTreeMap<&'static str, ByRows> = BTreeMap::new();
            for (place, shape) in decodes.into_iter().chain(prompts).enumerate() {
                for (op, kernels) in kernels_of_step(&loaded, shape) {
                    for kernels in kernels {
                        ops.entry(op).or_default().entry(kernels).or_default().push(place);
                    }
                }
            }
            for (op, by_rows) in ops {
                lines.entry((op, by_rows)).or_default().insert((model, format));
            }
        }
    }
    let mut out = String::from("| op | models | weights | rows | kernels |\n| --- | --- | --- | --- | --- |\n");
    let mut kernels_seen = BTreeSet::new();
    for ((op, by_rows), here) in &lines {
        let mut by_formats: BTreeMap<Vec<usize>, Vec<&str>> = BTreeMap::new();
        for (model, (_, called)) in MODELS.iter().enumerate() {
            let formats: Vec<_> = here.iter().filter(|(own, _)| *own == model).map(|&(_, format)| format).collect();
            if !formats.is_empty() {
                by_formats.entry(formats).or_default().push(called);
            }
        }
        let mut by_rows: Vec<_> = by_rows.iter().collect();
        by_rows.sort_by_key(|(_, places)| (*places).clone());
        for (formats, models) in by_formats {
            let names = |format: &usize| DeviceFormat::ALL[*format].name();
            let weights = match formats.len() == DeviceFormat::ALL.len() {
                true => "all".to_owned(),
                false => formats.iter().map(names).collect::<Vec<_>>().join(", "),
            };
            for (kernels, places) in &by_rows {
                let (models, rows) = (models.join(", "), rows_in_words(places));
                writeln!(out, "| {op} | {models} | {weights} | {rows} | {kernels} |").expect("a text");
                kernels_seen.extend(
                    WHY.iter()
                        .map(|(pattern, _)| *pattern)
                        .filter(|pattern| kernels.split(" + ").any(|kernel| kernel == format!("`{pattern}`"))),
                );
            }
        }
    }
    (out, kernels_seen)
}

const INTRODUCTION: &str = "\
# Which kernel computes what on GPUs

A test of `gpu` writes this page (`same_launches/dispatch_page.rs`) and holds it to what steps are lowered to: do not edit
it. `hotmetal plan --explain-dispatch` shows the same of a model on the device at hand, and `hotmetal tune` finds where
another kernel is faster there.

In names of kernels, `*` is the format of the weights, and `#` a size of tiles or heads that the shape decides. Models: dense
is Llama-3.1-8B, experts Qwen3-30B-A3B, latent GLM-4.7-Flash, with caches in F16. All matrices are in one format, routers too,
which files have in F32 or BF16. Rows up to 64 are a step of so many sequences; a prompt's last layer computes one row from
attention on, so prompts appear among the kernels of one row, too.
";

#[test]
fn the_page_is_what_steps_are_lowered_to() {
    let mut page = INTRODUCTION.to_owned();
    let mut seen = BTreeSet::new();
    for (target_name, called) in DEVICES {
        let (_, target) = targets().into_iter().find(|(name, _)| *name == target_name).expect("a target");
        let (table, kernels) = table(target);
        write!(page, "\n## {called}\n\n{table}").expect("a text");
        seen.extend(kernels);
    }
    page.push_str("\n## Why\n\n| kernel | is taken because |\n| --- | --- |\n");
    for (pattern, why) in WHY {
        assert!(seen.contains(pattern), "no step of the page has a kernel `{pattern}`: take its reason out");
        writeln!(page, "| `{pattern}` | {why} |").expect("a text");
    }
    if page == PAGE {
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/launches");
    std::fs::create_dir_all(&folder).expect("a folder for what was found");
    std::fs::write(folder.join("dispatch-gpu.md"), &page).expect("room for what was found");
    panic!("`docs/performance/dispatch-gpu.md` is stale: take the new one from {}", folder.display());
}
