//! `hotmetal serve`: a model for many clients, over HTTP.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use engine::{Pooling, SamplerStep};
use server::{ApiKey, App, Ended, IdleWork, Keep, Loading, OnDemand, Options, Origin, ServedModel, Shutdown};
use tokenizer::ParseSpecial;

use crate::load::find;
use crate::load::neighbours::Neighbours;
use crate::load::sizes::{EngineSizes, KvTokens};
use crate::load::unchecked::{NoNumber, Unchecked};
use crate::model;
use crate::model::args::ModelArgs;
use crate::on_demand::{Loaded, Loader};
use crate::output::note;
use crate::sampling_args::SamplingArgs;
use crate::{files, generate, interrupt, models_folder};

/// `--parallel`, where the device says how many.
const AUTO: &str = "auto";
/// Where a key may stand, besides in a file.
const API_KEY_VARIABLE: &str = "HOTMETAL_API_KEY";
/// What clients call the built-in model.
const BUILTIN_NAME: &str = "hotmetal-builtin";
/// Threads that read requests and write answers; the model computes on others.
const HTTP_THREADS: usize = 2;
/// Threads that render templates, tokenise and compile grammars, at most. It is computing: more would not be done sooner, and each
/// keeps memory. The default, 512, made of a burst of 64 requests on a busy machine 64 threads with 8 MB.
const PREPARING_THREADS: usize = 16;

/// Serve models over HTTP, in OpenAI's interface.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServeArgs {
    /// Directories, .gguf or .safetensors files, or cached ORG/REPOs, of which a request's `model` names one, and the first
    /// answers one that names none; without any the built-in model is served
    #[arg(value_name = "MODEL")]
    models: Vec<String>,

    /// A model, as the argument; for command lines that name it so
    #[arg(long, short = 'm', value_name = "MODEL")]
    model: Vec<String>,

    /// Address to listen on; one that others can reach needs a key, or --no-auth
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = parse_host)]
    host: IpAddr,

    /// Port to listen on; 0 takes a free one, and says which
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,

    /// What clients call the model; once for each of several, in their order [default: its file's or repository's name]
    #[arg(long, short = 'a', aliases = ["served-model-name", "model-name"], value_name = "NAME")]
    alias: Vec<String>,

    #[command(flatten)]
    on_demand: OnDemandArgs,

    #[command(flatten)]
    access: AccessArgs,

    #[command(flatten)]
    limits: LimitArgs,

    #[command(flatten)]
    model_args: ModelArgs,

    #[command(flatten)]
    sampling: SamplingArgs,
}

/// Which models are loaded when they are asked for, and unloaded.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Models on demand")]
struct OnDemandArgs {
    /// Offer each .gguf file and model folder in FOLDER under its name, and load it when a request asks for it
    #[arg(long, value_name = "FOLDER")]
    models_dir: Option<PathBuf>,

    /// Models that are loaded at a time with --models-dir: for another one, that is unloaded which was used least lately
    /// and that nobody uses; 0 for any number
    #[arg(long, value_name = "N", default_value_t = 4, requires = "models_dir")]
    models_max: usize,

    /// Unload a model that had no request for N seconds; the next request loads it again; -1 for never
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true, value_parser = parse_idle_seconds)]
    sleep_idle_seconds: i64,
}

/// Who may use the server.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Access")]
struct AccessArgs {
    /// A file with a key on each line, one of which a request has to show; HOTMETAL_API_KEY holds one too
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,

    /// A key, or several with commas between them; others on this machine can read it in the list of processes, so
    /// --api-key-file or HOTMETAL_API_KEY is better
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    api_key: Vec<String>,

    /// Let everybody who reaches the address use the server
    #[arg(long)]
    no_auth: bool,

    /// Answer under this host name too, besides localhost and addresses; may be given several times
    #[arg(long, alias = "allowed-hosts", value_name = "NAME")]
    allowed_host: Vec<String>,

    /// Let pages of this origin (`https://example.org`) use the server from a browser; may be given several times
    /// (`*`: of any origin; localhost: of any port of this machine)
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Vec<Origin>,

    /// Have no page at `/`
    #[arg(long, alias = "no-ui")]
    no_webui: bool,

