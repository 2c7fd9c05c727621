//! `jitprof snapshot`: what a running service has now, as a file.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::args::{id, period};
use super::filter::FilterArgs;
use super::outputs::{Formats, OutputsError};
use super::service::{ServiceArgs, ServiceError};
use crate::output::{Format, OutputError, check_writable, write_to};
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
    /// Where to write; the extension picks the format (.svg .folded .pb.gz .json); - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "jitprof.pb.gz", help_heading = "Output")]
    output: PathBuf,
    /// The format for - and for files of unknown extension
    #[arg(long, value_name = "FORMAT", help_heading = "Output")]
    format: Option<String>,
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
    let (destination, format) = Formats::of_profile(arguments.format.as_deref())?.output(&arguments.output)?;
    check_writable(&destination)?;
    let body = arguments.service.get(&path(arguments, format))?;
    Ok(write_to(&destination, |writer| Ok(writer.write_all(&body)?))?)
}

/// The path and query that ask for what the arguments say.
fn path(arguments: &Arguments, format: Format) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("format", &format.to_string());
    // A blank between two units would be one for the query's reader, too, but not for every proxy.
    let last = || format!("-{}", arguments.last.to_string().replace(' ', ""));
    query.append_pair("from", &arguments.from.clone().unwrap_or_else(last));
    query.append_pair("to", &arguments.to);
    for pid in &arguments.pids {
        query.append_pair("pid", &pid.to_string());
    }
    arguments.filter.ask(&mut query);
    format!("/profile?{}", query.finish())
}

/// A time that the service will understand.
fn time(text: &str) -> Result<String, String> {
    match parse_time_or_seconds(text, &jiff::Zoned::now()) {
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
        path(&Command::try_parse_from([&["x"], line].concat()).unwrap().arguments, Format::Svg)
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
