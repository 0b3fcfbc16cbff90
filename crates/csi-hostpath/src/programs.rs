//! The programs of the machine that mount, unmount and look at devices.

use std::{fs, io, process::Command};

/// Runs a program and returns what it says.
pub fn run(program: &str, arguments: &[&str]) -> io::Result<String> {
    let output = Command::new(program).args(arguments).output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(io::Error::other(format!("{program} {}: {}", arguments.join(" "), text(&output.stderr))))
}

pub fn is_mounted(path: &str) -> bool {
    run("mountpoint", &["-q", path]).is_ok()
        || fs::read_to_string("/proc/self/mountinfo")
            .is_ok_and(|table| table.lines().any(|line| line.split(' ').nth(4) == Some(path)))
}

pub fn bind(source: &str, target: &str, read_only: bool) -> io::Result<()> {
    if !is_mounted(target) {
        run("mount", &["--bind", source, target])?;
    }
    if read_only {
        run("mount", &["-o", "remount,bind,ro", target])?;
    }
    Ok(())
}

pub fn mount(device: &str, target: &str) -> io::Result<()> {
    if is_mounted(target) { Ok(()) } else { run("mount", &[device, target]).map(drop) }
}

pub fn unmount(target: &str) -> io::Result<()> {
    while is_mounted(target) {
        run("umount", &[target])?;
    }
    Ok(())
}
