//! The sorts and descriptions of the metrics, in upstream's words. Those are missing that tell of what is not done here: no seats are taken
//! for the watchers of what a request changes (`watch_count_samples`), and virtual time never begins anew (`epoch_advance_total`).
//!
//! Upstream counterpart: apiserver/pkg/util/flowcontrol/metrics.

const ALL: &[(&str, &str, &str)] = &[
    (
        "dispatched_requests_total",
        "counter",
        "[BETA] Number of requests executed by API Priority and Fairness subsystem",
    ),
    ("rejected_requests_total", "counter", "[BETA] Number of requests rejected by API Priority and Fairness subsystem"),
    (
        "request_dispatch_no_accommodation_total",
        "counter",
        "[ALPHA] Number of times a dispatch attempt resulted in a non accommodation due to lack of available seats",
    ),
    (
        "current_executing_requests",
        "gauge",
        "[BETA] Number of requests in initial (for a WATCH) or any (for a non-WATCH) execution stage in the API Priority and Fairness subsystem",
    ),
    (
        "current_executing_seats",
        "gauge",
        "[BETA] Concurrency (number of seats) occupied by the currently executing (initial stage for a WATCH, any stage otherwise) requests in the API Priority and Fairness subsystem",
    ),
    (
        "current_inqueue_requests",
        "gauge",
        "[BETA] Number of requests currently pending in queues of the API Priority and Fairness subsystem",
    ),
    (
        "current_inqueue_seats",
        "gauge",
        "[ALPHA] Number of seats currently pending in queues of the API Priority and Fairness subsystem",
    ),
    ("request_wait_duration_seconds", "histogram", "[BETA] Length of time a request spent waiting in its queue"),
    (
        "request_execution_seconds",
        "histogram",
        "[ALPHA] Duration of initial stage (for a WATCH) or any (for a non-WATCH) stage of request execution in the API Priority and Fairness subsystem",
    ),
    (
        "request_queue_length_after_enqueue",
        "histogram",
        "[ALPHA] Length of queue in the API Priority and Fairness subsystem, as seen by each request after it is enqueued",
    ),
    (
        "work_estimated_seats",
        "histogram",
        "[ALPHA] Number of estimated seats (maximum of initial and final seats) associated with requests in API Priority and Fairness",
    ),
    ("nominal_limit_seats", "gauge", "[BETA] Nominal number of execution seats configured for each priority level"),
    (
        "lower_limit_seats",
        "gauge",
        "[ALPHA] Configured lower bound on number of execution seats available to each priority level",
    ),
    (
        "upper_limit_seats",
        "gauge",
        "[ALPHA] Configured upper bound on number of execution seats available to each priority level",
    ),
    (
        "current_limit_seats",
        "gauge",
        "[ALPHA] current derived number of execution seats available to each priority level",
    ),
    ("demand_seats_high_watermark", "gauge", "[ALPHA] High watermark, over last adjustment period, of demand_seats"),
    ("demand_seats_average", "gauge", "[ALPHA] Time-weighted average, over last adjustment period, of demand_seats"),
    (
        "demand_seats_stdev",
        "gauge",
        "[ALPHA] Time-weighted standard deviation, over last adjustment period, of demand_seats",
    ),
    ("demand_seats_smoothed", "gauge", "[ALPHA] Smoothed seat demands"),
    ("target_seats", "gauge", "[ALPHA] Seat allocation targets"),
    (
        "seat_fair_frac",
        "gauge",
        "[ALPHA] Fair fraction of server's concurrency to allocate to each priority level that can use it",
    ),
    ("current_r", "gauge", "[ALPHA] R(time of last change)"),
    ("dispatch_r", "gauge", "[ALPHA] R(time of last dispatch)"),
    ("latest_s", "gauge", "[ALPHA] S(most recently dispatched request)"),
    ("next_s_bounds", "gauge", "[ALPHA] min and max, over queues, of S(oldest waiting request in queue)"),
    (
        "next_discounted_s_bounds",
        "gauge",
        "[ALPHA] min and max, over queues, of S(oldest waiting request in queue) - estimated work in progress",
    ),
    (
        "priority_level_seat_utilization",
        "histogram",
        "[ALPHA] Observations, at the end of every nanosecond, of utilization of seats for any stage of execution (but only initial stage for WATCHes)",
    ),
    (
        "priority_level_request_utilization",
        "histogram",
        "[ALPHA] Observations, at the end of every nanosecond, of number of requests (as a fraction of the relevant limit) waiting or in any stage of execution (but only initial stage for WATCHes)",
    ),
];

/// The sort and the description of a metric.
pub fn described(name: &str) -> (&'static str, &'static str) {
    let known = ALL.iter().find(|(known, ..)| *known == name);
    known.map_or(("histogram", DEMAND), |(_, sort, help)| (sort, help))
}

const DEMAND: &str = "[ALPHA] Observations, at the end of every nanosecond, of (the number of seats each priority level could use) / (current seat limit for that level if that is not zero otherwise max(1, round(server seat limit/10.0)))";
