//! `hotmetal inspect`: what is in a model, from its headers.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::Result;
use clap::{Args, ValueEnum};
use formats::{Checkpoint, TensorInfo, TokenizerSource};
use serde_json::{Map, Value, json};
use tensor::WeightFormat;

use crate::expert_names::of_any_expert;
use crate::load::find;
use crate::load::plan::{optimised, plan_of};
use crate::packing::folder::weight_bytes;
use crate::packing::receipt::receipt_of;
use crate::{output, units};

/// Show architecture, tensors, types, sizes, metadata and chat template of a model
#[derive(Args, Debug)]
pub(crate) struct InspectArgs {
    /// A directory, a .gguf or .safetensors file, or a cached ORG/REPO or ORG/REPO:FILE; without it, the built-in model
    #[arg(value_name = "MODEL")]
    model: Option<String>,

    /// How to print it
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = InspectFormat::Text)]
    output_format: InspectFormat,

    /// The ops that the model computes, fused as a backend gets them
    #[arg(long)]
    ops: bool,
}

/// How `inspect` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum InspectFormat {
    /// For people.
    Text,
    /// One object.
    Json,
}

/// Runs `hotmetal inspect`.
pub(crate) fn inspect(args: &InspectArgs) -> Result<()> {
    let (mut checkpoint, name) = find::open(args.model.as_deref(), true)?;
    checkpoint.sort_features();
    // A model that cannot run can still be looked at.
    let plan = plan_of(&checkpoint);
    if args.ops {
        let plan = plan?;
        let known: HashMap<_, _> = checkpoint.tensor_infos().map(|info| (info.name, info.format)).collect();
        let formats: Option<Vec<_>> = plan.weights.iter().map(|weight| *known.get(&weight.name)?).collect();
        output::stdout(&optimised(plan, &formats.unwrap_or_default(), &[]).to_string())?;
        return Ok(());
    }
    let mut tensors: Vec<_> = checkpoint.tensor_infos().collect();
    tensors.sort_by_cached_key(|tensor| natural(&tensor.name));
    let trouble = plan.err().map(|error| format!("{error:#}"));
    let refused: Vec<_> = types(&tensors).into_iter().filter(|t| t.format.is_none()).map(|t| t.name).collect();
    let trouble = match (trouble, refused.is_empty()) {
        (None, false) => Some(format!("weights of type {} are not computed yet", refused.join(", "))),
        (trouble, _) => trouble,
    };
    let receipt = args.model.as_deref().and_then(receipt);
    let text = match args.output_format {
        InspectFormat::Text => {
            let mut text = as_text(&checkpoint, &name, &tensors, trouble.as_deref())?;
            if let Some(receipt) = &receipt {
                receipt_as_text(&mut text, receipt)?;
            }
            text
        }
        InspectFormat::Json => {
            let mut object = as_json(&checkpoint, &name, &tensors, trouble.as_deref());
            object["receipt"] = receipt.unwrap_or_default();
            format!("{object}\n")
        }
    };
    output::stdout(&text)?;
    Ok(())
}

/// The receipt beside a file or folder that `quantize` wrote; none where it is of other bytes, or is no receipt.
fn receipt(model: &str) -> Option<Value> {
    let path = find::locate(model).ok()?;
    let receipt: Value = serde_json::from_slice(&fs::read(receipt_of(&path)).ok()?).ok()?;
    let len = if path.is_dir() { weight_bytes(&path).ok()? } else { fs::metadata(&path).ok()?.len() };
    if receipt["bytes_out"].as_u64() != Some(len) {
        output::note(&format!("`{}` is of another model than `{model}`", receipt_of(&path).display()));
        return None;
    }
    Some(receipt)
}

