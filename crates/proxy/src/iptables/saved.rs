//! The output of iptables-save: the chains of a table, and the jumps between them. Pure.

/// The lines of a table.
fn lines<'a>(saved: &'a str, table: &str) -> impl Iterator<Item = &'a str> {
    let mut inside = false;
    saved.lines().filter(move |line| {
        if let Some(name) = line.strip_prefix('*') {
            inside = name == table;
        }
        inside
    })
}

/// The names of a table's chains.
pub fn chains<'a>(saved: &'a str, table: &str) -> impl Iterator<Item = &'a str> {
    lines(saved, table).filter_map(|line| line.strip_prefix(':')?.split(' ').next())
}

/// Whether a chain has a line that jumps to another one, under any condition.
pub fn has_jump(saved: &str, table: &str, parent: &str, chain: &str) -> bool {
    let end = format!(" -j {chain}");
    let is_jump = |line: &str| {
        let rest = line.strip_prefix("-A ").and_then(|rest| rest.strip_prefix(parent));
        rest.is_some_and(|rest| rest.starts_with(' ') && rest.ends_with(&end))
    };
    lines(saved, table).any(is_jump)
}
