//! `bench serve`: load on a server of OpenAI's interface, this one or another, and what its clients see. Figures have the
//! names that vLLM's `bench serve` gives them, so that results stand beside each other.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};

use super::html;
use super::report::Facts;
use super::shapes::Random;
use super::statistics::{Percentiles, Summary, twentieths};
use super::workload::{self, Lengths, Sample};
use crate::output::{note, stdout};

/// Where a key may stand.
const API_KEY_VARIABLES: [&str; 2] = ["HOTMETAL_API_KEY", "OPENAI_API_KEY"];

/// Times between arrivals beyond this are a burst of all, and then nothing for longer than anybody waits.
const BURSTINESS_MIN: f64 = 0.01;

/// Connections that are kept between requests.
const CONNECTIONS_KEPT: usize = 1024;

/// Put load on a server of OpenAI's interface, and measure what its clients see
#[derive(Args, Debug)]
pub(super) struct ServeArgs {
    /// The server; HOTMETAL_API_KEY or OPENAI_API_KEY holds its key, if it wants one
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    base_url: String,

    /// The model's name [default: the first that the server names]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// The route that is asked
    #[arg(long, value_enum, default_value_t = Endpoint::Completions)]
    endpoint: Endpoint,

    /// Requests
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
    num_prompts: usize,

    /// Requests that arrive in a second, at random (a Poisson process) [default: all at once]
    #[arg(long, value_name = "R")]
    request_rate: Option<f64>,

    /// Requests under way at a time [default: no bound]
    #[arg(long, alias = "concurrency", value_name = "N")]
    max_concurrency: Option<usize>,

    /// How evenly: the shape of the gamma distribution of the times between arrivals; below 1 they come in bursts, and more is
    /// more even
    #[arg(long, value_name = "SHAPE", default_value_t = 1.0, requires = "request_rate")]
    burstiness: f64,

    /// Words of a prompt: N, LEAST-MOST, or lognormal:MEDIAN:SIGMA, with :MOST or without; the server counts its tokens
    #[arg(long, alias = "random-input-len", value_name = "LENGTH", default_value = "128")]
    input_len: Lengths,

    /// Tokens of an answer, in the same words
    #[arg(long, alias = "random-output-len", value_name = "LENGTH", default_value = "64")]
    output_len: Lengths,

    /// Take prompts from a file, chosen at random: objects with `prompt` and `output_len`, or ShareGPT's, one a line or in a
    /// list; where it says how long an answer is, --output-len does not
    #[arg(long, alias = "dataset-path", value_name = "FILE", conflicts_with_all = ["input_len", "range_ratio"])]
    dataset: Option<PathBuf>,

    /// Lengths of one N are uniform, from (1 - R) to (1 + R) of those
    #[arg(long, alias = "random-range-ratio", value_name = "R", default_value_t = 0.0)]
    range_ratio: f64,

    /// Words that prompts begin with, before their own
    #[arg(long, alias = "random-prefix-len", value_name = "N", default_value_t = 0)]
    prefix_len: usize,

    /// So many different beginnings, one of which each prompt has
    #[arg(long, value_name = "N", default_value_t = 1, requires = "prefix_len")]
    num_prefixes: usize,

    /// Of arrivals, lengths, words and sampling
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Of sampling
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f32,

    /// Let answers end where the model ends them; otherwise the server is told not to (`ignore_eos`)
    #[arg(long)]
    allow_eos: bool,

    /// What a good request keeps to, in milliseconds: `ttft:200 tpot:50 e2el:5000`
    #[arg(long, value_name = "WHAT:MS", num_args = 1..)]
    goodput: Vec<Goal>,

    /// How the result is printed
    #[arg(long, short = 'o', value_enum, default_value_t = Format::Md)]
    output: Format,

    /// Write the result as a page with plots, too
    #[arg(long, value_name = "OUT.html")]
    report: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Endpoint {
    Completions,
    Chat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Md,
    Json,
}

/// A bound that a good request keeps to.
#[derive(Clone, Debug, PartialEq)]
struct Goal {
    what: Metric,
    ms: f64,
}

/// What is measured of requests, by vLLM's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metric {
    /// From the request to its first text.
    Ttft,
    /// Of one answer, the mean time of a token after the first.
    Tpot,
    /// From one piece of text to the next.
    Itl,
    /// From the request to its end.
    E2el,
}

