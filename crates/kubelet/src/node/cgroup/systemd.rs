//! systemd as the keeper of cgroups: it makes slices, keeps their limits and ends them. What it has not been told it takes back
//! when it looks after its tree, so that nobody else may make cgroups where it does.
//!
//! It is asked over the socket that it has for the machine's administrator, which needs no message bus. A question is as short
//! as the writes of files that come with it.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::dbus::{
    introduction,
    message::{self, Body, Frame, Message, Sort},
};

const SOCKET: &str = "/run/systemd/private";
const NAME: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
/// An answer takes milliseconds, unless the machine is in great trouble.
const PATIENCE: Duration = Duration::from_secs(10);

/// A property of a unit that is a number.
pub type Property = (&'static str, u64);

#[derive(Debug)]
pub struct Systemd {
    socket: PathBuf,
}

/// The name of an error that was answered, and what it says.
struct Refusal(String, String);

impl Systemd {
    /// The one that is this machine's first process.
    pub fn of_this_machine() -> Option<Self> {
        Path::new(SOCKET).exists().then(|| Systemd { socket: SOCKET.into() })
    }

    /// Makes a slice with these properties; one that is there gets them.
    pub fn begin(&self, slice: &str, properties: &[Property]) -> io::Result<()> {
        let own = Body::default()
            .begins()
            .text("Description")
            .signature("s")
            .text("Pods of Kubernetes")
            .begins()
            .text("DefaultDependencies")
            .signature("b")
            .uint32(0);
        let accounts = ["CPUAccounting", "MemoryAccounting", "TasksAccounting", "IOAccounting"];
        let own = accounts.iter().fold(own, |own, name| own.begins().text(name).signature("b").uint32(1));
        let all = numbers(own, properties);
        let body = Body::default().text(slice).text("replace").list(all).list(Body::default());
        match self.ask("StartTransientUnit", "ssa(sv)a(sa(sv))", body)? {
            Err(Refusal(name, _)) if name == format!("{NAME}.UnitExists") => self.set(slice, properties),
            answer => taken("StartTransientUnit", slice, answer),
        }
    }

    /// Gives a slice other properties, until the machine ends.
    pub fn set(&self, slice: &str, properties: &[Property]) -> io::Result<()> {
        let body = Body::default().text(slice).uint32(1).list(numbers(Body::default(), properties));
        taken("SetUnitProperties", slice, self.ask("SetUnitProperties", "sba(sv)", body)?)
    }

    /// Ends a slice, with all that is in it.
    pub fn end(&self, slice: &str) -> io::Result<()> {
        match self.ask("StopUnit", "ss", Body::default().text(slice).text("replace"))? {
            Err(Refusal(name, _)) if name == format!("{NAME}.NoSuchUnit") => Ok(()),
            answer => taken("StopUnit", slice, answer),
        }
    }

    fn ask(&self, member: &str, signature: &str, body: Body) -> io::Result<Result<(), Refusal>> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(introduction().as_bytes())?;
        let answer = line(&mut stream)?;
        if !answer.starts_with(b"OK ") {
            return Err(io::Error::other(format!("systemd does not let us in: {}", answer.escape_ascii())));
        }
        let call = Message {
            sort: Sort::Call,
            serial: 1,
            destination: NAME.to_owned(),
            path: PATH.to_owned(),
            interface: format!("{NAME}.Manager"),
            member: member.to_owned(),
            signature: signature.to_owned(),
            body: body.0,
            ..Message::default()
        };
        stream.write_all(b"BEGIN\r\n")?;
        stream.write_all(&call.write())?;
        answer_to(call.serial, &mut stream)
    }
}

/// Appends properties to others.
fn numbers(before: Body, properties: &[Property]) -> Body {
    properties.iter().fold(before, |all, (name, number)| all.begins().text(name).signature("t").uint64(*number))
}

fn taken(member: &str, slice: &str, answer: Result<(), Refusal>) -> io::Result<()> {
    answer.map_err(|Refusal(name, said)| io::Error::other(format!("systemd: {member} of {slice}: {name}: {said}")))
}

/// A line of the talk before the first message; nothing is read beyond its end.
fn line(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    const MOST: usize = 512;
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
        if line.len() > MOST {
            return Err(io::Error::other("systemd sent a line without an end"));
        }
    }
    Ok(line)
}

