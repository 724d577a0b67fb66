//! Stretches the positions of a model: what config.json says of its rotary embedding changes before the plan is built
//! from it.

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};

/// How positions are stretched beyond the trained context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RopeKind {
    /// As trained, whatever the file says.
    Default,
    /// All frequencies divided by the scale.
    Linear,
    /// Slow frequencies divided by the scale, fast ones kept (YaRN).
    Yarn,
}

impl RopeKind {
    /// As config.json has it.
    fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Linear => "linear",
            Self::Yarn => "yarn",
        }
    }
}

/// The field of config.json, or of the parameters in it, that has the trained context.
const ORIGINAL: &str = "original_max_position_embeddings";

/// What is changed of a model's rotary embedding; what is absent stays as the model's files say.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RopeSettings {
    pub(crate) kind: Option<RopeKind>,
    /// How many times the context is stretched.
    pub(crate) scale: Option<f32>,
    /// `rope_theta`.
    pub(crate) freq_base: Option<f32>,
    /// Tokens of the trained context.
    pub(crate) original_context: Option<u32>,
    /// Multiplies what YaRN gives attention scores.
    pub(crate) attention_factor: Option<f32>,
    /// YaRN keeps frequencies that turn so often in the trained context.
    pub(crate) beta_fast: Option<f32>,
    /// YaRN fully stretches frequencies that turn no more often in the trained context.
    pub(crate) beta_slow: Option<f32>,
}

impl RopeSettings {
    /// Writes into `config`, a config.json, what these settings ask for, and the context that `--ctx-size` does:
    /// dynamic and longrope embeddings choose by it.
    pub(crate) fn apply(&self, config: &mut Value, ctx_size: Option<usize>) -> Result<()> {
        let Some(config) = config.as_object_mut() else { return Ok(()) };
        if let Some(ctx_size) = ctx_size {
            config.insert(models::CTX_SIZE.to_owned(), ctx_size.into());
        }
        let is_object = |path: &&str| config.get(*path).is_some_and(Value::is_object);
        let path = ["rope_parameters", "rope_scaling"].into_iter().find(is_object).unwrap_or("rope_scaling");
        let before = config.get(path).and_then(Value::as_object).cloned().unwrap_or_default();
        if let Some(base) = self.freq_base {
            config.insert("rope_theta".to_owned(), base.into());
            if before.contains_key("rope_theta")
                && let Some(parameters) = config.get_mut(path).and_then(Value::as_object_mut)
            {
                parameters.insert("rope_theta".to_owned(), base.into());
            }
        }
        let of_yarn = [
            ("--yarn-orig-ctx", self.original_context.is_some()),
            ("--yarn-attn-factor", self.attention_factor.is_some()),
            ("--yarn-beta-fast", self.beta_fast.is_some()),
            ("--yarn-beta-slow", self.beta_slow.is_some()),
        ];
        let of_yarn = of_yarn.iter().find_map(|&(flag, is_given)| is_given.then_some(flag));
        if self.kind.is_none() && self.scale.is_none() && of_yarn.is_none() {
            return Ok(());
        }
        let kind_before = before.get("rope_type").or_else(|| before.get("type")).and_then(Value::as_str);
        let is_trained_so = kind_before == Some("llama3") || config.contains_key("rope_freq_factors");
        if is_trained_so || !matches!(kind_before, None | Some("default" | "linear" | "yarn" | "dynamic")) {
            let how = if is_trained_so { "llama3" } else { kind_before.unwrap_or_default() };
            bail!(
                "--rope-scaling, --rope-scale and the --yarn- flags are for models whose positions are plain, linear, yarn \
                 or dynamic: this one was trained with `{how}`, and its text would be noise with another"
            );
        }
        let kind = match (self.kind, kind_before) {
            (Some(kind), _) => kind,
            (None, Some("yarn")) => RopeKind::Yarn,
            (None, _) if of_yarn.is_some() => RopeKind::Yarn,
            (None, _) => RopeKind::Linear,
        };
        if let Some(flag) = of_yarn.filter(|_| kind != RopeKind::Yarn) {
            bail!("{flag} is of --rope-scaling yarn, and this is `{}`", kind.name());
        }
        // Parameters of the same kind stay where no flag says another.
        let parameters = if kind_before == Some(kind.name()) { before.clone() } else { Map::new() };
        let original = before.get(ORIGINAL).and_then(Value::as_u64);
        self.rewrite(config, path, (kind, parameters), original)
    }

