//! `--report out.html` and `bench report`: results as one page that needs nothing else, light or dark, on any screen.
//! Profiles are printed again as they were.

mod plot;

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::Profiles;
use super::args::ReportArgs;
use super::kernels::report::{KernelReport, KernelRow};
use super::report::{Device, Facts, Report, Row};
use crate::output::stdout;
use crate::{files, units};
use plot::{Plot, Scale, escaped, legend};

const STYLE: &str = include_str!("page.css");

/// Runs `hotmetal bench report`.
pub(super) fn report(args: &ReportArgs, stored: &Profiles) -> Result<()> {
    let (mut models, mut kernels, mut profiles) = (Vec::new(), Vec::new(), Vec::new());
    for path in &args.results {
        let text = files::read_text(path, "", files::RESULT_BYTES_MAX)?;
        let not_ours = || format!("`{}` is not a result of `hotmetal bench -o json`", path.display());
        let value: Value = serde_json::from_str(&text).with_context(not_ours)?;
        if (stored.is_profile)(&value) {
            profiles.push((path.display().to_string(), value));
        // Results of kernels say through how much memory their weights rotated.
        } else if value.get("rotation").is_some() {
            kernels.push(serde_json::from_value(value).with_context(not_ours)?);
        } else {
            models.push(serde_json::from_value(value).with_context(not_ours)?);
        }
    }
    match (&args.output, profiles.first()) {
        (None, None) => bail!("a page needs a name: expected -o OUT.html"),
        (Some(path), None) => write(path, &models, &kernels),
        (output, Some((name, _))) if output.is_some() || profiles.len() < args.results.len() => bail!(
            "`{name}` is a profile (`hotmetal profile -o json`), and a page has results of `hotmetal bench` only: give \
             profiles by themselves and without -o, and they are printed"
        ),
        (_, Some(_)) => {
            let tables = profiles.into_iter().map(|(name, value)| (stored.printed)(&name, value));
            Ok(stdout(&tables.collect::<Result<Vec<_>>>()?.join("\n"))?)
        }
    }
}

/// Writes the page of these results to `path`.
pub(super) fn write(path: &Path, models: &[Report], kernels: &[KernelReport]) -> Result<()> {
    if models.iter().all(|report| report.rows.is_empty()) && kernels.iter().all(|report| report.rows.is_empty()) {
        bail!("there is nothing to report: the results have no rows");
    }
    files::write(path, page(models, kernels).as_bytes())
}

/// Writes the page of one `bench serve`: how its latencies are distributed (each by its 0th, 5th, … 100th percentile, in
/// milliseconds), and its figures.
pub(super) fn write_serve(
    path: &Path,
    title: &str,
    figures: &[(String, String)],
    latencies: &[(&str, Vec<f64>)],
) -> Result<()> {
    let mut body = String::new();
    for (name, quantiles) in latencies {
        let last = (quantiles.len().max(2) - 1) as f64;
        let x = Scale::around(quantiles.iter().copied());
        let mut plot = Plot::new(name, x, "milliseconds", Scale::from_zero([100.0].into_iter()), "% as fast");
        let points: Vec<_> = quantiles.iter().enumerate().map(|(at, ms)| (*ms, 100.0 * at as f64 / last)).collect();
        plot.curve(&points, 0, name);
        body.push_str(&section(name, "Of all requests that were answered.", &plot.finish()));
    }
    let rows = figures.iter().map(|(name, value)| vec![name.clone(), value.clone()]);
    body.push_str(&section("Figures", "By the names of vLLM's bench serve.", &table(&["", ""], &[0], rows)));
    files::write(path, document(title, &body).as_bytes())
}