/// What was lost, and the tensors that lost most.
fn receipt_as_text(out: &mut String, receipt: &Value) -> std::fmt::Result {
    /// Tensors that are named.
    const MOST: usize = 5;
    section(out, "receipt")?;
    let text = |key: &str| printable_value(&receipt[key]);
    writeln!(out, "source        {}", text("source"))?;
    writeln!(out, "format        {}, {} scales", text("format"), text("scales"))?;
    let importance = &receipt["importance"];
    if importance.is_object() {
        let name = importance["name"].as_str().unwrap_or_default();
        let name = Path::new(name).file_name().map_or(name.into(), |name| name.to_string_lossy());
        let tokens = importance["tokens"].as_u64().map(|tokens| format!(", {tokens} tokens")).unwrap_or_default();
        writeln!(out, "importance    {}{tokens}", printable(&name))?;
    }
    let of = &receipt["evaluation"];
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    if of.is_object() {
        let against = &of["against"];
        let (perplexity, error) = (number(&of["perplexity"]), number(&of["perplexity_error"]));
        writeln!(out, "perplexity    {perplexity:.4} ± {error:.4}, the source {:.4}", number(&against["perplexity"]))?;
        let (divergence, error) = (number(&against["kl_divergence"]), number(&against["kl_divergence_error"]));
        writeln!(out, "divergence    {divergence:.6} ± {error:.6} from the source")?;
        writeln!(out, "agreement     {:.2} % of likeliest tokens", 100.0 * number(&against["same_likeliest"]))?;
    }
    let mut tensors: Vec<&Value> = receipt["tensors"].as_array().into_iter().flatten().collect();
    let lost = |tensor: &Value| number(&tensor["relative_rms_error"]);
    tensors.sort_by(|a, b| lost(b).total_cmp(&lost(a)));
    for tensor in tensors.into_iter().take(MOST) {
        let (name, to) = (printable_value(&tensor["name"]), printable_value(&tensor["to"]));
        writeln!(out, "lost          {:.3} % of {name}, in {to}", 100.0 * lost(tensor))?;
    }
    Ok(())
}

/// Sums over the tensors of one type.
struct TypeSum {
    name: &'static str,
    /// What it is computed as.
    format: Option<WeightFormat>,
    /// That, where it is expanded to it, and whether exactly.
    expanded_to: Option<(WeightFormat, bool)>,
    tensors: usize,
    bytes: u64,
}

fn types(tensors: &[TensorInfo]) -> Vec<TypeSum> {
    let mut sums: BTreeMap<_, TypeSum> = BTreeMap::new();
    for tensor in tensors {
        let (name, format) = (tensor.type_name, tensor.format);
        let expanded_to = tensor.expanded_to().map(|format| (format, tensor.exact));
        let sum = TypeSum { name, format, expanded_to, tensors: 0, bytes: 0 };
        // Weights of one type may be read as several formats: by their scales.
        let sum = sums.entry((name, format, tensor.exact)).or_insert(sum);
        sum.tensors += 1;
        sum.bytes = sum.bytes.saturating_add(tensor.bytes);
    }
    let mut sums: Vec<_> = sums.into_values().collect();
    sums.sort_by_key(|sum| std::cmp::Reverse(sum.bytes));
    sums
}

fn num_elements(tensor: &TensorInfo) -> u64 {
    tensor.shape.iter().fold(1, |n: u64, &d| n.saturating_mul(d))
}

fn num_parameters(tensors: &[TensorInfo]) -> u64 {
    tensors.iter().fold(0, |n: u64, tensor| n.saturating_add(num_elements(tensor)))
}

