//! Options that choose samples by whose they are: of saved recordings and of a service's the same.

use clap::Args;

use super::args::id;
use crate::profile::Filter;

/// Of several values of one option, one is enough; of several options, all must hold.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct FilterArgs {
    /// Processes; repeatable, as all of these: several values of one are alternatives
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = id, help_heading = "Selection")]
    pid: Vec<u32>,

    /// Threads
    #[arg(long, value_name = "TID", value_delimiter = ',', value_parser = id, help_heading = "Selection")]
    tid: Vec<u32>,

    /// Processes of this name
    #[arg(long, value_name = "NAME", help_heading = "Selection")]
    comm: Vec<String>,

    /// Containers
    #[arg(long, value_name = "ID", help_heading = "Selection")]
    container: Vec<String>,

    /// systemd units
    #[arg(long, value_name = "UNIT", help_heading = "Selection")]
    unit: Vec<String>,

    /// Hosts, of a dataset
    #[arg(long, value_name = "HOST", help_heading = "Selection")]
    host: Vec<String>,

    /// Users
    #[arg(long, value_name = "USER", help_heading = "Selection")]
    user: Vec<String>,

    /// Threads of this name
    #[arg(long, value_name = "NAME", help_heading = "Selection")]
    thread: Vec<String>,

    /// Any other label
    #[arg(long, value_name = "NAME=VALUE", value_parser = label, help_heading = "Selection")]
    label: Vec<(String, String)>,
}

impl FilterArgs {
    /// What is asked for.
    pub(super) fn filter(&self) -> Filter {
        let mut filter = Filter::default();
        self.pid.iter().for_each(|pid| filter.want("pid", &pid.to_string()));
        self.tid.iter().for_each(|tid| filter.want("tid", &tid.to_string()));
        let named = [
            ("comm", &self.comm),
            ("container", &self.container),
            ("unit", &self.unit),
            ("host", &self.host),
            ("user", &self.user),
            ("thread", &self.thread),
        ];
        for (name, values) in named {
            values.iter().for_each(|value| filter.want(name, value));
        }
        self.label.iter().for_each(|(name, value)| filter.want(name, value));
        filter
    }

    /// The same as parameters of a question to the service.
    #[cfg(feature = "serve")]
    pub(super) fn ask(&self, query: &mut form_urlencoded::Serializer<'_, String>) {
        for (name, values) in self.filter().iter() {
            // Of its own labels the service takes the names alone.
            let is_known = crate::profile::LABEL_NAMES.contains(&name);
            let name = if is_known { name.to_owned() } else { format!("label.{name}") };
            for value in values {
                query.append_pair(&name, value);
            }
        }
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("wants NAME=VALUE, such as runtime=node".to_owned()),
    }
}
