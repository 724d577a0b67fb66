//! The steady part of a measurement: while as many answers come at once as ever do.

use serde_json::Value;

use super::timings::RequestTimings;

/// Tokens that arrived while as many answers came at once as ever did: without the time in which the first of them
/// begin, others wait for their turn, or the last ones end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SteadyPart {
    /// Answers that come at once.
    concurrency: usize,
    pub(super) seconds: f64,
    tokens: f64,
}

impl SteadyPart {
    /// `None` where no answer has a second token.
    pub(super) fn of(seen: &[RequestTimings]) -> Option<Self> {
        /// Sums of times in another order are apart by less.
        const SAME_S: f64 = 1e-9;
        // An answer comes from its first token to its last. Of two at one time, the end is before the beginning.
        let begins = |seen: &RequestTimings| seen.sent_s + seen.ttft_s;
        let coming = || seen.iter().filter(|seen| seen.e2el_s > seen.ttft_s);
        let mut edges: Vec<(f64, bool)> =
            coming().flat_map(|seen| [(begins(seen), true), (seen.sent_s + seen.e2el_s, false)]).collect();
        edges.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut count = 0usize;
        let mut spans: Vec<(usize, f64, f64)> = Vec::with_capacity(edges.len());
        for (index, &(at, begins)) in edges.iter().enumerate() {
            count = if begins { count + 1 } else { count - 1 };
            let end = edges.get(index + 1).map_or(at, |next| next.0);
            spans.push((count, at, end));
        }
        let concurrency = spans.iter().map(|span| span.0).max()?;
        spans.retain(|span| span.0 == concurrency);
        let tokens = coming().map(|seen| {
            // A piece of text may be of several tokens, or of none that is seen yet: each counts for its share.
            let share = seen.output_tokens.saturating_sub(1) as f64 / seen.itl_s.len().max(1) as f64;
            let mut at = begins(seen);
            let arrivals = seen.itl_s.iter().filter(|&&itl| {
                at += itl;
                let span = spans.partition_point(|span| span.1 < at);
                span > 0 && at <= spans[span - 1].2 + SAME_S
            });
            arrivals.count() as f64 * share
        });
        let tokens = tokens.sum();
        Some(Self { concurrency, seconds: spans.iter().map(|span| span.2 - span.1).sum(), tokens })
    }

    /// Adds the figures to a result.
    pub(super) fn write(&self, result: &mut Value) {
        let rounded = |value: f64| (value * 1e3).round() / 1e3;
        result["steady_concurrency"] = self.concurrency.into();
        result["steady_duration"] = rounded(self.seconds).into();
        result["steady_output_throughput"] = rounded(self.tokens / self.seconds).into();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_steady_part_is_when_most_answers_come_at_once() {
        // Tokens at `sent + ttft`, and then every `itl`.
        let seen = |sent_s: f64, ttft_s: f64, itl_s: f64, tokens: u64| RequestTimings {
            sent_s,
            ttft_s,
            itl_s: vec![itl_s; tokens as usize - 1],
            e2el_s: ttft_s + itl_s * (tokens - 1) as f64,
            input_tokens: 1,
            output_tokens: tokens,
        };
        // Two at once from 3 to 5 (tokens of the first at 4 and 5, of the second at 3.5 to 5), and from 7 to 9, when
        // the first is followed by another.
        let all = [seen(0.0, 1.0, 1.0, 5), seen(1.0, 2.0, 0.5, 13), seen(5.0, 2.0, 2.0, 3), seen(20.0, 1.0, 1.0, 1)];
        let steady = SteadyPart::of(&all).unwrap();
        assert_eq!(steady, SteadyPart { concurrency: 2, seconds: 4.0, tokens: 2.0 + 4.0 + 4.0 + 1.0 });
        // Half of the pieces are of two tokens.
        let merged = RequestTimings { output_tokens: 7, ..seen(0.0, 1.0, 1.0, 5) };
        let expected = SteadyPart { concurrency: 1, seconds: 4.0, tokens: 6.0 };
        assert_eq!(SteadyPart::of(&[merged]), Some(expected));
        assert_eq!(SteadyPart::of(&[seen(0.0, 1.0, 1.0, 1)]), None);
        let mut result = json!({});
        steady.write(&mut result);
        assert_eq!(result["steady_output_throughput"], 2.75);
        assert_eq!((&result["steady_concurrency"], &result["steady_duration"]), (&json!(2), &json!(4.0)));
    }
}
