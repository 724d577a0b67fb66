//! The heads of latent attention: what files call them, and those of safetensors that are quantised (FP8 in blocks, as
//! DeepSeek-V3 is published).

use formats::{Checkpoint, SafetensorsWriter};
use serde_json::json;
use tensor::WeightFormat;

#[path = "../../cli/src/gguf_architectures.rs"]
mod gguf_architectures;

const HEADS: usize = 2;
const KEYS: usize = 3;
const VALUES: usize = 5;
const RANK: usize = 4;

#[test]
fn heads_in_blocks_of_fp8_are_their_numbers() {
    let config = json!({
        "model_type": "deepseek_v3", "num_attention_heads": HEADS, "v_head_dim": VALUES, "num_hidden_layers": 1,
        "quantization_config": { "quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128] },
    });
    let rows = HEADS * (KEYS + VALUES);
    // 1, 2 and 1.5, as E4M3 has them, times the scale of the only block.
    let codes = [0x38u8, 0x40, 0x3c];
    let numbers = [1.0f32, 2.0, 1.5].map(|number| number * 0.5);
    let at = |row: usize, column: usize| (row * RANK + column) % 3;
    let bytes: Vec<u8> = (0..rows * RANK).map(|place| codes[place % 3]).collect();
    let mut writer = SafetensorsWriter::new();
    let name = "model.layers.0.self_attn.kv_b_proj.weight";
    writer.tensor(name, "F8_E4M3", &[rows as u64, RANK as u64], bytes.into());
    writer.tensor(&format!("{name}_scale_inv"), "F32", &[1, 1], 0.5f32.to_le_bytes().to_vec().into());
    let files = [("config.json", config.to_string().into()), ("model.safetensors", writer.to_bytes())];
    let checkpoint = Checkpoint::from_bytes(&files, gguf_architectures::all()).unwrap();
    for head in 0..HEADS {
        let first = head * (KEYS + VALUES);
        let tensor = |half: &str| {
            let name = format!("model.layers.0.self_attn.{half}_b_proj.{head}.weight");
            let tensor = checkpoint.tensor(&name).unwrap();
            let info = checkpoint.tensor_infos().find(|info| info.name == name).unwrap();
            assert_eq!(info.format, Some(tensor.format()), "{name}");
            tensor
        };
        let (keys, values) = (tensor("k"), tensor("v"));
        assert_eq!((keys.shape(), values.shape()), (&[RANK, KEYS][..], &[VALUES, RANK][..]));
        assert!([WeightFormat::F16, WeightFormat::BF16].contains(&keys.format()), "{:?}", keys.format());
        let expected: Vec<f32> =
            (0..RANK * KEYS).map(|place| numbers[at(first + place % KEYS, place / KEYS)]).collect();
        assert_eq!(keys.to_f32(), expected);
        let expected: Vec<f32> =
            (0..VALUES * RANK).map(|place| numbers[at(first + KEYS + place / RANK, place % RANK)]).collect();
        assert_eq!(values.to_f32(), expected);
    }
    assert!(!checkpoint.tensor_names().any(|name| name.contains("kv_b_proj")));
}

#[test]
fn heads_of_latent_attention_are_parts_of_two_tensors() {
    let names = gguf_architectures::names("glm4_moe_lite");
    let head = |kind: &str, head: usize| format!("model.layers.3.self_attn.{kind}_b_proj.{head}.weight");
    assert_eq!(names.gguf_expert(&head("k", 4)), Some(("blk.3.attn_k_b.weight".to_owned(), 4)));
    assert_eq!(names.checkpoint_expert("blk.3.attn_v_b.weight", 2), Some(head("v", 2)));
    let whole = "model.layers.3.self_attn.kv_b_proj.weight";
    assert_eq!(names.checkpoint_name("blk.3.attn_kv_b.weight"), whole);
}
