//! Normalised rows, or slices of rows.

use plan::{Norm, Value};

use crate::kernels::rms_norm;
use crate::pool::{Turns, Worker};
use crate::profile::Facts;
use crate::program::{Compiler, NormRef, Place, Work};
use crate::step::{Scratch, Step};

#[derive(Debug)]
struct RmsNorm {
    x: Place,
    norm: NormRef,
    out: Place,
}

pub(super) fn compile(compiler: &Compiler<'_>, x: Value, norm: Norm, out: Value) -> Box<dyn Work> {
    Box::new(RmsNorm { x: compiler.place(x), norm: norm.into(), out: compiler.place(out) })
}

impl Work for RmsNorm {
    fn run(&self, step: &Step<'_>, _: &Turns, worker: &Worker<'_>, _: &mut Scratch) {
        let NormRef { weight, eps } = self.norm;
        step.each_row(worker, self.out, |row, out| {
            step.isa.run(rms_norm::RmsNorm { x: step.row(self.x, row), weight: &step.vectors[weight], eps, out });
        });
    }

    fn variant(&self, facts: &Facts<'_>) -> String {
        facts.isa.to_string()
    }
}
