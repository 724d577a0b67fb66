//! The thread that owns one template: it parses it once, then renders one request after the other.
//!
//! A thread of its own gives a stack whose size is known, a place for the compiled template to borrow its source
//! from, and a boundary for panics. What a render may use is counted per thread, hence per render.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread::JoinHandle;

use minijinja::machinery::{CodeGenerator, Instruction, Instructions, eval, make_string_output, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use time::PrimitiveDateTime;

use super::functions::{Raised, install, set_clock};
use super::value::{self, BudgetSpent, EmittedTooMuch};
use super::{Limits, TemplateError, lower, scan};

const STACK_BYTES: usize = 16 << 20;
/// What errors call the template.
const NAME: &str = "chat template";
/// How often a byte may be printed on its way into the output: into a macro's result, from there into a block, …
const EMISSIONS_PER_BYTE: u64 = 4;

/// One render: the variables the template sees, and its bounds.
pub(super) struct Job {
    pub(super) variables: serde_json::Map<String, serde_json::Value>,
    pub(super) now: PrimitiveDateTime,
    pub(super) output_bytes_max: u64,
    pub(super) budget_bytes: u64,
}

/// The thread of one template. Renders wait for each other; each takes milliseconds.
pub(super) struct Worker {
    jobs: Option<mpsc::Sender<(Job, Reply)>>,
    thread: Option<JoinHandle<()>>,
    /// Names that the template looks up somewhere.
    names: BTreeSet<String>,
}

type Reply = mpsc::SyncSender<Result<String, TemplateError>>;

impl Worker {
    /// Starts the thread, which compiles `source`.
    pub(super) fn start(source: String, limits: Limits) -> Result<Worker, TemplateError> {
        let (jobs, incoming) = mpsc::channel();
        let (compiled, outcome) = mpsc::sync_channel(1);
        let run = move || {
            let serve = AssertUnwindSafe(|| serve(&source, &limits, &compiled, &incoming));
            if let Ok(Err(error)) = catch_unwind(serve) {
                // Nobody listens when `start` was given up.
                let _ = compiled.send(Err(error));
            }
        };
        let builder = std::thread::Builder::new().name("chat-template".to_owned()).stack_size(STACK_BYTES);
        let thread = builder.spawn(run).map_err(|source| TemplateError::Thread { source })?;
        let mut worker = Worker { jobs: Some(jobs), thread: Some(thread), names: BTreeSet::new() };
        // A thread that ends without an answer panicked.
        worker.names = outcome.recv().unwrap_or(Err(TemplateError::Panicked))?;
        Ok(worker)
    }

    /// Whether the template looks this name up somewhere.
    pub(super) fn reads(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Renders on the thread and waits for the result.
    pub(super) fn render(&self, job: Job) -> Result<String, TemplateError> {
        let (reply, result) = mpsc::sync_channel(1);
        let jobs = self.jobs.as_ref().ok_or(TemplateError::Panicked)?;
        jobs.send((job, reply)).map_err(|_| TemplateError::Panicked)?;
        result.recv().unwrap_or(Err(TemplateError::Panicked))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(
    source: &str,
    limits: &Limits,
    compiled: &mpsc::SyncSender<Result<BTreeSet<String>, TemplateError>>,
    jobs: &mpsc::Receiver<(Job, Reply)>,
) -> Result<(), TemplateError> {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    let syntax = syntax.map_err(|error| TemplateError::from_syntax(&error))?;
    let source = scan::check_and_rewrite(source, &syntax)?;
    let parsed = parse(&source, NAME, syntax).map_err(|error| TemplateError::from_syntax(&error))?;
    let lowered = lower::lower(&parsed)?;
    drop(parsed);
    let mut generator = CodeGenerator::new(NAME, &source);
    generator.compile_stmt(&lowered);
    let (instructions, blocks) = generator.finish();
    drop(lowered);

    let mut env = Environment::empty();
    install(&mut env);
    env.set_fuel(Some(limits.fuel));
    env.set_formatter(|out, _, value| {
        // Strings are written as they are; anything else as Python prints it.
        match value.as_str() {
            Some(text) => {
                value::charge_emission(text.len())?;
                out.write_str(text).map_err(Error::from)
            }
            None => {
                let text = value::to_str(value)?;
                value::charge_emission(text.len())?;
                out.write_str(&text).map_err(Error::from)
            }
        }
    });

    let mut names = BTreeSet::new();
    for code in std::iter::once(&instructions).chain(blocks.values()) {
        names.extend((0..).map_while(|index| code.get(index)).filter_map(|instruction| match instruction {
            Instruction::Lookup(name) => Some((*name).to_owned()),
            _ => None,
        }));
    }
    if compiled.send(Ok(names)).is_err() {
        return Ok(());
    }
    for (job, reply) in jobs {
        let render = AssertUnwindSafe(|| render(&env, &instructions, &blocks, job));
        // The client may be gone.
        let _ = reply.send(catch_unwind(render).unwrap_or(Err(TemplateError::Panicked)));
    }
    Ok(())
}

fn render<'s>(
    env: &'s Environment<'s>,
    instructions: &Instructions<'s>,
    blocks: &BTreeMap<&'s str, Instructions<'s>>,
    job: Job,
) -> Result<String, TemplateError> {
    set_clock(job.now);
    value::set_budget(job.budget_bytes, job.output_bytes_max.saturating_mul(EMISSIONS_PER_BYTE));
    let variables = serde_json::Value::Object(job.variables);
    let root = value::from_json(&variables).map_err(|error| template_error(&error, job.output_bytes_max))?;
    drop(variables);
    let mut out = String::new();
    let result = eval(env, instructions, root, blocks, &mut make_string_output(&mut out), AutoEscape::None).map(|_| ());
    result.map_err(|error| template_error(&error, job.output_bytes_max))?;
    if out.len() as u64 > job.output_bytes_max {
        return Err(TemplateError::OutputTooLarge { max: job.output_bytes_max });
    }
    Ok(out)
}

/// The engine's error in our words; ours, wherever they are in the chain of sources, go first.
fn template_error(error: &Error, output_bytes_max: u64) -> TemplateError {
    let mut line = None;
    let mut innermost: &Error = error;
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref() {
            return TemplateError::Raised { message: message.clone() };
        }
        if current.is::<BudgetSpent>() {
            return TemplateError::Exhausted { what: "copying" };
        }
        if current.is::<EmittedTooMuch>() {
            return TemplateError::OutputTooLarge { max: output_bytes_max };
        }
        if let Some(engine) = current.downcast_ref::<Error>() {
            if engine.kind() == ErrorKind::OutOfFuel && std::error::Error::source(engine).is_none() {
                return TemplateError::Exhausted { what: "steps" };
            }
            line = engine.line().or(line);
            innermost = engine;
        }
        cause = current.source();
    }
    let message = innermost.detail().map_or_else(|| innermost.kind().to_string(), str::to_owned);
    TemplateError::Render { line: line.unwrap_or(0), message }
}
