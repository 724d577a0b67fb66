//! The kernel text for Metal as one string. The build script includes this file too.

use std::io::Error;
use std::path::{Path, PathBuf};

use crate::params::layout_assertions;

/// Structs of kernels for one CUDA architecture alone (`kernels/sm90`), which neither Metal nor the simulator sees.
pub(crate) const OF_SM90: [&str; 17] = [
    "ActivationParams",
    "SumActivationParams",
    "GemmSegment",
    "GemmParams",
    "GroupRowsParams",
    "GemmExperts",
    "ExpertGemmParams",
    "ExpertMmaParams",
    "ExpertPairParams",
    "RouterRowsParams<f32>",
    "RouterRowsParams<f16>",
    "RouterRowsParams<bf16>",
    "MlaClusterParams",
    "PromptParams",
    "HeadWeightsParams",
    "ExpandLatentParams",
    "ExpandedParams",
];

/// The file that includes all others.
const ROOT: &str = "metal.h";

/// Every kernel in the Metal Shading Language, from the files in `folder`, with the checks of struct layouts; or the file
/// that cannot be read.
pub(crate) fn metal(folder: &Path) -> Result<String, (PathBuf, Error)> {
    let mut text = String::new();
    append(folder, ROOT, &mut text)?;
    // Structs of kernels that only tests have, or CUDA, are not in the text.
    let is_in_text = |name: &str| name != "FaultParams" && !OF_SM90.contains(&name);
    Ok(text + "#line 1 \"params.rs\"\n" + &layout_assertions(is_in_text))
}

/// Appends the file `name`, with what it includes in place of the lines that do so.
fn append(folder: &Path, name: &str, text: &mut String) -> Result<(), (PathBuf, Error)> {
    let path = folder.join(name);
    let file = std::fs::read_to_string(&path).map_err(|error| (path, error))?;
    *text += &format!("#line 1 \"{name}\"\n");
    for (index, line) in file.lines().enumerate() {
        let included = line.strip_prefix("#include \"").and_then(|rest| rest.split_once('"'));
        if let Some((included, _)) = included {
            append(folder, included, text)?;
            *text += &format!("#line {} \"{name}\"\n", index + 2);
        } else {
            // Each file is included once.
            *text += if line == "#pragma once" { "" } else { line };
            text.push('\n');
        }
    }
    Ok(())
}
