//! logind and systemd of the tests' own, and a message bus on which they are. Dropped, the bus is gone with its socket.

use std::{
    fs,
    io::{self, IoSlice},
    os::{
        fd::{AsRawFd, OwnedFd, RawFd},
        unix::net::UnixListener as Listener,
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    sys::socket::{ControlMessage, MsgFlags, sendmsg},
    unistd,
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest},
    net::{UnixListener, UnixStream, unix::OwnedReadHalf, unix::OwnedWriteHalf},
    sync::mpsc,
    task::{JoinHandle, JoinSet},
};

use crate::{
    dbus::{
        connection::BUS,
        message::{Body, Frame, Message, Sort, frame},
    },
    shutdown::logind::{DROP_IN, LOGIND, LOGIND_MANAGER, LOGIND_PATH, SYSTEMD},
};

const SYSTEMD_OWNER: &str = ":1.1";

struct State {
    longest: Duration,
    /// The configuration is read again when it is told so.
    obeys: bool,
    preparing: bool,
    /// The name of its connection.
    owner: String,
    /// Its ends of the pipes whose other ends were given away.
    locks: Vec<OwnedFd>,
    calls: Vec<String>,
}

/// See the module. Cloning shares the state.
#[derive(Clone)]
pub struct Logind {
    drop_ins: PathBuf,
    state: Arc<Mutex<State>>,
}

/// A message with the descriptor that goes with it.
type Outgoing = (Vec<u8>, Option<OwnedFd>);

fn answer_to(call: &Message, signature: &str, body: Body) -> Message {
    Message {
        sort: Sort::Return,
        answers: Some(call.serial),
        serial: 1,
        sender: call.destination.clone(),
        destination: call.sender.clone(),
        signature: signature.to_owned(),
        body: body.0,
        ..Message::default()
    }
}

fn error_to(call: &Message, name: &str) -> Message {
    Message { sort: Sort::Error, error: name.to_owned(), ..answer_to(call, "s", Body::default().text("no")) }
}

impl Logind {
    pub fn new(drop_ins: &Path, longest: Duration) -> Logind {
        let state = State {
            longest,
            obeys: true,
            preparing: false,
            owner: ":1.2".to_owned(),
            locks: Vec::new(),
            calls: Vec::new(),
        };
        Logind { drop_ins: drop_ins.to_owned(), state: Arc::new(Mutex::new(state)) }
    }

    /// From now on it does not read its configuration again.
    pub fn disobeys(&self) {
        self.state.lock().obeys = false;
    }

    pub fn calls(&self) -> Vec<String> {
        self.state.lock().calls.clone()
    }

    /// How many locks are held.
    pub fn locks(&self) -> usize {
        // A pipe that nobody writes to any more is at its end.
        let is_held = |lock: &&OwnedFd| unistd::read(lock, &mut [0]) == Err(Errno::EAGAIN);
        self.state.lock().locks.iter().filter(is_held).count()
    }

    /// It says nothing of that.
    pub fn prepares(&self, preparing: bool) {
        self.state.lock().preparing = preparing;
    }

    /// The signal that the machine's end begins, or is called off.
    pub fn signal(&self, begins: bool) -> Message {
        self.prepares(begins);
        prepare(&self.state.lock().owner, begins)
    }

    /// Answers a call, if it is one of those that are known.
    fn answer(&self, call: &Message) -> (Message, Option<OwnedFd>) {
        match (call.interface.as_str(), call.member.as_str()) {
            ("org.freedesktop.DBus.Properties", "Get") => (self.property(call), None),
            (LOGIND_MANAGER, "Inhibit") => self.inhibit(call),
            ("org.freedesktop.systemd1.Manager", "KillUnit") => (self.kill_unit(call), None),
            _ => (error_to(call, "org.freedesktop.DBus.Error.UnknownMethod"), None),
        }
    }