fn as_text(
    checkpoint: &Checkpoint,
    name: &str,
    tensors: &[TensorInfo],
    trouble: Option<&str>,
) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    let config = &checkpoint.config;
    let field = |key: &str| config.get(key).map_or_else(|| "?".to_owned(), printable_value);
    writeln!(out, "model         {}", printable(name))?;
    writeln!(out, "architecture  {}", field("model_type"))?;
    writeln!(out, "parameters    {}", units::count(num_parameters(tensors)))?;
    writeln!(out, "size          {}", units::bytes(checkpoint.total_bytes()))?;
    for sum in types(tensors) {
        let note = match (sum.format, sum.expanded_to) {
            (None, _) => " (not computed yet)".to_owned(),
            (_, Some((format, true))) => format!(" (read as {format}, which holds it exactly)"),
            (_, Some((format @ (WeightFormat::FP8 | WeightFormat::NVFP4), false))) => {
                format!(" (read as {format}, its scales rounded)")
            }
            (_, Some((format, false))) => format!(" (expanded to {format}, rounded)"),
            _ => String::new(),
        };
        writeln!(out, "  {:<11} {} in {} tensors{note}", sum.name, units::bytes(sum.bytes), sum.tensors)?;
    }
    writeln!(out, "tokenizer     {}", describe_tokenizer(&checkpoint.tokenizer))?;
    match trouble {
        None => writeln!(out, "runs here     yes")?,
        Some(reason) => writeln!(out, "runs here     no: {}", printable(reason))?,
    }
    section(&mut out, "configuration")?;
    key_values(&mut out, config)?;
    if let Some(quantization) = &checkpoint.quantization {
        section(&mut out, "quantisation")?;
        key_values(&mut out, quantization)?;
    }
    if checkpoint.generation_config.as_object().is_some_and(|map| !map.is_empty()) {
        section(&mut out, "generation configuration")?;
        key_values(&mut out, &checkpoint.generation_config)?;
    }
    if !checkpoint.metadata.is_empty() {
        section(&mut out, "metadata")?;
        for (key, value) in &checkpoint.metadata {
            writeln!(out, "{} = {}", printable(key), shortened(&printable(value)))?;
        }
    }
    section(&mut out, "tensors")?;
    let lines = stacked(tensors);
    let width = lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0).min(80);
    for Line { name, tensor, count, bytes } in lines {
        let shape = tensor.shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(" × ");
        let shape = count.map_or_else(|| shape.clone(), |count| format!("{count} × [{shape}]"));
        let size = units::bytes(bytes);
        writeln!(out, "{:<width$}  {:<6} {:>10}  {shape}", printable(&name), tensor.type_name, size)?;
    }
    for (ignored, count) in ignored_by_layer(checkpoint.ignored()) {
        match count {
            None => writeln!(out, "{} (ignored: no weight)", printable(&ignored))?,
            Some(count) => {
                writeln!(out, "{} (ignored: {count} tensors, no weights of this model)", printable(&ignored))?
            }
        }
    }
    for (title, template) in templates(checkpoint) {
        section(&mut out, &title)?;
        writeln!(out, "{}", printable_lines(&template))?;
    }
    Ok(out)
}

/// What is shown of a tensor, or of all experts of a layer that are called alike and are of one shape and type.
struct Line<'a> {
    name: String,
    /// The tensor, or the first of them.
    tensor: &'a TensorInfo,
    /// How many experts, where it stands for such.
    count: Option<usize>,
    bytes: u64,
}

/// The lines of all tensors, in the order of the first of each.
fn stacked(tensors: &[TensorInfo]) -> Vec<Line<'_>> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    let mut stacks: HashMap<_, usize> = HashMap::new();
    for tensor in tensors {
        let Some(name) = of_any_expert(&tensor.name) else {
            lines.push(Line { name: tensor.name.clone(), tensor, count: None, bytes: tensor.bytes });
            continue;
        };
        let alike = (name.clone(), tensor.type_name, &tensor.shape);
        let at = *stacks.entry(alike).or_insert(lines.len());
        match lines.get_mut(at) {
            Some(line) => {
                line.count = line.count.map(|count| count + 1);
                line.bytes = line.bytes.saturating_add(tensor.bytes);
            }
            None => lines.push(Line { name, tensor, count: Some(1), bytes: tensor.bytes }),
        }
    }
    lines
}

