//! The rules of ARCHITECTURE.md that a machine can hold: which crate may depend on which, where `unsafe`, processor
//! detection and the environment may appear, that documents name files that exist, and that files make no circles.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace is above this crate")
}

/// Each crate with the crates of ours that it may name in `[dependencies]`.
const MAY_DEPEND_ON: [(&str, &[&str]); 15] = [
    ("tensor", &[]),
    ("mapped", &[]),
    ("records", &[]),
    ("formats", &["tensor"]),
    ("tokenizer", &[]),
    ("plan", &["tensor"]),
    ("models", &["plan"]),
    // `testing` for the conformance suite, behind the feature of that name.
    ("backend", &["plan", "tensor", "testing"]),
    ("cpu", &["backend", "plan", "tensor"]),
    ("gpu", &["backend", "mapped", "plan", "tensor"]),
    ("engine", &["backend", "plan"]),
    ("lab", &["backend", "plan", "tensor"]),
    ("testing", &["formats", "models", "plan", "tensor"]),
    ("server", &["engine", "mapped", "tokenizer"]),
    (
        "cli",
        &[
            "backend",
            "cpu",
            "engine",
            "formats",
            "gpu",
            "lab",
            "mapped",
            "models",
            "plan",
            "records",
            "server",
            "tensor",
            "tokenizer",
        ],
    ),
];

/// Crates that may hold `unsafe`; all others forbid it.
const MAY_BE_UNSAFE: [&str; 3] = ["cpu", "gpu", "mapped"];

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for path in entries.map(|entry| entry.expect("a readable entry").path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// Lines of code that contain `word`, as `path:line`, without comment lines.
fn uses(folder: &Path, word: &str) -> Vec<String> {
    let mut found = Vec::new();
    for file in rust_files(folder) {
        let text = fs::read_to_string(&file).expect("source is UTF-8");
        for (index, line) in text.lines().enumerate() {
            let line = line.trim_start();
            if line.contains(word) && !line.starts_with("//") {
                found.push(format!("{}:{}", file.display(), index + 1));
            }
        }
    }
    found
}

#[test]
fn crates_depend_one_way() {
    let ours: BTreeMap<_, _> = MAY_DEPEND_ON.into_iter().collect();
    let folders: BTreeSet<String> = fs::read_dir(root().join("crates"))
        .expect("crates/ exists")
        .map(|entry| entry.expect("a readable entry").file_name().into_string().expect("UTF-8 names"))
        .collect();
    assert_eq!(folders, ours.keys().map(|name| (*name).to_owned()).collect(), "a new crate gets a line in this table");
    for (name, allowed) in &ours {
        let manifest = fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).expect("a manifest");
        let manifest: toml::Table = manifest.parse().expect("a manifest is TOML");
        let Some(dependencies) = manifest.get("dependencies").and_then(toml::Value::as_table) else { continue };
        for dependency in dependencies.keys().filter(|dependency| ours.contains_key(dependency.as_str())) {
            assert!(allowed.contains(&dependency.as_str()), "`{name}` must not depend on `{dependency}`");
        }
    }
}

#[test]
fn unsafe_code_stays_where_it_is_allowed() {
    for (name, _) in MAY_DEPEND_ON {
        let source = root().join("crates").join(name).join("src");
        let entry = if name == "cli" { "main.rs" } else { "lib.rs" };
        let text = fs::read_to_string(source.join(entry)).expect("each crate has an entry file");
        let forbids = text.contains("#![forbid(unsafe_code)]");
        assert_eq!(forbids, !MAY_BE_UNSAFE.contains(&name), "`#![forbid(unsafe_code)]` in `{name}`");
    }
}

#[test]
fn every_file_with_unsafe_is_listed() {
    let list = fs::read_to_string(root().join("docs/unsafe.md")).expect("docs/unsafe.md exists");
    let crates = root().join("crates");
    for name in MAY_BE_UNSAFE {
        for place in uses(&crates.join(name).join("src"), "unsafe ") {
            let file = place.rsplit_once(':').map_or(place.as_str(), |(file, _)| file);
            let file = Path::new(file).strip_prefix(&crates).expect("a source file").display().to_string();
            let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
            let listed = [file.clone(), folder].iter().any(|path| list.contains(&format!("`{path}`")));
            assert!(listed, "docs/unsafe.md does not list `{file}`");
        }
    }
}

