//! The objects that volumes of the node's Pods show, followed: one watch of each, however many Pods show it. Every Pod shows the
//! authorities of its cluster, and a watch takes a connection.
//! Upstream counterpart: pkg/kubelet/util/manager (the cache that watches).

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use client::{
    Client,
    object::MetadataOnly,
    reflector::{One, reflect},
    rest::{Collection, Form},
};
use parking_lot::Mutex;
use tokio::{sync::Notify, task::AbortHandle};

/// The watches that there are, by the paths of their collections.
#[derive(Default)]
pub struct Watches(Mutex<BTreeMap<String, Weak<Watch>>>);

/// A watch. It ends when the last one who has it drops it.
pub struct Watch {
    listeners: Arc<Listeners>,
    task: AbortHandle,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The ones who want to hear of changes, as long as they are there.
#[derive(Default)]
struct Listeners(Mutex<Vec<Weak<Notify>>>);

impl Listeners {
    fn add(&self, listener: &Arc<Notify>) {
        let mut all = self.0.lock();
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(listener));
    }

    fn tell(&self) {
        self.0.lock().iter().filter_map(Weak::upgrade).for_each(|listener| listener.notify_one());
    }
}

impl Watches {
    /// Tells a listener of every change of the objects of `source`, while it has what this returns.
    pub fn follow(&self, client: &Client, source: Collection, listener: &Arc<Notify>) -> Arc<Watch> {
        let place = source.path(&[]);
        let mut all = self.0.lock();
        let watch = all.get(&place).and_then(Weak::upgrade).unwrap_or_else(|| {
            all.retain(|_, watch| watch.strong_count() > 0);
            let watch = Arc::new(Watch::begin(client.clone(), source));
            all.insert(place, Arc::downgrade(&watch));
            watch
        });
        watch.listeners.add(listener);
        watch
    }
}

impl Watch {
    fn begin(client: Client, source: Collection) -> Self {
        let listeners = Arc::<Listeners>::default();
        let task = tokio::spawn(follow(client, Collection { form: Form::Metadata, ..source }, listeners.clone()));
        Watch { listeners, task: task.abort_handle() }
    }
}

async fn follow(client: Client, source: Collection, listeners: Arc<Listeners>) {
    // The first state is what the first volume was made from; who comes later makes a volume from what is there by then.
    let is_first = AtomicBool::new(true);
    let sink = One::<MetadataOnly, _>::new(|_| {
        if !is_first.swap(false, Ordering::Relaxed) {
            listeners.tell();
        }
    });
    reflect(&client, &source, &sink).await;
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, convert::Infallible};

    use bytes::Bytes;
    use client::rest::Resource;
    use futures::{FutureExt, StreamExt};
    use http::{Request, Response};
    use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
    use hyper::body::Frame;
    use k8s_openapi::api::core::v1::ConfigMap;
    use tokio::sync::broadcast;
    use tokio_stream::wrappers::BroadcastStream;

    use super::*;

    /// The watches that are open, by their field selectors.
    type Open = Arc<Mutex<BTreeMap<String, broadcast::Sender<()>>>>;

    /// A server whose objects change whenever somebody says so to one of its watches.
    fn server(open: Open) -> Client {
        client::in_process(tower::service_fn(move |request: Request<client::body::Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let body: UnsyncBoxBody<Bytes, Infallible> = if query.contains("watch=true") {
                let of =
                    query.split('&').find(|part| part.starts_with("fieldSelector=")).unwrap_or_default().to_owned();
                let changes = open.lock().entry(of).or_insert_with(|| broadcast::channel(8).0).subscribe();
                let line = r#"{"type":"MODIFIED","object":{"metadata":{"name":"m","resourceVersion":"7"}}}"#;
                let frames = BroadcastStream::new(changes).map(move |_| Ok(Frame::data(format!("{line}\n").into())));
                StreamBody::new(frames).boxed_unsync()
            } else {
                Full::new(Bytes::from(r#"{"metadata":{"resourceVersion":"1"},"items":[]}"#)).boxed_unsync()
            };
            async move { Ok::<_, Infallible>(Response::new(body)) }
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn one_watch_serves_all_who_follow_an_object_and_ends_with_the_last() {
        let open = Open::default();
        let (client, watches) = (server(open.clone()), Watches::default());
        let follow = |name: &str| {
            let listener = Arc::new(Notify::new());
            let source = Collection::one(Resource::of::<ConfigMap>(), "d", name);
            (watches.follow(&client, source, &listener), listener)
        };
        let listening = || open.lock().values().map(broadcast::Sender::receiver_count).collect::<Vec<_>>();
        let is_told =
            async |listener: &Notify| clock::timeout(clock::Duration::from_secs(1), listener.notified()).await.is_ok();
        let settle = async || clock::sleep(clock::Duration::from_secs(1)).await;

        let ((first, one), (second, two), (_other, three)) = (follow("a"), follow("a"), follow("b"));
        settle().await;
        assert_eq!(listening(), [1, 1], "one watch for each object");
        assert!(one.notified().now_or_never().is_none(), "its first state is no change");
        let change = || open.lock().values().next().unwrap().send(()).unwrap();
        change();
        assert!(is_told(&one).await && is_told(&two).await);
        assert!(!is_told(&three).await);

        drop((first, one));
        change();
        assert!(is_told(&two).await, "the other one still follows");
        drop(second);
        settle().await;
        assert_eq!(listening(), [0, 1], "nobody follows it");
        let (_again, four) = follow("a");
        settle().await;
        assert_eq!(listening(), [1, 1]);
        change();
        assert!(is_told(&four).await);
    }
}
