//! The order in which the chains of Services, and the lines that lead to them, are written. Pure.
//!
//! With each transaction the kernel looks at all rules that packets can come to, once for each hook, and goes along the jumps. With
//! many Services that is nearly all that a change of one of them costs, and most of it is waiting for memory. Chains that are written
//! in the order of the jumps lie in memory one after the other as they are looked at.
//!
//! iptables-restore puts each chain that is written or jumped to into a sorted list of its transaction, for which it goes through the
//! list from the first one on. A transaction for each few thousand chains takes it a fraction of the time that a single one would
//! take, and lines whose targets fall find their places at the front.

use std::collections::BTreeMap;

/// As many chains are enough for one transaction.
const ENOUGH: usize = 2000;

/// Sorts lines of which a packet matches one at most, so that it does not matter which comes first.
pub fn fall(lines: &mut [String]) {
    lines.sort_by(|a, b| target(b).cmp(&target(a)));
}

/// The chains in the order of the jumps, beginning with those that `lines` lead to, and divided for transactions. No chain comes
/// before the transaction of one that it jumps to, so each transaction finds what it needs.
pub fn portions<'a>(lines: &[String], chains: &BTreeMap<&'a str, &'a str>) -> Vec<Vec<&'a str>> {
    divided(lines, chains, ENOUGH)
}

fn divided<'a>(lines: &[String], chains: &BTreeMap<&'a str, &'a str>, enough: usize) -> Vec<Vec<&'a str>> {
    let mut left = chains.clone();
    let (mut portions, mut portion) = (Vec::new(), Vec::new());
    // Where another Service has an address, nothing leads to the chains of this one.
    for first in lines.iter().filter_map(|line| target(line)).chain(chains.keys().copied()) {
        if portion.len() >= enough {
            portions.push(std::mem::take(&mut portion));
        }
        let mut waiting = vec![first];
        while let Some(name) = waiting.pop() {
            if let Some((name, lines)) = left.remove_entry(name) {
                portion.push(name);
                waiting.extend(lines.lines().rev().filter_map(target));
            }
        }
    }
    portions.push(portion);
    portions
}

/// The chain that a line jumps to, or a target of the kernel's with its options.
fn target(line: &str) -> Option<&str> {
    line.rsplit_once("-j ").map(|(_, target)| target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_fall() {
        let mut lines = ["-d 1 -j B", "-d 2 -j A", "-d 3 -j C", "-d 4 -j B"].map(str::to_owned);
        fall(&mut lines);
        assert_eq!(lines, ["-d 3 -j C", "-d 1 -j B", "-d 4 -j B", "-d 2 -j A"]);
    }

    #[test]
    fn chains_go_along_the_jumps_and_never_before_what_they_jump_to() {
        let chains = BTreeMap::from([
            ("A", "-m statistic -j A1\n-j A2"),
            ("A1", "-s 10.0.0.1 -j MARK\n-j DNAT --to-destination 10.0.0.1:80"),
            ("A2", "-j DNAT --to-destination 10.0.0.2:80"),
            ("AX", "-j MARK\n-j A"),
            ("B", "-j B1"),
            ("B1", ""),
            ("LONELY", "-j A1"),
        ]);
        let lines = ["-d 10.96.0.2 -j B", "-d 10.96.0.1 -j A", "--dport 30000 -j AX", "-j GONE"].map(str::to_owned);
        let check = |enough, expected: &[&[&str]]| assert_eq!(divided(&lines, &chains, enough), expected, "{enough}");
        check(100, &[&["B", "B1", "A", "A1", "A2", "AX", "LONELY"]]);
        check(3, &[&["B", "B1", "A", "A1", "A2"], &["AX", "LONELY"]]);
        check(1, &[&["B", "B1"], &["A", "A1", "A2"], &["AX"], &["LONELY"]]);
        assert_eq!(divided(&[], &BTreeMap::new(), 1), [[""; 0]], "there is always one for the rest");
    }
}
