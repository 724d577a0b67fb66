//! Grammars in llama.cpp's notation (GBNF), written as Lark's, which the library reads.
//!
//! GBNF has rules alone, over characters; Lark tells rules from terminals, which are regular expressions. What is regular
//! in a rule becomes a terminal, as large as it can be: a terminal takes the longest text that it can, so two that stand
//! side by side may be held to less than the rule allows, and one that is the whole rule is held to exactly that.
//!
//! Source: <https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md>.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;

use crate::error::ApiError;
use crate::quoting::shown;

/// Parentheses in parentheses, and repetitions of what is repeated already. What reads them later is recursive, so both
/// bound its stack.
const DEPTH_MAX: usize = 64;
const REPEATS_MAX: usize = 4;
/// llama.cpp has the same bound for what is repeated.
const REPEAT_MAX: u32 = 2000;

/// Whether a grammar is written in this notation: `::=` stands in no other's rule.
pub(crate) fn is_gbnf(text: &str) -> bool {
    text.lines().any(|line| {
        let name = line.trim_start().trim_start_matches(is_name);
        line.trim_start().starts_with(is_name) && name.trim_start_matches([' ', '\t']).starts_with("::=")
    })
}

/// The grammar at `at` in Lark's notation.
pub(crate) fn to_lark(at: &str, text: &str) -> Result<String, ApiError> {
    let rules = Reader { at, text, place: 0 }.rules()?;
    let problem = |message: String| ApiError::invalid(at, format!("`{at}` cannot be used: {message}"));
    if !rules.contains_key("root") {
        return Err(problem("a grammar begins with the rule `root`, and there is none".to_owned()));
    }
    let named: BTreeSet<&str> = rules.values().flat_map(|rule| rule.names()).collect();
    if let Some(missing) = named.iter().find(|name| !rules.contains_key(**name)) {
        return Err(problem(format!("there is no rule `{}`", shown(missing))));
    }
    Ok(Writer::new(&rules).write())
}

fn is_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '-' || character == '_'
}

/// What a rule says.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    /// A text, as it is.
    Text(String),
    /// One character, as a regular expression.
    Character(String),
    /// A token by its name or id, as Lark writes it.
    Token(String),
    Rule(String),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    Repeat(Box<Node>, u32, Option<u32>),
}

impl Node {
    fn parts(&self) -> &[Node] {
        match self {
            Self::Sequence(parts) | Self::Choice(parts) => parts,
            Self::Repeat(part, ..) => std::slice::from_ref(part),
            Self::Text(_) | Self::Character(_) | Self::Token(_) | Self::Rule(_) => &[],
        }
    }

    /// Rules that it names.
    fn names(&self) -> Vec<&str> {
        match self {
            Self::Rule(name) => vec![name],
            node => node.parts().iter().flat_map(Self::names).collect(),
        }
    }
}

