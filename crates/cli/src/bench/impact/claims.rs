//! What the documents that this project grew from claim for its techniques, and how each claim is measured: the same model
//! with the technique and without it, through switches that commands have.

use super::super::args::Test;
use crate::load::device::{self, DeviceSettings};
use crate::model::settings::ModelSettings;

/// Ops that multiply by weights, and that a GPU can compute with its plainest kernel.
const PROJECTIONS: [&str; 5] = ["linear", "norm_linear", "linear_residual", "norm_glu", "logits"];

/// How a claim is measured on a device, or why it cannot be.
type Measure = fn(&Here<'_>) -> Result<Pair, String>;

/// A claim of the documents.
pub(super) struct Claim {
    /// What `--only` takes.
    pub(super) name: &'static str,
    /// The technique.
    pub(super) what: &'static str,
    /// How many times as fast it makes a model, at least and at most.
    pub(super) claimed: [f64; 2],
    measure: Measure,
}

/// All of them, those next to each other that need the same weights.
pub(super) static CLAIMS: [Claim; 8] = [
    Claim { name: "fp4", what: "FP4 multiplied from its codes", claimed: [2.4, 2.4], measure: fp4 },
    Claim { name: "simd-f16", what: "vector kernels for F16", claimed: [1.17, 1.17], measure: simd_f16 },
    Claim { name: "simd-q8_0", what: "vector kernels for Q8_0", claimed: [1.25, 1.25], measure: simd_q8_0 },
    Claim { name: "fusion", what: "fused ops", claimed: [1.15, 1.20], measure: fusion },
    Claim { name: "recording", what: "recorded steps", claimed: [1.10, 1.20], measure: recording },
    Claim { name: "attention", what: "attention by matrix instructions", claimed: [2.0, 2.0], measure: attention },
    Claim { name: "experts", what: "fused mixture of experts", claimed: [10.0, 10.0], measure: experts },
    Claim { name: "fp4-table", what: "FP4 decoded by a table", claimed: [1.15, 1.15], measure: fp4_table },
];

/// Where claims are measured, and on which shapes.
pub(super) struct Here<'a> {
    pub(super) device: &'a str,
    pub(super) threads: Option<usize>,
    pub(super) shape: &'a str,
    pub(super) moe_shape: &'a str,
    pub(super) n_prompt: usize,
    pub(super) n_gen: usize,
}

/// The two sides of a claim.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) test: Test,
    pub(super) shape: String,
    pub(super) with: Side,
    pub(super) without: Side,
}

/// A model as it is measured.
#[derive(Debug)]
pub(super) struct Side {
    /// What is particular about it: `Q8_0, --without fusion=all`.
    pub(super) label: String,
    /// As `--format` takes it.
    pub(super) format: &'static str,
    pub(super) settings: ModelSettings,
}

impl Claim {
    /// How it is measured, or why it cannot be.
    pub(super) fn pair(&self, here: &Here<'_>) -> Result<Pair, String> {
        (self.measure)(here)
    }
}

impl Here<'_> {
    fn is_gpu(&self) -> bool {
        device::is_gpu(self.device)
    }

    fn device_settings(&self) -> DeviceSettings {
        DeviceSettings { threads: self.threads, ..DeviceSettings::on(self.device) }
    }

    /// A model in `format`, as every command computes it.
    fn usual(&self, format: &'static str) -> Side {
        let settings = ModelSettings::on(self.device_settings());
        Side { label: format.to_ascii_uppercase(), format, settings }
    }

    /// The same with `flag`, which `change` does.
    fn changed(&self, format: &'static str, flag: &str, change: impl FnOnce(&mut ModelSettings)) -> Side {
        let mut side = self.usual(format);
        side.label.push_str(&format!(", {flag}"));
        change(&mut side.settings);
        side
    }

    /// Decoding with one side and the other.
    fn decoding(&self, with: Side, without: Side) -> Pair {
        let test = Test { prompt: 0, generate: self.n_gen, depth: 0, batch: 1 };
        Pair { test, shape: self.shape.to_owned(), with, without }
    }

    /// A model in `format` whose GPU computes each of `ops` with `kernel` wherever it can; why not, where it never can.
    fn forced(&self, format: &'static str, ops: &[&str], kernel: &str) -> Result<Side, String> {
        let flags: Vec<String> = ops.iter().map(|op| format!("{op}={kernel}")).collect();
        let variants = flags.iter().map(|flag| flag.parse().map_err(|error| format!("{error}")));
        let variants = variants.collect::<Result<Vec<gpu::ForcedVariant>, String>>()?;
        let flag = format!("--force-variant {}", flags.join(","));
        let side = self.changed(format, &flag, |settings| settings.device.gpu.force_variant = variants);
        device::gpu_backend(&side.settings.device).map_err(|error| format!("{error:#}"))?;
        Ok(side)
    }
}

