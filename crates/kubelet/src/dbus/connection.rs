//! One connection to a message bus: who we are, calls and their answers, signals. Messages that nobody here waits for are passed
//! over, however long they are, and descriptors that come with them are closed: any program of the machine may send some.

use std::{
    collections::VecDeque,
    io::{self, IoSliceMut},
    os::fd::{AsRawFd, RawFd},
    path::Path,
    time::Duration,
};

use nix::{
    cmsg_space,
    sys::socket::{ControlMessageOwned, MsgFlags, recvmsg},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest},
    net::UnixStream,
};

use crate::dbus::{
    introduction,
    message::{self, Body, Frame, Message, Sort, Wrong},
};

/// The name of the bus itself, which nobody else can have.
pub const BUS: &str = "org.freedesktop.DBus";
const BUS_PATH: &str = "/org/freedesktop/DBus";
/// An answer is waited for as long as libdbus does.
const PATIENCE: Duration = Duration::from_secs(25);
/// A line of the talk before the first message.
const LINE: usize = 512;
/// Signals that came while an answer was waited for, and were not asked for yet.
const SIGNALS: usize = 64;
/// The kernel passes no more descriptors at once.
const DESCRIPTORS: usize = 253;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the connection to the message bus failed: {0}")]
    Io(#[from] io::Error),
    #[error("the message bus has closed the connection")]
    Closed,
    #[error("the message bus sent {0}")]
    Wrong(Wrong),
    #[error("the message bus does not let us in: {0}")]
    Unwanted(String),
    #[error("{member} failed: {name}: {said}")]
    Refused { member: String, name: String, said: String },
    #[error("{member} was not answered within {} s", PATIENCE.as_secs())]
    Late { member: String },
}

impl From<Wrong> for Error {
    fn from(wrong: Wrong) -> Self {
        Error::Wrong(wrong)
    }
}

/// A descriptor that another process has passed to this one. It is closed when this is dropped.
#[derive(Debug)]
pub struct Passed(RawFd);

impl Drop for Passed {
    fn drop(&mut self) {
        // It is open, and ours alone.
        let _ = nix::unistd::close(self.0);
    }
}

/// The object that is asked, and the values that it is given.
pub struct Call<'a> {
    pub destination: &'a str,
    pub path: &'a str,
    pub interface: &'a str,
    pub member: &'a str,
    pub signature: &'a str,
    pub body: Body,
}

pub struct Connection {
    stream: UnixStream,
    /// The bytes that were read and belong to no message yet.
    read: Vec<u8>,
    /// The bytes of a long message that are still to be passed over.
    passes: usize,
    descriptors: VecDeque<Passed>,
    signals: VecDeque<Message>,
    serial: u32,
}