struct Reader<'a> {
    at: &'a str,
    text: &'a str,
    place: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.place..).unwrap_or_default()
    }

    fn next(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn takes(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        self.place += if found { text.len() } else { 0 };
        found
    }

    fn wrong<T>(&self, what: &str) -> Result<T, ApiError> {
        let before = self.text.get(..self.place).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let message = format!("`{}` cannot be read at line {line}, column {column}: {what}", self.at);
        Err(ApiError::invalid(self.at, message))
    }

    /// Space and comments; over the ends of lines where a rule goes on behind them.
    fn space(&mut self, over_lines: bool) {
        while let Some(next) = self.next() {
            match next {
                ' ' | '\t' => self.place += 1,
                '\r' | '\n' if over_lines => self.place += 1,
                '#' => self.place += self.rest().find(['\r', '\n']).unwrap_or(self.rest().len()),
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Result<String, ApiError> {
        let rest = self.rest();
        let length = rest.find(|character| !is_name(character)).unwrap_or(rest.len());
        if length == 0 {
            return self.wrong("here the name of a rule has to stand");
        }
        self.place += length;
        Ok(rest[..length].to_owned())
    }

    fn rules(&mut self) -> Result<BTreeMap<String, Node>, ApiError> {
        let mut rules = BTreeMap::new();
        self.space(true);
        while self.next().is_some() {
            let name = self.name()?;
            self.space(false);
            if !self.takes("::=") {
                return self.wrong("here `::=` has to stand");
            }
            self.space(true);
            let rule = self.choice(0)?;
            match self.next() {
                None | Some('\r' | '\n') => {}
                Some(_) => return self.wrong("here the rule has to end"),
            }
            self.space(true);
            // As in llama.cpp, the last of a name counts.
            rules.insert(name, rule);
        }
        Ok(rules)
    }

    fn choice(&mut self, depth: usize) -> Result<Node, ApiError> {
        if depth > DEPTH_MAX {
            return self.wrong("there are too many parentheses in parentheses");
        }
        let mut choices = vec![self.sequence(depth)?];
        while self.takes("|") {
            self.space(true);
            choices.push(self.sequence(depth)?);
        }
        Ok(if choices.len() == 1 { choices.swap_remove(0) } else { Node::Choice(choices) })
    }

    fn sequence(&mut self, depth: usize) -> Result<Node, ApiError> {
        let mut parts = Vec::new();
        loop {
            let part = match self.next() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.place += 1;
                    Node::Character("(?s:.)".to_owned())
                }
                Some('(') => {
                    self.place += 1;
                    self.space(true);
                    let inner = self.choice(depth + 1)?;
                    self.space(true);
                    if !self.takes(")") {
                        return self.wrong("here `)` has to stand");
                    }
                    inner
                }
                Some('<') => self.token()?,
                Some('!') => return self.wrong("a token that is excluded (`!<…>`) cannot be held to"),
                Some(next) if is_name(next) => Node::Rule(self.name()?),
                Some('*' | '+' | '?' | '{') => return self.wrong("there is nothing to repeat"),
                _ => break,
            };
            self.space(depth > 0);
            parts.push(self.repeated(part, depth)?);
        }
        Ok(if parts.len() == 1 { parts.swap_remove(0) } else { Node::Sequence(parts) })
    }

    /// With what says how often.
    fn repeated(&mut self, mut part: Node, depth: usize) -> Result<Node, ApiError> {
        for repeats in 0.. {
            let (least, most) = match self.next() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    self.place += 1;
                    self.space(depth > 0);
                    let least = self.number()?;
                    self.space(depth > 0);
                    let most = if self.takes(",") {
                        self.space(depth > 0);
                        if self.next() == Some('}') { None } else { Some(self.number()?) }
                    } else {
                        Some(least)
                    };
                    self.space(depth > 0);
                    if self.next() != Some('}') {
                        return self.wrong("here `}` has to stand");
                    }
                    if most.is_some_and(|most| most < least) {
                        return self.wrong("at most is less than at least");
                    }
                    (least, most)
                }
                _ => return Ok(part),
            };
            if repeats == REPEATS_MAX {
                return self.wrong("it is repeated too many times over");
            }
            self.place += 1;
            self.space(depth > 0);
            part = Node::Repeat(Box::new(part), least, most);
        }
        Ok(part)
    }

    fn number(&mut self) -> Result<u32, ApiError> {
        let rest = self.rest();
        let length = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
        match rest[..length].parse() {
            Ok(number) if number <= REPEAT_MAX => {
                self.place += length;
                Ok(number)
            }
            Ok(_) => self.wrong(&format!("at most {REPEAT_MAX} times can be asked for")),
            Err(_) => self.wrong("here a number has to stand"),
        }
    }

    /// A character between quotes or brackets.
    fn character(&mut self) -> Result<char, ApiError> {
        let Some(first) = self.next() else { return self.wrong("it is not closed") };
        self.place += first.len_utf8();
        if first != '\\' {
            return Ok(first);
        }
        let Some(escaped) = self.next() else { return self.wrong("it is not closed") };
        self.place += escaped.len_utf8();
        let digits = match escaped {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            't' => return Ok('\t'),
            'r' => return Ok('\r'),
            'n' => return Ok('\n'),
            '\\' | '"' | '[' | ']' | '-' | '^' => return Ok(escaped),
            _ => {
                return self.wrong("this is no escape; there are \\n, \\r, \\t, \\x41, \\u0041, \\U00000041, and \\\\");
            }
        };
        let code =
            self.rest().get(..digits).and_then(|code| u32::from_str_radix(code, 16).ok()).and_then(char::from_u32);
        match code {
            Some(code) => {
                self.place += digits;
                Ok(code)
            }
            None => self.wrong("here the number of a character has to stand"),
        }
    }

    fn literal(&mut self) -> Result<Node, ApiError> {
        self.place += 1;
        let mut text = String::new();
        while !self.takes("\"") {
            text.push(self.character()?);
        }
        Ok(Node::Text(text))
    }

    fn class(&mut self) -> Result<Node, ApiError> {
        self.place += 1;
        let mut class = String::from(if self.takes("^") { "[^" } else { "[" });
        let opened = class.len();
        while !self.takes("]") {
            let first = self.character()?;
            push_member(&mut class, first);
            if self.rest().starts_with('-') && !self.rest().starts_with("-]") {
                self.place += 1;
                let last = self.character()?;
                if last < first {
                    return self.wrong("the range ends before it begins");
                }
                class.push('-');
                push_member(&mut class, last);
            }
        }
        if class.len() == opened {
            // Without members: no character, or any.
            return if opened == 1 {
                self.wrong("no character can stand here")
            } else {
                Ok(Node::Character("(?s:.)".into()))
            };
        }
        class.push(']');
        Ok(Node::Character(class))
    }

    fn token(&mut self) -> Result<Node, ApiError> {
        let rest = self.rest();
        let Some(end) = rest.find('>').filter(|&end| end > 1 && !rest[..end].contains(char::is_whitespace)) else {
            return self.wrong("a token is written <name> or <[id]>");
        };
        self.place += end + 1;
        Ok(Node::Token(rest[..=end].to_owned()))
    }
}

