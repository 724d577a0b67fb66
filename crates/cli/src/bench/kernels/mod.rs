//! `hotmetal bench kernels`: each op of a model by itself, in every weight format and at every instruction set, through the
//! same trait as whole models, and the steps from a textbook loop to the shipped kernel.

#[cfg(test)]
mod case_tests;
mod device;
mod ladder;
pub(super) mod report;

use anyhow::{Context, Result, bail};
use backend::BackendError;
use backend::profile::Cost;
use lab::cases::{Case, Projection, cases_of};
use lab::measure::{Measured, Subject, Timer};
use lab::patterns::{Random, SEED};
use lab::statistics::Summary;
use plan::KvFormat;
use tensor::WeightFormat;

use super::args::{KernelsArgs, OutputFormat};
use super::progress::progress;
use super::report::Facts;
use super::{html, shapes};
use crate::load::device::{CPU, cpu_backend, gpu_backend};
use crate::load::find;
use crate::load::plan::plan_of;
use crate::output::{note, stdout};
use device::{Ceiling, GEMV, KernelDevice, kernel_devices};
use report::{KernelReport, KernelRow, Rotation};

/// Sizes among which the rotation is chosen, in MiB.
const ROTATIONS_MIB: [u64; 4] = [64, 128, 256, 512];
/// A buffer that is read no more than this much faster than the largest is held by no cache to speak of.
const NO_CACHE: f64 = 1.1;
/// What the quick set multiplies by.
const QUICK_FORMATS: [WeightFormat; 2] = [WeightFormat::Q8_0, WeightFormat::Q4_0];

/// Runs `hotmetal bench kernels`.
pub(super) fn kernels(args: &KernelsArgs) -> Result<()> {
    check(args)?;
    let (model, cases) = cases(args)?;
    let places = kernel_devices(args)?;
    let first = places.first().context("there is no instruction set to measure with")?;
    let mut vendor = if args.vendor { Some(vendor(args)?) } else { None };
    let formats = formats(args)?;
    let rotation = rotation(args)?;
    let facts = Facts::collect(args.repetitions, Some(SEED));
    let mut report = KernelReport::new(first.backend.device(), facts, model, rotation);
    let kv_format = args.kv_type.map_or(KvFormat::F16, Into::into);

    let subjects: Vec<_> = cases
        .iter()
        .filter(|case| args.wants(case.op()))
        .flat_map(|case| {
            // One format stands for all where the op has no matrix.
            let formats = if case.has_matrices() { &formats[..] } else { &formats[..1] };
            formats.iter().map(move |&format| (case, format))
        })
        .collect();
    let has_ladder = args.device() == CPU && (args.names(GEMV) || (args.all && args.wants(GEMV)));
    if args.is_quick() {
        note(
            "the quick set is measured where no flag says more: --all measures every op, format, instruction set and step",
        );
    }
    let num_subjects = subjects.len();
    let progress = progress(num_subjects * places.len() * args.rows().len(), "");
    for (index, (case, format)) in subjects.into_iter().enumerate() {
        // The bar is for terminals alone.
        if progress.is_hidden() {
            note(&format!("{} of {num_subjects}: {} {} {}", index + 1, case.op(), case.shape(), format.name()));
        }
        let mut subject = Subject::new(case, format, kv_format, args.depth, report.rotation.bytes)?;
        for place in &places {
            let mut rows = Vec::new();
            for &count in args.rows() {
                progress.set_message(format!("{} {} × {count}", case.op(), case.shape()));
                // The comparison first: it takes programs of its own.
                match subject.max_error(&*place.backend, count) {
                    Ok(error) => rows.push((count, error)),
                    Err(error) if matches!(error.downcast_ref(), Some(BackendError::Unsupported { .. })) => {
                        progress.suspend(|| note(&format!("left out: {error}")));
                        break;
                    }
                    Err(error) => return Err(error).with_context(|| format!("{} {}", case.op(), case.shape())),
                }
            }
            // Attention multiplies floats, whatever the weights are.
            let multiplied = if case.has_matrices() { format } else { WeightFormat::F32 };
            let ceiling = Ceiling::measure(args, place, multiplied, report.rotation.bytes)?;
            let max_rows = args.rows().iter().copied().max().unwrap_or(1);
            let bytes = report.rotation.bytes;
            let mut timer = Timer::new(&mut subject, &*place.backend, args.repetitions, max_rows, bytes);
            for (count, max_error) in rows {
                progress.set_message(format!("{} {} × {count}", case.op(), case.shape()));
                let measured = timer.measure(count)?;
                let row = row(case, format, kv_format, place, count, &measured, &ceiling, max_error);
                let partner = match &mut vendor {
                    Some(vendor) => vendor_row(vendor, case, format, &row, args.repetitions, bytes, &ceiling)?,
                    None => None,
                };
                emit(args, &mut report, row, &progress)?;
                if let Some(partner) = partner {
                    emit(args, &mut report, partner, &progress)?;
                }
                progress.inc(1);
            }
        }
    }
    if has_ladder && let Some((projection, _)) = ladder_shape(&cases) {
        for format in formats {
            for row in ladder::rows(args, projection, format, &places, report.rotation.bytes)? {
                emit(args, &mut report, row, &progress)?;
            }
        }
    }
    progress.finish_and_clear();
    match args.output {
        OutputFormat::Md => stdout(&report.as_markdown())?,
        OutputFormat::Csv => stdout(&report.as_csv())?,
        OutputFormat::Json => stdout(&report.as_json())?,
        OutputFormat::Jsonl => {}
    }
    match &args.report {
        Some(path) => html::write(path, &[], &[report]),
        None => Ok(()),
    }
}

