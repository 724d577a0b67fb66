//! Chat templates of a few lines, written by hand: each writes calls as the published templates of a family do. They
//! are here because a fresh clone has none of the published ones.

use crate::reply::ToolSyntax;

/// A family of models.
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) syntax: ToolSyntax,
    /// What its template writes for the calls `m.tool_calls` of a message.
    calls: &'static str,
    /// What it writes around a thought.
    pub(super) thought: [&'static str; 2],
    /// The tokens that count by their ids.
    pub(super) tokens: &'static [&'static str],
}

impl Family {
    pub(super) fn template(&self) -> String {
        let [open, close] = self.thought;
        let thought = format!("{{% if m.reasoning_content %}}{open}{{{{ m.reasoning_content }}}}{close}{{% endif %}}");
        let thought = if open.is_empty() { String::new() } else { thought };
        format!(
            "{{% if tools %}}Tools: {{{{ tools | tojson }}}}\n{{% endif %}}{{% for m in messages %}}<|{{{{ m.role }}}}|>\n{thought}\
             {{{{ m.content }}}}{{% if m.tool_calls %}}{}{{% endif %}}<|over|>{{% endfor %}}{{% if add_generation_prompt %}}\
             <|assistant|>\n{{% endif %}}",
            self.calls
        )
    }
}

const THINK: [&str; 2] = ["<think>", "</think>"];
const NO_THOUGHT: [&str; 2] = ["", ""];
/// The tokens that DeepSeek's calls are written with, in V3 and V3.1.
const DEEPSEEK: &[&str] = &[
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
];