/// Where files of tests are modules of one program, a file that nobody names would never be run.
#[test]
fn every_file_of_tests_is_run() {
    for (name, _) in MAY_DEPEND_ON {
        let folder = root().join("crates").join(name);
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
        if !manifest.contains("autotests = false\n") {
            continue;
        }
        let entry = fs::read_to_string(folder.join("tests/main.rs")).expect("the program of the tests");
        for file in fs::read_dir(folder.join("tests")).expect("a folder of tests") {
            let file = file.expect("a readable entry").file_name().into_string().expect("UTF-8 names");
            let Some(module) = file.strip_suffix(".rs").filter(|module| *module != "main") else { continue };
            let is_named =
                entry.contains(&format!("mod {module};\n")) || manifest.contains(&format!("name = \"{module}\"\n"));
            assert!(is_named, "`{name}/tests/{file}` needs a line in `{name}/tests/main.rs`");
        }
    }
}

#[test]
fn every_crate_says_what_it_is() {
    for (name, _) in MAY_DEPEND_ON {
        let entry = if name == "cli" { "main.rs" } else { "lib.rs" };
        let text = fs::read_to_string(root().join("crates").join(name).join("src").join(entry)).expect("an entry file");
        assert!(text.starts_with("//! "), "`{name}` opens with what it does");
    }
}

#[test]
fn processor_and_environment_are_asked_in_one_place() {
    for (name, _) in MAY_DEPEND_ON {
        let source = root().join("crates").join(name).join("src");
        if name != "cpu" {
            for word in ["target_arch", "is_x86_feature_detected", "is_aarch64_feature_detected"] {
                assert_eq!(uses(&source, word), [""; 0], "`{word}` outside `cpu`");
            }
        }
        if name != "cli" {
            for word in ["env::var", "env::args"] {
                let found = uses(&source, word);
                let found: Vec<_> = found.iter().filter(|at| !at.contains("/testing/")).collect();
                assert_eq!(found, [""; 0], "`{word}` outside `cli`");
            }
        }
    }
}

/// What SECURITY.md says: the commands that connect to another machine are `pull` and `bench serve`.
#[test]
fn only_pull_and_bench_serve_open_connections() {
    let mut files = BTreeSet::new();
    for (name, _) in MAY_DEPEND_ON {
        let source = root().join("crates").join(name).join("src");
        for word in ["ureq::", "TcpStream::connect", "UnixStream::connect", "UdpSocket::"] {
            for place in uses(&source, word) {
                let file = place.rsplit_once(':').map_or(place.as_str(), |(file, _)| file);
                let file = Path::new(file).strip_prefix(root()).expect("a source file").display().to_string();
                files.insert(file);
            }
        }
    }
    // The server's own tests connect to it.
    files.retain(|file| !file.contains("/tests/"));
    let expected =
        ["crates/cli/src/bench/serve/client.rs", "crates/cli/src/hub/client.rs", "crates/cli/src/hub/error.rs"];
    assert_eq!(files, expected.map(str::to_owned).into());
}

/// Paths in back quotes that look like files of ours must exist, so that the documents keep up with the tree.
#[test]
fn documents_name_files_that_exist() {
    let root = root();
    for document in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "THREAT_MODEL.md"] {
        let text = fs::read_to_string(root.join(document)).unwrap_or_else(|error| panic!("{document}: {error}"));
        let mut quoted = text.split('`').skip(1).step_by(2);
        let names_a_file = |word: &&str| {
            let has_end = [".rs", ".md", ".toml", ".py", ".sh"].iter().any(|end| word.ends_with(end));
            has_end && word.contains('/') && !word.contains(['<', '*', ' ', '{', '$'])
        };
        for word in quoted.by_ref().filter(names_a_file) {
            let exists = root.join(word).exists() || root.join("crates").join(word).exists();
            assert!(exists, "{document} names `{word}`, which does not exist");
        }
    }
}

