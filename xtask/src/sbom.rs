//! `cargo xtask sbom`: a bill of materials of the program, in CycloneDX 1.5 (JSON).
//!
//! `cargo tree` lists the crates that the program is built from, `cargo metadata` describes them and their
//! dependencies, and `Cargo.lock` has their checksums. `cargo metadata` alone is not enough, because it includes the
//! features of tests. Crates that run only while the program is built (macros, build scripts, and the crates that
//! these use) have the scope `excluded`. The libraries of the chat page stand beside its licences, where
//! `tools/serving/vendor_page.sh` writes them. The document has no date and no random number, so the same commit gives the
//! same bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::{Map, Value, json};

/// The package whose program users get.
const PROGRAM: &str = "hotmetal";

/// Write a software bill of materials of the program (CycloneDX 1.5), and fail if one of its direct dependencies has no
/// row in `docs/dependencies.md`, or a row there names no dependency
#[derive(Args)]
pub(crate) struct SbomArgs {
    /// The file to write
    #[arg(default_value = "target/hotmetal.cdx.json")]
    file: PathBuf,

    /// The platform that the program is for
    #[arg(long, default_value = "x86_64-unknown-linux-gnu")]
    target: String,
}

/// Runs `cargo xtask sbom`.
pub(crate) fn sbom(args: &SbomArgs) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
    let said = Said::of(&root, &args.target)?;
    let graph = said.graph()?;
    let document = fs::read_to_string(root.join("docs/dependencies.md"))?;
    graph.check(&rows(&document))?;
    let licences = licences_of_page(&root)?;
    let page = PageLibrary::all(&licences);
    for library in &page {
        ensure!(document.contains(&format!("[{}]", library.name)), "no row of docs/dependencies.md names {library:?}");
    }
    let text = graph.document(&root, &page)?;
    fs::write(&args.file, text).with_context(|| format!("cannot write {}", args.file.display()))?;
    let count = |scope: &str| graph.scopes.values().filter(|found| **found == scope).count();
    println!(
        "{}: {} crates in the program for {}, {} more that build it, {} libraries of the page",
        args.file.display(),
        count(REQUIRED),
        args.target,
        count(EXCLUDED),
        page.len()
    );
    Ok(())
}

/// A crate of others that is in the program.
pub(crate) struct CrateInProgram {
    pub(crate) name: String,
    pub(crate) version: String,
    /// As its manifest has it.
    pub(crate) license: String,
    /// Where its source is on this machine.
    pub(crate) folder: PathBuf,
}

/// The bill of materials of the program for a target, and the crates of others that are in it, by their names.
pub(crate) fn of_program(root: &Path, target: &str) -> Result<(String, Vec<CrateInProgram>)> {
    let said = Said::of(root, target)?;
    let graph = said.graph()?;
    let licences = licences_of_page(root)?;
    let bill = graph.document(root, &PageLibrary::all(&licences))?;
    Ok((bill, graph.crates_of_others()))
}

/// What Cargo says of the program for a target.
struct Said {
    metadata: Value,
    tree: String,
}

impl Said {
    fn of(root: &Path, target: &str) -> Result<Self> {
        let cargo = |arguments: &[&str]| -> Result<String> {
            let mut cargo = Command::new("cargo");
            let output = cargo.current_dir(root).args(arguments).output().context("cannot run `cargo`")?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "`cargo {}` fails: {said}", arguments.join(" "));
            Ok(String::from_utf8(output.stdout)?)
        };
        let metadata = cargo(&["metadata", "--format-version", "1", "--locked", "--filter-platform", target])?;
        let kinds = ["--edges", "normal,build", "--prefix", "none", "--format", "{p}"];
        let tree = [&["tree", "--locked", "--package", PROGRAM, "--target", target], &kinds[..]].concat();
        Ok(Self { metadata: serde_json::from_str(&metadata)?, tree: cargo(&tree)? })
    }

    fn graph(&self) -> Result<Graph<'_>> {
        Graph::new(&self.metadata, &self.tree)
    }
}

/// The licences of the chat page's libraries.
fn licences_of_page(root: &Path) -> Result<String> {
    Ok(fs::read_to_string(root.join("crates/server/src/page/vendor/LICENSES.txt"))?)
}

