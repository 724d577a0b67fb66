//! The oracle of `stream`. The server includes this file, because its readers are private.

use engine::StopStrings;

use crate::reply::{ById, CONTROL, Function, Part, Reasoning, ReplyReader, THINK_TAGS, ToolSyntax, push_part};

/// Stands where a piece of the text ends.
const CUT: char = '\u{1}';
/// Stands before each stop string, behind the text.
const STOP: char = '\u{2}';
/// No marker, no JSON and no header has this character.
const SENTINEL: &str = "☃";

/// A model's text through the readers of replies and of stop strings: cut at any places it gives what it gives in one
/// piece, and nothing of it is lost.
///
/// The input is a byte for the syntax of calls (counted from the digit 0, its low five bits), a byte of flags (two bits for the reasoning, then
/// which markers count as tokens, whether the text goes on within content, and whether the model has ended it), and the
/// text with its cuts, behind which stop strings may stand.
pub(super) fn stream(data: &[u8]) {
    let [syntax, flags, text @ ..] = data else { return };
    let text = String::from_utf8_lossy(text);
    let mut sections = text.split(STOP);
    let cut_text = sections.next().unwrap_or_default();
    let pieces: Vec<&str> = cut_text.split(CUT).collect();
    let text = pieces.concat();
    let characters: Vec<&str> = text.split("").collect();
    let stops: Vec<&str> = sections.collect();
    check_stops(&stops, &text, [&pieces, &characters]);
    let setting = Setting::new(*syntax, *flags);
    let whole = setting.read(&[&text]);
    for cut in [&pieces, &characters] {
        assert_eq!(setting.read(cut), whole, "{setting:?} in pieces, of {text:?}");
    }
    check_calls(&setting, &whole);
    check_loss(&setting, &whole, &text);
    check_what_follows(&setting, &text);
}

/// How a text is read.
#[derive(Debug)]
struct Setting {
    syntax: Option<ToolSyntax>,
    reasoning: Reasoning,
    by_id: ById,
    within_content: bool,
    cut: bool,
}

/// What a reader made of a text.
#[derive(Debug, PartialEq, Eq)]
struct Reading {
    parts: Vec<Part>,
    warnings: Vec<String>,
    num_calls: usize,
}

impl Setting {
    fn new(syntax: u8, flags: u8) -> Self {
        use ToolSyntax::{
            Apertus, Apriel, Command, DeepSeek, DeepSeekFenced, DeepSeekV4, DeepSeekV32, Functionary, Gemma4, Glm,
            Harmony, Hermes, Kimi, Lfm2, Llama3, MiniMax, MistralArgs, MistralIds, MistralList, Nemotron, Phi4,
            Pythonic, Qwen3Coder, Recipients, SeedOss,
        };
        // New ones come last, because inputs that were found once name them by their place.
        let known = [
            Hermes,
            Llama3,
            MistralList,
            MistralArgs,
            DeepSeek,
            Glm,
            Harmony,
            MistralIds,
            Qwen3Coder,
            SeedOss,
            MiniMax,
            DeepSeekV32,
            DeepSeekV4,
            Kimi,
            Gemma4,
            Command,
            Apertus,
            Lfm2,
            Nemotron,
            Apriel,
            Phi4,
            Functionary,
            Pythonic,
            DeepSeekFenced,
            Recipients,
        ];
        let reasoning = [Reasoning::None, Reasoning::Tagged, Reasoning::Open, Reasoning::Channels];
        let has = |bit: u8| flags >> bit & 1 == 1;
        Self {
            syntax: usize::from(syntax.wrapping_sub(b'0') % 32)
                .checked_sub(1)
                .and_then(|index| known.get(index).copied()),
            reasoning: reasoning[usize::from(flags % 4)],
            by_id: ById { calls: has(2), reasoning: has(3) },
            within_content: has(4),
            cut: has(5),
        }
    }