/// A kernel is launched from the file of its name: `gpu/kernels/linear.h` from `gpu/src/kernels/linear.rs`.
#[test]
fn each_file_of_kernels_has_its_launches_beside_it() {
    let folder = root().join("crates/gpu");
    let stems = |inside: &str, ending: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(folder.join(inside)).expect("a folder of kernels");
        let names = entries.map(|entry| entry.expect("a readable entry").file_name().into_string().expect("UTF-8"));
        names.filter_map(|name| Some(name.strip_suffix(ending)?.replace(".simdgroup_matrix", ""))).collect()
    };
    // Included by kernels, or launched by what measures a device and by tests.
    let others = ["all", "metal", "parts", "gemm_formats", "planted_faults", "roofline", "hopper"];
    for (text, code) in [("kernels", "src/kernels"), ("kernels/sm90", "src/kernels/sm90")] {
        let texts: BTreeSet<_> = stems(text, ".h").into_iter().filter(|stem| !others.contains(&&**stem)).collect();
        let codes: BTreeSet<_> = stems(code, ".rs").into_iter().filter(|stem| stem != "mod").collect();
        // The gemm of 8 by 8 is told from that of compute capability 9.0.
        let codes: BTreeSet<_> = codes.into_iter().map(|stem| stem.replace("gemm_simdgroup", "gemm")).collect();
        assert_eq!(texts, codes, "`{text}` and `{code}`");
    }
}

/// The variants of an enum that a `match` of `text` names in its arms, or a `matches!` in its pattern: a set for each.
/// `prefix` is what stands before a variant: `Op::`.
fn variants_in_matches(text: &str, prefix: &str) -> Vec<BTreeSet<String>> {
    let code: String =
        text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let mut found = Vec::new();
    for (word, open) in [("match ", '{'), ("matches!", '(')] {
        for (start, _) in code.match_indices(word) {
            let Some(begin) = code[start..].find(open) else { continue };
            let (mut depth, mut in_pattern, mut in_string) = (0, true, false);
            let mut names = BTreeSet::new();
            let block = &code[start + begin..];
            for (at, character) in block.char_indices() {
                match character {
                    '"' if !block[..at].ends_with('\\') => in_string = !in_string,
                    _ if in_string => {}
                    '{' | '(' | '[' => depth += 1,
                    '}' | ')' | ']' => {
                        depth -= 1;
                        let ends_arm = !block[at + 1..].trim_start().starts_with(['e', '.', '?']);
                        in_pattern |= depth == 1 && character == '}' && ends_arm;
                    }
                    ',' if depth == 1 => in_pattern = true,
                    '=' if depth == 1 && block[at..].starts_with("=>") => in_pattern = false,
                    _ if in_pattern && block[at..].starts_with(prefix) => {
                        let is_of_name = |character: &char| character.is_alphanumeric() || *character == '_';
                        names.insert(block[at + prefix.len()..].chars().take_while(is_of_name).collect());
                    }
                    _ => {}
                }
                if depth == 0 {
                    break;
                }
            }
            found.push(names);
        }
    }
    found
}