fn page(models: &[Report], kernels: &[KernelReport]) -> String {
    let title = models
        .iter()
        .map(Report::subjects)
        .chain(kernels.iter().map(|report| format!("kernels of {}", report.model)))
        .collect::<Vec<_>>()
        .join("; ");
    let mut body = String::new();
    for report in models {
        let rows: Vec<&Row> = report.rows.iter().collect();
        body.push_str(&by(&rows, "Tokens per second by depth", "tokens in the cache before the test", |row| row.depth));
        body.push_str(&by(&rows, "Tokens per second by batch", "sequences at once", |row| row.batch));
        body.push_str(&latency(&rows));
    }
    for report in kernels {
        body.push_str(&roofline(report));
    }
    for report in models {
        body.push_str(&rows_table(report));
    }
    for report in kernels {
        body.push_str(&kernels_table(report));
    }
    for report in models {
        let mut kernels: Vec<&str> =
            report.rows.iter().flat_map(|row| &row.variants.kernels).map(String::as_str).collect();
        kernels.sort_unstable();
        kernels.dedup();
        let more = [("kernels", kernels.join("; "))];
        body.push_str(&facts(&report.device, &report.run, report.profiled, &more[usize::from(kernels.is_empty())..]));
    }
    for report in kernels {
        let rotation = format!("{} ({})", units::bytes(report.rotation.bytes), report.rotation.reason);
        body.push_str(&facts(&report.device, &report.run, report.profiled, &[("weights rotate through", rotation)]));
    }
    document(&title, &body)
}

