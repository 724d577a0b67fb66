//! Names that somebody may have meant.

/// The most that a message shows.
const SHOWN: usize = 5;

/// Those of `known` that are nearest to `name`: they contain it, or are a few letters away from it. The nearest first.
pub(super) fn matches<'a>(name: &str, known: &'a [String]) -> Vec<&'a str> {
    let furthest = name.len().div_ceil(3);
    let near = |known: &'a String| {
        let distance = strsim::levenshtein(name, known);
        let is_part = !name.is_empty() && known.contains(name);
        (is_part || distance <= furthest).then_some((!is_part, distance, known.as_str()))
    };
    let mut found: Vec<_> = known.iter().filter_map(near).collect();
    found.sort_unstable();
    found.into_iter().take(SHOWN).map(|(.., known)| known).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_contains_the_name_comes_first_and_far_names_do_not_come() {
        let known: Vec<String> =
            ["add_f32", "rms_norm_f32", "norm_linear_f32_m1", "linear_f32_m1"].map(str::to_owned).into();
        assert_eq!(matches("rms_nrom_f32", &known), ["rms_norm_f32"]);
        assert_eq!(matches("linear", &known), ["linear_f32_m1", "norm_linear_f32_m1"]);
        assert!(matches("quaternion", &known).is_empty());
        assert!(matches("", &known).is_empty());
    }
}
