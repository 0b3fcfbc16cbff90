//! The list of workloads: upstream's names, sizes and thresholds.

/// One workload.
#[derive(Debug, Clone)]
pub struct Workload {
    pub case: String,
    pub name: String,
    pub nodes: usize,
    pub init: usize,
    pub measured: usize,
    /// Pods per second: around v1.35, and later.
    pub thresholds: (Option<f64>, Option<f64>),
}

const TABLE: &str = include_str!("workloads.tsv");
/// The size at which the goal is set, and the greater one at which a Pod should cost about as much.
const MEASURED_AT: usize = 5000;
const GREATER: usize = 3;
/// Some are measured with a tenth of the nodes too, so that the same Pods stand at 500, 5,000 and 15,000 nodes.
const AT_EACH_SIZE: &[(&str, &str)] =
    &[("SchedulingBasic", "5000Nodes_10000Pods"), ("TopologySpreading", "5000Nodes_5000Pods")];
const SMALLER: usize = 10;

/// All workloads of upstream, for each threshold at 5,000 nodes the same with three times the nodes, and for some of them the
/// same with a tenth of the nodes.
pub fn workloads() -> Vec<Workload> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#')).skip(1);
    let sizes = |workload: Workload| [smaller(&workload), Some(workload.clone()), greater(&workload)];
    lines.map(parse).flat_map(sizes).flatten().collect()
}

fn parse(line: &str) -> Workload {
    let fields: Vec<&str> = line.split('\t').collect();
    let [case, name, nodes, init, measured, then, later] = fields[..] else { panic!("not seven fields: {line}") };
    let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("not a number: {text:?} in {line}"));
    let threshold = |text: &str| (!text.is_empty()).then(|| number(text) as f64);
    Workload {
        case: case.to_owned(),
        name: name.to_owned(),
        nodes: number(nodes),
        init: number(init),
        measured: number(measured),
        thresholds: (threshold(then), threshold(later)),
    }
}

fn greater(workload: &Workload) -> Option<Workload> {
    let concerned = workload.nodes >= MEASURED_AT && workload.nodes < GREATER * MEASURED_AT;
    (concerned && workload.thresholds != (None, None)).then(|| Workload {
        name: format!("{}, {GREATER} x nodes", workload.name),
        nodes: GREATER * workload.nodes,
        init: GREATER * workload.init,
        thresholds: (None, None),
        ..workload.clone()
    })
}

fn smaller(workload: &Workload) -> Option<Workload> {
    AT_EACH_SIZE.contains(&(&*workload.case, &*workload.name)).then(|| Workload {
        name: format!("{}, 1/{SMALLER} of the nodes", workload.name),
        nodes: workload.nodes / SMALLER,
        init: workload.init / SMALLER,
        thresholds: (None, None),
        ..workload.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_workload() {
        let all = workloads();
        let of = |nodes: usize| all.iter().filter(|w| w.nodes == nodes).count();
        assert!(of(500) > 15 && of(5000) > 30 && of(15_000) > 15, "{} {} {}", of(500), of(5000), of(15_000));
        let basic = all.iter().find(|w| w.name == "5000Nodes_10000Pods").unwrap();
        assert_eq!((basic.init, basic.measured, basic.thresholds), (1000, 10_000, (Some(270.0), Some(680.0))));
    }

    #[test]
    fn some_stand_at_each_size() {
        for (case, name) in AT_EACH_SIZE {
            let all = workloads().into_iter().filter(|w| w.case == *case && w.name.starts_with(name));
            let sizes: Vec<(usize, usize, usize)> = all.map(|w| (w.nodes, w.init, w.measured)).collect();
            let [(500, init, measured), (5000, more, same), (15_000, most, again)] = sizes[..] else {
                panic!("{case} {name}: {sizes:?}");
            };
            assert!(measured == same && same == again && init * SMALLER == more && more * GREATER == most, "{sizes:?}");
        }
    }
}
