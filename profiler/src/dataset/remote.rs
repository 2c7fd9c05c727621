//! A dataset in a bucket. Requests go through the HTTP client that pushes use: one TLS, one set of roots.

use std::error::Error;
use std::fmt;
use std::path::Path as FilePath;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use futures_util::TryStreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody,
    HttpService,
};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStore, ObjectStoreExt, PutPayload, RetryConfig};
use tokio::runtime::Runtime;

use super::DatasetError;
use super::read::Source;
use super::store::{Entry, MAX_FILES, is_data};
use crate::causes::chain;
use crate::client::{ClientError, HttpClient as TlsClient, http_client};

/// How long one request may take.
const REQUEST_TIME: Duration = Duration::from_secs(60);
/// How long requests are tried again before the caller is told, which tries again later.
const RETRY_TIME: Duration = Duration::from_secs(20);
const MAX_RETRIES: usize = 3;
/// Levels of partitions that are listed one by one: day and hour. Below them everything is listed at once.
const PARTITION_LEVELS: usize = 2;

/// A bucket with a prefix.
pub struct Remote {
    url: String,
    prefix: String,
    store: Arc<dyn ObjectStore>,
    runtime: Runtime,
}

/// A file in it.
struct RemoteFile<'r> {
    remote: &'r Remote,
    path: String,
    length: u64,
}

impl Remote {
    /// Makes the client; nothing is asked yet.
    pub(super) fn open(url: &str, options: &[(String, String)]) -> Result<Self, DatasetError> {
        let wrong = |why: String| DatasetError::Url { url: url.to_owned(), why };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("it has no scheme".to_owned()))?;
        let prefix = rest.split_once('/').map_or("", |(_, path)| path).trim_matches('/').to_owned();
        let ca_file = options.iter().find(|(name, _)| name == "ca_file").map(|(_, path)| FilePath::new(path));
        let connector = Connector::new(ca_file).map_err(|error| wrong(error.to_string()))?;
        let options = options.iter().filter(|(name, _)| name != "ca_file");
        let retry = RetryConfig { max_retries: MAX_RETRIES, retry_timeout: RETRY_TIME, ..RetryConfig::default() };
        macro_rules! build {
            ($builder:ty) => {{
                let mut builder = <$builder>::from_env();
                for (name, value) in options {
                    let key = name.to_ascii_lowercase().parse();
                    let key = key.map_err(|_| wrong(format!("there is no option `{name}`")))?;
                    builder = builder.with_config(key, value);
                }
                let builder = builder.with_url(url).with_http_connector(connector).with_retry(retry);
                Arc::new(builder.build().map_err(|error| wrong(shown(&error)))?) as Arc<dyn ObjectStore>
            }};
        }
        let store = match scheme {
            "s3" | "s3a" => build!(AmazonS3Builder),
            "gs" => build!(GoogleCloudStorageBuilder),
            "az" | "azure" | "abfs" | "abfss" => build!(MicrosoftAzureBuilder),
            _ => return Err(wrong("it is none of s3://, gs://, az://".to_owned())),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| DatasetError::file(url, error))?;
        Ok(Self { url: url.to_owned(), prefix, store, runtime })
    }

    /// Writes an object, over one of the same name.
    pub(super) fn put(&self, path: &str, bytes: Vec<u8>) -> Result<(), DatasetError> {
        let path = self.path(path);
        let put = self.store.put(&path, PutPayload::from(bytes));
        self.runtime.block_on(put).map(drop).map_err(|error| self.failed(&error))
    }

    pub(super) fn list(
        &self,
        table: &str,
        keep: &dyn Fn(&str) -> bool,
        found: &mut Vec<Entry>,
    ) -> Result<(), DatasetError> {
        let mut folders = vec![table.to_owned()];
        for _ in 0..PARTITION_LEVELS {
            let mut below = Vec::new();
            for folder in folders {
                let prefix = self.path(&folder);
                let listed = self.store.list_with_delimiter(Some(&prefix));
                let listed = self.runtime.block_on(listed).map_err(|error| self.failed(&error))?;
                for object in listed.objects {
                    self.add(&object, keep, found)?;
                }
                below
                    .extend(listed.common_prefixes.iter().filter_map(|path| self.name(path)).filter(|path| keep(path)));
            }
            folders = below;
        }
        for folder in folders {
            let mut objects = self.store.list(Some(&self.path(&folder)));
            while let Some(object) = self.runtime.block_on(objects.try_next()).map_err(|error| self.failed(&error))? {
                self.add(&object, keep, found)?;
            }
        }
        Ok(())
    }

    fn add(
        &self,
        object: &object_store::ObjectMeta,
        keep: &dyn Fn(&str) -> bool,
        found: &mut Vec<Entry>,
    ) -> Result<(), DatasetError> {
        let Some(path) = self.name(&object.location) else { return Ok(()) };
        if !is_data(path.rsplit('/').next().unwrap_or_default()) || !keep(&path) {
            return Ok(());
        }
        if found.len() >= MAX_FILES {
            return Err(DatasetError::TooMuch { what: "files", limit: MAX_FILES });
        }
        found.push(Entry { path, length: object.size });
        Ok(())
    }

    pub(super) fn source(&self, entry: &Entry) -> impl Source + '_ {
        RemoteFile { remote: self, path: entry.path.clone(), length: entry.length }
    }

    fn path(&self, path: &str) -> Path {
        if self.prefix.is_empty() { Path::from(path) } else { Path::from(format!("{}/{path}", self.prefix)) }
    }

    /// The name from the dataset's root.
    fn name(&self, path: &Path) -> Option<String> {
        let rest = path.as_ref().strip_prefix(&self.prefix)?;
        Some(rest.trim_start_matches('/').to_owned())
    }

    fn failed(&self, error: &object_store::Error) -> DatasetError {
        DatasetError::Remote(format!("{}: {}", self.url, shown(error)))
    }
}

