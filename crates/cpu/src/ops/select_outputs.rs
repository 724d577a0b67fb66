//! The rows that go on to the logits.

use plan::Value;

use crate::pool::{Turns, Worker};
use crate::program::{Compiler, Place, Work};
use crate::step::{Scratch, Step};

#[derive(Debug)]
struct SelectOutputs {
    x: Place,
    out: Place,
}

pub(super) fn compile(compiler: &Compiler<'_>, x: Value, out: Value) -> Box<dyn Work> {
    Box::new(SelectOutputs { x: compiler.place(x), out: compiler.place(out) })
}

impl Work for SelectOutputs {
    fn run(&self, step: &Step<'_>, _: &Turns, worker: &Worker<'_>, _: &mut Scratch) {
        step.each_row(worker, self.out, |row, out| {
            out.copy_from_slice(step.row(self.x, step.input.output_rows[row] as usize));
        });
    }
}