/// The names of tensors that are no weights; of a layer with more than one of them `model.layers.N.*`, and how many.
fn ignored_by_layer(names: &[String]) -> Vec<(String, Option<usize>)> {
    let layer_of = |name: &str| {
        let start = ["model.layers.", "blk."].into_iter().find(|start| name.starts_with(start))?;
        let number = name[start.len()..].split('.').next()?;
        Some(format!("{start}{number}.*"))
    };
    let mut counts: HashMap<String, usize> = HashMap::new();
    names.iter().filter_map(|name| layer_of(name)).for_each(|layer| *counts.entry(layer).or_default() += 1);
    let mut lines: Vec<(String, Option<usize>)> = Vec::new();
    for name in names {
        match layer_of(name).and_then(|layer| counts.get(&layer).map(|&count| (layer, count))) {
            Some((layer, count)) if count > 1 => {
                if counts.remove(&layer).is_some() {
                    lines.push((layer, Some(count)));
                }
            }
            None if layer_of(name).is_some() => {}
            _ => lines.push((name.clone(), None)),
        }
    }
    lines
}

fn as_json(checkpoint: &Checkpoint, name: &str, tensors: &[TensorInfo], trouble: Option<&str>) -> Value {
    let mut type_sums: Map<String, Value> = Map::new();
    for sum in types(tensors) {
        let computed_as = sum.format.map(WeightFormat::name);
        let computed = computed_as.is_some();
        let exact = sum.expanded_to.is_none_or(|(_, exact)| exact);
        // The largest comes first, and has the plain name.
        let key = match type_sums.contains_key(sum.name) {
            false => sum.name.to_owned(),
            true => format!("{} as {}", sum.name, computed_as.unwrap_or("nothing")),
        };
        let sums = json!({
            "tensors": sum.tensors, "bytes": sum.bytes, "computed": computed, "computed_as": computed_as, "exact": exact,
        });
        type_sums.insert(key, sums);
    }
    let tensors_json: Vec<_> = tensors
        .iter()
        .map(|tensor| {
            json!({
                "name": tensor.name, "source_name": tensor.source_name, "type": tensor.type_name,
                "shape": tensor.shape, "bytes": tensor.bytes, "file": tensor.file,
            })
        })
        .collect();
    json!({
        "model": name,
        "model_type": checkpoint.config.get("model_type"),
        "parameters": num_parameters(tensors),
        "bytes": checkpoint.total_bytes(),
        "types": type_sums,
        "runs_here": trouble.is_none(),
        "trouble": trouble,
        "config": checkpoint.config,
        "quantization": checkpoint.quantization,
        "generation_config": checkpoint.generation_config,
        "metadata": checkpoint.metadata.iter().map(|(k, v)| (k.clone(), json!(v))).collect::<Map<_, _>>(),
        "tokenizer": describe_tokenizer(&checkpoint.tokenizer),
        "chat_template": checkpoint.chat_templates.default,
        "tensors": tensors_json,
        "ignored": checkpoint.ignored(),
    })
}

fn templates(checkpoint: &Checkpoint) -> Vec<(String, String)> {
    let default = checkpoint.chat_templates.default.iter().map(|text| ("chat template".to_owned(), text.clone()));
    let named = checkpoint.chat_templates.named.iter();
    default.chain(named.map(|(name, text)| (format!("chat template `{}`", printable(name)), text.clone()))).collect()
}

fn describe_tokenizer(source: &TokenizerSource) -> String {
    match source {
        TokenizerSource::HuggingFace { tokenizer_json, .. } => {
            format!("tokenizer.json ({})", units::bytes(tokenizer_json.len() as u64))
        }
        TokenizerSource::Tekken { tekken_json } => {
            format!("tekken.json ({})", units::bytes(tekken_json.len() as u64))
        }
        TokenizerSource::VocabMerges { vocab_json, merges_txt, .. } => format!(
            "vocab.json ({}) and merges.txt ({})",
            units::bytes(vocab_json.len() as u64),
            units::bytes(merges_txt.len() as u64)
        ),
        TokenizerSource::SentencePiece { model, .. } => {
            format!("tokenizer.model ({})", units::bytes(model.len() as u64))
        }
        TokenizerSource::Gguf(vocabulary) => {
            let pre = vocabulary.pre.as_deref().map(|pre| format!(", pre-tokenizer {}", printable(pre)));
            let kind = printable(&vocabulary.model);
            format!(
                "in the GGUF: {kind}, {} tokens{}",
                units::count(vocabulary.tokens.len() as u64),
                pre.unwrap_or_default()
            )
        }
        TokenizerSource::None => "none".to_owned(),
    }
}

