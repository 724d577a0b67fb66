//! Columns in another order.

use plan::Value;

use crate::pool::{Turns, Worker};
use crate::program::{Compiler, Place, Work};
use crate::step::{Scratch, Step};

#[derive(Debug)]
struct GatherColumns {
    x: Place,
    /// An index into the plan's orders.
    order: usize,
    out: Place,
}

pub(super) fn compile(compiler: &Compiler<'_>, x: Value, order: usize, out: Value) -> Box<dyn Work> {
    Box::new(GatherColumns { x: compiler.place(x), order, out: compiler.place(out) })
}

impl Work for GatherColumns {
    fn run(&self, step: &Step<'_>, _: &Turns, worker: &Worker<'_>, _: &mut Scratch) {
        step.each_row(worker, self.out, |row, out| {
            let x = step.row(self.x, row);
            out.iter_mut().zip(&step.orders[self.order]).for_each(|(out, &column)| *out = x[column as usize]);
        });
    }
}
