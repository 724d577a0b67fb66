//! The pass over a template's tokens before anything recursive sees them.
//!
//! The template library's parser recurses without a bound on some inputs (`not not not …`, `elif` after `elif`), and
//! a stack that overflows cannot be caught. So everything that would make the syntax tree deep is counted here,
//! iteratively, and refused by name. The same pass rewrites the two things the library does not read as Jinja does:
//! `{% generation %}` and some escapes in string literals.

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;

use super::TemplateError;
use super::printf::MAX_WIDTH;

/// Brackets and unary operators around one operand. Templates in use stay below 10.
const MAX_NESTING: usize = 64;
/// Operators, subscripts, calls and filters in one expression, as chains make the tree deep too. In use: below 60.
const MAX_OPERATORS: usize = 1_000;
/// Branches of conditions, in all: each `elif` is one level of the tree.
const MAX_BRANCHES: usize = 1_000;
/// Functions and filters whose number says how much to make.
const SIZED_BY_NUMBER: &[&str] = &["range", "indent", "center", "ljust", "rjust", "zfill", "batch", "slice"];

/// `source` as the template library is to read it, or why it is refused.
pub(super) fn check_and_rewrite(source: &str, syntax: &SyntaxConfig) -> Result<String, TemplateError> {
    let mut expression = Expression::default();
    let mut branches = 0;
    let mut rewritten = String::with_capacity(source.len());
    let mut copied = 0;
    let mut starts_statement = false;

    for token in tokenize(source, false, syntax.clone()) {
        let (token, span) = token.map_err(|error| TemplateError::from_syntax(&error))?;
        let line = usize::from(span.start_line);
        let range = span.start_offset as usize..span.end_offset as usize;
        let text = source.get(range.clone()).unwrap_or("");
        let replacement = match &token {
            // A scope of its own that prints its body: what transformers' extension does when nobody asks for a mask.
            Token::Ident("generation") if starts_statement => Some("with".to_owned()),
            Token::Ident("endgeneration") if starts_statement => Some("endwith".to_owned()),
            Token::String(_) => python_literal(text),
            _ => None,
        };
        if let Some(replacement) = replacement {
            rewritten.push_str(source.get(copied..range.start).unwrap_or(""));
            rewritten.push_str(&replacement);
            copied = range.end;
        }
        if starts_statement && matches!(token, Token::Ident("elif")) {
            branches += 1;
            if branches > MAX_BRANCHES {
                return Err(TemplateError::TooComplex { line, what: "branches of conditions", max: MAX_BRANCHES });
            }
        }
        starts_statement = matches!(token, Token::BlockStart);
        expression.take(&token, line)?;
    }
    rewritten.push_str(source.get(copied..).unwrap_or(""));
    Ok(rewritten)
}

/// What has been counted of the expression being read.
#[derive(Default)]
struct Expression {
    /// One entry per open bracket: operators since the last separator, and whether a number inside is a size.
    levels: Vec<(usize, bool)>,
    /// Operators outside any bracket.
    operators: usize,
    /// Unary operators directly before the current token.
    unary: usize,
    /// The last token could end an operand, so a minus after it is binary.
    after_operand: bool,
    /// The last identifier names something sized by its arguments.
    sized_next: bool,
    /// The last token is `*`.
    after_times: bool,
    /// The last token is a number above [`MAX_WIDTH`].
    after_large: bool,
}

