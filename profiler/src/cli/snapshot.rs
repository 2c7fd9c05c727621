//! `jitprof snapshot`: what a running service has now, as a file.

use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use clap::Args as ClapArgs;
use jiff::Zoned;
use jiff::tz::TimeZone;

use super::args::{id, period};
use super::filter::FilterArgs;
use super::look::ShapeArgs;
use super::outputs::{Formats, OutputsError};
use super::say::say;
use super::service::{ServiceArgs, ServiceError};
use crate::output::{Destination, Format, OutputError, OutputOptions, check_writable, write_to};
use crate::serve::config::ListenAt;
use crate::times::{Period, parse_time_or_seconds};

/// What `snapshot` takes.
#[derive(Debug, ClapArgs)]
pub struct Arguments {
    /// Processes, as with --pid
    #[arg(value_name = "PID", value_parser = id, conflicts_with = "pid", help_heading = "Selection")]
    pids: Vec<u32>,
    /// How far back, such as 30s or 15m
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = period, help_heading = "Selection")]
    #[arg(allow_hyphen_values = true)]
    last: Period,
    /// From when on, in place of --last: 2026-11-21T03:12:00Z, 03:12 (the last time it was so, in UTC), or -15m
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = time, help_heading = "Selection")]
    from: Option<String>,
    /// Until when
    #[arg(
        long,
        value_name = "TIME",
        default_value = "now",
        allow_hyphen_values = true,
        value_parser = time,
        help_heading = "Selection"
    )]
    to: String,
    /// Whose samples.
    #[command(flatten)]
    filter: FilterArgs,
    /// Where to write; repeatable; the extension picks the format (.svg .folded .pb.gz .json); - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "jitprof.pb.gz", help_heading = "Output")]
    output: Vec<PathBuf>,
    /// The format for - and for files of unknown extension
    #[arg(long, value_name = "FORMAT", help_heading = "Output")]
    format: Option<String>,
    /// How it looks.
    #[command(flatten)]
    shape: ShapeArgs,
    /// Who is asked.
    #[command(flatten)]
    service: ServiceArgs,
}

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub(super) enum SnapshotError {
    /// The file cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The output cannot be written as it is named.
    #[error(transparent)]
    Outputs(#[from] OutputsError),
    /// The service gives no answer.
    #[error(transparent)]
    Service(#[from] ServiceError),
}

/// Asks the service for the last minutes and writes its answer.
///
/// # Errors
/// [`SnapshotError`].
pub(super) fn run(arguments: &Arguments) -> Result<(), SnapshotError> {
    let outputs = Formats::of_profile(arguments.format.as_deref())?.outputs(&arguments.output)?;
    for (destination, _) in &outputs {
        check_writable(destination)?;
    }
    // All of them of the same time.
    let now = (outputs.len() > 1).then(|| Zoned::now().with_time_zone(TimeZone::UTC));
    let mut failed = None;
    for (destination, format) in &outputs {
        let body = arguments.service.get(&path(arguments, *format, now.as_ref()))?;
        let written = write_to(destination, |writer| Ok(writer.write_all(&body)?));
        if let (Ok(()), Destination::File(path)) = (&written, destination) {
            say!("written    {}", path.display());
        }
        failed = failed.or(written.err());
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// The path and query that ask for what the arguments say; `now`: when they were typed, if that is to be said.
fn path(arguments: &Arguments, format: Format, now: Option<&Zoned>) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("format", &format.to_string());
    // A blank between two units would be one for the query's reader, too, but not for every proxy.
    let last = || format!("-{}", arguments.last.to_string().replace(' ', ""));
    for (name, text) in [("from", arguments.from.clone().unwrap_or_else(last)), ("to", arguments.to.clone())] {
        let fixed = now.and_then(|now| seconds(&text, now));
        query.append_pair(name, &fixed.unwrap_or(text));
    }
    for pid in &arguments.pids {
        query.append_pair("pid", &pid.to_string());
    }
    arguments.filter.ask(&mut query);
    let ShapeArgs { per_thread, per_process, lines, merge_tiers, min_width, reverse, flame } = arguments.shape;
    let switches = [
        ("per-thread", per_thread),
        ("per-process", per_process),
        ("lines", lines),
        ("merge-tiers", merge_tiers),
        ("reverse", reverse),
        ("flame", flame),
    ];
    for (name, _) in switches.into_iter().filter(|(_, is_on)| *is_on) {
        query.append_pair(name, "1");
    }
    if min_width.to_bits() != OutputOptions::default().min_width_percent.to_bits() {
        query.append_pair("min-width", &min_width.to_string());
    }
    format!("/profile?{}", query.finish())
}

/// A time as the service reads it, in seconds since 1970.
fn seconds(text: &str, now: &Zoned) -> Option<String> {
    let time = parse_time_or_seconds(text, now).ok()?;
    time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs_f64().to_string())
}

/// A time that the service will understand.
fn time(text: &str) -> Result<String, String> {
    match parse_time_or_seconds(text, &Zoned::now()) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) if text.parse::<ListenAt>().is_ok() => Err("is no time; where the service is says --listen".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn asked(line: &[&str]) -> String {
        path(&Command::try_parse_from([&["x"], line].concat()).unwrap().arguments, Format::Svg, None)
    }

    #[test]
    fn the_question_says_how_it_looks() {
        let line = ["--from", "-15m", "--lines", "--merge-tiers", "--min-width", "0.5"];
        let query = "from=-15m&to=now&lines=1&merge-tiers=1&min-width=0.5";
        assert_eq!(asked(&line), format!("/profile?format=svg&{query}"));
    }

    #[test]
    fn several_outputs_are_of_the_same_time() {
        let line = ["x", "-o", "a.svg", "-o", "a.folded", "--last", "90s"];
        let Command { arguments } = Command::try_parse_from(line).unwrap();
        assert_eq!(arguments.output.len(), 2);
        let now = "2026-11-26T12:00:00Z".parse::<jiff::Timestamp>().unwrap().to_zoned(TimeZone::UTC);
        let asked = path(&arguments, Format::Folded, Some(&now));
        assert_eq!(asked, "/profile?format=folded&from=1795694310&to=1795694400");
        assert_eq!(seconds("11:59", &now).as_deref(), Some("1795694340"));
    }

    #[test]
    fn the_question_says_when_who_and_how() {
        let line = ["--last", "90s", "--comm", "a b&c", "-p", "7"];
        assert_eq!(asked(&line), "/profile?format=svg&from=-1m30s&to=now&pid=7&comm=a+b%26c");
    }

    #[test]
    fn all_selections_of_a_report_are_there() {
        let line = ["7", "8", "--from", "-15m", "--to", "-5m", "--unit", "a", "--thread", "t", "--label", "app=x"];
        let query = "from=-15m&to=-5m&pid=7&pid=8&unit=a&thread=t&label.app=x";
        assert_eq!(asked(&line), format!("/profile?format=svg&{query}"));
    }

    #[test]
    fn an_address_in_place_of_a_time_is_told_where_it_belongs() {
        let error = Command::try_parse_from(["x", "--from", "127.0.0.1:7878"]).unwrap_err().to_string();
        assert!(error.contains("where the service is says --listen"), "{error}");
    }
}
