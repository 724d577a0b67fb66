//! Chat templates against Hugging Face's Jinja2: every golden byte for byte.
//!
//! `golden/chat_template/source.toml` says what made the goldens.

#![expect(clippy::print_stdout, reason = "a test says how much it compared or why it was skipped")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};
use time::{Date, Month, PrimitiveDateTime, Time};
use tokenizer::chat_template::{ChatTemplate, RenderInput, TemplateError};

/// The clock of the goldens.
fn now() -> PrimitiveDateTime {
    let date = Date::from_calendar_date(2026, Month::February, 3).expect("a valid date");
    PrimitiveDateTime::new(date, Time::from_hms_micro(4, 5, 6, 78).expect("a valid time"))
}

fn golden(name: &str) -> Json {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chat_template").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn array(value: &Json) -> &[Json] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn render(template: &ChatTemplate, messages: &Json, options: &Json) -> Result<String, TemplateError> {
    let mut input = RenderInput::new(array(messages), now());
    input.tools = options["tools"].as_array().map(Vec::as_slice);
    input.documents = options["documents"].as_array().map(Vec::as_slice);
    input.add_generation_prompt = options["add_generation_prompt"] == true;
    input.bos_token = Some("<BOS>");
    input.eos_token = Some("<EOS>");
    input.enable_thinking = options["enable_thinking"].as_bool();
    input.extra = options["kwargs"].as_object().cloned().unwrap_or_default();
    template.render(&input)
}

/// What the reference did, `None` where its output is meant and given.
fn difference(expected: &Json, output: Option<&str>, ours: &Result<String, TemplateError>) -> Option<String> {
    match (output, expected["raised"].as_str(), ours) {
        (Some(expected), _, Ok(ours)) if expected == ours => None,
        (Some(expected), _, Ok(ours)) => {
            let same = expected.bytes().zip(ours.bytes()).take_while(|(a, b)| a == b).count();
            let from = (0..=same.saturating_sub(40))
                .rev()
                .find(|at| expected.is_char_boundary(*at) && ours.is_char_boundary(*at));
            let from = from.unwrap_or(0);
            let show = |text: &str| text[from..].chars().take(120).collect::<String>();
            Some(format!("differs at byte {same}:\n  reference {:?}\n  ours      {:?}", show(expected), show(ours)))
        }
        (None, Some(message), Err(TemplateError::Raised { message: ours })) if ours == message => None,
        (None, None, Err(TemplateError::Raised { message })) => {
            Some(format!("reference fails otherwise, ours raises {message:?}"))
        }
        (None, None, Err(_)) => None,
        (_, _, ours) => Some(format!("reference {expected:.300?}, ours {ours:.300?}")),
    }
}

fn report(compared: usize, differences: &[String]) {
    assert!(
        differences.is_empty(),
        "{} of {compared} renderings differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
}

#[test]
fn templates_of_ours_render_as_jinja2_renders_them() {
    let input = golden("features_input.json");
    let options =
        serde_json::json!({ "tools": input["tools"], "kwargs": input["kwargs"], "add_generation_prompt": true });
    let cases = golden("features.json");
    let mut differences = Vec::new();
    for case in array(&cases) {
        let source = case["template"].as_str().expect("a template");
        let ours = ChatTemplate::new(source).and_then(|template| render(&template, &input["messages"], &options));
        if let Some(difference) = difference(case, case["output"].as_str(), &ours) {
            differences.push(format!("{}: {source:?} {difference}", case["name"]));
        }
    }
    let compared = array(&cases).len();
    println!("compared {compared} renderings of templates written for this project");
    assert!(compared > 250);
    report(compared, &differences);
}

/// The folder of real templates, if this machine has it.
fn real_templates() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let data = std::env::var_os("HOTMETAL_TEST_DATA").map_or(beside, PathBuf::from);
    Some(data.join("templates")).filter(|folder| folder.is_dir())
}