/// The scope of crates that are in the program.
const REQUIRED: &str = "required";
/// The scope of crates that run only while the program is built.
const EXCLUDED: &str = "excluded";

/// The crates that the program is built from.
struct Graph<'a> {
    /// By id, as everything here.
    packages: BTreeMap<&'a str, &'a Value>,
    /// The packages of this repository.
    members: BTreeSet<&'a str>,
    /// What each depends on, without what only its tests need; `true` where only its build script needs it.
    edges: BTreeMap<&'a str, Vec<(&'a str, bool)>>,
    program: &'a str,
    /// Of all that the program is built from, [`REQUIRED`] or [`EXCLUDED`].
    scopes: BTreeMap<&'a str, &'static str>,
}

/// The elements of a list, none where it is missing.
fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A field that is a text, "" where it is missing.
fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

impl<'a> Graph<'a> {
    /// Reads what `cargo metadata` and `cargo tree` write. A line of the latter begins with a name, ` v` and a version.
    fn new(metadata: &'a Value, tree: &str) -> Result<Self> {
        let packages: BTreeMap<_, _> =
            list(&metadata["packages"]).map(|package| (text(package, "id"), package)).collect();
        let lines = tree.lines().filter_map(|line| line.split_once(" v"));
        let in_tree: BTreeSet<(&str, &str)> =
            lines.map(|(name, rest)| (name, rest.split(' ').next().unwrap_or(rest))).collect();
        let is_in_tree = |id| {
            let package: &Value = packages[id];
            in_tree.contains(&(text(package, "name"), text(package, "version")))
        };
        let members = list(&metadata["workspace_members"]).filter_map(Value::as_str).collect();
        let mut edges = BTreeMap::new();
        for node in list(&metadata["resolve"]["nodes"]) {
            let mut found = Vec::new();
            for dep in list(&node["deps"]).filter(|dep| is_in_tree(text(dep, "pkg"))) {
                let has = |kind: Value| list(&dep["dep_kinds"]).any(|dep_kind| dep_kind["kind"] == kind);
                if has(Value::Null) {
                    found.push((text(dep, "pkg"), false));
                } else if has(json!("build")) {
                    found.push((text(dep, "pkg"), true));
                }
            }
            edges.insert(text(node, "id"), found);
        }
        let program = packages.iter().find(|(_, package)| text(package, "name") == PROGRAM).map(|(id, _)| *id);
        let program = program.with_context(|| format!("no package is named `{PROGRAM}`"))?;
        let mut graph = Self { packages, members, edges, program, scopes: BTreeMap::new() };
        graph.visit(program, REQUIRED);
        Ok(graph)
    }

    /// Gives `scope` to a package and all that it depends on.
    fn visit(&mut self, id: &'a str, scope: &'static str) {
        let is_macro = |target: &Value| list(&target["kind"]).any(|kind| kind == "proc-macro");
        let scope = if list(&self.packages[id]["targets"]).any(is_macro) { EXCLUDED } else { scope };
        // What is in the program stays in it, whatever else needs it.
        let known = self.scopes.get(id).copied();
        if known == Some(REQUIRED) || known == Some(scope) {
            return;
        }
        self.scopes.insert(id, scope);
        for (dependency, is_for_build) in self.edges.get(id).cloned().unwrap_or_default() {
            self.visit(dependency, if is_for_build { EXCLUDED } else { scope });
        }
    }

