//! Plots as inline SVG: axes with ticks, curves, dots. Colours are classes of the page's style, so that they follow its
//! light and dark schemes; a pattern of dashes tells curves apart without them.

use std::fmt::Write;

const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 52.0;
/// Colours that the style has.
const COLOURS: usize = 8;
/// One for each round of colours.
const DASHES: [&str; 3] = ["", "6 4", "2 3"];

/// How values become places.
pub(super) struct Scale {
    from: f64,
    to: f64,
    is_log: bool,
    ticks: Vec<(f64, String)>,
}

impl Scale {
    /// From 0 to a round number at or above the largest of `values`.
    pub(super) fn from_zero(values: impl Iterator<Item = f64>) -> Self {
        Self::between(0.0, values.fold(0.0, f64::max))
    }

    /// Around `values`, with round ends.
    pub(super) fn around(values: impl Iterator<Item = f64> + Clone) -> Self {
        let low = values.clone().fold(f64::INFINITY, f64::min);
        Self::between(if low.is_finite() { low } else { 0.0 }, values.fold(0.0, f64::max))
    }

    fn between(low: f64, high: f64) -> Self {
        let span = if high > low { high - low } else { high.abs().max(1.0) };
        // 1, 2 or 5 times a power of ten, so that there are four to ten steps.
        let power = 10f64.powf((span / 4.0).log10().floor());
        let step = [5.0, 2.0, 1.0].map(|n| n * power).into_iter().find(|step| span / step >= 4.0).unwrap_or(power);
        let (first, last) = ((low / step).floor(), (high / step).ceil().max((low / step).floor() + 1.0));
        let ticks = (0..=(last - first) as usize).map(|n| (first + n as f64) * step);
        Self {
            from: first * step,
            to: last * step,
            is_log: false,
            ticks: ticks.map(|tick| (tick, number(tick))).collect(),
        }
    }

    /// Powers of ten around `values`, which must be positive.
    pub(super) fn powers_of_ten(values: impl Iterator<Item = f64> + Clone) -> Self {
        let low = values.clone().filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
        let high = values.fold(0.0, f64::max);
        let (low, high) = if low.is_finite() && high > 0.0 { (low, high) } else { (1.0, 10.0) };
        let (first, last) =
            (low.log10().floor() as i32, (high.log10().ceil() as i32).max(low.log10().floor() as i32 + 1));
        let ticks = (first..=last).map(|power| (10f64.powi(power), number(10f64.powi(power)))).collect();
        Self { from: 10f64.powi(first), to: 10f64.powi(last), is_log: true, ticks }
    }

    /// Evenly spaced places 0, 1, 2… with these names.
    pub(super) fn places(names: Vec<String>) -> Self {
        let last = names.len().saturating_sub(1).max(1) as f64;
        let ticks = names.into_iter().enumerate().map(|(place, name)| (place as f64, name)).collect();
        Self { from: 0.0, to: last, is_log: false, ticks }
    }

    pub(super) fn from(&self) -> f64 {
        self.from
    }

    pub(super) fn to(&self) -> f64 {
        self.to
    }

    /// 0 at the beginning, 1 at the end.
    fn share(&self, value: f64) -> f64 {
        match self.is_log {
            true => (value.max(f64::MIN_POSITIVE) / self.from).ln() / (self.to / self.from).ln(),
            false => (value - self.from) / (self.to - self.from),
        }
    }
}

/// A plot under construction.
pub(super) struct Plot {
    x: Scale,
    y: Scale,
    svg: String,
}

