//! What a device gives at most, measured once and kept: what its memory reads, what comes between two kernels, what its
//! instructions compute. Predictions and the cost models of GPUs use it; a benchmark measures beside each run and only
//! refreshes it here.
//!
//! A file is of one device, driver and program, and of processors with so many threads and one instruction set. Where one
//! of these has changed, or the file cannot be read, it is passed over with a warning, and the device is measured anew.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use backend::{Backend, DeviceInfo};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::files;

/// The only version of the form that there is.
const SCHEMA: u32 = 1;

/// A figure, and when it was measured.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Measured {
    pub(crate) value: f64,
    /// Time of the measurement, RFC 3339 in UTC; empty for a figure that is new and in no file yet.
    pub(crate) at: String,
}

impl Measured {
    /// Measured now.
    pub(crate) fn now(value: f64) -> Self {
        Self { value, at: OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default() }
    }

    /// Whether it is a figure that a device can have.
    fn is_sound(&self) -> bool {
        self.value.is_finite() && self.value > 0.0
    }
}

/// What is computed with one class of instructions.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct KeptPeak {
    pub(crate) class: String,
    pub(crate) instruction: String,
    pub(crate) ops_per_s: Measured,
}

/// Which device, and measured by which program: facts of another are worth nothing.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct DeviceKey {
    /// What the device is to a person, or the name of the processor.
    pub(crate) device: String,
    /// The versions of what stands between the program and the device.
    pub(crate) driver: Option<String>,
    /// The version of the program, and on GPUs the hash of the kernels' text, which measures.
    pub(crate) program: String,
    /// Processors: threads that compute at once, and their instruction set.
    pub(crate) threads: Option<usize>,
    pub(crate) isa: Option<String>,
}

/// The measured limits of one device.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct DeviceFacts {
    schema: u32,
    #[serde(flatten)]
    pub(crate) key: DeviceKey,
    /// Bytes per second that are read of a buffer which no cache holds.
    pub(crate) read_bandwidth: Option<Measured>,
    /// Seconds from one kernel of a recorded step to the next, where a device has such steps.
    pub(crate) boundary: Option<Measured>,
    pub(crate) peaks: Vec<KeptPeak>,
}

impl DeviceKey {
    /// Of a GPU, whatever its options.
    pub(crate) fn of_gpu(gpu: &gpu::GpuBackend) -> Self {
        let kernels = gpu::kernel_source::source_hash();
        Self {
            device: gpu.untuned_description(),
            driver: gpu.device().driver.clone(),
            program: format!("{} {kernels:016x}", env!("CARGO_PKG_VERSION")),
            threads: None,
            isa: None,
        }
    }

    /// Of processors: of `threads` of them, with the instruction set of that name.
    pub(crate) fn of_cpu(device: &DeviceInfo, threads: usize, isa: &str) -> Self {
        // The rest of the description is threads and instruction set.
        let name = device.description.split(',').next().unwrap_or_default();
        Self {
            device: name.to_owned(),
            driver: device.driver.clone(),
            program: env!("CARGO_PKG_VERSION").to_owned(),
            threads: Some(threads),
            isa: Some(isa.to_owned()),
        }
    }

    /// The file of the facts of this device.
    fn file(&self) -> Option<PathBuf> {
        let name = match (&self.threads, &self.isa) {
            (Some(threads), Some(isa)) => {
                let plural = if *threads == 1 { "" } else { "s" };
                format!("{}-{threads}-thread{plural}-{isa}", records::machine_name("cpu", &self.device, None))
            }
            _ => records::machine_name("gpu", &self.device, None),
        };
        Some(files::cache_folder()?.join("devices").join(format!("{name}.json")))
    }

