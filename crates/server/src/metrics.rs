//! Counters and distributions for Prometheus: under vLLM's names, which gateways know, and under our own.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;

use crate::app::{ModelPhase, Serving};
use crate::{grammar, masks};

/// Upper bounds in seconds.
const TTFT_S: &[f64] = &[0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 40.0, 160.0];
const ITL_S: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0];
const E2E_S: &[f64] = &[0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0];
const TOKENS: &[f64] = &[1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0];

/// What has happened to connections and requests, whatever model they were for.
#[derive(Debug, Default)]
pub(crate) struct HttpMetrics(Mutex<HttpCounts>);

#[derive(Debug, Default)]
struct HttpCounts {
    /// Answers by route and status.
    answers: BTreeMap<(String, u16), u64>,
    connections: u64,
}

/// What has happened to the requests of one model since it was there.
#[derive(Debug, Default)]
pub(crate) struct Metrics(Mutex<Counts>);

#[derive(Debug)]
struct Counts {
    prompt_tokens: u64,
    generated_tokens: u64,
    finished: BTreeMap<&'static str, u64>,
    refused: u64,
    ttft: Histogram,
    itl: Histogram,
    e2e: Histogram,
    /// Parts of that: in the queue, then until the first token, then until the last.
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    request_prompt_tokens: Histogram,
    request_generated_tokens: Histogram,
}

/// How values are spread.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    /// How many were at most each bound, and above the one before.
    counts: Vec<u64>,
    sum: f64,
    total: u64,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            prompt_tokens: 0,
            generated_tokens: 0,
            finished: BTreeMap::new(),
            refused: 0,
            ttft: Histogram::new(TTFT_S),
            itl: Histogram::new(ITL_S),
            e2e: Histogram::new(E2E_S),
            queue: Histogram::new(E2E_S),
            prefill: Histogram::new(E2E_S),
            decode: Histogram::new(E2E_S),
            request_prompt_tokens: Histogram::new(TOKENS),
            request_generated_tokens: Histogram::new(TOKENS),
        }
    }
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len()], sum: 0.0, total: 0 }
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> u64 {
        self.total
    }

    #[cfg(test)]
    pub(crate) fn sum(&self) -> f64 {
        self.sum
    }

    pub(crate) fn observe(&mut self, value: f64) {
        if let Some(index) = self.bounds.iter().position(|&bound| value <= bound) {
            self.counts[index] += 1;
        }
        self.sum += value;
        self.total += 1;
    }

    fn write(&self, page: &mut Page, name: &'static str, help: &'static str, labels: &str) {
        let out = page.family(name, "histogram", help);
        let mut below = 0;
        for (bound, count) in self.bounds.iter().zip(&self.counts) {
            below += count;
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {below}");
        }
        let Self { sum, total, .. } = self;
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {total}");
        let _ = writeln!(out, "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {total}");
    }
}

/// A page of Prometheus' text format, which wants the values of a name together, whatever model they are of.
#[derive(Default)]
struct Page {
    /// By name: what stands before the values, and the values.
    families: Vec<(&'static str, String)>,
}

impl Page {
    /// Where the values of a name are written.
    fn family(&mut self, name: &'static str, kind: &str, help: &str) -> &mut String {
        let known = self.families.iter().position(|(known, _)| *known == name);
        let index = known.unwrap_or_else(|| {
            self.families.push((name, format!("# HELP {name} {help}\n# TYPE {name} {kind}\n")));
            self.families.len() - 1
        });
        &mut self.families[index].1
    }

    fn single(&mut self, name: &'static str, kind: &str, help: &str, labels: &str, value: impl std::fmt::Display) {
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(self.family(name, kind, help), "{name}{labels} {value}");
    }

