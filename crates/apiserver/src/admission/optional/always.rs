//! AlwaysAdmit does nothing. AlwaysDeny refuses whatever a client writes, to try how clients take it.

use crate::admission::attributes::Attributes;
use crate::admission::plugin::{Context, Outcome, Plugin, done, forbid};

pub const ADMIT: Plugin = Plugin { name: "AlwaysAdmit", concerns: |_| false, admit: None, validate: None };

pub const DENY: Plugin = Plugin { name: "AlwaysDeny", concerns: |_| true, admit: Some(refuse), validate: Some(refuse) };

fn refuse<'a>(_: &'a Context, attributes: &'a mut Attributes<'_>) -> Outcome<'a> {
    done(Err(forbid(attributes, "admission control is denying all modifications")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::admission::{Write, context};
    use json::json;

    #[tokio::test]
    async fn nothing_is_written() {
        let write = Write::create("pods", json!({"metadata": {"name": "p", "namespace": "n"}}));
        let refused = write.through(&context(Vec::new()).await, &DENY).await.unwrap_err();
        assert_eq!(refused, "pods \"p\" is forbidden: admission control is denying all modifications");
    }
}