    /// Why facts of this device say nothing of the one that `now` is, if so.
    fn why_stale(&self, now: &Self) -> Option<String> {
        let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "none".to_owned());
        let count = |threads: Option<usize>| threads.map_or_else(|| "none".to_owned(), |threads| threads.to_string());
        let parts = [
            ("the device", self.device.clone(), now.device.clone()),
            ("the driver", or_none(&self.driver), or_none(&now.driver)),
            ("the program", self.program.clone(), now.program.clone()),
            ("the number of threads", count(self.threads), count(now.threads)),
            ("the instruction set", or_none(&self.isa), or_none(&now.isa)),
        ];
        let (what, then, now) = parts.into_iter().find(|(_, then, now)| then != now)?;
        Some(format!("it is of {what} {then}, and this is {now}"))
    }
}

impl DeviceFacts {
    /// Nothing, of this device.
    pub(crate) fn nothing_of(key: DeviceKey) -> Self {
        Self { schema: SCHEMA, key, read_bandwidth: None, boundary: None, peaks: vec![] }
    }

    /// The facts of the device that `key` names, as far as they were measured before: empty where there are none that can
    /// be used, with a warning where there are others.
    pub(crate) fn kept(key: &DeviceKey) -> Self {
        // What was read or written is kept for as long as the program runs, and a warning is given once.
        let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(facts) = read.iter().find(|facts| facts.key == *key) {
            return facts.clone();
        }
        let facts = key.file().filter(|path| path.exists()).and_then(|path| Self::read_for(key, &path));
        let facts = facts.unwrap_or_else(|| Self::nothing_of(key.clone()));
        read.push(facts.clone());
        facts
    }

    /// What the file at `path` has of the device, if that can be used.
    fn read_for(key: &DeviceKey, path: &Path) -> Option<Self> {
        match Self::read(path) {
            Ok(facts) => match facts.key.why_stale(key) {
                None => return Some(facts),
                Some(why) => tracing::warn!("`{}` is passed over: {why}; it is measured anew", path.display()),
            },
            Err(error) => tracing::warn!("what was measured of this device is passed over: {error:#}"),
        }
        None
    }

