//! Secrets: the token, and what a browser gets in its place.

use std::fmt;

use rustix::rand::{GetRandomFlags, getrandom};
use subtle::ConstantTimeEq;

/// Shortest token. At 16 random characters guessing is hopeless at any rate of requests.
const MIN_TOKEN_BYTES: usize = 16;

/// A token that is none.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It could be guessed.
    #[error("the token has fewer than {MIN_TOKEN_BYTES} characters; make one with `openssl rand -hex 24`")]
    TooShort,
    /// It could not be sent.
    #[error("the token may hold visible ASCII characters only; make one with `openssl rand -hex 24`")]
    Characters,
}

/// A secret that a client must know. It is compared in constant time and never shown.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// A token of the user's; white space around it, such as a file's last line feed, does not count.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        if text.len() < MIN_TOKEN_BYTES {
            return Err(TokenError::TooShort);
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::Characters);
        }
        Ok(Self(text.to_owned()))
    }

    /// 128 random bits.
    ///
    /// # Errors
    /// The kernel has none to give.
    pub(in crate::serve) fn random() -> Result<Self, std::io::Error> {
        let mut bytes = [0_u8; 16];
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Whether the other one is the same, in a time that only depends on its length.
    pub(super) fn is(&self, other: &str) -> bool {
        self.0.as_bytes().ct_eq(other.as_bytes()).into()
    }

    /// The secret itself, for those who hand it out.
    pub(in crate::serve) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_unsendable_tokens_are_refused_and_none_is_shown() {
        assert!(matches!(Token::new("0123456789abcde"), Err(TokenError::TooShort)));
        assert!(matches!(Token::new("0123456789abcde\u{e9}f"), Err(TokenError::Characters)));
        let token = Token::new("0123456789abcdef\n").unwrap();
        assert!(token.is("0123456789abcdef") && !token.is("0123456789abcdeg") && !token.is(""));
        assert_eq!(format!("{token:?}"), "Token(…)");
        assert_ne!(Token::random().unwrap().reveal(), Token::random().unwrap().reveal());
    }
}