/// The other side's weights are dequantised before anything is timed, so the claim, in whose measurement each step
/// dequantises them, is met by less.
fn fp4(here: &Here<'_>) -> Result<Pair, String> {
    let mut dequantised = here.usual("f16");
    dequantised.label.push_str(", dequantised beforehand");
    Ok(here.decoding(here.usual("mxfp4"), dequantised))
}

fn fp4_table(_here: &Here<'_>) -> Result<Pair, String> {
    Err("each device has kernels with one way to decode FP4, so no flag chooses another".to_owned())
}

fn simd_f16(here: &Here<'_>) -> Result<Pair, String> {
    simd(here, "f16")
}

fn simd_q8_0(here: &Here<'_>) -> Result<Pair, String> {
    simd(here, "q8_0")
}

/// Against the plainest kernels that there are.
fn simd(here: &Here<'_>, format: &'static str) -> Result<Pair, String> {
    let plain = if here.is_gpu() {
        here.forced(format, &PROJECTIONS, "linear")?
    } else {
        let scalar = cpu::IsaLevel::Scalar;
        if cpu::Isa::best().level() == scalar {
            return Err(format!("this processor has no level beside --isa {}", scalar.name()));
        }
        let flag = format!("--isa {}", scalar.name());
        here.changed(format, &flag, |settings| settings.device.isa = Some(scalar))
    };
    Ok(here.decoding(here.usual(format), plain))
}

fn fusion(here: &Here<'_>) -> Result<Pair, String> {
    let all = || plan::FUSIONS.iter().map(|fusion| fusion.name).collect();
    let textbook = here.changed("q8_0", "--without fusion=all", |settings| settings.without_passes = all());
    Ok(here.decoding(here.usual("q8_0"), textbook))
}

fn recording(here: &Here<'_>) -> Result<Pair, String> {
    let eager = here.device_settings().without_recording().map_err(|error| format!("{error:#}"))?;
    let eager = here.changed("q8_0", "--without recording", |settings| settings.device = eager);
    Ok(here.decoding(here.usual("q8_0"), eager))
}

fn attention(here: &Here<'_>) -> Result<Pair, String> {
    if !here.is_gpu() {
        return Err(
            "--force-variant chooses among kernels of GPUs, and the CPU has one kernel for attention".to_owned()
        );
    }
    // This fails on a device that has no kernel of attention with matrix instructions.
    here.forced("q8_0", &["attention"], "attention_f16")?;
    let plain = here.forced("q8_0", &["attention"], "attention")?;
    let test = Test { prompt: here.n_prompt, generate: 0, depth: 0, batch: 1 };
    Ok(Pair { test, ..here.decoding(here.usual("q8_0"), plain) })
}

fn experts(here: &Here<'_>) -> Result<Pair, String> {
    let textbook = here.changed("q4_0", "--without fusion=moe", |settings| settings.without_passes = vec!["moe"]);
    Ok(Pair { shape: here.moe_shape.to_owned(), ..here.decoding(here.usual("q4_0"), textbook) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(device: &str) -> Here<'_> {
        Here { device, threads: Some(1), shape: "tiny", moe_shape: "tiny-moe", n_prompt: 8, n_gen: 2 }
    }

    /// The two sides must differ by what the claim is about, or the factor would be one of noise.
    #[test]
    fn the_sides_of_each_claim_differ() {
        for device in ["cpu", "sim"] {
            for claim in &CLAIMS {
                let Ok(Pair { with, without, .. }) = claim.pair(&here(device)) else { continue };
                let is_other = with.format != without.format
                    || with.settings.without_passes != without.settings.without_passes
                    || with.settings.device.isa != without.settings.device.isa
                    || with.settings.device.gpu.eager != without.settings.device.gpu.eager
                    || with.settings.device.gpu.force_variant != without.settings.device.gpu.force_variant;
                assert!(is_other && with.label != without.label, "{} on {device}: {with:?} {without:?}", claim.name);
            }
        }
    }

    #[test]
    fn what_a_device_cannot_leave_out_is_not_measured_there_and_says_why() {
        let refused = |device: &'static str| {
            let why = |claim: &Claim| Some((claim.name, claim.pair(&here(device)).err()?));
            CLAIMS.iter().filter_map(why).collect::<Vec<_>>()
        };
        let names = |device| refused(device).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names("sim"), ["fp4-table"]);
        let on_cpu = refused("cpu");
        let why = |name| on_cpu.iter().find(|(known, _)| *known == name).map_or("", |(_, why)| why);
        assert!(why("recording").contains("steps are not recorded on `cpu`"), "{on_cpu:?}");
        assert!(why("attention").contains("--force-variant"), "{on_cpu:?}");
        assert!(on_cpu.iter().all(|(name, _)| ["recording", "attention", "fp4-table"].contains(name)
            || cpu::Isa::best().level() == cpu::IsaLevel::Scalar));
    }
}