    fn reader(&self) -> ReplyReader {
        let function = |name: &str| Function { name: name.to_owned(), strings: vec!["s".to_owned()] };
        let functions = vec![function("f"), function("g_2")];
        let reader = ReplyReader::new(self.reasoning, self.syntax, functions).by_id(self.by_id);
        if self.within_content { reader.within_content() } else { reader }
    }

    fn read(&self, pieces: &[&str]) -> Reading {
        let mut reader = self.reader();
        let (mut parts, mut new) = (Vec::new(), Vec::new());
        for piece in pieces {
            reader.push(piece, &mut new);
            new.drain(..).for_each(|part| push_part(&mut parts, part));
        }
        reader.finish(&mut new, self.cut);
        new.drain(..).for_each(|part| push_part(&mut parts, part));
        Reading { parts, warnings: reader.warnings().to_vec(), num_calls: reader.num_calls() }
    }
}

/// The text in order, without its calls; and the calls that stand.
fn taken_apart(parts: &[Part]) -> (String, String, Vec<(&str, String)>) {
    let (mut reasoning, mut content, mut calls) = (String::new(), String::new(), Vec::new());
    for part in parts {
        match part {
            Part::Reasoning(text) => reasoning.push_str(text),
            Part::Content(text) => content.push_str(text),
            Part::Call { name } => calls.push((name.as_str(), String::new())),
            Part::Arguments(text) => {
                calls.last_mut().expect("arguments stand behind their call").1.push_str(text);
            }
            Part::NoCall(text) => {
                calls.pop().expect("a call that is taken back was given out");
                content.push_str(text);
            }
        }
    }
    (reasoning, content, calls)
}

/// Each call has a name and its arguments are an object; the last one's may be cut.
fn check_calls(setting: &Setting, reading: &Reading) {
    let (_, _, calls) = taken_apart(&reading.parts);
    let whole = if setting.cut { reading.num_calls } else { calls.len() };
    assert!(whole <= calls.len() && calls.len() <= whole + 1, "{setting:?}: {reading:?}");
    assert_eq!(reading.num_calls, whole, "{setting:?}: {reading:?}");
    for (name, arguments) in &calls[..whole] {
        assert!(!name.is_empty(), "a call without a name, {setting:?}: {reading:?}");
        let arguments = serde_json::from_str::<serde_json::Map<_, _>>(arguments);
        assert!(arguments.is_ok(), "{arguments:?}, {setting:?}: {reading:?}");
    }
}

