//! The rights to act for others, request by request.

use std::collections::BTreeMap;

use super::{Impersonation, asked::Asked};
use crate::auth::{Attributes, User};

fn named(name: &str) -> User {
    User::new(name, [] as [&str; 0])
}

fn extra(pairs: &[(&str, &[&str])]) -> BTreeMap<String, Vec<String>> {
    let list = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
    pairs.iter().map(|(key, values)| ((*key).to_owned(), list(values))).collect()
}

/// Listing pods of a namespace.
fn listing(caller: &User) -> Attributes<'_> {
    Attributes { namespace: "ns", version: "v1", ..Attributes::resource(caller, "list", "", "pods") }
}

/// The constraint and the groups of the user, or the message of the refusal; and the questions.
async fn outcome(
    caller: &User,
    wanted: &User,
    allowed: &'static [&'static str],
) -> (Result<(Option<&'static str>, Vec<String>), String>, Vec<String>) {
    let asked = Asked::allowing(move |question| allowed.contains(&question));
    let acting = Impersonation::Constrained.act(&asked, &listing(caller), wanted).await;
    let told = acting.map(|acting| (acting.constraint, acting.user.groups)).map_err(|error| error.message);
    (told, asked.questions())
}

const USER: &str = "impersonate:user-info users.authentication.k8s.io jane";
const ON_USER: &str = "impersonate-on:user-info:list pods ns/";

#[tokio::test]
async fn a_user_is_impersonated_in_the_requests_that_are_allowed() {
    let (me, jane) = (named("me"), named("jane"));
    let (told, asked) = outcome(&me, &jane, &[USER, ON_USER]).await;
    let authenticated = vec!["system:authenticated".to_owned()];
    assert_eq!(told, Ok((Some("impersonate:user-info"), authenticated.clone())));
    assert_eq!(asked, [ON_USER, USER]);
    // Neither right is enough alone, and the old right is enough for everything.
    let refused = "pods is forbidden: User \"me\" cannot impersonate-on:user-info:list resource \"pods\" in API group \"\" in the \
                   namespace \"ns\": not here";
    assert_eq!(outcome(&me, &jane, &[USER]).await.0, Err(refused.to_owned()));
    let refused = "users.authentication.k8s.io \"jane\" is forbidden: User \"me\" cannot impersonate:user-info resource \"users\" in API \
                   group \"authentication.k8s.io\" at the cluster scope: not here";
    assert_eq!(outcome(&me, &jane, &[ON_USER]).await.0, Err(refused.to_owned()));
    let (told, asked) = outcome(&me, &jane, &["impersonate users jane"]).await;
    assert_eq!(told, Ok((None, authenticated)));
    assert_eq!(asked, [ON_USER, "impersonate users jane"]);
}

#[tokio::test]
async fn requests_for_no_resource_are_bound_too() {
    let me = named("me");
    let asked = Asked::allowing(|question| question == "impersonate-on:user-info:get /metrics" || question == USER);
    let act = async |path| {
        let request = Attributes::path(&me, "get", path);
        Impersonation::Constrained.act(&asked, &request, &named("jane")).await.map(|acting| acting.constraint)
    };
    assert_eq!(act("/metrics").await.unwrap(), Some("impersonate:user-info"));
    assert_eq!(act("/logs").await.unwrap_err().code, 403);
}

#[tokio::test]
async fn users_have_groups_uids_and_more_but_never_everything() {
    let me = named("me");
    let wanted = User { uid: "u".into(), extra: extra(&[("a.io/k", &["1", "2"])]), ..User::new("jane", ["dev"]) };
    let all = &[
        ON_USER,
        USER,
        "impersonate:user-info uids.authentication.k8s.io u",
        "impersonate:user-info groups.authentication.k8s.io dev",
        "impersonate:user-info userextras.authentication.k8s.io/a.io/k 1",
        "impersonate:user-info userextras.authentication.k8s.io/a.io/k 2",
    ];
    let (told, asked) = outcome(&me, &wanted, all).await;
    assert_eq!(told.unwrap().1, ["dev", "system:authenticated"]);
    assert_eq!(asked, all);
    let refused = async |wanted: &User, why: &str| {
        let asked =
            Asked::allowing(|question| question.starts_with("impersonate:") || question.starts_with("impersonate-on:"));
        let error = Impersonation::Constrained.act(&asked, &listing(&me), wanted).await.unwrap_err();
        assert!(error.code == 403 && error.message.ends_with(why), "{}", error.message);
    };
    refused(&User::new("jane", ["system:masters"]), "impersonating the system:masters group is not allowed").await;
    refused(&User::new("jane", [""]), "impersonating the empty string group is not allowed").await;
    let with = |pairs: &[(&str, &[&str])]| User { extra: extra(pairs), ..named("jane") };
    refused(&with(&[("", &["1"])]), "impersonating the empty string key in extra is not allowed").await;
    refused(&with(&[("plain", &["1"])]), "must be a domain-prefixed path (such as \"acme.io/foo\")").await;
    refused(&with(&[("a.io/K", &["1"])]), "impersonating a non-lowercase key in extra is not allowed: \"a.io/K\"")
        .await;
    refused(&with(&[("a.io/k", &[])]), "impersonating empty values in extra is not allowed").await;
    refused(&with(&[("a.io/k", &[""])]), "impersonating the empty string value in extra is not allowed").await;
}

#[tokio::test]
async fn of_many_it_is_asked_for_all_first() {
    let me = named("me");
    let many = User::new("jane", ["a", "b", "c", "d"]);
    const EVERY_GROUP: &str = "impersonate:user-info groups.authentication.k8s.io *";
    let (told, asked) = outcome(&me, &many, &[ON_USER, USER, EVERY_GROUP]).await;
    assert!(told.is_ok());
    assert_eq!(asked, [ON_USER, USER, EVERY_GROUP]);
    let (told, asked) = outcome(&me, &many, &[ON_USER, USER]).await;
    assert!(told.unwrap_err().contains("groups.authentication.k8s.io \"a\" is forbidden"));
    assert_eq!(asked[2..4], [EVERY_GROUP, "impersonate:user-info groups.authentication.k8s.io a"]);
    let many = User { extra: extra(&[("a.io/k", &["1", "2"]), ("a.io/l", &["3", "4"])]), ..named("jane") };
    const EVERY_EXTRA: &str = "impersonate:user-info userextras.authentication.k8s.io/* *";
    let (told, asked) = outcome(&me, &many, &[ON_USER, USER, EVERY_EXTRA]).await;
    assert!(told.is_ok());
    assert_eq!(asked, [ON_USER, USER, EVERY_EXTRA]);
}

#[tokio::test]
async fn nodes_and_accounts_are_ways_of_their_own() {
    let me = named("me");
    let account = named("system:serviceaccount:apps:bot");
    const ON_ACCOUNT: &str = "impersonate-on:serviceaccount:list pods ns/";
    const ACCOUNT: &str = "impersonate:serviceaccount serviceaccounts.authentication.k8s.io apps/bot";
    let (told, asked) = outcome(&me, &account, &[ON_ACCOUNT, ACCOUNT]).await;
    let groups = ["system:serviceaccounts", "system:serviceaccounts:apps", "system:authenticated"];
    let (constraint, had) = told.unwrap();
    assert_eq!((constraint, had), (Some("impersonate:serviceaccount"), groups.map(str::to_owned).to_vec()));
    assert_eq!(asked, [ON_ACCOUNT, ACCOUNT]);
    let node = named("system:node:n1");
    const ON_NODE: &str = "impersonate-on:arbitrary-node:list pods ns/";
    const NODE: &str = "impersonate:arbitrary-node nodes.authentication.k8s.io n1";
    let (told, asked) = outcome(&me, &node, &[ON_NODE, NODE]).await;
    assert_eq!(
        told.unwrap(),
        (Some("impersonate:arbitrary-node"), vec!["system:nodes".into(), "system:authenticated".into()])
    );
    assert_eq!(asked, [ON_NODE, NODE]);
    // A node or an account with groups of the caller's choice is nobody's to be in these ways, nor in that for users.
    for wanted in [&account, &node] {
        let wanted = User { groups: vec!["dev".to_owned()], ..wanted.clone() };
        let (told, asked) = outcome(&me, &wanted, &[ON_ACCOUNT, ACCOUNT, ON_NODE, NODE, ON_USER]).await;
        assert!(told.is_err() && asked.iter().all(|question| question.starts_with("impersonate ")), "{asked:?}");
    }
    // A name that is no node's is a user's.
    let odd = named("system:node:Not_A_Node");
    let (_, asked) = outcome(&me, &odd, &[ON_USER]).await;
    assert_eq!(asked[..2], [ON_USER, "impersonate:user-info users.authentication.k8s.io system:node:Not_A_Node"]);
}

#[tokio::test]
async fn an_agent_acts_for_its_own_node_alone() {
    let keys =
        [("authentication.kubernetes.io/node-name", &["n1"][..]), ("authentication.kubernetes.io/pod-name", &["p"])];
    let agent = User { extra: extra(&keys), ..named("system:serviceaccount:kube-system:agent") };
    const ON_OWN: &str = "impersonate-on:associated-node:list pods ns/";
    const OWN: &str = "impersonate:associated-node nodes.authentication.k8s.io *";
    let asked = Asked::allowing(|question| [ON_OWN, OWN].contains(&question));
    let acting = Impersonation::Constrained.act(&asked, &listing(&agent), &named("system:node:n1")).await.unwrap();
    assert_eq!((acting.user.name.as_str(), acting.constraint), ("system:node:n1", Some("impersonate:associated-node")));
    assert!(acting.user.node_name() == Some("n1") && acting.user.extra.is_empty());
    for user in asked.users() {
        let names = keys.map(|(key, _)| key.to_owned()).to_vec();
        assert_eq!(
            user.extra,
            BTreeMap::from([("authentication.kubernetes.io/associated-node-keys".to_owned(), names)]),
            "rules see no Pod"
        );
    }
    assert_eq!(asked.questions(), [ON_OWN, OWN]);
    let other = Impersonation::Constrained.act(&asked, &listing(&agent), &named("system:node:n2")).await;
    assert!(other.is_err() && !asked.questions().iter().any(|question| question.contains("associated")));
    // Only an account's token says on which node it is.
    for caller in [User { name: "me".to_owned(), ..agent.clone() }, named(&agent.name)] {
        let refused = Impersonation::Constrained.act(&asked, &listing(&caller), &named("system:node:n1")).await;
        assert!(refused.is_err() && !asked.questions().iter().any(|question| question.contains("associated")));
    }
}