    /// Answer /slots with 501: who may not generate could see there how many texts run
    #[arg(long)]
    no_slots: bool,

    /// Let clients save what is in the cache of a slot's last text to files in this folder, and restore it, also after a
    /// restart: `POST /slots/0?action=save` with `filename`
    #[arg(long, value_name = "FOLDER")]
    slot_save_path: Option<PathBuf>,
}

/// How much at a time, and how long.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Limits")]
struct LimitArgs {
    /// Texts that are generated at a time, or auto: on an NVIDIA GPU up to 256, as its memory allows, else 16
    #[arg(long, short = 'p', alias = "max-num-seqs", value_name = "N", default_value = "auto")]
    parallel: Parallel,

    /// Tokens computed in one step: more reads prompts faster and takes more memory [default: 2048 on an NVIDIA GPU with
    /// room for that, else 512]
    #[arg(long, alias = "max-num-batched-tokens", value_name = "N")]
    batch_tokens: Option<usize>,

    /// Tokens of prompts computed in a step for whose end texts wait, at most: fewer keep tokens coming more evenly,
    /// more let new requests begin earlier [default: 64 on a CPU; on a GPU as many as --step-target-ms leaves time for]
    #[arg(long, value_name = "N")]
    mixed_tokens: Option<usize>,

    /// Milliseconds that a step with prompts may take for whose end texts wait: as steps were measured, prompts get the
    /// tokens that keep to it; 0 for --mixed-tokens alone [default: 55 on a GPU without --mixed-tokens, else 0]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(..=60_000))]
    step_target_ms: Option<u64>,

    /// Tokens of all texts that the KV cache holds [default: a context for each, as far as a share of the memory does]
    #[arg(long, value_name = "N")]
    kv_tokens: Option<usize>,

    /// Texts that may wait, of each key; more are told to try again [default: as many as --parallel, and at least 256]
    #[arg(long, value_name = "N")]
    queue: Option<usize>,

    /// Bytes of a request's body
    #[arg(long, value_name = "N", default_value_t = 8 << 20)]
    max_body_bytes: usize,

    /// Bytes of memory for all requests that are being received, read, rendered and tokenised; more wait for a few seconds,
    /// and are then told to try again
    #[arg(long, value_name = "N", default_value_t = 1 << 30, value_parser = clap::value_parser!(u64).range(1 << 20..))]
    prepare_memory: u64,

    /// Seconds for an answer
    #[arg(long, value_name = "S", default_value_t = 3600)]
    request_timeout: u64,

    /// Seconds for one step of the model; one that takes longer is taken to be stuck, and the server ends with status 1
    #[arg(long, value_name = "S", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    step_timeout: u64,

    /// Seconds between two checks, while no request runs, that the memory of the weights still holds what it held; 0 for
    /// no check. A weight that has changed ends the server with status 1
    #[arg(long, value_name = "S", default_value_t = 600)]
    weight_check_pause: u64,

    /// Seconds that a reader of a stream may not read
    #[arg(long, value_name = "S", default_value_t = 30)]
    stall_timeout: u64,

    /// Seconds for answers to end after Ctrl-C or SIGTERM
    #[arg(long, value_name = "S", default_value_t = 30)]
    drain_timeout: u64,

    /// Connections at a time
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,

    /// Refuse fields of requests that the server does not know, which are else reported in the answer and have no effect
    #[arg(long)]
    strict_fields: bool,

    /// Refuse requests that name another model than the one that is served, which else answers them; several models, and
    /// those of --models-dir, have to be named right anyway
    #[arg(long)]
    strict_model: bool,

    /// Tokens of a text at most, and of one whose request sets no limit [default: what the context holds]
    #[arg(long, short = 'n', aliases = ["n-predict", "predict"], value_name = "N", value_parser = parse_max_tokens)]
    max_tokens: Option<NonZeroUsize>,

    /// Let a text go on where its context is full: half of its older tokens is left out, and what is left is read again.
    /// Without --max-tokens and without a limit in the request it has as many tokens as the context at most
    #[arg(long)]
    context_shift: bool,