impl Plot {
    /// `title` is for those who hear the page.
    pub(super) fn new(title: &str, x: Scale, x_name: &str, y: Scale, y_name: &str) -> Self {
        let mut plot = Self { x, y, svg: String::new() };
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        plot.push(format_args!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
            escaped(title)
        ));
        for (value, name) in plot.x.ticks.clone() {
            let (x, _) = plot.at(value, plot.y.from);
            plot.push(format_args!("<line class=\"grid\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>"));
            let (y, name) = (bottom + 18.0, escaped(&name));
            plot.push(format_args!("<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{name}</text>\n"));
        }
        for (value, name) in plot.y.ticks.clone() {
            let (_, y) = plot.at(plot.x.from, value);
            plot.push(format_args!("<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>"));
            let (x, y, name) = (LEFT - 6.0, y + 4.0, escaped(&name));
            plot.push(format_args!("<text x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{name}</text>\n"));
        }
        plot.push(format_args!(
            "<path class=\"axis\" fill=\"none\" d=\"M{LEFT} {TOP}V{bottom}H{right}\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
             <text x=\"14\" y=\"{}\" text-anchor=\"middle\" transform=\"rotate(-90 14 {})\">{}</text>\n",
            (LEFT + right) / 2.0,
            HEIGHT - 8.0,
            escaped(x_name),
            (TOP + bottom) / 2.0,
            (TOP + bottom) / 2.0,
            escaped(y_name),
        ));
        plot
    }

    pub(super) fn x(&self) -> &Scale {
        &self.x
    }

    /// A line through `points` in the colour of `index`, with its name to hover over.
    pub(super) fn curve(&mut self, points: &[(f64, f64)], index: usize, name: &str) {
        let path = self.path(points);
        let (class, dash, name) = (index % COLOURS, DASHES[index / COLOURS % DASHES.len()], escaped(name));
        self.push(format_args!(
            "<path class=\"curve c{class}\" stroke-dasharray=\"{dash}\" d=\"{path}\"><title>{name}</title></path>\n"
        ));
    }

    /// A dot in the colour of `index`.
    pub(super) fn dot(&mut self, x: f64, y: f64, index: usize, name: &str) {
        let ((x, y), class, name) = (self.at(x, y), index % COLOURS, escaped(name));
        self.push(format_args!(
            "<circle class=\"dot c{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"><title>{name}</title></circle>\n"
        ));
    }

    /// A limit from one point to another, with its name along it, at its end where it is level and in its middle where
    /// it rises.
    pub(super) fn roof(&mut self, from: (f64, f64), to: (f64, f64), name: &str) {
        let (path, name) = (self.path(&[from, to]), escaped(name));
        let ((x1, y1), (x2, y2)) = (self.at(from.0, from.1), self.at(to.0, to.1));
        let angle = (y2 - y1).atan2(x2 - x1).to_degrees();
        let is_level = angle.abs() < 1.0;
        let (x, y) = if is_level { (x2 - 4.0, y2 - 5.0) } else { ((x1 + x2) / 2.0, (y1 + y2) / 2.0 - 6.0) };
        let anchor = if is_level { "end" } else { "middle" };
        self.push(format_args!(
            "<path class=\"roof\" d=\"{path}\"/><text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" \
             transform=\"rotate({angle:.1} {x:.1} {y:.1})\">{name}</text>\n"
        ));
    }

    pub(super) fn finish(mut self) -> String {
        self.svg.push_str("</svg>\n");
        self.svg
    }

    fn path(&self, points: &[(f64, f64)]) -> String {
        let mut path = String::new();
        for (index, &(x, y)) in points.iter().enumerate() {
            let (x, y) = self.at(x, y);
            write!(path, "{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' }).expect("a string takes any text");
        }
        path
    }

    fn at(&self, x: f64, y: f64) -> (f64, f64) {
        let across = LEFT + self.x.share(x).clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT);
        let down = HEIGHT - BOTTOM - self.y.share(y).clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM);
        (across, down)
    }

    fn push(&mut self, text: std::fmt::Arguments<'_>) {
        self.svg.write_fmt(text).expect("a string takes any text");
    }
}

/// The names of curves and dots, in the order of their indices.
pub(super) fn legend(names: &[String]) -> String {
    let mut out = String::from("<ul class=\"legend\">\n");
    for (index, name) in names.iter().enumerate() {
        let (class, dash, name) = (index % COLOURS, DASHES[index / COLOURS % DASHES.len()], escaped(name));
        out.push_str(&format!(
            "<li><svg viewBox=\"0 0 24 12\" aria-hidden=\"true\"><path class=\"curve c{class}\" \
             stroke-dasharray=\"{dash}\" d=\"M0 6H24\"/><circle class=\"dot c{class}\" cx=\"12\" cy=\"6\" r=\"4\"/></svg>\
             {name}</li>\n"
        ));
    }
    out.push_str("</ul>\n");
    out
}

/// As text of a page.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Short: `0.05`, `12`, `1,500`.
fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if value.abs() >= 1000.0 {
        return crate::units::count(value.round() as u64);
    }
    let digits = (2 - value.abs().log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_enclose_the_values() {
        let ticks = |values: &[f64]| {
            let scale = Scale::from_zero(values.iter().copied());
            scale.ticks.iter().map(|(_, name)| name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(ticks(&[3.0, 47.0]), ["0", "10", "20", "30", "40", "50"]);
        assert_eq!(ticks(&[0.011]), ["0", "0.002", "0.004", "0.006", "0.008", "0.01", "0.012"]);
        assert_eq!(ticks(&[5000.0]), ["0", "1,000", "2,000", "3,000", "4,000", "5,000"]);
        assert!(ticks(&[]).len() > 1 && ticks(&[0.0]).len() > 1);
        let scale = Scale::around([101.0, 103.5].into_iter());
        assert!(scale.from() <= 101.0 && scale.from() > 99.0 && scale.to() >= 103.5, "{} {}", scale.from(), scale.to());
        let powers = Scale::powers_of_ten([0.4, 2500.0].into_iter());
        assert_eq!((powers.from(), powers.to()), (0.1, 10_000.0));
        assert!((powers.share(1000.0) - 0.8).abs() < 1e-9);
    }

    #[test]
    fn text_cannot_leave_its_place() {
        assert_eq!(escaped("<b a=\"1\">&"), "&lt;b a=&quot;1&quot;&gt;&amp;");
        let mut plot =
            Plot::new("<t>", Scale::places(vec!["<0>".into()]), "<x>", Scale::from_zero([1.0].into_iter()), "<y>");
        plot.dot(0.0, 1.0, 9, "<dot>");
        plot.curve(&[(0.0, 1.0)], 10, "<curve>");
        plot.roof((0.0, 0.0), (1.0, 1.0), "<roof>");
        let svg = plot.finish() + &legend(&["<name>".to_owned()]);
        for text in ["<t>", "<0>", "<x>", "<y>", "<dot>", "<curve>", "<roof>", "<name>"] {
            assert!(!svg.contains(text) && svg.contains(&escaped(text)), "{text}: {svg}");
        }
    }
}
