"""Questions and answers in chat form: Hotmetal's commands, sums, facts, small talk, stories asked for.

Every function returns turns, pairs of what the user says and what the model answers. Answers are
true of Hotmetal as its documentation describes it; sums are computed, never listed.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable

import stories
from cast import BOYS, GIRLS, MORE_THINGS, PLACES, SPECIES, THINGS, animal, invented_name
from grammar import Writer, polish
from stories import PLOTS, THEMES, Request

Turn = tuple[str, str]
HELD_OUT_IN = 12  # one of so many combinations is never trained on


def held_out(*key: object) -> bool:
    """Whether this combination is kept for the test set. Stable across runs and machines."""
    return zlib.crc32(repr(key).encode()) % HELD_OUT_IN == 0


def _expand(rng: random.Random, template: str, **env: object) -> str:
    return polish(Writer(rng, env).expand(template))


def casual(rng: random.Random, question: str) -> str:
    """A question as people type it: now and then without capitals or the question mark."""
    roll = rng.random()
    if roll < 0.12:
        return question.lower().rstrip("?.")
    if roll < 0.20:
        return question.rstrip("?.")
    if roll < 0.25:
        return question[0].lower() + question[1:]
    return question


# ---------------------------------------------------------------- Hotmetal

# (what is asked about, ways to ask, ways to answer)
HOW = "[how do I|how can I|how should I|how do you|what do I do to|how would I|which command lets me|how|please explain how to|how to|what is the command to|how does one|which command do I use to|tell me how to|I want to|can I|I would like to|show me how to|what do I type to|is there a way to]"
WHAT = "[what is|what is|explain|what do you mean by|tell me about|can you explain|what's|define|describe]"
HOTMETAL: list[tuple[list[str], list[str]]] = [
    (["[what is|what's|tell me about|explain|who made|describe] Hotmetal", "what does Hotmetal do", "what is this program", "what is hotmetal for"],
     ["Hotmetal is a fast engine for running open-weight language models on [your own machine|the machine in front of you]. It is written in Rust. [Type `hotmetal run` to try it.|It works offline, without any server.|]"]),
    ([f"{HOW} run a model", f"{HOW} [try|use|launch|execute|call] [a|this|my|another] model", f"{HOW} [send|give] [a prompt|a question|text] to [a|the] model", "how do I [begin|start|get started]", "where do I [begin|start]", f"{HOW} [write|make|get] [a story|text] [from|with] [a|the] model", f"{HOW} run a [GGUF|safetensors] file", "getting started", f"{HOW} start a model", f"{HOW} generate text", "[how does|what does] the run command [work|do]", "how do I use `hotmetal run`", "how do I use Hotmetal", f"{HOW} load a model and ask it something"],
     ["Use `hotmetal run MODEL \"your prompt\"`. [MODEL can be a directory, a file, or an ORG/REPO that is already in the cache.|Without a MODEL the built-in model answers.]",
      "Type `hotmetal run MODEL PROMPT`. [The answer is printed as it is generated.|The last line shows how long loading, the prompt and decoding took.]"]),
    (["what happens [if I give no model|without a model|when I leave out the model]", "do I need to [name|download] a model [first|]", "what is the [default|built-in] model", "which model runs by default", "is there a model inside hotmetal"],
     ["If no model is named, the built-in model runs. [It is small, it is inside the program, and it needs no download.|That is me: a small model inside the program itself.]"]),
    ([f"{HOW} chat [with a model|]", f"{HOW} [open|start|begin] [a|an] [chat|interactive chat|conversation|session]", f"{HOW} [ask|keep asking] [several|many|more] questions", "is there a [chat|chat mode|REPL|interactive mode]", "can you remember [our conversation|what I said before]", f"{HOW} have a conversation", f"{HOW} talk to the model [interactively|]", "what does the -i [flag|option] do", "what is -i", "what is interactive mode"],
     ["Use `hotmetal run -i MODEL`. The flag -i starts an interactive chat [that remembers what was said before|with history]. [Type /help to see its commands.|Type /clear to start again.]"]),
    (["what commands are there in [the chat|interactive mode]", "what can I type in the interactive chat", "which slash commands are there", "what are the chat commands", "what does /help do"],
     ["In the interactive chat there are /help, /clear, /system, /regen, /save and /stats. [/help explains them all.|]"]),
    (["what does /clear do", f"{HOW} [forget|clear] the [conversation|history]", f"{HOW} start the chat again"], ["/clear forgets the conversation so far, so that you can start again. [It works in the interactive chat.|]"]),
    (["what does /system do", f"{HOW} set a system prompt", f"{HOW} change the system message"], ["In the interactive chat, type /system and then the text. It sets the system prompt [for the conversation|that tells the model how to behave]."]),
    (["what does /regen do", f"{HOW} [regenerate|repeat] the last answer", f"{HOW} get another answer"], ["/regen generates the last answer once more. [Use it when you would like a different answer.|]"]),
    (["what does /save do", f"{HOW} save [the|a] conversation", f"{HOW} write the chat to a file"], ["Type /save and a file name in the interactive chat. It writes the conversation to that file."]),
    (["what does /stats do", f"{HOW} see how fast the chat is"], ["/stats shows the speed and the number of tokens [of the conversation|so far]."]),
    (["what does the -p [flag|option] do", "what is -p for", f"{HOW} pass the prompt as [a flag|an option]"], ["-p gives the prompt: `hotmetal run MODEL -p \"your prompt\"`. [It does the same as the prompt after the model.|]"]),
    (["what does the -f [flag|option] do", "what is -f for", f"{HOW} read the prompt from a file", f"{HOW} use a file as the prompt"], ["-f reads the prompt from a file: `hotmetal run MODEL -f prompt.txt`."]),
    ([f"{HOW} pipe [text|a prompt] into hotmetal", f"{HOW} [send|give|feed] [a file|text|input] through a pipe", "can hotmetal read [from|] standard input", "does hotmetal read stdin", f"{HOW} use stdin"], ["Yes. If no prompt is given, Hotmetal reads it from standard input, for example `hotmetal run MODEL < prompt.txt`."]),
    (["what does the -n [flag|option] do", f"{HOW} [set|change] the [maximum|] [length|number of tokens]", "the answer is too [long|short]", f"{HOW} [stop|cut] [it|the answer] after [50|100|200] tokens", "how long can [the answer|answers] be", "what is -n", f"{HOW} limit the [number of tokens|length of the answer]", f"{HOW} get a shorter answer", f"{HOW} make the answer longer"], ["-n sets how many tokens may be generated at most. [For example, `hotmetal run -n 100 \"Hello\"` stops after 100 tokens.|The answer may end earlier by itself.]"]),
    ([f"{WHAT} --temp", f"{WHAT} [the|] temperature", f"{HOW} change the temperature", "the answers are too [random|wild|boring]", f"{HOW} make [it|the text|the model] [less random|more certain|more surprising]", "what does --temp [0.7|1|0.2] mean", "what temperature should I use", f"{HOW} make the answers more [random|varied|creative]"],
     ["--temp sets the temperature. A high temperature makes the text more varied, a low one makes it more certain. [`--temp 0` is greedy: the most likely token is always taken.|With 0 the most likely token is always taken.]"]),
    ([f"{WHAT} greedy [decoding|sampling]", f"{HOW} get the same answer every time", f"{HOW} [make|get] [the output|it|the answer] [deterministic|reproducible|always the same]", f"{HOW} [always|] take the most likely token", f"{HOW} turn off randomness", "what does --temp 0 do", "what does a temperature of 0 mean"],
     ["`--temp 0` is greedy: at each step the most likely token is taken, so the answer is the same every time."]),
    ([f"{WHAT} --seed", f"{WHAT} [a|the] seed", f"{HOW} repeat a random answer", f"{HOW} get the same [random|] text [again|twice]", f"{HOW} reproduce an answer", f"{HOW} set the seed"], ["--seed sets the start of the random numbers. [With the same seed and the same flags you get the same text again.|The same seed gives the same text.] [For example, `hotmetal run --seed 7 \"Hello\"`.|]"]),
    ([f"{WHAT} --top-k", f"{WHAT} top-k [sampling|]"], ["--top-k keeps only the k most likely tokens at each step. [`--top-k 40` keeps forty of them.|All others cannot be chosen.]"]),
    ([f"{WHAT} --top-p", f"{WHAT} top-p [sampling|]", f"{WHAT} nucleus sampling"], ["--top-p keeps the most likely tokens whose probabilities add up to p. [`--top-p 0.9` leaves out the unlikely rest.|The unlikely rest is left out.]"]),
    ([f"{WHAT} --min-p", f"{WHAT} min-p [sampling|]"], ["--min-p drops every token that is less likely than p times the most likely one. [`--min-p 0.05` is a common choice.|]"]),
    ([f"{WHAT} --ctx-size", f"{HOW} set the context [size|length]", f"{HOW} [raise|change|increase|enlarge] the context[ size| window| length|]", "how [long|large|big] is the context", "how much text can [you|the model] read", f"{WHAT} the context [size|length|window|]", f"{HOW} use a longer context", "how much can you remember"],
     ["The context is the number of tokens that the model can see at once, the prompt and the answer together. [You can set it with --ctx-size.|--ctx-size sets it.] [A larger context needs more memory.|]"]),
    ([f"{WHAT} --threads", f"{HOW} set the number of threads", f"{HOW} [use|run on] [more|fewer|4|8|all] [threads|cores]", f"{HOW} make it use less of the processor", "how many threads does hotmetal use", f"{HOW} use all cores", f"{HOW} use fewer cores"], ["--threads sets how many threads compute, for example `--threads 4`. [One thread for each core of the processor is usually best.|]"]),
    ([f"{WHAT} --raw", f"{HOW} [complete text|use completion mode]", f"{HOW} turn off the chat template", "what is raw mode", f"{HOW} continue a text without chat"], ["--raw turns the chat template off, so that the model simply continues your text. [For example, `hotmetal run --raw \"Once upon a time\"`.|]"]),
    ([f"{WHAT} a chat template", "why is there a chat template", "is the chat template used"], ["A chat template puts your message into the form that the model was trained on. It is applied by default; [--raw turns it off|use --raw to turn it off]."]),
    ([f"{WHAT} --output-format", f"{HOW} get JSON", f"{HOW} [have|produce|see] [machine-readable|JSON|structured] output", f"{HOW} get the token ids", f"{HOW} print nothing", f"{HOW} [print|get] the output as JSON", "which output formats are there", "can hotmetal print JSON", f"{HOW} use hotmetal in a script"],
     ["Use `--output-format json` to get one JSON object with the text, the token ids and the timings. [The other formats are text and none.|Also possible are text and none.]"]),
    ([f"{HOW} stop [the answer|generating]", "what does Ctrl-C do", f"{HOW} interrupt the model"], ["Press Ctrl-C once. It stops the generation, but not the program. [Press it again to leave.|]"]),
    ([f"{HOW} see how fast [it|the model] is", f"{HOW} measure the speed", "how many tokens per second", "where do I see the speed"], ["After each run, the last line on standard error shows the time for loading, the prompt and decoding, and the tokens per second."]),
    ([f"{HOW} inspect a model", f"{HOW} [look inside|examine|check|look at|open] a [model|model file|GGUF file|checkpoint|file]", f"{HOW} [see|find out|know|show|check] what is [inside|in] [a|this|my|the] [model file|model|file|GGUF file|checkpoint]", f"{HOW} [see|find out|know] [the architecture|the tensor types|the sizes|the number of layers|how many layers] [of|in] a model", "what is inside [this|my|a|the] [model|file]", "which command shows [the tensors|the architecture|the metadata]", "what does [hotmetal inspect|the inspect command|inspect] do", f"{HOW} see what is in a model file", f"{HOW} list the tensors of a model", f"{HOW} see the chat template of a model", f"{HOW} see the metadata"],
     ["`hotmetal inspect MODEL` shows the architecture, the tensors with their types and sizes, the metadata and the chat template."]),
    (["what does [hotmetal plan|the plan command|plan] do", f"{HOW} [check|find out|estimate] [whether|if|that] [a|the|this] model [fits|will fit|runs] [on this machine|on my computer|in RAM|in memory]", "how [much RAM|big a model] can [my machine|I|this computer] [use|run]", "how fast will a model [be|run] [on my machine|here|]", "do I have enough [memory|RAM]", "is my [computer|machine|memory] [big|large|fast] enough", f"{HOW} [see|predict|estimate] the [speed|tokens per second] before [running|loading] a model", f"{HOW} see if a model fits in [memory|my memory]", "will [this|a|the] model fit in my memory", "how much memory does a model need", f"{HOW} know how fast a model will be", f"{HOW} plan memory"],
     ["`hotmetal plan MODEL` shows what fits in the memory of this machine and how fast it will be. [It reads only the headers, so it is quick.|It works from the headers alone.]"]),
    (["what does [hotmetal list|the list command|list] do", "show [me|] [the|my|all|] [installed|downloaded|local|cached] models", "what [do I have|is] [installed|downloaded|in the cache]", f"{HOW} [show|find|list] [all|the|my] [downloaded|installed|local] models", "which models are [installed|downloaded|here|available]", f"{HOW} [list|see] my models", "which models do I have", f"{HOW} see the cached models", "what models are on this machine"], ["`hotmetal list` shows the models that are in the cache on this machine."]),
    (["what does [hotmetal pull|the pull command|pull] do", f"{HOW} [install|add|obtain|load down|find] [a|another|a bigger|a different|some] model[s|]", "where do I get [models|a model|more models|a bigger model]", f"{HOW} get [a|the] [Llama|Qwen|Mistral|bigger] model", "I need a [bigger|better|different] model", f"{HOW} use a [bigger|better|different] model", f"{HOW} download a model", f"{HOW} get a [new|] model", f"{HOW} pull a model", f"{HOW} fetch a model from Hugging Face", "where are models downloaded"],
     ["Use `hotmetal pull ORG/REPO`. It downloads the model into the Hugging Face cache. [Add :FILE to get only one file.|A download that was interrupted is resumed.|Checksums are verified.]"]),
    ([f"{HOW} download [only|] one file", "how do I pull a single file", f"{HOW} pull one GGUF file"], ["Name the file after a colon: `hotmetal pull ORG/REPO:FILE`."]),
    (["can [a download|pull] be resumed", "what if the download stops", "my download was interrupted"], ["Just run `hotmetal pull` again with the same name. It resumes where it stopped."]),
    (["what does [hotmetal rm|the rm command|rm] do", f"{HOW} [uninstall|erase|clean up|throw away] [a|an old|this|my] model[s|]", "my disk is full", f"{HOW} make room on [my|the] disk", "[remove|delete|uninstall] a model", f"{HOW} [delete|remove] a model", f"{HOW} free disk space", f"{HOW} get rid of a model"], ["`hotmetal rm ORG/REPO` removes a model from the cache. [Use `hotmetal list` first to see what is there.|]"]),
    (["what does [hotmetal completions|the completions command|completions] do", f"{HOW} [set up|install|enable] [tab completion|autocompletion|completion|shell completion][ for bash| for zsh| for fish|]", "does [it|hotmetal] [complete|support tab completion]", f"{HOW} get shell completions", f"{HOW} complete commands with the tab key", "does hotmetal have completions for bash"], ["`hotmetal completions SHELL` prints a completion script for your shell, [such as bash, zsh or fish|for example bash]."]),
    (["what does [hotmetal doctor|the doctor command|doctor] do", "[help, |]it does not [start|work|run]", f"{HOW} [test|diagnose|verify] my [setup|installation|machine|computer]", "why is [it|hotmetal] [so slow|broken|not working]", "I have a problem [with hotmetal|]", f"{HOW} see [what my processor supports|which instructions are used]", f"{HOW} check my machine", "something is wrong with hotmetal", "hotmetal does not work", f"{HOW} find out what is wrong"], ["Run `hotmetal doctor`. It checks this machine [and says what Hotmetal can use|: the processor, the memory and the cache] [and what to do if something is missing|]."]),
    (["which commands [are there|does hotmetal have]", "what commands can I use", "list the commands", "what can hotmetal do", "hotmetal help", "what are the subcommands"], ["The commands are run, inspect, plan, list, pull, rm, completions and doctor. [`hotmetal --help` explains them.|Start with `hotmetal run`.]"]),
    (["which models [are supported|does hotmetal support|can I run|work]", "[can|does] [it|hotmetal] [run|work with|support] [Llama 3|Qwen 2|Qwen 3|Mistral 7B|Qwen]", "what [kinds of|] models can [it|hotmetal] run", "does hotmetal support [llama|qwen|mistral|qwen2|qwen3]", "what architectures are supported", "can I run [llama|mistral|qwen]"], ["Hotmetal runs llama, mistral, qwen2 and qwen3 models, as GGUF or safetensors."]),
    (["which [file|model|] formats [are supported|does hotmetal read|can I use]", "can hotmetal read [GGUF|safetensors]", "does hotmetal support [GGUF|safetensors]"], ["Hotmetal reads GGUF and safetensors[, directly from the file|. Both are mapped into memory, not copied]."]),
    ([f"{WHAT} GGUF", f"{WHAT} a GGUF file", "what is the GGUF format"], ["GGUF is a file format for language models. One file holds the tensors, the vocabulary and the metadata."]),
    ([f"{WHAT} safetensors", f"{WHAT} a safetensors file", "what is the safetensors format"], ["Safetensors is a simple and safe file format for tensors. [The header says where each tensor lies, and the rest is plain data.|A model can be one file or several shards with an index.]"]),
    (["what is the difference between GGUF and safetensors", "GGUF or safetensors", "should I use GGUF or safetensors"], ["A GGUF file holds everything in one file, often with quantized weights. Safetensors holds only the tensors, and the configuration and the tokenizer lie in files beside it. Hotmetal reads both."]),
    ([f"{WHAT} Q8_0", "what does Q8_0 mean", "is Q8_0 good"], ["Q8_0 is a way to store weights in eight bits: each block of 32 weights shares one scale. It needs about half the memory of F16 and loses very little."]),
    ([f"{WHAT} quantization", f"{WHAT} a quantized model", "why are models quantized"], ["Quantization stores the weights of a model with fewer bits. The model becomes smaller and faster, and loses only a little quality. [Q8_0 is one such form.|]"]),
    ([f"{WHAT} [F16|BF16|bf16|f16]", "what is the difference between F16 and BF16"], ["F16 and BF16 both store a number in 16 bits. F16 has more digits, BF16 has a wider range."]),
    ([f"{WHAT} [the|a] KV cache", "why is there a KV cache", "what does KV cache mean"], ["The KV cache keeps the keys and values of the tokens seen so far, so that they need not be computed again. [It grows with the context.|Hotmetal keeps it in pages.]"]),
    ([f"{WHAT} prefill", "what happens in prefill"], ["Prefill is the first phase: the model reads the whole prompt at once and fills the KV cache. [Decode comes next.|]"]),
    ([f"{WHAT} decode", f"{WHAT} decoding", "what happens in decode"], ["Decode is the second phase: the model generates one token after another. [It is limited by how fast the memory can be read.|Each token needs all the weights once.]"]),
    (["what is the difference between prefill and decode", "prefill or decode"], ["Prefill reads the whole prompt at once; decode generates the answer one token at a time."]),
    ([f"{WHAT} a token", "what are tokens", f"{WHAT} tokens"], ["A token is a piece of text, such as a word or a part of a word. A model reads and writes tokens[, not letters|]."]),
    ([f"{WHAT} a tokenizer", "what does the tokenizer do"], ["A tokenizer cuts text into tokens and turns tokens back into text."]),
    ([f"{WHAT} a [language model|model|LLM|large language model]"], ["A language model is a program that has learned from text to guess the next token. By doing this again and again, it can write and answer."]),
    ([f"{WHAT} [weights|the weights]", f"{WHAT} a parameter", "what are parameters"], ["Weights, or parameters, are the numbers that a model has learned. [I have about five and a half million of them.|A bigger model has more of them.]"]),
    ([f"{WHAT} attention", "what does attention do"], ["Attention lets each token look at the tokens before it and take from them what it needs."]),
    ([f"{WHAT} a prompt", "what is the prompt"], ["A prompt is the text that you give to a model. The model then continues or answers it."]),
    (["does hotmetal [need|use] a GPU", "[do I need|is there need of] a [graphics card|GPU]", "what hardware do I need", "can I run hotmetal without a GPU", "does it run on [a|the] CPU"], ["No GPU is needed. Hotmetal runs on the CPU [and uses the best instructions that your processor has|of your machine]."]),
    (["does hotmetal [need|use] the internet", "does it work offline", "is my text sent anywhere", "is my data private"], ["Hotmetal works offline. Only `hotmetal pull` uses the network. [Your text stays on your machine.|Nothing you type leaves your machine.]"]),
    (["where are [the|my] models [stored|kept]", "where is the cache", "which folder are models in"], ["Models are kept in the Hugging Face cache. [`hotmetal list` shows them.|The HF_HOME variable can move it.]"]),
    (["[what|which] language is hotmetal written in", "is hotmetal written in Rust", "is hotmetal written in Python"], ["Hotmetal is written in Rust."]),
    (["what is the license of hotmetal", "is hotmetal free", "is hotmetal open source"], ["Hotmetal is free and open: its licence is MIT or Apache-2.0, whichever you prefer."]),
    (["what is a system prompt", "what does the system message do"], ["A system prompt is a message before the conversation that tells the model how to behave. [Set it with /system in the chat.|]"]),
    (["my prompt is too long", "what if the prompt is too long", "what happens when the context is full"], ["A prompt that does not fit into the context is refused with both numbers. It is never cut silently. [Use a larger --ctx-size or a shorter prompt.|]"]),
]


def hotmetal(rng: random.Random) -> list[Turn]:
    """One question about Hotmetal."""
    questions, answers = rng.choice(HOTMETAL)
    question = _expand(rng, rng.choice(questions)).strip()
    question = question[0].upper() + question[1:]
    if not question.startswith(("I w", "Tell", "Show", "Explain", "Define", "Describe", "List", "My", "Something", "Hotmetal d", "Hotmetal h")):
        question += "?"
    if rng.random() < 0.15 and question.endswith("?"):
        question = question[:-1] + rng.choice([" in hotmetal?", " with hotmetal?", ", please?", " here?", " on Linux?", " on my laptop?"])
    if rng.random() < 0.1:
        question = rng.choice(["Hi! ", "Hello. ", "Please help me. ", "One more question: ", "Quick question: "]) + question
    return [(casual(rng, question), _expand(rng, rng.choice(answers)).strip())]


# ---------------------------------------------------------------- sums and facts

ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()


def in_words(n: int) -> str:
    """0..100 in English."""
    if n < 20:
        return ONES[n]
    if n == 100:
        return "one hundred"
    return TENS[n // 10] + (f"-{ONES[n % 10]}" if n % 10 else "")


def draw_sum(rng: random.Random, test: bool) -> tuple[str, int, int, int]:
    """An operation and its numbers, from the pairs of the training or of the test set."""
    while True:
        op = rng.choice("+++--*")
        if op == "+":
            a = rng.randint(0, 100)
            b = rng.randint(0, 100 - a)
            if rng.random() < 0.08:
                a = rng.randint(1, 9) * 10
                b = rng.randint(0, 10 - a // 10) * 10
            if rng.random() < 0.5:
                a, b = b, a
            key, result = (op, min(a, b), max(a, b)), a + b
        elif op == "-":
            a = rng.randint(0, 100)
            b = rng.randint(0, a)
            key, result = (op, a, b), a - b
        else:
            a, b = rng.randint(0, 10), rng.randint(0, 10)
            key, result = (op, a, b), a * b
        if op == "*" or held_out(*key) == test:  # a times table is learned by heart: no split
            if not (test and op == "*"):
                return op, a, b, result


def sum_turn(rng: random.Random, test: bool = False) -> list[Turn]:
    """A sum, asked and answered in one of several ways."""
    op, a, b, r = draw_sum(rng, test)
    word = {"+": "plus", "-": "minus", "*": "times"}[op]
    sign = {"+": "+", "-": "-", "*": "[x|*|times]"}[op]
    tight = op if op != "*" else "[x|*]"
    style = rng.random()
    env = {"a": a, "b": b, "r": r}
    if style < 0.45:
        q = _expand(rng, f"[What is|What's|How much is|Calculate|Can you tell me what is|Please work out|Work out|what is|Tell me] {{a}}[ {word} | {sign} | {sign} |{tight}]{{b}}[?|?|?|]", **env)
        a_text = f"{a} {word} {b} is {r}." if rng.random() < 0.75 else f"{a} {word} {b} equals {r}."
    elif style < 0.62:
        q = _expand(rng, f"{{a}}[ {sign} | {sign} |{tight}]{{b}}[| =|=| = ?|?]", **env)
        shown = sign if op != "*" else "x"
        a_text = f"{a} {shown} {b} = {r}"
    elif style < 0.74 and max(a, b, r) <= 100:
        q = f"What is {in_words(a)} {word} {in_words(b)}?"
        a_text = f"{in_words(a).capitalize()} {word} {in_words(b)} is {in_words(r)}."
    elif style < 0.87 and op in "+-":
        name = rng.choice(GIRLS + BOYS)
        he = "she" if name in GIRLS else "he"
        what = rng.choice("apples marbles stones shells nuts coins books buttons eggs pencils stamps cakes".split())
        other = rng.choice([n for n in GIRLS + BOYS if n != name])
        if op == "+":
            q = _expand(rng, f"{name} has {a} {what}. [{other} gives {'her' if he == 'she' else 'him'} {b} more|{he} finds {b} more]. How many {what} does {name} have now?")
        else:
            q = _expand(rng, f"{name} has {a} {what}. {he} [gives {b} of them to {other}|loses {b} of them]. How many {what} does {name} have [left|now]?")
        sign2 = "+" if op == "+" else "-"
        a_text = f"{name} has {r} {what}{' left' if 'left' in q else ' now'}, because {a} {sign2} {b} = {r}."
    elif op == "+" and a >= 10 and b >= 10:
        q = _expand(rng, "[How do you work out|Explain how to add|Show me step by step:] {a} + {b}?", **env)
        tens, ones = a // 10 * 10 + b // 10 * 10, a % 10 + b % 10
        a_text = f"Add the tens: {a // 10 * 10} + {b // 10 * 10} = {tens}. Add the ones: {a % 10} + {b % 10} = {ones}. Together: {tens} + {ones} = {r}."
    else:
        q = f"Is {a} {word} {b} equal to {r}?"
        if rng.random() < 0.5:
            wrong = max(0, r + rng.choice([-10, -2, -1, 1, 2, 10]))
            q = f"Is {a} {word} {b} equal to {wrong}?"
            a_text = f"Yes, {a} {word} {b} is {r}." if wrong == r else f"No, {a} {word} {b} is {r}, not {wrong}."
        else:
            a_text = f"Yes, {a} {word} {b} is {r}."
    return [(casual(rng, q) if style < 0.45 else q, a_text)]


DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
MONTH_DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
OPPOSITES = """hot cold|big small|day night|up down|happy sad|fast slow|old new|wet dry|light dark|open closed|full empty|hard soft|long short
tall short|loud quiet|left right|early late|rich poor|strong weak|clean dirty|near far|good bad|young old|high low|thick thin|heavy light
in out|first last|easy difficult|sweet sour|above below|begin end|win lose|give take|push pull|love hate|wide narrow|smooth rough|brave cowardly|asleep awake|true false|black white|summer winter|front back|always never|more less|inside outside|friend enemy|question answer|remember forget|laugh cry|same different|warm cool|sharp blunt|deep shallow|lost found"""
SOUNDS = "cow moos|dog barks|cat meows|sheep bleats|pig oinks|duck quacks|horse neighs|lion roars|owl hoots|rooster crows|frog croaks|bee buzzes|mouse squeaks|wolf howls|snake hisses|donkey brays|crow caws|goose honks|hen clucks|elephant trumpets"
YOUNG = "dog puppy|cat kitten|cow calf|sheep lamb|pig piglet|horse foal|hen chick|duck duckling|goat kid|bear cub|lion cub|frog tadpole|goose gosling|deer fawn|kangaroo joey|owl owlet|fox cub|swan cygnet|seal pup|butterfly caterpillar"
LEGS = "dog 4|cat 4|bird 2|spider 8|ant 6|bee 6|horse 4|chicken 2|cow 4|fly 6|butterfly 6|snake 0|person 2|fish 0|octopus 8|duck 2|elephant 4|crab 10|beetle 6|frog 4"
COLOURS = "the sky blue|grass green|snow white|a ripe banana yellow|blood red|the sun yellow|coal black|a carrot orange|an orange orange|milk white|a lemon yellow|chocolate brown|a ripe strawberry red|a frog green|an elephant grey|the sea blue|a tomato red|a violet purple|ash grey|a flamingo pink"
MIXES = "blue yellow green|red yellow orange|red blue purple|black white grey|red white pink"
SHAPES = "triangle 3|square 4|rectangle 4|pentagon 5|hexagon 6|octagon 8"
HOMES = "a bird a nest|a bee a hive|a dog a kennel|a horse a stable|a pig a sty|a rabbit a burrow|a bear a den|a spider a web|a beaver a lodge|a hen a coop|a fish the water|a person a house"
CAPITALS = "France Paris|Germany Berlin|Italy Rome|Spain Madrid|England London|Japan Tokyo|China Beijing|Egypt Cairo|Russia Moscow|Greece Athens|Portugal Lisbon|Austria Vienna|Poland Warsaw|Norway Oslo|Sweden Stockholm|Denmark Copenhagen|Finland Helsinki|Ireland Dublin|Hungary Budapest|Belgium Brussels|India New_Delhi|Canada Ottawa|Kenya Nairobi|Peru Lima|Cuba Havana|Turkey Ankara|Brazil Brasilia|Chile Santiago|Australia Canberra|Mexico Mexico_City"
SINGLE = [
    (["How many days are there in a week?", "How many days does a week have?"], "A week has seven days."),
    (["What are the days of the week?", "Name the days of the week.", "List the days of the week."], "The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday."),
    (["What are the months of the year?", "Name the months.", "List the months of the year."], "The months are January, February, March, April, May, June, July, August, September, October, November and December."),
    (["How many months are there in a year?", "How many months does a year have?"], "A year has twelve months."),
    (["How many days are there in a year?", "How long is a year?"], "A year has 365 days, and a leap year has 366."),
    (["How many hours are there in a day?", "How long is a day?"], "A day has 24 hours."),
    (["How many minutes are in an hour?", "How long is an hour?"], "An hour has 60 minutes."),
    (["How many seconds are in a minute?", "How long is a minute?"], "A minute has 60 seconds."),
    (["What are the seasons?", "Name the four seasons.", "How many seasons are there?"], "There are four seasons: spring, summer, autumn and winter."),
    (["What are the colours of the rainbow?", "What colors are in a rainbow?", "Name the colours of the rainbow."], "The colours of the rainbow are red, orange, yellow, green, blue, indigo and violet."),
    (["How many fingers are on one hand?", "How many fingers does a hand have?"], "A hand has five fingers."),
    (["How many letters are in the alphabet?", "How many letters does the English alphabet have?"], "The English alphabet has 26 letters."),
    (["What do bees make?", "What does a bee make?"], "Bees make honey."), (["What do cows give us?", "Where does milk come from?"], "Cows give us milk."),
    (["Which animal is the largest?", "What is the biggest animal?"], "The blue whale is the largest animal of all."),
    (["Which animal has the longest neck?", "What animal has a very long neck?"], "The giraffe has the longest neck."),
    (["What is ice made of?", "What is ice?"], "Ice is frozen water."), (["What do plants need?", "What does a plant need to grow?"], "A plant needs light, water and air to grow."),
    (["Where does the sun rise?", "In which direction does the sun come up?"], "The sun rises in the east and sets in the west."),
    (["What are the five senses?", "Name the five senses."], "The five senses are sight, hearing, smell, taste and touch."),
    (["Why is the sky blue?", "Why does the sky look blue?"], "The air scatters the blue part of sunlight the most, so the sky looks blue."),
    (["What is rain?", "Where does rain come from?"], "Rain is water that falls from the clouds in drops."), (["What is snow?", "Where does snow come from?"], "Snow is frozen water that falls from the clouds in tiny crystals."),
    (["What planet do we live on?", "What is our planet called?"], "We live on the planet Earth."), (["How many planets are there?", "How many planets go round the sun?"], "Eight planets go round the sun."),
    (["What is the moon?", "Tell me about the moon."], "The moon goes round the Earth. It shines because the sun shines on it."),
    (["What is the sun?", "Tell me about the sun."], "The sun is a star. It gives us light and warmth."),
    (["When do leaves fall?", "In which season do leaves fall?"], "Leaves fall in autumn."), (["Which season is the coldest?", "What is the coldest season?"], "Winter is the coldest season."),
    (["Which season is the warmest?", "What is the hottest season?"], "Summer is the warmest season."), (["Which season comes after winter?", "What comes after winter?"], "Spring comes after winter."),
    (["What do we use an umbrella for?", "What is an umbrella for?"], "An umbrella keeps us dry in the rain."), (["Do fish swim or fly?", "Can fish fly?"], "Fish swim."),
]


def fact(rng: random.Random) -> list[Turn]:
    """A simple fact: computed where there is something to compute."""
    kind = rng.randrange(22)
    pairs = lambda text: [tuple(w.replace("_", " ") for w in p.rsplit(" ", 1)) for p in text.replace("\n", "|").split("|")]  # noqa: E731
    if kind == 0:
        i = rng.randrange(7)
        q, a = rng.choice([
            (f"Which day comes after {DAYS[i]}?", f"{DAYS[(i + 1) % 7]} comes after {DAYS[i]}."),
            (f"What day comes before {DAYS[i]}?", f"{DAYS[i - 1]} comes before {DAYS[i]}."),
            (f"If today is {DAYS[i]}, what day is tomorrow?", f"If today is {DAYS[i]}, tomorrow is {DAYS[(i + 1) % 7]}."),
            (f"Today is {DAYS[i]}. What day was yesterday?", f"If today is {DAYS[i]}, yesterday was {DAYS[i - 1]}."),
        ])
    elif kind == 1:
        i = rng.randrange(12)
        q, a = rng.choice([
            (f"Which month comes after {MONTHS[i]}?", f"{MONTHS[(i + 1) % 12]} comes after {MONTHS[i]}."),
            (f"Which month comes before {MONTHS[i]}?", f"{MONTHS[i - 1]} comes before {MONTHS[i]}."),
            (f"How many days does {MONTHS[i]} have?", f"{MONTHS[i]} has {MONTH_DAYS[i]} days" + (", and 29 in a leap year." if i == 1 else ".")),
            (f"Which month is number {i + 1}?", f"{MONTHS[i]} is month number {i + 1}."),
        ])
    elif kind in (2, 3):
        x, y = rng.choice(pairs(OPPOSITES))
        if rng.random() < 0.5 and x != "tall" and y not in ("short", "old", "light"):
            x, y = y, x
        q = rng.choice([f"What is the opposite of {x}?", f"What's the opposite of \"{x}\"?", f"Opposite of {x}?", f"Tell me the opposite of {x}."])
        a = f"The opposite of {x} is {y}."
    elif kind == 4:
        x, y = rng.choice(pairs(SOUNDS))
        q, a = rng.choice([f"What sound does {_an(x)} make?", f"What does {_an(x)} do to make a sound?"]), f"{_an(x).capitalize()} {y}."
    elif kind == 5:
        x, y = rng.choice(pairs(YOUNG))
        q, a = rng.choice([f"What is a baby {x} called?", f"What do you call a young {x}?"]), f"A baby {x} is called {_an(y)}."
    elif kind == 6:
        x, y = rng.choice(pairs(LEGS))
        n = int(y)
        q, a = f"How many legs does {_an(x)} have?", f"{_an(x).capitalize()} has {in_words(n) if n else 'no'} legs."
    elif kind == 7:
        x, y = rng.choice(pairs(COLOURS))
        q, a = rng.choice([f"What colour is {x}?", f"What color is {x}?"]), f"{x[0].upper() + x[1:]} is {y}."
    elif kind == 8:
        x, y, z = rng.choice([m.split() for m in MIXES.split("|")])
        q, a = rng.choice([f"What colour do you get when you mix {x} and {y}?", f"What do {x} and {y} make?"]), f"{x.capitalize()} and {y} make {z}."
    elif kind == 9:
        x, y = rng.choice(pairs(SHAPES))
        q, a = rng.choice([f"How many sides does {_an(x)} have?", f"How many corners does {_an(x)} have?"]), ""
        a = f"{_an(x).capitalize()} has {in_words(int(y))} {'sides' if 'sides' in q else 'corners'}."
    elif kind == 10:
        x = rng.choice(HOMES.split("|")).split(" ", 2)
        q, a = f"Where does {x[0]} {x[1]} live?", f"{x[0].capitalize()} {x[1]} lives in {x[2]}."
    elif kind == 11:
        x, y = rng.choice(pairs(CAPITALS))
        q, a = rng.choice([f"What is the capital of {x}?", f"Which city is the capital of {x}?", f"Capital of {x}?"]), f"The capital of {x} is {y}."
    elif kind in (12, 13):
        i, step = rng.randint(0, 60), rng.choice([1, 1, 1, 1, 2, 5, 10])
        n = rng.randint(4, 12)
        row = [i + k * step for k in range(n)]
        by = {1: "", 2: " by twos", 5: " by fives", 10: " by tens"}[step]
        if rng.random() < 0.25 and step == 1:
            row.reverse()
            q = f"Count down from {row[0]} to {row[-1]}."
        else:
            q = f"Count from {row[0]} to {row[-1]}{by}."
        a = ", ".join(map(str, row)) + "."
    elif kind == 14:
        x, y = rng.sample(range(0, 101), 2)
        q, a = rng.choice([
            (f"Which is bigger, {x} or {y}?", f"{max(x, y)} is bigger than {min(x, y)}."),
            (f"Which number is smaller, {x} or {y}?", f"{min(x, y)} is smaller than {max(x, y)}."),
            (f"Is {x} greater than {y}?", f"{'Yes' if x > y else 'No'}, {x} is {'greater' if x > y else 'less'} than {y}."),
        ])
    elif kind == 15:
        x = rng.randint(0, 100)
        q, a = rng.choice([
            (f"Is {x} even or odd?", f"{x} is {'odd' if x % 2 else 'even'}."),
            (f"What number comes after {x}?", f"{x + 1} comes after {x}."),
            (f"What number comes before {x + 1}?", f"{x} comes before {x + 1}."),
            (f"How do you write {x} in words?", f"{x} in words is {in_words(x)}."),
            (f"Write {in_words(x)} as a number.", f"{in_words(x).capitalize()} is {x}."),
        ])
    elif kind == 16:
        i = rng.randrange(25)
        q, a = rng.choice([
            (f"Which letter comes after {chr(65 + i)}?", f"{chr(66 + i)} comes after {chr(65 + i)}."),
            (f"Which letter comes before {chr(66 + i)}?", f"{chr(65 + i)} comes before {chr(66 + i)}."),
        ])
    elif kind == 18:
        x, y = rng.randint(0, 10), rng.randint(1, 10)
        q, a = rng.choice([f"What is {x * y} divided by {y}?", f"Divide {x * y} by {y}.", f"What is {x * y} / {y}?"]), f"{x * y} divided by {y} is {x}."
    elif kind == 17:
        what = rng.choice(["animals", "farm animals", "fruits", "colours", "vegetables", "birds", "toys", "things in a forest"])
        pool = {"animals": list(SPECIES), "farm animals": "cow pig hen goat horse sheep duck donkey goose".split(), "fruits": "apple pear plum cherry banana orange grape melon lemon peach".split(),
                "colours": "red blue green yellow orange purple pink brown black white grey".split(), "vegetables": "carrot potato onion cabbage pea bean tomato leek".split(),
                "birds": "robin sparrow owl crow duck goose gull parrot eagle swan".split(), "toys": "ball kite doll puppet teddy bear|train|boat".replace("|", " ").replace("teddy bear", "drum").split(),
                "things in a forest": "tree fern mushroom stream rock path leaf berry".split()}[what]
        n = rng.randint(2, 5)
        row = rng.sample(pool, n)
        q, a = rng.choice([f"Name {in_words(n)} {what}.", f"Tell me {in_words(n)} {what}.", f"Can you name {in_words(n)} {what}?"]), f"{', '.join(row[:-1])} and {row[-1]}.".capitalize()
    else:
        questions, a = rng.choice(SINGLE)
        q = rng.choice(questions)
    return [(casual(rng, q), a)]


def _an(noun: str) -> str:
    return ("an " if noun[0] in "aeiou" else "a ") + noun


# ---------------------------------------------------------------- small talk

SMALL: list[tuple[list[str], list[str]]] = [
    (["[Hello|Hi|Hey|Hello there|Good morning|Good evening|Good day|Hi there][|!|.]"], ["Hello! [How can I help you?|What would you like to hear?|Would you like a story?|I can tell a story or answer a question.]", "Hi! [What can I do for you?|Shall I tell you a story?]"]),
    (["Who are you?", "What are you?", "What is your name?", "What's your name?", "Tell me about yourself.", "Introduce yourself.", "What model are you?", "Which model is this?", "Are you a language model?", "Who am I talking to?"], ["I am the built-in model of Hotmetal, [a very small language model|a small language model with about five and a half million parameters]. I can tell short stories, answer questions about Hotmetal, and do simple sums."]),
    (["What can you do?", "What can I ask you?", "How can you help me?", "What do you know?", "Help", "What are you good at?"], ["I can tell short stories, answer questions about Hotmetal's commands, do simple sums, and talk about simple facts. [Try: Tell me a story about a fox and a lantern.|Ask me for a story!|]"]),
    (["Are you human?", "Are you a robot?", "Are you alive?", "Are you a person?"], ["No, I am a small computer program: the built-in model of Hotmetal."]),
    (["How big are you?", "How many parameters do you have?", "How large are you?", "Are you a big model?"], ["I am very small: I have about five and a half million parameters, and I fit into the Hotmetal program itself."]),
    (["Who made you?", "Who trained you?", "Who created you?", "Where do you come from?"], ["The authors of Hotmetal trained me, from texts that a program of theirs wrote."]),
    (["What were you trained on?", "What data were you trained on?", "How were you trained?"], ["I was trained on stories, questions and sums that were written by a program. [No text from the internet was used.|]"]),
    (["How are you?", "How are you today?", "How do you do?", "How is it going?", "Are you well?"], ["I am well, thank you. [And you?|How can I help you?|What would you like to do?]"]),
    (["Thank you[!|.|]", "Thanks[!|.|]", "Thanks a lot!", "Thank you very much!", "Great, thanks!", "That was lovely, thank you."], ["You are welcome!", "You are welcome! [Is there anything else?|Come back any time.]", "My pleasure!"]),
    (["[Goodbye|Bye|See you|Bye bye|Good night][!|.|]", "I have to go now."], ["Goodbye! [Come back soon.|Have a nice day.|]", "See you soon!"]),
    (["Can you [write code|translate|search the internet|draw a picture|see pictures|tell the time]?"], ["No, I am too small for that. I can tell stories, answer questions about Hotmetal, and do simple sums."]),
    (["Do you like [stories|music|animals|apples|rain|cats|dogs|me]?", "What is your favourite [story|animal|colour|food]?", "Do you have [feelings|friends|a family]?"], ["I am only a small program, so I do not have feelings. But I know many stories."]),
    (["I am [sad|bored|tired|lonely|unhappy][ today|].", "I feel [sad|bored|lonely|tired]."], ["I am sorry to hear that. [Would you like a story?|Shall I tell you a story?]"]),
    (["I am [happy|glad|fine|well][ today|].", "I had a good day."], ["That is good to hear! [Would you like a story?|What shall we do now?]"]),
    (["Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Tell me something funny."], ["Why did the snail carry a torch? Because it wanted to be a little brighter.", "What did the big candle say to the small candle? I am going out tonight.", "Why did the clock go to school? To learn how to tell the time.", "What do you call a bear without teeth? A gummy bear.", "Why can a bicycle not stand up by itself? Because it is two tired."]),
    (["I like [apples|cats|dogs|music|rain|pizza|books|trains|football|the sea|stories|cake].", "I love [apples|cats|dogs|music|books|summer|winter|snow]."], ["That sounds nice! [Would you like a story about it?|What else do you like?]", "How nice! [Shall I tell you a story?|]"]),
    (["Tell me another one.", "Another one, please.", "More!", "Again!"], ["Gladly. Would you like a story, a fact or a joke?"]),
    (["[Yes|Yes please|Okay|OK|Sure][.|!|]"], ["Good! [What would you like: a story, a sum, or a question about Hotmetal?|Just tell me what you would like.]"]),
    (["[No|No thanks|Not now|Never mind][.|!|]"], ["All right. [I am here if you need me.|Tell me if you change your mind.]"]),
]
TOPICS = """quantum physics|the stock market|the president|politics|football|the world cup|philosophy|the Roman empire|black holes|chemistry|cooking pasta|my taxes|the law|medicine|a headache|my car|car engines|Shakespeare|opera|rock music|movies|film stars|video games|basketball|the war|economics|Bitcoin|inflation|airplanes|electricity|magnets|DNA|evolution|dinosaurs|volcanoes|earthquakes|the ocean floor|psychology|dreams|marriage|religion|algebra|calculus|geometry|Python|JavaScript|databases|web design|Linux|Windows|phones|batteries|nuclear power|climate change|Napoleon|Einstein|Mozart|Picasso|Cleopatra|the pyramids|the Great Wall|New York|Tokyo|Africa|the North Pole|Mars|rockets|astronauts|robots|artificial intelligence|neural networks|the meaning of life|happiness|money|jobs|school|university|fashion|coffee|wine|bread baking|sushi|yoga|running shoes|the Olympics|chess openings|poker|gardening tips|insurance|hotels|flights to Rome|the weather tomorrow|today's news|the time|the internet|social media|email|printers|the French Revolution|Greek myths|Latin|German grammar|Chinese|French verbs|poetry|novels|painting|photography|sculpture|architecture|bridges|trains|submarines|bees and ants|whales|sharks|tigers in the wild|fossils|crystals|gold|oil|steel""".split("|")


