//! OTLP profiles over HTTP (`v1development`): one request for each window, a resource for each combination of labels.
//!
//! The protocol is in development, and so is this: what is sent is as in opentelemetry-proto 1.9 and 1.10. Attributes
//! follow OpenTelemetry's semantic conventions where these have a name.

mod proto;

use std::hash::Hash;
use std::time::UNIX_EPOCH;

use indexmap::IndexSet;
use prost::Message;
use rustc_hash::FxHashMap;

use self::proto::{
    AnyValue, Dictionary, KeyValue, KeyValueAndUnit, Line, Link, Location, Mapping, OtlpFunction,
    Profile as OtlpProfile, Request, Resource, ResourceProfiles, Sample, Scope, ScopeProfiles, Stack, Value, ValueType,
};
use super::Encoding;
use super::series::{Series, series};
use crate::profile::printable;
use crate::profile::{FrameId, FrameRef, ModuleRef, Profile, Task};
use crate::symbol::FrameKind;

/// Appended to the target's URL.
pub(super) const PATH: &str = "/v1development/profiles";
/// What the body is.
pub(super) const CONTENT_TYPE: &str = "application/x-protobuf";

/// The request for one window.
pub(super) fn encode(profile: &Profile, encoding: &Encoding) -> Vec<u8> {
    let mut tables = Tables::default();
    let parts = series(profile, &encoding.labels);
    let resource_profiles = parts.iter().map(|part| resource_profiles(part, encoding, &mut tables)).collect();
    Request { resource_profiles, dictionary: Some(tables.finish()) }.encode_to_vec()
}

fn resource_profiles(part: &Series, encoding: &Encoding, tables: &mut Tables) -> ResourceProfiles {
    let scope = Scope { name: "jitprof".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
    ResourceProfiles {
        resource: Some(Resource { attributes: resource_attributes(part, encoding) }),
        scope_profiles: vec![ScopeProfiles { scope: Some(scope), profiles: vec![tables.profile(&part.profile)] }],
    }
}

/// OpenTelemetry's names of our labels; others keep theirs.
fn attribute_name(label: &str) -> &str {
    match label {
        "comm" => "process.executable.name",
        "pid" => "process.pid",
        "exe" => "process.executable.path",
        "container" => "container.id",
        "runtime" => "process.runtime.name",
        "user" => "process.owner",
        "thread" => "thread.name",
        "tid" => "thread.id",
        other => other,
    }
}

fn resource_attributes(part: &Series, encoding: &Encoding) -> Vec<KeyValue> {
    let service = ["unit", "comm"].iter().find_map(|wanted| part.labels.iter().find(|(name, _)| name == wanted));
    let service = service.map_or("jitprof", |(_, value)| &**value);
    let said = part.labels.iter().map(|(name, value)| (attribute_name(name), &**value));
    let added = encoding.add_labels.iter().map(|(name, value)| (&**name, &**value));
    let defaults = [("host.name", &*encoding.host), ("service.name", service)];
    let mut attributes: Vec<KeyValue> = Vec::new();
    for (key, value) in added.chain(said).chain(defaults) {
        if attributes.iter().all(|known| known.key != key) {
            attributes.push(KeyValue { key: key.to_owned(), value: Some(text(value)) });
        }
    }
    attributes
}

fn text(value: &str) -> AnyValue {
    AnyValue { value: Some(Value::Text(value.to_owned())) }
}

/// A table whose first entry means nothing.
struct Table<T>(IndexSet<T>);

impl<T: Default + Eq + Hash> Default for Table<T> {
    fn default() -> Self {
        Self(IndexSet::from([T::default()]))
    }
}

impl<T: Default + Eq + Hash> Table<T> {
    fn index(&mut self, entry: T) -> i32 {
        let index = self.0.insert_full(entry).0;
        // The profile's own limits are far below.
        i32::try_from(index).unwrap_or(0)
    }

    fn into_vec(self) -> Vec<T> {
        self.0.into_iter().collect()
    }
}

/// An attribute as a key of a table: name, and text or number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Attribute {
    name: i32,
    text: String,
    number: Option<i64>,
}

/// The dictionary, filled in the order of need.
#[derive(Default)]
struct Tables {
    strings: Table<String>,
    mappings: Table<(i32, Vec<i32>)>,
    locations: Table<Location>,
    functions: Table<OtlpFunction>,
    attributes: Table<Attribute>,
    stacks: Table<Vec<i32>>,
}

