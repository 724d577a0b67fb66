//! Chat templates that attack, and conversations that are long: each ends soon, with text or an error.

#![expect(clippy::print_stdout, reason = "a test says how much it compared or why it was skipped")]

use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{Value as Json, json};
use time::PrimitiveDateTime;
use tokenizer::chat_template::{ChatTemplate, Limits, RenderInput, TemplateError};

const NOW: PrimitiveDateTime = PrimitiveDateTime::MIN;

fn render(source: &str, messages: &[Json]) -> Result<String, TemplateError> {
    ChatTemplate::new(source)?.render(&RenderInput::new(messages, NOW))
}

fn hello() -> [Json; 1] {
    [json!({ "role": "user", "content": "hello" })]
}

/// Doubles `ns.x`, forty times.
fn doubled(start: &str, step: &str) -> String {
    format!(
        "{{% set ns = namespace(x={start}) %}}{{% for i in range(40) %}}{{% set ns.x = {step} %}}{{% endfor %}}{{{{ ns.x }}}}"
    )
}

/// Templates known to hang, to overflow a stack or to take all memory in one library or another.
fn bombs() -> Vec<(&'static str, String)> {
    let many = 100_000;
    vec![
        ("nested loops", "{% for a in range(10000) %}{% for b in range(10000) %}{% for c in range(10000) %}x{% endfor %}{% endfor %}{% endfor %}".into()),
        ("endless macro", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}".into()),
        ("parentheses", format!("{{{{ {}1{} }}}}", "(".repeat(many), ")".repeat(many))),
        ("brackets", format!("{{{{ {}1{} }}}}", "[".repeat(many), "]".repeat(many))),
        ("nested conditions", "{% if 1 %}".repeat(20_000)),
        ("unary not", format!("{{{{ {}1 }}}}", "not ".repeat(40_000))),
        ("unary minus", format!("{{{{ {}1 }}}}", "-".repeat(40_000))),
        ("doubled string", doubled("'aaaaaaaa'", "ns.x + ns.x")),
        ("doubled list", doubled("[1]", "ns.x + ns.x")),
        ("wide format", "{{ '%99999999999d'|format(1) }}".into()),
        ("repeated and indented", "{{ ('a\n' * 40000000)|indent(1000) }}".into()),
        ("replaced", "{% set ns = namespace(x='a') %}{% for i in range(12) %}{% set ns.x = ns.x|replace('a', 'aaaaaaaaaa') %}{% endfor %}{{ ns.x }}".into()),
        ("repeated", "{{ 'a' * 99000000 }}".into()),
        // Beyond the known ones: every other way we know to grow, to nest or to take long.
        ("elif after elif", format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(15_000))),
        ("attributes", format!("{{{{ x{} }}}}", ".a".repeat(many))),
        ("filters", format!("{{{{ x{} }}}}", "|e".repeat(many))),
        ("sum", format!("{{{{ 1{} }}}}", "-1".repeat(many))),
        ("ternaries", format!("{{{{ {}1 }}}}", "1 if 0 else ".repeat(20_000))),
        ("assignment to parentheses", format!("{{% set {}a{} = 1 %}}", "(".repeat(many), ")".repeat(many))),
        ("powers", format!("{{{{ 2{} }}}}", "**2".repeat(50_000))),
        ("long list", format!("{{{{ [{}] }}}}", "1,".repeat(100_000))),
        ("tilde", doubled("'aaaaaaaa'", "ns.x ~ ns.x")),
        ("join", doubled("'aaaaaaaa'", "[ns.x, ns.x]|join")),
        ("format grows", doubled("'aaaaaaaa'", "'%s%s'|format(ns.x, ns.x)")),
        ("braces grow", doubled("'aaaaaaaa'", "'{0}{0}'.format(ns.x)")),
        ("repr grows", doubled("'aaaaaaaa'", "[ns.x, ns.x]|string")),
        ("json grows", doubled("'aaaaaaaa'", "[ns.x, ns.x]|tojson")),
        ("times grows", doubled("'aaaaaaaa'", "ns.x * 2")),
        ("shared lists printed", doubled("[1]", "[ns.x, ns.x]")),
        ("shared lists compared", format!("{}{{{{ ns.x == ns.x }}}}", doubled("[1]", "[ns.x, ns.x]").replace("{{ ns.x }}", ""))),
        ("shared dicts", doubled("{}", "{'a': ns.x, 'b': ns.x}").replace("{{ ns.x }}", "{{ ns.x|tojson }}")),
        ("shared lists flattened", doubled("[1]", "[ns.x, ns.x]|sum(start=[])")),
        ("captured text", format!("{{% set ns = namespace(x='') %}}{{% for i in range(100000) %}}{{% set ns.x %}}{{{{ ns.x }}}}{}{{% endset %}}{{% endfor %}}", "x".repeat(100_000))),
        ("captured raw text", format!("{{% set y %}}{{% for i in range(100000) %}}{}{{% endfor %}}{{% endset %}}", "x".repeat(200_000))),
        ("macro doubles", format!("{{% macro d(x) %}}{{{{ x }}}}{{{{ x }}}}{{% endmacro %}}{{{{ {}'aaaaaaaa'{} }}}}", "d(".repeat(40), ")".repeat(40))),
        ("deep list", "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}".into()),
        ("chain of namespaces", "{% set ns = namespace(x=0) %}{% for i in range(100000) %}{% set ns.x = namespace(x=ns.x) %}{% endfor %}".into()),
        ("namespace in itself", "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}".into()),
        ("loop in itself", "{% set ns = namespace() %}{% for i in [1] %}{% set ns.x = [loop] %}{% endfor %}{{ ns.x }}".into()),
        ("wide padding", "{{ 'a'.center(99999999999) }}".into()),
        ("computed padding", "{{ 'a'.ljust(10 ** 12) }}".into()),
        ("computed repetition", "{{ 'aaaa' * 10 ** 12 }}".into()),
        ("computed format", "{{ ('%' ~ 10 ** 11 ~ 'd')|format(1) }}".into()),
        ("computed range", "{{ range(10 ** 15)|list }}".into()),
        ("computed json indent", "{{ [[1]]|tojson(indent=10 ** 12) }}".into()),
        ("computed batch", "{{ [1]|batch(10 ** 12, 'x')|list }}".into()),
        ("big power", "{{ 10 ** 10 ** 10 }}".into()),
        ("long comparisons", "{% set a = 'a' * 9999 * 999 %}{% set b = 'a' * 9999 * 999 %}{% for i in range(99999) %}{{ '' if a == b }}{% endfor %}".into()),
        ("long searches", "{% set a = 'a' * 9999 * 999 %}{% for i in range(99999) %}{{ '' if 'b' in a }}{% endfor %}".into()),
        ("strip of strip", "{% set a = 'a' * 9999 * 99 %}{% for i in range(9999) %}{{ '' if a.strip(a) }}{% endfor %}".into()),
        ("unique", "{{ range(99999)|unique|list|length }}{{ range(99999)|unique|list|length }}".into()),
        ("sort of everything", "{% for i in range(9999) %}{{ '' if range(99999)|sort(reverse=true) }}{% endfor %}".into()),
        ("cycle of nothing", "{% for i in [1] %}{{ loop.cycle() }}{% endfor %}".into()),
        ("unclosed", "{% if true %}{{ 'x' }}{% for".into()),
    ]
}

