//! Names of users.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;

/// The host's own file, also when jitprof's root is a container's; and the one that is there in any case.
const PASSWD: [&str; 2] = ["/proc/1/root/etc/passwd", "/etc/passwd"];
/// As much of it as is read.
const MAX_BYTES: u64 = 4 << 20;

/// Users of the host by their number. Those of a directory service are not among them.
#[derive(Clone, Debug, Default)]
pub struct Users(HashMap<u32, Arc<str>>);

impl Users {
    /// Reads the host's `/etc/passwd`; no users if it cannot be read.
    pub fn read() -> Self {
        let text = PASSWD.iter().find_map(|path| {
            let mut text = Vec::new();
            File::open(path).ok()?.take(MAX_BYTES).read_to_end(&mut text).ok()?;
            Some(text)
        });
        Self(parse_passwd(&text.unwrap_or_default()))
    }

    /// The user's name; the number if it has none.
    pub fn name(&self, uid: u32) -> Arc<str> {
        self.0.get(&uid).map_or_else(|| Arc::from(uid.to_string()), Arc::clone)
    }

    /// The number of a user, who may be given by it.
    pub fn uid(&self, user: &str) -> Option<u32> {
        let mut named = self.0.iter().filter(|(_, name)| ***name == *user).map(|(uid, _)| *uid);
        named.next().or_else(|| user.parse().ok())
    }
}

/// Names by user id; of several with one id, the first one.
pub fn parse_passwd(text: &[u8]) -> HashMap<u32, Arc<str>> {
    let mut users = HashMap::new();
    for line in String::from_utf8_lossy(text).lines() {
        let mut fields = line.split(':');
        if let (Some(name), Some(Ok(uid))) = (fields.next(), fields.nth(1).map(str::parse))
            && !name.is_empty()
        {
            users.entry(uid).or_insert_with(|| Arc::from(name));
        }
    }
    users
}