impl Metric {
    const ALL: [Self; 4] = [Self::Ttft, Self::Tpot, Self::Itl, Self::E2el];

    fn name(self) -> &'static str {
        match self {
            Self::Ttft => "ttft",
            Self::Tpot => "tpot",
            Self::Itl => "itl",
            Self::E2el => "e2el",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Ttft => "time to first token",
            Self::Tpot => "time per output token",
            Self::Itl => "inter-token latency",
            Self::E2el => "end to end",
        }
    }
}

impl std::str::FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || format!("`{text}` is no goal: ttft:MS, tpot:MS or e2el:MS");
        let (what, ms) = text.split_once(':').ok_or_else(malformed)?;
        let what = [Metric::Ttft, Metric::Tpot, Metric::E2el].into_iter().find(|metric| metric.name() == what);
        let ms: f64 = ms.parse().map_err(|_| malformed())?;
        match what {
            Some(what) if ms > 0.0 && ms.is_finite() => Ok(Self { what, ms }),
            _ => Err(malformed()),
        }
    }
}

/// A request that will be sent.
#[derive(Clone, Debug, PartialEq)]
struct Planned {
    /// When, after the start.
    at: Duration,
    body: Value,
}

/// What one request showed.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// When it was sent, after the start of the measurement.
    sent_s: f64,
    ttft_s: f64,
    itl_s: Vec<f64>,
    e2el_s: f64,
    input_tokens: u64,
    output_tokens: u64,
}

impl Seen {
    /// `None` of an answer without a second token.
    fn tpot_s(&self) -> Option<f64> {
        (self.output_tokens > 1).then(|| (self.e2el_s - self.ttft_s) / (self.output_tokens - 1) as f64)
    }

    fn is_good(&self, goals: &[Goal]) -> bool {
        goals.iter().all(|goal| {
            let found = match goal.what {
                Metric::Ttft => self.ttft_s,
                Metric::Tpot => self.tpot_s().unwrap_or(0.0),
                Metric::Itl | Metric::E2el => self.e2el_s,
            };
            found * 1e3 <= goal.ms
        })
    }
}

/// Tokens that arrived while as many answers came at once as ever did: without the time in which the first of them begin,
/// others wait for their turn, or the last ones end.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Steady {
    /// Answers that come at once.
    concurrency: usize,
    seconds: f64,
    tokens: f64,
}

impl Steady {
    /// `None` where no answer has a second token.
    fn of(seen: &[Seen]) -> Option<Self> {
        /// Sums of times in another order are apart by less.
        const SAME_S: f64 = 1e-9;
        // An answer comes from its first token to its last. Of two at one time, the end is before the beginning.
        let begins = |seen: &Seen| seen.sent_s + seen.ttft_s;
        let coming = || seen.iter().filter(|seen| seen.e2el_s > seen.ttft_s);
        let mut edges: Vec<(f64, bool)> =
            coming().flat_map(|seen| [(begins(seen), true), (seen.sent_s + seen.e2el_s, false)]).collect();
        edges.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut count = 0usize;
        let mut spans: Vec<(usize, f64, f64)> = Vec::with_capacity(edges.len());
        for (index, &(at, begins)) in edges.iter().enumerate() {
            count = if begins { count + 1 } else { count - 1 };
            let end = edges.get(index + 1).map_or(at, |next| next.0);
            spans.push((count, at, end));
        }
        let concurrency = spans.iter().map(|span| span.0).max()?;
        spans.retain(|span| span.0 == concurrency);
        let tokens = coming().map(|seen| {
            // A piece of text may be of several tokens, or of none that is seen yet: each counts for its share.
            let share = seen.output_tokens.saturating_sub(1) as f64 / seen.itl_s.len().max(1) as f64;
            let mut at = begins(seen);
            let arrivals = seen.itl_s.iter().filter(|&&itl| {
                at += itl;
                let span = spans.partition_point(|span| span.1 < at);
                span > 0 && at <= spans[span - 1].2 + SAME_S
            });
            arrivals.count() as f64 * share
        });
        let tokens = tokens.sum();
        Some(Self { concurrency, seconds: spans.iter().map(|span| span.2 - span.1).sum(), tokens })
    }