#[test]
fn bombs_are_refused_in_time() {
    let messages = hello();
    let mut slowest = (Duration::ZERO, "");
    let known_good = ChatTemplate::new("{{ messages[0].content }}").expect("a template");
    for (name, source) in bombs() {
        let start = Instant::now();
        let outcome = render(&source, &messages);
        let elapsed = start.elapsed();
        assert!(outcome.is_err(), "{name}: rendered {} bytes", outcome.map_or(0, |text| text.len()));
        assert!(!matches!(outcome, Err(TemplateError::Panicked)), "{name}: panicked");
        assert!(elapsed < Duration::from_secs(LOAD_AND_RENDER_S), "{name}: took {elapsed:?}");
        slowest = slowest.max((elapsed, name));
        // Others go on.
        assert_eq!(known_good.render(&RenderInput::new(&messages, NOW)).expect("a rendering"), "hello", "after {name}");
    }
    println!("{} bombs refused, the slowest ({}) in {:?}", bombs().len(), slowest.1, slowest.0);
}

/// Seconds in which any template is loaded and rendered or refused: 2 are promised of a release build.
const LOAD_AND_RENDER_S: u64 = if cfg!(debug_assertions) { 10 } else { 2 };

#[test]
fn a_bomb_that_waits_for_a_real_conversation_is_refused_too() {
    let source = format!("{{% if messages|length > 9 %}}{}{{% endif %}}", doubled("'aaaaaaaa'", "ns.x + ns.x"));
    let template = ChatTemplate::new(&source).expect("it looks harmless");
    let messages = vec![json!({ "role": "user", "content": "x" }); 10];
    let start = Instant::now();
    let error = template.render(&RenderInput::new(&messages, NOW)).expect_err("a bomb");
    assert_eq!(error.to_string(), "the chat template was stopped: it takes more copying than a render may");
    assert!(start.elapsed() < Duration::from_secs(LOAD_AND_RENDER_S));
    assert_eq!(template.render(&RenderInput::new(&messages[..9], NOW)).expect("still works"), "");
}