/// A member of a class of a regular expression.
fn push_member(class: &mut String, member: char) {
    if member.is_ascii_alphanumeric() || !member.is_ascii() {
        class.push(member);
    } else {
        let _ = write!(class, "\\x{:02x}", u32::from(member));
    }
}

/// What is known of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Facts {
    /// It is a regular expression: it names no rule that comes back to it, and no token.
    is_regular: bool,
    /// It may be the empty text.
    is_nullable: bool,
    /// It can be nothing else.
    is_empty: bool,
}

struct Writer<'a> {
    rules: &'a BTreeMap<String, Node>,
    facts: HashMap<&'a str, Facts>,
    /// Numbers of the rules that are written, in Lark's rules and terminals; and what is still to be written of them.
    numbers: HashMap<&'a str, usize>,
    written: BTreeSet<(bool, &'a str)>,
    waiting: Vec<(bool, &'a str)>,
    /// Terminals that stand for a part of a rule.
    parts: Vec<String>,
}

impl<'a> Writer<'a> {
    fn new(rules: &'a BTreeMap<String, Node>) -> Self {
        let numbers = rules.keys().enumerate().map(|(number, name)| (name.as_str(), number)).collect();
        let mut writer = Self {
            rules,
            facts: HashMap::new(),
            numbers,
            written: BTreeSet::new(),
            waiting: Vec::new(),
            parts: Vec::new(),
        };
        writer.find_facts();
        writer
    }

    fn find_facts(&mut self) {
        // A rule is regular once all that it names are, so those that come back to themselves never are. In the order of
        // who waits for whom, because rules may be a chain of thousands.
        let names: HashMap<&str, BTreeSet<&str>> =
            self.rules.iter().map(|(name, rule)| (name.as_str(), rule.names().into_iter().collect())).collect();
        let mut named_by: HashMap<&str, Vec<&'a str>> = HashMap::new();
        let mut left: HashMap<&str, usize> = HashMap::new();
        for name in self.rules.keys() {
            left.insert(name, names[name.as_str()].len());
            names[name.as_str()].iter().for_each(|named| named_by.entry(named).or_default().push(name));
        }
        let mut ready: Vec<&'a str> =
            self.rules.keys().map(String::as_str).filter(|name| left.get(name) == Some(&0)).collect();
        while let Some(name) = ready.pop() {
            let facts = self.facts_of(&self.rules[name]);
            self.facts.insert(name, facts);
            for user in named_by.get(name).into_iter().flatten() {
                if let Some(left) = left.get_mut(user) {
                    *left -= 1;
                    if *left == 0 {
                        ready.push(user);
                    }
                }
            }
        }
    }

    fn facts_of(&self, node: &Node) -> Facts {
        // Each part once: a part that is looked at twice doubles the work with each repetition in a repetition.
        let parts: Vec<Facts> = node.parts().iter().map(|part| self.facts_of(part)).collect();
        let all = |fact: fn(&Facts) -> bool| parts.iter().all(fact);
        let (is_nullable, is_empty) = match node {
            Node::Text(text) => (text.is_empty(), text.is_empty()),
            Node::Character(_) => (false, false),
            Node::Token(_) => return Facts::default(),
            Node::Rule(name) => return self.facts.get(name.as_str()).copied().unwrap_or_default(),
            Node::Sequence(_) => (all(|part| part.is_nullable), all(|part| part.is_empty)),
            Node::Choice(_) => (parts.iter().any(|part| part.is_nullable), all(|part| part.is_empty)),
            Node::Repeat(_, least, most) => {
                (*least == 0 || all(|part| part.is_nullable), *most == Some(0) || all(|part| part.is_empty))
            }
        };
        Facts { is_regular: all(|part| part.is_regular), is_nullable, is_empty }
    }

    fn write(mut self) -> String {
        let root = Node::Rule("root".to_owned());
        let mut text = format!("start: {}\n", self.rule(&root));
        while let Some((is_terminal, name)) = self.waiting.pop() {
            let number = self.numbers[name];
            let node = &self.rules[name];
            let line = if is_terminal {
                format!("T{number}: {}\n", self.terminal(node))
            } else {
                format!("r{number}: {}\n", self.rule(node))
            };
            text.push_str(&line);
        }
        self.parts.iter().for_each(|part| text.push_str(part));
        text
    }

    /// A name of a rule or terminal, which is then written.
    fn named(&mut self, is_terminal: bool, name: &'a str) -> String {
        if self.written.insert((is_terminal, name)) {
            self.waiting.push((is_terminal, name));
        }
        format!("{}{}", if is_terminal { 'T' } else { 'r' }, self.numbers[name])
    }

    /// What stands in a rule.
    fn rule(&mut self, node: &Node) -> String {
        let facts = self.facts_of(node);
        if facts.is_empty {
            return "\"\"".to_owned();
        }
        if facts.is_regular {
            return self.part(node, facts.is_nullable);
        }
        match node {
            Node::Token(token) => token.clone(),
            Node::Rule(name) => self.known(name).map_or_else(String::new, |name| self.named(false, name)),
            Node::Sequence(parts) => {
                let mut written = Vec::new();
                let mut rest = parts.as_slice();
                while let [first, ..] = rest {
                    let regular = rest.iter().take_while(|part| self.facts_of(part).is_regular).count();
                    if regular > 1 {
                        written.push(self.rule(&Node::Sequence(rest[..regular].to_vec())));
                    } else {
                        written.push(self.rule(first));
                    }
                    rest = &rest[regular.max(1)..];
                }
                format!("({})", written.join(" "))
            }
            Node::Choice(choices) => {
                let choices: Vec<String> = choices.iter().map(|choice| self.rule(choice)).collect();
                format!("({})", choices.join(" | "))
            }
            Node::Repeat(part, least, most) => format!("({}){}", self.rule(part), times(*least, *most)),
            Node::Text(_) | Node::Character(_) => self.part(node, false),
        }
    }

    /// A terminal of its own for what is regular. A terminal is never the empty text, so where that may be, it may be left
    /// out.
    fn part(&mut self, node: &Node, is_nullable: bool) -> String {
        let written = self.terminal(node);
        let number = self.parts.len();
        let (meets, may_be_left_out) = if is_nullable { (" & /(?s:.+)/", "?") } else { ("", "") };
        self.parts.push(format!("P{number}: ({written}){meets}\n"));
        format!("P{number}{may_be_left_out}")
    }

    /// What stands in a terminal.
    fn terminal(&mut self, node: &Node) -> String {
        match node {
            Node::Text(text) => quoted(text),
            Node::Character(pattern) => format!("/{pattern}/"),
            // Only what is regular is written as a terminal.
            Node::Token(token) => token.clone(),
            Node::Rule(name) => self.known(name).map_or_else(String::new, |name| self.named(true, name)),
            Node::Sequence(parts) if parts.is_empty() => "\"\"".to_owned(),
            Node::Sequence(parts) => {
                let parts: Vec<String> = parts.iter().map(|part| self.terminal(part)).collect();
                format!("({})", parts.join(" "))
            }
            Node::Choice(choices) => {
                let choices: Vec<String> = choices.iter().map(|choice| self.terminal(choice)).collect();
                format!("({})", choices.join(" | "))
            }
            Node::Repeat(part, least, most) => format!("({}){}", self.terminal(part), times(*least, *most)),
        }
    }

    /// The name as the rules have it.
    fn known(&self, name: &str) -> Option<&'a str> {
        self.rules.get_key_value(name).map(|(name, _)| name.as_str())
    }
}

