//! What mutants came to: kept while they are tried, checked in when a file is through, and the score.
//!
//! `target/xtask/mutants.json` holds every mutant that was tried, so that the next call goes on from there.
//! `xtask/mutants.json` is checked in and holds the files of which all mutants were tried, so that another machine does
//! not begin at nothing, and a reader sees how good the tests are. A result is true as long as its file is as it was.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Names;
use super::folders::FOLDERS;
use crate::{phase, tidy};

/// What was tried.
#[derive(Default, Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) commit: String,
    /// By the mutant's name.
    pub(super) mutants: BTreeMap<String, Tried>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Tried {
    /// What its file was.
    pub(super) file: String,
    pub(super) result: MutantResult,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum MutantResult {
    Caught,
    /// A test that hangs has noticed.
    Timeout,
    Missed,
    /// It does not compile.
    Unviable,
}

/// A file of which all mutants were tried. Those that are not listed were caught.
#[derive(Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct FileResult {
    file: String,
    mutants: usize,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    missed: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    timeout: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    unviable: Vec<String>,
}

#[derive(Default, Debug, Serialize, Deserialize)]
struct CheckedIn {
    /// The commit at which something was tried last.
    commit: String,
    /// Tried, caught and unviable, by folder.
    score: BTreeMap<String, String>,
    files: BTreeMap<String, FileResult>,
}

/// The file of a mutant, from its name.
pub(super) fn path(name: &str) -> &str {
    name.split(':').next().unwrap_or_default()
}

fn working() -> PathBuf {
    phase::logs().join("mutants.json")
}

fn checked_in() -> PathBuf {
    tidy::root().join("xtask/mutants.json")
}

fn read<T: Default + for<'de> Deserialize<'de>>(file: &Path) -> T {
    fs::read_to_string(file).ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

fn write(file: &Path, value: &impl Serialize) -> Result<(), String> {
    let text = serde_json::to_string_pretty(value).map_err(|error| error.to_string())?;
    let folder = file.parent().unwrap_or(file);
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(file, text + "\n"));
    written.map_err(|error| format!("{}: {error}", file.display()))
}

/// What is still true of what was tried: a mutant of a file that is as it was, and that was caught or is of this commit.
/// `file_of` says what a file is now.
pub(super) fn load(names: &Names, commit: &str, file_of: impl Fn(&str) -> Option<String>) -> Kept {
    still_true(read(&working()), read(&checked_in()), names, commit, file_of)
}

fn still_true(
    mut kept: Kept,
    checked_in: CheckedIn,
    names: &Names,
    commit: &str,
    file_of: impl Fn(&str) -> Option<String>,
) -> Kept {
    for (folder_and_name, path) in names.iter().map(|name| (name, path(&name.1))) {
        let (name, Some(of_file)) = (&folder_and_name.1, checked_in.files.get(path)) else { continue };
        let in_file = name.strip_prefix(path).unwrap_or(name).trim_start_matches(':');
        let is_in = |list: &[String]| list.iter().any(|one| one == in_file);
        let result = match () {
            () if is_in(&of_file.missed) => MutantResult::Missed,
            () if is_in(&of_file.timeout) => MutantResult::Timeout,
            () if is_in(&of_file.unviable) => MutantResult::Unviable,
            () => MutantResult::Caught,
        };
        kept.mutants.entry(name.clone()).or_insert(Tried { file: of_file.file.clone(), result });
    }
    let is_same_commit = kept.commit == commit;
    let mut files: BTreeMap<String, Option<String>> = BTreeMap::new();
    kept.mutants.retain(|name, tried| {
        let file = files.entry(path(name).to_owned()).or_insert_with(|| file_of(path(name)));
        file.as_ref() == Some(&tried.file) && (is_same_commit || tried.result != MutantResult::Missed)
    });
    kept.commit = commit.to_owned();
    kept
}

pub(super) fn save(kept: &Kept) -> Result<(), String> {
    write(&working(), kept)
}

/// Puts the files that are through into the checked-in results. Others that are there stay until they are through again.
pub(super) fn check_in(names: &Names, kept: &Kept) -> Result<(), String> {
    let mut results: CheckedIn = read(&checked_in());
    merge(&mut results, names, kept);
    write(&checked_in(), &results)
}

fn merge(results: &mut CheckedIn, names: &Names, kept: &Kept) {
    let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (_, name) in names {
        files.entry(path(name)).or_default().push(name);
    }
    for (path, names) in files {
        let tried: Vec<_> = names.iter().filter_map(|name| Some((*name, kept.mutants.get(*name)?))).collect();
        let Some((_, first)) = tried.first().filter(|_| tried.len() == names.len()) else { continue };
        let of = |result: MutantResult| {
            let with = tried.iter().filter(|(_, tried)| tried.result == result);
            let in_file =
                |name: &str| name.strip_prefix(path).unwrap_or(name).trim_start_matches(':').to_owned();
            with.map(|(name, _)| in_file(name)).collect()
        };
        let result = FileResult {
            file: first.file.clone(),
            mutants: names.len(),
            missed: of(MutantResult::Missed),
            timeout: of(MutantResult::Timeout),
            unviable: of(MutantResult::Unviable),
        };
        results.files.insert(path.to_owned(), result);
    }
    results.commit.clone_from(&kept.commit);
    for folder in FOLDERS {
        let of_folder = names.iter().filter(|(name, _)| *name == folder.name).map(|(_, name)| name.as_str());
        let score = score(of_folder, kept);
        if score.tried > 0 {
            results.score.insert(folder.name.to_owned(), score.to_string());
        }
    }
}