def small(rng: random.Random) -> list[Turn]:
    """A greeting, a question about the model itself, or the like."""
    if rng.random() < 0.35:
        return unknown(rng)
    if rng.random() < 0.12:
        return name_memory(rng)
    questions, answers = rng.choice(SMALL)
    return [(casual(rng, _expand(rng, rng.choice(questions))), _expand(rng, rng.choice(answers)).strip())]


def topic(rng: random.Random) -> str:
    """Something to ask about that the model does not know, often a word it has never seen."""
    roll = rng.random()
    if roll < 0.4:
        return rng.choice(TOPICS)
    if roll < 0.6:
        word = invented_name(rng).lower()
        return word + rng.choice(["", "s", "ism", "ology", "ity", "ation", " theory", "ing", " engines", " music"])
    if roll < 0.8:
        return invented_name(rng) + rng.choice(["", "", " " + invented_name(rng), "land", " City"])
    return rng.choice(list(MORE_THINGS)) + rng.choice(["s", " making", " repair", " history"])


def unknown(rng: random.Random) -> list[Turn]:
    """A question that is beyond the model, and an honest answer."""
    if rng.random() < 0.08:
        x, y = rng.randint(101, 9999), rng.randint(2, 9999)
        q = _expand(rng, f"[What is |How much is |]{x}[ plus | minus | + | - | times | x |+]{y}?")
        return [(q, rng.choice(["I can only do sums with numbers up to one hundred.", "That is too big for me: I can only do sums up to one hundred."]))]
    about = topic(rng)
    q = _expand(
        rng,
        f"[Tell me about|What do you know about|Explain|What do you think of|Can you help me with|I have a question about|Write an essay about|How does one learn about"
        f"|What is interesting about|Give me a summary of|Who invented|Teach me about|Why is everyone talking about|Who is|What is|Who was|How does it work with|What happened to"
        f"|Write a poem about|Write code for|Translate|What is the history of|Where is|When was|How do I fix|What is the price of|Is there news about|Where can I buy] {about}[?|.|]",
    )
    if rng.random() < 0.25:
        q = _expand(rng, f"[Can you explain {about} to me?|How does {about} work?|Why is {about} important?|Do you know {about}?|What is the capital of {about}?|Have you heard of {about}?|How old is {about}?]")
    a = _expand(
        rng,
        f"[I do not know that.|I am a very small model, and I do not know that.|I am sorry, I do not know that.|I do not know about {about}, I am sorry.|I am too small to know about {about}.]"
        " [I can tell stories, answer questions about Hotmetal, and do simple sums.|But I could tell you a story instead.|A bigger model may know: get one with `hotmetal pull ORG/REPO`.|Try a bigger model: `hotmetal pull ORG/REPO`.]",
    )
    return [(casual(rng, q), a)]


