//! How messages are prepared, what templates are found to show, and what errors say.

use serde_json::{Value as Json, json};
use time::PrimitiveDateTime;
use tokenizer::chat_template::{ChatTemplate, Content, RenderInput, TemplateError};

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source).expect("a template")
}

fn render(source: &str, messages: &[Json]) -> String {
    template(source).render(&RenderInput::new(messages, PrimitiveDateTime::MIN)).expect("a rendering")
}

fn error(source: &str, messages: &[Json]) -> TemplateError {
    let render = |template: ChatTemplate| template.render(&RenderInput::new(messages, PrimitiveDateTime::MIN));
    ChatTemplate::new(source).and_then(render).expect_err("a failure")
}

const PLAIN: &str = "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}";

fn called(arguments: Json) -> Vec<Json> {
    vec![
        json!({ "role": "assistant", "content": "", "tool_calls": [{ "function": { "name": "f", "arguments": arguments } }] }),
    ]
}

#[test]
fn string_arguments_become_the_object_in_them() {
    let show = "{{ messages[0].tool_calls[0].function.arguments|tojson }}";
    assert_eq!(render(show, &called(json!("{\"b\": 1, \"a\": \"<é>\"}"))), "{\"b\": 1, \"a\": \"<é>\"}");
    assert_eq!(render(show, &called(json!({ "a": 1 }))), "{\"a\": 1}");
    // What holds no object is what the model wrote.
    assert_eq!(render(show, &called(json!("[1, 2]"))), "\"[1, 2]\"");
    assert_eq!(render(show, &called(json!("{\"a\": "))), "\"{\\\"a\\\": \"");
    assert_eq!(render(show, &called(json!(""))), "\"\"");
}

#[test]
fn arguments_are_a_text_where_a_template_takes_no_object() {
    let adds =
        "{% for m in messages %}{% for c in m.tool_calls %}{{ '>' + c.function.arguments }}{% endfor %}{% endfor %}";
    let capabilities = template(adds).capabilities().clone();
    assert!(capabilities.text_arguments && capabilities.tool_calls && capabilities.parallel_tool_calls);
    let spaced = ">{\"b\": [1, 2.5], \"a\": {\"é\": \"x, y:z\"}}";
    for arguments in [json!({"b": [1, 2.5], "a": {"é": "x, y:z"}}), json!("{\"b\":[1,2.5],\"a\":{\"é\":\"x, y:z\"}}")]
    {
        assert_eq!(render(adds, &called(arguments)), spaced);
    }
    assert_eq!(render(adds, &called(json!({}))), ">{}");
    // What holds no object is what the model wrote.
    assert_eq!(render(adds, &called(json!("[1,2"))), ">[1,2");
    let prints = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments }}{% endfor %}{% endfor %}";
    assert!(!template(prints).capabilities().text_arguments);
}

/// SmolLM3's template shows functions, and under a name of its own.
#[test]
fn tools_are_shown_where_their_name_is_xml_tools() {
    let source =
        "{% if xml_tools %}{% for t in xml_tools[:] %}{{ t | string }}{% endfor %}{% endif %}{{ messages[0].content }}";
    let template = template(source);
    assert!(template.supports_tools());
    let (messages, tools) =
        ([json!({"role": "user", "content": "x"})], [json!({"type": "function", "function": {"name": "f"}})]);
    let input = RenderInput { tools: Some(&tools), ..RenderInput::new(&messages, PrimitiveDateTime::MIN) };
    assert_eq!(template.render(&input).unwrap(), "{'name': 'f'}x");
    // A request may say which form it wants.
    let extra = serde_json::Map::from_iter([("python_tools".to_owned(), json!([]))]);
    assert_eq!(template.render(&RenderInput { extra, ..input.clone() }).unwrap(), "x");
    // Other templates have no use for it.
    let usual = self::template("{{ tools is none }}{{ xml_tools is defined }}{{ messages[0].content }}");
    assert_eq!(usual.render(&input).unwrap(), "FalseFalsex");
}

#[test]
fn null_content_is_empty_where_a_template_would_print_none() {
    let messages = [json!({ "role": "assistant", "content": null, "tool_calls": [] })];
    assert_eq!(render("{% for m in messages %}[{{ m.content }}]{{ m.tool_calls }}{% endfor %}", &messages), "[][]");
    assert_eq!(render(PLAIN, &messages), "<assistant>");
    // A template that asks for `none` is shown it.
    let asks = "{% for m in messages %}{{ '' if m.content is none else m.content }}{{ m.content is none }}{% endfor %}";
    let template = template("{% for m in messages %}{{ '' if m.content is none else m.content }}{% endfor %}");
    assert!(template.capabilities().null_content);
    assert_eq!(render(asks, &messages), "False");
}