    fn text(self) -> String {
        self.families.into_iter().map(|(_, text)| text).collect()
    }
}

/// Everything, in Prometheus' text format; of an engine only where there is one. Requests that no engine has yet hold
/// `prepare_bytes` of memory.
pub(crate) fn write<'a>(
    http: &HttpMetrics,
    prepare_bytes: usize,
    models: impl Iterator<Item = (&'a str, ModelPhase<'a>)>,
) -> String {
    let mut page = Page::default();
    {
        let counts = http.counts();
        for ((route, status), count) in &counts.answers {
            let out = page.family("hotmetal_http_answers_total", "counter", "Answers by route and status.");
            let _ = writeln!(out, "hotmetal_http_answers_total{{route=\"{route}\",status=\"{status}\"}} {count}");
        }
        page.single("hotmetal_connections", "gauge", "Open connections.", "", counts.connections);
        let help = "Memory that requests have taken which no engine has yet.";
        page.single("hotmetal_prepare_bytes", "gauge", help, "", prepare_bytes);
        let help = "Grammars and their masks that failed in a way that is a bug.";
        let panics = grammar::num_panics() + masks::num_panics();
        page.single("hotmetal_grammar_panics_total", "counter", help, "", panics);
    }
    for (name, phase) in models {
        let name = name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let model = format!("model_name=\"{name}\"");
        let answers = matches!(phase, ModelPhase::Ready(_));
        page.single("hotmetal_model_ready", "gauge", "Whether the model answers: 1 or 0.", &model, u8::from(answers));
        if let ModelPhase::Ready(serving) = phase {
            write_engine(&mut page, &serving.metrics.counts(), serving, &model);
        }
    }
    page.text()
}

impl HttpMetrics {
    fn counts(&self) -> MutexGuard<'_, HttpCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn answered(&self, route: &str, status: StatusCode) {
        *self.counts().answers.entry((route.to_owned(), status.as_u16())).or_default() += 1;
    }

    /// Those that are open.
    #[cfg(test)]
    pub(crate) fn connections(&self) -> u64 {
        self.counts().connections
    }

    pub(crate) fn connected(&self) {
        self.counts().connections += 1;
    }

    pub(crate) fn disconnected(&self) {
        self.counts().connections -= 1;
    }
}

impl Metrics {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine refused a request: its queue is full, or it does not fit.
    pub(crate) fn refused(&self) {
        self.counts().refused += 1;
    }

    pub(crate) fn started(&self, prompt_tokens: usize) {
        let mut counts = self.counts();
        counts.prompt_tokens += prompt_tokens as u64;
        counts.request_prompt_tokens.observe(prompt_tokens as f64);
    }

    pub(crate) fn first_token(&self, time: Duration) {
        let mut counts = self.counts();
        counts.generated_tokens += 1;
        counts.ttft.observe(time.as_secs_f64());
    }

    pub(crate) fn next_token(&self, time: Duration) {
        let mut counts = self.counts();
        counts.generated_tokens += 1;
        counts.itl.observe(time.as_secs_f64());
    }

    pub(crate) fn finished(&self, reasons: impl Iterator<Item = &'static str>, tokens: usize, time: Duration) {
        let mut counts = self.counts();
        reasons.for_each(|reason| *counts.finished.entry(reason).or_default() += 1);
        counts.request_generated_tokens.observe(tokens as f64);
        counts.e2e.observe(time.as_secs_f64());
    }

    /// What a request took in the queue, until its first token, and from there until its last.
    pub(crate) fn phases(&self, queue: Duration, prefill: Duration, decode: Duration) {
        let mut counts = self.counts();
        counts.queue.observe(queue.as_secs_f64());
        counts.prefill.observe(prefill.as_secs_f64());
        counts.decode.observe(decode.as_secs_f64());
    }
}

