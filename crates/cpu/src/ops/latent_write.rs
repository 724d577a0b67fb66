//! Rows go to the cache of a latent layer.

use plan::{Rows, Value};

use crate::pool::{Turns, Worker};
use crate::program::{Compiler, Place, Work};
use crate::step::{Scratch, Step};

#[derive(Debug)]
struct LatentWrite {
    layer: usize,
    latent: Place,
    rope: Place,
}

pub(super) fn compile(compiler: &Compiler<'_>, layer: usize, latent: Value, rope: Value) -> Box<dyn Work> {
    Box::new(LatentWrite { layer, latent: compiler.place(latent), rope: compiler.place(rope) })
}

impl Work for LatentWrite {
    fn run(&self, step: &Step<'_>, _: &Turns, worker: &Worker<'_>, _: &mut Scratch) {
        for row in worker.share(step.num_rows(Rows::Tokens)) {
            step.latent_write(self.layer, row, step.row(self.latent, row), step.row(self.rope, row));
        }
    }
}