    /// With --context-shift: tokens at the beginning of a prompt that stay, besides the one that begins every text; -1 keeps
    /// the whole prompt. `n_keep` of a request says it, too
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true, requires = "context_shift",
          value_parser = clap::value_parser!(i64).range(-1..))]
    keep: i64,

    /// Variables of the chat template, as an object in JSON, where a request's `chat_template_kwargs` does not set them:
    /// {"enable_thinking": false}; may be given several times, of which the last counts for a variable
    #[arg(long, alias = "default-chat-template-kwargs", value_name = "JSON", value_parser = Options::read_template_defaults)]
    chat_template_kwargs: Vec<TemplateVariables>,

    /// How vectors of texts are pooled where a request does not say it: mean or last [default: as the model's files say]
    #[arg(long, value_name = "KIND", value_parser = parse_pooling)]
    pooling: Option<Pooling>,

    /// Refuse tools where the model's chat template shows none, which are else described in the system message
    #[arg(long)]
    no_generic_tools: bool,

    /// Read special tokens in messages, as transformers does; a user can then end a message and add others in any role
    #[arg(long)]
    parse_special_in_messages: bool,
}

/// Variables of chat templates.
type TemplateVariables = serde_json::Map<String, serde_json::Value>;

/// How many texts are generated at a time; `None` for what suits the device and its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parallel(Option<usize>);

impl FromStr for Parallel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == AUTO => Ok(Self(None)),
            Ok(count) => Ok(Self(Some(count))),
            Err(_) => Err(format!("expected a number of texts or `{AUTO}`, found `{text}`")),
        }
    }
}

/// Runs the command.
pub(crate) fn serve(args: &ServeArgs) -> Result<()> {
    // Requests of megabytes are prepared on many threads, and each would leave an arena as large as its largest one was. One
    // for eight processors, because nobody has measured how long the threads of a large machine wait for two.
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    mapped::keep_few_arenas(u8::try_from(processors / 8).map_or(8, |count| count.clamp(2, 8)));
    let mut args = args.clone();
    args.models.append(&mut args.model);
    let args = &args;
    let options = options(args)?;
    let names = names_of(args)?;
    let offered = offered(args, &names)?;
    let address = SocketAddr::new(args.host, args.port);
    options.check_address(address, args.access.no_auth)?;
    let short_key = options.short_key();
    let listener = std::net::TcpListener::bind(address)
        .with_context(|| format!("cannot listen on {address}; is another server there? --port chooses another port"))?;
    let address = listener.local_addr().context("the system does not say where it listens")?;
    wait_deeper(&listener);
    listener.set_nonblocking(true).context("the system gives no socket that can be waited for")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(HTTP_THREADS)
        .max_blocking_threads(PREPARING_THREADS)
        .enable_all()
        .build()
        .context("cannot start the threads that read requests")?;

    let offered_names: Vec<&str> = offered.iter().map(|(name, _)| name.as_str()).collect();
    let app = App::with_offered(options, &names.iter().map(String::as_str).collect::<Vec<_>>(), &offered_names);
    let shutdown = Shutdown::default();
    let asked = shutdown.clone();
    interrupt::on_first(move || {
        note("shutting down: answers under way may end; once more stops at once");
        asked.ask();
    });
    note(&format!("listening on http://{address}, {}", what_comes(&names, &offered_names)));
    if let Some(bytes) = short_key {
        note(&format!(
            "an API key has {bytes} bytes and can be guessed: it keeps others on this machine out for a while, and nobody \
             if something passes requests on from a network (`openssl rand -hex 16` makes a better one)"
        ));
    }
    let failure = Arc::new(Mutex::new(None));
    let load = {
        let (app, args, failure) = (app.clone(), args.clone(), Arc::clone(&failure));
        move || {
            if let Err(error) = load_all_into(&app, &args, &names, offered) {
                *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                app.failed("the model could not be loaded");
            }
        }
    };
    // Nobody waits for this thread: a server that is told to end while it loads ends, and the system takes its memory back.
    std::thread::Builder::new().name("load".to_owned()).spawn(load).context("cannot start the thread that loads")?;
    let ended = runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        Ok::<_, std::io::Error>(server::serve(app.clone(), listener, shutdown).await)
    });
    // What is still being prepared is for nobody.
    runtime.shutdown_background();
    match ended.context("cannot wait for connections")? {
        Ended::Drained => Ok(()),
        Ended::Stopped => {
            note("some answers took too long and were ended");
            Ok(())
        }
        Ended::Failed => {
            let error = failure.lock().unwrap_or_else(PoisonError::into_inner).take();
            Err(error.unwrap_or_else(|| anyhow!(app.failure().unwrap_or_else(|| "nothing can be served".to_owned()))))
        }
    }
}

