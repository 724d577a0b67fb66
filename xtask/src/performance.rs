//! `cargo xtask performance`: writes `docs/performance/today.md`, and the table of figures in `README.md`, from the newest
//! records in `docs/performance/records`.
//!
//! A record is the output of `hotmetal bench … -o json` (also of `bench table`, `--startup` and `--roofline`), dropped in
//! as it is, or a file of the same shape that was written by hand. `docs/performance/records/README.md` says which fields
//! a record has.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use records::{Record, Row};

/// Write docs/performance/today.md and the README's figures from the newest records in docs/performance/records
#[derive(Args)]
pub(crate) struct PerformanceArgs {
    /// Write nothing; fail where a file is not what the records give
    #[arg(long)]
    check: bool,
}

/// Where the README's table stands: from the first line to the second.
const README_BEGIN: &str = "<!-- figures: written by `cargo xtask performance` -->";
const README_END: &str = "<!-- end of figures -->";

/// The quantities that the README shows: folder of the machine, name of the row, and what the README calls it.
const README_ROWS: [[&str; 3]; 11] = [
    ["sapphire-rapids-2-cores", "qwen2.5-0.5b q8_0 decode, 2 threads", "two Intel cores: 0.5B Q8_0, decode"],
    ["sapphire-rapids-2-cores", "qwen2.5-0.5b q8_0 prefill 512, 2 threads", "… prompt of 512"],
    ["sapphire-rapids-2-cores", "qwen2.5-0.5b f16 decode, 2 threads", "… 0.5B F16, decode"],
    ["sapphire-rapids-2-cores", "qwen2.5-0.5b f16 prefill 512, 2 threads", "… prompt of 512"],
    ["zen5-2-cores", "qwen2.5-0.5b q8_0 decode, 2 threads", "two Zen 5 cores: 0.5B Q8_0, decode"],
    ["zen5-2-cores", "qwen2.5-0.5b q8_0 prefill 512, 2 threads", "… prompt of 512"],
    ["zen5-2-cores", "start to first token, 0.5B q8_0, warm, 2 threads", "… start of the program to the first token"],
    ["h200", "llama-3.1-8b q8_0 decode", "one H200: Llama-3.1-8B Q8_0, decode"],
    ["h200", "llama-3.1-8b q8_0 prefill 2048", "… prompt of 2,048"],
    ["h200", "llama-3.1-8b q4_0 decode", "… Q4_0, decode"],
    ["h200", "start to first token, 8B q4_k_m, file in cache", "… Q4_K_M, start to the first token"],
];

/// Runs `cargo xtask performance`.
pub(crate) fn performance(args: &PerformanceArgs) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (path, text) in documents(&root)? {
        let path = root.join(path);
        let found = fs::read_to_string(&path).unwrap_or_default();
        if found == text {
            continue;
        }
        ensure!(!args.check, "`{}` is not what the records give: run `cargo xtask performance`", path.display());
        fs::write(&path, text).with_context(|| format!("cannot write `{}`", path.display()))?;
        println!("wrote {}", path.display());
    }
    Ok(())
}

/// Each document that the records decide, with its text.
fn documents(root: &Path) -> Result<[(&'static str, String); 2]> {
    let folder = root.join("docs/performance/records");
    let mut records = Vec::new();
    for machine in entries(&folder)?.into_iter().filter(|path| path.is_dir()) {
        let name = file_name(&machine);
        for path in entries(&machine)? {
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
            let record = Record::read(&name, &file_name(&path), &text);
            records.push(record.with_context(|| format!("in `{}`", path.display()))?);
        }
    }
    let newest = newest(&records)?;
    let readme = fs::read_to_string(root.join("README.md")).context("cannot read `README.md`")?;
    Ok([("docs/performance/today.md", today(&newest)), ("README.md", with_figures(&readme, &newest)?)])
}

/// What a folder holds, in the order of names.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = fs::read_dir(folder).with_context(|| format!("cannot read the folder `{}`", folder.display()))?;
    let mut paths = read.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Each quantity of each machine with the record that had it last.
type Newest<'a> = BTreeMap<(&'a str, &'a str, &'a str), (&'a Record, &'a Row)>;

