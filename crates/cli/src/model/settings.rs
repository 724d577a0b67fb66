//! Where and how a model is loaded and runs, as plain values.

use std::path::PathBuf;

use crate::load::device::DeviceSettings;
use crate::load::rope::RopeSettings;
use crate::load::sizes::CacheSettings;
use crate::packing::mix::Mix;

/// Where and how a model is loaded and runs.
#[derive(Clone, Debug)]
pub(crate) struct ModelSettings {
    pub(crate) cache: CacheSettings,
    pub(crate) rope: RopeSettings,
    pub(crate) device: DeviceSettings,
    /// What matrices become when they are loaded; what the file has if nothing is said.
    pub(crate) quant: Option<Mix>,
    /// A Jinja file in place of the model's chat template.
    pub(crate) chat_template: Option<PathBuf>,
    /// Whether all weights are read first, and a NaN or an infinity in one is refused.
    pub(crate) check_tensors: bool,
    /// Passes that do not change the plan, as [`crate::load::plan::pass`] names them: for measuring what they are
    /// worth.
    pub(crate) without_passes: Vec<&'static str>,
    /// Whether patterns of a tokenizer are accepted that can take very long on hostile text.
    pub(crate) allow_unknown_patterns: bool,
}

impl ModelSettings {
    /// As without any flag, but on this device.
    pub(crate) fn on(device: DeviceSettings) -> Self {
        Self {
            cache: CacheSettings::default(),
            rope: RopeSettings::default(),
            device,
            quant: None,
            chat_template: None,
            check_tensors: false,
            without_passes: Vec::new(),
            allow_unknown_patterns: false,
        }
    }
}
