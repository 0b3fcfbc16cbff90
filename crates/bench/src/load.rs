//! Driving a number of calls with a number in flight, and what came of it.

use std::time::Instant;

use futures::StreamExt;

/// The outcome of a run.
#[derive(Default)]
pub struct Run {
    pub seconds: f64,
    /// Latencies in milliseconds, sorted.
    pub millis: Vec<f64>,
    /// The CPU time of each call in the process that served it; 0 where nobody looked.
    pub cpu_micros: f64,
}

impl Run {
    /// Takes in the calls of another run.
    pub fn add(&mut self, other: Run) {
        self.seconds += other.seconds;
        self.millis.extend(other.millis);
        self.millis.sort_by(f64::total_cmp);
    }

    pub fn per_second(&self) -> f64 {
        self.millis.len() as f64 / self.seconds
    }

    pub fn quantile(&self, q: f64) -> f64 {
        let last = self.millis.len().saturating_sub(1);
        self.millis.get((last as f64 * q) as usize).copied().unwrap_or(0.0)
    }

    pub fn latencies(&self) -> String {
        format!("p50 {:.2} ms, p99 {:.2} ms", self.quantile(0.5), self.quantile(0.99))
    }
}

/// Calls `call` for 0..n with `in_flight` at once. The first error ends the run.
pub async fn drive<F, Fut, T>(n: usize, in_flight: usize, call: F) -> anyhow::Result<Run>
where
    F: Fn(usize) -> Fut,
    Fut: Future<Output = anyhow::Result<T>>,
{
    let start = Instant::now();
    let mut calls = futures::stream::iter(0..n)
        .map(|i| {
            let call = call(i);
            async move {
                let begun = Instant::now();
                call.await.map(|_| begun.elapsed().as_secs_f64() * 1000.0)
            }
        })
        .buffer_unordered(in_flight);
    let mut millis = Vec::with_capacity(n);
    while let Some(latency) = calls.next().await {
        millis.push(latency?);
    }
    let seconds = start.elapsed().as_secs_f64();
    millis.sort_by(f64::total_cmp);
    Ok(Run { seconds, millis, cpu_micros: 0.0 })
}
