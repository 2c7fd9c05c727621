//! HTTP outwards: one TLS, one set of roots, for pushes and for datasets in buckets.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{CertificateError, ClientConfig, RootCertStore};

/// Bytes of a file with certificates, a token or a password at most.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Sends requests with bodies of a kind, over connections that are kept.
pub(crate) type HttpClient<B> = HyperClient<HttpsConnector<HttpConnector>, B>;

/// A file or URL that a target needs and that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A file that the target names.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// The path as configured.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Certificates of the system.
    #[error("this system has no certificates to check https by; install ca-certificates, or set `ca_file`")]
    NoCertificates,
    /// The certificates do not make a TLS configuration.
    #[error("cannot use TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// An HTTP client that trusts the certificates of `ca_file`, or those of the system, and none if it is not to speak TLS.
///
/// # Errors
/// [`ClientError`].
pub(crate) fn http_client<B>(is_secure: bool, ca_file: Option<&Path>) -> Result<HttpClient<B>, ClientError>
where
    B: axum::body::HttpBody + Send,
    B::Data: Send,
{
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    let roots = if is_secure { roots(ca_file)? } else { RootCertStore::empty() };
    let tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
    // One connection is enough, and a service that pushes every ten seconds keeps it.
    Ok(HyperClient::builder(TokioExecutor::new())
        .pool_max_idle_per_host(1)
        .pool_idle_timeout(Duration::from_secs(60))
        .build(connector.wrap_connector(http)))
}

fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, ClientError> {
    let mut store = RootCertStore::empty();
    let Some(path) = ca_file else {
        let (added, _) = store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return if added == 0 { Err(ClientError::NoCertificates) } else { Ok(store) };
    };
    let file_error = |source| ClientError::File { path: path.to_owned(), source };
    let file = BufReader::new(File::open(path).map_err(file_error)?.take(MAX_FILE_BYTES));
    for certificate in CertificateDer::pem_reader_iter(file) {
        store.add(certificate.map_err(|error| file_error(io::Error::other(error.to_string())))?)?;
    }
    if store.is_empty() {
        return Err(file_error(io::Error::other("it holds no certificate; it must be PEM")));
    }
    Ok(store)
}

/// What a user does about a server that could not be spoken to, if its TLS is why.
pub(crate) fn tls_advice(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let mut next = Some(error);
    while let Some(error) = next {
        match error.downcast_ref() {
            // The second: by an authority that has the name of a known one.
            Some(rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            )) => {
                return Some("set `ca_file` to the PEM certificate of the authority that has signed the server's");
            }
            Some(rustls::Error::InvalidMessage(_)) => {
                return Some("what answers there may not speak TLS: is it meant to be http://?");
            }
            _ => {}
        }
        // An I/O error passes over what it was made of: its source is the source of that.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = inner.map(|inner| inner as &(dyn Error + 'static)).or_else(|| error.source());
    }
    None
}

/// The text of a file with a secret, without white space around it.
///
/// # Errors
/// It cannot be read, or is empty.
pub(crate) fn secret(path: &Path) -> Result<String, ClientError> {
    let file_error = |source| ClientError::File { path: path.to_owned(), source };
    let mut text = String::new();
    File::open(path).map_err(file_error)?.take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(file_error)?;
    match text.trim() {
        "" => Err(file_error(io::Error::other("it is empty"))),
        text => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_certificates_or_without_a_secret_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = roots(Some(file.path())).unwrap_err().to_string();
        assert!(error.contains("no certificate") && error.contains(&file.path().display().to_string()), "{error}");
        assert!(secret(file.path()).unwrap_err().to_string().contains("empty"));
        std::fs::write(file.path(), "abc\n").unwrap();
        assert_eq!(secret(file.path()).unwrap(), "abc");
    }
}
