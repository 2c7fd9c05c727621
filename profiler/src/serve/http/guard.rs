//! Who may ask.
//!
//! * **A page of somebody else** in a browser on this machine can send requests to a loopback address, and by DNS
//!   rebinding under a name of its own read the answers. So a request must name this service as its host, and a browser
//!   must not say that another site makes it.
//! * **An address** wants the token of every request, unless it is a loopback one and everybody may ask: in `Authorization: Bearer`, or from a browser a cookie that it
//!   gets for the token. The cookie is a random number of this run, not the token.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{Html, IntoResponse, Response};

use super::options::{HttpOptions, Listen};
use super::tokens::Token;

/// Answers without a token, because those who look after processes have none.
pub(super) const HEALTH: &str = "/healthz";
const LOGIN: &str = "/login";
/// A token and its name, in bytes.
const MAX_FORM: usize = 4 << 10;
/// How long a form may take.
const FORM_TIME: Duration = Duration::from_secs(10);

/// Nothing from elsewhere, nothing inline, no frames.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src \
                      'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// What requests are held against.
pub(super) struct Guard {
    token: Option<Token>,
    session: Token,
    cookie: String,
    /// Hosts that requests may name; `None` for any.
    hosts: Option<Vec<String>>,
}

impl Guard {
    /// # Errors
    /// The kernel gives no random number.
    pub(super) fn new(options: &HttpOptions, port: u16) -> Result<Self, std::io::Error> {
        // A unix socket is out of a browser's reach, and a name that was rebound never has the cookie.
        let is_open = matches!(options.listen, Listen::Unix(_)) || options.token.is_some();
        Ok(Self {
            token: options.token.clone(),
            session: Token::random()?,
            // Cookies know no ports: two services on one host would take each other's.
            cookie: format!("jitprof-{port}"),
            hosts: (!is_open).then(|| options.hosts.clone()),
        })
    }

    /// Lets everybody ask, under any name.
    ///
    /// # Errors
    /// The kernel gives no random number.
    pub(super) fn open() -> Result<Self, std::io::Error> {
        Ok(Self { token: None, session: Token::random()?, cookie: String::new(), hosts: None })
    }

    /// Puts the guard in front of all routes.
    pub(super) fn around(self, router: Router) -> Router {
        router.layer(from_fn_with_state(Arc::new(self), check))
    }

    fn is_known_host(&self, headers: &HeaderMap, uri: &Uri) -> bool {
        let Some(hosts) = &self.hosts else { return true };
        let header = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let Some(host) = uri.host().or(header) else { return false };
        let name = without_port(host);
        let is_loopback = name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        is_loopback || name.eq_ignore_ascii_case("localhost") || hosts.iter().any(|h| h.eq_ignore_ascii_case(name))
    }

    fn knows_the_token(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.token else { return true };
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let bearer = bearer.and_then(|value| value.split_once(' '));
        if bearer.is_some_and(|(scheme, given)| scheme.eq_ignore_ascii_case("bearer") && token.is(given.trim())) {
            return true;
        }
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs = cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.any(|(name, value)| name == self.cookie && self.session.is(value))
    }

    /// What a request asks for whose query has the token: its path and query without it.
    fn without_token(&self, request: &Request) -> Option<String> {
        let token = self.token.as_ref()?;
        let query = request.uri().query()?;
        let pairs: Vec<_> = form_urlencoded::parse(query.as_bytes()).collect();
        let (_, given) = pairs.iter().find(|(name, _)| name == "token")?;
        if request.method() != Method::GET || !token.is(given) {
            return None;
        }
        let rest = pairs.iter().filter(|(name, _)| name != "token");
        let rest = form_urlencoded::Serializer::new(String::new()).extend_pairs(rest).finish();
        let path = local(request.uri().path());
        Some(if rest.is_empty() { path.to_owned() } else { format!("{path}?{rest}") })
    }

    fn welcome(&self, headers: &HeaderMap, target: &str) -> Response {
        let is_secure = headers.get("x-forwarded-proto").is_some_and(|proto| proto == "https");
        let secure = if is_secure { "; Secure" } else { "" };
        let session = self.session.reveal();
        let cookie = format!("{}={session}; Path=/; HttpOnly; SameSite=Strict{secure}", self.cookie);
        (StatusCode::SEE_OTHER, [(header::SET_COOKIE, cookie), (header::LOCATION, target.to_owned())]).into_response()
    }