fn section(out: &mut String, title: &str) -> std::fmt::Result {
    writeln!(out, "\n── {title}")
}

fn key_values(out: &mut String, object: &Value) -> std::fmt::Result {
    for (key, value) in object.as_object().into_iter().flatten() {
        writeln!(out, "{} = {}", printable(key), shortened(&printable_value(value)))?;
    }
    Ok(())
}

fn printable_value(value: &Value) -> String {
    value.as_str().map_or_else(|| printable(&value.to_string()), printable)
}

/// Text from a file, without the control characters that would let it write over the terminal.
fn printable(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect::<Vec<_>>() } else { vec![c] }).collect()
}

fn printable_lines(text: &str) -> String {
    text.lines().map(printable).collect::<Vec<_>>().join("\n")
}

fn shortened(text: &str) -> String {
    const MOST: usize = 160;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}… ({} characters)", &text[..end], text.chars().count()),
        None => text.to_owned(),
    }
}

/// A key that sorts `layers.10` behind `layers.9`.
fn natural(name: &str) -> Vec<(String, u64)> {
    let part = |part: &str| (if part.parse::<u64>().is_ok() { "" } else { part }.to_owned(), part.parse().unwrap_or(0));
    name.split('.').map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_sort_by_number() {
        let mut names = ["a.10.x", "a.9.x", "a.b", "a.1.x"];
        names.sort_by_cached_key(|name| natural(name));
        assert_eq!(names, ["a.1.x", "a.9.x", "a.10.x", "a.b"]);
    }

    #[test]
    fn experts_are_a_line_for_a_layer_and_so_is_a_layer_that_is_ignored() {
        let info = |name: &str, shape: &[u64]| TensorInfo {
            name: name.to_owned(),
            source_name: name.to_owned(),
            type_name: "BF16",
            format: Some(WeightFormat::BF16),
            shape: shape.to_vec(),
            bytes: 10,
            file: "model.safetensors".to_owned(),
            exact: true,
        };
        let expert = |layer: u64, expert: u64, name: &str, shape: &[u64]| {
            info(&format!("model.layers.{layer}.mlp.experts.{expert}.{name}_proj.weight"), shape)
        };
        let mut tensors = vec![info("model.layers.0.mlp.gate.weight", &[3, 8])];
        for index in 0..3 {
            tensors.extend([expert(0, index, "down", &[8, 4]), expert(0, index, "up", &[4, 8])]);
        }
        tensors.push(expert(1, 0, "up", &[4, 8]));
        let lines = stacked(&tensors);
        let lines: Vec<_> = lines.iter().map(|line| (line.name.as_str(), line.count, line.bytes)).collect();
        assert_eq!(
            lines,
            [
                ("model.layers.0.mlp.gate.weight", None, 10),
                ("model.layers.0.mlp.experts.*.down_proj.weight", Some(3), 30),
                ("model.layers.0.mlp.experts.*.up_proj.weight", Some(3), 30),
                ("model.layers.1.mlp.experts.*.up_proj.weight", Some(1), 10),
            ]
        );
        let names = ["model.layers.0.rotary_emb.inv_freq", "model.layers.46.eh_proj.weight", "x", "model.layers.46.y"];
        let names = names.map(str::to_owned);
        let lines = ignored_by_layer(&names);
        let lines: Vec<_> = lines.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        assert_eq!(lines, [(names[0].as_str(), None), ("model.layers.46.*", Some(2)), ("x", None)]);
    }

    #[test]
    fn text_from_files_cannot_write_over_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(shortened(&"é".repeat(200)).chars().count(), 160 + "… (200 characters)".chars().count());
    }
}