impl Tables {
    fn string(&mut self, text: &str) -> i32 {
        match self.strings.0.get_index_of(text) {
            Some(index) => i32::try_from(index).unwrap_or(0),
            None => self.strings.index(text.to_owned()),
        }
    }

    fn attribute(&mut self, name: &str, text: &str, number: Option<i64>) -> i32 {
        let name = self.string(name);
        self.attributes.index(Attribute { name, text: text.to_owned(), number })
    }

    fn profile(&mut self, profile: &Profile) -> OtlpProfile {
        let meta = profile.meta();
        let mut frames = Vec::new();
        let mut tasks: FxHashMap<_, Vec<i32>> = FxHashMap::default();
        let mut samples = Vec::new();
        for row in profile.rows_without_time() {
            profile.frames_of(row.stack, &mut frames);
            let stack_index = self.stack(profile, &frames);
            let attributes = tasks.entry(row.task).or_insert_with(|| self.task(profile.task_of(row.task)));
            let values = vec![i64::try_from(row.cpu_ns).unwrap_or(i64::MAX)];
            samples.push(Sample { stack_index, attribute_indices: attributes.clone(), values });
        }
        let cpu = ValueType { type_strindex: self.string("cpu"), unit_strindex: self.string("nanoseconds") };
        let since_1970 = meta.start_time.duration_since(UNIX_EPOCH).unwrap_or_default();
        OtlpProfile {
            sample_type: Some(cpu),
            samples,
            time_unix_nano: u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX),
            duration_nano: u64::try_from(meta.duration.as_nanos()).unwrap_or(u64::MAX),
            period_type: Some(cpu),
            period: i64::try_from(meta.period_ns()).unwrap_or(i64::MAX),
            profile_id: fastrand::u128(1..).to_be_bytes().to_vec(),
        }
    }

    fn task(&mut self, task: &Task) -> Vec<i32> {
        vec![
            self.attribute("process.pid", "", Some(task.pid.0.into())),
            self.attribute("thread.id", "", Some(task.tid.0.into())),
            self.attribute("thread.name", &printable(&task.comm), None),
        ]
    }

    /// A stack, its frames root first, as locations leaf first. A function and those inlined into it at one address are
    /// one location.
    fn stack(&mut self, profile: &Profile, frames: &[FrameId]) -> i32 {
        let places = frames.chunk_by(|&outer, &inner| {
            let (outer, inner) = (profile.frame(outer), profile.frame(inner));
            inner.inlined && (inner.module, inner.address) == (outer.module, outer.address)
        });
        let mut locations: Vec<i32> = places.map(|place| self.location(profile, place)).collect();
        locations.reverse();
        self.stacks.index(locations)
    }

    fn location(&mut self, profile: &Profile, place: &[FrameId]) -> i32 {
        let lines = place.iter().rev().map(|&frame| self.line(profile.frame(frame))).collect();
        let Some(frame) = place.first().map(|&frame| profile.frame(frame)) else { return 0 };
        let mapping_index = frame.module.map_or(0, |module| self.mapping(module));
        let attribute_indices = match frame.kind {
            FrameKind::Kernel => vec![self.attribute("profile.frame.type", "kernel", None)],
            FrameKind::Native => vec![self.attribute("profile.frame.type", "native", None)],
            // The conventions name runtimes here, and which one it is is the process' label.
            FrameKind::Jit | FrameKind::Interpreter | FrameKind::Builtin | FrameKind::Span | FrameKind::Note => vec![],
        };
        self.locations.index(Location { mapping_index, address: frame.address, lines, attribute_indices })
    }

    fn line(&mut self, frame: FrameRef<'_>) -> Line {
        let name = self.string(&printable(frame.name));
        let source = frame.source.unwrap_or_default();
        let file = if source.file.is_empty() { 0 } else { self.string(&printable(source.file)) };
        let function = OtlpFunction { name_strindex: name, system_name_strindex: name, filename_strindex: file };
        let column = source.column.map_or(0, |column| column.get().into());
        Line { function_index: self.functions.index(function), line: source.line.into(), column }
    }

    fn mapping(&mut self, module: ModuleRef<'_>) -> i32 {
        let file = self.string(&printable(module.path));
        let build_id =
            module.build_id.map(|id| self.attribute("process.executable.build_id.gnu", &printable(id), None));
        self.mappings.index((file, build_id.into_iter().collect()))
    }

    fn finish(self) -> Dictionary {
        let mapping = |(filename_strindex, attribute_indices)| Mapping { filename_strindex, attribute_indices };
        let attribute = |Attribute { name, text: word, number }: Attribute| KeyValueAndUnit {
            key_strindex: name,
            value: match (name, number) {
                (0, _) => None,
                (_, None) => Some(text(&word)),
                (_, Some(number)) => Some(AnyValue { value: Some(Value::Number(number)) }),
            },
        };
        Dictionary {
            mapping_table: self.mappings.into_vec().into_iter().map(mapping).collect(),
            location_table: self.locations.into_vec(),
            function_table: self.functions.into_vec(),
            link_table: vec![Link::default()],
            string_table: self.strings.into_vec(),
            attribute_table: self.attributes.into_vec().into_iter().map(attribute).collect(),
            stack_table: self
                .stacks
                .into_vec()
                .into_iter()
                .map(|location_indices| Stack { location_indices })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
    use opentelemetry_proto::tonic::common::v1::any_value::Value as Published;
    use opentelemetry_proto::tonic::profiles::v1development::Line as PublishedLine;

    use super::super::tests::{encoding, profile};
    use super::*;
    use crate::profile::SourceRef;

    #[test]
    fn a_place_has_its_column_where_it_is_known() {
        let place = |column| {
            let source = Some(SourceRef { file: "a.js", line: 1, column: NonZeroU32::new(column) });
            let (kind, tier, inlined) = (FrameKind::Jit, None, false);
            let frame = FrameRef { name: "f", kind, tier, inlined, module: None, source, address: 0 };
            let line = PublishedLine::decode(&*Tables::default().line(frame).encode_to_vec()).unwrap();
            (line.line, line.column)
        };
        assert_eq!([0, 146_721].map(place), [(1, 0), (1, 146_721)]);
    }

    /// The published definitions of another crate read what is written here.
    #[test]
    fn the_published_definitions_read_every_name_and_number() {
        let profile = profile(&[("node", "c1", 3), ("php", "", 4)]);
        let body = encode(&profile, &encoding());
        let request = ExportProfilesServiceRequest::decode(&*body).unwrap();
        let dictionary = request.dictionary.unwrap();
        assert_eq!(dictionary.string_table[0], "");
        assert!(dictionary.stack_table[0].location_indices.is_empty());
        let string = |index: i32| &*dictionary.string_table[usize::try_from(index).unwrap()];
        let mut seen = Vec::new();
        for resource in &request.resource_profiles {
            let attributes = &resource.resource.as_ref().unwrap().attributes;
            let attribute = |name: &str| {
                let found = attributes.iter().find(|known| known.key == name)?;
                match found.value.as_ref()?.value.as_ref()? {
                    Published::StringValue(text) => Some(text.clone()),
                    _ => None,
                }
            };
            assert_eq!(attribute("host.name").as_deref(), Some("h"));
            let one = &resource.scope_profiles[0].profiles[0];
            let kind = one.sample_type.as_ref().unwrap();
            assert_eq!((string(kind.type_strindex), string(kind.unit_strindex)), ("cpu", "nanoseconds"));
            assert_eq!(one.profile_id.len(), 16);
            assert_eq!(one.samples.len(), 1);
            let sample = &one.samples[0];
            let stack = &dictionary.stack_table[usize::try_from(sample.stack_index).unwrap()];
            let names: Vec<_> = stack
                .location_indices
                .iter()
                .map(|&index| {
                    let location = &dictionary.location_table[usize::try_from(index).unwrap()];
                    let function = usize::try_from(location.lines[0].function_index).unwrap();
                    string(dictionary.function_table[function].name_strindex)
                })
                .collect();
            let attributes = sample.attribute_indices.iter().map(|&index| {
                let entry = &dictionary.attribute_table[usize::try_from(index).unwrap()];
                string(entry.key_strindex)
            });
            assert_eq!(attributes.collect::<Vec<_>>(), ["process.pid", "thread.id", "thread.name"]);
            seen.push((attribute("service.name"), attribute("container.id"), names.join("<"), sample.values.clone()));
        }
        seen.sort();
        let period = i64::try_from(profile.meta().period_ns()).unwrap();
        assert_eq!(
            seen,
            [
                (Some("node".to_owned()), Some("c1".to_owned()), "leaf<main".to_owned(), vec![3 * period]),
                (Some("php".to_owned()), None, "leaf<main".to_owned(), vec![4 * period]),
            ]
        );
    }
}
