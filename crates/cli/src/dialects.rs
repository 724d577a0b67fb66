//! Command lines of llama.cpp and vLLM, as far as clap cannot say them: options of one dash with several letters, options
//! with another name here, options that have no effect here, which a note names, and options that would change the text
//! or the service and cannot be honoured, which are refused with the reason.

use std::ffi::OsString;
use std::iter::Peekable;

/// What becomes of an option.
enum Meaning {
    /// It takes a value, and is called this here.
    Is(&'static str),
    /// It takes no value, and stands for these arguments.
    Are(&'static [&'static str]),
    /// It has no effect, because of this.
    NoEffect(Values, &'static str),
    /// The same, where its value is one of these; with another value it is refused with the reason.
    NoEffectIf(&'static [&'static str], &'static str),
    /// Its value decides.
    ByValue(fn(&str) -> Choice),
    /// It is ours with one of these values; without one it is a switch of the other program, and has no effect.
    OwnOrSwitch(&'static [&'static str], &'static str),
    /// It cannot be honoured, because of this.
    Refused(&'static str),
}

/// What becomes of an option with a certain value.
enum Choice {
    /// These arguments.
    Args(Vec<String>),
    /// It stays as it is.
    AsItIs,
    /// It has no effect, because of this.
    NoEffect(&'static str),
    /// It cannot be honoured, because of this.
    Refused(&'static str),
}

/// The values that may follow an option as an argument of their own.
enum Values {
    None,
    /// Any, unless it looks like the next option.
    One,
    /// A word that switches something, so that a model's name behind the option is not taken for its value.
    Switch,
}

/// Which of the two commands has an option.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Both,
    Run,
    Serve,
}

use Meaning::{Are, ByValue, Is, NoEffect, NoEffectIf, OwnOrSwitch, Refused};
use Of::{Both, Run, Serve};

const LAYERS: &str = "a model is computed on one device, as a whole: --device says which";
const ATTENTION: &str = "attention never writes its scores to memory here";
const CACHE: &str = "the KV cache is f16, or f32 with --kv-type f32";
const BATCH: &str = "--batch-tokens says how many tokens a step has";
const MEMORY: &str = "--kv-tokens and --ctx-size say how much memory the cache takes";
const ONE_DEVICE: &str = "a model is computed on one device";
const THREADS: &str = "--threads says how many threads compute";
const PLACES: &str = "the system chooses the processors and the priority of the threads";
const LOGS: &str = "logs go to standard error; -v shows more of them";
const COLOURS: &str = "a text has no colours; --color always or never is about errors and warnings";
const CONTINUOUS: &str = "texts always join and leave the steps one by one";
const PREFIXES: &str = "prompts always share the cache of their common beginnings";
const TIMES: &str = "--request-timeout, --step-timeout and --stall-timeout are the limits of time";
const ADAPTERS: &str = "adapters are not applied; merge them into the weights first";
const IMAGES: &str = "models read text alone here";
const DRAFTS: &str = "no second model drafts tokens here";
const DIALECTS: &str = "the model's chat template shows how it writes calls and thoughts";
const GRAMMARS: &str = "`hotmetal serve` takes a grammar or a schema with each request";
const THINK: &str =
    "--think says whether the model is to think; other variables of its chat template keep their values";
const THOUGHTS: &str = "thoughts have no limit of their own; --reasoning off asks for none";
const SERVER_TLS: &str = "the server speaks plain HTTP: put a proxy in front of it (packaging/nginx.conf)";
const ROUTES: &str = "the server has all routes that the model can answer";
const SAMPLER: &str = "this sampler is not computed here";
const APART: &str = "thoughts and calls are always apart from the answer";
const FIGURES: &str = "standard output has the text alone, and standard error the figures";
const RECORDED: &str = "steps are recorded where that helps";
const WHERE_FROM: &str = "nothing is downloaded while a model runs; `hotmetal pull ORG/REPO` brings it first";
const WEIGHTS: &str = "weights are computed in the format that they are stored in; --quant FORMAT makes others";

/// Options, with the command that has them and what they mean here.
const OPTIONS: &[(&[&str], Of, Meaning)] = &[
    // Models.
    (&["-hf", "-hfr", "--hf-repo"], Both, Is("--model")),
    (&["-hft", "--hf-token"], Both, Refused("`hotmetal pull` reads the token from the variable HF_TOKEN")),
    (&["-mu", "--model-url", "-dr", "--docker-repo"], Both, Refused(WHERE_FROM)),
    (&["-cl", "--cache-list"], Both, Refused("`hotmetal list` lists the models in the cache")),
    (&["--embd-gemma-default", "--vision-gemma-4b-default", "--vision-gemma-12b-default"], Both, Refused(WHERE_FROM)),
    (
        &["--fim-qwen-1.5b-default", "--fim-qwen-3b-default", "--fim-qwen-7b-default", "--fim-qwen-30b-default"],
        Both,
        Refused(WHERE_FROM),
    ),
    (&["--fim-qwen-7b-spec", "--fim-qwen-14b-spec"], Both, Refused(WHERE_FROM)),
    (&["--gpt-oss-20b-default"], Both, Are(&["--model", "ggml-org/gpt-oss-20b-GGUF"])),
    (&["--gpt-oss-120b-default"], Both, Are(&["--model", "ggml-org/gpt-oss-120b-GGUF"])),
    (&["--download-dir"], Both, Refused("the variable HF_HOME says where models are kept")),
    (&["--revision"], Both, Refused("`hotmetal pull --revision` brings another revision")),
    (&["--tokenizer"], Both, Refused("a model is read with the tokenizer in its own files")),
    (&["--offline"], Both, NoEffect(Values::None, "a model that runs opens no connection")),
    (&["--trust-remote-code"], Both, NoEffect(Values::None, "no code in a model's folder is run")),
    (&["--load-format", "--tokenizer-mode"], Both, NoEffect(Values::One, "the model's files say what they are")),
    (&["--quantization", "-q"], Both, NoEffect(Values::One, WEIGHTS)),
    (&["--dtype"], Both, NoEffectIf(&["auto"], WEIGHTS)),
    (&["--override-kv"], Both, Refused("the model's own metadata counts; `hotmetal inspect` shows it")),
    (
        &["--lora", "--lora-scaled", "--control-vector", "--control-vector-scaled", "--control-vector-layer-range"],
        Both,
        Refused(ADAPTERS),
    ),
    (&["--lora-init-without-apply"], Serve, NoEffect(Values::None, ADAPTERS)),
    (&["--enable-lora", "--lora-modules"], Both, Refused(ADAPTERS)),
    (&["-mm", "--mmproj", "-mmu", "--mmproj-url", "--image", "--audio"], Both, Refused(IMAGES)),
    (&["--video"], Run, Refused(IMAGES)),
    (
        &[
            "--no-mmproj",
            "--mmproj-auto",
            "--no-mmproj-auto",
            "--mmproj-offload",
            "--no-mmproj-offload",
            "--language-model-only",
        ],
        Both,
        NoEffect(Values::None, IMAGES),
    ),
    (
        &["-mmdev", "--mmproj-device", "--image-min-tokens", "--image-max-tokens", "--mtmd-batch-max-tokens"],
        Both,
        NoEffect(Values::One, IMAGES),
    ),
    (
        &["--video-fps", "--video-timestamp-interval", "--video-ffmpeg-dir", "--media-path"],
        Both,
        NoEffect(Values::One, IMAGES),
    ),
    (
        &["--limit-mm-per-prompt", "--mm-processor-kwargs", "--allowed-local-media-path"],
        Both,
        NoEffect(Values::One, IMAGES),
    ),
    // A draft changes how fast a text comes, and not the text.
    (
        &["-md", "--model-draft", "-hfd", "-hfrd", "--hf-repo-draft", "--speculative-config"],
        Both,
        NoEffect(Values::One, DRAFTS),
    ),
    (
        &["--draft", "--draft-n", "--draft-max", "--draft-min", "--draft-n-min", "--draft-p-min", "--draft-p-split"],
        Both,
        NoEffect(Values::One, DRAFTS),
    ),
    (
        &["-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "-devd", "--device-draft", "-cd", "--ctx-size-draft"],
        Both,
        NoEffect(Values::One, DRAFTS),
    ),
    (
        &["-td", "--threads-draft", "-tbd", "--threads-batch-draft", "--prio-draft", "--prio-batch-draft"],
        Both,
        NoEffect(Values::One, DRAFTS),
    ),
    (
        &["-Cd", "--cpu-mask-draft", "-Crd", "--cpu-range-draft", "-Cbd", "--cpu-mask-batch-draft"],
        Both,
        NoEffect(Values::One, DRAFTS),
    ),
    (
        &["--cpu-strict-draft", "--cpu-strict-batch-draft", "--poll-draft", "--poll-batch-draft"],
        Both,
        NoEffect(Values::One, DRAFTS),
    ),
    (&["-otd", "--override-tensor-draft", "-ncmoed", "--n-cpu-moe-draft"], Both, NoEffect(Values::One, DRAFTS)),
    (&["-cmoed", "--cpu-moe-draft", "--spec-draft-cpu-moe", "--spec-default"], Both, NoEffect(Values::None, DRAFTS)),
    (&["--spec-draft-backend-sampling", "--no-spec-draft-backend-sampling"], Both, NoEffect(Values::None, DRAFTS)),
    (&["-lcs", "--lookup-cache-static", "-lcd", "--lookup-cache-dynamic"], Both, NoEffect(Values::One, DRAFTS)),
    // Devices.
    (&["-dev"], Both, Is("--device")),
    (&["-ngl", "--gpu-layers", "--n-gpu-layers"], Both, ByValue(layers)),
    (
        &["-sm", "--split-mode", "-ts", "--tensor-split", "-ot", "--override-tensor"],
        Both,
        NoEffect(Values::One, LAYERS),
    ),
    (&["-ncmoe", "--n-cpu-moe", "-ncffn", "--n-cpu-ffn", "--moe-cache-mib"], Both, NoEffect(Values::One, LAYERS)),
    (&["-cmoe", "--cpu-moe", "-nkvo", "--no-kv-offload", "-kvo", "--kv-offload"], Both, NoEffect(Values::None, LAYERS)),
    (&["--op-offload", "--no-op-offload", "--no-host"], Both, NoEffect(Values::None, LAYERS)),
    (&["-mg", "--main-gpu"], Both, ByValue(main_gpu)),
    (&["--rpc"], Both, Refused(ONE_DEVICE)),
    (
        &["--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp"],
        Both,
        NoEffectIf(&["1"], ONE_DEVICE),
    ),
    (&["--cpu-offload-gb"], Both, NoEffectIf(&["0"], LAYERS)),
    (&["--swap-space", "--num-gpu-blocks-override", "--block-size"], Both, NoEffect(Values::One, MEMORY)),
    (&["--gpu-memory-utilization"], Both, NoEffect(Values::One, MEMORY)),
    (&["-fit", "--fit"], Both, NoEffect(Values::Switch, MEMORY)),
    (
        &["-fitt", "--fit-target", "-fitc", "--fit-ctx", "--kv-unified-per-slot", "--kv-cache-memory-bytes"],
        Both,
        NoEffect(Values::One, MEMORY),
    ),
    (&["--distributed-executor-backend"], Both, NoEffect(Values::One, ONE_DEVICE)),
    (&["--disable-custom-all-reduce"], Both, NoEffect(Values::None, ONE_DEVICE)),
    (&["--enforce-eager"], Both, NoEffect(Values::None, RECORDED)),
    (
        &["--compilation-config", "-O", "--optimization-level", "--max-seq-len-to-capture", "--cuda-graph-sizes"],
        Both,
        NoEffect(Values::One, RECORDED),
    ),
    // Threads and memory.
    (&["-t", "--threads"], Both, ByValue(own_unless_negative)),
    (&["-tb", "--threads-batch"], Both, NoEffect(Values::One, THREADS)),
    (&["--threads-http"], Serve, NoEffect(Values::One, "two threads read requests and write answers")),
    (
        &["-C", "--cpu-mask", "-Cr", "--cpu-range", "--cpu-strict", "--prio", "--poll", "--numa"],
        Both,
        NoEffect(Values::One, PLACES),
    ),
    (
        &["-Cb", "--cpu-mask-batch", "-Crb", "--cpu-range-batch", "--cpu-strict-batch", "--prio-batch", "--poll-batch"],
        Both,
        NoEffect(Values::One, PLACES),
    ),
    (&["--mlock"], Both, NoEffect(Values::None, "the system keeps what is used in memory")),
    (&["--mmap"], Both, NoEffect(Values::None, "files are mapped unless --no-mmap is given")),
    (
        &["-lm", "--load-mode", "-lzm", "--lazy-mode"],
        Both,
        NoEffect(Values::One, "files are mapped unless --no-mmap is given"),
    ),
    (&["-nr"], Both, Are(&["--no-repack"])),
    (&["-dio", "--direct-io", "-ndio", "--no-direct-io"], Both, NoEffect(Values::None, "--no-mmap reads files whole")),
    (&["--repack"], Both, NoEffect(Values::None, "weights are repacked unless --no-repack is given")),
    (&["--warmup", "--no-warmup"], Both, NoEffect(Values::None, "the first request is computed as all others")),
    // Contexts, caches and steps.
    (&["-c", "--ctx-size"], Both, ByValue(own_unless_zero)),
    (&["--max-model-len"], Both, ByValue(context_of_vllm)),
    (&["-fa", "--flash-attn"], Both, NoEffect(Values::Switch, ATTENTION)),
    (&["-ctk", "--cache-type-k"], Both, ByValue(cache_type)),
    (
        &["-ctv", "--cache-type-v", "-ctkd", "--cache-type-k-draft", "-ctvd", "--cache-type-v-draft"],
        Both,
        NoEffect(Values::One, CACHE),
    ),
    (&["--kv-cache-dtype"], Both, NoEffectIf(&["auto", "float16", "half", "fp16"], CACHE)),
    (&["-b", "--batch-size", "-ub", "--ubatch-size"], Both, NoEffect(Values::One, BATCH)),
    (&["-np"], Serve, Is("--parallel")),
    (&["-np", "--parallel"], Run, NoEffectIf(&["1", "-1", "0"], "`hotmetal run` generates one text at a time")),
    (&["-cb", "--cont-batching", "-nocb", "--no-cont-batching"], Both, NoEffect(Values::None, CONTINUOUS)),
    (&["--enable-chunked-prefill", "--no-enable-chunked-prefill"], Both, NoEffect(Values::None, CONTINUOUS)),
    (
        &["--cache-prompt", "--no-cache-prompt", "--enable-prefix-caching", "--no-enable-prefix-caching"],
        Both,
        NoEffect(Values::None, PREFIXES),
    ),
    (
        &["--cache-reuse", "-cram", "--cache-ram", "--prompt-cache", "-sps", "--slot-prompt-similarity"],
        Both,
        NoEffect(Values::One, PREFIXES),
    ),
    (
        &["-ctxcp", "--ctx-checkpoints", "--swa-checkpoints", "-cms", "--checkpoint-min-step"],
        Both,
        NoEffect(Values::One, PREFIXES),
    ),
    (
        &[
            "--prompt-cache-all",
            "--prompt-cache-ro",
            "--swa-full",
            "-kvu",
            "--kv-unified",
            "--no-kv-unified",
            "-no-kvu",
            "--cache-idle-slots",
            "--no-cache-idle-slots",
        ],
        Both,
        NoEffect(Values::None, PREFIXES),
    ),
    (&["--keep"], Run, NoEffect(Values::One, PREFIXES)),
    (&["-dt", "--defrag-thold"], Both, NoEffect(Values::One, "the cache is in blocks, which need no order")),
    (
        &["--no-context-shift"],
        Both,
        NoEffect(
            Values::None,
            "a text ends where its context is full, unless `hotmetal serve --context-shift` says otherwise",
        ),
    ),
    (&["--context-shift"], Run, Refused("a text ends where its context is full: --ctx-size makes room")),
    (&["-gan", "--grp-attn-n", "-gaw", "--grp-attn-w"], Both, Refused("--rope-scaling stretches a context")),
    (&["--yarn-ext-factor"], Both, NoEffectIf(&["-1", "-1.0"], "it is YaRN's own")),
    // What is generated.
    (&["-n", "--predict", "--n-predict", "--max-tokens"], Both, ByValue(own_unless_negative)),
    (&["-s", "--seed"], Both, ByValue(own_unless_negative)),
    (&["-cnv", "--conversation"], Run, Are(&["--interactive"])),
    (&["-no-cnv", "--no-conversation"], Run, Are(&["--raw"])),
    (&["-st", "--single-turn"], Run, NoEffect(Values::None, "a prompt gets one answer; -i holds a conversation")),
    (
        &["-if", "--interactive-first", "-mli", "--multiline-input"],
        Run,
        NoEffect(Values::None, "a line that ends in \\ goes on in the next, and \"\"\" begins and ends several"),
    ),
    (&["-sys"], Run, Is("--system")),
    (&["-sysf", "--system-prompt-file"], Run, Is("--system-file")),
    (&["-bf", "--binary-file"], Run, Is("--file")),
    (
        &["-o", "--output", "--output-file"],
        Run,
        Refused("standard output has the text alone; >FILE writes it to a file"),
    ),
    (&["-r", "--reverse-prompt"], Run, Is("--stop")),
    (&["-r", "--reverse-prompt"], Serve, Refused("a request's `stop` says where its text ends")),
    (
        &["--in-prefix", "--in-suffix", "--in-prefix-bos"],
        Run,
        Refused("the chat template says what surrounds a message"),
    ),
    (&["--no-escape"], Both, NoEffect(Values::None, "a prompt is taken as it is")),
    (&["-e", "--escape"], Serve, NoEffect(Values::None, "a prompt is taken as it is")),
    (&["--server-base"], Run, Refused("`hotmetal run` computes on this machine; a server's page talks to a server")),
    (&["-co"], Run, NoEffect(Values::Switch, COLOURS)),
    (&["--color"], Run, OwnOrSwitch(&["auto", "always", "never"], COLOURS)),
    (
        &["--simple-io", "--no-display-prompt", "--display-prompt", "--verbose-prompt"],
        Run,
        NoEffect(Values::None, FIGURES),
    ),
    (&["--perf", "--no-perf", "--show-timings", "--no-show-timings"], Run, NoEffect(Values::None, FIGURES)),
    (&["-ptc", "--print-token-count"], Run, NoEffect(Values::One, FIGURES)),
    (&["--perf", "--no-perf"], Serve, NoEffect(Values::None, "each answer has its times under `x_hotmetal`")),
    (
        &["-sp", "--special"],
        Both,
        Refused("special tokens have no text; `return_token_ids` of a request gives all ids"),
    ),
    (&["-bs", "--backend-sampling"], Both, NoEffect(Values::None, "the device chooses tokens wherever it can")),
    (&["--adaptive-decay"], Both, NoEffect(Values::One, SAMPLER)),
    (&["--adaptive-target"], Both, NoEffectIf(&["-1", "-1.0", "-1.00"], SAMPLER)),
    (&["--sampler-seq", "--sampling-seq"], Both, ByValue(sampler_letters)),
    (&["-l"], Both, Is("--logit-bias")),
    (&["--ignore-eos"], Serve, Refused("`ignore_eos` of a request says that its text goes on")),
    (&["--grammar", "--grammar-file", "-j", "--json-schema", "-jf", "--json-schema-file"], Both, Refused(GRAMMARS)),
    (
        &["--spm-infill"],
        Serve,
        NoEffect(Values::None, "the marks in the model's vocabulary say in which order the texts around a gap stand"),
    ),
    // Conversations and tools.
    (&["--jinja", "--no-jinja"], Both, NoEffect(Values::None, "chat templates are always rendered as Jinja")),
    (&["--chat-template-kwargs", "--default-chat-template-kwargs"], Run, Refused(THINK)),
    (&["-rea", "--reasoning"], Serve, ByValue(reasoning)),
    (&["-rea", "--reasoning"], Run, ByValue(reasoning_of_run)),
    (&["--reasoning-effort"], Serve, ByValue(reasoning_effort)),
    (&["--reasoning-effort"], Run, NoEffectIf(&["default"], THINK)),
    (&["--reasoning-budget-message"], Both, NoEffect(Values::One, THOUGHTS)),
    (
        &["--reasoning-preserve", "--no-reasoning-preserve"],
        Both,
        NoEffect(Values::None, "the chat template says which earlier thoughts it shows"),
    ),
    (&["--no-skip-chat-parsing"], Both, NoEffect(Values::None, APART)),
    (&["--skip-chat-parsing"], Serve, Refused(APART)),
    (&["--skip-chat-parsing"], Run, NoEffect(Values::None, "the text is printed as the model writes it")),
    (
        &["--prefill-assistant", "--no-prefill-assistant"],
        Serve,
        NoEffect(Values::None, "`continue_final_message` of a request says whether the last message goes on"),
    ),
    (&["--chat-template-content-format"], Both, NoEffect(Values::One, "the chat template says what it reads")),
    (&["--reasoning-format"], Serve, NoEffectIf(&["auto", "deepseek", "deepseek-legacy"], APART)),
    (&["--reasoning-format"], Run, NoEffect(Values::One, "the text is printed as the model writes it")),
    (&["--reasoning-budget"], Run, ByValue(reasoning_budget)),
    (&["--reasoning-budget"], Serve, ByValue(reasoning_budget_of_requests)),
    (&["--enable-auto-tool-choice", "--enable-reasoning"], Serve, NoEffect(Values::None, DIALECTS)),
    (&["--tool-call-parser", "--reasoning-parser", "--tool-parser-plugin"], Serve, NoEffect(Values::One, DIALECTS)),
    (
        &["--guided-decoding-backend", "--structured-outputs-config.backend"],
        Serve,
        NoEffect(Values::One, "one engine enforces all grammars"),
    ),
    // The service.
    (&["-to", "--timeout"], Serve, NoEffect(Values::One, TIMES)),
    (&["--metrics", "--slots", "--props", "--embedding", "--embeddings"], Serve, NoEffect(Values::None, ROUTES)),
    (&["--task", "--runner", "--convert"], Serve, NoEffect(Values::One, ROUTES)),
    (&["--reranking", "--rerank"], Serve, NoEffect(Values::None, ROUTES)),
    (&["--embd-normalize"], Serve, NoEffectIf(&["2"], "`normalize` of a request says whether a vector has length 1")),
    (&["--webui", "--ui"], Serve, NoEffect(Values::None, "the page is at `/` unless --no-webui is given")),
    (
        &["--path", "--api-prefix", "--root-path", "--uds"],
        Serve,
        Refused("routes are where they are: a proxy moves them"),
    ),
    (&["--reuse-port"], Serve, Refused("one server listens on a port; --port chooses another")),
    (
        &["--tools", "--tools-runtime", "--mcp-servers-config", "--mcp-servers-json", "-ag", "--agent"],
        Serve,
        Refused("the server runs no tools; a client is given the model's calls, and runs them"),
    ),
    (&["--ui-mcp-proxy", "--webui-mcp-proxy"], Serve, Refused("the server opens no connection for its clients")),
    (
        &["-no-ag", "--no-agent", "--no-ui-mcp-proxy", "--no-webui-mcp-proxy"],
        Serve,
        NoEffect(Values::None, "the server runs no tools, and opens no connection for its clients"),
    ),
    (
        &["--ui-config", "--webui-config", "--ui-config-file", "--webui-config-file"],
        Serve,
        NoEffect(Values::One, "the page keeps its settings in the browser"),
    ),
    (
        &["--sse-ping-interval"],
        Serve,
        NoEffect(Values::One, "a stream that has nothing to say for 15 seconds sends a comment"),
    ),
    (&["--log-prompts-dir"], Both, Refused("no text of a request is written to a file or a log")),
    (&["--ssl-key-file", "--ssl-cert-file", "--ssl-keyfile", "--ssl-certfile"], Serve, Refused(SERVER_TLS)),
    (&["--models-autoload"], Serve, NoEffect(Values::None, "a request always loads the model that it names")),
    (&["--no-models-autoload"], Serve, Refused("a request always loads the model that it names")),
    (&["--models-preset"], Serve, Refused("flags hold for all models of --models-dir")),
    (&["--allowed-origins"], Serve, ByValue(origins)),
    (&["--cors-origins"], Serve, ByValue(origins_with_commas)),
    (
        &["--cors-methods", "--cors-headers"],
        Serve,
        NoEffect(Values::One, "a page that may use the server may send all that its routes take"),
    ),
    (
        &["--cors-credentials", "--no-cors-credentials"],
        Serve,
        NoEffect(Values::None, "the server keeps no cookies; a key is a header"),
    ),
    (&["--tags"], Serve, NoEffect(Values::One, "clients choose a model by its name")),
    (&["--generation-config"], Serve, NoEffectIf(&["auto"], "flags such as --temp change what the model's file says")),
    (&["--max-logprobs"], Serve, NoEffect(Values::One, "a request says how many it wants")),
    (&["--disable-frontend-multiprocessing"], Serve, NoEffect(Values::None, "the server is one process")),
    (
        &["--disable-log-requests", "--disable-log-stats", "--no-enable-log-requests", "--enable-log-requests"],
        Serve,
        NoEffect(Values::None, LOGS),
    ),
    (&["--uvicorn-log-level", "-lv", "--verbosity", "--log-verbosity"], Both, NoEffect(Values::One, LOGS)),
    (
        &["--log-disable", "--log-prefix", "--log-timestamps", "--no-log-prefix", "--no-log-timestamps"],
        Both,
        NoEffect(Values::None, LOGS),
    ),
    (&["--log-verbose"], Both, Are(&["--verbose"])),
    (&["--no-log-jsonl"], Both, NoEffect(Values::None, LOGS)),
    (&["--log-jsonl"], Both, Refused("logs are lines of text on standard error")),
    (&["--usage"], Both, Are(&["--help"])),
    (&["--completion-bash"], Both, Refused("`hotmetal completions bash` writes the script")),
    (&["--log-colors"], Both, NoEffect(Values::Switch, "NO_COLOR=1 in the environment switches colours off")),
    (&["--log-file"], Both, Refused("logs go to standard error; 2>FILE writes them to a file")),
    (&["--list-devices"], Both, Refused("`hotmetal doctor` lists the devices")),
];

/// Commands of Ollama, LM Studio and llama.cpp that do not exist here, each with what does the same. Commands that exist here
/// under another name are aliases in `main.rs`.
const COMMANDS: &[(&[&str], &str)] = &[
    (&["ps"], "a server that runs lists its loaded models at /api/ps (curl http://127.0.0.1:8080/api/ps)"),
    (
        &["stop", "unload"],
        "Ctrl-C ends `hotmetal serve`, and its --sleep-idle-seconds N unloads a model that nobody uses",
    ),
    (&["load"], "`hotmetal serve MODEL` loads a model, and with --models-dir FOLDER each that a request names"),
    (&["chat", "cli"], "`hotmetal run -i MODEL` holds a conversation"),
    (
        &["create"],
        "`hotmetal quantize` writes model files; --system, --temp and the like are flags of `hotmetal run` and `serve`",
    ),
    (&["cp", "copy"], "`hotmetal serve MODEL --alias NAME` gives a model another name"),
    (&["search"], "models are found on https://huggingface.co; `hotmetal pull ORG/REPO` brings one"),
    (&["push", "signin", "signout", "login"], "nothing is sent to a hub; `hotmetal pull` takes the token in HF_TOKEN"),
];

/// What becomes of an option about drafts.
const ANY_DRAFT: Meaning = NoEffect(Values::One, DRAFTS);

/// The file of `-hff`, which belongs to the repository of `-hf`.
const REPO_OPTIONS: &[&str] = &["-hf", "-hfr", "--hf-repo"];
const FILE_OPTIONS: &[&str] = &["-hff", "--hf-file"];

fn args(words: &[&str]) -> Choice {
    Choice::Args(words.iter().map(|&word| word.to_owned()).collect())
}

fn layers(value: &str) -> Choice {
    if value == "0" { args(&["--device", "cpu"]) } else { Choice::NoEffect(LAYERS) }
}

fn main_gpu(value: &str) -> Choice {
    if value == "0" { Choice::NoEffect(LAYERS) } else { Choice::Refused("--device cuda:N chooses a GPU") }
}

fn cache_type(value: &str) -> Choice {
    match value {
        "f16" | "f32" => args(&["--kv-type", value]),
        _ => Choice::NoEffect(CACHE),
    }
}

/// Ours, where -1 stands for what the option is without: no limit, all processors, a random seed.
fn own_unless_negative(value: &str) -> Choice {
    if ["-1", "-2"].contains(&value) { args(&[]) } else { Choice::AsItIs }
}

fn own_unless_zero(value: &str) -> Choice {
    if value == "0" { args(&[]) } else { Choice::AsItIs }
}

/// `32k` is 32,000 and `32K` is 32,768, as in vLLM.
fn context_of_vllm(value: &str) -> Choice {
    if ["auto", "-1"].contains(&value) {
        return args(&[]);
    }
    let units = [('k', 1_000), ('K', 1 << 10), ('m', 1_000_000), ('M', 1 << 20)];
    let known = units.iter().find_map(|&(unit, of)| Some((value.strip_suffix(unit)?.parse::<usize>().ok()?, of)));
    match known.and_then(|(count, of)| count.checked_mul(of)) {
        Some(tokens) => args(&["--ctx-size", &tokens.to_string()]),
        None => Choice::AsItIs,
    }
}

/// llama.cpp's letters of samplers as the list of their names.
fn sampler_letters(value: &str) -> Choice {
    let name = |letter: char| match letter {
        'e' => Some("penalties"),
        'd' => Some("dry"),
        's' => Some("top_n_sigma"),
        'k' => Some("top_k"),
        'y' => Some("typ_p"),
        'p' => Some("top_p"),
        'm' => Some("min_p"),
        'x' => Some("xtc"),
        't' => Some("temperature"),
        _ => None,
    };
    match value.chars().map(name).collect::<Option<Vec<_>>>() {
        Some(names) if !names.is_empty() => args(&["--samplers", &names.join(";")]),
        _ => Choice::Refused("its letters are e, d, s, k, y, p, m, x and t; --samplers takes the names"),
    }
}

fn reasoning_budget(value: &str) -> Choice {
    match value {
        "-1" => args(&[]),
        "0" => args(&["--think", "false"]),
        _ => Choice::Refused("thoughts have no limit of their own; --think false asks for none"),
    }
}

fn reasoning_budget_of_requests(value: &str) -> Choice {
    match value {
        "-1" => args(&[]),
        "0" => reasoning("off"),
        _ => Choice::Refused(THOUGHTS),
    }
}

/// Whether requests that do not say it want thoughts.
fn reasoning(value: &str) -> Choice {
    match value {
        // llama-server lets a model think whose template can switch that, and the flag is its own.
        "auto" | "on" => args(&["--chat-template-kwargs", r#"{"enable_thinking":true}"#]),
        "off" => args(&["--chat-template-kwargs", r#"{"enable_thinking":false}"#]),
        _ => Choice::Refused("expected on, off or auto"),
    }
}

fn reasoning_of_run(value: &str) -> Choice {
    match value {
        "auto" => args(&[]),
        "on" => args(&["--think", "true"]),
        "off" => args(&["--think", "false"]),
        _ => Choice::Refused("expected on, off or auto"),
    }
}

/// How much a model is to think whose template has that variable.
fn reasoning_effort(value: &str) -> Choice {
    let variables = |value: serde_json::Value| args(&["--chat-template-kwargs", &value.to_string()]);
    match value {
        "" => Choice::Refused("expected a level such as low, medium or high"),
        "default" => args(&[]),
        "none" => variables(serde_json::json!({"enable_thinking": false})),
        level => variables(serde_json::json!({"reasoning_effort": level})),
    }
}

fn each_origin<'a>(origins: impl Iterator<Item = &'a str>) -> Choice {
    Choice::Args(origins.flat_map(|origin| ["--cors-origin", origin]).map(str::to_owned).collect())
}

/// Origins with commas between them, as llama.cpp takes them.
fn origins_with_commas(value: &str) -> Choice {
    each_origin(value.split(',').map(str::trim))
}

/// A list in JSON, as vLLM takes it.
fn origins(value: &str) -> Choice {
    match serde_json::from_str::<Vec<String>>(value) {
        Ok(origins) => each_origin(origins.iter().map(String::as_str)),
        Err(_) => Choice::Refused("expected a list in JSON such as [\"https://example.org\"]; --cors-origin takes one"),
    }
}

/// A command line in our words.
#[derive(Debug, Default)]
pub(crate) struct Translated {
    /// The arguments.
    pub(crate) args: Vec<OsString>,
    /// What is to be said of those left out.
    pub(crate) notes: Vec<String>,
}

/// The arguments in the words of `hotmetal run` and `hotmetal serve`.
///
/// # Errors
/// What is wrong, where an option of another program cannot be honoured.
pub(crate) fn translated(args: impl Iterator<Item = OsString>) -> Result<Translated, String> {
    let mut args = args.peekable();
    let mut ours = Translated::default();
    // The program and the command; of other commands, all is as it stands.
    ours.args.extend(args.by_ref().take(2));
    let command = match ours.args.get(1).and_then(|command| command.to_str()) {
        Some("run") => Run,
        Some("serve") => Serve,
        other => {
            let foreign = COMMANDS.iter().find(|(names, _)| other.is_some_and(|word| names.contains(&word)));
            if let (Some(word), Some((_, remedy))) = (other, foreign) {
                return Err(format!("there is no command `{word}`: {remedy}"));
            }
            ours.args.extend(args);
            return Ok(ours);
        }
    };
    let (mut repo_at, mut file) = (None, None);
    while let Some(arg) = args.next() {
        if arg == "--" {
            ours.args.push(arg);
            ours.args.extend(args);
            break;
        }
        let Some(text) = arg.to_str().filter(|text| text.starts_with('-')) else {
            ours.args.push(arg);
            continue;
        };
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text, None),
        };
        // As vLLM's parser does.
        let name = if name.starts_with("--") { name.replace('_', "-") } else { name.to_owned() };
        if FILE_OPTIONS.contains(&name.as_str()) {
            file = value.or_else(|| args.next().and_then(|file| file.into_string().ok()));
            continue;
        }
        translate(command, &name, value, &mut args, &mut ours)?;
        if REPO_OPTIONS.contains(&name.as_str()) {
            repo_at = Some(ours.args.len() - 1);
        }
    }
    if let Some(file) = file {
        let repo =
            repo_at.map(|at| &mut ours.args[at]).ok_or("`-hff` names a file of the repository that `-hf` names")?;
        // `ORG/REPO:QUANT` names a file already, and the file's own name says more.
        let name = repo.to_string_lossy().split(':').next().map(|repo| format!("{repo}:{file}"));
        *repo = name.unwrap_or_default().into();
    }
    Ok(ours)
}

/// Passes over a word that switches something on or off, if one follows.
fn pass_switch(rest: &mut Peekable<impl Iterator<Item = OsString>>) {
    let words = ["on", "off", "auto", "1", "0", "true", "false"];
    rest.next_if(|next| words.iter().any(|word| next == word));
}

/// Translates one option, whose value may be among `rest`.
fn translate(
    command: Of,
    name: &str,
    value: Option<String>,
    rest: &mut Peekable<impl Iterator<Item = OsString>>,
    ours: &mut Translated,
) -> Result<(), String> {
    let found = OPTIONS.iter().find(|(names, of, _)| names.contains(&name) && (*of == Both || *of == command));
    // How a draft is made has some forty options, and more come with each release.
    let found = found.map(|(_, _, meaning)| meaning).or_else(|| name.starts_with("--spec-").then_some(&ANY_DRAFT));
    let Some(meaning) = found else {
        check_letters(name)?;
        ours.args.push(match value {
            Some(value) => format!("{name}={value}").into(),
            None => name.into(),
        });
        return Ok(());
    };
    let mut next = || value.clone().map(OsString::from).or_else(|| rest.next_if(is_value));
    let as_text = |value: &Option<OsString>| {
        value.as_ref().map(|value| format!(" {}", value.to_string_lossy())).unwrap_or_default()
    };
    let refusal = |value: &Option<OsString>, because: &str| {
        Err(format!("`{name}{}` cannot be honoured: {because}", as_text(value)))
    };
    let note =
        |value: &Option<OsString>, because: &str| format!("`{name}{}` has no effect here: {because}", as_text(value));
    match meaning {
        Is(here) => {
            ours.args.push((*here).into());
            ours.args.extend(next());
        }
        Are(words) => ours.args.extend(words.iter().map(OsString::from)),
        NoEffect(values, because) => {
            match values {
                Values::None => {}
                Values::One => _ = next(),
                Values::Switch if value.is_none() => pass_switch(rest),
                Values::Switch => {}
            }
            ours.notes.push(note(&None, because));
        }
        OwnOrSwitch(values, because) => {
            let is_own = |given: &OsString| values.iter().any(|value| given == value);
            let given = match &value {
                Some(value) => Some(value.into()).filter(is_own),
                None => rest.next_if(is_own),
            };
            if let Some(given) = given {
                ours.args.extend([name.into(), given]);
                return Ok(());
            }
            if value.is_none() {
                pass_switch(rest);
            }
            ours.notes.push(note(&None, because));
        }
        NoEffectIf(only, because) => {
            let given = next();
            if !given.as_deref().is_some_and(|given| only.iter().any(|only| given == *only)) {
                return refusal(&given, because);
            }
            ours.notes.push(note(&given, because));
        }
        ByValue(choose) => {
            let given = next();
            match choose(given.as_deref().and_then(|given| given.to_str()).unwrap_or_default()) {
                Choice::Args(words) => ours.args.extend(words.into_iter().map(OsString::from)),
                Choice::AsItIs => {
                    ours.args.push(name.into());
                    ours.args.extend(given);
                }
                Choice::NoEffect(because) => ours.notes.push(note(&given, because)),
                Choice::Refused(because) => return refusal(&given, because),
            }
        }
        Refused(because) => return refusal(&None, because),
    }
    Ok(())
}

/// That one dash and letters are no option of several letters that is not known: clap would read `-hfx` as `-h` and print
/// the help, and `-npx` as `-n px`.
fn check_letters(name: &str) -> Result<(), String> {
    let letters = name.strip_prefix('-').filter(|rest| !rest.starts_with('-')).unwrap_or_default();
    let is_word = letters.len() > 1 && letters.chars().all(|letter| letter.is_ascii_alphabetic() || letter == '-');
    // These take no value, so that several may stand behind one dash.
    let are_switches = letters.chars().all(|letter| "vi".contains(letter));
    if is_word && !are_switches {
        return Err(format!(
            "there is no option `{name}`; an option of one letter and its value stand apart: `{} {}`",
            &name[..2],
            &name[2..]
        ));
    }
    Ok(())
}

/// Whether an argument is a value rather than the next option: options are no numbers.
fn is_value(arg: &OsString) -> bool {
    let arg = arg.to_string_lossy();
    !arg.starts_with('-') || arg == "-" || arg.parse::<f64>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> (String, usize) {
        let found = translated(text.split(' ').map(OsString::from)).expect(text);
        let args: Vec<_> = found.args.iter().map(|arg| arg.to_str().unwrap()).collect();
        (args.join(" "), found.notes.len())
    }

    #[test]
    fn other_programs_options_are_ours_or_are_told() {
        for (theirs, ours, notes) in [
            ("hotmetal run -hf org/repo -p hi", "hotmetal run --model org/repo -p hi", 0),
            ("hotmetal run -hf org/repo:Q4_K_M", "hotmetal run --model org/repo:Q4_K_M", 0),
            ("hotmetal run -hf org/repo -hff a.gguf", "hotmetal run --model org/repo:a.gguf", 0),
            ("hotmetal run --hf-file=a.gguf --hf-repo=org/repo:Q8_0", "hotmetal run --model org/repo:a.gguf", 0),
            ("hotmetal serve -ngl 99 -fa -np 4 --hf-repo=org/repo", "hotmetal serve --parallel 4 --model org/repo", 2),
            ("hotmetal serve -ngl 0 m.gguf", "hotmetal serve --device cpu m.gguf", 0),
            ("hotmetal serve -fa m.gguf", "hotmetal serve m.gguf", 1),
            ("hotmetal serve -ctk q8_0 -fa on --jinja m.gguf", "hotmetal serve m.gguf", 3),
            ("hotmetal run -ctk f32 -ctv f32 m.gguf", "hotmetal run --kv-type f32 m.gguf", 1),
            ("hotmetal serve --dtype auto --tensor-parallel-size=1", "hotmetal serve", 2),
            ("hotmetal run -cnv -- -ngl", "hotmetal run --interactive -- -ngl", 0),
            ("hotmetal run -no-cnv -n -1 -c 0 -s -1 -t -1 hi", "hotmetal run --raw hi", 0),
            ("hotmetal run -n 8 -c 64 -s 7 -t 2 hi", "hotmetal run -n 8 -c 64 -s 7 -t 2 hi", 0),
            ("hotmetal serve -n 128 -c 4096", "hotmetal serve -n 128 -c 4096", 0),
            ("hotmetal serve -n -1 --backend_sampling", "hotmetal serve", 1),
            ("hotmetal run -r User: -sys Brief", "hotmetal run --stop User: --system Brief", 0),
            ("hotmetal run -sysf a.txt -e -p hi", "hotmetal run --system-file a.txt -e -p hi", 0),
            ("hotmetal run --sampling-seq kt -l 5+1", "hotmetal run --samplers top_k;temperature --logit-bias 5+1", 0),
            ("hotmetal run --reasoning off --reasoning-format none", "hotmetal run --think false", 1),
            (
                "hotmetal serve -nr -no-kvu -ctxcp 8 -md d.gguf --spec-draft-n-max 3 m",
                "hotmetal serve --no-repack m",
                4,
            ),
            ("hotmetal serve --embedding --pooling last --reranking", "hotmetal serve --pooling last", 2),
            (
                "hotmetal serve --reasoning-effort high",
                "hotmetal serve --chat-template-kwargs {\"reasoning_effort\":\"high\"}",
                0,
            ),
            ("hotmetal serve -vv --usage", "hotmetal serve -vv --help", 0),
            ("hotmetal run -n256 -vi", "hotmetal run -n256 -vi", 0),
            ("hotmetal serve --max-model-len 32k", "hotmetal serve --ctx-size 32000", 0),
            ("hotmetal serve --max_model_len=4K", "hotmetal serve --ctx-size 4096", 0),
            ("hotmetal serve --max-model-len 2048", "hotmetal serve --max-model-len 2048", 0),
            ("hotmetal serve --allowed-origins [\"*\"]", "hotmetal serve --cors-origin *", 0),
            ("hotmetal serve --cors-origins a,b", "hotmetal serve --cors-origin a --cors-origin b", 0),
            (
                "hotmetal serve --reasoning off --no-jinja",
                "hotmetal serve --chat-template-kwargs {\"enable_thinking\":false}",
                1,
            ),
            (
                "hotmetal serve --reasoning-budget 0",
                "hotmetal serve --chat-template-kwargs {\"enable_thinking\":false}",
                0,
            ),
            ("hotmetal serve --tool-call-parser hermes --enable-auto-tool-choice m", "hotmetal serve m", 2),
            (
                "hotmetal serve --no-mmap --cors-origin=https://a.b?c=d",
                "hotmetal serve --no-mmap --cors-origin=https://a.b?c=d",
                0,
            ),
            ("hotmetal run --color always hi", "hotmetal run --color always hi", 0),
            ("hotmetal run --color=never hi", "hotmetal run --color never hi", 0),
            ("hotmetal run --color hi", "hotmetal run hi", 1),
            ("hotmetal run --color on hi", "hotmetal run hi", 1),
            ("hotmetal bench -ngl 99", "hotmetal bench -ngl 99", 0),
            ("hotmetal", "hotmetal", 0),
        ] {
            assert_eq!(line(theirs), (ours.to_owned(), notes), "{theirs}");
        }
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_with_the_reason() {
        for (theirs, option, because) in [
            ("hotmetal serve --dtype float8", "`--dtype float8`", "--quant FORMAT"),
            ("hotmetal serve --tensor-parallel-size 2", "`--tensor-parallel-size 2`", ONE_DEVICE),
            ("hotmetal serve --lora a.gguf", "`--lora`", ADAPTERS),
            ("hotmetal run -mu https://example.org/m.gguf", "`-mu`", "hotmetal pull"),
            ("hotmetal run --adaptive-target 0.5 hi", "`--adaptive-target 0.5`", SAMPLER),
            ("hotmetal run -j {} hi", "`-j`", GRAMMARS),
            ("hotmetal run -hff a.gguf hi", "`-hff`", "-hf"),
            ("hotmetal serve --allowed-origins *", "`--allowed-origins *`", "--cors-origin"),
            ("hotmetal serve --reasoning maybe", "`--reasoning maybe`", "on, off or auto"),
            ("hotmetal serve --reasoning-budget 100", "`--reasoning-budget 100`", THOUGHTS),
            ("hotmetal run --chat-template-kwargs {} hi", "`--chat-template-kwargs`", THINK),
            ("hotmetal serve -mg 1", "`-mg 1`", "cuda:N"),
            ("hotmetal serve --tools all", "`--tools`", "runs no tools"),
            ("hotmetal run --sampling-seq kq hi", "`--sampling-seq kq`", "--samplers"),
            ("hotmetal serve -hfx 1", "`-hfx`", "stand apart: `-h fx`"),
        ] {
            let error = translated(theirs.split(' ').map(OsString::from)).unwrap_err();
            assert!(error.contains(option) && error.contains(because), "{theirs}: {error}");
        }
    }

    #[test]
    fn commands_of_other_programs_are_ours_or_say_what_does_the_same() {
        use clap::CommandFactory;
        let error = translated(["hotmetal", "ps"].map(OsString::from).into_iter()).unwrap_err();
        assert!(error.contains("`ps`") && error.contains("/api/ps"), "{error}");
        let commands = crate::Cli::command();
        let known = |word: &str| commands.find_subcommand(word).is_some();
        for (names, remedy) in COMMANDS {
            for word in remedy.split('`').skip(1).step_by(2).filter_map(|line| line.strip_prefix("hotmetal ")) {
                let word = word.split(' ').next().unwrap_or_default();
                assert!(known(word), "{names:?}: {word}");
            }
            assert!(!names.iter().any(|name| known(name)), "{names:?}");
        }
        for (theirs, ours) in
            [("ls", "list"), ("show", "inspect"), ("download", "pull"), ("get", "pull"), ("server", "serve")]
        {
            assert_eq!(commands.find_subcommand(theirs).map(clap::Command::get_name), Some(ours));
        }
    }

    /// Whether a flag of ours, or the table, has each option that llama.cpp's help lists.
    #[test]
    fn every_option_of_llama_cpp_is_known_by_name() {
        use clap::CommandFactory;
        let commands = crate::Cli::command();
        let mut unknown = Vec::new();
        let list = include_str!("../tests/texts/llama_cpp_options.txt");
        for line in list.lines().filter(|line| !line.starts_with('#')) {
            let (command, names) = line.split_once(' ').expect("a command and options");
            let of = if command == "serve" { Serve } else { Run };
            let flags = commands.find_subcommand(command).expect("a command").get_arguments();
            let global = commands.get_arguments().filter(|flag| flag.is_global_set());
            let flags: Vec<_> = flags.chain(global).collect();
            for name in names.split(' ') {
                let own = flags.iter().any(|flag| match name.strip_prefix("--") {
                    Some(long) => {
                        flag.get_long_and_visible_aliases().into_iter().flatten().any(|own| own == long)
                            || flag.get_all_aliases().into_iter().flatten().any(|own| own == long)
                    }
                    None => flag.get_short().is_some_and(|short| name == format!("-{short}")),
                });
                let listed = OPTIONS
                    .iter()
                    .any(|(options, which, _)| (*which == Both || *which == of) && options.contains(&name));
                let other = name.starts_with("--spec-") || FILE_OPTIONS.contains(&name);
                let is_help = ["-h", "--help", "--version"].contains(&name);
                if !(own || listed || other || is_help) {
                    unknown.push(format!("{command} {name}"));
                }
            }
        }
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    /// The command lines of `docs/coming-from.md`, in blocks and in tables, are command lines.
    #[test]
    fn what_people_are_told_to_type_can_be_typed() {
        use clap::CommandFactory;
        let page = include_str!("../../../docs/coming-from.md");
        let lines = page.lines().filter(|line| line.starts_with("hotmetal "));
        let inline =
            page.split('`').skip(1).step_by(2).filter(|text| text.starts_with("hotmetal ") && text.contains(" -"));
        let mut count = 0;
        for line in lines.chain(inline) {
            let mut args: Vec<OsString> = Vec::new();
            // Quoted words stay together.
            for (index, piece) in line.split('"').enumerate() {
                match index % 2 {
                    0 => args.extend(piece.split_whitespace().map(OsString::from)),
                    _ => args.push(piece.into()),
                }
            }
            let translated = translated(args.into_iter()).unwrap_or_else(|error| panic!("{line}: {error}"));
            let matches = crate::Cli::command().try_get_matches_from(translated.args);
            assert!(matches.is_ok(), "{line}: {}", matches.unwrap_err());
            count += 1;
        }
        assert!(count > 8, "{count} command lines");
    }

    /// Each option has one meaning in each command, and what it is called here is a flag of that command.
    #[test]
    fn each_option_has_one_meaning_and_stands_for_flags_that_exist() {
        use clap::CommandFactory;
        let commands = crate::Cli::command();
        for (command, of) in [("run", Run), ("serve", Serve)] {
            let clap = commands.find_subcommand(command).expect("a command").clone();
            let flags: Vec<String> = clap
                .get_arguments()
                .chain(commands.get_arguments().filter(|flag| flag.is_global_set()))
                .flat_map(|arg| arg.get_long_and_visible_aliases().into_iter().flatten())
                .chain(["help"])
                .map(|long| format!("--{long}"))
                .collect();
            let mut names: Vec<&str> = Vec::new();
            for (option, _, meaning) in OPTIONS.iter().filter(|(_, which, _)| *which == Both || *which == of) {
                names.extend(*option);
                let here: Vec<&str> = match meaning {
                    Is(here) => vec![here],
                    Are(words) => words.iter().copied().filter(|word| word.starts_with("--")).collect(),
                    _ => vec![],
                };
                for flag in here {
                    assert!(flags.iter().any(|known| known == flag), "{command} {option:?}: {flag}");
                }
            }
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{command}: an option is listed twice");
        }
    }
}