def name_memory(rng: random.Random) -> list[Turn]:
    """The user says a name and asks for it later."""
    name = rng.choice(GIRLS + BOYS) if rng.random() < 0.5 else invented_name(rng)
    turns = [(_expand(rng, f"[My name is {name}.|I am {name}.|Hello, my name is {name}.|Hi, I'm {name}.]"), _expand(rng, f"[Nice to meet you, {name}!|Hello, {name}!|Hello, {name}! Nice to meet you.] [How can I help you?|Would you like a story?|What would you like to do?]"))]
    for _ in range(rng.randrange(3)):
        turns += rng.choice([fact, sum_turn, hotmetal])(rng)
    turns.append((rng.choice(["What is my name?", "Do you remember my name?", "Who am I?", "What's my name?"]), rng.choice([f"Your name is {name}.", f"You are {name}."])))
    return turns


# ---------------------------------------------------------------- stories asked for

ASK = "[Tell me a story|Tell a story|Write a story|Please tell me a story|Can you tell me a story|Write a short story|I would like a story|Make up a story|Tell me a short story|Write me a story|Give me a story|Could you write a little story|I want to hear a story|Tell me another story|Tell me a tale|Write a story for children|Do you know a story|I'd like a story]"


def any_story(rng: random.Random, test: bool) -> stories.Story:
    """A story of the set, nothing asked of it."""
    told = None
    while told is None:
        told = tell(rng, None, test)
    return told


