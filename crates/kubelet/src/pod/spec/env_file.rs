//! A file of variables that a container wrote into an emptyDir: `NAME='value'` on each line, a small part of what a POSIX shell reads.
//! Upstream counterpart: pkg/kubelet/util/env.

use std::{fs::File, io::Read, path::Path};

use files::{Dir, beneath};

/// The longest file that is read.
const LONGEST: u64 = 64 << 10;
/// The longest value that a variable gets from a file.
pub const LONGEST_VALUE: usize = 32 << 10;

/// The text of a file in a volume. Links are followed as far as they stay in the volume, because its containers may make them.
pub fn read(volume: &Path, path: &str) -> std::io::Result<Vec<u8>> {
    let held = Dir::open(volume)?.hold(Path::new(path))?;
    let invalid = |why| Err(std::io::Error::new(std::io::ErrorKind::InvalidData, why));
    // Another sort of file might block or do something by being opened: what is held is looked at first.
    if !beneath::is_file(&nix::sys::stat::fstat(&held)?) {
        return invalid("not a plain file");
    }
    let mut text = Vec::new();
    File::open(beneath::path_of(&held))?.take(LONGEST + 1).read_to_end(&mut text)?;
    if text.len() as u64 > LONGEST { invalid("the file is longer than 64 KiB") } else { Ok(text) }
}

/// The value of a variable; empty where the file has none of that name. Lines behind it are not looked at.
pub fn value(text: &str, wanted: &str) -> Result<String, String> {
    let wrong = |line: usize, why: &str| format!("invalid environment variable format at line {}: {why}", line + 1);
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let line = line.trim_start_matches(BLANKS);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, given)) = line.split_once('=') else { return Err(wrong(number, "missing '='")) };
        if name.is_empty() {
            return Err(wrong(number, "empty variable name"));
        }
        if name.ends_with(BLANKS) {
            return Err(wrong(number, "whitespace before '=' is not allowed"));
        }
        // A shell takes `NAME= 'value'` for an empty value too.
        if given.starts_with(BLANKS) {
            if name == wanted {
                return Ok(String::new());
            }
            continue;
        }
        let Some(mut rest) = given.strip_prefix('\'') else {
            return Err(wrong(number, "value must be enclosed in single quotes"));
        };
        let (mut value, mut end) = (String::new(), number);
        let behind = loop {
            match rest.split_once('\'') {
                Some((last, behind)) => {
                    value.push_str(last);
                    break behind.trim_start_matches(BLANKS);
                }
                None => {
                    value.push_str(rest);
                    value.push('\n');
                    (end, rest) = lines.next().ok_or_else(|| {
                        format!(
                            "invalid environment variable format starting at line {}: unclosed single quote",
                            number + 1
                        )
                    })?;
                }
            }
        };
        if !behind.is_empty() && !behind.starts_with('#') {
            return Err(wrong(end, "unexpected content after closing quote"));
        }
        if name == wanted {
            return Ok(value);
        }
    }
    Ok(String::new())
}

const BLANKS: [char; 2] = [' ', '\t'];

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_value_stands_in_single_quotes() {
        let check = |text: &str, expected: Result<&str, &str>| {
            let expected =
                expected.map(str::to_owned).map_err(|why| format!("invalid environment variable format {why}"));
            assert_eq!(value(text, "A"), expected, "{text:?}");
        };
        check("A='1'", Ok("1"));
        check("\n \t\n# A='0'\n  A='1' # said so\nA='2'\n", Ok("1"));
        check("B='x'\nA='a=b \"$C\" \\n'\n", Ok("a=b \"$C\" \\n"));
        check("B='x\nA=y' \nA='one\n two\n#three'\r\n", Ok("one\n two\n#three"));
        check("A= '1'", Ok(""));
        check("A=''", Ok(""));
        check("B= x\n", Ok(""));
        check("", Ok(""));
        // Names differ by letters.
        check("a='1'", Ok(""));
        check("A", Err("at line 1: missing '='"));
        check("\n='1'", Err("at line 2: empty variable name"));
        check("A ='1'", Err("at line 1: whitespace before '=' is not allowed"));
        check("A=1", Err("at line 1: value must be enclosed in single quotes"));
        check("A=\"1\"", Err("at line 1: value must be enclosed in single quotes"));
        check("B='x'\nA='1'2", Err("at line 2: unexpected content after closing quote"));
        check("B='x\ny'z\n", Err("at line 2: unexpected content after closing quote"));
        check("B='x'\nA='1\n2\n", Err("starting at line 2: unclosed single quote"));
        // The lines behind the variable do not matter.
        check("A='1'\nnonsense", Ok("1"));
    }

    #[test]
    fn a_file_is_one_of_the_volume() {
        let world = tempfile::tempdir().unwrap();
        let volume = world.path().join("volume");
        fs::create_dir_all(volume.join("in")).unwrap();
        fs::write(world.path().join("secret"), "A='s3cret'").unwrap();
        fs::write(volume.join("in/env"), "A='1'").unwrap();
        fs::write(volume.join("long"), vec![b'#'; (64 << 10) + 1]).unwrap();
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, volume.join(name)).unwrap();
        link("in/env", "link");
        link("../secret", "out");
        link(world.path().join("secret").to_str().unwrap(), "whole");
        nix::unistd::mkfifo(&volume.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in ["in/env", "link"] {
            assert_eq!(read(&volume, path).unwrap(), b"A='1'", "{path}");
        }
        for path in ["out", "whole", "../secret", "/etc/passwd", "pipe", "in", "long", "none"] {
            assert!(read(&volume, path).is_err(), "{path}");
        }
    }
}
