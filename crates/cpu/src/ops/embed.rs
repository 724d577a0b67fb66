//! Rows of a table.

use plan::{Value, WeightId};

use crate::pool::{Turns, Worker};
use crate::program::{Compiler, Place, Work};
use crate::step::{Scratch, Step};

#[derive(Debug)]
struct Embed {
    table: usize,
    out: Place,
}

pub(super) fn compile(compiler: &Compiler<'_>, table: WeightId, out: Value) -> Box<dyn Work> {
    Box::new(Embed { table: table.index(), out: compiler.place(out) })
}

impl Work for Embed {
    fn run(&self, step: &Step<'_>, _: &Turns, worker: &Worker<'_>, _: &mut Scratch) {
        step.each_row(worker, self.out, |row, features| {
            step.weights[self.table].row_to_f32(step.input.token_ids[row] as usize, features);
        });
    }
}
