//! A decision that extenders have a word in, without the way to them.

use crate::text::{node, pod};
use clock::Instant;
use scheduler::{
    Decision, Engine, Settings,
    extender::{About, Answer, Candidate, Candidates, Extender, Refused},
};

fn asking(preempt: &str, nodes: &[&str], pods: &[&str]) -> Engine {
    let extender = Extender { filter: "f".to_owned(), preempt: preempt.to_owned(), ..Extender::default() };
    let (mut engine, now) =
        (Engine::new(Settings { extenders: vec![extender], ..Settings::default() }), Instant::now());
    nodes.iter().for_each(|text| engine.set_node(&node(text), now));
    pods.iter().for_each(|text| engine.set_pod(&pod(text), now));
    engine
}

/// The answer of an extender that refuses these nodes.
fn refusing(names: &[&str]) -> Answer {
    let refused: Refused = names.iter().map(|name| ((*name).to_owned(), ("no".to_owned(), false))).collect();
    Answer::Nodes { refused, scores: [("b".to_owned(), 1000)].into() }
}

fn about(decision: Option<Decision>) -> About {
    match decision {
        Some(Decision::Consult(question)) => question.about,
        other => panic!("no question: {other:?}"),
    }
}

fn goes_to(decision: Decision) -> String {
    match decision {
        Decision::Bind { node, .. } => node.to_string(),
        Decision::Unschedulable { failure, preemption, .. } => {
            format!("{preemption:?} {}", failure.message(&preemption))
        }
        other => format!("{other:?}"),
    }
}

#[test]
fn scores_of_extenders_are_added() {
    let now = Instant::now();
    let mut engine = asking("", &["a", "b cpu=2"], &["p cpu=1"]);
    let About::Nodes(mut names) = about(engine.schedule_one(now)) else { panic!("about nodes") };
    names.sort();
    assert_eq!(names.iter().map(|name| &**name).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(goes_to(engine.consulted(refusing(&[]), now)), "b", "though a is emptier");
}

#[test]
fn any_change_wakes_a_pod_that_an_extender_refused() {
    let now = Instant::now();
    let mut engine = asking("", &["a"], &["p"]);
    about(engine.schedule_one(now));
    let said = goes_to(engine.consulted(refusing(&["a"]), now));
    assert!(said.contains("0/1 nodes are available: 1 no."), "{said}");
    assert!(engine.schedule_one(now).is_none());
    engine.set_pod(&pod("other on=a"), now);
    about(engine.schedule_one(now));
    assert_eq!(goes_to(engine.consulted(refusing(&[]), now)), "a");
}

#[test]
fn extenders_choose_among_victims() {
    let now = Instant::now();
    let pods = ["x cpu=2 on=a", "y cpu=2 on=b", "p cpu=3 priority=9"];
    let mut engine = asking("p", &["a", "b"], &pods);
    let About::Victims(found) = about(engine.schedule_one(now)) else { panic!("about victims") };
    assert_eq!(found.keys().map(|name| &**name).collect::<Vec<_>>(), ["a", "b"]);
    let only_b: Candidates =
        found.iter().filter(|(name, _)| &***name == "b").map(|(n, c)| (n.clone(), c.clone())).collect();
    let said = goes_to(engine.consulted(Answer::Victims(only_b), now));
    assert!(said.starts_with("Victims(Victims { node: \"b\""), "{said}");
    // The extender takes its word back where nobody would have to go.
    let mut engine = asking("p", &["a"], &pods[..1]);
    engine.set_pod(&pod("p cpu=3 priority=9"), now);
    let About::Victims(mut found) = about(engine.schedule_one(now)) else { panic!("about victims") };
    found.values_mut().for_each(|candidate| *candidate = Candidate::default());
    let said = goes_to(engine.consulted(Answer::Victims(found), now));
    assert!(said.starts_with("Fruitless"), "{said}");
}