/// Lets more connections wait to be accepted than the 128 of the standard library: a burst of clients would else be answered
/// after a second, when their systems ask again.
fn wait_deeper(listener: &std::net::TcpListener) {
    const WAITING_MAX: i32 = 4096;
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::net::listen(listener, WAITING_MAX) {
        tracing::warn!(%error, "few connections can wait to be accepted");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (listener, WAITING_MAX);
}

/// What the server says that it does next.
fn what_comes(names: &[String], offered: &[&str]) -> String {
    let loading = format!("loading `{}`", names.join("`, `"));
    let on_demand = format!("`{}` on demand", offered.join("`, `"));
    match (names.is_empty(), offered.is_empty()) {
        (true, _) => on_demand,
        (false, true) => loading,
        (false, false) => format!("{loading}, {on_demand}"),
    }
}

/// Loads one model after the other: each is placed in what those before have left. Then leaves the others, and those that
/// are unloaded, to the server's own thread.
fn load_all_into(app: &App, args: &ServeArgs, names: &[String], offered: Vec<(String, String)>) -> Result<()> {
    let found = |index: usize| args.models.get(index).map(String::as_str);
    // Before anything is loaded, which may take minutes: whether all are there.
    let sizes: Vec<u64> = match names.len() {
        0 | 1 => vec![0; names.len()],
        _ => args.models.iter().map(|model| find::weight_bytes(model)).collect::<Result<_>>()?,
    };
    let OnDemandArgs { models_dir, models_max, sleep_idle_seconds } = &args.on_demand;
    let loaded_max = Some(*models_max).filter(|&max| max > 0 && models_dir.is_some());
    let num_models = names.len() + offered.len();
    let mut neighbours = Neighbours::of(loaded_max.unwrap_or(num_models).min(num_models));
    let mut shares = Vec::new();
    for (index, name) in names.iter().enumerate() {
        neighbours.await_bytes(sizes[index + 1..].iter().sum());
        let Loaded { model, share, note: ready } = load(args, found(index), name, &neighbours, &app.loading(name))?;
        app.ready(model)?;
        note(&ready);
        neighbours.give(share.clone());
        shares.push((name.clone(), share));
    }
    let idle_time_max = u64::try_from(*sleep_idle_seconds).ok().map(Duration::from_secs);
    if offered.is_empty() && idle_time_max.is_none() {
        return Ok(());
    }
    let named = names.iter().enumerate().map(|(index, name)| (name.clone(), found(index).map(str::to_owned)));
    let models = named.chain(offered.into_iter().map(|(name, path)| (name, Some(path)))).collect();
    let load_args = args.clone();
    let load = Box::new(move |model: Option<&str>, name: &str, neighbours: &Neighbours, loading: &Loading| {
        load(&load_args, model, name, neighbours, loading)
    });
    let loader = Box::new(Loader::new(models, loaded_max.unwrap_or(num_models), shares, load));
    let version = env!("CARGO_PKG_VERSION");
    app.load_on_demand(OnDemand { loader, loaded_max, idle_time_max, version })
        .context("cannot start the thread that loads models on demand")
}

fn load(
    args: &ServeArgs,
    model: Option<&str>,
    name: &str,
    neighbours: &Neighbours,
    loading: &Loading,
) -> Result<Loaded> {
    let limits = &args.limits;
    let sizes = EngineSizes {
        max_sequences: limits.parallel.0,
        max_batch_tokens: limits.batch_tokens,
        max_mixed_tokens: limits.mixed_tokens,
        step_target: limits.step_target_ms.map(Duration::from_millis),
        max_waiting: limits.queue,
        identifies: args.access.slot_save_path.is_some(),
        kv_tokens: limits.kv_tokens.map_or(KvTokens::AsMemoryAllows, KvTokens::AtLeast),
        neighbours,
        watch: loading,
    };
    let model = model::load_with(model, &args.model_args.settings(), &sizes)?;
    let defaults = generate::sampling_params(&model, &args.sampling)?;
    if let Some(step) = SamplerStep::ALL.into_iter().find(|step| !defaults.order.contains(step)) {
        bail!(
            "--samplers leaves out {}, which requests may ask for: name all of them, in the order that you want; \
             `samplers` of a request may leave some out",
            step.name()
        );
    }
    defaults.check(model.engine.config().vocab_size)?;
    let kv = model.engine.config().kv;
    let note = format!(
        "ready: {} on {}; context of {} tokens, {} at a time ({}), KV cache of {} tokens",
        name,
        model.device,
        model.context_len,
        model.engine.config().max_sequences,
        model.sequences_why,
        kv.num_blocks * kv.block_len,
    );
    let share = model.share;
    let model = ServedModel {
        name: name.to_owned(),
        device: model.device,
        version: env!("CARGO_PKG_VERSION"),
        defaults,
        tokenizer: model.tokenizer,
        chat_template: model.templates.chat,
        tool_template: model.templates.tools,
        template_fault: model.templates.fault,
        has_head: model.has_head,
        pooling: model.embedding.pooling,
        normalize: model.embedding.normalize,
        files: Some(model.files),
        engine: model.engine,
        idle_work: Some(idle_work(name.to_owned(), model.unchecked)),
        load_time: model.load_time,
    };
    Ok(Loaded { model, share, note })
}

/// Looks for weights that are no numbers, a piece at a time.
fn idle_work(model: String, mut unchecked: Unchecked) -> IdleWork {
    Box::new(move || match unchecked.check_piece() {
        None => false,
        Some(Ok(())) => true,
        Some(Err(NoNumber { name: tensor, index, value })) => {
            tracing::error!(
                model, tensor, index, %value,
                "a weight is no number, and texts that meet it end with a numeric fault: fetch or convert the model again"
            );
            true
        }
    })
}

/// The models of `--models-dir`, each by its name, with its path.
fn offered(args: &ServeArgs, names: &[String]) -> Result<Vec<(String, String)>> {
    let OnDemandArgs { models_dir, models_max, .. } = &args.on_demand;
    let Some(folder) = models_dir else { return Ok(Vec::new()) };
    if *models_max > 0 && names.len() > *models_max {
        bail!(
            "{} models are named, and --models-max {models_max} lets that many be loaded at a time: name fewer, \
             or let more be loaded",
            names.len()
        );
    }
    let offered = models_folder::models_in(folder)?;
    if let Some((name, path)) = offered.iter().find(|(name, _)| names.contains(name)) {
        bail!(
            "two models would be called `{name}`: give the one that is named another name with --alias, or rename `{path}`"
        );
    }
    Ok(offered)
}

fn parse_idle_seconds(text: &str) -> Result<i64, String> {
    match text.parse() {
        Ok(seconds) if seconds == -1 || seconds > 0 => Ok(seconds),
        _ => Err(format!("expected a number of seconds, or -1 for never, found `{text}`")),
    }
}

/// A limit of 0 would refuse every request that sets none.
fn parse_max_tokens(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| format!("expected a number of tokens, at least 1, or -1 for no limit, found `{text}`"))
}

