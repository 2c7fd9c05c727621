//! Grafana Pyroscope's `push.v1`: one request for each window, a series for each combination of labels, each with a
//! gzipped pprof file.
//!
//! The messages are those of `push/v1/push.proto` and `types/v1/types.proto` of github.com/grafana/pyroscope. The
//! service speaks the Connect protocol: an HTTP POST of the message is enough.

use prost::Message;

use super::Encoding;
use super::series::{Series, series};
use crate::output::{self, Format, OutputError, OutputOptions};
use crate::profile::Profile;

/// Appended to the target's URL.
pub(super) const PATH: &str = "/push.v1.PusherService/Push";
/// What the body is.
pub(super) const CONTENT_TYPE: &str = "application/proto";
/// Bytes of a label's value at most; Pyroscope refuses longer ones.
const MAX_VALUE_BYTES: usize = 1024;

/// All series of one push.
#[derive(Clone, PartialEq, Message)]
struct PushRequest {
    #[prost(message, repeated, tag = "1")]
    series: Vec<RawProfileSeries>,
}

/// Profiles under one set of labels.
#[derive(Clone, PartialEq, Message)]
struct RawProfileSeries {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<LabelPair>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<RawSample>,
}

/// A gzipped pprof file with its id.
#[derive(Clone, PartialEq, Message)]
struct RawSample {
    #[prost(bytes = "vec", tag = "1")]
    raw_profile: Vec<u8>,
    /// A UUID by which a profile that comes twice is known.
    #[prost(string, tag = "2")]
    id: String,
}

#[derive(Clone, PartialEq, Message)]
struct LabelPair {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// The request for one window.
pub(super) fn encode(profile: &Profile, encoding: &Encoding) -> Result<Vec<u8>, OutputError> {
    let parts = series(profile, &encoding.labels);
    let series = parts.iter().map(|part| raw_series(part, encoding)).collect::<Result<_, _>>()?;
    Ok(PushRequest { series }.encode_to_vec())
}

fn raw_series(part: &Series, encoding: &Encoding) -> Result<RawProfileSeries, OutputError> {
    // Pyroscope would make a series of each value of a sample's own label, and so of each thread.
    let options = OutputOptions { without_labels: true, ..OutputOptions::default() };
    let mut raw_profile = Vec::new();
    output::write(&part.profile, Format::Pprof, &options, &mut raw_profile)?;
    Ok(RawProfileSeries { labels: labels(part, encoding), samples: vec![RawSample { raw_profile, id: uuid() }] })
}

/// The series' labels, sorted, each name once: what the user adds goes first, then what the samples say.
fn labels(part: &Series, encoding: &Encoding) -> Vec<LabelPair> {
    let mut labels = vec![LabelPair { name: "__name__".to_owned(), value: "process_cpu".to_owned() }];
    let service = ["unit", "comm"].iter().find_map(|wanted| part.labels.iter().find(|(name, _)| name == wanted));
    let service = service.map_or("jitprof", |(_, value)| value);
    let defaults = [("host", &*encoding.host), ("service_name", service)];
    let added = encoding.add_labels.iter().map(|(name, value)| (&**name, &**value));
    let said = part.labels.iter().map(|(name, value)| (&**name, &**value));
    for (name, value) in added.chain(said).chain(defaults) {
        if !value.is_empty() && labels.iter().all(|label| label.name != name) {
            let value = crate::profile::shorten(value, MAX_VALUE_BYTES);
            labels.push(LabelPair { name: name.to_owned(), value: value.to_string() });
        }
    }
    labels.sort_by(|one, other| one.name.cmp(&other.name));
    labels
}

/// A random (version 4) UUID.
fn uuid() -> String {
    let random = fastrand::u128(..) & !(0xf000 << 64) & !(0xc000 << 48) | 0x4000 << 64 | 0x8000 << 48;
    let hex = format!("{random:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use prost::encoding::{WireType, decode_key, decode_varint};

    use super::super::tests::{encoding, profile};
    use super::*;

    /// A message as it is on the wire: numbers of fields and what is in them. All of this protocol have a length.
    fn fields(mut bytes: &[u8]) -> Vec<(u32, &[u8])> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let (number, kind) = decode_key(&mut bytes).unwrap();
            assert_eq!(kind, WireType::LengthDelimited);
            let length = decode_varint(&mut bytes).unwrap();
            let (content, rest) = bytes.split_at(length.try_into().unwrap());
            found.push((number, content));
            bytes = rest;
        }
        found
    }

    /// The numbers are written here a second time, from the published definitions, and not taken from the messages.
    #[test]
    fn fields_have_the_numbers_of_the_published_messages() {
        let bytes = encode(&profile(&[("node", "", 3)]), &encoding()).unwrap();
        let [(1, series)] = fields(&bytes)[..] else { panic!("one series, in field 1") };
        let (labels, samples): (Vec<_>, Vec<_>) = fields(series).into_iter().partition(|(number, _)| *number == 1);
        let labels: Vec<_> = labels.into_iter().map(|(_, label)| fields(label)).collect();
        let name: [(u32, &[u8]); 2] = [(1, b"__name__"), (2, b"process_cpu")];
        assert_eq!(labels[0], name);
        let [(2, sample)] = samples[..] else { panic!("one sample, in field 2") };
        let [(1, pprof), (2, id)] = fields(sample)[..] else { panic!("a file and its identity") };
        assert!(pprof.starts_with(&[0x1f, 0x8b]) && id.len() == 36);
    }

    #[test]
    fn every_series_says_its_name_its_service_and_the_host_and_holds_a_pprof_file() {
        let profile = profile(&[("node", "c1", 3), ("php", "", 4)]);
        let request = PushRequest::decode(&*encode(&profile, &encoding()).unwrap()).unwrap();
        let labels = |series: &RawProfileSeries| {
            series.labels.iter().map(|label| format!("{}={}", label.name, label.value)).collect::<Vec<_>>().join(" ")
        };
        let mut said: Vec<_> = request.series.iter().map(labels).collect();
        said.sort();
        assert_eq!(
            said,
            [
                "__name__=process_cpu cluster=a comm=node container=c1 host=h service_name=node",
                "__name__=process_cpu cluster=a comm=php host=h service_name=php"
            ]
        );
        for series in &request.series {
            assert_eq!(series.samples.len(), 1);
            assert!(series.samples[0].raw_profile.starts_with(&[0x1f, 0x8b]), "gzip");
            let id = &series.samples[0].id;
            assert!(id.len() == 36 && &id[14..15] == "4" && "89ab".contains(&id[19..20]), "{id}");
        }
    }
}
