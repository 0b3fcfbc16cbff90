//! The pages for people who look into it: `/debug/api_priority_and_fairness/dump_…`, tables with commas.

use api::rules::url::query_pairs;

use super::Fairness;

const PREFIX: &str = "/debug/api_priority_and_fairness/";

impl Fairness {
    /// The page at a path.
    pub fn page(&self, path: &str, query: &str) -> Option<String> {
        let table = match path.strip_prefix(PREFIX)? {
            "dump_priority_levels" => self.levels(),
            "dump_queues" => self.queues(),
            "dump_requests" => self.requests(query_pairs(query).any(|(key, _)| key == "includeRequestDetails")),
            _ => return None,
        };
        Some(aligned(&table))
    }

    fn levels(&self) -> Vec<Vec<String>> {
        let mut rows = vec![row(&[
            "PriorityLevelName",
            "ActiveQueues",
            "IsIdle",
            "IsQuiescing",
            "WaitingRequests",
            "ExecutingRequests",
            "DispatchedRequests",
            "RejectedRequests",
            "TimedoutRequests",
            "CancelledRequests",
        ])];
        let held = self.held.lock();
        for level in held.running.values() {
            let ends = held.counts.iter().filter(|((name, _), _)| *name == level.name).map(|(_, counts)| counts.ends());
            let ends = ends.fold([0; 4], |sum, ends| std::array::from_fn(|at| sum[at] + ends[at]));
            level.look(|inner| {
                let active = inner.queues.all.iter().filter(|queue| !queue.waiting.is_empty()).count();
                let idle = inner.queues.executing == 0 && inner.queues.waiting == 0;
                let mut cells = vec![level.name.clone(), active.to_string(), idle.to_string(), false.to_string()];
                cells.extend([inner.queues.waiting, inner.queues.executing].map(|number| number.to_string()));
                cells.extend(ends.map(|number| number.to_string()));
                rows.push(cells);
            });
        }
        rows
    }

    fn queues(&self) -> Vec<Vec<String>> {
        let mut rows = vec![row(&[
            "PriorityLevelName",
            "Index",
            "PendingRequests",
            "ExecutingRequests",
            "SeatsInUse",
            "NextDispatchR",
            "InitialSeatsSum",
            "MaxSeatsSum",
            "TotalWorkSum",
        ])];
        for level in self.held.lock().running.values() {
            level.look(|inner| {
                for (index, queue) in inner.queues.all.iter().enumerate().filter(|_| !inner.settings.exempt) {
                    let seats: u32 = queue.waiting.iter().map(|waiting| waiting.seats).sum();
                    rows.push(vec![
                        level.name.clone(),
                        index.to_string(),
                        queue.waiting.len().to_string(),
                        queue.executing.to_string(),
                        queue.seats.to_string(),
                        format!("{:.8}ss", queue.next),
                        seats.to_string(),
                        seats.to_string(),
                        format!("{:.8}ss", f64::from(seats) * super::queues::GUESSED),
                    ]);
                }
            });
        }
        rows
    }

    /// Requests that wait.
    fn requests(&self, details: bool) -> Vec<Vec<String>> {
        let head = [
            "PriorityLevelName",
            "FlowSchemaName",
            "QueueIndex",
            "RequestIndexInQueue",
            "FlowDistingsher",
            "ArriveTime",
            "InitialSeats",
            "FinalSeats",
            "AdditionalLatency",
            "StartTime",
        ];
        let more = ["UserName", "Verb", "APIPath", "Namespace", "Name", "APIVersion", "Resource", "SubResource"];
        let more = if details { &more[..] } else { &[] };
        let mut rows = vec![row(&[&head, more].concat())];
        let now = clock::now();
        for level in self.held.lock().running.values() {
            let passed = level.now();
            level.look(|inner| {
                for (index, queue) in inner.queues.all.iter().enumerate() {
                    for (at, waiting) in queue.waiting.iter().enumerate() {
                        let ago = std::time::Duration::from_secs_f64((passed - waiting.since).max(0.0));
                        let since = now.checked_sub(ago).unwrap_or(now);
                        let about = &waiting.tell.about;
                        let mut cells =
                            vec![level.name.clone(), about.schema.clone(), index.to_string(), at.to_string()];
                        cells.extend([about.flow.clone(), since.to_string(), waiting.seats.to_string()]);
                        cells.extend(row(&["0", "0s", ""]));
                        cells.extend(about.details.iter().take(more.len()).cloned());
                        rows.push(cells);
                    }
                }
            });
        }
        rows
    }
}

fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| (*cell).to_owned()).collect()
}

/// Cells below each other.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.len() + 2).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(|at| width(at).max(8)).collect();
    let mut text = String::new();
    for row in rows {
        for (at, cell) in row.iter().enumerate() {
            if at + 1 < row.len() {
                let cell = format!("{cell},");
                text.push_str(&format!("{cell:<width$}", width = widths[at]));
            } else {
                text.push_str(cell);
            }
        }
        text.push('\n');
    }
    text
}
