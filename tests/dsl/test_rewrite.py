"""Graphs with replaced nodes."""

import gnomon as gn
from gnomon.dsl.nodes import Apply, Constant, Input, Node, Variant, walk
from gnomon.dsl.rewrite import rewrite

X, Y = (Input(name, "constant", None, (), "real") for name in "xy")


def double(node: Node) -> Node | None:
    return Constant(node.value * 2) if isinstance(node, Constant) else None


def test_what_is_not_touched_stays_the_same_object() -> None:
    root = (X + 1) * gn.exp(Y)
    assert rewrite(root, lambda _: None) is root
    changed = rewrite(root, double)
    assert changed == (X + 2) * gn.exp(Y)
    assert isinstance(root, Apply)
    assert isinstance(changed, Apply)
    assert changed.args[1] is root.args[1]


def test_a_shared_node_is_visited_once_and_stays_shared() -> None:
    shared = X + 1
    root = shared * gn.exp(shared)
    seen: list[Node] = []

    def rule(node: Node) -> Node | None:
        seen.append(node)
        return double(node)

    changed = rewrite(root, rule)
    assert len(seen) == len(list(walk(root))) == 5
    assert isinstance(changed, Apply)
    assert changed.args[0] is changed.args[1].children()[0]


def test_the_rule_sees_replaced_children() -> None:
    def fold(node: Node) -> Node | None:
        match node:
            case Apply(fn="+", args=(Constant(value=a), Constant(value=b))):
                return Constant(a + b)
        return None

    one = Constant(1)
    assert rewrite(Apply("+", (Apply("+", (one, one)), one)), fold) == Constant(3)


def test_deep_graphs_are_rewritten() -> None:
    root: gn.Value = X
    for _ in range(5000):
        root = Apply("neg", (root,))

    def swap(node: Node) -> Node | None:
        return Y if node is X else None

    changed = rewrite(root, swap)
    assert Y in set(walk(changed))
    assert X not in set(walk(changed))


def test_new_nodes_belong_to_the_line_that_they_replace() -> None:
    old = gn.exp(X)
    new = rewrite(old, lambda node: gn.exp(Y) + 1 if node == old else None)
    assert new != old
    assert new.where == old.where
    assert new.children()[0].where == old.where


def test_a_variant_keeps_its_class_and_inputs() -> None:
    node = gn.catalogue.soft_cap.bind(cap=30.0)
    changed = rewrite(node, double)
    assert isinstance(changed, Variant)
    assert changed.inputs == node.inputs
    assert Constant(60.0) in set(walk(changed))
    assert Constant(30.0) not in set(walk(changed))
