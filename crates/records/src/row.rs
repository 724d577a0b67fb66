//! A row of a record: one quantity.

use std::fmt::Write;

use serde_json::{Map, Value};

use crate::Spread;

/// A quantity. What nobody measured is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// The quantity, as `bench table` names it: `llama-3.1-8b q8_0 decode @8192`.
    pub name: String,
    /// `tokens/s`, `ms`, `µs`, …
    pub unit: String,
    /// The median of the repetitions.
    pub value: Option<f64>,
    /// The repetition that did worst.
    pub worst: Option<f64>,
    /// The repetition that did best.
    pub best: Option<f64>,
    /// Each repetition, in `unit`; empty where only the limits are known.
    pub samples: Vec<f64>,
    /// Others that did the same in turns: program and figure.
    pub peers: Vec<(String, f64)>,
    /// The builds of those: program and version.
    pub peer_versions: Vec<(String, String)>,
    /// The bytes of the weights that they read: program and bytes.
    pub peer_weight_bytes: Vec<(String, f64)>,
    /// Of the ceiling that was measured beside it; 1 is all of it.
    pub roofline_share: Option<f64>,
    /// The least that counts.
    pub must: Option<f64>,
    /// What is wanted.
    pub goal: Option<f64>,
    /// In place of all of the above, for results that are a table of their own.
    pub columns: Vec<(String, f64)>,
}

impl Row {
    /// Whether a lower figure is a better one: of times, not of rates.
    pub fn less_is_better(&self) -> bool {
        let unit = self.unit.split(' ').next().unwrap_or_default();
        ["s", "ms", "µs", "us", "ns", "bytes", "MiB", "GiB"].contains(&unit)
    }

    /// The figure with its spread, where there is one figure.
    pub fn spread(&self) -> Option<Spread> {
        if let Some(spread) = Spread::of(&self.samples) {
            return Some(spread);
        }
        let limits = self.worst.zip(self.best);
        let median = self.value.or_else(|| limits.map(|(worst, best)| f64::midpoint(worst, best)))?;
        let (worst, best) = limits.unwrap_or((median, median));
        Some(Spread { median, range: (worst.min(best), worst.max(best)), deviation: None })
    }

    /// Reads a row of what `command` measured. An error says what is wrong with it.
    pub(crate) fn read(row: &Map<String, Value>, command: &str) -> Result<Self, String> {
        let number = |name: &str| row.get(name).and_then(Value::as_f64);
        let text = |name: &str| row.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        if row.contains_key("name") {
            return Self::named(row);
        }
        // On GPUs the host's threads compute nothing.
        let threads = match (text("device").as_str(), number("threads")) {
            ("cpu" | "", Some(threads)) if threads > 1.0 => format!(", {threads} threads"),
            ("cpu" | "", Some(_)) => ", 1 thread".to_owned(),
            _ => String::new(),
        };
        match (row.get("tokens_per_s"), row.get("first_token_ms"), text("kind").as_str()) {
            (Some(rate), ..) => Ok(Self::of_bench(row, rate, &threads, command)),
            (None, Some(time), _) => Ok(Self {
                name: format!(
                    "start to first token, {} {}, {}{threads}",
                    text("model"),
                    text("format"),
                    text("file_cache")
                ),
                unit: "ms".to_owned(),
                value: time["median"].as_f64(),
                worst: time["max"].as_f64(),
                best: time["min"].as_f64(),
                samples: row.get("samples").map(numbers_in).unwrap_or_default(),
                ..Self::default()
            }),
            (None, None, "peak") => Ok(Self {
                name: format!("{}, {}{threads}", text("class"), text("instruction")),
                unit: "TOP/s".to_owned(),
                value: number("ops_per_s").map(|rate| rate / 1e12),
                ..Self::default()
            }),
            (None, None, "cost") => {
                Ok(Self { name: text("what"), unit: "µs".to_owned(), value: number("us"), ..Self::default() })
            }
            (None, None, kind) if row.contains_key("bandwidth_gb_s") => Ok(Self {
                name: format!(
                    "{kind} {} of {} bytes{threads}",
                    text("way"),
                    number("buffer_bytes").unwrap_or_default()
                ),
                unit: "GB/s".to_owned(),
                value: number("bandwidth_gb_s"),
                ..Self::default()
            }),
            _ => Err("this is no row of `bench`, `bench table`, `bench --startup` or `bench --roofline`".to_owned()),
        }
    }

