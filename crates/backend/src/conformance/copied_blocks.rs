//! Blocks of the KV cache that leave a device as bytes and come back ([`Executable::read_block`]).

use plan::{KvFormat, KvLayout, StepInput};
use tensor::WeightFormat;
use testing::{Rng, tiny_model};

use crate::{Backend, Executable};

/// Copies blocks out of one cache and into other places of another, of heads and of latent rows: a text goes on to the same bits.
///
/// # Panics
/// When it does not, or the device gives no blocks out.
pub fn copied_blocks_give_the_same_bits(backend: &dyn Backend) {
    for (model_type, format, block_len) in
        [("qwen2", KvFormat::F32, 5), ("llama", KvFormat::F16, 16), ("deepseek_v2", KvFormat::F16, 8)]
    {
        let (plan, weights) = tiny_model(model_type, 1, WeightFormat::F32);
        let kv = KvLayout { format, block_len, num_blocks: 8 };
        let load = || backend.load(plan.clone(), weights.clone(), kv).unwrap();
        let tokens = Rng::new(3).tokens(2 * block_len + 4, plan.vocab_size);
        let (cached, rest) = tokens.split_at(2 * block_len);
        let mut step = StepInput::default();
        let mut first = load();
        step.push_sequence(cached, 0, &[5, 2]);
        step.output_rows.push(0);
        first.replay(&step).unwrap();
        let layout = first.block_layout().unwrap();
        let mut bytes = Vec::new();
        [5, 2].into_iter().for_each(|block| first.read_block(block, &mut bytes).unwrap());
        assert_eq!(bytes.len(), 2 * layout.bytes, "{model_type}");
        let mut second = load();
        assert_eq!(second.block_layout(), Some(layout.clone()));
        for (block, bytes) in [1, 7].into_iter().zip(bytes.chunks(layout.bytes)) {
            second.write_block(block, bytes).unwrap();
        }
        let go_on = |executable: &mut dyn Executable, table: &[u32]| {
            let mut step = StepInput::default();
            step.push_sequence(rest, cached.len(), table);
            step.output_rows.extend(0..rest.len() as u32);
            executable.replay(&step).unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        let expected = go_on(&mut *first, &[5, 2, 0]);
        assert!(go_on(&mut *second, &[1, 7, 3]) == expected, "{model_type}");
    }
}
