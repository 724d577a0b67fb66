//! Keys and values go to the cache.

use plan::{Rows, Value};

use crate::kv_cache::LayerPlace;
use crate::pool::{Turns, Worker};
use crate::program::{Compiler, Place, Work};
use crate::step::{Scratch, Step};

#[derive(Debug)]
struct KvWrite {
    layer: usize,
    k: Place,
    v: Place,
}

pub(super) fn compile(compiler: &Compiler<'_>, layer: usize, k: Value, v: Value) -> Box<dyn Work> {
    Box::new(KvWrite { layer, k: compiler.place(k), v: compiler.place(v) })
}

impl Work for KvWrite {
    fn run(&self, step: &Step<'_>, _: &Turns, worker: &Worker<'_>, _: &mut Scratch) {
        let LayerPlace { kv_heads: heads, head_dim, .. } = *step.layers[self.layer].heads();
        for item in worker.share(step.num_rows(Rows::Tokens) * heads) {
            let (row, head) = (item / heads, item % heads);
            let features = head * head_dim..(head + 1) * head_dim;
            let (k, v) = (&step.row(self.k, row)[features.clone()], &step.row(self.v, row)[features]);
            step.kv_write(self.layer, row, head, k, v);
        }
    }
}
