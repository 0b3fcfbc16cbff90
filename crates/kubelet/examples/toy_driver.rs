//! A driver of toys for the cluster tests, as a device plugin and as a driver of claims: `toy_driver KUBELET_FOLDER CDI_FOLDER NAME`.
//! It registers with a kubelet over the plugin registry, and prints each call that changes something.

#[allow(dead_code)]
#[path = "../src/claims/messages.rs"]
mod claims;
#[allow(dead_code)]
#[path = "../src/devices/messages.rs"]
mod devices;
#[path = "../src/plugins/messages.rs"]
mod plugins;

use std::{fs, io, path::Path};

use futures::StreamExt;
use runtime::grpc::{self, Server, Status};

const COUNT: usize = 2;

fn failed(error: &io::Error) -> Status {
    Status::internal(error.to_string())
}

/// The specification by which a container gets something of a claim: a variable with the claim's name.
fn specification(kind: &str, claim: &claims::Claim) -> String {
    let edits = format!(r#"{{"env": ["TOY_CLAIM={}"]}}"#, claim.name);
    let devices = format!(r#"[{{"name": "{}", "containerEdits": {edits}}}]"#, claim.uid);
    format!(r#"{{"cdiVersion": "0.5.0", "kind": "{kind}", "devices": {devices}}}"#)
}

fn driver(cdi: &Path, name: &str) -> Server {
    let file = |claim: &claims::Claim| format!("toy-{}.json", claim.uid);
    let (kind, folder) = (format!("{name}/claim"), cdi.to_owned());
    let prepare = move |request: claims::Request| {
        let mut answer = claims::PrepareResponse::default();
        let mut work = || {
            for claim in &request.claims {
                println!("prepare {}", claim.name);
                fs::write(folder.join(file(claim)), specification(&kind, claim))?;
                let device = claims::Device {
                    pool_name: "toys".to_owned(),
                    device_name: "toy-0".to_owned(),
                    cdi_device_ids: vec![format!("{kind}={}", claim.uid)],
                    ..Default::default()
                };
                let prepared = claims::Prepared { devices: vec![device], ..Default::default() };
                answer.claims.insert(claim.uid.clone(), prepared);
            }
            Ok(())
        };
        std::future::ready(work().map_err(|error| failed(&error)).map(|()| answer))
    };
    let folder = cdi.to_owned();
    let unprepare = move |request: claims::Request| {
        let mut answer = claims::UnprepareResponse::default();
        for claim in &request.claims {
            println!("unprepare {}", claim.name);
            // It may have been asked before.
            let _ = fs::remove_file(folder.join(file(claim)));
            answer.claims.insert(claim.uid.clone(), claims::Unprepared::default());
        }
        std::future::ready(Ok(answer))
    };
    let spoken = &claims::SERVICES[0];
    Server::default().unary(spoken.prepare, prepare).unary(spoken.unprepare, unprepare)
}

fn device_plugin() -> Server {
    let toy =
        |number| devices::Device { id: format!("toy-{number}"), health: devices::HEALTHY.to_owned(), topology: None };
    let list = devices::ListAndWatchResponse { devices: (0..COUNT).map(toy).collect() };
    let allocate = |request: devices::AllocateRequest| {
        let answer = |asked: devices::ContainerAllocateRequest| {
            println!("allocate {}", asked.devices.join(" "));
            let envs = [("TOYS".to_owned(), asked.devices.join(" "))].into();
            devices::ContainerAllocateResponse { envs, ..Default::default() }
        };
        let container_responses = request.container_requests.into_iter().map(answer).collect();
        std::future::ready(Ok(devices::AllocateResponse { container_responses }))
    };
    Server::default()
        .unary(devices::OPTIONS, |_: devices::Empty| std::future::ready(Ok(devices::DevicePluginOptions::default())))
        .streaming(devices::LIST_AND_WATCH, move |_: devices::Empty| {
            futures::stream::iter([Ok(list.clone())]).chain(futures::stream::pending())
        })
        .unary(devices::ALLOCATE, allocate)
}

fn registration(info: plugins::PluginInfo) -> Server {
    Server::default()
        .unary(plugins::GET_INFO, move |_: plugins::InfoRequest| std::future::ready(Ok(info.clone())))
        .unary(plugins::NOTIFY, |status: plugins::RegistrationStatus| {
            println!("registered {} {}", status.plugin_registered, status.error);
            std::future::ready(Ok(plugins::RegistrationStatusResponse {}))
        })
}

async fn run(kubelet: &Path, cdi: &Path, name: &str) -> io::Result<()> {
    let (own, registry) = (kubelet.join("plugins").join(name), kubelet.join("plugins_registry"));
    fs::create_dir_all(&own)?;
    fs::create_dir_all(cdi)?;
    let both = [
        ("DRAPlugin", name.to_owned(), claims::SERVICES[0].name, driver(cdi, name)),
        ("DevicePlugin", format!("{name}/toy"), devices::VERSION, device_plugin()),
    ];
    let serve = |(sort, name, version, server): (&str, String, &str, Server)| {
        let endpoint = own.join(sort);
        let serving = server.serve(grpc::listen(&endpoint)?);
        let info = plugins::PluginInfo {
            r#type: sort.to_owned(),
            name,
            endpoint: endpoint.display().to_string(),
            supported_versions: vec![version.to_owned()],
        };
        let socket = registry.join(format!("toy-{sort}.sock"));
        Ok::<_, io::Error>(futures::future::join(serving, registration(info).serve(grpc::listen(&socket)?)))
    };
    let serving = both.into_iter().map(serve).collect::<io::Result<Vec<_>>>()?;
    futures::future::join_all(serving).await;
    Ok(())
}

fn main() -> io::Result<()> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let [kubelet, cdi, name] = &given[..] else {
        return Err(io::Error::other("usage: toy_driver KUBELET_FOLDER CDI_FOLDER NAME"));
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(Path::new(kubelet), Path::new(cdi), name))
}