fn newest(records: &[Record]) -> Result<Newest<'_>> {
    let mut newest = Newest::new();
    for record in records {
        for row in &record.rows {
            let key = (record.machine.as_str(), row.name.as_str(), row.unit.as_str());
            let Some((other, _)) = newest.get(&key) else {
                newest.insert(key, (record, row));
                continue;
            };
            ensure!(
                other.date != record.date,
                "`{}` and `{}` of `{}` both have \"{}\" for {}: which one holds? Give `run.date` a time of day, or remove a row",
                other.file,
                record.file,
                record.machine,
                row.name,
                record.date
            );
            if other.date < record.date {
                newest.insert(key, (record, row));
            }
        }
    }
    Ok(newest)
}

/// How `docs/performance/today.md` begins.
const WRITTEN: &str = "Written by `cargo xtask performance` from [the records](records/README.md): each quantity stands \
    here once, as the newest record of its machine has it. Do not edit this page; add a record and run the command again.";
const COLUMNS: &str = "\"Worst to best\" are the repetitions. \"Beside it\" is another program on the same machine. \
    \"Of ceiling\" is the share of what the machine itself gave beside the test. \"Must\" is the least that counts, \
    \"goal\" is what is wanted.";

/// The text of `docs/performance/today.md`.
fn today(newest: &Newest<'_>) -> String {
    let mut out = format!("# What is measured today\n\n{}\n\n{}\n", wrapped(WRITTEN), wrapped(COLUMNS));
    let mut machines: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
    for (record, _) in newest.values() {
        let of_machine = machines.entry(&record.machine).or_default();
        if !of_machine.iter().any(|other| other.file == record.file) {
            of_machine.push(record);
        }
    }
    for (machine, mut records) in machines {
        let _ = write!(out, "\n## {machine}\n");
        records.sort_by(|a, b| b.date.cmp(&a.date).then(a.file.cmp(&b.file)));
        for record in records {
            let rows: Vec<&Row> = record.rows.iter().filter(|row| is_newest(newest, record, row)).collect();
            let title = record.title.as_ref().map(|title| format!("**{title}**, ")).unwrap_or_default();
            let link = format!("[{}](records/{machine}/{})", record.day(), record.file);
            let mut sentence = format!("{title}{link}: {}.", record.device.trim_end_matches('.'));
            if let Some(command) = &record.command {
                let _ = write!(sentence, " `{command}`.");
            }
            if let Some(note) = &record.note {
                let _ = write!(sentence, " {note}");
            }
            let _ = write!(out, "\n{}\n{}", wrapped(&sentence), table(&rows));
        }
    }
    out
}

fn is_newest(newest: &Newest<'_>, record: &Record, row: &Row) -> bool {
    let key = (record.machine.as_str(), row.name.as_str(), row.unit.as_str());
    newest.get(&key).is_some_and(|(holder, _)| holder.file == record.file)
}

/// Lines of at most 120 columns. What stands in back quotes is one word.
fn wrapped(sentence: &str) -> String {
    let parts = sentence.split('`').enumerate();
    let joined: Vec<_> =
        parts.map(|(index, part)| if index % 2 == 1 { part.replace(' ', "\0") } else { part.to_owned() }).collect();
    let (mut out, mut column) = (String::new(), 0);
    for word in joined.join("`").split(' ') {
        let len = word.chars().count();
        if column > 0 {
            let breaks = column + 1 + len > 120;
            out.push(if breaks { '\n' } else { ' ' });
            column = if breaks { 0 } else { column + 1 };
        }
        out.push_str(&word.replace('\0', " "));
        column += len;
    }
    out
}

