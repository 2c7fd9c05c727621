//! php-fpm without any flag: workers that a master has made, and requests that come and go.

use std::process::Command;

use anyhow::Result;
use jitprof_tests::{Jitprof, Scratch, Target, path_from, target_file};

use crate::php_bare::{FREQUENCY, assert_application};

#[test]
fn an_application_has_its_whole_chains_in_each_worker() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_PYTHON")?);
    command.arg(target_file("php/fpm.py")?).arg("--script").arg(target_file("php/app/public/index.php")?);
    // The master leads a group of its own, and is to end with who has started it.
    command.arg(scratch.path()).args(["600", "setpriv", "--pdeathsig", "TERM"]);
    command.arg(path_from("JITPROF_PHP_FPM")?).arg("-R");
    let target = Target::start(command, &scratch)?;
    let workers = target.said("workers")?.split(',').map(str::parse).collect::<Result<Vec<u32>, _>>()?;
    let words = ["--pid", target.said("pid")?];
    let recording = Jitprof::recording_at(&scratch, FREQUENCY, words)?.record_cpu_of(&workers, 7)?;
    assert_application(&recording);
    Ok(())
}
