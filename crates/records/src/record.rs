//! One record: what one command measured on one machine.

use serde_json::Value;

use crate::Row;

/// What one command measured on one machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The name of the folder.
    pub machine: String,
    /// The name of the file in it.
    pub file: String,
    /// RFC 3339, or its date alone.
    pub date: String,
    /// Of the source that was built; `None` where nobody knows.
    pub commit: Option<String>,
    /// Of a record whose rows have columns of their own.
    pub title: Option<String>,
    /// The machine, to a person.
    pub device: String,
    /// The words of the command, as typed.
    pub command: Option<String>,
    /// What else holds for all rows.
    pub note: Option<String>,
    /// Whether the gate that it was kept by was passed; `None` of a record of another command.
    pub passed: Option<bool>,
    /// The quantities.
    pub rows: Vec<Row>,
}

/// Why a text is no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RecordError(String);

impl Record {
    /// Reads the text of the file `machine/file`.
    ///
    /// # Errors
    /// If it is no record, with the field and the row.
    pub fn read(machine: &str, file: &str, text: &str) -> Result<Self, RecordError> {
        Self::of_text(machine, file, text).map_err(RecordError)
    }

    fn of_text(machine: &str, file: &str, text: &str) -> Result<Self, String> {
        let record: Value = serde_json::from_str(text).map_err(|error| format!("this is not JSON: {error}"))?;
        if record["phases"].is_array() {
            return Err("this is a profile (`hotmetal profile -o json`), and no result of `hotmetal bench`".to_owned());
        }
        if record["profiled"] == true {
            return Err("this was measured while a profiler looked on, which slows it down".to_owned());
        }
        let text_at = |pointer: &str| record.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let date = text_at("/run/date").ok_or("`run.date` is missing: a record says when it was measured")?;
        let is_named = file.ends_with(".json") && date.get(..10).is_some_and(|day| file.starts_with(day));
        if !is_named {
            return Err(format!("a record's file is named <date>-<commit>.json, and its `run.date` is {date}"));
        }
        let words = record.pointer("/run/command").and_then(Value::as_array);
        let command = words.map(|words| words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "));
        let rows = record["rows"].as_array().ok_or("`rows` is missing")?.iter().enumerate();
        let rows = rows.map(|(index, row)| {
            let row = row.as_object().ok_or_else(|| format!("row {index} is not an object"))?;
            Row::read(row, command.as_deref().unwrap_or_default()).map_err(|why| format!("in row {index}: {why}"))
        });
        Ok(Self {
            machine: machine.to_owned(),
            file: file.to_owned(),
            rows: rows.collect::<Result<_, _>>()?,
            passed: record.pointer("/gate/passed").and_then(Value::as_bool),
            date,
            commit: text_at("/run/commit"),
            title: text_at("/title"),
            device: text_at("/device/description").ok_or("`device.description` is missing")?,
            command,
            note: text_at("/note"),
        })
    }

    /// The day that it was measured on.
    pub fn day(&self) -> &str {
        self.date.get(..10).unwrap_or(&self.date)
    }

    /// The commit that was built, or what the file's name says in its place.
    pub fn build(&self) -> &str {
        // Behind the day, and the time of day where there is one.
        let is_time = |word: &&str| word.len() == 6 && word.bytes().all(|byte| byte.is_ascii_digit());
        let named = || {
            let rest = self.file.trim_end_matches(".json").get(self.day().len() + 1..)?;
            Some(rest.split_once('-').filter(|(time, _)| is_time(time)).map_or(rest, |(_, rest)| rest))
        };
        self.commit.as_deref().or_else(named).unwrap_or("unknown")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(file: &str, date: &str, rows: &str) -> Result<Record, RecordError> {
        let text =
            format!(r#"{{"device": {{"description": "a machine"}}, "run": {{"date": "{date}"}}, "rows": [{rows}]}}"#);
        Record::read("machine", file, &text)
    }

    #[test]
    fn output_of_the_bench_is_a_record_as_it_is() {
        let bench = r#"{"test": "tg128", "model": "m", "format": "q8_0", "device": "cpu", "threads": 2, "batch": 1, "depth": 2048,
            "clock": "wall", "tokens_per_s": {"median": 50, "min": 49, "max": 51}, "samples": [49, 50, 51],
            "roofline_share": 0.9, "variants": {"isa": "avx2"}}"#;
        let batch = r#"{"test": "tg128", "model": "m", "format": "q8_0", "device": "cuda", "threads": 1, "batch": 8, "depth": 0,
            "clock": "wall", "tokens_per_s": {"median": 2000, "min": 1600, "max": 4000}}"#;
        let table = r#"{"name": "m q8_0 batch 8", "unit": "ms a step", "value": 4, "worst": 5, "best": 2, "llama_cpp": 7,
            "must": 4.2, "goal": 3.6, "row": {"roofline_share": 0.7}}"#;
        let rows =
            record("2026-11-25-abc.json", "2026-11-25T01:02:03Z", &[bench, batch, table].join(",")).unwrap().rows;
        assert_eq!(rows[0].name, "m q8_0 decode @2048, 2 threads");
        assert_eq!((rows[0].value, rows[0].roofline_share), (Some(50.0), Some(0.9)));
        assert_eq!(rows[0].samples, [49.0, 50.0, 51.0]);
        assert_eq!((rows[1].name.as_str(), rows[1].unit.as_str()), (rows[2].name.as_str(), rows[2].unit.as_str()));
        assert_eq!((rows[1].value, rows[1].worst, rows[1].best), (Some(4.0), Some(5.0), Some(2.0)));
        assert_eq!((&rows[2].peers[..], rows[2].roofline_share), (&[("llama.cpp".to_owned(), 7.0)][..], Some(0.7)));
    }

    #[test]
    fn a_record_without_a_figure_or_a_date_is_refused() {
        let error = |file, date, rows| record(file, date, rows).unwrap_err().to_string();
        let no_figure = r#"{"name": "decode", "unit": "tokens/s"}"#;
        assert!(error("2026-11-25-a.json", "2026-11-25", no_figure).contains("no `value`"));
        let profile = r#"{"profiled": true, "run": {"date": "2026-11-25"}, "phases": []}"#;
        let error_of = |text| Record::read("m", "2026-11-25-a.json", text).unwrap_err().to_string();
        assert!(error_of(profile).contains("this is a profile"), "{}", error_of(profile));
        assert!(error_of(r#"{"profiled": true, "rows": []}"#).contains("while a profiler looked on"));
        assert!(error("2026-11-24-a.json", "2026-11-25", "").contains("is named"));
        assert!(error("2026-11-25-a.json", "2026-11-25", r#"{"what": 1}"#).contains("in row 0: this is no row"));
        assert!(Record::read("m", "2026-11-25-a.json", "[").unwrap_err().to_string().contains("not JSON"));
    }

    #[test]
    fn a_record_without_a_commit_goes_by_its_name() {
        assert_eq!(record("2026-11-25-abc-serve.json", "2026-11-25", "").unwrap().build(), "abc-serve");
        assert_eq!(record("2026-11-25.json", "2026-11-25", "").unwrap().build(), "unknown");
        assert_eq!(record("2026-11-25-134509-abc.json", "2026-11-25", "").unwrap().build(), "abc");
    }
}