    fn name(&self, id: &str) -> &'a str {
        text(self.packages[id], "name")
    }

    /// An error if a direct dependency has no row of `docs/dependencies.md`, or a row has no dependency. All other
    /// crates are reached from direct dependencies.
    fn check(&self, rows: &BTreeSet<&str>) -> Result<()> {
        let members = || self.scopes.keys().filter(|id| self.members.contains(**id));
        let direct = members().flat_map(|id| self.edges.get(id).into_iter().flatten().map(move |(to, _)| (*id, *to)));
        let missing: BTreeSet<_> = direct
            .filter(|(_, to)| !self.members.contains(to) && !rows.contains(self.name(to)))
            .map(|(from, to)| format!("`{}` of `{}`", self.name(to), self.name(from)))
            .collect();
        ensure!(
            missing.is_empty(),
            "no row of docs/dependencies.md says why these are here: {}",
            missing.into_iter().collect::<Vec<_>>().join(", ")
        );
        // As the manifests have them: on all platforms.
        let declared: BTreeSet<&str> = self
            .members
            .iter()
            .flat_map(|id| list(&self.packages[id]["dependencies"]).map(|dependency| text(dependency, "name")))
            .collect();
        let stale: Vec<&str> = rows.iter().copied().filter(|row| !declared.contains(row)).collect();
        ensure!(stale.is_empty(), "docs/dependencies.md has rows of what nothing depends on: {}", stale.join(", "));
        Ok(())
    }

    /// The crates of others that are in the program, by their names.
    fn crates_of_others(&self) -> Vec<CrateInProgram> {
        let is_in_it = |(id, scope): &(&&'a str, &&str)| **scope == REQUIRED && !self.members.contains(**id);
        let described = |(id, _): (&&'a str, _)| {
            let package = self.packages[*id];
            let manifest = Path::new(text(package, "manifest_path"));
            CrateInProgram {
                name: text(package, "name").to_owned(),
                version: text(package, "version").to_owned(),
                license: text(package, "license").to_owned(),
                folder: manifest.parent().unwrap_or(manifest).to_owned(),
            }
        };
        let mut crates: Vec<_> = self.scopes.iter().filter(is_in_it).map(described).collect();
        crates.sort_by(|one, other| (&one.name, &one.version).cmp(&(&other.name, &other.version)));
        crates
    }

    /// The document as text, with the checksums of `Cargo.lock`.
    fn document(&self, root: &Path, page: &[PageLibrary<'_>]) -> Result<String> {
        let bill = self.bill(&checksums(&fs::read_to_string(root.join("Cargo.lock"))?), page);
        Ok(serde_json::to_string_pretty(&bill)? + "\n")
    }

    /// The document. `checksums` are SHA-256 by name and version, `page` the libraries of the chat page.
    fn bill(&self, checksums: &BTreeMap<(String, String), String>, page: &[PageLibrary<'_>]) -> Value {
        let own = self.component(self.program, checksums);
        let others = self.scopes.keys().filter(|id| **id != self.program);
        let components: Vec<Value> = others.map(|id| self.component(id, checksums)).collect();
        let components: Vec<Value> = components.into_iter().chain(page.iter().map(PageLibrary::component)).collect();
        let dependencies: Vec<Value> = self
            .scopes
            .keys()
            .map(|id| {
                let on: BTreeSet<String> =
                    self.edges.get(id).into_iter().flatten().map(|(to, _)| self.purl(to)).collect();
                json!({ "ref": self.purl(id), "dependsOn": on })
            })
            .collect();
        json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": {
                "tools": { "components": [{ "type": "application", "name": "cargo xtask sbom" }] },
                "component": own,
            },
            "components": components,
            "dependencies": dependencies,
        })
    }

    /// The package's address in the form of "purl", which is also its name within the document.
    fn purl(&self, id: &str) -> String {
        let package = self.packages[id];
        // A version may have a `+`, which has a meaning of its own in addresses.
        format!("pkg:cargo/{}@{}", text(package, "name"), text(package, "version").replace('+', "%2B"))
    }

    fn component(&self, id: &str, checksums: &BTreeMap<(String, String), String>) -> Value {
        let package = self.packages[id];
        let (name, version) = (text(package, "name"), text(package, "version"));
        let mut component = Map::new();
        let mut set = |field: &str, value: Value| component.insert(field.to_owned(), value);
        set("type", json!(if id == self.program { "application" } else { "library" }));
        set("bom-ref", json!(self.purl(id)));
        set("name", json!(name));
        set("version", json!(version));
        let description = text(package, "description").split_whitespace().collect::<Vec<_>>().join(" ");
        if !description.is_empty() {
            set("description", json!(description));
        }
        if id != self.program {
            set("scope", json!(self.scopes[id]));
        }
        if let Some(checksum) = checksums.get(&(name.to_owned(), version.to_owned())) {
            set("hashes", json!([{ "alg": "SHA-256", "content": checksum }]));
        }
        let license = text(package, "license");
        if !license.is_empty() {
            // Before SPDX expressions a slash was the way to write "or".
            let expression = license.split('/').map(str::trim).collect::<Vec<_>>().join(" OR ");
            set("licenses", json!([{ "expression": expression }]));
        }
        set("purl", json!(self.purl(id)));
        let repository = text(package, "repository");
        if !repository.is_empty() {
            set("externalReferences", json!([{ "type": "vcs", "url": repository }]));
        }
        Value::Object(component)
    }
}