/// The library of the GPU's vendor.
fn vendor(args: &KernelsArgs) -> Result<gpu::Vendor> {
    match gpu_backend(&args.device_settings(None, None))? {
        Some(gpu) => Ok(gpu.vendor()?),
        None => bail!("--vendor compares with cuBLASLt: expected --device cuda, found `{}`", args.device),
    }
}

/// What the vendor's library takes for the product in `row`; `None` where there is none that it computes.
fn vendor_row(
    vendor: &mut gpu::Vendor,
    case: &Case,
    format: WeightFormat,
    row: &KernelRow,
    repetitions: usize,
    rotation_bytes: u64,
    ceiling: &Ceiling,
) -> Result<Option<KernelRow>> {
    let numbers = match format {
        WeightFormat::F16 => gpu::Numbers::F16,
        WeightFormat::BF16 => gpu::Numbers::BF16,
        _ => return Ok(None),
    };
    let Some((out_features, in_features)) = case.product() else { return Ok(None) };
    let product = gpu::Product { rows: row.rows, out_features, in_features, numbers };
    let mut random = Random(SEED);
    let times = vendor.measure(&product, rotation_bytes, repetitions, &mut || random.next())?;
    let weights = (out_features * in_features) as u64;
    let cost = Cost { bytes: 2 * weights, flops: 2 * weights * row.rows as u64 };
    Ok(Some(KernelRow {
        op: row.op.clone(),
        shape: row.shape.clone(),
        format: row.format.clone(),
        device: row.device.clone(),
        isa: "cublaslt".to_owned(),
        threads: row.threads,
        rows: row.rows,
        variants: vec!["cuBLASLt, the product alone".to_owned()],
        copies: times.copies,
        max_error: Some(times.max_error),
        ..KernelRow::of(Some(&Summary::of(&times.seconds)), cost, ceiling.read, ceiling.peak)
    }))
}

fn emit(
    args: &KernelsArgs,
    report: &mut KernelReport,
    row: KernelRow,
    progress: &indicatif::ProgressBar,
) -> Result<()> {
    if args.output == OutputFormat::Jsonl {
        progress.suspend(|| stdout(&report.as_json_line(&row)))?;
    }
    report.rows.push(row);
    Ok(())
}

fn check(args: &KernelsArgs) -> Result<()> {
    if args.repetitions == 0 {
        bail!("-r 0 measures nothing: expected 1 repetition or more");
    }
    /// Beyond any prompt's step: a mistyped number should not take all memory.
    const MAX_ROWS: usize = 1 << 16;
    if let Some(rows) = args.rows.iter().find(|&&rows| rows == 0 || rows > MAX_ROWS) {
        bail!("--rows {rows}: expected 1 to {MAX_ROWS}");
    }
    /// Beyond any model's context.
    const MAX_DEPTH: usize = 1 << 20;
    if args.depth > MAX_DEPTH {
        bail!("--depth {}: expected at most {MAX_DEPTH} tokens", args.depth);
    }
    if args.rotate.is_some_and(|mib| mib == 0 || mib > 1 << 20) {
        bail!("--rotate: expected 1 to {} MiB", 1 << 20);
    }
    for (flag, is_given) in [("--isa", !args.isa.is_empty()), ("--no-repack", args.no_repack)] {
        if args.device() != CPU && is_given {
            bail!("{flag} is about the CPU kernels, but the device is `{}`", args.device);
        }
    }
    Ok(())
}

fn formats(args: &KernelsArgs) -> Result<Vec<WeightFormat>> {
    if args.format.is_empty() {
        return Ok(if args.all { WeightFormat::ALL.to_vec() } else { QUICK_FORMATS.to_vec() });
    }
    args.format.iter().map(|name| shapes::format_of(name)).collect()
}