pub(super) const FAMILIES: &[Family] = &[
    Family {
        name: "Hermes",
        syntax: ToolSyntax::Hermes,
        calls: "{% for c in m.tool_calls %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": \
                {{ c.function.arguments | tojson }}}\n</tool_call>\n{% endfor %}",
        thought: THINK,
        tokens: &[],
    },
    Family {
        name: "Llama 3",
        syntax: ToolSyntax::Llama3,
        calls: "{% for c in m.tool_calls %}{{ '; ' if not loop.first }}{\"name\": \"{{ c.function.name }}\", \"parameters\": \
                {{ c.function.arguments | tojson }}}{% endfor %}",
        thought: NO_THOUGHT,
        tokens: &[],
    },
    Family {
        name: "functionary 3.2",
        syntax: ToolSyntax::Recipients,
        calls: "{% for c in m.tool_calls %}>>>{{ c.function.name }}\n{{ c.function.arguments | tojson }}{% endfor %}",
        thought: NO_THOUGHT,
        tokens: &[],
    },
    Family {
        name: "DeepSeek R1",
        syntax: ToolSyntax::DeepSeekFenced,
        calls: "<｜tool▁calls▁begin｜>{% for c in m.tool_calls %}<｜tool▁call▁begin｜>{{ c.type }}<｜tool▁sep｜>\
                {{ c.function.name }}\n```json\n{{ c.function.arguments | tojson }}\n```<｜tool▁call▁end｜>{% endfor %}\
                <｜tool▁calls▁end｜>",
        thought: THINK,
        tokens: DEEPSEEK,
    },
    Family {
        name: "Mistral, a list",
        syntax: ToolSyntax::MistralList,
        calls: "[TOOL_CALLS][{% for c in m.tool_calls %}{{ ', ' if not loop.first }}{\"name\": \"{{ c.function.name }}\", \
                \"arguments\": {{ c.function.arguments | tojson }}, \"id\": \"{{ c.id }}\"}{% endfor %}]",
        thought: NO_THOUGHT,
        tokens: &["[TOOL_CALLS]"],
    },
    Family {
        name: "Mistral, names",
        syntax: ToolSyntax::MistralArgs,
        calls: "{% for c in m.tool_calls %}[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}",
        thought: ["[THINK]", "[/THINK]"],
        tokens: &["[TOOL_CALLS]", "[ARGS]"],
    },
    Family {
        name: "Mistral, ids",
        syntax: ToolSyntax::MistralIds,
        calls: "{% for c in m.tool_calls %}[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]\
                {{ c.function.arguments | tojson }}{% endfor %}",
        thought: NO_THOUGHT,
        tokens: &["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
    },
    Family {
        name: "GLM",
        syntax: ToolSyntax::Glm,
        calls: "{% for c in m.tool_calls %}\n<tool_call>{{ c.function.name }}\n{% for k, v in c.function.arguments.items() %}\
                <arg_key>{{ k }}</arg_key>\n<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}\
                </tool_call>{% endfor %}",
        thought: THINK,
        tokens: &["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    },
    Family {
        name: "Qwen3-Coder, with values in JSON",
        syntax: ToolSyntax::Qwen3Coder,
        calls: "{% for c in m.tool_calls %}\n<tool_call>\n<function={{ c.function.name }}>\n\
                {% for k, v in c.function.arguments.items() %}<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n\
                </parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}",
        thought: THINK,
        tokens: &[],
    },
    Family {
        name: "Qwen3-Coder, with values as Python prints them",
        syntax: ToolSyntax::Qwen3Coder,
        calls: "{% for c in m.tool_calls %}\n<tool_call>\n<function={{ c.function.name }}>\n\
                {% for k, v in c.function.arguments.items() %}<parameter={{ k }}>\n{{ v | string }}\n\
                </parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}",
        thought: THINK,
        tokens: &[],
    },
    Family {
        name: "Seed-OSS",
        syntax: ToolSyntax::SeedOss,
        calls: "{% for c in m.tool_calls %}\n<seed:tool_call>\n<function={{ c.function.name }}>\n\
                {% for k, v in c.function.arguments.items() %}<parameter={{ k }}>{{ v | string }}</parameter>\n{% endfor %}\
                </function>\n</seed:tool_call>{% endfor %}",
        thought: ["<seed:think>", "</seed:think>"],
        tokens: &["<seed:tool_call>", "</seed:tool_call>", "<seed:think>", "</seed:think>"],
    },
    Family {
        name: "MiniMax M2",
        syntax: ToolSyntax::MiniMax,
        calls: "\n<minimax:tool_call>\n{% for c in m.tool_calls %}<invoke name=\"{{ c.function.name }}\">\n\
                {% for k, v in c.function.arguments.items() %}<parameter name=\"{{ k }}\">{{ v if v is string else v | tojson }}\
                </parameter>\n{% endfor %}</invoke>\n{% endfor %}</minimax:tool_call>",
        thought: THINK,
        tokens: &["<minimax:tool_call>", "</minimax:tool_call>", "<think>", "</think>"],
    },
    Family {
        name: "DeepSeek V3.1",
        syntax: ToolSyntax::DeepSeek,
        calls: "<｜tool▁calls▁begin｜>{% for c in m.tool_calls %}<｜tool▁call▁begin｜>{{ c.function.name }}<｜tool▁sep｜>\
                {{ c.function.arguments | tojson }}<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>",
        thought: THINK,
        tokens: DEEPSEEK,
    },
    Family {
        name: "DeepSeek V3.2",
        syntax: ToolSyntax::DeepSeekV32,
        calls: "\n\n<｜DSML｜function_calls>\n{% for c in m.tool_calls %}<｜DSML｜invoke name=\"{{ c.function.name }}\">\n\
                {% for k, v in c.function.arguments.items() %}<｜DSML｜parameter name=\"{{ k }}\" string=\"\
                {{ 'true' if v is string else 'false' }}\">{{ v if v is string else v | tojson }}</｜DSML｜parameter>\n\
                {% endfor %}</｜DSML｜invoke>\n{% endfor %}</｜DSML｜function_calls>",
        thought: THINK,
        tokens: &[],
    },
    Family {
        name: "DeepSeek V4",
        syntax: ToolSyntax::DeepSeekV4,
        calls: "\n\n<｜DSML｜tool_calls>\n{% for c in m.tool_calls %}<｜DSML｜invoke name=\"{{ c.function.name }}\">\n\
                {% for k, v in c.function.arguments.items() %}<｜DSML｜parameter name=\"{{ k }}\" string=\"\
                {{ 'true' if v is string else 'false' }}\">{{ v if v is string else v | tojson }}</｜DSML｜parameter>\n\
                {% endfor %}</｜DSML｜invoke>\n{% endfor %}</｜DSML｜tool_calls>",
        thought: THINK,
        tokens: &[],
    },
    Family {
        name: "Kimi K2",
        syntax: ToolSyntax::Kimi,
        calls: "<|tool_calls_section_begin|>{% for c in m.tool_calls %}<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>\
                {{ c.function.arguments | tojson }}<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>",
        thought: THINK,
        tokens: &[
            "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
            "<|tool_calls_section_end|>",
        ],
    },
    Family {
        name: "Gemma 4",
        syntax: ToolSyntax::Gemma4,
        calls: "{% macro w(v) %}{% if v is string %}<|\"|>{{ v }}<|\"|>{% elif v is mapping %}{ {%- for k, i in v.items() %}\
                {{ ',' if not loop.first }}{{ k }}:{{ w(i) }}{% endfor -%} }{% elif v is iterable %}[{% for i in v %}\
                {{ ',' if not loop.first }}{{ w(i) }}{% endfor %}]{% else %}{{ v | tojson }}{% endif %}{% endmacro %}\
                {% for c in m.tool_calls %}<|tool_call>call:{{ c.function.name }}{ \
                {%- for k, v in c.function.arguments.items() %}{{ ',' if not loop.first }}{{ k }}:{{ w(v) }}{% endfor -%} \
                }<tool_call|>{% endfor %}",
        thought: ["<|channel>thought\n", "<channel|>"],
        tokens: &["<|tool_call>", "<tool_call|>", "<|\"|>", "<|channel>", "<channel|>"],
    },
    Family {
        name: "Command R7B",
        syntax: ToolSyntax::Command,
        calls: "<|START_ACTION|>[\n{% for c in m.tool_calls %}    {\"tool_call_id\": \"{{ loop.index0 }}\", \"tool_name\": \
                \"{{ c.function.name }}\", \"parameters\": {{ c.function.arguments | tojson }}}{{ ',' if not loop.last }}\n\
                {% endfor %}]<|END_ACTION|>",
        thought: ["<|START_THINKING|>", "<|END_THINKING|>"],
        tokens: &[
            "<|START_ACTION|>",
            "<|END_ACTION|>",
            "<|START_THINKING|>",
            "<|END_THINKING|>",
            "<|START_RESPONSE|>",
            "<|END_RESPONSE|>",
        ],
    },
    Family {
        name: "Apertus",
        syntax: ToolSyntax::Apertus,
        calls: "<|tools_prefix|>[{% for c in m.tool_calls %}{{ ', ' if not loop.first }}{\"{{ c.function.name }}\": \
                {{ c.function.arguments | tojson }}}{% endfor %}]<|tools_suffix|>",
        thought: NO_THOUGHT,
        tokens: &["<|tools_prefix|>", "<|tools_suffix|>"],
    },
    Family {
        name: "LFM2",
        syntax: ToolSyntax::Lfm2,
        calls: "<|tool_call_start|>[{% for c in m.tool_calls %}{{ ', ' if not loop.first }}{{ c.function.name }}(\
                {% for k, v in c.function.arguments.items() %}{{ ', ' if not loop.first }}{{ k }}={{ v | tojson }}{% endfor %})\
                {% endfor %}]<|tool_call_end|>",
        thought: THINK,
        tokens: &["<|tool_call_start|>", "<|tool_call_end|>"],
    },
    Family {
        name: "Nemotron Nano 2",
        syntax: ToolSyntax::Nemotron,
        calls: "<TOOLCALL>[{% for c in m.tool_calls %}{{ ', ' if not loop.first }}{\"name\": \"{{ c.function.name }}\", \
                \"arguments\": {{ c.function.arguments | tojson }}}{% endfor %}]</TOOLCALL>",
        thought: THINK,
        tokens: &[],
    },
    Family {
        name: "Apriel",
        syntax: ToolSyntax::Apriel,
        calls: "\n<tool_calls>[{% for c in m.tool_calls %}{{ ', ' if not loop.first }}{\"name\": \"{{ c.function.name }}\", \
                \"arguments\": {{ c.function.arguments | tojson }}, \"id\": \"{{ c.id }}\"}{% endfor %}]</tool_calls>",
        thought: NO_THOUGHT,
        tokens: &[],
    },
    Family {
        name: "Phi-4-mini",
        syntax: ToolSyntax::Phi4,
        calls: "<|tool_call|>[{% for c in m.tool_calls %}{{ ', ' if not loop.first }}{\"name\": \"{{ c.function.name }}\", \
                \"arguments\": {{ c.function.arguments | tojson }}}{% endfor %}]<|/tool_call|>",
        thought: NO_THOUGHT,
        tokens: &[],
    },
    Family {
        name: "functionary 3.1",
        syntax: ToolSyntax::Functionary,
        calls: "{% for c in m.tool_calls %}<function={{ c.function.name }}>{{ c.function.arguments | tojson }}</function>\
                {% endfor %}",
        thought: NO_THOUGHT,
        tokens: &[],
    },
    Family {
        name: "Llama 4, pythonic",
        syntax: ToolSyntax::Pythonic,
        calls: "[{% for c in m.tool_calls %}{{ ', ' if not loop.first }}{{ c.function.name }}(\
                {% for k, v in c.function.arguments.items() %}{{ ', ' if not loop.first }}{{ k }}={{ v | tojson }}{% endfor %})\
                {% endfor %}]",
        thought: NO_THOUGHT,
        tokens: &[],
    },
];
