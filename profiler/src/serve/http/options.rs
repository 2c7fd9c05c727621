//! Where the service listens, and to whom.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::tokens::Token;

/// A place to listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// An address and port.
    Tcp(SocketAddr),
    /// A unix socket, for the user and the group of the service.
    Unix(PathBuf),
}

/// Choices about the HTTP side.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// Where to listen. Any address but a loopback one needs a token; whoever configures it gives those one too.
    pub listen: Listen,
    /// Who knows it may ask; without one, whoever can connect.
    pub token: Option<Token>,
    /// Names under which a loopback address is asked for, beside localhost and itself: that of a proxy in front of it.
    pub hosts: Vec<String>,
}

impl Listen {
    /// Whether only this machine can connect.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}
