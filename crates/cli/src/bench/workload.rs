//! What `bench serve` sends, and when: lengths, arrivals, prompts that begin alike, and prompts of a file.

use std::path::Path;

use anyhow::{Context, Result, bail};
use lab::patterns::Random;
use serde_json::Value;

use crate::files;

/// How long prompts or answers are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Lengths {
    /// All the same, or as far apart as `--range-ratio` says.
    About(usize),
    /// Each as likely as the others.
    Uniform {
        /// The shortest.
        least: usize,
        /// The longest.
        most: usize,
    },
    /// Its logarithm is spread normally: many short ones and few that are very long, as people write.
    LogNormal {
        /// As many are shorter as are longer.
        median: usize,
        /// The deviation of the logarithm.
        sigma: f64,
        /// What is longer is cut to this.
        most: usize,
    },
}

impl std::str::FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed =
            || format!("`{text}` is no length: N, LEAST-MOST, or lognormal:MEDIAN:SIGMA with :MOST or without");
        let count = |text: &str| text.parse().ok().filter(|&count: &usize| count > 0).ok_or_else(malformed);
        if let Some(spread) = text.strip_prefix("lognormal:") {
            let mut parts = spread.split(':');
            let median = count(parts.next().unwrap_or_default())?;
            let sigma = parts.next().and_then(|sigma| sigma.parse().ok()).ok_or_else(malformed)?;
            let most = parts.next().map_or(Ok(usize::MAX), count)?;
            // With more, one in a thousand is three thousand times as long as the median.
            let is_sound = (0.0..=3.0).contains(&sigma) && parts.next().is_none() && most >= median;
            return if is_sound { Ok(Self::LogNormal { median, sigma, most }) } else { Err(malformed()) };
        }
        match text.split_once('-') {
            None => count(text).map(Self::About),
            Some((least, most)) => {
                let (least, most) = (count(least)?, count(most)?);
                if least <= most { Ok(Self::Uniform { least, most }) } else { Err(malformed()) }
            }
        }
    }
}

impl std::fmt::Display for Lengths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::About(len) => write!(f, "{len}"),
            Self::Uniform { least, most } => write!(f, "{least}-{most}"),
            Self::LogNormal { median, sigma, most: usize::MAX } => write!(f, "lognormal:{median}:{sigma}"),
            Self::LogNormal { median, sigma, most } => write!(f, "lognormal:{median}:{sigma}:{most}"),
        }
    }
}

/// What requests are drawn by: the same seed sends the same requests.
pub(super) trait Draw {
    /// A length, at least 1; where it is about one, within `ratio` of that.
    fn length(&mut self, lengths: Lengths, ratio: f64) -> usize;

    /// Seconds to the next arrival at `rate` a second: a gamma distribution of the shape `burstiness`, which 1 makes a Poisson
    /// process, less brings bursts, and more evens out.
    fn pause(&mut self, rate: f64, burstiness: f64) -> f64;

    /// Of the standard normal distribution (Box and Muller).
    fn normal(&mut self) -> f64;

    /// Of the gamma distribution of this shape and the scale 1 (Marsaglia and Tsang, 2000).
    fn gamma(&mut self, shape: f64) -> f64;

    /// So many words, with spaces between them.
    fn words(&mut self, count: usize) -> String;
}

impl Draw for Random {
    fn length(&mut self, lengths: Lengths, ratio: f64) -> usize {
        match lengths {
            Lengths::About(len) => {
                let spread = (2.0 * self.share() - 1.0) * ratio;
                ((len as f64 * (1.0 + spread)).round() as usize).max(1)
            }
            Lengths::Uniform { least, most } => least + self.below(most - least + 1),
            Lengths::LogNormal { median, sigma, most } => {
                let length = median as f64 * (sigma * self.normal()).exp();
                (length.round() as usize).clamp(1, most)
            }
        }
    }

    fn pause(&mut self, rate: f64, burstiness: f64) -> f64 {
        if burstiness == 1.0 {
            return -(1.0 - self.share()).ln() / rate;
        }
        self.gamma(burstiness) / (rate * burstiness)
    }

