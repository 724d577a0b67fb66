//! The page at `/metrics`, in Prometheus' text format: under vLLM's names and llama.cpp's, which gateways and
//! dashboards know, and under our own.

use std::fmt::Write;

use crate::app::{ModelPhase, Serving};
use crate::histogram::Histogram;
use crate::metrics::{Counts, HttpMetrics};
use crate::{grammar, masks};

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

    fn histogram(&mut self, name: &'static str, help: &'static str, labels: &str, values: &Histogram) {
        let out = self.family(name, "histogram", help);
        for (bound, count) in values.cumulative() {
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}");
        }
        let (sum, total) = (values.sum(), values.count());
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {total}");
        let _ = writeln!(out, "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {total}");
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
    models: impl Iterator<Item = (&'a str, ModelPhase)>,
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
            write_engine(&mut page, &serving.metrics.counts(), &serving, &model);
        }
    }
    page.text()
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
    gauge("llamacpp:requests_processing", "Sequences that run.", stats.num_running as f64);
    gauge("llamacpp:requests_deferred", "Sequences that wait.", stats.num_waiting as f64);
    let (read, written) = (counts.prefill.sum(), counts.decode.sum());
    let rate = |tokens: u64, seconds: f64| if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
    let help = "Tokens of prompts a second, of requests that have ended.";
    let computed = counts.prompt_tokens.saturating_sub(stats.num_prefix_hits);
    gauge("llamacpp:prompt_tokens_seconds", help, rate(computed, read));
    let help = "Tokens generated a second, of requests that have ended.";
    gauge("llamacpp:predicted_tokens_seconds", help, rate(counts.generated_tokens, written));
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
    // There, tokens that the cache had are counted apart.
    counter("llamacpp:prompt_tokens_total", "Tokens of prompts that were computed.", computed);
    let help = "Tokens of prompts that the prefix cache had.";
    counter("llamacpp:prompt_tokens_cached_total", help, stats.num_prefix_hits);
    counter("llamacpp:tokens_predicted_total", "Tokens generated.", counts.generated_tokens);
    counter("llamacpp:n_decode_total", "Steps of the engine.", stats.num_steps);
    counter("hotmetal_steps_total", "Steps of the engine.", stats.num_steps);
    counter(
        "hotmetal_steps_ahead_total",
        "Steps submitted before the tokens of the one before were read.",
        stats.num_ahead,
    );
    let times = serving.engine.step_times();
    counter("hotmetal_requests_refused_total", "Requests that the engine refused.", counts.refused);
    let mut seconds = |name, help, times: &Histogram| page.single(name, "counter", help, model, times.sum());
    let help = "Seconds from requests' starts to their first tokens.";
    seconds("llamacpp:prompt_seconds_total", help, &counts.prefill);
    let help = "Seconds from requests' first tokens to their last.";
    seconds("llamacpp:tokens_predicted_seconds_total", help, &counts.decode);
    let out = page.family("vllm:request_success_total", "counter", "Completions that ended, by reason.");
    for (reason, count) in &counts.finished {
        let _ = writeln!(out, "vllm:request_success_total{{{model},finished_reason=\"{reason}\"}} {count}");
    }
    let mut histogram = |name, help, values: &Histogram| page.histogram(name, help, model, values);
    histogram("hotmetal_step_seconds", "From the end of a step to the end of the next.", &times.step);
    let help = "Of a step, what the host takes beside the device's program.";
    histogram("hotmetal_step_host_seconds", help, &times.host);
    histogram("vllm:time_to_first_token_seconds", "From a request to its first token.", &counts.ttft);
    histogram("vllm:inter_token_latency_seconds", "From one token of a request to the next.", &counts.itl);
    histogram("vllm:e2e_request_latency_seconds", "From a request to its last token.", &counts.e2e);
    histogram("vllm:request_queue_time_seconds", "From a request to its start.", &counts.queue);
    histogram("vllm:request_prefill_time_seconds", "From a request's start to its first token.", &counts.prefill);
    histogram("vllm:request_decode_time_seconds", "From a request's first token to its last.", &counts.decode);
    histogram("vllm:request_prompt_tokens", "Tokens of a request's prompts.", &counts.request_prompt_tokens);
    let help = "Tokens that a request generated.";
    histogram("vllm:request_generation_tokens", help, &counts.request_generated_tokens);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_counts_all_up_to_each_bound() {
        let mut histogram = Histogram::new(&[1.0, 2.0]);
        [0.5, 1.0, 1.5, 7.0].into_iter().for_each(|value| histogram.observe(value));
        let mut page = Page::default();
        page.histogram("x", "Help.", "a=\"b\"", &histogram);
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
