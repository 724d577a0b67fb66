//! How a token is drawn from a row of logits, in arithmetic that gives the same bits on every device: few roundings of f32, and
//! sums of integers, which have no order. The sampler and the devices that choose tokens both use what stands here.

use std::cmp::Ordering;

/// How a device chooses the token of an output row. The default is the likeliest.
///
/// The filters keep, one after another, of the tokens in the order of their logits, the lower id of equals first: the
/// `top_k` likeliest; the likeliest whose weights reach `top_p` of all that are left; those with a logit of at least
/// `max + min_p_ln`. Then one is drawn by its [`weight`] at a distance of `(max - logit) / temperature`: the first, in the
/// order of ids, with which the sum of weights exceeds `pick` of the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowSampling {
    /// 0 takes the likeliest token, whatever the rest says.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// In units of 2^-32; 0 keeps all.
    pub top_p: u32,
    /// -inf keeps all.
    pub min_p_ln: f32,
    /// In units of 2^-64.
    pub pick: u64,
}

/// The token that a device chooses from finite `logits` (vocab_size,): the plain version, which sorts them to draw from them.
pub fn choose(logits: &[f32], how: &RowSampling) -> usize {
    if how.temperature == 0.0 {
        let likelier = |best, next| if logits[next] > logits[best] { next } else { best };
        return (0..logits.len()).reduce(likelier).unwrap_or(0);
    }
    let mut left: Vec<usize> = (0..logits.len()).collect();
    // Zeros of both signs are equal, and equals stay in the order of their ids.
    left.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap_or(Ordering::Equal));
    let Some(&likeliest) = left.first() else { return 0 };
    let max = logits[likeliest];
    if how.top_k > 0 {
        left.truncate(how.top_k as usize);
    }
    if how.top_p > 0 {
        let weight_of = |&id: &usize| weight(max - logits[id]);
        let enough = share_of(how.top_p, left.iter().map(weight_of).sum());
        let mut sum = 0;
        let reaches = left.iter().position(|id| {
            sum += weight_of(id);
            sum >= enough
        });
        left.truncate(reaches.map_or(left.len(), |index| index + 1));
    }
    left.retain(|&id| logits[id] >= max + how.min_p_ln);
    left.sort_unstable();
    let weight_of = |&id: &usize| weight((max - logits[id]) / how.temperature);
    let target = pick_of(how.pick, left.iter().map(weight_of).sum());
    let mut sum = 0;
    let chosen = left.iter().find(|id| {
        sum += weight_of(id);
        sum > target
    });
    chosen.copied().unwrap_or(likeliest)
}

/// The weight of a token whose logit is `distance` below the largest: e^-distance in units of 2^-40, within 2^-23 of itself
/// or one unit.
#[inline]
pub fn weight(distance: f32) -> u64 {
    /// 2^-f for f in [0, 1), in units of 2^-31: coefficients of f^k, every second one negative.
    const TERMS: [u32; 8] = [1 << 31, 1_488_522_235, 515_882_421, 119_193_227, 20_650_178, 2_852_265, 316_563, 23_258];
    let halvings = distance * std::f32::consts::LOG2_E;
    // Not a number is no weight either.
    if halvings.is_nan() || halvings >= 41.0 {
        return 0;
    }
    let whole = halvings as u32;
    // Exact: the rest of an f32 in units of 2^-32.
    let rest = ((halvings - whole as f32) * 4_294_967_296.0) as u32;
    let high = |a: u32, b: u32| ((u64::from(a) * u64::from(b)) >> 32) as u32;
    let power = TERMS.iter().rev().skip(1).fold(TERMS[7], |sum, term| term - high(sum, rest));
    (u64::from(power) << 9) >> whole
}

/// A share of weights in units of 2^-32; 0 for all, which `p` of 1 and more is.
pub fn share(p: f32) -> u32 {
    if p >= 1.0 { 0 } else { (f64::from(p) * 4_294_967_296.0).ceil() as u32 }
}

/// `share` of `sum`, rounded down.
pub fn share_of(share: u32, sum: u64) -> u64 {
    ((u128::from(share) * u128::from(sum)) >> 32) as u64
}

/// `pick` of `sum`, rounded down: below `sum`.
pub fn pick_of(pick: u64, sum: u64) -> u64 {
    ((u128::from(pick) * u128::from(sum)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_exponentials() {
        assert_eq!(weight(0.0), 1 << 40);
        assert_eq!([weight(29.0), weight(f32::INFINITY), weight(f32::NAN)], [0; 3]);
        let mut before = weight(0.0);
        for step in 1..30_000 {
            let distance = step as f32 / 1000.0;
            let (found, exact) = (weight(distance), (-f64::from(distance)).exp() * (1u64 << 40) as f64);
            // The product with log2(e) rounds, and so does what is shifted out.
            let most = exact * (f64::from(distance) * 2f64.powi(-23) + 1e-8) + 1.0;
            assert!((found as f64 - exact).abs() <= most, "{distance}: {found}, not {exact}");
            assert!(found <= before, "{distance}");
            before = found;
        }
    }

    #[test]
    fn shares_are_of_the_whole() {
        assert_eq!([share(1.0), share(2.0), share(0.5), share(f32::MIN_POSITIVE)], [0, 0, 1 << 31, 1]);
        assert_eq!(share_of(1 << 31, 1 << 58), 1 << 57);
        assert_eq!(pick_of(u64::MAX, 1 << 58), (1 << 58) - 1);
        assert_eq!(pick_of(0, 1 << 58), 0);
    }
}
