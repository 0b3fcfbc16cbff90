//! The ids that Pods may have: those that the machine has set aside for the user `kubelet`, or all but the first ones.
//! Upstream counterpart: getKubeletMappings in pkg/kubelet/kubelet_pods.go.

use nix::unistd::User;

use crate::volumes::remote::programs::Programs;

/// The user to whom an administrator gives the ids.
pub const OWNER: &str = "kubelet";
const PROGRAM: &str = "getsubids";
/// Lengths are multiples of it.
pub const UNIT: u32 = 65536;

/// Ids that are given to Pods in pieces of one length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub first: u32,
    pub count: u32,
    /// The ids of one Pod.
    pub length: u32,
}

/// Which part of its machine's ids is a node's, where the machine has several nodes: the parts are equal, and do not depend on which
/// nodes there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// From 1 on.
    pub number: u32,
    /// How many parts there are.
    pub of: u32,
}

/// The node's ids that are a Pod's users from 0 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ids {
    pub first: u32,
    pub length: u32,
}

impl Ids {
    pub fn overlaps(&self, other: &Ids) -> bool {
        let end = |ids: &Ids| u64::from(ids.first) + u64::from(ids.length);
        u64::from(self.first) < end(other) && u64::from(other.first) < end(self)
    }
}

impl Range {
    /// The ids of a machine that says nothing of them: all but the node's own, which are as many as a Pod has.
    pub fn usual(length: u32) -> Range {
        Range::new(length, u32::MAX, length)
    }

    /// The kernel maps no range that ends with the last of all numbers, which is nobody's.
    fn new(first: u32, all: u32, length: u32) -> Range {
        Range { first, count: all.min(u32::MAX - first) / length, length }
    }

    /// Ids that were set aside, if Pods can have them.
    fn of(first: u32, all: u32, length: u32) -> Result<Range, String> {
        match () {
            () if !first.is_multiple_of(length) => {
                Err(format!("kubelet user assigned ID {first} is not a multiple of {length}"))
            }
            () if first < length => {
                Err(format!("kubelet user assigned ID {first} must be greater or equal to {length}"))
            }
            () if !all.is_multiple_of(length) => {
                Err(format!("kubelet user assigned IDs length {all} is not a multiple of {length}"))
            }
            () => Ok(Range::new(first, all, length)),
        }
    }

    /// The part of one of several nodes of the machine, if it is.
    fn part(self, part: Option<Part>) -> Range {
        let Some(Part { number, of }) = part else { return self };
        let count = self.count / of.max(1);
        Range { first: self.first + number.saturating_sub(1).min(of) * count * self.length, count, ..self }
    }

    fn enough(self, pods: u32, part: Option<Part>) -> Result<Range, String> {
        let nodes =
            part.map_or_else(String::new, |part| format!(" on each of the {} nodes that a machine may have", part.of));
        let short = || format!("kubelet user assigned IDs are not enough to support {pods} pods{nodes}");
        (self.count >= pods).then_some(self).ok_or_else(short)
    }
}

/// The ids of this machine, or a node's part of them, for this many Pods. Fails where it has set aside such as Pods cannot have: others
/// might be somebody's.
pub async fn of_this_machine(programs: &Programs, length: u32, pods: u32, part: Option<Part>) -> Result<Range, String> {
    let known = User::from_name(OWNER).map_err(|error| format!("kubelet mappings: {error}"))?.is_some();
    let range = if known { of_owner(programs, length).await } else { Ok(Range::usual(length)) };
    range.map_err(|why| format!("kubelet mappings: {why}"))?.part(part).enough(pods, part)
}

async fn of_owner(programs: &Programs, length: u32) -> Result<Range, String> {
    if programs.find(PROGRAM).is_none() {
        return Ok(Range::usual(length));
    }
    let ask = async |arguments: &[&str], what: &str| {
        let answer = programs.run(PROGRAM, arguments).await;
        answer.map_err(|error| format!("error retrieving additional {what} for user \"{OWNER}\": {error}"))
    };
    let (uids, gids) = (ask(&[OWNER], "uids").await?, ask(&["-g", OWNER], "gids").await?);
    if uids != gids {
        return Err(format!("mismatched subuids and subgids for user \"{OWNER}\""));
    }
    let (first, all) = parse(&uids)?;
    Range::of(first, all, length)
}