    fn property(&self, call: &Message) -> Message {
        let mut values = call.values("ss").unwrap();
        assert_eq!(values.text(), Ok(LOGIND_MANAGER));
        let state = self.state.lock();
        let body = match values.text().unwrap() {
            "InhibitDelayMaxUSec" => {
                let mut body = Body::default().signature("t");
                body.0.resize(8, 0);
                body.0.extend(u64::try_from(state.longest.as_micros()).unwrap().to_le_bytes());
                body
            }
            "PreparingForShutdown" => Body::default().signature("b").uint32(state.preparing.into()),
            _ => return error_to(call, "org.freedesktop.DBus.Error.UnknownProperty"),
        };
        answer_to(call, "v", body)
    }

    fn inhibit(&self, call: &Message) -> (Message, Option<OwnedFd>) {
        let mut values = call.values("ssss").unwrap();
        let words: Vec<&str> = (0..4).map(|_| values.text().unwrap()).collect();
        let mut state = self.state.lock();
        state.calls.push(format!("inhibit {}", words.join(", ")));
        if state.preparing {
            return (error_to(call, "org.freedesktop.login1.OperationInProgress"), None);
        }
        let (ours, theirs) = unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).unwrap();
        state.locks.push(ours);
        (Message { descriptors: 1, ..answer_to(call, "h", Body::default().uint32(0)) }, Some(theirs))
    }

    fn kill_unit(&self, call: &Message) -> Message {
        let mut values = call.values("ssi").unwrap();
        let what = [values.text().unwrap(), values.text().unwrap()].join(" ");
        let mut state = self.state.lock();
        state.calls.push(format!("kill {what} {}", values.uint32().unwrap()));
        let text = fs::read_to_string(self.drop_ins.join(DROP_IN)).unwrap();
        if state.obeys {
            let (_, seconds) = text.trim().rsplit_once("InhibitDelayMaxSec=").unwrap();
            state.longest = Duration::from_secs(seconds.parse().unwrap());
        }
        answer_to(call, "", Body::default())
    }

    /// Becomes part of a real bus.
    pub async fn join(self, socket: &Path) -> Joined {
        let mut peer = Peer::connect(socket).await;
        for (member, signature, body) in [
            ("Hello", "", Body::default()),
            ("RequestName", "su", Body::default().text(LOGIND).uint32(0)),
            ("RequestName", "su", Body::default().text(SYSTEMD).uint32(0)),
        ] {
            peer.ask_bus(member, signature, body).await;
        }
        let (says, out) = mpsc::unbounded_channel();
        let logind = self.clone();
        let answers = move |call: &Message| {
            let (answer, descriptor) = logind.answer(call);
            (Message { sender: String::new(), ..answer }.write(), descriptor)
        };
        let task = tokio::spawn(talk(peer, (says.clone(), out), answers));
        Joined { logind: self, says, task }
    }
}

/// logind on a real bus, as long as this is there.
pub struct Joined {
    logind: Logind,
    says: mpsc::UnboundedSender<Outgoing>,
    task: JoinHandle<()>,
}

