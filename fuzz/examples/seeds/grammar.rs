//! Known attacks on the compiler of grammars, by their size.

use crate::save;

pub(crate) fn save_all() {
    let chain = |of: &dyn Fn(usize) -> String, count: usize| (0..count).map(of).collect::<Vec<_>>();
    let refs = chain(&|i| format!(r##""d{i}":{{"anyOf":[{{"$ref":"#/$defs/d{}"}}]}}"##, i + 1), 260).join(",");
    let refs = format!(r##"s{{"$ref":"#/$defs/d0","$defs":{{{refs},"d260":{{"type":"null"}}}}}}"##);
    let rules = chain(&|i| format!("r{i}: r{} | \"a\"\n", i + 1), 680).concat();
    let terminals = chain(&|i| format!("T{i}: \"a\" T{}\n", i + 1), 880).concat();
    save("grammar", "chain_of_refs", refs.as_bytes());
    save("grammar", "chain_of_rules", format!("lstart: r0\n{rules}r680: \"b\"\n").as_bytes());
    save("grammar", "chain_of_terminals", format!("lstart: T0\n{terminals}T880: \"b\"\n").as_bytes());
    save("grammar", "optional_parts", format!("r{}", "a?".repeat(8_000)).as_bytes());
    save("grammar", "optional_parts_few", format!("r{}", "a?".repeat(2_400)).as_bytes());
    let meeting: Vec<String> = (0..8).map(|i| format!("/(.{{{}}})*x/", i + 2)).collect();
    save("grammar", "lark_meets_much", format!("lstart: T\nT: {}", meeting.join(" & ")).as_bytes());
}