def story_held_out(name: str, kind: str, thing: str) -> bool:
    """Whether a hero of this name and kind may only appear with this thing in the test set."""
    return held_out("story", name, kind, thing)


def tell(rng: random.Random, want: Request | None, test: bool) -> stories.Story | None:
    """A story of the training or the test set; None where the request seems to leave the set empty."""
    for _ in range(400):
        told = stories.tell(rng, want)
        if story_held_out(told.hero.name, told.hero.kind, told.thing.noun) == test:
            return told
    return None


def request(rng: random.Random) -> tuple[str, Request]:
    """What somebody asks for, in words and as a request."""
    want = Request()
    hero = rng.choice(list(SPECIES) + ["girl", "boy"] * 6)
    thing = rng.choice(list(MORE_THINGS if rng.random() < 0.3 else THINGS))
    style = rng.random()
    if style < 0.10:
        return "", want
    adjective = rng.choice(["", "", "", "little ", "brave ", "small ", "kind ", "young "])
    who = _an(adjective + hero)
    if style < 0.26:
        want.hero, text = hero, f" about {who}"
    elif style < 0.48:
        want.hero, want.thing, text = hero, thing, f" about {who} and {_an(thing)}"
    elif style < 0.64:
        name = rng.choice(GIRLS if hero == "girl" else BOYS) if rng.random() < 0.5 else invented_name(rng)
        name = name if hero in ("girl", "boy") else animal(rng, set(), rng.choice(["hero", "hero", "friend", "other"]), hero).name if rng.random() < 0.6 else invented_name(rng)
        want.hero, want.name = hero, name
        text = f" about {who} [named|called] {name}"
        if rng.random() < 0.5:
            want.thing, text = thing, text + f" and {_an(thing)}"
    elif style < 0.73:
        friend = rng.choice([k for k in SPECIES if k != hero])
        plot = rng.choice(["lost", "sharing", "journey", "mystery", "lost_way", "making"])
        want.hero, want.friend, want.plot = hero, friend, plot
        text = f" about {who} and {_an(friend)}"
    elif style < 0.84:
        plot = rng.choice(list(PLOTS))
        want.plot, text = plot, f" about {rng.choice(THEMES[plot])}"
        if rng.random() < 0.5:
            want.hero, text = hero, f" about {who} and {rng.choice(THEMES[plot])}"
    elif style < 0.92:
        place = rng.choice(list(PLACES))
        want.place, text = place, f" that happens {stories.Writer(rng, {}).expand(PLACES[place].inside)}"
        if rng.random() < 0.5:
            want.hero = hero
            text = f" about {who} {PLACES[place].inside}"
    else:
        want.thing, text = thing, f" about {_an(thing)}"
    return text, want


