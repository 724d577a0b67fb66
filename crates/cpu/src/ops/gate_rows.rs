//! Each row times the sigmoid of one number.

use plan::Value;

use crate::kernels::elementwise::GateRow;
use crate::pool::{Turns, Worker};
use crate::profile::Facts;
use crate::program::{Compiler, Place, Work};
use crate::step::{Scratch, Step};

#[derive(Debug)]
struct GateRows {
    x: Place,
    gate: Place,
    out: Place,
}

pub(super) fn compile(compiler: &Compiler<'_>, [x, gate]: [Value; 2], out: Value) -> Box<dyn Work> {
    let [x, gate, out] = [x, gate, out].map(|value| compiler.place(value));
    Box::new(GateRows { x, gate, out })
}

impl Work for GateRows {
    fn run(&self, step: &Step<'_>, _: &Turns, worker: &Worker<'_>, _: &mut Scratch) {
        step.each_row(worker, self.out, |row, out| {
            step.isa.run(GateRow { gate: step.row(self.gate, row)[0], x: step.row(self.x, row), out });
        });
    }

    fn variant(&self, facts: &Facts<'_>) -> String {
        facts.isa.to_string()
    }
}
