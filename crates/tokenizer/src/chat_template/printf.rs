//! `%` formatting and `str.format`: the template library's implementation, behind a bound on widths.
//!
//! A width is a number that asks for that much memory at once, so one above [`MAX_WIDTH`] is refused before it is
//! acted on.

use minijinja::formatting::{FormatStyle, format};
use minijinja::{Error, Value};

use super::value::{charge, fail, to_str};

/// The widest padding and the longest fraction that a template may ask for.
pub(super) const MAX_WIDTH: usize = 10_000;

/// `format % arguments`.
pub(super) fn percent(text: &str, arguments: &[Value]) -> Result<Value, Error> {
    bounded(FormatStyle::Printf, text, arguments)
}

/// `text.format(*arguments)`.
pub(super) fn braces(text: &str, arguments: &[Value]) -> Result<Value, Error> {
    bounded(FormatStyle::StrFormat, text, arguments)
}

fn bounded(style: FormatStyle, text: &str, arguments: &[Value]) -> Result<Value, Error> {
    let fields = match style {
        FormatStyle::Printf => text.split('%').skip(1),
        FormatStyle::StrFormat => text.split('{').skip(1),
    };
    let mut largest_bytes = text.len();
    for field in fields {
        // A field is written at most as wide as it asks for plus what it shows, and may show any argument.
        let width = largest_number(field);
        if width > MAX_WIDTH {
            return Err(fail(format!("a format asks for width {width}, at most {MAX_WIDTH} is allowed")));
        }
        largest_bytes = largest_bytes.saturating_add(2 * width);
    }
    charge(largest_bytes)?;
    for argument in arguments {
        charge(to_str(argument)?.len())?;
    }
    let out = format(style, text, arguments)?;
    charge(out.len())?;
    Ok(Value::from(out))
}

/// The largest number in a format field, wherever it stands: text after the field only makes this stricter.
fn largest_number(field: &str) -> usize {
    let spec = field.split(|c: char| c.is_whitespace() || c == '}').next().unwrap_or("");
    let numbers = spec.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    numbers.map(|digits| digits.parse().unwrap_or(usize::MAX)).max().unwrap_or(0)
}