    /// Replaces the parameters at `path` by those of `kind`, which begin as `parameters`. `original` is the trained
    /// context that the former ones said.
    fn rewrite(
        &self,
        config: &mut Map<String, Value>,
        path: &str,
        (kind, mut parameters): (RopeKind, Map<String, Value>),
        original: Option<u64>,
    ) -> Result<()> {
        let scale = self.scale;
        let in_config = |field| config.get(field).and_then(Value::as_u64);
        let original = self.original_context.map(u64::from).or_else(|| in_config(ORIGINAL)).or(original);
        let Some(original) = original.or_else(|| in_config("max_position_embeddings")) else {
            bail!(
                "the model's files do not say its context: --yarn-orig-ctx N says how many tokens it was trained with"
            );
        };
        if let Some(theta) = config.get(path).and_then(|now| now.get("rope_theta")) {
            parameters.insert("rope_theta".to_owned(), theta.clone());
        }
        parameters.remove("type");
        parameters.insert("rope_type".to_owned(), kind.name().into());
        if kind == RopeKind::Default {
            if let Some(scale) = scale {
                bail!("--rope-scaling none stretches nothing, so --rope-scale {scale} contradicts it");
            }
            config.insert("max_position_embeddings".to_owned(), original.into());
            config.insert(path.to_owned(), parameters.into());
            return Ok(());
        }
        let factor = scale.map(f64::from).or_else(|| parameters.get("factor").and_then(Value::as_f64));
        let Some(factor) = factor else {
            bail!("--rope-scaling {} needs --rope-scale N: how many times the context is to be stretched", kind.name());
        };
        parameters.insert("factor".to_owned(), factor.into());
        if kind == RopeKind::Yarn {
            config.remove(ORIGINAL);
            parameters.insert(ORIGINAL.to_owned(), original.into());
            for (name, value) in [("beta_fast", self.beta_fast), ("beta_slow", self.beta_slow)] {
                if let Some(value) = value {
                    parameters.insert(name.to_owned(), value.into());
                }
            }
            if scale.is_some() || self.attention_factor.is_some() {
                // What scores grow by follows from the new scale.
                let own = models::yarn_attention_factor(factor, 1.0);
                let attention_factor = own * self.attention_factor.map_or(1.0, f64::from);
                parameters.insert("attention_factor".to_owned(), json!(attention_factor));
            }
        }
        let context = (original as f64 * factor) as u64;
        config.insert("max_position_embeddings".to_owned(), context.max(1).into());
        config.insert(path.to_owned(), parameters.into());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(flags: RopeSettings, mut config: Value) -> Result<Value, String> {
        flags.apply(&mut config, None).map(|()| config).map_err(|error| error.to_string())
    }

    fn yarn(scale: f32) -> RopeSettings {
        RopeSettings { kind: Some(RopeKind::Yarn), scale: Some(scale), ..RopeSettings::default() }
    }

    #[test]
    fn no_flag_changes_nothing_but_the_context_that_was_asked_for() {
        let mut config = json!({ "max_position_embeddings": 100, "rope_scaling": { "type": "dynamic", "factor": 2 } });
        let before = config.clone();
        RopeSettings::default().apply(&mut config, None).unwrap();
        assert_eq!(config, before);
        RopeSettings::default().apply(&mut config, Some(7)).unwrap();
        assert_eq!(config[models::CTX_SIZE], 7);
    }

    #[test]
    fn a_scale_opens_a_context_of_so_many_trained_ones() {
        let found = applied(yarn(4.0), json!({ "max_position_embeddings": 100, "rope_scaling": null })).unwrap();
        assert_eq!(found["max_position_embeddings"], 400);
        let scaling = &found["rope_scaling"];
        assert_eq!((&scaling["rope_type"], &scaling["factor"]), (&json!("yarn"), &json!(4.0)));
        assert_eq!(scaling["original_max_position_embeddings"], 100);
        let growth = scaling["attention_factor"].as_f64().unwrap();
        assert!((growth - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-9);
        // The file's own trained context goes before what it says of the stretched one, and the flag before both.
        let config = json!({
            "max_position_embeddings": 400, "rope_theta": 5e5,
            "rope_parameters": { "rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 100, "beta_fast": 16,
                "rope_theta": 7e5 },
        });
        let found = applied(RopeSettings { freq_base: Some(9e5), ..yarn(2.0) }, config.clone()).unwrap();
        assert_eq!(found["max_position_embeddings"], 200);
        let scaling = &found["rope_parameters"];
        assert_eq!((&scaling["beta_fast"], &scaling["rope_theta"]), (&json!(16), &json!(9e5)));
        let found =
            applied(RopeSettings { original_context: Some(50), ..RopeSettings::default() }, config.clone()).unwrap();
        assert_eq!(found["max_position_embeddings"], 200);
        // No scale was given, so that of the file stands, and what scores grow by with it.
        assert_eq!(found["rope_parameters"].get("attention_factor"), None);
        let none = RopeSettings { kind: Some(RopeKind::Default), ..RopeSettings::default() };
        let found = applied(none, config).unwrap();
        assert_eq!(found["rope_parameters"], json!({ "rope_type": "default", "rope_theta": 7e5 }));
        assert_eq!(found["max_position_embeddings"], 100);
    }

    #[test]
    fn a_scale_without_a_kind_is_linear() {
        let plain = json!({ "max_position_embeddings": 100 });
        let flags = RopeSettings { scale: Some(4.0), ..RopeSettings::default() };
        let found = applied(flags, plain).unwrap();
        assert_eq!(found["rope_scaling"], json!({ "rope_type": "linear", "factor": 4.0 }));
        assert_eq!(found["max_position_embeddings"], 400);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_its_flag() {
        let plain = json!({ "max_position_embeddings": 100 });
        let llama3 = json!({ "max_position_embeddings": 100, "rope_scaling": { "rope_type": "llama3", "factor": 8 } });
        let kind = |kind| RopeSettings { kind: Some(kind), ..RopeSettings::default() };
        for (flags, config, expected) in [
            (kind(RopeKind::Yarn), &plain, "--rope-scaling yarn needs --rope-scale N"),
            (yarn(2.0), &llama3, "this one was trained with `llama3`"),
            (
                RopeSettings { beta_fast: Some(1.0), scale: Some(2.0), ..kind(RopeKind::Linear) },
                &plain,
                "--yarn-beta-fast is of --rope-scaling yarn, and this is `linear`",
            ),
            (RopeSettings { scale: Some(2.0), ..kind(RopeKind::Default) }, &plain, "--rope-scale 2 contradicts it"),
            (yarn(2.0), &json!({}), "the model's files do not say its context"),
        ] {
            let error = applied(flags, config.clone()).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
