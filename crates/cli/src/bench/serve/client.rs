//! Asks a server of OpenAI's interface, and takes the time of what it answers.

use std::io::{BufRead, BufReader};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use super::timings::RequestTimings;

/// Where a key may stand.
const API_KEY_VARIABLES: [&str; 2] = ["HOTMETAL_API_KEY", "OPENAI_API_KEY"];

/// Connections that are kept between requests.
const CONNECTIONS_KEPT: usize = 1024;

/// A client of one server.
pub(super) struct Client {
    agent: ureq::Agent,
    pub(super) base_url: String,
    key: Option<String>,
}

impl Client {
    /// A client of the server at `base_url`, with the key that the environment holds.
    pub(super) fn new(base_url: &str) -> Self {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            // Each that is under way keeps its connection.
            .max_idle_connections(CONNECTIONS_KEPT)
            .max_idle_connections_per_host(CONNECTIONS_KEPT)
            .build()
            .into();
        Self { agent, base_url: base_url.trim_end_matches('/').to_owned(), key: key() }
    }

    /// With the key, where there is one.
    fn authorized<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.key {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    /// Whether the server answers requests already.
    pub(super) fn is_served(&self) -> bool {
        let health = self.agent.get(format!("{}/health", self.base_url)).call();
        health.is_ok_and(|answer| answer.status().is_success())
    }

    /// The first model that the server names.
    pub(super) fn first_model(&self) -> Result<String> {
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
    pub(super) fn steps(&self, model: &str) -> Option<EngineSteps> {
        let request = self.authorized(self.agent.get(format!("{}/metrics", self.base_url)));
        EngineSteps::read(&request.call().ok()?.body_mut().read_to_string().ok()?, model)
    }

    /// Sends a request and reads its stream; the measurement began at `start`.
    pub(super) fn ask(&self, path: &str, body: &Value, start: Instant) -> Result<RequestTimings> {
        let url = format!("{}{path}", self.base_url);
        let request = self.authorized(self.agent.post(&url).header("content-type", "application/json"));
        let begun = Instant::now();
        let mut answer = request.send(body.to_string()).with_context(|| format!("no answer from {url}"))?;
        if !answer.status().is_success() {
            let text = answer.body_mut().read_to_string().unwrap_or_default();
            bail!("{url} answered {}: {text:.300}", answer.status());
        }
        let seen = read_stream(BufReader::new(answer.into_body().into_reader()), begun)?;
        Ok(RequestTimings { sent_s: (begun - start).as_secs_f64(), ..seen })
    }
}

/// Reads events until `[DONE]` or the end.
fn read_stream(mut lines: impl BufRead, begun: Instant) -> Result<RequestTimings> {
    let mut seen = RequestTimings::default();
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

fn key() -> Option<String> {
    API_KEY_VARIABLES.into_iter().find_map(|name| std::env::var(name).ok())
}

/// Steps of the engine, as servers of this program count them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct EngineSteps {
    count: f64,
    step_s: f64,
    /// Beside the device's program.
    host_s: f64,
}

impl EngineSteps {
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

    /// Those since `before`.
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            count: self.count - before.count,
            step_s: self.step_s - before.step_s,
            host_s: self.host_s - before.host_s,
        }
    }

    /// Adds the figures to a result.
    pub(super) fn write(&self, result: &mut Value) {
        let of_each = |seconds: f64| (seconds / self.count.max(1.0) * 1e8).round() / 1e2;
        result["engine_steps"] = self.count.into();
        result["mean_step_us"] = of_each(self.step_s).into();
        result["mean_step_host_us"] = of_each(self.host_s).into();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
            [metrics(10, 1.0, 0.5), metrics(14, 1.02, 0.5001)].map(|text| EngineSteps::read(&text, "m").unwrap());
        let mut result = json!({});
        after.since(&before).write(&mut result);
        assert_eq!(result, json!({"engine_steps": 4.0, "mean_step_us": 5000.0, "mean_step_host_us": 25.0}));
        assert_eq!(EngineSteps::read("vllm:generation_tokens_total 7\n", "m"), None);
    }
}
