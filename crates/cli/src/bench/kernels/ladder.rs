//! The GEMV ladder: one matrix by one vector, from the textbook loop to what the backend ships.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use backend::profile::Cost;
use cpu::ladder::{self, Rung};
use lab::cases::{Case, Projection};
use lab::measure::{Subject, Timer};
use lab::patterns::{Pattern, Random, SEED};
use lab::statistics::Summary;
use plan::KvFormat;
use tensor::{Tensor, WeightFormat};

use super::super::args::KernelsArgs;
use super::device::{Ceiling, GEMV, KernelDevice};
use super::report::KernelRow;
use crate::load::device::{CPU, cpu_backend};

/// The name of the last rung: the backend's own kernel.
const SHIPPED: &str = "shipped";
/// A pass over all copies by the slowest rung may take so long; then fewer copies do.
const MAX_PASS_SECONDS: f64 = 1.0;
/// Weights per second of a textbook loop, at least.
const SLOWEST_WEIGHTS_PER_S: f64 = 2e8;

/// Every rung at every place: those below the backend's kernel on one thread, that on as many as were asked for.
pub(super) fn rows(
    args: &KernelsArgs,
    projection: Projection,
    format: WeightFormat,
    places: &[KernelDevice],
    rotation_bytes: u64,
) -> Result<Vec<KernelRow>> {
    let Projection { in_features: k, out_features: n, .. } = projection;
    let shape = vec![n, k];
    let matrix_bytes = Tensor::byte_len(format, &shape)? as u64;
    let affordable = (MAX_PASS_SECONDS * SLOWEST_WEIGHTS_PER_S / (n * k) as f64) as u64;
    let copies = rotation_bytes.div_ceil(matrix_bytes).min(affordable).max(1);
    let (pattern, mut random) = (Pattern::new(format), Random(SEED));
    let mut weights = Vec::new();
    for _ in 0..copies {
        let bytes = pattern.cut(usize::try_from(matrix_bytes)?, random.next())?;
        weights.push(Tensor::new(format, shape.clone(), bytes)?);
    }
    let x: Vec<f32> = (0..k).map(|_| (random.next() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect();
    let expected = reference(&weights[0], &x);
    let cost = Cost { bytes: matrix_bytes, flops: 2 * (n * k) as u64 };
    let case = Case::Linear(Projection { bias: false, ..projection });

    let mut rows = Vec::new();
    let one_thread =
        KernelDevice { isa: None, threads: 1, backend: Box::new(cpu_backend(&args.device_settings(Some(1), None))?) };
    let row = |place: &KernelDevice,
               isa: cpu::IsaLevel,
               variants,
               copies,
               seconds: Option<&Summary>,
               ceiling: &Ceiling,
               error| {
        KernelRow {
            op: GEMV.to_owned(),
            shape: case.shape(),
            format: format.name().to_ascii_lowercase(),
            device: CPU.to_owned(),
            isa: isa.name().to_owned(),
            threads: place.threads,
            rows: 1,
            variants,
            copies,
            evicted: false,
            max_error: Some(error),
            ..KernelRow::of(seconds, cost, ceiling.read, ceiling.peak)
        }
    };
    let mut levels: Vec<_> = places.iter().filter_map(|place| place.isa).collect();
    levels.dedup();
    levels.sort_unstable();
    levels.dedup();
    for &rung in Rung::of(format) {
        let ceiling = Ceiling::measure(args, &one_thread, format, rotation_bytes)?;
        let scalar_only = [cpu::IsaLevel::Scalar];
        for &level in if rung.uses_vectors() { &levels[..] } else { &scalar_only[..] } {
            let Some(isa) = cpu::Isa::new(level) else { continue };
            let mut y = vec![0.0; n];
            ladder::gemv(rung, isa, &weights[0], &x, &mut y);
            let error = max_error(&y, &expected);
            let mut samples = Vec::new();
            for _ in 0..args.repetitions {
                let begun = Instant::now();
                for weight in &weights {
                    ladder::gemv(rung, isa, weight, black_box(&x), &mut y);
                    black_box(&y);
                }
                samples.push(begun.elapsed().as_secs_f64() / weights.len() as f64);
            }
            let seconds = Summary::of(&samples);
            let variants = vec![rung.name().to_owned()];
            rows.push(row(&one_thread, level, variants, weights.len(), Some(&seconds), &ceiling, error));
        }
    }
    drop(weights);
    let mut subject = Subject::new(&case, format, KvFormat::F16, 0, rotation_bytes)?;
    for place in places {
        let Some(level) = place.isa else { continue };
        let error = subject.max_error(&*place.backend, 1)?;
        let ceiling = Ceiling::measure(args, place, format, rotation_bytes)?;
        let measured = Timer::new(&mut subject, &*place.backend, args.repetitions, 1, rotation_bytes).measure(1)?;
        let mut variants = vec![SHIPPED.to_owned()];
        variants.extend(measured.variants);
        rows.push(row(place, level, variants, measured.copies, measured.seconds.as_ref(), &ceiling, error));
    }
    Ok(rows)
}

/// W · x in f64.
fn reference(weight: &Tensor, x: &[f32]) -> Vec<f64> {
    let mut row = vec![0.0; weight.row_len()];
    let dot = |index| {
        weight.row_to_f32(index, &mut row);
        row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
    };
    (0..weight.num_rows()).map(dot).collect()
}

/// The largest difference, by the largest magnitude.
fn max_error(found: &[f32], expected: &[f64]) -> f64 {
    let largest = expected.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
    let errors = found.iter().zip(expected).map(|(found, expected)| (f64::from(*found) - expected).abs());
    errors.fold(0.0, f64::max) / largest.max(f64::MIN_POSITIVE)
}
