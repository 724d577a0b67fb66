//! `model.safetensors.index.json`: which shard holds which tensor.

use std::{collections::BTreeMap, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};

use crate::{
    FormatError,
    error::shown,
    json::{Bounded, StringMap},
    limits::{Budget, DEPTH_MAX, JSON_VALUES_MAX, TENSORS_MAX},
    safetensors::Safetensors,
};

/// The index of a sharded checkpoint. Shards are plain names of .safetensors files, so that no index can point out of
/// its folder or at another index.
#[derive(Debug)]
pub(crate) struct ShardIndex {
    /// Tensor and shard, sorted by tensor.
    shard_of: Vec<(String, String)>,
}

impl ShardIndex {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut budget = Budget::for_file(bytes.len());
        let mut json = serde_json::Deserializer::from_slice(bytes);
        let parsed = IndexSeed { budget: &mut budget }.deserialize(&mut json);
        let parsed = parsed.and_then(|index| json.end().map(|()| index));
        let mut shard_of = parsed.map_err(|source| FormatError::Json { what: "the index".into(), source })?;
        if let Some((tensor, shard)) = shard_of.iter().find(|(_, shard)| !is_shard_name(shard)) {
            return Err(FormatError::ShardName { tensor: shown(tensor), shard: shown(shard) });
        }
        shard_of.sort_unstable();
        Ok(Self { shard_of })
    }

    /// The shards, sorted, with how many tensors each should hold.
    pub(crate) fn shards(&self) -> BTreeMap<&str, usize> {
        let mut shards = BTreeMap::new();
        for (_, shard) in &self.shard_of {
            *shards.entry(shard.as_str()).or_default() += 1;
        }
        shards
    }

    /// Checks that the shard holds the `count` tensors that the index lists there, and no others.
    pub(crate) fn check(&self, shard: &str, count: usize, file: &Safetensors) -> Result<(), FormatError> {
        let listed = |tensor: &str| {
            let at = self.shard_of.binary_search_by(|(name, _)| name.as_str().cmp(tensor)).ok()?;
            self.shard_of.get(at).filter(|(_, listed)| listed == shard)
        };
        if let Some(extra) = file.tensors().iter().find(|tensor| listed(tensor.name()).is_none()) {
            return Err(FormatError::NotInIndex { tensor: shown(extra.name()), shard: shown(shard) });
        }
        if file.tensors().len() == count {
            return Ok(()); // all of them are listed here and none twice, so none that is listed is missing
        }
        let missing = |(tensor, listed): &&(String, String)| listed == shard && file.tensor_info(tensor).is_none();
        match self.shard_of.iter().find(missing) {
            Some((tensor, _)) => Err(FormatError::NotInShard { tensor: shown(tensor), shard: shown(shard) }),
            None => Ok(()),
        }
    }
}

fn is_shard_name(name: &str) -> bool {
    let forbidden = |c: char| matches!(c, '/' | '\\' | ':') || c.is_control();
    name.ends_with(".safetensors") && !name.starts_with('.') && !name.contains(forbidden)
}

struct IndexSeed<'a> {
    budget: &'a mut Budget,
}

impl<'de> DeserializeSeed<'de> for IndexSeed<'_> {
    type Value = Vec<(String, String)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for IndexSeed<'_> {
    type Value = Vec<(String, String)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a `weight_map`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut values_left = JSON_VALUES_MAX;
        let mut weight_map = None;
        while let Some(key) = map.next_key::<String>()? {
            if key != "weight_map" {
                // `metadata`, whose `total_size` is wrong as often as right: parsed for its form, and dropped.
                map.next_value_seed(Bounded::new(DEPTH_MAX - 1, &mut values_left))?;
                continue;
            }
            let seed = StringMap { what: "tensors", limit: TENSORS_MAX, budget: self.budget };
            if weight_map.replace(map.next_value_seed(seed)?).is_some() {
                return Err(A::Error::custom("key `weight_map` occurs twice"));
            }
        }
        weight_map.ok_or_else(|| A::Error::missing_field("weight_map"))
    }
}