fn write_engine(page: &mut Page, counts: &Counts, serving: &Serving, model: &str) {
    let stats = serving.engine.stats();
    let used = stats.num_blocks - stats.num_free_blocks;
    let share = used as f64 / stats.num_blocks as f64;
    let mut gauge = |name, help, value: f64| page.single(name, "gauge", help, model, value);
    gauge("vllm:num_requests_running", "Sequences that run.", stats.num_running as f64);
    gauge("vllm:num_requests_waiting", "Sequences that wait.", stats.num_waiting as f64);
    gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", share);
    let age = serving.engine.step_age().as_secs_f64();
    gauge("hotmetal_step_age_seconds", "How long the step that is under way has taken so far.", age);
    gauge("hotmetal_kv_blocks", "Blocks of the KV cache.", stats.num_blocks as f64);
    gauge("hotmetal_kv_blocks_used", "Blocks that sequences hold.", used as f64);
    gauge("hotmetal_kv_blocks_cached", "Blocks whose tokens can be reused.", stats.num_cached_blocks as f64);
    let config = serving.engine.config();
    let labels = format!(
        "{model},block_size=\"{}\",num_gpu_blocks=\"{}\",enable_prefix_caching=\"{}\"",
        config.kv.block_len,
        config.kv.num_blocks,
        if config.prefix_cache { "True" } else { "False" },
    );
    page.single("vllm:cache_config_info", "gauge", "How the KV cache is laid out, on whatever device.", &labels, 1);
    let mut counter = |name, help, value: u64| page.single(name, "counter", help, model, value);
    counter("vllm:num_preemptions_total", "Sequences that lost their blocks to another.", stats.num_preemptions);
    counter("vllm:prompt_tokens_total", "Tokens of prompts.", counts.prompt_tokens);
    counter("vllm:generation_tokens_total", "Tokens generated.", counts.generated_tokens);
    let help = "Tokens of prompts that were looked for in the prefix cache.";
    counter("vllm:prefix_cache_queries_total", help, stats.num_prefix_queries);
    counter("vllm:prefix_cache_hits_total", "Those of them that were there.", stats.num_prefix_hits);
    counter("hotmetal_steps_total", "Steps of the engine.", stats.num_steps);
    counter(
        "hotmetal_steps_ahead_total",
        "Steps submitted before the tokens of the one before were read.",
        stats.num_ahead,
    );
    let times = serving.engine.step_times();
    counter("hotmetal_requests_refused_total", "Requests that the engine refused.", counts.refused);
    let out = page.family("vllm:request_success_total", "counter", "Completions that ended, by reason.");
    for (reason, count) in &counts.finished {
        let _ = writeln!(out, "vllm:request_success_total{{{model},finished_reason=\"{reason}\"}} {count}");
    }
    times.step.write(page, "hotmetal_step_seconds", "From the end of a step to the end of the next.", model);
    let help = "Of a step, what the host takes beside the device's program.";
    times.host.write(page, "hotmetal_step_host_seconds", help, model);
    counts.ttft.write(page, "vllm:time_to_first_token_seconds", "From a request to its first token.", model);
    counts.itl.write(page, "vllm:inter_token_latency_seconds", "From one token of a request to the next.", model);
    counts.e2e.write(page, "vllm:e2e_request_latency_seconds", "From a request to its last token.", model);
    counts.queue.write(page, "vllm:request_queue_time_seconds", "From a request to its start.", model);
    counts.prefill.write(
        page,
        "vllm:request_prefill_time_seconds",
        "From a request's start to its first token.",
        model,
    );
    counts.decode.write(page, "vllm:request_decode_time_seconds", "From a request's first token to its last.", model);
    counts.request_prompt_tokens.write(page, "vllm:request_prompt_tokens", "Tokens of a request's prompts.", model);
    let help = "Tokens that a request generated.";
    counts.request_generated_tokens.write(page, "vllm:request_generation_tokens", help, model);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_counts_all_up_to_each_bound() {
        let mut histogram = Histogram::new(&[1.0, 2.0]);
        [0.5, 1.0, 1.5, 7.0].into_iter().for_each(|value| histogram.observe(value));
        let mut page = Page::default();
        histogram.write(&mut page, "x", "Help.", "a=\"b\"");
        let expected = "# HELP x Help.\n# TYPE x histogram\nx_bucket{a=\"b\",le=\"1\"} 2\nx_bucket{a=\"b\",le=\"2\"} 3\n\
                        x_bucket{a=\"b\",le=\"+Inf\"} 4\nx_sum{a=\"b\"} 10\nx_count{a=\"b\"} 4\n";
        assert_eq!(page.text(), expected);
    }

    #[test]
    fn the_values_of_a_name_stand_together() {
        let mut page = Page::default();
        for model in ["m=\"1\"", "m=\"2\""] {
            page.single("x", "gauge", "Help.", model, 1);
            page.single("y", "counter", "Help.", model, 2);
        }
        let expected = "# HELP x Help.\n# TYPE x gauge\nx{m=\"1\"} 1\nx{m=\"2\"} 1\n\
                        # HELP y Help.\n# TYPE y counter\ny{m=\"1\"} 2\ny{m=\"2\"} 2\n";
        assert_eq!(page.text(), expected);
    }
}