fn times(least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}

/// A text as Lark has it, which reads it as JSON.
fn quoted(text: &str) -> String {
    let mut quoted = serde_json::Value::from(text).to_string();
    // The one control character that JSON writes as it is.
    if quoted.contains('\x7f') {
        quoted = quoted.replace('\x7f', "\\u007f");
    }
    quoted
}

#[cfg(test)]
mod tests {
    use llguidance::api::{GrammarInit, TopLevelGrammar};
    use llguidance::toktrie::ApproximateTokEnv;
    use llguidance::{Matcher, ParserFactory};

    use super::*;

    /// Whether the grammar takes each text: all of it, and as a whole.
    fn takes(gbnf: &str, texts: &[&str]) -> Vec<bool> {
        let lark = to_lark("g", gbnf).unwrap();
        let lark = crate::lark::prepared("g", &lark).unwrap();
        let mut factory = ParserFactory::new_simple(&ApproximateTokEnv::single_byte_env()).unwrap();
        factory.quiet();
        let init = GrammarInit::Serialized(TopLevelGrammar::from_lark(lark.clone()));
        let parser = factory.create_parser_from_init_default(init);
        let matcher = Matcher::new(parser);
        assert!(!matcher.is_error(), "{gbnf}\n{lark}\n{:?}", matcher.get_error());
        texts
            .iter()
            .map(|text| {
                let mut matcher = matcher.deep_clone();
                let ids: Vec<u32> = text.bytes().map(u32::from).collect();
                matcher.try_consume_tokens(&ids).unwrap() == ids.len() && matcher.is_accepting().unwrap()
            })
            .collect()
    }

