//! `--record`: keeps a result where `bench history` and `gate` find it.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use records::Record;
use serde_json::Value;

use super::report::{Device, Facts};
use crate::files;
use crate::output::note;

/// The most records that are read: a machine that writes one each hour has them after a year.
const RECORDS_MAX: usize = 10_000;

/// Where a result is kept.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RecordArgs {
    /// Keep the result for `bench history`, as FOLDER/MACHINE/DATE-TIME-COMMIT.json; without a folder, in `records`
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, require_equals = true, default_missing_value = Self::FOLDER)]
    pub(crate) record: Option<PathBuf>,

    /// What records call this machine [default: its processor and how many there are, or its GPU]
    #[arg(long, value_name = "NAME", value_parser = Self::folder_name)]
    pub(crate) machine: Option<String>,
}

impl RecordArgs {
    /// The folder of records, in the folder that the program was started in.
    pub(crate) const FOLDER: &str = "records";

    /// The name of a folder, which may not lead to another one.
    pub(crate) fn folder_name(text: &str) -> Result<String, String> {
        let is_safe = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        match text.chars().all(is_safe) && text.starts_with(|first: char| first.is_ascii_alphanumeric()) {
            true => Ok(text.to_owned()),
            false => Err("expected letters, digits, hyphens and dots, for example h200".to_owned()),
        }
    }

    /// What records call the machine that has this device.
    pub(crate) fn machine(&self, device: &Device, facts: &Facts) -> String {
        let named = || records::machine_name(&device.name, &device.description, facts.processors);
        self.machine.clone().unwrap_or_else(named)
    }

    /// Keeps `result`, if that was asked for. `wave` is a word more for the name of the file.
    pub(crate) fn keep(&self, result: &Value, device: &Device, facts: &Facts, wave: Option<&str>) -> Result<()> {
        let Some(folder) = &self.record else {
            if self.machine.is_some() && wave.is_none() {
                note("--machine names the folder of a record, and nothing is recorded without --record");
            }
            return Ok(());
        };
        if facts.build.as_deref() == Some("debug") {
            note("warning: this program was built without optimisation, and the record will say so");
        }
        let folder = folder.join(self.machine(device, facts));
        fs::create_dir_all(&folder).with_context(|| format!("cannot make the folder `{}`", folder.display()))?;
        let path = folder.join(records::file_name(&facts.date, facts.commit.as_deref(), wave));
        if path.exists() {
            bail!("`{}` is there already: a record is never overwritten", path.display());
        }
        files::write(&path, format!("{result:#}\n").as_bytes())?;
        note(&format!("recorded in `{}`", path.display()));
        Ok(())
    }
}

/// Reads the record at `path`: the folder that it is in is named after the machine.
pub(super) fn read(path: &Path) -> Result<Record> {
    let text = files::read_text(path, "", files::RESULT_BYTES_MAX)?;
    let name = |path: Option<&OsStr>| path.unwrap_or_default().to_string_lossy().into_owned();
    let machine = name(path.parent().and_then(Path::file_name));
    let record = Record::read(&machine, &name(path.file_name()), &text);
    record.with_context(|| format!("`{}` is no record", path.display()))
}

/// Reads the records of all machines below `folder`. A damaged file must not hide the others, so a note names it, and the
/// rest is read.
pub(crate) fn read_all(folder: &Path) -> Result<Vec<Record>> {
    let in_folder = |folder: &Path| -> Result<Vec<PathBuf>> {
        let read = fs::read_dir(folder).with_context(|| format!("cannot read the folder `{}`", folder.display()))?;
        let mut paths = read.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        paths.sort();
        Ok(paths)
    };
    let mut found = Vec::new();
    for machine in in_folder(folder)?.into_iter().filter(|path| path.is_dir()) {
        let of_records = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "json");
        for path in in_folder(&machine)?.into_iter().filter(of_records) {
            if found.len() == RECORDS_MAX {
                bail!("`{}` holds more than {RECORDS_MAX} records: move the old ones away", folder.display());
            }
            match read(&path) {
                Ok(record) => found.push(record),
                Err(error) => note(&format!("warning: left out: {error:#}")),
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_kept_is_read_again_and_a_damaged_file_hides_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let args = RecordArgs { record: Some(folder.path().join("r")), machine: Some("m1".to_owned()) };
        let device = Device::from(&backend::DeviceInfo {
            name: "cpu".to_owned(),
            description: "a machine".to_owned(),
            memory_bytes: 1,
            driver: None,
        });
        let facts = Facts::collect(1, None);
        let row = json!({"name": "decode", "unit": "tokens/s", "value": 7.0});
        let result = json!({"device": device, "run": facts, "rows": [row]});
        args.keep(&result, &device, &facts, Some("first")).unwrap();
        let error = args.keep(&result, &device, &facts, Some("first")).unwrap_err().to_string();
        assert!(error.contains("never overwritten"), "{error}");
        fs::write(folder.path().join("r/m1/2026-01-01-x.json"), "{").unwrap();
        let records = read_all(&folder.path().join("r")).unwrap();
        assert_eq!(records.len(), 1);
        assert_eq!((records[0].machine.as_str(), records[0].rows[0].value), ("m1", Some(7.0)));
        assert!(records[0].file.ends_with("-first.json"), "{}", records[0].file);
        assert!(read_all(&folder.path().join("none")).unwrap_err().to_string().contains("none"));
    }

    #[test]
    fn a_machine_is_one_folder() {
        for wrong in ["", "..", "a/b", "/etc", "-x", "a b", ".hidden"] {
            assert!(RecordArgs::folder_name(wrong).is_err(), "{wrong}");
        }
        assert_eq!(RecordArgs::folder_name("h200").as_deref(), Ok("h200"));
    }
}