    fn normal(&mut self) -> f64 {
        let (radius, angle) = ((-2.0 * (1.0 - self.share()).ln()).sqrt(), std::f64::consts::TAU * self.share());
        radius * angle.cos()
    }

    fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            // A share's root makes the lower shape out of the next.
            return self.gamma(shape + 1.0) * (1.0 - self.share()).powf(1.0 / shape);
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && (1.0 - self.share()).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return d * v;
            }
        }
    }

    fn words(&mut self, count: usize) -> String {
        const WORDS: [&str; 16] = [
            "the", "moon", "was", "out", "and", "a", "small", "fox", "sat", "by", "old", "tree", "to", "hear", "its",
            "song",
        ];
        let word = |_| WORDS[(self.next() % WORDS.len() as u64) as usize];
        (0..count).map(word).collect::<Vec<_>>().join(" ")
    }
}

/// A prompt of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) prompt: String,
    /// Tokens of its answer, where the file says how long that is.
    pub(super) output_len: Option<usize>,
}

/// The prompts in a file: an object a line, or a list of them, each with `prompt` (and `output_len`), or with
/// `conversations` as ShareGPT has them, of which the first message is the prompt and the words of the second are counted.
pub(super) fn samples(path: &Path) -> Result<Vec<Sample>> {
    let shown = path.display();
    let text = files::read_text(path, "", files::TEXT_BYTES_MAX)?;
    let entries: Vec<(usize, Value)> = if text.trim_start().starts_with('[') {
        let list: Vec<Value> = serde_json::from_str(&text).with_context(|| format!("`{shown}` is not JSON"))?;
        list.into_iter().enumerate().collect()
    } else {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let parse = |(index, line): (usize, &str)| {
            let entry =
                serde_json::from_str(line).with_context(|| format!("line {} of `{shown}` is not JSON", index + 1))?;
            Ok((index, entry))
        };
        lines.map(parse).collect::<Result<_>>()?
    };
    let mut found = Vec::with_capacity(entries.len());
    for (index, entry) in entries {
        match sample(&entry) {
            Ok(sample) => found.extend(sample),
            Err(why) => bail!("entry {} of `{shown}`: {why}", index + 1),
        }
    }
    if found.is_empty() {
        bail!("`{shown}` has no prompt: expected objects with `prompt`, or with `conversations` as ShareGPT has them");
    }
    Ok(found)
}

