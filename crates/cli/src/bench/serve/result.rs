//! The result of `bench serve`: figures by the names that vLLM's `bench serve` gives them, as JSON and as tables.

use std::time::Duration;

use lab::statistics::{Percentiles, Summary, twentieths};
use serde_json::{Map, Value, json};

use super::args::{Endpoint, Load, ServeArgs};
use super::steady::SteadyPart;
use super::timings::{Metric, RequestTimings, samples};
use crate::bench::report::Facts;
use crate::bench::workload::Lengths;

/// The quantiles of each metric, with its title.
pub(super) fn quantiles(seen: &[RequestTimings]) -> Vec<(&'static str, Vec<f64>)> {
    Metric::ALL.into_iter().map(|metric| (metric.title(), twentieths(&samples(seen, metric)))).collect()
}

/// A length as a number where it is one, as vLLM has it.
fn shown(lengths: Lengths) -> Value {
    match lengths {
        Lengths::About(len) => len.into(),
        spread => spread.to_string().into(),
    }
}

/// The result, in the fields of vLLM's `bench serve`, and what it was of.
pub(super) fn result(
    args: &ServeArgs,
    load: &Load,
    (base_url, model): (&str, &str),
    duration: Duration,
    seen: &[RequestTimings],
    failures: &[String],
) -> Value {
    let seconds = duration.as_secs_f64();
    let total = |count: fn(&RequestTimings) -> u64| seen.iter().map(count).sum::<u64>();
    let (input, output) = (total(|seen| seen.input_tokens), total(|seen| seen.output_tokens));
    let good = seen.iter().filter(|seen| seen.is_good(&args.goodput)).count();
    let rounded = |value: f64| (value * 1e3).round() / 1e3;
    let rate = |count: f64| rounded(count / seconds);
    let facts = Facts::collect(1, None);
    let endpoint = match args.endpoint {
        Endpoint::Completions => "openai",
        Endpoint::Chat => "openai-chat",
    };
    let mut result = json!({
        "date": facts.date, "endpoint_type": endpoint,
        "backend": base_url, "model_id": model, "num_prompts": load.num_prompts,
        "request_rate": args.request_rate.map_or(json!("inf"), |rate| json!(rate)), "burstiness": args.burstiness,
        "max_concurrency": load.max_concurrency, "random_input_len": shown(args.input_len),
        "random_output_len": shown(args.output_len), "random_range_ratio": args.range_ratio,
        "random_prefix_len": args.prefix_len, "num_prefixes": args.num_prefixes,
        "dataset": args.dataset.as_ref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy()),
        "seed": load.seed, "temperature": args.temperature,
        "duration": rounded(seconds), "completed": seen.len(), "failed": failures.len(),
        "total_input_tokens": input, "total_output_tokens": output,
        "request_throughput": rate(seen.len() as f64),
        "request_goodput": (!args.goodput.is_empty()).then(|| rate(good as f64)),
        "output_throughput": rate(output as f64), "total_token_throughput": rate((input + output) as f64),
    });
    if let Some(steady) = SteadyPart::of(seen).filter(|steady| steady.seconds > 0.0) {
        steady.write(&mut result);
    }
    for metric in Metric::ALL {
        let samples = samples(seen, metric);
        let (summary, percentiles) = (Summary::of(&samples), Percentiles::of(&samples));
        let name = metric.name();
        for (what, value) in
            [("mean", summary.mean), ("median", summary.median), ("std", summary.stdev), ("p99", percentiles.p99)]
        {
            result[format!("{what}_{name}_ms")] = rounded(value).into();
        }
    }
    let errors: Map<String, Value> = failures.iter().fold(Map::new(), |mut errors, failure| {
        let count = errors.get(failure).and_then(Value::as_u64).unwrap_or_default() + 1;
        errors.insert(failure.clone(), count.into());
        errors
    });
    result["errors"] = errors.into();
    result["x_hotmetal"] = serde_json::to_value(&facts).unwrap_or_default();
    result
}

/// What was measured, in words.
pub(super) fn title(result: &Value) -> String {
    format!("{} requests to {}", result["num_prompts"], result["model_id"].as_str().unwrap_or_default())
}

/// Name and value of each figure.
pub(super) fn figures(result: &Value) -> Vec<(String, String)> {
    let entry = |(name, value): (&String, &Value)| {
        let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        (name.clone(), shown)
    };
    let is_figure = |(_, value): &(&String, &Value)| !value.is_object() && !value.is_null();
    result.as_object().into_iter().flatten().filter(is_figure).map(entry).collect()
}