    fn read(path: &Path) -> Result<Self> {
        let text = files::read_own_text(path, "the figures measured on a device", files::SETTINGS_BYTES_MAX)?;
        Self::parse(&text).with_context(|| format!("cannot use `{}`", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let facts: Self = serde_json::from_str(text).context("it is not what this program writes of a device")?;
        if facts.schema != SCHEMA {
            bail!("its form is version {}, and this program knows {SCHEMA}", facts.schema);
        }
        let peaks = facts.peaks.iter().map(|peak| &peak.ops_per_s);
        if !facts.read_bandwidth.iter().chain(&facts.boundary).chain(peaks).all(Measured::is_sound) {
            bail!("it has a figure that is not above 0");
        }
        Ok(facts)
    }

    /// Keeps it for later commands, whole or not at all. Where it cannot be kept, it is measured again the next time, and
    /// a warning says why.
    pub(crate) fn keep(&self) {
        let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
        read.retain(|facts| facts.key != self.key);
        read.push(self.clone());
        let Some(path) = self.key.file() else { return };
        if let Err(error) = self.write(&path) {
            tracing::warn!("what was measured of this device is not kept: {error:#}");
        }
    }

    fn write(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_string_pretty(self).context("facts are JSON")?;
        text.push('\n');
        files::write_own(path, text.as_bytes())
    }

    /// Takes over a peak, in the place of that of the same class.
    pub(crate) fn set_peak(&mut self, peak: KeptPeak) {
        self.peaks.retain(|other| other.class != peak.class);
        self.peaks.push(peak);
    }
}

/// What this process read or wrote.
static READ: Mutex<Vec<DeviceFacts>> = Mutex::new(Vec::new());

/// Bytes per nanosecond that `gpu` was measured to read, if it was.
pub(crate) fn read_bytes_per_ns(gpu: &gpu::GpuBackend) -> Option<u32> {
    let facts = DeviceFacts::kept(&DeviceKey::of_gpu(gpu));
    facts.read_bandwidth.map(|read| (read.value / 1e9).round().clamp(1.0, 1e9) as u32)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn key() -> DeviceKey {
        DeviceKey {
            device: "a GPU".to_owned(),
            driver: Some("driver 1".to_owned()),
            program: "0.1.0 ab".to_owned(),
            threads: None,
            isa: None,
        }
    }

    fn facts() -> DeviceFacts {
        let at = || "2026-11-29T10:00:00Z".to_owned();
        let mut facts = DeviceFacts::nothing_of(key());
        facts.read_bandwidth = Some(Measured { value: 4.7e12, at: at() });
        facts.boundary = Some(Measured { value: 7.5e-7, at: at() });
        let of = |value| Measured { value, at: at() };
        facts.set_peak(KeptPeak { class: "f16_matrix".into(), instruction: "mma".into(), ops_per_s: of(3e14) });
        facts.set_peak(KeptPeak { class: "f16_matrix".into(), instruction: "wgmma".into(), ops_per_s: of(6e14) });
        facts
    }

    #[test]
    fn facts_are_read_as_they_were_written_and_a_class_has_one_peak() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("devices/a-gpu.json");
        let facts = facts();
        assert_eq!(facts.peaks.len(), 1);
        facts.write(&path).unwrap();
        assert_eq!(DeviceFacts::read_for(&key(), &path), Some(facts));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no other file stays");
    }

    #[test]
    fn what_is_of_another_device_driver_program_or_way_is_passed_over() {
        let now = key();
        let changes: [fn(&mut DeviceKey); 5] = [
            |key| key.device = "another".to_owned(),
            |key| key.driver = Some("driver 2".to_owned()),
            |key| key.program = "0.1.0 cd".to_owned(),
            |key| key.threads = Some(4),
            |key| key.isa = Some("avx2".to_owned()),
        ];
        let names = ["the device another", "the driver driver 2", "the program 0.1.0 cd", "threads 4", "set avx2"];
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("facts.json");
        for (change, name) in changes.into_iter().zip(names) {
            let mut other = facts();
            change(&mut other.key);
            other.write(&path).unwrap();
            let why = other.key.why_stale(&now).expect("it is of another");
            assert!(why.contains(name), "{why}");
            assert_eq!(DeviceFacts::read_for(&now, &path), None, "{why}");
        }
        facts().write(&path).unwrap();
        assert!(DeviceFacts::read_for(&now, &path).is_some());
    }

    #[test]
    fn what_is_no_file_of_facts_is_refused_with_the_reason() {
        let whole = serde_json::to_value(facts()).unwrap();
        let with = |field: &str, value: serde_json::Value| {
            let mut changed = whole.clone();
            changed[field] = value;
            changed.to_string()
        };
        let whole = whole.to_string();
        let cases = [
            (String::new(), "not what this program writes"),
            (whole[..whole.len() / 2].to_owned(), "not what this program writes"),
            ("{}".to_owned(), "missing field"),
            (with("schema", 2.into()), "version 2, and this program knows 1"),
            (with("read_bandwidth", serde_json::json!({"value": 0, "at": ""})), "not above 0"),
            (with("boundary", serde_json::json!({"value": -1, "at": ""})), "not above 0"),
        ];
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("facts.json");
        for (text, says) in cases {
            fs::write(&path, text).unwrap();
            let error = format!("{:#}", DeviceFacts::read(&path).unwrap_err());
            assert!(error.contains(says) && error.contains("facts.json"), "{error}");
            assert_eq!(DeviceFacts::read_for(&key(), &path), None);
        }
    }

    #[test]
    fn processors_have_a_file_for_each_number_of_threads_and_instruction_set() {
        let device = DeviceInfo {
            name: "cpu".to_owned(),
            description: "AMD EPYC 9B14, avx512, 8 threads".to_owned(),
            memory_bytes: 1,
            driver: None,
        };
        let name = |threads, isa| {
            let file = DeviceKey::of_cpu(&device, threads, isa).file().expect("a home or a cache is known");
            file.file_name().unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(name(8, "avx512"), "amd-epyc-9b14-8-threads-avx512.json");
        assert_eq!(name(1, "avx2"), "amd-epyc-9b14-1-thread-avx2.json");
    }
}