/// An error with its causes, shown on one line.
fn shown(error: &dyn Error) -> String {
    const MAX_CHARS: usize = 400;
    crate::profile::printable(&chain(error)).chars().take(MAX_CHARS).collect()
}

impl Source for RemoteFile<'_> {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(&self, start: u64, length: usize) -> Result<Bytes, DatasetError> {
        if length == 0 {
            return Ok(Bytes::new());
        }
        let end = start.saturating_add(length as u64);
        let path = self.remote.path(&self.path);
        let read = self.remote.store.get_range(&path, start..end);
        let bytes = self.remote.runtime.block_on(read).map_err(|error| self.remote.failed(&error))?;
        if bytes.len() == length { Ok(bytes) } else { Err(DatasetError::damaged(&self.path, "it has become shorter")) }
    }
}

/// Gives the store the client of this program.
struct Connector(TlsClient<HttpRequestBody>);

struct Service(TlsClient<HttpRequestBody>);

impl Connector {
    fn new(ca_file: Option<&FilePath>) -> Result<Self, ClientError> {
        match http_client(true, ca_file) {
            // Without https none is needed.
            Err(ClientError::NoCertificates) => Ok(Self(http_client(false, None)?)),
            made => Ok(Self(made?)),
        }
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Connector")
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Service")
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Service(self.0.clone())))
    }
}

impl HttpService for Service {
    fn call<'s, 'c>(
        &'s self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'c>>
    where
        's: 'c,
        Self: 'c,
    {
        Box::pin(async move {
            let response = match tokio::time::timeout(REQUEST_TIME, self.0.request(request)).await {
                Ok(Ok(response)) => response,
                Ok(Err(error)) => {
                    let kind = if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Request };
                    return Err(HttpError::new(kind, error));
                }
                Err(late) => return Err(HttpError::new(HttpErrorKind::Timeout, late)),
            };
            let (parts, body) = response.into_parts();
            let body =
                http_body_util::BodyExt::map_err(body, |error| HttpError::new(HttpErrorKind::Interrupted, error));
            Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
        })
    }
}