impl Joined {
    /// Says that the machine's end begins, or is called off.
    pub fn tells(&self, begins: bool) {
        let signal = Message { sender: String::new(), ..self.logind.signal(begins) };
        self.says.send((signal.write(), None)).unwrap();
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Answers calls, and says what is to be said beside that.
async fn talk(
    peer: Peer,
    (says, mut out): (mpsc::UnboundedSender<Outgoing>, mpsc::UnboundedReceiver<Outgoing>),
    answer: impl Fn(&Message) -> Outgoing,
) {
    let Peer { mut read, write, .. } = peer;
    let answering = async {
        while let Some(message) = receive(&mut read).await {
            if message.sort == Sort::Call {
                says.send(answer(&message)).unwrap();
            }
        }
    };
    let sending = async {
        while let Some((bytes, descriptor)) = out.recv().await {
            if send(&write, &bytes, descriptor.as_ref()).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = answering => {}
        () = sending => {}
    }
}

/// logind's signal, or one that looks like it.
pub fn prepare(sender: &str, begins: bool) -> Message {
    Message {
        sort: Sort::Signal,
        serial: 1,
        path: LOGIND_PATH.to_owned(),
        interface: LOGIND_MANAGER.to_owned(),
        member: "PrepareForShutdown".to_owned(),
        sender: sender.to_owned(),
        signature: "b".to_owned(),
        body: Body::default().uint32(begins.into()).0,
        ..Message::default()
    }
}

/// One end of a connection to a bus.
pub struct Peer {
    read: OwnedReadHalf,
    write: OwnedWriteHalf,
}

impl Peer {
    fn new(stream: UnixStream) -> Peer {
        let (read, write) = stream.into_split();
        Peer { read, write }
    }

    /// A client, let in.
    pub async fn connect(socket: &Path) -> Peer {
        let mut peer = Peer::new(UnixStream::connect(socket).await.unwrap());
        let user: String = unistd::geteuid().to_string().bytes().map(|byte| format!("{byte:02x}")).collect();
        peer.write.write_all(format!("\0AUTH EXTERNAL {user}\r\n").as_bytes()).await.unwrap();
        assert!(peer.line().await.unwrap().starts_with("OK "));
        peer.write.write_all(b"NEGOTIATE_UNIX_FD\r\n").await.unwrap();
        assert_eq!(peer.line().await.unwrap(), "AGREE_UNIX_FD\r\n");
        peer.write.write_all(b"BEGIN\r\n").await.unwrap();
        peer
    }

    pub async fn ask_bus(&mut self, member: &str, signature: &str, body: Body) -> Message {
        let call = Message {
            serial: 1,
            path: "/org/freedesktop/DBus".to_owned(),
            interface: BUS.to_owned(),
            member: member.to_owned(),
            destination: BUS.to_owned(),
            signature: signature.to_owned(),
            body: body.0,
            ..Message::default()
        };
        self.send(&call, None).await;
        loop {
            let message = receive(&mut self.read).await.unwrap();
            match message.sort {
                Sort::Return => return message,
                Sort::Error => panic!("{member}: {message:?}"),
                _ => {}
            }
        }
    }

    async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        while !line.ends_with("\r\n") {
            line.push(self.read.read_u8().await.ok()?.into());
        }
        Some(line)
    }

    pub async fn send(&mut self, message: &Message, descriptor: Option<&OwnedFd>) {
        send(&self.write, &message.write(), descriptor).await.unwrap();
    }
}

async fn receive(read: &mut OwnedReadHalf) -> Option<Message> {
    let mut bytes = vec![0; 16];
    read.read_exact(&mut bytes).await.ok()?;
    let Ok(Frame::Whole(length)) = frame(&bytes) else { panic!("{bytes:?}") };
    bytes.resize(length, 0);
    read.read_exact(&mut bytes[16..]).await.ok()?;
    Some(Message::read(&bytes).unwrap())
}

async fn send(write: &OwnedWriteHalf, bytes: &[u8], descriptor: Option<&OwnedFd>) -> io::Result<()> {
    let stream: &UnixStream = write.as_ref();
    let mut at = 0;
    while at < bytes.len() {
        stream.writable().await?;
        let descriptors: Vec<RawFd> = descriptor.filter(|_| at == 0).map(AsRawFd::as_raw_fd).into_iter().collect();
        let rights = [ControlMessage::ScmRights(&descriptors)];
        let control = if descriptors.is_empty() { &rights[..0] } else { &rights };
        let sent = stream.try_io(Interest::WRITABLE, || {
            let slices = [IoSlice::new(&bytes[at..])];
            Ok(sendmsg::<()>(stream.as_raw_fd(), &slices, control, MsgFlags::MSG_NOSIGNAL, None)?)
        });
        match sent {
            Ok(length) => at += length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The clients of a bus.
type Peers = Arc<Mutex<Vec<mpsc::UnboundedSender<Outgoing>>>>;

/// The bus that the tests see through.
pub struct Bus {
    socket: PathBuf,
    logind: Logind,
    listener: Option<Listener>,
    peers: Peers,
    serving: Option<JoinHandle<()>>,
}

impl Bus {
    /// Listens; nobody is answered before it serves.
    pub fn at(socket: &Path, logind: &Logind) -> Bus {
        let listener = Listener::bind(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (socket, logind) = (socket.to_owned(), logind.clone());
        Bus { socket, logind, listener: Some(listener), peers: Peers::default(), serving: None }
    }

    pub fn serve(&mut self) {
        let listener = UnixListener::from_std(self.listener.take().unwrap()).unwrap();
        let (logind, peers) = (self.logind.clone(), self.peers.clone());
        self.serving = Some(tokio::spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                clients.spawn(client(stream, logind.clone(), peers.clone()));
            }
        }));
    }

    /// Sends a message to every client.
    pub fn says(&self, message: &Message) {
        self.says_raw(&message.write());
    }

    pub fn says_raw(&self, bytes: &[u8]) {
        for peer in self.peers.lock().iter() {
            // One that is gone hears nothing.
            let _ = peer.send((bytes.to_vec(), None));
        }
    }

    /// Sends a message with a descriptor that nobody asked for.
    pub fn says_with(&self, message: &Message, descriptor: &OwnedFd) {
        for peer in self.peers.lock().iter() {
            let _ = peer.send((message.write(), Some(descriptor.try_clone().unwrap())));
        }
    }

    /// logind ends and begins under another name.
    pub fn restarts_logind(&self) {
        let (before, now) = (":1.2", ":1.7");
        self.logind.state.lock().owner = now.to_owned();
        self.says(&Message {
            sort: Sort::Signal,
            serial: 1,
            path: "/org/freedesktop/DBus".to_owned(),
            interface: BUS.to_owned(),
            member: "NameOwnerChanged".to_owned(),
            sender: BUS.to_owned(),
            signature: "sss".to_owned(),
            body: Body::default().text(LOGIND).text(before).text(now).0,
            ..Message::default()
        });
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            serving.abort();
        }
        let _ = fs::remove_file(&self.socket);
    }
}

async fn client(stream: UnixStream, logind: Logind, peers: Peers) {
    let mut peer = Peer::new(stream);
    if introduced(&mut peer).await.is_none() {
        return;
    }
    let (says, out) = mpsc::unbounded_channel();
    let known = says.clone();
    let answers = move |call: &Message| {
        if call.member == "Hello" {
            peers.lock().push(known.clone());
        }
        let (answer, descriptor) = match call.destination.as_str() {
            BUS => (of_bus(call, &logind), None),
            _ => logind.answer(call),
        };
        (answer.write(), descriptor)
    };
    talk(peer, (says, out), answers).await;
}

/// The server's side of the talk before the first message.
async fn introduced(peer: &mut Peer) -> Option<()> {
    assert_eq!(peer.read.read_u8().await.ok()?, 0);
    assert!(peer.line().await?.starts_with("AUTH EXTERNAL "));
    peer.write.write_all(b"OK 0123456789abcdef0123456789abcdef\r\n").await.ok()?;
    assert_eq!(peer.line().await?, "NEGOTIATE_UNIX_FD\r\n");
    peer.write.write_all(b"AGREE_UNIX_FD\r\n").await.ok()?;
    assert_eq!(peer.line().await?, "BEGIN\r\n");
    Some(())
}

fn of_bus(call: &Message, logind: &Logind) -> Message {
    let first = || call.values(&call.signature).and_then(|mut values| values.text());
    let owner = logind.state.lock().owner.clone();
    match call.member.as_str() {
        "Hello" => answer_to(call, "s", Body::default().text(":1.9")),
        "AddMatch" => answer_to(call, "", Body::default()),
        "GetNameOwner" if first() == Ok(LOGIND) => answer_to(call, "s", Body::default().text(&owner)),
        "GetNameOwner" if first() == Ok(SYSTEMD) => answer_to(call, "s", Body::default().text(SYSTEMD_OWNER)),
        _ => error_to(call, "org.freedesktop.DBus.Error.NameHasNoOwner"),
    }
}
