//! Heads, turned by their positions.

use plan::Value;

use crate::kernels::rope::rotate;
use crate::pool::{Turns, Worker};
use crate::program::{Compiler, Place, Work};
use crate::step::{Scratch, Step};

#[derive(Debug)]
struct Rope {
    x: Place,
    head_dim: usize,
    angles: Place,
    out: Place,
}

pub(super) fn compile(compiler: &Compiler<'_>, x: Value, rope: usize, out: Value) -> Box<dyn Work> {
    let head_dim = compiler.source.plan.ropes[rope].head_dim;
    Box::new(Rope { x: compiler.place(x), head_dim, angles: compiler.angles[rope], out: compiler.place(out) })
}

impl Work for Rope {
    fn run(&self, step: &Step<'_>, _: &Turns, worker: &Worker<'_>, _: &mut Scratch) {
        step.each_row(worker, self.out, |row, out| {
            out.copy_from_slice(step.row(self.x, row));
            let angles = step.row(self.angles, row);
            out.chunks_exact_mut(self.head_dim).for_each(|head| rotate(head, angles));
        });
    }
}
