//! The product of an activated gate and what it lets through.

use plan::{Activation, Value};

use crate::kernels::elementwise;
use crate::pool::{Turns, Worker};
use crate::profile::Facts;
use crate::program::{Compiler, Place, Work};
use crate::step::{Scratch, Step};

#[derive(Debug)]
struct ActivateMul {
    activation: Activation,
    gate: Place,
    up: Place,
    out: Place,
}

pub(super) fn compile(
    compiler: &Compiler<'_>,
    [gate, up]: [Value; 2],
    activation: Activation,
    out: Value,
) -> Box<dyn Work> {
    let [gate, up, out] = [gate, up, out].map(|value| compiler.place(value));
    Box::new(ActivateMul { activation, gate, up, out })
}

impl Work for ActivateMul {
    fn run(&self, step: &Step<'_>, _: &Turns, worker: &Worker<'_>, _: &mut Scratch) {
        let activation = self.activation;
        step.each_row(worker, self.out, |row, out| {
            out.copy_from_slice(step.row(self.gate, row));
            step.isa.run(elementwise::ActivateMul { activation, gate_and_out: out, up: step.row(self.up, row) });
        });
    }

    fn variant(&self, facts: &Facts<'_>) -> String {
        facts.isa.to_string()
    }
}
