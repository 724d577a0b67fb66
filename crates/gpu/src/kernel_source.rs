//! The kernel text for compilers that take it as one string.

use crate::params::layout_assertions;

/// The files of `kernels/all.h`, in its order.
const KERNELS: [(&str, &str); 7] = [
    ("parts.h", include_str!("../kernels/parts.h")),
    ("embed.h", include_str!("../kernels/embed.h")),
    ("rms_norm.h", include_str!("../kernels/rms_norm.h")),
    ("linear.h", include_str!("../kernels/linear.h")),
    ("rope_kv_write.h", include_str!("../kernels/rope_kv_write.h")),
    ("attention.h", include_str!("../kernels/attention.h")),
    ("elementwise.h", include_str!("../kernels/elementwise.h")),
];

/// Every kernel in CUDA C++, self-contained, with the checks of struct layouts.
pub fn cuda() -> String {
    let port = [("port/cuda.h", include_str!("../kernels/port/cuda.h"))];
    let mut text = String::new();
    for (name, file) in port.iter().chain(&KERNELS) {
        text += &format!("#line 1 \"{name}\"\n{}", file.replace("#pragma once", ""));
    }
    // Structs of kernels that only tests have are not in the text.
    let shipped = |line: &&str| !line.contains("FaultParams");
    text += "#line 1 \"params.rs\"\n";
    layout_assertions().lines().filter(shipped).for_each(|line| text.extend([line, "\n"]));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_all_h_is_in_the_text() {
        let all = include_str!("../kernels/all.h");
        let included: Vec<_> = all.lines().filter_map(|line| line.strip_prefix("#include ")).collect();
        let expected: Vec<_> = KERNELS.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        assert_eq!(included, expected);
        assert!(!cuda().contains("#include"));
    }

    /// What the address spaces of Metal allow and C++ does not notice: a pointer or reference without one.
    #[test]
    fn every_pointer_and_reference_says_where_it_points() {
        let mut faults = vec![];
        for (name, text) in KERNELS {
            for (index, line) in text.lines().enumerate() {
                let code = line.split("//").next().unwrap_or_default();
                let words: Vec<_> = code.split(|c: char| !(c.is_alphanumeric() || "_&*<>".contains(c))).collect();
                for word in words {
                    let pointer = word.ends_with('*') && word.len() > 1;
                    let reference = word.ends_with('&') && word.len() > 1 && !word.ends_with("&&");
                    let spelled = ["CONST ", "GROUP ", "THREAD "].iter().any(|space| code.contains(space));
                    if pointer || (reference && !spelled) {
                        faults.push(format!("{name}:{}: `{word}`", index + 1));
                    }
                }
                for banned in ["lambda", "std::", "double", "size_t", "long ", "if constexpr"] {
                    if code.contains(banned) {
                        faults.push(format!("{name}:{}: `{banned}`", index + 1));
                    }
                }
            }
        }
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }
}