/// What an op means stands in one file, and only `op.rs` lists all ops: a new op is a variant, an arm and a file.
#[test]
fn each_op_of_the_plan_has_one_file() {
    let plan = root().join("crates/plan/src");
    let text = fs::read_to_string(plan.join("op.rs")).expect("the ops are listed in op.rs");
    let (_, variants) = text.split_once("pub enum Op {\n").expect("op.rs has the enum");
    let (variants, _) = variants.split_once("\n}\n").expect("the enum ends");
    let variants = variants.lines().filter_map(|line| line.strip_prefix("    ")?.strip_suffix(" {"));
    let snake_case = |name: &str| {
        let mut words = String::new();
        for character in name.chars() {
            if character.is_uppercase() && !words.is_empty() {
                words.push('_');
            }
            words.extend(character.to_lowercase());
        }
        words
    };
    let expected: BTreeSet<_> = variants.map(snake_case).collect();
    assert!(expected.contains("embed") && expected.contains("rope_kv_write"), "{expected:?}");
    let files = rust_files(&plan.join("ops"));
    let stem = |file: &PathBuf| file.file_stem().expect("a file has a name").to_string_lossy().into_owned();
    let stems: BTreeSet<_> = files.iter().map(stem).filter(|stem| stem != "mod").collect();
    assert_eq!(stems, expected, "the files of plan/src/ops are the ops");
    let on_cpu = rust_files(&root().join("crates/cpu/src/ops"));
    let on_cpu: BTreeSet<_> = on_cpu.iter().map(stem).filter(|stem| stem != "mod").collect();
    assert_eq!(on_cpu, expected, "the files of cpu/src/ops are the ops");
    for file in files.iter().filter(|file| stem(file) != "mod") {
        let text = fs::read_to_string(file).expect("source is UTF-8");
        let name = format!("fn name(&self) -> &'static str {{\n        \"{}\"", stem(file));
        assert!(text.contains(&name), "`Op::name` of {} is its file's name", file.display());
    }

    let toy =
        "match op { Op::A { x, .. } | Op::B => { Op::Not }, Op::C => f(Op::Not), _ => Op::Not }; matches!(op, Op::D)";
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(variants_in_matches(toy, "Op::"), [names(&["A", "B", "C"]), names(&["D"])]);
    for name in ["plan", "backend", "testing"] {
        for file in rust_files(&root().join("crates").join(name).join("src")) {
            let text = fs::read_to_string(&file).expect("source is UTF-8");
            for ops in variants_in_matches(&text, "Op::") {
                assert!(ops.len() <= 4, "{} lists ops, which plan/src/ops is for: {ops:?}", file.display());
            }
        }
    }
}

/// What a format of weights is on GPUs stands in one file: launchers ask its facts, and do not match over formats.
#[test]
fn only_their_files_match_over_the_formats_of_gpus() {
    let toy = "match (f, x) { (F::A_1, true) => { F::Not } Some(F::B) => if x { 1 } else { F::Not }, _ => g(F::Not) }; \
               matches!(f, F::C | F::D)";
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(variants_in_matches(toy, "F::"), [names(&["A_1", "B"]), names(&["C", "D"])]);

    let source = root().join("crates/gpu/src");
    for file in rust_files(&source).into_iter().filter(|file| !file.starts_with(source.join("formats"))) {
        let text = fs::read_to_string(&file).expect("source is UTF-8");
        for formats in variants_in_matches(&text, "DeviceFormat::") {
            let file = file.display();
            assert!(formats.is_empty(), "{file} matches over formats, which gpu/src/formats is for: {formats:?}");
        }
        assert!(!text.contains("let DeviceFormat::"), "{} matches over formats", file.display());
    }
}

/// A golden that does not say what made it is not evidence. What a golden folder holds has a `source.toml`, or its name
/// stands in the folder's PROVENANCE.md, in back quotes; and what that page names exists.
#[test]
fn every_golden_says_what_made_it() {
    for (page, golden) in [
        ("formats/tests/golden", "formats/tests/golden/quantized"),
        ("models/tests/golden", "models/tests/golden"),
        ("tensor/tests/golden", "tensor/tests/golden"),
        ("tokenizer/tests/golden", "tokenizer/tests/golden"),
    ] {
        let (page, golden) =
            (root().join("crates").join(page).join("PROVENANCE.md"), root().join("crates").join(golden));
        let text = fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
        let prose: String = text.split("```").step_by(2).collect();
        let named: BTreeSet<&str> = prose.split('`').skip(1).step_by(2).collect();
        let entries = fs::read_dir(&golden).unwrap_or_else(|error| panic!("{}: {error}", golden.display()));
        for path in entries.map(|entry| entry.expect("a readable entry").path()).filter(|path| *path != page) {
            let name = path.file_name().expect("an entry has a name").to_str().expect("UTF-8 names");
            let says = path.join("source.toml").is_file() || named.contains(name);
            assert!(says, "{} does not say what made `{name}`", page.display());
        }
        for name in named.into_iter().filter(|name| name.starts_with("tools/") || name.ends_with(".bin")) {
            let exists = root().join(name).is_file() || golden.join(name).is_file();
            assert!(exists, "{} names `{name}`, which does not exist", page.display());
        }
    }
}

/// A circle of files that stays: the top-level modules that are in it, and why.
type Circle = (&'static [&'static str], &'static str);