    async fn login(&self, request: Request) -> Response {
        let Some(token) = &self.token else { return sentence(StatusCode::NOT_FOUND, "no token is needed here") };
        let (parts, body) = request.into_parts();
        let read = tokio::time::timeout(FORM_TIME, to_bytes(body, MAX_FORM)).await;
        let Ok(Ok(form)) = read else { return sentence(StatusCode::BAD_REQUEST, "the form is too long or too slow") };
        let given = form_urlencoded::parse(&form).find(|(name, _)| name == "token").map(|(_, value)| value);
        if given.is_some_and(|given| token.is(given.trim())) {
            return self.welcome(&parts.headers, "/");
        }
        login_form(true)
    }
}

async fn check(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let mut response = answer(&guard, request, next).await;
    let headers = response.headers_mut();
    let fixed = [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    headers.extend(fixed.map(|(name, value)| (name, HeaderValue::from_static(value))));
    // What was sampled is nobody's to keep; the page's files say otherwise of themselves.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(POLICY));
    response
}

async fn answer(guard: &Guard, mut request: Request, next: Next) -> Response {
    if !guard.is_known_host(request.headers(), request.uri()) {
        let why = "this service answers to localhost and to the names it was given; add the proxy's name to `hosts`";
        return sentence(StatusCode::FORBIDDEN, why);
    }
    if is_from_elsewhere(request.headers()) {
        return sentence(StatusCode::FORBIDDEN, "a page of another site may not ask this service");
    }
    let path = request.uri().path();
    match (request.method(), path) {
        (&Method::POST, LOGIN) => return guard.login(request).await,
        (&Method::GET | &Method::HEAD, _) => {}
        _ => return sentence(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered here"),
    }
    if path == HEALTH {
        return next.run(request).await;
    }
    let is_browser = request.headers().get(header::ACCEPT).is_some_and(|accept| contains(accept, "text/html"));
    if let Some(target) = guard.without_token(&request) {
        if is_browser {
            // The token leaves the address bar; the cookie takes its place.
            return guard.welcome(request.headers(), &target);
        }
        // `go tool pprof` has neither headers nor cookies.
        if let Ok(uri) = target.parse() {
            *request.uri_mut() = uri;
            return next.run(request).await;
        }
    }
    if guard.knows_the_token(request.headers()) {
        return next.run(request).await;
    }
    if is_browser {
        return login_form(false);
    }
    let mut response = sentence(
        StatusCode::UNAUTHORIZED,
        "send the token as `Authorization: Bearer TOKEN`; /run/jitprof/token-PORT has that of this start",
    );
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// Whether a browser says that a page of another site makes this request. A link there may lead here: then the browser
/// shows the answer to its user, and to nobody else.
fn is_from_elsewhere(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_link = text("sec-fetch-mode") == Some("navigate") && text("sec-fetch-dest") == Some("document");
    if let Some(site) = text("sec-fetch-site")
        && !matches!(site, "same-origin" | "none")
    {
        return !is_link;
    }
    // Browsers send an origin with what is more than a link, and without Sec-Fetch-Site only to plain http elsewhere.
    match text("origin") {
        None => false,
        Some(origin) => origin.split_once("://").map(|(_, host)| host) != text("host"),
    }
}

/// `path` as a target on this service: `//host` would be one elsewhere.
fn local(path: &str) -> &str {
    if path.starts_with("//") || path.starts_with("/\\") { "/" } else { path }
}

fn without_port(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(address, _)| address),
        None => host.split_once(':').map_or(host, |(name, _)| name),
    }
}

fn contains(value: &HeaderValue, part: &str) -> bool {
    value.to_str().is_ok_and(|value| value.contains(part))
}

fn sentence(status: StatusCode, why: &str) -> Response {
    (status, axum::Json(serde_json::json!({ "error": why }))).into_response()
}

fn login_form(is_wrong: bool) -> Response {
    let page = include_str!("../page/login.html");
    let note = if is_wrong { "That is not the token." } else { "" };
    let mut response = (StatusCode::UNAUTHORIZED, Html(page.replace("{note}", note))).into_response();
    // The form stands for itself: its style is not to be had without the token.
    let policy = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; \
                  frame-ancestors 'none'";
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    response
}