impl Expression {
    fn take(&mut self, token: &Token<'_>, line: usize) -> Result<(), TemplateError> {
        let after_operand = std::mem::take(&mut self.after_operand);
        let sized_next = std::mem::take(&mut self.sized_next);
        let after_times = std::mem::take(&mut self.after_times);
        let after_large = std::mem::take(&mut self.after_large);
        let unary = std::mem::take(&mut self.unary);
        match token {
            Token::TemplateData(_)
            | Token::VariableStart
            | Token::VariableEnd
            | Token::BlockStart
            | Token::BlockEnd => {
                *self = Expression::default();
            }
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => {
                self.operator();
                self.levels.push((0, sized_next));
                self.unary = unary;
            }
            Token::ParenClose | Token::BracketClose | Token::BraceClose => {
                self.levels.pop();
                self.after_operand = true;
            }
            Token::Comma | Token::Colon | Token::Assign => {
                match self.levels.last_mut() {
                    Some((operators, _)) => *operators = 0,
                    None => self.operators = 0,
                };
            }
            Token::Ident("not") => {
                self.operator();
                self.unary = unary + 1;
            }
            Token::Minus | Token::Plus if !after_operand => {
                self.operator();
                self.unary = unary + 1;
            }
            Token::Ident("and" | "or" | "in" | "is" | "if" | "else") => self.operator(),
            Token::Ident(name) => {
                self.after_operand = true;
                self.sized_next = SIZED_BY_NUMBER.contains(name);
            }
            Token::Int(value) if *value > MAX_WIDTH as u64 => {
                if after_times || self.levels.last().is_some_and(|(_, sized)| *sized) {
                    return Err(TemplateError::TooComplex { line, what: "repetitions or columns", max: MAX_WIDTH });
                }
                self.after_operand = true;
                self.after_large = true;
            }
            Token::Str(text) => self.check_widths(text, line)?,
            Token::String(text) => self.check_widths(text, line)?,
            Token::Int(_) | Token::Int128(_) | Token::Float(_) => self.after_operand = true,
            Token::Mul => {
                if after_large {
                    return Err(TemplateError::TooComplex { line, what: "repetitions or columns", max: MAX_WIDTH });
                }
                self.operator();
                self.after_times = true;
            }
            _ => self.operator(),
        }
        let nesting = self.levels.len() + self.unary;
        if nesting > MAX_NESTING {
            return Err(TemplateError::TooComplex {
                line,
                what: "nested brackets and unary operators",
                max: MAX_NESTING,
            });
        }
        let operators = self.operators + self.levels.iter().map(|(operators, _)| operators).sum::<usize>();
        if operators > MAX_OPERATORS {
            return Err(TemplateError::TooComplex { line, what: "operators in one expression", max: MAX_OPERATORS });
        }
        Ok(())
    }

    fn operator(&mut self) {
        match self.levels.last_mut() {
            Some((operators, _)) => *operators += 1,
            None => self.operators += 1,
        }
    }

    /// Refuses a string like `'%99999s'`, whose only use is to be formatted with.
    fn check_widths(&mut self, text: &str, line: usize) -> Result<(), TemplateError> {
        self.after_operand = true;
        for field in text.split('%').skip(1) {
            let digits = field.trim_start_matches(['-', '+', ' ', '#']);
            let digits = digits.split(|c: char| !c.is_ascii_digit()).next().unwrap_or("");
            if digits.len() > 5 || digits.parse::<usize>().is_ok_and(|width| width > MAX_WIDTH) {
                return Err(TemplateError::TooComplex { line, what: "columns of a format", max: MAX_WIDTH });
            }
        }
        Ok(())
    }
}

/// A string literal again, where Python reads an escape otherwise than the template library; else nothing.
fn python_literal(literal: &str) -> Option<String> {
    let mut out = String::with_capacity(literal.len());
    let mut changed = false;
    let mut chars = literal.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        let escaped = chars.next()?;
        match escaped {
            // Python knows no such escape and keeps the backslash.
            '/' => out.push_str("\\\\/"),
            'a' => out.push('\u{7}'),
            'v' => out.push('\u{b}'),
            // An escaped end of line joins the lines.
            '\n' => {}
            'U' => {
                let digits: String = chars.by_ref().take(8).collect();
                out.push(u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32)?);
            }
            _ => {
                out.extend(['\\', escaped]);
                continue;
            }
        }
        changed = true;
    }
    changed.then_some(out)
}
