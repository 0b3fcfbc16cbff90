//! A plugin of the tests' own, as far as its registration goes: it shows a socket, says what it is, and writes down what it is
//! told. Dropped, it is gone with its socket.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use files::modes;
use parking_lot::Mutex;
use runtime::grpc::{self, Server};
use tokio::task::JoinHandle;

use crate::plugins::messages::{
    GET_INFO, InfoRequest, NOTIFY, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};

/// A service at a socket, which goes with it.
pub struct Service {
    socket: PathBuf,
    task: JoinHandle<()>,
}

impl Service {
    pub fn at(socket: &Path, server: Server) -> Service {
        modes::folder(socket.parent().unwrap(), modes::NODE_FOLDER).unwrap();
        let task = tokio::spawn(server.serve(grpc::listen(socket).unwrap()));
        Service { socket: socket.to_owned(), task }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.task.abort();
        let _ = fs::remove_file(&self.socket);
    }
}

/// A plugin that registers.
pub struct Registering {
    told: Arc<Mutex<Vec<(bool, String)>>>,
    _service: Service,
}

impl Registering {
    pub fn at(socket: &Path, info: PluginInfo) -> Registering {
        let told: Arc<Mutex<Vec<(bool, String)>>> = Arc::default();
        let notes = told.clone();
        let server = Server::default()
            .unary(GET_INFO, move |_: InfoRequest| {
                let info = info.clone();
                async move { Ok(info) }
            })
            .unary(NOTIFY, move |status: RegistrationStatus| {
                notes.lock().push((status.plugin_registered, status.error));
                async { Ok(RegistrationStatusResponse {}) }
            });
        Registering { told, _service: Service::at(socket, server) }
    }

    /// The answers to its registrations, in order: whether it is registered, and why not.
    pub fn told(&self) -> Vec<(bool, String)> {
        self.told.lock().clone()
    }
}