/// A table with those columns that some row fills.
fn table(rows: &[&Row]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in rows.iter().flat_map(|row| &row.columns) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let mut head = vec!["quantity".to_owned()];
    let mut body: Vec<Vec<String>> = rows.iter().map(|row| vec![row.name.clone()]).collect();
    let mut column = |name: &str, cell: &dyn Fn(&Row) -> Option<String>| {
        let cells: Vec<_> = rows.iter().map(|row| cell(row)).collect();
        if cells.iter().any(Option::is_some) {
            head.push(name.to_owned());
            for (line, cell) in body.iter_mut().zip(cells) {
                line.push(cell.unwrap_or_default());
            }
        }
    };
    if names.is_empty() {
        column("unit", &|row| Some(row.unit.clone()));
    }
    column("median", &|row| row.value.map(figure));
    column("worst to best", &|row| Some(format!("{} to {}", figure(row.worst?), figure(row.best?))));
    column("beside it", &|row| {
        let peers: Vec<_> = row.peers.iter().map(|(name, value)| format!("{name} {}", figure(*value))).collect();
        (!peers.is_empty()).then(|| peers.join(", "))
    });
    column("of ceiling", &|row| row.roofline_share.map(|share| format!("{:.0} %", 100.0 * share)));
    column("must", &|row| row.must.map(figure));
    column("goal", &|row| row.goal.map(figure));
    for name in names {
        let value = |row: &Row| row.columns.iter().find(|(column, _)| column == name).map(|(_, value)| *value);
        column(&name.replace('_', " "), &|row| value(row).map(|value| value.to_string()));
    }
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rule = format!("| --- |{}\n", " ---: |".repeat(head.len() - 1));
    format!("\n{}{rule}{}", line(&head), body.iter().map(|cells| line(cells)).collect::<String>())
}

/// Three digits or more, without zeros that say nothing: `361,000`, `459.8`, `2.04`.
fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        1000.0.. => 0,
        100.0.. => 1,
        10.0.. => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    if decimals > 0 {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    let digits: Vec<char> = text.chars().collect();
    let mut out = String::new();
    for (index, digit) in digits.iter().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(*digit);
    }
    out
}

/// `readme` with the table of [`README_ROWS`] between its two marks.
fn with_figures(readme: &str, newest: &Newest<'_>) -> Result<String> {
    let (before, rest) =
        readme.split_once(README_BEGIN).with_context(|| format!("README.md lacks `{README_BEGIN}`"))?;
    let (_, after) = rest.split_once(README_END).with_context(|| format!("README.md lacks `{README_END}`"))?;
    let mut out =
        format!("{before}{README_BEGIN}\n\n| | Hotmetal | beside it | ratio |\n| --- | ---: | ---: | ---: |\n");
    for [machine, name, label] in README_ROWS {
        let mut of_name =
            newest.iter().filter(|((of_machine, of_row, _), _)| (*of_machine, *of_row) == (machine, name));
        let (_, (_, row)) = of_name.next().with_context(|| format!("no record of `{machine}` has \"{name}\""))?;
        let ours = match (row.value, row.best.zip(row.worst)) {
            (Some(value), _) => figure(value),
            (None, Some((best, worst))) => format!("{} to {}", figure(best), figure(worst)),
            (None, None) => bail!("\"{name}\" of `{machine}` has no figure"),
        };
        let peer = row.peers.last();
        let beside = peer.map(|(program, value)| format!("{program} {}", figure(*value))).unwrap_or_default();
        let ratio = peer.zip(row.value).map(|((_, peer), value)| format!("{:.2}", value / peer)).unwrap_or_default();
        let _ = writeln!(out, "| {label} | {ours} {} | {beside} | {ratio} |", row.unit);
    }
    Ok(format!("{out}\n{README_END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(file: &str, date: &str, rows: &str) -> Record {
        let text =
            format!(r#"{{"device": {{"description": "a machine"}}, "run": {{"date": "{date}"}}, "rows": [{rows}]}}"#);
        Record::read("machine", file, &text).unwrap()
    }

    #[test]
    fn documents_are_what_the_records_give() {
        performance(&PerformanceArgs { check: true }).unwrap();
    }

    #[test]
    fn the_newest_record_holds_and_two_of_one_time_are_refused() {
        let row = |value: u32| format!(r#"{{"name": "decode", "unit": "tokens/s", "value": {value}}}"#);
        let old = record("2026-11-24-a.json", "2026-11-24", &row(1));
        let new = record("2026-11-25-b.json", "2026-11-25", &row(2));
        let other = record("2026-11-25-c.json", "2026-11-25", &row(3));
        let records = [new, old];
        let values: Vec<_> = newest(&records).unwrap().values().map(|(_, row)| row.value).collect();
        assert_eq!(values, [Some(2.0)]);
        let [new, _] = records;
        let error = newest(&[new, other]).unwrap_err().to_string();
        assert!(error.contains("which one holds"), "{error}");
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!(
            [361_000.0, 1077.4, 459.8, 54.0, 2.04, 0.77].map(figure),
            ["361,000", "1,077", "459.8", "54", "2.04", "0.77"]
        );
    }
}