fn parse_pooling(text: &str) -> Result<Pooling, String> {
    match text {
        "mean" => Ok(Pooling::Mean),
        "last" => Ok(Pooling::Last),
        _ => Err(format!("expected mean or last, the kinds of pooling that are computed here; found `{text}`")),
    }
}

fn parse_host(text: &str) -> Result<IpAddr, String> {
    if text.eq_ignore_ascii_case("localhost") {
        return Ok(IpAddr::from([127, 0, 0, 1]));
    }
    text.parse().map_err(|_| format!("expected an address such as 127.0.0.1 or 0.0.0.0, or localhost, found `{text}`"))
}

/// The folder of saved slots, which is there.
fn slot_save_path(folder: Option<&Path>) -> Result<Option<PathBuf>> {
    let Some(folder) = folder else { return Ok(None) };
    if !folder.is_dir() {
        bail!("--slot-save-path: `{}` is no folder; make it first, where nobody else may read", folder.display());
    }
    Ok(Some(folder.to_owned()))
}

fn options(args: &ServeArgs) -> Result<Options> {
    let ServeArgs { access, limits, .. } = args;
    Ok(Options {
        api_keys: api_keys(access.api_key_file.as_deref(), &access.api_key)?,
        allowed_hosts: access.allowed_host.iter().cloned().chain(own_names()).collect(),
        cors_origins: access.cors_origin.clone(),
        body_bytes_max: limits.max_body_bytes,
        prepare_bytes_max: usize::try_from(limits.prepare_memory).unwrap_or(usize::MAX),
        request_time_max: Duration::from_secs(limits.request_timeout),
        step_time_max: Duration::from_secs(limits.step_timeout),
        weight_check_pause: Some(limits.weight_check_pause).filter(|&pause| pause > 0).map(Duration::from_secs),
        stall_time_max: Duration::from_secs(limits.stall_timeout),
        drain_time_max: Duration::from_secs(limits.drain_timeout),
        connections_max: limits.max_connections as usize,
        strict_fields: limits.strict_fields,
        strict_model: limits.strict_model,
        generic_tools: !limits.no_generic_tools,
        template_defaults: limits.chat_template_kwargs.iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect(),
        pooling: limits.pooling,
        context_shift: limits.context_shift.then(|| Keep::of(limits.keep)),
        seed: args.sampling.seed,
        max_tokens: limits.max_tokens.map(NonZeroUsize::get),
        has_page: !access.no_webui,
        has_slots: !access.no_slots,
        slot_save_path: slot_save_path(access.slot_save_path.as_deref())?,
        special_in_messages: ParseSpecial::where_asked(limits.parse_special_in_messages),
        ..Options::default()
    })
}

