//! What requests and files are called in a capture: by what they ask for, not by the numbers that the engine happened to
//! give them. An engine that asks for more, or in another order, than the one that was captured still gets its answers.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::engine::border::Request;
use crate::process::open::FileId;
use crate::symbol::digest;

/// The name of a request: a digest of all that it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RequestName(u64);

/// The names of files: each that of the request that may have opened it.
#[derive(Debug, Default)]
pub(super) struct Names {
    files: HashMap<FileId, u64>,
    /// How often the same was asked to be opened.
    times: HashMap<u64, u64>,
}

impl Names {
    /// The name of a request, and of the file that it may open.
    pub(super) fn of(&mut self, request: &Request) -> (RequestName, Option<FileId>) {
        let mut request = request.clone();
        let blank = FileId(u32::MAX);
        let (name, opened) = match &mut request {
            Request::Identify { file, .. } | Request::Open { file, .. } | Request::OpenPerfMap { file, .. } => {
                let file = std::mem::replace(file, blank);
                let content = hash(&request, 0);
                let times = self.times.entry(content).or_default();
                *times += 1;
                let name = hash(&request, *times);
                // What is identified and then opened is opened under the name that it has.
                self.files.entry(file).or_insert(name);
                (name, Some(file))
            }
            Request::Read { file, .. } | Request::Contents { file } => {
                let file = std::mem::replace(file, blank);
                (hash(&request, self.name(file)), None)
            }
            Request::Peek(look) => {
                let file = std::mem::replace(&mut look.file, blank);
                (hash(&request, self.name(file)), None)
            }
            Request::Process { .. }
            | Request::Running
            | Request::Memory { .. }
            | Request::Digests { .. }
            | Request::ReadRuntime { .. }
            | Request::DescribeFrames { .. }
            | Request::CodeRows(_)
            | Request::Version { .. }
            | Request::Members { .. } => (hash(&request, 0), None),
        };
        (RequestName(name), opened)
    }

    fn name(&self, file: FileId) -> u64 {
        self.files.get(&file).copied().unwrap_or(0)
    }
}

fn hash(request: &Request, salt: u64) -> u64 {
    // Requests hold nothing that could not be encoded; if one does, its kind is all that is compared.
    let mut bytes = rmp_serde::to_vec(request).unwrap_or_default();
    bytes.extend_from_slice(&salt.to_le_bytes());
    let digest = digest(&bytes);
    u64::from_le_bytes(*digest.first_chunk().expect("invariant: a digest has 16 bytes"))
}
