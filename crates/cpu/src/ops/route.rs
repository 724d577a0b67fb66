//! The experts of each row by their logits, and the weights of these.

use plan::{Router, Value};

use crate::kernels::route;
use crate::pool::{Turns, Worker};
use crate::profile::Facts;
use crate::program::{Compiler, Place, Work};
use crate::step::{Scratch, Step};

/// Chooses the experts of each row.
#[derive(Debug)]
pub(super) struct Route {
    router: Router,
    logits: Place,
    ids: Place,
    weights: Place,
}

impl Route {
    /// `logits` may lie anywhere in the arena.
    pub(super) fn new(compiler: &mut Compiler<'_>, router: Router, logits: Place, [ids, weights]: [Value; 2]) -> Self {
        let sums = &mut compiler.sizes.worker.sums;
        *sums = (*sums).max(route::scratch_len(logits.width));
        Self { router, logits, ids: compiler.place(ids), weights: compiler.place(weights) }
    }
}

pub(super) fn compile(
    compiler: &mut Compiler<'_>,
    logits: Value,
    router: Router,
    results: [Value; 2],
) -> Box<dyn Work> {
    let logits = compiler.place(logits);
    Box::new(Route::new(compiler, router, logits, results))
}

impl Work for Route {
    fn run(&self, step: &Step<'_>, _: &Turns, worker: &Worker<'_>, scratch: &mut Scratch) {
        let correction = self.router.correction.map(|weight| step.vectors[weight.index()].as_slice());
        for row in worker.share(step.num_rows(self.ids.rows)) {
            let at = |place: Place| place.start + row * place.width..place.start + (row + 1) * place.width;
            // SAFETY: each row is in one worker's share, and the two results lie apart.
            let (ids, weights) = unsafe { (step.arena.write(at(self.ids)), step.arena.write(at(self.weights))) };
            let (router, logits, scratch) = (&self.router, step.row(self.logits, row), &mut scratch.sums[..]);
            step.isa.run(route::Route { router, logits, correction, scratch, ids, weights });
        }
    }

    fn variant(&self, facts: &Facts<'_>) -> String {
        facts.isa.to_string()
    }
}