/// What others on this network may call this machine: nobody else decides where that name points.
fn own_names() -> impl Iterator<Item = String> {
    #[cfg(target_os = "linux")]
    let name = rustix::system::uname().nodename().to_str().ok().map(str::to_owned);
    #[cfg(not(target_os = "linux"))]
    let name = None::<String>;
    name.filter(|name| !name.is_empty()).into_iter()
}

fn api_keys(file: Option<&Path>, on_the_line: &[String]) -> Result<Vec<ApiKey>> {
    let mut keys = Vec::new();
    for key in on_the_line {
        keys.push(ApiKey::new(key).context("in --api-key")?);
    }
    if let Some(file) = file {
        let text = files::read_text(file, "the keys in", files::SETTINGS_BYTES_MAX)?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        for key in lines {
            keys.push(ApiKey::new(key).with_context(|| format!("in `{}`", file.display()))?);
        }
        if keys.is_empty() {
            bail!("`{}` holds no key: write one on each line", file.display());
        }
    }
    if let Ok(key) = std::env::var(API_KEY_VARIABLE) {
        keys.push(ApiKey::new(&key).with_context(|| format!("in {API_KEY_VARIABLE}"))?);
    }
    Ok(keys)
}

/// What clients call each model.
fn names_of(args: &ServeArgs) -> Result<Vec<String>> {
    // The built-in model stands in where there is no other.
    let has_builtin = args.models.is_empty() && args.on_demand.models_dir.is_none();
    let count = args.models.len() + usize::from(has_builtin);
    let names: Vec<String> = match args.alias.len() {
        0 if has_builtin => vec![BUILTIN_NAME.to_owned()],
        0 => args.models.iter().map(|model| name_of(model)).collect(),
        aliases if aliases == count => args.alias.clone(),
        aliases => bail!("--alias is given {aliases} times: expected one for each model, of which there are {count}"),
    };
    let twice = names.iter().enumerate().find(|(index, name)| names[..*index].contains(name));
    if let Some((_, name)) = twice {
        bail!(
            "two models would be called `{name}`: give each its own name, with an --alias NAME for each in their order"
        );
    }
    Ok(names)
}