/// Reads the one line of an answer such as `0: kubelet 65536 2147483648`.
fn parse(answer: &str) -> Result<(u32, u32), String> {
    let answer = answer.trim_matches('\n');
    if answer.contains('\n') {
        return Err(format!("error parsing line {answer:?}: it must contain only one line"));
    }
    let words: Vec<&str> = answer.split_whitespace().collect();
    let [_, _, first, all] = words[..] else { return Err(format!("invalid line {answer:?}")) };
    let number = |text: &str| text.parse().map_err(|error| format!("error parsing line {answer:?}: {error}"));
    Ok((number(first)?, number(all)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::remote::programs::Fakes;

    async fn asked(script: &str, pods: u32) -> Result<Range, String> {
        let fakes = Fakes::in_a_new_folder();
        fakes.add(PROGRAM, script);
        of_owner(&fakes.programs(), UNIT).await?.enough(pods, None)
    }

    #[test]
    fn nodes_of_one_machine_have_parts_that_share_nothing() {
        let of = 50;
        for all in [Range::usual(UNIT), Range::of(1 << 31, 1 << 31, UNIT).unwrap(), Range::usual(1 << 20)] {
            let parts: Vec<Range> = (1..=of).map(|number| all.part(Some(Part { number, of }))).collect();
            let ids = |range: &Range| Ids { first: range.first, length: range.count * range.length };
            assert_eq!(parts[0].first, all.first);
            for pair in parts.windows(2) {
                assert_eq!((pair[0].count, pair[0].length), (all.count / of, all.length));
                assert_eq!(ids(&pair[0]).first + ids(&pair[0]).length, pair[1].first, "one begins where another ends");
            }
            let (last, end) = (ids(&parts[49]), ids(&all).first + ids(&all).length);
            assert!(last.first + last.length <= end, "{last:?} is within {end}");
        }
        let (all, first) = (Range { count: 330, ..Range::usual(UNIT) }, Some(Part { number: 1, of }));
        assert_eq!(all.part(None).enough(110, None), Ok(all));
        let why = "kubelet user assigned IDs are not enough to support 110 pods on each of the 50 nodes that a machine may have";
        assert_eq!(all.part(first).enough(110, first), Err(why.to_owned()));
        assert_eq!(Range::usual(UNIT).part(first).enough(110, first).map(|range| range.count), Ok(1310));
    }

    #[tokio::test]
    async fn pods_get_what_the_machine_has_set_aside_for_them() {
        let range = |first, count| Ok(Range { first, count, length: UNIT });
        assert_eq!(asked("echo '0: kubelet 65536 7208960'", 110).await, range(65536, 110));
        assert_eq!(asked("echo '0: kubelet 2147483648 2147483648'", 110).await, range(1 << 31, 32767));
        assert_eq!(of_owner(&Fakes::in_a_new_folder().programs(), UNIT).await, range(65536, 65534));
        assert!(Range::usual(1 << 30).enough(110, None).is_err());
        for (script, expected) in [
            ("echo '0: kubelet 65536 65536'", "kubelet user assigned IDs are not enough to support 110 pods"),
            ("echo '0: kubelet 65537 65536'", "kubelet user assigned ID 65537 is not a multiple of 65536"),
            ("echo '0: kubelet 0 65536'", "kubelet user assigned ID 0 must be greater or equal to 65536"),
            ("echo '0: kubelet 65536 7'", "kubelet user assigned IDs length 7 is not a multiple of 65536"),
            ("echo \"0: kubelet 65536 $#\"", "mismatched subuids and subgids for user \"kubelet\""),
            ("echo a; echo b", "error parsing line \"a\\nb\": it must contain only one line"),
            ("echo x", "invalid line \"x\""),
            ("echo '0: kubelet -1 65536'", "error parsing line \"0: kubelet -1 65536\": invalid digit found in string"),
            ("exit 1", "error retrieving additional uids for user \"kubelet\": exit status 1, output: "),
        ] {
            assert_eq!(asked(script, 110).await, Err(expected.to_owned()), "{script}");
        }
    }
}