    #[test]
    fn a_regular_grammar_is_held_to_exactly() {
        let of = takes(
            "# comment\nroot ::= greeting name? \"!\" {0,2}\n\ngreeting ::= \"Hi\" | \"Hello\" # more\n\
             name ::= [ ] [A-Z] [a-z]*\n",
            &["Hi", "Hello", "Hi Bob!!", "Hello A!", "Hi!!!", "Hi bob", "", "Hel"],
        );
        assert_eq!(of, [true, true, true, true, false, false, false, false]);
        // What may be the empty text, beside what begins alike.
        let of = takes("root ::= [a-z]* ws [a-z0-9]* \"z\"\nws ::= \" \"*", &["z", "abcz", "ab 1z", "1z", "a1", ""]);
        assert_eq!(of, [true, true, true, true, false, false]);
        let of = takes("root ::= \"a\"? \"b\"*", &["", "a", "abb", "b", "ba"]);
        assert_eq!(of, [true, true, true, true, false]);
        let of = takes(
            "root ::= ( \"x\"\r\n | [^\\n\\]\\\\/\\x41] )+ \"\\u00e9\\x21\" . [\\U0001F600-\\U0001F64F]{2,}",
            &["xé!\n😀😁", "b-é!?😀😁😂", "Aé!?😀😁", "]é!?😀😁", "xé!?😀", "/é!?😀😁"],
        );
        assert_eq!(of, [true, true, false, false, false, false]);
        assert_eq!(takes("root ::= \"\"", &["", "a"]), [true, false]);
        assert_eq!(takes("root ::= none none\nnone ::= \"\" | ( \"\" )", &["", "a"]), [true, false]);
        assert_eq!(takes("root ::= \"a\" |", &["", "a", "b"]), [true, true, false]);
    }