/// The model's name, and its ops: as they run first, then the textbook ones that these are made of.
fn cases(args: &KernelsArgs) -> Result<(String, Vec<Case>)> {
    let (model, textbook) = match &args.shape {
        Some(name) => (name.clone(), shapes::plan_of(name)?),
        None => {
            let (checkpoint, name) = find::open(args.model.as_deref(), true)?;
            let plan = plan_of(&checkpoint).with_context(|| format!("cannot load `{name}`"))?;
            (name, plan)
        }
    };
    let fused = plan::fuse(textbook.clone());
    let all = cases_of(&[&fused, &textbook]);
    let known: Vec<_> = all.iter().map(Case::op).chain([GEMV]).collect();
    if let Some(unknown) = args.op.iter().find(|op| !known.contains(&op.as_str())) {
        let mut names = known;
        names.sort_unstable();
        names.dedup();
        bail!("`{model}` has no op `{unknown}`; it has: {}", names.join(", "));
    }
    let ladder_only = args.op.iter().all(|op| op == GEMV) && !args.op.is_empty();
    // The ladder takes its shape from the model's projections.
    let wanted = |case: &Case| args.wants(case.op()) || (ladder_only && matches!(case, Case::Linear(_)));
    let mut cases: Vec<Case> = all.into_iter().filter(|case| wanted(case)).collect();
    if args.op.is_empty() && !args.all {
        let as_they_run = cases_of(&[&fused]);
        cases.retain(|case| as_they_run.contains(case));
    }
    Ok((model, cases))
}

/// How much weights rotate through: as asked, or the least at which reading is as slow as it gets.
fn rotation(args: &KernelsArgs) -> Result<Rotation> {
    if let Some(mib) = args.rotate {
        return Ok(Rotation { bytes: mib << 20, reason: "as asked".to_owned() });
    }
    let largest = ROTATIONS_MIB[ROTATIONS_MIB.len() - 1];
    if args.device() != CPU {
        return Ok(Rotation { bytes: largest << 20, reason: "more than the caches of devices hold".to_owned() });
    }
    let cpu = cpu_backend(&args.device_settings(None, None))?;
    let read = |mib: u64| cpu.read_bandwidth_of((mib << 20) as usize) / 1e9;
    let slowest = read(largest);
    let measured: Vec<_> =
        ROTATIONS_MIB.iter().map(|&mib| (mib, if mib == largest { slowest } else { read(mib) })).collect();
    let chosen = measured.iter().find(|(_, gb_s)| *gb_s <= NO_CACHE * slowest).map_or(largest, |&(mib, _)| mib);
    let curve: Vec<_> = measured.iter().map(|(mib, gb_s)| format!("{mib} MiB at {gb_s:.1}")).collect();
    let reason = format!("the least that is read as slowly as more; {} GB/s", curve.join(", "));
    Ok(Rotation { bytes: chosen << 20, reason })
}

#[expect(clippy::too_many_arguments, reason = "a row has that many columns")]
fn row(
    case: &Case,
    format: WeightFormat,
    kv_format: KvFormat,
    place: &KernelDevice,
    rows: usize,
    measured: &Measured,
    ceiling: &Ceiling,
    max_error: f64,
) -> KernelRow {
    let name = |name: &str| name.to_ascii_lowercase();
    // GPUs have matrix instructions for attention, whose numbers are not those of f32.
    let multiplies = case.has_matrices() || case.is_bound_by_memory() && place.isa.is_some();
    let peak = if multiplies { ceiling.peak } else { None };
    let format = match () {
        () if case.has_matrices() => name(format.name()),
        () if case.has_cache() => name(&format!("{kv_format:?}")),
        () => name(WeightFormat::F32.name()),
    };
    KernelRow {
        op: case.op().to_owned(),
        shape: case.shape(),
        format,
        device: place.backend.device().name.clone(),
        isa: place.isa.map_or("none", cpu::IsaLevel::name).to_owned(),
        threads: place.threads,
        rows,
        variants: measured.variants.clone(),
        copies: measured.copies,
        evicted: measured.evicted,
        max_error: Some(max_error),
        ..KernelRow::of(
            measured.seconds.as_ref(),
            case.counted(measured.cost, rows),
            case.is_bound_by_memory().then_some(ceiling.read).flatten(),
            peak,
        )
    }
}

/// The projection that the ladder climbs: the largest of a layer, with its number of weights.
fn ladder_shape(cases: &[Case]) -> Option<(Projection, usize)> {
    let projections = cases.iter().flat_map(Case::projections);
    projections.map(|p| (p, p.in_features * p.out_features)).max_by_key(|&(_, weights)| weights)
}