/// Crates whose files are held to an order, with the circles that stay: no other module of such a crate may, through
/// whatever others, use a module that uses it. Only direct references count (`crate::x`, `super::x`), not those through
/// what the entry file exports again.
const CIRCLES: [(&str, &[Circle]); 15] = [
    ("server", &[]),
    ("cli", &[]),
    (
        "cpu",
        &[(
            &[
                "isa",
                "kernels",
                "kv_cache",
                "ops",
                "own_work",
                "packed",
                "panels",
                "pool",
                "profile",
                "program",
                "projection",
                "simd",
                "step",
            ],
            "not broken up yet: `isa` runs kernels, kernels use the pool, and the pool notes its lanes for `profile`",
        )],
    ),
    ("gpu", &[(&["driver", "vendor"], "not broken up yet: the vendor's products run on the driver that makes them")]),
    ("tensor", &[]),
    ("mapped", &[]),
    ("records", &[]),
    ("lab", &[]),
    (
        "formats",
        &[(
            &["experts", "gguf", "gguf_names", "gguf_parts", "quantized"],
            "not broken up yet: what a stack of experts is called and how it is read ask for each other",
        )],
    ),
    (
        "plan",
        &[(
            &["error_analysis", "op", "ops", "reference", "verify"],
            "stays: an op's file has its check, its reference and its bound, and each of the three asks the ops in turn",
        )],
    ),
    ("backend", &[]),
    ("testing", &[]),
    (
        "tokenizer",
        &[
            (&["texts", "vocabulary"], "not broken up yet: both are the tables of one vocabulary"),
            (&["fim", "stream_decode", "tokenizer"], "not broken up yet: `Tokenizer` makes and holds the other two"),
        ],
    ),
    ("models", &[]),
    ("engine", &[(&["batch", "scheduler", "sequence"], "not broken up yet: `ServiceOrder` belongs below all three")]),
];

#[test]
fn files_make_no_circles_but_those_listed() {
    for (name, allowed) in CIRCLES {
        let source = root().join("crates").join(name).join("src");
        let found = circles(&references(&source));
        for circle in &found {
            let is_listed = |(listed, _): &Circle| circle.iter().all(|module| listed.contains(&module.as_str()));
            assert!(
                allowed.iter().any(is_listed),
                "the files {circle:?} of `{name}` use each other in a circle: move what the lower one needs below both"
            );
        }
        for (listed, why) in allowed {
            let stands = found.iter().any(|circle| circle.iter().all(|module| listed.contains(&module.as_str())));
            assert!(stands, "the circle {listed:?} of `{name}` ({why}) is gone: take it off the list");
        }
    }
}

#[test]
fn references_are_read_from_source_text() {
    let text = "//! See [`crate::a`].\n\
                use crate::{b::{self, X}, c as d, e::Y};\n\
                pub(crate) use super::f::Z;\n\
                fn g() { super::super::h(); my_crate::i(); crate::j::k() } // crate::l\n\
                #[cfg(test)]\n\
                mod tests {\n\
                \x20   use crate::m;\n\
                }\n\
                use crate::n;\n";
    let found = |depth: usize| first_names(text, depth).into_iter().collect::<Vec<_>>();
    assert_eq!(found(1), ["b", "c", "e", "f", "j", "n"]);
    // From a file in a folder, `super` is the folder's own module.
    assert_eq!(found(2), ["b", "c", "e", "h", "j", "n"]);
    let graph = |edges: &[(&str, &[&str])]| {
        let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        edges.iter().map(|(from, to)| ((*from).to_owned(), of(to))).collect::<BTreeMap<_, _>>()
    };
    let two = graph(&[("a", &["b"]), ("b", &["c"]), ("c", &["a", "d"]), ("d", &[]), ("e", &["f", "a"]), ("f", &["e"])]);
    let expected: Vec<BTreeSet<String>> =
        [vec!["a", "b", "c"], vec!["e", "f"]].map(|names| names.into_iter().map(str::to_owned).collect()).into();
    assert_eq!(circles(&two), expected);
}