    /// Adds the figures to a result.
    fn write(&self, result: &mut Value) {
        let rounded = |value: f64| (value * 1e3).round() / 1e3;
        result["steady_concurrency"] = self.concurrency.into();
        result["steady_duration"] = rounded(self.seconds).into();
        result["steady_output_throughput"] = rounded(self.tokens / self.seconds).into();
    }
}

/// Runs the command.
pub(super) fn serve(args: &ServeArgs) -> Result<()> {
    check(args)?;
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        // Each that is under way keeps its connection.
        .max_idle_connections(CONNECTIONS_KEPT)
        .max_idle_connections_per_host(CONNECTIONS_KEPT)
        .build()
        .into();
    let client = Client { agent, base_url: args.base_url.trim_end_matches('/').to_owned(), key: key() };
    let model = args.model.clone().map_or_else(|| client.first_model(), Ok)?;
    let samples = args.dataset.as_deref().map(workload::samples).transpose()?;
    let mut planned = plan(args, &model, args.num_prompts + 1, samples.as_deref());
    let path = match args.endpoint {
        Endpoint::Completions => "/v1/completions",
        Endpoint::Chat => "/v1/chat/completions",
    };
    // Connections, and what a server compiles at its first request, are not what is measured; nor is what it remembers of
    // a prompt, so this one is like the others and none of them.
    let first = planned.pop().ok_or_else(|| anyhow!("there are no requests to send"))?;
    client.ask(path, &first.body, Instant::now()).context("the first request, which is not measured, failed")?;
    note(&format!("{} requests to {}{path}, model `{model}`", planned.len(), client.base_url));
    let steps = client.steps(&model);
    let begun = Instant::now();
    let (seen, failures) = run(&client, path, planned, args.max_concurrency.unwrap_or(usize::MAX), begun)?;
    let mut result = result(args, &model, begun.elapsed(), &seen, &failures);
    if let Some((before, after)) = steps.zip(client.steps(&model)) {
        after.since(&before).write(&mut result);
    }
    if seen.is_empty() {
        bail!("no request was answered: {}", failures.first().map_or("", String::as_str));
    }
    match args.output {
        Format::Md => stdout(&markdown(&result))?,
        Format::Json => stdout(&format!("{result:#}\n"))?,
    }
    match &args.report {
        Some(path) => html::write_serve(path, &title(&result), &figures(&result), &quantiles(&seen)),
        None => Ok(()),
    }
}

fn check(args: &ServeArgs) -> Result<()> {
    if args.request_rate.is_some_and(|rate| !(rate > 0.0 && rate.is_finite())) {
        bail!("--request-rate has to be above 0; without it all requests are sent at once");
    }
    if args.max_concurrency == Some(0) || args.num_prompts == 0 || args.num_prefixes == 0 {
        bail!("--max-concurrency, --num-prompts and --num-prefixes have to be at least 1");
    }
    if args.num_prefixes > 1 && args.prefix_len == 0 {
        bail!("--num-prefixes {} makes beginnings of no words: --prefix-len says how long they are", args.num_prefixes);
    }
    if !(args.burstiness >= BURSTINESS_MIN && args.burstiness.is_finite()) {
        bail!("--burstiness is {}, expected at least {BURSTINESS_MIN}; 1 is a Poisson process", args.burstiness);
    }
    if !(0.0..1.0).contains(&args.range_ratio) {
        bail!("--range-ratio is {}, expected from 0 to below 1", args.range_ratio);
    }
    let is_spread = [args.input_len, args.output_len].iter().all(|lengths| !matches!(lengths, Lengths::About(_)));
    if args.range_ratio > 0.0 && is_spread {
        bail!("--range-ratio is about lengths of one number, and --input-len and --output-len are spread already");
    }
    Ok(())
}

fn key() -> Option<String> {
    API_KEY_VARIABLES.into_iter().find_map(|name| std::env::var(name).ok())
}

/// The first `count` requests, with when each is sent; of `samples`, where there are any.
fn plan(args: &ServeArgs, model: &str, count: usize, samples: Option<&[Sample]>) -> Vec<Planned> {
    let random = &mut Random(args.seed);
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
            let planned = Planned { at: Duration::from_secs_f64(at), body };
            at += args.request_rate.map_or(0.0, |rate| random.pause(rate, args.burstiness));
            planned
        })
        .collect()
}