/// Reads until there is the answer to a call: signals may come before it.
fn answer_to(serial: u32, stream: &mut impl Read) -> io::Result<Result<(), Refusal>> {
    let wrong = |wrong| io::Error::other(format!("systemd sent {wrong}"));
    let (mut read, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match message::frame(&read).map_err(wrong)? {
            Frame::Whole(length) if read.len() >= length => {
                let rest = read.split_off(length);
                let answer = Message::read(&read).map_err(wrong)?;
                read = rest;
                match answer.sort {
                    Sort::Return if answer.answers == Some(serial) => return Ok(Ok(())),
                    Sort::Error if answer.answers == Some(serial) => {
                        let said = answer.said().to_owned();
                        return Ok(Err(Refusal(answer.error, said)));
                    }
                    _ => {}
                }
            }
            Frame::Long(_) => return Err(wrong("a message of a length that nothing has here")),
            Frame::Unknown | Frame::Whole(_) => match stream.read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => read.extend(&buffer[..length]),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixListener, thread};

    use super::*;

    /// One that takes a call, tells of something else, and answers it with this.
    fn systemd(answers: Vec<Message>) -> (tempfile::TempDir, Systemd, thread::JoinHandle<Vec<Message>>) {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("private");
        let listener = UnixListener::bind(&socket).unwrap();
        let talk = move || {
            answers
                .into_iter()
                .map(|answer| {
                    let (mut stream, _) = listener.accept().unwrap();
                    stream.set_read_timeout(Some(PATIENCE)).unwrap();
                    assert!(line(&mut stream).unwrap().starts_with(b"\0AUTH EXTERNAL "));
                    stream.write_all(b"OK 0123\r\n").unwrap();
                    assert_eq!(line(&mut stream).unwrap(), b"BEGIN\r\n");
                    let call = read_call(&mut stream);
                    let signal =
                        Message { sort: Sort::Signal, serial: 5, member: "JobNew".into(), ..Message::default() };
                    stream
                        .write_all(&[signal.write(), Message { answers: Some(call.serial), ..answer }.write()].concat())
                        .unwrap();
                    call
                })
                .collect()
        };
        (folder, Systemd { socket }, thread::spawn(talk))
    }

    fn read_call(stream: &mut UnixStream) -> Message {
        let mut read = Vec::new();
        loop {
            if let Ok(Frame::Whole(length)) = message::frame(&read)
                && read.len() == length
            {
                return Message::read(&read).unwrap();
            }
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            read.push(byte[0]);
        }
    }

    fn returned() -> Message {
        Message { sort: Sort::Return, serial: 6, ..Message::default() }
    }

    fn refused(name: &str) -> Message {
        let body = Body::default().text("no").0;
        Message {
            sort: Sort::Error,
            serial: 6,
            error: format!("{NAME}.{name}"),
            signature: "s".into(),
            body,
            ..Message::default()
        }
    }

    #[test]
    fn slices_begin_get_limits_and_end() {
        let (_folder, systemd, talk) = systemd(vec![returned(), returned(), returned()]);
        systemd.begin("a.slice", &[("CPUWeight", 7)]).unwrap();
        systemd.set("a.slice", &[("TasksMax", 9), ("MemoryMax", 1 << 40)]).unwrap();
        systemd.end("a.slice").unwrap();
        let calls = talk.join().unwrap();
        let said: Vec<_> = calls.iter().map(|c| (c.member.as_str(), c.signature.as_str())).collect();
        assert_eq!(
            said,
            [("StartTransientUnit", "ssa(sv)a(sa(sv))"), ("SetUnitProperties", "sba(sv)"), ("StopUnit", "ss")]
        );
        let mut values = calls[1].values("sba(sv)").unwrap();
        assert_eq!((values.text(), values.boolean(), values.uint32()), (Ok("a.slice"), Ok(true), Ok(56)));
        for (name, number) in [("TasksMax", 9), ("MemoryMax", 1 << 40)] {
            values.begins().unwrap();
            assert_eq!((values.text(), values.variant("t"), values.uint64()), (Ok(name), Ok(()), Ok(number)));
        }
    }

    #[test]
    fn what_is_there_is_changed_and_what_is_gone_has_ended() {
        let (_folder, systemd, talk) =
            systemd(vec![refused("UnitExists"), returned(), refused("NoSuchUnit"), refused("Other")]);
        systemd.begin("a.slice", &[]).unwrap();
        systemd.end("a.slice").unwrap();
        let error = systemd.end("a.slice").unwrap_err().to_string();
        assert_eq!(error, "systemd: StopUnit of a.slice: org.freedesktop.systemd1.Other: no");
        let calls = talk.join().unwrap();
        assert_eq!(calls[1].member, "SetUnitProperties");
        assert!(systemd.end("a.slice").is_err(), "nobody listens any more");
    }
}