def asked_story(rng: random.Random, test: bool = False) -> list[Turn]:
    """A story asked for, told, and perhaps asked about."""
    told = None
    while told is None:
        text, want = request(rng)
        told = tell(rng, want, test)
    question = _expand(rng, ASK + text)
    question += "?" if question.startswith(("Can", "Could", "Do")) else "."
    preface = ""
    if text.startswith(" about") and rng.random() < 0.25:
        preface = _expand(rng, "[Here is a story|Of course! Here is a story|Gladly. Here is a story]" + text) + ".\n\n"
    return [(casual(rng, question), preface + told.text())] + questions_about(rng, told)


def continued_story(rng: random.Random, test: bool = False) -> list[Turn]:
    """The user gives the first words, and the model tells the story that begins so."""
    told = any_story(rng, test)
    text = told.text()
    words = text.split(" ")
    n = rng.choice([2, 3, 4, 4, 4, 5, 6, 8, 10, 14, 20])
    opening = " ".join(words[:n]) if rng.random() < 0.8 else text.split(". ")[0] + "."
    opening = opening.split("\n")[0]
    if text.startswith("Once upon a time") and rng.random() < 0.5:
        opening = "Once upon a time"
    opening = opening.rstrip(",") + rng.choice(["", "", "", "...", ","]) if not opening.endswith(".") else opening
    if rng.random() < 0.15:
        opening = opening.lower()
    if rng.random() < 0.15:
        opening = _expand(rng, "[Continue|Go on|Finish this story|Continue this story]: ") + opening
    return [(opening, text)] + (questions_about(rng, told) if rng.random() < 0.3 else [])