    #[test]
    fn rules_that_come_back_to_themselves_nest() {
        let json = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;
        let texts = [
            r#"{"a": [1, -2.5e3, {"b": "c\n\u00e9"}], "d": {}, "e": null}"#,
            "{}",
            "{\n  \"a\": [ ] }",
            r#"{"a": [1,]}"#,
            r#"{"a" 1}"#,
            r#"{"a": 01}"#,
            "{\"a\": \"\x01\"}",
            "[1]",
        ];
        assert_eq!(takes(json, &texts), [true, true, true, false, false, false, false, false]);
        let of = takes(
            "root ::= (expr \"=\" term \"\\n\")+\nexpr ::= term ([-+*/] term)*\nterm ::= num | \"(\" expr \")\"\n\
             num ::= [0-9]+",
            &["1+2=3\n", "(1+(22*3))/4=5\n1=1\n", "1+=2\n", "((1)=1\n"],
        );
        assert_eq!(of, [true, true, false, false]);
        assert_eq!(takes("root ::= \"a\" root | \"b\"", &["b", "aab", "aa", "ba"]), [true, true, false, false]);
        assert_eq!(takes("root ::= (\"a\" root \"b\")?", &["", "ab", "aabb", "aab"]), [true, true, true, false]);
    }

    #[test]
    fn a_grammar_is_known_by_its_rules() {
        assert!(is_gbnf("# c\n\n  root ::= \"a\"") && is_gbnf("root::=[a]"));
        for lark in ["start: \"::=\"", "start: a\na: /root ::= b/", "%json {\"a ::= b\": 1}", ""] {
            assert!(!is_gbnf(lark), "{lark}");
        }
        assert!(to_lark("g", "root ::= <think> [a]* <[7]>").unwrap().contains("(<think> P0? <[7]>)"));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (text, expected) in [
            ("root ::= \"a", "line 1, column 12: it is not closed"),
            ("root ::= [a", "line 1, column 12: it is not closed"),
            ("root ::= (\"a\"\nb ::= \"c\"", "line 2, column 3: here `)` has to stand"),
            ("root ::= \"a\"\nb = \"c\"", "line 2, column 3: here `::=` has to stand"),
            ("root ::= * \"a\"", "line 1, column 10: there is nothing to repeat"),
            ("root ::= \"a\" )", "line 1, column 14: here the rule has to end"),
            ("root ::= \"\\q\"", "line 1, column 13: this is no escape"),
            ("root ::= \"\\ud800\"", "line 1, column 13: here the number of a character has to stand"),
            ("root ::= [z-a]", "line 1, column 14: the range ends before it begins"),
            ("root ::= \"a\"{3,2}", "line 1, column 17: at most is less than at least"),
            ("root ::= \"a\"{99999}", "line 1, column 14: at most 2000 times can be asked for"),
            ("root ::= !<think>", "line 1, column 10: a token that is excluded"),
            ("root ::= <a b>", "line 1, column 10: a token is written <name> or <[id]>"),
            ("rot ::= \"a\"", "a grammar begins with the rule `root`, and there is none"),
            ("root ::= a-b", "there is no rule `a-b`"),
        ] {
            let error = to_lark("g", text).unwrap_err().to_json();
            let message = error["error"]["message"].as_str().unwrap();
            assert!(message.contains(expected) && message.starts_with("`g` cannot be "), "{text}: {message}");
        }
        assert!(to_lark("g", &format!("root ::= {}\"a\"", "(".repeat(1_000))).is_err());
        assert!(to_lark("g", &format!("root ::= \"a\"{}", "*".repeat(60_000))).is_err());
        let deep = format!("root ::= {}\"a\"**{}", "(".repeat(60), ")*".repeat(60));
        assert!(to_lark("g", &deep).is_ok());
    }

    /// As long a chain as a request can have.
    #[test]
    fn long_chains_of_rules_take_no_stack() {
        let chain: String = (0..3_000).map(|index| format!("r{index} ::= \"a\" r{}\n", index + 1)).collect();
        let lark = to_lark("g", &format!("root ::= r0\n{chain}r3000 ::= \"b\"\n")).unwrap();
        // Each rule, the start, and the terminal that it is.
        assert_eq!(lark.lines().count(), 3_004);
    }
}
