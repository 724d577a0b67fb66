//! The sum of two values.

use plan::Value;

use crate::kernels::elementwise;
use crate::pool::{Turns, Worker};
use crate::program::{Compiler, Place, Work};
use crate::step::{Scratch, Step};

#[derive(Debug)]
struct Add {
    a: Place,
    b: Place,
    out: Place,
}

pub(super) fn compile(compiler: &Compiler<'_>, a: Value, b: Value, out: Value) -> Box<dyn Work> {
    let [a, b, out] = [a, b, out].map(|value| compiler.place(value));
    Box::new(Add { a, b, out })
}

impl Work for Add {
    fn run(&self, step: &Step<'_>, _: &Turns, worker: &Worker<'_>, _: &mut Scratch) {
        step.each_row(worker, self.out, |row, out| {
            elementwise::add(step.row(self.a, row), step.row(self.b, row), out);
        });
    }
}