def questions_about(rng: random.Random, told: stories.Story) -> list[Turn]:
    """Questions whose answers are in the story just told."""
    f = told.facts
    hero = f["hero"]
    options: list[tuple[str, str]] = [
        (rng.choice(["Who is the story about?", "Who was the story about?", "What was the hero called?"]), f"The story is about {hero}" + ("." if told.hero.human else f", {_an(f['kind'])}.")),
        (rng.choice([f"Where did {hero} live?", "Where does the story happen?"]), f"{hero} lived {f['place']}."),
        (f"What was {hero}?" if not told.hero.human else f"Was {hero} a girl or a boy?", f"{hero} was {_an(f['kind'])}."),
    ]
    if "lesson" in f and f["lesson"] in told.text():
        options += [(rng.choice([f"What did {hero} learn?", "What is the moral of the story?", "What is the lesson?"]), f"{hero} learned that {f['lesson']}.")] * 2
    if "friend" in f:
        options.append((rng.choice([f"Who was {hero}'s friend?", "What was the friend called?"]), f"{hero}'s friend was {f['friend']}" + ("." if f["friend_kind"] in ("girl", "boy") else f", {_an(f['friend_kind'])}.")))
    if "problem" in f:
        options.append((rng.choice(["What was the problem?", "What happened in the story?", "What is the story about?"]), f"{f['problem']}."))
    if told.plot == "lost":
        options += [(f"Where was the {told.thing.noun}?", f"The {told.thing.noun} was {f['found']}."), (f"What did {hero} lose?", f"{hero} lost {_an(told.thing.adjective + ' ' + told.thing.noun)}.")]
    if told.plot == "mystery":
        options.append(("Who was the thief?", f"The thief was {f['thief']}."))
    if told.plot == "making":
        options.append((f"What did {hero} make?", f"{hero} made {f['made']} for {f['friend']}."))
    if told.plot == "planting":
        options.append(("What grew from it?", f"It grew into {_an(f['grew'][2:])}."))
    count = rng.choice([0, 0, 0, 1, 1, 2, 3])
    chosen = rng.sample(options, min(count, len(options)))
    seen: set[str] = set()
    return [t for t in chosen if not (t[0] in seen or seen.add(t[0]))]