    /// A row of `bench table`, or one that was written by hand.
    fn named(row: &Map<String, Value>) -> Result<Self, String> {
        // `bench table` keeps what `bench` has under `row`.
        let number = |name: &str| row.get(name).or_else(|| row.get("row")?.get(name)).and_then(Value::as_f64);
        let text = |name: &str| row.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let numbers = |name: &str| -> Vec<(String, f64)> {
            let members = row.get(name).and_then(Value::as_object).into_iter().flatten();
            members.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect()
        };
        let texts = |name: &str| -> Vec<(String, String)> {
            let members = row.get(name).and_then(Value::as_object).into_iter().flatten();
            members.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
        };
        let mut peers = numbers("peers");
        peers.extend(number("llama_cpp").map(|figure| ("llama.cpp".to_owned(), figure)));
        let read = Self {
            name: text("name"),
            unit: text("unit"),
            value: number("value"),
            worst: number("worst"),
            best: number("best"),
            // `bench table` has the samples of the row that it holds, which are in tokens per second.
            samples: row.get("samples").map(numbers_in).unwrap_or_default(),
            peers,
            peer_versions: texts("peer_versions"),
            peer_weight_bytes: numbers("peer_weight_bytes"),
            roofline_share: number("roofline_share"),
            must: number("must"),
            goal: number("goal"),
            columns: numbers("columns"),
        };
        if read.unit.is_empty() {
            return Err(format!("`{}` has no unit", read.name));
        }
        let has_figure =
            read.value.is_some() || read.worst.is_some() && read.best.is_some() || !read.columns.is_empty();
        if !has_figure {
            return Err(format!("`{}` has no `value`, no `worst` with `best`, and no `columns`", read.name));
        }
        Ok(read)
    }

    /// A row of `bench -o json`, under the name that `bench table` has for it.
    fn of_bench(row: &Map<String, Value>, rate: &Value, threads: &str, command: &str) -> Self {
        let number = |name: &str| row.get(name).and_then(Value::as_f64);
        let text = |name: &str| row.get(name).and_then(Value::as_str).unwrap_or_default();
        let (batch, depth) = (number("batch").unwrap_or(1.0), number("depth").unwrap_or(0.0));
        let test = text("test");
        let mut what = match (test.strip_prefix("tg"), test.strip_prefix("pp")) {
            (Some(_), _) if batch > 1.0 => format!("batch {batch}"),
            // What `bench` generates without a flag goes without saying.
            (Some("128"), _) => "decode".to_owned(),
            (Some(tokens), _) => format!("decode of {tokens}"),
            (_, Some(tokens)) => format!("prefill {tokens}"),
            _ => test.to_owned(),
        };
        if depth > 0.0 {
            let _ = write!(what, " @{depth}");
        }
        let is_step = what.starts_with("batch");
        let in_unit = |rate: f64| if is_step { 1e3 * batch / rate } else { rate };
        let figure = |name: &str| rate[name].as_f64().map(in_unit);
        let clock = if text("clock") == "cpu" { ", processor time" } else { "" };
        // What a user gets without flags is one quantity, whichever instruction set that is on the day.
        let words = || command.split(' ');
        let mut flags: String = ["--no-repack", "--batch-invariant"]
            .into_iter()
            .filter(|flag| words().any(|word| word == *flag))
            .map(|flag| format!(", {flag}"))
            .collect();
        let without = words().zip(words().skip(1)).filter(|(word, _)| *word == "--without").map(|(_, what)| what);
        for what in without.chain(words().filter_map(|word| word.strip_prefix("--without="))) {
            let _ = write!(flags, ", without {what}");
        }
        if words().any(|word| word.starts_with("--isa")) {
            let isa = row.get("variants").and_then(|variants| variants["isa"].as_str());
            let _ = write!(flags, ", {}", isa.unwrap_or_default());
        }
        Self {
            name: format!("{} {} {what}{flags}{threads}{clock}", text("model"), text("format")),
            unit: if is_step { "ms a step" } else { "tokens/s" }.to_owned(),
            value: figure("median"),
            worst: figure("min"),
            best: figure("max"),
            samples: row.get("samples").map(numbers_in).unwrap_or_default().into_iter().map(in_unit).collect(),
            roofline_share: number("roofline_share"),
            ..Self::default()
        }
    }
}

/// The numbers of a list.
fn numbers_in(list: &Value) -> Vec<f64> {
    list.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}
