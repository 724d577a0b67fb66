//! Chat templates that `--chat-template` knows by llama.cpp's names, for models whose files have none. They write no tools.

/// The names, with the templates. Each says what its family's own writes for a conversation of texts.
const NAMED: &[(&str, &str)] = &[
    (
        "chatml",
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if \
         add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    ),
    (
        "llama2",
        "{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}{% set ns.system = '<<SYS>>\n' + \
         m.content + '\n<</SYS>>\n\n' %}{% elif m.role == 'assistant' %} {{ m.content }} {{ eos_token }}{% else %}{{ bos_token \
         }}[INST] {{ ns.system }}{{ m.content }} [/INST]{% set ns.system = '' %}{% endif %}{% endfor %}",
    ),
    (
        "llama3",
        "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim \
         }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    ),
    (
        "mistral-v1",
        "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}{% set ns.system = \
         m.content + '\n\n' %}{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}{% else %} [INST] {{ ns.system }}{{ \
         m.content }} [/INST]{% set ns.system = '' %}{% endif %}{% endfor %}",
    ),
    (
        "mistral-v3",
        "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}{% set ns.system = \
         m.content + '\n\n' %}{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}{% else %}[INST] {{ ns.system }}{{ \
         m.content }}[/INST]{% set ns.system = '' %}{% endif %}{% endfor %}",
    ),
    (
        "mistral-v7",
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}[SYSTEM_PROMPT] {{ m.content }}[/SYSTEM_PROMPT]{% elif \
         m.role == 'assistant' %} {{ m.content }}{{ eos_token }}{% else %}[INST] {{ m.content }}[/INST]{% endif %}{% endfor %}",
    ),
    (
        "mistral-v7-tekken",
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]{% elif \
         m.role == 'assistant' %}{{ m.content }}{{ eos_token }}{% else %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %}",
    ),
    (
        "gemma",
        "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}{% set ns.system = \
         m.content | trim + '\n\n' %}{% else %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ ns.system \
         }}{{ m.content | trim }}<end_of_turn>\n{% set ns.system = '' %}{% endif %}{% endfor %}{% if add_generation_prompt \
         %}<start_of_turn>model\n{% endif %}",
    ),
    (
        "phi3",
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}{% if add_generation_prompt \
         %}<|assistant|>\n{% endif %}",
    ),
    (
        "phi4",
        "{% for m in messages %}<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>{% endfor %}{% if \
         add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}",
    ),
    (
        "zephyr",
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt \
         %}<|assistant|>\n{% endif %}",
    ),
    (
        "vicuna",
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n\n{% elif m.role == 'assistant' \
         %}ASSISTANT: {{ m.content }}{{ eos_token }}\n{% else %}USER: {{ m.content }}\n{% endif %}{% endfor %}{% if \
         add_generation_prompt %}ASSISTANT:{% endif %}",
    ),
    (
        "deepseek3",
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}<｜Assistant｜>{{ m.content \
         }}<｜end▁of▁sentence｜>{% elif m.role == 'user' %}<｜User｜>{{ m.content }}{% else %}{{ m.content }}\n\n{% endif %}{% endfor \
         %}{% if add_generation_prompt %}<｜Assistant｜>{% endif %}",
    ),
    (
        "command-r",
        "{{ bos_token }}{% for m in messages %}<|START_OF_TURN_TOKEN|><|{{ 'CHATBOT' if m.role == 'assistant' else m.role | upper \
         }}_TOKEN|>{{ m.content | trim }}<|END_OF_TURN_TOKEN|>{% endfor %}{% if add_generation_prompt \
         %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}",
    ),
];

/// The template of this name.
pub(crate) fn named(name: &str) -> Option<&'static str> {
    NAMED.iter().find(|(known, _)| *known == name).map(|(_, template)| *template)
}

/// All names, for a message.
pub(crate) fn names() -> String {
    NAMED.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokenizer::chat_template::{ChatTemplate, RenderInput};

    use super::*;

    /// What each family's own template writes for the same conversation.
    #[test]
    fn a_conversation_is_written_as_its_family_writes_it() {
        let messages = [
            json!({"role": "system", "content": "Be brief."}),
            json!({"role": "user", "content": "Hi"}),
            json!({"role": "assistant", "content": "Yes?"}),
            json!({"role": "user", "content": "Who?"}),
        ];
        let expected = [
            (
                "chatml",
                "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes?\
                 <|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n",
            ),
            ("llama2", "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Yes? </s><s>[INST] Who? [/INST]"),
            (
                "llama3",
                "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\
                 \n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nYes?<|eot_id|><|start_header_id|>user\
                 <|end_header_id|>\n\nWho?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
            ),
            ("mistral-v1", "<s> [INST] Be brief.\n\nHi [/INST] Yes?</s> [INST] Who? [/INST]"),
            ("mistral-v3", "<s>[INST] Be brief.\n\nHi[/INST] Yes?</s>[INST] Who?[/INST]"),
            ("mistral-v7", "<s>[SYSTEM_PROMPT] Be brief.[/SYSTEM_PROMPT][INST] Hi[/INST] Yes?</s>[INST] Who?[/INST]"),
            (
                "mistral-v7-tekken",
                "<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST]Hi[/INST]Yes?</s>[INST]Who?[/INST]",
            ),
            (
                "gemma",
                "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nYes?<end_of_turn>\n\
                 <start_of_turn>user\nWho?<end_of_turn>\n<start_of_turn>model\n",
            ),
            (
                "phi3",
                "<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nYes?<|end|>\n<|user|>\nWho?<|end|>\n\
                 <|assistant|>\n",
            ),
            (
                "phi4",
                "<|im_start|>system<|im_sep|>Be brief.<|im_end|><|im_start|>user<|im_sep|>Hi<|im_end|><|im_start|>assistant\
                 <|im_sep|>Yes?<|im_end|><|im_start|>user<|im_sep|>Who?<|im_end|><|im_start|>assistant<|im_sep|>",
            ),
            (
                "zephyr",
                "<|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\nYes?</s>\n<|user|>\nWho?</s>\n<|assistant|>\n",
            ),
            ("vicuna", "<s>Be brief.\n\nUSER: Hi\nASSISTANT: Yes?</s>\nUSER: Who?\nASSISTANT:"),
            (
                "deepseek3",
                "<s>Be brief.\n\n<｜User｜>Hi<｜Assistant｜>Yes?<｜end▁of▁sentence｜><｜User｜>Who?<｜Assistant｜>",
            ),
            (
                "command-r",
                "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Be brief.<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hi\
                 <|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>Yes?<|END_OF_TURN_TOKEN|>\
                 <|START_OF_TURN_TOKEN|><|USER_TOKEN|>Who?<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
            ),
        ];
        assert_eq!(expected.len(), NAMED.len());
        for (name, expected) in expected {
            let template = ChatTemplate::new(named(name).unwrap()).unwrap();
            assert!(template.supports_system() && !template.supports_tools(), "{name}");
            let now = time::PrimitiveDateTime::MIN;
            let input =
                RenderInput { bos_token: Some("<s>"), eos_token: Some("</s>"), ..RenderInput::new(&messages, now) };
            assert_eq!(template.render(&input).unwrap(), expected, "{name}");
        }
    }
}
