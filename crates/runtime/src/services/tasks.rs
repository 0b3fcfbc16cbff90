//! Containers that containerd runs and does not know to run. A start whose caller goes away (a kubelet that was killed) is given up, but
//! about once in sixty times the container's process has begun by then: to CRI that container has ended, while it goes on
//! running, and "cannot delete running task" is the answer to its removal. No call of CRI ends it; containerd's own service of tasks,
//! on the same socket, does. Seen with containerd 1.6 and 2.3.

use std::time::Duration;

use tonic::{Code, Status, codegen::http::uri::PathAndQuery, transport::Channel};
use tonic_prost::ProstCodec;

use crate::{engine::Error, grpc, services};

const KILL: &str = "/containerd.services.tasks.v1.Tasks/Kill";
const WAIT: &str = "/containerd.services.tasks.v1.Tasks/Wait";
const DELETE: &str = "/containerd.services.tasks.v1.Tasks/Delete";
/// The words of containerd, before the id, about a task that it cannot remove.
const REFUSAL: &str = "cannot delete running task ";
/// A process that was killed with 9 is gone at once, except where the kernel waits for a disk.
const PATIENCE: Duration = Duration::from_secs(10);
const SIGKILL: u32 = 9;

#[derive(Clone, PartialEq, prost::Message)]
pub struct KillRequest {
    #[prost(string, tag = "1")]
    pub container_id: String,
    #[prost(uint32, tag = "3")]
    pub signal: u32,
    /// Also what the container's first process has begun.
    #[prost(bool, tag = "4")]
    pub all: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct TaskRequest {
    #[prost(string, tag = "1")]
    pub container_id: String,
}

/// The exit status is nobody's concern: the container had ended long before, for all that anybody was told.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Nothing {}

/// The container that kept the engine from removing it, or its sandbox, because it runs.
pub fn still_running(error: &Error) -> Option<&str> {
    let Error::Refused { message, .. } = error else { return None };
    let (_, rest) = message.split_once(REFUSAL)?;
    let id = rest.split(|c: char| !c.is_ascii_alphanumeric()).next()?;
    (!id.is_empty()).then_some(id)
}

/// Ends whatever runs of a container, and takes its task away, which containerd calls running also when it has ended. Nothing that
/// runs is as good.
pub async fn end(channel: &Channel, id: &str) -> Result<(), Status> {
    let task = || TaskRequest { container_id: id.to_owned() };
    let asked = async {
        ask(channel, KILL, KillRequest { container_id: id.to_owned(), signal: SIGKILL, all: true }).await?;
        ask(channel, WAIT, task()).await?;
        ask(channel, DELETE, task()).await
    };
    grpc::within(PATIENCE, asked).await
}

/// Asks for something that need not be done where nothing is found.
async fn ask<Q: prost::Message + 'static>(channel: &Channel, path: &'static str, question: Q) -> Result<(), Status> {
    let codec = ProstCodec::<Q, Nothing>::default();
    let path = PathAndQuery::from_static(path);
    match grpc::ready(channel).await?.unary(services::request(question), path, codec).await {
        Err(status) if status.code() == Code::NotFound => Ok(()),
        done => done.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use k8s_cri::v1::{
        RemoveContainerRequest, RemoveContainerResponse, RemovePodSandboxRequest, RemovePodSandboxResponse,
    };

    use super::*;
    use crate::{Cri, Runtime};

    /// An engine in whose sandbox these containers have tasks without its knowledge, and the calls that it was asked.
    #[derive(Clone, Default)]
    struct Engine {
        tasks: Arc<Mutex<Vec<String>>>,
        asked: Arc<Mutex<Vec<String>>>,
        stubborn: bool,
    }

    impl Engine {
        fn note(&self, call: &str, id: &str) {
            self.asked.lock().unwrap().push(format!("{call} {id}"));
        }

        fn remove(&self) -> Result<(), Status> {
            let refused = |id: &String| {
                let words = format!(
                    "failed to remove container {id:?}: failed to delete containerd container {id:?}: {REFUSAL}{id}: failed precondition"
                );
                Err(Status::failed_precondition(words))
            };
            self.tasks.lock().unwrap().first().map_or(Ok(()), refused)
        }

        fn serve(&self, socket: &std::path::Path) -> tokio::task::JoinHandle<()> {
            let [kill, wait, delete, container, sandbox] = std::array::from_fn(|_| self.clone());
            let server = grpc::Server::default()
                .unary(KILL, move |asked: KillRequest| {
                    assert!(asked.all && asked.signal == SIGKILL);
                    kill.note("kill", &asked.container_id);
                    let runs = kill.tasks.lock().unwrap().contains(&asked.container_id);
                    async move { if runs { Ok(Nothing {}) } else { Err(Status::not_found("no such process")) } }
                })
                .unary(WAIT, move |asked: TaskRequest| {
                    wait.note("wait", &asked.container_id);
                    async { Ok(Nothing {}) }
                })
                .unary(DELETE, move |asked: TaskRequest| {
                    delete.note("delete", &asked.container_id);
                    if !delete.stubborn {
                        delete.tasks.lock().unwrap().retain(|id| *id != asked.container_id);
                    }
                    async { Ok(Nothing {}) }
                })
                .unary("/runtime.v1.RuntimeService/RemoveContainer", move |asked: RemoveContainerRequest| {
                    container.note("remove", &asked.container_id);
                    let removed = container.remove();
                    async move { removed.map(|()| RemoveContainerResponse {}) }
                })
                .unary("/runtime.v1.RuntimeService/RemovePodSandbox", move |asked: RemovePodSandboxRequest| {
                    sandbox.note("remove sandbox", &asked.pod_sandbox_id);
                    let removed = sandbox.remove();
                    async move { removed.map(|()| RemovePodSandboxResponse {}) }
                });
            tokio::spawn(server.serve(grpc::listen(socket).unwrap()))
        }
    }

    async fn with(tasks: &[&str], stubborn: bool) -> (Engine, Cri, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("c.sock");
        let tasks = tasks.iter().map(|id| (*id).to_owned()).collect();
        let engine = Engine { tasks: Arc::new(Mutex::new(tasks)), stubborn, ..Engine::default() };
        engine.serve(&socket);
        let cri = Cri::new(&socket.display().to_string());
        (engine, cri, folder)
    }

    #[tokio::test]
    async fn what_runs_although_it_counts_as_ended_is_ended_when_it_is_removed() {
        let (engine, cri, _folder) = with(&["a1"], false).await;
        cri.remove_container("a1").await.unwrap();
        assert_eq!(*engine.asked.lock().unwrap(), ["remove a1", "kill a1", "wait a1", "delete a1", "remove a1"]);
        let (engine, cri, _folder) = with(&["a1", "b2"], false).await;
        cri.remove_sandbox("s").await.unwrap();
        let asked = engine.asked.lock().unwrap().join(", ");
        assert_eq!(
            asked,
            "remove sandbox s, kill a1, wait a1, delete a1, remove sandbox s, kill b2, wait b2, delete b2, remove sandbox s"
        );
    }

    #[tokio::test]
    async fn what_cannot_be_ended_is_tried_once_and_told() {
        let (engine, cri, _folder) = with(&["a1"], true).await;
        let error = cri.remove_container("a1").await.unwrap_err().to_string();
        assert!(error.contains(REFUSAL), "{error}");
        assert_eq!(*engine.asked.lock().unwrap(), ["remove a1", "kill a1", "wait a1", "delete a1", "remove a1"]);
    }

    #[tokio::test]
    async fn nothing_that_runs_is_as_good_as_an_end_and_other_engines_have_no_tasks() {
        let (engine, cri, _folder) = with(&[], false).await;
        cri.end_given_up("a1").await.unwrap();
        assert_eq!(*engine.asked.lock().unwrap(), ["kill a1", "wait a1", "delete a1"]);
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("c.sock");
        tokio::spawn(grpc::Server::default().serve(grpc::listen(&socket).unwrap()));
        Cri::new(&socket.display().to_string()).end_given_up("a1").await.unwrap();
    }

    #[test]
    fn only_that_refusal_names_a_container() {
        let refused = |message: &str| Error::Refused { code: Code::FailedPrecondition, message: message.to_owned() };
        assert_eq!(still_running(&refused(&format!("x: {REFUSAL}ab12: failed precondition"))), Some("ab12"));
        for other in ["cannot delete a running task", REFUSAL, "container \"ab12\" is running"] {
            assert_eq!(still_running(&refused(other)), None, "{other}");
        }
    }
}