/// Sends all, each at its time or as soon after as `most` under way allow. What was seen, and what failed.
fn run(
    client: &Client,
    path: &str,
    planned: Vec<Planned>,
    most: usize,
    begun: Instant,
) -> Result<(Vec<Seen>, Vec<String>)> {
    let (seen, failures) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let under_way = (Mutex::new(0usize), Condvar::new());
    let refused = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for Planned { at, body } in planned {
            std::thread::sleep(at.saturating_sub(begun.elapsed()));
            let mut count = under_way.0.lock().unwrap_or_else(PoisonError::into_inner);
            while *count >= most {
                count = under_way.1.wait(count).unwrap_or_else(PoisonError::into_inner);
            }
            *count += 1;
            drop(count);
            let (seen, failures, under_way, refused) = (&seen, &failures, &under_way, &refused);
            let thread = std::thread::Builder::new().stack_size(256 << 10);
            let spawned = thread.spawn_scoped(scope, move || {
                match client.ask(path, &body, begun) {
                    Ok(found) => seen.lock().unwrap_or_else(PoisonError::into_inner).push(found),
                    Err(error) => {
                        refused.fetch_add(1, Ordering::Relaxed);
                        failures.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{error:#}"));
                    }
                }
                *under_way.0.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
                under_way.1.notify_one();
            });
            spawned.context("no thread for another request under way; --max-concurrency bounds them")?;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    let of = |list: Mutex<Vec<String>>| list.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok((seen.into_inner().unwrap_or_else(PoisonError::into_inner), of(failures)))
}

/// Steps of the engine, as servers of this program count them.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Steps {
    count: f64,
    step_s: f64,
    /// Beside the device's program.
    host_s: f64,
}

impl Steps {
    /// Those of `model`, from the text that Prometheus reads; `None` of another server's.
    fn read(metrics: &str, model: &str) -> Option<Self> {
        let label = format!("{{model_name=\"{model}\"");
        let value = |name: &str| {
            let line =
                metrics.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(&*label)));
            line?.rsplit(' ').next()?.parse::<f64>().ok()
        };
        Some(Self {
            count: value("hotmetal_step_seconds_count")?,
            step_s: value("hotmetal_step_seconds_sum")?,
            host_s: value("hotmetal_step_host_seconds_sum")?,
        })
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            count: self.count - before.count,
            step_s: self.step_s - before.step_s,
            host_s: self.host_s - before.host_s,
        }
    }

    /// Adds the figures to a result.
    fn write(&self, result: &mut Value) {
        let of_each = |seconds: f64| (seconds / self.count.max(1.0) * 1e8).round() / 1e2;
        result["engine_steps"] = self.count.into();
        result["mean_step_us"] = of_each(self.step_s).into();
        result["mean_step_host_us"] = of_each(self.host_s).into();
    }
}

/// Who asks.
struct Client {
    agent: ureq::Agent,
    base_url: String,
    key: Option<String>,
}