/// Of one folder.
#[derive(Default, PartialEq, Eq, Debug)]
pub(super) struct Score {
    pub(super) mutants: usize,
    pub(super) tried: usize,
    pub(super) caught: usize,
    unviable: usize,
}

impl std::fmt::Display for Score {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { mutants, tried, caught, unviable } = self;
        let share = if *tried == 0 { 0.0 } else { 100.0 * *caught as f64 / *tried as f64 };
        write!(f, "{caught} of {tried} caught ({share:.1} %), {unviable} unviable, {mutants} in all")
    }
}

pub(super) fn score<'n>(names: impl Iterator<Item = &'n str>, kept: &Kept) -> Score {
    let mut score = Score::default();
    for name in names {
        score.mutants += 1;
        match kept.mutants.get(name).map(|tried| tried.result) {
            None => {}
            Some(MutantResult::Unviable) => score.unviable += 1,
            Some(MutantResult::Missed) => score.tried += 1,
            Some(MutantResult::Caught | MutantResult::Timeout) => {
                score.tried += 1;
                score.caught += 1;
            }
        }
    }
    score
}

pub(super) fn survivors(names: &Names, kept: &Kept) -> Vec<String> {
    let is_missed =
        |name: &&String| kept.mutants.get(*name).is_some_and(|tried| tried.result == MutantResult::Missed);
    names.iter().map(|(_, name)| name).filter(is_missed).cloned().collect()
}

pub(super) fn report(names: &Names, kept: &Kept) -> Result<(), String> {
    for folder in FOLDERS {
        let of_folder = names.iter().filter(|(name, _)| *name == folder.name).map(|(_, name)| name.as_str());
        let score = score(of_folder, kept);
        if score.mutants > 0 {
            println!("{:<11} {score}", folder.name);
        }
    }
    let survived = survivors(names, kept);
    for name in &survived {
        println!("survived: {name}");
    }
    println!("commit {}, kept in {}", kept.commit, working().display());
    if survived.is_empty() { Ok(()) } else { Err(String::new()) }
}

/// What `outcomes.json` of cargo-mutants says of each mutant.
pub(super) fn outcomes(text: &str) -> Result<BTreeMap<String, MutantResult>, String> {
    let outcomes: Value = serde_json::from_str(text).map_err(|error| format!("outcomes.json: {error}"))?;
    let one = |outcome: &Value| {
        let name = outcome["scenario"]["Mutant"]["name"].as_str()?;
        let result = match outcome["summary"].as_str()? {
            "CaughtMutant" => MutantResult::Caught,
            "MissedMutant" => MutantResult::Missed,
            "Timeout" => MutantResult::Timeout,
            _ => MutantResult::Unviable,
        };
        Some((name.to_owned(), result))
    };
    Ok(outcomes["outcomes"].as_array().into_iter().flatten().filter_map(one).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"outcomes": [
        {"scenario": "Baseline", "summary": "Success"},
        {"scenario": {"Mutant": {"name": "f.rs:1:1: a"}}, "summary": "CaughtMutant"},
        {"scenario": {"Mutant": {"name": "f.rs:2:1: b"}}, "summary": "MissedMutant"},
        {"scenario": {"Mutant": {"name": "f.rs:3:1: c"}}, "summary": "Timeout"},
        {"scenario": {"Mutant": {"name": "f.rs:4:1: d"}}, "summary": "Unviable"}
    ]}"#;

    fn kept() -> Kept {
        let tried = |(name, result)| (name, Tried { file: "blob".to_owned(), result });
        Kept { commit: "c".to_owned(), mutants: outcomes(TEXT).unwrap().into_iter().map(tried).collect() }
    }

    fn names(more: &[&str]) -> Names {
        let all = ["f.rs:1:1: a", "f.rs:2:1: b", "f.rs:3:1: c", "f.rs:4:1: d"].iter().chain(more);
        all.map(|name| ("guard", (*name).to_owned())).collect()
    }

    #[test]
    fn outcomes_are_read_and_scored() {
        let (kept, names) = (kept(), names(&["f.rs:5:1: never tried"]));
        let of = score(names.iter().map(|(_, name)| name.as_str()), &kept);
        assert_eq!(of, Score { mutants: 5, tried: 3, caught: 2, unviable: 1 });
        assert_eq!(survivors(&names, &kept), ["f.rs:2:1: b"]);
        assert!(report(&names, &kept).is_err());
        assert!(report(&vec![("guard", "f.rs:1:1: a".to_owned())], &kept).is_ok());
    }

    #[test]
    fn a_file_that_is_through_is_checked_in_and_read_again() {
        let mut results = CheckedIn::default();
        merge(&mut results, &names(&["f.rs:5:1: never tried"]), &kept());
        assert!(results.files.is_empty(), "not all of its mutants were tried");
        merge(&mut results, &names(&[]), &kept());
        assert_eq!(results.files["f.rs"].missed, ["2:1: b"]);
        let again = |commit: &str, file: &str| {
            let text = serde_json::to_string(&results).unwrap();
            let (checked_in, file) = (serde_json::from_str(&text).unwrap(), Some(file.to_owned()));
            still_true(Kept::default(), checked_in, &names(&[]), commit, |_| file.clone())
        };
        // What survived is tried again with the tests of another commit; the others are known.
        let known: Vec<_> = again("d", "blob").mutants.into_keys().collect();
        assert_eq!(known, ["f.rs:1:1: a", "f.rs:3:1: c", "f.rs:4:1: d"]);
        assert!(again("d", "changed").mutants.is_empty());
    }
}