#[test]
fn text_parts_become_the_content_a_template_shows() {
    let parts = json!([{ "type": "text", "text": "one" }, { "type": "text", "text": "two" }]);
    let messages = [json!({ "role": "user", "content": parts })];
    assert_eq!(template(PLAIN).capabilities().content, Content::Strings);
    assert_eq!(render(PLAIN, &messages), "<user>one\ntwo");

    let only_parts = "{% for m in messages %}{% for part in m.content %}{{ part.text }};{% endfor %}{% endfor %}";
    assert_eq!(template(only_parts).capabilities().content, Content::Parts);
    assert_eq!(render(only_parts, &[json!({ "role": "user", "content": "hi" })]), "hi;");

    let both = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}{{ part.text }};{% endfor %}{% endif %}{% endfor %}";
    assert_eq!(template(both).capabilities().content, Content::Both);
    assert_eq!(render(both, &messages), "one;two;");

    // Printing the list as Python would is not showing it.
    let prints = "{% for m in messages %}{{ m.content }}{% endfor %}";
    assert_eq!(template(prints).capabilities().content, Content::Strings);

    let image = [json!({ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] })];
    let message = "message 0: this chat template takes only text, found a content part of type `image_url`";
    assert_eq!(error(PLAIN, &image).to_string(), message);
}

#[test]
fn reasoning_is_found_under_each_of_its_names() {
    let show = "{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }}{% endfor %}";
    for name in ["reasoning_content", "thinking", "reasoning"] {
        assert_eq!(render(show, &[json!({ "role": "assistant", name: "because" })]), "because|because");
    }
}

#[test]
fn what_a_template_cannot_show_is_known_at_load() {
    let plain = template(PLAIN);
    assert!(plain.supports_system());
    assert!(!plain.supports_tools() && !plain.supports_tool_calls() && !plain.supports_thinking());
    assert_eq!(plain.warnings(), ["this chat template cannot show tools: the model will not know of any"]);

    let full = template(
        "{% if tools %}{{ tools|tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c|tojson }}{% endfor %}{% endfor %}\
         {% if enable_thinking %}<think>{% endif %}",
    );
    let found = full.capabilities();
    assert!(
        found.tools
            && found.tool_calls
            && found.parallel_tool_calls
            && found.tool_results
            && found.thinking
            && found.system
    );
    assert!(full.warnings().is_empty());

    let refuses = template(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ messages[0].content }}",
    );
    assert!(!refuses.supports_system());
}

#[test]
fn errors_name_the_line_and_the_reason() {
    let messages = [json!({ "role": "user", "content": "x" })];
    let cases = [
        (
            "a\n{{ messages[0].content + 1 }}",
            "line 2 of the chat template: operator + has no meaning between str and int",
        ),
        ("\n\n{% for x in 5 %}{% endfor %}", "line 3 of the chat template: a int cannot be iterated over"),
        (
            "{{ raise_exception('Roles must alternate') }}",
            "the chat template refuses this conversation: Roles must alternate",
        ),
        ("a\n{% if %}", "line 2 of the chat template: unexpected end of block"),
        ("{% include 'x' %}", "line 1 of the chat template: a chat template cannot include another"),
        (
            "{{ [1].append(2) }}",
            "line 1 of the chat template: a template cannot change a list: `append` is not allowed",
        ),
    ];
    for (source, message) in cases {
        assert_eq!(error(source, &messages).to_string(), message, "{source}");
    }
    assert_eq!(error("x", &[json!("text")]).to_string(), "message 0: expected an object with `role` and `content`");
}

#[test]
fn a_template_can_be_shared_between_threads() {
    let template = template(PLAIN);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let template = &template;
            scope.spawn(move || {
                for turn in 0..100 {
                    let messages = [json!({ "role": "user", "content": format!("{thread}/{turn}") })];
                    let rendered =
                        template.render(&RenderInput::new(&messages, PrimitiveDateTime::MIN)).expect("a rendering");
                    assert_eq!(rendered, format!("<user>{thread}/{turn}"));
                }
            });
        }
    });
}

/// What Jinja2 3.1.6 gives of each: a false value has no items for these filters, and only for these.
#[test]
fn filters_of_items_take_what_is_none() {
    for value in ["none", "missing", "0", "false", "''", "[]", "{}"] {
        for filter in ["selectattr('x')", "rejectattr('x')", "select", "reject", "map(attribute='x')", "map('upper')"] {
            assert_eq!(render(&format!("{{{{ {value} | {filter} | list }}}}"), &[]), "[]", "{value} | {filter}");
        }
    }
    assert_eq!(render("{{ [{'x': 1}, {'x': 0}] | selectattr('x') | list | length }}", &[]), "1");
}