/// What clients call a model that nobody has named.
fn name_of(model: &str) -> String {
    let path = Path::new(model);
    // A file or a folder has a path that is nobody's business.
    let of_path = if path.is_dir() { path.file_name() } else { path.file_stem() };
    let of_path = of_path.filter(|_| path.exists()).map(|name| name.to_string_lossy().into_owned());
    of_path.unwrap_or_else(|| model.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: ServeArgs,
    }

    #[test]
    fn the_texts_at_a_time_are_a_number_or_what_suits_the_device() {
        let parallel = |line: &[&str]| {
            let command = Command::try_parse_from(std::iter::once(&"serve").chain(line));
            command.map(|command| command.args.limits.parallel.0).map_err(|error| error.to_string())
        };
        assert_eq!(parallel(&[]), Ok(None));
        assert_eq!(parallel(&["--parallel", "auto"]), Ok(None));
        assert_eq!(parallel(&["--max-num-seqs", "40"]), Ok(Some(40)));
        assert!(parallel(&["--parallel", "many"]).unwrap_err().contains("a number of texts or `auto`"));
    }

    #[test]
    fn a_limit_of_no_tokens_is_refused_with_what_to_write() {
        let limit = |value: &str| {
            let command = Command::try_parse_from(["serve", "-n", value]);
            command.map(|command| options(&command.args).unwrap().max_tokens).map_err(|error| error.to_string())
        };
        assert_eq!(limit("1"), Ok(Some(1)));
        let refused = limit("0").unwrap_err();
        assert!(refused.contains("--max-tokens") && refused.contains("at least 1, or -1 for no limit"), "{refused}");
    }

    #[test]
    fn variables_of_templates_are_joined_and_pooling_is_of_two_kinds() {
        let options_of = |line: &[&str]| {
            let command = Command::try_parse_from(std::iter::once(&"serve").chain(line));
            command.map(|command| options(&command.args).unwrap()).map_err(|error| error.to_string())
        };
        let kwargs = "--chat-template-kwargs";
        let joined = options_of(&[kwargs, r#"{"a": 1, "b": 1}"#, kwargs, r#"{"a": 2}"#, "--pooling", "last"]).unwrap();
        assert_eq!(serde_json::Value::from(joined.template_defaults), serde_json::json!({"a": 2, "b": 1}));
        assert_eq!(joined.pooling, Some(Pooling::Last));
        assert_eq!(options_of(&[]).unwrap().pooling, None);
        let shift = |line: &[&str]| options_of(line).map(|options| options.context_shift);
        assert_eq!(shift(&[]), Ok(None));
        assert_eq!(shift(&["--context-shift"]), Ok(Some(Keep::First(0))));
        assert_eq!(shift(&["--context-shift", "--keep", "-1"]), Ok(Some(Keep::Prompt)));
        assert!(shift(&["--keep", "4"]).unwrap_err().contains("--context-shift"));
        assert!(options_of(&["--pooling", "cls"]).unwrap_err().contains("expected mean or last"));
    }

    fn names(line: &[&str]) -> Result<Vec<String>, String> {
        let command = Command::parse_from(std::iter::once(&"serve").chain(line));
        names_of(&command.args).map_err(|error| error.to_string())
    }

    #[test]
    fn models_have_different_names_or_are_refused_with_the_remedy() {
        assert_eq!(names(&[]).unwrap(), [BUILTIN_NAME]);
        assert_eq!(names(&["--alias", "x"]).unwrap(), ["x"]);
        assert_eq!(names(&["org/a", "org/b"]).unwrap(), ["org/a", "org/b"]);
        assert_eq!(names(&["org/a", "org/a", "--alias", "x", "--alias", "y"]).unwrap(), ["x", "y"]);
        let clash = names(&["org/a", "org/a"]).unwrap_err();
        assert!(clash.contains("`org/a`") && clash.contains("--alias"), "{clash}");
        assert!(names(&["org/a", "org/b", "--alias", "x", "--alias", "x"]).unwrap_err().contains("`x`"));
        let count = names(&["org/a", "org/b", "--alias", "x"]).unwrap_err();
        assert!(count.contains("1 times") && count.contains("there are 2"), "{count}");
    }
}
