//! Checks of shapes that ops share, with the words in which a mismatch is reported.

use crate::{KvLayer, LatentLayer, Linear, Norm, Plan, Rows, Value, ValueInfo, WeightId};

/// A fault without its place, which [`verify`](crate::verify()) adds.
pub(crate) type Checked<T = ()> = Result<T, String>;

/// The shapes of a plan, for the checks of ops whose values, weights and indices are in range.
pub(crate) struct Shapes<'a> {
    pub(crate) plan: &'a Plan,
}

impl Shapes<'_> {
    /// Features in a row.
    pub(crate) fn width(&self, value: Value) -> usize {
        self.plan.value(value).width
    }

    /// The rows of `value` are `expected`; `what` is its name in the op.
    pub(crate) fn rows(&self, what: &str, value: Value, expected: Rows) -> Checked {
        let found = self.plan.value(value);
        let wanted = ValueInfo { rows: expected, ..found };
        if found == wanted { Ok(()) } else { Err(mismatch(what, value, found, wanted)) }
    }

    /// A row of `value` has `expected` features.
    pub(crate) fn width_is(&self, what: &str, value: Value, expected: usize) -> Checked {
        let found = self.plan.value(value);
        let wanted = ValueInfo { width: expected, ..found };
        if found == wanted { Ok(()) } else { Err(mismatch(what, value, found, wanted)) }
    }

    /// `value` has the shape of `other`.
    pub(crate) fn like(&self, what: &str, value: Value, other: Value) -> Checked {
        let (found, expected) = (self.plan.value(value), self.plan.value(other));
        if found == expected { Ok(()) } else { Err(mismatch(what, value, found, expected)) }
    }

    /// A row for each token, of whole heads.
    pub(crate) fn heads(&self, what: &str, value: Value, head_dim: usize) -> Checked {
        self.rows(what, value, Rows::Tokens)?;
        if self.width(value).is_multiple_of(head_dim) {
            return Ok(());
        }
        Err(format!("`{what}` ({value}) has width {}, expected a multiple of head_dim {head_dim}", self.width(value)))
    }

    /// `x` has the columns that an order names.
    pub(crate) fn columns(&self, x: Value, order: usize) -> Checked {
        let (width, mut columns) = (self.width(x), self.plan.orders[order].iter());
        match columns.find(|&&column| column as usize >= width) {
            Some(column) => Err(format!("its order names column {column} of {width}")),
            None => Ok(()),
        }
    }

    /// The heads whose keys and values `layer` keeps.
    pub(crate) fn kv_layer(&self, layer: usize) -> Checked<KvLayer> {
        self.plan.kv_layers[layer].heads().ok_or_else(|| format!("cache layer {layer} has latent rows, expected heads"))
    }

    /// The row that `layer` keeps.
    pub(crate) fn latent_layer(&self, layer: usize) -> Checked<LatentLayer> {
        self.plan.kv_layers[layer]
            .latent()
            .ok_or_else(|| format!("cache layer {layer} has heads, expected latent rows"))
    }

    /// `k` and `v` are rows of the cache of `layer`, one for each token.
    pub(crate) fn cache_rows(&self, layer: usize, k: Value, v: Value) -> Checked {
        let expected = self.kv_layer(layer)?.width();
        for (what, value) in [("k", k), ("v", v)] {
            self.rows(what, value, Rows::Tokens)?;
            self.width_is(what, value, expected)?;
        }
        Ok(())
    }

    /// `out` is the projection of `x`.
    pub(crate) fn linear(&self, x: Value, linear: Linear, out: Value) -> Checked {
        self.rows("out", out, self.plan.value(x).rows)?;
        self.projection(linear, self.width(x), self.width(out))
    }

    /// The shapes of a projection's weights.
    pub(crate) fn projection(&self, linear: Linear, in_features: usize, out_features: usize) -> Checked {
        self.weight(linear.weight, &[out_features, in_features])?;
        linear.bias.map_or(Ok(()), |bias| self.weight(bias, &[out_features]))
    }

    /// A norm over slices of a row: the weight is one slice wide.
    pub(crate) fn norm_slices(&self, x: Value, norm: Norm) -> Checked {
        self.norm(norm)?;
        match self.plan.weight(norm.weight).shape[..] {
            [slice] if self.width(x).is_multiple_of(slice) => Ok(()),
            ref shape => {
                let name = &self.plan.weight(norm.weight).name;
                Err(format!("weight `{name}` has shape {shape:?}, expected a divisor of width {}", self.width(x)))
            }
        }
    }

    /// A norm over the whole row.
    pub(crate) fn norm_row(&self, x: Value, norm: Norm) -> Checked {
        self.norm(norm)?;
        self.weight(norm.weight, &[self.width(x)])
    }

    /// The epsilon of a norm.
    pub(crate) fn norm(&self, norm: Norm) -> Checked {
        if norm.eps.is_finite() && norm.eps >= 0.0 { Ok(()) } else { Err(format!("eps is {}", norm.eps)) }
    }

    /// The shape of a weight.
    pub(crate) fn weight(&self, weight: WeightId, expected: &[usize]) -> Checked {
        let found = self.plan.weight(weight);
        if found.shape == expected {
            return Ok(());
        }
        Err(format!("weight `{}` has shape {:?}, expected {expected:?}", found.name, found.shape))
    }
}

fn mismatch(what: &str, value: Value, found: ValueInfo, expected: ValueInfo) -> String {
    format!("`{what}` ({value}) is {}, expected {}", show(found), show(expected))
}

/// `(tokens, 12)`.
pub(crate) fn show(info: ValueInfo) -> String {
    let rows = match info.rows {
        Rows::Tokens => "tokens",
        Rows::Outputs => "outputs",
    };
    format!("({rows}, {})", info.width)
}
