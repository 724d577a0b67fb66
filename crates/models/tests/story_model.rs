//! A real trained checkpoint in both containers, through the readers: the GGUF file (F16) and the safetensors folder
//! (F32) of the 260 K-parameter story model write the same English.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use formats::Checkpoint;
use plan::reference::Interpreter;
use plan::{KvFormat, KvLayout, StepInput, fuse};
use testing::Golden;
use testing::tolerance::nmse;

#[path = "../../cli/src/gguf_architectures.rs"]
#[allow(dead_code, reason = "the program uses more of it")]
mod gguf_architectures;

const KV: KvLayout = KvLayout { format: KvFormat::F32, block_len: 16, num_blocks: 16 };

#[test]
fn both_containers_give_the_text_of_transformers() {
    for file in ["models/stories260K-hf", "models/stories260K-f16.gguf"] {
        let path = match testing::golden::test_data(file) {
            Ok(path) => path,
            Err(reason) => return skipped(&reason),
        };
        let architectures = gguf_architectures::all();
        let checkpoint = Checkpoint::open(&path, &|path| Ok(Bytes::from(std::fs::read(path)?)), architectures).unwrap();
        let shape = |shape: &[u64]| shape.iter().map(|&n| usize::try_from(n).unwrap()).collect::<Vec<_>>();
        let shapes: HashMap<_, _> =
            checkpoint.tensor_infos().map(|info| (info.name.clone(), shape(&info.shape))).collect();
        let plan = models::build_plan(&checkpoint.config, &shapes).unwrap();
        assert_eq!(models::unread(&plan, checkpoint.tensor_names()), [""; 0]);
        let weights = plan.weights.iter().map(|weight| checkpoint.tensor(&weight.name).unwrap()).collect();
        let mut interpreter = Interpreter::new(Arc::new(fuse(plan)), weights, KV).unwrap();

        let expected = Golden::read_expected("stories260K");
        let mut prompt = StepInput::default();
        let table: Vec<u32> = (0..KV.num_blocks as u32).collect();
        prompt.push_sequence(&expected.prompt_token_ids, 0, &table);
        prompt.output_rows = (0..expected.prompt_token_ids.len() as u32).collect();
        let logits: Vec<f64> = expected.logits.iter().flatten().map(|&x| f64::from(x)).collect();
        // F16 rounds each weight by at most 2^-12 of itself, about 1e-4 in the mean: squared, over some ten roundings.
        let error = nmse(interpreter.run(&prompt).unwrap(), &logits);
        let most = if file.ends_with("gguf") { 1e-6 } else { 1e-10 };
        assert!(error <= most, "{file}: NMSE {error:e}");

        let mut next = expected.greedy.prompt_token_ids.clone();
        let mut position = 0;
        for (index, (&token, margin)) in expected.greedy.token_ids.iter().zip(&expected.greedy.margins).enumerate() {
            let mut step = StepInput::default();
            step.push_sequence(&next, position, &table);
            step.output_rows = vec![next.len() as u32 - 1];
            position += next.len();
            let logits = interpreter.run(&step).unwrap();
            let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
            assert!(best == token as usize || *margin < 0.02, "{file}: token {index} is {best}, margin {margin}");
            next = vec![token];
        }
    }
}

#[expect(clippy::print_stderr, reason = "a test that leaves something out says so")]
fn skipped(reason: &str) {
    eprintln!("skipped: {reason}");
}