fn document(title: &str, body: &str) -> String {
    let title = escaped(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>hotmetal bench: {title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>hotmetal bench: {title}</h1>\n{body}</body>\n</html>\n"
    )
}

fn section(title: &str, note: &str, content: &str) -> String {
    format!("<section>\n<h2>{}</h2>\n<p>{}</p>\n{content}</section>\n", escaped(title), escaped(note))
}

/// Median tokens per second over one of the dimensions of a test; empty where nothing varies in it.
fn by(rows: &[&Row], title: &str, x_name: &str, dimension: fn(&Row) -> usize) -> String {
    let mut values: Vec<usize> = rows.iter().map(|row| dimension(row)).collect();
    values.sort_unstable();
    values.dedup();
    if values.len() < 2 {
        return String::new();
    }
    // A curve for each way to be the same test but for this dimension.
    let name = |row: &Row| {
        let mut name = format!("{} {} {}, {}", row.model, row.format, row.test, threads_of(row.threads));
        // The label has depth and batch; of the two, the one that does not vary along the curve tells curves apart.
        for (what, other) in [("depth", row.depth), ("batch", row.batch)] {
            if other != dimension(row) && other > usize::from(what == "batch") {
                name.push_str(&format!(", {what} {other}"));
            }
        }
        name
    };
    let mut curves: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for row in rows {
        let place = values.iter().position(|value| *value == dimension(row)).unwrap_or(0) as f64;
        let point = (place, row.tokens_per_s.median);
        match curves.iter_mut().find(|(known, _)| *known == name(row)) {
            Some((_, points)) => points.push(point),
            None => curves.push((name(row), vec![point])),
        }
    }
    curves.retain(|(_, points)| points.len() > 1);
    if curves.is_empty() {
        return String::new();
    }
    for (_, points) in &mut curves {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let x = Scale::places(values.iter().map(|&value| units::count(value as u64)).collect());
    let y = Scale::from_zero(curves.iter().flat_map(|(_, points)| points).map(|&(_, rate)| rate));
    let mut plot = Plot::new(title, x, x_name, y, "tokens per second");
    for (index, (name, points)) in curves.iter().enumerate() {
        plot.curve(points, index, name);
        for &(place, rate) in points {
            let at = values.get(place as usize).copied().unwrap_or(0);
            plot.dot(place, rate, index, &format!("{name}: {rate:.1} tokens per second at {at}"));
        }
    }
    let names: Vec<_> = curves.into_iter().map(|(name, _)| name).collect();
    section(title, "Median of the repetitions.", &(plot.finish() + &legend(&names)))
}

/// How the steps' times are distributed, a curve a row.
fn latency(rows: &[&Row]) -> String {
    let rows: Vec<_> =
        rows.iter().filter(|row| row.latency_quantiles_ms.len() > 1 && row.test.starts_with("tg")).collect();
    if rows.is_empty() {
        return String::new();
    }
    let x = Scale::around(rows.iter().flat_map(|row| row.latency_quantiles_ms.iter().copied()));
    let y = Scale::from_zero([100.0].into_iter());
    let mut plot = Plot::new("Latency distribution", x, "milliseconds a step", y, "% of steps as fast");
    let mut names = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let latency = &row.latency_ms;
        let last = (row.latency_quantiles_ms.len() - 1) as f64;
        let points = row.latency_quantiles_ms.iter().enumerate();
        let points: Vec<_> = points.map(|(at, ms)| (*ms, 100.0 * at as f64 / last)).collect();
        let name = format!("{} {} {}, {}", row.model, row.format, row.label(), threads_of(row.threads));
        let hover = format!(
            "{name}: p50 {:.2}, p95 {:.2}, p99 {:.2}, max {:.2} ms",
            latency.p50, latency.p95, latency.p99, latency.max
        );
        plot.curve(&points, index, &hover);
        names.push(name);
    }
    section("Latency distribution", "Of all decode steps of all repetitions.", &(plot.finish() + &legend(&names)))
}

/// Every kernel under the ceilings of this machine: operations a second by operations a byte.
fn roofline(report: &KernelReport) -> String {
    /// Where a kernel stands: operations a byte, GFLOP/s.
    fn place(row: &KernelRow) -> Option<(f64, f64)> {
        let flops_per_s = row.flops_per_s.filter(|_| row.bytes > 0)?;
        Some((row.flops as f64 / row.bytes as f64, flops_per_s / 1e9))
    }
    let rows: Vec<_> = report.rows.iter().filter_map(|row| Some((row, place(row)?))).collect();
    let mut threads: Vec<_> = rows.iter().map(|(row, _)| row.threads).collect();
    threads.sort_unstable();
    threads.dedup();
    let mut out = String::new();
    for threads in threads {
        let rows: Vec<_> = rows.iter().filter(|(row, _)| row.threads == threads).collect();
        let mut ops: Vec<String> = Vec::new();
        let name_of = |row: &KernelRow| row.op.clone();
        for (row, _) in &rows {
            if !ops.contains(&name_of(row)) {
                ops.push(name_of(row));
            }
        }
        let read = rows.iter().filter_map(|(row, _)| row.read_bandwidth_gb_s).fold(0.0, f64::max);
        let mut peaks: Vec<(&str, f64)> = Vec::new();
        for (row, _) in &rows {
            if let (Some(class), Some(peak)) = (row.peak_class.as_deref(), row.peak_flops_per_s) {
                match peaks.iter_mut().find(|(known, _)| *known == class) {
                    Some((_, best)) => *best = best.max(peak / 1e9),
                    None => peaks.push((class, peak / 1e9)),
                }
            }
        }
        let x = Scale::powers_of_ten(rows.iter().map(|(_, (intensity, _))| *intensity));
        let speeds = rows.iter().map(|(_, (_, speed))| *speed).chain(peaks.iter().map(|&(_, peak)| peak));
        let y = Scale::powers_of_ten(speeds);
        let title = format!("Roofline, {}", threads_of(threads));
        let mut plot = Plot::new(&title, x, "operations a byte of weights and cache", y, "GFLOP/s (integer: GOP/s)");
        let (from, to) = (plot.x().from(), plot.x().to());
        let highest = peaks.iter().map(|&(_, peak)| peak).fold(0.0, f64::max);
        for (class, peak) in &peaks {
            let ridge = if read > 0.0 { (peak / read).clamp(from, to) } else { from };
            plot.roof((ridge, *peak), (to, *peak), &format!("{class} {peak:.0}"));
        }
        if read > 0.0 {
            let ridge = if highest > 0.0 { (highest / read).clamp(from, to) } else { to };
            plot.roof((from, from * read), (ridge, ridge * read), &format!("reading {read:.1} GB/s"));
        }
        for (row, (intensity, speed)) in &rows {
            let index = ops.iter().position(|op| *op == name_of(row)).unwrap_or(0);
            let share =
                row.roofline_share.map_or(String::new(), |share| format!(", {:.0} % of the ceiling", 100.0 * share));
            let name = format!(
                "{} {} {}, {} rows, {} {}: {speed:.1} GFLOP/s{share}",
                row.op,
                row.shape,
                row.format,
                row.rows,
                row.isa,
                row.variants.join("; ")
            );
            plot.dot(*intensity, *speed, index, &name);
        }
        let note =
            "A dot for each kernel: op, shape, format, rows and instruction set are in its tooltip and in the table.";
        out.push_str(&section(&title, note, &(plot.finish() + &legend(&ops))));
    }
    out
}

/// Cells of a table; the columns at `words` are text.
fn table(headers: &[&str], words: &[usize], rows: impl Iterator<Item = Vec<String>>) -> String {
    let class = |column: usize| if words.contains(&column) { " class=\"word\"" } else { "" };
    let line = |tag: &str, cells: &[String]| {
        let cells = cells.iter().enumerate().map(|(at, cell)| format!("<{tag}{}>{}</{tag}>", class(at), escaped(cell)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let headers: Vec<_> = headers.iter().map(|&header| header.to_owned()).collect();
    let rows: String = rows.map(|cells| line("td", &cells)).collect();
    format!(
        "<div class=\"wide\" tabindex=\"0\"><table>\n<thead>{}</thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n",
        line("th", &headers).trim_end()
    )
}

fn threads_of(count: usize) -> String {
    format!("{count} thread{}", if count == 1 { "" } else { "s" })
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "–".to_owned())
}

fn rows_table(report: &Report) -> String {
    let headers = [
        "model",
        "test",
        "threads",
        "t/s",
        "±",
        "ms p50",
        "p95",
        "p99",
        "max",
        "GB/s",
        "GFLOP/s",
        "of ceiling",
        "ttft ms",
        "load ms",
    ];
    let rows = report.rows.iter().map(|row| {
        let (rate, latency) = (&row.tokens_per_s, &row.latency_ms);
        vec![
            format!("{} {}", row.model, row.format),
            row.label(),
            row.threads.to_string(),
            format!("{:.2}", rate.median),
            format!("{:.2}", rate.stdev),
            format!("{:.2}", latency.p50),
            format!("{:.2}", latency.p95),
            format!("{:.2}", latency.p99),
            format!("{:.2}", latency.max),
            or_dash(row.bandwidth_gb_s.map(|value| format!("{value:.1}"))),
            format!("{:.0}", row.flops_per_s / 1e9),
            or_dash(row.ceiling()),
            or_dash(row.ttft_ms.map(|value| format!("{value:.1}"))),
            format!("{:.1}", row.load_ms),
        ]
    });
    section("Rows", "t/s is the median; ± the standard deviation.", &table(&headers, &[0, 1, 11], rows))
}

fn kernels_table(report: &KernelReport) -> String {
    let headers = [
        "op",
        "shape",
        "format",
        "rows",
        "isa",
        "threads",
        "variant",
        "µs",
        "±",
        "GB/s",
        "GFLOP/s",
        "of ceiling",
        "max error",
        "copies",
    ];
    let rows = report.rows.iter().map(KernelRow::cells);
    let note = "Each op by itself; what its plan takes without it is subtracted.";
    section(&format!("Kernels of {}", report.model), note, &table(&headers, &[0, 1, 2, 4, 6, 11], rows))
}

fn facts(device: &Device, run: &Facts, profiled: bool, more: &[(&str, String)]) -> String {
    let optional = |text: &Option<String>| text.clone();
    let load = run.load_average.map(|[one, five, fifteen]| format!("{one:.2} {five:.2} {fifteen:.2}"));
    let mut entries = vec![
        ("device", Some(device.description.clone())),
        ("memory", (device.memory_bytes < u64::MAX).then(|| units::bytes(device.memory_bytes))),
        ("processors", run.processors.map(|count| count.to_string())),
        ("system", optional(&run.system)),
        ("hotmetal", Some(run.version.clone())),
        ("commit", optional(&run.commit)),
        ("compiler", optional(&run.rustc)),
        ("build", optional(&run.build)),
        ("date", Some(run.date.clone())),
        ("load average", load),
        ("repetitions", Some(run.repetitions.to_string())),
        ("seed of the weights", run.weights_seed.map(|seed| format!("{seed:#x}"))),
        ("profiled", profiled.then(|| "yes: not to be compared".to_owned())),
        ("command", Some(run.command.join(" "))),
    ];
    entries.extend(more.iter().map(|(name, text)| (*name, Some(text.clone()))));
    let list: String = entries
        .into_iter()
        .filter_map(|(name, text)| Some(format!("<dt>{}</dt><dd>{}</dd>\n", escaped(name), escaped(&text?))))
        .collect();
    section("What was measured where", "", &format!("<dl>\n{list}</dl>\n"))
}
