//! The service's configuration, and the account's fields.

use std::collections::BTreeMap;

use jitprof::account::{
    Account, AdviceLine, DeferredStats, DumpAccount, LearnStats, SourceAccount, TableStats, UnwindingStats,
};
use jitprof::serve::config::{PushSettings, Settings};

use crate::markdown::{Document, code_in};
use crate::{assert_none, markdown};

fn document(path: &str) -> Document {
    markdown::all().into_iter().find(|document| document.path == path).expect("the document is there")
}

/// Keys with their defaults, those of tables below others with a point between.
fn flatten(prefix: &str, value: &toml::Value, keys: &mut BTreeMap<String, String>) {
    match value {
        toml::Value::Table(table) if !table.is_empty() => {
            for (name, value) in table {
                flatten(&if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") }, value, keys);
            }
        }
        other => {
            keys.insert(prefix.to_owned(), other.to_string());
        }
    }
}

#[test]
fn keys_and_defaults_of_the_configuration_are_those_of_the_service() {
    let mut defaults = BTreeMap::new();
    let settings: toml::Value = toml::from_str(&Settings::default().to_toml()).expect("it is TOML");
    flatten("", &settings, &mut defaults);
    let document = document("docs/reference/configuration.md");
    let mut wrong = Vec::new();
    let mut said = BTreeMap::new();
    for table in document.tables() {
        let (Some(key), Some(default)) = (table.column("key"), table.column("default")) else { continue };
        for (line, cells) in &table.rows {
            let value = code_in(&cells[default]).concat();
            for key in code_in(&cells[key]) {
                said.insert(key, (*line, value.clone()));
            }
        }
    }
    for (key, default) in defaults.iter().filter(|(key, _)| *key != "push") {
        match said.get(key) {
            Some((_, value)) if value == default => {}
            other => wrong.push(format!("{key} = {default} is {other:?} in the document")),
        }
    }
    for (key, (line, value)) in &said {
        if key.contains('.') && !defaults.contains_key(key) && !value.is_empty() {
            wrong.push(format!("line {line}: {key} has no default"));
        }
    }
    assert_none("configuration", wrong);
}

#[test]
fn keys_of_a_push_section_are_documented() {
    let document = document("docs/reference/configuration.md");
    let spans: Vec<String> = document.spans().into_iter().map(|span| span.text).collect();
    let example = "kind = \"pyroscope\"\nurl = \"http://127.0.0.1:4040\"\ntoken_file = \"/t\"\nusername = \"u\"\n\
                   password_file = \"/p\"\ntenant = \"a\"\nca_file = \"/c\"\ndirectory = \"/d\"\nname = \"n\"\n";
    let settings: PushSettings = toml::from_str(example).expect("these are its keys");
    let keys = toml::Table::try_from(settings).expect("it is a table");
    let missing = keys.keys().filter(|key| !spans.iter().any(|span| span == *key));
    assert_none("not documented", missing.cloned().collect());
}

#[test]
fn fields_of_the_account_are_those_of_its_json() {
    let account = Account {
        sources: vec![SourceAccount {
            dumps: vec![DumpAccount { peek: Some(Default::default()), ..DumpAccount::default() }],
            perf_map: Some(Default::default()),
            ..SourceAccount::default()
        }],
        advice: vec![AdviceLine {
            pid: 1,
            comm: String::new(),
            unnamed_frames: 1,
            interpreted_samples: 0,
            advice: String::new(),
            further_processes: 0,
        }],
        unwinding: Some(UnwindingStats::default()),
        tables: Some(TableStats::default()),
        deferred: Some(DeferredStats::default()),
        learned: Some(LearnStats::default()),
        verified: Some(Default::default()),
        ..Account::default()
    };
    let json = serde_json::to_value(&account).expect("it is JSON");
    let document = document("docs/reference/account.md");
    let mut wrong = Vec::new();
    let mut said: Vec<String> = Vec::new();
    for table in document.tables().into_iter().filter(|table| table.column("field").is_some()) {
        for (line, cells) in &table.rows {
            for field in code_in(&cells[0]) {
                if !is_field(&json, &field) {
                    wrong.push(format!("line {line}: the account has no {field}"));
                }
                said.push(field);
            }
        }
    }
    let top = json.as_object().expect("it is an object").keys();
    let missing = top.filter(|key| {
        !said.iter().any(|field| field.split(['.', '[']).next().is_some_and(|first| first == key.as_str()))
    });
    wrong.extend(missing.map(|key| format!("{key} is not documented")));
    assert_none("account", wrong);
}

/// Whether `a.b[].c` leads somewhere; a name in braces is any.
fn is_field(json: &serde_json::Value, path: &str) -> bool {
    let mut at = json;
    for part in path.split('.') {
        if part.starts_with('{') {
            return at.is_object();
        }
        let (name, is_list) = part.strip_suffix("[]").map_or((part, false), |name| (name, true));
        let Some(next) = at.get(name) else { return false };
        match (is_list, next.get(0)) {
            (true, Some(first)) => at = first,
            (true, None) => return next.is_array(),
            (false, _) => at = next,
        }
    }
    true
}
