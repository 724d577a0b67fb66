//! Norms of heads, rotary embedding, and the write to the cache.

use plan::{Norm, Rows, Value};

use crate::kv_cache::LayerPlace;
use crate::pool::{Turns, Worker};
use crate::profile::Facts;
use crate::program::{Compiler, NormRef, Place, Work};
use crate::step::{Scratch, Step};

/// q/k-norm, RoPE, and the append to the cache.
#[derive(Debug)]
struct RopeKvWrite {
    layer: usize,
    q: Place,
    k: Place,
    v: Place,
    q_norm: Option<NormRef>,
    k_norm: Option<NormRef>,
    angles: Place,
    q_out: Place,
}

pub(super) fn compile(
    compiler: &mut Compiler<'_>,
    [q, k, v, q_out]: [Value; 4],
    [q_norm, k_norm]: [Option<Norm>; 2],
    rope: usize,
    layer: usize,
) -> Box<dyn Work> {
    let head_dim = compiler.source.layers[layer].heads().head_dim;
    compiler.sizes.worker.rows = compiler.sizes.worker.rows.max(head_dim);
    Box::new(RopeKvWrite {
        layer,
        q: compiler.place(q),
        k: compiler.place(k),
        v: compiler.place(v),
        q_norm: q_norm.map(NormRef::from),
        k_norm: k_norm.map(NormRef::from),
        angles: compiler.angles[rope],
        q_out: compiler.place(q_out),
    })
}

impl Work for RopeKvWrite {
    fn run(&self, step: &Step<'_>, _: &Turns, worker: &Worker<'_>, scratch: &mut Scratch) {
        let LayerPlace { kv_heads, head_dim, .. } = *step.layers[self.layer].heads();
        let heads = self.q.width / head_dim;
        for item in worker.share(step.num_rows(Rows::Tokens) * (heads + kv_heads)) {
            let (row, head) = (item / (heads + kv_heads), item % (heads + kv_heads));
            let angles = step.row(self.angles, row);
            if head < heads {
                let features = head * head_dim..(head + 1) * head_dim;
                let start = self.q_out.start + row * self.q_out.width + features.start;
                // SAFETY: each (row, head) is in one worker's share.
                let out = unsafe { step.arena.write(start..start + head_dim) };
                step.norm_and_rotate(&step.row(self.q, row)[features], self.q_norm, angles, out);
            } else {
                let head = head - heads;
                let features = head * head_dim..(head + 1) * head_dim;
                let k = &mut scratch.rows[..head_dim];
                step.norm_and_rotate(&step.row(self.k, row)[features.clone()], self.k_norm, angles, k);
                step.kv_write(self.layer, row, head, k, &step.row(self.v, row)[features]);
            }
        }
    }

    fn variant(&self, facts: &Facts<'_>) -> String {
        facts.isa.to_string()
    }
}