/// A library of the chat page, from the npm registry.
#[derive(Debug, PartialEq)]
struct PageLibrary<'a> {
    name: &'a str,
    version: &'a str,
    license: &'a str,
}

impl<'a> PageLibrary<'a> {
    /// Reads the first line of each licence: `FILE.js: NAME VERSION (LICENCE)`.
    fn all(licences: &'a str) -> Vec<Self> {
        let library = |line: &'a str| {
            let (_, library) = line.split_once(".js: ")?;
            let (package, license) = library.strip_suffix(')')?.split_once(" (")?;
            let (name, version) = package.split_once(' ')?;
            Some(Self { name, version, license })
        };
        licences.lines().filter_map(library).collect()
    }

    fn component(&self) -> Value {
        let purl = format!("pkg:npm/{}@{}", self.name.replace('@', "%40"), self.version);
        json!({
            "type": "library", "bom-ref": purl, "name": self.name, "version": self.version, "scope": REQUIRED,
            "licenses": [{ "expression": self.license }], "purl": purl,
        })
    }
}

/// The crates that the table in `docs/dependencies.md` has in its first column.
fn rows(document: &str) -> BTreeSet<&str> {
    let cells = document.lines().filter_map(|line| line.strip_prefix("| `")?.split('|').next());
    // Between quotes every second part is a name; the first of the cell has lost its quote.
    cells.flat_map(|cell| cell.split('`').step_by(2)).map(str::trim).filter(|name| !name.is_empty()).collect()
}