/// Takes what is there to be read.
fn receive(socket: RawFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<Passed>)> {
    let mut space = cmsg_space!([RawFd; DESCRIPTORS]);
    let mut slices = [IoSliceMut::new(buffer)];
    // No program that the kubelet starts keeps them open.
    let received = recvmsg::<()>(socket, &mut slices, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let passed = received.cmsgs()?.filter_map(|control| match control {
        ControlMessageOwned::ScmRights(list) => Some(list.into_iter().map(Passed)),
        _ => None,
    });
    Ok((received.bytes, passed.flatten().collect()))
}

impl Connection {
    /// Connects to a bus as the user of this process.
    pub async fn open(socket: &Path) -> Result<Connection, Error> {
        let open = async {
            let stream = UnixStream::connect(socket).await?;
            let mut connection = Connection {
                stream,
                read: Vec::new(),
                passes: 0,
                descriptors: VecDeque::new(),
                signals: VecDeque::new(),
                serial: 0,
            };
            connection.introduce().await?;
            connection.of_bus("Hello", "", Body::default()).await?;
            Ok(connection)
        };
        let late = Error::Late { member: "the beginning of a connection to the message bus".to_owned() };
        clock::timeout(PATIENCE, open).await.unwrap_or(Err(late))
    }

    /// The talk before the first message: the kernel says who we are.
    async fn introduce(&mut self) -> Result<(), Error> {
        let descriptors = "NEGOTIATE_UNIX_FD\r\n".to_owned();
        for (said, expected) in [(introduction(), "OK "), (descriptors, "AGREE_UNIX_FD")] {
            self.stream.write_all(said.as_bytes()).await?;
            let answer = self.line().await?;
            if !answer.starts_with(expected) {
                return Err(Error::Unwanted(answer));
            }
        }
        self.stream.write_all(b"BEGIN\r\n").await?;
        Ok(())
    }

    async fn line(&mut self) -> Result<String, Error> {
        let mut line = Vec::new();
        // Messages may follow at once: nothing is read beyond the line's end.
        while !line.ends_with(b"\r\n") {
            if line.len() == LINE {
                return Err(Error::Wrong("a line without an end"));
            }
            match self.stream.read_u8().await {
                Ok(byte) => line.push(byte),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(Error::Closed),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    /// Sends a message and returns the number that it got.
    pub async fn send(&mut self, mut message: Message) -> Result<u32, Error> {
        self.serial = self.serial.wrapping_add(1).max(1);
        message.serial = self.serial;
        self.stream.write_all(&message.write()).await?;
        Ok(self.serial)
    }

    /// Asks, and waits for the answer of the one who was asked, which comes with the descriptors that it speaks of. Signals that
    /// come before it are kept.
    pub async fn call(&mut self, call: Call<'_>) -> Result<(Message, Vec<Passed>), Error> {
        let Call { destination, path, interface, member, signature, body } = call;
        let message = Message {
            sort: Sort::Call,
            destination: destination.to_owned(),
            path: path.to_owned(),
            interface: interface.to_owned(),
            member: member.to_owned(),
            signature: signature.to_owned(),
            body: body.0,
            ..Message::default()
        };
        let answer = async {
            let serial = self.send(message).await?;
            loop {
                let (answer, descriptors) = self.next().await?;
                match answer.sort {
                    Sort::Return | Sort::Error if answer.answers != Some(serial) => {}
                    // The bus speaks for one who is gone.
                    Sort::Return | Sort::Error if answer.sender != destination && answer.sender != BUS => {}
                    Sort::Return => return Ok((answer, descriptors)),
                    Sort::Error => return Err(refused(member, &answer)),
                    Sort::Signal => self.keep(answer)?,
                    Sort::Call => {}
                }
            }
        };
        clock::timeout(PATIENCE, answer).await.unwrap_or_else(|_| Err(Error::Late { member: member.to_owned() }))
    }

    /// Asks the bus itself.
    pub async fn of_bus(&mut self, member: &str, signature: &str, body: Body) -> Result<Message, Error> {
        let call = Call { destination: BUS, path: BUS_PATH, interface: BUS, member, signature, body };
        self.call(call).await.map(|(answer, _)| answer)
    }

    fn keep(&mut self, signal: Message) -> Result<(), Error> {
        if self.signals.len() == SIGNALS {
            return Err(Error::Wrong("more signals than anybody waits for"));
        }
        self.signals.push_back(signal);
        Ok(())
    }

    /// The next signal.
    pub async fn signal(&mut self) -> Result<Message, Error> {
        if let Some(signal) = self.signals.pop_front() {
            return Ok(signal);
        }
        loop {
            let (message, _) = self.next().await?;
            if message.sort == Sort::Signal {
                return Ok(message);
            }
        }
    }

    /// The next message with its descriptors. Nothing is lost if this is dropped.
    pub async fn next(&mut self) -> Result<(Message, Vec<Passed>), Error> {
        let mut buffer = vec![0; 16 << 10];
        loop {
            if let Some(whole) = self.whole()? {
                let message = Message::read(&whole)?;
                if message.descriptors > self.descriptors.len() {
                    return Err(Error::Wrong("fewer descriptors than it says"));
                }
                let descriptors = self.descriptors.drain(..message.descriptors).collect();
                return Ok((message, descriptors));
            }
            self.stream.readable().await?;
            let socket = self.stream.as_raw_fd();
            match self.stream.try_io(Interest::READABLE, || receive(socket, &mut buffer)) {
                Ok((0, _)) => return Err(Error::Closed),
                Ok((length, passed)) => self.take(&buffer[..length], passed)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn take(&mut self, bytes: &[u8], passed: Vec<Passed>) -> Result<(), Error> {
        let over = self.passes.min(bytes.len());
        self.passes -= over;
        self.read.extend(&bytes[over..]);
        self.descriptors.extend(passed);
        // They come with the beginning of their message: those of one that is not complete yet are kept.
        if self.descriptors.len() > 2 * DESCRIPTORS {
            return Err(Error::Wrong("more descriptors than it speaks of"));
        }
        Ok(())
    }

    /// The bytes of the next message, if it is there. A long one is passed over.
    fn whole(&mut self) -> Result<Option<Vec<u8>>, Error> {
        loop {
            match message::frame(&self.read)? {
                Frame::Whole(length) if self.read.len() >= length => {
                    let rest = self.read.split_off(length);
                    return Ok(Some(std::mem::replace(&mut self.read, rest)));
                }
                Frame::Unknown | Frame::Whole(_) => return Ok(None),
                Frame::Long(length) => {
                    let over = length.min(self.read.len());
                    self.read.drain(..over);
                    self.passes = length - over;
                    // Nothing behind it has come yet, so all of them are its own.
                    self.descriptors.clear();
                }
            }
        }
    }
}

fn refused(member: &str, answer: &Message) -> Error {
    Error::Refused { member: member.to_owned(), name: answer.error.clone(), said: answer.said().to_owned() }
}