/// The result as tables.
pub(super) fn markdown(result: &Value) -> String {
    let mut out = format!("{}, {} s\n\n", title(result), result["duration"]);
    out.push_str("| ms | mean | median | std | p99 |\n|---|---:|---:|---:|---:|\n");
    for metric in Metric::ALL {
        let value = |what: &str| result[format!("{what}_{}_ms", metric.name())].as_f64().unwrap_or_default();
        let [mean, median, std, p99] = ["mean", "median", "std", "p99"].map(value);
        out.push_str(&format!("| {} | {mean:.2} | {median:.2} | {std:.2} | {p99:.2} |\n", metric.title()));
    }
    out.push_str("\n| | |\n|---|---:|\n");
    for (name, value) in figures(result).iter().filter(|(name, _)| !name.ends_with("_ms")) {
        out.push_str(&format!("| {name} | {value} |\n"));
    }
    for (error, count) in result["errors"].as_object().into_iter().flatten() {
        out.push_str(&format!("\n{count} failed: {error}\n"));
    }
    out
}

/// Several results as one table, with a line for each.
pub(super) fn comparison(results: &[Value]) -> String {
    let first = &results[0];
    let text = |name: &str| first[name].as_str().unwrap_or_default();
    let mut out = format!("{} at {}\n\n", text("model_id"), text("date"));
    out.push_str(
        "| clients | answers | failed | prompt tokens each | output tokens/s | first token, median, ms | p99 | \
         between tokens, median, ms | p99 |\n|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for result in results {
        let clients = result["max_concurrency"].as_u64().map_or_else(String::new, |count| format!("{count} "));
        let number = |name: &str| result[name].as_f64().unwrap_or_default();
        let of_each = number("total_input_tokens") / number("completed").max(1.0);
        out.push_str(&format!("| {clients}| {} | {} | {of_each:.0} |", result["completed"], result["failed"]));
        out.push_str(&format!(" {:.1} |", number("output_throughput")));
        for name in ["median_ttft_ms", "p99_ttft_ms", "median_itl_ms", "p99_itl_ms"] {
            out.push_str(&format!(" {:.2} |", number(name)));
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ServeArgs,
    }

    fn args(line: &[&str]) -> ServeArgs {
        Line::try_parse_from([&["serve"], line].concat()).map(|line| line.args).unwrap()
    }

    #[test]
    fn figures_are_those_of_what_was_seen() {
        let seen = |ttft_s: f64, e2el_s: f64, tokens: u64| RequestTimings {
            sent_s: 0.0,
            ttft_s,
            e2el_s,
            itl_s: vec![0.01; tokens as usize - 1],
            input_tokens: 10,
            output_tokens: tokens,
        };
        let all = [seen(0.1, 0.5, 5), seen(0.3, 1.3, 11), seen(0.2, 0.2, 1)];
        let args = args(&["--goodput", "ttft:250", "e2el:1000"]);
        let failures = ["no".to_owned(), "no".to_owned()];
        let found = result(&args, &args.loads()[0], ("url", "m"), Duration::from_secs(2), &all, &failures);
        let expected = [
            ("completed", 3.0),
            ("failed", 2.0),
            ("total_input_tokens", 30.0),
            ("total_output_tokens", 17.0),
            ("request_throughput", 1.5),
            ("request_goodput", 1.0),
            ("output_throughput", 8.5),
            ("total_token_throughput", 23.5),
            ("mean_ttft_ms", 200.0),
            ("median_ttft_ms", 200.0),
            ("mean_tpot_ms", 100.0),
            ("median_itl_ms", 10.0),
            ("median_e2el_ms", 500.0),
            ("p99_e2el_ms", 1284.0),
        ];
        for (name, value) in expected {
            assert!((found[name].as_f64().unwrap() - value).abs() < 1e-6, "{name}: {found}");
        }
        assert_eq!(found["errors"]["no"], 2);
        let text = markdown(&found);
        assert!(text.contains("| time to first token | 200.00 | 200.00 |") && text.contains("2 failed: no"), "{text}");
        let table = comparison(&[found.clone(), found]);
        let line = "| | 3 | 2 | 10 | 8.5 | 200.00 | 298.00 | 10.00 | 10.00 |\n";
        assert!(table.ends_with(&line.repeat(2)), "{table}");
    }
}
