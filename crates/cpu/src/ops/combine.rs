//! The sum of what the experts of a row made, each times its weight.

use plan::Value;

use crate::kernels::elementwise::WeightedSum;
use crate::pool::{Turns, Worker};
use crate::profile::Facts;
use crate::program::{Compiler, Place, Work};
use crate::step::{Scratch, Step};

#[derive(Debug)]
struct Combine {
    x: Place,
    weights: Place,
    out: Place,
}

pub(super) fn compile(compiler: &Compiler<'_>, [x, weights]: [Value; 2], out: Value) -> Box<dyn Work> {
    let [x, weights, out] = [x, weights, out].map(|value| compiler.place(value));
    Box::new(Combine { x, weights, out })
}

impl Work for Combine {
    fn run(&self, step: &Step<'_>, _: &Turns, worker: &Worker<'_>, _: &mut Scratch) {
        let stride = self.out.width;
        step.each_row(worker, self.out, |row, out| {
            let (x, weights) = (step.row(self.x, row), step.row(self.weights, row));
            step.isa.run(WeightedSum { stride, x, weights, residual: None, out });
        });
    }

    fn variant(&self, facts: &Facts<'_>) -> String {
        facts.isa.to_string()
    }
}
