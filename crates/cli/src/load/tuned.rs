//! Tables of what was measured best on a device: those that come with the program, and those that `hotmetal tune` leaves.
//!
//! A table only says which of the ways that a backend offers is taken, so an old one can be slow and cannot be wrong.
//! One that this machine measured is of one driver and one text of the kernels; where either has changed it is passed
//! over with a warning, because another way may be faster by now.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use backend::{Backend, Tuned, Tuning};
use serde::{Deserialize, Serialize};

use crate::files;

/// Tables that come with the program: of a device, whatever its driver. A way that kernels no longer have is passed over.
const SHIPPED: [&str; 2] =
    [include_str!("tuned_tables/nvidia-h100.json"), include_str!("tuned_tables/nvidia-h200.json")];

/// What the kernels of processors are called, before their version.
const CPU_KERNELS: &str = "cpu ";

/// The only version of the form that there is.
const SCHEMA: u32 = 1;

/// Where the choices of a device's kernels come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum TunedFrom {
    /// The program's own table of the device, and then the one that was measured on this machine.
    #[default]
    Usual,
    /// Nowhere: cost models choose.
    Nowhere,
    /// This file.
    File(PathBuf),
    /// What a tuner tries.
    Tried(Tuned),
}

impl TunedFrom {
    /// `auto`, `off`, or a file.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Usual),
            "off" => Ok(Self::Nowhere),
            "" => Err("expected auto, off or a file that `hotmetal tune --export` wrote".to_owned()),
            file => Ok(Self::File(PathBuf::from(file))),
        }
    }
}

/// What was measured on one device.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Table {
    schema: u32,
    /// What the device is to a person: another card of the same name and size is the same device.
    pub(crate) device: String,
    /// The versions of what stands between the program and the device.
    pub(crate) driver: Option<String>,
    /// The hash of the kernels' text; of processors the version of the program that has them.
    pub(crate) kernels: String,
    pub(crate) rows: Vec<Row>,
}

/// One choice, and what it gave.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Row {
    /// The kernel and the shape it is launched for.
    pub(crate) key: String,
    /// How it is launched.
    pub(crate) choice: String,
    /// How it was launched before.
    pub(crate) instead_of: String,
    /// What was computed when it was measured: `qwen2.5-0.5b q8_0, 1 row at 1024`.
    pub(crate) measured_with: String,
    /// How much shorter a whole step became, in percent.
    pub(crate) step_gain_percent: f64,
}

impl Table {
    /// An empty table of the device that `gpu` is.
    pub(crate) fn of(gpu: &gpu::GpuBackend) -> Self {
        let device = gpu.device();
        Self {
            schema: SCHEMA,
            device: gpu.untuned_description(),
            driver: device.driver.clone(),
            kernels: kernels(),
            rows: vec![],
        }
    }

    /// An empty table of the processors that `cpu` computes with, where nothing is tuned.
    pub(crate) fn of_cpu(cpu: &cpu::CpuBackend) -> Self {
        let (device, kernels) =
            (cpu.device().description.clone(), format!("{CPU_KERNELS}{}", env!("CARGO_PKG_VERSION")));
        Self { schema: SCHEMA, device, driver: None, kernels, rows: vec![] }
    }

