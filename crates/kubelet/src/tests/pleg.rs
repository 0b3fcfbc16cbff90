//! The engine's words about containers through CRI's own stream, and a stream that ends, is refused or tells what is not so.

use std::{path::Path, sync::Arc, time::Duration};

use clock::Instant;
use futures::{FutureExt, StreamExt, stream};
use json::json;
use runtime::{
    Cri, Runtime,
    cri_api::{ContainerEventResponse, ContainerEventType, GetEventsRequest},
    fake::Fake,
    grpc::Server,
};
use tokio::sync::watch;

use crate::tests::{
    plugin::Service,
    world::{World, until},
};

/// Less than the pause between two looks of a kubelet whose engine tells nothing.
const AT_ONCE: Duration = Duration::from_millis(300);
const STREAM: &str = "/runtime.v1.RuntimeService/GetContainerEvents";

fn world() -> World {
    let world = World::new();
    world.make_pod("p", json!({"restartPolicy": "Always", "containers": [{"name": "m", "image": "x:1"}]}));
    world
}

/// An engine's socket that offers CRI's stream about the containers of another engine, until it is told to end it.
struct Stream {
    ends: watch::Sender<()>,
    /// Names of containers that nobody has, which it says have ended.
    lies: usize,
}

impl Stream {
    fn new(lies: usize) -> Stream {
        Stream { ends: watch::Sender::new(()), lies }
    }

    fn serve(&self, socket: &Path, engine: &Fake) -> Service {
        let (ends, lies, engine) = (self.ends.clone(), self.lies, engine.clone());
        let event = |container_id: String| {
            let mut event = ContainerEventResponse { container_id, ..Default::default() };
            event.set_container_event_type(ContainerEventType::ContainerStoppedEvent);
            Ok(event)
        };
        let told = move |_: GetEventsRequest| {
            let mut ends = ends.subscribe();
            let end = async move { drop(ends.changed().await) };
            let lies = stream::iter(0..lies).map(|number| format!("nobody-{number}"));
            lies.chain(engine.spoken_of()).map(event).take_until(Box::pin(end))
        };
        Service::at(socket, Server::default().streaming(STREAM, told))
    }
}

/// From now on the kubelet hears of containers by this socket alone.
fn listen(world: &World) -> std::path::PathBuf {
    let socket = world.path("engine.sock");
    let at = socket.display().to_string();
    world.engine.let_tell(Arc::new(move || {
        let cri = Cri::new(&at);
        async move { cri.events().await }.boxed()
    }));
    socket
}

/// Waits until the container runs once more; how long that took.
async fn runs_again(world: &World, starts: usize) -> Duration {
    let begun = Instant::now();
    until("the container runs again", || world.asked("start m") == starts + 1 && world.is_ready("p")).await;
    begun.elapsed()
}

/// A story of the Pod, told once it is ready, with a stream that lies as often.
fn with_stream(lies: usize, story: impl AsyncFnOnce(&World, &Stream)) {
    let world = world();
    let (socket, stream) = (listen(&world), Stream::new(lies));
    world.life(None, async || {
        let _service = stream.serve(&socket, &world.engine);
        until("the Pod is ready", || world.is_ready("p")).await;
        story(&world, &stream).await;
    });
}

#[test]
fn an_end_that_only_the_stream_tells_of_is_seen_at_once() {
    with_stream(0, async |world, _| {
        world.engine.exit("m", 1);
        let waited = runs_again(world, 1).await;
        assert!(waited < AT_ONCE, "{waited:?}");
    });
}

#[test]
fn a_stream_that_ends_is_asked_for_again_and_what_happened_meanwhile_is_seen() {
    with_stream(0, async |world, stream| {
        world.engine.exit_quietly("m", 1);
        stream.ends.send_replace(());
        let waited = runs_again(world, 1).await;
        assert!(waited < Duration::from_secs(3), "{waited:?}");
        // A container that failed twice within a moment would pause.
        clock::sleep(Duration::from_secs(700)).await;
        world.engine.exit("m", 1);
        let waited = runs_again(world, 2).await;
        assert!(waited < AT_ONCE, "the new stream is listened to: {waited:?}");
    });
}

#[test]
fn an_engine_without_a_stream_is_looked_at_every_second() {
    let world = world();
    listen(&world);
    world.life(None, async || {
        until("the Pod is ready", || world.is_ready("p")).await;
        clock::sleep(Duration::from_secs(60)).await;
        world.engine.exit_quietly("m", 1);
        let waited = runs_again(&world, 1).await;
        assert!(waited < Duration::from_secs(3), "{waited:?}");
    });
}

#[test]
fn a_stream_that_tells_of_ends_that_were_none_ends_nothing_and_hides_nothing() {
    with_stream(1000, async |world, _| {
        for _ in 0..10 {
            world.engine.speak_of("m");
            clock::sleep(Duration::from_secs(10)).await;
        }
        assert_eq!((world.asked("start m"), world.engine.running()), (1, vec!["m".to_owned()]));
        world.engine.exit("m", 1);
        let waited = runs_again(world, 1).await;
        assert!(waited < AT_ONCE, "{waited:?}");
    });
}

#[test]
fn an_end_that_a_stream_keeps_to_itself_is_found_all_the_same() {
    with_stream(0, async |world, _| {
        world.engine.exit_quietly("m", 1);
        let waited = runs_again(world, 1).await;
        assert!(waited < Duration::from_secs(62), "{waited:?}");
    });
}
