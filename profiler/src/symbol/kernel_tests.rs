use super::*;

const TEXT: &str = "\
0000000000000000 A fixed_percpu_data
ffffffff81000000 t __pfx_late
ffffffff81000000 t local_name
ffffffff81000000 T _text
ffffffff81000000 T startup_64
ffffffff81000100 W weak_name
ffffffff81000200 D data_name
ffffffff81001000 T _etext
ffffffffc0000000 t mod_first\t[some_mod]
ffffffffc0000040 t mod_last\t[some_mod]
ffffffffc0010000 t bpf_prog_6deef7357e7b4530_sample\t[bpf]
not a line
ffffffff81000300 T
";

fn name_and_module(kernel: &Kernel, address: u64) -> Result<(String, String), Unresolved> {
    let frame = kernel.resolve(Avma(address), &mut Names::default())?;
    assert_eq!((frame.kind, frame.address), (FrameKind::Kernel, 0), "where the kernel lies is nobody's to know");
    Ok((frame.name.to_string(), frame.module.unwrap().path.to_string()))
}

#[test]
fn a_global_name_wins_over_its_aliases() {
    let kernel = Kernel::read(TEXT.as_bytes());
    let found = name_and_module(&kernel, 0xffff_ffff_8100_0001).unwrap();
    assert_eq!(found, ("startup_64".to_owned(), "[kernel.kallsyms]".to_owned()));
}

#[test]
fn functions_reach_to_the_next_one_of_their_module_or_to_the_end_of_a_page() {
    let kernel = Kernel::read(TEXT.as_bytes());
    assert_eq!(name_and_module(&kernel, 0xffff_ffff_8100_0fff).unwrap().0, "weak_name");
    assert_eq!(name_and_module(&kernel, 0xffff_ffff_8100_1000), Err(Unresolved::KernelUnknown));
    assert_eq!(name_and_module(&kernel, 0xffff_ffff_a000_0000), Err(Unresolved::KernelUnknown));
    let found = name_and_module(&kernel, 0xffff_ffff_c000_0041).unwrap();
    assert_eq!(found, ("mod_last".to_owned(), "[some_mod]".to_owned()));
    assert_eq!(name_and_module(&kernel, 0xffff_ffff_c000_8000), Err(Unresolved::KernelUnknown));
    assert_eq!(name_and_module(&kernel, 0), Err(Unresolved::KernelUnknown));
}

#[test]
fn hidden_addresses_are_a_reason_of_their_own() {
    let hidden = "0000000000000000 T _text\n0000000000000000 T startup_64\n";
    let kernel = Kernel::read(hidden.as_bytes());
    assert_eq!(name_and_module(&kernel, 0xffff_ffff_8100_0000), Err(Unresolved::KernelRestricted));
    assert_eq!(name_and_module(&Kernel::read(&b""[..]), 1), Err(Unresolved::KernelUnreadable));
    assert_eq!(&*unnamed_in_kernel().name, "[kernel]");
}

#[test]
fn a_line_without_end_is_not_kept() {
    let endless = [TEXT.as_bytes(), &b"ffffffff81000310 T "[..], &vec![b'a'; 1 << 20]].concat();
    let kernel = Kernel::read(&endless[..]);
    assert!(kernel.len() < 300, "{}", kernel.len());
    assert!(name_and_module(&kernel, 0xffff_ffff_8100_0100).is_ok());
}

/// blazesym reads the same file; it keeps data symbols and chooses among aliases otherwise, so its name must be one
/// of those that the file gives for the function's start, or come after it.
#[test]
fn names_are_among_those_that_blazesym_finds_for_the_same_address() {
    let kernel = Kernel::load();
    let Kernel::Functions(functions) = &kernel else {
        assert!(matches!(kernel, Kernel::Unavailable(Unresolved::KernelRestricted | Unresolved::KernelUnreadable)));
        return;
    };
    let text = std::fs::read_to_string("/proc/kallsyms").unwrap();
    let chosen = || functions.entries.iter().step_by(97);
    let mut aliases: HashMap<u64, Vec<&str>> = chosen().map(|entry| (entry.start, Vec::new())).collect();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let start = u64::from_str_radix(words.next().unwrap(), 16).unwrap();
        if let Some(names) = aliases.get_mut(&start) {
            names.push(words.nth(1).unwrap());
        }
    }
    let source = blazesym::symbolize::source::Kernel { vmlinux: blazesym::MaybeDefault::None, ..Default::default() };
    let source = blazesym::symbolize::source::Source::from(source);
    let other = blazesym::symbolize::Symbolizer::builder().enable_demangling(false).build();
    let mut compared = 0;
    for entry in chosen() {
        let Ok((name, _)) = name_and_module(&kernel, entry.start) else {
            continue;
        };
        let found = other.symbolize_single(&source, blazesym::symbolize::Input::AbsAddr(entry.start)).unwrap();
        let theirs = found.as_sym().unwrap();
        assert_eq!(theirs.addr, entry.start, "{name} {}", theirs.name);
        let same = &aliases[&entry.start];
        assert!(same.contains(&&*theirs.name), "{same:?}");
        // Rust functions of the kernel come demangled.
        assert!(same.contains(&&*name) || same.iter().any(|alias| alias.starts_with("_R")), "{name} {same:?}");
        compared += 1;
    }
    assert!(compared > 100, "{compared}");
}

#[test]
fn what_comes_and_goes_is_read_again_and_the_kernels_own_text_is_not() {
    let readings = std::cell::Cell::new(0);
    let load = || {
        readings.set(readings.get() + 1);
        let later = "ffffffffc0020000 t bpf_prog_0123456789abcdef_later\t[bpf]\n";
        Kernel::read([TEXT, if readings.get() > 1 { later } else { "" }].concat().as_bytes())
    };
    let (mut kernel, start) = (KernelNow::default(), Instant::now());
    let mut name = |address, seconds| {
        let kernel = kernel.for_address(Avma(address), start + Duration::from_secs(seconds), load);
        (name_and_module(kernel, address).ok().map(|(name, _)| name), readings.get())
    };
    let (own, later) = (0xffff_ffff_8100_0001, 0xffff_ffff_c002_0010);
    assert_eq!(name(own, 0), (Some("startup_64".to_owned()), 1));
    assert_eq!(name(later, 9), (None, 1));
    assert_eq!(name(own, 10_000), (Some("startup_64".to_owned()), 1));
    assert_eq!(name(later, 10), (Some("bpf_prog_0123456789abcdef_later".to_owned()), 2));
    assert_eq!(name(later, 19).1, 2);
    assert_eq!(name(later, 20).1, 3, "there may be another one by now");
}
