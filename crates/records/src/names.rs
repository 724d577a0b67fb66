//! What files and folders of records are called.

/// The folder of a machine, from the name of its processor or GPU and the number of processors that the program may use:
/// `nvidia-h200`, `amd-epyc-9b14-2-processors`. `device` is `cpu` or the name of a GPU's driver, and `description` begins
/// with the name of the hardware, up to its first comma.
pub fn machine_name(device: &str, description: &str, processors: Option<usize>) -> String {
    let hardware = description.split(',').next().unwrap_or_default();
    let name = slug(hardware);
    let name = if name.is_empty() { slug(device) } else { name };
    match processors {
        Some(processors) if device == "cpu" => {
            let plural = if processors == 1 { "" } else { "s" };
            format!("{name}-{processors}-processor{plural}")
        }
        _ => name,
    }
}

/// The file of a record: its day and time, since a day can have several, and the commit that was built.
///
/// `date` is RFC 3339 in UTC. `2026-11-27T13:45:09.5Z` and `fcf3919` give `2026-11-27-134509-fcf3919.json`; a build of an
/// unknown commit is called `unknown`, and `wave`, if given, is the last word.
pub fn file_name(date: &str, commit: Option<&str>, wave: Option<&str>) -> String {
    let (day, time) = date.split_once('T').unwrap_or((date, ""));
    let time: String = time.chars().filter(char::is_ascii_digit).take(6).collect();
    // An edited checkout has a `+` behind its commit.
    let commit = commit.map(|commit| slug(&commit.replace('+', "-edited"))).filter(|commit| !commit.is_empty());
    let mut words = vec![day.to_owned(), time, commit.unwrap_or_else(|| "unknown".to_owned())];
    words.extend(wave.map(slug));
    words.retain(|word| !word.is_empty());
    format!("{}.json", words.join("-"))
}

/// Lower case letters, digits and single hyphens: safe as a name of a file on every system.
fn slug(text: &str) -> String {
    let mut out = String::new();
    // Trade marks say nothing about which machine it is.
    for letter in text.replace("(R)", "").replace("(TM)", "").replace("(tm)", "").chars() {
        if letter.is_ascii_alphanumeric() {
            out.push(letter.to_ascii_lowercase());
        } else if !out.is_empty() && !out.ends_with('-') {
            out.push('-');
        }
    }
    out.truncate(out.trim_end_matches('-').len());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_named_by_their_hardware() {
        let cpu = "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz, avx512 with VNNI, 2 threads";
        assert_eq!(machine_name("cpu", cpu, Some(2)), "intel-xeon-platinum-8481c-cpu-2-70ghz-2-processors");
        assert_eq!(machine_name("cuda", "NVIDIA H200, compute capability 9.0", Some(16)), "nvidia-h200");
        assert_eq!(machine_name("cpu", "", Some(1)), "cpu-1-processor");
        assert_eq!(machine_name("cpu", "../../etc/x, y", None), "etc-x");
    }

    #[test]
    fn files_begin_with_their_day_and_end_with_their_commit() {
        assert_eq!(file_name("2026-11-27T13:45:09.25Z", Some("fcf3919"), None), "2026-11-27-134509-fcf3919.json");
        assert_eq!(
            file_name("2026-11-27T13:45:09Z", Some("fcf3919+"), Some("Wave 3/b")),
            "2026-11-27-134509-fcf3919-edited-wave-3-b.json"
        );
        assert_eq!(file_name("2026-11-27", None, None), "2026-11-27-unknown.json");
    }
}