#[test]
fn a_source_is_bounded_in_bytes() {
    let at_the_limit = "x".repeat(256 << 10);
    assert!(ChatTemplate::new(&at_the_limit).is_ok());
    let error = ChatTemplate::new(&(at_the_limit + "x")).expect_err("one byte too many");
    assert_eq!(error.to_string(), "the chat template has 262145 bytes, at most 262144 are allowed");
}

#[test]
fn output_is_four_times_the_input_and_a_mebibyte() {
    let messages = [json!({ "role": "user", "content": "x".repeat(1 << 20) })];
    let times = |times: usize| "{{ messages[0].content }}".repeat(times);
    assert_eq!(render(&times(5), &messages).expect("fits").len(), 5 << 20);
    assert!(matches!(render(&times(6), &messages), Err(TemplateError::OutputTooLarge { .. })));
}

#[test]
fn steps_are_counted() {
    let limits = Limits { fuel: 1_000, ..Limits::default() };
    let source = "{% for m in messages %}{% for i in range(5) %}{{ i }}{% endfor %}{% endfor %}";
    let template = ChatTemplate::with_limits(source, limits).expect("a template");
    let messages = vec![json!({ "role": "user" }); 100];
    let error = template.render(&RenderInput::new(&messages, NOW)).expect_err("too many steps");
    assert_eq!(error.to_string(), "the chat template was stopped: it takes more steps than a render may");
}

#[test]
fn input_that_nests_too_deep_is_refused() {
    let mut content = json!("x");
    for _ in 0..100_000 {
        content = Json::Array(vec![content]);
    }
    let messages = [json!({ "role": "user" })];
    let mut input = RenderInput::new(&messages, NOW);
    input.extra.insert("deep".to_owned(), content);
    let template = ChatTemplate::new("x").expect("a template");
    assert!(matches!(template.render(&input), Err(TemplateError::InputTooDeep { max: 128 })));
    // Dropping such a value recurses too; that is its maker's affair, not ours.
    std::mem::forget(input);
}

#[test]
fn a_long_conversation_renders_in_time() {
    let source = "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' + m['content'] | trim + '<|end|>\\n' }}{% endfor %}";
    let template = ChatTemplate::new(source).expect("a template");
    let roles = ["user", "assistant"];
    let text = "a sentence of some words, ".repeat(8);
    let messages: Vec<Json> = (0..4_096).map(|index| json!({ "role": roles[index % 2], "content": text })).collect();
    let start = Instant::now();
    let rendered = template.render(&RenderInput::new(&messages, NOW)).expect("a rendering");
    let elapsed = start.elapsed();
    println!("4096 messages, {} bytes: {elapsed:?}", rendered.len());
    // 100 ms is promised of a release build.
    assert!(elapsed < Duration::from_millis(if cfg!(debug_assertions) { 1_000 } else { 100 }), "took {elapsed:?}");
}

