//! Who may ask.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, Response, StatusCode, header};
use tower::ServiceExt;

use super::{Service, run};
use crate::serve::http::guard::Guard;
use crate::serve::http::{HttpOptions, Listen, Token};

const TOKEN: &str = "0123456789abcdef0123";

fn guarded(token: Option<&str>, hosts: &[&str]) -> Router {
    let options = HttpOptions {
        listen: Listen::Tcp("127.0.0.1:7878".parse().unwrap()),
        token: token.map(|token| Token::new(token).unwrap()),
        hosts: hosts.iter().map(|&host| host.to_owned()).collect(),
    };
    Guard::new(&options, 7878).unwrap().around(Service::new().router)
}

async fn ask(router: &Router, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Response<Body> {
    let mut request = Request::builder().method(method).uri(path);
    if headers.iter().all(|(name, _)| *name != "host") {
        request = request.header("host", "localhost:7878");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    router.clone().oneshot(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap()
}

#[test]
fn a_rebound_name_gets_nothing() {
    run(async {
        let router = guarded(None, &["profiler.example"]);
        for host in ["localhost:7878", "127.0.0.1", "127.3.2.1:1", "[::1]:7878", "LOCALHOST", "profiler.example:443"] {
            assert_eq!(ask(&router, "GET", "/healthz", &[("host", host)], "").await.status(), StatusCode::OK, "{host}");
        }
        for host in
            ["evil.example", "evil.example:7878", "localhost.evil.example", "10.0.0.1", "", "[::2]", "127.0.0.1.evil"]
        {
            let status = ask(&router, "GET", "/healthz", &[("host", host)], "").await.status();
            assert_eq!(status, StatusCode::FORBIDDEN, "{host}");
        }
    });
}

#[test]
fn another_sites_page_gets_nothing_but_its_links_work() {
    run(async {
        let router = guarded(None, &[]);
        let status = |headers: Vec<(&'static str, &'static str)>| {
            let router = router.clone();
            async move { ask(&router, "GET", "/api/status", &headers, "").await.status() }
        };
        assert_eq!(status(vec![("sec-fetch-site", "same-origin")]).await, StatusCode::OK);
        assert_eq!(status(vec![("sec-fetch-site", "none")]).await, StatusCode::OK);
        assert_eq!(status(vec![("sec-fetch-site", "cross-site")]).await, StatusCode::FORBIDDEN);
        assert_eq!(
            status(vec![("sec-fetch-site", "same-site"), ("sec-fetch-mode", "cors")]).await,
            StatusCode::FORBIDDEN
        );
        let link =
            vec![("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
        assert_eq!(status(link).await, StatusCode::OK);
        let frame =
            vec![("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")];
        assert_eq!(status(frame).await, StatusCode::FORBIDDEN);
        assert_eq!(status(vec![("origin", "https://evil.example")]).await, StatusCode::FORBIDDEN);
        assert_eq!(status(vec![("origin", "null")]).await, StatusCode::FORBIDDEN);
        assert_eq!(status(vec![("origin", "http://localhost:7878")]).await, StatusCode::OK);
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"] {
            let got = ask(&router, method, "/api/status", &[], "").await;
            assert_eq!(got.status(), StatusCode::METHOD_NOT_ALLOWED, "{method}");
        }
    });
}

#[test]
fn everything_but_health_wants_the_token() {
    run(async {
        let router = guarded(Some(TOKEN), &[]);
        for path in
            ["/", "/page/main.js", "/api/status", "/profile", "/debug/pprof/", "/debug/pprof/profile", "/nothing"]
        {
            let got = ask(&router, "GET", path, &[], "").await;
            assert_eq!(got.status(), StatusCode::UNAUTHORIZED, "{path}");
            assert_eq!(got.headers()[header::WWW_AUTHENTICATE], "Bearer");
        }
        assert_eq!(ask(&router, "GET", "/healthz", &[], "").await.status(), StatusCode::OK);
        let bearer = format!("Bearer {TOKEN}");
        let got = ask(&router, "GET", "/api/status", &[("authorization", &bearer), ("host", "10.1.2.3")], "").await;
        assert_eq!(got.status(), StatusCode::OK);
        for wrong in
            ["Bearer", "Bearer x", "Basic 0123456789abcdef0123", &bearer[..bearer.len() - 1], &format!("{bearer}0")]
        {
            let got = ask(&router, "GET", "/api/status", &[("authorization", wrong)], "").await;
            assert_eq!(got.status(), StatusCode::UNAUTHORIZED, "{wrong}");
        }
    });
}

#[test]
fn a_browser_gets_a_cookie_for_the_token_by_form_or_link() {
    run(async {
        let router = guarded(Some(TOKEN), &[]);
        let form = ask(&router, "GET", "/", &[("accept", "text/html")], "").await;
        assert_eq!(form.status(), StatusCode::UNAUTHORIZED);
        let page = String::from_utf8(to_bytes(form.into_body(), 1 << 20).await.unwrap().to_vec()).unwrap();
        assert!(page.contains("<form method=\"post\" action=\"/login\">"));
        let wrong = ask(&router, "POST", "/login", &[], "token=0123456789abcdef0124").await;
        assert_eq!(wrong.status(), StatusCode::UNAUTHORIZED);
        assert!(!wrong.headers().contains_key(header::SET_COOKIE));
        let elsewhere =
            ask(&router, "POST", "/login", &[("origin", "https://evil.example")], &format!("token={TOKEN}")).await;
        assert_eq!(elsewhere.status(), StatusCode::FORBIDDEN);
        let long = ask(&router, "POST", "/login", &[], &"x".repeat(10_000)).await;
        assert_eq!(long.status(), StatusCode::BAD_REQUEST);

        let by_form = ask(&router, "POST", "/login", &[], &format!("token={TOKEN}")).await;
        let by_link =
            ask(&router, "GET", &format!("/profile?token={TOKEN}&pid=7"), &[("accept", "text/html")], "").await;
        for (got, target) in [(by_form, "/"), (by_link, "/profile?pid=7")] {
            assert_eq!(
                (got.status(), &got.headers()[header::LOCATION]),
                (StatusCode::SEE_OTHER, &target.parse().unwrap())
            );
            let cookie = got.headers()[header::SET_COOKIE].to_str().unwrap();
            assert!(cookie.contains("; HttpOnly; SameSite=Strict") && !cookie.contains(TOKEN), "{cookie}");
            let pair = cookie.split(';').next().unwrap();
            let got = ask(&router, "GET", "/api/status", &[("cookie", &format!("other=1; {pair}"))], "").await;
            assert_eq!(got.status(), StatusCode::OK);
        }
        let outwards =
            ask(&router, "GET", &format!("//evil.example/?token={TOKEN}"), &[("accept", "text/html")], "").await;
        assert!(!outwards.headers().get(header::LOCATION).is_some_and(|to| to.as_bytes().starts_with(b"//")));
    });
}

#[test]
fn a_tool_without_headers_and_cookies_sends_the_token_with_the_query() {
    run(async {
        let router = guarded(Some(TOKEN), &[]);
        let got = ask(&router, "GET", &format!("/api/status?token={TOKEN}"), &[], "").await;
        assert_eq!(got.status(), StatusCode::OK);
        assert!(!got.headers().contains_key(header::SET_COOKIE));
        let wrong = ask(&router, "GET", "/api/status?token=0123456789abcdef0124", &[], "").await;
        assert_eq!(wrong.status(), StatusCode::UNAUTHORIZED);
    });
}

#[test]
fn every_answer_has_the_headers_that_browsers_obey() {
    run(async {
        let service = guarded(None, &[]);
        for path in ["/", "/page/main.js", "/api/status", "/nothing", "/healthz"] {
            let got = ask(&service, "GET", path, &[], "").await;
            let policy = got.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned();
            assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{path}");
            assert!(!policy.contains("unsafe"), "{path}");
            assert_eq!(got.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
            assert_eq!(got.headers()[header::X_FRAME_OPTIONS], "DENY");
            let cached = if path == "/" || path.starts_with("/page/") { "no-cache" } else { "no-store" };
            assert_eq!(got.headers()[header::CACHE_CONTROL], cached, "{path}");
        }
        let page = ask(&service, "GET", "/", &[], "").await;
        let tag = page.headers()[header::ETAG].to_str().unwrap().to_owned();
        let again = ask(&service, "GET", "/", &[("if-none-match", &tag)], "").await;
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
    });
}

#[test]
fn no_path_leads_to_a_file() {
    run(async {
        let router = guarded(None, &[]);
        for path in
            ["/page/../Cargo.toml", "/page/%2e%2e/%2e%2e/etc/passwd", "/..%2f..%2fetc/passwd", "/page/", "/etc/passwd"]
        {
            assert_eq!(ask(&router, "GET", path, &[], "").await.status(), StatusCode::NOT_FOUND, "{path}");
        }
    });
}