/// Each top-level module of a crate, with those that it refers to outside of its tests.
fn references(source: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut files = Vec::new();
    let mut only_in_tests = Vec::new();
    for file in rust_files(source) {
        let mut path: Vec<String> = file
            .strip_prefix(source)
            .expect("a file of this crate")
            .with_extension("")
            .iter()
            .map(|part| part.to_str().expect("UTF-8 names").to_owned())
            .collect();
        path.pop_if(|last| matches!(&**last, "mod" | "lib" | "main"));
        let text = fs::read_to_string(&file).expect("source is UTF-8");
        let declared = text.split("#[cfg(test)]\n").skip(1).filter_map(|rest| {
            let (declaration, _) = rest.split_once('\n')?;
            declaration.trim().strip_suffix(';')?.split_once("mod ").map(|(_, module)| module.to_owned())
        });
        only_in_tests.extend(declared.map(|module| path.iter().cloned().chain([module]).collect::<Vec<_>>()));
        files.push((path, text));
    }
    // The entry file wires the others.
    files.retain(|(path, _)| !path.is_empty() && !only_in_tests.iter().any(|hidden| path.starts_with(hidden)));
    let modules: BTreeSet<String> = files.iter().map(|(path, _)| path[0].clone()).collect();
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in files {
        let names =
            first_names(&text, path.len()).into_iter().filter(|name| *name != path[0] && modules.contains(name));
        graph.entry(path[0].clone()).or_default().extend(names);
    }
    graph
}

/// The names that stand behind `crate::`, and behind as many `super::` as lead to the crate's root, in the text of a
/// module at this depth: without comments and without modules of tests.
fn first_names(text: &str, depth: usize) -> BTreeSet<String> {
    let mut code = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line == "#[cfg(test)]" {
            let next = lines.next().unwrap_or_default();
            if next.contains("mod ") && next.ends_with('{') {
                // It ends where the next line begins with a brace.
                lines.by_ref().find(|line| *line == "}");
            }
            continue;
        }
        code.push_str(line.split("//").next().unwrap_or_default());
        code.push('\n');
    }
    let prefixes = ["crate::".to_owned(), "super::".repeat(depth)];
    let mut names = BTreeSet::new();
    for prefix in prefixes {
        for (at, _) in code.match_indices(&prefix) {
            let before = code[..at].chars().next_back();
            // Behind another `super::` it leads beyond the root, and is no such path.
            if !before.is_some_and(|before| before.is_alphanumeric() || matches!(before, '_' | ':')) {
                tree_names(&code[at + prefix.len()..], &mut names);
            }
        }
    }
    names
}

/// The first name of a path, or those of each path between braces.
fn tree_names(tree: &str, names: &mut BTreeSet<String>) {
    let tree = tree.trim_start();
    let Some(list) = tree.strip_prefix('{') else {
        let end = tree.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(tree.len());
        let name = &tree[..end];
        if !matches!(name, "" | "self" | "super") {
            names.insert(name.to_owned());
        }
        return;
    };
    let (mut depth, mut start) = (0, 0);
    for (at, character) in list.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                tree_names(&list[start..at], names);
                start = at + 1;
                if character == '}' {
                    return;
                }
            }
            _ => {}
        }
    }
}

/// The largest sets of modules of which each one reaches all others.
fn circles(graph: &BTreeMap<String, BTreeSet<String>>) -> Vec<BTreeSet<String>> {
    let reached = |from: &String| {
        let mut found: BTreeSet<String> = BTreeSet::new();
        let mut waiting = vec![from];
        while let Some(module) = waiting.pop() {
            let next = graph.get(module).into_iter().flatten();
            waiting.extend(next.filter(|next| found.insert((*next).clone())));
        }
        found
    };
    let reached: BTreeMap<&String, BTreeSet<String>> = graph.keys().map(|module| (module, reached(module))).collect();
    let mut circles: Vec<BTreeSet<String>> = Vec::new();
    for (module, reaches) in &reached {
        if reaches.contains(*module) && !circles.iter().any(|circle| circle.contains(*module)) {
            let back = |other: &&String| reached.get(other).is_some_and(|reaches| reaches.contains(*module));
            circles.push(reaches.iter().filter(back).cloned().collect());
        }
    }
    circles
}
