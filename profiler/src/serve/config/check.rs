//! What a configuration must not say.

use std::path::Path;

use super::{PushKind, PushSettings, Settings, TokenSetting};
use crate::times::Period;

/// Samples per second at most: more is a recording of its own, not a service.
const MAX_FREQUENCY_HZ: u32 = 10_000;
/// Windows of less than this are more overhead than profile.
const MIN_WINDOW_S: u64 = 1;
/// Longer windows would be held in memory whole.
const MAX_WINDOW_S: u64 = 3600;
/// Push targets at most.
const MAX_TARGETS: usize = 16;

/// A value that cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The value's key, such as `push[0].url`.
    pub key: String,
    /// What is wrong, and what to do.
    pub text: String,
}

/// Finds the first value that cannot be carried out.
///
/// # Errors
/// That value.
pub(super) fn check(settings: &Settings) -> Result<(), Problem> {
    check_sampling(settings)?;
    check_window(settings)?;
    check_storage(settings)?;
    check_access(settings)?;
    check_metrics(settings)?;
    #[cfg(feature = "parquet")]
    settings.archive.parquet.as_ref().map_or(Ok(()), |parquet| check_parquet(parquet, settings))?;
    if settings.push.len() > MAX_TARGETS {
        return Err(problem("push", format!("has more than {MAX_TARGETS} targets")));
    }
    for (index, target) in settings.push.iter().enumerate() {
        check_target(&format!("push[{index}]"), target)?;
        let twice = settings.push[..index].iter().any(|other| other.shown_name() == target.shown_name());
        ensure(!twice, &format!("push[{index}].name"), || {
            format!("another target is called `{}`; give each a `name` of its own", target.shown_name())
        })?;
    }
    Ok(())
}

fn problem(key: &str, text: impl Into<String>) -> Problem {
    Problem { key: key.to_owned(), text: text.into() }
}

fn ensure(holds: bool, key: &str, text: impl FnOnce() -> String) -> Result<(), Problem> {
    if holds { Ok(()) } else { Err(problem(key, text())) }
}

fn check_sampling(settings: &Settings) -> Result<(), Problem> {
    let sampling = &settings.sampling;
    ensure((1..=MAX_FREQUENCY_HZ).contains(&sampling.frequency), "sampling.frequency", || {
        format!("must be from 1 to {MAX_FREQUENCY_HZ}; 19 and 99 are usual")
    })?;
    ensure(sampling.kernel || sampling.user, "sampling.user", || {
        "kernel and user frames are both switched off; leave one on".to_owned()
    })?;
    ensure((1..=1024).contains(&(sampling.unwind_memory.0 >> 20)), "sampling.unwind_memory", || {
        "must be from 1MiB to 1GiB".to_owned()
    })?;
    let selection = &settings.selection;
    let lists = [
        ("comm", &selection.comm),
        ("user", &selection.user),
        ("cgroup", &selection.cgroup),
        ("container", &selection.container),
        ("unit", &selection.unit),
    ];
    lists.into_iter().try_for_each(|(key, values)| {
        ensure(values.iter().all(|value| !value.is_empty()), &format!("selection.{key}"), || {
            "has an empty value; leave it out".to_owned()
        })
    })
}

fn check_window(settings: &Settings) -> Result<(), Problem> {
    let seconds = |period: Period| period.0.as_secs();
    ensure((MIN_WINDOW_S..=MAX_WINDOW_S).contains(&seconds(settings.window.length)), "window.length", || {
        "must be from 1s to 1h".to_owned()
    })?;
    ensure(seconds(settings.window.grace) <= 60, "window.grace", || "must be 1m at most".to_owned())
}

fn check_storage(settings: &Settings) -> Result<(), Problem> {
    let storage = &settings.storage;
    if let Some(directory) = &storage.directory {
        ensure(directory.is_absolute(), "storage.directory", || absolute(directory))?;
    }
    ensure(storage.memory.0 >= 1 << 20, "storage.memory", || "must be 1MiB at least".to_owned())?;
    ensure(storage.max_bytes.0 >= 1 << 20, "storage.max_bytes", || "must be 1MiB at least".to_owned())?;
    ensure(storage.max_age >= settings.window.length, "storage.max_age", || {
        "is less than one window; make it longer".to_owned()
    })
}

fn check_access(settings: &Settings) -> Result<(), Problem> {
    let (http, limits) = (&settings.http, &settings.limits);
    ensure(http.listen.0.is_local() || http.token_file.is_some(), "http.listen", || {
        format!("{} can be reached from other machines; set `token_file`, or listen on 127.0.0.1", http.listen)
    })?;
    ensure(http.token_file.is_none() || http.token == TokenSetting::Random, "http.token", || {
        "is none, but there is a `token_file`; choose one".to_owned()
    })?;
    ensure((0.01..=100.0).contains(&limits.max_cpu), "limits.max_cpu", || {
        "is in percent of the whole machine, all its CPUs together, and must be from 0.01 to 100".to_owned()
    })?;
    ensure(limits.max_memory.0 >= 32 << 20, "limits.max_memory", || "must be 32MiB at least".to_owned())?;
    ensure(settings.storage.memory < limits.max_memory, "storage.memory", || {
        format!("must be less than limits.max_memory, which is {}", limits.max_memory)
    })
}

