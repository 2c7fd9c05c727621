//! What all formats have in common.

use super::*;

const FORMATS: [Format; 4] = [Format::Svg, Format::Folded, Format::Pprof, Format::Firefox];

#[test]
fn the_same_samples_in_another_order_give_the_same_bytes() {
    let samples = service();
    let every_option = OutputOptions {
        lines: true,
        per_thread: true,
        per_process: true,
        reverse: true,
        upwards: true,
        colors: "java".parse().unwrap(),
        ..OutputOptions::default()
    };
    for options in [OutputOptions::default(), every_option] {
        for format in FORMATS {
            let one = bytes(&profile(&samples), format, &options);
            let other = bytes(&profile(&shuffled(&samples)), format, &options);
            assert!(one == other, "{format} depends on the order of samples");
        }
    }
}

#[test]
fn all_formats_have_the_same_total() {
    let profile = profile(&service());
    let options = OutputOptions::default();
    let folded = folded::total(&string(&profile, Format::Folded, &options));
    let pprof: i64 = pprof::decode(&profile).samples.iter().map(|sample| sample.value[0]).sum();
    let firefox = firefox::total(&string(&profile, Format::Firefox, &options));
    let svg = svg::total(&string(&profile, Format::Svg, &options));
    assert_eq!(profile.total(), 100);
    assert_eq!((folded, pprof, firefox, svg), (100, 100, 100, 100));
}

#[test]
fn an_empty_profile_is_an_error_and_writes_nothing() {
    for format in FORMATS {
        let mut written = Vec::new();
        let error = write(&profile(&[]), format, &OutputOptions::default(), &mut written).unwrap_err();
        assert!(matches!(error, OutputError::NoSamples), "{format}: {error}");
        assert!(written.is_empty());
    }
}

/// Accepts some bytes, then fails like a pipe whose reader went away.
struct Closed(usize);

impl Write for Closed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_failing_writer_is_reported_wherever_it_fails() {
    let profile = profile(&service());
    for format in FORMATS {
        let whole = bytes(&profile, format, &OutputOptions::default()).len();
        for room in [0, 1, 10, whole / 2, whole - 1] {
            let error = write(&profile, format, &OutputOptions::default(), Closed(room)).unwrap_err();
            assert!(error.is_broken_pipe(), "{format} with room for {room} of {whole}: {error}");
        }
        write(&profile, format, &OutputOptions::default(), Closed(whole)).unwrap();
    }
}
