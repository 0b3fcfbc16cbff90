//! `make bench`: the project's figures, measured by one load generator in one run, with the machine's raw limits
//! beside them. Everything runs on loopback, in a data folder of its own, and ends with the run.

mod api;
mod custom;
mod etcd;
mod guards;
mod hollow;
mod limits;
mod load;
mod node;
mod objects;
mod report;
mod rows;
mod rules;
mod scheduler;
mod subject;
mod watching;

use std::path::PathBuf;

use clap::Parser;

/// As in the binary, so that the figures of the engine alone are its figures there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(about = "Measures skiff and prints a table")]
struct Args {
    /// The skiff binary
    #[arg(long, required_unless_present = "scheduler")]
    skiff: Option<PathBuf>,
    /// Measure the scheduler's engine alone, on the workloads whose names contain this
    #[arg(long, value_name = "FILTER", num_args = 0..=1, default_missing_value = "")]
    scheduler: Option<String>,
    /// How many Pods the big rows use
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// How many nodes the scheduling row registers
    #[arg(long, default_value_t = 1000)]
    nodes: usize,
    /// Leave out the rows of a whole node (they need root and a container engine)
    #[arg(long)]
    control_plane_only: bool,
    /// Measure nothing but what requests cost an API server, beside the machine's raw limits
    #[arg(long)]
    requests_only: bool,
    /// Measure nothing but Pods that are bound to nodes nobody runs
    #[arg(long)]
    binding_only: bool,
    /// Measure nothing but what nodes cost: a hundred hollow ones, and one that joins
    #[arg(long)]
    nodes_only: bool,
    /// Measure nothing but a whole node: its start, its Pods, what it costs when idle
    #[arg(long)]
    node_only: bool,
    /// Measure nothing but rules in the kernel: many Services and policies, and one change among them (needs root)
    #[arg(long)]
    network_only: bool,
    /// Measure nothing but what authorization, admission, audit, encryption and fairness cost
    #[arg(long)]
    guards_only: bool,
    /// Measure nothing but calls over etcd, beside the same over the embedded store
    #[arg(long)]
    etcd_only: bool,
    /// Where the figures are written as JSON, to be compared with another run
    #[arg(long, default_value = "bench.json")]
    out: PathBuf,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    if node::network::is_end()? {
        return Ok(());
    }
    let args = Args::parse();
    let mut report = report::Report::default();
    match (&args.scheduler, &args.skiff) {
        (None, Some(skiff)) if args.requests_only => {
            limits::measure(&mut report).await?;
            rows::control_plane(skiff, args.pods, args.nodes, &mut report).await?;
            subject::clean_up();
        }
        (None, Some(skiff)) if args.binding_only => {
            rows::schedule(skiff, args.nodes, &mut report).await?;
            subject::clean_up();
        }
        (None, Some(skiff)) if args.nodes_only => {
            hollow::measure(skiff, &mut report).await?;
            node::join(skiff, &mut report)?;
            subject::clean_up();
        }
        (None, Some(skiff)) if args.node_only => {
            node::measure(skiff, &mut report).await?;
            subject::clean_up();
        }
        (None, Some(_)) if args.network_only => rules::measure(&mut report)?,
        (None, Some(skiff)) if args.guards_only => {
            guards::measure(skiff, args.pods / 2, &mut report).await?;
            subject::clean_up();
        }
        (None, Some(skiff)) if args.etcd_only => {
            etcd::measure(skiff, args.pods, &mut report).await?;
            etcd::beside(skiff, args.pods, &mut report).await?;
            subject::clean_up();
        }
        (None, Some(skiff)) => {
            limits::measure(&mut report).await?;
            rows::control_plane(skiff, args.pods, args.nodes, &mut report).await?;
            etcd::measure(skiff, args.pods, &mut report).await?;
            guards::measure(skiff, args.pods / 2, &mut report).await?;
            hollow::measure(skiff, &mut report).await?;
            if !args.control_plane_only {
                rules::measure(&mut report)?;
                node::measure(skiff, &mut report).await?;
                node::join(skiff, &mut report)?;
            }
            scheduler::measure("", &mut report);
            subject::clean_up();
        }
        (filter, _) => scheduler::measure(filter.as_deref().unwrap_or(""), &mut report),
    }
    report.print();
    report.write(&args.out)?;
    println!("written to {}", args.out.display());
    Ok(())
}