impl Client {
    /// With the key, where there is one.
    fn authorized<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.key {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    fn first_model(&self) -> Result<String> {
        let url = format!("{}/v1/models", self.base_url);
        let request = self.authorized(self.agent.get(&url));
        let text = request
            .call()
            .and_then(|mut answer| answer.body_mut().read_to_string())
            .with_context(|| format!("no answer from {url}; is a server there? --base-url says where it is"))?;
        let models: Value = serde_json::from_str(&text).with_context(|| format!("{url} did not answer with JSON"))?;
        let first = models["data"][0]["id"].as_str();
        first.map(str::to_owned).ok_or_else(|| anyhow!("{url} names no model: {text:.200}; --model does"))
    }

    /// What the server's engine has done, where the server says so.
    fn steps(&self, model: &str) -> Option<Steps> {
        let request = self.authorized(self.agent.get(format!("{}/metrics", self.base_url)));
        Steps::read(&request.call().ok()?.body_mut().read_to_string().ok()?, model)
    }

    /// Sends a request and reads its stream; the measurement began at `start`.
    fn ask(&self, path: &str, body: &Value, start: Instant) -> Result<Seen> {
        let url = format!("{}{path}", self.base_url);
        let request = self.authorized(self.agent.post(&url).header("content-type", "application/json"));
        let begun = Instant::now();
        let mut answer = request.send(body.to_string()).with_context(|| format!("no answer from {url}"))?;
        if !answer.status().is_success() {
            let text = answer.body_mut().read_to_string().unwrap_or_default();
            bail!("{url} answered {}: {text:.300}", answer.status());
        }
        let seen = read_stream(BufReader::new(answer.into_body().into_reader()), begun)?;
        Ok(Seen { sent_s: (begun - start).as_secs_f64(), ..seen })
    }
}

/// Reads events until `[DONE]` or the end.
fn read_stream(mut lines: impl BufRead, begun: Instant) -> Result<Seen> {
    let mut seen = Seen::default();
    let mut last: Option<Instant> = None;
    let mut pieces = 0;
    let mut line = String::new();
    loop {
        line.clear();
        if lines.read_line(&mut line).context("the stream broke")? == 0 {
            break;
        }
        let Some(data) = line.trim_end().strip_prefix("data: ") else { continue };
        if data == "[DONE]" {
            break;
        }
        let now = Instant::now();
        let event: Value = serde_json::from_str(data).context("an event is not JSON")?;
        if !event["error"].is_null() {
            bail!("an error in the stream: {}", event["error"]["message"]);
        }
        if let Some(usage) = event["usage"].as_object() {
            let count = |name: &str| usage.get(name).and_then(Value::as_u64).unwrap_or_default();
            (seen.input_tokens, seen.output_tokens) = (count("prompt_tokens"), count("completion_tokens"));
        }
        let choice = &event["choices"][0];
        let text = [&choice["text"], &choice["delta"]["content"], &choice["delta"]["reasoning_content"]];
        if text.into_iter().any(|text| text.as_str().is_some_and(|text| !text.is_empty())) {
            match last {
                None => seen.ttft_s = (now - begun).as_secs_f64(),
                Some(last) => seen.itl_s.push((now - last).as_secs_f64()),
            }
            last = Some(now);
            pieces += 1;
        }
    }
    let last = last.ok_or_else(|| anyhow!("the answer has no text"))?;
    seen.e2el_s = (last - begun).as_secs_f64();
    if seen.output_tokens == 0 {
        // A server that counts nothing: a piece is taken for a token.
        seen.output_tokens = pieces;
    }
    Ok(seen)
}

/// The samples of a metric, in milliseconds.
fn samples(seen: &[Seen], metric: Metric) -> Vec<f64> {
    let ms = |seconds: f64| seconds * 1e3;
    match metric {
        Metric::Ttft => seen.iter().map(|seen| ms(seen.ttft_s)).collect(),
        Metric::Tpot => seen.iter().filter_map(Seen::tpot_s).map(ms).collect(),
        Metric::Itl => seen.iter().flat_map(|seen| &seen.itl_s).map(|&itl| ms(itl)).collect(),
        Metric::E2el => seen.iter().map(|seen| ms(seen.e2el_s)).collect(),
    }
}

fn quantiles(seen: &[Seen]) -> Vec<(&'static str, Vec<f64>)> {
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
fn result(args: &ServeArgs, model: &str, duration: Duration, seen: &[Seen], failures: &[String]) -> Value {
    let seconds = duration.as_secs_f64();
    let total = |count: fn(&Seen) -> u64| seen.iter().map(count).sum::<u64>();
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
        "backend": args.base_url, "model_id": model, "num_prompts": args.num_prompts,
        "request_rate": args.request_rate.map_or(json!("inf"), |rate| json!(rate)), "burstiness": args.burstiness,
        "max_concurrency": args.max_concurrency, "random_input_len": shown(args.input_len),
        "random_output_len": shown(args.output_len), "random_range_ratio": args.range_ratio,
        "random_prefix_len": args.prefix_len, "num_prefixes": args.num_prefixes,
        "dataset": args.dataset.as_ref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy()), "seed": args.seed, "temperature": args.temperature,
        "duration": rounded(seconds), "completed": seen.len(), "failed": failures.len(),
        "total_input_tokens": input, "total_output_tokens": output,
        "request_throughput": rate(seen.len() as f64),
        "request_goodput": (!args.goodput.is_empty()).then(|| rate(good as f64)),
        "output_throughput": rate(output as f64), "total_token_throughput": rate((input + output) as f64),
    });
    if let Some(steady) = Steady::of(seen).filter(|steady| steady.seconds > 0.0) {
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

fn title(result: &Value) -> String {
    format!("{} requests to {}", result["num_prompts"], result["model_id"].as_str().unwrap_or_default())
}

/// Name and value of each figure.
fn figures(result: &Value) -> Vec<(String, String)> {
    let entry = |(name, value): (&String, &Value)| {
        let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        (name.clone(), shown)
    };
    let is_figure = |(_, value): &(&String, &Value)| !value.is_object() && !value.is_null();
    result.as_object().into_iter().flatten().filter(is_figure).map(entry).collect()
}

fn markdown(result: &Value) -> String {
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
        let of = |line: &[&str], count: usize| plan(&args(line), "m", count, None);
        let mut planned = of(&line, 4001);
        let first = planned.pop().unwrap();
        assert_eq!(planned, of(&line, 4000));
        assert!(planned.iter().all(|other| other.body["prompt"] != first.body["prompt"]), "it warms no prompt up");
        assert_ne!(planned, of(&[&line[..], &["--seed", "1"]].concat(), 4000));
        let seconds = planned.last().unwrap().at.as_secs_f64();
        assert!((76.0..84.0).contains(&seconds), "{seconds}");
        let words = |planned: &Planned| planned.body["prompt"].as_str().unwrap().split(' ').count() as f64;
        let mean = planned.iter().map(words).sum::<f64>() / 4000.0;
        assert!((24.5..25.5).contains(&mean), "{mean}");
        assert!(planned.iter().all(|planned| (15.0..=35.0).contains(&words(planned))));
        let first = |planned: &Planned| planned.body["prompt"].as_str().unwrap().split(' ').take(5).collect::<String>();
        assert!(planned.iter().all(|other| first(other) == first(&planned[0])));
        let lengths: Vec<u64> = planned.iter().map(|planned| planned.body["max_tokens"].as_u64().unwrap()).collect();
        assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&5), Some(&15)));
        assert!(of(&["-n", "3"], 3).iter().all(|planned| planned.at.is_zero()));
    }

    #[test]
    fn prompts_begin_alike_in_as_many_ways_as_asked_for_and_may_come_from_a_file() {
        let line = ["-n", "400", "--prefix-len", "6", "--num-prefixes", "4", "--input-len", "lognormal:9:0.5"];
        let planned = plan(&args(&line), "m", 400, None);
        assert_eq!(planned, plan(&args(&line), "m", 400, None));
        let mut counts = std::collections::BTreeMap::<String, usize>::new();
        for planned in &planned {
            let words: Vec<_> = planned.body["prompt"].as_str().unwrap().split(' ').take(6).collect();
            *counts.entry(words.join(" ")).or_default() += 1;
        }
        assert!(counts.len() == 4 && counts.values().all(|count| (60..140).contains(count)), "{counts:?}");
        let samples = [("a", Some(3)), ("b", None)];
        let samples = samples.map(|(prompt, output_len)| Sample { prompt: prompt.to_owned(), output_len });
        let planned = plan(&args(&["--output-len", "5-6"]), "m", 200, Some(&samples));
        let has = |prompt: &str, len: u64| {
            planned.iter().filter(|p| p.body["prompt"] == prompt && p.body["max_tokens"] == len).count()
        };
        assert!(has("a", 3) > 60 && has("b", 5) > 20 && has("b", 6) > 20);
        assert_eq!(has("a", 3) + has("b", 5) + has("b", 6), 200);
        for line in [
            &["--num-prefixes", "0", "--prefix-len", "1"][..],
            &["--num-prefixes", "3", "--prefix-len", "0"],
            &["--burstiness", "0", "--request-rate", "1"],
            &["--burstiness", "nan", "--request-rate", "1"],
            &["--input-len", "4-9", "--output-len", "4-9", "--range-ratio", "0.5"],
        ] {
            assert!(check(&args(line)).is_err(), "{line:?}");
        }
        for line in [["--burstiness", "2"], ["--num-prefixes", "2"], ["--input-len", "0"]] {
            assert!(Line::try_parse_from(["serve"].iter().chain(&line)).is_err(), "{line:?}");
        }
    }

    #[test]
    fn a_stream_is_read_as_clients_read_it() {
        let text = "data: {\"choices\": [{\"text\": \"\"}]}\n\n: still here\n\ndata: {\"choices\": [{\"text\": \"a\"}]}\n\n\
                    data: {\"choices\": [{\"delta\": {\"content\": \"b\"}}]}\n\n\
                    data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 7, \"completion_tokens\": 3}}\n\ndata: [DONE]\n\n";
        let seen = read_stream(text.as_bytes(), Instant::now()).unwrap();
        assert_eq!((seen.input_tokens, seen.output_tokens, seen.itl_s.len()), (7, 3, 1));
        assert!(seen.e2el_s >= seen.ttft_s);
        let broken = "data: {\"error\": {\"message\": \"the step failed\"}}\n\ndata: [DONE]\n\n";
        assert!(read_stream(broken.as_bytes(), Instant::now()).unwrap_err().to_string().contains("the step failed"));
        assert!(read_stream(&b"data: [DONE]\n\n"[..], Instant::now()).is_err());
    }

    #[test]
    fn steps_are_read_from_the_metrics_of_this_program_alone() {
        let metrics = |count: u64, step: f64, host: f64| {
            format!(
                "# TYPE hotmetal_step_seconds histogram\nhotmetal_step_seconds_sum{{model_name=\"m\"}} {step}\n\
                 hotmetal_step_seconds_count{{model_name=\"m\"}} {count}\n\
                 hotmetal_step_host_seconds_sum{{model_name=\"m\"}} {host}\n"
            )
        };
        let [before, after] =
            [metrics(10, 1.0, 0.5), metrics(14, 1.02, 0.5001)].map(|text| Steps::read(&text, "m").unwrap());
        let mut result = json!({});
        after.since(&before).write(&mut result);
        assert_eq!(result, json!({"engine_steps": 4.0, "mean_step_us": 5000.0, "mean_step_host_us": 25.0}));
        assert_eq!(Steps::read("vllm:generation_tokens_total 7\n", "m"), None);
    }

    #[test]
    fn the_steady_part_is_when_most_answers_come_at_once() {
        // Tokens at `sent + ttft`, and then every `itl`.
        let seen = |sent_s: f64, ttft_s: f64, itl_s: f64, tokens: u64| Seen {
            sent_s,
            ttft_s,
            itl_s: vec![itl_s; tokens as usize - 1],
            e2el_s: ttft_s + itl_s * (tokens - 1) as f64,
            input_tokens: 1,
            output_tokens: tokens,
        };
        // Two at once from 3 to 5 (tokens of the first at 4 and 5, of the second at 3.5 to 5), and from 7 to 9, when the
        // first is followed by another.
        let all = [seen(0.0, 1.0, 1.0, 5), seen(1.0, 2.0, 0.5, 13), seen(5.0, 2.0, 2.0, 3), seen(20.0, 1.0, 1.0, 1)];
        let steady = Steady::of(&all).unwrap();
        assert_eq!(steady, Steady { concurrency: 2, seconds: 4.0, tokens: 2.0 + 4.0 + 4.0 + 1.0 });
        // Half of the pieces are of two tokens.
        let merged = Seen { output_tokens: 7, ..seen(0.0, 1.0, 1.0, 5) };
        let expected = Steady { concurrency: 1, seconds: 4.0, tokens: 6.0 };
        assert_eq!(Steady::of(&[merged]), Some(expected));
        assert_eq!(Steady::of(&[seen(0.0, 1.0, 1.0, 1)]), None);
        let result = result(&args(&[]), "m", Duration::from_secs(30), &all, &[]);
        assert_eq!(result["steady_output_throughput"], 2.75);
        assert_eq!((&result["steady_concurrency"], &result["steady_duration"]), (&json!(2), &json!(4.0)));
    }

    #[test]
    fn figures_are_those_of_what_was_seen() {
        let seen = |ttft_s: f64, e2el_s: f64, tokens: u64| Seen {
            sent_s: 0.0,
            ttft_s,
            e2el_s,
            itl_s: vec![0.01; tokens as usize - 1],
            input_tokens: 10,
            output_tokens: tokens,
        };
        let all = [seen(0.1, 0.5, 5), seen(0.3, 1.3, 11), seen(0.2, 0.2, 1)];
        let args = args(&["--goodput", "ttft:250", "e2el:1000"]);
        let found = result(&args, "m", Duration::from_secs(2), &all, &["no".to_owned(), "no".to_owned()]);
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
        assert!("tpot:x".parse::<Goal>().is_err() && "itl:5".parse::<Goal>().is_err());
    }
}
