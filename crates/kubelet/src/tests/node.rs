//! The Node object, which others write to as well.

use json::{Value, json};

use crate::{
    node::capacity,
    tests::world::{World, until},
};

const NODE: &str = "/api/v1/nodes/n1";

#[test]
fn labels_that_tell_the_machines_kind_are_put_back_and_others_are_left_alone() {
    let world = World::new();
    let label = |name: &str| world.api.get(NODE).unwrap_or_default()["metadata"]["labels"][name].clone();
    let is_true = || label("kubernetes.io/os") == "linux" && label("kubernetes.io/arch") == capacity::arch();
    let overwrite = |labels: Value| {
        let mut node = world.api.get(NODE).unwrap();
        node["metadata"]["labels"] = labels;
        world.api.put(NODE, node);
    };
    world.life(None, async || {
        until("the node has its labels", is_true).await;
        overwrite(json!({"kubernetes.io/os": "dummyOS", "kubernetes.io/arch": "dummyArch", "a": "b", "beta.kubernetes.io/os": "x"}));
        until("what was overwritten is put back", is_true).await;
        assert_eq!((label("a"), label("beta.kubernetes.io/os")), (json!("b"), json!("x")));
        overwrite(Value::Null);
        until("what was taken away is put back", is_true).await;
    });
}