/// Without calls, reasoning and content are all of the text but the markers of reasoning and the space behind them.
/// With calls, what stands before the first of them and behind the last is where it was.
fn check_loss(setting: &Setting, reading: &Reading, text: &str) {
    let (reasoning, content, calls) = taken_apart(&reading.parts);
    if setting.reasoning == Reasoning::Channels {
        let has_marker = text.contains("<|start|>") || text.contains("<|channel|>") || text.contains(" to=");
        if setting.syntax.is_none() && !has_marker && !text.contains("<|") {
            assert_eq!(without_controls(setting, text), content, "{setting:?}");
        }
        return;
    }
    let (thought, rest) = thought_and_rest(setting, text);
    assert_eq!(without_controls(setting, &thought), reasoning, "{setting:?} of {text:?}");
    let rest = without_controls(setting, &rest);
    // What names whom a message is for is no content.
    if setting.syntax == Some(ToolSyntax::Recipients) && (rest.contains(">>>") || rest.starts_with("all")) {
        return;
    }
    if calls.is_empty() {
        assert_eq!(rest, content, "{setting:?} of {text:?}");
        return;
    }
    let texts: Vec<&str> = reading
        .parts
        .iter()
        .filter_map(|part| match part {
            Part::Content(text) | Part::NoCall(text) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    if let (Some(Part::Content(first)), Some(text)) =
        (reading.parts.iter().find(|part| !matches!(part, Part::Reasoning(_))), texts.first())
    {
        assert!(rest.starts_with(text), "{first:?} does not begin the content, {setting:?} of {rest:?}");
    }
    if let Some(Part::Content(last)) = reading.parts.last() {
        assert!(rest.ends_with(last), "{last:?} does not end the content, {setting:?} of {rest:?}");
    }
    let mut place = 0;
    for text in texts {
        let found = rest[place..].find(text);
        place += found.unwrap_or_else(|| panic!("{text:?} is not in its place, {setting:?} of {rest:?}")) + text.len();
    }
}

/// Reasoning and what comes behind it, in plain words: one tag at the beginning, one at the end of it.
fn thought_and_rest(setting: &Setting, text: &str) -> (String, String) {
    let all = (String::new(), text.to_owned());
    if setting.reasoning == Reasoning::None || setting.within_content {
        return all;
    }
    let marked = |marker: &str| if setting.by_id.reasoning { format!("{CONTROL}{marker}") } else { marker.to_owned() };
    let begun = text.trim_start().strip_prefix(marked(THINK_TAGS.open().text).as_str());
    let thought = match begun {
        Some(thought) => thought,
        None if setting.reasoning == Reasoning::Open => text,
        None => return all,
    };
    let thought = thought.trim_start_matches('\n');
    match thought.split_once(marked(THINK_TAGS.close().text).as_str()) {
        Some((thought, rest)) => (thought.to_owned(), rest.trim_start().to_owned()),
        None => (thought.to_owned(), String::new()),
    }
}

/// Readers that know tokens by their ids take the marks of the others out.
fn without_controls(setting: &Setting, text: &str) -> String {
    if setting.by_id == ById::default() { text.to_owned() } else { text.replace(CONTROL, "") }
}

/// While no call is open, whatever comes next is shown.
fn check_what_follows(setting: &Setting, text: &str) {
    let mut reader = setting.reader();
    let (mut parts, mut new) = (Vec::new(), Vec::new());
    reader.push(text, &mut new);
    new.drain(..).for_each(|part| push_part(&mut parts, part));
    let (_, _, calls) = taken_apart(&parts);
    if calls.len() != reader.num_calls() || text.contains(SENTINEL) {
        return;
    }
    reader.push(SENTINEL, &mut new);
    reader.finish(&mut new, false);
    new.drain(..).for_each(|part| push_part(&mut parts, part));
    let shown = |part: &Part| match part {
        Part::Content(text) | Part::Reasoning(text) | Part::NoCall(text) | Part::Arguments(text) => {
            text.contains(SENTINEL)
        }
        Part::Call { name } => name.contains(SENTINEL),
    };
    assert!(parts.iter().any(shown), "{setting:?} loses what comes behind {text:?}: {parts:?}");
}

/// The text ends where its shortest beginning that ends with a stop string does, without the longest such string.
fn check_stops(stops: &[&str], text: &str, cuts: [&Vec<&str>; 2]) {
    let Ok(watch) = StopStrings::new(stops) else { return };
    let ends = |end: usize| {
        let found = stops.iter().enumerate().filter(|(_, stop)| text.as_bytes()[..end].ends_with(stop.as_bytes()));
        found.max_by_key(|&(index, stop)| (stop.len(), !index))
    };
    let expected =
        (1..=text.len()).find_map(|end| ends(end).map(|(index, stop)| (&text[..end - stop.len()], Some(index))));
    let expected = expected.unwrap_or((text, None));
    for pieces in cuts {
        let mut watch = watch.clone();
        let (mut shown, mut stopped) = (String::new(), None);
        for piece in pieces {
            let now = watch.push(piece);
            shown.push_str(now.text);
            stopped = now.stopped;
            if stopped.is_some() {
                break;
            }
        }
        if stopped.is_none() {
            shown.push_str(watch.finish());
        }
        assert_eq!((shown.as_str(), stopped), expected, "stops {stops:?} in {text:?}");
    }
}
