//! The way of what probes find to the worker of their Pod. Most Pods have no probes: for them it takes next to nothing.

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::pod::memory::KillReason;

/// A probe's finding about a container, by the container's id.
#[derive(Debug, Clone, PartialEq)]
pub enum News {
    Started(String),
    Ready(String, bool),
    /// To be killed.
    Condemned(String, KillReason),
}

/// The findings that the worker has not heard of yet, the oldest first. Of a container's readiness the newest one counts alone, so that
/// there are never more than three for each container, however long the worker is at something else.
#[derive(Default)]
pub struct Findings {
    unheard: Mutex<Vec<News>>,
    told: Notify,
}

impl Findings {
    pub fn tell(&self, news: News) {
        let mut unheard = self.unheard.lock();
        if let News::Ready(id, _) = &news {
            unheard.retain(|held| !matches!(held, News::Ready(of, _) if of == id));
        }
        unheard.push(news);
        self.told.notify_one();
    }

    /// Waits for the next one. Nothing gets lost when this is dropped.
    pub async fn next(&self) -> News {
        loop {
            if let Some(news) = self.first() {
                return news;
            }
            self.told.notified().await;
        }
    }

    fn first(&self) -> Option<News> {
        let mut unheard = self.unheard.lock();
        (!unheard.is_empty()).then(|| unheard.remove(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn the_newest_readiness_counts_and_nothing_else_gets_lost() {
        let findings = Findings::default();
        let ready = |id: &str, ready| News::Ready(id.to_owned(), ready);
        let condemned = News::Condemned("a".to_owned(), KillReason::default());
        let told =
            [News::Started("a".to_owned()), ready("a", true), ready("b", true), ready("a", false), condemned.clone()];
        assert_eq!(findings.next().now_or_never(), None);
        told.into_iter().for_each(|news| findings.tell(news));
        let heard: Vec<News> = std::iter::from_fn(|| findings.next().now_or_never()).collect();
        assert_eq!(heard, [News::Started("a".to_owned()), ready("b", true), ready("a", false), condemned]);
    }

    #[tokio::test]
    async fn what_is_told_later_is_waited_for() {
        let findings = Findings::default();
        let news = News::Started("a".to_owned());
        let (heard, ()) = tokio::join!(findings.next(), async { findings.tell(news.clone()) });
        assert_eq!(heard, news);
    }
}