#[test]
fn real_templates_render_as_jinja2_renders_them() {
    let Some(folder) = real_templates() else {
        println!("skipped: no folder of real templates (../shared/data/templates or HOTMETAL_TEST_DATA)");
        return;
    };
    let goldens = golden("real.json");
    let templates: BTreeMap<String, Vec<Map<String, Json>>> =
        serde_json::from_value(goldens["templates"].clone()).expect("cases of each template");
    let (mut compared, mut errors, mut differences) = (0, 0, Vec::new());
    for (name, cases) in &templates {
        let source = std::fs::read_to_string(folder.join(name)).expect("a template");
        let template = ChatTemplate::new(&source).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut previous = String::new();
        for case in cases {
            let (conversation, options) = (&case["conversation"], &case["options"]);
            let pick = |table: &str, key: &Json| goldens[table][key.as_str().expect("a name")].clone();
            let ours = render(&template, &pick("conversations", conversation), &pick("options", options));
            // Each output is stored as what differs from the one before it.
            let expected = case.get("then").and_then(Json::as_str).map(|then| {
                let kept = case["kept_chars"].as_u64().and_then(|kept| usize::try_from(kept).ok()).expect("a count");
                previous = previous.chars().take(kept).collect::<String>() + then;
                previous.as_str()
            });
            compared += 1;
            errors += usize::from(expected.is_none());
            if let Some(difference) = difference(&Json::Object(case.clone()), expected, &ours) {
                differences.push(format!("{name} {conversation} {options} {difference}"));
            }
        }
    }
    println!("compared {compared} renderings of {} real templates, {errors} of them refusals", templates.len());
    assert!(compared > 800);
    report(compared, &differences);
}

#[test]
fn what_real_templates_show_is_found() {
    let Some(folder) = real_templates() else {
        println!("skipped: no folder of real templates (../shared/data/templates or HOTMETAL_TEST_DATA)");
        return;
    };
    // Read off the templates by eye. SmolLM3 takes its tools under names of its own; DeepSeek's leaves them to the
    // system message.
    let cases = [
        ("Qwen-Qwen3-0.6B", true, true, true, true),
        ("Qwen-Qwen2.5-7B-Instruct", true, true, true, false),
        ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", true, true, true, false),
        ("meta-llama-Llama-3.2-3B-Instruct", true, true, true, false),
        ("openai-gpt-oss-120b", true, true, true, true),
        ("GLM-4.7-Flash", true, true, true, true),
        ("deepseek-ai-DeepSeek-V3.1", true, false, true, true),
        ("HuggingFaceTB-SmolLM3-3B", true, false, false, true),
        ("google-gemma-2-2b-it", false, false, false, false),
        ("microsoft-Phi-3.5-mini-instruct", true, false, false, false),
    ];
    for (name, system, tools, tool_calls, thinking) in cases {
        let source = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).expect("a template");
        let template = ChatTemplate::new(&source).expect("a template");
        let found = (
            template.supports_system(),
            template.supports_tools(),
            template.supports_tool_calls(),
            template.supports_thinking(),
        );
        assert_eq!(found, (system, tools, tool_calls, thinking), "{name}: {:?}", template.capabilities());
    }
}

/// Wherever it stands: in a branch, a macro, an argument, an expression that sets the same name.
#[test]
fn a_template_says_which_names_it_looks_up() {
    let source = "{% macro say(x) %}{{ x ~ in_macro }}{% endmacro %}{% set own = own | default(fallback) %}\
                  {% if messages | length > 7 and in_condition is defined %}{{ in_branch }}{% endif %}\
                  {% for m in messages %}{{ say(m.content) }}{{ {'k': in_dict}['k'] }}{{ m.attribute }}{% endfor %}";
    let template = ChatTemplate::new(source).unwrap();
    for name in ["messages", "in_macro", "own", "fallback", "in_condition", "in_branch", "in_dict"] {
        assert!(template.reads(name), "{name}");
    }
    for name in ["attribute", "content", "k", "tools", "enable_thinking", "In_macro", ""] {
        assert!(!template.reads(name), "{name}");
    }
}
