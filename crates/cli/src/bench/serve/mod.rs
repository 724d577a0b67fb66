//! `bench serve`: load on a server of OpenAI's interface, this one or another, and what its clients see. Figures have
//! the names that vLLM's `bench serve` gives them, so that results stand beside each other.
//!
//! `requests` says what is sent and when, `client` sends it and takes the time, `timings` and `steady` are what is
//! measured, `result` adds it up. `own_server` is the server, where none is there to be measured.

pub(super) mod args;
mod client;
mod own_server;
mod requests;
mod result;
mod steady;
mod timings;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use super::html;
use super::workload::{self, Sample};
use crate::output::{note, stdout};
use args::{Endpoint, Load, OutputFormat, ServeArgs};
use client::Client;
use own_server::OwnServer;
use requests::{PlannedRequest, plan};
use result::{comparison, figures, markdown, quantiles, result, title};
use timings::RequestTimings;

/// Runs the command.
pub(super) fn serve(args: &ServeArgs) -> Result<()> {
    args.check()?;
    let own = args.shape.as_deref().map(|shape| OwnServer::start(shape, args.format.as_deref(), &args.server_flags));
    let own = own.transpose()?;
    let client = Client::new(own.as_ref().map_or(&args.base_url, |own| &own.base_url));
    if let Some(mut own) = own {
        own.await_ready(&client)?;
        return measure(args, &client);
    }
    measure(args, &client)
}

/// Measures all that is asked for, and prints it.
fn measure(args: &ServeArgs, client: &Client) -> Result<()> {
    let model = args.model.clone().map_or_else(|| client.first_model(), Ok)?;
    let samples = args.dataset.as_deref().map(workload::samples).transpose()?;
    let mut results = Vec::new();
    let mut latencies = Vec::new();
    for load in args.loads() {
        let (result, seen) = measure_load(args, &load, client, &model, samples.as_deref())?;
        latencies = quantiles(&seen);
        results.push(result);
    }
    match (args.output, &results[..]) {
        (OutputFormat::Md, [result]) => stdout(&markdown(result))?,
        (OutputFormat::Md, results) => stdout(&comparison(results))?,
        (OutputFormat::Json, [result]) => stdout(&format!("{result:#}\n"))?,
        (OutputFormat::Json, results) => stdout(&format!("{:#}\n", Value::from(results)))?,
    }
    match &args.report {
        Some(path) => html::write_serve(path, &title(&results[0]), &figures(&results[0]), &latencies),
        None => Ok(()),
    }
}

/// Runs one measurement. Returns its figures, and the times of each request.
fn measure_load(
    args: &ServeArgs,
    load: &Load,
    client: &Client,
    model: &str,
    samples: Option<&[Sample]>,
) -> Result<(Value, Vec<RequestTimings>)> {
    let mut planned = plan(args, load, model, load.num_prompts + 1, samples);
    let path = match args.endpoint {
        Endpoint::Completions => "/v1/completions",
        Endpoint::Chat => "/v1/chat/completions",
    };
    // Connections, and what a server compiles at its first request, are not what is measured; nor is what it remembers
    // of a prompt, so this one is like the others and none of them.
    let first = planned.pop().ok_or_else(|| anyhow!("there are no requests to send"))?;
    client.ask(path, &first.body, Instant::now()).context("the first request, which is not measured, failed")?;
    let at_a_time = load.max_concurrency.map_or_else(String::new, |count| format!(", {count} at a time"));
    note(&format!("{} requests to {}{path}, model `{model}`{at_a_time}", planned.len(), client.base_url));
    let steps = client.steps(model);
    let begun = Instant::now();
    let (seen, failures) = run(client, path, planned, load.max_concurrency.unwrap_or(usize::MAX), begun)?;
    let mut result = result(args, load, (&client.base_url, model), begun.elapsed(), &seen, &failures);
    if let Some((before, after)) = steps.zip(client.steps(model)) {
        after.since(&before).write(&mut result);
    }
    if seen.is_empty() {
        bail!("no request was answered: {}", failures.first().map_or("", String::as_str));
    }
    Ok((result, seen))
}

/// Sends all, each at its time or as soon after as `most` under way allow. What was seen, and what failed.
fn run(
    client: &Client,
    path: &str,
    planned: Vec<PlannedRequest>,
    most: usize,
    begun: Instant,
) -> Result<(Vec<RequestTimings>, Vec<String>)> {
    let (seen, failures) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let under_way = (Mutex::new(0usize), Condvar::new());
    let refused = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for PlannedRequest { at, body } in planned {
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