#[test]
fn work_grows_with_the_conversation_and_no_faster() {
    let source = "{% for m in messages %}{{ m.role }}{{ m.content|tojson }}{% endfor %}";
    for count in [2_048_u64, 4_096, 8_192, 16_384, 32_768] {
        let messages = vec![json!({ "role": "user", "content": "word ".repeat(20) }); count as usize];
        // Steps are counted, so that this holds on a busy machine: ten or so for each message, at any length. What is
        // copied is bounded by the input in any case.
        let limits = Limits { fuel: 10 * count + 1_000, budget_bytes: 1 << 16, ..Limits::default() };
        let template = ChatTemplate::with_limits(source, limits).expect("a template");
        template.render(&RenderInput::new(&messages, NOW)).unwrap_or_else(|error| panic!("{count} messages: {error}"));
    }
}

/// Pieces that templates are made of; any sequence of them is a test.
const PIECES: &[&str] = &[
    "{% ",
    " %}",
    "{{ ",
    " }}",
    "{%- ",
    " -%}",
    "{# ",
    " #}",
    "if ",
    "elif ",
    "else",
    "endif",
    "for ",
    " in ",
    "endfor",
    "set ",
    "endset",
    "macro f(a, b=1)",
    "endmacro",
    "call ",
    "endcall",
    "generation",
    "endgeneration",
    "raw",
    "endraw",
    "filter upper",
    "endfilter",
    "with a=1",
    "endwith",
    "break",
    "continue",
    "namespace(x=1)",
    "ns",
    ".x",
    "messages",
    "[0]",
    "['role']",
    "[::-1]",
    "[1:",
    "]",
    "(",
    ")",
    "{",
    "}",
    ":",
    ",",
    " = ",
    " + ",
    " - ",
    " * ",
    " / ",
    " // ",
    " % ",
    " ** ",
    " ~ ",
    " == ",
    " < ",
    " and ",
    " or ",
    " not ",
    " is ",
    "string",
    "defined",
    "none",
    "mapping",
    "|tojson",
    "|length",
    "|trim",
    "|join(',')",
    "|map('upper')",
    "|list",
    "|selectattr('role')",
    "|format(1)",
    "|indent(2)",
    "|sort",
    "|first",
    ".split()",
    ".strip('a')",
    ".items()",
    ".get('a')",
    ".format(1)",
    "range(3)",
    "dict(a=1)",
    "loop.index",
    "loop(",
    "caller()",
    "raise_exception('x')",
    "strftime_now('%Y')",
    "'a'",
    "\"%s\"",
    "'{}'",
    "1",
    "0",
    "2.5",
    "-1",
    "99999999999999999999",
    "true",
    "none",
    "é",
    "\n",
    " ",
    "self.x()",
    "super()",
    "loop.cycle()",
    "a",
    "|batch(2)",
    "|round(1)",
    "|int",
    "[missing]",
    "\\",
    "'\\u00",
    "'",
    "\"",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_template_ends_without_a_panic(pieces in proptest::collection::vec(0..PIECES.len(), 0..24)) {
        let source: String = pieces.into_iter().map(|index| PIECES[index]).collect();
        let outcome = render(&source, &hello());
        prop_assert!(!matches!(outcome, Err(TemplateError::Panicked)), "{source:?} panicked");
    }

    #[test]
    fn any_expression_ends_without_a_panic(pieces in proptest::collection::vec(27..PIECES.len(), 0..12)) {
        let source: String = pieces.into_iter().map(|index| PIECES[index]).collect();
        let outcome = render(&format!("{{% for ns in [1] %}}{{{{ {source} }}}}{{% endfor %}}"), &hello());
        prop_assert!(!matches!(outcome, Err(TemplateError::Panicked)), "{source:?} panicked");
    }
}