/// None of a conversation that holds no answer, as ShareGPT has some.
fn sample(entry: &Value) -> Result<Option<Sample>, &'static str> {
    if let Some(prompt) = entry.get("prompt") {
        let prompt = prompt.as_str().filter(|prompt| !prompt.is_empty()).ok_or("`prompt` is no text")?;
        let output_len = match entry.get("output_len") {
            None | Some(Value::Null) => None,
            Some(len) => {
                Some(len.as_u64().filter(|&len| len > 0).ok_or("`output_len` is no count of tokens")? as usize)
            }
        };
        return Ok(Some(Sample { prompt: prompt.to_owned(), output_len }));
    }
    let messages = entry.get("conversations").and_then(Value::as_array);
    let messages = messages.ok_or("neither `prompt` nor `conversations` is there")?;
    let said = |index: usize| messages.get(index).and_then(|message| message["value"].as_str()).unwrap_or_default();
    let output_len = said(1).split_whitespace().count();
    if said(0).trim().is_empty() || output_len == 0 {
        return Ok(None);
    }
    Ok(Some(Sample { prompt: said(0).to_owned(), output_len: Some(output_len) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(lengths: &str, seed: u64) -> Vec<usize> {
        let (lengths, mut random) = (lengths.parse().unwrap(), Random(seed));
        (0..20_000).map(|_| random.length(lengths, 0.0)).collect()
    }

    fn mean(values: &[f64]) -> f64 {
        values.iter().sum::<f64>() / values.len() as f64
    }

    #[test]
    fn lengths_are_spread_as_they_are_said_to_be() {
        assert!(drawn("7", 1).iter().all(|&length| length == 7));
        let uniform = drawn("10-30", 1);
        assert_eq!((uniform.iter().min(), uniform.iter().max()), (Some(&10), Some(&30)));
        let uniform: Vec<f64> = uniform.iter().map(|&length| length as f64).collect();
        assert!((mean(&uniform) - 20.0).abs() < 0.2, "{}", mean(&uniform));
        let mut spread = drawn("lognormal:100:0.5", 1);
        spread.sort_unstable();
        assert!((97..=103).contains(&spread[10_000]), "{}", spread[10_000]);
        let logs: Vec<f64> = spread.iter().map(|&length| (length as f64).ln()).collect();
        let centre = mean(&logs);
        let deviation = mean(&logs.iter().map(|log| (log - centre).powi(2)).collect::<Vec<_>>()).sqrt();
        assert!((deviation - 0.5).abs() < 0.02, "{deviation}");
        assert!(drawn("lognormal:100:1.5:400", 1).iter().all(|length| (1..=400).contains(length)));
        // Seeded.
        assert_eq!(drawn("lognormal:100:0.5", 3), drawn("lognormal:100:0.5", 3));
        assert_ne!(drawn("lognormal:100:0.5", 3), drawn("lognormal:100:0.5", 4));
    }

    #[test]
    fn a_length_that_is_none_is_refused_with_what_one_is() {
        for text in [
            "",
            "0",
            "-",
            "5-",
            "9-4",
            "0-4",
            "x",
            "lognormal:",
            "lognormal:5",
            "lognormal:5:x",
            "lognormal:5:9",
            "lognormal:5:-1",
            "lognormal:5:0.5:4",
            "lognormal:5:0.5:9:9",
            "lognormal:5:nan",
        ] {
            assert!(text.parse::<Lengths>().is_err_and(|error| error.contains("lognormal:MEDIAN")), "{text}");
        }
        for text in ["5", "5-9", "lognormal:5:0.5", "lognormal:5:0.5:50"] {
            assert_eq!(text.parse::<Lengths>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn pauses_have_the_mean_and_the_bursts_that_are_asked_for() {
        for burstiness in [0.2, 1.0, 5.0] {
            let mut random = Random(2);
            let pauses: Vec<f64> = (0..40_000).map(|_| random.pause(50.0, burstiness)).collect();
            let centre = mean(&pauses);
            assert!((centre - 0.02).abs() < 0.001, "{burstiness}: {centre}");
            // Of a gamma distribution the square of the deviation, in means, is one by the shape.
            let variance = mean(&pauses.iter().map(|pause| (pause - centre).powi(2)).collect::<Vec<_>>());
            let found = centre * centre / variance;
            assert!((found / burstiness - 1.0).abs() < 0.1, "{burstiness}: {found}");
        }
    }

    #[test]
    fn prompts_of_a_file_are_read_in_each_form_and_refused_by_their_place() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("prompts");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            samples(&file).map_err(|error| format!("{error:#}"))
        };
        let lines = "{\"prompt\": \"One\", \"output_len\": 7}\n\n{\"prompt\": \"Two\"}\n\
            {\"conversations\": [{\"from\": \"human\", \"value\": \"Three\"}, {\"from\": \"gpt\", \"value\": \"a b  c\"}]}\n\
            {\"conversations\": [{\"from\": \"human\", \"value\": \"alone\"}]}\n";
        let expected = [("One", Some(7)), ("Two", None), ("Three", Some(3))];
        let expected = expected.map(|(prompt, output_len)| Sample { prompt: prompt.to_owned(), output_len });
        assert_eq!(read(lines).unwrap(), expected);
        let list = format!("[{}]", lines.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>().join(","));
        assert_eq!(read(&list).unwrap(), expected);
        for (text, says) in [
            ("{\"prompt\": \"a\"}\nnonsense", "line 2"),
            ("{\"prompt\": 7}", "entry 1"),
            ("{\"prompt\": \"a\", \"output_len\": 0}", "`output_len`"),
            ("{\"text\": \"a\"}", "neither `prompt`"),
            ("", "no prompt"),
            ("[", "not JSON"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
        assert!(samples(&folder.path().join("none")).is_err());
    }
}
