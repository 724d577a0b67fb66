//! Queries and the row of latent attention, taken apart, normalised and turned, and the row's write to the cache.

use plan::{LatentColumns, LatentLayer, Norm, Rows, Value};

use crate::kernels::rms_norm::RmsNorm;
use crate::kernels::rope::rotate;
use crate::pool::{Turns, Worker};
use crate::profile::Facts;
use crate::program::{Compiler, NormRef, Place, Work};
use crate::step::{Scratch, Step};

#[derive(Debug)]
struct LatentRopeWrite {
    layer: usize,
    row: LatentLayer,
    q: Place,
    kv: Place,
    columns: LatentColumns,
    norm: NormRef,
    angles: Place,
    q_nope: Place,
    q_rope: Place,
}

pub(super) fn compile(
    compiler: &mut Compiler<'_>,
    [q, kv, q_nope, q_rope]: [Value; 4],
    columns: LatentColumns,
    norm: Norm,
    rope: usize,
    layer: usize,
) -> Box<dyn Work> {
    let row = compiler.source.plan.kv_layers[layer].latent().expect("`verify` wants a latent layer here");
    // The row's latent numbers, those normalised, and what turns.
    compiler.sizes.worker.rows = compiler.sizes.worker.rows.max(2 * row.dim + row.rope);
    Box::new(LatentRopeWrite {
        layer,
        row,
        q: compiler.place(q),
        kv: compiler.place(kv),
        columns,
        norm: norm.into(),
        angles: compiler.angles[rope],
        q_nope: compiler.place(q_nope),
        q_rope: compiler.place(q_rope),
    })
}

fn gather(x: &[f32], columns: &[u32], out: &mut [f32]) {
    out.iter_mut().zip(columns).for_each(|(out, &column)| *out = x[column as usize]);
}

impl Work for LatentRopeWrite {
    fn run(&self, step: &Step<'_>, _: &Turns, worker: &Worker<'_>, scratch: &mut Scratch) {
        let &Self { row: LatentLayer { dim, rope }, columns, .. } = self;
        let heads = self.q_rope.width / rope;
        let nope = self.q_nope.width / heads;
        for item in worker.share(step.num_rows(Rows::Tokens) * (heads + 1)) {
            let (row, head) = (item / (heads + 1), item % (heads + 1));
            let angles = step.row(self.angles, row);
            if head < heads {
                let parts = [(self.q_nope, columns.q_nope, nope), (self.q_rope, columns.q_rope, rope)];
                let [_, turned] = parts.map(|(place, order, width)| {
                    let start = place.start + row * place.width + head * width;
                    // SAFETY: each (row, head) is in one worker's share.
                    let out = unsafe { step.arena.write(start..start + width) };
                    gather(step.row(self.q, row), &step.orders[order][head * width..(head + 1) * width], out);
                    out
                });
                rotate(turned, angles);
            } else {
                let (latent, rest) = scratch.rows.split_at_mut(dim);
                let (normed, rest) = rest.split_at_mut(dim);
                let turned = &mut rest[..rope];
                let kv = step.row(self.kv, row);
                gather(kv, &step.orders[columns.latent], latent);
                gather(kv, &step.orders[columns.rope], turned);
                let NormRef { weight, eps } = self.norm;
                step.isa.run(RmsNorm { x: latent, weight: &step.vectors[weight], eps, out: normed });
                rotate(turned, angles);
                step.latent_write(self.layer, row, normed, turned);
            }
        }
    }

    fn variant(&self, facts: &Facts<'_>) -> String {
        facts.isa.to_string()
    }
}
