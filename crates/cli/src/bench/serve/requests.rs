//! Which requests are sent, and when.

use std::time::Duration;

use lab::patterns::Random;
use serde_json::{Value, json};

use super::args::{Endpoint, Load, ServeArgs};
use crate::bench::workload::Draw;
use crate::bench::workload::Sample;

/// A request that will be sent.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlannedRequest {
    /// When, after the start.
    pub(super) at: Duration,
    pub(super) body: Value,
}

/// The first `count` requests of `load`, with when each is sent; of `samples`, where there are any.
pub(super) fn plan(
    args: &ServeArgs,
    load: &Load,
    model: &str,
    count: usize,
    samples: Option<&[Sample]>,
) -> Vec<PlannedRequest> {
    let random = &mut Random(load.seed);
    let prefixes: Vec<String> = (0..args.num_prefixes).map(|_| random.words(args.prefix_len)).collect();
    let mut at = 0.0;
    (0..count)
        .map(|_| {
            let sample = samples.map(|samples| &samples[random.below(samples.len())]);
            let own = match sample {
                Some(sample) => sample.prompt.clone(),
                None => {
                    let len = random.length(args.input_len, args.range_ratio);
                    random.words(len)
                }
            };
            // The only one takes no random number.
            let prefix = if prefixes.len() > 1 { &prefixes[random.below(prefixes.len())] } else { &prefixes[0] };
            let text = format!("{prefix} {own}").trim_start().to_owned();
            let len = sample.and_then(|sample| sample.output_len);
            let len = len.unwrap_or_else(|| random.length(args.output_len, args.range_ratio));
            let mut body = json!({
                "model": model, "max_tokens": len, "temperature": args.temperature, "seed": random.next() >> 33,
                "stream": true, "stream_options": {"include_usage": true},
            });
            match args.endpoint {
                Endpoint::Completions => body["prompt"] = text.into(),
                Endpoint::Chat => body["messages"] = json!([{"role": "user", "content": text}]),
            }
            if !args.allow_eos {
                body["ignore_eos"] = true.into();
            }
            let planned = PlannedRequest { at: Duration::from_secs_f64(at), body };
            at += args.request_rate.map_or(0.0, |rate| random.pause(rate, args.burstiness));
            planned
        })
        .collect()
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

    /// The first requests of the first measurement.
    fn first(args: &ServeArgs, count: usize, samples: Option<&[Sample]>) -> Vec<PlannedRequest> {
        plan(args, &args.loads()[0], "m", count, samples)
    }

    #[test]
    fn several_counts_of_clients_are_several_measurements_with_prompts_of_their_own() {
        let of = |line: &[&str]| args(line).loads();
        let sizes = |line: &[&str]| -> Vec<_> {
            of(line).iter().map(|load| (load.num_prompts, load.max_concurrency)).collect()
        };
        assert_eq!(sizes(&[]), [(100, None)]);
        assert_eq!(sizes(&["--clients", "1,64"]), [(100, Some(1)), (256, Some(64))]);
        assert_eq!(sizes(&["--max-concurrency", "1", "--clients", "64", "-n", "7"]), [(7, Some(1)), (7, Some(64))]);
        let args = args(&["--clients", "4,4"]);
        let loads = args.loads();
        let [one, other] = [0, 1].map(|index| plan(&args, &loads[index], "m", 5, None));
        assert!(one.iter().zip(&other).all(|(one, other)| one.body["prompt"] != other.body["prompt"]));
    }

    #[test]
    fn the_same_seed_sends_the_same_requests_at_the_rate_asked_for() {
        let line = [
            "-n",
            "4000",
            "--request-rate",
            "50",
            "--input-len",
            "20",
            "--output-len",
            "10",
            "--range-ratio",
            "0.5",
            "--prefix-len",
            "5",
        ];
        let of = |line: &[&str], count: usize| first(&args(line), count, None);
        let mut planned = of(&line, 4001);
        let first = planned.pop().unwrap();
        assert_eq!(planned, of(&line, 4000));
        assert!(planned.iter().all(|other| other.body["prompt"] != first.body["prompt"]), "it warms no prompt up");
        assert_ne!(planned, of(&[&line[..], &["--seed", "1"]].concat(), 4000));
        let seconds = planned.last().unwrap().at.as_secs_f64();
        assert!((76.0..84.0).contains(&seconds), "{seconds}");
        let words = |planned: &PlannedRequest| planned.body["prompt"].as_str().unwrap().split(' ').count() as f64;
        let mean = planned.iter().map(words).sum::<f64>() / 4000.0;
        assert!((24.5..25.5).contains(&mean), "{mean}");
        assert!(planned.iter().all(|planned| (15.0..=35.0).contains(&words(planned))));
        let first =
            |planned: &PlannedRequest| planned.body["prompt"].as_str().unwrap().split(' ').take(5).collect::<String>();
        assert!(planned.iter().all(|other| first(other) == first(&planned[0])));
        let lengths: Vec<u64> = planned.iter().map(|planned| planned.body["max_tokens"].as_u64().unwrap()).collect();
        assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&5), Some(&15)));
        assert!(of(&["-n", "3"], 3).iter().all(|planned| planned.at.is_zero()));
    }

    #[test]
    fn prompts_begin_alike_in_as_many_ways_as_asked_for_and_may_come_from_a_file() {
        let line = ["-n", "400", "--prefix-len", "6", "--num-prefixes", "4", "--input-len", "lognormal:9:0.5"];
        let planned = first(&args(&line), 400, None);
        assert_eq!(planned, first(&args(&line), 400, None));
        let mut counts = std::collections::BTreeMap::<String, usize>::new();
        for planned in &planned {
            let words: Vec<_> = planned.body["prompt"].as_str().unwrap().split(' ').take(6).collect();
            *counts.entry(words.join(" ")).or_default() += 1;
        }
        assert!(counts.len() == 4 && counts.values().all(|count| (60..140).contains(count)), "{counts:?}");
        let samples = [("a", Some(3)), ("b", None)];
        let samples = samples.map(|(prompt, output_len)| Sample { prompt: prompt.to_owned(), output_len });
        let planned = first(&args(&["--output-len", "5-6"]), 200, Some(&samples));
        let has = |prompt: &str, len: u64| {
            planned.iter().filter(|p| p.body["prompt"] == prompt && p.body["max_tokens"] == len).count()
        };
        assert!(has("a", 3) > 60 && has("b", 5) > 20 && has("b", 6) > 20);
        assert_eq!(has("a", 3) + has("b", 5) + has("b", 6), 200);
        for line in [
            &["--num-prefixes", "0", "--prefix-len", "1"][..],
            &["--clients", "4,0"],
            &["--clients", "4,8", "--report", "page.html"],
            &["--num-prefixes", "3", "--prefix-len", "0"],
            &["--burstiness", "0", "--request-rate", "1"],
            &["--burstiness", "nan", "--request-rate", "1"],
            &["--input-len", "4-9", "--output-len", "4-9", "--range-ratio", "0.5"],
        ] {
            assert!(args(line).check().is_err(), "{line:?}");
        }
        for line in [["--burstiness", "2"], ["--num-prefixes", "2"], ["--input-len", "0"], ["--format", "q4_0"]] {
            assert!(Line::try_parse_from(["serve"].iter().chain(&line)).is_err(), "{line:?}");
        }
    }
}
