//! A folder of the library with many files begins with a table: module, what it decides.

use std::collections::BTreeMap;

/// Folders with more files than this need one.
const FILES_MAX: usize = 4;

/// The modules that the doc comment of their folder does not name. `files` are the sources of the library, by path.
pub(crate) fn unnamed(files: &BTreeMap<String, String>) -> Vec<String> {
    let mut folders: BTreeMap<&str, usize> = BTreeMap::new();
    for name in files.keys() {
        if let Some((folder, _)) = name.rsplit_once('/').filter(|(folder, _)| !folder.ends_with("/src")) {
            *folders.entry(folder).or_default() += 1;
        }
    }
    let mut wrong = Vec::new();
    for folder in folders.into_iter().filter(|(_, count)| *count > FILES_MAX).map(|(folder, _)| folder) {
        let root = [format!("{folder}/mod.rs"), format!("{folder}.rs")];
        let Some((root, text)) = root.iter().find_map(|root| files.get_key_value(root)) else { continue };
        let doc: Vec<&str> = text.lines().filter(|line| line.starts_with("//!")).collect();
        let doc = doc.join("\n");
        let lacks = modules(text).into_iter().filter(|module| !is_named(&doc, module, text));
        wrong.extend(lacks.map(|module| format!("{root}: its table does not name the module `{module}`")));
    }
    wrong
}

/// The modules that a file declares, without those of tests. One with a path of its own goes by that.
fn modules(text: &str) -> Vec<String> {
    let (mut found, mut attributes) = (Vec::<String>::new(), String::new());
    for line in text.lines() {
        if line.starts_with("#[") || (!attributes.is_empty() && !attributes.trim_end().ends_with(']')) {
            attributes.push_str(line);
            continue;
        }
        let words = line.strip_suffix(';').and_then(|line| line.rsplit_once("mod "));
        let visible = words.filter(|(before, _)| before.is_empty() || before.starts_with("pub"));
        if let Some((_, module)) = visible.filter(|_| !attributes.contains("cfg(test)")) {
            let path = attributes.split_once("#[path = \"").and_then(|(_, rest)| rest.split_once(".rs\""));
            let module = path.map_or(module, |(path, _)| path);
            // Two forms of one module, chosen by a feature: the first one is named.
            if !found.iter().any(|there| module.strip_suffix("_off") == Some(there.as_str())) {
                found.push(module.to_owned());
            }
        }
        attributes.clear();
    }
    found.sort();
    found.dedup();
    found
}

/// By its own name, or by a type that the folder exports from it.
fn is_named(doc: &str, module: &str, text: &str) -> bool {
    let exported = text.split("pub use ").skip(1).filter_map(|rest| {
        let items = rest.split(';').next()?.strip_prefix(module)?.strip_prefix("::")?;
        Some(items.trim_matches(['{', '}']).split(',').map(str::trim).map(str::to_owned).collect::<Vec<_>>())
    });
    let names = exported.flatten().chain([module.to_owned()]);
    let stands = |name: &str| ["", "mod@"].iter().any(|kind| doc.contains(&format!("`{kind}{name}`")));
    names.into_iter().any(|name| !name.is_empty() && stands(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_without_a_row_is_named() {
        let root = "//! What.\n//!\n//! | `one`, `two` | x |\n//! | [`Three`] | y |\n\nmod one;\npub mod two;\n\
                    mod three;\n#[cfg(test)]\nmod four_tests;\n#[cfg(feature = \"a\")]\nmod five;\n\
                    #[cfg(not(feature = \"a\"))]\n#[path = \"five_off.rs\"]\nmod five;\npub use three::{More, Three};\n";
        let file = |name: &str| (format!("crates/semel/src/a/{name}.rs"), String::new());
        let mut files = BTreeMap::from(["one", "two", "three", "five"].map(file));
        files.insert("crates/semel/src/a/mod.rs".into(), root.into());
        let line = "crates/semel/src/a/mod.rs: its table does not name the module `five`";
        assert_eq!(unnamed(&files), [line]);
        files.insert("crates/semel/src/a/mod.rs".into(), root.replace("`one`", "`one`, `five`"));
        assert_eq!(unnamed(&files), Vec::<String>::new());
        // A few files need no table.
        files.remove("crates/semel/src/a/one.rs");
        files.insert("crates/semel/src/a/mod.rs".into(), root.into());
        assert_eq!(unnamed(&files), Vec::<String>::new());
    }
}
