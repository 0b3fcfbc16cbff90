//! The static token file: lines of `token,user,uid,"group1,group2"`.

use std::collections::HashMap;
use std::sync::Arc;

use futures::future::BoxFuture;

use super::token::{Identity, Refusal, Tokens};
use crate::auth::User;

/// Tokens that never change while the server runs.
#[derive(Debug, Default)]
pub struct TokenFile(HashMap<String, Arc<User>>);

impl TokenFile {
    /// `name` is the file's, for messages.
    pub fn parse(name: &str, text: &str) -> Result<Self, String> {
        let mut users = HashMap::new();
        let records =
            records(text).map_err(|line| format!("token file '{name}', line {line}: a quote is out of place"))?;
        for record in records {
            if record.len() < 3 {
                let found = record.len();
                return Err(format!(
                    "token file '{name}' must have at least 3 columns (token, user name, user uid), found {found}"
                ));
            }
            let mut columns = record.into_iter();
            let mut next = || columns.next().unwrap_or_default();
            let (token, user, uid, groups) = (next(), next(), next(), next());
            if token.is_empty() {
                tracing::warn!(file = name, "a line without a token is ignored");
                continue;
            }
            let groups = groups.split(',').filter(|g| !g.is_empty()).map(str::to_owned);
            users.insert(token, Arc::new(User { uid, ..User::new(user, groups) }));
        }
        Ok(TokenFile(users))
    }
}

impl Tokens for TokenFile {
    fn check<'a>(&'a self, token: &'a str, _: &'a [String]) -> BoxFuture<'a, Result<Option<Identity>, Refusal>> {
        let found =
            self.0.get(token).map(|user| Identity { user: user.clone(), audiences: Vec::new(), notes: Vec::new() });
        Box::pin(std::future::ready(Ok(found)))
    }
}

/// The records of a CSV text: quoted fields may hold commas, line ends and doubled quotes. Empty lines don't count. The
/// number of a line where a quote does not open or close a whole field is the error: what follows it means something else
/// to every reader.
fn records(text: &str) -> Result<Vec<Vec<String>>, usize> {
    let (mut all, mut record, mut field) = (Vec::new(), Vec::new(), String::new());
    let (mut quoted, mut closed, mut line) = (false, false, 1);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        line += usize::from(c == '\n');
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                field.push('"');
            }
            '"' if quoted => (quoted, closed) = (false, true),
            '"' if field.is_empty() && !closed => quoted = true,
            '"' => return Err(line),
            c if quoted => field.push(c),
            '\r' if chars.peek() == Some(&'\n') => {}
            ',' => {
                record.push(std::mem::take(&mut field));
                closed = false;
            }
            '\n' => {
                if !record.is_empty() || !field.is_empty() {
                    record.push(std::mem::take(&mut field));
                    all.push(std::mem::take(&mut record));
                }
                closed = false;
            }
            _ if closed => return Err(line),
            c => field.push(c),
        }
    }
    if quoted {
        return Err(line);
    }
    if !record.is_empty() || !field.is_empty() {
        record.push(field);
        all.push(record);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_users() {
        let file = TokenFile::parse("f", "a,jane,1\r\n\nb,\"bob \"\"b\"\"\",2,\"x,y\"\nc,eve,,z").unwrap();
        let user = |token: &str| file.0[token].as_ref().clone();
        assert_eq!(user("a"), User { uid: "1".into(), ..User::new("jane", [""; 0]) });
        assert_eq!(user("b"), User { uid: "2".into(), ..User::new("bob \"b\"", ["x", "y"]) });
        assert_eq!(user("c"), User::new("eve", ["z"]));
        for (wrong, line) in [("a,b\"c,1", 1), ("x,y,1\na,\"b\"c,1", 2), ("a,\"b,1\n", 2)] {
            let error = TokenFile::parse("f", wrong).unwrap_err();
            assert_eq!(error, format!("token file 'f', line {line}: a quote is out of place"), "{wrong}");
        }
        let error = TokenFile::parse("f", "a,b").unwrap_err();
        assert_eq!(error, "token file 'f' must have at least 3 columns (token, user name, user uid), found 2");
    }
}