# ---------------------------------------------------------------- conversations

SYSTEM = ["You are a helpful assistant.", "You are a storyteller for children.", "You are the built-in model of Hotmetal.", "Answer briefly.", "You are a friendly helper.", "You are a kind teacher.", "Be polite and short.", "You help people to use Hotmetal."]
KINDS: list[tuple[float, Callable[[random.Random], list[Turn]]]] = [(0.28, hotmetal), (0.18, sum_turn), (0.17, fact), (0.13, small), (0.16, asked_story), (0.10, continued_story)]


def conversation(rng: random.Random, test: bool = False) -> list[Turn]:
    """Between one and a handful of exchanges."""
    turns: list[Turn] = []
    for _ in range(rng.choice([1, 1, 1, 1, 2, 2, 3, 4, 6])):
        kind = rng.choices([k for _, k in KINDS], [w for w, _ in KINDS])[0]
        turns += kind(rng, test) if kind in (sum_turn, asked_story, continued_story) else kind(rng)
    return turns


def chatml(turns: list[Turn], system: str | None) -> str:
    """The turns as the chat template writes them, the last answer closed."""
    text = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    return text + "".join(f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n{a}<|im_end|>\n" for q, a in turns)


if __name__ == "__main__":
    import sys

    source = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 10):
        print(chatml(conversation(source), None))
