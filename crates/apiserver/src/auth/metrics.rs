//! The metrics of authentication and authorization, under upstream's names.
//! Upstream counterpart: k8s.io/apiserver/pkg/endpoints/filters, its `metrics.go`.

use api::status::StatusError;
use clock::Duration;
use meter::{DOUBLED, Each, Metric, Metrics};
use sha2::{Digest, Sha256};

use super::{User, Verdict};

static USERS: Metric =
    Metric::counter("authenticated_user_requests", "[ALPHA] Counter of authenticated requests broken out by username.");
static AUTHENTICATIONS: Metric =
    Metric::counter("authentication_attempts", "[ALPHA] Counter of authenticated attempts.");
static AUTHENTICATION_SECONDS: Metric = Metric::histogram(
    "authentication_duration_seconds",
    "[ALPHA] Authentication duration in seconds broken out by result.",
    DOUBLED,
);
static AUTHORIZATIONS: Metric = Metric::counter(
    "authorization_attempts_total",
    "[ALPHA] Counter of authorization attempts broken down by result. It can be either 'allowed', 'denied', 'no-opinion' or 'error'.",
);
static AUTHORIZATION_SECONDS: Metric = Metric::histogram(
    "authorization_duration_seconds",
    "[ALPHA] Authorization duration in seconds broken out by result.",
    DOUBLED,
);

const USER_SORTS: [&str; 2] = ["email_id", "other"];
const IDENTIFIED: [&str; 2] = ["success", "error"];
const DECIDED: [&str; 4] = ["allowed", "denied", "no-opinion", "error"];

/// The series that every request counts in.
#[derive(Default)]
pub struct Access {
    users: Each<2>,
    authentications: [Each<2>; 2],
    authorizations: [Each<4>; 2],
}

impl Access {
    /// It was found out who asks, or that nobody is known by what was shown.
    pub fn identified(&self, all: &Metrics, user: Result<&User, &StatusError>, took: Duration) {
        if let Ok(user) = user {
            // Names of users are not told, only whether they look like addresses.
            let sort = usize::from(!user.name.contains('@'));
            self.users.at(sort, || all.series(&USERS, &[("username", USER_SORTS[sort])])).count();
        }
        let result = usize::from(user.is_err());
        let of = |metric| all.series(metric, &[("result", IDENTIFIED[result])]);
        self.authentications[0].at(result, || of(&AUTHENTICATIONS)).count();
        self.authentications[1].at(result, || of(&AUTHENTICATION_SECONDS)).observe(took.as_secs_f64());
    }

    /// It was decided whether that is allowed.
    pub fn decided(&self, all: &Metrics, verdict: &Verdict, took: Duration) {
        let result = match verdict {
            Verdict::Allow(_) => 0,
            Verdict::Deny(_) => 1,
            Verdict::NoOpinion(_) => 2,
            Verdict::Failed(_) => 3,
        };
        let of = |metric| all.series(metric, &[("result", DECIDED[result])]);
        self.authorizations[0].at(result, || of(&AUTHORIZATIONS)).count();
        self.authorizations[1].at(result, || of(&AUTHORIZATION_SECONDS)).observe(took.as_secs_f64());
    }
}

/// How metrics name what they do not show.
pub fn hash(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    let hex = base16ct::lower::encode_string(&Sha256::digest(text));
    format!("sha256:{hex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_counted_without_their_names() {
        let (access, all, took) = (Access::default(), Metrics::new(), Duration::from_millis(3));
        for name in ["jane@example.com", "jane", "system:node:a"] {
            access.identified(&all, Ok(&User::new(name, [""; 0])), took);
        }
        access.identified(&all, Err(&StatusError::unauthorized()), took);
        access.decided(&all, &Verdict::NoOpinion(String::new()), took);
        let page = all.render();
        for line in [
            r#"authenticated_user_requests{username="other"} 2"#,
            r#"authenticated_user_requests{username="email_id"} 1"#,
            r#"authentication_attempts{result="success"} 3"#,
            r#"authentication_attempts{result="error"} 1"#,
            r#"authentication_duration_seconds_bucket{result="error",le="0.004"} 1"#,
            r#"authorization_attempts_total{result="no-opinion"} 1"#,
            r#"authorization_duration_seconds_count{result="no-opinion"} 1"#,
        ] {
            assert!(page.lines().any(|one| one == line), "{line} in {page}");
        }
        assert!(!page.contains("jane"));
    }

    #[test]
    fn what_is_hashed_is_not_shown() {
        let known = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((hash("abc").as_str(), hash("").as_str()), (known, ""));
    }
}
