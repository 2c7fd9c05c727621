//! Ranges: which samples are asked for, and from where they come.

use std::io::Read;
use std::time::Duration;

use axum::http::{StatusCode, header};
use flate2::read::GzDecoder;

use super::{Service, profile, run};
use crate::process::monotonic_now;
use jitprof_common::units::MonoNs;

#[test]
fn windows_and_the_open_window_are_counted_once_each() {
    run(async {
        let service = Service::new();
        service.window(15, &[("a", &["main", "one"], 3)]);
        service.window(5, &[("a", &["main", "one"], 5)]);
        // Begins where the last window ended.
        let start = service.state.intake.kept_until();
        *service.open.lock().unwrap() = Some(profile(start, &[("a", &["main", "two"], 7)]));
        let got = service.get("/profile?from=-1m&format=folded").await;
        assert_eq!(got.text(), "a;main;one 8\na;main;two 7\n");
        let got = service.get("/profile?from=-1m&to=-8s&format=folded").await;
        assert_eq!(got.text(), "a;main;one 8\n", "the range ends before the open window's sample");
    });
}

#[test]
fn a_profile_says_of_how_long_a_time_its_samples_are() {
    run(async {
        let service = Service::new();
        service.window(25, &[("a", &["f"], 5)]);
        let start = service.state.intake.kept_until();
        *service.open.lock().unwrap() = Some(profile(start, &[("a", &["f"], 7)]));
        // The window from 35 to 25 s ago, and what of the open one behind it is asked for.
        for (range, seconds) in [("from=-33s&to=-29s", 10.0), ("from=-1m&to=-25s", 10.0), ("from=-33s&to=-20s", 15.0)] {
            let got = service.get(&format!("/profile?{range}&format=pprof")).await;
            let profile = crate::output::read_pprof(&*got.body).unwrap();
            let said = profile.meta().duration.as_secs_f64();
            assert!((said - seconds).abs() < 1.0, "{range}: {said}");
        }
    });
}

#[test]
fn the_timeline_has_the_open_window_on_top() {
    run(async {
        let service = Service::new();
        service.window(5, &[("a", &["f"], 5), ("b", &["f"], 9)]);
        let start = service.state.intake.kept_until();
        *service.open.lock().unwrap() = Some(profile(start, &[("c", &["f"], 2)]));
        let json = service.get("/api/timeline?from=-20s&step=5&series=2").await.json();
        assert_eq!(json["series"][0]["value"], "b");
        assert_eq!(json["series"][1]["value"], "a");
        assert_eq!(json["rest"]["values"], 1);
        let rest: u64 = json["rest"]["cpu_ns"].as_array().unwrap().iter().filter_map(|ns| ns.as_u64()).sum();
        assert_eq!(rest, 20_000_000);
    });
}

#[test]
fn labels_choose_samples_and_are_listed() {
    run(async {
        let service = Service::new();
        service.window(5, &[("a", &["f"], 5), ("b", &["f"], 9)]);
        assert_eq!(service.get("/profile?from=-1m&format=folded&comm=b").await.text(), "b;f 9\n");
        assert_eq!(service.get("/profile?from=-1m&format=folded&pid=1").await.text(), "a;f 5\n");
        assert_eq!(service.get("/profile?from=-1m&format=folded&container=c1&pid=2").await.text(), "b;f 9\n");
        let none = service.get("/profile?from=-1m&format=folded&label.container=c2").await;
        assert_eq!(none.status, StatusCode::NOT_FOUND);
        assert!(none.text().contains("nothing was sampled"));
        let labels = service.get("/api/labels?from=-1m&name=comm").await.json();
        assert_eq!(labels["labels"][0]["values"][0]["value"], "b");
        assert_eq!(labels["labels"][0]["values"][1]["cpu_ns"], 50_000_000);
    });
}

#[test]
fn go_tool_pprof_gets_what_a_go_program_would_send() {
    run(async {
        let service = Service::new();
        let got = service.get("/debug/pprof/profile?seconds=1&comm=idle").await;
        assert_eq!(got.status, StatusCode::OK);
        assert_eq!(got.headers[header::CONTENT_TYPE], "application/octet-stream");
        assert_eq!(got.headers[header::CONTENT_DISPOSITION], "attachment; filename=\"profile\"");
        assert!(!got.headers.contains_key(header::CONTENT_ENCODING));
        let mut bytes = Vec::new();
        GzDecoder::new(&*got.body).read_to_end(&mut bytes).unwrap();
        assert!(!bytes.is_empty(), "an idle process has a profile too");
        for (query, why) in [("seconds=0", "from 1 to 600"), ("seconds=x", "from 1 to 600"), ("second=5", "not known")]
        {
            let got = service.get(&format!("/debug/pprof/profile?{query}")).await;
            assert_eq!((got.status, &got.headers["x-go-pprof"]), (StatusCode::BAD_REQUEST, &"1".parse().unwrap()));
            assert!(got.text().contains(why), "{}", got.text());
        }
    });
}

#[test]
fn a_profile_that_outlasts_a_window_is_whole() {
    run(async {
        let service = Service::new();
        let asked = service.get("/debug/pprof/profile?seconds=1");
        let closing = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            // A window that closes meanwhile, with a sample half a second after its start.
            let start = MonoNs(monotonic_now().0 - 300_000_000);
            let mut window = profile(start, &[("a", &["f"], 5)]);
            window.set_duration(Duration::from_millis(600));
            let end = start.after(Duration::from_millis(600));
            let health = crate::record::Health::default();
            service.state.intake.add(crate::record::Window { profile: window, end, health });
            *service.open.lock().unwrap() = Some(profile(end, &[]));
        };
        let (got, ()) = tokio::join!(asked, closing);
        let mut bytes = Vec::new();
        GzDecoder::new(&*got.body).read_to_end(&mut bytes).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("comm"), "the window's sample is in it");
    });
}

#[test]
fn every_bad_parameter_is_named() {
    run(async {
        let service = Service::new();
        service.window(5, &[("a", &["f"], 5)]);
        for (path, name) in [
            ("/profile?format=png", "format"),
            ("/profile?from=x", "from"),
            ("/profile?min-width=101", "min-width"),
            ("/profile?lines=maybe", "lines"),
            ("/api/timeline?step=0", "step"),
            ("/api/timeline?from=0&step=1", "step"),
            ("/api/flame?group=a,b,c,d,e", "group"),
            ("/api/flame?min=2", "min"),
            ("/api/diff?b.from=later", "b.from"),
            ("/api/diff?c.from=-1m", "c.from"),
            ("/api/top?sort=name", "sort"),
            ("/api/top?rows=0", "rows"),
            ("/api/lines?kind=native", "name"),
            ("/api/lines?name=f&kind=magic", "kind"),
        ] {
            let got = service.get(path).await;
            assert_eq!(got.status, StatusCode::BAD_REQUEST, "{path}");
            let error = got.json()["error"].as_str().unwrap().to_owned();
            assert!(error.contains(&format!("`{name}`")), "{path}: {error}");
        }
    });
}

#[test]
fn health_says_why_it_is_bad() {
    run(async {
        let service = Service::new();
        assert_eq!(service.get("/healthz").await.status, StatusCode::OK);
        service.state.recording.end();
        let got = service.get("/healthz").await;
        assert_eq!(got.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(got.text().contains("recording has ended"));
    });
}