/// The checksums in a `Cargo.lock`, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let mut checksums = BTreeMap::new();
    for package in lock.split("[[package]]") {
        let field = |name: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""));
            line.and_then(|line| line.strip_suffix('"')).map(str::to_owned)
        };
        if let (Some(name), Some(version), Some(checksum)) = (field("name"), field("version"), field("checksum")) {
            checksums.insert((name, version), checksum);
        }
    }
    checksums
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The package `hotmetal` needs `ours`, which needs `theirs` (needs `deep`), `macros` (needs `syntax`), `builder`
    /// in its build script (needs `deep`), and `tester` in its tests.
    fn metadata() -> Value {
        let package = |name: &str, kind: &str, dependencies: &[&str]| {
            let dependencies: Vec<Value> = dependencies.iter().map(|name| json!({ "name": name })).collect();
            json!({
                "id": name, "name": name, "version": "1.0.0+x", "license": "MIT/Apache-2.0", "description": "a\n b",
                "targets": [{ "kind": [kind] }], "dependencies": dependencies,
            })
        };
        let node = |name: &str, deps: &[(&str, Value)]| {
            let dep = |(name, kind): &(&str, Value)| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
            json!({ "id": name, "deps": deps.iter().map(dep).collect::<Vec<_>>() })
        };
        let normal = Value::Null;
        json!({
            "workspace_members": ["hotmetal", "ours"],
            "packages": [
                package("hotmetal", "bin", &["ours"]),
                package("ours", "lib", &["theirs", "macros", "builder", "tester", "on-macos"]),
                package("theirs", "lib", &["deep"]),
                package("deep", "lib", &[]),
                package("macros", "proc-macro", &["syntax"]),
                package("syntax", "lib", &[]),
                package("builder", "lib", &["deep"]),
                package("tester", "lib", &[]),
                package("optional", "lib", &[]),
            ],
            "resolve": { "nodes": [
                node("hotmetal", &[("ours", normal.clone())]),
                node("ours", &[
                    ("builder", json!("build")), ("macros", normal.clone()), ("tester", json!("dev")),
                    ("theirs", normal.clone()), ("optional", normal.clone()),
                ]),
                node("theirs", &[("deep", normal.clone())]),
                node("macros", &[("syntax", normal.clone())]),
                node("builder", &[("deep", normal.clone())]),
            ] },
        })
    }

    /// What `cargo tree` says of it: tests alone switch `optional` on.
    const TREE: &str = "hotmetal v1.0.0+x (/a b)\nours v1.0.0+x (/a b)\ntheirs v1.0.0+x\ndeep v1.0.0+x\n\
        macros v1.0.0+x (proc-macro)\nsyntax v1.0.0+x\nbuilder v1.0.0+x\ndeep v1.0.0+x (*)\n";

    #[test]
    fn crates_that_only_build_the_program_are_excluded_and_those_of_tests_are_not_listed() {
        let metadata = metadata();
        let graph = Graph::new(&metadata, TREE).unwrap();
        let scopes = ["builder", "deep", "hotmetal", "macros", "ours", "syntax", "theirs"]
            .into_iter()
            .zip([EXCLUDED, REQUIRED, REQUIRED, EXCLUDED, REQUIRED, EXCLUDED, REQUIRED]);
        assert_eq!(graph.scopes, scopes.collect());
    }

    #[test]
    fn every_direct_dependency_needs_a_row_and_every_row_a_dependency() {
        let metadata = metadata();
        let graph = Graph::new(&metadata, TREE).unwrap();
        let check = |document: &str| graph.check(&rows(document)).map_err(|error| error.to_string());
        let document = "| crate | used by |\n|---|---|\n| `theirs`, `macros` | all |\n| `builder` | `ours` |\n";
        assert_eq!(check(document), Ok(()));
        assert_eq!(check(&format!("{document}| `on-macos` | ours |\n")), Ok(()));
        let missing = "no row of docs/dependencies.md says why these are here: `builder` of `ours`";
        assert_eq!(check("| `theirs`, `macros` | all |"), Err(missing.to_owned()));
        let stale = "docs/dependencies.md has rows of what nothing depends on: gone";
        assert_eq!(check(&format!("{document}| `gone` | ours |\n")), Err(stale.to_owned()));
    }

    #[test]
    fn the_document_has_checksums_licences_and_edges() {
        let metadata = metadata();
        let lock = "[[package]]\nname = \"deep\"\nversion = \"1.0.0+x\"\nsource = \"registry\"\nchecksum = \"ab\"\n\n\
                    [[package]]\nname = \"ours\"\nversion = \"1.0.0+x\"\n";
        let page = PageLibrary::all("a.js: @b/c 1.2.3 (MIT)\n\nCopyright (c) b: all.\n");
        assert_eq!(page, [PageLibrary { name: "@b/c", version: "1.2.3", license: "MIT" }]);
        let bill = Graph::new(&metadata, TREE).unwrap().bill(&checksums(lock), &page);
        let reference = "pkg:cargo/deep@1.0.0%2Bx";
        assert_eq!(
            bill["components"][1],
            json!({
                "type": "library", "bom-ref": reference, "name": "deep", "version": "1.0.0+x", "description": "a b",
                "scope": "required", "hashes": [{ "alg": "SHA-256", "content": "ab" }],
                "licenses": [{ "expression": "MIT OR Apache-2.0" }], "purl": reference,
            })
        );
        let reference_of_page = "pkg:npm/%40b/c@1.2.3";
        assert_eq!(list(&bill["components"]).last().unwrap()["purl"], reference_of_page);
        assert_eq!(bill["metadata"]["component"]["type"], "application");
        let theirs = json!({ "ref": "pkg:cargo/theirs@1.0.0%2Bx", "dependsOn": [reference] });
        assert!(list(&bill["dependencies"]).any(|found| *found == theirs));
        // Every edge leads to a component.
        let is_listed = |on: &Value| list(&bill["components"]).any(|component| component["bom-ref"] == *on);
        assert!(list(&bill["dependencies"]).flat_map(|found| list(&found["dependsOn"])).all(is_listed));
    }
}
