//! Arguments of the functions, filters and methods that templates call, bound to names as Python does.

use minijinja::{Error, Value};

use super::value::fail;

/// The arguments of one call: positional values, then keyword pairs.
pub(super) struct Args {
    callee: String,
    positional: Vec<Value>,
    keyword: Vec<(String, Value)>,
}

impl Args {
    /// Splits what the engine passes: keyword arguments arrive as one trailing value.
    pub(super) fn new(callee: &str, values: &[Value]) -> Args {
        let (positional, keyword) = match values.split_last() {
            Some((last, rest)) if last.is_kwargs() => (rest, pairs(last)),
            _ => (values, Vec::new()),
        };
        Args { callee: callee.to_owned(), positional: positional.to_vec(), keyword }
    }

    /// The call `callee(*positional, **keyword)`, for filters that call filters (`map`, `select`).
    pub(super) fn forward(callee: &str, positional: Vec<Value>, keyword: Vec<(String, Value)>) -> Args {
        Args { callee: callee.to_owned(), positional, keyword }
    }

    /// Everything as it came, for callees with `*args, **kwargs`.
    pub(super) fn into_parts(self) -> (Vec<Value>, Vec<(String, Value)>) {
        (self.positional, self.keyword)
    }

    /// Each of `names` with its argument; the first `required` must be there, and nothing may be left over.
    pub(super) fn bind<const N: usize>(self, required: usize, names: [&str; N]) -> Result<[Option<Value>; N], Error> {
        let callee = self.callee;
        let mut bound = [const { None }; N];
        let given = self.positional.len();
        if given > N {
            return Err(fail(format!("{callee}() takes {N} arguments, {given} were given")));
        }
        for (slot, value) in bound.iter_mut().zip(self.positional) {
            *slot = Some(value);
        }
        for (name, value) in self.keyword {
            let slot = names.iter().position(|known| *known == name).and_then(|index| bound.get_mut(index));
            match slot {
                Some(slot) if slot.is_none() => *slot = Some(value),
                Some(_) => return Err(fail(format!("{callee}() got two values for argument '{name}'"))),
                None => return Err(fail(format!("{callee}() has no argument '{name}'"))),
            }
        }
        match names.iter().zip(&bound).take(required).find(|(_, value)| value.is_none()) {
            Some((name, _)) => Err(fail(format!("{callee}() needs argument '{name}'"))),
            None => Ok(bound),
        }
    }
}

fn pairs(kwargs: &Value) -> Vec<(String, Value)> {
    let pairs = kwargs.as_object().and_then(|object| object.try_iter_pairs());
    pairs.into_iter().flatten().filter_map(|(name, value)| Some((name.as_str()?.to_owned(), value))).collect()
}