    /// The file of the table that is measured on this machine for this device.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        let name = match self.kernels.starts_with(CPU_KERNELS) {
            // Of each instruction set and number of threads.
            true => records::machine_name("cpu", &self.device.replace(',', " "), None),
            false => records::machine_name("gpu", &self.device, None),
        };
        Some(files::cache_folder()?.join("tuned").join(format!("{name}.json")))
    }

    fn parse(text: &str) -> Result<Self> {
        let table: Self = serde_json::from_str(text).context("it is no table of `hotmetal tune`")?;
        if table.schema != SCHEMA {
            bail!("its form is version {}, and this program knows {SCHEMA}", table.schema);
        }
        Ok(table)
    }

    /// The table in the file at `path`, which a user names.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        Self::parse_file(path, files::read_text)
    }

    /// The table in the cache, at `path`.
    pub(crate) fn read_kept(path: &Path) -> Result<Self> {
        Self::parse_file(path, files::read_own_text)
    }

    fn parse_file(path: &Path, read: fn(&Path, &str, u64) -> Result<String>) -> Result<Self> {
        let text = read(path, "the table of tuned kernels", files::RESULT_BYTES_MAX)?;
        Self::parse(&text).with_context(|| format!("cannot use `{}`", path.display()))
    }

    /// Writes it to the file at `path`, which a user names, whole or not at all.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("cannot make the folder `{}`", folder.display()))?;
        }
        files::write(path, self.text()?.as_bytes())
    }

    /// Keeps it in the cache, at `path`.
    pub(crate) fn keep(&self, path: &Path) -> Result<()> {
        files::write_own(path, self.text()?.as_bytes())
    }

    fn text(&self) -> Result<String> {
        let text = serde_json::to_string_pretty(self).context("a table is JSON")?;
        Ok(format!("{text}\n"))
    }

    /// Takes over the rows of `other`, which replace those of the same key.
    pub(crate) fn merge(&mut self, other: &[Row]) {
        let mut rows: BTreeMap<_, _> = self.rows.drain(..).map(|row| (row.key.clone(), row)).collect();
        rows.extend(other.iter().map(|row| (row.key.clone(), row.clone())));
        self.rows = rows.into_values().collect();
    }

    /// Why it says nothing of the device that `now` is of, if so.
    fn why_stale(&self, now: &Self) -> Option<String> {
        let differs = |what: &str, then: &str, now: &str| Some(format!("it is of {what} {then}, and this is {now}"));
        let none = || "none".to_owned();
        if self.device != now.device {
            return differs("the device", &self.device, &now.device);
        }
        if self.driver != now.driver {
            let [then, now] = [&self.driver, &now.driver].map(|driver| driver.clone().unwrap_or_else(none));
            return differs("the driver", &then, &now);
        }
        if self.kernels != now.kernels {
            return differs("the kernels", &self.kernels, &now.kernels);
        }
        None
    }

    /// Whether both are of one device, driver and text of the kernels.
    pub(crate) fn is_of_the_same(&self, other: &Self) -> bool {
        self.why_stale(other).is_none()
    }

    /// The same without its rows.
    pub(crate) fn without_rows(&self) -> Self {
        Self { rows: vec![], ..self.clone() }
    }

    fn choices(&self) -> impl Iterator<Item = (String, String)> {
        self.rows.iter().map(|row| (row.key.clone(), row.choice.clone()))
    }
}

/// The hash of the kernels' text, as a table has it.
fn kernels() -> String {
    format!("{:016x}", gpu::kernel_source::source_hash())
}

/// The choices for `gpu`; none where there is no table.
pub(crate) fn for_gpu(gpu: &gpu::GpuBackend, from: &TunedFrom) -> Result<Tuned> {
    choices_of(|| Table::of(gpu), from)
}

/// The choices for processors; none where there is no table.
pub(crate) fn for_cpu(cpu: &cpu::CpuBackend, from: &TunedFrom) -> Result<Tuned> {
    choices_of(|| Table::of_cpu(cpu), from)
}

/// The choices for the device that an empty table is of.
fn choices_of(empty: impl FnOnce() -> Table, from: &TunedFrom) -> Result<Tuned> {
    /// A table is kept for as long as the program runs, and read once.
    static READ: Mutex<Vec<(String, TunedFrom, Tuned)>> = Mutex::new(Vec::new());
    match from {
        TunedFrom::Nowhere => return Ok(Tuned::NONE),
        TunedFrom::Tried(tuned) => return Ok(*tuned),
        TunedFrom::Usual | TunedFrom::File(_) => {}
    }
    let now = empty();
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((.., tuned)) = read.iter().find(|(device, read, _)| *device == now.device && read == from) {
        return Ok(*tuned);
    }
    let choices = choices_for(&now, from)?;
    let tuned = match choices.is_empty() {
        true => Tuned::NONE,
        false => Tuned::by(Box::leak(Box::new(Tuning::new(choices)))),
    };
    read.push((now.device, from.clone(), tuned));
    Ok(tuned)
}

