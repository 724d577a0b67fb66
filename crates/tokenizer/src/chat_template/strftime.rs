//! `strftime_now`: Python's `datetime.strftime` in the C locale, of a clock value that the caller passes in.

use time::{Month, PrimitiveDateTime, Weekday};

/// `now` written as `format` says. What is no directive is kept as it stands, as glibc does.
pub(super) fn strftime(now: PrimitiveDateTime, format: &str) -> String {
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = rest.next();
        // GNU flags: `-` no padding, `_` spaces, `0` zeros, `^` upper case.
        let flag = directive.filter(|c| matches!(c, '-' | '_' | '0' | '^'));
        if flag.is_some() {
            directive = rest.next();
        }
        match directive.and_then(|directive| expand(now, directive)) {
            Some(field) => out.push_str(&field.write(flag)),
            None => {
                out.push('%');
                out.extend(flag.into_iter().chain(directive));
            }
        }
    }
    out
}

/// One expanded directive.
enum Field {
    Text(String),
    Number { value: i64, width: usize, padding: char },
}

impl Field {
    fn write(self, flag: Option<char>) -> String {
        match (self, flag) {
            (Field::Text(text), Some('^')) => text.to_uppercase(),
            (Field::Text(text), _) => text,
            (Field::Number { value, .. }, Some('-')) => value.to_string(),
            (Field::Number { value, width, .. }, Some('_')) => format!("{value:>width$}"),
            (Field::Number { value, width, .. }, Some('0')) => format!("{value:0>width$}"),
            (Field::Number { value, width, padding: '0' }, _) => format!("{value:0>width$}"),
            (Field::Number { value, width, .. }, _) => format!("{value:>width$}"),
        }
    }
}

fn expand(now: PrimitiveDateTime, directive: char) -> Option<Field> {
    let zeros = |value: i64, width| Some(Field::Number { value, width, padding: '0' });
    let spaces = |value: i64, width| Some(Field::Number { value, width, padding: ' ' });
    let nested = |format: &str| Some(Field::Text(strftime(now, format)));
    let text = |text: &str| Some(Field::Text(text.to_owned()));
    let (year, hour) = (i64::from(now.year()), i64::from(now.hour()));
    let hour_of_12 = (hour + 11) % 12 + 1;
    match directive {
        'a' => text(weekday(now.weekday()).get(..3)?),
        'A' => text(weekday(now.weekday())),
        'b' | 'h' => text(month(now.month()).get(..3)?),
        'B' => text(month(now.month())),
        'c' => nested("%a %b %e %H:%M:%S %Y"),
        'C' => zeros(year.div_euclid(100), 2),
        'd' => zeros(now.day().into(), 2),
        'D' | 'x' => nested("%m/%d/%y"),
        'e' => spaces(now.day().into(), 2),
        'f' => zeros(now.microsecond().into(), 6),
        'F' => nested("%Y-%m-%d"),
        'g' => zeros(i64::from(now.to_iso_week_date().0).rem_euclid(100), 2),
        'G' => zeros(now.to_iso_week_date().0.into(), 4),
        'H' => zeros(hour, 2),
        'I' => zeros(hour_of_12, 2),
        'j' => zeros(now.ordinal().into(), 3),
        'k' => spaces(hour, 2),
        'l' => spaces(hour_of_12, 2),
        'm' => zeros(u8::from(now.month()).into(), 2),
        'M' => zeros(now.minute().into(), 2),
        'n' => text("\n"),
        'p' => text(if hour < 12 { "AM" } else { "PM" }),
        'P' => text(if hour < 12 { "am" } else { "pm" }),
        'r' => nested("%I:%M:%S %p"),
        'R' => nested("%H:%M"),
        's' => Some(Field::Text(now.assume_utc().unix_timestamp().to_string())),
        'S' => zeros(now.second().into(), 2),
        't' => text("\t"),
        'T' | 'X' => nested("%H:%M:%S"),
        'u' => zeros(now.weekday().number_from_monday().into(), 1),
        'U' => zeros(now.sunday_based_week().into(), 2),
        'V' => zeros(now.iso_week().into(), 2),
        'w' => zeros(now.weekday().number_days_from_sunday().into(), 1),
        'W' => zeros(now.monday_based_week().into(), 2),
        'y' => zeros(year.rem_euclid(100), 2),
        'Y' => zeros(year, 1),
        // The clock is naive, as Python's `datetime.now()` is: it has no zone.
        'z' | 'Z' => text(""),
        '%' => text("%"),
        _ => None,
    }
}

fn weekday(weekday: Weekday) -> &'static str {
    match weekday {
        Weekday::Monday => "Monday",
        Weekday::Tuesday => "Tuesday",
        Weekday::Wednesday => "Wednesday",
        Weekday::Thursday => "Thursday",
        Weekday::Friday => "Friday",
        Weekday::Saturday => "Saturday",
        Weekday::Sunday => "Sunday",
    }
}

fn month(month: Month) -> &'static str {
    match month {
        Month::January => "January",
        Month::February => "February",
        Month::March => "March",
        Month::April => "April",
        Month::May => "May",
        Month::June => "June",
        Month::July => "July",
        Month::August => "August",
        Month::September => "September",
        Month::October => "October",
        Month::November => "November",
        Month::December => "December",
    }
}
