//! Errors on one line, with what has caused them.

use std::error::Error;

/// An error and its causes, which say more than it does: `errno` is often the last of them.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Some repeat what their cause says.
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use aya::maps::MapError;
    use aya::sys::SyscallError;

    use super::*;
    use crate::kernel::KernelError;

    #[test]
    fn a_refusal_says_what_the_kernel_has_said() {
        let refused = SyscallError { call: "bpf_map_create", io_error: io::Error::from_raw_os_error(libc::EPERM) };
        let error = KernelError::from(MapError::from(refused));
        let expected = "a BPF map operation failed: `bpf_map_create` failed: Operation not permitted (os error 1)";
        assert_eq!(error.to_string(), expected);
        assert_eq!(chain(&error), expected, "nothing is said twice");
    }
}