fn check_metrics(settings: &Settings) -> Result<(), Problem> {
    let metrics = &settings.metrics;
    ensure(metrics.top <= 10_000, "metrics.top", || "must be 10000 at most".to_owned())?;
    ensure(metrics.by.len() <= 8, "metrics.by", || "has more than 8 labels".to_owned())?;
    ensure(metrics.by.iter().all(|label| is_label(label)), "metrics.by", || LABEL.to_owned())
}

#[cfg(feature = "parquet")]
fn check_parquet(parquet: &super::ParquetSettings, settings: &Settings) -> Result<(), Problem> {
    const URLS: [&str; 6] = ["s3://", "gs://", "az://", "abfs://", "abfss://", "azure://"];
    let at = |field: &str| format!("archive.parquet.{field}");
    match (&parquet.directory, &parquet.url) {
        (Some(directory), None) => ensure(directory.is_absolute(), &at("directory"), || absolute(directory))?,
        (None, Some(url)) => {
            ensure(URLS.iter().any(|scheme| url.starts_with(scheme)), &at("url"), || {
                format!("`{url}` is none of s3://bucket/prefix, gs://…, az://…")
            })?;
            ensure(!url.contains(['@', '?']) || url.starts_with("abfs"), &at("url"), || {
                "may hold a secret, which would be seen in log lines; use `options_file`".to_owned()
            })?;
        }
        _ => return Err(problem("archive.parquet", "wants either `directory` or `url`")),
    }
    let (every, step) = (parquet.every.0.as_millis(), parquet.step.0.as_millis());
    let window = settings.window.length.0.as_millis();
    ensure(every >= 1000 && 3_600_000 % every == 0 && every >= window, &at("every"), || {
        "must divide an hour, such as 10m or 1h, and be a window at least".to_owned()
    })?;
    ensure(step >= 1000 && every % step == 0, &at("step"), || "must divide `every`, such as 1m".to_owned())?;
    ensure((64 << 10..=1 << 30).contains(&parquet.target_size.0), &at("target_size"), || {
        "must be from 64KiB to 1GiB".to_owned()
    })?;
    ensure(parquet.add_labels.keys().all(|name| is_label(name)), &at("add_labels"), || LABEL.to_owned())?;
    ensure(parquet.add_labels.len() <= 32, &at("add_labels"), || "has more than 32 labels".to_owned())
}

const LABEL: &str = "a label is letters, digits and _, such as comm, pid, container or unit";

fn is_label(name: &str) -> bool {
    let starts = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    starts && name.len() <= 64 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn check_target(key: &str, target: &PushSettings) -> Result<(), Problem> {
    let at = |field: &str| format!("{key}.{field}");
    match target.kind {
        PushKind::Directory => {
            let directory = target.directory.as_ref();
            let directory = directory.ok_or_else(|| problem(key, "wants `directory = \"/an/absolute/path\"`"))?;
            ensure(directory.is_absolute(), &at("directory"), || absolute(directory))?;
            ensure(target.url.is_none(), &at("url"), || "a directory has none; leave it out".to_owned())?;
        }
        PushKind::Pyroscope | PushKind::Otlp => {
            let url = target.url.as_deref().ok_or_else(|| problem(key, "wants `url = \"https://host:port\"`"))?;
            check_url(url).map_err(|text| problem(&at("url"), text))?;
            ensure(target.directory.is_none(), &at("directory"), || {
                format!("`{}` has none; leave it out", target.kind.name())
            })?;
        }
    }
    ensure(target.username.is_some() == target.password_file.is_some(), &at("username"), || {
        "basic authentication wants both `username` and `password_file`".to_owned()
    })?;
    ensure(target.token_file.is_none() || target.username.is_none(), &at("token_file"), || {
        "there is a `username` too; choose one".to_owned()
    })?;
    let names = target.labels.iter().chain(target.add_labels.keys());
    ensure(names.into_iter().all(|name| is_label(name)), &at("labels"), || LABEL.to_owned())?;
    ensure(target.labels.len() <= 16, &at("labels"), || "has more than 16 labels".to_owned())?;
    ensure((1..=10_000).contains(&target.queue_windows), &at("queue_windows"), || {
        "must be from 1 to 10000".to_owned()
    })?;
    ensure(target.timeout.0.as_secs() <= 300, &at("timeout"), || "must be 5m at most".to_owned())
}

/// A URL that has a scheme, a host and no secret, which would be seen in log lines.
fn check_url(url: &str) -> Result<(), String> {
    let uri: axum::http::Uri = url.parse().map_err(|error| format!("`{url}` is no URL: {error}"))?;
    match (uri.scheme_str(), uri.authority()) {
        (Some("http" | "https"), Some(authority)) if authority.as_str().contains('@') => {
            Err("holds a password; use `username` and `password_file`".to_owned())
        }
        (Some("http" | "https"), Some(_)) if uri.query().is_some() => Err("must not have a query".to_owned()),
        (Some("http" | "https"), Some(_)) => Ok(()),
        _ => Err(format!("`{url}` is not http://host:port or https://host:port")),
    }
}

fn absolute(path: &Path) -> String {
    format!("`{}` must be an absolute path", path.display())
}