fn choices_for(now: &Table, from: &TunedFrom) -> Result<BTreeMap<String, String>> {
    if let TunedFrom::File(path) = from {
        let table = Table::read(path)?;
        if let Some(why) = table.why_stale(now) {
            bail!("`{}` cannot be used: {why}; `hotmetal tune` measures again", path.display());
        }
        return Ok(table.choices().collect());
    }
    let shipped = SHIPPED.iter().filter_map(|text| Table::parse(text).ok()).filter(|table| table.device == now.device);
    let mut choices: BTreeMap<_, _> = shipped.flat_map(|table| table.choices().collect::<Vec<_>>()).collect();
    let Some(path) = now.file().filter(|path| path.exists()) else { return Ok(choices) };
    match Table::read_kept(&path) {
        Ok(table) => match table.why_stale(now) {
            None => choices.extend(table.choices()),
            Some(why) => tracing::warn!("`{}` is passed over: {why}; `hotmetal tune` measures again", path.display()),
        },
        Err(error) => tracing::warn!("the table of tuned kernels is passed over: {error:#}"),
    }
    Ok(choices)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &str, choice: &str) -> Row {
        Row {
            key: key.to_owned(),
            choice: choice.to_owned(),
            instead_of: "x".to_owned(),
            measured_with: "m".to_owned(),
            step_gain_percent: 1.5,
        }
    }

    fn table(rows: Vec<Row>) -> Table {
        let (device, kernels) = ("a GPU".to_owned(), kernels());
        Table { schema: SCHEMA, device, driver: Some("driver 1".to_owned()), kernels, rows }
    }

    #[test]
    fn a_table_is_read_as_it_was_written_and_rows_of_one_key_replace_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/table.json");
        let mut written = table(vec![row("a", "1"), row("b", "1")]);
        written.merge(&[row("b", "2"), row("c", "3")]);
        written.write(&path).unwrap();
        let read = Table::read(&path).unwrap();
        assert_eq!(read, written);
        let choices: Vec<_> = read.choices().map(|(key, choice)| key + &choice).collect();
        assert_eq!(choices, ["a1", "b2", "c3"]);
    }

    #[test]
    fn what_is_no_table_or_of_something_else_is_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.json");
        let error = |table: &Table, now: &Table| {
            table.write(&path).unwrap();
            choices_for(now, &TunedFrom::File(path.clone())).unwrap_err().to_string()
        };
        let now = table(vec![]);
        let of = |change: fn(&mut Table)| {
            let mut other = table(vec![row("a", "1")]);
            change(&mut other);
            error(&other, &now)
        };
        let device = of(|table| table.device = "another".to_owned());
        assert!(device.contains("it is of the device another, and this is a GPU; `hotmetal tune`"), "{device}");
        let driver = of(|table| table.driver = None);
        assert!(driver.contains("it is of the driver none, and this is driver 1"), "{driver}");
        let kernels = of(|table| table.kernels = "0".to_owned());
        assert!(kernels.contains("it is of the kernels 0, and this is "), "{kernels}");
        let choices = {
            table(vec![row("a", "1")]).write(&path).unwrap();
            choices_for(&now, &TunedFrom::File(path.clone())).unwrap()
        };
        assert_eq!(choices.into_iter().collect::<Vec<_>>(), [("a".to_owned(), "1".to_owned())]);
        for (text, says) in [("{", "no table of `hotmetal tune`"), ("{\"schema\": 1}", "missing field `device`")] {
            std::fs::write(&path, text).unwrap();
            let error = format!("{:#}", Table::read(&path).unwrap_err());
            assert!(error.contains(says) && error.contains("table.json"), "{error}");
        }
        let later = Table { schema: 2, ..table(vec![]) };
        later.write(&path).unwrap();
        let error = format!("{:#}", Table::read(&path).unwrap_err());
        assert!(error.contains("version 2, and this program knows 1"), "{error}");
    }

    #[test]
    fn processors_have_a_table_for_each_number_of_threads() {
        let of = |threads| {
            let options = cpu::CpuOptions { threads: Some(threads), pin: false, ..cpu::CpuOptions::default() };
            Table::of_cpu(&cpu::CpuBackend::new(options).unwrap())
        };
        let (one, two) = (of(1), of(2));
        assert_ne!(one.file(), two.file());
        assert!(!one.is_of_the_same(&two) && one.is_of_the_same(&of(1)));
        let name = two.file().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
        assert!(name.ends_with("-2-threads.json"), "{name}");
        let older = Table { kernels: "cpu 0.0.1".to_owned(), ..two.clone() };
        assert!(older.why_stale(&two).unwrap().contains("the kernels cpu 0.0.1"));
    }

    #[test]
    fn flags_name_a_table() {
        assert_eq!(TunedFrom::parse("auto"), Ok(TunedFrom::Usual));
        assert_eq!(TunedFrom::parse("off"), Ok(TunedFrom::Nowhere));
        assert_eq!(TunedFrom::parse("t.json"), Ok(TunedFrom::File("t.json".into())));
        assert!(TunedFrom::parse("").is_err());
    }

    #[test]
    fn tables_that_come_with_the_program_are_tables() {
        for text in SHIPPED {
            let table = Table::parse(text).unwrap();
            assert!(!table.rows.is_empty() && table.rows.iter().all(|row| row.step_gain_percent > 0.0));
        }
    }
}
