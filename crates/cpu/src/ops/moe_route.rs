//! Normalised rows, the router's projection of these, and the experts that it chooses.

use plan::{Linear, Norm, Router, Value};

use super::route::Route;
use crate::pool::{Turns, Worker};
use crate::profile::Facts;
use crate::program::{Compiler, Place, Work};
use crate::projection::{self, Projection};
use crate::step::{Scratch, Step};

#[derive(Debug)]
struct MoeRoute {
    project: Box<dyn Work>,
    route: Route,
}

pub(super) fn compile(
    compiler: &mut Compiler<'_>,
    x: Value,
    norm: Norm,
    gate: Linear,
    router: Router,
    results: [Value; 2],
) -> Box<dyn Work> {
    let plan = compiler.source.plan;
    let (width, rows) = (plan.weight(gate.weight).shape[0], plan.value(x).rows);
    let logits = Place { start: compiler.expert_rows, width, rows };
    let linear = gate.into();
    let projection = Projection { linear, up: None, out: logits, residual: None, makes_logits: false, peaks: None };
    let project = projection::compile(compiler, x, Some(norm), false, vec![projection]);
    Box::new(MoeRoute { project, route: Route::new(compiler, router, logits, results) })
}

impl Work for MoeRoute {
    fn run(&self, step: &Step<'_>, turns: &Turns, worker: &Worker<'_>, scratch: &mut Scratch) {
        self.project.run(step, turns, worker, scratch);
        worker.barrier();
        self.route.run(step, turns, worker, scratch);
    }

    fn variant(&self, facts: &Facts<'_>) -> String {
        self.project.variant(facts)
    }
}
